"""What clipping does to draws: of log-ratios in tests without noise, and of gradients.

    python -m experiments.clipping

After Räisä, Koskela and Honkela (2021), section 4.2 and Figure 3, and Räisä (2021), *Differentially private
Metropolis-Hastings algorithms*, section 6.2 and Figure 6.2: random-walk Metropolis and HMC with exact gradients, whose
log-likelihood ratios are clipped unit by unit and carry no noise. Both conclude that less than 20 % of clipped units do
no harm. The published program of the thesis clips at the bound times |Σ_k (θ'_k - θ_k)|, where the text has the
Euclidean distance; both are run.

For gradients the rule fails where the clipped units are not a random sample: the second table has the distance from
the maximum of the likelihood to the zero of the clipped gradient, which samplers without a test sample around.

No privacy is involved, so that this needs no sampler of the package: chains are compiled loops over simulated rows.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from scipy.optimize import root
from scipy.special import expit

from benchmarks.posteriors import TestPosterior, banana
from experiments.common import (
    STYLES,
    FloatArray,
    Table,
    arguments,
    distances,
    folder,
    panels,
    posterior_of,
    published,
    save,
    thinned,
)

#: Precisions of the rows are found from the model; these are the bends and prior precisions of the posteriors.
BEND = {"banana-2": 20.0, "banana-10": 20.0, "banana-paper": 20.0, "normal-10": 0.0}
PRIOR_PRECISION = {"banana-2": 1e-3, "banana-10": 1e-3, "banana-paper": 1e-6, "normal-10": 1e-4}
THESIS_BOUNDS = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 1000.0)
BOUNDS = {
    "banana-2": THESIS_BOUNDS,
    "banana-10": THESIS_BOUNDS,
    "banana-paper": (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0, 10.0),
    "normal-10": (0.1, 0.2, 1.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0),
}
#: Iterations and scales of moves; iterations, steps, leapfrog steps and masses. As published; the random walk on ten
#: correlated parameters, of 100,000 iterations in all, is left out.
WALKS = {
    "banana-2": (3000, np.full(2, 0.01)),
    "banana-10": (3000, np.concatenate([np.full(2, 0.015), np.full(8, 0.002)])),
    "banana-paper": (12_000, np.full(2, 0.3)),
}
TRAJECTORIES = {
    "banana-2": (500, 0.001, 15, np.array([1.0, 0.5])),
    "banana-10": (500, 0.001, 15, np.concatenate([[1.0, 0.5], np.full(8, 0.4)])),
    "banana-paper": (1000, 0.01, 100, np.ones(2)),
    "normal-10": (1000, 0.0005, 12, np.ones(10)),
}


@njit(cache=True, fastmath=True)
def clipped_sum(rows: FloatArray, slope: FloatArray, offset: float, bound: float) -> tuple[float, int]:
    """Return the sum of row·slope + offset, each clipped at a bound, and how many are."""
    total, clipped = 0.0, 0
    if rows.shape[1] == 2:  # one pass
        for i in range(rows.shape[0]):
            value = offset + rows[i, 0] * slope[0] + rows[i, 1] * slope[1]
            clipped += abs(value) > bound
            total += min(max(value, -bound), bound)
        return total, clipped
    for value in rows @ slope + offset:
        clipped += abs(value) > bound
        total += min(max(value, -bound), bound)
    return total, clipped


@njit(cache=True)
def centre(theta: FloatArray, bend: float) -> FloatArray:
    """Return the mean of a row."""
    mean = theta.copy()
    mean[1] += bend * theta[0] ** 2
    return mean


@njit(cache=True)
def slope_at(theta: FloatArray, bend: float, mean_row: FloatArray, n: int, precision: FloatArray, prior: float) -> Any:
    """Return the gradient of the log-posterior."""
    mean = centre(theta, bend)
    slope = n * (precision @ (mean_row - mean)) - prior * mean
    slope[0] += 2.0 * bend * theta[0] * slope[1]
    return slope


@njit(cache=True)
def chain(
    rows: FloatArray,
    precision: FloatArray,
    bend: float,
    prior: float,
    start: FloatArray,
    iterations: int,
    scales: FloatArray,
    leapfrogs: int,
    step: float,
    jitter: bool,
    bound: float,
    euclidean: bool,
    seed: int,
) -> tuple[FloatArray, float, float]:
    """Return draws, the share of clipped units and that of accepted moves; a random walk without leapfrog steps."""
    np.random.seed(seed)
    n, size = rows.shape[0], start.size
    mean_row = np.array([rows[:, k].mean() for k in range(size)])
    theta = start.copy()
    draws = np.empty((iterations, size))
    clipped, accepted = 0.0, 0
    for t in range(iterations):
        proposal, kinetic = theta.copy(), 0.0
        if leapfrogs == 0:
            for k in range(size):
                proposal[k] += scales[k] * np.random.normal()
        else:
            momentum = np.empty(size)
            for k in range(size):
                momentum[k] = np.sqrt(scales[k]) * np.random.normal()
            kinetic = 0.5 * np.sum(momentum**2 / scales)
            length = step * np.random.random() if jitter else step
            slope = slope_at(proposal, bend, mean_row, n, precision, prior)
            for _ in range(leapfrogs):
                momentum += 0.5 * length * slope
                proposal += length * momentum / scales
                slope = slope_at(proposal, bend, mean_row, n, precision, prior)
                momentum += 0.5 * length * slope
            kinetic -= 0.5 * np.sum(momentum**2 / scales)
        difference = proposal - theta
        distance = np.sqrt(np.sum(difference**2)) if euclidean else abs(np.sum(difference))
        old, new = centre(theta, bend), centre(proposal, bend)
        direction = precision @ (new - old)
        ratio = -np.inf
        if np.all(np.isfinite(proposal)):
            ratio, cut = clipped_sum(rows, direction, -np.sum(direction * (old + new)) / 2.0, bound * distance)
            clipped += cut / n
            ratio += kinetic - 0.5 * prior * (np.sum(new**2) - np.sum(old**2))
        if np.log(np.random.random()) < ratio:
            theta = proposal
            accepted += 1
        draws[t] = theta
    return draws, clipped / iterations, accepted / iterations


@cache
def problem(target: str) -> tuple[TestPosterior, FloatArray, FloatArray]:
    """Return a posterior, its simulated rows, and the precision matrix of a row."""
    # The published experiment has 10⁵ rows of ten columns, too; elsewhere there are 2 · 10⁵.
    ten = (
        banana(target, np.concatenate([[20.0, 2.5], np.ones(8)]), 20.0, 1000.0, 100_000)
        if target == "banana-10"
        else None
    )
    posterior = ten or posterior_of(target)
    model = posterior.model
    rows = np.ascontiguousarray(model.rvs_to_values[model["y"]].data, dtype=float)
    spread = np.squeeze(np.asarray(model["y"].owner.inputs[-1].eval(), dtype=float))  # covariance, or deviations
    return posterior, rows, np.linalg.inv(spread if spread.ndim == 2 else np.diag(spread**2))


def log_ratio_cell(target: str, sampler: str, rule: str, bound: float, run: int, scale: float) -> dict[str, float]:
    """Return how far clipped chains are from the posterior: a chain of the thesis, or four chains of the paper."""
    posterior, rows, precision = problem(target)
    generator = np.random.default_rng(run)
    reference = posterior.reference(1000, generator)
    of_paper = target in ("banana-paper", "normal-10")
    truth = np.concatenate([[0.0, 3.0], np.zeros(rows.shape[1] - 2)])
    kept, fractions, accepted = [], [], []
    for number in range(4 if of_paper else 1):
        start = truth + reference.std(axis=0).mean() * generator.normal(size=truth.size) if of_paper else truth
        if sampler == "rwmh":
            iterations, scales = WALKS[target]
            step, leapfrogs = 0.0, 0
        else:
            iterations, step, leapfrogs, scales = TRAJECTORIES[target]
        iterations = max(20, round(iterations * scale))
        draws, fraction, rate = chain(
            rows, precision, BEND[target], PRIOR_PRECISION[target], start, iterations, scales, leapfrogs, step,
            of_paper, bound, rule == "euclidean", 1000 * run + number,
        )  # fmt: skip
        kept.append(draws[iterations // 2 :])
        fractions.append(fraction)
        accepted.append(rate)
    sample = np.concatenate(kept)
    found = distances(thinned(sample), reference)
    return {"fraction": float(np.mean(fractions)), "accepted": float(np.mean(accepted)), **found}


def baseline(target: str, run: int) -> float:
    """Return the distance between exact draws, in place of a chain's, and exact draws."""
    posterior, generator = problem(target)[0], np.random.default_rng(500 + run)
    return distances(posterior.reference(1500, generator), posterior.reference(1000, generator))["mmd_absolute"]


