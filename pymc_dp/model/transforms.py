"""Transforms of variables with bounds in the form of a model that steps use: the coordinates of the likelihood.

Likelihoods are about normal in the logarithm of a scale or a shape, and in a coefficient itself. PyMC transforms a
variable by its bounds, and a precision or a variance is a power of a scale. Draws are made in values without bounds.
"""

import math
import re
from collections.abc import Collection
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import TruncatedNormalRV
from pymc.distributions.transforms import Interval
from pymc.distributions.truncated import TruncatedRV
from pymc.logprob.transforms import ChainedTransform, IntervalTransform, LogTransform, Transform
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.basic import UniformRV

from pymc_dp.model.arrays import leaf_value, undimmed
from pymc_dp.model.parameters import FloatArray


class LogarithmOf(LogTransform):
    """A multiple of the logarithm of a positive variable with bounds.

    Parameters
    ----------
    power : float
        The multiple.
    lower, upper : float
        The bounds of the variable: zero and infinity for none.
    """

    def __init__(self, power: float, lower: float, upper: float) -> None:
        self.name = "log" if power == 1.0 else f"log^{power:g}"
        self.power, self.lower, self.upper = power, lower, upper

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the multiple of the logarithm."""
        return self.power * pt.log(value)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the variable."""
        return pt.exp(value / self.power)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the derivative of `backward`."""
        return value / self.power - np.log(np.abs(self.power))

    @property
    def range(self) -> tuple[float, float]:
        """The values at the bounds of the variable: infinite for none."""
        ends = self.power * (math.log(self.lower) if self.lower > 0.0 else -math.inf), self.power * math.log(self.upper)
        return min(ends), max(ends)

    @property
    def to_unbounded(self) -> Transform | None:
        """The transform to a value without bounds; None if there are none but zero."""
        return Unbounded(self) if self.lower > 0.0 or self.upper < np.inf else None


class Itself(Transform):
    """A variable with bounds is its own coordinate: a coefficient, in which the log-likelihood is about quadratic.

    Parameters
    ----------
    lower, upper : float
        The bounds of the variable: infinite for none.
    to_unbounded : Transform or None
        The transform of the user's model, to a value without bounds; None if it has none.
    """

    name = "itself"
    ndim_supp = 0

    def __init__(self, lower: float, upper: float, to_unbounded: Transform | None) -> None:
        self.lower, self.upper, self.to_unbounded = lower, upper, to_unbounded

    @property
    def range(self) -> tuple[float, float]:
        """The bounds: no attribute, since a pair of numbers in a transform may be a part of a table (`closures`)."""
        return self.lower, self.upper

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the variable."""
        return pt.tensor_copy(value)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the variable."""
        return pt.tensor_copy(value)  # PyMC gives it another name

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return zeros."""
        return pt.zeros_like(value)


class Unbounded(Transform):
    """Transform the value of `LogarithmOf` to one without bounds by PyMC's transform of intervals.

    Both values are about the same where bounds are far away.
    """

    name = "unbounded"

    def __init__(self, logarithm: LogarithmOf) -> None:
        self._power, self._interval = logarithm.power, Interval(logarithm.lower, logarithm.upper)
        #: PyMC's values are those of one bound, less this number where the other is far away.
        self._shift = math.log(logarithm.upper - logarithm.lower) if logarithm.upper < np.inf else 0.0

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the value of the logarithm."""
        return self._power * pt.log(self._interval.backward(value / self._power - self._shift))

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the value without bounds."""
        return self._power * (self._interval.forward(pt.exp(value / self._power)) + self._shift)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the derivative of `backward`."""
        of_interval = value / self._power - self._shift
        return self._interval.log_jac_det(of_interval) - pt.log(self._interval.backward(of_interval))


class FromBound(Transform):
    """Transform a variable with a lower bound by the inverse of softplus: linear far from the bound.

    Draws near a bound are less skewed than in the logarithm of the distance.

    Parameters
    ----------
    lower : float
        The bound.
    unit : ndarray, of the shape of the variable
        The distance at which the transform is about linear: a standard deviation.
    """

    name = "from_bound"
    ndim_supp = 0

    def __init__(self, lower: float, unit: FloatArray) -> None:
        self._lower, self._unit = lower, unit

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the variable."""
        return self._lower + self._unit * pt.softplus(value)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the value without bounds."""
        distance = (value - self._lower) / self._unit
        return distance + pt.log1p(-pt.exp(-distance))

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the derivative of `backward`."""
        return pt.log(self._unit) - pt.softplus(-value)


def without_bounds(model: pm.Model) -> dict[str, Transform]:
    """Return the transforms of a model's variables with bounds to values without bounds, by name."""
    found = dict[str, Transform]()
    for rv, transform in model.rvs_to_transforms.items():
        if isinstance(transform, LogarithmOf | Itself) and transform.to_unbounded is not None:
            found[rv.name] = ChainedTransform([transform, transform.to_unbounded])
    return found


def from_unbounded(transform: Transform | None) -> Transform | None:
    """Return the last part of a transform of `without_bounds`; None for other transforms."""
    parts = transform.transform_list if isinstance(transform, ChainedTransform) else [None]
    return parts[-1] if isinstance(parts[0], LogarithmOf | Itself) else None


def transform_by_name(rv: Variable, transform: Transform | None, names: Collection[str]) -> LogarithmOf | Itself | None:
    """Return the transform whose value is one of `names`, for a variable that has another transform; else None."""
    bounds = (-np.inf, np.inf) if transform is None else bounds_of(rv, transform)
    if bounds is None:
        return None
    if f"{rv.name}_{Itself.name}__" in names:
        return Itself(*bounds, transform)
    if transform is None:
        return None
    powers = [re.fullmatch(re.escape(str(rv.name)) + r"_log(?:\^(.+))?__", name) for name in names]
    found = [LogarithmOf(float(each[1] or 1.0), *bounds) for each in powers if each and bounds[0] >= 0.0]
    return found[0] if found and found[0].name != transform.name else None


def bounds_of(rv: Variable, transform: Transform | None) -> tuple[float, float] | None:
    """Return the bounds of a variable that PyMC transforms by them or by its logarithm; None for others.

    Bounds of single numbers are read; with others the result is None.
    """
    lower, upper = ends_of(rv, transform)
    return (lower, upper) if lower < upper else None


def ends_of(rv: Variable, transform: Transform | None) -> tuple[float, float]:
    """Return the bounds of such a variable: NaN for what is no single number, and for other variables."""
    if isinstance(transform, LogarithmOf):
        return transform.lower, transform.upper
    if isinstance(transform, LogTransform):
        return 0.0, np.inf
    of_families = isinstance(rv.owner.op, UniformRV | TruncatedNormalRV | TruncatedRV)
    if not (of_families and isinstance(transform, IntervalTransform)):
        return np.nan, np.nan
    lower, upper = transform.args_fn(*rv.owner.inputs)
    return _number(lower, -np.inf), _number(upper, np.inf)


def _number(bound: Any, none: float) -> float:
    """Return a bound that is a single number, `none` for no bound, and NaN for an expression."""
    if bound is None:
        return none
    bound = undimmed(bound)
    return float(leaf_value(bound)) if isinstance(bound, Constant) and bound.type.ndim == 0 else np.nan
