"""The row engine: the graph of one row, vectorised over the rows of a chunk and compiled by PyTensor.

The engine neither clips nor sums, which `pymc_dp.rows.clip` does, and it has rows, not units. Two invariants hold: a
row's values, to the last bit, depend on the parameters and on that row alone, not on its position or on other rows; and
no value of a row raises an error. PyTensor's loops call the mathematical functions of the C library for one number at a
time, products of a row and a vector are sums in the order of the columns, and no operations are reordered or
contracted.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_dp.compiling import compiled
from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.batched import batched_graphs
from pymc_dp.rows.contributions import Contributions, vectors_of
from pymc_dp.rows.graphs import RowGraphs
from pymc_dp.rows.table import Chunk

Point = Sequence[np.ndarray]


class RowEngine:
    """Computes log-likelihoods and derivatives of rows by functions that PyTensor compiles on their first call.

    The functions take the values of all parameters (`point`). Compiled functions reuse the memory of their results: one
    thread may call at a time. A pickle holds the graphs and not the compiled functions, so that it holds no data.
    """

    def __init__(self, graphs: RowGraphs) -> None:
        self.graphs = graphs
        self._compiled: dict[str, Callable[..., list[np.ndarray]]] = {}

    def log_likelihood(self, point: Point, chunk: Chunk) -> FloatArray:
        """Return the log-likelihood of every row, shape (rows,)."""
        return self._call("log_likelihood", point, chunk)[0]

    def gradient(self, point: Point, chunk: Chunk) -> Contributions:
        """Return first derivatives of every row's log-likelihood."""
        log_likelihoods, *found = self._call("gradient", point, chunk)
        return self._contributions(found, chunk, log_likelihoods)

    def response(self, point: Point, chunk: Chunk) -> list[FloatArray]:
        """Return log P(Y ≤ y) and log P(Y < y) at every row's response y, and the mean if it is known.

        Each of shape (rows,). Empty if the distribution was not read.
        """
        return self._call("response", point, chunk)

    def log_likelihoods_of(self, point: Point, chunk: Chunk, place: int, responses: np.ndarray) -> FloatArray:
        """Return log-likelihoods of every row with each of `responses`, shape (responses, rows).

        The responses replace the input `place`.
        """
        return self._call("log_likelihoods_of", point, chunk, place, responses)[0]

    def gradients_of(self, point: Point, chunk: Chunk, place: int, responses: np.ndarray) -> Contributions:
        """Return first derivatives of every row's log-likelihood with each of `responses`, without log-likelihoods."""
        return self._contributions(self._call("gradients_of", point, chunk, place, responses), chunk, np.empty(0))

    def _contributions(self, found: Sequence[np.ndarray], chunk: Chunk, log_likelihoods: FloatArray) -> Contributions:
        graphs = self.graphs
        slopes, indices = found[: len(graphs.slopes)], found[len(graphs.slopes) :]
        batch = slopes[0].shape[: slopes[0].ndim - graphs.slopes[0].type.ndim] if slopes else (chunk.n_rows,)
        columns, first = np.empty((sum(part.k for part in graphs.parts), *batch)), 0
        for slope in slopes:
            entries = slope.reshape(*batch, math.prod(slope.shape[len(batch) :]))
            for entry in range(entries.shape[-1]):
                columns[first] = entries[..., entry]
                first += 1
        named = np.array(indices, dtype=np.int64).reshape(-1, chunk.n_rows)
        return Contributions(columns, named, *vectors_of(chunk, graphs.tables), log_likelihoods)

    def _call(
        self, name: str, point: Point, chunk: Chunk, place: int | None = None, responses: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Call a compiled function; `responses` replace the input `place` of the rows, if they are given."""
        if name not in self._compiled:
            self._compiled[name] = self._compile(name, place)
        given = [] if responses is None else [responses[:, None], np.array(chunk.n_rows)]
        rows = [values for where, values in enumerate(chunk.rows[: len(self.graphs.rows)]) if where != place]
        with np.errstate(all="ignore"):  # interpreted functions warn by NumPy: a warning would reveal values of a row
            return self._compiled[name](*point, *given, *rows)

    def _compile(self, name: str, place: int | None) -> Callable[..., list[np.ndarray]]:
        graphs = self.graphs
        # Outputs to return, and outputs to collect in one array of slopes.
        outputs, slopes = {
            "log_likelihood": ([graphs.log_likelihood], []),
            "gradient": ([graphs.log_likelihood], graphs.slopes),
            "response": (graphs.response, []),
            "log_likelihoods_of": ([graphs.log_likelihood], []),
            "gradients_of": ([], graphs.slopes),
        }[name]
        indices = [index[0].astype("int64") for index in graphs.indices] if slopes else []
        inputs = [*graphs.value_variables]
        chunk = [pt.tensor(dtype=row.type.dtype, shape=(None, *row.type.shape)) for row in graphs.rows]
        batch: tuple[Variable, ...] = (chunk[0].shape[0],)
        if place is not None:
            # An axis of rows of length 1: terms that depend on the row or on the response alone are computed once.
            chunk[place] = pt.tensor(dtype=graphs.rows[place].type.dtype, shape=(None, 1))
            n_rows = pt.lscalar()
            batch = (chunk[place].shape[0], n_rows)
            inputs += [chunk[place], n_rows]
        over_rows: dict[Variable, Variable] = dict(zip(graphs.rows, chunk, strict=True))
        if linked := graphs.replacements:
            over_rows |= dict(zip(linked.values(), batched_graphs([*linked], over_rows), strict=True))
        batched = [*_over([*outputs, *slopes], over_rows, batch), *_over(indices, over_rows, batch[-1:])]
        return compiled([*inputs, *(rows for where, rows in enumerate(chunk) if where != place)], batched)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": {}}


def _over(
    outputs: Sequence[Variable], over_rows: dict[Variable, Variable], batch: Sequence[Variable]
) -> list[Variable]:
    """Return the outputs for all rows. Outputs that do not depend on the row or response get the missing batch axes."""
    outputs, found = [output.astype("float64") if output.type.dtype != "int64" else output for output in outputs], []
    for values, output in zip(batched_graphs(outputs, over_rows) if outputs else [], outputs, strict=True):
        n_axes = values.type.ndim - output.type.ndim
        whole = n_axes == len(batch) and 1 not in values.type.shape[:n_axes]
        found.append(values if whole else pt.alloc(values, *batch, *values.shape[n_axes:]))
    return found
