"""What one run will release, at what noise and cost: the plan that a budget makes and is charged."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pymc_dp import _validate
from pymc_dp.accounting import (
    GAUSSIAN_ACCOUNTANT,
    KINDS_OF_RELEASES,
    RELATIONS,
    BarkerReleases,
    GaussianReleases,
    PoissonGaussianReleases,
    Relation,
    Releases,
    WithoutReplacementGaussianReleases,
)
from pymc_dp.exceptions import InvalidArgument

#: How a run is paid for: Gaussian runs add in rho, others reserve an (epsilon, delta) of their own.
Account = Literal["rho", "reserved"]


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
        Part of the run's cost to be spent on this kind; the shares of a step add up to 1.
    coordinates : int
        Noisy numbers in one release.
    sampling_probability : float, optional
        Each release is of a Poisson sample.
    batch_size, n_units : int, optional
        Each release is of a batch drawn without replacement from that many units.
    once : bool
        Made once before the chains start and shared by all of them: `count` is then that of the whole run.
    """

    kind: str
    count: int
    share: float
    coordinates: int
    sampling_probability: float | None = None
    batch_size: int | None = None
    n_units: int | None = None
    once: bool = False

    def releases(self, chains: int) -> Releases:
        """Return the releases of all chains, with noise in proportion to what the share asks for."""
        count = self.count if self.once else self.count * chains
        noise = math.sqrt(count / self.share)
        if self.sampling_probability is not None:
            q = self.sampling_probability
            return PoissonGaussianReleases(self.kind, count, q * noise, q, self.coordinates)
        if self.batch_size is not None and self.n_units is not None:
            q = self.batch_size / self.n_units
            return WithoutReplacementGaussianReleases(
                self.kind, count, q * noise, self.batch_size, self.n_units, self.coordinates
            )
        return GaussianReleases(self.kind, count, noise, self.coordinates)


