"""Steps that were made without a budget, and wait for the one that is passed to `pm.sample`."""

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

from pymc_dp.budget import PrivacyBudget


class StepWithoutBudget:
    """What a DP step's constructor returns where no budget was passed: its arguments, nothing else.

    Settings are checked when the budget is there, which says what the number of units may be used for.

    Parameters
    ----------
    step_class : type of DPStep
        What was to be made.
    arguments, settings
        What it was to be made with.
    """

    def __init__(self, step_class: type[Any], arguments: Sequence[Any], settings: Mapping[str, Any]) -> None:
        self.step_class = step_class
        self._arguments, self._settings = tuple(arguments), {**settings}

    def with_budget(self, budget: PrivacyBudget, model: pm.Model | None = None) -> Any:
        """Return the step, for a model or that of the ``with`` context.

        Raises
        ------
        InvalidArgument
            If a setting is missing or out of range.
        """
        with pm.modelcontext(self._settings.get("model") or model):
            return self.step_class(*self._arguments, **{**self._settings, "budget": budget})

    def __repr__(self) -> str:
        return f"{self.step_class.__name__} without a budget: pass budget= to it, or to pm.sample"
