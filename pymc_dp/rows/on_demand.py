"""`clip`, the module of compiled loops, imported when it is first asked for something.

With it comes Numba, which takes long to import, and which a process that only plans or unpickles does not need.
"""

import importlib
from typing import TYPE_CHECKING, Any


class _OnDemand:
    """Stands for the module, and has its attributes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("pymc_dp.rows.clip"), name)


if TYPE_CHECKING:
    from pymc_dp.rows import clip
else:
    clip = _OnDemand()

__all__ = ["clip"]
