"""Tables that no graph of a random variable shows are refused, wherever they enter (hazards H37 and H39)."""

import array
import functools
import weakref
from collections import deque

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import Transform
from pytensor.printing import Print

from pymc_dp.exceptions import UnsupportedModel, UnsupportedOption
from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood

N = 37
GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(2, N))
PEOPLE = [f"person-{i}" for i in range(N)]
PATIENT = np.repeat(np.arange(10), 4)[:N]


def spellings():
    """The same table, as users hold it."""
    return {
        "pm.Data with dims": lambda: pm.Data("x", X, dims="person"),
        "pm.Data without dims": lambda: pm.Data("x", X),
        "constant": lambda: pt.as_tensor(X),
        "array": lambda: X,
        "list": lambda: list(X),
    }


def mean(x):
    return np.mean(x) if isinstance(x, list) else x.mean()


def likelihood_by_logp(x):
    def logp(value, mu):
        return pm.logp(pm.Normal.dist(mu + mean(x), 1.0), value)

    pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=Y, dims="person")


def likelihood_by_logp_of_a_part(x):
    def logp(value, mu, table):
        return pm.logp(pm.Normal.dist(mu + mean(table), 1.0), value)

    pm.CustomDist("y", pm.Normal("mu"), logp=functools.partial(logp, table=x), observed=Y, dims="person")


def likelihood_by_logcdf(x):
    def logp(value, mu):
        return pm.logp(pm.Normal.dist(mu, 1.0), value)

    def logcdf(value, mu):
        return pm.logcdf(pm.Normal.dist(mu + mean(x), 1.0), value)

    pm.CustomDist("y", pm.Normal("mu"), logp=logp, logcdf=logcdf, observed=Y, dims="person")


def likelihood_by_dist(x):
    def dist(mu, size):
        return pm.Normal.dist(mu + mean(x), 1.0, size=size)

    pm.CustomDist("y", pm.Normal("mu"), dist=dist, observed=Y, dims="person")


def prior_by_dist(x):
    mu = pm.CustomDist("mu", dist=lambda size: pm.Normal.dist(mean(x), 1.0, size=size))
    pm.Normal("y", mu, 1.0, observed=Y, dims="person")


def prior_by_logp(x):
    mu = pm.CustomDist("mu", logp=lambda value: pm.logp(pm.Normal.dist(mean(x), 1.0), value))
    pm.Normal("y", mu, 1.0, observed=Y, dims="person")


def prior_by_random(x):
    mu = pm.CustomDist(
        "mu",
        logp=lambda value: pm.logp(pm.Normal.dist(0.0, 1.0), value),
        random=lambda rng=None, size=None: rng.normal(mean(x), 1.0, size=size),
    )
    pm.Normal("y", mu, 1.0, observed=Y, dims="person")


def mixture_component(x):
    part = pm.CustomDist.dist(pm.Normal("mu"), logp=lambda value, mu: pm.logp(pm.Normal.dist(mu + mean(x)), value))
    pm.Mixture("y", [0.5, 0.5], [part, pm.Normal.dist(0.0, 1.0)], observed=Y, dims="person")


class Shifted(Transform):
    name = "shifted"

    def __init__(self, x):
        self.x = x

    def forward(self, value, *inputs):
        return value - mean(self.x)

    def backward(self, value, *inputs):
        return value + mean(self.x)

    def log_jac_det(self, value, *inputs):
        return pt.zeros_like(value)


def transform_of_a_parameter(x):
    mu = pm.Normal("mu", transform=Shifted(x), default_transform=None)
    pm.Normal("y", mu, 1.0, observed=Y, dims="person")


CLOSURES = [
    likelihood_by_logp,
    likelihood_by_logp_of_a_part,
    likelihood_by_logcdf,
    likelihood_by_dist,
    prior_by_dist,
    prior_by_logp,
    prior_by_random,
    mixture_component,
    transform_of_a_parameter,
]


@pytest.mark.parametrize("spelling", spellings())
@pytest.mark.parametrize("build", CLOSURES, ids=lambda build: build.__name__)
def test_a_table_in_a_function_is_refused(build, spelling):
    """Hazard H37: a function's own table is no public number."""
    if build in (likelihood_by_dist, prior_by_dist) and spelling.startswith("pm.Data"):
        pytest.skip("PyMC refuses data variables there")
    if build is prior_by_random and spelling not in ("array", "list"):
        pytest.skip("random= works with numbers")
    with pm.Model(coords={"person": PEOPLE}) as model:
        build(spellings()[spelling]())
    with pytest.raises(UnsupportedModel, match=r"'mu'|'y'|not a sum over rows|one entry for each"):
        UnitLikelihood(read(model))


CONTAINERS = {
    "array of the standard library": lambda: array.array("d", X),
    "deque": lambda: deque(X),
    "bytes": X.tobytes,
    "view of bytes": lambda: memoryview(X.tobytes()),
    "values of a dict": lambda: dict(enumerate(X)).values(),
    "keys of a dict": lambda: dict.fromkeys(X).keys(),
    "items of a dict": lambda: dict(enumerate(X)).items(),
    "method in C": lambda: X.mean,
    "method of a type in C": lambda: X.__getitem__,
    "method of a list": lambda: X.tolist().copy,
    "Arrow": lambda: pytest.importorskip("pyarrow").array(X),
    "groups": lambda: pd.DataFrame({"x": X}).groupby("x"),
    "weak reference": lambda: weakref.ref(X),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_table_in_any_container_is_refused(container):
    """Hazard H37: what a function holds may be no array and no list."""
    table = CONTAINERS[container]()

    def logp(value, mu):
        return pm.logp(pm.Normal.dist(mu, 1.0), value) + 0.0 * mu * float(table is None)

    with pm.Model(coords={"person": PEOPLE}) as model:
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=Y, dims="person")
    with pytest.raises(UnsupportedModel, match="one entry for each"):
        read(model)


