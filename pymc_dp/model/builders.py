"""What PyMC computes from rows while a model is built is marked, for refusals.

What becomes of rows in every other public name of PyMC stands in ``tools/looked_at.py``, with which a test compares the
packages that are installed.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_dp.model.arrays import is_public

#: A mark of an operation, which stays with it when graphs are copied.
_BUILDER = "pymc_dp_builder"
#: Methods that compute a number from rows while the model is built, and put it into the graph.
EVALUATING: Mapping[str, tuple[str, ...]] = {
    "HSGP": ("prior_linearized", "_build_conditional"),
    "HSGPPeriodic": ("prior_linearized", "_build_conditional"),
}


def marking(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of `EVALUATING` that marks what it returns, but for locations that were declared public."""

    @functools.wraps(original)
    def marked(self: Any, locations: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, locations, *args, **kwargs)
        inputs = ancestors([locations]) if isinstance(locations, Variable) else []
        leaves = [each for each in inputs if each.owner is None]
        self._evaluated = getattr(self, "_evaluated", False) or not (leaves and all(map(is_public, leaves)))
        if self._evaluated:
            _mark(result, name)
        return result

    return marked


def _mark(result: Any, name: str) -> None:
    if isinstance(result, tuple | list):
        for each in result:
            _mark(each, name)
    elif isinstance(result, Variable) and result.owner is not None:
        setattr(result.owner.tag, _BUILDER, name)


def evaluated_by(variable: Variable) -> str | None:
    """Return which builder computed a number from rows for this variable, if one did."""
    return None if variable.owner is None else getattr(variable.owner.tag, _BUILDER, None)
