r"""Differentially private Hamiltonian Monte Carlo.

Räisä, Koskela and Honkela (2021), *Differentially private Hamiltonian Monte Carlo*, Algorithm 1, on top of the
penalty test of Yıldırım and Ermiş (2019), with two changes: the momentum follows the gradient of the log-density (the
paper prints the opposite sign), and the noisy gradient at the current state is kept between iterations, which
saves one release in L + 1 and leaves the acceptance ratio unchanged (docs: "Reusing gradients").

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`\theta, p`         `theta`, `momentum`
:math:`\eta, L, M`        `step_size`, `n_leapfrog`, `mass_matrix`
:math:`b_g, b_l`          `clip_gradient`, `clip_log_ratio`
:math:`\sigma_l`          `noise_std` of the log-ratio
========================  ==========================================================

Released in one iteration: `n_leapfrog` gradients (one more without reuse) and, after tuning, one log-ratio.
Tuning iterations accept their trajectories without a test: far from the posterior, tests would reject nearly all
long moves at full cost, and tuning draws are discarded.

`DPMALA` makes a single leapfrog step. One of size η with mass matrix M moves to θ + ½η²M⁻¹G + ηM⁻¹p, p ~ N(0, M): a
Langevin proposal of variance η². Testing it as a trajectory, with the noisy gradients at both ends, needs one new
gradient and one log-ratio an iteration. A test of the Langevin proposal's density at the noisy gradient would need that
density with the roles of the two points exchanged, which means gradients that were never released.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import numpy as np
import scipy
from numpy.typing import ArrayLike
from pymc.step_methods.hmc.quadpotential import QuadPotential

from pymc_dp import _validate
from pymc_dp.accounting import Releases
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.arguments import SharedArguments
from pymc_dp.steps.learning_step import LearningStep
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.steps.prelude.learning import PreludeArgument
from pymc_dp.steps.target import Target
from pymc_dp.steps.transition import SHARED_STATS, StatsOfSteps, Transition, untested
from pymc_dp.steps.tuning import given_noise, kinetic_energy, setting, with_given_noise

#: Leapfrog steps with released gradients; the largest number with free ones.
_LEAPFROGS, _MOST_LEAPFROGS = 5, 200
#: The longest step on a standard normal of one dimension.
_LONGEST_STEP = 1.4


class DPHMC(LearningStep):
    """Differentially private Hamiltonian Monte Carlo.

    Parameters
    ----------
    clip_gradient : float
        Clip bound of one unit's log-likelihood gradient, a Euclidean norm on PyMC's unconstrained scale. Too
        small biases the proposals (not the posterior: the test does not depend on gradients), too large adds
        noise.
    step_size : float
        Mean leapfrog step. Each trajectory uses the step times a factor within ``1 ± step_size_jitter``, from a
        randomised Halton sequence.
    n_leapfrog : int, optional
        Leapfrog steps in a trajectory, at least 1. Default: 5; with free gradients, by the pilot.
    step_size_jitter : float
        Relative half-width of the jitter, in [0, 1]. The paper's experiments multiply a largest step η by a number in
        [0, 1): that is ``step_size=η / 2, step_size_jitter=1.0``.
    mass_matrix : ndarray, shape (parameters,) or (parameters, parameters), or dict, optional
        Covariance of the momentum, as a diagonal or a matrix, in the order of ``model.value_vars``; or the diagonal
        by name of free variable, on the unconstrained scale: ``{"beta": [4.0, 1.0], "sigma": 2.0}``. A good one
        is near the inverse of the posterior covariance, from public knowledge. Default: the identity.
    gradient_share : float
        Part of the cost spent on gradients; the rest is spent on log-ratios.
    noise_multipliers : dict, optional
        Noise by kind of release, as in ``{"gradient": 5.0, "log_ratio": 2.0}``: its standard deviation divided by the
        sensitivity, the papers' τ. The noise then determines the cost of a run, and `PrivacyBudget.max_draws` gives
        the number of draws. The rest of the budget determines the noise of a kind that is left out.
        Default: the budget determines both.
    reuse_gradient : bool
        Keep the noisy gradient of the current state: n_leapfrog·iterations + 1 gradients a chain instead of
        (n_leapfrog + 1)·iterations. False gives the paper's algorithm. A step that shares the model with others
        never keeps it: they move the point between its iterations.
    clip_log_ratio, tempering, prelude
        See `pymc_dp.steps.learning_step.LearningStep`.
    vars, budget, budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Notes
    -----
    *Privacy.* Gradients and log-ratios are released with Gaussian noise, calibrated to the charge of the whole run.
    All other steps (acceptance, momenta, step sizes) depend on the data through them only.

    *Exactness.* The chain's stationary distribution is the posterior, exactly, as long as no log-ratio is
    clipped; the noise only lowers acceptance. With `tempering` it is the tempered posterior: T times a log-ratio with
    noise σ is one of the tempered likelihood with noise Tσ, known as well (docs: "Tempering").

    References
    ----------
    Räisä, Koskela and Honkela (2021), arXiv:2106.09376, Algorithm 1 and Theorem 3.2.
    Yıldırım and Ermiş (2019), Exact MCMC with differentially private moves, Statistics and Computing 29.
    """

    name = "dp_hmc"
    #: The acceptance rate at which a pilot aims, if the step size is not given.
    acceptance_of_pilot: ClassVar[float] = 0.8
    settled = ("step_size", "n_leapfrog")
    #: Every chain has new step sizes, and unpickling the generator would import scipy.stats.
    left_behind = (*LearningStep.left_behind, "_halton")
    stats_dtypes_shapes: StatsOfSteps = SHARED_STATS | {
        "diverging": (bool, []),
        "n_gradients": (np.int64, []),
        "step_size": (np.float64, []),
    }

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        clip_gradient: float | None = None,
        clip_log_ratio: float | None = None,
        step_size: float | None = None,
        n_leapfrog: int | None = None,
        step_size_jitter: float = 0.5,
        mass_matrix: ArrayLike | Mapping[str, ArrayLike] | None = None,
        gradient_share: float = 0.5,
        noise_multipliers: Mapping[str, float] | None = None,
        tempering: float = 1.0,
        reuse_gradient: bool = True,
        prelude: PreludeArgument = "auto",
        **shared: Unpack[SharedArguments],
    ) -> None:
        super().__init__(vars, **shared)
        needed = {"clip_gradient": clip_gradient, "clip_log_ratio": clip_log_ratio, "step_size": step_size}
        learns = self.learn(prelude, needed, shared.get("model"))
        self.clip_gradient = setting("clip_gradient", clip_gradient, learns=learns)
        self.clip_log_ratio = setting("clip_log_ratio", clip_log_ratio, learns=learns)
        self.step_size = setting("step_size", step_size, learns=learns)
        self.n_leapfrog = _validate.whole("n_leapfrog", _LEAPFROGS if n_leapfrog is None else n_leapfrog, at_least=1)
        #: With free gradients, trajectories are as long as those between draws of the surrogate.
        self._lengthens = n_leapfrog is None and self.control_variates
        self.aimed_acceptance = self.acceptance_of_pilot if step_size is None else None
        self.step_size_jitter = _validate.not_negative("step_size_jitter", step_size_jitter)
        if self.step_size_jitter:
            _validate.part_of_one("step_size_jitter", step_size_jitter)
        self.gradient_share = _validate.open_unit_interval("gradient_share", gradient_share)
        kinds = ("residual",) if self.control_variates else ("gradient", "log_ratio")
        self.noise_multipliers = given_noise(noise_multipliers, kinds)
        self.temper(tempering)
        self.reuse_gradient = _validate.truth("reuse_gradient", reuse_gradient) and self.moves_all
        self._standardised = mass_matrix is None
        self._kinetic_energy: QuadPotential = kinetic_energy(self.in_order("mass_matrix", mass_matrix), self.size)
        self.start()

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return the releases of one chain; tuning iterations have no test and release no log-ratio.

        With control variates, gradients are those of the expansion, and free of cost.
        """
        if self.control_variates:
            return with_given_noise([ReleaseRequest("residual", draws, 1.0, 1)], self.noise_multipliers)
        iterations = tune + draws
        gradients = iterations * self.n_leapfrog + (1 if self.reuse_gradient else iterations)
        requests = [
            ReleaseRequest("gradient", gradients, self.gradient_share, self.size),
            ReleaseRequest("log_ratio", draws, 1.0 - self.gradient_share, 1),
        ]
        return with_given_noise(requests, self.noise_multipliers)

    def stretch(self, factor: float) -> None:
        """Set the step size: at a factor of 1, a trajectory on a standard normal is a quarter of a period."""
        self.step_size = factor * min(0.5 * math.pi / self.n_leapfrog, _LONGEST_STEP / self.size**0.25)

    def settle(self, known: Approximation) -> None:
        """Adapt the step size in a pilot, and the number of steps to the surrogate's trajectories."""
        super().settle(known)
        if self._lengthens:
            length = max(0.5 * math.pi, known.kernel.length)
            self.n_leapfrog = min(max(round(length / self.step_size), 1), _MOST_LEAPFROGS)

    def start(self) -> None:
        """Reset the gradient of the last chain and begin a new sequence of step sizes."""
        self._gradient: FloatArray | None = None
        self._halton = scipy.stats.qmc.Halton(d=1, scramble=True, rng=self.rng)
        self._kinetic_energy.set_rng(self.rng)

    def transition(self, theta: FloatArray) -> Transition:
        """Propose the end of a noisy leapfrog trajectory; accept or reject by the penalty test."""
        target, step_size = self.target, self._jittered_step_size()
        momentum = self._kinetic_energy.random()
        log_uniform = -self.rng.exponential()

        gradient = self._gradient
        if gradient is None or not self.reuse_gradient:
            gradient = target.gradient(theta)
        theta_new, momentum_new, gradient_new, count = self._leapfrog(target, theta, momentum, gradient, step_size)
        stats: dict[str, Any] = {"step_size": step_size, "n_gradients": count + (gradient is not self._gradient)}
        self._gradient = gradient

        log_free_ratio = target.free(theta_new) - target.free(theta)
        stats["diverging"] = gradient_new is None or not np.isfinite(log_free_ratio)
        if self.tuning or stats["diverging"]:
            stats |= untested(accepted=not stats["diverging"])
        else:
            energy_change = self._kinetic_energy.energy(momentum_new) - self._kinetic_energy.energy(momentum)
            stats |= self.test(theta, theta_new, log_free_ratio - energy_change, log_uniform)
        if not stats["accepted"]:
            return Transition(theta, stats)
        self._gradient = gradient_new
        return Transition(theta_new, stats)

    def _leapfrog(
        self, target: Target, theta: FloatArray, momentum: FloatArray, gradient: FloatArray, step_size: float
    ) -> tuple[FloatArray, FloatArray, FloatArray | None, int]:
        """Return the end of the trajectory, its noisy gradient (None if not finite), and the number of gradients."""
        momentum = momentum + 0.5 * step_size * gradient
        for leap in range(1, self.n_leapfrog + 1):
            with np.errstate(over="ignore"):  # overflow is handled below
                theta = theta + step_size * self._kinetic_energy.velocity(momentum)
            if not np.isfinite(theta).all():
                return theta, momentum, None, leap - 1
            gradient = target.gradient(theta)
            kick = step_size if leap < self.n_leapfrog else 0.5 * step_size
            momentum = momentum + kick * gradient
        return theta, momentum, gradient if np.isfinite(momentum).all() else None, self.n_leapfrog

    def _jittered_step_size(self) -> float:
        return self.step_size * (1.0 + self.step_size_jitter * (2.0 * float(self._halton.random(1)[0, 0]) - 1.0))


