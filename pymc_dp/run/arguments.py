"""Budgets and DP steps in the arguments of a call: what carries one is private, or is refused."""

import inspect
import multiprocessing
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep, CompoundStep, flatten_steps

from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument, UnsupportedOption
from pymc_dp.steps.arguments import StepWithoutBudget
from pymc_dp.steps.base import DPStep

#: PyMC has no option of that name, and takes it for one of NUTS, which does not look at it.
_BUDGET = "budget"
#: What options of differentially private software are called: parts of names, and whole words of them.
_OF_PRIVACY = re.compile(
    r"epsilon|budget|privacy|private|sensitivity|differential"
    r"|(?<![a-z])(eps|delta|dp|gdp|rdp|zcdp|rho|noise|clip|clipping|unit)(?![a-z])"
)


def refuse_in_a_starting_process() -> None:
    """Refuse where a script without a guard is run again by a process that it started.

    Raises
    ------
    UnsupportedOption
        If it is.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UnsupportedOption(
            "This script is being run again by a process that sample started, and would charge the budget again. "
            'Put the call of sample under `if __name__ == "__main__":`.'
        )


def is_private(options: Mapping[str, Any]) -> bool:
    """Return whether a call of `pm.sample` is of a private run: by its step, or by its budget."""
    step = options.get("step")
    steps = step if isinstance(step, Sequence) else [step]
    by_step = bool(dp_steps(step)) or any(isinstance(one, StepWithoutBudget) for one in steps)
    return by_step or (step is None and isinstance(options.get(_BUDGET), PrivacyBudget))


def refuse_what_is_no_budget(options: Mapping[str, Any]) -> None:
    """Refuse ``budget=`` that is no budget, and ``step=`` that is a class or a budget.

    Raises
    ------
    InvalidArgument
        If there is one.
    """
    step = options.get("step")
    if isinstance(step, PrivacyBudget):
        raise InvalidArgument("step= is a budget, not a sampler: pass it as budget=.")
    for one in step if isinstance(step, list | tuple) else [step]:
        if isinstance(one, type) and issubclass(one, DPStep):
            raise InvalidArgument(f"step= is the class {one.__name__}, not a step: write step=dp.{one.__name__}().")
        if isinstance(one, str) and _BUDGET in options:
            raise InvalidArgument(f"step= is a name, {one!r}, not a step: write step=dp.DPHMC(), or leave it out.")
    refuse_no_budget(options.get(_BUDGET))


def refuse_no_budget(budget: Any) -> None:
    """Refuse what was passed as ``budget=`` if it is something else; None is nothing.

    Raises
    ------
    InvalidArgument
        If it is.
    """
    if budget is None or isinstance(budget, PrivacyBudget):
        return
    what = f"the class {budget.__name__} itself" if isinstance(budget, type) else f"a {type(budget).__name__}"
    raise InvalidArgument(
        f"budget= must be a budget object, but is {what}: write budget=dp.PrivacyBudget(epsilon=1.0, delta=1e-6), or "
        "dp.PrivacyBudget.load(path) for one that was saved."
    )


def dp_steps(step: Any) -> list[DPStep]:
    """Return the DP steps in what was passed as ``step=``."""
    if step is None:
        return []
    steps = step if isinstance(step, Sequence) else [step]
    found: list[DPStep] = []
    for one in steps:
        try:
            found += [leaf for leaf in flatten_steps(one) if isinstance(leaf, DPStep)]
        except ValueError:  # not a step: pm.sample says so itself
            continue
    return found


def refuse_budget(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call of a function that is not private with a budget or a DP step anywhere in its arguments.

    Raises
    ------
    UnsupportedOption
        If there is one.
    """
    if _BUDGET in kwargs or any(_carried([*args, kwargs])):
        raise UnsupportedOption(
            f"{function} was given a privacy budget but no differentially private step: the run would not be private, "
            "and nothing would be charged. Write dp.sample(step=dp.DPSurrogateHMC(budget=budget)), or another DP step, "
            "inside `with model:`."
        )


def refuse_table(function: str, options: Mapping[str, Any]) -> None:
    """Refuse ``data=`` in a call that is not private, where PyMC takes it for an option of NUTS.

    Raises
    ------
    UnsupportedOption
        If it was passed.
    """
    if "data" in options:
        raise UnsupportedOption(f"{function} was given data= but no budget: pass budget=, and the run is private.")


def refuse_privacy_keywords(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options by the name of something private, which PyMC swallows where it does not know them.

    Parameters
    ----------
    function : callable
        Which was called, or its original.
    options : mapping of str
        The options of the call, by name. Those of step methods, as in ``nuts={...}``, are looked at as well.

    Raises
    ------
    UnsupportedOption
        If neither PyMC's functions nor its step methods have an option of that name.
    """
    own = set(inspect.signature(function).parameters)
    of_steps = {name for value in _unknown(options, own).values() if isinstance(value, Mapping) for name in value}
    known = own | _options_of_steps()
    strays = sorted(
        str(name) for name in {*options, *of_steps} if name not in known and _OF_PRIVACY.search(str(name).lower())
    )
    if strays:
        raise UnsupportedOption(
            f"PyMC has no option {', '.join(strays)}: it would be ignored, and the run would not be private. Pass "
            "budget=pymc_dp.PrivacyBudget(epsilon=..., delta=...)."
        )


def _unknown(options: Mapping[str, Any], own: set[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in own or name == "nuts_sampler_kwargs"}


def _options_of_steps() -> set[str]:
    """Return the names of PyMC's step methods, which take their options, and of these options."""
    makers = [vars(each)["__init__"] for step in STEP_METHODS for each in step.__mro__ if "__init__" in vars(each)]
    found = {name for maker in makers if maker is not object.__init__ for name in inspect.signature(maker).parameters}
    return found | {str(step.name) for step in STEP_METHODS}


def refuse_stray_budget(options: Mapping[str, Any]) -> None:
    """Refuse a budget or a DP step in any option but ``step=``, where one is given there.

    Raises
    ------
    UnsupportedOption
        If there is one.
    """
    for name, value in options.items():
        if name != "step" and any(_carried([value])):
            raise UnsupportedOption(f"{name}= holds a privacy budget or a DP step. Pass it to step= alone.")


def refuse_other_budget(given: Any, charged: PrivacyBudget) -> None:
    """Refuse ``budget=`` beside a DP step that charges another budget.

    Raises
    ------
    UnsupportedOption
        If it is another object.
    """
    if given is not charged:
        raise UnsupportedOption(
            "budget= is not the budget of the DP step, and two budgets cannot be charged for one run. Leave out "
            "budget=, or make the step with this budget."
        )


def _carried(values: Sequence[Any]) -> Iterator[PrivacyBudget | DPStep]:
    """Yield the budgets and DP steps in containers, partial functions and step methods, however deep."""
    waiting, seen = list(values), set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, PrivacyBudget | DPStep):
            yield value
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, partial):
            waiting += [*value.args, *value.keywords.values()]
        elif isinstance(value, BlockedStep | CompoundStep):
            waiting += vars(value).values()
