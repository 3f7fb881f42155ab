"""What a model's graph and shapes say: the same for any table of the same shape."""

import functools

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_dp.model.centring import in_coordinates
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.structure import (
    MOST_RESPONSES,
    ResponsesOfRows,
    all_scales,
    in_likelihood,
    is_linear_and_normal,
    location_of_normal_rows,
    responses_of_rows,
    rows_can_be_simulated,
    scale_of_rows,
    slope_of_log_scale,
    structure_of,
)

N = 37
X = np.random.default_rng(0).normal(size=(N, 2))
GROUP = np.arange(N) % 3


def plain(n=N):
    pm.Normal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=np.zeros(n))


def plain_matrix(n=N):
    pm.MvNormal("y", pm.Normal("mu", shape=2), np.eye(2), observed=np.zeros((n, 2)))


def public_array(n=N):
    pm.Normal("y", pm.Normal("mu", np.arange(5.0), shape=5).sum(), observed=np.zeros(n))


def covariates(n=N):
    pm.Normal("y", pm.Data("x", X[:n]) @ pm.Normal("beta", shape=2), observed=np.zeros(n))


def constants(n=N):
    pm.Normal("y", X[:n, 0] * pm.Normal("beta"), observed=np.zeros(n))


def groups(n=N):
    pm.Normal("y", pm.Normal("effect", shape=3)[GROUP[:n]], observed=np.zeros(n))


def own_code(n=N):
    pm.CustomDist("y", pm.Normal("mu"), logp=lambda value, mu: -((value - mu) ** 2), observed=np.zeros(n))


def potential(n=N):
    pm.Potential("more", -(pm.Normal("mu") ** 2))
    pm.Normal("y", 0.0, observed=np.zeros(n))


def made(build, *arguments):
    with pm.Model() as model:
        build(*arguments)
    return model


@pytest.mark.parametrize(
    ("build", "answer"),
    [
        (plain, True),
        (plain_matrix, True),
        (public_array, True),
        (covariates, False),
        (constants, False),
        (groups, False),
        (own_code, False),
        (potential, False),
    ],
)
def test_rows_are_simulated_where_nothing_of_a_table_is_needed(build, answer):
    """Also for one row more or less, wherever no public array has as many entries as there are rows."""
    for n in (N, N - 1):
        assert rows_can_be_simulated(made(build, n)) is answer


@pytest.mark.parametrize("n", [4, 5, 6])
def test_an_array_of_another_dim_may_be_as_long_as_the_table(n):
    """By which order the search expands would tell, under add-remove, that there are as many rows as columns."""
    with pm.Model(coords={"column": [f"c{k}" for k in range(5)]}) as model:
        errors = pm.Data("errors", np.linspace(1.0, 2.0, 5), dims="column")
        mean = pm.Normal("mean", dims="column")
        rows = pm.Data("rows", np.zeros((n, 5)), dims=("person", "column"))
        pm.Normal("y", mean, errors, observed=rows, dims=("person", "column"))
    assert rows_can_be_simulated(model)


def test_a_model_without_observations_has_no_rows():
    assert not rows_can_be_simulated(made(lambda: pm.Normal("mu")))


def test_the_likelihood_depends_on_what_it_reaches():
    with pm.Model() as model:
        pm.Normal("unused", shape=2)
        scale = pm.HalfNormal("scale")
        pm.Normal("y", pm.Normal("effect", 0.0, scale, shape=3)[GROUP], pm.Exponential("sigma", 1.0), observed=X[:, 0])
    parameters = ParameterVector(model)
    reached = in_likelihood(model, parameters)
    found = {name: list(reached[each]) for name, each in zip(parameters.names, parameters.slices, strict=True)}
    assert found == {
        "unused": [False, False],
        "scale_log__": [False],
        "effect": [True, True, True],
        "sigma_log__": [True],
    }
    scales = np.flatnonzero(all_scales(model, parameters))
    assert [parameters.labels[place] for place in scales] == ["scale_log__", "sigma_log__"]


def test_a_potential_is_part_of_the_likelihood_and_a_model_may_have_no_scales():
    model = made(potential)
    parameters = ParameterVector(model)
    assert in_likelihood(model, parameters).tolist() == [True]
    assert not all_scales(model, parameters).any()


def counts(eta):
    return pm.Poisson("y", pm.math.exp(eta), observed=np.zeros(N, dtype=int))


