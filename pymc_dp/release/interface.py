"""The curator as samplers see it: they ask for releases, and see nothing else of the data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # batches make releases, too
    from pymc_dp.release.batches import Batches, BatchesWithoutReplacement

FloatArray = NDArray[np.float64]

#: Squares of smaller numbers vanish in floating point, and norms with them; larger ones overflow.
SMALLEST_CLIP_BOUND, LARGEST_CLIP_BOUND = 1e-100, 1e100


@dataclass(frozen=True, eq=False)
class Release:
    """One metered release: a clipped sum over units with noise added.

    Attributes
    ----------
    kind : str
        ``"gradient"``, ``"log_ratio"``, ``"residual"``, ``"decision"``, ``"clip_count"`` and others.
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


@dataclass(frozen=True, eq=False)
class Position:
    """A point as a single object, which arrays of statistics do not take apart.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The point.
    standardised : ndarray, shape (parameters,)
        By the mean and covariance of what the point was proposed from.
    """

    theta: FloatArray
    standardised: FloatArray


@dataclass(frozen=True, eq=False)
class ExpansionPoint:
    """Where every unit's log-likelihood is expanded, along which directions, and with what bounds.

    A unit whose score is larger than its bound is weighted down as a whole, once: its score, curvature and later
    remainders all carry the same weight in (0, 1]. A curvature that is still larger than its bound is cut alone.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The centre.
    directions : ndarray, shape (parameters, parameters)
        Columns along which derivatives are taken; norms are those of derivatives along them.
    clip_gradient : float
        Bound of the norm of one unit's weighted score.
    clip_curvature : float
        Bound of the Frobenius norm of one unit's curvature (the negative second derivative), weighted and cut. Infinite
        where none is asked for.
    """

    theta: FloatArray
    directions: FloatArray
    clip_gradient: float
    clip_curvature: float = math.inf

    @property
    def key(self) -> bytes:
        """Equal for equal centres."""
        bounds = np.array([self.clip_gradient, self.clip_curvature])
        return self.theta.tobytes() + self.directions.tobytes() + bounds.tobytes()


@dataclass(frozen=True, eq=False)
class Prediction:
    """What an expansion predicts of a unit's log-likelihood at a point, relative to the centre.

    With the unit's score g and curvature H at the centre: ``direction · g``, less half of ``direction · H direction``
    if `with_curvature`, plus `offset`; all of it times the unit's weights.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The point.
    direction : ndarray, shape (parameters,)
        On the unconstrained scale.
    with_curvature : bool
        Whether the curvature is part of it.
    offset : float
        The same for every unit.
    """

    theta: FloatArray
    direction: FloatArray
    with_curvature: bool
    offset: float = 0.0


class Curator(Protocol):
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

    def decision_clip_counts(
        self,
        moves: Sequence[tuple[FloatArray, FloatArray]],
        noise_multiplier: float,
        batches: "BatchesWithoutReplacement",
        tempering: float,
    ) -> Release:
        """Release how many of all units the Barker test would clip, on average over moves (pairs of points).

        A replaced unit changes that mean by at most 1. No batch is drawn: it is a Gaussian release on all units. Only
        where the number of units is public.
        """
        ...

    def score(self, centre: ExpansionPoint, noise_multiplier: float, kind: str = "score") -> Release:
        """Release the sum over units of weighted scores at a centre, along its directions."""
        ...

    def curvature(self, centre: ExpansionPoint, noise_multiplier: float, kind: str = "curvature") -> Release:
        """Release the sum over units of weighted curvatures at a centre, along its directions.

        Packed: the upper triangle by rows, entries off the diagonal times the square root of 2.
        """
        ...

    def clipping_loss(self, centre: ExpansionPoint, noise_multiplier: float) -> Release:
        """Release the sum over units of what weights take off scores at a centre, in units of the bound.

        A unit counts at most 1: those beyond twice the bound count as if they were at twice the bound. Only where the
        number of units is public.
        """
        ...

    def residual(
        self, centre: ExpansionPoint, old: Prediction, new: Prediction, bound: float, noise_multiplier: float
    ) -> Release:
        """Release the sum over units of the weighted log-ratio less its prediction, each clipped to `bound`."""
        ...

    def clip_counts(self, noise_multiplier: float) -> Release:
        """Release how many units were clipped, on average since the last such release.

        Entries: clipped units in a release of each planned kind (a gradient, a log-ratio), and where the number of
        units is protected (``"add-remove"``) that number. An entry's standard deviation is `noise_std`.
        """
        ...
