import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from pymc_dp.rows import clip

GRID = 2.0**-30
AWKWARD = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e-200, 1.0, -3.7, 1e150, 1e-160]
NUMBERS = st.one_of(st.sampled_from(AWKWARD), st.floats(allow_nan=True, allow_infinity=True))
BOUNDS = st.floats(1e-3, 1e3)


def total_of(rows, bound, starts=None):
    rows = np.ascontiguousarray(np.asarray(rows, dtype=np.float64).T)
    starts = np.arange(rows.shape[1] + 1) if starts is None else np.asarray(starts)
    units = clip.sum_rows_of_units(rows, starts)
    total = np.zeros(len(rows), dtype=np.int64)
    return total, clip.add_clipped_columns(units, clip.shrunk(bound, len(rows)), 1.0 / GRID, total)


def total_of_factored(rows, slopes, index, groups, bound, grid=GRID):
    """One product and one gather that share their slopes."""
    size, k = rows.shape[1], slopes.shape[1]
    parts = [clip.Part(clip.PRODUCT, 0, k, size, 0), clip.Part(clip.GATHER, 0, k, groups, 0)]
    parts = clip.layout(parts, [0, size * k])
    squares = clip.vector_squares(rows)
    sums, total = np.zeros((2, size * k + groups * k), dtype=np.int64)
    shrunk = clip.shrunk(bound, total.size)
    columns, indices = np.ascontiguousarray(slopes.T), np.ascontiguousarray(index[None])
    n_clipped = clip.add_clipped(columns, (rows,), (squares,), indices, parts, shrunk, 1.0 / grid, sums)
    clip.add_in_order(sums, parts, total)
    return total, n_clipped


@settings(max_examples=300)
@given(
    hnp.arrays(np.float64, (3, 4), elements=NUMBERS),
    hnp.arrays(np.float64, (3, 2), elements=NUMBERS),
    hnp.arrays(np.int64, 3, elements=st.integers(-7, 7)),
    BOUNDS,
)
def test_factored_contributions_stay_within_the_bound(rows, slopes, index, bound):
    """Hazard H27: rounding takes no contribution over its bound."""
    together, n_clipped = total_of_factored(rows, slopes, index, 5, bound)
    parts = [total_of_factored(rows[[i]], slopes[[i]], index[[i]], 5, bound) for i in range(3)]
    assert np.all(together == sum(total for total, _ in parts))
    assert n_clipped == sum(clipped for _, clipped in parts)
    assert all(exact_norm(total) <= bound for total, _ in parts)


def test_factored_sums_are_the_dense_ones():
    generator = np.random.default_rng(0)
    rows, slopes, index = generator.normal(size=(50, 4)), generator.normal(size=(50, 2)), generator.integers(0, 5, 50)
    dense = np.zeros((50, 8 + 10))
    dense[:, :8] = np.einsum("ij,ik->ijk", rows, slopes).reshape(50, 8)
    for i in range(50):
        dense[i, 8 + 2 * index[i] : 10 + 2 * index[i]] = slopes[i]
    for bound in (0.5, 2.0, 100.0):
        expected, n_clipped = total_of(dense, bound)
        found, also_clipped = total_of_factored(rows, slopes, index, 5, bound)
        assert n_clipped == also_clipped
        assert found == pytest.approx(expected, abs=100)  # the last bits of a product depend on its order


def exact_norm(integers):
    return math.sqrt(sum(int(value) ** 2 for value in integers)) * GRID


@settings(max_examples=300)
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=NUMBERS), BOUNDS, st.data())
def test_replacing_any_unit_moves_the_sum_by_at_most_twice_the_bound(rows, bound, data):
    """Hazard H12: the declared sensitivity holds for a substitution."""
    before, _ = total_of(rows, bound)
    changed = rows.copy()
    changed[data.draw(st.integers(0, len(rows) - 1))] = data.draw(hnp.arrays(np.float64, 3, elements=NUMBERS))
    after, _ = total_of(changed, bound)
    assert exact_norm(after - before) <= 2.0 * bound


@settings(max_examples=300)
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 11)), elements=NUMBERS), BOUNDS)
def test_removing_any_unit_moves_the_sum_by_at_most_the_bound(rows, bound):
    """Hazard H12: and for a removal."""
    for i in range(len(rows)):
        alone, _ = total_of(rows[i : i + 1], bound)
        assert exact_norm(alone) <= bound
        without, _ = total_of(np.delete(rows, i, axis=0), bound)
        assert np.all(total_of(rows, bound)[0] == without + alone)


@given(hnp.arrays(np.float64, st.tuples(st.integers(2, 8), st.just(2)), elements=NUMBERS), BOUNDS, st.data())
def test_units_of_several_rows_have_the_same_sensitivity(rows, bound, data):
    cuts = data.draw(st.lists(st.integers(1, len(rows) - 1), unique=True).map(sorted))
    starts = [0, *cuts, len(rows)]
    total, _ = total_of(rows, bound, starts)
    parts = [total_of(rows[a:b], bound, [0, b - a])[0] for a, b in itertools.pairwise(starts)]
    assert np.all(total == np.sum(parts, axis=0))
    assert all(exact_norm(part) <= bound for part in parts)


