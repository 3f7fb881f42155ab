"""The graph of one row and its gradient, in factors. The engine compiles them.

If a parameter and the row have a single product or gather, the derivative is stored as two factors, the row's vector or
index and its slopes, so that models with many columns or groups need no array of shape (rows, parameters).
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.type import TensorType

from pymc_dp.compiling import rewrite_pregrad
from pymc_dp.model.allowed import refuse_unknown_operations
from pymc_dp.model.one_row import Link
from pymc_dp.model.view import ModelView

#: Values of `Part.kind`, the storage of the derivatives of one value variable. Compiled functions in Numba's cache on
#: disk hold these numbers.
DENSE, PRODUCT, GATHER = 0, 1, 2


@dataclass(frozen=True)
class Part:
    """The storage of derivatives with respect to one value variable.

    `DENSE`: the slopes themselves. `PRODUCT`: the outer product of the unit's vector, of length `size`, and its slopes;
    `factor` is the number of the vector. `GATHER`: the slopes, at the group, out of `size`, that the unit's index
    selects, and zero if the index is out of range; `factor` is the number of the index. The slopes are rows ``first``
    to ``first + k``: none if the likelihood does not depend on the variable.
    """

    kind: int
    first: int
    k: int
    size: int = 1
    factor: int = 0


class RowGraphs:
    """Log-likelihood of one row, its gradient, and their inputs.

    An operation of a derivative that must not see rows raises `UnsupportedModel`.

    Attributes
    ----------
    rows, row_shapes : list
        The symbolic variable for one row of each input, and its shape.
    value_variables : list of Variable
        The model's unconstrained parameters, of known shapes, in the order in which their values are passed.
    links : list of Link or None
        For each value variable, its link to the row, if its derivatives are stored in factors.
    cuts : list of Variable or None
        The input in place of each ``link.output``: the graph is cut there for differentiation.
    parts : list of Part
        The storage of the derivatives with respect to each value variable.
    tables : list of int
        The places of inputs that are vectors of outer products.
    log_likelihood : Variable
        A scalar.
    slopes : list of Variable
        The slopes of the parts that have any, in order.
    response : list of Variable
        The distribution of the row's response, if it was read: see `pymc_dp.model.one_row.Response.graphs`.
    """

    def __init__(self, view: ModelView) -> None:
        row_split = view.row_split
        self.rows = [leaf.row for leaf in row_split.leaves]
        self.row_shapes = [leaf.row_shape() for leaf in row_split.leaves]
        log_likelihood, self.value_variables, links, self.response = _with_shapes(view)
        found = self._factorable(log_likelihood, links)
        self.links = [found.get(var) for var in self.value_variables]
        self.cuts = [None if link is None else link.output.type() for link in self.links]
        (self.log_likelihood,) = rewrite_pregrad(clone_replace([log_likelihood], self.replacements))
        derived = [var if cut is None else cut for var, cut in zip(self.value_variables, self.cuts, strict=True)]
        slopes: list[Variable | None] = pt.grad(
            self.log_likelihood, derived, disconnected_inputs="ignore", return_disconnected="none"
        )
        self.slopes = [slope for slope in slopes if slope is not None]
        self.tables: list[int] = []
        self.parts = self._parts(slopes)
        seen = [*self.rows, *self.replacements.values()]
        refuse_unknown_operations([self.log_likelihood, *self.slopes], seen, derived=True)

    @property
    def replacements(self) -> dict[Variable, Variable]:
        """The input that replaces the output of each link."""
        return {link.output: cut for link, cut in zip(self.links, self.cuts, strict=True) if link and cut is not None}

    @property
    def indices(self) -> list[Variable]:
        """The indices of parts that are gathered, each of shape (1,)."""
        return [link.row for link in self.links if link is not None and link.gathers]

    @functools.cached_property
    def same_slopes(self) -> list[int]:
        """For each value variable the first one with identical slopes for every row, according to the graphs.

        Variables with products are left out: their slopes are not those of single entries.
        """
        slopes = dict(zip((number for number, part in enumerate(self.parts) if part.k), self.slopes, strict=True))
        numbers = [number for number in slopes if self.parts[number].kind != PRODUCT]
        plain = [slopes[number].sum() if self.parts[number].k == 1 else slopes[number].ravel() for number in numbers]
        graph = FunctionGraph(outputs=rewrite_graph(plain, include=("canonicalize",), clone=True), clone=False)
        MergeOptimizer().rewrite(graph)
        found, firsts = list(range(len(self.parts))), dict[Variable, int]()
        for number, slope in zip(numbers, graph.outputs, strict=True):
            found[number] = firsts.setdefault(slope, number)
        return found

    def _parts(self, slopes: Sequence[Variable | None]) -> list[Part]:
        parts, first, n_indices = [], 0, 0
        for var, link, slope in zip(self.value_variables, self.links, slopes, strict=True):
            size = math.prod(var.type.shape)
            kind, length, factor = DENSE, 1, 0
            if link is not None and link.gathers:
                kind, length, factor = GATHER, var.type.shape[0], n_indices
                n_indices += 1
            elif link is not None:
                table = _table_of(link, self.rows)
                if table is not None:
                    self.tables += [] if table in self.tables else [table]
                    kind, length, factor = PRODUCT, var.type.shape[0], self.tables.index(table)
            k = 0 if slope is None else size // length
            parts.append(Part(kind, first, k, length, factor))
            first += k
        return parts

    def _factorable(self, log_likelihood: Variable, links: Sequence[Link]) -> dict[Variable, Link]:
        """Return the value variables that reach the likelihood through one product or gather and in no other way."""
        found: dict[Variable, Link] = {}
        for var in self.value_variables:
            of_var = [link for link in links if _is_plain(link.parameter, var)]
            if len(of_var) != 1 or of_var[0] in found.values() or not self._fits(of_var[0], var):
                continue
            (rest,) = clone_replace([log_likelihood], {of_var[0].output: of_var[0].output.type()})
            # Other paths may use the shape of the variable, but not its value.
            if pt.grad(rest, var, return_disconnected="none", disconnected_inputs="ignore") is None:
                found[var] = of_var[0]
        return found

    def _fits(self, link: Link, var: Variable) -> bool:
        """Return whether the link is a whole input times a vector or matrix, or a gather of entries or rows."""
        if var.type.ndim not in (1, 2) or 0 in var.type.shape:
            return False
        if link.gathers:
            return bool(link.row.type.shape == (1,))
        table = _table_of(link, self.rows)
        return table is not None and self.row_shapes[table] == var.type.shape[:1]


def _with_shapes(view: ModelView) -> tuple[Variable, list[Variable], list[Link], list[Variable]]:
    """Return the graphs with parameters of known shapes, so that PyTensor infers further shapes."""
    row_split, parameters = view.row_split, view.parameters
    shaped = {
        # Named afterwards: pt.tensor takes a name such as "half" or "1|g" for a dtype.
        var: TensorType(var.type.dtype, parameters.shapes[name])(name=var.name)
        for var, name in zip(view.value_variables, parameters.names, strict=True)
    }
    ends = [end for link in row_split.links for end in (link.output, link.parameter, link.row)]
    response = [] if row_split.response is None else row_split.response.graphs
    graphs = [row_split.row_log_likelihood, *response, *ends]
    log_likelihood, *cloned = clone_replace(graphs, shaped, rebuild_strict=False)
    response, cloned = cloned[: len(response)], cloned[len(response) :]
    links = [
        Link(output, parameter, row, link.gathers)
        for link, (output, parameter, row) in zip(row_split.links, itertools.batched(cloned, 3), strict=True)
    ]
    return log_likelihood, list(shaped.values()), links, response


def _table_of(link: Link, rows: Sequence[Variable]) -> int | None:
    """Return the place of the input that is the link's row, if that is an unchanged vector of floats."""
    for place, row in enumerate(rows):
        if row.type.dtype == "float64" and row.type.ndim == 1 and _is_plain(link.row, row):
            return place
    return None


def _is_plain(expression: Variable, var: Variable) -> bool:
    """Return whether `expression` is `var` itself, up to added axes of length one."""
    while expression.owner is not None and isinstance(expression.owner.op, DimShuffle):
        kept = [axis for axis in expression.owner.op.new_order if axis != "x"]
        if kept != sorted(kept):
            return False
        expression = expression.owner.inputs[0]
    return expression is var
