"""Samplers on the sources' posteriors: distance from the posterior, and clipped units, against epsilon.

    python -m experiments.comparison                       what is stored; hours of cells that are there are skipped
    python -m experiments.comparison --kind originals --runs 3 --epsilons 1 4
    python -m experiments.comparison --figures             figures alone

After Räisä, Koskela and Honkela (2021), Figures 1 and 2, and Räisä (2021), *Differentially private
Metropolis-Hastings algorithms*, Figures 6.3 to 6.8. Settings and start points are those of the authors' public code
(github.com/oraisa/masters-thesis, github.com/DPBayes/DP-HMC-experiments): of the thesis one chain that has the whole
budget, of the paper four chains that share it. *Untuned* runs have nothing but a budget. Delta is 0.1 / n everywhere.

Samplers have noise from the operating system, as for anybody: cells differ when they are computed again.
"""

import logging
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_dp as dp
from benchmarks.posteriors import TestPosterior
from experiments.common import (
    STYLES,
    FloatArray,
    Table,
    arguments,
    distances,
    folder,
    medians,
    panels,
    posterior_of,
    published,
    save,
    thinned,
)
from pymc_dp.diagnostics import quality

KEYS = ("kind", "target", "sampler", "epsilon", "run")
VALUES = (
    "mmd", "mmd_absolute", "mean_error", "mean_error_sd", "accepted", "clip_log_ratio", "clip_log_ratio_noise",
    "clip_gradient", "clip_gradient_noise", "chains", "draws", "verdict", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """A sampler with the settings of a published experiment."""

    sampler: type
    settings: dict[str, Any]
    chains: int = 1
    noise: dict[str, float] = field(default_factory=dict)

    def step(self, budget: dp.PrivacyBudget, tempering: float) -> Any:
        """Return the step; it tempers where the target is tempered."""
        more: dict[str, Any] = {"tempering": tempering} if tempering < 1.0 else {}
        if self.noise:
            more["noise_multipliers"] = self.noise
        return self.sampler(budget=budget, prelude=None, keep_releases=False, **self.settings, **more)


@dataclass(frozen=True)
class Target:
    """A posterior, and the power of the likelihood that samplers are told."""

    posterior: str
    n_units: int
    tempered_units: int | None = None

    @property
    def tempering(self) -> float:
        """The power of the likelihood."""
        return 1.0 if self.tempered_units is None else self.tempered_units / self.n_units


#: Tempered targets are those of the untempered rows, and the sampler tempers.
TARGETS = {
    "banana-2": Target("banana-2", 100_000),
    "banana-tempered-2": Target("banana-2", 100_000, 1000),
    "banana-10": Target("banana-10", 200_000),
    "banana-tempered-10": Target("banana-10", 200_000, 1000),
    "banana-narrow": Target("banana-narrow", 150_000),
    "normal-2": Target("normal-2", 200_000),
    "normal-30": Target("normal-30", 200_000),
    "circle": Target("circle", 100_000),
    "banana-paper": Target("banana-paper", 100_000),
    "normal-10": Target("normal-10", 100_000),
}
THESIS = tuple(TARGETS)[:8]
PAPER = tuple(TARGETS)[8:]


def _hmc(
    n: int, tau: float, tau_gradient: float, leapfrogs: int, step: float, ratio: float, gradient: float
) -> Settings:
    noise = {"log_ratio": tau * n**0.5, "gradient": tau_gradient * n**0.5}
    settings = {
        "clip_log_ratio": ratio, "clip_gradient": gradient, "n_leapfrog": leapfrogs, "step_size": step,
        "step_size_jitter": 0.0, "reuse_gradient": False,
    }  # fmt: skip
    return Settings(dp.DPHMC, settings, noise=noise)


def _penalty(n: int, tau: float, scale: float, ratio: float, *, guided: bool = False) -> Settings:
    proposal = "one-component-guided-walk" if guided else "gaussian"
    settings = {"clip_log_ratio": ratio, "proposal": proposal, "proposal_scale": scale}
    return Settings(dp.DPPenalty, settings, noise={"log_ratio": tau * n**0.5})


def _minibatch(tau: float, scale: float, ratio: float, batch: int, *, guided: bool = False) -> Settings:
    proposal = "one-component-guided-walk" if guided else "gaussian"
    settings = {"clip_log_ratio": ratio, "proposal": proposal, "proposal_scale": scale, "batch_size": batch}
    return Settings(dp.DPMinibatchPenalty, settings, noise={"log_ratio": tau**0.5})


def _barker(scale: float, batch: int) -> Settings:
    return Settings(dp.DPBarker, {"proposal_scale": scale, "batch_size": batch})


def originals(target: str) -> dict[str, Settings]:
    """Return the published settings for a target, by sampler."""
    n = TARGETS[target].n_units
    if target == "banana-2":
        return {
            "hmc": _hmc(n, 0.1, 0.4, 10, 0.0005, 2.0, 1.0),
            "penalty": _penalty(n, 0.1, 0.008, 2.0),
            "penalty-guided": _penalty(n, 0.1, 0.008, 1.8, guided=True),
            "minibatch": _minibatch(0.7, 0.001, 1.0, 1000),
            "minibatch-guided": _minibatch(0.7, 0.001, 1.0, 1000, guided=True),
            "barker": _barker(0.0008, 1300),
        }
    if target == "banana-tempered-2":
        return {
            "hmc": _hmc(n, 0.2, 0.6, 10, 0.01, 2.5, 2.0),
            "penalty": _penalty(n, 0.2, 0.035, 5.0),
            "penalty-guided": _penalty(n, 0.2, 0.04, 3.5, guided=True),
            "minibatch": _minibatch(1.5, 0.025, 4.0, 1000),
            "minibatch-guided": _minibatch(2.0, 0.04, 4.0, 1000, guided=True),
            "barker": _barker(0.12, 1300),
        }
    if target == "banana-10":
        return {
            "hmc": _hmc(n, 0.05, 0.2, 10, 0.00015, 2.5, 3.0),
            "penalty": _penalty(n, 0.1, 0.0015, 2.0),
            "penalty-guided": _penalty(n, 0.1, 0.0015, 3.0, guided=True),
            "minibatch": _minibatch(0.6, 0.0001, 3.0, 1000),
            "minibatch-guided": _minibatch(0.5, 0.00032, 2.0, 1000, guided=True),
            "barker": _barker(0.0008, 2600),
        }
    if target == "banana-tempered-10":
        return {
            "hmc": _hmc(n, 0.08, 0.2, 10, 0.015, 2.5, 3.5),
            "penalty": _penalty(n, 0.18, 0.02, 3.0),
            "penalty-guided": _penalty(n, 0.1, 0.04, 3.0, guided=True),
            "minibatch": _minibatch(0.7, 0.02, 2.0, 1200),
            "minibatch-guided": _minibatch(0.8, 0.028, 2.0, 1200, guided=True),
            "barker": _barker(0.04, 2600),
        }
    if target == "banana-narrow":
        return {
            "hmc": _hmc(n, 0.15, 0.25, 5, 0.00045, 5.0, 2.8),
            "penalty": _penalty(n, 0.2, 0.0015, 5.5),
            "penalty-guided": _penalty(n, 0.1, 0.0015, 8.5, guided=True),
        }
    if target == "normal-2":
        return {
            "hmc": _hmc(n, 0.05, 0.2, 8, 0.00007, 30.0, 29.0),
            "penalty": _penalty(n, 0.07, 0.00015, 50.0),
            "penalty-guided": _penalty(n, 0.1, 0.0002, 45.0, guided=True),
        }
    if target == "normal-30":
        return {
            "hmc": _hmc(n, 0.05, 0.1, 5, 0.00025, 2.5, 6.0),
            "penalty": _penalty(n, 0.06, 0.00084, 3.0),
            "penalty-guided": _penalty(n, 0.2, 0.00084, 3.0, guided=True),
        }
    if target == "circle":
        return {"hmc": _hmc(n, 0.6, 1.9, 40, 0.07, 0.001, 0.0015), "penalty": _penalty(n, 4.0, 0.2, 0.002)}
    return _originals_of_the_paper(target)


def _originals_of_the_paper(target: str) -> dict[str, Settings]:
    """Return the settings of the paper: four chains, jittered steps, and drifts of eta / n for Langevin dynamics."""
    n = TARGETS[target].n_units
    banana = target == "banana-paper"
    hmc = _hmc(n, 0.1, 0.55, 25, 0.006, 0.1, 0.05) if banana else _hmc(n, 0.1, 0.25, 12, 0.00015, 6.0, 10.0)
    penalty = _penalty(n, 0.17, 0.06, 0.15) if banana else _penalty(n, 0.05, 0.0007, 10.0)
    # A step of h here drifts by h / 2, and a jitter of 1 around half of the largest step is the published one.
    jittered = {**hmc.settings, "step_size": hmc.settings["step_size"] / 2.0, "step_size_jitter": 1.0}
    batches = {"batch_size": 1000, "n_steps": 10}  # ten steps a draw: the sources thin to some 5,000 draws
    sgld = {**batches, "clip_gradient": 0.2 if banana else 15.0, "step_size": 2.0 * (1.0 if banana else 0.008) / n}
    thermostat = {
        **batches, "clip_gradient": 0.2 if banana else 12.0, "step_size": (100.0 if banana else 0.2) / n,
        "diffusion": 50.0 if banana else 30.0,
    }  # fmt: skip
    return {
        "hmc": Settings(dp.DPHMC, jittered, 4, hmc.noise),
        "penalty": Settings(dp.DPPenalty, penalty.settings, 4, penalty.noise),
        "sgld": Settings(dp.DPSGLD, sgld, 4),
        "sgnht": Settings(dp.DPSGNHT, thermostat, 4),
    }


UNTUNED: dict[str, tuple[type, dict[str, Any]]] = {
    "surrogate": (dp.DPSurrogateHMC, {}),
    "hmc": (dp.DPHMC, {}),
    "mala": (dp.DPMALA, {}),
    "penalty": (dp.DPPenalty, {}),
    "penalty-guided": (dp.DPPenalty, {"proposal": "one-component-guided-walk"}),
    "minibatch": (dp.DPMinibatchPenalty, {}),
    "barker": (dp.DPBarker, {}),
    "sghmc": (dp.DPSGHMC, {}),
    "sgld": (dp.DPSGLD, {}),
    "sgnht": (dp.DPSGNHT, {}),
}

#: Longest chains, in draws: what the budget affords beyond is left unspent.
LONGEST, LONGEST_OF_BATCHES = 6_000, 2_500
#: Of those that the sources have.
EPSILONS = {**dict.fromkeys(THESIS, (1.0, 4.0)), "circle": (0.5, 1.0), **dict.fromkeys(PAPER, (2.0, 6.0))}
EPSILONS_UNTUNED = (4.0, 1.0)


def start_points(posterior: TestPosterior, target: str, chains: int, generator: np.random.Generator) -> list[Any]:
    """Return the published start points: normal around the truth, with the mean of the posterior's widths."""
    if target == "circle":
        points = np.array([0.0, 1.0]) + generator.normal(size=(chains, 2))
    else:
        size = sum(int(np.prod(rv.type.shape, dtype=int)) for rv in posterior.model.free_RVs)
        truth = np.concatenate([[0.0, 3.0], np.zeros(size - 2)])
        width = posterior.reference(1000, generator).std(axis=0).mean()
        points = truth + width * generator.normal(size=(chains, size))
    named = []
    for point in points:
        rest, values = point, {}
        for rv in posterior.model.free_RVs:
            shape = rv.type.shape
            taken = int(np.prod(shape, dtype=int))
            values[rv.name], rest = rest[:taken].reshape(shape), rest[taken:]
        named.append(values)
    return named


def draws_of(tree: Any, model: pm.Model) -> FloatArray:
    """Return draws, shape (chains, draws, parameters)."""
    posterior = tree["posterior"].to_dataset()
    shape = (posterior.sizes["chain"], posterior.sizes["draw"], -1)
    return np.concatenate([posterior[rv.name].values.reshape(shape) for rv in model.free_RVs], axis=2)


def clip_fraction(tree: Any, kind: str) -> tuple[float, float]:
    """Return the released share of clipped units, and the standard deviation of its noise; NaN if none is released."""
    stats = tree["sample_stats"].to_dataset()
    name = f"clip_fraction_{kind}"
    if name not in stats or f"{name}_noise_std" not in stats:
        return np.nan, np.nan
    noise = stats[f"{name}_noise_std"].values
    # Windows of iterations share a release; means of windows have independent noise.
    windows = len(np.unique(stats[name].values))
    return float(stats[name].mean()), float(noise.mean() / windows**0.5)


@dataclass(frozen=True)
class Run:
    """A run with published settings: its result, the latter halves of its chains, and what they are compared with."""

    tree: Any
    kept: FloatArray
    exact: TestPosterior
    generator: np.random.Generator


def originals_run(target: str, sampler: str, epsilon: float, run: int, most: int | None) -> Run | int:
    """Return a run with the published settings, or how few draws the budget affords where there is none."""
    where, chosen = TARGETS[target], originals(target)[sampler]
    posterior, exact = posterior_of(where.posterior), posterior_of(target)
    generator = np.random.default_rng(1000 + run)
    with posterior.model:
        budget = dp.PrivacyBudget(epsilon, 0.1 / posterior.n_units)
        step = chosen.step(budget, where.tempering)
        longest = min(most or LONGEST, LONGEST_OF_BATCHES if "batch_size" in chosen.settings else LONGEST)
        draws = min(longest, budget.max_draws(step, chains=chosen.chains, tune=0))
        if draws < 4:
            return draws
        tree = pm.sample(
            draws=draws, tune=0, chains=chosen.chains, cores=1, step=step, progressbar=False,
            compute_convergence_checks=False, initvals=start_points(exact, target, chosen.chains, generator),
            random_seed=run,
        )  # fmt: skip
    return Run(tree, draws_of(tree, posterior.model)[:, draws // 2 :], exact, generator)


def run_originals(target: str, sampler: str, epsilon: float, run: int, most: int | None) -> dict[str, Any]:
    """Return a cell of the published settings: the latter half of the draws, against 1,000 of the posterior."""
    found = originals_run(target, sampler, epsilon, run, most)
    if isinstance(found, int):
        return {"chains": originals(target)[sampler].chains, "draws": found, "verdict": "no draws"}
    return _cell(found.tree, found.kept, found.exact, found.generator)


def run_untuned(target: str, sampler: str, epsilon: float, run: int, most: int | None) -> dict[str, Any]:
    """Return a cell of a sampler with nothing but a budget: all draws, against 1,000 of the posterior."""
    where, (step_class, settings) = TARGETS[target], UNTUNED[sampler]
    posterior, exact = posterior_of(where.posterior), posterior_of(target)
    more: dict[str, Any] = {"tempering": where.tempering} if where.tempering < 1.0 else {}
    size: dict[str, Any] = {} if most is None else {"draws": most, "tune": 0}
    with posterior.model:
        step = step_class(budget=dp.PrivacyBudget(epsilon, 0.1 / posterior.n_units), **settings, **more)
        tree = pm.sample(
            chains=4, cores=1, step=step, progressbar=False, compute_convergence_checks=False, random_seed=run, **size
        )
    return _cell(tree, draws_of(tree, posterior.model), exact, np.random.default_rng(1000 + run))


def _cell(tree: Any, kept: FloatArray, exact: TestPosterior, generator: np.random.Generator) -> dict[str, Any]:
    found = distances(thinned(kept.reshape(-1, kept.shape[2])), exact.reference(1000, generator))
    ratio = clip_fraction(tree, "log_ratio")
    if np.isnan(ratio[0]):
        ratio = clip_fraction(tree, "decision")
    gradient = clip_fraction(tree, "gradient")
    stats = tree["sample_stats"]
    return {
        **found,
        "accepted": float(stats["accepted"].mean()) if "accepted" in stats else np.nan,
        "clip_log_ratio": ratio[0],
        "clip_log_ratio_noise": ratio[1],
        "clip_gradient": gradient[0],
        "clip_gradient_noise": gradient[1],
        "chains": kept.shape[0],
        "draws": tree["posterior"].sizes["draw"],
        "verdict": quality(tree).verdict,
    }


RUNS: dict[str, Callable[..., dict[str, Any]]] = {"originals": run_originals, "untuned": run_untuned}


def cells(
    kinds: Sequence[str], targets: Sequence[str], epsilons: Sequence[float] | None, runs: int
) -> list[dict[str, Any]]:
    """Return what is to be computed, the first run of everything first."""
    found = []
    for run in range(runs):
        for kind in kinds:
            for target in targets:
                samplers: Sequence[str] = tuple(originals(target) if kind == "originals" else UNTUNED)
                if kind == "untuned" and TARGETS[target].tempering < 1.0:  # which the surrogate cannot follow
                    samplers = [name for name in samplers if name != "surrogate"]
                found += [
                    {"kind": kind, "target": target, "sampler": sampler, "epsilon": float(epsilon), "run": run}
                    for epsilon in epsilons or (EPSILONS[target] if kind == "originals" else EPSILONS_UNTUNED)
                    for sampler in samplers
                ]
    return found


#: Of every figure: style by sampler.
_STYLE_OF = {
    "hmc": STYLES[0], "penalty": STYLES[1], "penalty-guided": STYLES[2], "minibatch": STYLES[3],
    "minibatch-guided": STYLES[4], "barker": STYLES[5], "sgld": STYLES[3], "sgnht": STYLES[4],
}  # fmt: skip


def _boxes(figure: str, target: str, sampler: str) -> tuple[list[float], list[float]]:
    """Return epsilons and medians of a published figure."""
    rows = [row for row in published("boxes")["rows"] if row[:3] == [figure, target, sampler]]
    return [row[3] for row in rows], [row[5] for row in rows]


def _line(axis: Any, table: Table, target: str, sampler: str, name: str) -> None:
    rows = {"kind": "originals", "target": target, "sampler": sampler}
    at = sorted({float(row["epsilon"]) for row in table.where(**rows)})
    found = medians(table.column(name, **rows, epsilon=epsilon) for epsilon in at)
    axis.plot(at, found, **{**_STYLE_OF[sampler], "linestyle": ""}, label=sampler)


def _legend(figure: Any, axes: Any, columns: int) -> None:
    found = {}
    for axis in axes.ravel():
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)


def _draw_thesis(table: Table, into: Path) -> None:
    figures = {
        "6.3": ("comparison_bananas.png", ("banana-2", "banana-tempered-2", "banana-10", "banana-tempered-10")),
        "6.4": ("comparison_hard.png", ("normal-30", "banana-narrow", "normal-2", "circle")),
    }
    for number, (name, targets) in figures.items():
        figure, axes = panels(2, 2, 5.6)
        for axis, target in zip(axes.ravel(), targets, strict=True):
            circle = target == "circle"
            for sampler in originals(target):
                of_figure = _boxes("6.7", "circle-error", sampler) if circle else _boxes(number, target, sampler)
                axis.plot(*of_figure, **{**_STYLE_OF[sampler], "marker": ""})
                _line(axis, table, target, sampler, "mean_error" if circle else "mmd_absolute")
            axis.set(title=target, xlabel="epsilon", ylabel="error of the mean" if circle else "MMD", ylim=(0, None))
        _legend(figure, axes, 3)
        save(figure, into / name)


def _draw_clipping(table: Table, path: Path) -> None:
    figure, axes = panels(1, 2, 3.4)
    for axis, name, title in ((axes[0, 0], "clip_log_ratio", "log-ratios"), (axes[0, 1], "clip_gradient", "gradients")):
        for sampler in ("hmc", "penalty", "penalty-guided", "minibatch", "minibatch-guided", "barker"):
            pairs = []
            for target in THESIS:
                numbers = ("6.8",) if name == "clip_gradient" else ("6.5", "6.6", "6.7")
                place = "circle-clipping" if target == "circle" and name == "clip_log_ratio" else target
                for number in numbers:
                    for epsilon, median in zip(*_boxes(number, place, sampler), strict=True):
                        ours = table.column(name, kind="originals", target=target, sampler=sampler, epsilon=epsilon)
                        if np.isfinite(ours).any():
                            pairs.append((median, np.nanmedian(ours)))
            if pairs:
                shown = {**_STYLE_OF[sampler], "linestyle": "", "fillstyle": "none", "markersize": 6}
                axis.plot(*np.maximum(np.array(pairs), 1e-3).T, **shown, label=sampler)
        axis.plot([1e-3, 1], [1e-3, 1], color="grey", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="published", ylabel="here", title=f"clipped {title}")
    _legend(figure, axes, 3)
    save(figure, path)


def _draw_paper(table: Table, path: Path) -> None:
    figure, axes = panels(2, 2, 5.4)
    for row, target in zip(axes, PAPER, strict=True):
        for axis, name, label in ((row[0], "mmd_absolute", "MMD"), (row[1], "mean_error", "error of the mean")):
            for sampler in originals(target):
                _line(axis, table, target, sampler, name)
            untuned = table.where(kind="untuned", target=target, sampler="surrogate")
            axis.plot(
                [float(r["epsilon"]) for r in untuned], [float(r[name] or "nan") for r in untuned], "*", markersize=9,
                color="grey", label="surrogate, untuned",
            )  # fmt: skip
            axis.set(title=target, xlabel="epsilon", ylabel=label, ylim=(0, None))
    _legend(figure, axes, 3)
    save(figure, path)


def _draw_untuned(table: Table, path: Path, epsilon: float) -> None:
    figure, axes = panels(1, 1, 4.2)
    names = list(UNTUNED)
    at: dict[str, Any] = {"kind": "untuned", "epsilon": epsilon}
    values = np.array(
        [
            medians(table.column("mmd_absolute", target=target, sampler=name, **at) for name in names)
            for target in TARGETS
        ]
    )
    axes[0, 0].imshow(values, cmap="Greys", vmin=0.0, vmax=1.2, aspect="auto")
    for i, j in np.ndindex(values.shape):
        text = "-" if np.isnan(values[i, j]) else f"{values[i, j]:.2f}"
        axes[0, 0].text(
            j, i, text, ha="center", va="center", fontsize=9, color="white" if values[i, j] > 0.6 else "black"
        )
    axes[0, 0].set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes[0, 0].set_yticks(range(len(TARGETS)), tuple(TARGETS))
    axes[0, 0].set_title(f"MMD with nothing but a budget of epsilon {epsilon:g}")
    save(figure, path)


def main(given: Sequence[str] | None = None) -> Path:
    """Run what is missing, and draw the figures."""
    parser = arguments(__doc__, given)
    parser.add_argument("--kind", choices=(*RUNS, "both"), default="both")
    parser.add_argument("--targets", nargs="+", choices=tuple(TARGETS), default=tuple(TARGETS))
    parser.add_argument("--samplers", nargs="+", help="these alone")
    parser.add_argument("--epsilons", nargs="+", type=float, help="default: those of the table in the documentation")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--figures", action="store_true", help="draw figures of what is stored, run nothing")
    options = parser.parse_args(given)
    into = folder(options)
    kinds = tuple(RUNS) if options.kind == "both" else (options.kind,)
    todo = cells(kinds, options.targets, options.epsilons, options.runs)
    if options.samplers:
        todo = [cell for cell in todo if cell["sampler"] in options.samplers]
    most = None
    if options.reduced:
        most = 60
        todo = [
            {"kind": "originals", "target": "banana-2", "sampler": "penalty", "epsilon": 1.0, "run": 0},
            {"kind": "untuned", "target": "banana-2", "sampler": "surrogate", "epsilon": 4.0, "run": 0},
        ]
    table = Table(into / "comparison.csv", KEYS, VALUES)
    for cell in [] if options.figures else todo:
        if table.has(**cell):
            continue
        began = time.process_time()
        try:
            found = RUNS[cell["kind"]](cell["target"], cell["sampler"], cell["epsilon"], cell["run"], most)
        except dp.BudgetExceeded:
            found = {"verdict": "refused"}
        table.add({**cell, **found, "seconds": round(time.process_time() - began, 1)})
        print(*cell.values(), found.get("mmd_absolute"), found.get("draws"), flush=True)
    _draw_thesis(table, into)
    _draw_clipping(table, into / "comparison_clipping.png")
    _draw_paper(table, into / "comparison_paper.png")
    _draw_untuned(table, into / "comparison_untuned.png", 4.0)
    return into


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    main(sys.argv[1:])
