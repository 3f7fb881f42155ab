"""A black-box audit: an attacker who knows everything but one row, and how well he tells two tables apart.

One Gaussian release with noise multiplier m has, at its worst, the trade-off of telling N(0, 1) from N(1 / m, 1). The
attacker's error rates bound that parameter from below; a bound above the claimed one convicts. Each audit convicts an
honest curator once in 1,000 runs. Whole runs of samplers are audited by `audit.py`: here with few runs, and with ten
thousand by ``attack.py audit``.
"""

from unittest import mock

import numpy as np
import pytest
from audit import SURVEYS, all_audits, audited, audited_survey, broken_audits, least_epsilon
from conftest import gaussian_model
from scipy import stats

from pymc_dp.accounting import GaussianReleases
from pymc_dp.model.view import read
from pymc_dp.release import InsecureNoise, MeteredCurator, SecureNoise
from pymc_dp.release.queries import GradientSum
from pymc_dp.rows import UnitLikelihood
from pymc_dp.run import sampling
from pymc_dp.surveys import asking

TRIALS = 3000
MULTIPLIER = 0.8
BOUND = 2.0


class HalvedNoise(SecureNoise):
    """A broken source that adds half of what was paid for."""

    def add(self, integers, scale):
        return super().add(integers, scale / 2)


class TenthOfTheNoise(SecureNoise):
    """A broken source that adds a tenth of what was paid for."""

    def add(self, integers, scale):
        return super().add(integers, scale / 10)


@pytest.fixture(scope="module")
def tables():
    """Two neighbouring tables whose gradients are as far apart as clipping allows."""
    y = np.random.default_rng(0).normal(size=50)
    return [UnitLikelihood(read(gaussian_model(np.append(y, last)))) for last in (-1e3, 1e3)]


def least_parameter(tables, noise, relation="substitute", trials=TRIALS):
    """Return what an attacker proves: a lower bound on the trade-off's parameter, with confidence 99.9 %."""
    outputs = []
    for rows in tables:
        curator = MeteredCurator(rows, noise, relation, [GaussianReleases("gradient", trials, MULTIPLIER)])
        released = [curator.release(GradientSum(np.zeros(1), BOUND), MULTIPLIER).value[0] for _ in range(trials)]
        outputs.append(np.array(released))
    threshold = np.median(np.concatenate(outputs))
    false_alarms, misses = np.sum(outputs[0] > threshold), np.sum(outputs[1] <= threshold)
    worst = [stats.beta.ppf(1 - 5e-4, errors + 1, trials - errors) for errors in (false_alarms, misses)]
    return stats.norm.isf(worst[0]) + stats.norm.isf(worst[1])


def test_an_honest_curator_is_not_convicted_and_its_noise_is_not_wasted(tables):
    least = least_parameter(tables, InsecureNoise([0]))  # with other noise one run in a thousand is convicted
    assert 0.8 / MULTIPLIER < least <= 1.0 / MULTIPLIER


def test_halved_noise_is_convicted(tables):
    """Hazard H35: the audit sees a broken curator."""
    assert least_parameter(tables, HalvedNoise(), trials=1000) > 1.0 / MULTIPLIER


def test_the_wrong_relation_is_convicted(tables):
    """Noise for adding or removing a row does not cover replacing one."""
    assert least_parameter(tables, SecureNoise(), relation="add-remove", trials=1000) > 1.0 / MULTIPLIER


def test_a_bound_on_epsilon_holds_and_is_not_far_off():
    """Randomised response: a bit that is turned with known probability."""
    generator = np.random.default_rng(0)
    truth, lie = (generator.random((2, 20_000)) < [[0.9], [0.1]]).astype(float)
    exact = np.log(0.9 / 0.1)
    assert 0.9 * exact < least_epsilon(truth, lie, 0.0, 0.999) <= exact
    assert 0.9 * exact < least_epsilon(-lie, -truth, 0.0, 0.999) <= exact
    assert least_epsilon(truth, truth[::-1], 0.0, 0.999) < 0.1
    assert least_epsilon(truth, lie, 0.9, 0.999) == 0.0  # all of it is covered by delta


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hmc", "sgld", "minibatch-penalty", "barker"])
def test_samplers_are_not_convicted(name):
    """Hazard H35: lower bounds on epsilon stay below the claim."""
    for sampler, relation in all_audits(name):
        if sampler.name == name:
            assert not audited(sampler, relation, 1000, 0.999).convicted


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.production  # interpreted, its many runs take twice as long
def test_a_default_sampler_with_a_tenth_of_its_noise_is_convicted():
    """Hazard H35: what is computed of releases before the chains tells tables apart."""
    (sampler, relation), *_ = all_audits("surrogate")
    broken = [lambda: mock.patch.object(sampling, "SecureNoise", TenthOfTheNoise)]
    assert audited(sampler, relation, 240, 0.99, breaking=broken).convicted


@pytest.mark.nightly
@pytest.mark.parametrize("survey", SURVEYS)
def test_surveys_are_not_convicted_and_with_a_tenth_of_their_noise_they_are(survey):
    """Hazard H35: of the sums that descriptions, checks, comparisons and averages release."""
    assert not audited_survey(survey, "substitute", 240, 0.999).convicted
    with mock.patch.object(asking, "SecureNoise", TenthOfTheNoise):
        assert audited_survey(survey, "substitute", 240, 0.99).convicted


@pytest.mark.slow
@pytest.mark.nightly
def test_broken_samplers_are_convicted():
    """Hazard H35: and exceed it for samplers that are broken."""
    for audit in broken_audits(3000, 0.999):
        assert audit.convicted, audit
