"""Searches in other coordinates: with the mean of a hierarchy's members; with the location in units of the scale."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from against_reference import Problem, by_mode
from searches import LOST, searches, summary

import pymc_dp as dp
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.release.interface import ExpansionPoint, Release
from pymc_dp.release.preconditioned import CentredScore, PreconditionedScore
from pymc_dp.release.sizes import BoundedScore
from pymc_dp.steps.access import OwnParameters, _PriorOfSome
from pymc_dp.steps.prelude import learning
from pymc_dp.steps.prelude.approximation import found_at_parameters
from pymc_dp.steps.prelude.belief import Belief, KnownScore
from pymc_dp.steps.prelude.coordinates import (
    AccessInCoordinates,
    InUnitsOfScale,
    LinearCoordinates,
    PriorInCoordinates,
)
from pymc_dp.steps.prelude.curvature import KnownCurvature
from pymc_dp.steps.prelude.newton import Frame
from pymc_dp.steps.prelude.regression import Regression, requests_of_search
from pymc_dp.steps.prelude.search import Found, Search
from pymc_dp.steps.prelude.tails import OCTAVES

#: mu, two members around it, a slope.
TO_PARAMETERS = np.array([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]])
KNOWN = np.array([False, True, True, True])
LINEAR = LinearCoordinates(TO_PARAMETERS)
#: Two of a location, the logarithm of a shape, another one.
IN_UNITS = InUnitsOfScale(np.array([1.0, -2.0, 0.7, 0.0]), np.array([True, True, False, False]), -np.eye(4)[2])


@pytest.mark.parametrize("coordinates", [LINEAR, IN_UNITS])
def test_coordinates_have_the_derivatives_of_their_map(coordinates):
    at, gradient = np.array([0.3, -1.0, 0.2, 2.0]), np.array([1.5, -0.5, 2.0, 0.3])
    steps = 1e-6 * np.eye(4)
    numeric = [(coordinates.parameters(at + by) - coordinates.parameters(at - by)) / 2e-6 for by in steps]
    np.testing.assert_allclose(coordinates.slopes(at), np.transpose(numeric), atol=1e-8)
    np.testing.assert_array_equal(coordinates.reached, coordinates.slopes(at) != 0.0)
    along = [(coordinates.slopes(at + by) - coordinates.slopes(at - by)).T @ gradient / 2e-6 for by in steps]
    np.testing.assert_allclose(coordinates.second_order(at, gradient), along, atol=1e-8)


def test_a_location_is_measured_from_its_anchor_in_units_of_the_scale():
    """There nothing changes; and what is known of a ratio to the scale is known of no other coordinate."""
    anchor = IN_UNITS.anchor
    np.testing.assert_array_equal(IN_UNITS.parameters(anchor), anchor)
    np.testing.assert_array_equal(IN_UNITS.slopes(anchor), np.eye(4))
    twice = IN_UNITS.parameters(anchor + np.array([0.5, 1.0, np.log(2.0), 3.0]))  # the shape is twice as large
    np.testing.assert_allclose(twice, anchor + np.array([0.25, 0.5, np.log(2.0), 3.0]))


def test_releases_are_those_at_the_parameters_along_the_same_axes():
    asked = []

    def release(query, noise_multiplier=None):
        asked.append(query)
        return Release(query.kind, np.zeros(1), 1.0, query.where)

    structure = np.array([[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1]], dtype=bool)
    facts = {"knows_responses": True, "structure": structure, "unidentified": None}
    chain = SimpleNamespace(release=release, prior=None, **facts)
    access = AccessInCoordinates(chain, LINEAR)
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
    assert AccessInCoordinates(chain, LINEAR).unidentified is None
    chain.unidentified = np.array([[0.0], [1.0], [-1.0], [0.5]])
    found = AccessInCoordinates(chain, LINEAR).unidentified
    np.testing.assert_allclose(TO_PARAMETERS @ found, chain.unidentified)


def test_scores_along_an_axis_are_those_by_the_coordinate():
    """Where the scale grows and the coordinates of the location stay, the location itself moves."""
    asked, search = [], object.__new__(Search)
    chain = SimpleNamespace(
        release=lambda query, _=None: asked.append(query) or Release(query.kind, np.zeros(4), 1.0, query.where),
        prior=None, knows_responses=False, structure=np.eye(4, dtype=bool), unidentified=None,
    )  # fmt: skip
    access, at = AccessInCoordinates(chain, IN_UNITS), np.array([2.0, 0.0, 0.1, 1.0])
    regression = Regression(np.zeros(4), np.ones(4, dtype=bool), np.array([2]))
    search._regression = replace(regression, scale_of_censored=IN_UNITS.logarithm)
    access.release(search._score_along(at, 2, 1.5, "scale_score"))
    (query,) = asked
    assert (type(query), query.kind, query.point.clip_gradient) == (PreconditionedScore, "scale_score", 1.5)
    np.testing.assert_allclose(query.point.theta, IN_UNITS.parameters(at))
    np.testing.assert_allclose(query.point.preconditioner[:, 0], IN_UNITS.slopes(at)[:, 2])
    assert not query.point.preconditioner[:, 1:].any()
    search._regression = regression
    assert isinstance(search._score_along(at, 2, 1.5, "scale_score"), BoundedScore)
    np.testing.assert_array_equal(access.structure[2], [True, True, True, False])


def test_releases_of_a_kind_have_one_shape(budget):
    """Else a run of censored rows fails when it is published, after it was charged."""
    generator = np.random.default_rng(0)
    x, times = generator.normal(size=300), generator.exponential(2.0, 300)
    with pm.Model():
        scale = pm.math.exp(pm.Normal("a", 0.0, 5.0) + pm.Data("x", x) * pm.Normal("b"))
        of_all = pm.Weibull.dist(pm.Exponential("shape", 1.0), scale)
        pm.Censored("y", of_all, None, 1.0, observed=np.minimum(times, 1.0))
        result = dp.sample(10, budget=budget, chains=1, cores=1, progressbar=False)
    assert result["releases"].sizes["bounded_score_release"] == 18


@pytest.mark.parametrize("coordinates", [LINEAR, IN_UNITS])
def test_a_prior_in_coordinates_has_the_derivatives_of_its_density(coordinates):
    information = np.array([0.5, 2.0, 3.0, 1.0])
    prior = SimpleNamespace(
        log_density=lambda theta: -0.5 * float(information @ theta**2),
        gradient=lambda theta: -information * theta,
        hessian=lambda theta: -np.diag(information),
    )
    inside, at = PriorInCoordinates(prior, coordinates), np.array([1.0, -2.0, 0.3, 0.7])
    steps = 1e-5 * np.eye(4)
    numeric = [(inside.log_density(at + step) - inside.log_density(at - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(inside.gradient(at), numeric, rtol=1e-6)
    second = [(inside.gradient(at + step) - inside.gradient(at - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(inside.hessian(at), second, atol=1e-7)


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
    found = Found(point, np.eye(4), None, belief, None, extra_curvature=inside)
    at = found_at_parameters(found, KNOWN, LINEAR, None)
    np.testing.assert_allclose(at.belief.information, information, atol=1e-9)
    np.testing.assert_allclose(at.belief.mean[1:], mean[1:])
    block = np.ix_(KNOWN, KNOWN)
    np.testing.assert_allclose(at.belief.noise[block], noise[block])
    assert not at.belief.noise[0].any()
    np.testing.assert_array_equal(at.belief.known, KNOWN)
    np.testing.assert_allclose(at.centre.preconditioner.T @ np.r_[0.0, 1.0, 1.0, 0.0], [2.0, 1.0, 1.0, 0.0])
    apart = np.ones((4, 4), dtype=bool)
    apart[1, 2] = apart[2, 1] = False  # two members share no row
    of_members = found_at_parameters(found, KNOWN, LINEAR, apart).belief.information
    np.testing.assert_allclose(of_members, np.where(apart, information, 0.0), atol=1e-9)
    score = generator.normal(size=4)
    np.testing.assert_allclose(at.back @ (at.centre.preconditioner.T @ score), score)
    np.testing.assert_allclose(TO_PARAMETERS.T @ at.extra_curvature @ TO_PARAMETERS, inside)


def test_what_is_found_in_bent_coordinates_is_turned_where_it_is():
    """The likelihood by the slopes at its maximum, and axes by those at the centre."""
    centre, mean = np.array([2.0, 0.0, 0.1, 1.0]), np.array([1.5, -1.0, 0.4, 0.5])
    information, noise = np.diag([4.0, 3.0, 2.0, 1.0]), np.diag([0.1, 0.2, 0.3, 0.4])
    belief = Belief(mean, information, noise, 2.0 * noise, np.ones(4, dtype=bool))
    point = ExpansionPoint(centre, np.eye(4), 1.0)
    at = found_at_parameters(Found(point, np.eye(4), None, belief, None), belief.known, IN_UNITS, None)
    slopes, score = IN_UNITS.slopes(mean), np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(at.belief.mean, IN_UNITS.parameters(mean))
    np.testing.assert_allclose(slopes.T @ at.belief.information @ slopes, information, atol=1e-12)
    np.testing.assert_allclose(at.belief.noise, slopes @ noise @ slopes.T)
    np.testing.assert_allclose(at.belief.bias, 2.0 * slopes @ noise @ slopes.T)
    np.testing.assert_allclose(at.centre.theta, IN_UNITS.parameters(centre))
    np.testing.assert_allclose(at.centre.preconditioner, IN_UNITS.slopes(centre))
    np.testing.assert_allclose(at.back @ (at.centre.preconditioner.T @ score), score)


def test_a_map_goes_on_straight_where_noise_has_led_too_far():
    """By the slopes at the centre: a scale of e^60 times what it was would leave no likelihood of the location."""
    centre, mean = np.array([2.0, 0.0, 0.1, 1.0]), np.array([1.5, -1.0, -60.0, 0.5])
    belief = Belief(mean, np.eye(4), np.eye(4), np.zeros((4, 4)), np.ones(4, dtype=bool))
    point = ExpansionPoint(centre, np.eye(4), 1.0)
    at = found_at_parameters(Found(point, np.eye(4), None, belief, None), belief.known, IN_UNITS, None)
    slopes = IN_UNITS.slopes(centre)
    np.testing.assert_allclose(at.belief.mean, IN_UNITS.parameters(centre) + slopes @ (mean - centre))
    np.testing.assert_allclose(at.belief.noise, slopes @ slopes.T)


def test_the_size_of_scores_of_a_mean_is_that_of_its_members():
    """No unit has a score of the mean itself, and each one that of one member."""
    start = np.array([1.0, 3.0, 4.0, 0.0])
    regression = Regression(start, KNOWN, np.zeros(0, dtype=np.intp), in_predictor=KNOWN).in_coordinates(TO_PARAMETERS)
    np.testing.assert_allclose(regression.start, [1.0, 2.0, 3.0, 0.0])
    assert regression.known.all()
    counts = np.zeros((4, OCTAVES))
    counts[1:, 24], counts[0, 3] = 500.0, 1000.0  # scores of 1 to 2, of the others; what noise says of the mean
    search = object.__new__(Search)
    search._chain = SimpleNamespace(
        n_units=1000, release=lambda query: Release(query.kind, counts.ravel(), 1e-3, query.where)
    )
    search._regression, search._weights, search._rareness = regression, np.ones(4), np.ones(4)
    search.structure = np.array([[1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 1]], dtype=bool)
    scales = np.diag(search._diagonal_frame(np.zeros(4)).back) * search._weights
    assert scales[0] == pytest.approx(np.hypot(scales[1], scales[2]))
    assert search._weights[0] == search._rareness[0] == 1.0


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


def test_numbers_along_an_axis_are_all_accounted_for():
    """Of bent coordinates an axis is a direction of the parameters: all entries of a score along it are released."""
    regression = Regression(
        np.zeros(4), np.ones(4, dtype=bool), np.array([2]), in_predictor=IN_UNITS.location, rows_are_positive=True,
        responses_are_known=False, rows_are_discrete=False,
    )  # fmt: skip
    for each, along_axis in ((regression, 1), (replace(regression, scale_of_censored=IN_UNITS.logarithm), 4)):
        declared = {made.kind: made.coordinates for made in requests_of_search(each, 0.5)}
        assert (declared["bounded_score"], declared["scale_score"], declared["level"]) == (along_axis, along_axis, 4)


@pytest.mark.slow
@pytest.mark.parametrize("family", [pytest.param("weibull", marks=pytest.mark.nightly), "log-normal"])
def test_rare_events_are_found_by_their_hazards(family):
    """Of one row in ten the event is seen: location and scale are beyond the rows, and a hazard is what is known.

    In the coordinates of the parameters half of 24 searches were lost here, and intervals held .6 of the posterior.
    """
    generator, n = np.random.default_rng(4), 6000
    x = np.column_stack([np.ones(n), generator.normal(size=n), generator.random(n) < 0.3])
    unit = generator.weibull(0.6, n) if family == "weibull" else np.exp(1.5 * generator.normal(size=n))
    until = generator.uniform(0.5, 1.5, n) if family == "weibull" else generator.uniform(4.0, 12.0, n)
    times = np.exp(x @ [4.0, 0.5, -0.6]) * unit
    with pm.Model() as model:
        eta = pm.Data("x", x) @ pm.Normal("beta", 0.0, [5.0, 2.0, 2.0])
        if family == "weibull":
            of_all = pm.Weibull.dist(pm.Exponential("shape", 0.5), pm.math.exp(eta))
        else:
            of_all = pm.LogNormal.dist(eta, pm.HalfNormal("sigma", 2.0))
        ends = pm.Data("ends", np.where(times <= until, np.inf, until))
        pm.Censored("y", of_all, None, ends, observed=np.minimum(times, until))
    reference = by_mode(model)
    found = searches(Problem(model, normal=False), 4.0, 1e-6, 6, seed=1)
    errors = [np.sqrt(np.mean(((mode - reference.mean) / reference.std) ** 2)) for mode, _ in found]
    assert max(errors) < LOST, summary(found, reference)
    assert np.median(errors) < 1.2, summary(found, reference)


def test_scores_that_are_not_zero_have_a_part_in_a_curvature_along_bent_coordinates():
    """Not where nothing is bent; and however noisy the score, what is left is positive."""
    search, matrix = object.__new__(Search), np.diag([4.0, 4.0, 4.0, 4.0])
    curvature = KnownCurvature(matrix, matrix, 0.1, Frame(np.eye(4), np.eye(4)), np.ones(4, dtype=bool))
    at, of_parameters = np.array([2.0, 0.0, 0.1, 1.0]), np.array([0.1, 0.2, 0.0, 0.0])
    score = IN_UNITS.slopes(at).T @ of_parameters
    search.coordinates, search._scores = None, [KnownScore(at, score, np.eye(4), 0.0)]
    search.places = np.array([True, True, True, False])
    assert search._along_coordinates(curvature) is curvature
    search.coordinates = IN_UNITS
    np.testing.assert_allclose(
        search._along_coordinates(curvature).matrix, matrix - IN_UNITS.second_order(at, of_parameters), atol=1e-12
    )
    search._scores = [KnownScore(at, 100.0 * score, np.eye(4), 0.0)]
    found = search._along_coordinates(replace(curvature, matrix=np.diag([4.0, 4.0, 4.0, 0.0]))).matrix
    assert np.linalg.eigvalsh(found[:3, :3])[0] > 0.0
    assert not found[3].any()
