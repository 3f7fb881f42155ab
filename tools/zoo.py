"""Models of the kinds that people write, each with a table, for record and replay."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pymc as pm
from neighbours import Table
from samplers import SAMPLERS, Sampler, regression, table

import pymc_dp as dp


@dataclass(frozen=True)
class Case:
    """A model as a function of its table.

    Attributes
    ----------
    name : str
        For messages.
    build : callable
        Makes the model of a table.
    table : callable
        Makes a table, given a generator; rows first.
    unit : str or None
        The column that says which unit a row belongs to, where units have several rows.
    """

    name: str
    build: Callable[[Table], pm.Model]
    table: Callable[[np.random.Generator], Table]
    unit: str | None = None

    def __repr__(self) -> str:
        return self.name


#: Units in a table: more than the batches of `samplers`.
N = 170


def _regression(rows):
    return regression(rows["x"], rows["y"])


def _rows_of_regression(rng):
    x, y = table()
    return {"x": x, "y": y}


def _logistic(rows):
    with pm.Model(coords={"person": np.arange(len(rows["y"]))}) as model:
        beta = pm.Normal("beta", shape=2)
        x = pm.Data("x", rows["x"], dims=("person", "feature"))
        pm.Bernoulli("y", logit_p=x @ beta, observed=rows["y"], dims="person")
    return model


def _rows_of_logistic(rng):
    return {"x": rng.normal(size=(N, 2)), "y": rng.integers(0, 2, size=N)}


def _hierarchical(rows):
    with pm.Model(coords={"person": np.arange(len(rows["y"]))}) as model:
        spread, error = pm.HalfNormal("spread"), pm.HalfNormal("error")
        effects = spread * pm.Normal("effects", shape=5)
        pm.Normal("y", effects[pm.Data("group", rows["group"], dims="person")], error, observed=rows["y"])
    return model


def _rows_of_groups(rng):
    return {"group": rng.integers(0, 5, size=N), "y": rng.normal(size=N)}


def _softmax(rows):
    with pm.Model(coords={"person": np.arange(len(rows["y"]))}) as model:
        beta = pm.Normal("beta", shape=(2, 3))
        x = pm.Data("x", rows["x"], dims=("person", "feature"))
        pm.Categorical("y", logit_p=x @ beta, observed=rows["y"], dims="person")
    return model


def _rows_of_softmax(rng):
    return {"x": rng.normal(size=(N, 2)), "y": rng.integers(0, 3, size=N)}


def _student(rows):
    with pm.Model() as model:
        intercept, slope, scale = pm.Normal("intercept"), pm.Normal("slope"), pm.HalfNormal("scale")
        pm.StudentT("y", nu=4.0, mu=intercept + slope * pm.Data("x", rows["x"]), sigma=scale, observed=rows["y"])
    return model


def _pairs(rng):
    x = rng.normal(size=N)
    return {"x": x, "y": 0.5 * x + rng.normal(size=N)}


def _negative_binomial(rows):
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept"), pm.Normal("slope", sigma=0.3)
        rate = pm.math.exp(intercept + slope * pm.Data("x", rows["x"]))
        pm.NegativeBinomial("y", rate, pm.Exponential("alpha", 1.0), observed=rows["y"])
    return model


def _counts(rng):
    return {"x": rng.normal(size=N), "y": rng.poisson(3.0, size=N)}


def _persons(rows):
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept"), pm.Normal("slope")
        pm.Data("person", rows["person"])
        pm.Normal("y", intercept + slope * pm.Data("x", rows["x"]), 1.0, observed=rows["y"])
    return model


def _rows_of_persons(rng):
    person = np.sort(np.concatenate([np.arange(N), rng.integers(0, N, size=N)])) + 1000
    order = rng.permutation(person.size)
    return {"person": person[order], "x": rng.normal(size=person.size), "y": rng.normal(size=person.size)}


def _multivariate(rows):
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=3)
        covariance = np.array([[1.0, 0.5, 0.1], [0.5, 1.5, 0.2], [0.1, 0.2, 0.7]])
        pm.MvNormal("y", mu, cov=covariance, observed=rows["y"])
    return model


def _censored(rows):
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        pm.Censored("y", pm.Normal.dist(mu, sigma), lower=-1.0, upper=1.5, observed=rows["y"])
    return model


def _mixture(rows):
    with pm.Model() as model:
        mu, weights = pm.Normal("mu", shape=2), pm.Dirichlet("weights", np.ones(2))
        pm.NormalMixture("y", weights, mu, 1.0, observed=rows["y"])
    return model


def _ordered(rows):
    with pm.Model() as model:
        cuts = pm.Normal("cuts", shape=2, transform=pm.distributions.transforms.ordered, initval=np.array([-0.5, 0.5]))
        eta = pm.Normal("slope") * pm.Data("x", rows["x"])
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, compute_p=False, observed=rows["y"])
    return model


def _rows_of_ordered(rng):
    return {"x": rng.normal(size=N), "y": rng.integers(0, 3, size=N)}


def _gaussian(rows):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=rows["y"])
    return model


REGRESSION = Case("regression", _regression, _rows_of_regression)
GAUSSIAN = Case("gaussian", _gaussian, lambda rng: {"y": rng.normal(size=N)})
PERSONS = Case("persons", _persons, _rows_of_persons, unit="person")
ZOO = [
    Case("logistic", _logistic, _rows_of_logistic),
    Case("hierarchical", _hierarchical, _rows_of_groups),
    Case("softmax", _softmax, _rows_of_softmax),
    Case("student", _student, _pairs),
    Case("negative-binomial", _negative_binomial, _counts),
    PERSONS,
    Case("multivariate", _multivariate, lambda rng: {"y": rng.normal(size=(N, 3))}),
    Case("censored", _censored, lambda rng: {"y": rng.normal(size=N)}),
    Case("mixture", _mixture, lambda rng: {"y": rng.normal(size=N)}),
    Case("ordered", _ordered, _rows_of_ordered),
]

#: By name; those that need a model of a certain kind are made for each case below.
BY_NAME = {sampler.name: sampler for sampler in SAMPLERS}


def tested_surrogate(case: Case) -> Sampler:
    """Return DPSurrogateHMC with tests, and the case's own model on a synthetic table."""
    synthetic, shares = case.build(case.table(np.random.default_rng(99))), dp.Shares(0.3, 0.4, 0.1, 0.2)

    def make(**shared):
        return dp.DPSurrogateHMC(synthetic=synthetic, shares=shares, newton_steps=2, **shared)

    return Sampler("surrogate-tested", make, ("substitute",))


