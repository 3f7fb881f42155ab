"""Every kind of release: what a query asks of the rows, how far the answer can move, and its name.

A query is a frozen description made of plain numbers. A sampler makes one and hands it to the curator, which copies it
(`plain`), pays for it, and only then has it evaluated. Each class says

- `kind`: the name under which the release is planned, paid for and published;
- `exact_sum`: a sum over units of contributions whose norm is at most `bound`, in whole steps of a public grid;
- `factor` and `rounding`: between neighbouring tables the sum moves by at most ``factor · bound`` in Euclidean norm,
  and by `rounding` steps of the grid more where the sum is rounded as a whole.

The curator answers the classes in `QUERIES` and no others: a new kind of release is a class here, with its proof, and
the sampler that asks for it.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release import barker_correction
from pymc_dp.release.batches import Batches, BatchesWithoutReplacement
from pymc_dp.release.centred import CentredScore, ExpectedCurvature, OneDirectionCurvature
from pymc_dp.release.comparisons import DensityDifferences, DifferenceSizes
from pymc_dp.release.counts import UnitCounts, UnitMoments
from pymc_dp.release.gradients import GradientSizes, PreconditionedGradient
from pymc_dp.release.interface import (
    Expanded,
    FloatArray,
)
from pymc_dp.release.penalised import penalised, sensitivity
from pymc_dp.release.predictions import PredictionCounts, PredictionSpreads, PredictionSums, SpreadSizes
from pymc_dp.release.query import (
    Asked,
    AtExpansionPoint,
    BeyondPredictions,
    IntArray,
    Query,
    Rows,
    Terms,
    check_bound,
)
from pymc_dp.release.sizes import BoundedScore, CoordinateSizes, NormSizes, RemainderSizes
from pymc_dp.rows.clipped_sum import ClippedMoments, ClippedSum

#: More than the roundings of a square root and a product.
_ROUNDING = 1.0 + 2.0**-50


@dataclass(frozen=True, eq=False)
class GradientSum(Query):
    """The sum of log-likelihood gradients, each clipped to a Euclidean norm.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The point.
    clip_bound : float
        The largest norm of a unit's gradient.
    blocks : tuple of bool, optional
        Which of the model's value variables take part; the others have no entry. Default: all.
    batches : Batches, optional
        Ask a fresh batch; the sum is not scaled up to all units. Default: all units.
    counted : bool
        Release counts of clipped units with it; batches only.
    """

    theta: FloatArray
    clip_bound: float
    blocks: tuple[bool, ...] | None = None
    batches: Batches | None = None
    counted: bool = False
    kind: ClassVar[str] = "gradient"

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sum of clipped gradients."""
        return asked.rows.clipped_gradient(
            self.theta, self.clip_bound, asked.grid, units=asked.batch, blocks=self.blocks
        )


