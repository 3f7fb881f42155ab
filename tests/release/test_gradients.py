"""What an expansion misses of gradients and log-ratios: against loops over units, and how far one row moves it."""

import dataclasses
import math

import numpy as np
import pymc as pm
import pytest
from hypothesis import given, settings, strategies as st
from two_tables import MULTIPLIER, Recorded, exact, movement, value

from pymc_dp.accounting import GaussianReleases
from pymc_dp.exceptions import InvalidArgument, PrivacyError
from pymc_dp.model.view import read
from pymc_dp.release import ExpansionPoint, MeteredCurator
from pymc_dp.release.barker_correction import clip_bound
from pymc_dp.release.batches import BatchesWithoutReplacement, PoissonBatches, drawn
from pymc_dp.release.interface import Expanded, GradientPrediction, Prediction
from pymc_dp.release.meter import ClipTally
from pymc_dp.release.preconditioned import GradientSizes, PreconditionedGradient
from pymc_dp.release.queries import BarkerDecision, DecisionClipCounts, Residual, VariancePenalisedLogRatio
from pymc_dp.release.query import Evaluation, PublicFacts
from pymc_dp.rows import UnitLikelihood
from pymc_dp.rows.clipped_sum import ClippedMoments
from pymc_dp.rows.expansion import each_clipped_difference

N, SIZE, OF_A_PERSON = 90, 2, 3
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, SIZE))
Y = GENERATOR.poisson(np.exp(0.5 * X[:, 0]))
CENTRE, THETA = np.array([0.3, -0.2]), np.array([0.5, 0.1])
WAY = np.array([[1.5, 0.4], [-0.3, 0.7]])
AXES = np.array([[0.8, -0.5], [0.2, 1.1]])
JACOBIAN = np.array([[0.9, 0.2], [-0.1, 1.2]])
DIRECTION, OFFSET = np.array([0.4, -0.7]), np.array([0.05, -0.3])
ZERO, NONE = np.zeros(SIZE), np.zeros((SIZE, SIZE))
WEIGHTED = ExpansionPoint(CENTRE, WAY, 1.0)
UNWEIGHTED = ExpansionPoint(CENTRE, WAY, 1e100)
NOTHING = GradientPrediction(THETA, NONE, ZERO, ZERO)
PREDICTION = GradientPrediction(THETA, JACOBIAN, DIRECTION, OFFSET)
OLD, NEW = Prediction(CENTRE, ZERO, False), Prediction(THETA, THETA - CENTRE, True, 0.1)


def poisson(unit_index=None):
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Data("x", X) @ pm.Normal("beta", shape=SIZE)), observed=Y)
    return UnitLikelihood(read(model, unit_index=unit_index))


