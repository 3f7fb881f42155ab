"""Responses that a row could have had: which, with what probability, and never by what it has."""

import functools
import math

import numpy as np
import pymc as pm
import pytest
import scipy.stats

from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood, derivatives
from pymc_dp.rows.expansion import (
    ExpansionPoint,
    centred_scores_of,
    expected_curvatures_of,
    least_squared_slopes_of,
    squares_of_expected_curvatures,
    squares_of_least_information,
    upper_scores_of,
)
from pymc_dp.rows.responses import PossibleResponses

N = 60
X = np.random.default_rng(0).normal(size=N)
Y = np.random.default_rng(1).integers(0, 2, N)
THETA = np.array([0.8])
OF = (
    *(centred_scores_of, expected_curvatures_of, squares_of_expected_curvatures),
    *(upper_scores_of, squares_of_least_information, least_squared_slopes_of),
)


def rows_of(observed, y=Y, unit_index=None):
    with pm.Model() as model:
        observed(pm.Data("x", X) * pm.Normal("beta"), y)
    return UnitLikelihood(read(model, unit_index=unit_index))


def poisson(eta, y):
    pm.Poisson("y", pm.math.exp(eta), observed=y)


def gamma(eta, y):
    pm.Gamma("y", alpha=2.0, beta=2.0 * pm.math.exp(-eta), observed=y + 0.5)


def logistic(eta, y):
    pm.Bernoulli("y", logit_p=eta, observed=y)


def everything(rows, theta=THETA):
    """Return gradients and probabilities of each response that occurs, of all units in order."""
    ((units, found),) = next(rows.each_chunk(lambda chunk: list(chunk.of_responses(theta, np.eye(theta.size)))))
    parts = []
    for slopes, probabilities in zip(found.slopes.swapaxes(0, 1), found.probabilities, strict=True):
        gradients = np.where(probabilities > 0.0, found.axes.times(slopes), 0.0)
        parts += [gradients[:, np.argsort(units)].T, probabilities[np.argsort(units)]]
    return parts


@functools.cache
def compiled(observed):
    """Return rows that no test changes, or has computed anything remembered of."""
    return rows_of(observed)


def responses_of(observed):
    """Return the possible responses of a distribution, which are the same for any rows."""
    return compiled(observed)._responses


@pytest.mark.parametrize("observed", [poisson, gamma, logistic])
def test_nothing_is_a_function_of_a_rows_own_response(observed):
    one = everything(compiled(observed))
    other = everything(rows_of(observed, 1 - Y))
    assert len(one) == len(other) > 2
    for mine, yours in zip(one, other, strict=True):
        assert np.array_equal(mine, yours)


def test_gradients_are_those_of_a_table_with_that_response():
    found = everything(compiled(logistic))
    p = 1.0 / (1.0 + np.exp(-0.8 * X))
    for response, (gradients, probabilities) in enumerate(zip(found[::2], found[1::2], strict=True)):
        assert gradients[:, 0] == pytest.approx((response - p) * X, rel=1e-12)
        assert probabilities == pytest.approx(p if response else 1.0 - p, rel=1e-12)


def test_counts_beyond_the_first_stand_for_those_around_them():
    possible = responses_of(poisson)
    assert possible.values[:33] == tuple(range(33))
    assert len(possible.values) == len(set(possible.values)) < 140
    assert np.all(np.diff(possible.values) > 0)
    assert possible.stand_for[:32] == (1.0,) * 32
    assert sum(possible.stand_for) == possible.values[-1] + 1.0  # all of them, each once


@pytest.mark.parametrize("mean", [0.1, 3.0, 12.0, 40.0, 100.0, 300.0, 3000.0])
@pytest.mark.parametrize("shape", [math.inf, 50.0, 2.0])
def test_means_over_counts_that_stand_for_all_are_close(mean, shape):
    """As `pymc_dp.model.structure` says: of a Poisson distribution up to a mean of about 300, wider ones up to any."""
    if shape == math.inf and mean > 300.0:
        pytest.skip("too narrow")
    possible = responses_of(poisson)
    counts = np.array(possible.values)
    wide = scipy.stats.nbinom(shape, shape / (shape + mean)) if shape < math.inf else scipy.stats.poisson(mean)
    asked, found = probabilities_of(possible, wide.logpmf(counts)[:, None])
    counts, found = counts[asked], found[:, 0]
    assert found.sum() == pytest.approx(1.0)
    assert abs(found @ counts - mean) < 0.1 * wide.std()
    assert found @ (counts - mean) ** 2 == pytest.approx(wide.var(), rel=0.15)


