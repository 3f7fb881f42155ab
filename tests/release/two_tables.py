"""Two tables, a curator for each: how far a release moves between them, and how far the noise allows it to."""

import math

from pymc_dp.accounting import GaussianReleases
from pymc_dp.release import MeteredCurator

MULTIPLIER = 3.0


class Recorded:
    """Adds nothing, and keeps what it was asked to add noise to."""

    def add(self, integers, scale):
        self.integers, self.scale = integers.copy(), scale
        return integers


def exact(query, rows, relation="substitute"):
    """Return the exact sum in steps of the grid, and the sensitivity that its noise is made for, in the same steps."""
    noise = Recorded()
    MeteredCurator(rows, noise, relation, [GaussianReleases(query.kind, 1, MULTIPLIER)]).release(query, MULTIPLIER)
    return noise.integers, noise.scale / MULTIPLIER


def movement(query, one, other, relation="substitute"):
    """Return the distance of two tables' sums, and what is allowed, in steps of the grid."""
    (before, allowed), (after, same) = (exact(query, rows, relation) for rows in (one, other))
    assert allowed == same  # public
    return math.sqrt(sum((int(a) - int(b)) ** 2 for a, b in zip(after, before, strict=True))), allowed


def value(query, rows):
    """Return a release without its noise."""
    return (
        MeteredCurator(rows, Recorded(), "substitute", [GaussianReleases(query.kind, 1, MULTIPLIER)])
        .release(query, MULTIPLIER)
        .value
    )
