"""Refusals and warnings of arguments: misplaced budgets and steps, options that PyMC would refuse late or publish."""

import contextlib
import dataclasses
import inspect
import multiprocessing
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import numpy as np
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep, CompoundStep, flatten_steps
from pytensor.graph.basic import Variable
from rich.theme import Theme

from pymc_dp import _validate
from pymc_dp.budget.plan import Plan
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument, UnsupportedModel, UnsupportedOption
from pymc_dp.model.context import Model
from pymc_dp.model.origins import arrays_given_to
from pymc_dp.model.starts import refuse_wrong_starts
from pymc_dp.model.view import ModelView
from pymc_dp.steps.arguments import StepWithoutBudget
from pymc_dp.steps.base import DPStep, StepGroup
from pymc_dp.tables import Table
from pymc_dp.tables.template import are_of_a_template, lengths_of_templates

#: Warnings name the caller's line, whether `sample` or `pm.sample` was called.
_NOT_THE_CALLER = (str(Path(__file__).parents[1]), contextlib.__file__.removesuffix(".py"))
#: PyMC has no option of that name, and passes it to NUTS, which ignores it.
_BUDGET = "budget"
#: Names of options of differentially private software: substrings, and whole words within names.
_OF_PRIVACY = re.compile(
    r"epsilon|budget|privacy|private|sensitivity|differential"
    r"|(?<![a-z])(eps|delta|dp|gdp|rdp|zcdp|rho|noise|clip|clipping|unit)(?![a-z])"
)
_NOT_PRIVATE = (
    "it would be ignored, and the run would not be private. Pass budget=pymc_dp.PrivacyBudget(epsilon=..., delta=...)."
)
#: Keys of ``idata_kwargs`` that are allowed: others would return or store values computed from the data.
_ALLOWED_IDATA_OPTIONS = {"include_transformed"}
#: Options of `pm.sample` that are settings of NUTS, each with the check of its value.
OF_NUTS: Mapping[str, Callable[[str, Any], float]] = {
    "target_accept": _validate.open_unit_interval,
    "max_treedepth": partial(_validate.whole, at_least=1),
    "early_max_treedepth": partial(_validate.whole, at_least=1),
    "step_scale": _validate.positive,
}
#: How many times as many answers as rows, each of all rows, are no table that anybody has.
_FAR_LONGER = 10
_PROGRESS_BARS = (True, False, "combined", "split", "combined+stats", "stats+combined", "split+stats", "stats+split")


# Budgets and DP steps in calls, private or not ------------------------------------------------------------------------


def is_private(options: Mapping[str, Any]) -> bool:
    """Return whether a call of `pm.sample` is a private run: it has a DP step, or a budget and no step."""
    step = options.get("step")
    steps = step if isinstance(step, Sequence) else [step]
    by_step = bool(dp_steps(step)) or any(isinstance(one, StepWithoutBudget) for one in steps)
    return by_step or (step is None and isinstance(options.get(_BUDGET), PrivacyBudget))


def dp_steps(step: Any) -> list[DPStep]:
    """Return the DP steps in the argument ``step=``."""
    found: list[DPStep] = []
    for one in step if isinstance(step, Sequence) else [] if step is None else [step]:
        try:
            found += [leaf for leaf in flatten_steps(one) if isinstance(leaf, DPStep)]
        except ValueError:  # not a step: pm.sample refuses it
            continue
    return found


def refuse_in_a_starting_process() -> None:
    """Refuse a run in a child process that executes a script without a ``__main__`` guard again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UnsupportedOption(
            "This script is being run again by a process that sample started, and would charge the budget again. "
            'Put the call of sample under `if __name__ == "__main__":`.'
        )


def refuse_wrong_budget_or_step(options: Mapping[str, Any]) -> None:
    """Refuse a ``budget=`` that is not a budget, and a ``step=`` that is a class, a name or a budget."""
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
    """Refuse any ``budget=`` except a budget and None."""
    if budget is None or isinstance(budget, PrivacyBudget):
        return
    given = f"the class {budget.__name__} itself" if isinstance(budget, type) else f"a {type(budget).__name__}"
    raise InvalidArgument(
        f"budget= must be a budget object, but is {given}: write budget=dp.PrivacyBudget(epsilon=1.0, delta=1e-6), or "
        "dp.PrivacyBudget.load(path) for one that was saved."
    )


def refuse_budget(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a budget or a DP step anywhere in the arguments of a function that is not private."""
    if _BUDGET in kwargs or _holds_budget([*args, kwargs]):
        raise UnsupportedOption(
            f"{function} was given a privacy budget but no differentially private step: the run would not be private, "
            "and nothing would be charged. Leave out step=, or write step=dp.DPSurrogateHMC(budget=budget), or another "
            "DP step, inside `with model:`."
        )


