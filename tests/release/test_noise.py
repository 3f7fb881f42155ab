import multiprocessing

import numpy as np
import pytest
from scipy import stats

from pymc_dp.exceptions import BudgetExceeded
from pymc_dp.release import InsecureNoise, SecureNoise, grid_for

SCALE = 2.0**40


@pytest.mark.parametrize("source", [SecureNoise(), InsecureNoise(1)], ids=["secure", "insecure"])
def test_noise_is_gaussian_with_the_asked_scale(source):
    # 4 x 1000 draws; each test is wrong once in 10,000 runs
    noise = np.concatenate([source.add(np.full(1000, 10**12), SCALE) - 10**12 for _ in range(4)]) / SCALE
    assert stats.kstest(noise, "norm").pvalue > 1e-4
    chi_square = np.sum(noise**2)
    assert stats.chi2.ppf(5e-5, 4000) < chi_square < stats.chi2.ppf(1 - 5e-5, 4000)


def test_noise_keeps_64_bits():
    """Hazard H26: noise is added to whole numbers, of which no bit is lost."""
    large = np.array([2**61, -(2**61)])
    noisy = SecureNoise().add(large, SCALE)
    assert np.all(np.abs(noisy - large) < 2**47)


def test_secure_noise_differs_between_draws_and_coordinates():
    first = SecureNoise().add(np.zeros(50, dtype=np.int64), SCALE)
    second = SecureNoise().add(np.zeros(50, dtype=np.int64), SCALE)
    assert np.unique([first, second]).size == 100


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_words_are_the_operating_systems(monkeypatch):
    """Hazard H25: random words come from the operating system."""
    drawn = []
    for _ in range(2):
        np.random.seed(0)
        drawn.append(SecureNoise().words(20).tolist())
    assert len({*drawn[0], *drawn[1]}) == 40
    monkeypatch.setattr("os.urandom", lambda count: bytes(range(count)))
    assert SecureNoise().words(1).tobytes() == bytes(range(8))


def _draw(_):
    return SecureNoise().add(np.zeros(5, dtype=np.int64), SCALE).tolist()


def test_forked_processes_never_share_noise():
    """Hazard H24: nor do forked copies of one source."""
    SecureNoise().add(np.zeros(5, dtype=np.int64), SCALE)  # the parent has drawn before
    with multiprocessing.get_context("fork").Pool(4, maxtasksperchild=1) as pool:  # each draws first in its process
        drawn = pool.map(_draw, range(8), chunksize=1)
    assert len({tuple(draw) for draw in drawn}) == 8


def test_chains_of_insecure_noise_differ_and_reproduce():
    zeros = np.zeros(4, dtype=np.int64)
    first, second = (InsecureNoise(3).for_chain((chain,)).add(zeros, SCALE) for chain in (0, 1))
    again = InsecureNoise(3).for_chain((0,)).add(zeros, SCALE)
    assert np.all(first == again)
    assert np.all(first != second)


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 17.0, 1e5])
@pytest.mark.parametrize("n_units", [None, 1, 10**4, 10**7])
@pytest.mark.parametrize("bound", [1e-8, 1.0, 3e5])
def test_grid_is_a_power_of_two_far_below_the_noise_and_sums_fit(noise_multiplier, n_units, bound):
    """Hazard H26: releases lie on a grid that follows from public settings."""
    factor = 1.0 if n_units is None else 2.0
    noise_std = noise_multiplier * factor * bound
    try:
        grid = grid_for(noise_multiplier, factor, noise_std, n_units)
    except BudgetExceeded:
        assert n_units * 2.0**35 / (factor * noise_multiplier) > 2.0**60  # really too many units for 64 bits
        return
    assert np.frexp(grid)[0] == 0.5
    assert 2.0**35 <= noise_std / grid < 2.0**41
    assert (n_units or 1) * bound / grid + 40 * noise_std / grid < 2.0**63


def test_too_little_noise_for_too_many_units_is_refused():
    with pytest.raises(BudgetExceeded, match="64-bit"):
        grid_for(1e-3, 2.0, 2e-3, 10**9)
