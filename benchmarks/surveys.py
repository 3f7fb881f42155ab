"""Whether intervals of descriptions, averages of predictions and synthetic tables cover, in whole private runs.

    python -m uv run python benchmarks/surveys.py --rows 5000 --epsilon 1 --runs 30
    python -m uv run python benchmarks/surveys.py --rows 5000 --epsilon 1 --runs 60 --descriptions

Each run simulates a table of patients, and spends one budget on it: a quarter of epsilon on a description, half on the
posterior of a logistic regression, a quarter on averages of its predictions with and without a drug, by ward. Then
twenty synthetic tables are drawn, the regression is fitted to each, and the results are pooled. Printed are the part of
90 % intervals that hold the truth, and their median width: of means of columns (those of the table), of averages and of
their contrasts (probabilities over the rows of the table, by the true coefficients), of coefficients (those that tables
are simulated with), and of the share of the outcome (that of the population). Widths of means, coefficients and shares
are multiples of those of the usual 90 % interval without privacy. All tables are simulated.
"""

import argparse
import collections
import logging
import sys
import warnings

import numpy as np
import pandas as pd
import pymc as pm
import statsmodels.api as sm
from checks import compiled_once

import pymc_dp as dp

DELTA, TABLES = 1e-6, 20
SCHEMA = [
    dp.Number("age", 0, 100),
    dp.YesNo("drug"),
    dp.Category("ward", ["a", "b", "c"], other=False),
    dp.YesNo("back"),
]
TRUTH = np.array([-1.0, 1.5, 0.6, 0.4, -0.3])


def design(frame):
    wards = [frame["ward"] == ward for ward in ("b", "c")]
    return np.column_stack([np.ones(len(frame)), (frame["age"] - 50) / 50, frame["drug"], *wards]).astype(float)


def simulated(rng, n):
    age = rng.gamma(30, 1.8, n).clip(0, 100)
    frame = pd.DataFrame({"age": age, "drug": rng.random(n) < 0.3 + 0.3 * (age > 55)})
    frame["ward"] = rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2])
    frame["back"] = rng.random(n) < 1 / (1 + np.exp(-design(frame) @ TRUTH))
    return frame


#: The share of the outcome in the population.
SHARE = simulated(np.random.default_rng(0), 2_000_000)["back"].mean()


def model_on(t):
    with pm.Model() as model:
        eta = pm.Normal("a", 0, 2) + t.matrix("age", "drug", "ward") @ pm.Normal("b", 0, 2, shape=4)
        pm.Bernoulli("back", logit_p=eta, observed=t.back)
    return model


def run(n, epsilon, seed, noted):
    rng = np.random.default_rng([seed, n])
    frame = simulated(rng, n)
    table, budget = dp.Table(frame, schema=SCHEMA), dp.PrivacyBudget(epsilon, DELTA)

    def note(what, truth, low, high, width=1.0):
        noted[what].append((low <= truth <= high, (high - low) / width))

    description = dp.describe(table, budget=budget, budget_share=0.25)
    for name in ("age", "drug"):
        line = description.table.loc[name]
        room = 1.645 * line["mean_error"]
        note(
            "means of columns",
            frame[name].mean(),
            line["mean"] - room,
            line["mean"] + room,
            3.29 * frame[name].std() / np.sqrt(n),
        )
    model = model_on(table.template)
    with model:
        likelihood = dp.private_likelihood(data=table, budget=budget, budget_share=2 / 3, progressbar=False)
        result = likelihood.sample(draws=500, chains=2, cores=1, progressbar=False, random_seed=seed)
        drug = {"none": {"drug": False}, "drug": {"drug": True}}
        found = dp.average_predictions(result, drug, by="ward", data=table, budget=budget, budget_share=1.0)
    risks = {name: 1 / (1 + np.exp(-design(frame.assign(drug=name == "drug")) @ TRUTH)) for name in drug}
    exact = sm.Logit(frame["back"].astype(float), design(frame)).fit(disp=0)
    for ward in "abc":
        here = frame["ward"] == ward
        for name, risk in risks.items():
            line = found.table.loc[(name, ward)]
            note("averages", risk[here].mean(), line["5%"], line["95%"])
        line = found.contrasts.loc[("drug", ward)]
        note("contrasts", (risks["drug"] - risks["none"])[here].mean(), line["5%"], line["95%"])
    tables = dp.synthetic_tables(result, description, table.template, model=model, m=TABLES, seed=seed, missing=False)
    fits = [sm.Logit(each["back"].astype(float), design(each)).fit(disp=0) for each in tables]
    pooled = dp.pooled([each.params for each in fits], [each.bse**2 for each in fits])
    for truth, width, (_, line) in zip(TRUTH, 3.29 * exact.bse, pooled.iterrows(), strict=True):
        note("coefficients of synthetic tables", truth, line["low"], line["high"], width)
    shares = np.array([each["back"].mean() for each in tables])
    (_, line), *_ = dp.pooled(shares, shares * (1 - shares) / n).iterrows()
    note("share in synthetic tables", SHARE, line["low"], line["high"], 3.29 * np.sqrt(SHARE * (1 - SHARE) / n))
    exact_posterior = result["posterior"]["b"].values.reshape(-1, 4)
    for truth, width, low, high in zip(
        TRUTH[1:], 3.29 * exact.bse[1:], *np.quantile(exact_posterior, [0.05, 0.95], axis=0), strict=True
    ):
        note("coefficients of the posterior", truth, low, high, width)


