"""Test statistics of a published posterior, from noisy counts of probability levels. This module has no data.

If a model holds, its cumulative probability of a row's response (the probability integral transform) is uniform,
independently of the row's other columns. Counts by bin of a column and by level of that probability are then
multinomial within each bin, with known probabilities: the lengths of the levels. Noise of known variance is added.

`shapes` turns the levels' counts of a bin into contrasts, which have mean zero and variance ``n + s² |shape|²`` for n
rows in the bin and noise of standard deviation s: location, spread, skewness, tails, and others. Whole-number
responses, whose mass is spread over levels, have a smaller variance, so that every p-value is an upper bound.

Fitting parameters to the same rows reduces the variance of contrasts. Noise in the fit increases it, by at most the
factors of `excess`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
import xarray as xr
from xarray import DataTree

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.centring import form_of
from pymc_dp.model.context import Model
from pymc_dp.model.parameters import texts_of
from pymc_dp.model.posterior import PRIVATE_LIKELIHOOD, known_parameters, places_of, unconstrained_draws
from pymc_dp.model.view import ModelView
from pymc_dp.release.interface import FloatArray
from pymc_dp.reports.published import facts_of

#: Number of draws for mean and covariance.
_MOST_DRAWS = 2000
#: Levels of a continuous response: few, as each has noise of its own, and the outer ones sensitive to heavy tails.
#: Without noise they detect a shift and tails as well as eight levels, within a tenth; with noise, better.
CONTINUOUS = np.array([0.0, 0.05, 0.35, 0.65, 0.95, 1.0])
#: Largest number of levels of whole numbers.
MOST_LEVELS = 4
#: Limits of the number of bins, and the number without a public number of units: see `suitable_bins`.
_FEWEST_BINS, _MOST_BINS, _BINS = 4, 8, 6
#: Names of the first contrasts.
SHAPES = ("location", "spread", "skewness", "tails")
#: Draws of a weighted sum of squares: p-values below 1e-4 are then accurate within a fifth.
_DRAWS = 400_000


def form_of_result(model: Model, result: DataTree) -> Model:
    """Return the model in the form of a result's draws: centred, or as the user wrote it."""
    return form_of(model, json.loads(facts_of(result).get("parameters", "{}")))


def _coords_of(draws: xr.Dataset) -> dict[str, dict[str, list[str]]]:
    """Return the labels of the axes of each variable of a posterior; of the numbers that ArviZ gives, none."""
    return {
        str(name): {
            str(dim): texts_of(values[dim].values) for dim in values.dims[2:] if not str(dim).startswith(f"{name}_dim_")
        }
        for name, values in draws.data_vars.items()
    }