def _logistic(features: FloatArray, truth: FloatArray, generator: np.random.Generator) -> Any:
    y = generator.binomial(1, expit(features @ truth))

    def scores(theta: FloatArray) -> FloatArray:
        return features * (y - expit(features @ theta))[:, None]

    def information(theta: FloatArray) -> FloatArray:
        p = expit(features @ theta)
        return (features * (p * (1 - p))[:, None]).T @ features

    return scores, information, truth


def gradient_tables(n: int) -> dict[str, tuple[Callable[..., FloatArray], Callable[..., FloatArray], FloatArray]]:
    """Return simulated tables as scores, information and a start: symmetric rows, and rows that are not."""
    generator = np.random.default_rng(0)
    ones = np.ones(n)
    normal = generator.normal(size=(n, 2)) * np.sqrt([20.0, 2.5])
    balanced = np.column_stack([ones, generator.normal(size=n)])
    rare = np.column_stack([ones, 5.0 * (generator.random(n) < 0.02)])
    x = generator.uniform(-1.0, 1.0, size=n)
    design = np.column_stack([ones, x])
    counts = generator.poisson(np.exp(0.7 + 0.3 * x) * generator.gamma(1 / 1.5, 1.5, size=n))
    return {
        "normal mean": (lambda t: (normal - t) / [20.0, 2.5], lambda t: n * np.diag([1 / 20.0, 1 / 2.5]), np.zeros(2)),
        "logistic, balanced": _logistic(balanced, np.array([-0.5, 1.0]), generator),
        "logistic, rare feature": _logistic(rare, np.array([-0.5, 0.5]), generator),
        "Poisson, overdispersed": (
            lambda t: design * (counts - np.exp(design @ t))[:, None],
            lambda t: (design * np.exp(design @ t)[:, None]).T @ design,
            np.array([0.7, 0.3]),
        ),
    }


