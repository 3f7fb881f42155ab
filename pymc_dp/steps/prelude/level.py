"""The search that finds first how large rows are: where their linear predictors, moved together, leave no score.

Counts are far from where a model starts: of a rate of 30 the score at a rate of 1 is thirty times what it should be,
and Newton's first step as far too long. The trust region then holds each step back by the more, the more a row tells.
One direction leads most of the way: that in which all linear predictors rise by the same. An intercept is one, or the
levels of all groups: the model's graph says so. A column of ones among covariates is another, which a sum over the rows
tells that asks for no response. A binary search along it takes the sign of a clipped score at each point, and needs no
curvature there.

From there on a step of counts is trusted as far as it moves predictors, not as far as it changes log-likelihoods: over
a given step the curvature of a Poisson or binomial distribution changes by a factor, however much a row tells.

Positive responses, such as durations and incomes, are as far away. Where the model does not say which ones a row could
have had, and they are much larger than their mean is at the start, scores and curvatures both are in proportion to
them: Newton's own direction is the one that is looked for.
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
    can_stand_at,
    representable,
    unpacked,
)
from pymc_dp.steps.prelude.search import QUERIES_OF_CURVATURE, Search, halved, sum_over_units

#: Upper halves of normal scores have the mean .4, in standard deviations: twice that is room for others.
_MEAN_OF_UPPER = 0.8
#: No parameter has to change by more than this, for predictors to rise by 1.
_STEEPEST = 1e8


class SearchFromLevel(Search):
    """The way to the centre of a regression of counts, or of positive responses. Parameters as of `Search`."""

    #: The logarithm of what a row tells of its linear predictor, where the way begins.
    _told: float

    @property
    def _moved(self) -> NDArray[np.bool_]:
        """Which parameters move predictors, shape (parameters,)."""
        return self._regression.in_predictor & self.places

    def _begun(self) -> FloatArray:
        """Return where the score along the direction in which all predictors rise is about zero."""
        theta = self._levelled(self._regression.start)
        told = self._log_told(theta, "least_information") if self._chain.knows_responses else np.inf
        self._told = told if np.isfinite(told) else -np.inf
        self._sizes = {}
        return theta

    def _trusted_by_rows(self, step: int) -> float:
        """Return how far a step may go: at least as far as it moves predictors by what is trusted."""
        root = float(np.exp(0.5 * min(self._told + self._level, settings.MOST_TOLD)))
        return super()._trusted_by_rows(step) * max(1.0, settings.TRUST_OF_PREDICTORS * root)

    def _log_told(self, theta: FloatArray, of: str) -> float:
        """Return the logarithm of the mean of what rows tell of predictors, or slopes; infinite if noise hides it."""
        moved = np.diag(self._moved.astype(np.float64))
        histogram = self._histogram(theta, Frame(moved, moved), of, settings.USUALLY_TOLD, kind="growth_sizes")
        return histogram.log_mean(self._chain.n_units)

    def _levelled(self, theta: FloatArray) -> FloatArray:
        known = not self._regression.seeks_rise
        slope = 0.0 if known else self._log_told(theta, "least_slope")
        told = self._log_told(theta, "least_information") if self._chain.knows_responses else 0.0
        if known:  # the model says that rows tell about 1 where it begins, if noise hides it
            rise, told = self._regression.rise, told if np.isfinite(told) else 0.0
        elif not np.isfinite([slope, told]).all():
            return theta
        else:
            try:
                rise = self._rise(theta, self._comparable(theta), told, slope)
            except NUMERICAL_FAILURES:
                return theta
        axis = along_first_axis(rise)

        def rises(by: float) -> float:
            # Of counts that are far smaller, rows tell less.
            told_there = told + min(by, 0.0) if self._chain.knows_responses else 0.0
            bound = representable(settings.CLIP_OF_BISECTION * float(np.exp(0.5 * told_there)))
            at = theta + by * rise
            made = self._chain.release(PreconditionedScore(ExpansionPoint(at, axis, bound), "level"))
            return self._sign(made, float(self._chain.prior.gradient(at) @ rise), by_prior=True)

        end = theta + halved(rises, 0.0, settings.REACH_OF_LEVEL, settings.LEVEL_BISECTIONS) * rise
        return end if can_stand_at(self._chain.prior, end) else theta

    def _rise(self, theta: FloatArray, frame: Frame, told: float, slope: float) -> FloatArray:
        """Return the direction in which all predictors rise, by about 1: by least squares, for a row tells as much.

        Of directions whose curvature noise could hide the prior tells how far they rise: an intercept, which may be one
        of the columns, farther than the others. Logarithms are given: of what a row tells of its predictor, and of the
        size of its slope.
        """
        n_units, together = self._chain.n_units, self._together_in_groups()
        size = together.shape[1]
        axes = np.zeros((theta.size, theta.size))
        sizes = np.sqrt(together.T @ np.diag(frame.back) ** 2)
        axes[:, :size] = together / np.where(together.sum(axis=0) > 1.0, np.exp(slope), sizes)  # of members as slopes
        # Squared slopes, by which axes are made comparable, are far from curvatures at a wrong level: these are as the
        # model has them, or about in proportion to slopes.
        known = self._chain.knows_responses
        part = np.exp(told - 2.0 * slope) if known else settings.FROM_ABOVE * np.exp(-slope)
        usual = representable(self._mean_square * float(part))
        mean = self._histogram(theta, Frame(axes, axes), self._sizes_of_curvature, usual).log_mean(n_units)
        if not np.isfinite(mean):
            raise FloatingPointError("Noise hides how large curvatures are.")
        bound = representable(settings.CLIP_OF_LEVEL * float(np.exp(mean)))
        point = ExpansionPoint(theta, axes, np.inf, bound)
        query = QUERIES_OF_CURVATURE[self._sizes_of_curvature](point, "early_curvature")
        made = sum_over_units(self._chain, query, bound)
        values, vectors = np.linalg.eigh(unpacked(made.value, theta.size)[:size, :size])
        noise = made.noise_std * float(np.sqrt(size))
        told_by_prior = settings.NOISE_OF_LEVEL * noise * self._relative_information(axes[:, :size], together)
        curvature = (vectors * np.maximum(values, settings.FLOOR_OF_LEVEL * noise)) @ vectors.T + told_by_prior
        along = np.linalg.solve(curvature, self._sum_of_one_sign(theta, axes, size, mean))
        rise = axes[:, :size] @ along
        if known:
            by = float(np.sqrt(along @ curvature @ along / n_units * np.exp(-told)))
        else:
            by = float(np.exp(self._log_size_along(theta, rise) - slope))
        rise = rise / by
        if not 0.0 < np.abs(rise).max() < _STEEPEST:
            raise FloatingPointError("Noise alone says where predictors rise.")
        return rise

    def _relative_information(self, axes: FloatArray, together: FloatArray) -> FloatArray:
        """Return the prior's information along axes, over the largest of one; of groups, whose scale varies, none."""
        alone = together.sum(axis=0) == 1.0
        information = np.where(np.outer(alone, alone), axes.T @ self._of_prior @ axes, 0.0)
        most = float(np.diag(information).max())
        return information / most if most > 0.0 else np.eye(alone.size)

    def _sum_of_one_sign(self, theta: FloatArray, axes: FloatArray, size: int, log_curvature: float) -> FloatArray:
        """Return a sum over rows of scores to which all of them add with one sign of their predictors' slopes.

        Of upper scores, whatever the responses are. Where these are not known it is the score itself: of responses that
        are far larger, or smaller, all slopes have one sign.
        """
        if self._chain.knows_responses:
            # Upper halves of normal scores are .4 standard deviations; with one predictor a norm is a squared score.
            point = ExpansionPoint(theta, axes, representable(_MEAN_OF_UPPER * float(np.exp(0.5 * log_curvature))))
            query: Query = UpperScore(point, "rise")
        else:
            point = ExpansionPoint(theta, axes, settings.CLIP_OF_LEVEL * float(np.sqrt(size)))
            query = PreconditionedScore(point, "rise")
        return sum_over_units(self._chain, query, point.clip_gradient).value[:size]

    def _log_size_along(self, theta: FloatArray, direction: FloatArray) -> float:
        """Return the logarithm of the mean size of scores along a direction, infinite where noise hides it."""
        axis = along_first_axis(direction)
        histogram = self._histogram(theta, Frame(axis, axis), "score", settings.USUALLY_TOLD, kind="growth_sizes")
        return histogram.log_mean(self._chain.n_units)

    def _together_in_groups(self) -> FloatArray:
        """Return the directions of parameters that move predictors, all members of a grouping together, as columns."""
        moved = [each[self._moved[each]] for each in self._groupings]
        found = np.zeros((self.places.size, len(moved)))
        for number, members in enumerate(moved):
            found[members, number] = 1.0
        return found[:, found.any(axis=0)]
