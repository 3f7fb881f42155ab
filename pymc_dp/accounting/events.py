"""The releases of a run as data: the single description from which both their noise and their cost are derived.

An event is independent of models and data. It is valid for the neighbouring relations that its class names; a request
for its cost under another one is an error, never a silent reinterpretation. Each class implements its own privacy
bounds, and the composition uses the common interface alone. Events are stored in the ledger of a budget, so a
field never changes its meaning and is never removed.
"""

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from pymc_dp import _validate
from pymc_dp.accounting import loss_curves
from pymc_dp.accounting.loss_curves import DominatingPair
from pymc_dp.accounting.renyi import barker_batch_bound, gaussian_bound, on_batches, poisson_gaussian_bound
from pymc_dp.exceptions import InvalidArgument, NoDpAccountingEvent

Relation = Literal["substitute", "add-remove"]
#: Squares of smaller multipliers underflow in floating point, squares of larger ones overflow.
_LEAST_NOISE_MULTIPLIER, _LARGEST_NOISE_MULTIPLIER = 1e-150, 1e154
#: The noise multiplier that denotes no noise, in plans of a budget of infinite epsilon; the largest finite epsilon of a
#: budget corresponds to 2e-8. Not 0, so that code may divide by it.
NO_NOISE = 1e-9
RELATIONS: tuple[Relation, ...] = ("substitute", "add-remove")

#: Relative error of the probability of a Barker decision, as computed.
_ROUNDING_OF_DECISIONS = 2.0**-37


@dataclass(frozen=True)
class PoissonSampling:
    """Every unit takes part in a release independently, with `sampling_probability` in (0, 1]."""

    sampling_probability: float


@dataclass(frozen=True)
class SamplingWithoutReplacement:
    """Each release uses a batch, drawn uniformly from all subsets of `batch_size` out of `n_units` units."""

    batch_size: int
    n_units: int

    @property
    def sampling_probability(self) -> float:
        """The part of all units that is in a batch."""
        return self.batch_size / self.n_units


