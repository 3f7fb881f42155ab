"""The way to a centre: a few noisy Newton steps from the prior towards the posterior's mode."""

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

if TYPE_CHECKING:
    from pymc_dp.steps.surrogate import DPSurrogateHMC

#: No step is longer than this many standard deviations of what one unit tells.
_LONGEST_STEP = 1.0
#: The last steps differ by their noise alone: the centre is the mean of that many.
_AVERAGED = 3


def find_centre(step: "DPSurrogateHMC") -> tuple[FloatArray, Scale]:
    """Return a private centre, and directions and bounds that suit it.

    Each step releases a score, clipped along directions in which made-up scores are spread alike, and follows it with
    the curvature of made-up units, which is free.
    """
    theta = step.prior_point
    made_up, prior = step.made_up, step.prior
    fixed = None
    if not made_up.depends_on_parameters:
        units = made_up.at(theta)
        own_mode = mode_of(units, prior, theta, step.n_units)
        fixed = scale_of(units, own_mode, with_curvature=step.order == 2)
    visited = []
    for _ in range(step.centre_steps):
        units = made_up.at(theta)
        scale = fixed or scale_of(units, theta, with_curvature=False)
        centre = Centre(theta, scale.directions, step.centre_at(theta, scale).clip_gradient)
        gradient = scale.gradient(step.release_score(centre, kind="centre").value) + prior.gradient(theta)
        information = step.n_units * expected_curvature(units, theta)
        move = np.linalg.solve(positive_definite(information + prior_curvature(prior, theta)), gradient)
        length = float(np.sqrt(move @ information @ move / step.n_units))
        theta = theta + move * min(1.0, _LONGEST_STEP / max(length, np.finfo(float).tiny))
        visited.append(theta)
    theta = np.mean(visited[-_AVERAGED:], axis=0)
    return theta, fixed or scale_of(made_up.at(theta), theta, with_curvature=step.order == 2)
