"""One posterior, written in several ways: a scale with bounds, a precision, an entry of a vector for an intercept.

    python benchmarks/spellings.py                                    every form, 24 searches at epsilon 4 and 1
    python benchmarks/spellings.py "a uniform scale" --runs 100 --epsilon 4
    python benchmarks/spellings.py --signs DIRECTORY --runs 3         whole runs with coefficients of one sign

4,000 simulated rows; covariates are two normal ones, an indicator, and an age in years. Columns are those of
`searches.py`, and with ``--signs`` those of `newcomers.py`; DIRECTORY keeps references of these, drawn without privacy.
"""

import argparse
from pathlib import Path

import numpy as np
import pymc as pm
from against_reference import Problem, by_mode, quiet, reference_of, run, say
from searches import searches, summary

from pymc_dp.model.centring import in_coordinates

ROWS = 4_000
GENERATOR = np.random.default_rng(1)
X = np.column_stack([GENERATOR.normal(size=(ROWS, 2)), GENERATOR.random(ROWS) < 0.3, GENERATOR.uniform(20, 70, ROWS)])
UNITS = np.array([1.0, 1.0, 1.0, 20.0])
LINE = 30.0 + X @ [1.5, -2.0, 3.0, 0.2]
RESPONSES = LINE + GENERATOR.normal(0.0, 4.0, ROWS)
HEAVY_TAILS = LINE + 4.0 * GENERATOR.standard_t(5.0, ROWS)
MANY = GENERATOR.poisson(np.exp(4.0 + X @ [0.2, -0.2, 0.2, 0.01]) * GENERATOR.gamma(2.0, 0.5, ROWS))
#: Two effects are zero or below it.
STANDARDISED = X / UNITS
SIGNED = 1.0 + STANDARDISED @ [0.5, -0.3, 0.0, 0.4] + GENERATOR.normal(size=ROWS)
ANSWERS = (GENERATOR.random(ROWS) < 1.0 / (1.0 + np.exp(1.0 - STANDARDISED @ [0.5, -0.3, 0.0, 0.4]))).astype(int)


def line(scale: float = 5.0):
    return pm.Normal("a", 0.0, 10.0 * scale) + pm.Data("x", X) @ pm.Normal("b", 0.0, scale / UNITS, shape=4)


def entries():
    b = pm.Normal("b", 0.0, np.append(10.0, 1.0 / UNITS), shape=5)
    return b[0] + sum(b[k + 1] * X[:, k] for k in range(4))


def uniform(name: str, upper: float):
    return pm.Uniform(name, 0.0, upper)


def normal(**scale):
    pm.Normal("y", line(), observed=RESPONSES, **scale)


def student_t(nu, sigma):
    pm.StudentT("y", nu=nu, mu=line(), sigma=sigma, observed=HEAVY_TAILS)


def counts(alpha, predictor):
    pm.NegativeBinomial("y", mu=pm.math.exp(predictor), alpha=alpha, observed=MANY)


FORMS = {
    "a half-normal scale": lambda: normal(sigma=pm.HalfNormal("s", 10.0)),
    "a uniform scale": lambda: normal(sigma=uniform("s", 50.0)),
    "a truncated normal scale": lambda: normal(sigma=pm.TruncatedNormal("s", 5.0, 5.0, lower=0.0)),
    "a precision": lambda: normal(tau=pm.Gamma("tau", 0.1, 0.1)),
    "a variance": lambda: normal(sigma=pm.math.sqrt(pm.InverseGamma("variance", 1.0, 1.0))),
    "Student t": lambda: student_t(pm.Gamma("nu", 2.0, 0.1), pm.HalfNormal("s", 10.0)),
    "Student t, a uniform scale": lambda: student_t(pm.Gamma("nu", 2.0, 0.1), uniform("s", 50.0)),
    "Student t, nu above 1": lambda: student_t(
        pm.Truncated("nu", pm.Gamma.dist(2.0, 0.1), lower=1.0), pm.HalfNormal("s", 10.0)
    ),
    "counts around 120": lambda: counts(pm.Exponential("alpha", 1.0), line(1.0)),
    "counts, a uniform shape": lambda: counts(uniform("alpha", 20.0), line(1.0)),
    "counts, an entry for the intercept": lambda: counts(pm.Exponential("alpha", 1.0), entries()),
}

PRIORS = {
    "half-normal": lambda: pm.HalfNormal("b", 2.0, shape=4),
    "truncated normal": lambda: pm.TruncatedNormal("b", 0.0, 2.0, lower=0.0, shape=4),
    "exponential": lambda: pm.Exponential("b", 1.0, shape=4),
}


def signed(prior: str, binary: bool):
    with pm.Model() as model:
        eta = pm.Normal("a", 0.0, 5.0) + pm.Data("x", STANDARDISED) @ PRIORS[prior]()
        if binary:
            pm.Bernoulli("y", logit_p=eta, observed=ANSWERS)
        else:
            pm.Normal("y", eta, pm.HalfNormal("s", 5.0), observed=SIGNED)
    return Problem(model, {}, normal=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="form", help=f"of: {', '.join(FORMS)} (default: all)")
    parser.add_argument("--signs", type=Path, metavar="DIRECTORY")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[4.0, 1.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    options = parser.parse_intermixed_args()
    quiet()
    for name in [] if options.signs else options.names or FORMS:
        with pm.Model() as model:
            FORMS[name]()
        reference = by_mode(in_coordinates(model))
        for epsilon in options.epsilon:
            found = searches(Problem(model, {}), epsilon, options.delta, options.runs, 0)
            say(f"{name:<35}epsilon {epsilon:g}  {summary(found, reference)}")
    for prior in PRIORS if options.signs else []:
        for binary in (False, True):
            problem = signed(prior, binary)
            reference = reference_of(problem, options.signs / f"signs-{prior}-{binary}.npz")
            for epsilon in options.epsilon:
                for seed in range(options.runs):
                    made = run(problem, reference, epsilon, options.delta, seed)
                    say(f"{prior}, {'logistic' if binary else 'linear'}, epsilon {epsilon:g}  {made}")


if __name__ == "__main__":
    main()
