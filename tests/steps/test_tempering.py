"""A likelihood to a power, by samplers on all units: the law that is drawn from, its mark, and never twice."""

import math
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model
from fakes import MEAN, PRECISION, NormalCurator, OneCurator, started
from posteriors import published
from test_stationarity import FALSE_ALARM, StandardNormalPrior, smallest_p_value

import pymc_dp as dp
from pymc_dp.steps.access import Authorisation

POWER = 0.3
#: Of the tempered posterior: only the likelihood, a normal, is to a power; the prior is standard normal.
TEMPERED_PRECISION = POWER * PRECISION + np.eye(2)
TEMPERED_MEAN = np.linalg.solve(TEMPERED_PRECISION, POWER * PRECISION @ MEAN)
HMC = {"clip_gradient": 1.0, "clip_log_ratio": 1.0, "step_size": 0.5}
PENALTY = {"clip_log_ratio": 1.0, "proposal_scale": 0.8}
SETTINGS = {dp.DPHMC: HMC | {"n_leapfrog": 2}, dp.DPMALA: HMC, dp.DPPenalty: PENALTY}


def after_some_steps(step_class, replicates, steps, *, ratio_noise=2.0, seed=0, **settings):
    """Return where iterations lead from exact draws of the tempered posterior, whitened by its law."""
    curator = NormalCurator(seed, 3.0, ratio_noise)
    step = started(step_class, curator, seed=seed + 1, tempering=POWER, **settings)
    multipliers = {"gradient": 1.0, "log_ratio": 1.0}
    step._authorisation = Authorisation(OneCurator(curator), StandardNormalPrior(), multipliers, 1.0)
    step.setup_chain(np.random.default_rng(seed + 1), 0, 10**6)
    factor = np.linalg.cholesky(np.linalg.inv(TEMPERED_PRECISION))
    generator, ends = np.random.default_rng(seed + 2), []
    for _ in range(replicates):
        theta = TEMPERED_MEAN + factor @ generator.standard_normal(2)
        step.start()
        for _ in range(steps):
            theta = step.transition(theta).theta
        ends.append(theta)
    return np.linalg.solve(factor, (np.array(ends) - TEMPERED_MEAN).T).T


@pytest.mark.slow
@pytest.mark.parametrize("step_class", SETTINGS, ids=lambda step_class: step_class.name)
def test_the_tempered_posterior_is_stationary(step_class):
    assert smallest_p_value(after_some_steps(step_class, 2500, 8, **SETTINGS[step_class])) > FALSE_ALARM


class NoiseNotTempered(dp.DPPenalty):
    """Takes the noise in the tempered log-ratio to be that of the release."""

    def release_log_ratio(self, theta, theta_new, bound):
        release = super().release_log_ratio(theta, theta_new, bound)
        return replace(release, noise_std=release.noise_std / self.tempering)


class NotTempered(dp.DPPenalty):
    """Does not temper at all."""

    def release_log_ratio(self, theta, theta_new, bound):
        return self.chain.log_ratio(theta, theta_new, bound)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [pytest.param(NoiseNotTempered, marks=pytest.mark.nightly), NotTempered])
def test_mistakes_are_seen(mutant):
    assert smallest_p_value(after_some_steps(mutant, 10_000, 8, **PENALTY)) < FALSE_ALARM


@pytest.mark.parametrize("step_class", SETTINGS, ids=lambda step_class: step_class.name)
def test_tempered_draws_are_marked_and_the_release_is_as_it_was_made(step_class):
    budget = dp.PrivacyBudget(20.0, 1e-6)
    settings = SETTINGS[step_class] | {"clip_log_ratio": 4.0, "tempering": 0.25}
    with gaussian_model(gaussian_data(400)):
        tree = dp.sample(draws=4, chains=2, cores=1, step=step_class(budget=budget, **settings), **QUIET)
    facts, stats = tree["privacy"].attrs, tree["sample_stats"]
    assert (facts["tempered"], facts["tempering"]) == (1, 0.25)
    assert "TEMPERED: the draws follow the prior times the likelihood to the power 0.25" in (
        dp.diagnostics.quality_report(tree)
    )
    assert "TEMPERED" in dp.diagnostics.privacy_report(tree)
    assert dp.diagnostics.quality(tree).verdict == "not usable"
    releases = tree["releases"]
    assert np.ravel(stats["noise_std"].values) == pytest.approx(0.25 * releases["log_ratio_noise_std"].values)
    assert np.ravel(stats["log_ratio"].values) == pytest.approx(0.25 * releases["log_ratio"].values)


def test_draws_of_the_posterior_are_not_marked():
    budget = dp.PrivacyBudget(20.0, 1e-6)
    with gaussian_model(gaussian_data(400)):
        tree = dp.sample(draws=4, chains=2, cores=1, step=dp.DPPenalty(budget=budget, **PENALTY), **QUIET)
    assert tree["privacy"].attrs["tempered"] == 0
    assert "TEMPERED" not in dp.diagnostics.quality_report(tree)


def relative_to_the_first(model):
    """Return log-likelihood and log-prior at points, less those at the first; differences are summed, not sums."""
    changes = []
    for which in (model.observed_RVs, model.free_RVs):
        log_density = model.compile_fn(model.logp(vars=which, sum=False), inputs=model.value_vars)
        values = [np.concatenate([np.ravel(term) for term in log_density(point)]) for point in POINTS]
        changes.append([math.fsum(each - values[0]) for each in values[1:]])
    return list(zip(*changes, strict=True))


def test_the_published_posterior_without_tempering_is_the_one_to_temper():
    """What the documentation says of the two: the same data, and the prior times the likelihood to the power."""
    plain, powered = published("banana-2"), published("banana-tempered-2")
    assert powered.tempering == 0.01
    found, expected = (
        [power * rows + prior for rows, prior in relative_to_the_first(posterior.model)]
        for posterior, power in ((powered, 1.0), (plain, powered.tempering))
    )
    assert found == pytest.approx(expected, rel=1e-9)
    assert np.abs(found).min() > 1.0


POINTS = [{"first": first, "second": second} for first, second in ((0.0, 3.0), (0.1, 2.5), (-0.3, 1.0), (0.5, 3.5))]


def test_steps_of_one_run_temper_alike():
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with pm.Model():
        pm.Normal("y", pm.Normal("a") + pm.Normal("b"), 1.0, observed=np.zeros(30))
        one = dp.DPPenalty(["a"], budget=budget, tempering=0.5, **PENALTY)
        other = dp.DPPenalty(["b"], budget=budget, **PENALTY)
        with pytest.raises(dp.UnsupportedOption, match="the same tempering"):
            dp.sample(draws=4, chains=2, step=[one, other], **QUIET)
    assert budget.epsilon_spent == 0.0


@pytest.mark.parametrize("tempering", [0.0, -0.5, 1.1, np.nan])
@pytest.mark.parametrize("step_class", SETTINGS, ids=lambda step_class: step_class.name)
def test_powers_out_of_range_are_refused(step_class, tempering, budget):
    with gaussian_model(gaussian_data(20)), pytest.raises(dp.InvalidArgument, match="tempering"):
        step_class(budget=budget, tempering=tempering, **SETTINGS[step_class])
