"""Put wrappers in the place of PyMC's functions, and give the functions back."""

import sys
from collections.abc import Callable
from typing import Any


class Hooks:
    """Wrappers in the place of functions of PyMC, until they are removed."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace_function(self, original: Callable[..., Any], wrapper: Callable[..., Any]) -> None:
        """Replace a function under every name that PyMC's loaded modules have for it.

        PyMC's own calls go to the wrapper as well. Names that others imported before keep the original.
        """
        for name, module in list(sys.modules.items()):
            if name != "pymc" and not name.startswith("pymc."):
                continue
            for attribute, value in list(vars(module).items()):
                if value is original:
                    self._replace(module, attribute, original, wrapper)

    def replace_method(self, owner: type, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace a method in the class that defines it, which may be a base class of `owner`."""
        definer = next(each for each in owner.__mro__ if name in vars(each))
        self._replace(definer, name, vars(definer)[name], wrapper)

    def remove(self) -> None:
        """Give everything back as it was."""
        while self._replaced:
            owner, name, original = self._replaced.pop()
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, original: Any, wrapper: Any) -> None:
        self._replaced.append((owner, name, original))
        setattr(owner, name, wrapper)
