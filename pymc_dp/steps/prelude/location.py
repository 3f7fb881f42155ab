r"""The search for the centre of a normal regression with one scale: location and scale are found apart.

The information of the location is a constant matrix over the squared scale. It is therefore released before any score,
four times, and follows the scale for nothing from then on. Scores of the location alone lead to the centre in a few
steps, however far away that is; between them the scale is found again, for the squared residuals shrink on the way.

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
from pymc_dp.steps.prelude.belief import Belief, KnownScore
from pymc_dp.steps.prelude.curvature import KnownCurvature, after_step
from pymc_dp.steps.prelude.newton import Frame, representable
from pymc_dp.steps.prelude.search import Found, Regression, Search, along_axes
from pymc_dp.steps.prelude.tails import Tail, believed

#: Information of the logarithm of a normal scale, of one row.
_INFORMATION_OF_SCALE = 2.0
#: On the logarithmic scale, from where the model says: 1e13 times as large. Single precision has such numbers, too.
_BEYOND_RESIDUALS = 30.0
#: No score makes a scale this many times as small, or as large, at once.
_MOST_CHANGE_OF_SCALE = 3.0


class SearchForLocation(Search):
    """The way to the centre of a normal regression. Parameters as of `Search`."""

    third_order, drifts = 0.0, False

    def __init__(self, chain: ChainAccess, regression: Regression, *bounds: float | None, releases_loss: bool) -> None:
        super().__init__(chain, regression, *bounds, releases_loss=releases_loss)
        self._sizes_of_curvature = "one_direction_curvature"
        # Each row has curvature in one direction, and it is not negative there.
        self.nonnegative, self._floors = True, settings.FLOORS_OF_EXPECTED
        # Of several releases of one matrix: what is small in all of them is small.
        self.floor_together = settings.FLOOR_OF_LOCATION
        # Residuals of either sign are clipped, as many of each where they are symmetric.
        self.bias_of_loss = settings.BIAS_OF_LOCATION
        self._rows = 1.0  # of a unit, the mean
        self._scale = int(regression.followed[0])

    def run(self) -> Found:
        """Search, and expand where the search has led to. Nothing is raised but numerical failures."""
        if not self._regression.one_row_a_unit:
            self._rows = self._rows_of_units()
        theta = self._bisected(self._regression.start, first=True)
        comparable = self._comparable(theta)
        kept = np.where(np.arange(theta.size) == self._scale, 0.0, 1.0)  # the scale is no direction of the location
        frame = Frame(comparable.preconditioner * kept, comparable.back * kept)
        curvature = self._curvature(theta, frame, "early_curvature")
        for kind in (*["middle_curvature"] * settings.MIDDLE_OF_LOCATION, "late_curvature"):
            curvature = self._together(self._curvature(theta, self._frame(curvature), kind), curvature)
        for _ in range(self._regression.steps):
            theta, curvature = self._towards(theta, curvature, "approach")
            change = self._change_of_scale(theta, 0.0, "scale_approach")[0]
            theta, curvature = self._at_other_scale(theta, curvature, change)
        theta, curvature = self._towards(theta, curvature, "centre")
        return self._expanded(theta, curvature)

    @property
    def _n_rows(self) -> float:
        return self._rows * self._chain.n_units

    def _rows_of_units(self) -> float:
        """Release how many rows units have, the mean.

        At a scale beyond all residuals the score of its logarithm is less one for each row.
        """
        theta, n_units = self._regression.start.copy(), self._chain.n_units
        theta[self._scale] += _BEYOND_RESIDUALS
        tail = Tail(self._sizes_along(theta, self._scale, 1.0, "score_sizes"), n_units)
        self._sizes = {}
        most, _ = tail.best_bound(1.0, self._chain.multiplier("row_count"))
        most = representable(max(most, 1.0))
        made = self._chain.release(BoundedScore(theta, self._scale, 0.5 * most, -0.5 * most, "row_count"))
        return float(np.clip(0.5 * most - made.value[0] / n_units, 1.0, most))

    def _expanded(self, theta: FloatArray, curvature: KnownCurvature) -> Found:
        """Release curvature, score and the score of the scale at the centre; return what all of them say."""
        found = super()._expanded(theta, curvature)
        told = found.belief
        near = self._led_to(told, theta, np.inf)
        # Squared residuals there are larger than at the maximum, by as much as noise has moved it away.
        by_chance = told.squared_noise_given(self._of_prior) / self._n_rows
        change, noise, bias = self._change_of_scale(near, by_chance, "scale_score")
        mean, smaller = told.mean.copy(), float(np.exp(-2.0 * change))
        mean[self._scale] = theta[self._scale] + change
        information, noises, biases = told.information * smaller, told.noise.copy(), told.bias.copy()
        information[self._scale, self._scale] = _INFORMATION_OF_SCALE * self._n_rows
        noises[self._scale, self._scale], biases[self._scale, self._scale] = noise**2, bias**2
        return replace(found, belief=Belief(mean, information, noises, biases, self._regression.known))

    def _towards(self, theta: FloatArray, curvature: KnownCurvature, kind: str) -> tuple[FloatArray, KnownCurvature]:
        """Release a score of the location; return where all scores lead to, and what they say of the curvature."""
        self._scores.append(self._score(theta, self._frame(curvature), kind))
        curvature = self._after_step(curvature)
        end = self._stepped(theta, curvature, settings.TRUST_OF_LOCATION * self._rows**0.5)
        # Squared residuals fall by the squared length of the way to the maximum, from which noise leads away again.
        step = np.where(self.places, end - theta, 0.0)
        by_chance = self._belief(curvature).squared_noise_given(self._of_prior) / self._n_rows
        fallen = max(0.0, float(step @ curvature.matrix @ step) / self._n_rows - by_chance)
        change = 0.5 * float(np.log(max(1.0 - fallen, settings.LEAST_LEFT) + by_chance))
        self._sizes = {}
        return self._at_other_scale(end, curvature, change)

    def _at_other_scale(
        self, theta: FloatArray, curvature: KnownCurvature, change: float
    ) -> tuple[FloatArray, KnownCurvature]:
        """Return a point, and the information of the location, where the logarithm of the scale is another one."""
        theta, factor = theta.copy(), float(np.exp(-change))
        theta[self._scale] += change
        frame = Frame(curvature.frame.preconditioner / factor, curvature.frame.back * factor)
        return theta, replace(curvature, matrix=curvature.matrix * factor**2, frame=frame)

    def _after_step(self, curvature: KnownCurvature) -> KnownCurvature:
        """Return what the last two scores, too, say of the curvature."""
        if len(self._scores) < 2:
            return curvature
        after = self._scores[-1]
        before = self._at_scale(self._scores[-2], after.theta[self._scale])
        return after_step(
            curvature,
            after.theta - before.theta,
            before.gradient - after.gradient,
            before.noise @ before.noise.T + after.noise @ after.noise.T,
            along_axes(self.structure, curvature.frame),
            floor=self.reach_of_noise * self.floor_together,
            nonnegative=self.nonnegative,
        )

    def _comparable_scores(self, curvature: KnownCurvature) -> list[KnownScore]:
        """Return all scores of the location, as if all had been released at the scale of the last one."""
        now = self._scores[-1].theta[self._scale]
        return [self._at_scale(score, now) for score in self._scores]

    def _at_scale(self, score: KnownScore, log_scale: float) -> KnownScore:
        """Return a score of the location at another scale: it is in proportion to the inverse square."""
        larger = float(np.exp(score.theta[self._scale] - log_scale))
        return replace(
            score, gradient=score.gradient * larger**2, noise=score.noise * larger**2, bias=score.bias * larger
        )

    def _change_of_scale(self, theta: FloatArray, nearer: float, kind: str) -> tuple[float, float, float]:
        """Release the score of the scale; return the change to its zero, and the noise and the bias of that."""
        bound, bias = self._bound_of_scale(theta, kind)
        excess, noise = self._excess_of_squares(theta, bound, kind)
        if kind == "scale_score":
            wide, wide_noise = self._excess_of_squares(theta, settings.WIDER_OF_SCALE * bound, "wide_scale_score")
            outliers, of_noise = wide - excess, float(np.hypot(noise, wide_noise))
            bias = float(np.hypot(bias, believed(outliers, of_noise)))
            if outliers > settings.CLEARLY_WIDER * of_noise:
                excess, noise, bias = wide, wide_noise, settings.BEYOND_WIDER * outliers
        most = np.exp(2.0 * _MOST_CHANGE_OF_SCALE)
        left = float(np.clip(1.0 + excess - nearer, 1.0 / most, most))
        return 0.5 * float(np.log(left)), 0.5 * noise / left, 0.5 * bias / left

    def _bound_of_scale(self, theta: FloatArray, kind: str) -> tuple[float, float]:
        """Return the clip bound of a score of the scale, in standard deviations, and the bias of the mean square."""
        n_units, unit = self._chain.n_units, self._unit_of_scale
        tail = Tail(self._sizes_along(theta, self._scale, unit, "score_sizes"), n_units)
        # What normal residuals would lose is added again.
        bound, bias = tail.best_bound(
            settings.BIAS_OF_CENTRED, self._chain.multiplier(kind), lambda b: n_units * self._lost_of_squares(b) / unit
        )
        bound = float(np.clip(bound, self._least_of_scale, settings.MOST_OF_SCALE))
        return bound, unit * bias / self._n_rows

    @property
    def _unit_of_scale(self) -> float:
        return float(np.sqrt(_INFORMATION_OF_SCALE * self._rows))

    @property
    def _least_of_scale(self) -> float:
        """The nearest bound: it cuts as many units, if residuals are normal, as that of single rows."""
        from scipy.special import chdtrc, chdtri  # noqa: PLC0415  slow to import

        beyond = chdtrc(1.0, 1.0 + settings.LEAST_OF_SCALE * _INFORMATION_OF_SCALE**0.5)
        return float(chdtri(self._rows, beyond) - self._rows) / self._unit_of_scale

    def _excess_of_squares(self, theta: FloatArray, bound: float, kind: str) -> tuple[float, float]:
        """Release by how much the mean squared residual is larger than 1, with squares cut, and the noise of that."""
        n_units = self._chain.n_units
        # Squares less one for each row are not below minus the number of rows: an interval half as long as one around
        # zero, of single rows. Units with many more rows than most are cut.
        least = self._rows if self._regression.one_row_a_unit else settings.LEAST_OF_SQUARES * self._rows
        half = 0.5 * (self._unit_of_scale * bound + least)
        made = self._chain.release(BoundedScore(theta, self._scale, half, half - least, kind))
        excess = float(np.clip(made.value[0] / n_units, -half, half)) + half - least + self._lost_of_squares(bound)
        return excess / self._rows, made.noise_std / self._n_rows

    def _lost_of_squares(self, bound: float) -> float:
        """Return how much of a unit's squared residuals, if they are normal, is cut where its score is clipped."""
        rows, most = self._rows, self._rows + bound * self._unit_of_scale
        from scipy.special import chdtrc  # noqa: PLC0415  slow to import

        # The mean of (a sum of squares - most)+ by the distribution functions of two chi-squared distributions.
        return float(rows * chdtrc(rows + 2.0, most) - most * chdtrc(rows, most))


