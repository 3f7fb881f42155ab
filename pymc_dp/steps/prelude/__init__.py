"""The releases before the chains start: an expansion of every unit's log-likelihood, paid for once."""

from pymc_dp.steps.prelude.learning import Learning, Prelude
from pymc_dp.steps.prelude.settings import Shares

__all__ = ["Learning", "Prelude", "Shares"]
