"""The search for the centre of a regression whose table nobody knows: every scale is learned from small releases.

1. *Scales.* Logarithms of positive parameters are found by binary search on noisy bounded scores.
2. *Coordinates.* A histogram of the sizes of scores, by parameter, makes all parameters comparable.
3. *Directions.* The curvature is released early, and again after the first step: scores are taken along its axes.
   Where responses are continuous, it follows their scale, and is released once more before the last step.
4. *Steps.* Noisy Newton steps in a trust region, each with a clip bound that a histogram of norms says is best.
5. *Centre.* One more precise score leads to the centre.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pymc_dp.budget import ReleaseRequest
from pymc_dp.parameters import FloatArray
from pymc_dp.release.centred import CentredScore, ExpectedCurvature
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, SMALLEST_CLIP_BOUND, ExpansionPoint, Release
from pymc_dp.release.queries import Curvature
from pymc_dp.release.sizes import BoundedScore, CoordinateSizes, NormSizes
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    Frame,
    NotComputable,
    can_stand_at,
    prior_curvature,
    solved,
    unpacked,
)
from pymc_dp.steps.prelude.settings import PartsOfSearch
from pymc_dp.steps.prelude.tails import BINS, LOWEST_HALF_OCTAVE, Histogram, Tail

_LOWEST_OCTAVE, _OCTAVES = -24, 49
_STAGES = ("early_curvature", "middle_curvature", "late_curvature", "curvature")
_SHORTER = (1.0, 0.5, 0.25, 0.1)


@dataclass(frozen=True, eq=False)
class Regression:
    """What is known of a model before its table is asked.

    Attributes
    ----------
    start : ndarray, shape (parameters,)
        Where the way begins.
    known : ndarray of bool, shape (parameters,)
        Which parameters the likelihood depends on.
    scales : ndarray of int
        Which of them are logarithms of positive variables.
    steps : int
        Steps on the way to the last score before the centre.
    followed : ndarray of int
        Which of the logarithms are that of the scale of a location-scale family: the curvature follows it.
    """

    start: FloatArray
    known: NDArray[np.bool_]
    scales: NDArray[np.intp]
    steps: int = settings.APPROACH_STEPS
    followed: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    @property
    def follows_scale(self) -> bool:
        """Whether the curvature is taken to follow a scale."""
        return self.followed.size > 0

    @property
    def parts(self) -> PartsOfSearch:
        """What the cost of the search is spent on."""
        return settings.PARTS_WITH_SCALE if self.follows_scale else settings.PARTS

    @property
    def voted(self) -> NDArray[np.intp]:
        """Which parameters binary searches are made for."""
        return self.scales[: settings.MOST_VOTED]

    @property
    def block(self) -> tuple[NDArray[np.bool_], ...]:
        """The index of the block of known parameters."""
        return np.ix_(self.known, self.known)

    def solved(self, matrix: FloatArray, vector: FloatArray) -> FloatArray:
        """Return the solution of a linear system of the known parameters; the others are left at zero."""
        solution = np.zeros_like(vector)
        solution[self.known] = solved(matrix[self.block], vector[self.known])
        return solution


@dataclass(frozen=True, eq=False)
class KnownCurvature:
    """A released curvature.

    Attributes
    ----------
    matrix : ndarray, shape (parameters, parameters)
        Of the log-likelihood of all units, positive definite in the parameters that it depends on.
    raw : ndarray, shape (parameters, parameters)
        As it was released, along the axes of `frame`.
    noise_std : float
        Of its entries, as in `pymc_dp.release.interface.Release`.
    frame : Frame
    """

    matrix: FloatArray
    raw: FloatArray
    noise_std: float
    frame: Frame


@dataclass(frozen=True, eq=False)
class KnownScore:
    """A released score.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        Where.
    gradient : ndarray, shape (parameters,)
        Of the log-likelihood of all units.
    noise : ndarray, shape (parameters, parameters)
        A factor of the covariance of its noise.
    bias : float
        How long, along the axes of the frame, what clipping has taken off may be.
    """

    theta: FloatArray
    gradient: FloatArray
    noise: FloatArray
    bias: float


@dataclass(frozen=True, eq=False)
class Learned:
    """A private centre, and what was released on the way there.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The centre.
    curvature : KnownCurvature
        That of the middle of the way, in whose frame the expansion is released.
    scores : tuple of KnownScore
        The last ones.
    """

    theta: FloatArray
    curvature: KnownCurvature
    scores: tuple[KnownScore, ...]


def requests_of_search(regression: Regression, share: float) -> list[ReleaseRequest]:
    """Return what a search releases, at a share of the run's cost. The sizes at the centre are among it."""
    size = regression.start.size
    entries = size * (size + 1) // 2
    steps, voted, parts = regression.steps, regression.voted.size, regression.parts
    n_curvatures = 4 if parts.late else 3
    asked: list[tuple[str, int, float, int]] = [
        ("bounded_score", voted * (settings.FIRST_VOTES + 2 * settings.LATER_VOTES), parts.votes * voted, 1),
        ("coordinate_sizes", 1, parts.coordinates, size * _OCTAVES),
        ("curvature_sizes", n_curvatures, n_curvatures * parts.sizes, BINS),
        ("score_sizes", steps + 2, (steps + 2) * parts.sizes, BINS),
        ("early_curvature", 1, parts.early, entries),
        ("middle_curvature", 1, parts.middle, entries),
        ("late_curvature", n_curvatures - 3, parts.late, entries),
        ("approach", steps, steps * parts.approach, size),
        ("centre", 1, parts.centre, size),
    ]
    together = sum(part for _, _, part, _ in asked)
    return [
        ReleaseRequest(kind, count, share * part / together, coordinates, once=True)
        for kind, count, part, coordinates in asked
        if count
    ]


