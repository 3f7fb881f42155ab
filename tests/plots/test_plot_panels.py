"""What all plots have in common: they can be read on a phone and in grey, and say what is missing."""

import functools
import itertools
import subprocess
import sys

import matplotlib as mpl
import pytest
from plotted_runs import axes, counted, forecast, searched, words

import pymc_dp as dp
from pymc_dp.plots import panels
from pymc_dp.plots.panels import COLORS, LINESTYLES, MARKERS

BUDGETS = {f"epsilon {epsilon:g}": dp.PrivacyBudget(epsilon, 1e-6) for epsilon in (0.5, 1.0, 2.0, 4.0)}
PLOTS = {
    "privacy": lambda **options: dp.plots.plot_privacy(searched(), **options),
    "several budgets": lambda **options: dp.plots.plot_privacy(BUDGETS, **options),
    "clipping": lambda **options: dp.plots.plot_clipping(counted(), **options),
    "bias": lambda **options: dp.plots.plot_clipping(searched(), **options),
    "exact counts": lambda **options: dp.plots.plot_clipping(counted("exact"), **options),
    "not private": lambda **options: dp.plots.plot_privacy(counted("exact"), **options),
    "private, not": lambda **options: dp.plots.plot_private(counted("exact"), counted(), **options),
    "private": lambda **options: dp.plots.plot_private(searched(), searched(), **options),
    "releases": lambda **options: dp.plots.plot_releases(searched(), **options),
    "rehearsal": lambda **options: dp.plots.plot_rehearsal(forecast(), **options),
}
every_plot = pytest.mark.parametrize("name", PLOTS)


@pytest.fixture(autouse=True, scope="module")
def _close_figures():
    yield
    mpl.pyplot.close("all")


@functools.cache
def figure_of(name):
    """Each figure is drawn once."""
    collection = PLOTS[name](backend="matplotlib")
    return collection, words(collection)


def luminance(color):
    """Relative luminance as in the web's guidelines for accessible content (WCAG 2)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in mpl.colors.to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(COLORS, 2)))
def test_colours_differ_in_grey(one, other):
    assert contrast(one, other) > 1.5


@pytest.mark.parametrize("color", COLORS)
def test_colours_stand_out_from_paper(color):
    assert contrast(color, "white") > 3.0


def test_patterns_and_markers_differ_as_colours_do():
    assert len(set(LINESTYLES)) == len(set(MARKERS)) == len(COLORS)


@pytest.mark.few(5)
@every_plot
def test_figures_are_read_at_the_width_of_a_phone(name):
    """No more than 6 inches wide, no text below 9 points, and none beyond the edge."""
    collection, seen = figure_of(name)
    figure = collection.viz["figure"].item()
    assert figure.get_figwidth() <= 6.0
    assert seen
    for text in seen:
        assert text.get_fontsize() >= 9.0, text
        box = text.get_window_extent()
        assert box.x0 >= -1.0, text
        assert box.x1 <= figure.bbox.x1 + 1.0, text


@every_plot
def test_words_do_not_cover_each_other(name):
    _, seen = figure_of(name)
    boxes = [(text.get_text(), text.get_window_extent()) for text in seen]
    for (one, box), (other, second) in itertools.combinations(boxes, 2):
        apart = box.x1 <= second.x0 or second.x1 <= box.x0 or box.y1 <= second.y0 or second.y1 <= box.y0
        assert apart, f"{one!r} covers {other!r}"


@pytest.mark.parametrize("name", [name for name in PLOTS if not name.startswith("private")])
def test_axes_say_what_they_show(name):
    for panel in axes(figure_of(name)[0]).values():
        assert panel.get_xlabel()
        assert panel.get_title()
        assert panel.get_ylabel() or all(label.get_text() for label in panel.get_yticklabels())


@every_plot
def test_lines_that_differ_in_colour_differ_in_pattern(name):
    for panel in figure_of(name)[0].viz["figure"].item().axes:
        looks = {(line.get_color(), line.get_linestyle()) for line in panel.lines if line.get_color() in COLORS}
        for (color, pattern), (second, other) in itertools.combinations(looks, 2):
            assert color == second or pattern != other


@every_plot
def test_a_backend_that_draws_nothing_says_what_would_be_drawn(name):
    assert len(PLOTS[name](backend="none").viz.children) > 3


@pytest.mark.parametrize("name", ["rehearsal", "private"])
def test_figures_are_as_large_as_asked(name):
    figure = PLOTS[name](backend="matplotlib", figure_kwargs={"figsize": (5.5, 7.0)}).viz["figure"].item()
    assert tuple(figure.get_size_inches()) == (5.5, 7.0)


@every_plot
def test_unknown_backends_are_refused(name):
    with pytest.raises(dp.InvalidArgument, match="must be one of 'matplotlib'"):
        PLOTS[name](backend="gnuplot")


@every_plot
def test_a_missing_backend_says_what_to_install(name, monkeypatch):
    real = panels.import_module

    def without_bokeh(module, *args):
        if "bokeh" in module:
            raise ModuleNotFoundError(module)
        return real(module, *args)

    monkeypatch.setattr(panels, "import_module", without_bokeh)
    with pytest.raises(dp.MissingBackend, match="pip install bokeh"):
        PLOTS[name](backend="bokeh")


@pytest.mark.slow
def test_the_package_does_without_matplotlib_until_something_is_drawn():
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import pymc_dp as dp\n"
        "try:\n    dp.plots.plot_privacy(dp.PrivacyBudget(1.0, 1e-6))\n"
        "except dp.MissingBackend as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert "pip install matplotlib" in done.stdout


@pytest.mark.parametrize("name", ["privacy", "bias", "releases", "rehearsal"])
def test_unknown_visuals_are_refused(name):
    with pytest.raises(dp.InvalidArgument, match="visuals names 'colour'; there are"):
        PLOTS[name](visuals={"colour": False}, backend="none")


def test_visuals_are_changed_or_left_out():
    changed = dp.plots.plot_privacy(
        searched(), backend="matplotlib", visuals={"guess": False, "power": {"width": 7.0}, "legend": False}
    )
    assert "guess_power" not in changed.viz.children
    assert "legend" not in changed.viz.children
    (line,) = changed.viz["power_power"]["panels"].values
    assert line.get_linewidth() == 7.0


@pytest.mark.parametrize(("low", "high", "ticks"), [(0.7, 6.0, "1 2 5"), (0.02, 30.0, "0.1 1 10"), (0.9, 1.4, "1")])
def test_logarithmic_axes_have_plain_numbers(low, high, ticks):
    assert " ".join(panels._ticks_between(low, high)[1]) == ticks
