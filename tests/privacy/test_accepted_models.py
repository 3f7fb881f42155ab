"""Attacks on what is accepted: rows that reach anything but the likelihood of their own row (hazards H45 to H50)."""

import functools

import numpy as np
import pymc as pm
import pymc.dims
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from conftest import QUIET, hmc
from pymc.distributions.transforms import Transform
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import wrap_py
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.blockwise import Blockwise

import pymc_dp as dp
from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood

N = 37
X, Y = np.random.default_rng(0).normal(size=(2, N))
WIDE = np.random.default_rng(1).normal(size=(N, 3))
COORDS = {"person": range(N)}
ONE = pt.constant(1.0, dtype="float64")


def refused(model, match):
    """Assert that a model is refused, without a number of its table."""
    with pytest.raises(UnsupportedModel, match=match) as caught:
        UnitLikelihood(read(model))
    said = str(caught.value)
    assert str(N) not in said
    assert not any(f"{value:.3f}" in said for value in [*X, *Y, X.mean(), X.std()])


# A quantity that is computed of rows, and four places to put it into ----------------------------------------------


def in_the_likelihood(quantity):
    pm.Normal("y", pm.Normal("mu") + quantity(), 1.0, observed=Y, dims="person")


def in_a_prior(quantity):
    pm.Normal("y", pm.Normal("mu", quantity(), 1.0), 1.0, observed=Y, dims="person")


def in_a_potential(quantity):
    mu = pm.Normal("mu")
    pm.Potential("extra", -((mu - quantity()) ** 2))
    pm.Normal("y", mu, 1.0, observed=Y, dims="person")


def in_a_deterministic(quantity):
    mu = pm.Normal("mu")
    pm.Deterministic("seen", mu + quantity())
    pm.Normal("y", mu, 1.0, observed=Y, dims="person")


def in_an_initval(quantity):
    mu = pm.Flat("mu", initval=quantity())
    pm.Normal("y", mu, 1.0, observed=Y, dims="person")


PLACES = [in_the_likelihood, in_a_prior, in_a_potential, in_a_deterministic, in_an_initval]


