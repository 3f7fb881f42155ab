"""Twenty models as a newcomer writes them, on 20,000 simulated rows, with no setting but the budget.

    python benchmarks/newcomers.py DIRECTORY                                 two runs of each at epsilon 3
    python benchmarks/newcomers.py DIRECTORY linear ordinal --runs 10 --epsilon 3 1 --processes 2

DIRECTORY keeps the references, which are found without privacy (`against_reference.py`). One line for each run, the
reasons of its verdict below it, and a line for each model and epsilon at the end; tracebacks go to standard error.
Tables are the same in each call unless `--table-seed` says otherwise; a run's seed is that of its noise and of PyMC.

==========  ===========================================================================================================
error       of the mean of draws, in posterior sd, root mean square over unconstrained parameters; `worst`: the largest
coverage    posterior mass inside nominal 90 % intervals, mean over parameters
width       standard deviation of the draws by that of the posterior, median over parameters
verdict     of `pymc_dp.diagnostics.quality`
==========  ===========================================================================================================
"""

import argparse
import functools
from pathlib import Path

import numpy as np
import pymc as pm
from against_reference import Problem, Run, arguments, quiet, reference_of, results_of, run, say, say_runs
from pymc.distributions import transforms

ROWS = 20_000
PERSONS, ROWS_OF_A_PERSON = 4_000, 5
GROUPS = 30


def covariates(generator):
    """Return a normal, a binary and a uniform column, none of them standardised."""
    return np.column_stack(
        [
            generator.normal(size=ROWS),
            (generator.random(ROWS) < 0.3).astype(float),
            generator.uniform(-1.0, 2.0, size=ROWS),
        ]
    )


def logistic(predictor):
    return 1.0 / (1.0 + np.exp(-predictor))


def linear(generator):
    x = covariates(generator)
    y = 4.0 + x @ [1.5, -2.0, 0.5] + generator.normal(0.0, 2.5, ROWS)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 10)
        beta = pm.Normal("beta", 0, 5, shape=3)
        sigma = pm.HalfNormal("sigma", 5)
        pm.Normal("y", intercept + pm.math.dot(x, beta), sigma, observed=y)
    return Problem(model)


def negative_binomial(generator):
    x = covariates(generator)
    mean = np.exp(0.8 + x @ [0.3, -0.5, 0.2])
    y = generator.poisson(mean * generator.gamma(1.5, 1.0 / 1.5, ROWS))
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=3)
        alpha = pm.Exponential("alpha", 1)
        pm.NegativeBinomial("y", mu=pm.math.exp(intercept + pm.math.dot(x, beta)), alpha=alpha, observed=y)
    return Problem(model)


def groups_table(generator):
    x = covariates(generator)
    group = generator.integers(0, GROUPS, ROWS)
    effects = generator.normal(-0.5, 0.7, GROUPS)
    y = (generator.random(ROWS) < logistic(effects[group] + x @ [0.5, -0.4, 0.3])).astype(int)
    return x, group, y


def centred_model(x, group, y):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1.5)
        tau = pm.HalfNormal("tau", 1)
        alpha = pm.Normal("alpha", mu, tau, shape=GROUPS)
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=alpha[group] + pm.math.dot(x, beta), observed=y)
    return model


def hierarchical_centred(generator):
    return Problem(centred_model(*groups_table(generator)), normal=False)


def hierarchical_non_centred(generator):
    x, group, y = groups_table(generator)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1.5)
        tau = pm.HalfNormal("tau", 1)
        offset = pm.Normal("offset", 0, 1, shape=GROUPS)
        beta = pm.Normal("beta", 0, 1, shape=3)
        alpha = mu + tau * offset
        pm.Bernoulli("y", logit_p=alpha[group] + pm.math.dot(x, beta), observed=y)

    def offsets(draws):
        mu, tau, alpha = draws[:, :1], np.exp(draws[:, 1:2]), draws[:, 2 : 2 + GROUPS]
        return np.concatenate([draws[:, :2], (alpha - mu) / tau, draws[:, 2 + GROUPS :]], axis=1)

    return Problem(model, normal=False, twin=(centred_model(x, group, y), offsets))


def student_t(generator):
    x = covariates(generator)
    y = 4.0 + x @ [1.5, -2.0, 0.5] + 1.5 * generator.standard_t(4.0, ROWS)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 10)
        beta = pm.Normal("beta", 0, 5, shape=3)
        sigma = pm.HalfNormal("sigma", 5)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=intercept + pm.math.dot(x, beta), sigma=sigma, observed=y)
    return Problem(model)