CONTINUOUS = {f"gamma of shape {shape:g}": scipy.stats.gamma(shape) for shape in (0.5, 1.0, 2.0, 30.0, 150.0)}
CONTINUOUS |= {f"Weibull of shape {shape:g}": scipy.stats.weibull_min(shape) for shape in (0.7, 1.0, 5.0, 12.0)}
CONTINUOUS |= {"inverse gamma": scipy.stats.invgamma(2.0), "log-normal": scipy.stats.lognorm(0.08)}


@functools.cache
def moments_of_logarithms(name):
    return tuple(CONTINUOUS[name].expect(lambda x, k=k: np.log(x) ** k, limit=500) for k in (1, 2))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1234.5, 1e7])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_means_over_positive_numbers_that_stand_for_all_are_close(name, scale):
    """As `pymc_dp.model.structure` says: where responses vary by 8 % or more. Of few of them, if they vary much."""
    possible, responses = responses_of(gamma), CONTINUOUS[name]
    values = np.array(possible.values)
    asked, found = probabilities_of(possible, responses.logpdf(values / scale)[:, None])
    assert len(asked) < 80
    logs, found = np.log(values[asked] / scale), found[:, 0]
    assert found.sum() == pytest.approx(1.0)
    mean, second = moments_of_logarithms(name)
    assert found @ logs == pytest.approx(mean, abs=0.02 * math.sqrt(second - mean**2))
    assert found @ (logs - mean) ** 2 == pytest.approx(second - mean**2, rel=0.02)


def test_rows_that_vary_much_are_told_by_fewer_responses_whatever_other_rows_there_are():
    possible = responses_of(gamma)
    logs = np.column_stack([scipy.stats.gamma(shape).logpdf(possible.values) for shape in (0.5, 1.0, 3.0, 12.0, 100.0)])
    strides = possible.strides(logs.__getitem__, 5).min(axis=0)
    assert strides.tolist() == [8, 8, 4, 2, 1]
    whole = in_full(possible, logs)
    for row in range(5):
        assert np.array_equal(in_full(possible, logs[:, [row]]), whole[:, [row]])
        places = np.flatnonzero(whole[:, row])
        assert np.diff(places).min() == strides[row]
        assert places.size >= 5


@pytest.mark.filterwarnings("error")
def test_rows_whose_log_likelihoods_are_no_numbers_warn_of_nothing_and_leave_others_as_they_are():
    possible = responses_of(gamma)
    logs = np.tile(scipy.stats.gamma(2.0).logpdf(possible.values)[:, None], 6)
    logs[:, 1], logs[:, 2], logs[:, 3], logs[200:, 4], logs[:, 5] = np.nan, -np.inf, np.inf, np.nan, 1e308
    logs[::3, 5] = -1e308
    found = in_full(possible, logs)
    assert np.array_equal(found[:, 0], in_full(possible, logs[:, [0]])[:, 0])
    assert not found[:, 1:4].any()
    assert np.all(np.isfinite(found))
    assert found.sum(axis=0)[[0, 4, 5]] == pytest.approx(1.0)


@pytest.mark.filterwarnings("error")
def test_probabilities_add_up_to_one_or_are_zero():
    possible = PossibleResponses(0, (0, 1, 2), (1.0, 1.0, 2.0))
    inf, nan = math.inf, math.nan
    columns = {
        (0.0, 0.0, 0.0): [0.25, 0.25, 0.5],
        (-1000.0, -1000.0, -inf): [0.5, 0.5, 0.0],
        (-1e308, 1e308, 0.0): [0.0, 1.0, 0.0],
        (nan, 0.0, nan): [0.0, 1.0, 0.0],
        (-inf, -inf, -inf): [0.0, 0.0, 0.0],
        (nan, nan, -inf): [0.0, 0.0, 0.0],
        (inf, 0.0, 0.0): [0.0, 0.0, 0.0],
        (inf, inf, 0.0): [0.0, 0.0, 0.0],
    }
    logs = np.array(list(columns)).T
    asked, found = probabilities_of(possible, logs)
    assert asked.tolist() == [0, 1, 2]
    assert found == pytest.approx(np.array(list(columns.values())).T, abs=1e-15)


