"""`pm.sample(budget=...)`: the budget is attached to the steps, a sampler is chosen, and so is the run's length."""

import logging
import threading

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp

SETTINGS = {"clip_gradient": 4.0, "clip_log_ratio": 4.0, "step_size": 0.1}


@pytest.fixture
def model():
    return gaussian_model(gaussian_data(400))


FULL_LENGTH = [pytest.mark.slow, pytest.mark.production]


@pytest.mark.parametrize(
    ("entry", "draws"),
    [
        pytest.param(pm.sample, 1000, id="pm.sample", marks=FULL_LENGTH),
        pytest.param(dp.sample, 1000, id="dp.sample", marks=FULL_LENGTH),
        pytest.param(pm.sample, 10, id="short"),
    ],
)
def test_a_budget_is_all_that_a_run_needs(model, entry, draws, caplog, monkeypatch):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    if draws < 1000:
        monkeypatch.setattr(dp.DPSurrogateHMC, "suitable_draws", lambda step: draws)
    with model, caplog.at_level(logging.INFO, "pymc"):
        tree = entry(budget=budget, cores=1, **QUIET)
    assert tree["privacy"].attrs["sampler"] == "dp_surrogate_hmc"
    assert tree["privacy"].attrs["budget_epsilon_spent"] == pytest.approx(4.0, rel=1e-6)
    assert len(budget.history) == 1
    assert dict(tree["posterior"].sizes) == {"chain": 4, "draw": draws}
    assert "DPSurrogateHMC was chosen: it learns all of its settings" in caplog.text
    assert f"draws={draws} and chains=4 chosen for this private run" in caplog.text


@pytest.mark.parametrize(("seconds", "said"), [(0.0, True), (3600.0, False)])
def test_where_preparing_takes_long_the_run_says_that_it_compiles(model, seconds, said, caplog, monkeypatch):
    monkeypatch.setattr("pymc_dp.run.sampling._NOTICE_AFTER", seconds)
    with model, caplog.at_level(logging.INFO, "pymc"):
        pm.sample(draws=3, chains=1, step=hmc(dp.PrivacyBudget(4.0, 1e-6)), **QUIET | {"quiet": False})
    assert ("Compiling the model: up to a minute the first time" in caplog.text) is said
    assert not any(isinstance(each, threading.Timer) for each in threading.enumerate())


def test_numbers_that_were_passed_are_kept_and_nothing_is_said(model, caplog):
    with model, caplog.at_level(logging.INFO, "pymc"):
        step = hmc(dp.PrivacyBudget(4.0, 1e-6))
        tree = pm.sample(draws=7, chains=2, cores=1, step=step, **QUIET)
    assert dict(tree["posterior"].sizes) == {"chain": 2, "draw": 7}
    assert "chosen" not in caplog.text


def test_draws_and_chains_that_were_left_out_are_chosen_and_said(model, caplog):
    with model, caplog.at_level(logging.INFO, "pymc"):
        tree = pm.sample(cores=1, step=hmc(dp.PrivacyBudget(4.0, 1e-6), n_leapfrog=1), **QUIET)
    assert dict(tree["posterior"].sizes) == {"chain": 4, "draw": 250}
    assert "the budget is spread over" in caplog.text


@pytest.mark.parametrize("entry", [pm.sample, dp.sample], ids=["pm.sample", "dp.sample"])
def test_the_budget_of_the_call_is_attached_to_the_step(model, entry):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with model:
        tree = entry(draws=5, chains=1, cores=1, budget=budget, step=dp.DPHMC(**SETTINGS), **QUIET)
    assert tree["privacy"].attrs["sampler"] == "dp_hmc"
    assert len(budget.history) == 1


def test_the_budget_of_the_call_is_attached_to_several_steps(budget):
    with pm.Model():
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", a + b, 1.0, observed=np.zeros(50))
        steps = [dp.DPHMC(["a"], **SETTINGS), dp.DPPenalty(["b"], clip_log_ratio=2.0, proposal_scale=0.1)]
        tree = pm.sample(draws=3, chains=1, cores=1, budget=budget, step=steps, **QUIET)
    assert tree["privacy"].attrs["sampler"] == "dp_hmc + dp_penalty"
    assert len(budget.history) == 1


def test_the_same_budget_may_be_given_twice_and_another_not(model, budget):
    with model:
        pm.sample(draws=3, chains=1, cores=1, budget=budget, step=hmc(budget), **QUIET)
        with pytest.raises(dp.UnsupportedOption, match="is not the budget of the DP step"):
            pm.sample(draws=3, chains=1, budget=dp.PrivacyBudget(1.0, 1e-6), step=hmc(budget), **QUIET)
    assert len(budget.history) == 1


@pytest.mark.parametrize("entry", [pm.sample, dp.sample], ids=["pm.sample", "dp.sample"])
def test_a_step_without_a_budget_is_refused(model, entry):
    with model, pytest.raises(dp.InvalidArgument, match=r"DPHMC needs a budget: pass budget="):
        entry(draws=3, chains=1, step=dp.DPHMC(**SETTINGS), **QUIET)


def test_settings_of_a_step_without_a_budget_are_judged_with_it(model, budget):
    with model, pytest.raises(dp.InvalidArgument, match="step_size"):
        pm.sample(draws=3, chains=1, budget=budget, step=dp.DPHMC(**(SETTINGS | {"step_size": -1.0})), **QUIET)
    assert budget.history == ()


def test_where_the_number_of_units_is_protected_a_noisy_one_is_released_first(model):
    """Settings go by it, and half the noise is enough for the weaker relation."""
    budgets = [dp.PrivacyBudget(1.0, 1e-6, relation) for relation in ("add-remove", "substitute")]
    with model:
        found = [dp.private_likelihood(budget=budget, progressbar=False) for budget in budgets]
    plans = [{each.kind: each.noise_needed for each in budget.history[0].releases} for budget in budgets]
    assert set(plans[0]) - set(plans[1]) == {"unit_count"}
    assert plans[0]["score"] < 1.02 * plans[1]["score"]
    assert "n_units" not in found[0].facts
    assert found[1].facts["n_units"] > 1


def test_a_plan_takes_a_step_without_a_budget(model, budget):
    with model:
        plan = budget.plan(dp.DPHMC(**SETTINGS), draws=10, chains=2)
        learned = budget.plan(dp.DPHMC())
    assert plan.draws == 10
    assert learned.draws == 500
    assert {each.kind for each in learned.releases} >= {"score", "residual"}
