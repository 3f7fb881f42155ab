"""What the graph of one row says of its derivatives, without a row."""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.model.view import read
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.steps.prelude import curvature

GROUPS, REGIONS, N = 4, 3, 24
GENERATOR = np.random.default_rng(0)
GROUP, REGION = np.arange(N) % GROUPS, np.arange(N) // 8
Z, X = GENERATOR.normal(size=(2, N))


def of_levels_and_slopes(other=None):
    """Levels and slopes of groups around those of all, and another grouping; the slope of all is that of `other`."""
    with pm.Model() as model:
        group, z = pm.Data("group", GROUP), pm.Data("z", Z)
        mean = pm.Normal("intercept", 0, 5) + pm.Normal("level", 0, 1, shape=GROUPS)[group]
        slope = pm.Normal("slope_of_group", 0, 1, shape=GROUPS)[group] * z
        mean = mean + slope + pm.Normal("slope", 0, 1) * (z if other is None else pm.Data("x", other))
        mean = mean + pm.Normal("region", 0, 1, shape=REGIONS)[pm.Data("of_region", REGION)]
        pm.Normal("y", mean, pm.HalfNormal("sigma", 1), observed=GENERATOR.normal(size=N))
    return model


def of_categories():
    """Logits of three categories, and deviations of groups from them, by columns of a matrix."""
    with pm.Model() as model:
        logits = pm.Normal("intercept", 0, 5, shape=3) + pm.Normal("level", 0, 1, shape=(GROUPS, 3))[GROUP]
        pm.Categorical("y", p=pm.math.softmax(logits, axis=-1), observed=np.arange(N) % 3)
    return model


def of_standardised_levels():
    """Levels are their scale times standardised ones: how far an intercept moves into these depends on the scale."""
    with pm.Model() as model:
        level = pm.HalfNormal("tau", 1) * pm.Normal("standardised", 0, 1, shape=GROUPS)
        pm.Bernoulli("y", logit_p=pm.Normal("intercept", 0, 5) + level[GROUP], observed=np.arange(N) % 2)
    return model


def scores_of(rows, theta):
    """Gradients of every row."""
    return np.concatenate(list(rows.each_chunk(lambda chunk: chunk.gradient(theta))))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (of_levels_and_slopes(), 3),
        (of_levels_and_slopes(other=Z), 2),  # another array: that it has the same entries is no fact of the model
        (of_categories(), 3),
        (of_standardised_levels(), 0),
    ],
)
def test_directions_along_which_no_log_likelihood_changes_are_those_that_the_graph_tells(model, count):
    """They are independent, and no score of a row has anything along them, at any point."""
    rows = UnitLikelihood(read(model), first_order=False, expands=True)
    if not count:
        assert rows.unidentified is None
        return
    assert rows.unidentified.shape == (rows.n_parameters, count)
    assert np.linalg.matrix_rank(rows.unidentified) == count
    scores = scores_of(rows, np.random.default_rng(1).normal(size=rows.n_parameters))
    assert np.abs(scores).max() > 0.1
    np.testing.assert_allclose(scores @ rows.unidentified, 0.0, atol=1e-12)


def test_what_rows_hold_says_nothing_of_unidentified_directions():
    """Neighbours agree, and so do units of several rows: a search may know them for nothing."""
    model, other = of_levels_and_slopes(), of_levels_and_slopes()
    with other:
        pm.set_data({"z": np.ones(N), "group": np.zeros(N, dtype=int)})
    found = [UnitLikelihood(read(each)).unidentified for each in (model, other)]
    found.append(UnitLikelihood(read(model, unit_index=np.arange(N) // 2)).unidentified)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_arrays_that_hold_the_same_are_two_to_the_graph():
    """Else whether two columns of a table are alike would be known for nothing."""

    def found(of_slope):
        with pm.Model() as model:
            slopes = pm.Normal("slope_of_group", 0, 1, shape=GROUPS)[GROUP] * Z
            mean = slopes + pm.Normal("slope", 0, 1) * of_slope
            pm.Normal("y", mean, pm.HalfNormal("sigma", 1), observed=np.ones(N))
        return UnitLikelihood(read(model)).unidentified

    assert found(Z.copy()) is None
    assert found(X) is None


def test_searches_are_told_of_them(monkeypatch):
    model, told, of_curvature = of_levels_and_slopes(), [], curvature._without

    def without(raw, there, frame, places, unidentified):
        told.append(unidentified)
        return of_curvature(raw, there, frame, places, unidentified)

    monkeypatch.setattr(curvature, "_without", without)
    dp.private_likelihood(model, budget=dp.PrivacyBudget(4.0, 1e-6))  # all that `pm.sample` does before chains
    assert told
    expected = UnitLikelihood(read(model)).unidentified
    for each in told:
        np.testing.assert_array_equal(each, expected)
