"""Linear algebra on simulated rows, on the prior and on released matrices: post-processing of public values."""

import contextlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, SMALLEST_CLIP_BOUND
from pymc_dp.steps.access import PriorDensity, PublicUnits, SyntheticTables

#: The largest admissible parameter: squared distances and variances stay finite.
_FARTHEST = 1e150
#: Exceptions of overflow and of singular matrices. Inputs depend on protected rows through releases only.
NUMERICAL_FAILURES = (ArithmeticError, ValueError, np.linalg.LinAlgError)


class NotComputable(ArithmeticError):
    """A value computed from synthetic units is not finite at a point, or a bound is out of range."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Directions D along which derivatives are released, as D'g and D'HD; `back` turns D'g back into g."""

    preconditioner: FloatArray
    back: FloatArray


def along_first_axis(direction: FloatArray) -> FloatArray:
    """Return axes of which the first is a direction and the others are zero."""
    axes = np.zeros((direction.size, direction.size))
    axes[:, 0] = direction
    return axes


def representable(bound: float) -> float:
    """Return the nearest admissible clip bound."""
    return float(np.clip(bound, SMALLEST_CLIP_BOUND, LARGEST_CLIP_BOUND))


def table_at(synthetic: SyntheticTables, theta: FloatArray) -> PublicUnits:
    """Return a synthetic table; raise `NotComputable` where random number generators refuse the parameters."""
    if not np.isfinite(theta).all():
        raise NotComputable("A synthetic table needs finite parameters.")
    try:
        return synthetic.at(theta)
    except NUMERICAL_FAILURES as failure:
        raise NotComputable("No synthetic table can be simulated at these parameters.") from failure


def expected_curvature(curvatures: FloatArray) -> FloatArray:
    """Return the mean curvature of synthetic units, positive definite in the parameters that it depends on.

    It is zero for parameters outside the likelihood, such as the scale of a hierarchy. `NotComputable` is raised if
    none is finite.
    """
    curvatures = curvatures[np.isfinite(curvatures).all(axis=(1, 2))]
    if not len(curvatures):
        raise NotComputable("No unit has a finite curvature there.")
    mean: FloatArray = curvatures.mean(axis=0)
    if not np.isfinite(mean).all():
        raise NotComputable("The curvatures there are too large for floating point.")
    known = np.ix_(*2 * [np.abs(mean).max(axis=0) > 0.0])
    mean[known] = positive_definite(mean[known])
    return mean


def prior_curvature(prior: PriorDensity, theta: FloatArray, block: NDArray[np.intp] | None = None) -> FloatArray:
    """Return the negative second derivative of the log-prior, of all parameters or of a block of them.

    Negative eigenvalues, as between the scale of a hierarchy and its members, are replaced by their absolute values: a
    step then has the length of a Newton step and increases the density.
    """
    block = np.arange(theta.size) if block is None else block
    if not block.size:
        return np.zeros((0, 0))
    hessian = -prior.hessian(theta)[np.ix_(block, block)]
    # The matrix is scaled to a unit diagonal: parameters in thousands and in thousandths are treated alike.
    units = np.sqrt(np.abs(np.diag(hessian)))
    units = np.where(units > 0.0, units, units.max() or 1.0)
    values, vectors = np.linalg.eigh(hessian / np.outer(units, units))
    magnitudes = np.abs(values)
    magnitudes = np.maximum(magnitudes, 1e-6 * max(float(magnitudes.max()), np.finfo(float).tiny))
    concave: FloatArray = np.outer(units, units) * ((vectors * magnitudes) @ vectors.T)
    return concave


def prior_information(prior: PriorDensity, theta: FloatArray, places: NDArray[np.bool_]) -> FloatArray:
    """Return the prior's information on the parameters at `places`, given all others; zero where not finite."""
    with contextlib.suppress(*NUMERICAL_FAILURES):
        curvature = prior_curvature(prior, theta, np.flatnonzero(places))
        if np.isfinite(curvature).all():
            return embedded(curvature, places)
    return np.zeros((theta.size, theta.size))


def finite_prior_at(prior: PriorDensity, theta: FloatArray) -> bool:
    """Return whether parameters are in range and the prior has a finite density, gradient and curvature."""
    try:
        if not (float(np.abs(theta).max()) < _FARTHEST and np.isfinite(prior.log_density(theta))):
            return False
        return bool(np.isfinite(prior.gradient(theta)).all() and np.isfinite(prior_curvature(prior, theta)).all())
    except NUMERICAL_FAILURES:
        return False


def positive_definite(matrix: FloatArray, floor: float = 1e-8) -> FloatArray:
    """Return the matrix with eigenvalues of at least `floor` times the largest; raise if an entry is not finite.

    Eigenvalues are those of the matrix scaled to a unit diagonal, and do not depend on the units of parameters.
    """
    if not np.isfinite(matrix).all():
        raise NotComputable("A matrix has entries that are no numbers.")
    sizes = np.sqrt(np.abs(np.diag(matrix)))
    sizes = np.where(sizes > 0.0, sizes, 1.0)
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T) / sizes[:, None] / sizes)
    vectors = sizes[:, None] * vectors
    least = floor * max(float(np.abs(values).max()), np.finfo(float).tiny)
    return (vectors * np.maximum(values, least)) @ vectors.T


def embedded(block: FloatArray, places: NDArray[np.bool_]) -> FloatArray:
    """Return the matrix of all parameters with a block in `places` and zeros elsewhere."""
    whole = np.zeros((places.size, places.size))
    whole[np.ix_(places, places)] = block
    return whole


def unpacked(packed: FloatArray, size: int) -> FloatArray:
    """Return the symmetric matrix whose upper triangle is `packed` by rows, off the diagonal times √2."""
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = packed
    off = np.triu(matrix, 1) / np.sqrt(2.0)
    symmetric: FloatArray = np.diag(np.diag(matrix)) + off + off.T
    return symmetric