class Holding(Op):
    """PyMC's older pattern of a likelihood of one's own: the table is an attribute."""

    def __init__(self, table):
        self.table = table

    def make_node(self, *inputs):
        return Apply(self, [pt.as_tensor(each) for each in inputs], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(self.table.mean())


class HoldingGradient(pytensor.compile.builders.OpFromGraph):
    """A graph with a table beside it."""


def of_a_graph_with_state():
    value = pt.dscalar()
    op = pytensor.compile.builders.OpFromGraph([value], [2.0 * value])
    op.table = X
    return op(ONE)


def of_a_subclass_of_a_listed_operation():
    value = pt.dscalar()
    op = HoldingGradient([value], [2.0 * value])
    op.hidden = {"table": X}
    return op(ONE)


class Gradient:
    """A derivative that is an object with a table."""

    def __init__(self, table):
        self.table = table

    def __call__(self, inputs, outputs, gradients):
        return [gradients[0] + self.table.mean()]


def of_a_graph_whose_derivative_holds_a_table():
    value = pt.dscalar()
    return pytensor.compile.builders.OpFromGraph([value], [2.0 * value], lop_overrides=Gradient(X))(ONE)


def of_a_graph_whose_derivative_is_an_operation():
    value = pt.dscalar()
    return pytensor.compile.builders.OpFromGraph([value], [2.0 * value], lop_overrides=Holding(X))(ONE)


UNLISTED = {
    "xtensor": lambda: pymc.dims.Data("x", X, dims="person").mean().values,
    "xtensor for each row": lambda: pymc.dims.Data("x", X, dims="person").values,
    "sparse": lambda: pytensor.sparse.math.sp_sum(pytensor.sparse.as_sparse(scipy.sparse.csc_matrix(WIDE))),
    "operation with a table": lambda: Holding(X)(ONE),
    "operation with a table and a part of it": lambda: Holding(X)(pt.constant(X[:5])),
    "function": wrap_py(itypes=[], otypes=[pt.dscalar])(lambda: np.asarray(X.mean())),
    "graph with a table": of_a_graph_with_state,
    "graph with a derivative": of_a_graph_whose_derivative_holds_a_table,
    "graph with an operation as its derivative": of_a_graph_whose_derivative_is_an_operation,
    "graph of the user's": of_a_subclass_of_a_listed_operation,
}


@pytest.mark.parametrize("quantity", UNLISTED)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_what_is_not_listed_is_refused_everywhere(place, quantity):
    """Hazards H46 and H47: tables in variables of other types, and in operations, are in no leaf of a graph."""
    with pm.Model(coords=COORDS) as model:
        place(UNLISTED[quantity])
    kinds = {"xtensor": r"named axes of pymc\.dims", "sparse": "is a sparse matrix"}
    refused(model, kinds.get(quantity.split()[0], "which is not listed|holds an array or a function"))


def test_an_operation_inside_of_others_is_found():
    """Hazard H47: a graph in an operation, a function applied to parts of arrays, and one in a scan."""

    def in_a_graph():
        value = pt.dscalar()
        return pytensor.compile.builders.OpFromGraph([value], [value + Holding(X)(value)])(ONE)

    def in_a_scan():
        total = pytensor.scan(
            lambda before: before + Holding(X)(before), outputs_info=pt.constant(0.0, dtype="float64"), n_steps=2
        )
        return (total[0] if isinstance(total, list | tuple) else total)[-1]

    for quantity in (in_a_graph, in_a_scan):
        with pm.Model(coords=COORDS) as model:
            in_a_deterministic(quantity)
        refused(model, "Holding, which is not listed")


class ByName(Holding):
    """No search of attributes and functions finds its table."""

    def __init__(self):
        pass

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(globals()["X"].mean())


class Shifted(Transform):
    name = "shifted"

    def forward(self, value, *inputs):
        return value - ByName()(value)

    def backward(self, value, *inputs):
        return value + ByName()(value)

    def log_jac_det(self, value, *inputs):
        return pt.zeros_like(value)


def test_an_operation_in_a_transform_is_found():
    """Hazard H47: transforms turn parameters into draws."""
    with pm.Model(coords=COORDS) as model:
        mu = pm.Normal("mu", transform=Shifted(), default_transform=None)
        pm.Normal("y", mu, 1.0, observed=Y, dims="person")
    refused(model, "ByName, which is not listed")


STARTS = {
    "data": lambda: pm.Data("x", X, dims="person").mean(),
    "constant": lambda: pt.as_tensor(X).mean(),
    "longer": lambda: pt.as_tensor(WIDE.ravel()).mean(),
    "of scalars": lambda: pt.stack(list(X)).mean(),
    "number of rows": lambda: pm.modelcontext(None).dim_lengths["person"] * 1.0,
    "length of data": lambda: pm.Data("x", X).shape[0] * 1.0,
    "shape of an array": lambda: pt.zeros(pm.Data("x", X).shape[0] + 1).size * 1.0,
}


@pytest.mark.parametrize("quantity", STARTS)
def test_an_initval_of_rows_is_refused(quantity):
    """Hazard H48: the first position is published."""
    with pm.Model(coords=COORDS) as model:
        in_an_initval(STARTS[quantity])
    refused(model, "starting value")


@pytest.mark.parametrize("quantity", STARTS)
def test_initvals_of_rows_are_refused_before_the_charge(quantity, budget):
    """Hazard H48: in the call as in the model."""
    with pm.Model(coords=COORDS):
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=Y, dims="person")
        start = STARTS[quantity]()
        step = hmc(budget)
        for initvals in ({"mu": start}, [{"mu": 0.0}, {mu: start}]):
            with pytest.raises(UnsupportedModel, match="starting value"):
                pm.sample(draws=5, chains=2, cores=1, step=step, initvals=initvals, **QUIET)
    assert budget.history == ()


