"""Free HMC draws from strongly bent densities, reversibly, and keeps out of where it is not to go."""

from copy import copy
from itertools import combinations

import arviz as az
import numpy as np
import pytest
from scipy import special, stats

from pymc_dp.model.parameters import NO_BOUNDS
from pymc_dp.steps.prelude.free_hmc import FreeHMC

pytestmark = pytest.mark.production

#: Of a test, by the union bound over its statistics, if these were exactly normal.
FALSE_ALARM = 1e-5


class Banana:
    """Standard normal in (theta_1, (theta_2 + bend (theta_1² - 1)) / width): its arms are long and thin."""

    bend, width = 1.0, 0.06
    bounds = NO_BOUNDS

    def log_density(self, theta):
        return -0.5 * theta[0] ** 2 - 0.5 * self._across(theta) ** 2

    def gradient(self, theta):
        across = self._across(theta) / self.width
        return np.array([-theta[0] - 2.0 * self.bend * theta[0] * across, -across])

    def _across(self, theta):
        return (theta[1] + self.bend * (theta[0] ** 2 - 1.0)) / self.width

    def exact(self, draws, rng):
        straight = rng.standard_normal((draws, 2))
        return np.column_stack([straight[:, 0], self.width * straight[:, 1] - self.bend * (straight[:, 0] ** 2 - 1.0)])


class WalledBanana(Banana):
    """All of it that lies right of a wall: the end of one arm is not to be entered."""

    wall = -2.0

    def log_density(self, theta):
        return super().log_density(theta) if theta[0] > self.wall else -np.inf

    def exact(self, draws, rng):
        both = super().exact(2 * draws, rng)
        return both[both[:, 0] > self.wall][:draws]


class BoundedBanana(Banana):
    """The part of a shorter and wider one between bounds, one of which is across an arm."""

    bend, width = 0.5, 0.4
    bounds = np.array([-1.2, -np.inf]), np.array([np.inf, 0.9])

    def exact(self, draws, rng):
        both = super().exact(4 * draws, rng)
        return both[np.all((both >= self.bounds[0]) & (both <= self.bounds[1]), axis=1)][:draws]


def statistics_of(theta):
    """Return what tells bent densities apart, shape (draws, statistics)."""
    first, second = np.atleast_2d(theta).T
    return np.column_stack([first, first**2, second, second**2, first * second, first > 1.0, np.abs(first) > 2.0])


def limit(n_statistics):
    return stats.norm.isf(FALSE_ALARM / (2.0 * n_statistics))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Banana, marks=pytest.mark.slow),
        pytest.param(WalledBanana, marks=pytest.mark.nightly),
        pytest.param(BoundedBanana, marks=pytest.mark.slow),
    ],
    ids=["banana", "walled", "bounded"],
)
def target(request):
    return request.param()


#: A single pilot is short: from one to the next, and from one processor to the next, what it has seen differs.
PILOTS = 8


@pytest.fixture(scope="module")
def kernels(target):
    """Kernels that were adapted in pilots of their own."""
    start, curvature = np.array([0.5, 0.75]), np.diag([1.0, 300.0])
    return [FreeHMC(target, start, curvature, np.random.default_rng(seed), target.bounds) for seed in range(PILOTS)]


@pytest.fixture(scope="module")
def kernel(kernels):
    return kernels[0]


@pytest.mark.slow
def test_a_strongly_bent_density_is_recovered(target, kernels):
    rng = np.random.default_rng(1)
    chains = []
    for kernel in kernels:
        draws = [kernel.theta]
        for _ in range(500):
            draws.append(kernel.run(draws[-1], kernel.trajectories_apart, rng))
        chains.append(statistics_of(np.array(draws)))
    exact = statistics_of(target.exact(10**6, rng))
    visited = np.array(chains)  # chain, draw, statistic
    effective = np.array([float(az.ess(values, method="mean")) for values in np.moveaxis(visited, 2, 0)])
    assert stats.gmean(effective) > 0.2 * visited.shape[0] * visited.shape[1]
    # For each chain 50, so that the figure itself is good (Vehtari, Gelman, Simpson, Carpenter and Bürkner 2021). From
    # one processor to the next pilots differ, and the least part of draws that is effective is between .13 and .4.
    assert np.all(effective > 50.0 * PILOTS)
    errors = exact.std(axis=0) / np.sqrt(effective)
    assert np.all(np.abs(visited.mean(axis=(0, 1)) - exact.mean(axis=0)) < limit(len(errors)) * errors)


