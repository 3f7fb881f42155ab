"""Refusals of arguments: a call that carries a budget is private or refused, and wrong types cost nothing."""

import functools
import multiprocessing

import numpy as np
import pymc as pm
import pymc.sampling.mcmc
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc
from pymc.step_methods import CompoundStep

import pymc_dp as dp
from pymc_dp.run import sampling
from pymc_dp.run.refusals import refuse_privacy_keywords, refuse_wrong_types


@pytest.fixture
def model():
    return gaussian_model(gaussian_data(50))


def callback(trace, draw, *, carried=None):
    pass


def metropolis_with(budget):
    step = pm.Metropolis()
    step.settings = {"budget": budget}
    return step


CARRIED = {
    "budget= beside NUTS": lambda budget: {"budget": budget, "step": pm.Metropolis()},
    "budget=None": lambda budget: {"budget": None},
    "draws": lambda budget: {"draws": budget},
    "step list": lambda budget: {"step": [budget]},
    "step dict": lambda budget: {"step": {"mu": hmc(budget)}},
    "step tuple in a list": lambda budget: {"step": [(pm.Metropolis(), hmc(budget))]},
    "step that is not private": lambda budget: {"step": metropolis_with(budget)},
    "several such steps": lambda budget: {"step": [CompoundStep([metropolis_with(budget)])]},
    "nuts": lambda budget: {"nuts": {"budget": budget}},
    "nested in nuts": lambda budget: {"nuts": {"target_accept": 0.8, "extra": [{"deep": (budget,)}]}},
    "a DP step in nuts": lambda budget: {"nuts": {"step": hmc(budget)}},
    "idata_kwargs": lambda budget: {"idata_kwargs": {"budget": budget}},
    "initvals": lambda budget: {"initvals": {"mu": budget}},
    "callback": lambda budget: {"callback": functools.partial(callback, carried=budget)},
    "unknown": lambda budget: {"privacy": {budget}},
}


@pytest.mark.parametrize("spelling", CARRIED)
@pytest.mark.parametrize("entry", ["pm.sample", "dp.sample", "pymc.sampling.mcmc.sample"])
def test_a_budget_without_a_dp_step_is_refused(model, budget, entry, spelling):
    """Hazard H38: PyMC would ignore it and run NUTS."""
    function = {"pm.sample": pm.sample, "dp.sample": dp.sample}.get(entry, pymc.sampling.mcmc.sample)
    with model, pytest.raises(dp.UnsupportedOption, match=r"step=dp\.DPSurrogateHMC\(budget=budget\)"):
        function(**({"draws": 5, "tune": 5, "chains": 1, "cores": 1} | QUIET | CARRIED[spelling](budget)))
    assert budget.history == ()


def test_a_positional_budget_is_refused(model, budget):
    with model, pytest.raises(dp.UnsupportedOption, match="step="):
        pm.sample(budget)
    with model, pytest.raises(dp.UnsupportedOption, match="step="):
        pm.sample(5, budget)


def test_the_budget_of_the_step_may_be_passed_beside_it(model, budget):
    with model:
        tree = pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), budget=budget, **QUIET)
    assert tree["privacy"].attrs["private"]
    assert len(budget.history) == 1


def test_another_budget_beside_the_step_is_refused(model, budget):
    other = dp.PrivacyBudget(5.0, 1e-6)
    with model, pytest.raises(dp.UnsupportedOption, match="two budgets cannot be charged"):
        pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), budget=other, **QUIET)
    assert budget.history == ()


@pytest.mark.parametrize("options", [{"nuts": {}}, {"callback": functools.partial(callback)}, {"initvals": {}}])
def test_a_budget_in_another_option_beside_the_step_is_refused(model, budget, options):
    for value in options.values():
        if isinstance(value, dict):
            value["mu"] = budget
        else:
            options["callback"] = functools.partial(callback, carried=budget)
    with model, pytest.raises(dp.UnsupportedOption, match=r"holds a privacy budget"):
        pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), **options, **QUIET)
    assert budget.history == ()


def test_pm_sample_that_was_imported_before_does_not_swallow_a_budget(model, budget):
    with model, pytest.raises(dp.UnsupportedOption, match="not be private"):
        sampling._pymc_sample(draws=5, tune=5, chains=1, cores=1, budget=budget, **QUIET)
    with model, pytest.raises(dp.UnsupportedOption, match="not be private"):
        sampling._pymc_sample(draws=5, tune=5, chains=1, cores=1, nuts={"budget": budget}, **QUIET)


OTHER_ENTRIES = {
    "init_nuts": lambda budget: pm.init_nuts(budget=budget, progressbar=False),
    "fit": lambda budget: pm.fit(5, inf_kwargs={"budget": budget}, progressbar=False),
    "fit fullrank": lambda budget: pm.fit(5, method="fullrank_advi", inf_kwargs={"b": [budget]}, progressbar=False),
    "ADVI": lambda budget: pm.ADVI(budget=budget),
    "FullRankADVI": lambda budget: pm.FullRankADVI(budget=budget),
}


@pytest.mark.parametrize("entry", OTHER_ENTRIES)
def test_functions_that_would_ignore_a_budget_refuse_it(model, budget, entry):
    """Hazard H38: so would other functions."""
    with model, pytest.raises(dp.UnsupportedOption, match="not be private"):
        OTHER_ENTRIES[entry](budget)


