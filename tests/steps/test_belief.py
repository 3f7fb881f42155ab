"""What noisy scores and curvatures say together: against least squares, simulation and closed forms."""

import numpy as np
import pytest

from pymc_dp.model.hessian import Hessian
from pymc_dp.steps.prelude.belief import (
    Belief,
    KnownScore,
    _under_prior,
    belief_of,
    most_likely,
    updated,
    with_drift,
)
from pymc_dp.steps.prelude.curvature import (
    KnownCurvature,
    after_step,
    along_axes,
    between_groupings,
    curvature_drift,
    floored,
    groupings_of,
    pooled,
)
from pymc_dp.steps.prelude.newton import Frame

RNG = np.random.default_rng(4)
SIZE, N = 3, 1000
ROOT = np.linalg.cholesky(np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.7]]))
INFORMATION = N * ROOT @ ROOT.T
FRAME = Frame(np.linalg.inv(ROOT).T, ROOT)
MAXIMUM = np.array([0.3, -1.0, 2.0])
ALL = np.ones(SIZE, dtype=bool)
DENSE = np.ones((SIZE, SIZE), dtype=bool)


def score(theta, noise_std, bias=0.0, error=0.0):
    """What is released at a point, by an exactly quadratic likelihood."""
    return KnownScore(theta, INFORMATION @ (MAXIMUM - theta) + error, noise_std * ROOT, bias)


def belief(scores, curvature_noise=0.0, structure=DENSE, **options):
    given = {"n_units": N, "structure": structure, "third_order": 0.0} | options
    return belief_of(scores, INFORMATION, curvature_noise, FRAME, ALL, **given)


def test_one_score_gives_the_newton_point_and_its_error():
    error = np.array([3.0, -1.0, 2.0])
    found = belief([score(MAXIMUM + 0.2, 5.0, error=error)])
    inverse = np.linalg.inv(INFORMATION)
    np.testing.assert_allclose(found.mean, MAXIMUM + inverse @ error)
    np.testing.assert_allclose(found.noise, inverse @ (25.0 * ROOT @ ROOT.T) @ inverse)
    np.testing.assert_allclose(np.linalg.inv(found.precision), inverse + found.noise)
    assert not found.bias.any()


def test_several_scores_are_weighed_by_their_noise():
    """As generalised least squares does; the bias of clipping is not averaged down."""
    scores = [score(MAXIMUM + RNG.normal(size=SIZE), std, bias=6.0, error=RNG.normal(size=SIZE)) for std in (2.0, 5.0)]
    found = belief(scores)
    inverse = np.linalg.inv(INFORMATION)
    told = [each.theta + inverse @ each.gradient for each in scores]
    precisions = np.array([std**2 + 6.0**2 / SIZE for std in (2.0, 5.0)]) ** -1.0
    weights = precisions / precisions.sum()
    np.testing.assert_allclose(found.mean, weights @ np.array(told))
    covariance = inverse @ ROOT @ ROOT.T @ inverse
    np.testing.assert_allclose(found.noise, covariance * (weights**2 @ np.array([4.0, 25.0])))
    np.testing.assert_allclose(found.bias, covariance * 36.0 / SIZE)


def test_noise_of_the_curvature_counts_over_the_distance_and_within_the_structure():
    """Its covariance is that of simulated noise times the distance."""
    structure = DENSE.copy()
    structure[0, 1] = structure[1, 0] = False
    frame_alone = Frame(np.eye(SIZE), np.eye(SIZE))
    away = np.array([0.5, -0.3, 0.8])
    found = belief_of(
        [KnownScore(np.zeros(SIZE), N * away, np.zeros((SIZE, SIZE)) + 1e-6 * np.eye(SIZE), 0.0)],
        N * np.eye(SIZE),
        30.0,
        frame_alone,
        ALL,
        n_units=N,
        structure=structure,
        third_order=0.0,
    )
    draws = []
    for _ in range(20_000):
        noise = RNG.normal(size=(SIZE, SIZE)) * 30.0 / np.sqrt(2.0)
        noise = np.triu(noise, 1) + np.triu(noise, 1).T + np.diag(RNG.normal(size=SIZE) * 30.0)
        draws.append(np.where(structure, noise, 0.0) @ away / N)
    np.testing.assert_allclose(found.noise, np.cov(np.array(draws).T), atol=0.05 * np.max(found.noise))


def test_noise_of_the_curvature_counts_over_the_true_distance():
    """On average over noise of the score, which alone would make the squared distance half as long again."""
    size, rng = 40, np.random.default_rng(8)
    frame, known, dense = Frame(np.eye(size), np.eye(size)), np.ones(size, dtype=bool), np.ones((size,) * 2, dtype=bool)
    away, noise_std, by_curvature = rng.normal(size=size) * 0.14, 100.0, []
    for _ in range(200):
        gradient = N * away + noise_std * rng.normal(size=size)
        found = belief_of(
            [KnownScore(np.zeros(size), gradient, noise_std * np.eye(size), 0.0)],
            N * np.eye(size),
            30.0,
            frame,
            known,
            n_units=N,
            structure=dense,
            third_order=0.0,
        )
        by_curvature.append(np.trace(found.noise) - size * (noise_std / N) ** 2)
    expected = 0.5 * 30.0**2 * (size + 1) * float(away @ away) / N**2
    assert np.mean(by_curvature) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("prior_std", [np.inf, 1e-4])
