"""The two privacy filters of a budget: each admits a run only while the total cost stays within a fixed limit.

A filter has to be valid under adaptive composition: each run may depend on the releases of earlier runs. Its limits are
therefore fixed before the first release, and each class names the theorem that permits them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pymc_dp.accounting import EPSILON_SLACK, Relation, account, gaussian_epsilon, gaussian_rho
from pymc_dp.accounting.account import rho_without_thresholds
from pymc_dp.budget.plan import Plan
from pymc_dp.exceptions import BudgetExceeded, InvalidArgument

#: Relative tolerance for the rounding of sums of shares of a budget.
_ROUNDING = 1e-12
#: A remainder of epsilon or delta this small, relative to the whole, comes from rounding and counts as zero.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class GaussianFilter:
    """The filter of runs of Gaussian releases of all rows, whose costs add in rho; it excludes the delta of thresholds.

    An adaptively chosen sequence of Gaussian releases distinguishes neighbouring tables no better than one Gaussian
    release of their total rho (Dong, Roth and Su 2022, Corollary 3.3); a sequence that stops before its total exceeds
    a fixed limit satisfies the privacy curve of that limit (Koskela, Tobaben and Honkela 2023).

    Attributes
    ----------
    epsilon, delta : float
        The largest total cost of these runs; may be zero.
    """

    epsilon: float
    delta: float

    def limit(self) -> float:
        """Return the largest total rho."""
        if math.isinf(self.epsilon):
            return math.inf
        rest = self.epsilon - EPSILON_SLACK
        return gaussian_rho(rest, self.delta * (1.0 - EPSILON_SLACK)) if rest > 0.0 else 0.0

    def spent(self, history: Sequence[Plan]) -> float:
        """Return the total rho of these runs in the history."""
        return math.fsum(plan.rho for plan in history if plan.account == "rho")

    def left(self, history: Sequence[Plan]) -> float:
        """Return the remaining rho; a remainder within rounding counts as zero."""
        limit = self.limit()
        left = limit - self.spent(history)
        return left if math.isinf(left) or left > _ROUNDING * limit else 0.0

    def epsilon_of(self, rho: float) -> float:
        """Return the epsilon of a total rho at the filter's delta."""
        if rho == 0.0:
            return 0.0
        if math.isinf(self.epsilon):
            return math.inf
        epsilon = gaussian_epsilon(rho, self.delta * (1.0 - EPSILON_SLACK)) + EPSILON_SLACK
        within = rho <= self.limit() * (1.0 + _ROUNDING)
        return min(epsilon, self.epsilon) if within else epsilon

    def check(self, plan: Plan, history: Sequence[Plan]) -> None:
        """Raise `InvalidArgument` unless all releases add in rho, `BudgetExceeded` unless the rest of rho suffices."""
        if not math.isfinite(rho_without_thresholds(plan.releases)):
            raise InvalidArgument("Only Gaussian releases of all rows can be paid for in rho.")
        limit = self.limit()
        if not math.fsum([self.spent(history), plan.rho]) <= limit * (1.0 + _ROUNDING):
            raise BudgetExceeded(
                f"This run costs rho {plan.rho:.4g}, but {self.left(history):.4g} is left of {limit:.4g}. Make a new "
                "plan with fewer draws, more noise or a smaller budget_share."
            )


@dataclass(frozen=True)
class ReservedFilter:
    """The filter of runs that reserve an (epsilon, delta) of their own when they start; the reserved pairs add.

    Each run satisfies (epsilon, delta)-DP for its reserved pair, so sums of both are a filter with limits fixed
    beforehand (Rogers, Roth, Ullman and Vadhan 2016, basic composition with parameters chosen adaptively). No
    better filter is known here for subsampled releases and Barker decisions.

    Attributes
    ----------
    epsilon, delta : float
        The largest total cost of these runs; may be zero.
    relation : {"substitute", "add-remove"}
        The neighbouring relation of the accounting.
    """

    epsilon: float
    delta: float
    relation: Relation

    def spent(self, history: Sequence[Plan]) -> tuple[float, float]:
        """Return the epsilon and the delta that runs have reserved."""
        reserved = [plan for plan in history if plan.account == "reserved"]
        return math.fsum(plan.epsilon for plan in reserved), math.fsum(plan.delta for plan in reserved)

    def left(self, history: Sequence[Plan]) -> tuple[float, float]:
        """Return the remaining epsilon and delta; a remainder within rounding counts as zero."""
        if math.isinf(self.epsilon):
            return self.epsilon, self.delta
        spent = self.spent(history)
        epsilon, delta = self.epsilon - spent[0], self.delta - spent[1]
        if epsilon <= _NEGLIGIBLE * self.epsilon or delta <= _NEGLIGIBLE * self.delta:
            return 0.0, 0.0
        return epsilon, delta

    def cost(self, plan: Plan) -> float:
        """Return the epsilon of a run's releases at the delta that it reserves."""
        return account(plan.releases, plan.delta * (1.0 - EPSILON_SLACK), self.relation).epsilon + EPSILON_SLACK

    def check(self, plan: Plan, history: Sequence[Plan]) -> None:
        """Raise `InvalidArgument` if a run costs more than its reserve, `BudgetExceeded` if that does not fit."""
        if math.isinf(self.epsilon):
            return
        if not self.cost(plan) <= plan.epsilon * (1.0 + 1e-9):
            raise InvalidArgument("The plan's releases cost more than the epsilon that it reserves.")
        epsilon, delta = self.spent([*history, plan])
        if not (epsilon <= self.epsilon * (1.0 + _ROUNDING) and delta <= self.delta * (1.0 + _ROUNDING)):
            left = self.left(history)
            raise BudgetExceeded(
                f"This run reserves epsilon {plan.epsilon:.4g} at delta {plan.delta:.3g}, but {left[0]:.4g} at "
                f"{left[1]:.3g} is left. Make a new plan with fewer draws, more noise or a smaller budget_share."
            )


def split(
    epsilon: float, delta: float, relation: Relation, reserved_share: float
) -> tuple[GaussianFilter, ReservedFilter]:
    """Return the two filters of a budget; `reserved_share` of it is for runs that reserve an (epsilon, delta).

    With e, d reserved and e', d' for Gaussian releases: P <= exp(e) P' + d, where P' differs from Q in Gaussian
    releases only, and P' <= exp(e') Q + d'. So P <= exp(e + e') Q + exp(e) d' + d: the Gaussian runs' delta counts
    exp(e) times (docs: "Two filters, one budget"). A budget of infinite epsilon, which protects nobody, has two
    filters without a limit.
    """
    if math.isinf(epsilon):
        return GaussianFilter(epsilon, delta), ReservedFilter(epsilon, delta, relation)
    rest = 1.0 - reserved_share
    gaussian = GaussianFilter(epsilon * rest, delta * rest * math.exp(-epsilon * reserved_share))
    return gaussian, ReservedFilter(reserved_share * epsilon, reserved_share * delta, relation)
