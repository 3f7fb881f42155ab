"""Models on a declared CSV file with raw scales, categories and missing entries, beside other ways to write them.

    python benchmarks/declared_tables.py DIRECTORY                             all models, two runs at epsilon 3
    python benchmarks/declared_tables.py DIRECTORY linear poisson --runs 5 --epsilon 3 1

Each model is run in two forms on the same 20,000 simulated rows: ``declared``, on the template of a `Table` that reads
the file, and ``by hand``, in-model, on columns that were scaled and filled as the declaration says. DIRECTORY keeps the
file and the references. Columns are explained in `newcomers.py`.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
from against_reference import Problem, Run, arguments, quiet, reference_of, run, say_runs
from pymc.distributions import transforms

import pymc_dp as dp

ROWS, PERSONS = 20_000, 5_000
LEVELS = ["general", "surgery", "heart", "children"]
SCHEMA = [
    dp.Number("age", 18, 90),
    dp.Number("income", 0, 150_000),
    dp.Number("bmi", 15, 50),
    dp.YesNo("emergency"),
    dp.Category("ward", LEVELS),
    dp.YesNo("back"),
    dp.Whole("visits", 0, 60, raw=True),
    dp.Number("cost", 0, 20, raw=True),
    dp.Number("days", 0.01, 5, raw=True),
    dp.Category("mood", ["bad", "fair", "good", "very good"], other=False),
]
PERSON = dp.Person("person")
FEATURES = ("age", "age_missing", "income", "bmi", "emergency", "ward")
FORMS = ("declared", "by hand")


def write(path: Path) -> None:
    """Simulate the table and write it to a CSV file, once."""
    rng = np.random.default_rng(11)
    age, income = rng.uniform(18, 95, ROWS).round(), rng.lognormal(10.2, 0.7, ROWS).round()
    bmi, emergency = rng.gamma(30, 0.9, ROWS).round(1), rng.random(ROWS) < 0.4
    ward = rng.choice([*LEVELS, "other ward"], ROWS, p=[0.4, 0.3, 0.2, 0.08, 0.02])
    effects = dict(zip([*LEVELS, "other ward"], [0.0, 0.3, 0.6, -0.4, 0.1], strict=True))
    eta = (np.minimum(age, 90) - 54) / 36 * 0.8 - 0.5 * (np.minimum(income, 150_000) / 75_000 - 1) + 0.4 * emergency
    eta += 0.03 * (np.clip(bmi, 15, 50) - 27) + np.array([effects[each] for each in ward])
    mood = (eta + rng.logistic(size=ROWS))[:, None] > [-0.8, 0.6, 2.2]
    person = np.arange(ROWS) % PERSONS
    table = pd.DataFrame(
        {
            "person": person,
            "age": np.where(rng.random(ROWS) < 0.05, np.nan, age),
            "income": income,
            "bmi": bmi,
            "emergency": np.where(emergency, "yes", "no"),
            "ward": ward,
            "back": np.where(rng.random(ROWS) < 1 / (1 + np.exp(1.0 - eta)), "yes", "no"),
            "visits": np.minimum(rng.poisson(np.exp(0.3 + 0.5 * eta) * rng.gamma(2.0, 0.5, ROWS)), 60),
            "cost": np.clip(6.0 + 1.5 * eta + 1.2 * rng.standard_t(6, ROWS), 0, 20).round(3),
            "days": np.clip(np.exp(0.7 + 0.4 * eta) * rng.weibull(1.4, ROWS), 0.01, 5).round(4),
            "mood": np.array(["bad", "fair", "good", "very good"])[mood.sum(axis=1)],
        }
    )
    table.to_csv(path, index=False)


class Columns(dict):
    """Arrays by name, as attributes as well: what a template offers."""

    def __getattr__(self, name):
        return self[name]


def in_memory(path: Path) -> Columns:
    """Return what a user who reads the file makes of it by hand."""
    table = pd.read_csv(path)
    ranges = {"age": (18, 90), "income": (0, 150_000), "bmi": (15, 50)}
    found = Columns({name: table[name].to_numpy() for name in ("visits", "cost", "days", "person")})
    numbers = {"age_missing": table["age"].isna().to_numpy(float)}
    for name, (low, high) in ranges.items():
        middle, half = (low + high) / 2, (high - low) / 2
        values = table[name].fillna(middle).clip(low, high).to_numpy(float)
        numbers[name] = (values - middle) / half
    numbers["emergency"] = (table["emergency"] == "yes").to_numpy(float)
    codes = np.array([LEVELS.index(each) if each in LEVELS else len(LEVELS) for each in table["ward"]])
    others = [codes == code for code in range(1, len(LEVELS) + 1)]
    found["x"] = np.column_stack([*(numbers[name] for name in FEATURES[:-1]), *others]).astype(float)
    found["ward"] = codes
    found["back"] = (table["back"] == "yes").to_numpy(int)
    found["mood"] = np.array([["bad", "fair", "good", "very good"].index(each) for each in table["mood"]])
    return found


def on_template(t) -> Columns:
    return Columns(
        {name: t[name] for name in ("visits", "cost", "days", "ward", "back", "mood")}, x=t.matrix(*FEATURES)
    )


# Models: the same code on any columns ---------------------------------------------------------------------------------


def predictor(c):
    return pm.Normal("intercept", 0, 3) + pm.Data("x", c.x) @ pm.Normal("slope", 0, 1, shape=c.x.shape[1])


def logistic(c):
    pm.Bernoulli("back", logit_p=predictor(c), observed=c.back)


def linear(c):
    pm.Normal("cost", 4 * predictor(c), pm.HalfNormal("sigma", 5), observed=c.cost)


def robust(c):
    scale = {"sigma": pm.HalfNormal("sigma", 5), "nu": pm.Gamma("nu", 2, 0.1)}
    pm.StudentT("cost", mu=4 * predictor(c), **scale, observed=c.cost)


def poisson(c):
    pm.Poisson("visits", pm.math.exp(predictor(c)), observed=c.visits)


def negative_binomial(c):
    mean, alpha = pm.math.exp(predictor(c)), pm.HalfNormal("alpha", 3)
    pm.NegativeBinomial("visits", mu=mean, alpha=alpha, observed=c.visits)


def ordinal(c):
    start = np.arange(3) - 1.0
    cutpoints = pm.Normal("cutpoints", 0, 3, shape=3, transform=transforms.ordered, initval=start)
    eta = pm.Data("x", c.x) @ pm.Normal("slope", 0, 1, shape=c.x.shape[1])
    pm.OrderedLogistic("mood", eta=eta, cutpoints=cutpoints, observed=c.mood, compute_p=False)


def survival(c):
    latent = pm.Weibull.dist(alpha=pm.HalfNormal("shape", 2), beta=pm.math.exp(predictor(c)))
    pm.Censored("days", latent, lower=None, upper=5.0, observed=c.days)


def wards(c):
    mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
    ward = pm.Normal("alpha", mu, tau, shape=len(LEVELS) + 1)[pm.Data("ward", c.ward)]
    eta = ward + pm.Data("x", c.x[:, :5]) @ pm.Normal("slope", 0, 1, shape=5)
    pm.Bernoulli("back", logit_p=eta, observed=c.back)


MODELS: dict[str, Callable] = {
    each.__name__: each for each in (logistic, linear, robust, poisson, negative_binomial, ordinal, survival, wards)
} | {"persons": logistic}


def problem_and_reference(directory: Path, name: str, form: str):
    path = directory / "patients.csv"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write(path)
    held = in_memory(path)
    normal = name != "wards"

    def model_of(columns):
        with pm.Model() as model:
            MODELS[name](columns)
            if name == "persons" and columns is held:
                pm.Data("person", held.person)
        return model

    unit = {"unit_index": "person"} if name == "persons" else {}
    problem = Problem(model_of(held), unit, normal)
    reference = reference_of(problem, directory / f"declared-{name}.npz")
    if form == "declared":
        table = dp.Table.from_csv(path, [*SCHEMA, PERSON] if unit else SCHEMA)
        problem = Problem(model_of(on_template(table.template)), {}, normal, data=table)
    return problem, reference


def run_of(directory: Path, delta: float, job: tuple[str, float, int]) -> Run:
    name_and_form, epsilon, seed = job
    return run(*problem_and_reference(directory, *name_and_form.split(maxsplit=1)), epsilon, delta, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options = arguments(parser, MODELS, [3.0])
    quiet()
    names = [f"{name:<18}{form}" for name in options.names or MODELS for form in FORMS]
    say_runs(functools.partial(run_of, options.directory, options.delta), names, options, width=27)


if __name__ == "__main__":
    main()