def test_noise_of_the_curvature_counts_over_the_way_to_the_posterior(prior_std):
    """Rows tell nothing of the last parameter but noise, which says that its maximum is a thousand away.

    A prior that knows it ends the way there, and noise along the others is that of their own ways.
    """
    frame, away = Frame(np.eye(SIZE), np.eye(SIZE)), np.array([0.5, -0.3, 1000.0])
    information = N * np.diag([1.0, 1.0, 1e-3])
    prior = np.diag([0.0, 0.0, prior_std**-2.0]), np.zeros(SIZE)
    given = {"n_units": N, "structure": DENSE, "third_order": 0.0}
    scores = [KnownScore(np.zeros(SIZE), information @ away, np.eye(SIZE), 0.0)]
    found = belief_of(scores, information, np.full(SIZE, 30.0), frame, ALL, prior=prior, **given)
    np.testing.assert_allclose(found.mean, away, rtol=1e-6)  # of the likelihood
    short = np.array([0.5, -0.3, 0.0]) if np.isfinite(prior_std) else away
    expected = 0.5 * 30.0**2 * (short @ short * np.eye(SIZE) + np.outer(short, short)) + np.eye(SIZE)
    np.testing.assert_allclose(information @ found.noise @ information, expected, rtol=0.02, atol=1.0)


def test_the_slope_of_the_prior_leads_on():
    """Of a prior with another maximum, as of scores: noise of the curvature counts as far as that."""
    frame, information = Frame(np.eye(SIZE), np.eye(SIZE)), N * np.eye(SIZE)
    scores = [KnownScore(np.zeros(SIZE), np.zeros(SIZE), 1e-3 * np.eye(SIZE), 0.0)]
    given = {"n_units": N, "structure": DENSE, "third_order": 0.0}
    slope = np.array([0.0, 0.0, 9.0 * N * 0.4])
    found = belief_of(scores, information, np.full(SIZE, 3.0), frame, ALL, prior=(9.0 * information, slope), **given)
    assert np.trace(found.noise) == pytest.approx(0.5 * 3.0**2 * 4.0 * 0.36**2 / N**2, rel=0.02)
    assert not np.round(found.mean, 9).any()


def test_what_is_missed_on_a_long_way_is_no_reason_to_believe_the_prior():
    """The score says exactly where the maximum is, but for terms of third order: no vague prior changes the way."""
    information, away = 300.0 * N * np.eye(SIZE), np.array([0.0, 0.0, 1.0])
    frame = Frame(np.eye(SIZE) / np.sqrt(300.0), np.eye(SIZE) * np.sqrt(300.0))
    scores = [KnownScore(np.zeros(SIZE), information @ away, np.eye(SIZE), 0.0)]
    given = {"n_units": N, "structure": DENSE, "third_order": 1.0}
    vague = np.eye(SIZE) / 25.0, -away / 25.0
    with_prior, without = (
        belief_of(scores, information, np.full(SIZE, 30.0), frame, ALL, prior=prior, **given) for prior in (vague, None)
    )
    np.testing.assert_allclose(with_prior.mean, without.mean, rtol=1e-6)
    np.testing.assert_allclose(with_prior.noise, without.noise, rtol=1e-3)


@pytest.mark.parametrize("information", [np.full((SIZE, SIZE), 1e308), np.zeros((SIZE, SIZE))])
def test_where_a_prior_is_no_number_the_way_to_the_maximum_counts(information):
    with np.errstate(all="ignore"):
        scores = [score(MAXIMUM + 0.2, 5.0)]
        found = belief(scores, 2.0, prior=(information, np.full(SIZE, np.nan)))
    np.testing.assert_array_equal(found.noise, belief(scores, 2.0).noise)


@pytest.mark.parametrize("largest", [1e2, 1e6, 1e12])
def test_a_prior_that_knows_one_direction_leaves_the_others_as_they_are(largest):
    direction, mean = np.array([1.0, 2.0, -1.0]) / np.sqrt(6.0), np.array([0.1, -0.2, 0.3])
    covariance = np.linalg.inv(INFORMATION)
    information = largest * np.outer(direction, direction)
    score, noise = INFORMATION @ mean, 1e-3 * INFORMATION @ INFORMATION
    nothing = np.zeros((SIZE, SIZE))
    found, of_found = _under_prior(score, noise, INFORMATION, nothing, information, np.zeros(SIZE))
    gain = covariance @ direction / (direction @ covariance @ direction + 1.0 / largest)
    kept = np.eye(SIZE) - np.outer(gain, direction)
    np.testing.assert_allclose(found, kept @ mean, rtol=1e-4)
    np.testing.assert_allclose(of_found, 1e-3 * kept @ kept.T, rtol=1e-3, atol=1e-9)