class Fitted:
    """A published posterior on the unconstrained scale, and its private likelihood if there is one.

    `known` marks the parameters of the likelihood on which it depends, and `places` are the indices of its parameters
    in the model. Refuses a result without draws, or of another model.
    """

    def __init__(self, result: DataTree, model: Model, view: ModelView) -> None:
        facts_of(result)
        if "posterior" not in result:
            raise InvalidArgument("This result holds no draws: the table is compared with a posterior.")
        draws = result["posterior"].to_dataset()
        view.parameters.refuse_other_coords(_coords_of(draws))
        self.draws = unconstrained_draws(model, draws, _MOST_DRAWS)
        self.mean: FloatArray = self.draws.mean(axis=0)
        self._likelihood = result[PRIVATE_LIKELIHOOD].to_dataset() if PRIVATE_LIKELIHOOD in result else None
        self.known, self.places = np.zeros(0, dtype=bool), np.zeros(0, dtype=int)
        if self._likelihood is not None:
            self.known = known_parameters(self._likelihood)
            self.places = places_of(self._likelihood, view.parameters)
        self._parameters_in_likelihood = view.parameters_in_likelihood

    def some_draws(self, count: int) -> FloatArray:
        """Return evenly spaced draws, concatenated."""
        found: FloatArray = self.draws[np.linspace(0, len(self.draws) - 1, count).astype(int)].ravel()
        return found

    def covariances(self, taken: np.ndarray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return P, H and V of some parameters of the likelihood.

        P is the covariance of the draws, H the likelihood's curvature without noise, and V the covariance of the noise
        in its maximum.
        """
        if self._likelihood is None:
            return np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0))
        block = np.ix_(taken, taken)
        information, noise, bias = (self._likelihood[name].values[block] for name in ("information", "noise", "bias"))
        return np.atleast_2d(np.cov(self.draws[:, self.places[taken]].T)), information, noise + bias

    def effect_on_rows(self) -> tuple[float, float, float]:
        """Return the effective number of parameters, and mean and variance of the loss from noise in the fit.

        The number is the trace of W = P (H⁻¹ + V)⁻¹, the derivative of the posterior's mean by the likelihood's
        maximum: on average, the log-likelihood of the fit's own rows is larger by this than that of new rows. Noise
        in the fit reduces both alike: noise v of covariance V moves the mean by W v, which reduces the log-likelihood
        of all rows by half of (W v)ᵀ H (W v). The allowance for a bias of clipping, which is a part of V, is mostly
        too large: it is left out of the mean, and counts in full in the variance. Without a private likelihood, the
        number is that of all parameters, and the loss is taken as zero.
        """
        if self._likelihood is None:
            return float(self._parameters_in_likelihood), 0.0, 0.0
        posterior, information, noise = self.covariances(self.known)
        bias = self._likelihood["bias"].values[np.ix_(self.known, self.known)]
        pull = np.linalg.solve(np.linalg.inv(information) + noise, posterior).T
        moved, by_bias = (information @ pull @ each @ pull.T for each in (noise, bias))
        of_bias = 0.5 * float(np.trace(by_bias))
        variance = 0.5 * float(np.trace(moved @ moved)) + of_bias**2
        return float(np.trace(pull)), 0.5 * float(np.trace(moved)) - of_bias, variance


def levels_of(discrete: bool, n_levels: int | None) -> FloatArray:
    """Return the edges of levels of the cumulative probability of a response."""
    if not discrete:
        return CONTINUOUS
    count = MOST_LEVELS if n_levels is None else min(max(n_levels, 2), MOST_LEVELS)
    return np.linspace(0.0, 1.0, count + 1)


def suitable_bins(n: int | None, noise_std: float, levels: FloatArray) -> int:
    """Return the number of bins for counts with noise of this standard deviation, for n units; n may be protected.

    With dominant noise, few bins detect a deviation along the axis best: the variance of rows in a bin is then half of
    the noise's.
    """
    if n is None:
        return _BINS
    of_noise = noise_std**2 * float((shapes(levels)[0] ** 2).sum())
    return int(np.clip(2.0 * n / max(of_noise, 1e-12), _FEWEST_BINS, _MOST_BINS))


def shapes(levels: FloatArray) -> FloatArray:
    """Return contrasts of levels, shape (levels - 1, levels): Hermite polynomials of normal scores, orthonormal.

    Under the model they have mean 0 and variance 1 for each row. Their values are means of a polynomial over each
    level, so that a wrong scale of a normal response changes the second one, spread, alone.
    """
    parts, edges = np.diff(levels), scipy.stats.norm.ppf(levels)
    density = scipy.stats.norm.pdf(edges)
    finite = np.where(np.isfinite(edges), edges, 0.0)
    found: list[FloatArray] = [np.ones(parts.size)]
    for power in range(1, parts.size):
        # The integral of a polynomial times the density is minus the previous polynomial times the density.
        column = -np.diff(scipy.special.eval_hermitenorm(power - 1, finite) * density) / parts
        for each in found:
            column = column - (parts * column * each).sum() * each
        found.append(column / math.sqrt((parts * column**2).sum()))
    return np.array(found[1:])


@dataclass(frozen=True)
class Contrasts:
    """Noisy contrasts of the counts in some bins."""

    sums: FloatArray  # over the rows of each bin, shape (bins, contrasts)
    rows: FloatArray  # in each bin, not below zero
    of_rows: FloatArray  # bound of the variance of a contrast by bin if the model holds, without noise
    of_noise: FloatArray  # covariance of the noise, shape (contrasts, contrasts)

    def by_row(self, factors: "Factors") -> tuple[FloatArray, FloatArray]:
        """Return the named contrasts per row, and their standard errors, shape (bins, shapes) each.

        By generalised least squares: the other contrasts contain noise alone, which is correlated with that of the
        named ones. A location is about the distance of responses above the prediction, in standard deviations.
        `factors` enlarge the variance of rows.
        """
        means, errors = [], []
        count = min(len(SHAPES), int(self.sums.shape[1]))
        largest = factors.of_shapes(count)
        for sums, rows, of_rows in zip(self.sums, self.rows, self.of_rows, strict=True):
            precision = np.linalg.inv(of_rows * np.eye(len(sums)) + self.of_noise)
            weights = np.linalg.solve(precision[:count, :count], precision[:count])
            variance = of_rows * (weights**2).sum(axis=1) * largest + np.diag(weights @ self.of_noise @ weights.T)
            means.append(weights @ sums / max(rows, 1.0))
            errors.append(np.sqrt(variance) / max(rows, 1.0))
        return np.array(means), np.array(errors)


def contrasts(counts: FloatArray, noise_std: float, levels: FloatArray, spread: FloatArray | None) -> Contrasts:
    """Return contrasts of noisy counts, shape (bins, levels), in levels with these edges.

    `spread`, shape (bins,), is for two levels: noisy sums of squared differences of a row's two parts.
    """
    basis = shapes(levels)
    rows = np.maximum(counts.sum(axis=1), 0.0)
    # Two equal levels have one contrast, the difference of their parts.
    of_rows = rows if spread is None else np.clip(spread, 0.0, rows)
    return Contrasts(counts @ basis.T, rows, of_rows, noise_std**2 * basis @ basis.T)


def mean_of_axes(found: Sequence[Contrasts]) -> Contrasts:
    """Return the contrasts of all rows as one bin: the mean over axes, which count the same rows with fresh noise."""
    sums, rows, of_rows = (
        np.mean([getattr(each, name).sum(axis=0, keepdims=True) for each in found], axis=0)
        for name in ("sums", "rows", "of_rows")
    )
    of_noise = np.sum([len(each.rows) * each.of_noise for each in found], axis=0) / len(found) ** 2
    return Contrasts(sums, rows, of_rows, of_noise)


@dataclass(frozen=True)
class Factors:
    """The factors, above 1, by which noise in the fit may enlarge the variance of contrasts: one for each direction."""

    of_all: FloatArray
    #: The same without the scale of a symmetric family, which affects neither location nor skewness for any columns of
    #: the rows.
    but_scale: FloatArray
    #: Whether that family is the normal one, and the scale of all rows the same parameter: it affects spread alone, of
    #: all bins in proportion to their rows. A wrong location does not affect tails, as these are even.
    normal: bool = False

    @property
    def largest(self) -> float:
        """The largest factor."""
        return float(self.of_all.max(initial=1.0))

    def of_shapes(self, count: int) -> FloatArray:
        """Return the largest factor of each of the first `SHAPES`."""
        others = float(self.but_scale.max(initial=1.0))
        return np.array([others, self.largest, others, 1.0 if self.normal else self.largest])[:count]


def excess(posterior: FloatArray, information: FloatArray, noise: FloatArray) -> FloatArray:
    """Return the factors, above 1, by which noise in the fit may enlarge the variance of contrasts, one by direction.

    Let s be contrasts at the true parameters, S the score there, D and H their covariances and J the covariance of the
    two. With the error e of the fit, contrasts at the fit are s - J e. For a posterior of covariance P from a normal
    likelihood with curvature H, whose maximum has noise of covariance V, the covariance is D + J M Jᵀ with
    M = P - W H⁻¹ - H⁻¹ Wᵀ and W = P (H⁻¹ + V)⁻¹. As J H⁻¹ Jᵀ is at most D, the covariance is at most D, except in as
    many directions as H^½ M H^½ has positive eigenvalues λ, in which it is at most D times 1 + λ. Without noise
    M = -P, which has none: the known effect that fitted parameters make residuals smaller.

    `posterior` is P, on the unconstrained scale, `information` H and `noise` V.
    """
    if not len(posterior):
        return np.ones(0)
    inverse = np.linalg.inv(information)
    pulled = posterior @ np.linalg.solve(inverse + noise, inverse)
    more = posterior - pulled - pulled.T
    values, vectors = np.linalg.eigh(information)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    found = np.linalg.eigvalsh(root @ (0.5 * (more + more.T)) @ root)
    return 1.0 + found[found > 1e-9]


def p_value(found: Contrasts, factors: Factors) -> tuple[float, float, int]:
    """Return the sum of squares of an axis' standardised contrasts, its p-value, and the degrees of freedom.

    If the scale affects spread alone, the common direction of all bins' spread is left out. Each factor enlarges the
    variance of rows in one direction, at most.
    """
    noise, axes = np.linalg.eigh(found.of_noise)  # the noise is not correlated along these axes
    variance = np.maximum(found.of_rows[:, None] + np.maximum(noise, 0.0), np.finfo(float).tiny)
    rotated, degrees = found.sums @ axes, found.sums.size
    statistic = float((rotated**2 / variance).sum())
    enlarged = np.sort(factors.but_scale if factors.normal else factors.of_all)[::-1]
    if factors.normal and found.sums.shape[1] > 1:
        way = found.rows[:, None] * axes[1][None]
        size = float((way**2 / variance).sum())
        statistic -= float((way * rotated / variance).sum()) ** 2 / max(size, np.finfo(float).tiny)
        degrees -= 1
    # The rows' parts of the variances, in decreasing order: in the worst case the factors enlarge the largest.
    of_rows = np.sort((found.of_rows[:, None] / variance).ravel())[::-1][: min(enlarged.size, degrees)]
    weights = 1.0 + (enlarged[: of_rows.size] - 1.0) * of_rows
    plain = degrees - weights.size
    if not weights.size:
        return statistic, float(scipy.stats.chi2.sf(statistic, plain)), degrees
    generator = np.random.default_rng(0)
    drawn = generator.chisquare(plain, _DRAWS) if plain else np.zeros(_DRAWS)
    for weight in weights:
        drawn += weight * generator.chisquare(1, _DRAWS)
    return statistic, float((1 + np.count_nonzero(drawn >= statistic)) / (1 + _DRAWS)), degrees
