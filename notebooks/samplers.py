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
# # All samplers on one small model
#
# A logistic regression with two coefficients and 20,000 simulated rows, at $\varepsilon = 4$. All tables here are simulated, so
# results can be compared with the posterior without privacy. Each stands beside its model, as a confidential one would: what is
# public about its columns is declared, and the model is built on invented rows of that form. Privacy noise is fresh in every
# execution.

# %%
import logging
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
from scipy.special import expit
from scipy.stats import norm

import pymc_dp as dp
from pymc_dp.diagnostics import quality, quality_report

logging.getLogger("pymc").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

N = 20_000


def people(seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=N)
    intercept, slope = rng.normal(size=2)
    return pd.DataFrame({"x": x, "y": rng.binomial(1, expit(intercept + slope * x))})


def regression(t):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=2)
        pm.Bernoulli("y", logit_p=theta[0] + theta[1] * t.x, observed=t.y)
    return model


def laplace(x, y):
    """The posterior's mode and standard deviations, without privacy."""
    design, theta = np.column_stack([np.ones_like(x), x]), np.zeros(2)
    for _ in range(20):
        p = expit(design @ theta)
        information = (design * (p * (1 - p))[:, None]).T @ design + np.eye(2)
        theta = theta + np.linalg.solve(information, design.T @ (y - p) - theta)
    return theta, np.sqrt(np.diag(np.linalg.inv(information)))


# %% [markdown]
# ## The samplers
#
# A row's score is $(y - p)(1, x)$, never longer than $\sqrt 2$. So a bound of 1.5 clips nothing. The mass matrix is about the
# information matrix of a logistic regression whose $x$ is uniform. All of that is public.

# %%
MASS = np.array([0.2 * N, 0.2 * N / 3])
STD = MASS**-0.5
BOUNDS = {"clip_gradient": 1.5, "clip_log_ratio": 1.5}
SGD = {"clip_gradient": 1.5, "mass_matrix": MASS, "batch_size": 400}

#: name: draws and tuning iterations of a chain, tempering of the target, how to make the step
SAMPLERS = {
    "DPHMC": (40, 20, 1.0, lambda b: dp.DPHMC(budget=b, step_size=0.5, n_leapfrog=2, mass_matrix=MASS, **BOUNDS)),
    "DPMALA": (60, 30, 1.0, lambda b: dp.DPMALA(budget=b, step_size=0.6, mass_matrix=MASS, **BOUNDS)),
    "DPPenalty": (200, 200, 1.0, lambda b: dp.DPPenalty(budget=b, clip_log_ratio=1.5, proposal_scale=STD)),
    "DPPenalty, guided": (
        200,
        200,
        1.0,
        lambda b: dp.DPPenalty(
            budget=b, clip_log_ratio=1.5, proposal="one-component-guided-walk", proposal_scale=2.0 * STD
        ),
    ),
    "DPMinibatchPenalty": (
        300,
        300,
        0.02,
        lambda b: dp.DPMinibatchPenalty(
            budget=b, clip_log_ratio=1.5, proposal_scale=5.0 * STD, batch_size=2000, tempering=0.02
        ),
    ),
    "DPBarker": (
        200,
        100,
        0.005,
        lambda b: dp.DPBarker(budget=b, proposal_scale=4.0 * STD, batch_size=100, tempering=0.005),
    ),
    "DPSGHMC": (100, 50, 1.0, lambda b: dp.DPSGHMC(budget=b, step_size=0.05, n_leapfrog=10, friction=None, **SGD)),
    "DPSGNHT": (100, 50, 1.0, lambda b: dp.DPSGNHT(budget=b, step_size=0.1, n_steps=10, diffusion=None, **SGD)),
    "DPSGLD": (100, 50, 1.0, lambda b: dp.DPSGLD(budget=b, step_size=0.04, n_steps=5, **SGD)),
    "DPSurrogateHMC": (200, 0, 1.0, lambda b: dp.DPSurrogateHMC(budget=b)),
}


def sampled(table, make, draws, tune, epsilon=4.0, **settings):
    budget = dp.PrivacyBudget(epsilon=epsilon, delta=1e-6)
    with regression(table.template):
        return dp.sample(
            draws=draws, tune=tune, chains=4, cores=1, step=make(budget), data=table, progressbar=False,
            compute_convergence_checks=False, **settings,
        )  # fmt: skip


