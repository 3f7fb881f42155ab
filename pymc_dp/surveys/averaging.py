"""`average_predictions`: predictions of a model, averaged over the protected covariates of a table."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from xarray import DataTree

from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.view import ModelView
from pymc_dp.release.interface import FloatArray, Release
from pymc_dp.release.surveys import (
    NO_INPUT,
    Axis,
    Predicted,
    PredictionCounts,
    PredictionSpreads,
    PredictionSums,
    Quantity,
    SpreadSizes,
)
from pymc_dp.reports.published import facts_of
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.surveys.asking import Ask, Survey, asking, checked_budget, four_digits, heading, tree_of, view_of
from pymc_dp.surveys.fit import Fitted, form_of_result
from pymc_dp.surveys.histogram import FINEST, STEPS, bins_that_most_keep, found_range
from pymc_dp.surveys.scenarios import Rewriting
from pymc_dp.tables import Table
from pymc_dp.tables.schema import scale_of

#: Number of draws of the posterior at which predictions are averaged.
_DRAWS = 100
#: Parts of the cost for the range of predictions and for the clip bound of their differences; and the part of the
#: remainder for the averages; the differences have the rest.
_SHARE_OF_RANGE, _SHARE_OF_SIZES, _SHARE_OF_SUMS = 0.1, 0.1, 0.5
#: Lower end of the histogram of norms, as a part of half the width of the range; its bins are half octaves.
_SMALLEST = 2.0**-12
#: The part of units whose differences are clipped.
_CLIPPED = 0.01
#: A group is published only if its size exceeds so many standard deviations of the noise in it, and of the noise in the
#: counts of norms, which would otherwise hide the variation of its predictions between draws.
_KNOWN, _SEEN = 5.0, 10.0
_ENDS = (0.05, 0.95)


class AveragePredictions:
    """Average predictions of a model over the units of a table.

    Attributes
    ----------
    tree : DataTree
        Groups ``posterior`` (``average`` by chain, draw, scenario and group, noise included), ``noise``, ``privacy``.
    """

    def __init__(self, tree: DataTree) -> None:
        if "posterior" not in tree or "average" not in tree["posterior"]:
            raise InvalidArgument("This tree holds no averages: pass the result of dp.average_predictions.")
        self.tree = tree

    @property
    def average(self) -> xr.DataArray:
        """Draws of averages, with dims ``chain``, ``draw``, ``scenario``, and the column of groups, if any."""
        return self.tree["posterior"].to_dataset()["average"]

    @property
    def table(self) -> pd.DataFrame:
        """By scenario and group: posterior mean, standard deviation, 90 % interval, and this release's noise."""
        noise = self.tree["noise"]["of_noise"].rename("of_noise")
        return _summary(self.average).join(noise.to_dataframe()["of_noise"])

    @property
    def contrasts(self) -> pd.DataFrame:
        """Difference of each scenario to the first one, as in `table`."""
        return _summary(self.average.isel(scenario=slice(1, None)) - self.average.isel(scenario=0, drop=True))

    def standardised(self, weights: Mapping[str, float]) -> xr.DataArray:
        """Return draws of averages over groups of public sizes, such as those of a census (poststratification).

        Parameters
        ----------
        weights : mapping of str to float
            A weight for each group. They need not add up to 1.

        Raises
        ------
        InvalidArgument
            If there are no groups, a name is not that of a group, or weights are negative.
        """
        groups = [str(dim) for dim in self.average.dims if dim not in ("chain", "draw", "scenario")]
        if not groups:
            raise InvalidArgument("There are no groups: define them with by=.")
        names = [str(name) for name in self.average[groups[0]].values]
        unknown, negative = set(weights) - set(names), not all(weight >= 0.0 for weight in weights.values())
        if unknown or negative or not any(weights.values()):
            raise InvalidArgument(f"weights= must be weights, not negative, of groups among {', '.join(names)}.")
        taken = {name: weight for name, weight in weights.items() if weight}
        shares = xr.DataArray(list(taken.values()), coords={groups[0]: list(taken)})
        return (self.average.sel({groups[0]: list(taken)}) * shares).sum(groups[0], skipna=False) / shares.sum()

    def __repr__(self) -> str:
        facts = facts_of(self.tree)
        subject = f"{facts['quantity']}, averaged over the units of a table"
        lines = [heading(facts, subject, with_units=True), four_digits(self.table)]
        if self.average.sizes["scenario"] > 1:
            lines += [f"Above {str(self.average['scenario'].values[0])!r}:", four_digits(self.contrasts)]
        return "\n".join(lines)


