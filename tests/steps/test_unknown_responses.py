"""Searches where the model does not say which responses a row could have had: continuous ones."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from against_reference import Problem, by_mode
from conftest import QUIET
from searches import searches

import pymc_dp as dp
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.release.interface import Release
from pymc_dp.release.sizes import BoundedScore
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import KnownScore
from pymc_dp.steps.prelude.curvature import KnownCurvature, floored
from pymc_dp.steps.prelude.newton import Frame
from pymc_dp.steps.prelude.regression import Regression, requests_of_search
from pymc_dp.steps.prelude.search import Search
from pymc_dp.steps.prelude.simulated import SearchBySimulation
from pymc_dp.steps.prelude.tails import BINS, LOWEST_HALF_OCTAVE, Histogram

X = np.column_stack([np.ones(5_000), np.random.default_rng(0).normal(size=(5_000, 4))])
TRUTH = np.array([0.5, 0.2, -0.2, 0.1, 0.0])
ALL = np.ones(3, dtype=bool)


def bernoulli(y=None):
    pm.Bernoulli("y", logit_p=pm.Data("x", X) @ pm.Normal("beta", shape=5), observed=y)


def normal(y=None):
    pm.Normal("y", pm.Data("x", X) @ pm.Normal("beta", shape=5), pm.HalfNormal("sigma"), observed=y)


def exponential(y=None):
    pm.Exponential("y", pm.math.exp(pm.Data("x", X) @ pm.Normal("beta", shape=5)), observed=y)


def gamma(y=None):
    shape = pm.Exponential("shape", 0.5)
    mean = pm.math.exp(pm.Data("x", X) @ pm.Normal("beta", shape=5))
    pm.Gamma("y", alpha=shape, beta=shape / mean, observed=y)


def model_of(family, y):
    with pm.Model() as model:
        family(y)
    return model


def spread(y=None, mean=lambda: pm.Data("x", X[:, :2]) @ pm.Normal("beta", 0.0, 100.0, shape=2)):
    growth = pm.math.exp(pm.Normal("log_scale", 0.0, 2.0) + pm.Normal("growth") * X[:, 1])
    pm.Normal("y", mean(), growth, observed=y)


def known_spread(y=None):
    pm.Normal("y", pm.Data("x", X) @ pm.Normal("beta", shape=5), pm.Data("s", np.exp(X[:, 1])), observed=y)


def bent_spread(y=None):
    spread(y, lambda: pm.math.exp(pm.Data("x", X) @ pm.Normal("beta", shape=5)))


@pytest.mark.parametrize(
    ("family", "steps"),
    [(bernoulli, 4), (normal, 4), (exponential, 8), (gamma, 8), (spread, 10), (known_spread, 10), (bent_spread, 8)],
)
def test_steps_are_more_of_continuous_responses_whose_curvature_changes(family, steps):
    with model_of(family, np.ones(5_000, dtype=int if family is bernoulli else float)):
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(4.0, 1e-6))
    assert step.learning._regression.steps == steps


@pytest.mark.parametrize(
    ("family", "outliers"), [(bernoulli, False), (normal, True), (gamma, True), (exponential, True)]
)
def test_tails_of_continuous_responses_may_be_longer_than_the_models(family, outliers):
    """Although what clipping takes off by the model is added again: more is released of what is taken off."""
    with model_of(family, np.ones(5_000, dtype=int if family is bernoulli else float)):
        learning = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(4.0, 1e-6)).learning
    assert learning._regression.centred == (family is not normal)
    assert learning._regression.expects_outliers == outliers
    (share,) = (each.share for each in learning.requests() if each.kind == "clipping_loss")
    assert share == (0.05 if outliers else 0.02)
    assert not replace(learning._regression, simulated=True).expects_outliers


def test_the_curvature_is_released_anew_where_the_last_binary_search_of_a_shape_ends(monkeypatch):
    """By the shape the curvature of the location is multiplied."""
    kinds, real = [], ChainAccess.release
    monkeypatch.setattr(ChainAccess, "release", lambda self, query: kinds.append(query.kind) or real(self, query))
    y = np.random.default_rng(1).gamma(3.0, size=5_000)
    with model_of(gamma, y):
        dp.private_likelihood(budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=0, progressbar=False)
    released = kinds[len(kinds) - kinds[::-1].index("early_curvature") - 1 :]  # after the dry run
    late = released.index("late_curvature")
    assert "bounded_score" in released[:late]
    assert "bounded_score" not in released[late:]
    assert released[late:].count("approach") == 1


@pytest.mark.parametrize("power", [-2.0, 2.0, 1.0])
def test_curvature_and_scores_of_a_location_follow_its_scale(power):
    """In proportion to the inverse square, the square or the shape; the frame of what was released, too."""
    search, scale = object.__new__(Search), np.array([2])
    search.places = ALL
    follows = {"followed": scale, "power_of_followed": power, "rows_are_discrete": False}
    search._regression = Regression(np.zeros(3), ALL, scale, **follows)
    curvature = KnownCurvature(np.eye(3), np.eye(3), 0.1, Frame(np.eye(3), np.eye(3)), ALL)
    after = np.array([5.0, -1.0, np.log(4.0) / power])
    found = search._at_scale_of(after, np.zeros(3), curvature)
    np.testing.assert_allclose(np.diag(found.matrix), [4.0, 4.0, 1.0])
    np.testing.assert_allclose(np.diag(found.frame.back), [2.0, 2.0, 1.0])
    search._scores = [KnownScore(at, np.ones(3), np.eye(3), 0.5) for at in (np.zeros(3), after)]
    first, last = search._comparable_scores(found)
    np.testing.assert_allclose(first.gradient, [4.0, 4.0, 1.0])
    np.testing.assert_allclose(first.noise, np.diag([4.0, 4.0, 1.0]))
    assert (first.bias, last.bias) == pytest.approx((1.0, 0.5))
    np.testing.assert_array_equal(last.gradient, np.ones(3))
    search._regression = replace(search._regression, followed=np.zeros(0, dtype=np.intp))
    np.testing.assert_array_equal(search._at_scale_of(after, np.zeros(3), curvature).matrix, np.eye(3))
    np.testing.assert_array_equal(search._comparable_scores(found)[0].gradient, np.ones(3))


def test_a_score_of_scales_alone_keeps_its_bias():
    search, scale = object.__new__(Search), np.array([0])
    search._regression = Regression(np.zeros(1), ALL[:1], scale, followed=scale, rows_are_discrete=False)
    search.places = ALL[:1]
    search._scores = [KnownScore(np.array([at]), np.ones(1), np.eye(1), 0.5) for at in (0.0, 1.0)]
    assert [each.bias for each in search._comparable_scores(None)] == [0.5, 0.5]


def test_a_floor_of_eigenvalues_knows_which_axes_are_short():
    """Else each release lifts the curvature along them above what is expected, by which the next one is scaled."""
    frame, weights = Frame(np.eye(3), np.eye(3)), np.array([1.0, 1.0, 0.5])
    raw = np.diag([1.0, 0.1, 0.01])
    found = floored(raw, 0.1, frame, ALL, floor=0.4, nonnegative=False, weights=weights)
    np.testing.assert_allclose(np.diag(found.matrix), [1.0, 0.4, 0.1])
    released = Release("early_curvature", np.zeros(6), 1.0, ())
    search = object.__new__(Search)
    search._regression, search.structure, search.places = (
        Regression(np.zeros(3), ALL, np.array([2])),
        ALL & ALL[:, None],
        ALL,
    )
    facts = {"n_units": 100, "knows_responses": False, "unidentified": None}
    search._chain = SimpleNamespace(release=lambda query: released, **facts)
    search._groupings = []
    search._scores, search.noise_eigenvalue, search._floors, search.nonnegative = [], 1.0, (1.0,), False
    point = SimpleNamespace(theta=np.zeros(3), clip_curvature=1.0)
    search._curvature_kind = "curvature"
    early = search._curvature_at(point, frame, "early_curvature", between_scales=False)
    np.testing.assert_allclose(np.diag(early.matrix), [1.0, 1.0, settings.SCALE_IN_NORM**2])


def errors_of(family, y, runs):
    """Return errors of as many searches at epsilon 4, in posterior standard deviations."""
    problem = Problem(model_of(family, y))
    reference = by_mode(problem.model)
    return np.array([(mode - reference.mean) / reference.std for mode, _ in searches(problem, 4.0, 1e-6, runs, 0)])


@pytest.mark.parametrize(
    ("scales", "degrees", "own"), [([], [], []), ([3], [], [3]), ([3, 4], [4], [3]), ([1, 2, 3, 4], [], [])]
)
def test_few_scales_have_scores_of_their_own(scales, degrees, own):
    """Not degrees of freedom, and not where there are many; two scores each, and a histogram for each score."""
    scales, degrees = (np.array(places, dtype=np.intp) for places in (scales, degrees))
    regression = Regression(np.zeros(6), np.ones(6, dtype=bool), scales, degrees_of_freedom=degrees)
    assert regression.with_own_scores.tolist() == own
    counts = {each.kind: each.count for each in requests_of_search(regression, 0.5)}
    assert counts.get("scale_score", 0) == 2 * len(own)
    assert counts.get("scale_sizes", 0) == 2 * len(own)


def test_the_bound_of_an_own_score_is_never_near(monkeypatch):
    """Histograms do not see what a near bound cuts: the bound is at least five roots of a unit's information."""
    search = object.__new__(Search)
    search._chain = SimpleNamespace(n_units=20_000, multiplier=lambda kind: 1e6)  # so much noise: the nearest bound
    norms = np.abs(np.random.default_rng(0).standard_t(3.0, size=20_000))
    places = np.clip(np.floor(2.0 * np.log2(norms)) - LOWEST_HALF_OCTAVE, 0, BINS - 1).astype(int)
    counts = Histogram(np.bincount(places, minlength=BINS).astype(float), 1.0, 2.0 ** (LOWEST_HALF_OCTAVE / 2))
    frames = []
    monkeypatch.setattr(
        search, "_norms", lambda theta, frame, *of, **kind: frames.append(frame) or counts, raising=False
    )
    bound, bias = search._bound_of_own_score(np.zeros(3), 1, 0.25)
    assert bound == pytest.approx(0.25 * 5.0)
    np.testing.assert_array_equal(frames[0].preconditioner, np.diag([0.0, 4.0, 0.0]))
    true = 0.25 * np.maximum(norms - 5.0, 0.0).sum()
    assert 0.6 * true < bias < 1.7 * true


