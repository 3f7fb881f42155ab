"""The target densities of samplers: the log-posterior as a free part and a released part.

A sampler uses both parts and is independent of the division: without a prelude the prior is free and log-ratios and
gradients of the likelihood are released; with one, prior and expansion are free, and the remainder beyond the
expansion is released; in a pilot, all is free.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.batches import Batches, BatchesWithoutReplacement
from pymc_dp.release.interface import Expanded, Release
from pymc_dp.release.queries import BarkerDecision, GradientSum, Residual, VariancePenalisedLogRatio, sensitivity
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.steps.prelude.learning import gradient_query


class Target:
    """Prior times likelihood to a power, with a free prior. Subclasses differ in the free and the released part.

    Parameters
    ----------
    chain : ChainAccess
        The access to the curator.
    clip_gradient, clip_log_ratio : float
        Clip bounds of a unit's gradient, and of its log-ratio per unit of distance; NaN for unused ones.
    tempering : float
        Power of the likelihood.
    """

    def __init__(
        self,
        chain: ChainAccess,
        *,
        clip_gradient: float = np.nan,
        clip_log_ratio: float = np.nan,
        tempering: float = 1.0,
    ) -> None:
        self._chain, self._tempering = chain, tempering
        self._clip_gradient, self._clip_log_ratio = clip_gradient, clip_log_ratio

    def parameters(self, point: FloatArray) -> FloatArray:
        """Return the step's own parameters at a point."""
        return point

    def free(self, point: FloatArray) -> float:
        """Return the free part of the log-density: the log-prior."""
        return self._chain.prior.log_density(self.parameters(point))

    def free_gradient(self, point: FloatArray) -> FloatArray:
        """Return the gradient of the free part."""
        return self._chain.prior.gradient(point)

    def bound(self, old: FloatArray, new: FloatArray) -> float:
        """Return the clip bound of the released part of one unit's log-ratio: symmetric in the points."""
        return self._clip_log_ratio * float(np.linalg.norm(new - old))

    def expanded(self, old: FloatArray, new: FloatArray) -> Expanded | None:
        """Return the prediction that is subtracted from log-ratios; None without an expansion."""
        return None

    def log_ratio(self, old: FloatArray, new: FloatArray, bound: float) -> Release:
        """Request the released part of the log-ratio."""
        return self._tempered(self._chain.log_ratio(self.parameters(old), self.parameters(new), bound))

    def batch_log_ratio(
        self, old: FloatArray, new: FloatArray, bound: float, batches: BatchesWithoutReplacement, *, counted: bool
    ) -> Release:
        """Request an estimate of the log-ratio from a fresh batch, less half of its estimated variance."""
        move, expanded = self._move(old, new), self.expanded(old, new)
        query = VariancePenalisedLogRatio(*move, bound, batches, self._tempering, counted, expanded)
        return self._chain.release(query)

    def decision(
        self, old: FloatArray, new: FloatArray, log_free_ratio: float, batches: BatchesWithoutReplacement
    ) -> tuple[Release, tuple[FloatArray, FloatArray] | Expanded]:
        """Request a decision on a fresh batch; return also the description of the move."""
        move, expanded = self._move(old, new), self.expanded(old, new)
        made = self._chain.release(BarkerDecision(*move, log_free_ratio, batches, self._tempering, expanded))
        return made, expanded or move

    def gradient(self, point: FloatArray) -> FloatArray:
        """Return the noisy gradient of the log-density."""
        released = self._tempered(self._chain.gradient(point, self._clip_gradient))
        return released.value + self.free_gradient(point)

    def batch_gradient(self, point: FloatArray, batches: Batches, *, counted: bool, multiplier: float) -> Release:
        """Request the released part of the gradient, summed over a fresh batch."""
        query = GradientSum(self._chain.whole(point), self._clip_gradient, self._chain.blocks, batches, counted=counted)
        return self._chain.release(query, multiplier)

    def _move(self, old: FloatArray, new: FloatArray) -> tuple[FloatArray, FloatArray]:
        return self._chain.whole(self.parameters(old)), self._chain.whole(self.parameters(new))

    def _tempered(self, made: Release) -> Release:
        """Return a release for the likelihood to the power: sum and noise are scaled together."""
        power = self._tempering
        return made if power == 1.0 else replace(made, value=power * made.value, noise_std=power * made.noise_std)


class StandardisedTarget(Target):
    """A target with points standardised by a prelude; other arguments as in `Target`."""

    def __init__(self, chain: ChainAccess, known: Approximation, **settings: float) -> None:
        super().__init__(chain, **settings)
        self._known = known

    def parameters(self, point: FloatArray) -> FloatArray:
        """Return the parameters at a standardised point."""
        return self._known.theta(point)

    def noise_of_gradient(self, rng: np.random.Generator) -> FloatArray:
        """Return simulated noise of a released gradient: zero, as none is released."""
        return np.zeros(self._known.origin.size)


