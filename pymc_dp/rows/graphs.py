"""Vectorise the one-row graph over a chunk of rows and compile it: log-likelihoods and per-row gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from pymc_dp.rows.split import RowSplit

_COMPILE: dict[str, Any] = {"trust_input": True, "on_unused_input": "ignore"}


class RowFunctions:
    """Compiled functions of the parameters and a chunk of rows.

    Parameters
    ----------
    row_split : RowSplit
        The one-row graph.
    value_vars : sequence of Variable
        The model's unconstrained parameters, in the order in which their values are passed.

    Notes
    -----
    Pickling keeps the graphs and compiles again, so that no data that passed through travels along.
    """

    def __init__(self, row_split: RowSplit, value_vars: Sequence[Variable]) -> None:
        row_inputs = [leaf.row for leaf in row_split.leaves]
        chunk_inputs = [pt.tensor(dtype=row.type.dtype, shape=(None, *row.type.shape)) for row in row_inputs]
        (row_logp,) = rewrite_pregrad([row_split.row_log_likelihood])
        gradients = pt.grad(row_logp, list(value_vars), disconnected_inputs="ignore")
        logp, *blocks = vectorize_graph(
            [row_logp.astype("float64"), *[block.astype("float64") for block in gradients]],
            dict(zip(row_inputs, chunk_inputs, strict=True)),
        )
        n = chunk_inputs[0].shape[0]
        # What does not depend on the row at all comes back without a row axis.
        self._logp = logp if logp.type.ndim == 1 else pt.alloc(logp, n)
        self._blocks = [
            (block if block.type.ndim == var.type.ndim + 1 else pt.alloc(block, n, *var.shape)).reshape((n, -1))
            for block, var in zip(blocks, value_vars, strict=True)
        ]
        self._inputs = [*value_vars, *chunk_inputs]
        self.chunk_dtypes = [chunk.type.dtype for chunk in chunk_inputs]
        self._compile()

    def _compile(self) -> None:
        # fastmath lets the compiler assume that nothing is NaN or infinite: exactly the rows that must not matter.
        with pytensor.config.change_flags(numba__fastmath=False):
            self._log_likelihood = pymc_compile(self._inputs, self._logp, mode="NUMBA", **_COMPILE)
            self._with_gradient = pymc_compile(self._inputs, [self._logp, *self._blocks], mode="NUMBA", **_COMPILE)

    def log_likelihood(self, parameters: Sequence[np.ndarray], chunk: Sequence[np.ndarray]) -> np.ndarray:
        """Return the log-likelihood of every row, shape (rows,)."""
        log_likelihood: np.ndarray = self._log_likelihood(*parameters, *chunk)
        return log_likelihood

    def with_gradient(self, parameters: Sequence[np.ndarray], chunk: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the log-likelihoods, shape (rows,), and a gradient block (rows, size) for every parameter."""
        outputs: list[np.ndarray] = self._with_gradient(*parameters, *chunk)
        return outputs

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_log_likelihood", "_with_gradient")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()
