import json
import math
from pathlib import Path

import mpmath
import pytest
from dp_accounting import rdp as other_rdp
from hypothesis import given, settings, strategies as st

from pymc_dp.accounting import (
    BarkerReleases,
    GaussianReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
    gaussian_epsilon,
    loss_distribution_epsilon,
    renyi_epsilon,
)
from pymc_dp.accounting.account import renyi_curve
from pymc_dp.accounting.renyi import (
    ORDERS,
    barker_batch_bound,
    convert,
    gaussian_bound,
    poisson_gaussian_bound,
    without_replacement_bound,
)
from pymc_dp.exceptions import InvalidArgument

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())["rdp"]


def classic_conversion(order, bound, delta):
    """The older conversion (Mironov 2017, Proposition 3), with which the sources' figures were made."""
    return bound + math.log(1.0 / delta) / (order - 1)


def best(rows, conversion, delta):
    return min((conversion(order, bound, delta), order) for order, bound in rows)


def check_epsilons(row, bounds):
    for delta, expected in row["epsilon"].items():
        rows = [(order, row["k"] * bound) for order, bound in bounds.items()]
        for conversion, name in ((classic_conversion, ("thm2_5", "alpha")), (convert, ("cks", "alpha_cks"))):
            epsilon, order = best(rows, conversion, float(delta))
            assert epsilon == pytest.approx(float(expected[name[0]]), rel=1e-10)
            assert order == expected[name[1]]


@pytest.mark.parametrize("row", REFERENCE["dp_barker"], ids=lambda row: f"b{row['b']}-n{row['n']}")
def test_barker_matches_reference(row):
    own = [barker_batch_bound(j, row["b"]) for j in range(2, row["alpha_max"] + 1)]
    bounds = {
        order: without_replacement_bound(order, float(row["q"]), own[: order - 1])
        for order in range(3, row["alpha_max"] + 1)
    }
    for order, expected in row["eps_prime"].items():
        assert barker_batch_bound(int(order), row["b"]) == pytest.approx(float(expected), rel=1e-12)
    for order, expected in row["rdp_per_iter"].items():
        assert bounds[int(order)] == pytest.approx(float(expected), rel=1e-10)
    check_epsilons(row, bounds)
    for delta, expected in row["epsilon"].items():
        epsilon, order = renyi_epsilon([BarkerReleases("decision", row["k"], row["b"], row["n"])], float(delta))
        assert epsilon == pytest.approx(float(expected["cks"]), rel=1e-10)
        assert order == expected["alpha_cks"]


@pytest.mark.parametrize("row", REFERENCE["minibatch"], ids=lambda row: f"b{row['b']}-tau{row['tau']}")
def test_sampling_without_replacement_matches_reference(row):
    noise_multiplier = math.sqrt(row["tau"])
    own = [gaussian_bound(j, noise_multiplier) for j in range(2, 257)]
    bounds = {order: without_replacement_bound(order, float(row["q"]), own[: order - 1]) for order in range(2, 257)}
    for order, expected in row["rdp_per_iter"].items():
        assert bounds[int(order)] == pytest.approx(float(expected), rel=1e-10)
    check_epsilons(row, bounds)
    event = WithoutReplacementGaussianReleases("ratio", row["k"], noise_multiplier, row["b"], row["n"])
    for delta, expected in row["epsilon"].items():
        epsilon, _ = renyi_epsilon([event], float(delta))
        assert epsilon <= float(expected["cks"]) * (1 + 1e-10)
        if row["q"] != "1.0":  # with the whole table as batch the theorem is worse than no amplification
            assert epsilon == pytest.approx(float(expected["cks"]), rel=1e-10)
        # the numerical route is smaller, and both are above one realised pair of tables
        assert loss_distribution_epsilon([event], float(delta)) <= epsilon


@pytest.mark.slow
@given(st.sampled_from([2, 3, 5, 8]), st.floats(0.001, 0.9), st.floats(0.3, 20.0))
@settings(max_examples=25, deadline=None)
def test_poisson_bound_matches_the_integral(order, q, tau):
    with mpmath.workdps(30):
        density = lambda x, mean: mpmath.npdf(x, mean, tau)  # noqa: E731
        mixture = lambda x: (1 - q) * density(x, 0) + q * density(x, 1)  # noqa: E731
        points = [-12 * tau, 0, 1, order, order + 12 * tau]
        moment = mpmath.quad(lambda x: (mixture(x) / density(x, 0)) ** order * density(x, 0), sorted(points))
        expected = mpmath.log(moment) / (order - 1)
        assert poisson_gaussian_bound(order, q, tau) == pytest.approx(float(expected), rel=1e-7, abs=1e-13)


@given(st.floats(0.5, 50.0), st.floats(1e-4, 0.5), st.integers(1, 5000))
@settings(deadline=None, max_examples=40)
def test_poisson_curve_matches_dp_accounting(tau, q, count):
    mine = renyi_curve([PoissonGaussianReleases("g", count, tau, q)])
    theirs = other_rdp.rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(q, tau, list(ORDERS[:40]))
    assert mine[:40] == pytest.approx(count * theirs, rel=1e-6, abs=1e-9)


def test_bounds_of_different_events_add_at_equal_order():
    gaussian, barker = GaussianReleases("count", 5, 40.0), BarkerReleases("decision", 100, 1000, 100_000)
    together = renyi_curve([gaussian, barker])
    assert together == pytest.approx(renyi_curve([gaussian]) + renyi_curve([barker]))
    assert math.isinf(together[0])  # order 2 is not covered by the Barker theorem
    assert math.isfinite(together[1])


@given(st.floats(0.5, 100.0), st.integers(1, 1000), st.floats(-14, -2).map(lambda p: 10.0**p))
def test_bounds_are_above_the_exact_gaussian_curve(tau, count, delta):
    """Hazard H8: Rényi bounds are never below the exact curve."""
    assert renyi_epsilon([GaussianReleases("g", count, tau)], delta)[0] >= gaussian_epsilon(count / (2 * tau**2), delta)


@pytest.mark.parametrize(("order", "bound", "delta"), [(1, 1.0, 0.1), (2, math.nan, 0.1), (2, 1.0, 0.0), (2.5, 1, 0.1)])
def test_conversion_refuses_bad_arguments(order, bound, delta):
    with pytest.raises(InvalidArgument):
        convert(order, bound, delta)


def test_barker_needs_orders_below_a_fifth_of_the_batch():
    with pytest.raises(InvalidArgument):
        barker_batch_bound(20, 100)
    with pytest.raises(InvalidArgument):
        BarkerReleases("decision", 1, 15, 100)
    assert math.isfinite(renyi_epsilon([BarkerReleases("decision", 1, 16, 100)], 1e-3)[0])
