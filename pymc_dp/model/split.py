"""Split a model's likelihood into rows: the inputs that have a row axis, and the graph of a single row.

The log-probability graph of the observed variables is rebuilt for a table of one row, with one row of every input that
has a row axis. If an operation mixes rows, the sum over rows differs from the model's likelihood, which
`pymc_dp.rows.check` detects on synthetic data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.allowed import refuse_unknown_operations
from pymc_dp.model.arrays import arrays_of, is_public, leaf_value, leaves_of
from pymc_dp.model.axes import RowAxes, data_of, shape_of_draws
from pymc_dp.model.closures import refuse_tables_in_functions
from pymc_dp.model.one_row import Link, OneRow, Response, SymbolicModel
from pymc_dp.model.operations import refuse_unlisted
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.protected import has_rows


@dataclass(frozen=True, eq=False, repr=False)
class RowLeaf:
    """An input of the model with a row axis."""

    variable: Variable  # the input of the log-likelihood graph
    source: Variable  # the model's constant or shared variable in place of which it stands
    axis: int  # its row axis
    row: Variable  # the input of the one-row graph that holds one of its rows
    observed: tuple[Variable, ...]  # the observed variables whose data it holds

    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of one row of the values."""
        return _without(leaf_value(self.source).shape, self.axis)

    def rows(self) -> np.ndarray:
        """Return the values with the row axis first, C-contiguous. Confidential."""
        return np.ascontiguousarray(np.moveaxis(leaf_value(self.source), self.axis, 0))


@dataclass(frozen=True, eq=False, repr=False)
class RowSplit:
    """A likelihood split into rows."""

    n_rows: int
    leaves: tuple[RowLeaf, ...]  # the inputs with a row axis
    #: Scalar log-likelihood of one row, a function of the model's value variables and of ``leaf.row``.
    row_log_likelihood: Variable
    log_likelihood: Variable  # the model's own log-likelihood, summed over all rows
    links: tuple[Link, ...]  # the operations that are linear in a parameter and the row
    lengths: tuple[Variable, ...]  # the symbolic variables that hold the number of rows
    response: Response | None = None  # the distribution of one row's response, if it was read


def split(rows: RowAxes, parameters: ParameterVector, *, with_response: bool = False) -> RowSplit:
    """Split the likelihood of a model that `refuse_unsplittable` accepts into rows."""
    model, axes = rows.model, rows.of_inputs
    _refuse_undeclared_arrays(rows, parameters)
    graphs = SymbolicModel(model, [leaf for leaf in axes if isinstance(leaf, Constant)])
    _refuse_parameters_of_rows(rows)
    for rv, graph in graphs.terms(potentials=False):  # made by PyMC, by transforms and by functions of the user's
        refuse_unlisted({f"The log-probability of {rv.name!r}": [graph]}, derived=True)
    _refuse_rows_in_priors(rows, graphs)
    leaves = []
    for leaf in _inputs_of(graphs.log_likelihoods):
        source = graphs.sources.get(leaf, leaf)
        if source in axes:
            row = pt.tensor(dtype=leaf.type.dtype, shape=_without(leaf.type.shape, axes[source]))
            observed = tuple(rv for rv in model.observed_RVs if data_of(model, rv) is source)
            leaves.append(RowLeaf(leaf, source, axes[source], row, observed))
    # A function of the user's may add tables to a log-probability that are not in the graph of the random variable.
    _refuse_other_tables(rows, graphs.terms(potentials=True), leaves)
    why = (
        ": some operation in it works on all rows at once. Only likelihoods that are a product over rows are supported"
    )
    one_row, rebuilt = _rebuilt(rows, leaves, graphs.log_likelihoods, "The likelihood", why)
    for rv, term in zip(model.observed_RVs, rebuilt, strict=True):
        axis = rows.observed[rv]
        if term.type.ndim <= axis or term.type.shape[axis] != 1:
            raise UnsupportedModel(
                f"The log-likelihood of {rv.name!r} has no value of its own for each row: its rows depend on each "
                "other (a time series, a Gaussian process, one multivariate draw over all rows?)."
            )
    row_log_likelihood = one_row.where_indices_hold(_total(rebuilt))
    refuse_unknown_operations([row_log_likelihood], [leaf.row for leaf in leaves])
    return RowSplit(
        n_rows=rows.n_rows,
        leaves=tuple(leaves),
        row_log_likelihood=row_log_likelihood,
        log_likelihood=_total(graphs.log_likelihoods),
        links=tuple(one_row.links),
        lengths=rows.length_variables,
        response=_response_of_one_row(rows, graphs, leaves) if with_response else None,
    )


