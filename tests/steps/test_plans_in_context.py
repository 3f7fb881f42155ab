"""Plans made inside the model's context: steps find the number of units by themselves, where it is public."""

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp

SETTINGS = {
    dp.DPMinibatchPenalty: {"clip_log_ratio": 1.0, "proposal_scale": 0.1, "batch_size": 20},
    dp.DPBarker: {"proposal_scale": 0.1, "batch_size": 20, "tempering": 0.1},
    dp.DPSGLD: {"clip_gradient": 4.0, "step_size": 1e-6, "batch_size": 20},
    dp.DPSGHMC: {"clip_gradient": 4.0, "step_size": 1e-6, "batch_size": 20},
    dp.DPSGNHT: {"clip_gradient": 4.0, "step_size": 1e-6, "batch_size": 20},
}
ALL = pytest.mark.parametrize("step_class", SETTINGS, ids=lambda step_class: step_class.name)


@pytest.fixture(scope="module")
def model():
    return gaussian_model(gaussian_data(300))


@ALL
def test_a_plan_in_the_context_is_that_with_the_number_of_units(step_class, model):
    budget = dp.PrivacyBudget(40.0, 1e-6)
    with model:
        step = step_class(budget=budget, **SETTINGS[step_class])
        told = step_class(budget=budget, n_units=300, **SETTINGS[step_class])
        found = budget.plan(step, draws=3, chains=2)
    assert found == budget.plan(told, draws=3, chains=2)
    assert {each.n_units for each in found.releases if each.sampling is not None} == {300}
    assert budget.history == ()


@ALL
def test_outside_of_the_context_it_has_to_be_passed(step_class, model):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    step = step_class(budget=budget, model=model, **SETTINGS[step_class])
    with pytest.raises(dp.InvalidArgument, match="inside `with model:`, or pass n_units="):
        budget.plan(step, draws=3)
    other = gaussian_model(gaussian_data(77))
    with other, pytest.raises(dp.InvalidArgument, match="inside `with model:`, or pass n_units="):
        budget.plan(step, draws=3)


@ALL
def test_a_plan_for_another_table_is_made_with_its_number_of_units_and_never_run(step_class, model):
    budget = dp.PrivacyBudget(40.0, 1e-6)
    with model:
        step = step_class(budget=budget, n_units=1000, **SETTINGS[step_class])
        plan = budget.plan(step, draws=3)
        assert {each.n_units for each in plan.releases if each.sampling is not None} == {1000}
        with pytest.raises(dp.InvalidArgument, match="n_units=1000 was passed, but the table has 300"):
            dp.sample(draws=3, chains=4, step=step, **QUIET)
    assert budget.history == ()


@ALL
def test_units_of_several_rows_are_counted(step_class, model):
    budget = dp.PrivacyBudget(40.0, 1e-6)
    with model:
        step = step_class(budget=budget, unit_index=np.arange(300) // 3, **SETTINGS[step_class])
        plan = budget.plan(step, draws=3)
    assert {each.n_units for each in plan.releases if each.sampling is not None} == {100}


def test_a_table_may_be_exchanged_for_another():
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with pm.Model() as model:
        x = pm.Data("x", np.zeros(300))
        y = pm.Data("y_data", np.zeros(300))
        pm.Normal("y", pm.Normal("mu") + x, 1.0, observed=y)
        step = dp.DPSGLD(budget=budget, **SETTINGS[dp.DPSGLD])
        assert budget.plan(step, draws=3).releases[0].n_units == 300
        pm.set_data({"x": np.zeros(200), "y_data": np.zeros(200)}, model=model)
        assert budget.plan(step, draws=3).releases[0].n_units == 200


def test_a_protected_number_of_units_is_not_looked_at(monkeypatch, model):
    """Under add-remove no plan may depend on it, not even for a step that would have a use for it."""

    def told(step, n_units):
        raise AssertionError("the number of units was told")

    monkeypatch.setattr(dp.DPSGLD, "know_n_units", told)
    monkeypatch.setattr("pymc_dp.model.units._unit_of_each_row", lambda *_: pytest.fail("units were counted"))
    budget = dp.PrivacyBudget(4.0, 1e-6, "add-remove")
    with model:
        step = dp.DPSGLD(budget=budget, clip_gradient=4.0, step_size=1e-6, sampling_probability=0.1)
        budget.plan(step, draws=3)


def test_steps_that_need_no_number_of_units_do_not_count(monkeypatch, model, budget):
    monkeypatch.setattr("pymc_dp.steps.base.public_number_of_units", lambda *_: pytest.fail("units were counted"))
    with model:
        budget.plan(hmc(budget), draws=3)
