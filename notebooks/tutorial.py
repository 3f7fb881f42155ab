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
# # A private analysis of a real survey
#
# In the 1970s the RAND Health Insurance Experiment gave families insurance plans that differed in how much of
# a doctor's bill they had to pay themselves. Did those who paid more go to the doctor less?
#
# The table has 20,190 person-years. We fit a logistic regression of "saw a doctor this year" with ten
# coefficients, and we publish the posterior under differential privacy with $\varepsilon = 4$ and $\delta =
# 10^{-6}$. The tutorial assumes PyMC and no knowledge of privacy.
#
# Privacy noise is fresh in every execution, so your numbers differ from those shown here.

# %%
import logging
import tempfile
import warnings
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from scipy.special import expit
from statsmodels.datasets import randhie

import pymc_dp as dp
from pymc_dp.diagnostics import privacy_report, quality, quality_report

logging.getLogger("pymc").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

# %% [markdown]
# ## What is public about the table
#
# Nine covariates: the logarithm of the coinsurance rate (0 to log 101, about 4.6), features of the insurance plan, an index of
# chronic diseases (0 to about 60) and self-rated health. Each column is *declared*: its type, and the range that the
# questionnaire gives it. The prior needs covariates on a common scale, which is the first decision that concerns privacy. We do
# **not** use sample means and standard deviations: they are computed from everyone's rows, without noise. A `dp.Number` is on
# [−1, 1] in the model, by its declared range, a `dp.YesNo` is 0 or 1.

# %%
SCHEMA = [
    dp.Number("lncoins", 0, 4.62), dp.YesNo("idp"), dp.Number("lpi", 0, 8), dp.Number("fmde", 0, 9),
    dp.Number("physlm", 0, 1), dp.Number("disea", 0, 60), dp.YesNo("hlthg"), dp.YesNo("hlthf"), dp.YesNo("hlthp"),
    dp.YesNo("visited"),
]  # fmt: skip
COVARIATES = [column.name for column in SCHEMA if column.name != "visited"]

survey = randhie.load_pandas().data
survey["visited"] = survey["mdvis"] > 0
table = dp.Table.from_frame(survey, schema=SCHEMA)
print(table)

# %% [markdown]
# ## The model is an ordinary PyMC model
#
# It is built on `table.template`: a thousand invented rows of the declared form, with a column for each name. The survey stands
# beside it and is only ever asked for noisy sums, so the model's code cannot have looked at anybody.


# %%
def visit_model(x, visited):
    with pm.Model(coords={"feature": ["intercept", *COVARIATES]}) as model:
        beta = pm.Normal("beta", 0.0, 1.0, dims="feature")
        pm.Bernoulli("visited", logit_p=pm.Data("x", x) @ beta, observed=visited)
    return model


def on_template(table):
    t = table.template
    return visit_model(np.column_stack([np.ones(t.n), t.matrix(*COVARIATES)]), t.visited)


# %% [markdown]
# ## What is protected
#
# One *unit*: here one person-year, a row. The guarantee: if any one row were replaced by any other, the probability of every
# set of results of this analysis would change by at most a factor $e^4$, plus $10^{-6}$.
#
# A factor $e^4 \approx 55$ sounds large, and $\varepsilon = 4$ is not strong. It is a bound for the worst
# case. For this package's noise it has an exact meaning: somebody who knows all other rows and tries to tell
# two versions of one row apart, at the 5 % level, succeeds with power at most 21 %.
#
# Many people in this survey have several person-years, and the table does not say which rows are the same
# person's. So it is rows that we protect: each is a unit of its own where no column is declared as `dp.Person`. With an
# identifier, `dp.Person` would protect whole people.

# %% [markdown]
# ## A dry run on a simulated table
#
# A private sampler needs clip bounds, scales and a point near the mode. Computing them from the survey would leak, and guessing
# them is hard. `DPSurrogateHMC` learns them by small noisy releases, which its budget pays for: we give it the budget and
# nothing else.
#
# Whether $\varepsilon = 4$ and 20,190 rows will be enough can be seen beforehand, on simulated tables. We make up the covariates,
# uniform over their declared ranges, and coefficients. `insecure_seed` makes the noise reproducible, and the result is marked as
# not private; simulated tables need no protection, and their budgets are separate.


