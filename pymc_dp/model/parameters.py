"""The unconstrained parameter vector: every value variable of a model, raveled, in the model's order."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.util import get_value_vars_from_user_vars
from pytensor.graph.basic import Variable

from pymc_dp.compiling import INTERPRETED
from pymc_dp.exceptions import InvalidArgument, UnsupportedModel

FloatArray = NDArray[np.float64]


class ParameterVector:
    """Translate between a PyMC point and the vector theta.

    Parameters
    ----------
    model : pm.Model
        All its free variables need static shapes.

    Attributes
    ----------
    names : list of str
        Of the value variables, in order.
    labels : list of str
        One for each entry of theta, such as ``"beta[2]"``.
    variables : list of str
        Names of the free variables behind them, as in ``model.free_RVs``, in the same order.
    shapes : dict of str to tuple of int
        Of the value variables, by name.
    slices : list of slice
        Where each value variable stands in theta.
    size : int
        Length of theta.
    """

    def __init__(self, model: pm.Model) -> None:
        with pytensor.config.change_flags(mode=INTERPRETED):  # called once: not worth compiling
            point = model.initial_point(random_seed=0)
        self.names = [var.name for var in model.value_vars]
        self.variables = [model.values_to_rvs[var].name for var in model.value_vars]
        self._shapes: list[tuple[int, ...]] = [np.shape(point[name]) for name in self.names]
        self.shapes = dict(zip(self.names, self._shapes, strict=True))
        self._dtypes: list[Any] = [var.type.dtype for var in model.value_vars]
        self._bounds = np.cumsum([0, *[math.prod(shape) for shape in self._shapes]]).tolist()
        self.slices = [slice(low, high) for low, high in itertools.pairwise(self._bounds)]
        self.size: int = self._bounds[-1]
        if self.size == 0:
            raise UnsupportedModel("The model has no free variables to sample.")
        self.labels = [
            name + (f"[{', '.join(map(str, index))}]" if shape else "")
            for name, shape in zip(self.names, self._shapes, strict=True)
            for index in np.ndindex(shape)
        ]

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many unconstrained parameters each of these variables has; those that are not free have none."""
        sizes = {name: math.prod(shape) for name, shape in zip(self.variables, self._shapes, strict=True)}
        return {name: sizes[name] for name in names if name in sizes}

    def split(self, theta: FloatArray) -> list[np.ndarray]:
        """Return theta as one array for each value variable, in order."""
        return [
            theta[low:high].reshape(shape).astype(dtype)
            for low, high, shape, dtype in zip(
                self._bounds[:-1], self._bounds[1:], self._shapes, self._dtypes, strict=True
            )
        ]

    def to_theta(self, point: Mapping[str, np.ndarray]) -> FloatArray:
        """Return the vector of a PyMC point."""
        return np.concatenate([np.ravel(np.asarray(point[name], dtype=np.float64)) for name in self.names])

    def to_point(self, theta: FloatArray) -> dict[str, np.ndarray]:
        """Return the PyMC point of a vector."""
        return dict(zip(self.names, self.split(theta), strict=True))

    def by_variable(self, setting: str, values: Mapping[Any, Any], blocks: Sequence[bool]) -> FloatArray:
        """Return one vector from numbers by the names of free variables, on the unconstrained scale.

        Parameters
        ----------
        setting : str
            What the numbers are for, in messages.
        values : mapping of str to array_like
            A number for all entries of a free variable, or one for each.
        blocks : sequence of bool
            Which variables have to be named; no others may be.

        Raises
        ------
        InvalidArgument
            If a name is unknown or left out, or numbers do not fit their variable.
        """
        wanted = list(itertools.compress(zip(self.variables, self._shapes, strict=True), blocks))
        names = [name for name, _ in wanted]
        unknown = sorted({str(name) for name in values} - set(names))
        missing = [name for name in names if name not in values]
        if unknown or missing:
            wrong = (
                f"names {', '.join(map(repr, unknown))}" if unknown else f"leaves out {', '.join(map(repr, missing))}"
            )
            raise InvalidArgument(
                f"{setting} {wrong}; it must name the free variables that the step moves: "
                f"{', '.join(map(repr, names))}."
            )
        parts = []
        for name, shape in wanted:
            try:
                parts.append(np.ravel(np.broadcast_to(np.asarray(values[name], dtype=np.float64), shape)))
            except (OverflowError, TypeError, ValueError):
                raise InvalidArgument(
                    f"{setting}[{name!r}] must be a number or an array of the shape of {name!r} on the unconstrained "
                    "scale."
                ) from None
        return np.concatenate(parts)

    def join(self, blocks: Sequence[np.ndarray]) -> FloatArray:
        """Return one vector from an array for each value variable."""
        return np.concatenate([np.ravel(block) for block in blocks])


def value_variables(model: pm.Model, chosen: Sequence[Any] | None = None) -> list[Variable]:
    """Return the model's unconstrained parameters, or those behind some free variables or their names.

    Raises
    ------
    InvalidArgument
        If one is no free variable of the model.
    """
    if chosen is None:
        return list(model.value_vars)
    try:
        found: list[Variable] = get_value_vars_from_user_vars(
            [model[var] if isinstance(var, str) else var for var in chosen], model
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidArgument("vars names a variable that is no free variable of the model.") from None
    return found
