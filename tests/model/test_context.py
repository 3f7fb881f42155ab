"""Models of Bambi: what it computes from the data is refused. Most tests stand in for Bambi; one asks it itself."""

import copy
import gc
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.model.context import refuse_bambi_statistics


class PyMCModel:
    """Stands in for bambi.backend.PyMCModel: it holds the PyMC model and what it was built from."""

    def __init__(self, model, spec):
        self.model, self.spec = model, spec


def prior(auto_scale=False):
    return SimpleNamespace(auto_scale=auto_scale)


def built(formula="y ~ x", auto_scale=True, center_predictors=False, default=(), rows="__obs__"):
    with pm.Model(coords={rows: np.arange(50)}) as model:
        pm.Normal("y", pm.Normal("Intercept"), 1.0, observed=gaussian_data(50), dims=rows)
    terms = {name: SimpleNamespace(prior=prior(name in default)) for name in ("Intercept", "x")}
    terms["offset(z)"] = SimpleNamespace()  # it has no prior
    spec = SimpleNamespace(
        auto_scale=auto_scale,
        center_predictors=center_predictors,
        formula=SimpleNamespace(main=formula, additionals=()),
        marginal_parameters={
            "sigma": SimpleNamespace(prior=prior("sigma" in default)),
            "nu": SimpleNamespace(prior=4.0),
        },
        conditional_parameters={"mu": SimpleNamespace(terms=terms)},
    )
    return PyMCModel(model, spec)


def test_own_priors_and_covariates_as_they_are_pass(budget):
    backend = built()
    with backend.model:
        tree = pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), **QUIET)
    assert tree["privacy"].attrs["private"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"center_predictors": True}, r"center_predictors=False"),
        ({"default": ["Intercept"]}, r"\(Intercept: pass priors="),
        ({"default": ["x", "sigma"]}, r"\(sigma, x: pass priors="),
        ({"default": ["x"]}, r"or auto_scale=False for Bambi's priors of scale 1"),
    ],
)
def test_statistics_of_the_data_are_refused_with_what_to_pass(budget, settings, message):
    """Hazard H17: priors that Bambi scales by the data are refused."""
    backend = built(**settings)
    with backend.model, pytest.raises(dp.UnsupportedModel, match=message):
        pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), **QUIET)
    assert budget.history == ()


def test_priors_that_are_not_scaled_pass():
    backend = built(default=["Intercept"], auto_scale=False)
    refuse_bambi_statistics(backend.model)


def test_terms_that_learn_from_a_column_are_refused(monkeypatch):
    scale, log = SimpleNamespace(__stateful_transform__=True), SimpleNamespace()
    formulae = SimpleNamespace(TRANSFORMS={"scale": scale, "log": log})
    monkeypatch.setitem(sys.modules, "formulae.transforms", formulae)
    harmless, learning = built("y ~ log(x) + scaled"), built("y ~ log(x) + scale (x)")
    refuse_bambi_statistics(harmless.model)
    with pytest.raises(dp.UnsupportedModel, match="the formula calls scale, "):
        refuse_bambi_statistics(learning.model)


def test_levels_that_are_read_off_a_column_are_refused():
    """Hazard H17: whether anybody has a declared level would show in the model's parameters."""
    levels = pd.Categorical(["a", "b"], categories=["a", "b", "nobody"])
    backend = built("y ~ w + (1|ward)")
    backend.spec.data = pd.DataFrame({"w": [1.0, 2.0], "unused": ["a", "b"], "ward": levels.as_ordered()})
    refuse_bambi_statistics(backend.model)
    for column in (levels, ["a", "b"], [0, 1]):
        backend.spec.data["ward"] = column
        with pytest.raises(dp.UnsupportedModel, match=r"levels of ward are those that occur .*ordered=True"):
            refuse_bambi_statistics(backend.model)


