"""What is drawn of a description or a check was released, with its errors."""

import numpy as np
import pytest
import xarray as xr
from plotted_runs import MATPLOTLIB, axes, drawn, words

import pymc_dp as dp
from pymc_dp.plots import plot_check, plot_description

COUNTS = xr.Dataset(
    {
        "age": xr.Variable(("age_bin",), [30.0, 50.0, 20.0], attrs={"end": 90.0, "missing": 4.0}),
        "ward": xr.Variable(("ward_bin",), [75.0, 25.0], attrs={"end": 2.0, "missing": 0.0}),
    },
    coords={"age_low": ("age_bin", [0.0, 30.0, 60.0]), "ward_low": ("ward_bin", ["A", "B"])},
)
COLUMNS = xr.Dataset(
    {"quantile": (("column", "level"), [[20.0, 40.0], [np.nan, np.nan]])},
    coords={"column": ["age", "ward"], "level": [0.25, 0.5]},
)
FACTS = xr.Dataset(attrs={"private": 1, "epsilon": 1.0})
TREE = xr.DataTree.from_dict({"counts": COUNTS, "columns": COLUMNS, "privacy": FACTS})


def test_bins_have_their_shares_and_quantiles_stand_below():
    collection = plot_description(TREE, **MATPLOTLIB)
    line = drawn(collection, "shares_age")
    np.testing.assert_allclose(line.get_xdata(), [0, 30, 30, 60, 60, 90])
    np.testing.assert_allclose(line.get_ydata(), [30, 30, 50, 50, 20, 20])
    np.testing.assert_allclose(drawn(collection, "quantiles_age").get_offsets()[:, 0], [20.0, 40.0])


def test_levels_have_bars_with_their_names():
    collection = plot_description(TREE, var_names="ward", **MATPLOTLIB)
    assert list(axes(collection)) == ["ward"]
    assert {text.get_text() for text in axes(collection)["ward"].get_yticklabels()} == {"A", "B"}
    lengths = drawn(collection, "shares_ward").get_xdata().reshape(-1, 3)[:, 1]
    np.testing.assert_allclose(lengths, [75.0, 25.0])


def test_something_else_than_a_description_is_refused():
    with pytest.raises(dp.InvalidArgument, match="not a description"):
        plot_description(xr.DataTree.from_dict({"privacy": FACTS}))


def along(p_value, labels, edges, means):
    means = np.asarray(means)[:, None] * [1.0, 0.5]
    return xr.Dataset(
        {
            "mean": (("bin", "shape"), means),
            "error": (("bin", "shape"), np.full_like(means, 0.1)),
            "edge": ("between", np.array(edges)),
        },
        coords={"bin": labels, "shape": ["location", "spread"]},
        attrs={"p_value": p_value},
    )


CHECK = xr.DataTree.from_dict(
    {
        "along_predicted": along(0.25, ["below 1", "1 to 3", "from 3"], [1.0, 3.0], [0.3, -0.1, 0.2]),
        "along_ward": along(0.03, ["A", "B"], [0.5], [0.0, 0.4]),
        "all_rows": xr.Dataset(
            {"mean": ("shape", [0.1, -0.2]), "error": ("shape", [0.05, 0.06]), "p_value": ("shape", [0.1, 0.01])},
            coords={"shape": ["location", "spread"]},
        ),
        "privacy": xr.Dataset(attrs={"private": 1, "epsilon": 1.0}),
    }
)


def test_points_are_locations_by_bin():
    collection = plot_check(CHECK, **MATPLOTLIB)
    np.testing.assert_allclose(drawn(collection, "residuals_along_predicted").get_offsets()[:, 1], [0.3, -0.1, 0.2])
    np.testing.assert_allclose(drawn(collection, "residuals_all_rows").get_offsets()[:, 1], [0.1, -0.2])


def test_bars_hold_nine_in_ten():
    bars = drawn(plot_check(CHECK, **MATPLOTLIB), "noise_along_ward").get_ydata().reshape(-1, 3)
    np.testing.assert_allclose(bars[:, 1] - bars[:, 0], 2 * 1.645 * 0.1)
    np.testing.assert_allclose(bars[:, :2].mean(axis=1), [0.0, 0.4])


def test_axes_are_named():
    found = axes(plot_check(CHECK, **MATPLOTLIB))
    assert found["along_predicted"].get_xlabel() == "Mean that is predicted"
    assert found["along_ward"].get_title() == "p = 0.03"
    assert [text.get_text() for text in found["along_ward"].get_xticklabels()] == ["A", "B"]
    assert [text.get_text() for text in found["along_predicted"].get_xticklabels()] == ["1", "3"]
    assert "NOT PRIVATE" not in words(plot_check(CHECK, **MATPLOTLIB))


def test_something_else_than_a_check_is_refused():
    with pytest.raises(dp.InvalidArgument, match="not a check"):
        plot_check(xr.DataTree.from_dict({"privacy": xr.Dataset(attrs={"private": 1})}))
