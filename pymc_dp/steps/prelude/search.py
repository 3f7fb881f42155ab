"""The search for the centre of a regression on an unknown table: every scale is learned from small releases.

1. *Scales.* Logarithms of positive parameters are found by binary search on noisy bounded scores.
2. *Coordinates.* A histogram of scores for each parameter makes all parameters comparable.
3. *Directions.* The curvature is released early, and again after the first and the second step, each time along the
   axes that the previous ones whiten; scores are released along them, too. With continuous responses, the third is
   released at their scale after the last step but one, or after a step that the trust region does not shorten. Axes
   along which scores have long tails have smaller weights in norms.
4. *Steps.* Noisy scores are released, each with the best clip bound by a histogram of norms. Each step leads to about
   the posterior mean given all scores so far (`belief`), in a trust region. If the model determines the possible
   responses of a row, histograms estimate the growth of curvatures along the step (`growth`).
5. *Centre.* One more precise score leads to the centre, where score and curvature are released once more, and then
   scores of single scales and shapes.

For a normal regression with one scale, location and scale are estimated separately: see `location`; that of Student t
rows has the information of the model: see `student_t`. Other locations of normal rows move alone in the first two
steps, with a binary search for scales and a curvature after each. Piecewise linear log-likelihoods have curvature in
their kinks only: see `broken_lines`. The location of censored rows is measured in units of their scale: see
`coordinates`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint, Release
from pymc_dp.release.queries import ClippingLoss
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import Belief, KnownScore, belief_of, most_likely, updated, with_drift
from pymc_dp.steps.prelude.coordinates import AccessInCoordinates, Coordinates, InUnitsOfScale
from pymc_dp.steps.prelude.curvature import KnownCurvature, curvature_drift
from pymc_dp.steps.prelude.growth import after_overshoot, last_step, on_one_parabola, times_newton
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    Frame,
    finite_prior_at,
    positive_definite,
    prior_information,
)
from pymc_dp.steps.prelude.regression import Regression
from pymc_dp.steps.prelude.releases import ReleasesOfSearch, sum_over_units


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a search."""

    #: The centre, with the clip bounds of the releases at it.
    centre: ExpansionPoint
    #: The inverse transpose of the preconditioner: it maps a preconditioned score to a score.
    back: FloatArray
    #: The curvature at the centre and the likelihood, from all releases.
    curvature: KnownCurvature
    belief: Belief
    #: The norm that clipping removes from scores at the centre, and the noise of that figure, if released.
    lost: tuple[float, float] | None
    #: The remainder of the quadratic expansion of the log-likelihood, and its noise, if the search determines it.
    missed: tuple[float, float] | None = None
    #: The belief's curvature less that at the centre: it grows along the step to the belief's mean.
    extra_curvature: FloatArray | None = None


