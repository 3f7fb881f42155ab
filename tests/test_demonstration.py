"""The demonstration: its covariates are on a common scale, and it runs from end to end."""

import numpy as np
import pytest
import xarray as xr

from pymc_dp import __main__ as demonstration


def test_the_survey_is_centred_and_scaled_by_public_numbers():
    features, visited = demonstration.survey()
    assert features.shape == (20190, 10)
    assert set(np.unique(visited)) == {0, 1}
    np.testing.assert_array_equal(features[:, 0], 1.0)
    assert features.min() >= -1.0
    assert dict(zip(demonstration.FEATURES, np.ceil(features.max(axis=0)), strict=True)) == {
        **dict.fromkeys(demonstration.FEATURES, 1.0),
        "log coinsurance": 2.0,
        "log max. expense": 2.0,
        "chronic diseases": 5.0,
    }


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
        assert set(tree.children) == {"posterior", "sample_stats", "releases", "privacy", "private_likelihood"}
        assert dict(tree["posterior"].sizes) == {"chain": 4, "draw": 50, "feature": 10}