def test_scores_of_a_censored_scale_are_numbers_where_there_are_no_covariates():
    """Rows are simulated then, and coordinates are not bent: what is released is what was declared."""
    with pm.Model():
        of_all = pm.Normal.dist(pm.Normal("mu", 0.0, 10.0), pm.HalfNormal("sigma", 5.0))
        pm.Censored("y", of_all, None, 1.0, observed=np.ones(50))
        learning = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(4.0, 1e-6)).learning
    declared = {each.kind: each.coordinates for each in learning.requests()}
    made = object.__new__(SearchBySimulation)
    made._regression = learning._regression
    query = made._score_along(np.zeros(2), 1, 1.0, "bounded_score")
    assert np.size(query.size) == declared["bounded_score"] == 1
    assert isinstance(query, BoundedScore)


@pytest.mark.slow
def test_a_shape_is_told_by_scores_of_its_own():
    """At epsilon 1: as wide as was found, where norms alone give 5 to 6. Few searches vary by a tenth."""
    y = np.random.default_rng(2).gamma(3.0, np.exp(X @ TRUTH) / 3.0)
    problem = Problem(model_of(gamma, y))
    reference = by_mode(problem.model)
    found = searches(problem, 1.0, 1e-6, 24, 1)
    modes, covariances = (np.array(each) for each in zip(*found, strict=True))
    place = ParameterVector(problem.model).labels.index("shape_log__")
    widths = np.sqrt(covariances[:, place, place])
    assert np.median(widths) / reference.std[place] < 4.0
    assert np.sqrt(np.mean(((modes[:, place] - reference.mean[place]) / widths) ** 2)) < 1.5


