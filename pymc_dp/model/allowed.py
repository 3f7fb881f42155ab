"""The allow-list of operations that may see values of rows. Every other operation is refused by name.

An operation that sees values of a row is safe if it is

- *row-local*: its result for one row is a function of that row. Graphs are written for a single row (`one_row`), and
  vectorising them adds an axis, so the operation must act along the axes of its own inputs only;
- *total*: in compiled code it neither raises nor ends the process, whatever numbers it is given;
- *bounded*: the sizes of its results follow from shapes, never from values, and it reads and writes inside its
  arrays only;
- *silent*: it prints, stores and calls nothing.

Some arguments (a length, a slice, an axis) must not depend on row values; each of them is checked. Shapes are public,
so `Shape` ends the search. The list is applied to the log-likelihood of one row and to each of its derivatives, before
they are compiled. A test evaluates every scalar operation of the list at extreme numbers in compiled code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytensor.scalar as scalars
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.gradient import DisconnectedGrad, GradClip, ZeroGrad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor import basic as tensors
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.general import Solve
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor

from pymc_dp.exceptions import UnsupportedModel

#: Elementwise functions. Floating-point results are NaN or infinite where the function is undefined; functions of gamma
#: and Bessel type are SciPy's compiled ones, whose iterations are bounded.
SCALARS: frozenset[type] = frozenset(
    getattr(scalars.basic if hasattr(scalars.basic, name) else scalars.math, name)
    for name in """
    Abs Add AND ArcCos ArcCosh ArcSin ArcSinh ArcTan ArcTan2 ArcTanh Cast Ceil Clip Cos Cosh EQ Exp Exp2 Expm1 Floor GE
    GT Identity IntDiv Invert IsInf IsNan LE Log Log10 Log1p Log2 LT Maximum Minimum Mul Neg NEQ OR Reciprocal
    RoundHalfAwayFromZero RoundHalfToEven ScalarMaximum ScalarMinimum Second Sign Sin Sinh Sqr Sqrt Sub Switch Tan Tanh
    TrueDiv Trunc XOR
    BetaInc BetaIncInv Erf Erfc Erfcinv Erfcx Erfinv Gamma GammaInc GammaIncC GammaIncCInv GammaIncInv GammaLn I0
    I1 Ive J0 J1 Jv Kve Log1mexp NdtriExp Owens_t PolyGamma Psi Sigmoid Softplus TriGamma
    """.split()
)
#: The scalar operations that reductions may use.
_REDUCTIONS = frozenset(
    getattr(scalars, name) for name in "Add Mul AND OR XOR Maximum Minimum ScalarMaximum ScalarMinimum".split()
)

#: Operations on arrays: the reason why each is safe, and the slice of its inputs that must not depend on row values.
_NOTHING, _AFTER_FIRST, _AFTER_SECOND = slice(0, 0), slice(1, None), slice(2, None)
_ARRAYS: Mapping[type, tuple[str, slice]] = {
    # Operations that move entries: the result holds entries of the inputs, at places that follow from shapes.
    DimShuffle: ("permutes and adds axes", _NOTHING),
    tensors.MakeVector: ("puts numbers into a vector", _NOTHING),
    tensors.ScalarFromTensor: ("is the identity", _NOTHING),
    tensors.TensorFromScalar: ("is the identity", _NOTHING),
    ViewOp: ("is the identity", _NOTHING),
    tensors.ExtractDiag: ("takes a diagonal", _NOTHING),
    tensors.AllocDiag: ("puts a vector on a diagonal", _NOTHING),
    tensors.Join: ("concatenates along an axis of its own", _NOTHING),
    tensors.Split: ("cuts at places that no row chooses", _AFTER_FIRST),
    tensors.Alloc: ("fills a shape that no row chooses", _AFTER_FIRST),
    Reshape: ("takes a shape that no row chooses", _AFTER_FIRST),
    SpecifyShape: ("asserts a shape that no row chooses", _AFTER_FIRST),
    Subtensor: ("slices at places that no row chooses", _AFTER_FIRST),
    IncSubtensor: ("writes to slices that no row chooses", _AFTER_SECOND),
    # Operations that compute: loops over the entries with arithmetic that is total.
    Dot: ("sums products", _NOTHING),
    CumOp: ("accumulates sums or products", _NOTHING),
    Argmax: ("compares the entries", _NOTHING),
    SortOp: ("compares the entries; NaN has a place in the order", _AFTER_FIRST),
    ArgSortOp: ("compares the entries; NaN has a place in the order", _AFTER_FIRST),
    # LAPACK routines on small matrices: PyTensor's compiled code returns NaN where LAPACK reports a failure.
    Cholesky: ("is NaN where the matrix is not positive definite", _NOTHING),
    SolveTriangular: ("is NaN or infinite where the matrix is singular", _NOTHING),
    CholeskySolve: ("is NaN or infinite where the matrix is singular", _NOTHING),
    Solve: ("is NaN or infinite where the matrix is singular", _NOTHING),
    # Identities that change or stop a derivative.
    DisconnectedGrad: ("is the identity", _NOTHING),
    ZeroGrad: ("is the identity", _NOTHING),
    GradClip: ("is the identity", _NOTHING),
}


def refuse_unknown_operations(outputs: Sequence[Variable], rows: Iterable[Variable], *, derived: bool = False) -> None:
    """Refuse a graph of one row in which an operation that is not listed sees `rows`, the inputs of the row.

    Matrix products may see them in derivatives only (`derived`), where they multiply matrices of one row. In the
    log-likelihood products are rewritten in a fixed order; a remaining product would be computed for all rows together.
    """
    carrying = set(rows)
    for node in toposort(list(outputs)):
        carried = [variable in carrying for variable in node.inputs]
        if not any(carried) or isinstance(node.op, Shape | Shape_i):
            continue
        objection = _objection(node.op, node, carried, carrying, derived=derived)
        if objection is not None:
            raise UnsupportedModel(
                f"{objection}. Only operations that are known to act on each row by itself, and never to fail on what "
                "a row holds, may see rows. Compute this before the model from the row's own values, or write the "
                "likelihood with arithmetic, indexing and PyMC's distributions."
            )
        carrying.update(node.outputs)


def allows_scalar(op: Any) -> bool:
    """Return whether a scalar operation is on the list, whatever its arguments."""
    return type(op) in SCALARS


def _objection(op: Any, node: Apply, carried: Sequence[bool], carrying: set[Variable], *, derived: bool) -> str | None:
    """Return the reason to refuse an operation that sees row values; None if it is allowed."""
    if isinstance(op, Blockwise):
        return _objection(op.core_op, node, carried, carrying, derived=derived)
    if isinstance(op, Elemwise):
        return _objection_to_scalar(op.scalar_op, node, carried)
    if isinstance(op, CAReduce):
        return None if type(op.scalar_op) in _REDUCTIONS else _unknown(op.scalar_op)
    if isinstance(op, AdvancedSubtensor | AdvancedIncSubtensor):
        first = 1 if isinstance(op, AdvancedSubtensor) else 2
        for index, sees_row in zip(node.inputs[first:], carried[first:], strict=True):
            if sees_row and not _is_held_in_range(index, carrying):
                return (
                    "An array is indexed by what a row holds, and the index is not held in range"
                    if index.type.dtype != "bool"
                    else "Entries are selected by a truth value of the row, so that their number depends on it"
                )
        return None
    if isinstance(op, Dot) and not derived:
        return "A matrix product of several rows is left in the graph of one row"
    if type(op) in _ARRAYS:
        _, free = _ARRAYS[type(op)]
        if any(carried[free]):
            return f"A length, place or axis of the operation {type(op).__name__} depends on what a row holds"
        return None
    if isinstance(op, OpFromGraph):  # it evaluates its inner graph once
        inner = [variable for variable, sees in zip(op.fgraph.inputs, carried, strict=True) if sees]
        refuse_unknown_operations(op.fgraph.outputs, inner, derived=derived)
        return None
    return _unknown(op)


def _unknown(op: Any) -> str:
    return f"The operation {type(op).__name__} is not on the list of operations that may see rows"


def _objection_to_scalar(op: Any, node: Apply, carried: Sequence[bool]) -> str | None:
    """Return the reason to refuse a scalar operation; None if it is allowed."""
    if allows_scalar(op):
        return None
    if isinstance(op, scalars.Composite | ScalarLoop):
        for inner in op.fgraph.toposort():
            if not allows_scalar(inner.op):
                return _unknown(inner.op)
        if isinstance(op, ScalarLoop) and carried[0] and not _chooses_between_constants(node.inputs[0]):
            return "A number of steps depends on what a row holds"
        return None  # a row may end a loop early; the first input is the largest number of steps
    whole = node.outputs[0].type.dtype.startswith(("int", "uint"))
    if isinstance(op, scalars.Pow):
        # In compiled code a whole number to a negative whole power raises.
        if not whole or _is_constant(node.inputs[1], lambda value: value >= 0):
            return None
        return "A whole number is raised to a power that depends on the row: use floats (pt.cast(x, 'float64'))"
    if isinstance(op, scalars.Mod):
        # In compiled code the least whole number modulo -1 ends the process.
        if not whole or _is_constant(node.inputs[1], lambda value: value > 0):
            return None
        return "A remainder of whole numbers is taken by a number that depends on the row"
    return _unknown(op)


def _is_constant(variable: Variable, holds: Callable[[Any], Any]) -> bool:
    """Return whether a variable is a constant, up to added axes, of which every entry satisfies `holds`."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    return isinstance(variable, Constant) and bool(holds(variable.data).all())


