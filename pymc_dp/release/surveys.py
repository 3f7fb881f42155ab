"""Queries of surveys: counts by public cells, predictions in scenarios, and how two models predict the units."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.interface import FloatArray
from pymc_dp.release.query import NonNegative, PublicFacts, Rows, SumOverUnits, check_bound
from pymc_dp.release.sizes import ROOM_OF_COUNTS, CountsByNorm, CountsByOctave, half_octaves
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import packed_size, squares_of

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

    Packed as in `pymc_dp.release.queries.Curvature`; for roundings see
    `pymc_dp.release.preconditioned.ExpectedCurvature`.
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


#: What is predicted: the response's mean, or the probability that it is what it was set to, or at most that.
Quantity = Literal["mean", "equal", "at_most"]


@dataclass(frozen=True, eq=False)
class Setting:
    """An entry of an input that is replaced in every row: by `factor` times the input `source`, or by `factor`.

    The latter where `source` is `NO_INPUT`. `place` is the input, `entry` the entry of a row of it.
    """

    place: int
    entry: int
    source: int
    factor: float


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of the response, in at least one scenario: rows as they stand but for some entries, replaced."""

    scenarios: tuple[tuple[Setting, ...], ...]
    quantity: Quantity

    def of_rows(self, chunk: UnitsOfChunk, theta: FloatArray) -> FloatArray:
        """Return the predictions for every row by itself, shape (scenarios, rows)."""
        found = []
        for settings in self.scenarios:
            rows = list(chunk.rows)
            for place in {each.place for each in settings}:
                rows[place] = rows[place].copy()
            for each in settings:
                by_entry = rows[each.place].reshape(len(rows[each.place]), -1)
                by_entry[:, each.entry] = each.factor * (1.0 if each.source == NO_INPUT else chunk.rows[each.source])
            response = chunk.response(theta, rows)
            if self.quantity == "mean" and len(response) < 3:
                raise PrivacyError("The model knows no mean of its response.")
            if self.quantity == "mean":
                found.append(response[2])
            else:
                less = np.exp(response[1]) if self.quantity == "equal" else 0.0
                found.append(np.exp(response[0]) - less)
        return np.array(found)


@dataclass(frozen=True, eq=False)
class PredictionCounts(NonNegative, SumOverUnits):
    """How many units have a prediction at `theta` in each bin between `edges`, on average over scenarios.

    A unit of several rows counts by the part of its rows in a bin. A unit's counts add up to 1.
    """

    predicted: Predicted
    theta: FloatArray
    edges: FloatArray
    kind: str = "prediction_counts"
    clip_bound = ROOM_OF_COUNTS

    @property
    def size(self) -> int:
        """The number of bins."""
        return self.edges.size + 1

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse edges that do not increase."""
        if self.edges.ndim != 1 or not np.all(self.edges[:-1] < self.edges[1:]):
            raise PrivacyError("The edges of bins are numbers in increasing order.")
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the part of each unit's rows and scenarios in every bin."""
        axis = Axis(PREDICTED_MEAN, 0, NO_INPUT, self.edges)
        found = self.predicted.of_rows(chunk, self.theta)
        return chunk.mean_of_rows(np.mean([axis.of_rows([], each) for each in found], axis=0))


