"""What an iteration costs beside the pass over the rows and the noise: samplers on a curator that answers at once.

Run ``python -m uv run pytest -n 0 benchmarks/bench_steps.py --benchmark-columns=min,median``.
"""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.prior import Prior
from pymc_dp.release import Release
from pymc_dp.steps.access import Authorisation

SIZE = 10


class InstantCurator:
    """Answers with constants."""

    def open(self, key):
        return self

    def release(self, query, noise_multiplier=0.0):
        return Release(query.kind, np.zeros(SIZE if query.kind == "gradient" else 1), 1.0, query.where)


STEPS = {
    "penalty": lambda **shared: dp.DPPenalty(clip_log_ratio=1.0, proposal_scale=0.1, **shared),
    "penalty-one-component": lambda **shared: dp.DPPenalty(
        clip_log_ratio=1.0, proposal_scale=0.1, proposal="one-component", **shared
    ),
    "mala": lambda **shared: dp.DPMALA(clip_gradient=1.0, clip_log_ratio=1.0, step_size=0.1, **shared),
    "hmc": lambda **shared: dp.DPHMC(
        clip_gradient=1.0, clip_log_ratio=1.0, step_size=0.1, n_leapfrog=3, step_size_jitter=0.0, **shared
    ),
    "hmc-with-jitter": lambda **shared: dp.DPHMC(
        clip_gradient=1.0, clip_log_ratio=1.0, step_size=0.1, n_leapfrog=3, **shared
    ),
}


@pytest.mark.parametrize("name", STEPS)
def bench_iteration(benchmark, name):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("beta", shape=SIZE).sum(), 1.0, observed=np.zeros(5))
        step = STEPS[name](budget=dp.PrivacyBudget(1.0, 1e-6), clip_diagnostics=None)
    multipliers = {"gradient": 1.0, "log_ratio": 1.0}
    step.authorise(Authorisation(InstantCurator(), Prior(model, ParameterVector(model)), multipliers, 1.0))
    step.setup_chain(np.random.default_rng(0), 0, 10**9)
    point = {"beta": np.zeros(SIZE)}
    benchmark(step.step, point)
