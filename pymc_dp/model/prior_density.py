"""The exact log-prior and its gradient: it does not depend on data, so evaluating it costs no privacy."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_dp.compiling import compiled, rewrite_pregrad
from pymc_dp.model.parameters import FloatArray, ParameterVector


class Prior:
    """Log-density of all free variables and potentials, on the unconstrained scale with its Jacobians.

    Parameters
    ----------
    model : pm.Model
        Its priors and potentials must not depend on row data (`split` refuses models where they do).
    parameters : ParameterVector
        Its parameters.
    """

    def __init__(self, model: pm.Model, parameters: ParameterVector) -> None:
        self._parameters = parameters
        logp = model.logp(vars=[*model.free_RVs, *model.potentials])
        (logp,) = rewrite_pregrad([logp])
        value_vars = model.value_vars
        gradients = pt.grad(logp, value_vars, disconnected_inputs="ignore")
        self._inputs = list(value_vars)
        self._outputs = [logp, *gradients]

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        """Both of them, compiled when they are first asked for: starting points do so, before a run is charged."""
        return compiled(self._inputs, self._outputs)

    def log_density(self, theta: FloatArray) -> float:
        """Return the log-density at `theta`, shape (parameters,)."""
        return float(self._function(*self._parameters.split(theta))[0])

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log-density, shape (parameters,)."""
        _, *blocks = self._function(*self._parameters.split(theta))
        return self._parameters.join(blocks).astype(np.float64)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_function"}
