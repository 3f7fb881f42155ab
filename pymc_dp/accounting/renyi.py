r"""Rényi divergences of one release at an integer order, exact or bounds, and their conversion to epsilon.

A bound at order :math:`\alpha` bounds the Rényi divergence between the output distributions on neighbouring tables, in
both directions. Bounds at the same order add under adaptive composition (Mironov 2017, Proposition 1).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument

#: The orders over which epsilon is minimised, all integers, as the subsampling theorems require.
ORDERS = (*range(2, 65), *range(68, 129, 4), *range(144, 257, 16), *range(320, 1025, 64))
_LOG_2 = math.log(2.0)


def _log_binomials(order: int) -> NDArray[np.float64]:
    """Return the logarithms of (order choose j), j = 0..order."""
    j = np.arange(order + 1)
    gammaln = scipy.special.gammaln
    return np.asarray(gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1))


def gaussian_bound(order: int, noise_multiplier: float) -> float:
    """Return the exact divergence of a Gaussian release, order / (2 noise_multiplier²) (Mironov 2017, Prop. 7)."""
    return order / (2.0 * noise_multiplier**2)


def poisson_gaussian_bound(order: int, sampling_probability: float, noise_multiplier: float) -> float:
    """Return the exact divergence of one Poisson-subsampled Gaussian release under add-remove.

    Mironov, Talwar and Zhang (2019), Rényi differential privacy of the sampled Gaussian mechanism, section 3.3;
    Theorem 5 for both directions.
    """
    if sampling_probability == 1.0:
        return gaussian_bound(order, noise_multiplier)
    j = np.arange(2, order + 1)
    # Sum of binomial probabilities times exp(c) is 1 + the sum with expm1(c), and c vanishes for j = 0, 1.
    exponents = j * (j - 1.0) / (2.0 * noise_multiplier**2)
    log_expm1 = exponents + np.log(-np.expm1(-exponents))
    weights = _log_binomials(order)[2:] + j * math.log(sampling_probability)
    weights = weights + (order - j) * math.log1p(-sampling_probability)
    return float(np.logaddexp(0.0, scipy.special.logsumexp(weights + log_expm1))) / (order - 1.0)


def without_replacement_bound(order: int, sampling_probability: float, bounds: Sequence[float]) -> float:
    """Return a bound of the divergence, under substitution, of a mechanism on a batch drawn without replacement.

    `bounds` are those of the mechanism itself at orders 2, 3, ..., `order`, for replacing one unit of the batch.

    Wang, Balle and Kasiviswanathan (2019), Subsampled Rényi differential privacy and analytical moments accountant,
    Theorem 9, for mechanisms of unbounded loss.
    """
    own = np.asarray(bounds, dtype=float)
    j = np.arange(2, order + 1)
    terms = _log_binomials(order)[2:] + j * math.log(sampling_probability) + (j - 1.0) * own + _LOG_2
    second = float(own[0])
    factor = _LOG_2 + second if second >= _LOG_2 else math.log(4.0) + math.log(math.expm1(second))
    terms[0] = _log_binomials(order)[2] + 2.0 * math.log(sampling_probability) + factor
    return float(np.logaddexp(0.0, scipy.special.logsumexp(terms))) / (order - 1.0)


def barker_batch_bound(order: int, batch_size: int) -> float:
    """Return a bound of the divergence of one Barker decision for replacing one unit of its batch, 2 <= order < b/5.

    Heikkilä, Jälkö, Dikmen and Honkela (2019), Differentially private Markov chain Monte Carlo, Theorem 4.
    """
    rest = batch_size - 5.0 * order
    if rest <= 0.0:
        raise InvalidArgument(f"order {order} is not below a fifth of the batch size {batch_size}.")
    return 2.5 / batch_size + math.log(2.0 * batch_size / rest) / (2.0 * (order - 1.0)) + 2.0 * order / rest


def on_batches(order: int, sampling_probability: float, bound_of_batch: Callable[[int], float]) -> float:
    """Return a bound of the divergence, under substitution, of a mechanism on a batch, given its own at each order.

    A mixture over batches has at most the divergence of the mechanism on a batch (quasi-convexity).
    """
    own = [bound_of_batch(j) for j in range(2, order + 1)]
    return min(without_replacement_bound(order, sampling_probability, own), own[-1])


def convert(order: int, bound: float, delta: float) -> float:
    """Return an epsilon for which a mechanism with a Rényi bound is (epsilon, delta)-private.

    Canonne, Kamath and Steinke (2020), The discrete Gaussian for differential privacy, Proposition 12.
    """
    order = _validate.whole("order", order, at_least=2)
    bound = _validate.not_negative("bound", bound)
    delta = _validate.open_unit_interval("delta", delta)
    return max(0.0, bound + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0))
