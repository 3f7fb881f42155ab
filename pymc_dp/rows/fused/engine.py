"""The fused engine: loops made for the model, in which a block of rows goes from parameters and data to sums."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.utils import rewrite_graph

from pymc_dp.compiling import compiled
from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.engine import Clipping, Contributions, vectors_of
from pymc_dp.rows.fused.program import Lowering, NotLowered, Numbers, Product, Program, kind_of, structural_value
from pymc_dp.rows.graphs import GATHER, Part, RowGraphs
from pymc_dp.rows.reference import ReferenceEngine
from pymc_dp.rows.table import Chunk

if TYPE_CHECKING:
    from pymc_dp.rows.fused.loops import Loops


class FusedEngine:
    """Computes log-likelihoods and derivatives of rows by loops made for the model.

    Parameters
    ----------
    graphs : RowGraphs
        The graph of one row.

    Raises
    ------
    NotLowered
        If some operation of the log-likelihood or of first derivatives has no translation. If one of second
        derivatives has none, those are left to the reference engine, and `reason` says so.

    Notes
    -----
    Pickling keeps the graphs and compiles again, so that no data that passed through travels along.
    """

    name = "fused"

    def __init__(self, graphs: RowGraphs) -> None:
        self._graphs = graphs
        self.reason = ""
        self._first = _Lowered(graphs, [graphs.log_likelihood, *graphs.slopes], graphs.value_variables)
        self._second: _Lowered | None = None
        if graphs.along:
            inputs = [*graphs.value_variables, *graphs.directions]
            try:
                self._second = _Lowered(graphs, [*graphs.along, *graphs.curvatures], inputs)
            except NotLowered as error:
                self.reason = f"Second derivatives are those of the reference engine: {error}."
        self._reference = ReferenceEngine(graphs)

    @property
    def runs_in_threads(self) -> bool:
        """Whether all is done by loops: the reference engine's functions keep what they compute in one place."""
        return (self._second is not None or not self._graphs.along) and not self._graphs.response

    @property
    def parts(self) -> Sequence[Part]:
        """How derivatives with respect to each value variable are stored."""
        return self._graphs.parts

    def at(self, values: Sequence[np.ndarray], direction: Sequence[np.ndarray] | None = None) -> Any:
        """Return the vector of numbers that the loops start from."""
        if direction is None:
            return self._first.at(values)
        return self._reference.at(values, direction) if self._second is None else self._second.at([*values, *direction])

    def log_likelihood(self, point: Any, chunk: Chunk) -> FloatArray:
        """Return the log-likelihood of every row, shape (rows,)."""
        found: FloatArray = self._first.outputs(point, chunk, slice(0, 1))[0]
        return found

    def gradient(self, point: Any, chunk: Chunk) -> Contributions:
        """Return first derivatives of every row's log-likelihood."""
        found, indices = self._first.outputs_and_indices(point, chunk, slice(0, None))
        return Contributions(found[1:], indices, *vectors_of(chunk, self._graphs.tables), found[0])

    def curvature_times(self, point: Any, chunk: Chunk) -> Contributions:
        """Return negative second derivatives of every row's log-likelihood, times the direction of `point`."""
        if self._second is None:
            return self._reference.curvature_times(point, chunk)
        found, indices = self._second.outputs_and_indices(point, chunk, slice(2, None))
        return Contributions(found, indices, *vectors_of(chunk, self._graphs.tables), np.empty(0))

    def along(self, point: Any, chunk: Chunk) -> tuple[FloatArray, FloatArray]:
        """Return slopes and negative second derivatives along the direction of `point`, each of shape (rows,)."""
        if self._second is None:
            return self._reference.along(point, chunk)
        slope, curvature = self._second.outputs(point, chunk, slice(0, 2))
        return slope, curvature

    def response(self, values: Sequence[np.ndarray], chunk: Chunk) -> Sequence[FloatArray]:
        """Return the distribution of every row's response, as the reference engine computes it."""
        return self._reference.response(values, chunk)

    def add_clipped(
        self, point: Any, chunk: Chunk, clipping: Clipping, log_likelihoods: FloatArray, sums: NDArray[np.int64]
    ) -> int:
        """Add clipped first derivatives of rows to `sums`, block by block; return how many were clipped."""
        return self._first.loops(slice(0, None)).add_clipped(
            point,
            _flat(chunk),
            chunk.n_rows,
            log_likelihoods,
            *vectors_of(chunk, self._graphs.tables),
            clipping.parts,
            clipping.bound,
            clipping.steps_per_one,
            sums,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"_graphs": self._graphs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_graphs"])  # type: ignore[misc]


class _Lowered:
    """Some outputs of the graph of one row as a program, and the loops that compute them.

    Parameters
    ----------
    graphs : RowGraphs
        The graph of one row.
    outputs : sequence of Variable
        The outputs; each of their entries is one of the program.
    inputs : sequence of Variable
        The parameters that they depend on: value variables, and directions if need be.
    """

    def __init__(self, graphs: RowGraphs, outputs: Sequence[Variable], inputs: Sequence[Variable]) -> None:
        self._inputs = list(inputs)
        self._program = Program()
        self._of_parameters: list[Variable] = []
        self._places: dict[Variable, Numbers] = {}
        self._n_numbers = 0
        known = {
            row: self._entries(table, shape, kind_of(row.type.dtype))
            for table, (row, shape) in enumerate(zip(graphs.rows, graphs.row_shapes, strict=True))
        }
        of_rows = Lowering(known, self._program, self._parameters)
        self._products: list[Product] = []
        self._indices = [self._program.integer(int(index.item())) for index in of_rows.of(graphs.indices)]
        for cuts, values in ((graphs.cuts, graphs.value_variables), (graphs.direction_cuts, graphs.directions)):
            if all(value in self._inputs for value in values):
                known |= self._linked(graphs, cuts, values, of_rows)
        rewritten = rewrite_graph(list(outputs), include=("canonicalize", "stabilize", "specialize"), clone=True)
        numbers = Lowering(known, self._program, self._parameters).of(rewritten)
        self._outputs = [self._program.float(int(number)) for entries in numbers for number in entries.ravel()]
        self._widths = [math.prod(shape) for shape in graphs.row_shapes]
        self._loops: dict[tuple[int | None, int | None], Loops] = {}
        self._evaluate: Callable[..., FloatArray] | None = None
        #: Compiled functions of the parameters keep what they compute in one place; several threads may ask.
        self._evaluating = threading.Lock()

    def _linked(
        self, graphs: RowGraphs, cuts: Sequence[Variable | None], values: Sequence[Variable], of_rows: Lowering
    ) -> dict[Variable, Numbers]:
        """Return the entries of what stands for the outputs of the links."""
        known: dict[Variable, Numbers] = {}
        outputs = iter(graphs.linked(values))
        for link, cut, part, value in zip(graphs.links, cuts, graphs.parts, values, strict=True):
            if link is None:
                continue
            output = next(outputs)
            if part.kind == GATHER:
                known[cut] = of_rows.of([output])[0]
                continue
            parameter = self._parameters(value)
            size, k = value.type.shape[0], math.prod(value.type.shape[1:])
            product = Product(graphs.tables[part.factor], size, k, int(self._program[int(parameter.flat[0])].detail))
            etas = [self._program.add("eta", detail=(len(self._products), m)) for m in range(k)]
            known[cut] = np.array(etas, dtype=np.int64).reshape(
                link.row.type.shape[:-1] + link.parameter.type.shape[1:]
            )
            self._products.append(product)
        return known

    def _entries(self, table: int, shape: tuple[int, ...], kind: str) -> Numbers:
        numbers = [self._program.add("data", kind=kind, detail=(table, offset)) for offset in range(math.prod(shape))]
        return np.array(numbers, dtype=np.int64).reshape(shape)

    def _parameters(self, variable: Variable) -> Numbers:
        """Return the numbers of the entries of a variable that depends on the parameters alone."""
        if variable not in self._places:
            shape = _shape_of(variable)
            kind = kind_of(variable.type.dtype)
            size = math.prod(shape)
            places = range(self._n_numbers, self._n_numbers + size)
            numbers = [self._program.parameter(place, kind) for place in places]
            self._places[variable] = np.array(numbers, dtype=np.int64).reshape(shape)
            self._of_parameters.append(variable)
            self._n_numbers += size
        return self._places[variable]

    def at(self, values: Sequence[np.ndarray]) -> FloatArray:
        """Return the numbers that parameters give, which the loops start from."""
        with self._evaluating:
            return self._evaluated(values)

    def _evaluated(self, values: Sequence[np.ndarray]) -> FloatArray:
        if self._evaluate is None:
            outputs = [pt.as_tensor_variable(variable).astype("float64").ravel() for variable in self._of_parameters]
            joined = pt.concatenate(outputs) if outputs else pt.zeros(1)
            self._evaluate = compiled(self._inputs, joined)
        point = np.ascontiguousarray(self._evaluate(*values), dtype=np.float64)
        if point.size < self._n_numbers:
            raise RuntimeError("The parameters gave arrays of another shape than before.")
        return point

    def loops(self, which: slice) -> "Loops":
        """Return the loops that compute some of the outputs; the indices too, unless the first ones alone."""
        key = which.start, which.stop
        if key not in self._loops:
            from pymc_dp.rows.fused.loops import Loops  # noqa: PLC0415  brings in Numba

            indices = self._indices if which.stop is None else []
            self._loops[key] = Loops(self._program, self._outputs[which], indices, self._products, self._widths)
        return self._loops[key]

    def outputs(self, point: FloatArray, chunk: Chunk, which: slice) -> FloatArray:
        """Return some of the outputs of every row, shape (outputs, rows)."""
        return self.outputs_and_indices(point, chunk, which)[0]

    def outputs_and_indices(
        self, point: FloatArray, chunk: Chunk, which: slice
    ) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return some of the outputs, and the indices of parts that are gathered, shape (indices, rows)."""
        found = np.empty((len(self._outputs[which]), chunk.n_rows))
        indices = np.empty((len(self._indices), chunk.n_rows), dtype=np.int64)
        self.loops(which).write(point, _flat(chunk), found, indices)
        return found, indices


def _flat(chunk: Chunk) -> list[np.ndarray]:
    return [rows.reshape(-1) for rows in chunk.rows]


def _shape_of(variable: Variable) -> tuple[int, ...]:
    """Return the shape of a variable, which the parameters' values do not decide."""
    if not hasattr(variable.type, "shape"):
        return ()
    if None in variable.type.shape:
        return tuple(int(length) for length in structural_value(variable.shape))
    return tuple(variable.type.shape)
