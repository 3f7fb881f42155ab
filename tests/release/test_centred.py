"""Centred scores and expected curvatures, against loops over rows and responses, and how far one row moves them."""

import functools
import math

import numpy as np
import pymc as pm
import pytest
import scipy.stats
from hypothesis import example, given, settings, strategies as st
from two_tables import exact, movement, value

from pymc_dp import compiling
from pymc_dp.exceptions import InvalidArgument, PrivacyError
from pymc_dp.model.view import read
from pymc_dp.release import ExpansionPoint
from pymc_dp.release.preconditioned import (
    CentredScore,
    ExpectedCurvature,
    OneDirectionCurvature,
    PreconditionedScore,
    UpperScore,
)
from pymc_dp.release.query import PublicFacts
from pymc_dp.release.sizes import NormSizes
from pymc_dp.rows import UnitLikelihood

N, SIZE = 90, 2
GENERATOR = np.random.default_rng(0)
X = np.column_stack([np.ones(N), GENERATOR.normal(size=N)])
THETA = np.array([0.4, 0.6])
WAY = np.array([[1.5, 0.4], [-0.3, 0.7]])
PSI, ALPHA = 0.7, 2.5
COUNTS = np.arange(400)


def regression(observed, x=X, y=None, size=(SIZE,), unit_index=None):
    with pm.Model() as model:
        observed(pm.Data("x", x) @ pm.Normal("beta", shape=size), np.zeros(len(x), dtype=np.int64) if y is None else y)
    return UnitLikelihood(read(model, unit_index=unit_index))


@functools.cache
def likelihood_of(observed, persons=None):
    """Compiled once; `table` gives it other rows."""
    return regression(observed, unit_index=None if persons is None else np.arange(N) // persons)


def logistic(eta, y):
    pm.Bernoulli("y", logit_p=eta, observed=y)


def poisson(eta, y):
    pm.Poisson("y", pm.math.exp(eta), observed=y)


def negative_binomial(eta, y):
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=ALPHA, observed=y)


def zero_inflated(eta, y):
    pm.ZeroInflatedPoisson("y", psi=PSI, mu=pm.math.exp(eta), observed=y)


def softmax(eta, y):
    pm.Categorical("y", logit_p=eta, observed=y)


# By hand: probabilities and slopes along the linear predictor for all responses of a row, shape (responses, ...).


def of_logistic(eta):
    p = 1.0 / (1.0 + math.exp(-eta))
    return np.array([1.0 - p, p]), np.array([-p, 1.0 - p])


def of_poisson(eta):
    mu = math.exp(eta)
    return scipy.stats.poisson.pmf(COUNTS, mu), COUNTS - mu


def of_negative_binomial(eta):
    mu = math.exp(eta)
    return scipy.stats.nbinom.pmf(COUNTS, ALPHA, ALPHA / (ALPHA + mu)), (COUNTS - mu) * ALPHA / (ALPHA + mu)


def of_zero_inflated(eta):
    mu = math.exp(eta)
    none = 1.0 - PSI + PSI * math.exp(-mu)
    probabilities, slopes = PSI * scipy.stats.poisson.pmf(COUNTS, mu), COUNTS - mu
    probabilities[0], slopes[0] = none, -mu * PSI * math.exp(-mu) / none
    return probabilities, slopes


#: By how much sums may be wrong, relative to the whole. Two responses: by what 90 truncations to a grid of at most 4e-9
#: take off. Counts: beyond 16, which less than a part in a hundred is here, some stand for all; of a negative binomial
#: more are.
MODELS = {
    "logistic": (logistic, of_logistic, 1e-8),
    "Poisson": (poisson, of_poisson, 1e-3),
    "negative binomial": (negative_binomial, of_negative_binomial, 0.02),
    "zero-inflated Poisson": (zero_inflated, of_zero_inflated, 1e-3),
}


