"""PyMC's other functions: those that would take a budget and ignore it refuse it, those that store data say so."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pymc as pm
from pymc.variational.opvi import Group
from xarray import DataTree

from pymc_dp.arguments import refuse_budget
from pymc_dp.hooks import Hooks

_hooks = Hooks()

_POSTERIOR_PREDICTIVE = (
    "The groups observed_data and constant_data that pm.sample_posterior_predictive returns are the data, and "
    "posterior_predictive was drawn at the rows' own covariates: the privacy guarantee covers none of them. Do not "
    "publish them, and keep them out of the result that you publish. To publish predictions, put public covariates "
    "into the model (pm.set_data), pass predictions=True, and publish only the group predictions."
)
_LOG_LIKELIHOOD = (
    "The group log_likelihood that pm.stats.compute_log_likelihood computes has a value for each row: the privacy "
    "guarantee does not cover it. Do not publish it; extend_inferencedata=False keeps it out of the result."
)


def is_private_result(tree: Any) -> bool:
    """Return whether a tree, or the tree that it is a group of, is the result of a run of a DP step."""
    return isinstance(tree, DataTree) and "privacy" in tree.root.children


def _refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses budgets."""

    @functools.wraps(function)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        refuse_budget(name, args, kwargs)
        return function(*args, **kwargs)

    return refusing


def _warning(message: str, result: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that warns where its argument `result` is the result of a private run."""

    @functools.wraps(function)
    def warning(*args: Any, **kwargs: Any) -> Any:
        tree = args[0] if args else kwargs.get(result)
        if is_private_result(tree) and not kwargs.get("predictions"):
            warnings.warn(message, UserWarning, stacklevel=2)
        return function(*args, **kwargs)

    return warning


def install() -> None:
    """Put the wrappers in place."""
    uninstall()
    # PyMC's own pm.sample, where somebody imported it before this package, hands its options on to init_nuts.
    _hooks.replace_function(pm.init_nuts, _refusing("pm.init_nuts", pm.init_nuts))
    # Every variational approximation goes through Group, which keeps options that it does not know.
    _hooks.replace_method(Group, "__init__", _refusing("A variational approximation", Group.__init__))
    _hooks.replace_function(
        pm.sample_posterior_predictive, _warning(_POSTERIOR_PREDICTIVE, "trace", pm.sample_posterior_predictive)
    )
    _hooks.replace_function(
        pm.stats.compute_log_likelihood, _warning(_LOG_LIKELIHOOD, "idata", pm.stats.compute_log_likelihood)
    )


def uninstall() -> None:
    """Give PyMC's functions back as they were."""
    _hooks.remove()
