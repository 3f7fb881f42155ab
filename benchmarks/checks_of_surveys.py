"""What private checks and comparisons say of models of two public surveys, within one budget each.

    python -m uv run python benchmarks/checks_of_surveys.py health --epsilon 4
    python -m uv run python benchmarks/checks_of_surveys.py affairs --epsilon 4

The RAND health-insurance experiment (20,190 person-years): a logistic regression of any visit to a doctor, and a
Poisson and a negative binomial regression of their number. Redbook's survey of 1974 (6,366 wives, Fair 1978): logistic
regressions of any affair, with years of marriage as a line, and with their square.

A quarter of epsilon is for each posterior, and what is left for checks and the comparison of the last two models. A
part of the experiment's is for zeros: how many people have no visit by the models of counts, and how many have none.
"""

import argparse
import logging
import sys
import warnings

import numpy as np
import pymc as pm
from statsmodels.datasets import fair, randhie

import pymc_dp as dp

COVARIATES = ["lncoins", "idp", "lpi", "fmde", "physlm", "disea", "hlthg", "hlthf", "hlthp"]
LIMITS = {"lncoins": (0, 5), "lpi": (0, 8), "fmde": (0, 9), "disea": (0, 60)}  # of the codebook
#: Answers of a questionnaire: their ranges are printed in it.
OF_WIVES = {"rate_marriage": (1, 5), "age": (17, 45), "yrs_married": (0, 25), "children": (0, 6), "religious": (1, 4)}


def health():
    frame = randhie.load_pandas().data
    frame = frame.assign(any=frame["mdvis"] > 0)
    columns = [dp.Number(name, *LIMITS.get(name, (0, 1))) for name in COVARIATES]
    protected = dp.Table(frame, schema=[*columns, dp.Whole("mdvis", 0, 80, raw=True), dp.YesNo("any")])
    t = protected.template
    models = {kind: regression(kind, t.matrix(*COVARIATES), t) for kind in ("logistic", "Poisson", "negative binomial")}
    return protected, models, ["disea", "lncoins"]


def affairs():
    frame = fair.load_pandas().data
    frame = frame.assign(any=frame["affairs"] > 0)
    protected = dp.Table(frame, schema=[*(dp.Number(name, *OF_WIVES[name]) for name in OF_WIVES), dp.YesNo("any")])
    t = protected.template
    line = t.matrix(*OF_WIVES)
    models = {
        "line": regression("logistic", line, t),
        "square": regression("logistic", np.column_stack([line, t.yrs_married**2]), t),
    }
    return protected, models, ["yrs_married", "rate_marriage"]


def regression(kind: str, columns: np.ndarray, t: dp.Template) -> pm.Model:
    with pm.Model() as model:
        eta = pm.Normal("intercept", 0, 2) + pm.Data("x", columns) @ pm.Normal("beta", 0, 1, shape=columns.shape[1])
        if kind == "logistic":
            pm.Bernoulli("any", logit_p=eta, observed=t.any)
        elif kind == "Poisson":
            pm.Poisson("visits", pm.math.exp(eta), observed=t.mdvis)
        else:
            pm.NegativeBinomial("visits", mu=pm.math.exp(eta), alpha=pm.HalfNormal("alpha", 2), observed=t.mdvis)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=["health", "affairs"])
    parser.add_argument("--epsilon", type=float, default=4.0)
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    protected, models, by = {"health": health, "affairs": affairs}[arguments.table]()
    budget, fits = dp.PrivacyBudget(arguments.epsilon, 1e-6), {}
    for place, (kind, model) in enumerate(models.items()):
        with model:
            step = dp.DPSurrogateHMC(budget=budget, budget_share=0.25 / (1 - 0.25 * place))
            result = pm.sample(step=step, data=protected, chains=2, cores=1, progressbar=False, random_seed=1)
        fits[kind] = model, result
    for place, (kind, (model, result)) in enumerate(fits.items()):
        with model:
            found = dp.check(result, data=protected, by=by, budget=budget, budget_share=0.3 / (1 - 0.3 * place))
        sys.stdout.write(f"{kind}\n{found}\n\n")
    if arguments.table == "health":
        described = dp.describe(protected, budget=budget, budget_share=1 / 3).table.loc["any"]
        sys.stdout.write(f"no visit: {1 - described['mean']:.4f} ± {described['mean_error']:.4f} of the table\n")
        for (kind, (model, result)), part in zip(list(fits.items())[1:], (1 / 6, 1 / 5), strict=True):
            with model:
                found = dp.average_predictions(result, equal_to=0, data=protected, budget=budget, budget_share=part)
            sys.stdout.write(f"{kind}: {found}\n\n")
    last = dict(list(fits.items())[-2:])
    sys.stdout.write(f"{dp.compare(last, data=protected, budget=budget, budget_share=1.0)}\n")


if __name__ == "__main__":
    main()
