"""Statistics of checks: exact moments, and p-values that are uniform or larger where a model holds."""

import math

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from hypothesis import given, strategies as st
from scipy import stats

import pymc_dp as dp
from pymc_dp.model.view import read
from pymc_dp.surveys import fit

EXACT = fit.Factors(np.ones(0), np.ones(0))  # of a fit without noise
NORMAL = fit.Factors(np.ones(0), np.ones(0), normal=True)
ALL_LEVELS = [fit.CONTINUOUS, fit.levels_of(True, 2), fit.levels_of(True, 3), fit.levels_of(True, None)]


def test_a_model_with_other_labels_than_the_draws_is_refused():
    """Entries are matched by place: with labels in another order the survey would be of another posterior."""
    draws = xr.Dataset({"beta": (("chain", "draw", "day"), np.zeros((1, 4, 2)))})
    for labels in (["a", "b"], pd.date_range("2026-01-30", periods=2), [1, 2], None):
        named = draws if labels is None else draws.assign_coords(day=labels)
        result = xr.DataTree.from_dict({"posterior": named, "privacy": xr.Dataset(attrs={"private": 1})})
        for turned in (False, True):
            coords = None if labels is None else {"day": list(labels)[:: -1 if turned else 1]}
            with pm.Model(coords=coords) as model:
                beta = pm.Normal("beta", shape=2) if labels is None else pm.Normal("beta", dims="day")
                pm.Normal("y", beta.sum(), 1.0, observed=np.zeros(3))
            if turned and labels is not None:
                with pytest.raises(dp.InvalidArgument, match="entry 0 of 'day'"):
                    fit.Fitted(result, model, read(model))
            else:
                assert fit.Fitted(result, model, read(model)).draws.shape == (4, 2)


@pytest.mark.parametrize("levels", ALL_LEVELS, ids=len)
def test_shapes_have_mean_zero_and_variance_one_where_the_model_holds(levels):
    basis, parts = fit.shapes(levels), np.diff(levels)
    np.testing.assert_allclose(basis @ parts, 0.0, atol=1e-12)
    np.testing.assert_allclose(basis @ np.diag(parts) @ basis.T, np.eye(len(basis)), atol=1e-9)


def test_levels_are_as_many_as_values_of_the_response():
    assert [fit.levels_of(True, count).size - 1 for count in (2, 3, 20, None)] == [
        2,
        3,
        fit.MOST_LEVELS,
        fit.MOST_LEVELS,
    ]
    assert fit.levels_of(False, None) is fit.CONTINUOUS


def test_bins_are_fewer_where_noise_prevails():
    found = [fit.suitable_bins(5000, noise_std, fit.CONTINUOUS) for noise_std in (0.0, 5.0, 14.0, 100.0)]
    assert found[0] == found[1] == 8
    assert found[-1] == 4
    assert found == sorted(found, reverse=True)
    assert fit.suitable_bins(None, 5.0, fit.CONTINUOUS) == 6


def noisy_counts(generator, levels, rows, noise_std):
    counts = np.array([generator.multinomial(each, np.diff(levels)) for each in rows])
    return counts + generator.normal(scale=noise_std, size=counts.shape)


@pytest.mark.few(2)
@pytest.mark.parametrize("noise_std", [0.5, 40.0])
@pytest.mark.parametrize("levels", [ALL_LEVELS[0], ALL_LEVELS[2]], ids=len)
def test_p_values_are_uniform_where_the_model_holds(levels, noise_std):
    """Of 600 tables; a Kolmogorov-Smirnov test that fails once in 10**7."""
    generator = np.random.default_rng(0)
    p_values, without_scale, scores = [], [], []
    for _ in range(600):
        found = fit.contrasts(noisy_counts(generator, levels, [300, 900, 2000], noise_std), noise_std, levels, None)
        p_values.append(fit.p_value(found, EXACT)[1])
        without_scale.append(fit.p_value(found, NORMAL)[1])
        means, errors = fit.mean_of_axes([found]).by_row(EXACT)
        scores.append(means[0] / errors[0])
    assert stats.kstest(p_values, "uniform").pvalue > 1e-7
    assert stats.kstest(without_scale, "uniform").pvalue > 1e-7
    for of_shape in np.array(scores).T:
        assert stats.kstest(of_shape, "norm").pvalue > 1e-7


def test_a_shift_is_told_in_standard_deviations():
    generator, levels = np.random.default_rng(0), fit.CONTINUOUS
    counts = np.histogram(stats.norm.cdf(generator.normal(0.1, 1.0, 200_000)), levels)[0][None]
    means, errors = fit.contrasts(counts.astype(float), 1e-6, levels, None).by_row(EXACT)
    assert means[0, 0] == pytest.approx(0.1, abs=0.01)
    assert errors[0, 0] == pytest.approx(1 / math.sqrt(200_000), rel=1e-3)
    np.testing.assert_allclose(means[0, 1:], 0.0, atol=0.02)


def test_axes_share_rows_and_have_noise_of_their_own():
    counts = np.array([[30.0, 70.0], [20.0, 20.0]])
    one = fit.contrasts(counts, 3.0, np.array([0.0, 0.5, 1.0]), None)
    both = fit.mean_of_axes([one, one])
    assert both.rows == 140.0
    assert both.of_rows == 140.0
    np.testing.assert_allclose(both.sums, one.sums.sum(axis=0)[None])
    np.testing.assert_allclose(both.of_noise, one.of_noise)  # two bins, of two axes: 2 / 2


