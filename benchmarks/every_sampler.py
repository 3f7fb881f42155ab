"""Every sampler with nothing but a budget: medians and worst over runs, beside the posterior without privacy.

    python benchmarks/every_sampler.py two 10 4 2 1              a logistic regression of two coefficients
    python benchmarks/every_sampler.py survey 5 4 2 1 -- hmc     the survey of the demonstration, one sampler
    python benchmarks/every_sampler.py banana-2 5 4              a posterior of `benchmarks/posteriors.py`

First the model, then the number of runs, then epsilons; after ``--`` names of samplers, of all otherwise. Delta is
1e-6, chains are 4, and the number of draws is the sampler's own choice.

=============  ==================================================================================================
error          of the draws' mean from the posterior's, in its standard deviations, root mean square: median, worst
sd ratio       of the draws, by those of the posterior, median over parameters
MMD            from 1,000 exact draws, where they can be made
says           how often the quality report said usable, unknown, not usable
false comfort  runs said to be usable with an error above 1.5 and above twice what widening allows for
=============  ==================================================================================================
"""

import logging
import sys
import time
import warnings
from collections import Counter

import numpy as np
import pymc as pm
from posteriors import published

import pymc_dp as dp
from pymc_dp.__main__ import survey, survey_model
from pymc_dp.diagnostics import maximum_mean_discrepancy, quality

SAMPLERS = {
    "surrogate": (dp.DPSurrogateHMC, {}),
    "hmc": (dp.DPHMC, {}),
    "mala": (dp.DPMALA, {}),
    "penalty": (dp.DPPenalty, {}),
    "penalty-one-component": (dp.DPPenalty, {"proposal": "one-component"}),
    "penalty-guided": (dp.DPPenalty, {"proposal": "one-component-guided-walk"}),
    "minibatch-penalty": (dp.DPMinibatchPenalty, {}),
    "barker": (dp.DPBarker, {}),
    "sghmc": (dp.DPSGHMC, {}),
    "sgnht": (dp.DPSGNHT, {}),
    "sgld": (dp.DPSGLD, {}),
}


def two_coefficients(n=20_000):
    generator = np.random.default_rng(0)
    x = generator.normal(size=n)
    y = (generator.random(n) < 1.0 / (1.0 + np.exp(0.5 - x))).astype(np.int64)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=2)
        pm.Bernoulli("y", logit_p=beta[0] + beta[1] * pm.Data("x", x), observed=y)
    return model


def target(name):
    """Return a model and draws of its posterior; whether these are exact."""
    if name in ("two", "survey"):
        model = two_coefficients() if name == "two" else survey_model(*survey())
        with model:
            tree = pm.sample(1000, tune=800, chains=2, cores=2, random_seed=0, progressbar=False)
        return model, draws_of(tree, model), False
    posterior = published(name)
    return posterior.model, posterior.reference(2000, np.random.default_rng(5)), True


def draws_of(tree, model):
    posterior = tree["posterior"].to_dataset()
    size = posterior.sizes["chain"] * posterior.sizes["draw"]
    return np.column_stack([posterior[rv.name].values.reshape(size, -1) for rv in model.free_RVs])


def one_run(model, reference, exact, name, epsilon):
    step_class, settings = SAMPLERS[name]
    began = time.perf_counter()
    with model:
        step = step_class(budget=dp.PrivacyBudget(epsilon, 1e-6), **settings)
        tree = pm.sample(chains=4, cores=1, step=step, progressbar=False, compute_convergence_checks=False)
    seconds, found, draws = time.perf_counter() - began, quality(tree), draws_of(tree, model)
    errors = (draws.mean(axis=0) - reference.mean(axis=0)) / reference.std(axis=0)
    error = float(np.sqrt(np.mean(errors**2)))
    allowed = np.sqrt(max(found.widening**2 - 1.0, 0.0)) if np.isfinite(found.widening) else 0.0
    thinned = draws[:: max(1, len(draws) // 1000)]
    return {
        "error": error,
        "sd": float(np.median(draws.std(axis=0) / reference.std(axis=0))),
        "mmd": maximum_mean_discrepancy(thinned, reference[:1000]) if exact else np.nan,
        "r_hat": found.r_hat,
        "effective": found.effective_draws,
        "accepted": found.acceptance,
        "clip bias": found.clip_bias,
        "verdict": found.verdict,
        "comfort": found.verdict == "usable" and error > max(1.5, 2.0 * allowed),
        "seconds": seconds,
    }


def main(name, runs, epsilons, samplers):
    model, reference, exact = target(name)
    for epsilon in epsilons:
        for sampler in samplers:
            made = []
            for _ in range(runs):
                try:
                    made.append(one_run(model, reference, exact, sampler, epsilon))
                except dp.BudgetExceeded as error:
                    print(f"{name} {epsilon:g} {sampler:22s} refused: {error}", flush=True)  # noqa: T201
                    break
            if not made:
                continue
            of = {key: np.array([each[key] for each in made]) for key in made[0] if key != "verdict"}
            says = Counter(each["verdict"] for each in made)
            print(  # noqa: T201
                f"{name} {epsilon:g} {sampler:22s} runs {len(made)} error {np.median(of['error']):.2f} worst "
                f"{of['error'].max():.2f} sd {np.median(of['sd']):.2f} MMD {np.median(of['mmd']):.3f} R-hat "
                f"{np.median(of['r_hat']):.3f} ESS {np.median(of['effective']):.0f} accepted "
                f"{np.median(of['accepted']):.2f} clip bias {np.median(of['clip bias']):.2f} says "
                f"{says['usable']}/{says['unknown']}/{says['not usable']} false comfort {of['comfort'].sum():.0f} "
                f"{np.median(of['seconds']):.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    arguments, _, chosen = " ".join(sys.argv[1:]).partition("--")
    model_name, count, *at = arguments.split()
    main(model_name, int(count), [float(each) for each in at], chosen.split() or list(SAMPLERS))
