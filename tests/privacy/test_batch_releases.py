"""Releases on batches: neighbouring tables, the same batches, and no more difference than was paid for."""

import math
from unittest import mock

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model
from hypothesis import given, settings, strategies as st
from neighbours import Neighbour
from replay import replay
from test_nothing_leaks import canary_model

import pymc_dp as dp
from pymc_dp.model.view import read
from pymc_dp.release import MeteredCurator, curator
from pymc_dp.release.batches import BatchesWithoutReplacement, PoissonBatches, drawn
from pymc_dp.release.queries import GradientSum
from pymc_dp.rows import UnitLikelihood

N = 200
BATCHES = {
    "add-remove": {"sampling_probability": 0.3},
    "substitute": {"batch_size": 60},
}


def step_of(name, budget, **settings):
    on_batches = BATCHES[budget.relation]
    made = {
        "sghmc": (dp.DPSGHMC, {"friction": 400.0, "n_leapfrog": 2, "step_size": 0.05, "mass_matrix": [200.0]}),
        "sgld": (dp.DPSGLD, {"step_size": (0.01, 0.3), "mass_matrix": [200.0]}),
        "sgnht": (dp.DPSGNHT, {"diffusion": 400.0, "n_steps": 2, "step_size": 0.05, "mass_matrix": [200.0]}),
        "minibatch-penalty": (dp.DPMinibatchPenalty, {"clip_log_ratio": 4.0, "proposal_scale": 0.1, "tempering": 0.1}),
    }
    step_class, own = made[name]
    clip = {} if name == "minibatch-penalty" else {"clip_gradient": 4.0}
    return step_class(budget=budget, **(clip | own | on_batches | settings))


def samplers():
    """Return each sampler on batches with a relation to be tried at every change, and the others at night."""
    for name in ("sghmc", "sgld", "sgnht", "minibatch-penalty"):
        for relation in ("substitute", "add-remove"):
            plain = (name, relation) in (("sghmc", "add-remove"), ("sgld", "substitute"), ("sgnht", "substitute"))
            yield pytest.param(name, relation, marks=[] if plain else pytest.mark.nightly)


@pytest.mark.parametrize(("name", "relation"), list(samplers()))
def test_neighbouring_tables_differ_by_no_more_than_was_paid_for(name, relation):
    """Hazard H11: no request depends on n, and nothing is divided by a batch's size."""
    if name == "minibatch-penalty" and relation == "add-remove":
        pytest.skip("not accounted for under this relation")
    y = gaussian_data(N)
    change, first = ("added", y[:-1]) if relation == "add-remove" else ("replaced", np.append(y[:-1], 0.3))
    report = replay(
        lambda rows: gaussian_model(rows["y"]),
        {"y": first},
        [
            Neighbour({"y": np.append(y[:-1], odd)}, change, N - 1, f"{odd}")
            for odd in (0.0, 1e6, -np.inf, np.nan, 1e308, 5e-324)
        ],
        lambda budget: step_of(name, budget),
        relation=relation,
        epsilon=500.0,
        draws=5,
        tune=2,
    )
    assert report.violations == []
    plan = report.first.plan
    assert len([each for each in report.first.requests if each.additions]) == sum(e.count for e in plan.releases)
    for comparison in report.comparisons:  # it takes part in some batches, not in all
        assert 0 < comparison.moved < comparison.releases


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["sgld", "sghmc", "sgnht"])
def test_two_tables_with_the_same_releases_publish_the_same_tree(name):
    report = replay(
        lambda rows: canary_model(float(rows["offset"][0])),
        {"offset": np.array([0.0])},
        [Neighbour({"offset": np.array([3.0])}, "replaced", 0)],
        lambda budget: step_of(name, budget, mass_matrix=None),
        relation="add-remove",
        epsilon=500.0,
        real_loop=True,
    )
    assert report.comparisons[0].published_alike


class NoNoise:
    """Records the integers that would be noised, and how much."""

    def __init__(self):
        self.asked = []

    def add(self, integers, scale):
        self.asked.append((integers.copy(), scale))
        return integers

    def words(self, count):
        return np.random.default_rng(3).integers(0, 2**64, size=count, dtype=np.uint64)


