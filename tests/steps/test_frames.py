"""Frames of a search: rare levels, whose scores are long, covariates that are nearly collinear, and hierarchies."""

import functools
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from against_reference import Problem, by_mode
from searches import LOST, searches, summary

import pymc_dp as dp
from pymc_dp.release.interface import ExpansionPoint, Release
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude import learning
from pymc_dp.steps.prelude.curvature import KnownCurvature, groupings_of
from pymc_dp.steps.prelude.newton import Frame
from pymc_dp.steps.prelude.regression import Regression
from pymc_dp.steps.prelude.search import Search
from pymc_dp.steps.prelude.tails import BINS, LOWEST_OCTAVE, OCTAVES, Histogram, Tail, moments_of_scores

N = 20_000


def regression_of(known, scales):
    return Regression(np.zeros(known.size), known, scales)


def frame_of(curvature, of_prior, n_units, weights=(1.0, 1.0), structure=None):
    size = len(curvature)
    known = np.ones(size, dtype=bool)
    regression = SimpleNamespace(scales=np.zeros(0, dtype=np.intp), known=known)
    chain = SimpleNamespace(n_units=n_units)
    search = SimpleNamespace(
        places=known,
        _regression=regression,
        structure=np.ones((size, size), dtype=bool) if structure is None else structure,
        _groupings=[] if structure is None else groupings_of(structure, known),
        _chain=chain,
        _of_prior=np.zeros((size, size)) if of_prior is None else np.diag(of_prior),
        _shortens_axes=of_prior is not None,
        _weights=np.array(weights),
    )
    itself = Frame(np.eye(size), np.eye(size))
    return Search._frame(search, KnownCurvature(curvature, curvature, 0.0, itself, known))


def test_no_axis_of_a_member_is_much_longer_than_those_of_its_grouping():
    """Along such an axis all rows of a small group would be clipped, and its curvature seem smaller each time."""
    structure = np.eye(4, dtype=bool)
    structure[3] = structure[:, 3] = True  # a covariate, which has as little information as the smallest group
    own = np.array([90.0, 100.0, 0.1, 0.1])
    frame = frame_of(np.diag(own), None, 100, np.ones(4), structure)
    assert np.diag(frame.preconditioner) == pytest.approx(np.sqrt(100 / np.array([90.0, 100.0, 45.0, 0.1])))
    alone = frame_of(np.diag(own), None, 100, np.ones(4))
    assert np.diag(alone.preconditioner) == pytest.approx(np.sqrt(100 / own))


def test_axes_are_shorter_where_the_prior_knows_more():
    """No other lengths have a smaller product of squared error, in posterior sd, and mean squared norm."""
    told, prior, n_units = np.array([100.0, 4.0]), np.array([0.0, 96.0]), 100

    def cost(lengths):
        return np.sum(1.0 / (lengths**2 * (told + prior))) * np.sum(told * lengths**2)

    frame = frame_of(np.diag(told), prior, n_units)
    lengths = np.diag(frame.preconditioner)
    np.testing.assert_allclose(frame.back, np.linalg.inv(frame.preconditioner).T)
    white = np.diag(frame_of(np.diag(told), None, n_units).preconditioner)
    assert white == pytest.approx(np.sqrt(n_units / told))
    assert cost(lengths) < 0.75 * cost(white)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert cost(lengths) < cost(lengths * [1.0, factor])


def test_axes_with_long_tails_count_less_in_norms():
    """Information of a unit along them is the squared weight; the way back undoes it."""
    curvature, n_units = np.array([[100.0, 0.0], [0.0, 4.0]]), 100
    frame = frame_of(curvature, None, n_units, weights=(1.0, 0.5))
    np.testing.assert_allclose(frame.preconditioner.T @ curvature @ frame.preconditioner, n_units * np.diag([1, 0.25]))
    np.testing.assert_allclose(frame.back, np.linalg.inv(frame.preconditioner).T)


NONE = np.zeros(1, dtype=bool)


def octave_counts(shares, n_units, noise=0.0, seed=0):
    """Return noisy counts of units by octave of their score, for shares of units by size."""
    counts = np.zeros((len(shares), OCTAVES))
    for row, of in zip(counts, shares, strict=True):
        for size, share in of.items():
            row[int(np.floor(np.log2(size))) - LOWEST_OCTAVE] += share * n_units
    return counts + noise * np.random.default_rng(seed).standard_normal(counts.shape)


