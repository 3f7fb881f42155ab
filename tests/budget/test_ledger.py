import contextlib
import dataclasses
import json
import multiprocessing
import os
import pickle
import signal
import sqlite3
import time

import pytest
from test_privacy_budget import FakeStep

import pymc_dp as dp
from pymc_dp.accounting import (
    BarkerReleases,
    GaussianReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
)
from pymc_dp.budget import ledger
from pymc_dp.budget.plan import Plan, ReleaseRequest, StepPlan

FORK = multiprocessing.get_context("fork")  # a new interpreter would take longer to import than to spend

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class SampledStep(FakeStep):
    def release_requests(self, tune, draws):
        return [ReleaseRequest("gradient", self.count * draws, 1.0, 1, sampling_probability=0.01)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "register.budget"


def small_plan(budget, share):
    return budget.plan(FakeStep(share), draws=5, chains=1)


def charge_until_refused(path, plan, acknowledged):
    budget = dp.PrivacyBudget.load(path)
    while True:
        try:
            budget.charge(plan)
        except dp.BudgetExceeded:
            return
        with open(acknowledged, "ab", buffering=0) as file:
            file.write(b".")


def test_saved_and_loaded_is_the_same_budget(path):
    budget = dp.PrivacyBudget(2.0, 1e-6, data_name="survey")
    budget.charge(small_plan(budget, 0.25))
    budget.save(path)
    budget.charge(small_plan(budget, 0.25))
    other = dp.PrivacyBudget.load(path)
    assert other.history == budget.history
    assert len(other.history) == 2
    assert (other.epsilon, other.delta, other.relation, other.data_name) == (2.0, 1e-6, "substitute", "survey")
    other.charge(small_plan(other, 1.0))
    assert budget.remaining_rho == 0.0  # the spend of one is seen by the other
    with pytest.raises(dp.BudgetExceeded):
        small_plan(budget, 1.0)
    assert pickle.loads(pickle.dumps(budget)).history == budget.history


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(22, "Invalid argument")], ids=["Ctrl-C", "folder"])
def test_a_file_that_has_its_name_is_the_budget_whatever_fails_then(path, monkeypatch, error):
    """Hazard H2: the file could be loaded, and spent beside the object."""

    def fail(folder):
        raise error

    budget = dp.PrivacyBudget(1.0, 1e-6)
    monkeypatch.setattr(ledger, "_sync_folder", fail)
    with pytest.raises((KeyboardInterrupt, dp.BudgetFileError)):
        budget.save(path)
    budget.charge(small_plan(budget, 1.0))
    assert len(dp.PrivacyBudget.load(path).history) == 1


def test_nothing_is_replaced_and_nothing_saved_twice(path, tmp_path):
    path.write_text("precious")
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with pytest.raises(dp.InvalidArgument, match="never replaced"):
        budget.save(path)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == [path.name]
    budget.save(tmp_path / "mine")
    with pytest.raises(dp.InvalidArgument, match="nothing is left to save"):
        budget.save(tmp_path / "again")


