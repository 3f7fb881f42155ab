"""`pm.sample` runs DP steps, functions that put the data beside a private result warn, and all of it can go."""

import inspect
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import arviz as az
import arviz_stats
import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp import _pymc_hook
from pymc_dp.diagnostics import privacy_report

#: Run without the hook: PyMC is as it was, and `dp.sample` charges and samples.
WITHOUT_THE_HOOK = """
import sys
import numpy as np
import pymc as pm
from pymc.distributions.distribution import Distribution
from pymc.variational.opvi import Group

def everything():
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "pymc"}
    owners = {**modules, "Model": pm.Model, "Distribution": Distribution, "Group": Group}
    return {(owner, name): value for owner in owners for name, value in vars(owners[owner]).items()}

before = everything()
import pymc_dp as dp
after = everything()
assert dp.__file__.startswith(sys.argv[1]), dp.__file__
assert "pymc_dp._pymc_hook" not in sys.modules
assert not [key for key, value in before.items() if after[key] is not value]

with pm.Model(coords={"person": range(50)}):
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.linspace(0.0, 1.0, 50), dims="person")
    budget = dp.PrivacyBudget(5.0, 1e-6)
    step = dp.DPPenalty(budget=budget, clip_log_ratio=4.0, proposal_scale=0.05)
    quiet = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
    result = dp.sample(draws=3, tune=0, chains=1, cores=1, step=step, **quiet)
assert result["privacy"].attrs["private"]
assert result["posterior"].sizes["draw"] == 3
assert len(budget.history) == 1
"""


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
    with (
        model,
        pytest.warns(
            UserWarning,
            match=r"observed_data and constant_data .*pm\.set_data.*invented rows: dp\.check.*whether the model fits",
        ) as caught,
    ):
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


def test_pointwise_log_likelihoods_of_private_results_are_refused(model, result):
    with model, pytest.raises(dp.UnsupportedOption, match=r"az.loo .* dp.compare"):
        pm.stats.compute_log_likelihood(result, progressbar=False)
    with model, pytest.raises(dp.UnsupportedOption, match=r"az.loo .* dp.compare"):
        pm.stats.compute_log_likelihood(idata=result, progressbar=False)
    assert "log_likelihood" not in result.children
    for ask in (
        lambda: az.loo(result),
        lambda: az.loo_pit(data=result),
        lambda: az.compare({"one": result, "other": result}),
    ):
        with pytest.raises(dp.UnsupportedOption, match=r"az.loo .* dp.compare"):
            ask()


def test_results_of_pymc_itself_are_not_warned_about(model):
    with model:
        tree = pm.sample(draws=50, tune=5, chains=1, cores=1, **QUIET)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pm.sample_posterior_predictive(tree, progressbar=False)
            pm.stats.compute_log_likelihood(tree, progressbar=False)
    assert az.loo(tree).n_samples == 50


WITHOUT = """
import pymc as pm
original = pm.sample
import pymc_dp as dp
assert pm.sample is original
assert not hasattr(dp.sample, "__wrapped__")
"""


def test_the_hook_can_be_left_out():
    environment = {**os.environ, "PYMC_DP_HOOK": "off"}
    subprocess.run([sys.executable, "-c", WITHOUT], env=environment, check=True)  # noqa: S603


LATER = """
import sys
import pymc as pm
import pymc_dp
assert "arviz" not in sys.modules  # it takes longer to load than PyMC
import arviz as az
with pm.Model():
    pm.Normal("x")
    pm.sample(draws=1, tune=1, chains=1, cores=1, progressbar=False, compute_convergence_checks=False)
assert hasattr(az.loo, "__wrapped__") and hasattr(az.compare, "__wrapped__")
assert not hasattr(az.loo.__wrapped__, "__wrapped__")
"""


@pytest.mark.slow
def test_arviz_is_not_loaded_and_is_found_later():
    flags = ",".join(filter(None, [os.environ.get("PYTENSOR_FLAGS"), "mode=FAST_COMPILE"]))  # compiling takes seconds
    environment = {**os.environ, "PYTENSOR_FLAGS": flags}
    subprocess.run([sys.executable, "-c", LATER], env=environment, check=True)  # noqa: S603


def test_everything_can_be_given_back():
    names = ["sample", "init_nuts", "sample_posterior_predictive", "Data"]
    owners = [
        *[(pm, name) for name in names],
        (pm.stats, "compute_log_likelihood"),
        (az, "loo"),
        (arviz_stats, "compare"),
        (pm.variational.opvi.Group, "__init__"),
        (pm.Distribution, "__new__"),
        (pm.Model, "set_data"),
    ]
    _pymc_hook.install()  # ArviZ may have been loaded after the package
    installed = [getattr(*each) for each in owners]
    try:
        _pymc_hook.uninstall()
        originals = [getattr(*each) for each in owners]
        assert [before.__wrapped__ for before in installed] == originals
        _pymc_hook.install()
        _pymc_hook.install()  # once more changes nothing
        _pymc_hook.uninstall()
        assert [getattr(*each) for each in owners] == originals
    finally:
        _pymc_hook.install()


@pytest.mark.slow
def test_the_package_works_without_the_hook(tmp_path):
    """The module and the line that imports it are deleted from a copy of the package."""
    package = tmp_path / "pymc_dp"
    shutil.copytree(Path(dp.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "_pymc_hook.py").unlink()
    lines = (package / "__init__.py").read_text().splitlines(keepends=True)
    kept = [line for line in lines if "_pymc_hook" not in line]
    assert len(kept) == len(lines) - 1
    (package / "__init__.py").write_text("".join(kept))
    command = [sys.executable, "-c", WITHOUT_THE_HOOK, str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stderr


def test_dp_sample_runs_with_the_hooks_uninstalled(model):
    budget = dp.PrivacyBudget(5.0, 1e-6)
    _pymc_hook.uninstall()
    try:
        with model:
            tree = dp.sample(draws=5, chains=1, cores=1, step=hmc(budget), **QUIET)
            with pytest.raises(dp.NoPlan):
                pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), **QUIET)
    finally:
        _pymc_hook.install()
    assert tree["privacy"].attrs["private"]
    assert len(budget.history) == 1


def test_pm_sample_keeps_its_signature_and_passes_other_steps_on(model):
    assert inspect.signature(pm.sample) == inspect.signature(pm.sample.__wrapped__)
    assert pm.sampling.sample is pm.sample
    with model:
        tree = pm.sample(draws=5, tune=5, chains=1, cores=1, step=pm.Metropolis(), **QUIET)
    assert "observed_data" in tree.children


def test_errors_of_pymc_about_variables_without_data_are_its_own():
    with pm.Model():
        pm.Normal("a")
        with pytest.raises(ValueError, match="already exists"):
            pm.Normal("a")
