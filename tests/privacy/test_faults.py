"""A few faults of each sort; `python tools/faults.py` makes as many as are asked for."""

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
import time
from pathlib import Path

import faults
import pymc as pm
import pytest
from conftest import gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.budget import ledger
from pymc_dp.rows import UnitLikelihood
from pymc_dp.run import sampling

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def saved(tmp_path):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    budget.save(tmp_path / "saved.budget")
    budget.charge(faults.plan_of_rho(budget.rho / 4))
    return budget


def path_of(budget):
    return budget._ledger.path


def charge_a_quarter(budget):
    budget.charge(faults.plan_of_rho(budget.rho / 4))


def test_one_of_two_processes_gets_the_last_of_a_budget(tmp_path):
    assert sum(faults.race(50, tmp_path).values()) == 50


@pytest.mark.slow
def test_killed_runs_are_charged_in_full_or_not_at_all(tmp_path):
    """Hazard H4: a killed run has been charged for all that it released."""
    assert sum(faults.kill_runs(8, tmp_path).values()) == 8


@pytest.mark.slow
def test_interrupted_runs_are_charged_in_full_or_not_at_all(tmp_path):
    assert sum(faults.interrupt_runs(4, tmp_path).values()) == 4


def test_damaged_files_are_refused_or_unharmed(tmp_path):
    counts = faults.damage_files(400, tmp_path)
    assert counts["one digit: refused"] == counts["truncated: refused"] == 100


# The file cannot be used ----------------------------------------------------------------------------------------


def outcome_in_a_child(work):
    """Run `work` in a forked process; return the class and the message of its error."""
    ours, theirs = os.pipe()

    def reported():
        try:
            work()
            text = "nothing"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(theirs, text.encode())

    os.waitpid(faults.in_a_child(reported), 0)
    os.close(theirs)
    with open(ours) as outcome:
        return outcome.read()


@pytest.mark.parametrize("room", [0, 512, 4096, 20480, 28672])
def test_a_full_disk_charges_nothing(saved, tmp_path, room):
    before = saved.history

    def charge_without_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        for _ in range(1000):  # the file has to grow
            saved.charge(faults.plan_of_rho(saved.rho * 1e-6))

    assert outcome_in_a_child(charge_without_room).startswith("BudgetFileError: ")
    after = dp.PrivacyBudget.load(path_of(saved)).history
    assert after[:1] == before
    assert len(after) < 1000
    charge_a_quarter(saved)
    assert len(saved.history) == len(after) + 1


def test_a_full_disk_saves_no_half_budget(tmp_path):
    def save_without_room():
        budget = dp.PrivacyBudget(1.0, 1e-6)  # its own: that of another process is refused
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        budget.save(tmp_path / "full.budget")

    assert outcome_in_a_child(save_without_room).startswith("BudgetFileError: ")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("file", "folder"), [(0o444, 0o777), (0o666, 0o555), (0o444, 0o555), (0o000, 0o777)])
def test_what_may_not_be_written_charges_nothing(file, folder):
    # Not pytest's folder, which another user may not enter.
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        budget = dp.PrivacyBudget(1.0, 1e-6)
        budget.save(place / "saved.budget")
        (place / "saved.budget").chmod(file)
        place.chmod(folder)

        def charge_as_nobody():
            if os.getuid() == 0:
                os.setuid(65534)
            charge_a_quarter(budget)

        assert outcome_in_a_child(charge_as_nobody).startswith("BudgetFileError: ")
        place.chmod(0o700)
        (place / "saved.budget").chmod(0o600)
        assert budget.history == ()
        charge_a_quarter(budget)
    finally:
        shutil.rmtree(place)