def test_tails_of_scores_are_those_of_levels_that_can_be_seen():
    """A level of a part f of the units has 1/f; one below the noise what noise could hide; no bump says more."""
    n_units, noise = 20_000, 20.0
    shares = [{0.5: 1.0}, {0.5: 0.05}, {0.5: 0.05, 2.0**-24: 0.95}, {4.0: 0.01, 0.25: 0.99}, {0.5: 1e-4}]
    rarest = n_units / (3.5 * noise)
    for seed in range(20):
        _, tails = moments_of_scores(octave_counts(shares, n_units, noise, seed), noise, n_units, NONE)
        assert tails == pytest.approx([1.0, 20.0, 20.0, (2.56 + 0.99 / 256) / (0.16 + 0.99 / 16) ** 2, rarest], rel=0.3)
    alone = octave_counts([{0.5: 1.0}], n_units)
    expected, _ = moments_of_scores(alone, noise, n_units, NONE)
    alone[0, 20 - LOWEST_OCTAVE] = 5.5 * noise  # noise, some twenty octaves farther: in one of a million octaves
    found, tails = moments_of_scores(alone, noise, n_units, NONE)
    np.testing.assert_array_equal(found, expected)
    assert tails == pytest.approx([1.0])
    alone[0, 20 - LOWEST_OCTAVE] = 100.0 * noise
    assert moments_of_scores(alone, noise, n_units, NONE)[1] <= rarest


def test_sizes_of_members_that_noise_hides_are_told_by_all_together():
    """Of 240 groups of 6, and one of 400 that shows by itself; alone each would seem as large as noise could hide."""
    n_units, noise = 1_840, 12.0
    shares = [{0.5: 6 / 1_840}] * 240 + [{0.5: 400 / 1_840}]
    true = 0.5 * np.sqrt(2.0) * np.sqrt([6 / 1_840] * 240 + [400 / 1_840])  # the middle of an octave
    members = np.ones(241, dtype=bool)
    for seed in range(10):
        counts = octave_counts(shares, n_units, noise, seed)
        together, _ = moments_of_scores(counts, noise, n_units, members)
        alone, _ = moments_of_scores(counts, noise, n_units, NONE)
        assert np.median(together / true) == pytest.approx(1.0, abs=0.35)
        assert together[-1] / true[-1] == pytest.approx(1.0, abs=0.2)
        assert np.median(alone / true) > 1.6
        assert np.all(together <= alone)


def test_sizes_that_single_octaves_do_not_show_are_told_by_three_together():
    """A parameter whose scores are spread over three octaves, none of which is clear of noise by itself."""
    n_units, noise = 3_000, 130.0
    spread = {0.25: 0.18, 0.5: 0.18, 1.0: 0.18, 2.0**-24: 0.46}
    true = np.sqrt(0.18 * 2.0 * (4.0**-2 + 4.0**-1 + 1.0))  # the middle of octaves
    found = []
    for seed in range(20):
        counts = octave_counts([{0.5: 1.0}, spread, {2.0**-24: 1.0}], n_units, noise, seed)
        found.append(moments_of_scores(counts, noise, n_units, NONE)[0])
    found = np.array(found)
    assert np.all((found[:, 1] > 0.8 * true) & (found[:, 1] < 4.0 * true))  # with room for what noise may hide
    assert np.median(found[:, 1]) > 1.5 * np.median(found[:, 2])
    hidden = found[:, 2] / np.sqrt(4.5 * np.sqrt(3.0) * noise / n_units)  # as much as noise may hide
    assert set(np.round(hidden, 9)) <= {0.5, np.round(0.5**0.5, 9)}  # of the middle of the octaves that show


def test_a_spike_near_zero_hides_no_scores():
    """A quarter of the rows has nearly the column's mean, such as imputed ones; the rest is spread over octaves."""
    n_units, noise = 3_000, 130.0
    spread = {2.0**-8: 0.25, 0.25: 0.25, 0.5: 0.25, 1.0: 0.25}
    true = np.sqrt(sum(2.0 * share * size**2 for size, share in spread.items()))  # the middle of octaves
    shares = [{0.5: 1.0}, spread, {1.0: 1.0}]
    for seed in range(20):
        found, _ = moments_of_scores(octave_counts(shares, n_units, noise, seed), noise, n_units, NONE)
        assert 0.8 * true < found[1] < 3.0 * true  # with room for rows that noise may hide
    small = [{0.5: 1.0}, {2.0**-8: 1.0}, {1.0: 1.0}]  # nothing else is there
    for seed in range(20):
        found, _ = moments_of_scores(octave_counts(small, n_units, noise, seed), noise, n_units, NONE)
        assert found[1] < 2.0**-6


