"""`average_predictions`: what a model predicts, averaged over the protected covariates of a table."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from xarray import DataTree

from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.diagnostics import facts_of
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.view import read
from pymc_dp.release.counts import NO_INPUT, Axis
from pymc_dp.release.interface import FloatArray, Release
from pymc_dp.release.predictions import (
    Predicted,
    PredictionCounts,
    PredictionSpreads,
    PredictionSums,
    Quantity,
    SpreadSizes,
)
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.surveys.asking import Ask, Survey, asking, checked_budget, protected_unit, rows_of_survey, tree_of
from pymc_dp.surveys.bins import FINEST, STEPS, bins_that_most_keep, found_range
from pymc_dp.surveys.fitted import Fitted
from pymc_dp.surveys.scenarios import Rewriting, own_units
from pymc_dp.tables import Table

#: Draws of the posterior that predictions are averaged at.
_DRAWS = 100
#: The parts of the cost that finding the range of predictions, and the clip bound of their differences, have; and of
#: what is left that of the averages, beside that of the differences.
_SHARE_OF_RANGE, _SHARE_OF_SIZES, _SHARE_OF_SUMS = 0.1, 0.1, 0.5
#: Norms are counted from this part of half the width of the range on, in half octaves.
_SMALLEST = 2.0**-12
#: The part of units whose differences are clipped.
_CLIPPED = 0.01
#: Of a group that is known to fewer standard deviations of the noise nothing is said; nor of one so small beside that
#: of the counts of norms, which would hide how much predictions for it vary between draws.
_KNOWN, _SEEN = 5.0, 10.0
_ENDS = (0.05, 0.95)


class AveragePredictions:
    """What a model predicts on average over the units of a table.

    Attributes
    ----------
    tree : DataTree
        Groups ``posterior`` (``average`` by chain, draw, scenario and group, noise included), ``noise``, ``privacy``.
    """

    def __init__(self, tree: DataTree) -> None:
        if "posterior" not in tree or "average" not in tree["posterior"]:
            raise InvalidArgument("This tree holds no averages: pass what dp.average_predictions returned.")
        self.tree = tree

    @property
    def average(self) -> xr.DataArray:
        """Draws of averages, with dims ``chain``, ``draw``, ``scenario``, and the column of groups if there is one."""
        return self.tree["posterior"].to_dataset()["average"]

    @property
    def table(self) -> pd.DataFrame:
        """By scenario and group: posterior mean, standard deviation, 90 % interval, and the part that is noise here."""
        noise = self.tree["noise"]["of_noise"].rename("of_noise")
        return _summary(self.average).join(noise.to_dataframe()["of_noise"])

    @property
    def contrasts(self) -> pd.DataFrame:
        """By how much each scenario is above the first one, as in `table`."""
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
            If there are no groups, or others, or weights are negative.
        """
        groups = [str(dim) for dim in self.average.dims if dim not in ("chain", "draw", "scenario")]
        if not groups:
            raise InvalidArgument("There are no groups: ask for them with by=.")
        names = [str(name) for name in self.average[groups[0]].values]
        if (
            set(weights) - set(names)
            or not all(weight >= 0.0 for weight in weights.values())
            or not any(weights.values())
        ):
            raise InvalidArgument(f"weights= must be weights, not negative, of groups among {', '.join(names)}.")
        taken = {name: weight for name, weight in weights.items() if weight}
        shares = xr.DataArray(list(taken.values()), coords={groups[0]: list(taken)})
        return (self.average.sel({groups[0]: list(taken)}) * shares).sum(groups[0], skipna=False) / shares.sum()

    def __repr__(self) -> str:
        facts = facts_of(self.tree)
        private = "" if facts["private"] else f"NOT PRIVATE: {facts['not_private_because']}\n"
        n = f"{facts['n_units']:,} units, " if "n_units" in facts else ""
        lines = [
            f"{private}{facts['quantity']}, averaged over the units of a table ({n}epsilon {facts['epsilon']:.3g} at "
            f"delta {facts['delta']:.3g}, {facts['relation']})",
            self.table.to_string(float_format=lambda value: f"{value:.4g}"),
        ]
        if self.average.sizes["scenario"] > 1:
            first = str(self.average["scenario"].values[0])
            contrasts = self.contrasts.to_string(float_format=lambda value: f"{value:.4g}")
            lines += [f"Above {first!r}:", contrasts]
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
    """Release what a model predicts on average over a table's own covariates, as they are or with some of them set.

    That is how effects are stated as differences of means or risks (standardisation, the parametric g-formula), and
    means of groups (small areas, poststratification).

    Parameters
    ----------
    result : DataTree
        With a group ``posterior``: of `pymc_dp.sample`, or of `PrivateLikelihood.sample`. It has to be public already.
    scenarios : mapping of str to mapping
        By name, which columns are set to what: ``{"treated": {"drug": 1}, "untreated": {"drug": 0}}``. Columns are
        declared columns of `data`, in their own units, or data variables of the model: with a value, or an array with
        an entry for each row of the model, as for ``pm.set_data``. Default: one, with all rows as they are.
    budget : PrivacyBudget
        What is charged: the same as for everything else that is computed of the table.
    by : str, or mapping of str to sequence of str, optional
        Average within groups: of a declared category or truth value of `data`, or of a data variable of codes from 0
        on, with names of the codes.
    equal_to, at_most : object, optional
        Predict the probability that the response is this, or at most this. Default: its mean.
    model : pm.Model, optional
        The model that `result` is a posterior of. Default: that of the ``with`` context.
    data : Table, optional
        The protected table, where the model stands on invented rows.
    budget_share : float
        Part of what is left of the budget that is spent.
    unit, unit_index
        As of `pymc_dp.sample`: what is protected.
    insecure_seed : int, optional
        Seeds the noise, for tests on public data: the result is not private then.

    Returns
    -------
    AveragePredictions
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
    Released are the sums of predictions at the posterior's mean, cut to a range that noisy counts find (to [0, 1] for
    probabilities), and of how predictions at 100 draws differ from these, each unit's clipped together, with a bound
    for each group that noisy counts find (`pymc_dp.release.predictions`). Draws of an average add both, and noise as
    large as was added to them. A unit of several rows counts by the mean of its rows. The average is over the units
    that are in the table; by how much it would be another one for other units of the same population is not in the
    interval.
    """
    budget, share = checked_budget(budget, budget_share)
    facts_of(result)
    model = model_in_context(model)
    view = read(model, **protected_unit(model, unit, unit_index, data), with_response=True)
    draws = Fitted(result, model, view).draws
    template = None if data is None or data.schema is None else data.template_of(view.row_split.n_rows)
    rewriting = Rewriting(model, view, template)
    asked = _Questions(view, rewriting, scenarios or {"as it is": {}}, by, equal_to, at_most)
    rows = UnitLikelihood(view, first_order=False, engine="reference", beside=asked.rewriting.beside)
    survey = Survey("average predictions", asked.requests, share, insecure_seed)
    survey.plan(budget)  # refuses early
    rows.warm_up_response()
    with rows_of_survey(rows, data) as opened, asking(survey, budget, opened, [result]) as (ask, facts):
        groups = asked.answered(ask, draws, facts.get("n_units"))
    return AveragePredictions(tree_of(groups, {**facts, "quantity": asked.in_words}))