@pytest.mark.parametrize("size", range(12))
def test_squares_are_added_one_after_the_other(size):
    """However many entries a loop takes at a time: a norm has the bits of the plain sum."""
    slopes = np.random.default_rng(size).normal(size=(size + 1, 37))
    squares = np.full(37, 0.1)
    clip.add_squares(slopes, 1, size, 37, squares)
    expected = np.full(37, 0.1)
    for row in slopes[1:]:
        expected += row * row
    assert np.array_equal(squares, expected)


def test_short_vectors_are_untouched_and_long_ones_shortened():
    rows = np.array([[3.0, 4.0], [0.3, -0.4], [0.0, 0.0], [30.0, 40.0]])
    total, n_clipped = total_of(rows, 5.5)
    assert n_clipped == 1
    assert total * GRID == pytest.approx([3.0 + 0.3 + 3.3, 4.0 - 0.4 + 4.4], abs=1e-8)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_counts_as_clipped_zero(bad):
    """Hazard H14: NaN and infinity have no influence."""
    total, n_clipped = total_of([[1.0, bad], [0.5, 0.5]], 1.0)
    assert n_clipped == 1
    assert np.all(total * GRID == [0.5, 0.5])


@pytest.mark.parametrize("size", [1e308, 1e200])
def test_a_row_whose_norm_overflows_counts_as_clipped_zero(size):
    total, n_clipped = total_of([[0.75 * size, -size], [0.5, 0.5]], 1.0)
    assert n_clipped == 1
    assert np.all(total * GRID == [0.5, 0.5])


@pytest.mark.parametrize(("size", "slope"), [(1e-170, 1e150), (1e150, 1e-170), (1e-163, 1e154)])
def test_a_square_that_underflows_does_not_hide_its_product(size, slope):
    for bound in (1e-12, 1e-25):
        grid = bound * 2.0**-30
        rows, slopes = np.array([[size]]), np.array([[slope]])
        total, _ = total_of_factored(rows, slopes, np.array([7]), 1, bound, grid)
        assert abs(total[0]) * grid <= bound


def test_truncation_is_toward_zero():
    total, _ = total_of([[0.9 * GRID, -0.9 * GRID], [1.9 * GRID, -1.9 * GRID]], 1.0)
    assert np.all(total == [1, -1])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8), BOUNDS)
def test_log_ratios_are_odd_and_bounded(pairs, bound):
    new, old = (np.array(column) for column in zip(*pairs, strict=True))

    def ratio(a, b):
        single, n_clipped = clip.clipped_differences(a, b, clip.shrunk(bound, 1), 1.0 / GRID)
        return single.sum(), n_clipped

    forward, backward = ratio(new, old), ratio(old, new)
    assert forward == (-backward[0], backward[1])
    for a, b in zip(new, old, strict=True):
        one, _ = ratio(np.array([a]), np.array([b]))
        assert abs(one) * GRID <= bound


def test_log_ratios_of_impossible_rows():
    inf = math.inf
    new, old = np.array([-inf, -inf, 0.0, inf, math.nan]), np.array([0.0, -inf, -inf, 0.0, 0.0])
    single, n_clipped = clip.clipped_differences(new, old, 1.0, 1.0 / GRID)
    assert n_clipped == 5
    assert single * GRID == pytest.approx([-1.0, 0.0, 1.0, 1.0, 0.0])


def test_a_response_without_weight_adds_nothing():
    """Whatever its slopes are: it may be there for another row of the chunk alone."""
    slopes = np.full((2, 3, 5), np.nan)
    slopes[:, 1] = np.arange(10.0).reshape(2, 5)
    weights = np.zeros((3, 5))
    weights[1] = 0.5
    assert np.array_equal(clip.mean_slopes(slopes, weights), 0.5 * slopes[:, 1])
    for roots_of in (clip.roots_of_sum, clip.roots_of_each):
        roots = roots_of(slopes, weights)
        products = np.einsum("rai,rbi->abi", roots, roots)
        assert products == pytest.approx(0.5 * slopes[:, None, 1] * slopes[None, :, 1], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("n_slopes", [1, 3, 5])
def test_sums_of_outer_products_are_those_of_their_roots(n_slopes):
    """Also where slopes depend on each other, and of norms that are computed without the products."""
    generator = np.random.default_rng(n_slopes)
    slopes, weights = generator.normal(size=(n_slopes, 20, 7)), generator.uniform(size=(20, 7))
    slopes[n_slopes - 1] = slopes[0]
    roots = clip.roots_of_sum(slopes, weights)
    exact = np.einsum("ki,aki,bki->abi", weights, slopes, slopes)
    packed = clip.packed_products(roots)
    rows, columns = np.triu_indices(n_slopes)
    assert packed == pytest.approx(np.where(rows == columns, 1.0, 2.0**0.5)[:, None] * exact[rows, columns], rel=1e-12)
    squares = clip.squares_of_packed_products(roots)
    assert squares == pytest.approx(np.sum(packed**2, axis=0), rel=1e-12)
