"""Diagnostics of the draws of a surrogate, from the releases."""

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.prelude.belief import Belief
from pymc_dp.steps.prelude.curvature import KnownCurvature, groupings_of, members_of
from pymc_dp.steps.prelude.free_hmc import FreeHMC
from pymc_dp.steps.prelude.newton import NUMERICAL_FAILURES, positive_definite

#: The least part of an eigenvalue that is not attributed to noise.
_LEAST_CERTAIN = 0.01
#: Draws are those of the prior if noise makes the likelihood this many times as wide.
_DOMINANT_NOISE = 100.0


def _covariance_if(precision: FloatArray, belief: Belief, covariance: FloatArray) -> FloatArray:
    """Return the covariance that draws would have with this `precision` of the likelihood."""
    of_prior = np.linalg.inv(positive_definite(covariance)) - belief.precision
    return np.linalg.inv(positive_definite(of_prior + precision))


def narrowed_draws(belief: Belief, kernel: FreeHMC, draws: list[FloatArray]) -> list[FloatArray]:
    """Return draws moved towards their mean, so that their covariance C lacks the contribution of privacy noise.

    The new covariance is D C⁻¹ D, where D is that of draws without this noise. If the log-likelihood has an unmodelled
    slope g, its maximum moves by D g: by √(gᵀ D C⁻¹ D g) standard deviations of the draws.
    """
    covariance = positive_definite(kernel.covariance)
    shrinkage = np.linalg.solve(covariance, _covariance_if(belief.information, belief, covariance)).T
    return [kernel.mean + shrinkage @ (each - kernel.mean) for each in draws]


def figures_beside_a_prior(
    belief: Belief, precision: FloatArray, kernel: FreeHMC
) -> tuple[dict[str, FloatArray], dict[str, float]]:
    """Return the effect of noise on draws relative to their prior, by parameter, and root mean squares over parameters.

    The widths of draws relative to those without noise, and to the prior near the mode; and the displacement of their
    mean by the prior, in their standard deviations, beyond that without noise, for a normal prior with the slope and
    the curvature at the mode. NaN where only the prior has information. A weakly informative prior becomes informative
    for a likelihood that noise has widened. Root mean squares of widths are with the allowance for bias, and without.

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


def noise_dominates(belief: Belief) -> bool:
    """Return whether noise makes the likelihood uninformative: draws then are those of the prior."""
    block = np.ix_(belief.known, belief.known)
    hidden = np.diag((belief.noise + belief.bias)[block]) / np.diag(np.linalg.inv(belief.information[block]))
    return bool(np.sqrt(1.0 + np.median(hidden)) > _DOMINANT_NOISE)


def doubtful_widths(
    belief: Belief,
    curvature: KnownCurvature,
    prior_information: FloatArray,
    largest_noise: float,
    to_parameters: FloatArray,
) -> tuple[float, FloatArray]:
    """Return by which factor noise of the curvature may have made draws too narrow: at most, and by parameter.

    The privacy variance of the likelihood's maximum does not depend on the curvature. The sampling variance is the
    inverse curvature: where noise reaches `largest_noise`, the largest eigenvalue of noise alone, it may be larger. The
    factor is near 1 where the privacy variance is most, or the prior is more informative. It is infinite where matrices
    are not finite: nothing is raised after a release. It is NaN for parameters without a curvature, by `to_parameters`.
    """
    block, axes = np.ix_(curvature.places, curvature.places), to_parameters[:, curvature.places]
    affected = np.any(axes != 0.0, axis=1)
    try:
        values, vectors = np.linalg.eigh(curvature.raw[block])
        magnitudes = np.maximum(np.abs(values), largest_noise)
        least = np.maximum(values - largest_noise, _LEAST_CERTAIN * magnitudes)
        along = curvature.frame.back[block] @ vectors
        from_prior, hidden = prior_information[block], (belief.noise + belief.bias)[block]
        draws, widest = (
            np.linalg.inv(from_prior + np.linalg.inv(np.linalg.inv(information) + hidden))
            for information in (curvature.matrix[block], (along * least) @ along.T)
        )
        factor = np.linalg.inv(np.linalg.cholesky(positive_definite(draws)))
        largest = float(np.sqrt(max(1.0, np.linalg.eigvalsh(factor @ widest @ factor.T)[-1])))
        by_parameter = np.full(affected.size, np.nan)
        of_parameters = (np.einsum("pi,ij,pj->p", axes[affected], each, axes[affected]) for each in (widest, draws))
        by_parameter[affected] = np.sqrt(np.maximum(1.0, np.divide(*of_parameters)))
    except NUMERICAL_FAILURES:
        return np.inf, np.where(affected, np.inf, np.nan)
    return largest, by_parameter


def noise_of_members(belief: Belief, prior_information: FloatArray, structure: NDArray[np.bool_] | None) -> float:
    """Return the median over members of groups of noise variance over prior variance; NaN without a hierarchy.

    The prior variance is that at likely values of the hierarchies' scales. Noise shared by the members of one grouping,
    which have no row in common, moves their mean and not their spread. With an intercept in the model, rows hardly
    determine this mean, and its noise would dominate: the prior's information on it and on others is therefore used
    first.
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
    """Return the standard deviation, beyond noise, of the errors `missed` at draws, and the noise of that figure.

    It bounds the displacement of the mean along one direction, in standard deviations of the draws. Divided by the root
    of the number of parameters it would hide one parameter with a large error, such as a hierarchy's scale.
    """
    squared = max(float(np.var(missed, ddof=1)) - noise_std**2, 0.0)
    of_square = noise_std * np.sqrt((2.0 * noise_std**2 + 4.0 * squared) / (missed.size - 1))
    error = np.sqrt(squared)
    # Near zero the root is not linear: the larger of the two one-sided errors.
    below, above = error - np.sqrt(max(squared - of_square, 0.0)), np.sqrt(squared + of_square) - error
    return {"surrogate_error": float(error), "surrogate_error_noise_std": float(max(below, above))}
