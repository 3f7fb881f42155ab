import functools
import math
import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from conftest import gaussian_data, gaussian_model, logistic_data, logistic_model
from hypothesis import given, settings, strategies as st

import pymc_dp as dp
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.view import read
from pymc_dp.release import ExpansionPoint, Prediction
from pymc_dp.rows import UnitLikelihood, check
from pymc_dp.rows.graphs import DENSE, GATHER, PRODUCT

GRID = 2.0**-35


def normal(x, y):
    beta = pm.Normal("beta", shape=3)
    pm.Normal("y", pm.Data("x", x) @ beta, pm.HalfNormal("sigma"), observed=x[:, 1])


def hierarchical(x, y):
    group = np.arange(len(y)) % 5
    effect = pm.Normal("effect", pm.Normal("mu"), pm.HalfNormal("tau"), shape=5)
    pm.Poisson("y", pm.math.exp(effect[group] + pm.Normal("slope") * x[:, 1]), observed=y)


def simplex(x, y):
    weights = pm.Dirichlet("weights", np.ones(3))
    pm.StudentT("y", nu=4, mu=(x * weights).sum(-1), sigma=pm.HalfNormal("sigma"), observed=x[:, 2])


def softmax(x, y):
    coefficients = pm.Normal("coefficients", shape=(3, 4))
    pm.Categorical("y", logit_p=pm.Data("x", x) @ coefficients, observed=y)


def two_observed(x, y):
    rate, scale = pm.Normal("rate"), pm.HalfNormal("scale")
    pm.Bernoulli("y", logit_p=rate * x[:, 1], observed=y)
    pm.Normal("z", rate, scale, observed=x[:, 2])


def multivariate(x, y):
    cholesky, _, _ = pm.LKJCholeskyCov("cholesky", n=3, eta=2, sd_dist=pm.HalfNormal.dist(shape=3))
    pm.MvNormal("y", pm.Normal("mu", shape=3), chol=cholesky, observed=x)


def mixture(x, y):
    pm.NormalMixture("y", pm.Dirichlet("w", np.ones(2)), pm.Normal("mu", shape=2), 0.7, observed=x[:, 1])


def zero_inflated(x, y):
    pm.ZeroInflatedPoisson("y", pm.Beta("p", 2, 2), pm.HalfNormal("rate"), observed=y)


def censored(x, y):
    latent = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
    pm.Censored("y", latent, lower=-0.5, upper=None, observed=np.maximum(x[:, 1], -0.5))


def non_centred(x, y):
    slopes = pm.Normal("mu") + pm.HalfNormal("tau") * pm.Normal("z", shape=3)
    effect = pm.Normal("centre") + pm.HalfNormal("spread") * pm.Normal("offset", shape=7)
    group = pm.Data("group", np.arange(len(y)) % 7)
    pm.Bernoulli("y", logit_p=pm.math.dot(pm.Data("x", x), slopes) - effect[group], observed=y)


def random_slopes(x, y):
    effect = pm.Normal("effect", shape=(4, 3))
    group = np.arange(len(y)) % 4
    pm.Normal("y", (effect[group] * x).sum(axis=-1), pm.HalfNormal("sigma"), observed=x[:, 1])


def random_slopes_and_means(x, y):
    effect, mean = pm.Normal("effect", shape=(4, 3)), pm.Normal("mean", shape=3)
    group = np.arange(len(y)) % 4
    pm.Normal("y", (effect[group] * x).sum(axis=-1) + pm.math.dot(pm.Data("x", x), mean), 0.5, observed=x[:, 1])
    pm.Normal("z", pm.Normal("level"), 1.0, observed=x[:, 2])


def negative_binomial(x, y):
    rate = pm.math.exp(pm.math.dot(x, pm.Normal("beta", shape=3)))
    pm.NegativeBinomial("y", mu=rate, alpha=pm.HalfNormal("alpha"), observed=y)


def gamma(x, y):
    pm.Gamma("y", alpha=pm.HalfNormal("alpha"), beta=pm.HalfNormal("beta"), observed=np.abs(x[:, 1]) + 0.1)


