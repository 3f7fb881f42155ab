"""`plot_check`: residuals by bin, and how responses lie in what the model predicts."""

from typing import Any

import numpy as np
import xarray as xr
from xarray import DataTree

from pymc_dp.diagnostics import facts_of
from pymc_dp.plots.panels import COLORS, LINESTYLES, Panels, Visuals
from pymc_dp.plots.results import group_of, why_not_private

_VISUALS = ("residuals", "noise", "nothing", "title", "xlabel", "ylabel")
#: Bars hold nine in ten of what noise and chance do where the model holds.
_REACH = 1.645
_SHAPES = "all_rows"


def plot_check(
    check: Any,
    *,
    backend: str | None = None,
    visuals: Visuals = None,
    **pc_kwargs: Any,
) -> Any:
    """Plot what a table says against a model.

    Parameters
    ----------
    check : Check or DataTree
        What `pymc_dp.check` returned.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        Default: that of ArviZ's settings.
    visuals : mapping of str to mapping or bool, optional
        Arguments of what is drawn, or False to leave it out: ``residuals`` (points), ``noise`` (bars), ``nothing`` (the
        line at zero), ``title``, ``xlabel``, ``ylabel``.
    **pc_kwargs
        Passed to ``arviz.PlotCollection.grid``, such as ``figure_kwargs``.

    Returns
    -------
    PlotCollection
        A panel for each axis, by its name: how many standard deviations responses lie above what is predicted, by bin.
        Below, a panel ``all_rows``: location, spread, skewness and tails of all responses together.

    Raises
    ------
    InvalidArgument
        If it is no check.
    MissingBackend
        If the backend is not installed.

    Notes
    -----
    Bars are 90 % intervals where the model holds, of noise and chance together: one in ten misses zero then.
    """
    tree: DataTree = getattr(check, "tree", check)
    whole = group_of(tree, _SHAPES, "it is no check: pass what dp.check returned.")
    axes = {name: tree[name].to_dataset() for name in map(str, tree.children) if name.startswith("along_")}
    panels = Panels(
        dict.fromkeys([*axes, _SHAPES], 1.9),
        backend=backend,
        visuals=visuals,
        not_private=why_not_private(facts_of(tree)),
        known=_VISUALS,
        pc_kwargs=pc_kwargs,
    )
    for name, along in axes.items():
        _draw(panels, name, along["mean"].isel(shape=0), along["error"].isel(shape=0))
        labels, edges = [str(label) for label in along["bin"].values], along["edge"].values
        if labels[0].startswith("below "):
            panels.x_names(name, np.arange(len(edges)) + 0.5, [f"{edge:.3g}" for edge in edges])
        else:
            panels.x_names(name, np.arange(len(labels)), labels)
        axis = name.removeprefix("along_")
        p_value = f"p = {along.attrs['p_value']:.2g}"
        panels.labels(
            name, x="Mean that is predicted" if axis == "predicted" else axis, y="Residual (sd)", title=p_value
        )
    _draw(panels, _SHAPES, whole["mean"], whole["error"])
    panels.x_names(_SHAPES, np.arange(whole.sizes["shape"]), [str(each) for each in whole["shape"].values])
    panels.labels(_SHAPES, x="All rows", y="Contrast")
    return panels.collection


def _draw(panels: Panels, name: str, means: xr.DataArray, errors: xr.DataArray) -> None:
    """Draw points with bars around zero."""
    places, reach = np.arange(means.size), _REACH * errors.values
    panels.horizontal(name, 0.0, "nothing", linestyle=LINESTYLES[0], width=0.8)
    panels.error_bars(name, places, means.values - reach, means.values + reach, color=COLORS[0])
    panels.points(name, places, means.values, "residuals", color=COLORS[0])
    panels.limits(name, x=(-0.6, means.size - 0.4))