def test_a_direction_that_rows_do_not_know_takes_nothing_from_the_others():
    """As that of an intercept beside the effects of all groups, which the prior knows: it would be far away."""
    turn = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])

    def error_of_posterior(axes, sizes):
        size, precise = len(sizes), np.array([0.25, 1e4])[: len(sizes)]
        information, prior = N * axes @ np.diag(sizes) @ axes.T, axes @ np.diag(precise) @ axes.T
        scores = [
            KnownScore(theta, information @ (axes[:, 0] - theta), np.diag(stds[:size]), bias)
            for theta, stds, bias in ((np.zeros(size), [5.0, 40.0], 90.0), (0.9 * axes[:, 0], [20.0, 20.0], 0.0))
        ]
        whole = np.ones((size, size), dtype=bool)
        options = {"n_units": N, "structure": whole, "third_order": 0.0, "prior": (prior, -prior @ scores[-1].theta)}
        frame = Frame(np.eye(size), np.eye(size))
        found = belief_of(scores, information, np.full(size, 30.0), frame, whole[0], **options)
        return np.sqrt(axes[:, 0] @ found.given(found.noise, prior) @ axes[:, 0])

    alone = error_of_posterior(np.eye(1), [1.0])
    for unknown in (1e-3, 1e-5, 1e-7):
        assert 0.8 * alone < error_of_posterior(turn, [1.0, unknown]) < 1.25 * alone


