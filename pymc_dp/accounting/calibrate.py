"""From a budget to a noise multiplier, and back; every answer is checked by accounting for it again."""

import math

from pymc_dp import _validate
from pymc_dp.accounting.events import GaussianReleases


def noise_for(kind: str, count: int, rho: float) -> GaussianReleases:
    """Return `count` releases of one kind with the least noise whose cost is at most `rho`.

    Parameters
    ----------
    kind : str
        What is released.
    count : int
        How many releases, at least 1.
    rho : float
        What they may cost together, above 0.

    Raises
    ------
    InvalidArgument
        If `count` or `rho` is out of range.
    """
    count = _validate.whole("count", count, at_least=1)
    rho = _validate.positive("rho", rho)
    noise_multiplier = math.sqrt(count / (2.0 * rho))
    releases = GaussianReleases(kind, count, noise_multiplier)
    while releases.rho > rho:
        noise_multiplier = math.nextafter(noise_multiplier, math.inf)
        releases = GaussianReleases(kind, count, noise_multiplier)
    return releases


def largest_count(noise_multiplier: float, rho: float) -> int:
    """Return how many releases of `noise_multiplier` cost at most `rho` (possibly none).

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
