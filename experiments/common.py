"""What the experiments share: arguments, tables that are filled cell by cell, distances between samples, figures."""

import argparse
import csv
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt  # after the choice of how figures are drawn
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from benchmarks.posteriors import TestPosterior, normal, published as published_posterior

FloatArray = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results"
#: Told apart in greyscale and without colour: by dashes and markers.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "black", "linestyle": "-", "marker": "o"},
    {"color": "#0060ad", "linestyle": "--", "marker": "s"},
    {"color": "#c44601", "linestyle": "-.", "marker": "^"},
    {"color": "#5ba300", "linestyle": ":", "marker": "D"},
    {"color": "#8b4aa0", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#8a7500", "linestyle": (0, (1, 2)), "marker": "P"},
    {"color": "#777777", "linestyle": (0, (8, 2)), "marker": "X"},
)
_FONTS = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.markersize": 4.5,
    "lines.linewidth": 1.4,
}


def arguments(description: str | None, given: Sequence[str] | None) -> argparse.ArgumentParser:
    """Return a parser of what every experiment takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reduced", action="store_true", help="seconds in place of minutes; for tests")
    parser.add_argument("--into", type=Path, help="folder for tables and figures; a fresh one with --reduced")
    return parser


def folder(options: argparse.Namespace) -> Path:
    """Return where an experiment writes: the stored results, unless it is reduced or told otherwise."""
    into: Path = options.into or (Path(tempfile.mkdtemp(prefix="experiments-")) if options.reduced else RESULTS)
    into.mkdir(parents=True, exist_ok=True)
    return into


class Table:
    """A CSV file that is filled row by row, so that an interrupted experiment goes on where it stopped.

    Parameters
    ----------
    path : Path
        The file; rows that it holds already are kept.
    keys : sequence of str
        Columns that say which cell a row is.
    values : sequence of str
        The other columns.
    """

    def __init__(self, path: Path, keys: Sequence[str], values: Sequence[str]) -> None:
        self.path, self.keys, self.columns = path, tuple(keys), (*keys, *values)
        self.rows: list[dict[str, str]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as lines:
                self.rows = list(csv.DictReader(lines))

    def has(self, **cell: Any) -> bool:
        """Return whether a cell is filled."""
        wanted = [_as_text(cell[key]) for key in self.keys]
        return any([row[key] for key in self.keys] == wanted for row in self.rows)

    def add(self, cell: Mapping[str, Any]) -> None:
        """Append a row to the file."""
        row = {name: _as_text(cell.get(name, "")) for name in self.columns}
        fresh = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as lines:
            writer = csv.DictWriter(lines, self.columns, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        self.rows.append(row)

    def where(self, **wanted: Any) -> list[dict[str, str]]:
        """Return the rows whose columns have these values."""
        return [row for row in self.rows if all(row[name] == _as_text(value) for name, value in wanted.items())]

    def column(self, name: str, **wanted: Any) -> FloatArray:
        """Return the numbers of a column, NaN where there is none."""
        return np.array([float(row[name] or "nan") for row in self.where(**wanted)])


def _as_text(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return str(value)


def published(name: str) -> Any:
    """Return numbers that were printed, or read off the vector graphics of the sources' figures."""
    return json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))[name]


def thinned(sample: FloatArray, most: int = 2000) -> FloatArray:
    """Return at most so many draws, at even distances."""
    return sample[np.linspace(0, len(sample) - 1, min(len(sample), most)).astype(int)]


def posterior_of(name: str) -> TestPosterior:
    """Return one of the sources' posteriors: that of `benchmarks/posteriors.py`, but for the normal of ten dimensions.

    The eigenvalues of its covariance are random. The published step of HMC, 0.00015, is stable for eigenvalues from
    6e-4, and few gradients are clipped at the published 10 where the trace of the precision is some tens; the draw of
    `benchmarks/posteriors.py` has an eigenvalue of 2e-6. This one is the first whose precision has a trace from 40 to
    100.
    """
    if name != "normal-10":
        return published_posterior(name)
    for seed in range(1000):
        generator = np.random.default_rng(seed)
        values = generator.gamma(0.5, 1.0, 10)
        if 40.0 < (1.0 / values).sum() < 100.0:
            break
    vectors = np.linalg.qr(generator.random((10, 10)))[0]
    return normal(name, (vectors * values) @ vectors.T, 100.0, 100_000)


def squared_discrepancy(draws: FloatArray, reference: FloatArray) -> float:
    """Return the unbiased estimate of the squared maximum mean discrepancy, which may be negative.

    Gaussian kernel, its width the median distance between draws of both samples, as in
    `pymc_dp.diagnostics.maximum_mean_discrepancy`, which returns the root, or 0 where the estimate is negative. The
    sources return the root of its absolute value.

    Parameters
    ----------
    draws, reference : ndarray, shape (draws, parameters)
        Not necessarily equally many.
    """
    width = np.median(cdist(draws[:1000], reference[:1000]))

    def kernel(one: FloatArray, other: FloatArray) -> FloatArray:
        values: FloatArray = np.exp(-cdist(one, other, "sqeuclidean") / (2.0 * width**2))
        return values

    within = [(kernel(each, each).sum() - len(each)) / (len(each) * (len(each) - 1)) for each in (draws, reference)]
    return float(sum(within) - 2.0 * kernel(draws, reference).mean())


def distances(draws: FloatArray, reference: FloatArray) -> dict[str, float]:
    """Return how far draws are from a reference sample.

    Returns
    -------
    dict
        ``mmd``, zero where the estimate of its square is negative; ``mmd_absolute``, the root of the absolute value,
        as the sources have it; ``mean_error``, the distance between both means; ``mean_error_sd``, the root mean
        square of its components in standard deviations of the reference.
    """
    square = squared_discrepancy(draws, reference)
    off = draws.mean(axis=0) - reference.mean(axis=0)
    return {
        "mmd": max(square, 0.0) ** 0.5,
        "mmd_absolute": abs(square) ** 0.5,
        "mean_error": float(np.linalg.norm(off)),
        "mean_error_sd": float(np.sqrt(np.mean((off / reference.std(axis=0)) ** 2))),
    }


def panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Any, NDArray[np.object_]]:
    """Return a figure that is readable at the width of a phone, and its axes, shape (rows, columns)."""
    mpl.rcParams.update(_FONTS)
    figure, axes = plt.subplots(rows, columns, figsize=(6.0, height), layout="constrained", squeeze=False, **options)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    """Write a figure and forget it."""
    figure.savefig(path, dpi=130)
    plt.close(figure)


def medians(values: Iterable[FloatArray]) -> FloatArray:
    """Return the median of each, NaN of none."""
    return np.array([np.nanmedian(each) if np.isfinite(each).any() else np.nan for each in values])
