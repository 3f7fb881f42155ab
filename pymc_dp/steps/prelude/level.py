"""The search that first finds the level of rows: the shift of all linear predictors at which the score is zero.

Counts may be far from a model's start: for a rate of 30 the score at a rate of 1 is thirty times that of a well-placed
row, and Newton's first step as far too long. The trust region then shortens each step, the more informative a row is.
One direction covers most of the distance: that in which all linear predictors rise equally. An intercept is one, or the
levels of all groups, by the model's graph. A column of ones among covariates is another, which a sum over the rows
without their responses reveals. A binary search along it uses signs of clipped scores, and no curvature.

Afterwards the trust region of a step of counts is measured in predictors, not in log-likelihoods: over a given step the
curvature of a Poisson or binomial distribution changes by a factor, however informative a row is.

Positive responses, such as durations and incomes, may be as far away. If the model does not determine the possible
responses of a row, and they are much larger than their mean at the start, scores and curvatures are both proportional
to them: the direction is then Newton's.
"""

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint
from pymc_dp.release.preconditioned import PreconditionedScore, UpperScore
from pymc_dp.release.query import Query
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    Frame,
    along_first_axis,
    finite_prior_at,
    representable,
    unpacked,
)
from pymc_dp.steps.prelude.releases import QUERIES_OF_CURVATURE, sum_over_units
from pymc_dp.steps.prelude.search import Search, halved

#: The upper half of a standard normal score has the mean .4: twice that leaves room for other distributions.
_MEAN_OF_UPPER = 0.8
#: The largest change of a parameter that raises predictors by 1.
_STEEPEST = 1e8


