"""The row engine: clipped sums over units of any factorising PyMC likelihood."""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.utils import MethodNotDefined

from pymc_dp.exceptions import InvalidArgument, UnsupportedModel
from pymc_dp.parameters import FloatArray, ParameterVector
from pymc_dp.rows import kernels
from pymc_dp.rows.check import check_factorisation
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.derivatives import RowDerivatives
from pymc_dp.rows.expansion import DerivativesOfChunk, ExpansionPoint, UnitExpansion, UnitsOfChunk
from pymc_dp.rows.graphs import Point, RowFunctions
from pymc_dp.rows.split import leaf_value, refuse_missing_values, refuse_tables_of_units, split

#: Rows that are worked on at a time: their intermediate results stay in the processor's cache.
_CHUNK_ROWS = 8192
#: Rows that loops made for the model are called with; they keep to the cache by themselves.
_CALL_ROWS = 65536
#: Up to how many units a gradient keeps the log-likelihoods at its point, for the log-ratio that may follow: above,
#: a third vector as long as the table is dearer than computing them once more.
_KEPT_UNITS = 5_000_000


Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class RowFactor:
    """What a chunk's slopes are multiplied by. Confidential.

    Attributes
    ----------
    values : ndarray
        Vectors, shape (rows, size), or indices, shape (rows,).
    squares : ndarray, shape (rows,), or None
        Squared norms of the vectors; None for indices.
    """

    values: np.ndarray
    squares: FloatArray | None


@dataclass(frozen=True, eq=False)
class Chunk:
    """Whole units that are worked on together. Confidential.

    Attributes
    ----------
    units : slice
        Which units.
    starts : ndarray, shape (units + 1,), or None
        Where the rows of each begin, counted within the chunk; None if every row is a unit of its own.
    rows : list of ndarray
        Views of the data.
    """

    units: slice
    starts: NDArray[np.int64] | None
    rows: list[np.ndarray]


