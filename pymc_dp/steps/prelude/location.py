r"""The search for the centre of a normal regression with one scale: location and scale are estimated separately.

The information of the location is a constant matrix over the squared scale. It is therefore released before any score,
four times, and rescaled at no cost afterwards. Scores of the location alone lead to the centre in a few
steps from any distance; between them the scale is estimated again, as the squared residuals decrease.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`A / \sigma^2`      `KnownCurvature`: information of the location
:math:`\log \sigma`       the entry `scale` of the parameters
:math:`\sum z^2 - n`      the score of the logarithm of the scale
========================  ==========================================================
"""

from dataclasses import replace

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.sizes import BoundedScore
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import Belief
from pymc_dp.steps.prelude.curvature import KnownCurvature, after_step, along_axes
from pymc_dp.steps.prelude.newton import NUMERICAL_FAILURES, Frame, representable
from pymc_dp.steps.prelude.regression import Regression
from pymc_dp.steps.prelude.search import Found, Search
from pymc_dp.steps.prelude.tails import Tail, above_noise

#: Information of the logarithm of a normal scale, of one row.
_INFORMATION_OF_SCALE = 2.0
#: The log scale beyond all residuals, relative to the start: 1e13 times as large, within single precision.
_BEYOND_RESIDUALS = 30.0
#: The largest change of the log scale by one score.
_MOST_CHANGE_OF_SCALE = 3.0


