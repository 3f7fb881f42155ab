"""Checks of a posterior against a table: they see what is wrong, do not see what is not there, and are paid for."""

import functools
import json
import math
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from asked_again import compiled_once
from scipy import stats

import pymc_dp as dp
from pymc_dp.surveys import asking, fit

N, SIZE = 4000, 2
COEFFICIENTS = np.array([0.5, -0.3])


def columns_of(seed):
    generator = np.random.default_rng(seed)
    return generator, generator.normal(size=(N, SIZE)), generator.integers(4, size=N)


def linear(seed=0, wrong=""):
    """Return a model, its posterior, and columns: the truth may have a square, heavy tails or groups besides."""
    generator, x, group = columns_of(seed)
    y = 1.0 + x @ COEFFICIENTS
    y += 0.25 * (x[:, 0] ** 2 - 1.0) if wrong == "square" else 0.0
    y += np.array([-0.3, 0.0, 0.0, 0.3])[group] if wrong == "group" else 0.0
    y += generator.standard_t(3, N) if wrong == "tails" else generator.normal(size=N)
    design = np.column_stack([np.ones(N), x])
    with pm.Model() as model:
        mu = pm.Normal("a", 0.0, 10.0) + pm.Data("x", x) @ pm.Normal("b", 0.0, 10.0, shape=SIZE)
        pm.Data("group", group)
        pm.Normal("y", mu, pm.HalfNormal("s", 10.0), observed=y)
    fitted, *_ = np.linalg.lstsq(design, y)
    scale = (y - design @ fitted).std()
    covariance = scale**2 * np.linalg.inv(design.T @ design)
    draws = generator.multivariate_normal(fitted, covariance, 300)
    scales = scale * np.exp(generator.normal(scale=1 / math.sqrt(2 * N), size=300))
    return model, posterior({"a": draws[:, 0], "b": draws[:, 1:], "s": scales}), x, group


def logistic(seed=0, wrong=""):
    generator, x, group = columns_of(seed)
    eta = x @ COEFFICIENTS + (np.array([-0.5, 0.0, 0.0, 0.5])[group] if wrong == "group" else 0.0)
    y = (generator.random(N) < 1 / (1 + np.exp(-eta))).astype(np.int64)
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ pm.Normal("b", 0.0, 10.0, shape=SIZE), observed=y)
    b = np.zeros(SIZE)
    for _ in range(8):
        p = 1 / (1 + np.exp(-(x @ b)))
        information = (x * (p * (1 - p))[:, None]).T @ x
        b = b + np.linalg.solve(information, x.T @ (y - p))
    return model, posterior({"b": generator.multivariate_normal(b, np.linalg.inv(information), 300)}), x, group


def posterior(draws):
    dims = {name: ("chain", "draw", *([f"{name}_dim"] if each.ndim > 1 else [])) for name, each in draws.items()}
    found = xr.Dataset({name: (dims[name], each[None]) for name, each in draws.items()})
    return xr.DataTree.from_dict({"posterior": found, "privacy": xr.Dataset(attrs={"private": 1})})


def checked(case, epsilon=8.0, by=("x0", "group"), **options):
    model, result, x, group = case
    columns = {"x0": x[:, 0], "group": group}
    budget = dp.PrivacyBudget(epsilon, 1e-6)
    with model:
        return dp.check(
            result, budget=budget, by={name: columns[name] for name in by}, budget_share=1.0, insecure_seed=1, **options
        )


right = functools.cache(linear)


def test_without_noise_residuals_are_those_of_the_table():
    model, result, x, group = right()
    found = checked((model, result, x, group), math.inf)
    lines = found.residuals.loc["group"]
    assert list(found.axes) == ["predicted", "x0", "group"]
    assert len(lines) == 4
    np.testing.assert_allclose(lines["rows"], np.bincount(group))
    drawn = result["posterior"].to_dataset().mean(("chain", "draw"))
    residuals = (observed(model) - float(drawn["a"]) - x @ drawn["b"].values) / float(drawn["s"])
    levels = np.array([np.histogram(stats.norm.cdf(residuals[group == each]), fit.CONTINUOUS)[0] for each in range(4)])
    expected = levels @ fit.shapes(fit.CONTINUOUS)[0] / levels.sum(axis=1)
    np.testing.assert_allclose(lines["location"], expected, atol=1e-5)
    by_group = [residuals[group == place].mean() for place in range(4)]
    np.testing.assert_allclose(lines["location"], by_group, atol=0.02)
    np.testing.assert_allclose(lines["error"], 1 / np.sqrt(np.bincount(group)), rtol=1e-3)


