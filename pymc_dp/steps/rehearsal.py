"""What is learned from made-up tables before the data is asked: directions, clip bounds, expected curvature.

All of it is public. Where a table is the user's, everything is read off at that table's own posterior mode, so that
the made-up responses need no relation to the protected ones beyond their kind.
"""

from dataclasses import dataclass

import numpy as np

from pymc_dp.parameters import FloatArray
from pymc_dp.steps.base import LogDensity, PublicUnits

_SPREAD_ITERATIONS = 30
_MODE_ITERATIONS = 100


@dataclass(frozen=True, eq=False)
class Scale:
    """How large scores are, in every direction.

    Attributes
    ----------
    directions : ndarray, shape (parameters, parameters)
        Scores along these columns are spread alike.
    back : ndarray, shape (parameters, parameters)
        Turns a vector of derivatives along the directions into a gradient.
    clip_gradient, clip_curvature : float
        Bounds that nearly all made-up units keep.
    """

    directions: FloatArray
    back: FloatArray
    clip_gradient: float
    clip_curvature: float

    def gradient(self, along: FloatArray) -> FloatArray:
        """Return the gradient with these derivatives along the directions."""
        gradient: FloatArray = self.back @ along
        return gradient

    def curvature(self, along: FloatArray) -> FloatArray:
        """Return the curvature matrix that is `along` the directions."""
        curvature: FloatArray = self.back @ along @ self.back.T
        return curvature


def scale_of(units: PublicUnits, theta: FloatArray, *, kept: float, with_curvature: bool) -> Scale:
    """Return directions along which the scores of made-up units at `theta` are spread alike, and bounds for them.

    The bounds do not cut the part `kept` of the made-up units.

    The directions whiten the scatter matrix in which a unit counts the more the longer its score is: between the
    covariance, which lets rare large scores stick out, and the smallest ellipsoid around all.
    """
    scores = units.scores(theta)
    scores = scores[np.isfinite(scores).all(axis=1)]
    size = scores.shape[1]
    scatter = _regular(np.diag((scores**2).mean(axis=0)))
    for _ in range(_SPREAD_ITERATIONS):
        lengths = np.einsum("ij,jk,ik->i", scores, np.linalg.inv(scatter), scores)
        lengths /= max(lengths.mean(), np.finfo(float).tiny)
        scatter = _regular((scores * lengths[:, None]).T @ scores / len(scores))
    scatter *= size / np.trace(scatter)
    back = np.linalg.cholesky(scatter)
    directions = np.linalg.inv(back).T
    clip_gradient = float(np.quantile(np.linalg.norm(scores @ directions, axis=1), kept))
    clip_curvature = np.inf
    if with_curvature:
        along = np.einsum("ka,ikl,lb->iab", directions, units.curvatures(theta), directions)
        norms = np.sqrt((along**2).sum(axis=(1, 2)))
        clip_curvature = float(np.quantile(norms[np.isfinite(norms)], kept))
    return Scale(directions, back, clip_gradient, clip_curvature)


def expected_curvature(units: PublicUnits, theta: FloatArray) -> FloatArray:
    """Return the mean curvature of made-up units at `theta`, made positive definite."""
    curvatures = units.curvatures(theta)
    return positive_definite(curvatures[np.isfinite(curvatures).all(axis=(1, 2))].mean(axis=0))


def prior_curvature(prior: LogDensity, theta: FloatArray) -> FloatArray:
    """Return the negative second derivative of the log-prior, by central differences of its gradient."""
    step = 1e-4
    columns = [
        (prior.gradient(theta - step * way) - prior.gradient(theta + step * way)) / (2 * step)
        for way in np.eye(theta.size)
    ]
    matrix = np.array(columns)
    return 0.5 * (matrix + matrix.T)


def mode_of(units: PublicUnits, prior: LogDensity, theta: FloatArray, n_units: int) -> FloatArray:
    """Return the posterior mode of made-up units, each counted so often that they stand for `n_units`."""
    weight = n_units / units.n_units

    def log_density(at: FloatArray) -> float:
        return prior.log_density(at) + weight * float(np.sum(units.log_likelihoods(at)))

    value = log_density(theta)
    for _ in range(_MODE_ITERATIONS):
        curvature = n_units * expected_curvature(units, theta) + prior_curvature(prior, theta)
        gradient = prior.gradient(theta) + weight * units.scores(theta).sum(axis=0)
        step = np.linalg.solve(positive_definite(curvature), gradient)
        shorter = 1.0
        while shorter > 1e-6 and not log_density(theta + shorter * step) > value:
            shorter *= 0.5
        if shorter <= 1e-6:
            break
        theta = theta + shorter * step
        gain, value = log_density(theta) - value, log_density(theta)
        if gain < 1e-6:
            break
    return theta


def positive_definite(matrix: FloatArray, floor: float = 1e-8) -> FloatArray:
    """Return the matrix with eigenvalues of at least `floor` times the largest."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    least = floor * max(float(np.abs(values).max()), np.finfo(float).tiny)
    repaired: FloatArray = (vectors * np.maximum(values, least)) @ vectors.T
    return repaired


def _regular(scatter: FloatArray) -> FloatArray:
    """Return the scatter matrix with directions that no score has filled in a little."""
    return positive_definite(scatter, floor=1e-10)