def refuse_stray_budget(options: Mapping[str, Any]) -> None:
    """Refuse a budget or a DP step in any option except ``step=``."""
    for name, value in options.items():
        if name != "step" and _holds_budget([value]):
            raise UnsupportedOption(f"{name}= holds a privacy budget or a DP step. Pass it to step= alone.")


def _holds_budget(values: Sequence[Any]) -> bool:
    """Return whether a budget or a DP step is among the values, or in their containers, partials or dataclasses."""
    waiting, seen = list(values), set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, PrivacyBudget | DPStep):
            return True
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
        elif dataclasses.is_dataclass(value):  # a sampler object, such as `Private`, which holds its budget
            waiting += [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    return False


def refuse_privacy_keywords(
    function: Callable[..., Any], options: Mapping[str, Any], advice: str = _NOT_PRIVATE
) -> None:
    """Refuse options with names of differential privacy that neither PyMC's functions nor its step methods have.

    PyMC ignores unknown options. Options of step methods, as in ``nuts={...}``, are checked as well. `function` is the
    called function, or its original; `advice` ends the message.
    """
    own = set(inspect.signature(function).parameters)
    others = [value for name, value in options.items() if name not in own or name == "nuts_sampler_kwargs"]
    of_steps = {name for value in others if isinstance(value, Mapping) for name in value}
    makers = [vars(each)["__init__"] for step in STEP_METHODS for each in step.__mro__ if "__init__" in vars(each)]
    known = own | {str(step.name) for step in STEP_METHODS}
    for maker in makers:
        known |= set() if maker is object.__init__ else set(inspect.signature(maker).parameters)
    strays = sorted(
        str(name) for name in {*options, *of_steps} if name not in known and _OF_PRIVACY.search(str(name).lower())
    )
    if strays:
        raise UnsupportedOption(f"PyMC has no option {', '.join(strays)}: {advice}")


# The options of a private run -----------------------------------------------------------------------------------------


def refuse_no_table(data: Any) -> None:
    """Refuse any ``data=`` except a table and None."""
    if data is not None and not isinstance(data, Table):
        raise InvalidArgument(
            f"data= must be a pymc_dp.Table, not a {type(data).__name__}: table = dp.Table(frame, schema=[...]), with "
            'the model on table.template, or dp.Table(frame, x=["age"], y="default").'
        )


def warn(message: str) -> None:
    """Warn at the caller's line."""
    warnings.warn(message, UserWarning, skip_file_prefixes=_NOT_THE_CALLER)


def warn_about_budget(budget: PrivacyBudget, n_units: int) -> None:
    """Warn of an infinite epsilon, and of a delta that allows the publication of a whole row."""
    messages = []
    if not budget.private:
        messages.append(
            "NOT PRIVATE: the budget's epsilon is infinite, so no noise is added except what the step's settings give, "
            "and the result reveals the table. This is for debugging on public or simulated data; publish nothing."
        )
    if budget.relation == "substitute" and budget.delta >= 1.0 / n_units:
        messages.append(
            f"delta={budget.delta:g} is not below 1/n = {1.0 / n_units:.2g}: publishing one person's whole row would "
            "satisfy it. Choose delta well below 1/n."
        )
    for message in messages:
        warn(message)


def warn_about_copies_of_a_template(n_rows: int) -> None:
    """Warn if a model without ``data=`` has as many rows as a template; no entry of a row is read for this."""
    if n_rows in lengths_of_templates():
        warn(
            f"No data= was passed, and the model has {n_rows:,} rows, as many as a template: if it was built on "
            "table.template, the run says nothing of the table. Pass data=table."
        )


def refuse_other_axis(unit: str | None, view: ModelView) -> None:
    """Refuse rows along another axis than the first: observed variables that are far longer there, if none is named."""
    n_rows = view.row_split.n_rows
    longest = max((length for leaf in view.row_split.leaves if leaf.observed for length in leaf.row_shape()), default=0)
    if unit is None and longest > _FAR_LONGER * n_rows:
        raise UnsupportedModel(
            f"The first axis of the observed variables counts rows, here {n_rows:,}, and another has {longest:,} "
            "entries. If rows are along that one, name its dim with unit=; if not, the dim of the first."
        )


def unit_in_model(unit: Any, data: Table | None) -> Any:
    """Return the unit that was passed for the model; None if it is the table's own, which was named twice."""
    return None if data is not None and data.unit is not None and unit == data.unit else unit


def refuse_forgotten_table(data: Table | None, model: Model) -> None:
    """Refuse a model that was given a template's own arrays, where no table is passed."""
    if data is None and are_of_a_template(arrays_given_to(model)):
        raise UnsupportedOption(
            "The model was built on table.template, whose rows are invented, and no data= was passed: nothing would be "
            "computed from the table. Pass data=table. (For a run on the invented rows, give the model copies of them.)"
        )


def refuse_one_unit(relation: str, n_units: int) -> None:
    """Refuse a table of a single unit, where the number of units is public."""
    if relation == "substitute" and n_units < 2:
        raise UnsupportedModel("All rows belong to one unit: see unit= and unit_index=, which say what is protected.")


def _is_a(*types: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _are_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def _are_starts(value: Any) -> bool:
    of_chains = isinstance(value, Sequence) and all(isinstance(start, dict | None) for start in value)
    return isinstance(value, dict | None) or of_chains


def _is_a_context(value: Any) -> bool:
    names = multiprocessing.get_all_start_methods()
    return value in names if isinstance(value, str) else isinstance(value, BaseContext | None)


_TRUTHS = ("discard_tuned_samples", "compute_convergence_checks", "keep_warning_stat", "quiet", "return_inferencedata")
_MAPPINGS = ("idata_kwargs", "compile_kwargs", "nuts_sampler_kwargs")
_NAME = _is_a(str, type(None)), "a name"
#: The types that `pm.sample` documents, in the order of the checks: a predicate, and the type in words.
_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_TRUTHS, (_is_a(bool, np.bool_), "True or False")),
    **dict.fromkeys(_MAPPINGS, (_is_a(Mapping, type(None)), "a dict")),
    "nuts_sampler": _NAME,
    "progressbar_theme": (_is_a(str, Theme, type(None)), "a theme of rich"),
    "backend": _NAME,
    "callback": (lambda value: value is None or callable(value), "a function of trace and draw"),
    "mp_ctx": (_is_a_context, f"one of {multiprocessing.get_all_start_methods()}, or a context of multiprocessing"),
    "var_names": (lambda value: value is None or _are_names(value), "a list of names"),
    "model": (_is_a(Model, type(None)), "a pm.Model"),
    "progressbar": (_is_a(bool, str), "True, False or a name"),
    "initvals": (_are_starts, "a dict, or one for each chain"),
}