def test_a_distribution_function_that_prints_rows_is_refused():
    """Hazard H36: what is refused in a log-likelihood is refused in what a check computes of responses."""

    def logcdf(value, mu):
        return pm.logcdf(pm.Normal.dist(mu, 1.0), Print("row")(value))

    with pm.Model() as model:
        logp = functools.partial(lambda value, mu: pm.logp(pm.Normal.dist(mu, 1.0), value))
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, logcdf=logcdf, observed=Y)
    read(model)
    with pytest.raises(UnsupportedModel, match="Print"):
        read(model, with_response=True)


@pytest.mark.parametrize("spelling", ["pm.Data with dims", "pm.Data without dims", "constant"])
def test_a_table_of_units_in_a_function_is_refused(spelling):
    """Hazard H37: nor is one of units."""

    def logp(value, mu):
        return pm.logp(pm.Normal.dist(mu + table.mean(), 1.0), value)

    with pm.Model(coords={"patient": range(10)}) as model:
        ages = np.linspace(20, 80, 10)
        table = pt.as_tensor(ages) if spelling == "constant" else pm.Data("age", ages)
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=Y)
    with pytest.raises(UnsupportedModel, match="one entry for each"):
        UnitLikelihood(read(model, unit_index=PATIENT))


def test_a_table_as_a_parameter_is_a_covariate():
    with pm.Model() as model:
        pm.CustomDist(
            "y",
            pm.Normal("mu"),
            pm.Data("x", X),
            logp=lambda value, mu, x: pm.logp(pm.Normal.dist(mu * x, 1.0), value),
            observed=Y,
        )
    found = UnitLikelihood(read(model)).clipped_gradient(np.zeros(1), 1e3, 2.0**-30)
    assert found.value == pytest.approx([X @ Y])


def test_a_table_of_rows_under_another_name_is_a_table_of_rows():
    """Its dim has the length of the rows, though the observed variable names another dim."""
    with pm.Model(coords={"person": PEOPLE, "individual": PEOPLE}) as model:
        x = pm.Data("x", X, dims="individual")
        pm.Normal("y", pm.Normal("mu") * x.mean(), 1.0, observed=Y, dims="person")
    with pytest.raises(UnsupportedModel, match="not a sum over rows"):
        UnitLikelihood(read(model))


def counted(observed_dims=None, data_dims="person", **dims):
    """A model that names its rows on some tables only."""
    with pm.Model(coords={"person": PEOPLE}) as model:
        mu = pm.Normal("mu")
        x = pm.Data("x", X, dims=data_dims)
        n = model.dim_lengths["person"]
        pm.Deterministic("plain", 2 * mu)
        pm.Deterministic("times_n", mu * n)
        pm.Deterministic("by_person", mu * pt.ones(N), dims="person")
        pm.Deterministic("as_long", mu * pt.ones(N))
        pm.Normal("y", mu * x, 1.0, observed=Y, dims=observed_dims)
    return model


@pytest.mark.parametrize("observed_dims", ["person", None])
@pytest.mark.parametrize("data_dims", ["person", None])
def test_what_counts_or_names_people_does_not_leave(observed_dims, data_dims):
    """Hazard H39: dims of rows, whatever they are called."""
    model = counted(observed_dims, data_dims)
    assert read(model).publishable(None).kept == ["mu", "plain"]
    for name in ("times_n", "by_person", "as_long"):
        with pytest.raises(UnsupportedOption, match="computed from the data"):
            read(model).publishable([name])


@pytest.mark.parametrize("observed_dims", ["person", None])
def test_a_prior_of_the_number_of_rows_is_refused(observed_dims):
    """Hazard H39: lengths in priors."""
    with pm.Model(coords={"person": PEOPLE}) as model:
        x = pm.Data("x", X, dims="person")
        mu = pm.Normal("mu", 0.0, 1.0 / model.dim_lengths["person"])
        pm.Normal("y", mu * x, 1.0, observed=Y, dims=observed_dims)
    with pytest.raises(UnsupportedModel, match="'mu'"):
        UnitLikelihood(read(model))


@pytest.mark.parametrize("observed_dims", ["person", None])
def test_a_potential_of_the_number_of_rows_is_refused(observed_dims):
    """Hazard H39: lengths in potentials."""
    with pm.Model(coords={"person": PEOPLE}) as model:
        x, mu = pm.Data("x", X, dims="person"), pm.Normal("mu")
        pm.Potential("pull", -mu / model.dim_lengths["person"])
        pm.Normal("y", mu * x, 1.0, observed=Y, dims=observed_dims)
    with pytest.raises(UnsupportedModel, match="'pull'"):
        UnitLikelihood(read(model))


@pytest.mark.parametrize("n_patients", [10, 12], ids=["as many labels as units", "labels without rows"])
def test_names_of_units_do_not_leave(n_patients):
    """Hazard H39: and dims of units."""
    with pm.Model(coords={"patient": [f"patient-{i}" for i in range(n_patients)]}) as model:
        mu = pm.Normal("mu")
        pm.Deterministic("by_patient", mu * pt.ones(n_patients), dims="patient")
        pm.Deterministic("times", mu * model.dim_lengths["patient"])
        pm.Normal("y", mu, 1.0, observed=Y)
    index = PATIENT.copy()
    index[-1] = n_patients - 1
    view = read(model, unit_index=index)
    UnitLikelihood(view)
    assert view.publishable(None).kept == ["mu"]
