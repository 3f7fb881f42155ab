"""Digamma and trigamma functions without branches, as the functions of `pymc_dp.rows.elementary` are.

Notes
-----
Formulas are those of Abramowitz and Stegun, Handbook of Mathematical Functions: the asymptotic series 6.3.18 and 6.4.12
from 10 on, the recurrences 6.3.6 and 6.4.6 below, with their terms on one denominator, and the reflection formulas
6.3.7 and 6.4.7 for arguments below zero. Up to 3 the digamma function is the polynomial of `_between_one_and_two`, and
recurrence to that. Poles, infinities and NaN give what `scipy.special` gives. Errors are below 7 units in the last
place, but near the zeros of the digamma function below 0: there, below 7 units in the last place of the terms of the
reflection formula.
"""

from typing import Any

import numpy as np
from numba import njit

from pymc_dp.rows.elementary import log, select

_PI = float(np.pi)
_INF = float(np.inf)
_NAN = float(np.nan)
#: From here on neighbouring numbers differ by one: adding it rounds smaller numbers to whole ones.
_WHOLE = 4503599627370496.0
_OPTIONS: dict[str, Any] = {"fastmath": False, "error_model": "numpy", "nogil": True, "forceinline": True}


@njit(**_OPTIONS)
def _sine_and_cosine(x: float) -> tuple[float, float]:
    """Return the absolute values of sin(pi x) and cos(pi x), for x below 0; NaN for NaN."""
    distance = -x
    # To the nearest whole number, exactly; a quarter at most where one takes the cosine for the sine.
    distance = select(distance < _WHOLE, abs(distance - ((distance + _WHOLE) - _WHOLE)), 0.0)
    swapped = distance > 0.25
    angle = _PI * select(swapped, 0.5 - distance, distance)
    z = angle * angle
    sine = -1.0 / 1307674368000.0
    sine = sine * z + 1.0 / 6227020800.0
    sine = sine * z - 1.0 / 39916800.0
    sine = sine * z + 1.0 / 362880.0
    sine = sine * z - 1.0 / 5040.0
    sine = sine * z + 1.0 / 120.0
    sine = sine * z - 1.0 / 6.0
    sine = angle + angle * (z * sine)
    cosine = 1.0 / 20922789888000.0
    cosine = cosine * z - 1.0 / 87178291200.0
    cosine = cosine * z + 1.0 / 479001600.0
    cosine = cosine * z - 1.0 / 3628800.0
    cosine = cosine * z + 1.0 / 40320.0
    cosine = cosine * z - 1.0 / 720.0
    cosine = cosine * z + 1.0 / 24.0
    cosine = 1.0 - (0.5 * z - z * (z * cosine))
    return select(swapped, cosine, sine), select(swapped, sine, cosine)


#: The positive zero of the digamma function, as a number and what is left.
_ZERO, _LEFT = 1.4616321449683622, 9.549995429965697e-17


@njit(**_OPTIONS)
def _between_one_and_two(x: float) -> float:
    """Return the digamma function of x, for x from 1 to 2: its zero as a factor, times a polynomial.

    The polynomial is what interpolates the quotient at 22 Chebyshev nodes, computed with 300 bits; its relative
    error is below 2**-53.
    """
    t = x - 1.5
    p = -0.00017312261802727394
    p = p * t + 0.00025968482126430747
    p = p * t - 0.00015148586836773365
    p = p * t + 0.0002272331660987376
    p = p * t - 0.0004821990530566789
    p = p * t + 0.0007233266279287554
    p = p * t - 0.0010376374098418604
    p = p * t + 0.0015566317474486838
    p = p * t - 0.002345267632540769
    p = p * t + 0.003519006401502276
    p = p * t - 0.005279964873257405
    p = p * t + 0.007926944646403797
    p = p * t - 0.011908218001568644
    p = p * t + 0.0179072524394512
    p = p * t - 0.02697579675613825
    p = p * t + 0.04076083381242074
    p = p * t - 0.061922133273064534
    p = p * t + 0.09498872445494122
    p = p * t - 0.14840492305390884
    p = p * t + 0.2405424842407742
    p = p * t - 0.4236274212814605
    p = p * t + 0.951055876031833
    return ((x - _ZERO) - _LEFT) * p


@njit(**_OPTIONS)
def _digamma_above_zero(x: float) -> float:
    small = x < 10.0
    y = select(small, x + 7.0, x)
    inverse = 1.0 / y
    z = inverse * inverse
    r = 3617.0 / 8160.0
    r = r * z - 1.0 / 12.0
    r = r * z + 691.0 / 32760.0
    r = r * z - 1.0 / 132.0
    r = r * z + 1.0 / 240.0
    r = r * z - 1.0 / 252.0
    r = r * z + 1.0 / 120.0
    r = r * z - 1.0 / 12.0
    result = log(y) + (r * z - 0.5 * inverse)
    # 1 / x + ... + 1 / (x + 6)
    top, bottom = 1.0, x
    for k in range(1, 7):
        top = top * (x + k) + bottom
        bottom = bottom * (x + k)
    result = select(small, result - top / bottom, result)
    near = _between_one_and_two(select(x < 1.0, x + 1.0, select(x > 2.0, x - 1.0, x)))
    near = select(x < 1.0, near - 1.0 / x, select(x > 2.0, near + 1.0 / (x - 1.0), near))
    return select(x <= 3.0, near, result)


@njit(**_OPTIONS)
def digamma(x: float) -> float:
    """Return the derivative of the logarithm of the gamma function at x."""
    reflected = x < 0.0
    result = _digamma_above_zero(select(reflected, 1.0 - x, x))
    sine, cosine = _sine_and_cosine(x)
    # The sign of the cotangent is that of the distance to the nearest whole number.
    distance = x + ((_WHOLE - x) - _WHOLE)
    cotangent = select(distance < 0.0, -cosine, cosine) / sine
    at_pole = sine == 0.0
    below = select(at_pole, _NAN, result - _PI * cotangent)
    return select(x == 0.0, -1.0 / x, select(reflected, below, result))


@njit(**_OPTIONS)
def _trigamma_above_zero(x: float) -> float:
    small = x < 10.0
    y = select(small, x + 10.0, x)
    inverse = 1.0 / y
    z = inverse * inverse
    r = -174611.0 / 330.0
    r = r * z + 43867.0 / 798.0
    r = r * z - 3617.0 / 510.0
    r = r * z + 7.0 / 6.0
    r = r * z - 691.0 / 2730.0
    r = r * z + 5.0 / 66.0
    r = r * z - 1.0 / 30.0
    r = r * z + 1.0 / 42.0
    r = r * z - 1.0 / 30.0
    r = r * z + 1.0 / 6.0
    result = inverse + (0.5 * z + inverse * (z * r))
    # 1 / (x + 1)^2 + ... + 1 / (x + 9)^2
    top, bottom = 1.0, (x + 1.0) * (x + 1.0)
    for k in range(2, 10):
        square = (x + k) * (x + k)
        top = top * square + bottom
        bottom = bottom * square
    of_x = 1.0 / x
    return select(small, (result + top / bottom) + of_x * of_x, result)


@njit(**_OPTIONS)
def trigamma(x: float) -> float:
    """Return the second derivative of the logarithm of the gamma function at x."""
    reflected = x < 0.0
    result = _trigamma_above_zero(select(reflected, 1.0 - x, x))
    sine, _ = _sine_and_cosine(x)
    ratio = _PI / sine
    return select(reflected, ratio * ratio - result, result)
