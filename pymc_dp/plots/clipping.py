"""`plot_clipping`: the share of clipped units, and the possible bias of the draws from clipping."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray import DataTree

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import clip_fraction_name, noise_std_of
from pymc_dp.plots.panels import (
    COLORS,
    LINESTYLES,
    MARKERS,
    PER_CENT,
    Panels,
    Visuals,
    chosen_names,
    cycled,
    group_of,
    why_not_private,
)
from pymc_dp.release.interface import FloatArray
from pymc_dp.reports.published import acceptance_tests_of, facts_of, kinds_of
from pymc_dp.reports.quality import ACCEPTABLE_CLIP_BIAS, ACCEPTABLE_CLIP_FRACTION, moves_draws

_VISUALS = ("fractions", "noise", "harmless", "nothing", "bias", "title", "xlabel", "ylabel", "legend")
_PREFIX = clip_fraction_name("", "")
#: Half the length of bars of noise, in standard deviations.
_REACH = 2.0


def plot_clipping(
    data: DataTree,
    *,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    backend: str | None = None,
    visuals: Visuals = None,
    **pc_kwargs: Any,
) -> Any:
    """Plot the released counts of clipped units, and the estimated bias of clipping.

    Parameters
    ----------
    data : DataTree
        The result of a private run.
    var_names, filter_vars : optional
        Kinds of releases with counts, such as ``"log_ratio"``. Default: all.
    visuals : mapping, optional
        Elements: ``fractions`` and ``bias`` (points), ``noise`` (bars), lines of reference ``harmless`` (the limit) and
        ``nothing`` (zero), ``title``, ``xlabel``, ``ylabel``, ``legend``.
    backend, **pc_kwargs
        See `pymc_dp.plots`.

    Returns
    -------
    PlotCollection
        A panel for each kind of release with counts, of the same name: the clipped units in per cent of all, by kept
        draw. Each count is one point in the middle of its draws. A panel ``clip_bias``, for runs with a prelude: the
        possible bias of means by clip bounds, in standard deviations of the draws.

    Raises
    ------
    InvalidArgument
        If nothing on clipping was released, or an argument is out of range.

    Notes
    -----
    Counts and bias were released with noise, and may be below zero. Bars are two standard deviations of the noise to
    each side. The dashed line is the limit of `pymc_dp.diagnostics.quality` for clipping; there is no limit where an
    acceptance test corrects for clipping. Counts without noise (``clip_diagnostics="exact"``) are marked as not
    private.
    """
    facts = facts_of(data)
    stats = group_of(data, "sample_stats", "the run ended before the first draw after tuning.")
    counted = [str(name).removeprefix(_PREFIX) for name in stats.data_vars if str(name).startswith(_PREFIX)]
    counted = [name for name in counted if noise_std_of(clip_fraction_name(name, "")) in stats]
    kinds = chosen_names(counted, var_names, filter_vars)
    with_bias = "clip_bias" in stats and bool(np.isfinite(stats["clip_bias"].values).any())
    if not kinds and not with_bias:
        raise InvalidArgument(
            "This run has released nothing on clipping: leave out clip_diagnostics=None to pay for noisy counts."
        )
    chains = [str(chain) for chain in stats["chain"].values]
    panels = Panels(
        dict.fromkeys(kinds, 2.2) | ({"clip_bias": 1.3} if with_bias else {}),
        backend,
        visuals,
        pc_kwargs,
        known=_VISUALS,
        series=("chain", chains) if kinds else None,
        legend_columns=2,
        not_private=why_not_private(facts),
    )
    tested = "none" not in acceptance_tests_of(facts)
    released = kinds_of(facts)
    n_draws, count = stats.sizes["draw"], len(chains)
    looks = list(zip(cycled(COLORS, count), cycled(LINESTYLES, count), cycled(MARKERS, count), strict=True))
    for kind in kinds:
        name = clip_fraction_name(kind, "")
        values, noises = (stats[each].transpose("chain", "draw").values for each in (name, noise_std_of(name)))
        for place, (chain, (color, linestyle, marker)) in enumerate(zip(chains, looks, strict=True)):
            middles, fractions, stds = _windows(values[place], noises[place])
            middles = middles + n_draws * 0.008 * (place - 0.5 * (count - 1))  # points of chains side by side
            fractions, bars = PER_CENT * fractions, PER_CENT * _REACH * stds
            look = {"color": color, "linestyle": linestyle, "label": f"noise_{kind}_{chain}"}
            panels.error_bars(kind, middles, fractions - bars, fractions + bars, **look)
            panels.points(kind, middles, fractions, "fractions", color=color, marker=marker, label=f"{kind}_{chain}")
        limited = kind in released and moves_draws(released[kind]["role"], tested=tested)
        if limited:
            panels.horizontal(kind, PER_CENT * ACCEPTABLE_CLIP_FRACTION[0], "harmless")
        panels.horizontal(kind, 0.0, "nothing", linestyle=LINESTYLES[0], width=0.8)
        title = f"Clipped in {kind} ({'dashed: limit' if limited else 'tests correct it'})"
        panels.axes(kind, "Kept draw", "Clipped units (%)", title, limits={"x": (-0.02 * n_draws, 1.02 * n_draws)})
    if with_bias:
        bias, noise = (float(stats[name].mean()) for name in ("clip_bias", "clip_bias_noise_std"))
        reach = _REACH * noise
        panels.line("clip_bias", [bias - reach, bias + reach], [0.0, 0.0], "noise", width=1.5)
        panels.points("clip_bias", [bias], [0.0], "bias", size=50)
        panels.vertical("clip_bias", ACCEPTABLE_CLIP_BIAS[0], "harmless")
        panels.vertical("clip_bias", 0.0, "nothing", linestyle=LINESTYLES[0], width=0.8)
        x, title = "Shift of means (standard deviations of the draws)", "Bias by clip bounds (dashed: limit)"
        panels.axes("clip_bias", x, title=title, limits={"y": (-1.0, 1.0)}, ticks={"y": ([], [])})
    if kinds:
        panels.legend("chain", {chain: f"chain {chain}" for chain in chains})
    return panels.collection


def _windows(values: FloatArray, noise: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the middle, the value and the noise of each count of a chain, which is repeated for all of its draws."""
    known = np.flatnonzero(np.isfinite(values))
    if not known.size:
        nothing = np.array([np.nan])
        return nothing, nothing, nothing
    runs = np.split(known, 1 + np.flatnonzero(np.diff(values[known]) != 0.0))
    first = [run[0] for run in runs]
    return np.array([run.mean() for run in runs]), values[first], noise[first]
