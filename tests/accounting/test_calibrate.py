import json
import math
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pymc_dp.accounting import GaussianReleases, gaussian_rho, largest_count, noise_for
from pymc_dp.exceptions import InvalidArgument

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())["gaussian"]


@given(st.integers(1, 10**9), st.floats(1e-9, 1e3))
def test_calibrated_noise_never_costs_more_and_hardly_less(count, rho):
    """Hazard H31: nor where the cost is a single number."""
    releases = noise_for("gradient", count, rho)
    assert releases.rho <= rho
    assert releases.rho == pytest.approx(rho, rel=1e-14)


@given(st.floats(0.01, 1e4), st.floats(0.0, 100.0))
def test_largest_count_fits_and_one_more_does_not(noise_multiplier, rho):
    count = largest_count(noise_multiplier, rho)
    cost = 1.0 / (2.0 * noise_multiplier**2)
    assert count * cost <= rho * (1 + 1e-12)
    assert (count + 1) * cost > rho * (1 - 1e-12)


@pytest.mark.parametrize("row", REFERENCE["dp_hmc_calibrate"])
def test_noise_multipliers_of_hmc_match_reference(row):
    rho = gaussian_rho(float(row["epsilon"]), float(row["delta"]))
    iterations, leapfrogs, share = row["k"], row["L"], float(row["f_ratio_share"])
    for kind, count, part, expected in (
        ("log_ratio", iterations, share, row["tau_l"]),
        ("gradient", iterations * (leapfrogs + 1), 1 - share, row["tau_g"]),
        ("gradient", iterations * leapfrogs + 1, 1 - share, row["tau_g_reuse"]),
    ):
        assert noise_for(kind, count, rho * part).noise_multiplier == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_noise_multiplier_must_be_a_positive_number(bad):
    with pytest.raises(InvalidArgument):
        GaussianReleases("gradient", 1, bad)
    with pytest.raises(InvalidArgument):
        noise_for("gradient", 1, bad)


def test_largest_count_of_nothing_is_nothing():
    assert largest_count(5.0, 0.0) == 0
