"""Samplers without a test: their stationary law on a normal is known in closed form for every step size."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model
from fakes import COVARIANCE, MEAN, PRECISION, FlatPrior, NormalCurator, OneCurator
from test_hmc import smallest_p_value

import pymc_dp as dp
from pymc_dp.steps.access import Authorisation
from pymc_dp.steps.stochastic_gradient import StepSizes

SAMPLERS = {
    "sghmc": (dp.DPSGHMC, {"friction": 1.5, "n_leapfrog": 3, "step_size": 0.3}),
    "sgld": (dp.DPSGLD, {"step_size": 0.4, "n_steps": 3}),
    "sgnht": (dp.DPSGNHT, {"diffusion": 1.5, "step_size": 0.1, "n_steps": 3}),
}
EIGENVALUES, EIGENVECTORS = np.linalg.eigh(PRECISION)


def started(step_class, curator=None, *, schedule=None, relation="add-remove", seed=0, **settings):
    """Return a step that samples the normal of the fakes, its noise as it asked for it."""
    sampling = {"sampling_probability": 0.25} if relation == "add-remove" else {"batch_size": 25, "n_units": 100}
    with pm.Model():
        mu = pm.Normal("mu", shape=2)
        pm.Normal("y", mu, 1.0, observed=np.zeros((3, 2)))
        budget = dp.PrivacyBudget(1.0, 1e-6, relation)
        step = step_class(budget=budget, clip_gradient=7.0, **({"clip_diagnostics": None} | sampling | settings))
    if schedule is None:
        schedule = tuple(event.noise_multiplier for event in step.sampler_requests(0, 50))
    curator = curator or NormalCurator(seed, 0.0, 0.0)
    step.authorise(Authorisation(OneCurator(curator), FlatPrior(), {}, 1.0, noise_schedules={"gradient": schedule}))
    step.setup_chain(np.random.default_rng(seed + 1), 0, 10**6)
    return step


def stationary_variance(name, eigenvalue, settings):
    """Return the stationary variance of one coordinate, by iterating the dynamics' matrices: no sampler involved."""
    eta = settings["step_size"]
    if name == "sgld":
        return 1.0 / (eigenvalue * (1.0 - 0.25 * eta * eigenvalue))
    friction, leaps = settings["friction"], settings["n_leapfrog"]
    half = np.array([[1.0, 0.5 * eta], [0.0, 1.0]])
    damping = 0.5 * eta * friction
    kick = np.array([[1.0, 0.0], [-eta * eigenvalue / (1 + damping), (1 - damping) / (1 + damping)]])
    noise = np.diag([0.0, 2.0 * friction * eta / (1 + damping) ** 2])
    covariance = np.diag([1.0 / eigenvalue, 1.0])
    for _ in range(2000):
        covariance = np.diag([covariance[0, 0], 1.0])  # a fresh momentum
        for _ in range(leaps):
            covariance = half @ covariance @ half.T
            covariance = half @ (kick @ covariance @ kick.T + noise) @ half.T
    return covariance[0, 0]


def whitened_ends(name, curator=None, *, replicates=2500, iterations=6, target=None, **changes):
    """Start from the stationary law and return where some iterations lead, whitened by it."""
    step_class, settings = SAMPLERS[name]
    settings = settings | changes
    step = started(step_class, curator, **settings)
    target = target or settings
    deviations = np.sqrt([stationary_variance(name, value, target) for value in EIGENVALUES])
    starts = np.random.default_rng(5).normal(size=(replicates, 2))
    ends = np.empty_like(starts)
    for i, start in enumerate(starts):
        step.start()
        theta = MEAN + EIGENVECTORS @ (deviations * start)
        for _ in range(iterations):
            theta = step.transition(theta).theta
        ends[i] = EIGENVECTORS.T @ (theta - MEAN) / deviations
    others = np.random.default_rng(6).normal(size=(replicates, 2))  # `smallest_p_value` expects four columns
    return np.hstack([ends, others])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sghmc", "sgld"])
def test_the_stationary_law_is_the_one_of_the_dynamics(name):
    # wrong once in 10,000 runs
    assert smallest_p_value(whitened_ends(name)) > 1e-4


