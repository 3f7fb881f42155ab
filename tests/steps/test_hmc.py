import copy
import pickle

import numpy as np
import pymc as pm
import pytest
from conftest import gaussian_data, gaussian_model, hmc
from fakes import COVARIANCE, MEAN, PRECISION, NormalCurator, started
from scipy import stats
from scipy.stats import qmc

import pymc_dp as dp
from pymc_dp.release import Release

SETTINGS = {"clip_gradient": 1.0, "clip_log_ratio": 1.0, "step_size": 0.6, "n_leapfrog": 3}


def final_states(step_class, replicates, steps, *, gradient_noise=1.5, ratio_noise=1.0, seed=0, **settings):
    """Start from exact draws of the target and return where `steps` iterations lead, one row a replicate."""
    curator = NormalCurator(seed, gradient_noise, ratio_noise)
    step = started(step_class, curator, seed=seed + 1, **(SETTINGS | settings))
    starts = np.random.default_rng(seed + 2).multivariate_normal(MEAN, COVARIANCE, size=replicates)
    ends, noise = np.empty_like(starts), np.empty_like(starts)
    accepted = 0
    for i, start in enumerate(starts):
        theta = start
        step.start()
        for _ in range(steps):
            transition = step.transition(theta)
            theta = transition.theta
            accepted += transition.stats["accepted"]
        ends[i] = theta
        # With reuse the state is the position and the gradient kept there; its noise has a known law, too.
        kept = step._gradient if step.reuse_gradient else None
        gradient = step.target.gradient(theta) if kept is None else kept
        noise[i] = (gradient + PRECISION @ (theta - MEAN)) / gradient_noise
    whitened = np.linalg.solve(np.linalg.cholesky(COVARIANCE), (ends - MEAN).T).T
    return np.hstack([whitened, noise]), accepted / (replicates * steps)


def smallest_p_value(states):
    """Test that independent states are standard normal: means, squares and products (Bonferroni)."""
    n, size = states.shape
    p_values = [2 * stats.norm.sf(abs(column.mean()) * np.sqrt(n)) for column in states.T]
    for columns in ([0], [1], [0, 1], [2, 3]):
        squares, freedom = np.sum(states[:, columns] ** 2), n * len(columns)
        p_values.append(2 * min(stats.chi2.sf(squares, freedom), stats.chi2.cdf(squares, freedom)))
    products = [np.sum(states[:, i] * states[:, j]) for i in range(size) for j in range(i)]
    p_values += [2 * stats.norm.sf(abs(product) / np.sqrt(n)) for product in products]
    return len(p_values) * min(p_values)


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [True, False])
def test_the_posterior_is_stationary_under_noise(reuse):
    # wrong once in 10,000 runs
    ends, acceptance = final_states(dp.DPHMC, 2500, 6, reuse_gradient=reuse)
    assert smallest_p_value(ends) > 1e-4
    assert 0.2 < acceptance < 0.8  # the noise matters


class NoPenalty(dp.DPHMC):
    """Accepts as if the noisy log-ratio were exact."""

    @property
    def chain(self):
        return BelievesInExactRatios(super().chain)


class BelievesInExactRatios:
    """Takes back the penalty that the test subtracts."""

    def __init__(self, chain):
        self._chain = chain

    def __getattr__(self, name):
        return getattr(self._chain, name)

    def log_ratio(self, theta, theta_new, bound):
        release = self._chain.log_ratio(theta, theta_new, bound)
        return Release(release.kind, release.value + 0.5 * release.noise_std**2, release.noise_std, release.where)


class RedrawOnRejection(dp.DPHMC):
    """Asks for a fresh gradient after a rejection only: the mistake that reuse invites."""

    def transition(self, theta):
        transition = super().transition(theta)
        if not transition.stats["accepted"]:
            self._gradient = None
        return transition


class KeepLastGradient(dp.DPHMC):
    """Keeps the gradient of the proposal even when it was rejected."""

    def _leapfrog(self, *arguments):
        theta, momentum, gradient, count = super()._leapfrog(*arguments)
        self._last = gradient
        return theta, momentum, gradient, count

    def transition(self, theta):
        transition = super().transition(theta)
        self._gradient = self._last
        return transition


