"""Clipped sums over units for any PyMC likelihood that is a product over rows."""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.arrays import leaf_value
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.split import RowLeaf
from pymc_dp.model.view import ModelView
from pymc_dp.rows import expansion
from pymc_dp.rows.check import check_factorisation
from pymc_dp.rows.clipped_sum import ClippedMoments, ClippedSum
from pymc_dp.rows.derivatives import LatestResponses, OtherModel, UnitsOfChunk
from pymc_dp.rows.engine import RowEngine
from pymc_dp.rows.expansion import ExpansionPoint, UnitExpansion
from pymc_dp.rows.graphs import GATHER, RowGraphs
from pymc_dp.rows.on_demand import clip
from pymc_dp.rows.responses import possible_responses
from pymc_dp.rows.table import Chunk, IntArray, RowTable

#: Rows that are processed at a time: their intermediate results stay in the processor's cache.
_CHUNK_ROWS = 8192
#: Rows of a chunk if responses are known: the same for all queries, so that they share cached derivatives.
_CHUNK_OF_RESPONSES = 2048
#: Entries of the caller's own contributions in memory at a time.
_CHUNK_ENTRIES = 2**17
#: Largest number of cached entries for possible responses of a table: half a gigabyte.
_CACHE_ENTRIES = 2**26

Result = TypeVar("Result")


@dataclass(frozen=True)
class RowInput:
    """An input of the model with an entry, or a vector of entries, for each row. Public: names and types.

    The names are those of the data variable and of its observed variables; an array may have no name. The shape is that
    of one row.
    """

    names: tuple[str, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, leaf: RowLeaf) -> "RowInput":
        """Return the public facts of an input."""
        names = dict.fromkeys(name for name in (leaf.source.name, *(rv.name for rv in leaf.observed)) if name)
        return cls(tuple(names), leaf_value(leaf.source).dtype, leaf.row_shape())


