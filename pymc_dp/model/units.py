"""Units of privacy: which unit each row belongs to, how many there are, and that nothing public counts them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_dp.exceptions import InvalidArgument, UnsupportedModel
from pymc_dp.model.arrays import leaf_value, leaves_of
from pymc_dp.model.axes import RowAxes, row_axes
from pymc_dp.model.closures import refuse_tables_in_functions
from pymc_dp.model.one_row import symbolic
from pymc_dp.model.operations import refuse_unsplittable
from pymc_dp.model.parameters import ParameterVector

#: What the user says of units: an array, or the name of a data variable.
UnitIndex = str | NDArray[np.integer] | None


@dataclass(frozen=True, eq=False, repr=False)
class Units:
    """Which rows are one unit.

    Attributes
    ----------
    of_row : ndarray of int64, shape (rows,), or None
        The unit that each row belongs to; None if every row is one. Confidential.
    lengths : frozenset of int
        How many units there are, and how many an index could name: arrays of these lengths are protected, too. Empty if
        every row is a unit.
    in_words : str
        What is protected, for the result's metadata.
    """

    of_row: NDArray[np.int64] | None
    lengths: frozenset[int]
    in_words: str


def units_of(model: pm.Model, rows: RowAxes, unit_index: UnitIndex) -> Units:
    """Return which rows are one unit.

    Raises
    ------
    InvalidArgument
        If `unit_index` is not one whole number for each row.
    """
    index = _unit_of_each_row(model, unit_index, rows.n_rows)
    if index is None:
        in_words = f"one entry of the dim {rows.dim!r}" if rows.dim is not None else "one row of the observed variables"
        return Units(None, frozenset(), in_words)
    # Also if some units have no rows.
    lengths = frozenset({np.unique(index).size, int(index.max()) + 1}) - {0, 1, rows.n_rows}
    return Units(
        index, lengths, f"all rows with the same {unit_index if isinstance(unit_index, str) else 'unit_index'}"
    )


def number_of_units(model: pm.Model, unit: str | None = None, unit_index: UnitIndex = None) -> int:
    """Return how many units there are, from the model's variables alone. Public under substitution only.

    Raises
    ------
    UnsupportedModel, InvalidArgument
        If the model has no rows, or `unit` and `unit_index` do not fit them.
    """
    refuse_unsplittable(model)
    n_rows = row_axes(model, unit).n_rows
    index = _unit_of_each_row(model, unit_index, n_rows)
    return n_rows if index is None else np.unique(index).size


def public_number_of_units(model: pm.Model, unit: str | None, unit_index: Any, relation: str) -> int | None:
    """Return the number of units of a model, for plans before a run; None under a relation that protects it.

    Raises
    ------
    UnsupportedModel, InvalidArgument
        As for `number_of_units`.
    """
    return number_of_units(model, unit, unit_index) if relation == "substitute" else None


def columns_of_rows(model: pm.Model, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return data variables of the model by name. Confidential.

    Raises
    ------
    InvalidArgument
        If one is not there.
    """
    variables = {str(variable.name): variable for variable in model.data_vars}
    for name in names:
        if name not in variables:
            known = f"it has {', '.join(map(repr, variables))}" if variables else "it has none"
            raise InvalidArgument(f"The model has no data variable {name!r}; {known}. Or pass {{{name!r}: array}}.")
    return {name: np.asarray(leaf_value(variables[name])) for name in names}


def _unit_of_each_row(model: pm.Model, unit_index: UnitIndex, n_rows: int) -> NDArray[np.int64] | None:
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
    return index.astype(np.int64)  # a copy: the view is read once


def refuse_tables_of_units(model: pm.Model, parameters: ParameterVector, lengths: Collection[int]) -> None:
    """Refuse data and parameters with one entry for each unit, where a unit has several rows.

    Their entries belong to one unit each, but they would be taken as public.

    Parameters
    ----------
    model : pm.Model
        The model.
    parameters : ParameterVector
        Its parameters.
    lengths : collection of int
        How many units there are, and how many an index could name.

    Raises
    ------
    UnsupportedModel
        If a free variable or an input of the model, in a function of the user's too, has an axis of such a length.
    """
    refuse_tables_in_functions(model, set(lengths).isdisjoint)
    for rv in model.free_RVs:
        if not set(lengths).isdisjoint(parameters.shapes[model.rvs_to_values[rv].name]):
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
