import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, strategies as st

from pymc_dp.accounting import gaussian_delta, gaussian_epsilon, gaussian_rho
from pymc_dp.accounting.gaussian import log_delta
from pymc_dp.exceptions import InvalidArgument

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())["gaussian"]
RHO = st.floats(-12, 3).map(lambda power: 10.0**power)
EPSILON = st.floats(1e-6, 50.0)
DELTA = st.floats(-300, -0.1).map(lambda power: 10.0**power)


def exact_log_delta(rho, epsilon):
    """The second route: the defining formula with 400 bits."""
    with mpmath.workdps(120):
        rho, epsilon = mpmath.mpf(rho), mpmath.mpf(epsilon)
        root = 2 * mpmath.sqrt(rho)
        tails = mpmath.erfc((epsilon - rho) / root) - mpmath.exp(epsilon) * mpmath.erfc((epsilon + rho) / root)
        return mpmath.log(tails / 2)


@pytest.mark.parametrize("row", REFERENCE["dp_hmc_forward"], ids=lambda row: f"k{row['k']}-L{row['L']}")
def test_delta_and_epsilon_match_reference(row):
    for suffix, rho in (("", float(row["mu"])), ("_reuse", float(row["mu_reuse"]))):
        for epsilon, delta in row[f"delta_of_epsilon{suffix}"].items():
            if float(delta) > 1e-300:
                assert gaussian_delta(rho, float(epsilon)) == pytest.approx(float(delta), rel=1e-8)
        for delta, epsilon in row[f"epsilon_of_delta{suffix}"].items():
            assert gaussian_epsilon(rho, float(delta)) == pytest.approx(float(epsilon), rel=1e-8)


@pytest.mark.parametrize("row", REFERENCE["mu_star"], ids=lambda row: f"{row['epsilon']}-{row['delta']}")
def test_rho_matches_reference_and_is_on_the_safe_side(row):
    epsilon, delta, expected = (float(row[name]) for name in ("epsilon", "delta", "mu_star"))
    rho = gaussian_rho(epsilon, delta)
    assert rho == pytest.approx(expected, rel=1e-8)
    assert rho <= expected
    assert rho > float(row["rho_zcdp_old"])  # tighter than zCDP


@given(RHO, st.floats(-6.0, 26.0))
def test_log_delta_matches_the_formula_at_400_bits(rho, place):
    """Hazard H30: the exact curve on a second route."""
    epsilon = max(1e-9, rho + 2.0 * place * math.sqrt(rho))
    expected = exact_log_delta(rho, epsilon)
    if expected > -690:
        assert abs(float(mpmath.mpf(log_delta(rho, epsilon)) - expected)) < 2e-11


@given(RHO, DELTA)
def test_epsilon_is_safe_and_tight(rho, delta):
    epsilon = gaussian_epsilon(rho, delta)
    assert exact_log_delta(rho, epsilon) <= mpmath.log(mpmath.mpf(delta))
    if epsilon > 0.0:
        assert exact_log_delta(rho, epsilon) >= mpmath.log(mpmath.mpf(delta)) - 1e-9


@given(EPSILON, DELTA)
def test_rho_is_safe_and_tight(epsilon, delta):
    rho = gaussian_rho(epsilon, delta)
    log_of_delta = mpmath.log(mpmath.mpf(delta))
    assert log_of_delta - 1e-9 <= exact_log_delta(rho, epsilon) <= log_of_delta
    assert gaussian_epsilon(rho, delta) <= epsilon


@given(RHO, EPSILON, st.floats(1.0001, 2.0))
def test_delta_grows_with_rho_and_falls_with_epsilon(rho, epsilon, factor):
    slack = 1e-9
    assert log_delta(rho * factor, epsilon) >= log_delta(rho, epsilon) - slack
    assert log_delta(rho, epsilon * factor) <= log_delta(rho, epsilon) + slack


def test_nothing_released_costs_nothing():
    assert gaussian_delta(0.0, 1.0) == 0.0
    assert gaussian_epsilon(0.0, 1e-6) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, True, "1", None, np.nan])
@pytest.mark.parametrize("function", [gaussian_delta, gaussian_epsilon, gaussian_rho])
def test_bad_arguments_never_give_a_number(function, bad):
    good = 0.5
    for arguments in ((bad, good), (good, bad)):
        with pytest.raises(InvalidArgument):
            function(*arguments)


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(InvalidArgument, match="delta"):
        gaussian_epsilon(1.0, delta)


def test_numpy_and_integer_arguments_are_floats_too():
    assert gaussian_epsilon(np.float32(0.5), 1e-5) == gaussian_epsilon(0.5, 1e-5)
    assert gaussian_delta(1, 2) == gaussian_delta(1.0, 2.0)
