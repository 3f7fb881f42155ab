"""The power of the best attacker is that of the accounting, and bars say what was spent."""

import json
import math

import numpy as np
import pytest
from conftest import gaussian_data, gaussian_model
from plotted_runs import MATPLOTLIB, N, counted, drawn, searched, words
from scipy.stats import norm
from xarray import DataTree

import pymc_dp as dp
from pymc_dp.accounting import account, trade_off, trade_off_of_guarantee
from pymc_dp.plots import plot_privacy


def curves(collection):
    """Lines by name, as fractions."""
    lines = collection.viz["power_power"]["panels"]
    return {
        str(name): np.array(line.get_xydata()) / 100.0
        for name, line in zip(lines["curve"].values, lines.values, strict=True)
    }


def power_of_normals(mu, rates):
    return norm.cdf(mu + norm.ppf(rates))


def bars(collection):
    line, panel = drawn(collection, "bars_spent"), collection.get_viz("plot", panel="spent")
    names = [label.get_text() for label in panel.get_yticklabels()]
    lengths = line.get_xdata()[1::3]
    by_place = dict(zip(panel.get_yticks(), names, strict=True))
    return {by_place[place]: length for place, length in zip(line.get_ydata()[1::3], lengths, strict=True)}


def legend_of(collection):
    return [text.get_text() for text in collection.viz["figure"].item().legends[0].get_texts()]


def plan_of(make, budget, **length):
    with gaussian_model(gaussian_data(N)):
        return budget.plan(make(budget), **{"draws": 20, "chains": 2} | length)


def given_hmc(budget):
    return dp.DPHMC(budget=budget, clip_gradient=1.0, clip_log_ratio=1.0, step_size=0.1, n_leapfrog=2)


def on_batches(budget):
    return dp.DPSGLD(budget=budget, clip_gradient=1.0, step_size=1e-4, batch_size=60, prelude=None)


def test_of_a_result_the_curve_is_that_of_its_rho():
    collection = plot_privacy(searched(), **MATPLOTLIB)
    rates, power = curves(collection)["this run"].T
    mu = math.sqrt(2.0 * searched()["privacy"].attrs["rho"])
    np.testing.assert_allclose(power, power_of_normals(mu, rates), atol=1e-9)
    assert (rates[0], rates[-1]) == (0.0, 1.0)
    assert legend_of(collection) == [f"this run: {100.0 * power_of_normals(mu, 0.05):.3g} %"]


def test_the_marked_rate_is_the_caller_s():
    collection = plot_privacy(dp.PrivacyBudget(4.0, 1e-6), false_positive_rate=0.1, **MATPLOTLIB)
    marked = collection.viz["marked_power"]["panels"].sel(curve="whole budget, epsilon 4").item().get_offsets()
    mu = math.sqrt(2.0 * dp.PrivacyBudget(4.0, 1e-6).rho)
    np.testing.assert_allclose(marked, [[10.0, 100.0 * power_of_normals(mu, 0.1)]])
    assert collection.viz["figure"].item().legends[0].get_title().get_text() == "Power at 10 % false positives"


def test_of_a_result_bars_are_the_shares_of_its_cost():
    records = json.loads(searched()["privacy"].attrs["releases"])
    shares = {}
    for record in records:
        shares[record["kind"]] = shares.get(record["kind"], 0.0) + 100.0 * record["share"]
    assert bars(plot_privacy(searched(), **MATPLOTLIB)) == pytest.approx(shares)
    assert sum(shares.values()) == pytest.approx(100.0)


def test_of_a_plan_it_is_what_would_be_released():
    plan = plan_of(given_hmc, dp.PrivacyBudget(3.0, 1e-6))
    collection = plot_privacy(plan, **MATPLOTLIB)
    rates, power = curves(collection)["this plan"].T
    np.testing.assert_allclose(power, power_of_normals(math.sqrt(2.0 * plan.rho), rates), atol=1e-9)
    assert set(bars(collection)) == {"gradient", "log_ratio", "clip_count"}


def test_of_releases_on_batches_bars_are_epsilons_that_do_not_add():
    plan = plan_of(on_batches, dp.PrivacyBudget(3.0, 1e-6))
    collection = plot_privacy(plan, **MATPLOTLIB)
    rates, power = curves(collection)["this plan"].T
    np.testing.assert_allclose(power, 1.0 - trade_off(plan.releases, rates, plan.relation), atol=1e-12)
    found = bars(collection)
    gradients = [each for each in plan.releases if each.kind == "gradient"]
    assert found["gradient"] == pytest.approx(account(gradients, plan.delta, plan.relation).epsilon)
    assert collection.get_viz("plot", panel="spent").get_xlabel() == f"Epsilon of each alone, at delta {plan.delta:.3g}"


