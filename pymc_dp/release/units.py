"""How many units there are, for plans that are made before a run: told where it is public, and nowhere else."""

from typing import Any

import pymc as pm

from pymc_dp.accounting import Relation
from pymc_dp.rows import number_of_units


def public_number_of_units(model: pm.Model, unit: str | None, unit_index: Any, relation: Relation) -> int | None:
    """Return the number of units of a model; None under a relation that protects it.

    Raises
    ------
    UnsupportedModel, InvalidArgument
        If the model has no rows, or `unit` and `unit_index` do not fit them.
    """
    return number_of_units(model, unit, unit_index) if relation == "substitute" else None
