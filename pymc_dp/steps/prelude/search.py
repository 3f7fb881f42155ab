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

For a normal regression with one scale, location and scale are estimated separately: see `location`. Other locations of
normal rows move alone in the first two steps, with a binary search for scales and a curvature after each. Piecewise
linear log-likelihoods have curvature in their kinks only: see `broken_lines`. The location of censored rows is measured
in units of their scale: see `coordinates`.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.structure import Structure
from pymc_dp.release.interface import ExpansionPoint, Release
from pymc_dp.release.preconditioned import CentredScore, ExpectedCurvature, OneDirectionCurvature, PreconditionedScore
from pymc_dp.release.queries import ClippingLoss, Curvature
from pymc_dp.release.query import Query
from pymc_dp.release.sizes import BoundedScore, CoordinateSizes, NormSizes
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import Belief, KnownScore, belief_of, most_likely, updated, with_drift
from pymc_dp.steps.prelude.coordinates import AccessInCoordinates, Coordinates, InUnitsOfScale
from pymc_dp.steps.prelude.curvature import (
    KnownCurvature,
    between_groupings,
    curvature_drift,
    floored,
    groupings_of,
    members_of,
    missing_of_members,
    pooled,
)
from pymc_dp.steps.prelude.growth import after_overshoot, mean_of_exponential, on_one_parabola, times_newton
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    Frame,
    along_first_axis,
    embedded,
    finite_prior_at,
    positive_definite,
    prior_curvature,
    representable,
    unpacked,
)
from pymc_dp.steps.prelude.tails import BINS, LOWEST_HALF_OCTAVE, Histogram, Tail, above_noise

_LOWEST_OCTAVE, _OCTAVES = -24, 49
#: The prior range, in octaves, of the scores of a parameter that noise may hide, relative to the others'.
_NEAR_TYPICAL = 6
_STAGES = ("early_curvature", "middle_curvature", "late_curvature", "curvature")
_ROUNDING = 1e-9
#: The query of a curvature, by the name of its histograms.
QUERIES_OF_CURVATURE: dict[str, Callable[[ExpansionPoint, str], Query]] = {
    "expected_curvature": ExpectedCurvature,
    "curvature": Curvature,
    "one_direction_curvature": OneDirectionCurvature,
}
#: The largest standardised clipping loss: its square stays finite.
_FARTHEST_LOSS = 1e3


@dataclass(frozen=True, eq=False)
class Regression(Structure):
    """The public structure of a model, and the plan of the search for its centre: known before any release."""

    #: Steps before the last score at the centre.
    steps: int = settings.STEPS
    one_row_a_unit: bool = True
    #: Whether the search simulates rows from the model.
    simulated: bool = False
    #: The coefficients of members' scores in that of each coordinate, where the mean of members is one; else empty.
    gathered: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def centred(self) -> bool:
        """Whether the mean that clipping removes from scores is added back: not for units of several rows."""
        return (self.responses_are_known or self.simulated) and self.one_row_a_unit

    @property
    def expects_outliers(self) -> bool:
        """Whether tails may be longer than the model's, as of continuous responses: clip bounds leave room for them.

        Counts have a fitted overdispersion instead.
        """
        return not (self.centred and (self.rows_are_discrete or self.simulated))

    @property
    def follows_growth(self) -> bool:
        """Whether the search releases the norms of expected curvatures at each point: for categories and counts."""
        apart = self.kinked.any() or self.location_apart or self.simulated
        return self.centred and self.rows_are_discrete and not apart

    @property
    def finds_level(self) -> bool:
        """Whether the search begins with the level of rows: that of counts and positive responses may be far away."""
        counts = self.follows_growth and not self.rows_are_levels
        positive = self.rows_are_positive and self.one_row_a_unit and not self.followed.size
        return (counts or positive) and bool(self.in_predictor.any())

    @property
    def seeks_rise(self) -> bool:
        """Whether the direction of the search for the level has to be released."""
        return self.finds_level and not self.rise.any()

    @property
    def location_apart(self) -> bool:
        """Whether location and scale are estimated separately: one scale is the only logarithm."""
        one_scale = self.normal and self.followed.size == 1 and np.array_equal(self.scales, self.followed)
        return one_scale and bool((self.known & ~self.is_scale).any())

    @property
    def location_steps(self) -> int:
        """The number of first steps that move the location alone, where it is not estimated separately.

        It is that of all steps if rows are simulated and nothing else is unknown.
        """
        if self.location_apart or not self.location.any():
            return 0
        nothing_else = self.simulated and np.array_equal(self.location, self.known)
        return self.steps + 1 if nothing_else else settings.LOCATION_STEPS

    @property
    def middle_curvatures(self) -> int:
        """The number of first steps followed by binary searches and a curvature."""
        return max(self.location_steps, 1)

    @property
    def moves_scale_late(self) -> bool:
        """Whether the third curvature is released at the end of the last binary search.

        It is for continuous responses with a scale or a shape, which multiplies the curvature of the location.
        """
        return self.bisected.size > 0 and not self.rows_are_discrete

    @property
    def is_scale(self) -> NDArray[np.bool_]:
        """The parameters that are logarithms of scales, shape (parameters,)."""
        return np.isin(np.arange(self.start.size), self.scales)

    @property
    def of_location(self) -> NDArray[np.bool_]:
        """The parameters on which the location of rows depends, shape (parameters,)."""
        return self.kinked if self.kinked.any() else ~self.is_scale

    @property
    def with_own_scores(self) -> NDArray[np.intp]:
        """The scales and shapes with scores of their own at the centre.

        They have them if they are few; except a scale estimated separately, and degrees of freedom, which one step
        hardly changes.
        """
        few = self.scales.size <= settings.MOST_OWN_SCORES and not (self.location_apart or self.simulated)
        return self.bisected if few else self.bisected[:0]

    @property
    def bisected(self) -> NDArray[np.intp]:
        """The parameters with binary searches.

        Degrees of freedom have none: far from the location, and where they are large, scores hardly depend on them.
        """
        return np.setdiff1d(self.scales, self.degrees_of_freedom)[: settings.MOST_BISECTED]

    def in_coordinates(self, to_parameters: FloatArray) -> "Regression":
        """Return the structure in coordinates whose parameters are `to_parameters` times the coordinates."""
        gathered = (to_parameters - np.eye(len(to_parameters))).T
        start, known = np.linalg.solve(to_parameters, self.start), self.known | gathered.any(axis=1)
        return replace(self, start=start, known=known, gathered=gathered)


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


