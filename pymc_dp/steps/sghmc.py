r"""Differentially private stochastic gradient Hamiltonian Monte Carlo.

Chen, Fox and Guestrin (2014), with the privacy noise of Lode (2019): the noise that balances
friction is the privacy noise.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`\theta, p`         `theta`, `momentum`
:math:`\eta_t, J, M`      `step_size`, `n_leapfrog`, `mass_matrix`
:math:`C`                 `friction`
:math:`\hat B`            `noise_estimate`
========================  ==========================================================

One momentum update is :math:`p' = p + \eta \hat G(\theta) - \eta C M^{-1} \tfrac{p + p'}{2}` with noise of variance
:math:`2 (C - \hat B) \eta` in it. The published sign of friction in the thesis is wrong, and it clips the sum of a
batch where each unit has to be clipped. Friction is taken at the mean of both momenta, which keeps N(0, M) exactly
and for friction of any size, where the published Euler step inflates it; the noise, and so the cost, is the same.

Released in one iteration: `n_leapfrog` gradients of fresh batches. There is no acceptance test.
"""

from collections.abc import Sequence
from typing import Any, Unpack

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.stochastic_gradient import StochasticGradientArguments, StochasticGradientStep


class DPSGHMC(StochasticGradientStep):
    """Differentially private stochastic gradient Hamiltonian Monte Carlo.

    Parameters
    ----------
    friction : float, optional
        C, in units of the mass over time. It determines the noise of a gradient; more friction means more noise and a
        lower cost. Default: the least friction whose noise the budget can pay for.
    n_leapfrog : int, optional
        Leapfrog steps in one iteration, each with a fresh batch; at least 1. Default: 10; with a prelude 15.
    refresh_momentum : bool
        Draw a new momentum in each iteration. Else only friction and noise change it.
    noise_estimate : float
        The part of `friction` that balances the variance between batches, below `friction`; from public knowledge.
        Less noise is then injected, which costs more.
    clip_gradient, step_size, sampling_probability, batch_size, n_units, tempering, mass_matrix, prelude
        See `pymc_dp.steps.stochastic_gradient.StochasticGradientStep`.
    vars, budget, budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Notes
    -----
    *Privacy.* Every gradient is of a fresh batch. Its scale N / (q N) belongs to the release: sum and noise are
    scaled together. Steps that decrease compose different noise multipliers.

    *Exactness.* Approximate, even without noise: the step size biases the draws, and so does the variance between
    batches beyond `noise_estimate`. Both biases decrease with the step (docs: "Stochastic gradients").

    References
    ----------
    Chen, Fox and Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo, ICML.
    Lode (2019), Sub-sampled and differentially private Hamiltonian Monte Carlo, University of Helsinki.
    """

    name = "dp_sghmc"
    learned_step = 0.2

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        friction: float | None = None,
        n_leapfrog: int | None = None,
        refresh_momentum: bool = True,
        noise_estimate: float = 0.0,
        **shared: Unpack[StochasticGradientArguments],
    ) -> None:
        super().__init__(vars, **shared)
        self.friction = None if friction is None else _validate.positive("friction", friction)
        self.n_leapfrog = self.steps_per_iteration("n_leapfrog", n_leapfrog, plain=10, learned=15)
        self.refresh_momentum = _validate.truth("refresh_momentum", refresh_momentum)
        self.noise_estimate = _validate.not_negative("noise_estimate", noise_estimate)
        if self.friction is not None and self.noise_estimate >= self.friction:
            raise InvalidArgument("noise_estimate must be below friction: otherwise no privacy noise is left.")
        #: C - B: the part of friction with injected noise.
        self.injected = None if self.friction is None else self.friction - self.noise_estimate
        self.start()

    def start(self) -> None:
        """Reset the momentum of the last chain."""
        self._momentum: FloatArray | None = None

    def move(self, theta: FloatArray, step_size: float) -> FloatArray | None:
        """Integrate the dynamics with friction: a half step of position, kicks, and a half step at the end."""
        friction = self.injected_now + self.noise_estimate
        momentum = self._momentum
        if momentum is None or self.refresh_momentum:
            momentum = self.mass.random_momentum(self.rng)
        damping = 0.5 * step_size * friction / self.mass.masses
        theta = theta + 0.5 * step_size * self.mass.velocity(momentum)
        for leap in range(1, self.n_leapfrog + 1):
            drift = self.drift(theta)
            if drift is None:
                return None
            momentum = self.kicked(momentum, drift, damping, step_size)
            whole = step_size if leap < self.n_leapfrog else 0.5 * step_size
            theta = theta + whole * self.mass.velocity(momentum)
        self._momentum = momentum
        return theta

    def what_would_fit(self, noise_factor: float) -> str:
        """Return a friction or step size that would fit the budget."""
        friction = (self.injected or 0.0) * noise_factor**2 + self.noise_estimate
        return (
            f"What would fit: friction={friction:.4g}, or steps {noise_factor**2:.4g} times smaller, or "
            "friction=None to let the budget choose."
        )
