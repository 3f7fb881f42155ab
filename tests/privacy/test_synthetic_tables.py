"""Synthetic tables hold nothing of the data, bounds can be kept in floating point, and odd rows show nowhere."""

import warnings

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model

import pymc_dp as dp
from pymc_dp.accounting import GaussianReleases
from pymc_dp.model.view import read
from pymc_dp.release import ExpansionPoint, InsecureNoise, MeteredCurator, Prediction
from pymc_dp.release.queries import ClippingLoss, Curvature, GradientSum, LogRatioSum, Residual
from pymc_dp.rows import Simulation, UnitLikelihood

SECRET = 777.25


def log_density(value, mu, extra):
    return pm.logp(pm.Normal.dist(mu, 1.0), value) + 0.0 * mu


def test_rows_are_not_simulated_with_the_help_of_the_data():
    x = np.full(60, SECRET)

    def draw(mu, extra, rng=None, size=None):
        return extra if isinstance(extra, np.ndarray) else np.zeros(1)

    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu, pm.Data("x", x), logp=log_density, random=draw, observed=gaussian_data(60))
    likelihood = UnitLikelihood(read(model))
    with pytest.raises(dp.UnsupportedModel, match=r"table of rows|function of yours"):
        Simulation(read(model), likelihood, 10)


def test_rows_are_not_simulated_by_code_that_may_close_over_the_data():
    x = np.full(60, SECRET)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.CustomDist(
            "y",
            mu,
            logp=lambda value, mu: pm.logp(pm.Normal.dist(mu, 1.0), value),
            random=lambda mu, rng=None, size=None: x,
            observed=gaussian_data(60),
        )
    with pytest.raises(dp.UnsupportedModel, match=r"function of 'y' .* refers to an array"):
        Simulation(read(model), UnitLikelihood(read(model)), 10)


@pytest.mark.parametrize("sharing", ["model", "table"])
def test_a_synthetic_table_on_the_data_itself_is_refused(budget, sharing):
    y = gaussian_data(100)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu") * pm.Data("x", y), 1.0, observed=y)
    synthetic = model
    if sharing == "table":
        with pm.Model() as synthetic:
            pm.Normal("y", pm.Normal("mu") * model["x"], 1.0, observed=np.zeros(100))
    with model, pytest.raises(dp.InvalidArgument, match="holds a table of the model of the data"):
        dp.DPSurrogateHMC(budget=budget, synthetic=synthetic)
    assert budget.history == ()


KINDS = ("gradient", "log_ratio", "score", "curvature", "clipping_loss", "residual")


def a_curator(model):
    rows = UnitLikelihood(read(model))
    paid = [GaussianReleases(kind, 10, 1.0) for kind in KINDS]
    return MeteredCurator(rows, InsecureNoise(0), "substitute", paid)


@pytest.mark.parametrize("bound", [0.0, 1e-300, 1e-170, 1e200, np.inf, np.nan])
def test_bounds_that_floating_point_cannot_keep_are_refused(bound):
    """Hazard H20: no bound, and so no noise, of zero."""
    opened = a_curator(gaussian_model(gaussian_data(20)))
    theta = np.zeros(1)
    centre = ExpansionPoint(theta, np.eye(1), bound, bound)
    prediction = Prediction(theta, theta, with_curvature=True)
    for ask in (
        lambda: opened.release(GradientSum(theta, bound), 1.0),
        lambda: opened.release(LogRatioSum(theta, theta + 1, bound), 1.0),
        lambda: opened.release(Curvature(centre), 1.0),
        lambda: opened.release(ClippingLoss(centre), 1.0),
        lambda: opened.release(Residual(ExpansionPoint(theta, np.eye(1), 1.0), prediction, prediction, bound), 1.0),
    ):
        with pytest.raises(dp.PrivacyError, match="floating point"):
            ask()


@pytest.mark.parametrize("name", ["clip_gradient", "clip_curvature"])
def test_steps_refuse_such_bounds_before_anything_is_charged(budget, name):
    synthetic = gaussian_model(gaussian_data(50))
    with gaussian_model(gaussian_data()), pytest.raises(dp.InvalidArgument, match=name):
        dp.DPSurrogateHMC(budget=budget, synthetic=synthetic, **{name: 1e-170})
    with gaussian_model(gaussian_data()), pytest.raises(dp.InvalidArgument, match="clip_log_ratio"):
        dp.DPPenalty(budget=budget, clip_log_ratio=1e-170, proposal_scale=1.0)


@pytest.mark.parametrize("odd", [1e154, 1.3e154, 1.79e308, np.inf, -np.inf])
def test_odd_rows_neither_warn_nor_raise(odd):
    """Hazard H14: extreme rows give finite releases, silently."""
    y = gaussian_data(50)
    x = np.ones((50, 2))
    x[3], y[4] = odd, odd
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Normal("y", pm.Data("x", x) @ beta, 1.0, observed=y)
    opened = a_curator(model)
    theta, other = np.array([0.3, -0.2]), np.array([0.1, 0.4])
    centre = ExpansionPoint(theta, np.array([[1.0, 0.5], [0.0, 2.0]]), 1.0, 1.0)
    predictions = [Prediction(at, at - theta, with_curvature=True) for at in (theta, other)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for release in (
            opened.release(GradientSum(theta, 1.0), 1.0),
            opened.release(LogRatioSum(theta, other, 1.0), 1.0),
            opened.release(Curvature(centre), 1.0),
            opened.release(ClippingLoss(centre), 1.0),
            opened.release(Residual(centre, *predictions, 1.0), 1.0),
        ):
            assert np.isfinite(release.value).all()


def test_the_prelude_is_released_once_and_stays_charged_when_it_crashes(budget, monkeypatch):
    def crash(self):
        self.chain.release(Curvature(ExpansionPoint(np.zeros(1), np.eye(1), 1.0, 1.0)))
        raise RuntimeError("in the prelude")

    monkeypatch.setattr(dp.DPSurrogateHMC, "prelude", crash)
    synthetic = gaussian_model(gaussian_data(50, 9))
    with gaussian_model(gaussian_data()):
        step = dp.DPSurrogateHMC(budget=budget, synthetic=synthetic)
        with pytest.raises(dp.RunInterrupted, match="RuntimeError was raised"):
            pm.sample(draws=5, chains=2, cores=1, step=step, **QUIET)
    assert len(budget.history) == 1
    with pytest.raises(dp.NoPlan):
        step.chain.release(Curvature(ExpansionPoint(np.zeros(1), np.eye(1), 1.0, 1.0)))
