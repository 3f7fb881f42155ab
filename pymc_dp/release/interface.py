"""The door as samplers see it: they ask for releases, and see nothing else of the data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # batches make releases, too
    from pymc_dp.release.batches import Batches, BatchesWithoutReplacement

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Release:
    """One metered release: a clipped sum over units with noise added.

    Attributes
    ----------
    kind : str
        ``"gradient"``, ``"log_ratio"``, ``"decision"`` or ``"clip_count"``.
    value : ndarray
        The noisy value: shape (parameters,) for a gradient, (1,) for a log-ratio, (counts,) for clip counts.
    noise_std : float
        Standard deviation of the noise in each entry of `value`; the noise itself is never kept.
    where : tuple of ndarray
        The position, or positions, it was asked for at: each a vector of unconstrained parameters.
    """

    kind: str
    value: FloatArray
    noise_std: float
    where: tuple[FloatArray, ...]


@dataclass(frozen=True, eq=False)
class ReleasesOfIteration:
    """The releases of one iteration as a single object, which arrays of statistics do not take apart."""

    made: tuple[Release, ...]


class Door(Protocol):
    """Every method is one release: clipped, noised, counted; refused with `BudgetExceeded` beyond the plan.

    ``noise_multiplier`` is the standard deviation of the noise divided by the sensitivity of the clipped sum.
    """

    def gradient(
        self, theta: FloatArray, bound: float, noise_multiplier: float, blocks: Sequence[bool] | None = None
    ) -> Release:
        """Release the sum over units of log-likelihood gradients, each clipped to the norm `bound`.

        `blocks` says which of the model's value variables take part; the others have no entry in the release.
        """
        ...

    def log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float, noise_multiplier: float) -> Release:
        """Release the sum over units of log p(unit | theta_new) - log p(unit | theta), each clipped to `bound`."""
        ...

    def batch_gradient(
        self,
        theta: FloatArray,
        bound: float,
        noise_multiplier: float,
        batches: "Batches",
        *,
        counted: bool,
        blocks: Sequence[bool] | None = None,
    ) -> Release:
        """Release the clipped gradient sum over a fresh batch, not scaled up to all units.

        `counted` says whether counts of clipped units are released with it, for `clip_counts`: the noise is then
        larger by ``batches.count_factor``.
        """
        ...

    def batch_log_ratio(
        self,
        theta: FloatArray,
        theta_new: FloatArray,
        bound: float,
        noise_multiplier: float,
        batches: "BatchesWithoutReplacement",
        tempering: float,
        *,
        counted: bool,
    ) -> Release:
        """Release the tempered log-ratio as a fresh batch estimates it, less half of the estimate's variance."""
        ...

    def barker_decision(
        self,
        theta: FloatArray,
        theta_new: FloatArray,
        log_free_ratio: float,
        batches: "BatchesWithoutReplacement",
        tempering: float,
    ) -> Release:
        """Release whether the Barker test on a fresh batch accepts: 1 or 0.

        `log_free_ratio` is the part of the log-ratio that costs nothing: prior and proposal.
        """
        ...

    def clip_counts(self, noise_multiplier: float) -> Release:
        """Release how many units were clipped, on average since the last such release.

        Entries: clipped units in a release of each planned kind (a gradient, a log-ratio), and where the number of
        units is protected (``"add-remove"``) that number. An entry's standard deviation is `noise_std`.
        """
        ...
