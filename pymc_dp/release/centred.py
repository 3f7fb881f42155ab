"""Queries of regressions whose responses the model knows: clipped scores without bias, and expected curvature."""

from dataclasses import dataclass
from typing import ClassVar

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.interface import ExpansionPoint, FloatArray
from pymc_dp.release.query import NonNegative, PublicFacts, SumOverUnits
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import (
    centred_scores_of,
    expected_curvatures_of,
    one_direction_curvatures_of,
    packed_size,
)


@dataclass(frozen=True, eq=False)
class CentredScore(SumOverUnits):
    """The sum of preconditioned scores, each clipped, with the mean of the clipped parts added again.

    The average is over responses that the model draws at the point for the unit's own covariates. Units of several
    rows, and those whose responses the model does not know, are clipped alone. With the mean added a vector may be
    longer than the bound: it is clipped once more. At the true parameters the sum is zero on average but for what the
    second clip takes off.
    That is small where responses that the first one clips are rare: a response of probability p that is clipped by c
    leaves a bias of p² c or so, where clipping alone leaves one of p c.

    References
    ----------
    Hampel, Ronchetti, Rousseeuw and Stahel (1986), Robust Statistics, section 6.3: bounded scores that are consistent.
    """

    point: ExpansionPoint
    kind: str = "centred_score"

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.point.theta.size

    def bound(self, facts: PublicFacts) -> float:
        """Return the clip bound."""
        return self.point.clip_gradient

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the clipped scores with the mean of the clipped parts."""
        return centred_scores_of(chunk, self.point).T


class _WithoutNegativeEigenvalues(NonNegative, SumOverUnits):
    """A sum of packed curvatures that have no negative eigenvalue.

    Those of a unit's rows are added up, each addition rounded by 2**-53 of the sum: of less than a million rows this is
    far below the room that there is in `apart`.
    """

    apart: ClassVar[float] = (1.0 + 2.0**-20) * NonNegative.apart
    point: ExpansionPoint

    @property
    def size(self) -> int:
        """The number of entries of a packed matrix."""
        return packed_size(self.point.theta.size)

    def bound(self, facts: PublicFacts) -> float:
        """Return the bound of a curvature's Frobenius norm."""
        return self.point.clip_curvature

    def rounding(self, facts: PublicFacts) -> float:
        """Return room for truncations to the grid, which may make small eigenvalues negative."""
        return float(self.size)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse to clip scores to a negative bound, which would make eigenvalues negative."""
        if not self.point.clip_gradient > 0.0:
            raise PrivacyError("Scores are clipped to a positive bound, or to none: an infinite one.")
        super().refuse_if_unsafe(facts)


@dataclass(frozen=True, eq=False)
class ExpectedCurvature(_WithoutNegativeEigenvalues):
    """The sum of units' expected curvatures, preconditioned, each cut.

    The mean over responses that the model draws for a unit's own covariates of the outer product of its clipped score
    with its score: by how much the centred score changes with the parameters. Packed as in
    `pymc_dp.release.queries.Curvature`.

    Notes
    -----
    The inner product of two packed matrices without negative eigenvalues is the trace of their product, which is not
    negative. Two of them of norm at most b therefore differ by at most √2 b. Entries are rounded, relative to the norm,
    by a few 2**-53 for each response: matrices are cut by 2**-40 more than needed. They are truncated to the grid:
    those on the diagonal, which are not negative, then differ by less than a step more, the others by less than two,
    together by less than a step for each entry. A bound of at least 1e-100 keeps what underflows far below.
    """

    point: ExpansionPoint
    kind: str = "expected_curvature"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the units' expected curvatures."""
        return expected_curvatures_of(chunk, self.point).T


@dataclass(frozen=True, eq=False)
class OneDirectionCurvature(_WithoutNegativeEigenvalues):
    """The sum of units' curvatures, preconditioned, each cut, of likelihoods that curve in one direction a unit.

    As normal regressions do in the parameters of their mean. Units whose score is longer than the bound of scores have
    none. The summed matrix has no negative eigenvalue, whatever the likelihood: see `ExpectedCurvature` for what
    follows. Packed as in `pymc_dp.release.queries.Curvature`.
    """

    point: ExpansionPoint
    kind: str = "one_direction_curvature"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the units' curvatures."""
        return one_direction_curvatures_of(chunk, self.point).T
