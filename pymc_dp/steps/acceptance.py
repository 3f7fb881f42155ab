r"""The penalty test: a Metropolis–Hastings test on a noisy log-ratio that is exact.

With :math:`\hat\lambda = \lambda + \xi`, :math:`\xi \sim N(0, \sigma^2)`, accepting with probability
:math:`\min(1, e^{\hat\lambda - \sigma^2/2})` leaves the same distribution invariant as the test on
:math:`\lambda` (Ceperley and Dewing 1999; under privacy noise, Yıldırım and Ermiş 2019, Proposition 1).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_dp.release.interface import LARGEST_CLIP_BOUND, SMALLEST_CLIP_BOUND, Release


def penalty_test(
    release: Callable[[float], Release], bound: float, log_free_ratio: float, log_uniform: float
) -> dict[str, Any]:
    """Ask for the noisy log-ratio and decide; return the statistics of the decision.

    Parameters
    ----------
    release : callable
        Asks for the log-ratio of the likelihood, given the clip bound of one unit's.
    bound : float
        Clip bound. Where floating point cannot keep it (the proposal equals the current point, or is too far away),
        nothing is asked and the proposal is rejected.
    log_free_ratio : float
        The part of the log-ratio that costs nothing: prior, proposal, kinetic energy. Where it is not finite, nothing
        is asked either.
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
    nothing = {"log_ratio": np.nan, "noise_std": np.nan}
    return {"accepted": accepted, "acceptance_rate": float(accepted), **nothing}
