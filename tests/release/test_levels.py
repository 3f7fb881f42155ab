"""Levels above a threshold: what leaves, how far one unit moves it, how often a level of one unit alone is shown."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from pymc_dp.accounting import GaussianReleases, ThresholdedReleases
from pymc_dp.exceptions import BudgetExceeded, PrivacyError
from pymc_dp.release import MeteredCurator, SecureNoise
from pymc_dp.release.levels import LevelCounts
from pymc_dp.release.surveys import UnitCounts
from pymc_dp.rows.levels import UnitLevels

MULTIPLIER, DELTA = 3.0, 1e-3
RELATIONS = ("substitute", "add-remove")
COLUMNS = ("ward", "job")


def units_of(rows, columns=COLUMNS):
    """Return the levels of units, one for each person in `rows`, which have (person, level, level, ...)."""
    table = [np.array([row[place] for row in rows], dtype=object) for place in range(len(columns) + 1)]
    piece = {**dict(zip(columns, table[1:], strict=True)), "person": table[0].astype(str)}
    return UnitLevels.of_pieces(columns, "person", [piece])


class ByLevel:
    """Adds noise that is the same for a level, whatever other levels there are, and keeps what it is added to."""

    def __init__(self, levels):
        self.levels, self.sums = (
            [(column, level) for column in levels.counts for level in sorted(levels.counts[column])],
            {},
        )

    def add(self, integers, scale):
        self.sums, self.scale = dict(zip(self.levels, map(int, integers), strict=True)), scale
        seeds = [[ord(letter) for letter in "".join(pair)] for pair in self.levels]
        return integers + np.array(
            [np.rint(np.random.default_rng(seed).normal(scale=scale)) for seed in seeds], dtype=np.int64
        )


def curator_of(levels, noise, relation="substitute", delta=DELTA, multiplier=MULTIPLIER):
    event = ThresholdedReleases("level_counts", 1, multiplier, delta)
    return MeteredCurator(levels, noise, relation, [event])


def released(levels, relation):
    """With a threshold that some counts of a small table are above."""
    noise = ByLevel(levels)
    return curator_of(levels, noise, relation, 0.45).release(LevelCounts(COLUMNS, 0.45), MULTIPLIER), noise


LEVEL = st.sampled_from(["a", "b", "c", "d", None])
PERSON = st.lists(st.tuples(LEVEL, LEVEL), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(PERSON, min_size=2, max_size=12), PERSON, st.sampled_from(RELATIONS))
def test_one_person_moves_counts_of_others_levels_by_what_noise_covers_and_no_others(people, other, relation):
    """Hazard H52: a person's levels are replaced by any others, or are not there; the noise of each level is frozen."""
    changed = [*people[:-1], other] if relation == "substitute" else people[:-1]
    (one, one_noise), (two, two_noise) = (
        released(units_of([(f"{k}", *row) for k, rows in enumerate(each) for row in rows]), relation)
        for each in (people, changed)
    )
    assert one_noise.scale == two_noise.scale
    grid = one.noise_std / one_noise.scale
    of_rest = units_of([(f"{k}", *row) for k, rows in enumerate(people[:-1]) for row in rows]).counts
    common = {(column, level) for column in COLUMNS for level in of_rest[column]}
    moved = {pair: one_noise.sums[pair] - two_noise.sums[pair] for pair in common}
    assert math.sqrt(sum(steps**2 for steps in moved.values())) * grid <= one.noise_std / MULTIPLIER * (1 + 1e-12)
    # All else is what the person has alone: a count of 1, of at most one level of each column.
    for noise in (one_noise, two_noise):
        alone = set(noise.sums) - common
        assert {noise.sums[pair] * grid for pair in alone} <= {1.0}
        assert max(map([column for column, _ in alone].count, COLUMNS)) <= 1
    # Whatever is not moved is published alike, in an order that follows what is published.
    still = {pair for pair, steps in moved.items() if not steps}
    shown = [dict(zip(each.levels, each.value.tolist(), strict=True)) for each in (one, two)]
    assert {pair: n for pair, n in shown[0].items() if pair in still} == {
        pair: n for pair, n in shown[1].items() if pair in still
    }
    for each in (one, two):
        assert list(each.levels) == sorted(
            each.levels, key=lambda pair, of=each: (-of.value[of.levels.index(pair)], pair)
        )


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_worst_person_moves_counts_by_just_that(relation):
    rows = [(f"{k}", *pair) for k, pair in enumerate([("a", "a"), ("b", "b"), ("a", "a")])]
    changed = [*rows[:-1], ("2", "b", "b")] if relation == "substitute" else rows[:-1]
    (one, before), (_, after) = (released(units_of(each), relation) for each in (rows, changed))
    steps = math.sqrt(sum((before.sums[pair] - after.sums[pair]) ** 2 for pair in before.sums))
    assert steps * one.noise_std / before.scale == pytest.approx(one.noise_std / MULTIPLIER, rel=1e-12)