def test_members_of_groups_count_less_in_norms_the_more_there_are():
    """By the eighth root of how many there are to each other parameter; where they are few, they count in full."""
    for n_members, weight in ((32, (2 / 32) ** 0.125), (2, 1.0)):
        size = n_members + 2
        structure = np.ones((size, size), dtype=bool)
        structure[:n_members, :n_members] = np.eye(n_members, dtype=bool)
        counts = octave_counts([{0.5: 1.0 / n_members}] * n_members + [{0.5: 1.0}] * 2, 20_000)
        search = SimpleNamespace(
            _chain=SimpleNamespace(
                n_units=20_000,
                release=lambda query, counts=counts: Release(query.kind, counts.ravel(), 1e-9, ()),
            ),
            _regression=SimpleNamespace(
                known=np.ones(size, dtype=bool), scales=np.zeros(0, dtype=int), gathered=np.zeros((0, 0))
            ),
            _weights=np.ones(size),
            _rareness=np.ones(size),
            structure=structure,
        )
        Search._diagonal_frame(search, np.zeros(size))
        rare = n_members**-0.125  # tails are longer by as much
        assert search._weights == pytest.approx([weight * rare] * n_members + [1.0] * 2)
        assert search._rareness == pytest.approx(1.0)  # a histogram of norms shows members: every unit has one


def test_bias_is_spread_over_directions():
    """In few directions the part that was found on real tables; in many two over the root of them, one in groups."""
    for size, grouped, part in ((4, False, 0.75), (36, False, 2.0 / 6.0), (36, True, 1.0 / 6.0)):
        search = SimpleNamespace(
            _has_members=grouped, places=np.ones(size, dtype=bool), _weights=np.full(size, 0.5), bias_of_loss=0.75
        )
        assert Search._bias_of_length.fget(search) == pytest.approx(part)


@pytest.mark.parametrize(
    ("members", "one_row", "centred", "kinked", "kept", "left"),
    [
        (True, True, True, False, 0.7, 0.5),
        (True, True, False, False, 0.8, 0.5),
        (True, True, False, True, 0.6, 0.5),  # a clipped score changes its sign
        (True, False, True, False, 1.0, 1.0),  # clipped sums of rows have slopes of their own
        (False, True, True, False, 0.7, 1.0),
        (False, True, False, False, 1.0, 1.0),
    ],
)
def test_scores_of_members_keep_their_slope(members, one_row, centred, kinked, kept, left):
    """Where there are groups, clipped scores and their noise are divided by what clipping leaves of the slope.

    So are all others where sizes of curvatures tell what is left: .7 here.
    """
    structure = np.ones((3, 3), dtype=bool)
    if members:
        structure[0, 1] = structure[1, 0] = False
    made = Release("score", np.array([1.2, -2.4, 3.6]), 0.3, (np.zeros(3),))
    chain = SimpleNamespace(
        prior=SimpleNamespace(hessian=lambda theta: -np.eye(3)),
        n_units=100,
        structure=structure,
        knows_responses=centred,
        release=lambda query: made,
    )
    regression = Regression(
        np.zeros(3),
        np.ones(3, dtype=bool),
        np.zeros(0, dtype=int),
        one_row_a_unit=one_row,
        responses_are_known=centred,
        kinked=np.full(3, kinked),
    )
    search = Search(chain, regression)
    search._slope_kept = 0.7
    search._tail = SimpleNamespace(squares_kept=lambda bound: 0.6, units_kept=lambda bound: 0.8)
    frame = Frame(np.eye(3), 2.0 * np.eye(3))
    score = search._score_at(ExpansionPoint(np.zeros(3), frame.preconditioner, 5.0), frame, 4.0, "score")
    assert score.gradient == pytest.approx(2.0 * made.value / kept)
    assert np.diag(score.noise) == pytest.approx(2.0 * 0.3 / kept)
    assert score.bias == pytest.approx(left * 4.0 / kept)
    search._tail = SimpleNamespace(squares_kept=lambda bound: -2.0, units_kept=lambda bound: -2.0)
    if not regression.follows_growth:
        point = ExpansionPoint(np.zeros(3), frame.preconditioner, 5.0)
        assert search._kept(point) == pytest.approx(0.3 if members and one_row else 1.0)


