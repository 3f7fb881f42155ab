"""`check`: whether a table looks as a posterior says that it should."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.diagnostics import facts_of
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.units import columns_of_rows
from pymc_dp.model.view import ModelView, read
from pymc_dp.release.counts import NO_INPUT, PREDICTED_MEAN, SPREAD_WEIGHT, Axis, UnitCounts
from pymc_dp.release.interface import FloatArray, Release
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.surveys import fit
from pymc_dp.surveys.asking import Ask, Survey, asking, checked_budget, protected_unit, rows_of_survey, tree_of
from pymc_dp.surveys.bins import FINEST, STEPS, found_bins
from pymc_dp.surveys.fitted import Fitted
from pymc_dp.surveys.histogram import nearest_shares
from pymc_dp.tables import Category, Table, YesNo
from pymc_dp.tables.schema import scale_of

#: The axis of the mean that the model predicts.
PREDICTED = "predicted"
#: Bins of an axis that is not declared, for plans: the price does not depend on how many there are.
_EXPECTED_BINS = 8
#: The part of the cost that finding bins has.
_SHARE_OF_BINS = 0.15
#: The fewest rows of a bin, as a part of those that it would have if all had as many.
_FEWEST = 0.3
#: Of a bin in which residuals are known to less than a standard deviation nothing is said: hardly a row may be there.
_UNKNOWN = 1.0
#: Below this, what would be seen by chance once in so many tables counts as misfit.
_LEVEL = 0.05
#: A deviation of so many standard errors would have been seen four times in five: 1.645 + .84.
_SEEN = 2.49


class Check:
    """What a table says against a model: released counts, and what they are compared with.

    Attributes
    ----------
    tree : DataTree
        A group ``along_NAME`` for each axis (counts, locations of the residuals and other contrasts by bin, with
        standard errors, NaN where hardly a row may be, and a p-value), ``all_rows`` and ``privacy``.
    """

    def __init__(self, tree: DataTree) -> None:
        if "all_rows" not in tree:
            raise InvalidArgument("This tree is no check: pass what dp.check returned.")
        self.tree = tree

    @property
    def axes(self) -> list[str]:
        """What rows were put into bins by."""
        return [str(name).removeprefix("along_") for name in self.tree.children if str(name).startswith("along_")]

    @property
    def p_values(self) -> pd.Series:
        """A p-value for each axis, and for each contrast of all rows: upper bounds where the model holds."""
        found = {f"along {name}": self.tree[f"along_{name}"].attrs["p_value"] for name in self.axes}
        whole = self.tree["all_rows"].to_dataset()
        for shape in whole["shape"].values:
            found[str(shape)] = float(whole["p_value"].sel(shape=shape))
        return pd.Series(found, name="p_value")

    @property
    def p_value(self) -> float:
        """The smallest of them, times how many there are: what a look at all of them is worth."""
        found = self.p_values
        return min(1.0, float(found.min()) * len(found))

    @property
    def fits(self) -> bool:
        """Whether nothing was seen that would be seen in less than one of twenty tables where the model holds."""
        return self.p_value >= _LEVEL

    @property
    def residuals(self) -> pd.DataFrame:
        """Location of the responses by bin, in standard deviations above what is predicted, with standard errors."""
        lines = []
        for name in self.axes:
            found = self.tree[f"along_{name}"].to_dataset()
            for place, label in enumerate(found["bin"].values):
                location = found["mean"].isel(bin=place, shape=0), found["error"].isel(bin=place, shape=0)
                lines.append((name, str(label), float(found["rows"][place]), *map(float, location)))
        frame = pd.DataFrame(lines, columns=["axis", "bin", "rows", "location", "error"])
        return frame.set_index(["axis", "bin"])

    @property
    def would_be_seen(self) -> pd.Series:
        """By axis, the location of a bin that would have been seen four times in five: the median over bins."""
        found = self.residuals["error"].groupby("axis", sort=False).median() * _SEEN
        return found.rename("location")

    def __repr__(self) -> str:
        facts = facts_of(self.tree)
        private = "" if facts["private"] else f"NOT PRIVATE: {facts['not_private_because']}\n"
        lines = [
            f"{private}Check of {facts['response']!r} (epsilon {facts['epsilon']:.3g} at delta {facts['delta']:.3g}, "
            f"{facts['relation']})",
            f"{'':<24}{'p-value':>10}   {'what was seen'}",
        ]
        for name, p_value in self.p_values.items():
            lines.append(f"{name:<24}{p_value:>10.2g}   {self._seen(str(name))}")
        verdict = (
            "Nothing speaks against the model that noise and chance do not explain."
            if self.fits
            else f"The model does not fit: this would be seen in {self.p_value:.2g} of tables at most, if it did."
        )
        lines.append(verdict)
        if self.fits:
            seen = ", ".join(f"{value:.2g} along {name}" for name, value in self.would_be_seen.items())
            lines.append(f"Seen four times in five would be: responses of a bin off by {seen} standard deviations.")
        if facts["largest_factor"] > 2.0:
            lines.append(
                f"Noise in the posterior itself makes variances up to {facts['largest_factor']:.2g} times as large: a "
                "posterior of a larger budget would let this check see more."
            )
        return "\n".join(lines)

    def _seen(self, name: str) -> str:
        if not name.startswith("along "):
            found = self.tree["all_rows"].to_dataset().sel(shape=name)
            return f"{float(found['mean']):+.3f} ± {float(found['error']):.3f}"
        along = self.tree[f"along_{name.removeprefix('along ')}"].to_dataset()
        scores = np.abs(along["mean"].values / along["error"].values)
        if np.isnan(scores).all():
            return "no bin is known to hold rows"
        bin_, shape = np.unravel_index(np.nanargmax(scores), scores.shape)
        far = along.isel(bin=bin_, shape=shape)
        where = f"{far['shape'].item()} in {far['bin'].item()}"
        return f"farthest off: {where}: {float(far['mean']):+.2f} ± {float(far['error']):.2f}"


def check(
    result: DataTree,
    *,
    budget: PrivacyBudget | None = None,
    by: str | Sequence[str] | Mapping[str, Any] = (),
    model: Model | None = None,
    data: Table | None = None,
    bins: int | None = None,
    budget_share: float = 0.25,
    unit: str | None = None,
    unit_index: Any = None,
    insecure_seed: int | None = None,
) -> Check:
    """Release how well a table agrees with a posterior of it, within a budget.

    Parameters
    ----------
    result : DataTree
        With a group ``posterior``: of `pymc_dp.sample`, or of `PrivateLikelihood.sample`. It has to be public already.
    budget : PrivacyBudget
        What is charged: the same as for everything else that is computed of the table.
    by : str, sequence of str, or mapping of str to array
        Columns that residuals are looked at along, besides the mean that the model predicts: declared columns of
        `data`, data variables of the model with one number in a row, or arrays with an entry for each row of the model.
        A column need not be in the likelihood: that is how a covariate is found that was left out.
    model : pm.Model, optional
        The model that `result` is a posterior of. Default: that of the ``with`` context.
    data : Table, optional
        The protected table, where the model stands on invented rows.
    bins : int, optional
        Of every axis, but those of categories. Default: 4 to 8, the fewer the more noise there is.
    budget_share : float
        Part of what is left of the budget that is spent.
    unit, unit_index
        As of `pymc_dp.sample`: what is protected.
    insecure_seed : int, optional
        Seeds the noise, for tests on public data: the result is not private then.

    Returns
    -------
    Check
        Print it.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range, before anything is charged.
    UnsupportedModel
        If there are several responses in a row, or PyMC knows no distribution function of them; before anything is
        charged.
    BudgetExceeded
        If nothing is left of the budget.
    RunInterrupted
        If it ends early, after it was charged.

    Notes
    -----
    For each row the probability that the model gives to at most its response is computed, at the posterior's mean.
    Where the model holds, these are uniform, whatever the row's columns. Noisy counts of them in levels, by bin of each
    axis, are compared with that: see `pymc_dp.surveys.fit`. Bins are found by noisy counts, too. P-values are upper
    bounds: they allow for the noise, for noise in the posterior, and for whole numbers. The rows of a unit are taken as
    independent given the parameters, and a unit counts by the mean of its rows.

    References
    ----------
    Czado, Gneiting and Held (2009), Predictive model assessment for count data, Biometrics 65.
    """
    budget, share = checked_budget(budget, budget_share)
    if bins is not None:
        bins = _validate.whole("bins", bins, at_least=2)
    facts_of(result)
    model = model_in_context(model)
    view = read(model, **protected_unit(model, unit, unit_index, data), with_response=True)
    theta, factors = _posterior(result, model, view)
    columns = _columns(model, view, by, data)
    rows = UnitLikelihood(view, first_order=False, engine="reference", beside=columns)
    questions = _Questions(view, rows, list(columns), data)
    survey = Survey("check", questions.requests, share, insecure_seed)
    multipliers = survey.plan(budget).noise_multipliers  # refuses early
    rows.warm_up_response()
    with rows_of_survey(rows, data) as asked_of:
        n = asked_of.n_units if budget.relation == "substitute" else None
        bins = questions.suitable_bins(n, multipliers["unit_counts"]) if bins is None else bins
        with asking(survey, budget, asked_of, [result]) as (ask, facts):
            groups = _groups(questions, questions.asked(ask, theta, bins), factors)
    return Check(tree_of(groups, {**facts, "response": questions.response, "largest_factor": factors.largest}))


def _posterior(result: DataTree, model: Model, view: ModelView) -> tuple[FloatArray, fit.Factors]:
    """Return the posterior's mean on the unconstrained scale, and by which factors its noise may enlarge variances."""
    found = Fitted(result, model, view)
    if found.likelihood is None:
        return found.mean, fit.EXACT
    known, places = found.known, found.places
    scale = np.isin(places, view.scale_of_symmetric_rows)
    factors: list[FloatArray] = []
    for taken in (known, known & ~scale):
        factors.append(fit.excess(found.covariance(taken), found.information(taken), found.noise(taken)))
    return found.mean, fit.Factors(factors[0], factors[1], normal=np.count_nonzero(scale) == 1 and view.rows_are_normal)