class HalvedNoise(NormalCurator):
    """Adds half of the noise that was asked for."""

    def batch_gradient(self, theta, bound, noise_multiplier, batches, *, counted, blocks=None):
        return super().batch_gradient(theta, bound, noise_multiplier / 2, batches, counted=counted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sghmc", "sgld"])
def test_noise_that_is_halved_is_caught(name):
    assert smallest_p_value(whitened_ends(name, HalvedNoise(0, 0.0, 0.0))) < 1e-4


class FrictionOfTheWrongSign(dp.DPSGHMC):
    """The sign that was published."""

    def move(self, theta, step_size):
        self.noise_estimate = -2.0 * self.injected_now
        return super().move(theta, step_size)


def test_friction_of_the_wrong_sign_is_caught(monkeypatch):
    monkeypatch.setitem(SAMPLERS, "sghmc", (FrictionOfTheWrongSign, SAMPLERS["sghmc"][1]))
    assert smallest_p_value(whitened_ends("sghmc", replicates=800)) < 1e-4


@pytest.mark.parametrize(("name", "steps"), [("sghmc", (0.1, 0.05, 0.025)), ("sgld", (0.4, 0.2, 0.1))])
def test_the_bias_of_the_step_shrinks_with_it(name, steps):
    """The excess of the largest variance over the target's: O(step²) for SGHMC, O(step) for SGLD."""
    settings = SAMPLERS[name][1]
    excess = [
        stationary_variance(name, EIGENVALUES[-1], settings | {"step_size": step}) * EIGENVALUES[-1] - 1
        for step in steps
    ]
    order = 2 if name == "sghmc" else 1
    for coarse, fine in itertools.pairwise(excess):
        assert abs(fine) < abs(coarse) / 2 ** (order - 0.25)
    assert abs(excess[0]) < (0.01 if name == "sghmc" else 1.0)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_thermostat_absorbs_the_noise_of_drawing_batches():
    """With noise of unknown size in the gradients SGNHT keeps the variance, where SGHMC inflates it."""
    ratios = {}
    for name in ("sgnht", "sghmc"):
        step_class, settings = SAMPLERS[name]
        changes = {"step_size": 0.1} | ({"thermostat_mass": 3.0} if name == "sgnht" else {})
        step = started(step_class, NormalCurator(1, 8.0, 0.0), **(settings | changes))
        theta, found = MEAN.copy(), []
        for _ in range(40_000):
            theta = step.transition(theta).theta
            found.append(theta)
        ratios[name] = np.trace(np.linalg.solve(COVARIANCE, np.cov(np.array(found[2000:]).T))) / 2
    # 3.2 of 3 + 3.2 parts of the noise come from batches; the estimate's own error is some 2 %
    assert ratios["sgnht"] == pytest.approx(1.0, abs=0.1)
    assert ratios["sghmc"] > 1.5


@pytest.mark.parametrize("relation", ["add-remove", "substitute"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_noise_of_the_release_is_the_noise_of_the_dynamics(name, relation):
    """In the estimate, after scaling up; with counts riding along and without."""
    step_class, settings = SAMPLERS[name]
    wanted = {"sghmc": math.sqrt(2 * 1.5 / 0.3), "sgld": 2 / math.sqrt(0.4), "sgnht": math.sqrt(2 * 1.5 / 0.1)}[name]
    for counts in (None, "private"):
        step = started(step_class, relation=relation, clip_diagnostics=counts, tempering=0.5, **settings)
        (event,) = step.sampler_requests(0, 50)
        factor = step.batches.count_factor if counts else 1.0
        sensitivity = 7.0 * (1.0 if relation == "add-remove" else 2.0) * factor
        assert event.noise_multiplier * sensitivity * 0.5 * 4.0 == pytest.approx(wanted, rel=1e-14)
        assert event.count == 150
        assert step.transition(MEAN).stats["gradient_noise_std"] * factor == pytest.approx(wanted)


@pytest.mark.slow
def test_a_mass_matrix_keeps_the_target():
    """SGLD tops up the noise where the mass is larger; the variance then is that of each metric's own step."""
    step = started(dp.DPSGLD, step_size=0.1, n_steps=20, mass_matrix=np.array([1.0, 4.0]))
    theta, found = MEAN.copy(), []
    for _ in range(6000):
        theta = step.transition(theta).theta
        found.append(theta)
    # 120,000 steps over an autocorrelation of about 100: 1,200 effective draws, 4 % on a variance
    assert np.cov(np.array(found[100:]).T) == pytest.approx(COVARIANCE, rel=0.2)


REFERENCE = json.loads((Path(__file__).parents[1] / "accounting/reference.json").read_text())["decreasing_steps"]
TABLE_BY_DELTA = [(200, float(delta), eps) for delta, eps in REFERENCE["printed_by_delta"]["epsilon_pld"].items()]
TABLE_BY_LENGTH = [(int(n) // 10, 1e-5, eps) for n, eps in REFERENCE["printed_by_iterations"]["epsilon_pld"].items()]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("iterations", "delta", "printed"),
    [
        pytest.param(*row, marks=pytest.mark.nightly if row[0] > 200 else [])
        for row in sorted({*TABLE_BY_DELTA, *TABLE_BY_LENGTH})
    ],
)
def test_the_plan_of_dp_sghmc_costs_what_was_printed(iterations, delta, printed):
    """Lode's thesis, Table 6.3. It does not scale the sum over a batch up: a likelihood to the power q."""
    with gaussian_model(gaussian_data(50)):
        step = dp.DPSGHMC(
            budget=dp.PrivacyBudget(10.0, delta, "add-remove"),
            clip_gradient=0.7,
            friction=1.0,
            step_size=(3.0, 1 / 3),
            n_leapfrog=10,
            sampling_probability=0.01,
            tempering=0.01,
            clip_diagnostics=None,
        )
    plan = step.budget.plan(step, draws=iterations, chains=1)
    assert round(plan.epsilon, 3) == printed
    assert sum(event.count for event in plan.releases) == 10 * iterations


def test_step_sizes_decrease_with_the_iteration_and_tuning_counts():
    assert StepSizes.of((3.0, 0.5)).at(4) == 1.5
    curator = NormalCurator(0, 0.0, 0.0)
    step = started(dp.DPSGHMC, curator, friction=1.0, n_leapfrog=2, step_size=(0.4, 0.5))
    point, sizes = {"mu": MEAN}, []
    for _ in range(3):
        point, (stats,) = step.step(point)
        sizes.append(stats["step_size"])
        assert stats["gradient_noise_std"] == pytest.approx(math.sqrt(2.0 / stats["step_size"]))
    assert sizes == pytest.approx([0.4, 0.4 / math.sqrt(2), 0.4 / math.sqrt(3)])


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_point_outside_the_numbers_ends_the_move_and_asks_nothing(name):
    step_class, settings = SAMPLERS[name]
    curator = NormalCurator(0, 0.0, 0.0)
    step = started(step_class, curator, **settings)
    stats = step.transition(np.array([np.inf, 0.0])).stats
    assert stats["diverging"]
    assert not stats["accepted"]
    assert curator.made == []
    assert step.transition(MEAN).stats["accepted"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_point_beyond_the_bounds_of_a_prior_is_refused(name, monkeypatch):
    """Gradients do not show the bounds: that of a uniform prior is zero everywhere."""
    step_class, settings = SAMPLERS[name]
    step = started(step_class, NormalCurator(0, 0.0, 0.0), **settings)
    assert step.transition(MEAN).stats["accepted"]
    monkeypatch.setattr(type(step.target), "free", lambda self, point: -np.inf)
    moved = step.transition(MEAN)
    assert not moved.stats["accepted"]
    np.testing.assert_array_equal(moved.theta, MEAN)


def test_the_budget_chooses_the_friction_whose_noise_it_can_pay_for():
    with gaussian_model(gaussian_data(400)):
        budget = dp.PrivacyBudget(1.0, 1e-6, "add-remove")
        settings = {"clip_gradient": 4.0, "step_size": (0.01, 0.3), "n_leapfrog": 2, "sampling_probability": 0.1}
        step = dp.DPSGHMC(budget=budget, mass_matrix=[400.0], **settings)
        plan = budget.plan(step, draws=20, tune=5, chains=2)
        assert 0.99 < plan.epsilon <= 1.0
        tree = pm.sample(draws=20, tune=5, chains=2, cores=1, step=step, **QUIET)
    assert tree["privacy"].attrs["epsilon"] == plan.epsilon
    noise, sizes = (tree["sample_stats"][name].values for name in ("gradient_noise_std", "step_size"))
    assert noise**2 * sizes / 2 == pytest.approx(noise[0, 0] ** 2 * sizes[0, 0] / 2)  # one friction throughout


def test_a_run_that_costs_too_much_says_what_would_fit():
    settings = {"clip_gradient": 4.0, "step_size": 0.01, "sampling_probability": 0.1, "mass_matrix": [400.0]}
    with gaussian_model(gaussian_data(400)):
        budget = dp.PrivacyBudget(1.0, 1e-6, "add-remove")
        with pytest.raises(dp.BudgetExceeded, match="What would fit: friction=") as error:
            budget.plan(dp.DPSGHMC(budget=budget, friction=1.0, **settings), draws=20, chains=2)
        friction = float(str(error.value).split("friction=")[1].split(",")[0])
        plan = budget.plan(dp.DPSGHMC(budget=budget, friction=friction * 1.001, **settings), draws=20, chains=2)
        assert 0.99 < plan.epsilon <= 1.0
        with pytest.raises(dp.BudgetExceeded, match="What would fit: step_size="):
            budget.plan(dp.DPSGLD(budget=budget, **settings), draws=2000, chains=2)
        with pytest.raises(dp.BudgetExceeded, match="What would fit: diffusion="):
            budget.plan(dp.DPSGNHT(budget=budget, diffusion=1.0, **settings), draws=20, chains=2)


BAD_SETTINGS = [
    ({"clip_gradient": None, "prelude": None}, "clip_gradient is required"),
    ({"step_size": None}, "step_size is required"),
    ({"step_size": (0.1, -1.0)}, "decay"),
    ({"step_size": (0.1, 0.2, 0.3)}, "pair"),
    ({"friction": -1.0}, "friction"),
    ({"friction": 1.0, "noise_estimate": 1.0}, "noise_estimate"),
    ({"n_leapfrog": 0}, "n_leapfrog"),
    ({"tempering": 1.5}, "tempering"),
    ({"tempering": 0.0}, "tempering"),
    ({"mass_matrix": [1.0, 2.0]}, "mass_matrix"),
    ({"sampling_probability": 2.0}, "sampling_probability"),
    ({"sampling_probability": None}, "sampling_probability"),
    ({"batch_size": 10}, "protected"),
    ({"relation": "substitute"}, "no sampling_probability"),
    ({"relation": "substitute", "sampling_probability": None}, "needs batch_size"),
    ({"relation": "substitute", "sampling_probability": None, "batch_size": 0}, "batch_size"),
    ({"relation": "substitute", "sampling_probability": None, "batch_size": 11, "n_units": 10}, "larger than"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_bad_settings_are_refused_before_anything_happens(settings, message):
    good = {"clip_gradient": 4.0, "step_size": 0.1, "friction": 1.0, "sampling_probability": 0.1}
    settings = good | settings
    budget = dp.PrivacyBudget(1.0, 1e-6, settings.pop("relation", "add-remove"))
    with gaussian_model(gaussian_data()), pytest.raises(dp.InvalidArgument, match=message):
        dp.DPSGHMC(budget=budget, **settings)


def test_a_wrong_number_of_units_is_refused_before_the_charge():
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with gaussian_model(gaussian_data(400)):
        step = dp.DPSGLD(budget=budget, clip_gradient=4.0, step_size=1e-4, batch_size=10, n_units=401)
        with pytest.raises(dp.InvalidArgument, match="400 units"):
            pm.sample(draws=2, chains=1, step=step, **QUIET)
        step = dp.DPSGLD(budget=budget, clip_gradient=4.0, step_size=1e-4, batch_size=10)
    with pytest.raises(dp.InvalidArgument, match="pass n_units="):
        budget.plan(step, draws=2)
    assert budget.history == ()
