"""How many iterations a budget pays for, and what epsilon runs have, by one accountant and another.

    python -m experiments.accounting

After Räisä (2021), *Differentially private Metropolis-Hastings algorithms*, Figure 6.1, and Lode (2019),
*Sub-sampled and differentially private Hamiltonian Monte Carlo*, Table 6.3 and Figure 6.8. Exact: no random numbers.
"""

import math
import sys
from collections.abc import Sequence
from functools import cache
from math import comb
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from scipy.special import gammaln, logsumexp

from experiments.common import STYLES, FloatArray, Table, arguments, folder, panels, published, save
from pymc_dp.accounting import (
    GaussianReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
    draws_for,
    epsilon_of,
    largest_count,
    zcdp_rho,
)
from pymc_dp.accounting.renyi import without_replacement_bound

#: Of the flat banana of two dimensions: noise of log-ratios, gradients, batches; leapfrog steps; batch size.
UNITS, DELTA = 100_000, 1e-6
TAU_PENALTY, TAU_HMC, TAU_GRADIENT, LEAPFROGS, TAU_BATCH, BATCH = 0.1, 0.1, 0.4, 10, 0.7, 1000
#: Of the thesis on stochastic gradients: sampling probability, clip constant, error model, step multiplier, steps.
PROBABILITY, CLIP, ERROR_MODEL, STEP, STEPS = 0.01, 0.7, 1.0, 3.0, 10
#: The largest Rényi order of the moments accountant, which uses orders of about 10.
LARGEST_ORDER = 16
#: Further computations of a curve of the figure.
_FIGURE = {"minibatch_rdp_short": "minibatch_rdp", "minibatch_published_pair": "minibatch_adp"}


def iterations(epsilon: float) -> dict[str, int]:
    """Return how many iterations each sampler and accountant affords, as in Figure 6.1."""
    root = math.sqrt(UNITS)
    rho = zcdp_rho(epsilon, DELTA)
    cost_of_hmc = (1.0 / TAU_HMC**2 + (LEAPFROGS + 1) / TAU_GRADIENT**2) / (2.0 * UNITS)

    def of_penalty(count: int) -> list[GaussianReleases]:
        return [GaussianReleases("log_ratio", count, TAU_PENALTY * root)]

    def of_hmc(count: int) -> list[GaussianReleases]:
        gradients = GaussianReleases("gradient", (LEAPFROGS + 1) * count, TAU_GRADIENT * root)
        return [GaussianReleases("log_ratio", count, TAU_HMC * root), gradients]

    def of_batches(count: int) -> list[WithoutReplacementGaussianReleases]:
        return [WithoutReplacementGaussianReleases("log_ratio", count, math.sqrt(TAU_BATCH), BATCH, UNITS)]

    return {
        "penalty_zcdp": largest_count(TAU_PENALTY * root, rho),
        "penalty_adp": draws_for(of_penalty, epsilon, DELTA, "substitute"),
        "hmc_zcdp": math.floor(rho / cost_of_hmc),
        "hmc_adp": draws_for(of_hmc, epsilon, DELTA, "substitute"),
        "minibatch_rdp": minibatch_by_renyi(epsilon),
        "minibatch_rdp_short": minibatch_by_renyi(epsilon, dropped=1),
        "minibatch_adp": draws_for(of_batches, epsilon, DELTA, "substitute"),
        "minibatch_published_pair": minibatch_by_published_pair(epsilon),
    }


@cache
def _bounds_of_batches(order: int, dropped: int) -> float:
    """Return the divergence of a release by Räisä's Theorem 3.5, without the last terms of its sum."""
    own = [j / (2.0 * TAU_BATCH) for j in range(2, order + 1)]
    if not dropped:
        return without_replacement_bound(order, BATCH / UNITS, own)
    j = np.arange(3, order + 1 - dropped)
    terms = math.log(2.0) + gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    terms = terms + j * math.log(BATCH / UNITS) + (j - 1.0) * j / (2.0 * TAU_BATCH)
    second = math.exp(own[0])
    first = (BATCH / UNITS) ** 2 * comb(order, 2) * min(4.0 * (second - 1.0), 2.0 * second)
    return float(logsumexp(np.append(terms, math.log1p(first)))) / (order - 1)


def minibatch_by_renyi(epsilon: float, dropped: int = 0) -> int:
    """Return the iterations of Räisä's Theorem 3.5 with the first conversion to (epsilon, delta) (Mironov 2017).

    The published program leaves out the last term of the sum over j (`dropped` = 1), and so affords a little more.
    """
    counts = [(epsilon + math.log(DELTA) / (order - 1)) / _bounds_of_batches(order, dropped) for order in range(2, 200)]
    return max(0, math.floor(max(counts)))


