"""Queries of derivatives along given axes: scores corrected for clipping bias, expected curvatures, and gradients.

Centred scores and expected curvatures require a model with known possible responses. An expansion's prediction can be
subtracted from gradients.
"""

from dataclasses import dataclass
from typing import ClassVar

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.batches import Batches
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, ExpansionPoint, FloatArray, GradientPrediction
from pymc_dp.release.query import NonNegative, PublicFacts, Rows, SumOverUnits
from pymc_dp.release.sizes import CountsByNorm
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import (
    centred_scores_of,
    expected_curvatures_of,
    kept_by,
    one_direction_curvatures_of,
    packed_size,
    preconditioned,
    scores_of,
    upper_scores_of,
)


@dataclass(frozen=True, eq=False)
class PreconditionedScore(SumOverUnits):
    """The sum of preconditioned scores, each clipped."""

    point: ExpansionPoint
    kind: str = "preconditioned_score"

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.point.theta.size

    def bound(self, facts: PublicFacts) -> float:
        """Return the clip bound."""
        return self.point.clip_gradient

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the scores."""
        return scores_of(chunk, self.point).T


@dataclass(frozen=True, eq=False)
class UpperScore(PreconditionedScore):
    """The sum of partial means of preconditioned scores over responses above the median, each clipped.

    The mean is over responses from the model at the point, given the unit's own covariates: no response of the table is
    used. If all units have the same information on their linear predictors, the inverse expected curvature times this
    sum is the direction in which all predictors rise by the same amount.
    """

    kind: str = "upper_score"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the partial means of the scores."""
        return upper_scores_of(chunk, self.point).T


@dataclass(frozen=True, eq=False)
class CentredScore(PreconditionedScore):
    """The sum of preconditioned scores, each clipped, plus the mean of the clipped parts.

    The mean is over responses from the model at the point, given the unit's own covariates. Scores of units of several
    rows, and those without known possible responses, are only clipped. With the mean a contribution may exceed the
    bound: it is clipped a second time. At the true parameters the mean of the sum is zero, except for the effect of the
    second clipping. That effect is small if the responses that the first clipping reduces are rare: a response of
    probability p that is reduced by c causes a bias of about p² c, instead of p c without the correction.

    References
    ----------
    Hampel, Ronchetti, Rousseeuw and Stahel (1986), Robust Statistics, section 6.3: bounded scores that are consistent.
    """

    kind: str = "centred_score"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the clipped scores plus the mean of the clipped parts."""
        return centred_scores_of(chunk, self.point).T


class _WithoutNegativeEigenvalues(NonNegative, SumOverUnits):
    """A sum of packed curvatures that have no negative eigenvalue.

    The curvatures of a unit's rows are added, each addition with a relative rounding error of 2**-53: for less than a
    million rows the total is far below the margin in `apart`.
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
        """Return a margin for truncation to the grid, which may make small eigenvalues negative."""
        return float(self.size)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse bounds of scores that are not positive: a negative one would make eigenvalues negative."""
        if not self.point.clip_gradient > 0.0:
            raise PrivacyError("Scores are clipped to a positive bound, or to none: an infinite one.")
        super().refuse_if_unsafe(facts)


@dataclass(frozen=True, eq=False)
class ExpectedCurvature(_WithoutNegativeEigenvalues):
    """The sum of units' expected curvatures, preconditioned, each clipped.

    An expected curvature is the mean, over responses from the model given a unit's own covariates, of the outer product
    of its clipped score with its score: the derivative of the expected centred score. Packed as in
    `pymc_dp.release.queries.Curvature`.

    Notes
    -----
    The inner product of two packed matrices without negative eigenvalues is the trace of their product, which is not
    negative. Two of them of norm at most b therefore differ by at most √2 b. Entries are rounded, relative to the norm,
    by a few 2**-53 for each response: matrices are clipped by 2**-40 more than needed. They are truncated to the grid:
    entries on the diagonal, which are not negative, then differ by less than one step more, the others by less than
    two, together by less than a step for each entry. A bound of at least 1e-100 makes underflow negligible.
    """

    point: ExpansionPoint
    kind: str = "expected_curvature"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the units' expected curvatures."""
        return expected_curvatures_of(chunk, self.point).T


@dataclass(frozen=True, eq=False)
class OneDirectionCurvature(_WithoutNegativeEigenvalues):
    """The sum of units' curvatures, preconditioned, each clipped, for likelihoods with a rank-one curvature per unit.

    Normal regressions have such curvatures in the parameters of their mean. Units whose score exceeds the bound of
    scores contribute zero. The summed matrix has no negative eigenvalue, whatever the likelihood: the sensitivity of
    `ExpectedCurvature` applies. Packed as in `pymc_dp.release.queries.Curvature`.
    """

    point: ExpansionPoint
    kind: str = "one_direction_curvature"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the units' curvatures."""
        return one_direction_curvatures_of(chunk, self.point).T


@dataclass(frozen=True, eq=False)
class _OfGradients(SumOverUnits):
    """Gradients of units along axes, less an expansion's prediction: see `PreconditionedGradient`."""

    point: ExpansionPoint
    axes: FloatArray
    prediction: GradientPrediction

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse arrays that do not fit."""
        super().refuse_unfit(rows)
        rows.refuse_other_shapes(self.prediction.theta, self.axes)
        rows.refuse_other_shapes(self.prediction.direction, self.prediction.jacobian)
        if self.prediction.offset.shape != self.point.theta.shape:
            raise PrivacyError("An offset of predicted gradients has one entry for each parameter.")

    def along(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the remainder of each unit's gradient along the axes, shape (axes, units)."""
        predicted = self.prediction
        found = chunk.scores(predicted.theta, self.axes)
        if predicted.jacobian.any():
            found -= chunk.scores(self.point.theta, preconditioned(predicted.jacobian.T, self.axes).T)
        if predicted.direction.any():
            found += chunk.curvatures_along(self.point.theta, predicted.direction, self.axes)
        if predicted.offset.any():
            found -= preconditioned(predicted.offset[None], self.axes)
        if self.point.clip_gradient < LARGEST_CLIP_BOUND:
            found *= kept_by(scores_of(chunk, self.point), self.point.clip_gradient)
        return found


@dataclass(frozen=True, eq=False)
class PreconditionedGradient(_OfGradients):
    """The sum of log-likelihood gradients along axes, less an expansion's prediction of each, each clipped.

    With a unit's weight w, which follows from the preconditioner and bound of the point, a contribution is ``axes.T @
    (w gradient - w predicted)``, clipped to `clip_bound`. With a prediction of zero the query is a sum of
    preconditioned gradients. Otherwise the prediction is a control variate: near the centre the remainders are small,
    and so are bound and noise. With `batches` the sum is over a fresh batch, not scaled up to all units, and if
    `counted`, counts of clipped units are released with it.

    References
    ----------
    Baker, Fearnhead, Fox and Nemeth (2019), Control variates for stochastic gradient MCMC, Statistics and Computing 29.
    """

    clip_bound: float
    batches: Batches | None = None
    counted: bool = False
    kind: str = "gradient"

    @property
    def size(self) -> int:
        """The number of axes."""
        return int(self.axes.shape[1])

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the remainders."""
        return self.along(chunk).T


@dataclass(frozen=True, eq=False)
class GradientSizes(CountsByNorm, _OfGradients):
    """Numbers of units by half octaves of the norm of the remainder of `PreconditionedGradient`."""

    smallest: float
    bins: int
    kind: str = "gradient_sizes"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return a 1 in the bin of each remainder's norm."""
        return self.counts(self.along(chunk))
