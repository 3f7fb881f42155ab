"""What samplers move on: the log-posterior as a free part and a part that is released.

A sampler asks for both and does not know which is which: without a prelude the prior is free and log-ratios and
gradients of the likelihood are released; with one, prior and expansion are free, and what the expansion misses is
released; in a pilot, all is free.
"""

from dataclasses import replace

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.batches import Batches, BatchesWithoutReplacement
from pymc_dp.release.gradients import PreconditionedGradient
from pymc_dp.release.interface import Expanded, Release
from pymc_dp.release.queries import BarkerDecision, GradientSum, Residual, VariancePenalisedLogRatio, sensitivity
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.steps.prelude.learning import gradient_query
from pymc_dp.steps.tuning import tempered


class Target:
    """Prior times likelihood, or a power of it: the prior is free. Others differ in what is free and what is released.

    Parameters
    ----------
    chain : ChainAccess
        Whom to ask.
    clip_gradient, clip_log_ratio : float
        Clip bounds of a unit's gradient, and of its log-ratio per unit of distance; NaN where none is asked for.
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

    def free(self, point: FloatArray) -> float:
        """Return the part of the log-density that costs nothing: the log-prior."""
        return self._chain.prior.log_density(self._parameters(point))

    def bound(self, old: FloatArray, new: FloatArray) -> float:
        """Return the clip bound of the other part of one unit's log-ratio: symmetric in the points."""
        return self._clip_log_ratio * float(np.linalg.norm(new - old))

    def log_ratio(self, old: FloatArray, new: FloatArray, bound: float) -> Release:
        """Ask for the other part of the log-ratio."""
        made = self._chain.log_ratio(self._parameters(old), self._parameters(new), bound)
        return tempered(made, self._tempering)

    def batch_log_ratio(
        self, old: FloatArray, new: FloatArray, bound: float, batches: BatchesWithoutReplacement, *, counted: bool
    ) -> Release:
        """Ask for it as a fresh batch estimates it, less half of the estimate's variance."""
        move, expanded = self._move(old, new), self.expanded(old, new)
        query = VariancePenalisedLogRatio(*move, bound, batches, self._tempering, counted, expanded)
        return self._chain.release(query)

    def decision(
        self, old: FloatArray, new: FloatArray, log_free_ratio: float, batches: BatchesWithoutReplacement
    ) -> tuple[Release, tuple[FloatArray, FloatArray] | Expanded]:
        """Ask for a decision by a fresh batch; return also what the move is described by."""
        move, expanded = self._move(old, new), self.expanded(old, new)
        made = self._chain.release(BarkerDecision(*move, log_free_ratio, batches, self._tempering, expanded))
        return made, expanded or move

    def gradient(self, point: FloatArray) -> FloatArray:
        """Return the noisy gradient of the log-density."""
        released = tempered(self._chain.gradient(point, self._clip_gradient), self._tempering)
        return released.value + self._chain.prior.gradient(point)

    def batch_gradient(self, point: FloatArray, batches: Batches, *, counted: bool, multiplier: float) -> Release:
        """Ask for the released part of the gradient, summed over a fresh batch."""
        whole = self._chain.whole(point)
        query = GradientSum(whole, self._clip_gradient, self._chain.blocks, batches, counted=counted)
        return self._chain.release(query, multiplier)

    def free_gradient(self, point: FloatArray) -> FloatArray:
        """Return the gradient of the free part."""
        return self._chain.prior.gradient(point)

    def _parameters(self, point: FloatArray) -> FloatArray:
        """Return the step's own parameters that a point stands for."""
        return point

    def _move(self, old: FloatArray, new: FloatArray) -> tuple[FloatArray, FloatArray]:
        return self._chain.whole(self._parameters(old)), self._chain.whole(self._parameters(new))

    def expanded(self, old: FloatArray, new: FloatArray) -> Expanded | None:
        """Return what an expansion predicts of log-ratios, where it is taken off them: no expansion, here."""
        return None


