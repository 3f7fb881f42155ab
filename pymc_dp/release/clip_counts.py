"""How many units are clipped: counted by the curator, and released with sums over batches as further entries.

A second release on the same batch would not be covered by the accounting: composition asks for a fresh batch each time.
But a unit's contribution may have further entries: the indicator that the unit is clipped, and where the number of
units is protected the indicator that the unit is in the batch, each times w of the clip bound b. That makes a
contribution longer by a known factor, sqrt(1 + 2 w²) of b when a unit is added, sqrt(1 + (w / 2)²) of 2b when one is
replaced, and the release's noise covers it. Means over many batches are precise: the noise of one count is about
(noise multiplier) / w.
"""

import math
from collections.abc import Iterable

import numpy as np

from pymc_dp.release.interface import FloatArray, Release

#: w: 1 % more noise, or less.
COUNT_WEIGHT = 0.1


def count_weight(bound: float, grid: float) -> int:
    """Return what an indicator counts, in steps of the grid, rounded down."""
    return math.floor(COUNT_WEIGHT * bound / grid)


class ClipTally:
    """Exact counts of clipped units by kind of release, since they were last taken. Confidential.

    Parameters
    ----------
    kinds : iterable of str
        The kinds of releases whose clipped units are counted, in the order of the released means.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._clipped = dict.fromkeys(kinds, 0)
        self._releases = dict(self._clipped)

    def __len__(self) -> int:
        return len(self._clipped)

    def add(self, kind: str, n_clipped: int) -> None:
        """Count the clipped units of one release."""
        if kind in self._clipped:
            self._clipped[kind] += n_clipped
            self._releases[kind] += 1

    def taken(self, n_protected: int | None) -> tuple[list[int], list[int]]:
        """Return by kind how often units were clipped, and in how many releases (at least 1), and begin anew.

        The number of units follows, where it is protected: `n_protected`, which is None where it is public.
        """
        counts, releases = list(self._clipped.values()), [max(1, number) for number in self._releases.values()]
        self._clipped = dict.fromkeys(self._clipped, 0)
        self._releases = dict(self._clipped)
        return (counts, releases) if n_protected is None else ([*counts, n_protected], [*releases, 1])


class BatchCounts:
    """Counts that have been released on batches since they were last taken. Any use of them is free.

    Parameters
    ----------
    entries : int
        1 for clipped units, 2 with the number of units.
    """

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self._forget()

    def _forget(self) -> None:
        self._made = 0
        self._variance = 0.0
        self._total: FloatArray = np.zeros(self.entries)

    def add(self, counts: FloatArray, noise_std: float, scale: float) -> None:
        """Add the counts of one batch; `scale` makes them estimates for all units."""
        self._made += 1
        self._variance += (noise_std * scale) ** 2
        self._total += counts[: self.entries] * scale

    def taken(self) -> Release:
        """Return the mean over batches, and begin anew; nan if there was no batch."""
        mean, noise_std = np.full(self.entries, np.nan), math.nan
        if self._made:
            mean, noise_std = self._total / self._made, math.sqrt(self._variance) / self._made
        self._forget()
        return Release("clip_count", mean, noise_std, ())
