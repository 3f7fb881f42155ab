"""Compare processes by the bits of values of synthetic rows, and by versions of packages.

Sums of partitions have the same bits on all machines if each machine computes the same bits for a row. Compiled code
does so on machines of one kind. This is checked, not assumed: each process computes log-likelihoods and derivatives of
the template's rows, which are public, and the results are compared.
"""

import hashlib
import platform
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version

import numpy as np

from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.likelihood import UnitLikelihood

#: Packages that determine the bits, and the block of a unit.
_PACKAGES = ("pymc_dp", "pymc", "pytensor", "numba", "llvmlite", "numpy", "pandas", "scipy")
#: Points at which rows are evaluated: near zero, at usual distances, and far out.
_SCALES = (0.0, 0.1, 0.5, 1.0, 3.0, 10.0)


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute rows."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def bits_of(template: UnitLikelihood) -> str:
    """Return a digest of the values of the template's rows. Public, as its rows are."""
    digest = hashlib.blake2b(digest_size=16)
    with np.errstate(all="ignore"):
        for values in _values(template):
            # NaN has many bit patterns.
            known = np.where(np.isnan(values), np.nan, values)
            digest.update(np.ascontiguousarray(known).tobytes())
    return digest.hexdigest()


def _values(template: UnitLikelihood) -> Iterator[FloatArray]:
    """Yield log-likelihoods and derivatives of the template's rows at points near and far."""
    generator = np.random.default_rng(0)
    for scale in _SCALES:
        theta, direction = generator.normal(size=(2, template.n_parameters)) * [[scale], [1.0]]
        yield template.all_log_likelihoods(theta)
        for found in template.each_chunk(partial(_derivatives, theta, direction)):
            yield from found


def _derivatives(theta: FloatArray, direction: FloatArray, chunk: UnitsOfChunk) -> list[FloatArray]:
    return [chunk.gradient(theta), chunk.curvature_times(theta, direction)]
