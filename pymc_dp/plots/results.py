"""What plots read of a published result."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xarray as xr
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.accounting import Releases
from pymc_dp.budget.plan import releases_of_record
from pymc_dp.diagnostics import moves_draws
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import labelled

#: Figures that are added to the record of releases where they are published.
_ADDED = ("rho", "share")


def group_of(tree: DataTree, name: str, otherwise: str) -> xr.Dataset:
    """Return a group of a result.

    Raises
    ------
    InvalidArgument
        If it is missing; the message ends with `otherwise`.
    """
    if name not in tree:
        raise InvalidArgument(f"This result has no group `{name}`: {otherwise}")
    return tree[name].to_dataset()


def releases_of(facts: Mapping[str, Any]) -> list[Releases]:
    """Return all releases of a run, under the names that they are published by.

    Raises
    ------
    InvalidArgument
        If they cannot be read.
    """
    try:
        records = json.loads(facts["releases"])
        return [
            releases_of_record({name: value for name, value in record.items() if name not in _ADDED})
            for record in records
        ]
    except (ArithmeticError, AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InvalidArgument(f"The releases of this result cannot be read: {type(error).__name__}.") from None


def harmful_kinds(facts: Mapping[str, Any]) -> set[str]:
    """Return the published kinds of releases whose clipping moves the draws."""
    steps = json.loads(facts["steps"])
    tested = not any(step["facts"].get("acceptance_test") == "none" for step in steps)
    return {
        labelled(each["kind"], step["label"])
        for step in steps
        for each in step["kinds"]
        if moves_draws(each["role"], tested=tested)
    }


def why_not_private(facts: Mapping[str, Any]) -> str:
    """Return why a result is not private; empty if it is."""
    if facts.get("private", 0) and math.isfinite(facts["epsilon"]):
        return ""
    return str(facts.get("not_private_because") or "no guarantee is known")


def chosen_names(names: Sequence[str], var_names: str | Sequence[str] | None, filter_vars: str | None) -> list[str]:
    """Return the names that a caller has chosen, as ArviZ reads them.

    Parameters
    ----------
    names : sequence of str
        All that there are.
    var_names : str, sequence of str or None
        Those that are wanted; with ``~`` in front those that are not; None: all.
    filter_vars : {None, "like", "regex"}
        They are names, parts of names, or regular expressions that names hold.

    Raises
    ------
    InvalidArgument
        If none fits one of `var_names`, or `filter_vars` is no way to read them.
    """
    filter_vars = _validate.choice("filter_vars", filter_vars, (None, "like", "regex"))
    if var_names is None:
        return list(names)
    fits: Callable[[str, str], bool] = {
        None: lambda name, pattern: name == pattern,
        "like": lambda name, pattern: pattern in name,
        "regex": lambda name, pattern: re.search(pattern, name) is not None,
    }[filter_vars]
    found: set[str] = set()
    patterns = [var_names] if isinstance(var_names, str) else list(var_names)
    for pattern in patterns:
        fitting = {name for name in names if fits(name, pattern.removeprefix("~"))}
        if not fitting:
            raise InvalidArgument(f"var_names: nothing is called {pattern!r}. There are {', '.join(map(repr, names))}.")
        found |= fitting
    excluded = all(pattern.startswith("~") for pattern in patterns)
    return [name for name in names if (name in found) is not excluded]
