r"""A black-box audit: many short runs on two neighbouring tables, and a lower bound on epsilon from telling them apart.

The attacker knows the model, the sampler, the table but for one row (the canary), and everything that a run publishes.
All rows but the canary's have covariates of zero, so that nothing but the canary moves a release, and it is as far out
as clipping lets it be: under substitution it pulls one way in one table and the other way in the other, under
add-remove it is there or is not.

For each run the attacker computes one number, the logarithm of a likelihood ratio of what was released, by a formula
that is fixed in advance for each kind of release:

- noise added to a sum over all units in a chain: two normal distributions, apart by the sensitivity;
- noise added to a sum before the chains, of whatever kind: two normal distributions, apart by what the sum is on either
  table, which the attacker computes: whoever knows all rows but one has both tables;
- noise added to a sum over a batch: the canary is in it with probability q, so two mixtures of normals;
- a decision of the Barker test: two mixtures of probabilities.

Half of the runs say which threshold tells the tables apart best, and which of them is taken for the alternative. The
other half give the bound: with :math:`\alpha, \beta` upper Clopper-Pearson bounds of false alarms and misses,
(epsilon, delta)-privacy implies :math:`\varepsilon \ge \ln\frac{1 - \beta - \delta}{\alpha}`. Both bounds hold together
with the stated confidence, over all audits of a table of results (Bonferroni).

Whatever the formula, the bound is one: a worse formula proves less.
"""

import contextlib
import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pymc as pm
import xarray as xr
from samplers import SAMPLERS, Sampler, regression
from scipy import stats

import pymc_dp as dp
from pymc_dp.release import Curators, Release, SecureNoise, curator
from pymc_dp.release.barker_correction import acceptance
from pymc_dp.release.batches import drawn
from pymc_dp.run import sampling
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.prelude import free_hmc
from pymc_dp.surveys import asking, averaging, checking, comparing, describing, fit

#: Rows of a table, with the canary; more than the batches of `samplers`.
N = 170
EPSILON, DELTA = 2.0, 1e-3
#: How far out the canary is: longer than any clip bound by far.
_FAR = 1e9
#: Free chains may be short here: they are functions of releases and public randomness.
_SHORT_CHAINS = {
    "_TRAJECTORIES_OF_A_ROUND": 20,
    "_MEASURED_TRAJECTORIES": 40,
    "_FIRST_ROUNDS": 2,
    "_MOST_ROUNDS": 2,
    "_LEAST_LEAPFROGS": 4,
    "_independence": lambda draws: 1,
}


def canary_model(y: float | None, n: int = N) -> pm.Model:
    """Return a regression in which one row alone, if it is there, says anything about the parameters."""
    x = np.zeros(n)
    observed = np.zeros(n)
    if y is None:
        x, observed = x[1:], observed[1:]
    else:
        x[0], observed[0] = 1.0, y
    with pm.Model() as model:
        intercept, slope = pm.Normal("intercept"), pm.Normal("slope")
        design = pm.Data("x", x)
        pm.Normal("y", intercept * design + slope * design, 1.0, observed=observed)
    return model


def tables(relation: str) -> tuple[pm.Model, pm.Model]:
    """Return the two neighbouring tables."""
    return canary_model(_FAR), canary_model(-_FAR if relation == "substitute" else None)


# What the attacker computes ------------------------------------------------------------------------------------


