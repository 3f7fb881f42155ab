import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st
from scipy.stats import binom, norm

from pymc_dp.accounting import (
    BarkerReleases,
    GaussianReleases,
    PoissonGaussianReleases,
    ThresholdedReleases,
    WithoutReplacementGaussianReleases,
    account,
    draws_for,
    epsilon_of,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_rho,
    largest_count,
    noise_beside,
    noise_for_epsilon,
    privacy_profile,
    substitute_from_add_remove,
    zcdp_epsilon,
    zcdp_rho,
)
from pymc_dp.accounting.account import renyi_curve, renyi_epsilon
from pymc_dp.exceptions import BudgetExceeded, InvalidArgument
from pymc_dp.release.barker_correction import acceptance, log_ratio_and_variance
from pymc_dp.rows.clipped_sum import ClippedMoments

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())
GAUSSIAN = REFERENCE["gaussian"]
POISSON = PoissonGaussianReleases("gradient", 100, 1.5, 0.01)
BATCHES = WithoutReplacementGaussianReleases("log_ratio", 100, 1.5, 100, 10_000)
BARKER = BarkerReleases("decision", 100, 1000, 100_000)
COUNTS = GaussianReleases("clip_count", 5, 50.0)


def test_each_mixture_has_its_route():
    assert "exact" in account([COUNTS], 1e-6, "add-remove").accountant
    assert "loss" in account([POISSON, COUNTS], 1e-6, "add-remove").accountant
    assert "loss" in account([BATCHES, COUNTS], 1e-6, "substitute").accountant
    assert "Rényi" in account([BATCHES, COUNTS, BARKER], 1e-6, "substitute").accountant
    assert "Rényi" in account([POISSON], 1e-40, "add-remove").accountant
    assert account([], 1e-6, "substitute").epsilon == 0.0


@pytest.mark.parametrize(
    ("event", "relation"), [(POISSON, "substitute"), (BATCHES, "add-remove"), (BARKER, "add-remove")]
)
def test_events_are_refused_under_relations_without_a_theorem(event, relation):
    with pytest.raises(InvalidArgument, match="no theorem"):
        account([COUNTS, event], 1e-6, relation)
    with pytest.raises(InvalidArgument, match="no theorem"):
        noise_for_epsilon([COUNTS], 1.0, 1e-6, relation, [event])


def test_events_that_say_themselves_what_they_cost_are_refused():
    class Cheap(GaussianReleases):
        @property
        def rho(self):
            return 0.0

    cheap = Cheap("gradient", 100, 1.0)
    with pytest.raises(InvalidArgument, match="Cheap"):
        account([COUNTS, cheap], 1e-6, "substitute")
    with pytest.raises(InvalidArgument, match="Cheap"):
        noise_for_epsilon([COUNTS], 1.0, 1e-6, "substitute", [cheap])


def test_mixing_relations_is_refused():
    for relation in ("substitute", "add-remove"):
        with pytest.raises(InvalidArgument):
            account([POISSON, BATCHES], 1e-6, relation)
    with pytest.raises(InvalidArgument, match="relation"):
        account([COUNTS], 1e-6, "swap")


def test_conversion_to_substitution_is_above_the_exact_curve():
    # A Gaussian release of noise multiplier tau under add-remove has tau / 2 under substitution.
    """Hazard H8: replacing a row is paid for as two moves."""
    for tau in (1.0, 5.0, 30.0):
        for delta in (0.01, 1e-5):
            own = gaussian_epsilon(1 / (2 * tau**2), delta)
            converted, converted_delta = substitute_from_add_remove(own, delta) if own < 5 else (math.inf, 0.5)
            assert converted >= gaussian_epsilon(4 / (2 * tau**2), converted_delta)
    with pytest.raises(InvalidArgument, match="no guarantee"):
        substitute_from_add_remove(20.0, 1e-6)
    with pytest.raises(InvalidArgument):
        substitute_from_add_remove(math.nan, 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, True, "1", None])
