import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.diagnostics import Quality, privacy_report, quality, quality_report


def run(y, **settings):
    with gaussian_model(y, prior_std=0.1):
        step = hmc(dp.PrivacyBudget(50.0, 1e-6), **settings)
        return pm.sample(draws=10, chains=2, cores=1, step=step, **QUIET)


GOOD = {"draws": 1000, "acceptance": 0.5, "r_hat": 1.01, "effective_draws": 400.0, "test_noise": 1.0}


@pytest.mark.parametrize(
    ("change", "usable"),
    [
        ({}, True),
        ({"r_hat": 1.06}, False),
        ({"effective_draws": 150.0}, False),
        ({"clip_fractions": {"log_ratio": (0.36, 0.001)}}, False),
        ({"clip_fractions": {"log_ratio": (0.02, 0.01)}}, True),
        ({"clip_fractions": {"gradient": (0.7, 0.001)}}, True),
    ],
)
def test_usable_needs_agreement_draws_and_no_bias(change, usable):
    assert Quality(**({"clip_fractions": {}} | GOOD | change)).usable is usable


def test_clipping_is_called_bias():
    tree = run(np.random.default_rng(0).normal(size=2000), clip_log_ratio=0.05)
    assert quality(tree).biased
    assert "BIASED" in quality_report(tree)


def test_a_run_that_never_moved_promises_nothing():
    report = quality_report(run(np.zeros(100), step_size=1e-30))
    assert "Nothing was accepted" in report
    assert "epsilon" not in report


def test_groups_added_later_are_not_covered():
    tree = run(np.zeros(100))
    assert "GROUPS ADDED" not in privacy_report(tree)
    tree["observed_data"] = tree["posterior"].copy()
    assert "GROUPS ADDED AFTER THE RUN: observed_data" in privacy_report(tree)
