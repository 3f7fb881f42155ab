"""Second derivatives by few differences of gradients: the same numbers, whatever shares which parameters."""

import numpy as np
import pymc as pm
import pytest
from hypothesis import given, settings, strategies as st

from pymc_dp.model.hessian import Hessian
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.prior import Prior


def by_each(gradient, theta):
    """Every column by itself, symmetric."""
    ways = 1e-4 * np.eye(theta.size)
    columns = np.array([(gradient(theta + way) - gradient(theta - way)) / 2e-4 for way in ways])
    return 0.5 * (columns + columns.T)


class Counted:
    """The gradient of cubes of sums along pairs of parameters that meet, and how often it was asked for."""

    def __init__(self, meet):
        self.there, self.calls = np.asarray(meet) | np.eye(len(meet), dtype=bool), 0
        self.first, self.second = np.nonzero(np.triu(self.there))

    def __call__(self, theta):
        self.calls += 1
        slopes = 3.0 * (theta[self.first] + theta[self.second]) ** 2
        found = np.zeros_like(theta)
        np.add.at(found, self.first, slopes)
        np.add.at(found, self.second, slopes)
        return found


@given(st.integers(1, 12), st.floats(0.0, 1.0), st.integers(0, 10**6))
@settings(max_examples=60)
def test_whatever_meets_the_entries_are_those_of_all_columns(size, share, seed):
    rng = np.random.default_rng(seed)
    meet = np.triu(rng.random((size, size)) < share, 1)
    gradient, theta = Counted(meet | meet.T), rng.normal(size=size)
    found = Hessian(gradient, size)(theta)
    np.testing.assert_allclose(found, by_each(gradient, theta), atol=1e-6)
    assert not found[~gradient.there].any()


def members(n_members, n_parents, pairs=False):
    """Parents that meet everything, and members that meet no other, or only the next one."""
    size = n_members + n_parents
    meet = np.zeros((size, size), dtype=bool)
    meet[:n_parents] = meet[:, :n_parents] = True
    if pairs:
        for place in range(n_parents, size - 1):
            meet[place, place + 1] = meet[place + 1, place] = True
    return meet


@pytest.mark.parametrize(("pairs", "differences"), [(False, 3), (True, 5)])
def test_members_of_a_hierarchy_are_differenced_together(pairs, differences):
    gradient = Counted(members(200, 2, pairs))
    hessian = Hessian(gradient, 202)
    hessian(np.zeros(202))
    gradient.calls = 0
    hessian(np.ones(202))
    assert gradient.calls == 2 * differences


@pytest.mark.parametrize("raises", [False, True])
def test_where_no_gradient_is_finite_no_entry_is_taken_for_zero(raises):
    """A gradient that is a number far from there alone; an error there would end a run that is charged."""

    def gradient(theta):
        if raises and theta.min() < 50.0:
            raise np.linalg.LinAlgError
        return np.where(theta.min() > 50.0, -theta * theta.sum(), np.nan)

    theta = np.full(3, 60.0)
    np.testing.assert_allclose(Hessian(gradient, 3)(theta), by_each(gradient, theta), rtol=1e-6)


def test_of_a_prior_with_hierarchies_and_a_matrix():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        pm.Normal("alpha", mu, tau, shape=9)
        pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        pm.Dirichlet("share", np.ones(3))
        pm.Potential("sums", -((mu - tau) ** 2))
    parameters = ParameterVector(model)
    prior, theta = Prior(model, parameters), np.random.default_rng(3).normal(size=parameters.size)
    np.testing.assert_allclose(prior.hessian(theta), by_each(prior.gradient, theta), atol=1e-5)
