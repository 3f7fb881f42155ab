"""How long clipped sums take: gradients, beside PyMC's own gradient of the same model, and the passes of an expansion.

Run ``OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python -m uv run pytest -n 0 benchmarks/bench_rows.py
--benchmark-group-by=param:family --benchmark-columns=min,median``: the ratios within a group are what counts.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions import transforms

from pymc_dp.model.view import read
from pymc_dp.release import ExpansionPoint, Prediction
from pymc_dp.rows import UnitLikelihood

N = 100_000
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, 10))
BINARY = (GENERATOR.random(N) < 0.5).astype(int)
COUNTS = GENERATOR.poisson(2.0, size=N)
CLASSES = GENERATOR.integers(0, 5, N)
GROUPS = {groups: GENERATOR.integers(0, groups, N) for groups in (20, 2000)}


def logistic():
    pm.Bernoulli("y", logit_p=pm.Data("x", X) @ pm.Normal("beta", shape=10), observed=BINARY)


def hierarchical_logistic():
    beta = pm.Normal("mu") + pm.HalfNormal("tau") * pm.Normal("z", shape=10)
    pm.Bernoulli("y", logit_p=pm.Data("x", X) @ beta, observed=BINARY)


def softmax():
    pm.Categorical("y", logit_p=pm.Data("x", X[:, :9]) @ pm.Normal("beta", shape=(9, 5)), observed=CLASSES)


def multivariate_normal():
    pm.MvNormal("y", pm.Normal("mu", shape=10), cov=np.eye(10) + 0.3, observed=X)


def negative_binomial():
    rate = pm.math.exp(0.1 * (pm.Data("x", X) @ pm.Normal("beta", shape=10)))
    pm.NegativeBinomial("y", mu=rate, alpha=pm.HalfNormal("alpha"), observed=COUNTS)


def varying_intercepts(groups):
    effect = pm.Normal("effect", pm.Normal("mu"), pm.HalfNormal("tau"), shape=groups)
    pm.Bernoulli("y", logit_p=effect[pm.Data("group", GROUPS[groups])], observed=BINARY)


def varying_intercepts_20():
    varying_intercepts(20)


def varying_intercepts_2000():
    varying_intercepts(2000)


def ordinal():
    cuts = pm.Normal("cuts", np.arange(4) - 1.5, 1, transform=transforms.ordered, initval=np.arange(4) - 1.5)
    eta = pm.Data("x", X) @ pm.Normal("beta", shape=10)
    pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=CLASSES, compute_p=False)


def zero_inflated_poisson():
    rate = pm.math.exp(0.1 * (pm.Data("x", X) @ pm.Normal("beta", shape=10)))
    pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 2, 2), mu=rate, observed=COUNTS)


def normal_mixture():
    pm.NormalMixture("y", w=pm.Dirichlet("w", np.ones(2)), mu=pm.Normal("mu", shape=2), sigma=1.0, observed=X[:, 0])


def banana():
    theta = pm.Normal("theta", shape=2)
    pm.MvNormal("y", pt.stack([theta[0], theta[1] + 0.5 * theta[0] ** 2]), cov=2.0 * np.eye(2), observed=X[:, :2])


FAMILIES = [
    logistic,
    hierarchical_logistic,
    softmax,
    multivariate_normal,
    negative_binomial,
    varying_intercepts_20,
    varying_intercepts_2000,
    ordinal,
    zero_inflated_poisson,
    normal_mixture,
    banana,
]


@pytest.mark.parametrize("what", ["clipped sum", "PyMC's gradient"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def bench_gradient(benchmark, family, what):
    with pm.Model() as model:
        family()
    theta = np.random.default_rng(1).normal(scale=0.3, size=sum(map(np.size, model.initial_point().values())))
    if what == "PyMC's gradient":
        function = model.logp_dlogp_function(ravel_inputs=True)
        function.set_extra_values({})
        function(theta)
        benchmark(function, theta)
        return
    rows = UnitLikelihood(read(model))
    rows.warm_up()
    benchmark(rows.clipped_gradient, theta, 2.0, 2.0**-40)


#: Those whose expansions take less than a second or so.
EXPANDED = [logistic, hierarchical_logistic, multivariate_normal, negative_binomial, varying_intercepts_20, banana]


@pytest.mark.parametrize("quantity", ["curvature", "residual"])
@pytest.mark.parametrize("family", EXPANDED, ids=lambda family: family.__name__)
def bench_expansion(benchmark, family, quantity):
    with pm.Model() as model:
        family()
    rows = UnitLikelihood(read(model), first_order=False, expands=True)
    rows.warm_up()
    generator = np.random.default_rng(1)
    theta = generator.normal(scale=0.3, size=rows.n_parameters)
    expansion = rows.expansion(ExpansionPoint(theta, np.eye(theta.size), 2.0, 2.0))
    points = theta + 0.1 * generator.normal(size=(2, theta.size))
    old, new = (Prediction(point, point - theta, True) for point in points)

    def residual():
        """Of two points that were not visited before."""
        expansion._pair.clear()
        rows._pair.clear()
        return expansion.residual(old, new, 0.5, 2.0**-40)

    passes = {
        "curvature": lambda: expansion.curvature(2.0**-40),
        "residual": residual,
    }
    benchmark.pedantic(passes[quantity], rounds=7, warmup_rounds=1)
