"""Events in the words of dp_accounting, and what its accountants say of them."""

import math
import sys

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from pymc_dp.accounting import (
    BarkerReleases,
    GaussianReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
    account,
    renyi_epsilon,
    to_dp_accounting,
)
from pymc_dp.accounting.account import renyi_curve
from pymc_dp.accounting.renyi import ORDERS, convert
from pymc_dp.exceptions import NoDpAccountingEvent

#: The grid of the other library: its epsilon is above the exact one by at most about this for each composed release.
INTERVAL = 1e-4
BATCHES = WithoutReplacementGaussianReleases("gradient", 50, 2.0, 100, 5000)


@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
@pytest.mark.parametrize(
    "releases",
    [
        [GaussianReleases("gradient", 300, 40.0)],
        [GaussianReleases("gradient", 200, 60.0, coordinates=3), GaussianReleases("log_ratio", 1, 1.5)],
    ],
)
def test_gaussian_events_cost_what_the_other_library_says(releases, relation):
    """Their noise multipliers are relative to the sensitivity, so they cost the same under both relations."""
    accountant = PLDAccountant(value_discretization_interval=INTERVAL)
    accountant.compose(to_dp_accounting(releases))
    theirs = accountant.get_epsilon(1e-6)
    mine = account(releases, 1e-6, relation).epsilon
    assert mine <= theirs * (1.0 + 1e-9)  # theirs is rounded up
    assert mine >= theirs - len(releases) * INTERVAL


@pytest.mark.parametrize(
    "releases",
    [
        [PoissonGaussianReleases("gradient", 400, 1.0, 0.01)],
        [PoissonGaussianReleases("gradient", 100, 3.0, 0.1), GaussianReleases("clip_count", 5, 20.0)],
    ],
)
def test_poisson_events_cost_what_the_other_library_says(releases):
    accountant = PLDAccountant(value_discretization_interval=INTERVAL)
    accountant.compose(to_dp_accounting(releases))
    assert account(releases, 1e-6, "add-remove").epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)


@pytest.mark.parametrize("batch_size", [100, pytest.param(1000, marks=pytest.mark.nightly), 5000])
def test_batches_without_replacement_have_the_other_library_s_renyi_bounds(batch_size):
    """At order 2, where both have the same theorem; at higher ones theirs is tighter (Wang and others, Theorem 27)."""
    batches = [WithoutReplacementGaussianReleases("gradient", 50, 2.0, batch_size, 5000)]

    def theirs(orders):
        accountant = RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
        accountant.compose(to_dp_accounting(batches))
        return accountant.get_epsilon(1e-6)

    at_order_2 = convert(2, float(renyi_curve(batches)[ORDERS.index(2)]), 1e-6)
    assert theirs([2]) == pytest.approx(at_order_2, rel=1e-9)
    assert theirs(list(ORDERS)) <= renyi_epsilon(batches, 1e-6)[0] * (1.0 + 1e-9)


def test_events_are_composed_of_the_other_library_s_own():
    noise = dp_accounting.GaussianDpEvent(2.0)
    assert GaussianReleases("g", 7, 2.0).to_dp_accounting() == dp_accounting.SelfComposedDpEvent(noise, 7)
    assert PoissonGaussianReleases("g", 7, 2.0, 0.1).to_dp_accounting() == dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.1, noise), 7
    )
    assert BATCHES.to_dp_accounting() == dp_accounting.SelfComposedDpEvent(
        dp_accounting.SampledWithoutReplacementDpEvent(5000, 100, noise), 50
    )


def test_decisions_have_no_event_there():
    decisions = BarkerReleases("decision", 10, 100, 1000)
    for refused in (decisions.to_dp_accounting, lambda: to_dp_accounting([GaussianReleases("g", 1, 1.0), decisions])):
        with pytest.raises(NoDpAccountingEvent, match="Barker"):
            refused()
    assert math.isfinite(account([decisions], 1e-6, "substitute").epsilon)


def test_without_the_other_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(NoDpAccountingEvent, match="not installed"):
        GaussianReleases("g", 1, 1.0).to_dp_accounting()
