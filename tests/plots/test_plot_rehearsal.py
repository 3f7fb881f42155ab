"""What a dry run expects is drawn as it was found."""

import math

import numpy as np
import pytest
from plotted_runs import MATPLOTLIB, axes, drawn, forecast

import pymc_dp as dp
from pymc_dp.accounting import gaussian_rho
from pymc_dp.plots import plot_rehearsal


def lengths(collection, panel):
    """Bars by name."""
    line, target = drawn(collection, f"bars_{panel}"), axes(collection)[panel]
    names = [label.get_text() for label in target.get_yticklabels()]
    return dict(zip(names, line.get_xdata()[1::3], strict=True))


def test_errors_are_in_posterior_standard_deviations():
    collection = plot_rehearsal(forecast(), **MATPLOTLIB)
    assert lengths(collection, "error") == pytest.approx({"noise alone": 0.75, "all means": 0.6, "worst mean": 1.1})
    assert lengths(collection, "coverage") == pytest.approx({"90 % intervals": 88.0})
    assert drawn(collection, "harmless_error").get_xdata() == [0.5, 0.5]
    assert drawn(collection, "expected_coverage").get_xdata() == [90.0, 90.0]
    assert "posterior sd" in axes(collection)["error"].get_xlabel()


def test_the_error_by_noise_falls_with_epsilon_as_the_root_of_rho():
    collection = plot_rehearsal(forecast(), **MATPLOTLIB)
    plan = forecast().plan
    epsilons, errors = drawn(collection, "curve_epsilon").get_data()
    assert (np.diff(epsilons) < 0.0).all()
    expected = [0.75 * math.sqrt(plan.rho / gaussian_rho(epsilon, plan.delta)) for epsilon in epsilons]
    np.testing.assert_allclose(errors, expected, rtol=1e-6)
    ((epsilon, error),) = drawn(collection, "this_run_epsilon").get_offsets()
    assert (epsilon, error) == (pytest.approx(plan.epsilon, rel=1e-6), 0.75)
    assert errors.min() < 0.5 < errors.max()


@pytest.mark.parametrize("found", [{"widening": math.nan}, {"widening": 1.0}, {"batches": True}])
def test_without_a_known_error_or_rho_there_is_no_curve(found):
    collection = plot_rehearsal(forecast(**found), **MATPLOTLIB)
    assert list(axes(collection)) == ["error", "coverage"]
    known = "batches" in found
    assert ("noise alone" in lengths(collection, "error")) is known


def test_what_is_no_forecast_is_refused():
    with pytest.raises(dp.InvalidArgument, match="dry_run, not a str"):
        plot_rehearsal("good", backend="none")