def test_a_maximum_is_no_farther_away_than_floating_point_reaches():
    """Precision and mean of the likelihood still tell of the others, when a prior says where it is."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(SIZE, SIZE)))[0]
    information = 60 * N * turn @ np.diag([1.0, 0.6, 1e-9]) @ turn.T
    scores = [KnownScore(np.zeros(SIZE), information @ turn[:, 0] + 40.0 * turn[:, 2], 40.0 * np.eye(SIZE), 0.0)]
    found = belief_of(
        *(scores, information, np.zeros(SIZE), Frame(np.eye(SIZE), np.eye(SIZE)), ALL),
        **{"n_units": 60 * N, "structure": DENSE, "third_order": 0.0},
    )
    prior = 1e4 * np.outer(turn[:, 2], turn[:, 2])
    mode = np.linalg.solve(found.precision + prior, found.precision @ found.mean)
    np.testing.assert_allclose(turn.T @ mode, [1.0, 0.0, 0.0], atol=1e-6)
    assert np.abs(found.mean).max() < 2e3


def test_bias_of_clipping_is_along_directions_as_scores_are():
    """Its mean square, in all directions together, is that of the length; in each as information is."""
    weights = np.array([1.0, 0.5, 0.25])
    frame = Frame(np.eye(SIZE), np.eye(SIZE))
    of_frame = N * np.diag(weights**2)
    scores = [KnownScore(np.zeros(SIZE), np.zeros(SIZE), 1e-3 * np.eye(SIZE), 6.0)]
    found = belief_of(scores, of_frame, 0.0, frame, ALL, n_units=N, structure=DENSE, third_order=0.0)
    of_sums = of_frame @ found.bias @ of_frame
    assert np.trace(of_sums) == pytest.approx(36.0)
    np.testing.assert_allclose(of_sums, 36.0 * np.diag(weights**2) / np.sum(weights**2), atol=1e-9)


def test_bias_may_all_be_along_an_axis_whose_long_scores_have_one_sign():
    """There the lost length counts in full, in proportion to the root of the information, and elsewhere as before."""
    frame = Frame(np.eye(SIZE), np.eye(SIZE))
    of_frame = N * np.diag([1.0, 0.5, 0.25])
    scores = [KnownScore(np.zeros(SIZE), np.zeros(SIZE), 1e-3 * np.eye(SIZE), 6.0)]
    given = {"n_units": N, "structure": DENSE, "third_order": 0.0}
    spread, one = (
        belief_of(scores, of_frame, 0.0, frame, ALL, one_sided=sided, **given).bias
        for sided in (None, np.array([False, False, True]))
    )
    more = of_frame @ (one - spread) @ of_frame
    np.testing.assert_allclose(more, 36.0 * np.diag([0.0, 0.0, 0.25 / np.mean([1.0, 0.5, 0.25])]), atol=1e-9)


def test_the_doubt_of_a_step_is_the_noise_of_scores_alone():
    """A score far away, by a curvature that is hardly known, says where to go next as if it were known."""
    far = score(MAXIMUM + 1.0, 5.0, bias=40.0)
    of_step, of_all = (belief([far], curvature_noise=30.0, noise_alone=alone) for alone in (True, False))
    inverse = np.linalg.inv(INFORMATION)
    np.testing.assert_allclose(of_step.noise, inverse @ (25.0 * ROOT @ ROOT.T) @ inverse)
    assert not of_step.bias.any()
    np.testing.assert_array_equal(of_step.mean, of_all.mean)
    assert np.linalg.eigvalsh(of_all.noise - of_step.noise)[0] > 0.0
    assert of_step.curvature_share == 0.0
    assert of_all.curvature_share == pytest.approx(1.0 - of_step.squared_noise / of_all.squared_noise)
    assert of_all.curvature_share > 0.9


def test_along_an_axis_that_noise_has_whitened_a_step_doubts_the_curvature():
    """What it says there over the way is within its noise of nothing: a prior decides. Elsewhere it is believed."""
    frame, noise = Frame(np.eye(SIZE), np.eye(SIZE)), np.array([10.0, 10.0, 300.0])
    far = KnownScore(np.zeros(SIZE), N * np.array([1.0, 2.0, 0.5]), 1e-3 * np.eye(SIZE), 0.0)
    given = {"n_units": N, "structure": DENSE, "third_order": 0.0, "noise_alone": True}
    found = belief_of([far], N * np.eye(SIZE), noise, frame, ALL, **given)
    # Its own entry over its own part of the way, and the root of half of it over that and all of the way.
    np.testing.assert_allclose(np.diag(found.noise)[:2], (1e-3 / N) ** 2, rtol=1e-6)
    assert found.noise[2, 2] == pytest.approx((300.0 * 0.5 / N) ** 2, rel=1e-3)
    np.testing.assert_allclose(belief_of([far], N * np.eye(SIZE), noise[:1], frame, ALL, **given).mean, found.mean)


def test_noise_of_a_curvature_is_that_of_its_product_with_the_way():
    """Of each entry it is the root of the noises of its two axes, over the root of two off the diagonal."""
    generator, noise, way = np.random.default_rng(8), np.array([4.0, 1.0, 9.0]), np.array([1.0, -2.0, 0.5])
    root = np.sqrt(np.outer(noise, noise))
    draws = generator.normal(size=(40_000, SIZE, SIZE)) * root
    products = ((draws + draws.swapaxes(1, 2)) / 2.0) @ way
    frame = Frame(np.eye(SIZE), np.eye(SIZE))
    exact = KnownScore(np.zeros(SIZE), 1e6 * way, 1e-6 * np.eye(SIZE), 0.0)
    given = {"n_units": 10**6, "structure": DENSE, "third_order": 0.0}
    found = belief_of([exact], 1e6 * np.eye(SIZE), noise, frame, ALL, **given).noise * 1e12
    np.testing.assert_allclose(found, np.cov(products.T), rtol=0.05, atol=0.02 * np.abs(found).max())


def test_one_more_entry_of_a_score_is_known_as_bayes_theorem_says():
    """A normal prior of covariance V, and an entry of H times the distance to the maximum, with noise and bias."""
    root = np.linalg.inv(INFORMATION) @ np.random.default_rng(5).normal(scale=60.0, size=(SIZE, SIZE))
    before = Belief(MAXIMUM, INFORMATION, root @ root.T, np.diag([0.02, 0.01, 0.03]) ** 2, ALL)
    found = updated(before, 1, 1.0, noise=30.0, bias=40.0, doubt=0.0)
    along, prior = INFORMATION[1], before.noise + before.bias
    covariance = np.linalg.inv(np.linalg.inv(prior) + np.outer(along, along) / 50.0**2)
    np.testing.assert_allclose(found.noise + found.bias, covariance, rtol=1e-6)
    np.testing.assert_allclose(found.mean - before.mean, covariance @ along / 50.0**2, rtol=1e-6)
    # What is noise of the mean and what is bias are told apart: of the gain, each times its own.
    gain = covariance @ along / 50.0**2
    kept = np.eye(SIZE) - np.outer(gain, along)
    np.testing.assert_allclose(found.noise, kept @ before.noise @ kept.T + 900.0 * np.outer(gain, gain))


def test_doubt_of_the_information_and_a_long_step_widen_what_a_score_says():
    """To noise and bias the part is added; a step of d, of all that is told, is off by that part and by d of itself."""
    before = belief([score(MAXIMUM, 0.0, bias=90_000.0)])
    gain = 1.0 / INFORMATION[1, 1]  # of what is told by nothing but this score: all of it
    told = updated(before, 1, 0.0, noise=3.0, bias=4.0, doubt=0.0)
    doubted_told = updated(before, 1, 0.0, noise=3.0, bias=4.0, doubt=0.5)
    # The score itself, as it is predicted afterwards, is as uncertain as it was released.
    for each, std in ((told, 5.0), (doubted_told, 7.5)):
        assert INFORMATION[1] @ (each.noise + each.bias) @ INFORMATION[1] == pytest.approx(std**2, rel=1e-3)
    error = 0.3 / gain
    far = updated(before, 1, error, noise=3.0, bias=4.0, doubt=0.5)
    step = far.mean[1] - before.mean[1]
    extra = INFORMATION[1] @ (far.bias - doubted_told.bias) @ INFORMATION[1]
    assert np.sqrt(extra) == pytest.approx((0.5 + step) * error, rel=1e-3)


def test_terms_of_third_order_make_far_scores_count_less():
    near, far = score(MAXIMUM + 0.01, 5.0), score(MAXIMUM + 1.0, 5.0, error=100.0)
    found = belief_of([far, near], INFORMATION, 0.0, FRAME, ALL, n_units=N, structure=DENSE, third_order=1.0)
    np.testing.assert_allclose(found.mean, MAXIMUM, atol=1e-3)


GROUPS, OF_EACH = 40, 200


def of_rare_events(thetas, noise_std):
    """Exact scores of logistic intercepts of many groups, on the way in from a half to a rare event; and the truth."""
    truth = -3.2 + 0.35 * np.random.default_rng(0).normal(size=GROUPS)
    at_truth, *elsewhere = (1.0 / (1.0 + np.exp(-each)) for each in (truth, *(np.full(GROUPS, at) for at in thetas)))
    information = OF_EACH * at_truth * (1.0 - at_truth)
    root = np.diag(np.sqrt(information / (GROUPS * OF_EACH)))
    scores = [
        KnownScore(np.full(GROUPS, at), OF_EACH * (at_truth - there), noise_std * root, 0.0)
        for at, there in zip(thetas, elsewhere, strict=True)
    ]
    return scores, np.diag(information), Frame(np.linalg.inv(root), root), truth


def test_what_is_missed_on_a_long_way_lies_along_it():
    """All groups move together: shared among forty directions it would be nothing, and early scores would pull."""
    scores, information, frame, truth = of_rare_events([0.0, -1.0, -2.5, -3.3], noise_std=20.0)
    known, structure = np.ones(GROUPS, dtype=bool), np.eye(GROUPS, dtype=bool)
    given = {"n_units": GROUPS * OF_EACH, "structure": structure}
    straight = belief_of(scores, information, 0.0, frame, known, third_order=1.0, **given)
    exact = belief_of(scores, information, 0.0, frame, known, third_order=0.0, **given)
    assert np.mean(exact.mean - truth) < -1.0
    assert abs(np.mean(straight.mean - truth)) < 0.2


def test_a_way_that_noise_alone_has_made_takes_little_off_a_score():
    """The better of two scores at one point has nearly all of the weight, though its noise leads far away."""
    generator, errors = np.random.default_rng(1), []
    for _ in range(300):
        scores = [score(MAXIMUM, std, error=std * ROOT @ generator.normal(size=SIZE)) for std in (40.0, 160.0)]
        away = [belief(scores, third_order=third_order).mean - MAXIMUM for third_order in (0.0, 3.0)]
        errors.append([each @ INFORMATION @ each for each in away])
    exact, straight = np.mean(errors, axis=0)
    assert straight < 1.25 * exact


def counts_of_rate(log_rate):
    """Score and curvature of a Poisson log rate, by N counts with a mean of 1: the maximum is at zero."""
    return N * (1.0 - np.exp(log_rate)), N * np.exp(log_rate)


@pytest.mark.parametrize("last", [0.3, -0.3, 0.1])
def test_a_curvature_that_changes_on_the_way_makes_the_mean_doubtful(last):
    """As much as the mean is off by it, up to a factor of 2, and along the way alone."""
    frame, known = Frame(np.eye(2), np.eye(2)), np.ones(2, dtype=bool)
    matrices = [np.diag([counts_of_rate(at)[1], N]) for at in (2.0 * last, last)]
    early, late = (KnownCurvature(each, each, 0.0, frame, known) for each in matrices)
    bent = curvature_drift(early, late, np.array([last, 0.0]), N)
    score, point = np.array([counts_of_rate(last)[0], 0.0]), np.array([last, 0.0])
    one = KnownScore(point, score, 1e-3 * np.eye(2), 0.0)
    found = belief_of([one], matrices[1], 0.0, frame, known, n_units=N, structure=np.ones((2, 2), bool), third_order=0)
    doubt = with_drift(found, point, bent, N).bias
    off = abs(found.mean[0])
    assert off / 2.0 < np.sqrt(doubt[0, 0]) < 2.0 * off
    assert doubt[1, 1] == pytest.approx(0.0, abs=1e-12)
    assert not with_drift(found, point, 0.0, N).bias.any()


def test_a_change_of_curvature_that_noise_could_be_is_none():
    frame, step = Frame(np.eye(SIZE), np.eye(SIZE)), np.array([0.2, 0.1, 0.0])
    for _ in range(20):
        noises = [RNG.normal(size=(SIZE, SIZE)) * 30.0 / np.sqrt(2.0) for _ in range(2)]
        both = [N * np.eye(SIZE) + np.triu(noise) + np.triu(noise, 1).T for noise in noises]
        early, late = (KnownCurvature(each, each, 30.0, frame, ALL) for each in both)
        assert curvature_drift(early, late, step, N) < 0.1
        assert curvature_drift(early, late, np.zeros(SIZE), N) == 0.0


class Normal:
    """Independent normal priors."""

    def __init__(self, mean, std):
        self.mean, self.precision = np.asarray(mean), np.asarray(std) ** -2.0

    def log_density(self, theta):
        return -0.5 * float(self.precision @ (theta - self.mean) ** 2)

    def gradient(self, theta):
        return self.precision * (self.mean - theta)

    def hessian(self, theta):
        return -np.diag(self.precision)


def test_the_most_likely_point_under_a_normal_prior_is_the_posterior_mean():
    found, prior = belief([score(MAXIMUM + 0.2, 50.0)]), Normal([1.0, 1.0, 1.0], [0.05, 1.0, 3.0])
    expected = np.linalg.solve(
        found.precision + np.diag(prior.precision), found.precision @ found.mean + prior.precision * prior.mean
    )
    start = np.full(SIZE, -4.0)
    np.testing.assert_allclose(most_likely(prior, found, start, np.zeros(SIZE, dtype=bool)), expected, rtol=1e-6)


def test_the_most_likely_point_within_bounds_is_that_of_the_rest_where_one_is_at_its_bound():
    found, prior = belief([score(MAXIMUM + 0.2, 50.0)]), Normal([1.0, 1.0, 1.0], [0.05, 1.0, 3.0])
    precision = found.precision + np.diag(prior.precision)
    slope = found.precision @ found.mean + prior.precision * prior.mean
    free = np.linalg.solve(precision, slope)
    bounds = np.full(SIZE, -np.inf), np.array([free[0] - 1.0, np.inf, np.inf])
    rest = np.linalg.solve(precision[1:, 1:], slope[1:] - precision[1:, 0] * bounds[1][0])
    start = np.full(SIZE, -4.0)
    at = most_likely(prior, found, start, np.zeros(SIZE, dtype=bool), bounds)
    np.testing.assert_allclose(at, [bounds[1][0], *rest], rtol=1e-6)
    assert not np.allclose(rest, free[1:], rtol=1e-3)


class Hierarchy:
    """Members N(mu, tau²), mu N(0, 50²), log tau N(0, 2²): mu and log tau come first."""

    def log_density(self, theta):
        mu, log_tau, members = theta[0], theta[1], theta[2:]
        within = -0.5 * np.sum((members - mu) ** 2) * np.exp(-2.0 * log_tau) - members.size * log_tau
        return float(within - 0.5 * (mu / 50.0) ** 2 - 0.5 * (log_tau / 2.0) ** 2)

    def gradient(self, theta):
        mu, log_tau, members = theta[0], theta[1], theta[2:]
        precision = np.exp(-2.0 * log_tau)
        away = members - mu
        of_mu = precision * away.sum() - mu / 50.0**2
        of_tau = precision * (away**2).sum() - members.size - log_tau / 4.0
        return np.concatenate([[of_mu, of_tau], -precision * away])

    def hessian(self, theta):
        return Hessian(self.gradient, theta.size)(theta)


@pytest.mark.parametrize("noise_std", [0.3, 2.0])
def test_a_hierarchy_moves_to_its_members_and_its_scale_does_not_run_away(noise_std):
    """Members around 90 with a standard deviation of 3; the joint mode would have a scale of zero."""
    members = 90.0 + 3.0 * np.random.default_rng(1).normal(size=60)
    known = np.array([False, False, *np.ones(60, dtype=bool)])
    information, noise = np.diag(known * 1e4), np.diag(known * noise_std**2)
    told = np.concatenate([[0.0, 0.0], members + noise_std * np.random.default_rng(2).normal(size=60)])
    likelihood = Belief(told, information, noise, np.zeros_like(noise), known)
    found = most_likely(Hierarchy(), likelihood, np.zeros(62), ~known)
    assert found[0] == pytest.approx(90.0, abs=1.5)
    assert np.exp(found[1]) == pytest.approx(3.0, rel=0.25)
    shrunk = np.mean((found[2:] - members) ** 2) ** 0.5
    assert shrunk < 1.05 * noise_std / np.sqrt(1.0 + noise_std**2 / 9.0)


# Curvatures ---------------------------------------------------------------------------------------------------------


def noisy(matrix, frame, noise_std, seed):
    """A release of a matrix along the axes of a frame."""
    generator = np.random.default_rng(seed)
    size = len(matrix)
    noise = generator.normal(size=(size, size)) * noise_std / np.sqrt(2.0)
    noise = np.triu(noise, 1) + np.triu(noise, 1).T + np.diag(generator.normal(size=size) * noise_std)
    along = frame.preconditioner.T @ matrix @ frame.preconditioner + noise
    return floored(along, noise_std, frame, np.ones(size, dtype=bool), floor=0.0, nonnegative=True)


def frame_of(diagonal):
    return Frame(np.diag(1.0 / np.asarray(diagonal)), np.diag(np.asarray(diagonal)))


def test_lifted_eigenvalues_are_above_the_floor_and_zeros_stay():
    raw = np.array([[5.0, 0.0, 3.0], [0.0, 0.1, 2.0], [3.0, 2.0, 4.0]])
    found = floored(raw, 1.0, Frame(np.eye(3), np.eye(3)), ALL, floor=0.8, nonnegative=True)
    assert np.linalg.eigvalsh(found.matrix).min() >= 0.39
    assert found.matrix[0, 1] == 0.0
    turned = floored(np.diag([-5.0, 1.0, 2.0]), 1.0, Frame(np.eye(3), np.eye(3)), ALL, floor=0.5, nonnegative=False)
    np.testing.assert_allclose(np.diag(turned.matrix), [5.0, 1.0, 2.0])
    part = np.array([True, True, False])
    assert not floored(raw, 1.0, Frame(np.eye(3), np.eye(3)), part, floor=0.8, nonnegative=True).matrix[2].any()


@pytest.mark.parametrize("members", [(), (0, 1)])
def test_two_curvatures_together_are_better_than_either(members):
    """One tells the first entry, the other the last; the noise that is told is that of the result.

    Where members of a grouping share no row, axes are kept, and each entry is weighed all the same.
    """
    there = DENSE.copy()
    there[np.ix_(members, members)] = np.eye(len(members), dtype=bool)
    matrix = np.diag([400.0, 100.0, 25.0])
    one, other = frame_of([20.0, 10.0, 0.5]), frame_of([2.0, 10.0, 5.0])
    errors = {"one": [], "other": [], "both": []}
    told = []
    for seed in range(200):
        first, second = noisy(matrix, one, 0.1, seed), noisy(matrix, other, 0.1, 1000 + seed)
        both = pooled(second, first, there, floor=0.0, nonnegative=True, drifts=False)
        for name, found in (("one", first), ("other", second), ("both", both)):
            errors[name].append(np.abs(np.diag(found.matrix - matrix)))
        told.append(both.frame.preconditioner.T @ (both.matrix - matrix) @ both.frame.preconditioner)
    means = {name: np.mean(each, axis=0) for name, each in errors.items()}
    assert (means["both"] <= 1.1 * np.minimum(means["one"], means["other"])).all()
    assert np.std([np.diag(each) for each in told]) == pytest.approx(1.0, rel=0.15)


def test_a_curvature_that_has_drifted_counts_less():
    frame = frame_of([1.0, 1.0, 1.0])
    early, late = noisy(np.diag([9.0, 9.0, 9.0]), frame, 0.01, 1), noisy(np.diag([4.0, 4.0, 4.0]), frame, 0.1, 2)
    stays = pooled(late, early, DENSE, floor=0.0, nonnegative=True, drifts=False)
    follows = pooled(late, early, DENSE, floor=0.0, nonnegative=True, drifts=True)
    assert abs(np.diag(stays.matrix).mean() - 9.0) < 0.2
    assert abs(np.diag(follows.matrix).mean() - 4.0) < 0.4


def test_scores_at_both_ends_of_a_step_correct_the_curvature():
    """Exact ones along the step; noisy ones by no more than they know."""
    frame = frame_of([1.0, 1.0, 1.0])
    known = noisy(np.eye(3), frame, 0.5, 3)
    truth, step = np.diag([3.0, 1.0, 2.0]), np.array([1.0, -2.0, 0.5])
    exact = after_step(known, step, truth @ step, 1e-12 * np.eye(3), DENSE, floor=0.0, nonnegative=True)
    np.testing.assert_allclose(exact.raw @ step, truth @ step, rtol=1e-6)
    vague = after_step(known, step, truth @ step, 1e12 * np.eye(3), DENSE, floor=0.0, nonnegative=True)
    np.testing.assert_allclose(vague.raw, known.raw, atol=1e-6)


def test_the_noise_along_other_axes_is_that_of_released_entries():
    known = KnownCurvature(np.eye(3), np.eye(3), 2.0, frame_of([1.0, 1.0, 1.0]), ALL)
    np.testing.assert_allclose(known.noise_along(frame_of([2.0, 2.0, 1.0])), [0.5, 0.5, 2.0])


def test_zeros_between_members_are_kept_along_axes_that_touch_one_member_each():
    there = DENSE.copy()
    there[0, 1] = there[1, 0] = False
    factor = np.linalg.cholesky(np.array([[2.0, 0.0, 0.4], [0.0, 1.0, 0.3], [0.4, 0.3, 3.0]]))
    kept = along_axes(there, Frame(np.linalg.inv(factor).T, factor))
    assert not kept[0, 1]
    assert kept[2].all()
    mixed = np.linalg.qr(np.arange(9.0).reshape(3, 3) + np.eye(3))[0]
    assert along_axes(there, Frame(mixed, mixed)).all()


def of_members(members, others):
    """Which entries a curvature can have: members share no row."""
    structure = np.ones((members + others, members + others), dtype=bool)
    structure[:members, :members] = np.eye(members, dtype=bool)
    return structure


@pytest.mark.parametrize("beyond", [0.0, 5.0])
def test_entries_between_groupings_are_shrunk_by_what_is_noise_of_them(beyond):
    """Their noise has half the variance of the diagonal's; without members nothing changes."""
    generator, size, members = np.random.default_rng(0), 60, 50
    structure = of_members(members, size - members)
    raw = np.where(structure, generator.normal(size=(size, size)) * np.sqrt(0.5 + beyond**2), 0.0)
    raw = np.triu(raw) + np.triu(raw, 1).T
    everything = np.ones(size, dtype=bool)
    frame = Frame(np.eye(size), np.eye(size))
    found = between_groupings(raw, 1.0, frame, structure, groupings_of(structure, everything))
    part = beyond**2 / (beyond**2 + 0.5)
    off = found[:members, members:] - part * raw[:members, members:]
    assert np.sqrt(np.mean(off**2)) < 0.25  # noise alone has .7
    np.testing.assert_array_equal(found[members:, members:], raw[members:, members:])
    np.testing.assert_array_equal(np.diag(found), np.diag(raw))
    dense = np.ones_like(structure)
    np.testing.assert_array_equal(between_groupings(raw, 1.0, frame, dense, groupings_of(dense, everything)), raw)