def refuse_wrong_types(arguments: Mapping[str, Any]) -> None:
    """Refuse options of another type than `pm.sample` documents: PyMC uses them only after the charge."""
    for name, (holds, words) in _TYPES.items():
        if name in arguments and not holds(arguments[name]):
            raise InvalidArgument(f"{name} must be {words}, but is a {type(arguments[name]).__name__}.")


def refuse_unsupported_options(arguments: Mapping[str, Any], unknown: Mapping[str, Any]) -> None:
    """Refuse options that cannot be combined with DP steps, and those that would return values without noise."""
    no_options = sorted({*unknown, *(["nuts_sampler_kwargs"] if arguments["nuts_sampler_kwargs"] else [])})
    if no_options:
        of_nuts = not {"nuts", "nuts_sampler_kwargs"}.isdisjoint(no_options)
        advice = f" Settings of NUTS are options of their own: {', '.join(OF_NUTS)}." if of_nuts else ""
        if of_steps := [name for name in no_options if name in inspect.signature(DPStep).parameters]:
            advice = f" Pass it to a step: step=dp.DPSurrogateHMC({of_steps[0]}=...), beside budget=."
        raise UnsupportedOption(f"pm.sample has no option {', '.join(no_options)} for DP steps.{advice}")
    if arguments["trace"] is not None:
        raise UnsupportedOption("trace= would store the model's data with the draws. Leave it out; save the result.")
    if not arguments["return_inferencedata"]:
        raise UnsupportedOption("return_inferencedata=False would return a trace that holds the model. Leave it out.")
    if arguments["nuts_sampler"] not in (None, "pymc"):
        raise UnsupportedOption(
            f"nuts_sampler={arguments['nuts_sampler']!r} cannot run a DP step. Leave it out; draw again at no cost: "
            f"dp.PrivateLikelihood(result, model).sample(nuts_sampler={arguments['nuts_sampler']!r})."
        )
    if arguments["init"] != "auto":
        raise UnsupportedOption("init= is of NUTS: chains of a private run start where initvals= says. Leave it out.")
    if arguments["backend"] not in (None, "numba"):
        raise UnsupportedOption("DP steps run on PyTensor's numba backend. Leave out backend=.")
    extra = set(arguments["idata_kwargs"] or {}) - _ALLOWED_IDATA_OPTIONS
    if extra:
        raise UnsupportedOption(
            f"idata_kwargs {sorted(extra)} may add values computed from the data. Allowed: include_transformed."
        )


