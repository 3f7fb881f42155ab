"""The reference engine: the graph of one row, put over all rows of a chunk and compiled by PyTensor."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from pymc_dp.compiling import compiled
from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.engine import Clipping, Contributions, vectors_of
from pymc_dp.rows.graphs import Part, RowGraphs
from pymc_dp.rows.table import Chunk

Point = list[np.ndarray]


class ReferenceEngine:
    """Computes log-likelihoods and derivatives of rows by functions that PyTensor compiles.

    `reason` says why no faster engine is used. Pickling keeps the graphs and compiles again, so that no data that
    passed through travels along.
    """

    name = "reference"
    #: What PyTensor compiled keeps its results in one place, and cannot run twice at a time.
    runs_in_threads = False

    def __init__(self, graphs: RowGraphs, reason: str = "") -> None:
        self._graphs = graphs
        self.reason = reason
        self._compiled: dict[str, Callable[..., list[np.ndarray]]] = {}

    @property
    def parts(self) -> Sequence[Part]:
        """How derivatives with respect to each value variable are stored."""
        return self._graphs.parts

    def at(self, values: Sequence[np.ndarray], direction: Sequence[np.ndarray] | None = None) -> Point:
        """Return the inputs of the functions that are no rows."""
        return [*values, *(direction or ())]

    def log_likelihood(self, point: Point, chunk: Chunk) -> FloatArray:
        """Return the log-likelihood of every row, shape (rows,)."""
        return self._call("log_likelihood", point, chunk)[0]

    def gradient(self, point: Point, chunk: Chunk) -> Contributions:
        """Return first derivatives of every row's log-likelihood."""
        log_likelihoods, *found = self._call("gradient", point, chunk)
        return self._contributions(found, chunk, log_likelihoods)

    def curvature_times(self, point: Point, chunk: Chunk) -> Contributions:
        """Return negative second derivatives of every row's log-likelihood, times the direction of `point`."""
        return self._contributions(self._call("curvature_times", point, chunk), chunk, np.empty(0))

    def along(self, point: Point, chunk: Chunk) -> tuple[FloatArray, FloatArray]:
        """Return slopes and negative second derivatives along the direction of `point`, each of shape (rows,)."""
        slope, curvature = self._call("along", point, chunk)
        return slope, curvature

    def response(self, values: Sequence[np.ndarray], chunk: Chunk) -> list[FloatArray]:
        """Return the distribution of every row's response, each of shape (rows,): see `RowGraphs.response`."""
        return self._call("response", list(values), chunk)

    def add_clipped(
        self, point: Point, chunk: Chunk, clipping: Clipping, log_likelihoods: FloatArray, sums: NDArray[np.int64]
    ) -> int:
        """Add clipped first derivatives of rows to `sums`; return how many were clipped."""
        found = self.gradient(point, chunk)
        if log_likelihoods.size:
            log_likelihoods[:] = found.log_likelihoods
        return found.add_clipped(clipping, sums)

    def _contributions(self, found: Sequence[np.ndarray], chunk: Chunk, log_likelihoods: FloatArray) -> Contributions:
        n_slopes = len(self._graphs.slopes)
        slopes = [np.asarray(slope).reshape(chunk.n_rows, -1).T for slope in found[:n_slopes]]
        indices = np.array(found[n_slopes:], dtype=np.int64).reshape(-1, chunk.n_rows)
        vectors, squares = vectors_of(chunk, self._graphs.tables)
        columns = np.ascontiguousarray(np.concatenate(slopes)) if slopes else np.empty((0, chunk.n_rows))
        return Contributions(columns, indices, vectors, squares, log_likelihoods)

    def _call(self, name: str, point: Point, chunk: Chunk) -> list[np.ndarray]:
        if name not in self._compiled:
            self._compiled[name] = self._compile(name)
        with np.errstate(all="ignore"):  # NumPy warns where functions are interpreted: a warning would tell of a row
            return self._compiled[name](*point, *chunk.rows[: len(self._graphs.rows)])

    def _compile(self, name: str) -> Callable[..., list[np.ndarray]]:
        graphs = self._graphs
        of_floats, with_indices, with_direction = {
            "log_likelihood": ([graphs.log_likelihood], False, False),
            "gradient": ([graphs.log_likelihood, *graphs.slopes], True, False),
            "curvature_times": (graphs.curvatures, True, True),
            "along": (graphs.along, False, True),
            "response": (graphs.response, False, False),
        }[name]
        outputs = [output.astype("float64") for output in of_floats]
        outputs += [index[0].astype("int64") for index in graphs.indices] if with_indices else []
        inputs = [*graphs.value_variables, *(graphs.directions if with_direction else [])]
        chunk = [pt.tensor(dtype=row.type.dtype, shape=(None, *row.type.shape)) for row in graphs.rows]
        over_rows: dict[Variable, Variable] = dict(zip(graphs.rows, chunk, strict=True))
        for cuts, values in ((graphs.cuts, graphs.value_variables), (graphs.direction_cuts, graphs.directions)):
            linked = graphs.linked(values)
            batched = vectorize_graph(linked, over_rows) if linked else []
            over_rows |= dict(zip([cut for cut in cuts if cut is not None], batched, strict=True))
        batched = vectorize_graph(outputs, over_rows)
        # What does not depend on the row at all comes back without a row axis.
        batched = [
            values if values.type.ndim > output.type.ndim else pt.alloc(values, chunk[0].shape[0], *values.shape)
            for values, output in zip(batched, outputs, strict=True)
        ]
        return compiled([*inputs, *chunk], batched)

    def __getstate__(self) -> dict[str, Any]:
        return {"_graphs": self._graphs, "reason": self.reason}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _compiled={})
