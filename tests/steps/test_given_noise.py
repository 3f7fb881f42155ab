"""Noise that is given, as in the papers: what it costs, how many draws it affords, and that it is what is added."""

import json
import math

import numpy as np
import pytest
from conftest import QUIET, gaussian_data, gaussian_model
from scipy.special import erfc

import pymc_dp as dp
from pymc_dp.accounting import EPSILON_SLACK

HMC = {"clip_gradient": 4.0, "clip_log_ratio": 4.0, "step_size": 0.05}
PENALTY = {"clip_log_ratio": 4.0, "proposal_scale": 0.05}


@pytest.fixture(scope="module")
def model():
    return gaussian_model(gaussian_data())


def curve(rho, epsilon):
    """The papers' bound, written out: delta of Gaussian releases of total rho."""
    a, b = (epsilon - rho) / (2 * math.sqrt(rho)), (epsilon + rho) / (2 * math.sqrt(rho))
    return 0.5 * (erfc(a) - math.exp(epsilon) * erfc(b))


@pytest.mark.parametrize("tau", [8.0, 37.0, 100.0])
@pytest.mark.parametrize("chains", [1, 4])
def test_the_largest_number_of_draws_is_that_of_the_curve(model, tau, chains):
    """Algorithm 2 of the thesis: the last k whose delta is at most the budget's, found here by going through all k."""
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with model:
        step = dp.DPPenalty(budget=budget, noise_multipliers={"log_ratio": tau}, clip_diagnostics=None, **PENALTY)
    k = budget.max_draws(step, chains=chains)
    epsilon, delta = 1.0 - EPSILON_SLACK, 1e-6 * (1.0 - EPSILON_SLACK)
    costs = [n * chains / (2 * tau**2) for n in range(1, 2000)]
    assert k == sum(curve(rho, epsilon) <= delta for rho in costs)
    if k:
        assert budget.plan(step, draws=k, chains=chains).rho == pytest.approx(k * chains / (2 * tau**2), rel=1e-12)
    with pytest.raises(dp.BudgetExceeded, match=r"cost rho .* noise multipliers .* times as large"):
        budget.plan(step, draws=k + 1, chains=chains)


def test_no_draw_fits_a_budget_that_affords_none(model):
    """Where the published algorithm divides by zero."""
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with model:
        step = dp.DPPenalty(budget=budget, noise_multipliers={"log_ratio": 0.5}, **PENALTY)
    assert budget.max_draws(step) == 0


@pytest.mark.parametrize("counted", ["private", None])
@pytest.mark.parametrize("reuse", [True, False])
def test_hmc_costs_what_the_paper_says(model, counted, reuse):
    """rho = k / (2 tau_l²) + gradients / (2 tau_g²), and a hundredth of the whole for counts of clipped units."""
    budget = dp.PrivacyBudget(4.0, 1e-6)
    noise = {"gradient": 30.0, "log_ratio": 12.0}
    with model:
        step = dp.DPHMC(
            budget=budget,
            n_leapfrog=3,
            noise_multipliers=noise,
            clip_diagnostics=counted,
            reuse_gradient=reuse,
            **HMC,
        )
    k, tune, chains = budget.max_draws(step, tune=2, chains=2), 2, 2

    def rho(draws):
        gradients = 3 * (tune + draws) + (1 if reuse else tune + draws)
        of_moves = chains * (draws / (2 * 12.0**2) + gradients / (2 * 30.0**2))
        return of_moves / 0.99 if counted else of_moves

    plan = budget.plan(step, draws=k, tune=tune, chains=chains)
    assert plan.rho == pytest.approx(rho(k), rel=1e-9)
    assert rho(k) <= budget.remaining_rho < rho(k + 1)
    assert {kind: plan.noise_multipliers[kind] for kind in noise} == noise


def test_given_noise_that_costs_less_than_the_budget_leaves_the_rest(model):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with model:
        step = dp.DPPenalty(budget=budget, noise_multipliers={"log_ratio": 50.0}, clip_diagnostics=None, **PENALTY)
    budget.charge(budget.plan(step, draws=10, chains=2))
    assert budget.rho_spent == pytest.approx(20 / (2 * 50.0**2))


