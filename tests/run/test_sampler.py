"""The sampler object: the same run as `pymc_dp.sample`'s, whichever way it is called."""

import functools
import inspect

import numpy as np
import pymc as pm
import pytest
from samplers import regression, table

import pymc_dp as dp

RUN = {"draws": 10, "chains": 2, "cores": 1, "random_seed": 3, "progressbar": False}
#: Arguments of `pm.sample` that configure PyMC's own samplers, or that private runs refuse.
NOT_OF_A_RUN = {
    *("step", "nuts_sampler", "nuts_sampler_kwargs", "init", "jitter_max_retries", "n_init", "trace", "kwargs"),
    *("keep_warning_stat", "return_inferencedata", "backend", "compile_kwargs"),
}


def budget():
    return dp.PrivacyBudget(epsilon=3.0, delta=1e-6)


def step():
    settings = {"clip_gradient": 4.0, "clip_log_ratio": 4.0, "step_size": 0.05, "n_leapfrog": 2}
    return dp.DPHMC(**settings, insecure_seed=1)


def draws_of(tree):
    return tree["posterior"]["slope"].values


@functools.cache
def as_by_the_function():
    model = regression(*table())
    return model, dp.sample(step=step(), budget=budget(), model=model, **RUN)


def with_context(sampler, model):
    with model:
        return pm.sample(sampler=sampler, **RUN)


@pytest.mark.parametrize(
    "call",
    [
        lambda sampler, model: sampler.sample(model=model, **RUN),
        lambda sampler, model: sampler.sample_from_init(model=model, **RUN),
        lambda sampler, model: pm.sample(sampler=sampler, model=model, **RUN),
        with_context,
    ],
    ids=["sample", "sample_from_init", "pm.sample", "context"],
)
def test_all_ways_make_the_same_run_and_charge_it_once(call):
    model, expected = as_by_the_function()
    spent = budget()
    found = call(dp.Private(budget=spent, step=step()), model)
    np.testing.assert_array_equal(draws_of(found), draws_of(expected))
    assert len(spent.history) == 1
    assert found["privacy"].attrs["epsilon"] == expected["privacy"].attrs["epsilon"]


def test_arguments_are_those_of_pymcs_runs():
    """In one form with PyMC's: no argument of a run is missing, and none has another default but the length."""
    own = inspect.signature(dp.Private.sample_from_init).parameters
    of_pymc = inspect.signature(pm.sample).parameters
    assert set(own) - {"self"} == set(of_pymc) - NOT_OF_A_RUN
    assert {name for name in set(own) - {"self"} if own[name].default != of_pymc[name].default} <= {"draws", "model"}


@pytest.mark.parametrize(
    ("option", "message"),
    [({"step": dp.DPHMC()}, "step= belongs to"), ({"budget": budget()}, "budget= belongs"), ({"unit": "row"}, "unit=")],
)
def test_an_option_of_the_object_is_refused_in_the_call(option, message):
    spent = budget()
    with pytest.raises(dp.InvalidArgument, match=message):
        dp.Private(budget=spent).sample(model=regression(*table()), **option)
    assert not spent.history


def test_wrong_settings_are_refused():
    with pytest.raises(dp.InvalidArgument, match="needs a budget"):
        dp.Private(budget=None)
    with pytest.raises(dp.InvalidArgument, match="budget"):
        dp.Private(budget=3.0)
    with pytest.raises(dp.InvalidArgument, match=r"must be a pymc_dp\.Table"):
        dp.Private(budget=budget(), data=[1.0])


@pytest.mark.parametrize("option", ["step", "nuts_sampler", "external_sampler", "nuts_sampler_kwargs"])
def test_under_another_name_it_is_refused_and_nothing_is_drawn(option):
    """H38: PyMC takes options that it does not know for those of NUTS, which would draw without privacy."""
    sampler = dp.Private(budget=budget())
    passed = {"sampler": sampler} if option == "nuts_sampler_kwargs" else sampler
    with pytest.raises(dp.UnsupportedOption, match="no differentially private step"), regression(*table()):
        pm.sample(**{option: passed}, draws=5, chains=1, progressbar=False)
