"""The approximation of the posterior after a prelude: an expansion of the log-likelihood, and a sampler of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, Expanded, ExpansionPoint
from pymc_dp.steps.prelude.coordinates import Coordinates, at_parameters
from pymc_dp.steps.prelude.density import Quadratic
from pymc_dp.steps.prelude.free_hmc import FreeHMC
from pymc_dp.steps.prelude.newton import embedded, positive_definite
from pymc_dp.steps.prelude.search import Found

#: The largest log-determinant per parameter of a coordinate map: beyond it the map is linearised at the centre.
_MOST_LOG_SCALE = 7.0
#: Eigenvalues below this part of the largest are rounding error after a change of coordinates.
_ROUNDING = 1e-12
#: The clip bound of gradients stops growing here, where dynamics have diverged.
_MOST_GROWTH = 1e6


@dataclass(frozen=True, eq=False, kw_only=True)
class Expansion(Found):
    """The releases at the centre, and the surrogate that they imply: log-prior plus expansion."""

    surrogate: Quadratic
    #: A point near the surrogate's mode, shape (parameters,), and about the negative second derivative at it.
    mode: FloatArray
    precision: FloatArray
    #: The factor by which noise of the curvature may have made draws too narrow: see `doubtful_widths`.
    doubtful_width: FloatArray
    #: The part of the norm lost by clipping that adds to the bias of the scores' sum.
    bias_of_loss: float
    #: Diagnostics of the surrogate.
    figures: dict[str, float]

    @property
    def beyond(self) -> ExpansionPoint:
        """The centre with unclipped units, at which remainders of the expansion are released."""
        return replace(self.centre, clip_gradient=LARGEST_CLIP_BOUND, clip_curvature=np.inf)

    def extra_at(self, theta: FloatArray) -> float:
        """Return the quadratic form of `extra_curvature` at a point, up to a constant."""
        from_centre = theta - self.centre.theta
        return 0.0 if self.extra_curvature is None else -0.5 * float(from_centre @ self.extra_curvature @ from_centre)


@dataclass(frozen=True, eq=False, kw_only=True)
class Approximation(Expansion):
    """A surrogate of the posterior and coordinates that standardise it. Its `figures` come with every draw."""

    #: Draws from the surrogate.
    kernel: FreeHMC
    #: Diagnostics by parameter: see `pymc_dp.steps.prelude.figures`.
    by_parameter: Mapping[str, FloatArray]
    #: A sampler's point z stands for ``origin + axes @ z``: standardised by mean and covariance of the draws.
    origin: FloatArray
    axes: FloatArray
    #: The largest remainder of a unit's log-ratio over the `stretch_of` of the move; NaN if unknown.
    remainder: float = np.nan
    #: The largest remainder of a unit's gradient along `axes` over the `square_growth`; or its clip bound; NaN for
    #: none.
    clip_gradient: float = np.nan
    #: The smallest clip bound of a log-ratio: with it the noise is already negligible.
    least_bound: float = np.nan

    def theta(self, z: FloatArray) -> FloatArray:
        """Return the parameters at a sampler's point."""
        return self.origin + self.axes @ z

    def point(self, theta: FloatArray) -> FloatArray:
        """Return the sampler's point of the parameters."""
        return np.linalg.solve(self.axes, theta - self.origin)

    def start(self, rng: np.random.Generator) -> FloatArray:
        """Return a draw of the surrogate, for the start of a chain."""
        return self.point(self.kernel.run(self.kernel.theta, 10 * self.kernel.trajectories_apart, rng))

    def standardised(self, theta: FloatArray) -> FloatArray:
        """Return the parameters, standardised by the mean and covariance of the surrogate."""
        return np.linalg.solve(self.kernel.spread, theta - self.kernel.mean)

    def expanded(self, theta: FloatArray, theta_new: FloatArray) -> Expanded:
        """Return the predictions of every unit's log-ratio."""
        return Expanded(self.beyond, self.surrogate.prediction(theta), self.surrogate.prediction(theta_new))

    def stretch_of(self, theta: FloatArray, theta_new: FloatArray) -> float:
        """Return the growth of the remainder of a log-ratio with the move: that of third-order terms.

        These differ by ``T(u', u', u') - T(u, u, u)`` over 6, for a symmetric form T and standardised displacements u
        and u' from the centre: at most by the norm of T times ``|u' - u| (|u|² + |u| |u'| + |u'|²)`` over 6.
        """
        old, new = (np.linalg.solve(self.kernel.spread, at - self.centre.theta) for at in (theta, theta_new))
        a, b = sorted((float(np.linalg.norm(old)), float(np.linalg.norm(new))))  # symmetric to the last bit
        return float(np.linalg.norm(new - old)) * (a * a + a * b + b * b)

    def bound_of_gradient(self, theta: FloatArray) -> float:
        """Return the clip bound of the remainder of a unit's gradient: it grows as second-order terms."""
        return min(self.clip_gradient * min(self.square_growth(theta), _MOST_GROWTH), LARGEST_CLIP_BOUND)

    def square_growth(self, theta: FloatArray) -> float:
        """Return one plus the mean squared standardised displacement from the centre."""
        u = np.linalg.solve(self.kernel.spread, theta - self.centre.theta)
        return 1.0 + float(u @ u) / theta.size

    def bound(self, theta: FloatArray, theta_new: FloatArray) -> float:
        """Return the clip bound of the remainder of a unit's log-ratio: symmetric in the points, and public."""
        if np.array_equal(theta, theta_new):
            return 0.0
        return max(self.remainder * self.stretch_of(theta, theta_new), self.least_bound)