class UnitLikelihood:
    """A model's likelihood as a sum over units of privacy, ready to be clipped and summed.

    Confidential: it holds the data. Only the curator (`pymc_dp.release`) may call it.

    Parameters
    ----------
    model : pm.Model
        A model whose likelihood is a product over rows.
    unit : str, optional
        The dim that counts rows. Default: the first axis of the observed variables.
    unit_index : str or ndarray of int, shape (rows,), optional
        Which unit each row belongs to, or the name of the model's data variable that says so. The rows of one
        unit are summed before they are clipped. Default: every row is a unit of its own.
    second_order : bool
        Also compile the derivatives that expansions need.
    threads : int
        How many threads share a pass over the rows. The results have the same bits for any number.

    Attributes
    ----------
    n_units, n_rows, n_parameters : int
    unit_lengths : frozenset of int
        Lengths of arrays with one entry for each unit of several rows.
    unit_in_words : str
        What is protected, for the result's metadata.

    Raises
    ------
    UnsupportedModel
        If the likelihood is not a product over rows, or data are missing.
    InvalidArgument
        If `unit_index` is not one whole number for each row.
    """

    def __init__(
        self,
        model: pm.Model,
        unit: str | None = None,
        unit_index: str | NDArray[np.integer] | None = None,
        *,
        second_order: bool = False,
        threads: int = 1,
    ) -> None:
        self._threads = threads
        row_split = split(model, unit)
        refuse_missing_values(row_split)
        self.parameters = ParameterVector(model)
        shapes = [self.parameters.shapes[name] for name in self.parameters.names]
        self._functions = RowFunctions(row_split, model.value_vars, shapes, factored=unit_index is None)
        check_factorisation(model, row_split, self._functions, self.parameters)
        try:
            self._derivatives = RowDerivatives(row_split, model.value_vars) if second_order else None
        except (MethodNotDefined, NotImplementedError) as error:
            raise UnsupportedModel(
                "A second derivative of the likelihood is not known to PyTensor. Use a sampler that takes none, such "
                "as DPHMC."
            ) from error
        self._expansions: dict[bytes, UnitExpansion] = {}
        self.n_rows = row_split.n_rows
        self._data = [leaf.rows() for leaf in row_split.leaves]
        index = _unit_of_each_row(model, unit_index, self.n_rows)
        self._starts: NDArray[np.int64] | None = None
        if index is not None:
            order = np.argsort(index, kind="stable")
            self._data = [np.ascontiguousarray(rows[order]) for rows in self._data]
            changes = np.flatnonzero(np.diff(index[order])) + 1
            self._starts = np.concatenate([[0], changes, [self.n_rows]]).astype(np.int64)
        self.n_units = self.n_rows if self._starts is None else self._starts.size - 1
        #: How many units there are, and how many an index could name: arrays of these lengths are protected, too.
        self.unit_lengths = frozenset() if index is None else _lengths_of_units(index, self.n_units, self.n_rows)
        self.unit_in_words = _unit_in_words(row_split.dim, unit_index)
        if index is not None:
            refuse_tables_of_units(model, self.unit_lengths)
        self.n_parameters = self.parameters.size
        observed = {model.rvs_to_values[rv]: rv.name for rv in model.observed_RVs}
        self._leaf_names = [(observed.get(leaf.source), leaf.axis) for leaf in row_split.leaves]
        # Log-likelihoods of all units at the points of the last log-ratio and at the last gradient.
        self._pair: dict[bytes, FloatArray] = {}
        self._latest: dict[bytes, FloatArray] = {}

    def clipped_gradient(
        self,
        theta: FloatArray,
        bound: float,
        grid: float,
        *,
        units: NDArray[np.int64] | None = None,
        blocks: Sequence[bool] | None = None,
    ) -> ClippedSum:
        """Return the sum over units of log-likelihood gradients, each clipped to the norm `bound`.

        Parameters
        ----------
        theta : ndarray, shape (parameters,)
            Unconstrained parameters.
        bound : float
            Largest Euclidean norm of one unit's gradient.
        grid : float
            A power of two; contributions are truncated toward zero to multiples of it.
        units : ndarray of int64, optional
            Which units take part, in increasing order. The work is proportional to their rows. Default: all.
        blocks : sequence of bool, optional
            Which value variables take part, one entry for each, in the model's order. Norm, clip and sum are those
            of their coordinates alone, and the result holds only those. Default: all.

        Raises
        ------
        InvalidArgument
            If `units` or `blocks` name no such units or value variables.
        """
        point = self._functions.at(self.parameters.split(theta))
        slices = self._slices(blocks)
        size = sum(entries.stop - entries.start for entries in slices if entries is not None)
        shrunk = kernels.shrunk(bound, size)
        kept = units is None and self.n_units <= _KEPT_UNITS
        if units is None:
            self._latest = {}  # not held beside what replaces it
        log_likelihoods = np.empty(self.n_units if kept else 0)

        def add(chunk: Chunk) -> tuple[int, NDArray[np.int64]]:
            total = np.zeros(size, dtype=np.int64)
            logs = log_likelihoods[chunk.units] if kept else log_likelihoods
            return self._add_clipped(point, chunk, logs, slices, shrunk, 1.0 / grid, total), total

        n_clipped, total = 0, np.zeros(size, dtype=np.int64)
        for clipped_here, sum_here in self._each(add, self._cut() if units is None else self._batch(units)):
            n_clipped += clipped_here
            total += sum_here
        if kept:
            self._latest = {theta.tobytes(): log_likelihoods}
        return ClippedSum(total, grid, bound, n_clipped)

    def _add_clipped(
        self,
        point: Point,
        chunk: Chunk,
        log_likelihoods: FloatArray,
        slices: Sequence[slice | None],
        bound: float,
        steps_per_one: float,
        total: NDArray[np.int64],
    ) -> int:
        """Add the clipped, truncated gradients of a chunk's units to `total`; return how many were clipped.

        Their log-likelihoods are written into `log_likelihoods`, unless it is empty.
        """
        lowered = self._functions.lowered
        if lowered is not None and chunk.starts is None:
            return lowered.add_clipped(point[0], chunk.rows, log_likelihoods, slices, bound, steps_per_one, total)
        logp, *slopes = self._functions.with_slopes(point, chunk.rows)
        if log_likelihoods.size:
            log_likelihoods[:] = _per_unit(logp[:, None], chunk.starts)[:, 0]
        slopes = [_per_unit(slope, chunk.starts) for slope in slopes]
        factors = self._factors_of(point, chunk.rows)
        squares = np.zeros(len(slopes[0]))
        for slope, factor, entries in zip(slopes, factors, slices, strict=True):
            if entries is None:
                continue
            if factor is None or factor.squares is None:
                kernels.add_squares(slope, squares)
            else:
                kernels.add_outer_squares(factor.squares, slope, squares)
        shorten = np.empty_like(squares)
        n_clipped = int(kernels.clip_factors(squares, bound, shorten))
        for slope, factor, entries in zip(slopes, factors, slices, strict=True):
            if entries is None:
                continue
            if factor is None:
                kernels.add_vectors(slope, shorten, steps_per_one, total[entries])
            elif factor.squares is None:
                kernels.add_gathered(factor.values, slope, shorten, steps_per_one, total[entries])
            else:
                kernels.add_outer_products(factor.values, slope, shorten, steps_per_one, total[entries])
        return n_clipped

    def _each(self, work: Callable[[Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]:
        """Yield the results of chunks in order, computed by several threads if there are."""
        # What PyTensor compiled keeps its results in one place, and cannot run twice at a time.
        if self._threads == 1 or self._functions.lowered is None:
            yield from map(work, chunks)
            return
        # Threads of their own for every pass: none is there when processes are forked or the engine is pickled.
        with ThreadPoolExecutor(self._threads) as pool:
            waiting: deque[Future[Result]] = deque()
            for chunk in chunks:
                waiting.append(pool.submit(work, chunk))
                if len(waiting) > 2 * self._threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def clipped_log_ratio(
        self,
        theta: FloatArray,
        theta_new: FloatArray,
        bound: float,
        grid: float,
        *,
        units: NDArray[np.int64] | None = None,
    ) -> ClippedSum:
        """Return the sum over units of log p(unit | theta_new) - log p(unit | theta), each clipped to `bound`.

        Odd: swapping `theta` and `theta_new` changes nothing but the sign. With `units`, in increasing order, the
        sum is over those alone.

        Raises
        ------
        InvalidArgument
            If `units` names no such units.
        """
        if units is None:
            wanted = (theta.tobytes(), theta_new.tobytes())
            self._pair = {key: values for key, values in self._pair.items() if key in wanted}
            old = self._unit_log_likelihoods(theta)
            new = self._unit_log_likelihoods(theta_new)
            self._pair = {theta.tobytes(): old, theta_new.tobytes(): new}
        else:
            old = self.unit_log_likelihoods(theta, units)
            new = self.unit_log_likelihoods(theta_new, units)
        total = np.zeros(1, dtype=np.int64)
        shrunk = kernels.shrunk(bound, 1)
        n_clipped = kernels.add_clipped_differences(new, old, shrunk, 1.0 / grid, total)
        return ClippedSum(total, grid, bound, n_clipped)

    def clipped_log_ratios(
        self, theta: FloatArray, theta_new: FloatArray, bound: float, grid: float, units: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], int]:
        """Return the log-ratios of `units`, clipped to `bound` and truncated to multiples of `grid`. Confidential.

        Also how many were clipped. Odd in (theta, theta_new); what is no number counts as zero.
        """
        with np.errstate(invalid="ignore"):
            log_ratios = self.unit_log_likelihoods(theta_new, units) - self.unit_log_likelihoods(theta, units)
        shrunk = kernels.shrunk(bound, 1)
        inside = np.abs(log_ratios) <= shrunk
        kept = np.where(inside, log_ratios, np.where(np.isnan(log_ratios), 0.0, np.copysign(shrunk, log_ratios)))
        return np.trunc(kept / grid).astype(np.int64), int(np.sum(~inside))

    def unit_log_likelihoods(self, theta: FloatArray, units: NDArray[np.int64]) -> FloatArray:
        """Return the log-likelihood of each of `units`, which are in increasing order. Confidential.

        The work is proportional to the rows of `units`; nothing is remembered.

        Raises
        ------
        InvalidArgument
            If `units` names no such units.
        """
        log_likelihoods = np.empty(len(units))
        self._write_log_likelihoods(theta, self._batch(units), log_likelihoods)
        return log_likelihoods

    def _write_log_likelihoods(self, theta: FloatArray, chunks: Iterable[Chunk], log_likelihoods: FloatArray) -> None:
        point = self._functions.at(self.parameters.split(theta))

        def write(chunk: Chunk) -> None:
            logp = self._functions.log_likelihood(point, chunk.rows)
            log_likelihoods[chunk.units] = _per_unit(logp[:, None], chunk.starts)[:, 0]

        for _ in self._each(write, chunks):
            pass

    def warm_up(self) -> None:
        """Compile everything on one synthetic row, before a run is charged and before processes are forked."""
        point = self._functions.at(self.parameters.split(np.zeros(self.n_parameters)))
        row = [np.ones_like(rows[:1]) for rows in self._data]
        logp = self._functions.log_likelihood(point, row)
        kernels.sum_rows_of_units(logp[:, None], np.array([0, 1]), np.empty((1, 1)))
        kernels.add_clipped_differences(logp, logp, 1.0, 1.0, np.zeros(1, dtype=np.int64))
        total = np.zeros(self.n_parameters, dtype=np.int64)
        chunk = Chunk(slice(0, 1), None if self._starts is None else np.array([0, 1]), row)
        self._add_clipped(point, chunk, np.empty(1), self._slices(None), 1.0, 1.0, total)
        if self._derivatives is not None:
            values = self.parameters.split(np.zeros(self.n_parameters))
            self._derivatives.gradient(*values, *row)
            self._derivatives.curvature_times(*values, *values, *row)
            slope, curvature = self._derivatives.along(*values, *values, *row)
            kernels.times_matrix(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)))
            kernels.lower_weights(slope, 1.0, np.ones(1))
            kernels.weighted_remainders(slope, slope, curvature, np.ones(1), np.ones(1), np.empty(1))
            kernels.clipping_losses(slope, np.ones(1), 1.0, np.empty(1))
            kernels.add_clipped(slope[:, None], 1.0, 1.0, np.zeros(1, dtype=np.int64))

    @property
    def observed_leaves(self) -> list[tuple[str, int]] | None:
        """The observed variable behind each table and its row axis; None if there are others, or units of rows."""
        found = [(name, axis) for name, axis in self._leaf_names if name is not None]
        return found if self._starts is None and len(found) == len(self._leaf_names) else None

    def on_rows(self, tables: Sequence[np.ndarray]) -> "UnitLikelihood":
        """Return the same likelihood on other rows, one table for each input (none: no rows); none of its own data."""
        other = copy.copy(self)
        tables = tables or [rows[:0] for rows in self._data]
        data = [table.astype(rows.dtype) for table, rows in zip(tables, self._data, strict=True)]
        fresh = {"_data": data, "_starts": None, "n_rows": len(data[0]), "n_units": len(data[0])}
        other.__dict__.update({**fresh, "_pair": {}, "_latest": {}, "_expansions": {}})
        return other

    def of_first_units(self, count: int) -> "UnitLikelihood":
        """Return the same likelihood of the first units, at most `count`."""
        count = min(count, self.n_units)
        n_rows = count if self._starts is None else int(self._starts[count])
        other = self.on_rows([rows[:n_rows] for rows in self._data])
        other.n_units = count
        other.__dict__["_starts"] = None if self._starts is None else self._starts[: count + 1]
        return other

    def expansion(self, centre: ExpansionPoint) -> UnitExpansion:
        """Return the expansion of every unit around a centre, computed anew only for a new centre. Confidential.

        Raises
        ------
        InvalidArgument
            If the centre or its directions have another shape than the model's parameters: compiled loops over rows
            would read and write beyond them.
        """
        size = self.n_parameters
        if centre.theta.shape != (size,) or centre.directions.shape != (size, size):
            raise InvalidArgument(f"An expansion takes a centre of {size} numbers, and as many directions.")
        if centre.key not in self._expansions:
            self._expansions = {centre.key: UnitExpansion(self, centre)}
        return self._expansions[centre.key]

    def all_log_likelihoods(self, theta: FloatArray) -> FloatArray:
        """Return the log-likelihood of every unit. Confidential."""
        return self._unit_log_likelihoods(theta)

    def derivatives_by_chunk(self) -> Iterator[DerivativesOfChunk]:
        """Yield the derivatives of the units, chunk by chunk. Confidential.

        Raises
        ------
        InvalidArgument
            If the derivatives were not asked for with ``second_order=True``.
        """
        if self._derivatives is None:
            raise InvalidArgument("Expansions need UnitLikelihood(..., second_order=True).")
        yield from self._derivatives_of(self._cut(_CHUNK_ROWS))

    def _derivatives_of(self, chunks: Iterable[Chunk]) -> Iterator[DerivativesOfChunk]:
        if self._derivatives is None:
            raise InvalidArgument("Expansions need UnitLikelihood(..., second_order=True).")
        for chunk in chunks:
            yield DerivativesOfChunk(
                chunk.units, self._functions, self._derivatives, self.parameters, chunk.rows, chunk.starts
            )

    def sum_over_units(
        self,
        contributions: Callable[[UnitsOfChunk], FloatArray],
        size: int,
        bound: float,
        grid: float,
        *,
        units: NDArray[np.int64] | None = None,
    ) -> ClippedSum:
        """Return the sum over units of any function of a unit's derivatives, each clipped to the norm `bound`.

        Parameters
        ----------
        contributions : callable
            Called with some units at a time (`pymc_dp.rows.expansion.UnitsOfChunk`): returns their contributions,
            shape (units of the chunk, size). A row has to depend on its own unit alone, to the last bit, and nothing
            may be raised that depends on the rows. A row that is not finite counts as zero.
        size : int
            Entries of a contribution.
        bound : float
            Largest Euclidean norm of one unit's contribution.
        grid : float
            A power of two; contributions are truncated toward zero to multiples of it.
        units : ndarray of int64, optional
            Which units take part, in increasing order; the chunks' slices then count within it. Default: all.

        Raises
        ------
        InvalidArgument
            If `units` names no such units, the contributions have another shape, or the derivatives were not asked
            for with ``second_order=True``.
        """
        total, n_clipped = np.zeros(size, dtype=np.int64), 0
        for chunk in self._derivatives_of(self._cut(_CHUNK_ROWS) if units is None else self._batch(units)):
            with np.errstate(all="ignore"):  # whether a unit is finite is nobody's business
                found = np.ascontiguousarray(contributions(chunk), dtype=np.float64)
            if found.shape != (chunk.units.stop - chunk.units.start, size):
                raise InvalidArgument("Contributions must have the shape (units of the chunk, size).")
            n_clipped += kernels.add_clipped(found, kernels.shrunk(bound, size), 1.0 / grid, total)
        return ClippedSum(total, grid, bound, n_clipped)

    def _unit_log_likelihoods(self, theta: FloatArray) -> FloatArray:
        """Return the log-likelihood of every unit, computed anew only at a point not just visited."""
        key = theta.tobytes()
        for remembered in (self._pair, self._latest):
            if key in remembered:
                return remembered[key]
        log_likelihoods = np.empty(self.n_units)
        self._write_log_likelihoods(theta, self._cut(), log_likelihoods)
        return log_likelihoods

    def _factors_of(self, point: Point, chunk: Sequence[np.ndarray]) -> list[RowFactor | None]:
        """Return what a chunk's slopes are multiplied by."""
        if all(block.kind == "dense" for block in self._functions.blocks):
            return [None] * len(self._functions.blocks)
        factors: list[RowFactor | None] = []
        for block, values in zip(self._functions.blocks, self._functions.row_factors(point, chunk), strict=True):
            if values is None:
                factors.append(None)
                continue
            squares = None
            if block.kind == "product":
                squares = np.zeros(len(values))
                kernels.add_squares(values, squares)
            factors.append(RowFactor(values, squares))
        return factors

    def _rows_of_a_chunk(self) -> int:
        """Return how many rows are worked on at a time."""
        if self._functions.lowered is None or self._starts is not None:
            return _CHUNK_ROWS
        return max(1, min(_CALL_ROWS, -(-self.n_rows // self._threads)))

    def _cut(self, size: int | None = None) -> Iterator[Chunk]:
        """Yield chunks of whole units, of `size` rows or so."""
        size = size or self._rows_of_a_chunk()
        first = 0
        while first < self.n_units:
            last, starts = min(first + size, self.n_units), None
            begin, end = first, last
            if self._starts is not None:
                begin = int(self._starts[first])
                last = int(np.searchsorted(self._starts, begin + size, side="right")) - 1
                last = min(max(last, first + 1), self.n_units)
                starts = self._starts[first : last + 1] - begin
                end = int(self._starts[last])
            yield Chunk(slice(first, last), starts, [data[begin:end] for data in self._data])
            first = last

    def _batch(self, units: NDArray[np.int64]) -> Iterator[Chunk]:
        """Yield chunks of the rows of `units`, about `_CHUNK_ROWS` rows each; `Chunk.units` counts within `units`.

        Raises
        ------
        InvalidArgument
            If `units` does not increase or names units that are not there. A unit named twice would count twice,
            beyond the sensitivity.
        """
        units = np.asarray(units)
        if units.ndim != 1 or units.dtype != np.int64:
            raise InvalidArgument("units must be a vector of int64.")
        if units.size and (units[0] < 0 or units[-1] >= self.n_units or not np.all(units[:-1] < units[1:])):
            raise InvalidArgument("units must increase strictly and name units that there are.")
        size = min(_CHUNK_ROWS, self._rows_of_a_chunk())
        if self._starts is None:
            for first in range(0, units.size, size):
                named = units[first : first + size]
                yield Chunk(slice(first, first + named.size), None, [data[named] for data in self._data])
            return
        ends = np.cumsum(self._starts[units + 1] - self._starts[units])
        first = 0
        while first < units.size:
            done = ends[first - 1] if first else 0
            last = max(int(np.searchsorted(ends, done + size, side="right")), first + 1)
            starts = np.concatenate([[0], ends[first:last] - done]).astype(np.int64)
            begins = self._starts[units[first:last]]
            index = np.arange(starts[-1]) + np.repeat(begins - starts[:-1], np.diff(starts))
            yield Chunk(slice(first, last), starts, [data[index] for data in self._data])
            first = last

    def _slices(self, blocks: Sequence[bool] | None) -> list[slice | None]:
        """Return where each value variable stands in a vector of those that take part; None for the others."""
        taken = [True] * len(self.parameters.slices) if blocks is None else [bool(entry) for entry in blocks]
        if len(taken) != len(self.parameters.slices) or not any(taken):
            raise InvalidArgument("blocks must have one entry for each value variable, and one of them true.")
        slices: list[slice | None] = []
        begin = 0
        for entries, takes_part in zip(self.parameters.slices, taken, strict=True):
            size = entries.stop - entries.start
            slices.append(slice(begin, begin + size) if takes_part else None)
            begin += size if takes_part else 0
        return slices

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pair": {}, "_latest": {}, "_expansions": {}}

    def __repr__(self) -> str:
        return f"UnitLikelihood(n_parameters={self.n_parameters}; confidential)"


def _per_unit(rows: FloatArray, starts: NDArray[np.int64] | None) -> FloatArray:
    """Return the sum of the rows of every unit, shape (units, size)."""
    if starts is None:
        return rows
    units = np.empty((starts.size - 1, rows.shape[1]))
    kernels.sum_rows_of_units(rows, starts, units)
    return units


def _unit_of_each_row(
    model: pm.Model, unit_index: str | NDArray[np.integer] | None, n_rows: int
) -> NDArray[np.int64] | None:
    if unit_index is None:
        return None
    if isinstance(unit_index, str):
        data_names = [variable.name for variable in model.data_vars]
        if unit_index not in data_names:
            known = f"it has {', '.join(map(repr, data_names))}" if data_names else "it has none"
            raise InvalidArgument(
                f"unit_index={unit_index!r} names no data variable of the model; {known}. Put it into the model with "
                "pm.Data, or pass the array itself."
            )
        unit_index = leaf_value(model.named_vars[unit_index])
    try:
        index = np.asarray(unit_index)
    except ValueError:
        raise InvalidArgument("unit_index must hold one whole number for each row, and be a plain array.") from None
    # Entries are data and in no message; nor are lengths, which some budgets protect.
    if index.ndim != 1:
        raise InvalidArgument(f"unit_index must hold one whole number for each row, but has {index.ndim} axes.")
    if index.size != n_rows:
        raise InvalidArgument(
            "unit_index has another length than the table: it must hold one whole number for each row. Compare "
            "len(unit_index) with the length of the observed variables along the axis of rows."
        )
    if index.dtype.kind not in "iu":
        raise InvalidArgument(
            f"The entries of unit_index must be whole numbers, but are {index.dtype}. Turn labels into numbers with "
            "np.unique(labels, return_inverse=True)[1]."
        )
    return index.astype(np.int64)


def _lengths_of_units(index: NDArray[np.int64], n_units: int, n_rows: int) -> frozenset[int]:
    """Return the lengths of arrays with one entry for each unit, also if some units have no rows."""
    return frozenset({n_units, int(index.max()) + 1}) - {0, 1, n_rows}


def number_of_units(
    model: pm.Model, unit: str | None = None, unit_index: str | NDArray[np.integer] | None = None
) -> int:
    """Return how many units there are, without building their likelihood. Public under substitution only.

    Raises
    ------
    UnsupportedModel, InvalidArgument
        As in `UnitLikelihood`.
    """
    n_rows = split(model, unit).n_rows
    index = _unit_of_each_row(model, unit_index, n_rows)
    return n_rows if index is None else np.unique(index).size


def _unit_in_words(dim: str | None, unit_index: str | NDArray[np.integer] | None) -> str:
    if unit_index is not None:
        return f"all rows with the same {unit_index if isinstance(unit_index, str) else 'unit_index'}"
    return f"one entry of the dim {dim!r}" if dim is not None else "one row of the observed variables"
