"""A search in other coordinates than the parameters', where log-likelihoods are nearer to a parabola, or known better.

*Members of a hierarchy* apart from the mean that their prior gives them. The prior, N(mu, tau²), has a mean of its own
parameters. On these the likelihood does not depend, but on the members alone; beside a covariate that is far from zero,
all members move together. Here the mean is taken off them, and is a parameter of the likelihood itself: what all rows
say of it is one entry of each release.

*The location of censored rows* in units of their scale. Where few rows have an event, location and scale are far beyond
the rows, and what is known well is a hazard: the ratio of the two. In it the log-likelihood of a normal regression is
concave (Olsen 1978), and that of a Weibull distribution is as that of counts.

References
----------
Olsen (1978), Note on the uniqueness of the maximum likelihood estimator for the Tobit model, Econometrica.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint, Release
from pymc_dp.release.query import Query
from pymc_dp.steps.access import ChainAccess, PriorDensity


class Coordinates(Protocol):
    """A smooth map, with an inverse, from coordinates of a search to the parameters."""

    def parameters(self, at: FloatArray) -> FloatArray:
        """Return the parameters at a point in coordinates."""

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Which parameters (rows) depend on which coordinates (columns)."""

    def slopes(self, at: FloatArray) -> FloatArray:
        """Return the derivatives of the parameters (rows) by the coordinates (columns)."""

    def bent(self, at: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return the second derivatives by the coordinates of the parameters times `gradient`."""


@dataclass(frozen=True, eq=False)
class LinearCoordinates:
    """Parameters are a matrix times coordinates."""

    matrix: FloatArray

    def parameters(self, at: FloatArray) -> FloatArray:
        """Return the product."""
        return self.matrix @ at

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Where the matrix is not zero."""
        found: NDArray[np.bool_] = self.matrix != 0.0
        return found

    def slopes(self, at: FloatArray) -> FloatArray:
        """Return the matrix."""
        return self.matrix

    def bent(self, at: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return zeros."""
        return np.zeros_like(self.matrix)


@dataclass(frozen=True, eq=False)
class InUnitsOfScale:
    """The location of rows is measured from an anchor, in units of their scale over that at the anchor.

    `location` says which parameters are the location. The logarithm of the scale is `logarithm` times the parameters,
    of which it has 1 for the logarithm of the scale itself, or -1 for that of a shape.
    """

    anchor: FloatArray
    location: NDArray[np.bool_]
    logarithm: FloatArray

    def _away(self, at: FloatArray) -> tuple[float, FloatArray]:
        """Return the unit, and how far the location is from the anchor, as parameters."""
        unit = float(np.exp(self.logarithm @ (at - self.anchor)))
        return unit, np.where(self.location, unit * (at - self.anchor), 0.0)

    def parameters(self, at: FloatArray) -> FloatArray:
        """Return the parameters: those of the location times the unit."""
        return np.where(self.location, self.anchor + self._away(at)[1], at)

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Each by itself, and the location by the scale."""
        return np.eye(self.anchor.size, dtype=bool) | np.outer(self.location, self.logarithm != 0.0)

    def slopes(self, at: FloatArray) -> FloatArray:
        """Return the derivatives: of the location by the scale, too."""
        unit, away = self._away(at)
        return np.diag(np.where(self.location, unit, 1.0)) + np.outer(away, self.logarithm)

    def bent(self, at: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return second derivatives: those by the logarithm of the scale, and by that and the location."""
        unit, away = self._away(at)
        mixed = np.outer(np.where(self.location, unit * gradient, 0.0), self.logarithm)
        found: FloatArray = mixed + mixed.T + (gradient @ away) * np.outer(self.logarithm, self.logarithm)
        return found


class PriorInCoordinates:
    """A log-prior as a function of other coordinates. It is not the log-density of these."""

    def __init__(self, prior: PriorDensity, coordinates: Coordinates) -> None:
        self._prior, self._coordinates = prior, coordinates

    def log_density(self, at: FloatArray) -> float:
        """Return the log-density of the parameters."""
        return self._prior.log_density(self._coordinates.parameters(at))

    def gradient(self, at: FloatArray) -> FloatArray:
        """Return its gradient."""
        return self._coordinates.slopes(at).T @ self._prior.gradient(self._coordinates.parameters(at))

    def hessian(self, at: FloatArray) -> FloatArray:
        """Return its second derivatives."""
        theta, slopes = self._coordinates.parameters(at), self._coordinates.slopes(at)
        hessian: FloatArray = slopes.T @ self._prior.hessian(theta) @ slopes
        return hessian + self._coordinates.bent(at, self._prior.gradient(theta))


class AccessInCoordinates(ChainAccess):
    """A search's access to the curator, whose points are in other coordinates than those of the parameters."""

    def __init__(self, chain: ChainAccess, coordinates: Coordinates) -> None:
        self._chain, self._coordinates = chain, coordinates
        self.prior = PriorInCoordinates(chain.prior, coordinates)
        self.knows_responses, self.structure = chain.knows_responses, None
        self.unidentified = chain.unidentified  # the same: they move no mean of members
        if chain.structure is not None:
            touched = coordinates.reached.astype(np.float64)
            self.structure = touched.T @ chain.structure @ touched > 0.0

    def release(self, query: Query, noise_multiplier: float | None = None) -> Release:
        """Ask for the same at the parameters, along the same axes. Where that was is said in coordinates."""
        if isinstance(point := getattr(query, "point", None), ExpansionPoint):
            there: dict[str, Any] = {"point": at_parameters(point, self._coordinates)}
        else:
            there = {"theta": self._coordinates.parameters(query.theta)}  # type: ignore[attr-defined]
        made = self._chain.release(replace(query, **there), noise_multiplier)  # type: ignore[type-var]
        return replace(made, where=query.where)

    def multiplier(self, kind: str) -> float:
        """Return that of the chain."""
        return self._chain.multiplier(kind)

    @property
    def n_units(self) -> int:
        """That of the chain."""
        return self._chain.n_units


def at_parameters(point: ExpansionPoint, coordinates: Coordinates) -> ExpansionPoint:
    """Return a point in coordinates as one of the parameters, with the same axes."""
    theta, slopes = coordinates.parameters(point.theta), coordinates.slopes(point.theta)
    return replace(point, theta=theta, preconditioner=slopes @ point.preconditioner)
