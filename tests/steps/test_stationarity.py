"""From exact draws of the posterior, many noisy iterations lead to exact draws again; and mistakes are seen."""

import numpy as np
import pymc as pm
import pytest
from contributed import DPCrankNicolson
from fakes import COVARIANCE, MEAN, PRECISION, FlatPrior, NormalCurator, OneCurator, started
from scipy import stats

import pymc_dp as dp
from pymc_dp.release import Release
from pymc_dp.steps import proposals
from pymc_dp.steps.access import Authorisation
from pymc_dp.steps.transition import Transition, untested

#: Wrong once in 10,000 runs of each test.
FALSE_ALARM = 1e-4


class StandardNormalPrior:
    """Of which the curator's normal is the posterior, once divided out: for a sampler whose proposal uses the prior."""

    def log_density(self, theta):
        return -0.5 * theta @ theta

    def gradient(self, theta):
        return -theta


class CuratorUnderAPrior(NormalCurator):
    """The likelihood that makes the normal a posterior under a standard normal prior."""

    def log_density(self, theta):
        return super().log_density(theta) + 0.5 * theta @ theta


def smallest_p_value(states):
    """Test that independent states are standard normal: means, squares, their sum and the product (Bonferroni)."""
    n = len(states)
    p_values = [2 * stats.norm.sf(abs(column.mean()) * np.sqrt(n)) for column in states.T]
    for columns in ([0], [1], [0, 1]):
        squares, freedom = np.sum(states[:, columns] ** 2), n * len(columns)
        p_values.append(2 * min(stats.chi2.sf(squares, freedom), stats.chi2.cdf(squares, freedom)))
    p_values.append(2 * stats.norm.sf(abs(np.sum(states[:, 0] * states[:, 1])) / np.sqrt(n)))
    return len(p_values) * min(p_values)


def exact_draws(replicates, seed):
    return np.random.default_rng(seed).multivariate_normal(MEAN, COVARIANCE, size=replicates)


def whitened(ends):
    return np.linalg.solve(np.linalg.cholesky(COVARIANCE), (ends - MEAN).T).T


def one_step(
    step_class, replicates, steps, *, ratio_noise, seed=0, curator_class=NormalCurator, prior=None, **settings
):
    """Return where `steps` iterations lead from exact draws, and the acceptance."""
    curator = curator_class(seed, 3.0, ratio_noise)
    step = started(step_class, curator, seed=seed + 1, **settings)
    step._authorisation = Authorisation(
        OneCurator(curator), prior or FlatPrior(), {"gradient": 1.0, "log_ratio": 1.0}, 1.0
    )
    step.chain.prior = prior or FlatPrior()
    ends, accepted = [], 0
    for start in exact_draws(replicates, seed + 2):
        theta = start
        step.start()
        for _ in range(steps):
            transition = step.transition(theta)
            theta = transition.theta
            accepted += transition.stats["accepted"]
        ends.append(theta)
    return whitened(np.array(ends)), accepted / (replicates * steps)


PENALTY = {"clip_log_ratio": 1.0, "proposal_scale": 0.6}
NAMES = sorted(proposals.PROPOSALS)


@pytest.mark.parametrize(
    "proposal",
    [
        each if each in ("gaussian", "one-component-guided-walk") else pytest.param(each, marks=pytest.mark.slow)
        for each in NAMES
    ],
)
def test_the_posterior_is_stationary_under_the_penalty_test(proposal):
    ends, acceptance = one_step(dp.DPPenalty, 2500, 8, ratio_noise=1.5, proposal=proposal, **PENALTY)
    assert smallest_p_value(ends) > FALSE_ALARM
    assert 0.2 < acceptance < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("proposal", NAMES)
def test_a_covariance_shapes_the_moves_and_changes_nothing_else(proposal):
    settings = {"clip_log_ratio": 1.0, "proposal_scale": COVARIANCE, "proposal": proposal}
    ends, _ = one_step(dp.DPPenalty, 2500, 8, ratio_noise=1.5, seed=5, **settings)
    assert smallest_p_value(ends) > FALSE_ALARM


@pytest.mark.slow
def test_the_posterior_is_stationary_under_mala():
    settings = {"clip_gradient": 1.0, "clip_log_ratio": 1.0, "step_size": 0.5}
    ends, acceptance = one_step(dp.DPMALA, 2500, 8, ratio_noise=1.0, **settings)
    assert smallest_p_value(ends) > FALSE_ALARM
    assert 0.2 < acceptance < 0.8


