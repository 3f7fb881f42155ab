r"""Privacy loss distributions: numerical composition of subsampled Gaussian releases, pessimistic throughout.

The hockey-stick curve :math:`h(\alpha) = \sup_S P(S) - \alpha Q(S)` of a release is convex. Joining its values at
:math:`\alpha = e^{ih}` by straight lines gives the curve of a discrete pair that dominates the release (Doroshenko,
Ghazi, Kamath, Kumar and Manurangsi 2022), and dominating pairs compose under adaptive composition (Zhu, Dong and
Wang 2022, Theorem 10). The pairs' losses add, so their distributions are convolved, all at once in Fourier space.

The two directions of add-remove are composed separately, and the larger epsilon is returned. Under substitution one
curve bounds both. Mass outside of the window counts as infinite loss, and a bound of the rounding error is subtracted
from the requested delta; if nothing of it remains, the result is infinity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from pymc_dp import _validate
from pymc_dp.accounting.events import GaussianReleases, Releases
from pymc_dp.accounting.loss_curves import Array, DominatingPair

#: Relative excess in epsilon that determines the grid.
DEFAULT_TOLERANCE = 3e-4
#: Rounding in delta, for each composition: a generous multiple of the unit roundoff (tests measure it).
_ROUNDING = 4e-15
_SMALLEST_INTERVAL, _LARGEST_INTERVAL = 1e-7, 0.05
_MOST_POINTS, _MOST_POINTS_OF_ONE = 2**23, 2**17
#: Above this slope of Chernoff's bound, rare large losses may dominate.
_HEAVY_TAILED = 10.0
#: Larger losses count as infinite.
_LARGEST_EPSILON = 500.0


@dataclass(frozen=True)
class _Losses:
    """The distribution of one release's loss: `masses[i]` at (first + i) times the interval, the rest infinite."""

    first: int
    masses: Array
    infinite: float


def _discretise(pair: DominatingPair, interval: float) -> _Losses:
    """Return the losses of the pair whose curve, linear in exp(loss), meets that of `pair` at multiples of a step."""
    first = math.floor(pair.smallest / interval)
    values = pair.curve(interval * np.arange(first, math.ceil(pair.largest / interval) + 1))
    rise = np.diff(values)
    masses = np.empty_like(values)
    masses[0] = 1.0 - values[0]
    masses[1:] = rise / math.expm1(-interval)
    masses[:-1] += rise / math.expm1(interval)
    masses = np.maximum(masses, 0.0)
    kept = np.flatnonzero(masses)
    begin, stop = int(kept[0]), int(kept[-1]) + 1
    return _Losses(first + begin, masses[begin:stop], float(values[-1]))


def _window(parts: Sequence[_Losses], counts: Sequence[int], interval: float, log_tail: float) -> tuple[int, int]:
    """Return grid points that leave a composed mass of at most exp(log_tail) outside on each side."""
    losses = [interval * (part.first + np.arange(len(part.masses))) for part in parts]
    known = list(zip([part.masses for part in parts], losses, counts, strict=True))
    variance = sum(count * max(float(mass @ loss**2) - float(mass @ loss) ** 2, 0.0) for mass, loss, count in known)
    typical = math.sqrt(-2.0 * log_tail / max(variance, 1e-300))
    slopes = [factor * typical for factor in (0.2, 0.45, 0.9)]
    if typical > _HEAVY_TAILED:  # rare large losses lie far beyond the scale of the variance
        slopes += [1.5, 3.0, 6.0]
    ends = []
    for side in (-1.0, 1.0):
        best = sum(count * float(side * (loss[-1] if side > 0 else loss[0])) for _, loss, count in known)
        for slope in slopes:
            log_moment = 0.0
            for mass, loss, count in known:
                exponent = side * slope * loss
                top = float(exponent.max())
                log_moment += count * (top + math.log(float(mass @ np.exp(exponent - top))))
            best = min(best, (log_moment - log_tail) / slope)  # Chernoff's bound
        ends.append(side * best)
    return math.floor(ends[0] / interval) - 1, math.ceil(ends[1] / interval) + 1


@dataclass(frozen=True)
class _Composed:
    """A pessimistic distribution of the privacy loss of the composition, in one direction."""

    losses: Array  # finite, shape (points,)
    masses: Array  # their probabilities, shape (points,)
    missing: float  # additional delta: infinite losses, mass outside of the window, and rounding

    def deltas(self, epsilons: Array) -> Array:
        """Return for each epsilon, at least 0, a delta for which the composition is (epsilon, delta)-private."""
        positive = self.losses > 0.0
        masses, losses = self.masses[positive], self.losses[positive]
        above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
        discounted = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)
        first = np.searchsorted(losses, epsilons, side="right")  # losses beyond epsilon
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.where(discounted[first] > 0.0, above[first] - np.exp(epsilons) * discounted[first], 0.0)
        deltas: Array = np.minimum(np.maximum(finite, 0.0) + self.missing, 1.0)
        return deltas


