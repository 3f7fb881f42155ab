"""Samplers that are given a budget and nothing else: what they learn, what they keep, and what they draw."""

import functools
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_model

import pymc_dp as dp
from pymc_dp.release.interface import ExpansionPoint, Release
from pymc_dp.release.preconditioned import GradientSizes, PreconditionedGradient
from pymc_dp.release.queries import LogRatioSum, Residual
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude.belief import KnownScore
from pymc_dp.steps.prelude.search import Search
from pymc_dp.steps.target import FreeTarget

pytestmark = pytest.mark.production

N = 6000
EXACT = (dp.DPHMC, dp.DPMALA, dp.DPPenalty)
BATCHES = (dp.DPMinibatchPenalty, dp.DPBarker, dp.DPSGLD, dp.DPSGHMC, dp.DPSGNHT)
WHOLE = dp.Prelude(control_variates=False)
X = np.random.default_rng(0).normal(size=N)
Y = (np.random.default_rng(1).random(N) < 1.0 / (1.0 + np.exp(0.5 - 30.0 * (X / 30.0)))).astype(np.int64)


def regression():
    """Two coefficients on scales that differ by a thousand."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, [2.0, 2000.0], shape=2)
        pm.Bernoulli("y", logit_p=beta[0] + beta[1] * pm.Data("x", X / 1000.0), observed=Y)
    return model


def exact_posterior():
    """Return mean and covariance by Newton's method: with 6,000 rows it is normal."""
    design, beta = np.column_stack([np.ones(N), X / 1000.0]), np.zeros(2)
    prior = np.diag([1 / 4.0, 1 / 4e6])
    for _ in range(30):
        p = 1.0 / (1.0 + np.exp(-design @ beta))
        precision = (design * (p * (1 - p))[:, None]).T @ design + prior
        beta = beta + np.linalg.solve(precision, design.T @ (Y - p) - prior @ beta)
    return beta, np.linalg.inv(precision)


MEAN, COVARIANCE = exact_posterior()


def run(step_class, draws=None, epsilon=8.0, **settings):
    with regression():
        step = step_class(budget=dp.PrivacyBudget(epsilon, 1e-6), **settings)
        tree = pm.sample(draws=draws, cores=1, step=step, **QUIET)
    return tree, step


def errors_of(draws):
    """Return the error of the mean, in posterior standard deviations, and ratios of standard deviations."""
    std = np.sqrt(np.diag(COVARIANCE))
    flat = draws.values.reshape(-1, 2)
    return (flat.mean(axis=0) - MEAN) / std, flat.std(axis=0) / std


@pytest.mark.parametrize("proposal", ["one-component", "gaussian", "guided-walk", "one-component-guided-walk"])
@pytest.mark.slow
@pytest.mark.nightly
def test_every_proposal_needs_nothing_but_a_budget(proposal):
    tree, _ = run(dp.DPPenalty, proposal=proposal, insecure_seed=1)
    assert dp.diagnostics.quality(tree).verdict == "usable"
    error, ratio = errors_of(tree["posterior"]["beta"])
    assert np.abs(error).max() < 1.0
    assert ratio == pytest.approx(1.0, abs=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step_class",
    [dp.DPHMC, *(pytest.param(each, marks=pytest.mark.nightly) for each in (dp.DPMALA, dp.DPMinibatchPenalty))],
    ids=lambda each: each.name,
)
def test_samplers_with_a_test_are_usable_with_nothing_but_a_budget(step_class):
    tree, step = run(step_class, insecure_seed=1)  # with other noise a few runs in a hundred are called otherwise
    found = dp.diagnostics.quality(tree)
    assert found.verdict == "usable"
    assert found.effective_draws > 200
    assert found.test_noise < 0.6
    error, ratio = errors_of(tree["posterior"]["beta"])
    assert np.abs(error).max() < 1.0
    assert ratio == pytest.approx(1.0, abs=0.3)
    facts = tree["privacy"].attrs
    assert facts["surrogate_found"] == facts["control_variates"] == 1
    assert facts["budget_epsilon_spent"] <= 8.0
    assert step.default_draws == tree["posterior"].sizes["draw"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "step_class",
    [dp.DPBarker, *(pytest.param(each, marks=pytest.mark.nightly) for each in (dp.DPSGLD, dp.DPSGHMC, dp.DPSGNHT))],
    ids=lambda each: each.name,
)
def test_approximate_samplers_find_the_posterior_with_nothing_but_a_budget(step_class):
    tree, _ = run(step_class)
    error, ratio = errors_of(tree["posterior"]["beta"])
    assert np.abs(error).max() < 1.2
    assert ratio == pytest.approx(1.0, abs=0.35)
    assert dp.diagnostics.quality(tree).r_hat < 1.1


