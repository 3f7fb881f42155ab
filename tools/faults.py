"""Faults while a saved budget is spent: kills, races and interrupts, as many as are asked for.

    python tools/faults.py --kills 100 --races 1000 --interrupts 100 --damages 1000

Each function makes faults of one sort, raises AssertionError where one shows that the ledger lost, refunded or
overspent, and returns what it counted. `test_faults.py` makes a few of each.
"""

import argparse
import collections
import contextlib
import math
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_dp as dp
from pymc_dp.accounting import GaussianReleases
from pymc_dp.budget.plan import StepPlan
from pymc_dp.release import SecureNoise

FORK = multiprocessing.get_context("fork")
QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}


def small_model(n=50):
    with pm.Model(coords={"person": np.arange(n)}) as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.zeros(n), dims="person")
    return model


def private_run(model, budget, *, draws=1000, chains=2, share=1e-3):
    with model:
        step = dp.DPPenalty(clip_log_ratio=1.0, proposal_scale=0.1, budget=budget, budget_share=share)
        return pm.sample(draws=draws, chains=chains, cores=1, step=step, **QUIET)


def plan_of_rho(rho, relation="substitute"):
    """A plan of one release that costs `rho`; made without a step, so that it takes no time."""
    releases = (GaussianReleases("gradient", 1, math.sqrt(0.5 / rho)),)
    step = StepPlan("test", "", 1, (), releases)
    return dp.Plan(1, 0, 1, relation, (step,), epsilon=1.0, delta=1e-6)


@contextlib.contextmanager
def noting_releases(path):
    """Append a byte to a file for every noisy number that has been made."""
    real = SecureNoise.add

    def noted(self, integers, scale):
        noisy = real(self, integers, scale)
        with open(path, "ab", buffering=0) as file:
            file.write(b".")
        return noisy

    SecureNoise.add = noted
    try:
        yield
    finally:
        SecureNoise.add = real


