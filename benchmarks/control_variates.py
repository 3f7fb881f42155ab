"""The figures of docs/control_variates.md on DPSurrogateHMC: medians over runs with everything paid.

    python benchmarks/control_variates.py survey 50 4 2 1          logistic regression of any visit
    python benchmarks/control_variates.py visits 10 4 2            Poisson regression of capped visits
    python benchmarks/control_variates.py hierarchical 5 4 2 1     20 groups, simulated
    python benchmarks/control_variates.py published 5 1 4 6        normals, bananas, the circle
    python benchmarks/control_variates.py tested 5 4                any visit, with tests and a simulated table

First the number of runs, then epsilons; for `published`, names of posteriors may follow. Delta is 1e-6, or 0.1 / n for
the published posteriors. Regressions have no setting but the budget, and no tests but in `tested`.

=============  ==================================================================================================
accepted       share of accepted tests; `noise` is the median standard deviation of their noise
clipped        released share of units whose remainder was clipped
error          of the draws' mean from the posterior's, in its standard deviations, root mean square
forced         what the likelihood allows for of that: noise, and the estimated bias of clipping
sd ratio       standard deviation of draws by that of the posterior
coverage       posterior probability of 90 % intervals of the draws, averaged over parameters
MMD            from 1,000 exact draws; beside it that of one release of the whole budget (normals), and of exact draws
=============  ==================================================================================================
"""

import logging
import sys
import time
import warnings

import numpy as np
import pymc as pm
from posteriors import PUBLISHED, published
from scipy import stats

import pymc_dp as dp
from pymc_dp.__main__ import COLUMNS, survey, survey_model
from pymc_dp.diagnostics import maximum_mean_discrepancy, quality

#: Visits are capped at this public number: a Poisson likelihood trusts large counts too much for any clip bound.
CAP = 10
DRAWS = 200
#: The survey's columns that are no indicators, from 0 to a public number.
MOST = {"lncoins": 4.62, "lpi": 7.2, "fmde": 8.3, "disea": 60.0}
#: How the cost is split where draws are tested.
TESTED = dp.Shares(centre=0.4, score=0.3, curvature=0.1, tests=0.2)


def run(model, epsilon, delta, draws=DRAWS, **settings):
    """Return the tree, the step and the figures that need no reference."""
    began = time.perf_counter()
    with model:
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(epsilon, delta), **settings)
        tree = pm.sample(
            draws=draws, tune=0, chains=4, cores=1, step=step, progressbar=False, compute_convergence_checks=False
        )
    found = quality(tree)
    of_tests = {}
    if "residual" in found.clip_fractions:
        of_tests = {
            "accepted": found.acceptance,
            "noise": found.test_noise,
            "clipped": found.clip_fractions["residual"].fraction,
        }
    rest = {"R-hat": found.r_hat, "ESS": found.effective_draws, "seconds": time.perf_counter() - began}
    return tree, step, of_tests | rest


def unconstrained(tree, step):
    """Return draws on the unconstrained scale, shape (draws, parameters)."""
    standardised = tree["sample_stats"]["standardised"].values.reshape(-1, step.size)
    return step.known.kernel.mean + standardised @ step.known.kernel.spread.T


def against_normal(tree, step, mean, covariance, parameters=slice(None)):
    """Return figures against a posterior that is as good as normal, on the unconstrained scale."""
    std = np.sqrt(np.diag(covariance))
    draws = unconstrained(tree, step)[:, parameters]
    low, high = (np.quantile(draws, q, axis=0) for q in (0.05, 0.95))
    inside = stats.norm.cdf(high, mean, std) - stats.norm.cdf(low, mean, std)
    hidden = step.known.belief.noise + step.known.belief.bias
    return {
        "error": root_mean_square((draws.mean(axis=0) - mean) / std),
        "forced": root_mean_square(np.sqrt(np.diag(hidden)[parameters]) / std),
        "sd ratio": np.mean(draws.std(axis=0) / std),
        "coverage": inside.mean(),
    }


