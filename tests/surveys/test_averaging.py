"""Averages of predictions: right without noise, honest with it, and paid for."""

import json
import math

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from asked_again import compiled_once
from test_checking import posterior

import pymc_dp as dp
from pymc_dp.surveys import averaging

N = 1200
GENERATOR = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": GENERATOR.normal(50, 12, N).clip(18, 90),
        "drug": GENERATOR.random(N) < 0.4,
        "ward": GENERATOR.choice(["a", "b", "c"], N, p=[0.5, 0.4, 0.1]),
    }
)
COEFFICIENTS = np.array([-0.5, 0.8, 0.8, 0.4, -0.3, 0.0, 0.5])


def design(frame):
    age, drug = (frame["age"] - 54.0) / 36.0, frame["drug"].astype(float)
    wards = [frame["ward"] == ward for ward in ("b", "c")]
    return np.column_stack([np.ones(len(frame)), age, drug, *wards, np.zeros(len(frame)), age * drug])


def risk(frame, coefficients=COEFFICIENTS):
    return pd.Series(1 / (1 + np.exp(-(design(frame) @ coefficients))))


FRAME["back"] = GENERATOR.random(N) < risk(FRAME)
TABLE = dp.Table(
    FRAME, schema=[dp.Number("age", 18, 90), dp.YesNo("drug"), dp.Category("ward", ["a", "b", "c"]), dp.YesNo("back")]
)
DRUG = {"none": {"drug": "no"}, "drug": {"drug": True}}


def beside(seed=0, spread=0.05):
    """Return a model on the template, and draws around the truth."""
    t = TABLE.template
    columns = np.column_stack([t.matrix("age", "drug", "ward"), t.age * t.drug])
    with pm.Model() as model:
        eta = pm.Normal("a") + pm.Data("x", columns) @ pm.Normal("b", shape=6)
        pm.Bernoulli("back", logit_p=eta, observed=t.back)
    draws = COEFFICIENTS + np.random.default_rng(seed).normal(scale=spread, size=(400, 7))
    return model, posterior({"a": draws[:, 0], "b": draws[:, 1:]}), draws


def averaged(scenarios=None, epsilon=math.inf, fitted=None, **options):
    model, result, _ = fitted or beside()
    budget = options.pop("budget", None) or dp.PrivacyBudget(epsilon, 1e-6)
    return dp.average_predictions(
        result, scenarios, budget=budget, model=model, budget_share=1.0, **{"data": TABLE, **options}
    )


@pytest.fixture(scope="module")
def fitted():
    return beside()


@pytest.fixture
def few_draws(monkeypatch):
    """For tests of means, of which the number of draws changes nothing but the time."""
    monkeypatch.setattr(averaging, "_DRAWS", 20)


@compiled_once()
def test_without_noise_they_are_those_of_the_table(fitted):
    found = averaged(DRUG, fitted=fitted)
    draws = fitted[2][np.linspace(0, 399, 100).astype(int)]
    for name, frame in (("none", FRAME.assign(drug=False)), ("drug", FRAME.assign(drug=True))):
        expected = np.array([risk(frame, draw).mean() for draw in draws])
        np.testing.assert_allclose(
            found.average.sel(scenario=name).values[0], expected, atol=2e-4
        )  # a hundredth clipped
    contrast = found.contrasts.loc["drug"]
    assert contrast["mean"] == pytest.approx(
        (risk(FRAME.assign(drug=True)) - risk(FRAME.assign(drug=False))).mean(), abs=0.01
    )
    assert "NOT PRIVATE" in repr(found)
    as_it_is = averaged(fitted=fitted)
    assert float(as_it_is.table["mean"].iloc[0]) == pytest.approx(risk(FRAME).mean(), abs=0.01)


