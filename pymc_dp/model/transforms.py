"""Transforms of positive variables in the form of a model that steps use: logarithms, whatever the prior's bounds.

Likelihoods are about normal in the logarithm of a scale or a shape. PyMC transforms a variable with bounds otherwise,
and a precision or a variance is a power of a scale. Draws are made in coordinates without bounds (`Unbounded`).
"""

import math
import re
from collections.abc import Collection
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import TruncatedNormalRV
from pymc.distributions.truncated import TruncatedRV
from pymc.logprob.transforms import ChainedTransform, IntervalTransform, LogTransform, Transform
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.basic import UniformRV

from pymc_dp.model.arrays import leaf_value, undimmed

#: The part of the distance between bounds, on the logarithmic scale, by which searches stay off them.
_MARGIN = 1e-3
#: The distance that counts where one bound is zero or infinite.
_FAR = 1.0


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
    def has_bounds(self) -> bool:
        """Whether the variable has a bound but zero."""
        return self.lower > 0.0 or self.upper < np.inf

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest value that a search uses: those at the bounds, less a margin."""
        least = math.log(self.lower) if self.lower > 0.0 else -math.inf
        most = math.log(self.upper)
        margin = _MARGIN * min(_FAR, most - least)
        ends = self.power * (least + margin), self.power * (most - margin)
        return min(ends), max(ends)


class Unbounded(Transform):
    """Transform the value of `LogarithmOf` to one without bounds, about the same where bounds are far away."""

    name = "unbounded"

    def __init__(self, logarithm: LogarithmOf) -> None:
        self._power, self._lower, self._upper = logarithm.power, logarithm.lower, logarithm.upper

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the value of the logarithm: for one bound the variable is lower + exp(value / power)."""
        scaled = value / self._power
        if self._upper == np.inf:
            return self._power * pt.log(self._lower + pt.exp(scaled))
        length = self._upper - self._lower
        return self._power * pt.log(self._lower + length * pt.sigmoid(scaled - np.log(length)))

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the value without bounds."""
        above = pt.exp(value / self._power) - self._lower
        if self._upper == np.inf:
            return self._power * pt.log(above)
        length = self._upper - self._lower
        return self._power * (pt.log(above) - pt.log1p(-above / length))

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the derivative of `backward`."""
        scaled = value / self._power
        if self._upper == np.inf:
            return scaled - pt.log(self._lower + pt.exp(scaled))
        length = self._upper - self._lower
        part = pt.sigmoid(scaled - np.log(length))
        return pt.log(length * part) + pt.log1p(-part) - pt.log(self._lower + length * part)


def without_bounds(model: pm.Model) -> dict[str, Transform]:
    """Return the transforms of a model's logarithms with bounds to values without bounds, by name."""
    transforms = {rv.name: transform for rv, transform in model.rvs_to_transforms.items()}
    return {
        name: ChainedTransform([each, Unbounded(each)])
        for name, each in transforms.items()
        if isinstance(each, LogarithmOf) and each.has_bounds
    }


def logarithm_by_name(rv: Variable, transform: Transform | None, names: Collection[str]) -> LogarithmOf | None:
    """Return the logarithm whose value is one of `names`, for a positive variable that has another transform."""
    bounds = bounds_of(rv, transform)
    for name in names:
        match = re.fullmatch(re.escape(str(rv.name)) + r"_log(?:\^(.+))?__", name)
        if match and bounds is not None:
            found = LogarithmOf(float(match[1] or 1.0), *bounds)
            return None if transform is not None and transform.name == found.name else found
    return None


def bounds_of(rv: Variable, transform: Transform | None) -> tuple[float, float] | None:
    """Return the bounds of a positive variable that PyMC transforms by them or by its logarithm; None for others.

    Bounds of single numbers are read; with others the result is None.
    """
    if isinstance(transform, LogarithmOf):
        return transform.lower, transform.upper
    if isinstance(transform, LogTransform):
        return 0.0, np.inf
    of_families = isinstance(rv.owner.op, UniformRV | TruncatedNormalRV | TruncatedRV)
    if not (of_families and isinstance(transform, IntervalTransform)):
        return None
    bounds = [_number(each) for each in transform.args_fn(*rv.owner.inputs)]
    lower, upper = bounds[0], np.inf if bounds[1] is None else bounds[1]
    return (lower, upper) if lower is not None and 0.0 <= lower < upper else None


def _number(bound: Any) -> float | None:
    """Return a bound that is a single number; None for no bound and NaN for an expression."""
    if bound is None:
        return None
    bound = undimmed(bound) if isinstance(bound, Variable) else bound
    if isinstance(bound, Constant) and bound.type.ndim == 0:
        return float(leaf_value(bound))
    return np.nan
