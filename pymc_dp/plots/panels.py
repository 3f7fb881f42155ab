"""Shared parts of plots: access to results, colours, backends, and figures of stacked panels."""

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import arviz as az
import numpy as np
import xarray as xr
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument, MissingBackend

#: From dark to light: each is at least 1.5 times as light as the previous one, and all contrast with white.
COLORS = ("#0b1f3a", "#0a4f7c", "#b5502a", "#c98316")
LINESTYLES = ("solid", "dashed", "dashdot", "dotted")
MARKERS = ("circle", "triangle", "square", "diamond")
#: The aesthetics that differ along a series.
_CYCLES = {"color": COLORS, "linestyle": LINESTYLES, "marker": MARKERS}
#: Names of line styles and markers in backends that use other names.
_NAMES = {
    "matplotlib": {"circle": "o", "triangle": "^", "square": "s", "diamond": "D"},
    "plotly": {"dashed": "dash", "dotted": "dot", "triangle": "triangle-up"},
}
#: ArviZ's names of colours with strong and with less contrast, for words and for lines of reference.
_STRONG, MUTED = "B1", "B2"
#: Width of figures in inches, readable on a phone without zooming.
WIDTH = 4.8
LINE_WIDTH = 2.0
PER_CENT = 100.0
#: Largest number of ticks on an axis of numbers with several digits.
_MOST_TICKS = 7
#: Number of characters of 10 points in a line.
_LETTERS = 50
_NOTHING = "none"
BACKENDS = ("matplotlib", "bokeh", "plotly", _NOTHING)

Visuals = Mapping[str, Mapping[str, Any] | bool] | None


def group_of(tree: DataTree, name: str, otherwise: str) -> xr.Dataset:
    """Return a group of a result; refuse a result without it, with a message that ends with `otherwise`."""
    if name not in tree:
        raise InvalidArgument(f"This result has no group `{name}`: {otherwise}")
    return tree[name].to_dataset()


def why_not_private(facts: Mapping[str, Any]) -> str:
    """Return the reason why a result is not private; empty for a private result."""
    if facts.get("private", 0) and math.isfinite(facts["epsilon"]):
        return ""
    return str(facts.get("not_private_because") or "no guarantee is known")


def chosen_names(names: Sequence[str], var_names: str | Sequence[str] | None, filter_vars: str | None) -> list[str]:
    """Return the names that match `var_names` and `filter_vars`, with ArviZ's meaning.

    Names with a leading ``~`` are excluded. Refuses a pattern that matches none of `names`.
    """
    filter_vars = _validate.choice("filter_vars", filter_vars, (None, "like", "regex"))
    if var_names is None:
        return list(names)
    fits: Callable[[str, str], bool] = {
        None: lambda name, pattern: name == pattern,
        "like": lambda name, pattern: pattern in name,
        "regex": lambda name, pattern: re.search(pattern, name) is not None,
    }[filter_vars]
    found: set[str] = set()
    patterns = [var_names] if isinstance(var_names, str) else list(var_names)
    for pattern in patterns:
        fitting = {name for name in names if fits(name, pattern.removeprefix("~"))}
        if not fitting:
            raise InvalidArgument(f"var_names: nothing is called {pattern!r}. There are {', '.join(map(repr, names))}.")
        found |= fitting
    excluded = all(pattern.startswith("~") for pattern in patterns)
    return [name for name in names if (name in found) is not excluded]


def found_backend(backend: str | None) -> str:
    """Return the name of an ArviZ backend, by default that of ArviZ's settings; refuse one that is not installed."""
    chosen = str(_validate.choice("backend", az.rcParams["plot.backend"] if backend is None else backend, BACKENDS))
    wanted = "matplotlib" if backend is None and chosen == _NOTHING else chosen  # ArviZ's default if it finds none
    try:
        import_module(f"arviz_plots.backend.{wanted}")
    except ImportError as error:
        raise MissingBackend(
            f"Plots are drawn by {wanted}, which is not installed: run `python -m pip install {wanted}`, or pass "
            f'backend= with another of {", ".join(BACKENDS)}; "{_NOTHING}" draws nothing and returns what would be '
            "drawn."
        ) from error
    return wanted


def cycled(values: Sequence[str], count: int, backend: str = "") -> list[str]:
    """Return `count` values, repeated if there are fewer, with a backend's names."""
    return [named(values[place % len(values)], backend) for place in range(count)]


def named(value: Any, backend: str) -> Any:
    """Return the backend's name of a line style or a marker; other values unchanged."""
    return _NAMES.get(backend, {}).get(value, value) if isinstance(value, str) else value


