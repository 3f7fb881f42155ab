"""Split a model's likelihood into one row: which inputs carry the row axis, and the graph of a single row.

The observed variables' log-probability graph is rebuilt for a table of one row, every row-length input replaced
by one of its rows. Whatever mixes rows then gives another sum than the model itself, which
`pymc_dp.rows.check` finds out on synthetic data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.allowed import refuse_unknown_operations
from pymc_dp.model.arrays import arrays_of, is_public, leaf_value, leaves_of
from pymc_dp.model.axes import (
    RowAxes,
    dims_of_other_axes,
    lengths_of_dims,
    protected_dims,
    row_axes_of_inputs,
    row_axis,
)
from pymc_dp.model.closures import refuse_tables_in_functions
from pymc_dp.model.one_row import Link, OneRow, SymbolicModel, symbolic
from pymc_dp.model.operations import refuse_unlisted
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.protected import has_rows, refuse_rows_in_starts
from pymc_dp.model.responses import Response, response_of


@dataclass(frozen=True, eq=False, repr=False)
class RowLeaf:
    """An input of the model that carries the row axis.

    Attributes
    ----------
    variable : Variable
        The input of the log-likelihood graph.
    source : Variable
        The model's own constant or shared variable that it stands for.
    axis : int
        Where its row axis is.
    row : Variable
        What stands for one row of it in the one-row graph.
    observed : tuple of Variable
        The random variables that are observed to have its values.
    """

    variable: Variable
    source: Variable
    axis: int
    row: Variable
    observed: tuple[Variable, ...]

    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of one row of the values."""
        shape = list(leaf_value(self.source).shape)
        del shape[self.axis]
        return tuple(shape)

    def rows(self) -> np.ndarray:
        """Return the values with the row axis first, C-contiguous. Confidential."""
        return np.ascontiguousarray(np.moveaxis(leaf_value(self.source), self.axis, 0))


@dataclass(frozen=True, eq=False, repr=False)
class RowSplit:
    """A likelihood split into rows.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    leaves : tuple of RowLeaf
        The inputs that carry the row axis.
    row_log_likelihood : Variable
        Scalar log-likelihood of one row, a function of the model's value variables and of ``leaf.row``.
    log_likelihood : Variable
        The model's own log-likelihood, summed over everything.
    links : tuple of Link
        Where parameters meet row data linearly.
    lengths : tuple of Variable
        The model's own variables for the number of rows.
    response : Response or None
        The distribution of the row's response, for one row, where it was asked for.
    """

    n_rows: int
    leaves: tuple[RowLeaf, ...]
    row_log_likelihood: Variable
    log_likelihood: Variable
    links: tuple[Link, ...]
    lengths: tuple[Variable, ...]
    response: Response | None = None


def split(model: pm.Model, rows: RowAxes, parameters: ParameterVector, *, with_response: bool = False) -> RowSplit:
    """Split the likelihood of `model` into rows.

    Parameters
    ----------
    model : pm.Model
        A model that `refuse_unsplittable` accepts.
    rows : RowAxes
        Where its rows are.
    parameters : ParameterVector
        Its parameters.
    with_response : bool
        Split the distribution of the response as well.

    Raises
    ------
    UnsupportedModel
        If its rows depend on each other, or anything that is taken as public could depend on rows; or the distribution
        function of the response is not known.
    """
    axes = row_axes_of_inputs(model, rows)
    _refuse_undeclared_arrays(model, axes, rows.n_rows, parameters)
    graphs = symbolic(model, {leaf: axis for leaf, axis in axes.items() if isinstance(leaf, Constant)})
    lengths = lengths_of_dims(model, protected_dims(model, rows))
    _refuse_parameters_of_rows(model, rows)
    _refuse_unlisted_log_probabilities(model, graphs)
    _refuse_rows_in_priors(model, graphs, axes, lengths, rows)
    starts = [start for start in model.rvs_to_initial_values.values() if isinstance(start, Variable)]
    refuse_rows_in_starts(model, rows, {rows.n_rows}, starts, dims_of_other_axes(model, rows.dim))
    log_likelihoods = graphs.log_likelihoods
    inputs = _inputs_of(log_likelihoods)
    sources = {leaf: graphs.sources.get(leaf, leaf) for leaf in inputs}
    leaves = tuple(_row_leaf(model, leaf, source, axes[source]) for leaf, source in sources.items() if source in axes)
    _refuse_other_tables(model, graphs, {leaf.variable for leaf in leaves}, rows)
    try:
        one_row = OneRow({leaf.variable: pt.expand_dims(leaf.row, leaf.axis) for leaf in leaves}, rows.n_rows, lengths)
        rebuilt = one_row.rebuild(log_likelihoods)
    except (TypeError, ValueError, NotImplementedError, AssertionError, IndexError) as error:
        raise UnsupportedModel(
            f"The likelihood cannot be rebuilt for a single row ({type(error).__name__}): some operation in it "
            "works on all rows at once. Only likelihoods that are a product over rows are supported."
        ) from None
    terms = []
    for rv, term in zip(model.observed_RVs, rebuilt, strict=True):
        axis = rows.observed[rv]
        if term.type.ndim <= axis or term.type.shape[axis] != 1:
            raise UnsupportedModel(
                f"The log-likelihood of {rv.name!r} has no value of its own for each row: its rows depend on each "
                "other (a time series, a Gaussian process, one multivariate draw over all rows?)."
            )
        terms.append(term.sum())
    row_log_likelihood = one_row.where_indices_hold(_total(terms))
    refuse_unknown_operations([row_log_likelihood], [leaf.row for leaf in leaves])
    response = _response_of_one_row(model, graphs, leaves, rows, lengths) if with_response else None
    return RowSplit(
        n_rows=rows.n_rows,
        leaves=leaves,
        row_log_likelihood=row_log_likelihood,
        log_likelihood=_total([term.sum() for term in log_likelihoods]),
        links=tuple(one_row.links),
        lengths=lengths,
        response=response,
    )