def test_entries_of_a_predictor_that_groups_do_not_differ_in_lose_nearly_all_of_their_noise():
    """They are in proportion to what members tell of themselves; those of a predictor that differs keep their own."""
    generator, members = np.random.default_rng(1), 80
    size, structure = members + 2, of_members(members, 2)
    own = generator.uniform(0.5, 2.0, members)  # what each tells, and the frame makes of it
    frame = Frame(np.diag(1.0 / np.r_[own, 1.0, 1.0]), np.diag(np.r_[own, 1.0, 1.0]))
    truth = 10.0 * np.eye(size)
    truth[:members, -2] = truth[-2, :members] = 3.0 * own
    truth[:members, -1] = truth[-1, :members] = 20.0 * generator.normal(size=members)
    noise = generator.normal(size=(size, size)) * np.sqrt(0.5)
    raw = np.where(structure, truth + np.triu(noise) + np.triu(noise, 1).T, 0.0)
    found = between_groupings(raw, 1.0, frame, structure, groupings_of(structure, np.ones(size, dtype=bool)))
    np.testing.assert_array_equal(found, found.T)
    errors = np.sqrt(np.mean((found - truth)[:members, -2:] ** 2, axis=0))
    assert errors[0] < 0.35
    assert errors[1] == pytest.approx(np.sqrt(0.5), rel=0.2)


