"""A trajectory of DP HMC on the circle, and contours of the posteriors with two parameters.

    python -m experiments.contours

After Räisä (2021), *Differentially private Metropolis-Hastings algorithms*, Figures 4.1 and 5.1. The proposal's noisy
gradients are those of the published settings: clip bound 0.0015, noise multiplier 1.9 √n, 48 leapfrog steps of 0.07.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pymc_dp as dp
from experiments.common import FloatArray, Table, arguments, folder, panels, posterior_of, save
from experiments.comparison import start_points

STEP, LEAPFROGS = 0.07, 48
#: With two parameters, in the order of the figure.
SHOWN = ("banana-2", "banana-tempered-2", "banana-narrow", "normal-2", "circle", "banana-paper")


def trajectory(leapfrogs: int, iterations: int = 12) -> FloatArray:
    """Return the places at which a chain of DP HMC asked for gradients, shape (iterations, leapfrogs + 1, 2).

    They are in the result, as all noisy releases are: nothing else than what a user of the sampler has is plotted.
    """
    posterior = posterior_of("circle")
    root = posterior.n_units**0.5
    with posterior.model:
        step = dp.DPHMC(
            budget=dp.PrivacyBudget(1.0, 0.1 / posterior.n_units), prelude=None, clip_gradient=0.0015,
            clip_log_ratio=0.001, step_size=STEP, step_size_jitter=0.0, n_leapfrog=leapfrogs, reuse_gradient=False,
            noise_multipliers={"gradient": 1.9 * root, "log_ratio": 0.6 * root},
        )  # fmt: skip
        tree = pm.sample(
            draws=iterations, tune=0, chains=1, cores=1, step=step, progressbar=False, random_seed=1,
            compute_convergence_checks=False, initvals={"theta": np.array([0.0, 3.0])},
        )  # fmt: skip
    asked = tree["releases"]["gradient_position"].values
    return asked[: iterations * (leapfrogs + 1)].reshape(iterations, leapfrogs + 1, 2)


def farthest(places: FloatArray) -> int:
    """Return the proposal that ends farthest from where it begins."""
    return int(np.argmax(np.linalg.norm(places[:, -1] - places[:, 0], axis=1)))


def _log_density(target: str, draws: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the logarithm of the posterior's density, up to a constant, fitted to exact draws by its known form."""
    bend = {"banana-2": 20.0, "banana-tempered-2": 20.0, "banana-narrow": 350.0, "banana-paper": 20.0}.get(target, 0.0)
    if target == "circle":
        square = draws[:, 0] ** 2 + draws[:, 1] ** 2
        return -((x**2 + y**2 - square.mean()) ** 2) / (2.0 * square.var())
    straight = np.column_stack([draws[:, 0], draws[:, 1] + bend * draws[:, 0] ** 2])
    centred = np.stack([x, y + bend * x**2], axis=-1) - straight.mean(axis=0)
    return -0.5 * np.einsum("...i,ij,...j", centred, np.linalg.inv(np.cov(straight.T)), centred)


def _contours(
    axis: Any, target: str, draws: FloatArray, spread: float = 0.25, points: FloatArray | None = None
) -> None:
    both = draws if points is None else np.concatenate([draws, points])
    low, high = both.min(axis=0), both.max(axis=0)
    edge = spread * (high - low)
    x, y = np.meshgrid(*(np.linspace(low[k] - edge[k], high[k] + edge[k], 300) for k in range(2)))
    levels = -0.5 * np.array([25.0, 16.0, 9.0, 4.0, 1.0])  # 1 to 5 standard deviations
    axis.contour(x, y, _log_density(target, draws, x, y), levels=levels, colors="grey", linewidths=0.8, linestyles="-")
    axis.locator_params(nbins=4)


def main(given: Sequence[str] | None = None) -> Path:
    """Draw both figures; the trajectory is stored."""
    options = arguments(__doc__, given).parse_args(given)
    into = folder(options)
    table = Table(into / "trajectory.csv", ("proposal", "step"), ("x", "y", "farthest"))
    if not table.rows:
        places = trajectory(12 if options.reduced else LEAPFROGS, 3 if options.reduced else 12)
        for i, proposal in enumerate(places):
            for j, (x, y) in enumerate(proposal):
                table.add({"proposal": i, "step": j, "x": x, "y": y, "farthest": i == farthest(places)})
    path = np.array([[float(row["x"]), float(row["y"])] for row in table.where(farthest=1)])
    radius = np.linalg.norm(path, axis=1)
    print(f"radii {radius.min():.3f} to {radius.max():.3f}, ends {np.linalg.norm(path[-1] - path[0]):.2f} apart")
    reference = posterior_of("circle").reference(2000, np.random.default_rng(0))
    figure, axes = panels(2, 3, 4.0)
    ends = np.linspace(1, len(path) - 1, 6).astype(int)
    for axis, end in zip(axes.ravel(), ends, strict=True):
        _contours(axis, "circle", reference)
        axis.plot(*path[: end + 1].T, color="#0060ad", linewidth=1.6)
        axis.plot(*path[0], "o", color="#c44601", markersize=6)
        axis.set_title(f"{end} of {len(path) - 1} steps")
    save(figure, into / "trajectory.png")

    figure, axes = panels(2, 3, 4.2)
    for axis, target in zip(axes.ravel(), SHOWN, strict=True):
        posterior, generator = posterior_of(target), np.random.default_rng(1)
        named = start_points(posterior, target, 20, generator)
        starts = np.array([np.concatenate([np.ravel(v) for v in each.values()]) for each in named])
        _contours(axis, target, posterior.reference(2000, generator), 0.05, starts)
        axis.plot(*starts.T, "x", color="#c44601", markersize=5)
        axis.set_title(target)
    figure.supxlabel("θ₁", fontsize=10)
    figure.supylabel("θ₂", fontsize=10)
    save(figure, into / "contours.png")
    return into


if __name__ == "__main__":
    main(sys.argv[1:])