KNOWN = {
    "bernoulli": lambda eta: pm.Bernoulli("y", logit_p=eta, observed=np.zeros(N, dtype=int)),
    "poisson": counts,
    "negative binomial": lambda eta: pm.NegativeBinomial(
        "y", mu=pm.math.exp(eta), alpha=2.0, observed=np.zeros(N, int)
    ),
    "zero-inflated": lambda eta: pm.ZeroInflatedPoisson("y", 0.5, pm.math.exp(eta), observed=np.zeros(N, int)),
    "binomial": lambda eta: pm.Binomial("y", 7, logit_p=eta, observed=np.zeros(N, dtype=int)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_whole_numbers_have_known_responses(name):
    model = made(lambda: KNOWN[name](X[:, 0] * pm.Normal("beta")))
    responses = responses_of_rows(model)
    assert responses.are_all == (name == "bernoulli")
    assert responses.are_whole
    assert responses.values[:2] == (0, 1)
    assert (len(responses.values) == 2) == (name == "bernoulli")


POSITIVE = {
    "gamma": lambda eta, y: pm.Gamma("y", alpha=2.0, beta=pm.math.exp(eta), observed=y),
    "exponential": lambda eta, y: pm.Exponential("y", pm.math.exp(eta), observed=y),
    "half-normal": lambda eta, y: pm.HalfNormal("y", pm.math.exp(eta), observed=y),
    "Wald": lambda eta, y: pm.Wald("y", mu=pm.math.exp(eta), lam=2.0, observed=y),
    "Weibull": lambda eta, y: pm.Weibull("y", alpha=2.0, beta=pm.math.exp(eta), observed=y),
    "inverse gamma": lambda eta, y: pm.InverseGamma("y", alpha=2.0, beta=pm.math.exp(eta), observed=y),
    "Pareto": lambda eta, y: pm.Pareto("y", alpha=pm.math.exp(eta), m=1.0, observed=y),
}


@pytest.mark.parametrize("name", POSITIVE)
def test_positive_numbers_have_known_responses(name):
    responses = responses_of_rows(made(lambda: POSITIVE[name](X[:, 0] * pm.Normal("beta"), np.full(N, 0.5))))
    assert not responses.are_all
    assert not responses.are_whole
    assert np.diff(np.log(responses.values)) == pytest.approx(0.1)
    assert 0.0 < responses.values[0] < 1e-10
    assert responses.values[-1] > 1e10


def test_of_censored_rows_no_responses_are_known():
    """Each has a response of its own that stands for all beyond it."""

    def censored():
        of_all = pm.Gamma.dist(alpha=2.0, beta=pm.math.exp(X[:, 0] * pm.Normal("beta")))
        pm.Censored("y", of_all, lower=None, upper=1.0, observed=np.full(N, 0.5))

    assert responses_of_rows(made(censored)) == ResponsesOfRows()


@pytest.mark.parametrize("count", [2, 5, MOST_RESPONSES, MOST_RESPONSES + 1])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.filterwarnings("error:.*(overflow|invalid|divide)")
def test_categories_are_counted_by_shapes_alone(count, known):
    """No entry is computed: rows that are infinite or overflow warn of nothing."""
    x = X.copy()
    x[3], x[4] = [1e308, -1e308], [np.inf, -np.inf]
    with pm.Model(coords={"category": range(count)}) as model:
        beta = pm.Normal("beta", shape=(2, count)) if known else pm.Normal("beta", shape=2, dims=None)
        columns = pm.Data("public", np.ones((2, count))) * beta[:, None] if not known else beta
        pm.Categorical("y", logit_p=pm.Data("x", x) @ columns, observed=np.zeros(N, dtype=int))
    (probabilities,) = model["y"].owner.op.dist_params(model["y"].owner)
    assert (probabilities.type.shape[-1] == count) == known
    expected = ResponsesOfRows(tuple(range(count)), are_all=True) if count <= MOST_RESPONSES else ResponsesOfRows()
    assert responses_of_rows(model) == expected


UNKNOWN = {
    "any real numbers": lambda: pm.Normal("y", pm.Normal("mu"), observed=np.zeros(N)),
    "several responses a row": lambda: pm.Poisson("y", pm.HalfNormal("mu"), observed=np.zeros((N, 2), dtype=int)),
    "vectors": lambda: pm.Multinomial("y", 3, pm.Dirichlet("p", np.ones(3)), observed=np.tile([1, 1, 1], (N, 1))),
    "own code": lambda: pm.CustomDist(
        "y", pm.HalfNormal("mu"), logp=lambda value, mu: -mu * value, dtype="int64", observed=np.zeros(N, dtype=int)
    ),
    "parts of one": lambda: pm.Beta("y", mu=pm.Uniform("mu"), nu=3.0, observed=np.full(N, 0.5)),
    "nothing observed": lambda: pm.Normal("mu"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_rows_have_no_known_responses(name):
    assert responses_of_rows(made(UNKNOWN[name])) == ResponsesOfRows()


def test_two_observed_variables_or_a_potential_leave_responses_unknown():
    with pm.Model() as model:
        mu = pm.HalfNormal("mu")
        pm.Poisson("y", mu, observed=np.zeros(N, dtype=int))
        assert responses_of_rows(model).values
        pm.Poisson("z", mu, observed=np.zeros(N, dtype=int))
        assert responses_of_rows(model) == ResponsesOfRows()


@pytest.mark.parametrize("function", [rows_can_be_simulated, responses_of_rows])
@pytest.mark.parametrize("build", [plain, covariates, groups, lambda n: counts(X[:n, 0] * pm.Normal("beta"))])
def test_what_the_rows_hold_changes_nothing(function, build, monkeypatch):
    before = function(made(build, N))
    monkeypatch.setitem(globals(), "X", np.full_like(X, np.inf))
    monkeypatch.setitem(globals(), "GROUP", np.zeros_like(GROUP))
    assert function(made(build, N)) == before


def test_the_scale_of_a_location_scale_family_is_found_and_no_other_logarithm():
    def student(x):
        nu, sigma = pm.Gamma("nu", 2.0, 0.1), pm.HalfNormal("sigma")
        pm.StudentT("y", nu=nu, mu=pm.Normal("a") + pm.Data("x", x), sigma=sigma, observed=x)

    def weibull(x):
        pm.Weibull("y", alpha=pm.HalfNormal("shape"), beta=pm.math.exp(pm.Normal("a") * pm.Data("x", x)), observed=x)

    def of_known_sigma(x):
        pm.Normal("y", pm.HalfNormal("mean") * pm.Data("x", x), 1.0, observed=x)

    def of_rate(x):
        pm.AsymmetricLaplace("y", mu=pm.Normal("a"), b=pm.HalfNormal("b"), kappa=pm.HalfNormal("kappa"), observed=x)

    for make, wanted in (
        (student, ["sigma_log__"]),
        (weibull, []),
        (of_known_sigma, []),
        (of_rate, ["b_log__"]),
    ):
        with pm.Model() as model:
            make(np.arange(1.0, 9.0))
        parameters = ParameterVector(model)
        assert [parameters.labels[place] for place in np.flatnonzero(scale_of_rows(model, parameters))] == wanted


def test_log_likelihoods_are_broken_lines_in_the_location_of_laplace_distributions_alone():
    """And whether the scale of an asymmetric one is a function of a variable, or the variable its inverse."""
    x = np.arange(1.0, 9.0)

    def effects():
        effect = pm.Normal("effect", pm.Normal("mu"), pm.HalfNormal("tau"), shape=2)
        return pm.Normal("b") * pm.Data("x", x) + effect[pm.Data("g", x.astype(int) % 2)]

    location = ["effect[0]", "effect[1]", "b"]
    cases = (
        (lambda: pm.Laplace("y", effects(), pm.HalfNormal("s"), observed=x), location, False),
        (lambda: pm.AsymmetricLaplace("y", mu=effects(), b=pm.HalfNormal("s"), q=0.2, observed=x), location, True),
        (lambda: pm.AsymmetricLaplace("y", mu=effects(), b=1 / pm.HalfNormal("s"), q=0.2, observed=x), location, False),
        (lambda: pm.Normal("y", effects(), pm.HalfNormal("s"), observed=x), [], False),
        (lambda: [pm.Laplace(name, pm.Normal(f"m{name}"), 1.0, observed=x) for name in "yz"], [], False),
    )
    for make, wanted, rate in cases:
        with pm.Model() as model:
            make()
        parameters = ParameterVector(model)
        found = structure_of(model, parameters)
        assert [parameters.labels[place] for place in np.flatnonzero(found.kinked)] == wanted
        assert found.power_of_followed == (2.0 if rate else -2.0)


def test_what_meets_covariates_and_nothing_else_of_the_rows_distribution():
    """Not a shape or the share of zeros; and nothing where two parameters of it have covariates of their own."""
    counts = np.arange(8)

    def eta(name="b"):
        effect = pm.Normal(f"{name}_effect", pm.Normal(f"{name}_mu"), 1.0, shape=2)
        return pm.Normal(name) * pm.Data(f"{name}_x", 1.0 * counts) + effect[pm.Data(f"{name}_g", counts % 2)]

    def mu():
        return pm.math.exp(eta())

    def beta_binomial():
        mean, total = pm.math.invlogit(eta()), pm.HalfNormal("total")
        pm.BetaBinomial("y", n=pm.Data("n", counts + 9), alpha=mean * total, beta=(1 - mean) * total, observed=counts)

    def zeros(psi):
        return lambda: pm.ZeroInflatedPoisson("y", psi=psi(), mu=mu(), observed=counts)

    wanted = ["b", "b_effect[0]", "b_effect[1]"]
    cases = (
        (lambda: pm.Poisson("y", pm.Data("exposure", counts + 1.0) * mu(), observed=counts), wanted),
        (lambda: pm.NegativeBinomial("y", mu=mu(), alpha=pm.HalfNormal("alpha"), observed=counts), wanted),
        (lambda: pm.Binomial("y", n=pm.Data("n", counts + 9), logit_p=eta(), observed=counts), wanted),
        (zeros(lambda: pm.Beta("psi", 1, 1)), wanted),
        (lambda: pm.Gamma("y", alpha=(k := pm.Uniform("k")), beta=k / mu(), observed=1.0 + counts), wanted),
        (beta_binomial, wanted),
        (zeros(lambda: pm.math.invlogit(eta("of_zeros"))), []),
        (lambda: pm.Poisson("y", pm.HalfNormal("rate"), observed=counts), []),
        (lambda: [pm.Poisson(name, pm.math.exp(eta(f"of_{name}")), observed=counts) for name in "yz"], []),
    )
    for make, labels in cases:
        with pm.Model() as model:
            make()
        parameters = ParameterVector(model)
        found = structure_of(model, parameters).in_predictor
        assert sorted(parameters.labels[place] for place in np.flatnonzero(found)) == labels


def test_along_which_direction_all_linear_predictors_rise():
    """A free scalar that is added to all else, or the levels of groups; nothing that has a factor or a transform."""
    x, counts, group = np.arange(16.0).reshape(8, 2), np.arange(8), np.arange(8) % 3
    exp, Normal = pm.math.exp, pm.Normal

    def slopes():
        return pm.Data("x", x) @ Normal("b", shape=2)

    def levels(center=0.0):
        return Normal("level", center, 1, shape=3)

    def member(values):
        return values[pm.Data("g", group)]

    def poisson(make):
        return lambda: pm.Poisson("y", exp(make()), observed=counts)

    def gamma():
        shape, mean = pm.HalfNormal("shape"), exp(Normal("a") + slopes())
        pm.Gamma("y", shape, shape / mean, observed=counts + 1.0)

    def beta_binomial():
        mean, total = pm.math.invlogit(Normal("a") + slopes()), pm.HalfNormal("total")
        pm.BetaBinomial("y", n=pm.Data("n", counts + 9), alpha=mean * total, beta=(1 - mean) * total, observed=counts)

    def exposed():
        pm.Poisson("y", pm.Data("exposure", counts + 1.0) * exp(Normal("a") + slopes()), observed=counts)

    def many_zeros():
        pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 1, 1), mu=exp(Normal("a") + slopes()), observed=counts)

    def many_zeros_and_a_shape():
        psi, alpha, mean = pm.Beta("psi", 1, 1), pm.HalfNormal("alpha"), exp(Normal("a") + slopes())
        pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=mean, alpha=alpha, observed=counts)

    def by_sd():
        pm.Gamma("y", mu=exp(Normal("a") + slopes()), sigma=pm.HalfNormal("sd"), observed=counts + 1.0)

    def negative_binomial():
        alpha = pm.HalfNormal("alpha")
        pm.NegativeBinomial("y", mu=pm.Deterministic("mu", exp(Normal("a") + slopes())), alpha=alpha, observed=counts)

    def of_zeros():
        pm.ZeroInflatedPoisson("y", psi=pm.math.invlogit(Normal("p") + slopes()), mu=exp(Normal("a")), observed=counts)

    def difference():
        level = levels()
        return member(level) - level[pm.Data("other", group[::-1])]

    def centred():
        level = levels()
        return member(level - level.mean()) + slopes()

    def twice(of_a):
        return lambda: of_a(Normal("a")) + slopes()

    of_groups = ["level[0]", "level[1]", "level[2]"]
    cases = (
        (poisson(lambda: Normal("a") + slopes()), ["a"]),
        (poisson(lambda: Normal("a") + slopes() + pm.math.log(pm.Data("exposure", counts + 1.0))), ["a"]),
        (poisson(lambda: pm.Deterministic("eta", Normal("a") - slopes())), ["a"]),
        (poisson(lambda: slopes() - Normal("a")), []),
        (poisson(lambda: 3.0 * Normal("a") + slopes()), []),
        (poisson(lambda: pm.HalfNormal("a") + slopes()), []),
        (poisson(slopes), []),
        (poisson(lambda: Normal("a")), []),
        (poisson(lambda: member(levels(Normal("mu"))) + slopes()), of_groups),
        (poisson(lambda: member(levels()) + slopes() + Normal("a")), ["a"]),
        (poisson(lambda: member(Normal("a") + pm.HalfNormal("tau") * levels()) + slopes()), ["a"]),
        (poisson(lambda: member(levels()) * pm.Data("z", x[:, 0]) + slopes()), []),
        (poisson(lambda: levels()[0] + slopes()), ["level[0]"]),
        (poisson(lambda: (b := levels())[0] + b[1] * x[:, 0] + b[2] * x[:, 1]), ["level[0]"]),
        (poisson(lambda: (b := levels())[-1] + pm.math.dot(x, b[:2])), ["level[2]"]),
        (poisson(lambda: (b := levels())[0] + pm.math.dot(x, b[:2])), []),
        (poisson(lambda: (b := levels())[0] + b.sum() * x[:, 0]), []),
        (poisson(lambda: pm.HalfNormal("c", shape=3)[0] + slopes()), []),
        (poisson(lambda: levels()[pm.Data("which", np.array([0]))[0]] + slopes()), []),
        (poisson(difference), []),
        (poisson(centred), []),
        *((poisson(twice(of_a)), []) for of_a in (lambda a: a + a, lambda a: a - a + 1, lambda a: a + exp(a))),
        (poisson(twice(lambda a: a + a * pm.Data("z", x[:, 0]))), []),
        (gamma, ["a"]),
        (by_sd, ["a"]),
        (beta_binomial, ["a"]),
        (exposed, ["a"]),
        (many_zeros, ["a"]),
        (many_zeros_and_a_shape, ["a"]),
        (lambda: pm.HurdlePoisson("y", 0.5, exp(Normal("a") + slopes()), observed=counts), ["a"]),
        (
            lambda: pm.Censored(
                "y", pm.Exponential.dist(exp(Normal("a") + slopes())), None, 9.0, observed=1.0 + counts
            ),
            ["a"],
        ),
        (negative_binomial, ["a"]),
        (of_zeros, []),
        (lambda: pm.Binomial("y", n=20, logit_p=Normal("a") + slopes(), observed=counts), ["a"]),
        (lambda: pm.Exponential("y", exp(-(Normal("a") + slopes())), observed=counts + 1.0), ["a"]),
    )
    for make, labels in cases:
        with pm.Model() as model:
            make()
        parameters = ParameterVector(model)
        found = structure_of(model, parameters).rise
        assert [parameters.labels[place] for place in np.flatnonzero(found)] == labels
        assert (found[found != 0.0] == 1.0).all()


def test_graphs_that_share_their_parts_are_read_once():
    """In time that is not exponential in how deep they are."""
    counts = np.arange(8)
    with pm.Model() as model:
        eta = pm.Normal("a") + pm.Data("x", 1.0 * counts) * pm.Normal("b")
        for _ in range(60):
            eta = pm.math.sigmoid(eta) * eta
        for _ in range(60):
            eta = eta + eta
        pm.Poisson("y", pm.math.exp(eta), observed=counts)
    assert not structure_of(model, ParameterVector(model)).rise.any()


@pytest.mark.parametrize("n_rows", [3, 8])
def test_a_public_array_as_long_as_the_table_by_chance_is_like_any_other(n_rows):
    """Else a plan would tell how many rows there are."""
    with pm.Model() as model:
        weights = pt.constant(np.array([0.2, 0.3, 0.5]))
        pm.Poisson("y", pm.math.exp(pm.Normal("a")) * weights.sum(), observed=np.zeros(n_rows, dtype=int))
    assert structure_of(model, ParameterVector(model)).in_predictor.all()


@pytest.mark.filterwarnings("error")
def test_rows_that_are_positive_numbers():
    """By the family alone: a transform that PyMC would choose can be that of entries of rows, and warn of them."""
    x = np.ones(8)
    cases = (
        (lambda: pm.Gamma("y", 2.0, pm.HalfNormal("rate"), observed=x), True),
        (lambda: pm.Weibull("y", 2.0, pm.HalfNormal("scale"), observed=x), True),
        (lambda: pm.Wald("y", mu=pm.HalfNormal("mu"), lam=2.0, observed=x), True),
        (lambda: pm.HalfNormal("y", pm.HalfNormal("scale"), observed=x), True),
        (lambda: pm.Censored("y", pm.Exponential.dist(pm.HalfNormal("rate")), None, 3.0, observed=x), True),
        (lambda: pm.Censored("y", pm.LogNormal.dist(pm.Normal("mu")), None, 3.0, observed=x), True),
        (lambda: pm.Censored("y", pm.Normal.dist(pm.Normal("mu")), None, 3.0, observed=x), False),
        (lambda: pm.LogNormal("y", pm.Normal("mu"), observed=x), False),
        (lambda: pm.Normal("y", pm.Normal("mu"), observed=x), False),
        (lambda: pm.Beta("y", 2.0, pm.HalfNormal("b"), observed=0.5 * x), False),
        (lambda: pm.InverseGamma("y", 2.0, pm.HalfNormal("b"), observed=x), False),
        (lambda: pm.HurdleGamma("y", 0.5, 2.0, pm.HalfNormal("b"), observed=x), False),
        (lambda: pm.Poisson("y", pm.HalfNormal("rate"), observed=x.astype(int)), False),
        (lambda: [pm.Gamma(name, 2.0, pm.HalfNormal(f"of_{name}"), observed=x) for name in "yz"], False),
    )
    for make, wanted in cases:
        with pm.Model() as model:
            make()
        assert structure_of(model, ParameterVector(model)).rows_are_positive == wanted


@pytest.mark.parametrize(("initval", "start"), [(None, 4.0), (30.0, 30.0)])
def test_degrees_of_freedom_of_rows_start_where_tails_are_heavy(initval, start):
    with pm.Model() as model:
        scale = pm.StudentT("scale", nu=pm.HalfNormal("of_prior"), mu=0.0, sigma=1.0)
        nu = pm.Gamma("nu", 2.0, 0.1, initval=initval)
        pm.StudentT("y", nu=nu, mu=pm.Data("x", np.ones(8)), sigma=pm.math.exp(scale), observed=np.ones(8))
    parameters = ParameterVector(model)
    found = structure_of(model, parameters)
    assert [parameters.labels[place] for place in found.degrees_of_freedom] == ["nu_log__"]
    np.testing.assert_allclose(np.exp(found.start[found.degrees_of_freedom]), start)


def _student_t(nu=4.0, mu=None, sigma=None):
    x = pm.Data("x", np.ones(8))
    mu = pm.Normal("a") + pm.Normal("b") * x if mu is None else mu(x)
    scale = pm.HalfNormal("s") if sigma is None else sigma(x)
    pm.StudentT("y", nu=nu, mu=mu, sigma=scale, observed=np.ones(8))


@pytest.mark.parametrize(
    ("make", "constant", "free"),
    [
        (_student_t, 4.0, []),
        (lambda: _student_t(nu=pt.constant(7)), 7.0, []),
        (lambda: _student_t(nu=pm.Gamma("nu", 2.0, 0.1)), 0.0, ["nu_log__"]),
        (lambda: _student_t(nu=pm.Deterministic("nu", pm.Exponential("n", 1.0) + 1.0)), 1.0, ["n_log__"]),
        (lambda: _student_t(nu=2.0 + (1.5 + pm.Exponential("n", 1.0))), 3.5, ["n_log__"]),
        (lambda: _student_t(mu=lambda x: pm.HalfNormal("tau") * pm.Normal("b") * x), np.nan, []),
        (lambda: _student_t(mu=lambda x: pm.math.exp(pm.Normal("b") * x)), np.nan, []),
        (lambda: _student_t(sigma=lambda x: pm.math.exp(pm.Normal("c") * x)), np.nan, []),
        (lambda: _student_t(sigma=lambda x: 1.0), np.nan, []),
        (lambda: _student_t(nu=2.0 * pm.Exponential("n", 1.0)), np.nan, []),
        (lambda: _student_t(nu=pm.Exponential("n", 1.0) + pm.Exponential("m", 1.0)), np.nan, []),
        (lambda: _student_t(nu=pm.Data("each", np.full(8, 4.0))), np.nan, []),
        (lambda: _student_t(nu=pm.Data("n", 4.0)), np.nan, []),
        (lambda: pm.Normal("y", pm.Normal("a") * pm.Data("x", np.ones(8)), 1.0, observed=np.ones(8)), np.nan, []),
    ],
)
def test_degrees_of_freedom_are_a_constant_and_at_most_one_variable(make, constant, free):
    """Of rows with a linear location and a free scale; no data is read."""
    with pm.Model() as model:
        make()
    parameters = ParameterVector(model)
    found = structure_of(model, parameters)
    np.testing.assert_equal(found.constant_degrees, constant)
    assert [parameters.labels[place] for place in found.degrees_of_freedom] == free


def test_rows_with_more_than_a_linear_location_have_no_constant_degrees_of_freedom():
    with pm.Model() as model:
        nu, scale = pm.Gamma("nu", 2.0, 0.1), pm.HalfNormal("s")
        x = pm.Data("x", np.ones(8))
        pm.StudentT("y", nu=nu, mu=pm.Normal("a") * x + pt.log(nu), sigma=scale, observed=np.ones(8))
    assert np.isnan(structure_of(model, ParameterVector(model)).constant_degrees)
    with pm.Model() as model:
        scale, a = pm.HalfNormal("s"), pm.Normal("a")
        pm.StudentT("y", nu=4.0, mu=a * pm.Data("x", np.ones(8)) + pt.log(scale), sigma=scale, observed=np.ones(8))
    assert np.isnan(structure_of(model, ParameterVector(model)).constant_degrees)
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.StudentT("y", nu=4.0, mu=a * pm.Data("x", np.ones(8)), sigma=pm.HalfNormal("s"), observed=np.ones(8))
        pm.Potential("p", -(a**2))
    assert np.isnan(structure_of(model, ParameterVector(model)).constant_degrees)
    with pm.Model() as model:
        mean = pm.Normal("a") * pm.Data("x", np.ones((8, 1)))
        pm.StudentT("y", nu=4.0, mu=mean, sigma=pm.HalfNormal("s"), observed=np.ones((8, 2)))
    assert np.isnan(structure_of(model, ParameterVector(model)).constant_degrees)


def test_a_logarithm_that_is_added_to_that_of_the_scale_is_a_scale():
    """As formulas for the scale have it; and no slope, no effect of a group, nothing outside of a sum in exp."""

    def formula(x, *, family=pm.Normal):
        of_row = pm.Data("x", x) * pm.Normal("slope") + pm.Normal("effect", shape=2)[pm.Data("g", x.astype(int) % 2)]
        family("y", pm.Normal("a"), pm.Deterministic("s", pm.math.exp(0.0 + pm.Normal("c")[None] + of_row)), observed=x)

    def product(x):
        pm.Normal("y", pm.Normal("a"), pm.math.exp(pm.Normal("c") * pm.Data("x", x)), observed=x)

    def known(x):
        pm.Normal("y", pm.Normal("a"), 1.0 + pm.math.exp(pm.Normal("c")), observed=x)

    def of_counts(x):
        pm.Poisson("y", pm.math.exp(pm.Normal("c") + pm.Data("x", x)), observed=x.astype(int))

    log_normal = functools.partial(formula, family=pm.LogNormal)
    for make, wanted in ((formula, ["c"]), (log_normal, ["c"]), (product, []), (known, []), (of_counts, [])):
        with pm.Model() as model:
            make(np.arange(1.0, 9.0))
        parameters = ParameterVector(model)
        for found in (all_scales(model, parameters), scale_of_rows(model, parameters)):
            assert [parameters.labels[place] for place in np.flatnonzero(found)] == wanted
        assert not scale_of_rows(model, parameters, symmetric=True).any()


def test_a_logarithm_in_the_location_of_an_asymmetric_laplace_distribution_is_no_scale():
    """Its scale is its first parameter, and the last one its location."""
    x = np.arange(1.0, 9.0)
    with pm.Model() as model:
        mean = pm.math.exp(pm.Normal("a") + pm.Normal("b") * pm.Data("x", x))
        pm.AsymmetricLaplace("y", mu=mean, b=pm.math.exp(pm.Normal("c") + 0.1), q=0.3, observed=x)
    parameters = ParameterVector(model)
    for found in (all_scales(model, parameters), scale_of_rows(model, parameters)):
        assert [parameters.labels[place] for place in np.flatnonzero(found)] == ["c"]
    assert structure_of(model, parameters).power_of_followed == 2.0


def gamma_by_its_mean(mean, shape):
    pm.Gamma("y", alpha=shape, beta=shape / mean, observed=np.ones(8))


def gamma_by_its_rate(mean, shape):
    pm.Gamma("y", alpha=shape, beta=1.0 / mean, observed=np.ones(8))


def gamma_with_its_shape_in_the_mean(mean, shape):
    gamma_by_its_mean(mean * shape, shape)


def gamma_by_its_deviation(mean, shape):
    pm.Gamma("y", mu=mean, sigma=shape, observed=np.ones(8))


def gamma_of_a_varying_shape(mean, shape):
    gamma_by_its_mean(mean, shape**2)


def wald_by_its_shape(mean, shape):
    pm.Wald("y", mu=mean, lam=shape, observed=np.ones(8))


def wald_by_its_ratio(mean, shape):
    pm.Wald("y", mu=mean, phi=shape, observed=np.ones(8))


@pytest.mark.parametrize(
    ("family", "proportional"),
    [
        (gamma_by_its_mean, True),
        (gamma_by_its_rate, False),
        (gamma_with_its_shape_in_the_mean, False),
        (gamma_by_its_deviation, False),
        (gamma_of_a_varying_shape, False),
        (wald_by_its_shape, True),
        (wald_by_its_ratio, True),
    ],
)
def test_information_on_a_mean_is_proportional_to_a_shape_that_is_not_in_it(family, proportional):
    with pm.Model() as model:
        mean = pm.math.exp(pm.Data("x", np.ones((8, 2))) @ pm.Normal("b", shape=2))
        family(mean, pm.Exponential("shape", pm.Exponential("rate", 1.0)))
    parameters = ParameterVector(model)
    found = structure_of(model, parameters)
    wanted = (["shape_log__"], 1.0) if proportional else ([], -2.0)
    assert ([parameters.labels[place] for place in found.followed], found.power_of_followed) == wanted


def test_a_shape_of_each_group_is_not_one_number():
    with pm.Model() as model:
        shapes = pm.Exponential("shape", 1.0, shape=2)[pm.Data("g", np.arange(8) % 2)]
        gamma_by_its_mean(pm.math.exp(pm.Normal("a")), shapes)
    assert not structure_of(model, ParameterVector(model)).followed.size


@pytest.mark.parametrize("exponents", [np.zeros(8), np.ones(8)])
def test_no_entry_of_an_array_decides_whether_a_shape_is_in_the_mean(exponents):
    """A simplified power of zero would be 1: whether rows hold zeros alone must not be seen."""
    with pm.Model() as model:
        shape = pm.Exponential("shape", 1.0)
        gamma_by_its_mean(pm.math.exp(pm.Normal("a")) * shape**exponents, shape)
    assert not structure_of(model, ParameterVector(model)).followed.size


def linear(x, mean, scale=lambda: pm.HalfNormal("sigma"), family=pm.Normal):
    family("y", mean(x), scale(), observed=x)


STRAIGHT = {
    "a mean": lambda x: linear(x, lambda x: pm.Normal("a")),
    "a product": lambda x: linear(
        x, lambda x: pm.Normal("a") + pm.Data("x", np.tile(x[:, None], 2)) @ pm.Normal("b", shape=2)
    ),
    "groups": lambda x: linear(
        x, lambda x: pm.Normal("b", 0.0, pm.HalfNormal("tau"), shape=3)[pm.Data("g", x.astype(int) % 3)]
    ),
    "logarithms": lambda x: linear(x, lambda x: pm.Normal("a") * pm.Data("x", x), family=pm.LogNormal),
}
BENT = {
    "a power": lambda x: linear(x, lambda x: pm.math.exp(pm.Normal("a") * pm.Data("x", x))),
    "a positive slope": lambda x: linear(x, lambda x: pm.HalfNormal("a") * pm.Data("x", x)),
    "a hierarchy that is not centred": lambda x: linear(
        x, lambda x: (pm.HalfNormal("tau") * pm.Normal("z", shape=3))[pm.Data("g", x.astype(int) % 3)]
    ),
    "a known scale": lambda x: linear(x, lambda x: pm.Normal("a"), scale=lambda: 1.0),
    "a function of a scale": lambda x: linear(
        x, lambda x: pm.Normal("a"), scale=lambda: 2.0 * pm.HalfNormal("sigma") ** 2
    ),
    "a scale with a hierarchy": lambda x: linear(
        x, lambda x: pm.Normal("a"), scale=lambda: pm.HalfNormal("sigma", pm.HalfNormal("above"))
    ),
    "another family": lambda x: linear(x, lambda x: pm.Normal("a"), family=pm.Laplace),
}


@pytest.mark.parametrize("name", [*STRAIGHT, *BENT])
def test_linear_means_and_free_scales_are_told_from_others(name):
    with pm.Model() as model:
        (STRAIGHT | BENT)[name](np.arange(1.0, 9.0))
    assert is_linear_and_normal(model) == (name in STRAIGHT)


@pytest.mark.parametrize("covariate", [np.zeros(8), np.ones(8), np.arange(8.0)])
def test_constants_of_rows_are_not_read(covariate):
    """Rewriting would fold a covariate of zeros: what is bent for one table would be linear for another."""
    with pm.Model() as model:
        linear(np.arange(8.0), lambda x: pm.Normal("b") + pm.math.exp(pm.Normal("a") * covariate))
    assert not is_linear_and_normal(model)


COLUMN = np.arange(1.0, 9.0)


def names_at(model, found_in):
    """Return the names of the free variables at the places that `found_in` tells."""
    parameters = ParameterVector(model)
    found = found_in(model, parameters)
    return {name for name, entries in zip(parameters.names, parameters.slices, strict=True) if found[entries].all()}


def heights(scale, family=pm.Normal, **more):
    """Three numbers a row, whose location `family` and a scale make."""
    family("y", mu=pm.Normal("mu", 0.0, 100.0, shape=3), observed=np.ones((9, 3)), **scale(), **more)


def cholesky():
    return {"chol": pm.LKJCholeskyCov("factor", n=3, eta=2.0, sd_dist=pm.HalfNormal.dist())[0]}


LOCATED = {
    "a vector": (lambda: heights(cholesky, pm.MvNormal), {"mu"}),
    "a vector with heavy tails": (lambda: heights(cholesky, pm.MvStudentT, nu=4), {"mu"}),
    "several scales": (lambda: heights(lambda: {"sigma": pm.HalfNormal("s", shape=3)}), {"mu"}),
    "a scale that follows a covariate": (
        lambda: linear(COLUMN, lambda x: pm.Normal("a") * x, lambda: pm.math.exp(pm.Normal("b") * COLUMN)),
        {"a"},
    ),
    "part of the scale, too": (
        lambda: linear(COLUMN, lambda x: pm.Normal("a") + pm.Normal("b"), lambda: pm.modelcontext(None)["b"] ** 2),
        {"a"},
    ),
    "a logarithm of a scale": (
        lambda: linear(COLUMN, lambda x: pm.math.log(pm.HalfNormal("a")), family=pm.LogNormal),
        set(),
    ),
    "part of the tails, too": (
        lambda: heights(cholesky, pm.MvStudentT, nu=4.0 + pm.Normal("nu") ** 2),
        {"mu"},
    ),
    "no straight line": (lambda: linear(COLUMN, lambda x: pm.math.exp(pm.Normal("a"))), set()),
    "another family": (lambda: linear(COLUMN, lambda x: pm.Normal("a"), family=pm.Gumbel), set()),
}


@pytest.mark.parametrize(
    ("make", "slope"),
    [
        (lambda: 3.0 * pm.HalfNormal("s"), 1.0),
        (lambda: pm.math.exp(pm.Deterministic("log_s", pm.Normal("s") / 2.0)), 0.5),
        (lambda: 1.0 / pm.Gamma("s", 1.0, 1.0) ** 2, -2.0),
    ],
)
def test_the_log_scale_is_a_multiple_of_one_unconstrained_value(make, slope):
    with pm.Model() as model:
        linear(COLUMN, lambda x: pm.Normal("a"), make)
    found, power = slope_of_log_scale(model, model["y"].owner.op.dist_params(model["y"].owner)[1])
    assert found is model["s"]
    assert power == pytest.approx(slope)
    parameters = ParameterVector(model)
    structure = structure_of(model, parameters)
    assert structure.power_of_followed == pytest.approx(-2.0 * slope)
    assert [parameters.variables[place] for place in structure.followed] == ["s"]
    assert structure.normal == (slope == 1.0)


def test_a_log_scale_is_recognised_in_single_precision():
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        linear(COLUMN.astype("float32"), lambda x: pm.Normal("a"), lambda: 3.0 * pm.HalfNormal("s"))
        assert slope_of_log_scale(model, model["y"].owner.op.dist_params(model["y"].owner)[1]) == (model["s"], 1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: 3.0 + pm.HalfNormal("s"),
        lambda: pm.HalfNormal("s") * pm.Data("unit", 2.0),
        lambda: pm.HalfNormal("s") * np.array([2.0]),
        lambda: pm.HalfNormal("s") * COLUMN,
        lambda: pm.HalfNormal("s") * COLUMN.max() * pm.Data("x", COLUMN)[0],
        lambda: pm.HalfNormal("s") * pm.HalfNormal("t"),
        lambda: pm.HalfNormal("s", pm.HalfNormal("t")),
        lambda: pm.Uniform("s", 0.0, 2.0),
        lambda: 2.0,
    ],
)
def test_a_scale_with_other_inputs_than_single_numbers_is_not_read(make):
    with pm.Model() as model:
        linear(COLUMN, lambda x: pm.Normal("a"), make)
    found, slope = slope_of_log_scale(model, model["y"].owner.op.dist_params(model["y"].owner)[1])
    assert found is None
    assert np.isnan(slope)


