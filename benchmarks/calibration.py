"""Simulation-based calibration of whole private runs: do intervals cover parameters that the prior has drawn?

    python benchmarks/calibration.py                                        every model, 100 tables, epsilon 4 and 1
    python benchmarks/calibration.py groups ordinal --tables 300 --epsilon 1
    python benchmarks/calibration.py linear --tables 40 --draws             with PyMC's NUTS draws, not by the mode

For each table covariates are drawn, parameters from the prior, and responses from the model; then one private run with
its defaults. A rank is the part of the private posterior below the true value: uniform for every parameter if draws are
from the posterior given what was released. Without ``--draws`` the posterior is a normal approximation on the
unconstrained scale, which takes a second a table; of a hierarchy's own parameters it is a rough figure.

Printed: the share of true values inside 90 % intervals (the mean over parameters, and of the parameters of one name the
least), the least p-value of Kolmogorov and Smirnov's test of uniform ranks by name (times the number of names), and how
wide intervals are beside what the prior left open. The true posterior given the exact table is not needed.
"""

import argparse
import itertools
from collections.abc import Callable

import numpy as np
import pymc as pm
from against_reference import Problem, quiet, say, unconstrained
from pymc.distributions import transforms
from scipy import stats
from searches import searches

import pymc_dp as dp
from pymc_dp.model.parameters import ParameterVector

ROWS, COLUMNS, GROUPS, PERSONS = 5_000, 5, 20, 1_500

#: Responses: what the model has observed; None draws them.
Write = Callable[[np.random.Generator, np.ndarray | None], None]


def covariates(generator):
    """Return normal, binary and skewed columns behind a column of ones, each about as large as 1."""
    normal = generator.normal(size=(ROWS, COLUMNS - 3))
    rare, skewed = generator.random(ROWS) < 0.1, generator.exponential(0.7, ROWS)
    return np.column_stack([np.ones(ROWS), normal, rare, skewed])


def predictor(generator):
    return pm.Data("x", covariates(generator)) @ pm.Normal("beta", 0, 0.7, shape=COLUMNS)


def logistic(generator, y):
    pm.Bernoulli("y", logit_p=predictor(generator), observed=y)


def linear(generator, y):
    pm.Normal("y", 3.0 * predictor(generator), pm.HalfNormal("sigma", 2), observed=y)


def student_t(generator, y):
    scale = {"sigma": pm.HalfNormal("sigma", 2), "nu": pm.Gamma("nu", 4, 0.5)}
    pm.StudentT("y", mu=predictor(generator), **scale, observed=y)


def laplace(generator, y):
    pm.Laplace("y", 3.0 * predictor(generator), pm.HalfNormal("scale", 2), observed=y)


def upper_quantile(generator, y):
    scale = pm.HalfNormal("scale", 2)
    pm.AsymmetricLaplace("y", mu=3.0 * predictor(generator), b=1.0 / scale, q=0.8, observed=y)


def poisson(generator, y):
    pm.Poisson("y", pm.math.exp(0.5 * predictor(generator)), observed=y)


def negative_binomial(generator, y):
    mean = pm.math.exp(0.5 * predictor(generator))
    pm.NegativeBinomial("y", mu=mean, alpha=pm.Gamma("alpha", 4, 3), observed=y)


def ordinal(generator, y):
    start = np.arange(3) - 1.0
    cutpoints = pm.Normal("cutpoints", start, 1, shape=3, transform=transforms.ordered, initval=start)
    x = pm.Data("x", covariates(generator)[:, 1:])
    eta = x @ pm.Normal("beta", 0, 0.7, shape=COLUMNS - 1)
    pm.OrderedLogistic("y", eta=eta, cutpoints=cutpoints, observed=y, compute_p=False)


def softmax(generator, y):
    eta = pm.Data("x", covariates(generator)) @ pm.Normal("beta", 0, 0.7, shape=(COLUMNS, 2))
    logits = pm.math.concatenate([np.zeros((ROWS, 1)), eta], axis=1)
    pm.Categorical("y", logit_p=logits, observed=y)


def weibull(generator, y):
    pm.Weibull("y", pm.Gamma("shape", 8, 6), pm.math.exp(0.5 * predictor(generator)), observed=y)


def exponential(generator, y):
    pm.Exponential("y", pm.math.exp(0.5 * predictor(generator)), observed=y)


def gamma(generator, y):
    shape = pm.Gamma("shape", 4, 1)
    pm.Gamma("y", alpha=shape, beta=shape / pm.math.exp(0.5 * predictor(generator)), observed=y)


def beta(generator, y):
    share, certain = pm.math.invlogit(0.5 * predictor(generator)), pm.Gamma("certain", 8, 1)
    pm.Beta("y", alpha=share * certain, beta=(1.0 - share) * certain, observed=y)


def effects(generator):
    mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 0.7)
    alpha = pm.Normal("alpha", mu, tau, shape=GROUPS)
    sizes = generator.dirichlet(np.full(GROUPS, 2.0))
    return alpha[pm.Data("group", generator.choice(GROUPS, ROWS, p=sizes))]


def slopes(generator):
    return pm.Data("x", covariates(generator)[:, 1:3]) @ pm.Normal("beta", 0, 0.7, shape=2)


