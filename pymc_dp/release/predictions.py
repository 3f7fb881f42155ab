"""Queries of what a model predicts for the units, with some of their columns set to public numbers."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.counts import NO_INPUT, PREDICTED_MEAN, Axis
from pymc_dp.release.interface import FloatArray
from pymc_dp.release.query import NonNegative, PublicFacts, Rows, SumOverUnits, check_bound
from pymc_dp.release.sizes import ROOM_OF_COUNTS, CountsByNorm, half_octaves
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import squares_of

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

    @property
    def size(self) -> int:
        """The number of bins."""
        return self.edges.size + 1

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of a unit's counts."""
        return ROOM_OF_COUNTS

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

    @property
    def size(self) -> int:
        """The differences of every group."""
        return self.by.bins * self.count * len(self.predicted.scenarios)

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm that units are clipped to."""
        return 1.0

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
