r"""The tight privacy curve of Gaussian releases, and its inverses.

Any adaptive sequence of Gaussian releases, the i-th of sensitivity :math:`\Delta_i` with noise of standard
deviation :math:`\sigma_i`, has the privacy of one Gaussian release with

.. math:: \rho = \sum_i \Delta_i^2 / (2 \sigma_i^2),

the :math:`\rho` of zero-concentrated differential privacy (Bun and Steinke 2016), and is exactly
:math:`(\varepsilon, \delta)`-private for

.. math:: \delta(\varepsilon) = \tfrac12 \left[\operatorname{erfc}(a) - e^\varepsilon \operatorname{erfc}(b)\right],
   \quad a = \frac{\varepsilon - \rho}{2\sqrt\rho}, \quad b = \frac{\varepsilon + \rho}{2\sqrt\rho}

(Balle and Wang 2018, Improving the Gaussian mechanism for differential privacy, Theorem 8; for adaptive composition
Dong, Roth and Su 2022, Corollary 3.3).
"""

import math
from collections.abc import Callable

import scipy

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument

#: Bound of the additional epsilon of the exact discrete Gaussian over the continuous curve, for up to
#: `MAX_COORDINATES` released coordinates on a grid 2**35 times finer than the noise (docs: "Noise on the grid").
EPSILON_SLACK = 1e-9
MAX_COORDINATES = 10**9

#: Relative margin of the inverses below the requested delta, so that rounding cannot exceed it.
_DELTA_MARGIN = 4e-11
_MAX_NEWTON_STEPS = 200
#: Beyond this epsilon, rounding loses the difference between epsilon and rho.
_LARGEST_EPSILON = 1e15
_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)


def _erfcx_difference(a: float, width: float) -> float:
    """Return erfcx(a) - erfcx(a + width), without loss of precision where the two nearly cancel."""
    if width >= 1e-3:
        return float(scipy.special.erfcx(a) - scipy.special.erfcx(a + width))
    # Midpoint rule with its first correction on the slope -erfcx'(x) = 2/sqrt(pi) - 2 x erfcx(x).
    x = a + 0.5 * width
    if x > 30.0:
        y = 1.0 / x**2
        slope = 0.5 * _TWO_OVER_SQRT_PI * y * (1 - y * (1.5 - y * (3.75 - y * (13.125 - y * 59.0625))))
        curvature = 6.0 * y * slope
    else:
        value = float(scipy.special.erfcx(x))
        slope = _TWO_OVER_SQRT_PI - 2.0 * x * value
        curvature = 4.0 * slope + 4.0 * x * (x * slope - value)
    return width * (slope + curvature * width**2 / 24.0)


def log_delta(rho: float, epsilon: float) -> float:
    """Return the logarithm of the delta of Gaussian releases of total `rho` at `epsilon`.

    The computation in log space resolves deltas far below 1e-300. Inputs are not validated.
    """
    if rho == 0.0:
        return -math.inf
    root = math.sqrt(rho)
    a = (epsilon - rho) / (2.0 * root)
    b = a + root
    if a < -1.0:
        return math.log(0.5 * (math.erfc(a) - math.exp(-a * a) * float(scipy.special.erfcx(b))))
    difference = _erfcx_difference(a, root)
    return -a * a + math.log(0.5 * difference) if difference > 0.0 else -math.inf


def gaussian_delta(rho: float, epsilon: float) -> float:
    """Return the smallest delta for which Gaussian releases of total `rho` are (epsilon, delta)-private.

    Parameters
    ----------
    rho : float
        Sum of sensitivity² / (2 noise_std²) over all releases, at least 0.
    epsilon : float
        At least 0.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    InvalidArgument
        If an argument is not a finite number of at least 0.
    """
    rho = _validate.not_negative("rho", rho)
    epsilon = _validate.not_negative("epsilon", epsilon)
    return math.exp(log_delta(rho, epsilon))


