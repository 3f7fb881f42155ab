"""Log-likelihoods that are broken lines: Laplace distributions, asymmetric ones, and the search along them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET
from scipy.stats import norm
from statsmodels.regression.quantile_regression import QuantReg

import pymc_dp as dp
from pymc_dp.release.interface import ExpansionPoint
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import KnownScore
from pymc_dp.steps.prelude.broken_lines import SearchAlongBrokenLines
from pymc_dp.steps.prelude.curvature import KnownCurvature
from pymc_dp.steps.prelude.newton import Frame
from pymc_dp.steps.prelude.regression import Regression
from pymc_dp.steps.prelude.search import Search

N, SIGMA = 8000, 2.0
#: Parameters of the searches below: location and a logarithm of the scale.
KINKED = np.array([True, True, False])
SCALE = np.array([2], dtype=np.intp)


def median(x, y):
    pm.Laplace("y", x, pm.HalfNormal("scale", 10.0), observed=y)


def quarter(x, y):
    """The inverse of the scale is a variable of its own."""
    pm.AsymmetricLaplace("y", mu=x, b=pm.HalfNormal("rate", 3.0), q=0.25, observed=y)


def upper(x, y):
    pm.AsymmetricLaplace("y", mu=x, b=1.0 / pm.HalfNormal("scale", 10.0), q=0.9, observed=y)


def built(generator, family):
    """Normal rows, whose intercept is some sigma from where the search begins, of tails not as many; and two slopes."""
    intercept = 8.0 if family is upper else 60.0
    x = np.column_stack([np.ones(N), generator.normal(size=N), generator.random(N) < 0.2])
    y = x @ [intercept, 1.5, -1.0] + SIGMA * generator.normal(size=N)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 50.0, shape=3)
        family(pm.Data("x", x) @ beta, y)
    return model, x, y


def errors_of(family, q, seed, epsilon):
    """Return errors of coefficients, and standard deviations without noise, in those of a normal approximation.

    The curvature of the sum is n x xᵀ times the density at the quantile, times what slopes change by in the kink.
    """
    model, x, y = built(np.random.default_rng(seed), family)
    with model:
        found = dp.private_likelihood(budget=dp.PrivacyBudget(epsilon, 1e-6), insecure_seed=seed, progressbar=False)
    best = QuantReg(y, x).fit(q=q).params
    residuals = y - x @ best
    ratio = np.sqrt(q / (1.0 - q)) if family is not median else 1.0  # of slopes on both sides of the kink
    rate = 1.0 / np.mean(np.where(residuals > 0.0, ratio * residuals, -residuals / ratio))
    density = norm.pdf(norm.ppf(q)) / SIGMA
    std = np.sqrt(np.diag(np.linalg.inv(x.T @ x * density * rate * (ratio + 1.0 / ratio))))
    places = [place for place, label in enumerate(found.mean["parameter"].values) if str(label).startswith("beta")]
    return (found.mean.values[places] - best) / std, np.sqrt(np.diag(found.without_noise)[places]) / std


def test_a_median_far_away_is_found_and_its_width_is_that_of_the_rows():
    """By the outer product of scores alone it would be four fifths of that: rows are normal, and the model is not."""
    error, width = errors_of(median, 0.5, 0, 8.0)
    assert np.abs(error).max() < 0.8
    np.testing.assert_allclose(width, 1.0, atol=0.12)


@pytest.mark.slow
@pytest.mark.few(slow=1)
@pytest.mark.parametrize(("family", "q", "tables"), [(median, 0.5, 3), (quarter, 0.25, 3), (upper, 0.9, 2)])
def test_quantiles_far_away_are_found(family, q, tables):
    errors, widths = zip(*(errors_of(family, q, seed, 8.0) for seed in range(1, 1 + tables)), strict=True)
    assert np.sqrt(np.mean(np.square(errors))) < 1.0
    assert np.abs(errors).max() < 3.0
    np.testing.assert_allclose(np.mean(widths, axis=0), 1.0, atol=0.2)


CURVATURE = KnownCurvature(np.eye(3), np.eye(3), 0.1, Frame(np.eye(3), np.eye(3)), np.ones(3, dtype=bool))


def search_of(scores, *, rate=False, made=None):
    search = object.__new__(SearchAlongBrokenLines)
    search._scores, search.places = scores, np.ones(3, dtype=bool)
    search._regression = Regression(np.zeros(3), search.places, SCALE, followed=SCALE, kinked=KINKED)
    search._regression = replace(search._regression, power_of_followed=2.0 if rate else -2.0)
    search._chain = SimpleNamespace(n_units=100)
    search._score_at = made
    return search


@pytest.mark.parametrize("rate", [False, True])
def test_slopes_and_curvatures_follow_the_scale(rate):
    """Slopes are in proportion to its inverse, curvatures to the square of that; neither for its own parameter."""
    change = -np.log(2.0) if not rate else np.log(2.0)
    before, after = np.zeros(3), np.array([1.0, 1.0, change])
    scores = [KnownScore(each, np.array([1.0, 1.0, 0.0]), np.eye(3), 0.0) for each in (before, after)]
    search = search_of(scores, rate=rate)
    first, last = search._comparable_scores(CURVATURE)
    np.testing.assert_allclose(first.gradient, [2.0, 2.0, 0.0])
    np.testing.assert_allclose(np.diag(first.noise), [2.0, 2.0, 1.0])
    np.testing.assert_array_equal(last.gradient, scores[1].gradient)
    found = search._at_scale_of(after, before, CURVATURE)
    np.testing.assert_allclose(np.diag(found.matrix), [4.0, 4.0, 1.0])
    np.testing.assert_allclose(found.frame.back @ found.frame.preconditioner.T, np.eye(3))
    np.testing.assert_allclose(np.diag(found.frame.back), [2.0, 2.0, 1.0])


@pytest.mark.parametrize("rate", [False, True])
def test_the_best_scale_is_found_in_one_step_and_the_location_moves_in_proportion_to_it(rate, monkeypatch):
    """Of residuals three times as long as the scale says the mean score of its logarithm is 2."""
    score = KnownScore(np.zeros(3), np.array([10.0, 0.0, -200.0 if rate else 200.0]), np.eye(3), 0.0)
    search = search_of([score], rate=rate)
    (found,) = search._comparable_scores(CURVATURE)
    logarithm = (-1.0 if rate else 1.0) * np.log(3.0)
    np.testing.assert_allclose(found.gradient, [10.0, 0.0, 100.0 * logarithm])
    np.testing.assert_allclose(np.diag(found.noise), [1.0, 1.0, 1.0 / 3.0])
    several = search_of([score], rate=rate)  # how many rows there are is protected
    several._regression = replace(several._regression, one_row_a_unit=False)
    np.testing.assert_array_equal(several._comparable_scores(CURVATURE)[0].gradient, score.gradient)
    monkeypatch.setattr(Search, "_stepped", lambda *_: np.array([0.1, -0.2, logarithm]))
    np.testing.assert_allclose(search._stepped(np.zeros(3), CURVATURE, 1.0), [0.3, -0.6, logarithm])


@pytest.mark.parametrize(("noise", "wanted"), [(0.0, 0.6), (1e4, 1.0)])
def test_a_score_a_way_off_tells_how_the_sum_bends(noise, wanted):
    """Unless it is all noise: then the model is believed."""
    theta, curvature = np.zeros(3), np.diag([400.0, 100.0, 200.0])
    here = KnownScore(theta, np.zeros(3), noise * np.eye(3), 0.0)

    def made(point, frame, bias, kind):
        assert kind == "way_off"
        assert point.theta[2] == 0.0
        step = point.theta - theta
        assert step @ curvature @ step / 100 == pytest.approx(settings.WAY_OFF**2)
        return KnownScore(point.theta, -0.6 * curvature @ step, noise * np.eye(3), bias)

    search = search_of([here], made=made)
    frame = Frame(np.diag([0.5, 1.0, 1.0]), np.diag([2.0, 1.0, 1.0]))
    known = KnownCurvature(curvature, curvature, 0.1, frame, search.places)
    found, (missed, missed_noise) = search._checked(known, ExpansionPoint(theta, frame.preconditioner, 1.0), frame)
    np.testing.assert_allclose(np.diag(found.matrix), [wanted * 400.0, wanted * 100.0, 200.0], rtol=1e-3)
    assert missed == pytest.approx(0.0, abs=1e-6)
    # Two scores, with noise of this size along two axes, over a distance that changes them by twenty.
    along = np.sqrt(2.0 * (0.25 + 1.0)) * noise / (settings.WAY_OFF * 100.0)
    assert missed_noise == pytest.approx(along)


@pytest.mark.parametrize(("noise", "wanted"), [(0.0, 0.5), (3.0, np.sqrt(0.25 - 4 * 9.0 / 20.0**2)), (5.1, 0.0)])
def test_what_a_parabola_has_none_of_is_said_but_for_noise(noise, wanted):
    """A score is off by half of what it changes, across the way; or by that less noise in two scores and directions."""
    theta, curvature = np.zeros(3), np.diag([100.0, 100.0, 100.0])

    def made(point, frame, bias, kind):
        step = point.theta - theta
        across = np.array([-step[1], step[0], 0.0])
        return KnownScore(point.theta, -(curvature @ step) - 50.0 * across, noise * np.eye(3), bias)

    search = search_of([KnownScore(theta, np.zeros(3), noise * np.eye(3), 0.0)], made=made)
    frame = Frame(np.eye(3), np.eye(3))
    known = KnownCurvature(curvature, curvature, 0.1, frame, search.places)
    _, (missed, _) = search._checked(known, ExpansionPoint(theta, np.eye(3), 1.0), frame)
    assert missed == pytest.approx(wanted)


def test_a_run_pays_for_a_score_a_way_off_and_for_no_other_check():
    model, *_ = built(np.random.default_rng(0), median)
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with model:
        plan = budget.plan(dp.DPSurrogateHMC())
        tree = pm.sample(draws=20, chains=2, budget=budget, cores=1, **QUIET)
    kinds = {each.kind for each in plan.releases}
    assert "way_off" in kinds
    assert not {"surrogate_check", "remainder_sizes"} & kinds
    assert plan.epsilon == pytest.approx(4.0, rel=1e-6)
    found = dp.diagnostics.quality(tree)
    assert 0.0 <= found.surrogate_error < np.inf
    assert 0.0 < found.surrogate_error_noise_std < 1.0
