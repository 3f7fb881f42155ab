"""Figures of how good draws of a surrogate are: by hand, on likelihoods that are known."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from hypothesis import given, strategies as st

import pymc_dp as dp
from pymc_dp.release import ExpansionPoint, Prediction
from pymc_dp.reports.quality import ACCEPTABLE_SURROGATE_ERROR
from pymc_dp.steps.prelude import figures, learning
from pymc_dp.steps.prelude.belief import Belief
from pymc_dp.steps.prelude.curvature import KnownCurvature
from pymc_dp.steps.prelude.figures import figures_beside_a_prior, figures_of_check, narrowed_draws, noise_of_members
from pymc_dp.steps.prelude.learning import Learning
from pymc_dp.steps.prelude.location import missed_by_quadratic
from pymc_dp.steps.prelude.newton import Frame


def doubtful_widths(raw, noise, *, hidden=0.0, from_prior=0.0, turned=False, known=(True, True), to_parameters=None):
    """Return how doubtful widths are, of a curvature along two axes, with so much noise of the maximum and prior."""
    known, square = np.array(known), np.zeros((2, 2))
    axes = np.array([[0.6, -0.8], [0.8, 0.6]]) if turned else np.eye(2)
    raw, frame = np.diag(raw), Frame(axes, axes)
    matrix = axes @ np.where(np.outer(known, known), np.maximum(raw, 1e-3 * np.eye(2)), 0.0) @ axes.T
    curvature = KnownCurvature(matrix, raw, noise, frame, known)
    belief = Belief(np.zeros(2), matrix, hidden * np.eye(2), square, known)
    to_parameters = np.eye(2) if to_parameters is None else to_parameters
    return figures.doubtful_widths(belief, curvature, from_prior * np.eye(2), noise, to_parameters)


def doubtful(raw, noise, **settings):
    """Return the factor where it is largest."""
    return doubtful_widths(raw, noise, **settings)[0]


def test_a_width_is_doubtful_where_noise_may_be_much_of_the_curvature():
    strong = [1e4, 1.0]
    assert doubtful(strong, 0.0) == pytest.approx(1.0)
    assert doubtful(strong, 0.75) == pytest.approx(2.0)
    assert doubtful(strong, 0.75, turned=True) == pytest.approx(2.0)
    assert doubtful([1e4, 1.0], 0.999) == pytest.approx(10.0)  # no more than that
    assert doubtful([1e4, -1.0], 0.02) > 1.0
    assert doubtful(strong, 20.0, known=(True, False)) < 1.01
    # Where noise of the maximum is known to be more than all that, or the prior tells more, nothing is doubtful.
    assert doubtful(strong, 0.75, hidden=100.0) == pytest.approx(np.sqrt(104.0 / 101.0))
    assert doubtful([0.0, 1.0], 0.0, from_prior=np.nan) == np.inf  # and nothing is raised
    assert doubtful(strong, 0.75, from_prior=100.0) == pytest.approx(np.sqrt(101.0 / 100.25))


def test_a_width_is_doubtful_of_some_parameters():
    """Of what turned axes have in common with the doubtful one; and where a parameter is a sum of coordinates."""
    strong = [1e4, 1.0]
    np.testing.assert_allclose(doubtful_widths(strong, 0.75)[1], [1.0, 2.0], rtol=1e-3)
    turned = np.sqrt([(4.0 * part + 1e-4) / (part + 1e-4) for part in (0.64, 0.36)])
    np.testing.assert_allclose(doubtful_widths(strong, 0.75, turned=True)[1], turned, rtol=1e-3)
    added = np.array([[1.0, 1.0], [0.0, 1.0]])
    np.testing.assert_allclose(doubtful_widths(strong, 0.75, to_parameters=added)[1], [2.0, 2.0], rtol=1e-3)
    np.testing.assert_array_equal(doubtful_widths([0.0, 1.0], 0.0, from_prior=np.nan)[1], np.inf)
    assert np.isnan(doubtful_widths(strong, 0.75, known=(True, False))[1][1])


def test_a_log_likelihood_is_checked_where_it_could_move_means():
    """A slope g of what is missed moves the maximum by D g, D being the covariance of draws without privacy's noise."""
    generator = np.random.default_rng(0)
    root = np.array([[2.0, 0.0], [0.7, 0.5]])
    information, prior = np.linalg.inv(root @ root.T), np.diag([0.1, 0.4])
    belief = Belief(np.zeros(2), information, np.diag([9.0, 0.1]), np.zeros((2, 2)), np.ones(2, dtype=bool))
    covariance = np.linalg.inv(prior + belief.precision)
    kernel = SimpleNamespace(mean=np.array([1.0, -2.0]), covariance=covariance)
    draws = generator.multivariate_normal(kernel.mean, covariance, size=100_000)
    nearer = np.array(narrowed_draws(belief, kernel, list(draws)))
    slope = np.array([0.3, -0.8])
    moved = np.linalg.inv(prior + information) @ slope
    expected = np.sqrt(moved @ np.linalg.solve(covariance, moved))
    assert np.std(nearer @ slope) == pytest.approx(expected, rel=0.02)
    np.testing.assert_allclose(nearer.mean(axis=0), kernel.mean, atol=0.05)