def _columns(model: Model, view: ModelView, by: Any, data: Table | None) -> dict[str, np.ndarray]:
    """Return the columns of axes, as they stand beside the rows of the model.

    Raises
    ------
    InvalidArgument
        If one is no column, or of another length.
    """
    names = [by] if isinstance(by, str) else list(by)
    if not all(isinstance(name, str) for name in names) or PREDICTED in names or len(set(names)) < len(names):
        raise InvalidArgument(f"by= must be different names of columns, none of them {PREDICTED!r}.")
    n_rows = view.row_split.n_rows
    if isinstance(by, Mapping):
        given = {name: np.asarray(values) for name, values in by.items()}
    elif data is not None and data.schema is not None:
        template = data.template_of(n_rows)
        given = {name: template[name] for name in names}
    else:
        given = columns_of_rows(model, names)
    for name, values in given.items():
        if values.shape != (n_rows,) or values.dtype.kind not in "biuf":
            raise InvalidArgument(f"by=: {name!r} must hold one number for each row of the model.")
    return {name: values.astype(np.float64 if values.dtype.kind == "f" else np.int64) for name, values in given.items()}


@dataclass(frozen=True)
class _Counted:
    """What was released along one axis; the edges in the column's own units."""

    name: str
    axis: Axis
    edges: FloatArray
    labels: list[str]
    release: Release