ROWS, PERSONS = poisson(), poisson(unit_index=np.arange(N) // OF_A_PERSON)
LIKELIHOODS = {"rows": ROWS, "persons": PERSONS}


def table(x, y, rows=ROWS):
    starts = None if rows is not PERSONS else np.arange(0, len(y) + 1, OF_A_PERSON, dtype=np.int64)
    return rows.on_rows([{"y": y.astype(np.int64)}.get(name, x) for name in rows._leaf_names], starts)


def with_row(row, count, place, rows=ROWS):
    x, y = X.copy(), Y.copy()
    x[place], y[place] = row, count
    return table(x, y, rows)


def without_row(place):
    return table(np.delete(X, place, axis=0), np.delete(Y, place))


# Against loops over units ---------------------------------------------------------------------------------------------


def by_unit(rows, values):
    """Return what is computed of each row, summed over the rows of each unit."""
    return values.reshape(-1, OF_A_PERSON, *values.shape[1:]).sum(axis=1) if rows is PERSONS else values


def scores(rows, theta):
    return by_unit(rows, (Y - np.exp(X @ theta))[:, None] * X)


def curvatures(rows, theta):
    return by_unit(rows, np.exp(X @ theta)[:, None, None] * X[:, :, None] * X[:, None, :])


def log_likelihoods(rows, theta):
    return by_unit(rows, Y * (X @ theta) - np.exp(X @ theta))


def cut(vector, bound):
    return vector * min(1.0, bound / np.linalg.norm(vector))


def weight(point, score):
    return min(1.0, point.clip_gradient / np.linalg.norm(point.preconditioner.T @ score))


def missed(rows, point, prediction, axes):
    """What is missed of each unit's gradient, by hand."""
    there, centre, curvature = scores(rows, prediction.theta), scores(rows, point.theta), curvatures(rows, point.theta)
    found = []
    for g, g_centre, h in zip(there, centre, curvature, strict=True):
        predicted = prediction.jacobian @ g_centre - h @ prediction.direction + prediction.offset
        found.append(axes.T @ (weight(point, g_centre) * (g - predicted)))
    return np.array(found)


def residuals(rows, point, old, new):
    """What is missed of each unit's log-ratio, by hand."""
    centre, curvature = scores(rows, point.theta), curvatures(rows, point.theta)

    def of(prediction):
        values = log_likelihoods(rows, prediction.theta) - log_likelihoods(rows, point.theta) - prediction.offset
        values = values - centre @ prediction.direction
        along = np.einsum("i,uij,j->u", prediction.direction, curvature, prediction.direction)
        return values + 0.5 * along if prediction.with_curvature else values

    weights = np.array([weight(point, score) for score in centre])
    return weights * (of(new) - of(old))


PREDICTIONS = {
    "nothing": NOTHING,
    "the score": dataclasses.replace(NOTHING, jacobian=JACOBIAN),
    "the curvature": dataclasses.replace(NOTHING, direction=DIRECTION),
    "an offset": dataclasses.replace(NOTHING, offset=OFFSET),
    "all of it": PREDICTION,
}


@pytest.mark.parametrize("rows", LIKELIHOODS.values(), ids=LIKELIHOODS)
@pytest.mark.parametrize("point", [WEIGHTED, UNWEIGHTED], ids=["weighted", "unweighted"])
@pytest.mark.parametrize("prediction", PREDICTIONS.values(), ids=PREDICTIONS)
def test_what_is_missed_is_that_of_a_loop_over_units(rows, point, prediction):
    units = missed(rows, point, prediction, AXES)
    lengths = np.linalg.norm(units, axis=1)
    for bound in (np.median(lengths), 1e3):
        found = value(PreconditionedGradient(point, AXES, prediction, bound), rows)
        assert found == pytest.approx(sum(cut(unit, bound) for unit in units), abs=1e-6 * max(1.0, bound))


@pytest.mark.parametrize("rows", LIKELIHOODS.values(), ids=LIKELIHOODS)
@pytest.mark.parametrize("prediction", PREDICTIONS.values(), ids=PREDICTIONS)
def test_sizes_are_numpys_histograms(rows, prediction):
    smallest, bins = 0.06, 14
    places = 2.0 * np.log2(np.linalg.norm(missed(rows, WEIGHTED, prediction, AXES), axis=1) / smallest)
    assert np.min(np.abs(places - np.round(places))) > 1e-6  # no norm is so near to an edge that rounding would matter
    expected = np.bincount(np.clip(np.floor(places), 0, bins - 1).astype(int), minlength=bins)
    found = value(GradientSizes(WEIGHTED, AXES, prediction, smallest, bins), rows)
    assert np.array_equal(found, expected)
    assert found.sum() == rows.n_units


def test_control_variates_are_small_near_the_centre():
    """An expansion's own prediction: what is missed is of second order in the distance."""
    away = np.array([0.6, -0.8])
    norms = []
    for distance in (1e-2, 1e-3):
        theta = CENTRE + distance * away
        prediction = GradientPrediction(theta, np.eye(SIZE), distance * away, ZERO)
        norms.append(np.linalg.norm(missed(ROWS, UNWEIGHTED, prediction, AXES), axis=1).max())
        bound = 1.001 * norms[-1]
        found = value(PreconditionedGradient(UNWEIGHTED, AXES, prediction, bound), ROWS)
        assert found == pytest.approx(missed(ROWS, UNWEIGHTED, prediction, AXES).sum(axis=0), rel=1e-3)
    assert norms[1] < 0.02 * norms[0]


# Sensitivity ----------------------------------------------------------------------------------------------------------

AWKWARD = [0.0, -0.0, 1.0, -3.7, 1e-3, 30.0, 1e6, -1e9, 1e150, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan]
ROW = st.lists(st.one_of(st.sampled_from(AWKWARD), st.floats(-10, 10)), min_size=SIZE, max_size=SIZE)
NUMBER = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1e200, -1e308, 5e-324, math.inf, -math.inf, math.nan]))
VECTOR = st.lists(NUMBER, min_size=SIZE, max_size=SIZE).map(np.array)
MATRIX = st.lists(NUMBER, min_size=SIZE * SIZE, max_size=SIZE * SIZE).map(lambda each: np.reshape(each, (SIZE, SIZE)))
WEIGHT = st.sampled_from([1e-100, 0.1, 1.0, 1e100, math.inf, -math.inf, math.nan, 0.0, -1.0])
POINTS = st.one_of(st.just(WEIGHTED), st.builds(ExpansionPoint, VECTOR, MATRIX, WEIGHT, WEIGHT))
GRADIENT_PREDICTIONS = st.one_of(st.just(PREDICTION), st.builds(GradientPrediction, VECTOR, MATRIX, VECTOR, VECTOR))
LOG_RATIO_PREDICTIONS = st.one_of(st.just(NEW), st.builds(Prediction, VECTOR, VECTOR, st.booleans(), NUMBER))
EXPANDED = st.builds(Expanded, POINTS, LOG_RATIO_PREDICTIONS, LOG_RATIO_PREDICTIONS)
BOUND = st.sampled_from([1e-100, 1e-3, 0.3, 2.0, 1e100])
MATRICES = st.one_of(st.just(AXES), MATRIX)
QUERIES = st.one_of(
    st.builds(PreconditionedGradient, POINTS, MATRICES, GRADIENT_PREDICTIONS, BOUND),
    st.builds(GradientSizes, POINTS, MATRICES, GRADIENT_PREDICTIONS, BOUND, st.integers(1, 40)),
    st.builds(lambda each, bound: Residual(each.point, each.old, each.new, bound), EXPANDED, BOUND),
)
#: Examples are of several arrays, and take long to draw.
FEWER = settings(max_examples=50)
BATCHES = BatchesWithoutReplacement(40, N)
OF_PERSONS = BatchesWithoutReplacement(20, N // OF_A_PERSON)


@pytest.mark.filterwarnings("error")
@FEWER
@given(QUERIES, st.sampled_from([ROWS, PERSONS]), ROW, st.integers(0, 10**6), st.integers(0, N - 1))
def test_replacing_a_row_moves_no_sum_by_more_than_declared(query, rows, row, count, place):
    moved, allowed = movement(query, rows, with_row(row, count, place, rows))
    assert moved <= allowed


SMALL = st.lists(st.floats(-1, 1), min_size=SIZE, max_size=SIZE).map(np.array)


@given(
    st.builds(
        PreconditionedGradient,
        st.sampled_from([WEIGHTED, UNWEIGHTED]),
        st.just(AXES),
        st.builds(GradientPrediction, SMALL, st.just(JACOBIAN), SMALL, SMALL),
        st.sampled_from([1e-3, 0.3, 2.0]),
    ),
    st.sampled_from([ROWS, PERSONS]),
    st.lists(st.floats(-3, 3), min_size=SIZE, max_size=SIZE),
    st.integers(0, 50),
    st.integers(0, N - 1),
)
def test_replacing_an_ordinary_row_moves_no_sum_by_more_than_declared(query, rows, row, count, place):
    """Most of the queries above are of numbers that leave nothing."""
    moved, allowed = movement(query, rows, with_row(row, count, place, rows))
    assert moved <= allowed


@pytest.mark.filterwarnings("error")
@FEWER
@given(QUERIES, ROW, st.integers(0, 10**6), st.integers(0, N - 1))
def test_removing_a_row_moves_no_sum_by_more_than_declared(query, row, count, place):
    moved, allowed = movement(query, with_row(row, count, place), without_row(place), "add-remove")
    assert moved <= allowed


class OfBatches(Recorded):
    """Draws always the same batches."""

    def __init__(self):
        self._generator = np.random.default_rng(0)

    def words(self, count):
        return self._generator.integers(0, 2**64, size=count, dtype=np.uint64)


def on_a_batch(query, rows, relation="substitute"):
    """Return what is asked noise for in steps of the grid, its sensitivity in the same steps, and the curator."""
    noise, events = OfBatches(), [query.batches.releases(query.kind, 1, MULTIPLIER)]
    curator = MeteredCurator(rows, noise, relation, events)
    release = curator.release(query, MULTIPLIER)
    return noise.integers, noise.scale / MULTIPLIER, release, curator


def batch_of(batches, n_units=N):
    """Return the batch that `on_a_batch` draws."""
    return drawn(batches, OfBatches(), n_units)


def penalised_query(expanded, bound, batches=BATCHES, **options):
    return VariancePenalisedLogRatio(THETA, CENTRE, bound, batches, 0.5, expanded=expanded, **options)


@pytest.mark.filterwarnings("error")
@FEWER
@given(
    st.one_of(
        st.builds(penalised_query, EXPANDED, st.sampled_from([1e-100, 1e-3, 0.3, 2.0, 1e40]), counted=st.booleans()),
        st.builds(
            PreconditionedGradient,
            POINTS,
            MATRICES,
            GRADIENT_PREDICTIONS,
            BOUND,
            batches=st.just(BATCHES),
            counted=st.booleans(),
        ),
    ),
    st.booleans(),
    ROW,
    st.integers(0, 10**6),
    st.integers(0, N - 1),
)
def test_replacing_a_row_moves_no_sum_of_a_batch_by_more_than_declared(query, of_persons, row, count, place):
    rows = PERSONS if of_persons else ROWS
    query = dataclasses.replace(query, batches=OF_PERSONS) if of_persons else query
    (before, allowed, *_), (after, same, *_) = (
        on_a_batch(query, each) for each in (rows, with_row(row, count, place, rows))
    )
    assert allowed == same
    assert math.sqrt(sum((int(a) - int(b)) ** 2 for a, b in zip(after, before, strict=True))) <= allowed
    unit = place // OF_A_PERSON if of_persons else place
    if unit not in batch_of(query.batches, rows.n_units):
        assert np.array_equal(before, after)


POISSON = PoissonBatches(0.4)


@pytest.mark.filterwarnings("error")
@FEWER
@given(POINTS, MATRICES, GRADIENT_PREDICTIONS, BOUND, st.booleans(), ROW, st.integers(0, 10**6))
def test_adding_a_row_moves_no_sum_of_a_batch_by_more_than_declared(
    point, axes, prediction, bound, counted, row, count
):
    """The last row takes part by words of its own: the others are in the same batch with it and without."""
    assert np.array_equal(batch_of(POISSON, N), [*batch_of(POISSON, N - 1), N - 1])
    query = PreconditionedGradient(point, axes, prediction, bound, batches=POISSON, counted=counted)
    (before, allowed, *_), (after, same, *_) = (
        on_a_batch(query, each, "add-remove") for each in (with_row(row, count, N - 1), without_row(N - 1))
    )
    assert allowed == same
    moved = math.sqrt(sum((int(a) - int(b)) ** 2 for a, b in zip(after, before, strict=True)))
    assert moved <= allowed


def asked_on(rows, grid=2.0**-40, batches=BATCHES):
    facts = PublicFacts("substitute", rows.n_units, 1)
    return Evaluation(rows, ClipTally(["decision"]), facts, grid, batch_of(batches, rows.n_units))


@pytest.mark.filterwarnings("error")
@FEWER
@given(EXPANDED, st.sampled_from([0.01, 0.1, 1.0]), st.booleans(), ROW, st.integers(0, 10**6), st.integers(0, N - 1))
def test_no_log_ratio_behind_a_decision_is_beyond_its_bound(expanded, tempering, of_persons, row, count, place):
    rows, batches = (PERSONS, OF_PERSONS) if of_persons else (ROWS, BATCHES)
    query = BarkerDecision(THETA, CENTRE, 0.0, batches, tempering, expanded=expanded)
    with np.errstate(all="ignore"):  # as the curator asks
        one, other = (
            query.log_ratios(asked_on(each, batches=batches)) for each in (rows, with_row(row, count, place, rows))
        )
    (one, step), (other, other_step) = one, other
    assert step == other_step
    step = float(step) * batches.batch_size / (tempering * rows.n_units)  # of one log-ratio
    bound = clip_bound(batches.batch_size, tempering * rows.n_units)
    for found in (one, other):
        assert found.count == batches.batch_size
        assert found.squares * step**2 <= found.count * bound**2
    assert abs(one.total - other.total) * step <= 2.0 * bound
    assert abs(one.squares - other.squares) * step**2 <= bound**2
    assert abs(one.n_clipped - other.n_clipped) <= 1


@pytest.mark.filterwarnings("error")
@FEWER
@given(st.lists(EXPANDED, min_size=1, max_size=3), ROW, st.integers(0, 10**6), st.integers(0, N - 1))
def test_replacing_a_row_moves_no_count_of_clipped_units_by_more_than_declared(moves, row, count, place):
    query = DecisionClipCounts(tuple(moves), BATCHES, 0.1)
    moved, allowed = movement(query, ROWS, with_row(row, count, place))
    assert moved <= allowed


def test_counts_are_of_what_an_expansion_misses_beyond_the_prescribed_bound():
    bound = clip_bound(BATCHES.batch_size, 0.1 * N)
    moves = [Expanded(WEIGHTED, OLD, dataclasses.replace(NEW, offset=offset)) for offset in (-0.7, 0.0, 0.7)]
    beyond = [np.abs(residuals(ROWS, WEIGHTED, each.old, each.new)) > bound for each in moves]
    assert 0 < np.sum(beyond) < 3 * N
    found = value(DecisionClipCounts((*moves, (THETA, CENTRE)), BATCHES, 0.1), ROWS)
    plain = np.sum(np.abs(log_likelihoods(ROWS, CENTRE) - log_likelihoods(ROWS, THETA)) > bound)
    assert found == pytest.approx([(np.sum(beyond) + plain) / 4], abs=1e-6)


@pytest.mark.parametrize("counted", [False, True])
def test_a_row_can_move_them_as_far_as_declared(counted):
    """So that no smaller number would do, nor a larger one be wasted."""
    one, other = with_row([1.0, 1.0], 0, 3), with_row([1.0, 1.0], 10**6, 3)
    far = dataclasses.replace(NOTHING, theta=np.full(SIZE, 3.0))
    query = PreconditionedGradient(UNWEIGHTED, AXES, far, 1.0)
    moved, allowed = movement(query, one, other)
    assert 0.999999 * allowed < moved <= allowed
    removed, once = movement(query, other, without_row(3), "add-remove")
    assert 0.999999 * once < removed <= once
    # In a batch: a unit that is clipped beside one that is not, and no longer than the bound.
    assert 3 in batch_of(BATCHES)
    query = dataclasses.replace(query, batches=BATCHES, counted=counted, clip_bound=30.0)
    (before, allowed, *_), (after, *_) = (on_a_batch(query, each) for each in (one, other))
    moved = math.sqrt(sum((int(a) - int(b)) ** 2 for a, b in zip(after, before, strict=True)))
    assert moved <= allowed


def test_a_row_can_move_sizes_as_far_as_declared():
    query = GradientSizes(UNWEIGHTED, AXES, NOTHING, 1e-3, 40)
    moved, allowed = movement(query, with_row([1.0, 1.0], 0, 3), with_row([1.0, 1.0], 10**6, 3))
    assert 0.999999 * allowed < moved <= allowed


# Batches --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS, PERSONS], ids=["rows", "persons"])
@pytest.mark.parametrize("prediction", [NOTHING, PREDICTION], ids=["nothing", "all of it"])
def test_a_sum_over_a_batch_is_that_of_its_units_and_so_is_its_count(rows, prediction):
    batches = OF_PERSONS if rows is PERSONS else BATCHES
    units = missed(rows, WEIGHTED, prediction, AXES)[batch_of(batches, rows.n_units)]
    bound = float(np.median(np.linalg.norm(units, axis=1)))
    n_clipped = np.sum(np.linalg.norm(units, axis=1) > bound)
    query = PreconditionedGradient(WEIGHTED, AXES, prediction, bound, batches)
    plain, allowed, release, _ = on_a_batch(query, rows)
    assert release.value == pytest.approx(sum(cut(unit, bound) for unit in units), abs=1e-6)
    noted, with_count, counted, curator = on_a_batch(dataclasses.replace(query, counted=True), rows)
    assert np.array_equal(noted[:SIZE], plain)
    assert with_count == pytest.approx(allowed * batches.count_factor, rel=1e-12)
    assert counted.value.shape == (SIZE,)
    assert curator.tallied().value == pytest.approx([n_clipped * batches.scale])


def test_a_penalised_ratio_is_of_what_an_expansion_misses():
    expanded = Expanded(WEIGHTED, OLD, NEW)
    left = residuals(ROWS, WEIGHTED, OLD, NEW)[batch_of(BATCHES)]
    bound = float(np.quantile(np.abs(left), 0.7))
    cut_off = np.clip(left, -bound, bound)
    scale = 0.5 * N / BATCHES.batch_size
    expected = scale * cut_off.sum() - 0.5 * scale**2 * BATCHES.batch_size * cut_off.var()
    _, _, release, curator = on_a_batch(penalised_query(expanded, bound, counted=True), ROWS)
    assert release.value == pytest.approx([expected], rel=1e-6)
    assert curator.tallied().value == pytest.approx([np.sum(np.abs(left) > bound) * BATCHES.scale])


def test_a_decision_is_on_what_an_expansion_misses():
    found, step = BarkerDecision(THETA, CENTRE, 0.0, BATCHES, 0.1, expanded=Expanded(WEIGHTED, OLD, NEW)).log_ratios(
        asked_on(ROWS)
    )
    bound = clip_bound(BATCHES.batch_size, 0.1 * N)
    left = residuals(ROWS, WEIGHTED, OLD, NEW)[batch_of(BATCHES)]
    step = float(step) * BATCHES.batch_size / (0.1 * N)
    clipped = np.clip(left, -bound, bound)
    assert found.total * step == pytest.approx(np.sum(clipped), abs=1e-9)
    assert found.squares * step**2 == pytest.approx(np.sum(clipped**2), abs=1e-9)
    assert found.n_clipped == np.sum(np.abs(left) > bound)


# A row by itself, to the last bit -------------------------------------------------------------------------------------

CASES = {
    "gradients": PreconditionedGradient(WEIGHTED, AXES, PREDICTION, 0.5),
    "sizes": GradientSizes(WEIGHTED, AXES, PREDICTION, 1e-3, 40),
    "residuals": Residual(WEIGHTED, OLD, NEW, 0.3),
}


@pytest.mark.parametrize("query", CASES.values(), ids=CASES)
@FEWER
@given(whose=st.integers(1, N // OF_A_PERSON - 1), of_persons=st.booleans())
def test_the_sum_is_that_of_the_parts_of_a_table(query, whose, of_persons):
    """Under add-remove: no bit of a row's contribution knows where it stands or how many others there are."""
    rows, place = PERSONS if of_persons else ROWS, OF_A_PERSON * whose
    whole, first, rest = (
        exact(query, each, "add-remove")[0]
        for each in (rows, table(X[:place], Y[:place], rows), table(X[place:], Y[place:], rows))
    )
    assert np.array_equal(whole, first + rest)


@pytest.mark.parametrize("rows", LIKELIHOODS.values(), ids=LIKELIHOODS)
@FEWER
@given(chosen=st.sets(st.integers(0, N // OF_A_PERSON - 1), min_size=1), offset=st.floats(-1, 1), curved=st.booleans())
def test_residuals_of_a_batch_are_those_of_the_whole_and_odd(rows, chosen, offset, curved):
    expansion, grid = rows.expansion(ExpansionPoint(CENTRE, WAY, 1.0, 0.5)), 2.0**-40
    new, units = Prediction(THETA, THETA - CENTRE, curved, offset), np.array(sorted(chosen), dtype=np.int64)
    everybody = np.arange(rows.n_units, dtype=np.int64)

    def residuals(before, after, of):
        both = expansion.remainders(before, of), expansion.remainders(after, of)
        clipped, n_clipped = each_clipped_difference(*both, 0.3, grid)
        assert expansion.residual_moments(before, after, 0.3, grid, units=of) == ClippedMoments.of(clipped, n_clipped)
        return clipped, n_clipped

    whole, n_clipped = residuals(OLD, new, everybody)
    part, _ = residuals(OLD, new, units)
    back, n_clipped_back = residuals(new, OLD, everybody)
    assert np.array_equal(residuals(OLD, new, None)[0], whole)
    assert np.array_equal(part, whole[units])
    assert np.array_equal(back, -whole)
    assert n_clipped == n_clipped_back
    together = expansion.residual(OLD, new, 0.3, grid)
    assert together.integers[0] == whole.sum()
    assert together.n_clipped == n_clipped


@pytest.mark.parametrize("row", [[math.nan, 1.0], [math.inf, -math.inf]])
def test_a_row_without_a_gradient_is_counted_nowhere(row):
    bad, without = with_row(row, 1, 5), without_row(5)
    for query in CASES.values():
        assert np.array_equal(exact(query, bad, "add-remove")[0], exact(query, without, "add-remove")[0])


# Refusals -------------------------------------------------------------------------------------------------------------

BOUNDS = (0.0, -1.0, 1e-200, 1e200, math.inf, math.nan)
EXPANSION = Expanded(WEIGHTED, OLD, NEW)
REFUSED = {
    **{f"a bound of {each}": PreconditionedGradient(WEIGHTED, AXES, PREDICTION, each) for each in BOUNDS},
    **{f"a smallest norm of {each}": GradientSizes(WEIGHTED, AXES, PREDICTION, each, 3) for each in BOUNDS},
    "no bins": GradientSizes(WEIGHTED, AXES, PREDICTION, 1.0, 0),
    "too many bins": GradientSizes(WEIGHTED, AXES, PREDICTION, 1.0, 10**9),
    **{f"a penalised bound of {each}": penalised_query(EXPANSION, each) for each in BOUNDS},
    "counts of no decisions": DecisionClipCounts((), BATCHES, 0.1),
    **{
        f"counts at a power of {each}": DecisionClipCounts((EXPANSION,), BATCHES, each)
        for each in (0.0, -0.1, math.nan)
    },
    **{
        f"decisions at a power of {each}": BarkerDecision(THETA, CENTRE, 0.0, BATCHES, each, expanded=EXPANSION)
        for each in (0.0, -0.1, math.inf, math.nan)
    },
}


class Unread:
    """Rows that nobody reads."""

    n_units = N

    def __getattr__(self, name):
        raise AssertionError(f"rows were asked for {name}")


@pytest.mark.parametrize("query", REFUSED.values(), ids=REFUSED)
def test_what_has_no_sensitivity_is_refused_before_it_is_paid_and_before_rows_are_read(query):
    curator = MeteredCurator(Unread(), Recorded(), "substitute", [GaussianReleases(query.kind, 1, MULTIPLIER)])
    with pytest.raises(PrivacyError):
        curator.release(query, MULTIPLIER)
    assert curator._meter._left == [1]


LONG, WIDE = np.zeros(SIZE + 1), np.zeros((SIZE, SIZE + 1))
OTHER_SHAPES = {
    "centre": {"point": ExpansionPoint(LONG, WAY, 1.0)},
    "a centre in a row": {"point": ExpansionPoint(CENTRE[None], WAY, 1.0)},
    "preconditioner": {"point": ExpansionPoint(CENTRE, WIDE, 1.0)},
    "more axes than parameters": {"axes": WIDE},
    "fewer axes": {"axes": AXES[:, :1]},
    "axes of fewer parameters": {"axes": AXES[:1]},
    "one axis": {"axes": np.ones(SIZE)},
    "point": {"prediction": dataclasses.replace(PREDICTION, theta=LONG)},
    "a shorter point": {"prediction": dataclasses.replace(PREDICTION, theta=np.zeros(1))},
    "jacobian": {"prediction": dataclasses.replace(PREDICTION, jacobian=WIDE)},
    "a jacobian that is one": {"prediction": dataclasses.replace(PREDICTION, jacobian=np.ones((1, 1)))},
    "direction": {"prediction": dataclasses.replace(PREDICTION, direction=LONG)},
    "a direction of matrices": {"prediction": dataclasses.replace(PREDICTION, direction=NONE)},
    "offset": {"prediction": dataclasses.replace(PREDICTION, offset=LONG)},
    "an offset of one": {"prediction": dataclasses.replace(PREDICTION, offset=np.zeros(1))},
    "an offset in a row": {"prediction": dataclasses.replace(PREDICTION, offset=OFFSET[None])},
}


@pytest.mark.parametrize("changed", OTHER_SHAPES.values(), ids=OTHER_SHAPES)
def test_arrays_of_another_shape_are_refused_for_any_table(changed):
    """Compiled loops would read beyond them; and whether there are rows is not to be told by whether it fails."""
    for query in (CASES["gradients"], CASES["sizes"]):
        for rows in (ROWS, table(X[:0], Y[:0])):
            with pytest.raises((InvalidArgument, PrivacyError)):
                exact(dataclasses.replace(query, **changed), rows, "add-remove")


OF_OTHER_PREDICTIONS = {
    "a longer point": {"theta": LONG},
    "a shorter point": {"theta": np.zeros(1)},
    "a point in a column": {"theta": THETA[:, None]},
    "a longer direction": {"direction": LONG},
    "a shorter direction": {"direction": np.zeros(1)},
    "a direction in a column": {"direction": THETA[:, None]},
}


@pytest.mark.parametrize("changed", OF_OTHER_PREDICTIONS.values(), ids=OF_OTHER_PREDICTIONS)
@pytest.mark.parametrize("which", ["old", "new"])
def test_predictions_of_another_shape_are_refused_for_any_table(changed, which):
    expanded = dataclasses.replace(EXPANSION, **{which: dataclasses.replace(NEW, **changed)})
    residual = Residual(expanded.point, expanded.old, expanded.new, 0.3)
    for rows in (ROWS, table(X[:0], Y[:0])):
        with pytest.raises((InvalidArgument, PrivacyError)):
            exact(residual, rows, "add-remove")
    with pytest.raises((InvalidArgument, PrivacyError)):
        on_a_batch(penalised_query(expanded, 0.3), ROWS)
    with pytest.raises((InvalidArgument, PrivacyError)):
        value(DecisionClipCounts((expanded,), BATCHES, 0.1), ROWS)
    with pytest.raises((InvalidArgument, PrivacyError)):
        BarkerDecision(THETA, CENTRE, 0.0, BATCHES, 0.1, expanded=expanded).log_ratios(asked_on(ROWS))
