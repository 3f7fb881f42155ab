"""Every unit's log-likelihood expanded around a centre: what is summed once, and what each test has to add.

A unit whose score is too large is not cut there alone: a cut score would leave a first-order remainder in every
later test. Its whole log-likelihood is weighted down instead, once, by a weight in (0, 1], in the score, in the
curvature and in the remainders alike: the sums fit together, for the likelihood of weighted units. A weighted
curvature that is still too large is cut alone, for what it leaves to the tests is of second order and biases nothing.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from pymc_dp.parameters import FloatArray, ParameterVector
from pymc_dp.rows import kernels
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.derivatives import RowDerivatives, packed_pairs
from pymc_dp.rows.graphs import RowFunctions


class ExpansionPoint(Protocol):
    """Where and how log-likelihoods are expanded. Public: a function of releases. See `pymc_dp.release.interface`."""

    @property
    def theta(self) -> FloatArray:
        """The centre, shape (parameters,)."""
        ...

    @property
    def directions(self) -> FloatArray:
        """Columns along which derivatives are taken, shape (parameters, parameters)."""
        ...

    @property
    def clip_gradient(self) -> float:
        """Bound of the norm of a unit's weighted score along the directions."""
        ...

    @property
    def clip_curvature(self) -> float:
        """Bound of the Frobenius norm of a unit's weighted curvature; infinite if none is asked for."""
        ...

    @property
    def key(self) -> bytes:
        """Equal for equal centres."""
        ...


class Prediction(Protocol):
    """What an expansion predicts at a point, as a function of a unit's derivatives at the centre. Public."""

    @property
    def theta(self) -> FloatArray:
        """The point."""
        ...

    @property
    def direction(self) -> FloatArray:
        """What the unit's score is multiplied by, and its curvature from both sides, shape (parameters,)."""
        ...

    @property
    def with_curvature(self) -> bool:
        """Whether half the curvature is subtracted."""
        ...

    @property
    def offset(self) -> float:
        """What is predicted of every unit besides, before it is weighted."""
        ...


class Units(Protocol):
    """What an expansion needs of the row engine."""

    n_units: int
    n_parameters: int
    parameters: ParameterVector

    def all_log_likelihoods(self, theta: FloatArray) -> FloatArray:
        """Return the log-likelihood of every unit."""
        ...

    def derivatives_by_chunk(self) -> Iterator["UnitsOfChunk"]:
        """Yield the derivatives of whole units."""
        ...


class UnitsOfChunk(Protocol):
    """The derivatives of some units. Confidential."""

    units: slice

    def log_likelihood(self, theta: FloatArray) -> FloatArray:
        """Return their log-likelihoods, shape (units,)."""
        ...

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return their gradients, shape (units, parameters)."""
        ...

    def curvature_times(self, theta: FloatArray, direction: FloatArray) -> FloatArray:
        """Return their negative second derivatives times `direction`, shape (units, parameters)."""
        ...

    def along(self, theta: FloatArray, direction: FloatArray) -> list[FloatArray]:
        """Return their slopes and negative second derivatives along `direction`, each of shape (units,)."""
        ...


class UnitExpansion:
    """The expansion of every unit around one centre. Confidential: for the curator only.

    Parameters
    ----------
    units : UnitLikelihood
        The row engine.
    centre : ExpansionPoint
        Where, along which directions, with what bounds.
    """

    def __init__(self, units: Units, centre: ExpansionPoint) -> None:
        self._units = units
        self._centre = centre
        #: What the log-likelihood of each unit counts, and what its curvature counts.
        self.weights, self.curvature_weights = np.ones(units.n_units), np.ones(units.n_units)
        self._values = units.all_log_likelihoods(centre.theta)
        self._pair: dict[bytes, FloatArray] = {}
        size = units.n_parameters
        for chunk in units.derivatives_by_chunk():
            weights = self.weights[chunk.units]
            squares = np.zeros(weights.size)
            kernels.add_squares(self._score_of(chunk), squares)
            kernels.lower_weights(squares, kernels.shrunk(centre.clip_gradient, 2 * size), weights)
            of_curvatures = self.curvature_weights[chunk.units]
            of_curvatures[:] = weights
            if np.isfinite(centre.clip_curvature):
                squares = np.zeros(weights.size)
                kernels.add_squares(self._curvature_of(chunk), squares)
                kernels.lower_weights(squares, kernels.shrunk(centre.clip_curvature, 2 * size**2), of_curvatures)
        unknown = ~np.isfinite(self._values)
        self.weights[unknown] = self.curvature_weights[unknown] = 0.0
        self.n_weighted_down = int(np.count_nonzero(self.weights < 1.0))

    def score(self, grid: float) -> ClippedSum:
        """Return the sum of weighted scores along the directions."""
        total = np.zeros(self._units.n_parameters, dtype=np.int64)
        for chunk in self._units.derivatives_by_chunk():
            kernels.add_vectors(self._score_of(chunk), self.weights[chunk.units], 1.0 / grid, total)
        return ClippedSum(total, grid, self._centre.clip_gradient, self.n_weighted_down)

    def curvature(self, grid: float) -> ClippedSum:
        """Return the sum of weighted curvatures along the directions, packed as `packed_pairs` says."""
        size = self._units.n_parameters
        total = np.zeros(size * (size + 1) // 2, dtype=np.int64)
        for chunk in self._units.derivatives_by_chunk():
            kernels.add_vectors(self._curvature_of(chunk), self.curvature_weights[chunk.units], 1.0 / grid, total)
        n_clipped = int(np.count_nonzero(self.curvature_weights < 1.0))
        return ClippedSum(total, grid, self._centre.clip_curvature, n_clipped)

    def clipping_loss(self, grid: float) -> ClippedSum:
        """Return the sum of what weights have taken off scores: in units of their bound, at most 1, and less a half.

        Between neighbouring tables of equal size a sum of numbers between 0 and 1 moves by at most 1, which is twice
        the bound of what is left when a half is taken off each.
        """
        total = np.zeros(1, dtype=np.int64)
        for chunk in self._units.derivatives_by_chunk():
            weights = self.weights[chunk.units]
            squares, found = np.zeros(weights.size), np.empty(weights.size)
            kernels.add_squares(self._score_of(chunk), squares)
            kernels.clipping_losses(squares, weights, self._centre.clip_gradient, found)
            kernels.add_vectors(found[:, None] - 0.5, np.ones(weights.size), 1.0 / grid, total)
        return ClippedSum(total, grid, 0.5, self.n_weighted_down)

    def residual(self, old: Prediction, new: Prediction, bound: float, grid: float) -> ClippedSum:
        """Return the sum of what the expansion misses of every unit's weighted log-ratio, clipped to `bound`.

        Odd: swapping `old` and `new` changes nothing but the sign.
        """
        before, after = self.remainders(old), self.remainders(new)
        self._pair = {_key(old): before, _key(new): after}
        total = np.zeros(1, dtype=np.int64)
        shrunk = kernels.shrunk(bound, 1)
        n_clipped = kernels.add_clipped_differences(after, before, shrunk, 1.0 / grid, total)
        return ClippedSum(total, grid, bound, n_clipped)

    def remainders(self, prediction: Prediction) -> FloatArray:
        """Return what the expansion misses of every unit's weighted log-likelihood, relative to the centre."""
        key = _key(prediction)
        if key in self._pair:
            return self._pair[key]
        with np.errstate(invalid="ignore"):  # whether a unit is finite is nobody's business
            values = self._units.all_log_likelihoods(prediction.theta) - self._values
        found = np.empty_like(values)
        for chunk in self._units.derivatives_by_chunk():
            slopes, curvatures = chunk.along(self._centre.theta, prediction.direction)
            of_units = chunk.units
            weights, of_curvatures = self.weights[of_units], self.curvature_weights[of_units]
            if not prediction.with_curvature:
                of_curvatures = np.zeros_like(of_curvatures)
            kernels.weighted_remainders(
                values[of_units] - prediction.offset, slopes, curvatures, weights, of_curvatures, found[of_units]
            )
        return found

    def _score_of(self, chunk: UnitsOfChunk) -> FloatArray:
        return _times(chunk.gradient(self._centre.theta), self._centre.directions)

    def _curvature_of(self, chunk: UnitsOfChunk) -> FloatArray:
        directions, theta = self._centre.directions, self._centre.theta
        size = directions.shape[1]
        columns = [_times(chunk.curvature_times(theta, directions[:, k]), directions) for k in range(size)]
        return np.stack([factor * columns[i][:, j] for i, j, factor in packed_pairs(size)], axis=1)

    def __repr__(self) -> str:
        return f"UnitExpansion(n_parameters={self._units.n_parameters}; confidential)"


