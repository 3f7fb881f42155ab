import copy
import math
import multiprocessing
import pickle
import threading
from functools import partial

import pytest
from conftest import gaussian_data, gaussian_model, hmc
from hypothesis import given, strategies as st

import pymc_dp as dp
from pymc_dp.accounting import EPSILON_SLACK, account, gaussian_epsilon
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.surveys.asking import Survey


class FakeStep:
    name = "fake"
    private = True

    def __init__(self, share=1.0, count=10, kinds=("gradient", "log_ratio")):
        self.budget_share = share
        self.count = count
        self.kinds = kinds

    def release_requests(self, tune, draws):
        return [ReleaseRequest(kind, self.count * (tune + draws), 1 / len(self.kinds), 1) for kind in self.kinds]

    def what_would_fit(self, noise_factor):
        return f"noise {noise_factor:.3g} times as large"

    def expected_worth(self, plan):
        return None


@pytest.mark.parametrize(
    ("epsilon", "delta", "relation"),
    [
        (0.0, 1e-6, "substitute"),
        (-1.0, 1e-6, "substitute"),
        (math.nan, 1e-6, "substitute"),
        (-math.inf, 1e-6, "substitute"),
        (1e-9, 1e-6, "substitute"),
        (True, 1e-6, "substitute"),
        (1.0, 0.0, "substitute"),
        (1.0, 1.0, "substitute"),
        (1.0, math.nan, "substitute"),
        (1.0, 1e-6, "swap"),
    ],
)
def test_bad_budgets_are_refused(epsilon, delta, relation):
    with pytest.raises(dp.InvalidArgument):
        dp.PrivacyBudget(epsilon, delta, relation)


@given(st.floats(1e-3, 50.0), st.floats(-30, -2).map(lambda p: 10.0**p), st.sampled_from([0.01, 0.3, 0.5, 0.9, 1.0]))
def test_calibrate_then_account_stays_within_the_budget(epsilon, delta, share):
    budget = dp.PrivacyBudget(epsilon, delta)
    for _ in range(3):
        plan = budget.plan(FakeStep(share), draws=7, tune=2, chains=3)
        before = budget.remaining_rho
        budget.charge(plan)
        assert plan.rho <= before * share * (1 + 1e-12)
        assert plan.epsilon <= epsilon
        assert budget.epsilon_spent <= epsilon
        assert gaussian_epsilon(budget.rho_spent, delta) + EPSILON_SLACK <= epsilon * (1 + 1e-9)
        if share == 1.0:
            break


def test_a_plan_counts_all_chains_and_tuning():
    """Hazards H1 and H3: every chain and every tuning iteration is paid for."""
    plan = dp.PrivacyBudget(1.0, 1e-6).plan(FakeStep(), draws=5, tune=3, chains=4)
    assert {releases.kind: releases.count for releases in plan.releases} == {"gradient": 320, "log_ratio": 320}
    assert {each.kind: each.count for each in plan.steps[0].of_one_chain} == {"gradient": 80, "log_ratio": 80}


def test_making_a_plan_spends_nothing(budget):
    budget.plan(FakeStep(), draws=5)
    assert budget.epsilon_spent == 0.0
    assert budget.history == ()


def test_a_second_run_that_does_not_fit_changes_nothing(budget):
    """Hazard H18: runs on one table add up."""
    plan = budget.plan(FakeStep(), draws=5)
    budget.charge(plan)
    spent = budget.epsilon_spent
    with pytest.raises(dp.BudgetExceeded):
        budget.charge(plan)
    with pytest.raises(dp.BudgetExceeded, match="Nothing is left"):
        budget.plan(FakeStep(), draws=5)
    assert budget.epsilon_spent == spent
    assert len(budget.history) == 1


def test_gaussian_releases_of_another_tool_are_entered_by_hand(budget, tmp_path):
    """They compose with later runs, are stored, and are in the report."""
    budget.charge_elsewhere("counts", noise_multiplier=5.0, count=4, relation="substitute", unit="one person")
    assert budget.rho_spent == pytest.approx(4 / 50)
    budget.save(tmp_path / "budget.db")
    assert dp.PrivacyBudget.load(tmp_path / "budget.db").history == budget.history
    assert "counts (entered by hand)" in budget.report()
    assert "one person" in budget.report()
    plan = budget.plan(FakeStep(), draws=5)
    assert plan.rho == pytest.approx(budget.rho - 4 / 50)