def test_a_rows_probabilities_have_the_same_bits_wherever_it_stands():
    """Vector instructions, and what is left over at the end of an array, may round an exponential differently."""
    possible = responses_of(poisson)
    logs = np.random.default_rng(3).normal(scale=20.0, size=(len(possible.values), 41))
    logs[8:, ::2] -= 1e3  # rows that count for few responses, beside others
    whole = in_full(possible, logs)
    for begin in range(41):
        for end in (begin + 1, 41):
            assert np.array_equal(in_full(possible, logs[:, begin:end]), whole[:, begin:end])


def test_a_response_that_counts_for_another_row_alone_has_no_part_in_a_rows_probabilities():
    """Were its log-likelihood infinite, or no number."""
    possible = responses_of(poisson)
    logs = scipy.stats.poisson([[1.0, 28.0]]).logpmf(np.array(possible.values)[:, None])
    asked, _ = probabilities_of(possible, logs[:, [1]])
    (place,) = asked[np.flatnonzero(asked % 8 == 3)][-1:]
    for unlikely in (math.inf, math.nan, 1e308):
        logs[place, 0] = unlikely
        both = in_full(possible, logs)
        assert np.array_equal(both[:, 0], in_full(possible, logs[:, [0]])[:, 0])
        assert both.sum(axis=0) == pytest.approx(1.0)


def probabilities_of(possible, logs):
    """Return which responses occur, and their probabilities, of log-likelihoods of shape (responses, rows)."""
    return possible.probabilities(logs.__getitem__, possible.strides(logs.__getitem__, logs.shape[1]), 0.0)


def in_full(possible, logs):
    """Return probabilities of all responses: zero for those that nobody asked for."""
    asked, found = probabilities_of(possible, logs)
    everything = np.zeros(logs.shape)
    everything[asked] = found
    return everything


@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize("mean", [0.01, 2.0, 20.0, 28.0, 90.0, 300.0])
def test_counts_between_two_that_are_far_below_are_not_asked_for(mean, zeros):
    """One mode, or two of them: nothing that counts is left out, and most is."""
    possible = responses_of(poisson)
    counts = np.array(possible.values)
    logs = np.log1p(-zeros) + scipy.stats.poisson(mean).logpmf(counts)
    logs[0] = math.log(math.exp(logs[0]) + zeros)
    asked, found = probabilities_of(possible, logs[:, None])
    assert len(asked) < 0.6 * counts.size
    exact = np.exp(logs) * np.array(possible.stand_for)
    assert found[:, 0] == pytest.approx(exact[asked] / exact.sum(), abs=1e-12)
    assert np.delete(exact, asked).sum() < 1e-11


def test_responses_that_hardly_occur_are_left_out_and_add_nothing():
    found = everything(rows_of(poisson), np.zeros(1))
    mass = scipy.stats.poisson.pmf(np.arange(20), 1.0)
    assert len(found[1::2]) == np.sum(mass > 1e-9)
    far = everything(rows_of(poisson), np.array([3.0]))
    for gradients, probabilities in zip(far[::2], far[1::2], strict=True):
        assert not gradients[probabilities == 0.0].any()


@functools.cache
def in_production(observed):
    """Return rows that are compiled as users run them, which takes longer than the test."""
    return rows_of(observed)


