"""The search for the centre of a Student t regression: linear, with one scale, and degrees of freedom or a constant.

1. *Information.* At a scale far above most residuals such rows are about normal: the log-likelihood is a quadratic with
   the same curvature everywhere. The information of the location is released there, several times, as that of a normal
   regression (`location`). At another scale, and with other tails, that of Student t rows is a multiple of it, and that
   on scale and degrees of freedom is known.
2. *Steps.* Steps of all parameters along scores, with this information, as in `search`.
3. *Centre.* Score and curvature are released at the centre, and scores of the scale.

The search releases no other curvature on the way: that of rows with long tails is negative beyond a few residuals, and
nearly collinear columns are lost in the noise of each release.
"""

from dataclasses import replace

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import KnownScore
from pymc_dp.steps.prelude.curvature import KnownCurvature
from pymc_dp.steps.prelude.location import SearchForLocation
from pymc_dp.steps.prelude.newton import Frame
from pymc_dp.steps.prelude.regression import Regression
from pymc_dp.steps.prelude.search import Found, Search

#: The logarithm of the factor of the scale at which the information of the location is released. (Of .7, 1.4 and 2 on
#: ten tables none was better than another.)
_ABOVE_RESIDUALS = 1.4
#: The ratio of the information of a model to the noise that is assumed of it, for scale and degrees of freedom.
_TRUST_IN_MODEL = 10.0
#: The least information on the logarithm of degrees of freedom, of one row: rows with many are normal.
_LEAST_OF_DEGREES = 1e-6
#: The number of steps before the second binary search.
_STEPS_BEFORE_BISECTION = 2


class SearchOfStudentT(Search):
    """The search for the centre of a Student t regression. Parameters as of `Search`."""

    def __init__(self, chain: ChainAccess, regression: Regression, *bounds: float | None, releases_loss: bool) -> None:
        super().__init__(chain, regression, *bounds, releases_loss=releases_loss)
        self.floor_together = settings.FLOOR_OF_LOCATION
        self._of_location: KnownCurvature  # if rows were normal, at the scale of this point
        self._at: FloatArray
        self._n_rows: float

    def run(self) -> Found:
        """Search, and expand at the end of the search. Nothing is raised except numerical failures."""
        theta = self._bisected(self._begun(), first=True)
        self._find_information(theta)
        steps = self._regression.steps
        for step in range(steps + 1):
            information = self._information(theta)
            self._scores.append(self._score(theta, self._frame(information), "centre" if step == steps else "approach"))
            theta = self._stepped(theta, information, self._trusted(step, information))
            if step + 1 == min(_STEPS_BEFORE_BISECTION, steps):
                theta = self._bisected(theta, first=False)
        return self._expanded(theta, self._information(theta))

    def _find_information(self, theta: FloatArray) -> None:
        """Release the information of the location, at a larger scale."""
        search = SearchForLocation(self._chain, self._regression, releases_loss=False)
        larger = theta.copy()
        larger[self._regression.followed] += _ABOVE_RESIDUALS
        degrees = self._degrees(theta)
        self._of_location, self._at = search.information(larger).divided_by((degrees + 1.0) / degrees), larger
        self._n_rows = search.n_rows
        self._weights, self._rareness = search.tails_of_axes

    @staticmethod
    def step_of_degrees(step: FloatArray) -> FloatArray:
        """Return a scoring step of log degrees of freedom as one of their reciprocal; no step more than doubles them.

        With the Fisher information in place of the curvature a step d of the logarithm of x is one of -d / x in 1/x.
        """
        return -np.log1p(-np.minimum(step, 0.5))

    def _comparable_scores(self, curvature: KnownCurvature) -> list[KnownScore]:
        """Return all scores, transformed to one quadratic log-likelihood: in the reciprocal of degrees of freedom."""
        scores = super()._comparable_scores(curvature)
        return [self._by_reciprocal(each, scores[-1].theta) for each in scores]

    def _by_reciprocal(self, score: KnownScore, last: FloatArray) -> KnownScore:
        """Return a score by a coordinate that is linear in the reciprocal of degrees of freedom.

        At the point `last` it rises as the logarithm of the free ones.
        """
        free, theta, factor = self._regression.degrees_of_freedom, score.theta.copy(), np.ones(last.size)
        before, after = self._degrees(score.theta), self._degrees(last)
        slopes = before**2 / np.exp(score.theta[free]), after**2 / np.exp(last[free])
        theta[free] = last[free] + slopes[1] * (1.0 / after - 1.0 / before)
        factor[free] = slopes[0] / slopes[1]
        return replace(score, theta=theta, gradient=factor * score.gradient, noise=factor[:, None] * score.noise)

    def _degrees(self, theta: FloatArray) -> float:
        """Return the degrees of freedom at a point."""
        return self._regression.constant_degrees + float(np.sum(np.exp(theta[self._regression.degrees_of_freedom])))

    def _information(self, theta: FloatArray) -> KnownCurvature:
        """Return the Fisher information at a point.

        Lange, Little and Taylor (1989), Robust statistical modeling using the t distribution, JASA 84.
        """
        from scipy.special import polygamma  # noqa: PLC0415  slow to import

        degrees, free = self._degrees(theta), self._regression.degrees_of_freedom
        of_normal = self._at_scale_of(theta, self._at, self._of_location)
        known = of_normal.divided_by((degrees + 3.0) / (degrees + 1.0))
        both = np.concatenate([self._regression.followed, free])
        slope = float(np.sum(np.exp(theta[free])))  # of the degrees of freedom by their logarithm
        of_degrees = 0.25 * float(polygamma(1, 0.5 * degrees) - polygamma(1, 0.5 * (degrees + 1.0)))
        of_degrees -= (degrees + 5.0) / (2.0 * degrees * (degrees + 1.0) * (degrees + 3.0))
        crossed = -2.0 * slope / ((degrees + 1.0) * (degrees + 3.0))
        of_row = np.array([[2.0 * degrees / (degrees + 3.0), crossed], [crossed, of_degrees * slope**2]])
        of_row[1, 1] = max(of_row[1, 1], crossed**2 / of_row[0, 0] + _LEAST_OF_DEGREES)
        block = self._n_rows * of_row[: both.size, : both.size]
        lower, at = np.linalg.cholesky(block) / np.sqrt(_TRUST_IN_MODEL * known.noise_std), np.ix_(both, both)
        matrix, raw = known.matrix.copy(), known.raw.copy()
        back, preconditioner = known.frame.back.copy(), known.frame.preconditioner.copy()
        matrix[at], raw[at] = block, _TRUST_IN_MODEL * known.noise_std * np.eye(both.size)
        back[at], preconditioner[at] = lower, np.linalg.inv(lower).T
        return replace(known, matrix=matrix, raw=raw, frame=Frame(preconditioner, back), places=self.places)
