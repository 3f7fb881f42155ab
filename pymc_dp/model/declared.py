"""What one unit of privacy is: what the user says of it, and whether names in a model ask for saying it.

Names, dims, their lengths and types decide, all of which are public; no entry of an array is looked at.
"""

import re
from typing import Any

import pymc as pm

from pymc_dp.exceptions import InvalidArgument, UnsupportedModel
from pymc_dp.model.axes import length_of_dim, row_axes, row_axis

#: Says that every row is a unit of its own.
ROW = "row"
#: What those are called who may have several rows, in the singular or the plural.
_PERSONS = re.compile(
    r"(person|patient|subject|participant|respondent|individual|pupil|student|customer|client|user|member|employee|"
    r"worker|household|citizen|resident|donor|voter|mother|infant|baby|twin)s?"
    r"|people|child|children|(wo)?m[ae]n|famil(y|ies)|babies|ids?|[pu]id|uuid|ssn"
)
#: What else is in the name of a number for each of them, or of the dim of their effects.
_OF_AN_INDEX = re.compile(r"id|ids|idx|index|ix|i|no|nr|num|number|code|codes|key|of|row|obs|label|factor|dim|\d+")


def reads_like_persons(name: str) -> bool:
    """Return whether a name is that of an index of persons, such as ``person``, ``patient_id`` or ``idx_pupil``."""
    words = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return any(_PERSONS.fullmatch(word) for word in words) and all(
        _PERSONS.fullmatch(word) or _OF_AN_INDEX.fullmatch(word) for word in words
    )


def declared_unit(model: pm.Model, unit: str | None, unit_index: Any) -> tuple[str | None, Any]:
    """Return the dim that counts units, and the index of units of several rows, of what the user says.

    Parameters
    ----------
    model : pm.Model
        The model.
    unit : str, optional
        ``"row"``; a dim of the observed variables; or a data variable that says which unit each row belongs to.
    unit_index : str or ndarray of int, shape (rows,), optional
        As of `pymc_dp.model.view.read`.

    Raises
    ------
    InvalidArgument
        If `unit` is no name, or the two contradict each other.
    """
    if unit is None:
        return None, unit_index
    if not isinstance(unit, str):
        raise InvalidArgument(
            f'unit must be "row", the name of a dim of the rows or of a data variable, but is a {type(unit).__name__}.'
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


def refusal_of_undeclared_units(model: pm.Model) -> str | None:
    """Return why it has to be said what a unit is: something in the model reads like persons that are not its rows.

    None where nothing does, and where the model will be refused for another reason.
    """
    try:
        rows = row_axes(model, None)
        if rows.dim is not None and reads_like_persons(rows.dim):
            return None
        for variable in model.data_vars:
            if reads_like_persons(variable.name) and variable.type.dtype.startswith(("int", "uint")):
                if variable.type.ndim == 1 and row_axis(model, variable, rows) == 0:
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