class PlannableStep(Protocol):
    """What a budget needs to know of a step."""

    @property
    def name(self) -> str:
        """The step's name."""
        ...

    @property
    def budget_share(self) -> float:
        """Part of what is left that its run may spend."""
        ...

    def release_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest | Releases]:
        """Return what one chain of `tune` + `draws` iterations releases; releases have noise that is given."""
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
    releases : tuple of releases
        By kind, over all chains and iterations.
    epsilon, delta : float
        The guarantee of this run taken by itself.
    account : {"rho", "reserved"}
        How the run is paid for.
    accountant : str
        The method behind `epsilon`.
    private : bool
        False if the run's noise is seeded or exact counts are returned: its result is then not private at all.
    once : tuple of str
        The kinds that are released once, before the chains start.
    unit : str
        The unit of privacy in words, once it is known: `pm.sample` finds it. Empty in plans made before.
    """

    sampler: str
    chains: int
    tune: int
    draws: int
    relation: Relation
    releases: tuple[Releases, ...]
    epsilon: float
    delta: float
    account: Account = "rho"
    accountant: str = GAUSSIAN_ACCOUNTANT
    private: bool = True
    once: tuple[str, ...] = ()
    unit: str = ""

    @property
    def gaussian(self) -> bool:
        """Whether all releases are Gaussian releases of all rows."""
        return all(isinstance(releases, GaussianReleases) for releases in self.releases)

    @property
    def rho(self) -> float:
        """Total cost of the Gaussian releases of all rows; other releases have none."""
        return math.fsum(releases.rho for releases in self.releases if isinstance(releases, GaussianReleases))

    @property
    def coordinates(self) -> int:
        """How many noisy numbers are released."""
        return sum(releases.count * releases.coordinates for releases in self.releases)

    @property
    def noise_multipliers(self) -> Mapping[str, float]:
        """Noise multiplier by kind of release. A kind whose noise changes is left out: see `releases`."""
        found: dict[str, set[float]] = {}
        for releases in self.releases:
            if not isinstance(releases, BarkerReleases):
                found.setdefault(releases.kind, set()).add(releases.noise_multiplier)
        return {kind: values.pop() for kind, values in found.items() if len(values) == 1}

    @property
    def releases_per_chain(self) -> Mapping[str, int]:
        """Number of releases in one chain, by kind."""
        counts: dict[str, int] = {}
        for releases in self.releases:
            if releases.kind not in self.once:
                counts[releases.kind] = counts.get(releases.kind, 0) + releases.count // self.chains
        return counts

    @property
    def noise_schedules(self) -> Mapping[str, tuple[float, ...]]:
        """All noise multipliers of a kind, in the order in which its step asked for them."""
        schedules: dict[str, list[float]] = {}
        for releases in self.releases:
            if not isinstance(releases, BarkerReleases):
                schedules.setdefault(releases.kind, []).append(releases.noise_multiplier)
        return {kind: tuple(multipliers) for kind, multipliers in schedules.items()}

    @property
    def scheduled_per_chain(self) -> tuple[Releases, ...]:
        """What one chain releases on batches, or with noise that changes."""
        constant = self.noise_multipliers
        return tuple(
            dataclasses.replace(each, count=each.count // self.chains)
            for each in self.releases
            if not isinstance(each, GaussianReleases) or each.kind not in constant
        )

    @property
    def releases_once(self) -> Mapping[str, int]:
        """Number of releases before the chains start, by kind."""
        return {releases.kind: releases.count for releases in self.releases if releases.kind in self.once}

    def __str__(self) -> str:
        """Return the plan as a table."""
        rows = [] if self.private else ["NOT PRIVATE: seeded noise or exact counts"]
        rows += [
            f"{self.sampler}: {self.chains} chains of {self.tune} tuning and {self.draws} kept iterations",
            f"guarantee of this run: epsilon {self.epsilon:.4g} at delta {self.delta:.3g}, {self.relation}",
            *([f"unit of privacy: {self.unit}"] if self.unit else []),
            f"{'release':<14}{'count':>9}{'noise multiplier':>19}{'rho':>12}{'share':>9}{'sampled':>10}",
        ]
        alike: dict[tuple[str, type[Releases]], list[Releases]] = {}
        for releases in self.releases:
            alike.setdefault((releases.kind, type(releases)), []).append(releases)
        for (kind, _), group in alike.items():
            noise, rho, share, sampled = "in the test", "", "", ""
            multipliers = [each.noise_multiplier for each in group if not isinstance(each, BarkerReleases)]
            if multipliers:
                noise = f"{min(multipliers):.4g}"
                noise += f" to {max(multipliers):.4g}" if max(multipliers) > min(multipliers) else ""
            count = sum(each.count for each in group)
            costs = [each.rho for each in group if isinstance(each, GaussianReleases)]
            if costs:
                rho = f"{math.fsum(costs):.4g}"
                share = f"{math.fsum(costs) / self.rho:.1%}" if self.gaussian else ""
            elif not isinstance(group[0], GaussianReleases):
                sampled = f"{group[0].sampling_probability:.3g}"
            rows.append(f"{kind:<14}{count:>9d}{noise:>19}{rho:>12}{share:>9}{sampled:>10}".rstrip())
        rows.append(f"{'together':<14}{'':>28}{self.rho:>12.4g}" if self.gaussian else f"by {self.accountant}")
        return "\n".join(rows)

    def to_record(self) -> dict[str, Any]:
        """Return the plan as plain data, for storing."""
        releases = [{"event": type(each).__name__, **dataclasses.asdict(each)} for each in self.releases]
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "releases": releases}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Plan":
        """Return the plan that `to_record` gave.

        Raises
        ------
        InvalidArgument
            If the record is not one of a plan.
        """
        events = {kind.__name__: kind for kind in KINDS_OF_RELEASES}
        try:
            releases = tuple(
                events[each["event"]](**{name: value for name, value in each.items() if name != "event"})
                for each in record["releases"]
            )
            plan = cls(**{**record, "releases": releases, "once": tuple(record.get("once", ()))})
            _validate.choice("relation", plan.relation, RELATIONS)
            _validate.choice("account", plan.account, ("rho", "reserved"))
            _validate.not_negative("epsilon", plan.epsilon)
            _validate.open_unit_interval("delta", plan.delta)
            if not isinstance(plan.unit, str):
                raise TypeError
            return plan
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"A stored plan cannot be read: {type(error).__name__}.") from None
