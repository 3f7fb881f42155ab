"""Differentially private Bayesian inference for PyMC."""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pymc_dp import (
    _pymc_hook as _pymc_hook,  # makes pm.sample run DP steps; nothing else needs it
    accounting,
    diagnostics,
)
from pymc_dp.budget.plan import Plan
from pymc_dp.budget.privacy_budget import PrivacyBudget
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
from pymc_dp.model.arrays import public
from pymc_dp.reports.deployment import Disclosure, disclosure
from pymc_dp.reports.forecast import Forecast, dry_run
from pymc_dp.run.private_likelihood import PrivateLikelihood, private_likelihood
from pymc_dp.run.sampler import Private
from pymc_dp.run.sampling import sample
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
from pymc_dp.surveys.averaging import AveragePredictions, average_predictions
from pymc_dp.surveys.checking import Check, check
from pymc_dp.surveys.comparing import Comparison, compare
from pymc_dp.surveys.describing import Description, describe
from pymc_dp.surveys.folding import Folds, folds
from pymc_dp.surveys.levels import Levels, find_levels
from pymc_dp.surveys.synthetic import pooled, synthetic_tables
from pymc_dp.tables import Category, Date, Number, Person, Schema, Table, Template, Whole, YesNo

if TYPE_CHECKING:
    from pymc_dp import plots

__version__ = version("pymc_dp")
__all__ = [
    "DPHMC",
    "DPMALA",
    "DPSGHMC",
    "DPSGLD",
    "DPSGNHT",
    "AveragePredictions",
    "BudgetExceeded",
    "BudgetFileError",
    "Category",
    "Check",
    "Comparison",
    "DPBarker",
    "DPMinibatchPenalty",
    "DPPenalty",
    "DPSurrogateHMC",
    "Date",
    "Description",
    "Disclosure",
    "Folds",
    "Forecast",
    "InvalidArgument",
    "Levels",
    "MissingBackend",
    "NoDpAccountingEvent",
    "NoPlan",
    "Number",
    "Person",
    "Plan",
    "Prelude",
    "PrivacyBudget",
    "PrivacyError",
    "Private",
    "PrivateLikelihood",
    "RunInterrupted",
    "Schema",
    "Shares",
    "Table",
    "TableChanged",
    "Template",
    "UnsupportedModel",
    "UnsupportedOption",
    "UnsupportedTable",
    "Whole",
    "WorkersLost",
    "YesNo",
    "accounting",
    "average_predictions",
    "check",
    "compare",
    "describe",
    "diagnostics",
    "disclosure",
    "dry_run",
    "find_levels",
    "folds",
    "plots",
    "pooled",
    "private_likelihood",
    "public",
    "sample",
    "synthetic_tables",
]


def __getattr__(name: str) -> Any:
    """Import the plots at their first use, as they import ArviZ."""
    if name == "plots":
        return importlib.import_module(f"{__name__}.plots")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, those of lazy imports included."""
    return sorted({*globals(), *__all__})
