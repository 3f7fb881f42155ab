"""The way to a centre: a few noisy scores, each followed to the mode of what it lets one believe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pymc_dp.parameters import FloatArray
from pymc_dp.release.interface import Centre, Release
from pymc_dp.steps.base import PublicUnits
from pymc_dp.steps.rehearsal import (
    Scale,
    climbed,
    curvature_bound,
    expected_curvature,
    mode_of,
    positive_definite,
    prior_curvature,
    scale_of,
    shortened,
    unpacked,
    whole_step,
)
from pymc_dp.steps.surrogate_density import WeightedRows

if TYPE_CHECKING:
    from pymc_dp.steps.surrogate import DPSurrogateHMC

#: The last Newton steps differ by their noise alone: the centre is the mean of that many.
_AVERAGED = 3
_PRIOR_QUANTILE = 0.9
_LEAST_RATIO = 0.02
_LEAST_OF_MODE = 0.5
#: Part of the centre's cost for the curvature at the prior's point.
EARLY_CURVATURE_SHARE = 0.1
#: How many of the steps are the last ones, and how much more each of them may cost, by whether rows are simulated.
_LAST_STEPS = {False: (3, 3.0), True: (2, 8.0)}
_MODE_ITERATIONS = 60
_STEP_REPETITIONS = 6
#: How often a score is taken for a contradiction that is none.
_FALSE_CONTRADICTION = 0.01


@dataclass(frozen=True, eq=False)
class WayToCentre:
    """A private centre, and what was released on the way there.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The centre.
    scale : Scale
        Directions and bounds that suit it.
    information : ndarray, shape (parameters, parameters)
        The curvature of the log-likelihood of all units there, as far as it is known.
    scores : tuple of Release
        The last ones, along the same directions and with the same bound as the score at the centre will be.
    """

    theta: FloatArray
    scale: Scale
    information: FloatArray
    scores: tuple[Release, ...] = ()


def centre_schedule(steps: int, *, simulated: bool) -> list[tuple[str, int, float]]:
    """Return the kinds of scores released on the way: their number and their part of the centre's cost.

    The first steps need little precision; the last ones decide how close the centre is.
    """
    last, weight = _LAST_STEPS[simulated]
    last = min(last, steps)
    of_scores = 1.0 if simulated else 1.0 - EARLY_CURVATURE_SHARE
    together = (steps - last) + weight * last
    schedule = [("centre", last, of_scores * weight * last / together)]
    if steps > last:
        schedule.insert(0, ("approach", steps - last, of_scores * (steps - last) / together))
    return schedule


def _kinds(step: "DPSurrogateHMC", *, simulated: bool) -> list[str]:
    """Return the kind of every step's score, in order."""
    return [kind for kind, count, _ in centre_schedule(step.centre_steps, simulated=simulated) for _ in range(count)]


def find_centre(step: "DPSurrogateHMC") -> WayToCentre:
    """Return a private centre, and directions and bounds that suit it."""
    if step.made_up.depends_on_parameters:
        return _by_simulation(step)
    return _by_newton_steps(step)


def _by_newton_steps(step: "DPSurrogateHMC") -> WayToCentre:
    """Follow noisy scores with the curvature of the user's made-up units, which is free.

    Directions and bounds are those of the made-up table at its own posterior mode.
    """
    theta, prior = step.prior_point, step.prior
    units = step.made_up.at(theta)
    own_mode = mode_of(units, prior, theta, step.n_units)
    scale = scale_of(units, own_mode, kept=step.kept, with_curvature=step.order == 2)
    information_at = _information(step, units, scale, own_mode)
    visited, scores = [], []
    for kind in _kinds(step, simulated=False):
        centre = Centre(theta, scale.directions, step.centre_at(theta, scale).clip_gradient)
        scores.append(step.release_score(centre, kind))
        gradient = scale.gradient(scores[-1].value) + prior.gradient(theta)
        theta = theta + _consistent_step(step, units, theta, gradient, information_at)
        visited.append(theta)
    theta = np.mean(visited[-_AVERAGED:], axis=0)
    return WayToCentre(theta, scale, information_at(theta), tuple(scores[-_AVERAGED:]))


