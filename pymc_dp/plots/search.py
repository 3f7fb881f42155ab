"""`plot_releases`: the path of a search from the prior to the centre, by its noisy releases."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import scipy.stats
import xarray as xr
from xarray import DataTree

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import noise_std_of
from pymc_dp.plots.panels import COLORS, MARKERS, Panels, Visuals, chosen_names, group_of, why_not_private, xy
from pymc_dp.release.interface import FloatArray
from pymc_dp.reports.published import facts_of
from pymc_dp.run.private_likelihood import PrivateLikelihood

_VISUALS = ("way", "points", "noise", "posterior", "noise_alone", "title", "xlabel", "ylabel", "legend")
#: Kinds of releases that lead from one point to the next, and their names in the figure.
_STAGES = {"bounded_score": "vote", "approach": "step", "centre": "step", "score": "centre"}
#: The first panel; the others have the names of parameters.
_LENGTH = "length of the score"
#: Colour and marker of each stage.
_LOOKS = {"step": (COLORS[0], MARKERS[0]), "vote": (COLORS[3], MARKERS[1]), "centre": (COLORS[2], MARKERS[2])}
_BEFORE_THE_CHAINS = -1
#: Half the length of bars of noise, in standard deviations; the probability of the band.
_REACH, _BAND = 2.0, 0.9
_NOTHING_TO_SHOW = (
    "Only runs that learn their settings search for a centre (leave out clip bounds and step sizes), and only "
    "keep_releases=True keeps what was released."
)


class _Stop(NamedTuple):
    """A release before the chains, at a point on the unconstrained scale; `order` is its index among all releases."""

    order: int
    stage: str
    theta: FloatArray
    value: FloatArray
    noise_std: float


def plot_releases(
    data: DataTree,
    *,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    backend: str | None = None,
    visuals: Visuals = None,
    **pc_kwargs: Any,
) -> Any:
    """Plot the path of a prelude to its centre: released points, and the noise of each step.

    Parameters
    ----------
    data : DataTree
        The result of a run with a prelude, with its group ``releases``.
    var_names, filter_vars : optional
        Unconstrained parameters, such as ``"beta[0]"``. Default: all.
    visuals : mapping, optional
        Elements: ``way`` (lines), ``points``, ``noise`` (bars), ``posterior`` (a band), ``noise_alone`` (a line of
        reference), ``title``, ``xlabel``, ``ylabel``, ``legend``.
    backend, **pc_kwargs
        See `pymc_dp.plots`.

    Returns
    -------
    PlotCollection
        A panel ``length of the score``: the norm of each released score, relative to the norm of its noise
        alone; near 1, noise determines the next step. A panel for each parameter, of its name: its value, on the
        unconstrained scale, at every release on the path. If there is a private likelihood, bars are two standard
        deviations, to each side, of the noise in the step to that point, and the band is its central 90 %.

    Raises
    ------
    InvalidArgument
        If the run had no prelude, its releases were not kept, or an argument is out of range.

    Notes
    -----
    A score is released along axes in which one unit's information is about the identity, so noise of standard deviation
    s in its entries moves a parameter, in a full Newton step, by s / sqrt(n) of its posterior standard deviations. The
    bars show that, with the likelihood's standard deviation. They are too long for a step that its trust region cut.
    There are none before the last vote on a scale, as the information at another scale was different.
    """
    facts = facts_of(data)
    releases = group_of(data, "releases", _NOTHING_TO_SHOW)
    stops = _stops(releases)
    if not stops:
        raise InvalidArgument(f"This run has no prelude whose path could be drawn. {_NOTHING_TO_SHOW}")
    labels = [str(label) for label in releases["parameter"].values]
    chosen = chosen_names(labels, var_names, filter_vars)
    stages = list(dict.fromkeys(stop.stage for stop in stops))
    colors, markers = zip(*(_LOOKS[stage] for stage in stages), strict=True)
    panels = Panels(
        {_LENGTH: 2.2} | dict.fromkeys(chosen, 1.9),
        backend,
        visuals,
        {"color": colors, "marker": markers} | pc_kwargs,
        known=_VISUALS,
        series=("stage", stages),
        legend_columns=len(stages),
        not_private=why_not_private(facts),
    )
    # Lengths of scores, in multiples of the length of noise alone.
    votes = [place for place, stop in enumerate(stops) if stop.stage == "vote"]
    places = np.setdiff1d(np.arange(len(stops)), votes)
    scores = [stops[place] for place in places]
    lengths = np.array([np.linalg.norm(stop.value) for stop in scores])
    of_noise = np.array([stop.noise_std * math.sqrt(stop.value.size) for stop in scores])
    ratios = lengths / np.maximum(of_noise, np.finfo(float).tiny)
    panels.horizontal(_LENGTH, 1.0, "noise_alone")
    panels.line(_LENGTH, places, ratios, "way", width=1.0)
    _draw_points(panels, _LENGTH, scores, places, ratios)
    found = ratios[np.isfinite(ratios) & (ratios > 0.0)]
    panels.axes(
        _LENGTH,
        "Release on the way",
        "Multiples of its noise",
        "Length of the score (dashed: noise)",
        limits={"x": (-0.5, len(stops) - 0.5), "y": (0.7 * min([1.0, *found]), 1.4 * max([2.0, *found]))},
        logarithmic="y",
    )
    likelihood = PrivateLikelihood(data) if "private_likelihood" in data and "n_units" in facts else None
    for label in chosen:
        place = labels.index(label)
        values = np.array([stop.theta[place] for stop in stops])
        if likelihood is not None:
            reach = scipy.stats.norm.ppf(0.5 * (1.0 + _BAND)) * math.sqrt(likelihood.covariance[place, place])
            mean = likelihood.mean.values[place]
            band = xr.DataArray([mean - reach, mean + reach], dims=["end"])
            panels.draw("posterior", az.visuals.hspan, band, panel=label, color="B3", alpha=0.35)
            # Noise of standard deviation 1 in a score moves the parameter by this much.
            per_noise = math.sqrt(likelihood.without_noise[place, place] / float(facts["n_units"]))
            reached = np.arange(max(votes, default=-1) + 2, len(stops))
            noise = np.array([_REACH * stops[now - 1].noise_std * per_noise for now in reached])
            panels.error_bars(label, reached, values[reached] - noise, values[reached] + noise)
        panels.line(label, np.arange(len(stops)), values, "way", width=1.0)
        _draw_points(panels, label, stops, np.arange(len(stops)), values)
        title = f"{label} (unconstrained scale)"
        panels.axes(label, "Release on the way", "Value", title, limits={"x": (-0.5, len(stops) - 0.5)})
    panels.legend("stage", {stage: stage for stage in stages}, aes=["color", "marker"])
    return panels.collection


def _stops(releases: xr.Dataset) -> list[_Stop]:
    """Return the releases before the chains, in order."""
    found: list[_Stop] = []
    for kind, stage in _STAGES.items():
        if kind not in releases or f"{kind}_order" not in releases.coords:
            continue
        values = releases[kind].values.reshape(releases[kind].shape[0], -1)
        chains, orders, thetas = (releases[f"{kind}_{name}"].values for name in ("chain", "order", "position"))
        noise = releases[noise_std_of(kind)].values
        found += [
            _Stop(int(orders[each]), stage, thetas[each], values[each], float(noise[each]))
            for each in np.flatnonzero(chains == _BEFORE_THE_CHAINS)
        ]
    return sorted(found, key=lambda stop: stop.order)


def _draw_points(panels: Panels, panel: str, stops: Sequence[_Stop], x: np.ndarray, y: FloatArray) -> None:
    """Draw the points of releases, with colours and markers by stage."""
    of_points = [stop.stage for stop in stops]
    stages = list(dict.fromkeys(of_points))
    here = xr.DataArray(stages, coords={"stage": stages}) == xr.DataArray(of_points, dims="point")
    points = xy(x, y).where(here)
    panels.draw("points", az.visuals.scatter_xy, points, panel=panel, by_series=("color", "marker"), size=36)
