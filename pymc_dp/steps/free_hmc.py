"""Hamiltonian Monte Carlo on a free log-density: as many gradients as it likes, at no cost in privacy."""

import arviz as az
import numpy as np

from pymc_dp.parameters import FloatArray
from pymc_dp.steps.base import LogDensity
from pymc_dp.steps.rehearsal import positive_definite

#: A trajectory is about this long, in standard deviations, within so many leapfrog steps.
_LENGTH = 2.0
_LEAST_LEAPFROG, _MOST_LEAPFROG = 4, 40
_PILOT_ROUNDS = 4
_PILOT_TRAJECTORIES = 150
_AIM = 0.92
_MEASURED_TRAJECTORIES = 1000
_MOST_TRAJECTORIES_APART = 50


class FreeHMC:
    """A Markov kernel that leaves a free log-density invariant and is reversible.

    Parameters
    ----------
    target : LogDensity
        The log-density, minus infinity where it is not to go.
    theta : ndarray, shape (parameters,)
        A point near its mode.
    curvature : ndarray, shape (parameters, parameters)
        About its negative second derivative there.
    rng : Generator
        Public randomness, for the adaptation.

    Attributes
    ----------
    covariance : ndarray, shape (parameters, parameters)
        Of the pilot draws.
    theta : ndarray, shape (parameters,)
        Where the pilot ended.
    trajectories_apart : int
        How many trajectories lie between draws that are nearly independent.
    """

    def __init__(self, target: LogDensity, theta: FloatArray, curvature: FloatArray, rng: np.random.Generator) -> None:
        self._target = target
        self._step_size: float = 0.5
        self.theta = theta
        self.covariance = positive_definite(np.linalg.inv(positive_definite(curvature)))
        for _ in range(_PILOT_ROUNDS):
            self._factor = np.linalg.cholesky(self.covariance)
            draws = []
            for count in range(1, _PILOT_TRAJECTORIES + 1):
                self.theta, acceptance = self._trajectory(self.theta, rng)
                self._step_size = min(1.0, self._step_size * float(np.exp((acceptance - _AIM) / np.sqrt(count))))
                draws.append(self.theta)
            kept = np.array(draws[_PILOT_TRAJECTORIES // 3 :])
            scatter = np.atleast_2d(np.cov(kept.T))
            # A little of what was believed before keeps directions that the pilot has hardly moved in.
            self.covariance = positive_definite(0.9 * scatter + 0.1 * self.covariance)
        self._factor = np.linalg.cholesky(self.covariance)
        draws = [self.theta]
        for _ in range(_MEASURED_TRAJECTORIES):
            draws.append(self.run(draws[-1], 1, rng))
        self.theta = draws[-1]
        self.covariance = np.atleast_2d(np.cov(np.array(draws).T))
        self.trajectories_apart = _independence(np.array(draws))

    def run(self, theta: FloatArray, trajectories: int, rng: np.random.Generator) -> FloatArray:
        """Return where some trajectories, each accepted or rejected, lead."""
        for _ in range(trajectories):
            theta, _ = self._trajectory(theta, rng)
        return theta

    def _trajectory(self, theta: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, float]:
        factor = self._factor
        step_size = self._step_size * rng.uniform(0.6, 1.4)
        momentum = rng.standard_normal(theta.size)
        log_uniform = -rng.exponential()
        n_leapfrog = int(np.clip(round(_LENGTH / self._step_size), _LEAST_LEAPFROG, _MOST_LEAPFROG))
        energy = self._target.log_density(theta) - 0.5 * momentum @ momentum
        end, kick = theta, momentum + 0.5 * step_size * factor.T @ self._target.gradient(theta)
        with np.errstate(over="ignore", invalid="ignore"):
            for leap in range(1, n_leapfrog + 1):
                end = end + step_size * factor @ kick
                part = step_size if leap < n_leapfrog else 0.5 * step_size
                kick = kick + part * factor.T @ self._target.gradient(end)
            change = self._target.log_density(end) - 0.5 * kick @ kick - energy
        if not np.isfinite(change):
            return theta, 0.0
        return (end if log_uniform < change else theta), float(np.exp(min(0.0, float(change))))


def _independence(draws: FloatArray) -> int:
    """Return after how many of the draws their correlation, and that of their squares, has died away."""
    centred = draws - draws.mean(axis=0)
    slowest = min(float(az.ess(column[None], method="mean")) for column in np.hstack([centred, centred**2]).T)
    return int(np.clip(np.ceil(2.0 * len(draws) / slowest), 2, _MOST_TRAJECTORIES_APART))
