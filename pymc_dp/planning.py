"""How a run is priced: what its releases cost, or with how much noise they fit what is left of a budget."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pymc_dp import _validate
from pymc_dp.accounting import (
    EPSILON_SLACK,
    GAUSSIAN_ACCOUNTANT,
    MAX_COORDINATES,
    BarkerReleases,
    GaussianReleases,
    NoisyReleases,
    Relation,
    Releases,
    account,
    draws_for,
    noise_for,
    noise_for_epsilon,
)
from pymc_dp.exceptions import BudgetExceeded
from pymc_dp.plan import Plan, PlannableStep, ReleaseRequest

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


def plan_run(step: PlannableStep, left: Left, *, draws: int, tune: int, chains: int) -> Plan:
    """Return what a run would release, at what noise. See `pymc_dp.PrivacyBudget.plan`.

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
    requests = step.release_requests(tune, draws)
    asked = [request for request in requests if isinstance(request, ReleaseRequest)]
    templates = [request.releases(chains) for request in asked]
    fixed = [
        dataclasses.replace(request, count=request.count * chains)
        for request in requests
        if not isinstance(request, ReleaseRequest)
    ]
    _refuse_too_many(chains, tune + draws, sum(each.count * each.coordinates for each in [*templates, *fixed]))
    gaussian = all(isinstance(each, GaussianReleases) for each in [*templates, *fixed])
    by_rho = gaussian and left.adds_in_rho
    if (left.rho if by_rho else left.reserved[0]) <= 0.0:
        raise BudgetExceeded(
            f"Nothing is left of the budget ({left.budget}) for such a run: {left.n_runs} run(s) have spent it"
            + (", or reserved_share sets it aside for others." if left.sets_aside or not by_rho else ".")
            + " Nothing more can be computed from this table under this budget; give runs a smaller budget_share."
        )
    chosen: list[Releases] = list(fixed)
    if by_rho:
        rho = left.rho * step.budget_share - math.fsum(getattr(each, "rho", 0.0) for each in fixed)
        if rho < 0.0 or (asked and rho <= 0.0):
            raise BudgetExceeded("The releases whose noise is given cost more than the run's share of the budget.")
        chosen += [noise_for(r.kind, r.releases(chains).count, rho * r.share, r.coordinates) for r in asked]
        guarantee = left.epsilon_of_rho(math.fsum(getattr(each, "rho", 0.0) for each in chosen))
        delta, accountant = left.delta, GAUSSIAN_ACCOUNTANT
    else:
        epsilon, delta = (part * step.budget_share for part in left.reserved)
        if templates:
            target = epsilon - 2.0 * EPSILON_SLACK
            chosen += noise_for_epsilon(templates, target, delta * (1.0 - EPSILON_SLACK), left.relation, fixed)
        found = account(chosen, delta * (1.0 - EPSILON_SLACK), left.relation)
        guarantee, accountant = found.epsilon + EPSILON_SLACK, found.accountant
        if guarantee > epsilon:
            raise BudgetExceeded(
                f"This run costs epsilon {guarantee:.4g}; its share of what is left is {epsilon:.4g}. "
                + _what_would_fit(step, fixed, epsilon, delta, left.relation)
            )
    for each in chosen:
        if not isinstance(each, BarkerReleases) and each.noise_multiplier > _LARGEST_NOISE_MULTIPLIER:
            raise BudgetExceeded(
                f"{each.count} releases of kind {each.kind!r} leave each with a noise multiplier of "
                f"{each.noise_multiplier:.2g}: nothing but noise. Use fewer draws, tuning iterations "
                "or chains, or a larger budget."
            )
    return Plan(
        sampler=step.name,
        chains=chains,
        tune=tune,
        draws=draws,
        relation=left.relation,
        releases=tuple(chosen),
        epsilon=guarantee,
        delta=delta,
        account="rho" if by_rho else "reserved",
        accountant=accountant,
        private=getattr(step, "private", True),
        once=tuple(request.kind for request in asked if request.once),
    )


def _refuse_too_many(chains: int, iterations: int, numbers: int) -> None:
    if numbers > MAX_COORDINATES:
        raise BudgetExceeded(
            f"A run of {chains} chains with {iterations} iterations would release more than "
            f"{MAX_COORDINATES:.0e} noisy numbers, beyond what the accounting covers. Use fewer draws."
        )


def _what_would_fit(
    step: PlannableStep, releases: Sequence[Releases], epsilon: float, delta: float, relation: Relation
) -> str:
    """Return the step's advice for a run whose noise is given and costs too much."""
    advice = getattr(step, "what_would_fit", None)
    noisy = [each for each in releases if not isinstance(each, BarkerReleases)]
    decisions = [each for each in releases if isinstance(each, BarkerReleases)]
    # Counts beside decisions cost a part of what these cost, so decisions alone are what is to be fitted.
    if len(decisions) == 1 and {each.kind for each in noisy} <= {"clip_count"}:
        count = decisions[0].count

        def of(fewer: int) -> list[Releases]:
            return [dataclasses.replace(decisions[0], count=fewer), *(_thinner(each, fewer / count) for each in noisy)]

        fit = draws_for(of, epsilon, delta, relation)
        return f"What would fit: {fit} decisions in all iterations of all chains, of {count} asked for."
    if advice is None or not noisy:
        return "Use fewer draws, tuning iterations or chains, or a larger budget_share."
    target = epsilon - 2.0 * EPSILON_SLACK
    fitting = noise_for_epsilon(noisy, target, delta * (1.0 - EPSILON_SLACK), relation)
    factor = getattr(fitting[0], "noise_multiplier", 1.0) / noisy[0].noise_multiplier
    return f"{advice(factor)} Or use fewer draws, tuning iterations or chains, or a larger budget_share."


def _thinner(releases: NoisyReleases, part: float) -> NoisyReleases:
    """Return the same releases at a part of their cost."""
    return dataclasses.replace(releases, noise_multiplier=releases.noise_multiplier / math.sqrt(part))
