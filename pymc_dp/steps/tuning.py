"""Settings of samplers that are checked or built before any data is touched."""

import numpy as np
from numpy.typing import ArrayLike
from pymc.step_methods.hmc.quadpotential import QuadPotential, quad_potential

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument

#: Squares of smaller numbers vanish in floating point, and norms with them.
SMALLEST_CLIP_BOUND = 1e-100


def required(name: str, value: float | None, meaning: str) -> float:
    """Return a setting that has no data-free default, or raise `InvalidArgument`."""
    if value is None:
        raise InvalidArgument(
            f"{name} is required ({meaning}). Choose it from public knowledge or on simulated data of the same "
            "shape, never on the data to be protected."
        )
    return _validate.positive(name, value)


def kinetic_energy(mass_matrix: ArrayLike | None, size: int) -> QuadPotential:
    """Return PyMC's kinetic energy for a mass matrix: the covariance of the momentum.

    Raises
    ------
    InvalidArgument
        If the matrix has the wrong shape or is not positive definite.
    """
    if mass_matrix is None:
        return quad_potential(np.ones(size), is_cov=False)
    matrix = np.asarray(mass_matrix, dtype=np.float64)
    if matrix.shape not in ((size,), (size, size)):
        raise InvalidArgument(
            f"mass_matrix must have shape ({size},) or ({size}, {size}), one entry for each unconstrained "
            f"parameter, but has {matrix.shape}."
        )
    if not np.isfinite(matrix).all():
        raise InvalidArgument("mass_matrix must be finite and positive definite.")
    if matrix.ndim == 2 and not np.allclose(matrix, matrix.T):
        raise InvalidArgument("mass_matrix must be symmetric.")
    eigenvalues = np.linalg.eigvalsh(matrix) if matrix.ndim == 2 else matrix
    if eigenvalues.min() <= 0.0:
        raise InvalidArgument("mass_matrix must be finite and positive definite.")
    return quad_potential(matrix, is_cov=False)
