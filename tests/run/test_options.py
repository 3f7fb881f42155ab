"""Options of another type than `pm.sample` documents are refused before anything is charged."""

import multiprocessing

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.run.options import refuse_wrong_types

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
