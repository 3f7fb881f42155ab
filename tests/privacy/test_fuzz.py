"""Some random cases of each sort; `python tools/fuzz.py` makes as many as are asked for."""

import fractions
import os
import subprocess
import sys
from pathlib import Path

import fuzz
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.accounting import (
    GaussianReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
    account,
    gaussian_rho,
)


def test_random_arguments_meet_documented_errors_only():
    counts, failed = fuzz.fuzz_arguments(120, seed=1)
    assert not failed, "\n\n".join(failed)
    assert counts["accepted"] > 10
    assert sum(counts.values()) == 120


def test_no_value_of_random_tables_is_shown():
    """Hazard H22: random tables of values that can be searched for."""
    counts, failed = fuzz.fuzz_tables(5, seed=2, workers=0.2)
    assert not failed, "\n\n".join(failed)
    assert counts["sampled"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("where", ["print", "log", "warning", "error", "worker"])
def test_the_fuzzer_sees_what_is_shown(monkeypatch, where):
    """A fuzzer that finds nothing has to be one that can find something."""
    confidential = fuzz.CANARIES[0]
    real = dp.DPPenalty.transition

    def tells(self, theta):
        if where in {"print", "worker"}:
            os.write(2, str(confidential).encode())
        if where == "log":
            fuzz.logging.getLogger("pymc").info("%s", {"x": confidential})
        if where == "warning":
            fuzz.warnings.warn(f"value {confidential:.8e}", stacklevel=1)
        if where == "error":
            raise dp.PrivacyError(np.array([confidential]))
        return real(self, theta)

    monkeypatch.setattr(dp.DPPenalty, "transition", tells)
    monkeypatch.setattr(fuzz, "FAMILIES", fuzz.FAMILIES[:1])
    settings = dp.DPPenalty, fuzz.PENALTY, "substitute"
    monkeypatch.setattr(fuzz, "_steps", lambda generator, n: settings)
    _, failed = fuzz.fuzz_tables(4, seed=3, workers=float(where == "worker"))
    assert any("shows" in each for each in failed), failed


def test_a_canary_on_disk_is_found(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "code.bin").write_bytes(b"x" * 99 + np.float64(fuzz.CANARIES[1]).tobytes())
    (tmp_path / "other").write_text("nothing")
    found, searched = fuzz.search(tmp_path)
    assert len(found) == 1
    assert searched == 2


@pytest.mark.slow
def test_caches_on_disk_hold_nothing_of_the_data():
    """Hazard H33: caches of PyTensor and numba, and temporary files."""
    script = Path(fuzz.__file__)
    done = subprocess.run(  # noqa: S603
        [sys.executable, script, "--arguments", "0", "--options", "0", "--tables", "12", "--seed", "4"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "0 hold confidential values" in done.stdout


# What the fuzzer has found ---------------------------------------------------------------------------------------

HUGE = (10**400, fractions.Fraction(10**400))


@pytest.fixture
def model():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", shape=2).sum(), 1.0, observed=np.zeros(50))
    return model


@pytest.mark.parametrize("number", HUGE)
def test_numbers_beyond_floating_point_are_refused(model, number):
    with pytest.raises(dp.InvalidArgument, match="too large"):
        dp.PrivacyBudget(number, 1e-6)
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with model:
        for setting in ({"proposal_scale": number}, {"proposal_scale": {"mu": number}}):
            with pytest.raises(dp.InvalidArgument, match="proposal_scale"):
                dp.DPPenalty(budget=budget, clip_log_ratio=1.0, **setting)
        with pytest.raises(dp.InvalidArgument, match="mass_matrix"):
            dp.DPHMC(budget=budget, **fuzz.HMC, mass_matrix=[number, number])
        step = dp.DPPenalty(budget=budget, clip_log_ratio=1.0, proposal_scale=1.0)
    with pytest.raises(dp.BudgetExceeded, match="noisy numbers"):
        budget.plan(step, draws=10**400)


@pytest.mark.parametrize(
    "setting",
    [
        {"clip_diagnostics": np.array(["private", "exact"])},
        {"keep_releases": np.ones(2)},
        {"keep_releases": "yes"},
        {"reuse_gradient": np.ones(2)},
        {"vars": 3},
        {"vars": []},
        {"vars": {}},
        {"vars": [3]},
        {"vars": [None]},
    ],
)
def test_settings_of_another_type_are_refused(model, setting):
    with model, pytest.raises(dp.InvalidArgument):
        dp.DPHMC(budget=dp.PrivacyBudget(1.0, 1e-6), **fuzz.HMC, **setting)


@pytest.mark.parametrize(
    "setting",
    [{"newton_steps": 0}, {"clip_gradient": 0.0}, {"clip_gradient": np.zeros(2)}, {"noise_aware": np.ones(2)}],
)
def test_zero_is_not_taken_for_a_default(model, setting):
    with model, pytest.raises(dp.InvalidArgument):
        dp.DPSurrogateHMC(budget=dp.PrivacyBudget(1.0, 1e-6), **setting)


def test_arrays_are_not_shown_in_messages(model):
    with model, pytest.raises(dp.InvalidArgument) as refused:
        dp.DPHMC(budget=dp.PrivacyBudget(1.0, 1e-6), **fuzz.HMC, clip_diagnostics=np.array([7.123456]))
    assert "7.123" not in str(refused.value)


def test_step_sizes_that_decay_are_counted(model):
    with model:
        step = dp.DPSGLD(
            budget=dp.PrivacyBudget(1.0, 1e-6, "add-remove"),
            clip_gradient=1.0,
            step_size=(0.1, 0.3),
            sampling_probability=0.1,
        )
    with pytest.raises(dp.InvalidArgument, match="decay"):
        step.budget.plan(step, draws=10**8)


@pytest.mark.parametrize("noise_multiplier", [1e-151, 5e-324, 2e154])
def test_noise_whose_square_vanishes_or_overflows_is_refused(noise_multiplier):
    for make in (
        lambda: GaussianReleases("gradient", 1, noise_multiplier),
        lambda: PoissonGaussianReleases("gradient", 1, noise_multiplier, 0.1),
        lambda: WithoutReplacementGaussianReleases("gradient", 1, noise_multiplier, 5, 100),
    ):
        with pytest.raises(dp.InvalidArgument, match="too small"):
            make()


@pytest.mark.nightly
def test_advice_is_found_where_any_noise_at_all_is_enough(model):
    with model:
        step = dp.DPSGLD(
            budget=dp.PrivacyBudget(1.0, 0.5, "add-remove"),
            clip_gradient=1.0,
            step_size=0.1,
            sampling_probability=1e-12,
        )
    with pytest.raises(dp.BudgetExceeded, match="What would fit"):
        step.budget.plan(step, draws=16, chains=2)


def test_steps_that_end_too_soon_are_refused(model):
    with model, pytest.raises(dp.InvalidArgument, match="decay"):
        dp.DPSGLD(budget=dp.PrivacyBudget(1.0, 1e-6), clip_gradient=1.0, step_size=(1.0, 1.5), batch_size=5)


def test_an_epsilon_without_any_protection_is_refused():
    with pytest.raises(dp.InvalidArgument, match="too large"):
        gaussian_rho(1.7e308, 1 / 3)
    assert gaussian_rho(1e15, 1e-6) < 1e15


@pytest.mark.parametrize("noise_multiplier", [0.0226, 1e-3, 1e-25])
def test_noise_far_too_small_costs_more_than_any_budget(noise_multiplier):
    releases = [WithoutReplacementGaussianReleases("gradient", 2, noise_multiplier, 5, 100)]
    assert account(releases, 1e-6, "substitute").epsilon > 100.0
