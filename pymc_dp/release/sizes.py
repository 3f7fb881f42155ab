"""Queries that tell how large derivatives are, before anything is known of the table: histograms and bounded scores."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.histograms import (
    ROOM_OF_COUNTS,
    CountsByNorm,
    CountsByOctave,
    half_octaves,
    in_bins,
    octaves,
)
from pymc_dp.release.interface import (
    ExpansionPoint,
    FloatArray,
)
from pymc_dp.release.query import Asked, BeyondPredictions, IntArray, Query, Terms
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import (
    curvatures_of,
    expected_curvatures_of,
    one_direction_curvatures_of,
    scores_of,
    squares_of,
)

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
    """The sum of one entry of units' scores, each cut to an interval around zero.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        Where scores are taken.
    place : int
        Which entry.
    clip_bound : float
        The largest absolute value of a unit's.
    kind : str
        The name of the release.
    """

    theta: FloatArray
    place: int
    clip_bound: float
    kind: str = "bounded_score"

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse an entry that is not there."""
        if not 0 <= self.place < self.theta.size:
            raise PrivacyError("There is no such entry of the score.")
        super().refuse_if_unsafe(terms)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sum."""
        asked.rows.refuse_other_shapes(self.theta)

        def entries(chunk: UnitsOfChunk) -> FloatArray:
            return chunk.gradient(self.theta)[:, [self.place]]

        return asked.rows.sum_over_units(entries, 1, self.clip_bound, asked.grid)