# %%
def design_of(rows):
    """What the model has of a table that is public: an intercept, and columns on their declared scales."""
    columns = [np.ones(len(rows))]
    for each in SCHEMA[:-1]:
        low, high = (each.low, each.high) if isinstance(each, dp.Number) else (-1.0, 1.0)
        columns.append((2.0 * rows[each.name] - low - high) / (high - low))
    return np.column_stack(columns)


def simulated_survey(seed, n=20_190):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame(
        {
            each.name: rng.uniform(each.low, each.high, n) if isinstance(each, dp.Number) else rng.binomial(1, 0.1, n)
            for each in SCHEMA[:-1]
        }
    )
    return rows.assign(visited=rng.binomial(1, expit(design_of(rows) @ rng.normal(0.0, 0.4, size=10))))


def private_run(table, budget, **settings):
    with on_template(table):
        step = dp.DPSurrogateHMC(budget=budget, **settings)
        return dp.sample(
            draws=200, tune=0, chains=4, cores=1, step=step, data=table, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip


def mode_of(x, y):
    """Posterior mode and standard deviations without privacy."""
    theta = np.zeros(10)
    for _ in range(30):
        p = expit(x @ theta)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.eye(10)
        theta = theta + np.linalg.solve(curvature, x.T @ (y - p) - theta)
    return theta, np.sqrt(np.diag(np.linalg.inv(curvature)))


print(f"{'epsilon':>8}{'table':>6}{'R-hat':>8}{'ESS':>6}{'means off by':>14}{'sd / sd':>9}{'in 90 % intervals':>19}")
for epsilon in (4.0, 1.0):
    for seed in (1, 2):
        rows = simulated_survey(seed)
        budget = dp.PrivacyBudget(epsilon=epsilon, delta=1e-6)
        run = private_run(dp.Table.from_frame(rows, schema=SCHEMA), budget, insecure_seed=seed)
        q, (mode, sd) = quality(run), mode_of(design_of(rows), rows["visited"].to_numpy())
        draws = run["posterior"]["beta"].values.reshape(-1, 10)
        off = np.sqrt((((draws.mean(axis=0) - mode) / sd) ** 2).mean())
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        print(
            f"{epsilon:>8g}{seed:>6}{q.r_hat:>8.2f}{q.effective_draws:>6.0f}{off:>11.2f} sd"
            f"{(draws.std(axis=0) / sd).mean():>9.2f}{np.sum((low < mode) & (mode < high)):>13} of 10"
        )

# %% [markdown]
# "Means off by" is the root mean square over coefficients, in standard deviations of the posterior without privacy. The private draws
# are wider than that posterior, because they include the noise; the last column counts the coefficients whose 90 % interval
# holds the mode without privacy. Two tables are few for a choice; use more of them in practice.

# %% [markdown]
# ## The plan, before anything is spent
#
# Now the survey. The budget belongs to the table: everything that is computed from the table should be charged
# to this one object. The plan says what will be released and how much noise each release carries.

# %%
budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6, data_name="RAND survey")
with on_template(table):
    print(budget.plan(dp.DPSurrogateHMC(), data=table, draws=200, tune=0, chains=4))
print(f"\nspent so far: epsilon {budget.epsilon_spent}")

# %% [markdown]
# The first releases learn scales. `coordinate_sizes` counts the sizes of scores by coefficient, `score_sizes` and
# `curvature_sizes` those of whole vectors: histograms, which need no clip bound and say which one suits the next release.
# The curvatures `early_`, `middle_` and `late_curvature` give directions. The scores `approach` and `centre` lead to a point near the
# posterior's mode. There, one more score and curvature are released: with the exact prior they define a surrogate of the
# posterior, from which draws cost no privacy. So 200 draws cost as much as 2,000. `clipping_loss` says how much clip bounds
# have cut off.
#
# ## The run
#
# There is no `insecure_seed`. The noise comes from the operating system's entropy and cannot be repeated.

# %%
private = private_run(table, budget)
releases = private["releases"]
way = np.concatenate([releases[f"{kind}_position"].values for kind in ("approach", "centre", "score")])
pd.DataFrame(way, columns=["intercept", *COVARIATES]).round(2)

# %% [markdown]
# These are the points at which scores were released, so we may look at them. The last ones agree, as they should.
#
# ## What may be published, and what it cost
#
# The tree holds draws, statistics, releases and metadata. It holds no row, no coordinate of the rows, and no
# exact statistic of them. The privacy report states the metadata in words.

