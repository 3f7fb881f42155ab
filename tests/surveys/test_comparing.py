"""Comparisons of models: exact without noise, honest with it, corrected for what was fitted, and paid for."""

import json
import math
import sqlite3

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from asked_again import compiled_once
from scipy import special, stats
from test_checking import posterior

import pymc_dp as dp
from pymc_dp.model.view import read
from pymc_dp.surveys import comparing
from pymc_dp.tables.columns import Columns

N = 1500


def linear(x, y, seed=0):
    """Return a model of known scale, and draws of its posterior."""
    with pm.Model() as model:
        pm.Normal("y", pm.Data("x", x) @ pm.Normal("b", 0.0, 100.0, shape=x.shape[1]), 1.0, observed=y)
    covariance = np.linalg.inv(x.T @ x)
    draws = np.random.default_rng(seed).multivariate_normal(covariance @ x.T @ y, covariance, 64)
    return model, posterior({"b": draws})


def table(seed=0, effect=0.2, size=1):
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(N), generator.normal(size=(N, size))])
    return x, x[:, :2] @ [0.3, effect] + generator.normal(size=N)


def compared(x, y, epsilon=math.inf, **options):
    models = {"mean": linear(x[:, :1], y), "line": linear(x, y)}
    return dp.compare(models, budget=dp.PrivacyBudget(epsilon, 1e-6), budget_share=1.0, **options)


def test_without_noise_it_is_the_sum_of_differences():
    x, y = table()
    models = {"mean": linear(x[:, :1], y), "line": linear(x, y)}
    found = dp.compare(models, budget=dp.PrivacyBudget(math.inf, 1e-6), budget_share=1.0)
    densities = []
    for columns, (_, result) in zip((x[:, :1], x), models.values(), strict=True):
        draws = result["posterior"]["b"].values[0][np.linspace(0, 63, 32).astype(int)]
        densities.append(special.logsumexp(stats.norm.logpdf(y[:, None], columns @ draws.T), axis=1))
    differences = densities[1] - densities[0]
    (line,) = found.table.itertuples()
    clipped = np.clip(differences, -line.clip_bound, line.clip_bound)
    assert np.mean(np.abs(differences) > line.clip_bound) < 0.02
    assert line.in_sample == pytest.approx(clipped.sum(), abs=1e-4)
    assert line.of_rows == pytest.approx(clipped.std() * math.sqrt(N), rel=1e-4)
    assert line.p_diff == 1.0
    assert line.elpd_diff == pytest.approx(clipped.sum() - 1.0, abs=1e-4)


@pytest.mark.slow
def test_what_was_fitted_is_taken_off():
    """Of 16 tables in which ten covariates do nothing: in new rows, models with them are worse by five on average.

    The mean has a standard error of .56, so that five of them are allowed for.
    """
    found = []
    for seed in range(16):
        x, y = table(seed, effect=0.0, size=10)
        found.append(compared(x, y).table.iloc[0])
    in_sample = np.mean([each["in_sample"] for each in found])
    assert in_sample == pytest.approx(5.0, abs=2.8)  # half of ten, in the rows that were fitted
    assert np.mean([each["elpd_diff"] for each in found]) == pytest.approx(-5.0, abs=2.8)  # and half in new ones


@compiled_once()
def test_noise_is_as_large_as_it_says():
    """Of 25 releases; squared scores of 15 or more have a mean within .05 and 4 but once in 10**6."""
    x, y = table()
    models = {"mean": linear(x[:, :1], y), "line": linear(x, y)}
    exact = dp.compare(models, budget=dp.PrivacyBudget(math.inf, 1e-6)).table.iloc[0]
    scores = []
    for seed in range(25):
        found = dp.compare(models, budget=dp.PrivacyBudget(30.0, 1e-6), budget_share=1.0, insecure_seed=seed)
        line = found.table.iloc[0]
        if line["clip_bound"] == exact["clip_bound"]:
            scores.append((line["in_sample"] - exact["in_sample"]) / line["of_noise"])
    assert len(scores) >= 15
    assert 0.05 < np.mean(np.square(scores)) < 4.0


