"""Draws where chains release nothing: what PyMC's NUTS is given, and when."""

import functools

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from conftest import QUIET
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

import pymc_dp as dp
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.posterior import LogDensity, priors_of, standardised, with_likelihood
from pymc_dp.model.view import read
from pymc_dp.run import sampling

N = 600


def regression(x=None, named=True, **options):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(N, 2)) if x is None else x
    y = x @ [1.0, -1.0] + generator.normal(size=N)
    coords = {"person": [f"person {i}" for i in range(N)], **({"column": ["a", "b"]} if named else {})}
    with pm.Model(coords=coords) as model:
        rows = pm.Data("x", x, dims=("person", "column"))
        beta, sigma = pm.Normal("beta", dims="column"), pm.HalfNormal("private_likelihood", **options)  # a name of ours
        pm.Deterministic("ratio", beta[0] / beta[1])
        pm.Deterministic("fitted", rows @ beta, dims="person")
        pm.Normal("y", rows @ beta, sigma, observed=y, dims="person")
    return model


class Seen(Exception):
    """Ends a run where PyMC would begin to sample."""


def test_nuts_is_given_a_model_without_rows_once_the_curator_is_closed(monkeypatch):
    given = {}

    @functools.wraps(sampling._pymc_sample)
    def see(**arguments):
        given.update(arguments, authorisation=step._authorisation)
        raise Seen

    monkeypatch.setattr(sampling, "_pymc_sample", see)
    x = np.random.default_rng(1).normal(size=(N, 2))
    with regression(x) as model:
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(5.0, 1e-6), insecure_seed=0)
        with pytest.raises(dp.RunInterrupted):
            pm.sample(draws=5, chains=2, cores=1, step=step, target_accept=0.95, max_treedepth=7, **QUIET)
    posterior = given["model"]
    assert given["authorisation"] is None
    assert posterior is not model
    assert not posterior.observed_RVs
    assert not posterior.data_vars
    assert "person" not in posterior.coords
    assert set(posterior.named_vars) >= {"beta", "ratio"}
    assert "fitted" not in posterior.named_vars
    graphs = [*posterior.basic_RVs, *posterior.deterministics, *posterior.potentials]
    sizes = [
        np.size(leaf.data) if isinstance(leaf, Constant) else leaf.get_value().size
        for leaf in ancestors(graphs)
        if isinstance(leaf, Constant | SharedVariable) and hasattr(leaf.type, "shape")
    ]
    assert max(sizes) < 20
    assert isinstance(given["step"], pm.NUTS)
    assert (given["step"].target_accept, given["step"].max_treedepth) == (0.95, 7)
    assert x.tobytes() not in cloudpickle.dumps(given["step"])
    assert len(given["initvals"]) == 2
    with pytest.raises(dp.NoPlan):
        step.setup_chain(np.random.default_rng(0), 0, 5)


def test_no_data_hang_on_the_priors():
    """Nor on lengths of dims, which PyMC keeps as expressions of the data that have them."""
    x = np.random.default_rng(1).normal(size=(N, 2))
    model = regression(x, named=False)
    assert x.tobytes() in cloudpickle.dumps(model)
    priors = priors_of(model, ["ratio"])
    assert x.tobytes() not in cloudpickle.dumps(priors)
    assert "person 1" not in str(priors.coords)
    assert priors.eval_rv_shapes()["beta"] == (2,)


NOT_COPIED = ("starting values", "a dim without a name", "a deterministic of one variable")


@pytest.mark.parametrize(
    "kinds",
    [pytest.param(NOT_COPIED, id="all"), *(pytest.param([kind], marks=pytest.mark.nightly) for kind in NOT_COPIED)],
)
def test_models_that_pymc_does_not_copy_are_drawn_from(kinds):
    """What cannot be written anew would be found after the charge."""
    x = np.random.default_rng(1).normal(size=(N, 2))
    with regression(x, **({"initval": 0.5} if "starting values" in kinds else {})) as model:
        if "a dim without a name" in kinds:
            pm.Deterministic("both", pm.math.stack([model["beta"], model["beta"]]), dims=(None, "column"))
        if "a deterministic of one variable" in kinds:
            pm.Deterministic("again", model["beta"])
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(5.0, 1e-6), insecure_seed=0)
        tree = pm.sample(draws=20, tune=20, chains=1, cores=1, step=step, **QUIET)
    posterior = tree["posterior"]
    assert posterior.sizes["draw"] == 20
    np.testing.assert_allclose(posterior["ratio"], posterior["beta"][..., 0] / posterior["beta"][..., 1])
    if "a deterministic of one variable" in kinds:
        np.testing.assert_array_equal(posterior["again"], posterior["beta"])


