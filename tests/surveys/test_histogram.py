"""Counts from noisy counts of several widths: exact without noise, and intervals that cover."""

import numpy as np
import pytest

from pymc_dp.surveys.histogram import Histogram, combined, nearest_shares

EDGES = np.linspace(0.0, 8.0, 17)
MEMBERS = [np.repeat(np.eye(4), 4, axis=1), np.eye(16)]


def histogram(values, noise_std, generator, total):
    fine = np.histogram(values, EDGES)[0].astype(float)
    counts = [members @ fine + generator.normal(scale=noise_std, size=len(members)) for members in MEMBERS]
    found = combined(counts, MEMBERS, noise_std, total)
    return Histogram(EDGES, found.counts, found.covariance, False), fine


def test_without_noise_counts_are_exact():
    generator = np.random.default_rng(0)
    found, fine = histogram(generator.gamma(2.0, size=500).clip(0, 8), 1e-12, generator, 500.0)
    np.testing.assert_allclose(found.counts, fine, atol=1e-9)
    middle, low, high = found.quantiles(np.array([0.5]), 0.9)
    assert low[0] <= middle[0] <= high[0]
    assert high[0] - low[0] <= 0.5 + 1e-9


@pytest.mark.parametrize("total", [None, 2000.0])
def test_covariances_are_those_of_the_counts(total):
    """Of 3,000 tables; five standard errors of a variance."""
    generator = np.random.default_rng(0)
    values = generator.gamma(2.0, size=2000).clip(0, 8)
    found = [histogram(values, 20.0, generator, total) for _ in range(3000)]
    errors = np.array([each.counts - fine for each, fine in found])
    expected = np.diag(found[0][0].covariance)
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
        _, low, high = histogram(values, 20.0, generator, 2000.0)[0].quantiles(levels, 0.9)
        held.append((low <= true) & (true <= high))
    assert np.all(np.mean(held, axis=0) > 0.9 - 5 * np.sqrt(0.09 / 400))


def test_quantiles_of_whole_numbers_are_whole():
    found = Histogram(np.arange(4.0), np.array([50.0, 30.0, 20.0]), 1e-9 * np.eye(3), True)
    middle, low, high = found.quantiles(np.array([0.25, 0.6, 0.95]), 0.9)
    assert list(middle) == [0.0, 1.0, 2.0]
    assert list(low) == [0.0, 1.0, 2.0]
    assert list(high) == [0.0, 1.0, 2.0]


def test_shares_are_the_nearest_ones():
    np.testing.assert_allclose(nearest_shares(np.array([0.2, 0.3, 0.5])), [0.2, 0.3, 0.5])
    np.testing.assert_allclose(nearest_shares(np.array([1.2, -0.3, 0.1])), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(nearest_shares(np.array([0.7, -0.1, 0.4])), [0.65, 0.0, 0.35])
