"""The plan of one run: its releases, their noise and cost. A budget makes plans and is charged with them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pymc_dp import _validate, accounting
from pymc_dp.accounting import Relation, Releases, of_thresholds
from pymc_dp.accounting.account import rho_without_thresholds
from pymc_dp.budget.worth import Worth
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import labelled

#: How a run is paid for: Gaussian runs add in rho, others reserve an (epsilon, delta) of their own.
Account = Literal["rho", "reserved"]

_EVENTS = {kind.__name__: kind for kind in accounting.KINDS_OF_RELEASES}


@dataclass(frozen=True)
class ReleaseRequest:
    """A request of one chain of a step: `count` releases of one `kind`, for a `share` of the run's cost.

    Attributes
    ----------
    kind : str
        Name of the released statistic.
    count : int
        Releases in one chain, tuning included.
    share : float
        Part of the run's cost to be spent on this kind; the shares of a step add up to 1.
    coordinates : int
        Noisy numbers in one release.
    sampling_probability : float, optional
        Each release is of a Poisson sample.
    batch_size, n_units : int, optional
        Each release is of a batch drawn without replacement from that many units.
    once : bool
        Made once before the chains start and shared by all chains: `count` is then the number in the whole run.
    delta : float, optional
        Each release has a threshold; with at most this probability it fails to hide a level of one unit alone.
    """

    kind: str
    count: int
    share: float
    coordinates: int
    sampling_probability: float | None = None
    batch_size: int | None = None
    n_units: int | None = None
    once: bool = False
    delta: float | None = None

    def releases(self, chains: int) -> Releases:
        """Return the releases of all chains, with noise multipliers in the proportions that the shares imply."""
        count = self.count if self.once else self.count * chains
        noise = math.sqrt(count / self.share)
        if self.sampling_probability is not None:
            q = self.sampling_probability
            return accounting.PoissonGaussianReleases(self.kind, count, q * noise, q, coordinates=self.coordinates)
        if self.batch_size is not None and self.n_units is not None:
            q = self.batch_size / self.n_units
            return accounting.WithoutReplacementGaussianReleases(
                self.kind, count, q * noise, self.batch_size, self.n_units, coordinates=self.coordinates
            )
        if self.delta is not None:
            return accounting.ThresholdedReleases(self.kind, count, noise, self.delta, coordinates=self.coordinates)
        return accounting.GaussianReleases(self.kind, count, noise, coordinates=self.coordinates)


class PlannableStep(Protocol):
    """The interface of steps that a budget can plan."""

    @property
    def name(self) -> str:
        """The step's name."""

    @property
    def budget_share(self) -> float:
        """Part of the remaining budget that the step's run may spend."""

    @property
    def private(self) -> bool:
        """Whether the result of a run is private: its noise is not seeded and no exact counts are returned."""

    @property
    def default_draws(self) -> int:
        """Number of draws of a chain where the caller gives none."""

    def stand_beside_a_table(self, beside: bool, *, units_of_rows: bool) -> None:
        """Set whether the rows come from a table apart from the model, and whether its units have several rows."""

    def know_n_units(self, n_units: int) -> None:
        """Set the number of units, where that number is public."""

    def release_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest | Releases]:
        """Return the releases of one chain of `tune` + `draws` iterations; `Releases` among them have given noise."""

    def what_would_fit(self, noise_factor: float) -> str:
        """Return advice on settings that would fit if all given noise had to grow by a factor."""

    def expected_worth(self, plan: "Plan") -> Worth | None:
        """Return the expected error of the posterior from privacy noise; None where no theory gives one."""


