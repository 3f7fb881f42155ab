"""`describe`: what the columns of a declared table hold, before anything is modelled."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats
from xarray import DataTree

from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.diagnostics import facts_of
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.columns import model_of_a_column
from pymc_dp.model.view import read
from pymc_dp.release.counts import Axis, Coordinate, UnitCounts, UnitMoments
from pymc_dp.release.interface import FloatArray, Release
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.surveys.asking import Survey, asking, checked_budget, tree_of
from pymc_dp.surveys.histogram import Histogram, combined, nearest_shares
from pymc_dp.tables import Category, Date, Number, Schema, Table, Whole, YesNo
from pymc_dp.tables.schema import Modelled, days, limits_of, scale_of

#: Bins of a column of numbers, and of groups of them: a sum over many bins then has the noise of a few.
_BINS, _IN_A_GROUP = 64, 8
#: The part of the cost that counts have; the others are for products of columns.
_SHARE_OF_COUNTS = 0.6
#: Quantiles that a description has, and the probability of their intervals.
_QUANTILES, _INTERVAL = np.array([0.05, 0.25, 0.5, 0.75, 0.95]), 0.9
#: Of the quantiles that a narrower range is taken between.
_OUTSIDE = 0.01
#: Ranks at which columns are compared with normal scores.
_GRID = 999


@dataclass(frozen=True, eq=False)
class _Binned:
    """How one column is counted.

    Attributes
    ----------
    column : Number, Whole, YesNo, Category or Date
        What was declared.
    edges : ndarray
        Of the finest bins, in the column's own units.
    inner : list of ndarray
        Public numbers between bins as the rows hold them: of groups first, if there are any, and of the finest bins.
    members : list of ndarray
        Which of the finest bins each bin holds. Missing entries are a bin of their own, the last one.
    """

    column: Modelled
    edges: FloatArray
    inner: list[FloatArray]
    members: list[FloatArray]


class Description:
    """What a table holds, with noise: counts of every column, means, standard deviations and correlations.

    Attributes
    ----------
    tree : DataTree
        Groups ``columns`` (means, standard deviations, shares of missing entries and quantiles, with standard errors or
        intervals of the noise), ``counts`` (of every column, in bins), ``correlation`` and ``privacy``.
    schema : Schema
        What was declared of the columns.
    """

    def __init__(self, tree: DataTree) -> None:
        if "columns" not in tree or "schema" not in facts_of(tree):
            raise InvalidArgument("This tree is no description: pass what dp.describe returned.")
        self.tree, self.schema = tree, Schema.from_json(facts_of(tree)["schema"])

    @property
    def table(self) -> pd.DataFrame:
        """One line for each column: share of missing entries, mean, standard deviation and quantiles."""
        found = self.tree["columns"].to_dataset()
        lines = pd.DataFrame({name: found[name].values for name in ("missing", "mean", "mean_error", "sd", "sd_error")})
        for level in found["level"].values:
            lines[f"{level:.0%}"] = found["quantile"].sel(level=level).values
        return lines.set_index(pd.Index(found["column"].values, name="column"))

    @property
    def categories(self) -> pd.DataFrame:
        """The share of every level of every category, with its standard error."""
        lines = []
        for column in self.schema.modelled:
            if isinstance(column, Category):
                counts = self._counts(column.name)
                total = max(float(counts.sum()), 1.0)
                error = float(self.tree["counts"].attrs["noise_std"]) / total
                lines += [
                    (column.name, level, float(count) / total, error)
                    for level, count in zip(column.all_levels, counts.values, strict=False)
                ]
        return pd.DataFrame(lines, columns=["column", "level", "share", "error"]).set_index(["column", "level"])

    @property
    def units(self) -> float:
        """How many units there are; with noise, where that is not public."""
        facts, (first, *_) = facts_of(self.tree), self.schema.modelled
        counts = self._counts(first.name)
        return float(facts.get("n_units", counts.sum() + counts.attrs["missing"]))

    def narrowed(self) -> Schema:
        """Return the schema with ranges that hold all but about a hundredth of the entries on each side.

        As far as the noise tells. Ranges are whole bins; what is declared of missing entries is cut to them.
        """
        return Schema([self._narrowed(each) for each in self.schema])

    def _narrowed(self, column: Any) -> Any:
        if not isinstance(column, Number | Whole | Date):
            return column
        edges = self._edges(column.name)
        below = np.concatenate([[0.0], np.cumsum(nearest_shares(self._shares(column.name)))])
        first = max(int(np.searchsorted(below, _OUTSIDE, side="right")) - 1, 0)
        last = min(int(np.searchsorted(below, 1.0 - _OUTSIDE, side="left")), len(edges) - 1)
        low, high = float(edges[first]), float(edges[max(last, first + 1)])
        if isinstance(column, Number):
            return Number(column.name, low, high, min(max(float(column.missing or 0.0), low), high), column.raw)
        if isinstance(column, Whole):
            low, high = int(low), max(int(high) - 1, int(low) + 1)
            return Whole(column.name, low, high, min(max(int(column.missing or 0), low), high), column.raw)
        return column

    def invented(self, n: int, seed: int = 0, *, redrawn: bool = False) -> pd.DataFrame:
        """Return invented rows that resemble the table: its counts by column, and correlations of numbers.

        Drawn from released numbers alone, by a Gaussian copula; categories are independent of the other columns, and
        nothing is missing. For dry runs, with ``dp.Table(frame, schema)``.

        Parameters
        ----------
        n : int
            How many rows.
        seed : int
            Of the draws.
        redrawn : bool
            Draw the distribution of each column first: what it may be, given the noise and how many units there are.
            Numbers then have means and standard deviations that were drawn in the same way.
        """
        generator = np.random.default_rng(seed)
        quantiles = {each.name: self._quantiles_of(each, generator, redrawn) for each in self.schema.modelled}
        ranks = {name: generator.random(n) for name in quantiles}
        if "correlation" in self.tree:
            names = [str(each) for each in self.tree["correlation"].to_dataset()["column"].values]
            kept = np.array([_kept_by(quantiles[name]) for name in names])
            wanted = self._correlation(generator if redrawn else None) / np.outer(kept, kept)
            np.fill_diagonal(wanted, 1.0)
            values, vectors = np.linalg.eigh(wanted)
            root = vectors * np.sqrt(np.maximum(values, 1e-3))
            root /= np.sqrt((root**2).sum(axis=1, keepdims=True))
            ranks |= dict(zip(names, stats.norm.cdf(generator.normal(size=(n, len(names))) @ root.T).T, strict=True))
        return pd.DataFrame(
            {each.name: in_own_units(each, quantiles[each.name](ranks[each.name])) for each in self.schema.modelled}
        )

    def _quantiles_of(
        self, column: Modelled, generator: np.random.Generator, redrawn: bool
    ) -> Callable[[FloatArray], FloatArray]:
        """Return what gives numbers by their ranks: codes of levels, and days since the first of a date's range."""
        shares = self._redrawn_shares(column, generator) if redrawn else nearest_shares(self._shares(column.name))
        below = np.concatenate([[0.0], np.cumsum(shares)])
        if isinstance(column, YesNo | Category):
            return lambda ranks: np.clip(np.searchsorted(below, ranks, side="right") - 1.0, 0.0, len(shares) - 1.0)
        edges = self._edges(column.name)
        if redrawn:
            edges = self._with_redrawn_moments(column, shares, edges, generator)
        if isinstance(column, Number):
            return lambda ranks: np.interp(ranks, below, edges)
        last = np.nextafter(edges[-1], edges[0])  # the end of the last whole number is no number of the range
        return lambda ranks: np.floor(np.minimum(np.interp(ranks, below, edges), last))

    def _with_redrawn_moments(
        self, column: Number | Whole | Date, shares: FloatArray, edges: FloatArray, generator: np.random.Generator
    ) -> FloatArray:
        """Return edges shifted and stretched to a mean and a standard deviation as they may be, given the noise.

        Noise in bins that are empty spreads shares over the range; moments are known far better.
        """
        centres, known = (edges[1:] + edges[:-1]) / 2.0, self.table.loc[column.name]
        mean = float(shares @ centres)
        sd = math.sqrt(float(shares @ ((centres - mean) ** 2 + np.diff(edges) ** 2 / 12.0)))
        whole = 0.0 if isinstance(column, Number) else 1.0  # a whole number k stands from k to k + 1 here
        sd_there = max(known["sd"], known["sd_error"], 1e-3 * sd)
        sd_error = math.hypot(known["sd_error"], sd_there / math.sqrt(2.0 * self.units))
        new_sd = sd_there * math.exp(min(sd_error / sd_there, 1.0) * generator.normal())
        mean_error = math.hypot(known["mean_error"], new_sd / math.sqrt(self.units))
        new_mean = known["mean"] + mean_error * generator.normal() + whole / 2.0
        stretched = new_mean + (edges - mean) * math.sqrt(new_sd**2 + whole / 12.0) / sd
        found: FloatArray = np.clip(stretched, edges[0], edges[-1])
        return found

    def _correlation(self, generator: np.random.Generator | None) -> FloatArray:
        """Return correlations as released; or as they may be, given the noise and how many units there are.

        Fisher's z is drawn then.
        """
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
        """Return shares of bins as they may be, given noisy counts: of units like those in the table, by Dirichlet."""
        counts, members = self._counts(column.name), _binned(column).members
        total = 0.0 if "n_units" in facts_of(self.tree) else None
        noise_std = float(self.tree["counts"].attrs["noise_std"])
        covariance = combined([np.zeros(len(each)) for each in members], members, noise_std, total).covariance
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
        facts = facts_of(self.tree)
        n = f"{facts['n_units']:,} units, " if "n_units" in facts else ""
        private = "" if facts["private"] else f"NOT PRIVATE: {facts['not_private_because']}\n"
        table = self.table.to_string(float_format=lambda value: f"{value:.4g}", na_rep="")
        categories = self.categories
        more = "\n" + categories.to_string(float_format=lambda value: f"{value:.3f}") if len(categories) else ""
        return (
            f"{private}Description of a table ({n}epsilon {facts['epsilon']:.3g} at delta {facts['delta']:.3g}, "
            f"{facts['relation']}; errors are of the noise)\n{table}{more}"
        )


