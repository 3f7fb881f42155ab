import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from pymc_dp.accounting import BarkerReleases, GaussianReleases, PoissonGaussianReleases
from pymc_dp.exceptions import BudgetExceeded, InvalidArgument, PrivacyError
from pymc_dp.release import InsecureNoise, SecureNoise, batches as module
from pymc_dp.release.batches import (
    BatchesWithoutReplacement,
    PoissonBatches,
    distinct_below,
    drawn,
    geometric_gaps,
    uniform_below,
)
from pymc_dp.release.meter import Meter

#: Every chi-square test here is wrong once in 100,000 runs, and the seeds are fixed.
FALSE_ALARMS = 1e-5
SAMPLERS = {
    "poisson": PoissonBatches(0.3),
    "poisson-mostly": PoissonBatches(0.8),
    "without-replacement": BatchesWithoutReplacement(4, 12),
    "without-replacement-mostly": BatchesWithoutReplacement(9, 12),
}


def inclusion(batches, n_units, draws, seed=0, entropy=None, draw=drawn):
    """Return which units were in each of many batches, shape (draws, units)."""
    entropy = entropy or InsecureNoise(seed)
    taken = np.zeros((draws, n_units), dtype=bool)
    for row in taken:
        units = draw(batches, entropy, n_units)
        assert np.all(np.diff(units) > 0)
        row[units] = True
    return taken


def pair_probability(batches, n_units):
    q = batches.sampling_probability
    if isinstance(batches, PoissonBatches):
        return q * q
    b = batches.batch_size
    return b * (b - 1) / (n_units * (n_units - 1))


def suspicious(taken, batches):
    """Return the smallest p-value of tests on single units, on disjoint pairs of units, and on sizes."""
    draws, n = taken.shape
    q, both = batches.sampling_probability, pair_probability(batches, n)
    p_values = []
    for shift in range(n // 2):  # each unit, and each pair of units this far apart, in draws of its own: independent
        rows = taken[shift :: n // 2]
        for i in range(n):
            p_values.append(stats.binomtest(int(rows[:, i].sum()), len(rows), q).pvalue)
            j = (i + shift + 1) % n
            p_values.append(stats.binomtest(int((rows[:, i] & rows[:, j]).sum()), len(rows), both).pvalue)
    sizes = taken.sum(axis=1)
    if isinstance(batches, PoissonBatches):
        expected = stats.binom.pmf(np.arange(n + 1), n, q) * draws
        keep = expected > 5
        observed = np.bincount(sizes, minlength=n + 1)
        cells = np.append(observed[keep], observed[~keep].sum()), np.append(expected[keep], expected[~keep].sum())
        p_values.append(stats.chisquare(*cells).pvalue)
    else:
        assert np.all(sizes == batches.batch_size)
    return min(p_values) * len(p_values)


@functools.cache
def of_sampler(name):
    return inclusion(SAMPLERS[name], 12, 20_000)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] if "mostly" in each else []) for each in SAMPLERS]
)
def test_units_and_pairs_of_units_take_part_as_often_as_they_are_accounted_for(name):
    """Hazard H10: batches are drawn as they are accounted for."""
    assert suspicious(of_sampler(name), SAMPLERS[name]) > FALSE_ALARMS


def test_the_operating_systems_entropy_gives_the_same_law():
    for batches in SAMPLERS.values():
        assert suspicious(inclusion(batches, 12, 5_000, entropy=SecureNoise()), batches) > FALSE_ALARMS