def beta(x, y):
    pm.Beta("y", alpha=pm.HalfNormal("alpha"), beta=pm.HalfNormal("beta"), observed=(x[:, 1] + 1.2) / 2.4)


def binomial(x, y):
    pm.Binomial("y", n=4, logit_p=pm.math.dot(x, pm.Normal("beta", shape=3)), observed=y * 3)


def ordered_logistic(x, y):
    cutpoints = pm.Normal("cutpoints", [-1.0, 0.5], 1.0, shape=2, transform=pm.distributions.transforms.ordered)
    pm.OrderedLogistic("y", eta=pm.Normal("slope") * x[:, 1], cutpoints=cutpoints, observed=y)


def truncated(x, y):
    latent = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
    pm.Truncated("y", latent, lower=-2.0, upper=2.0, observed=x[:, 1])


def dirichlet_multinomial(x, y):
    counts = np.column_stack([y, 2 - y, np.ones_like(y)])
    pm.DirichletMultinomial("y", n=3, a=pm.HalfNormal("a", shape=3), observed=counts)


def zero_sum(x, y):
    pm.Normal("y", pm.ZeroSumNormal("effect", shape=4)[np.arange(len(y)) % 4], 1.0, observed=x[:, 1])


FAMILIES = [
    normal,
    non_centred,
    random_slopes,
    random_slopes_and_means,
    negative_binomial,
    gamma,
    beta,
    binomial,
    ordered_logistic,
    truncated,
    dirichlet_multinomial,
    zero_sum,
    hierarchical,
    simplex,
    softmax,
    two_observed,
    multivariate,
    mixture,
    zero_inflated,
    censored,
]


def build(family, n=37):
    x, y = logistic_data(n)
    with pm.Model() as model:
        family(x, y)
    return model


@functools.cache
def compiled(family):
    """Return a model and its rows: compiling takes longer than a test."""
    model = build(family)
    return model, UnitLikelihood(read(model))


def row_log_likelihoods(model, rows):
    """The second route: PyMC's own elementwise log-probability, as a function of theta."""
    function = model.compile_logp(vars=model.observed_RVs, sum=False)

    def at(theta):
        parts = function(rows.parameters.to_point(theta))
        return sum(np.asarray(part).reshape(rows.n_rows, -1).sum(axis=1) for part in parts)

    return at


#: What takes long to compile, or goes through the same code as another family.
_MORE_SUMS = (multivariate, truncated, negative_binomial, gamma, beta, binomial, random_slopes, ordered_logistic)


@pytest.mark.few(8)
@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=[pytest.mark.nightly] if each in _MORE_SUMS else []) for each in FAMILIES],
    ids=lambda family: family.__name__,
)
def test_clipped_sums_match_a_loop_over_rows(family):
    model, rows = compiled(family)
    generator = np.random.default_rng(1)
    theta, direction = generator.normal(scale=0.3, size=(2, rows.n_parameters))
    step = 1e-5
    log_likelihoods = row_log_likelihoods(model, rows)
    gradients = np.stack(
        [log_likelihoods(theta + step * unit) - log_likelihoods(theta - step * unit) for unit in np.eye(theta.size)],
        axis=1,
    ) / (2 * step)
    norms = np.linalg.norm(gradients, axis=1)
    for bound in (norms.max() * 2, 1.001 * np.median(norms), norms[norms > 0].min() / 2):
        factors = np.minimum(1.0, bound / np.maximum(norms, 1e-300))
        found = rows.clipped_gradient(theta, bound, GRID)
        assert found.value == pytest.approx(factors @ gradients, rel=1e-5, abs=1e-6 * bound * len(norms))
        assert abs(found.n_clipped - np.sum(norms > bound)) <= 1
        assert found.bound == bound
    theta_new = theta + 0.1 * direction
    ratios = log_likelihoods(theta_new) - log_likelihoods(theta)
    for bound in (np.abs(ratios).max() * 2, 1.001 * np.median(np.abs(ratios))):
        found = rows.clipped_log_ratio(theta, theta_new, bound, GRID)
        assert found.value[0] == pytest.approx(np.clip(ratios, -bound, bound).sum(), rel=1e-9, abs=1e-9)
        assert found.n_clipped == pytest.approx(np.sum(np.abs(ratios) > bound), abs=1)