def test_the_density_is_that_of_the_model():
    """Of a model without rows: free variables, transforms, hierarchy and potential."""
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        tau = pm.HalfNormal("tau", 2.0, initval=0.3)
        effect = pm.Normal("effect", 0.0, tau, dims="group")
        pm.Uniform("share", 0.0, 1.0)
        pm.Potential("extra", -(effect[0] ** 2))
    priors = priors_of(model, None)
    assert [each.name for each in priors.value_vars] == [each.name for each in model.value_vars]
    sizes = {"effect": 3}
    point = {each.name: np.full(sizes.get(each.name, ()), 0.3) for each in model.value_vars}
    assert priors.compile_logp()(point) == pytest.approx(model.compile_logp()(point))


@pytest.mark.slow
def test_nuts_is_given_the_density_of_the_model_that_it_draws_from():
    """What it is given takes no compiling of PyMC's; of transforms of every kind, and without what only priors know."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 2.0)
        pm.Normal("effect", 0.0, tau, shape=2)
        pm.Dirichlet("shares", np.ones(3))
        pm.Normal("cut", 0.0, 2.0, shape=2, transform=pm.distributions.transforms.ordered)
        pm.ZeroSumNormal("less", tau, shape=3)
        pm.StudentT("robust", nu=4.0, mu=tau, sigma=tau, shape=2)
        pm.MvNormal("vectors", [0.0, tau], cov=tau * np.array([[1.0, 0.3], [0.3, 0.5]]), shape=(2, 2))
        pm.Potential("extra", -(tau**2))
    parameters = ParameterVector(model)
    size, generator = parameters.size, np.random.default_rng(0)
    square = generator.normal(size=(size, size))
    one = np.eye(size)
    matrices = {"information": square @ square.T + one, "noise": 0.3 * one, "bias": 0.1 * one}
    order = generator.permutation(size)
    likelihood = xr.Dataset(
        {
            "mean": ("parameter", generator.normal(size=size)),
            "known": ("parameter", (np.arange(size) != 1).astype(int)),
            **{name: (("parameter", "other"), matrix) for name, matrix in matrices.items()},
        },
        coords={"parameter": np.array(parameters.labels)[order]},
    )
    found = LogDensity(model, likelihood)
    drawn = standardised(with_likelihood(priors_of(model, None), parameters, likelihood), likelihood)
    assert [found.members[entries].all() for entries in parameters.slices] == [
        False,
        True,
        False,
        False,
        True,
        True,
        True,
    ]
    wanted = drawn.logp_dlogp_function(ravel_inputs=True)
    for theta in generator.normal(size=(5, size)):
        value, gradient = found._pytensor_function(theta)
        value_wanted, gradient_wanted = wanted._pytensor_function(theta)
        assert value == pytest.approx(float(value_wanted), rel=1e-10)
        np.testing.assert_allclose(gradient, gradient_wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_cholesky_factor_is_drawn_and_what_pymc_computes_of_it_leaves():
    """PyMC takes its transform back of a graph alone; correlations hold the places of a triangle, and no table."""
    generator = np.random.default_rng(0)
    with pm.Model() as model:
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(3.0, shape=2))
        pm.Deterministic("covariance", chol @ chol.T)
        places = np.array([[0, 1, 1], [0, 1, 0]])  # not those of a triangle's entries, row by row
        pm.Deterministic("filled", pt.set_subtensor(pt.zeros((2, 2))[tuple(places)], model["chol"]))
        of_a_row = pt.zeros((2, 2))[np.array([0]), np.array([0, 1])]  # as long as they are by broadcasting
        pm.Deterministic("first_row", pt.set_subtensor(of_a_row, model["chol"][:2]))
        pm.Deterministic("chosen", pm.Normal("mu", 0.0, 5.0, shape=2)[np.array([0, 0, 1])])  # a table, for all we know
        x = generator.normal(size=(300, 2))
        y = x @ [0.5, 1.0] + generator.normal(size=300)
        pm.Normal("y", pm.math.dot(pm.Data("x", x), chol[1]), 1.0, observed=y)
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(5.0, 1e-6), insecure_seed=0)
        tree = pm.sample(draws=2, chains=1, cores=1, step=step, **QUIET)
    assert set(tree["posterior"].data_vars) == {"chol", "mu", "chol_corr", "chol_stds", "covariance"}
    corr = tree["posterior"]["chol_corr"].values
    assert corr[..., 0, 0] == pytest.approx(1.0)
    assert np.all(np.abs(corr[..., 0, 1]) < 1.0)


def test_a_table_by_the_name_of_a_factors_correlations_does_not_leave():
    with pm.Model() as model:
        with_sd = {"n": 2, "eta": 2.0, "sd_dist": pm.HalfNormal.dist(3.0, shape=2)}
        chol, corr, _ = pm.LKJCholeskyCov("chol", store_in_trace=False, **with_sd)
        pm.Deterministic("chol_corr", corr * np.array([1.25, 3.5]))
        pm.Deterministic("chol_stds", chol[:, 0] * np.array([1.25, 3.5]))
        pm.Normal("y", chol[0, 0], 1.0, observed=np.zeros(5))
    names = read(model).publishable(None)
    assert names.kept == ["chol"]
    assert set(names.omitted) == {"chol_corr", "chol_stds"}