@compiled_once()
def test_groups_have_averages_of_their_own(fitted):
    found = averaged(DRUG, fitted=fitted, by=["ward"])
    expected = risk(FRAME.assign(drug=True)).groupby(FRAME["ward"]).mean()
    for ward in "abc":
        assert found.table.loc[("drug", ward), "mean"] == pytest.approx(expected[ward], abs=0.01)
    assert math.isnan(found.table.loc[("drug", "other"), "mean"])
    assert dict(zip("abc", found.tree["noise"]["units"].values, strict=False)) == pytest.approx(
        FRAME["ward"].value_counts().to_dict(), abs=1e-3
    )
    census = found.standardised({"a": 2.0, "c": 1.0}).mean(("chain", "draw")).sel(scenario="drug")
    assert float(census) == pytest.approx((2 * expected["a"] + expected["c"]) / 3, abs=0.01)
    for weights in ({"d": 1.0}, {"a": -1.0}, {}):
        with pytest.raises(dp.InvalidArgument, match="weights"):
            found.standardised(weights)
    with pytest.raises(dp.InvalidArgument, match="no groups"):
        averaged(fitted=fitted).standardised({"a": 1.0})


@compiled_once()
def test_columns_may_be_given_as_pymc_takes_them(fitted):
    """As rows of the template: those that are constant, equal, or columns of the table."""
    t = TABLE.template
    x = np.column_stack([t.matrix("age"), np.zeros(t.n), t.matrix("ward"), np.zeros(t.n)])
    by_hand = averaged({"none": {"x": x}}, fitted=fitted).average
    declared = averaged({"none": {"drug": False}}, fitted=fitted).average
    np.testing.assert_array_equal(by_hand.values, declared.values)


def in_the_model(family, seed=0):
    """Return a model on the table itself, draws, and what it predicts given them."""
    generator = np.random.default_rng(seed)
    x, group = generator.normal(size=(N, 2)), generator.integers(3, size=N)
    draws = np.array([0.5, -0.3]) + generator.normal(scale=0.02, size=(200, 2))
    eta = x @ [0.5, -0.3]
    with pm.Model() as model:
        data, b = pm.Data("x", x), pm.Normal("b", shape=2)
        pm.Data("group", group)
        if family == "linear":
            pm.Normal("y", 90.0 + 2.0 * (data @ b), 1.0, observed=90 + 2 * eta + generator.normal(size=N))
        elif family == "poisson":
            pm.Poisson("y", pm.math.exp(data @ b), observed=generator.poisson(np.exp(eta)))
        else:
            logits = pm.math.stack([0.0 * (data @ b), data @ b, -(data @ b)], axis=1)
            pm.Categorical("y", logit_p=logits, observed=generator.integers(3, size=N))
    return (model, posterior({"b": draws}), draws), x, group, draws.mean(axis=0)


@compiled_once()
def test_ranges_of_means_are_found():
    fitted, x, _, b = in_the_model("linear")
    shifted = {"as it is": {}, "one": {"x": np.column_stack([np.ones(N), x[:, 1]])}}
    found = averaged(shifted, fitted=fitted, data=None)
    assert found.table.loc["one", "mean"] == pytest.approx(90 + 2 * (b[0] + b[1] * x[:, 1].mean()), abs=1e-3)
    assert found.contrasts.loc["one", "mean"] == pytest.approx(2 * b[0] * (1 - x[:, 0].mean()), abs=1e-3)
    noise = found.tree["noise"].attrs
    predictions = 90 + 2 * (x @ b)
    assert 80 < noise["low"] < predictions.min() < predictions.max() < noise["high"] < 102
    private = averaged(shifted, 1.0, fitted=fitted, data=None)
    line = private.table.loc["one"]
    assert line["mean"] == pytest.approx(float(found.table.loc["one", "mean"]), abs=5 * line["of_noise"])
    assert line["of_noise"] < 0.5


@pytest.mark.usefixtures("few_draws")
@compiled_once()
def test_probabilities_of_values(tmp_path):
    fitted, x, _, b = in_the_model("poisson")
    rate = np.exp(x @ b)
    found = averaged({"as it is": {}, "at 0": {"x": [0.0, 0.0]}}, fitted=fitted, data=None, equal_to=0)
    assert found.table.loc["as it is", "mean"] == pytest.approx(np.exp(-rate).mean(), abs=1e-3)
    assert found.table.loc["at 0", "mean"] == pytest.approx(math.exp(-1.0), abs=1e-6)
    at_most = averaged(fitted=fitted, data=None, at_most=1)
    assert at_most.table.loc["as it is", "mean"] == pytest.approx((np.exp(-rate) * (1 + rate)).mean(), abs=1e-3)
    found.tree.to_netcdf(tmp_path / "averages.nc")
    with xr.open_datatree(tmp_path / "averages.nc") as opened:
        assert repr(dp.AveragePredictions(opened.load())) == repr(found)