def forget(rows):
    rows._pair = {}


def hold(rows, data):
    """Put other rows into a row engine."""
    rows._table = rows._table.with_rows(data, rows._table.starts)
    forget(rows)


def set_chunk(monkeypatch, size):
    monkeypatch.setattr("pymc_dp.rows.likelihood._CHUNK_ROWS", size)


@pytest.fixture(scope="module")
def logistic_rows():
    x, y = logistic_data(10_011)
    return UnitLikelihood(read(logistic_model(x, y)))


def test_bits_do_not_depend_on_order_or_chunks(logistic_rows, monkeypatch):
    """Hazard H27: sums are of whole numbers: order changes no bit."""
    rows = logistic_rows
    generator = np.random.default_rng(0)
    theta, theta_new = generator.normal(size=(2, 3))
    original = rows._table.rows
    whole = (
        rows.clipped_gradient(theta, 0.7, GRID).integers,
        rows.clipped_log_ratio(theta, theta_new, 0.1, GRID).integers,
    )
    units = rows.all_log_likelihoods(theta)
    order = generator.permutation(rows.n_rows)
    for chunk in (8192, 1, 777) if rows.n_rows < 100 else (8192, 777, 100):
        set_chunk(monkeypatch, chunk)
        for arrangement in (np.arange(rows.n_rows), order):
            hold(rows, [data[arrangement] for data in original])
            assert np.all(rows.clipped_gradient(theta, 0.7, GRID).integers == whole[0])
            assert np.all(rows.clipped_log_ratio(theta, theta_new, 0.1, GRID).integers == whole[1])
            forget(rows)
            assert np.all(rows.all_log_likelihoods(theta) == units[arrangement])
    monkeypatch.undo()
    hold(rows, original)


@pytest.mark.nightly
@pytest.mark.production
@pytest.mark.parametrize("by_group", [False, True])
def test_bits_of_vectors_do_not_depend_on_the_number_of_rows(by_group):
    """Hazard H27: of all rows' vectors together BLAS chooses instructions by how many there are."""
    generator, size, n_rows = np.random.default_rng(0), 12, 103
    vectors, group = generator.normal(size=(n_rows, size)), generator.integers(0, 3, n_rows)
    factor = np.linalg.cholesky(np.eye(size) + 0.3)
    with pm.Model() as model:
        mean = (
            pm.Normal("mean", shape=(3, size))[pm.Data("group", group)] if by_group else pm.Normal("mean", shape=size)
        )
        pm.MvNormal("y", mean, chol=pm.HalfNormal("scale") * dp.public(factor), observed=vectors)
    rows = UnitLikelihood(read(model))

    def gradients(theta, first):
        of_rows = rows.on_rows([each[first:] for each in rows._table.rows])
        return np.concatenate(list(of_rows.each_chunk(lambda chunk: chunk.gradient(theta))))

    for theta in 0.3 * generator.normal(size=(3, rows.n_parameters)):
        whole = gradients(theta, 0)
        for first in (1, 2, 3, 100):
            np.testing.assert_array_equal(gradients(theta, first), whole[first:])


