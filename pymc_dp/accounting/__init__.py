"""Privacy accounting: from releases to (epsilon, delta) and back. Knows nothing of models or data."""

from pymc_dp.accounting.account import (
    GAUSSIAN_ACCOUNTANT,
    Guarantee,
    account,
    all_add_in_rho,
    check_relation,
    epsilon_of,
    substitute_from_add_remove,
    total_rho,
)
from pymc_dp.accounting.calibrate import draws_for, largest_count, noise_beside, noise_for, noise_for_epsilon, scaled
from pymc_dp.accounting.dp_events import to_dp_accounting
from pymc_dp.accounting.events import (
    KINDS_OF_RELEASES,
    NO_NOISE,
    RELATIONS,
    BarkerReleases,
    GaussianReleases,
    PoissonGaussianReleases,
    PoissonSampling,
    Relation,
    Releases,
    SamplingWithoutReplacement,
    WithoutReplacementGaussianReleases,
)
from pymc_dp.accounting.gaussian import (
    EPSILON_SLACK,
    MAX_COORDINATES,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_rho,
    zcdp_epsilon,
    zcdp_rho,
)
from pymc_dp.accounting.loss_distribution import loss_distribution_epsilon
from pymc_dp.accounting.renyi import renyi_epsilon
from pymc_dp.accounting.trade_off import privacy_profile, trade_off, trade_off_of_guarantee

__all__ = [
    "EPSILON_SLACK",
    "GAUSSIAN_ACCOUNTANT",
    "KINDS_OF_RELEASES",
    "MAX_COORDINATES",
    "NO_NOISE",
    "RELATIONS",
    "BarkerReleases",
    "GaussianReleases",
    "Guarantee",
    "PoissonGaussianReleases",
    "PoissonSampling",
    "Relation",
    "Releases",
    "SamplingWithoutReplacement",
    "WithoutReplacementGaussianReleases",
    "account",
    "all_add_in_rho",
    "check_relation",
    "draws_for",
    "epsilon_of",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_rho",
    "largest_count",
    "loss_distribution_epsilon",
    "noise_beside",
    "noise_for",
    "noise_for_epsilon",
    "privacy_profile",
    "renyi_epsilon",
    "scaled",
    "substitute_from_add_remove",
    "to_dp_accounting",
    "total_rho",
    "trade_off",
    "trade_off_of_guarantee",
    "zcdp_epsilon",
    "zcdp_rho",
]