def log_likelihood_ratio(step: DPStep, release: Release, relation: str) -> float:
    """Return the logarithm of how much likelier a release of a chain is with the canary than on the other table.

    Kinds that tell the attacker nothing give 0.
    """
    where = release.where
    if release.kind == "decision":
        return _of_decision(step, release)
    if release.kind == "clip_count":
        # Under add-remove every entry is larger by one where the canary is; under substitution it is clipped in both.
        if relation == "substitute" or not release.noise_std > 0.0 or getattr(step, "batches", None) is not None:
            return 0.0
        known = np.zeros(release.value.size)
        known[-1] = N - 1
        return _normal(release.value - known, np.ones(release.value.size), release.noise_std, relation)
    if release.kind == "residual":  # the model is a parabola, of which expansions miss nothing
        return 0.0
    if release.kind == "log_ratio":
        towards = float(np.sign(np.sum(where[1] - where[0])))
        bound = step.clip_bounds["log_ratio"] * float(np.linalg.norm(where[1] - where[0]))
        batches = getattr(step, "batches", None)
        if batches is None:
            return _normal(release.value, np.array([towards * bound]), release.noise_std, relation)
        reach = step.tempering * batches.scale * bound
        less = 0.5 * reach**2 * (1.0 - 1.0 / batches.batch_size)
        shifts = [sign * towards * reach - less for sign in (1.0, -1.0)]
        return _mixture(release.value, [np.array([shift]) for shift in shifts], release.noise_std, batches)
    if release.kind == "gradient":
        size = release.value.size
        pull = np.full(size, step.clip_bounds["gradient"] / math.sqrt(size))
        batches = getattr(step, "batches", None)
        if batches is None:
            return _normal(release.value, pull, release.noise_std, relation)
        other = -pull if relation == "substitute" else 0.0 * pull
        return _mixture(release.value, [pull, other], release.noise_std, batches)
    raise NotImplementedError(f"Nothing is said of releases of kind {release.kind!r}.")


def _normal(value: np.ndarray, shift: np.ndarray, noise_std: float, relation: str) -> float:
    """With the canary the mean is `shift`; without it 0, and with its counterpart -shift."""
    other = -shift if relation == "substitute" else 0.0 * shift
    return float(np.sum((value - other) ** 2 - (value - shift) ** 2) / (2.0 * noise_std**2))


class _NoNoise:
    """Adds nothing: what an attacker computes of a table."""

    secure = True

    def add(self, integers: Any, scale: float) -> Any:
        return integers

    def for_chain(self, key: tuple[int, ...]) -> "_NoNoise":
        return self


class _Watched:
    """A curator, and what the attacker makes of its answers: each sum is computed on both tables.

    Parameters
    ----------
    curator : MeteredCurator
        Of the run.
    tables : sequence of MeteredCurator
        Without noise, on the table with the canary and on the other one.
    """

    def __init__(self, curator: Any, tables: Sequence[Any]) -> None:
        self._curator, self._tables = curator, tables
        self.statistic = 0.0

    def release(self, query: Any, noise_multiplier: float = 0.0) -> Release:
        """Return the answer."""
        made: Release = self._curator.release(query, noise_multiplier)
        exact = [table.release(query, noise_multiplier) for table in self._tables]
        value, first, second = (each.value for each in (made, *exact))
        if made.levels:  # of those that are shown of both tables: others are hidden in all but few runs
            counts = [dict(zip(each.levels, each.value, strict=True)) for each in (made, *exact)]
            both = [pair for pair in counts[0] if pair in counts[1] and pair in counts[2]]
            value, first, second = (np.array([each[pair] for pair in both]) for each in counts)
        facts, ones = self._curator._facts, np.ones(value.size)
        noise_std = made.noise_std * (query.published(ones, facts) - query.published(0.0 * ones, facts))  # as published
        self.statistic += float(np.sum(((value - second) ** 2 - (value - first) ** 2) / (2.0 * noise_std**2)))
        return made


def _mixture(value: np.ndarray, shifts: Sequence[np.ndarray], noise_std: float, batches: Any) -> float:
    q = batches.sampling_probability
    logs = []
    for shift in shifts:
        inside = -np.sum((value - shift) ** 2) / (2.0 * noise_std**2)
        outside = -np.sum(value**2) / (2.0 * noise_std**2)
        logs.append(np.logaddexp(math.log(q) + inside, math.log1p(-q) + outside if q < 1.0 else -math.inf))
    return float(logs[0] - logs[1])


def _of_decision(step: Any, release: Release) -> float:
    """Probabilities to accept with the canary pulling either way, in the batch or not."""
    batches, (old, new) = step.batches, release.where
    bound = math.sqrt(batches.batch_size) / (step.tempering * batches.n_units)
    towards = float(np.sign(np.sum(new - old)))
    free = step.chain.prior.log_density(new) - step.chain.prior.log_density(old)
    reach = step.tempering * batches.scale * bound
    q = batches.sampling_probability

    def probability(shift: float) -> float:
        variance = shift**2 * (1.0 - 1.0 / batches.batch_size)
        unlikely, of_unlikely = acceptance(free + shift, variance)
        accepts = of_unlikely if unlikely else 1.0 - of_unlikely
        return accepts if release.value[0] else 1.0 - accepts

    with_canary, with_other = [
        q * probability(sign * towards * reach) + (1.0 - q) * probability(0.0) for sign in (1.0, -1.0)
    ]
    return math.log(with_canary / with_other)


