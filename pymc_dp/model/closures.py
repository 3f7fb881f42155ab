"""Find tables that a user's function holds, where no graph shows them.

The functions of a `pm.CustomDist` and of a transform may refer to arrays of the script that defines them. A mean of
such an array, computed by NumPy, is a number that no graph explains. The shapes of arrays, which are public, decide
which a function may hold: values are not looked at.
"""

import dis
import functools
import inspect
import numbers
import weakref
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sized
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.distribution import _support_point
from pymc.distributions.shape_utils import _change_dist_size
from pymc.logprob.abstract import _logcdf, _logprob
from pytensor.graph.basic import Variable

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.arrays import arrays_of, everything_in, operations_of

#: Libraries that models are written with.
_LIBRARIES = ("pymc", "pytensor", "numpy", "scipy", "xarray", "pandas", "arviz", "pymc_dp", "builtins")
_DEPTH = 6
#: Functions that PyMC registers for each custom distribution, and the names by which they refer to the user's function.
_CALLED_BY_PYMC = (
    (_logprob, "logp"),
    (_logcdf, "logcdf"),
    (_support_point, "support_point"),
    (_change_dist_size, "dist"),
)
_WITHOUT_TABLES = (ModuleType, np.ufunc, str, range, numbers.Number)
#: Longer containers count as arrays of their length.
_ENTRIES = 100
#: A dictionary of at most this many named numbers counts as settings: single numbers, not an array.
_SETTINGS = 20
#: A container of at most this many integers counts as axes, places of parameters or a shape, as in PyMC's transforms.
_AXES = 4


def is_of_library(value: Any) -> bool:
    """Return whether a function, class or module belongs to one of `_LIBRARIES`."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return (module or "").split(".")[0] in _LIBRARIES


def referred_to(function: FunctionType) -> Iterator[Any]:
    """Yield the objects that a function refers to: closures, defaults and globals.

    For a module its used attributes are yielded. Globals that are only used by inner functions are included.
    """
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # an empty cell
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    if is_of_library(function):
        return
    for name, *attributes in _global_names(function.__code__):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        for attribute in attributes:
            if not isinstance(value, ModuleType):
                break
            value = getattr(value, attribute, None)
        if not isinstance(value, ModuleType):
            yield value


def _global_names(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the global names in a function's code, each followed by the chain of attributes that is read."""
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, instruction.argval)
            continue
        if path:
            yield path
        path = (instruction.argval,) if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    if path:
        yield path
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def refuse_tables_in_functions(model: pm.Model, passes: Callable[[tuple[int, ...]], bool]) -> None:
    """Refuse a model in which a function of the user's refers to an array that could be a part of a table.

    `passes` returns whether arrays of a shape are allowed.
    """
    for rv in model.basic_RVs:
        functions = [*_functions_of(rv), model.rvs_to_transforms.get(rv)]
        if not all(passes(shape) for found in functions for shape in _shapes_in(found, _DEPTH, {})):
            raise UnsupportedModel(
                f"A function of {rv.name!r} (logp=, logcdf=, random=, support_point=, or a transform) refers to an "
                "array with one entry for each row or unit, or of no parameter's shape, which would be taken as "
                "public. Pass it to the distribution as a parameter: pm.CustomDist(name, mu, x, logp=lambda value, mu, "
                "x: ..., observed=...). If it is public, declare it: dp.public(array)."
            )


def _functions_of(rv: Variable) -> Iterator[Any]:
    """Yield the functions of the custom distributions in the graph of `rv`, and in the inner graphs of its operations.

    The base of a truncated distribution, for instance, is in an inner graph.
    """
    for kind in dict.fromkeys(type(op) for variable in everything_in([rv]) for op in operations_of(variable)):
        if issubclass(kind, CustomDistRV):
            yield kind._random_fn  # noqa: SLF001
        if issubclass(kind, CustomDistRV | CustomSymbolicDistRV):
            # PyMC registers functions of its own, whose closures hold the user's.
            for registered, name in _CALLED_BY_PYMC:
                yield inspect.getclosurevars(registered.dispatch(kind)).nonlocals.get(name)


def _shapes_in(found: Any, depth: int, seen: dict[int, Any]) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the arrays that an object refers to, except arrays declared public."""
    if depth == 0 or id(found) in seen or found is None or isinstance(found, _WITHOUT_TABLES):
        return
    seen[id(found)] = found  # a reference keeps the id from being used again
    if isinstance(found, Variable):
        yield from (shape for _, shape in arrays_of([found]))
        yield tuple(length for length in getattr(found.type, "shape", ()) if length and found.owner is not None)
        return
    shape = getattr(found, "shape", None)
    if isinstance(shape, tuple):
        lengths = tuple(int(length) for length in shape if isinstance(length, numbers.Integral))
        yield () if set(lengths) <= {1} else lengths
        return
    for inner in _held_by(found):
        if type(inner) is int:
            yield (inner,)
        else:
            yield from _shapes_in(inner, depth - 1, seen)


def _held_by(found: Any) -> Iterator[Any]:
    """Yield the objects that an object holds; for a container of numbers, or a long one, its length."""
    if isinstance(found, functools.partial):
        yield from (found.func, found.args, found.keywords)
    elif isinstance(found, MethodType | BuiltinFunctionType | MethodWrapperType):
        yield from (getattr(found, "__func__", None), found.__self__)  # of a function in C its module
    elif isinstance(found, FunctionType):
        yield from (each for each in referred_to(found) if not isinstance(each, numbers.Number))
    elif isinstance(found, Mapping):
        settings = len(found) <= _SETTINGS and all(isinstance(key, str) for key in found)
        yield [each for each in found.values() if not (settings and isinstance(each, numbers.Number))]
        yield list(found.keys())
    elif isinstance(found, KeysView | ItemsView):
        yield dict(found) if isinstance(found, ItemsView) else list(found)
    elif isinstance(found, list | tuple | set | frozenset):
        axes = len(found) <= _AXES and all(each is None or type(each) is int for each in found)
        of_numbers = len(found) > 1 and not axes and all(isinstance(each, numbers.Number) for each in found)
        if of_numbers or len(found) > _ENTRIES:
            yield len(found)
        else:
            yield from (each for each in found if not isinstance(each, numbers.Number))
    elif isinstance(found, weakref.ref):
        yield found()
    elif not isinstance(found, type):
        slots = [name for kind in type(found).__mro__ for name in getattr(kind, "__slots__", ()) if name != "__dict__"]
        attributes = [getattr(found, name, None) for name in slots if isinstance(name, str)]
        attributes += getattr(found, "__dict__", {}).values()
        if not attributes and isinstance(found, Sized):  # a container that is written in C, or in another language
            yield len(found)
        yield from (each for each in attributes if not isinstance(each, numbers.Number))
        yield type(found)
    elif not is_of_library(found) and found.__module__ != "builtins":
        yield from (each for each in vars(found).values() if not isinstance(each, numbers.Number))
