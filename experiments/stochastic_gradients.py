"""Stochastic-gradient Hamiltonian Monte Carlo: the mean of a normal, and a softmax regression against epsilon.

    python -m experiments.stochastic_gradients

After Lode (2019), *Sub-sampled and differentially private Hamiltonian Monte Carlo*, Tables 6.1 and 6.2 and Figures 6.6,
6.7 and 6.9. That thesis does not scale the sum of a batch up, so that its posterior is one of a likelihood to the power
q, the sampling probability: ``tempering=q`` here. It has a radon survey, which no installed package ships; here 12,500
rows of two covariates and five classes are simulated, of which two are frequent, as in that survey, and the likeliest
class is right about as often. *Naive* chains have neither friction nor noise nor privacy, and are a few lines of NumPy.
"""

import logging
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import gaussian_kde, norm

import pymc_dp as dp
from experiments.common import STYLES, FloatArray, Table, arguments, folder, panels, published, save
from pymc_dp.accounting import PoissonGaussianReleases, epsilon_of

CLASSES, ROWS = 5, 12_500
#: Intercepts and slopes of each class.
TRUTH = np.array([[1.5, 0.8, -1.5, -2.0, -2.5], [1.6, -1.6, 0.5, -0.5, 0.0], [0.8, -0.8, -0.5, 0.5, 0.5]])
#: Steps and their decay, error model C, clip constant and number of iterations: of Table 6.2, and constant steps of the
#: size that decreasing ones end with, since the accountant composes every different noise multiplier.
SETTINGS = (
    {"beta": 1.7, "decay": 1 / 3, "friction": 0.15, "clip": 1.0, "draws": 1500, "printed": 9.789},
    *(
        {"beta": 0.2, "decay": 0.0, "friction": c, "clip": 1.0, "draws": 300, "printed": np.nan}
        for c in (0.02, 0.05, 0.15, 0.5, 2.0, 8.0)
    ),
)
NAIVE_DRAWS, LEAPFROGS, PROBABILITY = 1500, 10, 0.01
#: Of Figure 6.7: step multipliers, error models, iterations. Its axes are not printed.
BETAS, FRICTIONS, GRID_DRAWS = (0.3, 1.0, 1.7), (0.03, 0.05, 0.15, 0.35, 0.7, 1.0, 2.0), 750
#: Of Figures 6.6 and 6.9: error models whose draws are shown, and the coefficients. With 1,500 iterations.
SHOWN, COEFFICIENTS, SHOWN_BETA = (0.03, 0.05, 0.7), ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0)), 1.0
ROWS_OF_NORMAL, SIGMA = 500, 2.0


@cache
def survey() -> tuple[FloatArray, Any, FloatArray, Any]:
    """Return features and classes to learn from, and to test on: features have a deviation of 1/2, split 80 : 20."""
    generator = np.random.default_rng(1)
    features = np.column_stack([np.ones(ROWS), generator.normal(0.0, 0.5, size=(ROWS, 2))])
    chances = np.cumsum(softmax(features @ TRUTH, axis=1), axis=1)
    classes = (generator.random((ROWS, 1)) > chances[:, :-1]).sum(axis=1)
    kept = ROWS * 4 // 5
    return features[:kept], classes[:kept], features[kept:], classes[kept:]


def accuracy(theta: FloatArray) -> float:
    """Return the share of test rows whose class is the likeliest."""
    _, _, features, classes = survey()
    return float((np.argmax(features @ theta, axis=1) == classes).mean())


def score_of_softmax(theta: FloatArray, features: FloatArray, classes: Any) -> FloatArray:
    """Return the gradient of the log-likelihood."""
    return features.T @ (np.eye(CLASSES)[classes] - softmax(features @ theta, axis=1))


