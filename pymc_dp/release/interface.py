"""Public parts of queries and releases: plain numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.rows import expansion

FloatArray = NDArray[np.float64]
ExpansionPoint = expansion.ExpansionPoint
Prediction = expansion.Prediction

#: Squares of smaller numbers, and so norms, underflow in floating point; squares of larger numbers overflow.
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
        The point or points of the query: vectors of unconstrained parameters.
    levels : tuple of (str, str)
        For counts above a threshold: the column and the level of each entry of `value`.
    """

    kind: str
    value: FloatArray
    noise_std: float
    where: tuple[FloatArray, ...]
    levels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class ReleasesOfIteration:
    """The releases of one iteration as a single object, which NumPy does not convert to an array."""

    made: tuple[Release, ...]


@dataclass(frozen=True, eq=False)
class Standardised:
    """A point standardised by mean and covariance of its proposal, as an object that NumPy does not convert."""

    point: FloatArray


@dataclass(frozen=True, eq=False)
class GradientPrediction:
    """An expansion's prediction of a unit's gradient at `theta`, from its gradient g and curvature H at the centre.

    The prediction is ``jacobian @ g - H @ direction + offset`` times the unit's weight. `jacobian` has the shape
    (parameters, parameters), the others (parameters,); they are the same for every unit.
    """

    theta: FloatArray
    jacobian: FloatArray
    direction: FloatArray
    offset: FloatArray


@dataclass(frozen=True, eq=False)
class Expanded:
    """The remainder of a log-ratio between two points, beyond an expansion's predictions `old` and `new`."""

    point: ExpansionPoint
    old: Prediction
    new: Prediction
