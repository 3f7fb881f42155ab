"""Vectorise graphs of one row over many rows: PyTensor's `vectorize_graph`, without its loops over rows."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join, Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.special import LogAddExp, LogSumExp, XLog1PY, XLogY
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.symbolic import FusibleSymbolicOpDerivative


def batched_graphs(outputs: Sequence[Variable], over: Mapping[Variable, Variable]) -> list[Variable]:
    """Return graphs in which the variables of `over` are replaced by variables with additional leading axes.

    PyTensor vectorises most operations. It puts others into a `Blockwise`, which calls a function for each row and
    takes most of the time of mixtures and of ordered, zero-inflated and categorical responses. Here logarithms of sums
    of exponentials, their derivatives, joins and selections among computed values become operations on all rows, with
    the same steps for each row.
    """
    outputs = clone_replace(outputs, _known_lengths(outputs))
    graph = FunctionGraph(outputs=list(vectorize_graph(outputs, over)), clone=False)
    for node in graph.toposort():
        if isinstance(node.op, Blockwise):
            found = _of_all_rows(node)
            if found is not None:
                changed = [(old, new.astype(old.type.dtype)) for old, new in zip(node.outputs, found, strict=True)]
                graph.replace_all(changed, import_missing=True, reason="no loop")
    return list(graph.outputs)


def _known_lengths(outputs: Sequence[Variable]) -> dict[Variable, Variable]:
    """Return the lengths of the parts of arrays that are split, as constants if the types of one row have them."""
    known: dict[Variable, Variable] = {}
    for found in ancestors(outputs):
        if found.owner is not None and isinstance(found.owner.op, Split):
            lengths = [part.type.shape[found.owner.op.axis] for part in found.owner.outputs]
            if None not in lengths:
                known[found.owner.inputs[1]] = pt.constant(np.array(lengths, dtype=np.int64))
    return known


def _of_all_rows(node: Apply) -> Sequence[Variable] | None:
    """Return the outputs of a `Blockwise` without its loop, or None. The first axes of all inputs are batch axes."""
    core, n_axes, inputs = node.op.core_op, node.op.batch_ndim(node), node.inputs
    if isinstance(core, LogSumExp):
        return [LogSumExp(axis=[axis + n_axes for axis in core.axis])(*inputs)]
    if isinstance(core, LogAddExp | XLog1PY | XLogY) and len({each.type.ndim for each in inputs}) == 1:
        return [core(*inputs)]
    if isinstance(core, FusibleSymbolicOpDerivative):
        of_row = [kind() for kind in core.input_types]
        return batched_graphs(inline_ofg_node(core.make_node(*of_row)), dict(zip(of_row, inputs, strict=True)))
    if isinstance(core, Join):
        shape = _batch_shape(inputs, n_axes)
        whole = [pt.alloc(each, *shape, *(each.shape[axis] for axis in range(n_axes, each.ndim))) for each in inputs]
        return [pt.join(core.axis + n_axes, *whole)]
    if isinstance(core, AdvancedSubtensor):
        return _chosen(core, inputs[0], inputs[1:], n_axes)
    return None


def _batch_shape(inputs: Sequence[Variable], n_axes: int) -> list[Variable | int]:
    """Return the lengths of the batch axes: an input may have 1 in place of a length."""
    lengths: list[Variable | int] = []
    for axis in range(n_axes):
        long = [each for each in inputs if not each.type.broadcastable[axis]]
        lengths.append(long[0].shape[axis] if long else 1)
    return lengths


def _chosen(
    core: AdvancedSubtensor, values: Variable, indices: Sequence[Variable], n_axes: int
) -> Sequence[Variable] | None:
    """Return the entries that integer arrays select, if these index the first axes of a row's array; else None."""
    whole_numbers = all(each.type.dtype.startswith(("int", "uint")) for each in indices)
    if core.idx_list != tuple(range(len(indices))) or not whole_numbers:
        return None
    if len({each.type.ndim for each in indices}) != 1:
        return None
    n_of_index = indices[0].type.ndim - n_axes
    of_batch = []
    for axis in range(n_axes):
        length = 1 if values.type.broadcastable[axis] else values.shape[axis]
        of_batch.append(pt.arange(length)[(slice(None), *[None] * (n_axes - 1 - axis + n_of_index))])
    return [values[(*of_batch, *indices)]]
