"""Released curvatures: the correction of their noise, and the combination of several releases."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.newton import Frame, NotComputable, embedded, unpacked

#: The smallest eigenvalue of a corrected curvature, as a part of the largest.
_LEAST_PART = 1e-4
#: Two curvatures differ by the excess of their difference over this many standard deviations of noise.
_CLEAR_OF_NOISE = 2.0
#: The number of alternating projections onto the matrices with a structure and those without some directions.
_PROJECTIONS = 30
#: Entries of a frame are zero below this part of the largest of their axis.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class KnownCurvature:
    """A curvature of the log-likelihood of all units, from one release or several."""

    #: Positive definite in `places`, zero elsewhere, shape (parameters, parameters).
    matrix: FloatArray
    #: The released matrix along the axes of `frame`, whose eigenvalues noise may have made small or negative; and the
    #: noise standard deviation of its entries, as in `pymc_dp.release.interface.Release`.
    raw: FloatArray
    noise_std: float
    frame: Frame
    #: The parameters with a curvature, shape (parameters,).
    places: NDArray[np.bool_]
    #: Directions along which the likelihood is constant, shape (parameters, directions); None for none.
    unidentified: FloatArray | None = None

    def divided_by(self, factor: float) -> "KnownCurvature":
        """Return the curvature and its noise, divided by a number."""
        raw, noise_std = self.raw / factor, self.noise_std / factor
        return replace(self, matrix=self.matrix / factor, raw=raw, noise_std=noise_std)

    def noise_along(self, frame: Frame) -> FloatArray:
        """Return the noise standard deviation of the diagonal entries along the axes of another frame, shape (places,).

        That of an off-diagonal entry is about the geometric mean of two of them, divided by √2.
        """
        block = np.ix_(self.places, self.places)
        to_frame = (frame.preconditioner.T @ self.frame.back)[block]
        return self.noise_std * np.sum(to_frame**2, axis=1)


def floored(
    raw: FloatArray,
    noise_std: float,
    frame: Frame,
    places: NDArray[np.bool_],
    *,
    floor: float,
    nonnegative: bool,
    unidentified: FloatArray | None = None,
    weights: FloatArray | None = None,
) -> KnownCurvature:
    """Return a curvature whose eigenvalues along the axes of `frame`, over `weights`, are about `floor` or more.

    The released noise along `unidentified` directions is removed first. `weights`, shape (parameters,), are the roots
    of the eigenvalues expected along the axes; by default they are 1. If no unit has a negative eigenvalue
    (`nonnegative`), a negative one is a small one plus noise. Otherwise the log-likelihood is convex in that direction,
    and the sign of the eigenvalue is reversed.
    """
    block = np.ix_(places, places)
    possible = raw[block] != 0.0
    raw = _without(raw, possible, frame, places, unidentified)
    expected = 1.0 if weights is None else np.outer(weights[places], weights[places])
    found = raw[block] / expected
    for _ in range(12):  # restoring the structural zeros changes the eigenvalues: alternate both
        values, vectors = np.linalg.eigh(found)
        least = max(floor, _LEAST_PART * float(np.abs(values).max()))
        if values[0] >= 0.5 * least:
            break
        sizes = np.maximum(values if nonnegative else np.abs(values), least)
        found = np.where(possible, (vectors * sizes) @ vectors.T, 0.0)
    else:
        found = found + np.eye(len(found)) * max(0.0, least - float(np.linalg.eigvalsh(found)[0]))
    matrix = frame.back @ embedded(found * expected, places) @ frame.back.T
    if not np.isfinite(matrix).all():
        raise NotComputable("The released curvature is too large for floating point.")
    return KnownCurvature(matrix, raw, noise_std, frame, places, unidentified)


def _without(
    raw: FloatArray,
    possible: NDArray[np.bool_],
    frame: Frame,
    places: NDArray[np.bool_],
    unidentified: FloatArray | None,
) -> FloatArray:
    """Return about the nearest matrix that is zero outside `possible` and along `unidentified` directions.

    Noise in entries between these directions and others would make long steps along them.
    """
    if unidentified is None:
        return raw
    block = np.ix_(places, places)
    along = frame.back[block].T @ unidentified[places]
    across = np.eye(len(along)) - along @ np.linalg.pinv(along)
    found = raw[block]
    for _ in range(_PROJECTIONS):
        found = np.where(possible, across @ found @ across, 0.0)
    return embedded(found, places)


def pooled(
    late: KnownCurvature,
    early: KnownCurvature,
    possible: NDArray[np.bool_],
    *,
    floor: float,
    nonnegative: bool,
    drifts: bool,
) -> KnownCurvature:
    """Return the mean of two released curvatures, each entry weighted by its precision.

    In the basis in which both frames are diagonal the noise of an entry is a product of two numbers in either release.
    The result is returned in a frame along which its noise is about the same in all entries.

    `possible` marks the entries that are not structural zeros along the axes of the late release. If some are zero,
    these axes are kept, since others would not keep the structure, and the noise of the early release is that of its
    diagonal along them. If the curvature `drifts` from point to point, the part of their squared difference beyond
    noise is added to the variance of the early release. `floor` is in multiples of the noise.
    """
    places = late.places
    block = np.ix_(places, places)
    to_late = (late.frame.preconditioner.T @ early.frame.back)[block]
    if possible[block].all():
        axes, sizes, _ = np.linalg.svd(to_late)
    else:
        axes, sizes = np.eye(len(to_late)), np.sqrt(np.sum(to_late**2, axis=1))
    of_early = (early.noise_std * np.outer(sizes, sizes)) ** 2
    of_late = np.full_like(of_early, late.noise_std**2)
    along_late = axes.T @ late.raw[block] @ axes
    along_early = axes.T @ np.where(possible[block], to_late @ early.raw[block] @ to_late.T, 0.0) @ axes
    if drifts:
        weights = (of_early + of_late) ** -2.0
        excess = (along_late - along_early) ** 2 - of_early - of_late
        of_early = of_early + max(0.0, float(np.sum(weights * excess) / np.sum(weights)))
    variance = 1.0 / (1.0 / of_late + 1.0 / of_early)
    mean = (along_late / of_late + along_early / of_early) * variance
    noise = np.diag(variance) ** 0.25
    preconditioner = embedded((late.frame.preconditioner[block] @ axes) / noise, places)
    frame = Frame(preconditioner, embedded((late.frame.back[block] @ axes) * noise, places))
    whole = embedded(mean / np.outer(noise, noise), places)
    return floored(whole, 1.0, frame, places, floor=floor, nonnegative=nonnegative, unidentified=late.unidentified)


def curvature_drift(early: KnownCurvature, late: KnownCurvature, step: FloatArray, n_units: int) -> float:
    """Return the relative change of the curvature over a distance of 1, from one release to another.

    It is taken along the `step` between the points, in the metric of one unit's information, less an allowance for
    noise.
    """
    step = np.where(late.places, step, 0.0)
    of_early, of_late = (float(step @ known.matrix @ step) for known in (early, late))
    noises = (known.noise_std * float(np.sum((known.frame.back.T @ step) ** 2)) for known in (early, late))
    change = abs(of_early - of_late) - _CLEAR_OF_NOISE * math.hypot(*noises)
    distance = math.sqrt(max(0.0, of_early + of_late) / 2.0 / n_units)
    return max(0.0, change) / max(of_early, of_late) / distance if distance > 0.0 else 0.0


def after_step(
    known: KnownCurvature,
    step: FloatArray,
    change: FloatArray,
    noise: FloatArray,
    possible: NDArray[np.bool_],
    *,
    floor: float,
    nonnegative: bool,
) -> KnownCurvature:
    """Return the posterior mean of a curvature, given the scores at both ends of a step.

    The change of the score is the curvature times the step. For a curvature with the same noise in all entries, it is a
    normal observation, and the result is the conditional mean. The noise of the curvature is left unchanged.

    The score fell by `change`, whose noise has the covariance `noise`. `possible` and `floor` are as in `pooled`.
    """
    block = np.ix_(known.places, known.places)
    to_frame, back = known.frame.preconditioner[block].T, known.frame.back[block]
    along = back.T @ step[known.places]
    surprise = to_frame @ change[known.places] - known.raw[block] @ along
    of_entries = 0.5 * known.noise_std**2 * (along @ along * np.eye(along.size) + np.outer(along, along))
    gain = np.linalg.solve(of_entries + to_frame @ noise[block] @ to_frame.T, surprise)
    raw = known.raw.copy()
    raw[block] += 0.5 * known.noise_std**2 * (np.outer(gain, along) + np.outer(along, gain))
    raw = np.where(possible, raw, 0.0)
    return floored(
        raw,
        known.noise_std,
        known.frame,
        known.places,
        floor=floor * known.noise_std,
        nonnegative=nonnegative,
        unidentified=known.unidentified,
    )


def members_of(structure: NDArray[np.bool_], places: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which of these parameters are members of groups: some others never share a unit with them."""
    return places & ~np.where(places, structure[:, places].all(axis=1), True)


