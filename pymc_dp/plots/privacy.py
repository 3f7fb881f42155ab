"""`plot_privacy`: the power of an attacker, and the parts of the cost."""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import xarray as xr
from xarray import DataTree

from pymc_dp import _validate, accounting
from pymc_dp.budget.plan import Plan, releases_of_record
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.plots.panels import LINE_WIDTH, LINESTYLES, MUTED, PER_CENT, Panels, Visuals, why_not_private, xy
from pymc_dp.release.interface import FloatArray
from pymc_dp.reports.published import facts_of

_VISUALS = ("power", "guess", "marked", "marked_rate", "bars", "title", "xlabel", "ylabel", "legend")
#: False-positive rates, with a finer grid where power rises steeply.
_RATES = np.concatenate([[0.0], np.geomspace(1e-4, 0.02, 60), np.linspace(0.025, 1.0, 118)])
#: Fields of published releases that are not fields of events.
_ADDED = ("rho", "share")

Shown = DataTree | Plan | PrivacyBudget


class _Figure(NamedTuple):
    """The content of a figure of a result, plan or budget: power by name, costs by name, and why it is not private."""

    power: dict[str, FloatArray]
    spent: dict[str, float]
    label: str = ""
    not_private: str = ""


def plot_privacy(
    data: Shown | Mapping[str, Shown],
    *,
    false_positive_rate: float = 0.05,
    backend: str | None = None,
    visuals: Visuals = None,
    **pc_kwargs: Any,
) -> Any:
    """Plot the power of the best attacker, and the parts of the cost.

    The attacker knows the rows of all units but one and the two possible versions of that unit, sees all
    releases, and decides which version is in the table. At each rate of false positives the curve is the largest
    rate of true positives of any such attacker. Guessing without knowledge is on the diagonal.

    Parameters
    ----------
    data : DataTree, Plan, PrivacyBudget, or mapping of str to these
        A result: the curve of its own releases. A plan: the curve of its planned releases. A budget: the curves of the
        whole budget and of the spent part. Several by name: their curves in one panel.
    false_positive_rate : float
        The rate at which the legend states the power, in (0, 1).
    visuals : mapping, optional
        Elements: ``power`` and ``guess`` (lines), ``marked`` (points) and ``marked_rate`` (a line), ``bars``,
        ``title``, ``xlabel``, ``ylabel``, ``legend``.
    backend, **pc_kwargs
        See `pymc_dp.plots`.

    Returns
    -------
    PlotCollection
        Its panels are ``power``, both rates in per cent, and ``spent``: shares of the cost in per cent where all
        releases are Gaussian and of all rows, so that costs add in rho; else the epsilon that each kind of release
        would have alone, at the same delta.

    Raises
    ------
    InvalidArgument
        If `data` is of another type, or another argument is out of range.

    Notes
    -----
    For Gaussian releases of all rows the curve is exact. For others it is an upper bound by their privacy profile
    (`pymc_dp.accounting.trade_off`). Runs on samples of a budget reserve an epsilon and a delta of their own, which
    add: the curve of such a budget is that of its epsilon and delta alone, also an upper bound. For a result that is
    not private the power is 100 %.

    References
    ----------
    Dong, Roth and Su (2022), Gaussian differential privacy, Journal of the Royal Statistical Society B 84.
    """
    marked = _validate.open_unit_interval("false_positive_rate", false_positive_rate)
    rates = np.append(_RATES, marked)
    if isinstance(data, Mapping) and not isinstance(data, DataTree):  # a tree is a mapping, too
        each = {str(name): _figure_of(one, rates) for name, one in data.items()}
        if not each:
            raise InvalidArgument("The mapping is empty: pass results, plans or budgets by name.")
        found = _Figure(
            {name: next(iter(one.power.values())) for name, one in each.items()},
            {},
            not_private="; ".join(f"{name}: {one.not_private}" for name, one in each.items() if one.not_private),
        )
    else:
        found = _figure_of(data, rates)
    power, bars = found.power, found.spent
    panels = Panels(
        {"power": 3.4} | ({"spent": 0.9 + 0.26 * len(bars)} if bars else {}),
        backend,
        visuals,
        pc_kwargs,
        known=_VISUALS,
        series=("curve", list(power)),
        not_private=found.not_private,
    )
    panels.line("power", [0.0, 100.0], [0.0, 100.0], "guess", color=MUTED, linestyle=LINESTYLES[3], width=1.0)
    points = [xy(PER_CENT * rates, PER_CENT * curve) for curve in power.values()]
    curves = xr.concat(points, dim="curve").assign_coords(curve=list(power))
    lines, marks = curves.isel(point=slice(-1)), curves.isel(point=slice(-1, None))  # the last rate is marked
    by_line, by_point = ("color", "linestyle"), ("color", "marker")
    panels.draw("power", az.visuals.line_xy, lines, panel="power", by_series=by_line, width=LINE_WIDTH)
    panels.draw("marked", az.visuals.scatter_xy, marks, panel="power", by_series=by_point, size=40)
    panels.vertical("power", PER_CENT * rates[-1], "marked_rate", linestyle=LINESTYLES[3], width=1.0)
    written = "False positives of the attacker (%)", "True positives (%)", "Power of the best attacker"
    panels.axes("power", *written, limits={"x": (0.0, 100.0), "y": (0.0, 101.0)})
    if bars:
        panels.bars("spent", bars)
        limits = {"x": (0.0, 1.08 * max(*bars.values(), 1e-12))}
        panels.axes("spent", found.label, title="Parts of the cost", limits=limits)
    names = {name: f"{name}: {PER_CENT * curve[-1]:.3g} %" for name, curve in power.items()}
    panels.legend("curve", names, title=f"Power at {PER_CENT * marked:.3g} % false positives")
    return panels.collection


