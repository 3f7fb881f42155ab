"""A curator without data: exact log-densities of a normal, with continuous Gaussian noise of any size."""

import numpy as np
import pymc as pm

import pymc_dp as dp
from pymc_dp.release import Release
from pymc_dp.release.barker_correction import acceptance
from pymc_dp.release.queries import BarkerDecision, GradientSum, LogRatioSum, VariancePenalisedLogRatio
from pymc_dp.steps.access import Authorisation

PRECISION = np.array([[4.0, 1.5], [1.5, 2.0]])
MEAN = np.array([0.5, -1.0])
COVARIANCE = np.linalg.inv(PRECISION)


class NormalCurator:
    """Releases of a normal log-likelihood; noise_multiplier is taken as the standard deviation itself."""

    def __init__(self, seed, gradient_noise, ratio_noise):
        self.generator = np.random.default_rng(seed)
        self.gradient_noise = gradient_noise
        self.ratio_noise = ratio_noise
        self.made = []

    def log_density(self, theta):
        return -0.5 * (theta - MEAN) @ PRECISION @ (theta - MEAN)

    def release(self, query, noise_multiplier=0.0):
        match query:
            case GradientSum(batches=None):
                return self.gradient(query.theta, query.clip_bound, noise_multiplier, query.blocks)
            case GradientSum():
                given = query.theta, query.clip_bound, noise_multiplier, query.batches
                return self.batch_gradient(*given, counted=query.counted, blocks=query.blocks)
            case LogRatioSum():
                return self.log_ratio(query.theta, query.theta_new, query.clip_bound, noise_multiplier)
            case VariancePenalisedLogRatio():
                given = query.theta, query.theta_new, query.clip_bound, noise_multiplier, query.batches, query.tempering
                return self.batch_log_ratio(*given, counted=query.counted)
            case BarkerDecision():
                given = query.theta, query.theta_new, query.log_free_ratio, query.batches, query.tempering
                return self.barker_decision(*given)
        raise AssertionError("not planned")

    def gradient(self, theta, bound, noise_multiplier, blocks=None):
        noise = self.generator.normal(scale=self.gradient_noise, size=2)
        value = (-PRECISION @ (theta - MEAN) + noise)[list(blocks) if blocks is not None else slice(None)]
        release = Release("gradient", value, self.gradient_noise, (theta.copy(),))
        self.made.append(release)
        return release

    def batch_gradient(self, theta, bound, noise_multiplier, batches, *, counted, blocks=None):
        """The sum over a batch is taken to be its expectation, with `gradient_noise` on the scale of the whole."""
        noise_std = noise_multiplier * batches.sensitivity_factor * bound
        own = self.gradient_noise / batches.scale
        noise = noise_std * self.generator.normal(size=2) + own * self.generator.normal(size=2)
        value = -PRECISION @ (theta - MEAN) / batches.scale + noise
        release = Release("gradient", value, noise_std, (theta.copy(),))
        self.made.append(release)
        return release

    def _batch_estimate(self, theta, theta_new):
        """A tempered log-ratio with the normal error of a batch, of known variance."""
        variance = min(1.0, 0.5 * np.sum((theta_new - theta) ** 2))
        ratio = self.log_density(theta_new) - self.log_density(theta)
        return ratio + np.sqrt(variance) * self.generator.normal(), variance

    def batch_log_ratio(self, theta, theta_new, bound, noise_multiplier, batches, tempering, *, counted):
        ratio, variance = self._batch_estimate(theta, theta_new)
        noise_std = self.ratio_noise * bound
        value = ratio - variance / 2 + noise_std * self.generator.normal(size=1)
        return Release("log_ratio", value, noise_std, (theta.copy(), theta_new.copy()))

    def barker_decision(self, theta, theta_new, log_free_ratio, batches, tempering):
        ratio, variance = self._batch_estimate(theta, theta_new)
        unlikely, probability = acceptance(ratio + log_free_ratio, variance)
        accepted = (self.generator.random() < probability) == unlikely
        return Release("decision", np.array([float(accepted)]), np.nan, (theta.copy(), theta_new.copy()))

    def log_ratio(self, theta, theta_new, bound, noise_multiplier):
        noise_std = self.ratio_noise * bound
        value = self.log_density(theta_new) - self.log_density(theta) + noise_std * self.generator.normal(size=1)
        release = Release("log_ratio", value, noise_std, (theta.copy(), theta_new.copy()))
        self.made.append(release)
        return release


class OneCurator:
    def __init__(self, curator):
        self.curator = curator

    def open(self, key):
        return self.curator


class FlatPrior:
    def log_density(self, theta):
        return 0.0

    def gradient(self, theta):
        return np.zeros_like(theta)

    def hessian(self, theta):
        return np.zeros((theta.size, theta.size))


def started(step_class, curator, *, tune=0, draws=10**6, seed=0, **settings):
    """Return a step that samples the normal above through `curator`."""
    with pm.Model():
        mu = pm.Normal("mu", shape=2)
        pm.Normal("y", mu, 1.0, observed=np.zeros((3, 2)))
        step = step_class(budget=dp.PrivacyBudget(1.0, 1e-6), clip_diagnostics=None, **settings)
    step.authorise(Authorisation(OneCurator(curator), FlatPrior(), {"gradient": 1.0, "log_ratio": 1.0}, 1.0))
    step.setup_chain(np.random.default_rng(seed), tune, draws)
    return step
