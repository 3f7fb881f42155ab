"""Queries of surveys: counts by public cells, predictions in scenarios, and comparisons of two models."""

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

#: Values of `place` that are no input: the model's predicted mean, and no value at all.
PREDICTED_MEAN, NO_INPUT = -1, -2
#: The largest number of cells of a query, and of columns of moments.
_MOST_CELLS, _MOST_COLUMNS = 200_000, 400
#: The weight of an entry for the spread of responses, relative to a cell's count.
SPREAD_WEIGHT = 0.5


@dataclass(frozen=True, eq=False)
class Axis:
    """A rule that assigns rows to bins: by a column, or by the model's predicted mean."""

    #: The input of the rows that holds the column; `PREDICTED_MEAN`: the model's mean.
    place: int
    #: The entry of a row of the input, if that is a vector.
    entry: int
    #: The input that is 1 if the entry is missing: such rows are in a separate bin, the last one; `NO_INPUT`: no entry
    #: is missing.
    missing: int
    #: Public edges between bins, in increasing order, shape (bins - 1,). An entry on an edge is in the bin above it.
    edges: FloatArray

    @property
    def bins(self) -> int:
        """The number of bins."""
        return self.edges.size + 1 + (self.missing != NO_INPUT)

    def of_rows(self, rows: list[np.ndarray], mean: FloatArray | None) -> FloatArray:
        """Return a 1 in the bin of each row, shape (bins, rows); zeros for NaN."""
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
    """Return the parts in each level of a uniform mass between two probabilities, shape (levels, rows).

    `below` and `up_to`, shape (rows,), are P(Y < y) and P(Y ≤ y) for a row's response y. For a continuous response both
    are the same, and the mass is in one level. `levels` are the edges, from 0 to 1. The parts of a row add up to 1: the
    nonrandomised probability integral transform (Czado, Gneiting and Held 2009).
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
    """Numbers of units in each bin of some axes, and there in each level of the predictive distribution at `theta`.

    A unit of several rows counts in each cell with the fraction of its rows there. A unit's counts add up to 1 on every
    axis and have no negative entry, so that their norm is at most the square root of the number of axes. The release
    has an entry for each cell, axis by axis, bin by bin.
    """

    axes: tuple[Axis, ...]
    theta: FloatArray
    #: Edges of levels of P(Y ≤ y), from 0 to 1, shape (levels + 1,); empty: counts of the bins only.
    levels: FloatArray
    #: Whether to release, as a last level, half the mean squared difference of two levels, from which the variance of
    #: the counts is computed. For two levels.
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
        """Refuse edges that do not increase, and numbers of cells and levels that are out of range."""
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
        """Refuse a point of another shape, if the model is evaluated."""
        if self._needs_model:
            rows.refuse_other_shapes(self.theta)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the fraction of each unit's rows in every cell."""
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
    """A column, less `middle`, divided by `half` and clipped to [-1, 1]. `place` is the input that holds it."""

    place: int
    middle: float
    half: float


@dataclass(frozen=True, eq=False)
class UnitMoments(NonNegative, SumOverUnits):
    """The sum over units of the first and second moments of a row's coordinates.

    With z = (1, coordinates) a row contributes the matrix z zᵀ, a unit of several rows the mean of its rows' matrices.
    Inner products of such matrices are not negative, and their Frobenius norms are at most ‖z‖². At most `groups`
    coordinates of a row are not zero: of the indicators of a category, for example, one.

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
        """Return the largest squared norm of (1, coordinates)."""
        return (1.0 + self.groups) * ROOM_OF_COUNTS

    def rounding(self, facts: PublicFacts) -> float:
        """Return a margin for truncation to the grid, which may make small eigenvalues negative."""
        return float(self.size)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse shifts and scales that are not finite, and numbers of coordinates and groups out of range."""
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


#: The predicted quantity: the response's mean, or the probability of the response's set value, or of at most that.
Quantity = Literal["mean", "equal", "at_most"]


@dataclass(frozen=True, eq=False)
class Setting:
    """A replacement of an entry of an input in every row: by `factor` times the input `source`.

    If `source` is `NO_INPUT`, by `factor` itself. `place` is the input, `entry` the entry of its rows.
    """

    place: int
    entry: int
    source: int
    factor: float


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of the response in at least one scenario: in each, some entries of the rows are replaced."""

    scenarios: tuple[tuple[Setting, ...], ...]
    quantity: Quantity

    def of_rows(self, chunk: UnitsOfChunk, theta: FloatArray) -> FloatArray:
        """Return the predictions for every row, shape (scenarios, rows). A row's depend on that row alone."""
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
    """A histogram of units' predictions at `theta`, with bins between `edges`, as a mean over scenarios.

    A unit of several rows counts in each bin with the fraction of its rows there. A unit's counts add up to 1.
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
        """Return the fraction of each unit's rows and scenarios in every bin."""
        axis = Axis(PREDICTED_MEAN, 0, NO_INPUT, self.edges)
        found = self.predicted.of_rows(chunk, self.theta)
        return chunk.mean_of_rows(np.mean([axis.of_rows([], each) for each in found], axis=0))


