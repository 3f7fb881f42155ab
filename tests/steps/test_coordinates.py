"""Searches in coordinates where the mean of a hierarchy's members is a parameter of the likelihood."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from searches import Problem, searches

from pymc_dp.model.parameters import ParameterVector
from pymc_dp.release.interface import ExpansionPoint, Release
from pymc_dp.release.preconditioned import CentredScore
from pymc_dp.release.sizes import BoundedScore
from pymc_dp.steps.access import OwnParameters, _PriorOfSome
from pymc_dp.steps.prelude import learning
from pymc_dp.steps.prelude.belief import Belief
from pymc_dp.steps.prelude.coordinates import (
    AccessInCoordinates,
    PriorInCoordinates,
    found_at_parameters,
    regression_in_coordinates,
)
from pymc_dp.steps.prelude.search import _OCTAVES, Found, Regression, Search

#: mu, two members around it, a slope.
TO_PARAMETERS = np.array([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]])
KNOWN = np.array([False, True, True, True])


def test_releases_are_those_at_the_parameters_along_the_same_axes():
    asked = []

    def release(query, noise_multiplier=None):
        asked.append(query)
        return Release(query.kind, np.zeros(1), 1.0, query.where)

    structure = np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]], dtype=bool)
    facts = {"knows_responses": True, "structure": structure, "unidentified": None}
    chain = SimpleNamespace(release=release, prior=None, **facts)
    access = AccessInCoordinates(chain, TO_PARAMETERS)
    at, generator = np.array([3.0, 0.5, -0.5, 2.0]), np.random.default_rng(0)
    axes, score = generator.normal(size=(4, 4)), np.r_[0.0, generator.normal(size=3)]
    made = access.release(CentredScore(ExpansionPoint(at, axes, 1.0), "approach"))
    point = asked[0].point
    np.testing.assert_allclose(point.theta, [3.0, 3.5, 2.5, 2.0])
    of_coordinates = np.array([score[1] + score[2], score[1], score[2], score[3]])
    np.testing.assert_allclose(point.preconditioner.T @ score, axes.T @ of_coordinates)
    np.testing.assert_array_equal(made.where[0], at)
    access.release(BoundedScore(at, 3, 1.0))
    np.testing.assert_allclose(asked[1].theta, [3.0, 3.5, 2.5, 2.0])
    assert access.structure[0].all()
    assert not access.structure[1, 2]


def test_what_is_nothing_to_the_likelihood_is_nothing_in_coordinates():
    """Directions along which it does not change have no part in the mean of members, which it does not depend on."""
    chain = SimpleNamespace(prior=None, knows_responses=True, structure=None, unidentified=None)
    assert AccessInCoordinates(chain, TO_PARAMETERS).unidentified is None
    chain.unidentified = np.array([[0.0], [1.0], [-1.0], [0.5]])
    found = AccessInCoordinates(chain, TO_PARAMETERS).unidentified
    np.testing.assert_allclose(TO_PARAMETERS @ found, chain.unidentified)


def test_a_prior_in_coordinates_has_the_derivatives_of_its_density():
    information = np.array([0.5, 2.0, 3.0, 1.0])
    prior = SimpleNamespace(
        log_density=lambda theta: -0.5 * float(information @ theta**2),
        gradient=lambda theta: -information * theta,
        hessian=lambda theta: -np.diag(information),
    )
    inside, at = PriorInCoordinates(prior, TO_PARAMETERS), np.array([1.0, -2.0, 0.3, 0.7])
    steps = 1e-5 * np.eye(4)
    numeric = [(inside.log_density(at + step) - inside.log_density(at - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(inside.gradient(at), numeric, rtol=1e-6)
    second = [(inside.gradient(at + step) - inside.gradient(at - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(inside.hessian(at), second, atol=1e-8)


def test_a_prior_of_some_parameters_has_their_derivatives():
    own = OwnParameters((True, False, True), (slice(0, 1), slice(1, 3), slice(3, 4)))
    own.whole = np.array([1.0, 2.0, 3.0, 4.0])
    everything = np.array([[2.0, 1.0, 0.0, 0.5], [1.0, 3.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.5, 0.0, 0.0, 4.0]])
    prior = SimpleNamespace(gradient=lambda theta: -everything @ theta, hessian=lambda theta: -everything)
    some, at = _PriorOfSome(prior, own), np.array([-1.0, 2.0])
    np.testing.assert_allclose(some.gradient(at), [-1.0, -7.5])
    np.testing.assert_array_equal(some.hessian(at), [[-2.0, -0.5], [-0.5, -4.0]])


def test_what_is_found_is_a_likelihood_of_the_parameters():
    """Along the direction on which the likelihood does not depend nothing but noise is known, and nothing stays."""
    generator = np.random.default_rng(1)
    factor, scatter = generator.normal(size=(2, 4, 6))
    factor[0] = 0.0
    information, noise = factor @ factor.T, scatter @ scatter.T
    mean = np.array([0.0, 1.0, 2.0, -1.0])
    hidden = np.array([1.0, -1.0, -1.0, 0.0])
    inside = TO_PARAMETERS.T @ information @ TO_PARAMETERS + 0.5 * np.outer(hidden, hidden)
    from_parameters = np.linalg.inv(TO_PARAMETERS)
    belief = Belief(
        from_parameters @ (mean + np.array([5.0, 0.0, 0.0, 0.0])),
        inside,
        from_parameters @ noise @ from_parameters.T,
        np.zeros((4, 4)),
        np.ones(4, dtype=bool),
    )
    point = ExpansionPoint(np.zeros(4), np.eye(4), 1.0)
    found = Found(point, np.eye(4), None, belief, None, foreseen=inside)
    at = found_at_parameters(found, KNOWN, TO_PARAMETERS, None)
    np.testing.assert_allclose(at.belief.information, information, atol=1e-9)
    np.testing.assert_allclose(at.belief.mean[1:], mean[1:])
    block = np.ix_(KNOWN, KNOWN)
    np.testing.assert_allclose(at.belief.noise[block], noise[block])
    assert not at.belief.noise[0].any()
    np.testing.assert_array_equal(at.belief.known, KNOWN)
    np.testing.assert_allclose(at.centre.preconditioner.T @ np.r_[0.0, 1.0, 1.0, 0.0], [2.0, 1.0, 1.0, 0.0])
    apart = np.ones((4, 4), dtype=bool)
    apart[1, 2] = apart[2, 1] = False  # two members share no row
    of_members = found_at_parameters(found, KNOWN, TO_PARAMETERS, apart).belief.information
    np.testing.assert_allclose(of_members, np.where(apart, information, 0.0), atol=1e-9)
    score = generator.normal(size=4)
    np.testing.assert_allclose(at.back @ (at.centre.preconditioner.T @ score), score)
    np.testing.assert_allclose(TO_PARAMETERS.T @ at.foreseen @ TO_PARAMETERS, inside)


def test_the_size_of_scores_of_a_mean_is_that_of_its_members():
    """No unit has a score of the mean itself, and each one that of one member."""
    regression = regression_in_coordinates(
        Regression(np.array([1.0, 3.0, 4.0, 0.0]), KNOWN, np.zeros(0, dtype=np.intp), in_predictor=KNOWN),
        TO_PARAMETERS,
    )
    np.testing.assert_allclose(regression.start, [1.0, 2.0, 3.0, 0.0])
    assert regression.known.all()
    counts = np.zeros((4, _OCTAVES))
    counts[1:, 24], counts[0, 3] = 500.0, 1000.0  # scores of 1 to 2, of the others; what noise says of the mean
    search = object.__new__(Search)
    search._chain = SimpleNamespace(
        n_units=1000, release=lambda query: Release(query.kind, counts.ravel(), 1e-3, query.where)
    )
    search._regression, search._weights = regression, np.ones(4)
    search.structure = np.array([[1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 1]], dtype=bool)
    scales = np.diag(search._comparable(np.zeros(4)).back) * search._weights
    assert scales[0] == pytest.approx(np.hypot(scales[1], scales[2]))
    assert search._weights[0] == 1.0


@pytest.mark.parametrize("normal", [True, False])
def test_the_location_of_groups_is_searched_for_in_coordinates(normal, monkeypatch):
    """And what is found is near what the rows say."""
    generator, n, made = np.random.default_rng(1), 600, []
    group, x = generator.integers(0, 3, n), generator.normal(45.0, 12.0, n)
    location = np.array([1.0, 2.0, 3.0])[group] + 0.05 * (x - 45.0)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 20.0), pm.HalfNormal("tau", 5.0)
        members, slope = pm.Normal("members", mu, tau, shape=3), pm.Normal("slope", 0.0, 1.0)
        mean = members[pm.Data("group", group)] + slope * pm.Data("x", x)
        if normal:
            y = location + 0.5 * generator.normal(size=n)
            pm.Normal("y", mean, pm.HalfNormal("sigma", 2.0), observed=y)
        else:
            pm.Bernoulli("y", logit_p=mean, observed=(generator.random(n) < 0.5).astype(int))
    monkeypatch.setattr(
        learning, "AccessInCoordinates", lambda *given: made.append(given) or AccessInCoordinates(*given)
    )
    ((mode, _),) = searches(Problem(model, normal=False), 50.0, 1e-6, 1, 0)
    assert len(made) == normal
    if normal:
        design = np.column_stack([np.eye(3)[group], x])
        labels = ParameterVector(model).labels
        found = mode[[labels.index(name) for name in ("members[0]", "members[1]", "members[2]", "slope")]]
        np.testing.assert_allclose(design @ found, design @ np.linalg.lstsq(design, y)[0], atol=0.1)