def observed(model):
    return model.rvs_to_values[model["y"]].data


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(linear, marks=pytest.mark.nightly), logistic], ids=["linear", "logistic"]
)
def test_where_the_model_holds_little_is_seen(case):
    """Of 12 tables; more than 5 below .05 happens once in 10**5, and p-values are too large rather than too small."""
    p_values = [checked(case(seed)).p_value for seed in range(12)]
    assert np.count_nonzero(np.array(p_values) < 0.05) <= 5


@pytest.mark.parametrize(
    ("case", "wrong", "where", "nowhere"),
    [
        (linear, "square", "along x0", "along group"),
        (linear, "group", "along group", "along x0"),
        (linear, "tails", "tails", "skewness"),
        (logistic, "group", "along group", "along x0"),
    ],
)
def test_what_is_wrong_is_seen_and_where(case, wrong, where, nowhere):
    found = checked(case(0, wrong))
    assert not found.fits
    assert found.p_values[where] < 1e-4
    assert found.p_values[where] < 1e-3 * found.p_values[nowhere]
    assert "does not fit" in repr(found)


def test_bins_hold_about_as_many_rows():
    rows = checked(right()).residuals["rows"]
    for name in ("predicted", "x0"):
        assert rows[name].size == 8
        assert rows[name].min() > 0.3 * N / 8
        assert rows[name].max() < 3.0 * N / 8


def test_bins_are_found_wherever_numbers_are():
    """Far from zero, on few values, and over many octaves."""
    model, result, _, _ = right()
    generator = np.random.default_rng(3)
    columns = {
        "far": 1e3 + generator.normal(size=N),
        "coin": generator.integers(2, size=N),
        "income": np.exp(generator.normal(10.0, 1.5, N)),
        "same": np.full(N, 7.0),
    }
    with model:
        found = dp.check(result, budget=dp.PrivacyBudget(20.0, 1e-6), by=columns, budget_share=1.0)
    rows = found.residuals["rows"]
    assert len(rows["coin"]) == 2
    assert len(rows["far"]) >= 4
    assert len(rows["income"]) >= 6
    assert rows["income"].max() < 0.5 * N
    assert len(rows["same"]) == 2
    same = found.residuals.loc["same"]
    assert list(same["location"].isna()) == list(same["rows"] < 100)
    assert "nan" not in repr(found)


def test_columns_of_a_declared_table_need_not_be_in_the_model():
    generator = np.random.default_rng(5)
    ward, age = generator.integers(3, size=N), generator.uniform(20, 80, N)
    y = generator.poisson(np.exp(0.2 + 0.01 * (age - 50) + np.array([-0.3, 0.0, 0.3])[ward]))
    frame = {"age": age, "ward": np.array(["A", "B", "C"])[ward], "y": y}
    schema = [dp.Number("age", 20, 80), dp.Category("ward", ["A", "B", "C"]), dp.Whole("y", 0, 60, raw=True)]
    table = dp.Table(frame, schema=schema)
    t = table.template
    with pm.Model():
        pm.Poisson("y", pm.math.exp(pm.Normal("a") + pm.Normal("b") * t.age), observed=t.y)
        draws = posterior({"a": np.full(50, 0.24), "b": np.full(50, 0.3)})
        budget = dp.PrivacyBudget(8.0, 1e-6)
        found = dp.check(draws, budget=budget, by=["ward", "age"], data=table, budget_share=1.0)
    lines = found.residuals.loc["ward"]
    assert list(lines.index) == ["A", "B", "C", "other"]
    np.testing.assert_allclose(lines["rows"][:3], np.bincount(ward), atol=40)
    assert found.p_value < 1e-4
    assert lines.loc["A", "location"] < -0.1 < 0.1 < lines.loc["C", "location"]
    edges = found.tree["along_age"]["edge"].values  # in years, of which there are as many everywhere
    np.testing.assert_allclose(edges, np.linspace(20, 80, len(edges) + 2)[1:-1], atol=4.0)


def test_it_is_charged_and_published(tmp_path):
    model, result, x, _ = right()
    budget = dp.PrivacyBudget(2.0, 1e-6)
    with model:
        found = dp.check(result, budget=budget, by={"x0": x[:, 0]})
    (plan,) = budget.history
    assert plan.rho == pytest.approx(0.25 * budget.rho)
    assert {each.kind: each.count for each in plan.releases} == {"bins": 6, "unit_counts": 2}
    facts = found.tree["privacy"].attrs
    assert (facts["private"], facts["response"], facts["unit"]) == (1, "y", "one row of the observed variables")
    assert {each["kind"] for each in json.loads(facts["releases"])} == {"bins", "unit_counts"}
    found.tree.to_netcdf(tmp_path / "check.nc")
    with xr.open_datatree(tmp_path / "check.nc") as opened:
        assert repr(dp.Check(opened.load())) == repr(found)
    assert "Sampler: check" in str(dp.disclosure(found.tree))


