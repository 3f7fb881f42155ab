"""How often `dp.check` sees what is wrong with a model, and how often it sees something where nothing is.

    python -m uv run python benchmarks/checks.py --rows 5000 --epsilon 1 --runs 24 square heavy_tails
    python -m uv run python benchmarks/checks.py --rows 5000 --epsilon inf --runs 24
    python -m uv run python benchmarks/checks.py --rows 5000 --epsilon 1 --runs 24 --compare

Each run simulates a table, releases the private likelihood of the model with three quarters of epsilon, draws from its
posterior, and checks with the rest. Printed are the part of runs in which the check says that the model does not fit
(at the level .05, over all of its p-values), for a truth that the model holds (level) and for one that it does not
(power). ``--epsilon inf`` is without privacy: the same check without noise, of the normal approximation of the exact
posterior.

With ``--compare`` two models are fitted, with three eighths of epsilon each, and compared by `dp.compare` with a
quarter: the model as above, and a larger one that has the square, the groups or the shape of a negative binomial.
Printed is the part of runs in which the larger one predicts better by two standard errors, and in which it predicts
worse. Where the truth has none of these, the larger one has the square, for nothing. ``--epsilon inf`` is the usual
comparison without privacy: half the difference of Akaike's criteria of two maximum-likelihood fits, beside the standard
error of a sum over rows.

All tables are simulated. Models of one case have equal graphs: what was compiled of them is used again.
"""

import argparse
import contextlib
import logging
import math
import sys
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pymc as pm
import statsmodels.api as sm
import xarray as xr
from pytensor.graph.basic import Variable
from scipy import stats

import pymc_dp as dp
from pymc_dp.compiling import compiled
from pymc_dp.model import prior
from pymc_dp.rows import engine, likelihood

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from running import Compiled

DELTA, SIZE, DRAWS = 1e-6, 4, 400
COEFFICIENTS = np.array([0.5, -0.3, 0.2, 0.0])


def linear(rng, x, eta, wrong):
    noise = rng.standard_t(5, len(x)) * math.sqrt(3 / 5) if wrong == "heavy_tails" else rng.normal(size=len(x))
    return eta + noise


def logistic(rng, x, eta, wrong):
    # The other link has about the same probability and slope at zero.
    p = 1 - np.exp(-np.exp(0.72 * 2 * eta - 0.37)) if wrong == "link" else 1 / (1 + np.exp(-eta))
    return (rng.random(len(x)) < p).astype(int)


def poisson(rng, x, eta, wrong):
    mean = np.exp(eta)
    return rng.poisson(mean * rng.gamma(5, 1 / 5, len(x)) if wrong == "overdispersion" else mean)


#: What can be wrong, the family of the model, and whether the truth has it.
CASES = {
    "linear": (linear, None),
    "logistic": (logistic, None),
    "poisson": (poisson, None),
    "square": (linear, "square"),
    "square_logistic": (logistic, "square"),
    "overdispersion": (poisson, "overdispersion"),
    "link": (logistic, "link"),
    "heavy_tails": (linear, "heavy_tails"),
    "group": (linear, "group"),
    "group_logistic": (logistic, "group"),
}


def columns_of(x, more=None, group=None):
    """Return the covariates of a model, or of a larger one."""
    if more == "square":
        return np.column_stack([x, x[:, 0] ** 2 - 1])
    if more == "group":
        return np.column_stack([x, *(group == level for level in range(1, 8))]).astype(float)
    return x


def model_of(family, x, y, more=None, group=None):
    """Return the model, or a larger one."""
    x = columns_of(x, more, group)
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 2) + pm.Data("x", x) @ pm.Normal("b", 0, 1, shape=x.shape[1])
        if family is linear:
            pm.Normal("y", mu, pm.HalfNormal("s", 2), observed=y)
        elif family is logistic:
            pm.Bernoulli("y", logit_p=mu, observed=y)
        elif more == "overdispersion":
            pm.NegativeBinomial("y", mu=pm.math.exp(mu), alpha=pm.Gamma("s", 2, 0.2), observed=y)
        else:
            pm.Poisson("y", pm.math.exp(mu), observed=y)
    return model


def drawn(released, rng):
    """Return draws of the posterior: the priors are wide beside the likelihood, and normal but that of the scale."""
    labels = [str(each) for each in released.mean["parameter"].values]
    precision = np.linalg.inv(released.covariance)
    prior = np.diag([0.25 if label == "a" else 0.0 if label.startswith("s") else 1.0 for label in labels])
    covariance = np.linalg.inv(precision + prior)
    theta = rng.multivariate_normal(covariance @ precision @ released.mean.values, covariance, DRAWS)
    found = {"a": theta[:, labels.index("a")], "b": theta[:, [k for k, each in enumerate(labels) if each[:2] == "b["]]}
    if "s_log__" in labels:
        found["s"] = np.exp(theta[:, labels.index("s_log__")])
    groups = {name: released.tree[name].to_dataset() for name in released.tree.children}
    return xr.DataTree.from_dict({**groups, "posterior": posterior_of(found)})


def posterior_of(draws):
    dims = {name: ("chain", "draw", *(["k"] if values.ndim > 1 else [])) for name, values in draws.items()}
    return xr.Dataset({name: (dims[name], values[None]) for name, values in draws.items()})


