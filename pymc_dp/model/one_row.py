"""Write a model's log-probabilities with its rows as inputs, and rebuild them for a single row, operation by operation.

Some operations are replaced, because with them rows would influence each other, or some values of a row would raise an
error: checks of parameters, which decide for all rows at once; matrix products, whose last bits depend on the number of
rows; and indices, which raise or access other memory if they are out of range, in reads and in writes.

`pymc_dp.model.allowed` lists the operations that may see rows.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.moments import mean as mean_of
from pymc.distributions.moments.means import UndefinedMomentException
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pytensor.compile.builders import OpFromGraph, SymbolicOp
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Add, Mul, Sub
from pytensor.tensor.basic import Alloc, ScalarFromTensor
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.axes import RowAxes
from pymc_dp.model.structure import length_of_last_axis

_MATRIX = 2
#: Relative distance to the next float below, and a number below any response that is not zero.
_NEXT, _SMALLEST = 2.0**-52, 1e-300


@dataclass(frozen=True, eq=False, repr=False)
class Response:
    """The distribution of the observed variable, as elementwise graphs of the model's inputs."""

    name: str  # the observed variable
    discrete: bool  # whether its values are integers
    n_levels: int | None  # the number of possible values, of Bernoulli and categorical variables
    #: Logarithms of P(Y ≤ y) and P(Y < y) at the response y; then the mean, if PyMC has it.
    graphs: list[Variable]

    @property
    def mean(self) -> Variable | None:
        """The mean of the response; None if PyMC does not have it."""
        return self.graphs[2] if len(self.graphs) > 2 else None


class SymbolicModel:
    """The graphs of `model`, with inputs in place of `row_constants`, the constants that have a row axis."""

    def __init__(self, model: pm.Model, row_constants: Iterable[Variable]) -> None:
        stand_ins = {constant: constant.type() for constant in row_constants}
        rvs = model.basic_RVs
        clones = clone_replace([*rvs, *model.potentials], stand_ins)
        new = dict(zip(rvs, clones, strict=False))
        values = {new[rv]: stand_ins.get(value, value) for rv, value in model.rvs_to_values.items()}
        transforms = {new[rv]: transform for rv, transform in model.rvs_to_transforms.items()}
        wanted = [new[rv] for rv in [*model.observed_RVs, *model.free_RVs]]
        logps = None
        with contextlib.suppress(ValueError):  # its message holds shapes
            logps = transformed_conditional_logp(rvs=wanted, rvs_to_values=values, rvs_to_transforms=transforms)
        if logps is None:
            raise UnsupportedModel(
                "Shapes in this model do not fit each other: see that all its tables have as many rows as the observed "
                "variables."
            )
        self._model, self._new, self._values, self._transforms = model, new, values, transforms
        n_observed = len(model.observed_RVs)
        #: The constant that each new input replaces.
        self.sources = {stand_in: constant for constant, stand_in in stand_ins.items()}
        #: Elementwise log-densities of the observed and of the free variables.
        self.log_likelihoods, self.log_priors = list(logps[:n_observed]), list(logps[n_observed:])
        self.potentials = self._of_values(clones[len(rvs) :])
        #: The free variables as functions of the unconstrained parameters.
        self.drawn = model.replace_rvs_by_values(model.free_RVs)

    def _of_values(self, graphs: list[Variable]) -> list[Variable]:
        if not graphs:
            return []
        return list(replace_rvs_by_values(graphs, rvs_to_values=self._values, rvs_to_transforms=self._transforms))

    def terms(self, *, potentials: bool) -> list[tuple[Variable, Variable]]:
        """Return variables of the model with their derived graphs: log-probabilities, and values of free variables."""
        model = self._model
        return [
            *zip(model.observed_RVs, self.log_likelihoods, strict=True),
            *zip(model.free_RVs, self.log_priors, strict=True),
            *zip(model.free_RVs, self.drawn, strict=True),
            *(zip(model.potentials, self.potentials, strict=True) if potentials else ()),
        ]

    def response(self) -> Response:
        """Return the distribution of the only observed variable."""
        if len(self._model.observed_RVs) != 1 or self._model.observed_RVs[0].type.ndim != 1:
            raise UnsupportedModel(
                "A check looks at one number in each row: this model has several observed variables, or one with "
                "several numbers in a row."
            )
        observed = self._model.observed_RVs[0]
        rv, op = self._new[observed], observed.owner.op
        value = self._values[rv]
        discrete = rv.type.dtype.startswith(("int", "uint", "bool"))
        value = value if discrete else value.astype("float64")
        below = value - 1 if discrete else value - pt.abs(value) * _NEXT - _SMALLEST
        try:
            graphs = [pm.logcdf(rv, at, warn_rvs=False) for at in (value, below)]
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            raise UnsupportedModel(
                f"PyMC has no distribution function for {observed.name!r}, which a check compares responses with."
            ) from None
        mean = _mean(rv)
        graphs = self._of_values([*graphs, *([] if mean is None else [mean])])
        n_levels = 2 if isinstance(op, BernoulliRV) else None
        if isinstance(op, CategoricalRV):
            n_levels = length_of_last_axis(self._model, *op.dist_params(observed.owner))
        return Response(str(observed.name), discrete, n_levels, graphs)


def _mean(rv: Variable) -> Variable | None:
    """Return the mean of a random variable (for categories the mean of their codes); None if PyMC does not have it."""
    if isinstance(rv.owner.op, CategoricalRV):
        (probabilities,) = rv.owner.op.dist_params(rv.owner)
        return (probabilities * pt.arange(probabilities.shape[-1])).sum(axis=-1)
    try:
        mean: Variable = mean_of(rv)
    except (NotImplementedError, UndefinedMomentException):
        return None
    return pt.broadcast_to(mean, rv.shape) if mean.type.ndim < rv.type.ndim else mean


