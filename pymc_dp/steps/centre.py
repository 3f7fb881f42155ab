"""The search for an expansion point (the centre): noisy Newton iterations from the prior towards the posterior mode."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.parameters import FloatArray
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, ExpansionPoint, Release
from pymc_dp.steps.access import LogDensity, PublicUnits
from pymc_dp.steps.surrogate_density import WeightedRows
from pymc_dp.steps.synthetic import (
    NUMERICAL_FAILURES,
    NotComputable,
    Scale,
    can_stand_at,
    climbed,
    curvature_bound,
    expected_curvature,
    mode_of,
    positive_definite,
    prior_curvature,
    scale_of,
    shortened,
    solved,
    table_at,
    unpacked,
    whole_step,
)

if TYPE_CHECKING:
    from pymc_dp.steps.surrogate import DPSurrogateHMC

#: The last Newton steps differ by their noise alone: the centre is the mean of that many.
_AVERAGED = 3
_PRIOR_QUANTILE = 0.9
_LEAST_RATIO = 0.02
_LEAST_OF_MODE = 0.5
#: Part of the centre's cost for the curvature at the prior's point.
EARLY_CURVATURE_SHARE = 0.1
#: How many of the steps are the last ones, and how much more each of them may cost, by whether rows are simulated.
_LAST_STEPS = {False: (3, 3.0), True: (2, 8.0)}
_MODE_ITERATIONS = 60
_STEP_REPETITIONS = 6
#: How many points near the model's initial point are tried, and the factors of the line search.
_TRIED_STARTS = 10
_PARTS_OF_A_STEP = (1.0, 0.5, 0.25, 0.1)
#: How often a score is taken for a contradiction that is none.
_FALSE_CONTRADICTION = 0.01


@dataclass(frozen=True, eq=False)
class WayToCentre:
    """A private centre, and what was released on the way there.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The centre.
    scale : Scale
        Directions and bounds that suit it.
    information : ndarray, shape (parameters, parameters)
        The curvature of the log-likelihood of all units there, as far as it is known.
    scores : tuple of Release
        The last ones, with the preconditioner and the clip bound of the score at the centre.
    """

    theta: FloatArray
    scale: Scale
    information: FloatArray
    scores: tuple[Release, ...] = ()


def centre_schedule(steps: int, *, simulated: bool) -> list[tuple[str, int, float]]:
    """Return the kinds of scores released on the way: their number and their part of the centre's cost.

    The first steps need little precision; the last ones decide how close the centre is.
    """
    last, weight = _LAST_STEPS[simulated]
    last = min(last, steps)
    of_scores = 1.0 if simulated else 1.0 - EARLY_CURVATURE_SHARE
    together = (steps - last) + weight * last
    schedule = [("centre", last, of_scores * weight * last / together)]
    if steps > last:
        schedule.insert(0, ("approach", steps - last, of_scores * (steps - last) / together))
    return schedule


def _kinds(step: "DPSurrogateHMC", *, simulated: bool) -> list[str]:
    """Return the kind of every step's score, in order."""
    return [kind for kind, count, _ in centre_schedule(step.newton_steps, simulated=simulated) for _ in range(count)]


def find_centre(step: "DPSurrogateHMC") -> WayToCentre:
    """Return a private centre, with a preconditioner and clip bounds for it.

    No noise of a release ends the search: a step to where scores, bounds or curvatures cannot be computed is
    shortened by a line search, or left out.

    Raises
    ------
    InvalidArgument
        If nothing can be computed where the search would begin, which is known without the data.
    """
    if step.chain.synthetic_tables.depends_on_parameters:
        return _by_simulation(step)
    return _by_newton_steps(step)


def _starts(step: "DPSurrogateHMC") -> Iterator[FloatArray]:
    """Yield where the way may begin: where the model says, at draws of the prior, or near by.

    Where a model is symmetric it often says its centre of symmetry, where all scores are zero.
    """
    yield step.prior_point
    yield from step.chain.synthetic_tables.prior_draws()
    generator = np.random.default_rng(0)
    for _ in range(_TRIED_STARTS):
        yield step.prior_point + generator.uniform(-1.0, 1.0, step.size)


def _no_start(step: "DPSurrogateHMC") -> InvalidArgument:
    table = (
        "rows simulated from the model" if step.chain.synthetic_tables.depends_on_parameters else "the synthetic table"
    )
    of_order = " and curvatures" if step.order == 2 else ""
    return InvalidArgument(
        f"DPSurrogateHMC finds no clip bounds: scores{of_order} of {table} are zero or no numbers wherever the way to "
        "a centre could begin. Give the free variables an initval= near plausible values, or use DPHMC."
    )


def _ahead(theta: FloatArray, theta_new: FloatArray) -> Iterator[FloatArray]:
    """Yield the end of a step, and those of shorter ones: a backtracking line search."""
    for part in _PARTS_OF_A_STEP:
        yield theta + part * (theta_new - theta)


