"""How a run is priced: what its releases cost, or with how much noise they fit what is left of a budget."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pymc_dp import _validate
from pymc_dp.accounting import (
    EPSILON_SLACK,
    GAUSSIAN_ACCOUNTANT,
    MAX_COORDINATES,
    NO_NOISE,
    Relation,
    Releases,
    account,
    all_add_in_rho,
    draws_for,
    noise_for,
    noise_for_epsilon,
    total_rho,
)
from pymc_dp.budget.plan import Account, Plan, PlannableStep, ReleaseRequest, StepPlan
from pymc_dp.exceptions import BudgetExceeded, InvalidArgument
from pymc_dp.kinds import release_kind

#: Beyond this noise multiplier a release is nothing but noise on any table that fits a computer.
_LARGEST_NOISE_MULTIPLIER = 1e9


@dataclass(frozen=True)
class Left:
    """What is left of a budget when a run is planned.

    Attributes
    ----------
    budget : str
        The whole budget, in words.
    relation : str
        Its neighbouring relation.
    n_runs : int
        How many runs were charged.
    adds_in_rho : bool
        Whether Gaussian runs are paid for in rho.
    sets_aside : bool
        Whether a part is set aside for runs that reserve their own.
    rho : float
        Left for runs that are paid for in rho.
    reserved : (float, float)
        The epsilon and delta left for runs that reserve their own.
    delta : float
        At which a cost in rho is said as an epsilon.
    epsilon_of_rho : callable
        That epsilon.
    unlimited : bool
        Whether the budget has no limit: no noise is added but what is given, and nothing is private.
    """

    budget: str
    relation: Relation
    n_runs: int
    adds_in_rho: bool
    sets_aside: bool
    rho: float
    reserved: tuple[float, float]
    delta: float
    epsilon_of_rho: Callable[[float], float]
    unlimited: bool = False


@dataclass(frozen=True)
class _Asked:
    """What a step asks for: releases of all chains, and the share of the run's cost that decides on their noise.

    Attributes
    ----------
    step : int
        Which of the run's steps asks.
    releases : releases
        Of all chains; where there is a share, with noise in proportion to what it asks for.
    share : float or None
        Of the run's cost; None where the noise is given.
    once : bool
        Made once, before the chains start.
    """

    step: int
    releases: Releases
    share: float | None = None
    once: bool = False


@dataclass(frozen=True)
class _Priced:
    """Releases with their noise, and what they cost."""

    releases: Sequence[Releases]
    epsilon: float
    delta: float
    account: Account
    accountant: str


def plan_run(steps: Sequence[PlannableStep], left: Left, *, draws: int, tune: int, chains: int) -> Plan:
    """Return what a run of some steps, taken in turn, would release, at what noise. See `pymc_dp.PrivacyBudget.plan`.

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
    _refuse_too_many(chains, tune + draws, chains * (tune + draws))
    together = sum(step.budget_share for step in steps)
    asked = [
        each
        for place, step in enumerate(steps)
        for each in _asked_by(place, step, step.budget_share / together, tune, draws, chains)
    ]
    _refuse_too_many(chains, tune + draws, sum(each.releases.count * each.releases.coordinates for each in asked))
    by_rho = all_add_in_rho([each.releases for each in asked]) and left.adds_in_rho
    if (left.rho if by_rho else left.reserved[0]) <= 0.0:
        raise BudgetExceeded(
            f"Nothing is left of the budget ({left.budget}) for such a run: {left.n_runs} run(s) have spent it"
            + (", or reserved_share sets it aside for others." if left.sets_aside or not by_rho else ".")
            + " Nothing more can be computed from this table under this budget. Where several runs are planned, the "
            "first ones take a share of it: dp.DPSurrogateHMC(budget_share=0.5)."
        )
    share = min(1.0, together)
    if left.unlimited:
        priced = _without_noise(asked, left)
    elif by_rho:
        priced = _priced_in_rho(asked, left, share, steps)
    else:
        priced = _priced_by_reserve(asked, left, share, steps)
    for each in priced.releases:
        if each.noise_needed > _LARGEST_NOISE_MULTIPLIER:
            raise BudgetExceeded(
                f"{each.count} releases of kind {each.kind!r} leave each with a noise multiplier of "
                f"{each.noise_needed:.2g}: nothing but noise. Use fewer draws, tuning iterations "
                "or chains, or a larger budget."
            )
    return Plan(
        chains=chains,
        tune=tune,
        draws=draws,
        relation=left.relation,
        steps=tuple(
            _plan_of_step(place, step, str(place + 1) if len(steps) > 1 else "", chains, asked, priced.releases)
            for place, step in enumerate(steps)
        ),
        epsilon=priced.epsilon,
        delta=priced.delta,
        account=priced.account,
        accountant=priced.accountant,
        private=all(step.private for step in steps) and not left.unlimited,
    )


