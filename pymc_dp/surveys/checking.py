"""`check`: a model check, of the responses of a table against a posterior."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy
import xarray as xr
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.units import columns_of_rows
from pymc_dp.model.view import ModelView
from pymc_dp.release.interface import FloatArray
from pymc_dp.release.surveys import NO_INPUT, PREDICTED_MEAN, SPREAD_WEIGHT, Axis, UnitCounts
from pymc_dp.reports.published import facts_of
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.surveys import fit
from pymc_dp.surveys.asking import Ask, Survey, asking, checked_budget, heading, levels_of, tree_of, view_of
from pymc_dp.surveys.histogram import FINEST, STEPS, found_bins, nearest_shares
from pymc_dp.tables import Table
from pymc_dp.tables.schema import scale_of

#: The axis of the mean that the model predicts.
PREDICTED = "predicted"
#: Bins of an axis that is not declared, for plans: the cost does not depend on their number.
_EXPECTED_BINS = 8
#: The part of the cost for finding bins.
_SHARE_OF_BINS = 0.15
#: The fewest rows of a bin, as a part of their mean number.
_FEWEST = 0.3
#: Residuals with a larger standard error, in standard deviations, are not published: the bin may have almost no rows.
_UNKNOWN = 1.0
#: The level of the test: smaller p-values count as misfit.
_LEVEL = 0.05
#: A deviation of so many standard errors is detected with a power of .8 by a one-sided test at .05: 1.645 + .84.
_SEEN = 2.49
#: An axis of bins: a name, its place among the inputs, names of levels, middle and half width of its range.
_Along = tuple[str, int, tuple[str, ...], tuple[float, float]]


class Check:
    """Released counts of a table's responses, and their deviations from a model's predictions.

    Attributes
    ----------
    tree : DataTree
        A group ``along_NAME`` for each axis (counts, locations of the residuals and other contrasts by bin, with
        standard errors, NaN where a bin may have almost no rows, and a p-value), ``all_rows`` and ``privacy``.
    """

    def __init__(self, tree: DataTree) -> None:
        if "all_rows" not in tree:
            raise InvalidArgument("This tree is not a check: pass the result of dp.check.")
        self.tree = tree

    @property
    def axes(self) -> list[str]:
        """Names of the axes of bins: columns, and the predicted mean."""
        return [str(name).removeprefix("along_") for name in self.tree.children if str(name).startswith("along_")]

    @property
    def p_values(self) -> pd.Series:
        """A p-value for each axis, and for each contrast of all rows: upper bounds where the model holds."""
        found = {f"along {name}": self.tree[f"along_{name}"].attrs["p_value"] for name in self.axes}
        found |= self.tree["all_rows"].to_dataset()["p_value"].to_series().to_dict()
        return pd.Series(found, name="p_value")

    @property
    def p_value(self) -> float:
        """The smallest p-value times their number (Bonferroni): the p-value of all tests together."""
        found = self.p_values
        return min(1.0, float(found.min()) * len(found))

    @property
    def fits(self) -> bool:
        """Whether the p-value is at least .05: no deviation that is rarer than one in twenty if the model holds."""
        return self.p_value >= _LEVEL

    @property
    def residuals(self) -> pd.DataFrame:
        """Location of the responses by bin, in standard deviations above the prediction, with standard errors."""
        along = {name: self.tree[f"along_{name}"].to_dataset()[["rows", "mean", "error"]] for name in self.axes}
        lines = {name: found.isel(shape=0, drop=True).to_dataframe() for name, found in along.items()}
        return pd.concat(lines, names=["axis"]).rename(columns={"mean": "location"})

    @property
    def would_be_seen(self) -> pd.Series:
        """By axis, the deviation in the location of a bin that is detected with a power of .8: the median over bins."""
        found = self.residuals["error"].groupby("axis", sort=False).median() * _SEEN
        return found.rename("location")

    def __repr__(self) -> str:
        facts = facts_of(self.tree)
        lines = [heading(facts, f"Check of {facts['response']!r}"), f"{'':<24}{'p-value':>10}   largest deviation"]
        for name, p_value in self.p_values.items():
            lines.append(f"{name:<24}{p_value:>10.2g}   {self._seen(str(name))}")
        if self.fits:
            seen = ", ".join(f"{value:.2g} along {name}" for name, value in self.would_be_seen.items())
            lines += [
                "Noise and chance explain all deviations from the model.",
                f"Seen four times in five would be: responses of a bin off by {seen} standard deviations.",
            ]
        else:
            lines.append(
                f"The model does not fit: this would be seen in {self.p_value:.2g} of tables at most, if it did."
            )
        if facts["largest_factor"] > 2.0:
            lines.append(
                f"Noise in the posterior itself makes variances up to {facts['largest_factor']:.2g} times as large: a "
                "posterior of a larger budget would let this check see more."
            )
        return "\n".join(lines)

    def _seen(self, name: str) -> str:
        """Return the largest deviation along an axis, or the mean of a contrast of all rows, as text."""
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
    """Release a check of a posterior against the responses of a table, within a budget.

    Parameters
    ----------
    result : DataTree
        With a group ``posterior``: of `pymc_dp.sample`, or of `PrivateLikelihood.sample`. It has to be public already.
    by : str, sequence of str, or mapping of str to array
        Columns for residuals by bin, in addition to the predicted mean: declared columns of
        `data`, data variables of the model with one number in a row, or arrays with an entry for each row of the model.
        A column need not be in the likelihood, so that the check can detect an omitted covariate.
    model : pm.Model, optional
        The model of the posterior `result`. Default: that of the ``with`` context.
    data : Table, optional
        The protected table, where the model holds invented rows.
    bins : int, optional
        Number of bins of every axis, except those of categories. Default: 4 to 8, fewer with more noise.
    budget, budget_share, insecure_seed
        As in `pymc_dp.describe`.
    unit, unit_index
        The unit of privacy, as in `pymc_dp.sample`.

    Returns
    -------
    Check
        Print it for a summary.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range, or ``by`` names the response; before anything is charged.
    UnsupportedModel
        If there are several responses in a row, or PyMC has no distribution function of them; before anything is
        charged.
    BudgetExceeded, RunInterrupted
        As in `pymc_dp.describe`.

    Notes
    -----
    The statistic of a row is the model's cumulative probability of its response (probability integral transform), at
    the posterior's mean. If the model holds, it is uniform, independently of the row's columns. Noisy counts of it in
    levels, by bin of each axis, are compared with that: see `pymc_dp.surveys.fit`. Bins are found by noisy counts, too.
    P-values are upper bounds: they allow for the noise, for noise in the posterior, and for discrete responses. The
    rows of a unit are assumed independent given the parameters, and a unit counts by the mean of its rows.

    References
    ----------
    Czado, Gneiting and Held (2009), Predictive model assessment for count data, Biometrics 65.
    """
    budget, share = checked_budget(budget, budget_share)
    if bins is not None:
        bins = _validate.whole("bins", bins, at_least=2)
    model = fit.form_of_result(model_in_context(model), result)
    view = view_of(model, unit, unit_index, data, with_response=True)
    response = view.row_split.response
    assert response is not None  # noqa: S101  as the view was read with the response
    fitted = fit.Fitted(result, model, view)
    scale = np.isin(fitted.places, view.scale_of_symmetric_rows)
    taken = (fitted.known, fitted.known & ~scale)
    of_all, but_scale = (fit.excess(*fitted.covariances(each)) for each in taken)
    factors = fit.Factors(of_all, but_scale, normal=np.count_nonzero(scale) == 1 and view.rows_are_normal)
    columns = _columns(model, view, by, data)
    if response.name in columns:
        raise InvalidArgument(f"by=: {response.name!r} is the response: along it no model fits. Name covariates.")
    rows = UnitLikelihood(view, first_order=False, beside=columns)
    axes = _axes(list(columns), len(rows.inputs) - len(columns), data, with_mean=response.mean is not None)
    levels = fit.levels_of(response.discrete, response.n_levels)
    spread = levels.size == 3  # of two levels, the spread of responses is released, too
    searched = sum(not names for _, _, names, _ in axes)
    for_bins = _SHARE_OF_BINS if searched else 0.0
    cells = max([_EXPECTED_BINS, *(len(names) for _, _, names, _ in axes)]) * (levels.size - 1 + spread)
    requests: tuple[ReleaseRequest, ...] = (ReleaseRequest("unit_counts", len(axes), 1.0 - for_bins, cells, once=True),)
    if searched:  # the counts for finding bins are releases of another kind
        requests = (ReleaseRequest("bins", STEPS * searched, for_bins, FINEST, once=True), *requests)
    survey = Survey("check", requests, share, insecure_seed)
    noise_multiplier = survey.plan(budget).noise_multipliers["unit_counts"]  # refuses early
    rows.warm_up_response()
    with asking(survey, budget, [rows], [data], [result]) as ((ask,), facts):
        if bins is None:
            factor = math.sqrt(2.0 * (1.0 + SPREAD_WEIGHT**2 * spread))
            bins = fit.suitable_bins(facts.get("n_units"), factor * noise_multiplier, levels)
        groups = _released(ask, axes, fitted.mean, levels, bins, factors)
    return Check(tree_of(groups, {**facts, "response": response.name, "largest_factor": factors.largest}))


def _columns(model: Model, view: ModelView, by: Any, data: Table | None) -> dict[str, np.ndarray]:
    """Return the columns of axes, with an entry for each row of the model; refuse others."""
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


def _axes(columns: list[str], first: int, data: Table | None, *, with_mean: bool) -> list[_Along]:
    """Return the axes: the predicted mean, if the model has one, and the columns, which are inputs from `first` on."""
    axes: list[_Along] = [(PREDICTED, PREDICTED_MEAN, (), (0.0, 1.0))] if with_mean else []
    schema = None if data is None else data.schema
    declared = {} if schema is None else {each.name: each for each in schema.modelled}
    for place, name in enumerate(columns, start=first):
        column = declared.get(name)
        axes.append((name, place, levels_of(column), (0.0, 1.0) if column is None else scale_of(column)))
    if not axes:
        raise InvalidArgument(
            "PyMC knows no mean of this distribution to put rows into bins by: name columns, by=['age']."
        )
    return axes


def _bins_along(ask: Ask, place: int, theta: FloatArray, bins: int) -> FloatArray:
    """Return edges of bins with about equally many rows, and none with much fewer, from noisy counts."""
    edges, counts = found_bins(
        lambda between: ask(UnitCounts((Axis(place, 0, NO_INPUT, between),), theta, np.zeros(0), kind="bins"))
    )
    below = np.cumsum(nearest_shares(counts.value / max(float(counts.value.sum()), 1.0)))
    kept: list[float] = []
    reached, enough = 0.0, _FEWEST / bins
    for wanted in np.arange(1, bins) / bins:
        last = int(np.searchsorted(below, wanted))
        if last < len(edges) and below[last] - reached > enough and 1.0 - below[last] > enough:
            kept.append(float(edges[last]))
            reached = float(below[last])
    return np.array(kept or [float(edges[len(edges) // 2])])


def _released(
    ask: Ask, axes: Sequence[_Along], theta: FloatArray, levels: FloatArray, bins: int, factors: fit.Factors
) -> dict[str, xr.Dataset]:
    """Find bins, release counts in them, and return the groups of a check."""
    groups, found = {}, []
    for name, place, names, (middle, half) in axes:
        edges = np.arange(0.5, len(names) - 1) if names else _bins_along(ask, place, theta, bins)
        axis = Axis(place, 0, NO_INPUT, edges)
        release = ask(UnitCounts((axis,), theta, levels, levels.size == 3))
        counts, spread = release.value.reshape(axis.bins, -1), None
        if levels.size == 3:
            counts, spread = counts[:, :-1], counts[:, -1] / SPREAD_WEIGHT
        along = fit.contrasts(counts, release.noise_std, levels, spread)
        found.append(along)
        statistic, p_value, degrees = fit.p_value(along, factors)
        means, errors = along.by_row(factors)
        unknown = (errors > _UNKNOWN).any(axis=1)
        means[unknown], errors[unknown] = np.nan, np.nan
        edges = middle + half * edges
        texts = [f"{edge:.3g}" for edge in edges]
        between = [f"{low} to {high}" for low, high in itertools.pairwise(texts)]
        groups[f"along_{name}"] = xr.Dataset(
            {
                "counts": (("bin", "probability"), counts),
                "rows": ("bin", along.rows),
                "mean": (("bin", "shape"), means),
                "error": (("bin", "shape"), errors),
                "edge": ("between", edges),
            },
            coords={
                "bin": list(names) or [f"below {texts[0]}", *between, f"from {texts[-1]}"],
                "probability": levels[1:],
                "shape": list(fit.SHAPES[: means.shape[1]]),
            },
            attrs={
                "statistic": statistic,
                "degrees_of_freedom": degrees,
                "p_value": p_value,
                "noise_std": release.noise_std,
            },
        )
    whole = fit.mean_of_axes(found)
    mean, error = (each[0] for each in whole.by_row(factors))
    p_values = 2.0 * scipy.stats.norm.sf(np.abs(mean / error))
    groups["all_rows"] = xr.Dataset(
        {"mean": ("shape", mean), "error": ("shape", error), "p_value": ("shape", p_values)},
        coords={"shape": list(fit.SHAPES[: mean.size])},
        attrs={"levels": json.dumps(list(levels)), "rows": float(whole.rows[0])},
    )
    return groups