def _by_newton_steps(step: "DPSurrogateHMC") -> WayToCentre:
    """Make noisy Newton iterations with the curvature of the user's synthetic units, which is free.

    Preconditioner and clip bounds are those of the synthetic table at its own posterior mode.
    """
    prior = step.chain.prior
    theta, units, scale, information_at = _start_of_newton_steps(step)
    visited, scores = [], []
    for kind in _kinds(step, simulated=False):
        centre = ExpansionPoint(theta, scale.preconditioner, step.centre_at(theta, scale).clip_gradient)
        scores.append(step.release_score(centre, kind))
        try:
            gradient = scale.gradient(scores[-1].value) + prior.gradient(theta)
            way = _consistent_step(step, units, theta, gradient, information_at)
            theta = next((at for at in _ahead(theta, theta + way) if _known_at(prior, information_at, at)), theta)
        except NUMERICAL_FAILURES:  # the next score may be less noisy
            pass
        visited.append(theta)
    mean = np.mean(visited[-_AVERAGED:], axis=0)
    theta = mean if _known_at(prior, information_at, mean) else theta
    return WayToCentre(theta, scale, information_at(theta), tuple(scores[-_AVERAGED:]))


def _known_at(prior: LogDensity, information_at: Callable[[FloatArray], FloatArray], theta: FloatArray) -> bool:
    """Return whether a step can begin at these parameters."""
    try:
        return can_stand_at(prior, theta) and bool(np.isfinite(information_at(theta)).all())
    except NUMERICAL_FAILURES:
        return False


def _start_of_newton_steps(
    step: "DPSurrogateHMC",
) -> tuple[FloatArray, PublicUnits, Scale, Callable[[FloatArray], FloatArray]]:
    """Return where the iterations begin, synthetic units, their scale, and curvature as a function of parameters.

    Raises
    ------
    InvalidArgument
        If there is none.
    """
    for theta in _starts(step):
        try:
            units = table_at(step.chain.synthetic_tables, theta)
            own_mode = mode_of(units, step.chain.prior, theta, step.chain.n_units)
            scale = scale_of(units, own_mode, clip_quantile=step.clip_quantile, with_curvature=step.order == 2)
            expected = _Expected(units, step.chain.n_units, theta, own_mode)
            bound = _first_bound(units, scale, theta, own_mode)
        except NUMERICAL_FAILURES:
            continue
        if _known_at(step.chain.prior, expected.information, theta):
            released = step.release_curvature(
                ExpansionPoint(theta, scale.preconditioner, np.inf, bound), kind="early_curvature"
            )
            return theta, units, scale, expected.informed(released, scale).information
    raise _no_start(step)


def _first_bound(units: PublicUnits, scale: Scale, theta: FloatArray, own_mode: FloatArray) -> float:
    """Return a bound of a unit's curvature where the way begins, or else what it is at the synthetic units' mode."""
    try:
        return curvature_bound(units, theta, scale.preconditioner, 1.0)
    except NotComputable:
        return curvature_bound(units, own_mode, scale.preconditioner, 1.0)


def _consistent_step(
    step: "DPSurrogateHMC",
    units: PublicUnits,
    theta: FloatArray,
    gradient: FloatArray,
    information_at: Callable[[FloatArray], FloatArray],
) -> FloatArray:
    """Return a Newton step with the mean curvature on its own way, which is found by repetition.

    Where the curvature grows along the step, as in a Poisson regression, a step by the curvature at its beginning
    leads too far, and where it falls, not far enough.
    """
    from_prior = prior_curvature(step.chain.prior, theta)
    begin = information_at(theta)
    way = shortened(units, from_prior, theta, whole_step(from_prior, gradient, begin))
    for _ in range(_STEP_REPETITIONS):
        # Simpson's rule: exact up to cubic changes of the curvature.
        information = (begin + 4.0 * information_at(theta + 0.5 * way) + information_at(theta + way)) / 6.0
        way = shortened(
            units, from_prior, theta, 0.5 * (way + whole_step(from_prior, gradient, information)), times=2.0
        )
    return shortened(units, from_prior, theta, way)


