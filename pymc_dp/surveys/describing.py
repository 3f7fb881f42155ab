"""`describe`: descriptive statistics of a declared table's columns."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import scipy
import xarray as xr
from xarray import DataTree

from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import model_of_a_column
from pymc_dp.model.view import read
from pymc_dp.release.interface import FloatArray, Release
from pymc_dp.release.surveys import Axis, Coordinate, UnitCounts, UnitMoments
from pymc_dp.reports.published import facts_of
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.surveys.asking import Survey, asking, checked_budget, four_digits, heading, levels_of, tree_of
from pymc_dp.surveys.histogram import combined, nearest_shares, quantiles
from pymc_dp.tables import Category, Date, Number, Schema, Table, Whole, YesNo
from pymc_dp.tables.schema import Modelled, days, limits_of, scale_of

#: Number of bins of a column of numbers, and of bins in a coarse bin: a sum over many bins has the noise of few counts.
_BINS, _IN_A_GROUP = 64, 8
#: The part of the cost for counts; the rest is for products of columns.
_SHARE_OF_COUNTS = 0.6
#: Levels of the quantiles of a description, and the probability of their intervals.
_QUANTILES, _INTERVAL = np.array([0.05, 0.25, 0.5, 0.75, 0.95]), 0.9
#: Half the length of such an interval, in standard errors.
_SCORE = NormalDist().inv_cdf(0.5 + _INTERVAL / 2.0)
#: The part of the entries that a narrower range leaves out on each side.
_OUTSIDE = 0.01
#: A smaller share of missing entries, in standard errors, counts as noise.
_BY_NOISE = 3.0
#: Number of ranks at which columns are compared with normal scores.
_GRID = 999


class Description:
    """Noisy counts of every column of a table, means, standard deviations and correlations.

    Attributes
    ----------
    tree : DataTree
        Groups ``columns`` (means, standard deviations, shares of missing entries and quantiles, with standard errors or
        intervals of the noise), ``counts`` (of every column, in bins), ``correlation`` and ``privacy``.
    schema : Schema
        The declared columns.
    """

    def __init__(self, tree: DataTree) -> None:
        if "columns" not in tree or "schema" not in facts_of(tree):
            raise InvalidArgument("This tree is not a description: pass the result of dp.describe.")
        self.tree, self.schema = tree, Schema.from_json(facts_of(tree)["schema"])

    @property
    def table(self) -> pd.DataFrame:
        """One line for each column: share of missing entries, mean, standard deviation and quantiles."""
        found = self.tree["columns"].to_dataset()
        lines = found[["missing", "mean", "mean_error", "sd", "sd_error"]].to_dataframe()
        for level in found["level"].values:
            lines[f"{level:.0%}"] = found["quantile"].sel(level=level).values
        return lines

    @property
    def categories(self) -> pd.DataFrame:
        """The share of every level of every category, with its standard error."""
        lines = []
        for column in self.schema.modelled:
            if isinstance(column, Category):
                total = max(float(self._counts(column.name).sum()), 1.0)
                error = float(self.tree["counts"].attrs["noise_std"]) / total
                shares = zip(column.all_levels, self._shares(column.name), strict=False)
                lines += [(column.name, level, float(share), error) for level, share in shares]
        return pd.DataFrame(lines, columns=["column", "level", "share", "error"]).set_index(["column", "level"])

    @property
    def units(self) -> float:
        """The number of units; noisy, where that is not public."""
        facts, (first, *_) = facts_of(self.tree), self.schema.modelled
        counts = self._counts(first.name)
        return float(facts.get("n_units", counts.sum() + counts.attrs["missing"]))

    def narrowed(self) -> Schema:
        """Return the schema with ranges that leave out about a hundredth of the entries on each side.

        The ranges are estimates from noisy counts, and consist of whole bins; the declared values of missing entries
        are cut to them.
        """
        columns: list[Any] = []
        for column in self.schema:
            if not isinstance(column, Number | Whole):
                columns.append(column)
                continue
            edges = self._edges(column.name)
            below = np.concatenate([[0.0], np.cumsum(nearest_shares(self._shares(column.name)))])
            first = max(int(np.searchsorted(below, _OUTSIDE, side="right")) - 1, 0)
            last = min(int(np.searchsorted(below, 1.0 - _OUTSIDE, side="left")), len(edges) - 1)
            low: Any = float(edges[first])
            high: Any = float(edges[max(last, first + 1)])
            if isinstance(column, Whole):
                low, high = int(low), max(int(high) - 1, int(low) + 1)
            missing = min(max(column.missing or 0, low), high)
            columns.append(replace(column, low=low, high=high, missing=missing))
        return Schema(columns)

    def invented(self, n: int, seed: int = 0, *, redrawn: bool = False, missing: bool = True) -> pd.DataFrame:
        """Return invented rows that resemble the table in its counts by column, and in correlations of numbers.

        They are drawn from released numbers alone, by a Gaussian copula; categories are independent of other columns.
        Use them for dry runs, with ``dp.Table(frame, schema)``.

        Parameters
        ----------
        n : int
            Number of rows.
        seed : int
            Of the draws.
        redrawn : bool
            Draw the distribution of each column first, from its uncertainty given the noise and the number of units;
            in the same way, draw the means and standard deviations of numbers, and rates of missing entries.
        missing : bool
            Leave out entries of each column at its released rate of missing entries, completely at random:
            independently of the row's content and of other columns. A rate within noise counts as zero.
        """
        generator, of_missing = np.random.default_rng(seed), np.random.default_rng([seed, 1])
        rates = self._missing_rates(of_missing if redrawn else None) if missing else {}
        by_rank = {each.name: self._values_by_rank(each, generator, redrawn) for each in self.schema.modelled}
        ranks = {name: generator.random(n) for name in by_rank}
        if "correlation" in self.tree:
            names = [str(each) for each in self.tree["correlation"].to_dataset()["column"].values]
            # The correlation of two columns is that of their normal scores times both columns' correlations with their
            # own scores.
            grid = (np.arange(_GRID) + 0.5) / _GRID
            values_of = [by_rank[name](grid) for name in names]
            scores = scipy.stats.norm.ppf(grid)
            kept = [float(np.corrcoef(scores, each)[0, 1]) if np.ptp(each) else 1.0 for each in values_of]
            factors = [self._correlation_factor(self.schema.column_of(name), rates.get(name, 0.0)) for name in names]
            correlation = self._correlation(generator if redrawn else None)
            wanted = correlation * np.outer(factors, factors) / np.outer(kept, kept)
            np.fill_diagonal(wanted, 1.0)
            values, vectors = np.linalg.eigh(wanted)
            root = vectors * np.sqrt(np.maximum(values, 1e-3))
            root /= np.sqrt((root**2).sum(axis=1, keepdims=True))
            ranks |= dict(
                zip(names, scipy.stats.norm.cdf(generator.normal(size=(n, len(names))) @ root.T).T, strict=True)
            )
        frame = pd.DataFrame(
            {each.name: in_own_units(each, by_rank[each.name](ranks[each.name])) for each in self.schema.modelled}
        )
        for name, rate in rates.items():
            if rate:
                frame[name] = frame[name].mask(of_missing.random(n) < rate)
        return frame

    def _missing_rates(self, generator: np.random.Generator | None) -> dict[str, float]:
        """Return the rate of missing entries of each column, 0 if within noise; drawn anew if given a generator."""
        found = self.tree["columns"].to_dataset()
        rates, errors = found["missing"].values, found["missing_error"].values
        rates = np.where(rates > _BY_NOISE * errors, np.clip(rates, 0.0, 1.0), 0.0)
        if generator is not None:
            of_chance = rates * (1.0 - rates) / max(self.units, 1.0)
            drawn = rates + np.sqrt(errors**2 + of_chance) * generator.normal(size=rates.size)
            rates = np.where(rates > 0.0, np.clip(drawn, 0.0, 1.0), 0.0)
        return dict(zip(map(str, found["column"].values), map(float, rates), strict=True))

    def _moments(self, name: str) -> dict[str, float]:
        """Return the released mean and standard deviation of a column, with their errors."""
        found = self.tree["columns"].to_dataset().sel(column=name)
        return {each: float(found[each]) for each in ("mean", "mean_error", "sd", "sd_error")}

    def _correlation_factor(self, column: Modelled, rate: float) -> float:
        """Return the factor that corrects a column's correlations for missing entries, which count as one number."""
        known = self._moments(column.name)
        if not (0.0 < rate < 1.0 and known["sd"] > 0.0):
            return 1.0
        far = (_number_of_missing(column) - known["mean"]) / known["sd"]
        return math.sqrt((1.0 + rate * far**2) / (1.0 - rate))

    def _values_by_rank(
        self, column: Modelled, generator: np.random.Generator, redrawn: bool
    ) -> Callable[[FloatArray], FloatArray]:
        """Return the function from ranks to numbers: codes of levels, and days since the first of a date's range."""
        shares = self._redrawn_shares(column, generator) if redrawn else nearest_shares(self._shares(column.name))
        below = np.concatenate([[0.0], np.cumsum(shares)])
        if isinstance(column, YesNo | Category):
            return lambda ranks: np.clip(np.searchsorted(below, ranks, side="right") - 1.0, 0.0, len(shares) - 1.0)
        edges = self._edges(column.name)
        if redrawn:
            edges = self._with_redrawn_moments(column, shares, edges, generator)
        if isinstance(column, Number):
            return lambda ranks: np.interp(ranks, below, edges)
        last = np.nextafter(edges[-1], edges[0])  # the upper edge is one above the largest whole number
        return lambda ranks: np.floor(np.minimum(np.interp(ranks, below, edges), last))

    def _with_redrawn_moments(
        self, column: Number | Whole | Date, shares: FloatArray, edges: FloatArray, generator: np.random.Generator
    ) -> FloatArray:
        """Return edges shifted and stretched to a mean and a standard deviation drawn from their uncertainty.

        Noise in empty bins spreads shares over the range; moments are far more precise.
        """
        centres, known = (edges[1:] + edges[:-1]) / 2.0, self._moments(column.name)
        mean = float(shares @ centres)
        sd = math.sqrt(float(shares @ ((centres - mean) ** 2 + np.diff(edges) ** 2 / 12.0)))
        whole = 0.0 if isinstance(column, Number) else 1.0  # a whole number k is the interval from k to k + 1 here
        sd_there = max(known["sd"], known["sd_error"], 1e-3 * sd)
        sd_error = math.hypot(known["sd_error"], sd_there / math.sqrt(2.0 * self.units))
        new_sd = sd_there * math.exp(min(sd_error / sd_there, 1.0) * generator.normal())
        mean_error = math.hypot(known["mean_error"], new_sd / math.sqrt(self.units))
        new_mean = known["mean"] + mean_error * generator.normal() + whole / 2.0
        stretched = new_mean + (edges - mean) * math.sqrt(new_sd**2 + whole / 12.0) / sd
        found: FloatArray = np.clip(stretched, edges[0], edges[-1])
        return found

    def _correlation(self, generator: np.random.Generator | None) -> FloatArray:
        """Return the released correlations; with a generator, draws by Fisher's z, given noise and number of units."""
        found = self.tree["correlation"].to_dataset()
        values: FloatArray = np.clip(found["correlation"].values, -0.99, 0.99)
        if generator is None:
            return values
        of_chance = (1.0 - values**2) / math.sqrt(max(self.units - 3.0, 1.0))
        error = np.hypot(found["error"].values, of_chance) / (1.0 - values**2)
        upper = np.triu(np.tanh(np.arctanh(values) + error * generator.normal(size=error.shape)), 1)
        drawn: FloatArray = upper + upper.T + np.eye(len(upper))
        return drawn

    def _redrawn_shares(self, column: Modelled, generator: np.random.Generator) -> FloatArray:
        """Return shares of bins drawn given noisy counts: noise is drawn anew, and shares from a Dirichlet."""
        counts, members = self._counts(column.name), _binned(column).members
        total = 0.0 if "n_units" in facts_of(self.tree) else None
        noise_std = float(self.tree["counts"].attrs["noise_std"])
        _, covariance = combined([np.zeros(len(each)) for each in members], members, noise_std, total)
        values, vectors = np.linalg.eigh(covariance)
        noise = vectors @ (np.sqrt(np.maximum(values, 0.0)) * generator.normal(size=len(values)))
        n = max(float(counts.sum()), 1.0)
        shares, found = nearest_shares((counts.values + noise[:-1]) / n), np.zeros(len(counts))
        found[shares > 0.0] = generator.dirichlet(n * shares[shares > 0.0])
        return found

    def _counts(self, name: str) -> xr.DataArray:
        return self.tree["counts"].to_dataset()[name]

    def _shares(self, name: str) -> FloatArray:
        counts = self._counts(name).values
        found: FloatArray = counts / max(float(counts.sum()), 1.0)
        return found

    def _edges(self, name: str) -> FloatArray:
        counts = self._counts(name)
        return np.append(counts[f"{name}_low"].values, counts.attrs["end"])

    def __repr__(self) -> str:
        heading_of = heading(
            facts_of(self.tree), "Description of a table", "; errors are of the noise", with_units=True
        )
        categories = self.categories
        shares = [categories.to_string(float_format=lambda value: f"{value:.3f}")] if len(categories) else []
        return "\n".join([heading_of, four_digits(self.table, na_rep=""), *shares])


