"""What does not factorise over rows is refused, by name, and on synthetic data."""

import numpy as np
import pymc as pm
import pymc.dims
import pytensor
import pytensor.tensor as pt
import pytest
from conftest import logistic_data

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood, check

X, Y = logistic_data(30)
Z = X[:, 1]
COORDS = {"person": range(30), "feature": range(3), "group": range(4)}


def centred():
    x = pm.Data("x", X)
    pm.Normal("y", (x - x.mean(0)) @ pm.Normal("beta", shape=3), 1.0, observed=Z)


def folded_constant():
    x = pt.as_tensor(X)
    pm.Normal("y", (x - x.mean(0)) @ pm.Normal("beta", shape=3), 1.0, observed=Z)


def lagged():
    z = pm.Data("z", Z)
    pm.Normal("y", pm.Normal("rho") * pt.concatenate([[0.0], z[:-1]]), 1.0, observed=Z)


def cumulative():
    pm.Normal("y", pm.Normal("rho") * pt.cumsum(pm.Data("z", Z)), 1.0, observed=Z)


def softmax_over_rows():
    pm.Normal("y", pm.math.softmax(pm.Data("z", Z) * pm.Normal("rho")), 1.0, observed=Z)


def scaled_by_n():
    z = pm.Data("z", Z)
    pm.Normal("y", pm.Normal("mu") * z / pt.sqrt(z.shape[0]), 1.0, observed=Z)


def standardised_inside():
    z = pm.Data("z", Z)
    pm.Normal("y", pm.Normal("mu") * z / z.std(), 1.0, observed=Z)


def folded_without_effect():
    x = pt.as_tensor(np.array([1.0, -1.0] * 15))
    pm.Normal("y", (x - x.mean()) * pm.Normal("beta"), 1.0, observed=Z)


def folded_column_means():
    x, beta = pt.as_tensor(X), pm.Normal("beta", shape=3)
    pm.Normal("y", pt.dot(x, beta) - pt.dot(x.mean(0), beta), 1.0, observed=Z)


def folded_scale():
    pm.Normal("y", pm.Normal("mu"), pt.as_tensor(Z).std(), observed=Z)


def folded_prior():
    pm.Normal("y", pm.Normal("mu", 0.0, 2.5 / pt.std(pt.as_tensor(Z))), 1.0, observed=Z)


def normalised_by_the_largest():
    z = pm.Data("z", Z)
    pm.Normal("y", pm.Normal("mu") * z / pt.maximum(1.0, pt.abs(z).max()), 1.0, observed=Z)


def normalised_by_the_largest_count():
    k = pm.Data("k", Y)
    pm.Normal("y", pm.Normal("mu") * k / pt.maximum(1, k.max()), 1.0, observed=Z)


def potential_of_some_people():
    mu = pm.Normal("mu")
    pm.Potential("extra", -0.5 * pt.sum((mu - pt.as_tensor(Z[:10])) ** 2))
    pm.Normal("y", mu, 1.0, observed=Z)


def inverse_of_a_rows_matrix():
    matrices = pm.Data("matrices", np.random.default_rng(0).random((30, 2, 2)))
    pm.Normal("y", (pt.linalg.inv(matrices) @ pm.Normal("beta", shape=2))[:, 0], 1.0, observed=Z)


def autoregression():
    pm.AR("y", rho=[pm.Normal("rho")], sigma=1.0, init_dist=pm.Normal.dist(), observed=Z)


def random_walk():
    pm.GaussianRandomWalk("y", sigma=pm.HalfNormal("sigma"), init_dist=pm.Normal.dist(), observed=Z)


def gaussian_process():
    process = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.HalfNormal("length")))
    process.marginal_likelihood("y", X=X[:, 1:2], y=Z, sigma=0.3)


def multivariate_over_rows():
    pm.MvNormal("y", pm.Normal("mu") * np.ones(30), np.eye(30), observed=Z)


def one_parameter_per_row():
    pm.Normal("y", pm.Normal("latent", shape=30), 1.0, observed=Z)


def named_with_another_length():
    pm.Normal("y", pm.Normal("slope", shape=3, dims="group").sum(), 1.0, observed=Z)


def missing_outcomes():
    with_gaps = Z.copy()
    with_gaps[3] = np.nan
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=with_gaps)