@pytest.mark.slow
def test_the_posterior_is_stationary_under_the_contributed_sampler():
    ends, acceptance = one_step(
        DPCrankNicolson,
        2500,
        8,
        ratio_noise=1.0,
        curator_class=CuratorUnderAPrior,
        prior=StandardNormalPrior(),
        clip_log_ratio=1.0,
        beta=0.5,
    )
    assert smallest_p_value(ends) > FALSE_ALARM
    assert 0.2 < acceptance < 0.85


def mixed_chain(replicates, steps, *, seed=0):
    """Return where two steps in turn lead, one for each coordinate: the first by its gradient, the second walking."""
    curator = NormalCurator(seed, 1.0, 0.5)
    with pm.Model():
        pm.Normal("y", pm.Normal("a") + pm.Normal("b"), 1.0, observed=np.zeros(3))
        shared = {"budget": dp.PrivacyBudget(1.0, 1e-6), "clip_diagnostics": None, "clip_log_ratio": 1.0}
        both = [
            dp.DPHMC(["a"], clip_gradient=1.0, step_size=0.9, n_leapfrog=1, **shared),
            dp.DPPenalty(["b"], proposal_scale=0.8, **shared),
        ]
    multipliers = {"gradient": 1.0, "log_ratio": 1.0}
    for place, step in enumerate(both):
        step.authorise(Authorisation(OneCurator(curator), FlatPrior(), multipliers, 1.0))
        step.setup_chain(np.random.default_rng([seed, place]), 0, 10**7)
    ends = []
    for start in exact_draws(replicates, seed + 2):
        point = dict(zip("ab", start, strict=True))
        for step in both:
            step.start()
        for _ in range(steps):
            for step in both:
                before, made = [point["a"], point["b"]], len(curator.made)
                point, _ = step.step(point)
                # A gradient that was kept would belong to where the point was before the other step moved it.
                assert np.array_equal(curator.made[made].where[0], before)
        ends.append([point["a"], point["b"]])
    return whitened(np.array(ends, dtype=float))


@pytest.mark.slow
def test_two_steps_on_one_model_leave_the_posterior_as_it_is():
    assert smallest_p_value(mixed_chain(1500, 5)) > FALSE_ALARM


# Mistakes, each of which the tests above have to see ---------------------------------------------------------


class NoPenalty(dp.DPPenalty):
    """Accepts as if the noisy log-ratio were exact."""

    def release_log_ratio(self, theta, theta_new, bound):
        release = super().release_log_ratio(theta, theta_new, bound)
        return Release(release.kind, release.value + 0.5 * release.noise_std**2, release.noise_std, release.where)


class HalvedNoise(dp.DPPenalty):
    """Believes its noise to be half of what it is."""

    def release_log_ratio(self, theta, theta_new, bound):
        release = super().release_log_ratio(theta, theta_new, bound)
        return Release(release.kind, release.value, 0.5 * release.noise_std, release.where)


class NeverTurning(proposals.GuidedWalkProposal):
    """Goes on in the same direction after a rejection."""

    def decided(self, *, accepted):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [NoPenalty, pytest.param(HalvedNoise, marks=pytest.mark.nightly)])
def test_a_wrong_test_is_seen(mutant):
    ends, _ = one_step(mutant, 10_000, 8, ratio_noise=1.5, **PENALTY)
    assert smallest_p_value(ends) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [NeverTurning])
def test_a_walk_that_never_turns_is_seen(mutant):
    ends, _ = one_step(dp.DPPenalty, 10_000, 8, ratio_noise=1.5, clip_log_ratio=1.0, proposal=mutant(0.6))
    assert smallest_p_value(ends) < FALSE_ALARM


# Acceptance against theory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 4.0])
def test_acceptance_falls_with_the_noise_as_theory_says(sigma):
    """Where the exact log-ratio is 0, a test with noise sigma accepts with probability 2 Phi(-sigma / 2)."""
    curator = NormalCurator(0, 1.0, 1.0)
    curator.log_density = lambda theta: 0.0
    step = started(dp.DPPenalty, curator, clip_log_ratio=1.0, proposal_scale=1.0)
    step.proposal.propose = lambda theta: (theta + np.array([sigma, 0.0]), 0.0)
    trials = 4000
    accepted = sum(step.transition(MEAN).stats["accepted"] for _ in range(trials))
    expected = 2 * stats.norm.cdf(-sigma / 2)
    assert stats.binomtest(accepted, trials, expected).pvalue > FALSE_ALARM


