"""Taylor expansions of units' log-likelihoods around a centre: sums that are released once, remainders for each test.

The score of a unit is not clipped alone: a clipped score would leave a first-order remainder in every later test.
Instead the whole log-likelihood of the unit gets a weight in (0, 1], which applies to score, curvature and remainders:
the sums are consistent, for the likelihood of weighted units. A weighted curvature above its bound is clipped alone,
since its remainder in the tests is of second order and causes no bias.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.clipped_sum import ClippedMoments, ClippedSum
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.on_demand import clip
from pymc_dp.rows.table import IntArray

#: `pymc_dp.rows.likelihood.UnitLikelihood`, whose module imports this one.
Units = Any


@dataclass(frozen=True, eq=False)
class ExpansionPoint:
    """The centre, preconditioner and clip bounds of an expansion. Public.

    If a unit's score exceeds its bound, the unit's score, curvature and remainders get the same weight in (0, 1]. A
    weighted curvature above its bound is clipped alone.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The centre.
    preconditioner : ndarray, shape (parameters, parameters)
        Columns along which derivatives are taken; norms are those of derivatives along them.
    clip_gradient : float
        Bound of the norm of one unit's weighted score.
    clip_curvature : float
        Bound of the Frobenius norm of one unit's weighted curvature (the negative second derivative), after clipping.
        Infinite if no curvature is requested.
    """

    theta: FloatArray
    preconditioner: FloatArray
    clip_gradient: float
    clip_curvature: float = math.inf

    @property
    def key(self) -> bytes:
        """A key for caches: equal for equal centres."""
        bounds = np.array([self.clip_gradient, self.clip_curvature])
        return self.theta.tobytes() + self.preconditioner.tobytes() + bounds.tobytes()


@dataclass(frozen=True, eq=False)
class Prediction:
    """An expansion's prediction of a unit's log-likelihood at a point, relative to the centre. Public.

    The unit has the score g and the curvature H at the centre. The prediction is ``direction · g``, less half of
    ``direction · H direction`` if `with_curvature`, plus `offset`, which is the same for every unit; each term is
    multiplied by the unit's weight, of the curvature or of the rest. `theta` is the point; it and `direction` are
    unconstrained, of shape (parameters,).
    """

    theta: FloatArray
    direction: FloatArray
    with_curvature: bool
    offset: float = 0.0

    @property
    def key(self) -> bytes:
        """A key for caches: equal for equal predictions."""
        numbers = np.array([self.offset, self.with_curvature], dtype=np.float64)
        return self.theta.tobytes() + self.direction.tobytes() + numbers.tobytes()


class UnitExpansion:
    """The expansion of every unit around one centre. Confidential: for the curator only."""

    def __init__(self, units: Units, centre: ExpansionPoint) -> None:
        self._units = units
        self._centre = centre
        self._values = units.all_log_likelihoods(centre.theta)
        self._pair: dict[bytes, FloatArray] = {}
        size = centre.preconditioner.shape[1]

        def weigh(chunk: UnitsOfChunk) -> FloatArray:
            squares = squares_of(scores_of(chunk, centre))
            return clip.lower_weights(squares, clip.shrunk(centre.clip_gradient, 2 * size), np.ones(squares.size))

        #: The weights of the units' log-likelihoods.
        self.weights = _of_each_unit(units, weigh)
        self.weights[~np.isfinite(self._values)] = 0.0
        self.n_weighted_down = int(np.count_nonzero(self.weights < 1.0))

    @cached_property
    def curvature_weights(self) -> FloatArray:
        """The weights of the units' curvatures, computed on first use, with one pass for each column."""
        centre = self._centre
        bound = clip.shrunk(centre.clip_curvature, 2 * centre.preconditioner.shape[1] ** 2)

        def weigh(chunk: UnitsOfChunk) -> FloatArray:
            return clip.lower_weights(squares_of(curvatures_of(chunk, centre)), bound, self.weights[chunk.units])

        return _of_each_unit(self._units, weigh) if np.isfinite(centre.clip_curvature) else self.weights

    def _weighted_sum(
        self, of: Callable[[UnitsOfChunk, ExpansionPoint], FloatArray], weights: FloatArray, size: int, grid: float
    ) -> IntArray:
        """Return the sum over units of truncated weighted vectors."""

        def add(chunk: UnitsOfChunk) -> tuple[int, IntArray]:
            columns, total = of(chunk, self._centre), np.zeros(size, dtype=np.int64)
            of_units = weights[chunk.units]
            clip.add_vectors(columns, 0, size, of_units.size, of_units, 1.0 / grid, total)
            return 0, total

        return added_up(self._units.each_chunk(add), size)[1]

    def curvature(self, grid: float) -> ClippedSum:
        """Return the sum of preconditioned weighted curvatures, packed as in `pymc_dp.release.queries.Curvature`."""
        size = self._centre.preconditioner.shape[1]
        total = self._weighted_sum(curvatures_of, self.curvature_weights, packed_size(size), grid)
        n_clipped = int(np.count_nonzero(self.curvature_weights < 1.0))
        return ClippedSum(total, grid, self._centre.clip_curvature, n_clipped)

    def clipping_loss(self, grid: float, less: float) -> ClippedSum:
        """Return the sum of the norms that weights remove from scores, in clip bounds, each at most 1, less `less`."""

        def clipping_losses(chunk: UnitsOfChunk, centre: ExpansionPoint) -> FloatArray:
            squares = squares_of(scores_of(chunk, centre))
            return clip.clipping_losses(squares, self.weights[chunk.units], centre.clip_gradient)[None] - less

        total = self._weighted_sum(clipping_losses, np.ones(self._units.n_units), 1, grid)
        return ClippedSum(total, grid, max(less, 1.0 - less), self.n_weighted_down)

    def residual(self, old: Prediction, new: Prediction, bound: float, grid: float) -> ClippedSum:
        """Return the sum of the remainders of every unit's weighted log-ratio beyond the expansion, clipped to `bound`.

        Antisymmetric: swapping `old` and `new` changes the sign only.
        """
        before, after = self.remainders(old), self.remainders(new)
        self._pair = {old.key: before, new.key: after}
        return clipped_differences(before, after, bound, grid)

    def residual_sizes(
        self, old: Prediction, new: Prediction, in_bins: Callable[[FloatArray], IntArray], bound: float, grid: float
    ) -> ClippedSum:
        """Return the number of units with a residual in each bin of `in_bins`. A unit counts 1 in one bin."""
        with np.errstate(all="ignore"):
            counts = in_bins(self.remainders(new) - self.remainders(old))
        return ClippedSum(counts * int(1.0 / grid), grid, bound, 0)

    def residual_moments(
        self, old: Prediction, new: Prediction, bound: float, grid: float, *, units: IntArray | None = None
    ) -> ClippedMoments:
        """Return moments of residuals, each clipped to `bound`, of all units or of some."""
        before, after = self.remainders(old, units), self.remainders(new, units)
        return ClippedMoments.of(*each_clipped_difference(before, after, bound, grid))

    def remainders(self, prediction: Prediction, units: IntArray | None = None) -> FloatArray:
        """Return the remainder of every unit's weighted log-likelihood beyond the expansion, relative to the centre.

        With `units`, of those units only; the work is proportional to their rows.
        """
        # Checked here, because a later failure would occur only if there are rows.
        self._units.refuse_other_shapes(prediction.theta)
        self._units.refuse_other_shapes(prediction.direction)
        if units is None and prediction.key in self._pair:
            return self._pair[prediction.key]
        weights, of_curvatures = self.weights, self.curvature_weights
        with np.errstate(invalid="ignore"):  # a warning would reveal that a unit is not finite
            if units is None:
                values = self._units.all_log_likelihoods(prediction.theta) - self._values
            else:
                values = self._units.unit_log_likelihoods(prediction.theta, units) - self._values[units]
                weights, of_curvatures = weights[units], of_curvatures[units]
        if not prediction.with_curvature:
            of_curvatures = np.zeros_like(of_curvatures)

        def remainders_of(chunk: UnitsOfChunk) -> FloatArray:
            slopes, curvatures = chunk.along(self._centre.theta, prediction.direction)
            relative, part = values[chunk.units] - prediction.offset, chunk.units
            return clip.weighted_remainders(relative, slopes, curvatures, weights[part], of_curvatures[part])

        return _of_each_unit(self._units, remainders_of, units)

    def __repr__(self) -> str:
        return f"UnitExpansion(n_parameters={self._units.n_parameters}; confidential)"


