"""Noisy counts: where rows are and how large sums are, with few false alarms; bins of several widths, intervals."""

import numpy as np
import pytest

from pymc_dp.release.interface import Release
from pymc_dp.surveys.histogram import (
    bins_that_most_keep,
    combined,
    found_bins,
    found_range,
    nearest_shares,
    quantiles,
)

EDGES = np.linspace(0.0, 8.0, 17)
MEMBERS = [np.repeat(np.eye(4), 4, axis=1), np.eye(16)]


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


def histogram(values, noise_std, generator, total):
    fine = np.histogram(values, EDGES)[0].astype(float)
    counts = [members @ fine + generator.normal(scale=noise_std, size=len(members)) for members in MEMBERS]
    return combined(counts, MEMBERS, noise_std, total), fine


def test_without_noise_counts_are_exact():
    generator = np.random.default_rng(0)
    found, fine = histogram(generator.gamma(2.0, size=500).clip(0, 8), 1e-12, generator, 500.0)
    np.testing.assert_allclose(found[0], fine, atol=1e-9)
    middle, low, high = quantiles(np.array([0.5]), 0.9, EDGES, *found, whole_numbers=False)
    assert low[0] <= middle[0] <= high[0]
    assert high[0] - low[0] <= 0.5 + 1e-9


@pytest.mark.parametrize("total", [None, 2000.0])
def test_covariances_are_those_of_the_counts(total):
    """Of 3,000 tables; five standard errors of a variance."""
    generator = np.random.default_rng(0)
    values = generator.gamma(2.0, size=2000).clip(0, 8)
    found = [histogram(values, 20.0, generator, total) for _ in range(3000)]
    errors = np.array([counts - fine for (counts, _), fine in found])
    (_, covariance), _ = found[0]
    expected = np.diag(covariance)
    np.testing.assert_allclose(errors.var(axis=0), expected, rtol=5 * np.sqrt(2 / 3000))
    if total is not None:
        np.testing.assert_allclose(errors.sum(axis=1), 0.0, atol=1e-8)
    # The groups of bins tell of sums: much less noise than that of their bins.
    below = np.cumsum(errors, axis=1)[:, 7]
    assert below.std() < 0.7 * 20.0 * np.sqrt(8)


def test_intervals_of_quantiles_cover_the_tables_own():
    """Of 400 tables, nine in ten at least; it fails by chance once in 10**6."""
    generator = np.random.default_rng(1)
    values = generator.gamma(2.0, size=2000).clip(0, 8)
    levels = np.array([0.05, 0.5, 0.95])
    true = np.quantile(values, levels)
    held = []
    for _ in range(400):
        found, _ = histogram(values, 20.0, generator, 2000.0)
        _, low, high = quantiles(levels, 0.9, EDGES, *found, whole_numbers=False)
        held.append((low <= true) & (true <= high))
    assert np.all(np.mean(held, axis=0) > 0.9 - 5 * np.sqrt(0.09 / 400))


def test_quantiles_of_whole_numbers_are_whole():
    counts, covariance = np.array([50.0, 30.0, 20.0]), 1e-9 * np.eye(3)
    levels = np.array([0.25, 0.6, 0.95])
    middle, low, high = quantiles(levels, 0.9, np.arange(4.0), counts, covariance, whole_numbers=True)
    assert list(middle) == [0.0, 1.0, 2.0]
    assert list(low) == [0.0, 1.0, 2.0]
    assert list(high) == [0.0, 1.0, 2.0]


def test_shares_are_the_nearest_ones():
    np.testing.assert_allclose(nearest_shares(np.array([0.2, 0.3, 0.5])), [0.2, 0.3, 0.5])
    np.testing.assert_allclose(nearest_shares(np.array([1.2, -0.3, 0.1])), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(nearest_shares(np.array([0.7, -0.1, 0.4])), [0.65, 0.0, 0.35])
