"""Formulas of Bambi on a template, where Bambi is installed: levels and ranges are those declared."""

import numpy as np
import pytest
from declared import SCHEMA, by_hand, frame_of

import pymc_dp as dp
from pymc_dp.exceptions import UnsupportedTable
from pymc_dp.model.view import read
from pymc_dp.rows.likelihood import UnitLikelihood

bmb = pytest.importorskip("bambi")
NAMES = ("Intercept", "age", "ward", "emergency", "age:emergency", "I(age ** 2)", "poly(age, 2)")


def built(formula, t, **options):
    prior = bmb.Prior("Normal", mu=0, sigma=1)
    spread = bmb.Prior("Normal", mu=0, sigma=bmb.Prior("HalfNormal", sigma=1))
    priors = {**dict.fromkeys(NAMES, prior), "1|ward": spread, "age|ward": spread}
    model = bmb.Model(formula, t.frame, family="bernoulli", priors=priors, **{"center_predictors": False} | options)
    model.build()
    return model


def test_terms_of_a_formula_are_columns_of_the_table():
    """With interactions, squares and group effects."""
    frame = frame_of()
    table = dp.Table.from_frame(frame, SCHEMA)
    kept = built("back ~ age * emergency + I(age**2) + ward + (age | ward)", table.template)
    with table.opened(UnitLikelihood(read(kept.backend.model))) as rows:
        tables = rows._partitions._parts[0].rows_of_inputs
    (terms,) = (each for each in tables if each.ndim == 2)
    x, emergency, back = by_hand(frame)
    age, levels = x[:, 0], x[:, 3:6]
    expected = [age, emergency, age**2, *levels.T, age * emergency]
    assert sorted(column.tobytes() for column in terms.T) == sorted(
        np.asarray(one, float).tobytes() for one in expected
    )
    codes = levels @ [1, 2, 3]
    assert sum(np.array_equal(each, codes) for each in tables) >= 1
    assert sum(np.array_equal(each, back) for each in tables) == 1


@pytest.mark.parametrize(
    ("formula", "options"), [("back ~ age", {"center_predictors": True}), ("back ~ poly(age, 2)", {})]
)
def test_what_a_formula_learns_from_columns_is_refused(formula, options):
    table = dp.Table.from_frame(frame_of(), SCHEMA)
    kept = built(formula, table.template, **options)
    with pytest.raises(UnsupportedTable, match="no column"):
        with table.opened(UnitLikelihood(read(kept.backend.model))):
            pass