@pytest.mark.slow
def test_the_pilots_have_seen_the_whole_density(target, kernels):
    """The spread of one pilot's variance is about a factor of 1.5, so that of eight together about 1.15."""
    exact = np.diag(np.cov(target.exact(10**6, np.random.default_rng(2)).T))
    ratios = np.array([np.diag(kernel.covariance) / exact for kernel in kernels])
    assert np.all(np.abs(np.log(ratios).mean(axis=0)) < 4.0 * np.log(1.5) / np.sqrt(PILOTS))


@pytest.mark.slow
def test_the_kernel_is_reversible(target, kernel):
    """From exact draws x to y: the joint law of (x, y) is that of (y, x), so E f(x) g(y) = E g(x) f(y)."""
    rng = np.random.default_rng(3)
    coarse = copy(kernel)
    coarse._leapfrogs = 16  # the end of a long trajectory has forgotten its start, and is symmetric whatever is wrong
    coarse.step_size = 0.12  # many ends are rejected
    starts = target.exact(4000, rng)
    ends = np.array([coarse.run(start, 1, rng) for start in starts])
    constant = np.ones((len(starts), 1))
    before, after = (np.hstack([constant, statistics_of(points)]) for points in (starts, ends))
    pairs = list(combinations(range(before.shape[1]), 2))
    differences = np.array([before[:, i] * after[:, j] - before[:, j] * after[:, i] for i, j in pairs])
    errors = differences.std(axis=1) / np.sqrt(len(starts))
    assert np.all(np.abs(differences.mean(axis=1)) < limit(len(pairs)) * errors)


@pytest.mark.parametrize("seed", range(20))
def test_a_reflected_move_is_undone_by_the_opposite_velocity_which_has_the_same_length(seed):
    rng = np.random.default_rng(seed)
    kernel = object.__new__(FreeHMC)
    kernel._bounds = np.array([-1.0, -np.inf, 0.0]), np.array([1.0, 0.5, np.inf])
    kernel._factor = np.linalg.cholesky(np.cov(rng.normal(size=(3, 9))))
    theta, velocity = np.array([0.3, -0.4, 0.6]), 3.0 * rng.normal(size=3)
    end, moved, kick = kernel._reflected(theta, theta, velocity, velocity)
    assert np.all((end >= kernel._bounds[0]) & (end <= kernel._bounds[1]))
    assert kick @ kick == pytest.approx(velocity @ velocity)
    np.testing.assert_allclose(theta + kernel._factor @ moved, end)
    np.testing.assert_allclose(kernel._reflected(end, end, -kick, -kick)[0], theta, atol=1e-9)


class Quartic:
    """Proportional to exp(-x**4), whose moments are ratios of gamma functions."""

    def log_density(self, theta):
        return -float(theta[0] ** 4)

    def gradient(self, theta):
        return -4.0 * theta**3


@pytest.mark.slow
def test_coarse_trajectories_leave_a_quartic_density_invariant():
    """Steps so long that many ends are in doubt: what is wrong with the test of ends shows in the moments."""
    rng = np.random.default_rng(5)
    kernel = copy(FreeHMC(Quartic(), np.zeros(1), np.eye(1), rng))
    kernel._leapfrogs, kernel.step_size = 3, 2.0
    starts = np.sign(rng.uniform(-1.0, 1.0, 20_000)) * rng.gamma(0.25, size=20_000) ** 0.25
    ends = np.array([kernel.run(np.array([start]), 4, rng)[0] for start in starts])
    accepted = np.array([kernel._trajectory(np.array([start]), rng)[1] for start in starts[:2000]])
    assert np.mean((accepted > 0.05) & (accepted < 0.95)) > 0.1  # many ends are in doubt
    moments = {power: special.gamma((power + 1) / 4) / special.gamma(0.25) for power in (2, 4, 8)}
    for power, exact in moments.items():
        values = ends**power
        assert abs(values.mean() - exact) < limit(len(moments)) * values.std() / np.sqrt(len(values))


def test_a_draw_is_another_one(target, kernel):
    """Else the test of reversibility would hold of a kernel that stays where it is."""
    rng = np.random.default_rng(4)
    starts = target.exact(300, rng)
    moved = [np.any(kernel.run(start, 1, rng) != start) for start in starts]
    assert np.mean(moved) > 0.8


def test_a_normal_density_takes_short_trajectories():
    class Normal:
        gradients = 0

        def log_density(self, theta):
            return -0.5 * float(theta @ theta)

        def gradient(self, theta):
            self.gradients += 1
            return -theta

    target = Normal()
    kernel = FreeHMC(target, np.zeros(5), np.eye(5), np.random.default_rng(0))
    target.gradients = 0
    kernel.run(kernel.theta, 20 * kernel.trajectories_apart, np.random.default_rng(1))
    assert target.gradients / 20 < 150