def asked_in_chains(monkeypatch, step_class, **settings):
    """Return the queries that are made once the prelude has ended, and the result."""
    asked = []
    real = ChainAccess.release

    def noted(self, query, *arguments):
        asked.append(query)
        return real(self, query, *arguments)

    monkeypatch.setattr(ChainAccess, "release", noted)
    tree, step = run(step_class, draws=5, **settings)
    once = {request.kind for request in step.prelude_requests()}
    assert once
    return [query for query in asked if query.kind not in once], tree


@pytest.mark.slow
@pytest.mark.parametrize("step_class", EXACT, ids=lambda each: each.name)
def test_chains_ask_for_what_the_expansion_misses(monkeypatch, step_class):
    asked, _ = asked_in_chains(monkeypatch, step_class)
    kinds = {type(query) for query in asked if query.kind != "clip_count"}
    assert kinds == {Residual}


@pytest.mark.slow
def test_without_control_variates_whole_gradients_and_log_ratios_are_asked_for(monkeypatch):
    asked, _ = asked_in_chains(monkeypatch, dp.DPHMC, prelude=WHOLE)
    asked = [each for each in asked if each.kind != "clip_count"]
    assert {type(query) for query in asked} == {PreconditionedGradient, LogRatioSum}
    gradients = [each for each in asked if isinstance(each, PreconditionedGradient)]
    assert not any(each.prediction.jacobian.any() or each.prediction.direction.any() for each in gradients)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        {"clip_gradient": 700.0, "clip_log_ratio": 3.5},
        pytest.param({"clip_gradient": 700.0}, marks=pytest.mark.nightly),
        pytest.param({"clip_log_ratio": 3.5}, marks=pytest.mark.nightly),
        {"step_size": 0.3, "step_size_jitter": 0.0},
    ],
)
def test_what_the_user_passes_stays_as_it_is(monkeypatch, bounds):
    asked, tree = asked_in_chains(monkeypatch, dp.DPHMC, **bounds)
    ratios = [each for each in asked if isinstance(each, LogRatioSum)]
    gradients = [each for each in asked if isinstance(each, PreconditionedGradient)]
    if "step_size" in bounds:
        assert not ratios
        assert not gradients
        assert np.unique(tree["sample_stats"]["step_size"]) == pytest.approx([0.3])
        return
    if "clip_gradient" in bounds:
        assert {each.clip_bound for each in gradients} == {700.0}
        assert all(np.array_equal(each.axes, np.eye(2)) for each in gradients)
        assert ratios
    if "clip_log_ratio" in bounds:
        distances = [float(np.linalg.norm(each.theta_new - each.theta)) for each in ratios]
        assert [each.clip_bound for each in ratios] == pytest.approx([3.5 * each for each in distances])


