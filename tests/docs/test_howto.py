"""The code of the how-to guides runs, on few rows: each page is one script that says how many it takes."""

import re
from pathlib import Path

import pymc as pm
import pytest

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