def average_predictions(
    result: DataTree,
    scenarios: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    budget: PrivacyBudget | None = None,
    by: Any = None,
    equal_to: Any = None,
    at_most: Any = None,
    model: Model | None = None,
    data: Table | None = None,
    budget_share: float = 0.25,
    unit: str | None = None,
    unit_index: Any = None,
    insecure_seed: int | None = None,
) -> AveragePredictions:
    """Release average predictions of a model over a table's covariates, observed or with some of them set to values.

    Effects are then differences of means or risks (standardisation, the parametric g-formula); means of groups serve
    small-area estimation and poststratification.

    Parameters
    ----------
    result : DataTree
        With a group ``posterior``: of `pymc_dp.sample`, or of `PrivateLikelihood.sample`. It has to be public already.
    scenarios : mapping of str to mapping
        Columns and their values, by name of the scenario: ``{"treated": {"drug": 1}, "untreated": {"drug": 0}}``. A
        column is a declared column of `data`, with a value in its own unit, or a data variable of the model, with a
        value, or an array with an entry for each row of the model, as for ``pm.set_data``. Default: a single scenario
        with the observed rows.
    by : str, or mapping of str to sequence of str, optional
        Average within groups: of a declared category or truth value of `data`, or of a data variable of codes from 0
        on, with names of the codes.
    equal_to, at_most : object, optional
        Predict the probability that the response equals this value, or is at most this value. Default: its mean.
    budget, model, data, budget_share, unit, unit_index, insecure_seed
        As in `pymc_dp.check`.

    Returns
    -------
    AveragePredictions
        Print it for a summary.

    Raises
    ------
    InvalidArgument, UnsupportedModel, BudgetExceeded, RunInterrupted
        As in `pymc_dp.check`.

    Notes
    -----
    Two kinds of sums are released: of predictions at the posterior's mean, cut to a range from noisy counts (to [0, 1]
    for probabilities), and of the differences between predictions at 100 draws and these, clipped by unit with a
    bound from noisy counts for each group (`pymc_dp.release.surveys`). A draw of an average is the sum of both, plus
    noise of the same size as the released noise. A unit of several rows counts by the mean of its rows. The average is
    over the units of the table: the interval does not cover the sampling of these units from a population.
    """
    budget, share = checked_budget(budget, budget_share)
    model = form_of_result(model_in_context(model), result)
    view = view_of(model, unit, unit_index, data, with_response=True)
    fitted = Fitted(result, model, view)
    template = None if data is None or data.schema is None else data.template_of(view.row_split.n_rows)
    queries = _Queries(view, Rewriting(model, view, template), scenarios or {"as it is": {}}, by, equal_to, at_most)
    rows = UnitLikelihood(view, first_order=False, beside=queries.rewriting.columns)
    survey = Survey("average predictions", queries.requests, share, insecure_seed)
    survey.plan(budget)  # refuses early
    rows.warm_up_response()
    with asking(survey, budget, [rows], [data], [result]) as ((ask,), facts):
        groups = queries.released(ask, fitted, facts.get("n_units"))
    return AveragePredictions(tree_of(groups, {**facts, "quantity": queries.quantity}))


