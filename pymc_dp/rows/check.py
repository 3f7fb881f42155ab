"""Check that the sum over rows is the model's likelihood, on made-up data, so that a refusal tells nothing.

The check compares values and gradients at several random points. Data of the model's own shapes and types stand
in for the real ones: a refusal depends on the model alone.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.parameters import ParameterVector
from pymc_dp.rows.graphs import RowFunctions
from pymc_dp.rows.split import RowLeaf, RowSplit, leaf_value

_POINTS = 3
_TOLERANCE = 1e-6

_MIXES_ROWS = (
    "The likelihood is not a sum over rows: computed row by row it is another function of the parameters. Some "
    "statistic over rows is taken inside the model (a mean, a cumulative sum, a lag, a normalisation, the number "
    "of rows?). Compute it before the model from public information, or leave it out."
)


def check_factorisation(
    model: pm.Model, row_split: RowSplit, functions: RowFunctions, parameters: ParameterVector
) -> None:
    """Refuse a model whose likelihood is not the sum of its one-row likelihoods.

    Raises
    ------
    UnsupportedModel
        If the sums differ, or no made-up data gives a finite likelihood to compare.
    """
    whole_model = _likelihood_of_any_data(model, row_split)
    generator = np.random.default_rng(0)
    compared = 0
    for data in _made_up_data(row_split.leaves, generator):
        chunk = [
            np.ascontiguousarray(np.moveaxis(values, leaf.axis, 0))
            for leaf, values in zip(row_split.leaves, data, strict=True)
        ]
        for _ in range(_POINTS):
            values = parameters.split(generator.normal(scale=0.5, size=parameters.size))
            expected = whole_model(*values, *data)
            if not all(np.isfinite(part).all() for part in expected):
                continue
            logp, *blocks = functions.with_gradient(values, chunk)
            found = [logp.sum(), *[block.sum(axis=0) for block in blocks]]
            sizes = [np.abs(logp).sum(), *[np.abs(block).sum(axis=0) for block in blocks]]
            for one, other, size in zip(expected, found, sizes, strict=True):
                difference = np.abs(np.ravel(one) - np.ravel(other))
                if not (np.isfinite(difference).all() and np.all(difference <= _TOLERANCE * (1.0 + np.ravel(size)))):
                    raise UnsupportedModel(_MIXES_ROWS)
            compared += 1
        if compared:
            return
    raise UnsupportedModel(
        "No made-up data gave the likelihood a finite value, so it cannot be checked that it is a sum over rows. "
        "Hard limits on the data, or parameters that are hardly ever valid, are the usual reason."
    )


def _likelihood_of_any_data(model: pm.Model, row_split: RowSplit) -> Callable[..., Sequence[np.ndarray]]:
    """Return the model's own log-likelihood and gradient as a function of parameters and data."""
    fresh = [leaf.variable.type() for leaf in row_split.leaves]
    replace: dict[Variable, Variable] = {leaf.variable: new for leaf, new in zip(row_split.leaves, fresh, strict=True)}
    (logp,) = clone_replace([row_split.log_likelihood], replace)
    gradients = pt.grad(logp, model.value_vars, disconnected_inputs="ignore")
    # Evaluated a few times only: interpreting the graph is quicker than compiling it.
    mode = Mode(linker="py", optimizer="fast_compile")
    function: Callable[..., Sequence[np.ndarray]] = pymc_compile(
        [*model.value_vars, *fresh], [logp, *gradients], mode=mode, on_unused_input="ignore"
    )
    return function


def _made_up_data(leaves: Sequence[RowLeaf], generator: np.random.Generator) -> Iterator[list[np.ndarray]]:
    """Yield tables in which different likelihoods are finite: fractions, any real numbers, compositions."""
    shapes = [(leaf_value(leaf.variable).shape, leaf.variable.type.dtype, leaf.axis) for leaf in leaves]
    for floats in ("fractions", "reals", "compositions"):
        table = []
        for shape, dtype, axis in shapes:
            values: np.ndarray
            if dtype.startswith(("int", "uint", "bool")):
                values = generator.integers(0, 2, size=shape)
            elif floats == "reals":
                values = generator.normal(size=shape)
            else:
                values = generator.uniform(0.05, 0.95, size=shape)
                if floats == "compositions" and len(shape) > 1:
                    values = values / values.sum(axis=-1 if axis != len(shape) - 1 else 0, keepdims=True)
            table.append(np.asarray(values, dtype=dtype))
        yield table