def test_what_other_tools_spend_is_set_aside_from_the_beginning(tmp_path):
    """Hazard H18: epsilons and deltas add, and what is left is a budget as any other."""
    budget = dp.PrivacyBudget(3.0, 1e-6, elsewhere={"a table of means": (1.0, 0.0), "synthetic rows": (0.5, 4e-7)})
    alone = dp.PrivacyBudget(1.5, 1e-6 - 4e-7)
    assert (budget.epsilon, budget.delta) == (3.0, 1e-6)
    assert budget.epsilon_spent == pytest.approx(1.5)
    assert budget.rho == pytest.approx(alone.rho)
    plan = budget.plan(FakeStep(), draws=5)
    assert plan.delta == pytest.approx(6e-7)
    assert plan.epsilon <= 1.5
    budget.save(tmp_path / "budget.db")
    budget.charge(plan)
    loaded = dp.PrivacyBudget.load(tmp_path / "budget.db")
    assert loaded.elsewhere == budget.elsewhere == {"a table of means": (1.0, 0.0), "synthetic rows": (0.5, 4e-7)}
    assert loaded.epsilon_spent == pytest.approx(3.0)
    with pytest.raises(dp.BudgetExceeded):
        loaded.charge(plan)
    assert "set aside for synthetic rows, which is not checked: epsilon 0.5, delta 4e-07" in loaded.report()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"noise_multiplier": 1.0, "relation": "add-remove"}, "at worst half"),
        ({"noise_multiplier": 1.0, "count": 0, "relation": "substitute"}, "count must be"),
        ({"noise_multiplier": 0.0, "relation": "substitute"}, "noise_multiplier must be above zero"),
        ({"tool": "", "noise_multiplier": 1.0, "relation": "substitute"}, "tool must be a name"),
        ({"noise_multiplier": 0.5, "relation": "substitute"}, "costs rho"),
    ],
)
def test_entries_by_hand_that_say_too_little_or_cost_too_much_are_refused(budget, entry, said):
    with pytest.raises(dp.PrivacyError, match=said):
        budget.charge_elsewhere(**{"tool": "another", **entry})
    assert budget.history == ()


@pytest.mark.parametrize(
    "elsewhere",
    [
        *(3.0, ["counts"], {"counts": 1.0}, {"counts": (1.0,)}, {"": (1.0, 0.0)}, {1: (1.0, 0.0)}),
        *({"a": spent} for spent in ((-1.0, 0.0), (1.0, math.nan), (3.0, 0.0), (4.0, 0.0), (1.0, 1e-6), ("1", 0.0))),
    ],
)
def test_what_other_tools_spend_has_to_be_figures_that_leave_something(elsewhere):
    with pytest.raises(dp.InvalidArgument, match=r"elsewhere=|The (epsilon|delta) of"):
        dp.PrivacyBudget(3.0, 1e-6, elsewhere=elsewhere)


def test_halves_compose_to_less_than_their_sum():
    budget = dp.PrivacyBudget(2.0, 1e-6)
    first = budget.plan(FakeStep(share=0.5), draws=5)
    budget.charge(first)
    assert 1.0 < budget.epsilon_spent < 2.0  # Gaussian releases compose like square roots, not linearly
    second = budget.plan(FakeStep(), draws=5)
    budget.charge(second)
    assert budget.epsilon_spent == pytest.approx(2.0, rel=1e-6)


def test_plans_of_another_relation_are_refused(budget):
    plan = dp.PrivacyBudget(0.1, 1e-6, "add-remove").plan(FakeStep(), draws=5)
    with pytest.raises(dp.InvalidArgument, match="relation"):
        budget.charge(plan)


def test_copies_cannot_be_spent_twice(budget):
    """Hazard H2: copies are the budget itself, and it cannot be pickled."""
    assert copy.copy(budget) is budget
    assert copy.deepcopy({"budget": budget})["budget"] is budget
    with pytest.raises(TypeError, match="second time"):
        pickle.dumps(budget)


def test_threads_cannot_overspend():
    budget = dp.PrivacyBudget(1.0, 1e-6)
    plan = budget.plan(FakeStep(share=0.3), draws=5)
    refused = []

    def charge():
        try:
            budget.charge(plan)
        except dp.BudgetExceeded:
            refused.append(1)

    threads = [threading.Thread(target=charge) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(budget.history) == 3
    assert len(refused) == 17


@pytest.mark.parametrize(
    "arguments", [{"draws": 0}, {"draws": 2.5}, {"draws": 5, "tune": -1}, {"draws": 5, "chains": 0}]
)
def test_bad_sizes_are_refused(budget, arguments):
    with pytest.raises(dp.InvalidArgument):
        budget.plan(FakeStep(), **arguments)


def test_too_many_draws_leave_nothing_per_release():
    budget = dp.PrivacyBudget(1e-6, 1e-6)
    with pytest.raises(dp.BudgetExceeded, match="nothing but noise"):
        budget.plan(FakeStep(count=1), draws=10**7)
    with pytest.raises(dp.BudgetExceeded, match="Use fewer draws"):
        budget.plan(FakeStep(count=1), draws=10**9)


def test_a_plan_prints_as_a_table(budget):
    with gaussian_model(gaussian_data()):
        plan = budget.plan(hmc(budget), draws=10, tune=2, chains=3)
    text = str(plan)
    assert "3 chains of 2 tuning and 10 kept" in text
    assert all(kind in text for kind in ("gradient", "log_ratio", "clip_count", "epsilon 5"))
    # 12 trajectories of 2 steps and the first gradient, in 3 chains; tuning asks for no log-ratio
    assert {each.kind: each.count for each in plan.steps[0].of_one_chain} == {
        "gradient": 25,
        "log_ratio": 10,
        "clip_count": 5,
    }


def _in_child(connection, work):
    try:
        work()
        connection.send("done")
    except dp.InvalidArgument as error:
        connection.send(str(error))


@pytest.mark.parametrize(
    "spend", [lambda budget, plan, path: budget.charge(plan), lambda budget, plan, path: budget.save(path)]
)
def test_a_forked_process_cannot_spend_what_its_parent_can(spend, tmp_path):
    """Hazard H2: a worker's copy of a budget spends nothing, and makes no file that could be spent beside it."""
    budget = dp.PrivacyBudget(1.0, 1e-6)
    plan = budget.plan(FakeStep(), draws=5)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(theirs, partial(spend, budget, plan, tmp_path / "budget")))
    child.start()
    assert "Save it" in ours.recv()
    child.join()
    budget.charge(plan)


