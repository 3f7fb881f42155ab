"""Queries that tell how large derivatives are, before anything is known of the table: histograms and bounded scores."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.interface import (
    LARGEST_CLIP_BOUND,
    SMALLEST_CLIP_BOUND,
    ExpansionPoint,
    FloatArray,
)
from pymc_dp.release.query import Asked, BeyondPredictions, IntArray, NonNegative, Query, Terms
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import (
    curvatures_of,
    expected_curvatures_of,
    one_direction_curvatures_of,
    scores_of,
    squares_of,
)

#: What a count is clipped to: counts of 1 keep this bound with room for roundings of the norm.
ROOM_OF_COUNTS = 1.0 + 1e-9
#: Histograms have no more bins.
_MOST_BINS = 1000
#: Floating point has no octaves beyond.
_MOST_OCTAVES = 1100


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
    """What queries share that count units by the size of something: each unit is in one bin.

    Attributes
    ----------
    bins : int
        Number of bins; the last one holds all larger sizes.
    """

    bins: int

    def bound(self, terms: Terms) -> float:
        """Return the norm of a unit's counts: it is in one bin."""
        return ROOM_OF_COUNTS

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse bins that no array can hold."""
        if not 1 <= self.bins <= _MOST_BINS:
            raise PrivacyError(f"A histogram has between 1 and {_MOST_BINS} bins.")
        super().refuse_if_unsafe(terms)


class CountsByOctave(CountsBySize):
    """Counts of units by octaves of an absolute value.

    Attributes
    ----------
    lowest : int
        The first bin holds sizes from ``2**lowest`` on, and all smaller ones.
    """

    lowest: int

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse octaves that there are not."""
        if abs(self.lowest) > _MOST_OCTAVES:
            raise PrivacyError(f"The first octave of a histogram is between {-_MOST_OCTAVES} and {_MOST_OCTAVES}.")
        super().refuse_if_unsafe(terms)