@pytest.mark.parametrize(
    "make",
    [
        lambda bad: GaussianReleases("g", 1, bad),
        lambda bad: PoissonGaussianReleases("g", 1, bad, 0.1),
        lambda bad: PoissonGaussianReleases("g", 1, 1.0, bad),
        lambda bad: WithoutReplacementGaussianReleases("g", 1, bad, 10, 100),
        lambda bad: WithoutReplacementGaussianReleases("g", 1, 1.0, bad, 100),
        lambda bad: BarkerReleases("g", 1, bad, 100),
        lambda bad: GaussianReleases("g", bad, 1.0),
        lambda bad: noise_for_epsilon([POISSON], bad, 1e-6, "add-remove"),
        lambda bad: noise_for_epsilon([POISSON], 1.0, bad, "add-remove"),
        lambda bad: draws_for(lambda k: [COUNTS], bad, 1e-6, "add-remove"),
        lambda bad: account([POISSON], bad, "add-remove"),
        lambda bad: account([bad], 1e-6, "add-remove"),
    ],
)
def test_bad_numbers_never_give_a_figure(make, bad):
    """Hazard H9: NaN, infinite, zero and negative numbers are refused."""
    with pytest.raises(InvalidArgument):
        make(bad)


def test_numbers_of_other_types_cost_what_floats_cost():
    """Hazard H9: whole numbers and single precision are made floats first."""
    for noise in (2, np.float32(2.0), np.int64(2), np.float64(2.0)):
        for make in (
            lambda noise: PoissonGaussianReleases("g", np.int32(100), noise, np.float64(0.25)),
            lambda noise: WithoutReplacementGaussianReleases("g", 100, noise, np.int64(10), 100),
        ):
            event, plain = make(noise), make(2.0)
            assert type(event.noise_multiplier) is float
            assert type(event.count) is int
            assert epsilon_of([event], 1e-6, event.relations[0]) == epsilon_of([plain], 1e-6, plain.relations[0])
            assert renyi_epsilon([event], 1e-6) == renyi_epsilon([plain], 1e-6)


# Calibration ----------------------------------------------------------------------------------------------------


@given(
    st.sampled_from([POISSON, BATCHES, COUNTS]),
    st.floats(0.05, 8.0),
    st.floats(-8, -3).map(lambda p: 10.0**p),
)
@settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.generate))
def test_calibrate_then_account_is_at_most_the_target(event, epsilon, delta):
    """Hazard H31: the noise that is found never costs more than was asked for."""
    relation = event.relations[0]
    (calibrated,) = noise_for_epsilon([event], epsilon, delta, relation)
    again = epsilon_of([calibrated], delta, relation)
    assert again <= epsilon
    assert again >= epsilon * (1 - 2e-3)


def test_proportions_are_kept_and_other_costs_are_paid_first():
    asked = [POISSON, PoissonGaussianReleases("log_ratio", 10, 6.0, 0.01)]
    calibrated = noise_for_epsilon(asked, 0.5, 1e-6, "add-remove", [COUNTS])
    ratios = [new.noise_multiplier / old.noise_multiplier for new, old in zip(calibrated, asked, strict=True)]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-12)
    assert epsilon_of([*calibrated, COUNTS], 1e-6, "add-remove") <= 0.5
    with pytest.raises(BudgetExceeded, match="No noise is enough"):
        noise_for_epsilon(asked, 0.5, 1e-6, "add-remove", [GaussianReleases("g", 5, 1.0)])


