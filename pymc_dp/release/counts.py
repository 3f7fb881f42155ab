"""Queries that count units in public cells: of columns, and of how their responses lie in what a model predicts."""

import math
from dataclasses import dataclass

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.interface import FloatArray
from pymc_dp.release.query import NonNegative, PublicFacts, Rows, SumOverUnits
from pymc_dp.release.sizes import ROOM_OF_COUNTS
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import packed_size

#: In the place of an input: the mean that the model predicts; no input.
PREDICTED_MEAN, NO_INPUT = -1, -2
#: A query has no more cells, and moments no more columns.
_MOST_CELLS, _MOST_COLUMNS = 200_000, 400
#: The part of a cell's count that an entry for the spread of responses has.
SPREAD_WEIGHT = 0.5


@dataclass(frozen=True, eq=False)
class Axis:
    """How rows are put into bins: by a column, or by the mean that the model predicts."""

    #: The input of the rows that holds the column; `PREDICTED_MEAN`: the model's mean is taken.
    place: int
    #: The entry of a row of it, where that is a vector.
    entry: int
    #: The input that says, by a 1, that an entry is missing: such rows are in a bin of their own, the last one;
    #: `NO_INPUT`: there is none.
    missing: int
    #: Public numbers between bins, in increasing order, shape (bins - 1,). An entry on an edge is in the bin above it.
    edges: FloatArray

    @property
    def bins(self) -> int:
        """How many bins there are."""
        return self.edges.size + 1 + (self.missing != NO_INPUT)

    def of_rows(self, rows: list[np.ndarray], mean: FloatArray | None) -> FloatArray:
        """Return a 1 in the bin of each row, shape (bins, rows); nothing for an entry that is no number."""
        values = mean if self.place == PREDICTED_MEAN else rows[self.place]
        if values is None:
            raise PrivacyError("The model knows no mean to count rows by.")
        values = np.asarray(values.reshape(len(values), -1)[:, self.entry], dtype=np.float64)
        bins = np.searchsorted(self.edges, values, side="right")
        if self.missing != NO_INPUT:
            bins = np.where(rows[self.missing] == 1, self.edges.size + 1, bins)
        found: FloatArray = np.zeros((self.bins, len(values)))
        found[bins, np.arange(len(values))] = ~np.isnan(values)
        return found


def in_levels(below: FloatArray, up_to: FloatArray, levels: FloatArray) -> FloatArray:
    """Return the parts in each level of a mass that lies evenly between two probabilities, shape (levels, rows).

    `below` and `up_to`, shape (rows,), are the probabilities of less than a row's response, and of at most that. Of a
    continuous response both are the same, and it is in one level. `levels` are the edges, from 0 to 1. The parts of a
    row add up to 1: the probability integral transform that is not randomised (Czado, Gneiting and Held 2009).
    """
    up_to = np.clip(up_to, 0.0, 1.0)
    below = np.clip(below, 0.0, up_to)
    spread = up_to - below
    inside = np.clip(up_to, levels[:-1, None], levels[1:, None]) - np.clip(below, levels[:-1, None], levels[1:, None])
    place = np.clip(np.searchsorted(levels, up_to, side="right") - 1, 0, levels.size - 2)
    whole = np.equal(place, np.arange(levels.size - 1)[:, None]).astype(np.float64)
    with np.errstate(all="ignore"):
        found: FloatArray = np.where(spread > 0.0, inside / spread, whole)
    return np.where(np.isnan(spread), 0.0, np.maximum(found, 0.0))


