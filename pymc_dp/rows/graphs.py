"""Compiled functions of a chunk of rows: log-likelihoods and per-row gradients.

Most models are translated into loops of their own (`pymc_dp.rows.lowered`). What has no translation is vectorised over
the rows and compiled by PyTensor.

A gradient with respect to parameters that meet row data in a single product or gather is kept in two factors, the
row's vector (or index) and its slopes, so that no (rows, parameters) array is made for wide or many-grouped models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.tensor.elemwise import DimShuffle

from pymc_dp.rows.allowed import refuse_unknown_operations
from pymc_dp.rows.lowered import LoweredRows
from pymc_dp.rows.one_row import Link
from pymc_dp.rows.split import RowSplit

_COMPILE: dict[str, Any] = {"mode": "NUMBA", "trust_input": True, "on_unused_input": "ignore"}


#: What the functions know of the parameters: their values, or one vector of the numbers that they give.
Point = list[np.ndarray]


@dataclass(frozen=True)
class Block:
    """How the gradient with respect to one value variable is laid out.

    Attributes
    ----------
    kind : {"dense", "product", "gather"}
        ``"dense"``: one vector a row. ``"product"``: the outer product of `row` and the slopes. ``"gather"``: the
        slopes, at the entry that `row` names.
    """

    kind: Literal["dense", "product", "gather"]


class RowFunctions:
    """Compiled functions of the parameters and a chunk of rows.

    Parameters
    ----------
    row_split : RowSplit
        The one-row graph.
    value_vars : sequence of Variable
        The model's unconstrained parameters, in the order in which their values are passed.
    parameter_shapes : sequence of tuple of int
        Their shapes.
    factored : bool
        Keep gradients in factors where possible. They cannot be summed over several rows of a unit.
    lower : bool
        Make loops for this model where possible.

    Attributes
    ----------
    lowered : LoweredRows or None
        The loops, if there are any.
    blocks : list of Block
        How each value variable's gradient comes.

    Notes
    -----
    Pickling keeps the graphs and compiles again, so that no data that passed through travels along.
    """

    def __init__(
        self,
        row_split: RowSplit,
        value_vars: Sequence[Variable],
        parameter_shapes: Sequence[tuple[int, ...]],
        *,
        factored: bool = True,
        lower: bool = True,
    ) -> None:
        self._row_inputs = [leaf.row for leaf in row_split.leaves]
        self._row_shapes = [leaf.row_shape() for leaf in row_split.leaves]
        self._row_log_likelihood = row_split.row_log_likelihood
        self._value_vars = list(value_vars)
        self._parameter_shapes = list(parameter_shapes)
        self._links = _factorable_links(row_split, value_vars) if factored else {}
        self._lower = lower
        self._compile()

    def _compile(self) -> None:
        self.lowered: LoweredRows | None = None
        if self._lower:
            try:
                self.lowered = LoweredRows(
                    self._row_inputs,
                    self._row_shapes,
                    self._row_log_likelihood,
                    self._links,
                    self._value_vars,
                    self._parameter_shapes,
                )
            # Whatever an unusual graph meets there, PyTensor can compile it still; the sum over rows is checked anyway.
            except Exception:
                self._lower = False
        if self.lowered is not None:
            self.blocks = [Block(part.kind) for part in self.lowered.parts]
            return
        self._vectorise()
        # fastmath lets the compiler assume that nothing is NaN or infinite: exactly the rows that must not matter.
        with pytensor.config.change_flags(numba__fastmath=False):
            self._log_likelihood = pymc_compile(self._inputs, self._logp, **_COMPILE)
            self._with_slopes = pymc_compile(self._inputs, [self._logp, *self._slopes], **_COMPILE)
            self._row_factors = pymc_compile(self._inputs, self._factors, **_COMPILE)

    def _vectorise(self) -> None:
        """Put a chunk of rows in the place of the row."""
        row_inputs, value_vars, links = self._row_inputs, self._value_vars, self._links
        chunk_inputs = [pt.tensor(dtype=row.type.dtype, shape=(None, *row.type.shape)) for row in row_inputs]
        cut = {link.output: link.output.type() for link in links.values()}
        (row_logp,) = rewrite_pregrad(clone_replace([self._row_log_likelihood], cut))
        with_respect_to = [cut[links[var].output] if var in links else var for var in value_vars]
        gradients = pt.grad(row_logp, with_respect_to, disconnected_inputs="ignore")
        refuse_unknown_operations([row_logp, *gradients], [*row_inputs, *cut.values()])

        over_rows = dict(zip(row_inputs, chunk_inputs, strict=True))
        factors = [links[var].row for var in value_vars if var in links]
        outputs = [link.output for link in links.values()]
        batched = vectorize_graph([*outputs, *factors], over_rows) if links else []
        cut_over_rows = {cut[output]: values for output, values in zip(outputs, batched, strict=False)}
        logp, *slopes = vectorize_graph(
            [row_logp.astype("float64"), *[gradient.astype("float64") for gradient in gradients]],
            over_rows | cut_over_rows,
        )
        n = chunk_inputs[0].shape[0]
        # What does not depend on the row at all comes back without a row axis.
        self._logp = logp if logp.type.ndim == 1 else pt.alloc(logp, n)
        self._slopes = [
            (slope if slope.type.ndim == var.type.ndim + 1 else pt.alloc(slope, n, *var.shape)).reshape((n, -1))
            for slope, var in zip(slopes, with_respect_to, strict=True)
        ]
        self.blocks = [
            Block("dense" if var not in links else "gather" if links[var].gathers else "product") for var in value_vars
        ]
        # A factor that is a data table as it stands is not computed, so that it is not kept twice.
        self._tables = [_table_of(links[var], row_inputs) if var in links else None for var in value_vars]
        computed = [var in links and table is None for var, table in zip(value_vars, self._tables, strict=True)]
        self._factors = [
            factor.reshape((n,)) if links[var].gathers else factor.reshape((n, -1)).astype("float64")
            for factor, var in zip(batched[len(outputs) :], [var for var in value_vars if var in links], strict=True)
            if computed[value_vars.index(var)]
        ]
        self._inputs = [*value_vars, *chunk_inputs]

    def at(self, parameters: Sequence[np.ndarray]) -> Point:
        """Return what the functions need to know of the parameters."""
        return list(parameters) if self.lowered is None else [self.lowered.at(parameters)]

    def log_likelihood(self, point: Point, chunk: Sequence[np.ndarray]) -> np.ndarray:
        """Return the log-likelihood of every row, shape (rows,)."""
        if self.lowered is not None:
            return self.lowered.log_likelihood(point[0], chunk)
        log_likelihood: np.ndarray = self._log_likelihood(*point, *chunk)
        return log_likelihood

    def with_slopes(self, point: Point, chunk: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return log-likelihoods, shape (rows,), and for every value variable gradients or slopes, (rows, size)."""
        if self.lowered is not None:
            return self.lowered.with_slopes(point[0], chunk)
        outputs: list[np.ndarray] = self._with_slopes(*point, *chunk)
        return outputs

    def row_factors(self, point: Point, chunk: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """Return what slopes are multiplied by: vectors (rows, size), indices (rows,), None for dense gradients."""
        if self.lowered is not None:
            return self.lowered.row_factors(point[0], chunk)
        values = iter(self._row_factors(*point, *chunk) if self._factors else [])
        return [
            None if block.kind == "dense" else chunk[table] if table is not None else next(values)
            for block, table in zip(self.blocks, self._tables, strict=True)
        ]

    def __getstate__(self) -> dict[str, Any]:
        kept = (
            "_row_inputs",
            "_row_shapes",
            "_row_log_likelihood",
            "_value_vars",
            "_parameter_shapes",
            "_links",
            "_lower",
        )
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()


def _factorable_links(row_split: RowSplit, value_vars: Sequence[Variable]) -> dict[Variable, Link]:
    """Return the value variables that reach the likelihood through one product or gather and in no other way."""
    found: dict[Variable, Link] = {}
    for var in value_vars:
        links = [link for link in row_split.links if _is_plain(link.parameter, var)]
        if len(links) != 1 or not _fits(links[0], var) or links[0] in found.values():
            continue
        (rest,) = clone_replace([row_split.row_log_likelihood], {links[0].output: links[0].output.type()})
        # Its shape may still be asked for elsewhere; what counts is that no other path carries its value.
        if pt.grad(rest, var, return_disconnected="none", disconnected_inputs="ignore") is None:
            found[var] = links[0]
    return found


def _table_of(link: Link, row_inputs: Sequence[Variable]) -> int | None:
    """Return which row input the link's row is, if it is one as it stands: numbers, not an index."""
    for place, row in enumerate(row_inputs):
        if row.type.dtype == "float64" and row.type.ndim == 1 and not link.gathers and _is_plain(link.row, row):
            return place
    return None


def _is_plain(parameter: Variable, var: Variable) -> bool:
    """Return whether `parameter` is `var` itself, up to added axes of length one."""
    while parameter.owner is not None and isinstance(parameter.owner.op, DimShuffle):
        kept = [axis for axis in parameter.owner.op.new_order if axis != "x"]
        if kept != sorted(kept):
            return False
        parameter = parameter.owner.inputs[0]
    return parameter is var


def _fits(link: Link, var: Variable) -> bool:
    """Return whether the link is a vector times a vector or matrix, or a gather of entries or rows."""
    if link.gathers:
        return var.type.ndim in (1, 2) and link.row.type.ndim == 1
    return var.type.ndim in (1, 2) and link.row.type.ndim in (1, 2)
