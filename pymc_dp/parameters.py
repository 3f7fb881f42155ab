"""The unconstrained parameter vector: every value variable of a model, raveled, in the model's order."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray

from pymc_dp.exceptions import UnsupportedModel

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
    shapes : dict of str to tuple of int
        Of the value variables, by name.
    slices : list of slice
        Where each value variable stands in theta.
    size : int
        Length of theta.
    """

    def __init__(self, model: pm.Model) -> None:
        with pytensor.config.change_flags(mode="FAST_COMPILE"):  # called once: not worth compiling
            point = model.initial_point(random_seed=0)
        self.names = [var.name for var in model.value_vars]
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

    def join(self, blocks: Sequence[np.ndarray]) -> FloatArray:
        """Return one vector from an array for each value variable."""
        return np.concatenate([np.ravel(block) for block in blocks])