def of_levels_and_slopes(groups, crossed, *, by_group):
    """Which entries a curvature can have of levels and slopes of groups, members of another grouping, and a predictor.

    The columns of one matrix come group by group.
    """
    group = np.r_[np.repeat(np.arange(groups), 2) if by_group else np.tile(np.arange(groups), 2)]
    size = 2 * groups + crossed + 1
    structure = np.ones((size, size), dtype=bool)
    structure[: 2 * groups, : 2 * groups] = group[:, None] == group
    others = slice(2 * groups, 2 * groups + crossed)
    structure[others, others] = np.eye(crossed, dtype=bool)
    return structure


@pytest.mark.parametrize("by_group", [True, False])
def test_levels_and_slopes_of_the_same_groups_are_two_groupings(by_group):
    structure = of_levels_and_slopes(5, 3, by_group=by_group)
    found = groupings_of(structure, np.ones(14, dtype=bool))
    slopes = np.arange(1, 10, 2) if by_group else np.arange(5, 10)
    levels = np.setdiff1d(np.arange(10), slopes)
    for members, expected in zip(found, [levels, slopes, [10, 11, 12], [13]], strict=True):
        np.testing.assert_array_equal(members, expected)
    without_slopes = np.isin(np.arange(14), slopes, invert=True)
    assert [each.size for each in groupings_of(structure, without_slopes)] == [5, 3, 1]