def pooled_score(
    way: WayToCentre, units: PublicUnits, n_units: int, score: Release, information: FloatArray
) -> tuple[FloatArray, float]:
    """Return the score at the centre as the last releases together tell it, and the standard deviation of its noise.

    A score released at another point is carried to the centre by the curvature that was released. What that misses is
    of second order in the distance, as synthetic units have it, and counts like noise. A score that contradicts the one
    at the centre by more than noise explains is left out: the curvature is wrong then, or many units were cut where it
    was released.
    """
    there, scale = score.where[0], way.scale
    at_centre, bend = units.scores(there), expected_curvature(units, there)
    carried, variances = [score.value], [score.noise_std**2]
    for release in way.scores:
        step = there - release.where[0]
        value = release.value - scale.preconditioner.T @ (information @ step)
        changes = units.scores(release.where[0]) - at_centre
        missed = n_units * (changes[np.isfinite(changes).all(axis=1)].mean(axis=0) - bend @ step) @ scale.preconditioner
        variance = release.noise_std**2 + float(np.mean(missed**2))
        contradiction = float(np.sum((value - score.value) ** 2)) / (variance + score.noise_std**2)
        if contradiction < stats.chi2.isf(_FALSE_CONTRADICTION, value.size):
            carried.append(value)
            variances.append(variance)
    precisions = 1.0 / np.array(variances)
    return precisions @ np.array(carried) / precisions.sum(), float(precisions.sum() ** -0.5)


class _Expected:
    """The curvature of the log-likelihood of all units, about, as a function of the parameters.

    Synthetic units know how it changes with the parameters, but may have groups of other sizes or covariates of another
    spread than the protected ones. So the curvature is released once, at the prior's point, and the ratio of the two
    is kept from there on. What does not rise above the noise is left as the synthetic units have it. Where a noisy step
    has led far away, curvature vanishes (a logistic regression saturates) and the next step would lead further: so it
    is never taken for much less than at the synthetic units' own mode.

    Parameters
    ----------
    units, n_units
        Synthetic units, and how many they stand for.
    theta, own_mode : ndarray, shape (parameters,)
        Where the way begins, and the synthetic units' mode.

    Raises
    ------
    NotComputable, LinAlgError
        If there is none at one of these points.
    """

    def __init__(self, units: PublicUnits, n_units: int, theta: FloatArray, own_mode: FloatArray) -> None:
        self._units, self._n_units, self._own_mode = units, n_units, own_mode
        self._at_start = n_units * expected_curvature(units, theta)
        self._known = known_block(self._at_start)
        self.keep_ratio(np.eye(len(self._at_start[self._known])))

    def informed(self, released: Release, scale: Scale) -> "_Expected":
        """Return the same with the ratio to a released curvature, where that can be computed."""
        other = copy(self)
        try:
            root = np.linalg.inv(np.linalg.cholesky(self._at_start[self._known]))
            other.keep_ratio(root @ informed(self._at_start, released, scale)[self._known] @ root.T)
        except NUMERICAL_FAILURES:
            return self
        return other

    def keep_ratio(self, ratio: FloatArray) -> None:
        """Take note of the ratio of the protected units' curvature to the synthetic ones'."""
        self._ratio = ratio
        self._least = np.linalg.cholesky(self._corrected(self._own_mode))
        self._relative = np.linalg.inv(self._least)
        if not np.isfinite(self._relative).all():
            raise NotComputable("The curvature at the synthetic units' mode is nearly singular.")

    def _corrected(self, at: FloatArray) -> FloatArray:
        factor = np.linalg.cholesky(self._n_units * expected_curvature(self._units, at)[self._known])
        informed_there: FloatArray = factor @ self._ratio @ factor.T
        return informed_there

    def information(self, at: FloatArray) -> FloatArray:
        """Return the curvature at some parameters."""
        values, vectors = np.linalg.eigh(self._relative @ self._corrected(at) @ self._relative.T)
        factor = self._least @ (vectors * np.sqrt(np.maximum(values, _LEAST_OF_MODE)))
        found = np.zeros_like(self._at_start)
        found[self._known] = factor @ factor.T
        return found


def known_block(information: FloatArray) -> tuple[NDArray[np.intp], ...]:
    """Return the index of the block of the parameters that the likelihood knows: those with any information."""
    return np.ix_(*2 * [np.diag(information) > 0.0])


def informed(expected: FloatArray, released: Release, scale: Scale) -> FloatArray:
    """Return the curvature of the log-likelihood of all units: `expected`, corrected by a release.

    The eigenvalues of the difference of the two are shrunk as is best for a matrix of low rank in this noise, whose own
    eigenvalues reach up to ``noise_std sqrt(2 size)``: what does not rise above it is left as expected.

    References
    ----------
    Gavish and Donoho (2017), Optimal shrinkage of singular values, IEEE Transactions on Information Theory 63, for
    Frobenius loss.
    """
    along = scale.preconditioner.T @ expected @ scale.preconditioner
    values, vectors = np.linalg.eigh(unpacked(released.value, len(along)) - along)
    reach = released.noise_std * np.sqrt(2.0 * len(along))
    values = np.sign(values) * np.sqrt(np.maximum(values**2 - reach**2, 0.0))
    told = scale.curvature(along + (vectors * values) @ vectors.T)
    known = known_block(expected)
    root = np.linalg.cholesky(positive_definite(expected[known], floor=1e-12))
    inverse = np.linalg.inv(root)
    found = np.zeros_like(expected)
    found[known] = root @ positive_definite(inverse @ told[known] @ inverse.T, floor=_LEAST_RATIO) @ root.T
    return found


