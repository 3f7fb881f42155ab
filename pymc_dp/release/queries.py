"""Every kind of release: its sum over units, its sensitivity, and its name.

A query is a frozen description made of numbers. A sampler makes a query and passes it to the curator, which copies it
as plain numbers (`plain`), pays for it, and only then evaluates it. Each class defines

- `kind`: the name under which the release is planned, paid for and published;
- `exact_sum`: a sum over units of contributions whose norm is at most `bound`, in integer steps of a public grid;
- `apart` and `rounding`: the sum changes in Euclidean norm by at most ``apart · bound`` if a unit is replaced, by at
  most `bound` if a unit is added or removed, and by `rounding` steps of the grid more if the sum is rounded as a whole.

The curator answers the classes in `QUERIES` and no others. A new kind of release is a class here, with its proof, and a
sampler that requests it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release import barker_correction
from pymc_dp.release.batches import Batches, BatchesWithoutReplacement
from pymc_dp.release.interface import Expanded, ExpansionPoint, FloatArray, Prediction
from pymc_dp.release.levels import LevelCounts
from pymc_dp.release.preconditioned import (
    CentredScore,
    ExpectedCurvature,
    GradientSizes,
    OneDirectionCurvature,
    PreconditionedGradient,
    PreconditionedScore,
    UpperScore,
)
from pymc_dp.release.query import Evaluation, IntArray, PublicFacts, Query, Rows, check_bound, plain_copy
from pymc_dp.release.sizes import BoundedScore, CoordinateSizes, NormSizes, RemainderSizes
from pymc_dp.release.surveys import (
    DensityDifferences,
    DifferenceSizes,
    PredictionCounts,
    PredictionSpreads,
    PredictionSums,
    SpreadSizes,
    UnitCounts,
    UnitMoments,
)
from pymc_dp.rows.clipped_sum import ClippedMoments, ClippedSum

#: An upper bound of the rounding of a square root and a product.
_ROUNDING = 1.0 + 2.0**-50


@dataclass(frozen=True, eq=False)
class GradientSum(Query):
    """The sum of log-likelihood gradients at `theta`, each clipped to a Euclidean norm.

    `blocks`, with one entry for each value variable, selects the variables to differentiate by. With `batches` the sum
    is over a fresh batch, not scaled up to all units, and if `counted`, counts of clipped units are released with it.
    """

    theta: FloatArray
    clip_bound: float
    blocks: tuple[bool, ...] | None = None
    batches: Batches | None = None
    counted: bool = False
    kind: ClassVar[str] = "gradient"

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the sum of clipped gradients."""
        return on.rows.clipped_gradient(self.theta, self.clip_bound, on.grid, units=on.batch, blocks=self.blocks)


