"""Synthetic rows, drawn from a model without its data or made from shapes and types, and the likelihood on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.initial_point import make_initial_point_fns_per_chain
from pymc.model.fgraph import clone_model
from pymc.pytensorf import compile as pymc_compile
from pytensor.compile.builders import SymbolicOp
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Alloc

from pymc_dp.compiling import INTERPRETED
from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.axes import RowAxes
from pymc_dp.model.parameters import FloatArray, ParameterVector
from pymc_dp.model.split import RowLeaf, RowSplit
from pymc_dp.model.starts import initial_values

_PRIOR_DRAWS = 50


class RowSimulator:
    """Draws rows from a model without covariates. The model's distributions are used, never its data.

    Tables of rows, of which only shapes matter, are replaced by one row of zeros: drawn rows depend neither on rows nor
    on their number. `observed` names the observed variables; `prior_draws` are draws of the prior.
    """

    def __init__(self, rows: RowAxes, parameters: ParameterVector, observed: Sequence[str], n_drawn: int) -> None:
        model, of_rows = rows.model, [rows.model[name] for name in observed]
        if any(isinstance(rv.owner.op, CustomDistRV) for rv in of_rows):
            raise UnsupportedModel("Rows are drawn by a function of yours, which may know the data.")
        self._parameters, self._axes = parameters, [rows.observed[rv] for rv in of_rows]
        stand_ins = {rv: rv.type() for rv in model.free_RVs}
        drawn = [rows.of_so_many_rows(rv, n_drawn) for rv in of_rows]
        draws = clone_replace(drawn, rows.one_row() | stand_ins, rebuild_strict=False)
        self._draw = pymc_compile(list(stand_ins.values()), draws, random_seed=0, on_unused_input="ignore")
        self._constrained = model.compile_fn(
            model.replace_rvs_by_values(model.free_RVs), inputs=model.value_vars, point_fn=False
        )
        starts = make_initial_point_fns_per_chain(
            model=model, overrides=initial_values(model), jitter_rvs=set(), chains=1
        )
        self.prior_draws: list[FloatArray] = [parameters.to_theta(starts[0](seed)) for seed in range(_PRIOR_DRAWS)]

    def rows_at(self, theta: FloatArray) -> list[np.ndarray]:
        """Return rows drawn at `theta`, one table for each observed variable, the row axis first."""
        drawn = self._draw(*self._constrained(*self._parameters.split(theta)))
        return [np.ascontiguousarray(np.moveaxis(rows, axis, 0)) for rows, axis in zip(drawn, self._axes, strict=True)]


class ResponseSimulator:
    """Draws responses of rows with given covariates. The model's distributions are used, never its data.

    The model has one observed variable; `covariates` are its other arrays with an entry for each row.
    """

    def __init__(self, model: pm.Model, covariates: Sequence[Variable], seed: int) -> None:
        self._names = [str(rv.name) for rv in model.free_RVs]
        values, rows = [rv.type() for rv in model.free_RVs], [each.type() for each in covariates]
        stand_ins = dict(zip([*model.free_RVs, *covariates], [*values, *rows], strict=True))
        responses = clone_replace([model.observed_RVs[0]], stand_ins)
        self._draw = pymc_compile([*values, *rows], responses, random_seed=seed, on_unused_input="ignore")
        self._types = [each.type.dtype for each in (*values, *rows)]

    def at(self, values: Mapping[str, np.ndarray], rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return a response for each row, given values of the free variables by name."""
        given = [*(values[name] for name in self._names), *rows]
        found = self._draw(*(np.asarray(each, dtype=dtype) for each, dtype in zip(given, self._types, strict=True)))
        return np.asarray(found[0])


def on_drawn_rows(model: pm.Model, random_seed: int | None) -> pm.Model:
    """Return a copy of the model whose rows are simulated at a draw of its prior."""
    drawn = pm.draw(model.observed_RVs, random_seed=random_seed)
    twin = clone_model(model)
    for rv, rows in zip(twin.observed_RVs, drawn, strict=True):
        old = twin.rvs_to_values[rv]
        value = pt.constant(np.asarray(rows, dtype=old.type.dtype), name=rv.name)
        twin.rvs_to_values[rv] = value
        del twin.values_to_rvs[old]
        twin.values_to_rvs[value] = rv
    return twin


def likelihood_of_any_rows(
    row_split: RowSplit, value_variables: Sequence[Variable], n_rows: int | None = None
) -> Callable[..., Sequence[np.ndarray]]:
    """Return the model's own log-likelihood and gradient as a function of parameters and data (of `n_rows` rows)."""
    variables = [leaf.variable for leaf in row_split.leaves]
    if n_rows is None:
        fresh = [variable.type() for variable in variables]
        (logp,) = clone_replace([row_split.log_likelihood], dict(zip(variables, fresh, strict=True)))
    else:
        fresh = []
        for leaf in row_split.leaves:
            shape = list(leaf.variable.type.shape)
            shape[leaf.axis] = n_rows
            fresh.append(pt.tensor(dtype=leaf.variable.type.dtype, shape=tuple(shape)))
        lengths = {length: pt.constant(n_rows, dtype=length.type.dtype) for length in row_split.lengths}
        replace = dict(zip(variables, fresh, strict=True)) | lengths
        logp = _resized(row_split.log_likelihood, replace, row_split.n_rows, n_rows)
    gradients = pt.grad(logp, value_variables, disconnected_inputs="ignore")
    function: Callable[..., Sequence[np.ndarray]] = pymc_compile(
        [*value_variables, *fresh], [logp, *gradients], mode=INTERPRETED, on_unused_input="ignore"
    )
    return function


def _resized(output: Variable, replace: dict[Variable, Variable], old: int, new: int) -> Variable:
    """Return `output` with replacements of another length. Arrays filled to the number of rows get the new length."""
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
    """Yield tables on which different likelihoods are finite: fractions, any real numbers, compositions."""
    # Wide numbers detect normalisations that act beyond 1 only; indices of zero are in the range of any group.
    for floats, largest in (("fractions", 1), ("reals", 1), ("wide", 9), ("compositions", 1), ("fractions", 0)):
        table = []
        for leaf in leaves:
            dtype, shape = leaf.variable.type.dtype, list(leaf.row_shape())
            shape.insert(leaf.axis, n_rows)
            values: np.ndarray
            if dtype.startswith(("int", "uint", "bool")):
                values = generator.integers(0, largest + 1, size=shape)
            elif floats in ("reals", "wide"):
                values = generator.normal(size=shape) * (3.0 if floats == "wide" else 1.0)
            else:
                values = generator.uniform(0.05, 0.95, size=shape)
                if floats == "compositions" and len(shape) > 1:
                    values = values / values.sum(axis=-1 if leaf.axis != len(shape) - 1 else 0, keepdims=True)
            table.append(np.asarray(values, dtype=dtype))
        yield table


def drawn_from_the_prior(leaves: Sequence[RowLeaf], table: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Return `table` with observed variables drawn from the model given its covariates; None if drawing fails."""
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
        except (NotImplementedError, ValueError, np.linalg.LinAlgError):  # synthetic covariates may be invalid
            return None
        drawn.append(np.asarray(draw, dtype=leaf.variable.type.dtype))
    return drawn
