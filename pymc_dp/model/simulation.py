"""Rows that are drawn from a model itself, without any of its data."""

from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.shape_utils import change_dist_size
from pymc.initial_point import make_initial_point_fns_per_chain
from pymc.model.fgraph import clone_model
from pymc.pytensorf import compile as pymc_compile
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.arrays import leaf_value
from pymc_dp.model.parameters import FloatArray, ParameterVector
from pymc_dp.model.starts import initial_values

_PRIOR_DRAWS = 50


class RowSimulator:
    """Draws rows from a model without covariates. Its distributions are used, never its data.

    Parameters
    ----------
    model : pm.Model
        The model.
    parameters : ParameterVector
        Its parameters.
    observed : sequence of (str, int)
        Its observed variables, with their row axes.
    n_rows : int
        How many rows it has.
    n_drawn : int
        How many to draw.

    Attributes
    ----------
    prior_draws : list of ndarray
        Parameters drawn from the prior.

    Raises
    ------
    UnsupportedModel
        If what draws rows could know the data, or how many rows there are.
    """

    def __init__(
        self,
        model: pm.Model,
        parameters: ParameterVector,
        observed: Sequence[tuple[str, int]],
        n_rows: int,
        n_drawn: int,
    ) -> None:
        _refuse_rows_in_simulation(model, n_rows)
        self._parameters, self._axes = parameters, [axis for _, axis in observed]
        stand_ins = {rv: rv.type() for rv in model.free_RVs}
        draws = clone_replace([_of_so_many_rows(model[name], axis, n_drawn) for name, axis in observed], stand_ins)
        self._draw = pymc_compile(list(stand_ins.values()), draws, random_seed=0)
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
    """Draws responses of rows with given covariates. Its distributions are used, never its data.

    Parameters
    ----------
    model : pm.Model
        The model, of one observed variable.
    covariates : sequence of Variable
        The arrays of the model with an entry for each row, but for the responses.
    seed : int
        Of the draws.
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
    """Return the model on rows that are drawn from it at a draw of its prior."""
    drawn = pm.draw(model.observed_RVs, random_seed=random_seed)
    twin = clone_model(model)
    for rv, rows in zip(twin.observed_RVs, drawn, strict=True):
        old = twin.rvs_to_values[rv]
        value = pt.constant(np.asarray(rows, dtype=old.type.dtype), name=rv.name)
        twin.rvs_to_values[rv] = value
        del twin.values_to_rvs[old]
        twin.values_to_rvs[value] = rv
    return twin


def _of_so_many_rows(rv: Variable, axis: int, n_rows: int) -> Variable:
    """Return the random variable with a number of rows that the table's does not decide: it may be protected."""
    batch_axes = rv.type.ndim - rv.owner.op.ndim_supp
    size = [rv.shape[i] for i in range(batch_axes)]
    try:
        size[axis] = pt.constant(n_rows)
        return change_dist_size(rv, size)
    except (IndexError, NotImplementedError, TypeError, ValueError):
        raise UnsupportedModel(
            f"{rv.name!r} cannot be drawn with another number of rows than the table has. Pass synthetic=, the same "
            "model written on a synthetic table of the same shape."
        ) from None


def _refuse_rows_in_simulation(model: pm.Model, n_rows: int) -> None:
    """Refuse where what draws rows could know the data: its graph holds a table of rows, or is the user's own code."""
    for rv in model.observed_RVs:
        inputs = [leaf for leaf in ancestors([rv]) if leaf.owner is None and isinstance(leaf.type, TensorType)]
        tables = [leaf_value(leaf) for leaf in inputs if isinstance(leaf, Constant | SharedVariable)]
        if any(n_rows in np.shape(table) for table in tables):
            raise UnsupportedModel(
                f"The distribution of {rv.name!r} is drawn with the help of a table of rows. Pass synthetic=, the same "
                "model written on a synthetic table of the same shape."
            )
        if isinstance(rv.owner.op, CustomDistRV):
            raise UnsupportedModel(
                f"{rv.name!r} is drawn by a function of yours, which may know the data. Pass synthetic=, the same "
                "model written on a synthetic table of the same shape."
            )