class ExpandedTarget(Target):
    """Prior and expansion are free; what the expansion misses is released. Points are standardised.

    Parameters
    ----------
    chain : ChainAccess
        Whom to ask.
    known : Approximation
        What the prelude has found.
    tempering : float
        Power of the likelihood.
    """

    def __init__(self, chain: ChainAccess, known: Approximation, **settings: float) -> None:
        super().__init__(chain, **settings)
        self._known = known

    def free(self, point: FloatArray) -> float:
        """Return the log-prior and what the expansion says of the likelihood."""
        theta, power = self._known.theta(point), self._tempering
        surrogate = self._known.surrogate.log_density(theta)
        return surrogate if power == 1.0 else power * surrogate + (1.0 - power) * self._chain.prior.log_density(theta)

    def bound(self, old: FloatArray, new: FloatArray) -> float:
        """Return the bound that was found of what is missed of a log-ratio."""
        return self._known.bound(self._known.theta(old), self._known.theta(new))

    def log_ratio(self, old: FloatArray, new: FloatArray, bound: float) -> Release:
        """Ask for what the expansion misses of the log-ratio."""
        missed = self._known.expanded(self._known.theta(old), self._known.theta(new))
        made = self._chain.release(Residual(missed.point, missed.old, missed.new, bound))
        return tempered(made, self._tempering)

    def gradient(self, point: FloatArray) -> FloatArray:
        """Return the gradient of the free part: tests correct what it misses."""
        return self.free_gradient(point)

    def batch_gradient(self, point: FloatArray, batches: Batches, *, counted: bool, multiplier: float) -> Release:
        """Ask for what the expansion misses of the gradient of a fresh batch."""
        theta = self._known.theta(point)
        query = gradient_query(self._known, theta, self._known.bound_of_gradient(theta), control_variates=True)
        return self._chain.release(replace(query, batches=batches, counted=counted), multiplier)

    def free_gradient(self, point: FloatArray) -> FloatArray:
        """Return the gradient of the free part along the standardised axes."""
        theta, power = self._known.theta(point), self._tempering
        gradient = power * self._known.surrogate.gradient(theta)
        if power != 1.0:
            gradient = gradient + (1.0 - power) * self._chain.prior.gradient(theta)
        along: FloatArray = self._known.axes.T @ gradient
        return along

    def noise_of_gradient(self, rng: np.random.Generator) -> FloatArray:
        """Return noise as that of a released gradient: none is released."""
        return np.zeros(self._known.origin.size)

    def _parameters(self, point: FloatArray) -> FloatArray:
        return self._known.theta(point)

    def expanded(self, old: FloatArray, new: FloatArray) -> Expanded | None:
        """Return what the expansion predicts of log-ratios."""
        return self._known.expanded(self._known.theta(old), self._known.theta(new))