def test_draws_that_are_not_usable_and_a_large_delta_are_warned_about(monkeypatch):
    model, result, x, _ = linear()
    monkeypatch.setattr(asking, "quality", lambda _: SimpleNamespace(reasons_against=["R-hat is 3, not below 1.05"]))
    result["sample_stats"] = xr.Dataset()
    with pytest.warns(UserWarning, match=r"NOT usable \(R-hat is 3") as warned:
        dp.check(result, model=model, by={"x": x[:, 0]}, budget=dp.PrivacyBudget(1.0, 0.01))
    assert any("delta=0.01 is not below 1/n" in str(each.message) for each in warned)
    assert {each.filename for each in warned if each.category is UserWarning} == {__file__}


def test_data_variables_of_the_model_are_columns_by_name():
    model, result, _, _ = right()
    with model:
        found = dp.check(result, budget=dp.PrivacyBudget(8.0, 1e-6), by="group", budget_share=1.0)
    assert found.residuals.loc["group"]["rows"].sum() == pytest.approx(N, rel=0.05)
    assert found.axes == ["predicted", "group"]


@compiled_once()
def test_noise_in_the_posterior_is_allowed_for():
    """A centre that is three posterior standard deviations off, which the likelihood knows of."""
    model, result, x, group = right()
    off = result["posterior"].to_dataset().copy(deep=True)
    off["a"] = off["a"] + 0.06
    information = np.diag([N, N, N, 2.0 * N]).astype(float)
    noise = np.diag([8.0 / N, 0.0, 0.0, 0.0])
    off["a"] = off["a"].mean() + (off["a"] - off["a"].mean()) * 3.0
    likelihood = xr.Dataset(
        {
            "mean": ("parameter", np.zeros(4)),
            "known": ("parameter", np.ones(4, dtype=np.int8)),
            "information": (("parameter", "other"), information),
            "noise": (("parameter", "other"), noise),
            "bias": (("parameter", "other"), np.zeros((4, 4))),
        },
        coords={"parameter": ["a", "b[0]", "b[1]", "s_log__"]},
    )
    groups = {"posterior": off, "privacy": result["privacy"].to_dataset()}
    alone = checked((model, xr.DataTree.from_dict(groups), x, group), math.inf)
    known = checked((model, xr.DataTree.from_dict({**groups, "private_likelihood": likelihood}), x, group), math.inf)
    assert alone.p_value < 0.01
    assert known.p_value > 0.05
    assert known.tree["privacy"].attrs["largest_factor"] == pytest.approx(8.0, rel=0.2)
    assert "Noise in the posterior" in repr(known)


def test_what_is_wrong_is_refused_before_anything_is_charged():
    model, result, x, _ = right()
    budget = dp.PrivacyBudget(1.0, 1e-6)
    no_draws = xr.DataTree.from_dict({"privacy": result["privacy"].to_dataset()})
    others = posterior({"a": np.zeros(10), "b": np.zeros((10, 3)), "s": np.ones(10)})
    for arguments, options, match in (
        ((result,), {}, "has to be paid for"),
        ((result,), {"budget": budget, "bins": 1}, "bins"),
        ((result,), {"budget": budget, "by": "height"}, "no data variable 'height'"),
        ((result,), {"budget": budget, "by": ["predicted"]}, "different names"),
        ((result,), {"budget": budget, "by": {"x": x}}, "one number for each row"),
        ((result,), {"budget": budget, "by": {"x": x[:5, 0]}}, "one number for each row"),
        ((result,), {"budget": budget, "by": {"y": x[:, 0]}}, "'y' is the response"),
        ((result,), {"budget": budget, "data": {"x": 1}}, "must be a pymc_dp.Table"),
        ((no_draws,), {"budget": budget}, "holds no draws"),
        ((others,), {"budget": budget}, "no draws of 'b'"),
        ((xr.DataTree(),), {"budget": budget}, "no group `privacy`"),
    ):
        with model, pytest.raises(dp.InvalidArgument, match=match):
            dp.check(*arguments, **options)
    with pytest.raises(dp.InvalidArgument, match="not a check"):
        dp.Check(result)
    assert budget.history == ()


def with_persons():
    generator = np.random.default_rng(0)
    y, person = generator.normal(size=300), np.repeat(np.arange(100), 3)
    with pm.Model() as model:
        pm.Data("person", person)
        pm.Normal("y", pm.Normal("a"), 1.0, observed=y)
    return model, posterior({"a": np.zeros(5)})


