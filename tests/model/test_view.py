"""A run reads its model once."""

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.model import parameters, view


@pytest.fixture
def readings(monkeypatch):
    """Count what is made of models."""
    made = []

    def counting(owner, name):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **how: made.append(name) or real(*args, **how))

    counting(parameters.ParameterVector, "__init__")
    for name in ("row_axes", "split", "units_of"):
        counting(view, name)
    return made


def test_a_model_is_read_once_when_a_step_is_made_and_once_in_a_run(readings):
    with gaussian_model(gaussian_data()):
        step = hmc(dp.PrivacyBudget(1.0, 1e-6))
        assert readings == ["__init__"]
        readings.clear()
        dp.sample(draws=3, chains=1, step=step, **QUIET)
    assert sorted(readings) == ["__init__", "row_axes", "split", "units_of"]


def test_what_a_step_knows_is_read_without_rows(readings):
    """No axis, no split: what steps learn of a model when they are made is no function of which arrays are rows."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    with pm.Model():
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ pm.Normal("beta", shape=2), observed=(x[:, 0] > 0).astype(int))
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(1.0, 1e-6))
    assert step.learning is not None
    assert readings == ["__init__"]


def test_nothing_that_was_read_shows_rows_or_how_many_they_are():
    found = view.read(gaussian_model(gaussian_data()), unit_index=np.arange(400) // 7)
    parts = [found, found.row_split, *found.row_split.leaves, found.units, found._rows]
    assert all(type(each).__repr__ is object.__repr__ for each in parts)


def test_a_view_cannot_be_changed():
    found = view.read(gaussian_model(gaussian_data()))
    with pytest.raises(AttributeError):
        found.units = None


def test_units_do_not_change_with_the_array_that_named_them():
    """Steps keep a view for many runs: what was declared is what was read."""
    index = np.repeat(np.arange(20), 2)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.zeros(40))
    units = view.read(model, unit_index=index).units
    index[:] = 0
    assert np.unique(units.of_row).size == 20
