"""Priors: their densities, and constants in them, which are warned about by their form, whatever the data are."""

import math
import warnings

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, hmc
from hypothesis import given, strategies as st
from scipy import stats

import pymc_dp as dp
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.prior import Prior, looks_computed, warn_about_prior_constants

WRITTEN = [
    *[0.0, 1.0, -2.5, 170.0, 172.38, 12345.0, 1e6, 1e-5, 6.02e23, 1e300, 5e-324, 2.0**-20, 1.4826, 2.5758],
    *[0.1 + 0.2, 1.1 * 1.1, 3 * 0.7 / 2.1, 1.1**3, 100 * 1.1],
    *[1 / 3, 2 / 7, 5 / 9, 1 / 11, 0.05 / 3, 1 / 365, 1 / 52, 1 / 1.96, 70 / 1.96],
    *[math.sqrt(2), 1 / math.sqrt(7), math.sqrt(0.3), 2.5 * math.sqrt(3), math.pi, math.pi / 2, math.pi / 180],
    *[math.sqrt(2 / math.pi), math.sqrt(math.pi / 2), math.pi / math.sqrt(3), 1 / math.sqrt(2 * math.pi)],
    *[math.log(2), math.log(10), math.log(0.5), math.log(5000), math.log(0.05 / 0.95), math.log(3) / 2],
    *[math.e, math.exp(-1), math.exp(2), math.exp(-0.3)],
]


@pytest.mark.parametrize("number", WRITTEN)
def test_numbers_that_people_write_pass(number):
    assert not looks_computed(np.asarray(number))


@pytest.mark.parametrize("number", [0.1, 0.2, 1 / 3, math.pi, math.sqrt(2), 170.0, 2.5, 0.1 + 0.2])
def test_so_they_do_in_single_precision(number):
    assert not looks_computed(np.asarray(number, dtype=np.float32))
    assert not looks_computed(np.asarray(float(np.float32(number))))
    assert not looks_computed(np.float32(0.1) + np.float32(0.7))


ARRAYS = [np.linspace(-2, 3, 30), np.zeros((3, 3)), np.full((2, 2), 0.3) + 0.7 * np.eye(2), np.logspace(-3, 3, 7)]


@pytest.mark.parametrize("array", [*ARRAYS, np.array([]), np.array([np.inf, np.nan, 1.0]), np.arange(10**7, 10**7 + 3)])
def test_grids_and_plain_arrays_pass(array):
    assert not looks_computed(array)


@given(st.integers(0, 10**6))
def test_moments_of_continuous_data_are_found(seed):
    generator = np.random.default_rng(seed)
    y = generator.normal(generator.normal(0, 30), generator.uniform(0.1, 10), 100)
    x = generator.normal(5, 1.5, 100)
    for moment in (y.mean(), y.std(), y.var(), 2.5 * y.std() / x.std(), np.median(y)):
        assert looks_computed(np.asarray(moment))
    assert looks_computed(np.array([0.0, y.mean(), 1.0]))


def constants_in_many_places(value):
    alpha = pm.Normal("location", value, 1.0)
    pm.HalfNormal("scale", value)
    pm.StudentT("inside an expression", nu=4, mu=alpha * value, sigma=1.0)
    pm.Deterministic("centred", alpha - value)
    pm.Normal("through a deterministic", pm.modelcontext(None)["centred"], 1.0)
    pm.Gamma("converted", mu=abs(value), sigma=1.0)
    pm.Normal("vector", np.array([0.0, value]), 1.0, shape=2)
    pm.Truncated("truncated", pm.Normal.dist(value, 1.0), lower=value - 5.0)
    pm.Normal("data variable", pm.Data("hyperparameter", value), 1.0)
    pm.CustomDist("closure", dist=lambda size: pm.Normal.dist(value, 1.0, size=size))
    pm.Potential("potential", -((alpha - value) ** 2))


def warned_of(write):
    with pm.Model() as model:
        write()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about_prior_constants(model)
    return model, [str(each.message) for each in caught]


def test_the_warning_names_every_prior_and_no_number():
    model, messages = warned_of(lambda: constants_in_many_places(2.9022685123))
    assert len(messages) == 1
    for variable in [*model.free_RVs, *model.potentials]:
        assert repr(variable.name) in messages[0]
    assert not any(character.isdigit() for character in messages[0])


def test_round_numbers_in_the_same_places_pass():
    assert warned_of(lambda: constants_in_many_places(2.9))[1] == []


def test_a_variable_is_not_blamed_for_its_parent():
    def write():
        parent = pm.Normal("parent", 2.9022685123, 1.0)
        pm.Normal("child", parent, 1.0)

    (message,) = warned_of(write)[1]
    assert "'parent'" in message
    assert "'child'" not in message


