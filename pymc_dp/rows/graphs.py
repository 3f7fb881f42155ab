"""The graph of one row and its derivatives, in factors: engines compile it.

A derivative with respect to parameters that meet row data in a single product or gather is kept in two factors, the
row's vector (or index) and its slopes, so that no (rows, parameters) array is made for wide or many-grouped models.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.utils import MethodNotDefined
from pytensor.scalar.math import TriGamma
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import TensorType

from pymc_dp.compiling import rewrite_pregrad
from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.allowed import refuse_unknown_operations
from pymc_dp.model.one_row import Link
from pymc_dp.model.split import RowSplit

#: How the contribution to one value variable is stored. The numbers are those of `Part.kind`. Compiled functions in
#: Numba's cache on disk know them by value.
DENSE, PRODUCT, GATHER = 0, 1, 2


@dataclass(frozen=True)
class Part:
    """How contributions to the gradient with respect to one value variable are stored.

    `DENSE`: the slopes themselves. `PRODUCT`: the outer product of the unit's vector, of length `size`, and its slopes;
    `factor` says which of the vectors. `GATHER`: the slopes, at the one of `size` groups that the unit's index names,
    nothing if it names none; `factor` says which of the indices. The slopes are rows ``first`` to ``first + k``: none
    if the likelihood does not depend on the variable.
    """

    kind: int
    first: int
    k: int
    size: int = 1
    factor: int = 0


class RowGraphs:
    """Log-likelihood of one row, its derivatives, and their inputs.

    Of value variables, the model's unconstrained parameters in the order in which their values are passed, and their
    shapes. Second derivatives are derived with ``second_order=True``.

    Attributes
    ----------
    rows, row_shapes : list
        What stands for one row of each input, and its shape.
    value_variables, directions : list of Variable
        The parameters, and a direction for each; all of known shapes.
    links : list of Link or None
        For each value variable, where it meets the row, if its derivatives are kept in factors.
    cuts, direction_cuts : list of Variable or None
        What stands in the derivatives for ``link.output``, and for the same with the direction in the variable's place.
    parts : list of Part
        How derivatives with respect to each value variable are stored.
    tables : list of int
        Which inputs are vectors of outer products.
    log_likelihood : Variable
        A scalar.
    slopes : list of Variable
        Of the parts that have any, in order.
    along : list of Variable
        Slope and negative second derivative along the directions.
    curvatures : list of Variable
        Negative second derivatives times the directions, one array for each of `slopes`.
    response : list of Variable
        The distribution of the row's response, if it was read: see `pymc_dp.model.one_row.Response.graphs`.

    Raises
    ------
    UnsupportedModel
        If PyTensor knows no second derivative, or some operation of a derivative may not see rows.
    """

    def __init__(
        self,
        row_split: RowSplit,
        value_variables: Sequence[Variable],
        shapes: Sequence[tuple[int, ...]],
        *,
        second_order: bool = False,
    ) -> None:
        self.rows = [leaf.row for leaf in row_split.leaves]
        self.row_shapes = [leaf.row_shape() for leaf in row_split.leaves]
        log_likelihood, self.value_variables, links, self.response = _with_shapes(row_split, value_variables, shapes)
        found = self._factorable(log_likelihood, links)
        self.links = [found.get(var) for var in self.value_variables]
        self.cuts = [None if link is None else link.output.type() for link in self.links]
        self.directions = [var.type() for var in self.value_variables]
        self.direction_cuts = [None if link is None else link.output.type() for link in self.links]
        (self.log_likelihood,) = rewrite_pregrad(clone_replace([log_likelihood], self.replacements(self.cuts)))
        self._with_respect_to = [
            var if cut is None else cut for var, cut in zip(self.value_variables, self.cuts, strict=True)
        ]
        slopes = self._derivatives(self.log_likelihood)
        self.slopes = [slope for slope in slopes if slope is not None]
        self.tables: list[int] = []
        self.parts = self._parts(slopes)
        seen = [*self.rows, *[cut for cut in [*self.cuts, *self.direction_cuts] if cut is not None]]
        refuse_unknown_operations([self.log_likelihood, *self.slopes], seen)
        self.along: list[Variable] = []
        self.curvatures: list[Variable] = []
        if second_order:
            try:
                self._derive_second_order(slopes)
            except (MethodNotDefined, NotImplementedError) as error:
                raise UnsupportedModel(
                    "A second derivative of the likelihood is not known to PyTensor. Use a sampler that takes none, "
                    "such as DPHMC."
                ) from error
            refuse_unknown_operations([*self.along, *self.curvatures], seen)

    def replacements(self, cuts: Sequence[Variable | None]) -> dict[Variable, Variable]:
        """Return the variable that stands for the output of each link."""
        return {link.output: cut for link, cut in zip(self.links, cuts, strict=True) if link and cut is not None}

    def linked(self, values: Sequence[Variable]) -> list[Variable]:
        """Return the outputs of the links as functions of rows and `values`, which stand for the value variables."""
        return [
            clone_replace([link.output], {var: value})[0]
            for link, var, value in zip(self.links, self.value_variables, values, strict=True)
            if link is not None
        ]

    @property
    def indices(self) -> list[Variable]:
        """The indices of parts that are gathered, each of shape (1,)."""
        return [link.row for link in self.links if link is not None and link.gathers]

    def _derivatives(self, output: Variable) -> list[Variable | None]:
        """Return derivatives by value variable; None where there is none."""
        found: list[Variable | None] = pt.grad(
            output, self._with_respect_to, disconnected_inputs="ignore", return_disconnected="none"
        )
        return found

    def _derive_second_order(self, slopes: Sequence[Variable | None]) -> None:
        ways = [way if cut is None else cut for way, cut in zip(self.directions, self.direction_cuts, strict=True)]
        slope = _inner_product(slopes, ways)
        curvatures = _with_series(self._derivatives(-slope))
        self.along = [slope, _inner_product(curvatures, ways)]
        self.curvatures = [
            var.zeros_like() if curvature is None else curvature
            for var, first, curvature in zip(self._with_respect_to, slopes, curvatures, strict=True)
            if first is not None
        ]

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
            # Its shape may still be asked for elsewhere; what counts is that no other path carries its value.
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


def _with_shapes(
    row_split: RowSplit, value_variables: Sequence[Variable], shapes: Sequence[tuple[int, ...]]
) -> tuple[Variable, list[Variable], list[Link], list[Variable]]:
    """Return the graphs with parameters of known shapes: whatever follows from those alone is known too."""
    shaped = {
        # Named afterwards: pt.tensor takes a name such as "half" or "1|g" for a dtype.
        var: TensorType(var.type.dtype, shape)(name=var.name)
        for var, shape in zip(value_variables, shapes, strict=True)
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


def _with_series(curvatures: Sequence[Variable | None]) -> list[Variable | None]:
    """Return the graphs with trigamma functions written out, for which PyTensor calls Python once a row."""
    known = [curvature for curvature in curvatures if curvature is not None]
    called = [
        node.outputs[0]
        for node in FunctionGraph(outputs=known, clone=False).toposort()
        if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, TriGamma)
    ]
    written = iter(clone_replace(known, {found: trigamma(found.owner.inputs[0]) for found in called}))
    return [None if curvature is None else next(written) for curvature in curvatures]


def trigamma(x: Variable) -> Variable:
    """Return the second derivative of the logarithm of the gamma function at `x` above 0.

    By recurrence, ten steps up, and the asymptotic series there: Abramowitz and Stegun (1964), 6.4.6 and 6.4.12.
    Elsewhere, where no likelihood asks for it, it is another number, or none.
    """
    far = 1.0 / (x + 10.0)
    square, series = far * far, pt.constant(0.0)
    for coefficient in (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6):  # Bernoulli's numbers
        series = (series + coefficient) * square
    return pt.add(*[1.0 / (x + step) ** 2 for step in range(10)], far * (1.0 + 0.5 * far + series))


def _inner_product(left: Sequence[Variable | None], right: Sequence[Variable]) -> Variable:
    terms = [(one * other).sum() for one, other in zip(left, right, strict=True) if one is not None]
    return pt.add(*terms, pt.constant(0.0)) if terms else pt.constant(0.0)


def _table_of(link: Link, rows: Sequence[Variable]) -> int | None:
    """Return which input the link's row is, if it is a vector of floats as it stands."""
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
