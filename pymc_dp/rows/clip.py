"""Norm, clipping, truncation and exact integer sum: the only module in which contributions of units are bounded.

All sums use it: gradients in factors, expansions, batches and sums of the caller's own contributions. The steps, in the
order of `add_clipped`:

1. the squared norm of every unit's contribution,
2. the factor that clips it to the bound: 1 if the norm is within the bound, 0 if the norm is not a finite number,
3. truncation toward zero to integer multiples of the grid, which never increases the norm,
4. the sum in 64-bit integers, which does not depend on the order of the units or on chunks: sums of neighbouring
   tables differ by exactly one unit's contribution.

Slopes are stored with one column for every unit, ``slopes[m, i]``, so that loops over units become vector
instructions. Every unit goes through the same operations in the same order, so that its bits never depend on other
units. No fast-math: the compiler must not assume that a number is finite.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pymc_dp.rows.graphs import DENSE, GATHER, PRODUCT, Part

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "cache": True}

#: Relative amount by which contributions are clipped below the bound, for the rounding of the norm.
_SHRINK = 2.0**-40
#: Above the error of squares that underflow: the product of an underflowed and a huge square must not become zero.
_TINY = 2.0**-1000
#: Units that are processed at a time, so that their intermediate results stay in the cache.
_BLOCK = 128
_SQRT2 = math.sqrt(2.0)
#: Smallest log-probability, relative to the largest, that is added: e^-37 < 2^-53 is below the rounding of the sum.
_LEAST_LOGARITHM = -37.0


def _compiled[Function: Callable[..., Any]](function: Function) -> Function:
    """Compile a function on its first call. Its type is unchanged."""
    compiled: Function = njit(**_OPTIONS)(function)
    return compiled


def layout(parts: Sequence[Part], offsets: Sequence[int | None]) -> IntArray:
    """Return the parts with an offset in the vector of sums, in the form that `add_clipped` reads."""
    rows = [
        (part.kind, part.first, part.k, part.size, part.factor, offset)
        for part, offset in zip(parts, offsets, strict=True)
        if offset is not None and part.k
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 6)


def shrunk(bound: float, size: int) -> float:
    """Return a bound of computed norms of `size` entries such that the exact norms are at most `bound`."""
    return bound * (1.0 - _SHRINK - size * 2.0**-51)


# Norms --------------------------------------------------------------------------------------------------------------


@njit(**_OPTIONS, forceinline=True)
def add_squares(slopes: FloatArray, first: int, k: int, n: int, squares: FloatArray) -> None:
    """Add the squared norms of `n` columns of the slopes ``first`` to ``first + k`` to `squares`."""
    for m in range(first, first + k):
        a = slopes[m]
        for i in range(n):
            squares[i] += a[i] * a[i]


@njit(**_OPTIONS, forceinline=True)
def add_outer_squares(
    vector_squares: FloatArray, slopes: FloatArray, first: int, k: int, n: int, squares: FloatArray
) -> None:
    """Add the squared norms of outer products of vectors, of squared norms `vector_squares`, with slopes."""
    of_slopes = np.zeros(n)
    add_squares(slopes, first, k, n, of_slopes)
    for i in range(n):
        squares[i] += (vector_squares[i] + _TINY) * (of_slopes[i] + _TINY)


@_compiled
def vector_squares(vectors: FloatArray) -> FloatArray:
    """Return the squared norm of every vector, shape (rows, size)."""
    squares = np.empty(len(vectors))
    for i in range(squares.size):
        total = 0.0
        for j in range(vectors.shape[1]):
            total += vectors[i, j] * vectors[i, j]
        squares[i] = total
    return squares


# Factors ------------------------------------------------------------------------------------------------------------


@njit(**_OPTIONS, forceinline=True)
def to_factors(squares: FloatArray, n: int, bound: float) -> int:
    """Turn `n` squared norms into factors that clip to `bound`; 0 if not finite. Return the number of clipped ones."""
    n_clipped = 0
    for i in range(n):
        norm = math.sqrt(squares[i])
        # Without branches: NaN stays NaN here, and fails both comparisons.
        divisor = bound if norm <= bound else norm
        n_clipped += 0 if norm <= bound else 1
        factor = bound / divisor
        squares[i] = factor if factor > 0.0 else 0.0
    return n_clipped


def lower_weights(squares: FloatArray, bound: float, weights: FloatArray) -> FloatArray:
    """Return the smaller of each weight and the factor that clips a vector to `bound`; 0 if `squares` is not finite."""
    norms = np.sqrt(squares)
    with np.errstate(all="ignore"):
        lowered = np.where(norms < np.inf, np.minimum(weights, bound / norms), 0.0)
    return np.where(norms <= bound, weights, lowered)


# Truncated sums -----------------------------------------------------------------------------------------------------


@njit(**_OPTIONS, forceinline=True)
def add_vectors(
    slopes: FloatArray, first: int, k: int, n: int, factors: FloatArray, steps_per_one: float, sums: IntArray
) -> None:
    """Add `n` truncated columns of the slopes ``first`` to ``first + k``, times their factors, to `sums` (k,)."""
    for m in range(k):
        total = np.int64(0)
        for i in range(n):
            value = slopes[first + m, i] * factors[i] * steps_per_one
            total += np.int64(value if factors[i] > 0.0 else 0.0)
        sums[m] += total


@njit(**_OPTIONS, forceinline=True)
def add_outer_products(
    vectors: FloatArray,
    slopes: FloatArray,
    first: int,
    k: int,
    factors: FloatArray,
    steps_per_one: float,
    sums: IntArray,
) -> None:
    """Add the truncated outer products of `vectors` (n, size) and their slopes to `sums`, shape (k, size) in a row."""
    n, size = vectors.shape
    of_slopes = sums[: k * size].reshape((k, size))
    for i in range(n):
        if factors[i] > 0.0:
            vector = vectors[i]
            for m in range(k):
                slope, of_slope = slopes[first + m, i] * factors[i], of_slopes[m]
                for j in range(size):
                    of_slope[j] += np.int64(vector[j] * slope * steps_per_one)


@njit(**_OPTIONS, forceinline=True)
def add_gathered(
    index: IntArray,
    groups: int,
    slopes: FloatArray,
    first: int,
    k: int,
    n: int,
    factors: FloatArray,
    steps_per_one: float,
    sums: IntArray,
) -> None:
    """Add `n` truncated columns of slopes to the entries of `sums`, shape (groups, k), that `index` selects."""
    for m in range(k):
        slope = slopes[first + m]
        for i in range(n):
            group = index[i] + groups if index[i] < 0 else index[i]
            if factors[i] > 0.0 and 0 <= group < groups:
                sums[group * k + m] += np.int64(slope[i] * factors[i] * steps_per_one)


# All of it ----------------------------------------------------------------------------------------------------------


@_compiled
def add_clipped(
    slopes: FloatArray,
    vectors: tuple[FloatArray, ...],
    vector_squares: tuple[FloatArray, ...],
    indices: IntArray,
    parts: IntArray,
    bound: float,
    steps_per_one: float,
    sums: IntArray,
) -> int:
    """Add clipped, truncated contributions to `sums`; return the number of clipped ones.

    `slopes`, shape (slopes, units), and `indices`, shape (indices, units), have one column for each unit. `vectors` are
    those of outer products, arrays of shape (units, size), at least one of them, which may be empty; `vector_squares`
    are their squared norms. `parts` is from `layout`, `bound` from `shrunk`; `steps_per_one` is 1 in steps of the grid.
    The sums of outer products are ordered by slope: `add_in_order` adds them in the order of parameters.
    """
    n = slopes.shape[1]
    factors = np.zeros(n)
    for p in range(parts.shape[0]):
        kind, first, k, factor = parts[p, 0], parts[p, 1], parts[p, 2], parts[p, 4]
        if kind == PRODUCT:
            add_outer_squares(vector_squares[factor], slopes, first, k, n, factors)
        else:
            add_squares(slopes, first, k, n, factors)
    n_clipped: int = to_factors(factors, n, bound)
    for p in range(parts.shape[0]):
        kind, first, k, size, factor = parts[p, 0], parts[p, 1], parts[p, 2], parts[p, 3], parts[p, 4]
        target = sums[parts[p, 5] :]
        if kind == PRODUCT:
            add_outer_products(vectors[factor], slopes, first, k, factors, steps_per_one, target)
        elif kind == GATHER:
            add_gathered(indices[factor], size, slopes, first, k, n, factors, steps_per_one, target)
        else:
            add_vectors(slopes, first, k, n, factors, steps_per_one, target)
    return n_clipped


def add_in_order(sums: IntArray, parts: IntArray, total: IntArray) -> None:
    """Add the sums of `add_clipped` to `total`, those of outer products in the order of the parameters."""
    for kind, _first, k, size, _factor, offset in parts:
        of_part = sums[offset : offset + k * size]
        total[offset : offset + k * size] += of_part.reshape(k, size).T.ravel() if kind == PRODUCT else of_part


@_compiled
def add_clipped_columns(columns: FloatArray, bound: float, steps_per_one: float, total: IntArray) -> int:
    """Add the columns of `columns` (size, units), each clipped to `bound` and truncated, to `total` (size,).

    Return the number of clipped columns.
    """
    size, n = columns.shape
    factors = np.zeros(n)
    add_squares(columns, 0, size, n, factors)
    n_clipped: int = to_factors(factors, n, bound)
    add_vectors(columns, 0, size, n, factors, steps_per_one, total)
    return n_clipped


# Differences --------------------------------------------------------------------------------------------------------


@_compiled
def clipped_differences(new: FloatArray, old: FloatArray, bound: float, steps_per_one: float) -> tuple[IntArray, int]:
    """Return ``new - old`` of every unit, clipped and truncated, and the number of clipped ones; 0 for NaN.

    An antisymmetric function of (new, old), as the penalty test requires: swapping them changes the signs only.
    """
    out = np.empty(new.size, dtype=np.int64)
    n_clipped, largest = 0, int(bound * steps_per_one)
    for u in range(new.size):
        difference = new[u] - old[u]
        if abs(difference) <= bound:
            out[u] = int(difference * steps_per_one)
        else:
            n_clipped += 1
            out[u] = largest if difference > 0.0 else -largest if difference < 0.0 else 0
    return out, n_clipped


def clipping_losses(squares: FloatArray, weights: FloatArray, bound: float) -> FloatArray:
    """Return the reductions of norms by weights, in multiples of the bound and at most 1, given squared norms."""
    with np.errstate(all="ignore"):
        clipping_loss = (1.0 - weights) * np.sqrt(squares) / bound
    return np.fmin(clipping_loss, 1.0)  # 1 for a unit that is not finite, which loses its whole score


def weighted_remainders(
    values: FloatArray, slopes: FloatArray, curvatures: FloatArray, weights: FloatArray, curvature_weights: FloatArray
) -> FloatArray:
    """Return every unit's weighted value less slope, plus half its weighted curvature; terms of weight 0 are 0."""
    with np.errstate(all="ignore"):
        first_order = np.where(weights > 0.0, weights * (values - slopes), 0.0)
        return first_order + np.where(curvature_weights > 0.0, 0.5 * curvature_weights * curvatures, 0.0)


