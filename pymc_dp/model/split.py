"""Split a model's likelihood into one row: which inputs carry the row axis, and the graph of a single row.

The observed variables' log-probability graph is rebuilt for a table of one row, every row-length input replaced
by one of its rows. Whatever mixes rows then gives another sum than the model itself, which
`pymc_dp.rows.check` finds out on synthetic data.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_dp.compiling import INTERPRETED
from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.allowed import refuse_unknown_operations
from pymc_dp.model.arrays import arrays_of, is_public, leaf_value, leaves_of
from pymc_dp.model.closures import refuse_tables_in_functions
from pymc_dp.model.minibatches import refuse_minibatches
from pymc_dp.model.one_row import Link, OneRow
from pymc_dp.model.operations import refuse_unlisted
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.symbolic import SymbolicModel, symbolic


@dataclass(frozen=True, eq=False)
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
    """

    variable: Variable
    source: Variable
    axis: int
    row: Variable

    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of one row of the values."""
        shape = list(leaf_value(self.source).shape)
        del shape[self.axis]
        return tuple(shape)

    def rows(self) -> np.ndarray:
        """Return the values with the row axis first, C-contiguous. Confidential."""
        return np.ascontiguousarray(np.moveaxis(leaf_value(self.source), self.axis, 0))


@dataclass(frozen=True, eq=False)
class RowSplit:
    """A likelihood split into rows.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    dim : str or None
        The dim that counts them, if it has a name.
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
    """

    n_rows: int
    dim: str | None
    leaves: tuple[RowLeaf, ...]
    row_log_likelihood: Variable
    log_likelihood: Variable
    links: tuple[Link, ...]
    lengths: tuple[Variable, ...]


def split(model: pm.Model, unit: str | None = None) -> RowSplit:
    """Split the likelihood of `model` into rows.

    Parameters
    ----------
    model : pm.Model
        A model with observed variables.
    unit : str, optional
        Name of the dim that counts rows. Default: the first axis of the observed variables.

    Raises
    ------
    UnsupportedModel
        If the model has no observed variables or missing values, or its rows cannot be told apart.
    """
    _refuse_unsplittable(model)
    observed_axes, n_rows, unit = _row_axes_of_observed(model, unit)
    of_observed = {model.rvs_to_values[rv]: axis for rv, axis in observed_axes.items()}
    axes = of_observed | _row_axes(model, [*model.basic_RVs, *model.potentials], n_rows, unit)
    _refuse_undeclared_arrays(model, axes, n_rows)
    graphs = symbolic(model, {leaf: axis for leaf, axis in axes.items() if isinstance(leaf, Constant)})
    lengths = _lengths(model, protected_dims(model, unit))
    _refuse_parameters_of_rows(model, n_rows, unit)
    _refuse_unlisted_log_probabilities(model, graphs)
    _refuse_rows_in_priors(model, graphs, axes, lengths, n_rows, unit)
    starts = [start for start in model.rvs_to_initial_values.values() if isinstance(start, Variable)]
    refuse_rows_in_starts(model, unit, {n_rows}, starts)
    log_likelihoods = graphs.log_likelihoods
    inputs = _inputs_of(log_likelihoods)
    leaves = tuple(
        _row_leaf(leaf, graphs.sources.get(leaf, leaf), axes[graphs.sources.get(leaf, leaf)])
        for leaf in inputs
        if graphs.sources.get(leaf, leaf) in axes
    )
    _refuse_other_tables(model, graphs, {leaf.variable for leaf in leaves}, n_rows, unit)
    try:
        one_row = OneRow({leaf.variable: pt.expand_dims(leaf.row, leaf.axis) for leaf in leaves}, n_rows, lengths)
        rebuilt = one_row.rebuild(log_likelihoods)
    except (TypeError, ValueError, NotImplementedError, AssertionError, IndexError) as error:
        raise UnsupportedModel(
            f"The likelihood cannot be rebuilt for a single row ({type(error).__name__}): some operation in it "
            "works on all rows at once. Only likelihoods that are a product over rows are supported."
        ) from None
    terms = []
    for rv, term in zip(model.observed_RVs, rebuilt, strict=True):
        axis = observed_axes[rv]
        if term.type.ndim <= axis or term.type.shape[axis] != 1:
            raise UnsupportedModel(
                f"The log-likelihood of {rv.name!r} has no value of its own for each row: its rows depend on each "
                "other (a time series, a Gaussian process, one multivariate draw over all rows?)."
            )
        terms.append(term.sum())
    row_log_likelihood = one_row.where_indices_hold(_total(terms))
    refuse_unknown_operations([row_log_likelihood], [leaf.row for leaf in leaves])
    return RowSplit(
        n_rows=n_rows,
        dim=unit,
        leaves=leaves,
        row_log_likelihood=row_log_likelihood,
        log_likelihood=_total([term.sum() for term in log_likelihoods]),
        links=tuple(one_row.links),
        lengths=lengths,
    )


def number_of_rows(model: pm.Model, unit: str | None = None) -> int:
    """Return how many rows the observed variables have, which `split` finds as well.

    Raises
    ------
    UnsupportedModel
        As for `split`, if that follows from the model's variables alone.
    """
    _refuse_unsplittable(model)
    return _row_axes_of_observed(model, unit)[1]


def _total(terms: Sequence[Variable]) -> Variable:
    return pt.add(*terms) if len(terms) > 1 else terms[0]


def protected_dims(model: pm.Model, unit: str | None = None, lengths: Collection[int] = ()) -> set[str]:
    """Return the dims that count rows or units: their lengths and labels are those of people.

    They are the dims of the row axes of all tables, and any dim as long as the rows or as one of `lengths`, unless it
    belongs to another axis of a table of rows (features may be as many as rows).

    Parameters
    ----------
    model : pm.Model
        The model.
    unit : str, optional
        As for `split`.
    lengths : collection of int
        Further protected lengths: those of units of several rows.
    """
    observed_axes, n_rows, unit = _row_axes_of_observed(model, unit)
    found, others = ({unit} if unit is not None else set()), _dims_of_other_axes(model, unit)
    wanted = {n_rows} | set(lengths)
    for rv, axis in observed_axes.items():
        dims = model.named_vars_to_dims.get(rv.name)
        found |= {dims[axis]} if dims is not None else set()
    for name, length in model.dim_lengths.items():
        if name not in others and _length_of_dim(model, name, length) in wanted:
            found.add(name)
    return {name for name in found if name is not None}


def _dims_of_other_axes(model: pm.Model, unit: str | None) -> set[str]:
    """Return the dims of the axes other than that of the rows of all variables that have it by name."""
    found: set[str] = set()
    for dims in model.named_vars_to_dims.values():
        if unit is not None and unit in dims:
            found |= {name for name in dims if name not in (unit, None)}
    return found


def _length_of_dim(model: pm.Model, name: str, length: Variable) -> int:
    """Return the length of a dim, from its labels, its variable or the table that has it."""
    labels = model.coords.get(name)
    if labels is not None:
        return len(labels)
    with pytensor.config.change_flags(mode=INTERPRETED):  # called once: not worth compiling
        return int(length.eval())


def _lengths(model: pm.Model, dims: Iterable[str]) -> tuple[Variable, ...]:
    """Return the model's variables for the lengths of `dims` that are inputs of its graphs."""
    return tuple(model.dim_lengths[name] for name in sorted(dims) if name in model.dim_lengths)


