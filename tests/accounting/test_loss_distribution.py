import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as other_pld
from hypothesis import Phase, assume, given, settings, strategies as st
from scipy.stats import norm

from pymc_dp.accounting import (
    GaussianReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
    gaussian_epsilon,
    loss_distribution as module,
    loss_distribution_epsilon,
    renyi_epsilon,
)

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())
#: The bound that the project promises for this route.
MOST_ABOVE = 1e-3
#: Numerical composition takes too long to be shrunk.
NUMERICAL = settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.generate))
#: The reference itself is good to about this.
REFERENCE_ERROR = 1e-9


def decreasing_steps(row, iterations=None):
    return [
        PoissonGaussianReleases(
            "gradient", row["J"], math.sqrt(2 * row["C"] / (row["beta"] * t ** (-1 / 3) * row["L"] ** 2)), row["q"]
        )
        for t in range(1, (iterations or row["T"]) + 1)
    ]


def assert_just_above(epsilon, exact):
    assert exact * (1 - REFERENCE_ERROR) <= epsilon <= exact * (1 + MOST_ABOVE)


def by_direction(monkeypatch, releases, delta):
    found = []
    compose = module._composed_epsilon
    monkeypatch.setattr(module, "_composed_epsilon", lambda *a: found.append(compose(*a)) or found[-1])
    loss_distribution_epsilon(releases, delta)
    return found


def when(row):
    """Of the two rows of 1,500 steps, that of the finer grid takes half a minute."""
    if row["T"] <= 1000:
        return [] if row["T"] <= 200 else pytest.mark.nightly
    return pytest.mark.nightly if row["eps"] < 10.0 else pytest.mark.slow


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"T{row['T']}-{row['delta']}", marks=when(row))
        for row in REFERENCE["decreasing_steps"]["rows"]
    ],
)
def test_decreasing_steps_match_reference_in_both_directions(row, monkeypatch):
    remove, add = by_direction(monkeypatch, decreasing_steps(row), row["delta"])
    assert_just_above(remove, row["eps_remove"])
    assert_just_above(add, row["eps_add"])


@pytest.mark.parametrize("row", REFERENCE["poisson"], ids=lambda row: f"sigma{row['sigma']}")
def test_equal_steps_match_reference_in_both_directions(row, monkeypatch):
    releases = [PoissonGaussianReleases("gradient", row["k"], row["sigma"], row["q"])]
    remove, add = by_direction(monkeypatch, releases, row["delta"])
    assert_just_above(remove, row["eps_remove"])
    assert_just_above(add, row["eps_add"])


@pytest.mark.parametrize("row", REFERENCE["without_replacement"], ids=lambda row: f"q{row['q']}-sigma{row['sigma']}")
def test_sampling_without_replacement_matches_the_upper_bound_not_the_understatements(row, monkeypatch):
    n_units = 1000
    batch = round(row["q"] * n_units)
    releases = [WithoutReplacementGaussianReleases("ratio", row["k"], row["sigma"], batch, n_units)]
    epsilon = loss_distribution_epsilon(releases, row["delta"])
    assert_just_above(epsilon, row["eps_upper"])
    assert epsilon > max(row["eps_remove"], row["eps_add"], row["eps_understating"])
    poisson = [PoissonGaussianReleases("ratio", row["k"], row["sigma"], row["q"])]
    remove, add = by_direction(monkeypatch, poisson, row["delta"])
    assert_just_above(remove, row["eps_remove"])
    assert_just_above(add, row["eps_add"])


