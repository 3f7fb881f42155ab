"""What is drawn of clipping was released, with its noise."""

import numpy as np
import pytest
from plotted_runs import MATPLOTLIB, N, axes, counted, drawn, searched, words

import pymc_dp as dp
from pymc_dp.plots import plot_clipping
from pymc_dp.plots.clipping import _windows


def points(collection, panel):
    """Middles of windows and per cent, of all chains."""
    return np.concatenate([drawn(collection, f"{panel}_{chain}").get_offsets() for chain in (0, 1)])


def test_every_count_of_kept_draws_is_a_point():
    releases, tune = counted()["releases"].to_dataset(), 10
    kept = releases["clip_count_iteration"].values >= tune
    collection = plot_clipping(counted(), **MATPLOTLIB)
    for place, kind in enumerate(("gradient", "log_ratio")):
        per_cent = 100.0 * releases["clip_count"].values[kept, place] / N
        np.testing.assert_allclose(points(collection, kind)[:, 1], per_cent)


def test_points_stand_in_the_middle_of_their_draws():
    at = points(plot_clipping(counted(), **MATPLOTLIB), "gradient")[:, 0]
    iterations = counted()["releases"]["clip_count_iteration"].values - 10
    ends = iterations[(iterations >= 0) & (counted()["releases"]["clip_count_chain"].values == 0)]
    begins = [0, *(ends[:-1] + 1)]
    np.testing.assert_allclose(at[: len(ends)], (ends + begins) / 2, atol=0.5)


def test_bars_are_two_standard_deviations_of_the_noise():
    collection = plot_clipping(counted(), **MATPLOTLIB)
    bars = drawn(collection, "noise_log_ratio_0").get_ydata().reshape(-1, 3)
    noise = 100.0 * counted()["sample_stats"]["clip_fraction_log_ratio_noise_std"].values[0, 0] / 1.0
    np.testing.assert_allclose(bars[:, 1] - bars[:, 0], 4.0 * noise)
    assert noise > 0.0


def test_a_limit_is_drawn_where_clipping_moves_the_draws():
    """Of tested moves it is the log-ratio; clipped gradients are corrected for."""
    collection = plot_clipping(counted(), **MATPLOTLIB)
    assert drawn(collection, "harmless_log_ratio").get_ydata() == [1.0, 1.0]
    assert "harmless_gradient" not in collection.viz.children
    assert axes(collection)["gradient"].get_title() == "Clipped in gradient (tests correct it)"


def test_the_bias_is_the_released_one_in_standard_deviations():
    collection = plot_clipping(searched(), **MATPLOTLIB)
    stats = searched()["sample_stats"]
    bias, noise = (float(stats[name].values[0, 0]) for name in ("clip_bias", "clip_bias_noise_std"))
    np.testing.assert_allclose(drawn(collection, "bias_clip_bias").get_offsets(), [[bias, 0.0]])
    np.testing.assert_allclose(
        drawn(collection, "noise_clip_bias").get_xdata(), [bias - 2.0 * noise, bias + 2.0 * noise]
    )
    assert drawn(collection, "harmless_clip_bias").get_xdata() == [0.75, 0.75]
    assert "standard deviations of the draws" in axes(collection)["clip_bias"].get_xlabel()


@pytest.mark.parametrize(
    ("var_names", "filter_vars", "kinds"),
    [
        ("log_ratio", None, ["log_ratio"]),
        (["gradient", "log_ratio"], None, ["gradient", "log_ratio"]),
        ("~gradient", None, ["log_ratio"]),
        ("grad", "like", ["gradient"]),
        ("^log", "regex", ["log_ratio"]),
    ],
)
def test_kinds_are_chosen_as_in_arviz(var_names, filter_vars, kinds):
    collection = plot_clipping(counted(), var_names=var_names, filter_vars=filter_vars, **MATPLOTLIB)
    assert list(axes(collection)) == kinds


@pytest.mark.parametrize(("var_names", "filter_vars"), [("residual", None), ("grad", None), ("gradient", "fuzzy")])
def test_unknown_kinds_are_refused(var_names, filter_vars):
    with pytest.raises(dp.InvalidArgument):
        plot_clipping(counted(), var_names=var_names, filter_vars=filter_vars, backend="none")


def test_exact_counts_are_marked_as_not_private():
    said = [text.get_text() for text in words(plot_clipping(counted("exact"), **MATPLOTLIB))]
    assert any(text.startswith("NOT PRIVATE: exact clip counts") for text in said)


def test_where_nothing_was_released_it_says_what_to_do():
    with pytest.raises(dp.InvalidArgument, match="leave out clip_diagnostics=None"):
        plot_clipping(counted(None), backend="none")


def test_draws_of_one_count_are_one_window():
    values = np.array([np.nan, 0.1, 0.1, 0.1, 0.3, 0.3, -0.2])
    middles, found, noise = _windows(values, np.full(7, 0.05))
    np.testing.assert_allclose(middles, [2.0, 4.5, 6.0])
    np.testing.assert_allclose(found, [0.1, 0.3, -0.2])
    np.testing.assert_allclose(noise, 0.05)
