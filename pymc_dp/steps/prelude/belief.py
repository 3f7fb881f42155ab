r"""A normal approximation of the likelihood from noisy scores and curvatures, used by the search and by the posterior.

Near its maximum m the log-likelihood is :math:`-\tfrac12 (\theta - m)^T H (\theta - m)`, so that a released score is a
noisy observation of m:

.. math:: G_k = H (m - t_k) + e_k, \qquad e_k \sim N(0, S_k).

:math:`S_k` is the sum of the known noise covariance of the release, of third-order terms, of the noise of the curvature
over the displacement :math:`m - t_k`, and of the bias of clipping. Given H, m is normal with mean :math:`\hat m` and
covariance V, and the likelihood of :math:`\theta` is

.. math:: N(\hat m;\ \theta,\ H^{-1} + V):

:math:`H^{-1}` is the sampling variance, V the variance that privacy adds. The prior multiplies this likelihood: a
hierarchy then shrinks privacy noise instead of taking it for variation between groups.

References
----------
Bernstein and Sheldon (2018), Differentially private Bayesian inference for exponential families, NeurIPS.
Bernstein and Sheldon (2019), Differentially private Bayesian linear regression, NeurIPS.
"""

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_dp.model.parameters import NO_BOUNDS, Bounds, FloatArray
from pymc_dp.steps.access import PriorDensity
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    Frame,
    NotComputable,
    embedded,
    positive_definite,
    prior_curvature,
)

#: Maximal numbers of Newton steps to a mode, and of steps over the parameters that only the prior determines.
_MODE_STEPS, _HYPERPARAMETER_STEPS = 40, 40
_LEAST_GAIN = 1e-6
#: The noise of a curvature is multiplied by the displacement to the posterior mean. The squared length of the estimated
#: displacement is reduced by its expected noise, but at least this part of it is kept.
_LEAST_OF_DISTANCE = 0.1
#: A curvature that is this many times as noisy along an axis as along the median axis comes from an axis whitened by
#: noise. Without this allowance 1 search of 8 at epsilon 4, of levels and slopes of groups with a raw covariate, made a
#: step of thousands of standard deviations along it, against an informative prior. Of 1.2, 2 and 3 on five such models
#: 2 was the best or next to it; with an allowance along all axes hierarchies shorten the steps too much.
_CLEARLY_NOISIER = 2.0
#: Along directions without information, noise moves the maximum by no more than the inverse of this, in standard
#: deviations of one unit's information: far beyond what priors allow, and small enough for floating point.
_LEAST_KNOWN = 1e-3


@dataclass(frozen=True, eq=False)
class KnownScore:
    """A released gradient of the log-likelihood of all units at `theta`.

    `noise` is a factor of its noise covariance. `bias` is a bound on the norm, along the axes of the frame, of the sum
    that clipping removed; its direction is weighted by the root of the information.
    """

    theta: FloatArray
    gradient: FloatArray
    noise: FloatArray
    bias: float
    #: The logarithm of the curvature at `theta`, relative to that at the start of the search.
    level: float = 0.0