def _chooses_between_constants(variable: Variable) -> bool:
    """Return whether a variable is a selection among constants, and so bounded whatever a row holds."""
    if isinstance(variable, Constant):
        return True
    if variable.owner is None:
        return False
    op, inputs = variable.owner.op, variable.owner.inputs
    scalar = op.scalar_op if isinstance(op, Elemwise) else None
    if isinstance(op, DimShuffle) or isinstance(scalar, scalars.Cast):
        return _chooses_between_constants(inputs[0])
    return isinstance(scalar, scalars.Switch) and all(map(_chooses_between_constants, inputs[1:]))


def _is_held_in_range(index: Variable, carrying: set[Variable]) -> bool:
    """Return whether an integer index is clipped to a range that depends on no row, as `one_row` does."""
    if index.type.dtype == "bool":
        return False
    while index.owner is not None and (
        isinstance(index.owner.op, DimShuffle | tensors.Alloc | Reshape)
        or (isinstance(index.owner.op, Elemwise) and isinstance(index.owner.op.scalar_op, scalars.Cast))
    ):
        index = index.owner.inputs[0]
    if index.owner is None or not isinstance(index.owner.op, Elemwise):
        return index not in carrying
    if not isinstance(index.owner.op.scalar_op, scalars.Clip):
        return False
    return all(limit not in carrying for limit in index.owner.inputs[1:])