class _Questions:
    """What is asked along each axis.

    Parameters
    ----------
    view : ModelView
        With the distribution of the response.
    rows : UnitLikelihood
        On the model's own rows.
    columns : list of str
        Those that are inputs beside the model's own.
    data : Table or None
        What is declared of columns.
    """

    def __init__(self, view: ModelView, rows: UnitLikelihood, columns: list[str], data: Table | None) -> None:
        response = view.row_split.response
        if response is None:
            raise InvalidArgument("The distribution of the response was not read.")
        self.response = response.name
        first = len(rows.inputs) - len(columns)
        self._places = {name: first + place for place, name in enumerate(columns)}
        if response.mean is not None:
            self._places = {PREDICTED: PREDICTED_MEAN, **self._places}
        if not self._places:
            raise InvalidArgument(
                "PyMC knows no mean of this distribution to put rows into bins by: name columns, by=['age']."
            )
        schema = None if data is None else data.schema
        declared = {} if schema is None else {each.name: each for each in schema.modelled}
        self._levels: dict[str, list[str]] = {}
        self._scales: dict[str, tuple[float, float]] = {}
        for name in columns:
            each = declared.get(name)
            if each is not None:
                self._scales[name] = scale_of(each)
            if isinstance(each, Category | YesNo):
                self._levels[name] = list(each.all_levels) if isinstance(each, Category) else ["no", "yes"]
        self.levels = fit.levels_of(response.discrete, response.n_levels)
        self.spread = self.levels.size == 3
        self._of_a_bin = self.levels.size - 1 + self.spread

    @property
    def requests(self) -> tuple[ReleaseRequest, ...]:
        """What is released."""
        found = [name for name in self._places if name not in self._levels]
        share = _SHARE_OF_BINS if found else 0.0
        most = max([_EXPECTED_BINS, *map(len, self._levels.values())])
        counts = ReleaseRequest("unit_counts", len(self._places), 1.0 - share, most * self._of_a_bin, once=True)
        if not found:
            return (counts,)
        return ReleaseRequest("bins", STEPS * len(found), share, FINEST, once=True), counts

    def suitable_bins(self, n: int | None, noise_multiplier: float) -> int:
        """Return how many bins suit so much noise. See `fit.suitable_bins`."""
        factor = math.sqrt(2.0 * (1.0 + SPREAD_WEIGHT**2 * self.spread))
        return fit.suitable_bins(n, factor * noise_multiplier, self.levels)

    def asked(self, ask: Ask, theta: FloatArray, bins: int) -> list[_Counted]:
        """Find bins, and have rows counted in them."""
        made = []
        for name, place in self._places.items():
            if name in self._levels:
                axis = Axis(place, 0, NO_INPUT, np.arange(0.5, len(self._levels[name]) - 1))
            else:
                axis = self._found(ask, place, theta, bins)
            middle, half = self._scales.get(name, (0.0, 1.0))
            edges = middle + half * axis.edges
            labels = self._levels.get(name) or _labels(edges)
            made.append(_Counted(name, axis, edges, labels, ask(UnitCounts((axis,), theta, self.levels, self.spread))))
        return made

    def _found(self, ask: Ask, place: int, theta: FloatArray, bins: int) -> Axis:
        """Return an axis of bins with about as many rows each."""
        edges, counts = found_bins(lambda between: ask(self._bins_at(place, between, theta)))
        return Axis(place, 0, NO_INPUT, _quantiles(edges, counts.value, bins))

    @staticmethod
    def _bins_at(place: int, edges: FloatArray, theta: FloatArray) -> UnitCounts:
        return UnitCounts((Axis(place, 0, NO_INPUT, edges),), theta, np.zeros(0), kind="bins")


