# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A private analysis, from question to published file
#
# In the 1970s the RAND Health Insurance Experiment gave families insurance plans that differed in how much of
# a doctor's bill they had to pay themselves. Did those who paid more go to the doctor less?
#
# The table has 20,190 person-years. We fit a logistic regression of "saw a doctor this year" on three
# coefficients, and we publish the posterior under differential privacy with $\varepsilon = 4$ and $\delta =
# 10^{-6}$. You should know PyMC. You need to know nothing about privacy.
#
# The result will not be perfect, and the notebook says so where it happens. Privacy noise is fresh in every
# execution, so your numbers differ from those shown here.

# %%
import logging
import tempfile
import warnings
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import statsmodels.api as sm
import xarray as xr
from statsmodels.datasets import randhie

import pymc_dp as dp
from pymc_dp.diagnostics import privacy_report, quality, quality_report

logging.getLogger("pymc").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", category=FutureWarning)

# %% [markdown]
# ## The model is an ordinary PyMC model
#
# Two covariates: the logarithm of the coinsurance rate (0 to log 101, about 4.6) and an index of chronic
# diseases (0 to about 60). They have to be centred and scaled, and here is the first decision that privacy
# asks for. We do **not** use the sample mean and standard deviation: they are computed from everyone's rows,
# outside the part that is protected. Round numbers within the known ranges do as well.

# %%
FEATURES = ["intercept", "coinsurance", "disease"]
PRIOR_STD = np.array([1.0, 0.5, 0.5])


def features_of(log_rate, disease):
    return np.column_stack([np.ones(log_rate.size), (log_rate - 2.0) / 2.0, (disease - 10.0) / 10.0])


def visit_model(features, visited):
    coords = {"person_year": np.arange(visited.size), "feature": FEATURES}
    with pm.Model(coords=coords) as model:
        x = pm.Data("x", features, dims=("person_year", "feature"))
        beta = pm.Normal("beta", 0.0, PRIOR_STD, dims="feature")
        pm.Bernoulli("visited", logit_p=x @ beta, observed=visited, dims="person_year")
    return model


# %% [markdown]
# ## What is protected
#
# One *unit*: here one person-year, a row. The promise: had any one row been any other, every possible result
# of this analysis would have had nearly the same probability, within a factor $e^4$, give or take $10^{-6}$.
#
# A factor $e^4 \approx 55$ sounds large, and $\varepsilon = 4$ is not strong. It is a bound for the worst
# case. For this package's noise it has an exact meaning: somebody who knows all other rows and tries to tell
# two versions of one row apart, at the 5 % level, succeeds with power at most 21 %.
#
# Many people in this survey have several person-years, and the table does not say which rows are the same
# person's. So it is rows that we protect, and we have to say so. With an identifier, `unit_index=` would
# protect whole people.

# %% [markdown]
# ## Choosing settings without the data
#
# A private sampler has settings, and each could be chosen badly. Trying them on the survey would leak: the
# choice would be a function of the rows. So we make up tables of the same shape. What we assume about them
# (plans from free to full price, a skewed disease index) is public knowledge, and the coefficients come from
# the prior.


# %%
def simulated_table(seed, n=20_190):
    rng = np.random.default_rng(seed)
    rate = rng.choice([0.0, 25.0, 50.0, 95.0, 100.0], size=n, p=[0.5, 0.1, 0.1, 0.2, 0.1])
    features = features_of(np.log1p(rate), np.minimum(rng.gamma(3.0, 3.7, size=n), 60.0))
    coefficients = rng.normal(size=3) * PRIOR_STD
    visited = rng.binomial(1, 1.0 / (1.0 + np.exp(-features @ coefficients)))
    return features, visited


made_up, _ = simulated_table(seed=99)
# About the information of a logistic regression: good for the momentum, and no row of the survey is in it.
MASS_MATRIX = 0.2 * made_up.T @ made_up

# %% [markdown]
# One unit's score in a logistic regression is $(y - p)\,x$, no longer than its feature vector $x$. From the
# public ranges, the longest possible one is

# %%
longest = np.linalg.norm(features_of(np.log1p(np.array([100.0])), np.array([60.0])))
print(f"longest possible feature vector: {longest:.2f}")

# %% [markdown]
# A clip bound of 5.3 would never cut anything, but noise grows with it, and nearly all rows are far below.
# Let us compare three settings on two simulated tables. `insecure_seed` makes the noise reproducible, and the
# result says of itself that it is not private; on made-up tables that does not matter, and the budget of a
# made-up table costs nobody anything.