def _solve(
    gap_and_slope: Callable[[float], tuple[float, float]], low: float, high: float, safe_direction: int
) -> float:
    """Return a root of a monotone gap on [low, high], nudged in `safe_direction` until the gap is not positive.

    Newton's method, falling back to bisection whenever a step would leave the bracket.
    """
    x = high if safe_direction > 0 else low
    for _ in range(_MAX_NEWTON_STEPS):
        gap, slope = gap_and_slope(x)
        if (gap > 0.0) == (safe_direction > 0):
            low = x
        else:
            high = x
        newton = x - gap / slope if slope != 0.0 else math.nan
        if abs(newton - x) <= 1e-14 * x or high - low <= 1e-15 * high:
            break
        x = newton if low < newton < high else 0.5 * (low + high)
    nudge = 1e-15
    while gap_and_slope(x)[0] > 0.0:
        x *= 1.0 + safe_direction * nudge
        nudge *= 2.0
    return x


def gaussian_epsilon(rho: float, delta: float) -> float:
    """Return the smallest epsilon for which Gaussian releases of total `rho` are (epsilon, delta)-private.

    Rounded to the safe side: the curve at the result is at most `delta`.

    Parameters
    ----------
    rho : float
        Sum of sensitivity² / (2 noise_std²) over all releases, at least 0.
    delta : float
        Strictly between 0 and 1.

    Returns
    -------
    float
        At least 0.

    Raises
    ------
    InvalidArgument
        If `rho` or `delta` is out of range.
    """
    rho = _validate.not_negative("rho", rho)
    delta = _validate.open_unit_interval("delta", delta)
    target = math.log(delta) - _DELTA_MARGIN
    if log_delta(rho, 0.0) <= target:
        return 0.0
    root = math.sqrt(rho)

    def gap_and_slope(epsilon: float) -> tuple[float, float]:
        value = log_delta(rho, epsilon)
        if value == -math.inf:
            return -math.inf, 0.0
        # d delta / d epsilon = -exp(epsilon) erfc(b) / 2
        b = (epsilon + rho) / (2.0 * root)
        return value - target, -0.5 * math.exp(epsilon - b * b - value) * float(scipy.special.erfcx(b))

    high = rho + 2.0 * math.sqrt(rho * -target)  # Bun and Steinke (2016), Proposition 1.3
    return _solve(gap_and_slope, 0.0, high, safe_direction=1)


def gaussian_rho(epsilon: float, delta: float) -> float:
    """Return the largest total rho of Gaussian releases that are (epsilon, delta)-private.

    Rounded to the safe side: the curve at the result is at most `delta`, and `gaussian_epsilon` of the result
    is at most `epsilon`.

    Parameters
    ----------
    epsilon : float
        Above 0.
    delta : float
        Strictly between 0 and 1.

    Returns
    -------
    float
        Above 0.

    Raises
    ------
    InvalidArgument
        If `epsilon` or `delta` is out of range.
    """
    epsilon = _validate.positive("epsilon", epsilon)
    delta = _validate.open_unit_interval("delta", delta)
    if epsilon > _LARGEST_EPSILON:
        raise InvalidArgument(f"epsilon={epsilon:g} is too large to be accounted for, and no protection.")
    # A second margin keeps gaussian_epsilon(gaussian_rho(epsilon, delta), delta) at or below epsilon.
    target = math.log(delta) - 2.0 * _DELTA_MARGIN
    # The zCDP bound (sqrt(L + epsilon) - sqrt(L))², L = -log(delta), is valid: the tight rho lies above it.
    low = 0.999 * (epsilon / (math.sqrt(epsilon - target) + math.sqrt(-target))) ** 2
    if low < 1e-300:
        raise InvalidArgument(f"epsilon={epsilon:g} is too small to be accounted for.")
    high = 2.0 * low
    while log_delta(high, epsilon) <= target:
        low, high = high, 2.0 * high

    def gap_and_slope(rho: float) -> tuple[float, float]:
        value = log_delta(rho, epsilon)
        # with s = sqrt(rho): d delta / d s = exp(-a²) / sqrt(pi)
        root = math.sqrt(rho)
        a = (epsilon - rho) / (2.0 * root)
        return value - target, 0.25 * _TWO_OVER_SQRT_PI * math.exp(-a * a - value) / root

    return _solve(gap_and_slope, low, high, safe_direction=-1)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return an epsilon for which any rho-zCDP mechanism is (epsilon, delta)-private.

    For Gaussian releases `gaussian_epsilon` is smaller (Bun and Steinke 2016, Concentrated differential privacy,
    Proposition 1.3).
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