def _compose(parts: Sequence[_Losses], counts: Sequence[int], interval: float, delta: float) -> _Composed | None:
    """Return the loss of the composition in one direction, precise enough for `delta`; None if it is too wide."""
    log_tail = math.log(delta) - 14.0
    low, high = _window(parts, counts, interval, log_tail)
    longest = max(len(part.masses) for part in parts)
    size = scipy.fft.next_fast_len(max(high - low + 1, longest), real=True)
    if size > _MOST_POINTS:
        return None
    transform = np.ones(size // 2 + 1, dtype=complex)
    shift = 0
    log_finite = 0.0
    for part, count in zip(parts, counts, strict=True):
        # Centred at the mean, so that a high power does not rotate the phase of the transform many times.
        centre = round(float(part.masses @ np.arange(len(part.masses))))
        padded = np.zeros(size)
        padded[: len(part.masses)] = part.masses
        transform *= np.fft.rfft(np.roll(padded, -centre)) ** count
        shift += count * (part.first + centre)
        log_finite += count * math.log1p(-part.infinite)
    composed = np.roll(np.fft.irfft(transform, size), (shift - low) % size)[: high - low + 1]
    missing = -math.expm1(log_finite) + math.exp(log_tail) + _ROUNDING * (sum(counts) + 100)
    return _Composed(interval * np.arange(low, high + 1), np.maximum(composed, 0.0), missing)


def _composed_epsilon(composed: _Composed, delta: float) -> float:
    """Return the epsilon of the composition in one direction; infinite where the missing mass reaches delta."""
    target = delta - composed.missing
    if target <= 0.0:
        return math.inf
    positive = composed.losses > 0.0
    masses, loss = composed.masses[positive], composed.losses[positive]
    beyond = float(masses[loss > _LARGEST_EPSILON].sum())
    if beyond > target:
        return math.inf
    masses, loss = masses[loss <= _LARGEST_EPSILON], loss[loss <= _LARGEST_EPSILON]
    target -= beyond
    # delta(epsilon) = above - exp(epsilon) * discounted, both sums over losses beyond epsilon
    above = np.cumsum(masses[::-1])[::-1]
    discounted = np.cumsum((masses * np.exp(-loss))[::-1])[::-1]
    at_left = np.concatenate(([0.0], loss[:-1]))
    too_much = np.flatnonzero(above - np.exp(at_left) * discounted > target)
    if len(too_much) == 0:
        return 0.0
    last = int(too_much[-1])
    return float(min(loss[last], math.log((above[last] - target) / discounted[last])))


def loss_distribution_epsilon(
    releases: Sequence[Releases], delta: float, tolerance: float = DEFAULT_TOLERANCE
) -> float:
    """Return an epsilon for which the releases together are (epsilon, delta)-private.

    The releases, at least one, have to be for one relation; `pymc_dp.accounting.account` checks that. The tolerance
    determines the grid and is about the relative excess in epsilon. The result is never below the exact epsilon. It
    is infinite where the distribution of a loss is unknown, or where delta is too small, or losses too large, for
    double precision.
    """
    delta = _validate.open_unit_interval("delta", delta)
    found = _composed(releases, delta, tolerance)
    return math.inf if found is None else max(_composed_epsilon(each, delta) for each in found)


def loss_distribution_deltas(releases: Sequence[Releases], epsilons: Array, least_delta: float = 1e-9) -> Array:
    """Return for each epsilon a delta for which the releases together are (epsilon, delta)-private.

    Releases are as in `loss_distribution_epsilon`, epsilons at least 0. Deltas much below `least_delta` are not
    resolved: they are rounded up to a small part of it. The results, shape (epsilons,), are never below the
    exact deltas; they are 1 where the distribution of a loss is unknown.
    """
    least_delta = _validate.open_unit_interval("least_delta", least_delta)
    found = _composed(releases, least_delta, DEFAULT_TOLERANCE)
    if found is None:
        return np.ones_like(epsilons)
    worst: Array = np.max([each.deltas(epsilons) for each in found], axis=0)
    return worst


def _composed(releases: Sequence[Releases], delta: float, tolerance: float) -> list[_Composed] | None:
    """Return the loss of the composition in each direction; None where a loss is unknown, or too wide."""
    rho = math.fsum(each.rho for each in releases if each.adds_in_rho)
    merged: dict[Releases, int] = {}
    for each in releases:
        if not each.adds_in_rho:
            single = each.alone()
            merged[single] = merged.get(single, 0) + each.count
    if rho > 0.0:  # Gaussian releases compose to one
        merged[GaussianReleases("all", 1, math.sqrt(0.5 / rho))] = 1
    counts = list(merged.values())
    log_tail = math.log(delta) - math.log(sum(counts)) - 14.0
    pairs = [single.dominating_pairs(log_tail) for single in merged]
    if not all(pairs):
        return None
    variance = sum(count * single.loss_variance for single, count in merged.items())
    interval = math.sqrt(4.0 * tolerance * variance / sum(counts))
    interval = min(max(interval, _SMALLEST_INTERVAL), _LARGEST_INTERVAL)
    widest = max(directed[0].largest for directed in pairs)
    interval = max(interval, widest / _MOST_POINTS_OF_ONE)  # heavy tails: epsilon and so the grid are of their size
    if interval > _LARGEST_EPSILON:
        return None
    found = []
    directions = max(len(directed) for directed in pairs)
    for direction in range(directions):
        with np.errstate(over="ignore", invalid="ignore"):
            parts = [_discretise(directed[direction % len(directed)], interval) for directed in pairs]
        if not all(np.isfinite(part.masses).all() for part in parts):
            return None
        composed = _compose(parts, counts, interval, delta)
        if composed is None:
            return None
        found.append(composed)
    return found