class Search:
    """The way to the centre.

    Parameters
    ----------
    chain : ChainAccess
        Whom to ask.
    regression : Regression
        What is known of the model.
    """

    def __init__(self, chain: ChainAccess, regression: Regression) -> None:
        self._chain, self._regression = chain, regression
        self._sizes: dict[str, Histogram] = {}

    def run(self) -> Learned:
        """Return the centre. Nothing is raised but numerical failures, whatever noise does."""
        theta = self._voted(self._regression.start, first=True)
        curvature = self._curvature(theta, self._comparable(theta), "early_curvature")
        scores: list[KnownScore] = []
        for step in range(self._regression.steps):
            far = step < 2
            score = self.score(theta, self.frame(curvature), "approach")
            scores.append(score)
            theta = self._stepped(theta, score, curvature, settings.TRUST_FAR if far else settings.TRUST_NEAR)
            if step == 0:
                theta, curvature = self._followed(theta, self._voted(theta, first=False), curvature, "middle_curvature")
        voted = self._late_vote(theta)
        if self._regression.follows_scale:
            theta, curvature = self._followed(theta, voted, curvature, "late_curvature")
        else:
            theta = voted
        score = self.score(theta, self.frame(curvature), "centre")
        theta = self._stepped(theta, score, curvature, settings.TRUST_LAST)
        return Learned(theta, curvature, (*scores[2:], score))

    def _followed(
        self, theta: FloatArray, voted: FloatArray, curvature: KnownCurvature, kind: str
    ) -> tuple[FloatArray, KnownCurvature]:
        """Release the curvature where a vote has led to, along axes that follow the scale that has moved most.

        Of a location and a scale, information of the location is in proportion to the inverse square of the scale.
        """
        moves = (voted - theta)[self._regression.followed]
        farthest = float(moves[np.argmax(np.abs(moves))]) if moves.size else 0.0
        if kind == "middle_curvature" or abs(farthest) > settings.SETTLED:
            self._sizes = {}
        factor = np.ones(theta.size)
        factor[~np.isin(np.arange(theta.size), self._regression.scales)] = np.exp(-farthest)
        followed = replace(curvature, matrix=curvature.matrix * np.outer(factor, factor))
        return voted, self._curvature(voted, self.frame(followed), kind)

    # Scales -------------------------------------------------------------------------------------------------------

    def _voted(self, theta: FloatArray, *, first: bool) -> FloatArray:
        """Return the parameters with logarithms of scales where their scores, each cut, add up to nothing."""
        reach = settings.FIRST_REACH if first else settings.LATER_REACH
        votes = settings.FIRST_VOTES if first else settings.LATER_VOTES
        for place in self._regression.voted:
            centre, half = theta[place], reach
            for _ in range(votes):
                at = theta.copy()
                at[place] = centre
                half /= 2.0
                centre += half * self._vote(at, int(place))
            theta = theta.copy()
            theta[place] = centre
        return theta

    def _vote(self, theta: FloatArray, place: int) -> float:
        """Return 1 if the log-posterior rises there along a parameter, else -1; by the prior alone if noise decides."""
        made = self._chain.release(BoundedScore(theta, place, settings.CLIP_OF_VOTES))
        slope = float(self._chain.prior.gradient(theta)[place])
        votes = float(made.value[0])
        if abs(votes) < settings.CLEAR_VOTE * made.noise_std:
            votes = 0.0
        rises = votes + (slope if np.isfinite(slope) else 0.0)
        return 1.0 if rises > 0.0 else -1.0

    def _late_vote(self, theta: FloatArray) -> FloatArray:
        """Vote once more; what hardly moves stays."""
        voted = self._voted(theta, first=False)
        moved = np.abs(voted - theta) > settings.LEAST_MOVE_OF_VOTE
        return np.where(moved, voted, theta)

    # Directions ---------------------------------------------------------------------------------------------------

    def _comparable(self, theta: FloatArray) -> Frame:
        """Return a frame in which scores have entries of about the same size, by a histogram for each parameter."""
        n_units = self._chain.n_units
        made = self._chain.release(CoordinateSizes(theta, _LOWEST_OCTAVE, _OCTAVES))
        counts = np.clip(made.value, -n_units, n_units).reshape(theta.size, _OCTAVES)[self._regression.known]
        scales = np.ones(theta.size)
        scales[self._regression.known] = _sizes_of_entries(counts, made.noise_std, n_units)
        return Frame(np.diag(1.0 / scales), np.diag(scales))

    def _curvature(self, theta: FloatArray, frame: Frame, kind: str) -> KnownCurvature:
        """Release the curvature; without terms between logarithms of scales and others, which far away are large."""
        bound = self._curvature_bound(theta, frame, kind)
        point = ExpansionPoint(theta, frame.preconditioner, np.inf, bound)
        return self.curvature_at(point, frame, kind, between_scales=False)

    def curvature_at(self, point: ExpansionPoint, frame: Frame, kind: str, *, between_scales: bool) -> KnownCurvature:
        """Release the expected curvature where the model says what responses could have been, else the observed one."""
        query = ExpectedCurvature(point, kind) if self._chain.knows_responses else Curvature(point, kind)
        return self._repaired(self._chain.release(query), point, frame, between_scales=between_scales)

    def _curvature_bound(self, theta: FloatArray, frame: Frame, kind: str, of_score: float = np.inf) -> float:
        """Return the clip bound of a curvature: what clipped scores have of it, where theirs is known."""
        size = int(self._regression.known.sum())
        known = self._chain.knows_responses
        histogram = self._norms(theta, frame, "expected_curvature" if known else "curvature", float(size), of_score)
        factor = np.sqrt(2.0) if known else 2.0  # expected curvatures have no negative inner product
        noise = factor * self._chain.multiplier(kind) * np.sqrt(2.0 * size)
        if kind == "early_curvature":
            bound = histogram.quantile(settings.EARLY_QUANTILE, self._chain.n_units)
        else:
            bound, _ = Tail(histogram, self._chain.n_units).best_bound(1.0, noise)
        most = max(settings.MOST_NOISE_OF_CURVATURE * self._chain.n_units / noise, 2.0 * size)
        return _representable(min(bound, most))

    def _repaired(self, made: Release, point: ExpansionPoint, frame: Frame, *, between_scales: bool) -> KnownCurvature:
        """Return a released curvature with eigenvalues above the noise."""
        known, most = self._regression.known, point.clip_curvature * self._chain.n_units
        raw = unpacked(np.clip(made.value, -most, most), known.size)  # no sum of units is larger
        block = raw[self._regression.block]
        if not between_scales:
            of_scales = np.isin(np.flatnonzero(known), self._regression.scales)
            block = np.where(of_scales[:, None] == of_scales[None, :], block, 0.0)
        values, vectors = np.linalg.eigh(block)
        floors = settings.FLOORS_OF_EXPECTED if self._chain.knows_responses else settings.FLOORS_OF_OBSERVED
        floor = made.noise_std * np.sqrt(2.0 * len(block)) * floors[_STAGES.index(made.kind)]
        values = np.maximum(np.abs(values), max(floor, 1e-3 * float(np.abs(values).max())))
        whole = np.zeros_like(raw)
        whole[self._regression.block] = (vectors * values) @ vectors.T
        matrix = frame.matrix(whole)
        if not np.isfinite(matrix).all():
            raise NotComputable("The released curvature is too large for floating point.")
        return KnownCurvature(matrix, raw, made.noise_std, frame)

    def frame(self, curvature: KnownCurvature) -> Frame:
        """Return the frame in which the curvature of a unit is, on average, the identity; scales come last."""
        known = np.flatnonzero(self._regression.known)
        of_scales = np.isin(known, self._regression.scales)
        order = known[np.argsort(of_scales, kind="stable")]
        per_unit = curvature.matrix[np.ix_(order, order)] / self._chain.n_units
        values, vectors = np.linalg.eigh(per_unit)
        values = np.maximum(values, 1e-12 * values.max())
        factor = np.linalg.cholesky((vectors * values) @ vectors.T)
        weight = np.where(np.sort(of_scales), settings.SCALE_IN_NORM, 1.0)
        preconditioner, back = np.eye(self._regression.known.size), np.eye(self._regression.known.size)
        preconditioner[np.ix_(order, order)] = np.linalg.inv(factor).T * weight
        back[np.ix_(order, order)] = factor / weight
        return Frame(preconditioner, back)

    @property
    def bias_of_loss(self) -> float:
        """What part of the length that clipping takes off scores adds to the bias of their sum."""
        return settings.BIAS_OF_CENTRED if self._chain.knows_responses else settings.BIAS_OF_CLIPPED

    # Scores -------------------------------------------------------------------------------------------------------

    def score(self, theta: FloatArray, frame: Frame, kind: str) -> KnownScore:
        """Release a score with the clip bound that a histogram of norms says is best."""
        bound, bias = self._score_bound(theta, frame, kind)
        return self.score_at(ExpansionPoint(theta, frame.preconditioner, bound), frame, bias, kind)

    def _score_bound(self, theta: FloatArray, frame: Frame, kind: str) -> tuple[float, float]:
        """Return the best clip bound of a score, and the bias that it is expected to have."""
        size = int(self._regression.known.sum())
        tail = Tail(self._norms(theta, frame, "score", float(np.sqrt(size))), self._chain.n_units)
        noise = 2.0 * self._chain.multiplier(kind) * np.sqrt(size)
        bound, bias = tail.best_bound(self.bias_of_loss, noise)
        return _representable(bound), bias

    def score_at(self, point: ExpansionPoint, frame: Frame, bias: float, kind: str) -> KnownScore:
        """Release a score; return it on the scale of the parameters."""
        made = self._chain.release(CentredScore(point, kind))
        most = point.clip_gradient * self._chain.n_units  # no sum of units is larger
        value = np.clip(made.value, -most, most)
        noise = np.where(self._regression.known[:, None], frame.back, 0.0) * made.noise_std
        gradient = np.where(self._regression.known, frame.gradient(value), 0.0)
        return KnownScore(made.where[0], gradient, noise, bias)

    def _norms(
        self, theta: FloatArray, frame: Frame, of: str, typical: float, clip_gradient: float = np.inf
    ) -> Histogram:
        """Release a histogram of norms; pooled with the last one."""
        smallest = typical * 2.0 ** (LOWEST_HALF_OCTAVE / 2)
        point = ExpansionPoint(theta, frame.preconditioner, clip_gradient)
        kind = "score_sizes" if of == "score" else "curvature_sizes"
        made = self._chain.release(NormSizes(point, of, smallest, BINS, kind))  # type: ignore[arg-type]
        n_units = self._chain.n_units
        histogram = Histogram(np.clip(made.value, -n_units, n_units), made.noise_std, smallest)
        earlier = self._sizes.get(of)
        self._sizes[of] = histogram.with_earlier(earlier, settings.TRUST_IN_EARLIER_SIZES)
        return self._sizes[of]

    def expansion_point(
        self, theta: FloatArray, frame: Frame, clip_gradient: float | None, clip_curvature: float | None
    ) -> tuple[ExpansionPoint, float]:
        """Return the centre with the given clip bounds or the best ones there, and the bias of the score to expect."""
        best, bias = self._score_bound(theta, frame, "score")
        bound = best if clip_gradient is None else clip_gradient
        of_curvature = self._curvature_bound(theta, frame, "curvature", bound)
        if clip_curvature is not None:
            of_curvature = clip_curvature
        return ExpansionPoint(theta, frame.preconditioner, bound, of_curvature), bias

    # Steps --------------------------------------------------------------------------------------------------------

    def _stepped(self, theta: FloatArray, score: KnownScore, curvature: KnownCurvature, trust: float) -> FloatArray:
        """Return the end of a Newton step in a trust region, or of a shorter one where the prior is no number."""
        prior = self._chain.prior
        try:
            slope = score.gradient + prior.gradient(theta)
            step = self._regression.solved(curvature.matrix + prior_curvature(prior, theta), slope)
        except NUMERICAL_FAILURES:  # the next score may be less noisy
            return theta
        length = float(np.sqrt(np.maximum(step @ curvature.matrix @ step, 0.0) / self._chain.n_units))
        step = step * min(1.0, trust / max(length, np.finfo(float).tiny))
        ends = (theta + part * step for part in _SHORTER)
        return next((end for end in ends if can_stand_at(prior, end)), theta)


