"""The samplers: pure algorithms that request releases, without access to data, noise or accounting."""

from pymc_dp.steps.barker import DPBarker
from pymc_dp.steps.hmc import DPHMC, DPMALA
from pymc_dp.steps.penalty import DPMinibatchPenalty, DPPenalty
from pymc_dp.steps.prelude import Prelude, Shares
from pymc_dp.steps.sghmc import DPSGHMC
from pymc_dp.steps.sgld import DPSGLD
from pymc_dp.steps.sgnht import DPSGNHT
from pymc_dp.steps.surrogate_hmc import DPSurrogateHMC

__all__ = [
    "DPHMC",
    "DPMALA",
    "DPSGHMC",
    "DPSGLD",
    "DPSGNHT",
    "DPBarker",
    "DPMinibatchPenalty",
    "DPPenalty",
    "DPSurrogateHMC",
    "Prelude",
    "Shares",
]
