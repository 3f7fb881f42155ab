"""The way to a centre: a few noisy scores, each followed to the mode of what it lets one believe."""

from typing import TYPE_CHECKING

import numpy as np

from pymc_dp.parameters import FloatArray
from pymc_dp.release.interface import Centre
from pymc_dp.steps.rehearsal import (
    Scale,
    expected_curvature,
    mode_of,
    positive_definite,
    prior_curvature,
    scale_of,
)
from pymc_dp.steps.surrogate_density import WeightedRows

if TYPE_CHECKING:
    from pymc_dp.steps.surrogate import DPSurrogateHMC

#: No Newton step is longer than this many standard deviations of what one unit tells.
_LONGEST_STEP = 1.0
#: The last Newton steps differ by their noise alone: the centre is the mean of that many.
_AVERAGED = 3
_PRIOR_QUANTILE = 0.9
_MODE_ITERATIONS = 60


def find_centre(step: "DPSurrogateHMC") -> tuple[FloatArray, Scale]:
    """Return a private centre, and directions and bounds that suit it."""
    if step.made_up.depends_on_parameters:
        return _by_simulation(step)
    return _by_newton_steps(step)


def _by_newton_steps(step: "DPSurrogateHMC") -> tuple[FloatArray, Scale]:
    """Follow noisy scores with the curvature of the user's made-up units, which is free.

    Directions and bounds are those of the made-up table at its own posterior mode.
    """
    theta, prior = step.prior_point, step.prior
    units = step.made_up.at(theta)
    own_mode = mode_of(units, prior, theta, step.n_units)
    scale = scale_of(units, own_mode, kept=step.kept, with_curvature=step.order == 2)
    visited = []
    for _ in range(step.centre_steps):
        centre = Centre(theta, scale.directions, step.centre_at(theta, scale).clip_gradient)
        gradient = scale.gradient(step.release_score(centre, kind="centre").value) + prior.gradient(theta)
        information = step.n_units * expected_curvature(units, theta)
        move = np.linalg.solve(positive_definite(information + prior_curvature(prior, theta)), gradient)
        length = float(np.sqrt(move @ information @ move / step.n_units))
        theta = theta + move * min(1.0, _LONGEST_STEP / max(length, np.finfo(float).tiny))
        visited.append(theta)
    return np.mean(visited[-_AVERAGED:], axis=0), scale


def _by_simulation(step: "DPSurrogateHMC") -> tuple[FloatArray, Scale]:
    """Go from mode to mode of surrogates made of rows simulated where the last one led.

    Far from the data most scores are long, so the first bound is that of rows from all over the prior. Later ones
    follow what the released scores tell: saturated by the bound, it grows; else it shrinks to the rows' own spread.
    """
    theta, n_units = step.prior_point, step.n_units
    bound = 0.0
    for done in range(step.centre_steps):
        units = step.made_up.at(theta)
        scale = scale_of(units, theta, kept=step.kept, with_curvature=False)
        own = scale.clip_gradient
        if done == 0:
            spread = [step.made_up.at(draw).scores(theta) @ scale.directions for draw in step.made_up.prior_draws()]
            bound = float(np.quantile(np.linalg.norm(np.concatenate(spread), axis=1), _PRIOR_QUANTILE))
            units = step.made_up.at(theta)
        bound = max(bound, own)
        centre = Centre(theta, scale.directions, bound)
        score = step.release_score(centre, kind="centre")
        theta = _mode_of_surrogate(step, WeightedRows(step.prior, centre, units, score.value, n_units), theta)
        mean = float(np.linalg.norm(score.value)) / n_units
        noise = 3.0 * score.noise_std * np.sqrt(step.size) / n_units
        bound = 2.0 * bound if mean > 0.5 * bound else min(bound, own + noise + mean)
    return theta, scale_of(step.made_up.at(theta), theta, kept=step.kept, with_curvature=step.order == 2)


def _mode_of_surrogate(step: "DPSurrogateHMC", surrogate: WeightedRows, theta: FloatArray) -> FloatArray:
    """Return the surrogate's mode: steps with the information of rows simulated where they start, and backtracking."""
    value = surrogate.log_density(theta)
    for _ in range(_MODE_ITERATIONS):
        scores = step.made_up.at(theta).scores(theta)
        information = step.n_units * positive_definite(scores.T @ scores / len(scores), floor=1e-10)
        move = np.linalg.solve(information, surrogate.gradient(theta))
        shorter = 1.0
        while shorter > 1e-6 and not surrogate.log_density(theta + shorter * move) > value:
            shorter *= 0.5
        if shorter <= 1e-6:
            break
        theta = theta + shorter * move
        gain, value = surrogate.log_density(theta) - value, surrogate.log_density(theta)
        if gain < 1e-3:
            break
    return theta