def _of_each_unit(units: Units, work: Callable[[UnitsOfChunk], FloatArray], some: IntArray | None = None) -> FloatArray:
    """Return the results of `work` on chunks for each unit, of all units or some."""
    return np.concatenate([np.empty(0), *units.each_chunk(work, some)])


def added_up(parts: Iterable[tuple[int, IntArray]], size: int) -> tuple[int, IntArray]:
    """Return the sums over chunks of the numbers of clipped units and of the exact integers."""
    n_clipped, total = 0, np.zeros(size, dtype=np.int64)
    for clipped_here, sums in parts:
        n_clipped += clipped_here
        total += sums
    return n_clipped, total


def clipped_differences(old: FloatArray, new: FloatArray, bound: float, grid: float) -> ClippedSum:
    """Return the sum of ``new - old``, each clipped to `bound`."""
    clipped, n_clipped = each_clipped_difference(old, new, bound, grid)
    return ClippedSum(clipped.sum(keepdims=True), grid, bound, n_clipped)


def each_clipped_difference(old: FloatArray, new: FloatArray, bound: float, grid: float) -> tuple[IntArray, int]:
    """Return each ``new - old``, clipped to `bound`, in multiples of `grid`, and the number of clipped ones."""
    return clip.clipped_differences(new, old, clip.shrunk(bound, 1), 1.0 / grid)