def _quantiles(edges: FloatArray, counts: FloatArray, bins: int) -> FloatArray:
    """Return edges between which there are about as many rows, and not much fewer anywhere."""
    below = np.cumsum(nearest_shares(counts / max(float(counts.sum()), 1.0)))
    kept: list[float] = []
    reached = 0.0
    for wanted in np.arange(1, bins) / bins:
        place = int(np.searchsorted(below, wanted))
        enough = _FEWEST / bins
        if place < len(edges) and below[place] - reached > enough and 1.0 - below[place] > enough:
            kept.append(float(edges[place]))
            reached = float(below[place])
    return np.array(kept or [float(edges[len(edges) // 2])])


def _labels(edges: FloatArray) -> list[str]:
    """Return names of bins."""
    texts = [f"{edge:.3g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(texts)]
    return [f"below {texts[0]}", *between, f"from {texts[-1]}"]


def _groups(questions: _Questions, made: list[_Counted], factors: fit.Factors) -> dict[str, xr.Dataset]:
    """Return the groups of a check."""
    groups, found = {}, []
    for each in made:
        cells = each.release.value.reshape(each.axis.bins, -1)
        counts, spread = cells, None
        if questions.spread:
            counts, spread = cells[:, :-1], cells[:, -1] / SPREAD_WEIGHT
        along = fit.contrasts(counts, each.release.noise_std, questions.levels, spread)
        found.append(along)
        statistic, p_value, degrees = fit.p_value(along, factors)
        means, errors = along.by_row(factors)
        unknown = (errors > _UNKNOWN).any(axis=1)
        means[unknown], errors[unknown] = np.nan, np.nan
        names = list(fit.SHAPES[: means.shape[1]])
        groups[f"along_{each.name}"] = xr.Dataset(
            {
                "counts": (("bin", "probability"), counts),
                "rows": ("bin", along.rows),
                "mean": (("bin", "shape"), means),
                "error": (("bin", "shape"), errors),
                "edge": ("between", each.edges),
            },
            coords={"bin": each.labels, "probability": questions.levels[1:], "shape": names},
            attrs={
                "statistic": statistic,
                "degrees_of_freedom": degrees,
                "p_value": p_value,
                "noise_std": each.release.noise_std,
            },
        )
    whole = fit.mean_of_axes(found)
    means, errors = whole.by_row(factors)
    groups["all_rows"] = xr.Dataset(
        {
            "mean": ("shape", means[0]),
            "error": ("shape", errors[0]),
            "p_value": ("shape", fit.two_sided(means[0] / errors[0])),
        },
        coords={"shape": names},
        attrs={"levels": json.dumps(list(questions.levels)), "rows": float(whole.rows[0])},
    )
    return groups
