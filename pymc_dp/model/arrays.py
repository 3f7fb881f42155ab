"""The arrays in a model's graphs: those declared public, and those that PyMC computed from rows.

``tools/looked_at.py`` lists for every public name of PyMC how it treats rows, and a test compares that list with the
installed packages.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant

from pymc_dp.exceptions import InvalidArgument

#: Tags of a variable (the array that was declared public) and of an operation. Copies of graphs keep them.
_PUBLIC, _BUILDER, _NARROWED = "pymc_dp_public", "pymc_dp_builder", "pymc_dp_narrowed"
#: Methods that compute a statistic of their locations while the model is built, and put it into the graph.
EVALUATING: Mapping[str, tuple[str, ...]] = {
    "HSGP": ("prior_linearized", "_build_conditional"),
    "HSGPPeriodic": ("prior_linearized", "_build_conditional"),
}


def undimmed(variable: Variable) -> Variable:
    """Return a variable without its changes of axes and names."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle | ViewOp):
        variable = variable.owner.inputs[0]
    return variable


def public(array: Any) -> TensorConstant:
    """Declare that an array in a model is public: it was not computed from the protected table.

    Arrays in a likelihood that are neither tables of rows nor of a parameter's shape are refused, for they could be a
    part of the table. Nodes of a quadrature, knots, a map from districts to regions or the table of an official
    statistic are declared, and then they pass. A declared array is not protected: the result may show it.

    Parameters
    ----------
    array : array_like
        Numbers. It is copied.

    Returns
    -------
    TensorConstant
        The constant to use in the model in place of the array, also as the value of `pm.Data`.

    Raises
    ------
    InvalidArgument
        If `array` is not an array of numbers.

    Examples
    --------
    >>> nodes, weights = map(public, np.polynomial.hermite_e.hermegauss(20))
    >>> effects = pm.HalfNormal("scale") * nodes  # doctest: +SKIP
    """
    values = np.array(array)
    if values.dtype.kind not in "buif":
        raise InvalidArgument("dp.public takes an array of numbers.")
    constant = pt.constant(values)
    declare_public(constant)
    return constant


def declare_public(variable: Variable, declared: bool = True) -> None:
    """Mark the array that a constant or data variable now has as public, and no later one; or remove the mark."""
    setattr(variable.tag, _PUBLIC, leaf_value(variable) if declared else None)


def is_public(variable: Any) -> bool:
    """Return whether a variable was declared public."""
    declared = getattr(variable.tag, _PUBLIC, None) if isinstance(variable, Variable) else None
    if declared is None or not is_leaf(variable):
        return False
    # Copies of models hold copies of their data.
    return leaf_value(variable) is declared or np.array_equal(leaf_value(variable), declared)


def note_narrowed(variable: Variable, given: Any) -> None:
    """Mark a data variable whose whole numbers differ from the given ones: PyMC keeps 32 bits, or 16 of them."""
    kept, given = leaf_value(variable), np.asarray(None if isinstance(given, Variable) else given)
    differs = given.dtype.kind == "i" and given.dtype.itemsize > kept.dtype.itemsize and not np.array_equal(kept, given)
    setattr(variable.tag, _NARROWED, differs)


def is_narrowed(variable: Variable) -> bool:
    """Return whether whole numbers of a data variable differ from those that it was given."""
    return bool(getattr(variable.tag, _NARROWED, False))


