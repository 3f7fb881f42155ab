"""Every kind of release: its question to the rows, how far the answer can move, and its name.

A query is a frozen description made of numbers. A sampler makes one and hands it to the curator, which copies it as
plain numbers (`plain`), pays for it, and only then has it evaluated. Each class says

- `kind`: the name under which the release is planned, paid for and published;
- `exact_sum`: a sum over units of contributions whose norm is at most `bound`, in whole steps of a public grid;
- `apart` and `rounding`: where a unit is replaced, the sum moves by at most ``apart · bound`` in Euclidean norm, where
  one is added or removed by `bound`, and by `rounding` steps of the grid more where the sum is rounded as a whole.

The curator answers the classes in `QUERIES` and no others: a new kind of release is a class here, with its proof, and
the sampler that asks for it.
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

#: More than the roundings of a square root and a product.
_ROUNDING = 1.0 + 2.0**-50


@dataclass(frozen=True, eq=False)
class GradientSum(Query):
    """The sum of log-likelihood gradients at `theta`, each clipped to a Euclidean norm.

    Of those value variables alone that `blocks` says, one entry for each; the others have no entry. With `batches` it
    is the sum over a fresh batch, not scaled up to all units, and if `counted`, counts of clipped units are released
    with it.
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
    r"""Return the largest movement of :math:`f` when one unit of the batch is replaced; rounding not included.

    With :math:`a` = `scale` :math:`= n T / b` and clipped log-ratios :math:`|r_i| \le M` of the b units of a batch,

    .. math:: f(r) = a \sum_i r_i - \frac{a^2}{2} \Big( \sum_i r_i^2 - \frac1b \Big(\sum_i r_i\Big)^2 \Big).

    Replacing one unit moves f by at most :math:`2 a M + 2 (1 - 1/b) a^2 M^2`. Proof: let S be the sum of the other
    units, :math:`|S| \le (b - 1) M`, and x become x'. Then the bracket moves by at most
    :math:`(1 - 1/b) |x^2 - x'^2| + \frac2b |S| |x - x'| \le (1 - 1/b)\, u\, (|x + x'| + 2M)` with :math:`u = |x - x'|`,
    and :math:`|x + x'| \le 2M - u` gives :math:`(1 - 1/b)\, u\, (4M - u) \le (1 - 1/b)\, 4 M^2`. (The published bound
    has :math:`3 (1 - 1/b) a^2 M^2` for the second term; it is valid but loose.)
    """
    reach = scale * bound
    exact = 2.0 * reach + 2.0 * (1.0 - 1.0 / batch_size) * reach**2
    return exact * (1.0 + 2.0**-50)  # for the roundings of this line


def penalised(moments: ClippedMoments, unit: Fraction, grid: float) -> int:
    """Return f of the batch's log-ratios as a multiple of `grid`, rounded toward zero; a step of theirs counts `unit`.

    The sums are exact integers on a grid; f is then an exact fraction, rounded once toward zero to a second grid. Two
    values x apart are at most x and one step of that grid apart after rounding.
    """
    total, variance = moments.scaled(unit)
    return math.trunc((total - variance / 2) / Fraction(grid))