@dataclass(frozen=True)
class Releases(ABC):
    """A number of releases of one kind: their cost, and the noise and sampling that each of them has to use.

    Attributes
    ----------
    kind : str
        Name of the released statistic, such as ``"gradient"``, ``"log_ratio"``, ``"clip_count"``.
    count : int
        Number of releases over all chains and iterations, at least 1.
    coordinates : int
        Noisy numbers in one release, at least 1. By keyword.
    """

    kind: str
    count: int
    coordinates: int = field(default=1, kw_only=True)

    #: The neighbouring relations for which a theorem is known, the theorem, and its assumptions.
    relations: ClassVar[tuple[Relation, ...]]
    theorem: ClassVar[str]
    assumption: ClassVar[str]
    #: Whether `rho` determines the cost, as it does for Gaussian releases of all rows.
    adds_in_rho: ClassVar[bool] = False
    #: Whether noise is added to the released value; in a decision the noise is part of the test.
    adds_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not self.kind:
            raise InvalidArgument("kind must be a name that is not empty.")
        object.__setattr__(self, "kind", str.__str__(self.kind))  # plain text of an instance of a subclass
        object.__setattr__(self, "count", _validate.whole("count", self.count, at_least=1))
        object.__setattr__(self, "coordinates", _validate.whole("coordinates", self.coordinates, at_least=1))

    @property
    @abstractmethod
    def noise_needed(self) -> float:
        """The least noise multiplier that a release has to carry; 0 where no noise is added."""

    @property
    def sampling(self) -> PoissonSampling | SamplingWithoutReplacement | None:
        """The sampling scheme of one release; None where each release uses all units."""
        return None

    @property
    def rho(self) -> float:
        """The cost in rho: count / (2 noise_multiplier²) for Gaussian releases of all rows, else infinite."""
        return math.inf

    @property
    def rounding(self) -> float:
        """Bound of the floating-point error in the log-probability of all results, on one table."""
        return 0.0

    @property
    def of_thresholds(self) -> float:
        """The part of delta spent on thresholds by all releases together, in addition to the cost of noise."""
        return 0.0

    @property
    def loss_variance(self) -> float:
        """The approximate variance of the privacy loss of one release; infinite where its distribution is unknown."""
        return math.inf

    def dominating_pairs(self, log_tail: float) -> tuple[DominatingPair, ...]:
        """Return dominating pairs of one release: one for both directions, or one for each; empty if unknown.

        Parameters
        ----------
        log_tail : float
            Logarithm of the probability mass of losses that may lie outside of the pairs' limits.
        """
        return ()

    def renyi_bound(self, order: int) -> float:
        """Return a bound of the Rényi divergence of one release at an integer order from 2; infinite if unknown."""
        return math.inf

    def to_dp_accounting(self) -> Any:
        """Return the same releases as a ``dp_accounting.DpEvent`` of Google's library, for independent accounting.

        Noise multipliers are passed unchanged: they are relative to the sensitivity under the relation of the
        accounting. So choose the accountant by the kind of event, not by the relation: for Gaussian and
        Poisson events ``PLDAccountant()`` or ``RdpAccountant()`` (add or remove one), for batches without replacement
        ``RdpAccountant`` with ``REPLACE_ONE``.

        Raises
        ------
        NoDpAccountingEvent
            If `dp_accounting` has no such event, or is not installed.
        """
        library = _dp_accounting()
        return library.SelfComposedDpEvent(self._event(library), self.count)

    def _event(self, library: Any) -> Any:
        """Return one release as an event of the library."""
        raise NoDpAccountingEvent(
            f"dp_accounting has no event for a {type(self).__name__}: account for it with pymc_dp.accounting."
        )

    def with_count(self, count: int) -> Self:
        """Return a copy with another number of releases."""
        return replace(self, count=count)

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return a copy with another noise multiplier; releases that add no noise have none to change."""
        return self

    def alone(self) -> Self:
        """Return a single release without the fields that do not affect its cost, as a key for caching."""
        return replace(self, kind="one", count=1, coordinates=1)


@dataclass(frozen=True)
class NoisyReleases(Releases):
    """Releases with Gaussian noise, whose standard deviation is `noise_multiplier` times the sensitivity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        noise_multiplier = _validate.positive("noise_multiplier", self.noise_multiplier)
        if not _LEAST_NOISE_MULTIPLIER <= noise_multiplier <= _LARGEST_NOISE_MULTIPLIER:
            raise InvalidArgument(
                f"A noise_multiplier of {noise_multiplier:g} is too small or too large to account for."
            )
        object.__setattr__(self, "noise_multiplier", noise_multiplier)

    @property
    def noise_needed(self) -> float:
        """The noise multiplier."""
        return self.noise_multiplier

    @property
    def loss_variance(self) -> float:
        """The approximate variance of the privacy loss of one release, for releases on samples; else infinite."""
        sampling = self.sampling
        return (
            math.inf
            if sampling is None
            else loss_curves.sampled_spread(sampling.sampling_probability, self.noise_multiplier)
        )

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return a copy with another noise multiplier."""
        return replace(self, noise_multiplier=noise_multiplier)


@dataclass(frozen=True)
class GaussianReleases(NoisyReleases):
    """A number of Gaussian releases of one kind, each a function of all rows.

    Attributes
    ----------
    noise_multiplier : float
        Standard deviation of the noise divided by the sensitivity of the released sum under the relation of the
        accounting, above 0.
    """

    relations: ClassVar[tuple[Relation, ...]] = RELATIONS
    theorem: ClassVar[str] = "tight curve of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)"
    assumption: ClassVar[str] = "each unit's contribution is clipped; the noise is Gaussian, fresh for each release"
    adds_in_rho: ClassVar[bool] = True

    @property
    def rho(self) -> float:
        """The cost: count / (2 noise_multiplier²), added over releases of all kinds."""
        return self.count / (2.0 * self.noise_multiplier**2)

    @property
    def loss_variance(self) -> float:
        """The variance of the privacy loss of one release."""
        return 1.0 / self.noise_multiplier**2

    def dominating_pairs(self, log_tail: float) -> tuple[DominatingPair, ...]:
        """Return one pair, for both directions."""
        return (loss_curves.gaussian_pair(self.noise_multiplier, log_tail),)

    def renyi_bound(self, order: int) -> float:
        """Return the exact Rényi divergence of one release."""
        return gaussian_bound(order, self.noise_multiplier)

    def _event(self, library: Any) -> Any:
        return library.GaussianDpEvent(self.noise_multiplier)


@dataclass(frozen=True)
class ThresholdedReleases(NoisyReleases):
    """Gaussian counts of the levels that occur in a table; only counts above a threshold are published.

    The noise of the counts does not protect which levels occur: `pymc_dp.accounting.account` adds the cost of that.

    Attributes
    ----------
    coordinates : int
        Noisy numbers in one release that one unit may change.
    noise_multiplier : float
        Standard deviation of the noise divided by the sensitivity of the counts, above 0.
    delta : float
        In (0, 1): the probability that a release publishes any level that one unit alone has.
    """

    delta: float

    relations: ClassVar[tuple[Relation, ...]] = RELATIONS
    theorem: ClassVar[str] = (
        "levels that other units have, too, cost what Gaussian counts of them cost; all others are hidden but with "
        "the stated probability (as Korolova, Kenthapadi, Mishra and Ntoulas 2009)"
    )
    assumption: ClassVar[str] = (
        "a unit has at most one level of each column; noise is fresh for each level; the threshold hides the levels of "
        "any one unit but with the stated probability"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "delta", _validate.open_unit_interval("delta", self.delta))

    @property
    def of_thresholds(self) -> float:
        """A bound of the probability that any of the releases publishes a level of one unit alone."""
        return self.count * self.delta

    @property
    def counts(self) -> GaussianReleases:
        """The releases as Gaussian counts, as if the set of levels that occur were public."""
        return GaussianReleases(self.kind, self.count, self.noise_multiplier, coordinates=self.coordinates)


@dataclass(frozen=True)
class PoissonGaussianReleases(NoisyReleases):
    """Gaussian releases, each of a fresh Poisson sample: every unit takes part independently.

    Attributes
    ----------
    noise_multiplier : float
        Standard deviation of the noise divided by the largest contribution of one unit *to a sample*, its scale
        included, above 0.
    sampling_probability : float
        Probability that a unit takes part in a release, in (0, 1]. Public: not computed from the number of rows.
    """

    sampling_probability: float

    relations: ClassVar[tuple[Relation, ...]] = ("add-remove",)
    theorem: ClassVar[str] = (
        "privacy loss distributions of both directions of the Poisson-subsampled Gaussian (Zhu, Dong and Wang 2022), "
        "discretised from above (Doroshenko and others 2022)"
    )
    assumption: ClassVar[str] = (
        "each unit takes part in each release independently with the stated probability; the sample, its size "
        "included, stays confidential; no scale depends on the number of rows"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        probability = _validate.part_of_one("sampling_probability", self.sampling_probability)
        object.__setattr__(self, "sampling_probability", probability)

    @property
    def sampling(self) -> PoissonSampling:
        """The sampling scheme of one release."""
        return PoissonSampling(self.sampling_probability)

    def dominating_pairs(self, log_tail: float) -> tuple[DominatingPair, ...]:
        """Return the pairs of both directions: a removed unit and an added unit."""
        return loss_curves.poisson_pairs(self.sampling_probability, self.noise_multiplier, log_tail)

    def renyi_bound(self, order: int) -> float:
        """Return the exact Rényi divergence of one release under add-remove."""
        return poisson_gaussian_bound(order, self.sampling_probability, self.noise_multiplier)

    def _event(self, library: Any) -> Any:
        return library.PoissonSampledDpEvent(self.sampling_probability, library.GaussianDpEvent(self.noise_multiplier))


@dataclass(frozen=True)
class BatchReleases(Releases):
    """Releases that each use a fresh batch of `batch_size` out of `n_units` units, drawn without replacement."""

    batch_size: int
    n_units: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "n_units", _validate.whole("n_units", self.n_units, at_least=1))
        object.__setattr__(self, "batch_size", _validate.whole("batch_size", self.batch_size, at_least=1))
        if self.batch_size > self.n_units:
            raise InvalidArgument(f"batch_size {self.batch_size} is larger than n_units {self.n_units}.")

    @property
    def sampling(self) -> SamplingWithoutReplacement:
        """The sampling scheme of one release."""
        return SamplingWithoutReplacement(self.batch_size, self.n_units)

    @property
    def sampling_probability(self) -> float:
        """The part of all units that is in a batch."""
        return self.batch_size / self.n_units


@dataclass(frozen=True)
class WithoutReplacementGaussianReleases(BatchReleases, NoisyReleases):
    """Gaussian releases, each of a fresh batch of fixed size drawn without replacement.

    Attributes
    ----------
    batch_size, n_units : int
        Number of units in a batch, and in the table; both are public.
    noise_multiplier : float
        Standard deviation of the noise divided by the sensitivity of the released value to a replaced unit of the
        batch, above 0.
    """

    relations: ClassVar[tuple[Relation, ...]] = ("substitute",)
    theorem: ClassVar[str] = (
        "dominating pair of sampling without replacement under substitution (Zhu, Dong and Wang 2022), discretised "
        "from above (Doroshenko and others 2022); Rényi bound of Wang, Balle and Kasiviswanathan 2019, Theorem 9"
    )
    assumption: ClassVar[str] = (
        "each batch is drawn uniformly among all subsets of its size, independently of the others, and stays "
        "confidential; the number of units is public"
    )

    def dominating_pairs(self, log_tail: float) -> tuple[DominatingPair, ...]:
        """Return one pair, which bounds both directions."""
        return (loss_curves.without_replacement_pair(self.sampling_probability, self.noise_multiplier, log_tail),)

    def renyi_bound(self, order: int) -> float:
        """Return a bound of the Rényi divergence of one release under substitution."""
        return on_batches(order, self.sampling_probability, lambda j: gaussian_bound(j, self.noise_multiplier))

    def _event(self, library: Any) -> Any:
        single = library.GaussianDpEvent(self.noise_multiplier)
        return library.SampledWithoutReplacementDpEvent(self.n_units, self.batch_size, single)


@dataclass(frozen=True)
class BarkerReleases(BatchReleases):
    """Acceptance decisions of DP Barker: their noise is part of the test and cannot be chosen.

    Each unit's log-ratio is clipped at sqrt(batch_size) / tempered_size, where tempered_size is the effective number of
    units of the tempered likelihood.

    Attributes
    ----------
    batch_size, n_units : int
        Number of units in a batch, above 15, as no order has a finite bound otherwise; and in the table. Both public.
    """

    relations: ClassVar[tuple[Relation, ...]] = ("substitute",)
    theorem: ClassVar[str] = (
        "Rényi bound of the Barker test with total noise variance 2 (Heikkilä, Jälkö, Dikmen and Honkela 2019), "
        "amplified by sampling without replacement (Wang, Balle and Kasiviswanathan 2019, Theorem 9)"
    )
    assumption: ClassVar[str] = (
        "log-ratios are clipped at sqrt(batch size) / tempered size; noise and sampling variance add up to 2; each "
        "batch is drawn uniformly without replacement and stays confidential; the number of units is public"
    )
    adds_noise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size <= 15:
            raise InvalidArgument(f"The Barker test is accounted for from 16 units a batch, not {self.batch_size}.")

    @property
    def noise_needed(self) -> float:
        """Zero: no noise is added to the decision."""
        return 0.0

    @property
    def rounding(self) -> float:
        """Bound of the floating-point error in the log-probability of all decisions."""
        return _ROUNDING_OF_DECISIONS * self.count

    def renyi_bound(self, order: int) -> float:
        """Return a bound of the Rényi divergence of one decision under substitution."""
        if order <= 2 or 5 * order >= self.batch_size:
            return math.inf
        return on_batches(order, self.sampling_probability, lambda j: barker_batch_bound(j, self.batch_size))


KINDS_OF_RELEASES: tuple[type[Releases], ...] = (
    GaussianReleases,
    ThresholdedReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
    BarkerReleases,
)


def to_dp_accounting(releases: Sequence[Releases]) -> Any:
    """Return the releases as one ``dp_accounting.ComposedDpEvent``. See `Releases.to_dp_accounting`."""
    return _dp_accounting().ComposedDpEvent([each.to_dp_accounting() for each in releases])


def _dp_accounting() -> Any:
    """Import the optional library."""
    try:
        return importlib.import_module("dp_accounting")
    except ImportError:
        raise NoDpAccountingEvent(
            "dp_accounting is not installed: install it, or pymc_dp with its extra of that name "
            "(pip install 'pymc_dp[dp-accounting]')."
        ) from None
