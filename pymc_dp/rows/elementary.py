"""Elementary functions without branches, so that loops over rows become vector instructions.

Every function gives the same bits in a vector lane as alone: they use additions, multiplications, divisions,
comparisons, selections and integer operations on the bits of a number, all of them exactly defined, and nothing is
contracted or reordered (no fast-math). NaN goes through, and overflow and underflow end where IEEE 754 says.

Notes
-----
The reductions and the polynomial of the logarithm are those of FreeBSD's msun (fdlibm); the exponential is a Taylor
polynomial on an interval of half a binade. Errors are below 2 units in the last place.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_INVERSE_LN2 = 1.44269504088896338700
#: Adding it rounds to a whole number, which then stands in the low bits.
_ROUND = 6755399441055744.0
_ROUND_BITS = int(np.float64(_ROUND).view(np.int64))
_INF = float(np.inf)
_NAN = float(np.nan)
_SQRT_HALF_BITS = 0x3FE6A09E00000000
_ONE_BITS = 0x3FF0000000000000
_SMALLEST_NORMAL = 2.2250738585072014e-308


@intrinsic
def select(_context: Any, condition: Any, yes: Any, no: Any) -> Any:
    """Return `yes` where the condition holds, else `no`: one instruction, both sides computed."""
    result = types.float64 if types.float64 in (yes, no) else types.int64
    if isinstance(yes, types.Boolean) and isinstance(no, types.Boolean):
        result = types.boolean

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        condition, yes, no = arguments
        sides = [
            context.cast(builder, side, kind, result) for side, kind in zip((yes, no), signature.args[1:], strict=True)
        ]
        return builder.select(condition, *sides)

    return result(types.boolean, yes, no), generate


@intrinsic
def bits_of(_context: Any, _number: Any) -> Any:
    """Return the bits of a number as an integer."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), generate


@intrinsic
def number_of(_context: Any, _bits: Any) -> Any:
    """Return the number with these bits."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.int64), generate


_OPTIONS: dict[str, Any] = {"fastmath": False, "error_model": "numpy", "nogil": True, "forceinline": True}


@njit(**_OPTIONS)
def _power_of_two(exponent: int) -> float:
    return number_of((exponent + 1023) << 52)


@njit(**_OPTIONS)
def exp(x: float) -> float:
    """Return e to the power of x."""
    x = select(x > 710.0, 710.0, x)
    x = select(x < -746.0, -746.0, x)
    rounded = x * _INVERSE_LN2 + _ROUND
    k = bits_of(rounded) - _ROUND_BITS
    whole = rounded - _ROUND
    high = x - whole * _LN2_HIGH
    r = high - whole * _LN2_LOW
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * (r * r) + r + 1.0
    # In two factors, so that neither overflows and numbers below the normal ones are rounded once.
    half = k >> 1
    return p * _power_of_two(half) * _power_of_two(k - half)


@njit(**_OPTIONS)
def _log_of_one_plus(f: float, k: float) -> float:
    """Return log(1 + f) + k log 2 for f between sqrt(1/2) - 1 and sqrt(2) - 1."""
    s = f / (2.0 + f)
    z = s * s
    r = 1.479819860511658591e-01
    r = r * z + 1.531383769920937332e-01
    r = r * z + 1.818357216161805012e-01
    r = r * z + 2.222219843214978396e-01
    r = r * z + 2.857142874366239149e-01
    r = r * z + 3.999999999940941908e-01
    r = r * z + 6.666666666666735130e-01
    r = r * z
    half_square = 0.5 * f * f
    return k * _LN2_HIGH - ((half_square - (s * (half_square + r) + k * _LN2_LOW)) - f)


@njit(**_OPTIONS)
def log(x: float) -> float:
    """Return the natural logarithm of x."""
    small = x < _SMALLEST_NORMAL
    bits = bits_of(select(small, x * 18014398509481984.0, x))
    shifted = bits + (_ONE_BITS - _SQRT_HALF_BITS)
    k = (shifted >> 52) - 1023
    f = number_of((shifted & 0x000FFFFFFFFFFFFF) + _SQRT_HALF_BITS) - 1.0
    result = _log_of_one_plus(f, np.float64(k - select(small, 54, 0)))
    result = select(x < _INF, result, x)
    result = select(x > 0.0, result, -_INF)
    return select(x >= 0.0, result, _NAN)


@njit(**_OPTIONS)
def log1p(x: float) -> float:
    """Return log(1 + x)."""
    u = 1.0 + x
    result = log(u)
    corrected = result - ((u - 1.0) - x) / u
    return select((u > 0.0) & (u < _INF), corrected, result)


@njit(**_OPTIONS)
def log1p_up_to_one(x: float) -> float:
    """Return log(1 + x) for x between 0 and 1, or NaN."""
    large = x > 0.41421356237309503
    return _log_of_one_plus(select(large, 0.5 * (x - 1.0), x), select(large, 1.0, 0.0))


@njit(**_OPTIONS)
def expm1(x: float) -> float:
    """Return e to the power of x, minus 1."""
    y = select(x > 710.0, 710.0, x)
    y = select(y < -40.0, -40.0, y)
    rounded = y * _INVERSE_LN2 + _ROUND
    k = bits_of(rounded) - _ROUND_BITS
    whole = rounded - _ROUND
    high = y - whole * _LN2_HIGH
    r = high - whole * _LN2_LOW
    p = 1.0 / 87178291200.0
    p = p * r + 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    q = p * (r * r) + r
    scale = _power_of_two(k)
    half = k >> 1
    large = (q + 1.0) * _power_of_two(half) * _power_of_two(k - half)
    return select(k > 60, large, scale * q + (scale - 1.0))


@njit(**_OPTIONS)
def log1mexp(x: float) -> float:
    """Return log(1 - exp(x)) for x below 0."""
    far = x < -0.6931471805599453
    # One logarithm for both: of 1 + y with y = -exp(x), or with 1 + y = -expm1(x), which is exact near 0.
    y = -exp(x)
    u = select(far, 1.0 + y, -expm1(x))
    correction = select(far & (u > 0.0), ((u - 1.0) - y) / u, 0.0)
    return log(u) - correction