def test_coordinates_are_weighed_by_their_tails():
    """Relative to the parameter with the shortest tail; logarithms of scales by one half."""
    n_units = 20_000
    counts = octave_counts([{0.5: 1.0}, {0.5: 0.01}, {2.0: 1.0}], n_units)
    known, scales = np.array([True, True, False, True]), np.array([3])
    search = SimpleNamespace(
        _chain=SimpleNamespace(
            n_units=n_units, release=lambda query: Release(query.kind, on_all(counts, known), 1e-9, ())
        ),
        _regression=regression_of(known, scales),
        _weights=np.ones(4),
        _rareness=np.ones(4),
        structure=np.ones((4, 4), dtype=bool),
    )
    frame = Search._diagonal_frame(search, np.zeros(4))
    assert search._weights == pytest.approx([1.0, 100.0**-0.125, 1.0, 0.5])
    assert search._rareness == pytest.approx([1.0, 100.0, 1.0, 1.0])
    sizes, _ = moments_of_scores(counts, 1e-9, n_units, NONE)
    assert np.diag(frame.preconditioner)[known] == pytest.approx(search._weights[known] / sizes)
    np.testing.assert_allclose(frame.back, np.linalg.inv(frame.preconditioner))


def test_units_that_alone_tell_of_a_parameter_are_known_to_be_long():
    """Where scores of one parameter are on 1 % of the units, theirs are ten times as long, and too few to be seen."""
    search = SimpleNamespace(
        places=np.array([True, True, False]),
        _rareness=np.array([1.0, 100.0, 1e4]),
        _weights=np.array([1.0, 0.5, 1.0]),
        _chain=SimpleNamespace(n_units=5_000),
    )
    counts = np.zeros(BINS)
    counts[11:13] = 2_500.0  # lengths around 1
    histogram = Histogram(counts, 30.0, 2.0**-6)
    lost = functools.partial(Search._lost_by_rare, search, histogram)
    assert lost(1.0, 1, 3.0) == pytest.approx(50.0 * (0.5 * 10.0 - 3.0))
    assert lost(2.0, 2, 3.0) == pytest.approx(50.0 * (100.0 - 3.0))
    assert lost(2.0, 2, 200.0) == 0.0
    assert Search._lost_by_rare(search, Histogram(counts, 4.0, 2.0**-6), 2.0, 2, 3.0) == 0.0  # it would show them
    tail, hidden = Tail(histogram, 5_000, mean=1.25), functools.partial(lost, 1.0, 1)
    assert tail.best_bound(1.0, 5.0)[0] < 3.0
    assert 4.0 < tail.best_bound(1.0, 5.0, hidden=hidden)[0] < 5.5
    bound, bias = tail.best_bound(1.0, 200.0, hidden=hidden)  # noise may be worse
    assert bound < 2.0
    assert bias == pytest.approx(hidden(bound))


def test_noise_hides_no_more_of_few_units_than_is_seen_of_them():
    """Else the axis of a rare covariate is five times as short as it should be, and no curvature is seen along it."""
    counts = octave_counts([{0.5: 1.0}, {0.5: 0.05}], 4_000)
    sizes, _ = moments_of_scores(counts, 30.0, 4_000, NONE)
    rare = moments_of_scores(counts, 1e-9, 4_000, NONE)[0][1]
    assert rare < sizes[1] <= 2.0 * rare