@pytest.mark.parametrize("row", GAUSSIAN["dp_hmc_maxk"], ids=lambda row: f"{row['epsilon']}-L{row['L']}")
def test_draws_of_hmc_match_reference(row):
    leapfrogs, epsilon, delta = row["L"], float(row["epsilon"]), float(row["delta"])

    def releases(draws, reuse):
        gradients = draws * leapfrogs + 1 if reuse else draws * (leapfrogs + 1)
        return [
            GaussianReleases("log_ratio", draws, float(row["tau_l"])),
            GaussianReleases("gradient", gradients, float(row["tau_g"])),
        ]

    assert draws_for(lambda k: releases(k, reuse=False), epsilon, delta, "substitute") == row["k"]
    assert draws_for(lambda k: releases(k, reuse=True), epsilon, delta, "substitute") == row["k_reuse"]
    cost = sum(each.rho for each in releases(1, reuse=False))
    assert math.floor(zcdp_rho(epsilon, delta) / cost) == row["k_zcdp"]
    assert gaussian_rho(epsilon, delta) / cost == pytest.approx(float(row["k_real"]), rel=1e-8)


@pytest.mark.parametrize("row", GAUSSIAN["dp_penalty"], ids=lambda row: f"{row['epsilon']}")
def test_draws_of_the_penalty_method_match_reference(row):
    noise_multiplier = row["tau"] * row["n"] ** row["alpha"]
    epsilon, delta = float(row["epsilon"]), float(row["delta"])
    one = 1.0 / (2.0 * noise_multiplier**2)
    assert zcdp_rho(epsilon, delta) == pytest.approx(float(row["rho"]), rel=1e-8)
    assert largest_count(noise_multiplier, zcdp_rho(epsilon, delta)) == row["k_zcdp"]
    draws = draws_for(lambda k: [GaussianReleases("ratio", k, noise_multiplier)], epsilon, delta, "substitute")
    assert draws == row["k_tight"]
    assert gaussian_rho(epsilon, delta) / one == pytest.approx(float(row["k_tight_real"]), rel=1e-8)
    assert gaussian_epsilon(draws * one, delta) == pytest.approx(float(row["eps_tight_at_k_tight"]), rel=1e-8)
    assert zcdp_epsilon(row["k_zcdp"] * one, delta) == pytest.approx(float(row["eps_zcdp_at_k_zcdp"]), rel=1e-8)


@pytest.mark.parametrize("row", GAUSSIAN["dp_hmc_forward"], ids=lambda row: f"k{row['k']}-L{row['L']}")
def test_zcdp_matches_reference(row):
    """Hazard H30: the printed conversion, from its formula at many digits."""
    for delta, epsilon in row["epsilon_zcdp"].items():
        assert zcdp_epsilon(float(row["mu"]), float(delta)) == pytest.approx(float(epsilon), rel=1e-8)
        assert zcdp_rho(float(epsilon), float(delta)) == pytest.approx(float(row["mu"]), rel=1e-8)


@pytest.mark.parametrize(
    "make", [lambda k: [POISSON.__class__("g", k, 1.0, 0.01)], lambda k: [BARKER.__class__("d", k, 1000, 10**5)]]
)
def test_draws_fit_and_one_more_does_not(make):
    relation = make(1)[0].relations[0]
    draws = draws_for(make, 2.0, 1e-5, relation)
    assert epsilon_of(make(draws), 1e-5, relation) <= 2.0 < epsilon_of(make(draws + 1), 1e-5, relation)
    assert draws_for(make, 1e-4, 1e-5, relation) == 0


# The comparisons of the sources ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 6.0])
def test_better_accounting_buys_more_draws(epsilon):
    """Räisä, Differentially private Metropolis-Hastings algorithms (thesis, 2021), Figure 6.1: all three panels."""
    delta = 0.1 / 100_000
    penalty = 30.0
    assert draws_for(lambda k: [GaussianReleases("r", k, penalty)], epsilon, delta, "substitute") > 1.1 * largest_count(
        penalty, zcdp_rho(epsilon, delta)
    )
    hmc = [GaussianReleases("log_ratio", 1, 50.0), GaussianReleases("gradient", 11, 150.0)]
    cost = sum(each.rho for each in hmc)
    assert gaussian_rho(epsilon, delta) / cost > 1.1 * zcdp_rho(epsilon, delta) / cost

    def batches(draws):
        return [WithoutReplacementGaussianReleases("ratio", draws, 2.0, 1000, 100_000)]

    tight = draws_for(batches, epsilon, delta, "substitute")
    low, high = 0, tight
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if renyi_epsilon(batches(middle), delta)[0] <= epsilon else (low, middle)
    assert tight > 1.3 * low > 0


