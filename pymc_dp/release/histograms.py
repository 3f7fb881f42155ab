"""Counts of units by the size of something: what queries of histograms share."""

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, SMALLEST_CLIP_BOUND
from pymc_dp.release.query import NonNegative, Terms

FloatArray = NDArray[np.float64]

#: What a count is clipped to: counts of 1 keep this bound with room for roundings of the norm.
ROOM_OF_COUNTS = 1.0 + 1e-9
#: Histograms have no more bins.
_MOST_BINS = 1000
#: Floating point has no octaves beyond.
_MOST_OCTAVES = 1100


def octaves(sizes: FloatArray) -> FloatArray:
    """Return the whole part of the binary logarithm of absolute values: exact, and of an entry by itself.

    Vector instructions may round a logarithm otherwise than the same instruction for a single number does: a unit next
    to an edge would then change its bin with the length of the table.
    """
    _, exponents = np.frexp(sizes)
    found: FloatArray = exponents - 1.0
    found[sizes == 0.0] = -np.inf
    found[np.isinf(sizes)] = np.inf
    found[np.isnan(sizes)] = np.nan
    return found


def in_bins(place: FloatArray, bins: int) -> FloatArray:
    """Return a 1 in the bin of each entry, and nothing where a place is no number.

    Places of shape (..., units) give (..., bins, units).
    """
    unknown = np.isnan(place)
    nearest = np.clip(np.where(unknown, 0.0, place), 0, bins - 1).astype(np.intp)
    counts: FloatArray = np.zeros((*place.shape[:-1], bins, place.shape[-1]))
    np.put_along_axis(counts, nearest[..., None, :], np.where(unknown, 0.0, 1.0)[..., None, :], axis=-2)
    return counts


def half_octaves(squares: FloatArray, smallest: float, bins: int) -> FloatArray:
    """Return a 1 in the bin of each unit's norm, shape (units, bins), given squared norms.

    Squares grow by one octave for half an octave of norms.
    """
    return in_bins(octaves(squares / smallest**2), bins).T


class CountsBySize(NonNegative):
    """What queries share that count units by the size of something: each unit is in one bin.

    Attributes
    ----------
    bins : int
        Number of bins; the last one holds all larger sizes.
    """

    bins: int

    def bound(self, terms: Terms) -> float:
        """Return the norm of a unit's counts: it is in one bin."""
        return ROOM_OF_COUNTS

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse bins that no array can hold."""
        if not 1 <= self.bins <= _MOST_BINS:
            raise PrivacyError(f"A histogram has between 1 and {_MOST_BINS} bins.")
        super().refuse_if_unsafe(terms)


class CountsByOctave(CountsBySize):
    """Counts of units by octaves of an absolute value.

    Attributes
    ----------
    lowest : int
        The first bin holds sizes from ``2**lowest`` on, and all smaller ones.
    """

    lowest: int

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse octaves that there are not."""
        if abs(self.lowest) > _MOST_OCTAVES:
            raise PrivacyError(f"The first octave of a histogram is between {-_MOST_OCTAVES} and {_MOST_OCTAVES}.")
        super().refuse_if_unsafe(terms)


class CountsByNorm(CountsBySize):
    """Counts of units by half octaves of a norm.

    Attributes
    ----------
    smallest : float
        The first bin holds norms from here on, and all smaller ones.
    """

    smallest: float

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse numbers that squares cannot be taken of."""
        if not SMALLEST_CLIP_BOUND <= self.smallest <= LARGEST_CLIP_BOUND:
            raise PrivacyError(
                f"The first norm of a histogram is between {SMALLEST_CLIP_BOUND:g} and {LARGEST_CLIP_BOUND:g}."
            )
        super().refuse_if_unsafe(terms)