def root_mean_square(values):
    return np.sqrt(np.mean(np.square(values)))


def mode_of(design, slope_and_curvature, prior_precision):
    """Return the posterior mode of a regression with normal priors of mean zero, and the covariance there."""
    theta = np.zeros(design.shape[1])
    for _ in range(100):
        slopes, curvatures = slope_and_curvature(np.clip(design @ theta, -30.0, 5.0))
        information = (design * curvatures[:, None]).T @ design + prior_precision
        step = np.linalg.solve(information, design.T @ slopes - prior_precision @ theta)
        theta = theta + step / max(1.0, np.abs(step).max())
    return theta, np.linalg.inv(information)


def logistic(visited):
    def slope_and_curvature(predictor):
        p = 1.0 / (1.0 + np.exp(-predictor))
        return visited - p, p * (1.0 - p)

    return slope_and_curvature


def poisson(counts):
    def slope_and_curvature(predictor):
        rate = np.exp(predictor)
        return counts - rate, rate

    return slope_and_curvature


def report(what, results):
    """Print the median of every figure, and the shares of runs that keep to the limits of the quality report."""
    line = "  ".join(f"{name} {np.nanmedian([each[name] for each in results]):.3g}" for name in results[0])
    good = np.mean([each["R-hat"] < 1.05 and each["ESS"] >= 200 for each in results])
    mean = f"  (mean coverage {np.mean([r['coverage'] for r in results]):.3f})" if "coverage" in results[0] else ""
    print(f"{what:<32}{len(results):>3} runs  {line}{mean}  mixed well {good:.0%}", flush=True)


def survey_runs(runs, epsilons, *, tested=False):
    x, visited = survey()
    mean, covariance = mode_of(x, logistic(visited), np.eye(x.shape[1]))
    settings = {"synthetic": simulated_survey(99), "shares": TESTED} if tested else {}
    for epsilon in epsilons:
        results = []
        for _ in range(runs):
            tree, step, found = run(survey_model(x, visited), epsilon, 1e-6, **settings)
            results.append(found | against_normal(tree, step, mean, covariance))
        report(f"any visit{', tested' if tested else ''}, epsilon {epsilon:g}", results)


def simulated_survey(seed, n=20190):
    """Return the survey's model on made-up covariates over their public ranges, and simulated responses."""
    generator = np.random.default_rng(seed)
    columns = [np.ones(n)]
    for column, centre, scale in list(COLUMNS.values())[1:]:
        most = MOST.get(column)
        values = generator.random(n) < 0.1 if most is None else generator.uniform(0.0, most, size=n)
        columns.append((values - centre) / scale)
    x = np.column_stack(columns)
    predictor = x @ generator.normal(0.0, 0.4, size=len(columns))
    return survey_model(x, generator.binomial(1, 1.0 / (1.0 + np.exp(-predictor))))


def visits_model(x, visits):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=x.shape[1])
        pm.Poisson("visits", pm.math.exp(pm.Data("x", x) @ beta), observed=visits)
    return model


def visits_run(x, visits, epsilon, cap):
    visits = np.minimum(visits, cap)
    mean, covariance = mode_of(x, poisson(visits), np.eye(x.shape[1]))
    tree, step, found = run(visits_model(x, visits), epsilon, 1e-6)
    return found | against_normal(tree, step, mean, covariance)


def visits_runs(runs, epsilons):
    from statsmodels.datasets import randhie  # noqa: PLC0415 an optional dependency

    x, _ = survey()
    visits = randhie.load_pandas().data["mdvis"].to_numpy(np.int64)
    for cap in (CAP, 10**6):
        for epsilon in epsilons:
            results = [visits_run(x, visits, epsilon, cap) for _ in range(runs)]
            report(f"visits up to {cap:g}, epsilon {epsilon:g}", results)