TABLE = REFERENCE["decreasing_steps"]


@pytest.mark.nightly  # `test_loss_distribution.py` and `test_experiments.py` have such steps, and these printed figures
@pytest.mark.parametrize(
    ("iterations", "delta", "printed", "moments"),
    [
        *(
            (200, float(delta), printed, TABLE["printed_by_delta"]["epsilon_moments"][delta])
            for delta, printed in TABLE["printed_by_delta"]["epsilon_pld"].items()
        ),
        *(
            pytest.param(
                int(count) // 10,
                1e-5,
                printed,
                TABLE["printed_by_iterations"]["epsilon_moments"][count],
                marks={"5000": pytest.mark.nightly, "10000": pytest.mark.nightly}.get(count, ()),
            )
            for count, printed in TABLE["printed_by_iterations"]["epsilon_pld"].items()
        ),
    ],
)
def test_decreasing_steps_as_printed(iterations, delta, printed, moments):
    """Lode, Sub-sampled and differentially private Hamiltonian Monte Carlo (thesis, 2019), Table 6.3."""
    releases = [
        PoissonGaussianReleases("gradient", 10, math.sqrt(2 / (3 * t ** (-1 / 3) * 0.7**2)), 0.01)
        for t in range(1, iterations + 1)
    ]
    epsilon = epsilon_of(releases, delta, "add-remove")
    assert epsilon == pytest.approx(printed, abs=1e-3)
    assert epsilon < renyi_epsilon(releases, delta)[0]
    assert epsilon < moments


@pytest.mark.parametrize("row", REFERENCE["minibatch_sensitivity"], ids=lambda row: f"b{row['b']}")
def test_sensitivity_of_a_batch_s_penalised_ratio(row):
    """The bound 2 s M + 2 (1 - 1/b) s² M² on s R - s² V / 2 is met by extreme batches, and never exceeded."""
    size, scale, bound = row["b"], row["nT_over_b"], row["M"]
    formula = 2 * scale * bound + 2 * (1 - 1 / size) * (scale * bound) ** 2
    assert formula == pytest.approx(row["tight_formula"], rel=1e-12)
    assert formula == pytest.approx(row["brute_joint"], rel=1e-9)

    def released(values):
        return scale * values.sum() - 0.5 * scale**2 * (np.sum(values**2) - values.sum() ** 2 / size)

    generator = np.random.default_rng(1)
    largest = 0.0
    for trial in range(4000):
        rest = generator.uniform(-bound, bound, size - 1) if trial % 2 else bound * generator.choice([-1, 1], size - 1)
        ends = [released(np.append(rest, bound * sign)) for sign in (-1, 1)]
        largest = max(largest, abs(ends[0] - ends[1]))
    assert largest <= formula * (1 + 1e-12)
    assert largest == pytest.approx(formula, rel=1e-9)


def test_counts_beside_decisions_cost_their_share_at_every_order_and_no_less_than_each_alone():
    counts = noise_beside("clip_count", 20, 0.01, [BARKER])
    both = account([BARKER, counts], 1e-6, "substitute").epsilon
    alone = [account([each], 1e-6, "substitute").epsilon for each in (BARKER, counts)]
    assert max(alone) < both < sum(alone)
    assert both < 1.01 * alone[0]
    share = renyi_curve([counts]) / renyi_curve([BARKER])
    covered = np.isfinite(renyi_curve([BARKER]))
    assert share[covered].max() == pytest.approx(0.01, rel=1e-9)
    with pytest.raises(InvalidArgument):
        noise_beside("clip_count", 20, 1.0, [BARKER])


