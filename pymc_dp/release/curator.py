"""The curator: the only caller of the row engine. It clips, truncates to the grid, sums, adds noise and counts.

What a privacy review has to read is this module and `pymc_dp.release.noise`. No value leaves here that has not
passed `Curator._noisy`, which draws noise in proportion to the sensitivity that the clipped sum itself states.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

import numpy as np

from pymc_dp.accounting import Releases
from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.barker_correction import acceptance, clip_bound, happens, log_ratio_and_variance
from pymc_dp.release.batch_counts import BatchCounts, count_weight
from pymc_dp.release.batches import Batches, BatchesWithoutReplacement, described, drawn
from pymc_dp.release.interface import (
    LARGEST_CLIP_BOUND,
    SMALLEST_CLIP_BOUND,
    ExpansionPoint,
    FloatArray,
    Prediction,
    Release,
)
from pymc_dp.release.meter import Meter
from pymc_dp.release.noise import IntArray, NoiseSource, grid_for
from pymc_dp.release.penalised import penalised, sensitivity

SENSITIVITY_FACTOR = {"substitute": 2.0, "add-remove": 1.0}


class ClippedSum(Protocol):
    """A sum of clipped contributions as exact integers on a grid. Confidential."""

    @property
    def integers(self) -> IntArray:
        """The sum as multiples of the grid."""
        ...

    @property
    def grid(self) -> float:
        """A power of two."""
        ...

    @property
    def n_clipped(self) -> int:
        """How many units were clipped."""
        ...

    def sensitivity(self, relation: str) -> float:
        """Return how far the sum moves, in Euclidean norm, between neighbouring tables."""
        ...


class Rows(Protocol):
    """What the curator needs of the row engine."""

    n_units: int

    def clipped_gradient(
        self,
        theta: FloatArray,
        bound: float,
        grid: float,
        *,
        units: IntArray | None = None,
        blocks: Sequence[bool] | None = None,
    ) -> ClippedSum:
        """Return the sum of clipped gradients, of all units or of some."""
        ...

    def clipped_log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float, grid: float) -> ClippedSum:
        """Return the sum of clipped per-unit log-ratios."""
        ...

    def clipped_log_ratios(
        self, theta: FloatArray, theta_new: FloatArray, bound: float, grid: float, units: IntArray
    ) -> tuple[IntArray, int]:
        """Return the clipped log-ratios of some units on the grid, and how many were clipped."""
        ...

    def expansion(self, centre: ExpansionPoint) -> "Expansion":
        """Return the expansion of every unit around a centre."""
        ...


class Expansion(Protocol):
    """Every unit's log-likelihood around a centre. Confidential."""

    def score(self, grid: float) -> ClippedSum:
        """Return the sum of weighted scores."""
        ...

    def curvature(self, grid: float) -> ClippedSum:
        """Return the sum of weighted curvatures."""
        ...

    def clipping_loss(self, grid: float) -> ClippedSum:
        """Return the sum of what weights have taken off scores, each less a half."""
        ...

    def residual(self, old: Prediction, new: Prediction, bound: float, grid: float) -> ClippedSum:
        """Return the sum of clipped residual log-ratios."""
        ...


#: More than the roundings of a standard deviation: a sensitivity that is reached exactly needs the noise in full.
_ROUNDING = 1.0 + 2.0**-50
#: Whether a computation over rows overflows or is undefined shows nowhere: rows that are not finite are seen to.
_silently = np.errstate(all="ignore")