def estimate(releases, delta, interval=2e-4):
    """A second route: cell masses by integrating the densities, at the cells' mean losses; no convexity used."""
    worst = 0.0
    for remove in (True, False):
        size = 2**18
        transform, mean_shift = np.ones(size // 2 + 1, complex), 0.0
        for each in releases:
            q, tau = each.sampling_probability, each.noise_multiplier
            x = np.linspace(-14 * tau, 1 + 14 * tau, 400_001)
            middle = 0.5 * (x[1:] + x[:-1])
            loss = np.log1p(q * np.expm1((middle - 0.5) / tau**2))
            zero, one = np.diff(norm.cdf(x, 0, tau)), np.diff(norm.cdf(x, 1, tau))
            mass = (1 - q) * zero + q * one if remove else zero
            loss = loss if remove else -loss
            cell = np.round(loss / interval).astype(int)
            binned = np.bincount(cell % size, weights=mass, minlength=size)
            transform *= np.fft.rfft(binned) ** each.count
            mean_shift += each.count * float(mass @ (loss - interval * cell))
        composed = np.fft.irfft(transform, size)
        losses = interval * np.fft.fftfreq(size, 1 / size) + mean_shift
        low, high = 0.0, 60.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            above = losses > middle
            if np.sum(composed[above] * -np.expm1(middle - losses[above])) > delta:
                low = middle
            else:
                high = middle
        worst = max(worst, high)
    return worst


@pytest.mark.parametrize(
    ("releases", "delta"),
    [
        ([PoissonGaussianReleases("g", 300, 1.3, 0.02)], 1e-6),
        ([PoissonGaussianReleases("g", 20, 0.7, 0.2), PoissonGaussianReleases("r", 100, 5.0, 0.2)], 1e-5),
        ([PoissonGaussianReleases("g", 10, 4.0, 0.5), PoissonGaussianReleases("r", 1000, 2.0, 0.001)], 1e-4),
    ],
)
def test_matches_direct_integration(releases, delta):
    """Hazard H29: the discretised curve agrees with an integral."""
    assert loss_distribution_epsilon(releases, delta) == pytest.approx(estimate(releases, delta), rel=1e-3)


@functools.cache
def theirs(tau, q, count):
    return other_pld.from_gaussian_mechanism(
        float(tau), sampling_prob=float(q), value_discretization_interval=2e-4, pessimistic_estimate=True
    ).self_compose(count)


@pytest.mark.parametrize(("tau", "q", "count"), [(0.8, 0.01, 500), (2.0, 0.1, 100), (10.0, 0.5, 1000)])
@pytest.mark.parametrize("delta", [1e-4, 1e-7])
def test_matches_dp_accounting(tau, q, count, delta):
    """Hazard H30: a second library, written by others."""
    mine = loss_distribution_epsilon([PoissonGaussianReleases("g", count, tau, q)], delta)
    assert mine == pytest.approx(theirs(tau, q, count).get_epsilon_for_delta(delta), rel=2e-3)


@given(st.floats(0.2, 300.0), st.integers(1, 20_000), st.floats(-9, -1.5).map(lambda p: 10.0**p))
@NUMERICAL
def test_without_sampling_it_is_the_exact_curve_or_just_above(tau, count, delta):
    tau = tau * math.sqrt(count)
    exact = gaussian_epsilon(count / (2.0 * tau**2), delta)
    epsilon = loss_distribution_epsilon([PoissonGaussianReleases("g", count, tau, 1.0)], delta)
    assert epsilon >= exact * (1 - 1e-10)
    if exact > 1e-3:
        assert epsilon <= exact * (1 + 5e-3)
    gaussian = loss_distribution_epsilon([GaussianReleases("g", count, tau)], delta)
    assert gaussian >= exact * (1 - 1e-10)


@pytest.mark.slow
@given(
    st.floats(0.4, 20.0),
    st.floats(1e-4, 1.0),
    st.integers(1, 500),
    st.floats(-10, -2).map(lambda p: 10.0**p),
    st.floats(1.01, 2.0),
)
@NUMERICAL
def test_cost_falls_with_noise_and_delta_and_grows_with_count_and_sampling(tau, q, count, delta, factor):
    def cost(tau=tau, q=q, count=count, delta=delta):
        return loss_distribution_epsilon([PoissonGaussianReleases("g", count, tau, q)], delta)

    here = cost()
    assume(here < 50.0)
    slack = 1 + MOST_ABOVE
    assert cost(tau=tau * factor) <= here * slack
    assert cost(delta=min(delta * factor, 0.5)) <= here * slack
    assert cost(q=min(1.0, q * factor)) * slack >= here
    assert cost(count=math.ceil(count * factor)) * slack >= here
    rest = math.sqrt(0.5 / 0.01)
    assert loss_distribution_epsilon(
        [PoissonGaussianReleases("g", count, tau, q), GaussianReleases("c", 1, rest)], delta
    ) * slack >= max(here, gaussian_epsilon(0.01, delta))


@given(st.floats(0.5, 10.0), st.floats(1e-3, 1.0), st.integers(1, 2000), st.floats(-9, -2).map(lambda p: 10.0**p))
@NUMERICAL
def test_renyi_bounds_are_above(tau, q, count, delta):
    """Hazard H8: nor below the loss distribution where batches are drawn."""
    releases = [PoissonGaussianReleases("g", count, tau, q)]
    bound = renyi_epsilon(releases, delta)[0]
    assume(bound < 100.0)
    assert bound * (1 + MOST_ABOVE) + 1e-9 >= loss_distribution_epsilon(releases, delta)


def test_composition_commutes_and_splits():
    first, second = PoissonGaussianReleases("g", 100, 1.5, 0.01), PoissonGaussianReleases("r", 30, 3.0, 0.05)
    here = loss_distribution_epsilon([first, second], 1e-6)
    assert loss_distribution_epsilon([second, first], 1e-6) == pytest.approx(here, rel=1e-9)
    halves = [PoissonGaussianReleases(name, 50, 1.5, 0.01) for name in "ab"]
    assert loss_distribution_epsilon([*halves, second], 1e-6) == pytest.approx(here, rel=1e-12)


def test_where_rounding_would_be_all_of_delta_the_answer_is_infinite():
    """Hazard H29: outside of what arithmetic can tell there is no figure."""
    assert math.isinf(loss_distribution_epsilon([PoissonGaussianReleases("g", 1000, 2.0, 0.1)], 1e-14))


def test_two_hundred_noise_multipliers_are_composed_in_one_short_pass(monkeypatch):
    """Work is counted, not timed: one transform of each in each direction, and one back (benchmarks time it)."""
    transformed = {"rfft": [], "irfft": []}
    for name, sizes in transformed.items():
        real = getattr(np.fft, name)
        monkeypatch.setattr(
            np.fft,
            name,
            lambda values, *size, real=real, sizes=sizes: sizes.append(len(values)) or real(values, *size),
        )
    releases = decreasing_steps(REFERENCE["decreasing_steps"]["rows"][0])
    loss_distribution_epsilon(releases, 1e-5)
    assert len(transformed["rfft"]) == 2 * len(releases) == 400
    assert len(transformed["irfft"]) == 2
    assert max(transformed["rfft"]) < 2**16