def requests_of_search(regression: Regression, share: float) -> list[ReleaseRequest]:
    """Return the releases of a search, histograms at the centre included, at a share of the run's cost."""
    size = regression.start.size
    entries = size * (size + 1) // 2
    steps, bisected, scales = regression.steps, regression.bisected.size, int(regression.location_apart)
    broken = int(regression.kinked.any())
    # At every point the norms of curvatures, whole and clipped; and those at the end of each step.
    level, rise = int(regression.finds_level), int(regression.seeks_rise)
    known = int(regression.responses_are_known)
    growth = 3 * (steps + 2) * int(regression.follows_growth)
    growth += (2 + known) * rise + 2 * known * (level - rise)  # rows' information at the level, and slopes
    of_bisections = min(regression.scales.size, settings.MOST_BISECTED)  # with degrees of freedom, which have none
    along_axis = size if regression.scale_of_censored.any() else 1  # an axis of nonlinear coordinates is a direction
    usual = broken or regression.rows_are_discrete
    parts = settings.PARTS if usual else settings.PARTS_OF_CONTINUOUS
    parts = settings.PARTS_OF_LOCATION if scales else parts
    own = settings.OWN_SCORES * regression.with_own_scores.size
    rows = scales * int(not regression.one_row_a_unit)
    middle = settings.MIDDLE_OF_LOCATION if scales else regression.middle_curvatures
    n_curvatures = len(_STAGES) - 1 + middle + rise
    n_scores = steps + 2 + scales * (steps + 1) + rows
    later = 0 if scales else 1 + regression.middle_curvatures
    n_bisections = bisected * (settings.FIRST_BISECTIONS + later * settings.LATER_BISECTIONS)
    part_of_bisections = parts.bisection * (settings.MORE_FOR_BISECTIONS if regression.location_steps else 1.0)
    planned: list[tuple[str, int, float, int]] = [
        ("bounded_score", n_bisections, part_of_bisections * of_bisections, along_axis),
        ("level", level * settings.LEVEL_BISECTIONS, level * parts.bisection, size),
        ("rise", rise, rise * parts.rise, size),
        ("coordinate_sizes", 1 + rise, (1.0 + settings.OF_LEVEL * rise) * parts.coordinates, size * _OCTAVES),
        ("curvature_sizes", n_curvatures, n_curvatures * parts.sizes, BINS),
        ("score_sizes", n_scores, n_scores * parts.sizes, BINS),
        ("scale_sizes", own, parts.scale_sizes if own else 0.0, BINS),
        ("growth_sizes", growth, growth * parts.growth, BINS),
        ("early_curvature", 1 + rise, (1.0 + settings.OF_LEVEL * rise) * parts.early, entries),
        ("middle_curvature", middle, middle * parts.middle, entries),
        ("late_curvature", 1, parts.late, entries),
        ("approach", steps, steps * parts.approach, size),
        ("centre", 1, parts.centre, size),
        ("way_off", broken, broken * parts.way_off, size),
        ("scale_score", scales + own, parts.scale if scales + own else 0.0, along_axis),
        ("row_count", rows, rows * parts.rows, 1),
        ("wide_scale_score", scales, scales * parts.wide_scale, size),
        ("scale_approach", scales * steps, scales * steps * parts.scale_approach, size),
    ]
    return in_proportion(planned, share)


def in_proportion(planned: Sequence[tuple[str, int, float, int]], share: float) -> list[ReleaseRequest]:
    """Return requests from kinds, counts, parts of the search's cost and coordinates, at a share of the cost."""
    together = sum(part for _, _, part, _ in planned)
    return [
        ReleaseRequest(kind, count, share * part / together, coordinates, once=True)
        for kind, count, part, coordinates in planned
        if count
    ]