def found_at_parameters(
    found: Found, known: NDArray[np.bool_], coordinates: Coordinates, structure: NDArray[np.bool_] | None
) -> Found:
    """Return a search's result in the parameters; `known` are those in the likelihood.

    Entries between members that share no row, by `structure`, are noise and are removed.
    """
    belief, extra, block = found.belief, found.extra_curvature, np.ix_(known, known)
    from_parameters = np.linalg.inv(coordinates.slopes(found.centre.theta))
    mean, to_parameters = turned(found, coordinates)
    covariance = embedded(np.linalg.inv(belief.information[np.ix_(belief.known, belief.known)]), belief.known)

    def of_known(matrix: FloatArray) -> FloatArray:
        return embedded(positive_definite((to_parameters @ matrix @ to_parameters.T)[block], floor=_ROUNDING), known)

    information = embedded(positive_definite(np.linalg.inv(of_known(covariance)[block])), known)
    possible = information if structure is None else np.where(structure, information, 0.0)
    if np.linalg.eigvalsh(possible[block])[0] > 0.0:
        information = possible
    return replace(
        found,
        centre=at_parameters(found.centre, coordinates),
        back=from_parameters.T @ found.back,
        belief=replace(
            belief,
            mean=mean,
            information=information,
            noise=of_known(belief.noise),
            bias=of_known(belief.bias),
            known=known,
        ),
        extra_curvature=None if extra is None else from_parameters.T @ extra @ from_parameters,
    )


def turned(found: Found, coordinates: Coordinates) -> tuple[FloatArray, FloatArray]:
    """Return the parameters at the mean of a belief in coordinates, and their derivatives by the coordinates.

    The map is linearised at the centre if noise has moved a scale by orders of magnitude.
    """
    mean, centre = found.belief.mean, found.centre.theta
    slopes = coordinates.slopes(mean)
    if np.abs(np.linalg.slogdet(slopes)[1]) <= _MOST_LOG_SCALE * mean.size:  # false where the determinant is not finite
        return coordinates.parameters(mean), slopes
    slopes = coordinates.slopes(centre)
    return coordinates.parameters(centre) + slopes @ (mean - centre), slopes