def vectors(y=None):
    mu, sigma = pm.Normal("mu", 0.0, 100.0, shape=2), pm.HalfNormal("sigma", 2.0, shape=2)
    pm.Normal("y", mu, sigma, observed=None if y is None else np.stack([y, -y], axis=1))


@pytest.mark.parametrize(
    ("family", "steps"),
    [
        (spread, 1),
        (known_spread, 1),
        (vectors, None),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in ((spread, None), (known_spread, None), (vectors, 1))
        ),
    ],
)
def test_a_search_whose_location_moves_first_releases_what_is_planned(family, steps, monkeypatch):
    made, real = Counter(), ChainAccess.release
    monkeypatch.setattr(ChainAccess, "release", lambda self, query: made.update([query.kind]) or real(self, query))
    with model_of(family, np.random.default_rng(0).normal(size=5_000)):
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(4.0, 1e-6), newton_steps=steps)
        planned = {each.kind: each.count for each in step.learning.requests()}
        dp.sample(draws=10, tune=10, chains=1, cores=1, step=step, **QUIET)
    regression = step.learning._regression
    places, again = regression.bisected.size, min(regression.steps + 1, settings.LOCATION_STEPS)
    simulated = family is vectors
    if simulated:  # a dry run on simulated rows comes first, without a check
        made.update(remainder_sizes=1, surrogate_check=planned["surrogate_check"])
    assert {kind: (1 + simulated) * count for kind, count in planned.items()} == dict(made)
    later = again if simulated else 1 + again
    assert planned.get("bounded_score", 0) == places * (settings.FIRST_BISECTIONS + later * settings.LATER_BISECTIONS)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_the_location_moves_first_and_scales_after_it(seed, monkeypatch):
    """Twenty standard deviations away: no trust region holds the first two steps, and scales are those of the start."""
    points, real = [], Search._score_at
    monkeypatch.setattr(
        Search, "_score_at", lambda self, point, *others: points.append(point.theta) or real(self, point, *others)
    )
    generator = np.random.default_rng(seed)
    y = 170.0 + 5.0 * X[:, 1] + 9.0 * np.exp(0.3 * X[:, 1]) * generator.normal(size=5_000)
    with model_of(spread, y) as model:
        places = dict(zip(ParameterVector(model).names, ParameterVector(model).slices, strict=True))
        (found,) = searches(Problem(model), 8.0, 1e-6, 1, seed)
    intercept, log_scale = places["beta"].start, places["log_scale"].start
    way = np.array(points[-12:])
    assert way[0, intercept] == 0.0
    assert np.abs(way[1, intercept] - 170.0) < 85.0
    assert np.abs(way[2, intercept] - 170.0) < 20.0
    assert np.all(np.diff(way[:3, log_scale]) < -0.4)
    np.testing.assert_allclose(found[0][[intercept, log_scale]], [170.0, np.log(9.0)], atol=2.5)


@pytest.mark.nightly
def test_a_gamma_regression_far_away_is_found():
    """Mean 7 and shape 6 from a start at 1 and 2: the median error is 1, and was 4 with four long steps."""
    y = np.random.default_rng(2).gamma(6.0, np.exp(2.0 + X[:, 1:] @ TRUTH[1:]) / 6.0)
    errors = errors_of(gamma, y, 8)
    assert np.median(np.sqrt(np.mean(errors**2, axis=1))) < 2.0
