"""How many units of a batch are clipped: released with the sum over the batch, as further entries of one vector.

A second release on the same batch would not be covered: composition asks for a fresh batch each time. But a unit's
contribution may have further entries: the indicator that it is clipped, and where the number of units is protected
the indicator that it is there, each times w of the clip bound b. That makes it longer by a known factor,
sqrt(1 + 2 w²) of b when it is added, sqrt(1 + (w / 2)²) of 2b when it is replaced, and the release's noise covers
it. Means over many batches are precise: the noise of one count is about (noise multiplier) / w.
"""

import math

import numpy as np

from pymc_dp.release.interface import FloatArray, Release

#: w: 1 % more noise, or less.
COUNT_WEIGHT = 0.1


def count_weight(bound: float, grid: float) -> int:
    """Return what an indicator counts, in steps of the grid, rounded down."""
    return math.floor(COUNT_WEIGHT * bound / grid)


class BatchCounts:
    """Counts that have been released on batches since they were last taken. Any use of them is free."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._forget()

    def _forget(self) -> None:
        self._made = 0
        self._variance = 0.0
        self._total: FloatArray = np.zeros(self._entries)

    def add(self, counts: FloatArray, noise_std: float, scale: float) -> None:
        """Add the counts of one batch; `scale` makes them estimates for all units."""
        self._made += 1
        self._variance += (noise_std * scale) ** 2
        self._total += counts[: self._entries] * scale

    def taken(self) -> Release:
        """Return the mean over batches, and begin anew; nan if there was no batch."""
        mean, noise_std = np.full(self._entries, np.nan), math.nan
        if self._made:
            mean, noise_std = self._total / self._made, math.sqrt(self._variance) / self._made
        self._forget()
        return Release("clip_count", mean, noise_std, ())