def softmax(generator):
    x = covariates(generator)
    predictor = np.column_stack([np.zeros(ROWS), -0.5 + x @ [0.6, 0.4, -0.3], 0.2 + x @ [-0.4, 0.8, 0.3]])
    y = np.argmax(predictor + generator.gumbel(size=(ROWS, 3)), axis=1)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2, shape=2)
        beta = pm.Normal("beta", 0, 1, shape=(3, 2))
        others = intercept + pm.math.dot(x, beta)
        pm.Categorical("y", logit_p=pm.math.concatenate([np.zeros((ROWS, 1)), others], axis=1), observed=y)
    return Problem(model)


def ordinal(generator):
    x = covariates(generator)
    latent = x @ [0.8, -0.5, 0.4] + generator.logistic(size=ROWS)
    y = np.digitize(latent, [-1.0, 0.5, 2.0])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        cutpoints = pm.Normal(
            "cutpoints", 0, 3, shape=3, transform=transforms.ordered, initval=np.array([-1.0, 0.0, 1.0])
        )
        pm.OrderedLogistic("y", eta=pm.math.dot(x, beta), cutpoints=cutpoints, observed=y, compute_p=False)
    return Problem(model)


def zero_inflated(generator):
    x = covariates(generator)
    y = generator.poisson(np.exp(0.7 + x @ [0.3, -0.5, 0.2])) * (generator.random(ROWS) < 0.7)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=3)
        psi = pm.Beta("psi", 1, 1)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(intercept + pm.math.dot(x, beta)), observed=y)
    return Problem(model)


def mixture(generator):
    x = covariates(generator)
    high = generator.random(ROWS) < 0.4
    y = np.where(high, 3.0, -1.0) + x @ [0.5, -0.4, 0.3] + generator.normal(0.0, np.where(high, 1.5, 0.8))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        mu = pm.Normal("mu", 0, 5, shape=2, transform=transforms.ordered, initval=np.array([-1.0, 1.0]))
        sigma = pm.HalfNormal("sigma", 3, shape=2)
        weights = pm.Dirichlet("weights", np.ones(2))
        pm.NormalMixture("y", w=weights, mu=mu + pm.math.dot(x, beta)[:, None], sigma=sigma, observed=y)
    return Problem(model)


def weibull(generator):
    x = covariates(generator)
    end = 5.0
    time = np.exp(1.2 + x @ [0.4, -0.3, 0.2]) * generator.weibull(1.4, ROWS)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=3)
        shape = pm.HalfNormal("shape", 2)
        latent = pm.Weibull.dist(alpha=shape, beta=pm.math.exp(intercept + pm.math.dot(x, beta)))
        pm.Censored("time", latent, lower=None, upper=end, observed=np.minimum(time, end))
    return Problem(model)


def persons(generator):
    x = covariates(generator)
    person = np.repeat(np.arange(PERSONS), ROWS_OF_A_PERSON)
    predictor = -0.5 + x @ [0.5, -0.4, 0.3] + generator.normal(0.0, 0.8, PERSONS)[person]
    y = (generator.random(ROWS) < logistic(predictor)).astype(int)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Data("person", person)
        pm.Bernoulli("y", logit_p=intercept + pm.math.dot(x, beta), observed=y)
    return Problem(model, {"unit_index": "person"})


def poisson(generator):
    x = covariates(generator)
    y = generator.poisson(np.exp(0.8 + x @ [0.3, -0.5, 0.2]))
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Poisson("y", pm.math.exp(intercept + pm.math.dot(x, beta)), observed=y)
    return Problem(model)


def survey_columns(generator):
    """Return age, yearly income in thousands and a binary column as a file has them: nothing is standardised."""
    age = generator.integers(18, 90, ROWS).astype(float)
    income = np.round(np.exp(generator.normal(3.4, 0.6, ROWS)), 1)
    return np.column_stack([age, income, generator.random(ROWS) < 0.3])


def logistic_raw(generator):
    x = survey_columns(generator)
    y = (generator.random(ROWS) < logistic(-2.0 + x @ [0.03, 0.01, -0.4])).astype(int)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 10)
        beta = pm.Normal("beta", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=intercept + pm.math.dot(x, beta), observed=y)
    return Problem(model)


def linear_raw(generator):
    x = survey_columns(generator)
    y = 90.0 + x @ [0.5, 0.1, -4.0] + generator.normal(0.0, 15.0, ROWS)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 100)
        beta = pm.Normal("beta", 0, 10, shape=3)
        sigma = pm.HalfNormal("sigma", 50)
        pm.Normal("y", intercept + pm.math.dot(x, beta), sigma, observed=y)
    return Problem(model)


def hierarchical_raw(generator):
    x, group = survey_columns(generator), generator.integers(0, GROUPS, ROWS)
    effects = generator.normal(90.0, 6.0, GROUPS)
    y = effects[group] + x @ [0.5, 0.1, -4.0] + generator.normal(0.0, 15.0, ROWS)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 100)
        tau = pm.HalfNormal("tau", 20)
        alpha = pm.Normal("alpha", mu, tau, shape=GROUPS)
        beta = pm.Normal("beta", 0, 10, shape=3)
        pm.Normal("y", alpha[group] + pm.math.dot(x, beta), pm.HalfNormal("sigma", 50), observed=y)
    return Problem(model, normal=False)