class _Questions:
    """What is asked.

    Parameters
    ----------
    view : ModelView
        With the distribution of the response.
    rewriting : Rewriting
        Of its inputs.
    scenarios : mapping of str to mapping
    by, equal_to, at_most : object
        As of `average_predictions`.
    """

    def __init__(self, view: Any, rewriting: Rewriting, scenarios: Any, by: Any, equal_to: Any, at_most: Any) -> None:
        response = view.row_split.response
        self.rewriting = rewriting
        self.name = str(response.name)
        if equal_to is not None and at_most is not None:
            raise InvalidArgument("Pass equal_to= or at_most=, not both.")
        quantity, self.in_words, value = _asked_of(self.name, equal_to, at_most)
        if quantity == "equal" and not response.discrete:
            raise InvalidArgument(f"{self.name!r} is not discrete: no value of it has a probability. Pass at_most=.")
        if quantity == "mean" and response.mean is None:
            raise InvalidArgument(f"PyMC knows no mean of {self.name!r}: pass equal_to= or at_most=.")
        if quantity == "mean" and (response.n_levels or 0) > 2:
            raise InvalidArgument(f"{self.name!r} is a category: pass equal_to=, whose probability is predicted then.")
        if not isinstance(scenarios, Mapping) or not scenarios:
            raise InvalidArgument('Scenarios are columns set to values, by name: {"treated": {"drug": 1}, ...}.')
        responses = [] if value is None else [rewriting.response_set_to(value)]
        self.scenarios = list(scenarios)
        made = tuple(rewriting.scenario(name, columns, responses) for name, columns in scenarios.items())
        self._predicted = Predicted(made, quantity)
        self._limits = (0.0, 1.0) if quantity != "mean" or response.n_levels == 2 else None
        place, self.groups = (NO_INPUT, ["all"]) if by is None else rewriting.group_of(by)
        self._dim = None if by is None else (by if isinstance(by, str) else next(iter(by)))
        self._by = Axis(place, 0, NO_INPUT, np.arange(0.5, len(self.groups) - 1))
        # Of predictions within the range no norm is larger than twice half the width for each draw and scenario.
        self._bins = math.ceil(2.0 * math.log2(2.0 * math.sqrt(_DRAWS * len(self.scenarios)) / _SMALLEST))
        self._own = own_units(rewriting.declared_response) if quantity == "mean" else (0.0, 1.0)

    @property
    def requests(self) -> tuple[ReleaseRequest, ...]:
        """What is released."""
        count, groups = len(self.scenarios), len(self.groups)
        of_range = _SHARE_OF_RANGE if self._limits is None else 0.0
        left = 1.0 - of_range - _SHARE_OF_SIZES
        found = [ReleaseRequest("prediction_counts", STEPS, of_range, FINEST, once=True)] if of_range else []
        return (
            *found,
            ReleaseRequest("prediction_sums", 1, left * _SHARE_OF_SUMS, groups * (1 + count), once=True),
            ReleaseRequest("spread_sizes", 1, _SHARE_OF_SIZES, groups * self._bins, once=True),
            ReleaseRequest("prediction_spreads", 1, left * (1.0 - _SHARE_OF_SUMS), groups * count * _DRAWS, once=True),
        )

    def answered(self, ask: Ask, draws: FloatArray, n: int | None) -> dict[str, xr.Dataset]:
        """Ask, and return the groups of a result."""
        theta = draws.mean(axis=0)
        some = draws[np.linspace(0, len(draws) - 1, _DRAWS).astype(int)].ravel()
        low, high = self._limits or found_range(lambda edges: ask(PredictionCounts(self._predicted, theta, edges)))
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        sums = ask(PredictionSums(self._predicted, theta, self._by, middle, half))
        smallest = half * _SMALLEST
        sizes = ask(SpreadSizes(self._predicted, theta, some, _DRAWS, self._by, smallest, self._bins))
        by_group = sizes.value.reshape(len(self.groups), self._bins)
        kept = [bins_that_most_keep(of_group, sizes.noise_std, _CLIPPED) for of_group in by_group]
        together = math.sqrt(len(self.groups)) * sizes.noise_std
        of_all = bins_that_most_keep(by_group.sum(axis=0), together, _CLIPPED)
        bounds = smallest * 2.0 ** (np.maximum(kept, of_all) / 2.0)
        spreads = ask(PredictionSpreads(self._predicted, theta, some, _DRAWS, self._by, bounds))
        least = max(_KNOWN * sums.noise_std, _SEEN * sizes.noise_std if len(self.groups) > 1 else 0.0)
        averages, of_noise, units = self._averages(sums, spreads, bounds, (middle, half), n, least)
        if self._limits is not None:
            averages = np.clip(averages, *self._limits)
        of_group = () if self._dim is None else (self._dim,)
        coords = {"scenario": self.scenarios, **({} if self._dim is None else {self._dim: self.groups})}
        if self._dim is None:
            averages, of_noise, units, bounds = averages[..., 0], of_noise[..., 0], units[0], bounds[0]
        shift, scale = self._own
        bounds = scale * bounds
        dims = ("scenario", *of_group)
        posterior = xr.Dataset({"average": (("chain", "draw", *dims), shift + scale * averages[None])}, coords=coords)
        noise = xr.Dataset(
            {
                "of_noise": (dims, scale * of_noise),
                "units": (of_group, units),
                "clip_bound": (of_group, bounds),
            },
            coords=coords,
            attrs={"low": shift + scale * low, "high": shift + scale * high},
        )
        return {"posterior": posterior, "noise": noise}

    def _averages(
        self,
        sums: Release,
        spreads: Release,
        bounds: FloatArray,
        scale: tuple[float, float],
        n: int | None,
        least: float,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return draws of averages, shape (draws, scenarios, groups), their noise, and how many units groups have.

        Noise as large as was added is drawn once more for each: given what was released, sums are so uncertain. Nothing
        is said of groups with fewer units than `least`.
        """
        middle, half = scale
        count, groups, error = len(self.scenarios), len(self.groups), sums.noise_std
        released = sums.value.reshape(groups, 1 + count).T
        noise = np.random.default_rng(0).normal(size=(_DRAWS, *released.shape))  # of public numbers
        noise = (noise - noise.mean(axis=0)) / noise.std(axis=0)  # the draws' mean is what was released
        units, totals = np.split(released + (error * noise if error else 0.0 * noise), [1], axis=1)
        known = released[:1] if n is None or groups > 1 else np.full((1, 1), float(n))
        if n is not None and groups == 1:
            units = np.full_like(units, float(n))
        said = np.where(known > max(least, 0.0), known, np.nan)
        units = np.where(np.isnan(said), np.nan, units)
        differences = bounds * spreads.value.reshape(groups, _DRAWS, count).transpose(1, 2, 0)
        averages = middle + (half * totals + differences) / units
        ratio = released[1:] / said if groups > 1 or n is None else np.zeros_like(released[1:])
        of_noise = np.hypot(half * error * np.sqrt(1.0 + ratio**2), bounds * spreads.noise_std) / said
        return averages, of_noise, known[0]


def _asked_of(name: str, equal_to: Any, at_most: Any) -> tuple[Quantity, str, Any]:
    """Return what is predicted, in words as well, and what the response is set to."""
    if equal_to is not None:
        return "equal", f"Probability that {name!r} is {equal_to!r}", equal_to
    if at_most is not None:
        return "at_most", f"Probability that {name!r} is at most {at_most!r}", at_most
    return "mean", f"Mean of {name!r}", None


def _summary(draws: xr.DataArray) -> pd.DataFrame:
    """Return means, standard deviations and intervals, one line for each that is no draw."""
    over = ("chain", "draw")
    ends = draws.quantile(_ENDS, over, skipna=False)
    return xr.Dataset(
        {
            "mean": draws.mean(over, skipna=False),
            "sd": draws.std(over, skipna=False),
            **{f"{end:.0%}": ends.sel(quantile=end, drop=True) for end in _ENDS},
        }
    ).to_dataframe()
