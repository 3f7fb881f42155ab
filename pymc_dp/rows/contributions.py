"""Derivatives of the rows of a chunk in factors, and their products with matrices."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.graphs import DENSE
from pymc_dp.rows.on_demand import clip
from pymc_dp.rows.table import Chunk

#: Placeholders for vectors: compiled code needs an array.
_NO_VECTORS, _NO_SQUARES = np.empty((0, 0)), np.empty(0)
_NO_VECTORS.flags.writeable = _NO_SQUARES.flags.writeable = False


@dataclass(frozen=True, eq=False, repr=False)
class Contributions:
    """Derivatives of the rows of a chunk with respect to the parameters, in factors. Confidential.

    The factors are those of `pymc_dp.rows.clip.add_clipped`; slopes may also have the shape (slopes, responses, rows).
    `log_likelihoods`, shape (rows,), belong to the same rows; empty if they were not computed.
    """

    slopes: FloatArray
    indices: NDArray[np.int64]
    vectors: tuple[FloatArray, ...]
    vector_squares: tuple[FloatArray, ...]
    log_likelihoods: FloatArray

    def dense(self, layout: NDArray[np.int64], size: int) -> FloatArray:
        """Return the derivatives as dense vectors, shape (size, rows)."""
        return clip.dense(self.slopes, self.vectors, self.indices, layout, size)


@dataclass(frozen=True, eq=False, repr=False)
class Axes:
    """The linear map from slopes of rows to derivatives along the columns of a matrix, shape (parameters, k).

    It is the same for all slopes of a chunk. `along`, shape (slopes with a factor, k, rows), has its coefficients: for
    a product the row's vector times a part of the matrix, for a gather the row of the matrix that the index selects.
    """

    parts: NDArray[np.int64]
    matrix: FloatArray
    along: FloatArray

    @classmethod
    def of(cls, found: Contributions, layout: NDArray[np.int64], matrix: FloatArray) -> "Axes":
        """Return the map for the rows of `found`."""
        matrix, n_factored = np.ascontiguousarray(matrix), int(layout[layout[:, 0] != DENSE, 2].sum())
        n_rows = found.slopes.shape[-1]
        return cls(layout, matrix, clip.axes_of(found.vectors, found.indices, layout, matrix, n_factored, n_rows))

    def whole(self) -> FloatArray:
        """Return the coefficients of all slopes, shape (slopes, k, rows)."""
        along = iter(self.along)
        found = np.empty((int(self.parts[:, 2].sum()), *self.along.shape[1:]))
        for kind, first, k, _size, _factor, offset in self.parts:
            for m in range(k):
                found[first + m] = self.matrix[offset + m, :, None] if kind == DENSE else next(along)
        return found

    def moved(self) -> list[int]:
        """Return the places of the slopes of parameters whose rows of the matrix are not all zero."""
        return [
            slope
            for _kind, first, k, size, _factor, offset in self.parts
            if self.matrix[offset : offset + size * k].any()
            for slope in range(first, first + k)
        ]

    def times(self, slopes: FloatArray, first: int = 0) -> FloatArray:
        """Return ``matrix.T @ derivatives`` of the rows with `slopes`, shape (k, rows), from the column `first` on.

        The order of additions is fixed, so that no row's bits depend on other rows.
        """
        return clip.along(slopes, self.along, self.parts, self.matrix, first)


def vectors_of(chunk: Chunk, tables: Sequence[int]) -> tuple[tuple[FloatArray, ...], tuple[FloatArray, ...]]:
    """Return the rows of the inputs `tables`, and their squared norms."""
    if not tables:
        return (_NO_VECTORS,), (_NO_SQUARES,)
    return tuple(chunk.rows[table] for table in tables), tuple(chunk.squares(table) for table in tables)
