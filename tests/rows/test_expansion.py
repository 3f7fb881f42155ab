"""Expansions against loops over rows, and what a neighbouring table can change in them."""

import functools

import numpy as np
import pymc as pm
import pytest
from derivatives import along
from hypothesis import given, settings, strategies as st

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.view import read
from pymc_dp.release import ExpansionPoint, Prediction
from pymc_dp.rows import PublicUnits, Simulation, SyntheticTable, UnitLikelihood
from pymc_dp.steps.prelude.newton import unpacked

N, SIZE = 150, 3
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, SIZE))
Y = GENERATOR.poisson(np.exp(0.3 * X[:, 0]))
GROUP = GENERATOR.integers(0, 2, N)
GRID = 2.0**-40


def poisson_model(x=X, y=Y):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=SIZE)
        pm.Poisson("y", pm.math.exp(pm.Data("x", x) @ beta), observed=y)
    return model


def gamma_model():
    with pm.Model() as model:
        alpha = pm.HalfNormal("alpha")
        effect = pm.Normal("effect", shape=2)
        pm.Gamma("y", alpha=alpha, beta=pm.math.exp(effect[GROUP]), observed=Y + 0.5)
    return model


def mixture_model():
    with pm.Model() as model:
        weight = pm.Beta("weight", 2, 2)
        mu = pm.Normal("mu", shape=2)
        pm.NormalMixture("y", w=pm.math.stack([weight, 1 - weight]), mu=mu, sigma=1.0, observed=X[:, 0])
    return model


def student_model():
    with pm.Model() as model:
        mu, scale = pm.Normal("mu"), pm.HalfNormal("scale")
        pm.StudentT("y", nu=4, mu=mu * X[:, 1], sigma=scale, observed=X[:, 0])
    return model


def softmax_model():
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=(SIZE, 3))
        pm.Categorical("y", logit_p=pm.Data("x", X) @ beta, observed=Y % 3)
    return model


def many_normal_model():
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=SIZE)
        pm.MvNormal("y", mu=mu, cov=np.eye(SIZE) + 0.4, observed=X)
    return model


MODELS = [poisson_model, gamma_model, mixture_model, student_model, softmax_model, many_normal_model]


def differences(function, theta, step=1e-4):
    """Central differences of a function that gives one number a unit: gradients (units, size)."""
    ways = step * np.eye(theta.size)
    return np.stack([(function(theta + way) - function(theta - way)) / (2 * step) for way in ways], axis=1)


@functools.cache
def likelihood_of(make):
    """Compiling takes longer than the tests."""
    return UnitLikelihood(read(make()))


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_derivatives_are_those_of_every_row(make):
    likelihood = likelihood_of(make)
    units = PublicUnits(likelihood)
    generator = np.random.default_rng(1)
    theta = generator.normal(scale=0.3, size=likelihood.n_parameters)
    direction = generator.normal(size=theta.size)
    scores, curvatures = units.scores(theta), units.curvatures(theta)
    assert scores == pytest.approx(differences(units.log_likelihoods, theta), rel=1e-5, abs=1e-6)
    for k in range(theta.size):
        of_scores = differences(lambda at, k=k: units.scores(at)[:, k], theta)
        assert -curvatures[:, k, :] == pytest.approx(of_scores, rel=1e-5, abs=1e-6)
    slopes, bends = along(likelihood, theta, direction)
    assert slopes == pytest.approx(scores @ direction, rel=1e-10, abs=1e-12)
    # Differences along one direction, and along each axis.
    assert bends == pytest.approx(np.einsum("i,nij,j->n", direction, curvatures, direction), rel=1e-8, abs=1e-8)