def missing_covariates():
    with_gaps = X.copy()
    with_gaps[3, 1] = np.nan
    pm.Normal("y", pt.as_tensor(with_gaps) @ pm.Normal("beta", shape=3), 1.0, observed=Z)


def different_lengths():
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1.0, observed=Z)
    pm.Normal("z", mu, 1.0, observed=Z[:10])


def row_data_in_prior():
    mu = pm.Normal("mu", pm.Data("z", Z).sum(), 1.0)
    pm.Normal("y", mu, 1.0, observed=Z)


def row_data_in_potential():
    mu = pm.Normal("mu")
    pm.Potential("extra", -pt.sum((pm.Data("z", Z) - mu) ** 2))
    pm.Normal("y", mu, 1.0, observed=Z)


def nothing_observed():
    pm.Normal("mu")


def discrete_parameter():
    pm.Normal("y", pm.Poisson("k", 3.0), 1.0, observed=Z)


def single_number():
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=3.0)


def named_axes():
    beta = pymc.dims.Normal("beta", dims="feature")
    x = pymc.dims.Data("x", X, dims=("person", "feature"))
    y = pymc.dims.Data("outcome", Y, dims="person")
    pymc.dims.Bernoulli("y", logit_p=x.dot(beta), observed=y, dims="person")


def named_axes_of_groups():
    effect = pymc.dims.Normal("effect", pymc.dims.Normal("mu"), pymc.dims.HalfNormal("tau"), dims="group")
    group = pymc.dims.Data("index", np.arange(30) % 4, dims="person")
    y = pymc.dims.Data("outcome", Y, dims="person")
    pymc.dims.Bernoulli("y", logit_p=effect.isel(group=group), observed=y, dims="person")


def one_row():
    pm.Normal("y", pm.Normal("mu") * pt.as_tensor(Z[:1]), 1.0, observed=Z[:1])


REFUSED = {
    one_row: "a single one",  # a constant of one row cannot be told from a public number
    named_axes: "pymc.dims",
    named_axes_of_groups: "pymc.dims",
    centred: "not a sum over rows",
    folded_constant: "not a sum over rows",
    lagged: "not a sum over rows|single one",
    cumulative: "not a sum over rows",
    softmax_over_rows: "not a sum over rows",
    scaled_by_n: "not a sum over rows",
    standardised_inside: "not a sum over rows",
    folded_without_effect: "not a sum over rows",  # x - x.mean() equals x: a refusal must not depend on such luck
    folded_column_means: "not a sum over rows",
    folded_scale: "not a sum over rows",
    folded_prior: "'mu'",
    normalised_by_the_largest: "not a sum over rows",
    normalised_by_the_largest_count: "not a sum over rows",
    potential_of_some_people: "'extra'",
    inverse_of_a_rows_matrix: "MatrixInverse",  # singular for one person, the run would fail
    autoregression: "'y'",
    random_walk: "'y'",
    gaussian_process: "ambiguous|'y'|single one",
    multivariate_over_rows: "ambiguous|'y'|single one",
    one_parameter_per_row: "'latent'",
    named_with_another_length: "'slope' has not as many entries along its dim 'group'",
    missing_outcomes: "'y' has missing",
    missing_covariates: "missing values",
    different_lengths: "different numbers of rows",
    row_data_in_prior: "'mu'",
    row_data_in_potential: "'extra'",
    nothing_observed: "no observed variable",
    discrete_parameter: "'k' is discrete",
    single_number: "'y' is a single number",
}


#: With fewer rows first all others are refused as they are without.
WITH_FEWER = [each for each, reason in REFUSED.items() if reason == "not a sum over rows"][::3]


@pytest.mark.parametrize(
    ("few", "build"),
    [
        *(pytest.param(1000, each, id=f"checked as it is-{each.__name__}") for each in REFUSED),
        *(
            pytest.param(
                *(10, each),
                id=f"checked with fewer rows first-{each.__name__}",
                marks=[] if each in WITH_FEWER else pytest.mark.nightly,
            )
            for each in REFUSED
        ),
    ],
)
def test_refused_with_the_reason(build, few, monkeypatch):
    """Hazards H15 and H16: what does not factorise, potentials on tables and missing values are refused."""
    monkeypatch.setattr(check, "_FEW_NUMBERS", 0)
    monkeypatch.setattr(check, "_FEWEST_ROWS", few)
    with pm.Model(coords=COORDS if "named" in build.__name__ else None) as model:
        build()
    with pytest.raises(UnsupportedModel, match=REFUSED[build]):
        UnitLikelihood(read(model))


