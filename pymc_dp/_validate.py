"""Checks of public arguments; every number leaves as a plain Python float or int."""

import math
import numbers
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


def positive(name: str, value: Any) -> float:
    """Return `value` as a finite float above zero, or raise `InvalidArgument`."""
    number = real(name, value)
    if number <= 0:
        raise InvalidArgument(f"{name} must be above zero, but is {number:g}.")
    return number


def not_negative(name: str, value: Any) -> float:
    """Return `value` as a finite float of at least zero, or raise `InvalidArgument`."""
    number = real(name, value)
    if number < 0:
        raise InvalidArgument(f"{name} must not be negative, but is {number:g}.")
    return number


def open_unit_interval(name: str, value: Any) -> float:
    """Return `value` as a float strictly between 0 and 1, or raise `InvalidArgument`."""
    number = real(name, value)
    if not 0 < number < 1:
        raise InvalidArgument(f"{name} must lie strictly between 0 and 1, but is {number:g}.")
    return number


def part_of_one(name: str, value: Any) -> float:
    """Return `value` as a float above 0 and at most 1, or raise `InvalidArgument`."""
    number = positive(name, value)
    if number > 1:
        raise InvalidArgument(f"{name} must be at most 1, but is {number:g}.")
    return number


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
    plain = value is None or isinstance(value, str | int | float)  # nothing else is compared, nor shown
    if not plain or not any(value is option or value == option for option in allowed):
        shown = repr(value) if plain else f"a {type(value).__name__}"
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, allowed))}, but is {shown}.")
    return value


def truth(name: str, value: Any) -> bool:
    """Return `value` as a bool if it is one, or raise `InvalidArgument`."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidArgument(f"{name} must be True or False, but is a {type(value).__name__}.")
    return bool(value)
