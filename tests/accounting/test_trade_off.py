"""What an attacker can achieve: exact for Gaussian releases, a bound on the safe side for others."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import norm

from pymc_dp.accounting import (
    BarkerReleases,
    GaussianReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
    account,
    gaussian_delta,
    privacy_profile,
    trade_off,
    trade_off_of_guarantee,
)
from pymc_dp.accounting.loss_distribution import loss_distribution_deltas
from pymc_dp.accounting.trade_off import _of_guarantees
from pymc_dp.exceptions import InvalidArgument

RATES = np.array([0.0, 1e-6, 0.01, 0.05, 0.3, 0.5, 0.9, 1.0])
POISSON = [PoissonGaussianReleases("gradient", 300, 1.0, 0.02)]
BATCHES = [WithoutReplacementGaussianReleases("log_ratio", 200, 1.0, 20, 1000)]
DECISIONS = [BarkerReleases("decision", 400, 64, 3000)]
MIXED = [*DECISIONS, GaussianReleases("score", 1, 2.0)]


def of_means_apart(mu, rates):
    return norm.cdf(norm.ppf(1.0 - rates) - mu)


@given(noise=st.floats(0.3, 50.0), count=st.integers(1, 40))
def test_of_gaussian_releases_it_is_that_of_two_normals(noise, count):
    """Their means are as far apart as the roots of the counts over the noise multipliers say."""
    found = trade_off([GaussianReleases("score", count, noise)], RATES, "substitute")
    np.testing.assert_allclose(found, of_means_apart(math.sqrt(count) / noise, RATES), rtol=1e-9, atol=1e-13)


def test_kinds_of_releases_add_up():
    releases = [GaussianReleases("score", 3, 2.0), GaussianReleases("curvature", 5, 4.0)]
    mu = math.sqrt(3 / 4 + 5 / 16)
    np.testing.assert_allclose(trade_off(releases, RATES, "add-remove"), of_means_apart(mu, RATES), atol=1e-13)


@pytest.mark.parametrize("mu", [0.1, 0.7, 2.5])
def test_guarantees_at_all_epsilons_make_the_exact_curve(mu):
    """The duality of Dong, Roth and Su: the way from a privacy profile to a trade-off, on a profile that is known."""
    epsilons = np.linspace(0.0, 40.0, 4001)
    deltas = np.array([gaussian_delta(0.5 * mu**2, epsilon) for epsilon in epsilons])
    found = _of_guarantees(epsilons, deltas, RATES)
    exact = of_means_apart(mu, RATES)
    assert (found <= exact + 1e-12).all()
    np.testing.assert_allclose(found, exact, atol=1e-4)


@pytest.mark.parametrize(
    "releases", [POISSON, BATCHES, DECISIONS, MIXED], ids=["poisson", "batches", "barker", "mixed"]
)
def test_the_profile_is_what_the_accounting_says(releases):
    """Asked for the epsilon at a delta of the profile, the accounting answers with the epsilon of that delta."""
    relation = releases[0].relations[0]
    epsilons = np.array([0.5, 1.0, 2.0, 4.0])
    for epsilon, delta in zip(epsilons, privacy_profile(releases, epsilons, relation), strict=True):
        if 2e-9 < delta < 1.0:
            assert account(releases, delta, relation).epsilon == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("releases", [POISSON, BATCHES, MIXED], ids=["poisson", "batches", "mixed"])
def test_no_guarantee_of_the_accounting_is_broken(releases):
    relation = releases[0].relations[0]
    found = trade_off(releases, RATES, relation)
    for delta in (1e-6, 1e-3, 0.05):
        epsilon = account(releases, delta, relation).epsilon
        assert (found >= trade_off_of_guarantee(epsilon, delta, RATES) - 2e-4).all()


def test_a_release_on_samples_is_a_test_between_a_mixture_and_a_normal():
    """One release, either table first: the best tests are at thresholds, and no attacker does better than the bound."""
    q, noise = 0.1, 1.0
    thresholds = np.linspace(-6.0, 7.0, 2001)
    normal, mixture = norm.sf(thresholds), (1.0 - q) * norm.sf(thresholds) + q * norm.sf(thresholds - 1.0)
    rates = np.linspace(0.001, 0.999, 57)
    power = np.maximum(np.interp(rates, normal[::-1], mixture[::-1]), np.interp(rates, 1.0 - mixture, 1.0 - normal))
    bound = 1.0 - trade_off([PoissonGaussianReleases("gradient", 1, noise, q)], rates, "add-remove")
    assert (bound >= power - 1e-6).all()
    # Who does not know which table comes first has the curve that spans both: straight between two points of theirs.
    mixed = [
        np.interp(rates, rates[[i, j]], power[[i, j]], left=0.0, right=0.0) for i in range(57) for j in range(i, 57)
    ]
    assert (bound <= np.max(mixed, axis=0) + 0.001).all()


def test_without_sampling_losses_give_the_exact_profile():
    epsilons = np.array([0.0, 0.5, 1.0, 3.0])
    found = loss_distribution_deltas([PoissonGaussianReleases("gradient", 4, 2.0, 1.0)], epsilons)
    exact = np.array([gaussian_delta(0.5, epsilon) for epsilon in epsilons])
    assert (found >= exact).all()
    np.testing.assert_allclose(found, exact, rtol=3e-3)


def test_of_decisions_nothing_is_known_by_losses():
    np.testing.assert_array_equal(loss_distribution_deltas(DECISIONS, np.array([0.0, 1.0])), 1.0)


def test_a_guarantee_alone_is_its_two_lines():
    found = trade_off_of_guarantee(1.0, 1e-5, [0.0, 0.1, 0.5, 1.0])
    expected = [1.0 - 1e-5, 1.0 - 1e-5 - math.e * 0.1, (0.5 - 1e-5) / math.e, 0.0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_guarantee_alone_allows_more_than_the_releases_do():
    releases = [GaussianReleases("score", 1, 3.0)]
    epsilon = account(releases, 1e-6, "substitute").epsilon
    assert (trade_off_of_guarantee(epsilon, 1e-6, RATES) <= trade_off(releases, RATES, "substitute") + 1e-12).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: trade_off(POISSON, [0.1], "substitute"),
        lambda: trade_off([], [0.1], "substitute"),
        lambda: trade_off(MIXED, [1.1], "substitute"),
        lambda: trade_off(MIXED, [math.nan], "substitute"),
        lambda: trade_off(MIXED, [[0.1]], "substitute"),
        lambda: trade_off(MIXED, "all", "substitute"),
        lambda: privacy_profile(MIXED, [-1.0], "substitute"),
        lambda: privacy_profile([], [1.0], "substitute"),
        lambda: trade_off_of_guarantee(-1.0, 1e-6, [0.1]),
        lambda: trade_off_of_guarantee(1.0, 0.0, [0.1]),
    ],
)
def test_what_is_out_of_range_is_refused(call):
    with pytest.raises(InvalidArgument):
        call()
