"""Where rows are, and how large what is summed: found by noisy counts in bins. No data is here."""

from collections.abc import Callable

import numpy as np

from pymc_dp.release.interface import FloatArray, Release

#: Rows are looked for in steps: first in octaves of a number's size, on both sides of zero, and then in about so many
#: parts of the bins that hold rows.
STEPS = 3
_OCTAVES, _PARTS = 60, 64
#: The most bins of a step, for plans.
FINEST = max(4 * _OCTAVES + 3, 2 * _PARTS + 2)
#: A bin holds rows if its count stands out of the noise by so many standard deviations.
_STANDS_OUT = 3.5


def found_bins(counts_between: Callable[[FloatArray], Release]) -> tuple[FloatArray, Release]:
    """Return edges of fine bins where rows are, and the counts between them, of the open ends as well.

    Parameters
    ----------
    counts_between : callable
        Releases counts by bin, given the edges between bins. It is called `STEPS` times.
    """
    edges = _octaves()
    counts = counts_between(edges)
    for _ in range(1, STEPS):
        edges = _parts(edges, counts)
        counts = counts_between(edges)
    return edges, counts


def found_range(counts_between: Callable[[FloatArray], Release]) -> tuple[float, float]:
    """Return numbers between which nearly all rows are, with room for those that noise hides.

    Bins that hold rows are found in two steps; the range is twice as wide. The third one counts what is beyond: where
    that stands out of the noise, the range reaches as far as that of the octaves that hold rows.
    """
    octaves = _octaves()
    counts = counts_between(octaves)
    wide, fine = _hull(octaves, counts), _parts(octaves, counts)
    narrow = _hull(fine, counts_between(fine))
    beyond = counts_between(np.array(narrow))
    stands_out = beyond.value[[0, -1]] > _STANDS_OUT * beyond.noise_std
    return wide[0] if stands_out[0] else narrow[0], wide[1] if stands_out[1] else narrow[1]


def _octaves() -> FloatArray:
    sizes = 2.0 ** np.arange(-_OCTAVES, _OCTAVES + 1)
    return np.concatenate([-sizes[::-1], sizes])


def _hull(edges: FloatArray, counts: Release) -> tuple[float, float]:
    """Return the ends of the bins that hold rows, with half as much again on both sides."""
    holds = _that_hold_rows(counts)
    low, high = float(edges[holds[0]]), float(edges[holds[-1] + 1])
    return 1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low


def bins_that_most_keep(sizes: FloatArray, noise_std: float, beyond: float) -> int:
    """Return how many of the first bins hold all units, but for about the part `beyond` and what noise hides."""
    total = max(float(sizes.sum()), 1.0)
    from_here = np.cumsum(sizes[::-1])[::-1]
    room = _STANDS_OUT * noise_std * np.sqrt(np.arange(len(from_here), 0, -1))
    reached = np.flatnonzero(from_here > beyond * total + room)
    return int(reached[-1]) + 1 if reached.size else 1


def _parts(edges: FloatArray, counts: Release) -> FloatArray:
    """Return edges that cut the bins which hold rows into parts; of the open bins at both ends there are none."""
    holds = _that_hold_rows(counts)
    parts = -(-_PARTS // holds.size)
    cut = [np.linspace(edges[bin_], edges[bin_ + 1], parts + 1) for bin_ in holds]
    return np.unique(np.concatenate(cut))


def _that_hold_rows(counts: Release) -> np.ndarray:
    """Return which bins hold rows, without the open ones; that of the largest count, where none stands out."""
    inner = counts.value[1:-1]
    holds = np.flatnonzero(inner > _STANDS_OUT * counts.noise_std)
    return holds if holds.size else np.array([inner.argmax()])
