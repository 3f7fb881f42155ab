"""Plots of what a run guarantees, released and found, in the conventions of ArviZ 1.

Every plot is drawn from released values alone, so it costs no privacy. Each function returns an ArviZ
``PlotCollection``; figures are as wide as a column, and their lines differ in lightness and pattern.
"""

from pymc_dp.plots.check import plot_check
from pymc_dp.plots.clipping import plot_clipping
from pymc_dp.plots.description import plot_description
from pymc_dp.plots.posterior import plot_private
from pymc_dp.plots.privacy import plot_privacy
from pymc_dp.plots.rehearsal import plot_rehearsal
from pymc_dp.plots.search import plot_releases

__all__ = [
    "plot_check",
    "plot_clipping",
    "plot_description",
    "plot_privacy",
    "plot_private",
    "plot_rehearsal",
    "plot_releases",
]