class SearchForLocation(Search):
    """The search for the centre of a normal regression. Parameters as of `Search`."""

    third_order, drifts, of_location_alone = 0.0, False, True

    def __init__(self, chain: ChainAccess, regression: Regression, *bounds: float | None, releases_loss: bool) -> None:
        super().__init__(chain, regression, *bounds, releases_loss=releases_loss)
        self._curvature_kind = "one_direction_curvature"
        # Each row has a nonnegative curvature in one direction.
        self.nonnegative, self._floors = True, settings.FLOORS_OF_EXPECTED
        # Several releases are of one matrix: an eigenvalue small in all of them is small.
        self.floor_together = settings.FLOOR_OF_LOCATION
        # Residuals of either sign are clipped, equally many where they are symmetric.
        self.bias_of_loss = settings.BIAS_OF_LOCATION
        self._rows = 1.0  # the mean number in a unit
        self._scale = int(regression.followed[0])

    def run(self) -> Found:
        """Search, and expand at the end of the search. Nothing is raised except numerical failures."""
        theta = self._bisected(self._regression.start, first=True)
        curvature = self.information(theta)
        for _ in range(self._regression.steps):
            theta, curvature = self._towards(theta, curvature, "approach")
            change = self._change_of_scale(theta, 0.0, "scale_approach")[0]
            theta, curvature = self._at_other_scale(theta, curvature, change)
        theta, curvature = self._towards(theta, curvature, "centre")
        return self._expanded(theta, curvature)

    def information(self, theta: FloatArray) -> KnownCurvature:
        """Release the information of the location several times, each along axes that the earlier ones whiten."""
        if not self._regression.one_row_a_unit:
            self._rows = self._rows_of_units()
        diagonal = self._diagonal_frame(theta)
        frame = Frame(diagonal.preconditioner * self.places, diagonal.back * self.places)
        curvature = self._curvature(theta, frame, "early_curvature")
        for kind in (*["middle_curvature"] * settings.MIDDLE_OF_LOCATION, "late_curvature"):
            curvature = self._together(self._curvature(theta, self._frame(curvature), kind), curvature)
        return curvature

    @property
    def n_rows(self) -> float:
        """The number of rows, if units of several rows have released it."""
        return self._rows * self._chain.n_units

    def _rows_of_units(self) -> float:
        """Release the mean number of rows in a unit.

        At a scale beyond all residuals the score of its logarithm is minus one for each row.
        """
        theta, n_units = self._regression.start.copy(), self._chain.n_units
        theta[self._scale] += _BEYOND_RESIDUALS
        tail = Tail(self._norms_along(theta, self._scale, 1.0, "score_sizes"), n_units)
        self._histograms = {}
        most, _ = tail.best_bound(1.0, self._chain.multiplier("row_count"))
        most = representable(max(most, 1.0))
        made = self._chain.release(BoundedScore(theta, self._scale, 0.5 * most, -0.5 * most, "row_count"))
        return float(np.clip(0.5 * most - made.value[0] / n_units, 1.0, most))

    def _expanded(self, theta: FloatArray, curvature: KnownCurvature) -> Found:
        """Release curvature, score and score of the scale at the centre; return the result of the search."""
        found = super()._expanded(theta, curvature)
        belief = found.belief
        near = self._moved_to_mean(belief, theta, np.inf)
        # Squared residuals exceed those at the maximum by the squared displacement due to noise.
        by_chance = belief.squared_noise_given(self._of_prior) / self.n_rows
        change, noise, bias = self._change_of_scale(near, by_chance, "scale_score")
        mean, smaller = belief.mean.copy(), float(np.exp(-2.0 * change))
        mean[self._scale] = theta[self._scale] + change
        information, noises, biases = belief.information * smaller, belief.noise.copy(), belief.bias.copy()
        information[self._scale, self._scale] = _INFORMATION_OF_SCALE * self.n_rows
        noises[self._scale, self._scale], biases[self._scale, self._scale] = noise**2, bias**2
        return replace(found, belief=Belief(mean, information, noises, biases, self._regression.known))

    def _towards(self, theta: FloatArray, curvature: KnownCurvature, kind: str) -> tuple[FloatArray, KnownCurvature]:
        """Release a score of the location; return the end of the step, and the curvature that scores imply."""
        self._scores.append(self._score(theta, self._frame(curvature), kind))
        curvature = self._after_step(curvature)
        self._histograms = {}
        whole = self._belief(curvature)
        by_chance = whole.squared_noise_given(self._of_prior)
        try:
            belief = self._belief(curvature, noise_alone=True)
            mean = theta + self._whole_step(belief, theta)
            shrunk, kept = self._shrunk(mean, whole)
        except NUMERICAL_FAILURES:  # the next score may be less noisy
            return theta, curvature
        end = self._end_of(shrunk - theta, belief, theta, settings.TRUST_OF_LOCATION * self._rows**0.5)
        # Squared residuals fall by the squared distance to the maximum, and rise by that from it to the end. The mean
        # is away from the maximum by noise, with which the end correlates as far as it follows the mean (Stein).
        explained, missed = (self._squared(mean - each, curvature) - by_chance for each in (theta, end))
        left = max(1.0 - max(0.0, explained) / self.n_rows, settings.LEAST_LEFT)
        left += max(missed + 2.0 * kept * by_chance, 0.0) / self.n_rows
        return self._at_other_scale(end, curvature, 0.5 * float(np.log(left)))

    def _squared(self, displacement: FloatArray, curvature: KnownCurvature) -> float:
        """Return the squared length of a displacement of the location, in the metric of the information."""
        along = np.where(self.places, displacement, 0.0)
        return float(along @ curvature.matrix @ along)

    def _at_other_scale(
        self, theta: FloatArray, curvature: KnownCurvature, change: float
    ) -> tuple[FloatArray, KnownCurvature]:
        """Return a point and the information of the location after a change of the log scale."""
        end = theta.copy()
        end[self._scale] += change
        end = self._regression.within(end)
        return end, self._at_scale_of(end, theta, curvature)

    def _after_step(self, curvature: KnownCurvature) -> KnownCurvature:
        """Return the curvature, updated by the change between the last two scores."""
        if len(self._scores) < 2:
            return curvature
        after = self._scores[-1]
        before = self._score_at_scale(self._scores[-2], after.theta)
        return after_step(
            curvature,
            after.theta - before.theta,
            before.gradient - after.gradient,
            before.noise @ before.noise.T + after.noise @ after.noise.T,
            along_axes(self.structure, curvature.frame),
            floor=self.noise_eigenvalue * self.floor_together,
            nonnegative=self.nonnegative,
        )

    def _change_of_scale(self, theta: FloatArray, nearer: float, kind: str) -> tuple[float, float, float]:
        """Release the score of the log scale; return the change to its zero, with its noise and bias."""
        bound, bias = self._bound_of_scale(theta, kind)
        excess, noise = self._excess_of_squares(theta, bound, kind)
        if kind == "scale_score":
            wide, wide_noise = self._excess_of_squares(theta, settings.WIDER_OF_SCALE * bound, "wide_scale_score")
            outliers, of_noise = wide - excess, float(np.hypot(noise, wide_noise))
            bias = min(bias, max(outliers, 0.0) + of_noise)  # more would show, but in the noise of a histogram
            bias = float(np.hypot(bias, above_noise(outliers, of_noise)))
            if outliers > settings.CLEARLY_WIDER * of_noise:
                excess, noise, bias = wide, wide_noise, settings.BEYOND_WIDER * outliers
        most = np.exp(2.0 * _MOST_CHANGE_OF_SCALE)
        left = float(np.clip(1.0 + excess - nearer, 1.0 / most, most))
        return 0.5 * float(np.log(left)), 0.5 * noise / left, 0.5 * bias / left

    def _bound_of_scale(self, theta: FloatArray, kind: str) -> tuple[float, float]:
        """Return the clip bound of a score of the scale, in standard deviations, and the bias of the mean square."""
        n_units, unit, most = self._chain.n_units, self._unit_of_scale, settings.MOST_OF_SCALE
        if self._regression.one_row_a_unit:  # squares of one person are alike: tails are long
            noise = settings.MOST_NOISE_OF_SCALE * float(np.sqrt(_INFORMATION_OF_SCALE * n_units))
            most = min(most, (noise / self._chain.multiplier(kind) - self._least_of_squares) / unit)
        tail = Tail(self._norms_along(theta, self._scale, unit, "score_sizes"), n_units)

        def of_normal(bound: float) -> float:  # the loss that is added back
            return n_units * self._lost_of_squares(bound) / unit

        best, _ = tail.best_bound(settings.BIAS_OF_CENTRED, self._chain.multiplier(kind), of_normal)
        bound = float(np.clip(best, self._least_of_scale, max(most, self._least_of_scale)))
        bias = settings.BIAS_OF_CENTRED * tail.lost_length(bound, of_normal(bound))
        return bound, unit * bias / self.n_rows

    @property
    def _unit_of_scale(self) -> float:
        return float(np.sqrt(_INFORMATION_OF_SCALE * self._rows))

    @property
    def _least_of_scale(self) -> float:
        """The least bound: for normal residuals it clips the same part of units as that of single rows."""
        from scipy.special import chdtrc, chdtri  # noqa: PLC0415  slow to import

        beyond = chdtrc(1.0, 1.0 + settings.LEAST_OF_SCALE * _INFORMATION_OF_SCALE**0.5)
        return float(chdtri(self._rows, beyond) - self._rows) / self._unit_of_scale

    @property
    def _least_of_squares(self) -> float:
        """Minus the lower clip bound of a sum of squares less the number of rows.

        The sum is at least minus that number: the interval is half as long as one around zero for single rows. Units
        with many more rows than most are clipped.
        """
        return self._rows if self._regression.one_row_a_unit else settings.LEAST_OF_SQUARES * self._rows

    def _excess_of_squares(self, theta: FloatArray, bound: float, kind: str) -> tuple[float, float]:
        """Release the mean squared residual less 1, with squares clipped; return it with its noise."""
        n_units = self._chain.n_units
        least = self._least_of_squares
        half = 0.5 * (self._unit_of_scale * bound + least)
        made = self._chain.release(BoundedScore(theta, self._scale, half, half - least, kind))
        excess = float(np.clip(made.value[0] / n_units, -half, half)) + half - least + self._lost_of_squares(bound)
        return excess / self._rows, made.noise_std / self.n_rows

    def _lost_of_squares(self, bound: float) -> float:
        """Return the part of a unit's squared residuals that clipping removes, for normal residuals."""
        rows, most = self._rows, self._rows + bound * self._unit_of_scale
        from scipy.special import chdtrc  # noqa: PLC0415  slow to import

        # The mean of (a sum of squares - most)+ by the distribution functions of two chi-squared distributions.
        return float(rows * chdtrc(rows + 2.0, most) - most * chdtrc(rows, most))


