r"""Batches of units: descriptions, the accounted events, and the sampling algorithms of the curator.

A sampler passes a description to the curator, which copies its numbers, compares them with the event that was paid
for, and draws the batch. Therefore the accounting always covers the sampling that is done, and a sampler learns nothing
about the table.

*Poisson*: every unit is included independently with probability q. The gap before the next included unit is geometric,
so the time to draw a batch is proportional to the size of the batch, not to that of the table. With U uniform on (0, 1)
the gap is :math:`\lfloor \ln U / \ln(1-q) \rfloor`, exactly: :math:`P(\text{gap} \ge g) = P(U \le (1-q)^g) = (1-q)^g`.
U is drawn bit by bit: 64 bits give an interval, and floating point, whose error is bounded, determines almost every
gap. If interval and error leave several gaps, more bits are drawn and the logarithms computed in decimal arithmetic,
until one gap is left. If 256 bits do not suffice (probability below 2**-200), the smaller gap is taken. Apart from
that, the distribution of a batch is that of independent Bernoulli trials with exactly the stated q.

*Without replacement*: the first b different values of a sequence of uniform values are a uniform subset of size b.
Uniform values below n are made from 64-bit words by rejection, so they are exactly uniform.
"""

import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from typing import ClassVar

import numpy as np

from pymc_dp import _validate
from pymc_dp.accounting import (
    BarkerReleases,
    PoissonGaussianReleases,
    PoissonSampling,
    Relation,
    Releases,
    SamplingWithoutReplacement,
    WithoutReplacementGaussianReleases,
)
from pymc_dp.exceptions import InvalidArgument, PrivacyError
from pymc_dp.release.noise import IntArray, NoiseSource, Words

#: Weight of the indicators in counts of clipped units, in clip bounds: it raises the noise by 1 % at most.
COUNT_WEIGHT = 0.1
#: A generous bound of the relative error of ln(x) / ln(1 - q) in floating point: four roundings and two logarithms.
_LOG_ERROR = 2.0**-48
#: Below this word, gaps are computed in decimal arithmetic: the interval of U is wide relative to U.
_SMALL_WORD = 2.0**20
_WORD_BITS = 64
_MOST_BITS = 256


@dataclass(frozen=True)
class PoissonBatches(PoissonSampling):
    """Batches that include every unit independently.

    Attributes
    ----------
    sampling_probability : float
        A public number in (0, 1], not computed from the number of units, which is protected.
    """

    relation: ClassVar[Relation] = "add-remove"
    #: Sensitivity of a sum over a batch, divided by the clip bound.
    sensitivity_factor: ClassVar[float] = 1.0
    #: Factor of the sensitivity with counts of clipped units: a unit adds indicators of being clipped and included.
    count_factor: ClassVar[float] = math.sqrt(1.0 + 2.0 * COUNT_WEIGHT**2)

    def __post_init__(self) -> None:
        probability = _validate.part_of_one("sampling_probability", self.sampling_probability)
        object.__setattr__(self, "sampling_probability", probability)

    @property
    def scale(self) -> float:
        """The factor that makes a sum over a batch an unbiased estimate of the sum over all units."""
        return 1.0 / self.sampling_probability

    def releases(self, kind: str, count: int, noise_multiplier: float, coordinates: int = 1) -> PoissonGaussianReleases:
        """Return the event that releases on such batches are accounted for as."""
        return PoissonGaussianReleases(
            kind, count, noise_multiplier, self.sampling_probability, coordinates=coordinates
        )

    def covered_by(self, event: Releases) -> bool:
        """Return whether `event`, which was paid for, covers releases on such batches."""
        return event.sampling == PoissonSampling(self.sampling_probability)


@dataclass(frozen=True)
class BatchesWithoutReplacement(SamplingWithoutReplacement):
    """Batches of a fixed size, each uniform among all subsets of that size.

    Attributes
    ----------
    batch_size : int
        Between 1 and `n_units`.
    n_units : int
        The number of units, which is public.
    """

    relation: ClassVar[Relation] = "substitute"
    sensitivity_factor: ClassVar[float] = 2.0
    #: A replaced unit changes one indicator, of being clipped, and the other entries by twice the clip bound.
    count_factor: ClassVar[float] = math.sqrt(1.0 + (COUNT_WEIGHT / 2.0) ** 2)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_units", _validate.whole("n_units", self.n_units, at_least=1))
        object.__setattr__(self, "batch_size", _validate.whole("batch_size", self.batch_size, at_least=1))
        if self.batch_size > self.n_units:
            raise InvalidArgument(f"batch_size {self.batch_size} is larger than the number of units, {self.n_units}.")

    @property
    def scale(self) -> float:
        """The factor that makes a sum over a batch an unbiased estimate of the sum over all units."""
        return self.n_units / self.batch_size

    def releases(
        self, kind: str, count: int, noise_multiplier: float, coordinates: int = 1
    ) -> WithoutReplacementGaussianReleases:
        """Return the event that releases on such batches are accounted for as."""
        return WithoutReplacementGaussianReleases(
            kind, count, noise_multiplier, self.batch_size, self.n_units, coordinates=coordinates
        )

    def decisions(self, kind: str, count: int) -> BarkerReleases:
        """Return the event that decisions of the Barker test on such batches are accounted for as."""
        return BarkerReleases(kind, count, self.batch_size, self.n_units)

    def covered_by(self, event: Releases) -> bool:
        """Return whether `event`, which was paid for, covers releases on such batches."""
        return event.sampling == SamplingWithoutReplacement(self.batch_size, self.n_units)