def shift_of_gradients(scores: Any, information: Any, start: FloatArray, fraction: float) -> tuple[float, float, float]:
    """Return the clip bound, the share that it clips at the mode, and how far the zero moves, in standard deviations.

    The largest shift of any parameter.
    """
    mode = root(lambda t: scores(t).sum(axis=0), start, jac=lambda t: -information(t)).x
    lengths = np.linalg.norm(scores(mode), axis=1)
    bound = float(np.quantile(lengths, 1.0 - fraction))

    def clipped(theta: FloatArray) -> FloatArray:
        each = scores(theta)
        return (each * np.minimum(1.0, bound / np.maximum(np.linalg.norm(each, axis=1), 1e-300))[:, None]).sum(axis=0)

    std = np.sqrt(np.diag(np.linalg.inv(information(mode))))
    found = root(clipped, mode)
    shift = float(np.abs((found.x - mode) / std).max())
    # Where all rows of a kind are clipped, there may be no zero.
    return bound, float((lengths > bound * (1 + 1e-9)).mean()), shift if found.success and shift < 1e4 else np.nan


def _draw_log_ratios(table: Table, bases: Table, path: Path, targets: Sequence[str]) -> None:
    shown = [(target, "published") for target in targets if table.where(target=target, rule="published")]
    shown += [(target, "euclidean") for target in targets if table.where(target=target)]
    figure, axes = panels((len(shown) + 1) // 2, 2, 2.3 * ((len(shown) + 1) // 2) + 0.6)
    printed = published("clipping_by_fraction")["rows"]
    for axis, (target, rule) in zip(axes.ravel(), shown, strict=False):
        for style, sampler, label in ((STYLES[0], "hmc", "HMC"), (STYLES[1], "rwmh", "random walk")):
            rows = table.where(target=target, sampler=sampler, rule=rule)
            axis.plot(
                [float(r["fraction"]) for r in rows], [float(r["mmd_absolute"]) for r in rows],
                **{**style, "linestyle": ""}, fillstyle="none", label=label,
            )  # fmt: skip
            of_target = {"banana-2": 2, "banana-10": 10}.get(target) if rule == "published" else None
            bins = [row for row in printed if row[0] == of_target and row[1] == sampler]
            if bins:
                axis.plot(
                    [(row[2] + row[3]) / 2 for row in bins], [row[5] for row in bins],
                    **{**style, "marker": ""}, label=f"{label}, published medians",
                )  # fmt: skip
        axis.axhline(np.median(bases.column("mmd_absolute", target=target)), color="grey", linewidth=0.8)
        axis.axvline(0.2, color="grey", linestyle=":", linewidth=1.0)
        distance = "|sum|" if rule == "published" else "distance"
        axis.set(
            title=f"{target}, bound × {distance}", xlabel="share of clipped log-ratios", ylabel="MMD", ylim=(0, None)
        )
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    save(figure, path)


def _draw_gradients(table: Table, path: Path) -> None:
    figure, axes = panels(1, 1, 3.4)
    for style, name in zip(STYLES, dict.fromkeys(row["rows"] for row in table.rows), strict=False):
        rows = table.where(rows=name)
        shares = 100.0 * np.array([float(row["clipped"]) for row in rows])
        axes[0, 0].plot(shares, np.maximum(table.column("shift_sd", rows=name), 0.01), label=name, **style)
    axes[0, 0].axvline(20.0, color="grey", linestyle=":", linewidth=1.0)
    axes[0, 0].axhline(1.0, color="grey", linewidth=0.8)
    axes[0, 0].set(
        xscale="log", yscale="log", xlabel="units whose gradient is clipped at the mode [%]",
        ylabel="zero moved by [posterior sd]",
    )  # fmt: skip
    axes[0, 0].legend()
    save(figure, path)


def _fill_log_ratios(table: Table, targets: Sequence[str], runs: int, reduced: bool) -> None:
    """Run the chains that the table lacks."""
    for run in range(runs):
        for target in targets:
            of_thesis = target in ("banana-2", "banana-10")
            if not of_thesis and run >= max(1, runs // 3):
                continue
            for rule in ("euclidean", "published") if of_thesis else ("euclidean",):
                for bound in (0.5, 4.0, 1000.0) if reduced else BOUNDS[target]:
                    for sampler in ("hmc", "rwmh") if target in WALKS else ("hmc",):
                        cell = {"target": target, "sampler": sampler, "rule": rule, "bound": bound, "run": run}
                        if table.has(**cell):
                            continue
                        found = log_ratio_cell(target, sampler, rule, bound, run, 0.1 if reduced else 1.0)
                        table.add({**cell, **found})
        print("run", run, flush=True)


def _gradients(into: Path, reduced: bool) -> None:
    """Fill and draw the table of gradients."""
    gradients = Table(into / "clipping_gradients.csv", ("rows", "fraction"), ("bound", "clipped", "shift_sd"))
    for name, (scores, information, start) in gradient_tables(5000 if reduced else 50_000).items():
        for fraction in (0.005, 0.2) if reduced else (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4):
            if gradients.has(rows=name, fraction=fraction):
                continue
            bound, clipped, shift = shift_of_gradients(scores, information, start, fraction)
            gradients.add({"rows": name, "fraction": fraction, "bound": bound, "clipped": clipped, "shift_sd": shift})
    _draw_gradients(gradients, into / "clipping_gradients.png")


def main(given: Sequence[str] | None = None) -> Path:
    """Fill both tables and draw them."""
    parser = arguments(__doc__, given)
    parser.add_argument("--runs", type=int, default=2, help="chains of the thesis, or sets of four of the paper")
    options = parser.parse_args(given)
    into = folder(options)
    values = ("fraction", "accepted", "mmd", "mmd_absolute", "mean_error", "mean_error_sd")
    table = Table(into / "clipping.csv", ("target", "sampler", "rule", "bound", "run"), values)
    bases = Table(into / "clipping_baseline.csv", ("target", "run"), ("mmd_absolute",))
    targets = ("banana-2",) if options.reduced else tuple(BOUNDS)
    for target in targets:
        for run in range(3 if options.reduced else 10):
            if not bases.has(target=target, run=run):
                bases.add({"target": target, "run": run, "mmd_absolute": baseline(target, run)})
    _fill_log_ratios(table, targets, 1 if options.reduced else options.runs, options.reduced)
    _draw_log_ratios(table, bases, into / "clipping_log_ratios.png", targets)

    _gradients(into, options.reduced)
    return into


if __name__ == "__main__":
    main(sys.argv[1:])
