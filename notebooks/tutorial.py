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
import pymc as pm
import xarray as xr
from scipy.special import expit
from statsmodels.datasets import randhie

import pymc_dp as dp
from pymc_dp.diagnostics import privacy_report, quality, quality_report

logging.getLogger("pymc").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

# %% [markdown]
# ## The model is an ordinary PyMC model
#
# Nine covariates: the logarithm of the coinsurance rate (0 to log 101, about 4.6), features of the insurance plan, an index of
# chronic diseases (0 to about 60) and self-rated health. They have to be centred and scaled, which is the first
# decision that concerns privacy. We do **not** use sample means and standard deviations: they are computed from
# everyone's rows, without noise. Round numbers from public knowledge serve as well.

# %%
#          column: centre, scale
SCALING = {
    "lncoins": (2.0, 2.0), "idp": (0.25, 0.43), "lpi": (5.0, 2.5), "fmde": (4.0, 3.5), "physlm": (0.12, 0.33),
    "disea": (10.0, 7.0), "hlthg": (0.35, 0.48), "hlthf": (0.08, 0.27), "hlthp": (0.02, 0.14),
}  # fmt: skip
FEATURES = ["intercept", *SCALING]


def features_of(columns):
    scaled = [(np.asarray(columns[name], float) - centre) / scale for name, (centre, scale) in SCALING.items()]
    return np.column_stack([np.ones(len(scaled[0])), *scaled])


def visit_model(features, visited):
    with pm.Model(coords={"person_year": np.arange(visited.size), "feature": FEATURES}) as model:
        x = pm.Data("x", features, dims=("person_year", "feature"))
        beta = pm.Normal("beta", 0.0, 1.0, dims="feature")
        pm.Bernoulli("visited", logit_p=x @ beta, observed=visited, dims="person_year")
    return model


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
# person's. So it is rows that we protect, and we have to say so. With an identifier, `unit_index=` would
# protect whole people.

# %% [markdown]
# ## A synthetic table
#
# A private sampler has settings such as clip bounds and scales. Computing them from the survey would leak. `DPSurrogateHMC`
# computes them from a *synthetic table*: the same model on simulated data of the same shape. What we assume about it (plans from free to full price, a skewed disease index, few people in poor health) is public
# knowledge. All columns are bounded. Its coefficients need not be near the true ones, but its covariates should be as large as
# those of the real table may be.


# %%
def simulated_table(seed, n=20_190):
    rng = np.random.default_rng(seed)
    health = rng.choice(4, size=n, p=[0.54, 0.36, 0.08, 0.02])
    amount = {name: np.clip(rng.normal(*law, size=n), 0.0, most) for name, law, most in
              (("lpi", (6.3, 0.6), 7.2), ("fmde", (6.8, 0.8), 8.3))}  # fmt: skip
    features = features_of(
        {
            "lncoins": np.log1p(rng.choice([0.0, 25.0, 50.0, 95.0, 100.0], size=n, p=[0.5, 0.1, 0.1, 0.2, 0.1])),
            "idp": rng.random(n) < 0.25,
            "lpi": np.where(rng.random(n) < 0.25, 0.0, amount["lpi"]),
            "fmde": np.where(rng.random(n) < 0.4, 0.0, amount["fmde"]),
            "physlm": rng.random(n) < 0.12,
            "disea": np.minimum(rng.gamma(3.0, 3.7, size=n), 60.0),
            "hlthg": health == 1,
            "hlthf": health == 2,
            "hlthp": health == 3,
        }
    )
    coefficients = rng.normal(size=10) * np.array([0.7] + [0.3] * 9)
    return features, rng.binomial(1, expit(features @ coefficients))


synthetic = visit_model(*simulated_table(99))

# %% [markdown]
# First a dry run of the whole analysis on two more synthetic tables. `insecure_seed` makes the noise reproducible, and the
# result is marked as not private; synthetic tables need no protection, and their budgets are separate. We compare the
# defaults, whose clip bounds clip the longest 0.05 % of synthetic scores, with tighter bounds that clip 1 %: less noise,
# more bias.

# %%
TIGHTER = {"clip_quantile": 0.99}


def private_run(features, visited, budget, draws=200, **settings):
    with visit_model(features, visited):
        step = dp.DPSurrogateHMC(budget=budget, synthetic=synthetic, unit="person_year", **settings)
        return dp.sample(
            draws=draws, tune=0, chains=4, cores=1, step=step, progressbar=False, compute_convergence_checks=False
        )


def mode_of(x, y):
    """Posterior mode and standard deviations without privacy."""
    theta = np.zeros(10)
    for _ in range(30):
        p = expit(x @ theta)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.eye(10)
        theta = theta + np.linalg.solve(curvature, x.T @ (y - p) - theta)
    return theta, np.sqrt(np.diag(np.linalg.inv(curvature)))


