r"""Trade-off curves: error rates of the best attacker who tests which of two neighbouring tables was used.

The attacker knows everything except which of two neighbouring tables was used, and tests one against the other by all
releases. The *trade-off* is the least rate of false negatives at each rate of false positives, over all tests
(Dong, Roth and Su 2022, Gaussian differential privacy, JRSS B 84); one minus it is the power of the best attacker. A
guarantee at each :math:`\epsilon` gives

.. math:: f(\alpha) \ge \max_{\epsilon \ge 0} \max\{0,\ 1 - \delta(\epsilon) - e^\epsilon \alpha,\
   e^{-\epsilon}(1 - \delta(\epsilon) - \alpha)\}

(ibid., Propositions 3 and 6, of a curve for both directions).
"""

import math
from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pymc_dp import _validate
from pymc_dp.accounting.account import (
    all_add_in_rho,
    check_relation,
    epsilon_of,
    epsilon_of_thresholds,
    of_thresholds,
    renyi_curve,
    total_rho,
    without_thresholds,
)
from pymc_dp.accounting.events import Relation, Releases
from pymc_dp.accounting.gaussian import gaussian_delta
from pymc_dp.accounting.loss_curves import Array
from pymc_dp.accounting.loss_distribution import loss_distribution_deltas
from pymc_dp.accounting.renyi import ORDERS
from pymc_dp.exceptions import InvalidArgument

#: The trade-off uses the privacy profile down to this delta.
_LEAST_DELTA = 1e-9
#: Number of guarantees in a trade-off; the largest epsilon, beyond which a guarantee is vacuous.
_GUARANTEES, _LARGEST_EPSILON = 600, 700.0


def privacy_profile(releases: Sequence[Releases], epsilons: ArrayLike, relation: Relation) -> Array:
    """Return the privacy profile of releases: for each epsilon the delta of their composition, as by `account`.

    Gaussian releases alone: their exact curve. With others: the smaller delta of loss distributions and Rényi bounds.

    Parameters
    ----------
    releases : sequence of Releases
        At least one; later ones may depend on earlier results.
    epsilons : array_like, shape (epsilons,)
        Each at least 0.
    relation : {"substitute", "add-remove"}
        All releases have to be valid for it.

    Returns
    -------
    ndarray, shape (epsilons,)
        In [0, 1]; never below the exact deltas, except for the discrete noise's `EPSILON_SLACK` in epsilon, and for
        deltas of 1e-9 or less of releases on samples.

    Raises
    ------
    InvalidArgument
        If `releases` is empty, one is not valid for the relation, or an epsilon is not a number of at least 0.
    """
    found = _numbers("epsilons", epsilons)
    if not (found >= 0.0).all():
        raise InvalidArgument("epsilons must be numbers of at least 0.")
    if not releases:
        raise InvalidArgument("A privacy profile requires at least one release.")
    check_relation(releases, relation)
    hidden, releases = of_thresholds(releases), without_thresholds(releases)
    if hidden:  # twice in delta, as an epsilon below that of the thresholds cannot pay for them
        less = np.maximum(found - epsilon_of_thresholds(min(hidden, 0.5)), 0.0)
        deltas: Array = np.minimum(privacy_profile(releases, less, relation) + 2.0 * hidden, 1.0)
        return deltas
    if all_add_in_rho(releases):
        rho = total_rho(releases)
        return np.array([gaussian_delta(rho, float(epsilon)) for epsilon in found])
    by_losses = loss_distribution_deltas(releases, found, _LEAST_DELTA)
    profile: Array = np.minimum(by_losses, _renyi_deltas(releases, found))
    return profile


