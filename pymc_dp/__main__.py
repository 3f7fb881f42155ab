"""The demonstration: a private run on a real survey, end to end. ``python -m pymc_dp``.

The sampler is given a budget and nothing else: it learns clip bounds and scales from the survey, privately.
"""

import functools
import sys
import time
import warnings
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from numpy.typing import NDArray
from xarray import Dataset, DataTree

import pymc_dp as dp
from pymc_dp.diagnostics import privacy_report, quality, quality_report

#: Everyday names of the survey's columns, their names in the data, centres and scales: round numbers inside the
#: public ranges (logarithms of a rate up to 100 % and of at most some thousand dollars, an index from 0 to about 60).
COLUMNS = {
    "intercept": ("", 0.0, 1.0),
    "log coinsurance": ("lncoins", 2.0, 2.0),
    "deductible plan": ("idp", 0.0, 1.0),
    "log incentive": ("lpi", 4.0, 4.0),
    "log max. expense": ("fmde", 4.0, 4.0),
    "physical limits": ("physlm", 0.0, 1.0),
    "chronic diseases": ("disea", 10.0, 10.0),
    "health good": ("hlthg", 0.0, 1.0),
    "health fair": ("hlthf", 0.0, 1.0),
    "health poor": ("hlthp", 0.0, 1.0),
}
FEATURES = list(COLUMNS)
PRIOR_STD = 1.0
EPSILON, DELTA = 4.0, 1e-6
CHAINS, DRAWS = 4, 200
OUTPUT = Path("pymc_dp_demo")
say = functools.partial(print, flush=True)  # without buffering where output is piped


def survey() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return features, shape (20190, 10), and whether a doctor was visited, shape (20190,).

    The RAND Health Insurance Experiment from statsmodels, centred and scaled by public numbers.
    """
    from statsmodels.datasets import randhie  # noqa: PLC0415 an optional dependency

    table = randhie.load_pandas().data
    columns = list(COLUMNS.values())[1:]
    scaled = [(table[column].to_numpy(np.float64) - centre) / scale for column, centre, scale in columns]
    return np.column_stack([np.ones(len(table)), *scaled]), (table["mdvis"].to_numpy() > 0).astype(np.int64)


def survey_model(features: NDArray[np.float64], visited: NDArray[np.int64]) -> pm.Model:
    """Return an ordinary PyMC model: logistic regression of any doctor's visit in a year."""
    with pm.Model(coords={"person_year": np.arange(visited.size), "feature": FEATURES}) as model:
        x = pm.Data("x", features, dims=("person_year", "feature"))
        beta = pm.Normal("beta", 0.0, PRIOR_STD, dims="feature")
        pm.Bernoulli("visited", logit_p=x @ beta, observed=visited, dims="person_year")
    return model


def main() -> None:
    """Run the demonstration."""
    began = time.perf_counter()
    say("Did people visit a doctor this year? 20,190 person-years of the RAND Health Insurance Experiment.")
    say("What is protected is one person-year: the table does not say which rows are the same person's.")
    features, visited = survey()
    budget = dp.PrivacyBudget(epsilon=EPSILON, delta=DELTA, data_name="RAND Health Insurance Experiment")
    with survey_model(features, visited):
        step = dp.DPSurrogateHMC(budget=budget, unit="person_year")
        say(f"\nThe plan, before anything is spent:\n{budget.plan(step, draws=DRAWS, tune=0, chains=CHAINS)}\n")
        private = pm.sample(
            draws=DRAWS, tune=0, chains=CHAINS, cores=1, step=step, progressbar=False, compute_convergence_checks=False
        )
    say(f"\nThe private posterior:\n{az.summary(private, round_to=3).to_string()}")
    say(f"\nWhat may be published, and what it cost:\n{privacy_report(private)}")
    say(f"\nHow good it is:\n{quality_report(private)}")

    say("\nFor comparison only, and NOT PRIVATE: posterior mode and standard deviations of this public table.")
    say("(Normal approximation: with 20,190 rows the posterior is as good as normal. The tutorial compares with NUTS.)")
    open_run = not_private(features, visited)
    say(comparison(private, open_run))
    save(private, open_run)
    say(f"\nSaved {OUTPUT / 'private.nc'} and {OUTPUT / 'comparison.png'}. {time.perf_counter() - began:.0f} seconds.")


def not_private(features: NDArray[np.float64], visited: NDArray[np.int64], draws: int = 4000) -> DataTree:
    """Return draws of the normal approximation at the posterior mode. NOT private: for comparison, on public data."""
    beta = np.zeros(len(FEATURES))
    prior_precision = np.eye(beta.size) / PRIOR_STD**2
    for _ in range(25):  # Newton's method: the posterior is log-concave
        p = 1.0 / (1.0 + np.exp(-features @ beta))
        precision = (features * (p * (1.0 - p))[:, None]).T @ features + prior_precision
        beta = beta + np.linalg.solve(precision, features.T @ (visited - p) - prior_precision @ beta)
    sample = np.random.default_rng(0).multivariate_normal(beta, np.linalg.inv(precision), size=(1, draws))
    coords = {"chain": [0], "draw": np.arange(draws), "feature": FEATURES}
    posterior = Dataset({"beta": (("chain", "draw", "feature"), sample)}, coords=coords)
    return DataTree.from_dict({"posterior": posterior})


def comparison(private: DataTree, open_run: DataTree) -> str:
    """Return the private posterior's distance from the ordinary one, in the ordinary one's standard deviations."""
    over = ("chain", "draw")
    mean, std = open_run["posterior"]["beta"].mean(over), open_run["posterior"]["beta"].std(over)
    shift = (private["posterior"]["beta"].mean(over) - mean) / std
    ratio = private["posterior"]["beta"].std(over) / std
    figures = Dataset({"mean": mean, "sd": std, "private mean is off by, in sd": shift, "private sd / sd": ratio})
    table = figures.to_dataframe().loc[FEATURES].to_string(float_format="{:.3f}".format, index_names=False)
    return f"{table}\nJudged by the private run's own diagnostics, without this table: {quality(private).verdict}."


def save(private: DataTree, open_run: DataTree) -> None:
    """Write the publishable tree, and a picture of means and 89 % intervals of every coefficient by run."""
    from matplotlib.figure import Figure  # noqa: PLC0415 an optional dependency

    OUTPUT.mkdir(exist_ok=True)
    private.to_netcdf(OUTPUT / "private.nc")
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="coefficient (log odds)", yticks=range(len(FEATURES)), yticklabels=FEATURES)
    runs = {"private (DPSurrogateHMC)": private, "not private (Laplace)": open_run}
    for place, (label, run) in enumerate(runs.items()):
        draws = run["posterior"]["beta"].stack(sample=("chain", "draw")).sel(feature=FEATURES).values
        low, mean, high = np.quantile(draws, 0.055, axis=1), draws.mean(axis=1), np.quantile(draws, 0.945, axis=1)
        heights = np.arange(len(FEATURES)) + 0.2 * place - 0.1
        axes.errorbar(mean, heights, xerr=[mean - low, high - mean], fmt="o", capsize=3, label=label)
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(OUTPUT / "comparison.png", dpi=150)


if __name__ == "__main__":
    try:
        import matplotlib  # noqa: F401
        import statsmodels  # noqa: F401
    except ImportError:
        sys.exit("The demonstration needs its data and pictures: python -m pip install 'pymc_dp[demo]'")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        main()
