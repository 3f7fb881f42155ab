r"""What noisy scores and curvatures say of the log-likelihood near its maximum: one belief for search and posterior.

Near its maximum m the log-likelihood is :math:`-\tfrac12 (\theta - m)^T H (\theta - m)`, so that a released score is a
noisy observation of m:

.. math:: G_k = H (m - t_k) + e_k, \qquad e_k \sim N(0, S_k).

:math:`S_k` holds the noise of the release, which is known, and what may be off besides: terms of third order, the noise
of the curvature over the distance :math:`m - t_k`, and what clipping may have taken off. Given H, m is normal with mean
:math:`\hat m` and covariance V, and the likelihood of :math:`\theta` is

.. math:: N(\hat m;\ \theta,\ H^{-1} + V):

:math:`H^{-1}` is what the table itself does not know, V what privacy hides. The prior comes after that. A hierarchy
therefore shrinks what is noise, instead of taking it for variation between groups.

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

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.access import PriorDensity
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    Frame,
    NotComputable,
    embedded,
    positive_definite,
    prior_curvature,
)

#: Steps of Newton's method to a mode, and of the search for parameters that only the prior knows.
_MODE_STEPS, _HYPERPARAMETER_STEPS = 40, 40
_LEAST_GAIN = 1e-6
#: The noise of a curvature counts over the true distance, to about the posterior: of the squared one that scores tell,
#: what their own noise adds is taken off, but this part is left.
_LEAST_OF_DISTANCE = 0.1
#: An axis along which a curvature is so many times as noisy as along most has been whitened by noise. A step that took
#: that for knowledge went thousands of standard deviations along it, against a prior that knew better: 1 search of 8 at
#: epsilon 4, of levels and slopes of groups beside a raw covariate. Of 1.2, 2 and 3 on five such models 2 was the best,
#: or next to it; with doubt along all axes hierarchies hold steps back.
_CLEARLY_NOISIER = 2.0
#: Where rows tell nothing, noise puts the maximum no farther away than the inverse of this, in standard deviations of
#: what one unit tells: that is far beyond what priors allow, and near enough for floating point.
_LEAST_KNOWN = 1e-3


@dataclass(frozen=True, eq=False)
class KnownScore:
    """A released gradient of the log-likelihood of all units at `theta`.

    `noise` is a factor of the covariance of its noise; `bias` how long, along the axes of the frame, the sum that
    clipping has taken off may be: in a direction in proportion to the root of the information there.
    """

    theta: FloatArray
    gradient: FloatArray
    noise: FloatArray
    bias: float
    #: The logarithm of how large the curvature is there, by that at the start of the search.
    level: float = 0.0


@dataclass(frozen=True, eq=False)
class Belief:
    """A normal likelihood that knows of the noise in the releases."""

    #: The estimated maximum of the log-likelihood; of parameters that it does not depend on, any number.
    mean: FloatArray
    #: H: the curvature of the log-likelihood, zero where it does not depend on a parameter.
    information: FloatArray
    #: V: the covariance of the error of `mean` by noise, and an allowance for the bias of clipping.
    noise: FloatArray
    bias: FloatArray
    #: Which parameters the likelihood depends on, shape (parameters,).
    known: NDArray[np.bool_]
    #: The part of `noise`, by H, that is noise of the curvature over the distance from the last score to `mean`.
    curvature_share: float = 0.0

    @classmethod
    def from_dataset(cls, dataset: xr.Dataset, places: NDArray[np.intp]) -> "Belief":
        """Return what `dataset` wrote; each of its parameters is at one of `places`."""
        order = np.argsort(places)
        mean, known = dataset["mean"].values[order], dataset["known"].values[order].astype(bool)
        information, noise, bias = (
            dataset[name].values[np.ix_(order, order)] for name in ("information", "noise", "bias")
        )
        return cls(np.where(known, mean, 0.0), information, noise, bias, known)

    @functools.cached_property
    def precision(self) -> FloatArray:
        """The inverse of H⁻¹ + V, zero where the likelihood does not depend on a parameter."""
        return self.precision_with(self.noise + self.bias)

    def precision_with(self, uncertainty: FloatArray) -> FloatArray:
        """Return the inverse of H⁻¹ + V for another V."""
        block = np.ix_(self.known, self.known)
        covariance = np.linalg.inv(self.information[block]) + uncertainty[block]
        return embedded(positive_definite(np.linalg.inv(covariance), floor=1e-14), self.known)

    @property
    def pull(self) -> FloatArray:
        """What an error of the score is multiplied by before the posterior covariance moves the mean by it."""
        block = np.ix_(self.known, self.known)
        return embedded(self.precision[block] @ np.linalg.inv(self.information[block]), self.known)

    @property
    def squared_noise(self) -> float:
        """How far noise is expected to have moved the mean: the squared distance, in units of what all units tell."""
        return float(np.sum(self.information * self.noise))

    def squared_noise_given(self, prior: FloatArray) -> float:
        """Return how far noise is expected to have moved the posterior mean, as `squared_noise`.

        `prior` is the information of a normal prior, shape (parameters, parameters).
        """
        block = np.ix_(self.known, self.known)
        return float(np.sum(self.information[block] * self.given(self.noise, prior)[block]))

    def given(self, uncertainty: FloatArray, prior: FloatArray) -> FloatArray:
        """Return the covariance of the error of the posterior mean, where `uncertainty` is that of the error of `mean`.

        `prior` is as in `squared_noise_given`. Zero where the likelihood does not depend on a parameter.
        """
        block = np.ix_(self.known, self.known)
        kept = np.linalg.solve(self.precision[block] + prior[block], self.precision[block])
        return embedded(kept @ uncertainty[block] @ kept.T, self.known)

    def dataset(self, labels: Sequence[str]) -> xr.Dataset:
        """Return it under the names of parameters: ``mean``, ``information``, ``noise``, ``bias`` and ``known``."""
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
        away = theta - self.mean
        return -0.5 * float(away @ self.precision @ away)

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return its gradient."""
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
    """Return the likelihood by scores at points that may be far apart, given its curvature.

    `information` is that of all units, positive definite in the parameters that the scores are taken of (`known`).
    Along the axes of `frame` a unit's information is about the identity, or less where the prior tells more; and the
    noise there is `curvature_noise` of an axis' own entry, of that of two axes the root of their product. `structure`
    says which entries a unit's curvature can have: noise of the others was taken off. Terms of third order are
    `third_order` times the squared distance by the information of one unit: in all directions, and if log-likelihoods
    are `smooth` along the way, too. With `noise_alone`, V is the noise of the scores alone, as if nothing were clipped
    and the curvature exact, but for axes along which it is clearly noisier than along most: there little more than
    noise is known of it. Along the axes of `one_sided` parameters all long scores have one sign: what clipping takes
    off may be along one of them.

    What is missed, and the noise of the curvature, count over the way to where the posterior is: where rows tell
    nothing, the maximum may be anywhere. `prior` is the information of a normal prior and its slope at the last score,
    shape (parameters, parameters) and (parameters,); without one, the way to the maximum counts.
    """
    block = np.ix_(known, known)
    to_frame, back = frame.preconditioner[block].T, frame.back[block]
    there = structure[block].astype(np.float64)
    size, part = len(there), float(there.mean())  # of the entries
    noises = [(factor := to_frame @ score.noise[known]) @ factor.T for score in scores]
    along = _known_along(to_frame @ information[block] @ to_frame.T, noises)
    information = embedded(back @ along @ back.T, known)
    inverse = np.linalg.inv(along)
    origin = scores[-1].theta
    places = [back.T @ (score.theta - origin)[known] for score in scores]
    # Each score and its noise, at the place of the last: there all covariances are inverted. Those of the maximum are
    # the information's inverse on both sides of them, and where rows tell nothing too large for floating point.
    told = [along @ place + to_frame @ score.gradient[known] for score, place in zip(scores, places, strict=True)]
    of_prior, slope = prior or (np.zeros_like(information), np.zeros(known.size))
    under_prior = to_frame @ of_prior[block] @ to_frame.T, to_frame @ slope[known]
    near, of_near = _under_prior(told[-1], noises[-1], along, noises[-1], *under_prior)
    for _ in range(4):  # what is missed depends on the distance, which the scores tell together
        precisions, hidden = [], []
        for score, place, noise in zip(scores, places, noises, strict=True):
            away = near - place
            squared, told_by_one = float(away @ away), float(away @ along @ away) / n_units
            not_noise = max(1.0 - float(np.trace(of_near)) / max(squared, np.finfo(float).tiny), _LEAST_OF_DISTANCE)
            missed = (third_order * told_by_one) ** 2 * n_units / size
            besides = part * missed + score.bias**2 / float(np.trace(along))
            turned = not_noise * _variance_of_product(curvature_noise, there, away)
            # Most of what is missed lies along the way itself: there it is not shared among the parameters.
            way = along @ away
            straight = smooth * (third_order * not_noise) ** 2 * told_by_one * np.outer(way, way)
            hidden.append(noise + turned)
            precisions.append(np.linalg.inv(noise + turned + besides * along + straight))
        together = np.linalg.inv(np.sum(precisions, axis=0))
        weights = [together @ precision for precision in precisions]
        score_together, of_score = np.einsum("ijk,ik->j", weights, told), _averaged(weights, noises)
        # What is missed on a long way is no reason to believe the prior.
        near, of_near = _under_prior(score_together, of_score, along, _averaged(weights, hidden), *under_prior)
    found, by_noise = inverse @ score_together, inverse @ of_score @ inverse
    # The same noise of the curvature is in all of them, and about the same bias. Row k of `ways` is from the places of
    # the scores to `near`, weighed as entry k of the score is by the same entries: all others are left out.
    ways = near - np.transpose([np.diag(weight) for weight in weights]) @ np.array(places)
    by_chance = float(np.sum(along * of_near)) / np.maximum(np.sum(ways @ along * ways, axis=1), np.finfo(float).tiny)
    ways *= np.sqrt(np.clip(1.0 - by_chance, _LEAST_OF_DISTANCE, 1.0))[:, None]
    if noise_alone:
        least = _CLEARLY_NOISIER * np.median(curvature_noise)
        curvature_noise = np.where(curvature_noise > least, curvature_noise, 0.0)
    moved = curvature_noise * ways.T
    of_curvature = _variance_of_product(curvature_noise, there, ways) + 0.5 * there * moved * moved.T
    biased = along if one_sided is None else along + size * np.diag(np.where(one_sided[known], np.diag(along), 0.0))
    lost = sum(float(np.trace(weight)) * score.bias for weight, score in zip(weights, scores, strict=True))
    mean_bias = 0.0 if noise_alone else lost / size
    as_parameters = np.linalg.inv(back.T)
    mean = origin.copy()
    mean[known] += as_parameters @ found
    noise, bias = (
        embedded(as_parameters @ each @ as_parameters.T, known)
        for each in (
            by_noise + inverse @ of_curvature @ inverse,
            mean_bias**2 / np.trace(along) * inverse @ biased @ inverse,
        )
    )
    traces = float(np.trace(of_curvature @ inverse)), float(np.trace(along @ by_noise))
    belief = Belief(mean, information, noise, bias, known, traces[0] / sum(traces) if traces[0] > 0.0 else 0.0)
    if not (np.isfinite(belief.mean).all() and np.isfinite(belief.noise).all()):
        raise NotComputable("What scores say together is no finite number.")
    return belief