@pytest.mark.usefixtures("few_draws")
def test_probabilities_of_categories_and_groups_of_codes():
    fitted, x, group, b = in_the_model("categories")
    eta = x @ b
    found = averaged(fitted=fitted, data=None, equal_to=1, by={"group": ["k", "l", "m"]})
    expected = np.exp(eta) / (1 + np.exp(eta) + np.exp(-eta))
    for code, name in enumerate("klm"):
        assert found.table.loc[("as it is", name), "mean"] == pytest.approx(expected[group == code].mean(), abs=1e-3)
    with pytest.raises(dp.InvalidArgument, match="category"):
        averaged(fitted=fitted, data=None)


def test_units_of_several_rows_count_by_their_means():
    generator = np.random.default_rng(3)
    person = np.repeat(np.arange(300), [1, 2, 3, 6] * 75)
    x = generator.normal(size=person.size)
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("b") * pm.Data("x", x), observed=generator.integers(2, size=x.size))
    fitted = (model, posterior({"b": np.full(100, 1.5)}), None)
    found = averaged(fitted=fitted, data=None, unit_index=person)
    p = pd.Series(1 / (1 + np.exp(-1.5 * x)))
    assert found.table["mean"].iloc[0] == pytest.approx(p.groupby(person).mean().mean(), abs=1e-4)


def scores_of(table, mean_of):
    """Return how far averages of two wards are from what they should be, in standard deviations."""
    found = []
    for name, drug in (("none", False), ("drug", True)):
        truth = mean_of(FRAME.assign(drug=drug)).groupby(FRAME["ward"]).mean()
        found += [(table.loc[(name, ward), "mean"] - truth[ward]) / table.loc[(name, ward), "sd"] for ward in "ab"]
    return found


@compiled_once()
def test_noise_is_as_large_as_it_says(fitted, monkeypatch):
    """Of 8 releases of a posterior without spread; 32 squared scores have a mean within .2 and 2.8 but for 10**-6."""
    monkeypatch.setattr(averaging, "_DRAWS", 50)  # all are the same
    draws = np.tile(COEFFICIENTS, (5, 1))
    known = (fitted[0], posterior({"a": draws[:, 0], "b": draws[:, 1:]}), draws)
    scores = [
        score
        for seed in range(8)
        for score in scores_of(averaged(DRUG, 1.0, known, by="ward", insecure_seed=seed).table, risk)
    ]
    assert 0.2 < np.mean(np.square(scores)) < 2.8


@compiled_once()
def test_a_small_group_of_which_little_is_known_has_a_bound_of_its_own():
    """The posterior of a rare group is wide: of half a percent of the rows, which one bound for all would cut."""
    generator = np.random.default_rng(2)
    n = 6000
    group = (generator.random(n) < 0.005).astype(int)
    with pm.Model() as model:
        effect = pm.Normal("b", shape=2)[pm.Data("group", group)]
        pm.Bernoulli("y", logit_p=effect, observed=generator.integers(2, size=n))
    draws = generator.normal(scale=[0.02, 0.5], size=(300, 2))
    fitted = (model, posterior({"b": draws}), draws)
    by = {"group": ["common", "rare"]}
    exact = (1 / (1 + np.exp(-draws[:, 1]))).std()
    found = averaged(fitted=fitted, data=None, by=by)
    assert found.table.loc[("as it is", "rare"), "sd"] == pytest.approx(exact, rel=0.2)
    hidden = averaged(epsilon=0.5, fitted=fitted, data=None, by=by, insecure_seed=0)  # among noise
    assert math.isnan(hidden.table.loc[("as it is", "rare"), "mean"])
    assert np.isfinite(hidden.table.loc[("as it is", "common"), "mean"])


