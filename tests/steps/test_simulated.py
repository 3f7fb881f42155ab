"""The search where rows can be simulated from the model: its steps."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET

import pymc_dp as dp
from pymc_dp.steps.prelude import simulated
from pymc_dp.steps.prelude.newton import NotComputable, can_stand_at, positive_definite, prior_curvature
from pymc_dp.steps.prelude.simulated import SearchBySimulation


@pytest.mark.parametrize(
    ("mode", "end"), [([3.0, -9.0], [3.0, -2.0]), ([3.0, 9.0], [3.0, 2.0]), ([3.0, 1.0], [3.0, 1.0])]
)
def test_a_step_changes_no_logarithm_of_a_scale_by_more_than_two(mode, end, monkeypatch):
    """Rows that are unlike all simulated ones make a surrogate whose mode is anywhere."""
    monkeypatch.setattr(simulated, "WeightedRows", lambda *_: None)
    search = SearchBySimulation(SimpleNamespace(prior=None, n_units=100), np.zeros(2), np.array([1]), 8, 0.998)
    monkeypatch.setattr(search, "_mode_of", lambda _, theta: theta + mode)
    monkeypatch.setattr(search, "_stand_at", lambda theta: theta)
    stand = SimpleNamespace(theta=np.array([10.0, 20.0]), units=None)
    assert search._next_stand(None, SimpleNamespace(value=None), stand) - stand.theta == pytest.approx(end)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_wide_priors_lead_nowhere_else(seed):
    """Noise is seeded by the test's name. Without a limit of steps half of such runs ended thousands of times away."""
    rows = 20.0 * np.random.default_rng(seed).weibull(1.5, 4000)
    with pm.Model():
        shape, scale = pm.HalfNormal("shape", 5.0), pm.HalfNormal("scale", 100.0)
        pm.Weibull("y", shape, scale, observed=rows)
        tree = pm.sample(draws=50, chains=1, budget=dp.PrivacyBudget(8.0, 1e-6), **QUIET)
    assert float(tree["posterior"]["shape"].mean()) == pytest.approx(1.5, abs=0.15)
    assert float(tree["posterior"]["scale"].mean()) == pytest.approx(20.0, abs=1.5)


def test_a_rate_far_below_the_priors_is_reached():
    """A limit in the information of simulated rows, which is large where rates are, let no search get there."""
    with pm.Model():
        pm.Poisson("y", pm.HalfNormal("rate", 1000.0), observed=np.random.default_rng(0).poisson(3.0, 4000))
        tree = pm.sample(draws=50, chains=1, budget=dp.PrivacyBudget(8.0, 1e-6), **QUIET)
    assert float(tree["posterior"]["rate"].mean()) == pytest.approx(3.0, abs=0.2)


def test_no_search_stands_where_squares_of_distances_are_no_numbers():
    class Flat:
        def log_density(self, theta):
            return 0.0

        def gradient(self, theta):
            return np.zeros_like(theta)

        def hessian(self, theta):
            return np.zeros((theta.size, theta.size))

    assert can_stand_at(Flat(), np.array([-1e140, 0.0]))
    assert not can_stand_at(Flat(), np.array([-1e295, 0.0]))
    assert not can_stand_at(Flat(), np.array([np.nan, 0.0]))
    with pytest.raises(NotComputable):
        positive_definite(np.array([[np.nan, 0.0], [0.0, 1.0]]))


def test_priors_are_told_in_units_of_each_parameters_own():
    """Of an intercept in hundred thousands beside a slope in thousandths; of nothing, where all are flat."""
    information = np.array([1e-10, 1e6, 1.0])
    prior = SimpleNamespace(hessian=lambda theta: -np.diag(information))
    found = prior_curvature(prior, np.zeros(3))
    np.testing.assert_allclose(found, np.diag(information), rtol=1e-6, atol=1e-16)
    flat = SimpleNamespace(hessian=lambda theta: np.zeros((3, 3)))
    assert np.abs(prior_curvature(flat, np.zeros(3))).max() < 1e-200