class _Queries:
    """The queries of scenarios, and the groups of a result computed from their releases."""

    def __init__(
        self, view: ModelView, rewriting: Rewriting, scenarios: Any, by: Any, equal_to: Any, at_most: Any
    ) -> None:
        response = view.row_split.response
        assert response is not None  # noqa: S101  as the view was read with the response
        self.rewriting, name = rewriting, str(response.name)
        kind: Quantity
        if equal_to is not None and at_most is not None:
            raise InvalidArgument("Pass equal_to= or at_most=, not both.")
        if equal_to is not None:
            kind, value, self.quantity = "equal", equal_to, f"Probability that {name!r} is {equal_to!r}"
        elif at_most is not None:
            kind, value, self.quantity = "at_most", at_most, f"Probability that {name!r} is at most {at_most!r}"
        else:
            kind, value, self.quantity = "mean", None, f"Mean of {name!r}"
        if kind == "equal" and not response.discrete:
            raise InvalidArgument(f"{name!r} is not discrete: no value of it has a probability. Pass at_most=.")
        if kind == "mean" and response.mean is None:
            raise InvalidArgument(f"PyMC knows no mean of {name!r}: pass equal_to= or at_most=.")
        if kind == "mean" and (response.n_levels or 0) > 2:
            raise InvalidArgument(f"{name!r} is a category: pass equal_to=, whose probability is predicted then.")
        if not isinstance(scenarios, Mapping) or not scenarios:
            raise InvalidArgument('Scenarios are columns set to values, by name: {"treated": {"drug": 1}, ...}.')
        responses = [] if kind == "mean" else [rewriting.response_set_to(value)]
        self._scenarios = list(scenarios)
        rewritten = tuple(rewriting.scenario(name, columns, responses) for name, columns in scenarios.items())
        self._predicted = Predicted(rewritten, kind)
        #: The range of predictions, where it is public.
        self._limits = (0.0, 1.0) if kind != "mean" or response.n_levels == 2 else None
        place, self._groups = (NO_INPUT, ["all"]) if by is None else rewriting.group_of(by)
        self._dim = by if by is None or isinstance(by, str) else next(iter(by))
        self._by = Axis(place, 0, NO_INPUT, np.arange(0.5, len(self._groups) - 1))
        # Predictions are within the range, so a norm is at most twice half its width per draw and scenario.
        self._bins = math.ceil(2.0 * math.log2(2.0 * math.sqrt(_DRAWS * len(self._scenarios)) / _SMALLEST))
        declared = rewriting.declared_response if kind == "mean" else None
        self._own_units = (0.0, 1.0) if declared is None else scale_of(declared)

    @property
    def requests(self) -> tuple[ReleaseRequest, ...]:
        """The requested releases."""
        count, groups = len(self._scenarios), len(self._groups)
        of_range = _SHARE_OF_RANGE if self._limits is None else 0.0
        rest = 1.0 - of_range - _SHARE_OF_SIZES
        found = [ReleaseRequest("prediction_counts", STEPS, of_range, FINEST, once=True)] if of_range else []
        return (
            *found,
            ReleaseRequest("prediction_sums", 1, rest * _SHARE_OF_SUMS, groups * (1 + count), once=True),
            ReleaseRequest("spread_sizes", 1, _SHARE_OF_SIZES, groups * self._bins, once=True),
            ReleaseRequest("prediction_spreads", 1, rest * (1.0 - _SHARE_OF_SUMS), groups * count * _DRAWS, once=True),
        )

    def released(self, ask: Ask, fitted: Fitted, n: int | None) -> dict[str, xr.Dataset]:
        """Make the releases, and return the groups of a result; n is the number of units where it is public."""
        theta, some, groups = fitted.mean, fitted.some_draws(_DRAWS), len(self._groups)
        low, high = self._limits or found_range(lambda edges: ask(PredictionCounts(self._predicted, theta, edges)))
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        sums = ask(PredictionSums(self._predicted, theta, self._by, middle, half))
        smallest = half * _SMALLEST
        sizes = ask(SpreadSizes(self._predicted, theta, some, _DRAWS, self._by, smallest, self._bins))
        by_group = sizes.value.reshape(groups, self._bins)
        kept = [bins_that_most_keep(of_group, sizes.noise_std, _CLIPPED) for of_group in by_group]
        of_all = bins_that_most_keep(by_group.sum(axis=0), math.sqrt(groups) * sizes.noise_std, _CLIPPED)
        bounds = smallest * 2.0 ** (np.maximum(kept, of_all) / 2.0)
        spreads = ask(PredictionSpreads(self._predicted, theta, some, _DRAWS, self._by, bounds))
        least = max(_KNOWN * sums.noise_std, _SEEN * sizes.noise_std if groups > 1 else 0.0)
        averages, of_noise, units = _averages(sums, spreads, bounds, (middle, half), n, least)
        if self._limits is not None:
            averages = np.clip(averages, *self._limits)
        (shift, scale), group = self._own_units, self._dim or "group"
        coords = {"scenario": self._scenarios, group: self._groups}
        draws = xr.Dataset(
            {"average": (("chain", "draw", "scenario", group), shift + scale * averages[None])},
            coords={"chain": [0], "draw": range(_DRAWS), **coords},  # as ArviZ's plots require
        )
        noise = xr.Dataset(
            {
                "of_noise": (("scenario", group), scale * of_noise),
                "units": (group, units),
                "clip_bound": (group, scale * bounds),
            },
            coords=coords,
            attrs={"low": shift + scale * low, "high": shift + scale * high},
        )
        if self._dim is None:
            draws, noise = (each.isel({group: 0}, drop=True) for each in (draws, noise))
        return {"posterior": draws, "noise": noise}


