"""What histograms of norms say of their tails, on histograms whose units are known."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from pymc_dp.steps.prelude.tails import BINS, LOWEST_HALF_OCTAVE, Histogram, Tail, above_noise

N = 20_000
SMALLEST = 2.0 ** (LOWEST_HALF_OCTAVE / 2)


def histogram(norms, noise_std=0.0, seed=0):
    """Count norms as `NormSizes` does, and add noise."""
    places = np.clip(np.floor(2.0 * np.log2(norms / SMALLEST)), 0, BINS - 1).astype(int)
    counts = np.bincount(places, minlength=BINS).astype(float)
    return Histogram(counts + noise_std * np.random.default_rng(seed).normal(size=BINS), max(noise_std, 1e-3), SMALLEST)


TABLES = {
    "half-normal": lambda generator: np.abs(generator.normal(size=N)),
    "exponential": lambda generator: generator.exponential(size=N),
    "log-normal": lambda generator: np.exp(generator.normal(size=N)),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_a_quantile_is_an_upper_edge_of_the_bin_that_holds_it(name, part):
    norms = TABLES[name](np.random.default_rng(1))
    found, true = histogram(norms).quantile(part, N), np.quantile(norms, part)
    assert true < found <= true * 2.0**0.5 * (1.0 + 1e-9)


def test_noise_of_empty_bins_moves_no_quantile():
    """Of 41 bins together it is more than a two-hundredth of the units: of 200 draws three in five were off before."""
    norms = np.abs(np.random.default_rng(2).normal(size=N))
    true = histogram(norms).quantile(0.995, N)
    found = np.array([histogram(norms, 40.0, seed).quantile(0.995, N) for seed in range(200)])
    assert np.all((0.5 * true <= found) & (found <= true))


def test_a_quantile_of_nothing_but_noise_is_the_last_edge_or_before():
    assert Histogram(np.zeros(BINS), 1.0, SMALLEST).quantile(0.5, N) == SMALLEST * 2.0 ** (BINS / 2)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("noise_std", [5.0, 60.0])
def test_the_length_that_a_bound_takes_off_is_found(name, noise_std):
    """Within a quarter, and what two standard deviations of the noise of three bins would be: a seed for each."""
    norms = TABLES[name](np.random.default_rng(1))
    tail = Tail(histogram(norms, noise_std, seed=2), N)
    for part in (0.9, 0.97):
        bound = float(np.quantile(norms, part))
        true = np.maximum(norms - bound, 0.0).sum()
        room = 0.25 * true + 2.0 * np.sqrt(3.0) * noise_std * 2.0 * bound
        assert abs(tail.lost_length(bound) - true) < room


def test_what_noise_hides_of_a_tail_is_told():
    """Of 40 histograms the root mean square error of the lost length is what is hidden, within a factor of 1.7."""
    norms = TABLES["exponential"](np.random.default_rng(1))
    bound, noise_std = float(np.quantile(norms, 0.97)), 120.0
    true = np.maximum(norms - bound, 0.0).sum()
    tails = [Tail(histogram(norms, noise_std, seed), N) for seed in range(40)]
    error = np.sqrt(np.mean([(float(tail._counts @ tail._lost(bound)) - true) ** 2 for tail in tails]))
    hidden = np.sqrt(np.mean([tail.hidden_length(bound) ** 2 for tail in tails]))
    assert error / 1.7 < hidden < 1.7 * error
    assert Tail(histogram(norms), N).hidden_length(bound) < 0.1 * hidden


@pytest.mark.parametrize("name", TABLES)
def test_how_much_more_is_lost_than_is_counted(name):
    """Of exact counts, where no unit counts more than one bound."""
    norms = TABLES[name](np.random.default_rng(1))
    bound = float(np.quantile(norms, 0.9))
    lost = np.maximum(norms - bound, 0.0)
    true = lost.sum() / np.minimum(lost, bound).sum()
    assert Tail(histogram(norms), N).lost_beyond(bound) == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("noise_std", [0.0, 30.0])
def test_what_clipping_leaves_of_units_and_of_squares(name, noise_std):
    """Squares of lengths up to three bounds."""
    norms = TABLES[name](np.random.default_rng(1))
    for part in (0.8, 0.95):
        bound = float(np.quantile(norms, part))
        within = np.minimum(norms, 3.0 * bound)
        of_squares = np.sum(within * np.minimum(within, bound)) / np.sum(within**2)
        tail = Tail(histogram(norms, noise_std, seed=2), N, mean=float(np.mean(norms**2)))
        assert tail.units_kept(bound) == pytest.approx(part, abs=0.03)
        assert tail.squares_kept(bound) == pytest.approx(of_squares, abs=0.08)


def test_less_is_lost_to_a_larger_bound():
    tail = Tail(histogram(TABLES["log-normal"](np.random.default_rng(1)), 20.0), N)
    lost = [tail.lost_length(bound) for bound in np.geomspace(0.1, 1e4, 60)]
    assert np.all(np.diff(lost) <= 0.0)
    assert lost[-1] == 0.0


@pytest.mark.parametrize("name", TABLES)
def test_the_best_bound_is_nearly_as_good_as_the_best_of_all(name):
    norms = TABLES[name](np.random.default_rng(1))
    tail = Tail(histogram(norms, 20.0, seed=3), N)
    for noise in (20.0, 100.0, 500.0):

        def error(bound, noise=noise):
            return np.hypot(np.maximum(norms - bound, 0.0).sum(), noise * bound)

        bound, bias = tail.best_bound(1.0, noise)
        assert error(bound) < 1.5 * min(error(each) for each in np.geomspace(0.1, 100.0, 300))
        assert bias == tail.lost_length(bound)


def test_more_noise_makes_a_smaller_bound_and_more_bias_a_larger_one():
    tail = Tail(histogram(TABLES["log-normal"](np.random.default_rng(1)), 20.0), N)
    by_noise = [tail.best_bound(1.0, noise)[0] for noise in (1.0, 30.0, 300.0, 3000.0)]
    by_bias = [tail.best_bound(weight, 100.0)[0] for weight in (0.01, 0.1, 1.0, 10.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert by_bias == sorted(by_bias)
    assert len(set(by_noise)) == len(set(by_bias)) == 4


def test_noise_makes_no_tail_that_the_mean_square_forbids():
    """Of normal vectors, whose mean square is their dimension: the bound that one of ten noises exceeds."""
    size, n_units, noise_std = 10, 2_000, 120.0
    norms = np.linalg.norm(np.random.default_rng(5).normal(size=(n_units, size)), axis=1)
    bounds = {
        mean: [
            Tail(histogram(norms, noise_std, seed), n_units, mean=mean).best_bound(1.0, 30.0)[0] for seed in range(40)
        ]
        for mean in (None, float(size))
    }
    free, held = (np.quantile(each, 0.9) for each in bounds.values())
    assert held < 0.3 * free


def test_a_clear_tail_is_seen_although_the_mean_square_says_otherwise():
    norms = 4.0 * TABLES["log-normal"](np.random.default_rng(1))  # their mean square is 118
    free, held = (Tail(histogram(norms, 5.0), N, mean=mean).lost_length(20.0) for mean in (None, 10.0))
    assert held == pytest.approx(free, rel=0.1)


def test_a_rare_group_far_away_is_seen_as_it_was_counted():
    """A bump is no smooth tail: 200 units at a norm of 50 lose nearly all of their length to a small bound."""
    norms = np.abs(np.random.default_rng(1).normal(size=N))
    norms[:200] = 50.0
    noise_std = 20.0
    lost = Tail(histogram(norms, noise_std, seed=4), N).lost_length(5.0)
    true = 200 * 45.0
    assert 0.7 * true < lost < 1.5 * true


def test_an_earlier_histogram_counts_by_its_precision_and_trust():
    now, before = Histogram(np.full(BINS, 10.0), 2.0, SMALLEST), Histogram(np.full(BINS, 40.0), 1.0, 0.5)
    pooled = now.with_earlier(before, 0.25)
    assert pooled.counts == pytest.approx(np.full(BINS, 25.0))  # precisions of a quarter each
    assert pooled.noise_std == pytest.approx(2.0**0.5)
    assert pooled.smallest == SMALLEST
    assert now.with_earlier(None, 0.25) is now
    assert now.with_earlier(Histogram(np.zeros(3), 1.0, 1.0), 0.25) is now


@pytest.mark.filterwarnings("error")
@given(
    hnp.arrays(np.float64, BINS, elements=st.floats(-1e9, 1e9)),
    st.floats(1e-3, 1e9),
    st.integers(1, 10**8),
    st.floats(1e-30, 1e30),
    st.floats(1e-3, 1e9),
    st.none() | st.integers(1, 1000),
)
def test_no_noise_makes_a_bound_that_is_no_positive_number(counts, noise_std, n_units, smallest, noise_of_bound, mean):
    """After the charge a histogram may be nothing but noise: the way goes on."""
    tail = Tail(Histogram(counts, noise_std, smallest), n_units, mean=mean)
    bound, bias = tail.best_bound(1.0, noise_of_bound)
    assert 0.0 < bound < np.inf
    assert 0.0 <= bias < np.inf
    assert tail.units_kept(bound) <= 1.0
    assert tail.squares_kept(bound) <= 1.0
    assert 0.0 < Histogram(counts, noise_std, smallest).quantile(0.9, n_units) < np.inf


def test_outliers_lose_what_was_released_and_less_to_a_larger_bound():
    """A power law beyond the bound: by hand, sums over units of what each loses, and of no more than one bound."""
    tail = Tail(histogram(TABLES["half-normal"](np.random.default_rng(1)), 20.0), N)
    bound, before = 6.0, Tail(histogram(TABLES["half-normal"](np.random.default_rng(1)), 20.0), N)
    tail.add_outliers(bound, 50.0)
    assert tail.capped_loss(bound) - before.capped_loss(bound) == pytest.approx(50.0, rel=0.05)
    lost = [tail.lost_length(times * bound) - before.lost_length(times * bound) for times in (1.0, 4.0)]
    assert lost[0] == pytest.approx(50.0 * bound / (1.0 - 2.0**-0.75), rel=0.05)
    assert lost[1] / lost[0] == pytest.approx(4.0**-0.75, rel=0.15)  # units are spread evenly over a half octave
    assert tail.best_bound(1.0, 30.0)[0] > 2.0 * before.best_bound(1.0, 30.0)[0]


def test_outliers_are_believed_beyond_noise_alone():
    assert above_noise(-3.0, 1.0) == 0.0
    assert above_noise(1.0, 1.0) < 0.03
    assert above_noise(2.5, 1.0) == pytest.approx(1.25)
    assert above_noise(10.0, 1.0) == pytest.approx(10.0, rel=0.01)
    assert above_noise(1e300, 1e-300) == pytest.approx(1e300)  # no overflow
    assert above_noise(1e-300, 1e6) == 0.0
