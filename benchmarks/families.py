"""Private searches of regressions of many families, on simulated rows: how far off, and how often lost.

    python benchmarks/families.py                                    every family, 40 searches at epsilon 4 and 1
    python benchmarks/families.py gamma weibull --runs 100 --epsilon 4
    python benchmarks/families.py poisson binomial gamma --intercept 3.4    responses about 30 times as large

10,000 rows, an intercept, two normal covariates and an indicator. Columns are those of `searches.py`.
"""

import argparse
from collections.abc import Callable

import numpy as np
import pymc as pm
from against_reference import Problem, by_mode, quiet, say
from searches import searches, summary

ROWS, TRUTH = 10_000, np.array([0.6, 0.4, -0.3, 0.5])
GENERATOR = np.random.default_rng(0)
X = np.column_stack([np.ones(ROWS), GENERATOR.normal(size=(ROWS, 2)), GENERATOR.random(ROWS) < 0.2])

EXPOSURES = np.exp(GENERATOR.normal(7.0, 0.6, size=ROWS))

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
    "poisson": ("Poisson", lambda eta, part, y: y(mu=pm.math.exp(eta))),
    "exposures": ("Poisson", lambda eta, part, y: y(mu=EXPOSURES * pm.math.exp(eta - 7.0))),
    "negative-binomial": ("NegativeBinomial", lambda eta, part, y: y(mu=pm.math.exp(eta), alpha=part("a", 1.5))),
    "geometric": ("Geometric", lambda eta, part, y: y(p=pm.math.invlogit(-eta))),
    "binomial": ("Binomial", lambda eta, part, y: y(n=np.full(ROWS, 80), logit_p=-eta)),
    "zero-inflated": (
        "ZeroInflatedPoisson",
        lambda eta, part, y: y(psi=pm.math.invlogit(part("logit", 0.8)), mu=pm.math.exp(eta)),
    ),
    "ex-gaussian": ("ExGaussian", lambda eta, part, y: y(mu=eta, sigma=part("a", 0.3), nu=part("b", 0.8))),
}


def problem_of(name: str, intercept: float) -> Problem:
    """Return a regression of a family, and responses that were drawn from it."""
    of, family = FAMILIES[name]
    distribution = getattr(pm, of)
    responses = pm.draw(family(X @ [intercept, *TRUTH[1:]], lambda _, value: value, distribution.dist), random_seed=3)
    with pm.Model() as model:
        eta = pm.Data("x", X) @ pm.Normal("beta", 0, np.array([5.0, 1.0, 1.0, 1.0]))
        family(eta, positive, lambda **parameters: distribution("y", **parameters, observed=responses))
    return Problem(model, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="family", help=f"of: {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--intercept", type=float, default=TRUTH[0], help="of the predictor; the model starts at 0")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[4.0, 1.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    options = parser.parse_intermixed_args()
    quiet()
    for name in options.names or FAMILIES:
        problem = problem_of(name, options.intercept)
        reference = by_mode(problem.model)
        for epsilon in options.epsilon:
            found = searches(problem, epsilon, options.delta, options.runs, 1)
            say(f"{name:<14}epsilon {epsilon:g}  {summary(found, reference)}")


if __name__ == "__main__":
    main()