def weibull_raw(generator):
    x = survey_columns(generator)
    end = 500.0
    time = np.exp(5.0 + x @ [-0.01, 0.005, 0.3]) * generator.weibull(1.4, ROWS)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 5, 2)  # the logarithm of days
        beta = pm.Normal("beta", 0, 1, shape=3)
        shape = pm.HalfNormal("shape", 2)
        latent = pm.Weibull.dist(alpha=shape, beta=pm.math.exp(intercept + pm.math.dot(x, beta)))
        pm.Censored("time", latent, lower=None, upper=end, observed=np.minimum(time, end))
    return Problem(model)


def bivariate_raw(generator):
    """Height and weight, with their correlation."""
    cov = np.array([[81.0, 0.6 * 9.0 * 14.0], [0.6 * 9.0 * 14.0, 196.0]])
    y = generator.multivariate_normal([170.0, 75.0], cov, ROWS)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(20))
        pm.MvNormal("y", pm.Normal("mu", 100, 100, shape=2), chol=chol, observed=y)
    return Problem(model)


def beta_regression(generator):
    x = covariates(generator)
    mean = logistic(0.3 + x @ [0.4, -0.3, 0.2])
    y = np.clip(generator.beta(8.0 * mean, 8.0 * (1.0 - mean)), 1e-6, 1.0 - 1e-6)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=3)
        kappa = pm.Exponential("kappa", 0.1)
        pm.Beta("y", mu=pm.math.sigmoid(intercept + pm.math.dot(x, beta)), nu=kappa, observed=y)
    return Problem(model)


def gamma_regression(generator):
    x = covariates(generator)
    y = generator.gamma(2.0, np.exp(1.5 + x @ [0.3, -0.5, 0.2]) / 2.0)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 5)
        beta = pm.Normal("beta", 0, 1, shape=3)
        alpha = pm.HalfNormal("alpha", 5)
        pm.Gamma("y", alpha=alpha, beta=alpha / pm.math.exp(intercept + pm.math.dot(x, beta)), observed=y)
    return Problem(model)


def correlated_slopes(generator):
    x, group = generator.normal(size=ROWS), generator.integers(0, GROUPS, ROWS)
    effects = generator.multivariate_normal([1.0, 0.5], [[0.5, 0.15], [0.15, 0.2]], GROUPS)
    y = effects[group, 0] + effects[group, 1] * x + generator.normal(0.0, 1.5, ROWS)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
        mean = pm.Normal("mean", 0, 3, shape=2)
        each = mean + pm.math.dot(pm.Normal("z", shape=(GROUPS, 2)), chol.T)
        mu = each[group, 0] + each[group, 1] * x
        pm.Normal("y", mu, pm.HalfNormal("sigma", 5), observed=y)
    return Problem(model, normal=False)


MODELS = {
    "linear": linear,
    "negative-binomial": negative_binomial,
    "hierarchical-centred": hierarchical_centred,
    "hierarchical-non-centred": hierarchical_non_centred,
    "student-t": student_t,
    "softmax": softmax,
    "ordinal": ordinal,
    "zero-inflated": zero_inflated,
    "mixture": mixture,
    "weibull": weibull,
    "persons": persons,
    "poisson": poisson,
    "logistic-raw": logistic_raw,
    "linear-raw": linear_raw,
    "hierarchical-raw": hierarchical_raw,
    "weibull-raw": weibull_raw,
    "bivariate-raw": bivariate_raw,
    "beta": beta_regression,
    "gamma": gamma_regression,
    "correlated-slopes": correlated_slopes,
}


def problem_and_reference(directory: Path, table_seed: int, name: str):
    problem = MODELS[name](np.random.default_rng([table_seed, list(MODELS).index(name)]))
    return problem, reference_of(problem, directory / f"newcomers-{name}-{table_seed}.npz")


def reference_in_words(directory: Path, table_seed: int, name: str) -> str:
    return problem_and_reference(directory, table_seed, name)[1].how


def run_of(directory: Path, table_seed: int, delta: float, job: tuple[str, float, int]) -> Run:
    name, epsilon, seed = job
    return run(*problem_and_reference(directory, table_seed, name), epsilon, delta, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table-seed", type=int, default=0)
    options = arguments(parser, MODELS, [3.0])
    names = options.names or list(MODELS)
    quiet()
    shared = (options.directory, options.table_seed)
    for name, how in results_of(functools.partial(reference_in_words, *shared), names, options.processes):
        say(f"{name:<26}reference: {how}")
    if options.references_only:
        return
    say_runs(functools.partial(run_of, *shared, options.delta), names, options)


if __name__ == "__main__":
    main()