@cache
def mode_and_widths(power: float) -> tuple[FloatArray, FloatArray]:
    """Return the posterior's mode without privacy, and its standard deviations there, for a power of the likelihood."""
    features, classes, _, _ = survey()

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        theta = flat.reshape(3, CLASSES)
        likelihood = log_softmax(features @ theta, axis=1)[np.arange(len(classes)), classes].sum()
        gradient = power * score_of_softmax(theta, features, classes) - theta / 100.0
        return -power * likelihood + (theta**2).sum() / 200.0, -gradient.ravel()

    theta = minimize(objective, np.zeros(3 * CLASSES), jac=True, method="L-BFGS-B", options={"maxiter": 5000}).x
    p = softmax(features @ theta.reshape(3, CLASSES), axis=1)
    spread = np.einsum("ni,nj,nk->nijk", features, features, p).sum(axis=0)
    both = np.einsum("ni,nj,nk,nl->ikjl", features, features, p, p)
    information = (
        power * (np.einsum("ijk,kl->ikjl", spread, np.eye(CLASSES)) - both).reshape(15, 15) + np.eye(15) / 100.0
    )
    return theta.reshape(3, CLASSES), np.sqrt(np.diag(np.linalg.inv(information)))


def softmax_model() -> pm.Model:
    """Return the regression, with a row for each answer."""
    features, classes, _, _ = survey()
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 10.0, shape=(3, CLASSES))
        pm.Categorical("y", logit_p=pm.math.dot(pm.Data("x", features), theta), observed=classes)
    return model