@dataclass(frozen=True, eq=False)
class LogRatioSum(Query):
    """The sum over all units of log p(unit | theta_new) - log p(unit | theta), each clipped.

    Attributes
    ----------
    theta, theta_new : ndarray, shape (parameters,)
        The points.
    clip_bound : float
        The largest absolute log-ratio of a unit.
    """

    theta: FloatArray
    theta_new: FloatArray
    clip_bound: float
    kind: ClassVar[str] = "log_ratio"

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sum of clipped log-ratios."""
        return asked.rows.clipped_log_ratio(self.theta, self.theta_new, self.clip_bound, asked.grid)


@dataclass(frozen=True, eq=False)
class VariancePenalisedLogRatio(Query):
    """The tempered log-ratio as a fresh batch estimates it, less half of the estimate's variance.

    One number f of all log-ratios of the batch, not a sum; its sensitivity is proved in `pymc_dp.release.penalised`.

    Attributes
    ----------
    theta, theta_new : ndarray, shape (parameters,)
        The points.
    clip_bound : float
        The largest absolute log-ratio of a unit.
    batches : BatchesWithoutReplacement
        Of which size.
    tempering : float
        Power of the likelihood.
    counted : bool
        Release counts of clipped units with it.
    expanded : Expanded, optional
        What an expansion predicts of log-ratios is taken off them: f is of what is left.
    """

    theta: FloatArray
    theta_new: FloatArray
    clip_bound: float
    batches: BatchesWithoutReplacement
    tempering: float
    counted: bool = False
    expanded: Expanded | None = None
    kind: ClassVar[str] = "log_ratio"

    def bound(self, terms: Terms) -> float:
        """Return how far f moves when one unit of the batch is replaced."""
        return sensitivity(self.tempering * self.batches.scale, self.clip_bound, self.batches.batch_size)

    def factor(self, terms: Terms) -> float:
        """Return 1: the bound is that of a replacement already."""
        return 1.0

    def rounding(self, terms: Terms) -> float:
        """Return 1: f is rounded toward zero once."""
        return 1.0

    def n_terms(self, terms: Terms) -> int:
        """Return the size of the batch: f is at most half as many bounds."""
        return self.batches.batch_size

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse clip bounds that are out of range, and powers that are not positive."""
        _log_ratio_grid(self.clip_bound)
        _refuse_power(self.tempering)  # the sensitivity of a negative power is that of its absolute value
        super().refuse_if_unsafe(terms)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return f, rounded toward zero to the grid."""
        moments, step = _batch_log_ratios(self, self.clip_bound, asked)
        integers = np.array([penalised(moments, step, asked.grid)], dtype=np.int64)
        return ClippedSum(integers, asked.grid, self.bound(asked.terms), moments.n_clipped)


@dataclass(frozen=True, eq=False)
class BarkerDecision(Query):
    """Whether the Barker test on a fresh batch accepts: 1 or 0. No noise is added: the test itself is random.

    Attributes
    ----------
    theta, theta_new : ndarray, shape (parameters,)
        The points.
    log_free_ratio : float
        The part of the log-ratio that costs nothing: prior and proposal.
    batches : BatchesWithoutReplacement
        Of which size.
    tempering : float
        Power of the likelihood.
    expanded : Expanded, optional
        What an expansion predicts of log-ratios is taken off them: `log_free_ratio` holds it for all units.
    """

    theta: FloatArray
    theta_new: FloatArray
    log_free_ratio: float
    batches: BatchesWithoutReplacement
    tempering: float
    expanded: Expanded | None = None
    kind: ClassVar[str] = "decision"
    adds_noise: ClassVar[bool] = False

    def bound(self, terms: Terms) -> float:
        """Return the bound of a unit's log-ratio that the test prescribes."""
        return barker_correction.clip_bound(self.batches.batch_size, self.tempering * self.batches.n_units)

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse powers that are not positive, which no bound is prescribed for."""
        _refuse_power(self.tempering)
        super().refuse_if_unsafe(terms)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Refuse: a decision is drawn, and the log-ratios behind it are released in no other way."""
        raise PrivacyError("The log-ratios behind a decision are not released.")

    def log_ratios(self, asked: Asked) -> tuple[ClippedMoments, Fraction]:
        """Return the moments of the batch's clipped log-ratios, in steps, and what a step counts. Confidential."""
        return _batch_log_ratios(self, self.bound(asked.terms), asked)


def _batch_log_ratios(
    query: VariancePenalisedLogRatio | BarkerDecision, clip: float, asked: Asked
) -> tuple[ClippedMoments, Fraction]:
    """Return the moments of the clipped log-ratios of a batch, in steps of a grid. Confidential.

    And what one step counts in the tempered log-ratio of all units.
    """
    if asked.batch is None:
        raise PrivacyError("A test on a batch is asked of a fresh batch.")
    grid = _log_ratio_grid(clip)
    move = (query.theta, query.theta_new) if query.expanded is None else query.expanded
    moments = _clipped_log_ratios(asked.rows, move, clip, grid, asked.batch)
    tempered = Fraction(query.tempering) * Fraction(query.batches.n_units, query.batches.batch_size)
    return moments, tempered * Fraction(grid)


def _clipped_log_ratios(
    rows: Rows, move: tuple[FloatArray, FloatArray] | Expanded, clip: float, grid: float, units: IntArray | None
) -> ClippedMoments:
    """Return sums of clipped log-ratios of some units, or of all, or of what an expansion leaves of them."""
    if isinstance(move, Expanded):
        return rows.expansion(move.point).residual_moments(move.old, move.new, clip, grid, units=units)
    return rows.log_ratio_moments(*move, clip, grid, units=units)


def _log_ratio_grid(clip: float) -> float:
    """Return a grid on which clipped log-ratios stay below 2**41 steps.

    Raises
    ------
    PrivacyError
        If the clip bound is out of range.
    """
    check_bound(clip)
    return math.ldexp(1.0, math.frexp(clip)[1] - 41)