def test_processes_cannot_spend_the_same_money(path, tmp_path):
    """Hazard H18: runs of several processes add up, too."""
    budget = dp.PrivacyBudget(1.0, 1e-6)
    plan = small_plan(budget, 1 / 30.5)
    budget.save(path)
    workers = [FORK.Process(target=charge_until_refused, args=(path, plan, tmp_path / f"done{i}")) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(1800)  # a watchdog
        assert worker.exitcode == 0
    assert len(budget.history) == 30
    assert sum(file.stat().st_size for file in tmp_path.glob("done*")) == 30
    assert budget.epsilon_spent <= 1.0


def test_a_killed_process_loses_nothing_and_refunds_nothing(path, tmp_path):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    plan = small_plan(budget, 1e-5)
    budget.save(path)
    done = tmp_path / "done"
    done.write_bytes(b"")
    for wait in (0.002, 0.011, 0.023):
        before = done.stat().st_size
        worker = FORK.Process(target=charge_until_refused, args=(path, plan, done))
        worker.start()
        deadline = time.monotonic() + 1800  # a watchdog
        while done.stat().st_size == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(wait)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        charged = len(dp.PrivacyBudget.load(path).history)
        # what was acknowledged is there; a charge may have been made that nobody lived to acknowledge
        assert done.stat().st_size <= charged
        assert done.stat().st_size > before
    budget.charge(plan)
    assert len(budget.history) == charged + 1


def tamper(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


TRIGGERS = ("spent_is_kept", "spent_is_fixed", "facts_are_kept", "facts_are_fixed")


def tamper_and_sign(path, *statements):
    """Change the file and make its digests agree, as whoever may write it can: damage shows in its figures alone."""
    tamper(path, *(f"DROP TRIGGER {trigger}" for trigger in TRIGGERS), *statements)
    with contextlib.suppress(ValueError, sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
        facts = {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM facts")}
        del facts["digest"]
        digest = ledger._digest_of("", facts)
        connection.execute("UPDATE facts SET value = ? WHERE name = 'digest'", (json.dumps(digest),))
        for number, text in connection.execute("SELECT number, plan FROM spent ORDER BY number").fetchall():
            record = {name: value for name, value in json.loads(text).items() if name != "digest"}
            signed, digest = ledger._signed(record, digest)
            connection.execute("UPDATE spent SET plan = ? WHERE number = ?", (signed, number))
        connection.commit()


def test_spends_cannot_be_changed_or_taken_back(path):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    budget.save(path)
    budget.charge(small_plan(budget, 0.5))
    for statement in ("DELETE FROM spent", "UPDATE spent SET plan = '{}'", "DELETE FROM facts"):
        with pytest.raises(sqlite3.IntegrityError):
            tamper(path, statement)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["PRAGMA user_version = 1"], "format 1"),
        (["PRAGMA user_version = 3"], "format 3"),
        (["PRAGMA application_id = 7"], "not a saved budget"),
        (["DELETE FROM spent WHERE number = 1"], "spends are missing"),
        (["UPDATE spent SET plan = 'x'"], "cannot be read"),
        (["UPDATE spent SET plan = '{}'"], "cannot be read"),
        (["UPDATE facts SET value = '0.01' WHERE name = 'epsilon'"], "inconsistent"),
        (["UPDATE facts SET value = 'NaN' WHERE name = 'epsilon'"], "finite"),
        (["DELETE FROM facts WHERE name = 'delta'"], "facts of a budget"),
        (["DROP TABLE spent"], "cannot be used"),
    ],
)
def test_inconsistent_files_are_refused(path, statements, message):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    budget.save(path)
    for _ in range(2):
        budget.charge(small_plan(budget, 0.5))
    tamper_and_sign(path, *statements)
    with pytest.raises(dp.InvalidArgument, match=message):
        dp.PrivacyBudget.load(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE facts SET value = '1.1' WHERE name = 'epsilon'",
        "UPDATE spent SET plan = replace(plan, '\"draws\": 5', '\"draws\": 6') WHERE number = 1",
        "UPDATE spent SET plan = (SELECT plan FROM spent WHERE number = 1) WHERE number = 2",
        "UPDATE spent SET plan = '[]' WHERE number = 2",
        "DELETE FROM facts WHERE name = 'data_name'",
        "DELETE FROM facts WHERE name = 'digest'",
    ],
)
def test_damage_that_leaves_plausible_figures_is_refused(path, statement):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    budget.save(path)
    for _ in range(2):
        budget.charge(small_plan(budget, 0.5))
    tamper(path, *(f"DROP TRIGGER {trigger}" for trigger in TRIGGERS), statement)
    with pytest.raises(dp.InvalidArgument, match="damaged"):
        dp.PrivacyBudget.load(path)
    with pytest.raises(dp.InvalidArgument, match="damaged"):
        budget.charge(small_plan(dp.PrivacyBudget(1.0, 1e-6), 1e-3))


def test_what_is_no_budget_is_refused(path):
    with pytest.raises(dp.InvalidArgument, match="no saved budget"):
        dp.PrivacyBudget.load(path)
    path.write_text("this is no database, but long enough to be looked at" * 10)
    with pytest.raises(dp.InvalidArgument, match="cannot be used"):
        dp.PrivacyBudget.load(path)


def test_another_table_is_refused():
    budget = dp.PrivacyBudget(1.0, 1e-6, data_name="survey 2020")
    assert budget.for_data("survey 2020") is budget
    with pytest.raises(dp.InvalidArgument, match="survey 2020"):
        budget.for_data("survey 2021")
    with pytest.raises(dp.InvalidArgument, match="no table"):
        dp.PrivacyBudget(1.0, 1e-6).for_data("survey 2020")