def describe(
    table: Table, *, budget: PrivacyBudget | None = None, budget_share: float = 0.25, insecure_seed: int | None = None
) -> Description:
    """Release a description of a table's declared columns, within a budget.

    Parameters
    ----------
    table : Table
        With a schema. Where units have several rows, each unit counts by the mean of its rows.
    budget : PrivacyBudget
        The budget that is charged: use one for everything that is computed from the table.
    budget_share : float
        Part of the remaining budget that is spent, in rho: a quarter of it is about half of epsilon.
    insecure_seed : int, optional
        Seeds the noise, for tests on public data: the result is not private then.

    Returns
    -------
    Description
        Print it for a summary.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range, before anything is charged.
    BudgetExceeded
        If nothing is left of the budget.
    RunInterrupted
        If the call ends early, after the charge.

    Notes
    -----
    The two releases have Gaussian noise. The first has counts by bin of every column: a unit counts 1 in each axis of
    bins, so that replacing a unit moves the vector of all counts by at most the square root of twice the number of
    axes. The second has the second moments of all columns, each cut to its range: see
    `pymc_dp.release.surveys.UnitMoments`. Everything else is computed from these.
    """
    if not isinstance(table, Table) or table.schema is None:
        raise InvalidArgument(
            "describe takes a table whose columns are declared: "
            "dp.Table(frame, schema=[dp.Number('age', 18, 90), ...])."
        )
    budget, share = checked_budget(budget, budget_share)
    columns, template = table.schema.modelled, table.template
    parts = [part for each in columns for part in (each.name, f"{each.name}_missing")]
    places = {part: place for place, part in enumerate(parts, start=1)}
    binned = [_binned(each) for each in columns]
    axes = tuple(
        Axis(places[each.column.name], 0, places[f"{each.column.name}_missing"], inner)
        for each in binned
        for inner in each.inner
    )
    queries: list[UnitCounts | UnitMoments] = [UnitCounts(axes, np.zeros(0), np.zeros(0))]
    numbers = [each for each in columns if not isinstance(each, Category)]
    if numbers:
        # The rows hold numbers between -1 and 1, except for raw ones and truth values.
        as_they_are = [isinstance(each, YesNo) or each.raw for each in numbers]
        scales = [_own_scale(each) if own else (0.0, 1.0) for each, own in zip(numbers, as_they_are, strict=True)]
        coordinates = [Coordinate(places[each.name], *scale) for each, scale in zip(numbers, scales, strict=True)]
        queries.append(UnitMoments(tuple(coordinates), len(numbers)))
    shares = (_SHARE_OF_COUNTS, 1.0 - _SHARE_OF_COUNTS) if numbers else (1.0,)
    requests = tuple(
        ReleaseRequest(query.kind, 1, part, query.size, once=True) for query, part in zip(queries, shares, strict=True)
    )
    view = read(model_of_a_column(template[parts[0]].astype(np.float64)))
    rows = {part: template[part] for part in parts}
    likelihood = UnitLikelihood(view, first_order=False, beside=rows)
    survey = Survey("description", requests, share, insecure_seed)
    survey.plan(budget)  # refuses early
    with asking(survey, budget, [likelihood], [table]) as ((ask,), facts):
        groups = _groups([ask(query) for query in queries], binned, numbers, facts.get("n_units"))
    return Description(tree_of(groups, {**facts, "schema": table.schema.to_json()}))


