"""The rows of a model: the row axis of each table, the number of rows, and the dims of that length."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.shape_utils import change_dist_size
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Cast

from pymc_dp.compiling import INTERPRETED
from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.arrays import leaf_value, leaves_of


@dataclass(frozen=True, eq=False, repr=False)
class RowAxes:
    """The row axes of a model's tables."""

    model: pm.Model
    observed: Mapping[Variable, int]  # the row axis of each observed variable
    n_rows: int
    dim: str | None  # the dim that counts rows, if it has a name

    @cached_property
    def other_dims(self) -> set[str]:
        """Dims of the other axes of all variables that have the dim of the rows."""
        tables = [dims for dims in self.model.named_vars_to_dims.values() if self.dim is not None and self.dim in dims]
        return {name for dims in tables for name in dims if name not in (self.dim, None)}

    def axis_of(self, leaf: Variable) -> int | None:
        """Return the row axis of an input, by its dims or else by its length; None without one."""
        dims = dims_of(self.model, leaf)
        if dims is not None and self.dim is not None and self.dim in dims:
            return list(dims).index(self.dim)
        matching = [
            axis
            for axis, length in enumerate(leaf_value(leaf).shape)
            if length == self.n_rows and (dims is None or dims[axis] not in self.other_dims)
        ]
        if len(matching) > 1:
            raise UnsupportedModel(
                "An input has as many entries as there are rows along several axes, so its rows are "
                "ambiguous. Wrap it in pm.Data with dims, and name the dim of the rows with unit=."
            )
        return matching[0] if matching else None

    @cached_property
    def of_inputs(self) -> dict[Variable, int]:
        """The row axis of each input that has one: data of observed variables, constants and data variables."""
        dim_lengths = set(self.model.dim_lengths.values())
        axes: dict[Variable, int] = {}
        for rv, of_rows in self.observed.items():
            if axes.setdefault(data_of(self.model, rv), of_rows) != of_rows:
                raise UnsupportedModel(f"{rv.name!r} shares its data with another variable, but not its axis of rows.")
        for leaf in leaves_of([*self.model.basic_RVs, *self.model.potentials], inner=False):
            axis = None if leaf in dim_lengths else self.axis_of(leaf)
            if axis is not None:
                axes[leaf] = axis
        return axes

    def of_so_many_rows(self, rv: Variable, n_rows: int) -> Variable:
        """Return an observed variable with `n_rows` rows in place of the table's number, which may be protected."""
        lengths = list(leaf_value(data_of(self.model, rv)).shape[: rv.type.ndim - rv.owner.op.ndim_supp])
        try:
            lengths[self.observed[rv]] = n_rows
            return change_dist_size(rv, [pt.constant(length) for length in lengths])
        except (IndexError, NotImplementedError, TypeError, ValueError):
            raise UnsupportedModel(
                f"{rv.name!r} cannot be drawn with another number of rows than the table has."
            ) from None

    def one_row(self) -> dict[Variable, Variable]:
        """Return replacements of the tables by one row of zeros, and of the numbers of rows by 1."""
        found: dict[Variable, Variable] = {}
        for leaf, axis in self.of_inputs.items():
            shape = list(leaf_value(leaf).shape)
            shape[axis] = 1
            found[leaf] = pt.constant(np.zeros(shape, dtype=leaf.type.dtype))
        return found | {length: pt.constant(1, dtype=length.type.dtype) for length in self.length_variables}

    def protected_dims(self, lengths: Collection[int] = ()) -> set[str]:
        """Return the dims that count rows or units, whose lengths and labels are protected.

        They are the dims of the row axes of all tables, and each dim whose length is the number of rows or one of
        `lengths` (numbers of units of several rows). A dim of another axis of a table of rows is not among them: a
        table may have as many columns as rows.
        """
        found = {self.dim}
        for rv, axis in self.observed.items():
            dims = self.model.named_vars_to_dims.get(rv.name)
            found |= {dims[axis]} if dims is not None else set()
        for name, length in self.model.dim_lengths.items():
            if name not in self.other_dims and length_of_dim(self.model, name, length) in {self.n_rows, *lengths}:
                found.add(name)
        return {name for name in found if name is not None}

    @cached_property
    def length_variables(self) -> tuple[Variable, ...]:
        """The symbolic variables of the model that hold the number of rows."""
        return self.lengths_of_dims()

    def lengths_of_dims(self, lengths: Collection[int] = ()) -> tuple[Variable, ...]:
        """Return the symbolic variables that hold the lengths of `protected_dims`."""
        of_dims = self.model.dim_lengths
        return tuple(of_dims[name] for name in sorted(self.protected_dims(lengths)) if name in of_dims)