@pytest.mark.parametrize("name", ["long", "half", "float64", "1|g", "1|g_sigma"])
def test_parameters_may_have_names_of_types(name):
    """PyTensor reads such a name as a type; Bambi gives them to effects of groups."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal(name, shape=2).sum(), 1.0, observed=np.arange(5.0))
    assert UnitLikelihood(read(model)).parameters.names == [name]


#: Numba takes longest for these, twenty seconds and more for each.
_AT_NIGHT = (multivariate, ordered_logistic, truncated, mixture, dirichlet_multinomial, simplex, zero_sum)
_AT_NIGHT += (zero_inflated, censored)


@pytest.mark.slow
@pytest.mark.production
@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=[pytest.mark.nightly] if each in _AT_NIGHT else []) for each in FAMILIES],
    ids=lambda family: family.__name__,
)
def test_no_row_of_any_family_depends_on_its_neighbours(family, monkeypatch):
    """Hazard H15: a row's value does not depend on the others or on its place."""
    rows = UnitLikelihood(read(build(family, n=3001)))
    theta = np.random.default_rng(0).normal(scale=0.3, size=rows.n_parameters)
    original, order = rows._table.rows, np.random.default_rng(1).permutation(3001)

    def values():
        forget(rows)
        units = rows.all_log_likelihoods(theta)
        forget(rows)
        return units, rows.clipped_gradient(theta, 0.7, GRID).integers

    units, gradient = values()
    assert np.isfinite(units).all()
    for chunk in (8192, 777, 61):
        set_chunk(monkeypatch, chunk)
        for arrangement in (np.arange(3001), order):
            hold(rows, [data[arrangement] for data in original])
            found_units, found_gradient = values()
            assert np.all(found_units == units[arrangement])
            assert np.all(found_gradient == gradient)


def sums_of(rows, bound):
    theta, theta_new = np.array([0.3, -2.0, 1.0]), np.array([0.1, -2.1, 1.3])
    return rows.clipped_gradient(theta, bound, GRID), rows.clipped_log_ratio(theta, theta_new, bound, GRID)


@functools.cache
def few_rows_and_sums(rows, bound):
    """Return the first rows, and their sums, which are the same for every example of a bound."""
    few = rows.on_rows([data[:1003] for data in rows.rows_of_inputs])
    return few, sums_of(few, bound)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 1.0, -40.0]), min_size=3, max_size=3
    ),
    st.sampled_from([0, 1]),
    st.sampled_from([0.01, 1.0, 50.0]),
)
def test_whatever_one_row_holds_the_sum_moves_within_its_sensitivity(logistic_rows, features, outcome, bound):
    """Hazards H13 and H14: what is summed is what was clipped, whatever a row holds."""
    rows, before = few_rows_and_sums(logistic_rows, bound)
    changed = [data.copy() for data in rows.rows_of_inputs]
    for data in changed:
        data[471] = features if data.ndim == 2 else outcome
    for one, other in zip(before, sums_of(rows.on_rows(changed), bound), strict=True):
        moved = math.sqrt(sum(int(d) ** 2 for d in one.integers - other.integers)) * GRID
        assert moved <= 2.0 * one.bound


def test_log_likelihoods_are_remembered_by_the_whole_point_only(logistic_rows, monkeypatch):
    """Hazard H15: and not those compiled with a gradient, whose last bits may be others."""
    rows = logistic_rows
    forget(rows)
    passes = []
    n_chunks = len(list(rows._chunks(None)))
    for name in ("gradient", "log_likelihood"):
        real = getattr(rows._engine, name)
        counted = functools.partial(lambda real, *args: passes.append(1 / n_chunks) or real(*args), real)
        monkeypatch.setattr(rows._engine, name, counted)
    a, b, c = np.random.default_rng(3).normal(size=(3, 3))
    rows.clipped_gradient(a, 1.0, GRID)
    rows.clipped_log_ratio(a, b, 1.0, GRID)  # both are new: a gradient tells no log-likelihoods
    assert sum(passes) == pytest.approx(3)
    rows.clipped_log_ratio(b, c, 1.0, GRID)  # b is known, c is new
    assert sum(passes) == pytest.approx(4)
    nearly = b.copy()
    nearly[0] = np.nextafter(nearly[0], 9)
    rows.clipped_log_ratio(nearly, c, 1.0, GRID)  # another point, however near
    assert sum(passes) == pytest.approx(5)