def refuse_noise_to_be_found(steps: Sequence[PlannableStep], tune: int) -> None:
    """Refuse steps whose noise is not all given: any number of draws fits a budget that chooses the noise.

    Raises
    ------
    InvalidArgument
        If there are such releases.
    """
    for step in steps:
        requests = step.release_requests(_validate.whole("tune", tune, at_least=0), 1)
        chosen = [each.kind for each in requests if isinstance(each, ReleaseRequest)]
        if chosen:
            raise InvalidArgument(
                f"The budget chooses the noise of {step.name}'s releases ({', '.join(dict.fromkeys(chosen))}), so that "
                "any number of draws fits, with more noise the more there are. Give the noise (noise_multipliers=, or "
                "the setting of the dynamics that asks for it), or look at budget.plan(step, draws=...)."
            )


def most_draws(plan: Callable[[int], Plan]) -> int:
    """Return the largest number of draws that a plan can be made for; 0 if there is none.

    More draws of given noise cost more, so this is a bisection: exact, as `plan` is asked on both sides of it.
    """

    def fits(draws: int) -> bool:
        try:
            plan(draws)
        except BudgetExceeded:
            return False
        return True

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):  # ends: the accounting covers a limited number of noisy numbers
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _asked_by(place: int, step: PlannableStep, part: float, tune: int, draws: int, chains: int) -> list[_Asked]:
    """Return what a step asks for, a part of the run's cost being its own."""
    once: list[_Asked] = []
    given: list[_Asked] = []
    noise_to_be_found: list[_Asked] = []
    for request in step.release_requests(tune, draws):
        if not isinstance(request, ReleaseRequest):
            given.append(_Asked(place, request.with_count(request.count * chains)))
        else:
            found = _Asked(place, request.releases(chains), request.share * part, request.once)
            (once if request.once else noise_to_be_found).append(found)
    return [*once, *given, *noise_to_be_found]


def _plan_of_step(
    place: int,
    step: PlannableStep,
    label: str,
    chains: int,
    asked: Sequence[_Asked],
    releases: Sequence[Releases],
) -> StepPlan:
    """Return one step's part of what a run releases, given in the order in which it was asked for."""
    own = [(request.once, each) for request, each in zip(asked, releases, strict=True) if request.step == place]
    return StepPlan(
        sampler=step.name,
        label=label,
        chains=chains,
        once=tuple(each for once, each in own if once),
        in_chains=tuple(each for once, each in own if not once),
    )


def _without_noise(asked: Sequence[_Asked], left: Left) -> _Priced:
    """Return releases without noise but that which is given: it is a part of the algorithm, and no price is asked."""
    releases = [each.releases if each.share is None else each.releases.with_noise(NO_NOISE) for each in asked]
    account: Account = "rho" if all_add_in_rho(releases) else "reserved"
    return _Priced(releases, math.inf, left.delta, account, "none: the budget has no limit")


