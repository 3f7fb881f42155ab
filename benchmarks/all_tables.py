"""Whole runs on whatever tables a folder holds: models are made by rules, nobody chooses them.

    python benchmarks/all_tables.py DIRECTORY --data CSV                          every table of CSV/*/*.csv
    python benchmarks/all_tables.py DIRECTORY --data CSV openintro Hsb82 --epsilon 4 --runs 2

Names are parts of ``folder/table:response:kind``. Tables have 2,500 to 45,000 rows. Columns of more than 15 % missing
entries are left out, then rows with any. Numbers are on [-1, 1] by their extremes, rounded to one digit outwards;
columns of up to eight texts are indicators; up to 13 of them, without ones that the others nearly explain, are
covariates. The first column of each kind is a response: two values (``logistic``), whole numbers of three to seven
levels (``ordinal``), more than forty values (``linear``), or, where they are positive and skewed, their logarithms
(``logarithm``). DIRECTORY keeps the references. Nobody would write some of these regressions: a few long units decide
them. Tables of other packages: see `real_tables.py`.
"""

import argparse
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
from against_reference import Problem, Reference, Run, by_mode, quiet, run, say, summary
from pymc.distributions import transforms

FEWEST, MOST = 2500, 45_000
COVARIATES = 13
#: A column that the others explain but for so small a part of its root mean square is left out.
EXPLAINED = 0.03
WITHOUT = {"id", "idcode", "obs", "i", "rownames", "unnamed: 0", "subject", "caseid", "personid", "nr"}

Columns = dict[str, np.ndarray]


def rounded(low: float, high: float) -> tuple[float, float]:
    """Return a range, rounded outwards to one digit each."""

    def of(value: float, turned: Callable[[float], float]) -> float:
        size = 10.0 ** np.floor(np.log10(abs(value))) if value else 1.0
        return float(turned(value / size) * size)

    low, high = of(low, np.floor), of(high, np.ceil)
    return (low, high) if high > low else (low, low + 1.0)


def on_unit(values: np.ndarray) -> np.ndarray:
    low, high = rounded(values.min(), values.max())
    return 2.0 * (values - low) / (high - low) - 1.0


def columns_of(path: Path) -> Columns:
    """Return the columns of a table that are of use."""
    table = pd.read_csv(path, low_memory=False)
    table = table.loc[:, table.isna().mean() < 0.15].dropna()
    found = {}
    for name, column in table.items():
        levels = column.nunique()
        if not 2 <= levels or str(name).lower() in WITHOUT:
            continue
        if column.dtype.kind in "iufb":
            numbers = column.to_numpy(float)
            if levels < 0.95 * len(numbers) or not np.all(np.abs(np.diff(numbers)) == 1.0):  # no running number
                found[str(name)] = numbers
        elif levels <= 8:
            found[str(name)] = column.astype(str).to_numpy()
    return found


def design_of(columns: Columns, response: str) -> np.ndarray:
    """Return an intercept and covariates."""
    made = [np.ones(len(columns[response]))]
    for name, values in columns.items():
        if name == response:
            continue
        levels, counts = np.unique(values, return_counts=True)
        if values.dtype.kind == "f" and len(levels) > 2:
            made.append(on_unit(values))
        else:
            made += [(values == level).astype(float) for level in levels[np.argsort(-counts)][1:]]
    made = [each for each in made if not set(np.unique(each)) <= {0.0, 1.0} or each.mean() > 0.005]
    kept: list[np.ndarray] = []
    for each in made[: COVARIATES + 1]:
        scaled = np.column_stack([one / np.sqrt(np.mean(one**2)) for one in [*kept, each]])
        if np.linalg.svd(scaled, compute_uv=False)[-1] > EXPLAINED * np.sqrt(len(each)):
            kept.append(each)
    return np.column_stack(kept)


