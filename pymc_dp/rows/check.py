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
from pymc_dp.rows.graphs import Block, RowFunctions
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
    for data in _made_up_data(model, row_split.leaves, generator):
        chunk = [
            np.ascontiguousarray(np.moveaxis(values, leaf.axis, 0))
            for leaf, values in zip(row_split.leaves, data, strict=True)
        ]
        for _ in range(_POINTS):
            values = parameters.split(generator.normal(scale=0.5, size=parameters.size))
            expected = whole_model(*values, *data)
            if not all(np.isfinite(part).all() for part in expected):
                continue
            logp, *slopes = functions.with_slopes(values, chunk)
            factors = functions.row_factors(values, chunk)
            found = [logp.sum(), *map(_summed, functions.blocks, slopes, factors, parameters.slices)]
            sizes = [np.abs(logp).sum()]
            for block, slope, factor, entries in zip(functions.blocks, slopes, factors, parameters.slices, strict=True):
                sizes.append(_summed(block, np.abs(slope), None if factor is None else np.abs(factor), entries))
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


def _summed(block: Block, slope: np.ndarray, factor: np.ndarray | None, entries: slice) -> np.ndarray:
    """Return the sum over rows of one value variable's gradients."""
    if factor is None:
        return np.asarray(slope.sum(axis=0))
    if block.kind == "product":
        return np.asarray(factor.T @ slope)
    total = np.zeros((entries.stop - entries.start) // slope.shape[1] * slope.shape[1])
    np.add.at(total.reshape(-1, slope.shape[1]), factor, slope)
    return total


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


def _made_up_data(
    model: pm.Model, leaves: Sequence[RowLeaf], generator: np.random.Generator
) -> Iterator[list[np.ndarray]]:
    """Yield tables in which different likelihoods are finite: fractions, any real numbers, compositions, draws."""
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
    yield _drawn_from_the_prior(model, leaves, table)


def _drawn_from_the_prior(model: pm.Model, leaves: Sequence[RowLeaf], table: list[np.ndarray]) -> list[np.ndarray]:
    """Return `table` with its observed variables drawn from the model itself, given the made-up covariates."""
    observed = {model.rvs_to_values[rv]: rv for rv in model.observed_RVs}
    covariates: dict[Variable, Variable] = {
        leaf.variable: pt.constant(values, dtype=leaf.variable.type.dtype)
        for leaf, values in zip(leaves, table, strict=True)
        if leaf.variable not in observed
    }
    drawn = []
    for leaf, values in zip(leaves, table, strict=True):
        if leaf.variable not in observed:
            drawn.append(values)
            continue
        (rv,) = clone_replace([observed[leaf.variable]], covariates, rebuild_strict=False)
        drawn.append(np.asarray(pm.draw(rv, random_seed=0, mode="FAST_COMPILE"), dtype=leaf.variable.type.dtype))
    return drawn