class TrajectoryArguments(SharedArguments, total=False):
    """The arguments of `DPHMC` that `DPMALA` shares."""

    clip_gradient: float | None
    clip_log_ratio: float | None
    step_size: float | None
    mass_matrix: ArrayLike | Mapping[str, ArrayLike] | None
    gradient_share: float
    noise_multipliers: Mapping[str, float] | None
    tempering: float
    reuse_gradient: bool
    prelude: PreludeArgument


class DPMALA(DPHMC):
    """Differentially private Metropolis-adjusted Langevin algorithm.

    Parameters
    ----------
    step_size : float
        Standard deviation of the proposal's noise, in units of the mass matrix.
    clip_gradient, step_size_jitter, mass_matrix, gradient_share, noise_multipliers, reuse_gradient
        See `pymc_dp.steps.hmc.DPHMC`.
    clip_log_ratio, tempering, prelude
        See `pymc_dp.steps.learning_step.LearningStep`.
    vars, budget, budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Notes
    -----
    The sampler is `DPHMC` with ``n_leapfrog=1``: one gradient (two without reuse) and one log-ratio an iteration. It
    is exact in the same sense.

    References
    ----------
    Roberts and Tweedie (1996), Exponential convergence of Langevin distributions, Bernoulli 2.
    Neal (2011), MCMC using Hamiltonian dynamics, section 5.2: one leapfrog step is a Langevin proposal.
    """

    name = "dp_mala"
    #: The optimal rate in many dimensions (Roberts and Rosenthal 1998).
    acceptance_of_pilot = 0.574

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        step_size_jitter: float = 0.0,
        **settings: Unpack[TrajectoryArguments],
    ) -> None:
        if "n_leapfrog" in settings:
            raise InvalidArgument("DPMALA makes one leapfrog step; use DPHMC for n_leapfrog.")
        super().__init__(vars, n_leapfrog=1, step_size_jitter=step_size_jitter, **settings)

    def suitable_draws(self) -> int:
        """Return twice as many as for trajectories: single steps are shorter."""
        return 2 * super().suitable_draws()

    def stretch(self, factor: float) -> None:
        """Set the step size: a factor of the optimal one on a standard normal of many dimensions."""
        self.step_size = factor * 1.65 / self.size ** (1.0 / 6.0)
