"""Checks and descriptions are replayed on neighbours, with frozen answers."""

import functools
from unittest import mock

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from neighbours import neighbours_of
from replay import replay
from running import Survey
from zoo import PERSONS, REGRESSION, ZOO

import pymc_dp as dp
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.release import InsecureNoise
from pymc_dp.surveys import averaging, folding

DECLARED = [
    dp.Number("x", -2, 2),
    dp.Whole("k", 0, 5),
    dp.Category("g", [0, 1, 2]),
    dp.Whole("y", 0, 9, raw=True),
    dp.YesNo("z"),
]


def declared_table(rng, n=120):
    return {
        "x": rng.normal(size=n),
        "k": rng.integers(0, 8, size=n),
        "g": rng.integers(0, 4, size=n),
        "y": rng.poisson(2.0, size=n),
        "z": rng.integers(0, 2, size=n),
        "person": np.sort(rng.integers(0, n // 3, size=n)),
    }


def poisson(_):
    t = dp.Table({}, schema=DECLARED).template
    with pm.Model() as model:
        eta = pm.Normal("b", shape=2)[0] * t.x + pm.Normal("c") * t.k_missing + pm.Normal("w", shape=4)[t.g]
        pm.Poisson("y", pm.math.exp(eta), observed=t.y)
    return model


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Of each unit, differences at all draws are clipped together: how many there are changes nothing but the time."""
    monkeypatch.setattr(averaging, "_DRAWS", 10)


def public_posterior(model, seed=0):
    """Return draws that no table has a part in."""
    parameters = ParameterVector(model)
    generator = np.random.default_rng(seed)
    with model:
        points = [model.initial_point(random_seed=0)] * 5
    thetas = [parameters.to_theta(point) + generator.normal(scale=0.3, size=parameters.size) for point in points]
    draws = {}
    constrained = model.compile_fn(model.replace_rvs_by_values(model.free_RVs), inputs=model.value_vars, point_fn=False)
    found = [constrained(*parameters.split(theta)) for theta in thetas]
    for place, rv in enumerate(model.free_RVs):
        values = np.array([each[place] for each in found])[None]
        draws[rv.name] = (("chain", "draw", *(f"{rv.name}_{axis}" for axis in range(values.ndim - 2))), values)
    return xr.DataTree.from_dict({"posterior": xr.Dataset(draws), "privacy": xr.Dataset(attrs={"private": 1})})


def asked_in_a_model(table, data, settings):
    model = pm.modelcontext(None)
    columns = {f"of {name}": values for name, values in table.items() if values.ndim == 1 and name != "person"}
    return dp.check(public_posterior(model), by=columns, budget_share=1.0, **settings).tree


def asked_beside(table, data, settings):
    posterior = public_posterior(pm.modelcontext(None))
    return dp.check(posterior, by=["g", "z", "k"], data=data, budget_share=1.0, **settings).tree


def described(table, data, settings):
    return dp.describe(data, budget_share=1.0, **settings).tree


def compared_in_a_model(table, data, settings):
    """With the model without covariates."""
    model = pm.modelcontext(None)
    with pm.Model(model=None) as other:
        pm.Normal("y", pm.Normal("a"), 1.0, observed=np.asarray(table["y"], dtype=float))
    models = {"other": (other, public_posterior(other)), "own": (model, public_posterior(model))}
    return dp.compare(models, budget_share=1.0, **settings).tree


def compared_beside(table, data, settings):
    t = dp.Table({}, schema=DECLARED).template
    with pm.Model(model=None) as other:
        pm.Poisson("y", pm.math.exp(pm.Normal("a") * t.z), observed=t.y)
    model = pm.modelcontext(None)
    models = {"other": (other, public_posterior(other)), "own": (model, public_posterior(model))}
    return dp.compare(models, data=data, budget_share=1.0, **settings).tree


def compared_in_folds(table, data, settings):
    """Of which the same words draw the same on both tables."""
    t = dp.Table({}, schema=DECLARED).template
    with pm.Model(model=None) as other:
        pm.Poisson("y", pm.math.exp(pm.Normal("a") * t.z), observed=t.y)
    model = pm.modelcontext(None)
    with mock.patch.object(folding, "SecureNoise", return_value=InsecureNoise([0])):
        parts = dp.folds(data, 3, budget=settings["budget"])
    models = {"other": (other, [public_posterior(other)] * 3), "own": (model, [public_posterior(model)] * 3)}
    return dp.compare(models, folds=parts, budget_share=1.0, **settings).tree


def averaged_in_a_model(table, data, settings, **asked):
    """With columns as they are, set in each row, and set to a number."""
    model = pm.modelcontext(None)
    rows = {name: np.asarray(table[name]) for name in (str(each.name) for each in model.data_vars) if name in table}
    shifted = {name: values * 2 for name, values in rows.items() if values.dtype.kind == "f"}
    scenarios = {"as it is": {}, "shifted": shifted, "zero": {name: 0 * values[0] for name, values in shifted.items()}}
    return dp.average_predictions(public_posterior(model), scenarios, budget_share=1.0, **asked, **settings).tree


def averaged_beside(table, data, settings):
    """Of an expression in two columns, by a third."""
    posterior = public_posterior(pm.modelcontext(None))
    scenarios = {"as it is": {}, "far": {"x": 2.0}, "level": {"g": 1}}
    return dp.average_predictions(posterior, scenarios, by="z", data=data, budget_share=1.0, **settings).tree


def clean(report):
    assert not report.refused
    assert report.violations == []
    assert report.moved
    return True


SLOW = pytest.mark.slow


@pytest.mark.parametrize("relation", ["substitute", pytest.param("add-remove", marks=pytest.mark.slow)])
def test_comparisons(relation):
    """Hazards H13 and H34: differences of two models' densities."""
    rng = np.random.default_rng(0)
    table = REGRESSION.table(rng)
    neighbours = neighbours_of(table, relation, rng, 6)
    settings = {"relation": relation, "epsilon": 50.0}
    report = replay(REGRESSION.build, table, neighbours, Survey(compared_in_a_model), **settings)
    assert not report.refused
    assert report.violations == []
    assert report.moved


MORE = [PERSONS, *(case for case in ZOO if str(case) in ("logistic", "negative-binomial", "censored"))]


@pytest.mark.few(slow=5)
@pytest.mark.parametrize("relation", ["substitute", pytest.param("add-remove", marks=SLOW)])
@pytest.mark.parametrize("case", [REGRESSION, *(pytest.param(case, marks=SLOW) for case in MORE)], ids=str)
def test_checks(case, relation):
    """Hazards H13 and H34: bins that are found by noisy counts, and counts in them; odd rows, and rows of persons."""
    rng = np.random.default_rng(0)
    table = case.table(rng)
    neighbours = neighbours_of(table, relation, rng, 6, case.unit)
    survey = Survey(asked_in_a_model)
    assert clean(replay(case.build, table, neighbours, survey, relation=relation, unit_index=case.unit, epsilon=50.0))


@pytest.mark.few(slow=4)
@pytest.mark.parametrize("relation", ["substitute", pytest.param("add-remove", marks=SLOW)])
@pytest.mark.parametrize(
    "case", [PERSONS, *(pytest.param(case, marks=SLOW) for case in [REGRESSION, *MORE[1:3]])], ids=str
)
def test_averages(case, relation):
    """Hazards H13 and H34: predictions in ranges that noisy counts find, and at draws; also of rows of persons."""
    rng = np.random.default_rng(0)
    table = case.table(rng)
    neighbours = neighbours_of(table, relation, rng, 6, case.unit)
    settings = {"relation": relation, "unit_index": case.unit, "epsilon": 50.0}
    asked = {"at_most": 2} if str(case) == "negative-binomial" else {}
    survey = Survey(functools.partial(averaged_in_a_model, **asked))
    assert clean(replay(case.build, table, neighbours, survey, **settings))


def test_folds():
    """Hazard H53: a replaced row moves the releases of one fold, which is all that is paid for."""
    rng = np.random.default_rng(1)
    table = declared_table(rng)
    neighbours = neighbours_of(table, "substitute", rng, 5)
    settings = {"relation": "substitute", "epsilon": 50.0}
    beside = functools.partial(dp.Table.from_frame, schema=DECLARED)
    report = replay(
        poisson,
        table,
        neighbours,
        Survey(compared_in_folds),
        beside=lambda rows: beside(pd.DataFrame(rows)),
        **settings,
    )
    assert report.problems == [
        f"3 releases of kind {kind!r}, 1 were paid for" for kind in ("difference_sizes", "density_differences")
    ]
    assert [each.curator for each in report.first.requests] == [0, 0, 1, 1, 2, 2]
    assert report.moved
    for each in report.comparisons:
        assert (each.violations, each.moved <= 2) == ([], True)


def found_levels(table, data, settings):
    return dp.find_levels(data, ["g", "z"], budget=settings["budget"], delta=1e-9, budget_share=1.0).tree


@pytest.mark.few(2)
@pytest.mark.parametrize("unit", [None, "person"])
@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_levels(relation, unit):
    """Hazards H13 and H52: neighbours have levels that others have; of all others is `tests/release/test_levels.py`."""
    rng = np.random.default_rng(1)
    table = declared_table(rng)
    schema = [*DECLARED, dp.Person("person")] if unit else DECLARED
    neighbours = [
        each
        for each in neighbours_of(table, relation, rng, 40, unit)
        if all(set(each.table[name]) == set(table[name]) for name in ("g", "z"))
    ]
    assert len(neighbours) >= 8
    beside = functools.partial(dp.Table.from_frame, schema=schema)
    settings = {"relation": relation, "unit_index": unit, "epsilon": 50.0}
    report = replay(
        poisson, table, neighbours, Survey(found_levels), beside=lambda rows: beside(pd.DataFrame(rows)), **settings
    )
    assert clean(report)


@pytest.mark.few(slow=5)
@pytest.mark.parametrize(
    ("ask", "relation", "unit"),
    [
        (asked_beside, "substitute", None),
        (described, "substitute", None),
        (described, "add-remove", "person"),
        pytest.param(averaged_beside, "substitute", None, marks=pytest.mark.nightly),
        pytest.param(averaged_beside, "substitute", "person", marks=SLOW),
        pytest.param(averaged_beside, "add-remove", "person", marks=SLOW),
        pytest.param(averaged_beside, "add-remove", None, marks=SLOW),
        pytest.param(compared_beside, "substitute", "person", marks=SLOW),
        pytest.param(compared_beside, "add-remove", None, marks=SLOW),
        pytest.param(asked_beside, "add-remove", "person", marks=SLOW),
        pytest.param(asked_beside, "substitute", "person", marks=SLOW),
        pytest.param(asked_beside, "add-remove", None, marks=SLOW),
        pytest.param(described, "substitute", "person", marks=SLOW),
        pytest.param(described, "add-remove", None, marks=SLOW),
    ],
)
def test_declared_tables(ask, relation, unit):
    """Hazards H13 and H14: entries that are missing, huge or no levels, beside a model and without one."""
    rng = np.random.default_rng(1)
    table = declared_table(rng)
    schema = [*DECLARED, dp.Person("person")] if unit else DECLARED
    report = replay(
        poisson,
        table,
        neighbours_of(table, relation, rng, 6, unit),
        Survey(ask),
        relation=relation,
        unit_index=unit,
        epsilon=50.0,
        beside=lambda rows: dp.Table.from_frame(pd.DataFrame(rows), schema),
    )
    assert clean(report)
