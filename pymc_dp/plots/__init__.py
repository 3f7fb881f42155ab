"""Plots of a run's guarantee, releases and results, in the conventions of ArviZ 1.

Every plot is drawn from released values alone, so it costs no privacy. Each function returns an ArviZ
``PlotCollection``; figures are as wide as a column, and their lines differ in lightness and pattern. All accept

- `var_names` (str or sequence of str) and `filter_vars` (None, ``"like"`` or ``"regex"``), as in ArviZ, where a plot
  has several names;
- `backend`: ``"matplotlib"``, ``"bokeh"``, ``"plotly"`` or ``"none"``, by default that of ArviZ's settings. A backend
  that is not installed raises `pymc_dp.exceptions.MissingBackend`;
- `visuals`: a mapping from the names of visual elements to arguments of their drawing, or to False, which omits one;
- ``**pc_kwargs``: passed to ``arviz.PlotCollection.grid``, such as ``figure_kwargs``.
"""

from pymc_dp.plots.clipping import plot_clipping
from pymc_dp.plots.posterior import plot_private
from pymc_dp.plots.privacy import plot_privacy
from pymc_dp.plots.rehearsal import plot_rehearsal
from pymc_dp.plots.search import plot_releases
from pymc_dp.plots.surveys import plot_check, plot_description

__all__ = [
    "plot_check",
    "plot_clipping",
    "plot_description",
    "plot_privacy",
    "plot_private",
    "plot_rehearsal",
    "plot_releases",
]