def test_of_a_budget_it_is_the_whole_and_what_was_spent():
    budget = dp.PrivacyBudget(3.0, 1e-6)
    with gaussian_model(gaussian_data(N)):
        step = given_hmc(budget)
        step.budget_share = 0.5
        budget.charge(budget.plan(step, draws=20, chains=2))
    collection = plot_privacy(budget, **MATPLOTLIB)
    found = curves(collection)
    for name, rho in (("whole budget, epsilon 3", budget.rho), ("spent so far", budget.rho_spent)):
        rates, power = found[name].T
        np.testing.assert_allclose(power, power_of_normals(math.sqrt(2.0 * rho), rates), atol=1e-9)
    assert bars(collection) == pytest.approx({"run 1, dp_hmc": 50.0, "not spent": 50.0})


def test_of_a_budget_of_which_nothing_is_spent_attackers_guess():
    rates, power = curves(plot_privacy(dp.PrivacyBudget(1.0, 1e-6), **MATPLOTLIB))["spent so far"].T
    np.testing.assert_allclose(power, rates)


@pytest.mark.parametrize("reserved_share", [None, 0.5])
def test_of_a_budget_with_runs_that_reserve_their_own_it_is_the_guarantee_alone(reserved_share):
    budget = dp.PrivacyBudget(3.0, 1e-6, reserved_share=reserved_share)
    budget.charge(plan_of(on_batches, budget))
    collection = plot_privacy(budget, **MATPLOTLIB)
    found = curves(collection)
    rates, power = found["whole budget, epsilon 3"].T
    np.testing.assert_allclose(power, 1.0 - trade_off_of_guarantee(3.0, 1e-6, rates), atol=1e-12)
    rates, power = found["spent so far"].T
    np.testing.assert_allclose(power, 1.0 - trade_off_of_guarantee(budget.epsilon_spent, 1e-6, rates), atol=1e-12)
    assert bars(collection) == pytest.approx({"run 1, dp_sgld": budget.history[0].epsilon})


def test_the_relation_of_a_budget_does_not_matter_for_its_curve():
    both = [dp.PrivacyBudget(2.0, 1e-6, relation) for relation in ("substitute", "add-remove")]
    one, other = (curves(plot_privacy(budget, **MATPLOTLIB))["whole budget, epsilon 2"] for budget in both)
    np.testing.assert_allclose(one, other)


def test_several_are_compared_by_name():
    compared = {"weak": dp.PrivacyBudget(8.0, 1e-6), "this result": searched(), "strong": dp.PrivacyBudget(0.5, 1e-6)}
    collection = plot_privacy(compared, **MATPLOTLIB)
    found = curves(collection)
    assert list(found) == list(compared)
    assert (found["weak"][1:-1, 1] > found["strong"][1:-1, 1]).all()
    assert "bars_spent" not in collection.viz.children


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (lambda: counted("exact"), "exact clip counts were returned"),
        (lambda: dp.PrivacyBudget(math.inf, 1e-6), "an infinite epsilon"),
        (lambda: plan_of(given_hmc, dp.PrivacyBudget(math.inf, 1e-6)), "an infinite epsilon"),
    ],
)
def test_of_what_is_not_private_nothing_is_promised(shown, why):
    collection = plot_privacy(shown(), **MATPLOTLIB)
    np.testing.assert_array_equal(next(iter(curves(collection).values()))[:, 1], 1.0)
    said = " ".join(text.get_text() for text in words(collection)).replace("\n", " ")
    assert "NOT PRIVATE" in said
    assert why in said


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (None, "result of a private run of pm.sample"),
        ({}, "mapping is empty"),
        (DataTree(), "no group `privacy`"),
        ({"a": 3.0}, "result of a private run of pm.sample"),
    ],
)
def test_what_is_no_result_is_refused(shown, message):
    with pytest.raises(dp.InvalidArgument, match=message):
        plot_privacy(shown, backend="none")


def test_releases_that_cannot_be_read_are_refused():
    tree = searched().copy()
    tree["privacy"].attrs = {**tree["privacy"].attrs, "releases": '[{"event": "of my own"}]'}
    with pytest.raises(dp.InvalidArgument, match="cannot be read: KeyError"):
        plot_privacy(tree, backend="none")


@pytest.mark.parametrize("rate", [0.0, 1.0, "half"])
def test_rates_out_of_range_are_refused(rate):
    with pytest.raises(dp.InvalidArgument, match="false_positive_rate"):
        plot_privacy(dp.PrivacyBudget(1.0, 1e-6), false_positive_rate=rate, backend="none")
