"""Differentially private Bayesian inference for PyMC."""

from importlib.metadata import version

from pymc_dp import _pymc_hook as _pymc_hook  # makes pm.sample run DP steps; nothing else needs it
from pymc_dp import accounting, diagnostics, plots
from pymc_dp.budget import Plan, PrivacyBudget
from pymc_dp.exceptions import (
    BudgetExceeded,
    BudgetFileError,
    InvalidArgument,
    MissingBackend,
    NoDpAccountingEvent,
    NoPlan,
    PrivacyError,
    RunInterrupted,
    TableChanged,
    UnsupportedModel,
    UnsupportedOption,
    UnsupportedTable,
    WorkersLost,
)
from pymc_dp.forecast import Forecast, dry_run
from pymc_dp.model.arrays import public
from pymc_dp.sampling import sample
from pymc_dp.steps import (
    DPHMC,
    DPMALA,
    DPSGHMC,
    DPSGLD,
    DPSGNHT,
    DPBarker,
    DPMinibatchPenalty,
    DPPenalty,
    DPSurrogateHMC,
    Prelude,
    Shares,
)
from pymc_dp.tables import Table

__version__ = version("pymc_dp")
__all__ = [
    "DPHMC",
    "DPMALA",
    "DPSGHMC",
    "DPSGLD",
    "DPSGNHT",
    "BudgetExceeded",
    "BudgetFileError",
    "DPBarker",
    "DPMinibatchPenalty",
    "DPPenalty",
    "DPSurrogateHMC",
    "Forecast",
    "InvalidArgument",
    "MissingBackend",
    "NoDpAccountingEvent",
    "NoPlan",
    "Plan",
    "Prelude",
    "PrivacyBudget",
    "PrivacyError",
    "RunInterrupted",
    "Shares",
    "Table",
    "TableChanged",
    "UnsupportedModel",
    "UnsupportedOption",
    "UnsupportedTable",
    "WorkersLost",
    "accounting",
    "diagnostics",
    "dry_run",
    "plots",
    "public",
    "sample",
]
