"""How many units decisions clip: a Gaussian release of its own, on all units, that moves by at most 1."""

import math

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model
from hypothesis import given, settings, strategies as st

import pymc_dp as dp
from pymc_dp.accounting import BarkerReleases, GaussianReleases
from pymc_dp.model.view import read
from pymc_dp.release import MeteredCurator, curator
from pymc_dp.release.batches import BatchesWithoutReplacement
from pymc_dp.release.queries import DecisionClipCounts
from pymc_dp.rows import UnitLikelihood
from pymc_dp.run import sampling

N, BATCHES, TEMPERING = 12, BatchesWithoutReplacement(16, 30), 1.0


class NoNoise:
    """Records the integers that would be noised, and how much; draws no batch."""

    def __init__(self):
        self.asked = []

    def add(self, integers, scale):
        self.asked.append((integers.copy(), scale))
        return integers


@pytest.fixture(scope="module")
def rows():
    return UnitLikelihood(read(gaussian_model(np.arange(float(N)))))


def counted(rows, values, moves, noise_multiplier=3.0, paid=3.0, count=1):
    """Return the release, and the integers and scale that noise was asked for with, on a table of these values."""
    rows = rows.on_rows([np.asarray(values, dtype=np.float64)])
    noise = NoNoise()
    events = [BATCHES.decisions("decision", 1), *([GaussianReleases("clip_count", count, paid)] if count else [])]
    opened = MeteredCurator(rows, noise, "substitute", events)
    release = opened.release(DecisionClipCounts(moves, BATCHES, TEMPERING), noise_multiplier)
    ((integers, scale),) = noise.asked
    return release, integers, scale


NUMBERS = st.floats(allow_nan=False, width=64) | st.floats(-3, 3)
POINTS = st.floats(-20, 20).map(lambda at: np.array([at]))


@given(
    st.lists(NUMBERS, min_size=N, max_size=N),
    st.integers(0, N - 1),
    NUMBERS | st.just(math.nan),
    st.lists(st.tuples(POINTS, POINTS), min_size=1, max_size=4),
)
@settings(max_examples=60)
def test_a_replaced_unit_moves_the_count_by_no_more_than_its_sensitivity(rows, values, place, other, moves):
    neighbour = [other if unit == place else value for unit, value in enumerate(values)]
    (one, before, scale), (_, after, same) = (counted(rows, table, moves) for table in (values, neighbour))
    assert scale == same
    assert abs(int(before[0]) - int(after[0])) * 3.0 <= scale
    grid = one.noise_std / scale  # the mean is rounded down to it: one step more
    assert 3.0 <= one.noise_std <= 3.0 * (1 + grid) * (1 + 1e-14)


def test_the_worst_neighbour_moves_it_by_just_that(rows):
    moves = [(np.array([0.0]), np.array([0.1])), (np.array([0.0]), np.array([-0.1]))]
    (_, before, scale), (_, after, _) = (counted(rows, [value, *([0.0] * (N - 1))], moves) for value in (1e9, 0.0))
    assert abs(int(before[0]) - int(after[0])) * 3.0 == pytest.approx(scale, rel=1e-9)


def test_it_is_the_mean_over_moves_of_the_units_beyond_the_prescribed_bound(rows):
    bound = math.sqrt(16) / 30
    # Log-ratios from 0 to 2b are y · 2b - 2b², so those of units y > 1/2 + b are beyond b.
    near, far = (np.array([0.0]), np.array([0.0])), (np.array([0.0]), np.array([2 * bound]))
    values = [0.0] * 8 + [0.49 + bound, 0.51 + bound, 5.0, -5.0]
    release, _, _ = counted(rows, values, [near, far])
    assert release.value == pytest.approx([3 / 2], abs=1e-6)
    assert release.kind == "clip_count"


def test_counts_that_were_not_paid_for_are_refused(rows):
    moves = [(np.array([0.0]), np.array([1.0]))]
    values = np.zeros(N)
    with pytest.raises(dp.BudgetExceeded, match="was paid for"):
        counted(rows, values, moves, noise_multiplier=2.9)
    with pytest.raises(dp.BudgetExceeded, match="have been made"):
        counted(rows, values, moves, count=0)
    with pytest.raises(dp.PrivacyError, match="no move"):
        counted(rows, values, [])
    curator_of_others = MeteredCurator(rows, NoNoise(), "add-remove", [GaussianReleases("clip_count", 1, 1.0)])
    with pytest.raises(dp.PrivacyError, match="public"):
        curator_of_others.release(DecisionClipCounts(moves, BATCHES, TEMPERING), 1.0)


class LyingMoves(list):
    """Says that it has more moves than it has: a mean over fewer would move by more than is paid for."""

    def __len__(self):
        return 1000


