"""How PyTensor's graphs become functions: compiled for a run, interpreted for a few calls."""

from collections.abc import Callable, Sequence
from typing import Any

import pytensor
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable

__all__ = ["INTERPRETED", "MODE", "compiled", "rewrite_pregrad"]

#: For what is called a few times: PyTensor's own FAST_COMPILE starts a C compiler for every operation.
INTERPRETED = Mode(linker="py", optimizer="fast_compile")
#: For what a run calls again and again.
MODE: Mode | str = "NUMBA"


def compiled(inputs: Sequence[Variable], outputs: Variable | Sequence[Variable]) -> Callable[..., Any]:
    """Return a function of arrays of exactly the types of `inputs`, compiled by Numba."""
    # fastmath lets the compiler assume that nothing is NaN or infinite: exactly the rows that must not matter.
    with pytensor.config.change_flags(numba__fastmath=False):
        function: Callable[..., Any] = pymc_compile(
            inputs, outputs, mode=MODE, trust_input=True, on_unused_input="ignore"
        )
    return function