@pytest.mark.slow
@pytest.mark.parametrize("family", ["logistic", "linear"])
def test_the_effect_of_a_rare_covariate_is_found(family):
    """Of 24 searches of each 2 and 21 were lost, and the rare effect was 3 and 20 posterior standard deviations off."""
    generator, n = np.random.default_rng(11), 4_000
    x = np.column_stack([np.ones(n), generator.normal(size=(n, 2)), generator.random(n) < 0.01])
    if family == "logistic":
        x = np.column_stack([np.ones(n), generator.random(n) < 0.03])
    effects = np.array([-2.0, 1.1]) if family == "logistic" else np.array([-1.0, 0.3, 0.3, 0.8])
    with pm.Model() as model:
        eta = pm.Data("x", x) @ pm.Normal("beta", 0.0, 2.0, shape=x.shape[1])
        if family == "logistic":
            y = generator.random(n) < 1.0 / (1.0 + np.exp(-x @ effects))
            pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
        else:
            y = x @ effects + 0.7 * generator.normal(size=n)
            pm.Normal("y", eta, pm.HalfNormal("sigma", 2.0), observed=y)
    reference, rare = by_mode(model), x.shape[1] - 1
    found = searches(Problem(model), 4.0, 1e-6, 6, seed=1)
    modes = np.array([mode for mode, _ in found])
    errors = np.sqrt(np.mean(((modes - reference.mean) / reference.std) ** 2, axis=1))
    assert max(errors) < LOST, summary(found, reference)
    assert np.median(np.abs(modes[:, rare] - reference.mean[rare])) < 2.0 * reference.std[rare]


def on_all(counts, known):
    """Return counts of all parameters, as they are released."""
    whole = np.zeros((known.size, OCTAVES))
    whole[known] = counts
    return whole.ravel()


def test_what_clipping_takes_off_curvatures_is_spread_over_directions():
    """The bound is that for a part of the lost length, by the number of directions: of few all of it counts."""
    n_units, beyond = 20_000, np.exp(-1.2 * np.arange(BINS - 12))
    counts = np.zeros(BINS)
    counts[11], counts[12:] = n_units - 4_000, 4_000 * beyond / beyond.sum()
    histogram = Histogram(counts, 1.0, 2.0**-6)

    def bound_of(size):
        search = SimpleNamespace(
            places=np.ones(size, dtype=bool),
            nonnegative=True,
            _mean_square=float(size),
            _norms=lambda *_: histogram,
            _lost_by_rare=lambda *_: 0.0,
            _curvature_kind="expected_curvature",
            _chain=SimpleNamespace(n_units=n_units, multiplier=lambda kind: 3.0),
            noise_eigenvalue=10.0,
        )
        return Search._curvature_bound(search, np.zeros(size), None, "curvature")

    noise = np.sqrt(2.0) * 3.0 * 10.0
    for size, part in ((3, 1.0), (40, 0.1)):
        tail = Tail(histogram, n_units, mean=float(size), power=1)
        assert bound_of(size) == min(tail.best_bound(part, noise)[0], max(0.5 * n_units / noise, 2.0 * size))


def test_a_bound_of_curvatures_follows_the_histogram_where_the_frame_is_wrong():
    """Of a frame in which units are ten times as long as it says, nearly all would be cut, and steps overshoot."""
    n_units, size, noise = 3_000, 8, np.sqrt(2.0) * 20.0 * 10.0
    counts = np.zeros(BINS)
    counts[10:13] = n_units / 3.0  # norms from 2**(10/2) to 2**(13/2) times the smallest
    for smallest, largest in ((0.5, 2.0 * 0.5 * 2.0**6), (0.1, 2.0 * size)):
        search = SimpleNamespace(
            places=np.ones(size, dtype=bool),
            nonnegative=True,
            _mean_square=float(size),
            _norms=lambda *_, smallest=smallest: Histogram(counts, 1.0, smallest),
            _lost_by_rare=lambda *_: 0.0,
            _curvature_kind="expected_curvature",
            _chain=SimpleNamespace(n_units=n_units, multiplier=lambda kind: 20.0),
            _regression=SimpleNamespace(location_apart=False),
            noise_eigenvalue=10.0,
        )
        found = Search._curvature_bound(search, np.zeros(size), None, "early_curvature")
        assert found == min(smallest * 2.0**6.5, max(0.5 * largest / 2.0 / size * n_units / noise, largest))
        later = Search._curvature_bound(search, np.zeros(size), None, "middle_curvature")
        search._regression.location_apart = True  # as later ones are
        assert later == Search._curvature_bound(search, np.zeros(size), None, "early_curvature") < found