def marking(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of `EVALUATING` that marks its results, unless its locations were declared public."""

    @functools.wraps(original)
    def marked(self: Any, locations: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, locations, *args, **kwargs)
        inputs = ancestors([locations]) if isinstance(locations, Variable) else []
        leaves = [each for each in inputs if each.owner is None]
        self._evaluated = getattr(self, "_evaluated", False) or not (leaves and all(map(is_public, leaves)))
        if self._evaluated:
            _mark(result, name)
        return result

    return marked


def _mark(result: Any, name: str) -> None:
    if isinstance(result, tuple | list):
        for each in result:
            _mark(each, name)
    elif isinstance(result, Variable) and result.owner is not None:
        setattr(result.owner.tag, _BUILDER, name)


def builder_of(variable: Variable) -> str | None:
    """Return the class of `EVALUATING` that computed a statistic of its locations for this variable, if any."""
    return None if variable.owner is None else getattr(variable.owner.tag, _BUILDER, None)


def leaf_value(leaf: Variable) -> np.ndarray:
    """Return the array behind a constant or shared variable, without copying. Confidential if it has rows."""
    if isinstance(leaf, SharedVariable):
        return np.asarray(leaf.get_value(borrow=True))
    return np.asarray(leaf.data)


def leaves_of(outputs: Iterable[Variable], *, inner: bool = True) -> list[Variable]:
    """Return the leaves that `outputs` depend on, those of inner graphs included if `inner`: see `is_leaf`."""
    return list(dict.fromkeys(filter(is_leaf, everything_in(outputs) if inner else ancestors(list(outputs)))))


def everything_in(outputs: Iterable[Variable]) -> Iterator[Variable]:
    """Yield all variables of graphs and of the graphs inside their operations."""
    todo = [list(outputs)]
    while todo:
        for variable in ancestors(todo.pop()):
            yield variable
            todo += [list(op.fgraph.outputs) for op in operations_of(variable) if isinstance(op, HasInnerGraph)]


def operations_of(variable: Variable) -> Iterator[Any]:
    """Yield the operation that computes a variable, and the core and scalar operations that it applies."""
    op = None if variable.owner is None else variable.owner.op
    while op is not None:
        yield op
        op = getattr(op, "core_op", None) or getattr(op, "scalar_op", None)


def arrays_of(
    outputs: Iterable[Variable], blockers: Iterable[Variable] = (), rows: Set[Variable] = frozenset()
) -> Iterator[tuple[Variable, tuple[int, ...]]]:
    """Yield the arrays of two numbers or more that graphs compute with, and their shapes; `blockers` end the search.

    They are the constants and shared variables that were not declared public, those of graphs inside operations
    included, and vectors joined from such leaves and from single numbers. Left out are inputs that only give a shape,
    and constant indices that select columns of a table in `rows`, the inputs that hold rows.
    """
    blocked, todo = set(blockers), list(outputs)
    seen = set(todo)
    while todo:
        variable = todo.pop()
        if variable in blocked:
            continue
        if is_leaf(variable):
            shape = leaf_value(variable).shape
            if np.prod(shape) > 1 and not is_public(variable):
                yield variable, shape
            continue
        if variable.owner is None:
            continue
        if isinstance(variable.owner.op, MakeVector | Join):
            inputs = [each for each in ancestors([variable]) if each.owner is None]
            of_numbers = all(map(is_leaf, inputs)) and rows.isdisjoint(inputs)
            if of_numbers and not all(map(is_public, inputs)):
                yield variable, tuple(length for length in variable.type.shape if length is not None)
        used = list(_used(variable.owner, rows))
        todo += [each for each in used if each not in seen]
        seen.update(used)


def _used(node: Apply, rows: Set[Variable]) -> Iterator[Variable]:
    """Yield the inputs that an operation computes with, and its inner graph; inputs that give a shape are left out."""
    op, inputs = node.op, list(node.inputs)
    if isinstance(op, Shape | Shape_i):
        return
    if isinstance(op, Reshape):
        inputs = inputs[:1]
    elif isinstance(op, AdvancedSubtensor) and not rows.isdisjoint(ancestors(inputs[:1])):
        inputs = [each for each in inputs if not (isinstance(each, Constant) and each.type.dtype.startswith("int"))]
    elif isinstance(op, RandomVariable) or getattr(op, "extended_signature", None) is not None:
        size = op.size_param(node)
        inputs = [each for each in inputs if each is not size]
    yield from inputs
    for each in operations_of(node.outputs[0]):
        if isinstance(each, HasInnerGraph):
            yield from each.fgraph.outputs


def is_leaf(variable: Variable) -> bool:
    """Return whether a variable is a leaf with a value: a tensor constant or a shared tensor."""
    return isinstance(variable, Constant | SharedVariable) and isinstance(variable.type, TensorType)