def _response_of_one_row(
    model: pm.Model, graphs: SymbolicModel, leaves: Sequence[RowLeaf], rows: RowAxes, lengths: Sequence[Variable]
) -> Response:
    """Return the distribution of one row's response; what is refused in its log-likelihood is refused there."""
    of_all = response_of(model, graphs.sources)
    name = f"The distribution function of {of_all.name!r}"
    refuse_unlisted({name: of_all.graphs}, derived=True)
    _refuse_tables_beside(
        model, [(model.observed_RVs[0], graph) for graph in of_all.graphs], {leaf.variable for leaf in leaves}, rows
    )
    one_row = OneRow({leaf.variable: pt.expand_dims(leaf.row, leaf.axis) for leaf in leaves}, rows.n_rows, lengths)
    try:
        rebuilt = [each.sum() for each in one_row.rebuild(of_all.graphs)]
    except (TypeError, ValueError, NotImplementedError, AssertionError, IndexError) as error:
        raise UnsupportedModel(f"{name} cannot be rebuilt for a single row ({type(error).__name__}).") from None
    up_to, below = (one_row.where_indices_hold(each) for each in rebuilt[:2])
    refuse_unknown_operations([up_to, below, *rebuilt[2:]], [leaf.row for leaf in leaves])
    mean = rebuilt[2] if of_all.mean is not None else None
    return replace(of_all, up_to=up_to, below=below, mean=mean)


def _total(terms: Sequence[Variable]) -> Variable:
    return pt.add(*terms) if len(terms) > 1 else terms[0]


def _refuse_unlisted_log_probabilities(model: pm.Model, graphs: SymbolicModel) -> None:
    """Refuse them in what PyMC, transforms and functions of the user's make of it."""
    finished = [*zip(model.observed_RVs, graphs.log_likelihoods, strict=True)]
    finished += [*zip(model.free_RVs, graphs.log_priors, strict=True)]
    finished += [*zip(model.free_RVs, model.replace_rvs_by_values(model.free_RVs), strict=True)]
    for rv, graph in finished:
        refuse_unlisted({f"The log-probability of {rv.name!r}": [graph]}, derived=True)


def _refuse_undeclared_arrays(
    model: pm.Model, axes: Mapping[Variable, int], n_rows: int, parameters: ParameterVector
) -> None:
    """Refuse arrays in the likelihood that are no tables of rows, have no parameter's shape and were not declared."""
    passes = (_lengths_of_parameters(model, axes, parameters) - {n_rows} | {1}).issuperset
    refuse_tables_in_functions(model, lambda shape: n_rows not in shape and passes(shape))
    for rv in model.observed_RVs:
        for array, shape in arrays_of([rv], model.free_RVs, axes.keys()):
            is_leaf_of_rows = array in axes or (n_rows in shape and array.owner is None)
            if not is_leaf_of_rows and not passes(shape):
                called = f"the array {array.name!r}" if array.name else "an array"
                raise UnsupportedModel(
                    f"The likelihood of {rv.name!r} holds {called}, which is neither a table of rows nor of the shape "
                    "of a parameter, so that it could be a part of the table. If it is public, such as nodes of a "
                    "quadrature, declare it: dp.public(array) in its place."
                )


