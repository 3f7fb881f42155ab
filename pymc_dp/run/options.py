"""Types of the options of `pm.sample`, which PyMC itself would look at only after the budget was charged."""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
from rich.theme import Theme

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import Model

_TRUTH = ("discard_tuned_samples", "compute_convergence_checks", "keep_warning_stat", "quiet", "return_inferencedata")
_MAPPINGS = ("idata_kwargs", "compile_kwargs", "nuts_sampler_kwargs")


def refuse_wrong_types(arguments: Mapping[str, Any]) -> None:
    """Refuse options of another type than `pm.sample` documents.

    Raises
    ------
    InvalidArgument
        If there is one, by its name.
    """
    wanted: dict[str, tuple[Callable[[Any], bool], str]] = {
        **dict.fromkeys(_TRUTH, (lambda value: isinstance(value, bool | np.bool_), "True or False")),
        **dict.fromkeys(_MAPPINGS, (lambda value: value is None or isinstance(value, Mapping), "a dict")),
        "nuts_sampler": (_word, "a name"),
        "progressbar_theme": (lambda value: value is None or isinstance(value, str | Theme), "a theme of rich"),
        "backend": (_word, "a name"),
        "callback": (lambda value: value is None or callable(value), "a function of trace and draw"),
        "mp_ctx": (_is_a_context, f"one of {multiprocessing.get_all_start_methods()}, or a context of multiprocessing"),
        "var_names": (lambda value: value is None or _names(value), "a list of names"),
        "model": (lambda value: value is None or isinstance(value, Model), "a pm.Model"),
        "progressbar": (lambda value: isinstance(value, bool | str), "True, False or a name"),
        "initvals": (lambda value: value is None or _starts(value), "a dict, or one for each chain"),
    }
    for name, (holds, words) in wanted.items():
        if name in arguments and not holds(arguments[name]):
            raise InvalidArgument(f"{name} must be {words}, but is a {type(arguments[name]).__name__}.")


def _word(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def _starts(value: Any) -> bool:
    if isinstance(value, dict):
        return True
    return isinstance(value, Sequence) and all(start is None or isinstance(start, dict) for start in value)


def _is_a_context(value: Any) -> bool:
    if isinstance(value, str):
        return value in multiprocessing.get_all_start_methods()
    return value is None or isinstance(value, BaseContext)