@pytest.mark.slow
@pytest.mark.production
@pytest.mark.parametrize("observed", [poisson, gamma])
@pytest.mark.parametrize("of", OF)
def test_means_of_rows_are_those_of_each_alone(of, observed):
    """To the last bit: rows are worked on in another order than theirs, with those for which the same counts matter."""
    compiled, point = in_production(observed), ExpansionPoint(np.array([3.0]), np.eye(1), 0.5)
    rows = compiled.on_rows(compiled.rows_of_inputs)  # which remember nothing
    (together,) = rows.each_chunk(lambda chunk: of(chunk, point))
    alone = [
        next(rows.on_rows([values[[i]] for values in rows.rows_of_inputs]).each_chunk(lambda chunk: of(chunk, point)))
        for i in range(N)
    ]
    assert np.array_equal(together, np.concatenate(alone, axis=-1))
    assert len(np.unique(together)) > N / 2


def by_unit(rows, of, theta, units=None, size=25):
    """Return what a query would sum, of every unit, in chunks."""
    point = ExpansionPoint(np.array([theta]), np.eye(1), 0.5)
    return np.hstack(
        [np.atleast_2d(part) for part in rows.each_chunk(lambda chunk: of(chunk, point), units, size=size)]
    )


@pytest.mark.parametrize("unit_index", [None, np.arange(N) // 3])
def test_what_is_remembered_is_of_the_same_point_and_rows(unit_index):
    """Else the sum would be of other rows, or at another point, than those that were paid for."""
    rows = rows_of(poisson, unit_index=unit_index)
    batch = 2 * np.arange(25 if unit_index is None else 8)
    kinds = [centred_scores_of, expected_curvatures_of, squares_of_expected_curvatures]
    calls = [(of, theta, units, 25) for theta in (0.8, 0.3, 0.8) for units in (None, batch, None) for of in kinds]
    calls += [(of, 0.8, None, size) for size in (20, 50) for of in kinds]
    for of, theta, units, size in calls:
        anew = rows.on_rows(rows.rows_of_inputs, rows._table.starts)
        assert np.array_equal(by_unit(rows, of, theta, units, size), by_unit(anew, of, theta, units, N))


def test_queries_at_one_point_compute_what_responses_give_once(monkeypatch):
    """Work is counted, not timed."""
    rows, asked = rows_of(poisson), []
    gradients_of = rows._engine.gradients_of
    monkeypatch.setattr(rows._engine, "gradients_of", lambda *of: asked.append(1) or gradients_of(*of))
    for of in (centred_scores_of, expected_curvatures_of, squares_of_expected_curvatures):
        by_unit(rows, of, 0.8)
    assert len(asked) == 3  # chunks
    small, asked[:] = rows.on_rows(rows.rows_of_inputs, one_of_many=True), []
    small.forget()  # and keeps to it
    for of in (expected_curvatures_of, squares_of_expected_curvatures):
        by_unit(small, of, 0.8)
    assert len(asked) == 6


def test_no_more_is_remembered_than_there_is_room_for():
    rows = rows_of(poisson)
    rows._latest = latest = derivatives.LatestResponses(2000)
    found = by_unit(rows, squares_of_expected_curvatures, 0.8)
    held = sum(
        array.size
        for pieces in latest._pieces.values()
        for units, of_rows, probabilities in pieces
        for array in (units, of_rows.slopes, *of_rows.vectors, of_rows.indices, probabilities)
    )
    assert 500 < held <= 2000
    assert len(latest._pieces) < 3
    assert np.array_equal(by_unit(rows, squares_of_expected_curvatures, 0.8), found)


def test_units_of_several_rows_and_other_likelihoods_have_none():
    assert everything_is_none(rows_of(poisson, unit_index=np.arange(N) // 2))
    assert everything_is_none(rows_of(lambda eta, y: pm.Normal("y", eta, 1.0, observed=y + 0.0)))
    assert not everything_is_none(rows_of(poisson))


def everything_is_none(rows):
    return not any(rows.each_chunk(lambda chunk: list(chunk.of_responses(THETA, np.eye(1)))))


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_responses_are_numbers_that_the_table_can_hold(dtype):
    """Writing a larger one would raise, after the run has been charged."""
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Data("x", X) * pm.Normal("beta")), observed=Y.astype(dtype), dtype=dtype)
    rows = UnitLikelihood(read(model))
    assert rows._table.rows[rows._responses.place].dtype == dtype
    assert 100 < rows._responses.values[-1] <= np.iinfo(dtype).max
    assert len(everything(rows)) > 20
