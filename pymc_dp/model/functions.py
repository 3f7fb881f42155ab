"""What functions refer to: names of enclosing functions and of modules, those of functions inside included."""

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_LIBRARIES = ("pymc", "pytensor", "numpy", "scipy", "xarray", "pandas", "arviz", "pymc_dp", "builtins")


def is_of_library(value: Any) -> bool:
    """Return whether a function, a class or a module belongs to a library that models are written with."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return (module or "").split(".")[0] in _LIBRARIES


def referred_to(function: FunctionType) -> Iterator[Any]:
    """Yield the objects that a function uses from around it: closures, defaults and globals.

    Of a module what is used of it is yielded. Globals that only a function defined inside uses are found, too.
    """
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    if not is_of_library(function):
        for path in _global_names(function.__code__):
            yield from _resolved(function.__globals__, path)


def _global_names(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the global names in a function's code, each followed by the attributes that are asked of it."""
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield path
            path = (instruction.argval,)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, instruction.argval)
        else:
            yield path
            path = ()
    yield path
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _resolved(names: dict[str, Any], path: tuple[str, ...]) -> Iterator[Any]:
    if not path or path[0] not in names:
        return
    value = names[path[0]]
    for attribute in path[1:]:
        if not isinstance(value, ModuleType):
            break
        value = getattr(value, attribute, None)
    if not isinstance(value, ModuleType):
        yield value
