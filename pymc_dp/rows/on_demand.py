"""A lazy import of `clip`, the module of compiled loops.

The module imports Numba, which takes long, and which a process that only plans or unpickles does not need.
"""

import importlib
from typing import TYPE_CHECKING, Any


class _OnDemand:
    """A proxy for the module, with the same attributes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("pymc_dp.rows.clip"), name)


if TYPE_CHECKING:
    from pymc_dp.rows import clip
else:
    clip = _OnDemand()

__all__ = ["clip"]
