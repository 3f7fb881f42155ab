"""Privacy accounting: conversion of releases to (epsilon, delta) and back, independent of models and data."""

from pymc_dp.accounting.account import (
    GAUSSIAN_ACCOUNTANT as GAUSSIAN_ACCOUNTANT,
    Guarantee as Guarantee,
    account as account,
    all_add_in_rho as all_add_in_rho,
    check_relation as check_relation,
    epsilon_of as epsilon_of,
    epsilon_of_thresholds as epsilon_of_thresholds,
    of_thresholds as of_thresholds,
    renyi_epsilon as renyi_epsilon,
    substitute_from_add_remove as substitute_from_add_remove,
    total_rho as total_rho,
    without_thresholds as without_thresholds,
)
from pymc_dp.accounting.calibrate import (
    draws_for as draws_for,
    largest_count as largest_count,
    noise_beside as noise_beside,
    noise_for as noise_for,
    noise_for_epsilon as noise_for_epsilon,
    scaled as scaled,
)
from pymc_dp.accounting.events import (
    KINDS_OF_RELEASES as KINDS_OF_RELEASES,
    NO_NOISE as NO_NOISE,
    RELATIONS as RELATIONS,
    BarkerReleases as BarkerReleases,
    GaussianReleases as GaussianReleases,
    PoissonGaussianReleases as PoissonGaussianReleases,
    PoissonSampling as PoissonSampling,
    Relation as Relation,
    Releases as Releases,
    SamplingWithoutReplacement as SamplingWithoutReplacement,
    ThresholdedReleases as ThresholdedReleases,
    WithoutReplacementGaussianReleases as WithoutReplacementGaussianReleases,
    to_dp_accounting as to_dp_accounting,
)
from pymc_dp.accounting.gaussian import (
    EPSILON_SLACK as EPSILON_SLACK,
    MAX_COORDINATES as MAX_COORDINATES,
    gaussian_delta as gaussian_delta,
    gaussian_epsilon as gaussian_epsilon,
    gaussian_rho as gaussian_rho,
    zcdp_epsilon as zcdp_epsilon,
    zcdp_rho as zcdp_rho,
)
from pymc_dp.accounting.loss_distribution import (
    loss_distribution_epsilon as loss_distribution_epsilon,
)
from pymc_dp.accounting.trade_off import (
    privacy_profile as privacy_profile,
    trade_off as trade_off,
    trade_off_of_guarantee as trade_off_of_guarantee,
)
