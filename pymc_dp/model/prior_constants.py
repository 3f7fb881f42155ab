"""Constants in priors that look like statistics of data, by their form: a person rarely writes a prior to six digits.

A prior's mean of 170 was chosen; one of 172.38214 was probably computed, perhaps from the table, and then the result
publishes it. Only the digits of the constant are looked at. It is never compared with the data.
"""

import math
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pymc as pm
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

#: A number with more significant digits than this is not one that somebody wrote.
_WRITTEN_DIGITS = 5
#: Significant digits that are compared: rounding as in 0.1 + 0.2 spoils the last few.
_DIGITS = {np.dtype("float64"): 12, np.dtype("float32"): 6}
#: Smaller numbers, and larger ones than its inverse, are taken as written: single precision does not reach farther.
_SMALLEST = 1e-37
#: Simple fractions of numbers that people write: p / q.
_LARGEST_NUMERATOR, _LARGEST_DENOMINATOR = 1000, 12
_NUMBERS_WITH_NAMES = (
    1.0,
    2.0,
    1.96,  # of a normal distribution's intervals
    math.pi,
    math.e,
    math.sqrt(2.0),
    math.sqrt(3.0),
    math.sqrt(math.pi),
    math.sqrt(2.0 * math.pi),
    math.log(2.0),
    math.log(10.0),
)


#: Warnings name the line of the caller of the package.
_PACKAGE = str(Path(__file__).parents[1])


def warn_about_prior_constants(model: pm.Model) -> None:
    """Warn of priors and potentials with constants that look computed.

    Parameters
    ----------
    model : pm.Model
        None of its priors and potentials may depend on rows, for the values of what they depend on are looked at.
    """
    suspects = [
        variable.name
        for variable in [*model.free_RVs, *model.potentials]
        if any(looks_computed(constant) for constant in _constants(variable, set(model.basic_RVs) - {variable}))
    ]
    if suspects:
        warnings.warn(
            f"The prior of {', '.join(map(repr, suspects))} holds a number of many digits, as if it had been computed: "
            "a mean or a standard deviation of the data, say. Priors are published with the result and are not "
            "protected. If it comes from the table, write a round number from public knowledge instead; if it is "
            "public, nothing is wrong.",
            UserWarning,
            skip_file_prefixes=(_PACKAGE,),
        )


def looks_computed(values: np.ndarray) -> bool:
    """Return whether a number in an array has many digits and is no fraction, root, logarithm or grid of simple ones.

    Parameters
    ----------
    values : ndarray of float
        The constant. Of evenly spaced numbers only the first and the last are looked at.

    Notes
    -----
    A number passes as written if it has at most five significant digits, is a fraction with a small numerator and
    denominator, or a power of two; or if that is so of its reciprocal, square, exponential or logarithm, or of one of
    these for its product with or ratio to a number such as pi or the square root of 2. A statistic that happens to
    have few digits passes, too.
    """
    digits = _DIGITS.get(values.dtype)
    if digits is None or values.size == 0:
        return False
    numbers = np.unique(values[np.isfinite(values)].astype(np.float64))
    if numbers.size > 2 and np.allclose(np.diff(numbers, 2), 0.0, atol=1e-6 * np.ptp(numbers)):
        numbers = numbers[[0, -1]]
    return not all(_is_written(float(number), digits) for number in numbers)


def _is_written(number: float, digits: int) -> bool:
    """Return whether somebody may have written a number, or a simple formula for it."""
    number = abs(number)
    out_of_range = not _SMALLEST < number < 1.0 / _SMALLEST
    if out_of_range or math.frexp(number)[0] == 0.5:  # no scale of data, or a power of two
        return True
    single = _DIGITS[np.dtype("float32")]
    if number == float(np.float32(number)):  # it may have been of single precision before
        digits = single
    if _is_simple(number, digits):
        return True
    ratios = [ratio for named in _NUMBERS_WITH_NAMES for ratio in (number / named, number * named)]
    if digits == single:  # so few digits that some formula would fit any number
        return any(_is_fraction(ratio, digits) for ratio in ratios)
    return any(_is_simple(form, digits) for ratio in ratios for form in _forms(ratio))


def _forms(number: float) -> Iterator[float]:
    """Yield the numbers that a number would be a simple function of."""
    yield number
    yield 1.0 / number
    yield number * number
    yield 1.0 / number / number
    yield abs(math.log(number))
    if 1e-2 < number < 30.0:  # elsewhere nothing of the number is left in its exponential's digits
        yield math.exp(number)
        yield math.exp(-number)


def _is_simple(number: float, digits: int) -> bool:
    mantissa = f"{number:.{digits - 1}e}".partition("e")[0]
    return len(mantissa.replace(".", "").rstrip("0")) <= _WRITTEN_DIGITS or _is_fraction(number, digits)


def _is_fraction(number: float, digits: int) -> bool:
    if not 1e-3 < number < _LARGEST_NUMERATOR:
        return False
    nearest = Fraction(number).limit_denominator(_LARGEST_DENOMINATOR)
    close = math.isclose(number, nearest, rel_tol=10.0 ** (1 - digits))
    return close and 0 < nearest.numerator <= _LARGEST_NUMERATOR


def _constants(variable: Variable, others: set[Variable]) -> Iterator[np.ndarray]:
    """Yield the constants that a variable's distribution depends on directly, not through other random variables."""
    found = list(ancestors([variable], blockers=others))
    for inner in found:  # which grows meanwhile by the graphs inside operations
        if inner.owner is not None and isinstance(inner.owner.op, OpFromGraph) and inner not in others:
            found += ancestors(inner.owner.op.inner_outputs)
    for leaf in found:
        if not isinstance(leaf.type, TensorType):
            continue
        if isinstance(leaf, SharedVariable):
            yield np.asarray(leaf.get_value(borrow=True))
        elif isinstance(leaf, Constant):
            yield np.asarray(leaf.data)