@dataclass(frozen=True, eq=False)
class LogRatioSum(Query):
    """The sum over all units of log p(unit | theta_new) - log p(unit | theta), each clipped to `clip_bound`."""

    theta: FloatArray
    theta_new: FloatArray
    clip_bound: float
    kind: ClassVar[str] = "log_ratio"

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the sum of clipped log-ratios."""
        return on.rows.clipped_log_ratio(self.theta, self.theta_new, self.clip_bound, on.grid)


def sensitivity(scale: float, bound: float, batch_size: int) -> float:
    r"""Return the sensitivity of :math:`f` to the replacement of one unit of the batch, without rounding.

    With :math:`a` = `scale` :math:`= n T / b` and clipped log-ratios :math:`|r_i| \le M` of the b units of a batch,

    .. math:: f(r) = a \sum_i r_i - \frac{a^2}{2} \Big( \sum_i r_i^2 - \frac1b \Big(\sum_i r_i\Big)^2 \Big).

    Replacing one unit changes f by at most :math:`2 a M + 2 (1 - 1/b) a^2 M^2`. Proof: let S be the sum of the other
    units, :math:`|S| \le (b - 1) M`, and let x' replace x. Then the bracket changes by at most
    :math:`(1 - 1/b) |x^2 - x'^2| + \frac2b |S| |x - x'| \le (1 - 1/b)\, u\, (|x + x'| + 2M)` with :math:`u = |x - x'|`,
    and :math:`|x + x'| \le 2M - u` gives :math:`(1 - 1/b)\, u\, (4M - u) \le (1 - 1/b)\, 4 M^2`. (The published bound
    has :math:`3 (1 - 1/b) a^2 M^2` as its second term; it is valid but loose.)
    """
    scaled = scale * bound
    exact = 2.0 * scaled + 2.0 * (1.0 - 1.0 / batch_size) * scaled**2
    return exact * (1.0 + 2.0**-50)  # for the rounding of the line above


def penalised(moments: ClippedMoments, unit: Fraction, grid: float) -> int:
    """Return f in multiples of `grid`, rounded toward zero; a step of the log-ratios has the length `unit`.

    The sums are exact integers in steps; f is then an exact fraction, rounded once toward zero to `grid`. By rounding,
    the difference of two values grows by at most one step of that grid.
    """
    total, variance = moments.scaled(unit)
    return math.trunc((total - variance / 2) / Fraction(grid))


@dataclass(frozen=True, eq=False)
class VariancePenalisedLogRatio(Query):
    """The estimate of the tempered log-ratio from a fresh batch, less half of the estimate's variance.

    The answer is one function f of all log-ratios of the batch, each clipped to `clip_bound`, not a sum; the proof of
    its sensitivity is in `sensitivity`. With `expanded`, the expansion's prediction is subtracted from each log-ratio
    before clipping. If `counted`, counts of clipped units are released with it.
    """

    theta: FloatArray
    theta_new: FloatArray
    clip_bound: float
    batches: BatchesWithoutReplacement
    tempering: float
    counted: bool = False
    expanded: Expanded | None = None
    kind: ClassVar[str] = "log_ratio"
    apart: ClassVar[float] = 1.0  # `bound` is the sensitivity to a replacement

    def bound(self, facts: PublicFacts) -> float:
        """Return the sensitivity of f to the replacement of one unit of the batch."""
        return sensitivity(self.tempering * self.batches.scale, self.clip_bound, self.batches.batch_size)

    def rounding(self, facts: PublicFacts) -> float:
        """Return 1: f is rounded toward zero once."""
        return 1.0

    def n_terms(self, facts: PublicFacts) -> int:
        """Return the size of the batch: the absolute value of f is at most half of that times the bound."""
        return self.batches.batch_size

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse clip bounds that are out of range, and tempering powers that are not positive."""
        check_bound(self.clip_bound)
        _refuse_power(self.tempering)  # the sensitivity of a negative power is that of its absolute value
        super().refuse_if_unsafe(facts)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return f, rounded toward zero to the grid."""
        moments, step = _batch_log_ratios(self, self.clip_bound, on)
        integers = np.array([penalised(moments, step, on.grid)], dtype=np.int64)
        return ClippedSum(integers, on.grid, self.bound(on.facts), moments.n_clipped)


@dataclass(frozen=True, eq=False)
class BarkerDecision(Query):
    """The decision of the Barker test on a fresh batch: 1 (accept) or 0. No noise is added: the test itself is random.

    `log_free_ratio` is the part of the log-ratio without privacy cost: prior and proposal. With `expanded`, the
    expansion's prediction is subtracted from each log-ratio, and `log_free_ratio` includes it for all units.
    """

    theta: FloatArray
    theta_new: FloatArray
    log_free_ratio: float
    batches: BatchesWithoutReplacement
    tempering: float
    expanded: Expanded | None = None
    kind: ClassVar[str] = "decision"
    adds_noise: ClassVar[bool] = False

    def bound(self, facts: PublicFacts) -> float:
        """Return the bound of a unit's log-ratio that the test prescribes."""
        return barker_correction.clip_bound(self.batches.batch_size, self.tempering * self.batches.n_units)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse tempering powers that are not positive: the test has no bound for them."""
        _refuse_power(self.tempering)
        super().refuse_if_unsafe(facts)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Refuse: log-ratios are only used to draw a decision, and are not released otherwise."""
        raise PrivacyError("The log-ratios behind a decision are not released.")

    def log_ratios(self, on: Evaluation) -> tuple[ClippedMoments, Fraction]:
        """Return the moments of the batch's clipped log-ratios, in steps, and the length of a step. Confidential."""
        return _batch_log_ratios(self, self.bound(on.facts), on)


def _refuse_power(tempering: float) -> None:
    """Refuse powers of the likelihood that are not positive numbers."""
    if not 0.0 < tempering < math.inf:
        raise PrivacyError(f"A likelihood is tempered by a positive power, not by {tempering:g}.")