def test_a_better_model_is_told_from_the_first(tmp_path):
    x, y = table(effect=0.4)
    found = compared(x, y, 2.0)
    assert found.table.loc["line", "elpd_diff"] > 2 * found.table.loc["line", "error"]
    assert "'line' predicts better" in repr(found)
    x, y = table(effect=0.0)
    assert "cannot be distinguished" in repr(compared(x, y, 2.0))
    found.tree.to_netcdf(tmp_path / "comparison.nc")
    with xr.open_datatree(tmp_path / "comparison.nc") as opened:
        assert repr(dp.Comparison(opened.load())) == repr(found)


def test_arviz_draws_comparisons():
    x, y = table(effect=0.4)
    found = compared(x, y, 2.0)
    lines = found.for_arviz
    assert list(lines.index) == ["line", "mean"]
    assert lines.loc["mean"].tolist() == [0.0, 0.0]
    assert lines.loc["line", "dse"] == found.table.loc["line", "error"]
    az.plot_compare(lines, backend="none")


def test_several_comparisons_cost_as_much_as_one():
    x, y = table(size=2)
    budget = dp.PrivacyBudget(2.0, 1e-6)
    models = {"mean": linear(x[:, :1], y), "line": linear(x[:, :2], y), "plane": linear(x, y)}
    found = dp.compare(models, budget=budget, budget_share=0.5)
    (charged,) = budget.history
    assert charged.rho == pytest.approx(budget.rho_spent)
    assert budget.rho_spent == pytest.approx(0.5 * budget.rho)
    facts = found.tree["privacy"].attrs
    assert facts["epsilon"] == pytest.approx(budget.epsilon_spent, rel=1e-6)
    assert sum(each["rho"] for each in json.loads(facts["releases"])) == pytest.approx(facts["rho"])
    assert set(found.table.index) == {"line", "plane"}
    assert "Sampler: comparison" in str(dp.disclosure(found.tree))


def test_a_model_of_a_comparison_asks_what_was_paid_for_it(monkeypatch):
    """Not what was paid for another; what cannot be compiled is refused before anything is charged."""
    x, y = table(size=2)
    models = {"mean": linear(x[:, :1], y), "line": linear(x[:, :2], y), "plane": linear(x, y)}
    of_table = comparing._of_table
    monkeypatch.setattr(comparing, "_of_table", lambda *asked: [of_table(*asked) for _ in range(2)][-1])
    with pytest.raises(dp.RunInterrupted):
        dp.compare(models, budget=dp.PrivacyBudget(2.0, 1e-6))
    budget, compiled = dp.PrivacyBudget(2.0, 1e-6), []

    def warm_up(likelihood):
        compiled.append(likelihood)
        if len(compiled) == 2:
            raise dp.UnsupportedModel("The second one cannot be compiled.")

    monkeypatch.setattr(comparing.UnitLikelihood, "warm_up", warm_up)
    with pytest.raises(dp.UnsupportedModel):
        dp.compare(models, budget=budget)
    assert budget.epsilon_spent == 0.0


def test_models_beside_a_table_are_compared():
    generator = np.random.default_rng(1)
    frame = pd.DataFrame({"x": generator.uniform(-1, 1, N)})
    frame["y"] = generator.random(N) < 1 / (1 + np.exp(-2.0 * frame["x"]))
    protected = dp.Table(frame, schema=[dp.Number("x", -1, 1), dp.YesNo("y")])
    t = protected.template
    with pm.Model() as null:
        pm.Bernoulli("y", logit_p=pm.Normal("a"), observed=t.y)
    with pm.Model() as line:
        pm.Bernoulli("y", logit_p=pm.Normal("a") + pm.Normal("b") * t.x, observed=t.y)
    at_zero = np.zeros(8)
    models = {"null": (null, posterior({"a": at_zero})), "line": (line, posterior({"a": at_zero, "b": at_zero + 2.0}))}
    found = dp.compare(models, budget=dp.PrivacyBudget(math.inf, 1e-6), data=protected, budget_share=1.0).table
    p = 1 / (1 + np.exp(-2.0 * frame["x"]))
    expected = np.log(np.where(frame["y"], p, 1 - p)).sum() - N * math.log(0.5)
    assert found.loc["line", "in_sample"] == pytest.approx(expected, rel=0.02)
    assert found.loc["line", "p_diff"] == 1.0
    with pm.Model() as other:
        pm.Normal("x", pm.Normal("a"), observed=t.x)
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with pm.Model() as whole:
        pm.Bernoulli("y", logit_p=pm.Normal("a"), observed=t.y.astype(np.int8))
    assert comparing._responses_of(read(whole)) == comparing._responses_of(read(null))
    with pytest.raises(dp.InvalidArgument, match="different responses"):
        dp.compare({"null": models["null"], "other": (other, models["null"][1])}, budget=budget, data=protected)
    assert budget.history == ()


