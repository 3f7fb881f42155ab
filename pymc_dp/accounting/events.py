"""What a run releases, as data: the one description from which both its noise and its cost are derived.

An event says nothing of models or data. It is valid for the neighbouring relations that its class names; asking
for its cost under another one is an error, never a silent reinterpretation. Events are stored with what was spent,
so a field never changes its meaning and is never removed.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument

Relation = Literal["substitute", "add-remove"]
#: Squares of smaller ones vanish in floating point, those of larger ones overflow.
_LEAST_NOISE_MULTIPLIER, _LARGEST_NOISE_MULTIPLIER = 1e-150, 1e154
RELATIONS: tuple[Relation, ...] = ("substitute", "add-remove")


@dataclass(frozen=True)
class GaussianReleases:
    """A number of Gaussian releases of one kind, each a function of all rows.

    Attributes
    ----------
    kind : str
        What is released: ``"gradient"``, ``"log_ratio"``, ``"clip_count"``.
    count : int
        How many, over all chains and iterations, at least 1.
    noise_multiplier : float
        Standard deviation of the noise divided by the sensitivity of the released sum under the relation that it
        is accounted for, above 0.
    coordinates : int
        Noisy numbers in one release, at least 1.
    """

    kind: str
    count: int
    noise_multiplier: float
    coordinates: int = 1

    relations: ClassVar[tuple[Relation, ...]] = RELATIONS
    theorem: ClassVar[str] = "tight curve of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)"
    assumption: ClassVar[str] = "each unit's contribution is clipped; the noise is Gaussian, fresh for each release"

    def __post_init__(self) -> None:
        _check_common(self)
        _check_noise(self)

    @property
    def rho(self) -> float:
        """The cost: count / (2 noise_multiplier²), added over releases of all kinds."""
        return self.count / (2.0 * self.noise_multiplier**2)


@dataclass(frozen=True)
class PoissonGaussianReleases:
    """Gaussian releases, each of a fresh Poisson sample: every unit takes part independently.

    Attributes
    ----------
    kind, count, coordinates
        As in `GaussianReleases`.
    noise_multiplier : float
        Standard deviation of the noise divided by the largest contribution of one unit *to a sample*, its scale
        included, above 0.
    sampling_probability : float
        With which each unit takes part in a release, in (0, 1]. Public: not computed from the number of rows.
    """

    kind: str
    count: int
    noise_multiplier: float
    sampling_probability: float
    coordinates: int = 1

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
        _check_common(self)
        _check_noise(self)
        probability = _validate.part_of_one("sampling_probability", self.sampling_probability)
        object.__setattr__(self, "sampling_probability", probability)


@dataclass(frozen=True)
class WithoutReplacementGaussianReleases:
    """Gaussian releases, each of a fresh batch of fixed size drawn without replacement.

    Attributes
    ----------
    kind, count, coordinates
        As in `GaussianReleases`.
    noise_multiplier : float
        Standard deviation of the noise divided by how far replacing one unit of a batch moves the released value,
        above 0.
    batch_size : int
        Units in a batch, between 1 and `n_units`.
    n_units : int
        Units in the table, public.
    """

    kind: str
    count: int
    noise_multiplier: float
    batch_size: int
    n_units: int
    coordinates: int = 1

    relations: ClassVar[tuple[Relation, ...]] = ("substitute",)
    theorem: ClassVar[str] = (
        "dominating pair of sampling without replacement under substitution (Zhu, Dong and Wang 2022), discretised "
        "from above (Doroshenko and others 2022); Rényi bound of Wang, Balle and Kasiviswanathan 2019, Theorem 9"
    )
    assumption: ClassVar[str] = (
        "each batch is drawn uniformly among all subsets of its size, independently of the others, and stays "
        "confidential; the number of units is public"
    )

    def __post_init__(self) -> None:
        _check_common(self)
        _check_batch(self)
        _check_noise(self)

    @property
    def sampling_probability(self) -> float:
        """The part of all units that is in a batch."""
        return self.batch_size / self.n_units


@dataclass(frozen=True)
class BarkerReleases:
    """Acceptance decisions of DP Barker: their noise is part of the test, so there is none to choose.

    Each unit's log-ratio is clipped at sqrt(batch_size) / tempered_size, tempered_size being the number of units
    that the tempered likelihood stands for.

    Attributes
    ----------
    kind, count, coordinates
        As in `GaussianReleases`.
    batch_size, n_units : int
        As in `WithoutReplacementGaussianReleases`; a batch has more than 15 units, or no order is covered.
    """

    kind: str
    count: int
    batch_size: int
    n_units: int
    coordinates: int = 1

    relations: ClassVar[tuple[Relation, ...]] = ("substitute",)
    theorem: ClassVar[str] = (
        "Rényi bound of the Barker test with total noise variance 2 (Heikkilä, Jälkö, Dikmen and Honkela 2019), "
        "amplified by sampling without replacement (Wang, Balle and Kasiviswanathan 2019, Theorem 9)"
    )
    assumption: ClassVar[str] = (
        "log-ratios are clipped at sqrt(batch size) / tempered size; noise and sampling variance add up to 2; each "
        "batch is drawn uniformly without replacement and stays confidential; the number of units is public"
    )

    def __post_init__(self) -> None:
        _check_common(self)
        _check_batch(self)
        if self.batch_size <= 15:
            raise InvalidArgument(f"The Barker test is accounted for from 16 units a batch, not {self.batch_size}.")

    @property
    def sampling_probability(self) -> float:
        """The part of all units that is in a batch."""
        return self.batch_size / self.n_units


Releases = GaussianReleases | PoissonGaussianReleases | WithoutReplacementGaussianReleases | BarkerReleases
NoisyReleases = GaussianReleases | PoissonGaussianReleases | WithoutReplacementGaussianReleases
KINDS_OF_RELEASES: tuple[type[Releases], ...] = (
    GaussianReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
    BarkerReleases,
)


def _check_common(releases: Releases) -> None:
    if not isinstance(releases.kind, str) or not releases.kind:
        raise InvalidArgument("kind must be a name that is not empty.")
    object.__setattr__(releases, "count", _validate.whole("count", releases.count, at_least=1))
    object.__setattr__(releases, "coordinates", _validate.whole("coordinates", releases.coordinates, at_least=1))


def _check_noise(releases: NoisyReleases) -> None:
    noise_multiplier = _validate.positive("noise_multiplier", releases.noise_multiplier)
    if not _LEAST_NOISE_MULTIPLIER <= noise_multiplier <= _LARGEST_NOISE_MULTIPLIER:
        raise InvalidArgument(f"A noise_multiplier of {noise_multiplier:g} is too small or too large to account for.")
    object.__setattr__(releases, "noise_multiplier", noise_multiplier)


def _check_batch(releases: WithoutReplacementGaussianReleases | BarkerReleases) -> None:
    object.__setattr__(releases, "n_units", _validate.whole("n_units", releases.n_units, at_least=1))
    object.__setattr__(releases, "batch_size", _validate.whole("batch_size", releases.batch_size, at_least=1))
    if releases.batch_size > releases.n_units:
        raise InvalidArgument(f"batch_size {releases.batch_size} is larger than n_units {releases.n_units}.")