def sized(height: float, backend: str, given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the arguments of a figure of this height, updated with the caller's."""
    figure = {"figsize": (WIDTH, height), "figsize_units": "inches", **more}
    return (
        figure | ({"layout": "constrained"} if backend == "matplotlib" else {}) | dict(given.get("figure_kwargs", {}))
    )


def warn_above(collection: Any, not_private: str) -> None:
    """Write a title which states that the figure is not private."""
    collection.add_title(textwrap.fill(f"NOT PRIVATE: {not_private}", _LETTERS), color=COLORS[2], size=10)


def add_legend(collection: Any, dim: str, chosen: Mapping[str, Any] | bool, not_private: str, **options: Any) -> None:
    """Write a legend of a dimension, with the caller's options; in matplotlib opposite to a warning, else above."""
    if chosen is False:
        return
    if collection.backend == "matplotlib":
        options["loc"] = "outside lower center" if not_private else "outside upper center"
    collection.add_legend(dim, **(options | (dict(chosen) if isinstance(chosen, Mapping) else {})))


class Panels:
    """A figure of stacked panels, with the caller's changes of its visuals.

    Parameters
    ----------
    heights : mapping of str to float
        Panels from top to bottom, with their heights in inches.
    backend, visuals, pc_kwargs
        As in all plots.
    known : sequence of str
        Names of the visuals; the caller's `visuals` may have no others.
    series : tuple of str and sequence of str, optional
        A dimension, with its values, along which colours, patterns and markers differ.
    legend_columns : int
        Of the legend of the series.
    not_private : str
        The reason why the figure is not private, for its title. Empty if it is private.
    """

    def __init__(
        self,
        heights: Mapping[str, float],
        backend: str | None,
        visuals: Visuals,
        pc_kwargs: Mapping[str, Any],
        *,
        known: Sequence[str],
        series: tuple[str, Sequence[str]] | None = None,
        legend_columns: int = 1,
        not_private: str = "",
    ) -> None:
        self._visuals, self._legend_columns, self._not_private = dict(visuals or {}), legend_columns, not_private
        if unknown := sorted(set(self._visuals) - set(known)):
            raise InvalidArgument(
                f"visuals names {', '.join(map(repr, unknown))}; there are {', '.join(map(repr, known))}."
            )
        self.backend = found_backend(backend)
        self._drawing = import_module(f"arviz_plots.backend.{self.backend}")
        coords: dict[str, Any] = {"panel": list(heights)}
        settings = dict(pc_kwargs)
        height = sum(heights.values()) + (0.5 if not_private else 0.0)
        if series is not None:
            dim, values = series
            coords[dim] = list(values)
            settings["aes"] = {name: [dim] for name in _CYCLES} | dict(settings.get("aes", {}))
            for name, cycle in _CYCLES.items():
                given = settings.get(name, cycled(cycle, len(values)))
                settings[name] = [named(value, self.backend) for value in given]
            if self._visuals.get("legend", True) is not False:
                height += 0.4 + 0.2 * -(-len(values) // legend_columns)
        ratios = list(heights.values())
        settings["figure_kwargs"] = sized(height, self.backend, pc_kwargs, height_ratios=ratios)
        settings.setdefault("rows", ["panel"])
        data = xr.Dataset({"panels": (list(coords), np.zeros([len(each) for each in coords.values()]))}, coords=coords)
        self.collection = az.PlotCollection.grid(data, backend=self.backend, **settings)
        if not_private:
            warn_above(self.collection, not_private)

    def draw(
        self,
        name: str,
        visual: Callable[..., Any],
        data: xr.DataArray,
        *,
        panel: str,
        by_series: Sequence[str] = (),
        label: str | None = None,
        **options: Any,
    ) -> None:
        """Draw one visual, with the caller's options for its name, unless the caller omits it.

        `by_series` are the aesthetics that differ along the series. The collection stores the visual under `label`, by
        default the names of the visual and of the panel.
        """
        chosen = self._visuals.get(name, {})
        if chosen is False:
            return
        options |= dict(chosen) if isinstance(chosen, Mapping) else {}
        self.collection.coords = {"panel": panel}
        self.collection.map(
            visual,
            label or f"{name}_{panel}",
            data=data.rename("panels").to_dataset(),
            ignore_aes=self.collection.aes_set - set(by_series),
            **{name: named(value, self.backend) for name, value in options.items()},
        )
        self.collection.coords = None

    def points(
        self, panel: str, x: Any, y: Any, name: str, color: str = COLORS[0], marker: str = MARKERS[0], **options: Any
    ) -> None:
        """Draw points."""
        self.draw(name, az.visuals.scatter_xy, xy(x, y), panel=panel, color=color, marker=marker, **options)

    def line(
        self, panel: str, x: Any, y: Any, name: str, color: str = COLORS[0], width: float = LINE_WIDTH, **options: Any
    ) -> None:
        """Draw a line."""
        self.draw(name, az.visuals.line_xy, xy(x, y), panel=panel, color=color, width=width, **options)

    def error_bars(self, panel: str, x: Any, low: Any, high: Any, color: str = MUTED, **options: Any) -> None:
        """Draw vertical bars of noise, as one line with gaps."""
        self.line(panel, *_with_gaps([x, x], [low, high]), "noise", color=color, width=1.0, **options)

    def vertical(self, panel: str, x: float, name: str, linestyle: str = LINESTYLES[1], **options: Any) -> None:
        """Draw a vertical line of reference."""
        self.draw(name, az.visuals.vline, xr.DataArray(x), panel=panel, color=MUTED, linestyle=linestyle, **options)

    def horizontal(self, panel: str, y: float, name: str, linestyle: str = LINESTYLES[1], **options: Any) -> None:
        """Draw a horizontal line of reference."""
        self.draw(name, az.visuals.hline, xr.DataArray(y), panel=panel, color=MUTED, linestyle=linestyle, **options)

    def bars(self, panel: str, lengths: Mapping[str, float], name: str = "bars") -> None:
        """Draw horizontal bars with names, from top to bottom, as one line with gaps."""
        places, zero = np.arange(len(lengths))[::-1], np.zeros(len(lengths))
        caps = {"solid_capstyle": "butt"} if self.backend == "matplotlib" else {}
        ends = _with_gaps([zero, list(lengths.values())], [places, places])
        self.line(panel, *ends, name, color=COLORS[1], width=8.0, **caps)
        self.axes(panel, ticks={"y": (places, list(lengths))}, limits={"y": (-0.6, len(lengths) - 0.4)})

    def axes(
        self,
        panel: str,
        x: str = "",
        y: str = "",
        title: str = "",
        *,
        limits: Mapping[str, tuple[float, float]] | None = None,
        ticks: Mapping[str, tuple[Any, Sequence[str]]] | None = None,
        logarithmic: str = "",
    ) -> None:
        """Write the titles of a panel and of its axes, and set their limits, and ticks with names.

        Axes named in `logarithmic` are logarithmic, with plain numbers at their ticks.
        """
        target, limits, ticks = self.collection.get_viz("plot", panel=panel), dict(limits or {}), dict(ticks or {})
        for axis in logarithmic:
            getattr(self._drawing, f"{axis}scale")(target, "log")
            ticks[axis] = _ticks_between(*limits[axis])
        for axis, (places, names) in ticks.items():
            getattr(self._drawing, f"{axis}ticks")(list(places), list(names), target)
        if logarithmic and self.backend == "matplotlib":
            target.minorticks_off()
        for axis, ends in limits.items():
            getattr(self._drawing, f"{axis}lim")(ends, target)
        written = (("xlabel", az.visuals.labelled_x, x), ("ylabel", az.visuals.labelled_y, y))
        for name, visual, text in (*written, ("title", az.visuals.labelled_title, title)):
            if text:
                self.draw(name, visual, xr.DataArray(0.0), panel=panel, text=text, color=_STRONG)

    def legend(self, dim: str, names: Mapping[str, str], title: str = "", aes: Sequence[str] = tuple(_CYCLES)) -> None:
        """Write a legend of the series, with the text for each of its values."""
        columns = {"ncols": self._legend_columns} if self.backend == "matplotlib" else {}
        aes = [name for name in aes if name != "marker" or self.backend == "matplotlib"]  # others: no legend of markers
        labeller = az.labels.MapLabeller(coord_map={dim: dict(names)})
        chosen = self._visuals.get("legend", True)
        add_legend(self.collection, dim, chosen, self._not_private, title=title, labeller=labeller, aes=aes, **columns)


def _ticks_between(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return ticks of a logarithmic axis with their names: 1, 2 and 5 times powers of ten, or powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1.0, 2.0, 5.0), (1.0,)):
        places = [factor * 10.0**power for power in powers for factor in factors]
        places = [place for place in places if low <= place <= high]
        if len(places) <= _MOST_TICKS:
            break
    return places, [f"{place:g}" for place in places]


def xy(x: Any, y: Any) -> xr.DataArray:
    """Return points in the form of ArviZ's visuals."""
    values = np.broadcast_arrays(np.asarray(x, dtype=float), np.asarray(y, dtype=float))
    dims = ["plot_axis", "point"][: 1 + values[0].ndim]
    return xr.DataArray(np.stack(values), dims=dims, coords={"plot_axis": ["x", "y"]})


def _with_gaps(x: Any, y: Any) -> tuple[Any, Any]:
    """Return x and y of a line with a gap after each bar, given both ends of the bars in each direction."""
    ends = np.array([x, y], dtype=float)
    gaps = np.full((2, 1, ends.shape[2]), np.nan)
    x, y = np.concatenate([ends, gaps], axis=1).transpose(0, 2, 1).reshape(2, -1)
    return x, y
