"""A search in other coordinates: members of a hierarchy apart from the mean that their prior gives them.

The prior of the members of a hierarchy, N(mu, tau²), has a mean of its own parameters. On these the likelihood does not
depend, but on the members alone; beside a covariate that is far from zero, all members move together. Here the mean is
taken off them, and is a parameter of the likelihood itself: what all rows say of it is one entry of each release.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint, Release
from pymc_dp.release.query import Query
from pymc_dp.steps.access import ChainAccess, PriorDensity
from pymc_dp.steps.prelude.search import Found, Regression


class PriorInCoordinates:
    """A log-prior as a function of other coordinates: parameters are `to_parameters` times these."""

    def __init__(self, prior: PriorDensity, to_parameters: FloatArray) -> None:
        self._prior, self._to_parameters = prior, to_parameters

    def log_density(self, at: FloatArray) -> float:
        """Return the log-density, which is not that of the coordinates by a constant."""
        return self._prior.log_density(self._to_parameters @ at)

    def gradient(self, at: FloatArray) -> FloatArray:
        """Return its gradient."""
        gradient: FloatArray = self._to_parameters.T @ self._prior.gradient(self._to_parameters @ at)
        return gradient

    def hessian(self, at: FloatArray) -> FloatArray:
        """Return its second derivatives."""
        of_parameters = self._prior.hessian(self._to_parameters @ at)
        hessian: FloatArray = self._to_parameters.T @ of_parameters @ self._to_parameters
        return hessian


class AccessInCoordinates(ChainAccess):
    """A search's access to the curator, whose points are in other coordinates than those of the parameters."""

    def __init__(self, chain: ChainAccess, to_parameters: FloatArray) -> None:
        self._chain, self._to_parameters = chain, to_parameters
        self.prior = PriorInCoordinates(chain.prior, to_parameters)
        self.knows_responses, self.structure = chain.knows_responses, None
        self.unidentified = chain.unidentified  # the same: they move no mean of members
        if chain.structure is not None:
            touched = (to_parameters != 0.0).astype(np.float64)
            self.structure = touched.T @ chain.structure @ touched > 0.0

    def release(self, query: Query, noise_multiplier: float | None = None) -> Release:
        """Ask for the same at the parameters, along the same axes. Where that was is said in coordinates."""
        changes: dict[str, Any] = {}
        if isinstance(point := getattr(query, "point", None), ExpansionPoint):
            changes["point"] = at_parameters(point, self._to_parameters)
        else:
            changes["theta"] = self._to_parameters @ query.theta  # type: ignore[attr-defined]
        made = self._chain.release(replace(query, **changes), noise_multiplier)  # type: ignore[type-var]
        return replace(made, where=query.where)

    def multiplier(self, kind: str) -> float:
        """Return that of the chain."""
        return self._chain.multiplier(kind)

    @property
    def n_units(self) -> int:
        """That of the chain."""
        return self._chain.n_units


def at_parameters(point: ExpansionPoint, to_parameters: FloatArray) -> ExpansionPoint:
    """Return a point in coordinates as one of the parameters, with the same axes."""
    return replace(point, theta=to_parameters @ point.theta, preconditioner=to_parameters @ point.preconditioner)


def regression_in_coordinates(regression: Regression, to_parameters: FloatArray) -> Regression:
    """Return what is public of a model, in coordinates."""
    gathered = (to_parameters - np.eye(len(to_parameters))).T
    return replace(
        regression,
        start=np.linalg.solve(to_parameters, regression.start),
        known=regression.known | gathered.any(axis=1),
        gathered=gathered,
    )


def found_at_parameters(
    found: Found, known: NDArray[np.bool_], to_parameters: FloatArray, structure: NDArray[np.bool_] | None
) -> Found:
    """Return what a search has found of the parameters; `known` are those that the likelihood depends on.

    Members share no row, as `structure` says: what noise says of two of them together is left out.
    """
    from_parameters = np.linalg.inv(to_parameters)
    belief, block = found.belief, np.ix_(known, known)
    of_all = np.ix_(belief.known, belief.known)
    covariance = np.zeros_like(belief.information)
    covariance[of_all] = np.linalg.inv(belief.information[of_all])

    def of_known(matrix: FloatArray) -> FloatArray:
        whole = np.zeros_like(matrix)
        whole[block] = (to_parameters @ matrix @ to_parameters.T)[block]
        return whole

    information = np.zeros_like(covariance)
    information[block] = np.linalg.inv(of_known(covariance)[block])
    possible = information if structure is None else np.where(structure, information, 0.0)
    if np.linalg.eigvalsh(possible[block])[0] > 0.0:
        information = possible
    return replace(
        found,
        centre=at_parameters(found.centre, to_parameters),
        back=from_parameters.T @ found.back,
        belief=replace(
            belief,
            mean=to_parameters @ belief.mean,
            information=0.5 * (information + information.T),
            noise=of_known(belief.noise),
            bias=of_known(belief.bias),
            known=known,
        ),
        foreseen=None if found.foreseen is None else from_parameters.T @ found.foreseen @ from_parameters,
    )
