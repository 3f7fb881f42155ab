"""Log-likelihoods and derivatives of the units of a chunk: sums over the rows of each unit."""

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray, ParameterVector
from pymc_dp.rows.contributions import Axes, Contributions
from pymc_dp.rows.engine import RowEngine
from pymc_dp.rows.on_demand import clip
from pymc_dp.rows.responses import PossibleResponses
from pymc_dp.rows.table import Chunk, IntArray

#: Step of central differences, as a fraction of the direction. The relative truncation error is about 1e-10, and the
#: rounding error about 1e-11 of the gradient.
_STEP = 2.0**-16
#: Pairs of rows and responses that are processed at a time: their intermediate results stay in the processor's cache.
_ENTRIES = 2**17


@dataclass(frozen=True, eq=False)
class OtherModel:
    """Another model of the same rows: its engine, its parameters, and the place of its first input."""

    engine: RowEngine
    parameters: ParameterVector
    first: int


@dataclass(frozen=True, eq=False, repr=False)
class OfResponses:
    """Scores of rows with each possible response, along the columns of a matrix. Confidential.

    `slopes`, shape (slopes, responses, rows), are used only where `probabilities`, shape (responses, rows), are not
    zero: a response that is listed for another row of the chunk changes no bit. `are_all`: all possible responses are
    listed, and there are no more of them than slopes.
    """

    slopes: FloatArray
    probabilities: FloatArray
    axes: Axes
    are_all: bool

    def kept(self, bound: float) -> FloatArray:
        """Return the factors that clip the scores to the bound, shape (responses, rows)."""
        if not np.isfinite(bound):
            return np.ones(self.probabilities.shape)
        whole = self.axes.whole()
        roots = clip.roots_of_sum(whole, np.ones(whole.shape[1:]))
        return clip.kept_of_scores(self.slopes, self.probabilities, roots, bound)

    def mean(self, weights: FloatArray) -> FloatArray:
        """Return the mean of the scores, each times its weight, shape (k, rows)."""
        return self.axes.times(clip.mean_slopes(self.slopes, self.probabilities * weights))

    def upper(self) -> FloatArray:
        """Return the partial mean of the scores over responses above each row's median, shape (k, rows).

        The mean of the scores over all responses is zero.
        """
        middles = np.cumsum(self.probabilities, axis=0) - 0.5 * self.probabilities
        return self.mean((middles > 0.5).astype(np.float64))

    def least_information(self) -> FloatArray:
        """Return the smallest mean square among the slopes of `Axes.moved`, shape (rows,)."""
        least = np.full(self.probabilities.shape[1], np.inf)
        for slope in self.axes.moved():
            root = clip.roots_of_sum(self.slopes[slope : slope + 1], self.probabilities)
            np.minimum(least, root[0, 0] ** 2, out=least)
        return least

    def roots(self, weights: FloatArray) -> FloatArray:
        """Return columns, shape (columns, k, rows): the sum of their outer products is the mean of those of the scores.

        The mean is weighted.
        """
        weights = self.probabilities * weights
        roots = (clip.roots_of_each if self.are_all else clip.roots_of_sum)(self.slopes, weights)
        return np.array([self.axes.times(root) for root in roots])


#: Units of a chunk, derivatives of their rows with each response that counts for any of them, and the probabilities.
Piece = tuple[IntArray, Contributions, FloatArray]


class LatestResponses:
    """A cache of derivatives with each possible response at the latest point, of up to `room` numbers. Confidential.

    Consecutive queries use the same point. Cached values have the same bits as recomputed ones.
    """

    def __init__(self, room: int) -> None:
        self._room = self._left = room
        self._theta = b""
        self._pieces: dict[tuple[int, int], list[Piece]] = {}

    def of(self, theta: FloatArray, chunk: Chunk, computed: Iterable[Piece]) -> Iterable[Piece]:
        """Return the pieces of a chunk at a point: the cached ones, or else `computed`."""
        if chunk.table is None or not self._room:
            return computed
        if theta.tobytes() != self._theta:
            self._theta, self._pieces, self._left = theta.tobytes(), {}, self._room
        key = chunk.begin, chunk.n_rows
        if key not in self._pieces:
            found = list(computed)
            size = sum(
                array.size
                for units, of_rows, probabilities in found
                for array in (units, of_rows.slopes, of_rows.indices, *of_rows.vectors, probabilities)
            )
            if size > self._left:
                return found
            self._pieces[key], self._left = found, self._left - size
        return self._pieces[key]