def test_a_search_begins_within_the_bounds_of_priors():
    with pm.Model() as model:
        nu = pm.TruncatedNormal("nu", 9.0, 9.0, lower=6.0, upper=30.0)
        slope = pm.HalfNormal("b")
        pm.StudentT("y", nu=nu, mu=slope * pm.Data("x", COLUMN), sigma=pm.HalfNormal("s"), observed=COLUMN)
    form = in_coordinates(model)
    found = structure_of(form, ParameterVector(form))
    least, most = found.bounds
    assert np.log(6.0) < least[0] < np.log(6.01)
    assert np.log(29.9) < most[0] < np.log(30.0)
    assert found.start[0] == least[0]  # 4 is too few
    assert 0.0 < least[1] < 0.01
    assert (least[2], most[2]) == (-np.inf, np.inf)
    np.testing.assert_array_equal(found.within(np.array([9.0, -1.0, 7.0])), [most[0], least[1], 7.0])


@pytest.mark.parametrize("name", LOCATED)
def test_the_location_of_normal_rows_is_told_from_all_else(name):
    build, free = LOCATED[name]
    assert names_at(made(build), location_of_normal_rows) == free


def test_what_another_outcome_depends_on_or_a_potential_is_no_location_alone():
    def two(link):
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", a + b * COLUMN, pm.HalfNormal("sigma"), observed=COLUMN)
        pm.Bernoulli("z", logit_p=link(a), observed=(COLUMN > 4.0).astype(int))

    assert names_at(made(lambda: two(lambda a: pm.Normal("c") * COLUMN)), location_of_normal_rows) == {"a", "b"}
    assert names_at(made(lambda: two(lambda a: a * COLUMN)), location_of_normal_rows) == {"b"}
    with made(lambda: two(lambda a: pm.Normal("c") * COLUMN)) as model:
        pm.Normal("bent", pm.math.exp(model["a"]), 1.0, observed=COLUMN)
    assert names_at(model, location_of_normal_rows) == {"b"}
    with made(lambda: two(lambda a: pm.Normal("c") * COLUMN)) as model:
        pm.Potential("more", -(model["b"] ** 2))
    assert names_at(model, location_of_normal_rows) == {"a"}


