"""What to expect of the models of `docs/models`: the figures on those pages.

    python benchmarks/model_pages.py DIRECTORY                              all pages, two runs at epsilon 3 and 1
    python benchmarks/model_pages.py DIRECTORY linear --runs 10 --epsilon 4

DIRECTORY keeps the references, which are found without privacy (`against_reference.py`). The tables and models are
those of the pages: the first code cell of each is run, and defines a function ``..._table(seed)`` beside each
``..._model(table)``. One line for each run, and one for each model and epsilon at the end. Columns are explained in
`newcomers.py`.
"""

import argparse
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from against_reference import Problem, Run, arguments, quiet, reference_of, results_of, run, say, say_failures, summary

CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = Path(__file__).parents[1] / "docs" / "models"
#: Of the step, where a page passes some.
SETTINGS = {"repeated_rows/persons": {"unit_index": "person"}}
#: The joint mode of a hierarchy is far from the posterior's mean.
NOT_NORMAL = ("hierarchical/",)


def first_cell(page: Path) -> dict[str, Any]:
    """Return what the first code cell of a page defines."""
    found: dict[str, Any] = {}
    exec(compile(CELL.findall(page.read_text())[0], str(page), "exec"), found)  # noqa: S102
    return found


def models() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Return tables and models of all pages, by ``page/model``."""
    found = {}
    for page in sorted(PAGES.glob("*.md")):
        if page.stem == "index":
            continue
        defined = first_cell(page)
        for name, model in defined.items():
            if name.endswith("_model"):
                stem = name.removesuffix("_model")
                table = defined.get(f"{stem}_table") or next(
                    each for key, each in defined.items() if key.endswith("_table")
                )
                found[f"{page.stem}/{stem}"] = (table, model)
    return found


def problem_and_reference(directory: Path, name: str):
    table, model = models()[name]
    problem = Problem(model(*table(1)), SETTINGS.get(name, {}), normal=not name.startswith(NOT_NORMAL))
    return problem, reference_of(problem, directory / f"{name.replace('/', '-')}.npz")


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
    found: dict[tuple[str, float], list[Run]] = {}
    jobs = [(name, epsilon, seed) for name in names for epsilon in options.epsilon for seed in options.seeds]
    shared = functools.partial(run_of, options.directory, options.delta)
    for (name, epsilon, seed), made in results_of(shared, jobs, options.processes):
        say(f"{name:<34}epsilon {epsilon:g}  seed {seed}  {made}")
        found.setdefault((name, epsilon), []).append(made)
    say("")
    for (name, epsilon), runs in found.items():
        say(f"{name:<34}epsilon {epsilon:g}  {summary(runs)}")
    say_failures((name, made) for (name, _), runs in found.items() for made in runs)


if __name__ == "__main__":
    main()
