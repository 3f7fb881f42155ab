"""All replacements of PyMC's functions by `pymc_dp`: `pm.sample` runs private steps; other functions refuse budgets.

ArviZ's functions that require a log-likelihood for each row are replaced, too: for private results they name the
alternatives.

Importing this module installs the hooks, unless the environment variable ``PYMC_DP_HOOK`` is ``off``: then PyMC is
unchanged, private runs need `pymc_dp.sample`, and PyMC ignores a budget in a call of `pm.sample`. The module can be
deleted, with the line of `pymc_dp/__init__.py` that imports it, when PyMC has a hook of its own for steps that wrap a
whole run (pull requests 7880 and 8358 of PyMC): `pymc_dp.sample` does not depend on it. Without it, in addition to
`pm.sample`, the refusals of budgets and of options with such names, and the warnings below, are lost, a synthetic
table on the arrays of the data is recognised by the model's own variables only, and numbers of units that `pm.Data`
cannot hold are not refused.
"""

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pymc as pm
from pymc.distributions.distribution import Distribution
from pymc.variational.opvi import Group
from xarray import DataTree

from pymc_dp.exceptions import UnsupportedOption
from pymc_dp.model import origins
from pymc_dp.model.arrays import EVALUATING, declare_public, is_public, marking, note_narrowed
from pymc_dp.run import refusals
from pymc_dp.run.sampler import Private
from pymc_dp.run.sampling import sample

_POSTERIOR_PREDICTIVE = (
    "The groups observed_data and constant_data that pm.sample_posterior_predictive returns are the data, and "
    "posterior_predictive was drawn at the rows' own covariates: the privacy guarantee covers none of them. Do not "
    "publish them, and keep them out of the result that you publish. To publish predictions, put public covariates "
    "into the model (pm.set_data), pass predictions=True, and publish only the group predictions. Of a model on a "
    "template all of these are about invented rows: dp.check(result, budget=...) checks whether the model fits."
)
_LOG_LIKELIHOOD = (
    "pm.stats.compute_log_likelihood has a value for each row, and az.loo and az.waic are sums of them without noise: "
    "no budget covers either. Whether a model fits is checked by dp.check(result, budget=...), and which of several "
    "predicts better by dp.compare({...}, budget=...)."
)

#: The replaced attributes: owner, name and original.
_replaced: list[tuple[Any, str, Any]] = []


def install() -> None:
    """Make `pm.sample` pass calls with a DP step to `pymc_dp.sample`. Importing `pymc_dp` does this.

    Functions of PyMC that would ignore a budget refuse it from then on; those that put the data into a result warn. The
    arrays of models are recorded, so that a synthetic table on the same arrays is refused, and numbers that PyMC
    computes from rows while a model is built are marked.
    """
    uninstall()
    _replace_function(pm.sample, _sample)
    # The original pm.sample, if imported before this package, passes its options to init_nuts.
    _replace_function(pm.init_nuts, functools.partial(_without_privacy, "pm.init_nuts"))
    # Every variational approximation uses Group, which accepts unknown options.
    approximating = functools.partial(_without_privacy, "A variational approximation")
    _replace(Group, "__init__", _wrapped(approximating, Group.__init__))
    _replace_function(pm.sample_posterior_predictive, _posterior_predictive)
    _replace_function(pm.stats.compute_log_likelihood, _log_likelihood)
    _replace_function(pm.Data, _data)
    _refuse_in_arviz()
    _replace(Distribution, "__new__", staticmethod(_wrapped(_random_variable, Distribution.__new__)))
    for name, methods in EVALUATING.items():
        of_class = getattr(pm.gp, name)
        for method in methods:
            _replace(of_class, method, marking(f"pm.gp.{name}", getattr(of_class, method)))
    _replace(pm.Model, "set_data", _wrapped(_set_data, pm.Model.set_data))


def _refuse_in_arviz() -> None:
    """Replace functions of ArviZ, of any version, that use log-likelihoods of rows, once it is loaded.

    Loading ArviZ takes longer than all of PyMC. If it is imported after this package, the next call of `pm.sample`
    replaces them; until then its own error states that there are no log-likelihoods.
    """
    arviz = sys.modules.get("arviz")
    for name in dir(arviz) if arviz else ():
        if name.startswith("loo") or name in ("compare", "reloo", "waic"):
            if not any(owner is arviz and name == known for owner, known, _ in _replaced):
                _replace_function(getattr(arviz, name), _log_likelihood)


