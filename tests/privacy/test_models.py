"""Random models are refused or keep their declared sensitivity. Thousands of them: ``tools/models.py``."""

import numpy as np
import pymc as pm
import pytest
from models import Leak, adversarial, attack, campaign, compare

from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood, clip, likelihood

SEEDS = 50


@pytest.mark.parametrize(
    "first",
    [
        0,
        *(pytest.param(first, marks=pytest.mark.slow) for first in (5, 10, 15, 20, 25)),
        *(pytest.param(first, marks=pytest.mark.nightly) for first in range(30, SEEDS, 5)),
    ],
)
def test_random_models_are_refused_or_keep_their_sensitivity(first):
    """Hazards H15, H36 and H37: of any composition of operations and closures."""
    counts, leaks, _ = campaign(range(first, first + 5))
    assert leaks == {}
    assert sum(counts.values()) == 5


@pytest.mark.nightly
@pytest.mark.slow
def test_the_campaign_holds_models_of_every_fate():
    """Of harmless models hardly any is refused, of harmful ones hardly any accepted: else nothing is tested."""
    outcomes = [attack(seed, n_neighbours=0)[0] for seed in range(70)]
    survived = sum(outcome == "survived" for outcome in outcomes)
    refused = sum(outcome.startswith("refused") for outcome in outcomes)
    assert survived > 14
    assert refused > 14


def shared_row():
    """Two engines on neighbouring tables."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        pm.Normal(
            "y", pm.Data("x", rng.normal(size=(23, 3))) @ pm.Normal("b", shape=3), 1.0, observed=rng.normal(size=23)
        )
    rows = UnitLikelihood(read(model))
    return rows, rows.on_rows(adversarial(rows._table.rows, 3, rng))


@pytest.mark.parametrize("fault", ["bound", "clip"])
def test_a_broken_engine_is_found(fault, monkeypatch):
    one, other = shared_row()
    compare(one, other, np.array([1, 3, 7]))
    if fault == "bound":
        real = likelihood.ClippedSum
        monkeypatch.setattr(likelihood, "ClippedSum", lambda sums, grid, bound, n: real(sums, grid, 0.05 * bound, n))
    else:
        monkeypatch.setattr(clip, "shrunk", lambda bound, size: 1e6)
    one.__dict__.update(_pair={})
    other.__dict__.update(_pair={})
    with pytest.raises(Leak):
        compare(one, other, np.array([1, 3, 7]))