class SearchFromLevel(Search):
    """The search for the centre of a regression of counts, or of positive responses. Parameters as of `Search`."""

    #: The logarithm of a row's information on its linear predictor at the start of the steps.
    _log_information: float

    @property
    def _moved(self) -> NDArray[np.bool_]:
        """The parameters in linear predictors, shape (parameters,)."""
        return self._regression.in_predictor & self.places

    def _begun(self) -> FloatArray:
        """Return a start at which the score along the direction of rising predictors is about zero."""
        theta = self._levelled(self._regression.start)
        information = self._log_mean_norm(theta, "least_information") if self._chain.knows_responses else np.inf
        self._log_information = information if np.isfinite(information) else -np.inf
        self._histograms = {}
        return theta

    def _trusted_by_rows(self, step: int) -> float:
        """Return the radius of the trust region: at least its radius in predictors."""
        root = float(np.exp(0.5 * min(self._log_information + self._level, settings.MOST_LOG_INFORMATION)))
        return super()._trusted_by_rows(step) * max(1.0, settings.TRUST_OF_PREDICTORS * root)

    def _log_mean_norm(self, theta: FloatArray, of: str, axes: FloatArray | None = None) -> float:
        """Return the log mean norm of rows' information, slopes or scores along axes; infinite if noise hides it."""
        axes = np.diag(self._moved.astype(np.float64)) if axes is None else axes
        histogram = self._histogram(theta, Frame(axes, axes), of, settings.TYPICAL_OF_ROW, kind="growth_sizes")
        return histogram.log_mean(self._chain.n_units)

    def _levelled(self, theta: FloatArray) -> FloatArray:
        known = not self._regression.seeks_rise
        slope = 0.0 if known else self._log_mean_norm(theta, "least_slope")
        information = self._log_mean_norm(theta, "least_information") if self._chain.knows_responses else 0.0
        if known:  # if noise hides it, the model's is about 1 at the start
            rise, information = self._regression.rise, information if np.isfinite(information) else 0.0
        elif not np.isfinite([slope, information]).all():
            return theta
        else:
            try:
                rise = self._rise(theta, self._diagonal_frame(theta), information, slope)
            except NUMERICAL_FAILURES:
                return theta
        axis = along_first_axis(rise)

        def rises(by: float) -> float:
            # Rows with far smaller counts have less information.
            log_information = information + min(by, 0.0) if self._chain.knows_responses else 0.0
            bound = representable(settings.CLIP_OF_BISECTION * float(np.exp(0.5 * log_information)))
            at = theta + by * rise
            made = self._chain.release(PreconditionedScore(ExpansionPoint(at, axis, bound), "level"))
            return self._sign(made, float(self._chain.prior.gradient(at) @ rise), by_prior=True)

        end = theta + halved(rises, 0.0, settings.REACH_OF_LEVEL, settings.LEVEL_BISECTIONS) * rise
        return end if finite_prior_at(self._chain.prior, end) else theta

    def _rise(self, theta: FloatArray, frame: Frame, information: float, slope: float) -> FloatArray:
        """Return the direction in which all predictors rise by about 1: least squares over equally informative rows.

        In directions whose curvature noise could hide, the prior determines their part: an intercept, which may be one
        of the columns, has a larger one. `information` and `slope` are logarithms: of a row's information on its
        predictor, and of the magnitude of its slope.
        """
        n_units, together = self._chain.n_units, self._together_in_groups(self._moved)
        size = together.shape[1]
        axes = np.zeros((theta.size, theta.size))
        sizes = np.sqrt(together.T @ np.diag(frame.back) ** 2)
        axes[:, :size] = together / np.where(together.sum(axis=0) > 1.0, np.exp(slope), sizes)  # members: as slopes
        # Squared slopes, which normalise axes, are far from curvatures at a wrong level: these follow the model or the
        # slopes.
        expected = self._chain.knows_responses
        ratio = np.exp(information - 2.0 * slope) if expected else settings.FROM_ABOVE * np.exp(-slope)
        typical = representable(self._mean_square * float(ratio))
        mean = self._histogram(theta, Frame(axes, axes), self._curvature_kind, typical).log_mean(n_units)
        if not np.isfinite(mean):
            raise FloatingPointError("Noise hides how large curvatures are.")
        bound = representable(settings.CLIP_OF_LEVEL * float(np.exp(mean)))
        point = ExpansionPoint(theta, axes, np.inf, bound)
        query = QUERIES_OF_CURVATURE[self._curvature_kind](point, "early_curvature")
        made = sum_over_units(self._chain, query, bound)
        values, vectors = np.linalg.eigh(unpacked(made.value, theta.size)[:size, :size])
        noise = made.noise_std * float(np.sqrt(size))
        of_prior = settings.NOISE_OF_LEVEL * noise * self._relative_information(axes[:, :size], together)
        curvature = (vectors * np.maximum(values, settings.FLOOR_OF_LEVEL * noise)) @ vectors.T + of_prior
        along = np.linalg.solve(curvature, self._sum_of_one_sign(theta, axes, size, mean))
        rise = axes[:, :size] @ along
        if expected:
            predictor = float(np.sqrt(along @ curvature @ along / n_units * np.exp(-information)))
        else:
            predictor = float(np.exp(self._log_mean_norm(theta, "score", along_first_axis(rise)) - slope))
        rise = rise / predictor
        if not 0.0 < np.abs(rise).max() < _STEEPEST:
            raise FloatingPointError("Noise alone says where predictors rise.")
        return rise

    def _relative_information(self, axes: FloatArray, together: FloatArray) -> FloatArray:
        """Return the prior's information along axes over the largest entry; zero for groups, whose scale is unknown."""
        alone = together.sum(axis=0) == 1.0
        information = np.where(np.outer(alone, alone), axes.T @ self._of_prior @ axes, 0.0)
        most = float(np.diag(information).max())
        return information / most if most > 0.0 else np.eye(alone.size)

    def _sum_of_one_sign(self, theta: FloatArray, axes: FloatArray, size: int, log_curvature: float) -> FloatArray:
        """Return a sum over rows of scores that all have the sign of their predictors' slopes.

        It sums upper scores, whatever the responses are. Without known responses it is the score itself: responses that
        are far larger, or smaller, give all slopes one sign.
        """
        if self._chain.knows_responses:
            # With one predictor the norm of a curvature is a squared score.
            point = ExpansionPoint(theta, axes, representable(_MEAN_OF_UPPER * float(np.exp(0.5 * log_curvature))))
            query: Query = UpperScore(point, "rise")
        else:
            point = ExpansionPoint(theta, axes, settings.CLIP_OF_LEVEL * float(np.sqrt(size)))
            query = PreconditionedScore(point, "rise")
        return sum_over_units(self._chain, query, point.clip_gradient).value[:size]
