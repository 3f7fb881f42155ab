import functools
import math
import os
import threading
from fractions import Fraction

import numpy as np
import pytest

from pymc_dp.accounting import GaussianReleases, PoissonGaussianReleases, WithoutReplacementGaussianReleases
from pymc_dp.exceptions import BudgetExceeded, NoPlan, PrivacyError
from pymc_dp.release import Curators, ExpansionPoint, InsecureNoise, MeteredCurator, SecureNoise, queries
from pymc_dp.release.batches import BatchesWithoutReplacement, PoissonBatches
from pymc_dp.release.meter import Meter
from pymc_dp.release.queries import ClipCounts, ClippingLoss, Curvature, GradientSum, LogRatioSum, UnitCount
from pymc_dp.release.query import PublicFacts, Query
from pymc_dp.rows import ClippedSum

THETA = np.zeros(2)


class FakeRows:
    n_units = 1000

    def __init__(self):
        self.touched = 0

    def clipped_gradient(self, theta, bound, grid, *, units=None, blocks=None):
        self.touched += 1
        return ClippedSum(np.array([2**30, -(2**30)]), grid, bound, 17)

    def clipped_log_ratio(self, theta, theta_new, bound, grid):
        self.touched += 1
        return ClippedSum(np.array([2**30]), grid, bound, 3)


class SilentNoise:
    """Records what is asked of it and adds nothing."""

    def __init__(self):
        self.asked = []

    def add(self, integers, scale):
        self.asked.append((integers.copy(), scale))
        return integers

    def for_chain(self, key):
        return self


def curator(rows=None, noise=None, relation="substitute", **counts):
    allowance = {"gradient": 2, "log_ratio": 2, "clip_count": 2} | counts
    paid = [GaussianReleases(kind, count, 3.0) for kind, count in allowance.items() if count]
    return MeteredCurator(rows or FakeRows(), noise or SilentNoise(), relation, paid)


@pytest.mark.parametrize(("relation", "factor"), [("substitute", 2.0), ("add-remove", 1.0)])
def test_noise_is_the_multiplier_times_the_sensitivity(relation, factor):
    """Hazards H8 and H12: accountants see noise divided by the sensitivity of the relation."""
    noise = SilentNoise()
    opened = curator(noise=noise, relation=relation)
    gradient = opened.release(GradientSum(THETA, 5.0), 3.0)
    ratio = opened.release(LogRatioSum(THETA, THETA + 1, 0.7), 4.0)
    assert gradient.noise_std == 3.0 * factor * 5.0
    assert ratio.noise_std == 4.0 * factor * 0.7
    for (integers, scale), release in zip(noise.asked, (gradient, ratio), strict=True):
        grid = release.value[0] / integers[0]
        assert scale == release.noise_std / grid


def test_a_release_beyond_the_plan_touches_no_data():
    """Hazard H19: a query that was not charged does not happen."""
    rows = FakeRows()
    opened = curator(rows, gradient=2, log_ratio=0)
    opened.release(GradientSum(THETA, 1.0), 3.0)
    opened.release(GradientSum(THETA, 1.0), 3.0)
    with pytest.raises(BudgetExceeded):
        opened.release(GradientSum(THETA, 1.0), 3.0)
    with pytest.raises(BudgetExceeded):
        opened.release(LogRatioSum(THETA, THETA, 1.0), 3.0)
    assert rows.touched == 2


@pytest.mark.parametrize("multiplier", [2.999, 0.0, -1.0, math.nan])
def test_less_noise_than_was_paid_for_is_refused(multiplier):
    rows = FakeRows()
    with pytest.raises(BudgetExceeded, match="paid for"):
        curator(rows).release(GradientSum(THETA, 1.0), multiplier)
    assert rows.touched == 0


def test_a_copy_in_another_process_releases_nothing(monkeypatch):
    """Hazard H19: a fork has an allowance of its own, which nobody paid for."""
    rows = FakeRows()
    opened = curator(rows)
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    with pytest.raises(PrivacyError, match="another process"):
        opened.release(GradientSum(THETA, 1.0), 3.0)
    assert rows.touched == 0


