"""Steps that were made without a budget, and wait for the one that is passed to `pm.sample`."""

from collections.abc import Mapping, Sequence
from typing import Any

from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import UnsupportedOption
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

    def protecting(self, unit: str | None, unit_index: Any) -> "StepWithoutBudget":
        """Return the same with a unit of privacy, where it was made without one.

        Raises
        ------
        UnsupportedOption
            If it was made with another.
        """
        given = {"unit": unit, "unit_index": unit_index}
        refuse_other_unit({name: self._settings.get(name) for name in given}, given)
        return StepWithoutBudget(self.step_class, self._arguments, {**self._settings, **given})

    def __repr__(self) -> str:
        return f"{self.step_class.__name__} without a budget: pass budget= to it, or to pm.sample"


def refuse_other_unit(own: Mapping[str, Any], given: Mapping[str, Any], *, has_budget: bool = False) -> None:
    """Refuse ``unit=`` and ``unit_index=`` of a call beside others of its step.

    Parameters
    ----------
    own, given : mapping of str to object
        Those of the step and of the call.
    has_budget : bool
        Whether the step is made already: then it has to have been told, too.

    Raises
    ------
    UnsupportedOption
        If the step has others.
    """
    for name, value in own.items():
        same = value is given[name] or (isinstance(value, str) and value == given[name])
        if not same and (value is not None or has_budget):
            raise UnsupportedOption(
                f"{name}= of the call is not what the step was made with: pass it where the step gets its budget, and "
                "nowhere else."
            )


def _names_of(variables: Any) -> Any:
    """Return variables by name, so that they can be those of another model."""
    if isinstance(variables, Sequence) and not isinstance(variables, str):
        return [getattr(each, "name", each) for each in variables]
    return variables