def scores_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the units' preconditioned scores, shape (parameters, units)."""
    return chunk.scores(point.theta, point.preconditioner)


def centred_scores_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the units' clipped scores plus the mean over responses of the clipped parts, shape (parameters, units)."""
    scores = scores_of(chunk, point)
    scores *= kept_by(scores, point.clip_gradient)
    for units, expected in chunk.of_responses(point.theta, point.preconditioner):
        scores[:, units] += expected.mean(1.0 - expected.kept(point.clip_gradient))
    return scores


def upper_scores_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the partial means of the units' scores over responses above the median, shape (parameters, units).

    They point in the direction of larger responses. Zero for units of several rows.
    """
    found = np.zeros((point.preconditioner.shape[1], chunk.length))
    for units, expected in chunk.of_responses(point.theta, point.preconditioner):
        found[:, units] = expected.upper()
    return found


def curvatures_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the units' preconditioned curvatures, packed, shape (entries, units)."""
    return chunk.curvatures(point.theta, point.preconditioner)


def expected_curvatures_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the units' expected curvatures, preconditioned and packed, shape (entries, units).

    An expected curvature is the mean, over responses from the model, of the outer product of the clipped score with the
    score: it has no negative eigenvalue. For a unit of several rows it is the sum over its rows, times the factor by
    which the unit's score is clipped.
    """
    if not chunk.one_row_a_unit:
        of_rows = expected_curvatures_of(chunk.each_row(), replace(point, clip_gradient=math.inf))
        return chunk.summed(of_rows) * kept_by(scores_of(chunk, point), point.clip_gradient)
    found = np.zeros((packed_size(point.preconditioner.shape[1]), chunk.length))
    for units, expected in chunk.of_responses(point.theta, point.preconditioner):
        found[:, units] = clip.packed_products(expected.roots(expected.kept(point.clip_gradient)))
    return found


def squares_of_expected_curvatures(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the squared norms of expected curvatures, shape (units,)."""
    if not chunk.one_row_a_unit:
        return squares_of(expected_curvatures_of(chunk, point))
    squares = np.zeros(chunk.length)
    for units, expected in chunk.of_responses(point.theta, point.preconditioner):
        squares[units] = clip.squares_of_packed_products(expected.roots(expected.kept(point.clip_gradient)))
    return squares