Batches = PoissonBatches | BatchesWithoutReplacement


def drawn(batches: Batches, entropy: NoiseSource, n_units: int) -> IntArray:
    """Return a fresh batch in increasing order. Confidential; so is its size, if that is random.

    A table with another number of units than the accounted one raises `PrivacyError`.
    """
    if isinstance(batches, PoissonBatches):
        return _poisson_batch(entropy, batches.sampling_probability, n_units)
    if n_units != batches.n_units:
        raise PrivacyError("The table has another number of units than the one that batches were accounted for with.")
    if 2 * batches.batch_size > n_units:  # the complement takes fewer values
        left_out = distinct_below(entropy, n_units, n_units - batches.batch_size)
        return np.delete(np.arange(n_units, dtype=np.int64), left_out)
    return np.sort(distinct_below(entropy, n_units, batches.batch_size))


def _poisson_batch(entropy: NoiseSource, q: float, n_units: int) -> IntArray:
    """Return the included units, each with probability `q`, in increasing order."""
    if q == 1.0:
        return np.arange(n_units, dtype=np.int64)
    expected = q * n_units
    found: list[IntArray] = []
    last = -1
    while last < n_units:
        missing = max(0.0, expected - sum(len(each) for each in found))
        at_once = int(missing + 4.0 * math.sqrt(missing)) + 8
        units = last + np.cumsum(geometric_gaps(entropy, q, at_once, n_units) + 1)
        found.append(units)
        last = int(units[-1])
    together = np.concatenate(found)
    return together[: np.searchsorted(together, n_units)]


def geometric_gaps(entropy: NoiseSource, q: float, count: int, largest: int) -> IntArray:
    """Return independent geometric numbers of failures before a success of probability `q`, at most `largest` each."""
    words = entropy.words(count)
    lower = words.astype(np.float64)
    with np.errstate(divide="ignore"):
        gaps = np.log((lower + 0.5) * 2.0**-_WORD_BITS) / math.log1p(-q)
    # The width of the gap's interval, from U's interval (one step of 2**64) and from rounding the word to 53 bits.
    width = (2.0**-52 + 2.0 / np.maximum(lower, 1.0)) / -math.log1p(-q)
    unsettled = (lower < _SMALL_WORD) | (np.abs(gaps - np.rint(gaps)) <= width + _LOG_ERROR * gaps)
    settled = np.minimum(gaps, float(largest)).astype(np.int64)
    for place in np.flatnonzero(unsettled):
        settled[place] = min(_settled_gap(entropy, q, int(words[place])), largest)
    return settled


def _settled_gap(entropy: NoiseSource, q: float, word: int) -> int:
    """Return floor(ln U / ln(1 - q)) for the U whose first 64 bits are `word`, drawing more of its bits as needed."""
    bits = _WORD_BITS
    while True:
        # One decimal digit for each bit is three times the necessary precision of U; a small q needs further digits.
        digits = bits + 40 - 2 * math.floor(math.log10(q))
        context = Context(prec=digits, rounding=ROUND_FLOOR, Emin=-(10**6), Emax=10**6)
        one_step = context.power(Decimal(2), -bits)
        log_rest = context.ln(context.subtract(Decimal(1), Decimal(q)))
        gaps = [
            math.floor(context.divide(context.ln(context.multiply(Decimal(end), one_step)), log_rest))
            for end in (word + 1, word)  # the upper end of the interval of U gives the smallest gap
            if end > 0
        ]
        if (word > 0 and gaps[0] == gaps[1]) or bits >= _MOST_BITS:
            return gaps[0]
        word = (word << _WORD_BITS) | int(entropy.words(1)[0])
        bits += _WORD_BITS


def uniform_below(entropy: NoiseSource, limit: int, count: int) -> IntArray:
    """Return `count` independent values, exactly uniform on 0, ..., limit - 1."""
    beyond = 2**_WORD_BITS // limit * limit
    found: list[Words] = []
    missing = count
    while missing > 0:
        words = entropy.words(missing)
        words = words if beyond == 2**_WORD_BITS else words[words < np.uint64(beyond)]
        found.append(words % np.uint64(limit))
        missing -= len(words)
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, dtype=np.int64)


def distinct_below(entropy: NoiseSource, limit: int, count: int) -> IntArray:
    """Return a uniform subset of `count` of 0, ..., limit - 1: the first different values of a uniform sequence."""
    values = np.zeros(0, dtype=np.int64)
    while len(values) < count:
        values = np.concatenate([values, uniform_below(entropy, limit, 2 * (count - len(values)) + 8)])
        _, first = np.unique(values, return_index=True)
        values = values[np.sort(first)]
    return values[:count]
