"""Clip every unit's contribution, truncate it to the grid, and sum exactly in 64-bit integers.

Integer sums do not depend on the order of the units, on chunks or on threads, so neighbouring tables differ by
exactly one unit's contribution. A vector whose squared norm is not a finite number counts as zero,
an infinite log-ratio as the bound.

Every step works on one row at a time in a fixed order, so that a row's bits never depend on its neighbours.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Contributions are clipped this much (relatively) below the bound, for the rounding of the norm itself.
_SHRINK = 2.0**-40
#: More than what squares lose that underflow: the product of a lost square and a huge one must not pass for zero.
TINY = 2.0**-1000


def shrunk(bound: float, size: int) -> float:
    """Return the bound that computed norms of `size` entries have to keep so that true norms keep `bound`."""
    return bound * (1.0 - _SHRINK - size * 2.0**-51)


@njit(nogil=True, fastmath=False, cache=True)
def add_squares(block: FloatArray, squares: FloatArray) -> None:
    """Add the squared norm of every row of `block`, shape (rows, size), to `squares`."""
    for i in range(block.shape[0]):
        total = 0.0
        for j in range(block.shape[1]):
            total += block[i, j] * block[i, j]
        squares[i] += total


@njit(nogil=True, fastmath=False, cache=True)
def add_outer_squares(row_squares: FloatArray, slopes: FloatArray, squares: FloatArray) -> None:
    """Add the squared norms of outer products: of vectors with `row_squares` and of the rows of `slopes`."""
    for i in range(slopes.shape[0]):
        total = 0.0
        for j in range(slopes.shape[1]):
            total += slopes[i, j] * slopes[i, j]
        squares[i] += (row_squares[i] + TINY) * (total + TINY)


@njit(nogil=True, fastmath=False, cache=True)
def clip_factors(squares: FloatArray, bound: float, factors: FloatArray) -> int:
    """Write what shortens every contribution to `bound`; 0 for those that are not finite. Return how many."""
    n_clipped = 0
    for i in range(squares.size):
        norm = math.sqrt(squares[i])
        if norm <= bound:
            factors[i] = 1.0
        else:
            n_clipped += 1
            factors[i] = bound / norm if norm < np.inf else 0.0
    return n_clipped


@njit(nogil=True, fastmath=False, cache=True)
def add_vectors(block: FloatArray, factors: FloatArray, steps_per_one: float, total: IntArray) -> None:
    """Add the truncated rows of `block`, shape (rows, size), times their factors to `total`, shape (size,)."""
    for i in range(block.shape[0]):
        if factors[i] > 0.0:
            for j in range(block.shape[1]):
                total[j] += np.int64(block[i, j] * factors[i] * steps_per_one)


@njit(nogil=True, fastmath=False, cache=True)
def add_outer_products(
    rows: FloatArray, slopes: FloatArray, factors: FloatArray, steps_per_one: float, total: IntArray
) -> None:
    """Add the truncated outer products of `rows` (rows, size) and `slopes` (rows, k) to `total` (size * k,)."""
    k = slopes.shape[1]
    for i in range(rows.shape[0]):
        if factors[i] > 0.0:
            for m in range(k):
                slope = slopes[i, m] * factors[i]
                for j in range(rows.shape[1]):
                    total[j * k + m] += np.int64(rows[i, j] * slope * steps_per_one)


@njit(nogil=True, fastmath=False, cache=True)
def add_gathered(
    index: IntArray, slopes: FloatArray, factors: FloatArray, steps_per_one: float, total: IntArray
) -> None:
    """Add the truncated rows of `slopes` (rows, k) to the entries of `total` (groups * k,) that `index` names."""
    k = slopes.shape[1]
    groups = total.size // k
    for i in range(index.size):
        group = index[i] + groups if index[i] < 0 else index[i]
        if factors[i] > 0.0 and 0 <= group < groups:
            for m in range(k):
                total[group * k + m] += np.int64(slopes[i, m] * factors[i] * steps_per_one)


@njit(nogil=True, fastmath=False, cache=True)
def add_clipped(block: FloatArray, bound: float, steps_per_one: float, total: IntArray) -> int:
    """Add the rows of `block`, each clipped to the norm `bound` and truncated, to `total`. Return how many were."""
    squares = np.zeros(block.shape[0])
    add_squares(block, squares)
    factors = np.empty(block.shape[0])
    n_clipped: int = clip_factors(squares, bound, factors)
    add_vectors(block, factors, steps_per_one, total)
    return n_clipped


@njit(nogil=True, fastmath=False, cache=True)
def sum_rows_of_units(rows: FloatArray, starts: IntArray, units: FloatArray) -> None:
    """Write the sum of the rows of every unit into `units`, shape (units, size), in the order of the rows."""
    for u in range(starts.size - 1):
        for j in range(rows.shape[1]):
            total = rows[starts[u], j]
            for i in range(starts[u] + 1, starts[u + 1]):
                total += rows[i, j]
            units[u, j] = total


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
def times_matrix(rows: FloatArray, matrix: FloatArray, out: FloatArray) -> None:
    """Write every row of `rows` (rows, size) times `matrix` (size, k) into `out`, in a fixed order of additions."""
    for i in range(rows.shape[0]):
        for k in range(matrix.shape[1]):
            total = 0.0
            for j in range(rows.shape[1]):
                total += rows[i, j] * matrix[j, k]
            out[i, k] = total


@njit(nogil=True, fastmath=False, cache=True)
def lower_weights(squares: FloatArray, bound: float, weights: FloatArray) -> None:
    """Lower every weight so that it shortens a vector of squared norm `squares` to `bound`; 0 where not finite."""
    for i in range(squares.size):
        norm = math.sqrt(squares[i])
        if not norm <= bound:
            weights[i] = min(weights[i], bound / norm) if norm < np.inf else 0.0


@njit(nogil=True, fastmath=False, cache=True)
def clipping_losses(squares: FloatArray, weights: FloatArray, bound: float, out: FloatArray) -> None:
    """Write what weights have taken off vectors of squared norm `squares`, in units of `bound` and at most 1."""
    for i in range(squares.size):
        clipping_loss = (1.0 - weights[i]) * math.sqrt(squares[i]) / bound
        out[i] = clipping_loss if clipping_loss < 1.0 else 1.0  # a unit that is not finite has lost all


@njit(nogil=True, fastmath=False, cache=True)
def weighted_remainders(
    values: FloatArray,
    slopes: FloatArray,
    curvatures: FloatArray,
    weights: FloatArray,
    curvature_weights: FloatArray,
    out: FloatArray,
) -> None:
    """Write every unit's weighted value less slope, plus half its weighted curvature; a weight of 0 silences."""
    for i in range(values.size):
        out[i] = 0.0
        if weights[i] > 0.0:
            out[i] = weights[i] * (values[i] - slopes[i])
        if curvature_weights[i] > 0.0:
            out[i] += 0.5 * curvature_weights[i] * curvatures[i]