def pooled_curvature(late: KnownCurvature, early: KnownCurvature, known: NDArray[np.bool_]) -> tuple[FloatArray, float]:
    """Return the mean of two released curvatures by their precision, and the noise of its entries in `late`'s frame.

    That the earlier one was released elsewhere, and without terms between scales, shows in their difference: what is
    beyond noise counts as noise of the earlier one.
    """
    size = int(known.sum())
    to_late = (late.frame.preconditioner.T @ early.frame.back)[np.ix_(known, known)]
    along = late.frame.preconditioner.T @ (late.matrix - early.matrix) @ late.frame.preconditioner
    of_early = early.noise_std**2 * (np.sum(to_late**2) / size) ** 2
    of_late = late.noise_std**2
    of_known: FloatArray = along[known][:, known]
    between = float(np.sum(of_known**2)) / (size * (size + 1) / 2)
    drift = max(0.0, between - of_early - of_late)
    part = (of_early + drift) / (of_early + drift + of_late)
    matrix = part * late.matrix + (1.0 - part) * early.matrix
    return matrix, float(np.sqrt(part**2 * of_late + (1.0 - part) ** 2 * of_early))


@dataclass(frozen=True, eq=False)
class PooledScore:
    """The score at the centre as all scores near it tell it.

    Attributes
    ----------
    gradient : ndarray, shape (parameters,)
    noise : ndarray, shape (parameters, parameters)
        Covariance of its error by noise: of scores, and of the curvature that carried them.
    bias : ndarray, shape (parameters, parameters)
        Covariance that stands for what clipping may have taken off, in whatever direction.
    """

    gradient: FloatArray
    noise: FloatArray
    bias: FloatArray

    @property
    def covariance(self) -> FloatArray:
        """Of the whole error."""
        return self.noise + self.bias


