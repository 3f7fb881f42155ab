"""Queries that tell how large derivatives are, before anything is known of the table: histograms and bounded scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, SMALLEST_CLIP_BOUND, ExpansionPoint, FloatArray, Prediction
from pymc_dp.release.query import Evaluation, IntArray, NonNegative, PublicFacts, SumOverUnits
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import (
    curvatures_of,
    least_squared_slopes_of,
    one_direction_curvatures_of,
    scores_of,
    squares_of,
    squares_of_expected_curvatures,
    squares_of_least_information,
)

#: What a count is clipped to: counts of 1 keep this bound with room for roundings of the norm.
ROOM_OF_COUNTS = 1.0 + 1e-9
#: Histograms have no more bins.
_MOST_BINS = 1000
#: Floating point has no octaves beyond.
_MOST_OCTAVES = 1100
#: Squared norms of units, by what they are of.
_OF: dict[str, Callable[[UnitsOfChunk, ExpansionPoint], FloatArray]] = {
    "score": lambda *of: squares_of(scores_of(*of)),
    "curvature": lambda *of: squares_of(curvatures_of(*of)),
    "expected_curvature": squares_of_expected_curvatures,
    "least_information": squares_of_least_information,
    "least_slope": least_squared_slopes_of,
    "one_direction_curvature": lambda *of: squares_of(one_direction_curvatures_of(*of)),
}


def octaves(sizes: FloatArray) -> FloatArray:
    """Return the whole part of the binary logarithm of absolute values: exact, and of an entry by itself.

    Vector instructions may round a logarithm otherwise than the same instruction for a single number does: a unit next
    to an edge would then change its bin with the length of the table.
    """
    _, exponents = np.frexp(sizes)
    found: FloatArray = exponents - 1.0
    found[sizes == 0.0] = -np.inf
    found[np.isinf(sizes)] = np.inf
    found[np.isnan(sizes)] = np.nan
    return found


def in_bins(place: FloatArray, bins: int) -> FloatArray:
    """Return a 1 in the bin of each entry, and nothing where a place is no number.

    Places of shape (..., units) give (..., bins, units).
    """
    unknown = np.isnan(place)
    nearest = np.clip(np.where(unknown, 0.0, place), 0, bins - 1).astype(np.intp)
    counts: FloatArray = np.zeros((*place.shape[:-1], bins, place.shape[-1]))
    np.put_along_axis(counts, nearest[..., None, :], np.where(unknown, 0.0, 1.0)[..., None, :], axis=-2)
    return counts


def half_octaves(squares: FloatArray, smallest: float, bins: int) -> FloatArray:
    """Return a 1 in the bin of each unit's norm, shape (units, bins), given squared norms.

    Squares grow by one octave for half an octave of norms.
    """
    return in_bins(octaves(squares / smallest**2), bins).T


class CountsBySize(NonNegative):
    """Counts of units by the size of something: each unit is in one of `bins` bins."""

    bins: int

    @property
    def size(self) -> int:
        """The number of bins."""
        return self.bins

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of a unit's counts: it is in one bin."""
        return ROOM_OF_COUNTS

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse bins that no array can hold."""
        if not 1 <= self.bins <= _MOST_BINS:
            raise PrivacyError(f"A histogram has between 1 and {_MOST_BINS} bins.")
        super().refuse_if_unsafe(facts)


class CountsByOctave(CountsBySize):
    """Counts of units by octaves of an absolute value, one bin each.

    The first bin holds sizes from ``2**lowest`` on, and all smaller ones; the last one all larger ones.
    """

    lowest: int

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse octaves that there are not."""
        if abs(self.lowest) > _MOST_OCTAVES:
            raise PrivacyError(f"The first octave of a histogram is between {-_MOST_OCTAVES} and {_MOST_OCTAVES}.")
        super().refuse_if_unsafe(facts)

    def counts(self, values: FloatArray) -> FloatArray:
        """Return a 1 in the bin of each value, shape (..., bins, units)."""
        return in_bins(octaves(values) - self.lowest, self.bins)


