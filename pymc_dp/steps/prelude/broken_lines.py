r"""The search where log-likelihoods are broken lines of the location: Laplace distributions, and asymmetric ones.

A row's log-likelihood curves nowhere but in its kink, and there without bound. Where the model holds, the sum of all
rows curves like the mean outer product of scores, which therefore takes the place of the curvature
(`pymc_dp.rows.derivatives`). Three things follow:

1. *Steps* may be long: from any distance the outer product leads about to the middle of the residuals, and no farther.
2. *Scale*: slopes are in proportion to the inverse scale, outer products to its square. Both follow every step.
3. *Bending*: where the model does not hold, as in quantile regression, the curvature is as many times the outer product
   as residuals are denser at the kink. A score a way off the centre tells how many, and how far from a parabola the sum
   of so many lines is.

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
from pymc_dp.steps.prelude.newton import Frame
from pymc_dp.steps.prelude.search import Search, last_step


class SearchAlongBrokenLines(Search):
    """The way to the centre of broken lines. Parameters as of `Search`."""

    least_of_curvature, smooth = settings.LEAST_OF_BROKEN_LINES, False

    def _trusted_by_rows(self, step: int) -> float:
        return settings.TRUST_OF_LOCATION

    def _comparable_scores(self, curvature: KnownCurvature) -> list[KnownScore]:
        """Return all scores, as if all had been released at the scale of the last one.

        One plus the mean score of its logarithm is what the best scale is in proportion to the one at hand, however far
        away. The logarithm of that takes the place of the mean score; not where units have several rows, whose number
        is protected.
        """
        now, found, scale = self._scores[-1].theta, [], self._regression.followed
        if scale.size > 1 or not self._regression.one_row_a_unit:
            scale = scale[:0]
        n_rows = (-1.0 if self._regression.followed_is_rate else 1.0) * self._chain.n_units
        for each in self._scores:
            factor = self._smaller(each.theta, now)
            best = np.maximum(1.0 + each.gradient[scale] / n_rows, settings.LEAST_LEFT)
            gradient = each.gradient * factor
            gradient[scale], factor[scale] = n_rows * np.log(best), 1.0 / best
            found.append(replace(each, gradient=gradient, noise=each.noise * factor[:, None]))
        return found

    def _stepped(self, theta: FloatArray, curvature: KnownCurvature, trust: float) -> FloatArray:
        """Return where scores lead to: steps of the location are in proportion to the scale that they say."""
        end = super()._stepped(theta, curvature, trust)
        return theta + (end - theta) / self._smaller(theta, end)

    def _checked(
        self, curvature: KnownCurvature, point: ExpansionPoint, frame: Frame
    ) -> tuple[KnownCurvature, tuple[float, float]]:
        """Release a score a way off the centre; return the curvature that it tells of, and what a parabola misses."""
        kinked, n_units = self._regression.kinked, self._chain.n_units
        way = np.where(kinked, frame.preconditioner @ np.cos(1.0 + np.arange(kinked.size)), 0.0)
        length = float(np.sqrt(max(float(way @ curvature.matrix @ way), np.finfo(float).tiny) / n_units))
        off = replace(point, theta=point.theta + settings.WAY_OFF / length * way)
        here = self._scores[-1]
        there = self._score_at(off, frame, here.bias, "way_off")
        found, noise, along, _ = last_step([here, there], curvature, self.places)
        believed = settings.VARIANCE_OF_BENDING / (settings.VARIANCE_OF_BENDING + noise**2)
        bending = max(1.0 + believed * (found - 1.0), settings.LEAST_OF_CURVATURE)
        factor = np.where(kinked, np.sqrt(bending), 1.0)
        # A change along other directions is what a parabola has none of: of a random matrix its norm is that, times the
        # root of the number of directions, and its quadratic form of draws varies by that over the root of two.
        turned = np.where(kinked, frame.preconditioner.T, 0.0) / (settings.WAY_OFF * n_units)
        of_noise = sum(float(np.sum((turned @ score.noise) ** 2)) for score in (here, there))
        squared = float(np.sum((turned @ (here.gradient - there.gradient - found * along)) ** 2))
        per_norm = float(np.sqrt(0.5 * kinked.sum()))
        missed = per_norm * float(np.sqrt(max(squared - of_noise, 0.0))), per_norm * float(np.sqrt(of_noise))
        return replace(curvature, matrix=curvature.matrix * np.outer(factor, factor)), missed
