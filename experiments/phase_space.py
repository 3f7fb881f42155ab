"""What batches do to Hamiltonian trajectories: positions in phase space and energies.

    python -m experiments.phase_space

After Betancourt (2015), *The fundamental incompatibility of scalable Hamiltonian Monte Carlo and naive data
subsampling*, and Lode (2019), *Sub-sampled and differentially private Hamiltonian Monte Carlo*, section 6.1, Figures
6.1 to 6.5: the mean of a normal with known variance, 500 rows of N(1, 4), prior N(0, 1). Exact trajectories
stay on a level set of the energy. *Between*: one batch for a trajectory of 500 leapfrog steps. *Within*: each batch
of a partition of the rows once in a pass, 500 passes without a test. No privacy is involved.

Each kick of a batch adds noise of variance η² V, V = (N / B) · (N / σ²) · (1 - B / N) for the first batch of a pass;
the friction whose own noise would be that is C = η V / 2. The thesis has the gradient twice as large (its potential
lacks the factor 1/2): that is a mass of 1/2 here, and changes the scale of the step alone.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.common import FloatArray, Table, arguments, folder, panels, save

N, SIGMA, LEAPFROGS, PASSES = 500, 2.0, 500, 500
DATA: FloatArray = np.random.default_rng(0).normal(1.0, SIGMA, size=N)
PRECISION = N / SIGMA**2 + 1.0
MEAN = DATA.sum() / SIGMA**2 / PRECISION
PUBLISHED_FRICTION = 8e-4


@dataclass(frozen=True)
class Cell:
    """One way to run a trajectory; friction in the units of the thesis, or matched to the noise of batches."""

    figure: str
    batch_size: int
    step_size: float
    friction: str = "none"

    @property
    def friction_used(self) -> float:
        """C, in units of 1 / time."""
        noise = N / self.batch_size * N / SIGMA**2 * (1.0 - self.batch_size / N)
        matched = 0.5 * self.step_size * noise
        return {"none": 0.0, "published": PUBLISHED_FRICTION, "matched": matched, "4 x matched": 4 * matched}[
            self.friction
        ]


CELLS = (
    *(Cell("6.1", size, 0.05) for size in (10, 50, 250, 500)),
    *(Cell("6.2", size, 0.1) for size in (10, 500)),
    *(Cell("6.3", size, 0.05) for size in (10, 50, 250, 500)),
    *(Cell("6.4", size, 0.005) for size in (10, 50, 250, 500)),
    *(Cell("6.5", size, 0.05, "published") for size in (10, 50, 250)),
    *(Cell("6.5", size, 0.05, "matched") for size in (10, 50, 250)),
    *(Cell("6.5", size, 0.05, "4 x matched") for size in (10, 50, 250)),
)


def trajectories(cell: Cell, count: int, passes: int) -> tuple[FloatArray, FloatArray]:
    """Return standardised positions and momenta, shape (points, count): exact ones are on the unit circle.

    Those after each leapfrog step of a trajectory on one batch, or after each pass.
    """
    generator = np.random.default_rng(7)
    angle = generator.uniform(0.0, 2.0 * np.pi, size=count)
    theta, momentum = MEAN + np.cos(angle) / np.sqrt(PRECISION), np.sin(angle)
    within = cell.figure in ("6.3", "6.4", "6.5")
    damping = 0.5 * cell.step_size * cell.friction_used
    positions, momenta = [], []
    fixed = np.array([generator.permutation(DATA)[: cell.batch_size].mean() for _ in range(count)])
    for _ in range(passes if within else LEAPFROGS):
        if within:
            shuffled = generator.permuted(np.broadcast_to(DATA, (count, N)), axis=1)
            means = shuffled.reshape(count, -1, cell.batch_size).mean(axis=2).T
        else:
            means = fixed[None]
        for mean in means:
            theta = theta + 0.5 * cell.step_size * momentum
            gradient = N * mean / SIGMA**2 - PRECISION * theta
            momentum = ((1.0 - damping) * momentum + cell.step_size * gradient) / (1.0 + damping)
            theta = theta + 0.5 * cell.step_size * momentum
        positions.append(np.sqrt(PRECISION) * (theta - MEAN))
        momenta.append(momentum)
    return np.array(positions), np.array(momenta)


def _draw(cells: Sequence[Cell], columns: int, path: Path, passes: int, titles: bool) -> None:
    rows = -(-len(cells) // columns)
    figure, axes = panels(rows, columns, 1.9 * rows + 0.3)
    circle = np.linspace(0.0, 2.0 * np.pi, 200)
    for axis, cell in zip(axes.ravel(), cells, strict=False):
        positions, momenta = trajectories(cell, 1, passes)
        axis.plot(positions[:, 0], momenta[:, 0], ".", color="black", markersize=2, alpha=0.6)
        axis.plot(np.cos(circle), np.sin(circle), color="#c44601", linewidth=1.8)
        axis.set_title(
            f"B = {cell.batch_size}\n" + (f"C {cell.friction}" if titles else f"η = {cell.step_size:g}"), fontsize=9
        )
        axis.locator_params(nbins=3)
    for axis in axes.ravel()[len(cells) :]:
        axis.axis("off")
    figure.supxlabel("position, posterior sd from the mean", fontsize=10)
    figure.supylabel("momentum", fontsize=10)
    save(figure, path)


def _draw_energies(table: Table, path: Path) -> None:
    figure, axes = panels(1, 1, 3.4)
    shown = {"6.3": ("η = 0.05", "o-"), "6.4": ("η = 0.005", "s--")}
    for figure_number, (label, form) in shown.items():
        rows = table.where(figure=figure_number)
        axes[0, 0].plot(
            [int(r["batch_size"]) for r in rows], [float(r["energy"]) for r in rows], form, color="black", label=label
        )
    for friction, form in (("published", "^-."), ("matched", "D:"), ("4 x matched", "v-")):
        rows = table.where(figure="6.5", friction=friction)
        at = [int(r["batch_size"]) for r in rows], [float(r["energy"]) for r in rows]
        axes[0, 0].plot(*at, form, color="#0060ad", label=f"η = 0.05, C {friction}", fillstyle="none", markersize=7)
    axes[0, 0].axhline(1.0, color="#c44601", linewidth=1.0)
    axes[0, 0].axhline(2.0, color="grey", linewidth=0.8, linestyle=":")
    axes[0, 0].set(xscale="log", yscale="log", xlabel="batch size", ylabel="energy after 500 passes / at the start")
    axes[0, 0].legend()
    save(figure, path)


def main(given: Sequence[str] | None = None) -> Path:
    """Compute energies and draw trajectories."""
    options = arguments(__doc__, given).parse_args(given)
    into = folder(options)
    count, passes = (10, 40) if options.reduced else (100, PASSES)
    table = Table(
        into / "phase_space.csv",
        ("figure", "batch_size", "step_size", "friction"),
        ("friction_used", "energy", "worst"),
    )
    for cell in CELLS:
        key = {name: getattr(cell, name) for name in ("figure", "batch_size", "step_size", "friction")}
        if table.has(**key):
            continue
        positions, momenta = trajectories(cell, count, passes)
        energies = positions[-1] ** 2 + momenta[-1] ** 2
        if cell.figure in ("6.1", "6.2"):  # the mean along the trajectory: it goes around another centre
            energies = (positions**2 + momenta**2).mean(axis=0)
        table.add({**key, "friction_used": cell.friction_used, "energy": energies.mean(), "worst": energies.max()})
        print(table.rows[-1], flush=True)
    _draw([cell for cell in CELLS if cell.figure in ("6.1", "6.2")], 3, into / "phase_space_between.png", passes, False)
    _draw([cell for cell in CELLS if cell.figure in ("6.3", "6.4")], 4, into / "phase_space_within.png", passes, False)
    _draw([cell for cell in CELLS if cell.figure == "6.5"], 3, into / "phase_space_friction.png", passes, True)
    _draw_energies(table, into / "phase_space_energies.png")
    return into


if __name__ == "__main__":
    main(sys.argv[1:])