def private_draws(
    model: pm.Model, beta: float, decay: float, friction: float, clip: float, draws: int
) -> tuple[float, FloatArray]:
    """Return what DP SGHMC with given settings costs, and its draws; the first three quarters are dropped."""
    steps = [beta] if decay == 0.0 else [beta * t**-decay for t in range(1, draws + 1)]
    releases = [
        PoissonGaussianReleases(
            "gradient", LEAPFROGS * draws // len(steps), (2.0 * friction / step) ** 0.5 / clip, PROBABILITY
        )
        for step in steps
    ]
    epsilon = epsilon_of(releases, 1e-5, "add-remove")  # the settings decide what a run costs
    with model:
        step = dp.DPSGHMC(
            budget=dp.PrivacyBudget(1.001 * epsilon, 1e-5, relation="add-remove"), prelude=None, clip_gradient=clip,
            step_size=(beta, decay) if decay else beta, friction=friction, n_leapfrog=LEAPFROGS,
            sampling_probability=PROBABILITY, tempering=PROBABILITY, clip_diagnostics=None, keep_releases=False,
        )  # fmt: skip
        tree = pm.sample(
            draws=draws, tune=0, chains=1, cores=1, step=step, progressbar=False, compute_convergence_checks=False,
            initvals={"theta": np.zeros((3, CLASSES))},
        )  # fmt: skip
    return float(tree["privacy"].attrs["epsilon"]), tree["posterior"]["theta"].values[0, 3 * draws // 4 :]


def accuracy_and_widths(epsilon: float, kept: FloatArray) -> dict[str, float]:
    """Return cost, accuracy and widths of draws."""
    widths = kept.reshape(len(kept), -1).std(axis=0)
    return {
        "epsilon": epsilon,
        "accuracy": accuracy(kept.mean(axis=0)),
        "off_width": float(np.abs(widths - mode_and_widths(1.0)[1]).mean()),
        "off_width_of_power": float(np.abs(widths - mode_and_widths(PROBABILITY)[1]).mean()),
    }


def naive_run(beta: float, decay: float, draws: int, seed: int) -> float:
    """Return the accuracy of chains on plain batches, without friction: nothing is private."""
    features, classes, _, _ = survey()
    generator = np.random.default_rng(seed)
    theta, kept = np.zeros((3, CLASSES)), []
    for t in range(1, draws + 1):
        momentum, step = generator.normal(size=theta.shape), beta * t**-decay
        for _ in range(LEAPFROGS):
            theta = theta + step * momentum
            batch = np.flatnonzero(generator.random(len(classes)) < PROBABILITY)
            slope = score_of_softmax(theta, features[batch], classes[batch]) - PROBABILITY * theta / 100.0
            momentum = momentum + step * slope
        kept.append(theta)
    return accuracy(np.mean(kept[3 * draws // 4 :], axis=0))


def normal_run(probability: float, beta: float, decay: float, friction: float, clip: float, seed: int) -> Any:
    """Return mean and standard deviation of chains for the mean of 500 rows of N(1, 4); without privacy.

    The published algorithm with the sign of friction corrected: one pass of batches in an iteration, noise of variance
    2 C η in a kick. In this example the gradient is that of section 6.1, scaled up and twice as large as that of the
    log-posterior; it, not each row's, is clipped. Infinite where the chain overflows.
    """
    generator = np.random.default_rng(seed)
    data = np.random.default_rng(0).normal(1.0, SIGMA, size=ROWS_OF_NORMAL)
    size = round(probability * ROWS_OF_NORMAL)
    precision = ROWS_OF_NORMAL / SIGMA**2 + 1.0
    theta, kept = 0.0, []
    for t in range(1, 501):
        step, momentum = beta * t**-decay, generator.normal()
        for mean in generator.permutation(data).reshape(-1, size).mean(axis=1):
            theta += step * momentum
            slope = 2.0 * (ROWS_OF_NORMAL * mean / SIGMA**2 - precision * theta)
            slope *= min(1.0, clip / abs(slope))
            momentum += step * (slope - friction * momentum) + np.sqrt(2.0 * friction * step) * generator.normal()
            if abs(theta) > 1e12:
                return np.inf, np.inf
        kept.append(theta)
    return float(np.mean(kept[250:])), float(np.std(kept[250:]))


def exact_normal_run(seed: int) -> tuple[float, float]:
    """Return the same of Hamiltonian Monte Carlo with a test: step 0.1, 15 leapfrog steps."""
    generator = np.random.default_rng(seed)
    data = np.random.default_rng(0).normal(1.0, SIGMA, size=ROWS_OF_NORMAL)
    precision = ROWS_OF_NORMAL / SIGMA**2 + 1.0
    centre = data.sum() / SIGMA**2 / precision
    theta, kept = 0.0, []
    for _ in range(500):
        momentum = generator.normal()
        place, speed = theta, momentum
        for _ in range(15):
            speed -= 0.05 * precision * (place - centre)
            place += 0.1 * speed
            speed -= 0.05 * precision * (place - centre)
        gained = 0.5 * precision * ((place - centre) ** 2 - (theta - centre) ** 2) + 0.5 * (speed**2 - momentum**2)
        theta = place if np.log(generator.random()) < -gained else theta
        kept.append(theta)
    return float(np.mean(kept[250:])), float(np.std(kept[250:]))


#: Name in Table 6.1 → sampling probability, step multiplier, decay, friction, clip constant.
NORMAL: dict[str, tuple[float, float, float, float, float]] = {
    "Naive SGHMC": (0.01, 1.0, 1 / 3, 0.0, np.inf),
    "SGHMC q=0.01": (0.01, 1.0, 1 / 3, 0.005, 0.7),
    "Naive q=0.1, beta=0.002": (0.1, 0.002, 1 / 3, 0.0, np.inf),
    "SGHMC q=0.1": (0.1, 1.0, 1 / 3, 0.005, 0.7),
}


def _normal_table(into: Path, runs: int) -> None:
    table = Table(into / "normal_mean.csv", ("sampler", "run"), ("mean", "std", "mean_printed", "std_printed"))
    for name, mean_printed, std_printed in published("lode")["table_6_1"]["rows"]:
        for run in range(runs):
            if table.has(sampler=name, run=run):
                continue
            mean, std = exact_normal_run(run) if name == "Standard HMC" else normal_run(*NORMAL[name], run)
            printed = {"mean_printed": mean_printed, "std_printed": std_printed}
            table.add({"sampler": name, "run": run, "mean": mean, "std": std, **printed})
        print(
            name,
            np.median(table.column("mean", sampler=name)),
            np.median(table.column("std", sampler=name)),
            flush=True,
        )


def _draw(table: Table, path: Path) -> None:
    figure, axes = panels(1, 2, 3.0)
    private = [row for row in table.rows if row["method"] == "DP SGHMC"]
    at = [float(row["epsilon"]) for row in private]
    axes[0, 0].plot(at, [float(row["accuracy"]) for row in private], **{**STYLES[1], "linestyle": ""}, label="DP SGHMC")
    for method, style in (("softmax regression", "-"), ("commonest class", ":")):
        axes[0, 0].axhline(
            float(table.where(method=method)[0]["accuracy"]), color="black", linestyle=style, label=method
        )
    axes[0, 0].set(xscale="log", xlabel="epsilon (delta = 1e-5, add-remove)", ylabel="accuracy")
    axes[0, 0].legend()
    for name, label, style in (
        ("off_width", "from the posterior", STYLES[1]),
        ("off_width_of_power", f"from that of power {PROBABILITY}", STYLES[2]),
    ):
        axes[0, 1].plot(at, [float(row[name]) for row in private], **{**style, "linestyle": ""}, label=label)
    axes[0, 1].set(xscale="log", xlabel="epsilon", ylabel="mean difference of widths", ylim=(0, None))
    axes[0, 1].legend()
    save(figure, path)


def _grid(model: pm.Model, into: Path, runs: int, *, reduced: bool) -> None:
    """Fill and draw accuracy, error of widths and epsilon against the error model: Figure 6.7."""
    values = ("epsilon", "accuracy", "off_width", "off_width_of_power")
    table = Table(into / "softmax_grid.csv", ("beta", "friction", "run"), values)
    betas, frictions, draws = (BETAS[1:2], FRICTIONS[2:3], 20) if reduced else (BETAS, FRICTIONS, GRID_DRAWS)
    for run in range(runs):
        for beta in betas:
            for friction in frictions:
                cell = {"beta": beta, "friction": friction, "run": run}
                if not table.has(**cell):
                    table.add({**cell, **accuracy_and_widths(*private_draws(model, beta, 1 / 3, friction, 1.0, draws))})
                    print(table.rows[-1], flush=True)
    figure, axes = panels(1, 3, 2.8)
    names = {"accuracy": "accuracy", "off_width": "mean difference of widths", "epsilon": "epsilon (delta = 1e-5)"}
    for axis, (name, label) in zip(axes[0], names.items(), strict=True):
        for beta, style in zip(betas, STYLES, strict=False):
            found = [np.median(table.column(name, beta=beta, friction=friction)) for friction in frictions]
            axis.plot(frictions, found, **style, label=f"β = {beta:g}")
        axis.set(xscale="log", xlabel="error model C", ylabel=label)
    axes[0, 0].axhline(accuracy(mode_and_widths(1.0)[0]), color="black", linewidth=0.8, linestyle=":")
    axes[0, 0].set(ylim=(0.5, 0.8))
    axes[0, 1].set(ylim=(0, None))
    axes[0, 2].set(yscale="log")
    figure.legend(*axes[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, into / "softmax_grid.png")


def _posteriors(model: pm.Model, into: Path, *, reduced: bool) -> None:
    """Fill and draw densities of five coefficients: Figures 6.6 and 6.9."""
    table = Table(into / "softmax_posteriors.csv", ("friction", "coefficient", "draw"), ("theta", "epsilon"))
    for friction in SHOWN[:1] if reduced else SHOWN:
        if not table.has(friction=friction, coefficient=0, draw=0):
            epsilon, kept = private_draws(model, SHOWN_BETA, 1 / 3, friction, 1.0, 20 if reduced else NAIVE_DRAWS)
            for k, place in enumerate(COEFFICIENTS):
                for i, value in enumerate(kept[:: max(1, len(kept) // 100), place[0], place[1]]):
                    row = {"friction": friction, "coefficient": k, "draw": i}
                    table.add({**row, "theta": value, "epsilon": epsilon})
    widths = mode_and_widths(1.0)[1]
    frictions = list(dict.fromkeys(float(row["friction"]) for row in table.rows))
    figure, axes = panels(2, 2, 4.4, sharex=True)
    at = np.linspace(-12.0, 12.0, 400)
    for axis, friction in zip(axes.ravel(), [None, *frictions], strict=False):
        for k, (place, style) in enumerate(zip(COEFFICIENTS, STYLES, strict=False)):
            line = {name: style[name] for name in ("color", "linestyle")}
            if friction is None:
                density = norm.pdf(at, scale=widths.reshape(3, CLASSES)[place])
            else:
                sample = table.column("theta", friction=friction, coefficient=k)
                density = gaussian_kde(sample - sample.mean())(at)
            axis.plot(at, density, **line)
        title = "without privacy"
        if friction is not None:
            title = f"C = {friction:g}, ε = {table.column('epsilon', friction=friction)[0]:.3g}"
        axis.set(title=title, yticks=[], xlim=(-12, 12), ylim=(0, None))
    figure.supxlabel("coefficient, from its mean", fontsize=10)
    save(figure, into / "softmax_posteriors.png")


def main(given: Sequence[str] | None = None) -> Path:
    """Fill the tables and draw them."""
    parser = arguments(__doc__, given)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args(given)
    into = folder(options)
    runs, naive_draws = (1, 100) if options.reduced else (options.runs, NAIVE_DRAWS)
    _normal_table(into, 2 if options.reduced else 5)

    values = ("epsilon", "epsilon_printed", "accuracy", "off_width", "off_width_of_power")
    table = Table(into / "softmax.csv", ("method", "beta", "decay", "friction", "clip", "draws", "run"), values)
    plain: dict[str, Any] = {"beta": "", "decay": "", "friction": "", "clip": "", "draws": "", "run": 0}
    _, _, _, classes = survey()
    for method, found in (
        ("softmax regression", accuracy(mode_and_widths(1.0)[0])),
        ("softmax regression, power q", accuracy(mode_and_widths(PROBABILITY)[0])),
        ("commonest class", float((classes == np.bincount(survey()[1]).argmax()).mean())),
    ):
        if not table.has(method=method, **plain):
            table.add({"method": method, **plain, "accuracy": found})
    for method, beta, decay in (("naive, varying step", 1.7, 1 / 3), ("naive, constant step", 1.7, 0.0)):
        for run in range(runs):
            cell = {
                "method": method,
                "beta": beta,
                "decay": decay,
                "friction": "",
                "clip": "",
                "draws": naive_draws,
                "run": run,
            }
            if not table.has(**cell):
                table.add({**cell, "accuracy": naive_run(beta, decay, naive_draws, run)})
    model = softmax_model()
    for settings in ({**SETTINGS[0], "draws": 20},) if options.reduced else SETTINGS:
        for run in range(runs):
            chosen = {name: settings[name] for name in ("beta", "decay", "friction", "clip", "draws")}
            cell = {"method": "DP SGHMC", **chosen, "run": run}
            if not table.has(**cell):
                found = accuracy_and_widths(*private_draws(model, **chosen))
                table.add({**cell, "epsilon_printed": settings["printed"], **found})
                print(table.rows[-1], flush=True)
    _draw(table, into / "softmax.png")
    _grid(model, into, runs, reduced=options.reduced)
    _posteriors(model, into, reduced=options.reduced)
    return into


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    main(sys.argv[1:])
