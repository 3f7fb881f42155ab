"""How curvatures grow along the way: public arithmetic, and searches for events that are rare."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from against_reference import Problem
from hypothesis import given, strategies as st
from scipy.integrate import quad
from scipy.special import expit
from searches import LOST, searches

from pymc_dp.release import ExpansionPoint, Prediction
from pymc_dp.steps.prelude import learning, settings
from pymc_dp.steps.prelude.approximation import Expansion
from pymc_dp.steps.prelude.belief import Belief, KnownScore
from pymc_dp.steps.prelude.curvature import KnownCurvature
from pymc_dp.steps.prelude.growth import (
    after_overshoot,
    growth_of_mean,
    last_step,
    mean_of_exponential,
    on_one_parabola,
    times_newton,
)
from pymc_dp.steps.prelude.learning import Learning
from pymc_dp.steps.prelude.newton import Frame
from pymc_dp.steps.prelude.regression import Regression
from pymc_dp.steps.prelude.search import Search
from pymc_dp.steps.prelude.tails import Histogram

ALONE = np.array([True])


def counts_at(log_rate, *, mean=3.0, units=100.0):
    """Return the score of counts with a common rate, where the logarithm of that is at another value."""
    rate = np.exp(log_rate)
    return KnownScore(np.array([log_rate]), np.array([units * (mean - rate)]), np.eye(1), 0.0, log_rate)


@given(st.floats(-6.0, 6.0))
def test_the_mean_is_the_integral(growth):
    expected, _ = quad(lambda part: np.exp(growth * part), 0.0, 1.0)
    assert mean_of_exponential(growth) == pytest.approx(expected, rel=1e-6)


@given(st.floats(-6.0, 6.0))
def test_a_growth_is_known_by_its_mean(growth):
    assert growth_of_mean(mean_of_exponential(growth)) == pytest.approx(growth, rel=1e-5, abs=1e-5)


def told_from(at, *, rate, noise=0.01):
    """Return what the score at a point tells of two scales, of which the first has a maximum at 0.

    Its score is 1 - exp(rate x), so that its information grows exponentially.
    """
    information = np.diag([rate * np.exp(rate * at), 4.0])
    mean = np.array([at + (1.0 - np.exp(rate * at)) / information[0, 0], 0.7])
    return Belief(mean, information, noise * np.eye(2), noise * np.eye(2), np.ones(2, dtype=bool))


@given(st.floats(0.5, 4.0), st.floats(-2.0, -0.5))
def test_a_step_that_overshot_by_growth_leads_to_the_maximum(rate, at):
    """From before the maximum the information is too small there: the step ends far behind it."""
    before, belief = np.array([at, 0.7]), told_from(at, rate=rate)
    end = np.array([min(belief.mean[0], at + 2.0), 0.7])
    score = 1.0 - np.exp(rate * end[0])
    error = score - float(belief.information[0] @ (belief.mean - end))
    found = after_overshoot(belief, 0, before, end, error, 1e-6)
    if found is None:  # it ended near the maximum, within noise
        off = np.sqrt(belief.information[0] @ (belief.noise + belief.bias) @ belief.information[0])
        assert abs(error) <= settings.CLEARLY_OVERSHOT * off * (1.0 + 1e-6)
        return
    np.testing.assert_allclose(found.mean, [0.0, 0.7], atol=1e-3)
    np.testing.assert_allclose(np.diag(found.information), [rate, 4.0], rtol=1e-3)
    # A score of the same noise tells less of where the maximum is, the less information there is.
    larger = rate / belief.information[0, 0]
    np.testing.assert_allclose(np.diag(found.noise), [0.01 / larger**2, 0.01], rtol=1e-3)
    # By half of how far from there a straight line between both scores ends it may be off besides.
    first = 1.0 - np.exp(rate * at)
    straight = at + (end[0] - at) * first / (first - score)
    expected = [0.01 / larger**2 + (0.5 * straight) ** 2, 0.01]
    np.testing.assert_allclose(np.diag(found.bias), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("score", "noise"),
    [(-2.0, 1.0), (0.5, 0.01), (-500.0, 0.01)],
    ids=["as noise may be", "the step was too short", "faster than any information grows"],
)
def test_no_other_step_is_told_by_growth(score, noise):
    belief = replace(told_from(0.0, rate=1.0), mean=np.array([1.0, 0.7]))
    end = np.array([0.8, 0.7])
    assert after_overshoot(belief, 0, np.array([0.0, 0.7]), end, score - 0.2, noise) is None
    assert after_overshoot(belief, 0, np.array([0.0, 0.7]), end, -2.2, 0.01) is not None
    assert (
        after_overshoot(belief, 0, np.array([0.9, 0.7]), end, 2.2, 0.01) is None
    )  # the maximum is told on the other side


@given(st.floats(-1.8, 3.0))
def test_where_curvatures_are_exponential_one_step_is_enough(way):
    """Of counts with a common rate, from a logarithm of 0: Newton's step is too short if it falls, else too long."""
    newton = np.expm1(way)
    times = times_newton(newton)
    assert newton * times == pytest.approx(way, rel=1e-5, abs=1e-9)


