"""Private searches of normal rows whose mean is many standard deviations from where the model starts.

    python benchmarks/far_away.py                                         every model, 24 searches at epsilon 4 and 1
    python benchmarks/far_away.py vectors spread --level 0.1 --runs 100   at a tenth of the distance

Heights in centimetres and weights in kilograms, 6,000 rows, under priors around 0. Normal regressions with one scale,
whose location is found apart, are among `real_tables.py`. Columns are those of `searches.py`.
"""

import argparse
from collections.abc import Callable

import numpy as np
import pymc as pm
from against_reference import Problem, by_mode, quiet, say
from searches import searches, summary

ROWS = 6_000
MEAN, SPREAD = np.array([170.0, 70.0]), np.array([[81.0, 60.0], [60.0, 144.0]])

#: Write a model with rows whose mean is `level` times as far away.
Write = Callable[[np.random.Generator, float], None]


def spread(generator, level):
    """The scale follows a covariate."""
    x = generator.normal(size=ROWS)
    y = level * MEAN[0] + 5 * x + 9 * np.exp(0.3 * x) * generator.normal(size=ROWS)
    column = pm.Data("x", x)
    log_scale = pm.Normal("log_scale", 0, 2) + pm.Normal("growth", 0, 1) * column
    pm.Normal("y", pm.Normal("a", 0, 100) + pm.Normal("b", 0, 10) * column, pm.math.exp(log_scale), observed=y)


def groups(generator, level):
    """A mean and a scale for each of three groups."""
    group = generator.integers(0, 3, ROWS)
    y = level * MEAN[0] + 5.0 * group + np.array([9, 12, 6])[group] * generator.normal(size=ROWS)
    of = pm.Data("group", group)
    pm.Normal("y", pm.Normal("mu", 0, 100, shape=3)[of], pm.HalfNormal("s", 50, shape=3)[of], observed=y)


def outcomes(generator, level):
    """A truth value beside a number."""
    x = generator.normal(size=ROWS)
    y = level * MEAN[0] + 5 * x + 9 * generator.normal(size=ROWS)
    column = pm.Data("x", x)
    pm.Normal("y", pm.Normal("a", 0, 100) + pm.Normal("b", 0, 10) * column, pm.HalfNormal("s", 50), observed=y)
    c = pm.Normal("c", 0, 1, shape=2)
    pm.Bernoulli("z", logit_p=c[0] + c[1] * column, observed=(generator.logistic(size=ROWS) < x).astype(int))


def cholesky(size):
    factor, _, _ = pm.LKJCholeskyCov("factor", n=size, eta=2, sd_dist=pm.HalfNormal.dist(20))
    return factor


def vectors(generator, level):
    """Two numbers a row, correlated."""
    y = generator.multivariate_normal(level * MEAN, SPREAD, ROWS)
    pm.MvNormal("y", pm.Normal("mu", 0, 100, shape=2), chol=cholesky(2), observed=y)


def four(generator, level):
    """Four numbers a row, correlated."""
    factor = generator.normal(size=(4, 4)) + np.diag([9.0, 12.0, 5.0, 20.0])
    y = level * np.array([*MEAN, 120, 5]) + generator.normal(size=(ROWS, 4)) @ factor.T
    pm.MvNormal("y", pm.Normal("mu", 0, 100, shape=4), chol=cholesky(4), observed=y)


def heavy_vectors(generator, level):
    """Two numbers a row, multivariate Student t."""
    tails = np.sqrt(generator.chisquare(5, ROWS) / 5)[:, None]
    y = level * MEAN + generator.multivariate_normal(np.zeros(2), SPREAD, ROWS) / tails
    pm.MvStudentT("y", nu=5, mu=pm.Normal("mu", 0, 100, shape=2), chol=cholesky(2), observed=y)


def regression(generator, level):
    """Two correlated outcomes and two covariates."""
    x = np.column_stack([np.ones(ROWS), generator.normal(size=ROWS), generator.random(ROWS) < 0.3]).astype(float)
    y = x @ np.array([level * MEAN, [3, 5], [-6, 2]])
    y += generator.multivariate_normal(np.zeros(2), SPREAD, ROWS)
    pm.MvNormal("y", pm.Data("x", x) @ pm.Normal("beta", 0, 100, shape=(3, 2)), chol=cholesky(2), observed=y)


MODELS: dict[str, Write] = {
    write.__name__.replace("_", "-"): write
    for write in (spread, groups, outcomes, vectors, four, heavy_vectors, regression)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="model", help=f"of: {', '.join(MODELS)} (default: all)")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--level", type=float, default=1.0, help="of the mean, as a part of heights and weights")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[4.0, 1.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    options = parser.parse_intermixed_args()
    if unknown := set(options.names) - set(MODELS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    quiet()
    for name in options.names or MODELS:
        with pm.Model() as model:
            MODELS[name](np.random.default_rng(0), options.level)
        problem, reference = Problem(model), by_mode(model)
        for epsilon in options.epsilon:
            found = searches(problem, epsilon, options.delta, options.runs, 0)
            say(f"{name:<15}epsilon {epsilon:g}  {summary(found, reference)}")


if __name__ == "__main__":
    main()
