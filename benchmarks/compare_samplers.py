"""The figures of the README and of docs/control_variates.md: samplers at equal epsilon, and what clip bounds cost.

    python benchmarks/compare_samplers.py samplers     five runs each, some minutes
    python benchmarks/compare_samplers.py clip         exact, seconds

The survey of the demonstration is public, so that distances from the non-private posterior can be computed.
`DPSurrogateHMC` is given a budget and nothing else. The others get what nobody could know, the survey's own information
as metric, and settings that were tried on simulated responses (`compare_samplers.py choose`): it favours them.
"""

import logging
import sys
import warnings

import numpy as np
import pymc as pm

import pymc_dp as dp
from pymc_dp.__main__ import DELTA, survey, survey_model
from pymc_dp.diagnostics import quality

RUNS = 5
FEATURES, VISITED = survey()
#: About the information of a logistic regression.
INFORMATION = 0.2 * FEATURES.T @ FEATURES

#: Draws and tuning iterations of each chain, the sampler and its settings. Bounds of 3 cut few scores: with 5.4, which
#: cuts none, fewer proposals are accepted.
SAMPLERS = {
    "DPHMC": (
        10,
        30,
        dp.DPHMC,
        {"clip_gradient": 3.0, "clip_log_ratio": 3.0, "step_size": 0.2, "n_leapfrog": 2, "mass_matrix": INFORMATION},
    ),
    "DPPenalty": (
        100,
        400,
        dp.DPPenalty,
        {
            "clip_log_ratio": 3.0,
            "proposal": "one-component-guided-walk",
            "proposal_scale": 9.0 * np.linalg.inv(INFORMATION),
        },
    ),
    "DPSurrogateHMC": (200, 0, dp.DPSurrogateHMC, {}),
}


def laplace(x, y, weights=1.0):
    """Return the posterior mode of the (weighted) rows and the covariance there, by Newton's method."""
    theta = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-x @ theta))
        curvature = (x * (weights * p * (1.0 - p))[:, None]).T @ x + np.eye(theta.size)
        theta = theta + np.linalg.solve(curvature, x.T @ (weights * (y - p)) - theta)
    return theta, np.linalg.inv(curvature)


def run(name, table, epsilon, **shared):
    """Return error of the mean (root mean square, in posterior sd), acceptance, R-hat and effective draws."""
    draws, tune, sampler, settings = SAMPLERS[name]
    with survey_model(*table):
        step = sampler(budget=dp.PrivacyBudget(epsilon, DELTA), unit="person_year", **settings, **shared)
        tree = pm.sample(
            draws=draws, tune=tune, chains=4, cores=1, step=step, progressbar=False, compute_convergence_checks=False
        )
    mode, covariance = laplace(*table)
    error = (tree["posterior"]["beta"].values.reshape(-1, mode.size).mean(axis=0) - mode) / np.sqrt(np.diag(covariance))
    found = quality(tree)
    return np.sqrt((error**2).mean()), found.acceptance, found.r_hat, found.effective_draws


def compare(tables, epsilons, **shared):
    """Print a line for every run and the medians over runs."""
    print(f"{'sampler':<16}{'epsilon':>8}{'run':>4}{'error of the mean':>19}{'accepted':>10}{'R-hat':>8}{'ESS':>7}")
    for name in SAMPLERS:
        for epsilon in epsilons:
            found = [run(name, table, epsilon, **shared) for table in tables]
            labelled = [*enumerate(found, start=1), ("all", np.nanmedian(found, axis=0))]
            for label, (error, accepted, r_hat, effective) in labelled:
                chains = f"{accepted:>10.0%}{r_hat:>8.3g}{effective:>7.0f}"
                print(f"{name:<16}{epsilon:>8g}{label!s:>4}{error:>16.2f} sd{chains}", flush=True)


def simulated(seed):
    """Return the survey's features with simulated responses."""
    generator = np.random.default_rng(seed)
    coefficients = 0.4 * generator.normal(size=FEATURES.shape[1])
    return FEATURES, generator.binomial(1, 1.0 / (1.0 + np.exp(-FEATURES @ coefficients)))


