"""Functions of PyMC that put the data beside a private result say so."""

import warnings

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp import sampling
from pymc_dp.diagnostics import privacy_report


@pytest.fixture(scope="module")
def model():
    return gaussian_model(gaussian_data(50))


@pytest.fixture
def result(model):
    with model:
        return pm.sample(draws=5, chains=1, cores=1, step=hmc(dp.PrivacyBudget(5.0, 1e-6)), **QUIET)


@pytest.mark.parametrize("part", ["tree", "group"])
@pytest.mark.parametrize("extend", [False, True])
def test_posterior_predictive_draws_of_a_private_result_come_with_a_warning(model, result, extend, part):
    """Hazard H6: observed data that PyMC adds later are warned about."""
    given = result if part == "tree" else result["posterior"]
    with model, pytest.warns(UserWarning, match=r"observed_data and constant_data .*pm\.set_data") as caught:
        tree = pm.sample_posterior_predictive(
            given, extend_inferencedata=extend and part == "tree", progressbar=False, random_seed=1
        )
    assert "observed_data" in tree.children
    assert caught[0].filename == __file__


def test_the_report_names_what_was_added_to_the_result(model, result):
    with model, pytest.warns(UserWarning, match="observed_data"):
        pm.sample_posterior_predictive(result, extend_inferencedata=True, progressbar=False)
    assert "GROUPS ADDED AFTER THE RUN: observed_data, posterior_predictive" in privacy_report(result)


def test_the_report_promises_nothing_for_a_tree_of_its_own(model, result):
    with model, pytest.warns(UserWarning, match="observed_data"):
        tree = pm.sample_posterior_predictive(result, progressbar=False)
    report = privacy_report(tree)
    assert report.startswith("NO GUARANTEE")
    assert "observed_data" in report
    assert "epsilon" not in report
    assert "ADDED" not in privacy_report(result)


def test_the_report_names_variables_that_were_added_to_the_posterior(result):
    result["posterior"] = result["posterior"].to_dataset().assign(of_rows=("row", np.zeros(3)))
    assert "VARIABLES ADDED AFTER THE RUN to the posterior: of_rows." in privacy_report(result)


def test_predictions_at_public_covariates_are_not_warned_about(model, result):
    with model, warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = pm.sample_posterior_predictive(result, predictions=True, progressbar=False)
    assert "observed_data" not in tree.children


def test_pointwise_log_likelihoods_come_with_a_warning(model, result):
    with model, pytest.warns(UserWarning, match="log_likelihood .*a value for each row"):
        pm.stats.compute_log_likelihood(result, progressbar=False)
    assert "GROUPS ADDED AFTER THE RUN: log_likelihood" in privacy_report(result)


def test_results_of_pymc_itself_are_not_warned_about(model):
    with model:
        tree = pm.sample(draws=5, tune=5, chains=1, cores=1, **QUIET)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pm.sample_posterior_predictive(tree, progressbar=False)
            pm.stats.compute_log_likelihood(tree, progressbar=False)


def test_everything_can_be_given_back():
    names = ["sample", "init_nuts", "sample_posterior_predictive", "Data"]
    owners = [
        *[(pm, name) for name in names],
        (pm.stats, "compute_log_likelihood"),
        (pm.variational.opvi.Group, "__init__"),
        (pm.Distribution, "__new__"),
        (pm.Model, "set_data"),
    ]
    installed = [getattr(*each) for each in owners]
    try:
        sampling.uninstall()
        originals = [getattr(*each) for each in owners]
        assert [before.__wrapped__ for before in installed] == originals
        sampling.install()
        sampling.install()  # once more changes nothing
        sampling.uninstall()
        assert [getattr(*each) for each in owners] == originals
    finally:
        sampling.install()
