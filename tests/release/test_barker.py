import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy
from scipy import stats
from scipy.special import expit, ndtr

from pymc_dp.release import InsecureNoise, barker_correction as barker
from pymc_dp.rows.clipped_sum import ClippedMoments

X = np.arange(-40.0, 40.0, 0.003)
POINTS, WEIGHTS = np.array(barker.POINTS), np.array(barker.WEIGHTS)


def best_correction(spacing, largest):
    """Return points and weights of the best symmetric correction on a lattice: how those of the package were found.

    They were found at spacings of 0.005 and 0.01 around the points, and joined to one point each by minimising the
    largest error again.
    """
    points = np.arange(0.0, largest + spacing / 2, spacing)
    x = np.arange(0.0, 26.0, 0.05)
    scaled = 1e4  # the solver's tolerance is absolute
    error = scaled * sum_with_normal(x, points)
    target = scaled * scipy.special.expit(x)
    bound = np.full((len(x), 1), -1.0)
    found = scipy.optimize.linprog(
        np.append(np.zeros(len(points)), 1.0),
        A_ub=np.block([[error, bound], [-error, bound]]),
        b_ub=np.concatenate([target, -target]),
        A_eq=np.append(np.ones(len(points)), 0.0)[None],
        b_eq=[1.0],
    )
    return points, found.x[:-1]


def sum_with_normal(x, points):
    """Return the distribution function at `x` of N(0, 2) plus or minus each of `points`, shape (x, points)."""
    std = math.sqrt(barker.TOTAL_VARIANCE)
    ndtr = scipy.special.ndtr
    both = ndtr((x[:, None] - points) / std) + ndtr((x[:, None] + points) / std)
    return 0.5 * both


def largest_error(points, weights):
    return np.abs(sum_with_normal(X, points) @ weights - expit(X)).max()


def test_the_correction_has_the_stated_error_and_nothing_has_much_less():
    assert WEIGHTS.sum() == pytest.approx(1.0, abs=1e-15)
    assert np.all(WEIGHTS > 0)
    error = largest_error(POINTS, WEIGHTS)
    assert 5.8e-4 < error < barker.LARGEST_ERROR
    points, weights = best_correction(0.1, 20.0)
    assert largest_error(points, np.maximum(weights, 0)) == pytest.approx(error, rel=5e-3)


def exact_probability(log_ratio, variance):
    """The probability of acceptance at 60 digits."""
    with mpmath.workdps(60):
        std = mpmath.sqrt(2 - mpmath.mpf(variance))
        total = mpmath.mpf(0)
        for point, weight in zip(barker.POINTS, barker.WEIGHTS, strict=True):
            for sign in (-1, 1):
                total += mpmath.mpf(weight) / 2 * mpmath.ncdf((mpmath.mpf(log_ratio) + sign * mpmath.mpf(point)) / std)
        return total / mpmath.fsum(map(mpmath.mpf, barker.WEIGHTS)), std


@pytest.mark.parametrize("variance", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("log_ratio", [-45.0, -20.3, -3.0, -1e-9, 0.0, 0.7, 5.5, 33.0])
def test_probabilities_keep_their_relative_precision_on_both_sides(log_ratio, variance):
    unlikely, probability = barker.acceptance(log_ratio, variance)
    exact, _ = exact_probability(-abs(log_ratio), variance)
    assert float(abs(probability / exact - 1)) < 2.0**-38
    assert unlikely == (log_ratio <= 0)
    assert probability <= 0.5 + 1e-15


def test_decisions_follow_the_barker_test():
    entropy, trials = InsecureNoise(0), 4000
    for log_ratio in (-2.0, -0.3, 0.0, 1.5):
        accepted = 0
        for _ in range(trials):
            unlikely, probability = barker.acceptance(log_ratio, 0.5)
            accepted += barker.happens(entropy, probability) == unlikely
        found = stats.binomtest(accepted, trials, float(_convolved(log_ratio, 0.5)))
        assert found.pvalue > 1e-4


def _convolved(log_ratio, variance):
    """The same probability by another route: λ's own error of this variance would make it the logistic's."""
    return sum(
        w / 2 * (ndtr((log_ratio + m) / math.sqrt(2 - variance)) + ndtr((log_ratio - m) / math.sqrt(2 - variance)))
        for m, w in zip(barker.POINTS, barker.WEIGHTS, strict=True)
    )


@pytest.mark.parametrize("log_ratio", [-3.0, 0.0, 0.4, 6.0])
def test_with_the_batches_own_error_the_probability_is_logistic(log_ratio):
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    mean = sum(w * _convolved(log_ratio + math.sqrt(0.7) * x, 0.7) for x, w in zip(nodes, weights, strict=True))
    assert mean / weights.sum() == pytest.approx(expit(log_ratio), abs=barker.LARGEST_ERROR)


class Bits:
    def __init__(self, *words):
        self.left = list(words)

    def words(self, count):
        return np.array([self.left.pop(0) for _ in range(count)], dtype=np.uint64)


def test_coins_are_exact_beyond_64_bits():
    assert barker.happens(Bits(0, 2**64 - 1, 0), 1.0)
    assert not barker.happens(Bits(0), 0.0)
    half = 2**63
    assert barker.happens(Bits(half - 1), 0.5)
    assert not barker.happens(Bits(half), 0.5)
    tiny = 2.0**-70  # the first 64 bits do not decide
    assert barker.happens(Bits(0, 2**58 - 1), tiny)
    assert not barker.happens(Bits(0, 2**58), tiny)


def sums_of(values):
    moments = ClippedMoments.of(values)
    in_parts = ClippedMoments.of(values[:7]) + ClippedMoments.of(values[7:])
    assert in_parts == moments
    return moments.total, moments.squares


def test_sums_are_exact():
    generator = np.random.default_rng(0)
    values = generator.integers(-(2**41), 2**41, size=1000)
    values[:2] = 2**41 - 1, -(2**41)
    exact = [int(value) for value in values]
    assert sums_of(values) == (sum(exact), sum(value**2 for value in exact))
    many = np.full(2**20 + 3, 2**41 - 1)
    assert sums_of(many) == ((2**20 + 3) * (2**41 - 1), (2**20 + 3) * (2**41 - 1) ** 2)


def test_log_ratio_and_variance_are_those_of_the_scaled_sum():
    values = np.array([5, -3, 2, 2])
    log_ratio, variance = barker.log_ratio_and_variance(ClippedMoments.of(values), Fraction(1, 4), 0.5)
    assert log_ratio == 6 / 4 + 0.5
    assert variance == pytest.approx(4 * np.var(values / 4))


def test_the_variance_never_exceeds_one():
    """With contributions at their bound, half of them on each side: filling up to 2 is always possible."""
    b, n0 = 64, 1000.0
    bound = math.sqrt(b) / n0
    grid = 2.0**-44
    values = np.array([1, -1] * (b // 2)) * int(bound / grid)
    _, variance = barker.log_ratio_and_variance(ClippedMoments.of(values), Fraction(n0 / b) * Fraction(grid), 0.0)
    assert 0.999 < variance <= 1.0 + 1e-12