@pytest.mark.parametrize("term", ["C(ward)", "w:C(ward)", "(w|ward)", "(1|w:ward)", "T(ward, 1)"])
def test_levels_of_numbers_are_made_by_some_terms(term):
    """Hazard H17."""
    backend = built(f"y ~ {term}")
    backend.spec.data = pd.DataFrame({"w": [1.0, 2.0], "ward": [0, 1]})
    with pytest.raises(dp.UnsupportedModel, match=r"levels of (w, )?ward are those that occur"):
        refuse_bambi_statistics(backend.model)
    numbers = built("y ~ ward + w")
    numbers.spec.data = backend.spec.data
    refuse_bambi_statistics(numbers.model)


def test_a_model_whose_origin_is_gone_is_refused():
    backend = built()
    clone = copy.copy(backend.model)
    with pytest.raises(dp.UnsupportedModel, match=r"Keep the bambi\.Model"):
        refuse_bambi_statistics(clone)
    model = backend.model
    refuse_bambi_statistics(model)
    del backend
    gc.collect()
    with pytest.raises(dp.UnsupportedModel, match=r"Keep the bambi\.Model"):
        refuse_bambi_statistics(model)


def test_other_models_pass():
    refuse_bambi_statistics(gaussian_model(gaussian_data(50)))
    refuse_bambi_statistics(built(center_predictors=True, rows="person").model)


def test_bambi_itself(budget):
    bmb = pytest.importorskip("bambi")
    pandas = pytest.importorskip("pandas")
    generator = np.random.default_rng(0)
    frame = pandas.DataFrame({"y": generator.normal(3, 2, 100), "x": generator.normal(5, 1.5, 100)})
    frame["group"] = pandas.Categorical(np.repeat(["a", "b"], 50), ordered=True)
    own = {
        "Intercept": bmb.Prior("Normal", mu=0, sigma=10),
        "x": bmb.Prior("Normal", mu=0, sigma=2),
        "sigma": bmb.Prior("HalfNormal", sigma=5),
    }

    def refused(formula, **settings):
        bambi_model = bmb.Model(formula, frame, **settings)
        bambi_model.build()
        with pytest.raises(dp.UnsupportedModel) as caught:
            refuse_bambi_statistics(bambi_model.backend.model)
        return str(caught.value)

    message = refused("y ~ x")
    assert "center_predictors=False" in message
    assert "(Intercept, sigma, x: pass priors=" in message
    assert "priors" not in refused("y ~ x", priors=own)
    assert "(sigma: pass" in refused("y ~ x", center_predictors=False, priors={**own, "sigma": None})
    grouped = refused("y ~ x + (1|group)", center_predictors=False, priors=own)
    assert "(1|group: pass" in grouped
    of_the_spread = bmb.Formula("y ~ x", "sigma ~ x")
    without_sigma = {"Intercept": own["Intercept"], "x": own["x"]}
    spread = refused(of_the_spread, center_predictors=False, priors=without_sigma)
    assert "(sigma: Intercept, sigma: x: pass" in spread
    scaled = {("scale(x)" if name == "x" else name): each for name, each in own.items()}
    assert "the formula calls scale, " in refused("y ~ scale(x)", center_predictors=False, priors=scaled)

    unscaled = bmb.Model("y ~ x + (1|group)", frame, center_predictors=False, auto_scale=False, noncentered=False)
    unscaled.build()
    refuse_bambi_statistics(unscaled.backend.model)

    group = bmb.Prior("Normal", mu=0, sigma=bmb.Prior("HalfNormal", sigma=2))
    bambi_model = bmb.Model("y ~ x + (1|group)", frame, center_predictors=False, priors={**own, "1|group": group})
    bambi_model.build()
    with bambi_model.backend.model:
        step = hmc(budget)
    tree = bambi_model.fit(draws=5, tune=0, chains=1, cores=1, step=step, **QUIET)
    assert tree["privacy"].attrs["private"]
    assert "observed_data" not in tree.children
    assert not any("__obs__" in variable.dims for variable in tree["posterior"].data_vars.values())
    bambi_model.predict(tree)
    assert "VARIABLES ADDED AFTER THE RUN to the posterior: mu." in dp.diagnostics.privacy_report(tree)
