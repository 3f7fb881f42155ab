import mpmath
import numpy as np
import pytest
from looped import looped

from pymc_dp.rows import elementary

GENERATOR = np.random.default_rng(0)
WIDE = np.concatenate(
    [GENERATOR.normal(scale=scale, size=200) for scale in (1e-12, 1e-3, 0.3, 1, 10, 200)]
    + [np.linspace(-745, 709.7, 400)]
)
POSITIVE = np.concatenate([np.exp(GENERATOR.uniform(-744, 709, 600)), 1 + GENERATOR.normal(scale=0.1, size=400)])
UNIT = np.concatenate(
    [GENERATOR.uniform(size=800), np.exp(GENERATOR.uniform(-700, 0, 200)), [0.41421356237309503, 1.0]]
)
NEGATIVE = -np.exp(GENERATOR.uniform(-40, 6, 800))
FUNCTIONS = {
    "exp": (WIDE, mpmath.exp, 1.0),
    "log": (POSITIVE, mpmath.log, 1.0),
    "log1p": (np.concatenate([WIDE[WIDE > -1], POSITIVE[POSITIVE > 1e-9] - 1]), mpmath.log1p, 1.5),
    "expm1": (WIDE, mpmath.expm1, 2.0),
    "log1p_up_to_one": (UNIT, mpmath.log1p, 1.0),
    "log1mexp": (NEGATIVE, lambda x: mpmath.log1p(-mpmath.exp(x)), 2.0),
}
SPECIAL = np.array(
    [
        *(0.0, -0.0, np.inf, -np.inf, np.nan, 1e308, -1e308, 5e-324, -5e-324, 1.0, -1.0),
        *(709.78, 709.79, -745.0, -745.2, -746.0, 2.3e-308, 1e-310, 40.1, 61 * np.log(2)),
    ]
)


LOOPED = {name: looped(getattr(elementary, name)) for name in FUNCTIONS}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_a_few_units_in_the_last_place(name):
    x, reference, allowed = FUNCTIONS[name]
    x = x[x != 0]
    found = LOOPED[name](x)
    with mpmath.workprec(400):
        exact = [reference(mpmath.mpf(float(value))) for value in x]
        off = [abs(float(mpmath.mpf(float(one)) - other)) for one, other in zip(found, exact, strict=True)]
    units = np.spacing(np.abs([float(value) for value in exact]))
    assert np.max(off / units) <= allowed


@pytest.mark.parametrize("name", ["exp", "log", "log1p", "expm1"])
def test_special_values_are_numpys(name):
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(SPECIAL)
    found = LOOPED[name](SPECIAL)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    clear = ~np.isnan(expected)
    assert np.array_equal(np.isinf(found), np.isinf(expected))
    assert found[clear] == pytest.approx(expected[clear], rel=1e-15, abs=0)


def test_special_values_of_the_others():
    assert LOOPED["log1p_up_to_one"](np.array([0.0, 1.0, np.nan])) == pytest.approx([0, np.log(2), np.nan], nan_ok=True)
    assert LOOPED["log1mexp"](np.array([0.0, -np.inf, np.nan, -800.0])) == pytest.approx(
        [-np.inf, 0.0, np.nan, 0.0], nan_ok=True
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_do_not_depend_on_the_place_in_the_loop(name):
    x = np.concatenate([FUNCTIONS[name][0], SPECIAL])
    found = LOOPED[name](x)
    order = GENERATOR.permutation(x.size)
    assert np.array_equal(LOOPED[name](x[order]), found[order], equal_nan=True)
    for offset in range(9):
        assert np.array_equal(LOOPED[name](x[offset : offset + 101]), found[offset : offset + 101], equal_nan=True)
    alone = np.concatenate([LOOPED[name](value[None]) for value in x])
    assert np.array_equal(alone, found, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_loop_holds_no_fused_multiplication(name):
    """A vector loop with fused multiplications and a remainder without would give a row two values."""
    LOOPED[name](np.ones(3))
    (text,) = LOOPED[name].loop.inspect_asm().values()
    assert "fmadd" not in text
    assert "fmsub" not in text