class MeteredCurator:
    """The curator of one chain.

    Parameters
    ----------
    rows : UnitLikelihood
        The row engine.
    noise : NoiseSource
        Where the noise comes from.
    relation : {"substitute", "add-remove"}
        Neighbouring relation.
    allowance : mapping of str to int
        How many releases of each kind this chain may make.
    noise_multipliers : mapping of str to float
        The least noise multiplier that was paid for, by kind.
    scheduled : sequence of releases
        What was paid for on batches, or with noise that changes. See `pymc_dp.release.meter.Meter`.
    exact_counts : bool
        Add no noise to clip counts. For public or simulated data only.
    """

    def __init__(
        self,
        rows: Rows,
        noise: NoiseSource,
        relation: str,
        allowance: Mapping[str, int],
        noise_multipliers: Mapping[str, float],
        *,
        scheduled: Sequence[Releases] = (),
        exact_counts: bool = False,
    ) -> None:
        self._rows = rows
        self._noise = noise
        self._relation = relation
        self._meter = Meter(allowance, noise_multipliers, scheduled)
        self._exact_counts = exact_counts
        on_batches = any(event.sampling is not None for event in scheduled)
        self._batch_counts = BatchCounts(1 if relation == "substitute" else 2) if on_batches else None
        self._clipped = {kind: 0 for kind in allowance if kind != "clip_count"}
        self._evaluations = dict(self._clipped)

    @_silently
    def gradient(
        self, theta: FloatArray, bound: float, noise_multiplier: float, blocks: Sequence[bool] | None = None
    ) -> Release:
        """Release a clipped gradient sum at `theta`. See `pymc_dp.release.interface.Curator`."""
        theta, bound, noise_multiplier = _plain_vector(theta), float(bound), float(noise_multiplier)
        self._spend("gradient", noise_multiplier)
        grid = self._grid_of_sum(bound, noise_multiplier)
        clipped_sum = self._rows.clipped_gradient(theta, bound, grid, blocks=blocks)
        return self._released("gradient", clipped_sum, noise_multiplier, theta)

    @_silently
    def batch_gradient(
        self,
        theta: FloatArray,
        bound: float,
        noise_multiplier: float,
        batches: Batches,
        *,
        counted: bool,
        blocks: Sequence[bool] | None = None,
    ) -> Release:
        """Release a clipped gradient sum over a fresh batch. See `pymc_dp.release.interface.Curator`."""
        batches, theta = described(batches), _plain_vector(theta)
        bound, noise_multiplier = float(bound), float(noise_multiplier)
        self._spend("gradient", noise_multiplier, batches)
        units = drawn(batches, self._noise, self._rows.n_units)
        grid = self._grid_of_sum(bound, noise_multiplier)
        clipped_sum = self._rows.clipped_gradient(theta, bound, grid, units=units, blocks=blocks)
        counts = np.array([clipped_sum.n_clipped, len(units)], dtype=np.int64)
        integers, noise_std = self._with_counts(
            clipped_sum.integers,
            grid,
            clipped_sum.sensitivity(self._relation),
            noise_multiplier,
            batches,
            counts,
            counted=counted,
        )
        return Release("gradient", np.asarray(integers * grid, dtype=np.float64), noise_std, (np.array(theta),))

    @_silently
    def log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float, noise_multiplier: float) -> Release:
        """Release a clipped log-ratio sum. See `pymc_dp.release.interface.Curator`."""
        theta, theta_new = _plain_vector(theta), _plain_vector(theta_new)
        bound, noise_multiplier = float(bound), float(noise_multiplier)
        self._spend("log_ratio", noise_multiplier)
        grid = self._grid_of_sum(bound, noise_multiplier)
        clipped_sum = self._rows.clipped_log_ratio(theta, theta_new, bound, grid)
        return self._released("log_ratio", clipped_sum, noise_multiplier, theta, theta_new)

    def batch_log_ratio(
        self,
        theta: FloatArray,
        theta_new: FloatArray,
        bound: float,
        noise_multiplier: float,
        batches: BatchesWithoutReplacement,
        tempering: float,
        *,
        counted: bool,
    ) -> Release:
        """Release a penalised log-ratio of a fresh batch. See `pymc_dp.release.interface.Curator`."""
        batches, tempering = _without_replacement(batches), float(tempering)
        theta, theta_new = _plain_vector(theta), _plain_vector(theta_new)
        bound, noise_multiplier = float(bound), float(noise_multiplier)
        self._spend("log_ratio", noise_multiplier, batches)
        scale = tempering * batches.scale
        distance = sensitivity(scale, bound, batches.batch_size)
        grid = grid_for(noise_multiplier, 1.0, noise_multiplier * distance, batches.batch_size)
        log_ratios, unit, n_clipped = self._batch_log_ratios(theta, theta_new, bound, batches, tempering)
        integers = np.array([penalised(log_ratios, unit, grid)], dtype=np.int64)
        counts = np.array([n_clipped, batches.batch_size], dtype=np.int64)
        noisy, noise_std = self._with_counts(
            integers, grid, distance + grid, noise_multiplier, batches, counts, counted=counted
        )
        where = (np.array(theta), np.array(theta_new))
        return Release("log_ratio", np.asarray(noisy * grid, dtype=np.float64), noise_std, where)

    def barker_decision(
        self,
        theta: FloatArray,
        theta_new: FloatArray,
        log_free_ratio: float,
        batches: BatchesWithoutReplacement,
        tempering: float,
    ) -> Release:
        """Release a decision of the Barker test on a fresh batch. See `pymc_dp.release.interface.Curator`."""
        batches, tempering = _without_replacement(batches), float(tempering)
        theta, theta_new = _plain_vector(theta), _plain_vector(theta_new)
        self._spend("decision", 0.0, batches)
        bound = clip_bound(batches.batch_size, tempering * batches.n_units)
        log_ratios, unit, n_clipped = self._batch_log_ratios(theta, theta_new, bound, batches, tempering)
        if self._batch_counts is not None and self._exact_counts:
            counts = np.array([n_clipped, batches.batch_size], dtype=np.float64)
            self._batch_counts.add(counts, 0.0, batches.scale)
        unlikely, probability = acceptance(*log_ratio_and_variance(log_ratios, unit, log_free_ratio))
        accepted = happens(self._noise, probability) == unlikely
        where = (np.array(theta), np.array(theta_new))
        return Release("decision", np.array([float(accepted)]), math.nan, where)

    @_silently
    def decision_clip_counts(
        self,
        moves: Sequence[tuple[FloatArray, FloatArray]],
        noise_multiplier: float,
        batches: BatchesWithoutReplacement,
        tempering: float,
    ) -> Release:
        """Release how many of all units decisions on moves would clip. See `pymc_dp.release.interface.Curator`."""
        if self._relation != "substitute":
            raise PrivacyError("How many units decisions clip is released where the number of units is public.")
        batches, tempering = _without_replacement(batches), float(tempering)
        plain, noise_multiplier = [tuple(map(_plain_vector, move)) for move in moves], float(noise_multiplier)
        if not plain:
            raise PrivacyError("There is no move to count clipped units in.")
        self._spend("clip_count", noise_multiplier)
        bound = clip_bound(batches.batch_size, tempering * batches.n_units)
        _check_bound(bound)
        everybody = np.arange(self._rows.n_units, dtype=np.int64)
        # Of all units, not of the decisions' batches: those are used up, and are not to be known.
        clipped = sum(
            self._rows.clipped_log_ratios(theta, theta_new, bound, _grid_of_decision(bound), everybody)[1]
            for theta, theta_new in plain
        )
        return self._noisy_counts([clipped], [len(plain)], noise_multiplier)

    @_silently
    def _batch_log_ratios(
        self,
        theta: FloatArray,
        theta_new: FloatArray,
        bound: float,
        batches: BatchesWithoutReplacement,
        tempering: float,
    ) -> tuple[IntArray, Fraction, int]:
        """Return clipped log-ratios of a fresh batch, what one step of them counts, and how many were clipped."""
        _check_bound(bound)
        units = drawn(batches, self._noise, self._rows.n_units)
        grid = _grid_of_decision(bound)
        log_ratios, n_clipped = self._rows.clipped_log_ratios(theta, theta_new, bound, grid, units)
        unit = Fraction(tempering) * Fraction(batches.n_units, batches.batch_size) * Fraction(grid)
        return log_ratios, unit, n_clipped

    @_silently
    def score(self, centre: ExpansionPoint, noise_multiplier: float, kind: str = "score") -> Release:
        """Release a sum of weighted scores. See `pymc_dp.release.interface.Curator`."""
        centre, noise_multiplier = _plain_centre(centre), float(noise_multiplier)
        self._spend(kind, noise_multiplier)
        clipped_sum = self._rows.expansion(centre).score(self._grid_of_sum(centre.clip_gradient, noise_multiplier))
        return self._released(kind, clipped_sum, noise_multiplier, centre.theta)

    @_silently
    def curvature(self, centre: ExpansionPoint, noise_multiplier: float, kind: str = "curvature") -> Release:
        """Release a sum of weighted curvatures. See `pymc_dp.release.interface.Curator`."""
        centre, noise_multiplier = _plain_centre(centre), float(noise_multiplier)
        self._spend(kind, noise_multiplier)
        grid = self._grid_of_sum(centre.clip_curvature, noise_multiplier)
        clipped_sum = self._rows.expansion(centre).curvature(grid)
        return self._released(kind, clipped_sum, noise_multiplier, centre.theta)

    @_silently
    def clipping_loss(self, centre: ExpansionPoint, noise_multiplier: float) -> Release:
        """Release how much of the scores weights have taken off. See `pymc_dp.release.interface.Curator`."""
        centre, noise_multiplier = _plain_centre(centre), float(noise_multiplier)
        if self._relation != "substitute":
            raise PrivacyError("What weights take off is released relative to the number of units, which is protected.")
        _check_bound(centre.clip_gradient)
        self._spend("clipping_loss", noise_multiplier)
        clipped_sum = self._rows.expansion(centre).clipping_loss(self._grid_of_sum(0.5, noise_multiplier))
        less_a_half = self._released("clipping_loss", clipped_sum, noise_multiplier, centre.theta)
        return replace(less_a_half, value=less_a_half.value + 0.5 * self._rows.n_units)

    @_silently
    def residual(
        self, centre: ExpansionPoint, old: Prediction, new: Prediction, bound: float, noise_multiplier: float
    ) -> Release:
        """Release a sum of clipped residual log-ratios. See `pymc_dp.release.interface.Curator`."""
        centre, old, new, bound = _plain_centre(centre), _plain_prediction(old), _plain_prediction(new), float(bound)
        noise_multiplier = float(noise_multiplier)
        self._spend("residual", noise_multiplier)
        grid = self._grid_of_sum(bound, noise_multiplier)
        clipped_sum = self._rows.expansion(centre).residual(old, new, bound, grid)
        return self._released("residual", clipped_sum, noise_multiplier, old.theta, new.theta)

    @_silently
    def clip_counts(self, noise_multiplier: float) -> Release:
        """Release mean clip counts since the last call. See `pymc_dp.release.interface.Curator`."""
        if self._batch_counts is not None:
            return self._batch_counts.taken()
        if not self._exact_counts:
            self._spend("clip_count", noise_multiplier)
        counts = [self._clipped[kind] for kind in self._clipped]
        terms = [max(1, self._evaluations[kind]) for kind in self._clipped]
        if self._relation == "add-remove":
            counts.append(self._rows.n_units)
            terms.append(1)
        for kind in self._clipped:
            self._clipped[kind] = self._evaluations[kind] = 0
        if self._exact_counts:
            exact = np.array(counts, dtype=np.float64) / terms
            return Release("clip_count", exact, 0.0, ())
        return self._noisy_counts(counts, terms, noise_multiplier)

    def _noisy_counts(self, counts: Sequence[int], terms: Sequence[int], noise_multiplier: float) -> Release:
        """Return each count divided by the number of terms that it is a sum of, with noise."""
        # One unit moves the mean of its indicators by at most 1 in every entry: sqrt(len) together.
        noise_std = noise_multiplier * math.sqrt(len(counts)) * _ROUNDING
        noisy = []
        for count, n_terms in zip(counts, terms, strict=True):
            # A power of two of at most 1, so that the integers are exact.
            grid = min(1.0, self._grid(1.0, noise_std * n_terms, noise_multiplier))
            integers = np.array([round(count / grid)], dtype=np.int64)
            noisy.append(self._noise.add(integers, noise_std * n_terms / grid)[0] * grid / n_terms)
        return Release("clip_count", np.array(noisy), noise_std, ())

    def _spend(self, kind: str, noise_multiplier: float, batches: Batches | None = None) -> None:
        """Count a release before the data is touched; refuse one that was not paid for."""
        self._meter.spend(kind, noise_multiplier, batches)

    def _grid_of_sum(self, bound: float, noise_multiplier: float) -> float:
        _check_bound(bound)
        factor = SENSITIVITY_FACTOR[self._relation]
        return self._grid(factor, noise_multiplier * factor * bound, noise_multiplier)

    def _grid(self, sensitivity_factor: float, noise_std: float, noise_multiplier: float) -> float:
        n_public = self._rows.n_units if self._relation == "substitute" else None
        return grid_for(noise_multiplier, sensitivity_factor, noise_std, n_public)

    def _released(self, kind: str, clipped_sum: ClippedSum, noise_multiplier: float, *where: FloatArray) -> Release:
        noise_std = noise_multiplier * clipped_sum.sensitivity(self._relation)
        if not 0.0 < noise_std < math.inf:
            raise PrivacyError(f"A release of kind {kind!r} would carry noise of standard deviation {noise_std}.")
        self._clipped[kind] += clipped_sum.n_clipped
        self._evaluations[kind] += 1
        noisy = self._noise.add(clipped_sum.integers, noise_std / clipped_sum.grid)
        return Release(
            kind,
            np.asarray(noisy * clipped_sum.grid, dtype=np.float64),
            noise_std,
            tuple(np.array(theta) for theta in where),
        )

    def _with_counts(
        self,
        integers: IntArray,
        grid: float,
        moved: float,
        noise_multiplier: float,
        batches: Batches,
        counts: IntArray,
        *,
        counted: bool,
    ) -> tuple[IntArray, float]:
        """Return noisy integers of a batch and the noise's standard deviation; release counts as further entries.

        `moved` is the sensitivity; `counts` are those of clipped units and of units in the batch. See
        `pymc_dp.release.batch_counts`.
        """
        size, weight = integers.size, 0
        riders = counts[:0]
        if counted:
            weight = count_weight(moved / batches.sensitivity_factor, grid)
            riders = counts[: 1 if self._relation == "substitute" else 2]
            moved *= batches.count_factor
        noise_std = noise_multiplier * moved
        if not 0.0 < noise_std < math.inf:
            raise PrivacyError(f"A release on a batch would carry noise of standard deviation {noise_std}.")
        noisy = self._noise.add(np.concatenate([integers, riders * weight]), noise_std / grid)
        if self._batch_counts is not None and counted:
            self._batch_counts.add(noisy[size:] / weight, noise_std / (weight * grid), batches.scale)
        elif self._batch_counts is not None and self._exact_counts:
            self._batch_counts.add(counts.astype(np.float64), 0.0, batches.scale)
        return noisy[:size], noise_std

    def __repr__(self) -> str:
        return f"MeteredCurator({self._meter!r})"


