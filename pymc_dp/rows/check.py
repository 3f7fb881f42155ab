"""Check that the sum over rows is the model's likelihood, on synthetic data, so that a refusal tells nothing.

The check compares values and gradients at several random points. Data of the model's own shapes and types stand
in for the real ones: a refusal depends on the model alone.

Long tables are checked with fewer rows first. That is enough to accept: what mixes rows mixes few of them too, since
the one-row graph is compared with the model's own graph and not with its number of rows. It is not enough to refuse,
as a model may have its number of rows written into it, so then the whole length decides.
"""

import math
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
from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.split import RowLeaf, RowSplit
from pymc_dp.rows.engine import Contributions, RowEngine
from pymc_dp.rows.parts import GATHER, PRODUCT, Part
from pymc_dp.rows.table import RowTable

_POINTS = 3
_TOLERANCE = 1e-6
#: Numbers in the tables of the first check.
_FEW_NUMBERS = 2**16
_FEWEST_ROWS = 1000

_MIXES_ROWS = (
    "The likelihood is not a sum over rows: computed row by row it is another function of the parameters. Some "
    "statistic over rows is taken inside the model (a mean, a cumulative sum, a lag, a normalisation, the number "
    "of rows?). Compute it before the model from public information, or leave it out."
)


def check_factorisation(model: pm.Model, row_split: RowSplit, engine: RowEngine, parameters: ParameterVector) -> None:
    """Refuse a model whose likelihood is not the sum of its one-row likelihoods.

    Raises
    ------
    UnsupportedModel
        If the sums differ, or no synthetic data gives a finite likelihood to compare.
    """
    width = sum(math.prod(leaf.row_shape()) for leaf in row_split.leaves)
    few = max(_FEWEST_ROWS, _FEW_NUMBERS // max(1, width))
    if few < row_split.n_rows and _factorises_with(few, model, row_split, engine, parameters):
        return
    whole_model = _likelihood_of_any_data(model, row_split)
    generator = np.random.default_rng(0)
    compared, table = 0, []
    # Every kind of table that gives a finite likelihood counts: what mixes rows may show in one of them only.
    for table in _synthetic_data(row_split.leaves, generator, row_split.n_rows):
        compared += _compare(whole_model, row_split, engine, parameters, table, generator)
    if not compared:
        drawn = _drawn_from_the_prior(model, row_split.leaves, table)
        compared = 0 if drawn is None else _compare(whole_model, row_split, engine, parameters, drawn, generator)
    if compared:
        return
    raise UnsupportedModel(
        "No synthetic data gave the likelihood a finite value, so it cannot be checked that it is a sum over rows. "
        "Hard limits on the data, or parameters that are hardly ever valid, are the usual reason."
    )


def _factorises_with(
    n_rows: int, model: pm.Model, row_split: RowSplit, engine: RowEngine, parameters: ParameterVector
) -> bool:
    """Return whether the likelihood of tables of `n_rows` rows is known to be a sum over rows."""
    generator = np.random.default_rng(0)
    try:
        whole_model = _likelihood_of_any_data(model, row_split, n_rows)
        compared = 0
        for table in _synthetic_data(row_split.leaves, generator, n_rows):
            compared += _compare(whole_model, row_split, engine, parameters, table, generator)
    except Exception:  # whatever a graph made for another number of rows does
        return False
    return compared > 0


def _compare(
    whole_model: Callable[..., Sequence[np.ndarray]],
    row_split: RowSplit,
    engine: RowEngine,
    parameters: ParameterVector,
    table: Sequence[np.ndarray],
    generator: np.random.Generator,
) -> int:
    """Compare values and gradients at some points; return at how many they could be compared."""
    rows = [
        np.ascontiguousarray(np.moveaxis(values, leaf.axis, 0))
        for leaf, values in zip(row_split.leaves, table, strict=True)
    ]
    (chunk,) = RowTable(rows).chunks(len(rows[0]))
    compared = 0
    for _ in range(_POINTS):
        values = parameters.split(generator.normal(scale=0.5, size=parameters.size))
        try:
            expected = whole_model(*values, *table)
        except (IndexError, ValueError, np.linalg.LinAlgError):
            continue  # this synthetic table is impossible
        if not all(np.isfinite(part).all() for part in expected):
            continue
        found = engine.gradient(engine.at(values), chunk)
        sums = [found.log_likelihoods.sum(), *[_summed(part, found) for part in engine.parts]]
        sizes = [np.abs(found.log_likelihoods).sum(), *[_summed(part, found, np.abs) for part in engine.parts]]
        for one, other, size in zip(expected, sums, sizes, strict=True):
            difference = np.abs(np.ravel(one) - np.ravel(other))
            if not (np.isfinite(difference).all() and np.all(difference <= _TOLERANCE * (1.0 + np.ravel(size)))):
                raise UnsupportedModel(_MIXES_ROWS)
        compared += 1
    return compared


def _summed(
    part: Part, found: Contributions, of: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> np.ndarray | float:
    """Return the sum over rows of one value variable's gradients, or of their sizes."""
    if part.k == 0:
        return 0.0
    slopes = of(found.slopes[part.first : part.first + part.k])
    if part.kind == PRODUCT:
        return np.asarray((slopes @ of(found.vectors[part.factor])).T)
    if part.kind == GATHER:
        total = np.zeros((part.size, part.k))
        np.add.at(total, found.indices[part.factor], slopes.T)
        return total
    return np.asarray(slopes.sum(axis=1))


def _likelihood_of_any_data(
    model: pm.Model, row_split: RowSplit, n_rows: int | None = None
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
    gradients = pt.grad(logp, model.value_vars, disconnected_inputs="ignore")
    function: Callable[..., Sequence[np.ndarray]] = pymc_compile(
        [*model.value_vars, *fresh], [logp, *gradients], mode=INTERPRETED, on_unused_input="ignore"
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


def _synthetic_data(
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


def _drawn_from_the_prior(
    model: pm.Model, leaves: Sequence[RowLeaf], table: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """Return `table` with its observed variables drawn from the model itself, if they can be drawn."""
    observed = {model.rvs_to_values[rv]: rv for rv in model.observed_RVs}
    covariates: dict[Variable, Variable] = {
        leaf.source: pt.constant(values, dtype=leaf.variable.type.dtype)
        for leaf, values in zip(leaves, table, strict=True)
        if leaf.source not in observed
    }
    drawn = []
    for leaf, values in zip(leaves, table, strict=True):
        if leaf.source not in observed:
            drawn.append(values)
            continue
        (rv,) = clone_replace([observed[leaf.source]], covariates, rebuild_strict=False)
        try:
            draw = pm.draw(rv, random_seed=0, mode=INTERPRETED)
        except (NotImplementedError, ValueError, np.linalg.LinAlgError):  # synthetic tables need not suit it
            return None
        drawn.append(np.asarray(draw, dtype=leaf.variable.type.dtype))
    return drawn
