"""The row engine: per-unit log-likelihoods and gradients of a PyMC model, clipped and summed exactly."""

from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.public import PublicUnits, Simulation, SyntheticTable

__all__ = ["ClippedSum", "PublicUnits", "Simulation", "SyntheticTable", "UnitLikelihood"]