def test_a_product_inside_an_operation_is_one_of_each_row():
    """Hazard H15: `pt.einsum` is an operation with a matrix product inside, which BLAS would take of all rows."""
    x = np.random.default_rng(0).normal(size=(40, 16))
    with pm.Model() as model:
        matrix = pm.Normal("matrix", shape=(16, 16))
        table = pm.Data("x", x)
        pm.Normal("y", pt.einsum("ni,ij,nj->n", table, matrix, table), 1.0, observed=x[:, 0])
    rows = UnitLikelihood(read(model))
    theta = np.random.default_rng(1).normal(size=256)
    whole = rows.all_log_likelihoods(theta)
    wanted = -0.5 * (np.log(2.0 * np.pi) + (x[:, 0] - np.sum(x @ theta.reshape(16, 16) * x, axis=1)) ** 2)
    np.testing.assert_allclose(whole, wanted, rtol=1e-9)
    tables = rows.rows_of_inputs
    for length in (1, 2, 7, 33):
        part = rows.on_rows([table[:length] for table in tables])
        assert np.array_equal(part.all_log_likelihoods(theta), whole[:length])


def test_rows_of_one_unit_are_summed_before_clipping():
    y = np.array([1.0, 2.0, -5.0, 0.5, 0.5])
    index = np.array([7, 7, 9, 3, 7])
    theta, bound = np.array([0.25]), 1.5
    rows = UnitLikelihood(read(gaussian_model(y), unit_index=index))
    per_person = [(y - 0.25)[index == person].sum() for person in (3, 7, 9)]
    assert rows.n_units == 3
    found = rows.clipped_gradient(theta, bound, GRID)
    assert found.value[0] == pytest.approx(np.clip(per_person, -bound, bound).sum(), abs=1e-8)
    assert found.n_clipped == 2
    batch = rows.clipped_gradient(theta, bound, GRID, units=np.array([0, 2]))
    assert batch.value[0] == pytest.approx(np.clip([per_person[0], per_person[2]], -bound, bound).sum(), abs=1e-8)
    assert batch.n_clipped == 1
    ratios = [-0.5 * np.sum((y - 0.5)[index == p] ** 2 - (y - 0.25)[index == p] ** 2) for p in (3, 7, 9)]
    ratio = rows.clipped_log_ratio(theta, np.array([0.5]), 0.2, GRID)
    assert ratio.value[0] == pytest.approx(np.clip(ratios, -0.2, 0.2).sum(), abs=1e-8)


def test_unit_index_may_name_a_data_variable():
    with pm.Model() as model:
        pm.Data("patient", np.array([0, 1, 0, 1]))
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.arange(4.0))
    assert UnitLikelihood(read(model, unit_index="patient")).n_units == 2


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("nobody", "names no data variable of the model; it has none"),
        (np.arange(3), "has another length than the table"),
        (np.ones((5, 2), dtype=int), "one whole number for each row, but has 2 axes"),
        (np.linspace(0, 1, 5), "whole numbers, but are float64"),
        (np.array(list("abcde")), r"np.unique\(labels, return_inverse=True\)"),
        (list("abcde"), r"np.unique\(labels, return_inverse=True\)"),
        ([[1, 2], [3]], "one whole number for each row"),
    ],
)
def test_bad_unit_index_is_refused_with_what_to_do(index, message):
    with pytest.raises(InvalidArgument, match=f"unit_index.*{message}") as refused:
        UnitLikelihood(read(gaussian_model(np.arange(5.0)), unit_index=index))
    assert "'c'" not in str(refused.value)  # labels are data


def test_the_names_that_unit_index_may_have_are_listed():
    with pm.Model() as model:
        pm.Data("patient", np.array([0, 1, 0, 1]))
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.arange(4.0))
    for name in ("person", "mu"):
        with pytest.raises(InvalidArgument, match="names no data variable of the model; it has 'patient'"):
            UnitLikelihood(read(model, unit_index=name))