class _Counts(Query):
    """Means of counts of clipped units: a unit moves each of `entries` means by at most 1."""

    kind: ClassVar[str] = "clip_count"

    @abstractmethod
    def entries(self, terms: Terms) -> int:
        """Return how many means there are."""

    def bound(self, terms: Terms) -> float:
        """Return how far a unit moves all means together, in Euclidean norm."""
        return math.sqrt(self.entries(terms)) * _ROUNDING

    def factor(self, terms: Terms) -> float:
        """Return 1: a unit's share of a mean is between 0 and 1, so that a replaced unit moves the mean by 1, too."""
        return 1.0

    def rounding(self, terms: Terms) -> float:
        """Return the norm of one step in every entry: means are rounded down."""
        return math.sqrt(self.entries(terms)) * _ROUNDING

    def means(self, asked: Asked, counts: Sequence[int], releases: Sequence[int]) -> ClippedSum:
        """Return counts divided by the number of releases that each is a sum over, rounded down to the grid."""
        if len(counts) != self.entries(asked.terms):
            raise PrivacyError("There are more counts than the noise of their release is meant for.")
        grid = Fraction(asked.grid)
        integers = [math.floor(count / (number * grid)) for count, number in zip(counts, releases, strict=True)]
        return ClippedSum(np.array(integers, dtype=np.int64), asked.grid, self.bound(asked.terms), 0)


@dataclass(frozen=True, eq=False)
class ClipCounts(_Counts):
    """How many units were clipped, on average over the releases since the last such query.

    Entries: for each planned kind the clipped units in a release, and where the number of units is protected
    (add-remove) that number.
    """

    def entries(self, terms: Terms) -> int:
        """Return the number of kinds, and one more for the number of units."""
        return terms.n_counts + (terms.n_units is None)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the means."""
        return self.means(asked, *asked.tally.taken(asked.n_protected))


@dataclass(frozen=True, eq=False)
class DecisionClipCounts(_Counts):
    """How many of all units the Barker test would clip, on average over moves.

    Of all units, not of the decisions' batches: those have been asked once, and are not to be known. Only where the
    number of units is public.

    Attributes
    ----------
    moves : tuple of (ndarray, ndarray) or of Expanded
        The points that each move leads from and to, or what an expansion predicts there.
    decided_on : BatchesWithoutReplacement
        The batches of the decisions, which set the clip bound; none is drawn here.
    tempering : float
        Power of the likelihood.
    """

    moves: tuple[tuple[FloatArray, FloatArray] | Expanded, ...]
    decided_on: BatchesWithoutReplacement
    tempering: float

    def entries(self, terms: Terms) -> int:
        """Return 1."""
        return 1

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse where the number of units is protected, and where there is nothing to count."""
        if terms.n_units is None:
            raise PrivacyError("How many units decisions clip is released where the number of units is public.")
        if not self.moves:
            raise PrivacyError("There is no move to count clipped units in.")
        _refuse_power(self.tempering)
        check_bound(self._clip)
        super().refuse_if_unsafe(terms)

    @property
    def _clip(self) -> float:
        return barker_correction.clip_bound(self.decided_on.batch_size, self.tempering * self.decided_on.n_units)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the mean over moves."""
        clipped = sum(
            _clipped_log_ratios(asked.rows, move, self._clip, _log_ratio_grid(self._clip), None).n_clipped
            for move in self.moves
        )
        return self.means(asked, [clipped], [len(self.moves)])


@dataclass(frozen=True, eq=False)
class WeightedScore(AtExpansionPoint, Query):
    """The sum of weighted scores at an expansion point, preconditioned.

    Attributes
    ----------
    point : ExpansionPoint
        Where, by which preconditioner, with which clip bound.
    kind : str
        The name of the release.
    """

    kind: str = "score"

    def bound(self, terms: Terms) -> float:
        """Return the bound of a weighted score."""
        return self.point.clip_gradient

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sum of weighted scores."""
        return asked.rows.expansion(self.point).score(asked.grid)