@dataclass(frozen=True, eq=False)
class UnitCounts(NonNegative, SumOverUnits):
    """How many units are in each bin of some axes, and within it in each level of what the model predicts at `theta`.

    A unit of several rows counts by the part of its rows in a cell. A unit's counts add up to 1 on every axis and have
    no negative entry, so that their norm is at most the square root of the number of axes. What is released has an
    entry for each cell, axis by axis, bin by bin.
    """

    axes: tuple[Axis, ...]
    theta: FloatArray
    #: Edges of levels of the probability of at most the response, from 0 to 1, shape (levels + 1,); empty: the bins
    #: alone are counted.
    levels: FloatArray
    #: Release, as a last level, the mean square by which two levels differ, times a half: what the variance of the
    #: counts is computed from. For two levels.
    spread: bool = False
    kind: str = "unit_counts"

    @property
    def size(self) -> int:
        """The number of cells."""
        return sum(axis.bins for axis in self.axes) * (max(1, self.levels.size - 1) + self.spread)

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of a unit's counts."""
        return math.sqrt(len(self.axes) * (1.0 + SPREAD_WEIGHT**2 * self.spread)) * ROOM_OF_COUNTS

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse edges that do not increase, and more cells than there is room for."""
        if not self.axes or self.size > _MOST_CELLS:
            raise PrivacyError(f"Units are counted along at least one axis, in at most {_MOST_CELLS} cells.")
        for edges in (*(axis.edges for axis in self.axes), self.levels):
            if edges.ndim != 1 or not np.all(edges[:-1] < edges[1:]) or np.isnan(edges).any():
                raise PrivacyError("The edges of bins are numbers in increasing order.")
        if self.levels.size and (self.levels.size < 3 or (self.levels[0], self.levels[-1]) != (0.0, 1.0)):
            raise PrivacyError("Levels are at least two, from 0 to 1.")
        if self.spread and self.levels.size != 3:
            raise PrivacyError("The spread of responses is released for two levels.")
        super().refuse_if_unsafe(facts)

    @property
    def _needs_model(self) -> bool:
        return bool(self.levels.size) or any(axis.place == PREDICTED_MEAN for axis in self.axes)

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse a point of another shape, where something is predicted."""
        if self._needs_model:
            rows.refuse_other_shapes(self.theta)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the parts of each unit's rows in every cell."""
        response = chunk.response(self.theta) if self._needs_model else ()
        if self._needs_model and not response:
            raise PrivacyError("The distribution of responses was not read from the model.")
        rows, mean = list(chunk.rows), response[2] if len(response) > 2 else None
        within = np.ones((1, len(rows[0])))
        if self.levels.size:
            within = in_levels(np.exp(response[1]), np.exp(response[0]), self.levels)
        if self.spread:
            within = np.concatenate([within, SPREAD_WEIGHT * (within[1:] - within[:1]) ** 2])
        bins = [axis.of_rows(rows, mean) for axis in self.axes]
        cells = np.concatenate([(each[:, None] * within).reshape(-1, within.shape[1]) for each in bins])
        return chunk.mean_of_rows(cells)


@dataclass(frozen=True, eq=False)
class Coordinate:
    """A column, shifted by `middle`, divided by `half` and cut to [-1, 1]. `place` is the input that holds it."""

    place: int
    middle: float
    half: float


@dataclass(frozen=True, eq=False)
class UnitMoments(NonNegative, SumOverUnits):
    """The sum over units of all products of two coordinates of a row, and of each by itself.

    With z = (1, coordinates) a row contributes the matrix z zᵀ, a unit of several rows the mean of theirs. Such
    matrices have no negative inner product with each other, and a Frobenius norm of at most ‖z‖². At most `groups`
    coordinates are not zero in a row, as of the indicators of a category one.

    Packed as in `pymc_dp.release.queries.Curvature`; for roundings see `pymc_dp.release.centred.ExpectedCurvature`.
    """

    coordinates: tuple[Coordinate, ...]
    groups: int
    kind: str = "unit_moments"

    @property
    def size(self) -> int:
        """The number of entries of a packed matrix."""
        return packed_size(len(self.coordinates) + 1)

    def bound(self, facts: PublicFacts) -> float:
        """Return the largest square of the norm of (1, coordinates)."""
        return (1.0 + self.groups) * ROOM_OF_COUNTS

    def rounding(self, facts: PublicFacts) -> float:
        """Return room for truncations to the grid, which may make small eigenvalues negative."""
        return float(self.size)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse scales that are no numbers, and groups that no coordinates can be in."""
        if not 0 < len(self.coordinates) <= _MOST_COLUMNS or not 0 < self.groups <= len(self.coordinates):
            raise PrivacyError(f"Moments are of 1 to {_MOST_COLUMNS} coordinates.")
        for each in self.coordinates:
            if not (math.isfinite(each.middle) and math.isfinite(each.half) and each.half > 0.0):
                raise PrivacyError("Coordinates are shifted and divided by finite numbers.")
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the mean matrix of each unit's rows."""
        left, right = np.triu_indices(len(self.coordinates) + 1)
        weights = np.where(left == right, 1.0, math.sqrt(2.0))[:, None]
        columns = [np.ones(len(chunk.rows[0]))]
        for each in self.coordinates:
            values = np.asarray(chunk.rows[each.place], dtype=np.float64).reshape(len(chunk.rows[0]))
            columns.append(np.clip((values - each.middle) / each.half, -1.0, 1.0))
        z = np.array(columns)
        return chunk.mean_of_rows(z[left] * z[right] * weights)
