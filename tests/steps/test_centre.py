"""What is made of the releases on the way to a centre: pooled scores, informed curvatures, steps that arrive."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from conftest import gaussian_data, gaussian_model

from pymc_dp.prior import Prior
from pymc_dp.release import Release
from pymc_dp.rows import PublicUnits, UnitLikelihood
from pymc_dp.steps.centre import WayToCentre, _consistent_step, informed, pooled_score
from pymc_dp.steps.synthetic import Scale, expected_curvature, mode_of, newton_step

N = 400


def units_of(model):
    return PublicUnits(UnitLikelihood(model, second_order=True))


def poisson_model(seed=0):
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(N), generator.normal(size=N)])
    counts = generator.poisson(np.exp(x @ [1.2, 0.4]))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 5.0, shape=2)
        pm.Poisson("y", pm.math.exp(pm.Data("x", x) @ beta), observed=counts)
    return model


def exact_score(units, theta, noise_std, scale):
    return Release("centre", units.scores(theta).sum(axis=0) @ scale.preconditioner, noise_std, (theta,))


def scale_along(directions):
    return Scale(directions, np.linalg.inv(directions).T, 1.0, 1.0)


# Pooled scores -----------------------------------------------------------------------------------------------


def test_scores_of_a_quadratic_are_carried_exactly_and_weighed_by_their_noise():
    units = units_of(gaussian_model(gaussian_data(N)))
    scale = scale_along(np.array([[0.5]]))
    information = N * expected_curvature(units, np.zeros(1))
    earlier = [exact_score(units, np.array([at]), noise, scale) for at, noise in ((-3.0, 2.0), (0.4, 1.0))]
    score = exact_score(units, np.array([1.1]), 0.5, scale)
    way = WayToCentre(score.where[0], scale, information, tuple(earlier))
    pooled, noise_std = pooled_score(way, units, N, score, information)
    assert pooled == pytest.approx(score.value)
    assert noise_std == pytest.approx((1 / 4 + 1 + 4) ** -0.5)
    shifted = Release("centre", earlier[1].value + 1.0, 1.0, earlier[1].where)
    way = WayToCentre(score.where[0], scale, information, (earlier[0], shifted))
    moved, _ = pooled_score(way, units, N, score, information)
    assert moved - pooled == pytest.approx(1 / (1 / 4 + 1 + 4))


def test_a_score_that_contradicts_and_one_from_where_curvature_is_another_hardly_count():
    units = units_of(poisson_model())
    scale, at = scale_along(np.eye(2)), np.array([1.2, 0.4])
    information = N * expected_curvature(units, at)
    score = exact_score(units, at, 5.0, scale)
    for there, shift, counts in (((1.21, 0.4), 5.0, True), ((1.21, 0.4), 1000.0, False), ((0.0, 0.0), 5.0, False)):
        other = exact_score(units, np.array(there), 5.0, scale)
        other = Release("centre", other.value + shift, 5.0, other.where)
        pooled, noise_std = pooled_score(WayToCentre(at, scale, information, (other,)), units, N, score, information)
        moved = np.abs(pooled - score.value).max()
        assert 1.5 < moved < 3.5 if counts else moved < 0.2
        assert noise_std == pytest.approx(5.0 / np.sqrt(2.0) if counts else 5.0, rel=0.05)


def test_the_noise_of_a_pooled_score_is_what_it_says():
    """Over 2,000 draws of the noise: its variance is a mean of squares, 4 sd of which are 13 %."""
    units = units_of(gaussian_model(gaussian_data(N)))
    scale = scale_along(np.eye(1))
    information = N * expected_curvature(units, np.zeros(1))
    generator = np.random.default_rng(0)
    errors = []
    for _ in range(2000):
        releases = []
        for at, noise in ((0.2, 3.0), (0.9, 2.0), (1.0, 1.0)):
            exact = exact_score(units, np.array([at]), noise, scale)
            releases.append(Release("centre", exact.value + generator.normal(scale=noise), noise, exact.where))
        way = WayToCentre(releases[-1].where[0], scale, information, tuple(releases[:-1]))
        pooled, noise_std = pooled_score(way, units, N, releases[-1], information)
        errors.append(pooled[0] - exact.value[0])
    assert np.mean(np.square(errors)) == pytest.approx(noise_std**2, rel=0.13)


# Informed curvatures -----------------------------------------------------------------------------------------

SIZE = 6
PAIRS = np.triu_indices(SIZE)


def released(matrix, noise_std, generator):
    packed = np.where(PAIRS[0] == PAIRS[1], 1.0, np.sqrt(2.0)) * matrix[PAIRS]
    noise = generator.normal(scale=noise_std, size=packed.size)
    return Release("curvature", packed + noise, noise_std, ())


def test_a_release_that_says_nothing_new_leaves_the_curvature_as_expected():
    generator = np.random.default_rng(0)
    expected = np.diag(np.arange(1.0, SIZE + 1)) * 1000.0
    scale = scale_along(np.eye(SIZE))
    errors = [np.abs(informed(expected, released(expected, 50.0, generator), scale) - expected) for _ in range(100)]
    assert np.median([error.max() for error in errors]) < 1e-6  # most often nothing rises above the noise
    assert np.max(errors) < 150.0


def test_a_release_that_differs_is_believed():
    generator = np.random.default_rng(1)
    expected = np.eye(SIZE) * 1000.0
    truth = expected + 4000.0 * np.outer(np.eye(SIZE)[2], np.eye(SIZE)[2])
    scale = scale_along(np.diag(1.0 + np.arange(SIZE)))
    along = scale.preconditioner.T @ truth @ scale.preconditioner
    found = informed(expected, released(along, 30.0, generator), scale)
    assert found[2, 2] == pytest.approx(truth[2, 2], rel=0.05)
    assert np.delete(np.diag(found), 2) == pytest.approx(np.delete(np.diag(truth), 2), rel=0.1)


def test_an_informed_curvature_is_positive_whatever_the_noise_and_zero_where_nothing_is_known():
    generator = np.random.default_rng(2)
    expected = np.eye(SIZE) * 100.0
    expected[4] = expected[:, 4] = 0.0
    known = np.arange(SIZE) != 4
    for _ in range(50):
        found = informed(expected, released(expected, 1e4, generator), scale_along(np.eye(SIZE)))
        assert np.linalg.eigvalsh(found[np.ix_(known, known)]).min() > 0.0
        assert not found[4].any()
        assert not found[:, 4].any()


# Steps -------------------------------------------------------------------------------------------------------


def test_a_step_with_the_curvature_of_its_own_way_arrives():
    """From where the counts' mean is far too small, plain Newton steps overshoot; a consistent one is at the mode."""
    model = poisson_model()
    units, prior = units_of(model), Prior(model)
    step = SimpleNamespace(chain=SimpleNamespace(prior=prior))
    theta = np.array([0.8, 0.3])  # near enough for no step to be shortened
    mode = mode_of(units, prior, theta, N)

    def information_at(at):
        return N * expected_curvature(units, at)

    gradient = units.scores(theta).sum(axis=0) + prior.gradient(theta)
    plain = theta + newton_step(units, prior, theta, gradient, information_at(theta)) - mode
    consistent = theta + _consistent_step(step, units, theta, gradient, information_at) - mode
    assert np.linalg.norm(plain) > 0.05
    assert np.linalg.norm(consistent) < 0.005
