"""The search for a centre where rows can be simulated from the model: from mode to mode of surrogates."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, ExpansionPoint, Release
from pymc_dp.release.queries import WeightedScore
from pymc_dp.steps.access import ChainAccess, PublicUnits
from pymc_dp.steps.prelude.density import WeightedRows
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    NotComputable,
    Scale,
    can_stand_at,
    climbed,
    expected_curvature,
    positive_definite,
    scale_of,
    solved,
    table_at,
)
from pymc_dp.steps.prelude.settings import MOST_STEP_BY_SIMULATION

#: How many of the steps are the last ones, and how much more each of them may cost.
_LAST_STEPS, _WEIGHT_OF_LAST = 2, 8.0


def requests_of_simulation(size: int, share: float, steps: int) -> list[ReleaseRequest]:
    """Return what a search releases, at a share of the run's cost: scores.

    The first steps need little precision; the last ones decide how close the centre is.
    """
    last = min(_LAST_STEPS, steps)
    together = (steps - last) + _WEIGHT_OF_LAST * last
    parts = {"approach": (steps - last, 1.0), "centre": (last, _WEIGHT_OF_LAST)}
    return [
        ReleaseRequest(kind, count, share * weight * count / together, size, once=True)
        for kind, (count, weight) in parts.items()
        if count
    ]


@dataclass(frozen=True, eq=False)
class _Stand:
    """A point of the search, where all that the next step needs can be computed."""

    theta: FloatArray
    units: PublicUnits
    scale: Scale


class SearchBySimulation:
    """Move from mode to mode of surrogates, each made of rows simulated at the last mode.

    Far from the mode most scores are long, so the first bound is that of rows from all over the prior. Later bounds
    follow the released scores: a bound that most scores reach is doubled; another shrinks to the rows' own spread.

    It begins at `start`, if scores can be computed there, and releases `steps` scores. No step changes one of `scales`,
    logarithms of positive variables, by more than 2. Bounds do not cut the part `clip_quantile` of the simulated rows.
    """

    def __init__(
        self, chain: ChainAccess, start: FloatArray, scales: NDArray[np.intp], steps: int, clip_quantile: float
    ) -> None:
        self._chain, self._start, self._scales = chain, start, scales
        self._steps, self._clip_quantile = steps, clip_quantile

    def run(self) -> tuple[FloatArray, Scale, FloatArray]:
        """Return a private centre, directions and bounds that suit it, and about the log-likelihood's curvature there.

        No noise of a release ends the search: a step to where scores or bounds cannot be computed is shortened by a
        line search, or left out. Raises `InvalidArgument` if nothing can be computed where the search would begin,
        which is known without the data.
        """
        n_units, size = self._chain.n_units, self._start.size
        stand = self._first_stand()
        bound = self._bound_over_the_prior(stand)
        stand = replace(stand, units=table_at(self._chain.synthetic_tables, stand.theta))
        for request in requests_of_simulation(size, 1.0, self._steps):
            for _ in range(request.count):
                own = stand.scale.clip_gradient
                bound = min(max(bound, own), LARGEST_CLIP_BOUND)
                centre = ExpansionPoint(stand.theta, stand.scale.preconditioner, bound)
                score = self._chain.release(WeightedScore(centre, request.kind))
                stand = self._next_stand(centre, score, stand)
                mean = float(np.linalg.norm(score.value)) / n_units
                noise = 3.0 * score.noise_std * np.sqrt(size) / n_units
                bound = 2.0 * bound if mean > 0.5 * bound else min(bound, own + noise + mean)
        try:
            information = expected_curvature(stand.units, stand.theta)
        except NUMERICAL_FAILURES:
            information = _mean_square_of_scores(stand.units, stand.theta)
        return stand.theta, stand.scale, n_units * information

    def _starts(self) -> Iterator[FloatArray]:
        """Yield where the way may begin: where the model says, at draws of the prior, or near by.

        Where a model is symmetric it often says its centre of symmetry, where all scores are zero.
        """
        yield self._start
        yield from self._chain.synthetic_tables.prior_draws()
        generator = np.random.default_rng(0)
        for _ in range(10):
            yield self._start + generator.uniform(-1.0, 1.0, self._start.size)

    def _first_stand(self) -> _Stand:
        for theta in self._starts():
            try:
                return self._stand_at(theta)
            except NUMERICAL_FAILURES:
                continue
        raise InvalidArgument(
            "DPSurrogateHMC finds no clip bounds: scores of rows simulated from the model are zero or no numbers "
            "wherever the way to a centre could begin. Give the free variables an initval= near plausible values, or "
            "use DPHMC."
        )

    def _stand_at(self, theta: FloatArray) -> _Stand:
        """Return synthetic rows at a point, with preconditioner and clip bounds; raise if something is no number."""
        units = table_at(self._chain.synthetic_tables, theta)
        scale = scale_of(units, theta, clip_quantile=self._clip_quantile)
        if not (can_stand_at(self._chain.prior, theta) and np.isfinite(units.scores(theta)).all()):
            raise NotComputable("The prior, or the score of a unit, is no number there.")
        return _Stand(theta, units, scale)

    def _next_stand(self, centre: ExpansionPoint, score: Release, stand: _Stand) -> _Stand:
        """Return the mode of the surrogate of a released score, or the farthest point towards it by a line search."""
        try:
            surrogate = WeightedRows(self._chain.prior, centre, stand.units, score.value, self._chain.n_units)
            step = self._mode_of(surrogate, stand.theta) - stand.theta
        except NUMERICAL_FAILURES:  # the next score may be less noisy
            return stand
        # Rows that are unlike all simulated ones make a surrogate whose mode is anywhere.
        step[self._scales] = np.clip(step[self._scales], -MOST_STEP_BY_SIMULATION, MOST_STEP_BY_SIMULATION)
        for part in (1.0, 0.5, 0.25, 0.1):
            try:
                return self._stand_at(stand.theta + part * step)
            except NUMERICAL_FAILURES:
                continue
        return stand

    def _bound_over_the_prior(self, stand: _Stand) -> float:
        """Return a bound that most rows keep where parameters are drawn from the prior; 0 if none can be computed."""
        lengths = []
        for draw in self._chain.synthetic_tables.prior_draws():
            try:
                scores = table_at(self._chain.synthetic_tables, draw).scores(stand.theta) @ stand.scale.preconditioner
            except NUMERICAL_FAILURES:
                continue
            lengths.append(np.linalg.norm(scores, axis=1))
        found = np.concatenate(lengths) if lengths else np.zeros(0)
        found = found[np.isfinite(found)]
        return float(np.quantile(found, 0.9)) if found.size else 0.0

    def _mode_of(self, surrogate: WeightedRows, theta: FloatArray) -> FloatArray:
        """Return the surrogate's mode: steps with the information of rows simulated where they start."""

        def step_at(at: FloatArray) -> FloatArray:
            information = _mean_square_of_scores(table_at(self._chain.synthetic_tables, at), at)
            return solved(self._chain.n_units * information, surrogate.gradient(at))

        return climbed(surrogate.log_density, step_at, theta, most_steps=60, least_gain=1e-3)


def _mean_square_of_scores(units: PublicUnits, theta: FloatArray) -> FloatArray:
    """Return the information of one unit by its score, shape (parameters, parameters), positive definite."""
    scores = units.scores(theta)
    return positive_definite(scores.T @ scores / len(scores), floor=1e-10)