@dataclass(frozen=True, eq=False)
class _Binned:
    """The bins of a column's counts, coarse ones and finest ones. The last bin of each axis is for missing entries."""

    column: Modelled
    edges: FloatArray  # of the finest bins, in the column's own units
    inner: list[FloatArray]  # public edges in the units of the rows: of coarse bins, if any, and of the finest bins
    members: list[FloatArray]  # the finest bins in each bin, as indicators


def _binned(column: Modelled) -> _Binned:
    """Return the bins of a column's counts."""
    if isinstance(column, YesNo | Category):
        count = len(levels_of(column))
        return _Binned(column, np.arange(count + 1.0), [np.arange(0.5, count - 1)], [np.eye(count + 1)])
    low, high = limits_of(column)
    middle, half = scale_of(column)
    if isinstance(column, Number):
        edges: FloatArray = np.linspace(low, high, _BINS + 1)
        between = edges[1:-1]
    else:  # bins of equally many whole numbers, of one each if these are few
        step = max(1, math.ceil((high - low + 1) / _BINS))
        edges = np.append(np.arange(low, high + 1, step), high + 1)
        between = edges[1:-1] - 0.5
    bins, fine = len(edges) - 1, (between - middle) / half
    members: list[FloatArray] = [np.eye(bins + 1)]
    if bins <= 2 * _IN_A_GROUP:
        return _Binned(column, edges, [fine], members)
    groups = np.append(np.arange(bins) // _IN_A_GROUP, -1)
    of_groups: FloatArray = np.array([groups == each for each in [*range(groups.max() + 1), -1]], dtype=np.float64)
    return _Binned(column, edges, [fine[_IN_A_GROUP - 1 :: _IN_A_GROUP], fine], [of_groups, *members])


def _own_scale(column: Modelled) -> tuple[float, float]:
    """Return the middle and half the width of a column's range in its own units."""
    return scale_of(replace(column, raw=False)) if isinstance(column, Number | Whole | Date) else (0.5, 0.5)


def _number_of_missing(column: Any) -> float:
    """Return the number that replaces a missing entry, in the column's own units; for dates, days since the first."""
    return days(column.missing) - days(column.low) if isinstance(column, Date) else float(column.missing or 0)


def in_own_units(column: Modelled, numbers: FloatArray) -> Any:
    """Return numbers as entries of a column: levels, truth values, numbers or dates."""
    if isinstance(column, Category):
        return np.array(column.all_levels)[numbers.astype(np.intp)]
    if isinstance(column, YesNo):
        return numbers == 1.0
    if isinstance(column, Number):
        return numbers
    if isinstance(column, Whole):
        return numbers.astype(np.int64)
    return (numbers + days(column.low)).astype("datetime64[D]")


def _groups(
    released: list[Release], binned: list[_Binned], numbers: Sequence[Modelled], n: int | None
) -> dict[str, xr.Dataset]:
    """Return the groups of a description, from counts and, if there are numbers, their moments."""
    counts, noise_std = released[0], released[0].noise_std
    ends = np.cumsum([len(members) for each in binned for members in each.members])
    of_axes = iter(np.split(counts.value, ends[:-1]))
    packed, size = released[-1], len(numbers) + 1
    left, right = np.triu_indices(size)
    square, errors = both = np.zeros((2, size, size))
    if numbers:
        weights = np.where(left == right, 1.0, math.sqrt(2.0))
        both[:, left, right] = both[:, right, left] = packed.value / weights, packed.noise_std / weights
    units = max(float(square[0, 0]) if n is None else float(n), 1.0)
    places = {column.name: place for place, column in enumerate(numbers, start=1)}
    names, variables, coords, lines = [each.column.name for each in binned], {}, {}, []
    of_quantiles = np.full((3, len(names), len(_QUANTILES)), math.nan)
    for row, (name, each) in enumerate(zip(names, binned, strict=True)):
        found, covariance = combined([next(of_axes) for _ in each.members], each.members, noise_std, n)
        there, missing, variance = found[:-1], found[-1], covariance[-1, -1]
        coords[f"{name}_low"] = (f"{name}_bin", list(levels_of(each.column) or each.edges[:-1]))
        end = {"end": float(each.edges[-1]), "missing": float(missing)}
        variables[name] = xr.Variable((f"{name}_bin",), there, attrs=end)
        if isinstance(each.column, Number | Whole | Date):
            whole = not isinstance(each.column, Number)
            of_there = each.edges, there, covariance[:-1, :-1]
            of_quantiles[:, row] = quantiles(_QUANTILES, _INTERVAL, *of_there, whole_numbers=whole)
        moments: tuple[float, ...] = (math.nan,) * 4
        if name in places:
            sums, squares = both[:, 0, places[name]], both[:, places[name], places[name]]
            moments = _moments(each.column, sums, squares, units, missing, variance)
        total = max(float(found.sum()), 1.0)
        lines.append((missing / total, math.sqrt(variance) / total, *moments))
    one = zip(("missing", "missing_error", "mean", "mean_error", "sd", "sd_error"), np.transpose(lines), strict=True)
    several = zip(("quantile", "quantile_low", "quantile_high"), of_quantiles, strict=True)
    columns = xr.Dataset(
        {
            **{name: ("column", values) for name, values in one},
            **{name: (("column", "level"), values) for name, values in several},
        },
        coords={"column": names, "level": _QUANTILES},
        attrs={
            "description": (
                "Means, standard deviations and quantiles are of entries that are not missing, each cut to its range. "
                f"Errors and {_INTERVAL:.0%} intervals are of the noise. Dates are days since the first of their range."
            )
        },
    )
    groups = {"columns": columns, "counts": xr.Dataset(variables, coords=coords, attrs={"noise_std": noise_std})}
    return groups | ({"correlation": _correlation_group(numbers, square, errors, units)} if numbers else {})


def _moments(
    column: Modelled, sums: FloatArray, squares: FloatArray, total: float, n_missing: float, variance_missing: float
) -> tuple[float, ...]:
    """Return the mean, its error, the standard deviation and its error of a column, in its own units.

    `sums` and `squares` are the column's sum and its sum of squares over all units, each with its error. Missing
    entries are subtracted: their noisy count times the number that replaces them, which is public.
    """
    middle, half = _own_scale(column)
    as_missing = (_number_of_missing(column) - middle) / half
    there, missing_error = max(total - n_missing, 1.0), math.sqrt(variance_missing)
    mean = (sums[0] - n_missing * as_missing) / there
    mean_error = math.hypot(sums[1], missing_error * (as_missing - mean)) / there
    square = (squares[0] - n_missing * as_missing**2) / there
    square_error = math.hypot(squares[1], missing_error * (as_missing**2 - square)) / there
    variance, variance_error = max(square - mean**2, 0.0), math.hypot(square_error, 2.0 * mean * mean_error)
    # The interval of the variance is transformed by the root, which is not linear near 0; the longer side is taken.
    sd, room = math.sqrt(variance), _SCORE * variance_error
    farther = max(math.sqrt(variance + room) - sd, sd - math.sqrt(max(variance - room, 0.0)))
    sd_error = farther / _SCORE
    return middle + half * mean, half * mean_error, half * sd, half * sd_error


def _correlation_group(columns: Sequence[Modelled], square: FloatArray, errors: FloatArray, total: float) -> xr.Dataset:
    """Return correlations, and their standard errors from noise by the delta method."""
    mean = square[0, 1:] / total
    covariance = square[1:, 1:] / total - np.outer(mean, mean)
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-6))
    correlation = np.clip(covariance / np.outer(scale, scale), -1.0, 1.0)
    np.fill_diagonal(correlation, 1.0)
    of_mean = np.outer(errors[0, 1:], mean)
    of_covariance = (errors[1:, 1:] ** 2 + of_mean**2 + of_mean.T**2) / total**2 / np.outer(scale, scale) ** 2
    of_variance = (errors.diagonal()[1:] ** 2 + 4.0 * of_mean.diagonal() ** 2) / total**2 / scale**4
    error = np.sqrt(of_covariance + correlation**2 / 4.0 * np.add.outer(of_variance, of_variance))
    np.fill_diagonal(error, 0.0)
    names = [each.name for each in columns]
    dims = ("column", "other")
    return xr.Dataset(
        {"correlation": (dims, correlation), "error": (dims, error)}, coords={"column": names, "other": list(names)}
    )
