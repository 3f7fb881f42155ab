"""Clip every unit's contribution, truncate it to the grid, and sum exactly in 64-bit integers.

Integer sums do not depend on the order of the units, on chunks or on threads, so neighbouring tables differ by
exactly one unit's contribution. A contribution that is not finite counts as zero.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Contributions are clipped this much (relatively) below the bound, for the rounding of the norm itself.
_SHRINK = 2.0**-40
_TINY, _HUGE = 1e-140, 1e140


def shrunk(bound: float, size: int) -> float:
    """Return the bound that computed norms of `size` entries have to keep so that true norms keep `bound`."""
    return bound * (1.0 - _SHRINK - size * 2.0**-51)


@njit(nogil=True, fastmath=False, cache=True)
def add_clipped_vectors(rows: FloatArray, starts: IntArray, bound: float, steps_per_one: float, total: IntArray) -> int:
    """Add the clipped contribution of every unit to `total` and return how many were clipped.

    Parameters
    ----------
    rows : ndarray, shape (rows, size)
        One vector a row; the rows of one unit stand together.
    starts : ndarray, shape (units + 1,)
        Unit u is the sum of rows ``starts[u]`` to ``starts[u + 1] - 1``, in that order.
    bound : float
        Largest Euclidean norm, already shrunk.
    steps_per_one : float
        1 / grid, a power of two.
    total : ndarray, shape (size,)
        Integer multiples of the grid, changed in place.
    """
    size = rows.shape[1]
    unit = np.empty(size)
    n_clipped = 0
    for u in range(starts.size - 1):
        for j in range(size):
            unit[j] = rows[starts[u], j]
        for i in range(starts[u] + 1, starts[u + 1]):
            for j in range(size):
                unit[j] += rows[i, j]
        largest = 0.0
        finite = True
        for j in range(size):
            magnitude = abs(unit[j])
            if not magnitude < np.inf:
                finite = False
            largest = max(largest, magnitude)
        if not finite:
            n_clipped += 1
            continue
        # Squares of entries outside this range would overflow or vanish: rescale them first.
        unscaled = largest == 0.0 or _TINY < largest < _HUGE
        scale = 1.0 if unscaled else largest
        squares = 0.0
        for j in range(size):
            squares += (unit[j] / scale) * (unit[j] / scale)
        norm = math.sqrt(squares)
        if norm <= bound / scale:
            for j in range(size):
                total[j] += np.int64(unit[j] * steps_per_one)
        else:
            n_clipped += 1
            shorten = bound / norm
            for j in range(size):
                total[j] += np.int64((unit[j] / scale) * shorten * steps_per_one)
    return n_clipped


@njit(nogil=True, fastmath=False, cache=True)
def add_clipped_differences(
    new: FloatArray, old: FloatArray, bound: float, steps_per_one: float, total: IntArray
) -> int:
    """Add clipped ``new - old`` of every unit to ``total[0]`` and return how many were clipped.

    Odd in (new, old), as the penalty test needs: swapping them changes the sign of the total and nothing else.
    """
    n_clipped = 0
    for u in range(new.size):
        difference = new[u] - old[u]
        if abs(difference) <= bound:
            total[0] += np.int64(difference * steps_per_one)
        else:
            n_clipped += 1
            if difference > 0.0:
                total[0] += np.int64(bound * steps_per_one)
            elif difference < 0.0:
                total[0] -= np.int64(bound * steps_per_one)
    return n_clipped


@njit(nogil=True, fastmath=False, cache=True)
def add_units(rows: FloatArray, starts: IntArray, units: FloatArray) -> None:
    """Write the sum of the rows of every unit into `units`, in the order of the rows."""
    for u in range(starts.size - 1):
        total = rows[starts[u]]
        for i in range(starts[u] + 1, starts[u + 1]):
            total += rows[i]
        units[u] = total