class Search:
    """The search for the centre, and its releases.

    The clip bounds at the centre are the user's, or the best ones. With `releases_loss` the norm that clipping removes
    from scores at the centre is released.
    """

    third_order, least_of_curvature = settings.THIRD_ORDER, settings.LEAST_OF_CURVATURE
    #: Whether the curvature depends on the point; and whether a unit's log-likelihood has one.
    drifts, smooth = True, True
    #: The query of a score: with the mean of its clipped part added back, where the model determines it.
    score: type[CentredScore | PreconditionedScore] = CentredScore
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
        self._chain, self._regression, self._releases_loss = chain, regression, releases_loss
        self._clip_gradient, self._clip_curvature = clip_gradient, clip_curvature
        #: The coordinates of the search, if not the parameters.
        self.coordinates: Coordinates | None = None
        self._histograms: dict[str, Histogram] = {}
        self._scores: list[KnownScore] = []
        #: The number of scores released before the last curvature, and the point of that.
        self._first_after_curvature, self._curvature_theta = 0, regression.start
        #: Logarithms: of the curvature relative to that at the start; and of the ratio of the norms of units'
        #: curvatures to their traces. The part of the slope of scores that clipping leaves.
        self._level, self._log_norm_ratio, self._slope_kept = 0.0, -np.inf, 1.0
        #: A frame, and the logarithm of the mean norm of units' curvatures along it.
        self._curvature_norm: tuple[Frame, float]
        self._tail: Tail  # of the norms of the last score
        #: The factor of the trust region for units of several rows, and whether it shortened the last step.
        self._trust_growth, self._shortened = 1.0, False
        #: The weight of each axis of a frame in norms: smaller if scores have long tails, so that few norms are large.
        self._weights = np.ones(regression.known.size)
        #: The concentration of a parameter's scores on few units: their kurtosis about zero.
        self._rareness = np.ones(regression.known.size)
        #: The parameters of scores and curvatures.
        self.places = regression.known.copy()
        if regression.location_apart:
            self.places[regression.followed] = False
        #: The prior's information at the end of the last step, given the scales of hierarchies; and whether it shortens
        #: axes: after a step, for a hierarchy.
        self._of_prior, self._shortens_axes = self._prior_information(regression.start), False
        structure = chain.structure
        #: The entries of curvatures that the model's graph allows.
        self.structure = np.ones((regression.known.size,) * 2, dtype=bool) if structure is None else structure
        self._groupings = groupings_of(self.structure, self.places)
        self._has_members = any(each.size > 1 for each in self._groupings)
        expected = chain.knows_responses
        #: Scores of log scales have long tails of one sign: outliers of continuous responses increase a scale, and
        #: overdispersed counts decrease a shape.
        self._one_sided = regression.is_scale
        #: The largest eigenvalue of noise alone, in standard deviations of its entries.
        self.noise_eigenvalue = _noise_eigenvalue(self.structure[np.ix_(self.places, self.places)])
        self._curvature_kind = "expected_curvature" if expected else "curvature"
        #: Whether released curvatures have no negative eigenvalue except by noise.
        self.nonnegative = expected
        #: Floors of eigenvalues by stage, and of pooled curvatures, relative to the largest of noise alone.
        self._floors = settings.FLOORS_OF_EXPECTED if expected else settings.FLOORS_OF_OBSERVED
        self.floor_together = self._floors[-1]
        #: The part of the norm that clipping removes that adds to the bias of the sum of scores.
        self.bias_of_loss = settings.BIAS_OF_CENTRED if regression.centred else settings.BIAS_OF_CLIPPED

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

    def _bias_by_loss(self, bound: float, before: float, loss: Release) -> float:
        """Return the bias of a score, given the released loss of norm by clipping; rescale the bias of earlier scores.

        A loss beyond the histogram's is attributed to outliers hidden in its noise.
        """
        part = self._bias_of_length
        bias = part * self._lost_length(bound, loss, before / part)
        if not self._regression.expects_outliers:
            # Histograms overestimate the loss, which compensates for a bias of one direction if no mean is added back.
            bias = min(bias, before)
        else:
            most = self._chain.n_units  # no unit loses more than one bound
            excess = float(np.clip(loss.value[0], -most, most)) - self._tail.capped_loss(bound)
            self._tail.add_outliers(bound, above_noise(excess, loss.noise_std))
            bias = max(bias, part * self._tail.lost_length(bound))
        if bias > before > 0.0:  # the tails are the same
            self._scores = [replace(each, bias=each.bias * bias / before) for each in self._scores]
        return bias

    def _with_room_for_outliers(
        self, point: ExpansionPoint, frame: Frame, bias: float
    ) -> tuple[ExpansionPoint, float, float]:
        """Return the point with a larger clip bound, if the tail requires one; the new bias; and the ratio of the loss.

        The noise of a score is limited: an error of many standard deviations would be no better than the bias.
        """
        before, noise = point.clip_gradient, 2.0 * self._chain.multiplier("score")  # of a bound of 1, along one axis
        best, _ = self._tail.best_bound(self._bias_of_length, noise * float(np.sqrt(self._directions(frame))))
        bound = min(best, settings.MOST_NOISE_OF_SCORE * float(np.sqrt(self._chain.n_units)) / noise)
        if not bound > settings.LARGER_FOR_OUTLIERS * before:
            return point, bias, 1.0
        left = self._tail.lost_length(bound) / self._tail.lost_length(before)
        return replace(point, clip_gradient=representable(bound)), left * bias, left

    def _lost_length(self, bound: float, loss: Release, expected: float) -> float:
        """Return the root mean square of the norm that clipping removes from scores, given a released loss.

        The prior of the loss is a half-normal distribution with the histogram's root mean square (`expected`). The
        released loss counts at most one bound for each unit; the histogram gives the ratio of the whole loss to it.
        """
        beyond = bound * self._tail.lost_beyond(bound)
        prior, noise = np.float64(max(expected / beyond, np.finfo(float).tiny)), loss.noise_std  # squares: infinite
        kept = 1.0 / (1.0 + (noise / prior) ** 2)
        most = self._chain.n_units  # no unit loses more than one bound
        mean, std = kept * np.clip(loss.value[0], -most, most), np.sqrt(kept) * noise
        from scipy.special import log_ndtr  # noqa: PLC0415  slow to import

        ratio = float(np.clip(mean / max(std, np.finfo(float).tiny), -_FARTHEST_LOSS, _FARTHEST_LOSS))
        hazard = float(np.exp(-0.5 * (ratio**2 + np.log(2.0 * np.pi)) - log_ndtr(ratio)))
        # The second moment of a normal distribution that is truncated to positive values.
        return beyond * float(np.sqrt(max(mean**2 + std**2 + mean * std * hazard, 0.0)))

    def _comparable_scores(self, curvature: KnownCurvature) -> list[KnownScore]:
        """Return all scores, transformed to one quadratic log-likelihood."""
        if not self._regression.follows_growth:
            return self._scores
        return on_one_parabola(self._scores, curvature.matrix, self.places)

    def _scale_ratio(self, before: FloatArray, after: FloatArray) -> FloatArray:
        """Return the ratio of the scales at two points, for parameters of the location; 1 for others."""
        factor, moves = np.ones(before.size), (before - after)[self._regression.followed]
        if moves.size:
            farthest = float(moves[np.argmax(np.abs(moves))])
            factor[self._regression.of_location] = np.exp(-farthest if self._regression.followed_is_rate else farthest)
        return factor

    def _at_scale_of(self, theta: FloatArray, before: FloatArray, curvature: KnownCurvature) -> KnownCurvature:
        """Return the curvature at the scale of a point: that of the location is proportional to its inverse square."""
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
        return theta

    def _rises(self, theta: FloatArray, place: int, value: float, *, by_prior: bool) -> float:
        """Return 1 if the log-posterior increases in a parameter at a value, else -1."""
        at = theta.copy()
        at[place] = value
        made = self._chain.release(self._score_along(at, place, settings.CLIP_OF_BISECTION, "bounded_score"))
        return self._sign(made, float(self._chain.prior.gradient(at)[place]), by_prior=by_prior)

    def _score_along(self, theta: FloatArray, place: int, bound: float, kind: str) -> Query:
        """Return a query of the score by one coordinate: in nonlinear coordinates, by a direction of the parameters."""
        if self._regression.simulated or not self._regression.scale_of_censored.any():
            return BoundedScore(theta, place, bound, kind=kind)
        return PreconditionedScore(ExpansionPoint(theta, along_first_axis(np.eye(theta.size)[place]), bound), kind)

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

    # Directions ---------------------------------------------------------------------------------------------------

    def _diagonal_frame(self, theta: FloatArray) -> Frame:
        """Return a frame in which the entries of scores have equal mean squares, by a histogram for each parameter."""
        made = sum_over_units(self._chain, CoordinateSizes(theta, _LOWEST_OCTAVE, _OCTAVES), 1.0)
        known, scales = self._regression.known, np.ones(theta.size)
        counts = made.value.reshape(theta.size, _OCTAVES)[known]
        members = members_of(self.structure, known)
        scales[known], fourth = _moments_of_scores(counts, made.noise_std, self._chain.n_units, members[known])
        # Every unit belongs to a member: histograms of norms show them.
        self._rareness[known] = np.where(members[known], 1.0, fourth)
        self._weights[known] = (fourth / fourth.min()) ** -settings.POWER_OF_TAILS
        means = np.flatnonzero(self._regression.gathered.any(axis=1))
        if means.size:  # a row has one member: squares add up
            scales[means] = np.sqrt(self._regression.gathered[means] ** 2 @ scales**2)
            self._weights[means] = self._rareness[means] = 1.0
        n_members, n_others = int(members.sum()), int((known & ~members).sum())
        if n_members > n_others > 0:
            self._weights[members] *= (n_others / n_members) ** settings.POWER_OF_MEMBERS
        self._weights[self._regression.scales] = settings.SCALE_IN_NORM
        return Frame(np.diag(self._weights / scales), np.diag(scales / self._weights))

    def _curvature(self, theta: FloatArray, frame: Frame, kind: str) -> KnownCurvature:
        """Release the curvature, without entries between log scales and others, which are large far from the mode."""
        point = ExpansionPoint(theta, frame.preconditioner, np.inf, self._curvature_bound(theta, frame, kind))
        return self._curvature_at(point, frame, kind, between_scales=False)

    def _curvature_at(self, point: ExpansionPoint, frame: Frame, kind: str, *, between_scales: bool) -> KnownCurvature:
        """Release the expected curvature if the model determines the possible responses, else the observed one."""
        query = QUERIES_OF_CURVATURE[self._curvature_kind](point, kind)
        made = sum_over_units(self._chain, query, point.clip_curvature)
        self._first_after_curvature, self._curvature_theta = len(self._scores), point.theta
        raw = unpacked(made.value, self.places.size)
        possible = self.structure
        if not between_scales:
            of_scales = self._regression.is_scale
            possible = possible & (of_scales[:, None] == of_scales[None, :])
        raw = np.where(along_axes(possible, frame), raw, 0.0)
        raw = between_groupings(raw, made.noise_std, frame, self.structure, self._groupings)
        floor = made.noise_std * self.noise_eigenvalue * self._floors[_STAGES.index(made.kind)]
        weights = np.where(self._regression.is_scale, settings.SCALE_IN_NORM, 1.0)
        return floored(
            raw,
            made.noise_std,
            frame,
            self.places,
            floor=floor,
            nonnegative=self.nonnegative,
            unidentified=self._chain.unidentified,
            weights=weights,
        )

    def _together(self, late: KnownCurvature, early: KnownCurvature) -> KnownCurvature:
        """Return two curvatures, pooled by their precisions."""
        floor, possible = self.noise_eigenvalue * self.floor_together, along_axes(self.structure, late.frame)
        return pooled(late, early, possible, floor=floor, nonnegative=self.nonnegative, drifts=self.drifts)

    def _curvature_bound(self, theta: FloatArray, frame: Frame, kind: str, of_score: float = np.inf) -> float:
        """Return the clip bound of a curvature: that of clipped scores, for an expected curvature."""
        size, mean = int(self.places.sum()), self._mean_square
        histogram = self._norms(theta, frame, self._curvature_kind, mean, of_score)
        median = histogram.quantile(0.5, self._chain.n_units)
        if median > settings.WRONG_FRAME * mean:
            mean = median
        factor = np.sqrt(2.0) if self.nonnegative else 2.0  # such matrices have nonnegative inner products
        noise = factor * self._chain.multiplier(kind) * self.noise_eigenvalue
        if kind == "early_curvature" and not self._regression.location_apart:
            bound = histogram.quantile(settings.EARLY_QUANTILE, self._chain.n_units)
        else:
            # A curvature's norm is at most its trace, whose mean is that of the squared norm of scores.
            tail = Tail(histogram, self._chain.n_units, mean=mean, power=1)
            hidden = partial(self._lost_by_rare, histogram, settings.ROOM_FOR_RARE_CURVATURES, 2)
            bound, _ = tail.best_bound(min(1.0, settings.BIAS_OF_CURVATURES / size), noise, hidden=hidden)
        most = max(settings.MOST_NOISE_OF_CURVATURE * mean / size * self._chain.n_units / noise, 2.0 * mean)
        return representable(min(bound, most))

    @property
    def _mean_square(self) -> float:
        """The mean over units of the squared norm of scores by the frame, an upper limit."""
        return float(np.sum(self._weights[self.places] ** 2))

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

    def _frame(self, curvature: KnownCurvature) -> Frame:
        """Return the frame in which a unit's mean curvature is the squared weights; scales come last.

        Where a hierarchical prior has more information on a parameter than the units, its axis is shorter: such lengths
        minimise the product of squared error, in posterior standard deviations, and mean squared norm.
        """
        known = np.flatnonzero(self.places)
        of_scales = np.isin(known, self._regression.scales)
        # Members of hierarchies come first: the Cholesky factor then has the zeros of the curvature.
        order = known[np.lexsort((self.structure[np.ix_(known, known)].sum(axis=1), of_scales))]
        block = np.ix_(order, order)
        per_unit = curvature.matrix[block] / self._chain.n_units
        prior = self._of_prior[block] / self._chain.n_units
        if self._shortens_axes:
            own = np.diag(per_unit)
            per_unit = per_unit + np.diag(np.sqrt(own * (own + np.diag(prior))) - own)
        per_unit = per_unit + settings.LEAST_OF_PRIOR * prior
        missing = missing_of_members(np.diag(curvature.matrix), self._groupings)
        per_unit = per_unit + np.diag(missing[order]) / self._chain.n_units
        values, vectors = np.linalg.eigh(per_unit)
        values = np.maximum(values, 1e-12 * values.max())
        factor = np.linalg.cholesky((vectors * values) @ vectors.T)
        weight = self._weights[order]  # an axis is about that of one parameter, less its projection on the axes before
        preconditioner, back = (np.diag(np.where(self._regression.known, 0.0, 1.0)) for _ in range(2))
        preconditioner[np.ix_(order, order)] = np.linalg.inv(factor).T * weight
        back[np.ix_(order, order)] = factor / weight
        return Frame(preconditioner, back)

    # Scores -------------------------------------------------------------------------------------------------------

    def _score(self, theta: FloatArray, frame: Frame, kind: str) -> KnownScore:
        """Release a score with the best clip bound by a histogram of norms."""
        bound, bias = self._score_bound(theta, frame, kind)
        return self._score_at(ExpansionPoint(theta, frame.preconditioner, bound), frame, bias, kind)

    def _score_bound(self, theta: FloatArray, frame: Frame, kind: str) -> tuple[float, float]:
        """Return the best clip bound of a score, and its expected bias."""
        histogram = self._norms(theta, frame, "score", float(np.sqrt(self._mean_square)))
        self._tail = Tail(histogram, self._chain.n_units, mean=self._mean_square)
        noise = 2.0 * self._chain.multiplier(kind) * np.sqrt(self._directions(frame))
        hidden = partial(self._lost_by_rare, histogram, settings.ROOM_FOR_RARE, 1)
        bound, bias = self._tail.best_bound(self._bias_of_length, noise, hidden=hidden)
        bound = representable(bound)
        if self._regression.follows_growth:
            kept = self._log_norm(theta, frame, bound) - self._curvature_norm[1]
            known = np.isfinite(kept)  # false where noise hides norms
            self._slope_kept = float(np.clip(np.exp(kept), settings.LEAST_SLOPE_KEPT, 1.0)) if known else 1.0
        return bound, bias

    def _lost_by_rare(self, histogram: Histogram, room: float, power: int, bound: float) -> float:
        """Return the norm beyond a bound of units that alone have information on a parameter, summed over these.

        With `power` 2 the norm is that of their curvatures. Histograms of norms hide such units, those of the
        parameter's own scores do not. If one unit of r has information on it, the norm of its score is the root of r.
        """
        n_units, rareness, weights = self._chain.n_units, self._rareness[self.places], self._weights[self.places]
        longer = np.clip((room * weights * np.sqrt(rareness)) ** power - bound, 0.0, None)
        hidden = n_units / rareness < settings.HIDDEN_UNITS * histogram.noise_std
        return float(n_units * np.max(longer / rareness, where=hidden, initial=0.0))

    @property
    def _bias_of_length(self) -> float:
        """The part of a lost norm that adds to the bias: it is shared among many directions."""
        squares = self._weights[self.places] ** 2
        directions = float(np.sum(squares)) ** 2 / float(np.sum(squares**2))
        spread = settings.BIAS_OF_GROUPS if self._has_members else settings.BIAS_OF_DIRECTIONS
        return min(self.bias_of_loss, spread / float(np.sqrt(directions)))

    @property
    def reported_bias(self) -> float:
        """The part of a lost norm that is reported as a bias; with corrected slopes, that in V."""
        if self._corrects_slopes:
            return settings.BIAS_LEFT * self._bias_of_length
        return settings.REPORTED_BIAS if self.bias_of_loss < 1.0 else 1.0

    def _score_at(self, point: ExpansionPoint, frame: Frame, bias: float, kind: str) -> KnownScore:
        """Release a score; return it in the parameters."""
        made = sum_over_units(self._chain, self.score(point, kind), point.clip_gradient)
        value = made.value + self._mean_removed(point)
        kept = self._kept(point)
        noise = np.where(self._regression.known[:, None], frame.back, 0.0) * (made.noise_std / kept)
        gradient = np.where(self._regression.known, frame.back @ (value / kept), 0.0)
        left = settings.BIAS_LEFT if self._corrects_slopes else 1.0
        return KnownScore(made.where[0], gradient, noise, left * bias / kept, self._level)

    def _mean_removed(self, point: ExpansionPoint) -> FloatArray:
        """Return the mean to add back to a clipped score: zero here, as each unit adds its own."""
        return np.zeros(point.theta.size)

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

    def _bound_of_own_score(self, theta: FloatArray, place: int, unit: float) -> tuple[float, float]:
        """Return the clip bound of the score of one parameter, and its expected bias."""
        histogram = self._norms_along(theta, place, unit, "scale_sizes")
        tail = Tail(histogram, self._chain.n_units, mean=settings.MEAN_SQUARE_OF_OWN_SCORE)
        bound, _ = tail.best_bound(1.0, 2.0 * self._chain.multiplier("scale_score"))
        bound = max(bound, settings.LEAST_OF_OWN_SCORE)
        bias = float(np.hypot(tail.lost_length(bound), tail.hidden_length(bound)))
        return representable(unit * bound), unit * bias

    @property
    def _corrects_slopes(self) -> bool:
        """Whether scores are divided by the remaining part of their slopes: for clipped members of hierarchies.

        Clipping reduces a score about in proportion to the distance to the maximum, which a hierarchy would take for a
        small variance of members. Others lose little: the distance vanishes as steps converge.
        """
        return self._has_members and self._regression.one_row_a_unit

    def _kept(self, point: ExpansionPoint) -> float:
        """Return the part of the slope of scores that clipping leaves.

        Histograms of curvatures give it; else, for members of hierarchies, the histogram of norms does. At a maximum of
        a correct model it is the mean over units of the product of clipped and whole score, over that of squares. If
        log-likelihoods are smooth in the response, clipped scores are constant.
        """
        if self._regression.follows_growth:
            return self._slope_kept
        if not self._corrects_slopes:
            return 1.0
        kept_of = self._tail.squares_kept if self._regression.kinked.any() else self._tail.units_kept
        return max(kept_of(point.clip_gradient), settings.LEAST_KEPT)

    def _norms_along(self, theta: FloatArray, place: int, unit: float, kind: str) -> Histogram:
        """Release a histogram of the absolute values of one entry of scores, over `unit`."""
        axis = np.zeros((theta.size, theta.size))
        axis[place, place] = 1.0 / unit
        return self._norms(theta, Frame(axis, axis), "score", 1.0, kind=kind)

    def _norms(
        self, theta: FloatArray, frame: Frame, of: str, typical: float, clip_gradient: float = np.inf, kind: str = ""
    ) -> Histogram:
        """Release a histogram of norms; return its mean with the last one."""
        histogram = self._histogram(theta, frame, of, typical, clip_gradient, kind)
        of_what = f"{of} of {self._directions(frame)}"
        self._histograms[of_what] = histogram.with_earlier(self._histograms.get(of_what), settings.TRUST_IN_EARLIER)
        return self._histograms[of_what]

    def _histogram(
        self, theta: FloatArray, frame: Frame, of: str, typical: float, clip_gradient: float = np.inf, kind: str = ""
    ) -> Histogram:
        """Release a histogram of norms."""
        smallest = typical * 2.0 ** (LOWEST_HALF_OCTAVE / 2)
        point = ExpansionPoint(theta, frame.preconditioner, clip_gradient)
        kind = kind or ("score_sizes" if of == "score" else "curvature_sizes")
        made = sum_over_units(self._chain, NormSizes(point, of, smallest, BINS, kind), 1.0)  # type: ignore[arg-type]
        n_units, counts = self._chain.n_units, made.value
        counts = counts + (n_units - counts.sum()) / BINS  # every unit is in one bin
        return Histogram(counts, made.noise_std, smallest)

    def _directions(self, frame: Frame) -> int:
        """Return the number of directions of a frame."""
        return int(np.any(frame.preconditioner[:, self._regression.known] != 0.0, axis=0).sum())

    # Steps --------------------------------------------------------------------------------------------------------

    def _stepped(self, theta: FloatArray, curvature: KnownCurvature, trust: float) -> FloatArray:
        """Return about the posterior mean given the scores, or the end of a step within the trust region.

        The error of the curvature is proportional to the distance: with it in the likelihood's variance, a hierarchy
        would shrink every step, and the distance would remain.
        """
        try:
            belief = self._belief(self._along_coordinates(curvature), noise_alone=True)
        except NUMERICAL_FAILURES:  # the next score may be less noisy
            return theta
        return self._moved_to_mean(belief, theta, trust)

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
            found = most_likely(self._chain.prior, belief, theta, ~self._regression.known)
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

    def _log_norm(self, theta: FloatArray, frame: Frame, clip_gradient: float = np.inf) -> float:
        """Return the logarithm of the mean norm of units' expected curvatures, not finite where noise hides it."""
        made = self._histogram(theta, frame, self._curvature_kind, self._mean_square, clip_gradient, "growth_sizes")
        return made.log_mean(self._chain.n_units)

    def _moved_to_mean(self, belief: Belief, theta: FloatArray, trust: float) -> FloatArray:
        """Return about the posterior mean given a likelihood, or the end of a step within the trust region."""
        try:
            step = self._whole_step(belief, theta)
        except NUMERICAL_FAILURES:
            return theta
        return self._end_of(step, belief, theta, trust)

    def _whole_step(self, belief: Belief, theta: FloatArray) -> FloatArray:
        """Return the step to about the posterior mean given a likelihood."""
        step = most_likely(self._chain.prior, belief, theta, ~self._regression.known) - theta
        degrees = self._regression.degrees_of_freedom
        step[degrees] = reciprocal_step(step[degrees])
        most = settings.MOST_STEP_OF_SCALE
        step[self._regression.scales] = np.clip(step[self._regression.scales], -most, most)
        return step

    def _end_of(self, step: FloatArray, belief: Belief, theta: FloatArray, trust: float) -> FloatArray:
        """Return the end of a step, shortened to the trust region."""
        prior = self._chain.prior
        length = float(np.sqrt(np.maximum(step @ belief.information @ step, 0.0) / self._chain.n_units))
        shorter = min(1.0, trust / max(length, np.finfo(float).tiny))
        self._shortened = shorter < 1.0
        step = np.where(self.places, shorter * step, step)
        ends = (theta + np.where(self.places, part * step, step) for part in (1.0, 0.5, 0.25, 0.1))
        end = next((end for end in ends if finite_prior_at(prior, end)), None)
        if end is None:
            return theta
        self._of_prior = self._prior_information(end)
        self._shortens_axes = not self._regression.known.all()
        return end

    def _prior_information(self, theta: FloatArray) -> FloatArray:
        """Return the prior's information on the scores' parameters, given all others; zero where not finite."""
        with contextlib.suppress(*NUMERICAL_FAILURES):
            curvature = prior_curvature(self._chain.prior, theta, np.flatnonzero(self.places))
            if np.isfinite(curvature).all():
                return embedded(curvature, self.places)
        return np.zeros((theta.size, theta.size))