@dataclass(frozen=True)
class StepPlan:
    """What one step of a run will release.

    Attributes
    ----------
    sampler : str
        Name of the step.
    label : str
        Distinguishes the step's published releases from those of the run's other steps; empty for a single step.
    chains : int
        Chains of the run.
    once : tuple of Releases
        Made once, before the chains start.
    in_chains : tuple of Releases
        Made by all chains together, equally many by each chain.
    """

    sampler: str
    label: str
    chains: int
    once: tuple[Releases, ...]
    in_chains: tuple[Releases, ...]

    def __post_init__(self) -> None:
        uneven = [each.kind for each in self.in_chains if each.count % self.chains]
        if uneven:
            raise InvalidArgument(f"Releases of {', '.join(uneven)} cannot be made by {self.chains} chains alike.")

    @property
    def releases(self) -> tuple[Releases, ...]:
        """Everything that the step will release."""
        return self.once + self.in_chains

    @property
    def of_one_chain(self) -> tuple[Releases, ...]:
        """One chain's part of `in_chains`."""
        return tuple(each.with_count(each.count // self.chains) for each in self.in_chains)

    @property
    def noise_multipliers(self) -> Mapping[str, float]:
        """Noise multiplier by kind of release, for kinds with constant noise: see `noise_schedules` for the others."""
        return {kind: noise[0] for kind, noise in self.noise_schedules.items() if len(set(noise)) == 1}

    @property
    def noise_schedules(self) -> Mapping[str, tuple[float, ...]]:
        """All noise multipliers of each kind, in the order of the step's requests."""
        schedules: dict[str, tuple[float, ...]] = {}
        for each in self.releases:
            if each.adds_noise:
                schedules[each.kind] = (*schedules.get(each.kind, ()), each.noise_needed)
        return schedules

    def with_noise_times(self, factor: float) -> "StepPlan":
        """Return the plan with its noise multipliers times a factor, except those of releases without noise."""
        once, in_chains = (
            tuple(
                each if each.noise_needed <= accounting.NO_NOISE else each.with_noise(factor * each.noise_needed)
                for each in releases
            )
            for releases in (self.once, self.in_chains)
        )
        return dataclasses.replace(self, once=once, in_chains=in_chains)

    def published(self, kind: str) -> str:
        """Return the name under which releases of a kind are published."""
        return labelled(kind, self.label)


@dataclass(frozen=True)
class Plan:
    """All releases of one run, and their cost; making a plan spends nothing.

    Attributes
    ----------
    chains, tune, draws : int
        The run: `tune` + `draws` iterations in each chain.
    relation : str
        Neighbouring relation of the budget.
    steps : tuple of StepPlan
        Releases of each step, in the order in which the steps move the point.
    epsilon, delta : float
        The guarantee of this run by itself.
    account : {"rho", "reserved"}
        How the run is charged: in rho, or as a reserved (epsilon, delta).
    accountant : str
        The accounting method that gave `epsilon`.
    private : bool
        False if the run's noise is seeded, exact counts are returned, or the budget's epsilon is infinite: its
        result is then not private at all.
    unit : str
        The unit of privacy in words, which `sample` determines; empty in plans made before a run.
    worth : Worth or None
        The expected error of the posterior from privacy noise, where theory gives one; it is not stored.
    """

    chains: int
    tune: int
    draws: int
    relation: Relation
    steps: tuple[StepPlan, ...]
    epsilon: float
    delta: float
    account: Account = "rho"
    accountant: str = accounting.GAUSSIAN_ACCOUNTANT
    private: bool = True
    unit: str = ""
    worth: Worth | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _validate.choice("account", self.account, ("rho", "reserved"))
        if self.epsilon != math.inf or self.private:  # an infinite epsilon is valid in plans that are not private
            _validate.not_negative("epsilon", self.epsilon)
        _validate.open_unit_interval("delta", self.delta)
        if any(step.chains != self.chains for step in self.steps):
            raise InvalidArgument(f"A step's plan is for another number of chains than the run's {self.chains}.")

    @property
    def sampler(self) -> str:
        """Names of the steps."""
        return " + ".join(step.sampler for step in self.steps)

    @property
    def releases(self) -> tuple[Releases, ...]:
        """The releases of all steps, in all chains and iterations."""
        return tuple(each for step in self.steps for each in step.releases)

    @property
    def gaussian(self) -> bool:
        """Whether all releases are Gaussian releases of all rows."""
        return accounting.all_add_in_rho(self.releases)

    @property
    def rho(self) -> float:
        """Total rho of the Gaussian releases of all rows; other releases count as zero."""
        return accounting.total_rho(accounting.without_thresholds(self.releases))

    @property
    def of_thresholds(self) -> float:
        """The part of delta spent on thresholds by a run charged in rho; reserved runs include it in their delta."""
        return of_thresholds(self.releases) if self.account == "rho" else 0.0

    @property
    def coordinates(self) -> int:
        """Number of released noisy numbers."""
        return sum(releases.count * releases.coordinates for releases in self.releases)

    @property
    def noise_multipliers(self) -> Mapping[str, float]:
        """Noise multiplier by published kind of release, for kinds with constant noise."""
        return {step.published(kind): noise for step in self.steps for kind, noise in step.noise_multipliers.items()}

    def __str__(self) -> str:
        """Return the plan as a table."""
        unlimited = math.isinf(self.epsilon)
        why = "epsilon is infinite, and no noise is added except given noise" if unlimited else ""
        rows = [] if self.private else [f"NOT PRIVATE: {why or 'seeded noise or exact counts'}"]
        iterations = f"{self.chains} chains of {self.tune} tuning and {self.draws} kept iterations"
        rows += [
            f"{self.sampler}: {iterations if self.tune + self.draws else 'released once'}",
            "guarantee of this run: none"
            if unlimited
            else f"guarantee of this run: epsilon {self.epsilon:.4g} at delta {self.delta:.3g}, {self.relation}",
            *([] if unlimited else replaced_in_words(self.relation, self.rho, self.delta, gaussian=self.gaussian)),
            *([f"unit of privacy: {self.unit}"] if self.unit else []),
            f"{'release':<14}{'count':>9}{'noise multiplier':>19}{'rho':>12}{'share':>9}{'sampled':>10}",
        ]
        alike: dict[tuple[str, type[Releases]], list[Releases]] = {}
        for step in self.steps:
            for each in step.releases:
                alike.setdefault((step.published(each.kind), type(each)), []).append(each)
        for (kind, _), group in alike.items():
            rho, share, sampled = "", "", ""
            cost = rho_without_thresholds(group)
            if math.isfinite(cost) and not unlimited:
                rho, share = f"{cost:.4g}", f"{cost / self.rho:.1%}" if self.gaussian else ""
            elif group[0].sampling is not None:
                sampled = f"{group[0].sampling.sampling_probability:.3g}"
            count = sum(each.count for each in group)
            noise = noise_in_words([each.noise_needed for each in group if each.adds_noise])
            rows.append(f"{kind:<14}{count:>9d}{noise:>19}{rho:>12}{share:>9}{sampled:>10}".rstrip())
        if not unlimited:
            rows.append(f"{'together':<14}{'':>28}{self.rho:>12.4g}" if self.gaussian else f"by {self.accountant}")
        if hidden := of_thresholds(self.releases):
            rows.append(f"thresholds hide what one unit alone has, but with probability {hidden:.3g}: a part of delta")
        if self.worth is not None:
            rows.append(
                f"expected of {self.worth.n_units:,} units: noise moves means by about {self.worth.error:.2g} "
                "posterior sd on average (by theory, within a factor of 2 or so; dp.dry_run tells more)"
            )
            rows += self.worth.advice(roughly=True)
        return "\n".join(rows)

    def to_record(self) -> dict[str, Any]:
        """Return the plan as plain data, for storage."""
        steps = [
            {**vars(step)}
            | {name: [record_of_releases(each) for each in vars(step)[name]] for name in ("once", "in_chains")}
            for step in self.steps
        ]
        return {name: value for name, value in vars(self).items() if name != "worth"} | {"steps": steps}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Plan":
        """Return the plan of a record from `to_record`; refuse anything else."""
        try:
            steps = [
                {**step} | {name: tuple(map(releases_of_record, step[name])) for name in ("once", "in_chains")}
                for step in record["steps"]
            ]
            # Plans of earlier versions name the engine of their rows.
            known = {name: value for name, value in record.items() if name != "row_engine"}
            plan = cls(**{**known, "steps": tuple(StepPlan(**step) for step in steps)})
            _validate.choice("relation", plan.relation, accounting.RELATIONS)
            if not isinstance(plan.unit, str):
                raise TypeError
            return plan
        except (ArithmeticError, AttributeError, KeyError, TypeError) as error:
            raise InvalidArgument(f"A stored plan cannot be read: {type(error).__name__}.") from None


def replaced_in_words(relation: str, rho: float, delta: float, *, gaussian: bool) -> list[str]:
    """Return a line with the epsilon under substitution of a guarantee under add-remove; empty for other guarantees.

    Replacing a unit removes one unit and adds another: for Gaussian releases the group privacy is that of
    twice the shift (Dong, Roth and Su 2022, Gaussian differential privacy, JRSS B, Theorem 2.14). No converse
    exists: under substitution the number of units is public.
    """
    if relation != "add-remove" or not gaussian:
        return []
    epsilon = accounting.gaussian_epsilon(4.0 * rho, delta)
    return [f"With a unit replaced (substitute) the same noise guarantees epsilon {epsilon:.4g}"]


def noise_in_words(multipliers: Sequence[float]) -> str:
    """Return the noise multipliers of one kind of release as text for a table; decisions have none."""
    if not multipliers:
        return "in the test"
    least, largest = min(multipliers), max(multipliers)
    if largest <= accounting.NO_NOISE:
        return "none"
    return f"{least:.4g} to {largest:.4g}" if largest > least else f"{least:.4g}"


def record_of_releases(releases: Releases) -> dict[str, Any]:
    """Return releases as plain data."""
    return {"event": type(releases).__name__, **dataclasses.asdict(releases)}


def releases_of_record(record: Mapping[str, Any]) -> Releases:
    """Return the releases of a record from `record_of_releases`."""
    return _EVENTS[record["event"]](**{name: value for name, value in record.items() if name != "event"})
