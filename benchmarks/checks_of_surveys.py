"""What private checks and comparisons say of models of the RAND health-insurance experiment (20,190 person-years).

    python -m uv run python benchmarks/checks_of_surveys.py --epsilon 4

Of a logistic regression of any visit to a doctor, and of a Poisson and a negative binomial regression of their number:
three tenths of epsilon for the first posterior, as much for each of the others, and what is left for checks and the
comparison.
"""

import argparse
import logging
import sys
import warnings

import pymc as pm
from statsmodels.datasets import randhie

import pymc_dp as dp

COVARIATES = ["lncoins", "idp", "lpi", "fmde", "physlm", "disea", "hlthg", "hlthf", "hlthp"]
LIMITS = {"lncoins": (0, 5), "lpi": (0, 8), "fmde": (0, 9), "disea": (0, 60)}  # of the codebook


def table() -> dp.Table:
    frame = randhie.load_pandas().data
    frame = frame.assign(any=frame["mdvis"] > 0)
    columns = [dp.Number(name, *LIMITS.get(name, (0, 1))) for name in COVARIATES]
    return dp.Table(frame, schema=[*columns, dp.Whole("mdvis", 0, 80, raw=True), dp.YesNo("any")])


def model_of(kind: str, t: dp.Template) -> pm.Model:
    with pm.Model() as model:
        eta = pm.Normal("intercept", 0, 2) + pm.Data("x", t.matrix(*COVARIATES)) @ pm.Normal("beta", 0, 1, shape=9)
        if kind == "logistic":
            pm.Bernoulli("any", logit_p=eta, observed=t.any)
        elif kind == "poisson":
            pm.Poisson("visits", pm.math.exp(eta), observed=t.mdvis)
        else:
            pm.NegativeBinomial("visits", mu=pm.math.exp(eta), alpha=pm.HalfNormal("alpha", 2), observed=t.mdvis)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=4.0)
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    protected, budget = table(), dp.PrivacyBudget(arguments.epsilon, 1e-6)
    fits = {}
    for place, kind in enumerate(("logistic", "poisson", "negative binomial")):
        model = model_of(kind, protected.template)
        with model:
            step = dp.DPSurrogateHMC(budget=budget, budget_share=0.25 / (1 - 0.25 * place))
            result = pm.sample(step=step, data=protected, chains=2, cores=1, progressbar=False, random_seed=1)
        fits[kind] = model, result
    for place, (kind, (model, result)) in enumerate(fits.items()):
        with model:
            found = dp.check(
                result, data=protected, by=["disea", "lncoins"], budget=budget, budget_share=0.3 / (1 - 0.3 * place)
            )
        sys.stdout.write(f"{kind}\n{found}\n\n")
    counts = {kind: fits[kind] for kind in ("poisson", "negative binomial")}
    sys.stdout.write(f"{dp.compare(counts, data=protected, budget=budget, budget_share=1.0)}\n")


if __name__ == "__main__":
    main()
