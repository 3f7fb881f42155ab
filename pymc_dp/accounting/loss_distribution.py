r"""Privacy loss distributions: numerical composition of subsampled Gaussian releases, from above throughout.

The hockey-stick curve :math:`h(\alpha) = \sup_S P(S) - \alpha Q(S)` of a release is convex. Joining its values at
:math:`\alpha = e^{ih}` by straight lines gives the curve of a discrete pair that dominates the release (Doroshenko,
Ghazi, Kamath, Kumar and Manurangsi 2022), and dominating pairs compose under adaptive composition (Zhu, Dong and
Wang 2022, Theorem 10). The pairs' losses add, so their distributions are convolved, all at once in Fourier space.

The two directions of add-remove are composed apart; the larger epsilon counts. Under substitution one curve bounds
both. Mass that may have left the window counts as infinite loss, and what rounding may have taken off delta is
taken off the delta that is asked for; where that would be all of it, the answer is infinity.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr, ndtr

from pymc_dp import _validate
from pymc_dp.accounting.events import (
    GaussianReleases,
    NoisyReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
)

Array = NDArray[Any]
Curve = Callable[[Array], Array]

#: Relative excess in epsilon that the grid is chosen for.
DEFAULT_TOLERANCE = 3e-4
#: Rounding in delta, for each composition: a generous multiple of the unit roundoff (tests measure it).
_ROUNDING = 4e-15
_SMALLEST_INTERVAL, _LARGEST_INTERVAL = 1e-7, 0.05
_MOST_POINTS, _MOST_POINTS_OF_ONE = 2**23, 2**17
#: Above this slope of Chernoff's bound rare large losses may matter.
_HEAVY_TAILED = 10.0
#: Larger losses count as infinite.
_LARGEST_EPSILON = 500.0


@dataclass(frozen=True)
class _Losses:
    """The distribution of one release's loss: `masses[i]` at (first + i) times the interval, the rest infinite."""

    first: int
    masses: Array
    infinite: float


def _gaussian_curve(epsilon: Array, noise_multiplier: float) -> Array:
    """Return the delta of one Gaussian release at each epsilon, also below zero."""
    half = 0.5 / noise_multiplier
    delta = ndtr(half - epsilon * noise_multiplier) - np.exp(epsilon + log_ndtr(-half - epsilon * noise_multiplier))
    return np.maximum(np.asarray(delta), 0.0)


def _remove_curve(epsilon: Array, q: float, noise_multiplier: float) -> Array:
    """Return the curve of the pair ((1 - q) N(0) + q N(1), N(0))."""
    if q == 1.0:
        return _gaussian_curve(epsilon, noise_multiplier)
    excess = np.expm1(epsilon) / q
    delta = -np.expm1(epsilon)
    inside = excess > -1.0
    delta[inside] = q * _gaussian_curve(np.log1p(excess[inside]), noise_multiplier)
    return delta


def _add_curve(epsilon: Array, q: float, noise_multiplier: float) -> Array:
    """Return the curve of the pair (N(0), (1 - q) N(0) + q N(1))."""
    if q == 1.0:
        return _gaussian_curve(epsilon, noise_multiplier)
    rest = 1.0 - np.exp(epsilon) * (1.0 - q)
    delta = np.zeros_like(epsilon)
    inside = rest > 0.0
    ratio = epsilon[inside] + math.log(q) - np.log(rest[inside])
    delta[inside] = rest[inside] * _gaussian_curve(ratio, noise_multiplier)
    return delta


def _substitute_curve(epsilon: Array, q: float, noise_multiplier: float) -> Array:
    """Return a curve above that of sampling without replacement, under substitution.

    For alpha >= 1 advanced joint convexity (Balle, Barthe and Gaboardi 2018, Theorem 2) gives q times the Gaussian
    curve, and the relation is symmetric, which gives the rest (Zhu, Dong and Wang 2022, Proposition 30).
    """
    upper = _remove_curve(np.where(epsilon < 0.0, -epsilon, epsilon), q, noise_multiplier)
    return np.where(epsilon >= 0.0, upper, -np.expm1(epsilon) + np.exp(epsilon) * upper)