def test_unit_names_another_axis():
    values = np.random.default_rng(0).normal(size=(3, 11))
    with pm.Model(coords={"person": range(11), "item": range(3)}) as model:
        pm.Normal("y", pm.Normal("mu", dims="item")[:, None], 1.0, observed=values, dims=("item", "person"))
    rows = UnitLikelihood(read(model, unit="person"))
    assert rows.n_units == 11
    assert rows.clipped_gradient(np.zeros(3), 100.0, GRID).value == pytest.approx(values.sum(axis=1))


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "bool"])
def test_narrow_types_and_fortran_order(dtype):
    x, y = logistic_data(50)
    features = np.asfortranarray((x * 3).astype(dtype))
    rows = UnitLikelihood(read(logistic_model(features, y)))
    theta = np.array([0.1, 0.2, -0.3])
    residual = y - 1 / (1 + np.exp(-(features.astype(float) @ theta)))
    assert rows.clipped_gradient(theta, 100.0, GRID).value == pytest.approx(
        features.astype(float).T @ residual, rel=1e-4
    )


def test_two_rows_are_enough():
    rows = UnitLikelihood(read(gaussian_model(np.array([2.0, 3.0]))))
    assert rows.clipped_gradient(np.array([0.5]), 10.0, GRID).value == pytest.approx([4.0])


def test_as_many_rows_as_columns_with_dims():
    x, y = logistic_data(3)
    rows = UnitLikelihood(read(logistic_model(x, y)))
    assert rows.n_units == 3


def test_pickles_hold_no_remembered_values_and_repr_no_data():
    """Hazard H33: compiled functions hold no table."""
    y = gaussian_data(100)
    rows = UnitLikelihood(read(gaussian_model(y)))
    before = len(pickle.dumps(rows))
    rows.clipped_gradient(np.array([0.1]), 1.0, GRID)
    assert len(pickle.dumps(rows)) == before
    assert y[:4].tobytes() not in pickle.dumps(rows._engine)
    again = pickle.loads(pickle.dumps(rows))
    one, other = (r.clipped_gradient(np.array([0.1]), 1.0, GRID) for r in (rows, again))
    assert np.all(one.integers == other.integers)
    assert "100" not in repr(rows)


@pytest.mark.parametrize("wild", [10**6, -(10**6), 3, -4])
def test_an_index_out_of_range_is_a_row_without_influence(wild):
    """An error, or a crash, would tell that somebody holds such a value."""
    group = np.array([0, 1, 2, wild, -1])
    y = np.arange(5.0)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("effect", shape=3)[pm.Data("group", group)], 1.0, observed=y)
    rows = UnitLikelihood(read(model))
    found = rows.clipped_gradient(np.zeros(3), 100.0, GRID)
    assert found.value == pytest.approx([0.0, 1.0, 2.0 + 4.0])
    ratio = rows.clipped_log_ratio(np.zeros(3), np.ones(3), 100.0, GRID)
    assert ratio.value[0] == pytest.approx(sum(-0.5 * ((v - 1) ** 2 - v**2) for v in (0, 1, 2, 4)))


def test_no_table_is_copied(logistic_rows):
    for chunk in logistic_rows._chunks(None):
        assert all(any(np.shares_memory(part, data) for data in logistic_rows._table.rows) for part in chunk.rows)


def test_wide_and_grouped_gradients_are_kept_in_factors():
    x, y = logistic_data(40)
    with pm.Model() as model:
        group = pm.Data("group", np.arange(40) % 7)
        slopes = pm.Normal("mu") + pm.HalfNormal("tau") * pm.Normal("z", shape=3)
        effect = pm.Normal("centre") + pm.HalfNormal("spread") * pm.Normal("offset", shape=7)
        pm.Bernoulli("y", logit_p=pm.math.dot(pm.Data("x", x), slopes) + effect[group], observed=y)
    kinds = [part.kind for part in UnitLikelihood(read(model))._engine.graphs.parts]
    assert kinds == [DENSE, DENSE, PRODUCT, DENSE, DENSE, GATHER]


def test_custom_distributions_are_split_too():
    def logp(value, mu):
        return -pt.abs(value - mu) - np.log(2)

    y = gaussian_data(20)
    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=y)
    found = UnitLikelihood(read(model)).clipped_gradient(np.array([0.2]), 10.0, GRID)
    assert found.value == pytest.approx([np.sign(y - 0.2).sum()])