def squares_of_least_information(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the squares of the smallest mean over responses of a squared slope, shape (units,).

    The minimum is over slopes of parameters that the preconditioner moves. It measures the Fisher information of a unit
    on its linear predictor. Zero if responses are not known, and for units of several rows.
    """
    squares = np.zeros(chunk.length)
    for units, expected in chunk.of_responses(point.theta, point.preconditioner):
        squares[units] = expected.least_information() ** 2
    return squares


def least_squared_slopes_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the mean over rows of the smallest squared slope that the preconditioner moves, shape (units,)."""
    return chunk.least_squared_slopes(point.theta, point.preconditioner)


def one_direction_curvatures_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the units' curvatures, preconditioned and packed, of likelihoods whose curvature has rank one.

    Such a curvature M is w wᵀ / (v · w) with w = M v, for any v with v · w ≠ 0: one product determines it. The result
    has no negative eigenvalue, for any likelihood. It is zero for a unit whose score exceeds the bound of scores, since
    the clipped score does not change with the parameters. For a unit of several rows it is the sum over its rows.
    """
    if not chunk.one_row_a_unit:
        of_rows = one_direction_curvatures_of(chunk.each_row(), replace(point, clip_gradient=math.inf))
        of_units = chunk.summed(of_rows)
        of_units[:, kept_by(scores_of(chunk, point), point.clip_gradient) < 1.0] = 0.0
        return of_units
    size = point.preconditioner.shape[1]
    somewhere = np.cos(1.0 + np.arange(size))  # an arbitrary vector, orthogonal to a unit's direction by accident only
    along = chunk.curvatures_along(point.theta, point.preconditioner @ somewhere, point.preconditioner)
    curved = preconditioned(along.T, somewhere[:, None])[0]
    kept = (curved > 0.0) & np.isfinite(curved)
    if np.isfinite(point.clip_gradient):
        kept &= squares_of(scores_of(chunk, point)) <= point.clip_gradient**2
    with np.errstate(divide="ignore", invalid="ignore"):
        directions = np.where(kept, along / np.sqrt(curved), 0.0)
    return clip.packed_products(directions[None])


def kept_by(columns: FloatArray, bound: float) -> FloatArray:
    """Return the factors that clip the columns to the bound."""
    lengths = np.sqrt(squares_of(columns))
    with np.errstate(divide="ignore", invalid="ignore"):
        kept: FloatArray = np.where(lengths > bound, bound / lengths, 1.0)
    return kept


def squares_of(columns: FloatArray) -> FloatArray:
    """Return the squared norm of every column."""
    squares = np.zeros(columns.shape[1])
    clip.add_squares(columns, 0, len(columns), squares.size, squares)
    return squares


def warm_up(units: Units) -> None:
    """Call the functions of searches and their checks, to compile them; the rows of `units` are not confidential."""
    # One column is enough: curvatures by a whole preconditioner take time in proportion to the cube of its size.
    theta = np.zeros(units.n_parameters)
    # If responses are known, expected curvatures are requested.
    bound = math.inf if units.knows_responses else 1.0
    zero, unmoved = ExpansionPoint(theta, np.ones((theta.size, 1)), 1.0, bound), Prediction(theta, theta, True)
    expansion = UnitExpansion(units, zero)
    expansion.clipping_loss(1.0, 0.5)
    expansion.residual(unmoved, unmoved, 1.0, 1.0)
    kinds = [centred_scores_of, expected_curvatures_of, squares_of_expected_curvatures]
    kinds += [upper_scores_of, squares_of_least_information, least_squared_slopes_of]
    if not units.knows_responses:
        expansion.curvature(1.0)
        kinds.append(one_direction_curvatures_of)
    for of_chunk in kinds:
        for _ in units.each_chunk(partial(of_chunk, point=zero)):
            pass


def packed_size(size: int) -> int:
    """Return the number of entries of a packed symmetric matrix."""
    return size * (size + 1) // 2


def preconditioned(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return ``matrix.T @ rows.T``. Unlike with BLAS, the bits of a row do not depend on other rows."""
    return clip.times_matrix(np.ascontiguousarray(rows.T), np.ascontiguousarray(matrix))
