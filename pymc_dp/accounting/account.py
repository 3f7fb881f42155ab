"""The cost of a set of releases; the accounting method follows from the kinds of releases in the set."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pymc_dp import _validate
from pymc_dp.accounting.events import KINDS_OF_RELEASES, RELATIONS, Relation, Releases, ThresholdedReleases
from pymc_dp.accounting.gaussian import gaussian_epsilon
from pymc_dp.accounting.loss_distribution import DEFAULT_TOLERANCE, loss_distribution_epsilon
from pymc_dp.accounting.renyi import ORDERS, convert
from pymc_dp.exceptions import InvalidArgument

GAUSSIAN_ACCOUNTANT = "tight Gaussian curve (Balle and Wang 2018), exact for adaptive composition"
LOSS_ACCOUNTANT = "privacy loss distributions, from above (Doroshenko and others 2022)"

#: Below this delta, rounding limits the privacy loss distributions, and Rényi bounds may be tighter.
_ROUNDING_MATTERS = 1e-9

#: Cached: plans are accounted for when they are made and again when they are charged.
_remembered_loss_distribution_epsilon = lru_cache(maxsize=64)(loss_distribution_epsilon)


@dataclass(frozen=True)
class Guarantee:
    """The (epsilon, delta) guarantee of a set of releases.

    Attributes
    ----------
    epsilon, delta : float
        The guarantee. Epsilon is infinite where no implemented theorem gives a finite one.
    relation : str
        The neighbouring relation of the guarantee.
    accountant : str
        The accounting method.
    """

    epsilon: float
    delta: float
    relation: Relation
    accountant: str


def account(
    releases: Sequence[Releases], delta: float, relation: Relation, *, tolerance: float = DEFAULT_TOLERANCE
) -> Guarantee:
    """Return the guarantee of the adaptive composition of releases: later ones may depend on earlier results.

    Gaussian releases alone: their exact curve. With releases on samples: the smaller epsilon of privacy loss
    distributions and Rényi bounds, both of which are valid. With Barker decisions: Rényi bounds. The probability that
    thresholds fail is subtracted from delta first (docs: "Levels that nobody has listed").

    Parameters
    ----------
    releases : sequence of Releases
        May be empty.
    delta : float
        Strictly between 0 and 1.
    relation : {"substitute", "add-remove"}
        All releases have to be valid for it.
    tolerance : float
        Approximate relative excess in epsilon of the privacy loss distributions.

    Returns
    -------
    Guarantee
        Its epsilon is never below the exact one, except for the discrete noise's `EPSILON_SLACK`.

    Raises
    ------
    InvalidArgument
        If `delta` is out of range, or a release is not valid for the relation.
    """
    delta = _validate.open_unit_interval("delta", delta)
    check_relation(releases, relation)
    hidden, releases = of_thresholds(releases), without_thresholds(releases)
    if hidden:
        if not hidden < delta:
            return Guarantee(math.inf, delta, relation, GAUSSIAN_ACCOUNTANT)
        found = account(releases, delta - hidden, relation, tolerance=tolerance)
        return replace(found, epsilon=found.epsilon + epsilon_of_thresholds(hidden), delta=delta)
    if all_add_in_rho(releases):
        return Guarantee(gaussian_epsilon(total_rho(releases), delta), delta, relation, GAUSSIAN_ACCOUNTANT)
    by_losses = _remembered_loss_distribution_epsilon(tuple(releases), delta, tolerance)
    if math.isfinite(by_losses) and delta > _ROUNDING_MATTERS:
        return Guarantee(by_losses, delta, relation, LOSS_ACCOUNTANT)
    # Decisions' probabilities are computed in floating point: they are off by up to exp(±rounding) on either table.
    rounding = math.fsum(each.rounding for each in releases)
    by_order, order = renyi_epsilon(releases, delta * math.exp(-rounding))
    by_order += 2.0 * rounding
    if by_losses <= by_order:
        return Guarantee(by_losses, delta, relation, LOSS_ACCOUNTANT)
    return Guarantee(by_order, delta, relation, f"Rényi bounds, order {order} (Canonne, Kamath and Steinke 2020)")


@lru_cache(maxsize=4096)
def _curve_of_one(single: Releases) -> NDArray[np.float64]:
    """Return the Rényi bound of one release at each of `ORDERS`; infinite where no theorem applies."""
    return np.array([single.renyi_bound(order) for order in ORDERS])


def renyi_curve(releases: Sequence[Releases]) -> NDArray[np.float64]:
    """Return the Rényi bound of the composition of all releases at each of `ORDERS`."""
    return np.sum([each.count * _curve_of_one(each.alone()) for each in releases], axis=0)


def renyi_epsilon(releases: Sequence[Releases], delta: float) -> tuple[float, int]:
    """Return the smallest epsilon over all orders, and the order that gives it.

    The releases have to be for one relation; `pymc_dp.accounting.account` checks that. The epsilon is infinite where no
    order has a finite bound for all of them.
    """
    delta = _validate.open_unit_interval("delta", delta)
    candidates = [
        (convert(order, bound, delta), order)
        for order, bound in zip(ORDERS, renyi_curve(releases).tolist(), strict=True)
        if math.isfinite(bound)
    ]
    return min(candidates, default=(math.inf, 0))


def all_add_in_rho(releases: Sequence[Releases]) -> bool:
    """Return whether all releases are Gaussian releases of all rows, whose costs add in rho."""
    return all(each.adds_in_rho for each in releases)


def total_rho(releases: Sequence[Releases]) -> float:
    """Return the total rho of the releases that add in rho: the whole cost where all of them do."""
    return math.fsum(each.rho for each in releases if each.adds_in_rho)


def without_thresholds(releases: Sequence[Releases]) -> tuple[Releases, ...]:
    """Return the releases with thresholded ones replaced by their Gaussian counts: `of_thresholds` is their delta."""
    return tuple(each.counts if isinstance(each, ThresholdedReleases) else each for each in releases)


def rho_without_thresholds(releases: Sequence[Releases]) -> float:
    """Return the rho of releases, which excludes the delta of thresholds; infinite unless all of them add in rho."""
    return math.fsum(each.rho for each in without_thresholds(releases))


def of_thresholds(releases: Sequence[Releases]) -> float:
    """Return an upper bound of the probability that any threshold fails to hide a level of one unit alone."""
    return math.fsum(each.of_thresholds for each in releases)


def epsilon_of_thresholds(delta: float) -> float:
    """Return the small epsilon that thresholds cost in addition to their delta: -ln(1 - delta).

    With probability 1 - delta at least, no level of one unit alone is published, independently of the other counts: the
    distribution of all releases is at least 1 - delta times that without these levels.
    """
    return -math.log1p(-delta)


def check_relation(releases: Sequence[Releases], relation: Relation) -> None:
    """Raise `InvalidArgument` unless all releases are valid for the relation."""
    relation = _validate.choice("relation", relation, RELATIONS)
    for each in releases:
        # By identity, as a metaclass can override equality: an event of a user's class could understate its cost.
        if not any(type(each) is known for known in KINDS_OF_RELEASES):
            raise InvalidArgument(f"A {type(each).__name__} does not describe releases.")
        if relation not in each.relations:
            raise InvalidArgument(
                f"{type(each).__name__} of kind {each.kind!r} are accounted for under {' or '.join(each.relations)}, "
                f"not under {relation!r}: no theorem is known that would hold. Use a budget of that relation."
            )


def epsilon_of(releases: Sequence[Releases], delta: float, relation: Relation) -> float:
    """Return the epsilon of `account`."""
    return account(releases, delta, relation).epsilon


def substitute_from_add_remove(epsilon: float, delta: float) -> tuple[float, float]:
    """Convert a guarantee under add-remove to one under substitution.

    Replacing a row removes one row and adds another: (epsilon, delta) under add-remove gives
    (2 epsilon, (1 + exp(epsilon)) delta) under substitution (group privacy, Vadhan 2017, Lemma 2.2). The mechanism
    must not use the number of rows. No conversion exists in the other direction, where that number
    is protected, too.

    Raises
    ------
    InvalidArgument
        If an argument is out of range, or the resulting delta is 1 or more: no guarantee at all.
    """
    epsilon = _validate.not_negative("epsilon", epsilon)
    delta = _validate.open_unit_interval("delta", delta)
    converted = (1.0 + math.exp(min(epsilon, 700.0))) * delta
    if converted >= 1.0:
        raise InvalidArgument(f"epsilon={epsilon:g} at delta={delta:g} gives no guarantee under substitution.")
    return 2.0 * epsilon, converted
