"""Pages on models have what readers come for, and their code is run when the site is built."""

import re
from collections import Counter
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
MODELS = [page for page in sorted((DOCS / "models").glob("*.md")) if page.stem != "index"]
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
EXECUTED = [page for page in PAGES if "{code-cell}" in page.read_text()]


def cells_of(page):
    return re.findall(
        r"^```\{code-cell\}[^\n]*\n(?::\w+:[^\n]*\n)*(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
    )


def test_there_are_pages():
    assert len(MODELS) >= 9
    assert set(MODELS) < set(EXECUTED)


def test_the_code_of_a_page_on_a_model_can_be_compiled():
    wrong = []
    for page in MODELS:
        try:
            compile("\n".join(cells_of(page)), str(page), "exec")
        except SyntaxError as error:
            wrong.append(f"{page.stem}: {error}")
    assert not wrong, "\n".join(wrong)


def test_a_page_on_a_model_runs_it():
    wrong = []
    for page in MODELS:
        code = "\n".join(cells_of(page))
        wrong += [f"{page.stem}: no {part}" for part in ("pm.sample(", "quality_report(result)") if part not in code]
        wrong += [f"{page.stem}: insecure_seed"] if "insecure_seed" in page.read_text() else []
    assert not wrong, "\n".join(wrong)


def test_a_page_on_a_model_says_what_to_expect():
    parts = ("## What to expect", "## If the result is not usable", "| epsilon |")
    wrong = [f"{page.stem}: no {part}" for page in MODELS for part in parts if part not in page.read_text()]
    assert not wrong, "\n".join(wrong)


def test_the_gallery_has_the_figure_of_every_page_on_a_model():
    gallery = (DOCS / "gallery.md").read_text()
    shown = set(re.findall(r"^```\{glue\} figure\n:doc: models/(\w+)\.md$", gallery, re.MULTILINE))
    assert shown == {page.stem for page in MODELS if 'glue("figure", ' in page.read_text()} == {p.stem for p in MODELS}


def test_a_page_with_cells_says_that_it_is_run():
    wrong = []
    for page in EXECUTED:
        parts = page.read_text().split("---\n", 2)
        if len(parts) < 3 or not re.search(r"^file_format: mystnb$|format_name: myst$", parts[1], re.MULTILINE):
            wrong.append(str(page.relative_to(DOCS)))
    assert not wrong, "\n".join(wrong)


def test_an_error_in_a_cell_fails_the_build():
    settings = (DOCS / "conf.py").read_text()
    assert re.search(r'^nb_execution_mode = "(cache|force)"$', settings, re.MULTILINE)
    assert re.search(r"^nb_execution_raise_on_error = True$", settings, re.MULTILINE)
    # Only the notebooks that are executed by themselves are left out, and at every change most pages of models.
    assert 'nb_execution_excludepatterns = ["_generated/*"]' in settings


def test_every_object_is_described_on_one_page():
    """Sphinx refuses a second description, and only after minutes."""
    described = re.findall(
        r"^\.\. auto(?:class|function|method|exception|module):: (\S+)",
        "\n".join(page.read_text() for page in PAGES),
        re.MULTILINE,
    )
    assert described
    assert not [name for name, times in Counter(described).items() if times > 1]