def _directed(releases: NoisyReleases, direction: int, log_tail: float) -> tuple[Curve, float, float]:
    """Return the curve of one release in one direction, and between which losses all but exp(log_tail) lies."""
    tau = releases.noise_multiplier
    largest = 0.5 / tau**2 + math.sqrt(-2.0 * log_tail) / tau
    if isinstance(releases, GaussianReleases):
        return (lambda epsilon: _gaussian_curve(epsilon, tau)), -largest, largest
    q = releases.sampling_probability
    if largest < 700.0:
        largest = math.log1p(q * math.expm1(largest))
    if isinstance(releases, WithoutReplacementGaussianReleases):
        return (lambda epsilon: _substitute_curve(epsilon, q, tau)), -largest, largest
    bound = -math.log1p(-q) if q < 1.0 else largest
    if direction == 0:
        return (lambda epsilon: _remove_curve(epsilon, q, tau)), -min(bound, largest), largest
    return (lambda epsilon: _add_curve(epsilon, q, tau)), -largest, min(bound, largest)


def _discretise(curve: Curve, interval: float, smallest: float, largest: float) -> _Losses:
    """Return the losses of the pair whose curve joins `curve` at multiples of `interval` by straight lines."""
    first = math.floor(smallest / interval)
    values = curve(interval * np.arange(first, math.ceil(largest / interval) + 1))
    rise = np.diff(values)
    masses = np.empty_like(values)
    masses[0] = 1.0 - values[0]
    masses[1:] = rise / math.expm1(-interval)
    masses[:-1] += rise / math.expm1(interval)
    masses = np.maximum(masses, 0.0)
    kept = np.flatnonzero(masses)
    begin, stop = int(kept[0]), int(kept[-1]) + 1
    return _Losses(first + begin, masses[begin:stop], float(values[-1]))


def _spread(releases: NoisyReleases) -> float:
    """Return the variance of the loss of one release, roughly."""
    variance = 1.0 / releases.noise_multiplier**2
    if isinstance(releases, GaussianReleases):
        return variance
    q = releases.sampling_probability
    return q * min(q * math.expm1(min(variance, 50.0)), variance * (1.0 + variance))


def _window(parts: Sequence[_Losses], counts: Sequence[int], interval: float, log_tail: float) -> tuple[int, int]:
    """Return the grid points between which all but exp(log_tail) of the composed mass on each side lies."""
    ends = []
    variance = 0.0
    losses = [interval * (part.first + np.arange(len(part.masses))) for part in parts]
    for part, loss, count in zip(parts, losses, counts, strict=True):
        first = float(part.masses @ loss)
        variance += count * max(float(part.masses @ loss**2) - first**2, 0.0)
    typical = math.sqrt(-2.0 * log_tail / max(variance, 1e-300))
    slopes = [factor * typical for factor in (0.2, 0.45, 0.9)]
    if typical > _HEAVY_TAILED:  # rare large losses: the variance does not say how far out they reach
        slopes += [1.5, 3.0, 6.0]
    for side in (-1.0, 1.0):
        best = math.inf
        for slope in slopes:
            log_moment = 0.0
            for part, loss, count in zip(parts, losses, counts, strict=True):
                exponent = side * slope * loss
                top = float(exponent.max())
                log_moment += count * (top + math.log(float(part.masses @ np.exp(exponent - top))))
            best = min(best, (log_moment - log_tail) / slope)  # Chernoff's bound
        extreme = sum(
            count * float(side * (loss[-1] if side > 0 else loss[0]))
            for loss, count in zip(losses, counts, strict=True)
        )
        ends.append(side * min(best, extreme))
    return math.floor(ends[0] / interval) - 1, math.ceil(ends[1] / interval) + 1


