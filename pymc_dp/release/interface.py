"""What queries are made of, and what comes back: plain numbers, all of them public."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Squares of smaller numbers vanish in floating point, and norms with them; larger ones overflow.
SMALLEST_CLIP_BOUND, LARGEST_CLIP_BOUND = 1e-100, 1e100


@dataclass(frozen=True, eq=False)
class Release:
    """One metered release: a clipped sum over units with noise added.

    Attributes
    ----------
    kind : str
        ``"gradient"``, ``"log_ratio"``, ``"residual"``, ``"decision"``, ``"clip_count"`` and others.
    value : ndarray
        The noisy value: shape (parameters,) for a gradient, (1,) for a log-ratio, (counts,) for clip counts.
    noise_std : float
        Standard deviation of the noise in each entry of `value`; the noise itself is never kept.
    where : tuple of ndarray
        The position, or positions, it was asked for at: each a vector of unconstrained parameters.
    """

    kind: str
    value: FloatArray
    noise_std: float
    where: tuple[FloatArray, ...]


@dataclass(frozen=True, eq=False)
class ReleasesOfIteration:
    """The releases of one iteration as a single object, which arrays of statistics do not take apart."""

    made: tuple[Release, ...]


@dataclass(frozen=True, eq=False)
class Standardised:
    """A standardised point as a single object, which arrays of statistics do not take apart.

    Attributes
    ----------
    point : ndarray, shape (parameters,)
        By the mean and covariance of what the point was proposed from.
    """

    point: FloatArray


@dataclass(frozen=True, eq=False)
class ExpansionPoint:
    """Where every unit's log-likelihood is expanded, by which preconditioner, and with what bounds.

    A unit whose score is larger than its bound is weighted down as a whole, once: its score, curvature and later
    remainders all carry the same weight in (0, 1]. A curvature that is still larger than its bound is cut alone.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The centre.
    preconditioner : ndarray, shape (parameters, parameters)
        Columns along which derivatives are taken; norms are those of derivatives along them.
    clip_gradient : float
        Bound of the norm of one unit's weighted score.
    clip_curvature : float
        Bound of the Frobenius norm of one unit's curvature (the negative second derivative), weighted and cut. Infinite
        where none is asked for.
    """

    theta: FloatArray
    preconditioner: FloatArray
    clip_gradient: float
    clip_curvature: float = math.inf

    @property
    def key(self) -> bytes:
        """Equal for equal centres."""
        bounds = np.array([self.clip_gradient, self.clip_curvature])
        return self.theta.tobytes() + self.preconditioner.tobytes() + bounds.tobytes()


@dataclass(frozen=True, eq=False)
class Prediction:
    """What an expansion predicts of a unit's log-likelihood at a point, relative to the centre.

    With the unit's score g and curvature H at the centre: ``direction · g``, less half of ``direction · H direction``
    if `with_curvature`, plus `offset`; all of it times the unit's weights.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The point.
    direction : ndarray, shape (parameters,)
        On the unconstrained scale.
    with_curvature : bool
        Whether the curvature is part of it.
    offset : float
        The same for every unit.
    """

    theta: FloatArray
    direction: FloatArray
    with_curvature: bool
    offset: float = 0.0


@dataclass(frozen=True, eq=False)
class GradientPrediction:
    """What an expansion predicts of a unit's gradient at a point, from its gradient g and curvature H at the centre.

    ``jacobian @ g - H @ direction + offset``, all of it times the unit's weight.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
        The point.
    jacobian : ndarray, shape (parameters, parameters)
    direction : ndarray, shape (parameters,)
    offset : ndarray, shape (parameters,)
        The same for every unit.
    """

    theta: FloatArray
    jacobian: FloatArray
    direction: FloatArray
    offset: FloatArray


@dataclass(frozen=True, eq=False)
class Expanded:
    """A log-ratio of which an expansion predicts a part: what is asked for is the rest.

    Attributes
    ----------
    point : ExpansionPoint
        The expansion.
    old, new : Prediction
        What it predicts at both points.
    """

    point: ExpansionPoint
    old: Prediction
    new: Prediction


def plain_vector(theta: FloatArray) -> FloatArray:
    """Return a copy as a plain array of float64, which nobody else holds."""
    # Two steps: an object's own `__array__` may say that it made a copy, and keep what it returned.
    return np.asarray(theta, dtype=np.float64).copy()


def plain_name(name: str) -> str:
    """Return a copy as a plain string, which compares and hashes as its letters do."""
    return str.__str__(name)


def plain_point(point: ExpansionPoint) -> ExpansionPoint:
    """Return a copy of plain numbers, each of them asked for once."""
    return ExpansionPoint(
        plain_vector(point.theta),
        plain_vector(point.preconditioner),
        float(point.clip_gradient),
        float(point.clip_curvature),
    )


def plain_prediction(prediction: Prediction) -> Prediction:
    """Return a copy of plain numbers, each of them asked for once."""
    return Prediction(
        plain_vector(prediction.theta),
        plain_vector(prediction.direction),
        bool(prediction.with_curvature),
        float(prediction.offset),
    )


def plain_gradient_prediction(prediction: GradientPrediction) -> GradientPrediction:
    """Return a copy of plain numbers, each of them asked for once."""
    return GradientPrediction(
        plain_vector(prediction.theta),
        plain_vector(prediction.jacobian),
        plain_vector(prediction.direction),
        plain_vector(prediction.offset),
    )


def plain_expanded(expanded: Expanded) -> Expanded:
    """Return a copy of plain numbers, each of them asked for once."""
    return Expanded(plain_point(expanded.point), plain_prediction(expanded.old), plain_prediction(expanded.new))
