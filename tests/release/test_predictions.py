"""What a model predicts in scenarios: what is summed, and how far one unit moves it."""

import math

import numpy as np
import pymc as pm
import pytest
from hypothesis import given, strategies as st
from scipy import stats
from two_tables import exact, movement, value

from pymc_dp.exceptions import PrivacyError
from pymc_dp.model.view import read
from pymc_dp.release import surveys
from pymc_dp.release.sizes import half_octaves
from pymc_dp.release.surveys import (
    NO_INPUT,
    Axis,
    Predicted,
    PredictionCounts,
    PredictionSpreads,
    PredictionSums,
    Setting,
    SpreadSizes,
)
from pymc_dp.rows import UnitLikelihood
from pymc_dp.rows.partitioned import PartitionedUnits
from pymc_dp.rows.table import RowTable
from pymc_dp.tables.local import InMemory

N, COUNT = 50, 3
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, 2))
Y = GENERATOR.poisson(1.5, N)
GROUP = GENERATOR.integers(3, size=N)
THETA = np.array([0.2, 0.3, -0.1])
DRAWS = (THETA + GENERATOR.normal(scale=0.2, size=(COUNT, 3))).ravel()


def rows_of(unit_index=None):
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("a") + pm.Data("x", X) @ pm.Normal("b", shape=2)), observed=Y)
    view = read(model, unit_index=unit_index, with_response=True)
    return UnitLikelihood(view, beside={"group": GROUP, "other": X[:, 1] * 2.0})


