"""Draws of four samplers on the banana of Räisä, Koskela and Honkela (2021), beside the posterior.

    python -m experiments.marginals

After their Figure 2: the published settings at epsilon 15, four chains. Of each sampler several runs are made, and the
one with the median discrepancy is drawn. The last column is a sampler of this package with nothing but the budget.
"""

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pymc as pm
from scipy.stats import gaussian_kde

import pymc_dp as dp
from experiments.common import FloatArray, Table, arguments, distances, folder, panels, posterior_of, save, thinned
from experiments.comparison import Run, draws_of, originals_run

TARGET, EPSILON, KEPT = "banana-paper", 15.0, 500
SAMPLERS = ("hmc", "penalty", "sgld", "sgnht", "surrogate")


def draws(sampler: str, run: int, most: int | None) -> FloatArray:
    """Return a run's draws, shape (draws, 2)."""
    if sampler != "surrogate":
        found = originals_run(TARGET, sampler, EPSILON, run, most)
        if not isinstance(found, Run):
            raise RuntimeError(f"{sampler} has {found} draws.")
        return found.kept.reshape(-1, 2)
    posterior = posterior_of(TARGET)
    with posterior.model:
        tree = pm.sample(
            draws=most or 500, chains=4, cores=1, budget=dp.PrivacyBudget(EPSILON, 0.1 / posterior.n_units),
            progressbar=False, compute_convergence_checks=False, random_seed=run,
        )  # fmt: skip
    return draws_of(tree, posterior.model).reshape(-1, 2)


def fill(table: Table, sampler: str, reference: FloatArray, runs: int, most: int | None) -> None:
    """Make the runs of a sampler, and store the one of median discrepancy."""
    made = [thinned(draws(sampler, run, most)) for run in range(runs)]
    found = [distances(each, reference)["mmd_absolute"] for each in made]
    middle = int(np.argsort(found)[(runs - 1) // 2])
    for i, (x, y) in enumerate(thinned(made[middle], KEPT)):
        table.add({"sampler": sampler, "draw": i, "x": x, "y": y, "mmd_absolute": found[middle]})
    print(sampler, *(f"{each:.3f}" for each in sorted(found)), flush=True)


def main(given: Sequence[str] | None = None) -> Path:
    """Make what is missing, and draw marginal densities and the draws themselves."""
    parser = arguments(__doc__, given)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(given)
    into = folder(options)
    reference = posterior_of(TARGET).reference(2000, np.random.default_rng(0))
    table = Table(into / "marginals.csv", ("sampler", "draw"), ("x", "y", "mmd_absolute"))
    for sampler in SAMPLERS[1:2] if options.reduced else SAMPLERS:
        if not table.has(sampler=sampler, draw=0):
            fill(table, sampler, reference, 1 if options.reduced else options.runs, 60 if options.reduced else None)

    low, high = reference.min(axis=0), reference.max(axis=0)
    low, high = low - 0.15 * (high - low), high + 0.15 * (high - low)
    shown = [sampler for sampler in SAMPLERS if table.has(sampler=sampler, draw=0)]
    figure, axes = panels(3, len(shown), 6.0)
    for column, sampler in zip(axes.T, shown, strict=True):
        rows = table.where(sampler=sampler)
        sample = np.array([[float(row["x"]), float(row["y"])] for row in rows])
        for axis, k in ((column[0], 0), (column[1], 1)):
            at = np.linspace(low[k], high[k], 200)
            axis.fill_between(at, gaussian_kde(reference[:, k])(at), color="0.85", label="posterior")
            axis.plot(at, gaussian_kde(sample[:, k])(at), color="#0060ad")
            axis.set(xlabel=("θ₁", "θ₂")[k], yticks=[])
            axis.locator_params(axis="x", nbins=3)
        column[2].plot(*reference[:KEPT].T, ".", color="0.75", markersize=2)
        column[2].plot(*sample.T, ".", color="#0060ad", markersize=2)
        column[2].set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="θ₁")
        column[2].locator_params(nbins=3)
        column[0].set_title(f"{sampler}\nMMD {float(rows[0]['mmd_absolute']):.2f}")
    axes[2, 0].set_ylabel("θ₂")
    save(figure, into / "marginals.png")
    return into


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    main(sys.argv[1:])
