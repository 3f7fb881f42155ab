"""The code of the how-to guides runs, on few rows: each page is one script that says how many it takes."""

import functools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_dp as dp

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGES = ["curves", "disclose", "formula", "interrupt", "missing", "panel", "rare_categories", "two_analysts"]
FEW = "N = 400  # rows"


def script_of(page):
    """Return the code of a page."""
    text = (HOWTO / f"{page}.md").read_text()
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_guide_runs(page, monkeypatch, capsys):
    if page == "formula":
        pytest.importorskip("bambi")
    sample = pm.sample
    monkeypatch.setattr(pm, "sample", lambda **options: sample(**{"draws": 5, "chains": 2, "cores": 1, **options}))
    code, rows = re.subn(r"^N = [\d_]+  # rows$", FEW, script_of(page), flags=re.MULTILINE)
    assert rows == 1
    exec(compile(code, f"{page}.md", "exec"), {})  # noqa: S102
    assert "TO BE SAID" in capsys.readouterr().out or page != "disclose"


def protected(draw):
    """Return a table of 400 rows of two columns, of which the second is drawn."""
    x = np.random.default_rng(0).uniform(-1, 1, 400)
    frame = pd.DataFrame({"x": x, "y": draw(np.random.default_rng(1), x)})
    return dp.Table(frame, schema=[dp.Number("x", -1, 1), dp.YesNo("y")])


def run_example(of, **names):
    """Run the block of `docs/checks.md` that calls a function, and return what it has made."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (HOWTO.parent / "checks.md").read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [each for each in blocks if of in each]
    found = {"dp": dp, "np": np, **names}
    exec(compile(code, "checks.md", "exec"), found)  # noqa: S102
    return found


def on_columns(t, *columns):
    """Return a logistic regression on columns of a template."""
    with pm.Model() as model:
        slopes = pm.Normal("b", shape=len(columns))
        pm.Bernoulli("y", logit_p=pm.Normal("a") + np.column_stack(columns) @ slopes, observed=t.y)
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_example_of_folds_runs_and_spends_the_budget(monkeypatch):
    """Ten fits at the same price, and a comparison of all folds for what is left."""
    table = protected(lambda generator, x: generator.random(400) < 1 / (1 + np.exp(-2 * x)))
    t, budget = table.template, dp.PrivacyBudget(20.0, 1e-6)
    quickly = functools.partial(dp.sample, draws=5, chains=2, cores=1, compute_convergence_checks=False)
    monkeypatch.setattr(dp, "sample", quickly)
    models = {"line": on_columns(t, t.x), "square": on_columns(t, t.x, t.x**2)}
    found = run_example("dp.folds", table=table, models=models, budget=budget)
    *fits, comparison = budget.history
    assert len(fits) == 10
    assert [each.rho for each in fits] == pytest.approx([fits[0].rho] * 10)
    assert comparison.rho == pytest.approx(0.1 * budget.rho)
    assert budget.remaining_rho == pytest.approx(0.0, abs=1e-9)
    assert list(found["found"].table.index) == ["square"]


@pytest.mark.slow
def test_tables_that_the_model_made_fit_where_the_protected_one_does_not():
    """Its response is a step, which no line is; checks of copies are charged to no budget of the table."""
    table, budget = protected(lambda _, x: np.abs(x) > 0.5), dp.PrivacyBudget(20.0, 1e-6)
    model = on_columns(table.template, table.template.x)
    draws = {"a": (("chain", "draw"), np.zeros((1, 20))), "b": (("chain", "draw", "k"), np.zeros((1, 20, 1)))}
    result = xr.DataTree.from_dict({"posterior": xr.Dataset(draws), "privacy": xr.Dataset(attrs={"private": 1})})
    description = dp.describe(table, budget=budget)
    found = run_example(
        "dp.synthetic_tables", table=table, model=model, result=result, description=description, budget=budget
    )
    assert found["as_far_off"] == 0.0
    assert sum(each.fits for each in found["replicated"]) >= 6  # of 10, at a level of .05: more fail once in 15,000
    assert len(budget.history) == 2
