"""Calibration of noise, or of a number of draws, to a budget; each result is checked by the accounting."""

import bisect
import math
from collections.abc import Callable, Sequence

from pymc_dp import _validate
from pymc_dp.accounting.account import account, all_add_in_rho, check_relation, renyi_curve, total_rho
from pymc_dp.accounting.events import GaussianReleases, Relation, Releases
from pymc_dp.accounting.gaussian import gaussian_rho
from pymc_dp.accounting.loss_distribution import DEFAULT_TOLERANCE
from pymc_dp.accounting.renyi import ORDERS
from pymc_dp.exceptions import BudgetExceeded, InvalidArgument

#: Tolerance of the coarse grid, on which a factor is searched; the fine grid then corrects the factor.
_COARSE_TOLERANCE = 1e-2
#: Relative part of the target epsilon that may stay unused.
_CLOSE_ENOUGH = 5e-4
_MAX_CORRECTIONS = 6
_MAX_STEPS = 60
_LARGEST_FACTOR = 1e12


def noise_for(kind: str, count: int, rho: float, coordinates: int = 1) -> GaussianReleases:
    """Return `count` releases of one kind with the least noise whose cost is at most `rho`.

    Parameters
    ----------
    kind : str
        Name of the released statistic.
    count : int
        Number of releases, at least 1.
    rho : float
        Largest total cost, above 0.
    coordinates : int
        Noisy numbers in one release.

    Raises
    ------
    InvalidArgument
        If `count` or `rho` is out of range.
    """
    count = _validate.whole("count", count, at_least=1)
    rho = _validate.positive("rho", rho)
    releases = GaussianReleases(kind, count, math.sqrt(count / (2.0 * rho)), coordinates=coordinates)
    while releases.rho > rho:
        releases = releases.with_noise(math.nextafter(releases.noise_multiplier, math.inf))
    return releases


def noise_beside(kind: str, count: int, share: float, others: Sequence[Releases]) -> GaussianReleases:
    """Return `count` Gaussian releases that add at most `share` of the others' Rényi bound at each order.

    `share` is in (0, 1); the others have noise that is given. Raises `InvalidArgument` if an argument is out of range,
    or no order has a finite bound for the others.
    """
    share = _validate.open_unit_interval("share", share)
    rho = min(bound / order for order, bound in zip(ORDERS, renyi_curve(others).tolist(), strict=True))
    return noise_for(kind, count, rho * share)


def largest_count(noise_multiplier: float, rho: float) -> int:
    """Return the largest number of releases of `noise_multiplier` that cost at most `rho`, possibly 0.

    Raises
    ------
    InvalidArgument
        If an argument is out of range.
    """
    noise_multiplier = _validate.positive("noise_multiplier", noise_multiplier)
    rho = _validate.not_negative("rho", rho)
    count = math.floor(2.0 * rho * noise_multiplier**2)
    while count > 0 and count / (2.0 * noise_multiplier**2) > rho:
        count -= 1
    return count


def scaled(releases: Sequence[Releases], factor: float) -> tuple[Releases, ...]:
    """Return the releases with all noise multipliers times `factor`; Barker decisions have none."""
    return tuple(each.with_noise(each.noise_needed * factor) for each in releases)