SQUARES = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(SQUARES, st.floats(0.0, 20.0), st.sampled_from([0.0, 0.01, 1.0, 5.0]))
def test_noise_in_the_fit_enlarges_variances_by_no_more_than_the_factors(generator, hidden, prior):
    """In exact arithmetic: contrasts s and the score S of n rows with any covariances; the fit is a posterior mean."""
    size, n_contrasts = 3, 6
    joint = generator.normal(size=(n_contrasts + size, n_contrasts + size))
    joint = joint @ joint.T + 0.1 * np.eye(len(joint))
    covariance, cross = joint[:n_contrasts, :n_contrasts], joint[:n_contrasts, n_contrasts:]
    information = joint[n_contrasts:, n_contrasts:]
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    cross = whiten @ cross  # of contrasts with unit variances
    inverse = np.linalg.inv(information)
    noise = hidden * generator.normal(size=(size, size))
    noise = noise @ noise.T
    of_prior = np.eye(size) * prior
    posterior = np.linalg.inv(of_prior + np.linalg.inv(inverse + noise))
    # The error of the fit is W (H^-1 S + v) - (1 - W) (truth - prior mean).
    weights = posterior @ np.linalg.inv(inverse + noise)
    rest = np.eye(size) - weights
    spread = rest @ np.linalg.pinv(of_prior) @ rest.T if prior else np.zeros((size, size))
    of_error = weights @ (inverse + noise) @ weights.T + spread
    with_score = cross @ inverse @ weights.T
    exact = np.eye(n_contrasts) - with_score @ cross.T - cross @ with_score.T + cross @ of_error @ cross.T
    found = np.linalg.eigvalsh(exact)[::-1]
    allowed = np.concatenate([np.sort(fit.excess(posterior, information, noise))[::-1], np.ones(n_contrasts)])
    assert np.all(found <= allowed[:n_contrasts] * (1 + 1e-6) + 1e-6)


def test_a_fit_without_noise_enlarges_nothing():
    information = np.diag([100.0, 400.0])
    assert fit.excess(np.linalg.inv(information), information, np.zeros((2, 2))).size == 0


@pytest.mark.parametrize(("normal", "enlarged"), [(False, [1.0, 3.0, 1.0, 3.0]), (True, [1.0, 3.0, 1.0, 1.0])])
def test_factors_of_a_scale_leave_other_shapes_alone(normal, enlarged):
    factors = fit.Factors(np.array([9.0]), np.ones(0), normal)
    counts = fit.contrasts(np.full((1, 5), 1e4), 1e-6, fit.CONTINUOUS, None)
    ratio = counts.by_row(factors)[1] / counts.by_row(EXACT)[1]
    np.testing.assert_allclose(ratio, [enlarged], rtol=1e-6)


@pytest.mark.parametrize("levels", [fit.CONTINUOUS, fit.levels_of(True, None)], ids=len)
def test_a_wrong_scale_of_a_normal_response_moves_spread_alone(levels):
    """The derivative of the levels' probabilities, exactly; and a statistic that leaves it out does not change."""
    edges = stats.norm.ppf(levels)
    moved = np.diff(stats.norm.cdf(edges * np.exp(1e-6)) - levels) / 1e-6
    along = fit.shapes(levels) @ moved
    np.testing.assert_allclose(np.delete(along, 1), 0.0, atol=1e-5)
    assert abs(along[1]) > 0.5
    generator, rows = np.random.default_rng(0), np.array([300.0, 900.0, 2000.0])
    counts = noisy_counts(generator, levels, rows.astype(int), 20.0)
    factors = fit.Factors(np.array([50.0]), np.ones(0), normal=True)
    one = fit.contrasts(counts, 20.0, levels, None)
    other = fit.contrasts(counts + 0.3 * one.rows[:, None] * moved, 20.0, levels, None)
    assert fit.p_value(other, factors) == pytest.approx(fit.p_value(one, factors), rel=1e-4)
    assert fit.p_value(other, EXACT)[1] < 1e-6


def test_p_values_allow_for_factors():
    """A weighted sum of squares; one of its weights is 1 + 8."""
    counts = fit.contrasts(np.array([[400.0, 600.0]]), 1e-6, np.array([0.0, 0.5, 1.0]), None)
    statistic, alone, degrees = fit.p_value(counts, EXACT)
    assert (statistic, degrees) == (pytest.approx(40.0), 1)
    assert alone == pytest.approx(stats.chi2.sf(40.0, 1))
    factors = fit.Factors(np.array([9.0]), np.array([9.0]))
    assert fit.p_value(counts, factors)[1] == pytest.approx(stats.chi2.sf(40.0 / 9.0, 1), rel=0.03)


def test_a_released_spread_makes_variances_smaller():
    counts, levels = np.array([[60.0, 40.0]]), np.array([0.0, 0.5, 1.0])
    assert fit.contrasts(counts, 1.0, levels, np.array([25.0])).of_rows == 25.0
    assert fit.contrasts(counts, 1.0, levels, np.array([-3.0])).of_rows == 0.0
    assert fit.contrasts(counts, 1.0, levels, np.array([1e6])).of_rows == 100.0