class UnitLikelihood:
    """A model's likelihood as a sum over units of privacy, ready to be clipped and summed.

    Confidential: it holds the data. Only the curator (`pymc_dp.release`) may call it. The rows are in a `RowTable`, a
    `RowEngine` computes log-likelihoods and derivatives of rows, and `pymc_dp.rows.clip` bounds and sums them. The rows
    of one unit are summed before they are clipped.

    Parameters
    ----------
    view : ModelView
        A model whose likelihood is a product over rows; another one raises `UnsupportedModel`.
    first_order, expands : bool
        Whether clipped gradients, and expansions, will be requested: `warm_up` compiles their functions.
    beside : mapping of str to ndarray
        Columns that the model does not read, with an entry for each row. Queries may count them; they are inputs, too.
    other : ModelView, optional
        Another model of the same rows, for comparisons: its inputs are added to this model's.

    Attributes
    ----------
    n_units, n_rows, n_parameters : int
    parameters : ParameterVector
        The layout of parameters.
    unit_in_words : str
        The protected unit, for the result's metadata.
    inputs : tuple of RowInput
        The inputs that make up a row.
    """

    def __init__(
        self,
        view: ModelView,
        *,
        first_order: bool = True,
        expands: bool = False,
        beside: Mapping[str, np.ndarray] | None = None,
        other: ModelView | None = None,
    ) -> None:
        self._first_order, self._expands = first_order, expands
        self.parameters, row_split, units = view.parameters, view.row_split, view.units
        self.n_parameters = self.parameters.size
        self._engine = _engine_of(view)
        self._responses = possible_responses(row_split.leaves, view.responses)
        self._kinked = view.kinked
        leaves, columns = [*row_split.leaves], beside or {}
        rows = [*(leaf.rows() for leaf in leaves), *map(np.ascontiguousarray, columns.values())]
        inputs = [*map(RowInput.of, leaves)]
        inputs += [RowInput((name,), values.dtype, values.shape[1:]) for name, values in columns.items()]
        self._other = None if other is None else OtherModel(_engine_of(other), other.parameters, len(rows))
        if other is not None:
            rows += [leaf.rows() for leaf in other.row_split.leaves]
            inputs += map(RowInput.of, other.row_split.leaves)
        self._table = RowTable(rows) if units.of_row is None else RowTable.grouped(rows, units.of_row)
        self.n_rows, self.n_units = self._table.n_rows, self._table.n_units
        self.unit_in_words = units.in_words
        self._leaf_names = [leaf.observed[-1].name if leaf.observed else None for leaf in row_split.leaves]
        self.inputs = tuple(inputs)
        self._expansions: dict[bytes, UnitExpansion] = {}
        # Log-likelihoods of all units at the points of the last log-ratio. Those of gradients are not cached: compiled
        # together with a gradient, their last bits may differ, and the length of a table must not affect bits.
        self._pair: dict[bytes, FloatArray] = {}
        self._room = _CACHE_ENTRIES
        self._latest = LatestResponses(self._room)

    @property
    def rows_of_inputs(self) -> tuple[np.ndarray, ...]:
        """The rows, one array for each of `inputs`. Confidential, except for a template, whose rows are synthetic."""
        return tuple(self._table.rows)

    def clipped_gradient(
        self,
        theta: FloatArray,
        bound: float,
        grid: float,
        *,
        units: IntArray | None = None,
        blocks: Sequence[bool] | None = None,
    ) -> ClippedSum:
        """Return the sum over units of log-likelihood gradients at `theta`, each clipped to the norm `bound`.

        Contributions are truncated toward zero to multiples of `grid`, a power of two. The sum is over `units`, in
        increasing order, by default all: the work is proportional to their rows. `blocks` selects value variables, in
        the model's order: norm, clipping and sum are those of the selected coordinates, and the result holds only
        these. Unknown units and blocks raise `InvalidArgument`.
        """
        point = self.parameters.split(theta)
        offsets, size = self._offsets(blocks)
        parts, clipped_to = clip.layout(self._engine.graphs.parts, offsets), (clip.shrunk(bound, size), 1.0 / grid)

        def add(chunk: Chunk) -> tuple[int, IntArray]:
            sums = np.zeros(size, dtype=np.int64)
            found = self._engine.gradient(point, chunk)
            if chunk.starts is None:
                stored = found.slopes, found.vectors, found.vector_squares, found.indices
                return int(clip.add_clipped(*stored, parts, *clipped_to, sums)), sums
            # The rows of a unit are summed before its norm is taken.
            return int(clip.add_clipped_columns(chunk.per_unit(found.dense(parts, size)), *clipped_to, sums)), sums

        n_clipped, total = expansion.added_up(map(add, self._chunks(units)), size)
        if self._table.starts is None:
            by_slope, total = total, np.zeros(size, dtype=np.int64)
            clip.add_in_order(by_slope, parts, total)
        return ClippedSum(total, grid, bound, n_clipped)

    def clipped_log_ratio(
        self, theta: FloatArray, theta_new: FloatArray, bound: float, grid: float, *, units: IntArray | None = None
    ) -> ClippedSum:
        """Return the sum over units of log p(unit | theta_new) - log p(unit | theta), each clipped to `bound`.

        Antisymmetric: swapping `theta` and `theta_new` changes the sign only. With `units`, in increasing order, the
        sum is over these units only.
        """
        if units is None:
            wanted = (theta.tobytes(), theta_new.tobytes())
            self._pair = {key: values for key, values in self._pair.items() if key in wanted}
            old = self.all_log_likelihoods(theta)
            new = self.all_log_likelihoods(theta_new)
            self._pair = {theta.tobytes(): old, theta_new.tobytes(): new}
        else:
            old, new = self.unit_log_likelihoods(theta, units), self.unit_log_likelihoods(theta_new, units)
        return expansion.clipped_differences(old, new, bound, grid)

    def log_ratio_moments(
        self, theta: FloatArray, theta_new: FloatArray, bound: float, grid: float, *, units: IntArray | None = None
    ) -> ClippedMoments:
        """Return the moments of these clipped log-ratios, of all units or of some. Confidential."""
        old, new = self.unit_log_likelihoods(theta, units), self.unit_log_likelihoods(theta_new, units)
        return ClippedMoments.of(*expansion.each_clipped_difference(old, new, bound, grid))

    def unit_log_likelihoods(self, theta: FloatArray, units: IntArray | None) -> FloatArray:
        """Return the log-likelihood of each of `units`, which are in increasing order, or of all. Confidential.

        The work is proportional to the rows of `units`; nothing is cached.
        """
        log_likelihoods = np.empty(self.n_units if units is None else len(units))
        point = self.parameters.split(theta)
        for chunk in self._chunks(units):
            logp = self._engine.log_likelihood(point, chunk)
            log_likelihoods[chunk.units] = chunk.per_unit(logp[None])[0]
        return log_likelihoods

    def all_log_likelihoods(self, theta: FloatArray) -> FloatArray:
        """Return the log-likelihood of every unit, from a cache at the points of the last log-ratio. Confidential."""
        cached = self._pair.get(theta.tobytes())
        return self.unit_log_likelihoods(theta, None) if cached is None else cached

    def warm_up(self) -> None:
        """Compile the functions of a run on one synthetic row, before the run is charged and processes are forked."""
        one, theta = self._on(self._table.synthetic_row()), np.zeros(self.n_parameters)
        one.clipped_log_ratio(theta, theta, 1.0, 1.0)
        one.log_ratio_moments(theta, theta, 1.0, 1.0, units=np.zeros(1, dtype=np.int64))
        one.sum_over_units(lambda chunk: chunk.log_likelihood(theta)[:, None], 1, 1.0, 1.0)
        if self._first_order:
            one.clipped_gradient(theta, 1.0, 1.0)
        if self._expands:
            expansion.warm_up(one)

    def warm_up_response(self) -> None:
        """Compile the distribution of responses on one synthetic row, before anything is charged."""
        one, theta = self._on(self._table.synthetic_row()), np.zeros(self.n_parameters)
        one.sum_over_units(lambda chunk: np.array(chunk.response(theta)[:1]).T, 1, 1.0, 1.0)

    @property
    def knows_responses(self) -> bool:
        """Whether the possible responses of a row are known. It depends on the model's graph alone."""
        return self._responses is not None

    @property
    def size_of_other(self) -> int | None:
        """The number of parameters of the other model; None without another model."""
        return None if self._other is None else self._other.parameters.size

    @property
    def one_row_a_unit(self) -> bool:
        """Whether every row is a unit of its own."""
        return self._table.starts is None

    @property
    def structure(self) -> NDArray[np.bool_] | None:
        """A mask of possible nonzero entries of a unit's curvature, shape (parameters, parameters); None for all.

        By the model's graph, two entries of a vector from which rows gather by an index are never in the same row.
        """
        if not self.one_row_a_unit:
            return None
        group = np.full(self.n_parameters, -1)
        index = np.full(self.n_parameters, -1)
        for part, entries in zip(self._engine.graphs.parts, self.parameters.slices, strict=True):
            if part.kind == GATHER:
                index[entries] = part.factor
                group[entries] = np.repeat(np.arange(part.size), part.k)
        apart = (index[:, None] == index) & (index >= 0) & (group[:, None] != group)
        return ~apart if apart.any() else None

    @property
    def unidentified(self) -> FloatArray | None:
        """Directions along which no row's log-likelihood changes, shape (parameters, directions); None without any.

        They are found in the model's graph: an intercept, for example, can be moved into all deviations of groups.
        """
        found = []
        for number, first in enumerate(self._engine.graphs.same_slopes):
            if first != number:
                found.append(self._of_all_members(first) - self._of_all_members(number))
        return np.hstack(found) if found else None

    def _of_all_members(self, number: int) -> FloatArray:
        """Return indicators of the parameters that each slope of a variable belongs to, shape (parameters, slopes)."""
        part, entries = self._engine.graphs.parts[number], self.parameters.slices[number]
        found = np.zeros((self.n_parameters, part.k))
        found[entries] = np.tile(np.eye(part.k), (part.size, 1))
        return found

    @property
    def observed_leaves(self) -> list[str] | None:
        """The observed variable of each table; None if there are other tables, or units of several rows."""
        found = [name for name in self._leaf_names if name is not None]
        return found if self.one_row_a_unit and len(found) == len(self._leaf_names) else None

    def on_rows(
        self, tables: Sequence[np.ndarray], starts: IntArray | None = None, *, one_of_many: bool = False
    ) -> "UnitLikelihood":
        """Return the same likelihood on other rows, one table for each input, without its own data.

        The rows of each unit begin at `starts`, as in `RowTable`; None if every row is a unit of its own. With
        `one_of_many` tables nothing about responses is cached: the caches together may be large.
        """
        return self._on(self._table.with_rows(tables, starts), 0 if one_of_many else _CACHE_ENTRIES)

    def on_no_rows(self) -> "UnitLikelihood":
        """Return the same likelihood without rows."""
        starts = None if self.one_row_a_unit else np.zeros(1, dtype=np.int64)
        return self._on(self._table.with_rows([rows[:0] for rows in self._table.rows], starts))

    def with_units_of_rows(self) -> "UnitLikelihood":
        """Return the same likelihood for tables with units of several rows; each unit here still has one row."""
        return self.on_rows(self._table.rows, np.arange(self.n_rows + 1, dtype=np.int64))

    def _on(self, table: RowTable, room: int = _CACHE_ENTRIES) -> "UnitLikelihood":
        other = copy.copy(self)
        other.__dict__.update(_table=table, n_rows=table.n_rows, n_units=table.n_units, _room=room)
        other.forget()
        return other

    def forget(self) -> None:
        """Clear all caches. Expansions and their likelihood refer to each other, which delays freeing their memory."""
        self.__dict__.update(self._empty_caches())

    def _empty_caches(self) -> dict[str, Any]:
        return {"_pair": {}, "_expansions": {}, "_latest": LatestResponses(self._room)}

    def expansion(self, centre: ExpansionPoint) -> UnitExpansion:
        """Return the expansion of every unit around a centre; the latest one is cached. Confidential."""
        self.refuse_other_shapes(centre.theta, centre.preconditioner)
        if centre.key not in self._expansions:
            self._expansions = {centre.key: UnitExpansion(self, centre)}
        return self._expansions[centre.key]

    def refuse_other_shapes(self, theta: FloatArray, preconditioner: FloatArray | None = None) -> None:
        """Refuse a point, or a preconditioner, of another shape: compiled loops would read out of bounds."""
        size = self.n_parameters
        if theta.shape != (size,) or (preconditioner is not None and preconditioner.shape != (size, size)):
            raise InvalidArgument(
                f"An expansion takes a point of {size} numbers, and a square preconditioner of that size."
            )

    def each_chunk(
        self, work: Callable[[UnitsOfChunk], Result], units: IntArray | None = None, *, size: int | None = None
    ) -> Iterator[Result]:
        """Yield the results of `work` on all or some units, chunk by chunk. Confidential."""
        of_model = self._engine, self.parameters, self._responses, self._other, self._kinked, self._latest
        most = _CHUNK_ROWS if self._responses is None else _CHUNK_OF_RESPONSES
        for chunk in self._chunks(units, min(size or most, most)):
            yield work(UnitsOfChunk(chunk, *of_model))

    def sum_over_units(
        self,
        contributions: Callable[[UnitsOfChunk], FloatArray],
        size: int,
        bound: float,
        grid: float,
        *,
        units: IntArray | None = None,
    ) -> ClippedSum:
        """Return the sum over units of any function of a unit's derivatives, each clipped to the norm `bound`.

        `contributions` is called with the units of a chunk, and returns an array of shape (units of the chunk, `size`);
        another shape raises `InvalidArgument`. A row of the array must depend on its own unit alone, to the last bit,
        and errors must not depend on the rows of the table. A contribution that is not finite counts as zero. One whose
        norm is exactly the bound counts as clipped: it is reduced by the fraction 2**-40, for the rounding of the norm.
        For `grid` and `units` see `clipped_gradient`; slices of chunks count within `units`.
        """

        def add(chunk: UnitsOfChunk) -> tuple[int, IntArray]:
            with np.errstate(all="ignore"):  # a warning would reveal that a unit is not finite
                found = np.asarray(contributions(chunk), dtype=np.float64)
            if found.shape != (chunk.units.stop - chunk.units.start, size):
                raise InvalidArgument("Contributions must have the shape (units of the chunk, size).")
            columns, sums = np.ascontiguousarray(found.T), np.zeros(size, dtype=np.int64)
            return clip.add_clipped_columns(columns, clip.shrunk(bound, size), 1.0 / grid, sums), sums

        n_clipped, total = expansion.added_up(self.each_chunk(add, units, size=max(1, _CHUNK_ENTRIES // size)), size)
        return ClippedSum(total, grid, bound, n_clipped)

    def _chunks(self, units: IntArray | None, size: int | None = None) -> Iterator[Chunk]:
        """Yield chunks of all units, or of the units of a batch; the work is proportional to their rows."""
        return self._table.chunks(size or _CHUNK_ROWS) if units is None else self._table.batch(units, _CHUNK_ROWS)

    def _offsets(self, blocks: Sequence[bool] | None) -> tuple[list[int | None], int]:
        """Return the offset of each selected value variable in their joint vector (None for others), and its length."""
        selected = [True] * len(self.parameters.slices) if blocks is None else [bool(entry) for entry in blocks]
        if len(selected) != len(self.parameters.slices) or not any(selected):
            raise InvalidArgument("blocks must have one entry for each value variable, and one of them true.")
        lengths = [(each.stop - each.start) * part for each, part in zip(self.parameters.slices, selected, strict=True)]
        *begins, length = itertools.accumulate(lengths, initial=0)
        return [begin if part else None for begin, part in zip(begins, selected, strict=True)], length

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **self._empty_caches()}

    def __repr__(self) -> str:
        return f"UnitLikelihood(n_parameters={self.n_parameters}; confidential)"


def _engine_of(view: ModelView) -> RowEngine:
    """Return the engine of a model's rows, after the check that the likelihood is a product over rows."""
    found = RowEngine(RowGraphs(view))
    check_factorisation(view, found)
    return found