def test_diagonals_of_cholesky_factors_are_logarithms_of_scales():
    parameters = ParameterVector(model := made(LOCATED["a vector"][0]))
    first = parameters.slices[parameters.names.index("factor_cholesky-cov-packed__")].start
    assert np.flatnonzero(all_scales(model, parameters)).tolist() == [first, first + 2, first + 5]
    with pm.Model() as model:  # of effects of groups that are not centred
        factor = cholesky()["chol"]
        pm.Normal("y", (pm.Normal("z", shape=(4, 3)) @ factor.T)[COLUMN.astype(int) % 4, 0], 1.0, observed=COLUMN)
    assert not all_scales(model, ParameterVector(model)).any()


def test_a_potential_may_be_part_of_the_likelihood():
    with pm.Model() as model:
        linear(np.arange(1.0, 9.0), lambda x: pm.Normal("a"))
        pm.Potential("more", -(model["a"] ** 2))
    assert not is_linear_and_normal(model)


def test_scales_of_censored_rows():
    """Of location-scale families, and of Weibull's, where the location has no part in the scale, nor the other way."""
    x, cut = np.linspace(0.5, 1.5, 8), functools.partial(pm.Censored, "y", lower=None, upper=3.0)

    def eta():
        return pm.Data("x", x) * pm.Normal("beta")

    def hazards():
        shape = pm.Exponential("shape", 1.0)
        cut(pm.Weibull.dist(shape, pm.math.exp(eta() / shape)), observed=x)

    cases = (
        (lambda: cut(pm.Normal.dist(eta(), pm.HalfNormal("sigma")), observed=x), {"sigma_log__": 1.0}),
        (lambda: cut(pm.LogNormal.dist(eta(), pm.HalfNormal("sigma")), observed=x), {"sigma_log__": 1.0}),
        (lambda: cut(pm.Gumbel.dist(eta(), pm.HalfNormal("sigma")), observed=x), {"sigma_log__": 1.0}),
        (lambda: cut(pm.StudentT.dist(4.0, mu=eta(), sigma=pm.HalfNormal("sigma")), observed=x), {"sigma_log__": 1.0}),
        (lambda: cut(pm.AsymmetricLaplace.dist(2.0, eta(), pm.HalfNormal("rate")), observed=x), {"rate_log__": -1.0}),
        (lambda: cut(pm.Weibull.dist(pm.HalfNormal("k"), pm.math.exp(eta())), observed=x), {"k_log__": -1.0}),
        (lambda: cut(pm.Normal.dist(eta(), pm.Uniform("sigma", 0.0, 9.0)), observed=x), {}),
        (lambda: cut(pm.Normal.dist(eta(), pm.HalfNormal("sigma", shape=8)), observed=x), {}),
        (lambda: cut(pm.Normal.dist(eta(), pm.math.exp(eta_of_scale())), observed=x), {}),
        (lambda: cut(pm.Gamma.dist(pm.HalfNormal("k"), pm.math.exp(eta())), observed=x), {}),
        (hazards, {}),
        (
            lambda: cut(pm.Normal.dist(eta(), pm.HalfNormal("sigma")), lower=0.0, upper=None, observed=x),
            {"sigma_log__": 1.0},
        ),
        (lambda: cut(pm.Normal.dist(eta(), pm.HalfNormal("sigma")), lower=0.0, observed=x), {}),  # on both sides
        (lambda: pm.Normal("y", eta(), pm.HalfNormal("sigma"), observed=x), {}),
    )

    def eta_of_scale():
        return pm.Data("z", x) * pm.Normal("gamma")

    for make, wanted in cases:
        with pm.Model() as model:
            make()
        parameters = ParameterVector(model)
        found = structure_of(model, parameters).scale_of_censored
        assert {parameters.labels[place]: found[place] for place in np.flatnonzero(found)} == wanted
