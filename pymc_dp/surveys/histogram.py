"""Counts of a column in bins from noisy counts in bins of several widths. No data is here."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts in the finest bins.

    Attributes
    ----------
    edges : ndarray, shape (bins + 1,)
        Of the bins, in the column's own units.
    counts : ndarray, shape (bins,)
        Best linear unbiased estimates: they may be negative.
    covariance : ndarray, shape (bins, bins)
        Of the noise in them.
    whole_numbers : bool
        Whether each bin holds whole numbers.
    """

    edges: FloatArray
    counts: FloatArray
    covariance: FloatArray
    whole_numbers: bool

    @property
    def shares(self) -> FloatArray:
        """Shares of the bins: the nearest ones that are not negative and add up to 1."""
        total = max(float(self.counts.sum()), 1.0)
        return nearest_shares(self.counts / total)

    def quantiles(self, levels: FloatArray, interval: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return quantiles of the table, and ends of intervals that hold them with the probability `interval`.

        An interval is of the noise alone, and of whole bins.
        """
        below = np.concatenate([[0.0], np.cumsum(self.shares)])
        found = np.interp(levels, below, self.edges)
        if self.whole_numbers:
            found = np.floor(found)
        total = max(float(self.counts.sum()), 1.0)
        up_to = np.cumsum(self.counts)[:-1] / total
        lower = np.tri(len(self.counts))[:-1]
        room = stats.norm.ppf(0.5 + interval / 2.0) * np.sqrt(np.diag(lower @ self.covariance @ lower.T)) / total
        lows, highs = np.empty(len(levels)), np.empty(len(levels))
        for place, level in enumerate(levels):
            # Of the true counts, the quantile is in the first bin up to which there are as many as the level asks for.
            may_reach = np.append(up_to + room >= level, True)
            falls_short = np.append(up_to - room < level, False)
            lows[place] = self.edges[np.argmax(may_reach)]
            last = len(falls_short) - 1 - np.argmax(falls_short[::-1]) if falls_short.any() else -1
            highs[place] = self.edges[last + 2] - (1.0 if self.whole_numbers else 0.0)
        return found, lows, highs


def combined(counts: list[FloatArray], members: list[FloatArray], noise_std: float, total: float | None) -> Histogram:
    """Return the counts of the finest bins by weighted least squares; edges are yet to be set.

    Parameters
    ----------
    counts : list of ndarray
        Noisy counts, the finest last.
    members : list of ndarray, shape (bins, finest bins)
        1 where a finest bin lies in a bin.
    noise_std : float
        Of each count.
    total : float or None
        The number of units, where it is public.
    """
    design = np.concatenate(members)
    covariance = np.linalg.inv(design.T @ design)
    found = covariance @ design.T @ np.concatenate(counts)
    if total is not None:  # what is missing to it is spread by how uncertain counts are
        of_total = covariance.sum(axis=1)
        found = found + of_total * (total - found.sum()) / of_total.sum()
        covariance = covariance - np.outer(of_total, of_total) / of_total.sum()
    return Histogram(np.arange(len(found) + 1.0), found, noise_std**2 * covariance, whole_numbers=False)


def nearest_shares(shares: FloatArray) -> FloatArray:
    """Return the nearest point of the simplex.

    References
    ----------
    Duchi, Shalev-Shwartz, Singer and Chandra (2008), Efficient projections onto the l1-ball, ICML.
    """
    ordered = np.sort(shares)[::-1]
    excess = np.cumsum(ordered) - 1.0
    last = np.flatnonzero(ordered - excess / np.arange(1, len(shares) + 1) > 0.0)[-1]
    found: FloatArray = np.maximum(shares - excess[last] / (last + 1), 0.0)
    return found
