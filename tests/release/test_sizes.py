"""Histograms of scores and bounded scores: what they count, and how far one row moves them."""

import itertools
import math

import numpy as np
import pymc as pm
import pytest
from hypothesis import given, settings, strategies as st
from two_tables import exact, movement, value

from pymc_dp.exceptions import InvalidArgument, PrivacyError
from pymc_dp.model.view import read
from pymc_dp.release import ExpansionPoint
from pymc_dp.release.query import PublicFacts
from pymc_dp.release.sizes import BoundedScore, CoordinateSizes, NormSizes
from pymc_dp.rows import PublicUnits, UnitLikelihood

N, SIZE = 90, 2
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, SIZE))
Y = GENERATOR.poisson(np.exp(0.5 * X[:, 0]))
THETA = np.array([0.3, -0.2])
WAY = np.array([[1.5, 0.4], [-0.3, 0.7]])
POINT = ExpansionPoint(THETA, WAY, 1.0)


def poisson(unit_index=None):
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Data("x", X) @ pm.Normal("beta", shape=SIZE)), observed=Y)
    return UnitLikelihood(read(model, unit_index=unit_index))


ROWS, PERSONS = poisson(), poisson(np.arange(N) // 3)


def table(x, y):
    return ROWS.on_rows([{"y": y.astype(np.int64)}.get(name, x) for name in ROWS._leaf_names])


def with_row(row, count, place):
    x, y = X.copy(), Y.copy()
    x[place], y[place] = row, count
    return table(x, y)


def without_row(place):
    return table(np.delete(X, place, axis=0), np.delete(Y, place))


OF = ("score", "curvature", "expected_curvature", "least_information", "least_slope")
AWKWARD = [0.0, -0.0, 1.0, -3.7, 1e-3, 1e6, -1e9, 1e150, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan]
ROW = st.lists(st.one_of(st.sampled_from(AWKWARD), st.floats(-10, 10)), min_size=SIZE, max_size=SIZE)
NUMBER = st.one_of(st.floats(-3, 3), st.sampled_from([1e200, -1e308, math.inf, math.nan, 0.0]))
POINTS = st.builds(
    lambda theta, way, clip: ExpansionPoint(np.array(theta), np.array(way).reshape(SIZE, SIZE), clip),
    st.lists(NUMBER, min_size=SIZE, max_size=SIZE),
    st.lists(NUMBER, min_size=SIZE * SIZE, max_size=SIZE * SIZE),
    st.sampled_from([1e-100, 0.1, 1.0, 1e100, math.inf]),
)
QUERIES = st.one_of(
    st.builds(CoordinateSizes, POINTS.map(lambda point: point.theta), st.integers(-30, 5), st.integers(1, 40)),
    st.builds(NormSizes, POINTS, st.sampled_from(OF), st.sampled_from([1e-100, 0.1, 1.0, 1e100]), st.integers(1, 40)),
    st.builds(
        BoundedScore,
        POINTS.map(lambda point: point.theta),
        st.integers(0, 1),
        st.sampled_from([1e-100, 0.3, 1e100]),
        st.sampled_from([0.0, -0.2, 1e100]),
    ),
)


@pytest.mark.filterwarnings("error")
@given(QUERIES, ROW, st.integers(0, 10**6), st.integers(0, N - 1))
def test_replacing_a_row_moves_no_sum_by_more_than_declared(query, row, count, place):
    moved, allowed = movement(query, ROWS, with_row(row, count, place))
    assert moved <= allowed


@pytest.mark.filterwarnings("error")
@given(QUERIES, st.integers(0, N - 1))
def test_removing_a_row_moves_no_sum_by_more_than_declared(query, place):
    moved, allowed = movement(query, ROWS, without_row(place), "add-remove")
    assert moved <= allowed


@pytest.mark.parametrize(
    "query",
    [
        CoordinateSizes(THETA, -10, 20),
        NormSizes(POINT, "score", 1e-3, 40),
        BoundedScore(THETA, 0, 0.5),
        BoundedScore(THETA, 0, 0.5, 0.2),
    ],
)
def test_a_row_can_move_them_as_far_as_declared(query):
    """So that no smaller number would do, nor a larger one be wasted."""
    moved, allowed = movement(query, with_row([1.0, 1.0], 0, 3), with_row([1.0, 1.0], 10**4, 3))
    assert 0.999999 * allowed < moved <= allowed
    removed, once = movement(query, with_row([1.0, 1.0], 10**4, 3), without_row(3), "add-remove")
    assert 0.999999 * once < removed <= once


@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_counts_are_cheaper_than_vectors_that_may_point_anywhere(relation):
    """Two vectors of counts differ by the square root of 2 bounds at most; one of them alone by one."""
    facts = PublicFacts(relation, N if relation == "substitute" else None, 1)
    assert CoordinateSizes(THETA, 0, 3).factor(facts) == {"substitute": math.sqrt(2.0), "add-remove": 1.0}[relation]
    assert BoundedScore(THETA, 0, 1.0).factor(facts) == {"substitute": 2.0, "add-remove": 1.0}[relation]


def expected_counts(sizes, lowest, bins, step=1.0):
    """numpy's own histogram, with the smallest and largest sizes in the bins at the ends."""
    edges = 2.0 ** (lowest + step * np.arange(bins + 1.0))
    return np.histogram(np.clip(sizes, edges[0], 0.999999 * edges[-1]), edges)[0]


@pytest.mark.parametrize("rows", [ROWS, PERSONS], ids=["rows", "persons"])
def test_coordinate_sizes_are_numpys_histograms(rows):
    scores = np.abs(PublicUnits(rows).scores(THETA))
    found = value(CoordinateSizes(THETA, -3, 5), rows).reshape(SIZE, 5)
    assert np.array_equal(found, [expected_counts(scores[:, j], -3, 5) for j in range(SIZE)])
    assert found.sum() == SIZE * rows.n_units


@pytest.mark.parametrize("rows", [ROWS, PERSONS], ids=["rows", "persons"])
def test_norm_sizes_are_numpys_histograms(rows):
    units = PublicUnits(rows)
    norms = {
        "score": np.linalg.norm(units.scores(THETA) @ WAY, axis=1),
        "curvature": np.linalg.norm(WAY.T @ units.curvatures(THETA) @ WAY, axis=(1, 2)),
    }
    for of, each in norms.items():
        found = value(NormSizes(POINT, of, 2.0**-3, 12), rows)
        assert np.array_equal(found, expected_counts(each, -3, 12, step=0.5)), of


def test_norms_of_expected_curvatures_are_those_of_the_mean_over_responses():
    mu = np.exp(X @ THETA)
    norms = mu * np.linalg.norm(X @ WAY, axis=1) ** 2  # a Poisson regression's
    point = ExpansionPoint(THETA, WAY, math.inf)
    smallest = 0.09  # no norm is so near to an edge that a relative error of a thousandth would matter
    places = 2.0 * np.log2(norms / smallest)
    assert np.min(np.abs(places - np.round(places))) > 3e-3
    found = value(NormSizes(point, "expected_curvature", smallest, 12), ROWS)
    assert np.array_equal(found, expected_counts(norms, math.log2(smallest), 12, step=0.5))


def test_the_least_information_is_that_of_a_row_of_its_predictor():
    """Of counts their mean, whatever the covariates and the preconditioner; of nothing that is moved the last bin."""
    mu = np.exp(X @ THETA)
    for way in (WAY, 1e3 * WAY, np.diag([0.0, 1.0])):
        found = value(NormSizes(ExpansionPoint(THETA, way, math.inf), "least_information", 2.0**-4 * 1.013, 16), ROWS)
        assert np.array_equal(found, expected_counts(mu, -4 + math.log2(1.013), 16, step=0.5))
    nothing = NormSizes(ExpansionPoint(THETA, np.zeros((SIZE, SIZE)), math.inf), "least_information", 1.0, 3)
    assert np.array_equal(value(nothing, ROWS), [0, 0, N])


def test_the_least_slope_is_that_of_a_rows_own_response():
    """Of what the matrix moves: an intercept, and a covariate of each row. And no information is known there."""
    generator = np.random.default_rng(3)
    z, y = generator.normal(size=N), generator.gamma(3.0, 2.0, N)
    with pm.Model() as model:
        predictor = pm.Normal("a") + pm.Normal("b") * pm.Data("z", z)
        pm.Gumbel("y", mu=predictor, beta=1.0, observed=y)  # whose responses are not known
    rows, theta = UnitLikelihood(read(model)), np.array([0.3, 0.2])
    slopes = 1.0 - np.exp(theta[0] + theta[1] * z - y)
    for way, least in ((np.eye(2), np.minimum(1.0, z**2)), (np.diag([1.0, 0.0]), 1.0), (np.diag([0.0, 1.0]), z**2)):
        point = ExpansionPoint(theta, way, math.inf)
        found = value(NormSizes(point, "least_slope", 2.0**-5, 30), rows)
        assert np.array_equal(found, expected_counts(np.sqrt(slopes**2 * least), -5, 30, step=0.5))
        assert value(NormSizes(point, "least_information", 2.0**-5, 30), rows)[0] == N


def test_a_size_at_an_edge_is_in_the_bin_above():
    """A logarithm in floating point rounds numbers just below a power of two up to it."""
    below = np.nextafter(8.0, 0.0)
    with pm.Model() as model:
        pm.Potential("nothing", 0.0 * pm.Normal("a"))
        pm.Normal("y", model["a"], 1.0, observed=np.array([8.0, below, -8.0, -below, 0.0, 1e300, -1e-300]))
    rows = UnitLikelihood(read(model))
    found = value(CoordinateSizes(np.zeros(1), 2, 2), rows)  # scores are the observations themselves
    assert np.array_equal(found, [4.0, 3.0])


def test_a_bounded_score_is_the_sum_of_cut_entries():
    scores = PublicUnits(ROWS).scores(THETA)
    for place, middle in itertools.product(range(SIZE), (0.0, 0.3)):
        found = value(BoundedScore(THETA, place, 0.4, middle), ROWS)
        assert found == pytest.approx([np.clip(scores[:, place] - middle, -0.4, 0.4).sum()], abs=1e-8)


@pytest.mark.parametrize("row", [[math.nan, 1.0], [math.inf, -math.inf]])
def test_a_row_without_a_score_is_counted_nowhere(row):
    bad, without = with_row(row, 1, 5), without_row(5)
    for query in (NormSizes(POINT, "score", 0.1, 9), NormSizes(POINT, "curvature", 0.1, 9)):
        assert np.array_equal(value(query, bad), value(query, without))


ALL = [
    CoordinateSizes(THETA, -10, 20),
    *(NormSizes(POINT, of, 1e-3, 40) for of in OF),
    BoundedScore(THETA, 1, 0.5),
]


@pytest.mark.parametrize("query", ALL, ids=lambda query: f"{query.kind} {getattr(query, 'of', '')}")
@settings(max_examples=40)
@given(cut=st.integers(1, N - 1))
def test_the_sum_is_that_of_the_parts_of_a_table(query, cut):
    """Under add-remove: no bit of a row's contribution knows where it stands or how many others there are."""
    whole, first, rest = (
        exact(query, rows, "add-remove")[0] for rows in (ROWS, table(X[:cut], Y[:cut]), table(X[cut:], Y[cut:]))
    )
    assert np.array_equal(whole, first + rest)


def test_chunks_are_small_where_contributions_are_large(monkeypatch):
    query = CoordinateSizes(THETA, -10, 20)
    whole = exact(query, ROWS)[0]
    monkeypatch.setattr("pymc_dp.rows.likelihood._CHUNK_ENTRIES", 7 * SIZE * 20)
    chunks = []
    real = type(ROWS._table).chunks
    monkeypatch.setattr(type(ROWS._table), "chunks", lambda table, size: chunks.append(size) or real(table, size))
    assert np.array_equal(exact(query, ROWS)[0], whole)
    assert chunks == [7]


REFUSED = {
    "no bins": CoordinateSizes(THETA, 0, 0),
    "too many bins": NormSizes(POINT, "score", 1.0, 10**9),
    "octaves that are none": CoordinateSizes(THETA, 10**400, 3),
    "norms of something else": NormSizes(POINT, "scores", 1.0, 3),
    "a first norm of zero": NormSizes(POINT, "score", 0.0, 3),
    "a first norm without a square": NormSizes(POINT, "score", 1e200, 3),
    "a first norm that is no number": NormSizes(POINT, "score", math.nan, 3),
    "a negative clip bound": NormSizes(ExpansionPoint(THETA, WAY, -1.0), "expected_curvature", 1.0, 3),
    "no parameters": CoordinateSizes(np.zeros(0), 0, 3),
    "an entry that is not there": BoundedScore(THETA, 2, 1.0),
    "an entry from the end": BoundedScore(THETA, -1, 1.0),
    "an infinite bound": BoundedScore(THETA, 0, math.inf),
    "a bound of zero": BoundedScore(THETA, 0, 0.0),
    "a bound that is no number": BoundedScore(THETA, 0, math.nan),
    "an infinite middle": BoundedScore(THETA, 0, 1.0, math.inf),
}


@pytest.mark.parametrize("query", REFUSED.values(), ids=REFUSED)
def test_what_has_no_sensitivity_is_refused_before_it_is_paid(query):
    """And not while rows are read: a table without rows would raise nothing, and so would be told from others."""
    for relation in ("substitute", "add-remove"):
        with pytest.raises(PrivacyError):
            query.refuse_if_unsafe(PublicFacts(relation, N if relation == "substitute" else None, 1))


OF_OTHER_SHAPES = [
    CoordinateSizes(np.zeros(3), 0, 3),
    CoordinateSizes(np.zeros((1, 2)), 0, 3),
    BoundedScore(np.zeros(1), 0, 1.0),
    NormSizes(ExpansionPoint(np.zeros(3), WAY, 1.0), "score", 1.0, 3),
    NormSizes(ExpansionPoint(THETA, WAY[:, :1], 1.0), "score", 1.0, 3),
    NormSizes(ExpansionPoint(THETA, np.zeros((3, 3)), 1.0), "expected_curvature", 1.0, 3),
]


@pytest.mark.parametrize("query", OF_OTHER_SHAPES)
def test_points_of_another_shape_are_refused_for_any_table(query):
    """Compiled loops would read beyond them."""
    for rows in (ROWS, table(X[:0], Y[:0])):
        with pytest.raises(InvalidArgument, match="expansion takes a point"):
            exact(query, rows, "add-remove")
