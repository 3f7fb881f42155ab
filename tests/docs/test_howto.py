"""The code of the how-to guides runs, on few rows: each page is one script that says how many it takes."""

import functools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest

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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_example_of_folds_runs_and_spends_the_budget(monkeypatch):
    """Of `docs/checks.md`: ten fits at the same price, and a comparison of all folds for what is left."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"x": generator.uniform(-1, 1, 400)})
    frame["y"] = generator.random(400) < 1 / (1 + np.exp(-2 * frame["x"]))
    table = dp.Table(frame, schema=[dp.Number("x", -1, 1), dp.YesNo("y")])
    models, t = {}, table.template
    for name, columns in {"line": [t.x], "square": [t.x, t.x**2]}.items():
        with pm.Model() as models[name]:
            slopes = pm.Normal("b", shape=len(columns))
            pm.Bernoulli("y", logit_p=pm.Normal("a") + np.column_stack(columns) @ slopes, observed=t.y)
    monkeypatch.setattr(
        dp, "sample", functools.partial(dp.sample, draws=5, chains=2, cores=1, compute_convergence_checks=False)
    )
    blocks = re.findall(r"^```python\n(.*?)^```$", (HOWTO.parent / "checks.md").read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [each for each in blocks if "dp.folds" in each]
    found = {"dp": dp, "table": table, "models": models, "budget": dp.PrivacyBudget(20.0, 1e-6)}
    exec(compile(code, "checks.md", "exec"), found)  # noqa: S102
    *fits, comparison = found["budget"].history
    assert len(fits) == 10
    assert [each.rho for each in fits] == pytest.approx([fits[0].rho] * 10)
    assert comparison.rho == pytest.approx(0.1 * found["budget"].rho)
    assert found["budget"].remaining_rho == pytest.approx(0.0, abs=1e-9)
    assert list(found["found"].table.index) == ["square"]