print(f"{'settings':<10}{'table':>6}{'accepted':>10}{'R-hat':>8}{'ESS':>6}{'means off by':>14}{'told of clipping':>20}")
for seed in (1, 2):
    for name, settings in {"default": {}, "tighter": TIGHTER}.items():
        table = simulated_table(seed)
        budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6)
        run = private_run(*table, budget, **settings, insecure_seed=seed)
        q, (mode, std) = quality(run), mode_of(*table)
        off = (run["posterior"]["beta"].mean(("chain", "draw")).values - mode) / std
        print(
            f"{name:<10}{seed:>6}{q.acceptance:>10.0%}{q.r_hat:>8.2f}{q.effective_draws:>6.0f}"
            f"{np.sqrt((off**2).mean()):>11.2f} sd{q.clip_bias:>12.2f} ± {q.clip_bias_noise_std:.2f}"
        )

# %% [markdown]
# "Means off by" is the root mean square over coefficients, in standard deviations of the posterior without privacy. Two tables are
# few for a choice, and differences of a tenth are noise; use more of them in practice. The last column is released by every
# run: approximately how far clip bounds may have moved the means, if all clipped scores pointed in one direction. We keep
# the defaults. Most important is whether a run *failed*: acceptance near zero, R-hat far above 1. Then the expansion point
# was too far from the mode ("Control variates" says why); a larger `Shares.centre` makes that rarer.

# %% [markdown]
# ## The plan, before anything is spent
#
# Now the survey. The budget belongs to the table: everything that is computed from the table should be charged
# to this one object. The plan says what will be released and how much noise each release carries.

# %%
survey = randhie.load_pandas().data
features, visited = features_of(survey), (survey["mdvis"].to_numpy() > 0).astype(np.int64)

budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6, data_name="RAND survey")
with visit_model(features, visited):
    step = dp.DPSurrogateHMC(budget=budget, synthetic=synthetic, unit="person_year")
    print(budget.plan(step, draws=200, tune=0, chains=4))
print(f"\nspent so far: epsilon {budget.epsilon_spent}")

# %% [markdown]
# Noisy Newton iterations with six scores find an expansion point near the posterior's mode. There, one score and one
# curvature are released: with the exact prior they define a surrogate of the posterior, from which draws cost no privacy.
# Each of the 800 tests releases only the remainder. Its bounds are small, so the tests can have large noise multipliers and
# a low cost.
#
# ## The run
#
# There is no `insecure_seed`. The noise comes from the operating system's entropy and cannot be repeated.

# %%
private = private_run(features, visited, budget)
private["releases"]["centre_position"].to_pandas().round(2)

# %% [markdown]
# These are the Newton iterates. They are released, so we may look at them. The last ones agree, as they should.
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
# R-hat and effective sample size are those of the chains. They do not include the noise of the released score, which has
# shifted all chains alike. The draws in `posterior` are widened for it; the plain ones are in the group `unwidened`.

# %%
plain = private["unwidened"]["theta"].std(("chain", "draw")).values
(private["posterior"]["beta"].std(("chain", "draw")).to_series() / plain).rename("widened sd / plain sd").round(2)

# %% [markdown]
# ## Comparison with a run without privacy
#
# This table is public, so we can compare with the posterior without privacy. With a confidential table this comparison would
# be a leak.

# %%
with visit_model(features, visited):
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
axes.set(yticks=range(10), yticklabels=FEATURES, xlabel="coefficient (log odds); mean ± 2 sd of the draws")
axes.invert_yaxis()
_ = axes.legend()

# %% [markdown]
# Typically the means are off by 0.3 posterior standard deviations (the README has figures). People who pay more go to the
# doctor less, and the chronically ill go more often: both effects are far larger than that error.
#
# ## Comparison with DP HMC
#
# DP Hamiltonian Monte Carlo tests whole log-ratios. The same budget, on a synthetic table:

# %%
table = simulated_table(1)
budget_of_synthetic = dp.PrivacyBudget(epsilon=4.0, delta=1e-6)
with visit_model(*table):
    synthetic_features, _ = simulated_table(99)
    step = dp.DPHMC(
        budget=budget_of_synthetic, clip_gradient=6.0, clip_log_ratio=6.0, step_size=0.2, n_leapfrog=2,
        mass_matrix=0.2 * synthetic_features.T @ synthetic_features,
    )  # fmt: skip
    classical = dp.sample(
        draws=10, tune=30, chains=4, cores=1, step=step, progressbar=False, compute_convergence_checks=False
    )
print(quality_report(classical))

# %% [markdown]
# It is exact, too, and for two or three coefficients and large tables it works well. With ten coefficients it does not mix
# at this budget.
#
# ## The budget refuses a second run
#
# The run spent the whole budget. Running it again would release more than was charged.

# %%
try:
    private_run(features, visited, budget)
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
az.summary(stored["unwidened"].to_dataset(), round_to=3)[["mean", "sd", "r_hat", "ess_bulk"]]

# %% [markdown]
# ## What to report
#
# - The guarantee, with its relation and its unit: $\varepsilon = 4$, $\delta = 10^{-6}$, substitution of one
#   person-year.
# - That scaling, priors, synthetic table and settings were chosen from public knowledge and simulated tables.
# - Means and intervals of the widened draws, and R-hat and effective sample size of the plain ones, if they pass.
# - The clip bounds and the released share of clipped remainders. That rows beyond the bounds count less.
# - The file. Further analyses of it, by anyone, cost no privacy.