@pytest.mark.parametrize("where", ["initval", "initvals"])
def test_starting_values_of_units_are_refused(where, budget):
    """Hazard H48: a unit of several rows may have one entry in an array, which is as long as there are units."""
    with pm.Model(coords={"visit": range(N)}):
        start = pm.Data("first_of_each", Y[::2]).mean()
        mu = pm.Normal("mu", initval=start if where == "initval" else None)
        pm.Normal("y", mu, 1.0, observed=Y, dims="visit")
        initvals = {"mu": start} if where == "initvals" else None
        step = hmc(budget, unit_index=np.arange(N) // 2)
        with pytest.raises(UnsupportedModel, match="each row or unit"):
            pm.sample(draws=5, chains=1, cores=1, step=step, initvals=initvals, **QUIET)
    assert budget.history == ()


def test_public_arrays_of_another_axis_are_starting_values(budget):
    """A dim of a table of rows counts no rows, however many there are of it: in the model and in the call."""
    with pm.Model(coords=COORDS | {"feature": range(2 * N)}):
        pm.Data("table", np.zeros((N, 2 * N)), dims=("person", "feature"))
        start = pm.Data("middle", np.ones(2 * N), dims="feature").mean()
        mu = pm.Normal("mu", initval=start)
        pm.Normal("y", mu + pm.Normal("nu"), 1.0, observed=Y, dims="person")
        tree = pm.sample(draws=3, chains=1, cores=1, step=hmc(budget), initvals={"nu": start}, **QUIET)
    assert tree["privacy"].attrs["private"]


def test_public_expressions_are_starting_values(budget):
    with pm.Model(coords=COORDS):
        pm.Normal("mu", initval=pt.log(pt.constant(2.0)))
        pm.Normal("y", pm.Normal("nu"), 1.0, observed=Y, dims="person")
        tree = pm.sample(draws=3, chains=1, cores=1, step=hmc(budget), initvals={"nu": pt.constant(1.0) * 2}, **QUIET)
    assert tree["privacy"].attrs["private"]


@pytest.mark.parametrize("shape", [lambda x: x.shape[0] // 4, lambda x: x.astype(int).max() + 40])
@pytest.mark.parametrize("kind", [pm.Flat, pm.ZeroSumNormal, lambda name, shape: pm.Dirichlet(name, pt.ones(shape))])
def test_a_shape_of_rows_is_refused(kind, shape):
    """Hazard H39: it is published with the draws, and not all log-probabilities depend on it."""
    with pm.Model() as model:
        x = pm.Data("x", X)
        pm.Normal("y", kind("effects", shape=shape(x))[0] + x, 1.0, observed=Y)
    refused(model, "The prior of 'effects'")


# Functions of the user's -------------------------------------------------------------------------------------------

TABLE = X
RAVELLED = WIDE.ravel()
SOME = X[:25]
NAMES = {"a": 1.0, "b": 2.0}


class Holder:
    table = X


class Callable:
    __slots__ = ("table",)

    def __init__(self, table):
        self.table = table

    def __call__(self, value, mu):
        return pm.logp(pm.Normal.dist(mu + self.table.mean(), 1.0), value)


def by_an_inner_function(value, mu):
    def mean():
        def inside():
            return TABLE.mean()

        return inside()

    return pm.logp(pm.Normal.dist(mu + mean(), 1.0), value)


def by_a_class(value, mu):
    return pm.logp(pm.Normal.dist(mu + Holder.table.mean(), 1.0), value)


def by_a_ravelled_table(value, mu):
    return pm.logp(pm.Normal.dist(mu + RAVELLED.mean(), 1.0), value)


def by_a_part(value, mu):
    return pm.logp(pm.Normal.dist(mu + SOME.mean(), 1.0), value)


def by_a_default(value, mu, *, table=X):
    return pm.logp(pm.Normal.dist(mu + table.mean(), 1.0), value)


def by_another_function(value, mu):
    return by_an_inner_function(value, mu)


FUNCTIONS = {
    "inner function": by_an_inner_function,
    "class attribute": by_a_class,
    "ravelled": by_a_ravelled_table,
    "part": by_a_part,
    "keyword": by_a_default,
    "another function": by_another_function,
    "object with slots": Callable(X),
    "partial": functools.partial(by_a_default, table=list(SOME)),
    "expression": functools.partial(by_a_default, table=pt.as_tensor(SOME) * 2.0),
    "frozen dictionary of lists": functools.partial(by_a_default, table={"all": tuple(X.tolist())}),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_tables_that_functions_reach_are_refused(function):
    """Hazard H50: through functions inside, class attributes, slots and defaults, whatever their length."""
    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu"), logp=FUNCTIONS[function], observed=Y)
    refused(model, "refers to an array")


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("function", ["part", "expression"])
def test_tables_that_functions_of_a_truncated_distribution_reach_are_refused(function, prior):
    """Hazard H50: the distribution that is truncated is in a graph inside an operation."""

    def truncated(name, mu, **observed):
        base = pm.CustomDist.dist(
            mu, logp=FUNCTIONS[function], logcdf=lambda value, mu: pm.logcdf(pm.Normal.dist(mu, 1.0), value)
        )
        return pm.Truncated(name, base, lower=-9.0, upper=9.0, **observed)

    with pm.Model() as model:
        if prior:
            pm.Normal("y", truncated("mu", 0.0), 1.0, observed=Y)
        else:
            truncated("y", pm.Normal("mu"), observed=Y)
    refused(model, "refers to an array")


def plain_logp(value, mu):
    scale = NAMES["a"] * np.sqrt(2.0)
    return pm.logp(pm.Normal.dist(mu, scale), value)


def with_nodes(value, mu, nodes):
    return pm.logp(pm.Normal.dist(mu + nodes.sum(), 1.0), value)


def with_held(value, mu, held):
    return pm.logp(pm.Normal.dist(mu, 1.0 + 0.0 * len(held)), value)


def test_functions_that_hold_numbers_and_public_arrays_pass():
    settings = dict.fromkeys("abcdefg", 0.5)
    held = [
        functools.partial(with_held, held=each) for each in (range(10), settings, settings.items(), settings.keys())
    ]
    for function in (plain_logp, functools.partial(with_nodes, nodes=dp.public(np.linspace(-1.0, 1.0, 15))), *held):
        with pm.Model() as model:
            pm.CustomDist("y", pm.Normal("mu"), logp=function, observed=Y)
        assert np.isfinite(UnitLikelihood(read(model)).all_log_likelihoods(np.zeros(1))).all()


PRIORS = {
    "uniform": lambda: pm.Uniform("mu", 0.0, 10.0),
    "of several": lambda: pm.Uniform("mu", np.zeros(3), np.arange(1.0, 4.0), shape=3).sum(),
    "truncated": lambda: pm.TruncatedNormal("mu", 0.0, 1.0, lower=-1.0, upper=2.0),
    "beta": lambda: pm.Beta("mu", 2.0, 2.0),
    "triangular": lambda: pm.Triangular("mu", lower=0.0, c=0.5, upper=1.0),
    "angle": lambda: pm.VonMises("mu", 0.0, 1.0),
    "shares": lambda: pm.Dirichlet("mu", np.array([1.0, 2.0, 3.0]))[0],
    "ordered": lambda: pm.Normal(
        "mu", [-1.0, 0.0, 1.0], 1.0, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1, 0, 1]
    )[0],
    "covariance": lambda: pm.LKJCholeskyCov("mu", n=3, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=3))[0][0, 0],
    "zero sum": lambda: pm.ZeroSumNormal("mu", sigma=1.0, shape=4)[0],
    "two zero sums": lambda: pm.ZeroSumNormal("mu", sigma=1.0, shape=(4, 2), n_zerosum_axes=2)[0, 0],
    "two transforms": lambda: pm.Exponential("mu", 1.0, transform=pm.distributions.transforms.log),
    "interpolated": lambda: pm.Interpolated("mu", np.linspace(-1.0, 1.0, 50), np.ones(50)),
    "mixture": lambda: pm.NormalMixture("mu", [0.3, 0.7], [-1.0, 1.0], [1.0, 2.0]),
    "truncated by function": lambda: pm.Truncated("mu", pm.Normal.dist(0.0, 1.0), lower=0.0),
    "random walk": lambda: pm.GaussianRandomWalk("mu", sigma=1.0, steps=5, init_dist=pm.Normal.dist())[0],
    "neighbouring areas": lambda: pm.ICAR("mu", W=np.ones((5, 5)) - np.eye(5))[0],
    "process over groups": lambda: pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior(
        "mu", np.linspace(0.0, 1.0, 5)[:, None]
    )[0],
    "own": lambda: pm.CustomDist("mu", 1.0, logp=lambda value, scale: -pt.abs(value) / scale),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_ordinary_priors_are_accepted(prior):
    with pm.Model(coords=COORDS) as model:
        pm.Normal("y", PRIORS[prior](), 1.0, observed=Y, dims="person")
    assert read(model).row_split.n_rows == N


# Arrays in the likelihood --------------------------------------------------------------------------------------

ARRAYS = {
    "a part": lambda: pt.as_tensor(X[:25]).mean(),
    "data": lambda: pm.Data("other", X[:25]).mean(),
    "ravelled": lambda: pt.as_tensor(WIDE.ravel()).mean(),
    "scalars": lambda: pt.stack(list(X[:25])).mean(),
    "all scalars": lambda: pt.stack(list(X)).mean(),
    "joined": lambda: pt.concatenate([pt.stack(list(X[:20])), pt.stack(list(X[20:25]))]).mean(),
    "whole numbers": lambda: pt.as_tensor(np.arange(25) % 4).mean(),
    "index": lambda: 1.0 + pm.Normal("effect", shape=4)[np.arange(25) % 4].sum(),
}


@pytest.mark.parametrize("array", ARRAYS)
def test_undeclared_arrays_in_a_likelihood_are_refused(array):
    """Hazard H50: a part of the table, or more than it, looks like any other array."""
    with pm.Model(coords=COORDS) as model:
        in_the_likelihood(ARRAYS[array])
    refused(model, r"dp\.public|not a sum over rows|single row")


@pytest.mark.parametrize(("array", "said"), [(X, "as many entries as there are rows"), (X[:25], r"dp\.public")])
@pytest.mark.parametrize("vectorised", [False, True])
def test_undeclared_arrays_inside_of_operations_are_refused(vectorised, array, said):
    """Hazard H50: in the graph of an operation, or of one that is applied to each row of an array."""
    row, effects, rows = pt.vector("row", shape=(3,)), pt.vector("effects", shape=(3,)), pt.matrix("rows", shape=(N, 3))
    table_mean = pt.constant(array).mean()
    with pm.Model() as model:
        data, slopes = pm.Data("x", WIDE), pm.Normal("b", shape=3)
        if vectorised:
            of_row = OpFromGraph([row, effects], [(row * effects).sum() + table_mean])
            mean = Blockwise(of_row, signature="(k),(k)->()")(data, slopes)
        else:
            mean = OpFromGraph([rows, effects], [rows @ effects + table_mean])(data, slopes)
        pm.Normal("y", mean, 1.0, observed=Y)
    refused(model, said)


@pytest.mark.parametrize("array", ["scalars", "data", "a part"])
def test_undeclared_arrays_in_potentials_are_refused(array):
    """Hazard H50: and in potentials."""
    with pm.Model(coords=COORDS) as model:
        in_a_potential(ARRAYS[array])
    refused(model, "'extra'")


@pytest.mark.parametrize("kind", [pt.constant, pytensor.shared])
@pytest.mark.parametrize("place", [in_a_prior, in_a_potential], ids=lambda place: place.__name__)
def test_a_table_with_the_name_of_another_variable_has_not_its_dims(place, kind):
    """Hazard H50: nor of a variable whose dims are those of covariates."""
    with pm.Model(coords={"feature": ["a", "b", "c"]}) as model:
        beta = pm.Normal("beta", dims="feature")
        of_rows = pm.Data("x", WIDE, dims=("person", "feature")) @ beta
        place(lambda: kind(X, name="beta").mean())
        pm.Normal("z", of_rows, 1.0, observed=Y, dims="person")
    refused(model, r"dp\.public|depends on data that has one entry for each row")


def test_deterministics_of_undeclared_arrays_stay():
    """Hazard H50: they leave if they are asked for by name, as those of tables do."""
    with pm.Model(coords=COORDS) as model:
        in_a_deterministic(ARRAYS["scalars"])
    assert read(model).publishable(None).kept == ["mu"]


NODES = np.linspace(-2.0, 2.0, 25)


@pytest.mark.parametrize("data", [False, True])
def test_declared_arrays_pass(data):
    with pm.Model(coords=COORDS) as model:
        nodes = dp.public(NODES)
        nodes = pm.Data("nodes", nodes) if data else nodes
        scale = pm.HalfNormal("scale")
        pm.Potential("smooth", -pt.sqr(scale * nodes).sum())
        pm.Deterministic("at_nodes", scale * nodes)
        in_the_likelihood(lambda: pt.log(pt.exp(scale * nodes).mean()))
    assert UnitLikelihood(read(model)).n_rows == N
    assert read(model).publishable(None).omitted == []


def test_a_declaration_is_of_an_array_and_not_of_what_replaces_it():
    """Hazard H50: a model that was tried out on public numbers gets those of the table."""
    with pm.Model(coords=COORDS) as model:
        nodes = pm.Data("nodes", dp.public(NODES))
        in_the_likelihood(nodes.mean)
        pm.Deterministic("at_nodes", pm.HalfNormal("scale") * nodes)
        pm.set_data({"nodes": X[:25]})
    refused(model, r"dp\.public")
    with model:
        pm.set_data({"nodes": dp.public(NODES)})
    assert read(model).publishable(None).omitted == []
    assert read(pm.do(model, {})).publishable(None).omitted == []  # a copy, with a copy of its data
    model["nodes"].set_value(X[:25])
    refused(model, r"dp\.public")


def test_what_is_declared_and_as_long_as_the_rows_is_a_table_of_rows():
    with pm.Model(coords=COORDS) as model:
        in_the_likelihood(lambda: dp.public(X).mean())
    refused(model, "not a sum over rows")


def test_only_numbers_are_declared():
    with pytest.raises(dp.InvalidArgument, match="numbers"):
        dp.public(["a", "b"])


@pytest.mark.parametrize("dtype", ["int64", "bool", "float64"])
def test_responses_that_pymc_converts_are_those_of_rows(dtype):
    """`pm.Data` makes whole numbers of 32 bits, and distributions convert them."""
    responses = (Y > 0).astype(dtype)

    def row_by_row(observed):
        with pm.Model() as model:
            pm.Bernoulli("y", logit_p=pm.Normal("mu") * pm.Data("x", X), observed=observed(responses))
        view = read(model)
        assert sorted(len(leaf.observed) for leaf in view.row_split.leaves) == [0, 1]
        return UnitLikelihood(view).clipped_log_ratio(np.zeros(1), np.ones(1), 0.4, 2.0**-30).value

    found = row_by_row(lambda values: pm.Data("responses", values))
    np.testing.assert_array_equal(found, row_by_row(lambda values: values.astype(int)))


def test_data_of_two_variables_have_one_axis_of_rows():
    with pm.Model(coords={"person": range(4), "item": range(4)}) as model:
        responses, mu = pm.Data("responses", np.eye(4, dtype=int)), pm.Normal("mu")
        pm.Bernoulli("y", logit_p=mu, observed=responses, dims=("person", "item"))
        pm.Bernoulli("z", logit_p=mu, observed=responses, dims=("item", "person"))
    with pytest.raises(UnsupportedModel, match="'z' shares its data with another variable, but not its axis"):
        read(model, unit="person")


@pytest.mark.parametrize("place", [pm.Deterministic, pm.Potential, pm.Normal])
def test_responses_that_pymc_converts_are_protected(place):
    """Hazard H50."""
    with pm.Model() as model:
        responses = pm.Data("responses", (Y > 0).astype(int))
        pm.Bernoulli("y", logit_p=pm.Normal("mu"), observed=responses)
        place("seen", responses.astype("float64").mean())
    if place is pm.Deterministic:
        assert read(model).publishable(None).omitted == ["seen"]
    else:
        refused(model, "'seen'|the data")
