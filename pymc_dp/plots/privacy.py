"""`plot_privacy`: what an attacker can find out, and what the budget was spent on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.accounting import (
    GaussianReleases,
    Relation,
    Releases,
    all_add_in_rho,
    epsilon_of,
    total_rho,
    trade_off,
    trade_off_of_guarantee,
)
from pymc_dp.budget.plan import Plan
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.diagnostics import facts_of
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.plots.panels import LINE_WIDTH, LINESTYLES, MUTED, Panels, Visuals, xy
from pymc_dp.plots.results import releases_of, why_not_private

_VISUALS = ("power", "guess", "marked", "marked_rate", "bars", "title", "xlabel", "ylabel", "legend")
#: False-positive rates: close to each other where power rises steeply.
_RATES = np.concatenate([[0.0], np.geomspace(1e-4, 0.02, 60), np.linspace(0.025, 1.0, 118)])
#: In per cent of probabilities.
_PER_CENT = 100.0

Curve = NDArray[np.float64]
Shown = DataTree | Plan | PrivacyBudget


class _Seen(NamedTuple):
    """What is drawn of one result, plan or budget: power by name, bars of what was spent, why nothing is private."""

    power: dict[str, Curve]
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
    """Plot the power of the best attacker, and what the cost was spent on.

    The attacker knows all rows but one unit's, knows the two versions of this unit that are possible, sees everything
    that was released, and says which version is in the table. At each rate of false positives the curve is the largest
    rate of true positives that any such attacker has. A coin without knowledge is on the diagonal.

    Parameters
    ----------
    data : DataTree, Plan, PrivacyBudget, or mapping of str to these
        A result: its curve is that of its own releases. A plan: of what would be released. A budget: of all that may be
        spent, and of what has been. Several by name: their curves in one panel.
    false_positive_rate : float
        At which the legend says the power, in (0, 1).
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        Default: that of ArviZ's settings.
    visuals : mapping of str to mapping or bool, optional
        Arguments of what is drawn, or False to leave it out: ``power`` and ``guess`` (lines), ``marked`` (points) and
        ``marked_rate`` (a line), ``bars``, ``title``, ``xlabel``, ``ylabel``, ``legend``.
    **pc_kwargs
        Passed to ``arviz.PlotCollection.grid``, such as ``figure_kwargs``.

    Returns
    -------
    PlotCollection
        Its panels are ``power``, both rates in per cent, and ``spent``: shares of the cost in per cent where all
        releases are Gaussian and of all rows, so that costs add in rho; else the epsilon that each kind of release
        would have alone, at the same delta.

    Raises
    ------
    InvalidArgument
        If `data` is none of these, or another argument is out of range.
    MissingBackend
        If the backend is not installed.

    Notes
    -----
    Of Gaussian releases of all rows the curve is exact. Of others it is a bound by their privacy profile
    (`pymc_dp.accounting.trade_off`). Runs on samples of a budget reserve an epsilon and a delta of their own, which
    add: of such a budget the curve is that of its epsilon and delta alone, from the same safe side. Of a result that is
    not private nothing is promised: the power is 100 %.

    References
    ----------
    Dong, Roth and Su (2022), Gaussian differential privacy, Journal of the Royal Statistical Society B 84.
    """
    marked = _validate.open_unit_interval("false_positive_rate", false_positive_rate)
    rates = np.append(_RATES, marked)
    if isinstance(data, Mapping) and not isinstance(data, DataTree):  # a tree is a mapping, too
        each = {str(name): _seen(one, rates) for name, one in data.items()}
        if not each:
            raise InvalidArgument("There is nothing to compare: the mapping is empty.")
        found = _Seen(
            {name: next(iter(one.power.values())) for name, one in each.items()},
            {},
            not_private="; ".join(f"{name}: {one.not_private}" for name, one in each.items() if one.not_private),
        )
    else:
        found = _seen(data, rates)
    names, bars = list(found.power), found.spent
    heights = {"power": 3.4} | ({"spent": 0.9 + 0.26 * len(bars)} if bars else {})
    panels = Panels(
        heights,
        series=("curve", names),
        backend=backend,
        visuals=visuals,
        not_private=found.not_private,
        known=_VISUALS,
        pc_kwargs=pc_kwargs,
    )
    _draw_power(panels, found.power, rates)
    if bars:
        panels.bars("spent", list(bars), list(bars.values()))
        panels.limits("spent", x=(0.0, 1.08 * max(*bars.values(), 1e-12)))
        panels.labels("spent", x=found.label, title="What was spent on what")
    said = {name: f"{name}: {_PER_CENT * curve[-1]:.3g} %" for name, curve in found.power.items()}
    panels.legend("curve", said, title=f"Power at {_PER_CENT * marked:.3g} % false positives")
    return panels.collection


def _draw_power(panels: Panels, power: Mapping[str, Curve], rates: Curve) -> None:
    """Draw curves; the last rate is the one that is marked."""
    panels.line("power", [0.0, 100.0], [0.0, 100.0], "guess", color=MUTED, linestyle=LINESTYLES[3], width=1.0)
    x = _PER_CENT * rates[:-1]
    lines = xr.concat([xy(x, _PER_CENT * curve[:-1]) for curve in power.values()], dim="curve")
    marks = xr.concat([xy(_PER_CENT * rates[-1:], _PER_CENT * curve[-1:]) for curve in power.values()], dim="curve")
    lines, marks = (each.assign_coords(curve=list(power)) for each in (lines, marks))
    by_line, by_point = ("color", "linestyle"), ("color", "marker")
    panels.draw("power", az.visuals.line_xy, lines, panel="power", by_series=by_line, width=LINE_WIDTH)
    panels.draw("marked", az.visuals.scatter_xy, marks, panel="power", by_series=by_point, size=40)
    panels.vertical("power", _PER_CENT * rates[-1], "marked_rate", linestyle=LINESTYLES[3], width=1.0)
    panels.limits("power", x=(0.0, 100.0), y=(0.0, 101.0))
    panels.labels(
        "power", x="False positives of the attacker (%)", y="True positives (%)", title="Power of the best attacker"
    )


def _seen(data: Any, rates: Curve) -> _Seen:
    """Return what is drawn of one object."""
    if isinstance(data, PrivacyBudget):
        return _seen_of_budget(data, rates)
    if isinstance(data, Plan):
        named = [(step.published(each.kind), each) for step in data.steps for each in step.releases]
        why = "" if data.private else "seeded noise, exact counts, or an infinite epsilon"
        return _seen_of_releases("this plan", named, data.relation, data.delta, why, rates)
    facts = facts_of(data)
    named = [(each.kind, each) for each in releases_of(facts)]
    return _seen_of_releases("this run", named, facts["relation"], facts["delta"], why_not_private(facts), rates)


def _seen_of_releases(
    name: str, named: Sequence[tuple[str, Releases]], relation: Relation, delta: float, why: str, rates: Curve
) -> _Seen:
    """Return the power by releases, and their costs by kind."""
    by_kind: dict[str, list[Releases]] = {}
    for kind, each in named:
        by_kind.setdefault(kind, []).append(each)
    releases = [each for _, each in named]
    if why:
        return _certain(name, rates, why)
    if all_add_in_rho(releases):
        whole = total_rho(releases)
        lengths = {kind: _PER_CENT * total_rho(group) / whole for kind, group in by_kind.items()}
        label = "Share of the cost, rho (%)"
    else:
        lengths = {kind: epsilon_of(group, delta, relation) for kind, group in by_kind.items()}
        lengths = {kind: epsilon for kind, epsilon in lengths.items() if math.isfinite(epsilon)}
        label = f"Epsilon of each alone, at delta {delta:.3g}"
    return _Seen({name: 1.0 - trade_off(releases, rates, relation)}, lengths, label)


def _seen_of_budget(budget: PrivacyBudget, rates: Curve) -> _Seen:
    """Return the power by all that may be spent and by what has been, and the cost of each run."""
    history = budget.history
    whole, spent = f"whole budget, epsilon {budget.epsilon:.3g}", "spent so far"
    if not (budget.private and all(plan.private for plan in history)):
        return _certain(whole, rates, "an infinite epsilon, seeded noise or exact counts")
    runs = {f"run {number}, {plan.sampler}": plan for number, plan in enumerate(history, 1)}
    # Undecided budgets have the whole of their rho for the first run.
    gaussian = math.isclose(budget.rho, PrivacyBudget(budget.epsilon, budget.delta).rho, rel_tol=1e-9)
    if gaussian and all(plan.account == "rho" for plan in history):
        power = {whole: 1.0 - _of_rho(budget.rho, rates), spent: 1.0 - _of_rho(budget.rho_spent, rates)}
        costs = {name: _PER_CENT * plan.rho / budget.rho for name, plan in runs.items()}
        costs["not spent"] = max(0.0, _PER_CENT - math.fsum(costs.values()))
        label = "Share of the budget, rho (%)"
    else:
        power = {whole: 1.0 - trade_off_of_guarantee(budget.epsilon, budget.delta, rates)}
        if history:
            power[spent] = 1.0 - trade_off_of_guarantee(budget.epsilon_spent, budget.delta, rates)
        costs = {name: plan.epsilon for name, plan in runs.items()}
        label = "Epsilon of each run alone"
    return _Seen(power, costs, label)


def _of_rho(rho: float, rates: Curve) -> Curve:
    """Return the trade-off of Gaussian releases of a total cost."""
    return (
        trade_off([GaussianReleases("all", 1, math.sqrt(0.5 / rho))], rates, "substitute") if rho > 0.0 else 1.0 - rates
    )


def _certain(name: str, rates: Curve, why: str) -> _Seen:
    """Return the power of an attacker who sees the table as it is."""
    return _Seen({name: np.ones_like(rates)}, {}, not_private=why)
