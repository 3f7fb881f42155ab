"""How long a gradient on a batch takes when the table grows and the batch does not.

Run ``OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python -m uv run pytest -n 0 benchmarks/bench_batches.py
--benchmark-group-by=param:sampler --benchmark-columns=min,median``: the ratio of a group's two rows is what counts, and
is to be below 1.5.
"""

import numpy as np
import pymc as pm
import pytest

from pymc_dp.model.view import read
from pymc_dp.release import MeteredCurator, SecureNoise
from pymc_dp.release.batches import BatchesWithoutReplacement, PoissonBatches
from pymc_dp.release.queries import GradientSum
from pymc_dp.rows import UnitLikelihood

BATCH = 1000
MANY = 10**9


@pytest.fixture(scope="module", params=[10**5, 10**6])
def rows(request):
    n = request.param
    generator = np.random.default_rng(0)
    with pm.Model() as model:
        logit = pm.Data("x", generator.normal(size=(n, 10))) @ pm.Normal("beta", shape=10)
        pm.Bernoulli("y", logit_p=logit, observed=(generator.random(n) < 0.5).astype(int))
    rows = UnitLikelihood(read(model))
    rows.warm_up()
    return rows


@pytest.mark.parametrize("sampler", ["poisson", "without-replacement"])
def bench_gradient_on_a_batch(benchmark, rows, sampler):
    n = rows.n_units
    batches = PoissonBatches(BATCH / n) if sampler == "poisson" else BatchesWithoutReplacement(BATCH, n)
    events = [batches.releases("gradient", MANY, 1.0)]
    curator = MeteredCurator(rows, SecureNoise(), batches.relation, events)
    benchmark(curator.release, GradientSum(np.zeros(10), 4.0, batches=batches, counted=True), 1.0)
