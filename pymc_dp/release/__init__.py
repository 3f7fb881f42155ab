"""The door between private rows and everything else: clip, sum exactly, add noise, count."""

from pymc_dp.release.door import MeteredDoor
from pymc_dp.release.doors import Doors
from pymc_dp.release.interface import Centre, Door, Prediction, Release
from pymc_dp.release.noise import InsecureNoise, NoiseSource, SecureNoise, grid_for, refuse_overflow

__all__ = [
    "Centre",
    "Door",
    "Doors",
    "InsecureNoise",
    "MeteredDoor",
    "NoiseSource",
    "Prediction",
    "Release",
    "SecureNoise",
    "grid_for",
    "refuse_overflow",
]
