"""Arguments of steps: the shared ones, their signatures and docstrings, and steps that wait for a budget.

A sampler's constructor names its own arguments and hands the others on, ``**shared: Unpack[SharedArguments]``. Type
checkers read that; `inspect.signature` and `help` read the attributes that `DPStep` sets for each of its subclasses.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, get_args

from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import UnsupportedOption
from pymc_dp.model.context import Model, model_in_context

ClipDiagnostics = Literal["private", "exact"] | None


class SharedArguments(TypedDict, total=False):
    """The arguments of every step: see `pymc_dp.steps.base.DPStep`."""

    budget: PrivacyBudget | None
    budget_share: float
    unit: str | None
    unit_index: Any
    clip_diagnostics: ClipDiagnostics
    keep_releases: bool
    insecure_seed: int | None
    model: Model | None


def signature_of(step: type) -> inspect.Signature:
    """Return the signature of a sampler, including typed arguments that its constructors hand on."""
    found: dict[str, inspect.Parameter] = {}
    taken: set[str] | None = None  # every name
    for cls in step.__mro__:
        if "__init__" not in vars(cls):
            continue
        handed_on = None
        for each in list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]:
            if each.kind is each.VAR_KEYWORD:
                handed_on = each
            elif each.kind is not each.VAR_POSITIONAL and (taken is None or each.name in taken):
                found.setdefault(each.name, each)
        if handed_on is None:
            break
        for typed in get_args(handed_on.annotation)[:1]:
            taken = set(typed.__annotations__) & (set(typed.__annotations__) if taken is None else taken)
    return inspect.Signature(sorted(found.values(), key=lambda each: each.kind))


def docstring_of(step: type) -> str | None:
    """Return a sampler's docstring with the descriptions of shared arguments and errors inserted.

    A line with the names of arguments and one with ``See `module.Class`.`` are replaced by that class's descriptions.
    """
    if not step.__doc__:
        return step.__doc__
    text = inspect.cleandoc(step.__doc__)
    for base in step.__mro__[1:]:
        shared = inspect.cleandoc(base.__doc__ or "")
        names = re.search(rf"^(.+)\n    See `{re.escape(f'{base.__module__}.{base.__qualname__}')}`\.$", text, re.M)
        if names is None:
            continue
        entries = [re.search(rf"^{name} :.*(\n    .+)+", shared, re.M) for name in names[1].split(", ")]
        text = text.replace(names[0], "\n".join(entry[0] for entry in entries if entry is not None))
        errors = re.search(r"^Raises\n(.+\n?)+", shared, re.M)
        if errors is not None and "\nRaises\n" not in text:
            text = text.replace("\n\nNotes\n", f"\n\n{errors[0].rstrip()}\n\nNotes\n")
    return text


class StepWithoutBudget:
    """A DP step's class and arguments: constructors return it if no budget was passed.

    Settings are checked once the budget is known, whose relation determines whether the number of units is public.
    """

    def __init__(self, step_class: type[Any], arguments: Sequence[Any], settings: Mapping[str, Any]) -> None:
        self.step_class = step_class
        self._arguments = (*(_names_of(each) for each in arguments[:1]), *arguments[1:])
        self._settings = {name: _names_of(each) if name == "vars" else each for name, each in settings.items()}

    def with_budget(self, budget: PrivacyBudget, model: Model | None = None, **others: Any) -> Any:
        """Return the step, for a model or that of the ``with`` context; `others` replace settings that were passed."""
        with model or model_in_context(self._settings.get("model")):
            changed = {name: value for name, value in others.items() if name in self._settings}
            settings = {**self._settings, **changed, "budget": budget, "model": None}
            return self.step_class(*self._arguments, **settings)

    def protecting(self, unit: str | None, unit_index: Any) -> "StepWithoutBudget":
        """Return a copy with a unit of privacy; refuse another one if a unit was given."""
        given = {"unit": unit, "unit_index": unit_index}
        refuse_other_unit({name: self._settings.get(name) for name in given}, given)
        return StepWithoutBudget(self.step_class, self._arguments, {**self._settings, **given})

    def __repr__(self) -> str:
        return f"{self.step_class.__name__} without a budget: pass budget= to it, or to pm.sample"


def refuse_other_unit(own: Mapping[str, Any], given: Mapping[str, Any], *, has_budget: bool = False) -> None:
    """Refuse a call's ``unit=`` and ``unit_index=`` that differ from the step's, or any if it `has_budget`."""
    for name, value in own.items():
        same = value is given[name] or (isinstance(value, str) and value == given[name])
        if not same and (value is not None or has_budget):
            raise UnsupportedOption(
                f"{name}= of the call is not what the step was made with: pass it where the step gets its budget, and "
                "nowhere else."
            )


def _names_of(variables: Any) -> Any:
    """Return variables by name, so that they can belong to another model."""
    if isinstance(variables, Sequence) and not isinstance(variables, str):
        return [getattr(each, "name", each) for each in variables]
    return variables