def _priced_in_rho(asked: Sequence[_Asked], left: Left, share: float, steps: Sequence[PlannableStep]) -> _Priced:
    """Return Gaussian releases with the noise that their shares of a part of rho pay for."""
    given = total_rho([each.releases for each in asked if each.share is None])
    rho = left.rho * share - given
    if rho < 0.0 or (rho <= 0.0 and any(each.share is not None for each in asked)):
        factor = math.sqrt(given / (left.rho * share))
        those = {each.step for each in asked if each.share is None}
        raise BudgetExceeded(
            f"The releases whose noise is given cost rho {given:.4g}; this run's share of the budget is "
            f"{left.rho * share:.4g}. {' '.join(steps[place].what_would_fit(factor) for place in sorted(those))} Or "
            "use fewer draws, tuning iterations or chains (budget.max_draws says how many fit)."
        )
    releases: list[Releases] = [
        each.releases
        if each.share is None
        else noise_for(each.releases.kind, each.releases.count, rho * each.share, each.releases.coordinates)
        for each in asked
    ]
    return _Priced(releases, left.epsilon_of_rho(total_rho(releases)), left.delta, "rho", GAUSSIAN_ACCOUNTANT)


def _priced_by_reserve(asked: Sequence[_Asked], left: Left, share: float, steps: Sequence[PlannableStep]) -> _Priced:
    """Return releases with the least noise that a part of the reserve pays for, in proportion to what they ask for."""
    epsilon, delta = (part * share for part in left.reserved)
    given = [each.releases for each in asked if each.share is None]
    to_scale = [each.releases for each in asked if each.share is not None]
    if to_scale:
        target = epsilon - 2.0 * EPSILON_SLACK
        to_scale = list(noise_for_epsilon(to_scale, target, delta * (1.0 - EPSILON_SLACK), left.relation, given))
    scaled = iter(to_scale)
    releases = [each.releases if each.share is None else next(scaled) for each in asked]
    found = account(releases, delta * (1.0 - EPSILON_SLACK), left.relation)
    guarantee = found.epsilon + EPSILON_SLACK
    if guarantee > epsilon:
        raise BudgetExceeded(
            f"This run costs epsilon {guarantee:.4g}; its share of what is left is {epsilon:.4g}. "
            + _what_would_fit(steps, given, epsilon, delta, left.relation)
        )
    return _Priced(releases, guarantee, delta, "reserved", found.accountant)


def _refuse_too_many(chains: int, iterations: int, numbers: int) -> None:
    if numbers > MAX_COORDINATES:
        raise BudgetExceeded(
            f"A run of {chains} chains with {iterations} iterations would release more than "
            f"{MAX_COORDINATES:.0e} noisy numbers, beyond what the accounting covers. Use fewer draws."
        )


def _what_would_fit(
    steps: Sequence[PlannableStep], releases: Sequence[Releases], epsilon: float, delta: float, relation: Relation
) -> str:
    """Return the steps' advice for a run whose noise is given and costs too much."""
    noisy = [each for each in releases if each.adds_noise]
    decisions = [each for each in releases if not each.adds_noise]
    # Counts beside decisions cost a part of what these cost, so decisions alone are what is to be fitted.
    if len(decisions) == 1 and all(release_kind(each.kind).role == "counts" for each in noisy):
        count = decisions[0].count

        def of(fewer: int) -> list[Releases]:
            return [decisions[0].with_count(fewer), *(_thinner(each, fewer / count) for each in noisy)]

        fit = draws_for(of, epsilon, delta, relation)
        return f"What would fit: {fit} decisions in all iterations of all chains, of {count} asked for."
    if not noisy:
        return "Use fewer draws, tuning iterations or chains, or a larger budget_share."
    target = epsilon - 2.0 * EPSILON_SLACK
    fitting = noise_for_epsilon(noisy, target, delta * (1.0 - EPSILON_SLACK), relation)
    factor = fitting[0].noise_needed / noisy[0].noise_needed
    advice = " ".join(step.what_would_fit(factor) for step in steps)
    return f"{advice} Or use fewer draws, tuning iterations or chains, or a larger budget_share."


def _thinner(releases: Releases, part: float) -> Releases:
    """Return the same noisy releases at a part of their cost."""
    return releases.with_noise(releases.noise_needed / math.sqrt(part))
