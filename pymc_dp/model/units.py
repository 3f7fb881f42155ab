"""Units of privacy: the user's declaration, the unit of each row, and the refusal of public arrays that count units."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_dp.exceptions import InvalidArgument, UnsupportedModel
from pymc_dp.model.arrays import is_narrowed, leaf_value, leaves_of
from pymc_dp.model.axes import RowAxes, length_of_dim, row_axes, shape_of_draws
from pymc_dp.model.closures import refuse_tables_in_functions
from pymc_dp.model.one_row import SymbolicModel
from pymc_dp.model.operations import refuse_unsplittable
from pymc_dp.model.parameters import ParameterVector

#: The user's index of units: an array, or the name of a data variable.
UnitIndex = str | NDArray[np.integer] | None
#: The declaration that every row is a unit of its own.
ROW = "row"
#: Words for persons who may have several rows, in the singular or the plural.
_PERSONS = re.compile(
    r"(person|patient|subject|participant|respondent|individual|pupil|student|customer|client|user|member|employee|"
    r"worker|household|citizen|resident|donor|voter|mother|infant|baby|twin)s?"
    r"|people|child|children|(wo)?m[ae]n|famil(y|ies)|babies|ids?|[pu]id|uuid|ssn"
)
#: Further words in names of an index of persons, or of a dim of their effects.
_OF_AN_INDEX = re.compile(r"id|ids|idx|index|ix|i|no|nr|num|number|code|codes|key|of|row|obs|label|factor|dim|\d+")


def reads_like_persons(name: str) -> bool:
    """Return whether a name reads like an index of persons, such as ``person``, ``patient_id`` or ``idx_pupil``."""
    words = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return any(_PERSONS.fullmatch(word) for word in words) and all(
        _PERSONS.fullmatch(word) or _OF_AN_INDEX.fullmatch(word) for word in words
    )


def declared_unit(model: pm.Model, unit: str | None, unit_index: Any) -> tuple[str | None, Any]:
    """Return the dim that counts units, and the index of units of several rows, from the user's arguments.

    `unit` is ``"row"``, a dim of the observed variables, or a data variable with the unit of each row; for `unit_index`
    see `pymc_dp.model.view.read`.
    """
    if unit is None:
        return None, unit_index
    if not isinstance(unit, str):
        raise InvalidArgument(
            f'unit must be "row", the name of a dim of the rows or of a data variable, but is a {type(unit).__name__}. '
            "An array with the unit of each row is unit_index=."
        )
    if any(unit in (model.named_vars_to_dims.get(rv.name) or ()) for rv in model.observed_RVs):
        return unit, unit_index
    if unit == ROW:
        if unit_index is not None:
            raise InvalidArgument('unit="row" says that every row is a unit, and unit_index= another: leave one out.')
        return None, None
    if unit_index is None and unit in [variable.name for variable in model.data_vars]:
        return None, unit
    return unit, unit_index


def refuse_single_rows(unit: Any, *, units_of_rows: bool) -> None:
    """Refuse ``unit="row"`` with a table that protects all rows of a unit together: the two contradict each other."""
    if unit == ROW and units_of_rows:
        raise InvalidArgument(
            'unit="row" would protect single rows, and the table protects all rows of a unit together: leave out '
            'unit="row"; or dp.Person, or unit= of the table.'
        )


def refusal_of_undeclared_units(model: pm.Model) -> str | None:
    """Return a message that `unit` must be declared, if a name in the model reads like persons who are not its rows.

    None if no name does, and if the model will be refused for another reason. The decision uses names, dims, their
    lengths and types, which are public, and no entry of an array.
    """
    try:
        rows = row_axes(model, None)
        if rows.dim is not None and reads_like_persons(rows.dim):
            return None
        for variable in model.data_vars:
            if reads_like_persons(variable.name) and variable.type.dtype.startswith(("int", "uint")):
                if variable.type.ndim == 1 and rows.axis_of(variable) == 0:
                    return _decision(variable.name, f"unit={variable.name!r}")
        for dim, length in model.dim_lengths.items():
            if reads_like_persons(dim) and length_of_dim(model, dim, length) != rows.n_rows:
                return _decision(
                    dim, "unit_index= (which of them each row belongs to: an array, or the name of a pm.Data)"
                )
    except UnsupportedModel:
        pass
    return None


def _decision(name: str, protects_persons: str) -> str:
    return (
        f"{name!r} in the model reads like persons who may have several rows, and it was not said what is protected: "
        f'pass {protects_persons} to protect all rows of each of them together, or unit="row" to protect single rows, '
        "which protects a person with several rows less."
    )


@dataclass(frozen=True, eq=False, repr=False)
class Units:
    """The assignment of rows to units."""

    #: The unit of each row; None if every row is a unit. Confidential.
    of_row: NDArray[np.int64] | None
    #: The number of units, and the largest index plus 1: arrays of these lengths are protected, too. Empty if every row
    #: is a unit.
    lengths: frozenset[int]
    in_words: str  # the protected unit, for the result's metadata


def units_of(rows: RowAxes, unit_index: UnitIndex) -> Units:
    """Return the units of a table of rows."""
    index = _unit_of_each_row(rows, unit_index)
    if index is None:
        in_words = f"one entry of the dim {rows.dim!r}" if rows.dim is not None else "one row of the observed variables"
        return Units(None, frozenset(), in_words)
    # The second length counts units without rows.
    lengths = frozenset({np.unique(index).size, int(index.max()) + 1}) - {0, 1, rows.n_rows}
    name = unit_index if isinstance(unit_index, str) else "unit_index"
    return Units(index, lengths, f"all rows with the same {name}")


def public_number_of_units(model: pm.Model, unit: str | None, unit_index: UnitIndex, relation: str) -> int | None:
    """Return the number of units, from the model's variables alone; None under a relation that protects it."""
    if relation != "substitute":
        return None
    refuse_unsplittable(model)
    rows = row_axes(model, unit)
    index = _unit_of_each_row(rows, unit_index)
    return rows.n_rows if index is None else np.unique(index).size