@pytest.mark.slow
@pytest.mark.nightly
def test_a_mass_matrix_and_a_proposal_scale_are_on_the_scale_of_the_parameters():
    precision = np.linalg.inv(COVARIANCE)
    tree, step = run(dp.DPHMC, mass_matrix=precision, insecure_seed=1)
    assert np.array_equal(step.known.axes, np.eye(2))
    assert dp.diagnostics.quality(tree).verdict == "usable"
    tree, step = run(dp.DPPenalty, proposal_scale=2.0 * COVARIANCE)
    assert step.proposal.stretch == 1.0
    assert np.array_equal(step.known.axes, np.eye(2))
    assert np.abs(errors_of(tree["posterior"]["beta"])[0]).max() < 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step_class", "draws"),
    [
        (dp.DPHMC, None),
        *(
            pytest.param(each, None, marks=pytest.mark.nightly)
            for each in (dp.DPMinibatchPenalty, dp.DPMALA, dp.DPPenalty)
        ),
        (dp.DPSGHMC, 100),  # 15 gradients in a draw, which is nearly independent
        pytest.param(dp.DPSGNHT, 100, marks=pytest.mark.nightly),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_tempered_posterior_is_as_wide_as_its_power_says(step_class, draws):
    """With a pilot's short run: standard deviations are 1/√T times as large. The others show the same target."""
    tree, _ = run(step_class, draws, tempering=0.25)
    _, ratio = errors_of(tree["posterior"]["beta"])
    assert ratio == pytest.approx(2.0, rel=0.3)
    assert tree["privacy"].attrs["tempered"] == 1


@pytest.mark.parametrize("step_class", [*EXACT, dp.DPSGLD], ids=lambda each: each.name)
def test_without_a_prelude_settings_are_required(step_class):
    with regression(), pytest.raises(dp.InvalidArgument, match="is required"):
        step_class(budget=dp.PrivacyBudget(1.0, 1e-6), prelude=None)


def test_a_prelude_needs_all_variables():
    with gaussian_model(np.zeros(10)) as model:
        budget = dp.PrivacyBudget(1.0, 1e-6)
        pm.Normal("other")
        with pytest.raises(dp.InvalidArgument, match="clip_gradient is required"):
            dp.DPHMC([model["mu"]], budget=budget)
        with pytest.raises(dp.InvalidArgument, match="leave out vars"):
            dp.DPHMC([model["mu"]], budget=budget, prelude=dp.Prelude())
        with pytest.raises(dp.InvalidArgument, match=r"Prelude\(...\), None"):
            dp.DPHMC(budget=dp.PrivacyBudget(1.0, 1e-6), prelude="none")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"newton_steps": 0}, "newton_steps"),
        ({"shares": 0.5}, "shares must be"),
        ({"clip_gradient": -1.0}, "clip_gradient"),
        ({"noise_aware": 1}, "noise_aware"),
        ({"control_variates": 1}, "control_variates"),
    ],
)
def test_bad_options_of_a_prelude_are_refused(settings, message):
    with pytest.raises(dp.InvalidArgument, match=message):
        dp.Prelude(**settings)


def test_the_pilot_asks_nothing_and_freezes_the_step(monkeypatch):
    asked = []
    real = FreeTarget.log_ratio

    def noted(self, *arguments):
        asked.append(1)
        return real(self, *arguments)

    monkeypatch.setattr(FreeTarget, "log_ratio", noted)
    tree, step = run(dp.DPMALA, draws=20)
    assert len(asked) > 100
    assert np.unique(tree["sample_stats"]["step_size"]).size == 1
    assert step._pilot is None


@pytest.mark.parametrize(("mean", "std"), [(5.0, 1.0), (0.0, 2.0), (-3.0, 1.5), (-50.0, 1.0)])
@pytest.mark.parametrize("prior", [0.5, 4.0, 1e3])
def test_a_released_loss_is_not_negative_whatever_its_noise(mean, std, prior):
    """The root mean square of what it can be by a histogram, too, by quadrature."""
    values = np.linspace(0.0, max(mean, 0.0) + 12.0 * std, 200_001)
    logs = -0.5 * ((values - mean) / std) ** 2 - 0.5 * (values / prior) ** 2
    weights = np.exp(logs - logs.max())
    expected = np.sqrt(np.sum(weights * values**2) / np.sum(weights))
    loss = Release("clipping_loss", np.array([mean]), std, (np.zeros(1),))
    tail = SimpleNamespace(lost_beyond=lambda bound: 1.0)
    search = SimpleNamespace(_tail=tail, _chain=SimpleNamespace(n_units=1000))
    found = Search._lost_length(search, 3.0, loss, 3.0 * prior)
    assert found == pytest.approx(3.0 * expected, rel=1e-2)


class Lost:
    """A tail that loses `at_one` over a bound, and no more than a bound of a unit `capped`; it notes its outliers."""

    def __init__(self, at_one, best):
        self.at_one, self.best, self.added = at_one, best, []

    def lost_length(self, bound):
        return (self.at_one + sum(self.added)) / bound

    def capped_loss(self, bound):
        return self.at_one / bound**2

    def lost_beyond(self, bound):
        return 1.0

    def add_outliers(self, bound, capped_loss):
        self.added.append(capped_loss * bound**2)

    def best_bound(self, bias_of_length, noise_of_bound):
        return self.best, np.nan