def test_noise_of_nan_is_not_enough_where_none_is_added():
    batches = BatchesWithoutReplacement(20, 30)
    meter = Meter([batches.decisions("decision", 1)])
    with pytest.raises(BudgetExceeded, match="was paid for"):
        meter.spend("decision", math.nan, batches, adds_noise=False)
    meter.spend("decision", 0.0, batches, adds_noise=False)


@pytest.mark.parametrize("bound", [0.0, math.inf])
def test_a_release_without_noise_never_leaves(bound):
    with pytest.raises((PrivacyError, ValueError, OverflowError)):
        curator(noise=SecureNoise()).release(GradientSum(THETA, bound), 3.0)


@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_the_grid_knows_no_protected_number_of_units(relation):
    """Hazard H11: public scales are equal for tables of any length."""
    grids = []
    for n_units in (10, 10**8):  # so many that exact sums would need a coarser grid
        rows = FakeRows()
        rows.n_units = n_units
        noise = SilentNoise()
        release = curator(rows, noise, relation).release(GradientSum(THETA, 1.0), 3.0)
        grids.append(release.value[0] / noise.asked[0][0][0])
    assert (grids[0] == grids[1]) == (relation == "add-remove")


@pytest.mark.parametrize(("relation", "bound", "added_again"), [("substitute", 0.5, 500.0), ("add-remove", 1.0, 0.0)])
def test_a_half_is_taken_off_losses_where_the_number_of_units_is_public(relation, bound, added_again):
    """A unit's loss is between 0 and 1: adding or removing one moves their sum by 1, and so does replacing one."""
    facts = PublicFacts(relation, 1000 if relation == "substitute" else None, 1)
    query = ClippingLoss(ExpansionPoint(THETA, np.eye(2), 1.0))
    assert query.bound(facts) * query.factor(facts) == 1.0
    assert query.bound(facts) == bound
    assert query.published(np.zeros(1), facts) == [added_again]


def test_the_number_of_units_is_released_where_it_is_protected():
    noise = SilentNoise()
    count = curator(noise=noise, relation="add-remove", unit_count=1).release(UnitCount(), 3.0)
    assert count.value == [1000.0]
    assert count.noise_std == 3.0  # one unit more or less moves it by 1
    ((steps, scale),) = noise.asked
    assert steps[0] / scale == 1000.0 / 3.0
    with pytest.raises(PrivacyError, match="public"):
        curator(unit_count=1).release(UnitCount(), 3.0)


def test_clip_counts_are_means_with_noise_for_their_windows():
    noise = SilentNoise()
    opened = curator(noise=noise, gradient=5)
    for _ in range(4):
        opened.release(GradientSum(THETA, 1.0), 3.0)
    opened.release(LogRatioSum(THETA, THETA + 1, 1.0), 3.0)
    noise.asked.clear()
    counts = opened.release(ClipCounts(), 3.0)
    assert counts.value == pytest.approx([17.0, 3.0])
    assert counts.noise_std == pytest.approx(3.0 * math.sqrt(2.0))
    # a unit's four gradient indicators move the mean by up to one: all means get the same noise
    ((means, scale),) = noise.asked
    assert scale / means[0] * 17 == pytest.approx(counts.noise_std)
    assert scale / means[1] * 3 == pytest.approx(counts.noise_std)
    assert opened.release(ClipCounts(), 3.0).value == pytest.approx([0.0, 0.0])  # counted anew
    with pytest.raises(BudgetExceeded):
        opened.release(ClipCounts(), 3.0)


def test_where_the_number_of_units_is_protected_it_is_released_with_noise():
    counts = curator(relation="add-remove").release(ClipCounts(), 3.0)
    assert counts.value == pytest.approx([0.0, 0.0, 1000.0])
    assert counts.noise_std == pytest.approx(3.0 * math.sqrt(3.0))


def test_a_window_without_evaluations_still_has_noise():
    assert np.all(curator(noise=InsecureNoise(0)).release(ClipCounts(), 3.0).value != 0.0)


