"""A sum of clipped contributions, which says how long each can be."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, repr=False)
class ClippedSum:
    """The exact sum over units of clipped contributions. Confidential: for the curator only.

    Attributes
    ----------
    integers : ndarray of int64, shape (size,)
        The sum as multiples of `grid`.
    grid : float
        A power of two.
    bound : float
        No unit's contribution has a larger Euclidean norm.
    n_clipped : int
        How many units were clipped, those that were not finite among them.
    """

    integers: NDArray[np.int64]
    grid: float
    bound: float
    n_clipped: int

    @property
    def value(self) -> NDArray[np.float64]:
        """The sum as numbers: integers times grid."""
        return np.asarray(self.integers * self.grid, dtype=np.float64)

    def __repr__(self) -> str:
        return f"ClippedSum(size={self.integers.size}, bound={self.bound:g}; confidential)"