def without_privacy(family, x, y, more=None, group=None):
    """Return a maximum-likelihood fit's coefficients, their covariance, the residuals' scale, and rows' densities."""
    design = sm.add_constant(columns_of(x, more, group))
    if family is linear:
        fitted = sm.OLS(y, design).fit()
        scale = math.sqrt(fitted.ssr / len(y))
        return fitted.params, fitted.cov_params(), scale, stats.norm.logpdf(y, fitted.fittedvalues, scale)
    kind = sm.Logit if family is logistic else sm.NegativeBinomial if more == "overdispersion" else sm.Poisson
    model = kind(y, design)
    fitted = model.fit(disp=0, maxiter=200)
    return fitted.params, fitted.cov_params(), 1.0, model.loglikeobs(fitted.params)


def drawn_without_privacy(family, x, y, rng, more=None):
    """Return draws of the exact posterior's normal approximation: the priors are wide beside so many rows."""
    mean, covariance, scale, _ = without_privacy(family, x, y, more)
    theta = rng.multivariate_normal(mean, covariance, DRAWS)
    found = {"a": theta[:, 0], "b": theta[:, 1:]}
    if family is linear:
        found["s"] = scale * np.exp(rng.normal(size=DRAWS) / math.sqrt(2 * len(y)))
    facts = {"private": 0, "not_private_because": "this is the exact posterior"}
    return xr.DataTree.from_dict({"posterior": posterior_of(found), "privacy": xr.Dataset(attrs=facts)})


def simulated(case, n, seed):
    """Return a generator, covariates, groups and responses."""
    family, wrong = CASES[case]
    rng = np.random.default_rng([seed, n])
    x, group = rng.normal(size=(n, SIZE)), rng.integers(8, size=n)
    eta = x @ COEFFICIENTS - 0.3
    if wrong == "square":
        eta += 0.1 * (x[:, 0] ** 2 - 1)
    if wrong == "group":
        eta += 0.2 * np.linspace(-1.5, 1.5, 8)[group]
    return rng, x, group, family(rng, x, eta, wrong)


def more_of(wrong):
    """Return what the larger model has: what is wrong with the smaller one; a square where nothing is."""
    return wrong or "square"


def compared(case, n, epsilon, seed):
    """Return by how many standard errors the larger model predicts better."""
    family, wrong = CASES[case]
    rng, x, group, y = simulated(case, n, seed)
    if math.isinf(epsilon):
        *_, small = without_privacy(family, x, y)
        larger, *_, large = without_privacy(family, x, y, more_of(wrong), group)
        found = large - small  # a negative binomial has one parameter more, and statsmodels lists it
        return (found.sum() - (len(larger) - 1 - SIZE)) / (math.sqrt(n) * found.std())
    budget, models = dp.PrivacyBudget(epsilon, DELTA), {}
    for more, share in ((None, 0.375), (more_of(wrong), 0.6)):
        model = model_of(family, x, y, more, group)
        with model:
            released = dp.private_likelihood(budget=budget, budget_share=share, progressbar=False)
        models[str(more)] = (model, drawn(released, rng))
    (line,) = dp.compare(models, budget=budget, budget_share=1.0).table.to_dict("records")
    return line["elpd_diff"] / line["error"]


def run(case, n, epsilon, seed):
    """Return a check."""
    family, _ = CASES[case]
    rng, x, group, y = simulated(case, n, seed)
    budget = dp.PrivacyBudget(epsilon, DELTA)
    with model_of(family, x, y):
        if math.isinf(epsilon):
            result = drawn_without_privacy(family, x, y, rng)
        else:
            result = drawn(dp.private_likelihood(budget=budget, budget_share=0.75, progressbar=False), rng)
        return dp.check(result, budget=budget, by={"x0": x[:, 0], "group": group}, budget_share=1.0)


@contextlib.contextmanager
def compiled_once():
    """Let runs in turn use what was compiled of row engines and priors of an earlier one, where graphs are equal.

    That these models are sums over rows is known, and not checked.
    """
    known = Compiled()

    def once(inputs, outputs):
        several = [outputs] if isinstance(outputs, Variable) else outputs
        facts = isinstance(outputs, Variable), len(inputs), len(several)
        return known.of(facts, inputs, several, lambda: compiled(inputs, outputs))

    with (
        mock.patch.object(engine, "compiled", once),
        mock.patch.object(prior, "compiled", once),
        mock.patch.object(likelihood, "check_factorisation"),
    ):
        yield


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", action="store_true", help="of two models, instead of a check of one")
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with compiled_once():
        for case in arguments.cases:
            say(case, arguments)


def say(case, arguments):
    """Make the runs of a case, and print what they found."""
    if arguments.compare and CASES[case][1] in ("link", "heavy_tails"):
        return  # no larger model has them
    make, found, lost = compared if arguments.compare else run, [], 0
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        try:
            made = make(case, arguments.rows, arguments.epsilon, seed)
            found.append(made if arguments.compare else (made.p_value, made.tree["privacy"].attrs["largest_factor"]))
        except dp.UnsupportedModel:
            lost += 1
    found = np.array(found or [math.nan, math.nan])
    if arguments.compare:
        said = f"better in {np.mean(found > 2):.2f}, worse in {np.mean(found < -2):.2f} of {len(found)} runs (median"
        said += f" {np.median(found):.2g} standard errors"
    else:
        p_values, widest = found.reshape(-1, 2).T
        said = f"seen in {np.mean(p_values < 0.05):.2f} of {len(p_values)} runs (median p {np.median(p_values):.2g}"
        said += f", factor {np.median(widest):.2g}"
    of = f"n={arguments.rows} epsilon={arguments.epsilon:g}"
    sys.stdout.write(f"{case:<16} {of}: {said}, without a likelihood {lost})\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
