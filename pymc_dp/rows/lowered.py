"""The functions of `pymc_dp.rows.graphs`, by loops made for the model instead of PyTensor's vectorised graph."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph

from pymc_dp.rows.allowed import refuse_unknown_operations
from pymc_dp.rows.fused import FusedLoops, Part, Product
from pymc_dp.rows.one_row import Link
from pymc_dp.rows.program import Lowering, Numbers, Program, kind_of, structural_value

FloatArray = NDArray[np.float64]


class LoweredRows:
    """Log-likelihoods and gradients of rows, by loops made for the model.

    Parameters
    ----------
    row_inputs : sequence of Variable
        What stands for one row of each table.
    shapes : sequence of tuple of int
        The shapes of their rows, with no row axis.
    row_log_likelihood : Variable
        Log-likelihood of one row.
    links : mapping of Variable to Link
        The value variables whose gradients are kept in factors.
    value_vars : sequence of Variable
        The parameters.
    parameter_shapes : sequence of tuple of int
        Their shapes.

    Attributes
    ----------
    parts : list of Part
        How each value variable's gradient comes.
    loops : FusedLoops
        The compiled loops.

    Raises
    ------
    NotLowered
        If some operation has no translation.
    """

    def __init__(
        self,
        row_inputs: Sequence[Variable],
        shapes: Sequence[tuple[int, ...]],
        row_log_likelihood: Variable,
        links: Mapping[Variable, Link],
        value_vars: Sequence[Variable],
        parameter_shapes: Sequence[tuple[int, ...]],
    ) -> None:
        row_log_likelihood, links, value_vars = _with_shapes(row_log_likelihood, links, value_vars, parameter_shapes)
        self._program = Program()
        self._value_vars = value_vars
        self._of_parameters: list[Variable] = []
        self._places: dict[Variable, Numbers] = {}
        self._n_numbers = 0
        rows = {
            row: self._entries(table, shape, kind_of(row.type.dtype))
            for table, (row, shape) in enumerate(zip(row_inputs, shapes, strict=True))
        }
        tables = {_as_bytes(entries): table for table, entries in enumerate(rows.values())}
        with_rows = Lowering(rows, self._program, self._parameters)
        products: list[Product] = []
        kept: dict[Variable, tuple[Variable, Product | None, int | None]] = {}
        replace: dict[Variable, Variable] = {}
        known = dict(rows)
        for var, link in links.items():
            row = with_rows.of([link.row])[0]
            cut = link.output.type()
            if link.gathers:
                if row.size != 1:
                    continue
                known[cut] = with_rows.of([link.output])[0]
                replace[link.output] = cut
                kept[var] = (cut, None, self._program.integer(int(row.item())))
                continue
            table = tables.get(_as_bytes(row.reshape(-1)))
            if table is None or row_inputs[table].type.dtype != "float64" or row.size < 1:
                continue
            parameter = self._parameters(link.parameter)
            size = row.size
            k = parameter.size // size
            product = Product(table, size, k, int(self._program[int(parameter.flat[0])].detail))
            etas = [self._program.add("eta", detail=(len(products), m)) for m in range(k)]
            known[cut] = np.array(etas, dtype=np.int64).reshape(row.shape[:-1] + parameter.shape[1:])
            products.append(product)
            replace[link.output] = cut
            kept[var] = (cut, product, None)
        (row_logp,) = rewrite_pregrad(clone_replace([row_log_likelihood], replace))
        with_respect_to = [kept[var][0] if var in kept else var for var in value_vars]
        gradients = pt.grad(row_logp, with_respect_to, disconnected_inputs="ignore")
        refuse_unknown_operations([row_logp, *gradients], [*row_inputs, *replace.values()])
        outputs = rewrite_graph([row_logp, *gradients], include=("canonicalize", "stabilize", "specialize"), clone=True)
        logp, *slopes = Lowering(known, self._program, self._parameters).of(outputs)
        self.parts = []
        for var, slope in zip(value_vars, slopes, strict=True):
            numbers = [self._program.float(int(number)) for number in slope.ravel()]
            _, of_part, index = kept.get(var, (None, None, None))
            kind: Literal["dense", "product", "gather"] = "dense"
            if var in kept:
                kind = "gather" if of_part is None else "product"
            self.parts.append(Part(kind, numbers, math.prod(_shape_of(var)), index, of_part))
        self._logp = self._program.float(int(logp.item()))
        self._evaluate = self._compiled_parameters()
        self.loops = FusedLoops(self._program, self._logp, self.parts, products, [math.prod(shape) for shape in shapes])

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

    def _compiled_parameters(self) -> Callable[..., FloatArray]:
        outputs = [pt.as_tensor_variable(variable).astype("float64").ravel() for variable in self._of_parameters]
        joined = pt.concatenate(outputs) if outputs else pt.zeros(1)
        # fastmath would let the compiler assume that nothing is NaN or infinite.
        with pytensor.config.change_flags(numba__fastmath=False):
            function: Callable[..., FloatArray] = pymc_compile(
                self._value_vars, joined, mode="NUMBA", trust_input=True, on_unused_input="ignore"
            )
        return function

    def at(self, parameters: Sequence[np.ndarray]) -> FloatArray:
        """Return the numbers that parameters give, which the loops start from."""
        point = np.ascontiguousarray(self._evaluate(*parameters), dtype=np.float64)
        if point.size < self._n_numbers:
            raise RuntimeError("The parameters gave arrays of another shape than before.")
        return point

    def add_clipped(
        self,
        point: FloatArray,
        chunk: Sequence[np.ndarray],
        log_likelihoods: FloatArray,
        slices: Sequence[slice | None],
        bound: float,
        steps_per_one: float,
        total: NDArray[np.int64],
    ) -> int:
        """Add the clipped, truncated gradients of rows to `total`; return how many were clipped.

        Parameters
        ----------
        point : ndarray
            From `at`.
        chunk : sequence of ndarray
            The rows.
        log_likelihoods : ndarray, shape (rows,) or (0,)
            Where their log-likelihoods are written, if anywhere.
        slices : sequence of slice or None
            Where each value variable stands in `total`; None for those that take no part.
        bound, steps_per_one : float
            Largest computed norm, and what one is on the grid.
        total : ndarray of int64
            The sum.
        """
        taken = np.array([entries is not None for entries in slices])
        offsets = np.array([0 if entries is None else entries.start for entries in slices], dtype=np.int64)
        n_clipped: int = self.loops.gradient(
            point,
            *self.loops.scratch(),
            0,
            len(chunk[0]),
            log_likelihoods,
            taken,
            offsets,
            bound,
            steps_per_one,
            total,
            *_flat(chunk),
        )
        return n_clipped

    def log_likelihood(self, point: FloatArray, chunk: Sequence[np.ndarray]) -> FloatArray:
        """Return the log-likelihood of every row."""
        log_likelihoods = np.empty(len(chunk[0]))
        self.loops.log_likelihood(point, *self.loops.scratch(), 0, len(chunk[0]), log_likelihoods, *_flat(chunk))
        return log_likelihoods

    def with_slopes(self, point: FloatArray, chunk: Sequence[np.ndarray]) -> list[FloatArray]:
        """Return log-likelihoods, shape (rows,), and for every value variable gradients or slopes, (rows, size)."""
        log_likelihoods, slopes, _ = self._slopes(point, chunk)
        ends = np.cumsum([len(part.slopes) for part in self.parts])[:-1]
        return [log_likelihoods, *[np.ascontiguousarray(part) for part in np.split(slopes, ends, axis=1)]]

    def row_factors(self, point: FloatArray, chunk: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """Return what slopes are multiplied by: vectors (rows, size), indices (rows,), None for dense gradients."""
        indices = iter(self._slopes(point, chunk)[2])
        return [
            chunk[part.product.table] if part.product is not None else next(indices) if part.kind == "gather" else None
            for part in self.parts
        ]

    def _slopes(
        self, point: FloatArray, chunk: Sequence[np.ndarray]
    ) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
        n = len(chunk[0])
        log_likelihoods, slopes = np.empty(n), np.empty((n, self.loops.n_slopes))
        indices = np.empty((self.loops.n_indices, n), dtype=np.int64)
        self.loops.slopes(point, *self.loops.scratch(), 0, n, log_likelihoods, slopes, indices, *_flat(chunk))
        return log_likelihoods, slopes, indices


def _with_shapes(
    row_log_likelihood: Variable,
    links: Mapping[Variable, Link],
    value_vars: Sequence[Variable],
    shapes: Sequence[tuple[int, ...]],
) -> tuple[Variable, dict[Variable, Link], list[Variable]]:
    """Return the graph with parameters of known shapes: whatever follows from those alone is known too."""
    shaped = {
        var: pt.tensor(var.name, dtype=var.type.dtype, shape=shape)
        for var, shape in zip(value_vars, shapes, strict=True)
    }
    ends = [end for link in links.values() for end in (link.output, link.parameter, link.row)]
    row_log_likelihood, *cloned = clone_replace([row_log_likelihood, *ends], shaped, rebuild_strict=False)
    found = {
        shaped[var]: Link(output, parameter, row, link.gathers)
        for (var, link), (output, parameter, row) in zip(links.items(), itertools.batched(cloned, 3), strict=True)
    }
    return row_log_likelihood, found, list(shaped.values())


def _flat(chunk: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [rows.reshape(-1) for rows in chunk]


def _as_bytes(numbers: Numbers) -> bytes:
    return np.ascontiguousarray(numbers, dtype=np.int64).tobytes()


def _shape_of(variable: Variable) -> tuple[int, ...]:
    """Return the shape of a variable, which the parameters' values do not decide."""
    if not hasattr(variable.type, "shape"):
        return ()
    if None in variable.type.shape:
        return tuple(int(length) for length in structural_value(variable.shape))
    return tuple(variable.type.shape)