def test_no_step_is_without_end():
    """By noise a curvature seems to fall so fast that no step is long enough."""
    assert times_newton(-50.0) == times_newton(settings.MOST_FALL) < 3.0


@given(st.floats(-0.9, 0.9), st.floats(-0.5, 0.5))
def test_scores_where_the_curvature_is_another_one_tell_of_the_same_maximum(way, last):
    """Newton's step from either point leads to where that from the last one does."""
    scores = [counts_at(last + way), counts_at(last)]
    curvature = np.array([[100.0 * np.exp(last)]])
    told = [score.theta + score.gradient / curvature[0] for score in on_one_parabola(scores, curvature, ALONE)]
    assert len(told) == 2
    np.testing.assert_allclose(told[0], told[1], atol=1e-6)
    known = KnownCurvature(curvature, curvature, 0.0, Frame(np.eye(1), np.eye(1)), ALONE)
    found, *_ = last_step(scores, known, ALONE)
    if abs(way) > 1e-3:
        assert found == pytest.approx(1.0, rel=1e-6)


def test_scores_from_far_away_are_left_out_but_not_the_last():
    scores = [counts_at(-0.3 + settings.MOST_GROWTH + 0.1), counts_at(0.5), counts_at(-0.3)]
    left = on_one_parabola(scores, np.array([[74.0]]), ALONE)
    assert [float(score.theta[0]) for score in left] == [0.5, -0.3]


def test_the_mean_size_is_that_of_most_units():
    """Bins that noise fills do not count, wherever they are; where noise hides most units nothing is known."""
    counts = np.zeros(41)
    counts[12:14] = 600.0, 400.0
    noisy = counts + np.random.default_rng(0).normal(size=41) * 10.0
    middles = 2.0 ** (np.array([12.5, 13.5]) / 2.0)
    expected = np.log(middles @ [0.6, 0.4])
    assert Histogram(noisy, 10.0, 1.0).log_mean(1000) == pytest.approx(expected, abs=0.05)
    assert not np.isfinite(Histogram(noisy, 300.0, 1.0).log_mean(1000))


def rare(family, part, rows=20_000):
    """Return a regression of an event in a small part of the rows, its true intercept and slopes, and their errors."""
    generator = np.random.default_rng(4)
    x = np.column_stack([np.ones(rows), generator.normal(size=(rows, 3))])
    truth = np.array([np.log(part) - 0.3, 0.6, -0.5, 0.0])
    mean = np.exp(x @ truth) if family == "poisson" else expit(x @ truth)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.5, shape=4)
        predictor = pm.Data("x", x) @ beta
        if family == "poisson":
            pm.Poisson("y", pm.math.exp(predictor), observed=generator.poisson(mean))
        else:
            pm.Bernoulli("y", logit_p=predictor, observed=(generator.random(rows) < mean).astype(int))
    weights = mean if family == "poisson" else mean * (1.0 - mean)
    return model, truth, np.sqrt(np.diag(np.linalg.inv((x.T * weights) @ x)))


def test_what_the_belief_has_foreseen_is_not_missed(monkeypatch):
    """The log-likelihood is off its expansion at the centre by what the belief's curvature is more, and by a little."""
    centre = ExpansionPoint(np.array([1.0, 0.0]), np.eye(2), 1.0, 1.0)
    draws = [np.array([1.0 + part, part]) for part in np.linspace(0.0, 3.0, 10)]
    extra_curvature, more = np.diag([-2.0, 0.0]), np.linspace(-0.3, 0.3, 10)
    monkeypatch.setattr(learning, "narrowed_draws", lambda belief, kernel, given: given)
    told = iter(draw[1] ** 2 + each for draw, each in zip(draws, more, strict=True))
    chain = SimpleNamespace(
        multiplier=lambda _: 1e-9, release=lambda _: SimpleNamespace(value=[next(told)], noise_std=1e-9)
    )
    surrogate = SimpleNamespace(prediction=lambda theta: Prediction(theta, theta, with_curvature=True))
    found = SimpleNamespace(
        belief=None, centre=centre, extra_curvature=extra_curvature, beyond=centre, surrogate=surrogate
    )
    found.kernel, found.extra_at = (
        SimpleNamespace(mean=centre.theta),
        partial(Expansion.extra_at, found),
    )
    asked = SimpleNamespace(_draws_apart=lambda *_: draws, _largest_remainder=lambda *_: 1.0)
    figures = Learning._checked(asked, chain, found)
    assert figures["surrogate_error"] == pytest.approx(np.std(more, ddof=1))