def missed_by_quadratic(belief: Belief, scale: int, draws: FloatArray) -> FloatArray:
    """Return what a normal regression's log-likelihood is more than a quadratic at draws, shape (draws,).

    Nothing has to be released for it. Given n rows, whose information on the logarithm of the scale is 2n, and the
    squared distance q of the location from the maximum, where the scale is exp(d) times as large the log-likelihood is
    -n d - (n + q) exp(-2 d) / 2. Noise hides where the maximum is: returned is the mean over where it may be, given the
    draw and the belief, whose curvature and noise are taken for right.
    """
    known = belief.known
    block, scale = np.ix_(known, known), int(np.flatnonzero(known).searchsorted(scale))
    information, away = belief.information[block], (draws - belief.mean)[:, known]
    rows = float(information[scale, scale]) / _INFORMATION_OF_SCALE
    without_noise = np.linalg.inv(information)
    pulled = without_noise @ belief.precision[block]
    distances, left = away @ pulled.T, without_noise - pulled @ without_noise
    larger, of_larger = distances[:, scale].copy(), float(left[scale, scale])
    distances[:, scale] = left[scale] = 0.0
    squared = np.einsum("di,ij,dj->d", distances, information, distances) + float(np.sum(information * left))
    smaller = np.expm1(2.0 * (of_larger - larger))  # the mean of exp(-2 d) less 1
    missed: FloatArray = rows * (larger**2 - larger) - 0.5 * (rows + squared) * smaller
    return missed
