"""First and second derivatives of every unit's log-likelihood, for expansions around a centre."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, vectorize_graph

from pymc_dp.parameters import FloatArray
from pymc_dp.rows.allowed import refuse_unknown_operations
from pymc_dp.rows.split import RowSplit

_COMPILE: dict[str, Any] = {"mode": "NUMBA", "trust_input": True, "on_unused_input": "ignore"}


class RowDerivatives:
    """Compiled derivatives of the log-likelihood of every row of a chunk.

    Parameters
    ----------
    row_split : RowSplit
        The one-row graph.
    value_vars : sequence of Variable
        The model's unconstrained parameters, in the order in which their values are passed.

    Notes
    -----
    No array of (rows, parameters, parameters) is made: curvatures come multiplied by one direction at a time.
    """

    def __init__(self, row_split: RowSplit, value_vars: Sequence[Variable]) -> None:
        row_inputs = [leaf.row for leaf in row_split.leaves]
        chunk_inputs = [pt.tensor(dtype=row.type.dtype, shape=(None, *row.type.shape)) for row in row_inputs]
        # Rewriting changes a graph in place, and this one is shared with the other functions of the rows.
        (row_logp,) = rewrite_pregrad(clone_replace([row_split.row_log_likelihood]))
        directions = [var.type() for var in value_vars]

        gradients = pt.grad(row_logp, value_vars, disconnected_inputs="ignore")
        gradients_along = pt.add(*[(g * v).sum() for g, v in zip(gradients, directions, strict=True)], 0.0)
        curvatures = pt.grad(-gradients_along, value_vars, disconnected_inputs="ignore")

        length = pt.dscalar("length")
        moved = {var: var + length * way for var, way in zip(value_vars, directions, strict=True)}
        (row_logp_along,) = clone_replace([row_logp], moved)
        slope = pt.grad(row_logp_along, length, disconnected_inputs="ignore")
        curvature_along = pt.grad(-slope, length, disconnected_inputs="ignore")
        slope, curvature_along = clone_replace([slope, curvature_along], {length: pt.constant(0.0, dtype="float64")})

        refuse_unknown_operations([*gradients, *curvatures, slope, curvature_along], row_inputs)
        n = chunk_inputs[0].shape[0]
        over_rows = dict(zip(row_inputs, chunk_inputs, strict=True))

        def by_row(blocks: Sequence[Variable]) -> Variable:
            batched = vectorize_graph([block.astype("float64") for block in blocks], over_rows)
            return pt.concatenate(
                [
                    (values if values.type.ndim == var.type.ndim + 1 else pt.alloc(values, n, *var.shape)).reshape(
                        (n, -1)
                    )
                    for values, var in zip(batched, value_vars, strict=True)
                ],
                axis=1,
            )

        slopes = [
            values if values.type.ndim == 1 else pt.alloc(values, n)
            for values in vectorize_graph([slope.astype("float64"), curvature_along.astype("float64")], over_rows)
        ]
        self._inputs = [*value_vars, *chunk_inputs]
        self._inputs_along = [*value_vars, *directions, *chunk_inputs]
        self._gradient, self._curvature, self._along = by_row(gradients), by_row(curvatures), slopes
        self._compile()

    def _compile(self) -> None:
        with pytensor.config.change_flags(numba__fastmath=False):
            self.gradient: Callable[..., FloatArray] = pymc_compile(self._inputs, self._gradient, **_COMPILE)
            self.curvature_times: Callable[..., FloatArray] = pymc_compile(
                self._inputs_along, self._curvature, **_COMPILE
            )
            self.along: Callable[..., list[FloatArray]] = pymc_compile(self._inputs_along, self._along, **_COMPILE)

    def __getstate__(self) -> dict[str, Any]:
        compiled = ("gradient", "curvature_times", "along")
        return {name: value for name, value in self.__dict__.items() if name not in compiled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()


def packed_pairs(size: int) -> Iterator[tuple[int, int, float]]:
    """Yield row, column and factor of each entry of a packed symmetric matrix: its norm is the Frobenius norm."""
    for i in range(size):
        for j in range(i, size):
            yield i, j, 1.0 if i == j else 2.0**0.5
