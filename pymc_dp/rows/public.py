"""Synthetic tables: their rows are not protected, so that exact computations on them are free of privacy cost."""

from typing import Any

import numpy as np

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.context import Model
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.simulation import RowSimulator
from pymc_dp.model.view import ModelView, read
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.likelihood import UnitLikelihood


class PublicUnits:
    """The units of a synthetic table and their derivatives, as plain arrays.

    The likelihood must be that of a model that holds synthetic data only.
    """

    def __init__(self, likelihood: UnitLikelihood) -> None:
        self._likelihood = likelihood

    def log_likelihoods(self, theta: FloatArray) -> FloatArray:
        """Return the log-likelihood of every unit, shape (units,)."""
        return self._likelihood.all_log_likelihoods(theta)

    def scores(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of every unit's log-likelihood, shape (units, parameters)."""
        return np.concatenate(list(self._likelihood.each_chunk(lambda chunk: chunk.gradient(theta))))

    def curvatures(self, theta: FloatArray) -> FloatArray:
        """Return the negative Hessian of every unit's log-likelihood, shape (units, parameters, parameters)."""
        axes = np.eye(self._likelihood.n_parameters)

        def curvatures(chunk: UnitsOfChunk) -> FloatArray:
            return np.stack([chunk.curvature_times(theta, axis) for axis in axes], axis=2)

        return np.concatenate(list(self._likelihood.each_chunk(curvatures)))


class SyntheticTable:
    """A synthetic table that the user provides, through the same model written on it.

    `parameter_shapes` are those of the model of the protected data; other shapes raise `UnsupportedModel`. An array for
    `unit_index` does not fit the synthetic rows and is ignored.
    """

    def __init__(
        self, model: Model, parameter_shapes: dict[str, tuple[int, ...]], unit: str | None, unit_index: Any
    ) -> None:
        index = unit_index if isinstance(unit_index, str) else None
        likelihood = UnitLikelihood(read(model, unit, index), first_order=False, expands=True)
        if likelihood.parameters.shapes != parameter_shapes:
            raise UnsupportedModel(
                "The model of the synthetic table has other free variables than the model of the data: write both with "
                f"the same function. There: {parameter_shapes}; in the synthetic table: {likelihood.parameters.shapes}."
            )
        likelihood.warm_up()
        self._likelihood = likelihood
        self._units = PublicUnits(likelihood)

    def at(self, theta: FloatArray) -> PublicUnits:
        """Return the table, the same for all parameters."""
        return self._units

    def prior_draws(self) -> list[FloatArray]:
        """Return no draws: the table does not depend on the parameters."""
        return []

    def stand_in(self) -> UnitLikelihood:
        """Return the likelihood of the synthetic rows, for a dry run."""
        return self._likelihood


class Simulation:
    """Tables of `n_units` rows that are simulated from the model itself.

    The distributions of the model of the protected data are used, never its data. A model with covariates, groups or
    units of several rows raises `UnsupportedModel`.
    """

    def __init__(self, view: ModelView, likelihood: UnitLikelihood, n_units: int) -> None:
        observed = likelihood.observed_leaves
        if observed is None:
            raise UnsupportedModel(
                "The model has covariates, groups or several rows a unit, which cannot be simulated from it."
            )
        self._simulator: RowSimulator | None = view.simulator(observed, n_units)
        self._prior_draws = self._simulator.prior_draws
        self._empty = likelihood.on_no_rows()
        self._latest: dict[bytes, PublicUnits] = {}
        self._stand_in = self._first_rows()

    def prior_draws(self) -> list[FloatArray]:
        """Return parameters drawn from the prior."""
        return self._prior_draws

    def stand_in(self) -> UnitLikelihood:
        """Return the likelihood of rows at a draw of the prior, for a dry run."""
        return self._stand_in

    def at(self, theta: FloatArray) -> PublicUnits:
        """Return rows drawn from the model at `theta`. Consecutive calls at one point return the same rows."""
        key = theta.tobytes()
        if key not in self._latest:
            self._latest = {key: PublicUnits(self._rows_at(theta))}
        return self._latest[key]

    def _rows_at(self, theta: FloatArray) -> UnitLikelihood:
        assert self._simulator is not None  # noqa: S101  pickles have no simulator
        return self._empty.on_rows(self._simulator.rows_at(theta))

    def _first_rows(self) -> UnitLikelihood:
        """Return rows at the first draw of the prior at which rows can be simulated."""
        for theta in [*self._prior_draws, np.zeros(self._empty.n_parameters)]:
            try:
                return self._rows_at(theta)
            except (ArithmeticError, ValueError):  # generators of random numbers refuse some parameters
                continue
        raise UnsupportedModel(
            "No rows can be simulated at draws of the model's own prior: give its free variables an initval=."
        )

    def __getstate__(self) -> dict[str, Any]:
        # The simulated rows are pickled; their generator was compiled from the model of the protected data and is not.
        return {**self.__dict__, "_simulator": None}
