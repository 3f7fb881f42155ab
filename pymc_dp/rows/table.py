"""The rows of a table, and chunks of whole units."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.on_demand import clip

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Chunk:
    """Whole units that are processed together. Confidential."""

    units: slice
    #: The first row of each unit, counted within the chunk, shape (units + 1,); None if every row is a unit.
    starts: IntArray | None
    #: One array for each input, with the row axis first; read-only.
    rows: list[np.ndarray]
    #: The table of which the chunk is a slice, if any, and the first row of the slice.
    table: "RowTable | None" = None
    begin: int = 0

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.rows[0])

    def squares(self, place: int) -> FloatArray:
        """Return the squared norm of every row of an input of float64 vectors, shape (rows,)."""
        if self.table is not None:
            return self.table.squares(place)[self.begin : self.begin + self.n_rows]
        return _read_only(clip.vector_squares(self.rows[place]))

    def of_units(self, units: IntArray) -> "Chunk":
        """Return a chunk of some units in the given order; every row must be a unit."""
        return Chunk(slice(0, units.size), None, [_read_only(values[units]) for values in self.rows])

    def per_unit(self, columns: FloatArray) -> FloatArray:
        """Return the sum of the columns of every unit's rows, shape (size, units)."""
        if self.starts is None:
            return columns
        return clip.sum_rows_of_units(columns, self.starts)


class RowTable:
    """The rows of a model's inputs, and the unit of each row. Confidential.

    The arrays, one for each input, have the row axis first and are C-contiguous; they are stored without copying. The
    rows of each unit begin at `starts`, shape (units + 1,); None if every row is a unit of its own.
    """

    def __init__(self, rows: Sequence[np.ndarray], starts: IntArray | None = None) -> None:
        self.rows = [_read_only(values) for values in rows]
        self.starts = starts
        self.n_rows = len(self.rows[0])
        self.n_units = self.n_rows if starts is None else starts.size - 1
        self._squares: dict[int, FloatArray] = {}

    @classmethod
    def grouped(
        cls, rows: Sequence[np.ndarray], unit_of_row: np.ndarray, places: np.ndarray | None = None
    ) -> "RowTable":
        """Return a table with a copy of the rows, sorted by their units (`unit_of_row`).

        Rows of a unit are sorted by `places`; by default they keep their order.
        """
        order = np.lexsort((unit_of_row,) if places is None else (places, unit_of_row))
        units = unit_of_row[order]
        changes = np.flatnonzero(units[1:] != units[:-1]) + 1
        starts = np.concatenate([[0], changes, [units.size]]).astype(np.int64)
        return cls([np.ascontiguousarray(values[order]) for values in rows], starts)

    def with_rows(self, rows: Sequence[np.ndarray], starts: IntArray | None) -> "RowTable":
        """Return a table of other rows of the same types, sorted by their units."""
        alike = [np.ascontiguousarray(new, dtype=old.dtype) for new, old in zip(rows, self.rows, strict=True)]
        return RowTable(alike, starts)

    def synthetic_row(self) -> "RowTable":
        """Return a table of one row of ones, of the same types: for compiling. Not confidential."""
        rows = [np.ones(values.shape[1:], dtype=values.dtype)[None] for values in self.rows]
        return self.with_rows(rows, None if self.starts is None else np.array([0, 1], dtype=np.int64))

    def squares(self, place: int) -> FloatArray:
        """Return the squared norm of every row of an input of vectors, from a cache."""
        if place not in self._squares:
            self._squares[place] = _read_only(clip.vector_squares(self.rows[place]))
        return self._squares[place]

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Yield chunks of whole units, of about `size` rows."""
        first = 0
        while first < self.n_units:
            last, starts = min(first + size, self.n_units), None
            begin, end = first, last
            if self.starts is not None:
                begin = int(self.starts[first])
                last = max(int(np.searchsorted(self.starts, begin + size, side="right")) - 1, first + 1)
                starts = self.starts[first : last + 1] - begin
                end = int(self.starts[last])
            yield Chunk(slice(first, last), starts, [values[begin:end] for values in self.rows], self, begin)
            first = last

    def batch(self, units: IntArray, size: int) -> Iterator[Chunk]:
        """Yield chunks of the rows of `units`, about `size` rows each; `Chunk.units` counts within `units`."""
        units = checked_units(units, self.n_units)
        if self.starts is None:
            for first in range(0, units.size, size):
                named = units[first : first + size]
                yield Chunk(slice(first, first + named.size), None, [_read_only(rows[named]) for rows in self.rows])
            return
        ends = np.cumsum(self.starts[units + 1] - self.starts[units])
        first = 0
        while first < units.size:
            done = ends[first - 1] if first else 0
            last = max(int(np.searchsorted(ends, done + size, side="right")), first + 1)
            starts = np.concatenate([[0], ends[first:last] - done]).astype(np.int64)
            begins = self.starts[units[first:last]]
            index = np.arange(starts[-1]) + np.repeat(begins - starts[:-1], np.diff(starts))
            yield Chunk(slice(first, last), starts, [_read_only(rows[index]) for rows in self.rows])
            first = last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_squares": {}}

    def __repr__(self) -> str:
        return "RowTable(confidential)"


def checked_units(units: IntArray, n_units: int) -> IntArray:
    """Return the units of a batch; refuse them if they do not increase strictly or are not below `n_units`.

    A repeated unit would contribute twice, beyond the sensitivity.
    """
    units = np.asarray(units)
    if units.ndim != 1 or units.dtype != np.int64:
        raise InvalidArgument("units must be a vector of int64.")
    if units.size and (units[0] < 0 or units[-1] >= n_units or not np.all(units[:-1] < units[1:])):
        raise InvalidArgument("units must increase strictly and name units that there are.")
    return units


def _read_only(values: np.ndarray) -> np.ndarray:
    """Return a read-only view: all chunks then have the same Numba type, and functions are compiled once."""
    view = values.view()
    view.flags.writeable = False
    return view