@dataclass(frozen=True, eq=False)
class VariancePenalisedLogRatio(Query):
    """The tempered log-ratio as a fresh batch estimates it, less half of the estimate's variance.

    One number f of all log-ratios of the batch, each clipped to `clip_bound`, not a sum; `sensitivity` has the proof
    how far it moves. What an expansion predicts of log-ratios is taken off them, where it is given: f is of the rest.
    If `counted`, counts of clipped units are released with it.
    """

    theta: FloatArray
    theta_new: FloatArray
    clip_bound: float
    batches: BatchesWithoutReplacement
    tempering: float
    counted: bool = False
    expanded: Expanded | None = None
    kind: ClassVar[str] = "log_ratio"
    apart: ClassVar[float] = 1.0  # the bound is that of a replacement already

    def bound(self, facts: PublicFacts) -> float:
        """Return the largest movement of f when one unit of the batch is replaced."""
        return sensitivity(self.tempering * self.batches.scale, self.clip_bound, self.batches.batch_size)

    def rounding(self, facts: PublicFacts) -> float:
        """Return 1: f is rounded toward zero once."""
        return 1.0

    def n_terms(self, facts: PublicFacts) -> int:
        """Return the size of the batch: f is at most half as many bounds."""
        return self.batches.batch_size

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse clip bounds that are out of range, and powers that are not positive."""
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
    """Whether the Barker test on a fresh batch accepts: 1 or 0. No noise is added: the test itself is random.

    `log_free_ratio` is the part of the log-ratio that costs nothing: prior and proposal. What an expansion predicts of
    log-ratios is taken off them, where it is given, and `log_free_ratio` holds it for all units.
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
        """Refuse powers that are not positive, which no bound is prescribed for."""
        _refuse_power(self.tempering)
        super().refuse_if_unsafe(facts)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Refuse: a decision is drawn, and the log-ratios behind it are released in no other way."""
        raise PrivacyError("The log-ratios behind a decision are not released.")

    def log_ratios(self, on: Evaluation) -> tuple[ClippedMoments, Fraction]:
        """Return the moments of the batch's clipped log-ratios, in steps, and what a step counts. Confidential."""
        return _batch_log_ratios(self, self.bound(on.facts), on)


def _refuse_power(tempering: float) -> None:
    """Refuse powers of the likelihood that are not positive numbers."""
    if not 0.0 < tempering < math.inf:
        raise PrivacyError(f"A likelihood is tempered by a positive power, not by {tempering:g}.")


def _batch_log_ratios(
    query: VariancePenalisedLogRatio | BarkerDecision, clip: float, on: Evaluation
) -> tuple[ClippedMoments, Fraction]:
    """Return the moments of the clipped log-ratios of a batch, in steps of a grid. Confidential.

    And what one step counts in the tempered log-ratio of all units.
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

    Of some units or of all. On the grid, clipped log-ratios stay below 2**41 steps.
    """
    check_bound(clip)
    grid = math.ldexp(1.0, math.frexp(clip)[1] - 41)
    if isinstance(move, Expanded):
        return rows.expansion(move.point).residual_moments(move.old, move.new, clip, grid, units=units), grid
    return rows.log_ratio_moments(*move, clip, grid, units=units), grid


class _Counts(Query):
    """Means of counts of clipped units: a unit moves each of `entries` means by at most 1, a replaced one, too.

    Its share of a mean is between 0 and 1.
    """

    kind: ClassVar[str] = "clip_count"
    apart: ClassVar[float] = 1.0

    def entries(self, facts: PublicFacts) -> int:
        """Return the number of means."""
        return 1

    def bound(self, facts: PublicFacts) -> float:
        """Return the largest movement of all means together by one unit, in Euclidean norm."""
        return math.sqrt(self.entries(facts)) * _ROUNDING

    def rounding(self, facts: PublicFacts) -> float:
        """Return the norm of one step in every entry: means are rounded down."""
        return self.bound(facts)

    def means(self, on: Evaluation, counts: Sequence[int], releases: Sequence[int]) -> ClippedSum:
        """Return counts divided by the number of releases that each is a sum over, rounded down to the grid."""
        if len(counts) != self.entries(on.facts):
            raise PrivacyError("There are more counts than the noise of their release is meant for.")
        grid = Fraction(on.grid)
        integers = [math.floor(count / (number * grid)) for count, number in zip(counts, releases, strict=True)]
        return ClippedSum(np.array(integers, dtype=np.int64), on.grid, self.bound(on.facts), 0)


