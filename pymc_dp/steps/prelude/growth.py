"""The growth of curvatures along a step, where the model determines the possible responses of a row.

The curvature of a rare event is proportional to its probability: a Newton step then changes a log odds by about 1,
however far the maximum is. Every unit has an expected curvature, whatever its response. The mean norms in histograms at
two points give the rate of growth or decline between them, which is extrapolated as exponential. The norms of the
curvatures of clipped scores give the part of a score's slope that clipping leaves.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import Belief, KnownScore
from pymc_dp.steps.prelude.curvature import KnownCurvature

_HARDLY = 1e-6  # a growth within rounding error


def mean_of_exponential(growth: float) -> float:
    """Return the mean of exp(`growth` x) over x in [0, 1]."""
    return float(np.expm1(growth) / growth) if abs(growth) > _HARDLY else 1.0


def growth_of_mean(mean: float) -> float:
    """Return the growth whose `mean_of_exponential` is `mean`, a positive number."""
    from scipy.special import lambertw  # noqa: PLC0415  slow to import

    if abs(mean - 1.0) < _HARDLY:
        return 0.0
    return float(-1.0 / mean - lambertw(-np.exp(-1.0 / mean) / mean, -1 if mean > 1.0 else 0).real)


def times_newton(growth: float) -> float:
    """Return the ratio of a step to Newton's, if the curvature grows by exp(`growth`) along Newton's step.

    A part x of Newton's step reduces the score by (exp(growth x) - 1) / growth of its value.
    """
    growth = max(growth, settings.MOST_FALL)
    return float(np.log1p(growth) / growth) if abs(growth) > _HARDLY else 1.0


def on_one_parabola(scores: Sequence[KnownScore], curvature: FloatArray, places: NDArray[np.bool_]) -> list[KnownScore]:
    """Return the scores that a quadratic log-likelihood with the curvature at the last point would have.

    Between two points the mean curvature is a multiple of that at the last. Scores at points whose log curvature
    differs by more than `settings.MOST_GROWTH` from that at the last are left out.
    """
    last, found = scores[-1], []
    for score in scores:
        growth = score.level - last.level
        if abs(growth) <= settings.MOST_GROWTH:
            more = (mean_of_exponential(growth) - 1.0) * np.where(places, last.theta - score.theta, 0.0)
            found.append(replace(score, gradient=score.gradient - curvature @ more))
    return found


def after_overshoot(
    belief: Belief, place: int, before: FloatArray, theta: FloatArray, error: float, noise: float
) -> Belief | None:
    """Return a likelihood whose information on one parameter grew along a step; None if the step did not overshoot.

    The score of that parameter at `theta` exceeds the prediction of the likelihood by `error`, with a standard
    deviation `noise`. If the score clearly has the opposite sign, the information has grown since the point `before`:
    exponentially, at a rate c that the decrease of the score determines. The maximum, at a distance D by the
    information at `before`, then is at log(1 + c D) / c, and the information at it is 1 + c D times as large.
    """
    along, covariance = belief.information[place], belief.noise + belief.bias
    fall = float(along @ (theta - before))
    step, newton = float((theta - before)[place]), float((belief.mean - before)[place])
    noise_std = float(np.sqrt(along @ covariance @ along + noise**2))
    if not (fall * error < -settings.CLEARLY_OVERSHOT * noise_std * abs(fall) and newton * step > 0.0):
        return None
    ratio = 1.0 - error / fall
    growth = growth_of_mean(ratio)
    if not 0.0 < growth <= settings.FASTEST_GROWTH * abs(step):  # too fast to be growth
        return None
    larger = 1.0 + growth * newton / step
    distance = step * float(np.log(larger)) / growth
    mean, wider, narrower = belief.mean.copy(), np.ones(theta.size), np.ones(theta.size)
    mean[place] = before[place] + distance
    wider[place], narrower[place] = np.sqrt(larger), 1.0 / larger
    bias = belief.bias * np.outer(narrower, narrower)
    # The bias allows for half of the difference to linear interpolation.
    bias[place, place] += (0.5 * (distance - newton / ratio)) ** 2
    return replace(
        belief,
        mean=mean,
        information=belief.information * np.outer(wider, wider),
        noise=belief.noise * np.outer(narrower, narrower),
        bias=bias,
    )


def last_step(
    scores: Sequence[KnownScore], curvature: KnownCurvature, places: NDArray[np.bool_]
) -> tuple[float, float, FloatArray, float]:
    """Return the relative decrease of the score along the last step, by the curvature's prediction, and its noise.

    The last two results are the curvature times the step, and the quadratic form. The curvature is that at the end of
    the step, along which it grew as the levels of the scores indicate.
    """
    before, after = scores[-2:]
    step = np.where(places, after.theta - before.theta, 0.0)
    along = curvature.matrix @ step
    expected = max(float(step @ along), np.finfo(float).tiny)
    fall = expected * mean_of_exponential(before.level - after.level)
    found = float(step @ (before.gradient - after.gradient)) / fall
    noise = float(np.hypot(np.linalg.norm(before.noise.T @ step), np.linalg.norm(after.noise.T @ step))) / fall
    return found, noise, along, expected
