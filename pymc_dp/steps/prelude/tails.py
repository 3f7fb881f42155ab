"""The tail of a noisy histogram of norms, and the clip bound that minimises squared bias plus variance."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.prelude import settings

#: Octaves of a histogram of the entries of scores, and how many there are.
LOWEST_OCTAVE, OCTAVES = -24, 49
#: The prior range, in octaves, of the scores of a parameter that noise may hide, relative to the others'.
_NEAR_TYPICAL = 6
#: The octaves above that of the largest count in which scores are usual.
_OCTAVES_ABOVE = 3
#: Half octaves of a histogram of norms, relative to the norm of a typical unit.
LOWEST_HALF_OCTAVE, BINS = -12, 41
#: A bin is used if its count exceeds this many standard deviations of its noise.
_CLEAR_BIN = 4.0
#: The tail begins at this quantile.
_BELOW_TAIL = 0.8
#: Fitted tails: the number of units at least x half octaves above the beginning is a N exp(-s x - c x²).
_TAIL_BINS = 17
_STEEPNESS = np.linspace(0.3, 6.0, 24)[:, None, None]
_CONCAVITY = np.array([0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0])[None, :, None]
_MASS = np.exp(np.linspace(np.log(0.03), np.log(0.5), 24))
#: Norms of outliers follow a power law: P(norm > x) is proportional to x to minus this power.
_POWER_OF_OUTLIERS = 1.75
#: Norms are no exact sample of a smooth tail: the relative standard deviation of a bin beyond noise.
_ROUGHNESS = 0.1
#: A bin that differs from the fit by more standard deviations keeps its own count: rare groups make modes in the tail.
_BUMP = np.where(np.arange(_TAIL_BINS) <= 3, 2.5, np.where(np.arange(_TAIL_BINS) <= 7, 4.0, 5.0))
_QUADRATURE = (np.arange(8) + 0.5) / 8
#: Frames determine the mean of norms, or of their squares, for a correct model near the mode: a tail whose own
#: contribution exceeds it by this factor is one standard deviation off.
_LARGER_BY = 2.0
#: Truncation of norms in `squares_kept`, in clip bounds. Of 2, 3, 4 and more, on three distributions of norms and 2,400
#: to 20,000 units, 3 had an error below .08, and larger ones did not.
_MOST_BOUNDS = 3.0


_DISTANCES = np.arange(_TAIL_BINS) * np.log(2.0) / 2.0
_BEYOND = np.exp(-_STEEPNESS * _DISTANCES - _CONCAVITY * _DISTANCES**2).reshape(-1, _TAIL_BINS)
_IN_BINS = -np.diff(np.column_stack([_BEYOND, np.zeros(len(_BEYOND))]), axis=1)
#: The part of units that each tail has in each of its bins, shape (tails, masses, bins).
_TAILS: FloatArray = _MASS[None, :, None] * _IN_BINS[:, None, :]


@dataclass(frozen=True, eq=False)
class Histogram:
    """Noisy counts of norms in half octaves; `smallest` is the lower edge of the first bin."""

    counts: FloatArray
    noise_std: float
    smallest: float

    def with_earlier(self, earlier: "Histogram | None", trust: float) -> "Histogram":
        """Return the weighted mean with an earlier histogram, whose precision is multiplied by `trust`."""
        if earlier is None or earlier.counts.shape != self.counts.shape:
            return self
        own, others = self.noise_std**-2, trust * earlier.noise_std**-2
        counts = (own * self.counts + others * earlier.counts) / (own + others)
        return Histogram(counts, (own + others) ** -0.5, self.smallest)

    @property
    def _seen(self) -> FloatArray:
        """The counts that exceed noise, zero in other bins."""
        return np.where(self.counts > _CLEAR_BIN * self.noise_std, self.counts, 0.0)

    def log_mean(self, n_units: int) -> float:
        """Return the logarithm of the mean norm, infinite where bins above noise hold less than half of the units."""
        seen = self._seen
        if seen.sum() < 0.5 * n_units:
            return np.inf
        middles = self.smallest * 2.0 ** ((np.arange(seen.size) + 0.5) / 2)
        return float(np.log(seen @ middles / seen.sum()))

    def quantile(self, part: float, n_units: int) -> float:
        """Return an upper bin edge, about the quantile `part` of the norms.

        It uses bins above noise if they hold most units: the noise of many empty bins would exceed a small part.
        """
        seen = self._seen
        counts, total = (seen, seen.sum()) if seen.sum() > 0.5 * n_units else (self.counts, n_units)
        above = np.cumsum(counts) > part * total
        place = int(np.argmax(above)) if above.any() else len(above) - 1
        return float(self.smallest * 2.0 ** ((place + 1) / 2))


class Tail:
    """The tail of a histogram: the posterior mean over smooth tails, with the counts of bins that clearly differ.

    `mean` is the mean over units of the norms to `power` in the frame: 1 for curvatures, 2 for scores. It excludes too
    long tails.
    """

    def __init__(self, histogram: Histogram, n_units: int, *, mean: float | None = None, power: int = 2) -> None:
        counts, noise = histogram.counts, histogram.noise_std
        above = np.cumsum(counts) > _BELOW_TAIL * n_units
        last = len(counts) - _TAIL_BINS
        start = min(int(np.argmax(above)), last) if above.any() else last
        counts = counts[start : start + _TAIL_BINS]
        expected = n_units * _TAILS
        variance = noise**2 + expected + (_ROUGHNESS * expected) ** 2
        # The penalty of one bin is limited to three standard deviations.
        misfit = np.minimum((counts - expected) ** 2 / variance, 9.0) + np.log(variance)
        begins_at = histogram.smallest * 2.0 ** (start / 2)
        penalty = misfit.sum(axis=2)
        if mean is not None:
            middles = begins_at * 2.0 ** ((np.arange(_TAIL_BINS) + 0.5) / 2)
            larger = np.log2(_TAILS @ middles**power / mean) / np.log2(_LARGER_BY)
            penalty = penalty + np.maximum(larger, 0.0) ** 2
        weights = np.exp(-0.5 * (penalty - penalty.min()))
        weights /= weights.sum()
        fit = np.einsum("ij,ijk->k", weights, expected)
        spread = np.maximum(np.einsum("ij,ijk->k", weights, expected**2) - fit**2, 0.0)
        bump = np.abs(counts - fit) > _BUMP * np.sqrt(noise**2 + fit + spread + (_ROUGHNESS * fit) ** 2)
        self._counts = np.maximum(np.where(bump, counts, fit), 0.0)
        self._std = np.sqrt(np.where(bump, noise**2, spread))
        self._probabilities, self._bump = weights, bump
        self._begin, self._n_units = begins_at, n_units
        below = np.maximum(histogram.counts[:start], 0.0)
        self._squares_below = float(below @ (histogram.smallest**2 * 2.0 ** (np.arange(start) + 0.5)))

    @property
    def _lengths(self) -> FloatArray:
        """Norms at quadrature points of each bin, shape (bins, points)."""
        lengths: FloatArray = self._begin * 2.0 ** ((np.arange(_TAIL_BINS)[:, None] + _QUADRATURE) / 2.0)
        return lengths

    def _lost(self, bound: float, at_most: float = np.inf) -> FloatArray:
        return np.clip(self._lengths - bound, 0.0, at_most).mean(axis=1)

    def units_kept(self, bound: float) -> float:
        """Return the part of the units whose norm is at most `bound`."""
        return 1.0 - float(self._counts @ (self._lengths > bound).mean(axis=1)) / self._n_units

    def squares_kept(self, bound: float) -> float:
        """Return the sum over units of norm times clipped norm, as a part of the sum of squared norms.

        Noise makes tails too long, and their squares are most of the sum: norms are truncated at three bounds.
        """
        lengths = np.minimum(self._lengths, _MOST_BOUNDS * bound)
        lost = float(self._counts @ (lengths * np.clip(lengths - bound, 0.0, None)).mean(axis=1))
        all_units = self._squares_below + float(self._counts @ (lengths**2).mean(axis=1))
        return 1.0 - lost / max(all_units, np.finfo(float).tiny)

    def capped_loss(self, bound: float) -> float:
        """Return the norm that clipping removes, summed over units, in bounds and at most one for each unit."""
        return float(self._counts @ self._lost(bound, at_most=bound)) / bound

    def add_outliers(self, bound: float, capped_loss: float) -> None:
        """Add units beyond `bound`, by a power law with the given `capped_loss` at it.

        Outliers too few for a noisy histogram may cause most of the norm that clipping removes.
        """
        power = 1.0 - _POWER_OF_OUTLIERS
        edges = self._begin * 2.0 ** (np.arange(_TAIL_BINS + 1) / 2)
        edges[-1] = np.inf
        beyond = np.maximum(edges / bound, 1.0) ** -_POWER_OF_OUTLIERS
        n_outliers = capped_loss * power / (2.0**power - 1.0)
        self._counts = self._counts - n_outliers * np.diff(beyond)

    def lost_beyond(self, bound: float) -> float:
        """Return the ratio of the lost norm to that with a limit of one `bound` for each unit."""
        capped = float(self._counts @ self._lost(bound, at_most=bound))
        return float(self._counts @ self._lost(bound)) / capped if capped > 0.0 else 1.0

    def lost_length(self, bound: float, expected: float = 0.0) -> float:
        """Return the root mean square of the norm beyond `bound`, summed over units, given the uncertainty of the tail.

        The `expected` loss, which is corrected elsewhere, is subtracted first.
        """
        lost = self._lost(bound)
        total = float(self._counts @ lost) - expected
        return float(np.sqrt(total**2 + np.sum((self._std * lost) ** 2)))

    def hidden_length(self, bound: float) -> float:
        """Return the standard deviation of the lost norm over the fitted tails."""
        lost = self._n_units * (_TAILS @ np.where(self._bump, 0.0, self._lost(bound)))
        mean = np.sum(self._probabilities * lost)
        return float(np.sqrt(np.sum(self._probabilities * (lost - mean) ** 2)))

    def best_bound(
        self,
        bias_of_length: float,
        noise_of_bound: float,
        expected: Callable[[float], float] = lambda bound: 0.0,
        hidden: Callable[[float], float] = lambda bound: 0.0,
    ) -> tuple[float, float]:
        """Return the bound with the smallest mean squared error, and its expected bias.

        A lost norm adds `bias_of_length` times itself to the bias of the sum: 1 if all of it has one direction.
        `noise_of_bound` is the root of the summed noise variances at a bound of 1. `expected` gives the expected loss
        at a bound, which is corrected; `hidden` a lower limit of the loss, whatever the histogram shows.
        """
        bounds = self._begin * 2.0 ** np.arange(0.0, 8.0, 0.125)
        lost = [max(self.lost_length(bound, expected(float(bound))), hidden(float(bound))) for bound in bounds]
        biases = bias_of_length * np.array(lost)
        best = int(np.argmin(biases**2 + (noise_of_bound * bounds) ** 2))
        return float(bounds[best]), float(biases[best])


def above_noise(outliers: float, noise_std: float) -> float:
    """Return a noisy number of outliers, shrunk smoothly to zero where it is within its noise."""
    beyond = float(np.clip(outliers / max(settings.CLEAR_OUTLIERS * noise_std, np.finfo(float).tiny), 0.0, 1e3)) ** 4
    return outliers * (beyond / (1.0 + beyond))


def _clear_near(largest: NDArray[np.intp], noise_std: float) -> FloatArray:
    """Return what a count has to exceed, shape (parameters, octaves), given the octaves of the largest counts."""
    from_largest = np.arange(OCTAVES) - largest[:, None]
    near = (from_largest >= -6) & (from_largest <= _OCTAVES_ABOVE)
    return np.where(near, 2.5, settings.CLEAR_COUNT_FAR_AWAY) * noise_std


def moments_of_scores(
    counts: FloatArray, noise_std: float, n_units: int, members: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """Return the root mean square of units' scores for every parameter, and their kurtosis about zero.

    The counts are by octave. Counts within noise are omitted, and an allowance for hidden ones is added. A parameter
    whose scores are all hidden gets the magnitude of the others' for as many units as noise could hide. For `members`
    of groups the summed counts limit those hidden of one, and tails are equal.
    """
    octaves = LOWEST_OCTAVE + np.arange(OCTAVES)
    counts = counts.copy()
    counts[:, 0] = -np.inf  # zeros are in the first bin
    largest = counts.argmax(axis=1)
    seen = _clear_near(largest, noise_std)
    big = np.where(counts > seen, counts, 0.0)
    visible = counts.max(axis=1) > 4.5 * noise_std  # about the largest of many counts of noise alone
    top = [octaves[np.flatnonzero(row)[-1]] for row in big[visible]]
    typical = float(np.median(top)) if top else 0.0
    # The sum of three neighbouring octaves may exceed noise where none of them does.
    near = np.where((np.abs(octaves - typical) <= _NEAR_TYPICAL) & (octaves > octaves[1]), counts, -np.inf)
    triples = near[:, :-2] + near[:, 1:-1] + near[:, 2:]
    could_hide = 4.5 * np.sqrt(3.0) * noise_std
    # The most frequent value of a column may be near zero, as where missing entries are the mean: others count.
    middle, clear_together = triples.argmax(axis=1) + 1, triples.max(axis=1) > could_hide
    higher = visible & clear_together & (middle > largest + _OCTAVES_ABOVE)
    largest = np.where(higher, middle, largest)
    seen = _clear_near(largest, noise_std)
    big = np.where(counts > seen, counts, 0.0)
    from_largest = np.arange(OCTAVES) - largest[:, None]
    for row in np.flatnonzero(~visible & clear_together):
        largest[row] = place = middle[row]
        big[row] = 0.0
        big[row, place - 1 : place + 2] = np.maximum(counts[row, place - 1 : place + 2], 0.0)
        visible[row] = True
    squares = (big * 4.0 ** (octaves + 0.5)).sum(axis=1) / n_units
    unseen = noise_std / n_units * 4.0 ** (octaves[largest] + 3.5)
    unseen = np.minimum(unseen, settings.MOST_UNSEEN * squares)  # for few units it would dominate
    hidden = 4.0**typical * min(could_hide / n_units, 1.0)
    found: FloatArray = np.sqrt(np.where(visible, squares + unseen, hidden))
    clear = np.where(counts > np.maximum(seen, 3.5 * noise_std), counts, 0.0)
    relative = 4.0 ** (from_largest.astype(np.float64))
    second, fourth = ((clear * relative**power).sum(axis=1) / n_units for power in (1, 2))
    rarest = max(n_units / (3.5 * noise_std), 1.0)  # noise hides fewer units
    tails: FloatArray = np.where(visible, fourth / np.maximum(second, 1.0 / n_units) ** 2, rarest)
    tails = np.clip(tails, 1.0, rarest)
    if members.any():
        size, together = int(members.sum()), counts[members].sum(axis=0)
        together = np.where(together > 4.5 * noise_std * np.sqrt(size), together, 0.0)
        if together.any():
            of_one = float(together @ 4.0 ** (octaves + 0.5)) / n_units / size
            found[members] = np.minimum(found[members], np.sqrt(np.maximum(squares[members], of_one)))
        tails[members] = np.median(tails[members])
    return found, tails
