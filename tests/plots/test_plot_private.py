"""The private posterior beside a reference."""

import arviz as az
import numpy as np
import pytest
import xarray as xr
from plotted_runs import MATPLOTLIB, counted, searched

import pymc_dp as dp
from pymc_dp.plots import plot_private

PRIVATE, REFERENCE = "private", "reference"


def intervals(collection, name):
    """The interval of a variable, by model."""
    lines = collection.viz["credible_interval"][name]
    return {str(model): np.asarray(lines.sel(model=model).item().get_xdata()) for model in lines["model"].values}


def eti(draws, prob=0.9):
    return np.quantile(draws, [0.5 - prob / 2.0, 0.5 + prob / 2.0])


def test_intervals_are_those_of_the_draws():
    found = intervals(plot_private(searched(), **MATPLOTLIB), "sigma")
    np.testing.assert_allclose(found[PRIVATE], eti(searched()["posterior"]["sigma"].values), rtol=1e-3)


def test_densities_are_of_each_set_of_draws():
    lines = plot_private(searched(), **MATPLOTLIB).viz["dist"]["sigma"]
    expected = az.kde(searched()["posterior"]["sigma"], dim=["chain", "draw"])
    np.testing.assert_allclose(lines.sel(model=PRIVATE).item().get_xdata(), expected.sel(plot_axis="x"))
    np.testing.assert_allclose(lines.sel(model=PRIVATE).item().get_ydata(), expected.sel(plot_axis="y"))


def reference(n_chains=3, n_draws=70, **change):
    generator = np.random.default_rng(3)
    shape = (n_chains, n_draws)
    variables = {
        "beta": (("chain", "draw", "beta_dim_0"), generator.normal(2.0, 0.1, (*shape, 2))),
        "sigma": (("chain", "draw"), generator.normal(0.7, 0.1, shape)),
        "part": (("chain", "draw"), generator.normal(0.5, 0.1, shape)),
    }
    return xr.Dataset({**variables, **change}).rename(beta_dim_0="feature")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_reference_of_another_length_is_drawn_beside(wrapped):
    other = reference()
    passed = xr.DataTree.from_dict({"posterior": other}) if wrapped else other
    collection = plot_private(searched(), passed, ci_prob=0.5, **MATPLOTLIB)
    np.testing.assert_allclose(intervals(collection, "sigma")[REFERENCE], eti(other["sigma"].values, 0.5), rtol=1e-3)
    lines = collection.viz["credible_interval"]["beta"].sel(model=REFERENCE, feature="slope")
    np.testing.assert_allclose(lines.item().get_xdata(), eti(other["beta"].values[:, :, 1], 0.5), rtol=1e-3)
    said = [text.get_text() for text in collection.viz["figure"].item().legends[0].get_texts()]
    assert said == [PRIVATE, REFERENCE]


def test_a_run_alone_needs_no_legend():
    collection = plot_private(counted(), **MATPLOTLIB)
    assert list(intervals(collection, "mu")) == [PRIVATE]
    assert "legend" not in collection.viz.children


def test_variables_and_entries_are_chosen():
    collection = plot_private(searched(), var_names=["beta"], coords={"feature": ["slope"]}, **MATPLOTLIB)
    assert list(collection.viz["plot"].data_vars) == ["beta"]
    assert collection.viz["plot"]["beta"].sizes == {"feature": 1}


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        (reference().drop_vars("sigma"), "no variable 'sigma'"),
        (reference().isel(feature=[0]), "other lengths of 'beta'"),
        (xr.DataTree(), "no group `posterior`"),
        ("NUTS", "must be a DataTree or a Dataset, not a str"),
    ],
)
def test_references_of_other_variables_are_refused(passed, message):
    with pytest.raises(dp.InvalidArgument, match=message):
        plot_private(searched(), passed, backend="none")


@pytest.mark.parametrize(
    "change", [{"var_names": "tau"}, {"var_names": ["~beta", "~sigma", "~part"]}, {"ci_prob": 1.0}]
)
def test_arguments_out_of_range_are_refused(change):
    with pytest.raises(dp.InvalidArgument):
        plot_private(searched(), backend="none", **change)


def test_what_was_added_after_the_run_is_not_drawn():
    """It may be computed from rows, as predictions at the people's own covariates are."""
    tree = searched().copy()
    tree["posterior"] = tree["posterior"].to_dataset().assign(prediction=tree["posterior"]["sigma"] * 2.0)
    assert "prediction" not in plot_private(tree, **MATPLOTLIB).viz["plot"].data_vars
    with pytest.raises(dp.InvalidArgument, match="nothing is called 'prediction'"):
        plot_private(tree, var_names="prediction", backend="none")
