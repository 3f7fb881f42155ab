"""`plot_rehearsal`: what a dry run expects."""

import math
from typing import Any

import numpy as np

from pymc_dp.budget.worth import GOOD_ERROR, Worth
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.plots.panels import COLORS, LINE_WIDTH, Panels, Visuals
from pymc_dp.reports.forecast import Forecast

_VISUALS = ("bars", "curve", "this_run", "harmless", "expected", "title", "xlabel", "ylabel")
#: How far beyond this run's error, and the one that is good enough, the curve runs.
_FARTHER, _POINTS = 2.0, 60
_PER_CENT, _EXPECTED_COVERAGE = 100.0, 90.0


def plot_rehearsal(forecast: Forecast, *, backend: str | None = None, visuals: Visuals = None, **pc_kwargs: Any) -> Any:
    """Plot what a dry run expects of a run, before anything is spent.

    Parameters
    ----------
    forecast : Forecast
        What `pymc_dp.dry_run` returned.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        Default: that of ArviZ's settings.
    visuals : mapping of str to mapping or bool, optional
        Arguments of what is drawn, or False to leave it out: ``bars``, ``curve`` (a line), ``this_run`` (a point),
        ``harmless`` and ``expected`` (lines of reference), ``title``, ``xlabel``, ``ylabel``.
    **pc_kwargs
        Passed to ``arviz.PlotCollection.grid``, such as ``figure_kwargs``.

    Returns
    -------
    PlotCollection
        Panels: ``error``, how far means are off, in standard deviations of the posterior without privacy: what noise is
        known to add, what was found, root mean square over parameters, and the worst parameter. ``coverage``: the
        probability without privacy of 90 % intervals, in per cent. ``epsilon``, where the error by noise is known: that
        error at other values of epsilon, on as many units.

    Raises
    ------
    InvalidArgument
        If `forecast` is none.
    MissingBackend
        If the backend is not installed.
    """
    if not isinstance(forecast, Forecast):
        raise InvalidArgument(f"Pass what dp.dry_run returned, not a {type(forecast).__name__}.")
    known = math.isfinite(forecast.forced_error) and forecast.forced_error > 0.0
    errors = {"noise alone": forecast.forced_error} if known else {}
    errors |= {"all means": forecast.error, "worst mean": forecast.worst}
    heights = {"error": 0.9 + 0.3 * len(errors), "coverage": 1.2}
    worth = forecast.worth
    with_curve = known and math.isfinite(worth.epsilon_for(worth.error))
    if with_curve:
        heights["epsilon"] = 2.8
    panels = Panels(heights, backend=backend, visuals=visuals, known=_VISUALS, pc_kwargs=pc_kwargs)
    panels.bars("error", list(errors), list(errors.values()))
    panels.vertical("error", GOOD_ERROR, "harmless")
    panels.limits("error", x=(0.0, 1.1 * max(*errors.values(), GOOD_ERROR)))
    draws = f"{forecast.quality.effective_draws:.0f} effective draws"
    panels.labels("error", x="Error of means (posterior sd; dashed: limit)", title=f"Expected errors, {draws}")
    panels.bars("coverage", ["90 % intervals"], [_PER_CENT * forecast.coverage])
    panels.vertical("coverage", _EXPECTED_COVERAGE, "expected")
    panels.limits("coverage", x=(0.0, _PER_CENT))
    panels.labels("coverage", x="Posterior probability (%)", title="Coverage (dashed: aim)")
    if with_curve:
        _draw_curve(panels, worth)
    return panels.collection


def _draw_curve(panels: Panels, worth: Worth) -> None:
    """Draw the error by noise against epsilon."""
    around = sorted((worth.error, GOOD_ERROR))
    errors = np.geomspace(around[0] / _FARTHER, around[1] * _FARTHER, _POINTS)
    epsilons = np.array([worth.epsilon_for(float(error)) for error in errors])
    panels.line("epsilon", epsilons, errors, "curve", color=COLORS[1], width=LINE_WIDTH)
    panels.points("epsilon", [worth.epsilon_for(worth.error)], [worth.error], "this_run", size=50)
    panels.horizontal("epsilon", GOOD_ERROR, "harmless")
    panels.logarithmic("epsilon", x=(epsilons.min(), epsilons.max()), y=(errors.min(), errors.max()))
    panels.labels(
        "epsilon",
        x=f"Epsilon at delta {worth.delta:.3g}",
        y="Error by noise (posterior sd)",
        title=f"With {worth.n_units:,} units (dashed: limit)",
    )
