"""Counts in cells and moments of columns: what they are, and how far one row or person moves them."""

import itertools
import math

import numpy as np
import pymc as pm
import pytest
from hypothesis import given, strategies as st
from scipy import stats
from two_tables import exact, movement, value

from pymc_dp.exceptions import InvalidArgument, PrivacyError
from pymc_dp.model.view import read
from pymc_dp.release.surveys import (
    NO_INPUT,
    PREDICTED_MEAN,
    SPREAD_WEIGHT,
    Axis,
    Coordinate,
    UnitCounts,
    UnitMoments,
    in_levels,
)
from pymc_dp.rows import UnitLikelihood
from pymc_dp.rows.partitioned import PartitionedUnits
from pymc_dp.rows.table import RowTable
from pymc_dp.tables.local import InMemory

N, SIZE = 60, 2
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, SIZE))
Y = GENERATOR.poisson(np.exp(0.5 * X[:, 0]))
AGE = GENERATOR.uniform(-1.0, 1.0, N)
GONE = (GENERATOR.random(N) < 0.2).astype(np.int64)
THETA = np.array([0.3, -0.2])
LEVELS = np.array([0.0, 0.1, 0.5, 1.0])


def rows_of(unit_index=None, observed=Y, family=None):
    with pm.Model() as model:
        eta = pm.Data("x", X) @ pm.Normal("beta", shape=SIZE)
        if family is None:
            pm.Poisson("y", pm.math.exp(eta), observed=observed)
        else:
            family("y", eta, observed)
    view = read(model, unit_index=unit_index, with_response=True)
    return UnitLikelihood(view, beside={"age": AGE, "gone": GONE})


