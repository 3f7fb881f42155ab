"""How long the accounting of a run takes whose step size decreases: two hundred different noise multipliers.

Run ``python -m uv run pytest -n 0 benchmarks/bench_accounting.py --benchmark-columns=min,median``.
"""

import numpy as np

from pymc_dp.accounting import PoissonGaussianReleases
from pymc_dp.accounting.loss_distribution import loss_distribution_epsilon


def bench_two_hundred_noise_multipliers(benchmark):
    releases = [PoissonGaussianReleases("gradient", 20, noise, 0.01) for noise in np.geomspace(1.0, 4.0, 200)]
    benchmark(loss_distribution_epsilon, releases, 1e-5)