ROWS, PERSONS = rows_of(), rows_of(np.arange(N) // 2)
X_AT, Y_AT = (next(place for place, each in enumerate(ROWS.inputs) if name in each.names) for name in ("x", "y"))
GROUP_AT, OTHER_AT = 2, 3
AS_IT_IS, AT_ONE = (), (Setting(X_AT, 0, NO_INPUT, 1.0),)
HALVED = (Setting(X_AT, 1, OTHER_AT, 0.25), Setting(X_AT, 0, NO_INPUT, -1.0))
NONE = (Setting(Y_AT, 0, NO_INPUT, 0.0),)
ALL, BY = Axis(NO_INPUT, 0, NO_INPUT, np.zeros(0)), Axis(GROUP_AT, 0, NO_INPUT, np.array([0.5, 1.5]))
MEANS = Predicted((AS_IT_IS, AT_ONE, HALVED), "mean")
MEAN = Predicted((AT_ONE,), "mean")


def predicted(theta, x):
    return np.exp(theta[0] + x @ theta[1:])


def in_scenarios(theta):
    at_one, halved = X.copy(), np.column_stack([np.full(N, -1.0), X[:, 1] / 2.0])
    at_one[:, 0] = 1.0
    return np.array([predicted(theta, each) for each in (X, at_one, halved)])


def with_row(x, y, group, place, rows=ROWS):
    tables = [values.copy() for values in rows.rows_of_inputs]
    tables[X_AT][place], tables[Y_AT][place], tables[GROUP_AT][place], tables[OTHER_AT][place] = x, y, group, x
    return rows.on_rows(tables, rows._table.starts)


NUMBER = st.one_of(st.sampled_from([0.0, 1e6, -1e308, math.inf, math.nan, 1e160]), st.floats(-10, 10))
PREDICTIONS = st.sampled_from([MEANS, MEAN, Predicted((NONE,), "equal"), Predicted((NONE, AS_IT_IS), "at_most")])
GROUPS = st.sampled_from([ALL, BY])
OF_DRAWS = (PREDICTIONS, st.just(THETA), st.just(DRAWS), st.just(COUNT), GROUPS)
QUERIES = st.one_of(
    st.builds(PredictionCounts, PREDICTIONS, st.just(THETA), st.just(np.array([0.0, 0.3, 1.0, 2.0]))),
    st.builds(PredictionSums, PREDICTIONS, st.just(THETA), GROUPS, st.floats(-1, 2), st.sampled_from([0.1, 1.0, 5.0])),
    st.builds(SpreadSizes, *OF_DRAWS, st.just(1e-6), st.integers(1, 40)),
    st.builds(
        PredictionSpreads, *OF_DRAWS[:-1], st.just(ALL), st.sampled_from([np.array([each]) for each in (0.01, 9.0)])
    ),
    st.builds(PredictionSpreads, *OF_DRAWS[:-1], st.just(BY), st.just(np.array([0.01, 1.0, 1e3]))),
)


@pytest.mark.filterwarnings("error")
@given(QUERIES, NUMBER, st.integers(0, 2**40), st.sampled_from([-1, 0, 1, 2, 2**40]), st.integers(0, N - 1))
def test_replacing_a_row_moves_no_sum_by_more_than_declared(query, x, y, group, place):
    """Hazard H14: of rows that are units, and of rows of persons."""
    for rows in (ROWS, PERSONS):
        moved, allowed = movement(query, rows, with_row(x, y, group, place, rows))
        assert moved <= allowed


@given(QUERIES, st.integers(0, N - 1))
def test_removing_a_row_moves_no_sum_by_more_than_declared(query, place):
    fewer = ROWS.on_rows([np.delete(values, place, axis=0) for values in ROWS.rows_of_inputs])
    moved, allowed = movement(query, ROWS, fewer, "add-remove")
    assert moved <= allowed


@pytest.mark.parametrize("of", [MEANS, MEAN])
def test_a_row_can_move_the_sums_as_far_as_declared(of):
    """A row whose predictions are at one end of the range, instead of one at the other."""
    at_both = Predicted((AS_IT_IS,) * len(of.scenarios), "mean")
    query = PredictionSums(at_both, THETA, BY, 5.0, 0.1)
    moved, allowed = movement(query, with_row(0.0, 1, 1, 0), with_row(100.0, 1, 1, 0))
    assert moved == pytest.approx(allowed, rel=1e-6)
    query = PredictionSums(at_both, THETA, ALL, 5.0, 0.1)
    one = ROWS.on_rows([values[1:] for values in ROWS.rows_of_inputs])
    moved, allowed = movement(query, ROWS, one, "add-remove")
    assert moved == pytest.approx(allowed, rel=1e-6)


def test_sums_are_those_of_a_loop_over_rows():
    scaled = np.clip((in_scenarios(THETA) - 1.0) / 0.5, -1.0, 1.0)
    expected = [[np.sum(GROUP == group), *scaled[:, GROUP == group].sum(axis=1)] for group in range(3)]
    sums = value(PredictionSums(MEANS, THETA, BY, 1.0, 0.5), ROWS)
    np.testing.assert_allclose(sums.reshape(3, 4), expected, atol=1e-6)
    in_all = value(PredictionSums(MEANS, THETA, ALL, 1.0, 0.5), ROWS)
    np.testing.assert_allclose(in_all, np.sum(expected, axis=0), atol=1e-6)


def test_differences_of_draws_are_clipped_together():
    found = np.array([in_scenarios(draw) - in_scenarios(THETA) for draw in DRAWS.reshape(COUNT, 3)])
    norms = np.sqrt((found**2).sum(axis=(0, 1)))
    clipped = found * np.minimum(1.0, 0.7 / norms)
    assert 0 < np.sum(norms > 0.7) < N
    sums = value(PredictionSpreads(MEANS, THETA, DRAWS, COUNT, ALL, np.array([0.7])), ROWS)
    np.testing.assert_allclose(0.7 * sums.reshape(COUNT, 3), clipped.sum(axis=2), atol=1e-6)
    by_group = value(PredictionSpreads(MEANS, THETA, DRAWS, COUNT, BY, np.array([9.0, 0.7, 9.0])), ROWS)
    np.testing.assert_allclose(0.7 * by_group.reshape(3, COUNT, 3)[1], clipped[:, :, GROUP == 1].sum(axis=2), atol=1e-6)
    counts = value(SpreadSizes(MEANS, THETA, DRAWS, COUNT, ALL, 0.1, 8), ROWS)
    places = np.clip(np.floor(2 * np.log2(norms / 0.1)), 0, 7).astype(int)
    np.testing.assert_allclose(counts, np.bincount(places, minlength=8), atol=1e-6)
    by_group = value(SpreadSizes(MEANS, THETA, DRAWS, COUNT, BY, 0.1, 8), ROWS).reshape(3, 8)
    np.testing.assert_allclose(by_group[2], np.bincount(places[GROUP == 2], minlength=8), atol=1e-6)


def test_rows_of_no_group_count_nowhere():
    strange = with_row(0.3, 1, 3, 0)
    for query in (
        PredictionSums(MEAN, THETA, BY, 0.0, 5.0),
        SpreadSizes(MEAN, THETA, DRAWS, COUNT, BY, 0.1, 8),
        PredictionSpreads(MEAN, THETA, DRAWS, COUNT, BY, np.ones(3)),
    ):
        without = value(query, ROWS.on_rows([values[1:] for values in ROWS.rows_of_inputs]))
        np.testing.assert_allclose(value(query, strange), without, atol=1e-6)
        np.testing.assert_allclose(value(query, with_row(0.3, 1, -1, 0)), without, atol=1e-6)


def test_norms_have_the_same_bits_whatever_other_units_there_are(monkeypatch):
    """Hazard H27: they are sums in one order, also where a unit is alone: next to an edge its bin depends on them."""
    found = []

    def noting(squares, *rest):
        found.append(squares)
        return half_octaves(squares, *rest)

    monkeypatch.setattr(surveys, "half_octaves", noting)
    draws = (THETA + np.random.default_rng(5).normal(scale=0.2, size=(10, 3))).ravel()
    query = SpreadSizes(MEANS, THETA, draws, 10, ALL, 1e-3, 40)
    value(query, ROWS)
    for place in range(N):
        value(query, ROWS.on_rows([values[place : place + 1] for values in ROWS.rows_of_inputs]))
    together, *alone = found
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_probabilities_are_those_of_the_response_that_is_asked_for():
    mean = predicted(THETA, X)
    for quantity, expected in (("equal", stats.poisson.pmf(0, mean)), ("at_most", stats.poisson.cdf(0, mean))):
        sums = value(PredictionSums(Predicted((NONE,), quantity), THETA, ALL, 0.0, 1.0), ROWS)
        assert sums[1] == pytest.approx(expected.sum(), abs=1e-6)
    at_least = value(PredictionCounts(MEANS, THETA, np.array([0.5, 1.0])), ROWS)
    expected = [np.histogram(each, [-np.inf, 0.5, 1.0, np.inf])[0] for each in in_scenarios(THETA)]
    np.testing.assert_allclose(at_least, np.mean(expected, axis=0), atol=1e-6)


def test_partitions_give_the_same_bits():
    query = PredictionSpreads(MEANS, THETA, DRAWS, COUNT, BY, np.array([0.3, 0.1, 3.0]))
    cuts = [slice(0, 7), slice(7, N)]
    blocks = [
        RowTable(tuple(np.ascontiguousarray(values[cut]) for values in ROWS.rows_of_inputs), None) for cut in cuts
    ]
    cut = PartitionedUnits(ROWS, InMemory(ROWS, blocks), N, "one row")
    assert np.array_equal(exact(query, cut)[0], exact(query, ROWS)[0])


@pytest.mark.parametrize(
    "query",
    [
        PredictionSums(MEANS, THETA, ALL, 0.0, 0.0),
        PredictionSums(MEANS, THETA, ALL, math.nan, 1.0),
        PredictionSums(MEANS, THETA[:2], ALL, 0.0, 1.0),
        PredictionSpreads(MEANS, THETA, DRAWS, COUNT, ALL, np.array([0.0])),
        PredictionSpreads(MEANS, THETA, DRAWS, COUNT, BY, np.ones(2)),
        PredictionSpreads(MEANS, THETA, DRAWS[:-1], COUNT, ALL, np.ones(1)),
        PredictionSpreads(MEANS, THETA, DRAWS, 0, ALL, np.ones(1)),
        PredictionCounts(MEANS, THETA, np.array([1.0, 0.0])),
    ],
)
def test_what_does_not_fit_is_refused(query):
    with pytest.raises((PrivacyError, ValueError)):
        exact(query, ROWS)