# %%
TRIALS = {
    "bound 2, 20 draws": {"clip": 2.0, "draws": 20, "tune": 6},
    "bound 5.3, 20 draws": {"clip": 5.3, "draws": 20, "tune": 6},
    "bound 2, 200 draws": {"clip": 2.0, "draws": 200, "tune": 50},
}


def private_run(features, visited, budget, *, clip, draws, tune, insecure_seed=None):
    with visit_model(features, visited):
        step = dp.DPHMC(
            budget=budget,
            clip_gradient=clip,
            clip_log_ratio=clip,
            step_size=0.5,
            n_leapfrog=2,
            mass_matrix=MASS_MATRIX,
            unit="person_year",
            insecure_seed=insecure_seed,
        )
        return pm.sample(
            draws=draws, tune=tune, chains=4, step=step, progressbar=False, compute_convergence_checks=False
        )


def distance(run, features, visited):
    """Largest distance of a posterior mean from the maximum likelihood estimate, in standard errors."""
    fit = sm.Logit(visited, features).fit(disp=0)
    mean = run["posterior"]["beta"].mean(("chain", "draw")).values
    return np.abs((mean - fit.params) / fit.bse).max()


print(f"{'setting':<21}{'table':>6}{'test noise':>12}{'accepted':>10}{'R-hat':>10}{'ESS':>6}{'mean off by':>13}")
for name, setting in TRIALS.items():
    for seed in (1, 2):
        table = simulated_table(seed)
        run = private_run(*table, dp.PrivacyBudget(epsilon=4.0, delta=1e-6), **setting, insecure_seed=seed)
        q = quality(run)
        print(
            f"{name:<21}{seed:>6}{q.test_noise:>12.1f}{q.acceptance:>10.0%}{q.r_hat:>10.3g}{q.effective_draws:>6.0f}"
            f"{distance(run, *table):>10.1f} se"
        )

# %% [markdown]
# The budget is the same in all rows of this table. More draws, or a wider bound, mean more noise in each
# release. The acceptance test stands up to noise of about 1 and gives up above 3. So we take **few draws and
# the bound of 2**. It is a compromise: 2 cuts a few scores of the very sick, and the run will release how
# many.
#
# Nothing here converges: R-hat is far above 1.05 (and without bound where chains hardly move). Simulation
# tells us *before* we spend anything that we shall get an estimate and not a sample from the posterior.

# %% [markdown]
# ## The plan, before anything is spent
#
# Now the survey. The budget stands for the table: everything that is ever computed from it should be charged
# to this one object. The plan says what will be released and how much noise each release carries.

# %%
survey = randhie.load_pandas().data
features = features_of(survey["lncoins"].to_numpy(), survey["disea"].to_numpy())
visited = (survey["mdvis"].to_numpy() > 0).astype(np.int64)

budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6)
with visit_model(features, visited):
    step = dp.DPHMC(
        budget=budget,
        clip_gradient=2.0,
        clip_log_ratio=2.0,
        step_size=0.5,
        n_leapfrog=2,
        mass_matrix=MASS_MATRIX,
        unit="person_year",
    )
    print(budget.plan(step, draws=20, tune=6, chains=4))
print(f"\nspent so far: epsilon {budget.epsilon_spent}")

# %% [markdown]
# Two steps in each trajectory make two gradients; the gradient at the current point is kept, so each chain
# needs only one extra. All chains and all tuning iterations are in the plan.
#
# ## The run
#
# There is no `insecure_seed`. The noise comes from the operating system's entropy and cannot be repeated.

# %%
with visit_model(features, visited):
    step = dp.DPHMC(
        budget=budget,
        clip_gradient=2.0,
        clip_log_ratio=2.0,
        step_size=0.5,
        n_leapfrog=2,
        mass_matrix=MASS_MATRIX,
        unit="person_year",
    )
    private = pm.sample(draws=20, tune=6, chains=4, step=step, progressbar=False, compute_convergence_checks=False)
private["posterior"]["beta"].mean(("chain", "draw")).to_series().round(3)

# %% [markdown]
# ## What may be published, and what it cost
#
# The tree holds draws, statistics, releases and metadata. It holds no row, no coordinate of the rows, and no
# exact statistic of them. The privacy report puts the metadata into words.

# %%
print(sorted(private.children))
print()
print(privacy_report(private))

# %% [markdown]
# ## Are the draws any good?

# %%
print(quality_report(private))

