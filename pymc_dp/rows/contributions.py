"""Derivatives of the rows of a chunk, in factors: how they are written out, clipped and turned along columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.graphs import DENSE
from pymc_dp.rows.on_demand import clip
from pymc_dp.rows.table import Chunk

#: In the place of vectors where there are none: compiled code needs some array.
_NO_VECTORS, _NO_SQUARES = np.empty((0, 0)), np.empty(0)
_NO_VECTORS.flags.writeable = _NO_SQUARES.flags.writeable = False


@dataclass(frozen=True, eq=False, repr=False)
class Contributions:
    """Derivatives of the rows of a chunk with respect to the parameters, in factors. Confidential.

    The factors are those of `pymc_dp.rows.clip.add_clipped`; slopes may have the shape (slopes, responses, rows), too.
    `log_likelihoods`, shape (rows,), are those of the same rows, for first derivatives; else empty.
    """

    slopes: FloatArray
    indices: NDArray[np.int64]
    vectors: tuple[FloatArray, ...]
    vector_squares: tuple[FloatArray, ...]
    log_likelihoods: FloatArray

    def dense(self, layout: NDArray[np.int64], size: int) -> FloatArray:
        """Return them written out, shape (size, rows)."""
        return clip.dense(self.slopes, self.vectors, self.indices, layout, size)


@dataclass(frozen=True, eq=False, repr=False)
class Axes:
    """What slopes of rows are along the columns of a matrix, shape (parameters, k). The same for all slopes of a chunk.

    `along`, shape (slopes that a factor goes with, k, rows), holds the factors: for a product the row's vector times a
    part of the matrix, for a gather the row of the matrix that the index names.
    """

    parts: NDArray[np.int64]
    matrix: FloatArray
    along: FloatArray

    @classmethod
    def of(cls, found: Contributions, layout: NDArray[np.int64], matrix: FloatArray) -> "Axes":
        """Return those of the rows that `found` is of."""
        matrix, n_factored = np.ascontiguousarray(matrix), int(layout[layout[:, 0] != DENSE, 2].sum())
        n_rows = found.slopes.shape[-1]
        return cls(layout, matrix, clip.axes_of(found.vectors, found.indices, layout, matrix, n_factored, n_rows))

    def whole(self) -> FloatArray:
        """Return what a slope of 1 is along the columns, shape (slopes, k, rows)."""
        along = iter(self.along)
        found = np.empty((int(self.parts[:, 2].sum()), *self.along.shape[1:]))
        for kind, first, k, _size, _factor, offset in self.parts:
            for m in range(k):
                found[first + m] = self.matrix[offset + m, :, None] if kind == DENSE else next(along)
        return found

    def moved(self) -> list[int]:
        """Return the places of the slopes of parameters that the matrix moves."""
        return [
            slope
            for _kind, first, k, size, _factor, offset in self.parts
            if self.matrix[offset : offset + size * k].any()
            for slope in range(first, first + k)
        ]

    def times(self, slopes: FloatArray, first: int = 0) -> FloatArray:
        """Return ``matrix.T @ derivatives`` of the rows with `slopes`, shape (k, rows), from the column `first` on.

        In a fixed order of additions, so that no row's bits know the others.
        """
        return clip.along(slopes, self.along, self.parts, self.matrix, first)


def vectors_of(chunk: Chunk, tables: Sequence[int]) -> tuple[tuple[FloatArray, ...], tuple[FloatArray, ...]]:
    """Return the rows of those inputs, and their squared norms."""
    if not tables:
        return (_NO_VECTORS,), (_NO_SQUARES,)
    return tuple(chunk.rows[table] for table in tables), tuple(chunk.squares(table) for table in tables)
