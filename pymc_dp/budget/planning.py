"""Planning of a run: the noise with which its releases fit the remaining budget, and the cost of given noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pymc_dp import _validate, accounting
from pymc_dp.accounting import EPSILON_SLACK, Relation, Releases
from pymc_dp.accounting.account import rho_without_thresholds
from pymc_dp.budget.filters import GaussianFilter, ReservedFilter
from pymc_dp.budget.plan import Account, Plan, PlannableStep, ReleaseRequest, StepPlan
from pymc_dp.exceptions import BudgetExceeded
from pymc_dp.kinds import CLIP_COUNT

#: Beyond this noise multiplier a release is pure noise for any table that fits on a computer.
_LARGEST_NOISE_MULTIPLIER = 1e9


@dataclass(frozen=True)
class _Request:
    """A request of a step, for all chains."""

    step: int  # index of the step in the run
    releases: Releases  # of all chains; with a share, their noise multipliers give proportions only
    share: float | None = None  # of the run's cost, which determines the noise; None where the noise is given
    once: bool = False  # made once, before the chains start


def plan_run(
    steps: Sequence[PlannableStep],
    history: Sequence[Plan],
    filters: tuple[GaussianFilter, ReservedFilter, GaussianFilter],
    *,
    draws: int,
    tune: int,
    chains: int,
    budget: str,
    sets_aside: bool,
) -> Plan:
    """Return the plan of a run of several steps: its releases and their noise. See `pymc_dp.PrivacyBudget.plan`.

    The first two `filters` compose the runs of `history` with this run; the third is the filter of the whole budget,
    which converts a cost in rho to an epsilon. Messages name the whole budget (`budget`) and whether a part of it is
    set aside for runs that reserve an (epsilon, delta) of their own (`sets_aside`).
    """
    gaussian, reserved, alone = filters
    draws = _validate.whole("draws", draws, at_least=1)
    tune = _validate.whole("tune", tune, at_least=0)
    chains = _validate.whole("chains", chains, at_least=1)
    _refuse_too_many(chains, tune + draws, chains * (tune + draws))
    together = sum(step.budget_share for step in steps)
    requested: list[_Request] = []
    for place, step in enumerate(steps):
        part = step.budget_share / together
        own = [
            _Request(place, request.releases(chains), request.share * part, request.once)
            if isinstance(request, ReleaseRequest)
            else _Request(place, request.with_count(request.count * chains))
            for request in step.release_requests(tune, draws)
        ]
        # Releases made once come first; within each group, those with given noise.
        requested += sorted(own, key=lambda each: (not each.once, each.share is not None))
    _refuse_too_many(chains, tune + draws, sum(each.releases.count * each.releases.coordinates for each in requested))
    rho, (epsilon, delta) = gaussian.left(history), reserved.left(history)
    by_rho = gaussian.epsilon > 0.0 and math.isfinite(rho_without_thresholds([each.releases for each in requested]))
    if (rho if by_rho else epsilon) <= 0.0:
        raise BudgetExceeded(
            f"Nothing is left of the budget ({budget}) for such a run: {len(history)} run(s) have spent it"
            + (", or reserved_share sets it aside for others." if sets_aside or not by_rho else ".")
            + " Nothing more can be computed from this table under this budget. Where several runs are planned, the "
            "first ones take a share of it: dp.DPSurrogateHMC(budget_share=0.5)."
        )
    share, unlimited = min(1.0, together), math.isinf(gaussian.epsilon)
    paid_by: Account = "reserved"
    if unlimited:  # given noise is a part of the algorithm and is kept; the cost has no limit
        releases = [
            each.releases if each.share is None else each.releases.with_noise(accounting.NO_NOISE) for each in requested
        ]
        paid_by = "rho" if math.isfinite(rho_without_thresholds(releases)) else "reserved"
        epsilon, delta = math.inf, alone.delta + accounting.of_thresholds(releases)
        accountant = "none: the budget has no limit"
    elif by_rho:
        releases = _within_rho(requested, rho * share, steps)
        paid_by, accountant = "rho", accounting.GAUSSIAN_ACCOUNTANT
        hidden = accounting.of_thresholds(releases)
        epsilon = alone.epsilon_of(rho_without_thresholds(releases)) + accounting.epsilon_of_thresholds(hidden)
        delta = alone.delta + hidden
    else:
        delta *= share
        hidden = accounting.of_thresholds([each.releases for each in requested])
        if hidden and hidden >= delta * (1.0 - EPSILON_SLACK):
            raise BudgetExceeded(
                f"Finding levels would spend {hidden:.3g} of delta, and this run's share of the part that is reserved "
                f"has {delta:.3g}, for its noise as well. Pass a smaller delta= or a larger budget_share=, or reserve "
                "less of the budget than all of it (reserved_share)."
            )
        releases, epsilon, accountant = _within_reserve(requested, epsilon * share, delta, reserved.relation, steps)
    for each in releases:
        if each.noise_needed > _LARGEST_NOISE_MULTIPLIER:
            raise BudgetExceeded(
                f"{each.count} releases of kind {each.kind!r} leave each with a noise multiplier of "
                f"{each.noise_needed:.2g}: nothing but noise. Use fewer draws, tuning iterations "
                "or chains, or a larger budget."
            )
    plans = []
    for place, step in enumerate(steps):
        made = [(each.once, found) for each, found in zip(requested, releases, strict=True) if each.step == place]
        once, in_chains = (tuple(found for first, found in made if first is wanted) for wanted in (True, False))
        plans.append(StepPlan(step.name, str(place + 1) if len(steps) > 1 else "", chains, once, in_chains))
    return Plan(
        chains=chains,
        tune=tune,
        draws=draws,
        relation=reserved.relation,
        steps=tuple(plans),
        epsilon=epsilon,
        delta=delta,
        account=paid_by,
        accountant=accountant,
        private=all(step.private for step in steps) and not unlimited,
    )


def _within_rho(requested: Sequence[_Request], limit: float, steps: Sequence[PlannableStep]) -> list[Releases]:
    """Return Gaussian releases with the noise that corresponds to their shares of the run's rho."""
    given = rho_without_thresholds([each.releases for each in requested if each.share is None])
    rho = limit - given
    if rho < 0.0 or (rho <= 0.0 and any(each.share is not None for each in requested)):
        factor = math.sqrt(given / limit)
        those = {each.step for each in requested if each.share is None}
        raise BudgetExceeded(
            f"The releases whose noise is given cost rho {given:.4g}; this run's share of the budget is "
            f"{limit:.4g}. {' '.join(steps[place].what_would_fit(factor) for place in sorted(those))} Or "
            "use fewer draws, tuning iterations or chains (budget.max_draws says how many fit)."
        )
    return [
        each.releases
        if each.share is None
        else each.releases.with_noise(
            accounting.noise_for(each.releases.kind, each.releases.count, rho * each.share).noise_multiplier
        )
        for each in requested
    ]