def _rebuilt(
    rows: RowAxes, leaves: Sequence[RowLeaf], graphs: Sequence[Variable], name: str, why: str = ""
) -> tuple[OneRow, list[Variable]]:
    """Return the object that rebuilds graphs for one row, and these graphs; a refusal gives `name` and `why`."""
    one_row = OneRow({leaf.variable: pt.expand_dims(leaf.row, leaf.axis) for leaf in leaves}, rows)
    try:
        return one_row, one_row.rebuild(graphs)
    except (TypeError, ValueError, NotImplementedError, AssertionError, IndexError) as error:
        failed = f"{name} cannot be rebuilt for a single row ({type(error).__name__})"
    raise UnsupportedModel(f"{failed}{why}.")  # outside of the handler: an error in it would keep shapes of tables


def _response_of_one_row(rows: RowAxes, graphs: SymbolicModel, leaves: Sequence[RowLeaf]) -> Response:
    """Return the distribution of one row's response. Its graphs are checked like the log-likelihood of the row."""
    of_all = graphs.response()
    name = f"The distribution function of {of_all.name!r}"
    refuse_unlisted({name: of_all.graphs}, derived=True)
    _refuse_other_tables(rows, [(rows.model.observed_RVs[0], graph) for graph in of_all.graphs], leaves)
    one_row, rebuilt = _rebuilt(rows, leaves, of_all.graphs, name)
    up_to, below, *mean = [each.sum() for each in rebuilt]
    of_one_row = [one_row.where_indices_hold(up_to), one_row.where_indices_hold(below), *mean]
    refuse_unknown_operations(of_one_row, [leaf.row for leaf in leaves])
    return replace(of_all, graphs=of_one_row)


def _total(terms: Sequence[Variable]) -> Variable:
    sums = [term.sum() for term in terms]
    return pt.add(*sums) if len(sums) > 1 else sums[0]


def _inputs_of(graphs: Sequence[Variable]) -> list[Variable]:
    return [variable for variable in ancestors(list(graphs)) if variable.owner is None]