# Runs that reserve their own (epsilon, delta) ------------------------------------------------------------------


def test_sampled_runs_reserve_and_add(path):
    budget = dp.PrivacyBudget(2.0, 1e-6, "add-remove")
    plan = budget.plan(SampledStep(0.5), draws=20)
    assert plan.account == "reserved"
    assert 0.99 < plan.epsilon <= 1.0
    assert plan.delta == pytest.approx(5e-7)
    budget.charge(plan)
    budget.save(path)
    again = dp.PrivacyBudget.load(path)
    assert again.epsilon_spent == pytest.approx(plan.epsilon)
    gaussian = again.plan(FakeStep(), draws=5)  # the first run decided: this one reserves as well
    assert gaussian.account == "reserved"
    again.charge(gaussian)
    assert budget.epsilon_spent <= 2.0
    with pytest.raises(dp.BudgetExceeded):
        budget.charge(plan)
    assert "0.01" in str(plan)
    assert "reserve" in budget.report()


def test_a_sampled_plan_counts_all_chains():
    budget = dp.PrivacyBudget(2.0, 1e-6, "add-remove")
    one, three = (budget.plan(SampledStep(), draws=20, chains=chains) for chains in (1, 3))
    assert three.releases[0].count == 3 * one.releases[0].count
    assert three.releases[0].noise_multiplier > one.releases[0].noise_multiplier


def test_gaussian_runs_first_leave_nothing_to_reserve_unless_it_was_set_aside():
    budget = dp.PrivacyBudget(2.0, 1e-6, "add-remove")
    budget.charge(budget.plan(FakeStep(0.5), draws=5))
    with pytest.raises(dp.BudgetExceeded, match="reserved_share"):
        budget.plan(SampledStep(), draws=5)
    split = dp.PrivacyBudget(2.0, 1e-6, "add-remove", reserved_share=0.5)
    split.charge(split.plan(FakeStep(), draws=5))
    split.charge(split.plan(SampledStep(), draws=5))
    assert 1.9 < split.epsilon_spent <= 2.0
    # the delta of the Gaussian half pays for the reserved half's factor exp(epsilon)
    assert split.rho < dp.PrivacyBudget(1.0, 5e-7, "add-remove").rho
    with pytest.raises(dp.BudgetExceeded):
        split.plan(FakeStep(), draws=5)


def test_a_plan_s_own_figures_are_not_trusted():
    budget = dp.PrivacyBudget(1.0, 1e-6, "add-remove")
    events = (PoissonGaussianReleases("gradient", 1000, 0.5, 0.1),)

    def plan_of(events, **settings):
        return Plan(1, 0, 1000, "add-remove", (StepPlan("liar", "", 1, (), events),), 0.1, 1e-7, **settings)

    with pytest.raises(dp.InvalidArgument, match="cost more"):
        budget.charge(plan_of(events, account="reserved"))
    with pytest.raises(dp.InvalidArgument, match="Only Gaussian"):
        budget.charge(plan_of(events))
    gaussian = (GaussianReleases("gradient", 10, 0.1),)
    with pytest.raises(dp.BudgetExceeded):
        budget.charge(plan_of(gaussian))
    full = plan_of((GaussianReleases("gradient", 1, 1e9, coordinates=10**9),))
    budget.charge(full)
    with pytest.raises(dp.BudgetExceeded, match="noisy numbers"):
        budget.charge(full)
    assert len(budget.history) == 1


def test_a_reserved_run_is_accounted_at_its_own_delta():
    budget = dp.PrivacyBudget(2.0, 1e-6, "add-remove")
    plan = budget.plan(SampledStep(0.5), draws=20)
    with pytest.raises(dp.InvalidArgument, match="cost more"):
        budget.charge(dataclasses.replace(plan, delta=plan.delta / 2))
    with pytest.raises(dp.InvalidArgument, match="cost more"):
        budget.charge(dataclasses.replace(plan, epsilon=plan.epsilon * 0.99))
    budget.charge(plan)


def test_barker_runs_have_noise_that_is_given():
    class Barker(FakeStep):
        def release_requests(self, tune, draws):
            return [
                BarkerReleases("decision", draws, 1000, 100_000),
                ReleaseRequest("clip_count", 4, 1.0, 2),
            ]

    budget = dp.PrivacyBudget(2.0, 1e-5)
    plan = budget.plan(Barker(), draws=100, chains=2)
    assert {each.kind: each.count for each in plan.steps[0].of_one_chain} == {"decision": 100, "clip_count": 4}
    assert plan.epsilon <= 2.0
    budget.charge(plan)
    with pytest.raises(dp.BudgetExceeded, match="No noise is enough"):
        dp.PrivacyBudget(0.1, 1e-5).plan(Barker(), draws=1000)


