r"""The surrogate log-density of the posterior, from the sums that were released once at a centre.

With the score :math:`g_i` and curvature :math:`H_i` of unit i at the centre :math:`\theta_c`, noisy sums G and H of
them, and :math:`u = \theta - \theta_c`, it predicts :math:`u^T g_i - \tfrac12 u^T H_i u` of the unit's log-likelihood
relative to the centre; summed: :math:`u^T G - \tfrac12 u^T H u`. The test corrects the remainder of the log-likelihood.
"""

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint, Prediction
from pymc_dp.steps.access import LogDensity


class Quadratic:
    """The exact prior times a normal likelihood with the released score and positive definite curvature.

    The density is zero where ``sqrt(u · curvature u)`` exceeds `radius`: noise could make the target improper beyond
    it.
    """

    def __init__(
        self, prior: LogDensity, centre: ExpansionPoint, gradient: FloatArray, curvature: FloatArray, radius: float
    ) -> None:
        self.prior, self.centre = prior, centre
        self._gradient, self._curvature, self._radius = gradient, curvature, radius

    def log_density(self, theta: FloatArray) -> float:
        """Return the log-density, minus infinity outside the trust region."""
        from_centre = theta - self.centre.theta
        squared = float(from_centre @ self._curvature @ from_centre)
        if not squared <= self._radius**2:
            return -np.inf
        return self.prior.log_density(theta) + float(from_centre @ self._gradient) - 0.5 * squared

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log-density."""
        return self.prior.gradient(theta) + self._gradient - self._curvature @ (theta - self.centre.theta)

    def prediction(self, theta: FloatArray) -> Prediction:
        """Return the prediction for every unit."""
        return Prediction(theta, theta - self.centre.theta, with_curvature=True)