def noise_for_epsilon(
    releases: Sequence[Releases],
    epsilon: float,
    delta: float,
    relation: Relation,
    fixed: Sequence[Releases] = (),
) -> tuple[Releases, ...]:
    """Return the releases with their noise multipliers scaled together so that they cost at most `epsilon`.

    Parameters
    ----------
    releases : sequence of Releases
        With noise multipliers in the desired proportions.
    epsilon, delta, relation
        The guarantee of all releases together.
    fixed : sequence of Releases
        Further releases under the same epsilon, whose noise is given.

    Returns
    -------
    tuple of Releases
        The scaled releases: `account` gives at most `epsilon` for them and `fixed` together.

    Raises
    ------
    BudgetExceeded
        If `fixed` alone costs more, or no noise is enough.
    InvalidArgument
        If an argument is out of range.
    """
    epsilon = _validate.positive("epsilon", epsilon)
    if not releases:
        raise InvalidArgument("There is no noise to choose.")
    check_relation([*releases, *fixed], relation)
    if not fixed and all_add_in_rho(releases):
        factor = math.sqrt(total_rho(releases) / gaussian_rho(epsilon, delta))
        while account(scaled(releases, factor), delta, relation).epsilon > epsilon:
            factor *= 1.0 + 1e-14
        return scaled(releases, factor)

    def cost(factor: float, tolerance: float) -> float:
        return account([*scaled(releases, factor), *fixed], delta, relation, tolerance=tolerance).epsilon

    # Solve on the coarse grid, whose excess hardly depends on the noise, and correct for that excess on the fine grid.
    factor, aim = 1.0, epsilon
    for _ in range(_MAX_CORRECTIONS):
        factor = _least_factor(lambda factor: cost(factor, _COARSE_TOLERANCE), factor, aim)
        fine = cost(factor, DEFAULT_TOLERANCE)
        if epsilon * (1.0 - _CLOSE_ENOUGH) <= fine <= epsilon or fine == 0.0:  # 0: epsilon is below a step of the grid
            break
        aim *= epsilon * (1.0 - 0.4 * _CLOSE_ENOUGH) / fine
    while cost(factor, DEFAULT_TOLERANCE) > epsilon:
        factor *= 1.0 + _CLOSE_ENOUGH
    return scaled(releases, factor)


def _least_factor(cost: Callable[[float], float], start: float, target: float) -> float:
    """Return a factor whose cost is at most `target` and close to it; the cost decreases with the factor."""
    low = high = start
    cost_low = cost_high = cost(start)
    step = 1.1
    while cost_high > target:  # bracket the target: `low` costs more and `high` less
        low, cost_low, high, step = high, cost_high, high * step, step * step
        cost_high = cost(high)
        if high > _LARGEST_FACTOR:
            raise BudgetExceeded("No noise is enough: the other releases cost more than the remaining budget.")
    step = 1.1
    while cost_low <= target and low > 1.0 / _LARGEST_FACTOR:
        high, cost_high, low, step = low, cost_low, low / step, step * step
        cost_low = cost(low)
    for _ in range(_MAX_STEPS):
        if cost_high >= target * (1.0 - 0.1 * _CLOSE_ENOUGH) or high <= low * (1.0 + 1e-12):
            break
        middle = math.sqrt(low * high)
        if cost_low < 3.0 * target and cost_high > 0.0:
            # log-log secant step, as costs are nearly powers of the factor; aimed slightly below the target
            slope = math.log(high / low) / math.log(cost_low / cost_high)
            aimed = low * (cost_low / (target * (1.0 - 0.05 * _CLOSE_ENOUGH))) ** slope
            middle = min(max(aimed, low * (high / low) ** 0.02), high * (low / high) ** 0.02)
        between = cost(middle)
        if between > target:
            low, cost_low = middle, between
        else:
            high, cost_high = middle, between
    return high


def draws_for(
    releases_of: Callable[[int], Sequence[Releases]], epsilon: float, delta: float, relation: Relation
) -> int:
    """Return the largest number of draws whose releases cost at most `epsilon`, possibly 0.

    Parameters
    ----------
    releases_of : callable
        The releases of a number of draws, at least 1. The cost has to increase with the number.
    epsilon, delta, relation
        The guarantee of all releases together.

    Raises
    ------
    InvalidArgument
        If an argument is out of range.
    """
    epsilon = _validate.positive("epsilon", epsilon)
    rho = gaussian_rho(epsilon, delta)

    def fits(draws: int) -> bool:
        releases = releases_of(draws)
        if all_add_in_rho(releases):
            check_relation(releases, relation)
            return total_rho(releases) <= rho
        return account(releases, delta, relation).epsilon <= epsilon

    return largest_that_fits(fits)


def largest_that_fits(fits: Callable[[int], bool]) -> int:
    """Return the largest positive integer that fits, 0 if none fits; all smaller ones have to fit as well."""
    if not fits(1):
        return 0
    high = 2
    while fits(high):
        high *= 2
        if high > 2**60:
            raise InvalidArgument("The releases cost next to nothing: any number of draws fits.")
    return bisect.bisect_left(range(high), True, lo=high // 2 + 1, key=lambda number: not fits(number)) - 1