@dataclass(frozen=True, eq=False)
class Link:
    """A linear operation on a parameter and a row: a product ``row @ parameter`` or a gather ``parameter[row]``."""

    output: Variable  # the result in the one-row graph
    parameter: Variable  # the factor, or the array to gather from
    row: Variable  # the row's vector, or its index, with a row axis of length one
    gathers: bool  # whether the operation is a gather


class OneRow:
    """Rebuilds graphs for one row.

    `replacements` maps every input with a row axis to one row of it, with a row axis of length one. `links` are the
    operations that are linear in a parameter and the row.
    """

    def __init__(self, replacements: Mapping[Variable, Variable], rows: RowAxes) -> None:
        one = pt.constant(1, dtype="int64")
        self._new: dict[Variable, Variable] = {**replacements, **dict.fromkeys(rows.length_variables, one)}
        self._with_rows: set[Variable] = set(self._new)
        self._n_rows = rows.n_rows
        self._index_checks: list[Variable] = []
        self._linked: dict[tuple[Variable, Variable], Variable] = {}
        self.links: list[Link] = []

    def rebuild(self, outputs: Sequence[Variable]) -> list[Variable]:
        """Return `outputs` for one row."""
        for node in toposort(list(outputs)):
            carries = [variable in self._with_rows for variable in node.inputs]
            if node.outputs[0] in self._new or not (any(carries) or isinstance(node.op, Alloc)):
                continue
            inputs = [self._new.get(variable, variable) for variable in node.inputs]
            for old, rebuilt in zip(node.outputs, self._apply(node, inputs, carries), strict=True):
                self._new[old] = rebuilt
                self._with_rows.add(old)
        return [self._new.get(output, output) for output in outputs]

    def where_indices_hold(self, log_likelihood: Variable) -> Variable:
        """Return the log-likelihood, or minus infinity if an index of the row is out of range."""
        return _minus_infinity_unless(self._index_checks, log_likelihood) if self._index_checks else log_likelihood

    def _apply(self, node: Any, inputs: list[Variable], carries: Sequence[bool]) -> list[Variable]:
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
            indices = self._in_range(op, source, indices)
            if op.idx_list == (0,) and list(carries) == [False, True]:
                return [self._gather_each(op, source, indices[0])]
            return [op.make_node(source, *indices).outputs[0]]
        if isinstance(op, AdvancedIncSubtensor):
            target, new, *indices = inputs
            return [op.make_node(target, new, *self._in_range(op, target, indices)).outputs[0]]
        if isinstance(op, OpFromGraph) and not isinstance(op, SymbolicOp):
            return self.rebuild(inline_ofg_node(node))  # inner matrix products are rewritten, too
        if isinstance(op, SymbolicOp):
            return list(op(*inputs, return_list=True))
        return list(op.make_node(*inputs).outputs)

    def _in_range(
        self, op: AdvancedSubtensor | AdvancedIncSubtensor, source: Variable, indices: Sequence[Variable]
    ) -> list[Variable]:
        """Return indices clipped to the range of their axes, and append a range check of each to `_index_checks`.

        In compiled code an index out of range raises, or accesses other memory. Every index is clipped, also those
        that depend on no row: the tables of rows have a single row here.
        """
        held, axis = list(indices), 0
        for place in op.idx_list:
            index = None if isinstance(place, slice) else indices[place]
            if index is not None and index.type.dtype == "bool":
                axis += index.type.ndim
                continue
            if index is not None:
                length = source.shape[axis]
                self._index_checks.append(pt.all(pt.and_(pt.ge(index, -length), pt.lt(index, length))))
                held[place] = pt.clip(index, -length, length - 1).astype("int64")
            axis += 1
        return held

    def _gather_each(self, op: AdvancedSubtensor, source: Variable, index: Variable) -> Variable:
        """Gather from the inputs of an elementwise operation, instead of from its result.

        ``(mu + tau * z)[group]`` becomes ``mu + tau * z[group]``, so that z and the row have a single link.
        """
        if source.owner is not None and isinstance(source.owner.op, Elemwise):
            parts = [
                part if part.type.broadcastable[0] else self._gather_each(op, part, index)
                for part in source.owner.inputs
            ]
            return source.owner.op.make_node(*parts).outputs[0]
        key = (source, index)
        if key not in self._linked:
            self._linked[key] = op.make_node(source, index).outputs[0]
            self.links.append(Link(self._linked[key], parameter=source, row=index, gathers=True))
        return self._linked[key]

    def _product(self, row: Variable, parameter: Variable) -> Variable:
        """Multiply a row with parameters, term by term if they are a linear expression.

        ``x @ (mu + tau * z)`` becomes ``mu * sum(x) + tau * (x @ z)``, so that z and the row have a single link.
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
        if key not in self._linked:
            self._linked[key] = _product_in_fixed_order(row, parameter)
            self.links.append(Link(self._linked[key], parameter=parameter, row=row, gathers=False))
        return self._linked[key]


def _minus_infinity_unless(conditions: Sequence[Variable], value: Variable) -> Variable:
    checks = []
    for condition in conditions:
        scalar = condition.owner is not None and isinstance(condition.owner.op, ScalarFromTensor)
        checks.append(pt.all(pt.as_tensor_variable(condition.owner.inputs[0] if scalar else condition)))
    holds = checks[0] if len(checks) == 1 else pt.all(pt.stack(checks))
    return pt.switch(holds, value, np.asarray(-np.inf, dtype=value.type.dtype))


def _product_in_fixed_order(left: Variable, right: Variable) -> Variable:
    """Return the matrix product as a sum of products, whose bits do not depend on other rows.

    The order of summation in BLAS depends on the number of rows and on the position of a row.
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
