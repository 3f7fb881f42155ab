import dataclasses
import functools
import json
import math
import re

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.diagnostics import ClipFraction, Quality, privacy_report, quality, quality_report
from pymc_dp.reports import verdict as verdict_module
from pymc_dp.reports.verdict import surrogate_in_words


def run(y, draws=10, **settings):
    with gaussian_model(y, prior_std=0.1):
        step = hmc(dp.PrivacyBudget(50.0, 1e-6), **settings)
        return pm.sample(draws=draws, chains=2, cores=1, step=step, **QUIET)


GOOD = {"draws": 1000, "acceptance": 0.5, "r_hat": 1.01, "effective_draws": 400.0, "test_noise": 1.0}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "usable"),
        ({"r_hat": 1.06}, "not usable"),
        ({"r_hat": math.nan}, "not usable"),
        ({"effective_draws": 150.0}, "not usable"),
        ({"effective_draws": math.nan}, "not usable"),
        ({"stuck": ("tau",)}, "not usable"),
        ({"tempering": 0.01}, "not usable"),
        ({"missing": ("how many units are clipped in a log-ratio",)}, "unknown"),
        ({"missing": ("how many units are clipped in a log-ratio",), "r_hat": 1.06}, "not usable"),
        ({"tested": False}, "unknown"),
        ({"clip_fractions": {"log_ratio": ClipFraction(0.36, 0.001, "decides")}}, "not usable"),
        ({"clip_fractions": {"log_ratio": ClipFraction(0.005, 0.004, "decides")}}, "usable"),
        ({"clip_fractions": {"log_ratio": ClipFraction(0.02, 0.01, "decides")}}, "unknown"),
        ({"clip_fractions": {"log_ratio": ClipFraction(-0.1, 0.2, "decides")}}, "unknown"),
        ({"clip_fractions": {"log_ratio": ClipFraction(math.nan, math.nan, "decides")}}, "unknown"),
        ({"clip_fractions": {"decision": ClipFraction(0.36, 0.001, "decides")}}, "not usable"),
        ({"clip_fractions": {"gradient": ClipFraction(0.7, 0.001, "drives")}}, "usable"),
        ({"clip_fractions": {"gradient": ClipFraction(0.7, 0.001, "drives")}, "tested": False}, "not usable"),
        ({"clip_bias": 0.3, "clip_bias_noise_std": 0.2}, "usable"),
        ({"clip_bias": 0.9, "clip_bias_noise_std": 0.01}, "not usable"),
        ({"clip_bias": 0.9, "clip_bias_noise_std": 0.4}, "unknown"),
        ({"clip_bias": 0.1, "clip_bias_noise_std": 5.0}, "unknown"),
        ({"clip_bias": -3.0, "clip_bias_noise_std": 5.0}, "unknown"),
        ({"narrowest": 0.9, "widest": 1.2}, "usable"),
        ({"narrowest": 0.2, "widest": 1.2}, "not usable"),
        ({"narrowest": 0.9, "widest": 4.0}, "not usable"),
        ({"doubtful_width": 0.5}, "usable"),
        ({"doubtful_width": 0.01}, "not usable"),
        ({"doubtful_width": 7.0}, "not usable"),
        ({"doubtful_width": 7.0, "typical_doubtful_width": 1.3}, "usable"),  # of few parameters, which are named
        ({"doubtful_width": 7.0, "typical_doubtful_width": 1.6}, "usable"),
        ({"doubtful_width": 7.0, "typical_doubtful_width": 1.8}, "not usable"),
        ({"doubtful_width": 2.5, "typical_doubtful_width": 1.8}, "usable"),
        ({"noise_of_members": 2.5}, "usable"),
        ({"noise_of_members": 3.5}, "not usable"),
        ({"curvature_share": 0.45}, "usable"),
        ({"curvature_share": 0.6}, "not usable"),
        ({"surrogate_error": 0.4, "surrogate_error_noise_std": 0.05}, "usable"),
        ({"surrogate_error": 0.55, "surrogate_error_noise_std": 0.05}, "unknown"),
        ({"surrogate_error": 0.65, "surrogate_error_noise_std": 0.05}, "not usable"),
        ({"surrogate_error": 0.1, "surrogate_error_noise_std": 0.05, "diverging": 0.005}, "usable"),
        ({"surrogate_error": 0.1, "surrogate_error_noise_std": 0.05, "diverging": 0.03}, "unknown"),
        ({"diverging": 0.03}, "usable"),  # a test rejects them
    ],
)
def test_the_verdict_needs_agreement_draws_and_no_bias_and_what_is_not_known_is_not_usable(change, verdict):
    """Hazard H44: unknown is never usable."""
    found = Quality(**({"clip_fractions": {}} | GOOD | change))
    assert found.verdict == verdict
    assert found.usable is (verdict == "usable")
    assert bool(found.reasons_against) is (verdict == "not usable")
    if verdict == "unknown":
        assert found.reasons_unknown


