"""The same releases in the words of ``dp_accounting``, Google's library, for a second opinion on what they cost.

Nothing else of this package uses that library: it is imported when one of these functions is called.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from pymc_dp.exceptions import NoDpAccountingEvent


class Convertible(Protocol):
    """Releases: `pymc_dp.accounting.events.Releases`, which calls this module."""

    def to_dp_accounting(self) -> Any:
        """Return the releases as a ``dp_accounting.DpEvent``."""
        ...


def to_dp_accounting(releases: Sequence[Convertible]) -> Any:
    """Return releases together as one ``dp_accounting.ComposedDpEvent``. See `Releases.to_dp_accounting`.

    Raises
    ------
    NoDpAccountingEvent
        If `dp_accounting` has no such event, or is not installed.
    """
    return _library().ComposedDpEvent([each.to_dp_accounting() for each in releases])


def gaussian(count: int, noise_multiplier: float) -> Any:
    """Return Gaussian releases of all rows."""
    library = _library()
    return library.SelfComposedDpEvent(library.GaussianDpEvent(noise_multiplier), count)


def poisson_gaussian(count: int, noise_multiplier: float, sampling_probability: float) -> Any:
    """Return Gaussian releases of Poisson samples."""
    library = _library()
    single = library.PoissonSampledDpEvent(sampling_probability, library.GaussianDpEvent(noise_multiplier))
    return library.SelfComposedDpEvent(single, count)


def without_replacement_gaussian(count: int, noise_multiplier: float, batch_size: int, n_units: int) -> Any:
    """Return Gaussian releases of batches of a fixed size."""
    library = _library()
    single = library.SampledWithoutReplacementDpEvent(n_units, batch_size, library.GaussianDpEvent(noise_multiplier))
    return library.SelfComposedDpEvent(single, count)


def no_event(what: str) -> NoDpAccountingEvent:
    """Return the error of releases that the library has no event for."""
    return NoDpAccountingEvent(f"dp_accounting has no event for {what}: account for them with pymc_dp.accounting.")


def _library() -> Any:
    try:
        return importlib.import_module("dp_accounting")
    except ImportError:
        raise NoDpAccountingEvent(
            "dp_accounting is not installed: install it, or pymc_dp with its extra of that name "
            "(pip install 'pymc_dp[dp-accounting]')."
        ) from None
