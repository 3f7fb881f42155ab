"""What all plots share: figures of panels below each other, colours, and errors about backends."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import arviz as az
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument, MissingBackend

#: From dark to light: each is at least 1.5 times as light as the one before, and all stand out from white.
COLORS = ("#0b1f3a", "#0a4f7c", "#b5502a", "#c98316")
LINESTYLES = ("solid", "dashed", "dashdot", "dotted")
MARKERS = ("circle", "triangle", "square", "diamond")
#: What differs along a series.
AESTHETICS = ("color", "linestyle", "marker")
#: What backends call them where they have names of their own.
_NAMES = {
    "matplotlib": {"circle": "o", "triangle": "^", "square": "s", "diamond": "D"},
    "plotly": {"dashed": "dash", "dotted": "dot", "triangle": "triangle-up"},
}
#: Lines and words beside the data: ArviZ's names for colours with strong and with less contrast.
STRONG, MUTED = "B1", "B2"
#: Inches: a figure of that width is read on a phone without zooming.
WIDTH = 4.8
LINE_WIDTH = 2.0
#: On an axis of numbers with several digits.
_MOST_TICKS = 7
#: Letters of 10 points that fit into a line.
_LETTERS = 50
_NOTHING = "none"
BACKENDS = ("matplotlib", "bokeh", "plotly", _NOTHING)

VisualOptions = Mapping[str, Any] | bool
Visuals = Mapping[str, VisualOptions] | None


def found_backend(backend: str | None) -> str:
    """Return the name of an ArviZ backend that is installed.

    Parameters
    ----------
    backend : str or None
        One of "matplotlib", "bokeh", "plotly" and "none"; None: that of ArviZ's settings.

    Raises
    ------
    InvalidArgument
        If it is none of these.
    MissingBackend
        If it is not installed.
    """
    chosen = str(_validate.choice("backend", az.rcParams["plot.backend"] if backend is None else backend, BACKENDS))
    if backend is None and chosen == _NOTHING:  # ArviZ has found no other
        raise _missing("matplotlib")
    try:
        import_module(f"arviz_plots.backend.{chosen}")
    except ImportError as error:
        raise _missing(chosen) from error
    return chosen


def _missing(backend: str) -> MissingBackend:
    return MissingBackend(
        f"Plots are drawn by {backend}, which is not installed: run `python -m pip install {backend}`, or pass "
        f'backend= with another of {", ".join(BACKENDS)}; "{_NOTHING}" draws nothing and returns what would be drawn.'
    )


def named(value: Any, backend: str) -> Any:
    """Return what a backend calls a pattern of a line or a marker; anything else as it is."""
    return _NAMES.get(backend, {}).get(value, value) if isinstance(value, str) else value


def cycled(values: Sequence[str], count: int) -> list[str]:
    """Return the first `count` values, from the beginning again where there are fewer."""
    return [values[place % len(values)] for place in range(count)]


class Panels:
    """A figure of panels below each other, and what a caller changes of its visuals.

    Parameters
    ----------
    heights : mapping of str to float
        Panels from top to bottom, with their heights in inches.
    series : tuple of str and sequence of str, optional
        A dimension, with its values, along which colours, patterns and markers differ.
    backend : str or None
        As in ArviZ.
    visuals : mapping of str to mapping or bool, or None
        What the caller changes: arguments of a visual, or False to leave it out.
    known : sequence of str
        Names of the visuals that there are.
    legend_columns : int
        Of the legend of the series.
    not_private : str
        Why what is drawn is not private: it is said above everything. Empty if it is.
    pc_kwargs : mapping
        Passed to ``arviz.PlotCollection.grid``.

    Raises
    ------
    InvalidArgument
        If `visuals` names one that there is not, or the backend is unknown.
    MissingBackend
        If the backend is not installed.
    """

    def __init__(
        self,
        heights: Mapping[str, float],
        *,
        backend: str | None,
        visuals: Visuals,
        known: Sequence[str],
        pc_kwargs: Mapping[str, Any],
        series: tuple[str, Sequence[str]] | None = None,
        legend_columns: int = 1,
        not_private: str = "",
    ) -> None:
        self._visuals, self._legend_columns, self._not_private = dict(visuals or {}), legend_columns, not_private
        unknown = sorted(set(self._visuals) - set(known))
        if unknown:
            raise InvalidArgument(
                f"visuals names {', '.join(map(repr, unknown))}; there are {', '.join(map(repr, known))}."
            )
        self.backend = found_backend(backend)
        self._drawing = import_module(f"arviz_plots.backend.{self.backend}")
        coords: dict[str, Any] = {"panel": list(heights)}
        settings = dict(pc_kwargs)
        if series is not None:
            dim, values = series
            coords[dim] = list(values)
            of_series = dict(zip(AESTHETICS, (COLORS, LINESTYLES, MARKERS), strict=True))
            settings["aes"] = {name: [dim] for name in of_series} | dict(settings.get("aes", {}))
            for name, cycle in of_series.items():
                settings.setdefault(name, cycled(cycle, len(values)))
                settings[name] = [named(value, self.backend) for value in settings[name]]
        height_of_words = 0.5 if not_private else 0.0
        if series is not None and self._visuals.get("legend", True) is not False:
            height_of_words += 0.4 + 0.2 * -(-len(series[1]) // legend_columns)
        figure = {
            "figsize": (WIDTH, sum(heights.values()) + height_of_words),
            "figsize_units": "inches",
            "height_ratios": list(heights.values()),
        }
        if self.backend == "matplotlib":
            figure["layout"] = "constrained"
        settings["figure_kwargs"] = figure | dict(settings.get("figure_kwargs", {}))
        settings.setdefault("rows", ["panel"])
        shape = [len(values) for values in coords.values()]
        data = xr.Dataset({"panels": (list(coords), np.zeros(shape))}, coords=coords)
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
        """Draw one visual, with the options of the caller, unless the caller has left it out.

        Parameters
        ----------
        name : str
            Under which the caller changes it.
        visual : callable
            As in ``arviz.visuals``.
        data : DataArray
            In ``arviz.visuals``' form.
        panel : str
            Where.
        by_series : sequence of str
            The aesthetics that differ along the series; none: the options say them.
        label : str, optional
            Under which the collection keeps what was drawn. Default: the name, and that of the panel.
        """
        chosen = self._visuals.get(name, {})
        if chosen is False:
            return
        if isinstance(chosen, Mapping):
            options |= dict(chosen)
        options = {name: named(value, self.backend) for name, value in options.items()}
        self.collection.coords = {"panel": panel}
        self.collection.map(
            visual,
            label or f"{name}_{panel}",
            data=data.rename("panels").to_dataset(),
            ignore_aes=self.collection.aes_set - set(by_series),
            **options,
        )
        self.collection.coords = None

    def points(self, panel: str, x: Any, y: Any, name: str = "points", **options: Any) -> None:
        """Draw points."""
        look: dict[str, Any] = {"color": COLORS[0], "marker": MARKERS[0]}
        self.draw(name, az.visuals.scatter_xy, xy(x, y), panel=panel, **(look | options))

    def line(self, panel: str, x: Any, y: Any, name: str = "line", **options: Any) -> None:
        """Draw a line."""
        look: dict[str, Any] = {"color": COLORS[0], "width": LINE_WIDTH}
        self.draw(name, az.visuals.line_xy, xy(x, y), panel=panel, **(look | options))

    def error_bars(self, panel: str, x: Any, low: Any, high: Any, name: str = "noise", **options: Any) -> None:
        """Draw vertical bars: one line with gaps."""
        ends = np.array([[x, x], [low, high]], dtype=float)
        look: dict[str, Any] = {"color": MUTED, "width": 1.0}
        self.line(panel, *_with_gaps(ends), name=name, **(look | options))

    def vertical(self, panel: str, x: float, name: str = "reference", **options: Any) -> None:
        """Draw a vertical line of reference."""
        look: dict[str, Any] = {"color": MUTED, "linestyle": LINESTYLES[1]}
        self.draw(name, az.visuals.vline, xr.DataArray(x), panel=panel, **(look | options))

    def horizontal(self, panel: str, y: float, name: str = "reference", **options: Any) -> None:
        """Draw a horizontal line of reference."""
        look: dict[str, Any] = {"color": MUTED, "linestyle": LINESTYLES[1]}
        self.draw(name, az.visuals.hline, xr.DataArray(y), panel=panel, **(look | options))

    def bars(self, panel: str, names: Sequence[str], lengths: Sequence[float], name: str = "bars") -> None:
        """Draw horizontal bars with names, from top to bottom: one line with gaps."""
        places = np.arange(len(names))[::-1]
        ends = np.array([[np.zeros(len(names)), lengths], [places, places]], dtype=float)
        caps = {"solid_capstyle": "butt"} if self.backend == "matplotlib" else {}
        self.line(panel, *_with_gaps(ends), name=name, color=COLORS[1], width=8.0, **caps)
        target = self.target(panel)
        self._drawing.yticks(places, list(names), target)
        self._drawing.ylim((-0.6, len(names) - 0.4), target)

    def labels(self, panel: str, *, x: str, y: str = "", title: str = "") -> None:
        """Write the titles of a panel and of its axes."""
        nothing = xr.DataArray(0.0)
        written = (("xlabel", az.visuals.labelled_x, x), ("ylabel", az.visuals.labelled_y, y))
        for name, visual, text in (*written, ("title", az.visuals.labelled_title, title)):
            if text:
                self.draw(name, visual, nothing, panel=panel, text=text, color=STRONG)

    def target(self, panel: str) -> Any:
        """Return the backend's plot of a panel."""
        return self.collection.get_viz("plot", panel=panel)

    def limits(self, panel: str, *, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
        """Set the limits of axes."""
        if x is not None:
            self._drawing.xlim(x, self.target(panel))
        if y is not None:
            self._drawing.ylim(y, self.target(panel))

    def logarithmic(
        self, panel: str, *, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None
    ) -> None:
        """Make axes logarithmic, with plain numbers beside them, from limit to limit."""
        target = self.target(panel)
        if x is not None:
            self._drawing.xscale(target, "log")
            self._drawing.xticks(*_ticks_between(*x), target)
        if y is not None:
            self._drawing.yscale(target, "log")
            self._drawing.yticks(*_ticks_between(*y), target)
        if self.backend == "matplotlib":
            target.minorticks_off()
        self.limits(panel, x=x, y=y)

    def x_names(self, panel: str, places: Any, names: Sequence[str]) -> None:
        """Write names on the horizontal axis."""
        self._drawing.xticks(list(places), list(names), self.target(panel))

    def no_y_ticks(self, panel: str) -> None:
        """Leave the vertical axis without ticks: it says nothing."""
        self._drawing.yticks([], [], self.target(panel))

    def legend(self, dim: str, said: Mapping[str, str], title: str = "", aes: Sequence[str] = AESTHETICS) -> None:
        """Write a legend beside the panels: what it says of each series, by name."""
        chosen = self._visuals.get("legend", {})
        if chosen is False:
            return
        options: dict[str, Any] = {"title": title, "labeller": az.labels.MapLabeller(coord_map={dim: dict(said)})}
        aes = [name for name in aes if name != "marker" or self.backend == "matplotlib"]  # others have none in legends
        options |= {"aes": aes}
        if self.backend == "matplotlib":
            options |= {"loc": legend_place(self._not_private), "ncols": self._legend_columns}
        if isinstance(chosen, Mapping):
            options |= dict(chosen)
        self.collection.add_legend(dim, **options)


def _ticks_between(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return round numbers of a logarithmic axis with their names: 1, 2 and 5 times powers of ten, or powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1.0, 2.0, 5.0), (1.0,)):
        places = [factor * 10.0**power for power in powers for factor in factors]
        places = [place for place in places if low <= place <= high]
        if len(places) <= _MOST_TICKS:
            break
    return places, [f"{place:g}" for place in places]


def warn_above(collection: Any, not_private: str) -> None:
    """Say above everything that what is drawn is not private, in lines that fit."""
    collection.add_title(textwrap.fill(f"NOT PRIVATE: {not_private}", _LETTERS), color=COLORS[2], size=10)


def legend_place(not_private: str) -> str:
    """Return where matplotlib's legend stands: above, unless a warning does."""
    return "outside lower center" if not_private else "outside upper center"


def xy(x: Any, y: Any) -> xr.DataArray:
    """Return points as ArviZ's visuals take them."""
    values = np.broadcast_arrays(np.asarray(x, dtype=float), np.asarray(y, dtype=float))
    dims = ["plot_axis", "point"][: 1 + values[0].ndim]
    return xr.DataArray(np.stack(values), dims=dims, coords={"plot_axis": ["x", "y"]})


def _with_gaps(ends: NDArray[np.float64]) -> tuple[Any, Any]:
    """Return x and y of a line with a gap after each bar, given x and y of both ends, shape (2, 2, bars)."""
    gaps = np.full((2, 1, ends.shape[2]), np.nan)
    x, y = np.concatenate([ends, gaps], axis=1).transpose(0, 2, 1).reshape(2, -1)
    return x, y
