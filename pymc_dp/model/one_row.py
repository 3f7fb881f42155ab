"""Rebuild a graph for a table of a single row, operation by operation.

Some operations are replaced on the way, because they would let rows influence each other or fail on what a row holds:
checks of parameters, which decide for all rows at once; matrix products, whose last bits depend on the number of rows;
and indices, which raise or reach into other memory where they are out of range, in reads and in writes alike.

Which operations may see rows at all is said by `pymc_dp.model.allowed`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph, SymbolicOp
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Add, Mul, Sub
from pytensor.tensor.basic import Alloc, ScalarFromTensor
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

_MATRIX = 2


@dataclass(frozen=True, eq=False)
class Link:
    """A place where parameters meet row data linearly: a product ``row @ parameter`` or a gather ``parameter[row]``."""

    output: Variable  # the result in the one-row graph
    parameter: Variable  # the factor or the array that is gathered from
    row: Variable  # the row's vector, or its index, both with a row axis of length one
    gathers: bool  # whether it is a gather


class OneRow:
    """Rebuilds graphs for one row.

    `replacements` has one row, with a row axis of length one, for every input that carries the row axis; `lengths` are
    the model's own variables for the number of rows. `links` are the places where parameters meet row data linearly.
    """

    def __init__(
        self, replacements: Mapping[Variable, Variable], n_rows: int, lengths: Sequence[Variable] = ()
    ) -> None:
        one = pt.constant(1, dtype="int64")
        self._new: dict[Variable, Variable] = {**replacements, **dict.fromkeys(lengths, one)}
        self._with_rows: set[Variable] = set(self._new)
        self._n_rows = n_rows
        self._index_checks: list[Variable] = []
        self._met: dict[tuple[Variable, Variable], Variable] = {}
        self.links: list[Link] = []

    def rebuild(self, outputs: Sequence[Variable]) -> list[Variable]:
        """Return `outputs` for one row."""
        for node in toposort(list(outputs)):
            carries = [variable in self._with_rows for variable in node.inputs]
            if not any(carries) and not isinstance(node.op, Alloc):
                continue
            inputs = [self._new.get(variable, variable) for variable in node.inputs]
            for old, rebuilt in zip(node.outputs, self._apply(node, inputs, carries), strict=True):
                self._new[old] = rebuilt
                self._with_rows.add(old)
        return [self._new.get(output, output) for output in outputs]

    def where_indices_hold(self, log_likelihood: Variable) -> Variable:
        """Return the log-likelihood, minus infinity where an index of the row was out of range."""
        return _minus_infinity_unless(self._index_checks, log_likelihood) if self._index_checks else log_likelihood

    def _apply(self, node: Any, inputs: list[Variable], carries: Sequence[bool]) -> list[Variable]:
        """Apply the operation of `node` to one-row inputs."""
        op = node.op
        core = op.core_op if isinstance(op, Blockwise) else op
        if isinstance(op, CheckAndRaise):
            value, *conditions = inputs
            return [_minus_infinity_unless(conditions, value)]
        if isinstance(op, Alloc):
            value, *shape = inputs
            static = node.outputs[0].type.shape
            return [
                pt.alloc(value, *[1 if s == self._n_rows else entry for s, entry in zip(static, shape, strict=True)])
            ]
        if isinstance(core, Dot):
            return [self._product(*inputs) if list(carries) == [True, False] else _product_in_fixed_order(*inputs)]
        if isinstance(op, AdvancedSubtensor):
            source, *indices = inputs
            indices = self._held(op, source, indices)
            if op.idx_list == (0,) and list(carries) == [False, True]:
                return [self._gather_each(op, source, indices[0])]
            return [op.make_node(source, *indices).outputs[0]]
        if isinstance(op, AdvancedIncSubtensor):
            target, new, *indices = inputs
            return [op.make_node(target, new, *self._held(op, target, indices)).outputs[0]]
        if isinstance(op, OpFromGraph) and not isinstance(op, SymbolicOp):
            return list(inline_ofg_node(op.make_node(*inputs)))
        if isinstance(op, SymbolicOp):
            return list(op(*inputs, return_list=True))
        return list(op.make_node(*inputs).outputs)

    def _held(
        self, op: AdvancedSubtensor | AdvancedIncSubtensor, source: Variable, indices: Sequence[Variable]
    ) -> list[Variable]:
        """Return indices held in the range of their axes; one that is out of range is remembered.

        In compiled code an index out of range raises, or reaches into the memory of something else. Every index is
        held, not only those that a row chooses: the row's own tables have a single row here.
        """
        held = list(indices)
        axis = 0
        for place in op.idx_list:
            if isinstance(place, slice):
                axis += 1
                continue
            index = indices[place]
            if index.type.dtype == "bool":
                axis += index.type.ndim
                continue
            length = source.shape[axis]
            self._index_checks.append(pt.all(pt.and_(pt.ge(index, -length), pt.lt(index, length))))
            held[place] = pt.clip(index, -length, length - 1).astype("int64")
            axis += 1
        return held

    def _gather_each(self, op: AdvancedSubtensor, source: Variable, index: Variable) -> Variable:
        """Gather from the inputs of an elementwise operation, as PyMC's own graph may gather from its result.

        So ``(mu + tau * z)[group]`` becomes ``mu + tau * z[group]``, and z meets the row in a single place.
        """
        if source.owner is not None and isinstance(source.owner.op, Elemwise):
            parts = [
                part if part.type.broadcastable[0] else self._gather_each(op, part, index)
                for part in source.owner.inputs
            ]
            return source.owner.op.make_node(*parts).outputs[0]
        key = (source, index)
        if key not in self._met:
            self._met[key] = op.make_node(source, index).outputs[0]
            self.links.append(Link(self._met[key], parameter=source, row=index, gathers=True))
        return self._met[key]

    def _product(self, row: Variable, parameter: Variable) -> Variable:
        """Multiply a row with parameters, term by term where they are a linear expression.

        So ``x @ (mu + tau * z)`` becomes ``mu * sum(x) + tau * (x @ z)``, and z meets the row in a single place.
        """
        if parameter.owner is not None and isinstance(parameter.owner.op, Elemwise):
            operation, parts = parameter.owner.op.scalar_op, parameter.owner.inputs
            constant = [part.type.broadcastable[-_MATRIX if part.type.ndim == _MATRIX else 0] for part in parts]
            if isinstance(operation, Add | Sub):
                total = row.sum(axis=-1, keepdims=parameter.type.ndim == _MATRIX)
                terms = [
                    part * total if c else self._product(row, part) for part, c in zip(parts, constant, strict=True)
                ]
                return parameter.owner.op(*terms)
            if isinstance(operation, Mul) and constant.count(False) == 1:
                terms = [part if c else self._product(row, part) for part, c in zip(parts, constant, strict=True)]
                return parameter.owner.op(*terms)
        key = (row, parameter)
        if key not in self._met:
            self._met[key] = _product_in_fixed_order(row, parameter)
            self.links.append(Link(self._met[key], parameter=parameter, row=row, gathers=False))
        return self._met[key]


def _minus_infinity_unless(conditions: Sequence[Variable], value: Variable) -> Variable:
    checks = []
    for condition in conditions:
        scalar = condition.owner is not None and isinstance(condition.owner.op, ScalarFromTensor)
        checks.append(pt.all(pt.as_tensor_variable(condition.owner.inputs[0] if scalar else condition)))
    holds = checks[0] if len(checks) == 1 else pt.all(pt.stack(checks))
    return pt.switch(holds, value, np.asarray(-np.inf, dtype=value.type.dtype))


def _product_in_fixed_order(left: Variable, right: Variable) -> Variable:
    """Return the matrix product as a sum of products, whose bits do not depend on the neighbouring rows.

    BLAS chooses its order of summation by the number of rows and a row's place among them.
    """
    if left.type.ndim == 1 and right.type.ndim == 1:
        return (left * right).sum()
    if right.type.ndim == 1:
        return (left * right).sum(axis=-1)
    if left.type.ndim == 1:
        return (pt.expand_dims(left, -1) * right).sum(axis=-2)
    if right.type.shape[-1] == 1:
        return (left * pt.swapaxes(right, -1, -2)).sum(axis=-1, keepdims=True)
    return (pt.expand_dims(left, -1) * pt.expand_dims(right, -3)).sum(axis=-2)