@dataclass(frozen=True, eq=False)
class Curvature(AtExpansionPoint, Query):
    """The sum of weighted curvatures at an expansion point, preconditioned.

    Packed: the upper triangle by rows, entries off the diagonal times the square root of 2, so that the Euclidean norm
    is the Frobenius norm.

    Attributes
    ----------
    point : ExpansionPoint
        Where, by which preconditioner, with which clip bounds.
    kind : str
        The name of the release.
    """

    kind: str = "curvature"

    def bound(self, terms: Terms) -> float:
        """Return the bound of a weighted curvature's Frobenius norm."""
        return self.point.clip_curvature

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sum of weighted curvatures."""
        return asked.rows.expansion(self.point).curvature(asked.grid)


def _less(terms: Terms) -> float:
    """Return what is taken off a number between 0 and 1 to make its bound small."""
    return 0.0 if terms.n_units is None else 0.5


@dataclass(frozen=True, eq=False)
class UnitCount(Query):
    """How many units there are, where that is protected: settings go by it.

    Attributes
    ----------
    kind : str
        The name of the release.
    """

    kind: str = "unit_count"

    def bound(self, terms: Terms) -> float:
        """Return 1."""
        return 1.0

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse where the number of units is public."""
        if terms.n_units is not None:
            raise PrivacyError("The number of units is public under this relation: nothing has to be released of it.")
        super().refuse_if_unsafe(terms)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the number."""
        return ClippedSum(np.array([asked.rows.n_units * int(1.0 / asked.grid)]), asked.grid, 1.0, 0)


@dataclass(frozen=True, eq=False)
class ClippingLoss(AtExpansionPoint, Query):
    """The sum of what weights take off scores at an expansion point, in multiples of the clip bound.

    A unit counts at most 1: one beyond twice the bound counts as if it were at twice the bound. A sum of numbers
    between 0 and 1 moves by at most 1 when one is replaced, added or removed. Where the number of units is public, a
    half is taken off each and added again to the noisy sum: twice the bound of what is left is 1 again.

    Attributes
    ----------
    point : ExpansionPoint
        Where, by which preconditioner, with which clip bound.
    kind : str
        The name of the release.
    """

    kind: str = "clipping_loss"

    def bound(self, terms: Terms) -> float:
        """Return a half, or 1 where the number of units is protected."""
        return 1.0 - _less(terms)

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse a bound of scores that is none."""
        check_bound(self.point.clip_gradient)
        super().refuse_if_unsafe(terms)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sum of clipping losses, each less a half where the number of units is public."""
        return asked.rows.expansion(self.point).clipping_loss(asked.grid, _less(asked.terms))

    def published(self, value: FloatArray, terms: Terms) -> FloatArray:
        """Return the noisy sum with the halves added again."""
        return value if terms.n_units is None else value + 0.5 * terms.n_units


@dataclass(frozen=True, eq=False)
class Residual(BeyondPredictions, Query):
    """The sum of weighted log-ratios less what an expansion predicts of them, each clipped.

    Attributes
    ----------
    point : ExpansionPoint
        The expansion.
    old, new : Prediction
        What it predicts at both points.
    clip_bound : float
        The largest absolute residual of a unit.
    kind : str
        The name of the release.
    """

    clip_bound: float
    kind: str = "residual"

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sum of clipped residuals."""
        return asked.rows.expansion(self.point).residual(self.old, self.new, self.clip_bound, asked.grid)


#: What the curator answers: a reviewer reads these classes.
QUERIES: tuple[type[Query], ...] = (
    GradientSum,
    LogRatioSum,
    VariancePenalisedLogRatio,
    BarkerDecision,
    ClipCounts,
    DecisionClipCounts,
    WeightedScore,
    Curvature,
    UnitCount,
    ClippingLoss,
    Residual,
    CoordinateSizes,
    NormSizes,
    RemainderSizes,
    BoundedScore,
    CentredScore,
    ExpectedCurvature,
    OneDirectionCurvature,
    PreconditionedGradient,
    GradientSizes,
    UnitCounts,
    UnitMoments,
    DifferenceSizes,
    DensityDifferences,
    PredictionCounts,
    PredictionSums,
    SpreadSizes,
    PredictionSpreads,
)


def plain(query: Query) -> Query:
    """Return a copy of a query with nothing in it but numbers that are the curator's own.

    Samplers hand queries to the curator. An object of another class, or one that is changed later, could be paid for as
    one thing and evaluated as another.

    Raises
    ------
    PrivacyError
        If it is of none of the classes in `QUERIES`, a subclass of them included.
    """
    if not any(type(query) is known for known in QUERIES):  # by identity: a metaclass can claim equality
        raise PrivacyError(
            f"The curator answers no {type(query).__name__}: a kind of release is a class in "
            "pymc_dp/release/queries.py."
        )
    return dataclasses.replace(query)  # type: ignore[type-var]  # all classes in QUERIES are dataclasses


def _refuse_power(tempering: float) -> None:
    """Refuse powers of the likelihood that are not positive numbers."""
    if not 0.0 < tempering < math.inf:
        raise PrivacyError(f"A likelihood is tempered by a positive power, not by {tempering:g}.")