def _without[Length](shape: Sequence[Length], axis: int) -> tuple[Length, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _refuse_undeclared_arrays(rows: RowAxes, parameters: ParameterVector) -> None:
    """Refuse arrays in the likelihood that are no tables of rows, have no parameter's shape and were not declared.

    Allowed lengths are those of axes of free variables, of the distributions' parameters and of columns of row tables,
    and one more or less, as for contrasts and cutpoints.
    """
    model, n_rows, axes = rows.model, rows.n_rows, rows.of_inputs
    shapes = [*parameters.shapes.values(), *(_without(leaf_value(leaf).shape, axis) for leaf, axis in axes.items())]
    for rv in model.observed_RVs:
        shapes += [each.type.shape for each in rv.owner.inputs if isinstance(each.type, TensorType)]
    lengths = {length for shape in shapes for length in shape if length is not None}
    lengths |= {length + step for length in lengths if length > 1 for step in (-1, 1)}
    passes = (lengths - {n_rows} | {1}).issuperset
    refuse_tables_in_functions(model, lambda shape: n_rows not in shape and passes(shape))
    for rv in model.observed_RVs:
        for array, shape in arrays_of([rv], model.free_RVs, axes.keys()):
            is_leaf_of_rows = array in axes or (n_rows in shape and array.owner is None)
            if not is_leaf_of_rows and not passes(shape):
                called = f"the array {array.name!r}" if array.name else "an array"
                raise UnsupportedModel(
                    f"The likelihood of {rv.name!r} holds {called}, which is neither a table of rows nor of the shape "
                    "of a parameter, so that it could be a part of the table. A table of other rows than the observed "
                    "ones cannot be protected: let every input and outcome have all rows, and write censored ones with "
                    "pm.Censored. If the array is public, such as nodes of a quadrature, declare it: dp.public(array) "
                    "in its place."
                )


def _refuse_parameters_of_rows(rows: RowAxes) -> None:
    for rv in rows.model.free_RVs:
        dims = rows.model.named_vars_to_dims.get(rv.name) or ()
        of_draws, of_values = shape_of_draws(rows.model, rv), rows.model.rvs_to_values[rv].type.shape
        lengths = [length for length, dim in zip_longest(of_draws, dims) if dim not in rows.other_dims]
        lengths += of_values if not dims or rows.dim is None else ()
        if rows.n_rows in lengths or (rows.dim is not None and rows.dim in dims):
            raise UnsupportedModel(
                f"The free variable {rv.name!r} has one entry for each row. A parameter of one person cannot be "
                "released: integrate it out, or share it between rows. (If rows are along another axis of the observed "
                "variables than the first, name its dim with unit=.)"
            )


def _refuse_rows_in_priors(rows: RowAxes, graphs: SymbolicModel) -> None:
    """Refuse rows in priors and in the transforms of free variables, and data of any kind in potentials."""
    model, constants = rows.model, set(graphs.sources.values())
    row_inputs = {*rows.of_inputs, *graphs.sources} - constants | set(rows.length_variables)
    for rv, logp, draw in zip(model.free_RVs, graphs.log_priors, graphs.drawn, strict=True):
        of_rows = not row_inputs.isdisjoint([*_inputs_of([logp, draw]), *leaves_of([logp, draw])])
        # Some log-probabilities do not depend on the shape of their variable, which is published with its draws.
        of_rows |= not {*rows.of_inputs, *rows.length_variables}.isdisjoint(leaves_of([rv]))
        if of_rows or has_rows(model, rv, {rows.n_rows}, rows.other_dims):
            raise UnsupportedModel(
                f"The prior of {rv.name!r} or its transform depends on data that has one entry for each row, or on "
                "their number. Priors are not protected: they must not be computed from the data. A dim that has its "
                "length from such data needs labels of its own: pm.Model(coords={'column': ['age', 'income']})."
            )
    for potential, graph in zip(model.potentials, graphs.potentials, strict=True):
        leaves = leaves_of([graph])
        data = any(isinstance(leaf, SharedVariable) and not is_public(leaf) for leaf in leaves)
        if data or not row_inputs.isdisjoint([*leaves, *_inputs_of([graph])]) or any(arrays_of([potential, graph])):
            raise UnsupportedModel(
                f"The potential {potential.name!r} depends on a table of data. Potentials are not protected. "
                "Write it as an observed variable (for example a pm.CustomDist), so that it is known to be a "
                "sum over rows. An array that is public is declared: dp.public(array)."
            )


def _refuse_other_tables(rows: RowAxes, terms: Sequence[tuple[Variable, Variable]], leaves: Sequence[RowLeaf]) -> None:
    """Refuse tables of rows in the graphs of random variables that are not replaced by one of their rows."""
    model = rows.model
    passed = {*model.dim_lengths.values(), *(leaf.variable for leaf in leaves)}
    # An array in the inner graph of a random variable may be constant-folded before its log-probability is derived.
    at_top = set(leaves_of(model.basic_RVs, inner=False))
    found = [(rv, leaf) for rv, graph in terms for leaf in leaves_of([graph])]
    found += [(rv, leaf) for rv in model.basic_RVs for leaf in leaves_of([rv]) if leaf not in at_top]
    for rv, leaf in found:
        if leaf not in passed and rows.axis_of(leaf) is not None:
            raise UnsupportedModel(
                f"The log-probability of {rv.name!r} holds an array with as many entries as there are rows that is no "
                "parameter of the distribution, so that it would be taken as public. If a function of yours brings it "
                "in (logp=, dist=), pass it as a parameter: pm.CustomDist(name, mu, x, logp=lambda value, mu, x: ...). "
                "For an array that counts rows write pt.arange(x.shape[0]), with x a table of the rows."
            )