@pytest.mark.parametrize("widening", [1.0, 2.0])
def test_what_one_line_doubts_no_other_trusts(widening, monkeypatch):
    found = Quality(**({"clip_fractions": {}} | GOOD | {"doubtful": ("k",), "widening": widening}))
    monkeypatch.setattr(verdict_module, "quality", lambda _: found)
    report = quality_report(of_clipped_ratios())
    assert "draws of k may be more than three times too narrow" in report
    assert "but for the intervals of k: " in report or "Intervals can be trusted, but for those of k, and" in report


def test_draws_that_noise_leaves_room_for_are_advised_before_a_larger_budget(monkeypatch):
    few = {"clip_fractions": {}} | GOOD | {"effective_draws": 50.0}
    for noise, said in ((0.03, "about 6 times as many draws on the same budget"), (0.9, "or epsilon")):
        found = Quality(**(few | {"test_noise": noise}))
        monkeypatch.setattr(verdict_module, "quality", lambda _, found=found: found)
        assert said in quality_report(of_clipped_ratios())


@functools.cache
def of_clipped_ratios():
    return run(np.random.default_rng(0).normal(size=2000), clip_log_ratio=0.05)


def test_clipping_is_called_bias():
    tree = of_clipped_ratios()
    assert quality(tree).biased
    assert "BIASED" in quality_report(tree)


def test_a_run_that_never_moved_promises_nothing():
    report = quality_report(run(np.zeros(100), step_size=1e-30))
    assert "Nothing was accepted" in report
    assert "epsilon" not in report


NEAR = {"step_size": 0.02, "n_leapfrog": 3, "mass_matrix": [1.0]}


@pytest.mark.parametrize("clip_diagnostics", ["private", None])
def test_what_is_switched_off_is_not_known(clip_diagnostics):
    """Hazard H44: a figure that was not released leaves the verdict open."""
    y = gaussian_data(5000)
    with gaussian_model(y):
        step = hmc(dp.PrivacyBudget(300.0, 1e-6), clip_diagnostics=clip_diagnostics, insecure_seed=0, **NEAR)
        tree = pm.sample(draws=200, chains=4, cores=1, step=step, initvals={"mu": y.mean()}, **QUIET)
    found = quality(tree)
    assert found.verdict == ("usable" if clip_diagnostics else "unknown")
    assert (found.missing == ()) is bool(clip_diagnostics)
    if clip_diagnostics is None:
        assert "UNKNOWN whether they are usable as a posterior: not released" in quality_report(tree)


def test_releases_are_not_needed_for_the_verdict():
    tree = run(np.zeros(3000), keep_releases=False)
    noise_std = next(iter(quality(tree).clip_fractions.values())).noise_std
    kept = quality(run(np.zeros(3000)))
    assert noise_std == pytest.approx(next(iter(kept.clip_fractions.values())).noise_std, rel=1e-6)
    assert noise_std > 0.0


def test_noise_of_clip_fractions_is_that_of_the_mean_of_all_counts():
    tree = run(np.zeros(3000))
    counts = tree["releases"]["clip_count"].values[:, 1] / 3000
    found = quality(tree).clip_fractions["log_ratio"]
    assert found.fraction == pytest.approx(np.average(counts, weights=[3, 2, 3, 2] * 2))
    each = tree["releases"]["clip_count_noise_std"].values / 3000
    assert found.noise_std == pytest.approx(np.sqrt(np.sum((each * np.array([3, 2, 3, 2] * 2) / 20) ** 2)))