def _figure_of(data: Any, rates: FloatArray) -> _Figure:
    """Return the content of the figure of an object: for a plan or a result, power and costs from its releases."""
    if isinstance(data, PrivacyBudget):
        return _figure_of_budget(data, rates)
    if isinstance(data, Plan):
        name, relation, delta = "this plan", data.relation, data.delta
        named = [(step.published(each.kind), each) for step in data.steps for each in step.releases]
        why = "" if data.private else "seeded noise, exact counts, or an infinite epsilon"
    else:
        facts = facts_of(data)
        try:
            made = [
                releases_of_record({name: value for name, value in record.items() if name not in _ADDED})
                for record in json.loads(facts["releases"])
            ]
        except (ArithmeticError, AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise InvalidArgument(f"The releases of this result cannot be read: {type(error).__name__}.") from None
        named = [(each.kind, each) for each in made]  # of published kinds
        name, relation, delta, why = "this run", facts["relation"], facts["delta"], why_not_private(facts)
    if why:  # the attacker may see the table itself
        return _Figure({name: np.ones_like(rates)}, {}, not_private=why)
    releases = [each for _, each in named]
    by_kind: dict[str, list[accounting.Releases]] = {}
    for kind, each in named:
        by_kind.setdefault(kind, []).append(each)
    if accounting.all_add_in_rho(releases):
        whole = accounting.total_rho(releases)
        lengths = {kind: PER_CENT * accounting.total_rho(group) / whole for kind, group in by_kind.items()}
        label = "Share of the cost, rho (%)"
    else:
        lengths = {kind: accounting.epsilon_of(group, delta, relation) for kind, group in by_kind.items()}
        lengths = {kind: epsilon for kind, epsilon in lengths.items() if math.isfinite(epsilon)}
        label = f"Epsilon of each alone, at delta {delta:.3g}"
    return _Figure({name: 1.0 - accounting.trade_off(releases, rates, relation)}, lengths, label)


def _figure_of_budget(budget: PrivacyBudget, rates: FloatArray) -> _Figure:
    """Return the power for the whole budget and for the spent part, and the cost of each run."""
    history = budget.history
    whole, spent = f"whole budget, epsilon {budget.epsilon:.3g}", "spent so far"
    if not (budget.private and all(plan.private for plan in history)):
        why = "an infinite epsilon, seeded noise or exact counts"
        return _Figure({whole: np.ones_like(rates)}, {}, not_private=why)
    runs = {f"run {number}, {plan.sampler}": plan for number, plan in enumerate(history, 1)}
    # A budget without a decided split has the whole of its rho for the first run.
    gaussian = math.isclose(budget.rho, PrivacyBudget(budget.epsilon, budget.delta).rho, rel_tol=1e-9)
    if gaussian and all(plan.account == "rho" for plan in history):
        power = {whole: 1.0 - _of_rho(budget.rho, rates), spent: 1.0 - _of_rho(budget.rho_spent, rates)}
        costs = {name: PER_CENT * plan.rho / budget.rho for name, plan in runs.items()}
        costs["not spent"] = max(0.0, PER_CENT - math.fsum(costs.values()))
        return _Figure(power, costs, "Share of the budget, rho (%)")
    power = {whole: 1.0 - accounting.trade_off_of_guarantee(budget.epsilon, budget.delta, rates)}
    if history:
        power[spent] = 1.0 - accounting.trade_off_of_guarantee(budget.epsilon_spent, budget.delta, rates)
    return _Figure(power, {name: plan.epsilon for name, plan in runs.items()}, "Epsilon of each run alone")


def _of_rho(rho: float, rates: FloatArray) -> FloatArray:
    """Return the trade-off of Gaussian releases of a total cost."""
    if rho <= 0.0:
        return 1.0 - rates
    return accounting.trade_off([accounting.GaussianReleases("all", 1, math.sqrt(0.5 / rho))], rates, "substitute")
