"""Differences of log predictive densities: what is summed, and how far one unit moves it."""

import math

import numpy as np
import pymc as pm
import pytest
from hypothesis import given, strategies as st
from scipy import special, stats
from two_tables import exact, movement, value

from pymc_dp.exceptions import InvalidArgument, PrivacyError
from pymc_dp.model.view import read
from pymc_dp.release.surveys import DensityDifferences, DifferenceSizes
from pymc_dp.rows import UnitLikelihood
from pymc_dp.rows.partitioned import PartitionedUnits
from pymc_dp.rows.table import RowTable
from pymc_dp.tables.local import InMemory

N, COUNT = 50, 3
GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(2, N))
DRAWS, OF_OTHER = GENERATOR.normal(scale=0.3, size=COUNT * 2), GENERATOR.normal(scale=0.3, size=COUNT)


def view_of(slopes, unit_index=None):
    with pm.Model() as model:
        mu = pm.Normal("a") + (pm.Normal("b") * pm.Data("x", X) if slopes else 0.0)
        pm.Normal("y", mu, 1.0, observed=Y)
    return read(model, unit_index=unit_index)


ROWS = UnitLikelihood(view_of(True), other=view_of(False))
PERSONS = UnitLikelihood(view_of(True, np.arange(N) // 2), other=view_of(False))


def with_row(x, y, place, rows=ROWS):
    tables = [values.copy() for values in rows.rows_of_inputs]
    for each, values in zip(rows.inputs, tables, strict=True):
        values[place] = x if "x" in each.names else y
    return rows.on_rows(tables, rows._table.starts)


NUMBER = st.one_of(st.sampled_from([0.0, 1e6, -1e308, math.inf, math.nan, 1e160]), st.floats(-10, 10))
QUERIES = st.one_of(
    st.builds(DensityDifferences, st.just(DRAWS), st.just(OF_OTHER), st.just(COUNT), st.sampled_from([0.01, 1.0, 1e3])),
    st.builds(
        DifferenceSizes, st.just(DRAWS), st.just(OF_OTHER), st.just(COUNT), st.integers(-20, 0), st.integers(1, 30)
    ),
)


@pytest.mark.filterwarnings("error")
@given(QUERIES, NUMBER, NUMBER, st.integers(0, N - 1))
def test_replacing_a_row_moves_no_sum_by_more_than_declared(query, x, y, place):
    """Hazard H14: of rows that are units, and of rows of persons."""
    for rows in (ROWS, PERSONS):
        moved, allowed = movement(query, rows, with_row(x, y, place, rows))
        assert moved <= allowed


@given(QUERIES, st.integers(0, N - 1))
def test_removing_a_row_moves_no_sum_by_more_than_declared(query, place):
    fewer = ROWS.on_rows([np.delete(values, place, axis=0) for values in ROWS.rows_of_inputs])
    moved, allowed = movement(query, ROWS, fewer, "add-remove")
    assert moved <= allowed


def test_a_row_can_move_them_as_far_as_declared():
    """Two rows that the models disagree on in opposite ways."""
    query = DensityDifferences(np.tile([0.0, 1.0], COUNT), np.zeros(COUNT), COUNT, 0.5)
    moved, allowed = movement(query, with_row(3.0, 3.0, 0), with_row(3.0, -3.0, 0))
    assert moved == pytest.approx(allowed, rel=1e-6)


def test_differences_are_those_of_mean_densities():
    one, other = DRAWS.reshape(COUNT, 2), OF_OTHER.reshape(COUNT, 1)
    by_one = special.logsumexp([stats.norm.logpdf(Y, a + b * X) for a, b in one], axis=0)
    by_other = special.logsumexp([stats.norm.logpdf(Y, a) for (a,) in other], axis=0)
    found = by_one - by_other
    clipped = np.clip(found, -0.2, 0.2)
    sums = value(DensityDifferences(DRAWS, OF_OTHER, COUNT, 0.2), ROWS)
    np.testing.assert_allclose(sums, [clipped.sum(), (clipped**2).sum()], atol=1e-7)
    counts = value(DifferenceSizes(DRAWS, OF_OTHER, COUNT, -6, 10), ROWS)
    expected = np.bincount(np.clip(np.floor(np.log2(np.abs(found))) + 6, 0, 9).astype(int), minlength=10)
    np.testing.assert_allclose(counts, expected, atol=1e-7)


def test_partitions_give_the_same_bits():
    query = DensityDifferences(DRAWS, OF_OTHER, COUNT, 0.2)
    cuts = [slice(0, 7), slice(7, N)]
    blocks = [
        RowTable(tuple(np.ascontiguousarray(values[cut]) for values in ROWS.rows_of_inputs), None) for cut in cuts
    ]
    cut = PartitionedUnits(ROWS, InMemory(ROWS, blocks), N, "one row")
    assert np.array_equal(exact(query, cut)[0], exact(query, ROWS)[0])


@pytest.mark.parametrize(
    "query",
    [
        DensityDifferences(DRAWS, OF_OTHER, COUNT, 0.0),
        DensityDifferences(DRAWS, OF_OTHER, COUNT, math.inf),
        DensityDifferences(DRAWS, OF_OTHER, 0, 1.0),
        DensityDifferences(DRAWS[:-1], OF_OTHER, COUNT, 1.0),
        DensityDifferences(DRAWS, DRAWS, COUNT, 1.0),
    ],
)
def test_what_does_not_fit_is_refused(query):
    with pytest.raises(PrivacyError):
        exact(query, ROWS)


def test_without_another_model_nothing_is_compared():
    alone = UnitLikelihood(view_of(True))
    with pytest.raises(PrivacyError, match="no other model"):
        exact(DensityDifferences(DRAWS, OF_OTHER, COUNT, 1.0), alone)
    with pytest.raises(InvalidArgument, match="no other model"):
        alone.sum_over_units(lambda chunk: chunk.log_likelihood_by_other(np.zeros(1))[:, None], 1, 1.0, 1.0)