rows = people(1)
table = dp.Table.from_frame(rows, schema=[dp.Number("x", -1, 1), dp.YesNo("y")])
mean, std = laplace(rows["x"].to_numpy(), rows["y"].to_numpy())
lines = [
    f"{'sampler':<20}{'draws':>6}{'accepted':>10}{'R-hat':>8}{'ESS':>6}{'mean off by':>13}{'sd / sd of target':>20}"
]
for name, (draws, tune, part, make) in SAMPLERS.items():
    run = sampled(table, make, draws, tune, initvals={"theta": np.zeros(2)})
    q = quality(run)
    theta = run["posterior"]["theta"].values.reshape(-1, 2)
    off = np.abs(theta.mean(axis=0) - mean).max() / std.min()
    ratio = (theta.std(axis=0) / std).mean() * np.sqrt(part)
    share = f"{q.acceptance:.0%}" if q.tested else "-"
    lines.append(
        f"{name:<20}{4 * draws:>6}{share:>10}{q.r_hat:>8.3g}{q.effective_draws:>6.0f}{off:>10.1f} sd{ratio:>20.2f}"
    )
print("\n".join(lines))

# %% [markdown]
# *DPHMC*, *DPMALA* and *DPPenalty* are exact, and at this budget they have not mixed. *DPMinibatchPenalty* and
# *DPBarker* sample a tempered posterior, here that of a fiftieth and a two-hundredth of the rows, and their widths are
# compared with that target's, $\sqrt{50}$ and $\sqrt{200}$ times wider; their means with that of the full posterior, in its
# standard deviations, though their own width is a multiple of it. *DPSGHMC*, *DPSGNHT* and *DPSGLD* have no test: steps and batches bias them. *DPSurrogateHMC* learns its
# settings itself and has no test here: its draws are of a normal likelihood with the exact prior. The noise has shifted them
# once, by about as much as the column "mean off by" says, and their width accounts for that shift.
#
# The settings are sensible ones that need no data. They were not tuned one by one, and other models rank differently. In all of them the surrogate sampler spends
# most of its budget once, and little for each draw.
#
# ## With nothing but a budget
#
# Where a setting is missing, a sampler learns it before its chains start, and then releases only what an expansion of the
# log-likelihood misses. The same samplers, at the same budget, in short chains:

# %%
LEARNED = {
    "DPHMC": dp.DPHMC,
    "DPMALA": dp.DPMALA,
    "DPPenalty": dp.DPPenalty,
    "DPMinibatchPenalty": dp.DPMinibatchPenalty,
    "DPSGHMC": dp.DPSGHMC,
}
lines = [f"{'sampler':<20}{'draws':>6}{'accepted':>10}{'R-hat':>8}{'ESS':>6}{'mean off by':>13}{'verdict':>12}"]
for name, sampler in LEARNED.items():
    with regression(table.template):
        run = pm.sample(
            draws=200, tune=200, step=sampler(), budget=dp.PrivacyBudget(epsilon=4.0, delta=1e-6), data=table, cores=1,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    q = quality(run)
    theta = run["posterior"]["theta"].values.reshape(-1, 2)
    off = np.abs(theta.mean(axis=0) - mean).max() / std.min()
    share = f"{q.acceptance:.0%}" if q.tested else "-"
    lines.append(
        f"{name:<20}{q.draws:>6}{share:>10}{q.r_hat:>8.3g}{q.effective_draws:>6.0f}{off:>10.1f} sd{q.verdict:>12}"
    )
print("\n".join(lines))

# %% [markdown]
# The prelude takes most of the budget, and its noise is what is left of the error: it does not average out over draws.
# *DPSGHMC* has no test, so that its report cannot call it usable.

# %% [markdown]
# ## What noise costs in acceptance
#
# The penalty test accepts with probability $\min(1, e^{r + \xi - \sigma^2/2})$, $\xi \sim N(0, \sigma^2)$. Between points of equal
# density, $r = 0$, that is on average $2 \Phi(-\sigma/2)$. To show this, a random walk makes short moves with a clip
# bound that is far too wide: log-ratios are then small compared with their noise, which is proportional to the length of
# the move.

# %%
run = sampled(
    table,
    lambda b: dp.DPPenalty(budget=b, clip_log_ratio=100.0, proposal_scale=0.01 * STD),
    draws=500,
    tune=0,
    initvals={"theta": mean},
)
sigma = run["sample_stats"]["noise_std"].values.ravel()
accepted = run["sample_stats"]["accepted"].values.ravel().astype(float)
edges = np.quantile(sigma, np.linspace(0, 1, 13))
place = np.clip(np.digitize(sigma, edges) - 1, 0, 11)
bins = [place == k for k in range(12)]
middle, share = (np.array([values[chosen].mean() for chosen in bins]) for values in (sigma, accepted))
count = np.array([chosen.sum() for chosen in bins])
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
grid = np.linspace(0, 1.05 * middle.max(), 200)
axes.plot(grid, 2 * norm.cdf(-grid / 2), label=r"theory: $2\,\Phi(-\sigma/2)$")
axes.errorbar(
    middle, share, yerr=2 * np.sqrt(share * (1 - share) / count), fmt="o", capsize=3, label="2,000 tests, by twelfths"
)
axes.set(xlabel=r"$\sigma$, standard deviation of the noise in the test", ylabel="accepted", ylim=(0, 1.05))
_ = axes.legend()

# %% [markdown]
# At $\sigma = 1$ the noise costs 38 % of the acceptance, at 3 it costs 87 %. (This run started at the posterior mode, which with a
# confidential table would be a leak.)

# %% [markdown]
# ## Counts: a Poisson regression
#
# A row's score is $(y - \mu)(1, x)$, and no bound on $y$ is part of the model (the declared range, up to 100, cuts none of them).
# So the clip bound decides which counts have full weight. Below are counts from the model, and counts of the same mean with a variance several times as large, which the
# Poisson model does not describe. For each: the bias of weighting down rows beyond the bound, and the shift by noise at
# $\varepsilon = 4$, both in posterior standard deviations; on simulated tables that can be computed exactly.


# %%
def counts(seed, spread):
    """Counts of mean exp(intercept + slope x); `spread` is the variance of the rate, relative to its square."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=N)
    rate = np.exp(0.7 + 0.2 * rng.normal() + 0.3 * rng.normal() * x)
    return x, rng.poisson(rate * (rng.gamma(1 / spread, spread, size=N) if spread else 1.0))


def mode_of_counts(x, y, weights=1.0):
    design, theta = np.column_stack([np.ones_like(x), x]), np.array([np.log(2.0), 0.0])
    for _ in range(20):
        mu = np.exp(design @ theta)
        information = (design * (weights * mu)[:, None]).T @ design + np.eye(2)
        theta = theta + np.linalg.solve(information, design.T @ (weights * (y - mu)) - theta)
    return theta, np.linalg.inv(information), np.linalg.norm((y - np.exp(design @ theta))[:, None] * design, axis=1)


multiplier = np.sqrt(1 / (2 * 0.5 * dp.accounting.gaussian_rho(4.0, 1e-6)))  # half of the budget for the score
print(f"{'counts':<14}{'largest':>8}{'quantile':>10}{'bound':>7}{'bias':>7}{'forced':>8}")
for label, spread in (("Poisson", 0.0), ("overdispersed", 1.5)):
    x, y = counts(7, spread)
    mode, covariance, lengths = mode_of_counts(x, y)
    sd = np.sqrt(np.diag(covariance))
    for quantile in (0.99, 0.998, 1.0):
        bound = np.quantile(lengths, quantile)
        weighted, *_ = mode_of_counts(x, y, np.minimum(1.0, bound / lengths))
        bias = np.abs((weighted - mode) / sd).max()
        forced = (np.linalg.norm(covariance, axis=1) * 2 * multiplier * bound / sd).max()
        print(f"{label:<14}{y.max():>8}{quantile:>10}{bound:>7.1f}{bias:>7.2f}{forced:>8.2f}")

# %% [markdown]
# For counts from the model a bound that clips nothing is affordable. For overdispersed ones none of these bounds keeps both
# errors below half a standard deviation, and heavier tails make it much worse: use a likelihood with the right tail
# (negative binomial) or a public cap on the counts, with a posterior about capped counts.
#
# `DPSurrogateHMC` does two things about it. It finds the bound that balances bias and noise from a noisy histogram of norms. And
# to each clipped score it adds the mean of what clipping takes off, over the counts that the model draws for the row's $x$: where
# the model holds, no bound biases the sum.


# %%
def count_model(t):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=2)
        pm.Poisson("y", mu=pm.math.exp(theta[0] + theta[1] * t.x), observed=t.y)
    return model


for label, spread in (("Poisson", 0.0), ("overdispersed", 1.5)):
    x, y = counts(7, spread)
    mode, covariance, _ = mode_of_counts(x, y)
    counted = dp.Table.from_frame({"x": x, "y": y}, schema=[dp.Number("x", -1, 1), dp.Whole("y", 0, 100, raw=True)])
    with count_model(counted.template):
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(epsilon=4.0, delta=1e-6))
        run = dp.sample(
            draws=200, tune=0, chains=4, cores=1, step=step, data=counted, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    off = (run["posterior"]["theta"].mean(("chain", "draw")).values - mode) / np.sqrt(np.diag(covariance))
    print(f"{label}: means off by {off.round(2)} sd; clip bounds {run['privacy'].attrs['clip_bounds']}")
    print(quality_report(run) + "\n")

# %% [markdown]
# Clip bounds are along the learned directions here, in which a typical score has the length $\sqrt 2$. For overdispersed counts the mean that
# is added is the Poisson model's, and too small.

# %% [markdown]
# ## A hierarchical model
#
# Twenty clinics with an intercept each, centred: $a_j \sim N(\mu, s)$. One patient's likelihood depends on $a_j$
# and on the slope, and not on $\mu$ and $s$: the releases concern the former, and the exact prior determines the latter. So
# write such models in the centred form. (In the non-centred form the
# likelihood depends on $\mu + s z_j$, which is far from quadratic.)
#
# Nobody tells the sampler how large the clinics are: the early curvature shows it.

# %%
CLINICS = 20


def clinics(seed, n=10_000):
    rng = np.random.default_rng(seed)
    clinic, dose = rng.integers(CLINICS, size=n), np.clip(rng.normal(size=n), -2.5, 2.5)
    intercepts, slope = rng.normal(0.3, 0.6, size=CLINICS), 0.5 * rng.normal()
    y = rng.binomial(1, expit(intercepts[clinic] + slope * dose))
    return pd.DataFrame({"clinic": clinic, "dose": dose, "y": y}), intercepts


def clinic_model(t):
    with pm.Model(coords={"clinic": np.arange(CLINICS)}) as model:
        mu, s = pm.Normal("mu", 0.0, 1.5), pm.HalfNormal("s", 1.0)
        a = pm.Normal("a", mu, s, dims="clinic")
        b = pm.Normal("b", 0.0, 1.0)
        pm.Bernoulli("y", logit_p=a[t.clinic] + b * t.dose, observed=t.y)
    return model


patients, truth = clinics(1)
levels = [str(clinic) for clinic in range(CLINICS)]
treated = dp.Table.from_frame(
    patients,
    schema=[dp.Category("clinic", levels, other=False), dp.Number("dose", -2.5, 2.5, raw=True), dp.YesNo("y")],
)
with clinic_model(treated.template):
    step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(epsilon=4.0, delta=1e-6))
    run = dp.sample(
        draws=100, tune=0, chains=4, cores=1, step=step, data=treated, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
print(quality_report(run))

# %%
a = run["posterior"]["a"].stack(sample=("chain", "draw")).values
low, high = np.quantile(a, [0.05, 0.95], axis=1)
print(f"of {CLINICS} true intercepts, {np.sum((low < truth) & (truth < high))} are in their 90 % intervals")
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.errorbar(truth, a.mean(axis=1), yerr=[a.mean(axis=1) - low, high - a.mean(axis=1)], fmt="o", capsize=3)
axes.plot([truth.min(), truth.max()], [truth.min(), truth.max()], color="grey")
_ = axes.set(xlabel="true intercept of the clinic", ylabel="private 90 % interval")
