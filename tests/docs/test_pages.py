"""Pages on models have what readers come for, and their code is run when the site is built."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MODELS = [page for page in sorted((DOCS / "models").glob("*.md")) if page.stem != "index"]
EXECUTED = [
    page for page in sorted(DOCS.rglob("*.md")) if "{code-cell}" in page.read_text() and "_build" not in page.parts
]


def cells_of(page):
    return re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_there_are_pages():
    assert len(MODELS) >= 9
    assert set(MODELS) < set(EXECUTED)


@pytest.mark.parametrize("page", MODELS, ids=lambda page: page.stem)
def test_a_page_on_a_model_runs_it_and_says_what_to_expect(page):
    code = "\n".join(cells_of(page))
    compile(code, str(page), "exec")
    assert "pm.sample(" in code
    assert "quality_report(result)" in code
    text = page.read_text()
    for part in ("## What to expect", "## If the result is not usable", "| epsilon |"):
        assert part in text
    assert "insecure_seed" not in text


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
def test_a_page_with_cells_says_that_it_is_run(page):
    _, front, _ = page.read_text().split("---\n", 2)
    assert re.search(r"^file_format: mystnb$|format_name: myst$", front, re.MULTILINE)


def test_an_error_in_a_cell_fails_the_build():
    settings = (DOCS / "conf.py").read_text()
    assert re.search(r'^nb_execution_mode = "(cache|force)"$', settings, re.MULTILINE)
    assert re.search(r"^nb_execution_raise_on_error = True$", settings, re.MULTILINE)
    # Only the notebooks that CI executes by themselves are left out.
    assert 'nb_execution_excludepatterns = ["_generated/*"]' in settings
