"""A second run of the same step object: it inherits nothing, neither settings that were learned nor an interruption."""

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET
from samplers import LEARNED, SAMPLERS, regression, table

import pymc_dp as dp

DRAWS, TUNE = 3, 4


class Stopped(Exception):
    """What a callback raises in the middle of tuning."""


def stop_while_tuning(trace, draw):
    if draw.draw_idx == 1:
        raise Stopped


def ran(steps, epsilon, seed, callback=None):
    """Run steps on a budget that is fresh, whatever earlier runs have spent."""
    budget = dp.PrivacyBudget(epsilon, 1e-6)
    for step in steps:
        step.budget = budget
    options = {"draws": DRAWS, "tune": TUNE, "chains": 1, "cores": 1, "random_seed": seed, "callback": callback}
    return pm.sample(step=steps, **options, **QUIET)


def settings_of(step):
    """Return what describes a step: numbers, words and arrays, and those of its proposal and of what it has learned.

    What the step was made with is stored as its first run begins.
    """
    found = {}
    for owner in (step, getattr(step, "proposal", None), getattr(step, "known", None)):
        for name, value in ({} if owner is None else vars(owner)).items():
            if name == "_made_with":
                continue
            if isinstance(value, bool | int | float | str | np.ndarray) or value is None:
                found[type(owner).__name__, name] = value
            elif name in ("step_sizes", "batches", "clip_bounds", "figures"):
                found[type(owner).__name__, name] = repr(value)
    return found


#: One of each kind of settings; the other samplers are among the slow tests.
FAST = ("hmc-and-penalty", "sgnht", "learned-hmc")
CASES = [
    pytest.param(each, id=each.name, marks=() if each.name in FAST else pytest.mark.slow)
    for each in (*SAMPLERS, *LEARNED)
]


@pytest.mark.few(slow=9)
@pytest.mark.parametrize("sampler", CASES)
def test_a_second_run_is_that_of_a_fresh_step(sampler):
    with regression(*table()):
        fresh, used = (sampler(dp.PrivacyBudget(1.0, 1e-6), insecure_seed=1) for _ in range(2))
        fresh, used = (steps if isinstance(steps, list) else [steps] for steps in (fresh, used))
        with pytest.raises(Stopped):
            ran(used, 3e4, seed=6, callback=stop_while_tuning)
        found, expected = ran(used, 1e4, seed=5), ran(fresh, 1e4, seed=5)
    for one, other in zip(fresh, used, strict=True):
        np.testing.assert_equal(settings_of(other), settings_of(one))
    for name in ("posterior", "sample_stats"):
        for variable, values in expected[name].data_vars.items():
            np.testing.assert_array_equal(found[name][variable].values, values.values, err_msg=str(variable))


@pytest.mark.parametrize("step_class", [dp.DPHMC, dp.DPSGLD])
def test_a_run_that_ends_in_its_prelude_tells_nothing_of_the_last_one(step_class, monkeypatch):
    """Settings, and clip bounds and facts in the result, are those of this run."""

    def ended(*arguments):
        raise MemoryError

    with regression(*table()):
        step = step_class(budget=dp.PrivacyBudget(1.0, 1e-6))
        made = [getattr(step, name) for name in step.settled]
        known = ran([step], 8.0, seed=5)["privacy"].attrs
        assert known["surrogate_found"] == 1
        assert known["clip_bounds"] != "{}"
        assert [getattr(step, name) for name in step.settled] != made
        monkeypatch.setattr(type(step.learning), "run", ended)
        with pytest.raises(dp.RunInterrupted) as interrupted:
            ran([step], 8.0, seed=5)
    facts = interrupted.value.partial["privacy"].attrs
    assert facts["surrogate_found"] == 0
    assert facts["clip_bounds"] == "{}"
    np.testing.assert_equal([getattr(step, name) for name in step.settled], made)


@pytest.mark.parametrize("step_class", [dp.DPHMC, dp.DPMALA, dp.DPPenalty, dp.DPMinibatchPenalty, dp.DPBarker])
def test_the_length_of_moves_that_a_pilot_found_is_forgotten(step_class):
    with regression(*table()):
        step = step_class(budget=dp.PrivacyBudget(1.0, 1e-6))
    step.forget()
    made = settings_of(step)
    step.stretch(0.123)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(settings_of(step), made)
    step.forget()
    np.testing.assert_equal(settings_of(step), made)
