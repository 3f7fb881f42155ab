r"""What an attacker can achieve who tries to tell two neighbouring tables apart: trade-off curves.

The attacker knows everything but which of two neighbouring tables was used, and tests one against the other by all that
was released. The *trade-off* is the least rate of false negatives at each rate of false positives, over all tests
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

#: The privacy profile is followed until its delta is below this.
_LEAST_DELTA = 1e-9
#: Guarantees that a trade-off is computed of; largest epsilon, beyond which a guarantee says nothing.
_GUARANTEES, _LARGEST_EPSILON = 600, 700.0


def privacy_profile(releases: Sequence[Releases], epsilons: ArrayLike, relation: Relation) -> Array:
    """Return for each epsilon the delta that `account` finds for releases together.

    Gaussian releases alone: their exact curve. With others: the better of privacy loss distributions and Rényi bounds.

    Parameters
    ----------
    releases : sequence of Releases
        At least one; later ones may be chosen in the light of earlier results.
    epsilons : array_like, shape (epsilons,)
        Each at least 0.
    relation : {"substitute", "add-remove"}
        All releases have to be valid for it.

    Returns
    -------
    ndarray, shape (epsilons,)
        In [0, 1]; never below the exact deltas, but for the discrete noise's `EPSILON_SLACK` in epsilon, and for
        deltas of 1e-9 or less of releases on samples.

    Raises
    ------
    InvalidArgument
        If there is no release, one is not valid for the relation, or an epsilon is no number of at least 0.
    """
    found = _numbers("epsilons", epsilons)
    if not (found >= 0.0).all():
        raise InvalidArgument("epsilons must be numbers of at least 0.")
    if not releases:
        raise InvalidArgument("A privacy profile is one of releases: there is none.")
    check_relation(releases, relation)
    hidden, releases = of_thresholds(releases), without_thresholds(releases)
    if hidden:  # twice: an epsilon below what thresholds cost besides their delta pays for that in delta
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
        What the attacker sees; at least one.
    false_positive_rates : array_like, shape (rates,)
        Probabilities of taking the one table for the other, in [0, 1].
    relation : {"substitute", "add-remove"}
        All releases have to be valid for it.

    Returns
    -------
    ndarray, shape (rates,)
        In [0, 1]; the power of the best attacker is at most 1 minus it. Of Gaussian releases alone it is exact: the
        normal distribution function at z(1 - false positives) - sqrt(2 rho). Of others it is a bound from the safe
        side, as far as the accounting is.

    Raises
    ------
    InvalidArgument
        If there is no release, one is not valid for the relation, or a rate is out of range.

    Examples
    --------
    >>> from pymc_dp.accounting import GaussianReleases
    >>> trade_off([GaussianReleases("score", 1, noise_multiplier=1.0)], [0.05], "substitute").round(3)
    array([0.74])
    """
    rates = _rates(false_positive_rates)
    if not releases:
        raise InvalidArgument("A trade-off is one of releases: there is none.")
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
    """Return the least rate of false negatives that an (epsilon, delta) guarantee alone allows.

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
        In [0, 1]. What releases really allow is above it: one epsilon is one point of their privacy profile.

    Raises
    ------
    InvalidArgument
        If an argument is out of range.
    """
    epsilon = min(_validate.not_negative("epsilon", epsilon), _LARGEST_EPSILON)
    delta = _validate.open_unit_interval("delta", delta)
    return _of_guarantees(np.array([epsilon]), np.array([delta]), _rates(false_positive_rates))


def _of_guarantees(epsilons: Array, deltas: Array, rates: Array) -> Array:
    """Return the trade-off that guarantees together allow, all of which hold."""
    spared = 1.0 - deltas[:, None]
    of_first = spared - np.exp(epsilons)[:, None] * rates
    of_second = np.exp(-epsilons)[:, None] * (spared - rates)
    found: Array = np.maximum(np.maximum(of_first, of_second).max(axis=0), 0.0)
    return found


def _renyi_deltas(releases: Sequence[Releases], epsilons: Array) -> Array:
    """Return the smallest delta over all orders, as `renyi.convert` has it, with the rounding of decisions on top."""
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
