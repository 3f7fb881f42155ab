"""Where the rows of a model are: the axis of each table that counts them, their number, and the dims that tell it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pymc as pm
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable

from pymc_dp.compiling import INTERPRETED
from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.arrays import leaf_value, leaves_of


@dataclass(frozen=True, eq=False, repr=False)
class RowAxes:
    """Where rows are.

    Attributes
    ----------
    observed : mapping of Variable to int
        The row axis of each observed variable.
    n_rows : int
        Number of rows.
    dim : str or None
        The dim that counts them, if it has a name.
    """

    observed: Mapping[Variable, int]
    n_rows: int
    dim: str | None


def row_axes(model: pm.Model, unit: str | None) -> RowAxes:
    """Return where rows are, from the observed variables alone.

    Parameters
    ----------
    model : pm.Model
        A model with observed variables.
    unit : str, optional
        Name of the dim that counts rows. Default: the first axis of the observed variables.

    Raises
    ------
    UnsupportedModel
        If rows cannot be told apart.
    """
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
                    f"(its dims: {dims}), and no data variable with the unit of each row. Give all observed variables "
                    'dims with that name in them, or pass unit="row", or put the index of units into the model with '
                    "pm.Data."
                )
            axis = list(dims).index(unit)
        axes[rv] = axis
        lengths.add(shape[axis])
        if dims is not None:
            names.add(dims[axis])
    if lengths in ({0}, {1}):
        raise UnsupportedModel(
            "The table has no rows or a single one. Its entries cannot be told from public numbers, and no noise would "
            "leave anything of it to see."
        )
    if len(lengths) != 1:
        raise UnsupportedModel(
            "The observed variables have different numbers of rows. All have to describe the "
            "same units; name their dim with unit=."
        )
    if unit is None and len(names) == 1:  # a name that only some of them have is no dim of all
        return row_axes(model, names.pop())
    return RowAxes(axes, lengths.pop(), unit)


def row_axis(model: pm.Model, leaf: Variable, rows: RowAxes) -> int | None:
    """Return the row axis of one input: by its dims if it has them, else by its length.

    Raises
    ------
    UnsupportedModel
        If several axes could be it.
    """
    dims = model.named_vars_to_dims.get(leaf.name) if leaf.name is not None else None
    if dims is not None and rows.dim is not None and rows.dim in dims:
        return list(dims).index(rows.dim)
    others = dims_of_other_axes(model, rows.dim)
    matching = [
        axis
        for axis, length in enumerate(leaf_value(leaf).shape)
        if length == rows.n_rows and (dims is None or dims[axis] not in others)
    ]
    if len(matching) > 1:
        raise UnsupportedModel(
            "An input has as many entries as there are rows along several axes, so its rows are "
            "ambiguous. Wrap it in pm.Data with dims, and name the dim of the rows with unit=."
        )
    return matching[0] if matching else None


def row_axes_of_inputs(model: pm.Model, rows: RowAxes) -> dict[Variable, int]:
    """Return the row axis of all data of observed variables, and of every constant and data variable that has one."""
    dim_lengths = set(model.dim_lengths.values())
    axes = {model.rvs_to_values[rv]: axis for rv, axis in rows.observed.items()}
    for leaf in leaves_of([*model.basic_RVs, *model.potentials], inner=False):
        axis = None if leaf in dim_lengths else row_axis(model, leaf, rows)
        if axis is not None:
            axes[leaf] = axis
    return axes


def protected_dims(model: pm.Model, rows: RowAxes, lengths: Collection[int] = ()) -> set[str]:
    """Return the dims that count rows or units: their lengths and labels are those of people.

    They are the dims of the row axes of all tables, and any dim as long as the rows or as one of `lengths`, unless it
    belongs to another axis of a table of rows (features may be as many as rows).

    Parameters
    ----------
    model : pm.Model
        The model.
    rows : RowAxes
        Where its rows are.
    lengths : collection of int
        Further protected lengths: those of units of several rows.
    """
    found, others = ({rows.dim} if rows.dim is not None else set()), dims_of_other_axes(model, rows.dim)
    wanted = {rows.n_rows} | set(lengths)
    for rv, axis in rows.observed.items():
        dims = model.named_vars_to_dims.get(rv.name)
        found |= {dims[axis]} if dims is not None else set()
    for name, length in model.dim_lengths.items():
        if name not in others and length_of_dim(model, name, length) in wanted:
            found.add(name)
    return {name for name in found if name is not None}


def dims_of_other_axes(model: pm.Model, dim: str | None) -> set[str]:
    """Return the dims of the axes other than that of the rows of all variables that have it by name."""
    found: set[str] = set()
    for dims in model.named_vars_to_dims.values():
        if dim is not None and dim in dims:
            found |= {name for name in dims if name not in (dim, None)}
    return found


def lengths_of_dims(model: pm.Model, dims: Iterable[str]) -> tuple[Variable, ...]:
    """Return the model's variables for the lengths of `dims` that are inputs of its graphs."""
    return tuple(model.dim_lengths[name] for name in sorted(dims) if name in model.dim_lengths)


def length_of_dim(model: pm.Model, name: str, length: Variable) -> int:
    """Return the length of a dim, from its labels, its variable or the table that has it."""
    labels = model.coords.get(name)
    if labels is not None:
        return len(labels)
    with pytensor.config.change_flags(mode=INTERPRETED):  # called once: not worth compiling
        return int(length.eval())