TAKE_NONE = {
    "fit": lambda budget: pm.fit(5, budget=budget, progressbar=False),
    "find_MAP": lambda budget: pm.find_MAP(budget=budget, progressbar=False),
    "sample_smc": lambda budget: pm.sample_smc(5, budget=budget, chains=1, cores=1, progressbar=False),
    "sample_prior_predictive": lambda budget: pm.sample_prior_predictive(5, budget=budget),
    "Metropolis": lambda budget: pm.Metropolis(budget=budget),
    "NUTS": lambda budget: pm.NUTS(budget=budget),
}


@pytest.mark.parametrize("entry", TAKE_NONE)
def test_functions_of_pymc_that_know_no_budget_do_not_swallow_it(model, budget, entry):
    with model, pytest.raises(TypeError, match="budget"):
        TAKE_NONE[entry](budget)


SWALLOWED = [
    {"epsilon": 3, "delta": 1e-6},
    {"privacy_budget": 3},
    {"private": True},
    {"dp": True},
    {"rho": 0.5},
    {"eps": 1.0},
    {"target_epsilon": 1.0},
    {"noise_multiplier": 2.0},
    {"max_clip": 1.0},
    {"differentialPrivacy": True},
    {"nuts": {"epsilon": 3}},
    {"nuts_sampler_kwargs": {"dp_epsilon": 3}},
]


@pytest.mark.few(20)  # each option, and each entry four times
@pytest.mark.parametrize("options", SWALLOWED, ids=str)
@pytest.mark.filterwarnings("ignore:`nuts_sampler_kwargs`")
@pytest.mark.parametrize("entry", ["pm.sample", "with a step", "imported before", "init_nuts", "dp.sample"])
def test_an_option_that_looks_private_is_no_option_of_nuts(model, budget, entry, options):
    """Hazard H49: PyMC takes options that it does not know, and runs NUTS without them."""
    short = {"draws": 5, "tune": 5, "chains": 1, "cores": 1, **QUIET, **options}
    with model:
        entries = {
            "pm.sample": functools.partial(pm.sample, **short),
            "with a step": functools.partial(pm.sample, **short, step=pm.Metropolis()),
            "imported before": functools.partial(sampling._pymc_sample, **short),
            "init_nuts": functools.partial(pm.init_nuts, progressbar=False, **options),
            "dp.sample": functools.partial(dp.sample, **short, step=hmc(budget)),
        }
        with pytest.raises(dp.UnsupportedOption, match=r"no option|not be private"):
            entries[entry]()
    assert budget.history == ()


@pytest.mark.parametrize("options", [{"unit": "person"}, {"unit_index": "person"}])
def test_a_unit_without_a_budget_is_refused(model, options):
    with model, pytest.raises(dp.UnsupportedOption, match=r"no option unit"):
        pm.sample(draws=5, tune=5, chains=1, cores=1, **QUIET, **options)


def test_options_that_pymc_knows_pass():
    """A step method's own, at the top and in a mapping."""
    known = [{"nuts": {"target_accept": 0.9, "max_treedepth": 5}}, {"target_accept": 0.9}, {"gamma": 0.1}]
    known += [{"metropolis": {"S": None, "tune_interval": 10}}, {"initvals": {"epsilon": 0.1}}, {"random_seed": 1}]
    for options in known:
        refuse_privacy_keywords(sampling._pymc_sample, options)


def test_calls_without_a_budget_pass_through(model):
    with model:
        tree = pm.sample(draws=5, tune=5, chains=1, cores=1, nuts={"target_accept": 0.8}, **QUIET)
        approximation = pm.fit(5, progressbar=False)
    assert "observed_data" in tree.children
    assert approximation.mean.eval().shape == (1,)


WRONG = {
    "callback": 3,
    "mp_ctx": 7,
    "quiet": np.ones(2),
    "compute_convergence_checks": "yes",
    "discard_tuned_samples": None,
    "keep_warning_stat": 1.5,
    "return_inferencedata": "yes",
    "compile_kwargs": [1],
    "idata_kwargs": "log_likelihood",
    "nuts_sampler_kwargs": 1,
    "nuts_sampler": np.ones(3),
    "backend": 4,
    "var_names": "mu",
    "model": "model",
    "progressbar": np.ones(2),
    "initvals": [1.0, 2.0],
    "random_seed": 1.5,
}


@pytest.mark.parametrize("option", WRONG)
def test_options_of_a_wrong_type_are_refused_before_the_charge(option, budget):
    with gaussian_model(gaussian_data()), pytest.raises(dp.InvalidArgument, match=option):
        pm.sample(4, chains=2, cores=1, step=hmc(budget), **(QUIET | {option: WRONG[option]}))
    assert budget.history == ()


def test_a_start_method_that_does_not_exist_is_refused(budget):
    with gaussian_model(gaussian_data()), pytest.raises(dp.InvalidArgument, match="mp_ctx must be one of"):
        pm.sample(4, chains=2, cores=1, step=hmc(budget), mp_ctx="teleport", **QUIET)
    assert budget.history == ()


def test_what_pymc_documents_passes():
    refuse_wrong_types(
        {
            "callback": lambda trace, draw: None,
            "mp_ctx": multiprocessing.get_context(),
            "var_names": ("mu",),
            "initvals": [None, {"mu": 1.0}],
            "progressbar": "split",
            "idata_kwargs": {"include_transformed": True},
            "quiet": np.bool_(True),
        }
    )