def describe(
    table: Table,
    *,
    budget: PrivacyBudget | None = None,
    budget_share: float = 0.25,
    insecure_seed: int | None = None,
) -> Description:
    """Release a description of a table's declared columns, within a budget.

    Parameters
    ----------
    table : Table
        With a schema. Where units have several rows, each unit counts by the mean of its rows.
    budget : PrivacyBudget
        What is charged: the same as for everything else that is computed of the table.
    budget_share : float
        Part of what is left of it that is spent.
    insecure_seed : int, optional
        Seeds the noise, for tests on public data: the result is not private then.

    Returns
    -------
    Description
        Print it.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range, before anything is charged.
    BudgetExceeded
        If nothing is left of the budget.
    RunInterrupted
        If it ends early, after it was charged.

    Notes
    -----
    Two releases with Gaussian noise. Counts by bin of every column: a unit has one in a bin of each axis of bins, so
    that a unit that is replaced moves all counts together by at most the square root of twice the number of axes.
    And the second moments of all columns, each cut to its range: see `pymc_dp.release.counts.UnitMoments`. Everything
    else is computed of these.
    """
    if not isinstance(table, Table) or table.schema is None:
        raise InvalidArgument(
            "describe takes a table whose columns are declared: "
            "dp.Table(frame, schema=[dp.Number('age', 18, 90), ...])."
        )
    budget, share = checked_budget(budget, budget_share)
    asked = _Questions.of(table.schema)
    template = table.template
    rows = {part: template[part] for part in asked.parts}
    view = read(model_of_a_column(template[asked.parts[0]].astype(np.float64)))
    likelihood = UnitLikelihood(view, first_order=False, engine="reference", beside=rows)
    survey = Survey("description", asked.requests, share, insecure_seed)
    survey.plan(budget)  # refuses early
    with table.opened(likelihood) as opened, asking(survey, budget, opened) as (ask, facts):
        found = asked.answered([ask(query) for query in asked.queries], facts.get("n_units"))
    return Description(tree_of(found, {**facts, "schema": table.schema.to_json()}))