def sum_over_units(chain: ChainAccess, query: Query, bound: float) -> Release:
    """Release a sum, truncated at the number of units times the bound of one."""
    made, most = chain.release(query), bound * chain.n_units
    return replace(made, value=np.clip(made.value, -most, most))


def last_step(
    scores: Sequence[KnownScore], curvature: KnownCurvature, places: NDArray[np.bool_]
) -> tuple[float, float, FloatArray, float]:
    """Return the relative decrease of the score along the last step, by the curvature's prediction, and its noise.

    The last two results are the curvature times the step, and the quadratic form. The curvature is that at the end of
    the step, along which it grew as the levels of the scores indicate.
    """
    before, after = scores[-2:]
    step = np.where(places, after.theta - before.theta, 0.0)
    along = curvature.matrix @ step
    expected = max(float(step @ along), np.finfo(float).tiny)
    fall = expected * mean_of_exponential(before.level - after.level)
    found = float(step @ (before.gradient - after.gradient)) / fall
    noise = float(np.hypot(np.linalg.norm(before.noise.T @ step), np.linalg.norm(after.noise.T @ step))) / fall
    return found, noise, along, expected


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


def _noise_eigenvalue(possible: NDArray[np.bool_]) -> float:
    """Return about the largest eigenvalue of a noise matrix with these entries: √(2d) for a full one."""
    rng, size = np.random.default_rng(0), len(possible)
    draws = (unpacked(rng.standard_normal(size * (size + 1) // 2), size) for _ in range(4))
    return float(np.mean([np.linalg.norm(np.where(possible, draw, 0.0), ord=2) for draw in draws]))


def along_axes(possible: NDArray[np.bool_], frame: Frame) -> NDArray[np.bool_]:
    """Return the entries that a matrix can have along the axes of a frame, given those that it can have."""
    magnitudes = np.abs(frame.preconditioner)
    touched = (magnitudes > _ROUNDING * magnitudes.max(axis=0, keepdims=True)).astype(np.float64)
    return touched.T @ possible @ touched > 0.0


def _moments_of_scores(
    counts: FloatArray, noise_std: float, n_units: int, members: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """Return the root mean square of units' scores for every parameter, and their kurtosis about zero.

    The counts are by octave. Counts within noise are omitted, and an allowance for hidden ones is added. A parameter
    whose scores are all hidden gets the magnitude of the others' for as many units as noise could hide. For `members`
    of groups the summed counts limit those hidden of one, and tails are equal.
    """
    octaves = _LOWEST_OCTAVE + np.arange(_OCTAVES)
    counts = counts.copy()
    counts[:, 0] = -np.inf  # zeros are in the first bin
    largest = counts.argmax(axis=1)
    from_largest = np.arange(_OCTAVES) - largest[:, None]
    seen = np.where((from_largest >= -6) & (from_largest <= 3), 2.5, settings.CLEAR_COUNT_FAR_AWAY) * noise_std
    big = np.where(counts > seen, counts, 0.0)
    visible = counts.max(axis=1) > 4.5 * noise_std  # about the largest of many counts of noise alone
    top = [octaves[np.flatnonzero(row)[-1]] for row in big[visible]]
    typical = float(np.median(top)) if top else 0.0
    # The sum of three neighbouring octaves may exceed noise where none of them does.
    near = np.where((np.abs(octaves - typical) <= _NEAR_TYPICAL) & (octaves > octaves[1]), counts, -np.inf)
    triples = near[:, :-2] + near[:, 1:-1] + near[:, 2:]
    could_hide = 4.5 * np.sqrt(3.0) * noise_std
    for row in np.flatnonzero(~visible & (triples.max(axis=1) > could_hide)):
        largest[row] = place = int(triples[row].argmax()) + 1
        big[row] = 0.0
        big[row, place - 1 : place + 2] = np.maximum(counts[row, place - 1 : place + 2], 0.0)
        visible[row] = True
    squares = (big * 4.0 ** (octaves + 0.5)).sum(axis=1) / n_units
    unseen = noise_std / n_units * 4.0 ** (octaves[largest] + 3.5)
    unseen = np.minimum(unseen, settings.MOST_UNSEEN * squares)  # for few units it would dominate
    hidden = 4.0**typical * min(could_hide / n_units, 1.0)
    found: FloatArray = np.sqrt(np.where(visible, squares + unseen, hidden))
    clear = np.where(counts > np.maximum(seen, 3.5 * noise_std), counts, 0.0)
    relative = 4.0 ** (from_largest.astype(np.float64))
    second, fourth = ((clear * relative**power).sum(axis=1) / n_units for power in (1, 2))
    rarest = max(n_units / (3.5 * noise_std), 1.0)  # noise hides fewer units
    tails: FloatArray = np.where(visible, fourth / np.maximum(second, 1.0 / n_units) ** 2, rarest)
    tails = np.clip(tails, 1.0, rarest)
    if members.any():
        size, together = int(members.sum()), counts[members].sum(axis=0)
        together = np.where(together > 4.5 * noise_std * np.sqrt(size), together, 0.0)
        if together.any():
            of_one = float(together @ 4.0 ** (octaves + 0.5)) / n_units / size
            found[members] = np.minimum(found[members], np.sqrt(np.maximum(squares[members], of_one)))
        tails[members] = np.median(tails[members])
    return found, tails
