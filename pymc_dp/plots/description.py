"""`plot_description`: what the columns of a table hold, as it was released."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray import DataTree

from pymc_dp.diagnostics import facts_of
from pymc_dp.plots.panels import COLORS, Panels, Visuals
from pymc_dp.plots.results import chosen_names, group_of, why_not_private

_VISUALS = ("shares", "quantiles", "title", "xlabel", "ylabel")
_PER_CENT = 100.0
_HEIGHT, _OF_A_LEVEL = 1.7, 0.22


def plot_description(
    description: Any,
    *,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    backend: str | None = None,
    visuals: Visuals = None,
    **pc_kwargs: Any,
) -> Any:
    """Plot what the columns of a table hold.

    Parameters
    ----------
    description : Description or DataTree
        What `pymc_dp.describe` returned.
    var_names : str or sequence of str, optional
        Columns that are drawn. Default: all.
    filter_vars : {None, "like", "regex"}, optional
        How `var_names` are read, as in ArviZ.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        Default: that of ArviZ's settings.
    visuals : mapping of str to mapping or bool, optional
        Arguments of what is drawn, or False to leave it out: ``shares`` (lines and bars), ``quantiles`` (points),
        ``title``, ``xlabel``, ``ylabel``.
    **pc_kwargs
        Passed to ``arviz.PlotCollection.grid``, such as ``figure_kwargs``.

    Returns
    -------
    PlotCollection
        A panel for each column, by its name: shares of bins, with the quantiles as points below, or shares of levels.

    Raises
    ------
    InvalidArgument
        If it is no description, or has no such column.
    MissingBackend
        If the backend is not installed.

    Notes
    -----
    Shares have noise, and may be below zero: they are drawn as they were released.
    """
    tree: DataTree = getattr(description, "tree", description)
    counts = group_of(tree, "counts", "it is no description: pass what dp.describe returned.")
    columns = group_of(tree, "columns", "it is no description: pass what dp.describe returned.")
    names = chosen_names([str(name) for name in counts.data_vars], var_names, filter_vars)
    levels = {name: counts[f"{name}_low"].values for name in names}
    of_words = {name: values.dtype.kind not in "fiu" for name, values in levels.items()}
    heights = {name: _HEIGHT if not of_words[name] else 0.6 + _OF_A_LEVEL * len(levels[name]) for name in names}
    panels = Panels(
        heights,
        backend=backend,
        visuals=visuals,
        not_private=why_not_private(facts_of(tree)),
        known=_VISUALS,
        pc_kwargs=pc_kwargs,
    )
    for name in names:
        shares = _PER_CENT * counts[name].values / max(float(counts[name].sum()), 1.0)
        if of_words[name]:
            panels.bars(name, [str(level) for level in levels[name]], list(shares), "shares")
            panels.labels(name, x="Share (%)", title=name)
            continue
        edges = np.append(levels[name], counts[name].attrs["end"])
        steps = np.repeat(edges, 2)[1:-1], np.repeat(shares, 2)
        panels.line(name, *steps, "shares", color=COLORS[1])
        quantiles = columns["quantile"].sel(column=name).values
        panels.points(name, quantiles, np.zeros(len(quantiles)), "quantiles", color=COLORS[2])
        panels.labels(name, x=name, y="Share (%)")
    return panels.collection