class PreconditionedTarget(ExpandedTarget):
    """The prior is free, log-ratios and gradients of the likelihood are released along standardised axes.

    Parameters
    ----------
    chain, known, tempering
        As in `ExpandedTarget`.
    clip_gradient, clip_log_ratio : float, optional
        The user's clip bounds, on the scale of the parameters: of a unit's gradient, and of its log-ratio per unit of
        distance. Default: the learned one, along the standardised axes.
    """

    free, log_ratio, expanded = Target.free, Target.log_ratio, Target.expanded

    def bound(self, old: FloatArray, new: FloatArray) -> float:
        """Return the clip bound of a gradient times the standardised distance."""
        if np.isfinite(self._clip_log_ratio):
            return self._clip_log_ratio * float(np.linalg.norm(self._known.axes @ (new - old)))
        return self._known.clip_gradient * float(np.linalg.norm(new - old))

    def gradient(self, point: FloatArray) -> FloatArray:
        """Return the released gradient along the standardised axes, and that of the prior."""
        released = tempered(self._along(self._chain.release(self._query(point))), self._tempering)
        return released.value + self.free_gradient(point)

    def batch_gradient(self, point: FloatArray, batches: Batches, *, counted: bool, multiplier: float) -> Release:
        """Ask for the clipped gradient of a fresh batch along the standardised axes."""
        query = replace(self._query(point), batches=batches, counted=counted)
        return self._along(self._chain.release(query, multiplier))

    def free_gradient(self, point: FloatArray) -> FloatArray:
        """Return the gradient of the log-prior along the standardised axes."""
        along: FloatArray = self._known.axes.T @ self._chain.prior.gradient(self._known.theta(point))
        return along

    def _query(self, point: FloatArray) -> PreconditionedGradient:
        theta = self._known.theta(point)
        if np.isnan(self._clip_gradient):
            return gradient_query(self._known, theta, self._known.clip_gradient, control_variates=False)
        query = gradient_query(self._known, theta, self._clip_gradient, control_variates=False)
        return replace(query, axes=np.eye(theta.size))

    def noise_of_gradient(self, rng: np.random.Generator) -> FloatArray:
        """Return noise as that of a released gradient."""
        whole = np.isnan(self._clip_gradient)
        bound = self._known.clip_gradient if whole else self._clip_gradient
        std = 2.0 * self._tempering * bound * self._chain.multiplier("gradient")
        noise = std * rng.standard_normal(self._known.origin.size)
        along: FloatArray = noise if whole else self._known.axes.T @ noise
        return along

    def _along(self, made: Release) -> Release:
        """Return a released gradient along the standardised axes."""
        return made if np.isnan(self._clip_gradient) else replace(made, value=self._known.axes.T @ made.value)


class FreeTarget(ExpandedTarget):
    """The surrogate alone, with noise as what is released would have: for pilots that adapt a sampler's settings.

    Parameters
    ----------
    chain, known, tempering
        As in `ExpandedTarget`.
    real : Target
        What the chains will move on: it says what the clip bounds are.
    rng : Generator
        Public randomness.
    """

    def __init__(
        self,
        chain: ChainAccess,
        known: Approximation,
        real: ExpandedTarget,
        rng: np.random.Generator,
        **settings: float,
    ) -> None:
        super().__init__(chain, known, **settings)
        self._real, self._rng = real, rng

    def bound(self, old: FloatArray, new: FloatArray) -> float:
        """Return the bound that the chains' releases will have."""
        return self._real.bound(old, new)

    def gradient(self, point: FloatArray) -> FloatArray:
        """Return the surrogate's gradient, with noise as a released one would have."""
        return self.free_gradient(point) + self._real.noise_of_gradient(self._rng)

    def log_ratio(self, old: FloatArray, new: FloatArray, bound: float) -> Release:
        """Return zero with noise: the surrogate is taken for the posterior."""
        multipliers = [self._chain.multiplier(kind) for kind in ("residual", "log_ratio")]
        noise = 2.0 * self._tempering * bound * max(multipliers)
        return Release("log_ratio", noise * self._rng.standard_normal(1), noise, ())

    def batch_log_ratio(
        self, old: FloatArray, new: FloatArray, bound: float, batches: BatchesWithoutReplacement, *, counted: bool
    ) -> Release:
        """Return zero with noise."""
        noise = self._chain.multiplier("log_ratio") * sensitivity(
            self._tempering * batches.scale, bound, batches.batch_size
        )
        return Release("log_ratio", noise * self._rng.standard_normal(1), noise, ())

    def decision(
        self, old: FloatArray, new: FloatArray, log_free_ratio: float, batches: BatchesWithoutReplacement
    ) -> tuple[Release, tuple[FloatArray, FloatArray] | Expanded]:
        """Return a decision of the Barker test on the surrogate."""
        accepted = self._rng.logistic() < log_free_ratio
        return Release("decision", np.array([float(accepted)]), 0.0, ()), (old, new)