@dataclass(frozen=True, eq=False)
class ClipCounts(_Counts):
    """How many units were clipped, on average over the releases since the last such query.

    Entries: for each planned kind the clipped units in a release, and where the number of units is protected
    (add-remove) that number.
    """

    def entries(self, facts: PublicFacts) -> int:
        """Return the number of kinds, and one more for the number of units."""
        return facts.n_counts + (facts.n_units is None)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the means."""
        return self.means(on, *on.tally.taken(on.rows.n_units if on.facts.n_units is None else None))


@dataclass(frozen=True, eq=False)
class DecisionClipCounts(_Counts):
    """How many of all units the Barker test would clip, on average over moves.

    Of all units, not of the decisions' batches: those have been asked once, and are not to be known. Only where the
    number of units is public. A move is the points that it leads from and to, or what an expansion predicts there. The
    batches that are `decided_on` set the clip bound; none is drawn here.
    """

    moves: tuple[tuple[FloatArray, FloatArray] | Expanded, ...]
    decided_on: BatchesWithoutReplacement
    tempering: float

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse where the number of units is protected, and where there is nothing to count."""
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
    """How many units there are, where that is protected: settings go by it."""

    kind: str = "unit_count"
    clip_bound = 1.0

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse where the number of units is public."""
        if facts.n_units is not None:
            raise PrivacyError("The number of units is public under this relation: nothing has to be released of it.")
        super().refuse_if_unsafe(facts)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the number."""
        return ClippedSum(np.array([on.rows.n_units * int(1.0 / on.grid)]), on.grid, 1.0, 0)


@dataclass(frozen=True, eq=False)
class ClippingLoss(Query):
    """The sum of what weights take off scores at an expansion point, in multiples of the clip bound.

    A unit counts at most 1: one beyond twice the bound counts as if it were at twice the bound. A sum of numbers
    between 0 and 1 moves by at most 1 when one is replaced, added or removed. Where the number of units is public, a
    half is taken off each and added again to the noisy sum: twice the bound of the rest is 1 again.
    """

    point: ExpansionPoint
    kind: str = "clipping_loss"

    @staticmethod
    def _less(facts: PublicFacts) -> float:
        """Return the number that is taken off one between 0 and 1 to make its bound small."""
        return 0.0 if facts.n_units is None else 0.5

    def bound(self, facts: PublicFacts) -> float:
        """Return a half, or 1 where the number of units is protected."""
        return 1.0 - self._less(facts)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse a bound of scores that is none."""
        check_bound(self.point.clip_gradient)
        super().refuse_if_unsafe(facts)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the sum of clipping losses, each less a half where the number of units is public."""
        return on.rows.expansion(self.point).clipping_loss(on.grid, self._less(on.facts))

    def published(self, value: FloatArray, facts: PublicFacts) -> FloatArray:
        """Return the noisy sum with the halves added again."""
        return value if facts.n_units is None else value + 0.5 * facts.n_units


@dataclass(frozen=True, eq=False)
class Residual(Query):
    """The sum of the remainders of weighted log-ratios beyond what an expansion predicts, each clipped to `clip_bound`.

    `old` and `new` are what it predicts at both points.
    """

    point: ExpansionPoint
    old: Prediction
    new: Prediction
    clip_bound: float
    kind: str = "residual"

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the sum of clipped residuals."""
        return on.rows.expansion(self.point).residual(self.old, self.new, self.clip_bound, on.grid)


#: What the curator answers: a reviewer reads these classes.
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
    """Return a copy of a query with nothing in it but numbers that are the curator's own.

    Samplers hand queries to the curator. An object of another class, or one that is changed later, could be paid for as
    one thing and evaluated as another: one of none of the classes in `QUERIES`, a subclass of them included, raises
    `PrivacyError`.
    """
    if not any(type(query) is known for known in QUERIES):  # by identity: a metaclass can claim equality
        raise PrivacyError(
            f"The curator answers no {type(query).__name__}: a kind of release is a class in "
            "pymc_dp/release/queries.py."
        )
    copied: Query = plain_copy(type(query), query)
    return copied