class DerivativesOfChunk:
    """The derivatives of the units of one chunk: those of their rows, summed. Confidential."""

    def __init__(
        self,
        units: slice,
        functions: RowFunctions,
        derivatives: RowDerivatives,
        parameters: ParameterVector,
        rows: list[np.ndarray],
        starts: np.ndarray | None,
    ) -> None:
        self.units = units
        self._functions = functions
        self._derivatives = derivatives
        self._parameters = parameters
        self._rows = rows
        self._starts = starts

    def log_likelihood(self, theta: FloatArray) -> FloatArray:
        """Return the units' log-likelihoods, shape (units,)."""
        logp = self._functions.log_likelihood(self._functions.at(self._parameters.split(theta)), self._rows)
        return self._per_unit(logp[:, None])[:, 0]

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the units' gradients, shape (units, parameters)."""
        return self._per_unit(self._derivatives.gradient(*self._parameters.split(theta), *self._rows))

    def curvature_times(self, theta: FloatArray, direction: FloatArray) -> FloatArray:
        """Return the units' negative second derivatives times `direction`, shape (units, parameters)."""
        blocks = [*self._parameters.split(theta), *self._parameters.split(direction)]
        return self._per_unit(self._derivatives.curvature_times(*blocks, *self._rows))

    def along(self, theta: FloatArray, direction: FloatArray) -> list[FloatArray]:
        """Return the units' slopes and negative second derivatives along `direction`, each of shape (units,)."""
        blocks = [*self._parameters.split(theta), *self._parameters.split(direction)]
        found = self._derivatives.along(*blocks, *self._rows)
        return [self._per_unit(values[:, None])[:, 0] for values in found]

    def _per_unit(self, rows: FloatArray) -> FloatArray:
        if self._starts is None:
            return rows
        units = np.empty((self._starts.size - 1, rows.shape[1]))
        kernels.sum_rows_of_units(np.ascontiguousarray(rows), self._starts, units)
        return units


def _key(prediction: Prediction) -> bytes:
    return b"".join(
        [
            prediction.theta.tobytes(),
            prediction.direction.tobytes(),
            np.float64(prediction.offset).tobytes(),
            bytes([prediction.with_curvature]),
        ]
    )


def _times(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return every row times the matrix, with bits that do not depend on the other rows, as BLAS would make them."""
    out = np.empty((rows.shape[0], matrix.shape[1]))
    kernels.times_matrix(np.ascontiguousarray(rows), np.ascontiguousarray(matrix), out)
    return out