def test_the_curator_counts_the_moves_itself(rows):
    moves = LyingMoves([(np.array([0.0]), np.array([0.1])), (np.array([0.0]), np.array([-0.1]))])
    told, _, scale = counted(rows, np.full(N, 1e9), moves)
    _, _, honest = counted(rows, np.full(N, 1e9), list(moves))
    assert scale == honest
    assert told.value == pytest.approx([N])


class Recorder:
    """Replays decisions and noisy answers of one run in another, and records what was noised."""

    def __init__(self):
        self.runs, self.answers, self.decisions, self.place = [], [], [], 0
        self.generator = np.random.default_rng(0)

    def begin(self):
        self.runs.append([])
        self.place = 0

    def words(self, count):
        return self.generator.integers(0, 2**64, size=count, dtype=np.uint64)

    def add(self, integers, scale):
        asked = self.runs[-1]
        asked.append((integers.copy(), scale))
        if len(self.answers) < len(asked):
            noise = np.rint(self.generator.normal(scale=scale, size=integers.size)).astype(np.int64)
            self.answers.append(integers + noise)
        return self.answers[len(asked) - 1]

    def decided(self, accepted):
        if len(self.runs) == 1:
            self.decisions.append(accepted)
        self.place += 1
        return self.decisions[self.place - 1]

    def for_chain(self, key):
        return self


@pytest.mark.few(2)
@pytest.mark.parametrize("replacement", [1e6, -np.inf, 1e308, 5e-324])
def test_a_whole_run_replayed_on_a_neighbour_moves_every_count_by_at_most_what_was_paid_for(replacement, monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(sampling, "SecureNoise", lambda: recorder)
    real = curator.happens
    # What is replayed is whether the move was accepted: the likelier side may be the other one on the neighbour.
    sides = []
    acceptance = curator.acceptance
    monkeypatch.setattr(curator, "acceptance", lambda *given: sides.append(acceptance(*given)) or sides[-1])
    monkeypatch.setattr(
        curator, "happens", lambda *given: recorder.decided(real(*given) == sides[-1][0]) == sides[-1][0]
    )
    y = gaussian_data(200)
    y[17] = replacement
    plans, published = [], []
    for table in (y, np.where(np.arange(200) == 17, 0.3, y)):
        recorder.begin()
        budget = dp.PrivacyBudget(500.0, 1e-6)
        with gaussian_model(table):
            step = dp.DPBarker(budget=budget, batch_size=60, tempering=0.1, proposal_scale=0.5)
            tree = pm.sample(draws=9, tune=3, chains=2, cores=1, step=step, random_seed=1, **QUIET)
        plans.append(budget.history[0])
        published.append(tree)
    assert plans[0] == plans[1]
    decisions, counts = plans[0].releases
    assert isinstance(decisions, BarkerReleases)
    assert isinstance(counts, GaussianReleases)
    one, other = recorder.runs
    assert len(one) == len(other) == counts.count == 2 * 5
    moved = 0
    for (before, scale), (after, same_scale) in zip(one, other, strict=True):
        assert scale == same_scale
        difference = abs(int(before[0]) - int(after[0]))
        assert difference * counts.noise_multiplier <= scale
        moved += difference > 0
    assert moved > 0 or replacement == 5e-324
    for name in ("posterior", "releases"):
        assert published[0][name].to_dataset().equals(published[1][name].to_dataset())


@pytest.mark.parametrize(("proposal_scale", "clipped"), [(0.001, False), (1.0, True)])
def test_a_run_says_whether_its_decisions_clip(proposal_scale, clipped):
    budget = dp.PrivacyBudget(100.0, 1e-6)
    with gaussian_model(gaussian_data(2000)):
        step = dp.DPBarker(budget=budget, batch_size=200, tempering=0.5, proposal_scale=proposal_scale, insecure_seed=0)
        tree = pm.sample(draws=400, chains=2, cores=1, step=step, initvals={"mu": 1.0}, **QUIET)
    found = dp.diagnostics.quality(tree)
    released = found.clip_fractions["decision"]
    assert 0.0 < released.noise_std < 0.02
    assert (released.fraction > 0.3) is clipped
    assert found.biased is clipped
    assert not found.usable


def test_counts_can_be_left_out_and_then_nothing_is_known():
    budget = dp.PrivacyBudget(100.0, 1e-6)
    with gaussian_model(gaussian_data(200)):
        step = dp.DPBarker(budget=budget, batch_size=60, proposal_scale=0.1, clip_diagnostics=None)
        tree = pm.sample(draws=5, chains=2, cores=1, step=step, **QUIET)
    assert {event.kind for event in budget.history[0].releases} == {"decision"}
    assert "clip_count" not in tree["releases"]
    assert not dp.diagnostics.quality(tree).clip_fractions
