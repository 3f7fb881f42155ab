"""Log-likelihoods and derivatives of the units of a chunk: those of their rows, summed."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray, ParameterVector
from pymc_dp.rows.engine import Contributions, Point, RowEngine
from pymc_dp.rows.responses import PossibleResponses
from pymc_dp.rows.table import Chunk

#: Responses of a smaller probability are left out of means.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, eq=False)
class OtherModel:
    """Another model of the same rows: its engine, its parameters, and from where on inputs are its own."""

    engine: RowEngine
    parameters: ParameterVector
    first: int


class UnitsOfChunk:
    """The units of one chunk, and all that can be asked of them. Confidential.

    `points` are the engine's forms of parameters, shared by the chunks of one pass.

    Attributes
    ----------
    units : slice
        Which units: of the table, or of the batch that was asked for.

    Raises
    ------
    InvalidArgument
        By `curvature_times` and `along`, if there are none.

    Notes
    -----
    Arrays of shape (units, parameters) are stored by parameter: their transposes are C-contiguous.
    """

    def __init__(
        self,
        chunk: Chunk,
        engine: RowEngine,
        parameters: ParameterVector,
        points: dict[bytes, Point],
        responses: PossibleResponses | None,
        second_order: bool,
        other: OtherModel | None = None,
    ) -> None:
        self.units, self._chunk = chunk.units, chunk
        self._engine, self._parameters, self._points = engine, parameters, points
        self._responses, self._second_order, self._other = responses, second_order, other

    def log_likelihood(self, theta: FloatArray) -> FloatArray:
        """Return the units' log-likelihoods, shape (units,)."""
        return self._per_unit(self._engine.log_likelihood(self._at(theta), self._chunk))

    def log_likelihood_by_other(self, theta: FloatArray) -> FloatArray:
        """Return the units' log-likelihoods by the other model, shape (units,); refused if there is none."""
        if self._other is None:
            raise InvalidArgument("There is no other model to compare with.")
        chunk = dataclasses.replace(self._chunk, rows=self._chunk.rows[self._other.first :], table=None)
        point = self._other.engine.at(self._other.parameters.split(theta))
        return self._per_unit(self._other.engine.log_likelihood(point, chunk))

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the units' gradients, shape (units, parameters)."""
        return self._dense(self._engine.gradient(self._at(theta), self._chunk))

    @property
    def rows(self) -> Sequence[np.ndarray]:
        """The rows of every input, and of columns that the model does not read."""
        return self._chunk.rows

    def response(self, theta: FloatArray, rows: list[np.ndarray] | None = None) -> Sequence[FloatArray]:
        """Return the distribution of every row's response, as `RowEngine.response` does; with `rows` in their place."""
        chunk = self._chunk if rows is None else dataclasses.replace(self._chunk, rows=rows, table=None)
        return self._engine.response(self._parameters.split(theta), chunk)

    def mean_of_rows(self, columns: FloatArray) -> FloatArray:
        """Return the mean of every unit's rows, shape (units, size), of columns of shape (size, rows)."""
        totals = self._chunk.per_unit(columns)
        if self._chunk.starts is not None:
            totals /= np.maximum(np.diff(self._chunk.starts), 1)
        return totals.T

    def scores_of_responses(self, theta: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield the units' gradients with each response that a row could have had, and its probabilities.

        Shapes (units, parameters) and (units,). Nothing, where responses are not known and for units of several rows.
        Where the probability is zero, so is the gradient.
        """
        if self._responses is None or self._chunk.starts is not None:
            return
        responses, point, offsets = self._responses, self._at(theta), [each.start for each in self._parameters.slices]

        def having(which: int) -> Chunk:
            return dataclasses.replace(self._chunk, rows=responses.table(self._chunk.rows, which))

        def log_likelihoods(which: int) -> FloatArray:
            return self._engine.log_likelihood(point, having(which))

        for which, probabilities in zip(*responses.probabilities(log_likelihoods), strict=True):
            expected = probabilities > _NEGLIGIBLE
            if expected.any():
                found = self._engine.gradient(point, having(which))
                columns = found.dense(self._engine.parts, offsets, self._parameters.size)
                yield np.where(expected, columns, 0.0).T, np.where(expected, probabilities, 0.0)

    def curvature_times(self, theta: FloatArray, direction: FloatArray) -> FloatArray:
        """Return the units' negative second derivatives times `direction`, shape (units, parameters)."""
        return self._dense(self._engine.curvature_times(self._at(theta, direction), self._chunk))

    def along(self, theta: FloatArray, direction: FloatArray) -> list[FloatArray]:
        """Return the units' slopes and negative second derivatives along `direction`, each of shape (units,)."""
        return [self._per_unit(found) for found in self._engine.along(self._at(theta, direction), self._chunk)]

    def _at(self, theta: FloatArray, direction: FloatArray | None = None) -> Point:
        if direction is not None and not self._second_order:
            raise InvalidArgument("Second derivatives need UnitLikelihood(..., second_order=True).")
        key = theta.tobytes() + (b"" if direction is None else direction.tobytes())
        if key not in self._points:
            split = self._parameters.split
            self._points[key] = self._engine.at(split(theta), None if direction is None else split(direction))
        return self._points[key]

    def _dense(self, found: Contributions) -> FloatArray:
        offsets = [entries.start for entries in self._parameters.slices]
        columns = found.dense(self._engine.parts, offsets, self._parameters.size)
        return self._chunk.per_unit(columns).T

    def _per_unit(self, values: FloatArray) -> FloatArray:
        return np.asarray(self._chunk.per_unit(values[None])[0])