class Search(ReleasesOfSearch):
    """The search for the centre, and its releases.

    The clip bounds at the centre are the user's, or the best ones. With `releases_loss` the norm that clipping removes
    from scores at the centre is released.
    """

    third_order, least_of_curvature = settings.THIRD_ORDER, settings.LEAST_OF_CURVATURE
    #: Whether a unit's log-likelihood has a curvature.
    smooth = True
    #: The number of latest scores that a step uses; None for all.
    latest: int | None = None

    def __init__(
        self,
        chain: ChainAccess,
        regression: Regression,
        clip_gradient: float | None = None,
        clip_curvature: float | None = None,
        *,
        releases_loss: bool = False,
    ) -> None:
        super().__init__(chain, regression)
        self._releases_loss = releases_loss
        self._clip_gradient, self._clip_curvature = clip_gradient, clip_curvature
        #: The coordinates of the search, if not the parameters.
        self.coordinates: Coordinates | None = None
        #: The largest logarithm of the ratio of the norms of units' curvatures to their traces.
        self._log_norm_ratio = -np.inf
        #: The factor of the trust region for units of several rows, and whether it shortened the last step.
        self._trust_growth, self._shortened = 1.0, False
        #: Scores of log scales have long tails of one sign: outliers of continuous responses increase a scale, and
        #: overdispersed counts decrease a shape.
        self._one_sided = regression.is_scale

    def run(self) -> Found:
        """Search, and expand at the end of the search. Nothing is raised except numerical failures."""
        theta = self._bisected(self._begun(), first=True)
        regression = self._regression
        if regression.scale_of_censored.any():  # further points are in units of the scale of censored rows
            location = regression.in_predictor & self.places
            self.coordinates = InUnitsOfScale(theta, location, regression.scale_of_censored)
            self._chain = AccessInCoordinates(self._chain, self.coordinates)
        curvature = self._curvature(theta, self._diagonal_frame(theta), "early_curvature")
        steps, waits = regression.steps, not regression.moves_scale_late  # for the third curvature
        for step in range(steps + 1):
            last = step == steps
            if regression.moves_scale_late and step == max(steps - 1, 1):
                theta, curvature = self._followed(theta, self._bisected_late(theta), curvature, "late_curvature")
            elif last and not regression.moves_scale_late:
                theta = self._bisected_late(theta)
            curvature = self._at_norm(theta, curvature)
            self._scores.append(self._score(theta, self._frame(curvature), "centre" if last else "approach"))
            trusted = self._trusted(step, curvature)
            curvature = self._after_step(curvature)
            if step < regression.location_steps:
                end = self._at_location(theta, curvature)
            elif regression.follows_growth:
                end, curvature = self._stepped_with_growth(theta, curvature, trusted)
            else:
                end = self._stepped(theta, curvature, trusted)
            theta, curvature = end, self._at_scale_of(end, theta, curvature)
            if step < regression.middle_curvatures:
                bisected = self._bisected(theta, first=False)
                theta, curvature = self._followed(theta, bisected, curvature, "middle_curvature")
            arrives = step + 1 >= settings.STEPS_BEFORE_LATE and (self._chain.knows_responses or not self._shortened)
            if waits and (arrives or step + 1 == steps):
                waits = False
                curvature = self._together(self._curvature(theta, self._frame(curvature), "late_curvature"), curvature)
        return self._expanded(theta, curvature)

    def _begun(self) -> FloatArray:
        """Return the start of the search."""
        return self._regression.start

    def _bisected_late(self, theta: FloatArray) -> FloatArray:
        """Return the end of a binary search; small moves are ignored."""
        bisected = self._bisected(theta, first=False)
        return np.where(np.abs(bisected - theta) > settings.LEAST_MOVE_OF_BISECTION, bisected, theta)

    def _expanded(self, theta: FloatArray, curvature: KnownCurvature) -> Found:
        """Release curvature and score at the centre; return the result of the search."""
        curvature = self._at_norm(theta, curvature)
        frame, since = self._frame(curvature), self._curvature_theta
        best, bias = self._score_bound(theta, frame, "score")
        bound = best if self._clip_gradient is None else self._clip_gradient
        of_curvature = self._curvature_bound(theta, frame, "curvature", bound)
        point = ExpansionPoint(theta, frame.preconditioner, bound, self._clip_curvature or of_curvature)
        late = self._curvature_at(point, frame, "curvature", between_scales=True)
        if self.nonnegative:  # of clipped scores
            late = late.divided_by(self._kept(point))
        together = self._together(late, curvature)
        # Norms are about the same in the new frame, and so is the best bound.
        frame = self._frame(together)
        point = replace(point, preconditioner=frame.preconditioner)
        lost = None
        if self._releases_loss:
            loss = self._chain.release(ClippingLoss(point))
            lost = point.clip_gradient * float(loss.value[0]), point.clip_gradient * loss.noise_std
            bias = self._bias_by_loss(point.clip_gradient, bias, loss)
            if self._regression.expects_outliers and self._clip_gradient is None:
                point, bias, left = self._with_room_for_outliers(point, frame, bias)
                lost = left * lost[0], left * lost[1]
        self._scores.append(self._score_at(point, frame, bias, "score"))
        together = self._after_step(together)
        together, missed = self._checked(together, point, frame)
        # The published likelihood may be used with a wider prior, and scales of hierarchies vary.
        part = settings.PART_OF_PRIOR
        belief, at_centre = self._belief(together, of_prior=part), together.matrix
        if self._regression.follows_growth:
            end = belief.mean if finite_prior_at(self._chain.prior, belief.mean) else point.theta
            together = together.divided_by(times_newton(self._growth(end)))  # its mean over the step
            belief = self._belief(together, of_prior=part)
        if self.drifts:
            drift = curvature_drift(curvature, late, since - theta, self._chain.n_units)
            belief = with_drift(belief, self._scores[-1].theta, drift, self._chain.n_units)
        if self._regression.with_own_scores.size:
            noise = float(np.mean(together.noise_along(self._frame(together))))
            belief = self._with_own_scores(belief, theta, noise)
        return Found(point, frame.back, together, belief, lost, missed, together.matrix - at_centre)

    def _checked(
        self, curvature: KnownCurvature, point: ExpansionPoint, frame: Frame
    ) -> tuple[KnownCurvature, tuple[float, float] | None]:
        """Return the curvature at the centre and the error of the expansion: here no release corrects either."""
        return curvature, None

    def _comparable_scores(self, curvature: KnownCurvature) -> list[KnownScore]:
        """Return all scores, transformed to one quadratic log-likelihood."""
        if self._regression.follows_growth:
            return on_one_parabola(self._scores, curvature.matrix, self.places)
        return [self._score_at_scale(each, self._scores[-1].theta) for each in self._scores]

    def _score_at_scale(self, score: KnownScore, theta: FloatArray) -> KnownScore:
        """Return a score at the scale of a point: that of the location is proportional to its curvature.

        The bias, a norm along the axes of the frame, grows as the longest of them.
        """
        factor = self._scale_ratio(score.theta, theta)
        bias = score.bias * float(factor[self.places].max())
        return replace(score, gradient=score.gradient * factor**2, noise=score.noise * factor[:, None] ** 2, bias=bias)

    def _scale_ratio(self, before: FloatArray, after: FloatArray) -> FloatArray:
        """Return the root of the information at a point over that at another, for the location; 1 for others."""
        factor, moves = np.ones(before.size), (before - after)[self._regression.followed]
        if moves.size:
            farthest = float(moves[np.argmax(np.abs(moves))])
            factor[self._regression.of_location] = np.exp(-0.5 * self._regression.power_of_followed * farthest)
        return factor

    def _at_scale_of(self, theta: FloatArray, before: FloatArray, curvature: KnownCurvature) -> KnownCurvature:
        """Return the curvature at the scale of a point: that of the location is proportional to a power of it."""
        factor, frame = self._scale_ratio(before, theta), curvature.frame
        frame = Frame(frame.preconditioner / factor[:, None], frame.back * factor[:, None])
        return replace(curvature, matrix=curvature.matrix * np.outer(factor, factor), frame=frame)

    def _belief(self, curvature: KnownCurvature, *, noise_alone: bool = False, of_prior: float = 1.0) -> Belief:
        """Return the likelihood that all scores imply, with errors under a part (`of_prior`) of the prior."""
        frame = self._frame(curvature)
        noise = curvature.noise_along(frame)
        if self.drifts:  # its error between points exceeds noise, equally for all axes
            noise = np.full_like(noise, noise.mean())
        scores = self._comparable_scores(curvature)
        return belief_of(
            scores[-self.latest :] if noise_alone and self.latest else scores,
            curvature.matrix,
            noise,
            frame,
            self.places,
            n_units=self._chain.n_units,
            structure=self.structure,
            third_order=self.third_order,
            smooth=self.smooth,
            noise_alone=noise_alone,
            one_sided=self._one_sided,
            prior=(of_prior * self._of_prior, of_prior * self._chain.prior.gradient(scores[-1].theta)),
        )

    def _followed(
        self, theta: FloatArray, bisected: FloatArray, curvature: KnownCurvature, kind: str
    ) -> tuple[FloatArray, KnownCurvature]:
        """Release the curvature at the end of binary searches, along axes rescaled with the scale."""
        moves = (bisected - theta)[self._regression.followed]
        if kind == "middle_curvature" or np.any(np.abs(moves) > settings.SETTLED):
            self._histograms = {}
        return bisected, self._curvature(bisected, self._frame(self._at_scale_of(bisected, theta, curvature)), kind)

    # Scales -------------------------------------------------------------------------------------------------------

    def _bisected(self, theta: FloatArray, *, first: bool) -> FloatArray:
        """Return the parameters with logarithms of scales at the zeros of their clipped scores."""
        reach = settings.FIRST_REACH if first else settings.LATER_REACH
        halvings = settings.FIRST_BISECTIONS if first else settings.LATER_BISECTIONS
        for place in self._regression.bisected:
            theta = theta.copy()
            rises = partial(self._rises, theta, int(place), by_prior=first)
            theta[place] = halved(rises, theta[place], reach, halvings)
        return self._regression.within(theta)

    def _rises(self, theta: FloatArray, place: int, value: float, *, by_prior: bool) -> float:
        """Return 1 if the log-posterior increases in a parameter at a value, else -1."""
        at = theta.copy()
        at[place] = value
        at = self._regression.within(at)
        is_shape = self._regression.power_of_followed == 1.0 and place in self._regression.followed
        bound = settings.CLIP_OF_SHAPES if is_shape else settings.CLIP_OF_BISECTION
        made = self._chain.release(self._score_along(at, place, bound, "bounded_score"))
        return self._sign(made, float(self._chain.prior.gradient(at)[place]), by_prior=by_prior)

    def _sign(self, made: Release, slope: float, *, by_prior: bool) -> float:
        """Return 1 if the sum of a released score and the prior's slope is positive, else -1.

        Where noise may decide, the prior does (`by_prior`), or the answer is 0: a prior must not move a parameter that
        steps have estimated.
        """
        total = float(made.value[0])
        if abs(total) < settings.CLEAR_BISECTION * made.noise_std:
            if not by_prior:
                return 0.0
            total = 0.0
        rises = total + (slope if np.isfinite(slope) else 0.0)
        return 1.0 if rises > 0.0 else -1.0

    def _after_step(self, curvature: KnownCurvature) -> KnownCurvature:
        """Return the curvature, corrected along the last step if the scores at both ends clearly contradict it.

        With less than half the true curvature, steps overshoot and do not converge; with much more they are short.
        """
        if len(self._scores) < self._first_after_curvature + 2:
            return curvature
        scores = self._scores if self._regression.follows_growth else self._comparable_scores(curvature)
        found, noise, along, expected = last_step(scores, curvature, self.places)
        if not (np.isfinite(found) and noise < settings.CLEAR_STEP):
            return curvature
        if found - noise > settings.CLEAR_OVERSHOOT:
            part = found
        elif found + noise < 1.0 / settings.CLEAR_OVERSHOOT:
            part = max(found + noise, self.least_of_curvature)
        else:
            return curvature
        return replace(curvature, matrix=curvature.matrix + (part - 1.0) / expected * np.outer(along, along))

    def _trusted(self, step: int, curvature: KnownCurvature) -> float:
        """Return the radius of the trust region: larger if the curvature predicted the last step.

        A unit of many rows has much information, so that a step of a given length is short for each row. The number of
        rows in a unit is protected, but the scores along the last step are released.
        """
        if len(self._scores) > 1 and not self._regression.one_row_a_unit:
            found, noise, *_ = last_step(self._scores, curvature, self.places)
            if abs(found - 1.0) + noise < settings.CLEAR_STEP:
                self._trust_growth *= settings.GROWTH_OF_TRUST
        return self._trust_growth * self._trusted_by_rows(step)

    def _trusted_by_rows(self, step: int) -> float:
        """Return the radius of the trust region if every row is a unit."""
        if step == self._regression.steps:
            return settings.TRUST_LAST
        far = step < 2 and self._regression.responses_are_known
        return settings.TRUST_FAR if far else settings.TRUST_NEAR

    def _with_own_scores(self, belief: Belief, theta: FloatArray, curvature_noise: float) -> Belief:
        """Release scores of single scales and shapes at the mean of the likelihood; return the updated likelihood.

        They have long tails of one sign. Clipping of the norm would bias them by the loss of all parameters together.
        The noise of one number permits a bound that few units exceed.
        """
        n_units, centre = self._chain.n_units, theta
        # The relative error of a scale's information, if it is that of the frame.
        doubt = curvature_noise / (settings.SCALE_IN_NORM**2 * n_units)
        for place in self._regression.with_own_scores:
            self._histograms, before = {}, centre
            for _ in range(settings.OWN_SCORES):
                theta = self._moved_to_mean(belief, theta, settings.TRUST_LAST)
                along = belief.information[place]
                unit = float(np.sqrt(along[place] / n_units))
                bound, bias = self._bound_of_own_score(theta, place, unit)
                made = sum_over_units(self._chain, self._score_along(theta, int(place), bound, "scale_score"), bound)
                # Errors of other parameters increase residuals: a scale is overestimated by half their deviance.
                bias = float(np.hypot(bias, 0.5 * belief.squared_noise))
                # The noise of the curvature over the distance to the maximum is added.
                squared = float(np.sum(belief.information * (belief.noise + belief.bias))) / n_units
                noise = float(np.hypot(made.noise_std, unit * curvature_noise * np.sqrt(squared)))
                error = float(made.value[0]) - float(along @ (belief.mean - theta))
                corrected = after_overshoot(belief, int(place), before, theta, error, float(np.hypot(noise, bias)))
                if corrected is None:
                    corrected = updated(belief, int(place), error, noise=noise, bias=bias, doubt=doubt)
                belief, before = corrected, theta
        return belief

    # Steps --------------------------------------------------------------------------------------------------------

    def _stepped(self, theta: FloatArray, curvature: KnownCurvature, trust: float) -> FloatArray:
        """Return about the posterior mean given the scores, or the end of a step within the trust region.

        The error of the curvature is proportional to the distance: with it in the likelihood's variance, a hierarchy
        would shrink every step, and the distance would remain.
        """
        try:
            belief = self._belief(self._along_coordinates(curvature), noise_alone=True)
            mean = theta + self._whole_step(belief, theta)
            # Scores of broken lines hardly fall before the maximum is near: there, steps are too short as they are.
            shrinks = self.smooth and not self._regression.simulated
            end = self._shrunk(mean, belief)[0] if shrinks else mean
        except NUMERICAL_FAILURES:  # the next score may be less noisy
            return theta
        return self._end_of(end - theta, belief, theta, trust)

    def _shrunk(self, mean: FloatArray, belief: Belief) -> tuple[FloatArray, float]:
        """Return a posterior mean, shrunk towards the first point, and the part of its noise that the result follows.

        From afar noise is larger than effects: at the end of the step residuals would be too large, and with them the
        noise of the next score. What one parameter, or all members of a grouping together, explains best is kept, such
        as the level of all rows. The rest is shrunk as James and Stein (1961) do, in the metric of the information.
        Logarithms of scales stay. Members of groups do, too: farther from the maximum more of their scores is clipped,
        which a hierarchy would take for a small variance.
        """
        moved = self.places & ~self._regression.is_scale
        if self._has_members or not moved.any():
            return mean, 1.0
        information = np.where(np.outer(moved, moved), belief.information, 0.0)
        away = np.where(moved, mean - self._scores[0].theta, 0.0)
        together = self._together_in_groups(moved).T
        slopes, squares = together @ information @ away, np.sum(together @ information * together, axis=1)
        best = int(np.argmax(slopes**2 / squares))
        alone = slopes[best] / squares[best] * together[best]
        size, rest = int(moved.sum()), away - alone
        by_chance = float(np.sum(information * belief.given(belief.noise, self._of_prior))) * (1.0 - 1.0 / size)
        part = max(0.0, 1.0 - by_chance / max(float(rest @ information @ rest), np.finfo(float).tiny))
        # How much of the mean's noise the result follows, by its divergence: where the rest is longer, it shrinks less.
        kept = (1.0 + part * (size - 1) + 2.0 * (1.0 - part) * float(part > 0.0)) / size
        return np.where(moved, self._scores[0].theta + alone + part * rest, mean), kept

    def _along_coordinates(self, curvature: KnownCurvature) -> KnownCurvature:
        """Return the curvature by nonlinear coordinates, to which the score adds the map's second derivatives.

        The last score is noisy: its contribution is limited.
        """
        if self.coordinates is None:
            return curvature
        last = self._scores[-1]
        of_parameters = np.linalg.solve(self.coordinates.slopes(last.theta).T, last.gradient)
        matrix = curvature.matrix - self.coordinates.second_order(last.theta, of_parameters)
        block = np.ix_(self.places, self.places)
        matrix[block] = positive_definite(matrix[block], floor=settings.LEAST_ALONG_COORDINATES)
        return replace(curvature, matrix=matrix)

    def _at_location(self, theta: FloatArray, curvature: KnownCurvature) -> FloatArray:
        """Return the maximum over the location of rows by the latest score, at fixed scales: no step is too long.

        The log-likelihood of normal rows is quadratic in their location for any scales, and that of Student t rows
        nearly. Far from the maximum all scales and correlations of a row's numbers would be overestimated.
        """
        known, score = self._regression.location, self._scores[-1]
        block, mean, noise = np.ix_(known, known), theta.copy(), np.zeros_like(curvature.matrix)
        try:
            inverse = np.linalg.inv(curvature.matrix[block])
            mean[known] += inverse @ score.gradient[known]
            factor = inverse @ score.noise[known]
            noise[block] = factor @ factor.T
            belief = Belief(mean, curvature.matrix, noise, np.zeros_like(noise), known)
            found = most_likely(self._chain.prior, belief, theta, ~self._regression.known, self._regression.bounds)
        except NUMERICAL_FAILURES:  # the next score may be less noisy
            return theta
        return self._end_of(found - theta, belief, theta, np.inf)

    # Growth of curvatures -----------------------------------------------------------------------------------------

    def _stepped_with_growth(
        self, theta: FloatArray, curvature: KnownCurvature, trust: float
    ) -> tuple[FloatArray, KnownCurvature]:
        """Return the end of a step with exponential growth of the curvature, and the curvature at it."""
        try:
            belief = self._belief(curvature, noise_alone=True)
            step = self._whole_step(belief, theta)
        except NUMERICAL_FAILURES:  # the next score may be less noisy
            self._growth(theta)  # it was paid for
            return theta, curvature
        end = self._end_of(step, belief, theta, trust)
        growth, part = self._growth(end), self._part_of(step, end - theta)
        if not (growth and part > 0.0):
            return end, curvature
        # The correction is reduced by the noise of Newton's step.
        squared = max(float(step @ belief.information @ step), np.finfo(float).tiny)
        clear = max(0.0, 1.0 - settings.CLEAR_GROWTH * belief.squared_noise / squared)
        longer = 1.0 + clear * (times_newton(growth / part) - 1.0)
        end = self._end_of(np.where(self.places, longer * step, step), belief, theta, trust)
        return end, self._grown(curvature, growth * self._part_of(step, end - theta) / part)

    def _part_of(self, step: FloatArray, taken: FloatArray) -> float:
        """Return the ratio of a step to the whole one, by its longest entry: products could overflow."""
        longest = int(np.argmax(np.where(self.places, np.abs(step), 0.0)))
        return float(taken[longest] / step[longest]) if step[longest] != 0.0 else 0.0

    def _growth(self, theta: FloatArray) -> float:
        """Return the difference of the log curvature to another point; 0 where noise hides it."""
        frame, here = self._curvature_norm
        growth = self._log_norm(theta, frame) - here
        return growth if np.isfinite(growth) else 0.0

    def _grown(self, curvature: KnownCurvature, growth: float) -> KnownCurvature:
        """Return the curvature after a growth, a difference of logarithms."""
        self._level += growth
        return curvature.divided_by(float(np.exp(-growth)))

    def _at_norm(self, theta: FloatArray, curvature: KnownCurvature) -> KnownCurvature:
        """Return the curvature, rescaled to the mean norm of units' expected curvatures at a point."""
        if not self._regression.follows_growth:
            return curvature
        frame = self._frame(curvature)
        log_norm = self._log_norm(theta, frame)
        along = float(np.trace(frame.preconditioner.T @ curvature.matrix @ frame.preconditioner))
        ratio = log_norm - float(np.log(along / self._chain.n_units))
        if self._first_after_curvature == len(self._scores) and np.isfinite(ratio):
            # Noise makes a released curvature too large: the largest log ratio of norms to traces is used.
            self._log_norm_ratio = min(max(self._log_norm_ratio, ratio), 0.0)
        growth = ratio - self._log_norm_ratio if np.isfinite(ratio - self._log_norm_ratio) else 0.0
        curvature = self._grown(curvature, growth)
        self._curvature_norm = self._frame(curvature), log_norm - growth
        return curvature

    def _moved_to_mean(self, belief: Belief, theta: FloatArray, trust: float) -> FloatArray:
        """Return about the posterior mean given a likelihood, or the end of a step within the trust region."""
        try:
            step = self._whole_step(belief, theta)
        except NUMERICAL_FAILURES:
            return theta
        return self._end_of(step, belief, theta, trust)

    def _whole_step(self, belief: Belief, theta: FloatArray) -> FloatArray:
        """Return the step to about the posterior mean given a likelihood."""
        known, bounds = self._regression.known, self._regression.bounds
        step = most_likely(self._chain.prior, belief, theta, ~known, bounds) - theta
        degrees = self._regression.degrees_of_freedom
        step[degrees] = self.step_of_degrees(step[degrees])
        most = settings.MOST_STEP_OF_SCALE
        step[self._regression.scales] = np.clip(step[self._regression.scales], -most, most)
        return step

    @staticmethod
    def step_of_degrees(step: FloatArray) -> FloatArray:
        """Return the step of log degrees of freedom, given Newton's."""
        return reciprocal_step(step)

    def _end_of(self, step: FloatArray, belief: Belief, theta: FloatArray, trust: float) -> FloatArray:
        """Return the end of a step, shortened to the trust region."""
        prior = self._chain.prior
        length = float(np.sqrt(np.maximum(step @ belief.information @ step, 0.0) / self._chain.n_units))
        shorter = min(1.0, trust / max(length, np.finfo(float).tiny))
        self._shortened = shorter < 1.0
        step = np.where(self.places, shorter * step, step)
        steps = (np.where(self.places, part * step, step) for part in (1.0, 0.5, 0.25, 0.1))
        ends = (self._regression.within(theta + each) for each in steps)
        end = next((end for end in ends if finite_prior_at(prior, end)), None)
        if end is None:
            return theta
        self._of_prior = prior_information(prior, end, self.places)
        self._shortens_axes = not self._regression.known.all()
        return end


def halved(rises: Callable[[float], float], centre: float, reach: float, halvings: int) -> float:
    """Return the end of a binary search; `rises` returns 1 or -1, the direction of the next step."""
    for _ in range(halvings):
        reach /= 2.0
        centre += reach * rises(centre)
    return centre


def reciprocal_step(step: FloatArray) -> FloatArray:
    """Return a Newton step of the logarithm of x as one of 1/x, in which a log-likelihood is nearer to a quadratic.

    For large degrees of freedom it is: the log-likelihood decays exponentially in their logarithm, where each Newton
    step adds at most half. In 1/x the step is -d / (1 - d) times 1/x. No step more than doubles x.
    """
    most = np.minimum(step, 1.0 / 3.0)
    return np.log((1.0 - most) / (1.0 - 2.0 * most))
