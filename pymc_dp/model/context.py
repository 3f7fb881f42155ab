"""PyMC's models, for the rest of the package: what they are called, and which one a ``with`` block is about.

Elsewhere a model is handed on to PyMC or to this folder, and nothing of it is read: a test sees to that.
"""

import pymc as pm
from pymc import Model

__all__ = ["Model", "context_without_error", "model_in_context"]


def model_in_context(model: Model | None) -> Model:
    """Return the model that was passed, or that of the ``with`` context."""
    return pm.modelcontext(model)


def context_without_error() -> Model | None:
    """Return the model of the ``with`` context, if there is one."""
    return pm.Model.get_context(error_if_none=False)
