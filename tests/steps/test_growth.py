"""How curvatures grow along the way: public arithmetic, and searches for events that are rare."""

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
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import KnownScore
from pymc_dp.steps.prelude.curvature import KnownCurvature
from pymc_dp.steps.prelude.growth import mean_of_exponential, on_one_parabola, times_newton
from pymc_dp.steps.prelude.learning import Expansion, Learning
from pymc_dp.steps.prelude.newton import Frame
from pymc_dp.steps.prelude.search import Regression, Search, last_step
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


def test_what_the_belief_has_foreseen_is_not_missed():
    """The log-likelihood is off its expansion at the centre by what the belief's curvature is more, and by a little."""
    centre = ExpansionPoint(np.array([1.0, 0.0]), np.eye(2), 1.0, 1.0)
    draws = [np.array([1.0 + part, part]) for part in np.linspace(0.0, 3.0, 10)]
    foreseen, more = np.diag([-2.0, 0.0]), np.linspace(-0.3, 0.3, 10)
    expansion = Expansion(None, centre, centre, centre.theta, np.eye(2), np.eye(2), foreseen=foreseen)
    told = iter(draw[1] ** 2 + each for draw, each in zip(draws, more, strict=True))
    chain = SimpleNamespace(
        multiplier=lambda _: 1e-9, release=lambda _: SimpleNamespace(value=[next(told)], noise_std=1e-9)
    )
    surrogate = SimpleNamespace(prediction=lambda theta: Prediction(theta, theta, with_curvature=True))
    found = SimpleNamespace(beyond=centre, surrogate=surrogate, kernel=SimpleNamespace(mean=centre.theta))
    learning = SimpleNamespace(_draws_apart=lambda *_: draws, _largest_remainder=lambda *_: 1.0)
    figures = Learning._checked(learning, chain, expansion, found)
    assert figures["surrogate_error"] == pytest.approx(np.std(more, ddof=1))


def sized(sizes, *, released_at=0):
    """Return a search whose units' curvatures have these mean sizes, one after the other, along a unit frame."""
    search, told = object.__new__(Search), iter(sizes)
    search._regression = Regression(np.zeros(2), np.ones(2, dtype=bool), np.zeros(0, dtype=int))
    search._chain, search._scores, search._first_after_curvature = SimpleNamespace(n_units=100), [], released_at
    search._level, search._usual = 0.0, -np.inf
    search._frame = lambda _: Frame(np.eye(2), np.eye(2))
    search._log_size = lambda *_: next(told)
    return search


def of_units(size):
    """Return a curvature of a hundred units whose trace is this for each of them."""
    frame = Frame(np.eye(2), np.eye(2))
    return KnownCurvature(50.0 * size * np.eye(2), 50.0 * size * np.eye(2), 3.0, frame, np.ones(2, dtype=bool))


def test_curvatures_are_as_large_as_those_of_units():
    """One that was released elsewhere, with its noise; and one that noise has made too large, but the first."""
    search = sized(np.log([0.9 * 2.0, 0.9 * 0.5, 0.9 * 0.5]))
    first = search._at_size(np.zeros(2), of_units(2.0))  # norms are .9 times traces
    np.testing.assert_allclose(first.matrix, of_units(2.0).matrix)
    search._scores = [None]
    later = search._at_size(np.ones(2), first)
    np.testing.assert_allclose(later.matrix, of_units(0.5).matrix)
    assert (later.noise_std, search._level) == pytest.approx((3.0 / 4.0, np.log(0.25)))
    search._first_after_curvature = 1
    np.testing.assert_allclose(search._at_size(np.ones(2), of_units(1.3)).matrix, of_units(0.5).matrix)


def test_noise_in_the_first_curvature_is_not_kept():
    """It was four times too large; the next one is released with less noise, and shows that."""
    search = sized(np.log([0.5, 0.5]))
    search._at_size(np.zeros(2), of_units(2.0))
    search._scores, search._first_after_curvature = [None], 1
    np.testing.assert_allclose(search._at_size(np.zeros(2), of_units(0.6)).matrix, of_units(0.6).matrix)
    assert search._usual == pytest.approx(np.log(0.5 / 0.6))


def test_what_noise_hides_changes_nothing():
    """At no point; nor is there a size to go by where it hid those of the curvatures that were just released."""
    search = sized([np.inf, 0.3])
    for scores in ([], [None]):
        search._scores = scores
        np.testing.assert_array_equal(search._at_size(np.zeros(2), of_units(2.0)).matrix, of_units(2.0).matrix)
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