def _within_reserve(
    requested: Sequence[_Request], epsilon: float, delta: float, relation: Relation, steps: Sequence[PlannableStep]
) -> tuple[list[Releases], float, str]:
    """Return releases with the least noise within a reserve, in proportion to their shares; their cost; accountant."""
    given = [each.releases for each in requested if each.share is None]
    to_scale: Sequence[Releases] = [each.releases for each in requested if each.share is not None]
    if to_scale:
        target = epsilon - 2.0 * EPSILON_SLACK
        to_scale = accounting.noise_for_epsilon(to_scale, target, delta * (1.0 - EPSILON_SLACK), relation, given)
    scaled = iter(to_scale)
    releases = [each.releases if each.share is None else next(scaled) for each in requested]
    found = accounting.account(releases, delta * (1.0 - EPSILON_SLACK), relation)
    cost = found.epsilon + EPSILON_SLACK
    if cost > epsilon:
        raise BudgetExceeded(
            f"This run costs epsilon {cost:.4g}; its share of the remaining budget is {epsilon:.4g}. "
            + _what_would_fit(steps, given, epsilon, delta, relation)
        )
    return releases, cost, found.accountant


def _refuse_too_many(chains: int, iterations: int, numbers: int) -> None:
    if numbers > accounting.MAX_COORDINATES:
        raise BudgetExceeded(
            f"A run of {chains} chains with {iterations} iterations would release more than "
            f"{accounting.MAX_COORDINATES:.0e} noisy numbers, beyond what the accounting covers. Use fewer draws."
        )


def _what_would_fit(
    steps: Sequence[PlannableStep], releases: Sequence[Releases], epsilon: float, delta: float, relation: Relation
) -> str:
    """Return the steps' advice for a run whose given noise costs too much."""
    noisy = [each for each in releases if each.adds_noise]
    decisions = [each for each in releases if not each.adds_noise]
    # Clip counts cost a fixed part of the decisions' cost, so the number of decisions alone is to be determined.
    if len(decisions) == 1 and all(each.kind == CLIP_COUNT for each in noisy):
        count = decisions[0].count

        def of(fewer: int) -> list[Releases]:
            counts = (each.with_noise(each.noise_needed / math.sqrt(fewer / count)) for each in noisy)
            return [decisions[0].with_count(fewer), *counts]

        fit = accounting.draws_for(of, epsilon, delta, relation)
        return f"What would fit: {fit} decisions in all iterations of all chains, of {count} requested."
    if not noisy:
        return "Use fewer draws, tuning iterations or chains, or a larger budget_share."
    target = epsilon - 2.0 * EPSILON_SLACK
    fitting = accounting.noise_for_epsilon(noisy, target, delta * (1.0 - EPSILON_SLACK), relation)
    factor = fitting[0].noise_needed / noisy[0].noise_needed
    advice = " ".join(step.what_would_fit(factor) for step in steps)
    return f"{advice} Or use fewer draws, tuning iterations or chains, or a larger budget_share."
