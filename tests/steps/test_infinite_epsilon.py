"""Budgets of infinite epsilon: every sampler runs without noise, and nothing of it can pass for private."""

import dataclasses
import json
import math

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc
from samplers import SAMPLERS, regression, table

import pymc_dp as dp
from pymc_dp.accounting import NO_NOISE, GaussianReleases
from pymc_dp.budget.ledger import Ledger
from pymc_dp.exceptions import PrivacyError
from pymc_dp.model.view import read
from pymc_dp.release import InsecureNoise, MeteredCurator
from pymc_dp.release.meter import Meter
from pymc_dp.release.noise import grid_for
from pymc_dp.release.queries import GradientSum
from pymc_dp.rows import UnitLikelihood

NOT_PRIVATE = "ignore:NOT PRIVATE"


def unlimited(relation="substitute"):
    return dp.PrivacyBudget(epsilon=math.inf, delta=1e-6, relation=relation)


@pytest.mark.few(9)
@pytest.mark.filterwarnings(NOT_PRIVATE)
@pytest.mark.parametrize(
    ("sampler", "relation"),
    [(sampler, relation) for sampler in SAMPLERS for relation in sampler.relations],
    ids=str,
)
def test_every_sampler_runs_and_says_that_nothing_is_private(sampler, relation):
    budget = unlimited(relation)
    with regression(*table()):
        tree = dp.sample(draws=6, tune=2, chains=2, cores=1, step=sampler(budget), random_seed=1, **QUIET)
    facts = tree["privacy"].attrs
    assert facts["private"] == 0
    assert "epsilon is infinite" in facts["not_private_because"]
    assert facts["noise"].startswith("NONE")
    assert facts["epsilon"] == facts["rho"] == facts["budget_epsilon"] == facts["budget_epsilon_spent"] == math.inf
    report = dp.diagnostics.privacy_report(tree)
    assert "THIS RESULT IS NOT PRIVATE" in report
    assert "Guarantee: NONE" in report
    dp.diagnostics.quality_report(tree)
    assert all(np.isfinite(values).all() for values in tree["posterior"].to_dataset().values())
    (plan,) = budget.history
    assert str(plan).startswith("NOT PRIVATE: epsilon is infinite")
    assert "guarantee of this run: none" in str(plan)
    assert budget.report().startswith("NOT PRIVATE: NO GUARANTEE")
    assert "differentially private" not in budget.report()


@pytest.mark.filterwarnings(NOT_PRIVATE)
def test_releases_are_what_they_are_without_noise():
    y = gaussian_data()
    budget = unlimited()
    with gaussian_model(y):
        step = hmc(budget, clip_gradient=10.0, clip_log_ratio=100.0)
        tree = dp.sample(draws=20, chains=2, step=step, random_seed=3, **QUIET)
    releases = tree["releases"].to_dataset()
    at = releases["gradient_position"].values[:, 0]
    assert releases["gradient"].values[:, 0] == pytest.approx(np.sum(y) - len(y) * at, rel=1e-9)
    old, new = (releases[f"log_ratio_position{which}"].values[:, :1] for which in ("", "_new"))
    expected = np.sum(0.5 * (y - old) ** 2 - 0.5 * (y - new) ** 2, axis=1)
    assert releases["log_ratio"].values == pytest.approx(expected, rel=1e-8, abs=1e-8)
    assert tree["sample_stats"]["noise_std"].max() < 1e-4
    assert tree["sample_stats"]["clip_fraction_gradient"].values == pytest.approx(0.0, abs=1e-9)


@pytest.mark.filterwarnings(NOT_PRIVATE)
def test_noise_that_is_given_is_a_part_of_the_algorithm_and_stays():
    budget = unlimited()
    with gaussian_model(gaussian_data()):
        step = dp.DPPenalty(
            budget=budget, clip_log_ratio=100.0, proposal_scale=0.05, noise_multipliers={"log_ratio": 0.01}
        )
        plan = budget.plan(step, draws=200, chains=1)
        tree = dp.sample(draws=200, chains=2, step=step, **QUIET)
    assert plan.noise_multipliers["log_ratio"] == 0.01
    assert not plan.private
    releases = tree["releases"].to_dataset()
    old, new = (releases[f"log_ratio_position{which}"].values[:, :1] for which in ("", "_new"))
    y = gaussian_data()
    exact = np.sum(0.5 * (y - old) ** 2 - 0.5 * (y - new) ** 2, axis=1)
    standardised = (releases["log_ratio"].values - exact) / releases["log_ratio_noise_std"].values
    assert 0.8 < standardised.std() < 1.2


def test_every_run_warns():
    budget = unlimited()
    with gaussian_model(gaussian_data()):
        with pytest.warns(UserWarning, match="NOT PRIVATE: the budget's epsilon is infinite"):
            dp.sample(draws=4, chains=2, step=hmc(budget), **QUIET)
        with pytest.warns(UserWarning, match="NOT PRIVATE"):
            pm.sample(draws=4, chains=2, step=hmc(budget), **QUIET)
    assert repr(budget).startswith("NOT PRIVATE: PrivacyBudget(epsilon=inf")
    assert budget.epsilon_spent == math.inf