def test_noise_in_members_is_compared_with_what_their_prior_lets_them_vary():
    """Of five parameters three are members of groups, and the last is a scale that only the prior knows."""
    known, grouped = np.array([True, True, True, True, False]), np.ones((5, 5), dtype=bool)
    grouped[:3, :3] = np.eye(3, dtype=bool)
    noise = np.diag([0.3, 0.3, 0.3, 9.0, 0.0])
    belief = Belief(np.zeros(5), np.eye(5), noise, 0.1 * np.eye(5), known)
    assert noise_of_members(belief, 4.0 * np.eye(5), grouped) == pytest.approx(4.0 * 0.4)
    unequal = Belief(np.zeros(5), np.eye(5), np.diag([0.2, 0.3, 0.7, 9.0, 0.0]), 0.1 * np.eye(5), known)
    told_nothing_of_means = 1e-9 * np.eye(5)
    assert noise_of_members(unequal, told_nothing_of_means, grouped) == pytest.approx(1e-9 * 0.4)
    in_common = Belief(np.zeros(5), np.eye(5), noise + 50.0 * (known[:, None] & known), 0.1 * np.eye(5), known)
    assert noise_of_members(in_common, 4.0 * np.eye(5), grouped) == pytest.approx(4.0 * 0.4)  # of their mean
    assert np.isnan(noise_of_members(belief, 4.0 * np.eye(5), np.ones((5, 5), dtype=bool)))
    # Beside an intercept rows hardly know the mean of members, and what they know of it is not quite the same of each.
    flat = np.array([1.01, 0.98, 1.02, -1.0, 0.0])
    beside = Belief(np.zeros(5), np.eye(5), noise + 1e4 * np.outer(flat, flat), 0.1 * np.eye(5), known)
    assert noise_of_members(beside, 4.0 * np.eye(5), grouped) == pytest.approx(4.0 * 0.4, rel=0.05)
    dummies = Belief(np.zeros(4), np.eye(4), noise[:4, :4], np.zeros((4, 4)), known[:4])
    assert np.isnan(noise_of_members(dummies, np.eye(4), grouped[:4, :4]))


