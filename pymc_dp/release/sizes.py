"""Queries of the magnitudes of derivatives, at the start of a search: histograms of norms, and bounded scores."""

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

#: The clip bound of counts: counts of 1 are within it, with a margin for the rounding of the norm.
ROOM_OF_COUNTS = 1.0 + 1e-9
#: The largest number of bins of a histogram.
_MOST_BINS = 1000
#: The largest absolute octave: floating-point numbers have exponents between -1074 and 1023.
_MOST_OCTAVES = 1100
#: Functions for the squared norms of units, by `NormSizes.of`.
_OF: dict[str, Callable[[UnitsOfChunk, ExpansionPoint], FloatArray]] = {
    "score": lambda *of: squares_of(scores_of(*of)),
    "curvature": lambda *of: squares_of(curvatures_of(*of)),
    "expected_curvature": squares_of_expected_curvatures,
    "least_information": squares_of_least_information,
    "least_slope": least_squared_slopes_of,
    "one_direction_curvature": lambda *of: squares_of(one_direction_curvatures_of(*of)),
}


def octaves(magnitudes: FloatArray) -> FloatArray:
    """Return the integer part of the binary logarithm of absolute values: exact, and for each entry by itself.

    Vector instructions may round a logarithm differently than the instruction for a single number: a unit close to an
    edge would then change its bin with the length of the table.
    """
    _, exponents = np.frexp(magnitudes)
    found: FloatArray = exponents - 1.0
    found[magnitudes == 0.0] = -np.inf
    found[np.isinf(magnitudes)] = np.inf
    found[np.isnan(magnitudes)] = np.nan
    return found


def in_bins(place: FloatArray, bins: int) -> FloatArray:
    """Return a 1 in the bin of each entry, and zeros if a place is NaN.

    Places of shape (..., units) give (..., bins, units).
    """
    unknown = np.isnan(place)
    nearest = np.clip(np.where(unknown, 0.0, place), 0, bins - 1).astype(np.intp)
    counts: FloatArray = np.zeros((*place.shape[:-1], bins, place.shape[-1]))
    np.put_along_axis(counts, nearest[..., None, :], np.where(unknown, 0.0, 1.0)[..., None, :], axis=-2)
    return counts


def half_octaves(squares: FloatArray, smallest: float, bins: int) -> FloatArray:
    """Return a 1 in the bin of each unit's norm, shape (units, bins), given squared norms.

    An octave of squared norms is half an octave of norms.
    """
    return in_bins(octaves(squares / smallest**2), bins).T


class CountsBySize(NonNegative):
    """A histogram of a magnitude: each unit is in one of `bins` bins."""

    bins: int

    @property
    def size(self) -> int:
        """The number of bins."""
        return self.bins

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of a unit's counts, which is in one bin."""
        return ROOM_OF_COUNTS

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse numbers of bins that are out of range."""
        if not 1 <= self.bins <= _MOST_BINS:
            raise PrivacyError(f"A histogram has between 1 and {_MOST_BINS} bins.")
        super().refuse_if_unsafe(facts)


class CountsByOctave(CountsBySize):
    """A histogram of an absolute value, with a bin for each octave.

    The first bin is the octave from ``2**lowest`` on, with all smaller values; the last one has all larger values.
    """

    lowest: int

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse octaves that are out of range."""
        if abs(self.lowest) > _MOST_OCTAVES:
            raise PrivacyError(f"The first octave of a histogram is between {-_MOST_OCTAVES} and {_MOST_OCTAVES}.")
        super().refuse_if_unsafe(facts)

    def counts(self, values: FloatArray) -> FloatArray:
        """Return a 1 in the bin of each value, shape (..., bins, units)."""
        return in_bins(octaves(values) - self.lowest, self.bins)


class CountsByNorm(CountsBySize):
    """A histogram of a norm, with a bin for each half octave.

    The first bin is the half octave from `smallest` on, with all smaller norms; the last one has all larger norms.
    """

    smallest: float

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse norms whose squares overflow or underflow."""
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
    """For every parameter, a histogram of the absolute entries of units' scores: shape (parameters * bins,)."""

    theta: FloatArray
    lowest: int
    bins: int
    kind: str = "coordinate_sizes"

    @property
    def size(self) -> int:
        """The number of bins of all parameters."""
        return self.theta.size * self.bins

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of a unit's counts, which is in one bin for every parameter."""
        return math.sqrt(self.theta.size) * ROOM_OF_COUNTS

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return a 1 in one bin for every parameter."""
        return self.counts(chunk.gradient(self.theta).T).reshape(self.size, -1).T


@dataclass(frozen=True, eq=False)
class NormSizes(CountsByNorm, SumOverUnits):
    """A histogram over units of the quantity `of`, of preconditioned derivatives at a point.

    It is the norm of a score, the Frobenius norm of a curvature, or the least information or least squared slope, see
    `pymc_dp.rows.expansion.squares_of_least_information`. Norms are not clipped; those of expected and one-direction
    curvatures depend on the point's bound of scores.
    """

    point: ExpansionPoint
    of: Literal[
        "score", "curvature", "expected_curvature", "least_information", "least_slope", "one_direction_curvature"
    ]
    smallest: float
    bins: int
    kind: str = "norm_sizes"

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse unknown norms, and bounds of scores that are not positive."""
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
    """A histogram of the absolute remainders of units' log-ratios beyond an expansion.

    `old` and `new` are the expansion's predictions at both points.
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
    """The sum of one entry of units' scores, each less a public number and clipped to an interval around zero.

    `middle` is subtracted from every unit's entry at `place`, and the difference is clipped to `clip_bound`. If scores
    have a known lower limit, a `middle` in the centre of their range halves the interval. A unit whose score is not
    finite counts as if its entry were `middle`.
    """

    theta: FloatArray
    place: int
    clip_bound: float
    middle: float = 0.0
    kind: str = "bounded_score"
    size: ClassVar[int] = 1

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse entries that do not exist, and a `middle` that is not finite."""
        if not 0 <= self.place < self.theta.size:
            raise PrivacyError("There is no such entry of the score.")
        if not math.isfinite(self.middle):
            raise PrivacyError("What is taken off scores must be a finite number.")
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the entry of each unit's score, less `middle`."""
        return chunk.gradient(self.theta)[:, [self.place]] - self.middle