def _by_simulation(step: "DPSurrogateHMC") -> WayToCentre:
    """Move from mode to mode of surrogates, each made of rows simulated at the last mode.

    Far from the mode most scores are long, so the first bound is that of rows from all over the prior. Later bounds
    follow the released scores: a bound that most scores reach is doubled; another shrinks to the rows' own spread.
    """
    n_units = step.chain.n_units
    for theta in _starts(step):
        try:
            stand = _stand_at(step, theta)
            break
        except NUMERICAL_FAILURES:
            continue
    else:
        raise _no_start(step)
    bound = _bound_over_the_prior(step, stand)
    stand = replace(stand, units=table_at(step.chain.synthetic_tables, stand.theta))
    for kind in _kinds(step, simulated=True):
        own = stand.scale.clip_gradient
        bound = min(max(bound, own), LARGEST_CLIP_BOUND)
        centre = ExpansionPoint(stand.theta, stand.scale.preconditioner, bound)
        score = step.release_score(centre, kind)
        stand = _next_stand(step, centre, score, stand)
        mean = float(np.linalg.norm(score.value)) / n_units
        noise = 3.0 * score.noise_std * np.sqrt(step.size) / n_units
        bound = 2.0 * bound if mean > 0.5 * bound else min(bound, own + noise + mean)
    return WayToCentre(stand.theta, stand.scale, n_units * _information_of(stand))


@dataclass(frozen=True, eq=False)
class _Stand:
    """A point of the search, where all that the next step needs can be computed."""

    theta: FloatArray
    units: PublicUnits
    scale: Scale


def _stand_at(step: "DPSurrogateHMC", theta: FloatArray) -> _Stand:
    """Return synthetic rows at a point, with preconditioner and clip bounds.

    Raises
    ------
    NotComputable
        If something is no number there.
    """
    units = table_at(step.chain.synthetic_tables, theta)
    scale = scale_of(units, theta, clip_quantile=step.clip_quantile, with_curvature=step.order == 2)
    if not (can_stand_at(step.chain.prior, theta) and np.isfinite(units.scores(theta)).all()):
        raise NotComputable("The prior, or the score of a unit, is no number there.")
    return _Stand(theta, units, scale)


def _next_stand(step: "DPSurrogateHMC", centre: ExpansionPoint, score: Release, stand: _Stand) -> _Stand:
    """Return the mode of the surrogate of a released score, or the farthest point towards it by a line search."""
    try:
        surrogate = WeightedRows(step.chain.prior, centre, stand.units, score.value, step.chain.n_units)
        mode = _mode_of_surrogate(step, surrogate, stand.theta)
    except NUMERICAL_FAILURES:  # the next score may be less noisy
        return stand
    for at in _ahead(stand.theta, mode):
        try:
            return _stand_at(step, at)
        except NUMERICAL_FAILURES:
            continue
    return stand


def _bound_over_the_prior(step: "DPSurrogateHMC", stand: _Stand) -> float:
    """Return a bound that most rows keep where parameters are drawn from the prior; 0 if none can be computed."""
    lengths = []
    for draw in step.chain.synthetic_tables.prior_draws():
        try:
            scores = table_at(step.chain.synthetic_tables, draw).scores(stand.theta) @ stand.scale.preconditioner
        except NUMERICAL_FAILURES:
            continue
        lengths.append(np.linalg.norm(scores, axis=1))
    found = np.concatenate(lengths) if lengths else np.zeros(0)
    found = found[np.isfinite(found)]
    return float(np.quantile(found, _PRIOR_QUANTILE)) if found.size else 0.0


def _information_of(stand: _Stand) -> FloatArray:
    """Return the information of one unit: its expected curvature, or else the mean square of its score."""
    try:
        return expected_curvature(stand.units, stand.theta)
    except NUMERICAL_FAILURES:
        scores = stand.units.scores(stand.theta)
        return positive_definite(scores.T @ scores / len(scores), floor=1e-10)


def _mode_of_surrogate(step: "DPSurrogateHMC", surrogate: WeightedRows, theta: FloatArray) -> FloatArray:
    """Return the surrogate's mode: steps with the information of rows simulated where they start, and backtracking."""

    def step_at(at: FloatArray) -> FloatArray:
        scores = table_at(step.chain.synthetic_tables, at).scores(at)
        information = step.chain.n_units * positive_definite(scores.T @ scores / len(scores), floor=1e-10)
        return solved(information, surrogate.gradient(at))

    return climbed(surrogate.log_density, step_at, theta, most_steps=_MODE_ITERATIONS, least_gain=1e-3)
