"""The prior: its exact log-density, which does not depend on data, and a warning of constants that look computed.

A prior mean of 170 was chosen; one of 172.38214 was probably computed, perhaps from the table, and then the result
publishes a statistic: a person rarely writes a prior with six digits. Only the digits of a constant are examined. They
are never compared with the data.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_dp.compiling import compiled, rewrite_pregrad
from pymc_dp.model.arrays import is_leaf, leaf_value
from pymc_dp.model.hessian import Hessian
from pymc_dp.model.parameters import FloatArray, ParameterVector

#: A number with more significant digits counts as computed.
_WRITTEN_DIGITS = 5
#: Significant digits that are compared: rounding, as in 0.1 + 0.2, changes the last few.
_DIGITS = {np.dtype("float64"): 12, np.dtype("float32"): 6}
#: Smaller numbers, and numbers above its inverse, count as written: they are beyond single precision.
_SMALLEST = 1e-37
#: Simple fractions of numbers that people write: p / q.
_LARGEST_NUMERATOR, _LARGEST_DENOMINATOR = 1000, 12
_NUMBERS_WITH_NAMES = (
    *(1.0, 2.0, math.pi, math.e),
    1.96,  # the normal quantile of 95 % intervals
    *map(math.sqrt, (2.0, 3.0, math.pi, 2.0 * math.pi)),
    *map(math.log, (2.0, 10.0)),
)

#: Warnings name the line of the caller of the package.
_PACKAGE = str(Path(__file__).parents[1])


class Prior:
    """Log-density of all free variables and potentials, on the unconstrained scale with its Jacobians.

    Priors and potentials must not depend on rows: `split` refuses models where they do. Evaluation costs no privacy.
    """

    def __init__(self, model: pm.Model, parameters: ParameterVector) -> None:
        self._parameters = parameters
        (logp,) = rewrite_pregrad([model.logp(vars=[*model.free_RVs, *model.potentials])])
        self._inputs = list(model.value_vars)
        self._outputs = [logp, *pt.grad(logp, self._inputs, disconnected_inputs="ignore")]
        self._latest: tuple[bytes, float, FloatArray] = b"", np.nan, np.empty(0)
        #: The second derivatives of the log-density, as a function of parameters.
        self.hessian = Hessian(self.gradient, parameters.size)

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        """Log-density and gradient, compiled on the first call: starting points make it before a run is charged."""
        return compiled(self._inputs, self._outputs)

    def log_density(self, theta: FloatArray) -> float:
        """Return the log-density at `theta`, shape (parameters,)."""
        return self.with_gradient(theta)[0]

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log-density, shape (parameters,)."""
        return self.with_gradient(theta)[1]

    def with_gradient(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Return log-density and gradient. Those of the latest point are cached: samplers request both in turn."""
        at, latest = theta.tobytes(), self._latest
        if at != latest[0]:
            log_density, *blocks = self._function(*self._parameters.split(theta))
            gradient = np.concatenate([np.ravel(block) for block in blocks]).astype(np.float64)
            gradient.flags.writeable = False
            self._latest = latest = at, float(log_density), gradient
        return latest[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_function"}


def warn_about_prior_constants(model: pm.Model) -> None:
    """Warn of priors and potentials with constants that look computed.

    Priors and potentials must not depend on rows, because the values of their constants are read.
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
    """Return whether an array has a number of many digits that is no fraction, root or logarithm of simple numbers.

    Of evenly spaced numbers only the first and the last are examined. A number passes as written if it has at most five
    significant digits, is a fraction with a small numerator and denominator, or is a power of two. It also passes if
    this holds for its reciprocal, square, exponential or logarithm, or for one of these of its product with or ratio
    to a number such as pi or the square root of 2. A statistic that happens to have few digits passes, too.
    """
    digits = _DIGITS.get(values.dtype)
    if digits is None or values.size == 0:
        return False
    numbers = np.unique(values[np.isfinite(values)].astype(np.float64))
    if numbers.size > 2 and np.allclose(np.diff(numbers, 2), 0.0, atol=1e-6 * np.ptp(numbers)):
        numbers = numbers[[0, -1]]
    return not all(_is_written(float(number), digits) for number in numbers)


def _is_written(number: float, digits: int) -> bool:
    """Return whether a person may have written a number, or a simple formula for it."""
    number = abs(number)
    out_of_range = not _SMALLEST < number < 1.0 / _SMALLEST
    if out_of_range or math.frexp(number)[0] == 0.5:  # no scale of data, or a power of two
        return True
    single = _DIGITS[np.dtype("float32")]
    if number == float(np.float32(number)):  # possibly cast from single precision
        digits = single
    if _is_simple(number, digits):
        return True
    ratios = [ratio for named in _NUMBERS_WITH_NAMES for ratio in (number / named, number * named)]
    if digits == single:  # so few digits that some formula would fit any number
        return any(_is_fraction(ratio, digits) for ratio in ratios)
    for ratio in ratios:
        # The ratio may be a simple function of a written number; exponentials have digits left in this range only.
        forms = [ratio, 1.0 / ratio, ratio * ratio, 1.0 / ratio / ratio, abs(math.log(ratio))]
        forms += [math.exp(ratio), math.exp(-ratio)] if 1e-2 < ratio < 30.0 else []
        if any(_is_simple(form, digits) for form in forms):
            return True
    return False


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
    for inner in found:  # the list grows by the inner graphs of operations
        if inner.owner is not None and isinstance(inner.owner.op, OpFromGraph) and inner not in others:
            found += ancestors(inner.owner.op.inner_outputs)
    for leaf in found:
        if is_leaf(leaf):
            yield leaf_value(leaf)