class CountsByNorm(CountsBySize):
    """Counts of units by half octaves of a norm, one bin each.

    The first bin holds norms from `smallest` on, and all smaller ones; the last one all larger ones.
    """

    smallest: float

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse numbers that squares cannot be taken of."""
        if not SMALLEST_CLIP_BOUND <= self.smallest <= LARGEST_CLIP_BOUND:
            raise PrivacyError(
                f"The first norm of a histogram is between {SMALLEST_CLIP_BOUND:g} and {LARGEST_CLIP_BOUND:g}."
            )
        super().refuse_if_unsafe(facts)

    def counts(self, columns: FloatArray) -> FloatArray:
        """Return a 1 in the bin of each column's norm, shape (units, bins)."""
        return half_octaves(squares_of(columns), self.smallest, self.bins)


@dataclass(frozen=True, eq=False)
class CoordinateSizes(CountsByOctave, SumOverUnits):
    """For every parameter, how many units have a score of a size in each octave: shape (parameters * bins,)."""

    theta: FloatArray
    lowest: int
    bins: int
    kind: str = "coordinate_sizes"

    @property
    def size(self) -> int:
        """A bin of every parameter."""
        return self.theta.size * self.bins

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of a unit's counts: it is in one bin for every parameter."""
        return math.sqrt(self.theta.size) * ROOM_OF_COUNTS

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return a 1 for every parameter."""
        return self.counts(chunk.gradient(self.theta).T).reshape(self.size, -1).T


@dataclass(frozen=True, eq=False)
class NormSizes(CountsByNorm, SumOverUnits):
    """How many units have a preconditioned score, or curvature, of a norm in each half octave.

    Of curvatures the Frobenius norm. Or how many have such a least information, or slope: see
    `pymc_dp.rows.expansion.squares_of_least_information`. The bounds of the point do not matter.
    """

    point: ExpansionPoint
    of: Literal[
        "score", "curvature", "expected_curvature", "least_information", "least_slope", "one_direction_curvature"
    ]
    smallest: float
    bins: int
    kind: str = "norm_sizes"

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse norms of something else, and of scores that are clipped to nothing."""
        if not self.point.clip_gradient > 0.0:
            raise PrivacyError("Scores are clipped to a positive bound, or to none: an infinite one.")
        if self.of not in _OF:
            raise PrivacyError("Norms are of scores or of a kind of curvatures that is known.")
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return a 1 in the bin of each unit's norm."""
        return half_octaves(_OF[self.of](chunk, self.point), self.smallest, self.bins)


@dataclass(frozen=True, eq=False)
class RemainderSizes(CountsByOctave):
    """How many units have a log-ratio that differs from what an expansion predicts by a size in each octave.

    `old` and `new` are what it predicts at both points.
    """

    point: ExpansionPoint
    old: Prediction
    new: Prediction
    lowest: int
    bins: int
    kind: str = "remainder_sizes"

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the counts."""

        def in_each_bin(residuals: FloatArray) -> IntArray:
            return self.counts(np.abs(residuals)).sum(axis=1).astype(np.int64)

        expansion = on.rows.expansion(self.point)
        return expansion.residual_sizes(self.old, self.new, in_each_bin, self.bound(on.facts), on.grid)


@dataclass(frozen=True, eq=False)
class BoundedScore(SumOverUnits):
    """The sum of one entry of units' scores, each less a public number and cut to an interval around zero.

    Of scores that are never below some number, the middle of where they may be makes the interval half as long:
    `middle` is taken off every unit's entry at `place`, and the rest is cut to `clip_bound`. A unit whose score is not
    finite counts as if it had `middle`.
    """

    theta: FloatArray
    place: int
    clip_bound: float
    middle: float = 0.0
    kind: str = "bounded_score"
    size: ClassVar[int] = 1

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse an entry that is not there."""
        if not 0 <= self.place < self.theta.size:
            raise PrivacyError("There is no such entry of the score.")
        if not math.isfinite(self.middle):
            raise PrivacyError("What is taken off scores must be a finite number.")
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the entry of each unit's score."""
        return chunk.gradient(self.theta)[:, [self.place]] - self.middle
