"""What each survey costs: the epsilon at which its noise is half as large as what is not known without privacy.

    python -m uv run python benchmarks/costs_of_surveys.py --rows 5000

An interval is then 12 % wider than without privacy. The table is that of a logistic regression with four covariates, in
`checks.py`, and a column of eight groups; posteriors are exact, so that all noise is the survey's own. Printed is the
median over runs, interpolated between budgets that are spent on one survey alone, of

- `describe`: the mean of a column whose range is ten standard deviations wide, and the share of a group, beside their
  standard errors by chance;
- `check`: locations of residuals by group, beside their standard errors by chance (predicted means are a second axis);
- `compare`: the difference to a model with a square that is missing, beside its standard error by chance in rows;
- `average_predictions`: two scenarios over all units, and by group, beside the posterior's standard deviations without
  noise.

Synthetic tables release nothing. All tables are simulated.
"""

import argparse
import collections
import logging
import math
import sys
import warnings

import numpy as np
import pymc as pm
from checks import DELTA, SIZE, compiled_once, drawn_without_privacy, logistic, model_of, simulated

import pymc_dp as dp

GRID, HALF = (0.1, 0.5, 2.5, 12.5), 0.5
GROUPS = [str(each) for each in range(8)]


def described(x, group, y, budget):
    frame = {**{f"x{k}": x[:, k] for k in range(SIZE)}, "group": np.array(GROUPS)[group], "y": y == 1}
    columns = [dp.Number(f"x{k}", -5, 5) for k in range(SIZE)]
    table = dp.Table(frame, schema=[*columns, dp.Category("group", GROUPS, other=False), dp.YesNo("y")])
    found = dp.describe(table, budget=budget, budget_share=1.0)
    by_chance = x[:, 0].std() / math.sqrt(len(x))
    share = found.categories.loc[("group", "0")]
    yield "describe: a mean", found.table.loc["x0", "mean_error"] / by_chance
    yield "describe: the share of a group", share["error"] / math.sqrt(1 / 8 * 7 / 8 / len(x))


def checked(group, epsilon, result):
    def error(epsilon):
        budget = dp.PrivacyBudget(epsilon, DELTA)
        found = dp.check(result, by={"group": group}, budget=budget, budget_share=1.0, bins=6)
        return found.residuals.loc["group", "error"].median()

    yield "check by group", math.sqrt(max((error(epsilon) / error(math.inf)) ** 2 - 1.0, 0.0))


def compared(budget, models):
    (line,) = dp.compare(models, budget=budget, budget_share=1.0).table.to_dict("records")
    yield "compare", line["of_noise"] / line["of_rows"]


def averaged(x, epsilon, result):
    scenarios = {"as it is": {}, "one more": {"x": x + np.eye(SIZE)[0]}}
    for what, by in (("over all units", None), ("by group", {"group": GROUPS})):

        def averages(epsilon, by=by):
            budget = dp.PrivacyBudget(epsilon, DELTA)
            return dp.average_predictions(result, scenarios, by=by, budget=budget, budget_share=1.0).table

        of_noise, exact = averages(epsilon)["of_noise"], averages(math.inf)["sd"]
        yield f"average_predictions {what}", (of_noise / exact).median(skipna=False)


def run(n, epsilon, seed, noted):
    rng, x, group, y = simulated("square_logistic", n, seed)
    models = {}
    for more in (None, "square"):
        models[str(more)] = (model_of(logistic, x, y, more), drawn_without_privacy(logistic, x, y, rng, more))

    budgets = [dp.PrivacyBudget(epsilon, DELTA) for _ in range(2)]
    model, result = models["None"]
    with model:
        pm.Data("group", group)
        found = [
            *described(x, group, y, budgets[0]),
            *checked(group, epsilon, result),
            *compared(budgets[1], models),
            *averaged(x, epsilon, result),
        ]
    for what, ratio in found:
        noted[what, epsilon].append(ratio)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    noted = collections.defaultdict(list)
    with compiled_once():
        for epsilon in GRID:
            for seed in range(arguments.runs):
                run(arguments.rows, epsilon, seed, noted)
    for what in dict.fromkeys(name for name, _ in noted):
        medians = {epsilon: np.median(noted[what, epsilon]) for epsilon in GRID}
        medians = {epsilon: ratio for epsilon, ratio in medians.items() if ratio > 0.0}  # of groups that are reported
        ratios = -np.log(list(medians.values()))
        found = math.exp(np.interp(-math.log(HALF), ratios, np.log(list(medians)), -math.inf, math.inf))
        of_each = ", ".join(f"{ratio:.2g} at {epsilon:g}" for epsilon, ratio in medians.items())
        sys.stdout.write(f"n={arguments.rows} {what:<34} epsilon {found:.2g}   (noise beside chance: {of_each})\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