def _known_along(information: FloatArray, noises: Sequence[FloatArray]) -> FloatArray:
    """Return an information in which no direction is less known than floating point needs, given scores' noise."""
    least = _LEAST_KNOWN * np.sqrt(min(np.trace(noise) for noise in noises) / len(information))
    values, axes = np.linalg.eigh(positive_definite(information))
    return np.asarray((axes * np.maximum(values, least)) @ axes.T)


def _averaged(weights: Sequence[FloatArray], covariances: Sequence[FloatArray]) -> FloatArray:
    """Return the covariance of a weighed sum of independent terms."""
    terms = [weight @ each @ weight.T for weight, each in zip(weights, covariances, strict=True)]
    return np.asarray(np.sum(terms, axis=0))


def _under_prior(
    score: FloatArray,
    noise: FloatArray,
    information: FloatArray,
    hidden: FloatArray,
    of_prior: FloatArray,
    slope: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the posterior mean, and the covariance of its error by noise; the likelihood's where they are no numbers.

    The likelihood is normal, with a `score` at 0 whose error by noise has the covariance `noise`; the covariance of
    the score is the information and what is `hidden` of it. The normal prior has the information `of_prior`, and a
    slope at 0.
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


def _variance_of_product(curvature_noise: FloatArray, there: FloatArray, way: FloatArray) -> FloatArray:
    """Return the variance of each entry of the product of a noisy curvature and a way, on the diagonal of a matrix.

    `way` may have a row for each entry: the way that its own row of the curvature is multiplied by.
    """
    return np.diag(0.5 * curvature_noise * np.sum(there * curvature_noise * way**2, axis=1))


def doubted(belief: Belief, last: FloatArray, bending: float, n_units: int) -> Belief:
    """Return a likelihood that also doubts its mean, because the curvature changes on the way from the `last` score.

    `bending` is the part by which it changes over a distance of 1, in units of what one unit tells. On average over the
    way the curvature is off by half the change, and so is the way: by no more than itself.
    """
    away = np.where(belief.known, belief.mean - last, 0.0)
    part = min(1.0, 0.5 * bending * float(np.sqrt(away @ belief.information @ away / n_units)))
    return replace(belief, bias=belief.bias + part**2 * np.outer(away, away))


def informed(belief: Belief, place: int, error: float, *, noise: float, bias: float, doubt: float) -> Belief:
    """Return a likelihood that knows of one more score: that of the logarithm of a scale or a shape.

    Kalman's update. The score is `error` more than the likelihood says it is, with a standard deviation of its `noise`,
    and of the `bias` of what clipping may have taken off. The information there may be off by the part `doubt` of
    itself, and so may the step. A step of d of a logarithm is off by d² besides: terms of third order.
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
    prior: PriorDensity, likelihood: Belief, start: FloatArray, hyperparameters: NDArray[np.bool_]
) -> FloatArray:
    """Return about the posterior mean under the prior: a mode, where no scale of a hierarchy runs away.

    A mode over a hierarchy's scale and its members together is where the scale is zero. Parameters that only the prior
    knows are therefore moved to a mode of their own density, in which the others are integrated over by a normal
    approximation. Parameters that are neither `hyperparameters` nor known to the likelihood stay at `start`.
    """
    from scipy.optimize import minimize  # noqa: PLC0415  slow to import

    apart = np.flatnonzero(hyperparameters)
    block = np.flatnonzero(likelihood.known)

    def log_density(theta: FloatArray) -> float:
        found = prior.log_density(theta) + likelihood.log_density(theta)
        return found if np.isfinite(found) else -np.inf

    def inner(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mode over the parameters of the likelihood, the others held, and the curvature before its end.

        By Newton's steps, each halved until the density is larger, until one gains less than `_LEAST_GAIN`.
        """
        value, step, curvature = log_density(theta), np.zeros_like(theta), np.zeros((0, 0))
        for _ in range(_MODE_STEPS):
            try:
                curvature = likelihood.precision[np.ix_(block, block)] + prior_curvature(prior, theta, block)
                step[block] = np.linalg.solve(curvature, (prior.gradient(theta) + likelihood.gradient(theta))[block])
            except NUMERICAL_FAILURES:
                if not curvature.size:
                    raise
                break  # keep the best point so far
            if not np.isfinite(step).all():
                break
            shorter = 1.0
            while shorter > 1e-6 and not log_density(theta + shorter * step) > value:
                shorter *= 0.5
            if shorter <= 1e-6:
                break
            theta = theta + shorter * step
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
