"""Inference from noisy counts in bins: bins that hold rows, sizes of summands, and counts from bins of several widths.

This module has no data.
"""

from collections.abc import Callable

import numpy as np
import scipy

from pymc_dp.release.interface import FloatArray, Release

#: Number of steps of the search for bins: the first has octaves of absolute values, on both sides of zero; each later
#: one divides the bins that hold rows into about `_PARTS` parts.
STEPS = 3
_OCTAVES, _PARTS = 60, 64
_SIZES = 2.0 ** np.arange(-_OCTAVES, _OCTAVES + 1)
_EDGES_OF_OCTAVES = np.concatenate([-_SIZES[::-1], _SIZES])
#: Largest number of bins of a step, for plans.
FINEST = max(4 * _OCTAVES + 3, 2 * _PARTS + 2)
#: A bin is taken to hold rows if its count is above zero by so many standard deviations of the noise.
_STANDS_OUT = 3.5


def found_bins(counts_between: Callable[[FloatArray], Release]) -> tuple[FloatArray, Release]:
    """Return edges of fine bins around the rows, and the counts between them, those of the open ends included.

    `counts_between` releases counts by bin, given the edges between bins. It is called `STEPS` times.
    """
    edges = _EDGES_OF_OCTAVES
    counts = counts_between(edges)
    for _ in range(1, STEPS):
        edges = _parts(edges, counts)
        counts = counts_between(edges)
    return edges, counts


def found_range(counts_between: Callable[[FloatArray], Release]) -> tuple[float, float]:
    """Return a range of nearly all rows, with a margin for rows that noise hides.

    Bins that hold rows are found in two steps; the range is twice as wide. The third step counts rows beyond it: on a
    side where that count stands out of the noise, the range extends to that of the octaves that hold rows.
    """
    counts = counts_between(_EDGES_OF_OCTAVES)
    wide, fine = _hull(_EDGES_OF_OCTAVES, counts), _parts(_EDGES_OF_OCTAVES, counts)
    narrow = _hull(fine, counts_between(fine))
    beyond = counts_between(np.array(narrow))
    stands_out = beyond.value[[0, -1]] > _STANDS_OUT * beyond.noise_std
    return wide[0] if stands_out[0] else narrow[0], wide[1] if stands_out[1] else narrow[1]


def bins_that_most_keep(sizes: FloatArray, noise_std: float, beyond: float) -> int:
    """Return the number of first bins with all units except the part `beyond`, and those that noise hides."""
    total = max(float(sizes.sum()), 1.0)
    from_here = np.cumsum(sizes[::-1])[::-1]
    room = _STANDS_OUT * noise_std * np.sqrt(np.arange(len(from_here), 0, -1))
    reached = np.flatnonzero(from_here > beyond * total + room)
    return int(reached[-1]) + 1 if reached.size else 1


def _hull(edges: FloatArray, counts: Release) -> tuple[float, float]:
    """Return the range of the bins that hold rows, extended by half its width on both sides."""
    holds = _that_hold_rows(counts)
    low, high = float(edges[holds[0]]), float(edges[holds[-1] + 1])
    return 1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low


def _parts(edges: FloatArray, counts: Release) -> FloatArray:
    """Return edges that divide the bins that hold rows into parts."""
    holds = _that_hold_rows(counts)
    parts = -(-_PARTS // holds.size)
    return np.unique(np.concatenate([np.linspace(edges[bin_], edges[bin_ + 1], parts + 1) for bin_ in holds]))


def _that_hold_rows(counts: Release) -> np.ndarray:
    """Return the bins that hold rows, without the open ones; if none stands out, the bin with the largest count."""
    inner = counts.value[1:-1]
    holds = np.flatnonzero(inner > _STANDS_OUT * counts.noise_std)
    return holds if holds.size else np.array([inner.argmax()])


def combined(
    counts: list[FloatArray], members: list[FloatArray], noise_std: float, total: float | None
) -> tuple[FloatArray, FloatArray]:
    """Return the counts of the finest bins by weighted least squares, and the covariance of their noise.

    These are the best linear unbiased estimates, and may be negative. `counts` are noisy, those of the finest bins
    last; `members`, shape (bins, finest bins), are 1 where a finest bin lies in a bin. `total` is the number of units,
    where it is public.
    """
    design = np.concatenate(members)
    covariance = np.linalg.inv(design.T @ design)
    found = covariance @ design.T @ np.concatenate(counts)
    if total is not None:  # constrained least squares: the difference to the total is spread by covariance
        of_total = covariance.sum(axis=1)
        found = found + of_total * (total - found.sum()) / of_total.sum()
        covariance = covariance - np.outer(of_total, of_total) / of_total.sum()
    return found, noise_std**2 * covariance


def quantiles(
    levels: FloatArray,
    interval: float,
    edges: FloatArray,
    counts: FloatArray,
    covariance: FloatArray,
    *,
    whole_numbers: bool,
) -> FloatArray:
    """Return quantiles of the table, and ends of intervals that contain them with the probability `interval`.

    The intervals account for the noise alone, and consist of whole bins; `whole_numbers` is whether the bins consist
    of whole numbers. Rows of the result, shape (3, levels): the quantiles, the lower and the upper ends.
    """
    total, bins, wanted = max(float(counts.sum()), 1.0), len(counts), levels[:, None]
    found = np.interp(levels, np.concatenate([[0.0], np.cumsum(nearest_shares(counts / total))]), edges)
    up_to = np.cumsum(counts)[:-1] / total
    lower = np.tri(bins)[:-1]
    room = scipy.stats.norm.ppf(0.5 + interval / 2.0) * np.sqrt(np.diag(lower @ covariance @ lower.T)) / total
    # The quantile is in the first bin whose true cumulative share reaches the level.
    may_reach, falls_short = up_to + room >= wanted, up_to - room < wanted
    first = np.where(may_reach.any(axis=1), may_reach.argmax(axis=1), bins - 1)
    last = np.where(falls_short.any(axis=1), bins - 1 - falls_short[:, ::-1].argmax(axis=1), 0)
    if whole_numbers:
        return np.array([np.floor(found), edges[first], edges[last + 1] - 1.0])
    return np.array([found, edges[first], edges[last + 1]])


def nearest_shares(shares: FloatArray) -> FloatArray:
    """Return the nearest point of the simplex (Duchi, Shalev-Shwartz, Singer and Chandra 2008, ICML)."""
    ordered = np.sort(shares)[::-1]
    excess = np.cumsum(ordered) - 1.0
    last = np.flatnonzero(ordered - excess / np.arange(1, len(shares) + 1) > 0.0)[-1]
    found: FloatArray = np.maximum(shares - excess[last] / (last + 1), 0.0)
    return found
