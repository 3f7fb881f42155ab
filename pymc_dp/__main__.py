"""The demonstration: a private run on a real survey, end to end. ``python -m pymc_dp``.

Settings were chosen on simulated tables of the survey's shape (`simulated_table`), never on the survey.
"""

import sys
import time
import warnings
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from numpy.typing import NDArray
from xarray import DataTree

import pymc_dp as dp
from pymc_dp.diagnostics import privacy_report, quality, quality_report

FEATURES = ["intercept", "lncoins", "disea"]
#: Priors of a sceptic: no effect moves the odds by more than a factor e² or so over its feature's range.
PRIOR_STD = np.array([1.0, 0.5, 0.5])
EPSILON, DELTA = 4.0, 1e-6
CHAINS, TUNE, DRAWS = 4, 6, 20
OUTPUT = Path("pymc_dp_demo")


def survey() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return features, shape (20190, 3), and whether a doctor was visited, shape (20190,).

    The RAND Health Insurance Experiment as it comes with statsmodels. Features are centred and scaled by round
    public numbers: log coinsurance rates run from 0 to log(101), the disease index from 0 to about 60.
    """
    from statsmodels.datasets import randhie  # noqa: PLC0415 an optional dependency

    table = randhie.load_pandas().data
    features = features_of(table["lncoins"].to_numpy(), table["disea"].to_numpy())
    return features, (table["mdvis"].to_numpy() > 0).astype(np.int64)


def features_of(lncoins: NDArray[np.float64], disea: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the model's features, shape (rows, 3)."""
    return np.column_stack([np.ones(lncoins.size), (lncoins - 2.0) / 2.0, (disea - 10.0) / 10.0])


def simulated_table(seed: int, n: int = 20190) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return made-up data of the survey's shape: coinsurance plans of 0 to 95 %, a skewed disease index."""
    generator = np.random.default_rng(seed)
    rates = generator.choice([0.0, 25.0, 50.0, 95.0, 100.0], size=n, p=[0.5, 0.1, 0.1, 0.2, 0.1])
    features = features_of(np.log1p(rates), np.minimum(generator.gamma(3.0, 3.7, size=n), 60.0))
    coefficients = generator.normal(size=3) * PRIOR_STD
    visited = generator.random(n) < 1.0 / (1.0 + np.exp(-features @ coefficients))
    return features, visited.astype(np.int64)


def survey_model(features: NDArray[np.float64], visited: NDArray[np.int64]) -> pm.Model:
    """Return an ordinary PyMC model: logistic regression of any doctor's visit in a year."""
    with pm.Model(coords={"person_year": np.arange(visited.size), "feature": FEATURES}) as model:
        x = pm.Data("x", features, dims=("person_year", "feature"))
        beta = pm.Normal("beta", 0.0, PRIOR_STD, dims="feature")
        pm.Bernoulli("visited", logit_p=x @ beta, observed=visited, dims="person_year")
    return model


def private_step(budget: dp.PrivacyBudget) -> dp.DPHMC:
    """Return the sampler with settings from simulated tables. Needs a model context."""
    features, _ = simulated_table(seed=99)
    return dp.DPHMC(
        budget=budget,
        clip_gradient=2.0,
        clip_log_ratio=2.0,
        step_size=0.5,
        n_leapfrog=2,
        mass_matrix=0.2 * features.T @ features,  # about the information of a logistic regression
        unit="person_year",
    )


def main() -> None:
    """Run the demonstration."""
    began = time.perf_counter()
    say("Did people visit a doctor this year? 20,190 person-years of the RAND Health Insurance Experiment.")
    say("What is protected is one person-year: the table does not say which rows are the same person's.")
    features, visited = survey()
    budget = dp.PrivacyBudget(epsilon=EPSILON, delta=DELTA)
    with survey_model(features, visited):
        step = private_step(budget)
        say(f"\nThe plan, before anything is spent:\n{budget.plan(step, draws=DRAWS, tune=TUNE, chains=CHAINS)}\n")
        private = pm.sample(draws=DRAWS, tune=TUNE, chains=CHAINS, step=step, compute_convergence_checks=False)
    say(f"\nThe private posterior:\n{az.summary(private, round_to=3).to_string()}")
    say(f"\nWhat may be published, and what it cost:\n{privacy_report(private)}")
    say(f"\nHow good it is:\n{quality_report(private)}")

    say("\nThis table is public, so for once it can be compared with an ordinary run (NUTS, no privacy):")
    with survey_model(features, visited):
        open_run = pm.sample(draws=1000, tune=1000, chains=2, random_seed=1, nuts_sampler="pymc", progressbar=False)
    say(comparison(private, open_run))
    save(private, open_run)
    say(f"\nSaved {OUTPUT / 'private.nc'} and {OUTPUT / 'comparison.png'}. {time.perf_counter() - began:.0f} seconds.")


def comparison(private: DataTree, open_run: DataTree) -> str:
    """Return how far the private posterior is from the ordinary one, in the ordinary one's standard deviations."""
    over = ("chain", "draw")
    mean, std = open_run["posterior"]["beta"].mean(over), open_run["posterior"]["beta"].std(over)
    shift = (private["posterior"]["beta"].mean(over) - mean) / std
    ratio = private["posterior"]["beta"].std(over) / std
    lines = [f"{'':<12}{'mean':>8}{'sd':>8}{'private mean is off by':>25}{'private sd / sd':>18}"]
    for name in FEATURES:
        one = {"feature": name}
        lines.append(
            f"{name:<12}{float(mean.sel(one)):>8.3f}{float(std.sel(one)):>8.3f}"
            f"{float(shift.sel(one)):>22.2f} sd{float(ratio.sel(one)):>18.2f}"
        )
    verdict = "usable" if quality(private).usable else "not usable as a posterior"
    return "\n".join([*lines, f"Judged by the private run's own diagnostics, without this table: {verdict}."])


def save(private: DataTree, open_run: DataTree) -> None:
    """Write the publishable tree and a picture of both posteriors."""
    OUTPUT.mkdir(exist_ok=True)
    private.to_netcdf(OUTPUT / "private.nc")
    draw_intervals({"private (DP HMC)": private, "not private (NUTS)": open_run}, OUTPUT / "comparison.png")


def draw_intervals(runs: dict[str, DataTree], path: Path) -> None:
    """Draw means and 89 % intervals of every coefficient, one line a run."""
    from matplotlib.figure import Figure  # noqa: PLC0415 an optional dependency

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot(xlabel="coefficient (log odds)", yticks=range(len(FEATURES)), yticklabels=FEATURES)
    for place, (label, run) in enumerate(runs.items()):
        draws = run["posterior"]["beta"].stack(sample=("chain", "draw")).sel(feature=FEATURES).values
        low, mean, high = np.quantile(draws, 0.055, axis=1), draws.mean(axis=1), np.quantile(draws, 0.945, axis=1)
        heights = np.arange(len(FEATURES)) + 0.2 * place - 0.1
        axes.errorbar(mean, heights, xerr=[mean - low, high - mean], fmt="o", capsize=3, label=label)
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(path, dpi=150)


def say(text: str) -> None:
    """Print, at once also where output is piped."""
    print(text, flush=True)


if __name__ == "__main__":
    try:
        import matplotlib  # noqa: F401
        import statsmodels  # noqa: F401
    except ImportError:
        sys.exit("The demonstration needs its data and pictures: python -m pip install 'pymc_dp[demo]'")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        main()