def _composed_epsilon(parts: Sequence[_Losses], counts: Sequence[int], interval: float, delta: float) -> float:
    """Return the epsilon of everything together in one direction."""
    log_tail = math.log(delta) - 14.0
    low, high = _window(parts, counts, interval, log_tail)
    longest = max(len(part.masses) for part in parts)
    size = next_fast_len(max(high - low + 1, longest), real=True)
    if size > _MOST_POINTS:
        return math.inf
    transform = np.ones(size // 2 + 1, dtype=complex)
    shift = 0
    log_finite = 0.0
    for part, count in zip(parts, counts, strict=True):
        # Centred, so that raising to a high power does not turn the phase round and round.
        centre = round(float(part.masses @ np.arange(len(part.masses))))
        padded = np.zeros(size)
        padded[: len(part.masses)] = part.masses
        transform *= rfft(np.roll(padded, -centre)) ** count
        shift += count * (part.first + centre)
        log_finite += count * math.log1p(-part.infinite)
    composed = np.roll(irfft(transform, size), (shift - low) % size)[: high - low + 1]
    infinite = -math.expm1(log_finite) + math.exp(log_tail)
    target = delta - infinite - _ROUNDING * (sum(counts) + 100)
    if target <= 0.0:
        return math.inf
    loss = interval * np.arange(low, high + 1)
    positive = loss > 0.0
    masses, loss = np.maximum(composed[positive], 0.0), loss[positive]
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
    releases: Sequence[NoisyReleases], delta: float, tolerance: float = DEFAULT_TOLERANCE
) -> float:
    """Return an epsilon for which the releases together are (epsilon, delta)-private.

    The releases have to be for one relation; `pymc_dp.accounting.account` checks that.

    Parameters
    ----------
    releases : sequence of releases
        At least one, Gaussian on all rows or on samples.
    delta : float
        Strictly between 0 and 1.
    tolerance : float
        Relative excess in epsilon, roughly: the grid is made that fine.

    Returns
    -------
    float
        Never below the exact epsilon; infinite where delta is too small, or losses too large, for double precision.
    """
    delta = _validate.open_unit_interval("delta", delta)
    rho = math.fsum(each.rho for each in releases if isinstance(each, GaussianReleases))
    merged: dict[NoisyReleases, int] = {}
    for each in releases:
        if not isinstance(each, GaussianReleases):
            single = _one_of(each)
            merged[single] = merged.get(single, 0) + each.count
    if rho > 0.0:  # Gaussian releases compose to one
        merged[GaussianReleases("all", 1, math.sqrt(0.5 / rho))] = 1
    counts = list(merged.values())
    variance = sum(count * _spread(single) for single, count in merged.items())
    interval = math.sqrt(4.0 * tolerance * variance / sum(counts))
    interval = min(max(interval, _SMALLEST_INTERVAL), _LARGEST_INTERVAL)
    log_tail = math.log(delta) - math.log(sum(counts)) - 14.0
    widest = max(_directed(single, 0, log_tail)[2] for single in merged)
    interval = max(interval, widest / _MOST_POINTS_OF_ONE)  # heavy tails: epsilon is of their size, so is the grid
    if interval > _LARGEST_EPSILON:
        return math.inf
    directions = 2 if any(isinstance(single, PoissonGaussianReleases) for single in merged) else 1
    worst = 0.0
    for direction in range(directions):
        parts = []
        for single in merged:
            curve, smallest, largest = _directed(single, direction, log_tail)
            with np.errstate(over="ignore", invalid="ignore"):
                parts.append(_discretise(curve, interval, smallest, largest))
        if not all(np.isfinite(part.masses).all() for part in parts):
            return math.inf
        worst = max(worst, _composed_epsilon(parts, counts, interval, delta))
    return worst


def _one_of(releases: NoisyReleases) -> NoisyReleases:
    """Return one release of an event, with the labels that do not matter for its cost taken off."""
    tau = releases.noise_multiplier
    if isinstance(releases, PoissonGaussianReleases):
        return PoissonGaussianReleases("one", 1, tau, releases.sampling_probability)
    if isinstance(releases, WithoutReplacementGaussianReleases):
        return WithoutReplacementGaussianReleases("one", 1, tau, releases.batch_size, releases.n_units)
    return GaussianReleases("one", 1, tau)
