"""What a step knows of the posterior once its prelude has ended: an expansion, and free draws from it."""

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

#: A scale grows or falls by no more than exp(this) from where a search has measured it.
_MOST_BENT = 7.0
#: Turning a covariance leaves eigenvalues that are so small beside the largest no digits.
_ROUNDING = 1e-12
#: Bounds of gradients do not grow any more where dynamics have left all reason.
_MOST_BEND = 1e6


@dataclass(frozen=True, eq=False, kw_only=True)
class Expansion(Found):
    """The releases at the centre, and the surrogate that follows from them alone: log-prior plus expansion."""

    surrogate: Quadratic
    #: A point near the surrogate's mode, shape (parameters,), and about its negative second derivative there.
    mode: FloatArray
    precision: FloatArray
    #: By which factor noise of the curvature may have made draws too narrow, by parameter: see `doubtful_widths`.
    doubtful_width: FloatArray
    #: The part of the lost length that adds to the bias of the scores' sum.
    bias_of_loss: float
    #: Diagnostics of the surrogate.
    figures: dict[str, float]

    @property
    def beyond(self) -> ExpansionPoint:
        """The centre with the weights of units where remainders of the expansion are released."""
        return replace(self.centre, clip_gradient=LARGEST_CLIP_BOUND, clip_curvature=np.inf)

    def foreseen_at(self, theta: FloatArray) -> float:
        """Return what the belief has foreseen of the log-likelihood beyond its expansion, up to a constant."""
        from_centre = theta - self.centre.theta
        return 0.0 if self.foreseen is None else -0.5 * float(from_centre @ self.foreseen @ from_centre)


@dataclass(frozen=True, eq=False, kw_only=True)
class Approximation(Expansion):
    """A surrogate of the posterior with coordinates in which it is standardised. Its `figures` come with every draw."""

    #: Draws from the surrogate.
    kernel: FreeHMC
    #: Figures for each parameter, as functions of `figures` name and explain them.
    by_parameter: Mapping[str, FloatArray]
    #: A sampler's point z stands for ``origin + axes @ z``: it is standardised, by mean and spread of the draws.
    origin: FloatArray
    axes: FloatArray
    #: The largest remainder of a unit's log-ratio, divided by the `stretch_of` the move; NaN where it is not known.
    remainder: float = np.nan
    #: The largest remainder of a unit's gradient along `axes`, divided by one plus the mean squared distance from the
    #: centre; or the clip bound of that gradient itself; NaN for none.
    clip_gradient: float = np.nan
    #: The bound below which a smaller one buys nothing.
    harmless: float = np.nan

    def theta(self, z: FloatArray) -> FloatArray:
        """Return the parameters that a sampler's point stands for."""
        return self.origin + self.axes @ z

    def point(self, theta: FloatArray) -> FloatArray:
        """Return the sampler's point that stands for the parameters."""
        return np.linalg.solve(self.axes, theta - self.origin)

    def start(self, rng: np.random.Generator) -> FloatArray:
        """Return a draw of the surrogate, for the start of a chain."""
        return self.point(self.kernel.run(self.kernel.theta, 10 * self.kernel.trajectories_apart, rng))

    def standardised(self, theta: FloatArray) -> FloatArray:
        """Return where a point is in standard deviations of the surrogate."""
        return np.linalg.solve(self.kernel.spread, theta - self.kernel.mean)

    def expanded(self, theta: FloatArray, theta_new: FloatArray) -> Expanded:
        """Return what is predicted of every unit's log-ratio."""
        return Expanded(self.beyond, self.surrogate.prediction(theta), self.surrogate.prediction(theta_new))

    def stretch_of(self, theta: FloatArray, theta_new: FloatArray) -> float:
        """Return how what a quadratic expansion misses of a log-ratio grows with the move: by its terms of third order.

        These differ by ``T(u', u', u') - T(u, u, u)`` over 6, for a symmetric form T and standardised distances u and
        u' from the centre: at most by the norm of T times ``|u' - u| (|u|² + |u| |u'| + |u'|²)`` over 6.
        """
        old, new = (np.linalg.solve(self.kernel.spread, at - self.centre.theta) for at in (theta, theta_new))
        a, b = sorted((float(np.linalg.norm(old)), float(np.linalg.norm(new))))  # symmetric to the last bit
        return float(np.linalg.norm(new - old)) * (a * a + a * b + b * b)

    def bound_of_gradient(self, theta: FloatArray) -> float:
        """Return the clip bound of what is missed of a unit's gradient: it grows as terms of second order do."""
        return min(self.clip_gradient * min(self.bend(theta), _MOST_BEND), LARGEST_CLIP_BOUND)

    def bend(self, theta: FloatArray) -> float:
        """Return one plus the mean squared standardised distance from the centre."""
        away = np.linalg.solve(self.kernel.spread, theta - self.centre.theta)
        return 1.0 + float(away @ away) / theta.size

    def bound(self, theta: FloatArray, theta_new: FloatArray) -> float:
        """Return the clip bound of what is missed of a unit's log-ratio: symmetric in the two points, and public."""
        if np.array_equal(theta, theta_new):
            return 0.0
        return max(self.remainder * self.stretch_of(theta, theta_new), self.harmless)


def found_at_parameters(
    found: Found, known: NDArray[np.bool_], coordinates: Coordinates, structure: NDArray[np.bool_] | None
) -> Found:
    """Return what a search has found of the parameters; `known` are those that the likelihood depends on.

    Members share no row, as `structure` says: what noise says of two of them together is left out.
    """
    belief, block = found.belief, np.ix_(known, known)
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
        foreseen=None if found.foreseen is None else from_parameters.T @ found.foreseen @ from_parameters,
    )


def turned(found: Found, coordinates: Coordinates) -> tuple[FloatArray, FloatArray]:
    """Return the parameters at the mean of a belief in coordinates, and the slopes of these there.

    Where noise has led so far that a scale is of another order of magnitude, the map goes on straight from the centre.
    """
    mean, centre = found.belief.mean, found.centre.theta
    slopes = coordinates.slopes(mean)
    if np.abs(np.linalg.slogdet(slopes)[1]) <= _MOST_BENT * mean.size:  # not where that is no number
        return coordinates.parameters(mean), slopes
    slopes = coordinates.slopes(centre)
    return coordinates.parameters(centre) + slopes @ (mean - centre), slopes