def test_entries_between_crossed_groupings_lose_nearly_all_of_their_noise_and_those_of_the_same_groups_keep_it():
    """Of two crossed groupings they are in proportion to both members' own entries; slopes have others than levels."""
    generator, groups, crossed = np.random.default_rng(2), 40, 12
    structure = of_levels_and_slopes(groups, crossed, by_group=False)
    size = len(structure)
    own = np.r_[generator.uniform(0.5, 2.0, size - 1), 1.0]
    frame = Frame(np.diag(1.0 / own), np.diag(own))
    levels, slopes, others = slice(0, groups), slice(groups, 2 * groups), slice(2 * groups, size - 1)
    truth = 100.0 * np.eye(size)
    for rows, columns, each in ((levels, others, 2.0), (slopes, others, 0.5), (levels, slice(size - 1, size), 3.0)):
        truth[rows, columns] = each * np.outer(own[rows], own[columns])
        truth[columns, rows] = truth[rows, columns].T
    noise = generator.normal(size=(size, size)) * np.sqrt(0.5)
    raw = np.where(structure, truth + np.triu(noise) + np.triu(noise, 1).T, 0.0)
    found = between_groupings(raw, 1.0, frame, structure, groupings_of(structure, np.ones(size, dtype=bool)))
    np.testing.assert_array_equal(found, found.T)
    errors = found - truth
    for rows, columns in ((levels, others), (slopes, others), (levels, slice(size - 1, size))):
        assert np.sqrt(np.mean(errors[rows, columns] ** 2)) < 0.35
    np.testing.assert_array_equal(found[levels, slopes], raw[levels, slopes])


