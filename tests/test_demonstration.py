"""The demonstration: synthetic tables are as they should be, and it runs from end to end."""

import numpy as np
import pytest
import xarray as xr

from pymc_dp import __main__ as demonstration


def test_synthetic_tables_have_the_surveys_shape_and_bounds():
    features, visited = demonstration.simulated_table(seed=0)
    real, _ = demonstration.survey()
    assert features.shape == real.shape == (20190, 10)
    assert set(np.unique(visited)) == {0, 1}
    np.testing.assert_array_equal(features[:, 0], 1.0)
    # Public knowledge was enough: no column of the survey is more than a quarter beyond the synthetic one.
    assert np.all(np.abs(real).max(axis=0) <= 1.25 * np.abs(features).max(axis=0))


def test_synthetic_tables_do_not_read_the_survey(monkeypatch):
    monkeypatch.setattr(demonstration, "survey", lambda: pytest.fail("the survey was read"))
    again = [demonstration.simulated_table(seed=5) for _ in range(2)]
    np.testing.assert_array_equal(*[features for features, _ in again])


@pytest.mark.slow
def test_the_demonstration_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demonstration, "OUTPUT", tmp_path / "out")
    monkeypatch.setattr(demonstration, "DRAWS", 50)
    demonstration.main()
    said = capsys.readouterr().out
    assert "epsilon 4 at delta 1e-06, substitute" in said
    assert "NOT PRIVATE" in said.split("How good it is")[1]
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 10_000
    with xr.open_datatree(tmp_path / "out" / "private.nc") as tree:
        assert tree["privacy"].attrs["private"]
        assert set(tree.children) == {"posterior", "sample_stats", "releases", "privacy", "unwidened"}
        assert dict(tree["posterior"].sizes) == {"chain": 4, "draw": 50, "feature": 10}