def groups(generator, y):
    pm.Bernoulli("y", logit_p=effects(generator) + slopes(generator), observed=y)


def groups_linear(generator, y):
    mean = 3.0 * (effects(generator) + slopes(generator))
    pm.Normal("y", mean, pm.HalfNormal("sigma", 2), observed=y)


def groups_poisson(generator, y):
    pm.Poisson("y", pm.math.exp(0.5 * effects(generator) + slopes(generator)), observed=y)


def persons(generator, y):
    pm.Data("person", generator.integers(0, PERSONS, ROWS))
    logistic(generator, y)


MODELS: dict[str, Write] = {
    write.__name__.replace("_", "-"): write
    for write in (
        *(logistic, linear, student_t, laplace, upper_quantile, poisson, negative_binomial, ordinal, softmax),
        *(weibull, exponential, gamma, beta, groups, groups_linear, groups_poisson, persons),
    )
}


def simulated(write: Write, seed: int) -> tuple[Problem, np.ndarray]:
    """Return a model on simulated responses, and the parameters that they were drawn with, unconstrained."""
    with pm.Model() as model:
        write(np.random.default_rng([seed, 1]), None)
    variables = [rv for rv in model.free_RVs if rv.name != "y"]
    for attempt in itertools.count():
        *values, response = pm.draw([*variables, model["y"]], random_seed=seed + attempt * 2**20)
        pieces = []
        for rv, entries in zip(variables, values, strict=True):
            transform = model.rvs_to_transforms[rv]
            moved = entries if transform is None else transform.forward(entries, *rv.owner.inputs).eval()
            pieces.append(np.ravel(moved).astype(float))
        truth = np.concatenate(pieces)
        if np.all(np.isfinite(truth)):  # PyMC draws out of order what the prior has in order
            break
    with pm.Model() as model:
        write(np.random.default_rng([seed, 1]), response)
    settings = {"unit_index": "person"} if "person" in model.named_vars else {}
    return Problem(model, settings), truth


def rank_by_mode(problem: Problem, truth: np.ndarray, epsilon: float, delta: float, seed: int):
    """Return ranks and widths by the normal approximation that one private search ends with; None if it fails."""
    (found,) = searches(problem, epsilon, delta, 1, seed)
    if found is None:
        return None
    mode, covariance = found
    std = np.sqrt(np.diag(covariance))
    return stats.norm.cdf((truth - mode) / std), std


def rank_by_draws(problem: Problem, truth: np.ndarray, epsilon: float, delta: float, seed: int):
    """Return ranks and widths by the draws of a whole private run."""
    with problem.model:
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(epsilon, delta), insecure_seed=seed, **problem.settings)
        quiet_run = {"progressbar": False, "compute_convergence_checks": False, "random_seed": seed}
        tree = dp.sample(draws=250, chains=2, cores=1, step=step, **quiet_run)
    draws = unconstrained(problem.model, tree)
    return (draws < truth).mean(axis=0), draws.std(axis=0)


def summary(names: list[str], ranks: np.ndarray, widths: np.ndarray, failed: int, prior: np.ndarray) -> str:
    """Return one line on all tables of a model at one epsilon."""
    inside = np.abs(ranks - 0.5) < 0.45
    by_name = {name: [place for place, each in enumerate(names) if each == name] for name in dict.fromkeys(names)}
    coverage = {name: float(inside[:, places].mean()) for name, places in by_name.items()}
    # Ranks of one table depend on each other: one parameter of each name is tested.
    p_values = {name: stats.kstest(ranks[:, places[0]], "uniform").pvalue for name, places in by_name.items()}
    least, worst = min(coverage, key=coverage.__getitem__), min(p_values, key=p_values.__getitem__)
    far = np.mean(np.any((ranks < 1e-4) | (ranks > 1.0 - 1e-4), axis=1))
    return (
        f"coverage {inside.mean():.3f} (least {coverage[least]:.2f}: {least})  "
        f"least p {p_values[worst] * len(by_name):8.2g} ({worst})  tables with a true value beyond .9999: {far:.2f}  "
        f"width {np.median(widths / prior):.3f} of the prior" + (f"  {failed} FAILED" if failed else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="model", help=f"of: {', '.join(MODELS)} (default: all)")
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[4.0, 1.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--draws", action="store_true", help="sample each private posterior")
    options = parser.parse_intermixed_args()
    if unknown := set(options.names) - set(MODELS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    quiet()
    rank = rank_by_draws if options.draws else rank_by_mode
    for name in options.names or MODELS:
        tables = [simulated(MODELS[name], seed) for seed in range(options.tables)]
        prior = np.std([truth for _, truth in tables], axis=0)
        names = [label.split("[")[0] for label in ParameterVector(tables[0][0].model).labels]
        for epsilon in options.epsilon:
            found = [rank(*each, epsilon, options.delta, seed) for seed, each in enumerate(tables)]
            made = [each for each in found if each is not None]
            ranks, widths = (np.array(each) for each in zip(*made, strict=True))
            line = summary(names, ranks, widths, len(found) - len(made), prior)
            say(f"{name:<18}epsilon {epsilon:g}  {len(made)} tables  {line}")


if __name__ == "__main__":
    main()