@pytest.mark.parametrize(("decisions", "tau"), [(20, 1.0), (200, 4.0), (20, 0.3)])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_decisions_and_counts_together_cost_no_less_than_a_worst_pair_of_tables_does(decisions, tau, delta):
    """A second route: the exact curve of a pair, all of whose log-ratios are at the bound but for the replaced unit's.

    A decision is a coin, of one probability if the unit is in the batch and another if not; a count is moved by 1.
    """
    b, n = 40, 100
    counts = GaussianReleases("clip_count", 3, tau)
    epsilon = account([BarkerReleases("decision", decisions, b, n), counts], delta, "substitute").epsilon
    offset = -6.0  # rejections are nearly certain: losses of acceptances are large
    grid = Fraction(1, 2**20)
    bound = math.floor(math.sqrt(b) / n / grid)

    def acceptance_of(last):
        log_ratio, variance = log_ratio_and_variance(
            ClippedMoments.of(np.array([*([bound] * (b - 1)), last])), Fraction(n, b) * grid, offset
        )
        unlikely, probability = acceptance(log_ratio, variance)
        return probability if unlikely else 1.0 - probability

    without = acceptance_of(bound)
    coins = [b / n * acceptance_of(last) + (1 - b / n) * without for last in (bound, -bound)]
    mu = math.sqrt(3) / tau

    def worst_at(epsilon):
        worst = 0.0
        for one, other in (coins, coins[::-1]):
            accepted = np.arange(decisions + 1)
            losses = accepted * math.log(one / other) + (decisions - accepted) * (math.log1p(-one) - math.log1p(-other))
            rest = epsilon - losses
            of_counts = norm.cdf(mu / 2 - rest / mu) - np.exp(rest + norm.logcdf(-mu / 2 - rest / mu))
            worst = max(worst, float(binom.pmf(accepted, decisions, one) @ of_counts))
        return worst

    assert worst_at(epsilon) <= delta
    assert worst_at(account([counts], delta, "substitute").epsilon) > delta  # which the counts alone would cost


@pytest.mark.parametrize("hidden", [1e-7, 0.01, 0.2])
@pytest.mark.parametrize("noise", [0.8, 3.0])
def test_thresholds_cost_what_two_tables_show_at_least(hidden, noise):
    """Hazard H52: a unit has one level that others have, too, and one alone that is shown with the stated probability.

    One table shows it or not and has one more of the other; the other one does not have it. Both directions are known
    exactly, of all shift that is paid for.
    """
    releases = [ThresholdedReleases("level_counts", 1, noise, hidden)]
    rho, less = 1.0 / (2.0 * noise**2), math.log1p(-hidden)
    for epsilon in (0.3, 1.0, 3.0):
        (stated,) = privacy_profile(releases, [epsilon], "substitute")
        shown = hidden + (1.0 - hidden) * gaussian_delta(rho, epsilon - less)
        not_shown = gaussian_delta(rho, max(epsilon + less, 0.0))
        assert max(shown, not_shown) <= stated <= max(shown, not_shown) + 2.0 * hidden
    for delta in (1.01 * hidden, 2.0 * hidden):
        found = account(releases, delta, "add-remove").epsilon
        assert hidden + (1.0 - hidden) * gaussian_delta(rho, found - less) <= delta
        assert gaussian_delta(rho, found + less) <= delta - hidden + 1e-15
        assert found == pytest.approx(gaussian_epsilon(rho, delta - hidden) - less, rel=1e-9)
    assert account(releases, hidden, "substitute").epsilon == math.inf


def test_thresholds_are_no_gaussian_releases_by_themselves():
    """Whoever composes releases without `account` is told that no bound is known."""
    releases = [ThresholdedReleases("level_counts", 2, 3.0, 1e-7), GaussianReleases("gradient", 3, 5.0)]
    assert releases[0].of_thresholds == 2e-7
    assert renyi_epsilon(releases, 1e-6)[0] == math.inf
    alone = [GaussianReleases("all", 2, 3.0), releases[1]]
    assert account(releases, 1e-6, "substitute").epsilon == pytest.approx(account(alone, 8e-7, "substitute").epsilon)
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(InvalidArgument):
            ThresholdedReleases("level_counts", 1, 3.0, wrong)
