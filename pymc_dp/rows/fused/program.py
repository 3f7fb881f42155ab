"""Translate the graph of one row into a list of scalar operations, which `pymc_dp.rows.fused.loops` turns into loops.

Arrays of the one-row graph are small and of known shape, so that each of their entries becomes an operation of its
own: solving a triangular system of 10 equations is 55 multiplications and divisions in a fixed order. What depends
on the parameters alone is computed once for all rows and enters as a vector of numbers.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
from numpy.typing import NDArray
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import explicit_graph_inputs, toposort
from pytensor.tensor.basic import Alloc, ARange, Join, MakeVector, ScalarFromTensor, Split, TensorFromScalar
from pytensor.tensor.basic import ExtractDiag as _ExtractDiag
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

from pymc_dp.compiling import INTERPRETED
from pymc_dp.model.allowed import allows_scalar

Numbers = NDArray[np.int64]

_MOST_OPERATIONS = 3000
_MOST_CANDIDATES = 64

#: Operations that only move entries: performed on the numbers of the entries.
_MOVES = (
    DimShuffle,
    Subtensor,
    AdvancedSubtensor,
    Join,
    Split,
    MakeVector,
    Reshape,
    SpecifyShape,
    _ExtractDiag,
    ScalarFromTensor,
    TensorFromScalar,
)
_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_COMPARISONS = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "==", "NEQ": "!="}


class NotLowered(Exception):
    """The graph holds an operation that has no translation; it is compiled by PyTensor instead."""


@dataclass(frozen=True)
class Operation:
    """One scalar operation.

    Attributes
    ----------
    name : str
        What it does.
    inputs : tuple of int
        Numbers of the operations whose results it takes.
    kind : {"f", "i", "b"}
        Whether its result is a float, a whole number or a truth value.
    detail : object
        The value of a constant, the place of an entry, the scalar operation of PyTensor.
    """

    name: str
    inputs: tuple[int, ...]
    kind: str
    detail: Any = None


@dataclass(frozen=True, eq=False)
class Product:
    """A linear predictor: a table of floats times parameters.

    Attributes
    ----------
    table : int
        Which of the data.
    size, k : int
        Length of a row, number of predictors.
    place : int
        Where the parameters begin in the vector of numbers that parameters give.
    """

    table: int
    size: int
    k: int
    place: int


def kind_of(dtype: str) -> str:
    """Return the kind of numbers of this dtype."""
    if dtype == "bool":
        return "b"
    if dtype in ("float32", "float64"):
        return "f"
    if dtype.startswith(("int", "uint")) and dtype != "uint64":
        return "i"
    raise NotLowered(dtype)


class Program:
    """Scalar operations, each at most once. Number 0 is zero."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._numbers: dict[Operation, int] = {}
        self.constant(0.0)

    def __getitem__(self, number: int) -> Operation:
        return self.operations[number]

    def add(self, name: str, *inputs: int, kind: str = "f", detail: Any = None) -> int:
        """Return the number of an operation, a new one unless there is one like it."""
        operation = Operation(name, tuple(int(i) for i in inputs), kind, detail)
        number = self._numbers.get(operation)
        if number is None:
            if len(self.operations) >= _MOST_OPERATIONS:
                raise NotLowered("too many operations")
            number = self._numbers[operation] = len(self.operations)
            self.operations.append(operation)
        return number

    def constant(self, value: Any) -> int:
        """Return the number of a constant."""
        if isinstance(value, bool | np.bool_):
            return self.add("constant", kind="b", detail=repr(bool(value)))
        if isinstance(value, int | np.integer):
            return self.add("constant", kind="i", detail=repr(int(value)))
        return self.add("constant", kind="f", detail=repr(float(value) + 0.0))

    def parameter(self, place: int, kind: str) -> int:
        """Return the number of an entry of the vector that parameters give."""
        return self.add("parameter", kind=kind, detail=place)

    def value(self, number: int) -> Any:
        """Return the value of a constant, None for anything else."""
        operation = self.operations[number]
        if operation.name != "constant":
            return None
        if operation.kind == "f":
            return float(operation.detail)
        return int(operation.detail) if operation.kind == "i" else operation.detail == "True"

    # What follows builds expressions, and leaves out what does nothing. x * 0 stays: x may not be finite.

    def float(self, number: int) -> int:
        """Return an operation's result as a float."""
        if self[number].kind == "f":
            return number
        value = self.value(number)
        return self.constant(float(value)) if value is not None else self.add("float", number)

    def integer(self, number: int) -> int:
        """Return an operation's result as a whole number."""
        if self[number].kind == "i":
            return number
        if self[number].kind == "f":
            value = self.value(number)
            if value is None or not float(value).is_integer():
                raise NotLowered("a float as a whole number")
            return self.constant(int(value))
        value = self.value(number)
        return self.constant(int(value)) if value is not None else self.add("integer", number, kind="i")

    def truth(self, number: int) -> int:
        """Return whether an operation's result is not zero."""
        return number if self[number].kind == "b" else self.compare("!=", number, self.constant(0))

    def _alike(self, *numbers: int) -> tuple[str, list[int]]:
        """Return operands as floats if one of them is, else as whole numbers."""
        if any(self[number].kind == "f" for number in numbers):
            return "f", [self.float(number) for number in numbers]
        return "i", [self.integer(number) for number in numbers]

    def plus(self, left: int, right: int) -> int:
        """Return a sum."""
        kind, (left, right) = self._alike(left, right)
        a, b = self.value(left), self.value(right)
        if a is not None and b is not None:
            return self.constant(a + b)
        if a == 0 or b == 0:
            return right if a == 0 else left
        if self[right].name == "negative":
            return self.add("-", left, *self[right].inputs, kind=kind)
        return self.add("+", left, right, kind=kind)

    def minus(self, left: int, right: int) -> int:
        """Return a difference."""
        kind, (left, right) = self._alike(left, right)
        a, b = self.value(left), self.value(right)
        if a is not None and b is not None:
            return self.constant(a - b)
        if b == 0:
            return left
        return self.negative(right) if a == 0 else self.add("-", left, right, kind=kind)

    def times(self, left: int, right: int) -> int:
        """Return a product."""
        kind, (left, right) = self._alike(left, right)
        a, b = self.value(left), self.value(right)
        if a is not None and b is not None:
            return self.constant(a * b)
        for value, other in ((a, right), (b, left)):
            if value == 1:
                return other
            if value == -1:
                return self.negative(other)
        return self.add("*", min(left, right), max(left, right), kind=kind)

    def over(self, left: int, right: int) -> int:
        """Return a quotient."""
        left, right = self.float(left), self.float(right)
        return left if self.value(right) == 1 else self.add("/", left, right)

    def negative(self, number: int) -> int:
        """Return minus a number."""
        kind, (number,) = self._alike(number)
        value = self.value(number)
        if value is not None:
            return self.constant(-value)
        if self[number].name == "negative":
            return self[number].inputs[0]
        return self.add("negative", number, kind=kind)

    def absolute(self, number: int) -> int:
        """Return a number without its sign."""
        kind, (number,) = self._alike(number)
        return self.add("abs", self[number].inputs[0] if self[number].name == "negative" else number, kind=kind)

    def compare(self, sign: str, left: int, right: int) -> int:
        """Return whether a comparison holds."""
        kind, (left, right) = self._alike(left, right)
        if left == right and kind == "i":
            return self.constant(sign in ("<=", ">=", "=="))
        a, b = self.value(left), self.value(right)
        if kind == "i" and a is not None and b is not None:
            return self.constant(_COMPARE[sign](a, b))
        return self.add(sign, left, right, kind="b")

    def both(self, left: int, right: int) -> int:
        """Return whether both hold."""
        left, right = self.truth(left), self.truth(right)
        for value, other in ((self.value(left), right), (self.value(right), left)):
            if value is not None:
                return other if value else self.constant(False)
        return left if left == right else self.add("&", min(left, right), max(left, right), kind="b")

    def either(self, left: int, right: int) -> int:
        """Return whether one of both holds."""
        left, right = self.truth(left), self.truth(right)
        for value, other in ((self.value(left), right), (self.value(right), left)):
            if value is not None:
                return self.constant(True) if value else other
        return left if left == right else self.add("|", min(left, right), max(left, right), kind="b")

    def no(self, number: int) -> int:
        """Return whether it does not hold."""
        number = self.truth(number)
        value = self.value(number)
        if value is not None:
            return self.constant(not value)
        return self[number].inputs[0] if self[number].name == "not" else self.add("not", number, kind="b")

    def where(self, condition: int, yes: int, no: int) -> int:
        """Return one of two numbers."""
        condition = self.truth(condition)
        if self[yes].kind == self[no].kind == "b":
            return self.either(self.both(condition, yes), self.both(self.no(condition), no))
        kind, (yes, no) = self._alike(yes, no)
        value = self.value(condition)
        if value is not None or yes == no:
            return no if value is False else yes
        return self.add("select", condition, yes, no, kind=kind)

    def function(self, name: str, number: int) -> int:
        """Return an elementary function of a number."""
        return self.add(name, self.float(number))

    def _decay(self, number: int) -> int:
        """Return exp(-abs(x)), which a sigmoid and a softplus of x or -x share."""
        return self.function("exp", self.negative(self.absolute(number)))

    def sigmoid(self, number: int) -> int:
        """Return 1 / (1 + exp(-x))."""
        number = self.float(number)
        decay = self._decay(number)
        upper = self.over(self.constant(1.0), self.plus(self.constant(1.0), decay))
        return self.where(self.compare(">=", number, self.constant(0.0)), upper, self.times(decay, upper))

    def softplus(self, number: int) -> int:
        """Return log(1 + exp(x))."""
        number = self.float(number)
        zero = self.constant(0.0)
        positive = self.where(self.compare(">", number, zero), number, zero)
        return self.plus(positive, self.add("log1p_up_to_one", self._decay(number)))

    def largest(self, left: int, right: int, sign: str = ">") -> int:
        """Return the larger number, NaN if one of them is."""
        _, (left, right) = self._alike(left, right)
        return self.where(self.either(self.compare(sign, left, right), self.compare("!=", left, left)), left, right)

    def entry(self, candidates: Sequence[int], index: int) -> int:
        """Return the candidate that `index` names; the first one if it names none."""
        index = self.integer(index)
        length = len(candidates)
        wrapped = self.where(self.compare("<", index, self.constant(0)), self.plus(index, self.constant(length)), index)
        places = [int(self[c].detail) for c in candidates if self[c].name == "parameter"]
        if length > 1 and len(places) == length:
            step = places[1] - places[0]
            if step > 0 and places == list(range(places[0], places[0] + step * length, step)):
                held = self.where(self._within(wrapped, length), wrapped, self.constant(0))
                return self.add("gather", held, kind=self[candidates[0]].kind, detail=(places[0], step))
        if length > _MOST_CANDIDATES:
            raise NotLowered("an entry of a long array")
        result = candidates[0]
        for place in range(1, length):
            result = self.where(self.compare("==", wrapped, self.constant(place)), candidates[place], result)
        return result

    def _within(self, index: int, length: int) -> int:
        zero = self.constant(0)
        return self.both(self.compare(">=", index, zero), self.compare("<", index, self.constant(length)))