def protected_inputs(model: pm.Model, unit: str | None, lengths: Collection[int]) -> set[Variable]:
    """Return the inputs of anything in the model that hold rows, or the number of rows or units.

    Parameters
    ----------
    model : pm.Model
        The model.
    unit : str, optional
        As for `split`.
    lengths : collection of int
        Further protected lengths: those of units of several rows.

    Raises
    ------
    UnsupportedModel
        As for `split`.
    """
    _refuse_unsplittable(model)
    observed_axes, n_rows, unit = _row_axes_of_observed(model, unit)
    found = {model.rvs_to_values[rv] for rv in observed_axes}
    found |= set(_lengths(model, protected_dims(model, unit, lengths)))
    of_dims = set(model.dim_lengths.values())
    graphs = model.replace_rvs_by_values([*model.basic_RVs, *model.deterministics, *model.potentials])
    for leaf in leaves_of(graphs):
        if leaf in of_dims:
            continue
        if _row_axis(model, leaf, n_rows, unit) is not None or not set(lengths).isdisjoint(leaf_value(leaf).shape):
            found.add(leaf)
    return found


def refuse_tables_of_units(model: pm.Model, lengths: Collection[int]) -> None:
    """Refuse data and parameters with one entry for each unit, where a unit has several rows.

    Their entries belong to one unit each, but they would be taken as public.

    Parameters
    ----------
    model : pm.Model
        The model.
    lengths : collection of int
        How many units there are, and how many an index could name.

    Raises
    ------
    UnsupportedModel
        If a free variable or an input of the model, in a function of the user's too, has an axis of such a length.
    """
    refuse_tables_in_functions(model, set(lengths).isdisjoint)
    shapes = ParameterVector(model).shapes
    for rv in model.free_RVs:
        if not set(lengths).isdisjoint(shapes[model.rvs_to_values[rv].name]):
            raise UnsupportedModel(
                f"The free variable {rv.name!r} has one entry for each unit. A parameter of one person cannot be "
                "released: integrate it out, or share it between units."
            )
    graphs = symbolic(model, {})
    finished = [*graphs.log_likelihoods, *graphs.log_priors, *graphs.potentials]
    drawn = model.replace_rvs_by_values(model.free_RVs)
    for leaf in leaves_of([*model.basic_RVs, *model.potentials, *model.deterministics, *finished, *drawn]):
        if not set(lengths).isdisjoint(leaf_value(leaf).shape):
            raise UnsupportedModel(
                "An input of the model has one entry for each unit, and would be taken as public. Repeat it for "
                "each row of the unit before the model (values[unit_index])."
            )


