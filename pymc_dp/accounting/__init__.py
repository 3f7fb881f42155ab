"""Privacy accounting: from releases to (epsilon, delta) and back. Knows nothing of models or data."""

from pymc_dp.accounting.calibrate import largest_count, noise_for
from pymc_dp.accounting.events import GaussianReleases
from pymc_dp.accounting.gaussian import (
    EPSILON_SLACK,
    MAX_COORDINATES,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_rho,
)

__all__ = [
    "EPSILON_SLACK",
    "MAX_COORDINATES",
    "GaussianReleases",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_rho",
    "largest_count",
    "noise_for",
]