def trade_off(releases: Sequence[Releases], false_positive_rates: ArrayLike, relation: Relation) -> Array:
    """Return the least rate of false negatives of any attacker, at each rate of false positives.

    Parameters
    ----------
    releases : sequence of Releases
        The releases that the attacker sees; at least one.
    false_positive_rates : array_like, shape (rates,)
        Probabilities of taking the one table for the other, in [0, 1].
    relation : {"substitute", "add-remove"}
        All releases have to be valid for it.

    Returns
    -------
    ndarray, shape (rates,)
        In [0, 1]; the power of the best attacker is at most 1 minus it. For Gaussian releases alone it is exact: the
        normal distribution function at z(1 - false positives) - sqrt(2 rho). For others it is a lower bound, under
        the conditions of the accounting.

    Raises
    ------
    InvalidArgument
        If `releases` is empty, one is not valid for the relation, or a rate is out of range.

    Examples
    --------
    >>> from pymc_dp.accounting import GaussianReleases
    >>> trade_off([GaussianReleases("score", 1, noise_multiplier=1.0)], [0.05], "substitute").round(3)
    array([0.74])
    """
    rates = _rates(false_positive_rates)
    if not releases:
        raise InvalidArgument("A trade-off requires at least one release.")
    check_relation(releases, relation)
    if all_add_in_rho(releases):
        ndtr, ndtri = scipy.special.ndtr, scipy.special.ndtri
        exact: Array = ndtr(-ndtri(rates) - math.sqrt(2.0 * total_rho(releases)))
        return exact
    least = min(max(_LEAST_DELTA, 2.0 * of_thresholds(releases)), 0.5)
    most = min(epsilon_of(releases, least, relation), _LARGEST_EPSILON)
    epsilons = np.linspace(0.0, most, _GUARANTEES)
    return _of_guarantees(epsilons, privacy_profile(releases, epsilons, relation), rates)


def trade_off_of_guarantee(epsilon: float, delta: float, false_positive_rates: ArrayLike) -> Array:
    """Return the least rate of false negatives that is compatible with an (epsilon, delta) guarantee.

    Parameters
    ----------
    epsilon : float
        At least 0.
    delta : float
        Strictly between 0 and 1.
    false_positive_rates : array_like, shape (rates,)
        In [0, 1].

    Returns
    -------
    ndarray, shape (rates,)
        In [0, 1]. The trade-off of the releases themselves is above it: a guarantee is one point of their profile.

    Raises
    ------
    InvalidArgument
        If an argument is out of range.
    """
    epsilon = min(_validate.not_negative("epsilon", epsilon), _LARGEST_EPSILON)
    delta = _validate.open_unit_interval("delta", delta)
    return _of_guarantees(np.array([epsilon]), np.array([delta]), _rates(false_positive_rates))


def _of_guarantees(epsilons: Array, deltas: Array, rates: Array) -> Array:
    """Return the trade-off that is compatible with several guarantees that hold together."""
    spared = 1.0 - deltas[:, None]
    of_first = spared - np.exp(epsilons)[:, None] * rates
    of_second = np.exp(-epsilons)[:, None] * (spared - rates)
    found: Array = np.maximum(np.maximum(of_first, of_second).max(axis=0), 0.0)
    return found


def _renyi_deltas(releases: Sequence[Releases], epsilons: Array) -> Array:
    """Return the smallest delta over all orders, the inverse of `renyi.convert`, plus the rounding of decisions."""
    rounding = math.fsum(each.rounding for each in releases)
    curve = renyi_curve(releases)
    covered = np.isfinite(curve)
    if not covered.any():
        return np.ones_like(epsilons)
    orders, bounds = np.array(ORDERS, dtype=float)[covered, None], curve[covered, None]
    less = np.maximum(epsilons - 2.0 * rounding, 0.0)
    log_deltas = (orders - 1.0) * (bounds + np.log1p(-1.0 / orders) - less) - np.log(orders)
    deltas: Array = np.exp(np.minimum(log_deltas.min(axis=0) + rounding, 0.0))
    return np.where(epsilons < 2.0 * rounding, 1.0, deltas)


def _rates(false_positive_rates: ArrayLike) -> Array:
    rates = _numbers("false_positive_rates", false_positive_rates)
    if not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise InvalidArgument("false_positive_rates must be probabilities, between 0 and 1.")
    return rates


def _numbers(name: str, values: ArrayLike) -> Array:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} must be a sequence of numbers.") from None
    if numbers.ndim != 1:
        raise InvalidArgument(f"{name} must be a sequence of numbers, but has {numbers.ndim} dimensions.")
    return numbers
