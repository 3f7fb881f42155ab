"""Write the tables of `docs/experiments.md` that hold many stored numbers.

python -m experiments.summary
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.clipping import BEND
from experiments.common import RESULTS, Table, published
from experiments.comparison import KEYS, PAPER, TARGETS, THESIS, VALUES, originals

PAGE = Path(__file__).parents[1] / "docs" / "experiments.md"


def _number(value: float, digits: int = 2) -> str:
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


def _median(table: Table, name: str, **cell: object) -> float:
    values = table.column(name, **cell)
    return float(np.nanmedian(values)) if np.isfinite(values).any() else np.nan


def _box(figures: Sequence[str], target: str, sampler: str, epsilon: float) -> float:
    found = [
        row[5] for row in published("boxes")["rows"] if row[0] in figures and row[1:4] == [target, sampler, epsilon]
    ]
    return float(found[0]) if found else np.nan


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def of_thesis(table: Table) -> str:
    """Return MMD (of the circle: the error of the mean), published and here, at two epsilons."""
    rows = []
    for target in THESIS:
        circle = target == "circle"
        name, at = ("mean_error", (0.5, 1.0)) if circle else ("mmd_absolute", (1.0, 4.0))
        place, figures = ("circle-error", ("6.7",)) if circle else (target, ("6.3", "6.4"))
        for sampler in originals(target):
            cell = {"kind": "originals", "target": target, "sampler": sampler}
            row = [target, sampler]
            for epsilon in at:
                ours = _median(table, name, **cell, epsilon=epsilon)
                row += [_number(_box(figures, place, sampler, epsilon)), _number(ours)]
            rows.append([*row, str(len(table.where(**cell, epsilon=at[1])))])
    head = ("target", "sampler", "ε = 1, printed", "here", "ε = 4, printed", "here", "runs here")
    return _markdown(head, rows)


def of_clipping(table: Table) -> str:
    """Return shares of clipped units in per cent, published and here, at the larger epsilon."""
    rows = []
    for target in THESIS:
        circle = target == "circle"
        epsilon = 1.0 if circle else 4.0
        for sampler in originals(target):
            cell = {"kind": "originals", "target": target, "sampler": sampler, "epsilon": epsilon}
            place, figures = ("circle-clipping", ("6.7",)) if circle else (target, ("6.5", "6.6"))
            row = [target, sampler, _number(100 * _box(figures, place, sampler, epsilon), 1)]
            row += [_number(100 * _median(table, "clip_log_ratio", **cell), 1)]
            row += [_number(100 * _box(("6.8",), target, sampler, epsilon), 1)]
            rows.append([*row, _number(100 * _median(table, "clip_gradient", **cell), 1)])
    head = ("target", "sampler", "log-ratios [%], printed", "here", "gradients [%], printed", "here")
    return _markdown(head, rows)


def of_paper(table: Table) -> str:
    """Return MMD and error of the mean at the settings of the paper."""
    rows = []
    for target in PAPER:
        for sampler in originals(target):
            cell = {"kind": "originals", "target": target, "sampler": sampler}
            row = [target, sampler]
            for epsilon in (2.0, 6.0):
                row += [_number(_median(table, "mmd_absolute", **cell, epsilon=epsilon))]
                row += [_number(_median(table, "mean_error", **cell, epsilon=epsilon), 4)]
            rows.append([*row, str(len(table.where(**cell, epsilon=6.0)))])
    head = ("target", "sampler", "ε = 2: MMD", "error of the mean", "ε = 6: MMD", "error of the mean", "runs")
    return _markdown(head, rows)


def of_untuned(table: Table) -> str:
    """Return the best of the published settings, and samplers with nothing but a budget, at epsilon 4."""
    shown = ("surrogate", "hmc", "penalty-guided", "minibatch", "sghmc")
    rows = []
    for target in TARGETS:
        of_figures = [_box(("6.3", "6.4"), target, sampler, 4.0) for sampler in originals(target)]
        best = np.nanmin(of_figures) if np.isfinite(of_figures).any() else np.nan
        here = [
            _median(table, "mmd_absolute", kind="untuned", target=target, sampler=name, epsilon=4.0) for name in shown
        ]
        rows.append([target, _number(float(best)), *(_number(value) for value in here)])
    return _markdown(("target", "best printed", *shown), rows)


def of_clip_bounds(table: Table) -> str:
    """Return shares and distances at the smallest and the next bounds, for both distances in the bound."""
    printed = {tuple(row[:3]): row[3] for row in published("clipping_by_bound")["rows"]}
    rows = []
    for target in BEND:
        if not table.where(target=target):
            continue
        bounds = sorted({float(row["bound"]) for row in table.where(target=target)})
        for sampler in ("hmc", "rwmh"):
            for rule in ("published", "euclidean"):
                for bound in (bounds[0], bounds[2], bounds[-1]):
                    cell = {"target": target, "sampler": sampler, "rule": rule, "bound": bound}
                    if not table.where(**cell):
                        continue
                    of_figure = printed.get(({"banana-2": 2, "banana-10": 10}.get(target), sampler, bound), np.nan)
                    row = [target, sampler, "sum" if rule == "published" else "distance", f"{bound:g}"]
                    row += [_number(100 * _median(table, "fraction", **cell), 1)]
                    row += [_number(of_figure if rule == "published" else np.nan)]
                    rows.append([*row, _number(_median(table, "mmd_absolute", **cell))])
    head = ("target", "sampler", "bound times", "bound", "clipped here [%]", "MMD, printed", "MMD here")
    return _markdown(head, rows)


def main() -> None:
    """Replace what stands between the markers of the page."""
    table = Table(RESULTS / "comparison.csv", KEYS, VALUES)
    clipping = Table(RESULTS / "clipping.csv", ("target", "sampler", "rule", "bound", "run"), ())
    page = PAGE.read_text(encoding="utf-8")
    written = {
        "thesis": of_thesis(table),
        "clipping": of_clipping(table),
        "paper": of_paper(table),
        "untuned": of_untuned(table),
        "clip-bounds": of_clip_bounds(clipping),
    }
    for name, text in written.items():
        page, found = re.subn(
            rf"(% {name}: begin\n).*?(\n% {name}: end)", lambda m, t=text: f"{m[1]}\n{t}\n{m[2]}", page, flags=re.DOTALL
        )
        if found != 1:
            sys.exit(f"{PAGE} has no place for {name}.")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
