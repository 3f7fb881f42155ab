"""Differentially private Metropolis-adjusted Langevin: DP HMC with a single leapfrog step.

A leapfrog step of size η with mass matrix M moves to θ + ½η²M⁻¹G + ηM⁻¹p, p ~ N(0, M): a Langevin proposal of
variance η². Testing it as a trajectory, with the noisy gradients at both ends, needs one new gradient and one
log-ratio an iteration. A test of the Langevin proposal's density at the noisy gradient would need that density with
the roles of the two points exchanged, which means gradients that were never released.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from numpy.typing import ArrayLike

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.steps.hmc import DPHMC
from pymc_dp.steps.prelude.learning import PreludeArgument
from pymc_dp.steps.shared import SharedArguments


class DPMALA(DPHMC):
    """Differentially private Metropolis-adjusted Langevin algorithm.

    Parameters
    ----------
    vars : sequence of variables, optional
        Free variables to update. Default: all.
    budget : PrivacyBudget
        What the run is charged to.
    clip_gradient, clip_log_ratio : float
        Clip bounds, as in `DPHMC`.
    step_size : float
        Standard deviation of the proposal's noise, in units of the mass matrix.
    step_size_jitter, mass_matrix, gradient_share, noise_multipliers, tempering, reuse_gradient
        As in `DPHMC`.
    prelude : Prelude, "auto" or None
        See `pymc_dp.steps.learning_step.LearningStep`.
    budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range.

    Notes
    -----
    It is `DPHMC` with ``n_leapfrog=1``: one gradient (two without reuse) and one log-ratio an iteration. It is
    exact in the same sense.

    References
    ----------
    Roberts and Tweedie (1996), Exponential convergence of Langevin distributions, Bernoulli 2.
    Neal (2011), MCMC using Hamiltonian dynamics, section 5.2: one leapfrog step is a Langevin proposal.
    """

    name = "dp_mala"
    #: The best one in many dimensions (Roberts and Rosenthal 1998).
    acceptance_of_pilot = 0.574

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        clip_gradient: float | None = None,
        clip_log_ratio: float | None = None,
        step_size: float | None = None,
        step_size_jitter: float = 0.0,
        mass_matrix: ArrayLike | Mapping[str, ArrayLike] | None = None,
        gradient_share: float = 0.5,
        noise_multipliers: Mapping[str, float] | None = None,
        tempering: float = 1.0,
        reuse_gradient: bool = True,
        prelude: PreludeArgument = "auto",
        **shared: Unpack[SharedArguments],
    ) -> None:
        if "n_leapfrog" in shared:
            raise InvalidArgument("DPMALA makes one leapfrog step; use DPHMC for n_leapfrog.")
        super().__init__(
            vars,
            clip_gradient=clip_gradient,
            clip_log_ratio=clip_log_ratio,
            step_size=step_size,
            n_leapfrog=1,
            step_size_jitter=step_size_jitter,
            mass_matrix=mass_matrix,
            gradient_share=gradient_share,
            noise_multipliers=noise_multipliers,
            tempering=tempering,
            reuse_gradient=reuse_gradient,
            prelude=prelude,
            **shared,
        )

    def draws_worth_taking(self, size: int) -> int:
        """Return twice as many as for trajectories: single steps are shorter."""
        return 2 * super().draws_worth_taking(size)

    def stretch(self, factor: float) -> None:
        """Set the step: the best one on a standard normal of many dimensions, times a factor."""
        self.step_size = factor * 1.65 / self.size ** (1.0 / 6.0)