# Proposals ---------------------------------------------------------------------------------------------------


def test_a_guided_walk_keeps_its_direction_until_it_is_rejected():
    walk = proposals.GuidedWalkProposal([1.0, 2.0])
    walk.start(np.random.default_rng(0), 2)
    signs = [np.sign(walk.propose(np.zeros(2))[0]) for _ in range(5)]
    assert all(np.array_equal(signs[0], sign) for sign in signs)
    walk.decided(accepted=False)
    assert np.array_equal(np.sign(walk.propose(np.zeros(2))[0]), -signs[0])
    walk.decided(accepted=True)
    assert np.array_equal(np.sign(walk.propose(np.zeros(2))[0]), -signs[0])


@pytest.mark.parametrize("kind", [proposals.OneComponentProposal, proposals.OneComponentGuidedWalkProposal])
def test_one_component_moves_at_a_time(kind):
    walk = kind(0.5)
    walk.start(np.random.default_rng(0), 3)
    for _ in range(20):
        assert np.count_nonzero(walk.propose(np.zeros(3))[0]) == 1


def test_moves_have_the_covariance_asked_for():
    walk = proposals.GaussianProposal(COVARIANCE)
    walk.start(np.random.default_rng(0), 2)
    moves = np.array([walk.propose(np.zeros(2))[0] for _ in range(20_000)])
    assert np.cov(moves.T) == pytest.approx(COVARIANCE, abs=0.03)


def test_one_component_guided_walks_turn_that_component_only():
    walk = proposals.OneComponentGuidedWalkProposal(1.0)
    walk.start(np.random.default_rng(0), 3)
    before = walk._direction.copy()
    moved = walk.propose(np.zeros(3))[0] != 0
    walk.decided(accepted=False)
    assert np.array_equal(walk._direction, np.where(moved, -before, before))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proposal": "random"}, "proposal must be one of"),
        ({"proposal_scale": None}, "proposal_scale is required"),
        ({"proposal_scale": -1.0}, "above zero"),
        ({"proposal_scale": [1.0, np.nan]}, "finite"),
        ({"proposal_scale": "wide"}, "number, a vector or a matrix"),
        ({"proposal_scale": np.ones(3)}, "for 3 parameters"),
        ({"proposal_scale": np.ones((2, 3))}, "square matrix"),
        ({"proposal_scale": np.array([[1.0, 2.0], [2.0, 1.0]])}, "positive definite"),
        ({"proposal_scale": np.array([[1.0, 0.5], [0.0, 1.0]])}, "symmetric"),
        ({"proposal": proposals.GaussianProposal(1.0)}, "brings its own"),
        ({"clip_log_ratio": None}, "clip_log_ratio is required"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(dp.InvalidArgument, match=message):
        started(dp.DPPenalty, NormalCurator(0, 1.0, 1.0), prelude=None, **(PENALTY | settings))


def test_mala_makes_one_leapfrog_step():
    with pytest.raises(dp.InvalidArgument, match="DPHMC for n_leapfrog"):
        started(
            dp.DPMALA, NormalCurator(0, 1.0, 1.0), clip_gradient=1.0, clip_log_ratio=1.0, step_size=1.0, n_leapfrog=2
        )
    step = started(dp.DPMALA, NormalCurator(0, 0.0, 0.0), clip_gradient=1.0, clip_log_ratio=1.0, step_size=0.5)
    step._kinetic_energy.random = lambda: np.array([1.0, -2.0])
    theta = np.zeros(2)
    expected = theta + 0.5 * 0.5**2 * (PRECISION @ MEAN) + 0.5 * np.array([1.0, -2.0])
    target = step.target
    new, *_ = step._leapfrog(target, theta, np.array([1.0, -2.0]), target.gradient(theta), 0.5)
    assert new == pytest.approx(expected)


def test_a_transition_without_its_statistics_is_refused():
    """PyMC would publish zeros in their place."""
    given = untested(accepted=True)
    assert Transition(np.zeros(2), given).stats is given
    del given["noise_std"]
    with pytest.raises(dp.InvalidArgument, match="noise_std, too"):
        Transition(np.zeros(2), given)
