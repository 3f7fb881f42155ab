r"""Hockey-stick curves of one release: :math:`h(\epsilon) = \sup_S P(S) - e^\epsilon Q(S)`, also for epsilon < 0.

`P` and `Q` are the release's distributions on neighbouring tables, or a pair that dominates them (Zhu and others 2022).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[Any]
Curve = Callable[[Array], Array]


@dataclass(frozen=True)
class DominatingPair:
    """A dominating pair of one release in one direction, by its hockey-stick curve."""

    curve: Curve  # delta at each epsilon
    smallest: float  # losses outside of these limits have at most the requested tail probability
    largest: float


def gaussian_curve(epsilon: Array, noise_multiplier: float) -> Array:
    """Return the delta of one Gaussian release at each epsilon, negative ones included."""
    half = 0.5 / noise_multiplier
    ndtr, log_ndtr = scipy.special.ndtr, scipy.special.log_ndtr
    delta = ndtr(half - epsilon * noise_multiplier) - np.exp(epsilon + log_ndtr(-half - epsilon * noise_multiplier))
    return np.maximum(np.asarray(delta), 0.0)


def remove_curve(epsilon: Array, q: float, noise_multiplier: float) -> Array:
    """Return the curve of the pair ((1 - q) N(0) + q N(1), N(0))."""
    if q == 1.0:
        return gaussian_curve(epsilon, noise_multiplier)
    excess = np.expm1(epsilon) / q
    delta = -np.expm1(epsilon)
    inside = excess > -1.0
    delta[inside] = q * gaussian_curve(np.log1p(excess[inside]), noise_multiplier)
    return delta


def add_curve(epsilon: Array, q: float, noise_multiplier: float) -> Array:
    """Return the curve of the pair (N(0), (1 - q) N(0) + q N(1))."""
    if q == 1.0:
        return gaussian_curve(epsilon, noise_multiplier)
    rest = 1.0 - np.exp(epsilon) * (1.0 - q)
    delta = np.zeros_like(epsilon)
    inside = rest > 0.0
    ratio = epsilon[inside] + math.log(q) - np.log(rest[inside])
    delta[inside] = rest[inside] * gaussian_curve(ratio, noise_multiplier)
    return delta


def substitute_curve(epsilon: Array, q: float, noise_multiplier: float) -> Array:
    """Return an upper bound of the curve of sampling without replacement, under substitution.

    For exp(epsilon) >= 1 advanced joint convexity (Balle, Barthe and Gaboardi 2018, Theorem 2) gives q times the
    Gaussian curve; for smaller ones the symmetry of the relation does (Zhu, Dong and Wang 2022, Proposition 30).
    """
    upper = remove_curve(np.where(epsilon < 0.0, -epsilon, epsilon), q, noise_multiplier)
    return np.where(epsilon >= 0.0, upper, -np.expm1(epsilon) + np.exp(epsilon) * upper)


def _largest_loss(noise_multiplier: float, log_tail: float) -> float:
    """Return a loss of the Gaussian release that is exceeded with probability exp(log_tail) at most."""
    return 0.5 / noise_multiplier**2 + math.sqrt(-2.0 * log_tail) / noise_multiplier


def _amplified(largest: float, q: float) -> float:
    return math.log1p(q * math.expm1(largest)) if largest < 700.0 else largest


def gaussian_pair(noise_multiplier: float, log_tail: float) -> DominatingPair:
    """Return the pair of a Gaussian release of all rows, for both directions."""
    largest = _largest_loss(noise_multiplier, log_tail)
    return DominatingPair(lambda epsilon: gaussian_curve(epsilon, noise_multiplier), -largest, largest)


def poisson_pairs(q: float, noise_multiplier: float, log_tail: float) -> tuple[DominatingPair, DominatingPair]:
    """Return the pairs of the Poisson-subsampled Gaussian for a removed unit and for an added unit."""
    largest = _amplified(_largest_loss(noise_multiplier, log_tail), q)
    bound = -math.log1p(-q) if q < 1.0 else largest
    return (
        DominatingPair(lambda epsilon: remove_curve(epsilon, q, noise_multiplier), -min(bound, largest), largest),
        DominatingPair(lambda epsilon: add_curve(epsilon, q, noise_multiplier), -largest, min(bound, largest)),
    )


def without_replacement_pair(q: float, noise_multiplier: float, log_tail: float) -> DominatingPair:
    """Return the pair of a Gaussian release on a batch without replacement, for both directions of substitution."""
    largest = _amplified(_largest_loss(noise_multiplier, log_tail), q)
    return DominatingPair(lambda epsilon: substitute_curve(epsilon, q, noise_multiplier), -largest, largest)


def sampled_spread(q: float, noise_multiplier: float) -> float:
    """Return the approximate variance of the privacy loss of one Gaussian release on a sample."""
    variance = 1.0 / noise_multiplier**2
    return q * min(q * math.expm1(min(variance, 50.0)), variance * (1.0 + variance))
