"""A clipped sum, which states its own sensitivity."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import InvalidArgument


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

    def sensitivity(self, relation: str) -> float:
        """Return how far the sum moves, in Euclidean norm, between neighbouring tables.

        Replacing one unit removes a contribution of norm at most `bound` and adds another: 2 bound. Adding or
        removing one moves the sum by at most bound. Truncation toward zero never lengthens a contribution.

        Raises
        ------
        InvalidArgument
            For an unknown relation.
        """
        if relation == "substitute":
            return 2.0 * self.bound
        if relation == "add-remove":
            return self.bound
        raise InvalidArgument(f"relation must be 'substitute' or 'add-remove', but is {relation!r}.")

    def __repr__(self) -> str:
        return f"ClippedSum(size={self.integers.size}, bound={self.bound:g}; confidential)"