def refuse_missing_values(row_split: RowSplit) -> None:
    """Refuse tables with missing entries; which entries are missing is taken as public.

    Raises
    ------
    UnsupportedModel
        If any entry of the data is NaN.
    """
    for leaf in row_split.leaves:
        value = leaf_value(leaf.source)
        # The least entry of an array with a NaN in it is NaN: no array of truth values as long as the table.
        if value.dtype.kind == "f" and value.size and np.isnan(value.min()):
            where = f" in {leaf.source.name!r}" if leaf.source.name else ""
            raise UnsupportedModel(
                f"The data have missing values (NaN){where}. Drop or impute them before modelling: imputing them "
                "inside the model would make every missing entry a parameter of one person."
            )


def _refuse_unsplittable(model: pm.Model) -> None:
    if not model.observed_RVs:
        raise UnsupportedModel("The model has no observed variable: pass the data as observed=...")
    refuse_minibatches(model)
    _refuse_unlisted(model)
    free = {rv.name for rv in model.free_RVs}
    for rv in model.observed_RVs:
        stem = rv.name.removesuffix("_observed")
        if stem != rv.name and f"{stem}_unobserved" in free:
            raise UnsupportedModel(
                f"{stem!r} has missing observed values, which PyMC would impute with one parameter each. "
                "Drop or impute them before modelling."
            )
    for rv in model.free_RVs:
        if model.rvs_to_values[rv].dtype.startswith(("int", "uint", "bool")):
            raise UnsupportedModel(
                f"The free variable {rv.name!r} is discrete, and gradients need continuous ones. Sum it out of "
                "the likelihood (for example with pm.Mixture)."
            )


def _refuse_unlisted(model: pm.Model) -> None:
    """Refuse operations and types that are not on the list, anywhere in the model as it was written."""
    graphs = {f"{each.name!r}": [each] for each in [*model.basic_RVs, *model.potentials, *model.deterministics]}
    graphs |= {f"The data of {rv.name!r}": [value] for rv, value in model.rvs_to_values.items()}
    for rv, start in model.rvs_to_initial_values.items():
        graphs[f"The initval of {rv.name!r}"] = [start] if isinstance(start, Variable) else []
    refuse_unlisted(graphs)


def _refuse_unlisted_log_probabilities(model: pm.Model, graphs: SymbolicModel) -> None:
    """Refuse them in what PyMC, transforms and functions of the user's make of it."""
    finished = [*zip(model.observed_RVs, graphs.log_likelihoods, strict=True)]
    finished += [*zip(model.free_RVs, graphs.log_priors, strict=True)]
    finished += [*zip(model.free_RVs, model.replace_rvs_by_values(model.free_RVs), strict=True)]
    for rv, graph in finished:
        refuse_unlisted({f"The log-probability of {rv.name!r}": [graph]}, derived=True)


def _refuse_undeclared_arrays(model: pm.Model, axes: Mapping[Variable, int], n_rows: int) -> None:
    """Refuse arrays in the likelihood that are no tables of rows, have no parameter's shape and were not declared."""
    known: set[int] = set()

    def passes(shape: Sequence[int]) -> bool:
        if not known:
            known.update(_lengths_of_parameters(model, axes) - {n_rows} | {1})
        return known.issuperset(shape)

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


