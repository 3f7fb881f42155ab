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
from pymc_dp.steps.prelude.belief import KnownScore

_HARDLY = 1e-6  # a growth that rounding would hide


def mean_of_exponential(growth: float) -> float:
    """Return the mean over the way of what goes from 1 to exp(`growth`) at a constant rate."""
    return float(np.expm1(growth) / growth) if abs(growth) > _HARDLY else 1.0


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