# A sampler's own objects are not trusted: what they say twice could differ. Their numbers are copied once.


def _plain_vector(theta: FloatArray) -> FloatArray:
    return np.array(theta, dtype=np.float64, subok=False)


def _plain_centre(centre: ExpansionPoint) -> ExpansionPoint:
    return ExpansionPoint(
        _plain_vector(centre.theta),
        _plain_vector(centre.directions),
        float(centre.clip_gradient),
        float(centre.clip_curvature),
    )


def _plain_prediction(prediction: Prediction) -> Prediction:
    return Prediction(
        _plain_vector(prediction.theta),
        _plain_vector(prediction.direction),
        bool(prediction.with_curvature),
        float(prediction.offset),
    )


def _without_replacement(batches: BatchesWithoutReplacement) -> BatchesWithoutReplacement:
    """Return a description of batches of a fixed size, which tests on batches are proved for."""
    plain = described(batches)
    if not isinstance(plain, BatchesWithoutReplacement):
        raise PrivacyError("A test on a batch takes batches of a fixed size: BatchesWithoutReplacement.")
    return plain


def _grid_of_decision(bound: float) -> float:
    """Return a grid on which contributions stay below 2**41 steps."""
    return math.ldexp(1.0, math.frexp(bound)[1] - 41)


def _check_bound(bound: float) -> None:
    """Refuse a bound that floating point cannot keep, before any row is touched."""
    if not SMALLEST_CLIP_BOUND <= bound <= LARGEST_CLIP_BOUND:
        raise PrivacyError(
            f"A clip bound of {bound:.3g} cannot be kept in floating point: use one between "
            f"{SMALLEST_CLIP_BOUND:g} and {LARGEST_CLIP_BOUND:g}."
        )
