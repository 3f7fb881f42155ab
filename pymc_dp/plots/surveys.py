"""`plot_description` and `plot_check`: released distributions of a table's columns, and residuals from a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray import DataTree

from pymc_dp.plots.panels import COLORS, LINESTYLES, PER_CENT, Panels, Visuals, chosen_names, group_of, why_not_private
from pymc_dp.reports.published import facts_of

#: Half the length of bars in standard errors: bars are 90 % intervals of noise and chance if the model holds.
_REACH = 1.645
#: The panel of the contrasts of all responses together.
_SHAPES = "all_rows"


def plot_description(
    description: Any,
    *,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    backend: str | None = None,
    visuals: Visuals = None,
    **pc_kwargs: Any,
) -> Any:
    """Plot the released distributions of a table's columns.

    Parameters
    ----------
    description : Description or DataTree
        The result of `pymc_dp.describe`.
    var_names, filter_vars : optional
        Names of columns. Default: all.
    visuals : mapping, optional
        Elements: ``shares`` (lines and bars), ``quantiles`` (points), ``title``, ``xlabel``, ``ylabel``.
    backend, **pc_kwargs
        See `pymc_dp.plots`.

    Returns
    -------
    PlotCollection
        A panel for each column, by its name: shares of bins, with the quantiles as points below, or shares of levels.

    Raises
    ------
    InvalidArgument
        If `description` is of another type, or lacks a column.

    Notes
    -----
    Released shares are noisy, and may be below zero.
    """
    tree: DataTree = getattr(description, "tree", description)
    counts = group_of(tree, "counts", "it is not a description: pass the result of dp.describe.")
    columns = group_of(tree, "columns", "it is not a description: pass the result of dp.describe.")
    names = chosen_names([str(name) for name in counts.data_vars], var_names, filter_vars)
    levels = {name: counts[f"{name}_low"].values for name in names}
    of_words = {name: values.dtype.kind not in "fiu" for name, values in levels.items()}
    heights = {name: 0.6 + 0.22 * len(levels[name]) if of_words[name] else 1.7 for name in names}
    known = ("shares", "quantiles", "title", "xlabel", "ylabel")
    panels = Panels(heights, backend, visuals, pc_kwargs, known=known, not_private=why_not_private(facts_of(tree)))
    for name in names:
        shares = PER_CENT * counts[name].values / max(float(counts[name].sum()), 1.0)
        if of_words[name]:
            panels.bars(name, dict(zip(map(str, levels[name]), shares, strict=True)), "shares")
            panels.axes(name, "Share (%)", title=name)
            continue
        edges = np.append(levels[name], counts[name].attrs["end"])
        panels.line(name, np.repeat(edges, 2)[1:-1], np.repeat(shares, 2), "shares", color=COLORS[1])
        quantiles = columns["quantile"].sel(column=name).values
        panels.points(name, quantiles, np.zeros(len(quantiles)), "quantiles", color=COLORS[2])
        panels.axes(name, name, "Share (%)")
    return panels.collection


def plot_check(check: Any, *, backend: str | None = None, visuals: Visuals = None, **pc_kwargs: Any) -> Any:
    """Plot the residuals of a table from a model.

    Parameters
    ----------
    check : Check or DataTree
        The result of `pymc_dp.check`.
    visuals : mapping, optional
        Elements: ``residuals`` (points), ``noise`` (bars), ``nothing`` (the line at zero), ``title``, ``xlabel``,
        ``ylabel``.
    backend, **pc_kwargs
        See `pymc_dp.plots`.

    Returns
    -------
    PlotCollection
        A panel for each axis, by its name: location of responses above the prediction in standard deviations, by bin.
        Below, a panel ``all_rows``: location, spread, skewness and tails of all responses together.

    Raises
    ------
    InvalidArgument
        If `check` is of another type.

    Notes
    -----
    If the model holds, bars are 90 % intervals of noise and chance together: one in ten misses zero.
    """
    tree: DataTree = getattr(check, "tree", check)
    whole = group_of(tree, _SHAPES, "it is not a check: pass the result of dp.check.")
    found = {name: tree[name].to_dataset() for name in map(str, tree.children) if name.startswith("along_")}
    known = ("residuals", "noise", "nothing", "title", "xlabel", "ylabel")
    heights = dict.fromkeys([*found, _SHAPES], 1.9)
    panels = Panels(heights, backend, visuals, pc_kwargs, known=known, not_private=why_not_private(facts_of(tree)))
    for name, along in {**{name: along.isel(shape=0) for name, along in found.items()}, _SHAPES: whole}.items():
        means, reach = along["mean"].values, _REACH * along["error"].values
        places = np.arange(means.size)
        panels.horizontal(name, 0.0, "nothing", linestyle=LINESTYLES[0], width=0.8)
        panels.error_bars(name, places, means - reach, means + reach, color=COLORS[0])
        panels.points(name, places, means, "residuals")
        x, y, title = "All rows", "Contrast", ""
        ticks: tuple[Any, list[str]] = places, [str(each) for each in along["bin" if name in found else "shape"].values]
        if name in found:
            axis, y, title = name.removeprefix("along_"), "Residual (sd)", f"p = {along.attrs['p_value']:.2g}"
            x = "Mean that is predicted" if axis == "predicted" else axis
            if ticks[1][0].startswith("below "):
                edges = along["edge"].values
                ticks = np.arange(len(edges)) + 0.5, [f"{edge:.3g}" for edge in edges]
        panels.axes(name, x, y, title, limits={"x": (-0.6, means.size - 0.4)}, ticks={"x": ticks})
    return panels.collection