def uninstall() -> None:
    """Restore the original functions; `pymc_dp.sample` still works."""
    while _replaced:
        owner, name, original = _replaced.pop()
        setattr(owner, name, original)


def _replace_function(original: Callable[..., Any], body: Callable[..., Any]) -> None:
    """Replace a function under every name of it in loaded modules of PyMC and ArviZ.

    Their own calls use the wrapper as well. Names in other modules that imported it earlier keep the original.
    """
    wrapper = _wrapped(body, original)
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in ("pymc", "arviz", "arviz_stats"):
            for name in [name for name, value in vars(module).items() if value is original]:
                _replace(module, name, wrapper)


def _replace(owner: Any, name: str, wrapper: Any) -> None:
    """Replace a name of a module, or a method in the class that defines it, which may be a base class of `owner`."""
    definer = next(each for each in (owner.__mro__ if isinstance(owner, type) else [owner]) if name in vars(each))
    _replaced.append((definer, name, vars(definer)[name]))
    setattr(definer, name, wrapper)


def _wrapped(body: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `body` with the original and its arguments."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return body(original, *args, **kwargs)

    return wrapper


def _sample(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `pymc_dp.sample` if there is a DP step or a budget, else the original `pm.sample`."""
    _refuse_in_arviz()
    sampler = kwargs.get("sampler")
    if isinstance(sampler, Private):  # the interface of PyMC's proposed samplers
        return sampler.sample(*args, **{name: value for name, value in kwargs.items() if name != "sampler"})
    refusals.refuse_wrong_budget_or_step(kwargs)
    if refusals.is_private(kwargs):
        return sample(*args, **kwargs)
    refusals.refuse_budget("pm.sample", args, kwargs)
    if "data" in kwargs:  # PyMC would pass it to NUTS
        raise UnsupportedOption("pm.sample was given data= but no budget: pass budget=, and the run is private.")
    refusals.refuse_privacy_keywords(original, kwargs)
    return original(*args, **kwargs)


def _without_privacy(name: str, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function that is not private; refuse budgets, and options with names of differential privacy."""
    refusals.refuse_budget(name, args, kwargs)
    refusals.refuse_privacy_keywords(original, kwargs)
    return original(*args, **kwargs)


def _posterior_predictive(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if _is_private_result(args[0] if args else kwargs.get("trace")) and not kwargs.get("predictions"):
        warnings.warn(_POSTERIOR_PREDICTIVE, UserWarning, stacklevel=3)
    return original(*args, **kwargs)


def _log_likelihood(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    given = [*args, *kwargs.values()]
    given += [each for one in given if isinstance(one, dict) for each in one.values()]  # az.compare takes several
    if any(_is_private_result(each) for each in given):
        raise UnsupportedOption(_LOG_LIKELIHOOD)
    return original(*args, **kwargs)


def _is_private_result(tree: Any) -> bool:
    """Return whether a tree, or the root of a group, is the result of a run of a DP step."""
    return isinstance(tree, DataTree) and "privacy" in tree.root.children


def _data(original: Callable[..., Any], /, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `pm.Data`, record its array, and accept arrays that are declared public."""
    origins.refuse_table_on_dask(value)
    declared = is_public(value)
    given = value.data if declared else value
    variable = origins.refusing_labels(name, value, functools.partial(original, name, given, *args, **kwargs))
    if declared:
        declare_public(variable)
    note_narrowed(variable, given)
    origins.note(pm.modelcontext(kwargs.get("model")), name, [value])
    return variable


def _random_variable(original: Callable[..., Any], /, cls: type, name: str, *args: Any, **kwargs: Any) -> Any:
    """Make a random variable, and record the array of ``observed=`` and those held by functions among the options."""
    observed = kwargs.get("observed")
    origins.refuse_table_on_dask(observed)
    variable = origins.refusing_labels(name, observed, functools.partial(original, cls, name, *args, **kwargs))
    held = [value for option in kwargs.values() for value in origins.held_by(option)]
    origins.note(pm.modelcontext(None), name, [observed, *held])
    return variable


def _set_data(
    original: Callable[..., Any], /, self: pm.Model, name: str, values: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call `pm.Model.set_data`, and record the new array, which is public only if it is declared so itself."""
    origins.refuse_table_on_dask(values)
    declared = is_public(values)
    given = values.data if declared else values
    result = original(self, name, given, *args, **kwargs)
    declare_public(self[name], declared)
    note_narrowed(self[name], given)
    origins.note(self, name, [values])
    return result


if os.environ.get("PYMC_DP_HOOK", "on") != "off":
    install()
