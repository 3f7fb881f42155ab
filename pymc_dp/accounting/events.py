"""What a run releases, as data: the one description from which both its noise and its cost are derived."""

from dataclasses import dataclass

from pymc_dp import _validate


@dataclass(frozen=True)
class GaussianReleases:
    """A number of Gaussian releases of one kind.

    Attributes
    ----------
    kind : str
        What is released: ``"gradient"``, ``"log_ratio"``, ``"clip_count"``.
    count : int
        How many, over all chains and iterations, at least 1.
    noise_multiplier : float
        Standard deviation of the noise divided by the sensitivity of the released sum, above 0.
    """

    kind: str
    count: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _validate.whole("count", self.count, at_least=1))
        object.__setattr__(self, "noise_multiplier", _validate.positive("noise_multiplier", self.noise_multiplier))

    @property
    def rho(self) -> float:
        """The cost: count / (2 noise_multiplier²), added over releases of all kinds."""
        return self.count / (2.0 * self.noise_multiplier**2)