def pooled_score(
    centre: FloatArray,
    scores: Sequence[KnownScore],
    curvature: FloatArray,
    curvature_noise: float,
    frame: Frame,
    known: NDArray[np.bool_],
    n_units: int,
    step: FloatArray,
) -> PooledScore:
    """Carry scores to the centre by the curvature and average them, each by what it is known to miss.

    Parameters
    ----------
    centre, scores
        Where to, and what; the last score is the one at the centre.
    curvature : ndarray, shape (parameters, parameters)
        Of the log-likelihood of all units.
    curvature_noise : float
        Of its entries along the axes of `frame`.
    frame : Frame
    known : ndarray of bool, shape (parameters,)
    n_units : int
    step : ndarray, shape (parameters,)
        From the centre to about the mode: noise of the curvature acts over the distance from there.
    """
    size = int(known.sum())
    to_frame, back = frame.preconditioner.T, np.where(known[:, None], frame.back, 0.0)
    carried, variances, ways = [], [], []
    for score in scores:
        way = centre - score.theta
        carried.append(score.gradient - curvature @ way)
        long = float(np.sum((frame.back.T @ way)[known] ** 2))
        noise = float(np.sum((to_frame @ score.noise) ** 2)) / size
        # Of third order: a quarter of the squared distance, in units of what one unit tells.
        missed = (0.25 * long * n_units) ** 2 / size
        variances.append(noise + 0.5 * curvature_noise**2 * long + missed)
        ways.append(way)
    weights = np.array([1.0 / variance for variance in variances])
    weights /= weights.sum()
    gradient = weights @ np.array(carried)
    noise = sum(weight**2 * score.noise @ score.noise.T for weight, score in zip(weights, scores, strict=True))
    distance = (frame.back.T @ (step + weights @ np.array(ways)))[known]
    shaken = np.zeros((known.size, known.size))
    shaken[np.ix_(known, known)] = (
        0.5 * curvature_noise**2 * (distance @ distance * np.eye(size) + np.outer(distance, distance))
    )
    bias = float(weights @ np.array([score.bias for score in scores]))
    of_bias = back @ back.T * bias**2 / size
    return PooledScore(gradient, noise + back @ shaken @ back.T, of_bias)


