r"""Which levels occur in columns whose levels nobody has listed: noisy counts above a threshold.

Each unit has at most one level of each of k columns. Counts of all levels that occur get Gaussian noise, and those
above a threshold are published, with their levels. A level that nobody has is not in the list, so that the list itself
depends on single units: on those that have a level alone. Let p be the probability that a count of 1 is above the
threshold.

**Levels that other units have, too**, are in the lists of both neighbouring tables. Their counts are Gaussian releases:
a unit has 1 in at most k of them, and two units' entries have no negative inner product, so that adding one moves them
by at most the square root of k, and replacing one by at most the square root of 2 k.

**A level that the unit has alone** is published with probability p, and there are at most k of them: with k p at most
:math:`\delta`, none is but with probability :math:`\delta`. In the other table, which may have others of this sort, the
rest of the answer comes out as it is, and none of them beside it, with probability :math:`1 - \delta` at least,
independently of that rest. So with P, Q the answers of two tables, and P', Q' those of levels that other units have,

.. math:: P \le P' + \delta, \qquad Q \ge (1 - \delta) Q',

and of :math:`P' \le e^\epsilon Q' + \delta'` follows :math:`P \le e^{\epsilon - \ln(1 - \delta)} Q + \delta + \delta'`.

References
----------
Korolova, Kenthapadi, Mishra and Ntoulas (2009), Releasing search queries and clicks privately, WWW; Desfontaines, Voss,
Gipson and Mandayam (2022), Differentially private partition selection, PoPETs.
"""

import math
from dataclasses import dataclass

import scipy

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.query import Evaluation, NonNegative, PublicFacts
from pymc_dp.rows.clipped_sum import ClippedSum

#: A query asks for no more columns.
_MOST_COLUMNS = 100


@dataclass(frozen=True, eq=False)
class LevelCounts(NonNegative):
    """The levels of some columns, and how many units have each, with noise: those above a threshold."""

    columns: tuple[str, ...]
    #: The probability that any level is published that one unit alone has, at most.
    delta: float
    kind: str = "level_counts"

    def bound(self, facts: PublicFacts) -> float:
        """Return the norm of a unit's counts: it has one level of each column."""
        return math.sqrt(len(self.columns))

    def threshold(self, noise_std: float, grid: float) -> float:
        """Return the threshold of noisy counts: 1, and more than noise reaches but with a part of delta.

        The discrete noise is above a multiple of the grid no more often than the continuous one is above the multiple
        before it (Canonne, Kamath and Steinke 2020, Proposition 25); another step is for roundings.
        """
        return 1.0 + noise_std * float(-scipy.special.ndtri(self.delta / len(self.columns))) + 2.0 * grid

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse a column twice, and what is no probability."""
        if not 0 < len(self.columns) <= _MOST_COLUMNS or len(set(self.columns)) < len(self.columns):
            raise PrivacyError(f"Levels are those of 1 to {_MOST_COLUMNS} different columns.")
        if not 0.0 < self.delta < 0.5:
            raise PrivacyError("The part of delta that a threshold spends is above 0 and below a half.")
        super().refuse_if_unsafe(facts)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Refuse: how many counts there are depends on units, and leaves above a threshold alone."""
        raise PrivacyError("Counts of levels are released above a threshold, and in no other way.")
