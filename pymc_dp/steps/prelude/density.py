r"""Free log-densities that stand in for the posterior, made of what was released once around a centre.

With the score :math:`g_i` and curvature :math:`H_i` of unit i at the centre :math:`\theta_c`, noisy sums G
and H of them, and :math:`u = \theta - \theta_c`, a surrogate predicts the unit's weighted log-likelihood relative to
the centre and sums the predictions:

`Quadratic` (order 2)
    :math:`u^T g_i - \tfrac12 u^T H_i u`; summed: :math:`u^T G - \tfrac12 u^T H u`.
`WeightedRows` (order 1)
    :math:`a(\theta) + A(\theta)^T g_i`, where a and A are the least-squares coefficients that predict synthetic units'
    log-likelihoods from their scores; summed: :math:`n a + A^T G`, which is the log-likelihood of the synthetic units
    with fixed weights. Exact where a unit's score tells all that the likelihood asks of it: exponential families.

What a unit's log-likelihood has beyond its prediction is left to the test.
"""

from typing import Protocol

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint, GradientPrediction, Prediction
from pymc_dp.steps.access import LogDensity, PublicUnits
from pymc_dp.steps.prelude.newton import NotComputable, positive_definite

#: Synthetic units for each coefficient that is fitted to them, where few are enough.
_FEW_FOR_EACH = 4
#: Where that is tried: in standard deviations of the parameters that one synthetic table tells.
_TRIED_DISTANCES = (0.1, 1.0, 10.0)
_ROUNDING = 1e-9


class Surrogate(LogDensity, Protocol):
    """A free log-density, minus infinity outside a trusted region, with its prediction of every unit."""

    def prediction(self, theta: FloatArray) -> Prediction:
        """Return what it predicts of every unit at `theta`."""
        ...

    def gradient_prediction(self, theta: FloatArray) -> GradientPrediction:
        """Return what it predicts of every unit's gradient at `theta`."""
        ...

    def remainders(self, theta: FloatArray) -> FloatArray:
        """Return the remainder of every synthetic unit at `theta`, shape (units,); raise if there are none."""
        ...


def _changes(units: PublicUnits, theta: FloatArray, at_centre: FloatArray) -> FloatArray:
    """Return synthetic units' log-likelihoods relative to the centre."""
    with np.errstate(invalid="ignore", over="ignore"):
        changes: FloatArray = units.log_likelihoods(theta) - at_centre
    return changes


class Quadratic:
    """The exact prior times a normal likelihood with the released score and curvature, made positive definite.

    Nothing is proposed where ``sqrt(u · curvature u)`` is larger than `radius`: there the noise in the curvature could
    make the target improper.
    """

    def __init__(
        self, prior: LogDensity, centre: ExpansionPoint, gradient: FloatArray, curvature: FloatArray, radius: float
    ) -> None:
        self.prior, self.centre = prior, centre
        self._gradient, self._curvature, self._radius = gradient, curvature, radius

    def log_density(self, theta: FloatArray) -> float:
        """Return the log-density, minus infinity outside the trusted region."""
        from_centre = theta - self.centre.theta
        squared = float(from_centre @ self._curvature @ from_centre)
        if not squared <= self._radius**2:
            return -np.inf
        return self.prior.log_density(theta) + float(from_centre @ self._gradient) - 0.5 * squared

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log-density."""
        return self.prior.gradient(theta) + self._gradient - self._curvature @ (theta - self.centre.theta)

    def prediction(self, theta: FloatArray) -> Prediction:
        """Return what is predicted of every unit."""
        return Prediction(theta, theta - self.centre.theta, with_curvature=True)

    def gradient_prediction(self, theta: FloatArray) -> GradientPrediction:
        """Return what is predicted of every unit's gradient."""
        size = theta.size
        return GradientPrediction(theta, np.eye(size), theta - self.centre.theta, np.zeros(size))

    def remainders(self, theta: FloatArray) -> FloatArray:
        """Raise: there are no synthetic units."""
        raise NotComputable("Remainders of an expansion of order 2 are those of protected units: a release tells.")


class WeightedRows:
    """The prior times the likelihood of synthetic units, weighted so that their scores add up to the released one.

    A few of them are enough where these predict all the others, as in exponential families, and are quicker. `along` is
    the released preconditioned score, shape (parameters,), of `n_units` protected units.
    """

    def __init__(
        self, prior: LogDensity, centre: ExpansionPoint, units: PublicUnits, along: FloatArray, n_units: int
    ) -> None:
        self.prior, self.centre, self._units = prior, centre, units
        self._at_centre = units.log_likelihoods(centre.theta)
        self._design = self._design_of(units)
        for count in (_FEW_FOR_EACH * (1 + along.size), units.n_units):
            self._few = units.first(count)
            self._few_at_centre = self._few.log_likelihoods(centre.theta)
            self._coefficients_of = np.linalg.pinv(self._design_of(self._few), rcond=1e-10)
            if self._misses_nothing():
                break
        self.row_weights = self._coefficients_of.T @ np.concatenate([[n_units], along])

    def _design_of(self, units: PublicUnits) -> FloatArray:
        return np.column_stack([np.ones(units.n_units), units.scores(self.centre.theta) @ self.centre.preconditioner])

    def _misses_nothing(self) -> bool:
        """Return whether the coefficients predict all synthetic units at some points near and far, up to rounding."""
        size = self.centre.theta.size
        scores = self._design[:, 1:] @ np.linalg.inv(self.centre.preconditioner)
        spread = np.linalg.cholesky(np.linalg.inv(positive_definite(scores.T @ scores)))
        for distance in _TRIED_DISTANCES:
            at = self.centre.theta + distance * spread @ np.ones(size)
            rounding = _ROUNDING * np.abs(_changes(self._units, at, self._at_centre)).max()
            if not np.abs(self.remainders(at)).max() <= rounding:
                return False
        return True

    def _few_changes(self, theta: FloatArray) -> FloatArray:
        return _changes(self._few, theta, self._few_at_centre)

    def log_density(self, theta: FloatArray) -> float:
        """Return the log-density."""
        return self.prior.log_density(theta) + float(self.row_weights @ self._few_changes(theta))

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log-density."""
        gradient: FloatArray = self.prior.gradient(theta) + self.row_weights @ self._few.scores(theta)
        return gradient

    def prediction(self, theta: FloatArray) -> Prediction:
        """Return what it predicts of every unit."""
        offset, *along = self._coefficients_of @ self._few_changes(theta)
        direction = self.centre.preconditioner @ np.array(along)
        return Prediction(theta, direction, with_curvature=False, offset=float(offset))

    def gradient_prediction(self, theta: FloatArray) -> GradientPrediction:
        """Return what it predicts of every unit's gradient: the derivative of its coefficients."""
        slopes = self._coefficients_of @ self._few.scores(theta)
        jacobian = slopes[1:].T @ self.centre.preconditioner.T
        return GradientPrediction(theta, jacobian, np.zeros(theta.size), slopes[0])

    def remainders(self, theta: FloatArray) -> FloatArray:
        """Return what it misses of every synthetic unit."""
        predicted = self._design @ (self._coefficients_of @ self._few_changes(theta))
        missed: FloatArray = _changes(self._units, theta, self._at_centre) - predicted
        return missed
