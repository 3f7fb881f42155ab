"""What is drawn of a description was released."""

import numpy as np
import pytest
import xarray as xr
from plotted_runs import MATPLOTLIB, axes, drawn

import pymc_dp as dp
from pymc_dp.plots import plot_description

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


def test_something_else_is_refused():
    with pytest.raises(dp.InvalidArgument, match="no description"):
        plot_description(xr.DataTree.from_dict({"privacy": FACTS}))