def searching(tail, *, outliers=True):
    """Return what a search knows of its tail: 900 units, and noise of a score of half a standard deviation a bound."""
    chain = SimpleNamespace(n_units=900, multiplier=lambda _: 7.5)
    regression = SimpleNamespace(expects_outliers=outliers)
    search = SimpleNamespace(_tail=tail, _regression=regression, _bias_of_length=0.5, _chain=chain)
    search._lost_length = functools.partial(Search._lost_length, search)
    search._directions = lambda frame: 4
    search._scores = [KnownScore(np.zeros(1), np.zeros(1), np.eye(1), 3.0)]
    return search


@pytest.mark.parametrize("outliers", [False, True])
def test_more_loss_than_a_histogram_shows_is_that_of_outliers(outliers):
    """By 20 standard deviations of its noise: all of it; the biases of earlier scores grow in proportion."""
    search = searching(Lost(at_one=16.0, best=2.0), outliers=outliers)
    bias = Search._bias_by_loss(search, 2.0, 4.0, Release("clipping_loss", np.array([44.0]), 2.0, (np.zeros(1),)))
    if not outliers:  # what is lost is added again, and the model says how much that is
        assert search._tail.added == []
        assert bias <= 4.0
        assert search._scores[0].bias == 3.0
    else:
        assert search._tail.added == [pytest.approx(4.0 * 40.0, rel=1e-3)]
        assert bias == pytest.approx(0.5 * (16.0 + 160.0) / 2.0, rel=1e-3)
        assert search._scores[0].bias == pytest.approx(3.0 * bias / 4.0)


@pytest.mark.parametrize(("best", "bound"), [(1.5, 1.0), (1.05, 1.0), (0.5, 1.0), (50.0, 3.0)])
def test_a_bound_has_room_for_outliers_until_its_noise_is_too_large(best, bound):
    """With 900 units noise of a bound of 1 is half a standard deviation: at 3 it is one and a half."""
    search, point = searching(Lost(8.0, best)), ExpansionPoint(np.zeros(1), np.eye(1), 1.0)
    bound = best if 1.1 < best < 3.0 else bound
    found, bias, left = Search._with_room_for_outliers(search, point, None, 6.0)
    assert found.clip_gradient == pytest.approx(bound)
    assert (bias, left) == pytest.approx((6.0 / bound, 1.0 / bound))


@pytest.mark.slow
def test_the_same_learned_run_is_made_in_one_process_and_in_two():
    def draws(cores):
        with regression():
            step = dp.DPHMC(budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=3)
            tree = pm.sample(draws=8, chains=2, cores=cores, random_seed=1, step=step, **QUIET)
        return tree["posterior"]["beta"].values

    assert np.array_equal(draws(1), draws(2))


def test_sizes_of_gradients_are_released_and_bounds_follow_for_samplers_without_a_test(monkeypatch):
    asked = []
    real = ChainAccess.release

    def noted(self, query, *arguments):
        asked.append(query)
        return real(self, query, *arguments)

    monkeypatch.setattr(ChainAccess, "release", noted)
    tree, step = run(dp.DPSGHMC, draws=5, insecure_seed=1)
    assert sum(isinstance(query, GradientSizes) for query in asked) == 1
    gradients = [query for query in asked if isinstance(query, PreconditionedGradient)]
    bounds = [step.known.bound_of_gradient(query.prediction.theta) for query in gradients]
    assert [query.clip_bound for query in gradients] == pytest.approx(bounds)
    assert min(bounds) >= step.known.clip_gradient
    assert all(query.batches.batch_size == 120 for query in gradients)
    assert float(tree["sample_stats"]["gradient_noise_std"].max()) < 3.0
    # They stay in range wherever dynamics lead.
    for distance in (0.0, 1e3, 1e80, 1e200):
        bound = step.known.bound_of_gradient(step.known.theta(np.full(2, distance)))
        assert step.known.clip_gradient <= bound <= 1e100