def persons_model(n=60, persons=17):
    x, y = logistic_data(n)
    person = np.random.default_rng(5).integers(0, persons, n)
    with pm.Model() as model:
        pm.Data("person", person)
        hierarchical(x, y)
    return model


BATCHED = {
    "product": lambda: compiled(softmax)[1],
    "gather and dense": lambda: compiled(non_centred)[1],
    "several rows a unit": lambda: UnitLikelihood(read(persons_model(), unit_index="person")),
}


@functools.cache
def batched(kind):
    """Compiling takes longer than the test."""
    return BATCHED[kind]()


@pytest.mark.parametrize("kind", BATCHED)
@pytest.mark.parametrize("chunk", [8192, 3, 1])
def test_a_batch_is_the_sum_over_its_units(kind, chunk, monkeypatch):
    rows = batched(kind)
    forget(rows)
    set_chunk(monkeypatch, chunk)
    theta, theta_new = np.random.default_rng(2).normal(scale=0.3, size=(2, rows.n_parameters))
    batch = np.flatnonzero(np.random.default_rng(3).random(rows.n_units) < 0.5)
    rest = np.setdiff1d(np.arange(rows.n_units), batch)
    every = [np.array([unit]) for unit in range(rows.n_units)]
    for release in (
        lambda **which: rows.clipped_gradient(theta, 0.8, GRID, **which),
        lambda **which: rows.clipped_log_ratio(theta, theta_new, 0.1, GRID, **which),
    ):
        whole, one, other = release(), release(units=batch), release(units=rest)
        assert np.all(one.integers + other.integers == whole.integers)
        assert one.n_clipped + other.n_clipped == whole.n_clipped
        alone = [release(units=unit) for unit in every]
        assert np.all(one.integers == sum(alone[unit].integers for unit in batch))
        nobody = release(units=np.array([], dtype=np.int64))
        assert nobody.n_clipped == 0
        assert np.all(nobody.integers == np.zeros_like(whole.integers))
    forget(rows)
    assert np.all(rows.unit_log_likelihoods(theta, batch) == rows.all_log_likelihoods(theta)[batch])


def test_a_batch_reads_its_rows_only_and_remembers_nothing(logistic_rows, monkeypatch):
    rows = logistic_rows
    forget(rows)
    seen = []
    for name in ("gradient", "log_likelihood"):
        real = getattr(rows._engine, name)
        counted = functools.partial(
            lambda real, p, chunk, *rest: seen.append(chunk.n_rows) or real(p, chunk, *rest), real
        )
        monkeypatch.setattr(rows._engine, name, counted)
    a, b = np.random.default_rng(3).normal(size=(2, 3))
    batch = np.array([3, 50, 10_010])
    rows.clipped_gradient(a, 1.0, GRID, units=batch)
    rows.clipped_log_ratio(a, b, 1.0, GRID, units=batch)
    assert seen == [3, 3, 3]
    assert not rows._pair


@pytest.mark.parametrize(
    "units",
    [np.array([1, 1]), np.array([2, 1]), np.array([-1]), np.array([37]), np.array([1.0]), np.array([[1]])],
    ids=["twice", "out of order", "negative", "beyond the table", "not whole", "not a vector"],
)
def test_units_that_would_break_the_sensitivity_are_refused(units):
    rows = batched("product")
    theta = np.zeros(rows.n_parameters)
    with pytest.raises(InvalidArgument, match="units"):
        rows.clipped_gradient(theta, 1.0, GRID, units=units)
    with pytest.raises(InvalidArgument, match="units"):
        rows.clipped_log_ratio(theta, theta, 1.0, GRID, units=units)


