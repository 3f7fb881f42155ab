"""The unconstrained parameter vector theta: every value variable of a model, raveled, in the model's order."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.util import get_value_vars_from_user_vars
from pytensor.graph.basic import Variable

from pymc_dp.compiling import INTERPRETED
from pymc_dp.exceptions import InvalidArgument, UnsupportedModel

FloatArray = NDArray[np.float64]
#: The least and the largest values of parameters, shape (parameters,) each, or one number for all.
Bounds = tuple[FloatArray, FloatArray]
NO_BOUNDS: Bounds = (np.array(-np.inf), np.array(np.inf))


def texts_of(labels: Any) -> list[str]:
    """Return the labels of a dim as texts, the same for those that a model was given and those of a stored result."""
    return [str(each) for each in pd.Index(labels, tupleize_cols=False)]


class ParameterVector:
    """Convert points of a PyMC model, whose free variables have static shapes, to the vector theta and back."""

    def __init__(self, model: pm.Model) -> None:
        point = default_point(model)
        #: Names of the value variables, and of their free variables, in the order of ``model.free_RVs``.
        self.names = [var.name for var in model.value_vars]
        self.variables = [model.values_to_rvs[var].name for var in model.value_vars]
        #: Shapes of the value variables by name, the slice of each in theta, and the length of theta.
        self.shapes: dict[str, tuple[int, ...]] = {name: np.shape(point[name]) for name in self.names}
        bounds = np.cumsum([0, *map(math.prod, self.shapes.values())]).tolist()
        self.slices = list(itertools.starmap(slice, itertools.pairwise(bounds)))
        self.size: int = bounds[-1]
        dtypes = [var.type.dtype for var in model.value_vars]
        self._blocks = list(zip(self.slices, self.shapes.values(), dtypes, strict=True))
        if self.size == 0:
            raise UnsupportedModel("The model has no free variables to sample.")
        #: One for each entry of theta, such as ``"beta[2]"``.
        self.labels = [
            name + (f"[{', '.join(map(str, index))}]" if shape else "")
            for name, shape in self.shapes.items()
            for index in np.ndindex(shape)
        ]
        #: Labels of the axes of each free variable, by its name and dim; without dims that have none.
        dims = {rv.name: model.named_vars_to_dims.get(rv.name) or () for rv in model.free_RVs}
        used = set(itertools.chain.from_iterable(dims.values()))
        texts = {dim: texts_of(labels) for dim, labels in model.coords.items() if dim in used and labels is not None}
        self.coords = {name: {dim: texts[dim] for dim in of if dim in texts} for name, of in dims.items()}

    def refuse_other_coords(self, released: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """Refuse a model whose labels differ from those of a release: entries of variables are matched by place."""
        for name, coords in self.coords.items():
            for dim, labels in coords.items():
                others = released.get(name, {}).get(dim, labels)
                for place, (own, other) in enumerate(zip(labels, others, strict=False)):
                    if own != other:
                        raise InvalidArgument(
                            f"The coords of {name!r} differ from the released ones: entry {place} of {dim!r} is "
                            f"{own!r} in the model, and was {other!r}. Give the dim the same labels in the same order."
                        )

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of unconstrained parameters of each free variable among these names."""
        sizes = dict(zip(self.variables, map(math.prod, self.shapes.values()), strict=True))
        return {name: sizes[name] for name in names if name in sizes}

    def split(self, theta: FloatArray) -> list[np.ndarray]:
        """Return theta as one array for each value variable, in order."""
        return [theta[entries].reshape(shape).astype(dtype) for entries, shape, dtype in self._blocks]

    def to_theta(self, point: Mapping[str, np.ndarray]) -> FloatArray:
        """Return the vector of a PyMC point."""
        return np.concatenate([np.ravel(np.asarray(point[name], dtype=np.float64)) for name in self.names])

    def to_point(self, theta: FloatArray) -> dict[str, np.ndarray]:
        """Return the PyMC point of a vector."""
        return dict(zip(self.names, self.split(theta), strict=True))

    def by_variable(self, setting: str, values: Mapping[Any, Any], blocks: Sequence[bool]) -> FloatArray:
        """Return one vector from numbers by the names of free variables, on the unconstrained scale.

        A free variable has one number for all of its entries, or one for each. `setting` names the argument in
        messages. `values` must name the variables that `blocks` selects, and no others.
        """
        wanted = dict(itertools.compress(zip(self.variables, self.shapes.values(), strict=True), blocks))
        unknown = sorted({str(name) for name in values} - set(wanted))
        missing = [name for name in wanted if name not in values]
        if unknown or missing:
            wrong = (
                f"names {', '.join(map(repr, unknown))}" if unknown else f"leaves out {', '.join(map(repr, missing))}"
            )
            raise InvalidArgument(
                f"{setting} {wrong}; it must name the free variables that the step moves: "
                f"{', '.join(map(repr, wanted))}."
            )
        parts = []
        for name, shape in wanted.items():
            try:
                parts.append(np.ravel(np.broadcast_to(np.asarray(values[name], dtype=np.float64), shape)))
            except (OverflowError, TypeError, ValueError):
                raise InvalidArgument(
                    f"{setting}[{name!r}] must be a number or an array of the shape of {name!r} on the unconstrained "
                    "scale."
                ) from None
        return np.concatenate(parts)


def default_point(model: pm.Model) -> dict[str, np.ndarray]:
    """Return PyMC's default initial point, by the names of the value variables."""
    with pytensor.config.change_flags(mode=INTERPRETED):  # called once: compiling takes longer
        point: dict[str, np.ndarray] = model.initial_point(random_seed=0)
    return point


def value_variables(model: pm.Model, chosen: Sequence[Any] | None = None) -> list[Variable]:
    """Return the value variables of a model, or those of the `chosen` free variables, given themselves or by name."""
    if chosen is None:
        return list(model.value_vars)
    try:
        found: list[Variable] = get_value_vars_from_user_vars(
            [model[var] if isinstance(var, str) else var for var in chosen], model
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidArgument("vars names a variable that is no free variable of the model.") from None
    return found