def test_exact_counts_are_called_exact():
    report = quality_report(run(np.zeros(1000), clip_diagnostics="exact"))
    assert "(exact, not private)" in report
    assert "clipped units in a log-ratio: 0.00% (exact" in report


def test_chains_that_never_moved_are_not_usable():
    tree = run(np.zeros(3000), step_size=1e-30)
    found = quality(tree)
    assert {"chain 0", "chain 1"} <= set(found.stuck)
    assert found.verdict == "not usable"
    assert "never moved: chain 0, chain 1" in quality_report(tree)


def frozen(tree, name, value):
    """A tree whose draws of one variable are constant."""
    posterior = tree["posterior"].to_dataset()
    posterior[name] = posterior[name] * 0.0 + value
    tree["posterior"] = posterior
    return tree


def test_a_parameter_that_never_moved_is_not_usable_beside_others_that_did():
    with pm.Model():
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        pm.Normal("y", mu, tau + 1.0, observed=gaussian_data(500))
        step = hmc(dp.PrivacyBudget(500.0, 1e-6), step_size=0.01, insecure_seed=0)
        tree = pm.sample(draws=20, chains=2, cores=1, step=step, **QUIET)
    assert json.loads(tree["privacy"].attrs["parameters"]) == {"mu": 1, "tau": 1}
    assert quality(tree).stuck == ()
    assert quality(frozen(tree, "tau", 1.0)).stuck == ("tau",)


def test_repeated_draws_are_no_effective_draws():
    tree = run(gaussian_data(3000))
    posterior = tree["posterior"].to_dataset()
    posterior["mu"] = posterior["mu"].round(1)
    different = sum(len(np.unique(chain)) for chain in posterior["mu"].values)
    tree["posterior"] = posterior
    assert quality(tree).effective_draws <= different < 20


@pytest.mark.parametrize("name", ["minibatch-penalty", "barker", "sgld"])
def test_tempering_is_in_both_reports_with_what_it_does_to_widths(name):
    with gaussian_model(gaussian_data(400)):
        budget = dp.PrivacyBudget(100.0, 1e-6)
        step = {
            "minibatch-penalty": lambda: dp.DPMinibatchPenalty(clip_log_ratio=4.0, proposal_scale=0.1, **shared),
            "barker": lambda: dp.DPBarker(proposal_scale=0.1, **shared),
            "sgld": lambda: dp.DPSGLD(clip_gradient=4.0, step_size=1e-4, **shared),
        }
        shared = {"budget": budget, "batch_size": 100, "tempering": 0.01}
        tree = pm.sample(draws=10, chains=2, cores=1, step=step[name](), **QUIET)
    for report in (privacy_report(tree), quality_report(tree)):
        assert "TEMPERED" in report
        assert "likelihood to the power 0.01" in report
        assert "about 10 times as wide" in report
    assert quality(tree).verdict == "not usable"
    assert "they follow the likelihood to the power 0.01" in quality_report(tree)


def advice_with(tree, **changed):
    """The advice of a run with another figure in place of its own."""
    stats = tree["sample_stats"].to_dataset()
    for name, value in changed.items():
        stats[name] = stats[name] * 0.0 + value
    tree["sample_stats"] = stats
    return quality_report(tree)


def test_advice_never_asks_for_fewer_units_or_less_epsilon_than_there_are():
    y = gaussian_data(3000)
    made = {}
    for draws in (50, 300):
        with gaussian_model(y):
            step = hmc(dp.PrivacyBudget(80.0, 1e-6), insecure_seed=0, **NEAR)
            made[draws] = pm.sample(draws=draws, chains=2, cores=1, step=step, **QUIET)
    for draws, noise_std in ((50, 2.0), (300, 0.1), (300, 4.0)):
        report = advice_with(made[draws], noise_std=noise_std)
        asked = re.search(r"some ([\d,]+) units .*there are 3,000.* or epsilon ([\d.,]+) on these", report)
        if asked:
            assert int(asked[1].replace(",", "")) > 3000
            assert float(asked[2].replace(",", "")) >= 79.9
        else:
            assert "units at this epsilon" not in report