def dims_of(model: pm.Model, leaf: Variable) -> Sequence[str | None] | None:
    """Return the dims of a data variable, or of the data of an observed one; None for others, whatever their name."""
    named = model.named_vars.get(leaf.name) if leaf.name is not None else None
    own = named is not None and model.rvs_to_values.get(named, named) is leaf
    found: Sequence[str | None] | None = model.named_vars_to_dims.get(leaf.name) if own else None
    return found


def data_of(model: pm.Model, rv: Variable) -> Constant | SharedVariable:
    """Return the data of an observed variable.

    PyMC casts data in `pm.Data` to the dtype of the distribution: integers always, which have 32 bits in `pm.Data` and
    64 in a distribution. Such casts are skipped.

    Raises
    ------
    UnsupportedModel
        If the data are computed by any other operation.
    """
    value = model.rvs_to_values[rv]
    while value.owner is not None and isinstance(getattr(value.owner.op, "scalar_op", None), Cast):
        (value,) = value.owner.inputs
    if not isinstance(value, Constant | SharedVariable):
        raise UnsupportedModel(
            f"The data of the observed variable {rv.name!r} are computed in the model. Compute them before it, row by "
            "row; for a declared table, as a further column of its source. Or write a pm.CustomDist of the data as "
            "they are, whose logp= computes them."
        )
    return value


def row_axes(model: pm.Model, unit: str | None) -> RowAxes:
    """Return the row axes of a model, from the observed variables alone.

    The row axis is the dim `unit`, by default the first axis of the observed variables.
    """
    axes: dict[Variable, int] = {}
    lengths = set()
    names = set()
    for rv in model.observed_RVs:
        dims = model.named_vars_to_dims.get(rv.name)
        shape = leaf_value(data_of(model, rv)).shape
        if not shape:
            raise UnsupportedModel(f"The observed variable {rv.name!r} is a single number, not a table of rows.")
        axis = 0
        if unit is not None:
            if dims is None or unit not in dims:
                raise UnsupportedModel(
                    f"unit={unit!r} names no dim of the observed variable {rv.name!r} "
                    f"(its dims: {dims}), and no data variable with the unit of each row. Give all observed variables "
                    'dims with that name in them, or pass unit="row", or put the index of units into the model with '
                    "pm.Data. Of a table beside the model, it is named there: dp.Table(..., unit=), or dp.Person."
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
    if unit is None and len(names) == 1:  # refused there if an observed variable lacks the dim
        return row_axes(model, names.pop())
    return RowAxes(model, axes, lengths.pop(), unit)


def shape_of_draws(model: pm.Model, rv: Variable) -> tuple[int, ...]:
    """Return the shape of a variable's draws. A simplex, for instance, has one entry more than its unconstrained form.

    The shape of unconstrained values is that of the model's value variable.
    """
    dims = model.named_vars_to_dims.get(rv.name) or (None,) * rv.type.ndim
    return tuple(
        length if length is not None else length_of_dim(model, dim, rv.shape[axis])
        for axis, (length, dim) in enumerate(zip(rv.type.shape, dims, strict=True))
    )


def refuse_other_lengths(model: pm.Model) -> None:
    """Refuse a variable that is not as long as the labels of its dim: after the charge the result could not be made."""
    for variable in model.unobserved_RVs:
        dims = model.named_vars_to_dims.get(variable.name) or ()
        for length, dim in zip(variable.type.shape, dims, strict=False):
            labels = None if dim is None else model.coords.get(dim)
            if length is not None and labels is not None and len(labels) != length:
                raise UnsupportedModel(
                    f"{variable.name!r} has not as many entries along its dim {dim!r} as that has labels in coords."
                )


def length_of_dim(model: pm.Model, name: str | None, length: Variable) -> int:
    """Return the length of a dim, from its labels or else from its symbolic variable."""
    labels = None if name is None else model.coords.get(name)
    if labels is not None:
        return len(labels)
    with pytensor.config.change_flags(mode=INTERPRETED):  # called once: compiling takes longer
        return int(length.eval())