def settings_of_nuts(settings: Mapping[str, Any], steps: Sequence[DPStep]) -> dict[str, float]:
    """Return settings of NUTS; refuse values that it could not use, and steps that move the chains themselves."""
    movers = [type(step).__name__ for step in steps if step.asks_in_chains]
    if settings and movers:
        raise UnsupportedOption(
            f"{', '.join(settings)}: of NUTS, but {movers[0]} moves the chains itself. Leave it out, or step=."
        )
    return {name: OF_NUTS[name](name, value) for name, value in settings.items()}


def refuse_bad_values(arguments: Mapping[str, Any], model: Model, plan: Plan) -> None:
    """Refuse values that `pm.sample` would refuse only after the charge."""
    if arguments["random_seed"] == -1:
        raise InvalidArgument("random_seed must not be -1. Leave it out for no seed.")
    if arguments["progressbar"] not in _PROGRESS_BARS:
        raise InvalidArgument(f"progressbar must be one of {_PROGRESS_BARS}.")
    blas_cores = arguments["blas_cores"]
    if not (blas_cores is None or blas_cores == "auto" or isinstance(blas_cores, int)):
        raise InvalidArgument("blas_cores must be a whole number, 'auto' or None.")
    _validate.whole("cores", 1 if arguments["cores"] is None else arguments["cores"], at_least=1)
    refuse_wrong_starts(model, arguments["initvals"], plan.chains, plan.relation)


def group_of_steps(step: Any, value_vars: Sequence[Variable]) -> StepGroup:
    """Return the DP steps of a run; refuse them unless each free variable is updated by exactly one of them."""
    found = dp_steps(step)
    if not found:
        raise UnsupportedOption("pymc_dp.sample needs step=: a differentially private step such as DPHMC.")
    moved = [var for one in found for var in one.vars]
    if any(var not in value_vars for var in moved):
        raise UnsupportedOption(
            "The DP step was made for another model object than the one that is sampled; a model that is built again "
            "is another one, whatever its names. Make the step inside `with model:` of the model to be sampled."
        )
    left_over = [var.name for var in value_vars if var not in moved]
    steps = step if isinstance(step, Sequence) else [step]
    if left_over or sum(len(flatten_steps(one)) for one in steps) > len(found):
        raise UnsupportedOption(
            "Every free variable has to be updated by a DP step: a step that is not private would publish the "
            f"data through {', '.join(left_over) or 'the others'}. Leave out vars= and steps that are not private."
        )
    if len(moved) > len(value_vars):
        raise UnsupportedOption("A free variable is updated by two DP steps. Name each in the vars= of one of them.")
    return StepGroup(found)