@pytest.mark.parametrize("blocks", [[True, False, True], [False, True, False], [True, True, True]])
def test_chosen_value_variables_are_clipped_by_themselves(blocks):
    _, rows = compiled(random_slopes_and_means)
    theta = np.random.default_rng(1).normal(scale=0.3, size=rows.n_parameters)
    one_by_one = [np.array([unit]) for unit in range(rows.n_units)]
    full = np.stack([rows.clipped_gradient(theta, 1e3, GRID, units=unit).value for unit in one_by_one])
    chosen = np.concatenate(
        [np.arange(s.start, s.stop) for s, b in zip(rows.parameters.slices, blocks, strict=True) if b]
    )
    norms = np.linalg.norm(full[:, chosen], axis=1)
    bound = 1.001 * np.median(norms)
    found = rows.clipped_gradient(theta, bound, GRID, blocks=blocks)
    assert found.integers.shape == (len(chosen),)
    assert found.value == pytest.approx(np.minimum(1.0, bound / norms) @ full[:, chosen], abs=1e-7)
    assert found.n_clipped == np.sum(norms > bound)


@pytest.mark.parametrize("blocks", [[True], [False, False, False]])
def test_blocks_that_name_nothing_are_refused(blocks):
    _, rows = compiled(random_slopes_and_means)
    with pytest.raises(InvalidArgument, match="blocks"):
        rows.clipped_gradient(np.zeros(rows.n_parameters), 1.0, GRID, blocks=blocks)


@pytest.mark.slow
@pytest.mark.production
def test_a_square_that_underflows_in_a_loop_does_not_hide_its_product():
    with pm.Model() as model:
        x, y = np.array([[1e-163], [0.0], [0.0]]), np.array([1e154, 0.0, 0.0])
        pm.Normal("y", pm.Data("x", x) @ pm.Normal("beta", shape=1), 1.0, observed=y)
    rows = UnitLikelihood(read(model))
    for bound in (1e-9, 1e-12):
        found = rows.clipped_gradient(np.zeros(1), bound, bound * 2.0**-30)
        assert abs(found.value[0]) <= bound


def test_no_tables_longer_than_needed_are_synthetic(monkeypatch):
    lengths = []
    real = check.synthetic_rows
    monkeypatch.setattr(check, "synthetic_rows", lambda *args: lengths.append(args[-1]) or real(*args))
    monkeypatch.setattr(check, "_FEW_NUMBERS", 0)
    UnitLikelihood(read(gaussian_model(gaussian_data(5000))))
    assert lengths == [1000]


EXPANDED = [normal, hierarchical, non_centred, mixture]


def every_method(rows):
    """Exact results of everything that the curator can ask for."""
    generator = np.random.default_rng(3)
    theta, theta_new = generator.normal(scale=0.3, size=(2, rows.n_parameters))
    units = np.arange(0, rows.n_units, 3)
    centre = ExpansionPoint(theta, np.eye(rows.n_parameters), 0.7, 0.4)
    old, new = (Prediction(point, point - theta, True) for point in (theta, theta_new))
    expansion = rows.expansion(centre)
    for found in (
        rows.clipped_gradient(theta, 0.7, GRID),
        rows.clipped_gradient(theta, 0.7, GRID, units=units),
        rows.clipped_log_ratio(theta, theta_new, 0.7, GRID),
        rows.clipped_log_ratio(theta, theta_new, 0.7, GRID, units=units),
        expansion.curvature(GRID),
        expansion.clipping_loss(GRID, 0.5),
        expansion.residual(old, new, 0.3, GRID),
    ):
        yield found.integers.tolist(), found.n_clipped
    yield rows.log_ratio_moments(theta, theta_new, 0.7, GRID, units=units)
    yield rows.unit_log_likelihoods(theta, units).tobytes()
    yield rows.all_log_likelihoods(theta).tobytes()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=[pytest.mark.nightly] if each in (normal, non_centred) else []) for each in EXPANDED],
    ids=lambda family: family.__name__,
)
def test_a_pickled_engine_computes_the_same_bits(family):
    """Hazard H43: derivatives of second order once rewrote the graph that the gradient is compiled from again."""
    grouped = family in (normal, hierarchical)
    index = np.arange(37) // 3 if grouped else None
    rows = UnitLikelihood(read(build(family), unit_index=index))
    before = list(every_method(rows))
    assert np.any(np.array(before[0][0]) != 0)
    assert list(every_method(pickle.loads(cloudpickle.dumps(rows)))) == before  # as PyMC sends steps to workers