def responses_to(x, of_model, way=WAY):
    """Yield for every row the probabilities of its responses, and its preconditioned scores (responses, size)."""
    for row in x:
        probabilities, slopes = of_model(float(row @ THETA))
        yield probabilities, slopes[:, None] * (row @ way)


def kept(scores, bound):
    return np.minimum(1.0, bound / np.maximum(np.linalg.norm(scores, axis=-1, keepdims=True), 1e-300))


def packed(matrix):
    size = len(matrix)
    return np.array([matrix[i, j] * (1.0 if i == j else 2.0**0.5) for i in range(size) for j in range(i, size)])


def clipped(vector, bound):
    return vector * min(1.0, bound / max(np.linalg.norm(vector), 1e-300))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", [0.3, 1.5, math.inf])
@pytest.mark.parametrize("of_curvature", [0.5, 100.0])
def test_expected_curvature_is_that_of_a_loop_over_rows_and_responses(name, clip, of_curvature):
    observed, of_model, precision = MODELS[name]
    total = np.zeros(SIZE * (SIZE + 1) // 2)
    for probabilities, scores in responses_to(X, of_model):
        weights = probabilities * kept(scores, clip)[:, 0]
        total += clipped(packed((weights[:, None] * scores).T @ scores), of_curvature)
    found = value(ExpectedCurvature(ExpansionPoint(THETA, WAY, clip, of_curvature)), likelihood_of(observed))
    assert np.abs(found - total).max() <= precision * np.linalg.norm(total)


@pytest.mark.slow
@pytest.mark.production
@pytest.mark.parametrize(
    "observed",
    [
        logistic,
        poisson,
        *(pytest.param(each, marks=pytest.mark.nightly) for each in (negative_binomial, zero_inflated)),
    ],
)
def test_compiled_functions_find_what_interpreted_ones_do(observed, monkeypatch):
    """In all other tests of this file they are interpreted: Numba takes twenty seconds for each model."""
    queries = [of(ExpansionPoint(THETA, WAY, 0.8, 1.2)) for of in (CentredScore, ExpectedCurvature)]
    found = [value(query, regression(observed)) for query in queries]
    monkeypatch.setattr(compiling, "MODE", compiling.INTERPRETED)
    for query, values in zip(queries, found, strict=True):
        assert value(query, regression(observed)) == pytest.approx(values, abs=1e-7)


@pytest.mark.parametrize("name", ["logistic", "Poisson"])
def test_expected_curvature_of_unclipped_scores_is_the_information_matrix(name):
    """X'WX, in closed form, with weights p (1 - p) of a logistic and mu of a Poisson regression."""
    mu = np.exp(X @ THETA)
    weights = mu / (1.0 + mu) ** 2 if name == "logistic" else mu
    observed, _, precision = MODELS[name]
    information = WAY.T @ X.T @ (weights[:, None] * X) @ WAY
    found = value(ExpectedCurvature(ExpansionPoint(THETA, WAY, math.inf, 1e3)), likelihood_of(observed))
    assert np.abs(found - packed(information)).max() <= precision * np.linalg.norm(information)


@pytest.mark.parametrize("clip", [3.0, math.inf])
@pytest.mark.parametrize("of_curvature", [0.5, 100.0])
def test_curvature_in_one_direction_is_that_of_rows_whose_score_is_not_clipped(clip, of_curvature):
    """μ x xᵀ of a Poisson regression, from one product a row; nothing of a row with a long score."""
    mu, total = np.exp(X @ THETA), np.zeros(SIZE * (SIZE + 1) // 2)
    for row, rate in zip(X, mu, strict=True):
        direction = WAY.T @ row
        if rate * np.linalg.norm(direction) <= clip:  # all counts are zero
            total += clipped(packed(rate * np.outer(direction, direction)), of_curvature)
    assert total.any()
    found = value(OneDirectionCurvature(ExpansionPoint(THETA, WAY, clip, of_curvature)), likelihood_of(poisson))
    assert np.abs(found - total).max() <= 1e-9 * np.linalg.norm(total)


def test_curvature_in_one_direction_has_no_negative_eigenvalue_whatever_the_likelihood():
    """Mixtures bend both ways: what is summed is not their curvature, but keeps the sensitivity of what is claimed."""
    found = value(OneDirectionCurvature(ExpansionPoint(THETA, WAY, math.inf, 100.0)), likelihood_of(zero_inflated))
    matrix = np.array([[found[0], found[1] / np.sqrt(2.0)], [found[1] / np.sqrt(2.0), found[2]]])
    assert np.linalg.eigvalsh(matrix).min() >= -1e-9 * np.linalg.norm(matrix)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bound", [0.3, 1.5])
def test_a_centred_score_is_that_of_a_loop_over_rows_and_responses(name, bound):
    observed, of_model, precision = MODELS[name]
    y = np.random.default_rng(1).integers(0, 2 if name == "logistic" else 9, N)
    total, length = np.zeros(SIZE), 0.0
    for count, (probabilities, scores) in zip(y, responses_to(X, of_model), strict=True):
        taken_off = probabilities @ (scores * (1.0 - kept(scores, bound)))
        unit = clipped(scores[count] * kept(scores[count], bound) + taken_off, bound)
        total, length = total + unit, length + np.linalg.norm(unit)
    found = value(CentredScore(ExpansionPoint(THETA, WAY, bound)), table(X, y, likelihood_of(observed)))
    assert np.abs(found - total).max() <= precision * length


def test_categories_are_averaged_over_all_of_them():
    y = np.random.default_rng(1).integers(0, 3, N)
    theta = np.random.default_rng(2).normal(size=6)
    way = np.random.default_rng(3).normal(size=(6, 6))
    found, curvatures = np.zeros(6), np.zeros(21)
    for row, response in zip(X, y, strict=True):
        eta = row @ theta.reshape(2, 3)
        p = np.exp(eta) / np.exp(eta).sum()
        scores = np.array([np.outer(row, np.eye(3)[k] - p).ravel() @ way for k in range(3)])
        parts = kept(scores, 0.8)
        found += clipped(scores[response] * parts[response] + p @ (scores * (1.0 - parts)), 0.8)
        curvatures += clipped(packed(((p * parts[:, 0])[:, None] * scores).T @ scores), 1.2)
    rows = regression(softmax, y=y, size=(SIZE, 3))
    assert value(CentredScore(ExpansionPoint(theta, way, 0.8)), rows) == pytest.approx(found, abs=1e-8)
    point = ExpansionPoint(theta, way, 0.8, 1.2)
    assert value(ExpectedCurvature(point), rows) == pytest.approx(curvatures, abs=1e-8)


# Bias ---------------------------------------------------------------------------------------------------------------


def test_a_centred_score_is_zero_on_average_where_a_clipped_one_is_not():
    """False alarms: 2 entries beyond 4.9 standard errors, 2e-6; the table is always the same one."""
    n, bound = 40_000, 2.0
    generator = np.random.default_rng(7)
    x = np.column_stack([np.ones(n), generator.normal(scale=0.5, size=n)])
    y = generator.poisson(np.exp(x @ THETA))
    scores = (y - np.exp(x @ THETA))[:, None] * x
    cut = scores * kept(scores, bound)
    centred = value(CentredScore(ExpansionPoint(THETA, np.eye(SIZE), bound)), table(x, y, likelihood_of(poisson)))
    standard_errors = np.sqrt(np.sum(cut**2, axis=0))
    assert np.mean(kept(scores, bound) < 1.0) > 0.1
    assert np.all(np.abs(centred) < 4.9 * standard_errors)
    assert cut.sum(axis=0)[0] < -10.0 * standard_errors[0]  # large counts are cut most


@pytest.mark.parametrize("name", ["logistic", "Poisson"])
def test_the_bias_that_is_left_is_that_of_the_second_clip(name):
    """Exact means over responses: nothing is left where the second clip does nothing, less than half elsewhere."""
    observed, of_model, _ = MODELS[name]
    row, rows = np.array([1.0, 3.0]), likelihood_of(observed)
    (probabilities, scores), size = next(responses_to([row], of_model)), np.linalg.norm(row @ WAY)
    for bound, left in ((0.7 * size, 0.5), (60.0 * size, 0.0)):
        alone = probabilities @ (scores * kept(scores, bound))
        once = scores * kept(scores, bound) + probabilities @ (scores * (1.0 - kept(scores, bound)))
        exact = probabilities @ (once * kept(once, bound))
        centred = np.zeros(SIZE)
        point = ExpansionPoint(THETA, WAY, bound)
        for count, probability in enumerate(probabilities[:60]):
            if probability > 1e-12:
                one = table(row[None], np.array([count]), rows)
                centred += probability * value(CentredScore(point), one)
        assert np.linalg.norm(centred - exact) <= 1e-5 * size
        assert np.linalg.norm(centred) <= left * np.linalg.norm(alone) + 1e-5 * size


# Sensitivity --------------------------------------------------------------------------------------------------------

Y = np.random.default_rng(5).integers(0, 4, N)


def table(x, y, rows=None, starts=None):
    rows = rows or likelihood_of(poisson)
    return rows.on_rows([{"y": y.astype(np.int64)}.get(name, x) for name in rows._leaf_names], starts)


def persons(x=X, y=Y):
    return table(x, y, likelihood_of(poisson, persons=3), np.arange(0, len(x) + 1, 3, dtype=np.int64))


def zeros(x=X, y=Y):
    return table(x, y, likelihood_of(zero_inflated))


def with_row(row, count, place, make=table):
    x, y = X.copy(), Y.copy()
    x[place], y[place] = row, count
    return make(x, y)


AWKWARD = [0.0, -0.0, 1.0, -3.7, 30.0, 1e6, -1e9, 1e150, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan]
ROW = st.lists(st.one_of(st.sampled_from(AWKWARD), st.floats(-5, 5)), min_size=SIZE, max_size=SIZE)
NUMBER = st.one_of(st.floats(-3, 3), st.sampled_from([1e200, -1e308, math.inf, math.nan, 0.0]))
BOUND = st.sampled_from([1e-100, 1e-3, 0.3, 2.0, 1e100])
POINTS = st.builds(
    lambda theta, way, clip, curvature: ExpansionPoint(np.array(theta), np.reshape(way, (SIZE, SIZE)), clip, curvature),
    st.lists(NUMBER, min_size=SIZE, max_size=SIZE),
    st.lists(NUMBER, min_size=SIZE * SIZE, max_size=SIZE * SIZE),
    BOUND,
    BOUND,
)
KINDS = st.sampled_from([CentredScore, ExpectedCurvature, OneDirectionCurvature, PreconditionedScore, UpperScore])
TABLES = st.sampled_from([table, zeros, persons])


@pytest.mark.filterwarnings("error")
@given(KINDS, POINTS, TABLES, ROW, st.integers(0, 10**6), st.integers(0, N - 1))
def test_replacing_a_row_moves_no_sum_by_more_than_declared(kind, point, make, row, count, place):
    moved, allowed = movement(kind(point), make(X, Y), with_row(row, count, place, make))
    assert moved <= allowed


@pytest.mark.filterwarnings("error")
@given(KINDS, POINTS, ROW, st.integers(0, 10**6), st.integers(0, N - 1))
def test_removing_a_row_moves_no_sum_by_more_than_declared(kind, point, row, count, place):
    without = table(np.delete(X, place, axis=0), np.delete(Y, place))
    moved, allowed = movement(kind(point), with_row(row, count, place), without, "add-remove")
    assert moved <= allowed


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bound", [0.2, 100.0])
def test_upper_scores_are_those_of_a_loop_over_rows_and_responses_above_the_median(name, bound):
    observed, of_model, precision = MODELS[name]
    total = np.zeros(SIZE)
    for probabilities, scores in responses_to(X, of_model):
        upper = np.cumsum(probabilities) - 0.5 * probabilities > 0.5
        total += clipped(probabilities[upper] @ scores[upper], bound)
    found = value(UpperScore(ExpansionPoint(THETA, WAY, bound)), likelihood_of(observed))
    assert np.abs(found - total).max() <= precision * np.linalg.norm(total)


def test_upper_scores_ask_for_no_response_of_the_table():
    point = ExpansionPoint(THETA, WAY, 0.3)
    one, other = (value(UpperScore(point), table(X, y)) for y in (Y, 3 * Y + 1))
    assert np.array_equal(one, other)


def test_a_preconditioned_score_is_the_sum_of_clipped_scores_and_nothing_is_added():
    scores = [(count - math.exp(row @ THETA)) * (row @ WAY) for row, count in zip(X, Y, strict=True)]
    for bound in (0.3, 50.0):
        found = value(PreconditionedScore(ExpansionPoint(THETA, WAY, bound)), table(X, Y))
        assert found == pytest.approx(sum(clipped(score, bound) for score in scores), abs=1e-7)


def test_a_row_can_move_them_as_far_as_declared():
    """Opposite scores, and curvatures along directions that are perpendicular: no smaller number would do."""
    point = ExpansionPoint(THETA, np.eye(SIZE), 0.3, 0.5)
    ends = {
        CentredScore: (with_row([-3.0, 9.0], 10**6, 3), with_row([3.0, -9.0], 10**6, 3)),
        PreconditionedScore: (with_row([-3.0, 9.0], 10**6, 3), with_row([3.0, -9.0], 10**6, 3)),
        UpperScore: (with_row([-60.0, 40.0], 1, 3), with_row([60.0, -40.0], 1, 3)),
        ExpectedCurvature: (with_row([9.0, -2.0], 0, 3), with_row([2.0, 9.0], 0, 3)),
    }
    for kind, (one, other) in ends.items():
        moved, allowed = movement(kind(point), one, other)
        assert 0.999 * allowed < moved <= allowed


def test_a_response_that_the_model_does_not_expect_moves_it_no_farther():
    """What clipping takes off on average is then added on the other side: nearly twice the bound together."""
    along = 2.2 * THETA / (THETA @ THETA)  # the model expects a 1, with probability 0.9
    across = 60.0 * np.array([THETA[1], -THETA[0]])
    rows = regression(logistic)
    point = ExpansionPoint(THETA, np.eye(SIZE), 0.3)
    one, other = (table(np.vstack([X, along + way]), np.zeros(N + 1, dtype=int), rows) for way in (across, -across))
    moved, allowed = movement(CentredScore(point), one, other)
    assert 0.99 * allowed < moved <= allowed


def test_rows_of_opposite_sign_move_curvatures_no_farther_on_a_coarse_grid():
    """Truncation makes small eigenvalues negative, and the angle of two matrices wider than a right one."""
    point = ExpansionPoint(THETA, np.eye(SIZE), math.inf, 0.5)
    facts = PublicFacts("substitute", N, 1)
    query = ExpectedCurvature(point)
    for grid in (0.25, 0.06, 2.0**-10):
        allowed = query.factor(facts) * query.bound(facts) / grid + query.rounding(facts)
        rows = [with_row([math.cos(angle), math.sin(angle)], 1, 3) for angle in np.linspace(0.0, np.pi, 30)]
        sums = [
            each.sum_over_units(lambda chunk: _curvatures(chunk, point), 3, 0.5, grid).integers.astype(float)
            for each in rows
        ]
        assert max(np.linalg.norm(one - other) for one in sums for other in sums) <= allowed


def _curvatures(chunk, point):
    from pymc_dp.rows.expansion import expected_curvatures_of  # noqa: PLC0415

    return expected_curvatures_of(chunk, point).T


@pytest.mark.parametrize("size", range(1, 40))
def test_the_room_for_truncation_is_enough(size):
    """Entries on the diagonal are not negative and lose less than a step; others differ by less than two."""
    point = ExpansionPoint(np.zeros(size), np.eye(size), 1.0, 1.0)
    of_truncation = math.sqrt(size + 4.0 * size * (size - 1) / 2.0) if size > 1 else 0.0
    assert ExpectedCurvature(point).rounding(PublicFacts("substitute", N, 1)) >= of_truncation


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "kind", [CentredScore, ExpectedCurvature, OneDirectionCurvature, PreconditionedScore, UpperScore]
)
@settings(max_examples=40)  # each is of six tables; at points that are drawn hardly any row counts for much
@example(point=ExpansionPoint(THETA, WAY, 0.3, 0.5), cut=40, row=[1.0, 0.7])
@given(point=POINTS, cut=st.integers(1, N - 1), row=ROW)
def test_sums_and_counts_are_those_of_the_parts_of_a_table(kind, point, cut, row):
    """No bit of a row's contribution knows of the others: not where one response is left out for all of a chunk."""
    x = X.copy()
    x[: N // 2] = row
    tables = (table(x, Y), table(x[:cut], Y[:cut]), table(x[cut:], Y[cut:]))
    whole, first, rest = (exact(kind(point), rows, "add-remove")[0] for rows in tables)
    assert np.array_equal(whole, first + rest)
    cut = 3 * max(1, cut // 3)
    grouped = (persons(x), persons(x[:cut], Y[:cut]), persons(x[cut:], Y[cut:]))
    whole, first, rest = (exact(kind(point), rows, "add-remove")[0] for rows in grouped)
    assert np.array_equal(whole, first + rest)


def test_a_preconditioner_without_end_silences_no_row_by_the_others():
    """Rows at which no response has a probability are clipped or not whatever responses the others have."""
    theta = np.array([0.0, 1e4])
    point = ExpansionPoint(theta, np.full((SIZE, SIZE), math.inf), 1.0, 1.0)
    x = np.column_stack([np.ones(N), np.full(N, 1e3)])  # exp(1e7): no count has a probability
    with_one = x.copy()
    with_one[0, 1] = 0.0
    for query in (ExpectedCurvature(point), CentredScore(point)):
        counts = []
        for covariates in (x, with_one):
            rows, seen = table(covariates, Y), []
            real = rows.sum_over_units
            rows.sum_over_units = lambda *arguments, real=real, seen=seen, **units: (
                seen.append(real(*arguments, **units)) or seen[0]
            )
            exact(query, rows)
            counts.append(seen[0].n_clipped)
        assert abs(counts[0] - counts[1]) <= 1


def test_scores_of_units_of_several_rows_are_clipped_alone():
    scores = ((Y - np.exp(X @ THETA))[:, None] * (X @ WAY)).reshape(-1, 3, SIZE).sum(axis=1)
    found = value(CentredScore(ExpansionPoint(THETA, WAY, 1.5, 1.0)), persons())
    assert found == pytest.approx((scores * kept(scores, 1.5)).sum(axis=0), abs=1e-8)


@pytest.mark.parametrize("bound", [1.0, 100.0])
def test_expected_curvature_of_a_unit_is_that_of_its_rows_as_far_as_its_score_is_kept(bound):
    mean = np.exp(X @ THETA)
    scores = ((Y - mean)[:, None] * (X @ WAY)).reshape(-1, 3, SIZE).sum(axis=1)
    total = np.zeros(SIZE * (SIZE + 1) // 2)
    for rows, weights, left in zip(
        (X @ WAY).reshape(-1, 3, SIZE), mean.reshape(-1, 3), kept(scores, 1.5)[:, 0], strict=True
    ):
        total += clipped(packed(left * (weights[:, None] * rows).T @ rows), bound)
    found = value(ExpectedCurvature(ExpansionPoint(THETA, WAY, 1.5, bound)), persons())
    assert np.abs(found - total).max() <= 1e-3 * np.linalg.norm(total)
    assert np.mean(kept(scores, 1.5) < 1.0) > 0.5


def test_curvature_in_one_direction_of_a_unit_is_that_of_its_rows_if_its_score_is_not_clipped():
    mean = np.exp(X @ THETA)
    lengths = np.linalg.norm(((Y - mean)[:, None] * (X @ WAY)).reshape(-1, 3, SIZE).sum(axis=1), axis=1)
    total = np.zeros(SIZE * (SIZE + 1) // 2)
    for rows, weights, length in zip((X @ WAY).reshape(-1, 3, SIZE), mean.reshape(-1, 3), lengths, strict=True):
        total += clipped(packed((weights[:, None] * rows).T @ rows), 2.0) * (length <= 3.0)
    found = value(OneDirectionCurvature(ExpansionPoint(THETA, WAY, 3.0, 2.0)), persons())
    assert np.abs(found - total).max() <= 1e-3 * np.linalg.norm(total)
    assert 0.2 < np.mean(lengths <= 3.0) < 0.8


def test_a_unit_of_several_rows_can_move_expected_curvatures_as_far_as_declared():
    """Of two units whose rows are perpendicular to those of the other, and of one whose score is clipped to nothing."""
    point = ExpansionPoint(THETA, np.eye(SIZE), 100.0, 0.5)

    def with_unit(row):
        x, y = X.copy(), np.zeros_like(Y)
        x[3:6] = row
        return persons(x, y)

    moved, allowed = movement(ExpectedCurvature(point), with_unit([9.0, -2.0]), with_unit([2.0, 9.0]))
    assert 0.999 * allowed < moved <= allowed


REFUSED = {
    "a clip bound of zero": CentredScore(ExpansionPoint(THETA, WAY, 0.0)),
    "an infinite clip bound": CentredScore(ExpansionPoint(THETA, WAY, math.inf)),
    "a clip bound that is no number": CentredScore(ExpansionPoint(THETA, WAY, math.nan)),
    "an infinite bound of curvatures": ExpectedCurvature(ExpansionPoint(THETA, WAY, 1.0)),
    "a bound of curvatures that squares lose": ExpectedCurvature(ExpansionPoint(THETA, WAY, 1.0, 1e-200)),
    "scores of a negative length in one direction": OneDirectionCurvature(ExpansionPoint(THETA, WAY, -1.0, 1.0)),
    "scores of a negative length": ExpectedCurvature(ExpansionPoint(THETA, WAY, -1.0, 1.0)),
    "scores cut to nothing": ExpectedCurvature(ExpansionPoint(THETA, WAY, 0.0, 1.0)),
    "scores cut to no number": ExpectedCurvature(ExpansionPoint(THETA, WAY, math.nan, 1.0)),
}


@pytest.mark.parametrize("query", REFUSED.values(), ids=REFUSED)
def test_bounds_that_cannot_be_kept_are_refused_before_they_are_paid(query):
    with pytest.raises(PrivacyError):
        query.refuse_if_unsafe(PublicFacts("substitute", N, 1))


@pytest.mark.parametrize("kind", [CentredScore, ExpectedCurvature, lambda point: NormSizes(point, "score", 1.0, 3)])
def test_points_of_another_shape_are_refused_for_any_table(kind):
    for theta, way in ((np.zeros(3), WAY), (THETA, WAY[:1]), (THETA, np.zeros((2, 2, 2))), (THETA[None], WAY)):
        for rows in (table(X, Y), table(X[:0], Y[:0])):
            with pytest.raises(InvalidArgument, match="expansion takes a point"):
                exact(kind(ExpansionPoint(theta, way, 1.0, 1.0)), rows, "add-remove")
