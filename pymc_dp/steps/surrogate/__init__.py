"""The sampler with control variates: an expansion of every unit's log-likelihood, paid for once."""

from pymc_dp.steps.surrogate.sampler import DPSurrogateHMC
from pymc_dp.steps.surrogate.settings import Shares

__all__ = ["DPSurrogateHMC", "Shares"]
