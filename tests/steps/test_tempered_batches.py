"""The tests on batches, minibatch penalty and Barker: stationary law, plans, refusals."""

import json

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model
from fakes import NormalCurator
from test_stationarity import FALSE_ALARM, one_step, smallest_p_value

import pymc_dp as dp
from pymc_dp.accounting import BarkerReleases, account
from pymc_dp.accounting.renyi import barker_batch_bound
from pymc_dp.release import MeteredCurator, SecureNoise
from pymc_dp.release.barker_correction import log_ratio_and_variance
from pymc_dp.release.batches import BatchesWithoutReplacement
from pymc_dp.release.queries import BarkerDecision
from pymc_dp.rows import UnitLikelihood

SETTINGS = {
    dp.DPMinibatchPenalty: {"clip_log_ratio": 1.0, "proposal_scale": 0.6, "batch_size": 50, "n_units": 1000},
    dp.DPBarker: {"proposal_scale": 0.6, "batch_size": 50, "n_units": 1000},
}


@pytest.mark.slow
@pytest.mark.parametrize("step_class", SETTINGS, ids=lambda step_class: step_class.name)
def test_the_target_is_stationary_under_the_errors_of_batches_and_privacy(step_class):
    ends, acceptance = one_step(step_class, 2500, 8, ratio_noise=1.0, **SETTINGS[step_class])
    assert smallest_p_value(ends) > FALSE_ALARM
    assert 0.1 < acceptance < 0.8


class BatchErrorIgnored(NormalCurator):
    """Drops the correction for the batch's own error."""

    def batch_log_ratio(self, theta, theta_new, *arguments, **options):
        release = super().batch_log_ratio(theta, theta_new, *arguments, **options)
        _, variance = self._batch_estimate(theta, theta_new)
        return type(release)(release.kind, release.value + variance / 2, release.noise_std, release.where)

    def barker_decision(self, theta, theta_new, log_free_ratio, batches, tempering):
        estimate = self._batch_estimate
        self._batch_estimate = lambda *points: (4.0 * estimate(*points)[0], 0.0)  # scaled by more than n0 / b
        try:
            return super().barker_decision(theta, theta_new, log_free_ratio, batches, tempering)
        finally:
            self._batch_estimate = estimate


class NoPenalty(dp.DPMinibatchPenalty):
    """Accepts as if the noisy log-ratio were exact."""

    def release_log_ratio(self, theta, theta_new, bound):
        release = super().release_log_ratio(theta, theta_new, bound)
        return type(release)(release.kind, release.value + 0.5 * release.noise_std**2, release.noise_std, release.where)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("step_class", "curator"),
    [
        (NoPenalty, NormalCurator),
        (dp.DPMinibatchPenalty, BatchErrorIgnored),
        (dp.DPBarker, BatchErrorIgnored),
    ],
)
def test_the_stationarity_test_catches_mistakes(step_class, curator):
    settings = SETTINGS[dp.DPBarker if step_class is dp.DPBarker else dp.DPMinibatchPenalty]
    ends, _ = one_step(step_class, 20_000, 8, ratio_noise=1.0, curator_class=curator, **settings)
    assert smallest_p_value(ends) < FALSE_ALARM


def test_a_plan_of_decisions_costs_what_renyi_bounds_say():
    budget = dp.PrivacyBudget(6.0, 1e-6)
    with gaussian_model(gaussian_data()):
        step = dp.DPBarker(budget=budget, batch_size=1000, tempering=0.01, proposal_scale=0.1, n_units=100_000)
        plan = budget.plan(step, draws=400, tune=100, chains=4)
        decisions, counts = plan.releases
        assert decisions == BarkerReleases("decision", 2000, 1000, 100_000)
        assert (counts.kind, counts.count, counts.coordinates) == ("clip_count", 4 * 5, 1)
        alone = account([decisions], 1e-6, "substitute").epsilon
        assert alone == pytest.approx(2.94, abs=0.01)
        assert alone < plan.epsilon < 1.01 * alone
        assert counts.noise_multiplier < 1e-3 * 100_000  # noise of 0.1 % of the units
        with pytest.raises(dp.BudgetExceeded, match=r"What would fit: \d+ decisions") as error:
            budget.plan(step, draws=4000, chains=4)
        fit = int(str(error.value).split("fit: ")[1].split()[0])
        assert budget.plan(step, draws=fit, chains=1).epsilon <= 6.0


@pytest.mark.parametrize("step_class", SETTINGS, ids=lambda step_class: step_class.name)
def test_tempering_is_in_the_metadata(step_class):
    settings = SETTINGS[step_class] | {"batch_size": 150, "n_units": 400, "tempering": 0.25, "proposal_scale": 0.05}
    budget = dp.PrivacyBudget(20.0, 1e-6)
    with gaussian_model(gaussian_data(400)):
        tree = pm.sample(draws=4, chains=2, cores=1, step=step_class(budget=budget, **settings), **QUIET)
    facts = tree["privacy"].attrs
    assert facts["tempered"] == 1
    assert facts["tempering"] == 0.25
    assert facts["tempered_size"] == 100.0
    bound = json.loads(facts["clip_bounds"])["log_ratio"]
    assert bound == pytest.approx(np.sqrt(150) / 100 if step_class is dp.DPBarker else 1.0)
    if step_class is dp.DPMinibatchPenalty:
        assert "clip_fraction_log_ratio" in tree["sample_stats"]
    else:
        assert set(np.unique(tree["releases"]["decision"].values)) <= {0.0, 1.0}
        assert "clip_fraction_decision" in tree["sample_stats"]
    dp.diagnostics.quality_report(tree)


