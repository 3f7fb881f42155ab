"""How PyTensor's graphs become functions: compiled for a run, interpreted for a few calls."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytensor
from pymc.pytensorf import compile as pymc_compile, rewrite_pregrad
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Variable

from pymc_dp.exceptions import UnsupportedOption

__all__ = ["INTERPRETED", "MODE", "compiled", "rewrite_pregrad"]

#: For what is called a few times: PyTensor's own FAST_COMPILE starts a C compiler for every operation.
INTERPRETED = Mode(linker="py", optimizer="fast_compile")
#: For what a run calls again and again. Left out are rewrites that put products and solutions for each row into one of
#: all rows: there BLAS chooses its instructions by their number, and a row's last bits depend on where it stands.
MODE: Mode = get_mode("NUMBA").excluding(
    "batched_vector_b_solve_to_matrix_b_solve",
    "local_batched_matmul_to_core_matmul",
    "local_batched_matmul_to_core_matmul_with_reshape",
)
#: PyTensor's flags are those of all threads: one would put back what another has just changed.
_one_thread = threading.Lock()


def compiled(inputs: Sequence[Variable], outputs: Variable | Sequence[Variable]) -> Callable[..., Any]:
    """Return a function of arrays of exactly the types of `inputs`, compiled by Numba.

    Raises
    ------
    UnsupportedOption
        If Numba uses Intel's vector library, which computes the last rows of an array by other instructions: a row's
        value would depend on how many rows there are.
    """
    import numba  # noqa: PLC0415  slow to import

    if numba.config.USING_SVML:
        raise UnsupportedOption(
            "Numba uses Intel's short vector mathematical library (SVML): values of one row would depend on where it "
            "stands. Set the environment variable NUMBA_DISABLE_INTEL_SVML=1 before Python starts."
        )
    # fastmath lets the compiler assume that nothing is NaN or infinite: exactly the rows that must not matter.
    with _one_thread, pytensor.config.change_flags(numba__fastmath=False):
        function: Callable[..., Any] = pymc_compile(
            inputs, outputs, mode=MODE, trust_input=True, on_unused_input="ignore"
        )
    return function
