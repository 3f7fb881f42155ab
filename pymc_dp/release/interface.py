"""The parts of queries, and their answers: plain numbers, all of them public."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.rows import expansion

FloatArray = NDArray[np.float64]
ExpansionPoint = expansion.ExpansionPoint
Prediction = expansion.Prediction

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
    levels : tuple of (str, str)
        Of counts above a threshold: the column and the level that each entry of `value` counts.
    """

    kind: str
    value: FloatArray
    noise_std: float
    where: tuple[FloatArray, ...]
    levels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class ReleasesOfIteration:
    """The releases of one iteration as a single object, which arrays of statistics do not take apart."""

    made: tuple[Release, ...]


@dataclass(frozen=True, eq=False)
class Standardised:
    """A point in units of its proposal's mean and covariance, which arrays of statistics do not take apart."""

    point: FloatArray


@dataclass(frozen=True, eq=False)
class GradientPrediction:
    """An expansion's prediction of a unit's gradient at `theta`, from its gradient g and curvature H at the centre.

    ``jacobian @ g - H @ direction + offset``, all of it times the unit's weight. `jacobian` has the shape (parameters,
    parameters), the others (parameters,); they are the same for every unit.
    """

    theta: FloatArray
    jacobian: FloatArray
    direction: FloatArray
    offset: FloatArray


@dataclass(frozen=True, eq=False)
class Expanded:
    """A log-ratio between two points of which an expansion predicts `old` and `new`: the rest is asked for."""

    point: ExpansionPoint
    old: Prediction
    new: Prediction
