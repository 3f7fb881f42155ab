"""Recovery of known posteriors through the whole path, with noise that matters."""

import functools

import arviz as az
import numpy as np
import pymc as pm
import pytest
from conftest import QUIET

import pymc_dp as dp

pytestmark = pytest.mark.production

#: Two-sided z of a test that is wrong once in about 15,000 runs.
Z_LIMIT = 4.0


def hmc(n, reuse=True, **shared):
    settings = {"clip_gradient": 6.0, "clip_log_ratio": 6.0, "step_size": 0.8, "n_leapfrog": 2}
    return dp.DPHMC(mass_matrix=np.array([float(n)]), reuse_gradient=reuse, **settings, **shared)


def mala(n, **shared):
    settings = {"clip_gradient": 6.0, "clip_log_ratio": 6.0, "step_size": 1.0}
    return dp.DPMALA(mass_matrix=np.array([float(n)]), **settings, **shared)


def penalty(proposal):
    return lambda n, **shared: dp.DPPenalty(
        clip_log_ratio=6.0, proposal=proposal, proposal_scale=1.5 / np.sqrt(n), **shared
    )


def recovered(n, prior_std, epsilon, draws, *, seed, make):
    """Sample the mean of a normal; return z-scores of the posterior mean and standard deviation, and the tree."""
    y = np.random.default_rng(seed).normal(0.3, 1.0, size=n)
    precision = n + prior_std**-2
    mean, std = y.sum() / precision, precision**-0.5
    with pm.Model():
        mu = pm.Normal("mu", 0.0, prior_std)
        pm.Normal("y", mu, 1.0, observed=y)
        # Seeded: effective sample sizes of sticky chains are too large now and then, so that z has long tails.
        step = make(n, budget=dp.PrivacyBudget(epsilon, 1e-8), insecure_seed=seed)
        tree = pm.sample(draws=draws, tune=100, chains=4, cores=1, step=step, random_seed=seed, **QUIET)
    found = tree["posterior"]["mu"]
    effective = float(az.ess(tree)["mu"])
    effective_squares = float(az.ess(tree.posterior.to_dataset().map(lambda v: (v - mean) ** 2))["mu"])
    z_mean = float(found.mean() - mean) / (std / np.sqrt(effective))
    z_variance = (float(((found - mean) ** 2).mean()) / std**2 - 1.0) / np.sqrt(2.0 / effective_squares)
    return z_mean, z_variance, tree


SAMPLERS = {
    "hmc": hmc,
    "mala": mala,
    **{f"penalty-{name}": penalty(name) for name in ("gaussian", "one-component", "guided-walk")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_small_table(name):
    z_mean, z_variance, tree = recovered(2_000, 0.1, 200.0, 500, seed=1, make=SAMPLERS[name])
    assert abs(z_mean) < Z_LIMIT
    assert abs(z_variance) < Z_LIMIT
    assert float(tree["sample_stats"]["noise_std"].median()) > 0.3


@pytest.mark.nightly
@pytest.mark.parametrize("reuse", [True, False])
def test_a_hundred_thousand_rows(reuse):
    z_mean, z_variance, tree = recovered(100_000, 0.1, 20.0, 500, seed=2, make=functools.partial(hmc, reuse=reuse))
    assert abs(z_mean) < Z_LIMIT
    assert abs(z_variance) < Z_LIMIT
    stats = tree["sample_stats"]
    assert float(stats["noise_std"].median()) > 0.5  # the noise visibly matters to the test
    assert 0.1 < float(stats["accepted"].mean()) < 0.8
    gradient_noise = float(tree["releases"]["gradient_noise_std"][0]) / np.sqrt(100_000)
    assert gradient_noise > 0.3  # and to the gradient, in units of the posterior's curvature
