r"""The search for a centre if log-likelihoods are piecewise linear in the location: (asymmetric) Laplace distributions.

The second derivative of a row's log-likelihood is zero except at its kink, where it does not exist. If the model holds,
the curvature of the sum over rows is the mean outer product of scores, which therefore replaces the curvature
(`pymc_dp.rows.derivatives`). Three consequences follow:

1. *Steps* may be long: from any distance the outer product leads about to the middle of the residuals, and no farther.
2. *Scale*: slopes are proportional to the inverse scale, outer products to its square. Both are rescaled at every step.
3. *Curvature*: under misspecification, as in quantile regression, the ratio of the curvature to the outer product is
   that of the densities of residuals at the kink. A score at a distance from the centre estimates this ratio, and the
   error of a quadratic approximation of the sum.

References
----------
Yu and Moyeed (2001), Bayesian quantile regression, Statistics and Probability Letters 54.
Koenker (2005), Quantile Regression, section 3.2: the density at the quantile.
"""

from dataclasses import replace

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import KnownScore
from pymc_dp.steps.prelude.curvature import KnownCurvature
from pymc_dp.steps.prelude.growth import last_step
from pymc_dp.steps.prelude.newton import Frame
from pymc_dp.steps.prelude.search import Search


class SearchAlongBrokenLines(Search):
    """The search for the centre of piecewise linear log-likelihoods. Parameters as of `Search`."""

    least_of_curvature, smooth = settings.LEAST_OF_BROKEN_LINES, False

    def _trusted_by_rows(self, step: int) -> float:
        return settings.TRUST_OF_LOCATION

    def _comparable_scores(self, curvature: KnownCurvature) -> list[KnownScore]:
        """Return all scores, rescaled to the scale of the last one.

        One plus the mean score of the log scale is the ratio of the best scale to the current one, at any distance. Its
        logarithm replaces the mean score, except for units of several rows, whose number is protected.
        """
        now, found, scale = self._scores[-1].theta, [], self._regression.followed
        if scale.size > 1 or not self._regression.one_row_a_unit:
            scale = scale[:0]
        n_rows = -np.sign(self._regression.power_of_followed) * self._chain.n_units
        for each in self._scores:
            factor = self._scale_ratio(each.theta, now)
            best = np.maximum(1.0 + each.gradient[scale] / n_rows, settings.LEAST_LEFT)
            gradient = each.gradient * factor
            gradient[scale], factor[scale] = n_rows * np.log(best), 1.0 / best
            found.append(replace(each, gradient=gradient, noise=each.noise * factor[:, None]))
        return found

    def _stepped(self, theta: FloatArray, curvature: KnownCurvature, trust: float) -> FloatArray:
        """Return the end of a step: steps of the location are proportional to the new scale."""
        end = super()._stepped(theta, curvature, trust)
        return theta + (end - theta) / self._scale_ratio(theta, end)

    def _checked(
        self, curvature: KnownCurvature, point: ExpansionPoint, frame: Frame
    ) -> tuple[KnownCurvature, tuple[float, float]]:
        """Release a score away from the centre; return the corrected curvature, and the error of a quadratic."""
        kinked, n_units = self._regression.kinked, self._chain.n_units
        direction = np.where(kinked, frame.preconditioner @ np.cos(1.0 + np.arange(kinked.size)), 0.0)
        length = float(np.sqrt(max(float(direction @ curvature.matrix @ direction), np.finfo(float).tiny) / n_units))
        distant = replace(point, theta=point.theta + settings.WAY_OFF / length * direction)
        here = self._scores[-1]
        other = self._score_at(distant, frame, here.bias, "way_off")
        fallen, noise, along, _ = last_step([here, other], curvature, self.places)
        weight = settings.VARIANCE_OF_RATIO / (settings.VARIANCE_OF_RATIO + noise**2)
        ratio = max(1.0 + weight * (fallen - 1.0), settings.LEAST_OF_CURVATURE)
        factor = np.where(kinked, np.sqrt(ratio), 1.0)
        # A quadratic has no change of the score in other directions. A random matrix has the norm of that change times
        # the root of the number of directions, and its quadratic form over draws the standard deviation of its norm
        # over √2.
        along_frame = np.where(kinked, frame.preconditioner.T, 0.0) / (settings.WAY_OFF * n_units)
        of_noise = sum(float(np.sum((along_frame @ score.noise) ** 2)) for score in (here, other))
        squared = float(np.sum((along_frame @ (here.gradient - other.gradient - fallen * along)) ** 2))
        per_norm = float(np.sqrt(0.5 * kinked.sum()))
        missed = per_norm * float(np.sqrt(max(squared - of_noise, 0.0))), per_norm * float(np.sqrt(of_noise))
        return replace(curvature, matrix=curvature.matrix * np.outer(factor, factor)), missed
