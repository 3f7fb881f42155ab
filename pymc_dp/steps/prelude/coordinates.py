"""Coordinates of a search in which the log-likelihood is nearer to a quadratic, or has more information per entry.

*Members of a hierarchy* relative to the mean of their prior. The prior N(mu, tau²) has a mean with parameters of its
own, on which the likelihood does not depend; with a covariate that is far from zero, all members move together. Here
the mean is subtracted from the members and is a parameter of the likelihood: all rows add to one entry.

*The location of censored rows* in units of their scale. If few rows have an event, location and scale are far beyond
the rows, and the hazard, which depends on their ratio, is well determined. In the ratio the log-likelihood of a normal
regression is concave (Olsen 1978), and that of a Weibull distribution resembles that of counts.

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
    """A smooth invertible map from a search's coordinates to the parameters."""

    def parameters(self, at: FloatArray) -> FloatArray:
        """Return the parameters at a point in coordinates."""

    @property
    def reached(self) -> NDArray[np.bool_]:
        """A matrix of which parameters (rows) depend on which coordinates (columns)."""

    def slopes(self, at: FloatArray) -> FloatArray:
        """Return the derivatives of the parameters (rows) by the coordinates (columns)."""

    def second_order(self, at: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return the Hessian, by the coordinates, of the inner product of parameters and `gradient`."""


@dataclass(frozen=True, eq=False)
class LinearCoordinates:
    """Parameters are a matrix times coordinates."""

    matrix: FloatArray

    def parameters(self, at: FloatArray) -> FloatArray:
        """Return the product."""
        return self.matrix @ at

    @property
    def reached(self) -> NDArray[np.bool_]:
        """The nonzero entries of the matrix."""
        found: NDArray[np.bool_] = self.matrix != 0.0
        return found

    def slopes(self, at: FloatArray) -> FloatArray:
        """Return the matrix."""
        return self.matrix

    def second_order(self, at: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return zeros."""
        return np.zeros_like(self.matrix)


@dataclass(frozen=True, eq=False)
class InUnitsOfScale:
    """The location of rows relative to an anchor, in units of their scale over that at the anchor.

    `location` marks the parameters of the location. The logarithm of the scale is the inner product of `logarithm` and
    the parameters: 1 for the logarithm of the scale itself, -1 for that of a shape.
    """

    anchor: FloatArray
    location: NDArray[np.bool_]
    logarithm: FloatArray

    def _displacement(self, at: FloatArray) -> tuple[float, FloatArray]:
        """Return the unit, and the displacement of the location from the anchor in the parameters."""
        unit = float(np.exp(self.logarithm @ (at - self.anchor)))
        return unit, np.where(self.location, unit * (at - self.anchor), 0.0)

    def parameters(self, at: FloatArray) -> FloatArray:
        """Return the parameters: those of the location times the unit."""
        return np.where(self.location, self.anchor + self._displacement(at)[1], at)

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Each parameter depends on its own coordinate, and the location on the scale."""
        return np.eye(self.anchor.size, dtype=bool) | np.outer(self.location, self.logarithm != 0.0)

    def slopes(self, at: FloatArray) -> FloatArray:
        """Return the derivatives, including those of the location by the scale."""
        unit, displacement = self._displacement(at)
        return np.diag(np.where(self.location, unit, 1.0)) + np.outer(displacement, self.logarithm)

    def second_order(self, at: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return the second derivatives by the log scale, and by the log scale and the location."""
        unit, displacement = self._displacement(at)
        mixed = np.outer(np.where(self.location, unit * gradient, 0.0), self.logarithm)
        found: FloatArray = mixed + mixed.T + (gradient @ displacement) * np.outer(self.logarithm, self.logarithm)
        return found


class PriorInCoordinates:
    """The log-prior as a function of coordinates, without the Jacobian of the map."""

    def __init__(self, prior: PriorDensity, coordinates: Coordinates) -> None:
        self._prior, self._coordinates = prior, coordinates

    def log_density(self, at: FloatArray) -> float:
        """Return the log-density of the parameters."""
        return self._prior.log_density(self._coordinates.parameters(at))

    def gradient(self, at: FloatArray) -> FloatArray:
        """Return the gradient by the coordinates."""
        return self._coordinates.slopes(at).T @ self._prior.gradient(self._coordinates.parameters(at))

    def hessian(self, at: FloatArray) -> FloatArray:
        """Return the second derivatives by the coordinates."""
        theta, slopes = self._coordinates.parameters(at), self._coordinates.slopes(at)
        hessian: FloatArray = slopes.T @ self._prior.hessian(theta) @ slopes
        return hessian + self._coordinates.second_order(at, self._prior.gradient(theta))


class AccessInCoordinates(ChainAccess):
    """A search's access to the curator, with points in coordinates."""

    def __init__(self, chain: ChainAccess, coordinates: Coordinates) -> None:
        self._chain, self._coordinates = chain, coordinates
        self.prior = PriorInCoordinates(chain.prior, coordinates)
        self.knows_responses, self.structure = chain.knows_responses, None
        self.unidentified = chain.unidentified  # the same in coordinates: these directions move no mean of members
        if chain.structure is not None:
            touched = coordinates.reached.astype(np.float64)
            self.structure = touched.T @ chain.structure @ touched > 0.0

    def release(self, query: Query, noise_multiplier: float | None = None) -> Release:
        """Release the query at the parameters, along the same axes; return its point in coordinates."""
        if isinstance(point := getattr(query, "point", None), ExpansionPoint):
            moved: dict[str, Any] = {"point": at_parameters(point, self._coordinates)}
        else:
            moved = {"theta": self._coordinates.parameters(query.theta)}  # type: ignore[attr-defined]
        made = self._chain.release(replace(query, **moved), noise_multiplier)  # type: ignore[type-var]
        return replace(made, where=query.where)

    def multiplier(self, kind: str) -> float:
        """Return the chain's noise multiplier."""
        return self._chain.multiplier(kind)

    @property
    def n_units(self) -> int:
        """The chain's number of units."""
        return self._chain.n_units


def at_parameters(point: ExpansionPoint, coordinates: Coordinates) -> ExpansionPoint:
    """Return the expansion point of the parameters for a point in coordinates, with the same axes."""
    theta, slopes = coordinates.parameters(point.theta), coordinates.slopes(point.theta)
    return replace(point, theta=theta, preconditioner=slopes @ point.preconditioner)
