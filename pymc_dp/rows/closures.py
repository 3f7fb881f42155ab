"""Find tables of rows that a user's function holds, where no graph shows them.

The functions of a `pm.CustomDist` and of a transform may refer to arrays of the script that defines them. A mean of
such an array, computed by NumPy, is a number that no graph explains. What is looked for is an array with an axis of the
length of the rows or units: shapes are public, values are not looked at.
"""

import functools
import inspect
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.distribution import _support_point
from pymc.logprob.abstract import _logprob
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import toposort

from pymc_dp.exceptions import UnsupportedModel

_DEPTH = 6
_LIBRARIES = ("pymc", "pytensor", "numpy", "scipy", "xarray", "pandas", "arviz", "pymc_dp")


def refuse_tables_in_functions(model: pm.Model, lengths: Collection[int]) -> None:
    """Refuse a model in which a function of the user's holds an array with an axis of one of `lengths`.

    Raises
    ------
    UnsupportedModel
        If there is one, by the name of the variable that the function belongs to.
    """
    wanted = frozenset(lengths)
    for rv in model.basic_RVs:
        functions = [*_functions_of(rv), model.rvs_to_transforms.get(rv)]
        if any(not wanted.isdisjoint(shape) for found in functions for shape in _shapes_in(found, _DEPTH, set())):
            raise UnsupportedModel(
                f"A function of {rv.name!r} (logp=, random=, support_point= or a transform) refers to an array with "
                "one entry for each row or unit, which would be taken as public. Pass it to the distribution as a "
                "parameter: pm.CustomDist(name, mu, x, logp=lambda value, mu, x: ..., observed=...)."
            )


def _functions_of(rv: Variable) -> Iterator[Any]:
    """Yield the functions that the custom distributions in the graph of `rv` were made of."""
    for node in toposort([rv]):
        if isinstance(node.op, CustomDistRV):
            yield type(node.op)._random_fn  # noqa: SLF001
        if isinstance(node.op, CustomDistRV | CustomSymbolicDistRV):
            # PyMC registers functions of its own, which call the user's.
            for registered, name in ((_logprob, "logp"), (_support_point, "support_point")):
                yield inspect.getclosurevars(registered.dispatch(type(node.op))).nonlocals.get(name)


def _shapes_in(found: Any, depth: int, seen: set[int]) -> Iterator[tuple[int, ...]]:  # noqa: PLR0912
    """Yield the shapes of the arrays that an object refers to."""
    if depth == 0 or id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, Variable):
        if isinstance(found, Constant | SharedVariable):
            value = found.data if isinstance(found, Constant) else found.get_value(borrow=True)
            yield tuple(np.shape(value))
        else:
            yield tuple(length for length in getattr(found.type, "shape", ()) if length is not None)
    elif isinstance(found, ModuleType | type | str | bytes):
        return
    elif hasattr(found, "shape") and isinstance(found.shape, tuple):
        yield tuple(length for length in found.shape if isinstance(length, int))
    elif isinstance(found, functools.partial):
        for inner in (found.func, found.args, found.keywords):
            yield from _shapes_in(inner, depth - 1, seen)
    elif isinstance(found, MethodType):
        yield from _shapes_in(found.__func__, depth, seen)
        yield from _shapes_in(found.__self__, depth - 1, seen)
    elif isinstance(found, FunctionType):
        # PyMC's own wrappers are followed into what they close over, not into the globals of their modules.
        refers = inspect.getclosurevars(found)
        ours = (found.__module__ or "").split(".")[0] in _LIBRARIES
        for inner in [
            *refers.nonlocals.values(),
            *([] if ours else refers.globals.values()),
            *(found.__defaults__ or ()),
        ]:
            yield from _shapes_in(inner, depth - 1, seen)
    elif isinstance(found, Mapping):
        yield (len(found),)
        for inner in list(found.values())[:100]:
            yield from _shapes_in(inner, depth - 1, seen)
    elif isinstance(found, list | tuple | set | frozenset):
        yield (len(found),)
        for inner in list(found)[:100]:
            yield from _shapes_in(inner, depth - 1, seen)
    elif hasattr(found, "__dict__"):
        for inner in list(vars(found).values())[:100]:
            yield from _shapes_in(inner, depth - 1, seen)