def _is_structural(variable: Variable) -> bool:
    """Return whether a variable depends on the shapes of the parameters alone, not on their values."""
    todo = [variable]
    while todo:
        node = todo.pop().owner
        if node is None:
            return False
        if not isinstance(node.op, Shape | Shape_i):
            todo += [entry for entry in node.inputs if not isinstance(entry, Constant)]
    return True


def structural_value(variable: Variable) -> np.ndarray:
    """Return the value of a variable that depends on the shapes of the parameters alone."""
    inputs = [entry for entry in explicit_graph_inputs([variable]) if not isinstance(entry, SharedVariable)]
    with pytensor.config.change_flags(mode=INTERPRETED):  # called once: not worth compiling
        return np.asarray(
            variable.eval({entry: np.zeros(entry.type.shape, dtype=entry.type.dtype) for entry in inputs})
        )


class Lowering:
    """Translates variables of the one-row graph into entries of a program.

    Parameters
    ----------
    known : mapping of Variable to ndarray of int
        Numbers of the entries of the variables that depend on the row, and of those that parameters give.
    program : Program
        Where operations are added.
    of_parameters : callable
        Called with a variable that does not depend on the row; returns the numbers of its entries.
    """

    def __init__(
        self, known: Mapping[Variable, Numbers], program: Program, of_parameters: Callable[[Variable], Numbers]
    ) -> None:
        self._known = dict(known)
        self._program = program
        self._of_parameters = of_parameters

    def of(self, outputs: Sequence[Variable]) -> list[Numbers]:
        """Return the numbers of the entries of `outputs`."""
        for node in toposort(list(outputs)):
            if all(output in self._known for output in node.outputs):
                continue
            if not any(variable in self._known for variable in node.inputs):
                continue
            # What a shape is said to be may be left open, and holds anyway.
            needed = node.inputs[:1] if isinstance(node.op, SpecifyShape) else node.inputs
            inputs = [self._value(variable) for variable in needed]
            for variable, value in zip(node.outputs, self._apply(node, inputs), strict=True):
                self._known[variable] = np.asarray(value, dtype=np.int64)
        return [self._value(output) for output in outputs]

    def _value(self, variable: Variable) -> Numbers:
        if variable in self._known:
            known: Numbers = self._known[variable]
            return known
        if isinstance(variable, Constant) and np.size(variable.data) <= _MOST_OPERATIONS:
            return self._numbers_of(variable.data)
        if variable.type.dtype.startswith(("int", "uint", "bool")) and _is_structural(variable):
            return self._numbers_of(structural_value(variable))
        return self._of_parameters(variable)

    def _numbers_of(self, values: np.ndarray) -> Numbers:
        numbers = [self._program.constant(value) for value in values.ravel().tolist()]
        found: Numbers = np.array(numbers, dtype=np.int64).reshape(values.shape)
        return found

    def _constants(self, numbers: Numbers) -> np.ndarray:
        """Return the values of entries that are all constants."""
        values = [self._program.value(int(number)) for number in numbers.ravel()]
        if any(value is None for value in values):
            raise NotLowered("an index or a shape that is not constant")
        return np.array(values, dtype=np.int64 if not values else None).reshape(numbers.shape)

    def _map(self, function: Callable[..., int], *arrays: Numbers) -> Numbers:
        """Apply a function of scalars to every entry."""
        parts = np.broadcast_arrays(*arrays)
        result = [
            function(*(int(entry) for entry in entries)) for entries in zip(*(p.ravel() for p in parts), strict=True)
        ]
        return np.array(result, dtype=np.int64).reshape(parts[0].shape)

    def _apply(self, node: Any, inputs: list[Numbers]) -> Sequence[Numbers]:  # noqa: PLR0912
        op = node.op
        if isinstance(op, Elemwise):
            return [self._map(self._scalar(op.scalar_op, node), *inputs)]
        if isinstance(op, CAReduce):
            return [self._reduced(op, inputs[0])]
        if isinstance(op, Alloc):
            shape = tuple(int(self._constants(entry)) for entry in inputs[1:])
            return [np.broadcast_to(inputs[0], shape)]
        if isinstance(op, Shape | Shape_i):
            shape = inputs[0].shape if isinstance(op, Shape) else (inputs[0].shape[op.i],)
            numbers = np.array([self._program.constant(length) for length in shape], dtype=np.int64)
            return [numbers if isinstance(op, Shape) else numbers[0]]
        if isinstance(op, ARange):
            steps = range(*[int(self._constants(entry)) for entry in inputs])
            return [np.array([self._program.constant(step) for step in steps], dtype=np.int64)]
        if isinstance(op, Dot):
            return [self._product(*inputs)]
        if isinstance(op, SolveTriangular):
            return [self._solved(op, *inputs)]
        if isinstance(op, CumOp):
            return [self._accumulated(op, inputs[0])]
        if isinstance(op, IncSubtensor | AdvancedIncSubtensor):
            return [self._increased(op, *inputs)]
        if isinstance(op, AdvancedSubtensor) and not self._are_constant(inputs[1:]):
            return [self._gathered(op, *inputs)]
        if isinstance(op, Blockwise):
            return self._in_batches(node, inputs)
        if isinstance(op, OpFromGraph):
            # The inlined graph begins where this one does, not at the inputs of the node.
            known = {**self._known, **dict(zip(node.inputs, inputs, strict=True))}
            inner = Lowering(known, self._program, self._of_parameters)
            return inner.of(inline_ofg_node(node))
        if isinstance(op, _MOVES):
            return self._moved(node, inputs)
        raise NotLowered(str(op))

    def _are_constant(self, inputs: Sequence[Numbers]) -> bool:
        return all(self._program.value(int(number)) is not None for array in inputs for number in array.ravel())

    def _moved(self, node: Any, inputs: list[Numbers]) -> Sequence[Numbers]:
        """Perform an operation that moves entries on their numbers."""
        op = node.op
        n_moved = len(inputs) if isinstance(op, MakeVector | Join) else 1
        arguments = [np.array(a) if place < n_moved else self._constants(a) for place, a in enumerate(inputs)]
        if isinstance(op, MakeVector):
            return [np.array(arguments, dtype=np.int64)]
        if isinstance(op, Join):
            return [np.concatenate(arguments, axis=op.axis)]
        if isinstance(op, ScalarFromTensor | TensorFromScalar | SpecifyShape):
            return [arguments[0]]
        storage: list[list[Any]] = [[None] for _ in node.outputs]
        op.perform(node, arguments, storage)
        return [np.asarray(entry[0], dtype=np.int64) for entry in storage]

    def _reduced(self, op: CAReduce, array: Numbers) -> Numbers:
        axes = range(array.ndim) if op.axis is None else op.axis
        kept = [axis for axis in range(array.ndim) if axis not in axes]
        flat = array.transpose([*kept, *axes]).reshape([array.shape[axis] for axis in kept] + [-1])
        step = self._scalar(op.scalar_op, None)
        result = np.empty(flat.shape[:-1], dtype=np.int64)
        for place in np.ndindex(result.shape):
            entries = [int(entry) for entry in flat[place]]
            if not entries:
                raise NotLowered("a reduction of nothing")
            total = entries[0]
            if type(op.scalar_op).__name__ in ("AND", "OR"):
                total = self._program.truth(total)
            for entry in entries[1:]:
                total = step(total, entry)
            result[place] = total
        return result

    def _product(self, left: Numbers, right: Numbers) -> Numbers:
        p = self._program
        a = left.reshape(-1, left.shape[-1])
        b = right.reshape(right.shape[0], -1)
        result = np.empty((a.shape[0], b.shape[1]), dtype=np.int64)
        for i, j in np.ndindex(result.shape):
            total = p.times(a[i, 0], b[0, j])
            for k in range(1, a.shape[1]):
                total = p.plus(total, p.times(a[i, k], b[k, j]))
            result[i, j] = total
        return result.reshape(left.shape[:-1] + right.shape[1:])

    def _solved(self, op: SolveTriangular, matrix: Numbers, right: Numbers) -> Numbers:
        """Solve a triangular system by substitution, in a fixed order."""
        p = self._program
        size = matrix.shape[0]
        columns = right.reshape(size, -1)
        result = np.zeros_like(columns)
        order = range(size) if op.lower else range(size - 1, -1, -1)
        for column in range(columns.shape[1]):
            for i in order:
                total = int(columns[i, column])
                for j in range(i) if op.lower else range(size - 1, i, -1):
                    total = p.minus(total, p.times(int(matrix[i, j]), int(result[j, column])))
                result[i, column] = total if op.unit_diagonal else p.over(total, int(matrix[i, i]))
        return result.reshape(right.shape)

    def _accumulated(self, op: CumOp, array: Numbers) -> Numbers:
        step = self._program.plus if op.mode == "add" else self._program.times
        moved = np.moveaxis(array, op.axis, -1).copy()
        for place in np.ndindex(moved.shape[:-1]):
            for k in range(1, moved.shape[-1]):
                moved[place][k] = step(int(moved[place][k - 1]), int(moved[place][k]))
        return np.moveaxis(moved, -1, op.axis)

    def _increased(
        self, op: IncSubtensor | AdvancedIncSubtensor, array: Numbers, new: Numbers, *indices: Numbers
    ) -> Numbers:
        """Set or increase entries, also entries that the row names."""
        p = self._program
        result = np.array(array)
        if self._are_constant(indices):
            place = tuple(unflatten_index_variables([self._constants(index) for index in indices], op.idx_list))
            positions = np.arange(result.size).reshape(result.shape)[place]
            flat = result.reshape(-1)
            for position, number in zip(positions.ravel(), np.broadcast_to(new, positions.shape).ravel(), strict=True):
                flat[position] = number if op.set_instead_of_inc else p.plus(int(flat[position]), int(number))
            return flat.reshape(result.shape)
        for place, axis, index, at in self._named_entries(op, array, indices):
            entries = np.broadcast_to(new, self._gathered_shape)[at]
            for candidate in range(array.shape[axis]):
                target = (*place[:axis], candidate, *place[axis + 1 :])
                holds = p.compare("==", index, p.constant(candidate))
                for inner in np.ndindex(entries.shape):
                    old, entry = int(result[(*target, *inner)]), int(entries[inner])
                    other = entry if op.set_instead_of_inc else p.plus(old, entry)
                    if not op.set_instead_of_inc and old == 0:
                        result[(*target, *inner)] = p.where(holds, entry, p.constant(0.0))
                    else:
                        result[(*target, *inner)] = p.where(holds, other, old)
        return result

    def _gathered(self, op: AdvancedSubtensor, array: Numbers, *indices: Numbers) -> Numbers:
        """Return entries that the row names."""
        named = list(self._named_entries(op, array, indices, wrap=False))
        result = np.empty(self._gathered_shape, dtype=np.int64)
        for place, axis, index, at in named:
            rest = array.shape[len(indices) :]
            for inner in np.ndindex(rest):
                candidates = [
                    int(array[(*place[:axis], candidate, *place[axis + 1 :], *inner)])
                    for candidate in range(array.shape[axis])
                ]
                result[(*at, *inner)] = self._program.entry(candidates, index)
        return result

    def _named_entries(self, op: Any, array: Numbers, indices: Sequence[Numbers], wrap: bool = True) -> list[Any]:
        """Return, for every entry of the broadcast indices, where it points: one axis is named by the row."""
        p = self._program
        if op.idx_list != tuple(range(len(indices))) or any(p[int(n)].kind == "b" for i in indices for n in i.ravel()):
            raise NotLowered("an unusual index")
        parts = np.broadcast_arrays(*indices)
        self._gathered_shape = parts[0].shape + array.shape[len(indices) :]
        found = []
        for at in np.ndindex(parts[0].shape):
            numbers = [int(part[at]) for part in parts]
            values = [p.value(number) for number in numbers]
            axes = [axis for axis, value in enumerate(values) if value is None]
            if len(axes) > 1 or (axes and array.shape[axes[0]] > _MOST_CANDIDATES and wrap):
                raise NotLowered("several axes named by the row")
            axis = axes[0] if axes else 0
            index = p.integer(numbers[axis])
            if wrap:
                length = p.constant(array.shape[axis])
                index = p.where(p.compare("<", index, p.constant(0)), p.plus(index, length), index)
            found.append((values, axis, index, at))
        return found

    def _in_batches(self, node: Any, inputs: list[Numbers]) -> Sequence[Numbers]:
        """Apply the core operation of a Blockwise to each item of the batch."""
        core = node.op._create_dummy_core_node(node.inputs)  # noqa: SLF001
        batch_ndim = node.op.batch_ndim(node)
        shape = np.broadcast_shapes(*[array.shape[:batch_ndim] for array in inputs])
        spread = [np.broadcast_to(array, shape + array.shape[batch_ndim:]) for array in inputs]
        results = [self._apply(core, [array[place] for array in spread]) for place in np.ndindex(shape)]
        return [
            np.array([result[k] for result in results], dtype=np.int64).reshape(shape + results[0][k].shape)
            for k in range(len(node.outputs))
        ]

    def _scalar(self, op: Any, node: Any) -> Callable[..., int]:
        """Return how a scalar operation is written."""
        p, name = self._program, type(op).__name__
        simple: dict[str, Callable[..., int]] = {
            "Sub": p.minus,
            "TrueDiv": p.over,
            "Neg": p.negative,
            "Abs": p.absolute,
            "Sigmoid": p.sigmoid,
            "Softplus": p.softplus,
            "Switch": p.where,
            "Invert": p.no,
            "Maximum": p.largest,
            "Minimum": lambda a, b: p.largest(a, b, "<"),
            "Sqr": lambda a: p.times(a, a),
            "Reciprocal": lambda a: p.over(p.constant(1.0), a),
            "IsNan": lambda a: p.compare("!=", a, a),
            "IsInf": lambda a: p.compare("==", p.absolute(p.float(a)), p.constant(np.inf)),
            "Clip": lambda a, low, high: p.where(
                p.compare("<", a, low), low, p.where(p.compare(">", a, high), high, a)
            ),
            "Identity": lambda a: a,
            "Second": lambda _, b: b,
        }
        if name in ("Invert", "AND", "OR") and node is not None and node.outputs[0].type.dtype != "bool":
            raise NotLowered("operations on bits")
        if name in simple:
            return simple[name]
        if name in _COMPARISONS:
            return lambda a, b: p.compare(_COMPARISONS[name], a, b)
        if name in ("Exp", "Log", "Log1p", "Expm1", "Log1mexp", "Sqrt"):
            return lambda a: p.function(name.lower(), a)
        if name in ("Psi", "TriGamma"):
            return lambda a: p.function("digamma" if name == "Psi" else "trigamma", a)
        several = {"Add": p.plus, "Mul": p.times, "AND": p.both, "OR": p.either}
        if name in several:

            def fold(*numbers: int) -> int:
                total = numbers[0]
                for number in numbers[1:]:
                    total = several[name](total, number)
                return total

            return fold
        if name == "Cast":
            kind = kind_of(op.o_type.dtype)
            return {"f": p.float, "i": p.integer, "b": p.truth}[kind]
        if name == "Pow":
            return self._power(op)
        return self._composite(op) if isinstance(op, ps.Composite) and op.nout == 1 else self._other(op)

    def _composite(self, op: ps.Composite) -> Callable[..., int]:
        """Return how several scalar operations in one are written: one after the other."""

        def written(*numbers: int) -> int:
            known = dict(zip(op.fgraph.inputs, numbers, strict=True))
            for node in op.fgraph.toposort():
                for constant in node.inputs:
                    if isinstance(constant, Constant):
                        known[constant] = self._program.constant(np.asarray(constant.data).item())
                known[node.outputs[0]] = self._scalar(node.op, node)(*[known[entry] for entry in node.inputs])
            result: int = known[op.fgraph.outputs[0]]
            return result

        return written

    def _power(self, op: Any) -> Callable[..., int]:
        p, other = self._program, self._other(op)

        def power(base: int, exponent: int) -> int:
            value = p.value(exponent)
            if value in (2, 3):
                square = p.times(base, base)
                return square if value == 2 else p.times(square, base)
            if value in (0.5, -0.5):
                root = p.function("sqrt", base)
                return root if value > 0 else p.over(p.constant(1.0), root)
            if value in (-1, -2):
                return p.over(p.constant(1.0), base if value == -1 else p.times(p.float(base), p.float(base)))
            return base if value == 1 else other(base, exponent)

        return power

    def _other(self, op: Any) -> Callable[..., int]:
        """Return a call of PyTensor's own function of floats, one number at a time."""
        if not isinstance(op, ps.ScalarOp) or not (allows_scalar(op) or isinstance(op, ps.Pow)) or op.nout != 1:
            raise NotLowered(str(op))

        def call(*numbers: int) -> int:
            return self._program.add("call", *[self._program.float(number) for number in numbers], detail=op)

        return call