def missed_by_quadratic(belief: Belief, scale: int, draws: FloatArray) -> FloatArray:
    """Return the remainder of a normal regression's log-likelihood beyond a quadratic at draws, shape (draws,).

    It needs no release. For n rows, whose information on the log scale is 2n, and the squared distance q of the
    location from the maximum, the log-likelihood at exp(d) times the maximum's scale is -n d - (n + q) exp(-2 d) / 2.
    The maximum is uncertain by noise: the result is the mean over its distribution, given the draw and the belief, with
    the belief's curvature and noise taken as exact.
    """
    known = belief.known
    block, scale = np.ix_(known, known), int(np.flatnonzero(known).searchsorted(scale))
    information, offsets = belief.information[block], (draws - belief.mean)[:, known]
    rows = float(information[scale, scale]) / _INFORMATION_OF_SCALE
    without_noise = np.linalg.inv(information)
    pulled = without_noise @ belief.precision[block]
    distances, variance = offsets @ pulled.T, without_noise - pulled @ without_noise
    log_ratio, of_log_ratio = distances[:, scale].copy(), float(variance[scale, scale])
    distances[:, scale] = variance[scale] = 0.0
    squared = np.einsum("di,ij,dj->d", distances, information, distances) + float(np.sum(information * variance))
    inverse_square = np.expm1(2.0 * (of_log_ratio - log_ratio))  # the mean of exp(-2 d) less 1
    missed: FloatArray = rows * (log_ratio**2 - log_ratio) - 0.5 * (rows + squared) * inverse_square
    return missed