def test_a_prior_moves_means_farther_beside_noise():
    """Of a normal prior and a normal likelihood both means are known exactly."""
    information, noise = np.array([[4.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]), np.diag([2.0, 0.5, 0.0])
    known, prior, wanted = np.array([True, True, False]), np.diag([3.0, 0.1, 1.0]), np.array([-1.0, 2.0, 0.3])
    belief = Belief(np.array([5.0, 5.0, np.nan]), information, noise, 0.1 * np.diag([1.0, 1.0, 0.0]), known)

    def mean_with(precision):
        return np.linalg.solve(prior + precision, prior @ wanted + precision @ np.where(known, belief.mean, 0.0))

    covariance, mean = np.linalg.inv(prior + belief.precision), mean_with(belief.precision)
    expected = (mean - mean_with(information)) / np.sqrt(np.diag(covariance))
    kernel = SimpleNamespace(mean=mean, covariance=covariance)
    found = figures_beside_a_prior(belief, prior + belief.precision, kernel)[0]["prior_pull"]
    np.testing.assert_allclose(found[:2], expected[:2])
    assert np.abs(expected[0]) > 1.0
    assert np.isnan(found[2])
    without = replace(belief, noise=np.zeros((3, 3)), bias=np.zeros((3, 3)))
    found = figures_beside_a_prior(without, prior + without.precision, kernel)[0]["prior_pull"]
    np.testing.assert_allclose(found[:2], 0.0, atol=1e-12)


def test_figures_do_not_depend_on_the_units_of_parameters():
    """Of an intercept beside a raw income, whose standard deviations are 100,000 times apart."""
    information, noise = np.array([[4.0, 1.0], [1.0, 2.0]]), np.diag([2.0, 0.5])
    prior, mean = np.array([[3.0, 0.2], [0.2, 0.1]]), np.array([-1.0, 2.0])
    made = []
    for units in (np.ones(2), np.array([1.0, 1e-5])):
        by = np.outer(units, units)
        belief = Belief(5.0 * units, information / by, noise * by, np.zeros((2, 2)), np.ones(2, dtype=bool))
        covariance = np.linalg.inv(prior / by + belief.precision)
        kernel = SimpleNamespace(mean=mean * units, covariance=covariance)
        (nearer,) = narrowed_draws(belief, kernel, [np.array([2.0, 1.0]) * units])
        by_parameter, means = figures_beside_a_prior(belief, prior / by + belief.precision, kernel)
        made.append(np.concatenate([*by_parameter.values(), list(means.values()), nearer / units]))
    np.testing.assert_allclose(*made, rtol=1e-6)


def test_a_normal_regression_is_checked_where_it_could_move_means(monkeypatch):
    """By draws nearer to their mean, as others are; one whose scale is known far too little is condemned."""
    information = np.diag([1.0, 50.0])
    belief = Belief(np.zeros(2), information, np.zeros((2, 2)), np.zeros((2, 2)), np.ones(2, dtype=bool))
    asked = object.__new__(Learning)
    asked._draws_apart = lambda *_: "draws"
    asked._regression = SimpleNamespace(followed=np.array([1]))
    nearer = [np.array([3.0 * np.cos(k), 0.4 * np.sin(k)]) for k in range(20)]
    monkeypatch.setattr(learning, "narrowed_draws", lambda belief, kernel, given: nearer if given == "draws" else [])
    found = Learning._checked_without_release(asked, SimpleNamespace(belief=belief, kernel=None))
    missed = missed_by_quadratic(belief, 1, np.array(nearer))
    assert found == {
        "surrogate_error": pytest.approx(np.std(missed, ddof=1)),
        "surrogate_error_noise_std": 0.0,
    }
    assert found["surrogate_error"] > ACCEPTABLE_SURROGATE_ERROR[0]


# What the surrogate misses ---------------------------------------------------------------------------------------


@given(st.floats(-0.4, 0.4), st.floats(0.1, 5.0))
def test_what_a_normal_regression_misses_is_known_without_a_release(larger, sigma):
    """Where nothing is noise: its log-likelihood less that at the maximum, and the same curvature's quadratic."""
    generator = np.random.default_rng(1)
    n, x = 60, np.column_stack([np.ones(60), generator.normal(size=60)])
    y = x @ [1.0, -2.0] + sigma * generator.normal(size=n)
    best, residuals, *_ = np.linalg.lstsq(x, y, rcond=None)
    log_sigma = 0.5 * np.log(float(residuals[0]) / n)
    information = np.zeros((3, 3))
    information[:2, :2], information[2, 2] = x.T @ x * np.exp(-2.0 * log_sigma), 2.0 * n
    mean, nothing = np.append(best, log_sigma), np.zeros((3, 3))
    belief = Belief(mean, information, nothing, nothing, np.ones(3, dtype=bool))
    draws = mean + np.array([[0.0, 0.0, larger], [0.3 * sigma, -0.2 * sigma, larger]])

    def log_likelihood(at):
        return float(np.sum(-at[2] - 0.5 * (y - x @ at[:2]) ** 2 * np.exp(-2.0 * at[2])))

    exact = [log_likelihood(at) - log_likelihood(mean) + 0.5 * (at - mean) @ information @ (at - mean) for at in draws]
    np.testing.assert_allclose(missed_by_quadratic(belief, 2, draws), exact, atol=1e-8 * n)


@pytest.mark.parametrize("of_scale", [0.0, 0.01])
def test_noise_of_a_maximum_is_not_taken_for_residuals(of_scale):
    """Draws far from a maximum that noise has moved are not far from the rows: the mean over where it could be."""
    generator, rows = np.random.default_rng(2), 100.0
    information, noise = np.diag([1.0, 4.0, 2.0 * rows]), np.diag([100.0, 50.0, of_scale])
    belief = Belief(np.zeros(3), information, noise, np.zeros((3, 3)), np.ones(3, dtype=bool))
    draws = np.array([[12.0, -5.0, 0.1], [3.0, 2.0, -0.2]])
    exact = []
    for draw in draws:
        pulled = np.linalg.inv(information) @ belief.precision
        covariance = np.linalg.inv(information) - pulled @ np.linalg.inv(information)
        away = generator.multivariate_normal(pulled @ draw, covariance, 1_000_000)
        squared, larger = away[:, :2] ** 2 @ np.diag(information)[:2], away[:, 2]
        log_likelihood = -rows * larger - 0.5 * (rows + squared) * np.exp(-2.0 * larger)
        exact.append(np.mean(log_likelihood + 0.5 * squared + rows * larger**2))
    found = missed_by_quadratic(belief, 2, draws)
    assert found[1] - found[0] == pytest.approx(exact[1] - exact[0], rel=0.02)


@pytest.mark.parametrize("diagnostics", ["private", None])
def test_a_normal_regression_pays_for_no_check(diagnostics):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2000, 2))
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with pm.Model():
        mean = pm.Data("x", x) @ pm.Normal("beta", 0, 5, shape=2)
        pm.Normal("y", mean, pm.HalfNormal("sigma", 5), observed=x @ [1.0, -1.0] + generator.normal(size=2000))
        plan = budget.plan(dp.DPSurrogateHMC(clip_diagnostics=diagnostics), draws=10, chains=2)
        found = dp.private_likelihood(budget=budget, insecure_seed=0, clip_diagnostics=diagnostics, progressbar=False)
    assert not {"surrogate_check", "remainder_sizes"} & {each.kind for each in plan.releases}
    assert plan.epsilon == pytest.approx(4.0, rel=1e-6)
    assert 0.0 < found.figures["surrogate_error"] < ACCEPTABLE_SURROGATE_ERROR[0]
    assert found.figures["surrogate_error_noise_std"] == 0.0


