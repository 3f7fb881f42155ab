"""The row engine: clipped sums over units of any factorising PyMC likelihood."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.parameters import FloatArray, ParameterVector
from pymc_dp.rows import kernels
from pymc_dp.rows.check import check_factorisation
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.graphs import RowFunctions
from pymc_dp.rows.split import leaf_value, refuse_missing_values, split

#: Rows that are worked on at a time: their intermediate results stay in the processor's cache.
_CHUNK_ROWS = 8192


class UnitLikelihood:
    """A model's likelihood as a sum over units of privacy, ready to be clipped and summed.

    Confidential: it holds the data. Only the door (`pymc_dp.release`) may call it.

    Parameters
    ----------
    model : pm.Model
        A model whose likelihood is a product over rows.
    unit : str, optional
        The dim that counts rows. Default: the first axis of the observed variables.
    unit_index : str or ndarray of int, shape (rows,), optional
        Which unit each row belongs to, or the name of the model's data variable that says so. The rows of one
        unit are summed before they are clipped. Default: every row is a unit of its own.

    Attributes
    ----------
    n_units, n_rows, n_parameters : int

    Raises
    ------
    UnsupportedModel
        If the likelihood is not a product over rows, or data are missing.
    InvalidArgument
        If `unit_index` is not one whole number for each row.
    """

    def __init__(
        self, model: pm.Model, unit: str | None = None, unit_index: str | NDArray[np.integer] | None = None
    ) -> None:
        row_split = split(model, unit)
        refuse_missing_values(row_split)
        self.parameters = ParameterVector(model)
        self._functions = RowFunctions(row_split, model.value_vars)
        check_factorisation(model, row_split, self._functions, self.parameters)
        self.n_rows = row_split.n_rows
        self._data = [leaf.rows() for leaf in row_split.leaves]
        index = _unit_of_each_row(model, unit_index, self.n_rows)
        if index is None:
            self._starts = np.arange(self.n_rows + 1, dtype=np.int64)
        else:
            order = np.argsort(index, kind="stable")
            self._data = [np.ascontiguousarray(rows[order]) for rows in self._data]
            changes = np.flatnonzero(np.diff(index[order])) + 1
            self._starts = np.concatenate([[0], changes, [self.n_rows]]).astype(np.int64)
        self.n_units = self._starts.size - 1
        self.n_parameters = self.parameters.size
        self._one_row_units = index is None
        # Log-likelihoods of all units at the points of the last log-ratio and at the last gradient.
        self._pair: dict[bytes, FloatArray] = {}
        self._latest: dict[bytes, FloatArray] = {}

    def clipped_gradient(self, theta: FloatArray, bound: float, grid: float) -> ClippedSum:
        """Return the sum over units of log-likelihood gradients, each clipped to the norm `bound`.

        Parameters
        ----------
        theta : ndarray, shape (parameters,)
            Unconstrained parameters.
        bound : float
            Largest Euclidean norm of one unit's gradient.
        grid : float
            A power of two; contributions are truncated toward zero to multiples of it.
        """
        values = self.parameters.split(theta)
        total = np.zeros(self.n_parameters, dtype=np.int64)
        log_likelihoods = np.empty(self.n_units)
        n_clipped = 0
        shrunk = kernels.shrunk(bound, self.n_parameters)
        for units, starts, chunk in self._chunks():
            logp, *blocks = self._functions.with_gradient(values, chunk)
            self._sum_units(logp, starts, log_likelihoods[units])
            gradients = np.concatenate(blocks, axis=1)
            n_clipped += kernels.add_clipped_vectors(gradients, starts, shrunk, 1.0 / grid, total)
        self._latest = {theta.tobytes(): log_likelihoods}
        return ClippedSum(total, grid, bound, n_clipped)

    def clipped_log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float, grid: float) -> ClippedSum:
        """Return the sum over units of log p(unit | theta_new) - log p(unit | theta), each clipped to `bound`.

        Odd: swapping `theta` and `theta_new` changes nothing but the sign.
        """
        old = self._unit_log_likelihoods(theta)
        new = self._unit_log_likelihoods(theta_new)
        self._pair = {theta.tobytes(): old, theta_new.tobytes(): new}
        total = np.zeros(1, dtype=np.int64)
        shrunk = kernels.shrunk(bound, 1)
        n_clipped = kernels.add_clipped_differences(new, old, shrunk, 1.0 / grid, total)
        return ClippedSum(total, grid, bound, n_clipped)

    def warm_up(self) -> None:
        """Compile everything on one made-up row, before a run is charged and before processes are forked."""
        values = self.parameters.split(np.zeros(self.n_parameters))
        row = [np.ones_like(rows[:1]) for rows in self._data]
        starts = np.array([0, 1])
        logp, *blocks = self._functions.with_gradient(values, row)
        self._functions.log_likelihood(values, row)
        total = np.zeros(self.n_parameters, dtype=np.int64)
        kernels.add_clipped_vectors(np.concatenate(blocks, axis=1), starts, 1.0, 1.0, total)
        kernels.add_clipped_differences(logp, logp, 1.0, 1.0, np.zeros(1, dtype=np.int64))
        kernels.add_units(logp, starts, np.empty(1))

    def _unit_log_likelihoods(self, theta: FloatArray) -> FloatArray:
        """Return the log-likelihood of every unit, computed anew only at a point not just visited."""
        key = theta.tobytes()
        for remembered in (self._pair, self._latest):
            if key in remembered:
                return remembered[key]
        values = self.parameters.split(theta)
        log_likelihoods = np.empty(self.n_units)
        for units, starts, chunk in self._chunks():
            logp = self._functions.log_likelihood(values, chunk)
            self._sum_units(logp, starts, log_likelihoods[units])
        return log_likelihoods

    def _sum_units(self, logp: FloatArray, starts: NDArray[np.int64], units: FloatArray) -> None:
        if self._one_row_units:
            units[:] = logp
        else:
            kernels.add_units(logp, starts, units)

    def _chunks(self) -> Iterator[tuple[slice, NDArray[np.int64], list[np.ndarray]]]:
        """Yield whole units, about `_CHUNK_ROWS` rows at a time: which, where each starts, and their rows."""
        first = 0
        while first < self.n_units:
            row = self._starts[first]
            last = int(np.searchsorted(self._starts, row + _CHUNK_ROWS, side="right")) - 1
            last = min(max(last, first + 1), self.n_units)
            rows = slice(row, self._starts[last])
            yield slice(first, last), self._starts[first : last + 1] - row, [data[rows] for data in self._data]
            first = last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pair": {}, "_latest": {}}

    def __repr__(self) -> str:
        return f"UnitLikelihood(n_parameters={self.n_parameters}; confidential)"


def _unit_of_each_row(
    model: pm.Model, unit_index: str | NDArray[np.integer] | None, n_rows: int
) -> NDArray[np.int64] | None:
    if unit_index is None:
        return None
    if isinstance(unit_index, str):
        if unit_index not in model.named_vars:
            raise InvalidArgument(f"unit_index={unit_index!r} names no data variable of the model.")
        unit_index = leaf_value(model.named_vars[unit_index])
    index = np.asarray(unit_index)
    if index.shape != (n_rows,) or index.dtype.kind not in "iu":
        raise InvalidArgument(
            f"unit_index must hold one whole number for each of the {n_rows} rows, but has shape {index.shape} "
            f"and dtype {index.dtype}."
        )
    return index.astype(np.int64)