@compiled_once()
def test_nothing_is_taken_off_where_units_were_held_out():
    """Of posteriors that were fitted to another half of the rows."""
    x, y = table()
    half = N // 2
    fitted = {"mean": linear(x[:half, :1], y[:half])[1], "line": linear(x[:half], y[:half])[1]}
    models = {"mean": (linear(x[half:, :1], y[half:])[0], fitted["mean"])}
    models["line"] = (linear(x[half:], y[half:])[0], fitted["line"])
    settings = {"budget": dp.PrivacyBudget(math.inf, 1e-6), "budget_share": 1.0}
    found = dp.compare(models, held_out=True, **settings)
    line, corrected = found.table.loc["line"], dp.compare(models, **settings).table.loc["line"]
    assert line["elpd_diff"] == line["in_sample"] == corrected["in_sample"]
    assert corrected["elpd_diff"] == pytest.approx(line["elpd_diff"] - 1.0, abs=0.3)
    assert "of held-out units against" in repr(found)


def test_parameters_that_noise_hides_follow_the_rows_less():
    x, y = table()
    model, result = linear(x, y)
    information = x.T @ x
    likelihood = xr.Dataset(
        {
            "mean": ("parameter", np.zeros(2)),
            "known": ("parameter", np.ones(2, dtype=np.int8)),
            "information": (("parameter", "other"), information),
            "noise": (("parameter", "other"), np.linalg.inv(information)),
            "bias": (("parameter", "other"), np.zeros((2, 2))),
        },
        coords={"parameter": ["b[0]", "b[1]"]},
    )
    groups = {name: result[name].to_dataset() for name in result.children}
    tree = xr.DataTree.from_dict({**groups, "private_likelihood": likelihood})
    models = {"mean": linear(x[:, :1], y), "line": (model, tree)}
    found = dp.compare(models, budget=dp.PrivacyBudget(math.inf, 1e-6), budget_share=1.0).table
    # The draws are as wide as without noise: each parameter follows by half.
    assert found.loc["line", "p_diff"] == pytest.approx(0.0, abs=0.3)
    # Half of the noise's variance, times a quarter, for two parameters; and the variance of half such a sum of squares.
    assert found.loc["line", "fit_diff"] == pytest.approx(2 * 0.5 * 0.25, abs=0.1)
    assert found.loc["line", "of_fits"] == pytest.approx(math.sqrt(2 * 0.5 * 0.25**2), abs=0.1)
    line = found.loc["line"]
    assert line["elpd_diff"] == pytest.approx(line["in_sample"] - line["p_diff"] + line["fit_diff"])
    assert line["error"] == pytest.approx(math.hypot(line["of_rows"], line["of_noise"], line["of_fits"]))


def test_what_is_wrong_is_refused_before_anything_is_charged():
    x, y = table()
    one, other = linear(x[:, :1], y), linear(x, y)
    budget = dp.PrivacyBudget(1.0, 1e-6)
    for models, options, match in (
        ({"one": one}, {"budget": budget}, "at least two models"),
        ([one, other], {"budget": budget}, "at least two models"),
        ({"one": one, "other": other}, {"budget": budget, "held_out": 3}, "held_out"),
        ({"one": one, "other": other[0]}, {"budget": budget}, "with a model and its result"),
        ({"one": one, "other": other}, {}, "has to be paid for"),
        ({"one": one, "other": (other[0], one[1])}, {"budget": budget}, "no draws of 'b'"),
        ({"one": one, "other": other}, {"budget": budget, "data": 3}, "pymc_dp.Table"),
    ):
        with pytest.raises(dp.InvalidArgument, match=match):
            dp.compare(models, **options)
    with pytest.raises(dp.UnsupportedModel, match="different numbers of rows"):
        dp.compare({"one": one, "few": linear(x[:100], y[:100])}, budget=budget)
    assert budget.history == ()
    with pytest.raises(dp.InvalidArgument, match="not a comparison"):
        dp.Comparison(one[1])