@pytest.mark.nightly
@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
@compiled_once()
def test_intervals_cover(fitted, relation):
    """Of 40 posteriors at epsilon .5: the squares of 160 scores have a mean of at most 1.

    Those of one table share draws of the posterior: their mean, of at least 40, is below 2.5 but once in 10**6.
    """
    scores = []
    for seed in range(40):
        generator = np.random.default_rng(seed + 10)
        centre = COEFFICIENTS + generator.normal(scale=0.15, size=7)
        draws = centre + generator.normal(scale=0.15, size=(300, 7))
        known = (fitted[0], posterior({"a": draws[:, 0], "b": draws[:, 1:]}), draws)
        budget = dp.PrivacyBudget(0.5, 1e-6, relation=relation)
        scores += scores_of(averaged(DRUG, fitted=known, by="ward", budget=budget, insecure_seed=seed).table, risk)
    scores = np.array(scores)[np.isfinite(scores)]
    assert len(scores) > 150
    assert 0.2 < np.mean(scores**2) < 2.5


def test_they_are_paid_for(fitted):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    model, result, _ = fitted
    with model:
        found = dp.average_predictions(result, DRUG, data=TABLE, budget=budget, budget_share=0.5, by="drug")
    assert budget.rho_spent == pytest.approx(0.5 * budget.rho)
    facts = found.tree["privacy"].attrs
    assert facts["private"] == 1
    assert facts["epsilon"] == pytest.approx(budget.epsilon_spent, rel=1e-6)
    kinds = [each["kind"] for each in json.loads(facts["releases"])]
    assert kinds == ["prediction_sums", "spread_sizes", "prediction_spreads"]
    assert found.average.sizes == {"chain": 1, "draw": 100, "scenario": 2, "drug": 2}
    assert "Sampler: average predictions" in str(dp.disclosure(found.tree))
    for plot in (az.plot_forest, az.plot_dist, az.plot_trace):
        plot(found.tree, var_names=["average"], backend="none")
    assert "NOT PRIVATE" not in repr(found)


def test_averages_of_a_result_that_is_not_private_are_not(fitted):
    model, result, draws = fitted
    seeded = result.copy()
    seeded["privacy"].attrs |= {"private": 0, "not_private_because": "its noise is seeded"}
    found = averaged(epsilon=1.0, fitted=(model, seeded, draws))
    assert found.tree["privacy"].attrs["private"] == 0
    assert "NOT PRIVATE" in repr(found)


WRONG = [
    ({"a": {"drug": 3}}, {}, "'drug' cannot be 3"),
    ({"a": {"ward": "d"}}, {}, "'ward' cannot be 'd'"),
    ({"a": {"age": 17}}, {}, "'age' cannot be 17"),
    ({"a": {"age": lambda age: age + 10}}, {}, "has to set 'age' to one value"),
    ({"a": {"age": np.full(3, 40)}}, {}, "has to set 'age' to one value"),
    ({"a": {"back": True}}, {}, "is the response"),
    ({"a": {"height": 3}}, {}, "no covariate 'height'"),
    ({"a": {"x": 1.0}}, {}, "shape"),
    ({"a": 1}, {}, "Scenarios are"),
    ({}, {"by": "age"}, "by= must be"),
    ({}, {"by": "height"}, "by= must be"),
    ({}, {"equal_to": 3}, "'back' cannot be 3"),
    ({}, {"equal_to": 1, "at_most": 1}, "not both"),
    ({}, {"budget": 3.0}, "budget"),
    ({}, {"data": 3}, "pymc_dp.Table"),
]


@pytest.mark.parametrize(("scenarios", "options", "match"), WRONG)
def test_what_is_wrong_is_refused_before_anything_is_charged(fitted, scenarios, options, match):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with pytest.raises(dp.InvalidArgument, match=match):
        averaged(scenarios, fitted=fitted, **{"budget": budget, **options})
    assert budget.history == ()


def test_columns_that_the_model_does_not_read_are_refused():
    t = TABLE.template
    with pm.Model() as model:
        pm.Bernoulli("back", logit_p=pm.Normal("a") * t.age, observed=t.back)
    result = posterior({"a": np.zeros(9)})
    with pytest.raises(dp.InvalidArgument, match="does not read"):
        averaged(DRUG, fitted=(model, result, None))
    with pytest.raises(dp.InvalidArgument, match="no averages"):
        dp.AveragePredictions(result)
    fitted, *_ = in_the_model("linear")
    with pytest.raises(dp.InvalidArgument, match="not discrete"):
        averaged(fitted=fitted, data=None, equal_to=1.0)
