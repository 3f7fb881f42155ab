r"""The result of one iteration, and the penalty test: a Metropolis–Hastings test on a noisy log-ratio.

The test is exact. With :math:`\hat\lambda = \lambda + \xi`, :math:`\xi \sim N(0, \sigma^2)`, accepting with probability
:math:`\min(1, e^{\hat\lambda - \sigma^2/2})` leaves the same distribution invariant as the test on
:math:`\lambda` (Ceperley and Dewing 1999; under privacy noise, Yıldırım and Ermiş 2019, Proposition 1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, SMALLEST_CLIP_BOUND, Release

#: Type and shape of every statistic by name, as PyMC requires.
StatsOfSteps = dict[str, tuple[type, list[int] | None]]

#: Statistics of every Metropolis–Hastings sampler: a transition gives the first four, `DPStep` the others.
SHARED_STATS: StatsOfSteps = {
    "accepted": (bool, []),
    "acceptance_rate": (np.float64, []),
    "log_ratio": (np.float64, []),
    "noise_std": (np.float64, []),
    "epsilon_charged": (np.float64, []),
    "mean_accepted": (np.float64, []),
    "releases": (object, None),
}


_OF_A_TRANSITION = frozenset(list(SHARED_STATS)[:4])


@dataclass
class Transition:
    """The result of one iteration.

    Attributes
    ----------
    theta : ndarray, shape (own parameters,)
        The next state of the chain.
    stats : dict
        Sample statistics, published as they are: functions of releases, the prior and public randomness only. Each is
        declared in the class's `stats_dtypes_shapes`; the first four of `SHARED_STATS` are always given.
    """

    theta: FloatArray
    stats: dict[str, Any]

    def __post_init__(self) -> None:
        if missing := _OF_A_TRANSITION.difference(self.stats):  # PyMC would publish zeros
            raise InvalidArgument(
                f"A transition gives the statistics {', '.join(sorted(missing))}, too: of a move without a test they "
                "are those of pymc_dp.steps.transition.untested."
            )


def penalty_test(
    release: Callable[[float], Release], bound: float, log_free_ratio: float, log_uniform: float
) -> dict[str, Any]:
    """Request the noisy log-ratio and decide; return the statistics of the decision.

    Parameters
    ----------
    release : callable
        Requests the log-ratio of the likelihood, given the clip bound of one unit's.
    bound : float
        Clip bound. Outside the range of floating point (the proposal equals the current point, or is too far away)
        nothing is released and the proposal is rejected.
    log_free_ratio : float
        The free part of the log-ratio: prior, proposal, kinetic energy. If it is not finite, nothing is released and
        the proposal is rejected.
    log_uniform : float
        Logarithm of a uniform variable.
    """
    if not (np.isfinite(log_free_ratio) and SMALLEST_CLIP_BOUND <= bound <= LARGEST_CLIP_BOUND):
        return untested(accepted=False)
    ratio = release(bound)
    log_accept = float(ratio.value[0]) + log_free_ratio - 0.5 * ratio.noise_std**2
    return {
        "accepted": bool(log_uniform < log_accept),
        "acceptance_rate": float(np.exp(min(0.0, log_accept))),
        "log_ratio": float(ratio.value[0]),
        "noise_std": ratio.noise_std,
    }


def untested(*, accepted: bool) -> dict[str, Any]:
    """Return the statistics of a move without a test."""
    return {"accepted": accepted, "acceptance_rate": float(accepted), "log_ratio": np.nan, "noise_std": np.nan}