def _sizes_of_entries(counts: FloatArray, noise_std: float, n_units: int) -> FloatArray:
    """Return for every parameter the root mean square of units' scores, from noisy counts by octave.

    Counts below the noise are left out; what they could hide is added. A parameter whose scores are all hidden by noise
    gets the size of the others' for as many units as noise could hide.
    """
    octaves = _LOWEST_OCTAVE + np.arange(_OCTAVES)
    counts = counts.copy()
    counts[:, 0] = -np.inf  # zeros are in the first bin
    largest = counts.argmax(axis=1)
    from_largest = np.arange(_OCTAVES) - largest[:, None]
    seen = np.where((from_largest >= -6) & (from_largest <= 3), 2.5, 4.5) * noise_std
    big = np.where(counts > seen, counts, 0.0)
    visible = counts.max(axis=1) > 4.5 * noise_std  # the largest of many counts of noise alone is not far below that
    top = [octaves[np.flatnonzero(row)[-1]] for row in big[visible]]
    typical = float(np.median(top)) if top else 0.0
    squares = (big * 4.0 ** (octaves + 0.5)).sum(axis=1) / n_units
    unseen = noise_std / n_units * 4.0 ** (octaves[largest] + 3.5)
    hidden = 4.0**typical * 3.5 * noise_std / n_units
    found: FloatArray = np.sqrt(np.where(visible, squares + unseen, hidden))
    return found


def _representable(bound: float) -> float:
    return float(np.clip(bound, SMALLEST_CLIP_BOUND, LARGEST_CLIP_BOUND))
