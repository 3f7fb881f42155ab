"""Settings of samplers, checked or built before any data is read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pymc.step_methods.hmc.quadpotential import QuadPotential, quad_potential

from pymc_dp import _validate
from pymc_dp.accounting import Releases
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, SMALLEST_CLIP_BOUND

#: Settings that a prelude can learn, with their descriptions in error messages.
MEANINGS = {
    "clip_gradient": "the norm of one unit's gradient",
    "clip_log_ratio": "how fast one unit's log-likelihood can change, per unit of distance",
    "step_size": "about the posterior's narrowest standard deviation",
}


def required(name: str, value: float | None, meaning: str) -> float:
    """Return a setting above zero that has no data-free default, or raise `InvalidArgument`.

    One whose name begins with ``clip_`` is a clip bound: see `clip_bound`.
    """
    if value is None:
        raise InvalidArgument(
            f"{name} is required ({meaning}). Choose it from public knowledge or on simulated data of the same "
            "shape, never on the data to be protected."
        )
    return clip_bound(name, value) if name.startswith("clip_") else _validate.positive(name, value)


def setting(name: str, value: float | None, *, learns: bool) -> float:
    """Return a setting of `MEANINGS`: NaN if a prelude learns it, else that of `required`."""
    return math.nan if value is None and learns else required(name, value, MEANINGS[name])


def clip_bound(name: str, value: float) -> float:
    """Return a clip bound in the range of floating point, or raise `InvalidArgument`."""
    bound = _validate.positive(name, value)
    if not SMALLEST_CLIP_BOUND <= bound <= LARGEST_CLIP_BOUND:
        raise InvalidArgument(
            f"{name} must be at least {SMALLEST_CLIP_BOUND:g} and at most {LARGEST_CLIP_BOUND:g}, but is {value}."
        )
    return bound


def given_noise(noise_multipliers: Any, kinds: Sequence[str]) -> dict[str, float]:
    """Return the user's noise multipliers by kind of release, or raise `InvalidArgument`."""
    if noise_multipliers is None:
        return {}
    known = " and ".join(map(repr, kinds))
    if not isinstance(noise_multipliers, Mapping) or not noise_multipliers:
        raise InvalidArgument(f"noise_multipliers must be a dict by kind of release; the kinds here: {known}.")
    unknown = sorted(
        f"a {type(name).__name__}" if not isinstance(name, str) else repr(name)
        for name in noise_multipliers
        if name not in kinds
    )
    if unknown:
        raise InvalidArgument(f"noise_multipliers names {', '.join(unknown)}; the kinds here: {known}.")
    return {
        kind: _validate.positive(f"noise_multipliers[{kind!r}]", noise_multipliers[kind])
        for kind in kinds
        if kind in noise_multipliers
    }


def with_given_noise(
    requests: Sequence[ReleaseRequest], noise_multipliers: Mapping[str, float]
) -> list[ReleaseRequest | Releases]:
    """Return requests with the user's noise; the rest of the budget pays for the others."""
    rest = math.fsum(each.share for each in requests if each.kind not in noise_multipliers)
    return [
        each.releases(1).with_noise(noise_multipliers[each.kind])
        if each.kind in noise_multipliers
        else replace(each, share=each.share / rest)
        for each in requests
    ]


def kinetic_energy(mass_matrix: ArrayLike | None, size: int) -> QuadPotential:
    """Return PyMC's kinetic energy for a mass matrix, the covariance of the momentum, or raise `InvalidArgument`."""
    if mass_matrix is None:
        return quad_potential(np.ones(size), is_cov=False)
    try:
        matrix = np.asarray(mass_matrix, dtype=np.float64)
    except (OverflowError, TypeError, ValueError):
        raise InvalidArgument("mass_matrix must be a vector or a matrix of numbers, or a dict of them.") from None
    if matrix.shape not in ((size,), (size, size)):
        raise InvalidArgument(
            "mass_matrix must be a vector with one entry for each unconstrained parameter that the step moves, or a "
            f"square matrix of as many rows, but has shape {matrix.shape}."
        )
    finite = bool(np.isfinite(matrix).all())
    if finite and matrix.ndim == 2 and not np.allclose(matrix, matrix.T):
        raise InvalidArgument("mass_matrix must be symmetric.")
    if not finite or (np.linalg.eigvalsh(matrix) if matrix.ndim == 2 else matrix).min() <= 0.0:
        raise InvalidArgument("mass_matrix must be finite and positive definite.")
    return quad_potential(matrix, is_cov=False)


class MassMatrix:
    """The covariance of the momentum by its eigenvalues, `masses`, for cheap matrix functions."""

    def __init__(self, mass_matrix: ArrayLike | None, size: int) -> None:
        kinetic_energy(mass_matrix, size)  # checks it
        self.masses: FloatArray = np.ones(size) if mass_matrix is None else np.asarray(mass_matrix, dtype=np.float64)
        self._vectors: FloatArray | None = None
        if self.masses.ndim == 2:
            self.masses, self._vectors = np.linalg.eigh(self.masses)

    def times(self, values: FloatArray, vector: FloatArray) -> FloatArray:
        """Return f(M) `vector`, given the `values` of f at the masses."""
        if self._vectors is None:
            return values * vector
        return self._vectors @ (values * (self._vectors.T @ vector))

    def velocity(self, momentum: FloatArray) -> FloatArray:
        """Return M⁻¹p."""
        return self.times(1.0 / self.masses, momentum)

    def random_momentum(self, rng: np.random.Generator) -> FloatArray:
        """Return a draw from N(0, M)."""
        return self.times(np.sqrt(self.masses), rng.normal(size=self.masses.size))