class WrongSign(dp.DPHMC):
    """Adds the change of kinetic energy instead of subtracting it."""

    def start(self):
        super().start()
        energy = type(self._kinetic_energy).energy
        self._kinetic_energy.energy = lambda p: -energy(self._kinetic_energy, p)


#: Noisy gradients that matter to acceptance: where reuse can go wrong, it does so visibly.
NOISY = {"gradient_noise": 4.0, "ratio_noise": 0.5, "n_leapfrog": 1}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("mutant", [NoPenalty, KeepLastGradient, RedrawOnRejection, WrongSign])
def test_the_stationarity_test_catches_mistakes(mutant):
    settings = {"ratio_noise": 1.0} if mutant is NoPenalty else NOISY
    ends, _ = final_states(mutant, 10_000, 6, **settings)
    assert smallest_p_value(ends) < 1e-4


@pytest.mark.nightly
@pytest.mark.parametrize("reuse", [True, False])
def test_the_posterior_is_stationary_under_noise_with_more_power(reuse):
    ends, _ = final_states(dp.DPHMC, 20_000, 6, reuse_gradient=reuse, seed=10, **NOISY)
    assert smallest_p_value(ends) > 1e-4


@pytest.mark.parametrize(("reuse", "expected"), [(True, 10 * 3 + 1), (False, 10 * 4)])
def test_releases_are_as_planned(reuse, expected):
    curator = NormalCurator(0, 1.0, 1.0)
    step = started(dp.DPHMC, curator, draws=7, tune=3, reuse_gradient=reuse, **SETTINGS)
    point = {"mu": MEAN}
    total = 0
    for _ in range(10):
        point, (stats_of_draw,) = step.step(point)
        total += stats_of_draw["n_gradients"]
    kinds = [release.kind for release in curator.made]
    assert kinds.count("gradient") == expected == total
    assert kinds.count("log_ratio") == 7  # tuning moves without a test
    requests = {request.kind: request.count for request in step.release_requests(3, 7)}
    assert requests == {"gradient": expected, "log_ratio": 7}


def test_the_kept_gradient_stays_with_its_position():
    curator = NormalCurator(0, 1.0, 5.0)
    step = started(dp.DPHMC, curator, **SETTINGS)
    theta = MEAN.copy()
    outcomes = set()
    for _ in range(40):
        transition = step.transition(theta)
        outcomes.add(transition.stats["accepted"])
        theta = transition.theta
        released = [made for made in curator.made if np.array_equal(made.value, step._gradient)]  # the prior is flat
        assert [np.array_equal(made.where[0], theta) for made in released] == [True]
    assert outcomes == {True, False}


def test_step_sizes_are_jittered_evenly_within_their_range():
    step = started(dp.DPHMC, NormalCurator(0, 1.0, 1.0), **SETTINGS, step_size_jitter=0.5)
    sizes = np.array([step._jittered_step_size() for _ in range(512)])
    assert sizes.min() >= 0.3
    assert sizes.max() <= 0.9
    assert sizes.mean() == pytest.approx(0.6, abs=0.01)


def test_steps_of_the_published_experiments_are_within_reach():
    """They multiply the largest step by points of a scrambled Halton sequence in [0, 1)."""
    largest = 0.8
    settings = SETTINGS | {"step_size": largest / 2, "step_size_jitter": 1.0}
    step = started(dp.DPHMC, NormalCurator(0, 1.0, 1.0), seed=4, **settings)
    step.rng = np.random.default_rng(9)
    step.start()
    halton = qmc.Halton(d=1, scramble=True, rng=np.random.default_rng(9)).random(512)[:, 0]
    sizes = [step._jittered_step_size() for _ in range(512)]
    assert sizes == pytest.approx(largest * halton, abs=1e-12)
    assert 0.0 <= min(sizes) < 0.01 * largest
    assert 0.99 * largest < max(sizes) < largest


@pytest.mark.slow
def test_the_posterior_is_stationary_with_steps_between_0_and_twice_the_mean():
    states, _ = final_states(dp.DPHMC, 2500, 8, step_size_jitter=1.0, n_leapfrog=2)
    assert smallest_p_value(states) > 1e-4


