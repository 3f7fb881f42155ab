"""Every unit's log-likelihood expanded around a centre: sums that are released once, and remainders for each test.

A unit whose score is too large is not cut there alone: a cut score would leave a first-order remainder in every
later test. Its whole log-likelihood is weighted down instead, once, by a weight in (0, 1], in the score, in the
curvature and in the remainders alike: the sums fit together, for the likelihood of weighted units. A weighted
curvature that is still too large is cut alone, for what it leaves to the tests is of second order and biases nothing.
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
    """Where every unit's log-likelihood is expanded, by which preconditioner, and with what bounds. Public.

    A unit whose score is larger than its bound is weighted down as a whole, once: its score, curvature and later
    remainders all carry the same weight in (0, 1]. A curvature that is still larger than its bound is cut alone.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The centre.
    preconditioner : ndarray, shape (parameters, parameters)
        Columns along which derivatives are taken; norms are those of derivatives along them.
    clip_gradient : float
        Bound of the norm of one unit's weighted score.
    clip_curvature : float
        Bound of the Frobenius norm of one unit's curvature (the negative second derivative), weighted and cut. Infinite
        where none is asked for.
    """

    theta: FloatArray
    preconditioner: FloatArray
    clip_gradient: float
    clip_curvature: float = math.inf

    @property
    def key(self) -> bytes:
        """Equal for equal centres."""
        bounds = np.array([self.clip_gradient, self.clip_curvature])
        return self.theta.tobytes() + self.preconditioner.tobytes() + bounds.tobytes()


@dataclass(frozen=True, eq=False)
class Prediction:
    """An expansion's prediction of a unit's log-likelihood at a point, relative to the centre. Public.

    With the unit's score g and curvature H at the centre: ``direction · g``, less half of ``direction · H direction``
    if `with_curvature`, plus `offset`, which is the same for every unit; all of it times the unit's weights. The point
    `theta` and `direction`, on the unconstrained scale, have the shape (parameters,).
    """

    theta: FloatArray
    direction: FloatArray
    with_curvature: bool
    offset: float = 0.0

    @property
    def key(self) -> bytes:
        """Equal for equal predictions."""
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

        #: What the log-likelihood of each unit counts.
        self.weights = _of_each_unit(units, weigh)
        self.weights[~np.isfinite(self._values)] = 0.0
        self.n_weighted_down = int(np.count_nonzero(self.weights < 1.0))

    @cached_property
    def curvature_weights(self) -> FloatArray:
        """What the curvature of each unit counts: computed when first asked for, in a pass for each column."""
        centre = self._centre
        bound = clip.shrunk(centre.clip_curvature, 2 * centre.preconditioner.shape[1] ** 2)

        def weigh(chunk: UnitsOfChunk) -> FloatArray:
            return clip.lower_weights(squares_of(curvatures_of(chunk, centre)), bound, self.weights[chunk.units])

        return _of_each_unit(self._units, weigh) if np.isfinite(centre.clip_curvature) else self.weights

    def _weighted_sum(
        self, of: Callable[[UnitsOfChunk, ExpansionPoint], FloatArray], weights: FloatArray, size: int, grid: float
    ) -> IntArray:
        """Return the sum over units of truncated vectors, times their weights."""

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
        """Return the sum of lengths that weights take off scores: in clip bounds, each at most 1, less `less`."""

        def clipping_losses(chunk: UnitsOfChunk, centre: ExpansionPoint) -> FloatArray:
            squares = squares_of(scores_of(chunk, centre))
            return clip.clipping_losses(squares, self.weights[chunk.units], centre.clip_gradient)[None] - less

        total = self._weighted_sum(clipping_losses, np.ones(self._units.n_units), 1, grid)
        return ClippedSum(total, grid, max(less, 1.0 - less), self.n_weighted_down)

    def residual(self, old: Prediction, new: Prediction, bound: float, grid: float) -> ClippedSum:
        """Return the sum of the remainders of every unit's weighted log-ratio beyond the expansion, clipped to `bound`.

        Odd: swapping `old` and `new` changes nothing but the sign.
        """
        before, after = self.remainders(old), self.remainders(new)
        self._pair = {old.key: before, new.key: after}
        return clipped_differences(before, after, bound, grid)

    def residual_sizes(
        self, old: Prediction, new: Prediction, in_bins: Callable[[FloatArray], IntArray], bound: float, grid: float
    ) -> ClippedSum:
        """Return how many units have a residual in each bin: `in_bins` counts them. One unit counts 1 in one bin."""
        with np.errstate(all="ignore"):
            counts = in_bins(self.remainders(new) - self.remainders(old))
        return ClippedSum(counts * int(1.0 / grid), grid, bound, 0)

    def residual_moments(
        self, old: Prediction, new: Prediction, bound: float, grid: float, *, units: IntArray | None = None
    ) -> ClippedMoments:
        """Return sums of residuals, each clipped to `bound`, and of their squares, of all units or of some."""
        before, after = self.remainders(old, units), self.remainders(new, units)
        return ClippedMoments.of(*each_clipped_difference(before, after, bound, grid))

    def remainders(self, prediction: Prediction, units: IntArray | None = None) -> FloatArray:
        """Return the remainder of every unit's weighted log-likelihood beyond the expansion, relative to the centre.

        With `units`, of those alone, in proportion to whose rows the work is.
        """
        # What would fail while rows are read, and so where there are rows only.
        self._units.refuse_other_shapes(prediction.theta)
        self._units.refuse_other_shapes(prediction.direction)
        if units is None and prediction.key in self._pair:
            return self._pair[prediction.key]
        weights, of_curvatures = self.weights, self.curvature_weights
        with np.errstate(invalid="ignore"):  # a warning would tell that a unit is not finite
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
    """Return what `work` computes of each unit of a chunk, for all units or some."""
    return np.concatenate([np.empty(0), *units.each_chunk(work, some)])


def added_up(parts: Iterable[tuple[int, IntArray]], size: int) -> tuple[int, IntArray]:
    """Return the sums over chunks of units: how many were clipped, and of exact integers."""
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
    """Return each ``new - old``, clipped to `bound`, as multiples of `grid`, and how many were clipped."""
    return clip.clipped_differences(new, old, clip.shrunk(bound, 1), 1.0 / grid)


def scores_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the units' preconditioned scores, shape (parameters, units)."""
    return chunk.scores(point.theta, point.preconditioner)


