"""The releases of a search: scores and curvatures along the axes of a frame, each with the best clip bound.

A histogram of norms is released first. By it the bound is chosen that balances the noise, which is proportional to the
bound, and the bias by what clipping removes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint, Release
from pymc_dp.release.preconditioned import CentredScore, ExpectedCurvature, OneDirectionCurvature, PreconditionedScore
from pymc_dp.release.queries import Curvature
from pymc_dp.release.query import Query
from pymc_dp.release.sizes import BoundedScore, CoordinateSizes, NormSizes
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import KnownScore
from pymc_dp.steps.prelude.curvature import (
    KnownCurvature,
    along_axes,
    between_groupings,
    floored,
    groupings_of,
    members_of,
    missing_of_members,
    noise_eigenvalue,
    pooled,
)
from pymc_dp.steps.prelude.newton import (
    Frame,
    along_first_axis,
    prior_information,
    representable,
    unpacked,
)
from pymc_dp.steps.prelude.regression import STAGES, Regression
from pymc_dp.steps.prelude.tails import (
    BINS,
    LOWEST_HALF_OCTAVE,
    LOWEST_OCTAVE,
    OCTAVES,
    Histogram,
    Tail,
    above_noise,
    moments_of_scores,
)

#: The query of a curvature, by the name of its histograms.
QUERIES_OF_CURVATURE: dict[str, Callable[[ExpansionPoint, str], Query]] = {
    "expected_curvature": ExpectedCurvature,
    "curvature": Curvature,
    "one_direction_curvature": OneDirectionCurvature,
}
#: The largest standardised clipping loss: its square stays finite.
_FARTHEST_LOSS = 1e3


class ReleasesOfSearch:
    """The releases of a search for the centre of a regression, and what they depend on."""

    #: Whether the curvature depends on the point.
    drifts = True
    #: Whether scores and curvatures are those of the location alone.
    of_location_alone = False
    #: The query of a score: with the mean of its clipped part added back, where the model determines it.
    score: type[CentredScore | PreconditionedScore] = CentredScore

    def __init__(self, chain: ChainAccess, regression: Regression) -> None:
        self._chain, self._regression = chain, regression
        self._histograms: dict[str, Histogram] = {}
        self._scores: list[KnownScore] = []
        #: The number of scores released before the last curvature, and the point of that.
        self._first_after_curvature, self._curvature_theta = 0, regression.start
        #: The logarithm of the curvature relative to that at the start; and the part of the slope of scores that
        #: clipping leaves.
        self._level, self._slope_kept = 0.0, 1.0
        #: A frame, and the logarithm of the mean norm of units' curvatures along it.
        self._curvature_norm: tuple[Frame, float]
        self._tail: Tail  # of the norms of the last score
        #: The weight of each axis of a frame in norms: smaller if scores have long tails, so that few norms are large.
        self._weights = np.ones(regression.known.size)
        #: The concentration of a parameter's scores on few units: their kurtosis about zero.
        self._rareness = np.ones(regression.known.size)
        #: The parameters of scores and curvatures.
        self.places = regression.known.copy()
        if self.of_location_alone:
            self.places[regression.scales] = False
        #: The prior's information at the end of the last step, given the scales of hierarchies; and whether it shortens
        #: axes: after a step, for a hierarchy.
        self._of_prior, self._shortens_axes = prior_information(chain.prior, regression.start, self.places), False
        structure = chain.structure
        #: The entries of curvatures that the model's graph allows.
        self.structure = np.ones((regression.known.size,) * 2, dtype=bool) if structure is None else structure
        self._groupings = groupings_of(self.structure, self.places)
        self._has_members = any(each.size > 1 for each in self._groupings)
        expected = chain.knows_responses
        #: The largest eigenvalue of noise alone, in standard deviations of its entries.
        self.noise_eigenvalue = noise_eigenvalue(self.structure[np.ix_(self.places, self.places)])
        self._curvature_kind = "expected_curvature" if expected else "curvature"
        #: Whether released curvatures have no negative eigenvalue except by noise.
        self.nonnegative = expected
        #: Floors of eigenvalues by stage, and of pooled curvatures, relative to the largest of noise alone.
        self._floors = settings.FLOORS_OF_EXPECTED if expected else settings.FLOORS_OF_OBSERVED
        self.floor_together = self._floors[-1]
        #: The part of the norm that clipping removes that adds to the bias of the sum of scores.
        self.bias_of_loss = settings.BIAS_OF_CENTRED if regression.centred else settings.BIAS_OF_CLIPPED

    # Frames -----------------------------------------------------------------------------------------------------------

    def _diagonal_frame(self, theta: FloatArray) -> Frame:
        """Return a frame in which the entries of scores have equal mean squares, by a histogram for each parameter."""
        made = sum_over_units(self._chain, CoordinateSizes(theta, LOWEST_OCTAVE, OCTAVES), 1.0)
        known, scales = self._regression.known, np.ones(theta.size)
        counts = made.value.reshape(theta.size, OCTAVES)[known]
        members = members_of(self.structure, known)
        scales[known], fourth = moments_of_scores(counts, made.noise_std, self._chain.n_units, members[known])
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

    @property
    def tails_of_axes(self) -> tuple[FloatArray, FloatArray]:
        """The weights of axes, and the concentration of scores on few units, by the histograms of each parameter."""
        return self._weights, self._rareness

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

    def _together_in_groups(self, moved: NDArray[np.bool_]) -> FloatArray:
        """Return directions of the `moved` parameters, with all members of a grouping together, as columns."""
        groups = [each[moved[each]] for each in self._groupings]
        found = np.zeros((moved.size, len(groups)))
        for number, members in enumerate(groups):
            found[members, number] = 1.0
        return found[:, found.any(axis=0)]

    def _directions(self, frame: Frame) -> int:
        """Return the number of directions of a frame."""
        return int(np.any(frame.preconditioner[:, self._regression.known] != 0.0, axis=0).sum())

    # Curvatures -------------------------------------------------------------------------------------------------------

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
        floor = made.noise_std * self.noise_eigenvalue * self._floors[STAGES.index(made.kind)]
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

    # Scores -----------------------------------------------------------------------------------------------------------

    def _score(self, theta: FloatArray, frame: Frame, kind: str) -> KnownScore:
        """Release a score with the best clip bound by a histogram of norms."""
        bound, bias = self._score_bound(theta, frame, kind)
        return self._score_at(ExpansionPoint(theta, frame.preconditioner, bound), frame, bias, kind)

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

    @property
    def _corrects_slopes(self) -> bool:
        """Whether scores are divided by the remaining part of their slopes: for clipped members of hierarchies.

        Clipping reduces a score about in proportion to the distance to the maximum, which a hierarchy would take for a
        small variance of members. Others lose little: the distance vanishes as steps converge.
        """
        return self._has_members and self._regression.one_row_a_unit

    def _score_along(self, theta: FloatArray, place: int, bound: float, kind: str) -> Query:
        """Return a query of the score by one coordinate: in nonlinear coordinates, by a direction of the parameters."""
        if self._regression.simulated or not self._regression.scale_of_censored.any():
            return BoundedScore(theta, place, bound, kind=kind)
        return PreconditionedScore(ExpansionPoint(theta, along_first_axis(np.eye(theta.size)[place]), bound), kind)

    # Clip bounds of scores --------------------------------------------------------------------------------------------

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

    def _bound_of_own_score(self, theta: FloatArray, place: int, unit: float) -> tuple[float, float]:
        """Return the clip bound of the score of one parameter, and its expected bias."""
        histogram = self._norms_along(theta, place, unit, "scale_sizes")
        tail = Tail(histogram, self._chain.n_units, mean=settings.MEAN_SQUARE_OF_OWN_SCORE)
        bound, _ = tail.best_bound(1.0, 2.0 * self._chain.multiplier("scale_score"))
        bound = max(bound, settings.LEAST_OF_OWN_SCORE)
        bias = float(np.hypot(tail.lost_length(bound), tail.hidden_length(bound)))
        return representable(unit * bound), unit * bias

    # Histograms -------------------------------------------------------------------------------------------------------

    def _norms(
        self, theta: FloatArray, frame: Frame, of: str, typical: float, clip_gradient: float = np.inf, kind: str = ""
    ) -> Histogram:
        """Release a histogram of norms; return its mean with the last one."""
        histogram = self._histogram(theta, frame, of, typical, clip_gradient, kind)
        of_what = f"{of} of {self._directions(frame)}"
        self._histograms[of_what] = histogram.with_earlier(self._histograms.get(of_what), settings.TRUST_IN_EARLIER)
        return self._histograms[of_what]

    def _norms_along(self, theta: FloatArray, place: int, unit: float, kind: str) -> Histogram:
        """Release a histogram of the absolute values of one entry of scores, over `unit`."""
        axis = np.zeros((theta.size, theta.size))
        axis[place, place] = 1.0 / unit
        return self._norms(theta, Frame(axis, axis), "score", 1.0, kind=kind)

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

    def _log_norm(self, theta: FloatArray, frame: Frame, clip_gradient: float = np.inf) -> float:
        """Return the logarithm of the mean norm of units' expected curvatures, not finite where noise hides it."""
        made = self._histogram(theta, frame, self._curvature_kind, self._mean_square, clip_gradient, "growth_sizes")
        return made.log_mean(self._chain.n_units)


def sum_over_units(chain: ChainAccess, query: Query, bound: float) -> Release:
    """Release a sum, truncated at the number of units times the bound of one."""
    made, most = chain.release(query), bound * chain.n_units
    return replace(made, value=np.clip(made.value, -most, most))