def test_it_is_never_saved_nor_loaded(tmp_path):
    budget = unlimited()
    with pytest.raises(dp.InvalidArgument, match="guarantees nothing and cannot be saved"):
        budget.save(tmp_path / "budget")
    assert not list(tmp_path.iterdir())
    facts = {"epsilon": math.inf, "delta": 1e-6, "relation": "substitute", "data_name": None, "reserved_share": None}
    Ledger.create(tmp_path / "forged", facts, [])
    with pytest.raises(dp.InvalidArgument, match="guarantees nothing"):
        dp.PrivacyBudget.load(tmp_path / "forged")


def test_its_plans_are_nothing_that_another_budget_pays_for():
    with gaussian_model(gaussian_data()):
        plan = unlimited().plan(hmc(unlimited()), draws=4)
        reserved = unlimited().plan(
            dp.DPBarker(budget=unlimited(), proposal_scale=0.1, batch_size=50, tempering=0.1), draws=4
        )
    for budget in (dp.PrivacyBudget(5.0, 1e-6), dp.PrivacyBudget(1e15, 1e-6)):
        for each in (plan, reserved):
            with pytest.raises(dp.BudgetExceeded):
                budget.charge(each)
        assert budget.history == ()
    with pytest.raises(dp.InvalidArgument, match="epsilon must be finite"):
        dataclasses.replace(plan, private=True)


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e15])
def test_no_finite_budget_buys_what_stands_for_no_noise(epsilon):
    budget = dp.PrivacyBudget(epsilon, 0.5)
    with gaussian_model(gaussian_data(3)):
        plan = budget.plan(dp.DPPenalty(budget=budget, clip_log_ratio=4.0, proposal_scale=0.05), draws=1, chains=1)
        step = dp.DPPenalty(
            budget=budget, clip_log_ratio=4.0, proposal_scale=0.05, noise_multipliers={"log_ratio": NO_NOISE}
        )
        with pytest.raises(dp.BudgetExceeded):
            budget.plan(step, draws=1, chains=1)
    assert min(each.noise_needed for each in plan.releases) > 10.0 * NO_NOISE


@pytest.mark.few(4)
@pytest.mark.parametrize("multiplier", [0.0, NO_NOISE, NO_NOISE / 2, -1.0, math.nan])
@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_the_curator_of_a_finite_budget_refuses_a_release_without_noise(multiplier, relation, monkeypatch):
    """Whatever its plan says: the meter refuses, and so does the curator itself where the meter would not."""
    rows = UnitLikelihood(read(gaussian_model(gaussian_data())))
    paid = [GaussianReleases("gradient", 5, 1e-150)]
    meter = Meter(paid)
    with pytest.raises(dp.BudgetExceeded, match="without noise"):
        meter.spend("gradient", multiplier)

    def curator():
        return MeteredCurator(rows, InsecureNoise(0), relation, paid)

    touched = []
    monkeypatch.setattr(rows, "clipped_gradient", lambda *args, **kwargs: touched.append(args))
    with pytest.raises(dp.BudgetExceeded, match="without noise"):
        curator().release(GradientSum(np.zeros(1), 1.0), multiplier)
    assert touched == []


@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_a_curator_whose_meter_lets_zero_noise_pass_refuses_it_all_the_same(relation, monkeypatch):
    rows = UnitLikelihood(read(gaussian_model(gaussian_data())))
    opened = MeteredCurator(rows, InsecureNoise(0), relation, [GaussianReleases("gradient", 5, 1.0)])
    monkeypatch.setattr(opened._meter, "spend", lambda *args, **kwargs: None)
    with pytest.raises((PrivacyError, ValueError, dp.BudgetExceeded)):
        opened.release(GradientSum(np.zeros(1), 1.0), 0.0)


def test_noise_that_is_added_is_added_without_a_limit_too():
    """A curator without a limit leaves out noise only where the plan says that there is none."""
    rows = UnitLikelihood(read(gaussian_model(gaussian_data())))
    values = []
    for seed in (0, 1):
        paid = [GaussianReleases("gradient", 5, 0.5)]
        opened = MeteredCurator(rows, InsecureNoise(seed), "substitute", paid, without_noise=True)
        with pytest.raises(dp.BudgetExceeded, match=r"left of what was paid for.*noise_multiplier=0\.5"):
            opened.release(GradientSum(np.zeros(1), 1.0), NO_NOISE)
        values.append(opened.release(GradientSum(np.zeros(1), 1.0), 0.5).value[0])
    assert values[0] != values[1]
    assert grid_for(0.5, 2.0, 1.0, 400) > 0.0


def test_numbers_of_draws_without_a_limit_are_refused():
    budget = unlimited()
    with gaussian_model(gaussian_data()):
        step = dp.DPPenalty(
            budget=budget, clip_log_ratio=4.0, proposal_scale=0.05, noise_multipliers={"log_ratio": 1.0}
        )
    with pytest.raises(dp.InvalidArgument, match="any number of draws"):
        budget.max_draws(step)


@pytest.mark.filterwarnings(NOT_PRIVATE)
def test_the_figures_of_the_releases_are_told():
    budget = unlimited()
    with gaussian_model(gaussian_data()):
        tree = dp.sample(draws=4, chains=2, step=hmc(budget), **QUIET)
    assert {each["noise_multiplier"] for each in json.loads(tree["privacy"].attrs["releases"])} == {NO_NOISE}
    assert " none" in dp.diagnostics.privacy_report(tree)
    assert (budget.remaining_rho, budget.rho) == (math.inf, math.inf)