@dataclass(frozen=True, eq=False)
class _Questions:
    """What is asked of the columns of a schema.

    Attributes
    ----------
    parts : list of str
        The parts of columns that are read, in the order of the inputs after the first.
    binned : list of _Binned
        How each column is counted.
    counts, moments : UnitCounts, UnitMoments or None
        The two queries; no moments where all columns are categories.
    columns : list of Number, Whole, YesNo or Date
        Those whose moments are taken, in order.
    """

    parts: list[str]
    binned: list[_Binned]
    counts: UnitCounts
    moments: UnitMoments | None
    columns: list[Modelled]

    @classmethod
    def of(cls, schema: Schema) -> "_Questions":
        """Return what is asked of a table with this schema."""
        parts = [part for each in schema.modelled for part in (each.name, f"{each.name}_missing")]
        places = {part: place for place, part in enumerate(parts, start=1)}
        binned = [_binned(each) for each in schema.modelled]
        axes = tuple(
            Axis(places[each.column.name], 0, places[f"{each.column.name}_missing"], inner)
            for each in binned
            for inner in each.inner
        )
        columns: list[Modelled] = [each for each in schema.modelled if not isinstance(each, Category)]
        coordinates = tuple(Coordinate(places[each.name], *_scale(each)) for each in columns)
        moments = UnitMoments(coordinates, len(columns)) if columns else None
        return cls(parts, binned, UnitCounts(axes, np.zeros(0), np.zeros(0)), moments, columns)

    @property
    def queries(self) -> list[UnitCounts | UnitMoments]:
        """The queries, in order."""
        return [self.counts, *([] if self.moments is None else [self.moments])]

    @property
    def requests(self) -> tuple[ReleaseRequest, ...]:
        """What is released."""
        shares = (_SHARE_OF_COUNTS, 1.0 - _SHARE_OF_COUNTS) if self.moments is not None else (1.0,)
        return tuple(
            ReleaseRequest(query.kind, 1, share, query.size, once=True)
            for query, share in zip(self.queries, shares, strict=True)
        )

    def answered(self, made: list[Release], n: int | None) -> dict[str, xr.Dataset]:
        """Return the groups of a description."""
        counts = made[0]
        ahead = iter(np.split(counts.value, np.cumsum([axis.bins for axis in self.counts.axes])[:-1]))
        histograms = [
            (each, combined([next(ahead) for _ in each.inner], each.members, counts.noise_std, n))
            for each in self.binned
        ]
        groups = {"counts": _counts_group(histograms, counts.noise_std)}
        of_columns: Mapping[str, tuple[float, float, float, float]] = {}
        if self.moments is not None:
            square, errors = _unpacked(made[1].value, made[1].noise_std)
            total = max(float(square[0, 0]) if n is None else float(n), 1.0)
            missing = {each.column.name: (found.counts[-1], found.covariance[-1, -1]) for each, found in histograms}
            of_columns = _moments_of(self.columns, square, errors, total, missing)
            groups["correlation"] = _correlation_group(self.columns, square, errors, total)
        return {"columns": _columns_group(histograms, of_columns), **groups}