@dataclass(frozen=True, eq=False)
class Belief:
    """A normal likelihood that accounts for the noise in the releases."""

    #: The estimated maximum of the log-likelihood; arbitrary for parameters on which it does not depend.
    mean: FloatArray
    #: H: the curvature of the log-likelihood, zero for parameters on which it does not depend.
    information: FloatArray
    #: V: the covariance of the error of `mean` due to noise, and an allowance for the bias of clipping.
    noise: FloatArray
    bias: FloatArray
    #: The parameters on which the likelihood depends, shape (parameters,).
    known: NDArray[np.bool_]
    #: The part of the trace of `noise` H due to noise of the curvature, over the step from the last score to `mean`.
    curvature_share: float = 0.0

    @classmethod
    def from_dataset(cls, dataset: xr.Dataset, places: NDArray[np.intp]) -> "Belief":
        """Return the belief that `dataset` stores; `places` holds the position of each of its parameters."""
        order = np.argsort(places)
        mean, known = dataset["mean"].values[order], dataset["known"].values[order].astype(bool)
        information, noise, bias = (
            dataset[name].values[np.ix_(order, order)] for name in ("information", "noise", "bias")
        )
        return cls(np.where(known, mean, 0.0), information, noise, bias, known)

    @functools.cached_property
    def precision(self) -> FloatArray:
        """The inverse of H⁻¹ + V, zero for parameters on which the likelihood does not depend."""
        return self.precision_with(self.noise + self.bias)

    def precision_with(self, uncertainty: FloatArray) -> FloatArray:
        """Return the inverse of H⁻¹ + V for V = `uncertainty`."""
        block = np.ix_(self.known, self.known)
        covariance = np.linalg.inv(self.information[block]) + uncertainty[block]
        return embedded(positive_definite(np.linalg.inv(covariance), floor=1e-14), self.known)

    @property
    def pull(self) -> FloatArray:
        """The matrix that turns an error of the score into one of the gradient of the noise-aware log-likelihood."""
        block = np.ix_(self.known, self.known)
        return embedded(self.precision[block] @ np.linalg.inv(self.information[block]), self.known)

    @property
    def squared_noise(self) -> float:
        """The expected squared displacement of the mean by noise, in the metric of H."""
        return float(np.sum(self.information * self.noise))

    def squared_noise_given(self, prior: FloatArray) -> float:
        """Return the expected squared displacement of the posterior mean by noise, in the metric of H.

        `prior` is the information of a normal prior, shape (parameters, parameters).
        """
        block = np.ix_(self.known, self.known)
        return float(np.sum(self.information[block] * self.given(self.noise, prior)[block]))

    def given(self, uncertainty: FloatArray, prior: FloatArray) -> FloatArray:
        """Return the covariance of the posterior mean's error, given the covariance `uncertainty` of that of `mean`.

        `prior` is as in `squared_noise_given`. The result is zero for parameters without likelihood.
        """
        block = np.ix_(self.known, self.known)
        kept = np.linalg.solve(self.precision[block] + prior[block], self.precision[block])
        return embedded(kept @ uncertainty[block] @ kept.T, self.known)

    def dataset(self, labels: Sequence[str]) -> xr.Dataset:
        """Return the belief by parameter name: ``mean``, ``information``, ``noise``, ``bias`` and ``known``."""
        square = ("parameter", "parameter_again")
        return xr.Dataset(
            {
                "mean": ("parameter", np.where(self.known, self.mean, np.nan)),
                "information": (square, self.information),
                "noise": (square, self.noise),
                "bias": (square, self.bias),
                "known": ("parameter", self.known.astype(np.int8)),
            },
            coords={"parameter": list(labels), "parameter_again": list(labels)},
        )

    def log_density(self, theta: FloatArray) -> float:
        """Return the logarithm of the likelihood, up to a constant."""
        displacement = theta - self.mean
        return -0.5 * float(displacement @ self.precision @ displacement)

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log-likelihood."""
        return self.precision @ (self.mean - theta)


def belief_of(
    scores: Sequence[KnownScore],
    information: FloatArray,
    curvature_noise: FloatArray,
    frame: Frame,
    known: NDArray[np.bool_],
    *,
    n_units: int,
    structure: NDArray[np.bool_],
    third_order: float,
    smooth: bool = True,
    noise_alone: bool = False,
    one_sided: NDArray[np.bool_] | None = None,
    prior: tuple[FloatArray, FloatArray] | None = None,
) -> Belief:
    """Return the normal likelihood that scores at several points imply, given its curvature.

    `information` is that of all units, positive definite in the parameters of the scores (`known`). Along the axes of
    `frame` a unit's information is about the identity, or smaller where the prior is more informative.
    `curvature_noise` is the noise standard deviation of each diagonal entry along these axes; that of an off-diagonal
    entry is the geometric mean of two of them. `structure` marks the entries that a unit's curvature can have; the
    noise of the others was removed. Third-order terms are `third_order` times the squared distance in the metric of one
    unit's information: in all directions and, if log-likelihoods are `smooth`, along the displacement too. With
    `noise_alone`, V contains the noise of the scores only, as if nothing were clipped and the curvature exact, except
    along axes whose curvature noise is clearly larger than the median: their curvature is mostly noise. Along the axes
    of `one_sided` parameters all long scores have one sign, so that the bias of clipping may lie along a single axis.

    Third-order terms and the noise of the curvature are evaluated over the displacement to the posterior mean, since
    without information the maximum may be arbitrarily far away. `prior` is the information of a normal prior and its
    gradient at the last score, shape (parameters, parameters) and (parameters,); without it, the maximum is used.
    """
    block = np.ix_(known, known)
    to_frame, back = frame.preconditioner[block].T, frame.back[block]
    possible = structure[block].astype(np.float64)
    size, density = len(possible), float(possible.mean())  # the part of entries that are not structural zeros
    noises = [(factor := to_frame @ score.noise[known]) @ factor.T for score in scores]
    along = _known_along(to_frame @ information[block] @ to_frame.T, noises)
    information = embedded(back @ along @ back.T, known)
    inverse = np.linalg.inv(along)
    origin = scores[-1].theta
    places = [back.T @ (score.theta - origin)[known] for score in scores]
    # Each score is moved to the point of the last: covariances of scores are inverted at it. Those of the maximum have
    # the inverse information on both sides, which overflows along directions without information.
    moved = [along @ place + to_frame @ score.gradient[known] for score, place in zip(scores, places, strict=True)]
    of_prior, slope = prior or (np.zeros_like(information), np.zeros(known.size))
    under_prior = to_frame @ of_prior[block] @ to_frame.T, to_frame @ slope[known]
    estimate, of_estimate = _under_prior(moved[-1], noises[-1], along, noises[-1], *under_prior)
    for _ in range(4):  # the third-order error depends on the displacement, which all scores estimate
        precisions, errors = [], []
        for score, place, noise in zip(scores, places, noises, strict=True):
            offset = estimate - place
            squared, per_unit = float(offset @ offset), float(offset @ along @ offset) / n_units
            not_noise = max(1.0 - float(np.trace(of_estimate)) / max(squared, np.finfo(float).tiny), _LEAST_OF_DISTANCE)
            squared_error = (third_order * per_unit) ** 2 * n_units / size
            isotropic = density * squared_error + score.bias**2 / float(np.trace(along))
            by_curvature = not_noise * _variance_of_product(curvature_noise, possible, offset)
            # Most of the third-order error lies along the displacement and is not shared among the parameters.
            change = along @ offset
            along_change = smooth * (third_order * not_noise) ** 2 * per_unit * np.outer(change, change)
            errors.append(noise + by_curvature)
            precisions.append(np.linalg.inv(noise + by_curvature + isotropic * along + along_change))
        together = np.linalg.inv(np.sum(precisions, axis=0))
        weights = [together @ precision for precision in precisions]
        score_together, of_score = np.einsum("ijk,ik->j", weights, moved), _averaged(weights, noises)
        # The third-order error of a long displacement is no reason to shrink towards the prior: it is left out.
        estimate, of_estimate = _under_prior(score_together, of_score, along, _averaged(weights, errors), *under_prior)
    maximum, of_maximum = inverse @ score_together, inverse @ of_score @ inverse
    # All scores share the noise of the curvature, and about the same bias. Row k of `offsets` is the weighted
    # displacement from the points of the scores to `estimate`, by the weights of entry k of the score on itself alone.
    offsets = estimate - np.transpose([np.diag(weight) for weight in weights]) @ np.array(places)
    by_chance = float(np.sum(along * of_estimate)) / np.maximum(
        np.sum(offsets @ along * offsets, axis=1), np.finfo(float).tiny
    )
    offsets *= np.sqrt(np.clip(1.0 - by_chance, _LEAST_OF_DISTANCE, 1.0))[:, None]
    if noise_alone:
        least = _CLEARLY_NOISIER * np.median(curvature_noise)
        curvature_noise = np.where(curvature_noise > least, curvature_noise, 0.0)
    spread = curvature_noise * offsets.T
    of_curvature = _variance_of_product(curvature_noise, possible, offsets) + 0.5 * possible * spread * spread.T
    biased = along if one_sided is None else along + size * np.diag(np.where(one_sided[known], np.diag(along), 0.0))
    lost = sum(float(np.trace(weight)) * score.bias for weight, score in zip(weights, scores, strict=True))
    mean_bias = 0.0 if noise_alone else lost / size
    as_parameters = np.linalg.inv(back.T)
    mean = origin.copy()
    mean[known] += as_parameters @ maximum
    noise, bias = (
        embedded(as_parameters @ each @ as_parameters.T, known)
        for each in (
            of_maximum + inverse @ of_curvature @ inverse,
            mean_bias**2 / np.trace(along) * inverse @ biased @ inverse,
        )
    )
    traces = float(np.trace(of_curvature @ inverse)), float(np.trace(along @ of_maximum))
    belief = Belief(mean, information, noise, bias, known, traces[0] / sum(traces) if traces[0] > 0.0 else 0.0)
    if not (np.isfinite(belief.mean).all() and np.isfinite(belief.noise).all()):
        raise NotComputable("What scores say together is no finite number.")
    return belief


def _known_along(information: FloatArray, noises: Sequence[FloatArray]) -> FloatArray:
    """Return the information with eigenvalues raised to the range of floating point, given the scores' noise."""
    least = _LEAST_KNOWN * np.sqrt(min(np.trace(noise) for noise in noises) / len(information))
    values, axes = np.linalg.eigh(positive_definite(information))
    return np.asarray((axes * np.maximum(values, least)) @ axes.T)