def _consistent_step(
    step: "DPSurrogateHMC",
    units: PublicUnits,
    theta: FloatArray,
    gradient: FloatArray,
    information_at: Callable[[FloatArray], FloatArray],
) -> FloatArray:
    """Return a Newton step with the mean curvature on its own way, which is found by repetition.

    Where the curvature grows along the step, as in a Poisson regression, a step by the curvature at its beginning
    leads too far, and where it falls, not far enough.
    """
    from_prior = prior_curvature(step.prior, theta)
    begin = information_at(theta)
    way = shortened(units, from_prior, theta, whole_step(from_prior, gradient, begin))
    for _ in range(_STEP_REPETITIONS):
        # Simpson's rule: exact up to cubic changes of the curvature.
        information = (begin + 4.0 * information_at(theta + 0.5 * way) + information_at(theta + way)) / 6.0
        way = shortened(
            units, from_prior, theta, 0.5 * (way + whole_step(from_prior, gradient, information)), times=2.0
        )
    return shortened(units, from_prior, theta, way)


def pooled_score(
    way: WayToCentre, units: PublicUnits, n_units: int, score: Release, information: FloatArray
) -> tuple[FloatArray, float]:
    """Return the score at the centre as the last releases together tell it, and the standard deviation of its noise.

    A score released at another point is carried to the centre by the curvature that was released. What that misses is
    of second order in the distance, as made-up units have it, and counts like noise. A score that contradicts the one
    at the centre by more than noise explains is left out: the curvature is wrong then, or many units were cut where it
    was released.
    """
    there, scale = score.where[0], way.scale
    at_centre, bend = units.scores(there), expected_curvature(units, there)
    carried, variances = [score.value], [score.noise_std**2]
    for release in way.scores:
        step = there - release.where[0]
        value = release.value - scale.directions.T @ (information @ step)
        changes = units.scores(release.where[0]) - at_centre
        missed = n_units * (changes[np.isfinite(changes).all(axis=1)].mean(axis=0) - bend @ step) @ scale.directions
        variance = release.noise_std**2 + float(np.mean(missed**2))
        contradiction = float(np.sum((value - score.value) ** 2)) / (variance + score.noise_std**2)
        if contradiction < stats.chi2.isf(_FALSE_CONTRADICTION, value.size):
            carried.append(value)
            variances.append(variance)
    precisions = 1.0 / np.array(variances)
    return precisions @ np.array(carried) / precisions.sum(), float(precisions.sum() ** -0.5)


def _information(
    step: "DPSurrogateHMC", units: PublicUnits, scale: Scale, own_mode: FloatArray
) -> Callable[[FloatArray], FloatArray]:
    """Return the curvature of the log-likelihood of all units, about, as a function of the parameters.

    Made-up units know how it changes with the parameters, but may have groups of other sizes or covariates of another
    spread than the protected ones. So the curvature is released once, at the prior's point, and the ratio of the two
    is kept from there on. What does not rise above the noise is left as the made-up units have it. Where a noisy step
    has led far away, curvature vanishes (a logistic regression saturates) and the next step would lead further: so it
    is never taken for much less than at the made-up units' own mode.
    """
    theta = step.prior_point
    bound = curvature_bound(units, theta, scale.directions, 1.0)
    released = step.release_curvature(Centre(theta, scale.directions, np.inf, bound), kind="early_curvature")
    made_up = step.n_units * expected_curvature(units, theta)
    known = known_block(made_up)
    root = np.linalg.inv(np.linalg.cholesky(made_up[known]))
    ratio = root @ informed(made_up, released, scale)[known] @ root.T

    def corrected(at: FloatArray) -> FloatArray:
        factor = np.linalg.cholesky(step.n_units * expected_curvature(units, at)[known])
        informed_there: FloatArray = factor @ ratio @ factor.T
        return informed_there

    least = np.linalg.cholesky(corrected(own_mode))
    relative = np.linalg.inv(least)

    def information(at: FloatArray) -> FloatArray:
        values, vectors = np.linalg.eigh(relative @ corrected(at) @ relative.T)
        factor = least @ (vectors * np.sqrt(np.maximum(values, _LEAST_OF_MODE)))
        found = np.zeros_like(made_up)
        found[known] = factor @ factor.T
        return found

    return information


