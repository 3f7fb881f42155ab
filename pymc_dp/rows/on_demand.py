"""`clip`, the module of compiled loops, imported when it is first asked for something.

With it comes Numba, which takes long to import, and which a process that only plans or unpickles does not need.
"""

import importlib
from typing import TYPE_CHECKING, Any


class _OnDemand:
    """Stands for a module, and has its attributes."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)

    def __repr__(self) -> str:
        return f"<{self._module}, on demand>"


if TYPE_CHECKING:
    from pymc_dp.rows import clip
else:
    clip = _OnDemand("pymc_dp.rows.clip")

__all__ = ["clip"]
