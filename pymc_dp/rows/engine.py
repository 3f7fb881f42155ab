"""Engines of rows: log-likelihoods and derivatives of the rows of a chunk.

An engine bounds nothing and sums nothing: that is the work of `pymc_dp.rows.clip`. It sees no units either, only rows.
What it has to keep: a row's values, to the last bit, depend on the parameters and on that row alone, wherever it
stands and whatever the others hold; and whatever a row holds, nothing is raised.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.graphs import Part
from pymc_dp.rows.on_demand import clip
from pymc_dp.rows.table import Chunk

#: What an engine makes of the parameters before it sees a row. Its own affair.
Point = Any

#: In the place of vectors where there are none: compiled code needs some array.
_NO_VECTORS, _NO_SQUARES = np.empty((0, 0)), np.empty(0)
_NO_VECTORS.flags.writeable = _NO_SQUARES.flags.writeable = False


@dataclass(frozen=True, eq=False)
class Clipping:
    """How contributions of a chunk are clipped: see `pymc_dp.rows.clip.add_clipped`."""

    parts: NDArray[np.int64]
    bound: float
    steps_per_one: float


@dataclass(frozen=True, eq=False)
class Contributions:
    """Derivatives of the rows of a chunk with respect to the parameters, in factors. Confidential.

    Attributes
    ----------
    slopes : ndarray, shape (slopes, rows)
    indices : ndarray of int64, shape (indices, rows)
    vectors, vector_squares : tuple of ndarray
        As in `pymc_dp.rows.clip.add_clipped`.
    log_likelihoods : ndarray, shape (rows,)
        Of the same rows, for first derivatives; else empty.
    """

    slopes: FloatArray
    indices: NDArray[np.int64]
    vectors: tuple[FloatArray, ...]
    vector_squares: tuple[FloatArray, ...]
    log_likelihoods: FloatArray

    def dense(self, parts: Sequence[Part], offsets: Sequence[int | None], size: int) -> FloatArray:
        """Return them written out, shape (size, rows)."""
        columns = np.empty((size, self.slopes.shape[1]))
        clip.write_dense(self.slopes, self.vectors, self.indices, clip.layout(parts, offsets), columns)
        return columns

    def add_clipped(self, clipping: Clipping, sums: NDArray[np.int64]) -> int:
        """Clip and truncate them, and add them to `sums`; return how many were clipped."""
        n = self.slopes.shape[1]
        stored = self.slopes, self.vectors, self.vector_squares, self.indices
        n_clipped: int = clip.add_clipped(
            n, 0, *stored, clipping.parts, clipping.bound, clipping.steps_per_one, np.empty(n), sums
        )
        return n_clipped


class RowEngine(Protocol):
    """Computes log-likelihoods and derivatives of the rows of one model.

    Every function is compiled when it is called for the first time.
    """

    @property
    def name(self) -> str:
        """Which engine this is, for plans and metadata."""
        ...

    @property
    def reason(self) -> str:
        """Why something is not done by a faster engine, in a sentence; empty if nothing is."""
        ...

    @property
    def parts(self) -> Sequence[Part]:
        """How derivatives with respect to each value variable are stored."""
        ...

    @property
    def runs_in_threads(self) -> bool:
        """Whether several threads may work on chunks at a time, once all is compiled."""
        ...

    def at(self, values: Sequence[np.ndarray], direction: Sequence[np.ndarray] | None = None) -> Point:
        """Return what the functions need to know of the parameters, and of a direction for second derivatives."""
        ...

    def log_likelihood(self, point: Point, chunk: Chunk) -> FloatArray:
        """Return the log-likelihood of every row, shape (rows,)."""
        ...

    def gradient(self, point: Point, chunk: Chunk) -> Contributions:
        """Return first derivatives of every row's log-likelihood."""
        ...

    def curvature_times(self, point: Point, chunk: Chunk) -> Contributions:
        """Return negative second derivatives of every row's log-likelihood, times the direction of `point`."""
        ...

    def along(self, point: Point, chunk: Chunk) -> tuple[FloatArray, FloatArray]:
        """Return slopes and negative second derivatives along the direction of `point`, each of shape (rows,)."""
        ...

    def response(self, values: Sequence[np.ndarray], chunk: Chunk) -> Sequence[FloatArray]:
        """Return logarithms of the probabilities of at most every row's response and of less, and its mean.

        Of parameters as they are, each of shape (rows,); the mean where it is known. Nothing where the distribution was
        not read.
        """
        ...

    def add_clipped(
        self, point: Point, chunk: Chunk, clipping: Clipping, log_likelihoods: FloatArray, sums: NDArray[np.int64]
    ) -> int:
        """Add clipped first derivatives of rows to `sums`, as `Contributions.add_clipped` does: the same bits.

        Their log-likelihoods are written into `log_likelihoods`, unless it is empty. An engine may go through the
        rows in pieces here, so that what is between stays in the processor's cache.
        """
        ...


def vectors_of(chunk: Chunk, tables: Sequence[int]) -> tuple[tuple[FloatArray, ...], tuple[FloatArray, ...]]:
    """Return the rows of those inputs, and their squared norms."""
    if not tables:
        return (_NO_VECTORS,), (_NO_SQUARES,)
    return tuple(chunk.rows[table] for table in tables), tuple(chunk.squares(table) for table in tables)
