"""Hamiltonian Monte Carlo on a free log-density, with any number of gradients at no privacy cost."""

import numpy as np

from pymc_dp.model.parameters import NO_BOUNDS, Bounds, FloatArray
from pymc_dp.steps.access import LogDensity
from pymc_dp.steps.prelude.newton import positive_definite

#: The shortest step over the longest: only short steps are accepted where the density has the largest curvature.
_SHORTEST_STEP = 0.2
_LONGEST_STEP = 1.4
_AIM = 0.97
#: The length of trajectories suits if the part of them that reverses direction is between these.
_LEAST_TURNED, _MOST_TURNED = 0.25, 0.4
_LEAST_LEAPFROGS, _MOST_LEAPFROGS = 8, 512  # the least suffice for a normal density
_FIRST_ROUNDS, _MOST_ROUNDS = 4, 12
_TRAJECTORIES_OF_A_ROUND = 250
_MEASURED_TRAJECTORIES = 1000
_MOST_GRADIENTS_APART = 400
_WINDOW = 5.0
_MOST_REFLECTIONS = 20  # in one step


class FreeHMC:
    """A Markov kernel that leaves a free log-density invariant and is reversible.

    It is adapted in a pilot, with public randomness, from a point `theta` near the density's mode, where `curvature` is
    about its negative second derivative. Trajectories never end at points of zero density. At `bounds` of parameters,
    shape (parameters,), they are reflected.

    Attributes
    ----------
    theta, mean, covariance : ndarray
        The last of the pilot's draws, their mean and their covariance.
    spread : ndarray, shape (parameters, parameters)
        A factor of the covariance; of its initial estimate where draws have not moved.
    step_size, length : float
        The longest step of a trajectory, standardised, and its average length in time.
    trajectories_apart : int
        The number of trajectories between nearly independent draws, limited by computing time.

    Notes
    -----
    Step sizes and lengths of trajectories are random and independent of the position, which keeps the kernel
    reversible. Their ranges are adapted in the pilot and fixed afterwards. Reflections: Afshar and Domke (2015),
    Reflection, refraction, and Hamiltonian Monte Carlo, NIPS.
    """

    def __init__(
        self,
        target: LogDensity,
        theta: FloatArray,
        curvature: FloatArray,
        rng: np.random.Generator,
        bounds: Bounds = NO_BOUNDS,
    ) -> None:
        self._target, self._bounds = target, bounds
        self._has_bounds = bool(np.isfinite(np.concatenate([np.ravel(end) for end in bounds])).any())
        self.step_size = 0.5
        self.theta = theta
        self.covariance = positive_definite(np.linalg.inv(positive_definite(curvature)))
        self._factor = np.linalg.cholesky(self.covariance)
        self._leapfrogs = _LEAST_LEAPFROGS
        visited: list[FloatArray] = []
        for done in range(1, _MOST_ROUNDS + 1):
            turned = self._pilot(visited, rng)
            if done < _FIRST_ROUNDS:  # until the step size is adapted
                continue
            if turned < _LEAST_TURNED and self._leapfrogs < _MOST_LEAPFROGS:
                self._leapfrogs *= 2
            elif turned > _MOST_TURNED and self._leapfrogs > _LEAST_LEAPFROGS:
                self._leapfrogs //= 2
            else:
                break
        draws = np.empty((1 + _MEASURED_TRAJECTORIES, theta.size))
        draws[0] = self.theta
        for done in range(_MEASURED_TRAJECTORIES):
            draws[done + 1] = self.run(draws[done], 1, rng)
        self.theta = draws[-1].copy()
        self.mean, self.covariance = np.mean(draws, axis=0), np.atleast_2d(np.cov(draws.T))
        moved = np.diag(self.covariance).min() > 0.0
        self.spread = np.linalg.cholesky(positive_definite(self.covariance, floor=1e-12)) if moved else self._factor
        self.length = 0.25 * self._leapfrogs * self.step_size
        affordable = max(1, round(2 * _MOST_GRADIENTS_APART / self._leapfrogs))
        self.trajectories_apart = min(_independence(draws), affordable)

    def run(self, theta: FloatArray, trajectories: int, rng: np.random.Generator) -> FloatArray:
        """Return the end of some trajectories, each accepted or rejected."""
        for _ in range(trajectories):
            theta, _, _ = self._trajectory(theta, rng)
        return theta

    def _pilot(self, visited: list[FloatArray], rng: np.random.Generator) -> float:
        """Adapt to a round of trajectories; return the part of them that reversed direction."""
        turns = 0
        for count in range(1, _TRAJECTORIES_OF_A_ROUND + 1):
            self.theta, acceptance, turned = self._trajectory(self.theta, rng)
            longer = float(np.exp((acceptance - _AIM) / np.sqrt(count)))
            self.step_size = min(_LONGEST_STEP, self.step_size * longer)
            visited.append(self.theta)
            turns += turned
        scatter = np.atleast_2d(np.cov(np.array(visited[len(visited) // 2 :]).T))
        # A part of the earlier covariance is kept for directions in which the pilot has hardly moved.
        self.covariance = positive_definite(0.9 * scatter + 0.1 * self.covariance)
        self._factor = np.linalg.cholesky(self.covariance)
        return turns / _TRAJECTORIES_OF_A_ROUND

    def _trajectory(self, theta: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, float, bool]:
        """Return the next state, the acceptance probability, and whether the trajectory reversed direction."""
        factor = self._factor
        step_size = self.step_size * _SHORTEST_STEP ** rng.uniform()
        leapfrogs = rng.integers(1, self._leapfrogs, endpoint=True)
        momentum = rng.standard_normal(theta.size)
        log_uniform = -rng.exponential()
        energy = self._target.log_density(theta) - 0.5 * momentum @ momentum
        end, kick = theta, momentum + 0.5 * step_size * factor.T @ self._target.gradient(theta)
        moved = np.zeros(theta.size)
        with np.errstate(over="ignore", invalid="ignore"):
            for leap in range(1, leapfrogs + 1):
                moved = moved + step_size * kick
                if self._has_bounds:
                    end, moved, kick = self._reflected(theta, end, moved, kick)
                else:
                    end = theta + factor @ moved
                part = step_size if leap < leapfrogs else 0.5 * step_size
                kick = kick + part * factor.T @ self._target.gradient(end)
            change = self._target.log_density(end) - 0.5 * kick @ kick - energy
            turned = bool(moved @ kick < 0.0)
        if not np.isfinite(change):
            return theta, 0.0, turned
        return (end if log_uniform < change else theta), float(np.exp(min(0.0, float(change)))), turned

    def _reflected(
        self, theta: FloatArray, before: FloatArray, moved: FloatArray, kick: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return point, displacement and velocity after a straight move from `before`, reflected at the bounds.

        Displacement from `theta` and velocity are standardised. With many reflections the point is not finite.
        """
        for _ in range(_MOST_REFLECTIONS):
            end = theta + self._factor @ moved
            bound = np.where(end < self._bounds[0], self._bounds[0], self._bounds[1])
            crosses = (end < self._bounds[0]) | (end > self._bounds[1])
            if not crosses.any():
                return end, moved, kick
            parts = np.divide(bound - before, end - before, out=np.full(end.size, np.inf), where=crosses)
            first = int(np.argmin(parts))
            before = before + parts[first] * (end - before)
            normal = self._factor[first] / (self._factor[first] @ self._factor[first])
            moved = moved - 2.0 * (end[first] - bound[first]) * normal
            kick = kick - 2.0 * (self._factor[first] @ kick) * normal
        return np.full(theta.size, np.nan), moved, kick


def _independence(draws: FloatArray) -> int:
    """Return the lag, in draws, at which draws and their squares are nearly uncorrelated.

    It is twice the integrated autocorrelation time of the slowest, summed up to five times itself (Sokal 1997, Monte
    Carlo methods in statistical mechanics).
    """
    centred = draws - draws.mean(axis=0)
    columns = np.hstack([centred, centred**2 - np.mean(centred**2, axis=0)]).T
    slowest = 1.0
    for column in columns[np.any(columns != 0.0, axis=1)]:
        correlations = np.correlate(column, column, "full")[len(draws) - 1 :]
        times = 2.0 * np.cumsum(correlations / correlations[0]) - 1.0
        slowest = max(slowest, float(times[np.argmax(np.arange(len(draws)) >= _WINDOW * times)]))
    return int(np.clip(np.ceil(2.0 * slowest), 2, len(draws)))