class CountsByNorm(CountsBySize):
    """Counts of units by half octaves of a norm.

    Attributes
    ----------
    smallest : float
        The first bin holds norms from here on, and all smaller ones.
    """

    smallest: float

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse numbers that squares cannot be taken of."""
        if not SMALLEST_CLIP_BOUND <= self.smallest <= LARGEST_CLIP_BOUND:
            raise PrivacyError(
                f"The first norm of a histogram is between {SMALLEST_CLIP_BOUND:g} and {LARGEST_CLIP_BOUND:g}."
            )
        super().refuse_if_unsafe(terms)


#: What norms are taken of.
_OF = {
    "score": scores_of,
    "curvature": curvatures_of,
    "expected_curvature": expected_curvatures_of,
    "one_direction_curvature": one_direction_curvatures_of,
}


@dataclass(frozen=True, eq=False)
class CoordinateSizes(CountsByOctave):
    """For every parameter, how many units have a score of a size in each octave.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        Where scores are taken.
    lowest : int
        The first bin holds sizes from ``2**lowest`` on, and all smaller ones; a bin is an octave.
    bins : int
        Number of bins; the last one holds all larger sizes.
    kind : str
        The name of the release. Its value has the shape (parameters * bins,).
    """

    theta: FloatArray
    lowest: int
    bins: int
    kind: str = "coordinate_sizes"

    def bound(self, terms: Terms) -> float:
        """Return the norm of a unit's counts: it is in one bin for every parameter."""
        return math.sqrt(self.theta.size) * ROOM_OF_COUNTS

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the counts."""
        asked.rows.refuse_other_shapes(self.theta)
        size = self.theta.size

        def counts(chunk: UnitsOfChunk) -> FloatArray:
            place = octaves(chunk.gradient(self.theta).T) - self.lowest
            return in_bins(place, self.bins).reshape(size * self.bins, -1).T

        return asked.rows.sum_over_units(counts, size * self.bins, self.bound(asked.terms), asked.grid)


@dataclass(frozen=True, eq=False)
class NormSizes(CountsByNorm):
    """How many units have a preconditioned score, or curvature, of a norm in each half octave.

    Attributes
    ----------
    point : ExpansionPoint
        Where, by which preconditioner. Its bounds do not matter.
    of : {"score", "curvature", "expected_curvature", "one_direction_curvature"}
        Of what the norm is taken; of curvatures the Frobenius norm.
    smallest : float
        The first bin holds norms from here on, and all smaller ones.
    bins : int
        Number of bins; the last one holds all larger norms.
    kind : str
        The name of the release. Its value has the shape (bins,).
    """

    point: ExpansionPoint
    of: Literal["score", "curvature", "expected_curvature", "one_direction_curvature"]
    smallest: float
    bins: int
    kind: str = "norm_sizes"

    @property
    def where(self) -> tuple[FloatArray, ...]:
        """The expansion point."""
        return (self.point.theta,)

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse norms of something else, and of scores that are clipped to nothing."""
        if not self.point.clip_gradient > 0.0:
            raise PrivacyError("Scores are clipped to a positive bound, or to none: an infinite one.")
        if self.of not in _OF:
            raise PrivacyError("Norms are of scores or of a kind of curvatures that is known.")
        super().refuse_if_unsafe(terms)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the counts."""
        asked.rows.refuse_other_shapes(self.point.theta, self.point.preconditioner)
        if self.of in ("curvature", "one_direction_curvature"):
            asked.rows.refuse_without_second_order()

        def counts(chunk: UnitsOfChunk) -> FloatArray:
            return half_octaves(squares_of(_OF[self.of](chunk, self.point)), self.smallest, self.bins)

        return asked.rows.sum_over_units(counts, self.bins, self.bound(asked.terms), asked.grid)


@dataclass(frozen=True, eq=False)
class RemainderSizes(BeyondPredictions, CountsByOctave):
    """How many units have a log-ratio that differs from what an expansion predicts by a size in each octave.

    Attributes
    ----------
    point : ExpansionPoint
        The expansion.
    old, new : Prediction
        What it predicts at both points.
    lowest : int
        The first bin holds sizes from ``2**lowest`` on, and all smaller ones; a bin is an octave.
    bins : int
        Number of bins; the last one holds all larger sizes.
    kind : str
        The name of the release. Its value has the shape (bins,).
    """

    lowest: int
    bins: int
    kind: str = "remainder_sizes"

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the counts."""

        def counted(residuals: FloatArray) -> IntArray:
            place = octaves(np.abs(residuals)) - self.lowest
            return in_bins(place, self.bins).sum(axis=1).astype(np.int64)

        expansion = asked.rows.expansion(self.point)
        return expansion.residual_sizes(self.old, self.new, counted, self.bound(asked.terms), asked.grid)


@dataclass(frozen=True, eq=False)
class BoundedScore(Query):
    """The sum of one entry of units' scores, each less a public number and cut to an interval around zero.

    Of scores that are never below some number, the middle of where they may be makes the interval half as long.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        Where scores are taken.
    place : int
        Which entry.
    clip_bound : float
        The largest absolute value of a unit's.
    middle : float
        What is taken off every unit's score. A unit whose score is not finite counts as if it had this one.
    kind : str
        The name of the release.
    """

    theta: FloatArray
    place: int
    clip_bound: float
    middle: float = 0.0
    kind: str = "bounded_score"

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse an entry that is not there."""
        if not 0 <= self.place < self.theta.size:
            raise PrivacyError("There is no such entry of the score.")
        if not math.isfinite(self.middle):
            raise PrivacyError("What is taken off scores must be a finite number.")
        super().refuse_if_unsafe(terms)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sum."""
        asked.rows.refuse_other_shapes(self.theta)

        def entries(chunk: UnitsOfChunk) -> FloatArray:
            return chunk.gradient(self.theta)[:, [self.place]] - self.middle

        return asked.rows.sum_over_units(entries, 1, self.clip_bound, asked.grid)
