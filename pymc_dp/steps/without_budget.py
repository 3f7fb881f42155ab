"""Steps that were made without a budget, and wait for the one that is passed to `pm.sample`."""

from collections.abc import Mapping, Sequence
from typing import Any

from pymc_dp.budget import PrivacyBudget
from pymc_dp.model.context import Model, model_in_context


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
        self._arguments = tuple(_names_of(each) for each in arguments[:1]) + tuple(arguments[1:])
        self._settings = {name: _names_of(each) if name == "vars" else each for name, each in settings.items()}

    def with_budget(self, budget: PrivacyBudget, model: Model | None = None, **others: Any) -> Any:
        """Return the step, for a model or that of the ``with`` context; `others` replace settings that were passed.

        Raises
        ------
        InvalidArgument
            If a setting is missing or out of range.
        """
        with model or model_in_context(self._settings.get("model")):
            changed = {name: value for name, value in others.items() if name in self._settings}
            settings = {**self._settings, **changed, "budget": budget, "model": None}
            return self.step_class(*self._arguments, **settings)

    def __repr__(self) -> str:
        return f"{self.step_class.__name__} without a budget: pass budget= to it, or to pm.sample"


def _names_of(variables: Any) -> Any:
    """Return variables by name, so that they can be those of another model."""
    if isinstance(variables, Sequence) and not isinstance(variables, str):
        return [getattr(each, "name", each) for each in variables]
    return variables
