"""Draw the picture of the README: `python docs/readme_picture.py` writes docs/_static/readme.svg.

Three posteriors of one logistic regression: without privacy, and under two budgets. The noise of the private runs is
fresh in every execution; the first picture that was made is the one that is stored.
"""

import warnings
from pathlib import Path

import numpy as np
import pymc as pm
from matplotlib import rc_context
from matplotlib.figure import Figure

import pymc_dp as dp
from pymc_dp.__main__ import FEATURES, not_private, survey, survey_model

PICTURE = Path(__file__).parent / "_static" / "readme.svg"
EPSILONS = (4.0, 1.0)
STYLES = {"no privacy": ("0.0", "o"), "epsilon 4": ("0.45", "s"), "epsilon 1": ("0.7", "^")}


def private_draws(epsilon):
    """Return draws of the coefficients, shape (draws, coefficients)."""
    budget = dp.PrivacyBudget(epsilon=epsilon, delta=1e-6)
    with survey_model(*survey()):
        result = pm.sample(draws=250, chains=4, cores=1, budget=budget, progressbar=False)
    return result["posterior"]["beta"].stack(sample=("chain", "draw")).sel(feature=FEATURES).values.T


def main():
    draws = {"no privacy": not_private(*survey())["posterior"]["beta"].values[0]}
    draws |= {f"epsilon {epsilon:g}": private_draws(epsilon) for epsilon in EPSILONS}
    with rc_context({"font.size": 10, "svg.hashsalt": "pymc_dp"}):
        figure = Figure(figsize=(6, 4.6), layout="constrained")
        axes = figure.add_subplot(xlabel="coefficient (log-odds of a doctor's visit): mean and 90 % interval")
        for place, (label, values) in enumerate(draws.items()):
            colour, marker = STYLES[label]
            low, high = np.quantile(values, [0.05, 0.95], axis=0)
            mean = values.mean(axis=0)
            heights = np.arange(len(FEATURES)) + 0.26 * (place - 1)
            bars = [mean - low, high - mean]
            axes.errorbar(mean, heights, xerr=bars, fmt=marker, color=colour, ms=4, lw=1.6, capsize=2, label=label)
        axes.axvline(0.0, color="0.85", lw=0.8, zorder=0)
        axes.set_yticks(range(len(FEATURES)), FEATURES)
        axes.invert_yaxis()
        axes.legend(loc="center right")
        figure.savefig(PICTURE, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
