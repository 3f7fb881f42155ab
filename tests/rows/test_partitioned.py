"""However a table is cut, sums of its partitions add up to the same bits."""

import functools

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from hypothesis import given, settings, strategies as st

from pymc_dp.exceptions import InvalidArgument, PrivacyError
from pymc_dp.model.view import read
from pymc_dp.release.interface import ExpansionPoint, GradientPrediction, Prediction
from pymc_dp.release.meter import ClipTally
from pymc_dp.release.preconditioned import GradientSizes, PreconditionedGradient
from pymc_dp.release.query import Evaluation, PublicFacts
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.partitioned import PartitionedUnits, Pass, answer

GRID = 2.0**-24
N, UNITS = 60, 23
THETA, NEW = np.array([0.3, -0.2, 0.4, 0.1]), np.array([0.1, 0.2, -0.3, 0.2])


class InPieces:
    """Partitions of this process, without anything else."""

    may_be_forked = True

    def __init__(self, parts):
        self.parts = parts
        self.lengths = [part.n_units for part in parts]

    def answers(self, asked, units):
        asked = cloudpickle.loads(cloudpickle.dumps(asked))  # as another process would have it
        return [
            answer(part, asked, None if units is None else units[place])
            for place, part in reversed(list(enumerate(self.parts)))
        ]

    def refuse_changes(self):
        pass


def table(n):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(n, 3))
    x[::7] *= 40.0  # some units are clipped
    return x, generator.integers(0, 2, size=n), np.sort(generator.integers(0, UNITS, size=n))


@functools.cache
def likelihoods():
    """Return the likelihood of the whole table, by rows and by units of several rows."""
    x, y, unit = table(N)
    with pm.Model() as model:
        intercept, slopes = pm.Normal("intercept"), pm.Normal("slopes", shape=3)
        pm.Bernoulli("y", logit_p=intercept + pm.Data("x", x) @ slopes, observed=y)
    return tuple(UnitLikelihood(read(model, unit_index=index)) for index in (None, unit))


def cut(whole, edges):
    """Return a likelihood in pieces, between units that `edges` names."""
    starts = whole._table.starts
    parts = []
    for begin, end in zip([0, *edges], [*edges, whole.n_units], strict=True):
        rows = slice(begin, end) if starts is None else slice(starts[begin], starts[end])
        of_part = None if starts is None else starts[begin : end + 1] - starts[begin]
        parts.append(whole.on_rows([values[rows] for values in whole._table.rows], of_part))
    return PartitionedUnits(whole, InPieces(parts), whole.n_rows, "a row")


def entries(chunk):
    return np.sin(chunk.gradient(THETA)) * chunk.log_likelihood(NEW)[:, None]


def in_two_bins(residuals):
    return np.array([np.sum(np.abs(residuals) < 0.01), np.sum(~(np.abs(residuals) < 0.01))], dtype=np.int64)


POINT = ExpansionPoint(THETA, np.diag([1.0, 0.5, 2.0, 1.0]), 0.7, 0.4)
OLD, OTHER = (Prediction(point, point - THETA, True, 0.1) for point in (THETA, NEW))
METHODS = {
    "gradient": lambda rows, units: rows.clipped_gradient(THETA, 0.5, GRID, units=units),
    "gradient of some": lambda rows, units: rows.clipped_gradient(THETA, 0.5, GRID, units=units, blocks=[False, True]),
    "log-ratio": lambda rows, units: rows.clipped_log_ratio(THETA, NEW, 0.5, GRID, units=units),
    "moments": lambda rows, units: rows.log_ratio_moments(THETA, NEW, 0.5, GRID, units=units),
    "own contributions": lambda rows, units: rows.sum_over_units(entries, 4, 0.3, GRID, units=units),
    "residual moments": lambda rows, units: rows.expansion(POINT).residual_moments(OLD, OTHER, 0.1, GRID, units=units),
}
OF_ALL = {
    "curvature": lambda rows: rows.expansion(POINT).curvature(GRID),
    "clipping loss": lambda rows: rows.expansion(POINT).clipping_loss(GRID, 0.5),
    "residual": lambda rows: rows.expansion(POINT).residual(OLD, OTHER, 0.1, GRID),
    "residual sizes": lambda rows: rows.expansion(POINT).residual_sizes(OLD, OTHER, in_two_bins, 1.0, GRID),
}