def _batch_log_ratios(
    query: VariancePenalisedLogRatio | BarkerDecision, clip: float, on: Evaluation
) -> tuple[ClippedMoments, Fraction]:
    """Return the moments of the clipped log-ratios of a batch, in steps of a grid, and the length of a step.

    The length is that in the tempered log-ratio of all units. Confidential.
    """
    if on.batch is None:
        raise PrivacyError("A test on a batch is asked of a fresh batch.")
    move = (query.theta, query.theta_new) if query.expanded is None else query.expanded
    moments, grid = _clipped_log_ratios(on.rows, move, clip, on.batch)
    tempered = Fraction(query.tempering) * Fraction(query.batches.n_units, query.batches.batch_size)
    return moments, tempered * Fraction(grid)


def _clipped_log_ratios(
    rows: Rows, move: tuple[FloatArray, FloatArray] | Expanded, clip: float, units: IntArray | None
) -> tuple[ClippedMoments, float]:
    """Return moments of clipped log-ratios, or of their remainders beyond an expansion, and their grid.

    The moments are over `units`, or all. Clipped log-ratios are below 2**41 steps of the grid.
    """
    check_bound(clip)
    grid = math.ldexp(1.0, math.frexp(clip)[1] - 41)
    if isinstance(move, Expanded):
        return rows.expansion(move.point).residual_moments(move.old, move.new, clip, grid, units=units), grid
    return rows.log_ratio_moments(*move, clip, grid, units=units), grid


class _Counts(Query):
    """Means of counts of clipped units.

    A unit adds between 0 and 1 to each of `entries` means: adding, removing or replacing a unit changes each by at most
    1.
    """

    kind: ClassVar[str] = "clip_count"
    apart: ClassVar[float] = 1.0

    def entries(self, facts: PublicFacts) -> int:
        """Return the number of means."""
        return 1

    def bound(self, facts: PublicFacts) -> float:
        """Return the sensitivity of the vector of means in Euclidean norm."""
        return math.sqrt(self.entries(facts)) * _ROUNDING

    def rounding(self, facts: PublicFacts) -> float:
        """Return the norm of one step in every entry, because means are rounded down."""
        return self.bound(facts)

    def means(self, on: Evaluation, counts: Sequence[int], releases: Sequence[int]) -> ClippedSum:
        """Return counts divided by their numbers of releases, rounded down to the grid."""
        if len(counts) != self.entries(on.facts):
            raise PrivacyError("There are more counts than the noise of their release is meant for.")
        grid = Fraction(on.grid)
        integers = [math.floor(count / (number * grid)) for count, number in zip(counts, releases, strict=True)]
        return ClippedSum(np.array(integers, dtype=np.int64), on.grid, self.bound(on.facts), 0)