def test_no_more_curators_than_planned_and_none_after_the_run():
    make_curator = functools.partial(MeteredCurator, FakeRows(), relation="substitute")
    in_chain, once = [GaussianReleases("gradient", 1, 1.0)], [GaussianReleases("score", 1, 1.0)]
    curators = Curators(make_curator, SecureNoise(), 2, in_chain, once)
    curators.open_once()
    with pytest.raises(NoPlan, match="has been released"):
        curators.open_once()
    curators.open((0,))
    curators.open((1,))
    with pytest.raises(NoPlan, match="2 chains"):
        curators.open((2,))
    curators.close()
    with pytest.raises(NoPlan, match="is over"):
        curators.open((0,))


def test_nothing_confidential_in_text():
    for thing in (curator(), ClippedSum(np.array([123456789]), 1.0, 2.0, 77)):
        assert "123456789" not in repr(thing)
        assert "77" not in repr(thing)


class EverybodyPoisson(PoissonBatches):
    """Says q = .01 and takes everybody; learns how many there are."""

    def draw(self, entropy, n_units):
        self.__dict__["learned"] = n_units
        return np.arange(n_units)


class EverybodyFixed(BatchesWithoutReplacement):
    def draw(self, entropy, n_units):
        return np.arange(n_units)

    def covered_by(self, event):
        return True


@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_a_batch_object_of_the_samplers_own_is_refused(relation):
    """Hazard H40: the curator draws from a plain description."""
    if relation == "substitute":
        event = WithoutReplacementGaussianReleases("gradient", 1, 1.0, 10, 1000)
        batches = EverybodyFixed(10, 1000)
    else:
        event = PoissonGaussianReleases("gradient", 1, 1.0, 0.01)
        batches = EverybodyPoisson(0.01)
    rows = FakeRows()
    opened = MeteredCurator(rows, SilentNoise(), relation, [event])
    with pytest.raises(PrivacyError, match="described by"):
        opened.release(GradientSum(THETA, 1.0, batches=batches), 1.0)
    assert rows.touched == 0
    assert "learned" not in batches.__dict__


def test_every_release_is_of_a_fresh_batch():
    """Composition asks for it; two batches of these are alike once in 10**23 runs."""
    drawn = []

    class Rows(FakeRows):
        def clipped_gradient(self, theta, bound, grid, *, units=None, blocks=None):
            drawn.append(tuple(units))
            return ClippedSum(np.array([0, 0]), grid, bound, 0)

    batches = BatchesWithoutReplacement(10, 1000)
    event = batches.releases("gradient", 3, 1.0)
    opened = MeteredCurator(Rows(), SecureNoise(), "substitute", [event])
    for _ in range(3):
        opened.release(GradientSum(THETA, 1.0, batches=batches), 1.0)
    assert len(set(drawn)) == 3


class Changing(ExpansionPoint):
    """Asks for weights by one bound and for noise by another."""

    asked = 0

    def __getattribute__(self, name):
        if name == "clip_curvature":
            Changing.asked += 1
            return 1000.0 if Changing.asked == 1 else 1e-6
        return super().__getattribute__(name)


def test_what_a_centre_says_is_asked_once():
    """Hazard H40: sensitivities are those of the bound that rows were clipped with."""

    class Rows(FakeRows):
        def expansion(self, centre):
            class Expansion:
                def curvature(self, grid):
                    return ClippedSum(np.array([0, 0, 0]), grid, centre.clip_curvature, 0)

            assert type(centre) is ExpansionPoint
            return Expansion()

    centre = Changing(THETA, np.eye(2), 1.0, 1000.0)
    Changing.asked = 0
    assert curator(Rows(), curvature=1).release(Curvature(centre), 3.0).noise_std == 3.0 * 2.0 * 1000.0


def test_rows_that_overflow_warn_nowhere():
    """Hazard H22: every method of the curator is silent, those on batches too."""

    class Rows(FakeRows):
        def clipped_gradient(self, theta, bound, grid, *, units=None, blocks=None):
            np.float64(1e308) * np.float64(1e10)
            return ClippedSum(np.array([1, 1]), grid, bound, 0)

    event = PoissonGaussianReleases("gradient", 1, 1.0, 0.01)
    opened = MeteredCurator(Rows(), SecureNoise(), "add-remove", [event])
    with np.errstate(all="raise"):
        opened.release(GradientSum(THETA, 1.0, batches=PoissonBatches(0.01)), 1.0)