def neighbours_together(batches, entropy, n_units):
    """The right marginal probabilities, but units come in pairs."""
    return np.ravel([(2 * i, 2 * i + 1) for i in drawn(batches, entropy, n_units // 2)]).astype(int)


def test_the_test_of_pairs_catches_units_that_come_together():
    taken = inclusion(PoissonBatches(0.3), 12, 5_000, draw=neighbours_together)
    assert abs(taken.mean() - 0.3) < 0.01
    assert suspicious(taken, PoissonBatches(0.3)) < FALSE_ALARMS


def test_the_test_catches_batches_of_fixed_size_that_are_accounted_for_as_poisson():
    assert SAMPLERS["without-replacement"] == BatchesWithoutReplacement(4, 12)
    assert suspicious(of_sampler("without-replacement"), PoissonBatches(4 / 12)) < FALSE_ALARMS


@pytest.mark.parametrize("q", [1e-4, 0.02, 0.5, 0.97])
def test_gaps_are_geometric(q):
    gaps = geometric_gaps(InsecureNoise(1), q, 200_000, 10**9)
    edges = np.unique(stats.geom.ppf(np.linspace(0.02, 0.98, 40), q).astype(int)) - 1
    cells = np.searchsorted(edges, gaps, side="left")
    cumulated = np.concatenate([[0], stats.geom.cdf(edges + 1, q), [1]])
    keep = np.diff(cumulated) > 1e-4
    observed = np.bincount(cells, minlength=len(keep))
    p = stats.chisquare(
        observed[keep], np.diff(cumulated)[keep] / np.diff(cumulated)[keep].sum() * observed[keep].sum()
    )
    assert p.pvalue > FALSE_ALARMS


class Bits:
    """Gives prescribed words."""

    def __init__(self, *words):
        self.left = list(words)

    def words(self, count):
        return np.array([self.left.pop(0) for _ in range(count)], dtype=np.uint64)


def exact_gap(bits, q):
    """Return floor(ln U / ln(1 - q)) in rational arithmetic: the largest g with (1 - q)^g >= U."""
    u, gap, power = Fraction(0), 0, Fraction(1)
    for place, word in enumerate(bits):
        u += Fraction(word, 2 ** (64 * (place + 1)))
    u += Fraction(1, 2 ** (64 * len(bits) + 1))
    while power * (1 - Fraction(q)) >= u:
        power *= 1 - Fraction(q)
        gap += 1
    return gap


@pytest.mark.parametrize("q", [0.5, 0.25, 0.1, 0.7])
def test_gaps_at_the_edge_of_an_integer_are_settled_exactly(q, monkeypatch):
    asked = []
    settle = module._settled_gap
    monkeypatch.setattr(module, "_settled_gap", lambda *a: asked.append(1) or settle(*a))
    for power in range(1, 12):
        edge = int((1 - Fraction(q)) ** power * 2**64)
        for word in range(edge - 2, edge + 3):
            following = [12345, 2**63 + 7, 3]
            found = geometric_gaps(Bits(word, *following), q, 1, 10**9)[0]
            assert found == exact_gap([word, *following], q)
    assert asked  # floating point alone does not decide these


@pytest.mark.parametrize("word", [0, 1, 5, 2**20 - 1])
def test_tiny_uniforms_are_settled_exactly(word):
    following = [2**63 + 11, 17, 5]
    assert geometric_gaps(Bits(word, *following), 0.3, 1, 10**9)[0] == exact_gap([word, *following], 0.3)


def test_a_gap_beyond_the_table_ends_the_batch():
    class Zeros:
        def words(self, count):
            return np.zeros(count, dtype=np.uint64)

    assert len(drawn(PoissonBatches(1e-9), Zeros(), 1000)) == 0


@pytest.mark.parametrize(("q", "n"), [(1e-12, 50), (1.0, 50), (0.5, 0)])
def test_batches_may_be_empty_or_everybody(q, n):
    units = drawn(PoissonBatches(q), SecureNoise(), n)
    assert units.dtype == np.int64
    assert len(units) == (n if q == 1.0 else 0)


def test_uniform_values_reject_what_would_be_biased():
    limit = 3 * 2**62
    assert list(uniform_below(Bits(2**64 - 1, limit, 7), limit, 1)) == [7]
    assert list(distinct_below(Bits(*range(10), *range(10)), 10, 1)) == [0]


def test_a_batch_is_accounted_for_as_what_it_is():
    """Hazard H10: an event covers no batch of another sort."""
    poisson, fixed = PoissonBatches(0.01), BatchesWithoutReplacement(100, 10_000)
    assert poisson.releases("g", 3, 2.0) == PoissonGaussianReleases("g", 3, 2.0, 0.01)
    assert poisson.covered_by(poisson.releases("g", 1, 1.0))
    assert fixed.covered_by(fixed.releases("g", 1, 1.0))
    assert fixed.covered_by(fixed.decisions("g", 1))
    wrong = [
        PoissonGaussianReleases("g", 1, 1.0, 0.02),
        fixed.releases("g", 1, 1.0),
        BarkerReleases("g", 1, 100, 10_000),
        GaussianReleases("g", 1, 1.0),
    ]
    assert not any(poisson.covered_by(event) for event in wrong)
    assert not any(fixed.covered_by(event) for event in (wrong[0], wrong[3], BarkerReleases("g", 1, 100, 10_001)))
    assert math.isclose(fixed.sampling_probability, 0.01)


def test_a_table_of_another_size_than_accounted_for_is_refused():
    """Hazard H11: the rate is that of the table's own length."""
    with pytest.raises(PrivacyError, match="accounted"):
        drawn(BatchesWithoutReplacement(5, 100), SecureNoise(), 101)


def test_the_meter_spends_from_the_cheapest_event_that_covers_a_release():
    batches = PoissonBatches(0.1)
    events = [batches.releases("gradient", count, noise) for noise, count in ((1.0, 2), (3.0, 1))]
    meter = Meter(events)
    meter.spend("gradient", 3.5, batches)
    with pytest.raises(BudgetExceeded, match="is left"):
        meter.spend("gradient", 0.9, batches)
    meter.spend("gradient", 3.5, batches)  # the one with noise 3 is spent; noise 3.5 covers noise 1
    meter.spend("gradient", 1.0, batches)
    with pytest.raises(BudgetExceeded, match="All planned"):
        meter.spend("gradient", 9.0, batches)


def test_the_meter_counts_every_event_by_itself():
    batches = PoissonBatches(0.1)
    events = [batches.releases("gradient", count, noise) for noise, count in ((1.0, 2), (3.0, 1))]
    meter = Meter(events)
    meter.spend("gradient", 1.0, batches)
    meter.spend("gradient", 1.0, batches)
    with pytest.raises(BudgetExceeded, match="is left"):
        meter.spend("gradient", 1.0, batches)  # what is left was paid for with noise 3
    meter.spend("gradient", 3.0, batches)


@pytest.mark.parametrize("other", [None, PoissonBatches(0.2), BatchesWithoutReplacement(1, 10)])
def test_the_meter_refuses_another_sampler_than_was_paid_for(other):
    meter = Meter([PoissonBatches(0.1).releases("gradient", 3, 1.0)])
    with pytest.raises(BudgetExceeded):
        meter.spend("gradient", 1.0, other)
    with pytest.raises(BudgetExceeded, match="left of what was paid for: GaussianReleases"):
        Meter([GaussianReleases("gradient", 3, 1.0)]).spend("gradient", 1.0, PoissonBatches(0.1))


@pytest.mark.parametrize("q", [0.0, -0.1, 1.1, math.nan])
def test_no_probability(q):
    with pytest.raises(InvalidArgument):
        PoissonBatches(q)


@pytest.mark.parametrize(("size", "n"), [(0, 10), (11, 10), (1.5, 10)])
def test_no_batch_size(size, n):
    with pytest.raises(InvalidArgument):
        BatchesWithoutReplacement(size, n)
