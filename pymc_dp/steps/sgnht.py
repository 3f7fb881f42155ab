r"""Differentially private stochastic gradient Nosé-Hoover thermostats.

Ding, Fang, Babbush, Chen, Skeel and Neven (2014), with the privacy noise as the noise of the diffusion. Friction is
a dynamic variable that grows while the kinetic energy is above its mean and falls below it, so that it balances the sum
of all noise, including that between batches.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`\theta, p`         `theta`, `momentum`
:math:`\eta, A, M`        `step_size`, `diffusion`, `mass_matrix`
:math:`\xi`               `friction`, in units of 1 / time
:math:`\bar m`            harmonic mean of the eigenvalues of M
========================  ==========================================================

.. math:: d\theta = M^{-1} p\, dt, \quad
   dp = \hat G\, dt - \xi \bar m M^{-1} p\, dt, \quad
   d\xi = \frac{1}{Q} \Big( \frac{p^\top M^{-2} p}{\operatorname{tr} M^{-1}} - 1 \Big) dt,

with noise of variance :math:`2 A \eta` in a kick. For M = 1 and Q = 1 this is the published algorithm.

Released in one iteration: `n_steps` gradients of fresh batches. There is no acceptance test.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from pymc_dp import _validate
from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.stochastic_gradient import StochasticGradientArguments, StochasticGradientStep


class DPSGNHT(StochasticGradientStep):
    """Differentially private stochastic gradient Nosé-Hoover thermostat.

    Parameters
    ----------
    diffusion : float, optional
        A, in units of the mass over time: the injected noise. More costs less. Default: the least whose noise the
        budget can pay for.
    thermostat_mass : float
        Q, in units of time squared: how slowly friction adapts.
    n_steps : int, optional
        Steps in one iteration, each with a fresh batch; at least 1. Default: 10; with a prelude 15.
    clip_gradient, step_size, sampling_probability, batch_size, n_units, tempering, mass_matrix, prelude
        See `pymc_dp.steps.stochastic_gradient.StochasticGradientStep`.
    vars, budget, budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Notes
    -----
    *Privacy.* As in `DPSGHMC`.

    *Exactness.* Approximate: the step size biases the draws. Friction adapts to noise between batches whose covariance
    is constant and proportional to the identity; other noise biases the draws.

    References
    ----------
    Ding, Fang, Babbush, Chen, Skeel and Neven (2014), Bayesian sampling using stochastic gradient thermostats, NIPS.
    """

    name = "dp_sgnht"
    learned_step = 0.2

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        diffusion: float | None = None,
        thermostat_mass: float = 1.0,
        n_steps: int | None = None,
        **shared: Unpack[StochasticGradientArguments],
    ) -> None:
        super().__init__(vars, **shared)
        self.diffusion = self.injected = None if diffusion is None else _validate.positive("diffusion", diffusion)
        self.thermostat_mass = _validate.positive("thermostat_mass", thermostat_mass)
        self.n_steps = self.steps_per_iteration("n_steps", n_steps, plain=10, learned=15)
        self.start()

    def start(self) -> None:
        """Reset the momentum and the friction of the last chain."""
        self._momentum: FloatArray | None = None
        self._friction = 0.0

    def move(self, theta: FloatArray, step_size: float) -> FloatArray | None:
        """Integrate the thermostat's dynamics: position, friction, kick, friction, position."""
        mean_mass = 1.0 / float(np.mean(1.0 / self.mass.masses))
        if self._momentum is None:
            self._momentum = self.mass.random_momentum(self.rng)
            self._friction = self.injected_now / mean_mass
        momentum, friction = self._momentum, self._friction
        for _ in range(self.n_steps):
            theta = theta + 0.5 * step_size * self.mass.velocity(momentum)
            friction += 0.5 * step_size * self._heating(momentum)
            drift = self.drift(theta)
            damping = 0.5 * step_size * friction * mean_mass / self.mass.masses
            if drift is None or not np.all(damping > -1.0):  # negative friction makes the dynamics unstable
                return None
            momentum = self.kicked(momentum, drift, damping, step_size)
            friction += 0.5 * step_size * self._heating(momentum)
            theta = theta + 0.5 * step_size * self.mass.velocity(momentum)
        self._momentum, self._friction = momentum, friction
        return theta

    def _heating(self, momentum: FloatArray) -> float:
        """Return the relative excess of the momentum's kinetic energy, per unit of the thermostat's mass."""
        speed = self.mass.velocity(momentum)
        return (float(speed @ speed) / float(np.sum(1.0 / self.mass.masses)) - 1.0) / self.thermostat_mass

    def what_would_fit(self, noise_factor: float) -> str:
        """Return a diffusion or step size that would fit the budget."""
        return (
            f"What would fit: diffusion={(self.diffusion or 0.0) * noise_factor**2:.4g}, or steps "
            f"{noise_factor**2:.4g} times smaller, or diffusion=None to let the budget choose."
        )