def test_where_noise_is_not_the_limit_the_advice_says_so():
    tree = run(np.random.default_rng(0).normal(size=2000), clip_log_ratio=0.05, draws=200)
    posterior = tree["posterior"].to_dataset()
    posterior["mu"] = ("chain", "draw"), np.random.default_rng(1).normal(size=(2, 200))
    tree["posterior"] = posterior
    report = advice_with(tree, noise_std=0.5)
    assert "NOT usable as a posterior: clipping in a log-ratio" in report
    assert "More units or a larger epsilon are not what it takes" in report
    assert "units at this epsilon" not in report
    (step,) = json.loads(tree["privacy"].attrs["steps"])  # of this one it has been said that a larger epsilon helps
    tree["privacy"].attrs["steps"] = json.dumps([{**step, "sampler": "dp_surrogate_hmc"}])
    report = quality_report(tree)
    assert "a larger epsilon lets it choose larger bounds" in report
    assert "are not what it takes" not in report


@pytest.mark.parametrize(
    ("samplers", "said", "unsaid"),
    [
        (["dp_hmc"], "raise the clip bound", "synthetic"),
        (["dp_barker"], "shorter moves", "raise the clip bound"),
        (["dp_surrogate_hmc"], "weighs bias against noise", "raise the clip bound"),
        (["dp_hmc", "dp_penalty"], "raise the clip bound", "shorter moves"),
    ],
)
def test_advice_against_clipping_is_for_settings_that_the_sampler_has(samplers, said, unsaid):
    tree = of_clipped_ratios().copy(deep=True)
    (step,) = json.loads(tree["privacy"].attrs["steps"])
    tree["privacy"].attrs["steps"] = json.dumps([{**step, "sampler": sampler} for sampler in samplers])
    report = quality_report(tree)
    assert "BIASED" in report
    assert said in report
    assert unsaid not in report


def test_groups_added_later_are_not_covered():
    tree = run(np.zeros(100))
    assert "GROUPS ADDED" not in privacy_report(tree)
    tree["observed_data"] = tree["posterior"].copy()
    assert "GROUPS ADDED AFTER THE RUN: observed_data" in privacy_report(tree)


def test_a_parameter_that_noise_hides_is_named():
    """Hazard H51: figures are means over parameters."""
    found = Quality(**GOOD, clip_fractions={}, widening=1.3, most_widened="slope[rare]", largest_widening=6.1)
    assert "most of all slope[rare]: about 6.1 times" in " ".join(surrogate_in_words(found))
    even = dataclasses.replace(found, largest_widening=1.4)
    assert "most of all" not in " ".join(surrogate_in_words(even))


@pytest.mark.parametrize("pull", [0.9, 1.1])
def test_intervals_are_not_trusted_farther_than_a_prior_that_decides(pull):
    """Hazard H51: beside noise a prior moves means that it would not move without, and widths show nothing of it."""
    found = Quality(**GOOD, clip_fractions={}, widening=2.0, most_pulled="slope[rare]", prior_pull=pull)
    said = " ".join(surrogate_in_words(found))
    assert found.usable
    assert ("it moves slope[rare] by 1.1 sd of the draws" in said) == found.hangs_on_prior == (pull > 1.0)


def test_parameters_that_come_back_as_their_prior_are_named():
    """Hazard H51: of a rare level noise may hide the curvature, and with it how much it widens."""
    assert "as wide as the prior" not in " ".join(surrogate_in_words(Quality(**GOOD, clip_fractions={})))
    names = tuple(f"level[{k}]" for k in range(7))
    said = " ".join(surrogate_in_words(Quality(**GOOD, clip_fractions={}, as_prior=names)))
    assert "draws of level[0], level[1], level[2], level[3], level[4] and 2 more are as wide as the prior" in said
