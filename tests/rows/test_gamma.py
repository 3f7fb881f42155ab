import mpmath
import numpy as np
import pymc as pm
import pytest
from looped import looped
from scipy import special

from pymc_dp.model.view import read
from pymc_dp.release import ExpansionPoint
from pymc_dp.rows import UnitLikelihood
from pymc_dp.rows.fused import gamma

GENERATOR = np.random.default_rng(0)
GRIDS = {
    "tiny": np.exp(GENERATOR.uniform(-350, -1, 400)),
    "up to one": GENERATOR.uniform(0, 1, 800),
    "at the zero": 1.4616321449683622 + np.concatenate([[0.0], GENERATOR.normal(scale=1e-4, size=400)]),
    "up to three": GENERATOR.uniform(1, 3, 800),
    "up to ten": GENERATOR.uniform(3, 10, 800),
    "above ten": np.concatenate([GENERATOR.uniform(9.5, 40, 400), np.exp(GENERATOR.uniform(3, 700, 400))]),
}
BELOW_ZERO = {
    "below zero": -GENERATOR.uniform(0, 30, 800),
    "at poles": -np.floor(GENERATOR.uniform(0, 9, 400)) + GENERATOR.normal(scale=1e-9, size=400),
    "far below zero": -np.exp(GENERATOR.uniform(0, 14, 400)),
}
SPECIAL = np.array(
    [
        *(0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.0, -37.0, -1e15, -1e16, -1e300),
        *(5e-324, -5e-324, 1e-310, -1e-310, 1e-200, -1e-200, 1e-154, 1e16, 1e300, 1.7e308),
        *(1.0, 2.0, 3.0, 10.0, np.nextafter(10.0, 0.0), -0.5, -1.5, -0.25),
    ]
)
ORDERS = {"digamma": 0, "trigamma": 1}


LOOPED = {name: looped(getattr(gamma, name)) for name in ORDERS}


def exactly(name, x):
    x = mpmath.mpf(float(x))
    if x > 0:
        return mpmath.psi(ORDERS[name], x)
    if name == "digamma":
        return mpmath.psi(0, 1 - x) - mpmath.pi * mpmath.cot(mpmath.pi * x)
    return (mpmath.pi / mpmath.sin(mpmath.pi * x)) ** 2 - mpmath.psi(1, 1 - x)


def units_off(name, x, least):
    """Return how far the function is off, at most, in units in the last place of values of at least `least`."""
    found = LOOPED[name](x)
    with mpmath.workprec(300):
        exact = [exactly(name, value) for value in x]
        off = np.array([abs(float(mpmath.mpf(float(one)) - other)) for one, other in zip(found, exact, strict=True)])
    return np.max(off / np.spacing(np.maximum(np.abs([float(value) for value in exact]), least)))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("name", "allowed"), [("digamma", 7.0), ("trigamma", 4.0)])
def test_within_a_few_units_in_the_last_place(name, allowed, grid):
    assert units_off(name, GRIDS[grid], 0.0) <= allowed


@pytest.mark.parametrize("grid", BELOW_ZERO)
@pytest.mark.parametrize(("name", "allowed"), [("digamma", 7.0), ("trigamma", 5.0)])
def test_below_zero(name, allowed, grid):
    """The digamma function has a zero between any two poles, where its error is that of the terms of the reflection."""
    x = BELOW_ZERO[grid]
    least = np.maximum(np.abs(special.psi(1 - x)), 1.0) if name == "digamma" else 0.0
    assert units_off(name, x, least) <= allowed


@pytest.mark.parametrize(("name", "scipys"), [("digamma", special.psi), ("trigamma", lambda x: special.zeta(2, x))])
def test_special_values_are_scipys(name, scipys):
    expected = np.array([scipys(x) for x in SPECIAL])
    assert LOOPED[name](SPECIAL) == pytest.approx(expected, rel=4e-15, abs=0, nan_ok=True)


@pytest.mark.parametrize("name", ORDERS)
def test_bits_do_not_depend_on_the_place_in_the_loop(name):
    x = np.concatenate([*GRIDS.values(), *BELOW_ZERO.values(), SPECIAL])
    found = LOOPED[name](x)
    order = GENERATOR.permutation(x.size)
    assert np.array_equal(LOOPED[name](x[order]), found[order], equal_nan=True)
    for offset in range(9):
        assert np.array_equal(LOOPED[name](x[offset : offset + 101]), found[offset : offset + 101], equal_nan=True)
    alone = np.concatenate([LOOPED[name](value[None]) for value in x])
    assert np.array_equal(alone, found, equal_nan=True)


@pytest.mark.parametrize("name", ORDERS)
def test_the_loop_has_vectors_and_no_fused_multiplication(name):
    """A vector loop with fused multiplications and a remainder without would give a row two values."""
    LOOPED[name](np.ones(3))
    (text,) = LOOPED[name].loop.inspect_asm().values()
    assert "fmadd" not in text
    assert "fmsub" not in text
    assert "divpd" in text


def negative_binomial():
    generator = np.random.default_rng(3)
    alpha = pm.HalfNormal("alpha")
    pm.NegativeBinomial("y", mu=pm.math.exp(pm.Normal("mu")), alpha=alpha, observed=generator.poisson(3, 40))


def beta():
    a, b = pm.HalfNormal("a"), pm.HalfNormal("b")
    pm.Beta("y", a, b * pm.Data("x", np.linspace(0.5, 2, 40)), observed=np.linspace(0.1, 0.9, 40))


def gamma_model():
    shape = pm.HalfNormal("shape") * pm.Data("x", np.linspace(0.5, 2, 40))
    pm.Gamma("y", shape, 1.5, observed=np.linspace(0.1, 5, 40))


def student_t():
    nu = pm.HalfNormal("nu") * pm.Data("x", np.linspace(0.5, 20, 40))
    pm.StudentT("y", nu, mu=0.0, sigma=1.0, observed=np.linspace(-3, 3, 40))


@pytest.mark.parametrize(
    "family",
    [negative_binomial, *(pytest.param(each, marks=pytest.mark.slow) for each in (beta, gamma_model, student_t))],
    ids=lambda f: f.__name__,
)
def test_derivatives_of_likelihoods_with_gamma_functions(family):
    with pm.Model() as model:
        family()
    found = {}
    for engine in ("fused", "reference"):
        rows = UnitLikelihood(read(model), second_order=True, engine=engine)
        assert engine == "reference" or rows.engine_reason == ""
        theta = np.linspace(-0.4, 0.7, rows.n_parameters)
        expansion = rows.expansion(ExpansionPoint(theta, np.eye(theta.size), 1e6, 1e6))
        passes = rows.clipped_gradient(theta, 1e6, 2.0**-30), expansion.score(2.0**-30), expansion.curvature(2.0**-30)
        found[engine] = np.concatenate([result.value.ravel() for result in passes])
    assert found["fused"] == pytest.approx(found["reference"], rel=1e-9, abs=1e-6)
    assert np.all(found["fused"] != 0)