def _averaged(weights: Sequence[FloatArray], covariances: Sequence[FloatArray]) -> FloatArray:
    """Return the covariance of a weighted sum of independent terms."""
    return np.sum([weight @ each @ weight.T for weight, each in zip(weights, covariances, strict=True)], axis=0)


def _under_prior(
    score: FloatArray,
    noise: FloatArray,
    information: FloatArray,
    hidden: FloatArray,
    of_prior: FloatArray,
    slope: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the posterior mean and the covariance of its error by noise; those of the maximum if not finite.

    The likelihood is normal, with a `score` at 0 whose noise covariance is `noise`; the covariance of the score is the
    information plus `hidden`. The normal prior has the information `of_prior` and the gradient `slope` at 0.
    """
    with contextlib.suppress(*NUMERICAL_FAILURES):
        by_score = information @ np.linalg.inv(information + hidden)
        kept = np.linalg.inv(by_score @ information + of_prior)
        found, moved = kept @ (by_score @ score + slope), kept @ by_score
        of_found = moved @ noise @ moved.T
        if np.isfinite(found).all() and np.isfinite(of_found).all():
            return found, of_found
    inverse = np.linalg.inv(information)
    return inverse @ score, inverse @ noise @ inverse


def _variance_of_product(curvature_noise: FloatArray, possible: FloatArray, displacement: FloatArray) -> FloatArray:
    """Return, as a diagonal matrix, the variance of each entry of the product of a noisy curvature and a displacement.

    A `displacement` with one row for each entry holds the vector by which that row of the curvature is multiplied.
    """
    return np.diag(0.5 * curvature_noise * np.sum(possible * curvature_noise * displacement**2, axis=1))


def with_drift(belief: Belief, last: FloatArray, drift: float, n_units: int) -> Belief:
    """Return a likelihood with a larger variance of its mean, for the curvature changes after the `last` score.

    `drift` is the relative change of the curvature over a distance of 1, in the metric of one unit's information. On
    average over the displacement the curvature is off by half the change, and so is the displacement, at most by its
    length.
    """
    displacement = np.where(belief.known, belief.mean - last, 0.0)
    part = min(1.0, 0.5 * drift * float(np.sqrt(displacement @ belief.information @ displacement / n_units)))
    return replace(belief, bias=belief.bias + part**2 * np.outer(displacement, displacement))


def updated(belief: Belief, place: int, error: float, *, noise: float, bias: float, doubt: float) -> Belief:
    """Return the likelihood after a Kalman update by one more score: that of the logarithm of a scale or a shape.

    The score exceeds the prediction of the likelihood by `error`, with a standard deviation `noise` and a clipping bias
    `bias`. The information on this parameter may be wrong by the relative error `doubt`, and so may the step.
    Third-order terms add an error of d² to a step of d in a logarithm.
    """
    along, covariance = belief.information[place], belief.noise + belief.bias
    noise, bias = (1.0 + doubt) * noise, (1.0 + doubt) * bias
    gain = covariance @ along
    gain = gain / max(float(along @ gain) + noise**2 + bias**2, np.finfo(float).tiny)
    off = (doubt + abs(error * float(gain[place]))) * error
    kept, outer = np.eye(gain.size) - np.outer(gain, along), np.outer(gain, gain)
    return replace(
        belief,
        mean=belief.mean + error * gain,
        noise=kept @ belief.noise @ kept.T + noise**2 * outer,
        bias=kept @ belief.bias @ kept.T + (bias**2 + off**2) * outer,
    )


def most_likely(
    prior: PriorDensity,
    likelihood: Belief,
    start: FloatArray,
    hyperparameters: NDArray[np.bool_],
    bounds: Bounds = NO_BOUNDS,
) -> FloatArray:
    """Return about the posterior mean under the prior: a mode, with the scales of hierarchies marginalised.

    The joint mode of a hierarchy's scale and its members has a scale of zero. `hyperparameters`, which only the prior
    determines, are therefore moved to a mode of their marginal density, by a normal approximation of the integral over
    the others. Parameters that are neither `hyperparameters` nor known to the likelihood stay at `start`. Others stay
    within the `bounds`, shape (parameters,), between which `start` lies.
    """
    from scipy.optimize import minimize  # noqa: PLC0415  slow to import

    apart = np.flatnonzero(hyperparameters)

    def log_density(theta: FloatArray) -> float:
        found = prior.log_density(theta) + likelihood.log_density(theta)
        return found if np.isfinite(found) else -np.inf

    def inner(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mode over the likelihood's parameters, the others fixed, and the last curvature on the path to it.

        Each Newton step is halved until the density is larger; the last one gains less than `_LEAST_GAIN`.
        """
        value, curvature = log_density(theta), np.zeros((0, 0))
        for _ in range(_MODE_STEPS):
            step = np.zeros_like(theta)
            try:
                gradient = prior.gradient(theta) + likelihood.gradient(theta)
                at_bounds = np.where(gradient > 0.0, theta >= bounds[1], theta <= bounds[0])
                block = np.flatnonzero(likelihood.known & ~at_bounds)
                curvature = likelihood.precision[np.ix_(block, block)] + prior_curvature(prior, theta, block)
                step[block] = np.linalg.solve(curvature, gradient[block])
            except NUMERICAL_FAILURES:
                if not curvature.size:
                    raise
                break  # keep the best point so far
            if not np.isfinite(step).all():
                break
            shorter = 1.0
            while shorter > 1e-6 and not log_density(np.clip(theta + shorter * step, *bounds)) > value:
                shorter *= 0.5
            if shorter <= 1e-6:
                break
            theta = np.clip(theta + shorter * step, *bounds)
            before, value = value, log_density(theta)
            if value - before < _LEAST_GAIN:
                break
        return theta, curvature

    theta, _ = inner(start)
    if not apart.size:
        return theta
    best, lowest = theta, np.inf

    def lost(values: FloatArray) -> float:
        nonlocal best, lowest
        at = best.copy()
        at[apart] = values
        if not np.isfinite(log_density(at)):
            return 1e300
        try:
            found, curvature = inner(at)
        except NUMERICAL_FAILURES:
            return 1e300
        sign, volume = np.linalg.slogdet(curvature)
        if sign <= 0.0:
            return 1e300
        value = -(log_density(found) - 0.5 * float(volume))
        if value < lowest:
            lowest, best = value, found
        return value

    lost(theta[apart])
    minimize(lost, theta[apart], method="BFGS", options={"maxiter": _HYPERPARAMETER_STEPS, "eps": 1e-4, "gtol": 1e-3})
    return best