def centre_for(likelihood, clip_gradient=3.0, clip_curvature=4.0, seed=2):
    generator = np.random.default_rng(seed)
    size = likelihood.n_parameters
    directions = np.eye(size) + 0.3 * generator.normal(size=(size, size))
    return ExpansionPoint(generator.normal(scale=0.2, size=size), directions, clip_gradient, clip_curvature)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_sums_and_remainders_are_those_of_a_loop_over_rows(make):
    likelihood = likelihood_of(make)
    units = PublicUnits(likelihood)
    centre = centre_for(likelihood)
    expansion = likelihood.expansion(centre)
    scores, curvatures = units.scores(centre.theta), units.curvatures(centre.theta)
    size, way = likelihood.n_parameters, centre.preconditioner
    weights, of_curvatures, curvature_sum = [], [], np.zeros((size, size))
    for score, curvature in zip(scores, curvatures, strict=True):
        along, bent = score @ way, way.T @ curvature @ way
        weights.append(min(1.0, 3.0 / np.linalg.norm(along)))
        of_curvatures.append(min(weights[-1], 4.0 / np.linalg.norm(bent)))
        curvature_sum += of_curvatures[-1] * bent
    weights, of_curvatures = np.array(weights), np.array(of_curvatures)
    assert expansion.weights == pytest.approx(weights, rel=1e-9)
    assert expansion.curvature_weights == pytest.approx(of_curvatures, rel=1e-9)
    assert expansion.n_weighted_down == np.sum(weights < 1)
    assert unpacked(expansion.curvature(GRID).value, size) == pytest.approx(curvature_sum, abs=1e-8)
    taken = np.minimum(1.0, (1.0 - weights) * np.linalg.norm(scores @ way, axis=1) / 3.0)
    for less in (0.0, 0.5):
        loss = expansion.clipping_loss(GRID, less)
        assert loss.value == pytest.approx([np.sum(taken - less)], abs=1e-8)
        assert loss.bound == 1.0 - less

    generator = np.random.default_rng(3)
    points = [centre.theta + generator.normal(scale=0.3, size=size) for _ in range(2)]
    predictions = [
        Prediction(points[0], points[0] - centre.theta, with_curvature=True),
        Prediction(points[1], generator.normal(size=size), with_curvature=False, offset=0.7),
    ]
    values = [units.log_likelihoods(at) - units.log_likelihoods(centre.theta) for at in points]
    u, v = (prediction.direction for prediction in predictions)
    old = weights * (values[0] - scores @ u) + 0.5 * of_curvatures * np.einsum("i,nij,j->n", u, curvatures, u)
    new = weights * (values[1] - scores @ v - 0.7)
    assert expansion.remainders(predictions[0]) == pytest.approx(old, abs=1e-8)
    assert expansion.remainders(predictions[1]) == pytest.approx(new, abs=1e-8)
    for bound in (10.0, 0.5, 1e-6):
        clipped = np.clip(new - old, -bound, bound)
        found = expansion.residual(*predictions, bound, GRID)
        assert found.value[0] == pytest.approx(clipped.sum(), abs=1e-8)
        assert found.n_clipped == np.sum(np.abs(new - old) > bound)
        assert expansion.residual(*predictions[::-1], bound, GRID).integers[0] == -found.integers[0]


def test_a_units_value_depends_neither_on_its_place_nor_on_the_others():
    order = np.random.default_rng(4).permutation(N)
    one = UnitLikelihood(read(poisson_model()))
    other = UnitLikelihood(read(poisson_model(X[order], Y[order])))
    few = UnitLikelihood(read(poisson_model(X[order][:40], Y[order][:40])))
    centre = centre_for(one)
    theta = centre.theta + 0.1
    prediction = Prediction(theta, theta - centre.theta, with_curvature=True)
    values = [rows.expansion(centre).remainders(prediction) for rows in (one, other, few)]
    assert np.array_equal(values[0][order], values[1])
    assert np.array_equal(values[1][:40], values[2])
    assert np.array_equal(one.expansion(centre).weights[order], other.expansion(centre).weights)
    for total in (lambda e: e.curvature(GRID), lambda e: e.clipping_loss(GRID, 0.5)):
        assert np.array_equal(*[total(rows.expansion(centre)).integers for rows in (one, other)])