def bits(found):
    if isinstance(found, ClippedSum):
        return found.integers.tolist(), found.n_clipped, found.bound, found.grid
    return found


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([*METHODS, *OF_ALL]), st.booleans())
def test_every_sum_has_the_same_bits_however_the_table_is_cut(data, method, by_unit):
    """Cuts with one unit, and with none; batches of some units, of all and of none."""
    whole = likelihoods()[by_unit]
    edges = sorted(data.draw(st.lists(st.integers(0, whole.n_units), max_size=8)))
    rows = cut(whole, edges)
    if method in OF_ALL:
        assert bits(OF_ALL[method](rows)) == bits(OF_ALL[method](whole))
        return
    named = data.draw(st.none() | st.sets(st.integers(0, whole.n_units - 1)))
    units = None if named is None else np.array(sorted(named), dtype=np.int64)
    assert bits(METHODS[method](rows, units)) == bits(METHODS[method](whole, units))


def test_a_batch_is_named_by_places_within_partitions():
    for whole in likelihoods():
        rows, units = cut(whole, [7, whole.n_units - 5]), np.array([3, 7, 9, whole.n_units - 4])
        for method in METHODS.values():
            assert bits(method(rows, units)) == bits(method(whole, units))


def test_every_unit_is_a_partition():
    for whole in likelihoods():
        rows = cut(whole, list(range(1, whole.n_units)))
        for method in METHODS.values():
            assert bits(method(rows, None)) == bits(method(whole, None))
        for method in OF_ALL.values():
            assert bits(method(rows)) == bits(method(whole))


def test_queries_of_gradients_reach_partitions():
    """Their contributions are functions that are pickled."""
    nothing = GradientPrediction(THETA, np.zeros((4, 4)), np.zeros(4), np.zeros(4))
    whole = likelihoods()[0]
    rows = cut(whole, [10, 30])
    for query in (
        PreconditionedGradient(POINT, np.eye(4), nothing, 0.5),
        GradientSizes(POINT, np.eye(4), nothing, 1e-3, 12),
    ):
        found = [query.exact_sum(asked_of(each)) for each in (rows, whole)]
        assert bits(found[0]) == bits(found[1])
        assert found[0].integers.any()


def asked_of(rows):
    return Evaluation(rows, ClipTally(()), PublicFacts("substitute", rows.n_units, 0), GRID, None)


def test_sums_tell_the_table_from_another():
    """The comparison above could fail: one unit left out shows in every sum."""
    whole = likelihoods()[0]
    shorter = whole.on_rows([rows[: N - 1] for rows in whole.rows_of_inputs])
    for method in METHODS.values():
        assert bits(method(cut(shorter, [20]), None)) != bits(method(whole, None))
    for method in OF_ALL.values():
        assert bits(method(cut(shorter, [20]))) != bits(method(whole))


@pytest.mark.parametrize("units", [[3, 3], [5, 2], [-1], [N], [0.5]])
def test_units_that_would_count_twice_or_are_not_there_are_refused(units):
    """A unit that is named twice counts twice, also where its two places are in different partitions."""
    rows = cut(likelihoods()[0], [4, 4, 40])
    for method in METHODS.values():
        with pytest.raises(InvalidArgument, match="units must"):
            method(rows, np.array(units))


def test_wrong_arguments_are_refused_before_a_partition_is_asked(monkeypatch):
    rows = cut(likelihoods()[0], [4])
    monkeypatch.setattr(rows._partitions, "answers", lambda *_: pytest.fail("a partition was asked"))
    with pytest.raises(InvalidArgument, match="blocks"):
        rows.clipped_gradient(THETA, 0.5, GRID, blocks=[True])
    with pytest.raises(InvalidArgument, match="square preconditioner"):
        rows.expansion(ExpansionPoint(THETA[:2], np.eye(2), 1.0))
    with pytest.raises(InvalidArgument, match="no sum"):
        Pass("_table", ())
    with pytest.raises(InvalidArgument, match="no sum"):
        Pass("remainders", (OLD,), point=POINT)


def test_sums_of_different_bounds_are_not_added():
    one, other = (likelihoods()[0].clipped_gradient(THETA, bound, GRID) for bound in (0.5, 0.6))
    with pytest.raises(PrivacyError, match="different ways"):
        one + other


def test_nothing_that_happens_in_a_partition_shows_in_a_warning(recwarn):
    x, y, _ = table(10)
    x[3] = np.inf
    whole = likelihoods()[0]
    rows = PartitionedUnits(whole, InPieces([whole.on_rows([x, y])]), 10, "a row")
    for method in METHODS.values():
        method(rows, None)
    for method in OF_ALL.values():
        method(rows)
    assert not recwarn.list
    assert "confidential" in repr(rows)