def _binned(column: Modelled) -> _Binned:
    """Return how a column is counted."""
    if isinstance(column, YesNo | Category):
        count = len(column.all_levels) if isinstance(column, Category) else 2
        return _Binned(column, np.arange(count + 1.0), [np.arange(0.5, count - 1)], [np.eye(count + 1)])
    low, high = limits_of(column)
    middle, half = scale_of(column)
    if isinstance(column, Number):
        edges: FloatArray = np.linspace(low, high, _BINS + 1)
        between = edges[1:-1]
    else:  # whole bins of whole numbers: of one each, if these are few
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


def _scale(column: Modelled) -> tuple[float, float]:
    """Return the middle and half the width of what the rows hold."""
    if isinstance(column, YesNo):
        return 0.5, 0.5
    if isinstance(column, Number | Whole | Date) and column.raw:
        low, high = limits_of(column)
        return low + (high - low) / 2.0, (high - low) / 2.0
    return 0.0, 1.0


def _own_scale(column: Modelled) -> tuple[float, float]:
    """Return the middle and half the width in the column's own units."""
    if isinstance(column, Number | Whole | Date):
        low, high = limits_of(column)
        return low + (high - low) / 2.0, (high - low) / 2.0
    return 0.5, 0.5


def _kept_by(quantiles: Callable[[FloatArray], FloatArray]) -> float:
    """Return the correlation of normal scores with what they are turned into; 1 of what is always the same.

    Correlations of two columns are smaller than those of their scores by the product of both.
    """
    ranks = (np.arange(_GRID) + 0.5) / _GRID
    values = quantiles(ranks)
    return float(np.corrcoef(stats.norm.ppf(ranks), values)[0, 1]) if np.ptp(values) else 1.0


def in_own_units(column: Modelled, numbers: FloatArray) -> Any:
    """Return entries of a column."""
    if isinstance(column, Category):
        return np.array(column.all_levels)[numbers.astype(np.intp)]
    if isinstance(column, YesNo):
        return numbers == 1.0
    if isinstance(column, Number):
        return numbers
    if isinstance(column, Whole):
        return numbers.astype(np.int64)
    return (numbers + days(column.low)).astype("datetime64[D]")


def _unpacked(moments: FloatArray, noise_std: float) -> tuple[FloatArray, FloatArray]:
    """Return the matrix of products, and the standard deviation of the noise in it."""
    size = (math.isqrt(8 * moments.size + 1) - 1) // 2
    upper = np.triu_indices(size)
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    square, errors = np.zeros((size, size)), np.zeros((size, size))
    for matrix, values in ((square, moments / weights), (errors, noise_std / weights)):
        matrix[upper] = values
        matrix.T[upper] = values
    return square, errors