def many_distributions():
    """Distributions bring constants of their own: none is an accusation."""
    pm.Normal("normal", 0, 10)
    pm.HalfNormal("halfnormal", 5)
    pm.HalfCauchy("halfcauchy", 2.5)
    pm.HalfStudentT("halfstudentt", nu=4, sigma=2)
    pm.StudentT("studentt", nu=4, mu=0, sigma=2.5)
    pm.Exponential("exponential", 0.1)
    pm.Gamma("gamma", 2, 0.1)
    pm.InverseGamma("inversegamma", mu=2.0, sigma=1.0)
    pm.Beta("beta", mu=0.3, sigma=0.1)
    pm.Uniform("uniform", -3, 7)
    pm.TruncatedNormal("truncatednormal", 0, 1, lower=0)
    pm.Laplace("laplace", 0, 1)
    pm.AsymmetricLaplace("asymmetriclaplace", kappa=0.5, mu=0, b=1)
    pm.SkewNormal("skewnormal", alpha=3, mu=0, sigma=1)
    pm.Gumbel("gumbel", 0, 1)
    pm.Logistic("logistic", 0, 1)
    pm.LogNormal("lognormal", 0, 0.7)
    pm.Weibull("weibull", 2, 3)
    pm.VonMises("vonmises", 0, 1)
    pm.ExGaussian("exgaussian", mu=0, sigma=1, nu=2)
    pm.Dirichlet("dirichlet", np.ones(4))
    pm.MvNormal("mvnormal", np.zeros(3), np.eye(3))
    pm.LKJCholeskyCov("lkj", n=3, eta=2, sd_dist=pm.Exponential.dist(1.0))
    pm.ZeroSumNormal("zerosumnormal", 1.5, shape=5)
    pm.NormalMixture("mixture", [0.3, 0.7], [-1, 2], [1, 0.5])
    pm.GaussianRandomWalk("walk", sigma=0.1, init_dist=pm.Normal.dist(0, 1), steps=5)
    pm.Moyal("moyal", 0, 1)
    pm.PolyaGamma("polyagamma")
    pm.Kumaraswamy("kumaraswamy", 2, 3)


def test_constants_of_distributions_are_no_accusation():
    assert warned_of(many_distributions)[1] == []


@pytest.mark.parametrize("y", [gaussian_data(50), np.full(50, 2.9022685123), np.zeros(50)])
@pytest.mark.parametrize(("location", "warns"), [(2.9, False), (2.9022685123, True)])
def test_a_run_warns_whatever_the_data_are(budget, y, location, warns):
    """Hazard H17: a prior's constant that looks computed is warned about, by its form."""
    with pm.Model():
        pm.Normal("y", pm.Normal("mu", location, 1.0), 1.0, observed=y)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), **QUIET)
    found = [each for each in caught if "many digits" in str(each.message)]
    assert len(found) == warns
    assert all(each.category is UserWarning and each.filename == __file__ for each in found)


def test_the_warning_comes_before_the_charge(budget):
    with pm.Model():
        pm.Normal("y", pm.Normal("mu", 2.9022685123, 1.0), 1.0, observed=gaussian_data(50))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="many digits"):
                pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), **QUIET)
    assert budget.history == ()


def test_rows_are_refused_before_their_values_are_looked_at(budget, monkeypatch):
    looked_at = []
    monkeypatch.setattr("pymc_dp.model.prior.looks_computed", looked_at.append)
    with pm.Model():
        x = pm.Data("x", gaussian_data(50))
        pm.Normal("y", pm.Normal("mu", x.mean(), 1.0), 1.0, observed=gaussian_data(50))
        with pytest.raises(dp.UnsupportedModel, match="prior of 'mu'"):
            pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), **QUIET)
    assert looked_at == []


def test_what_is_kept_of_the_latest_point_is_of_no_other():
    with pm.Model() as model:
        pm.Normal("x", 1.0, 2.0, shape=2)
    prior, points = Prior(model, ParameterVector(model)), np.array([[0.0, 3.0], [-1.0, 0.5]])
    for point in (*points, points[0]):
        at = point.copy()
        expected = stats.norm.logpdf(at, 1.0, 2.0).sum(), (1.0 - at) / 4.0
        for _ in range(2):
            log_density, gradient = prior.with_gradient(at)
            assert log_density == pytest.approx(expected[0])
            np.testing.assert_allclose(gradient, expected[1])
        with pytest.raises(ValueError, match="read-only"):
            gradient += 1.0
        at += 5.0  # the point itself may change afterwards
        np.testing.assert_allclose(prior.gradient(at), (1.0 - at) / 4.0)