def test_a_locked_file_charges_nothing(saved, monkeypatch):
    monkeypatch.setattr(ledger, "_SECONDS_TO_WAIT", 0.05)
    with contextlib.closing(sqlite3.connect(path_of(saved), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(dp.BudgetFileError, match="locked by another process"):
            charge_a_quarter(saved)
        with pytest.raises(dp.BudgetFileError, match="locked by another process"):
            dp.PrivacyBudget.load(path_of(saved))
    assert len(saved.history) == 1
    charge_a_quarter(saved)


def test_the_file_is_locked_from_reading_to_writing(saved, monkeypatch):
    looked = []

    def look(*_):
        with (
            contextlib.closing(sqlite3.connect(path_of(saved), isolation_level=None, timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")
        looked.append(1)

    real = ledger.Ledger._read
    monkeypatch.setattr(ledger.Ledger, "_read", lambda self, connection: look() or real(self, connection))
    saved._ledger.append(faults.plan_of_rho(1e-6), look)
    assert looked == [1, 1]


@pytest.mark.parametrize("instead", ["nothing", "folder", "empty", "text", "another database", "another budget"])
def test_what_stands_in_the_file_s_place_is_not_charged(saved, tmp_path, instead):
    path = path_of(saved)
    path.unlink()
    if instead == "folder":
        path.mkdir()
    elif instead in {"empty", "text"}:
        path.write_text("" if instead == "empty" else "no database, but long enough to be looked at" * 99)
    elif instead == "another database":
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE spent (number INTEGER, plan BLOB)")
            connection.execute("CREATE TABLE facts (name INTEGER, value BLOB)")
            connection.execute("INSERT INTO spent VALUES (1, NULL)")
    elif instead == "another budget":
        dp.PrivacyBudget(9.0, 1e-6).save(path)
    with pytest.raises(dp.PrivacyError):
        charge_a_quarter(saved)
    if instead == "another budget":
        assert dp.PrivacyBudget.load(path).history == ()
        return
    with pytest.raises(dp.PrivacyError):
        dp.PrivacyBudget.load(path)


def test_an_older_copy_in_the_file_s_place_is_refused(saved, tmp_path):
    path, copy = path_of(saved), tmp_path / "copy"
    shutil.copy(path, copy)
    charge_a_quarter(saved)
    shutil.copy(copy, path)
    with pytest.raises(dp.InvalidArgument, match="older copy"):
        charge_a_quarter(saved)


@pytest.mark.parametrize("path", [None, 3, "a\0b", "x" * 5000, [], "missing/folder/file"])
def test_what_is_no_path_is_refused(path):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with pytest.raises(dp.PrivacyError):
        budget.save(path)
    with pytest.raises(dp.PrivacyError):
        dp.PrivacyBudget.load(path)
    assert budget._ledger is None


def test_a_spend_outlives_a_loss_of_power(saved):
    """With less than EXTRA the rollback journal may come back after a spend, and undoes it."""
    with saved._ledger._open() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


# Ctrl-C in every phase -------------------------------------------------------------------------------------------


def interrupt_at(monkeypatch, owner, name, call=1):
    """Raise KeyboardInterrupt when a function has been called so many times."""
    real, calls = getattr(owner, name), []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize(
    ("owner", "name", "call", "charged"),
    [
        (UnitLikelihood, "warm_up", 1, 0),
        (ledger, "_signed", 1, 0),  # within the transaction
        (sampling, "Curators", 1, 1),
        (dp.DPHMC, "authorise", 1, 1),
        (dp.DPHMC, "setup_chain", 1, 1),
        (dp.DPHMC, "transition", 2, 1),
        pytest.param(dp.DPHMC, "setup_chain", 2, 1, marks=pytest.mark.nightly),
        pytest.param(dp.DPHMC, "transition", 9, 1, marks=pytest.mark.nightly),
        (sampling, "publish", 1, 1),
    ],
)
def test_ctrl_c_is_charged_once_the_charge_is_made(monkeypatch, tmp_path, owner, name, call, charged):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    budget.save(tmp_path / "saved.budget")
    interrupt_at(monkeypatch, owner, name, call)
    with gaussian_model(gaussian_data(50)):
        step = hmc(budget, budget_share=0.5)
        with contextlib.suppress(KeyboardInterrupt, dp.PrivacyError):
            pm.sample(draws=5, tune=1, chains=2, cores=1, step=step, **faults.QUIET)
        assert len(budget.history) == charged
        monkeypatch.undo()
        # the next run is charged what is left, whatever became of the first
        pm.sample(draws=2, chains=1, cores=1, step=hmc(budget), **faults.QUIET)
    assert len(budget.history) == charged + 1
    assert budget.epsilon_spent <= 1.0
    with pytest.raises(dp.BudgetExceeded):
        budget.plan(step, draws=1)


def test_ctrl_c_in_a_prelude_is_charged(monkeypatch, tmp_path):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    budget.save(tmp_path / "saved.budget")
    interrupt_at(monkeypatch, dp.DPSurrogateHMC, "prelude")
    synthetic = gaussian_model(gaussian_data(50, seed=9))
    with gaussian_model(gaussian_data(50)):
        step = dp.DPSurrogateHMC(synthetic=synthetic, newton_steps=2, budget=budget)
        tree = pm.sample(draws=5, chains=2, cores=1, step=step, **faults.QUIET)
    assert not tree["privacy"].attrs["complete"]
    assert "posterior" not in tree
    assert budget.epsilon_spent == pytest.approx(1.0)


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_and_refunds_nothing(tmp_path):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    budget.save(tmp_path / "saved.budget")

    def kill(trace, draw):
        if draw.draw_idx == 3:
            for worker in multiprocessing.active_children()[:1]:
                worker.kill()

    began = time.monotonic()
    with gaussian_model(gaussian_data(50)), pytest.raises(Exception, match=r".*") as ended:
        pm.sample(draws=2000, chains=2, cores=2, step=hmc(budget), callback=kill, **faults.QUIET)
    assert time.monotonic() - began < 120
    assert str(ended.value)
    assert budget.epsilon_spent == pytest.approx(1.0)
