"""The level of counts: the direction in which predictors rise, how far away it is found, and steps from there on."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from against_reference import Problem, by_mode
from scipy import stats
from searches import LOST, searches, summary

from pymc_dp.release import Release
from pymc_dp.steps.prelude import search as search_module, settings
from pymc_dp.steps.prelude.belief import belief_of
from pymc_dp.steps.prelude.level import SearchFromLevel
from pymc_dp.steps.prelude.regression import Regression, requests_of_search
from pymc_dp.steps.prelude.search import halved
from pymc_dp.steps.prelude.tails import BINS

N = 10_000
GENERATOR = np.random.default_rng(4)
X = np.column_stack([np.ones(N), GENERATOR.normal(size=N), GENERATOR.random(N) < 0.2]).astype(float)
SLOPES = np.array([0.3, -0.4])


def test_a_binary_search_ends_within_its_last_interval():
    for zero in (-7.3, 0.0, 0.4, 7.9):
        assert halved(lambda at, zero=zero: np.sign(zero - at) or 1.0, 0.0, 16.0, 9) == pytest.approx(zero, abs=0.04)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, True),
        ({"rows_are_levels": True}, False),
        ({"one_row_a_unit": False}, False),
        ({"responses_are_known": False}, False),
        ({"responses_are_known": False, "rows_are_positive": True}, True),
        ({"responses_are_known": False, "rows_are_positive": True, "one_row_a_unit": False}, False),
        ({"responses_are_known": False, "rows_are_positive": True, "followed": np.array([1])}, True),
        ({"in_predictor": np.array([False, False])}, False),
    ],
)
def test_the_level_is_searched_for_of_counts_and_positive_responses_with_covariates(facts, found):
    """Not of categories, or where a unit has several rows."""
    known = {"known": np.ones(2, dtype=bool), "scales": np.zeros(0, dtype=np.intp)}
    regression = Regression(np.zeros(2), **{**known, "in_predictor": np.array([True, False]), **facts})
    assert regression.finds_level == found
    releases = {request.kind for request in requests_of_search(regression, 1.0)}
    assert {"level", "rise"} & releases == ({"level", "rise"} if found else set())


class Curator:
    """Answers without noise for counts of mean 1, whose rows have these covariates."""

    def __init__(self, x, level=0.0, knows_responses=True, noise_std=1e-9):
        self.x, self.level, self.n_units = x, level, len(x)
        self.knows_responses, self.structure = knows_responses, np.ones((x.shape[1],) * 2, dtype=bool)
        self.unidentified, self.noise_std = None, noise_std
        self.prior = SimpleNamespace(gradient=lambda theta: -theta, hessian=lambda theta: -np.eye(theta.size))
        self.prior.log_density = lambda theta: -0.5 * theta @ theta
        self.asked = []

    def multiplier(self, kind):
        return 1.0

    def release(self, query):
        name = type(query).__name__
        self.asked.append(query)
        if name == "CoordinateSizes":
            sizes = np.abs(self.x) * np.exp(max(self.level, 0.0))  # scores are as large as counts, or as 1
            octaves = np.clip(np.floor(np.log2(np.maximum(sizes, 1e-9))) - query.lowest, 0, query.bins - 1).astype(int)
            value = np.array([np.bincount(column, minlength=query.bins) for column in octaves.T]).ravel()
            return Release(query.kind, value.astype(float), 1e-3, (query.theta,))
        along = self.x @ query.point.preconditioner
        if name == "NormSizes":
            norms = {
                "least_information": np.ones(self.n_units),
                "least_slope": np.full(self.n_units, np.exp(max(self.level, 0.0))),
                "expected_curvature": np.sum(along**2, axis=1),
                "curvature": np.exp(self.level) * np.sum(along**2, axis=1),
                "score": np.exp(self.level) * np.linalg.norm(along, axis=1),
            }[query.of]
            bins = np.clip(np.floor(2.0 * np.log2(np.maximum(norms, 1e-300) / query.smallest)), 0, BINS - 1).astype(int)
            value = np.bincount(bins, minlength=BINS).astype(float)
        elif name in ("ExpectedCurvature", "Curvature"):
            matrix, size = along.T @ along, along.shape[1]
            matrix = matrix if self.knows_responses else matrix * np.exp(self.level)
            rows, columns = np.triu_indices(size)
            value = matrix[rows, columns] * np.where(rows == columns, 1.0, 2.0**0.5)
        elif name == "UpperScore":
            value = 0.4 * along.sum(axis=0)
        else:
            by = np.clip(self.level - self.x @ query.point.theta, -99.0, 99.0)
            most = query.point.clip_gradient
            value = np.clip(along * np.sinh(by)[:, None], -most, most).sum(axis=0)
        return Release(query.kind, value, self.noise_std, (query.point.theta,))


def search_of(x, moved, rise=(), **options):
    size = x.shape[1]
    regression = Regression(
        np.zeros(size),
        np.ones(size, dtype=bool),
        np.zeros(0, dtype=np.intp),
        in_predictor=np.array(moved),
        rise=np.array(rise, dtype=float),
    )
    return SearchFromLevel(Curator(x, **options), regression)


def rise_of(search):
    theta = search._regression.start
    return search._rise(theta, search._diagonal_frame(theta), 0.0, max(search._chain.level, 0.0))


def test_predictors_rise_along_the_column_of_ones():
    """Covariates that are far from zero, or rare, have no part in it."""
    x = np.column_stack([X, 30.0 + 9.0 * X[:, 1] + GENERATOR.normal(size=N)])
    for level in (0.0, 6.0, 9.0):
        np.testing.assert_allclose(rise_of(search_of(x, [True] * 4, level=level)), [1, 0, 0, 0], atol=0.02)


@pytest.mark.parametrize(("of_intercept", "atol"), [(0.01, 0.08), (1.0, 0.6)])
def test_the_prior_tells_an_intercept_from_a_column_that_is_nearly_one(of_intercept, atol):
    """Noise could hide in which of them predictors rise."""
    x = np.column_stack([X[:, :2], GENERATOR.random(N) < 0.97]).astype(float)
    search = search_of(x, [True] * 3, noise_std=0.02 * N)
    search._of_prior = np.diag([of_intercept, 1.0, 1.0])
    found = rise_of(search)
    np.testing.assert_allclose(found, [1, 0, 0], atol=atol)
    assert (np.abs(found[2]) > 0.1) == (of_intercept == 1.0)


def test_a_flat_prior_tells_of_no_direction():
    search = search_of(X, [True] * 3, noise_std=0.01 * N)
    search._of_prior = np.zeros((3, 3))
    np.testing.assert_allclose(rise_of(search), [1, 0, 0], atol=0.2)


def test_how_much_members_vary_does_not_hold_them_back():
    x = np.column_stack([np.eye(3)[np.arange(N) % 3], X[:, 1:]])
    search = search_of(x, [True] * 5, noise_std=0.01 * N)
    search._groupings = [np.arange(3), np.array([3]), np.array([4])]
    search._of_prior = np.diag([100.0, 100.0, 100.0, 1.0, 1.0])
    np.testing.assert_allclose(rise_of(search), [1, 1, 1, 0, 0], atol=0.06)


@pytest.mark.parametrize("knows_responses", [True, False])
@pytest.mark.parametrize("hidden", [False, True])
def test_along_an_intercept_of_the_model_nothing_is_released_but_the_level(knows_responses, hidden):
    search = search_of(X, [True] * 3, rise=[1.0, 0.0, 0.0], level=5.0, knows_responses=knows_responses)
    if hidden:  # how much rows tell
        search._log_mean_norm = lambda *_: np.inf
    begun = search._begun()
    np.testing.assert_allclose(begun, [5.0, 0.0, 0.0], atol=0.15)
    bounds = {query.point.clip_gradient for query in search._chain.asked if query.kind == "level"}
    assert max(bounds) == pytest.approx(settings.CLIP_OF_BISECTION, rel=0.1)
    kinds = [query.kind for query in search._chain.asked]
    assert set(kinds) - {"growth_sizes"} == {"level"}
    assert kinds.count("growth_sizes") == (0 if hidden or not knows_responses else 2)
    known, unknown = (
        {request.kind: request for request in requests_of_search(regression, 1.0)}
        for regression in (replace(search._regression, rise=rise) for rise in (np.array([1.0, 0, 0]), np.zeros(3)))
    )
    assert "rise" not in known
    assert unknown["rise"].count == 1
    assert known["early_curvature"].count + 1 == unknown["early_curvature"].count
    assert known["coordinate_sizes"].count + 1 == unknown["coordinate_sizes"].count
    assert known["curvature_sizes"].count + 1 == unknown["curvature_sizes"].count


def test_parameters_beside_the_predictor_are_not_moved():
    assert rise_of(search_of(X, [True, True, False]))[2] == 0.0


def test_members_of_a_grouping_are_moved_together():
    search = search_of(np.column_stack([np.eye(3)[np.arange(N) % 3], X[:, 1:]]), [True] * 5)
    search._groupings = [np.arange(3), np.array([3]), np.array([4])]
    np.testing.assert_allclose(rise_of(search), [1, 1, 1, 0, 0], atol=0.02)


@pytest.mark.parametrize("level", [-6.0, 0.0, 5.0])
def test_the_way_begins_at_the_level(level):
    search = search_of(X, [True] * 3, level=level)
    np.testing.assert_allclose(X @ search._begun(), level, atol=0.15)
    assert [query.kind for query in search._chain.asked].count("level") == settings.LEVEL_BISECTIONS


def test_bounds_are_lower_where_counts_are_fewer():
    """Rows tell less there: of exposures in thousands a bound for the start would be noise alone."""
    search = search_of(X, [True] * 3, level=-6.0)
    search._begun()
    bounds = {
        round(float(query.point.theta[0]), 1): query.point.clip_gradient
        for query in search._chain.asked
        if query.kind == "level"
    }
    assert bounds[0.0] == pytest.approx(settings.CLIP_OF_BISECTION, rel=0.1)  # sizes are told by half octaves
    assert min(bounds.values()) < 0.1


def test_where_noise_hides_the_direction_the_way_begins_where_the_model_says():
    search = search_of(X, [True] * 3, level=5.0)
    search._rise = lambda *_: (_ for _ in ()).throw(FloatingPointError())
    np.testing.assert_array_equal(search._begun(), np.zeros(3))


def test_nothing_is_asked_along_no_direction():
    """Where noise hides how large scores are along it."""
    search = search_of(X, [True] * 3, level=5.0, knows_responses=False)
    mean_norm = search._log_mean_norm
    search._log_mean_norm = lambda theta, of, *axes: np.inf if of == "score" else mean_norm(theta, of, *axes)
    np.testing.assert_array_equal(search._begun(), np.zeros(3))
    assert {"rise"} == {"rise", "level"} & {query.kind for query in search._chain.asked}


def test_positive_responses_lead_to_their_level_by_newtons_own_direction():
    """Scores and curvatures of an exponential distribution, far below its responses, both are as large as these."""
    search = search_of(X, [True] * 3, level=5.0, knows_responses=False)
    np.testing.assert_allclose(X @ search._begun(), 5.0, atol=0.15)


def test_steps_are_trusted_by_how_far_predictors_move():
    """Where a row tells a hundred times as much, a step of the same predictors is ten times as long."""
    search = search_of(X, [True] * 3)
    search._log_information = 0.0
    trusted = [search._trusted_by_rows(1)]
    search._level = np.log(100.0)
    trusted.append(search._trusted_by_rows(1))
    search._log_information = -np.inf  # hidden
    trusted.append(search._trusted_by_rows(1))
    factor = settings.TRUST_OF_PREDICTORS
    np.testing.assert_allclose(trusted, settings.TRUST_FAR * np.array([factor, 10.0 * factor, 1.0]))


def regression_of(kind):
    """Return a regression of counts, or positive numbers, that are far from where the model starts."""
    with pm.Model() as model:
        slopes = pm.Data("x", X[:, 1:]) @ pm.Normal("beta", 0.0, 2.0, shape=2)
        eta = pm.Normal("intercept", 0.0, 10.0) + slopes
        if kind == "exposures":
            exposure = np.exp(stats.norm.ppf((np.arange(N) + 0.5) / N, 7.0, 0.6))
            y = GENERATOR.poisson(exposure * np.exp(-5.0 + X[:, 1:] @ SLOPES))
            pm.Poisson("y", pm.Data("exposure", exposure) * pm.math.exp(eta), observed=y)
        elif kind == "gamma":
            y, shape = GENERATOR.gamma(3.0, 60.0 / 3.0 * np.exp(X[:, 1:] @ SLOPES)), pm.Exponential("shape", 0.5)
            pm.Gamma("y", shape, shape / pm.math.exp(eta), observed=y)
        elif kind == "binomial":
            y = GENERATOR.binomial(80, 1.0 / (1.0 + np.exp(2.5 - X[:, 1:] @ SLOPES)))
            pm.Binomial("y", n=np.full(N, 80), logit_p=eta, observed=y)
        elif kind == "zero-inflated":
            y = GENERATOR.poisson(20.0 * np.exp(X[:, 1:] @ SLOPES)) * (GENERATOR.random(N) < 0.6)
            pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 2.0, 2.0), mu=pm.math.exp(eta), observed=y)
        else:
            pm.Poisson("y", pm.math.exp(eta), observed=GENERATOR.poisson(40.0 * np.exp(X[:, 1:] @ SLOPES)))
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "poisson",
        "exposures",
        "gamma",
        pytest.param("binomial", marks=pytest.mark.nightly),
        pytest.param("zero-inflated", marks=pytest.mark.nightly),
    ],
)
def test_responses_that_are_far_from_the_start_are_found(kind):
    """Without a search for the level all of 12 were lost, by 3 to 300 posterior standard deviations."""
    model = regression_of(kind)
    reference = by_mode(model)
    found = searches(Problem(model, normal=False), 4.0, 1e-6, 6, seed=1)
    modes = np.array([mode for mode, _ in found])
    errors = np.sqrt(np.mean(((modes - reference.mean) / reference.std) ** 2, axis=1))
    assert np.all(errors < LOST), summary(found, reference)
    assert np.median(errors) < 1.0


def test_the_likelihood_that_is_handed_out_allows_for_wider_priors(monkeypatch):
    """Those of steps are for the model's own."""
    asked = []

    def recorded(*given, prior, **options):
        asked.append(prior)
        return belief_of(*given, prior=prior, **options)

    monkeypatch.setattr(search_module, "belief_of", recorded)
    with pm.Model() as model:
        eta = pm.Normal("intercept", 0.0, 10.0) + pm.Data("x", X[:500, 1:]) @ pm.Normal("beta", 0.0, 2.0, shape=2)
        pm.Poisson("y", pm.math.exp(eta), observed=GENERATOR.poisson(3.0, 500))
    searches(Problem(model, normal=False), 50.0, 1e-6, 1, 0)
    last = {round(float(information[0, 0] * 100.0), 6) for information, _ in asked[-2:]}
    assert last == {0.1}
    assert {round(float(information[0, 0] * 100.0), 6) for information, _ in asked[:-2]} == {1.0}