def normal_divergence(order, one, other):
    """The Rényi divergence of two normals given by mean and variance."""
    (mean, variance), (mean_other, variance_other) = one, other
    mixed = order * variance_other + (1 - order) * variance
    if mixed <= 0:
        return np.inf
    spread = np.log(mixed / (variance ** (1 - order) * variance_other**order)) / (1 - order) / 2
    return order * (mean - mean_other) ** 2 / (2 * mixed) + spread


@pytest.mark.parametrize("batch_size", [20, 100, 1000])
def test_no_replaced_unit_moves_a_decisions_noise_by_more_than_the_bound_it_is_accounted_for(batch_size, monkeypatch):
    """Extreme batches through the curator itself, at its own clip bound; replaced in both directions."""
    n_units, tempering = 2000, 0.05
    seen = []
    monkeypatch.setattr(
        "pymc_dp.release.curator.log_ratio_and_variance", lambda *a: seen.append(a) or log_ratio_and_variance(*a)
    )
    batches = BatchesWithoutReplacement(batch_size, n_units)
    generator = np.random.default_rng(0)
    for share in (0.0, 0.5, 1.0, None):
        seen.clear()
        signs = np.where(np.arange(batch_size) < (share or 0.0) * batch_size, 1e9, -1e9)
        others = generator.normal(size=batch_size) if share is None else signs
        for value in (1e9, -1e9, 0.0, np.inf):
            rows = ExtremeRows(np.concatenate([[value], others[1:]]), n_units)
            events = [batches.decisions("decision", 1)]
            curator = MeteredCurator(rows, SecureNoise(), "substitute", events)
            curator.release(BarkerDecision(np.zeros(1), np.ones(1), 0.3, batches, tempering))
        normals = [(mean, 2.0 - variance) for mean, variance in (log_ratio_and_variance(*each) for each in seen)]
        assert all(1.0 - 1e-9 <= variance <= 2.0 for _, variance in normals)
        for order in range(3, -(-batch_size // 5)):
            bound = barker_batch_bound(order, batch_size)
            for one in normals:
                for other in normals:
                    assert normal_divergence(order, one, other) <= bound


def test_equal_rows_meet_both_decisions():
    """Wrong once in 2**199 runs."""
    batches = BatchesWithoutReplacement(20, 100)
    rows = ExtremeRows(np.zeros(20), 100)
    events = [batches.decisions("decision", 200)]
    curator = MeteredCurator(rows, SecureNoise(), "substitute", events)
    decisions = {
        float(curator.release(BarkerDecision(np.zeros(1), np.ones(1), 0.0, batches, 0.5)).value[0]) for _ in range(200)
    }
    assert decisions == {0.0, 1.0}


class ExtremeRows:
    """Rows whose log-ratios are given for the units of any batch, clipped as the row engine does."""

    def __init__(self, log_ratios, n_units):
        self.n_units, self.log_ratios = n_units, log_ratios

    def unit_log_likelihoods(self, theta, units):
        return self.log_ratios * theta[0]

    log_ratio_moments = UnitLikelihood.log_ratio_moments


@pytest.mark.parametrize("step_class", SETTINGS, ids=lambda step_class: step_class.name)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": None}, "needs batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1001}, "larger than"),
        ({"tempering": 0.0}, "tempering"),
        ({"tempering": 1.1}, "tempering"),
        ({"budget": dp.PrivacyBudget(1.0, 1e-6, "add-remove")}, "substitute"),
        ({"proposal_scale": None}, "proposal_scale is required"),
    ],
)
def test_bad_settings_are_refused(step_class, settings, message, budget):
    with gaussian_model(gaussian_data()), pytest.raises(dp.InvalidArgument, match=message):
        step_class(**({"budget": budget, "prelude": None} | SETTINGS[step_class] | settings))


def test_the_barker_test_needs_sixteen_units(budget):
    with gaussian_model(gaussian_data()), pytest.raises(dp.InvalidArgument, match="at least 16"):
        dp.DPBarker(budget=budget, **(SETTINGS[dp.DPBarker] | {"batch_size": 15}))


@pytest.mark.slow
@pytest.mark.parametrize("step_class", SETTINGS, ids=lambda step_class: step_class.name)
def test_a_tempered_posterior_is_found(step_class):
    """A normal's mean, 20,000 units that count for 200: means within four standard errors, deviations within 20 %."""
    n, n0 = 20_000, 200
    y = np.random.default_rng(3).normal(0.3, 1.0, size=n)
    precision = n0 + 1.0
    mean, std = n0 * y.mean() / precision, precision**-0.5
    settings = {"batch_size": 2000, "tempering": n0 / n, "proposal_scale": 2.0 * std}
    if step_class is dp.DPMinibatchPenalty:
        settings["clip_log_ratio"] = 5.0
    with pm.Model():
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("y", mu, 1.0, observed=y)
        step = step_class(budget=dp.PrivacyBudget(200.0, 1e-6), **settings)
        tree = pm.sample(draws=2000, tune=100, chains=2, cores=1, step=step, initvals={"mu": mean}, **QUIET)
    found = tree["posterior"]["mu"].values
    effective = 2 * 2000 / 40  # of a chain with acceptance above a fifth, roughly
    assert abs(found.mean() - mean) / std < 4 / np.sqrt(effective)
    assert found.std() / std == pytest.approx(1.0, abs=0.2)