# %% [markdown]
# **No.** Eighty draws, of which some twenty are new points, are no sample from a posterior. R-hat and
# the effective sample size say so, and they are right: do not report intervals from these draws. The clip
# fractions are released with noise (so they can be slightly negative), and they are small.
#
# What can be said is where the chains were. This table happens to be public, so for once we can look at what
# we would have got without privacy. With a confidential table this comparison would be a leak.

# %%
with visit_model(features, visited):
    open_run = pm.sample(draws=500, tune=500, chains=2, random_seed=1, nuts_sampler="pymc", progressbar=False)

over = ("chain", "draw")
open_mean, open_sd = open_run["posterior"]["beta"].mean(over), open_run["posterior"]["beta"].std(over)
private_mean = private["posterior"]["beta"].mean(over)
off = np.abs((private_mean - open_mean) / open_sd)
print(f"{'':<13}{'NUTS mean':>11}{'NUTS sd':>9}{'private mean':>14}{'off by':>11}")
for name in FEATURES:
    one = {"feature": name}
    print(
        f"{name:<13}{float(open_mean.sel(one)):>11.3f}{float(open_sd.sel(one)):>9.3f}"
        f"{float(private_mean.sel(one)):>14.3f}{float(off.sel(one)):>8.1f} sd"
    )

# %%
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
for place, (label, run) in enumerate({"NUTS, not private": open_run, "DP HMC": private}.items()):
    heights = np.arange(3) + 0.2 * place - 0.1
    beta = run["posterior"]["beta"]
    axes.errorbar(beta.mean(over), heights, xerr=2 * beta.std(over), fmt="o", capsize=3, label=label)
axes.set(yticks=range(3), yticklabels=FEATURES, xlabel="coefficient (log odds); mean ± 2 sd of the draws")
axes.invert_yaxis()
_ = axes.legend()
# %% [markdown]
# How typical is this? We ran the private analysis a hundred times (the table is public). In 84 runs all three
# means were within one posterior standard deviation of NUTS, in 98 within one and a half; at worst one was off
# by 2.6. So the means carry information, with an error of their own of half a standard deviation or so. Who
# pays more goes to the doctor less, and the chronically ill go more: both effects stand far outside that error.
#
# The widths of the private bars are not to be trusted, whatever they look like. They show the spread of four
# chains that have not mixed.

# %% [markdown]
# ## What would make it usable
#
# The last line of the quality report says it: more units, or a larger $\varepsilon$. Noise is in proportion
# to the bound on one unit's contribution and not to the number of units, so ten times the table is worth ten
# times the cost in $\rho$. We can check the advice, roughly, on a simulated table with a weak guarantee of
# $\varepsilon = 70$.

# %%
table = simulated_table(seed=1)
weak = dp.PrivacyBudget(epsilon=70.0, delta=1e-6)
print(quality_report(private_run(*table, weak, clip=2.0, draws=440, tune=40, insecure_seed=1)))

# %% [markdown]
# Better by far: R-hat is below 1.05 and the effective sample size comes near 200, though not quite there. The
# advice is an order of magnitude, not a promise. A guarantee of $\varepsilon = 70$ means nothing in practice.
# Nobody should spend that on real people. The honest ways are a larger table, fewer coefficients, and
# features scaled so that a smaller bound will do.

# %% [markdown]
# ## The budget refuses a second run
#
# The run spent the whole budget. Running it again, perhaps because one does not like the result, would need
# noise that was never paid for.

# %%
try:
    private_run(features, visited, budget, clip=2.0, draws=20, tune=6)
except dp.BudgetExceeded as refusal:
    print(f"BudgetExceeded: {refusal}")
print(budget)

# %% [markdown]
# Making a second budget object would get around this, and no program can stop you. The guarantee would then
# be that of both budgets together, which is weaker than either. If you expect several analyses, give each a
# part with `budget_share=`.

# %% [markdown]
# ## Saving and reading
#
# The tree is an ordinary xarray tree. It goes to netCDF and back with its guarantee.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "private.nc"
    private.to_netcdf(path)
    with xr.open_datatree(path) as on_disk:
        stored = on_disk.load()

np.testing.assert_array_equal(stored["posterior"]["beta"], private["posterior"]["beta"])
print(privacy_report(stored).splitlines()[0])
az.summary(stored, round_to=3)[["mean", "sd", "r_hat", "ess_bulk"]]

# %% [markdown]
# ## What to report
#
# - The guarantee, with its relation and its unit: $\varepsilon = 4$, $\delta = 10^{-6}$, substitution of one
#   person-year.
# - That scaling, priors and settings were chosen from public knowledge and simulated tables.
# - The means of the chains, and that the draws did not pass R-hat and effective sample size.
# - The file. All later work on it, by anyone, is free.