# Many short runs -----------------------------------------------------------------------------------------------


@dataclass
class Runs:
    """Statistics of many runs on one table, what each run claims to cost, and the curators that it paid for."""

    statistics: np.ndarray
    epsilon: float
    delta: float
    curators: Sequence[Any]


def many_runs(
    sampler: Sampler,
    model: pm.Model,
    relation: str,
    count: int,
    *,
    draws: int = 1,
    seed: int = 0,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    breaking: Sequence[Callable[[], Any]] = (),
    curators: Sequence[Sequence[Any]] = (),
) -> Runs:
    """Run a sampler `count` times on one table, each time with fresh curators and the operating system's entropy.

    Planned and wired by the package once; then PyMC's loop is replaced by many short runs of the same steps. `curators`
    are those of both tables, of each step.
    """
    found: list[float] = []
    paid_for: list[Any] = []
    authorised: dict[DPStep, Any] = {}
    authorise = DPStep.authorise

    def noted(step: DPStep, authorisation: Any, *rest: Any) -> None:
        authorised[step] = authorisation
        authorise(step, authorisation, *rest)

    def loop(draws: int, *, tune: int, chains: int, step: Any, **rest: Any) -> Any:
        if not any(isinstance(each, DPStep) for each in getattr(step, "methods", [step])):
            draws = 0  # chains are PyMC's NUTS on what was released
        steps, given = list(authorised), list(authorised.values())
        paid_for.extend(authorisation.curators for authorisation in given)
        generator = np.random.default_rng(seed)
        for _ in range(count):
            found.append(_one_run(steps, given, draws, relation, generator, curators))
        raise _Enough

    with contextlib.ExitStack() as stack:
        for name, shorter in _SHORT_CHAINS.items():
            stack.enter_context(mock.patch.object(free_hmc, name, shorter))
        loop.__wrapped__ = sampling._pymc_sample
        stack.enter_context(mock.patch.object(sampling, "_pymc_sample", loop))
        for patch in breaking:
            stack.enter_context(patch())
        stack.enter_context(model)
        stack.enter_context(contextlib.suppress(_Enough))
        budget = dp.PrivacyBudget(epsilon, delta, relation)
        stack.enter_context(mock.patch.object(DPStep, "authorise", noted))
        dp.sample(draws=draws, tune=0, chains=1, cores=1, step=sampler(budget), random_seed=seed, progressbar=False)
    (plan,) = budget.history
    return Runs(np.array(found), plan.epsilon, plan.delta, paid_for)


class _Enough(BaseException):
    """All runs have been made: there is no tree to be published."""


class _FreshCurators:
    """Curators of one more run: made as those that were paid for, opened once each.

    Parameters
    ----------
    curators : Curators
        Those that were paid for.
    tables : sequence of Curators
        The same of both tables; none where nothing is released before the chains.
    """

    def __init__(self, curators: Any, tables: Sequence[Any]) -> None:
        self._curators, self._tables = curators, tables
        self.watched: list[_Watched] = []

    def open(self, key: tuple[int, ...]) -> Any:
        return self._curators._make_curator(noise=self._curators._noise.for_chain(key), paid=self._curators._in_chain)

    def open_once(self) -> Any:
        own = self._curators._make_curator(noise=self._curators._noise.for_chain((0,)), paid=self._curators._once)
        exact = [table._make_curator(noise=_NoNoise(), paid=table._once) for table in self._tables]
        self.watched.append(_Watched(own, exact))
        return self.watched[-1]