@dataclass(frozen=True, eq=False)
class PredictionSums(SumOverUnits):
    """Sums over units of predictions in each scenario, and numbers of units, by group.

    A row of group g contributes (1, x₁, ..., x_S) in the cells of g, with x between -1 and 1, and zero in the cells of
    other groups; a row of no group contributes zero. The distance of two contributions is at most 2√S in one group, at
    most √(2(1 + S)), which is no more, in two groups, and at most √(1 + S) if one is zero. A unit of several rows
    contributes the mean of its rows, which is in their convex hull, so that distances are no larger. x is a prediction
    less `middle`, divided by `half` and clipped; NaN counts as `middle`.
    """

    predicted: Predicted
    theta: FloatArray
    by: Axis
    middle: float
    half: float
    kind: str = "prediction_sums"

    @property
    def size(self) -> int:
        """The number of entries: 1 + S for each group."""
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
        """Return a margin for truncation of two contributions to the grid."""
        return 2.0 * math.sqrt(self.size)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse shifts that are not finite, and widths that are not positive and finite."""
        if not (math.isfinite(self.middle) and 0.0 < self.half < math.inf):
            raise PrivacyError("Predictions are divided by a positive number.")
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the mean of the contributions of each unit's rows."""
        scaled = (self.predicted.of_rows(chunk, self.theta) - self.middle) / self.half
        scaled = np.clip(np.where(np.isnan(scaled), 0.0, scaled), -1.0, 1.0)
        of_row = np.concatenate([np.ones((1, scaled.shape[1])), scaled])
        return chunk.mean_of_rows(_in_groups(of_row, self.by, chunk))


@dataclass(frozen=True, eq=False)
class _Spreads(SumOverUnits):
    """Differences of predictions at `count` concatenated draws from those at one point."""

    predicted: Predicted
    theta: FloatArray
    draws: FloatArray
    count: int
    by: Axis

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse points and draws of another shape."""
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
    """For each group, a histogram of the norms of units' differences, by group and bin.

    A unit with rows in several groups counts in each with the fraction of its rows there. Its counts add up to 1.
    """

    smallest: float
    bins: int
    kind: str = "spread_sizes"

    @property
    def size(self) -> int:
        """The number of bins of all groups."""
        return self.by.bins * self.bins

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the fraction of each unit's rows in a group, in the bin of the unit's norm there."""
        parts = chunk.mean_of_rows(_in_groups(np.ones((1, len(chunk.rows[0]))), self.by, chunk))
        found = np.ascontiguousarray(self.differences(chunk).T)  # summed in one order, however many units there are
        squares = [squares_of(of_group) for of_group in np.split(found, self.by.bins)]
        by_group = [half_octaves(each, self.smallest, self.bins) for each in squares]
        return np.concatenate([each * part[:, None] for each, part in zip(by_group, parts.T, strict=True)], axis=1)


@dataclass(frozen=True, eq=False)
class PredictionSpreads(_Spreads):
    """Sums over units of differences of predictions at draws from those at one point, by group, draw and scenario.

    The differences of a group are divided by its entry of `clip_bounds`; then the vector of all differences of a unit
    is clipped to a norm of 1.
    """

    clip_bounds: FloatArray
    kind: str = "prediction_spreads"
    clip_bound = 1.0

    @property
    def size(self) -> int:
        """The number of differences of all groups."""
        return self.by.bins * self.count * len(self.predicted.scenarios)

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse clip bounds that are out of range or not one for each group."""
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
    """Return the columns of rows, shape (size, rows), in the cells of each row's group, shape (groups * size, rows).

    A row with the code of no group has zeros only.
    """
    if by.place == NO_INPUT:
        return columns
    codes = np.asarray(chunk.rows[by.place])
    known = (codes >= 0) & (codes < by.bins)
    groups = by.of_rows(list(chunk.rows), None) * known
    return (groups[:, None] * np.where(np.isfinite(columns), columns, 0.0)).reshape(-1, columns.shape[1])


@dataclass(frozen=True, eq=False)
class _Densities(SumOverUnits):
    """Differences of log predictive densities, where predictive densities are means over draws.

    `draws` and `draws_of_other` are `count` concatenated draws of the posteriors of the model and the other model.
    """

    draws: FloatArray
    draws_of_other: FloatArray
    count: int

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse draws of other shapes than those of the two models."""
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
    """A histogram of the absolute differences of units."""

    lowest: int
    bins: int
    kind: str = "difference_sizes"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return a 1 in the bin of each unit's difference."""
        return self.counts(np.abs(self.differences(chunk))).T


@dataclass(frozen=True, eq=False)
class DensityDifferences(_Densities):
    """Sums over units of clipped differences, and of their squares.

    Divided by the clip bound, a unit contributes (x, x²), with x between -1 and 1; NaN counts as zero. The distance of
    two contributions is at most 2: with s = x + x' and t = x - x' the squared distance is t² (1 + s²), and the absolute
    values of s and t add up to at most 2, so that the squared distance is at most 4, attained at t = 2.
    """

    clip_bound: float
    kind: str = "density_differences"
    size: ClassVar[int] = 2
    apart: ClassVar[float] = math.sqrt(2.0)  # of the bound: 2

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of (1, 1)."""
        return math.sqrt(2.0) * ROOM_OF_COUNTS

    def rounding(self, facts: PublicFacts) -> float:
        """Return a margin for truncation to the grid of two contributions with two entries each."""
        return 4.0

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse clip bounds that are not positive and finite."""
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
