"""Privacy budgets: what may be spent, what has been, and the plan of one run."""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

from pymc_dp import _validate
from pymc_dp.accounting import (
    EPSILON_SLACK,
    MAX_COORDINATES,
    GaussianReleases,
    gaussian_epsilon,
    gaussian_rho,
    noise_for,
)
from pymc_dp.exceptions import BudgetExceeded, InvalidArgument

Relation = Literal["substitute", "add-remove"]
RELATIONS: tuple[Relation, ...] = ("substitute", "add-remove")

#: Beyond this noise multiplier a release is nothing but noise on any table that fits a computer.
_LARGEST_NOISE_MULTIPLIER = 1e9

#: Shares of a budget add up to the whole only up to the rounding of their last bits.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class ReleaseRequest:
    """What one chain of a step asks for: `count` releases of one `kind`, for a `share` of the run's cost.

    Attributes
    ----------
    kind : str
        What is released.
    count : int
        Releases in one chain, tuning included.
    share : float
        Part of the run's rho to be spent on this kind; the shares of a step add up to 1.
    coordinates : int
        Noisy numbers in one release.
    """

    kind: str
    count: int
    share: float
    coordinates: int


class PlannableStep(Protocol):
    """What a budget needs to know of a step."""

    name: str
    budget_share: float

    def release_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest]:
        """Return what one chain of `tune` + `draws` iterations releases."""
        ...


