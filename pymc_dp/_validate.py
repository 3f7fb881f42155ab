"""Checks of public arguments; every number is returned as a plain Python float or int."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_dp.exceptions import InvalidArgument


def real(name: str, value: Any) -> float:
    """Return `value` as a finite Python float, or raise `InvalidArgument`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidArgument(f"{name} must be a real number, but is a {type(value).__name__}.")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidArgument(f"{name} is too large for a floating-point number.") from None
    if not math.isfinite(number):
        raise InvalidArgument(f"{name} must be finite, but is {number}.")
    return number


def _in_range(holds: Callable[[float], bool], words: str) -> Callable[[str, Any], float]:
    """Return a check that returns a finite float for which `holds` is true, and otherwise raises `InvalidArgument`."""

    def check(name: str, value: Any) -> float:
        number = real(name, value)
        if not holds(number):
            raise InvalidArgument(f"{name} must {words}, but is {number:g}.")
        return number

    return check


positive = _in_range(lambda number: number > 0, "be above zero")
not_negative = _in_range(lambda number: number >= 0, "not be negative")
open_unit_interval = _in_range(lambda number: 0 < number < 1, "lie strictly between 0 and 1")
part_of_one = _in_range(lambda number: 0 < number <= 1, "be at most 1 and above zero")


def whole(name: str, value: Any, *, at_least: int) -> int:
    """Return `value` as an int no smaller than `at_least`, or raise `InvalidArgument`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidArgument(f"{name} must be a whole number, but is a {type(value).__name__}.")
    number = int(value)
    if number < at_least:
        raise InvalidArgument(f"{name} must be at least {at_least}, but is {number}.")
    return number


def choice(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """Return `value` if it is one of `allowed`, or raise `InvalidArgument`."""
    plain = value is None or isinstance(value, str | int | float)  # other values are neither compared nor shown
    if not plain or not any(value is option or value == option for option in allowed):
        shown = repr(value) if plain else f"a {type(value).__name__}"
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, allowed))}, but is {shown}.")
    return value


def truth(name: str, value: Any) -> bool:
    """Return `value` as a bool if it is one, or raise `InvalidArgument`."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidArgument(f"{name} must be True or False, but is a {type(value).__name__}.")
    return bool(value)