def finding(delta, share=0.1):
    return Survey("levels", (ReleaseRequest("level_counts", 1, 1.0, 2, once=True, delta=delta),), share)


def charged(budget, step):
    plan = budget.plan(step, draws=1, chains=1)
    budget.charge(plan)
    return plan


def gaussian_step(share=0.5):
    return Survey("counts", (ReleaseRequest("unit_counts", 1, 1.0, 2, once=True),), share)


def test_the_first_run_decides_how_much_of_delta_is_for_levels():
    """Hazard H52: the rest is for all other runs, whether it comes first or later."""
    budget = dp.PrivacyBudget(1.0, 1e-6)
    assert budget.delta_left_for_levels is None
    plan = charged(budget, finding(2e-7))
    assert budget.delta_left_for_levels == 0.0
    assert budget.rho == pytest.approx(dp.PrivacyBudget(1.0 + math.log1p(-2e-7), 8e-7).rho, rel=1e-12)
    assert plan.rho == pytest.approx(0.1 * budget.rho)
    assert account(plan.releases, plan.delta, "substitute").epsilon <= plan.epsilon
    every = dp.PrivacyBudget(1.0, 1e-6, reserved_share=1.0)
    with pytest.raises(dp.BudgetExceeded, match=r"Finding levels would spend 1e-07 of delta.*share of the part"):
        every.plan(finding(1e-7, share=0.1))
    assert every.history == ()
    charged(budget, gaussian_step(1.0))
    assert budget.epsilon_spent == pytest.approx(1.0, rel=1e-6)
    everything = [each for run in budget.history for each in run.releases]
    assert account(everything, 1e-6, "substitute").epsilon <= 1.0
    with pytest.raises(dp.BudgetExceeded):
        budget.plan(finding(1e-12))


def test_levels_after_another_run_have_what_was_set_aside():
    """Hazard H52."""
    budget = dp.PrivacyBudget(1.0, 1e-6)
    charged(budget, gaussian_step())
    with pytest.raises(dp.BudgetExceeded, match="delta_for_levels"):
        budget.plan(finding(1e-8), draws=1, chains=1)
    budget = dp.PrivacyBudget(1.0, 1e-6, delta_for_levels=1e-7)
    charged(budget, gaussian_step())
    plan = budget.plan(finding(6e-8), draws=1, chains=1)
    budget.charge(plan)
    assert budget.delta_left_for_levels == pytest.approx(4e-8)
    with pytest.raises(dp.BudgetExceeded, match="set aside"):
        budget.charge(plan)
    charged(budget, finding(4e-8))
    for wrong in (1e-6, 1.0, -1e-9, math.nan):
        with pytest.raises(dp.InvalidArgument):
            dp.PrivacyBudget(1.0, 1e-6, delta_for_levels=wrong)
    with pytest.raises(dp.InvalidArgument, match="Finding levels"):
        dp.PrivacyBudget(1.0, 1e-6).plan(finding(1e-6))
    with pytest.raises(dp.InvalidArgument, match="Finding levels"):
        dp.PrivacyBudget(1.0, 1e-6, elsewhere={"means": (0.1, 9e-7)}).plan(finding(2e-7))


def test_what_is_for_levels_is_kept_in_the_file(tmp_path):
    budget = dp.PrivacyBudget(1.0, 1e-6, delta_for_levels=1e-7)
    budget.save(tmp_path / "one.budget")
    charged(budget, finding(6e-8))
    for budget in (dp.PrivacyBudget.load(tmp_path / "one.budget"), dp.PrivacyBudget.load(tmp_path / "one.budget")):
        assert budget.delta_left_for_levels == pytest.approx(4e-8)
        assert budget.history[0].of_thresholds == 6e-8
    first = dp.PrivacyBudget(1.0, 1e-6)
    charged(first, finding(6e-8))
    first.save(tmp_path / "two.budget")
    assert dp.PrivacyBudget.load(tmp_path / "two.budget").delta_left_for_levels == 0.0


def test_levels_may_be_paid_for_from_a_reserve():
    budget = dp.PrivacyBudget(1.0, 1e-6, reserved_share=1.0, delta_for_levels=1e-9)
    plan = charged(budget, finding(1e-9, share=0.5))
    assert plan.account == "reserved"
    assert account(plan.releases, plan.delta, "substitute").epsilon <= plan.epsilon