@dataclass(frozen=True, eq=False)
class PredictionSums(SumOverUnits):
    """Sums over units of what is predicted in each scenario, by group, and how many units a group has.

    A row of group g contributes (1, x₁, ..., x_S) in the cells of g, with x between -1 and 1, and zero in those of
    other groups; one of no group contributes zero. Two of these are at most 2√S apart in one group, √(2(1 + S)), which
    is no more, in two, and √(1 + S) where one is zero. A unit of several rows contributes the mean of theirs, and is no
    farther from others: a mean is within what rows span. x is a prediction shifted by `middle`, divided by `half` and
    cut; one that is no number counts as `middle`.
    """

    predicted: Predicted
    theta: FloatArray
    by: Axis
    middle: float
    half: float
    kind: str = "prediction_sums"

    @property
    def size(self) -> int:
        """1 + S entries for each group."""
        return self.by.bins * (1 + len(self.predicted.scenarios))

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of (1, ..., 1)."""
        return math.sqrt(1 + len(self.predicted.scenarios)) * ROOM_OF_COUNTS

    @property
    def apart(self) -> float:
        """2√S as a multiple of the bound."""
        count = len(self.predicted.scenarios)
        return 2.0 * math.sqrt(count / (1 + count))

    def rounding(self, facts: PublicFacts) -> float:
        """Return room for truncations to the grid, of two contributions."""
        return 2.0 * math.sqrt(self.size)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse a width that nothing can be divided by."""
        if not (math.isfinite(self.middle) and 0.0 < self.half < math.inf):
            raise PrivacyError("Predictions are divided by a positive number.")
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the mean of each unit's rows."""
        scaled = (self.predicted.of_rows(chunk, self.theta) - self.middle) / self.half
        scaled = np.clip(np.where(np.isnan(scaled), 0.0, scaled), -1.0, 1.0)
        of_row = np.concatenate([np.ones((1, scaled.shape[1])), scaled])
        return chunk.mean_of_rows(_in_groups(of_row, self.by, chunk))


@dataclass(frozen=True, eq=False)
class _Spreads(SumOverUnits):
    """How predictions at `count` draws, one after the other, differ from those at one point."""

    predicted: Predicted
    theta: FloatArray
    draws: FloatArray
    count: int
    by: Axis

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse a point and draws that are not of the model."""
        super().refuse_unfit(rows)
        if self.count < 1 or self.draws.shape != (self.count * self.theta.size,):
            raise PrivacyError(f"Draws must be {self.count} times {self.theta.size} numbers.")

    def differences(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return differences by group, draw and scenario, shape (units, groups * draws * scenarios)."""
        at_point = self.predicted.of_rows(chunk, self.theta)
        found = [self.predicted.of_rows(chunk, draw) - at_point for draw in np.split(self.draws, self.count)]
        return chunk.mean_of_rows(_in_groups(np.concatenate(found), self.by, chunk))