@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_a_unit_that_moves_every_count_is_paid_for_to_the_last_bit(relation):
    """One unit moves each mean by at most 1, all of them together: noise that is rounded down is too little."""
    for multiplier in np.random.default_rng(0).uniform(3.0, 50.0, size=200):
        noise = SilentNoise()
        opened = curator(noise=noise, relation=relation)
        for place in range(2):
            opened.release(GradientSum(THETA, 5.0), 3.0)
            opened.release(LogRatioSum(THETA, THETA + place + 1, 0.7), 3.0)
        del noise.asked[:]
        counts = opened.release(ClipCounts(), float(multiplier))
        ((integers, scale),) = noise.asked
        one = Fraction(int(integers[0])) / Fraction(counts.value[0])  # what moves the mean by 1, in steps
        assert one.denominator == 1
        cost = len(integers) * ((one + 1) / Fraction(scale)) ** 2  # a step more by rounding down
        assert cost * Fraction(float(multiplier)) ** 2 <= 1


class Widened(GradientSum):
    """Says that its contributions are short."""

    def bound(self, facts):
        return 1e-3


def test_a_query_of_a_samplers_own_class_is_refused():
    """Hazard H40: what a query says of itself is the package's own code."""
    rows = FakeRows()
    with pytest.raises(PrivacyError, match="answers no Widened"):
        curator(rows).release(Widened(THETA, 5.0), 3.0)
    assert rows.touched == 0


class Quiet(float):
    """A clip bound that makes its own noise small."""

    def __rmul__(self, other):
        return 1e-9


def test_a_query_is_copied_before_it_is_paid_for():
    """Hazard H40: a sampler that changes its query after it was made, or meanwhile, changes nothing."""
    query = GradientSum(THETA.copy(), 5.0)
    object.__setattr__(query, "clip_bound", Quiet(5.0))

    class Rows(FakeRows):
        def clipped_gradient(self, theta, bound, grid, *, units=None, blocks=None):
            object.__setattr__(query, "clip_bound", 1e-3)
            return ClippedSum(np.array([1, 1]), grid, bound, 0)

    opened = curator(Rows())
    theta = query.theta
    released = opened.release(query, 3.0)
    theta += 1.0
    assert released.noise_std == 3.0 * 2.0 * 5.0
    assert np.array_equal(released.where[0], THETA)


def test_a_curator_answers_one_thread_after_the_other():
    """Hazard H40: of several at once, each could find the last release paid for."""
    answered = []

    class Noise(SilentNoise):
        def add(self, integers, scale):
            if not self.asked:
                other.start()
                other.join(0.2)
                answered.append("first" if other.is_alive() else "second within the first")
            return super().add(integers, scale)

    opened = curator(noise=Noise(), gradient=2)
    other = threading.Thread(target=lambda: answered.append(opened.release(GradientSum(THETA, 5.0), 3.0).kind))
    opened.release(GradientSum(THETA, 5.0), 3.0)
    other.join()
    assert answered == ["first", "gradient"]


@pytest.mark.parametrize("wrong", ["bound", "grid"])
def test_a_sum_that_was_clipped_otherwise_is_not_released(wrong):
    class Rows(FakeRows):
        def clipped_gradient(self, theta, bound, grid, *, units=None, blocks=None):
            longer, coarser = (1.001, 1.0) if wrong == "bound" else (1.0, 2.0)
            return ClippedSum(np.array([1, 1]), coarser * grid, longer * bound, 0)

    with pytest.raises(PrivacyError, match="not clipped as the query says"):
        curator(Rows()).release(GradientSum(THETA, 5.0), 3.0)


def test_every_query_that_is_defined_is_listed():
    def concrete(parent):
        for child in parent.__subclasses__():
            yield from concrete(child)
            if not getattr(child, "__abstractmethods__", None) and child.__module__.startswith("pymc_dp."):
                yield child

    assert set(concrete(Query)) == set(queries.QUERIES)
