"""Draws where chains release nothing: PyMC's NUTS, on priors and what was released. No row is in reach any more."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from pymc_dp.model.context import Model
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.posterior import places_of, with_likelihood
from pymc_dp.steps.prelude.approximation import Approximation


def arguments_of_nuts(
    priors: Model, known: Approximation, likelihood: xr.Dataset, chains: int, seed: Any
) -> dict[str, Any]:
    """Return what `pm.sample` is called with to draw from the posterior of a released likelihood.

    Parameters
    ----------
    priors : pm.Model
        Without anything of the rows (`priors_of`). The likelihood is added to it.
    known : Approximation
        The covariance of its draws is the mass matrix, and they are where chains start: a short tuning is enough.
    likelihood : Dataset
        What was released.
    chains : int
    seed : int or sequence of int
        Of public randomness.
    """
    parameters = ParameterVector(priors)
    posterior = with_likelihood(priors, parameters, likelihood)
    places = places_of(likelihood, parameters)
    covariance = np.empty((parameters.size, parameters.size))
    covariance[np.ix_(places, places)] = known.spread @ known.spread.T
    rng, starts = np.random.default_rng(seed), []
    for _ in range(chains):
        start = np.empty(parameters.size)
        start[places] = known.theta(known.start(rng))
        # PyMC applies the backward transform of a Cholesky factor to graphs alone.
        starts.append({name: pt.constant(value) for name, value in parameters.to_point(start).items()})
    with posterior:
        step = pm.NUTS(scaling=covariance, is_cov=True)
    return {"model": posterior, "step": step, "initvals": starts}