def kind_of(values: np.ndarray) -> str:
    """Return what kind of response a column is, or nothing."""
    levels, counts = np.unique(values, return_counts=True)
    if len(levels) == 2:
        return "logistic" if counts.min() > 0.02 * len(values) else ""
    if len(levels) > 40:
        skewed = levels[0] > 0.0 and np.quantile(values, 0.99) > 3.0 * np.median(values)
        return "logarithm" if skewed else "linear"
    whole = np.all(levels == np.round(levels)) and len(levels) == levels[-1] - levels[0] + 1
    return "ordinal" if whole and len(levels) <= 7 and counts.min() > 0.01 * len(values) else ""


def model_of(columns: Columns, response: str, kind: str) -> pm.Model:
    """Return a regression of a column on the others."""
    x, y = design_of(columns, response), columns[response]
    if kind == "ordinal":
        x = x[:, 1:]
    with pm.Model() as model:
        predictor = pm.Data("x", x) @ pm.Normal("beta", 0.0, 2.5, shape=x.shape[1])
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=predictor, observed=(y == y.max()).astype(int))
        elif kind == "ordinal":
            levels = (y - y.min()).astype(int)
            spread = np.linspace(-2.0, 2.0, levels.max())
            cutpoints = pm.Normal(
                "cutpoints", spread, 3.0, shape=spread.size, transform=transforms.ordered, initval=spread
            )
            pm.OrderedLogistic("y", eta=predictor, cutpoints=cutpoints, observed=levels)
        else:
            middle = 10.0 ** np.round(np.log10(np.sqrt(max(y.min() * y.max(), 1e-300)))) if kind == "logarithm" else 1.0
            observed = np.log(y / middle) if kind == "logarithm" else on_unit(y)
            pm.Normal("y", predictor, pm.HalfNormal("sigma", 1.0), observed=observed)
    return model


def models(data: Path, names: list[str]) -> Iterator[tuple[str, pm.Model]]:
    """Yield every regression, by its name."""
    for path in sorted(data.glob("*/*.csv")):
        with path.open(errors="replace") as lines:
            if not FEWEST < sum(1 for _ in lines) <= MOST + 1:
                continue
        columns, seen = columns_of(path), set()
        if len(columns) < 3 or len(next(iter(columns.values()))) < FEWEST:
            continue
        for response, values in columns.items():
            kind = kind_of(values) if values.dtype.kind == "f" else ""
            name = f"{path.parent.name}/{path.stem}:{response}:{kind}"
            if kind and kind not in seen and (not names or any(part in name for part in names)):
                seen.add(kind)
                yield name, model_of(columns, response, kind)


def reference_of(model: pm.Model, path: Path) -> Reference | None:
    """Return the normal approximation at the mode, kept in a file; None where it is not good."""
    if not path.exists():
        found = by_mode(model)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **({} if found is None else {"mean": found.mean, "covariance": found.covariance}))
    kept = np.load(path)
    return Reference(kept["mean"], kept["covariance"], "mode") if "mean" in kept else None


def summary_of(runs: list[Run]) -> str:
    """Return the figures of all runs, and how many are called usable and are wrong."""
    wrong = sum(each.verdict == "usable" and (each.error > 3.0 or each.coverage < 0.75) for each in runs)
    return f"{summary(runs)}  coverage of the worst {min(each.coverage for each in runs):.2f}  usable and wrong {wrong}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where references are kept between calls")
    parser.add_argument("names", nargs="*", metavar="part", help="of names; default: all")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[4.0, 1.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    options = parser.parse_intermixed_args()
    quiet()
    found: dict[tuple[str, float], list[Run]] = {}
    for name, model in models(options.data, options.names):
        reference = reference_of(model, options.directory / f"all-{name.replace('/', '-')}.npz")
        if reference is None:
            continue
        of_model = functools.partial(run, Problem(model), reference, delta=options.delta)
        for epsilon in options.epsilon:
            for seed in range(1, options.runs + 1):
                made = of_model(epsilon=epsilon, seed=seed)
                say(f"{name:<60}epsilon {epsilon:g}  {made}")
                found.setdefault((name.rsplit(":")[-1], epsilon), []).append(made)
    for (kind, epsilon), runs in sorted(found.items()):
        say(f"{kind:<12}epsilon {epsilon:g}  {summary_of(runs)}")


if __name__ == "__main__":
    main()