def known_block(information: FloatArray) -> tuple[NDArray[np.intp], ...]:
    """Return the index of the block of the parameters that the likelihood knows: those with any information."""
    return np.ix_(*2 * [np.diag(information) > 0.0])


def informed(expected: FloatArray, released: Release, scale: Scale) -> FloatArray:
    """Return the curvature of the log-likelihood of all units: `expected`, corrected by a release.

    The eigenvalues of the difference of the two are shrunk as is best for a matrix of low rank in this noise, whose own
    eigenvalues reach up to ``noise_std sqrt(2 size)``: what does not rise above it is left as expected.

    References
    ----------
    Gavish and Donoho (2017), Optimal shrinkage of singular values, IEEE Transactions on Information Theory 63, for
    Frobenius loss.
    """
    along = scale.directions.T @ expected @ scale.directions
    values, vectors = np.linalg.eigh(unpacked(released.value, len(along)) - along)
    reach = released.noise_std * np.sqrt(2.0 * len(along))
    values = np.sign(values) * np.sqrt(np.maximum(values**2 - reach**2, 0.0))
    told = scale.curvature(along + (vectors * values) @ vectors.T)
    known = known_block(expected)
    root = np.linalg.cholesky(positive_definite(expected[known], floor=1e-12))
    inverse = np.linalg.inv(root)
    found = np.zeros_like(expected)
    found[known] = root @ positive_definite(inverse @ told[known] @ inverse.T, floor=_LEAST_RATIO) @ root.T
    return found


def _by_simulation(step: "DPSurrogateHMC") -> WayToCentre:
    """Go from mode to mode of surrogates made of rows simulated where the last one led.

    Far from the data most scores are long, so the first bound is that of rows from all over the prior. Later ones
    follow what the released scores tell: saturated by the bound, it grows; else it shrinks to the rows' own spread.
    """
    theta, n_units = step.prior_point, step.n_units
    bound = 0.0
    for done, kind in enumerate(_kinds(step, simulated=True)):
        units = step.made_up.at(theta)
        scale = scale_of(units, theta, kept=step.kept, with_curvature=False)
        own = scale.clip_gradient
        if done == 0:
            spread = [step.made_up.at(draw).scores(theta) @ scale.directions for draw in step.made_up.prior_draws()]
            bound = float(np.quantile(np.linalg.norm(np.concatenate(spread), axis=1), _PRIOR_QUANTILE))
            units = step.made_up.at(theta)
        bound = max(bound, own)
        centre = Centre(theta, scale.directions, bound)
        score = step.release_score(centre, kind)
        theta = _mode_of_surrogate(step, WeightedRows(step.prior, centre, units, score.value, n_units), theta)
        mean = float(np.linalg.norm(score.value)) / n_units
        noise = 3.0 * score.noise_std * np.sqrt(step.size) / n_units
        bound = 2.0 * bound if mean > 0.5 * bound else min(bound, own + noise + mean)
    units = step.made_up.at(theta)
    scale = scale_of(units, theta, kept=step.kept, with_curvature=step.order == 2)
    return WayToCentre(theta, scale, n_units * expected_curvature(units, theta))


def _mode_of_surrogate(step: "DPSurrogateHMC", surrogate: WeightedRows, theta: FloatArray) -> FloatArray:
    """Return the surrogate's mode: steps with the information of rows simulated where they start, and backtracking."""

    def step_at(at: FloatArray) -> FloatArray:
        scores = step.made_up.at(at).scores(at)
        information = step.n_units * positive_definite(scores.T @ scores / len(scores), floor=1e-10)
        return np.linalg.solve(information, surrogate.gradient(at))

    return climbed(surrogate.log_density, step_at, theta, most_steps=_MODE_ITERATIONS, least_gain=1e-3)
