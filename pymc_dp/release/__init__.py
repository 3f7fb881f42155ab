"""The door between private rows and everything else: clip, sum exactly, add noise, count."""

from pymc_dp.release.door import MeteredDoor
from pymc_dp.release.doors import Doors
from pymc_dp.release.interface import Door, Release
from pymc_dp.release.noise import InsecureNoise, NoiseSource, SecureNoise, grid_for, refuse_overflow

__all__ = [
    "Door",
    "Doors",
    "InsecureNoise",
    "MeteredDoor",
    "NoiseSource",
    "Release",
    "SecureNoise",
    "grid_for",
    "refuse_overflow",
]