DESCRIBED = [
    dp.Number("age", 0, 100),
    dp.Number("income", 0, 200_000, raw=True),
    dp.Whole("stays", 0, 20),
    dp.Date("day", "2026-01-01", "2026-12-31"),
    dp.YesNo("drug"),
    dp.YesNo("back"),
    dp.Category("ward", ["a", "b", "c"]),
]


def describe(n, epsilon, seed, noted):
    rng = np.random.default_rng([seed, n])
    frame = simulated(rng, n)
    frame["income"] = np.exp(rng.normal(10.3, 0.6, n) + 0.01 * (frame["age"] - 50)).clip(0, 200_000)
    frame["stays"], frame["day"] = rng.poisson(0.03 * frame["age"]).clip(0, 20), rng.integers(0, 300, n)
    numbers = frame.drop(columns="ward").astype(float)
    for name, rate in (("income", 0.1), ("age", 0.02)):
        numbers.loc[rng.random(n) < rate, name] = np.nan
    days = np.datetime64("2026-01-01") + frame["day"].values
    table = dp.Table({**numbers, "day": days, "ward": frame["ward"]}, schema=DESCRIBED)
    found = dp.describe(table, budget=dp.PrivacyBudget(epsilon, DELTA), budget_share=1.0)
    columns, correlation = found.tree["columns"].to_dataset(), found.tree["correlation"].to_dataset()

    def note(what, truth, value, error):
        noted[what].append((abs(truth - value) <= 1.645 * error, error))

    for name, values in numbers.items():
        line = columns.sel(column=name)
        note("means", values.mean(), float(line["mean"]), float(line["mean_error"]))
        note("standard deviations", values.std(ddof=0), float(line["sd"]), float(line["sd_error"]))
        note("missing rates", values.isna().mean(), float(line["missing"]), float(line["missing_error"]))
        if name in ("drug", "back"):
            continue
        for level in line["level"].values:
            low, high = (float(line[end].sel(level=level)) for end in ("quantile_low", "quantile_high"))
            known = values.dropna()
            # A quantile of whole numbers is any between those of two ranks, and the interval is to hold one.
            ends = (known.quantile(level, interpolation=each) for each in ("lower", "higher"))
            noted["quantiles"].append((low <= max(ends) and known.quantile(level) <= high, high - low))
    for (_, level), line in found.categories.iterrows():
        note("shares of levels", (frame["ward"] == level).mean(), line["share"], line["error"])
    as_read = numbers.fillna({"age": 50.0, "income": 100_000.0}).corr()  # missing entries count as the middle
    for one, name in enumerate(as_read):
        for other in as_read.columns[:one]:
            line = correlation.sel(column=name, other=other)
            note("correlations", as_read.loc[name, other], float(line["correlation"]), float(line["error"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--descriptions", action="store_true", help="of all columns, instead of whole runs")
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    noted = collections.defaultdict(list)
    with compiled_once():
        for seed in range(arguments.runs):
            (describe if arguments.descriptions else run)(arguments.rows, arguments.epsilon, seed, noted)
    sys.stdout.write(f"n={arguments.rows} epsilon={arguments.epsilon:g}, {arguments.runs} runs\n")
    for what, found in noted.items():
        covers, width = np.array(found).T
        sys.stdout.write(f"{what:<34} cover {covers.mean():.2f} of {len(covers)}, width {np.median(width):.3g}\n")


if __name__ == "__main__":
    main()
