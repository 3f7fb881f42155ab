"""What computes the derivatives of rows: what it compiles, and what factors of derivatives mean."""

import functools
import pickle

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from conftest import gaussian_data, gaussian_model, logistic_data, logistic_model
from derivatives import along

from pymc_dp.model.view import read
from pymc_dp.rows import PublicUnits, UnitLikelihood

GRID = 2.0**-35
X, Y = logistic_data(60)


def logistic():
    return logistic_model(X, Y)


def grouped():
    """A product, a gather and variables of their own."""
    with pm.Model() as model:
        group = pm.Data("group", np.arange(60) % 4)
        effect = pm.Normal("centre") + pm.HalfNormal("spread") * pm.Normal("offset", shape=4)
        mean = pm.Data("x", X) @ pm.Normal("beta", shape=3) + effect[group]
        pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=X[:, 1])
    return model


def softmax():
    with pm.Model() as model:
        pm.Categorical("y", logit_p=pm.Data("x", X) @ pm.Normal("beta", shape=(3, 4)), observed=Y)
    return model


def only_the_prior_knows():
    """Two variables that the likelihood does not depend on."""
    with pm.Model() as model:
        effect = pm.Normal("effect", pm.Normal("mu"), pm.HalfNormal("tau"), shape=3)
        pm.Poisson("y", pm.math.exp(effect[np.arange(60) % 3]), observed=Y)
    return model


@functools.cache
def compiled(make):
    model = make()
    return model, UnitLikelihood(read(model))


@pytest.mark.parametrize("make", [logistic, grouped, softmax, only_the_prior_knows], ids=lambda make: make.__name__)
def test_derivatives_in_factors_are_those_written_out(make):
    """Along the columns of any matrix, by slopes and what goes with them."""
    _, rows = compiled(make)
    generator = np.random.default_rng(0)
    theta = generator.normal(scale=0.5, size=rows.n_parameters)
    matrix = generator.normal(size=(theta.size, 2))
    (chunk,) = rows.each_chunk(lambda chunk: chunk)
    assert chunk.scores(theta, matrix) == pytest.approx((chunk.gradient(theta) @ matrix).T, rel=1e-9, abs=1e-12)
    first, second = (chunk.curvature_times(theta, way) for way in matrix.T)
    packed = [first @ matrix[:, 0], 2.0**0.5 * (first @ matrix[:, 1]), second @ matrix[:, 1]]
    assert chunk.curvatures(theta, matrix) == pytest.approx(np.array(packed), rel=1e-9, abs=1e-12)
    found = chunk.curvatures_along(theta, matrix[:, 0], matrix)
    assert found == pytest.approx((first @ matrix).T, rel=1e-9, abs=1e-12)


def with_gamma_functions():
    with pm.Model() as model:
        mu = pm.math.exp(pm.Data("x", X) @ pm.Normal("beta", shape=3))
        pm.NegativeBinomial("y", mu, pm.HalfNormal("alpha"), observed=Y)
    return model


@pytest.mark.parametrize("make", [grouped, with_gamma_functions], ids=lambda make: make.__name__)
def test_second_derivatives_are_those_of_the_model(make):
    """By differences of gradients; the reference is PyTensor's Hessian of the whole likelihood, without a loop."""
    model, rows = compiled(make)
    theta = np.random.default_rng(0).normal(scale=0.5, size=rows.n_parameters)
    point = dict(zip(model.initial_point(), rows.parameters.split(theta), strict=True))
    whole = pm.pytensorf.rewrite_pregrad(model.logp(vars=model.observed_RVs))
    slopes = pt.concatenate([slope.ravel() for slope in pt.grad(whole, model.value_vars)])
    bends = pt.jacobian(slopes, model.value_vars, vectorize=True)
    hessian = pt.concatenate([bend.reshape((theta.size, -1)) for bend in bends], axis=1)
    exact = -model.compile_fn(hessian, inputs=model.value_vars)(point)
    assert PublicUnits(rows).curvatures(theta).sum(axis=0) == pytest.approx(exact, rel=1e-6, abs=1e-7)
    slopes, _ = along(rows, theta, theta)
    assert slopes == pytest.approx(PublicUnits(rows).scores(theta) @ theta, rel=1e-6, abs=1e-7)


def test_outer_products_of_slopes_stand_for_the_curvature_of_broken_lines():
    """Of the location; the scale has its own second derivative, and between them there is none."""
    y = X[:, 1] + 0.5
    with pm.Model() as model:
        location = pm.Data("x", X) @ pm.Normal("beta", shape=3) + pm.Normal("effect", shape=2)[np.arange(60) % 2]
        pm.Laplace("y", location, pm.HalfNormal("scale"), observed=y)
    rows = UnitLikelihood(read(model))
    theta = np.array([0.3, -0.2, 0.1, 0.05, -0.1, 0.4])
    scale, design = np.exp(theta[5]), np.column_stack([X, np.eye(2)[np.arange(60) % 2]])
    residuals = (y - design @ theta[:5]) / scale
    exact = np.zeros((60, 6, 6))
    exact[:, :5, :5] = design[:, :, None] * design[:, None, :] / scale**2
    exact[:, 5, 5] = np.abs(residuals)
    assert PublicUnits(rows).curvatures(theta) == pytest.approx(exact, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    ("make", "of_expansions"),
    [
        (logistic, {"log_likelihoods_of", "gradients_of"}),  # its expected curvature is that of scores
        (lambda: gaussian_model(gaussian_data()), set()),
    ],
)
def test_nothing_is_compiled_that_a_run_does_not_use(make, of_expansions):
    gradients = UnitLikelihood(read(logistic()))
    gradients.warm_up()
    assert set(gradients._engine._compiled) == {"log_likelihood", "gradient"}
    expansions = UnitLikelihood(read(make()), first_order=False, expands=True)
    assert set(expansions._engine._compiled) == {"gradient"}  # the check
    expansions.warm_up()
    assert set(expansions._engine._compiled) == {"log_likelihood", "gradient"} | of_expansions


def test_what_was_not_warmed_up_is_compiled_when_it_is_asked_for():
    rows, other = UnitLikelihood(read(logistic()), first_order=False), UnitLikelihood(read(logistic()))
    theta = np.array([0.1, -0.2, 0.3])
    one, two = (each.clipped_gradient(theta, 0.5, GRID).integers for each in (rows, other))
    assert np.array_equal(one, two)


def test_rows_are_read_only_and_not_copied():
    rows = UnitLikelihood(read(logistic()))
    for values in rows._table.rows:
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    for chunk in [*rows._table.chunks(10), *rows._table.batch(np.array([3, 4]), 10)]:
        assert not any(values.flags.writeable for values in chunk.rows)


def test_a_pickle_of_a_table_holds_no_more_than_its_rows():
    rows = UnitLikelihood(read(logistic()))
    before = len(pickle.dumps(rows._table))
    rows.clipped_gradient(np.zeros(3), 1.0, GRID)
    assert rows._table._squares
    assert len(pickle.dumps(rows._table)) == before
    assert rows.on_rows(rows._table.rows)._table._squares == {}