def groupings_of(structure: NDArray[np.bool_], places: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Return the positions of parameters by grouping: no two members of one share a unit. Other parameters are alone.

    In order, each parameter joins the first grouping with no member that shares a unit with it: levels and slopes of
    the same groups are two groupings, even if both are columns of one matrix.
    """
    found: list[list[int]] = []
    for place in np.flatnonzero(places):
        mine = next((grouping for grouping in found if not structure[place, grouping].any()), None)
        if mine is None:
            found.append([int(place)])
        else:
            mine.append(int(place))
    return [np.array(grouping, dtype=np.intp) for grouping in found]


def between_groupings(
    raw: FloatArray,
    noise_std: float,
    frame: Frame,
    structure: NDArray[np.bool_],
    groupings: Sequence[NDArray[np.intp]],
) -> FloatArray:
    """Return a released curvature with shrunk entries between the members of a grouping and other parameters.

    Each of many members has an entry with each other parameter, and the sum of their noise would exceed the others'
    diagonal entries. A member's entry is its diagonal entry times the mean of that covariate in its group; for two
    crossed groupings it is proportional to both members' diagonal entries. Entries of a grouping with one covariate, or
    another grouping, are therefore shrunk towards that form, by their variance beyond noise (empirical Bayes).

    Each axis of `frame` that precedes the others' axes involves one member of a grouping, or those of one group.
    `structure` marks the entries that the model's graph allows: members of one grouping have none with each other.
    """
    if all(each.size == 1 for each in groupings):
        return raw
    own = np.maximum(np.diag(raw), 0.0) * np.diag(frame.back)
    for alone in (each for each in groupings if each.size == 1):
        own[alone] = 1.0
    of_noise, shrunk = 0.5 * noise_std**2, raw.copy()
    for number, one in enumerate(groupings):
        for other in groupings[number + 1 :]:
            block = np.ix_(one, other)
            if one.size == other.size == 1 or not structure[block].all():  # the same groups
                continue
            expected = np.outer(own[one], own[other])
            expected = expected * (
                np.sum(expected * raw[block]) / max(float(np.sum(expected**2)), np.finfo(float).tiny)
            )
            variance = max(0.0, float(np.mean((raw[block] - expected) ** 2)) - of_noise)
            shrunk[block] = expected + (raw[block] - expected) * variance / (variance + of_noise)
            shrunk[np.ix_(other, one)] = shrunk[block].T
    return shrunk


def missing_of_members(own: FloatArray, groupings: Sequence[NDArray[np.intp]]) -> FloatArray:
    """Return how far members' diagonal entries fall short of a part of their grouping's median, shape (parameters,).

    Along an axis that is too long all rows of a small group are clipped: each release then has a smaller curvature, and
    the next frame a longer axis. For small groups the prior is more informative than their rows.
    """
    missing = np.zeros(own.size)
    for grouping in groupings:
        if grouping.size > 1:
            least = settings.LEAST_OF_MEMBERS * float(np.median(own[grouping]))
            missing[grouping] = np.maximum(least - own[grouping], 0.0)
    return missing


def noise_eigenvalue(possible: NDArray[np.bool_]) -> float:
    """Return about the largest eigenvalue of a noise matrix with these entries: √(2d) for a full one."""
    rng, size = np.random.default_rng(0), len(possible)
    draws = (unpacked(rng.standard_normal(size * (size + 1) // 2), size) for _ in range(4))
    return float(np.mean([np.linalg.norm(np.where(possible, draw, 0.0), ord=2) for draw in draws]))


def along_axes(possible: NDArray[np.bool_], frame: Frame) -> NDArray[np.bool_]:
    """Return the entries that a matrix can have along the axes of a frame, given those that it can have."""
    magnitudes = np.abs(frame.preconditioner)
    touched = (magnitudes > _ROUNDING * magnitudes.max(axis=0, keepdims=True)).astype(np.float64)
    return touched.T @ possible @ touched > 0.0
