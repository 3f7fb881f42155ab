r"""The base of DP SGHMC, SGLD and SGNHT: noisy gradients of fresh batches whose noise is that of the dynamics.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`\eta_t`            `step_size` in iteration t, which counts tuning first
:math:`q`                 sampling probability of the batches
:math:`b`                 `clip_gradient`
:math:`T`                 `tempering`
:math:`\tau_t`            noise multiplier
:math:`\Delta`            sensitivity: b, and 2b for batches without replacement
:math:`s_t`               standard deviation of the noise in the estimate, which the dynamics determine
========================  ==========================================================

The estimate of the gradient of :math:`T \sum_i \ln p(x_i \mid \theta)` is

.. math:: \hat G = \frac{T}{q} \Big( \sum_{i \in B} \operatorname{clip}_b(g_i) + N(0, \tau_t^2 \Delta^2 I) \Big),

and :math:`\tau_t = s_t q / (T \Delta)`: the dynamics determine the noise, and the noise the cost, which the budget
may exclude. A release is scaled together with its noise.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from pymc_dp import _validate
from pymc_dp.accounting import Releases
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.batches import Batches, PoissonBatches
from pymc_dp.steps.arguments import SharedArguments
from pymc_dp.steps.learning_step import LearningStep
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.steps.prelude.learning import PreludeArgument
from pymc_dp.steps.transition import SHARED_STATS, StatsOfSteps, Transition
from pymc_dp.steps.tuning import MassMatrix, required, setting

#: The step size of a free sampler on a normal posterior; a smaller one indicates a narrow part of the posterior.
_STEP_ON_A_NORMAL = 1.0
#: An upper limit of the growth of clip bounds of remainders, at nearly all points and in any dimension.
_GROWTH_OF_BOUND = 4.0
#: With a prelude: the part of the units in a batch, and the smallest batch.
_PART_IN_BATCH, _SMALLEST_DEFAULT_BATCH = 0.02, 100
#: The largest number of step sizes, each with a planned and stored noise multiplier.
_MOST_STEP_SIZES = 1_000_000


@dataclass(frozen=True)
class StepSizes:
    """Step sizes scale · t^(-decay) of the iterations t = 1, 2, ..."""

    scale: float
    decay: float

    @classmethod
    def of(cls, step_size: Any) -> "StepSizes":
        """Return the step sizes of a number, or of a pair of scale and decay."""
        pair = step_size if isinstance(step_size, Sequence | np.ndarray) and np.ndim(step_size) else (step_size, 0.0)
        if len(pair) != 2:
            raise InvalidArgument("step_size must be a number, or a pair of the first step and its decay.")
        scale = required("step_size", pair[0], "a small part of the posterior's narrowest standard deviation")
        decay = _validate.not_negative("the decay of step_size", pair[1])
        if decay > 1.0:
            raise InvalidArgument(
                f"the decay of step_size must be at most 1, but is {decay:g}: such steps end too soon."
            )
        return cls(scale, decay)

    def at(self, iteration: int) -> float:
        """Return the step size of an iteration, counted from 1."""
        return self.scale * float(iteration) ** -self.decay if self.decay else self.scale

    def groups(self, iterations: int) -> list[tuple[float, int]]:
        """Return the different step sizes, each with its number of iterations."""
        if not self.decay:
            return [(self.scale, iterations)]
        if iterations > _MOST_STEP_SIZES:
            raise InvalidArgument(
                f"step_size with a decay has a price in each of at most {_MOST_STEP_SIZES} iterations."
            )
        return [(self.at(t), 1) for t in range(1, iterations + 1)]


class StochasticGradientArguments(SharedArguments, total=False):
    """The arguments of samplers without a test: see `StochasticGradientStep`."""

    clip_gradient: float | None
    step_size: float | tuple[float, float] | None
    sampling_probability: float | None
    batch_size: int | None
    n_units: int | None
    tempering: float
    mass_matrix: ArrayLike | None
    prelude: PreludeArgument


class StochasticGradientStep(LearningStep):
    """Base class of the samplers without an acceptance test, driven by noisy gradients of batches.

    Parameters
    ----------
    clip_gradient : float
        Clip bound of one unit's log-likelihood gradient, a Euclidean norm on PyMC's unconstrained scale. Clipping
        biases the draws, without a test. A Lipschitz constant of one unit's log-likelihood never clips.
    step_size : float or (float, float)
        The step, or a pair (scale, decay) for steps ``scale * t**-decay`` in iteration t = 1, 2, ..., tuning first.
        The bias shrinks with the step.
    sampling_probability : float, optional
        The probability of each unit in a batch: for budgets with ``relation="add-remove"``.
    batch_size : int, optional
        Units in a batch: for budgets with ``relation="substitute"``. Default, with a prelude: one in fifty.
    n_units : int, optional
        The public number of units, with `batch_size` only. `sample` determines it, and so do plans inside
        ``with model:``.
    tempering : float
        Power of the likelihood in the target, above 0 and at most 1. Results and reports are marked.
    mass_matrix : ndarray, shape (parameters,) or (parameters, parameters), or dict, optional
        Covariance of the momentum; the inverse scales the steps. A dict holds the diagonal by name of free variable,
        on the unconstrained scale.
    prelude
        See `pymc_dp.steps.learning_step.LearningStep`.
    """

    plans_clip_counts = True
    in_chains = "gradients"
    settled = ("step_sizes",)
    shown_in_progress: ClassVar[Mapping[str, tuple[str, str]]] = {
        "step_size": ("Step size", "0.2g"),
        "gradient_noise_std": ("Gradient noise", "0.3g"),
        "epsilon_charged": ("Epsilon spent", "0.3g"),
    }
    stats_dtypes_shapes: StatsOfSteps = SHARED_STATS | {
        "diverging": (bool, []),
        "gradient_noise_std": (np.float64, []),
        "n_gradients": (np.int64, []),
        "step_size": (np.float64, []),
    }
    acceptance_test = "none"
    #: The step size on standardised posteriors; and the power of the length of a move to which it is proportional.
    learned_step: ClassVar[float]
    order_of_dynamics: ClassVar[int] = 1
    #: A, which determines the noise of the dynamics at a step size; None for the budget's choice.
    injected: float | None = None
    #: The number of gradients of fresh batches in one iteration.
    gradients_per_iteration: int

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        clip_gradient: float | None = None,
        step_size: float | tuple[float, float] | None = None,
        sampling_probability: float | None = None,
        batch_size: int | None = None,
        n_units: int | None = None,
        tempering: float = 1.0,
        mass_matrix: ArrayLike | Mapping[str, ArrayLike] | None = None,
        prelude: PreludeArgument = "auto",
        **shared: Any,
    ) -> None:
        super().__init__(vars, **shared)
        learns = self.learn(prelude, {"clip_gradient": clip_gradient}, shared.get("model"))
        if learns and clip_gradient is not None:
            raise InvalidArgument(
                f"With a prelude {type(self).__name__} learns the clip bound of gradients along standardised axes: "
                "leave out clip_gradient, or pass prelude=None."
            )
        self.clip_gradient = setting("clip_gradient", clip_gradient, learns=learns)
        self._chooses_step = learns and step_size is None
        self.step_sizes = StepSizes(self.learned_step, 0.0) if self._chooses_step else StepSizes.of(step_size)
        name = type(self).__name__
        if self.budget.relation == "substitute":
            if sampling_probability is not None:
                raise InvalidArgument(
                    f"Under substitute no bound is known for Poisson samples, so {name} takes no sampling_probability. "
                    "Pass batch_size= (drawn without replacement), or use a budget with relation='add-remove'."
                )
            self.use_batches(batch_size, n_units)
        elif batch_size is not None or n_units is not None:
            raise InvalidArgument(
                f"Under add-remove the number of units is protected, so {name} takes no batch_size and no n_units: a "
                "fixed size of batches would reveal it. Pass sampling_probability=, from public knowledge of the "
                "table's rough size."
            )
        elif sampling_probability is None and not learns:
            raise InvalidArgument(f"{name} needs sampling_probability=: how likely each unit is in a batch.")
        else:
            self.batches = PoissonBatches(_PART_IN_BATCH if sampling_probability is None else sampling_probability)
        self.temper(tempering)
        self._standardised = mass_matrix is None
        self.mass = MassMatrix(self.in_order("mass_matrix", mass_matrix), self.size)

    # Defined by samplers ----------------------------------------------------------------------------------

    @abstractmethod
    def move(self, theta: FloatArray, step_size: float) -> FloatArray | None:
        """Return the point after one iteration, or None if it is not finite."""

    # Used by samplers -------------------------------------------------------------------------------------

    def steps_per_iteration(self, argument: str, value: int | None, *, plain: int, learned: int) -> int:
        """Return the number of steps, each with a fresh batch, in an iteration; defaults are `plain` and `learned`."""
        default = plain if self.learning is None else learned
        self.gradients_per_iteration = _validate.whole(argument, default if value is None else value, at_least=1)
        return self.gradients_per_iteration

    @property
    def injected_now(self) -> float:
        """`injected`, or the value that corresponds to the noise that the budget paid for."""
        if self.injected is not None:
            return self.injected
        if self.learning is not None:
            return 1.0
        paid = self.chain.schedule("gradient")[0] * self._noise_unit(self.clip_gradient)
        return (paid / _noise_of_dynamics(1.0, self.step_sizes.at(1))) ** 2

    def drift(self, theta: FloatArray) -> FloatArray | None:
        """Return the noisy gradient of the tempered log-posterior on a fresh batch, or None if not finite.

        Its noise is that of the dynamics: the difference to the privacy noise is public.
        """
        target, batches = self.target, self._batches()
        with np.errstate(all="ignore"):
            free = target.free_gradient(theta) if np.isfinite(theta).all() else np.array(np.nan)
        if not np.isfinite(free).all():
            return None  # without a release
        counted = self.clip_diagnostics == "private"
        release = target.batch_gradient(theta, batches, counted=counted, multiplier=self._multiplier_paid())
        scale = self.tempering * batches.scale
        self._n_gradients += 1
        self._noise_std = scale * release.noise_std
        gradient = free + scale * release.value
        if self.learning is None:
            return gradient
        wanted = _noise_of_dynamics(self.injected_now, self._step_size)
        missing = math.sqrt(max(wanted**2 - self._noise_std**2, 0.0))
        return gradient + missing * self.rng.standard_normal(theta.size)

    def kicked(self, momentum: FloatArray, drift: FloatArray, damping: FloatArray, step_size: float) -> FloatArray:
        """Return the momentum after a kick, with friction on the mean of the old momentum and the new one.

        `damping` is half of the relative loss by friction in a step, by mass. N(0, M) is invariant exactly and for
        friction of any size, where Euler's step inflates it.
        """
        kicked = self.mass.times(1.0 - damping, momentum) + step_size * drift
        return self.mass.times(1.0 / (1.0 + damping), kicked)

    # The plan and the run ---------------------------------------------------------------------------------

    def default_batch_size(self, n_units: int) -> int:
        """Return a small part of the units, but not too few."""
        return min(n_units, max(_SMALLEST_DEFAULT_BATCH, round(_PART_IN_BATCH * n_units)))

    def sampler_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest | Releases]:
        """Return the releases of one chain: equally many gradients in every iteration, at the steps' noise."""
        batches, each = self._batches(), self.gradients_per_iteration
        coordinates = self.size
        if self.clip_diagnostics == "private":  # counts of units: see the batches' `count_factor`
            coordinates += 2 if isinstance(batches, PoissonBatches) else 1
        groups = [(step_size, count * each) for step_size, count in self.step_sizes.groups(tune + draws)]
        if self.learning is not None:  # the budget determines the noise; the rest is public
            groups = [(1.0, (tune + draws) * each)]
        elif self.injected is not None:
            unit = self._noise_unit(self.clip_gradient)
            return [
                batches.releases("gradient", count, _noise_of_dynamics(self.injected, step_size) / unit, coordinates)
                for step_size, count in groups
            ]
        # Shares proportional to count times step size make noise proportional to 1/√step_size, as in the dynamics.
        whole = math.fsum(step_size * count for step_size, count in groups)
        return [
            ReleaseRequest("gradient", count, step_size * count / whole, coordinates, **vars(batches))
            for step_size, count in groups
        ]

    def settle(self, known: Approximation) -> None:
        """Choose a step size at which the dynamics are stable, given the posterior and the privacy noise."""
        # The remainder beyond the expansion, and its clip bound, grow with the distance from the centre.
        bound = known.clip_gradient * (_GROWTH_OF_BOUND if self.control_variates else 1.0)
        paid = self._multiplier_paid() * self._noise_unit(bound)
        if self._chooses_step:
            narrow = min(1.0, known.kernel.step_size / _STEP_ON_A_NORMAL) ** self.order_of_dynamics
            room = (_noise_of_dynamics(self.injected_now, 1.0) / paid) ** 2
            self.step_sizes = StepSizes(min(self.learned_step * narrow, room), 0.0)
            return
        wanted = _noise_of_dynamics(self.injected_now, self.step_sizes.at(1))
        if paid > wanted:
            warnings.warn(
                f"At step_size={self.step_sizes.scale:g} the noise of privacy is {paid / wanted:.2g} times that of "
                "the dynamics: draws will be too wide. Leave out step_size, or use a smaller one.",
                UserWarning,
                stacklevel=2,
            )

    def transition(self, theta: FloatArray) -> Transition:
        """Move along the noisy dynamics, without a test."""
        step_size = self._step_size = self.step_sizes.at(self._iteration + 1)
        self._n_gradients, self._noise_std = 0, math.nan
        theta_new = self.move(theta, step_size)
        if theta_new is None or not self._is_possible(theta_new):
            theta_new = None
            self.start()
        stats = {
            "accepted": theta_new is not None,
            "acceptance_rate": math.nan,  # without a test
            "diverging": theta_new is None,
            "gradient_noise_std": self._noise_std,
            "log_ratio": math.nan,
            "n_gradients": self._n_gradients,
            "noise_std": math.nan,
            "step_size": step_size,
        }
        return Transition(theta if theta_new is None else theta_new, stats)

    def _is_possible(self, theta: FloatArray) -> bool:
        """Return whether a point is finite and within the bounds of the priors: gradients do not show bounds."""
        with np.errstate(all="ignore"):
            return bool(np.isfinite(theta).all() and np.isfinite(self.target.free(theta)))

    def _multiplier_paid(self) -> float:
        schedule = self.chain.schedule("gradient")
        return schedule[self._iteration if self.step_sizes.decay and self.learning is None else 0]

    def _noise_unit(self, clip_bound: float) -> float:
        """Return the standard deviation of the estimate's noise at a noise multiplier of 1."""
        batches = self._batches()
        factor = batches.sensitivity_factor * (batches.count_factor if self.clip_diagnostics == "private" else 1.0)
        return self.tempering * batches.scale * factor * clip_bound

    def _batches(self) -> Batches:
        return self.batches if isinstance(self.batches, PoissonBatches) else self.known_batches()


def _noise_of_dynamics(injected: float, step_size: float) -> float:
    """Return √(2 A / η), the noise of the gradient's estimate: times η it has the variance 2 A η of a kick."""
    return float(np.sqrt(2.0 * injected / step_size))