def chance_above(threshold, scale):
    """Return how often 1 and discrete Gaussian noise on whole numbers are above a threshold, summed up exactly."""
    numbers = np.arange(-60 * math.ceil(scale), 60 * math.ceil(scale) + 1)
    weights = np.exp(-(numbers**2) / (2.0 * scale**2))
    return math.fsum(weights[1 + numbers > threshold]) / math.fsum(weights)


@pytest.mark.parametrize("scale", [0.7, 3.0, 20.0, 400.0])
@pytest.mark.parametrize(("delta", "columns"), [(0.3, 1), (0.01, 1), (1e-4, 3), (1e-7, 1), (1e-9, 40)])
def test_a_level_of_one_unit_is_shown_no_more_often_than_delta_says(scale, delta, columns):
    """Hazard H52: the probability is summed up, of noise on the coarsest grid there could be: that of whole numbers."""
    query = LevelCounts(tuple(map(str, range(columns))), delta)
    threshold = query.threshold(scale, 1.0)
    assert columns * chance_above(threshold, scale) <= delta
    # Without the two steps of that grid it is as low as it may be.
    assert columns * stats.norm.sf((threshold - 3.0) / scale) == pytest.approx(delta, rel=1e-9)


def test_a_level_of_one_unit_is_shown_as_often_as_was_paid_for():
    """With the noise that is really added: of 3,000 releases about a tenth, false alarms below 1e-6."""
    levels = units_of([("0", "alone", "a"), *((f"{k}", "a", "a") for k in range(1, 400))])
    shown = 0
    for _ in range(3000):
        found = curator_of(levels, SecureNoise(), delta=0.2).release(LevelCounts(COLUMNS, 0.2), MULTIPLIER)
        shown += ("ward", "alone") in found.levels
        assert {("ward", "a"), ("job", "a")} <= set(found.levels)
    low, high = stats.binom.interval(1.0 - 1e-6, 3000, 0.1)
    assert low <= shown <= high


def test_what_was_not_paid_for_touches_no_noise():
    """Hazard H52: a threshold that hides less, another noise, a second time, or a meter without thresholds."""
    levels = units_of([("0", "a", "a"), ("1", "a", "a")])
    noise = ByLevel(levels)
    curator = curator_of(levels, noise)
    for query, multiplier in ((LevelCounts(COLUMNS, 2 * DELTA), MULTIPLIER), (LevelCounts(COLUMNS, DELTA), 2.9)):
        with pytest.raises(BudgetExceeded):
            curator.release(query, multiplier)
    curator.release(LevelCounts(COLUMNS, DELTA), MULTIPLIER)
    with pytest.raises(BudgetExceeded):
        curator.release(LevelCounts(COLUMNS, DELTA), MULTIPLIER)
    noise.sums = {}
    paid = [GaussianReleases("level_counts", 1, MULTIPLIER)]
    with pytest.raises(BudgetExceeded, match="threshold"):
        MeteredCurator(levels, noise, "substitute", paid).release(LevelCounts(COLUMNS, DELTA), MULTIPLIER)
    assert not noise.sums


def test_of_levels_nothing_else_is_asked_and_of_rows_no_levels():
    levels = units_of([("0", "a", "a"), ("1", "a", "a")])
    query = UnitCounts((), np.zeros(0), np.array([0.0, 0.5, 1.0]))
    with pytest.raises(PrivacyError):
        MeteredCurator(levels, SecureNoise(), "substitute", [GaussianReleases(query.kind, 1, 1.0)]).release(query, 1.0)
    for columns, delta in (((), DELTA), (("ward", "ward"), DELTA), (COLUMNS, 0.0), (COLUMNS, 0.5), (COLUMNS, math.nan)):
        with pytest.raises(PrivacyError):
            curator_of(levels, SecureNoise()).release(LevelCounts(columns, delta), MULTIPLIER)


def test_a_table_without_levels_is_answered():
    levels = units_of([("0", None, None), ("1", None, None)])
    for relation in RELATIONS:
        found = curator_of(levels, SecureNoise(), relation).release(LevelCounts(COLUMNS, DELTA), MULTIPLIER)
        assert (found.value.size, found.levels) == (0, ())


def test_a_person_has_the_level_of_most_of_its_rows_and_of_several_such_the_first():
    rows = [("0", "b", "x"), ("0", "b", None), ("0", "a", None), ("1", "b", None), ("1", "a", None)]
    for shuffled in itertools.permutations(rows):
        found = units_of(shuffled)
        assert (found.counts, found.n_units, found.n_rows) == ({"ward": {"a": 1, "b": 1}, "job": {"x": 1}}, 2, 5)
    assert "confidential" in repr(found)
    assert "ward" not in repr(found)


def test_texts_that_have_no_encoding_are_counted():
    """Hazard H14: what one person's entries hold raises nothing."""
    plain, odd = (units_of([("a", text, "x"), ("b", "v", "y"), (text, "v", "y")]) for text in ("u", "\ud800"))
    assert odd.counts == {"ward": {"\ud800": 1, "v": 2}, "job": {"x": 1, "y": 2}}
    assert plain.n_units == odd.n_units == 3
