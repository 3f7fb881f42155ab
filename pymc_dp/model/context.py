"""PyMC's models, for the rest of the package: what they are called, and which one a ``with`` block is about.

Elsewhere a model is handed on to PyMC or to this folder, and nothing of it is read: a test sees to that.
"""

from typing import Any

import pymc as pm
from pymc import Model

from pymc_dp.exceptions import InvalidArgument

__all__ = ["Model", "context_without_error", "model_in_context"]


def model_in_context(model: Any) -> Model:
    """Return the model that was passed, or that of the ``with`` context.

    Raises
    ------
    InvalidArgument
        If there is none, or what was passed is none.
    """
    if model is None:
        model = context_without_error()
        if model is None:
            raise InvalidArgument("There is no model here: write this inside of `with model:`, or pass model=.")
    if not isinstance(model, Model):
        raise InvalidArgument(f"model= must be a pm.Model, but is a {type(model).__name__}.")
    return model


def context_without_error() -> Model | None:
    """Return the model of the ``with`` context, if there is one."""
    return pm.Model.get_context(error_if_none=False)