def _moments_of(
    columns: list[Modelled],
    square: FloatArray,
    errors: FloatArray,
    total: float,
    missing: Mapping[str, tuple[float, float]],
) -> Mapping[str, tuple[float, float, float, float]]:
    """Return mean, its error, standard deviation and its error of columns, in their own units.

    Of entries that are not missing: how many are is known with noise, and as what they count is public.
    """
    found = {}
    for place, column in enumerate(columns, start=1):
        middle, half = _own_scale(column)
        as_missing = (_missing_counts_as(column) - middle) / half
        n_missing, variance_missing = missing[column.name]
        there = max(total - n_missing, 1.0)
        mean = (square[0, place] - n_missing * as_missing) / there
        mean_error = math.hypot(errors[0, place], math.sqrt(variance_missing) * (as_missing - mean)) / there
        squares = (square[place, place] - n_missing * as_missing**2) / there
        squares_error = (
            math.hypot(errors[place, place], math.sqrt(variance_missing) * (as_missing**2 - squares)) / there
        )
        variance, variance_error = max(squares - mean**2, 0.0), math.hypot(squares_error, 2.0 * mean * mean_error)
        sd = math.sqrt(variance)
        sd_error = variance_error / (2.0 * max(sd, math.sqrt(variance_error), 1e-12))
        found[column.name] = (middle + half * mean, half * mean_error, half * sd, half * sd_error)
    return found


def _missing_counts_as(column: Modelled) -> float:
    """Return what a missing entry counts as, in the column's own units; of dates in days since the first."""
    if isinstance(column, Date):
        return days(column.missing) - days(column.low)
    return float(column.missing or 0)


def _columns_group(
    histograms: list[tuple[_Binned, Histogram]], of_columns: Mapping[str, tuple[float, float, float, float]]
) -> xr.Dataset:
    names = [each.column.name for each, _ in histograms]
    moments = np.array([of_columns.get(name, (math.nan,) * 4) for name in names])
    quantiles = np.full((3, len(names), len(_QUANTILES)), math.nan)
    missing, missing_error = [], []
    for place, (each, found) in enumerate(histograms):
        total = max(float(found.counts.sum()), 1.0)
        missing.append(found.counts[-1] / total)
        missing_error.append(math.sqrt(found.covariance[-1, -1]) / total)
        if isinstance(each.column, Number | Whole | Date):
            quantiles[:, place] = _present(each, found).quantiles(_QUANTILES, _INTERVAL)
    of_moments = zip(("mean", "mean_error", "sd", "sd_error"), moments.T, strict=True)
    of_quantiles = zip(("quantile", "quantile_low", "quantile_high"), quantiles, strict=True)
    return xr.Dataset(
        {
            "missing": ("column", missing),
            "missing_error": ("column", missing_error),
            **{name: ("column", values) for name, values in of_moments},
            **{name: (("column", "level"), values) for name, values in of_quantiles},
        },
        coords={"column": names, "level": _QUANTILES},
        attrs={
            "description": (
                "Means, standard deviations and quantiles are of entries that are not missing, each cut to its range. "
                f"Errors and {_INTERVAL:.0%} intervals are of the noise. Dates are days since the first of their range."
            )
        },
    )


def _present(each: _Binned, found: Histogram) -> Histogram:
    """Return the counts of entries that are not missing."""
    whole = not isinstance(each.column, Number)
    return Histogram(each.edges, found.counts[:-1], found.covariance[:-1, :-1], whole)


def _counts_group(histograms: list[tuple[_Binned, Histogram]], noise_std: float) -> xr.Dataset:
    variables, coords = {}, {}
    for each, found in histograms:
        name = each.column.name
        levels = each.column.all_levels if isinstance(each.column, Category) else ("no", "yes")
        labels = levels if isinstance(each.column, YesNo | Category) else each.edges[:-1]
        coords[f"{name}_low"] = (f"{name}_bin", list(labels))
        end = {"end": float(each.edges[-1]), "missing": float(found.counts[-1])}
        variables[name] = xr.Variable((f"{name}_bin",), found.counts[:-1], attrs=end)
    return xr.Dataset(variables, coords=coords, attrs={"noise_std": noise_std})


def _correlation_group(columns: list[Modelled], square: FloatArray, errors: FloatArray, total: float) -> xr.Dataset:
    """Return correlations, and standard errors of the noise in them by the delta method."""
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