def test_a_trajectory_that_leaves_the_numbers_is_rejected_without_a_release():
    curator = NormalCurator(0, 1.0, 1.0)
    step = started(dp.DPHMC, curator, **(SETTINGS | {"step_size": 1e200}))
    theta = MEAN.copy()
    transition = step.transition(theta)
    assert np.all(transition.theta == theta)
    assert transition.stats["diverging"]
    assert not transition.stats["accepted"]
    assert [release.kind for release in curator.made].count("log_ratio") == 0
    assert all(np.isfinite(release.where[0]).all() for release in curator.made)


@pytest.mark.parametrize("matrix", [np.array([4.0, 1.0]), np.array([[4.0, 1.5], [1.5, 2.0]])])
def test_the_mass_matrix_is_the_covariance_of_the_momentum(matrix):
    step = started(dp.DPHMC, NormalCurator(0, 1.0, 1.0), **SETTINGS, mass_matrix=matrix)
    momenta = np.array([step._kinetic_energy.random() for _ in range(20_000)])
    expected = np.diag(matrix) if matrix.ndim == 1 else matrix
    assert np.cov(momenta.T) == pytest.approx(expected, abs=0.15)


BAD_SETTINGS = [
    ({"budget": 4.0}, "needs a budget"),
    ({"clip_gradient": None}, "clip_gradient is required"),
    ({"clip_gradient": 0.0}, "clip_gradient"),
    ({"clip_gradient": np.nan}, "clip_gradient"),
    ({"clip_gradient": 1e-200}, "clip_gradient must be at least"),
    ({"clip_log_ratio": np.inf}, "clip_log_ratio"),
    ({"clip_log_ratio": None}, "clip_log_ratio is required"),
    ({"step_size": -0.1}, "step_size"),
    ({"step_size": None}, "step_size is required"),
    ({"step_size_jitter": 1.1}, "step_size_jitter"),
    ({"n_leapfrog": 0}, "n_leapfrog"),
    ({"n_leapfrog": 2.0}, "n_leapfrog"),
    ({"gradient_share": 1.0}, "gradient_share"),
    ({"budget_share": 0.0}, "budget_share"),
    ({"budget_share": 1.5}, "budget_share"),
    ({"mass_matrix": np.ones(3)}, "mass_matrix"),
    ({"mass_matrix": np.array([-1.0])}, "positive definite"),
    ({"mass_matrix": np.array([[np.nan]])}, "positive definite"),
    ({"clip_diagnostics": "all"}, "clip_diagnostics"),
    ({"insecure_seed": -1}, "insecure_seed"),
    ({"unit": 3}, "unit"),
    ({"step_scale": 3}, "step_scale"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_bad_settings_are_refused_before_anything_happens(settings, message, budget):
    with gaussian_model(gaussian_data()), pytest.raises(dp.InvalidArgument, match=message):
        hmc(**({"budget": budget, "prelude": None} | settings))
    assert budget.history == ()


def test_a_step_is_picklable_without_data_budget_or_model(budget):
    y = gaussian_data()
    with gaussian_model(y):
        step = hmc(budget, unit_index=np.arange(400))
    raw = pickle.dumps(step)
    assert y[:2].tobytes() not in raw
    assert len(raw) < 20_000
    assert pickle.loads(raw).budget is None
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(step)


def test_a_step_without_a_plan_does_not_run(budget):
    with gaussian_model(gaussian_data()):
        step = hmc(budget)
    with pytest.raises(dp.NoPlan, match=r"pm\.sample"):
        step.setup_chain(np.random.default_rng(0), 0, 10)
    with pytest.raises(dp.NoPlan):
        step.step({"mu": 0.0})


def test_discrete_or_foreign_variables_are_no_variables_of_the_step(budget):
    with pm.Model():
        foreign = pm.Normal("foreign")
    with gaussian_model(gaussian_data()):
        with pytest.raises(dp.InvalidArgument, match="no free variable"):
            hmc(budget, vars=[foreign])