def test_the_budget_chooses_the_noise_that_is_not_given_with_all_that_is_left(model):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with model:
        step = dp.DPMALA(budget=budget, noise_multipliers={"gradient": 30.0}, clip_diagnostics=None, **HMC)
    plan = budget.plan(step, draws=10, chains=2)
    assert plan.noise_multipliers["gradient"] == 30.0
    assert plan.rho == pytest.approx(budget.remaining_rho, rel=1e-9)
    left = budget.remaining_rho - 2 * 11 / (2 * 30.0**2)
    assert plan.noise_multipliers["log_ratio"] == pytest.approx(math.sqrt(20 / (2 * left)))
    with pytest.raises(dp.InvalidArgument, match=r"chooses the noise of dp_mala's releases \(log_ratio\)"):
        budget.max_draws(step)


def test_given_noise_is_what_is_added_and_tells_its_cost(model):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with model:
        step = dp.DPHMC(budget=budget, n_leapfrog=2, noise_multipliers={"gradient": 30.0, "log_ratio": 12.0}, **HMC)
        tree = dp.sample(draws=8, chains=2, tune=1, step=step, random_seed=1, **QUIET)
    releases = tree["releases"].to_dataset()
    assert releases["gradient_noise_std"].values == pytest.approx(30.0 * 2 * 4.0)
    moves = np.linalg.norm(releases["log_ratio_position_new"].values - releases["log_ratio_position"].values, axis=1)
    assert releases["log_ratio_noise_std"].values == pytest.approx(12.0 * 2 * 4.0 * moves)
    multipliers = {each["kind"]: each["noise_multiplier"] for each in json.loads(tree["privacy"].attrs["releases"])}
    assert (multipliers["gradient"], multipliers["log_ratio"]) == (30.0, 12.0)
    assert tree["privacy"].attrs["rho"] == pytest.approx(budget.rho_spent)
    assert len(releases["log_ratio"]) == 16


def test_a_test_on_batches_takes_given_noise(model):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with model:
        step = dp.DPMinibatchPenalty(
            budget=budget, noise_multipliers={"log_ratio": 3.0}, batch_size=40, n_units=400, tempering=0.1, **PENALTY
        )
    k = budget.max_draws(step, chains=1)
    plan = budget.plan(step, draws=k, chains=1)
    assert k > 0
    assert plan.noise_multipliers == {"log_ratio": 3.0}
    assert plan.epsilon <= 4.0
    with pytest.raises(dp.BudgetExceeded):
        budget.plan(step, draws=k + 1, chains=1)


def test_draws_of_dynamics_whose_noise_is_given_are_counted(model):
    budget = dp.PrivacyBudget(2.0, 1e-6)
    settings = {"clip_gradient": 4.0, "step_size": 1e-6, "batch_size": 20, "n_units": 400}
    with model:
        step = dp.DPSGLD(budget=budget, **settings)
        chosen = dp.DPSGHMC(budget=budget, **settings)
    k = budget.max_draws(step, chains=1)
    assert k > 1
    assert budget.plan(step, draws=k, chains=1).epsilon <= 2.0
    with pytest.raises(dp.BudgetExceeded):
        budget.plan(step, draws=k + 1, chains=1)
    with pytest.raises(dp.InvalidArgument, match="chooses the noise of dp_sghmc's"):
        budget.max_draws(chosen)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (2.0, "must be a dict"),
        ({}, "must be a dict"),
        ({"gradients": 2.0}, "names 'gradients'; the kinds here: 'gradient' and 'log_ratio'"),
        ({3: 2.0}, "names a int"),
        ({"gradient": 0.0}, r"noise_multipliers\['gradient'\] must be above zero"),
        ({"log_ratio": math.inf}, "must be finite"),
        ({"log_ratio": "much"}, "must be a real number"),
    ],
)
def test_bad_noise_is_refused(model, budget, given, message):
    with model, pytest.raises(dp.InvalidArgument, match=message):
        dp.DPHMC(budget=budget, noise_multipliers=given, **HMC)


def test_a_kind_that_a_sampler_does_not_release_is_refused(model, budget):
    with model, pytest.raises(dp.InvalidArgument, match="the kinds here: 'log_ratio'"):
        dp.DPPenalty(budget=budget, noise_multipliers={"gradient": 2.0}, **PENALTY)