def sized(sizes, *, released_at=0):
    """Return a search whose units' curvatures have these mean sizes, one after the other, along a unit frame."""
    search, told = object.__new__(Search), iter(sizes)
    search._regression = Regression(np.zeros(2), np.ones(2, dtype=bool), np.zeros(0, dtype=int))
    search._chain, search._scores, search._first_after_curvature = SimpleNamespace(n_units=100), [], released_at
    search._level, search._log_norm_ratio = 0.0, -np.inf
    search._frame = lambda _: Frame(np.eye(2), np.eye(2))
    search._log_norm = lambda *_: next(told)
    return search


def of_units(size):
    """Return a curvature of a hundred units whose trace is this for each of them."""
    frame = Frame(np.eye(2), np.eye(2))
    return KnownCurvature(50.0 * size * np.eye(2), 50.0 * size * np.eye(2), 3.0, frame, np.ones(2, dtype=bool))


def test_curvatures_are_as_large_as_those_of_units():
    """One that was released elsewhere, with its noise; and one that noise has made too large, but the first."""
    search = sized(np.log([0.9 * 2.0, 0.9 * 0.5, 0.9 * 0.5]))
    first = search._at_norm(np.zeros(2), of_units(2.0))  # norms are .9 times traces
    np.testing.assert_allclose(first.matrix, of_units(2.0).matrix)
    search._scores = [None]
    later = search._at_norm(np.ones(2), first)
    np.testing.assert_allclose(later.matrix, of_units(0.5).matrix)
    assert (later.noise_std, search._level) == pytest.approx((3.0 / 4.0, np.log(0.25)))
    search._first_after_curvature = 1
    np.testing.assert_allclose(search._at_norm(np.ones(2), of_units(1.3)).matrix, of_units(0.5).matrix)


def test_noise_in_the_first_curvature_is_not_kept():
    """It was four times too large; the next one is released with less noise, and shows that."""
    search = sized(np.log([0.5, 0.5]))
    search._at_norm(np.zeros(2), of_units(2.0))
    search._scores, search._first_after_curvature = [None], 1
    np.testing.assert_allclose(search._at_norm(np.zeros(2), of_units(0.6)).matrix, of_units(0.6).matrix)
    assert search._log_norm_ratio == pytest.approx(np.log(0.5 / 0.6))


def test_what_noise_hides_changes_nothing():
    """At no point; nor is there a size to go by where it hid those of the curvatures that were just released."""
    search = sized([np.inf, 0.3])
    for scores in ([], [None]):
        search._scores = scores
        np.testing.assert_array_equal(search._at_norm(np.zeros(2), of_units(2.0)).matrix, of_units(2.0).matrix)
        assert search._level == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "part"), [("logistic", 0.01), pytest.param("poisson", 0.02, marks=pytest.mark.nightly)]
)
def test_rare_events_are_found(family, part):
    """Two hundred events are far from even odds, where the search begins: Newton's steps alone end half way there.

    Clip bounds that suit the other rows cut most of each event's score: steps would be a tenth as long.
    """
    model, truth, error = rare(family, part)
    found = searches(Problem(model, normal=False), 4.0, 1e-6, 6, seed=1)
    modes, covariances = (np.array(each) for each in zip(*found, strict=True))
    errors = np.sqrt(np.mean(((modes - truth) / error) ** 2, axis=1))
    assert errors.max() < LOST
    assert np.sqrt(np.mean(errors**2)) < 1.6  # of the table itself it is 1 without any noise
    # Two hundred events are few: normal approximations, and one table, leave it at that.
    inside = np.abs(modes - truth) < 2.0 * np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    assert inside.mean() > 0.8


def of_persons(persons=3_000, rows=8, tau=0.3):
    """Return a model of persons with several responses each and an effect of their own, which is integrated over."""
    generator = np.random.default_rng(5)
    y = 0.4 + tau * generator.normal(size=(persons, 1)) + 1.3 * generator.normal(size=(persons, rows))

    def log_density(value, mean, sigma, tau):
        left, together = value - mean, sigma**2 + rows * tau**2
        squares = (left**2).sum(-1) - tau**2 * left.sum(-1) ** 2 / together
        return -0.5 * ((rows - 1.0) * pm.math.log(sigma**2) + pm.math.log(together) + squares / sigma**2)

    with pm.Model() as model:
        mean = pm.Normal("mu", 0.0, 5.0) * np.ones(rows)
        sigma, effects = pm.HalfNormal("sigma", 2.0), pm.HalfNormal("tau", 1.0)
        ways = {"logp": log_density, "signature": "(v),(),()->(v)"}
        pm.CustomDist("y", mean, sigma, effects, observed=y, **ways)
    return model


@pytest.mark.slow
def test_a_search_of_how_much_persons_vary_does_not_overshoot():
    """Where it is told too small, its information is a quarter of that at the maximum, and less.

    Steps end far behind that, and scores there, told by so little information, at the prior: 5 of 40 searches.
    """
    found = searches(Problem(of_persons(), normal=False), 2.0, 1e-6, 11, seed=0)
    told = np.array([mode[2] for mode, _ in found])
    assert np.abs(told - np.log(0.3)).max() < 0.5