def test_rows_of_one_unit_are_added_before_they_are_weighted():
    visits = np.repeat(np.arange(N // 2), 2)
    likelihood = UnitLikelihood(read(poisson_model(), unit_index=visits))
    by_row = PublicUnits(UnitLikelihood(read(poisson_model())))
    centre = centre_for(likelihood, 1.0, 1.0)
    expansion = likelihood.expansion(centre)
    scores = by_row.scores(centre.theta).reshape(-1, 2, SIZE).sum(axis=1) @ centre.preconditioner
    bent = np.einsum(
        "ka,nkl,lb->nab",
        centre.preconditioner,
        by_row.curvatures(centre.theta).reshape(-1, 2, SIZE, SIZE).sum(axis=1),
        centre.preconditioner,
    )
    weights = np.minimum(1.0, 1.0 / np.linalg.norm(scores, axis=1))
    assert expansion.weights == pytest.approx(weights)
    assert expansion.curvature_weights == pytest.approx(np.minimum(weights, 1.0 / np.linalg.norm(bent, axis=(1, 2))))


extreme = st.sampled_from([0.0, 1.0, -3.0, 1e6, -1e9, 1e308, 5e-324, np.inf, -np.inf, np.nan])


@pytest.mark.filterwarnings("error")
@settings(max_examples=50)
@given(st.lists(extreme, min_size=SIZE, max_size=SIZE), st.integers(0, 10**6), st.integers(0, N - 1))
def test_replacing_one_unit_moves_every_sum_by_no_more_than_declared(row, count, place):
    x, y = X.copy(), Y.copy()
    x[place], y[place] = row, count
    one, other = (
        STANDARD,
        STANDARD.on_rows(
            [{"x": x, "y": y.astype(np.int64)}["y" if name == "y" else "x"] for name in STANDARD._leaf_names]
        ),
    )
    centre = centre_for(one)
    theta = centre.theta + 0.2
    predictions = [
        Prediction(centre.theta, np.zeros(SIZE), with_curvature=True),
        Prediction(theta, theta - centre.theta, with_curvature=True, offset=0.1),
    ]
    for total in (
        lambda e: e.curvature(2.0**-20),
        lambda e: e.clipping_loss(2.0**-30, 0.5),
        lambda e: e.residual(*predictions, 0.01, 2.0**-30),
    ):
        before, after = total(one.expansion(centre)), total(other.expansion(centre))
        moved = [int(difference) for difference in after.integers - before.integers]
        assert sum(m * m for m in moved) ** 0.5 * before.grid <= 2.0 * before.bound


STANDARD = UnitLikelihood(read(poisson_model()))


def clipping_loss_of(expansion, place):
    """What its weight has taken off one unit's score, in units of the bound."""
    score = PublicUnits(STANDARD).scores(expansion._centre.theta)[place] @ expansion._centre.preconditioner
    return (1.0 - expansion.weights[place]) * np.linalg.norm(score) / expansion._centre.clip_gradient


def test_a_bad_row_is_silent_and_changes_no_other():
    x = X.copy()
    x[7] = np.inf
    one = STANDARD.expansion(centre_for(STANDARD))
    other = UnitLikelihood(read(poisson_model(x))).expansion(centre_for(STANDARD))
    assert other.weights[7] == 0.0
    others = np.arange(N) != 7
    assert np.array_equal(one.weights[others], other.weights[others])
    assert np.isfinite(other.curvature(GRID).value).all()
    taken = other.clipping_loss(GRID, 0.5).value[0] - one.clipping_loss(GRID, 0.5).value[0]
    assert taken == pytest.approx(1.0 - np.clip(clipping_loss_of(one, 7), 0.0, 1.0), abs=1e-9)  # it has lost all


def test_expansions_hold_nothing_when_pickled_and_say_nothing():
    expansion = STANDARD.expansion(centre_for(STANDARD))
    assert "confidential" in repr(expansion)
    assert STANDARD.__getstate__()["_expansions"] == {}


# Synthetic tables ----------------------------------------------------------------------------------------------


def test_simulated_rows_follow_the_model_and_hold_no_data():
    likelihood = UnitLikelihood(read(many_normal_model()))
    simulation = Simulation(read(many_normal_model()), likelihood, 100)
    theta = np.array([5.0, -5.0, 0.0])
    units = simulation.at(theta)
    assert len(units.log_likelihoods(theta)) == 100
    assert simulation.at(theta) is units
    synthetic = units._likelihood._table.rows[0]
    assert synthetic.mean(axis=0) == pytest.approx(theta, abs=0.6)
    assert not np.isin(synthetic, X).any()
    assert len(simulation.prior_draws()) == 50


def test_a_model_with_covariates_is_not_simulated():
    with pytest.raises(UnsupportedModel, match="cannot be simulated from it"):
        Simulation(read(poisson_model()), STANDARD, 100)
    with pytest.raises(UnsupportedModel, match="other free variables"):
        SyntheticTable(many_normal_model(), {"beta": (SIZE,)}, None, None)