def _lengths_of_parameters(model: pm.Model, axes: Mapping[Variable, int], parameters: ParameterVector) -> set[int]:
    """Return the lengths that arrays of a parameter's shape have.

    They are those of the axes of free variables, of the distributions' own parameters and of columns of row tables, and
    one more or less, as contrasts and cutpoints have.
    """
    shapes = list(parameters.shapes.values())
    for rv in model.observed_RVs:
        shapes += [each.type.shape for each in rv.owner.inputs if isinstance(each.type, TensorType)]
    for leaf, axis in axes.items():
        shapes.append(tuple(length for place, length in enumerate(leaf_value(leaf).shape) if place != axis))
    lengths = {length for shape in shapes for length in shape if length is not None}
    return lengths | {length + step for length in lengths if length > 1 for step in (-1, 1)}


def _inputs_of(graphs: Sequence[Variable]) -> list[Variable]:
    return [variable for variable in ancestors(list(graphs)) if variable.owner is None]


def _row_leaf(model: pm.Model, variable: Variable, source: Variable, axis: int) -> RowLeaf:
    shape = list(variable.type.shape)
    del shape[axis]
    row = pt.tensor(dtype=variable.type.dtype, shape=tuple(shape))
    observed = tuple(rv for rv in model.observed_RVs if model.rvs_to_values[rv] is source)
    return RowLeaf(variable, source, axis, row, observed)


def _refuse_parameters_of_rows(model: pm.Model, rows: RowAxes) -> None:
    for rv in model.free_RVs:
        dims = model.named_vars_to_dims.get(rv.name)
        shape = model.rvs_to_values[rv].type.shape
        per_row = rows.dim in dims if dims is not None and rows.dim is not None else rows.n_rows in shape
        if per_row:
            raise UnsupportedModel(
                f"The free variable {rv.name!r} has one entry for each row. A parameter of one person cannot be "
                "released: integrate it out, or share it between rows."
            )


def _refuse_rows_in_priors(
    model: pm.Model,
    graphs: SymbolicModel,
    axes: Mapping[Variable, int],
    lengths: Sequence[Variable],
    rows: RowAxes,
) -> None:
    """Refuse row data in priors and in what turns parameters into draws, and data of any kind in potentials."""
    row_inputs = {leaf for leaf in [*axes, *graphs.sources] if leaf not in graphs.sources.values()} | set(lengths)
    drawn = model.replace_rvs_by_values(model.free_RVs)
    others = dims_of_other_axes(model, rows.dim)
    for rv, logp, draw in zip(model.free_RVs, graphs.log_priors, drawn, strict=True):
        of_rows = not row_inputs.isdisjoint([*_inputs_of([logp, draw]), *leaves_of([logp, draw])])
        if of_rows or has_rows(model, rv, {rows.n_rows}, others):
            raise UnsupportedModel(
                f"The prior of {rv.name!r} or its transform depends on data that has one entry for each row, or on "
                "their number. Priors are not protected: they must not be computed from the data."
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


def _refuse_other_tables(model: pm.Model, graphs: SymbolicModel, replaced: set[Variable], rows: RowAxes) -> None:
    """Refuse any table of rows in the finished graphs that is not replaced by one of its rows.

    The graph of a random variable does not show what a function of the user's brings into its log-probability.
    """
    drawn = model.replace_rvs_by_values(model.free_RVs)
    terms = [
        *zip(model.observed_RVs, graphs.log_likelihoods, strict=True),
        *zip(model.free_RVs, graphs.log_priors, strict=True),
        *zip(model.free_RVs, drawn, strict=True),
        *zip(model.potentials, graphs.potentials, strict=True),
    ]
    _refuse_tables_beside(model, terms, replaced, rows)


def _refuse_tables_beside(
    model: pm.Model, terms: Sequence[tuple[Variable, Variable]], replaced: set[Variable], rows: RowAxes
) -> None:
    """Refuse tables of rows in finished graphs of random variables that are not replaced by one of their rows."""
    of_dims = set(model.dim_lengths.values())
    # An array in the inner graph of a random variable may be folded into a number before its log-probability exists.
    at_top = set(leaves_of(model.basic_RVs, inner=False))
    found = [(rv, leaf) for rv, graph in terms for leaf in leaves_of([graph])]
    found += [(rv, leaf) for rv in model.basic_RVs for leaf in leaves_of([rv]) if leaf not in at_top]
    for rv, leaf in found:
        if leaf not in replaced and leaf not in of_dims and row_axis(model, leaf, rows) is not None:
            raise UnsupportedModel(
                f"The log-probability of {rv.name!r} holds an array with as many entries as there are rows that is no "
                "parameter of the distribution, so that it would be taken as public. If a function of yours brings it "
                "in (logp=, dist=), pass it as a parameter: pm.CustomDist(name, mu, x, logp=lambda value, mu, x: ...). "
                "For an array that counts rows write pt.arange(x.shape[0]), with x a table of the rows."
            )