def groups_table(seed, n=50_000, groups=20):
    generator = np.random.default_rng(seed)
    group = generator.choice(groups, size=n, p=generator.dirichlet(np.full(groups, 3.0)))
    x = generator.normal(size=(n, 3)).clip(-3.0, 3.0)
    predictor = generator.normal(-0.5, 0.6, groups)[group] + x @ generator.normal(0.0, 0.4, 3)
    return x, group, (generator.random(n) < 1.0 / (1.0 + np.exp(-predictor))).astype(np.int64)


def groups_model(x, group, y, groups=20):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 1.5), pm.HalfNormal("tau", 1.0)
        alpha = pm.Normal("alpha", mu, tau, shape=groups)
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.Bernoulli("y", logit_p=alpha[pm.Data("group", group)] + pm.Data("x", x) @ beta, observed=y)
    return model


def hierarchical_runs(runs, epsilons):
    for epsilon in epsilons:
        results = []
        for seed in range(1, runs + 1):
            model = groups_model(*groups_table(seed))
            with model:  # the reference is not private
                exact = dp.sampling._pymc_sample(
                    draws=500, tune=500, chains=2, cores=1, progressbar=False, compute_convergence_checks=False
                )
            stacked = exact["posterior"].to_dataset().stack(sample=("chain", "draw"))
            known = np.concatenate([stacked["alpha"].values, stacked["beta"].values])
            tree, step, found = run(model, epsilon, 1e-6)
            found |= against_normal(tree, step, known.mean(axis=1), np.cov(known), slice(2, 25))
            log_tau, exact_tau = unconstrained(tree, step)[:, 1], np.log(stacked["tau"].values)
            found["error of log tau"] = abs(log_tau.mean() - exact_tau.mean()) / exact_tau.std()
            results.append(found)
        report(f"20 groups, epsilon {epsilon:g}", results)


def published_runs(runs, epsilons, names):
    for name in names or PUBLISHED:
        for epsilon in epsilons:
            results = []
            for seed in range(runs):
                posterior = published(name, seed)
                delta = 0.1 / posterior.n_units
                tree, step, found = run(posterior.model, epsilon, delta, draws=250)
                draws = np.concatenate(
                    [tree["posterior"][rv.name].values.reshape(1000, -1) for rv in posterior.model.free_RVs], axis=1
                )
                generator = np.random.default_rng(seed)
                reference = posterior.reference(1000, generator)
                found["MMD"] = maximum_mean_discrepancy(draws, reference)
                if name.startswith("normal"):
                    found["one release"] = one_release(posterior, step, tree, reference, generator)
                found["exact"] = maximum_mean_discrepancy(posterior.reference(1000, generator), reference)
                results.append(found)
            report(f"{name}, epsilon {epsilon:g}", results)


def one_release(posterior, step, tree, reference, generator):
    """Return the MMD of exact draws that are shifted by what one score costs that takes the whole budget."""
    noise_std = 2.0 * step.known.centre.clip_gradient / np.sqrt(2.0 * tree["privacy"].attrs["rho"])
    covariance = np.cov(posterior.reference(100_000, generator).T)
    shift = covariance @ step._back @ generator.normal(scale=noise_std, size=step.size)
    return maximum_mean_discrepancy(posterior.reference(1000, generator) + shift, reference)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    what, runs, *rest = sys.argv[1:]
    epsilons = [float(each) for each in rest if each not in PUBLISHED]
    names = [each for each in rest if each in PUBLISHED]
    match what:
        case "survey":
            survey_runs(int(runs), epsilons)
        case "visits":
            visits_runs(int(runs), epsilons)
        case "tested":
            survey_runs(int(runs), epsilons, tested=True)
        case "hierarchical":
            hierarchical_runs(int(runs), epsilons)
        case "published":
            published_runs(int(runs), epsilons, names)
        case _:
            sys.exit(__doc__)