@pytest.mark.parametrize("mixing", [False, True])
def test_sums_in_single_precision_are_compared_as_such(mixing):
    """A model rounds its own sums of 5,000 rows by more than sums in double precision may differ."""
    z = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        level = pm.HalfNormal("tau", 1.0) * pm.Normal("level", 0, 1, shape=2)[pm.Data("group", np.arange(5000) % 2)]
        x = pm.Data("x", z)
        pm.Normal("y", level + (x - x[4000:].mean() if mixing else x), 1.0, observed=z)
    if mixing:
        with pytest.raises(UnsupportedModel, match=r"not a sum over rows|single one"):
            UnitLikelihood(read(model))
    else:
        assert UnitLikelihood(read(model)).parameters.size == 3


@pytest.mark.parametrize("function", [pt.cumsum, pt.exp])
def test_responses_that_are_computed_in_the_model_are_refused(function):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), observed=function(pm.Data("responses", Z)).astype("float32"))
    with pytest.raises(UnsupportedModel, match="'y' are computed in the model"):
        UnitLikelihood(read(model))


def test_unit_has_to_name_a_dim():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=Z)
    with pytest.raises(UnsupportedModel, match="'patient'"):
        UnitLikelihood(read(model, unit="patient"))


def test_the_check_never_sees_the_data(monkeypatch):
    seen = []
    original = np.asarray

    real = check.likelihood_of_any_rows

    def spy(*arguments):
        function = real(*arguments)

        def recorded(*arguments):
            seen.extend(original(argument) for argument in arguments)
            return function(*arguments)

        return recorded

    monkeypatch.setattr(check, "likelihood_of_any_rows", spy)
    with pm.Model() as model:
        pm.Normal("y", pm.Data("x", X) @ pm.Normal("beta", shape=3), 1.0, observed=Z)
    UnitLikelihood(read(model))
    assert seen
    assert not any(values.shape == real.shape and np.any(values == real) for values in seen for real in (X, Z))


@pytest.mark.parametrize("largest", [0.5, 50.0])
def test_refusals_do_not_depend_on_values(largest):
    """Hazard H17: folded constants used to be compared by value: clip(x, -5, 5) passed where nobody exceeded five."""
    values = np.append(Z[:-1], largest)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu") * pt.clip(pt.as_tensor(values), -5, 5), 1.0, observed=Z)
    found = UnitLikelihood(read(model)).clipped_gradient(np.zeros(1), 1e3, 2.0**-30)
    assert found.value == pytest.approx([Z @ np.clip(values, -5, 5)])


def patients(build):
    """A table of three visits for each of ten patients."""
    patient = np.repeat(np.arange(10), 3)
    with pm.Model(coords={"patient": range(10)}) as model:
        pm.Data("visit_patient", patient)
        build(patient)
    return model


@pytest.mark.parametrize("kind", ["parameter", "data", "constant"])
def test_tables_with_one_entry_for_each_unit_are_refused(kind):
    def build(patient):
        age = np.linspace(20, 80, 10)
        if kind == "parameter":
            mu = pm.Normal("mu", dims="patient")[patient]
        elif kind == "data":
            mu = pm.Normal("mu") * pm.Data("age", age, dims="patient")[patient]
        else:
            mu = pm.Normal("mu") * pt.as_tensor(age)[patient]
        pm.Normal("y", mu, 1.0, observed=Z)

    with pytest.raises(UnsupportedModel, match=r"one entry for each unit|neither a table of rows"):
        UnitLikelihood(read(patients(build), unit_index="visit_patient"))


def test_a_dim_of_rows_that_only_some_observed_variables_have_is_refused():
    """A group of the other's axis would else have the name that counts rows."""
    with pm.Model(coords={"person": range(30)}) as model:
        mu = pm.Normal("mu", shape=2)
        pm.Normal("first", mu[0], 1.0, observed=Z, dims="person")
        pm.Normal("second", mu[1], 1.0, observed=Z)
    with pytest.raises(UnsupportedModel, match="names no dim of the observed variable 'second'"):
        UnitLikelihood(read(model))
