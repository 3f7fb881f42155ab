"""The curator, the only access to confidential rows: clip, sum exactly, add noise, count releases."""

from pymc_dp.release.curator import Curators, MeteredCurator
from pymc_dp.release.interface import ExpansionPoint, Prediction, Release
from pymc_dp.release.noise import (
    InsecureNoise,
    NoiseSource,
    SecureNoise,
    grid_for,
    refuse_overflow,
    warm_up as warm_up_noise,
)

__all__ = [
    "Curators",
    "ExpansionPoint",
    "InsecureNoise",
    "MeteredCurator",
    "NoiseSource",
    "Prediction",
    "Release",
    "SecureNoise",
    "grid_for",
    "refuse_overflow",
    "warm_up_noise",
]