def _lengths_of_parameters(model: pm.Model, axes: Mapping[Variable, int]) -> set[int]:
    """Return the lengths that arrays of a parameter's shape have.

    They are those of the axes of free variables, of the distributions' own parameters and of columns of row tables, and
    one more or less, as contrasts and cutpoints have.
    """
    shapes = list(ParameterVector(model).shapes.values())
    for rv in model.observed_RVs:
        shapes += [each.type.shape for each in rv.owner.inputs if isinstance(each.type, TensorType)]
    for leaf, axis in axes.items():
        shapes.append(tuple(length for place, length in enumerate(leaf_value(leaf).shape) if place != axis))
    lengths = {length for shape in shapes for length in shape if length is not None}
    return lengths | {length + step for length in lengths if length > 1 for step in (-1, 1)}


def refuse_rows_in_starts(
    model: pm.Model, unit: str | None, lengths: Collection[int], starts: Iterable[Variable]
) -> None:
    """Refuse starting values that are expressions of rows or of their number, as in priors: they are published.

    Parameters
    ----------
    model : pm.Model
        The model.
    unit : str, optional
        As for `split`.
    lengths : collection of int
        Lengths of arrays with one entry for each row or unit.
    starts : iterable of Variable
        The expressions.

    Raises
    ------
    UnsupportedModel
        If there is one.
    """
    starts = list(starts)
    refuse_unlisted({"A starting value": starts})
    protected = set(_lengths(model, protected_dims(model, unit, lengths)))
    if any(not protected.isdisjoint(leaves_of([start])) or _has_rows(model, start, lengths, unit) for start in starts):
        raise UnsupportedModel(
            "A starting value (initval= or initvals=) depends on data that has one entry for each row, or on their "
            "number. Where chains start is published: pass numbers that were not computed from the data."
        )


def _has_rows(model: pm.Model, graph: Variable, lengths: Collection[int], unit: str | None) -> bool:
    """Return whether a graph holds an array as long as the rows, or that can be several such arrays end to end."""
    others = _dims_of_other_axes(model, unit)
    for array, shape in arrays_of([graph]):
        dims = model.named_vars_to_dims.get(array.name) or (None,) * len(shape)
        if any(
            length > 1 and length % n == 0 and dim not in others
            for length, dim in zip(shape, dims, strict=False)
            for n in lengths
        ):
            return True
    return False


def _row_axes_of_observed(model: pm.Model, unit: str | None) -> tuple[dict[Variable, int], int, str | None]:
    """Return each observed variable's row axis, the number of rows and the name of the row dim, if it has one."""
    axes: dict[Variable, int] = {}
    lengths = set()
    names = set()
    for rv in model.observed_RVs:
        dims = model.named_vars_to_dims.get(rv.name)
        value = model.rvs_to_values[rv]
        if not isinstance(value, Constant | SharedVariable):
            raise UnsupportedModel(
                f"The data of the observed variable {rv.name!r} are of another type than its distribution's "
                f"({rv.type.dtype}), and PyMC converts them in the model. Pass them as that type: "
                f"pm.Data(name, values.astype({rv.type.dtype!r}))."
            )
        shape = leaf_value(value).shape
        if not shape:
            raise UnsupportedModel(f"The observed variable {rv.name!r} is a single number, not a table of rows.")
        axis = 0
        if unit is not None:
            if dims is None or unit not in dims:
                raise UnsupportedModel(
                    f"unit={unit!r} names no dim of the observed variable {rv.name!r} "
                    f"(its dims: {dims}). Give all observed variables dims with that name in them."
                )
            axis = list(dims).index(unit)
        axes[rv] = axis
        lengths.add(shape[axis])
        if dims is not None:
            names.add(dims[axis])
    if lengths == {1}:
        raise UnsupportedModel(
            "The table has a single row. Its entries cannot be told from public numbers, and no noise would leave "
            "anything of it to see."
        )
    if len(lengths) != 1:
        raise UnsupportedModel(
            "The observed variables have different numbers of rows. All have to describe the "
            "same units; name their dim with unit=."
        )
    return axes, lengths.pop(), unit or (names.pop() if len(names) == 1 else None)