@pytest.mark.few(5)
@pytest.mark.parametrize("noise", [0.05, 0.2, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("true", [0.0, 0.5])
def test_noise_condemns_no_harmless_check(true, noise):
    """Of what misses no more than is harmless noise takes at most one in twenty above that by two of its own."""
    generator = np.random.default_rng(3)
    missed = generator.normal(size=10)
    missed *= true / np.std(missed, ddof=1)
    made = (figures_of_check(missed + noise * generator.normal(size=10), noise) for _ in range(4000))
    errors, noises = np.array([list(each.values()) for each in made]).T
    assert np.mean(errors - 2.0 * noises > ACCEPTABLE_SURROGATE_ERROR[0]) < 0.05


def test_a_check_shows_what_is_clear_of_noise():
    generator = np.random.default_rng(4)
    missed = 3.0 * generator.normal(size=10)
    found = figures_of_check(missed, 0.1)
    assert found["surrogate_error"] == pytest.approx(np.std(missed, ddof=1), rel=0.01)
    assert found["surrogate_error_noise_std"] == pytest.approx(0.1 / 3.0, rel=0.05)


def test_sizes_are_seen_up_to_where_noise_would_hide_units():
    """Noise adds up over the bins above, not over those below; of 1,000 units 600 are in one bin and 400 in another."""
    counts = np.zeros(60)
    counts[20], counts[30] = 600.0, 400.0
    assert learning._last_bin(counts, 0.0, 1000, 0.1) == 30
    assert learning._last_bin(counts, 15.0, 1000, 0.5) == 30  # 4 · 15 · √30 = 329
    assert learning._last_bin(counts, 15.0, 1000, 0.3) is None
    assert learning._last_bin(counts, 30.0, 1000, 1.0) == 20  # 400 is not clear of 657, but all are of 759
    assert learning._last_bin(counts, 50.0, 1000, 1.0) is None
    few = counts + np.eye(60)[50] * 0.5  # of less than a thousandth nothing has to be known
    assert learning._last_bin(few, 0.0, 1000, 0.1) == 30


@pytest.mark.parametrize(("place", "noise", "bound"), [(30, 0.0, 8.0 * 2.0**-9), (30, 100.0, 6.0), (39, 0.0, 6.0)])
def test_a_check_does_not_cut_what_it_cannot_see(place, noise, bound):
    """Hazard H44: where noise or the last bin hides how large remainders are, bounds are those of whole log-ratios."""
    centre = ExpansionPoint(np.zeros(2), np.eye(2), 3.0, 1.0)
    surrogate = SimpleNamespace(prediction=lambda theta: Prediction(theta, theta, with_curvature=True))
    draws = [np.array([1.0, float(k)]) for k in range(10)]
    found = SimpleNamespace(
        belief=None,
        centre=centre,
        precision=np.eye(2),
        back=np.eye(2),
        extra_at=lambda draw: 0.0,
        beyond=centre,
        surrogate=surrogate,
        kernel=SimpleNamespace(mean=np.zeros(2), spread=np.eye(2)),
        expanded=lambda old, new: SimpleNamespace(old=surrogate.prediction(old), new=surrogate.prediction(new)),
    )
    bounds = []

    def release(query):
        if not hasattr(query, "clip_bound"):
            return SimpleNamespace(value=1000.0 * np.eye(query.bins)[place], noise_std=noise)
        bounds.append(query.clip_bound)
        return SimpleNamespace(value=[0.0], noise_std=2.0 * 30.0 * query.clip_bound)

    asked = object.__new__(Learning)
    asked._draws_apart = lambda *_: draws
    chain = SimpleNamespace(multiplier=lambda _: 30.0, release=release, n_units=1000)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(learning, "narrowed_draws", lambda belief, kernel, given: given)
        made = Learning._checked(asked, chain, found)
    # Eight times the upper edge; or twice the clip bound, times the distance of the first draw.
    assert bounds == [pytest.approx(bound, rel=1e-6)] * 10
    # Of ten sums with this noise that are all zero.
    assert made["surrogate_error_noise_std"] == pytest.approx(2.0 * 30.0 * bound * (2.0 / 9.0) ** 0.25, rel=1e-6)