@compiled_once()
def test_it_has_to_be_said_what_is_protected():
    """As for a run, by the names in the model."""
    model, result = with_persons()
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with model, pytest.raises(dp.InvalidArgument, match="reads like persons"):
        dp.check(result, budget=budget)
    with pytest.raises(dp.InvalidArgument, match="reads like persons"):
        dp.compare({"one": (model, result), "other": (model, result)}, budget=budget)
    assert budget.history == ()
    with model:
        persons = dp.check(result, budget=budget, unit="person")
        rows = dp.check(result, budget=budget, unit="row")
    assert persons.tree["privacy"].attrs["n_units"] == 100
    assert rows.tree["privacy"].attrs["n_units"] == 300
    with model, pytest.raises(dp.UnsupportedModel, match="one unit"):
        dp.check(result, budget=budget, unit_index=np.zeros(300, dtype=int))


@compiled_once()
def test_what_is_about_a_result_that_is_not_private_is_not_private():
    """Where the model predicts would tell of the table."""
    model, result, x, _ = right()
    leaking = xr.DataTree.from_dict(
        {"posterior": result["posterior"].to_dataset(), "privacy": xr.Dataset(attrs={"private": 0})}
    )
    with model:
        found = dp.check(leaking, budget=dp.PrivacyBudget(4.0, 1e-6), by={"x0": x[:, 0]})
    assert found.tree["privacy"].attrs["private"] == 0
    assert "a result that it is about is not private" in repr(found)
    for leaks in range(3):  # whichever it is, and whichever comparison is the last
        models = {f"model {place}": (model, leaking if place == leaks else result) for place in range(3)}
        assert dp.compare(models, budget=dp.PrivacyBudget(4.0, 1e-6)).tree["privacy"].attrs["private"] == 0


def test_a_saved_budget_is_charged_through_its_file(tmp_path):
    model, result, _, _ = right()
    budget = dp.PrivacyBudget(4.0, 1e-6)
    budget.save(tmp_path / "budget.json")
    with model:
        dp.check(result, budget=budget)
    again = dp.PrivacyBudget.load(tmp_path / "budget.json")
    assert again.rho_spent == pytest.approx(0.25 * again.rho)
    assert "check: released once" in again.report()


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda y: pm.Normal("y", pm.Normal("a"), 1.0, observed=np.column_stack([y, y])), "several"),
        (lambda y: [pm.Normal(name, pm.Normal(f"a{name}"), 1.0, observed=y) for name in "yz"], "several"),
        (lambda y: pm.VonMises("y", pm.Normal("a"), 1.0, observed=y), "no distribution function"),
    ],
    ids=["two columns", "two variables", "no distribution function"],
)
def test_responses_that_cannot_be_checked_are_refused(build, match):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with pm.Model() as model:
        build(np.random.default_rng(0).normal(size=50))
    with model, pytest.raises(dp.UnsupportedModel, match=match):
        dp.check(posterior({"a": np.zeros(3)}), budget=budget)
    assert budget.history == ()


def ordinal(x, y):
    pm.OrderedLogistic("y", eta=x, cutpoints=np.array([-1.0, 1.0]), observed=np.digitize(y, [-1.0, 1.0]))


def zero_inflated(x, y):
    pm.ZeroInflatedPoisson("y", 0.7, pm.math.exp(x), observed=np.maximum(0, y.astype(int)))


def censored(x, y):
    pm.Censored("y", pm.Normal.dist(x, 1.0), None, 1.0, observed=np.minimum(y, 1.0))


def mixture(x, y):
    pm.NormalMixture("y", [0.5, 0.5], pm.math.stack([x, -x], axis=-1), 1.0, observed=y)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(ordinal, marks=pytest.mark.nightly),
        censored,
        pytest.param(zero_inflated, marks=[pytest.mark.nightly, pytest.mark.production]),
        pytest.param(mixture, marks=[pytest.mark.nightly, pytest.mark.production]),
    ],
)
def test_other_families_are_checked(build):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=N), generator.normal(size=N)
    with pm.Model():
        build(pm.Normal("a") + pm.Data("x", x), y)
        found = dp.check(posterior({"a": np.zeros(5)}), budget=dp.PrivacyBudget(8.0, 1e-6), by="x", budget_share=1.0)
    assert 0.0 <= found.p_value <= 1.0
    of_axes = found.residuals["rows"].groupby("axis").sum()
    np.testing.assert_allclose(of_axes, N, rtol=0.1)