def test_the_report_says_what_a_reviewer_asks():
    budget = dp.PrivacyBudget(1.0, 1e-6, data_name="survey")
    assert "none" in budget.report()
    budget.charge(budget.plan(FakeStep(), draws=5))
    page = budget.report()
    for words in ("survey", "substitute", "Balle and Wang", "assumes", "Not covered", "epsilon 1 ", "Unit", "gradient"):
        assert words in page


def several_steps():
    """A plan of two steps: one makes releases before the chains, one has noise that changes and decisions."""
    first = StepPlan("first", "1", 2, (GaussianReleases("score", 1, 30.0),), (GaussianReleases("residual", 8, 9.0),))
    batches = [WithoutReplacementGaussianReleases("gradient", 2, noise, 10, 1000) for noise in (20.0, 30.0)]
    second = StepPlan("second", "2", 2, (), (*batches, BarkerReleases("decision", 4, 100, 1000)))
    return Plan(2, 0, 4, "substitute", (first, second), epsilon=1.5, delta=1e-6, account="reserved", unit="one row")


def test_a_stored_plan_is_the_same_plan():
    plan = several_steps()
    assert Plan.from_record(json.loads(json.dumps(plan.to_record()))) == plan


def test_a_step_s_plan_says_what_a_meter_needs():
    first, second = several_steps().steps
    assert [(each.kind, each.count) for each in first.once] == [("score", 1)]
    assert [(each.kind, each.count) for each in first.of_one_chain] == [("residual", 4)]
    assert first.noise_multipliers == {"score": 30.0, "residual": 9.0}
    assert first.with_noise_times(2.0).noise_multipliers == {"score": 60.0, "residual": 18.0}
    assert second.noise_multipliers == {}
    assert second.noise_schedules == {"gradient": (20.0, 30.0)}
    in_chain = [(each.kind, each.count) for each in second.of_one_chain]
    assert in_chain == [("gradient", 1), ("gradient", 1), ("decision", 2)]


def test_plans_that_chains_cannot_share_are_refused():
    with pytest.raises(dp.InvalidArgument, match="3 chains"):
        StepPlan("uneven", "", 3, (), (GaussianReleases("gradient", 10, 1.0),))
    step = StepPlan("even", "", 2, (), (GaussianReleases("gradient", 10, 1.0),))
    with pytest.raises(dp.InvalidArgument, match="chains"):
        Plan(5, 0, 1, "substitute", (step,), epsilon=1.0, delta=1e-6)


def test_plans_of_earlier_versions_name_an_engine_of_rows():
    plan = several_steps()
    assert Plan.from_record({**plan.to_record(), "row_engine": "fused"}) == plan


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [{"sampler": "x"}]},
        {"steps": 3},
        {"releases": []},
        {"chains": 0},
        {"unit": 3},
        {"unit": None},
        {"epsilon": "1"},
        {"relation": "swap"},
    ],
)
def test_records_that_are_no_plans_are_refused(change):
    """A plan as it was stored before it was made of steps has `releases`, too."""
    with pytest.raises(dp.InvalidArgument):
        Plan.from_record({**several_steps().to_record(), **change})


def test_the_unit_of_a_run_is_kept_with_it(path):
    budget = dp.PrivacyBudget(2.0, 1e-6)
    budget.charge(dataclasses.replace(small_plan(budget, 0.25), unit="one household"))
    budget.charge(small_plan(budget, 0.25))
    budget.save(path)
    loaded = dp.PrivacyBudget.load(path)
    assert [plan.unit for plan in loaded.history] == ["one household", ""]
    assert "one household" in loaded.report()
    assert "by default one row" in loaded.report()


@pytest.mark.parametrize(
    "arguments", [{"data_name": ""}, {"data_name": 3}, {"reserved_share": 1.1}, {"reserved_share": -1}]
)
def test_bad_settings_are_refused(arguments):
    with pytest.raises(dp.InvalidArgument):
        dp.PrivacyBudget(1.0, 1e-6, **arguments)