def _row_axes(model: pm.Model, graphs: Sequence[Variable], n_rows: int, unit: str | None) -> dict[Variable, int]:
    """Return the row axis of every constant and data variable in `graphs` that has one."""
    dim_lengths = set(model.dim_lengths.values())
    axes: dict[Variable, int] = {}
    for leaf in leaves_of(graphs, inner=False):
        axis = None if leaf in dim_lengths else _row_axis(model, leaf, n_rows, unit)
        if axis is not None:
            axes[leaf] = axis
    return axes


def _inputs_of(graphs: Sequence[Variable]) -> list[Variable]:
    return [variable for variable in ancestors(list(graphs)) if variable.owner is None]


def _row_axis(model: pm.Model, leaf: Variable, n_rows: int, unit: str | None) -> int | None:
    """Return the row axis of one input: by its dims if it has them, else by its length."""
    dims = model.named_vars_to_dims.get(leaf.name) if leaf.name is not None else None
    if dims is not None and unit is not None and unit in dims:
        return list(dims).index(unit)
    others = _dims_of_other_axes(model, unit)
    matching = [
        axis
        for axis, length in enumerate(leaf_value(leaf).shape)
        if length == n_rows and (dims is None or dims[axis] not in others)
    ]
    if len(matching) > 1:
        raise UnsupportedModel(
            "An input has as many entries as there are rows along several axes, so its rows are "
            "ambiguous. Wrap it in pm.Data with dims, and name the dim of the rows with unit=."
        )
    return matching[0] if matching else None


def _row_leaf(variable: Variable, source: Variable, axis: int) -> RowLeaf:
    shape = list(variable.type.shape)
    del shape[axis]
    row = pt.tensor(dtype=variable.type.dtype, shape=tuple(shape))
    return RowLeaf(variable, source, axis, row)


def _refuse_parameters_of_rows(model: pm.Model, n_rows: int, unit: str | None) -> None:
    for rv in model.free_RVs:
        dims = model.named_vars_to_dims.get(rv.name)
        shape = model.rvs_to_values[rv].type.shape
        per_row = unit in dims if dims is not None and unit is not None else n_rows in shape
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
    n_rows: int,
    unit: str | None,
) -> None:
    """Refuse row data in priors and in what turns parameters into draws, and data of any kind in potentials."""
    row_inputs = {leaf for leaf in [*axes, *graphs.sources] if leaf not in graphs.sources.values()} | set(lengths)
    drawn = model.replace_rvs_by_values(model.free_RVs)
    for rv, logp, draw in zip(model.free_RVs, graphs.log_priors, drawn, strict=True):
        of_rows = not row_inputs.isdisjoint([*_inputs_of([logp, draw]), *leaves_of([logp, draw])])
        if of_rows or _has_rows(model, rv, {n_rows}, unit):
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


def _refuse_other_tables(
    model: pm.Model, graphs: SymbolicModel, replaced: set[Variable], n_rows: int, unit: str | None
) -> None:
    """Refuse any table of rows in the finished graphs that is not replaced by one of its rows.

    The graph of a random variable does not show what a function of the user's brings into its log-probability.
    """
    of_dims = set(model.dim_lengths.values())
    drawn = model.replace_rvs_by_values(model.free_RVs)
    terms = [
        *zip(model.observed_RVs, graphs.log_likelihoods, strict=True),
        *zip(model.free_RVs, graphs.log_priors, strict=True),
        *zip(model.free_RVs, drawn, strict=True),
        *zip(model.potentials, graphs.potentials, strict=True),
    ]
    # An array in the inner graph of a random variable may be folded into a number before its log-probability exists.
    at_top = set(leaves_of(model.basic_RVs, inner=False))
    found = [(rv, leaf) for rv, graph in terms for leaf in leaves_of([graph])]
    found += [(rv, leaf) for rv in model.basic_RVs for leaf in leaves_of([rv]) if leaf not in at_top]
    for rv, leaf in found:
        if leaf not in replaced and leaf not in of_dims and _row_axis(model, leaf, n_rows, unit) is not None:
            raise UnsupportedModel(
                f"The log-probability of {rv.name!r} holds an array with as many entries as there are rows that is no "
                "parameter of the distribution, so that it would be taken as public. If a function of yours brings it "
                "in (logp=, dist=), pass it as a parameter: pm.CustomDist(name, mu, x, logp=lambda value, mu, x: ...). "
                "For an array that counts rows write pt.arange(x.shape[0]), with x a table of the rows."
            )
