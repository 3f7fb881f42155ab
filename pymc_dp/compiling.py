"""Modes of PyTensor for turning graphs into functions: compiled for runs, interpreted for a few calls."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytensor
from pymc.pytensorf import compile as pymc_compile, rewrite_pregrad
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Variable

from pymc_dp.exceptions import UnsupportedOption

__all__ = ["INTERPRETED", "MODE", "compiled", "rewrite_pregrad"]

#: For functions that are called a few times: PyTensor's own FAST_COMPILE starts a C compiler for every operation.
INTERPRETED = Mode(linker="py", optimizer="fast_compile")
#: For functions that are called often. Excludes rewrites that combine products and solutions of each row into one of
#: all rows: BLAS would choose instructions by the number of rows, and the last bits of a row depend on its position.
MODE: Mode = get_mode("NUMBA").excluding(
    "batched_vector_b_solve_to_matrix_b_solve",
    "local_batched_matmul_to_core_matmul",
    "local_batched_matmul_to_core_matmul_with_reshape",
)
#: PyTensor's flags are global to all threads: one thread would reset a flag that another has just set.
_one_thread = threading.Lock()


def compiled(inputs: Sequence[Variable], outputs: Variable | Sequence[Variable]) -> Callable[..., Any]:
    """Return a function of arrays of exactly the types of `inputs`, compiled by Numba.

    Raises
    ------
    UnsupportedOption
        If Numba uses Intel's vector library, which computes the last rows of an array with other instructions: the
        value of a row would depend on the number of rows.
    """
    import numba  # noqa: PLC0415  slow to import

    if numba.config.USING_SVML:
        raise UnsupportedOption(
            "Numba uses Intel's short vector mathematical library (SVML): values of one row would depend on where it "
            "stands. Set the environment variable NUMBA_DISABLE_INTEL_SVML=1 before Python starts."
        )
    # fastmath would let the compiler assume finite values, but rows may be NaN or infinite.
    with _one_thread, pytensor.config.change_flags(numba__fastmath=False):
        function: Callable[..., Any] = pymc_compile(
            inputs, outputs, mode=MODE, trust_input=True, on_unused_input="ignore"
        )
    return function
