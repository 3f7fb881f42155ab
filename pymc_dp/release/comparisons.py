"""Queries that compare how two models predict the units: differences of their log predictive densities."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.interface import FloatArray
from pymc_dp.release.query import PublicFacts, Rows, SumOverUnits
from pymc_dp.release.sizes import ROOM_OF_COUNTS, CountsByOctave
from pymc_dp.rows.derivatives import UnitsOfChunk


@dataclass(frozen=True, eq=False)
class _Densities(SumOverUnits):
    """Differences of log predictive densities, those of means over draws.

    The `count` draws of the model's posterior, and of the other model's, stand one after the other.
    """

    draws: FloatArray
    draws_of_other: FloatArray
    count: int

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse draws that are not of both models."""
        if rows.size_of_other is None:
            raise PrivacyError("There is no other model to compare with.")
        for draws, size in ((self.draws, rows.n_parameters), (self.draws_of_other, rows.size_of_other)):
            if self.count < 1 or draws.shape != (self.count * size,):
                raise PrivacyError(f"Draws must be {self.count} times {size} numbers.")

    def differences(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the model's log predictive density of each unit less the other model's, shape (units,)."""
        one = [chunk.log_likelihood(theta) for theta in np.split(self.draws, self.count)]
        other = [chunk.log_likelihood_by_other(theta) for theta in np.split(self.draws_of_other, self.count)]
        found: FloatArray = np.logaddexp.reduce(np.array(one), axis=0) - np.logaddexp.reduce(np.array(other), axis=0)
        return found


@dataclass(frozen=True, eq=False)
class DifferenceSizes(CountsByOctave, _Densities):
    """How many units have a difference of a size in each octave."""

    lowest: int
    bins: int
    kind: str = "difference_sizes"

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return a 1 in the bin of each unit's difference."""
        return self.counts(np.abs(self.differences(chunk))).T


@dataclass(frozen=True, eq=False)
class DensityDifferences(_Densities):
    """Sums over units of clipped differences, and of their squares.

    In units of the clip bound a unit contributes (x, x²), with x between -1 and 1; a difference that is no number
    counts as zero. Two of these are at most 2 apart: with s = x + x' and t = x - x' the squared distance is t² (1 +
    s²), and the sizes of s and t add up to at most 2, so that it is at most 4, where t is 2.
    """

    clip_bound: float
    kind: str = "density_differences"
    size: ClassVar[int] = 2
    apart: ClassVar[float] = math.sqrt(2.0)  # of the bound: 2

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of (1, 1)."""
        return math.sqrt(2.0) * ROOM_OF_COUNTS

    def rounding(self, facts: PublicFacts) -> float:
        """Return room for truncations to the grid, of two contributions with two entries each."""
        return 4.0

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse clip bounds that are not positive numbers."""
        if not 0.0 < self.clip_bound < math.inf:
            raise PrivacyError("Differences are clipped to a positive number.")
        super().refuse_if_unsafe(facts)

    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return each unit's clipped difference and its square."""
        found = self.differences(chunk) / self.clip_bound
        x = np.clip(np.where(np.isnan(found), 0.0, found), -1.0, 1.0)
        return np.column_stack([x, x * x])

    def published(self, value: FloatArray, facts: PublicFacts) -> FloatArray:
        """Return the sums of differences and of their squares."""
        found: FloatArray = value * np.array([self.clip_bound, self.clip_bound**2])
        return found
