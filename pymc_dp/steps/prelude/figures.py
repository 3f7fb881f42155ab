"""Figures of how good draws of a surrogate are, by what was released of it."""

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.prelude.belief import Belief
from pymc_dp.steps.prelude.curvature import KnownCurvature, groupings_of, members_of
from pymc_dp.steps.prelude.free_hmc import FreeHMC
from pymc_dp.steps.prelude.newton import NUMERICAL_FAILURES, positive_definite

#: Of what may be all noise, this part of a curvature is believed.
_LEAST_CERTAIN = 0.01
#: A likelihood this many times as wide as without noise is nothing but noise: draws then are those of the prior.
_NOTHING_BUT_NOISE = 100.0


def _covariance_if(precision: FloatArray, belief: Belief, covariance: FloatArray) -> FloatArray:
    """Return what the covariance of draws would be, were this the precision of the likelihood."""
    of_prior = np.linalg.inv(positive_definite(covariance)) - belief.precision
    return np.linalg.inv(positive_definite(of_prior + precision))


def draws_of_doubt(belief: Belief, kernel: FreeHMC, draws: list[FloatArray]) -> list[FloatArray]:
    """Return draws nearer to their mean, in proportion to how much of their covariance C is not noise of privacy.

    Of the covariance D C⁻¹ D, with D that of draws without this noise. If the likelihood's maximum is moved by what the
    log-likelihood changes by along a vector g, it is moved by D g: by √(gᵀ D C⁻¹ D g) standard deviations of the draws.
    """
    covariance = positive_definite(kernel.covariance)
    nearer = np.linalg.solve(covariance, _covariance_if(belief.information, belief, covariance)).T
    return [kernel.mean + nearer @ (each - kernel.mean) for each in draws]


def figures_beside_a_prior(
    belief: Belief, precision: FloatArray, kernel: FreeHMC
) -> tuple[dict[str, FloatArray], dict[str, float]]:
    """Return what noise does to draws beside their prior, by parameter, and root mean squares over parameters.

    How many times as wide as without noise draws are, and as their prior near the mode; and by how many of their
    standard deviations the prior moves their mean beyond what it would without noise: by a normal prior with the slope
    and the curvature that it has there. NaN where only the prior knows. A prior that was meant to say little says more
    beside a likelihood that noise has made wide. The means of widths are with what is allowed for bias, and without.

    `precision` is about that of the draws near their mode, and `kernel` draws them.
    """
    covariance, unknown = kernel.covariance, np.where(belief.known, 1.0, np.nan)
    without_noise, whole, by_noise = (
        _covariance_if(each, belief, covariance)
        for each in (belief.information, belief.precision, belief.precision_with(belief.noise))
    )
    widening, widening_by_noise = (
        unknown * np.sqrt(np.diag(wide) / np.diag(without_noise)) for wide in (whole, by_noise)
    )
    of_prior = np.linalg.inv(positive_definite(precision - belief.precision))
    from_maximum = kernel.mean - np.where(belief.known, belief.mean, kernel.mean)
    moved = without_noise @ (belief.information - belief.precision) @ from_maximum
    by_parameter = {
        "widening": widening,
        "width_of_prior": unknown * np.sqrt(np.diag(covariance) / np.diag(of_prior)),
        "prior_pull": unknown * (moved / np.sqrt(np.diag(covariance))),
    }
    means = (float(np.sqrt(np.mean(each[np.isfinite(each)] ** 2))) for each in (widening, widening_by_noise))
    return by_parameter, dict(zip(("widening", "widening_by_noise"), means, strict=True))


def nothing_but_noise(belief: Belief) -> bool:
    """Return whether the likelihood says nothing beside its noise: then draws are those of the prior."""
    block = np.ix_(belief.known, belief.known)
    hidden = np.diag((belief.noise + belief.bias)[block]) / np.diag(np.linalg.inv(belief.information[block]))
    return bool(np.sqrt(1.0 + np.median(hidden)) > _NOTHING_BUT_NOISE)