@cache
def _losses_of_published_pair(width: float = 2e-4, widest: float = 24.0) -> FloatArray:
    """Return the transform of the privacy loss between (1-q) N(0, τ) + q N(±1, τ), on a grid."""
    q, variance, std = BATCH / UNITS, TAU_BATCH, math.sqrt(TAU_BATCH)
    x = np.linspace(-14.0 * std, 1.0 + 14.0 * std, 2_000_001)
    kept = np.stack([np.full_like(x, math.log1p(-q)), math.log(q) + (2.0 * x - 1.0) / (2.0 * variance)])
    lost = np.stack([kept[0], math.log(q) + (-2.0 * x - 1.0) / (2.0 * variance)])
    upper = logsumexp(kept, axis=0)
    loss = upper - logsumexp(lost, axis=0)
    density = np.exp(upper - x**2 / (2.0 * variance)) / math.sqrt(2.0 * math.pi * variance) * (x[1] - x[0])
    size = 2 * round(widest / width)
    place = np.clip(np.rint(loss / width).astype(int) + size // 2, 0, size - 1)
    masses = np.bincount(place, weights=density, minlength=size)
    return np.asarray(np.fft.rfft(np.fft.ifftshift(masses)))


def minibatch_by_published_pair(epsilon: float) -> int:
    """Return the iterations by the pair of distributions that the Fourier accountant composes for substitution.

    It takes a unit that is left out of a batch to contribute nothing, so that its releases are one unit of noise
    scale apart from both sides: N(1, τ) and N(-1, τ) with probability q, N(0, τ) otherwise (Koskela, Jälkö and Honkela
    2020). Two normals that far apart have the distance 2, where the thesis normalises sensitivities to 1.
    """
    transform = _losses_of_published_pair()
    size = 2 * (len(transform) - 1)
    width = 48.0 / size
    losses = width * np.arange(size // 2)

    def delta(count: int) -> float:
        masses = np.fft.irfft(transform**count, size)[: size // 2]  # losses from 0 on
        beyond = losses > epsilon
        return float(masses[beyond] @ -np.expm1(epsilon - losses[beyond]))

    low, high = 0, 1
    while delta(high) <= DELTA:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if delta(middle) <= DELTA else (low, middle)
    return low


def noise_multiplier(iteration: int) -> float:
    """Return the noise of a gradient in Lode's thesis, section 6.5."""
    return math.sqrt(2.0 * ERROR_MODEL / (STEP * iteration ** (-1 / 3) * CLIP**2))


@cache
def moments_of_one(iteration: int) -> tuple[float, ...]:
    """Return the cumulants (order - 1) · divergence of one gradient, orders 2, 3, ..., without replacement.

    Wang, Balle and Kasiviswanathan (2019), *Subsampled Rényi differential privacy and analytical moments accountant*:
    each term is the smaller of those of Theorem 9 and of its refinement by finite differences. `pymc_dp` has the
    former alone, since its accountant for such batches composes loss distributions.
    """
    with mpmath.workdps(40):
        variance = mpmath.mpf(noise_multiplier(iteration)) ** 2
        grown = [mpmath.exp(j * (j - 1) / (2 * variance)) for j in range(LARGEST_ORDER + 2)]
        differences = {
            size: sum((-1) ** i * comb(size, i) * grown[i] for i in range(size + 1))
            for size in range(2, LARGEST_ORDER + 2, 2)
        }
        terms = []
        for j in range(2, LARGEST_ORDER + 1):
            refined = 4 * mpmath.sqrt(differences[2 * (j // 2)] * differences[2 * ((j + 1) // 2)])
            terms.append(mpmath.mpf(PROBABILITY) ** j * min(refined, 2 * grown[j]))
        return tuple(
            float(mpmath.log1p(sum(comb(order, j) * terms[j - 2] for j in range(2, order + 1))))
            for order in range(2, LARGEST_ORDER + 1)
        )


def by_moments(rounds: int, delta: float) -> float:
    """Return epsilon by the moments accountant: Rényi bounds and their first conversion."""
    total = STEPS * np.sum([moments_of_one(t) for t in range(1, rounds + 1)], axis=0)
    orders = np.arange(2, LARGEST_ORDER + 1)
    return float(((total + math.log(1.0 / delta)) / (orders - 1)).min())


def by_loss_distribution(rounds: int, delta: float) -> float:
    """Return epsilon as `pymc_dp` accounts for it: Poisson batches under add-remove."""
    releases = [
        PoissonGaussianReleases("gradient", STEPS, noise_multiplier(t), PROBABILITY) for t in range(1, rounds + 1)
    ]
    return epsilon_of(releases, delta, "add-remove")


def _draw_iterations(table: Table, path: Path) -> None:
    figure, axes = panels(1, 3, 3.0, sharey=True)
    printed = published("iterations")
    titles = {"penalty": "DP penalty", "minibatch": "minibatch penalty", "hmc": "DP HMC"}
    for axis, (sampler, title) in zip(axes[0], titles.items(), strict=True):
        older = "rdp" if sampler == "minibatch" else "zcdp"
        for style, (accountant, label) in zip(STYLES, {older: older.upper(), "adp": "exact"}.items(), strict=False):
            rows = table.where(quantity=f"{sampler}_{accountant}")
            shown = {**style, "marker": ""}
            axis.plot([float(r["epsilon"]) for r in rows], [int(r["iterations"]) for r in rows], label=label, **shown)
            marks = {"linestyle": "", "marker": "x", "color": style["color"]}
            axis.plot(*zip(*printed[f"{sampler}_{accountant}"], strict=True), label=f"{label}, published", **marks)
        axis.set(title=title, xlabel="epsilon")
    axes[0, 0].set_ylabel("iterations")
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(
        handles, [label.replace("RDP", "zCDP or RDP") for label in labels], loc="outside lower center", ncols=2
    )
    save(figure, path)


def _draw_trade_off(table: Table, path: Path) -> None:
    figure, axes = panels(1, 2, 3.0)
    for axis, quantity, name in ((axes[0, 0], "by_delta", "delta"), (axes[0, 1], "by_iterations", "iterations")):
        rows = table.where(table=quantity)
        at = [float(row[name]) for row in rows]
        for style, accountant, label in ((STYLES[0], "pld", "loss distribution"), (STYLES[1], "moments", "moments")):
            axis.plot(at, [float(row[accountant]) for row in rows], label=label, **{**style, "marker": ""})
            axis.plot(
                at, [float(row[f"{accountant}_printed"]) for row in rows], "x", color=style["color"], markersize=7,
                label=f"{label}, printed",
            )  # fmt: skip
        axis.set(xlabel=name, ylabel="epsilon", ylim=(0, None))
    axes[0, 0].set_xscale("log")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    save(figure, path)


def main(given: Sequence[str] | None = None) -> Path:
    """Compute both tables and draw them."""
    options = arguments(__doc__, given).parse_args(given)
    into = folder(options)
    printed = published("iterations")
    table = Table(into / "accounting_iterations.csv", ("quantity", "epsilon"), ("iterations", "published"))
    for epsilon in (1, 6) if options.reduced else (1, 2, 3, 4, 5, 6):
        if table.has(quantity="minibatch_adp", epsilon=epsilon):
            continue
        for quantity, count in iterations(float(epsilon)).items():
            of_figure = dict(printed[_FIGURE.get(quantity, quantity)])
            row: dict[str, Any] = {"quantity": quantity, "epsilon": epsilon, "iterations": count}
            table.add({**row, "published": of_figure[epsilon]})
            print(quantity, epsilon, count, of_figure[epsilon], flush=True)
    _draw_iterations(table, into / "accounting_iterations.png")

    columns = ("pld", "pld_printed", "moments", "moments_printed")
    trade = Table(into / "accounting_trade_off.csv", ("table", "delta", "iterations"), columns)
    of_delta, of_iterations = published("lode")["table_6_3a"], published("lode")["table_6_3b"]
    cells = [
        ("by_delta", *row)
        for row in zip(of_delta["delta"], [2000] * 5, of_delta["pld"], of_delta["moments"], strict=True)
    ]
    cells += [
        ("by_iterations", 1e-5, *row)
        for row in zip(of_iterations["iterations"], of_iterations["pld"], of_iterations["moments"], strict=True)
    ]
    for name, delta, count, pld, moments in cells:
        if trade.has(table=name, delta=delta, iterations=count) or (options.reduced and count > 2000):
            continue
        rounds = count // STEPS
        row = {"table": name, "delta": delta, "iterations": count, "pld_printed": pld, "moments_printed": moments}
        trade.add({**row, "pld": by_loss_distribution(rounds, delta), "moments": by_moments(rounds, delta)})
        print(trade.rows[-1], flush=True)
    _draw_trade_off(trade, into / "accounting_trade_off.png")
    return into


if __name__ == "__main__":
    main(sys.argv[1:])
