"""Where rows are and how large sums are is found by noisy counts, with few false alarms."""

import numpy as np
import pytest

from pymc_dp.release.interface import Release
from pymc_dp.surveys.bins import bins_that_most_keep, found_bins, found_range


def counting(values, noise_std, seed):
    """Return what counts values between edges, with noise."""
    generator = np.random.default_rng(seed)

    def counts_between(edges):
        counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
        return Release("counts", counts + generator.normal(scale=noise_std, size=len(counts)), noise_std, ())

    return counts_between


def test_bounds_are_those_that_most_units_keep():
    counts = np.zeros(31)
    counts[[10, 15, 16]] = [500.0, 490.0, 3.0]
    assert bins_that_most_keep(counts, 0.01, 0.01) == 16
    assert bins_that_most_keep(np.zeros(31), 5.0, 0.01) == 1


def test_noise_seldom_makes_a_bound_too_large():
    """Of 2,000: a bound is too large where a sum of noise is 3.5 standard deviations off, of 31 sums: 1 % at most."""
    generator = np.random.default_rng(0)
    counts = np.zeros(31)
    counts[[9, 10]] = [500.0, 500.0]
    found = np.array(
        [bins_that_most_keep(counts + generator.normal(scale=30, size=31), 30.0, 0.01) for _ in range(2000)]
    )
    assert np.mean(found > 11) < 0.02
    assert np.mean(found < 10) < 0.02


@pytest.mark.parametrize("centre", [0.0, 3e6, -1e12, 1e-9])
def test_ranges_hold_rows_of_any_size(centre):
    values = centre + max(abs(centre), 1.0) * 1e-2 * np.random.default_rng(1).normal(size=5000)
    for seed in range(20):
        low, high = found_range(counting(values, 20.0, seed))
        assert low < np.quantile(values, 0.01) < np.quantile(values, 0.99) < high
        assert high - low < 8 * max(abs(centre), 1.0)


def test_fine_bins_are_where_rows_are():
    values = 1e7 + np.random.default_rng(1).normal(size=5000)
    edges, counts = found_bins(counting(values, 20.0, 0))
    inside = (edges > 1e7 - 1e5) & (edges < 1e7 + 1e5)
    assert inside.sum() > 20
    assert counts.value.sum() == pytest.approx(5000, abs=1500)
