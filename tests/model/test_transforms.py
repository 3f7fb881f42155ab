"""Transforms of variables with bounds: invertible, with their Jacobians, and read from single numbers alone."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.logprob.transforms import IntervalTransform, LogTransform

from pymc_dp.compiling import INTERPRETED
from pymc_dp.model.transforms import (
    FromBound,
    Itself,
    LogarithmOf,
    Unbounded,
    bounds_of,
    from_unbounded,
    transform_by_name,
    without_bounds,
)

LOGARITHMS = [
    LogarithmOf(power, *ends) for power in (1.0, -0.5, 2.0) for ends in ((0.0, 50.0), (0.1, 20.0), (1.0, np.inf))
]
OTHERS = [LogarithmOf(-0.5, 0.0, np.inf), Itself(-1.0, 3.0, LogTransform()), FromBound(-1.0, np.array(2.0))]


def function_of(graph):
    value = pt.scalar("value", dtype="float64")
    return pm.compile([value], graph(value), mode=INTERPRETED)


@pytest.mark.parametrize("transform", [*LOGARITHMS, *OTHERS, *(Unbounded(each) for each in LOGARITHMS)])
def test_backward_inverts_forward_and_has_the_derivative_that_is_told(transform):
    forward, backward = function_of(transform.forward), function_of(transform.backward)
    log_slope = function_of(transform.log_jac_det)
    for value in (-1.3, 0.2, 0.9):
        assert forward(backward(value)) == pytest.approx(value, rel=1e-9)
        slope = (backward(value + 1e-6) - backward(value - 1e-6)) / 2e-6
        assert log_slope(value) == pytest.approx(np.log(abs(slope)), abs=1e-6)


@pytest.mark.parametrize("logarithm", LOGARITHMS)
def test_any_value_without_bounds_is_within_them_and_is_the_same_far_from_them(logarithm):
    backward, variable = function_of(Unbounded(logarithm).backward), function_of(logarithm.backward)
    for value in (-40.0, -3.0, 0.0, 5.0, 30.0):
        assert logarithm.lower <= variable(backward(value)) * (1.0 + 1e-12)
        assert variable(backward(value)) <= logarithm.upper * (1.0 + 1e-12)
    least, most = np.array([logarithm.lower, logarithm.upper])
    far = logarithm.power * np.log(30.0 * least if most == np.inf else np.sqrt(max(least, 1e-3 * most) * most))
    assert backward(far) == pytest.approx(far, abs=0.15 * abs(logarithm.power))


def test_a_value_from_a_bound_is_linear_far_from_it():
    backward = function_of(FromBound(-1.0, np.array(2.0)).backward)
    assert backward(12.0) == pytest.approx(-1.0 + 2.0 * 12.0, rel=1e-5)
    assert 0.0 < backward(-12.0) + 1.0 < 1e-4


def test_ends_of_values_are_in_order():
    assert LogarithmOf(-0.5, 0.0, 4.0).range == (-np.log(2.0), np.inf)
    assert LogarithmOf(1.0, 2.0, 4.0).range == (np.log(2.0), np.log(4.0))
    assert Itself(-1.0, np.inf, LogTransform()).range == (-1.0, np.inf)


def bounded(make):
    with pm.Model() as model:
        variable = make()
    return bounds_of(variable, model.rvs_to_transforms[variable])


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: pm.Uniform("s", 0, 50), (0.0, 50.0)),
        (lambda: pm.Uniform("s", -2.0, 3.0, shape=4), (-2.0, 3.0)),
        (lambda: pm.TruncatedNormal("s", 0, 1, lower=0), (0.0, np.inf)),
        (lambda: pm.TruncatedNormal("s", 0, 1, upper=2), (-np.inf, 2.0)),
        (lambda: pm.Truncated("s", pm.Gamma.dist(2, 0.1), lower=1), (1.0, np.inf)),
        (lambda: pm.HalfNormal("s"), (0.0, np.inf)),
        (lambda: pm.Normal("s"), None),
        (lambda: pm.Beta("s", 1, 1), None),
        (lambda: pm.Uniform("s", 0, pm.HalfNormal("upper")), None),
        (lambda: pm.Uniform("s", 0, np.array([1.0, 2.0])), None),
        (lambda: pm.Uniform("s", 0, pm.Data("upper", 3.0)), None),
    ],
)
def test_bounds_are_read_where_they_are_single_numbers(make, wanted):
    """An array may be rows, and a data variable may change."""
    assert bounded(make) == wanted


def test_what_has_bounds_is_drawn_without_them():
    with pm.Model() as model:
        pm.HalfNormal("a")
        pm.Uniform("b", 0.0, 3.0)
        pm.Normal("c", transform=LogarithmOf(1.0, 0.0, np.inf))
        pm.Normal("d", transform=LogarithmOf(1.0, 0.0, 4.0))
        pm.Normal("e", transform=Itself(0.0, np.inf, LogTransform()))
    found = without_bounds(model)
    assert set(found) == {"d", "e"}
    assert isinstance(from_unbounded(found["d"]), Unbounded)
    assert isinstance(from_unbounded(found["e"]), LogTransform)
    assert from_unbounded(model.rvs_to_transforms[model["d"]]) is None


def test_a_name_tells_the_transform():
    with pm.Model() as model:
        s = pm.Uniform("s", 0.0, 3.0)
        pm.Uniform("t", -1.0, 3.0)
    transform = model.rvs_to_transforms[s]
    assert isinstance(transform, IntervalTransform)
    logarithm = transform_by_name(s, transform, {"s_log__", "t_log__"})
    assert (type(logarithm), logarithm.power, logarithm.upper) == (LogarithmOf, 1.0, 3.0)
    assert transform_by_name(s, transform, {"s_log^-0.5__"}).power == -0.5
    assert isinstance(transform_by_name(s, transform, {"s_itself__"}), Itself)
    assert transform_by_name(s, transform, {"s_interval__"}) is None
    assert transform_by_name(s, logarithm, {"s_log__"}) is None
    assert isinstance(transform_by_name(s, None, {"s_itself__"}), Itself)
    assert transform_by_name(s, None, {"s_log__"}) is None
    assert transform_by_name(model["t"], model.rvs_to_transforms[model["t"]], {"t_log__"}) is None