ROWS, PERSONS = rows_of(), rows_of(np.arange(N) // 3)
PLACE = {name: place for place, each in enumerate(ROWS.inputs) for name in each.names}
PREDICTED = Axis(PREDICTED_MEAN, 0, NO_INPUT, np.array([0.5, 1.0, 2.0]))
OF_AGE = Axis(PLACE["age"], 0, PLACE["gone"], np.array([-0.5, 0.0, 0.5]))
OF_X = Axis(PLACE["x"], 1, NO_INPUT, np.array([0.0]))


def with_row(x, y, age, gone, place, rows=ROWS):
    tables = [values.copy() for values in rows.rows_of_inputs]
    for name, entry in (("x", x), ("y", y), ("age", age), ("gone", gone)):
        tables[PLACE[name]][place] = entry
    return rows.on_rows(tables, rows._table.starts)


def without_row(place):
    return ROWS.on_rows([np.delete(values, place, axis=0) for values in ROWS.rows_of_inputs])


def without_person(place):
    kept = np.arange(N) // 3 != place
    return PERSONS.on_rows([values[kept] for values in PERSONS.rows_of_inputs], PERSONS._table.starts[:-1])


AWKWARD = [0.0, -0.0, 1.0, -3.7, 0.5, 1e6, -1e9, 1e150, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan]
NUMBER = st.one_of(st.sampled_from(AWKWARD), st.floats(-10, 10))
WHOLE = st.sampled_from([0, 1, 2, 7, 10**9, -1, 2**62, -(2**63)])
EDGES = st.lists(st.floats(-1e6, 1e6), max_size=6, unique=True).map(lambda edges: np.array(sorted(edges)))
AXES = st.builds(
    Axis,
    st.sampled_from([PREDICTED_MEAN, PLACE["age"], PLACE["x"], PLACE["y"]]),
    st.just(0),
    st.sampled_from([NO_INPUT, PLACE["gone"]]),
    EDGES,
)
THETAS = st.lists(st.sampled_from([0.3, -2.0, 0.0, 1e3, 1e200, math.nan]), min_size=SIZE, max_size=SIZE).map(np.array)
COUNTS = st.builds(
    lambda axes, theta, levels: UnitCounts(tuple(axes), theta, *levels),
    st.lists(AXES, min_size=1, max_size=3),
    THETAS,
    st.sampled_from([(LEVELS, False), (np.array([0.0, 0.5, 1.0]), True), (np.zeros(0), False)]),
)
COORDINATES = st.builds(
    Coordinate,
    st.sampled_from([PLACE["age"], PLACE["gone"], PLACE["y"]]),
    st.sampled_from([0.0, 0.5, -3.0]),
    st.sampled_from([1e-3, 0.5, 1.0, 1e6]),
)
MOMENTS = st.lists(COORDINATES, min_size=1, max_size=5).map(lambda found: UnitMoments(tuple(found), len(found)))
QUERIES = st.one_of(COUNTS, MOMENTS)


@pytest.mark.filterwarnings("error")
@given(QUERIES, st.tuples(NUMBER, NUMBER), WHOLE, NUMBER, WHOLE, st.integers(0, N - 1))
def test_replacing_a_row_moves_no_sum_by_more_than_declared(query, x, y, age, gone, place):
    """Hazard H14: whatever the row holds; and no warning tells."""
    moved, allowed = movement(query, ROWS, with_row(x, y, age, gone, place))
    assert moved <= allowed


@pytest.mark.filterwarnings("error")
@given(QUERIES, st.tuples(NUMBER, NUMBER), WHOLE, NUMBER, WHOLE, st.integers(0, N - 1))
def test_replacing_a_row_of_a_person_moves_no_sum_by_more_than_declared(query, x, y, age, gone, place):
    moved, allowed = movement(query, PERSONS, with_row(x, y, age, gone, place, PERSONS))
    assert moved <= allowed


@given(QUERIES, st.integers(0, N // 3 - 1))
def test_removing_a_row_or_a_person_moves_no_sum_by_more_than_declared(query, place):
    for rows, fewer in ((ROWS, without_row(place)), (PERSONS, without_person(place))):
        moved, allowed = movement(query, rows, fewer, "add-remove")
        assert moved <= allowed


@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_a_row_can_move_them_as_far_as_declared(relation):
    query = UnitCounts((OF_AGE, OF_X), THETA, np.zeros(0))
    one, other = (with_row((0.0, x), 0, age, 0, 0) for x, age in ((-1.0, -0.9), (1.0, 0.9)))
    moved, allowed = movement(query, one, other if relation == "substitute" else without_row(0), relation)
    assert moved == pytest.approx(allowed, rel=1e-8)
    moments = UnitMoments((Coordinate(PLACE["age"], 0.0, 1.0),), 1)
    one, other = (with_row((0.0, 0.0), 0, age, 0, 0) for age in (-1.0, 1.0))
    moved, allowed = movement(moments, one, other if relation == "substitute" else without_row(0), relation)
    assert moved == pytest.approx(allowed, rel=1e-6)


CORNERS = list(itertools.product([-1.0, 1.0], [0, 1], [0, 7]))


@pytest.mark.parametrize(
    "query",
    [
        UnitMoments((Coordinate(PLACE["age"], 0.0, 1.0), Coordinate(PLACE["gone"], 0.5, 0.5)), 2),
        UnitCounts((OF_X,), THETA, np.array([0.0, 0.5, 1.0]), True),
    ],
    ids=["moments", "spread"],
)
def test_no_two_rows_point_away_from_each_other(query):
    """What makes the sum move by the square root of two, not by two: from each corner to each other one."""
    tables = [with_row((0.0, 1.0), count, age, gone, 0) for age, gone, count in CORNERS]
    for one, other in itertools.combinations(tables, 2):
        moved, allowed = movement(query, one, other)
        assert moved <= allowed


def expected_cells():
    """The definition, row by row, by SciPy's distribution functions."""
    mean = np.exp(X @ THETA)
    up_to, below = stats.poisson.cdf(Y, mean), stats.poisson.cdf(Y - 1, mean)
    of_levels = np.array(
        [
            [max(0.0, min(u, high) - max(b, low)) / (u - b) for low, high in itertools.pairwise(LEVELS)]
            for b, u in zip(below, up_to, strict=True)
        ]
    )
    found = []
    for values, edges, gone in ((mean, PREDICTED.edges, 0 * GONE), (AGE, OF_AGE.edges, GONE)):
        bins = (values[:, None] >= edges).sum(axis=1)
        bins = np.where(gone == 1, len(edges) + 1, bins)
        count = len(edges) + 1 + (gone is GONE)
        found += [of_levels[bins == place] for place in range(count)]
    return found


def test_counts_are_of_bins_and_of_levels():
    query = UnitCounts((PREDICTED, OF_AGE), THETA, LEVELS)
    exact_cells = np.concatenate([rows.sum(axis=0) for rows in expected_cells()])
    np.testing.assert_allclose(value(query, ROWS), exact_cells, atol=1e-7)


def test_a_person_counts_as_the_mean_of_its_rows():
    query = UnitCounts((OF_AGE,), THETA, np.zeros(0))
    np.testing.assert_allclose(3.0 * value(query, PERSONS), value(query, ROWS), atol=1e-7)
    moments = UnitMoments((Coordinate(PLACE["age"], 0.0, 1.0),), 1)
    np.testing.assert_allclose(3.0 * value(moments, PERSONS), value(moments, ROWS), atol=1e-7)


def test_moments_are_sums_of_products():
    query = UnitMoments((Coordinate(PLACE["age"], 0.1, 0.5), Coordinate(PLACE["gone"], 0.5, 0.5)), 2)
    z = np.array([np.ones(N), np.clip((AGE - 0.1) / 0.5, -1, 1), 2.0 * GONE - 1.0])
    root = math.sqrt(2.0)
    expected = [N, root * z[1].sum(), root * z[2].sum(), z[1] @ z[1], root * z[1] @ z[2], N]
    np.testing.assert_allclose(value(query, ROWS), expected, atol=1e-7)


@pytest.mark.parametrize(
    ("family", "observed", "distribution"),
    [
        (lambda name, eta, y: pm.Normal(name, eta, 1.3, observed=y), X[:, 0] + 1.0, lambda m: stats.norm(m, 1.3)),
        (
            lambda name, eta, y: pm.Bernoulli(name, logit_p=eta, observed=y),
            Y > 0,
            lambda m: stats.bernoulli(1 / (1 + np.exp(-m))),
        ),
        pytest.param(
            lambda name, eta, y: pm.NegativeBinomial(name, mu=pm.math.exp(eta), alpha=2.0, observed=y),
            Y,
            lambda m: stats.nbinom(2.0, 2.0 / (2.0 + np.exp(m))),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            lambda name, eta, y: pm.StudentT(name, 4, mu=eta, sigma=1.0, observed=y),
            X[:, 0],
            lambda m: stats.t(4, m),
            marks=pytest.mark.nightly,
        ),
        (
            lambda name, eta, y: pm.Weibull(name, 1.5, pm.math.exp(eta), observed=y),
            np.exp(X[:, 1]),
            lambda m: stats.weibull_min(1.5, scale=np.exp(m)),
        ),
    ],
    ids=["normal", "bernoulli", "negative binomial", "student", "weibull"],
)
def test_the_distribution_of_responses_is_scipys(family, observed, distribution):
    kind = np.int64 if np.asarray(observed).dtype.kind in "ib" else np.float64
    rows = rows_of(observed=np.asarray(observed).astype(kind), family=family)
    known = distribution(X @ THETA)
    y = np.asarray(observed).astype(float)
    below = known.cdf(y - 1) if kind is np.int64 else known.cdf(y)
    expected = in_levels(below, known.cdf(y), LEVELS).sum(axis=1)
    np.testing.assert_allclose(
        value(UnitCounts((OF_X,), THETA, LEVELS), rows).reshape(2, 3).sum(axis=0), expected, atol=1e-6
    )
    mean = UnitCounts((Axis(PREDICTED_MEAN, 0, NO_INPUT, np.array([0.6, 1.0])),), THETA, np.zeros(0))
    of_means = np.histogram(known.mean(), [-np.inf, 0.6, 1.0, np.inf])[0]
    np.testing.assert_allclose(value(mean, rows), of_means, atol=1e-7)


def test_the_spread_of_truth_values_is_counted():
    rows = rows_of(
        observed=(Y > 0).astype(np.int64), family=lambda name, eta, y: pm.Bernoulli(name, logit_p=eta, observed=y)
    )
    found = value(UnitCounts((OF_X,), THETA, np.array([0.0, 0.5, 1.0]), True), rows).reshape(2, 3)
    p = 1 / (1 + np.exp(-(X @ THETA)))
    below, up_to = np.where(Y > 0, 1 - p, 0.0), np.where(Y > 0, 1.0, 1 - p)
    low, high = in_levels(below, up_to, np.array([0.0, 0.5, 1.0]))
    bins = (X[:, 1] >= 0.0).astype(int)
    expected = [SPREAD_WEIGHT * ((high - low) ** 2)[bins == place].sum() for place in (0, 1)]
    np.testing.assert_allclose(found[:, 2], expected, atol=1e-6)


@pytest.mark.parametrize(
    "query", [UnitCounts((PREDICTED, OF_AGE), THETA, LEVELS), UnitMoments((Coordinate(2, 0, 1),), 1)]
)
def test_partitions_give_the_same_bits(query):
    """Hazard H42: however a table is cut."""
    tables = ROWS.rows_of_inputs
    cuts = [slice(0, 7), slice(7, 8), slice(8, N)]
    blocks = [RowTable([np.ascontiguousarray(values[cut]) for values in tables]) for cut in cuts]
    cut = PartitionedUnits(ROWS, InMemory(ROWS, blocks), N, "one row")
    assert np.array_equal(exact(query, cut)[0], exact(query, ROWS)[0])


@pytest.mark.parametrize(
    "query",
    [
        UnitCounts((), THETA, LEVELS),
        UnitCounts((Axis(2, 0, NO_INPUT, np.array([1.0, 0.0])),), THETA, LEVELS),
        UnitCounts((Axis(2, 0, NO_INPUT, np.array([0.0, 0.0])),), THETA, LEVELS),
        UnitCounts((Axis(2, 0, NO_INPUT, np.array([math.nan])),), THETA, LEVELS),
        UnitCounts((Axis(2, 0, NO_INPUT, np.arange(3e5)),), THETA, LEVELS),
        UnitCounts((OF_AGE,), THETA, np.array([0.0, 0.5])),
        UnitCounts((OF_AGE,), THETA, np.array([-1.0, 0.5, 1.0])),
        UnitCounts((OF_AGE,), THETA, LEVELS, True),
        UnitMoments((), 1),
        UnitMoments((Coordinate(2, 0.0, 1.0),), 0),
        UnitMoments((Coordinate(2, 0.0, 1.0),), 2),
        UnitMoments((Coordinate(2, 0.0, 0.0),), 1),
        UnitMoments((Coordinate(2, math.nan, 1.0),), 1),
    ],
)
def test_what_has_no_sensitivity_is_refused(query):
    with pytest.raises(PrivacyError):
        exact(query, ROWS)


def test_a_point_of_another_model_is_refused():
    with pytest.raises(InvalidArgument):
        exact(UnitCounts((PREDICTED,), np.zeros(3), LEVELS), ROWS)


def test_a_model_whose_responses_were_not_read_is_refused():
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Data("x", X) @ pm.Normal("beta", shape=SIZE)), observed=Y)
    with pytest.raises(PrivacyError, match="was not read"):
        exact(UnitCounts((PREDICTED,), THETA, LEVELS), UnitLikelihood(read(model)))