def _simulating(**shared):
    return dp.DPSurrogateHMC(newton_steps=3, **shared)


SIMULATING = Sampler("surrogate-simulating", _simulating)


def _batches_and_all(*, budget, **shared):
    return [
        dp.DPSGLD(["slope"], clip_gradient=4.0, step_size=1e-4, sampling_probability=0.25, budget=budget, **shared),
        dp.DPSGHMC(
            ["intercept"],
            clip_gradient=4.0,
            step_size=0.02,
            friction=2000.0,
            n_leapfrog=2,
            sampling_probability=0.5,
            budget=budget,
            **shared,
        ),
    ]


TWO_ON_BATCHES = Sampler("sgld-and-sghmc", _batches_and_all, ("add-remove",), on_batches=True)


def samplers_for(case: Case) -> Iterator[Sampler]:
    """Yield every sampler that can run on a case."""
    for sampler in SAMPLERS:
        if not sampler.name.startswith("surrogate") and sampler.name != "hmc-and-penalty":
            yield sampler
    if case is REGRESSION:
        yield BY_NAME["hmc-and-penalty"]
        yield TWO_ON_BATCHES
    if case is GAUSSIAN:
        yield SIMULATING
    else:
        yield BY_NAME["surrogate"]
        yield tested_surrogate(case)