def in_a_child(work):
    """Run `work` in a forked process and return it, unless it ends by itself: with 0, or 1 after an error."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        work()
        code = 0
    except KeyboardInterrupt:
        code = 2
    except dp.PrivacyError:
        code = 3
    finally:
        os._exit(code)


def kill_runs(kills, folder, *, seed=0):
    """Kill runs on one saved budget at random moments. What was spent is all of a run or nothing of it.

    Every other run does nothing but charge, again and again, so that kills also meet the writing of the file.
    """
    generator = np.random.default_rng(seed)
    model = small_model()
    private_run(model, dp.PrivacyBudget(1.0, 1e-6))  # compiles before the forks
    began = time.monotonic()
    private_run(model, dp.PrivacyBudget(1.0, 1e-6))
    seconds = time.monotonic() - began
    path = Path(folder) / "killed.budget"
    budget = dp.PrivacyBudget(1.0, 1e-6)
    budget.save(path)
    counts = collections.Counter()
    noted = Path(folder) / "noted"
    for place in range(kills):
        before = budget.history
        noted.write_bytes(b"")
        only_charges = place % 2 == 1

        def work(only_charges=only_charges):
            mine = dp.PrivacyBudget.load(path)
            if only_charges:
                while True:
                    mine.charge(plan_of_rho(mine.rho * 1e-6))
                    with open(noted, "ab", buffering=0) as file:
                        file.write(b".")
            with noting_releases(noted):
                private_run(model, mine)

        process = in_a_child(work)
        time.sleep(generator.uniform(0.0, 0.2 if only_charges else 1.1 * seconds))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        after = dp.PrivacyBudget.load(path).history
        released = noted.stat().st_size
        assert after[: len(before)] == before, "an earlier spend was changed"
        assert sum(plan.rho for plan in after) <= budget.rho, "more was spent than there is"
        if only_charges:
            assert released <= len(after) - len(before) <= released + 1, "an acknowledged charge is lost"
            counts["killed while charging"] += 1
            continue
        assert len(after) - len(before) in {0, 1}, "a run was charged twice"
        assert not released or len(after) == len(before) + 1, "a release was made that nobody paid for"
        key = "released" if released else "charged" if len(after) > len(before) else "not charged"
        counts[f"killed, {key}"] += 1
    left = budget.remaining_rho
    budget.charge(plan_of_rho(left * (1.0 - 1e-9)))  # the next process can spend what is left, and no more
    try:
        budget.charge(plan_of_rho(left * 1e-3))
        raise AssertionError("more was spent than there is")
    except dp.BudgetExceeded:
        pass
    assert dp.PrivacyBudget.load(path).epsilon_spent <= 1.0
    return dict(counts)


def _race(connection):
    """Charge whatever budget is named, as soon as the others are ready, and say what became of it."""
    while (path := connection.recv()) is not None:
        budget = dp.PrivacyBudget.load(path)
        plan = plan_of_rho(budget.rho * 0.6)
        connection.send("ready")
        connection.recv()
        try:
            budget.charge(plan)
            connection.send("charged")
        except dp.BudgetExceeded:
            connection.send("refused")
        except Exception as error:
            connection.send(type(error).__name__)


def race(races, folder, *, racers=2):
    """Let processes spend the last of a budget at the same moment: exactly one of them gets it."""
    connections, processes = [], []
    for _ in range(racers):
        ours, theirs = FORK.Pipe()
        processes.append(FORK.Process(target=_race, args=(theirs,), daemon=True))
        processes[-1].start()
        connections.append(ours)
    winners = collections.Counter()
    try:
        for place in range(races):
            path = Path(folder) / f"race-{place}.budget"
            dp.PrivacyBudget(1.0, 1e-6).save(path)
            for message in (path, "go"):
                for connection in connections:
                    connection.send(message)
                if message is path:
                    assert [connection.recv() for connection in connections] == ["ready"] * racers
            outcomes = [connection.recv() for connection in connections]
            assert sorted(outcomes) == ["charged"] + ["refused"] * (racers - 1), outcomes
            assert len(dp.PrivacyBudget.load(path).history) == 1
            winners[f"won by process {outcomes.index('charged')}"] += 1
            path.unlink()
    finally:
        for connection, process in zip(connections, processes, strict=True):
            with contextlib.suppress(OSError):
                connection.send(None)
            process.join(10)
    return dict(winners)


def interrupt_runs(interrupts, folder, *, seed=0):
    """Send Ctrl-C to runs at random moments: charged in full or not at all, and not without a charge released."""
    generator = np.random.default_rng(seed)
    model = small_model()
    private_run(model, dp.PrivacyBudget(1.0, 1e-6))
    began = time.monotonic()
    private_run(model, dp.PrivacyBudget(1.0, 1e-6))
    seconds = time.monotonic() - began
    path, noted = Path(folder) / "interrupted.budget", Path(folder) / "noted"
    budget = dp.PrivacyBudget(1.0, 1e-6)
    budget.save(path)
    counts = collections.Counter()
    endings = {0: "returned", 1: "another error", 2: "KeyboardInterrupt", 3: "an error of pymc_dp"}
    for _ in range(interrupts):
        before = budget.history
        noted.write_bytes(b"")

        def work():
            with noting_releases(noted):
                private_run(model, dp.PrivacyBudget.load(path))

        process = in_a_child(work)
        time.sleep(generator.uniform(0.005, 1.1 * seconds))
        os.kill(process, signal.SIGINT)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        after = dp.PrivacyBudget.load(path).history
        assert after[: len(before)] == before
        assert len(after) - len(before) in {0, 1}
        assert not noted.stat().st_size or len(after) == len(before) + 1, "a release was made that nobody paid for"
        assert code in endings, code
        counts[f"{endings[code]}, {'charged' if len(after) > len(before) else 'not charged'}"] += 1
    return dict(counts)


def damage_files(damages, folder, *, seed=0):
    """Damage files of budgets at random: each is refused by an error of ours, or is what it was."""
    generator = np.random.default_rng(seed)
    whole = Path(folder) / "whole.budget"
    budget = dp.PrivacyBudget(1.0, 1e-6, data_name="survey")
    budget.save(whole)
    for _ in range(3):
        budget.charge(plan_of_rho(budget.rho * 0.25))
    content = whole.read_bytes()
    counts = collections.Counter()
    for place in range(damages):
        damaged = bytearray(content)
        sort = ("truncated", "one byte", "a stretch", "one digit")[place % 4]
        if sort == "truncated":
            del damaged[generator.integers(len(damaged)) :]
        elif sort == "one byte":
            damaged[generator.integers(len(damaged))] ^= int(generator.integers(1, 256))
        elif sort == "a stretch":
            begin = int(generator.integers(len(damaged)))
            stretch = generator.bytes(min(int(generator.integers(1, 2000)), len(damaged) - begin))
            damaged[begin : begin + len(stretch)] = stretch
        else:  # what no check of SQLite's own can see
            digits = [i for i, byte in enumerate(damaged) if chr(byte).isdigit()]
            where = digits[generator.integers(len(digits))]
            damaged[where] = ord("0") + (damaged[where] - ord("0") + int(generator.integers(1, 10))) % 10
        path = Path(folder) / "damaged.budget"
        path.write_bytes(damaged)
        try:
            found = dp.PrivacyBudget.load(path)
            same = (found.epsilon, found.delta, found.relation, found.data_name, found.history) == (
                budget.epsilon,
                budget.delta,
                budget.relation,
                budget.data_name,
                budget.history,
            )
            assert same, f"{sort}: another budget was read"
            counts[f"{sort}: unharmed"] += 1
        except dp.PrivacyError:
            counts[f"{sort}: refused"] += 1
        path.unlink()
    return dict(counts)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name, default in (("kills", 100), ("races", 1000), ("interrupts", 100), ("damages", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args(arguments)
    for make, count in (
        (race, asked.races),
        (damage_files, asked.damages),
        (kill_runs, asked.kills),
        (interrupt_runs, asked.interrupts),
    ):
        folder = tempfile.mkdtemp(prefix="faults-")
        began = time.monotonic()
        try:
            print(f"{make.__name__}: {count}, {make(count, folder)}, {time.monotonic() - began:.0f} s", flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
