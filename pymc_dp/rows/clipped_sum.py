"""Exact sums of clipped contributions: the sums of the parts of a table add up to the sum of the whole."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyError


@dataclass(frozen=True, eq=False, repr=False)
class ClippedSum:
    """The exact sum over units of clipped contributions. Confidential: for the curator only.

    `integers`, shape (size,), are the sum in multiples of `grid`, a power of two. No unit's contribution has a larger
    Euclidean norm than `bound`. `n_clipped` units were clipped, including those that were not finite.
    """

    integers: NDArray[np.int64]
    grid: float
    bound: float
    n_clipped: int

    @property
    def value(self) -> NDArray[np.float64]:
        """The sum: integers times grid."""
        return np.asarray(self.integers * self.grid, dtype=np.float64)

    def __add__(self, other: "ClippedSum") -> "ClippedSum":
        """Return the sum over the units of both; other bounds, grids or shapes raise `PrivacyError`."""
        if self.grid != other.grid or self.bound != other.bound or self.integers.shape != other.integers.shape:
            raise PrivacyError("Sums that were clipped in different ways cannot be added.")
        return ClippedSum(self.integers + other.integers, self.grid, self.bound, self.n_clipped + other.n_clipped)

    def __repr__(self) -> str:
        return f"ClippedSum(size={self.integers.size}, bound={self.bound:g}; confidential)"


@dataclass(frozen=True, repr=False)
class ClippedMoments:
    """Sum and sum of squares of clipped log-ratios, in steps of a grid: the sufficient statistics of tests on batches.

    It also has the numbers of units and of clipped units. Confidential: for the curator only.
    """

    count: int
    total: int
    squares: int
    n_clipped: int

    @classmethod
    def of(cls, integers: NDArray[np.int64], n_clipped: int = 0) -> "ClippedMoments":
        """Return the moments of log-ratios, given in multiples of a grid, each below 2**42 steps."""
        total = squares = 0
        for begin in range(0, len(integers), 2**19):  # sums of 2**19 products of 21-bit numbers fit 62 bits
            part = integers[begin : begin + 2**19]
            high, low = part >> 21, part & (2**21 - 1)
            total += int(part.sum())
            squares += (int((high * high).sum()) << 42) + (int((high * low).sum()) << 22) + int((low * low).sum())
        return cls(len(integers), total, squares, n_clipped)

    def scaled(self, unit: Fraction) -> tuple[Fraction, Fraction]:
        """Return the exact sum and the sum of squared deviations from the mean, with `unit` as the length of a step."""
        return unit * self.total, unit**2 * (self.squares - Fraction(self.total**2, self.count))

    def __add__(self, other: "ClippedMoments") -> "ClippedMoments":
        """Return the moments over the units of both."""
        return ClippedMoments(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
            self.n_clipped + other.n_clipped,
        )

    def __repr__(self) -> str:
        return "ClippedMoments(confidential)"
