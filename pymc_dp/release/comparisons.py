"""Queries that compare how two models predict the units: differences of their log predictive densities."""

import math
from dataclasses import dataclass

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.interface import FloatArray
from pymc_dp.release.query import Asked, Query, Terms
from pymc_dp.release.sizes import ROOM_OF_COUNTS, CountsByOctave, in_bins, octaves
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.derivatives import UnitsOfChunk


@dataclass(frozen=True, eq=False)
class _Densities:
    """What both queries share: log predictive densities are those of means over draws.

    Attributes
    ----------
    draws : ndarray, shape (draws * parameters,)
        Of the model's posterior, one after the other.
    draws_of_other : ndarray, shape (draws * parameters,)
        Of the other model's.
    count : int
        How many draws each has.
    """

    draws: FloatArray
    draws_of_other: FloatArray
    count: int

    @property
    def where(self) -> tuple[FloatArray, ...]:
        """Nowhere in particular."""
        return ()

    def refuse_unless_they_fit(self, asked: Asked) -> None:
        """Refuse draws that are not of both models."""
        if asked.rows.size_of_other is None:
            raise PrivacyError("There is no other model to compare with.")
        for draws, size in ((self.draws, asked.rows.n_parameters), (self.draws_of_other, asked.rows.size_of_other)):
            if self.count < 1 or draws.shape != (self.count * size,):
                raise PrivacyError(f"Draws must be {self.count} times {size} numbers.")

    def differences(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return by how much the model's log predictive density of each unit is above the other's, shape (units,)."""
        of_one, of_other = np.split(self.draws, self.count), np.split(self.draws_of_other, self.count)
        densities = (
            [chunk.log_likelihood(theta) for theta in of_one],
            [chunk.log_likelihood_by_other(theta) for theta in of_other],
        )
        one, other = (np.logaddexp.reduce(np.array(found), axis=0) for found in densities)
        found: FloatArray = one - other
        return found


@dataclass(frozen=True, eq=False)
class DifferenceSizes(_Densities, CountsByOctave):
    """How many units have a difference of a size in each octave.

    Attributes
    ----------
    draws, draws_of_other : ndarray
        As in `DensityDifferences`.
    count : int
        How many draws each has.
    lowest : int
        The first bin holds sizes from ``2**lowest`` on, and all smaller ones; a bin is an octave.
    bins : int
        Number of bins; the last one holds all larger sizes.
    kind : str
        The name of the release.
    """

    lowest: int
    bins: int
    kind: str = "difference_sizes"

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the counts."""
        self.refuse_unless_they_fit(asked)

        def counts(chunk: UnitsOfChunk) -> FloatArray:
            return in_bins(octaves(np.abs(self.differences(chunk))) - self.lowest, self.bins).T

        return asked.rows.sum_over_units(counts, self.bins, self.bound(asked.terms), asked.grid)


@dataclass(frozen=True, eq=False)
class DensityDifferences(_Densities, Query):
    """Sums over units of clipped differences, and of their squares, in units of the clip bound.

    A unit contributes (x, x²), with x between -1 and 1. Two of these are at most 2 apart: with s = x + x' and
    t = x - x' the squared distance is t² (1 + s²), and the sizes of s and t add up to at most 2, so that it is at most
    4, where t is 2.

    Attributes
    ----------
    draws, draws_of_other : ndarray, shape (draws * parameters,)
        Of both posteriors, one after the other.
    count : int
        How many draws each has.
    clip_bound : float
        The largest absolute difference of a unit. One that is no number counts as zero.
    kind : str
        The name of the release. Its value is in units of the differences, and of their squares.
    """

    clip_bound: float
    kind: str = "density_differences"

    def bound(self, terms: Terms) -> float:
        """Return the norm of (1, 1)."""
        return math.sqrt(2.0) * ROOM_OF_COUNTS

    def factor(self, terms: Terms) -> float:
        """Return the square root of 2: two contributions are at most 2 apart."""
        return min(terms.factor, math.sqrt(2.0))

    def rounding(self, terms: Terms) -> float:
        """Return room for truncations to the grid, of two contributions with two entries each."""
        return 4.0

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse clip bounds that are not positive numbers."""
        if not 0.0 < self.clip_bound < math.inf:
            raise PrivacyError("Differences are clipped to a positive number.")
        super().refuse_if_unsafe(terms)

    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the sums."""
        self.refuse_unless_they_fit(asked)

        def contributions(chunk: UnitsOfChunk) -> FloatArray:
            found = self.differences(chunk) / self.clip_bound
            x = np.clip(np.where(np.isnan(found), 0.0, found), -1.0, 1.0)
            return np.column_stack([x, x * x])

        return asked.rows.sum_over_units(contributions, 2, self.bound(asked.terms), asked.grid)

    def published(self, value: FloatArray, terms: Terms) -> FloatArray:
        """Return the sums of differences and of their squares."""
        found: FloatArray = value * np.array([self.clip_bound, self.clip_bound**2])
        return found
