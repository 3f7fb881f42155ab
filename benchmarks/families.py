"""Private searches of regressions of many families, on simulated rows: how far off, and how often lost.

    python benchmarks/families.py                                    every family, 40 searches at epsilon 4 and 1
    python benchmarks/families.py gamma weibull --runs 100 --epsilon 4

10,000 rows, an intercept, two normal covariates and an indicator. The reference is a normal approximation at the mode.
Errors are in its standard deviations, root mean square over parameters; a search is lost beyond 3. Printed: the median
error, the root mean square over searches, the largest, and the share of the posterior inside 90 % intervals.
"""

import argparse
from collections.abc import Callable

import numpy as np
import pymc as pm
from against_reference import Problem, quiet, say
from scipy import optimize, stats
from searches import LOST, searches

from pymc_dp.model.parameters import ParameterVector

ROWS, TRUTH = 10_000, np.array([0.6, 0.4, -0.3, 0.5])
GENERATOR = np.random.default_rng(0)
X = np.column_stack([np.ones(ROWS), GENERATOR.normal(size=(ROWS, 2)), GENERATOR.random(ROWS) < 0.2])
UPPER = GENERATOR.uniform(0.5, 6.0, ROWS)

#: From a linear predictor, a function that makes a positive parameter, and the distribution's class or its `dist`.
Family = Callable[[object, Callable[[str, float], object], Callable[..., object]], object]


def positive(name: str, value: float):
    return pm.Exponential(name, 0.5)


FAMILIES: dict[str, tuple[str, Family]] = {
    "exponential": ("Exponential", lambda eta, part, y: y(lam=pm.math.exp(eta))),
    "gamma": ("Gamma", lambda eta, part, y: y(alpha=(a := part("a", 3.0)), beta=a / pm.math.exp(eta))),
    "inverse-gamma": (
        "InverseGamma",
        lambda eta, part, y: y(alpha=(a := part("a", 3.0)) + 1, beta=a * pm.math.exp(eta)),
    ),
    "weibull": ("Weibull", lambda eta, part, y: y(alpha=part("a", 1.5), beta=pm.math.exp(eta))),
    "wald": ("Wald", lambda eta, part, y: y(mu=pm.math.exp(eta), lam=part("a", 2.0))),
    "gumbel": ("Gumbel", lambda eta, part, y: y(mu=eta, beta=part("a", 1.3))),
    "logistic": ("Logistic", lambda eta, part, y: y(mu=eta, s=part("a", 1.3))),
    "student-t": ("StudentT", lambda eta, part, y: y(nu=part("nu", 5.0), mu=eta, sigma=part("a", 1.3))),
    "half-normal": ("HalfNormal", lambda eta, part, y: y(sigma=pm.math.exp(eta))),
    "pareto": ("Pareto", lambda eta, part, y: y(alpha=pm.math.exp(eta), m=1.0)),
    "kumaraswamy": ("Kumaraswamy", lambda eta, part, y: y(a=pm.math.exp(eta), b=part("a", 2.0))),
    "beta": ("Beta", lambda eta, part, y: y(mu=pm.math.invlogit(eta), nu=part("a", 8.0))),
    "von-mises": ("VonMises", lambda eta, part, y: y(mu=2.0 * pm.math.arctan(eta), kappa=part("a", 3.0))),
    "ex-gaussian": ("ExGaussian", lambda eta, part, y: y(mu=eta, sigma=part("a", 0.3), nu=part("b", 0.8))),
}


def problem_of(name: str) -> Problem:
    """Return a regression of a family, and responses that were drawn from it."""
    of, family = FAMILIES[name]
    distribution = getattr(pm, of)
    responses = pm.draw(family(X @ TRUTH, lambda _, value: value, distribution.dist), random_seed=3)
    with pm.Model() as model:
        eta = pm.Data("x", X) @ pm.Normal("beta", 0, 1, shape=X.shape[1])
        family(eta, positive, lambda **parameters: distribution("y", **parameters, observed=responses))
    return Problem(model, {})


def mode_and_covariance(model: pm.Model) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode of a posterior on the unconstrained scale, and the inverse of the curvature there."""
    parameters, height, slope = ParameterVector(model), model.compile_logp(), model.compile_dlogp()

    def down(theta):
        return -slope(parameters.to_point(theta))

    mode = parameters.to_theta(model.initial_point())
    for _ in range(3):
        mode = optimize.minimize(lambda theta: -height(parameters.to_point(theta)), mode, jac=down, method="BFGS").x
    ways = 1e-5 * np.eye(mode.size)
    curvature = np.array([down(mode + way) - down(mode - way) for way in ways]) / 2e-5
    return mode, np.linalg.inv((curvature + curvature.T) / 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="family", help=f"of: {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[4.0, 1.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    options = parser.parse_intermixed_args()
    quiet()
    for name in options.names or FAMILIES:
        problem = problem_of(name)
        mode, covariance = mode_and_covariance(problem.model)
        std = np.sqrt(np.diag(covariance))
        for epsilon in options.epsilon:
            found = [each for each in searches(problem, epsilon, options.delta, options.runs, 1) if each is not None]
            away = np.array([(each - mode) / std for each, _ in found])
            reach = 1.645 * np.sqrt([np.diag(each) for _, each in found]) / std
            inside = stats.norm.cdf(away + reach) - stats.norm.cdf(away - reach)
            errors = np.sqrt(np.mean(away**2, axis=1))
            say(
                f"{name:<14}epsilon {epsilon:g}  error {np.median(errors):6.2f}  root mean square "
                f"{np.sqrt(np.mean(errors**2)):6.2f}  largest {errors.max():6.2f}  lost {np.sum(errors > LOST)} of "
                f"{len(errors)}  coverage {inside.mean():.2f} (least {inside.mean(axis=0).min():.2f})"
            )


if __name__ == "__main__":
    main()
