"""`plot_rehearsal`: the errors that a dry run predicts."""

import math
from typing import Any

import numpy as np

from pymc_dp.budget.worth import GOOD_ERROR
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.plots.panels import COLORS, PER_CENT, Panels, Visuals
from pymc_dp.reports.forecast import Forecast

_VISUALS = ("bars", "curve", "this_run", "harmless", "expected", "title", "xlabel", "ylabel")
#: The factor by which the curve extends beyond this run's error and the acceptable error; its number of points.
_FARTHER, _POINTS = 2.0, 60
_EXPECTED_COVERAGE = 90.0


def plot_rehearsal(forecast: Forecast, *, backend: str | None = None, visuals: Visuals = None, **pc_kwargs: Any) -> Any:
    """Plot the predicted errors of a run, before anything is spent.

    Parameters
    ----------
    forecast : Forecast
        The result of `pymc_dp.dry_run`.
    visuals : mapping, optional
        Elements: ``bars``, ``curve`` (a line), ``this_run`` (a point), ``harmless`` (the limit) and ``expected``, lines
        of reference, ``title``, ``xlabel``, ``ylabel``.
    backend, **pc_kwargs
        See `pymc_dp.plots`.

    Returns
    -------
    PlotCollection
        Panels: ``error``, errors of means, in standard deviations of the posterior without privacy: the average from
        noise, the root mean square over parameters in this dry run, and the worst parameter. ``coverage``: the
        probability without privacy of 90 % intervals, in per cent. ``epsilon``, where the error from noise is known:
        that error at other values of epsilon, for the same number of units.

    Raises
    ------
    InvalidArgument
        If `forecast` is not a `Forecast`.
    """
    if not isinstance(forecast, Forecast):
        raise InvalidArgument(f"Pass the result of dp.dry_run, not a {type(forecast).__name__}.")
    known = math.isfinite(forecast.forced_error) and forecast.forced_error > 0.0
    errors = {"noise alone": forecast.forced_error} if known else {}
    errors |= {"all means": forecast.error, "worst mean": forecast.worst}
    heights = {"error": 0.9 + 0.3 * len(errors), "coverage": 1.2}
    worth = forecast.worth
    epsilon = worth.epsilon_for(worth.error) if known else math.inf
    with_curve = math.isfinite(epsilon)
    panels = Panels(heights | ({"epsilon": 2.8} if with_curve else {}), backend, visuals, pc_kwargs, known=_VISUALS)
    panels.bars("error", errors)
    panels.vertical("error", GOOD_ERROR, "harmless")
    panels.axes(
        "error",
        "Error of means (posterior sd; dashed: limit)",
        title=f"Expected errors, {forecast.quality.effective_draws:.0f} effective draws",
        limits={"x": (0.0, 1.1 * max(*errors.values(), GOOD_ERROR))},
    )
    panels.bars("coverage", {"90 % intervals": PER_CENT * forecast.coverage})
    panels.vertical("coverage", _EXPECTED_COVERAGE, "expected")
    limits = {"x": (0.0, PER_CENT)}
    panels.axes("coverage", "Posterior probability (%)", title="Coverage (dashed: aim)", limits=limits)
    if with_curve:
        smaller, larger = sorted((worth.error, GOOD_ERROR))
        curve = np.geomspace(smaller / _FARTHER, larger * _FARTHER, _POINTS)
        epsilons = np.array([worth.epsilon_for(float(error)) for error in curve])
        panels.line("epsilon", epsilons, curve, "curve", color=COLORS[1])
        panels.points("epsilon", [epsilon], [worth.error], "this_run", size=50)
        panels.horizontal("epsilon", GOOD_ERROR, "harmless")
        panels.axes(
            "epsilon",
            f"Epsilon at delta {worth.delta:.3g}",
            "Error by noise (posterior sd)",
            f"With {worth.n_units:,} units (dashed: limit)",
            limits={"x": (epsilons.min(), epsilons.max()), "y": (curve.min(), curve.max())},
            logarithmic="xy",
        )
    return panels.collection