# %%
print(sorted(private.children))
print()
print(privacy_report(private))

# %% [markdown]
# ## Are the draws usable?

# %%
print(quality_report(private))

# %% [markdown]
# R-hat and effective sample size are those of the chains. The noise of what was released has shifted all chains alike. The
# likelihood knows of it: it is wider by that noise, by that of the curvature and by an estimate of the bias of clipping.

# %%
likelihood = dp.PrivateLikelihood(private)
alone = np.sqrt(np.diag(likelihood.without_noise))
(private["posterior"]["beta"].std(("chain", "draw")).to_series() / alone).rename("sd / sd without noise").round(2)

# %% [markdown]
# ## Comparison with a run without privacy
#
# This table is public, so we can compare with the posterior without privacy. With a confidential table this comparison would
# be a leak.

# %%
with visit_model(design_of(survey), survey["visited"].to_numpy()):
    open_run = pm.sample(
        draws=300, tune=300, chains=2, cores=1, random_seed=1, nuts_sampler="pymc", progressbar=False
    )  # fmt: skip

over = ("chain", "draw")
open_mean, open_sd = open_run["posterior"]["beta"].mean(over), open_run["posterior"]["beta"].std(over)
private_mean, private_sd = private["posterior"]["beta"].mean(over), private["posterior"]["beta"].std(over)
xr.Dataset(
    {
        "NUTS mean": open_mean,
        "NUTS sd": open_sd,
        "private mean": private_mean,
        "off by (sd)": (private_mean - open_mean) / open_sd,
        "private sd / sd": private_sd / open_sd,
    }
).to_dataframe().round(3)

# %%
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for place, (label, run) in enumerate({"NUTS, not private": open_run, "DPSurrogateHMC": private}.items()):
    heights = np.arange(10) + 0.2 * place - 0.1
    beta = run["posterior"]["beta"]
    axes.errorbar(beta.mean(over), heights, xerr=2 * beta.std(over), fmt="o", capsize=3, label=label)
axes.set(
    yticks=range(10), yticklabels=open_mean["feature"].values, xlabel="coefficient (log odds); mean ± 2 sd of the draws"
)
axes.invert_yaxis()
_ = axes.legend()

# %% [markdown]
# Typically the means are off by 0.3 posterior standard deviations (the README has figures). People who pay more go to the
# doctor less, and the chronically ill go more often: both effects are far larger than that error.
#
# ## Comparison with DP HMC
#
# DP Hamiltonian Monte Carlo tests whole log-ratios. Its settings have to be chosen from public knowledge: on a simulated
# table we can give it the best ones. The same budget:

# %%
rows = simulated_survey(1)
simulated, design = dp.Table.from_frame(rows, schema=SCHEMA), design_of(rows)
with on_template(simulated):
    step = dp.DPHMC(
        budget=dp.PrivacyBudget(epsilon=4.0, delta=1e-6), clip_gradient=6.0, clip_log_ratio=6.0, step_size=0.2,
        n_leapfrog=2, mass_matrix=0.2 * design.T @ design,
    )  # fmt: skip
    classical = dp.sample(
        draws=10, tune=30, chains=4, cores=1, step=step, data=simulated, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
print(quality_report(classical))

# %% [markdown]
# It is exact, and for two or three coefficients and large tables it works well. With ten coefficients it does not mix at
# this budget.
#
# ## The budget refuses a second run
#
# The run spent the whole budget. Running it again would release more than was charged.

# %%
try:
    private_run(table, budget)
except dp.BudgetExceeded as refusal:
    print(f"BudgetExceeded: {refusal}")
print(budget)

# %% [markdown]
# Making a second budget object would circumvent this, and no program can prevent it. The guarantee would then
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
az.summary(stored["posterior"].to_dataset(), round_to=3)[["mean", "sd", "r_hat", "ess_bulk"]]

# %% [markdown]
# ## What to report
#
# - The guarantee, with its relation and its unit: $\varepsilon = 4$, $\delta = 10^{-6}$, substitution of one
#   person-year.
# - The declaration of the columns, which the result has (`schema` in its group `privacy`).
# - That ranges, priors and settings were chosen from public knowledge and simulated tables.
# - Means and intervals of the draws, with R-hat and effective sample size, if they pass.
# - The clip bounds, and the released figure of how far they may have moved the means.
# - The file. Further analyses of it, by anyone, cost no privacy.
