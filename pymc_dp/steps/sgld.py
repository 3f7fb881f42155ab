r"""Differentially private stochastic gradient Langevin dynamics.

Welling and Teh (2011), with the privacy of Wang, Fienberg and Smola (2015): the injected noise is the privacy
noise. One step, with :math:`\hat G` the noisy gradient of the log-posterior on a fresh batch,

.. math:: \theta' = \theta + \tfrac{\eta}{2} M^{-1} \hat G(\theta) + N(0, R),

where the noise in :math:`\hat G`, of standard deviation :math:`s = 2 \sqrt{m / \eta}` with m the smallest eigenvalue
of M, and R add up to the covariance :math:`\eta M^{-1}`. For M a multiple of the identity R is zero.

Released in one iteration: `n_steps` gradients of fresh batches. There is no acceptance test.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.stochastic_gradient import StochasticGradientArguments, StochasticGradientStep


class DPSGLD(StochasticGradientStep):
    """Differentially private stochastic gradient Langevin dynamics.

    Parameters
    ----------
    step_size : float or (float, float)
        η, or a pair (scale, decay) for steps ``scale * t**-decay`` in iteration t = 1, 2, ..., tuning first. It sets
        the noise: smaller steps cost less each.
    n_steps : int, optional
        Langevin steps in one iteration, each with a fresh batch; at least 1. Default: 1; with a prelude 40.
    clip_gradient, sampling_probability, batch_size, n_units, tempering, mass_matrix, prelude
        See `pymc_dp.steps.stochastic_gradient.StochasticGradientStep`.
    vars, budget, budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Notes
    -----
    The inverse of the mass matrix scales the steps.

    *Privacy.* As in `DPSGHMC`. A mass matrix that is no multiple of the identity requires more noise in some
    directions than the gradient has; the difference is public and adds no protection.

    *Exactness.* Approximate: the variance is too large by a part of about η λ / 4, λ the precision of the posterior
    in the metric of M, and by the variance between batches.

    References
    ----------
    Welling and Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics, ICML.
    Wang, Fienberg and Smola (2015), Privacy for free, ICML.
    """

    name = "dp_sgld"
    learned_step = 0.1
    order_of_dynamics = 2

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        n_steps: int | None = None,
        **shared: Unpack[StochasticGradientArguments],
    ) -> None:
        super().__init__(vars, **shared)
        self.n_steps = self.steps_per_iteration("n_steps", n_steps, plain=1, learned=40)
        #: Half a step times the gradient's noise has the variance η / m, for m the smallest mass: A is 2 m.
        self.injected = 2.0 * float(self.mass.masses.min())

    def move(self, theta: FloatArray, step_size: float) -> FloatArray | None:
        """Make Langevin steps."""
        masses = self.mass.masses
        rest = np.sqrt(step_size / masses * (1.0 - masses.min() / masses))
        for _ in range(self.n_steps):
            drift = self.drift(theta)
            if drift is None:
                return None
            theta = theta + 0.5 * step_size * self.mass.velocity(drift)
            if rest.any():
                theta = theta + self.mass.times(rest, self.rng.normal(size=theta.size))
        return theta

    def what_would_fit(self, noise_factor: float) -> str:
        """Return a step size that would fit the budget."""
        return f"What would fit: step_size={self.step_sizes.scale / noise_factor**2:.4g} (the decay unchanged)."