def _averages(
    sums: Release, spreads: Release, bounds: FloatArray, scale: tuple[float, float], n: int | None, least: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return draws of averages, shape (draws, scenarios, groups), their noise, and the number of units by group.

    Each draw has fresh noise of the same size as the released noise, which is the uncertainty of the sums given the
    releases. Groups with fewer units than `least` have no averages. `n` is the number of units where it is public.
    """
    (middle, half), error, groups = scale, sums.noise_std, len(bounds)
    released = sums.value.reshape(groups, -1).T
    noise = np.random.default_rng(0).normal(size=(_DRAWS, *released.shape))  # of public numbers
    noise = (noise - noise.mean(axis=0)) / noise.std(axis=0)  # so that the draws' mean is the released value
    units, totals = np.split(released + error * noise, [1], axis=1)
    counted, of_units = released[:1], released[1:]  # noise in counts changes averages in proportion to their sums
    if n is not None and groups == 1:
        counted, of_units = np.full((1, 1), float(n)), np.zeros_like(released[1:])
        units = np.full_like(units, float(n))
    known = np.where(counted > max(least, 0.0), counted, np.nan)
    units = np.where(np.isnan(known), np.nan, units)
    differences = bounds * spreads.value.reshape(groups, _DRAWS, -1).transpose(1, 2, 0)
    averages = middle + (half * totals + differences) / units
    of_noise = np.hypot(half * error * np.sqrt(1.0 + (of_units / known) ** 2), bounds * spreads.noise_std) / known
    return averages, of_noise, counted[0]


def _summary(draws: xr.DataArray) -> pd.DataFrame:
    """Return means, standard deviations and intervals of draws, one line for each scenario and group."""
    over = ("chain", "draw")
    ends = draws.quantile(_ENDS, over, skipna=False)
    return xr.Dataset(
        {
            "mean": draws.mean(over, skipna=False),
            "sd": draws.std(over, skipna=False),
            **{f"{end:.0%}": ends.sel(quantile=end, drop=True) for end in _ENDS},
        }
    ).to_dataframe()