def test_widths_are_doubted_by_the_largest_eigenvalue_of_noise(monkeypatch):
    """Of noise with a standard deviation of one, as several releases together have: about the root of 2 d."""
    asked, real = [], learning.doubtful_widths

    def noted(belief, curvature, of_prior, largest_noise, to_parameters):
        asked.append(largest_noise)
        return real(belief, curvature, of_prior, largest_noise, to_parameters)

    monkeypatch.setattr(learning, "doubtful_widths", noted)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2000, 10)), generator.integers(0, 2, 2000)
    with pm.Model():
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ pm.Normal("beta", shape=10), observed=y)
        dp.private_likelihood(budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=0, progressbar=False)
    assert asked == [pytest.approx(np.sqrt(20.0), rel=0.2)]


def nearly_collinear():
    """Powers of age, nine levels of schooling, three of them rare, and their product with an indicator."""
    generator = np.random.default_rng(3)
    age, young = generator.normal(-0.3, 0.8, N).clip(-2, 3), generator.random(N) < 0.25
    school = np.eye(9)[generator.choice(9, N, p=[0.36, 0.2, 0.12, 0.1, 0.08, 0.06, 0.04, 0.03, 0.01])][:, 1:]
    region = np.eye(4)[generator.choice(4, N, p=[0.5, 0.3, 0.17, 0.03])][:, 1:]
    ages = [age, age**2, age**3, young, young * age]
    x = np.column_stack([np.ones(N), *ages, school, region, school * young[:, None]])
    truth = generator.normal(0, 0.5, x.shape[1])
    return x, (generator.random(N) < 1.0 / (1.0 + np.exp(-x @ truth))).astype(int)


@pytest.mark.slow
def test_searches_of_units_of_many_rows_reach_a_far_mode():
    """Median error of 800 persons of 20 rows, in posterior sd: about 2; 13 where steps are as short as of one row."""
    generator, truth = np.random.default_rng(4), np.array([-2.5, 1.0, -0.5])
    x = np.column_stack([np.ones(16_000), generator.normal(size=(16_000, 2))])
    p = 1.0 / (1.0 + np.exp(-x @ truth))
    y = (generator.random(16_000) < p).astype(int)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=3)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta, observed=y)
    std = np.sqrt(np.diag(np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x)))
    found = searches(Problem(model, {"unit_index": np.repeat(np.arange(800), 20)}), 4.0, 1e-6, 3, 0)
    errors = [np.sqrt(np.mean(((each - truth) / std) ** 2)) for each, _ in found]
    assert np.median(errors) < 4.0


@pytest.mark.parametrize("far", [False, True])
def test_a_third_curvature_waits_while_the_trust_region_holds_steps(monkeypatch, far):
    """Far from the mode it would soon be out of date."""
    kinds, real = [], ChainAccess.release
    monkeypatch.setattr(ChainAccess, "release", lambda self, query: kinds.append(query.kind) or real(self, query))
    x = np.random.default_rng(0).normal(size=2000)
    with pm.Model():
        mu = pm.Normal("a", 0.0, 5.0) + pm.Normal("b") * pm.Data("x", 0.1 * x)
        pm.Gumbel("y", mu=mu, beta=1.0, observed=0.3 * x - (8.0 if far else 0.0))  # whose responses are not known
        dp.private_likelihood(budget=dp.PrivacyBudget(8.0, 1e-6), insecure_seed=0, progressbar=False)
    released = kinds[len(kinds) - kinds[::-1].index("early_curvature") - 1 :]  # after the dry run
    scores = [kind for kind in released[: released.index("late_curvature")] if kind == "approach"]
    assert len(scores) == (8 if far else 2)


@pytest.mark.slow
@pytest.mark.nightly
def test_searches_of_nearly_collinear_covariates_and_rare_levels_are_not_lost():
    """Median error at epsilon 4, in posterior sd: 1.1, and 2.9 without weights and the third curvature."""
    x, y = nearly_collinear()
    mode = np.zeros(x.shape[1])
    for _ in range(30):
        p = 1.0 / (1.0 + np.exp(-x @ mode))
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(mode.size)
        mode = mode + np.linalg.solve(precision, x.T @ (y - p) - mode)
    std = np.sqrt(np.diag(np.linalg.inv(precision)))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=x.shape[1])
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta, observed=y)
    errors = [np.sqrt(np.mean(((found - mode) / std) ** 2)) for found, _ in searches(Problem(model), 4.0, 1e-6, 12, 0)]
    assert len(errors) == 12
    assert np.median(errors) < 1.8
