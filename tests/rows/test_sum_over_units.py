"""Sums of contributions that the caller computes, clipped and added by the engine."""

import math

import numpy as np
import pymc as pm
import pytest
from derivatives import along
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.view import read
from pymc_dp.rows import PublicUnits, UnitLikelihood

N, SIZE = 90, 2
GRID = 2.0**-30
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, SIZE))
Y = GENERATOR.poisson(np.exp(0.3 * X[:, 0]))
THETA, WAY = np.array([0.3, -0.2]), np.array([1.0, 0.5])


def poisson(unit_index=None):
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Data("x", X) @ pm.Normal("beta", shape=SIZE)), observed=Y)
    return UnitLikelihood(read(model, unit_index=unit_index))


ROWS, PERSONS = poisson(), poisson(np.arange(N) // 3)


def everything(chunk):
    """Everything that a chunk knows of its units, side by side."""
    slope, curvature = chunk.along(THETA, WAY)
    values = chunk.log_likelihood(THETA)
    parts = [chunk.gradient(THETA), chunk.curvature_times(THETA, WAY), slope[:, None], curvature[:, None]]
    return np.concatenate([*parts, values[:, None]], axis=1)


@pytest.mark.parametrize("rows", [ROWS, PERSONS], ids=["rows", "persons"])
@pytest.mark.parametrize("bound", [1e4, 3.0])
def test_it_is_the_sum_of_clipped_contributions(rows, bound):
    units = PublicUnits(rows)
    bent = units.curvatures(THETA) @ WAY
    whole = np.column_stack([units.scores(THETA), bent, *along(rows, THETA, WAY), units.log_likelihoods(THETA)])
    norms = np.linalg.norm(whole, axis=1)
    found = rows.sum_over_units(everything, 7, bound, GRID)
    assert found.value == pytest.approx(np.minimum(1.0, bound / norms) @ whole, abs=1e-6)
    assert found.n_clipped == np.sum(norms > bound)
    assert (found.bound, found.grid) == (bound, GRID)


@pytest.mark.parametrize("rows", [ROWS, PERSONS], ids=["rows", "persons"])
def test_a_batch_and_the_rest_make_the_whole(rows):
    batch = np.arange(0, rows.n_units, 3)
    rest = np.setdiff1d(np.arange(rows.n_units), batch)
    whole, one, other = (rows.sum_over_units(everything, 7, 3.0, GRID, units=units) for units in (None, batch, rest))
    assert np.all(whole.integers == one.integers + other.integers)
    assert whole.n_clipped == one.n_clipped + other.n_clipped
    nobody = rows.sum_over_units(everything, 7, 3.0, GRID, units=np.array([], dtype=np.int64))
    assert not nobody.integers.any()


def test_the_slices_of_chunks_name_their_units(monkeypatch):
    monkeypatch.setattr("pymc_dp.rows.likelihood._CHUNK_ROWS", 8)
    for units in (None, np.arange(1, N, 2)):
        weights = np.arange(N if units is None else units.size, dtype=np.float64)
        found = ROWS.sum_over_units(lambda chunk, w=weights: w[chunk.units][:, None], 1, 1e6, GRID, units=units)
        assert found.value[0] == weights.sum()


AWKWARD = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e-200, 1.0, -3.7, 1e150]
NUMBERS = st.one_of(st.sampled_from(AWKWARD), st.floats(allow_nan=True, allow_infinity=True))


@pytest.mark.filterwarnings("error")
@given(
    hnp.arrays(np.float64, 3, elements=NUMBERS),
    hnp.arrays(np.float64, 3, elements=NUMBERS),
    st.integers(0, N - 1),
    st.floats(1e-3, 1e3),
)
def test_replacing_any_contribution_moves_the_sum_by_at_most_twice_the_bound(one, other, place, bound):
    def exact(row):
        table = np.column_stack([X, X[:, 0] * X[:, 1]])
        table[place] = row
        return ROWS.sum_over_units(lambda chunk: table[chunk.units], 3, bound, GRID)

    before, after = exact(one), exact(other)
    moved = math.sqrt(sum(int(d) ** 2 for d in after.integers - before.integers)) * GRID
    assert moved <= 2.0 * bound
    if not np.isfinite(one).all():
        zero = exact(np.zeros(3))
        assert np.all(before.integers == zero.integers)
        assert before.n_clipped == zero.n_clipped + 1


@pytest.mark.filterwarnings("error")
@given(st.lists(st.sampled_from(AWKWARD), min_size=SIZE, max_size=SIZE), st.integers(0, 10**6), st.integers(0, N - 1))
def test_replacing_any_row_of_the_table_moves_it_by_at_most_twice_the_bound(row, count, place):
    x, y = X.copy(), Y.copy()
    x[place], y[place] = row, count
    tables = [y.astype(np.int64) if name == "y" else x for name in ROWS._leaf_names]
    before, after = (rows.sum_over_units(everything, 7, 0.5, GRID) for rows in (ROWS, ROWS.on_rows(tables)))
    moved = math.sqrt(sum(int(d) ** 2 for d in after.integers - before.integers)) * GRID
    assert moved <= 2.0 * 0.5


def test_what_cannot_be_summed_is_refused():
    with pytest.raises(InvalidArgument, match="shape"):
        ROWS.sum_over_units(lambda chunk: np.ones((1, 3)), 3, 1.0, GRID)
    with pytest.raises(InvalidArgument, match="shape"):
        ROWS.sum_over_units(lambda chunk: chunk.gradient(THETA), SIZE + 1, 1.0, GRID)
    with pytest.raises(InvalidArgument, match="units must increase"):
        ROWS.sum_over_units(everything, 7, 1.0, GRID, units=np.array([1, 1]))