@dataclass(frozen=True, eq=False)
class SpreadSizes(CountsByNorm, _Spreads):
    """How many units of each group have differences of a norm in each half octave, by group and bin.

    A unit whose rows are in several groups counts in each by the part of its rows there. Its counts add up to 1.
    """

    smallest: float
    bins: int
    kind: str = "spread_sizes"

    @property
    def size(self) -> int:
        """A bin of every group."""
        return self.by.bins * self.bins

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the part of each unit's rows in a group, in the bin of the unit's norm there."""
        parts = chunk.mean_of_rows(_in_groups(np.ones((1, len(chunk.rows[0]))), self.by, chunk))
        found = np.ascontiguousarray(self.differences(chunk).T)  # summed in one order, however many units there are
        squares = [squares_of(of_group) for of_group in np.split(found, self.by.bins)]
        by_group = [half_octaves(each, self.smallest, self.bins) for each in squares]
        return np.concatenate([each * part[:, None] for each, part in zip(by_group, parts.T, strict=True)], axis=1)


@dataclass(frozen=True, eq=False)
class PredictionSpreads(_Spreads):
    """Sums over units of how predictions at draws differ from those at one point, each unit's clipped together.

    By group, draw and scenario. The differences of a group are divided by its entry of `clip_bounds`; all of a unit
    together are clipped to a norm of 1 then.
    """

    clip_bounds: FloatArray
    kind: str = "prediction_spreads"
    clip_bound = 1.0

    @property
    def size(self) -> int:
        """The differences of every group."""
        return self.by.bins * self.count * len(self.predicted.scenarios)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse clip bounds that are not one for each group."""
        if self.clip_bounds.shape != (self.by.bins,):
            raise PrivacyError("There is one clip bound for each group.")
        for bound in self.clip_bounds:
            check_bound(bound)
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return each unit's differences, divided by the clip bounds of their groups."""
        found: FloatArray = self.differences(chunk) / np.repeat(self.clip_bounds, self.size // self.by.bins)
        return found


def _in_groups(columns: FloatArray, by: Axis, chunk: UnitsOfChunk) -> FloatArray:
    """Return the columns of rows of shape (size, rows) in the cells of each row's group, (groups * size, rows).

    A row whose code is of no group is in no cell.
    """
    if by.place == NO_INPUT:
        return columns
    codes = np.asarray(chunk.rows[by.place])
    known = (codes >= 0) & (codes < by.bins)
    groups = by.of_rows(list(chunk.rows), None) * known
    return (groups[:, None] * np.where(np.isfinite(columns), columns, 0.0)).reshape(-1, columns.shape[1])


@dataclass(frozen=True, eq=False)
class _Densities(SumOverUnits):
    """Differences of log predictive densities, those of means over draws.

    The `count` draws of the model's posterior, and of the other model's, stand one after the other.
    """

    draws: FloatArray
    draws_of_other: FloatArray
    count: int

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse draws that are not of both models."""
        if rows.size_of_other is None:
            raise PrivacyError("There is no other model to compare with.")
        for draws, size in ((self.draws, rows.n_parameters), (self.draws_of_other, rows.size_of_other)):
            if self.count < 1 or draws.shape != (self.count * size,):
                raise PrivacyError(f"Draws must be {self.count} times {size} numbers.")

    def differences(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the model's log predictive density of each unit less the other model's, shape (units,)."""
        one = [chunk.log_likelihood(theta) for theta in np.split(self.draws, self.count)]
        other = [chunk.log_likelihood_by_other(theta) for theta in np.split(self.draws_of_other, self.count)]
        found: FloatArray = np.logaddexp.reduce(np.array(one), axis=0) - np.logaddexp.reduce(np.array(other), axis=0)
        return found


@dataclass(frozen=True, eq=False)
class DifferenceSizes(CountsByOctave, _Densities):
    """How many units have a difference of a size in each octave."""

    lowest: int
    bins: int
    kind: str = "difference_sizes"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return a 1 in the bin of each unit's difference."""
        return self.counts(np.abs(self.differences(chunk))).T


@dataclass(frozen=True, eq=False)
class DensityDifferences(_Densities):
    """Sums over units of clipped differences, and of their squares.

    In units of the clip bound a unit contributes (x, x²), with x between -1 and 1; a difference that is no number
    counts as zero. Two of these are at most 2 apart: with s = x + x' and t = x - x' the squared distance is t² (1 +
    s²), and the sizes of s and t add up to at most 2, so that it is at most 4, where t is 2.
    """

    clip_bound: float
    kind: str = "density_differences"
    size: ClassVar[int] = 2
    apart: ClassVar[float] = math.sqrt(2.0)  # of the bound: 2

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of (1, 1)."""
        return math.sqrt(2.0) * ROOM_OF_COUNTS

    def rounding(self, facts: PublicFacts) -> float:
        """Return room for truncations to the grid, of two contributions with two entries each."""
        return 4.0

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse clip bounds that are not positive numbers."""
        if not 0.0 < self.clip_bound < math.inf:
            raise PrivacyError("Differences are clipped to a positive number.")
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return each unit's clipped difference and its square."""
        found = self.differences(chunk) / self.clip_bound
        x = np.clip(np.where(np.isnan(found), 0.0, found), -1.0, 1.0)
        return np.column_stack([x, x * x])

    def published(self, value: FloatArray, facts: PublicFacts) -> FloatArray:
        """Return the sums of differences and of their squares."""
        found: FloatArray = value * np.array([self.clip_bound, self.clip_bound**2])
        return found
