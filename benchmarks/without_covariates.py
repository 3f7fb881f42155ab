"""Models of one column, with priors that are wide: how far private posteriors are from those without privacy.

    python -m uv run python benchmarks/without_covariates.py --rows 20000 --epsilon 1 --runs 6 normal weibull

For each model the median error of means in posterior standard deviations, root mean square over parameters, the part of
runs that are lost (more than 3), and how wide intervals are beside those without privacy. All tables are simulated.
"""

import argparse
import logging
import warnings

import numpy as np
import pymc as pm
from xarray import Dataset

import pymc_dp as dp

LOST, DELTA, DRAWS = 3.0, 1e-6, 300


def normal(rng, n):
    pm.Normal("y", pm.Normal("mu", 0, 100), pm.HalfNormal("s", 100), observed=rng.normal(170, 9, n))


def lognormal(rng, n):
    pm.LogNormal("y", pm.Normal("mu", 0, 5), pm.HalfNormal("s", 3), observed=np.exp(rng.normal(2, 0.7, n)))


def student(rng, n):
    mu, s = pm.Normal("mu", 0, 100), pm.HalfNormal("s", 100)
    pm.StudentT("y", nu=4, mu=mu, sigma=s, observed=170 + 9 * rng.standard_t(4, n))


def weibull(rng, n):
    pm.Weibull("y", pm.HalfNormal("a", 5), pm.HalfNormal("b", 100), observed=20 * rng.weibull(1.5, n))


def gamma(rng, n):
    pm.Gamma("y", mu=pm.HalfNormal("m", 1000), sigma=pm.HalfNormal("s", 1000), observed=rng.gamma(2, 3, n))


def poisson(rng, n):
    pm.Poisson("y", pm.HalfNormal("r", 100), observed=rng.poisson(3, n))


def negative_binomial(rng, n):
    mu, alpha = pm.HalfNormal("m", 100), pm.HalfNormal("a", 10)
    pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=rng.negative_binomial(2, 0.4, n))


def categorical(rng, n):
    pm.Categorical("y", pm.Dirichlet("p", np.ones(4)), observed=rng.choice(4, n, p=[0.5, 0.3, 0.15, 0.05]))


def bernoulli(rng, n):
    pm.Bernoulli("y", pm.Beta("p", 1, 1), observed=rng.binomial(1, 0.2, n))


def bivariate_normal(rng, n):
    chol, _, _ = pm.LKJCholeskyCov("c", n=2, eta=2, sd_dist=pm.HalfNormal.dist(3))
    rows = rng.multivariate_normal([1, -1], [[2, 0.8], [0.8, 1]], n)
    pm.MvNormal("y", pm.Normal("mu", 0, 3, shape=2), chol=chol, observed=rows)


def mixture(rng, n):
    weight, rows = pm.Beta("w", 2, 2), np.where(rng.random(n) < 0.3, -2, 1.5) + rng.standard_normal(n)
    mu = pm.Normal("mu", [-2, 2], 1.0, shape=2)
    pm.NormalMixture("y", pm.math.stack([weight, 1 - weight]), mu, 1.0, observed=rows)


MODELS = {
    each.__name__: each
    for each in (
        normal,
        lognormal,
        student,
        weibull,
        gamma,
        poisson,
        negative_binomial,
        bernoulli,
        categorical,
        bivariate_normal,
        mixture,
    )
}


def means_and_widths(posterior: Dataset, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    over = ("chain", "draw")
    return (
        np.concatenate([np.ravel(posterior[name].mean(over)) for name in names]),
        np.concatenate([np.ravel(posterior[name].std(over)) for name in names]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=6)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    for name in chosen.models:
        with pm.Model() as model:
            MODELS[name](np.random.default_rng(0), chosen.rows)
            without = pm.sample(1000, tune=500, chains=1, progressbar=False, random_seed=1)
            names = [each.name for each in model.free_RVs]
            mean, width = means_and_widths(without.posterior, names)
            errors, widths = [], []
            for seed in range(chosen.runs):
                budget, step = dp.PrivacyBudget(chosen.epsilon, DELTA), dp.DPSurrogateHMC()
                tree = pm.sample(DRAWS, chains=1, budget=budget, step=step, progressbar=False, random_seed=seed)
                found, wide = means_and_widths(tree.posterior, names)
                errors.append(float(np.sqrt(np.mean(((found - mean) / width) ** 2))))
                widths.append(float(np.sqrt(np.mean((wide / width) ** 2))))
        lost = np.mean(np.array(errors) > LOST)
        print(f"{name:18s} error {np.median(errors):9.2f}  lost {lost:.2f}  width {np.median(widths):.2f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