def table_of(values):
    """Return the rows of a normal model with these data, compiled once."""
    return TEMPLATE[len(values)].on_rows([np.asarray(values, dtype=np.float64)])


TEMPLATE = {}


@pytest.fixture(scope="module", autouse=True)
def template():
    for n in (11, 12):
        TEMPLATE[n] = UnitLikelihood(read(gaussian_model(np.arange(float(n)))))


NUMBERS = st.floats(allow_nan=False, width=64) | st.floats(-3, 3)


def moved_by_a_neighbour(relation, batches, values, place, other, bound, counted, units):
    """Return how far a batch's integers move when a unit is replaced or removed, and the noise they get."""
    asked = []
    for changed in (False, True):
        table, batch = list(values), list(units)
        if changed and relation == "substitute":
            table[place] = other
        elif changed:  # the others keep their coins
            del table[place]
            batch = [unit - (unit > place) for unit in units if unit != place]
        noise = NoNoise()
        events = [batches.releases("gradient", 1, 1.0)]
        opened = MeteredCurator(table_of(table), noise, relation, events)
        with mock.patch.object(curator, "drawn", return_value=np.array(batch, dtype=np.int64)):
            opened.release(GradientSum(np.zeros(1), bound, batches=batches, counted=counted), 1.0)
        asked += noise.asked
    (before, scale), (after, same) = asked
    assert scale == same
    return math.sqrt(sum(int(difference) ** 2 for difference in before - after)), scale


SAMPLED = {"substitute": BatchesWithoutReplacement(5, 12), "add-remove": PoissonBatches(0.4)}


@given(st.lists(NUMBERS, min_size=12, max_size=12), st.integers(0, 11), NUMBERS, st.floats(0.1, 3.0), st.booleans())
@settings(max_examples=60)
def test_a_batch_sum_moves_by_no_more_than_its_sensitivity(values, place, other, bound, counted):
    for relation, batches in SAMPLED.items():
        units = drawn(batches, NoNoise(), 12)
        moved, scale = moved_by_a_neighbour(relation, batches, values, place, other, bound, counted, units)
        assert moved <= scale


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("relation", SAMPLED)
def test_the_worst_neighbour_moves_it_by_just_that(relation, counted):
    """A clipped unit is removed, or replaced by one that points the other way and just escapes the clip."""
    values, bound = [1e9, *([0.0] * 11)], 2.0
    barely = -bound * (1 - 1e-9)
    moved, scale = moved_by_a_neighbour(relation, SAMPLED[relation], values, 0, barely, bound, counted, range(5))
    assert 1 - 1e-6 < moved / scale <= 1


def test_an_empty_batch_is_released_like_any_other():
    """Hazard H14: an empty batch takes the same way."""
    batches = PoissonBatches(1e-12)
    events = [batches.releases("gradient", 1, 1.0)]
    noise = NoNoise()
    opened = MeteredCurator(table_of(np.arange(12.0)), noise, "add-remove", events)
    release = opened.release(GradientSum(np.zeros(1), 2.0, batches=batches, counted=True), 1.0)
    assert list(noise.asked[0][0]) == [0, 0, 0]
    assert release.noise_std == 2.0 * batches.count_factor


@pytest.mark.slow
def test_counts_ride_along_and_are_near_the_truth():
    y = np.concatenate([np.zeros(900), np.full(100, 50.0)])
    for relation in ("add-remove", "substitute"):
        budget = dp.PrivacyBudget(1000.0, 1e-6, relation)
        settings = {"mass_matrix": [1000.0], "step_size": 0.1}
        if relation == "substitute":
            settings["batch_size"] = 300
        with gaussian_model(y, prior_std=0.1):
            step = step_of("sgld", budget, n_steps=20, **settings)
            tree = pm.sample(draws=150, chains=2, cores=1, step=step, initvals={"mu": 0.0}, **QUIET)
        assert {event.kind for event in budget.history[0].releases} == {"gradient"}
        fractions = tree["sample_stats"]["clip_fraction_gradient"].values
        noise = float(tree["releases"]["clip_count_noise_std"].max()) / 1000
        assert 0 < noise < 0.02
        assert fractions == pytest.approx(0.1, abs=6 * noise + 0.01)
        if relation == "add-remove":
            assert "n_units" not in tree["privacy"].attrs
