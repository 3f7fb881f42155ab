"""A model's own likelihood of any rows, and rows to try it on: of the model's shapes and types, and nobody's."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pytensor.compile.builders import SymbolicOp
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Alloc

from pymc_dp.compiling import INTERPRETED
from pymc_dp.model.split import RowLeaf, RowSplit


def likelihood_of_any_rows(
    row_split: RowSplit, value_variables: Sequence[Variable], n_rows: int | None = None
) -> Callable[..., Sequence[np.ndarray]]:
    """Return the model's own log-likelihood and gradient as a function of parameters and data of so many rows."""
    fresh = [leaf.variable.type() for leaf in row_split.leaves]
    if n_rows is not None:
        shapes = [
            tuple(n_rows if axis == leaf.axis else length for axis, length in enumerate(leaf.variable.type.shape))
            for leaf in row_split.leaves
        ]
        fresh = [pt.tensor(dtype=new.type.dtype, shape=shape) for new, shape in zip(fresh, shapes, strict=True)]
    replace: dict[Variable, Variable] = {leaf.variable: new for leaf, new in zip(row_split.leaves, fresh, strict=True)}
    if n_rows is not None:
        replace |= {length: pt.constant(n_rows, dtype=length.type.dtype) for length in row_split.lengths}
    if n_rows is None:
        (logp,) = clone_replace([row_split.log_likelihood], replace)
    else:
        logp = _resized(row_split.log_likelihood, replace, row_split.n_rows, n_rows)
    gradients = pt.grad(logp, value_variables, disconnected_inputs="ignore")
    function: Callable[..., Sequence[np.ndarray]] = pymc_compile(
        [*value_variables, *fresh], [logp, *gradients], mode=INTERPRETED, on_unused_input="ignore"
    )
    return function


def _resized(output: Variable, replace: dict[Variable, Variable], old: int, new: int) -> Variable:
    """Return `output` with replacements of another length; what is filled to the number of rows is too."""
    found = dict(replace)
    for node in toposort([output]):
        inputs = [found.get(variable, variable) for variable in node.inputs]
        if isinstance(node.op, Alloc):
            value, *shape = inputs
            static = node.outputs[0].type.shape
            shape = [pt.constant(new) if length == old else entry for length, entry in zip(static, shape, strict=True)]
            outputs = [pt.alloc(value, *shape)]
        elif all(one is other for one, other in zip(inputs, node.inputs, strict=True)):
            continue
        elif isinstance(node.op, SymbolicOp):
            outputs = node.op(*inputs, return_list=True)
        else:
            outputs = node.op.make_node(*inputs).outputs
        found |= dict(zip(node.outputs, outputs, strict=True))
    return found.get(output, output)


def synthetic_rows(
    leaves: Sequence[RowLeaf], generator: np.random.Generator, n_rows: int
) -> Iterator[list[np.ndarray]]:
    """Yield tables in which different likelihoods are finite: fractions, any real numbers, compositions."""
    shapes = [
        ((*leaf.row_shape()[: leaf.axis], n_rows, *leaf.row_shape()[leaf.axis :]), leaf.variable.type.dtype, leaf.axis)
        for leaf in leaves
    ]
    # Wide numbers find normalisations that act beyond 1 only; indices of zero are in range of any group.
    for floats, largest in (("fractions", 1), ("reals", 1), ("wide", 9), ("compositions", 1), ("fractions", 0)):
        table = []
        for shape, dtype, axis in shapes:
            values: np.ndarray
            if dtype.startswith(("int", "uint", "bool")):
                values = generator.integers(0, largest + 1, size=shape)
            elif floats in ("reals", "wide"):
                values = generator.normal(size=shape) * (3.0 if floats == "wide" else 1.0)
            else:
                values = generator.uniform(0.05, 0.95, size=shape)
                if floats == "compositions" and len(shape) > 1:
                    values = values / values.sum(axis=-1 if axis != len(shape) - 1 else 0, keepdims=True)
            table.append(np.asarray(values, dtype=dtype))
        yield table


def drawn_from_the_prior(leaves: Sequence[RowLeaf], table: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Return `table` with its observed variables drawn from the model itself, if they can be drawn."""
    covariates: dict[Variable, Variable] = {
        leaf.source: pt.constant(values, dtype=leaf.variable.type.dtype)
        for leaf, values in zip(leaves, table, strict=True)
        if not leaf.observed
    }
    drawn = []
    for leaf, values in zip(leaves, table, strict=True):
        if not leaf.observed:
            drawn.append(values)
            continue
        (rv,) = clone_replace([leaf.observed[-1]], covariates, rebuild_strict=False)
        try:
            draw = pm.draw(rv, random_seed=0, mode=INTERPRETED)
        except (NotImplementedError, ValueError, np.linalg.LinAlgError):  # synthetic tables need not suit it
            return None
        drawn.append(np.asarray(draw, dtype=leaf.variable.type.dtype))
    return drawn