def _one_run(
    steps: Sequence[Any],
    given: Sequence[Any],
    draws: int,
    relation: str,
    generator: Any,
    curators: Sequence[Sequence[Any]],
) -> float:
    """Make one run; return what the attacker makes of it."""
    total = 0.0
    of_steps = zip(*curators, strict=True) if curators else [()] * len(steps)
    for step, authorisation, tables_of_step in zip(steps, given, of_steps, strict=True):
        fresh = _FreshCurators(authorisation.curators, tables_of_step)
        step.authorise(dataclasses.replace(authorisation, curators=fresh))
        total += sum(watched.statistic for watched in fresh.watched)
    parameters = steps[0].parameters
    point = parameters.to_point(generator.normal(scale=0.5, size=parameters.size))
    if draws:
        for step, rng in zip(steps, generator.spawn(len(steps)), strict=True):
            step.setup_chain(rng, 0, draws)
    for _ in range(draws):
        for step in steps:
            point, (found,) = step.step(point)
            for release in found["releases"].made:
                total += log_likelihood_ratio(step, release, relation)
    return total


# The bound -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Audit:
    """A lower bound on epsilon beside the claimed one.

    Attributes
    ----------
    sampler, relation : str
        What was audited.
    claimed, delta : float
        The claim.
    least : float
        The lower bound on epsilon at this delta.
    confidence : float
        Of the bound.
    runs : int
        On both tables together.
    seconds : float
        That they took.
    """

    sampler: str
    relation: str
    claimed: float
    delta: float
    least: float
    confidence: float
    runs: int
    seconds: float

    @property
    def convicted(self) -> bool:
        """Whether the bound is above the claim."""
        return self.least > self.claimed


