"""How normal the error of a batch is, and what that costs tests on batches; the tail of the Barker correction.

    python -m experiments.minibatch_tests

After section 7.3, *Accuracy of CLT With Subsampling*, of the draft of Räisä (2021), *Differentially private
Metropolis-Hastings algorithms*, which is empty there. Tests on batches take the error of the scaled sum of a batch's
log-ratios to be normal, with the variance that the batch shows (Heikkilä, Jälkö, Dikmen and Honkela 2019; section 3.4
of the thesis). For log-ratios of three shapes, standardised to the same variance of that error:

*distance*: Kolmogorov's, between the standardised error and the normal distribution;
*imbalance*: the logarithm of the ratio of both acceptance probabilities of the penalty test, there and back, minus the
log-ratio of all rows: 0 for a test that is exact, whatever its noise;
*barker*: the error of the probability with which the Barker test accepts.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import expit, ndtr
from scipy.stats import kstest

from experiments.common import STYLES, FloatArray, Table, arguments, folder, panels, save
from pymc_dp.release.barker_correction import LARGEST_ERROR, acceptance

UNITS = 20_000
#: Of the sum over a batch; the Barker test asks for at most 1.
VARIANCE = 1.0
LOG_RATIOS = (0.0, 1.0, 3.0)


def shapes() -> dict[str, FloatArray]:
    """Return log-ratios of units, standardised: of a normal mean, a rare feature, and heavy tails."""
    generator = np.random.default_rng(0)
    rare = (generator.random(UNITS) < 0.02) * (generator.random(UNITS) - 0.3)
    found = {
        "normal rows": generator.normal(size=UNITS),
        "feature of 2 % of the rows": rare,
        "Student t, 3 degrees of freedom": generator.standard_t(3.0, size=UNITS),
    }
    return {name: (each - each.mean()) / each.std() for name, each in found.items()}


def batches(rows: FloatArray, size: int, count: int) -> tuple[FloatArray, FloatArray]:
    """Return the errors of scaled sums of batches, and the variances that the batches show, for `VARIANCE` as both's.

    Batches without replacement: permutations of the rows are cut into as many as they hold.
    """
    generator = np.random.default_rng(size)
    means, variances = [], []
    while sum(map(len, means)) < count:
        cut = generator.permutation(rows)[: len(rows) // size * size].reshape(-1, size)
        means.append(cut.mean(axis=1))
        variances.append(cut.var(axis=1))
    errors = np.sqrt(VARIANCE * size) * np.concatenate(means)
    return errors, VARIANCE * np.concatenate(variances)


def imbalance(errors: FloatArray, variances: FloatArray, log_ratio: float) -> float:
    """Return by how much the penalty test is off detailed balance, in units of log-likelihood."""
    there = np.minimum(1.0, np.exp(log_ratio + errors - variances / 2.0)).mean()
    back = np.minimum(1.0, np.exp(-log_ratio - errors - variances / 2.0)).mean()
    return float(np.log(there / back) - log_ratio)


def error_of_barker(errors: FloatArray, variances: FloatArray, log_ratio: float) -> float:
    """Return the error of the probability of acceptance; batches whose variance is above 1 count as if it was 1."""
    probabilities = []
    for error, variance in zip(errors, np.minimum(variances, 1.0), strict=True):
        unlikely, probability = acceptance(log_ratio + error, variance)
        probabilities.append(probability if unlikely else 1.0 - probability)
    return float(np.mean(probabilities) - expit(log_ratio))


def tail(log_ratio: float) -> tuple[float, float]:
    """Return the probability of accepting an exact log-ratio below 0, by the correction and as wanted."""
    _, probability = acceptance(log_ratio, 0.0)
    return probability, float(expit(log_ratio))


def _draw(table: Table, tails: Table, path: Path) -> None:
    figure, axes = panels(2, 2, 5.2)
    drawn = (
        ("distance", "Kolmogorov distance"),
        ("imbalance", "imbalance, penalty test"),
        ("barker", "error, Barker test"),
    )
    for axis, (name, label) in zip(axes.ravel(), drawn, strict=False):
        for style, shape in zip(STYLES, shapes(), strict=False):
            sizes = sorted({int(row["batch_size"]) for row in table.where(rows=shape)})
            worst = [np.abs(table.column(name, rows=shape, batch_size=size)).max() for size in sizes]
            axis.plot(sizes, worst, label=shape, **style)
        axis.set(xscale="log", yscale="log", xlabel="batch size", ylabel=label)
    axes[1, 1].plot([float(r["log_ratio"]) for r in tails.rows], [float(r["times"]) for r in tails.rows], **STYLES[0])
    axes[1, 1].axhline(1.0, color="grey", linewidth=0.8)
    axes[1, 1].set(yscale="log", xlabel="log-ratio", ylabel="accepted, times the logistic")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center")
    save(figure, path)


def main(given: Sequence[str] | None = None) -> Path:
    """Fill both tables and draw them."""
    options = arguments(__doc__, given).parse_args(given)
    into = folder(options)
    table = Table(
        into / "minibatch_tests.csv",
        ("rows", "batch_size", "log_ratio"),
        ("batches", "distance", "imbalance", "barker"),
    )
    sizes, count, of_barker = (
        ((100, 1000), 4000, 300) if options.reduced else ((30, 100, 300, 1000, 3000), 60_000, 6000)
    )
    for name, rows in shapes().items():
        for size in sizes:
            if table.has(rows=name, batch_size=size, log_ratio=LOG_RATIOS[-1]):
                continue
            errors, variances = batches(rows, size, count)
            standardised = errors / np.sqrt(VARIANCE * (1.0 - size / UNITS))
            for log_ratio in LOG_RATIOS:
                table.add({
                    "rows": name, "batch_size": size, "log_ratio": log_ratio, "batches": len(errors),
                    "distance": kstest(standardised, ndtr).statistic,
                    "imbalance": imbalance(errors, variances, log_ratio),
                    "barker": error_of_barker(errors[:of_barker], variances[:of_barker], log_ratio),
                })  # fmt: skip
            print(table.rows[-1], flush=True)
    tails = Table(into / "barker_tail.csv", ("log_ratio",), ("accepted", "wanted", "times"))
    for log_ratio in np.arange(-12.0, 0.5, 1.0):
        if not tails.has(log_ratio=log_ratio):
            accepted, wanted = tail(log_ratio)
            tails.add({"log_ratio": log_ratio, "accepted": accepted, "wanted": wanted, "times": accepted / wanted})
    print(f"at -10: {tail(-10.0)[0] / tail(-10.0)[1]:.2f} times the logistic; largest error {LARGEST_ERROR}")
    _draw(table, tails, into / "minibatch_tests.png")
    return into


if __name__ == "__main__":
    main(sys.argv[1:])