def beside(epsilon, relation="substitute", unit=None, n=N):
    """Return a table of one covariate, two models of it, and a budget."""
    generator = np.random.default_rng(1)
    frame = pd.DataFrame({"x": generator.uniform(-1, 1, n), "person": np.arange(n) // 3})
    frame["y"] = generator.random(n) < 1 / (1 + np.exp(-2.0 * frame["x"]))
    protected = dp.Table(frame, schema=[dp.Number("x", -1, 1), dp.YesNo("y"), *([dp.Person("person")] if unit else [])])
    t = protected.template
    with pm.Model() as null:
        pm.Bernoulli("y", logit_p=pm.Normal("a"), observed=t.y)
    with pm.Model() as line:
        pm.Bernoulli("y", logit_p=pm.Normal("a") + pm.Normal("b") * t.x, observed=t.y)
    return frame, protected, {"null": null, "line": line}, dp.PrivacyBudget(epsilon, 1e-6, relation)


def of_folds(k, slopes):
    """Return posteriors of as many fits, each with another slope."""
    null = [posterior({"a": np.zeros(8)})] * k
    return {"null": null, "line": [posterior({"a": np.zeros(8), "b": np.full(8, slope)}) for slope in slopes]}


@pytest.mark.few(2)
@pytest.mark.parametrize("unit", [None, "person"])
@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
@compiled_once()
def test_each_unit_is_predicted_by_the_fit_that_left_it_out(relation, unit):
    _, protected, models, budget = beside(math.inf, relation, unit)
    parts = dp.folds(protected, 3, budget=budget)
    slopes = [2.0, 1.0, -1.0]
    fitted = of_folds(3, slopes)
    both = {name: (model, fitted[name]) for name, model in models.items()}
    found = dp.compare(both, folds=parts, budget=budget, budget_share=1.0)
    expected = 0.0
    for slope, (train, test) in zip(slopes, parts, strict=True):
        one = {name: (model, of_folds(1, [slope])[name][0]) for name, model in models.items()}
        expected += (
            dp.compare(one, data=test, held_out=True, budget=dp.PrivacyBudget(math.inf, 1e-6, relation))
            .table["in_sample"]
            .iloc[0]
        )
        units = N if unit is None else N // 3
        assert train.count_units() + test.count_units() == units
        if relation == "substitute":
            assert test.count_units() == pytest.approx(units / 3, abs=1)
    assert found.table.loc["line", "in_sample"] == pytest.approx(expected, rel=1e-9)
    assert found.table.loc["line", "p_diff"] == 0.0
    assert "of held-out units" in repr(found)
    assert found.tree["privacy"].attrs.get("n_units") == (units if relation == "substitute" else None)
    assert "confidential" in repr(parts)


def test_folds_are_drawn_anew_and_share_no_unit():
    """Hazard H53: whoever knows the table does not know them. All units of ten drawings alike: chance below 1e-300."""
    frame, protected, _, budget = beside(1.0)
    frame["x"] = np.linspace(-1, 1, N)
    seen = []
    for _ in range(10):
        parts = [
            next(iter(test._source.pieces(Columns((("x",),), (), None, protected.schema))))["x"]
            for _, test in dp.folds(protected, 4, budget=budget)
        ]
        assert sorted(np.concatenate(parts)) == sorted(frame["x"])
        seen.append(parts[0])
    assert len({each.tobytes() for each in seen}) == 10


def test_parts_that_share_units_are_not_paid_for_once():
    """Hazard H53: neither tables that somebody put together, nor rows that a database gives in another order."""
    frame, protected, models, budget = beside(4.0)
    both = {name: (model, of_folds(3, [1.0] * 3)[name]) for name, model in models.items()}
    drawn = dp.folds(protected, 3, budget=budget)
    kept = drawn.testing[2]._source.kept
    elsewhere = dp.Table(frame[::-1], schema=protected.schema).part_of(kept, "substitute")
    for testing in ((protected,) * 3, (drawn.testing[0],) * 3, (*drawn.testing[:2], elsewhere)):
        with pytest.raises(dp.InvalidArgument, match="may be in several"):
            dp.compare(both, folds=dp.Folds(drawn.training, testing, "substitute"), budget=budget)
    assert not budget.history
    connection = sqlite3.connect(":memory:")
    frame.assign(x=np.linspace(-1, 1, N)).to_sql("rows", connection)
    queried = dp.Table.from_sql("SELECT x, y FROM rows ORDER BY random()", connection, protected.schema)
    columns = Columns((("x",),), (), None, protected.schema)
    parts = [next(iter(test._source.pieces(columns)))["x"] for _, test in dp.folds(queried, 3, budget=budget)]
    assert len(np.unique(np.concatenate(parts))) == N


def test_a_fold_is_for_one_relation():
    """Hazard H53: folds of one size are moved by a row that is missing, and a unit changes in more than it says."""
    _, protected, models, _ = beside(1.0)
    budgets = {relation: dp.PrivacyBudget(1.0, 1e-6, relation) for relation in ("substitute", "add-remove")}
    both = {name: (model, of_folds(1, [1.0])[name][0]) for name, model in models.items()}
    for relation, budget in zip(budgets, reversed(budgets.values()), strict=True):
        part = dp.folds(protected, 3, budget=budgets[relation]).training[0]
        for ask in (
            lambda part=part, budget=budget: dp.describe(part, budget=budget),
            lambda part=part, budget=budget: dp.find_levels(part, "y", budget=budget),
            lambda part=part, budget=budget: dp.folds(part, 2, budget=budget),
            lambda part=part, budget=budget: dp.compare(both, data=part, held_out=True, budget=budget),
            lambda part=part, budget=budget: dp.sample(model=models["line"], data=part, budget=budget),
        ):
            with pytest.raises(dp.InvalidArgument, match="relation"):
                ask()
        assert not budget.history


def test_no_number_of_rows_in_a_fold_is_refused_where_it_is_protected():
    """Hazard H53: a refusal costs nothing, and how many of many drawings are refused would tell the number of rows."""
    _, protected, models, budget = beside(4.0, "add-remove", n=4)
    parts = dp.folds(protected, 20, budget=budget)
    both = {name: (model, of_folds(20, [1.0] * 20)[name]) for name, model in models.items()}
    assert np.isfinite(dp.compare(both, folds=parts, budget=budget).table.loc["line", "elpd_diff"])
    empty = min(parts.testing, key=dp.Table.count_units)
    assert empty.count_units() == 0
    assert dp.find_levels(empty, "y", budget=dp.PrivacyBudget(1.0, 1e-6, "add-remove"))["y"] == []


@compiled_once()
def test_folds_are_paid_for_once_and_no_curator_answers_twice():
    """Hazard H53: one unit is in one of them."""
    _, protected, models, budget = beside(4.0)
    parts = dp.folds(protected, 3, budget=budget)
    fitted = of_folds(3, [2.0, 2.0, 2.0])
    both = {name: (model, fitted[name]) for name, model in models.items()}
    found = dp.compare(both, folds=parts, budget=budget, budget_share=0.5)
    (plan,) = budget.history
    assert plan.rho == pytest.approx(0.5 * budget.rho)
    assert {each.kind: each.count for each in plan.releases} == {"difference_sizes": 1, "density_differences": 1}
    line = found.table.loc["line"]
    whole = dp.compare(
        {name: (model, fitted[name][0]) for name, model in models.items()},
        data=protected, held_out=True, budget=dp.PrivacyBudget(4.0, 1e-6), budget_share=0.5,
    ).table.loc["line"]  # fmt: skip
    assert line["of_noise"] / line["clip_bound"] == pytest.approx(
        math.sqrt(3) * whole["of_noise"] / whole["clip_bound"], rel=0.5
    )


@compiled_once()
def test_what_noise_in_fits_cost_is_that_of_the_units_that_are_asked(monkeypatch):
    """It is known of the units that were fitted: a quarter of them are in a fold of five, as many as in each other."""
    _, protected, models, budget = beside(math.inf)
    monkeypatch.setattr(
        comparing.Fitted, "effect_on_rows", lambda fit: (float(fit.mean.size), 3.0 * fit.mean.size, 1.0)
    )
    parts = dp.folds(protected, 5, budget=budget)
    fitted = of_folds(5, [2.0] * 5)
    both = {name: (model, fitted[name]) for name, model in models.items()}
    line = dp.compare(both, folds=parts, budget=budget).table.loc["line"]
    assert line["fit_diff"] == pytest.approx(5 * 3.0 / 4)
    assert line["of_fits"] == pytest.approx(math.sqrt(10.0) / 4)
    known = {name: (model, fitted[name][0]) for name, model in models.items()}
    for _, result in known.values():
        result["privacy"].attrs["n_units"] = 2 * N
    line = dp.compare(known, data=protected, held_out=True, budget=budget).table.loc["line"]
    assert line["fit_diff"] == pytest.approx(3.0 / 2)
    # Where numbers are protected, other units may be a tenth of those, or ten times as many; the same ones are as many.
    hidden = dp.PrivacyBudget(math.inf, 1e-6, "add-remove")
    line = dp.compare(known, data=protected, held_out=True, budget=hidden).table.loc["line"]
    assert line["fit_diff"] == line["of_fits"] == 0.0
    assert line["elpd_diff"] == line["in_sample"]
    assert dp.compare(known, data=protected, budget=hidden).table.loc["line", "fit_diff"] == pytest.approx(3.0)


def test_an_allowance_for_bias_is_no_loss_on_average_and_may_be_one():
    """It is mostly too large: added as if it were noise, it made the larger of two models look better."""
    square = ("row", "column")
    known = {"information": 4.0, "noise": 0.5, "bias": 0.25}
    fit = object.__new__(comparing.Fitted)
    fit._likelihood = xr.Dataset({name: (square, [[value]]) for name, value in known.items()})
    fit.known, fit.places = np.ones(1, dtype=bool), np.zeros(1, dtype=int)
    fit.draws = np.array([[-1.0], [0.0], [1.0]])  # of variance 1: the mean follows the maximum as it is
    followed, loss, variance = fit.effect_on_rows()
    assert followed == pytest.approx(1.0)  # 1 / (1/4 + .75)
    assert loss == pytest.approx(0.5 * 4.0 * 0.5)
    assert variance == pytest.approx(0.5 * (4.0 * 0.75) ** 2 + (0.5 * 4.0 * 0.25) ** 2)


def test_folds_that_cannot_be_are_refused():
    frame, protected, models, budget = beside(1.0)
    parts = dp.folds(protected, 3, budget=budget)
    fitted = of_folds(2, [2.0, 2.0])
    both = {name: (model, fitted[name]) for name, model in models.items()}
    for options in ({"folds": parts}, {"folds": parts, "data": protected}):
        with pytest.raises(dp.InvalidArgument, match="list of results"):
            dp.compare(both, budget=budget, **options)
    for arguments, options in (
        ((frame, 3), {}),
        ((protected, 1), {}),
        ((protected, N), {}),
        ((protected, 3), {"budget": None}),
    ):
        with pytest.raises(dp.InvalidArgument):
            dp.folds(*arguments, **{"budget": budget, **options})
    both = {name: (model, of_folds(3, [1.0] * 3)[name]) for name, model in models.items()}
    with pytest.raises(dp.InvalidArgument, match="relation"):
        dp.compare(both, folds=parts, budget=dp.PrivacyBudget(1.0, 1e-6, "add-remove"))
    changing = {"x": np.zeros(30), "y": np.zeros(30)}
    parts = dp.folds(dp.Table(changing, schema=protected.schema), 3, budget=budget)
    for length in (20, 40):
        changing |= {"x": np.zeros(length), "y": np.zeros(length)}
        with pytest.raises(dp.TableChanged):
            dp.compare(
                {name: (model, of_folds(3, [1.0] * 3)[name]) for name, model in models.items()},
                folds=parts,
                budget=budget,
            )
    assert not budget.history