# Probabilities of the possible responses of rows --------------------------------------------------------------------


def are_near(logs: FloatArray, far: float) -> NDArray[np.bool_]:
    """Return a mask (responses, units): here or at the next response `logs` is within `far` of the unit's largest."""
    with np.errstate(all="ignore"):
        near = logs >= np.fmax.reduce(logs, axis=0, initial=-np.inf) - far
    return np.asarray(near | np.concatenate([near[1:], near[-1:]]))


@_compiled
def probabilities(
    logs: FloatArray, stand_for: FloatArray, asked: IntArray, strides: NDArray[np.uint8], step: int, least: float
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return the probabilities of responses, shape (responses, units), by the same steps for each unit.

    A response counts for a unit if its number in `asked` is a multiple of the unit's stride, a power of 2, of which
    there is one for each `step` responses. Probabilities up to `least` are set to 0; the second array is a mask of the
    responses that are above `least` in some unit.
    """
    n_responses, n = logs.shape
    out, occur = np.empty((n_responses, n)), np.zeros(n_responses, dtype=np.bool_)
    largest, total = np.full(n, -np.inf), np.zeros(n)
    for k in range(n_responses):
        for i in range(n):
            counts = asked[k] & (np.int64(strides[asked[k] // step, i]) - 1) == 0
            out[k, i] = logs[k, i] if counts else -np.inf
            if out[k, i] > largest[i]:  # noqa: PLR1730  NaN is skipped
                largest[i] = out[k, i]
    for k in range(n_responses):
        for i in range(n):
            far = out[k, i] - largest[i]
            if far > _LEAST_LOGARITHM:
                out[k, i] = stand_for[k] * math.exp(far)
            else:
                out[k, i] = np.nan if out[k, i] == np.inf else 0.0
            total[i] += out[k, i]
    for k in range(n_responses):
        for i in range(n):
            share = out[k, i] / total[i] if 0.0 < total[i] < np.inf else 0.0
            out[k, i] = share if share > least else 0.0
            occur[k] |= share > least
    return out, occur


@_compiled
def kept_of_scores(slopes: FloatArray, weights: FloatArray, roots: FloatArray, bound: float) -> FloatArray:
    """Return the factor that clips the score with each response to `bound`, shape (responses, units).

    `slopes` have the shape (slopes, responses, units). The norm of a score is the norm of the products of its slopes
    with `roots` (roots, slopes, units). The factor is 1 if the response's weight is zero.
    """
    n_roots, n_slopes, n = roots.shape
    kept = np.empty(weights.shape)
    squares, along = np.empty(_BLOCK), np.empty(_BLOCK)
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        for which in range(kept.shape[0]):
            squares[:] = 0.0
            for r in range(n_roots):
                along[:] = 0.0
                for m in range(n_slopes):
                    slope, root = slopes[m, which, begin:end], roots[r, m, begin:end]
                    for i in range(end - begin):
                        along[i] += root[i] * slope[i]
                for i in range(end - begin):
                    squares[i] += along[i] * along[i]
            for i in range(end - begin):
                length = math.sqrt(squares[i])
                clipped = length > bound and weights[which, begin + i] > 0.0
                kept[which, begin + i] = bound / length if clipped else 1.0
    return kept


@_compiled
def mean_slopes(slopes: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the sum over responses of weights times slopes, shape (slopes, units); terms of weight 0 are left out."""
    n_slopes, n_responses, n = slopes.shape
    out = np.zeros((n_slopes, n))
    for m in range(n_slopes):
        for which in range(n_responses):
            for i in range(n):
                if weights[which, i] > 0.0:
                    out[m, i] += weights[which, i] * slopes[m, which, i]
    return out


def roots_of_each(slopes: FloatArray, weights: FloatArray) -> FloatArray:
    """Return slopes times the square roots of weights, shape (responses, slopes, units)."""
    with np.errstate(all="ignore"):
        found = np.where(weights > 0.0, np.sqrt(weights) * slopes, 0.0)
    return np.ascontiguousarray(found.swapaxes(0, 1))


@_compiled
def roots_of_sum(slopes: FloatArray, weights: FloatArray) -> FloatArray:
    """Return vectors whose outer products add up to the weighted sum over responses of outer products of slopes.

    They are the columns of its Cholesky factor, shape (slopes, slopes, units). ``found[a, b]`` first holds the entry
    (b, a) of the sum, and 0 for b below a. The returned vectors define a positive semidefinite matrix, whatever their
    rounding errors.
    """
    n_slopes, n_responses, n = slopes.shape
    found = np.zeros((n_slopes, n_slopes, n))
    for a in range(n_slopes):
        for b in range(a, n_slopes):
            total = found[a, b]
            for which in range(n_responses):
                one, other, weight = slopes[a, which], slopes[b, which], weights[which]
                for i in range(n):
                    if weight[i] > 0.0:
                        total[i] += weight[i] * one[i] * other[i]
    for a in range(n_slopes):
        for i in range(n):
            root = math.sqrt(found[a, a, i])
            inverse = 1.0 / root if root > 0.0 else 0.0  # rounding may make a zero pivot negative
            for b in range(a, n_slopes):
                found[a, b, i] *= inverse
        for b in range(a + 1, n_slopes):
            for c in range(b, n_slopes):
                for i in range(n):
                    found[b, c, i] -= found[a, b, i] * found[a, c, i]
    return found


# Rows and units, vectors and directions -----------------------------------------------------------------------------


@_compiled
def sum_rows_of_units(columns: FloatArray, starts: IntArray) -> FloatArray:
    """Return the sum of the columns of every unit, shape (size, units), in the order of the rows."""
    units = np.empty((len(columns), starts.size - 1))
    for j in range(columns.shape[0]):
        for u in range(starts.size - 1):
            total = columns[j, starts[u]]
            for i in range(starts[u] + 1, starts[u + 1]):
                total += columns[j, i]
            units[j, u] = total
    return units


@_compiled
def dense(
    slopes: FloatArray, vectors: tuple[FloatArray, ...], indices: IntArray, parts: IntArray, size_of_all: int
) -> FloatArray:
    """Return contributions as dense vectors, one column for each unit, shape (`size_of_all`, units)."""
    n = slopes.shape[1]
    out = np.zeros((size_of_all, n))
    for p in range(parts.shape[0]):
        kind, first, k, size, factor, offset = parts[p]
        for m in range(k):
            slope = slopes[first + m]
            if kind == PRODUCT:
                vector = vectors[factor]
                for begin in range(0, n, 64):  # of the vectors as of the columns, a few lines of the cache at a time
                    for j in range(size):
                        for i in range(begin, min(begin + 64, n)):
                            out[offset + j * k + m, i] = vector[i, j] * slope[i]
            elif kind == GATHER:
                index = indices[factor]
                for i in range(n):
                    group = index[i] + size if index[i] < 0 else index[i]
                    if 0 <= group < size:
                        out[offset + group * k + m, i] = slope[i]
            else:
                for i in range(n):
                    out[offset + m, i] = slope[i]
    return out


@_compiled
def axes_of(  # noqa: PLR0912  five indices
    vectors: tuple[FloatArray, ...], indices: IntArray, parts: IntArray, matrix: FloatArray, n_factored: int, n: int
) -> FloatArray:
    """Return the derivatives along the columns of `matrix` (parameters, k) that a slope of 1 stands for.

    Only for slopes with a factor (a vector or an index): shape (`n_factored` such slopes, k, `n` units). They do not
    depend on the slopes, and each unit's depend on that unit alone.
    """
    n_ways, place = matrix.shape[1], 0
    axes = np.zeros((n_factored, n_ways, n))
    for p in range(parts.shape[0]):
        kind, k, size, factor, offset = parts[p, 0], parts[p, 2], parts[p, 3], parts[p, 4], parts[p, 5]
        if kind == PRODUCT:
            block = np.empty((size, _BLOCK))
            for begin in range(0, n, _BLOCK):
                end = min(begin + _BLOCK, n)
                for j in range(size):
                    for i in range(begin, end):
                        block[j, i - begin] = vectors[factor][i, j]
                for m in range(k):
                    for way in range(n_ways):
                        total = axes[place + m, way, begin:end]
                        for j in range(size):
                            number = matrix[offset + j * k + m, way]
                            for i in range(total.size):
                                total[i] += block[j, i] * number
        if kind == GATHER:
            for m in range(k):
                for way in range(n_ways):
                    for i in range(n):
                        group = indices[factor, i] + size if indices[factor, i] < 0 else indices[factor, i]
                        if 0 <= group < size:
                            axes[place + m, way, i] = matrix[offset + group * k + m, way]
        place += k if kind != DENSE else 0
    return axes


@_compiled
def along(slopes: FloatArray, axes: FloatArray, parts: IntArray, matrix: FloatArray, start: int) -> FloatArray:
    """Return contributions of `slopes` (slopes, units) along columns of `matrix` from `start` on, shape (k, units).

    `axes` are from `axes_of`. The order of additions is the same for every unit.
    """
    n_ways, n = matrix.shape[1] - start, slopes.shape[1]
    out = np.zeros((n_ways, n))
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        for way in range(n_ways):
            total, place = out[way, begin:end], 0
            for p in range(parts.shape[0]):
                kind, first, k, offset = parts[p, 0], parts[p, 1], parts[p, 2], parts[p, 5]
                for m in range(k):
                    slope = slopes[first + m, begin:end]
                    if kind != DENSE:
                        axis = axes[place, start + way, begin:end]
                        place += 1
                        for i in range(total.size):
                            total[i] += slope[i] * axis[i]
                    else:
                        number = matrix[offset + m, start + way]
                        for i in range(total.size):
                            total[i] += slope[i] * number
    return out


@_compiled
def packed_products(columns: FloatArray) -> FloatArray:
    """Return the sum of outer products of `columns` (products, size, units) with themselves, packed."""
    n_products, size, n = columns.shape
    out = np.zeros((size * (size + 1) // 2, n))
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        place = 0
        for i in range(size):
            for j in range(i, size):
                total = out[place, begin:end]
                place += 1
                for r in range(n_products):
                    one, other = columns[r, i, begin:end], columns[r, j, begin:end]
                    for u in range(total.size):
                        total[u] += one[u] * other[u]
                if i != j:
                    for u in range(total.size):
                        total[u] *= _SQRT2
    return out


@_compiled
def squares_of_packed_products(columns: FloatArray) -> FloatArray:
    """Return the squared norms of the columns of `packed_products`, from the inner products of `columns`."""
    n_products, size, n = columns.shape
    squares, inner = np.zeros(n), np.empty(_BLOCK)
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        for r in range(n_products):
            for other in range(r, n_products):
                inner[:] = 0.0
                for i in range(size):
                    one, two = columns[r, i, begin:end], columns[other, i, begin:end]
                    for u in range(end - begin):
                        inner[u] += one[u] * two[u]
                times = 1.0 if r == other else 2.0
                for u in range(begin, end):
                    squares[u] += times * (inner[u - begin] * inner[u - begin])
    return squares


@_compiled
def times_matrix(columns: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return ``matrix.T @ columns`` in a fixed order of additions: no unit's bits depend on other units.

    `columns` has the shape (size, units), `matrix` (size, k), the product (k, units).
    """
    n = columns.shape[1]
    out = np.zeros((matrix.shape[1], n))
    for begin in range(0, n, 256):
        end = min(begin + 256, n)
        for k in range(matrix.shape[1]):
            total = out[k, begin:end]
            for j in range(matrix.shape[0]):
                column, number = columns[j, begin:end], matrix[j, k]
                for i in range(total.size):
                    total[i] += column[i] * number
    return out
