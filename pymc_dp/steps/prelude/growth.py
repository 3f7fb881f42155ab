"""How curvatures grow or fall along the way, where the model says which responses a row could have had.

The curvature of a rare event is in proportion to its chance and falls with it: a step of Newton's method then changes a
log odds by about 1, however far the way is. Every unit has an expected curvature, whether its response is a rare one or
not. A histogram of their sizes, at two points, tells how fast they grow or fall in between; so fast, exponentially,
they are taken to go on. Sizes of the curvatures of clipped scores say which part of a score's slope clipping leaves.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import Belief, KnownScore

_HARDLY = 1e-6  # a growth that rounding would hide


def mean_of_exponential(growth: float) -> float:
    """Return the mean over the way of what goes from 1 to exp(`growth`) at a constant rate."""
    return float(np.expm1(growth) / growth) if abs(growth) > _HARDLY else 1.0


def growth_of_mean(mean: float) -> float:
    """Return the growth of which `mean_of_exponential` is `mean`, a positive number."""
    from scipy.special import lambertw  # noqa: PLC0415  slow to import

    if abs(mean - 1.0) < _HARDLY:
        return 0.0
    return float(-1.0 / mean - lambertw(-np.exp(-1.0 / mean) / mean, -1 if mean > 1.0 else 0).real)


def times_newton(growth: float) -> float:
    """Return how many times as long as Newton's a step is, if along Newton's the curvature grows by exp(`growth`).

    A part x of that step takes (exp(growth x) - 1) / growth off the score, in units of all of it.
    """
    growth = max(growth, settings.MOST_FALL)
    return float(np.log1p(growth) / growth) if abs(growth) > _HARDLY else 1.0


def on_one_parabola(scores: Sequence[KnownScore], curvature: FloatArray, places: NDArray[np.bool_]) -> list[KnownScore]:
    """Return scores as if the curvature at the last of them were that of the whole way.

    Between two points the curvature is on average a multiple of what it is at the last. Where it is another one by more
    than `settings.MOST_GROWTH`, a score says nothing of the end of the way and is left out.
    """
    last, found = scores[-1], []
    for score in scores:
        growth = score.level - last.level
        if abs(growth) <= settings.MOST_GROWTH:
            more = (mean_of_exponential(growth) - 1.0) * np.where(places, last.theta - score.theta, 0.0)
            found.append(replace(score, gradient=score.gradient - curvature @ more))
    return found


def regrown(
    belief: Belief, place: int, before: FloatArray, theta: FloatArray, error: float, noise: float
) -> Belief | None:
    """Return a likelihood whose information on one parameter grew along a step, or None if the step did not overshoot.

    The score of that parameter at `theta` is `error` more than the likelihood says, with a standard deviation of its
    `noise`. If this is clearly a score of the other sign, the information has grown since the point `before`:
    exponentially, at a rate c that is known from how much the score has fallen. The maximum, which by the information
    at `before` is D away from there, then is log(1 + c D) / c away, and the information there 1 + c D times as large.
    """
    along, covariance = belief.information[place], belief.noise + belief.bias
    fall = float(along @ (theta - before))
    way, told = float((theta - before)[place]), float((belief.mean - before)[place])
    off = float(np.sqrt(along @ covariance @ along + noise**2))
    if not (fall * error < -settings.CLEARLY_OVERSHOT * off * abs(fall) and told * way > 0.0):
        return None
    times = 1.0 - error / fall
    growth = growth_of_mean(times)
    if not 0.0 < growth <= settings.FASTEST_GROWTH * abs(way):  # there is another reason
        return None
    larger = 1.0 + growth * told / way
    found = way * float(np.log(larger)) / growth
    mean, sizes, narrower = belief.mean.copy(), np.ones(theta.size), np.ones(theta.size)
    mean[place] = before[place] + found
    sizes[place], narrower[place] = np.sqrt(larger), 1.0 / larger
    bias = belief.bias * np.outer(narrower, narrower)
    # A straight line would end the way earlier.
    bias[place, place] += (0.5 * (found - told / times)) ** 2
    return replace(
        belief,
        mean=mean,
        information=belief.information * np.outer(sizes, sizes),
        noise=belief.noise * np.outer(narrower, narrower),
        bias=bias,
    )