def centred_scores_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the units' clipped scores and the mean over responses of what is clipped, shape (parameters, units)."""
    scores = scores_of(chunk, point)
    scores *= kept_by(scores, point.clip_gradient)
    for units, expected in chunk.of_responses(point.theta, point.preconditioner):
        scores[:, units] += expected.mean(1.0 - expected.kept(point.clip_gradient))
    return scores


def upper_scores_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the means of the units' scores with responses above the median, shape (parameters, units).

    They point to where responses are larger. Zero for units of several rows.
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

    The mean over responses that the model draws of the outer product of the clipped score with the score: it has no
    negative eigenvalue. Of a unit of several rows it is the sum of theirs, times what clipping leaves of its score.
    """
    if not chunk.one_row_a_unit:
        of_rows = expected_curvatures_of(chunk.each_row(), replace(point, clip_gradient=math.inf))
        return chunk.summed(of_rows) * kept_by(scores_of(chunk, point), point.clip_gradient)
    found = np.zeros((packed_size(point.preconditioner.shape[1]), chunk.length))
    for units, expected in chunk.of_responses(point.theta, point.preconditioner):
        found[:, units] = clip.packed_products(expected.roots(expected.kept(point.clip_gradient)))
    return found


def squares_of_expected_curvatures(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the squared norms of the same, shape (units,)."""
    if not chunk.one_row_a_unit:
        return squares_of(expected_curvatures_of(chunk, point))
    squares = np.zeros(chunk.length)
    for units, expected in chunk.of_responses(point.theta, point.preconditioner):
        squares[units] = clip.squares_of_packed_products(expected.roots(expected.kept(point.clip_gradient)))
    return squares


def squares_of_least_information(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the squares of what the mean over responses of a squared slope is, shape (units,).

    The least of all slopes of parameters that the preconditioner moves: what a unit tells of its linear predictor. Zero
    where responses are not known, and for units of several rows.
    """
    squares = np.zeros(chunk.length)
    for units, expected in chunk.of_responses(point.theta, point.preconditioner):
        squares[units] = expected.least_information() ** 2
    return squares


def least_squared_slopes_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the mean over rows of the least squared slope that the preconditioner moves, shape (units,)."""
    return chunk.least_squared_slopes(point.theta, point.preconditioner)


def one_direction_curvatures_of(chunk: UnitsOfChunk, point: ExpansionPoint) -> FloatArray:
    """Return the units' curvatures, preconditioned and packed, of likelihoods that curve in one direction alone.

    Such a curvature M is w wᵀ / (v · w) with w = M v, whatever v is: it takes one product instead of all. What is
    returned has no negative eigenvalue, for any likelihood. A unit whose score is longer than the bound of scores has
    none: its clipped score does not change with the parameters. Of a unit of several rows it is the sum of theirs.
    """
    if not chunk.one_row_a_unit:
        of_rows = one_direction_curvatures_of(chunk.each_row(), replace(point, clip_gradient=math.inf))
        of_units = chunk.summed(of_rows)
        of_units[:, kept_by(scores_of(chunk, point), point.clip_gradient) < 1.0] = 0.0
        return of_units
    size = point.preconditioner.shape[1]
    somewhere = np.cos(1.0 + np.arange(size))  # orthogonal to no direction of a unit, but by an accident
    along = chunk.curvatures_along(point.theta, point.preconditioner @ somewhere, point.preconditioner)
    curved = preconditioned(along.T, somewhere[:, None])[0]
    kept = (curved > 0.0) & np.isfinite(curved)
    if np.isfinite(point.clip_gradient):
        kept &= squares_of(scores_of(chunk, point)) <= point.clip_gradient**2
    with np.errstate(divide="ignore", invalid="ignore"):
        directions = np.where(kept, along / np.sqrt(curved), 0.0)
    return clip.packed_products(directions[None])


def kept_by(columns: FloatArray, bound: float) -> FloatArray:
    """Return the factor by which every column is clipped to the bound."""
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
    """Call what a search and its checks ask for, so that it is compiled; the rows of `units` are not confidential."""
    # One column is enough: curvatures by a whole preconditioner take time in proportion to the cube of its size.
    theta = np.zeros(units.n_parameters)
    # Where responses are known, expected curvatures are asked for.
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
    """Return how many entries a packed symmetric matrix has."""
    return size * (size + 1) // 2


def preconditioned(rows: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return ``matrix.T @ rows.T``, with bits that do not depend on the other rows, as BLAS would make them."""
    return clip.times_matrix(np.ascontiguousarray(rows.T), np.ascontiguousarray(matrix))