def least_epsilon(first: np.ndarray, second: np.ndarray, delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon from one statistic's values on two tables, with the stated confidence."""
    halves = [(values[: len(values) // 2], values[len(values) // 2 :]) for values in (first, second)]
    (choose_first, prove_first), (choose_second, prove_second) = halves
    best = (-math.inf, 0.0, 1)
    for sign in (1, -1):
        null, alternative = (choose_second, choose_first) if sign == 1 else (choose_first, choose_second)
        for threshold in np.quantile(sign * np.concatenate([null, alternative]), np.linspace(0.02, 0.999, 150)):
            bound = _bound(sign * null, sign * alternative, threshold, delta, confidence)
            best = max(best, (bound, float(threshold), sign))
    _, threshold, sign = best
    null, alternative = (prove_second, prove_first) if sign == 1 else (prove_first, prove_second)
    return max(0.0, _bound(sign * null, sign * alternative, threshold, delta, confidence))


def _bound(null: np.ndarray, alternative: np.ndarray, threshold: float, delta: float, confidence: float) -> float:
    """Return the bound at one threshold: each error rate is bounded with half of what may go wrong."""
    wrong = (1.0 - confidence) / 2.0
    alarms = stats.beta.ppf(1.0 - wrong, np.sum(null >= threshold) + 1, max(1, np.sum(null < threshold)))
    detections = np.sum(alternative >= threshold)
    found = stats.beta.ppf(wrong, detections, np.sum(alternative < threshold) + 1) if detections else 0.0
    return math.log((found - delta) / alarms) if found > delta else -math.inf


def audited(sampler: Sampler, relation: str, runs: int, confidence: float, **settings: Any) -> Audit:
    """Audit one sampler under one relation, with `runs` runs on both tables together."""
    begin = time.perf_counter()
    both = tables(relation)
    curators = [many_runs(sampler, model, relation, 0, **settings).curators for model in both]
    found = [
        many_runs(sampler, model, relation, runs // 2, seed=place, curators=curators, **settings)
        for place, model in enumerate(both)
    ]
    least = least_epsilon(found[0].statistics, found[1].statistics, found[0].delta, confidence)
    seconds = time.perf_counter() - begin
    return Audit(sampler.name, relation, found[0].epsilon, found[0].delta, least, confidence, runs, seconds)


def _synthetic() -> pm.Model:
    x = np.random.default_rng(1).normal(size=300)
    return regression(x, 0.2 * x + np.random.default_rng(2).normal(size=300))


_SYNTHETIC = _synthetic()


def _sampled(budget: Any) -> dict[str, Any]:
    return {"batch_size": 50} if budget.relation == "substitute" else {"sampling_probability": 0.25}


def _sghmc(budget: Any) -> DPStep:
    return dp.DPSGHMC(clip_gradient=4.0, step_size=0.02, n_leapfrog=2, budget=budget, **_sampled(budget))


def _sgld(budget: Any) -> DPStep:
    size = 0.0045 if budget.relation == "substitute" else 0.015
    return dp.DPSGLD(clip_gradient=4.0, step_size=size, budget=budget, **_sampled(budget))


def _surrogate(budget: Any) -> DPStep:
    return dp.DPSurrogateHMC(newton_steps=2, trajectories=1, budget=budget)


def _tested_surrogate(budget: Any) -> DPStep:
    shares = dp.Shares(0.3, 0.4, 0.1, 0.2)
    return dp.DPSurrogateHMC(synthetic=_SYNTHETIC, shares=shares, newton_steps=2, trajectories=1, budget=budget)


#: Settings that cost more than those of `samplers`, for a claim that can be told from nothing, or take less time.
_INSTEAD = {
    "sghmc": _sghmc,
    "sgld": _sgld,
    "surrogate": _surrogate,
    "surrogate-tested": _tested_surrogate,
}


def all_audits(only: str = "") -> Iterator[tuple[Sampler, str]]:
    """Yield every sampler with every relation that it is accounted for under."""
    for sampler in SAMPLERS:
        audited_as = dataclasses.replace(sampler, make=_INSTEAD.get(sampler.name, sampler.make))
        for relation in sampler.relations:
            if only in sampler.name:
                yield audited_as, relation


# Surveys -------------------------------------------------------------------------------------------------------


def audited_survey(name: str, relation: str, runs: int, confidence: float) -> Audit:
    """Audit what is released once, without a sampler, with `runs` runs on both tables together.

    Every sum is released before any chain: the attacker computes it on both tables.
    """
    begin = time.perf_counter()
    ask = SURVEYS[name]
    exact: list[Any] = []
    watched: list[_Watched] = []

    class Noting(Curators):
        """Notes the curators of each table."""

        def open_once(self) -> Any:
            exact.append(self)
            return super().open_once()

    class Watching(Curators):
        """Has its answers looked at."""

        def open_once(self) -> Any:
            opened = _FreshCurators(self, exact).open_once()
            watched.append(opened)
            return opened

    def asked(place: int) -> Any:
        y = (_FAR, -_FAR if relation == "substitute" else None)[place]
        return ask(y, dp.PrivacyBudget(EPSILON, DELTA, relation)).tree["privacy"].attrs

    with mock.patch.object(asking, "Curators", Noting):
        facts, _ = (asked(place) for place in (0, 1))
    statistics = []
    with mock.patch.object(asking, "Curators", Watching):
        for place in (0, 1):
            watched.clear()
            with _read_once() as begin_again:
                for _ in range(runs // 2):
                    begin_again()
                    asked(place)
            statistics.append(np.array([each.statistic for each in watched]))
    least = least_epsilon(*statistics, facts["delta"], confidence)
    seconds = time.perf_counter() - begin
    return Audit(name, relation, facts["epsilon"], facts["delta"], least, confidence, runs, seconds)


@contextlib.contextmanager
def _read_once() -> Iterator[Callable[[], None]]:
    """Let runs on one table, after the first, take its models and what was compiled of them from the first.

    In the order in which the first made them; yields what is called before each run. Charges, curators, noise and all
    that is computed of releases are made anew.
    """
    made: list[Any] = []
    order = itertools.count()

    def begin_again() -> None:
        nonlocal order
        order = itertools.count()

    def once(make: Callable[..., Any]) -> Callable[..., Any]:
        def of_first(*given: Any, **options: Any) -> Any:
            place = next(order)
            if place == len(made):
                made.append(make(*given, **options))
            return made[place]

        return of_first

    with contextlib.ExitStack() as stack:
        for module, names in _OF_MODELS.items():
            for name in names:
                stack.enter_context(mock.patch.object(module, name, once(getattr(module, name))))
        yield begin_again


def _public_posterior(model: pm.Model) -> xr.DataTree:
    draws = {str(rv.name): (("chain", "draw"), np.linspace(0.5, 1.5, 5)[None]) for rv in model.free_RVs}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(draws), "privacy": xr.Dataset(attrs={"private": 1})})


def _described(y: float | None, budget: dp.PrivacyBudget) -> Any:
    columns = {name: np.zeros(N) for name in ("x", "y")}
    for values in columns.values():
        values[0] = y or 0.0
    frame = {name: values if y is not None else values[1:] for name, values in columns.items()}
    return dp.describe(
        dp.Table(frame, schema=[dp.Number("x", -1, 1), dp.Number("y", -1, 1)]), budget=budget, budget_share=1.0
    )


def _checked(y: float | None, budget: dp.PrivacyBudget) -> Any:
    with canary_model(y) as model:
        x = model["x"].get_value()
        return dp.check(_public_posterior(model), by={"x": x}, budget=budget, budget_share=1.0)


def _compared(y: float | None, budget: dp.PrivacyBudget) -> Any:
    one, other = canary_model(y), canary_model(y)
    nearer = _public_posterior(other)
    nearer["posterior"] = nearer["posterior"].to_dataset() * 0.5
    models = {"one": (one, _public_posterior(one)), "other": (other, nearer)}
    return dp.compare(models, budget=budget, budget_share=1.0)


def _averaged(y: float | None, budget: dp.PrivacyBudget) -> Any:
    with canary_model(y) as model:
        if y is not None:  # what is predicted depends on covariates alone
            x = np.zeros(N)
            x[0] = y
            pm.set_data({"x": x})
        return dp.average_predictions(
            _public_posterior(model), {"as it is": {}, "one": {"x": 1.0}}, budget=budget, budget_share=1.0
        )


def _found(y: float | None, budget: dp.PrivacyBudget) -> Any:
    """With two levels, of half of the units each but for the canary."""
    own = [] if y is None else ["A" if y > 0.0 else "B"]
    return dp.find_levels(
        {"level": np.array([*own, *("AB"[k % 2] for k in range(N - 1))])}, "level", budget=budget, budget_share=1.0
    )


#: What takes long and follows the models alone: where it is made, and by what.
_OF_MODELS = {
    sys.modules[__name__]: ["canary_model", "_public_posterior"],
    describing: ["model_of_a_column", "read", "UnitLikelihood"],
    checking: ["view_of", "UnitLikelihood"],
    comparing: ["view_of", "UnitLikelihood"],
    averaging: ["view_of", "Rewriting", "UnitLikelihood"],
    fit: ["unconstrained_draws"],
}
#: Each releases something of a table with a canary, or without one.
SURVEYS: dict[str, Callable[[float | None, dp.PrivacyBudget], Any]] = {
    "describe": _described,
    "check": _checked,
    "compare": _compared,
    "average_predictions": _averaged,
    "find_levels": _found,
}


# Samplers that are broken on purpose ---------------------------------------------------------------------------


class _QuarterOfTheNoise(SecureNoise):
    """Adds a quarter of what was paid for."""

    def add(self, integers: Any, scale: float) -> Any:
        return super().add(integers, scale / 4)


def _with_the_canary(batches: Any, entropy: Any, n_units: int) -> Any:
    """Draw a batch that the first unit is always in."""
    batch = drawn(batches, entropy, n_units)
    return np.unique(np.append(batch[1:], 0))


def _small_batches(budget: Any) -> DPStep:
    return dp.DPSGHMC(clip_gradient=4.0, step_size=0.02, n_leapfrog=2, batch_size=10, budget=budget)


def _hmc(budget: Any) -> DPStep:
    return dp.DPHMC(clip_gradient=4.0, clip_log_ratio=4.0, step_size=0.05, n_leapfrog=2, budget=budget)


#: Samplers, and how each is broken.
BROKEN = [
    (Sampler("hmc with a quarter of the noise", _hmc), (sampling, "SecureNoise", _QuarterOfTheNoise)),
    (Sampler("sghmc with the canary in every batch", _small_batches), (curator, "drawn", _with_the_canary)),
]


def broken_audits(runs: int, confidence: float, **settings: Any) -> Iterator[Audit]:
    """Audit samplers that have to be convicted."""
    for sampler, breaking in BROKEN:
        broken = [lambda what=breaking: mock.patch.object(*what)]
        yield audited(sampler, "substitute", runs, confidence, breaking=broken, **settings)