@dataclass(frozen=True)
class Plan:
    """Everything that one run will release, and what that costs; nothing is spent by making one.

    Attributes
    ----------
    sampler : str
        Name of the step.
    chains, tune, draws : int
        The run: `tune` + `draws` iterations in each chain.
    relation : str
        Neighbouring relation of the budget.
    releases : tuple of GaussianReleases
        By kind, over all chains and iterations.
    epsilon, delta : float
        The guarantee of this run taken by itself.
    """

    sampler: str
    chains: int
    tune: int
    draws: int
    relation: Relation
    releases: tuple[GaussianReleases, ...]
    epsilon: float
    delta: float

    @property
    def rho(self) -> float:
        """Total cost of the run."""
        return math.fsum(releases.rho for releases in self.releases)

    @property
    def noise_multipliers(self) -> Mapping[str, float]:
        """Noise multiplier by kind of release."""
        return {releases.kind: releases.noise_multiplier for releases in self.releases}

    @property
    def releases_per_chain(self) -> Mapping[str, int]:
        """Number of releases in one chain, by kind."""
        return {releases.kind: releases.count // self.chains for releases in self.releases}

    def __str__(self) -> str:
        """Return the plan as a table."""
        rows = [
            f"{self.sampler}: {self.chains} chains of {self.tune} tuning and {self.draws} kept iterations",
            f"guarantee of this run: epsilon {self.epsilon:.4g} at delta {self.delta:.3g}, {self.relation}",
            f"{'release':<14}{'count':>9}{'noise multiplier':>19}{'rho':>12}{'share':>9}",
        ]
        for releases in self.releases:
            rows.append(
                f"{releases.kind:<14}{releases.count:>9d}{releases.noise_multiplier:>19.4g}"
                f"{releases.rho:>12.4g}{releases.rho / self.rho:>9.1%}"
            )
        rows.append(f"{'together':<14}{'':>28}{self.rho:>12.4g}")
        return "\n".join(rows)


class PrivacyBudget:
    """What the analyses of one table may cost its people, and what they have cost so far.

    A budget is a filter: runs are charged in full before they touch the data, one that does not fit is refused
    with `BudgetExceeded`, and nothing is ever refunded. It composes over all runs, samplers and models that use
    it, so use one budget for everything that is computed from one table.

    Parameters
    ----------
    epsilon : float
        Bound on the privacy loss, above 0. Smaller protects more; 1 is strong, above 5 is weak.
    delta : float
        Probability with which the bound may fail, strictly between 0 and 1. Choose it well below 1 / n.
    relation : {"substitute", "add-remove"}
        What "one person's row was in the table" means. ``"substitute"``: the row may be replaced by any other,
        the number of rows is public. ``"add-remove"``: the row may be missing, the number of rows is protected.
        Figures of different relations cannot be compared.

    Raises
    ------
    InvalidArgument
        If an argument is out of range.

    Notes
    -----
    All releases of this package's samplers are Gaussian, so their costs add in rho (see `pymc_dp.accounting`),
    also when later runs are chosen in the light of earlier results (Dong, Roth and Su 2022, Corollary 3.3, for
    the composition; Koskela, Tobaben and Honkela 2023 for its use as a filter).

    Examples
    --------
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> round(budget.rho, 4)
    0.028
    >>> budget.epsilon_spent
    0.0
    """

    def __init__(self, epsilon: float, delta: float, relation: Relation = "substitute") -> None:
        self._epsilon = _validate.positive("epsilon", epsilon)
        self._delta = _validate.open_unit_interval("delta", delta)
        self._relation: Relation = _validate.choice("relation", relation, RELATIONS)
        if self._epsilon <= 2.0 * EPSILON_SLACK:
            raise InvalidArgument(f"epsilon must be above {2.0 * EPSILON_SLACK:g}, but is {epsilon:g}.")
        self._rho = gaussian_rho(self._epsilon - EPSILON_SLACK, self._delta * (1.0 - EPSILON_SLACK))
        self._history: list[Plan] = []
        self._lock = threading.Lock()

    @property
    def epsilon(self) -> float:
        """The bound on the privacy loss over everything charged to this budget."""
        return self._epsilon

    @property
    def delta(self) -> float:
        """The probability with which the bound may fail."""
        return self._delta

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self._relation

    @property
    def rho(self) -> float:
        """The whole budget as a total cost of Gaussian releases."""
        return self._rho

    @property
    def rho_spent(self) -> float:
        """What has been charged so far."""
        return math.fsum(plan.rho for plan in self._history)

    @property
    def remaining_rho(self) -> float:
        """What is left; a run costing more is refused. A remainder of mere rounding counts as nothing."""
        left = self._rho - self.rho_spent
        return left if left > _ROUNDING * self._rho else 0.0

    @property
    def epsilon_spent(self) -> float:
        """Epsilon, at this budget's delta, of everything charged so far."""
        return self._epsilon_of(self.rho_spent)

    @property
    def history(self) -> tuple[Plan, ...]:
        """The plan of every run that was charged, in order."""
        return tuple(self._history)

    def plan(self, step: PlannableStep, *, draws: int, tune: int = 0, chains: int = 4) -> Plan:
        """Return what a run would release, at what noise, without spending anything.

        Parameters
        ----------
        step : DP step
            The sampler, with its settings; ``step.budget_share`` says how much of what is left it may use.
        draws, tune : int
            Kept and tuning iterations of each chain. Both are paid for.
        chains : int
            Number of chains. All are paid for.

        Returns
        -------
        Plan
            Print it for a table.

        Raises
        ------
        BudgetExceeded
            If nothing is left, or so little that each release would be nothing but noise.
        InvalidArgument
            If `draws`, `tune` or `chains` is out of range.
        """
        draws = _validate.whole("draws", draws, at_least=1)
        tune = _validate.whole("tune", tune, at_least=0)
        chains = _validate.whole("chains", chains, at_least=1)
        requests = step.release_requests(tune, draws)
        if sum(request.count * request.coordinates for request in requests) * chains > MAX_COORDINATES:
            raise BudgetExceeded(
                f"A run of {chains} chains with {tune + draws} iterations would release more than "
                f"{MAX_COORDINATES:.0e} noisy numbers, beyond what the accounting covers. Use fewer draws."
            )
        rho = self.remaining_rho * step.budget_share
        if rho <= 0.0:
            raise BudgetExceeded(
                f"Nothing is left of the budget (epsilon {self._epsilon:g} at delta {self._delta:g}): "
                f"{len(self._history)} run(s) have spent it. No run on this data can be paid for any more."
            )
        releases = []
        for request in requests:
            planned = noise_for(request.kind, request.count * chains, rho * request.share)
            if planned.noise_multiplier > _LARGEST_NOISE_MULTIPLIER:
                raise BudgetExceeded(
                    f"{planned.count} releases of kind {request.kind!r} leave each with a noise multiplier of "
                    f"{planned.noise_multiplier:.2g}: nothing but noise. Use fewer draws, tuning iterations "
                    "or chains, or a larger budget."
                )
            releases.append(planned)
        cost = math.fsum(planned.rho for planned in releases)
        return Plan(
            sampler=step.name,
            chains=chains,
            tune=tune,
            draws=draws,
            relation=self._relation,
            releases=tuple(releases),
            epsilon=self._epsilon_of(cost),
            delta=self._delta,
        )

    def charge(self, plan: Plan) -> None:
        """Spend what a plan costs; it is never refunded.

        Raises
        ------
        BudgetExceeded
            If the plan does not fit what is left. Nothing is changed then.
        InvalidArgument
            If the plan was made for another neighbouring relation.
        """
        if plan.relation != self._relation:
            raise InvalidArgument(
                f"The plan is for the relation {plan.relation!r}, this budget is for {self._relation!r}: "
                "figures of different relations cannot be added. Make the plan with this budget."
            )
        with self._lock:
            together = math.fsum([*(past.rho for past in self._history), plan.rho])
            if together > self._rho * (1.0 + _ROUNDING):
                raise BudgetExceeded(
                    f"This run costs rho {plan.rho:.4g}, but {self.remaining_rho:.4g} is left of "
                    f"{self._rho:.4g}. Make a new plan with fewer draws, more noise or a smaller budget_share."
                )
            self._history.append(plan)

    def _epsilon_of(self, rho: float) -> float:
        if rho == 0.0:
            return 0.0
        epsilon = gaussian_epsilon(rho, self._delta * (1.0 - EPSILON_SLACK)) + EPSILON_SLACK
        return min(epsilon, self._epsilon) if rho <= self._rho * (1.0 + _ROUNDING) else epsilon

    def __repr__(self) -> str:
        return (
            f"PrivacyBudget(epsilon={self._epsilon:g}, delta={self._delta:g}, relation={self._relation!r}, "
            f"epsilon_spent={self.epsilon_spent:.4g}, runs={len(self._history)})"
        )

    def __copy__(self) -> "PrivacyBudget":
        return self  # a copy could be spent a second time

    def __deepcopy__(self, memo: dict[int, Any]) -> "PrivacyBudget":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("A PrivacyBudget cannot be pickled: a copy could be spent a second time.")
