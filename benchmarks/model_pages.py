"""What to expect of the models of `docs/models`: the figures on those pages.

    python benchmarks/model_pages.py DIRECTORY                              all pages, two runs at epsilon 3 and 1
    python benchmarks/model_pages.py DIRECTORY linear --runs 10 --epsilon 4

DIRECTORY keeps the references, which are found without privacy (`against_reference.py`). The tables and models are
those of the pages: the first code cell of each is run, and defines a function ``..._table(seed)`` and a ``..._schema``
beside each ``..._model(template)``. One line for each run, and one for each model and epsilon at the end. Columns are
explained in `newcomers.py`.
"""

import argparse
import copy
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pymc as pm
from against_reference import (
    Problem,
    Reference,
    Run,
    arguments,
    quiet,
    reference_of,
    run,
    say_runs,
)

import pymc_dp as dp
from pymc_dp.tables.schema import array_of_part

CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = Path(__file__).parents[1] / "docs" / "models"
#: The joint mode of a hierarchy is far from the posterior's mean.
NOT_NORMAL = ("hierarchical/",)


def first_cell(page: Path) -> dict[str, Any]:
    """Return what the first code cell of a page defines."""
    found: dict[str, Any] = {}
    exec(compile(CELL.findall(page.read_text())[0], str(page), "exec"), found)  # noqa: S102
    return found


@dataclass(frozen=True)
class OnPage:
    """A model of a page, its table and what is declared of that."""

    model: Callable[[Any], pm.Model]
    table: Callable[[int], pd.DataFrame]
    schema: list[Any]


def models() -> dict[str, OnPage]:
    """Return models of all pages, by ``page/model``."""
    found = {}
    for page in sorted(PAGES.glob("*.md")):
        if page.stem == "index":
            continue
        defined = first_cell(page)
        stems = [name.removesuffix("_model") for name in defined if name.endswith("_model")]
        first = next(stem for stem in stems if f"{stem}_table" in defined)
        for stem in stems:
            own = stem if f"{stem}_table" in defined else first
            model = defined[f"{stem}_model"]
            found[f"{page.stem}/{stem}"] = OnPage(model, defined[f"{own}_table"], defined[f"{own}_schema"])
    return found


def filled(template: dp.Template, frame: pd.DataFrame) -> dp.Template:
    """Return the template with the rows of a table in place of invented ones."""
    found = copy.copy(template)
    found._arrays = {}
    for part in template.schema.parts:
        column = template.schema.column_of(part)
        entries = frame[column.name]
        if isinstance(column, dp.Category):
            entries = entries.map({level: code for code, level in enumerate(column.all_levels)})
        found._arrays[part] = array_of_part(column, part, entries.to_numpy(float))
    return found


def problem_and_reference(directory: Path, name: str) -> tuple[Problem, Reference]:
    page = models()[name]
    frame = page.table(1)
    table, normal = dp.Table.from_frame(frame, page.schema), not name.startswith(NOT_NORMAL)
    held = Problem(page.model(filled(table.template, frame)), {}, normal)
    reference = reference_of(held, directory / f"{name.replace('/', '-')}.npz")
    return Problem(page.model(table.template), {}, normal, data=table), reference


def run_of(directory: Path, delta: float, job: tuple[str, float, int]) -> Run:
    name, epsilon, seed = job
    return run(*problem_and_reference(directory, name), epsilon, delta, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = list(models())
    pages = list(dict.fromkeys(name.split("/")[0] for name in known))
    options = arguments(parser, [*pages, *known], [3.0, 1.0])
    names = [name for name in known if not options.names or {name, name.split("/")[0]} & set(options.names)]
    quiet()
    say_runs(functools.partial(run_of, options.directory, options.delta), names, options, width=34)


if __name__ == "__main__":
    main()
