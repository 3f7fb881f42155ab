"""Zero-concentrated differential privacy: simple and loose. Kept for comparison with published figures."""

import math

from pymc_dp import _validate


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return an epsilon for which any rho-zCDP mechanism is (epsilon, delta)-private.

    For Gaussian releases `gaussian_epsilon` is smaller.

    References
    ----------
    Bun and Steinke (2016), Concentrated differential privacy, Proposition 1.3.
    """
    rho = _validate.not_negative("rho", rho)
    delta = _validate.open_unit_interval("delta", delta)
    return rho + 2.0 * math.sqrt(rho * -math.log(delta))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the rho for which `zcdp_epsilon` is `epsilon`."""
    epsilon = _validate.positive("epsilon", epsilon)
    delta = _validate.open_unit_interval("delta", delta)
    length = -math.log(delta)
    return (epsilon / (math.sqrt(length + epsilon) + math.sqrt(length))) ** 2