class ExpandedTarget(StandardisedTarget):
    """A target with free prior and expansion; the remainder beyond the expansion is released."""

    def free(self, point: FloatArray) -> float:
        """Return the log-prior and the expansion of the log-likelihood."""
        theta, power = self.parameters(point), self._tempering
        surrogate = self._known.surrogate.log_density(theta)
        return surrogate if power == 1.0 else power * surrogate + (1.0 - power) * self._chain.prior.log_density(theta)

    def free_gradient(self, point: FloatArray) -> FloatArray:
        """Return the gradient of the free part along the standardised axes."""
        theta, power = self.parameters(point), self._tempering
        gradient = power * self._known.surrogate.gradient(theta)
        if power != 1.0:
            gradient = gradient + (1.0 - power) * self._chain.prior.gradient(theta)
        return self._known.axes.T @ gradient

    def bound(self, old: FloatArray, new: FloatArray) -> float:
        """Return the learned clip bound of the remainder of a log-ratio."""
        return self._known.bound(self.parameters(old), self.parameters(new))

    def expanded(self, old: FloatArray, new: FloatArray) -> Expanded:
        """Return the expansion's prediction of log-ratios."""
        return self._known.expanded(self.parameters(old), self.parameters(new))

    def log_ratio(self, old: FloatArray, new: FloatArray, bound: float) -> Release:
        """Request the remainder of the log-ratio."""
        beyond = self.expanded(old, new)
        return self._tempered(self._chain.release(Residual(beyond.point, beyond.old, beyond.new, bound)))

    def gradient(self, point: FloatArray) -> FloatArray:
        """Return the gradient of the free part: tests correct the remainder."""
        return self.free_gradient(point)

    def batch_gradient(self, point: FloatArray, batches: Batches, *, counted: bool, multiplier: float) -> Release:
        """Request the remainder of the gradient of a fresh batch."""
        theta = self.parameters(point)
        query = gradient_query(self._known, theta, self._known.bound_of_gradient(theta), control_variates=True)
        return self._chain.release(replace(query, batches=batches, counted=counted), multiplier)


class PreconditionedTarget(StandardisedTarget):
    """A target with a free prior; log-ratios and gradients of the likelihood are released along standardised axes.

    `clip_gradient` and `clip_log_ratio` are the user's, on the scale of the parameters. If they are NaN, the learned
    bound of a gradient along the standardised axes replaces them.
    """

    def free_gradient(self, point: FloatArray) -> FloatArray:
        """Return the gradient of the log-prior along the standardised axes."""
        return self._known.axes.T @ self._chain.prior.gradient(self.parameters(point))

    def bound(self, old: FloatArray, new: FloatArray) -> float:
        """Return the clip bound of a gradient times the standardised distance."""
        if np.isfinite(self._clip_log_ratio):
            return self._clip_log_ratio * float(np.linalg.norm(self._known.axes @ (new - old)))
        return self._known.clip_gradient * float(np.linalg.norm(new - old))

    def gradient(self, point: FloatArray) -> FloatArray:
        """Return the sum of the released gradient and the prior's, along the standardised axes."""
        return self._tempered(self._released_gradient(point)).value + self.free_gradient(point)

    def batch_gradient(self, point: FloatArray, batches: Batches, *, counted: bool, multiplier: float) -> Release:
        """Request the clipped gradient of a fresh batch along the standardised axes."""
        return self._released_gradient(point, multiplier, batches=batches, counted=counted)

    def noise_of_gradient(self, rng: np.random.Generator) -> FloatArray:
        """Return simulated noise of a released gradient."""
        learned = np.isnan(self._clip_gradient)
        bound = self._known.clip_gradient if learned else self._clip_gradient
        std = 2.0 * self._tempering * bound * self._chain.multiplier("gradient")
        noise = std * rng.standard_normal(self._known.origin.size)
        return noise if learned else self._known.axes.T @ noise

    def _released_gradient(self, point: FloatArray, multiplier: float | None = None, **of_batch: Any) -> Release:
        """Request the gradient, clipped along the axes or by the user's bound; return it along the axes."""
        theta, learned = self.parameters(point), np.isnan(self._clip_gradient)
        bound = self._known.clip_gradient if learned else self._clip_gradient
        query = replace(gradient_query(self._known, theta, bound, control_variates=False), **of_batch)
        if learned:
            return self._chain.release(query, multiplier)
        made = self._chain.release(replace(query, axes=np.eye(theta.size)), multiplier)
        return replace(made, value=self._known.axes.T @ made.value)


class FreeTarget(ExpandedTarget):
    """The surrogate alone, with simulated noise of releases: for pilots that adapt a sampler's settings.

    The `real` target of the chains provides the clip bounds; `rng` is public randomness.
    """

    def __init__(
        self,
        chain: ChainAccess,
        known: Approximation,
        real: StandardisedTarget,
        rng: np.random.Generator,
        **settings: float,
    ) -> None:
        super().__init__(chain, known, **settings)
        self._real, self._rng = real, rng

    def bound(self, old: FloatArray, new: FloatArray) -> float:
        """Return the clip bound of the chains' releases."""
        return self._real.bound(old, new)

    def gradient(self, point: FloatArray) -> FloatArray:
        """Return the surrogate's gradient with simulated noise."""
        return self.free_gradient(point) + self._real.noise_of_gradient(self._rng)

    def log_ratio(self, old: FloatArray, new: FloatArray, bound: float) -> Release:
        """Return noise alone: the surrogate replaces the posterior."""
        multiplier = max(self._chain.multiplier(kind) for kind in ("residual", "log_ratio"))
        return self._noise(2.0 * self._tempering * bound * multiplier)

    def batch_log_ratio(
        self, old: FloatArray, new: FloatArray, bound: float, batches: BatchesWithoutReplacement, *, counted: bool
    ) -> Release:
        """Return noise alone."""
        moves_by = sensitivity(self._tempering * batches.scale, bound, batches.batch_size)
        return self._noise(self._chain.multiplier("log_ratio") * moves_by)

    def decision(
        self, old: FloatArray, new: FloatArray, log_free_ratio: float, batches: BatchesWithoutReplacement
    ) -> tuple[Release, tuple[FloatArray, FloatArray] | Expanded]:
        """Return a decision of the Barker test on the surrogate."""
        accepted = self._rng.logistic() < log_free_ratio
        return Release("decision", np.array([float(accepted)]), 0.0, ()), (old, new)

    def _noise(self, std: float) -> Release:
        return Release("log_ratio", std * self._rng.standard_normal(1), std, ())