def columns_of_rows(model: pm.Model, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return data variables of the model by name. Confidential."""
    variables = {str(variable.name): variable for variable in model.data_vars}
    for name in names:
        if name not in variables:
            raise InvalidArgument(
                f"The model has no data variable {name!r}; {_it_has(variables)}. Or pass {{{name!r}: array}}."
            )
    return {name: leaf_value(variables[name]) for name in names}


def _it_has(names: Iterable[str]) -> str:
    return f"it has {', '.join(map(repr, names)) or 'none'}"


def _unit_of_each_row(rows: RowAxes, unit_index: UnitIndex) -> NDArray[np.int64] | None:
    if unit_index is None:
        return None
    if isinstance(unit_index, str):
        data_names = [variable.name for variable in rows.model.data_vars]
        if unit_index not in data_names:
            raise InvalidArgument(
                f"unit_index={unit_index!r} names no data variable of the model; {_it_has(data_names)}. Put it into "
                "the model with pm.Data, or pass the array itself."
            )
        variable = rows.model.named_vars[unit_index]
        if is_narrowed(variable):
            raise InvalidArgument(
                f"{unit_index!r} does not hold the numbers that it was given: PyMC keeps 32 bits of whole numbers in "
                "pm.Data (16 if floatX is float32), and several units may have become one. Give it numbers from 0, as "
                "of np.unique(numbers, return_inverse=True)[1], or pass the array itself as unit_index=."
            )
        unit_index = leaf_value(variable)
    try:
        index = np.asarray(unit_index)
    except ValueError:
        raise InvalidArgument("unit_index must hold one whole number for each row, and be a plain array.") from None
    # Entries are data, and lengths are protected under add-remove: messages contain neither.
    if index.ndim != 1:
        raise InvalidArgument(f"unit_index must hold one whole number for each row, but has {index.ndim} axes.")
    if index.size != rows.n_rows:
        raise InvalidArgument(
            "unit_index has another length than the table: it must hold one whole number for each row. Compare "
            "len(unit_index) with the length of the observed variables along the axis of rows."
        )
    if index.dtype.kind not in "iu":
        raise InvalidArgument(
            f"The entries of unit_index must be whole numbers, but are {index.dtype}. Turn labels into numbers with "
            "np.unique(labels, return_inverse=True)[1], after each row without a label has got one of its own."
        )
    return index.astype(np.int64)  # a copy: later changes of the user's array have no effect


def refuse_tables_of_units(rows: RowAxes, parameters: ParameterVector, lengths: Collection[int]) -> None:
    """Refuse data and parameters with one entry for each unit of several rows, and uses of the number of units.

    Each entry belongs to one unit, but would be taken as public. For `lengths` see `Units`.
    """
    model, without_units = rows.model, set(lengths).isdisjoint
    refuse_tables_in_functions(model, without_units)
    for rv in model.free_RVs:
        if not without_units([*parameters.shapes[model.rvs_to_values[rv].name], *shape_of_draws(model, rv)]):
            raise UnsupportedModel(
                f"The free variable {rv.name!r} has one entry for each unit. A parameter of one person cannot be "
                "released: integrate it out, or share it between units."
            )
    graphs = SymbolicModel(model, ())
    finished = [*graphs.log_likelihoods, *graphs.log_priors, *graphs.potentials, *graphs.drawn]
    of_units = set(rows.lengths_of_dims(lengths)).difference(rows.length_variables)
    if not of_units.isdisjoint(leaves_of([*model.basic_RVs, *model.potentials, *finished])):
        raise UnsupportedModel(
            "The model depends on the length of a dim with one entry for each unit: their number may be protected, and "
            "one unit more or less would change what all others contribute."
        )
    for leaf in leaves_of([*model.basic_RVs, *model.potentials, *model.deterministics, *finished]):
        if not without_units(leaf_value(leaf).shape):
            raise UnsupportedModel(
                "An input of the model has one entry for each unit, and would be taken as public. Repeat it for "
                "each row of the unit before the model (values[unit_index])."
            )