def doubtful_widths(
    belief: Belief,
    curvature: KnownCurvature,
    prior_information: FloatArray,
    largest_noise: float,
    to_parameters: FloatArray,
) -> tuple[float, FloatArray]:
    """Return by which factor noise of the released curvature may have made draws too narrow: at most, and by parameter.

    What privacy hides of the likelihood's maximum is known whatever the curvature is. What the table itself does not
    know is its inverse: where noise reaches as far as `largest_noise`, the largest eigenvalue of noise alone, that may
    be larger. Little follows where the first is most, or the prior tells more than either. Infinite where matrices are
    no finite numbers: what was released is kept all the same. NaN for parameters that are not `to_parameters` times
    those that the curvature is about.
    """
    block, axes = np.ix_(curvature.places, curvature.places), to_parameters[:, curvature.places]
    about = np.any(axes != 0.0, axis=1)
    try:
        values, vectors = np.linalg.eigh(curvature.raw[block])
        sizes = np.maximum(np.abs(values), largest_noise)
        least = np.maximum(values - largest_noise, _LEAST_CERTAIN * sizes)
        along = curvature.frame.back[block] @ vectors
        from_prior, hidden = prior_information[block], (belief.noise + belief.bias)[block]
        draws, widest = (
            np.linalg.inv(from_prior + np.linalg.inv(np.linalg.inv(information) + hidden))
            for information in (curvature.matrix[block], (along * least) @ along.T)
        )
        factor = np.linalg.inv(np.linalg.cholesky(positive_definite(draws)))
        largest = float(np.sqrt(max(1.0, np.linalg.eigvalsh(factor @ widest @ factor.T)[-1])))
        by_parameter = np.full(about.size, np.nan)
        of_parameters = (np.einsum("pi,ij,pj->p", axes[about], each, axes[about]) for each in (widest, draws))
        by_parameter[about] = np.sqrt(np.maximum(1.0, np.divide(*of_parameters)))
    except NUMERICAL_FAILURES:
        return np.inf, np.where(about, np.inf, np.nan)
    return largest, by_parameter


def noise_of_members(belief: Belief, prior_information: FloatArray, structure: NDArray[np.bool_] | None) -> float:
    """Return the noise in members of groups, over what their prior lets them vary: medians of variances; or NaN.

    By their prior where scales of hierarchies are about the most likely ones. NaN where no parameter is one of a prior.
    Noise that members of one grouping, which share no row, have in common moves their mean, and not how much they vary.
    Beside an intercept of its own, rows hardly know this mean, and its noise would hide all else: what the prior tells
    of the mean, and of parameters besides, is therefore used first.
    """
    if structure is None or belief.known.all() or not (members := members_of(structure, belief.known)).any():
        return np.nan
    together = np.zeros(structure.shape)
    for grouping in groupings_of(structure, belief.known):
        together[np.ix_(grouping, grouping)] = 1.0 / grouping.size
    block, of_means = np.ix_(members, members), together @ prior_information @ together
    noise = belief.given(belief.noise + belief.bias, of_means)[block]
    others = ~structure[block] & ~np.eye(int(members.sum()), dtype=bool)
    in_common = np.sum(noise * others, axis=1) / others.sum(axis=1)
    hidden = np.maximum(np.diag(noise) - in_common, 0.0)
    return float(np.median(hidden * np.diag(prior_information)[members]))


def figures_of_check(missed: FloatArray, noise_std: float) -> dict[str, float]:
    """Return the standard deviation of what is missed at draws, each of them with this noise, and its own noise.

    By that many standard deviations of the draws their mean is off along one direction at most. Over the root of the
    number of parameters it would hide one that is far off, such as the scale of a hierarchy in the non-centred form.
    """
    squared = max(float(np.var(missed, ddof=1)) - noise_std**2, 0.0)
    of_square = noise_std * np.sqrt((2.0 * noise_std**2 + 4.0 * squared) / (missed.size - 1))
    error = np.sqrt(squared)
    # Near zero the root is no straight line: to which side it may be farther off.
    below, above = error - np.sqrt(max(squared - of_square, 0.0)), np.sqrt(squared + of_square) - error
    return {"surrogate_error": float(error), "surrogate_error_noise_std": float(max(below, above))}
