r"""The levels that occur in columns without declared levels: noisy counts above a threshold.

Each unit has at most one level of each of k columns. Counts of all levels that occur get Gaussian noise, and those
above a threshold are published, with their levels. A level that no unit has is not in the list of counts. The list
therefore depends on single units: those that are the only ones with a level. Let p be the probability that a count of 1
is above the threshold.

**Levels that other units have, too**, are in the lists of both neighbouring tables. Their counts are Gaussian releases:
a unit has 1 in at most k of them, and two units' entries have no negative inner product. Adding a unit therefore moves
them by at most the square root of k, and replacing a unit by at most the square root of 2 k.

**A level that the unit alone has** is published with probability p, and there are at most k of them. If k p is at most
:math:`\delta`, none is published except with probability :math:`\delta`. In the other table, which may have other such
levels, none of them is published with probability at least :math:`1 - \delta`, independently of the rest of the answer.
Let P and Q be the distributions of the answers of the two tables, and P', Q' those restricted to the levels that other
units have. Then

.. math:: P \le P' + \delta, \qquad Q \ge (1 - \delta) Q',

and :math:`P' \le e^\epsilon Q' + \delta'` implies :math:`P \le e^{\epsilon - \ln(1 - \delta)} Q + \delta + \delta'`.

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

#: The largest number of columns of a query.
_MOST_COLUMNS = 100


@dataclass(frozen=True, eq=False)
class LevelCounts(NonNegative):
    """The levels of some columns with noisy counts of units above a threshold, and these counts."""

    columns: tuple[str, ...]
    #: An upper bound of the probability that any level is published that one unit alone has.
    delta: float
    kind: str = "level_counts"

    def bound(self, facts: PublicFacts) -> float:
        """Return the largest norm of a unit's counts: a unit has at most one level of each column."""
        return math.sqrt(len(self.columns))

    def threshold(self, noise_std: float, grid: float) -> float:
        """Return the threshold of noisy counts: 1 plus a number that noise exceeds with probability delta / columns.

        The discrete noise exceeds a multiple of the grid with at most the probability that the continuous noise exceeds
        the previous multiple (Canonne, Kamath and Steinke 2020, Proposition 25); a second step is for rounding.
        """
        return 1.0 + noise_std * float(-scipy.special.ndtri(self.delta / len(self.columns))) + 2.0 * grid

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse repeated columns, and a `delta` that is no probability."""
        if not 0 < len(self.columns) <= _MOST_COLUMNS or len(set(self.columns)) < len(self.columns):
            raise PrivacyError(f"Levels are those of 1 to {_MOST_COLUMNS} different columns.")
        if not 0.0 < self.delta < 0.5:
            raise PrivacyError("The part of delta that a threshold spends is above 0 and below a half.")
        super().refuse_if_unsafe(facts)

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Refuse: the number of counts depends on units, and counts only leave above a threshold."""
        raise PrivacyError("Counts of levels are released above a threshold, and in no other way.")
