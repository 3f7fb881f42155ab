"""The figures of the README and of docs/control_variates.md: samplers at equal epsilon, and what clip bounds cost.

    python tests/benchmarks/compare_samplers.py samplers     five runs each, some minutes
    python tests/benchmarks/compare_samplers.py clip         exact, seconds

The survey of the demonstration is public, so that distances from the non-private posterior can be computed.
Settings were chosen on simulated tables (`python tests/benchmarks/compare_samplers.py choose`).
"""

import logging
import sys
import warnings

import numpy as np
import pymc as pm
from pymc_dp.steps.synthetic import scale_of

import pymc_dp as dp
from pymc_dp.__main__ import DELTA, simulated_table, survey, survey_model
from pymc_dp.diagnostics import quality

RUNS = 5
#: Scores whose noise makes up that of the surrogate.
POOLED = ("centre", "score")
SYNTHETIC = simulated_table(99)
#: About the information of a logistic regression.
INFORMATION = 0.2 * SYNTHETIC[0].T @ SYNTHETIC[0]

#: Draws and tuning iterations of each chain, the sampler and its settings. 6 hardly ever cuts a score.
SAMPLERS = {
    "DPHMC": (
        10,
        30,
        dp.DPHMC,
        {"clip_gradient": 6.0, "clip_log_ratio": 6.0, "step_size": 0.2, "n_leapfrog": 2, "mass_matrix": INFORMATION},
    ),
    "DPPenalty": (
        100,
        400,
        dp.DPPenalty,
        {
            "clip_log_ratio": 6.0,
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
    if name == "DPSurrogateHMC":
        shared = {"synthetic": survey_model(*SYNTHETIC)} | shared
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


def clip():
    """Print bias of weights and forced shift, for quantiles of the synthetic scores as bounds."""
    x, y = SYNTHETIC
    mode, _ = laplace(x, y)
    synthetic_scores = x * (y - 1.0 / (1.0 + np.exp(-x @ mode)))[:, None]

    class SyntheticScores:
        def scores(self, theta):
            return synthetic_scores

    scale = scale_of(SyntheticScores(), mode, clip_quantile=1.0, with_curvature=False)
    of_synthetic = np.linalg.norm(synthetic_scores @ scale.preconditioner, axis=1)
    x, y = survey()
    mode, covariance = laplace(x, y)
    std = np.sqrt(np.diag(covariance))
    lengths = np.linalg.norm((x * (y - 1.0 / (1.0 + np.exp(-x @ mode)))[:, None]) @ scale.preconditioner, axis=1)
    print(f"{'kept':>8}{'bound':>8}{'weighted down':>15}{'bias':>8}{'forced at 4':>13}{'at 2':>8}")
    for kept in (0.99, 0.998, 0.9998, 1.0):
        bound = np.quantile(of_synthetic, kept)
        weights = np.minimum(1.0, bound / lengths)
        bias = np.sqrt((((laplace(x, y, weights)[0] - mode) / std) ** 2).mean())
        forced = []
        for epsilon in (4.0, 2.0):
            budget, synthetic = dp.PrivacyBudget(epsilon, DELTA), survey_model(*SYNTHETIC)
            with survey_model(*SYNTHETIC):
                step = dp.DPSurrogateHMC(budget=budget, synthetic=synthetic)
            planned = budget.plan(step, draws=200, tune=0, chains=4)
            # The last scores on the way are pooled with the one at the centre.
            (of_step,) = planned.steps
            precision = sum(of_step.allowance_once[kind] / of_step.noise_multipliers[kind] ** 2 for kind in POOLED)
            multiplier = precision**-0.5
            shift = covariance @ scale.back * (2.0 * multiplier * bound)
            forced.append(np.sqrt(((shift / std[:, None]) ** 2).sum(axis=1).mean()))
        cut = (weights < 1.0).mean()
        print(f"{kept:>8g}{bound:>8.2f}{cut:>15.2%}{bias:>8.2f}{forced[0]:>13.2f}{forced[1]:>8.2f}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "samplers":
        compare([survey()] * RUNS, (4.0, 2.0))
    elif what == "choose":
        compare([simulated_table(seed) for seed in range(1, RUNS + 1)], (4.0,), insecure_seed=1)
    elif what == "clip":
        clip()
    else:
        sys.exit(__doc__)