class UnitsOfChunk:
    """The units of one chunk, with their log-likelihoods, derivatives and predictions. Confidential.

    `units` is their slice of the table or of the requested batch. Arrays of shape (units, parameters) are stored by
    parameter: their transposes are C-contiguous.
    """

    def __init__(
        self,
        chunk: Chunk,
        engine: RowEngine,
        parameters: ParameterVector,
        responses: PossibleResponses | None,
        other: OtherModel | None,
        kinked: NDArray[np.bool_],
        latest: LatestResponses,
    ) -> None:
        self.units, self._chunk, self._latest = chunk.units, chunk, latest
        self._engine, self._parameters = engine, parameters
        self._responses, self._other, self._kinked = responses, other, kinked

    def log_likelihood(self, theta: FloatArray) -> FloatArray:
        """Return the units' log-likelihoods, shape (units,)."""
        return self._per_unit(self._engine.log_likelihood(self._parameters.split(theta), self._chunk))

    def log_likelihood_by_other(self, theta: FloatArray) -> FloatArray:
        """Return the units' log-likelihoods in the other model, shape (units,); refused without another model."""
        if self._other is None:
            raise InvalidArgument("There is no other model to compare with.")
        chunk = dataclasses.replace(self._chunk, rows=self._chunk.rows[self._other.first :], table=None)
        point = self._other.parameters.split(theta)
        return self._per_unit(self._other.engine.log_likelihood(point, chunk))

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the units' gradients, shape (units, parameters)."""
        return self._dense(self._engine.gradient(self._parameters.split(theta), self._chunk))

    @property
    def one_row_a_unit(self) -> bool:
        """Whether every row is a unit of its own."""
        return self._chunk.starts is None

    def each_row(self) -> "UnitsOfChunk":
        """Return the same rows, each of them a unit of its own."""
        found = copy.copy(self)
        rows = slice(0, self._chunk.n_rows)
        found.__dict__.update(units=rows, _chunk=dataclasses.replace(self._chunk, units=rows, starts=None))
        return found

    def summed(self, columns: FloatArray) -> FloatArray:
        """Return the sum over every unit's rows, shape (size, units), of columns of shape (size, rows)."""
        return self._chunk.per_unit(columns)

    @property
    def length(self) -> int:
        """The number of units."""
        return int(self.units.stop - self.units.start)

    @property
    def rows(self) -> Sequence[np.ndarray]:
        """The rows of every input, and of columns that the model does not read."""
        return self._chunk.rows

    def response(self, theta: FloatArray, rows: list[np.ndarray] | None = None) -> Sequence[FloatArray]:
        """Return `RowEngine.response` of the rows; `rows` replaces their inputs."""
        chunk = self._chunk if rows is None else dataclasses.replace(self._chunk, rows=rows, table=None)
        return self._engine.response(self._parameters.split(theta), chunk)

    def mean_of_rows(self, columns: FloatArray) -> FloatArray:
        """Return the mean of every unit's rows, shape (units, size), of columns of shape (size, rows)."""
        totals = self._chunk.per_unit(columns)
        if self._chunk.starts is not None:
            totals /= np.maximum(np.diff(self._chunk.starts), 1)
        return totals.T

    def of_responses(self, theta: FloatArray, matrix: FloatArray) -> Iterator[tuple[IntArray, OfResponses]]:
        """Yield the units' scores with each possible response, along the columns of `matrix`.

        Each piece has units for which about the same responses count. No piece, if responses are not known and for
        units of several rows.
        """
        if self._responses is None or not self.one_row_a_unit:
            return
        are_all = len(self._responses.values) <= sum(part.k for part in self._engine.graphs.parts)
        for units, found, probabilities in self._latest.of(theta, self._chunk, self._pieces(theta, self._responses)):
            yield units, OfResponses(found.slopes, probabilities, self._axes(found, matrix), are_all)

    def _pieces(self, theta: FloatArray, responses: PossibleResponses) -> Iterator[Piece]:
        """Yield derivatives of the rows, in pieces of units for which about the same responses count."""
        values = self._parameters.split(theta)
        possible = np.array(responses.values).astype(self._chunk.rows[responses.place].dtype)

        def log_likelihoods(chunk: Chunk, which: IntArray) -> FloatArray:
            return self._engine.log_likelihoods_of(values, chunk, responses.place, possible[which])

        strides = responses.strides(partial(log_likelihoods, self._chunk), self.length)
        for units in responses.alike(strides, _ENTRIES):
            piece = self._chunk.of_units(units)
            counted, probabilities = responses.probabilities(partial(log_likelihoods, piece), strides[:, units])
            yield units, self._engine.gradients_of(values, piece, responses.place, possible[counted]), probabilities

    def scores(self, theta: FloatArray, matrix: FloatArray) -> FloatArray:
        """Return the units' gradients along the columns of `matrix` (parameters, k), shape (k, units)."""
        found = self._engine.gradient(self._parameters.split(theta), self._chunk)
        return self._chunk.per_unit(self._axes(found, matrix).times(found.slopes))

    def least_squared_slopes(self, theta: FloatArray, matrix: FloatArray) -> FloatArray:
        """Return the mean over rows of the smallest square among the slopes of `Axes.moved`, shape (units,)."""
        found = self._engine.gradient(self._parameters.split(theta), self._chunk)
        moved = self._axes(found, matrix).moved()
        least: FloatArray = np.min(found.slopes[moved] ** 2, axis=0, initial=np.inf)
        return self.mean_of_rows(least[None])[:, 0]

    def curvatures(self, theta: FloatArray, matrix: FloatArray) -> FloatArray:
        """Return the units' negative second derivatives along the columns of `matrix`, packed, shape (entries, units).

        Packed as in `pymc_dp.release.queries.Curvature`.
        """
        size, place = matrix.shape[1], 0
        packed = np.empty((size * (size + 1) // 2, self.length))
        axes: Axes | None = None
        for i in range(size):
            found = self._curvature_times(theta, matrix[:, i])
            axes = axes or self._axes(found, matrix)
            along = self._chunk.per_unit(axes.times(found.slopes, i))
            packed[place] = along[0]
            np.multiply(along[1:], 2.0**0.5, out=packed[place + 1 : place + len(along)])
            place += len(along)
        return packed

    def curvatures_along(self, theta: FloatArray, direction: FloatArray, matrix: FloatArray) -> FloatArray:
        """Return the units' negative second derivatives times `direction` along the columns of `matrix`, (k, units)."""
        found = self._curvature_times(theta, direction)
        return self._chunk.per_unit(self._axes(found, matrix).times(found.slopes))

    def curvature_times(self, theta: FloatArray, direction: FloatArray) -> FloatArray:
        """Return the units' negative second derivatives times `direction`, shape (units, parameters)."""
        return self._dense(self._curvature_times(theta, direction))

    def along(self, theta: FloatArray, direction: FloatArray) -> list[FloatArray]:
        """Return the units' slopes and negative second derivatives along `direction`, each of shape (units,)."""
        first = self._engine.gradient(self._parameters.split(theta), self._chunk)
        axes = self._axes(first, direction[:, None])
        both = first, self._curvature_times(theta, direction)
        return [self._per_unit(axes.times(found.slopes)[0]) for found in both]

    def _curvature_times(self, theta: FloatArray, direction: FloatArray) -> Contributions:
        """Return negative second derivatives of every row times `direction`: central differences of its gradient.

        In parameters in which the log-likelihood is piecewise linear, second derivatives are zero or infinite. There
        the outer product of the gradient replaces them: if the model holds, both have the same mean. Between these and
        other parameters the entries are zero, which is their mean.
        """
        if not self._kinked.any():
            return self._differences(theta, direction)
        found = self._engine.gradient(self._parameters.split(theta), self._chunk)
        others = self._differences(theta, np.where(self._kinked, 0.0, direction)).slopes
        along = self._axes(found, np.where(self._kinked, direction, 0.0)[:, None]).times(found.slopes)
        kinked = np.repeat(
            [self._kinked[each.start] for each in self._parameters.slices], [p.k for p in self._engine.graphs.parts]
        )
        with np.errstate(all="ignore"):
            return dataclasses.replace(found, slopes=np.where(kinked[:, None], found.slopes * along, others))

    def _differences(self, theta: FloatArray, direction: FloatArray) -> Contributions:
        """Return negative second derivatives of every row times `direction`, by central differences of its gradient."""
        points = [self._parameters.split(theta + step * direction) for step in (_STEP, -_STEP)]
        ahead, behind = (self._engine.gradient(point, self._chunk) for point in points)
        with np.errstate(all="ignore"):  # a warning would reveal that a row is not finite
            slopes = (behind.slopes - ahead.slopes) / (2.0 * _STEP)
        return dataclasses.replace(behind, slopes=slopes)

    def _axes(self, found: Contributions, matrix: FloatArray) -> Axes:
        return Axes.of(found, self._layout, matrix)

    def _dense(self, found: Contributions) -> FloatArray:
        return self._chunk.per_unit(found.dense(self._layout, self._parameters.size)).T

    @cached_property
    def _layout(self) -> NDArray[np.int64]:
        return clip.layout(self._engine.graphs.parts, [entries.start for entries in self._parameters.slices])

    def _per_unit(self, values: FloatArray) -> FloatArray:
        return np.asarray(self._chunk.per_unit(values[None])[0])