@dataclass(frozen=True, eq=False)
class ClipCounts(_Counts):
    """Mean numbers of clipped units over the releases since the last such query.

    The entries are the clipped units in a release of each planned kind, and the number of units if that is protected
    (add-remove).
    """

    def entries(self, facts: PublicFacts) -> int:
        """Return the number of kinds, and one more for the number of units."""
        return facts.n_counts + (facts.n_units is None)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the means."""
        return self.means(on, *on.tally.taken(on.rows.n_units if on.facts.n_units is None else None))


@dataclass(frozen=True, eq=False)
class DecisionClipCounts(_Counts):
    """The number of all units whose log-ratios the Barker test would clip, as a mean over moves.

    The count is over all units, not over the batches of the decisions, which were used for one release and stay
    confidential. It requires a public number of units. A move is a pair of points, or of an expansion's predictions.
    The batches `decided_on` determine the clip bound; no batch is drawn here.
    """

    moves: tuple[tuple[FloatArray, FloatArray] | Expanded, ...]
    decided_on: BatchesWithoutReplacement
    tempering: float

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse if the number of units is protected, and if there is no move."""
        if facts.n_units is None:
            raise PrivacyError("How many units decisions clip is released where the number of units is public.")
        if not self.moves:
            raise PrivacyError("There is no move to count clipped units in.")
        _refuse_power(self.tempering)
        check_bound(self._clip)
        super().refuse_if_unsafe(facts)

    @property
    def _clip(self) -> float:
        return barker_correction.clip_bound(self.decided_on.batch_size, self.tempering * self.decided_on.n_units)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the mean over moves."""
        moments = [_clipped_log_ratios(on.rows, move, self._clip, None)[0] for move in self.moves]
        return self.means(on, [sum(each.n_clipped for each in moments)], [len(self.moves)])


@dataclass(frozen=True, eq=False)
class Curvature(Query):
    """The sum of weighted curvatures at an expansion point, preconditioned.

    Packed: the upper triangle by rows, entries off the diagonal times the square root of 2, so that the Euclidean norm
    is the Frobenius norm.
    """

    point: ExpansionPoint
    kind: str = "curvature"

    def bound(self, facts: PublicFacts) -> float:
        """Return the bound of a weighted curvature's Frobenius norm."""
        return self.point.clip_curvature

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the sum of weighted curvatures."""
        return on.rows.expansion(self.point).curvature(on.grid)


@dataclass(frozen=True, eq=False)
class UnitCount(Query):
    """The number of units, where it is protected. Settings of samplers depend on it."""

    kind: str = "unit_count"
    clip_bound = 1.0

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse if the number of units is public."""
        if facts.n_units is not None:
            raise PrivacyError("The number of units is public under this relation: nothing has to be released of it.")
        super().refuse_if_unsafe(facts)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the number of units."""
        return ClippedSum(np.array([on.rows.n_units * int(1.0 / on.grid)]), on.grid, 1.0, 0)


@dataclass(frozen=True, eq=False)
class ClippingLoss(Query):
    """The sum of the reductions of scores' norms by weights at an expansion point, in multiples of the clip bound.

    A unit contributes at most 1: a norm beyond twice the bound counts as twice the bound. A sum of numbers between 0
    and 1 changes by at most 1 if one number is replaced, added or removed. If the number of units is public, a half is
    subtracted from each number and added to the noisy sum again: twice the bound of the differences is 1, too.
    """

    point: ExpansionPoint
    kind: str = "clipping_loss"

    @staticmethod
    def _less(facts: PublicFacts) -> float:
        """Return the number to subtract from each contribution between 0 and 1, to reduce its bound."""
        return 0.0 if facts.n_units is None else 0.5

    def bound(self, facts: PublicFacts) -> float:
        """Return a half, or 1 if the number of units is protected."""
        return 1.0 - self._less(facts)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse bounds of scores that are out of range."""
        check_bound(self.point.clip_gradient)
        super().refuse_if_unsafe(facts)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the sum of clipping losses, each less a half if the number of units is public."""
        return on.rows.expansion(self.point).clipping_loss(on.grid, self._less(on.facts))

    def published(self, value: FloatArray, facts: PublicFacts) -> FloatArray:
        """Return the noisy sum with the halves added again."""
        return value if facts.n_units is None else value + 0.5 * facts.n_units


@dataclass(frozen=True, eq=False)
class Residual(Query):
    """The sum of the remainders of weighted log-ratios beyond an expansion, each clipped to `clip_bound`.

    `old` and `new` are the expansion's predictions at both points.
    """

    point: ExpansionPoint
    old: Prediction
    new: Prediction
    clip_bound: float
    kind: str = "residual"

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the sum of clipped residuals."""
        return on.rows.expansion(self.point).residual(self.old, self.new, self.clip_bound, on.grid)


#: The queries that the curator answers: a reviewer reads these classes.
QUERIES: tuple[type[Query], ...] = (
    *(GradientSum, LogRatioSum, VariancePenalisedLogRatio, BarkerDecision, ClipCounts, DecisionClipCounts),
    *(Curvature, UnitCount, ClippingLoss, Residual),
    *(CoordinateSizes, NormSizes, RemainderSizes, BoundedScore),
    *(PreconditionedScore, UpperScore, CentredScore, ExpectedCurvature, OneDirectionCurvature),
    *(PreconditionedGradient, GradientSizes),
    *(UnitCounts, UnitMoments, LevelCounts),
    *(DifferenceSizes, DensityDifferences),
    *(PredictionCounts, PredictionSums, SpreadSizes, PredictionSpreads),
)


def plain(query: Query) -> Query:
    """Return a copy of a query that holds only numbers of the curator's own.

    Samplers pass queries to the curator. An object of another class, or one that is changed later, could be paid for as
    one query and evaluated as another. Objects of classes outside `QUERIES`, subclasses included, raise `PrivacyError`.
    """
    if not any(type(query) is known for known in QUERIES):  # by identity: a metaclass can claim equality
        raise PrivacyError(
            f"The curator answers no {type(query).__name__}: a kind of release is a class in "
            "pymc_dp/release/queries.py."
        )
    copied: Query = plain_copy(type(query), query)
    return copied