@pytest.mark.parametrize("nonnegative", [True, False])
def test_a_lifted_curvature_has_nothing_but_the_floor_along_unidentified_directions(nonnegative):
    """Noise of entries between these and others is gone, and entries that are not there stay so."""
    generator, members = np.random.default_rng(3), 6
    structure, size = of_members(members, 2), members + 2
    direction = np.r_[np.ones(members), -1.0, 0.0]
    rows = np.column_stack(
        [np.eye(members)[generator.integers(0, members, 500)], np.ones(500), generator.normal(size=500)]
    )
    truth = rows.T @ rows
    np.testing.assert_allclose(truth @ direction, 0.0, atol=1e-9)
    noise = 8.0 * generator.normal(size=(size, size)) * np.sqrt(0.5)
    raw = np.where(structure, truth + np.triu(noise) + np.triu(noise, 1).T, 0.0)
    factor = np.linalg.cholesky(truth / 500 + 0.01 * np.eye(size))
    frame = Frame(np.linalg.inv(factor).T, factor)
    along = np.where(along_axes(structure, frame), frame.preconditioner.T @ raw @ frame.preconditioner, 0.0)
    everything = np.ones(size, dtype=bool)
    given = {"floor": 5.0, "nonnegative": nonnegative}
    blind = floored(along, 8.0, frame, everything, **given)
    seeing = floored(along, 8.0, frame, everything, unidentified=direction[:, None], **given)
    across = np.linalg.qr(np.column_stack([direction, np.eye(size)[:, :-1]]))[0][:, 1:]  # at right angles to it
    coupling = [np.abs(across.T @ each.matrix @ direction).max() for each in (blind, seeing)]
    assert coupling[1] < 0.2 * coupling[0]
    np.testing.assert_allclose(frame.back @ seeing.raw @ frame.back.T @ direction, 0.0, atol=0.02 * coupling[0])
    assert not seeing.raw[along == 0.0].any()
    assert np.linalg.eigvalsh(seeing.matrix)[0] > 0.0


def test_a_prior_keeps_noise_from_moving_what_it_tells():
    """Along a direction of which the likelihood knows nothing but noise, the posterior mean is the prior's."""
    information, known = np.diag([100.0, 1e-8]), np.ones(2, dtype=bool)
    noise = np.diag([0.02, 1e12])
    belief = Belief(np.zeros(2), information, noise, np.zeros((2, 2)), known)
    assert belief.squared_noise == pytest.approx(2.0 + 1e4)
    assert belief.squared_noise_given(np.zeros((2, 2))) == pytest.approx(belief.squared_noise)
    assert belief.squared_noise_given(np.eye(2)) == pytest.approx(2.0 / (1.0 + 0.03) ** 2, rel=1e-6)