def kept(vectors, bound):
    """Return what part of each row is left when it is clipped to the bound."""
    return np.minimum(1.0, bound / np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(float).tiny))


def zero_of_clipped(mode, to_frame, bound, *, centred):
    """Return where clipped scores and the prior's slope add up to nothing, and the inverse of their derivative.

    As the sampler does it: with `centred`, what clipping takes off over both responses is added, and all is clipped.
    """
    theta = mode
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-FEATURES @ theta))
        scores = FEATURES * (VISITED - p)[:, None]
        parts = kept(scores @ to_frame, bound)
        curvature = (FEATURES * (parts * p * (1.0 - p))[:, None]).T @ FEATURES + np.eye(theta.size)
        found = scores * parts[:, None]
        if centred:
            curvature = np.eye(theta.size)
            for probability, slope in ((p, 1.0 - p), (1.0 - p, -p)):
                others = FEATURES * slope[:, None]
                part = kept(others @ to_frame, bound)
                found = found + others * (probability * (1.0 - part))[:, None]
                curvature += (FEATURES * (probability * part * slope**2)[:, None]).T @ FEATURES
            found *= kept(found @ to_frame, bound)[:, None]
        theta = theta + np.linalg.solve(curvature, found.sum(axis=0) - theta)
    return theta, np.linalg.inv(curvature)


def score_multiplier(epsilon):
    """Return the planned noise of the score at the centre, and of the two scores before it, as one release."""
    budget = dp.PrivacyBudget(epsilon, DELTA)
    with survey_model(FEATURES, VISITED):
        step = dp.DPSurrogateHMC(budget=budget)
    (of_step,) = budget.plan(step, draws=200, tune=0, chains=4).steps
    pooled = {"approach": 2, "centre": 1, "score": 1}
    return sum(count / of_step.noise_multipliers[kind] ** 2 for kind, count in pooled.items()) ** -0.5


def clip():
    """Print the bias of clipped scores, plain and centred, and the shift by noise, for quantiles of norms as bounds."""
    mode, covariance = laplace(FEATURES, VISITED)
    std = np.sqrt(np.diag(covariance))
    p = 1.0 / (1.0 + np.exp(-FEATURES @ mode))
    back = np.linalg.cholesky((FEATURES * (p * (1.0 - p))[:, None]).T @ FEATURES / len(p))
    to_frame = np.linalg.inv(back).T
    lengths = np.linalg.norm((FEATURES * (VISITED - p)[:, None]) @ to_frame, axis=1)
    multipliers = [score_multiplier(epsilon) for epsilon in (4.0, 1.0)]
    print(f"{'kept':>8}{'bound':>8}{'plain bias':>12}{'centred bias':>14}{'forced at 4':>13}{'at 1':>8}")
    for part in (0.9, 0.98, 0.995, 0.999, 1.0):
        bound = float(np.quantile(lengths, part))
        biases, forced = [], []
        for centred in (False, True):
            zero, inverse = zero_of_clipped(mode, to_frame, bound, centred=centred)
            biases.append(np.sqrt((((zero - mode) / std) ** 2).mean()))
        for multiplier in multipliers:
            shift = inverse @ back * (2.0 * multiplier * bound)
            forced.append(np.sqrt(((shift / std[:, None]) ** 2).sum(axis=1).mean()))
        print(f"{part:>8g}{bound:>8.2f}{biases[0]:>12.2f}{biases[1]:>14.2f}{forced[0]:>13.2f}{forced[1]:>8.2f}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "samplers":
        compare([(FEATURES, VISITED)] * RUNS, (4.0, 2.0))
    elif what == "choose":
        compare([simulated(seed) for seed in range(1, RUNS + 1)], (4.0,), insecure_seed=1)
    elif what == "clip":
        clip()
    else:
        sys.exit(__doc__)
