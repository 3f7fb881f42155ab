"""Released curvatures: what noise has done to them, and several of them together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.newton import Frame, NotComputable, embedded

#: No direction is believed to be known less than this part of the one that is known best.
_LEAST_PART = 1e-4
#: Two curvatures are different by what their difference is beyond this many standard deviations of noise.
_CLEAR_OF_NOISE = 2.0
#: A matrix is projected in turn onto those with its structure and those without some directions, so many times.
_PROJECTIONS = 30


@dataclass(frozen=True, eq=False)
class KnownCurvature:
    """A curvature of the log-likelihood of all units, by one release or several."""

    #: Positive definite in `places`, zero elsewhere, shape (parameters, parameters).
    matrix: FloatArray
    #: The released one along the axes of `frame`, where noise may have made eigenvalues small or negative; and the
    #: noise of its entries, as in `pymc_dp.release.interface.Release`.
    raw: FloatArray
    noise_std: float
    frame: Frame
    #: Which parameters it is about, shape (parameters,).
    places: NDArray[np.bool_]
    #: Directions along which the likelihood tells nothing, shape (parameters, directions); None for no such.
    unidentified: FloatArray | None = None

    def divided_by(self, factor: float) -> "KnownCurvature":
        """Return the same over a number, with its noise."""
        raw, noise_std = self.raw / factor, self.noise_std / factor
        return replace(self, matrix=self.matrix / factor, raw=raw, noise_std=noise_std)

    def noise_along(self, frame: Frame) -> FloatArray:
        """Return the noise of the own entries of the axes of another frame, shape (places,).

        Of the entry of two axes it is about the root of their product, over the root of two.
        """
        block = np.ix_(self.places, self.places)
        to_frame = (frame.preconditioner.T @ self.frame.back)[block]
        return self.noise_std * np.sum(to_frame**2, axis=1)


def lifted(
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

    Along `unidentified` directions there is nothing else. `weights`, shape (parameters,), are the roots of what is
    expected along the axes; by default they are 1. If no unit has a negative eigenvalue (`nonnegative`), a negative one
    is small. Else the log-likelihood is convex in that direction, and its sign is turned.
    """
    block = np.ix_(places, places)
    there = raw[block] != 0.0
    raw = _without(raw, there, frame, places, unidentified)
    expected = 1.0 if weights is None else np.outer(weights[places], weights[places])
    found = raw[block] / expected
    for _ in range(12):  # what is lifted is put into the structure again, and that lifted
        values, vectors = np.linalg.eigh(found)
        least = max(floor, _LEAST_PART * float(np.abs(values).max()))
        if values[0] >= 0.5 * least:
            break
        sizes = np.maximum(values if nonnegative else np.abs(values), least)
        found = np.where(there, (vectors * sizes) @ vectors.T, 0.0)
    else:
        found = found + np.eye(len(found)) * max(0.0, least - float(np.linalg.eigvalsh(found)[0]))
    matrix = frame.back @ embedded(found * expected, places) @ frame.back.T
    if not np.isfinite(matrix).all():
        raise NotComputable("The released curvature is too large for floating point.")
    return KnownCurvature(matrix, raw, noise_std, frame, places, unidentified)


def _without(
    raw: FloatArray, there: NDArray[np.bool_], frame: Frame, places: NDArray[np.bool_], unidentified: FloatArray | None
) -> FloatArray:
    """Return about the nearest matrix with entries where they are `there`, and none along `unidentified` directions.

    Noise of entries between these and others would lead far along them, and from there astray.
    """
    if unidentified is None:
        return raw
    block = np.ix_(places, places)
    along = frame.back[block].T @ unidentified[places]
    across = np.eye(len(along)) - along @ np.linalg.pinv(along)
    found = raw[block]
    for _ in range(_PROJECTIONS):
        found = np.where(there, across @ found @ across, 0.0)
    return embedded(found, places)


def pooled(
    late: KnownCurvature,
    early: KnownCurvature,
    there: NDArray[np.bool_],
    *,
    floor: float,
    nonnegative: bool,
    drifts: bool,
) -> KnownCurvature:
    """Return what two releases say together: every entry is weighed by its noise.

    In the basis in which both frames are diagonal the noise of an entry is a product of two numbers in either release.
    The result is returned in a frame along which its noise is about the same in all entries.

    `there` says which entries can be other than zero along the axes of the late one: if not all, these axes are kept,
    for others would not keep the structure, and the noise of the early one is that of its own entries there. If the
    curvature `drifts` from point to point, the part of their difference that is beyond noise counts as noise of the
    early one. `floor` is in multiples of the noise.
    """
    places = late.places
    block = np.ix_(places, places)
    to_late = (late.frame.preconditioner.T @ early.frame.back)[block]
    if there[block].all():
        axes, sizes, _ = np.linalg.svd(to_late)
    else:
        axes, sizes = np.eye(len(to_late)), np.sqrt(np.sum(to_late**2, axis=1))
    of_early = (early.noise_std * np.outer(sizes, sizes)) ** 2
    of_late = np.full_like(of_early, late.noise_std**2)
    told_late = axes.T @ late.raw[block] @ axes
    told_early = axes.T @ np.where(there[block], to_late @ early.raw[block] @ to_late.T, 0.0) @ axes
    if drifts:
        weights = (of_early + of_late) ** -2.0
        excess = (told_late - told_early) ** 2 - of_early - of_late
        of_early = of_early + max(0.0, float(np.sum(weights * excess) / np.sum(weights)))
    variance = 1.0 / (1.0 / of_late + 1.0 / of_early)
    told = (told_late / of_late + told_early / of_early) * variance
    noise = np.diag(variance) ** 0.25
    preconditioner = embedded((late.frame.preconditioner[block] @ axes) / noise, places)
    frame = Frame(preconditioner, embedded((late.frame.back[block] @ axes) * noise, places))
    whole = embedded(told / np.outer(noise, noise), places)
    return lifted(whole, 1.0, frame, places, floor=floor, nonnegative=nonnegative, unidentified=late.unidentified)


def bending(early: KnownCurvature, late: KnownCurvature, step: FloatArray, n_units: int) -> float:
    """Return by which part the curvature changes over a distance of 1, from where one was released to the other.

    Along the `step` between the points, and in units of what one unit tells. No more than is clear of noise.
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
    there: NDArray[np.bool_],
    *,
    floor: float,
    nonnegative: bool,
) -> KnownCurvature:
    """Return what a curvature and the scores at both ends of a step say together.

    The change of the score is the curvature times the step. Given a curvature whose noise is the same in all entries,
    that is a normal observation, and this the conditional mean. Its noise is left at what it was.

    The score fell by `change`, whose noise has the covariance `noise`. `there` and `floor` are as of `pooled`.
    """
    block = np.ix_(known.places, known.places)
    to_frame, back = known.frame.preconditioner[block].T, known.frame.back[block]
    along = back.T @ step[known.places]
    surprise = to_frame @ change[known.places] - known.raw[block] @ along
    of_entries = 0.5 * known.noise_std**2 * (along @ along * np.eye(along.size) + np.outer(along, along))
    gain = np.linalg.solve(of_entries + to_frame @ noise[block] @ to_frame.T, surprise)
    raw = known.raw.copy()
    raw[block] += 0.5 * known.noise_std**2 * (np.outer(gain, along) + np.outer(along, gain))
    raw = np.where(there, raw, 0.0)
    return lifted(
        raw,
        known.noise_std,
        known.frame,
        known.places,
        floor=floor * known.noise_std,
        nonnegative=nonnegative,
        unidentified=known.unidentified,
    )


def members_of(structure: NDArray[np.bool_], places: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which of these parameters are members of groups: some others never meet them in a unit."""
    return places & ~np.where(places, structure[:, places].all(axis=1), True)


def groupings_of(structure: NDArray[np.bool_], places: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Return places of parameters by grouping: no two members of one ever meet in a unit. Others are alone.

    In their order each joins the first grouping of which it meets no member: levels and slopes of the same groups are
    two groupings, even if both are columns of one matrix.
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
    """Return a released curvature in which entries between members of groupings and others have lost most noise.

    Each of many members has an entry for each other parameter, and the noise of all of them together would hide the
    others' own entries. A member's is its own entry times the mean of that covariate in its group; and of two groupings
    that are crossed it is in proportion to both members' own. Entries of a grouping with one covariate, or another
    grouping, are therefore brought nearer to that: how far they are from it is estimated from what they vary beyond
    their noise (empirical Bayes).

    Each axis of `frame` before the others' touches one member of a grouping, or those of one group. `structure` says
    which entries there are by the model's graph: members of one grouping have none with each other.
    """
    if all(each.size == 1 for each in groupings):
        return raw
    own = np.maximum(np.diag(raw), 0.0) * np.diag(frame.back)
    for alone in (each for each in groupings if each.size == 1):
        own[alone] = 1.0
    of_noise, nearer = 0.5 * noise_std**2, raw.copy()
    for number, one in enumerate(groupings):
        for other in groupings[number + 1 :]:
            block = np.ix_(one, other)
            if one.size == other.size == 1 or not structure[block].all():  # the same groups
                continue
            alike = np.outer(own[one], own[other])
            alike = alike * (np.sum(alike * raw[block]) / max(float(np.sum(alike**2)), np.finfo(float).tiny))
            beyond = max(0.0, float(np.mean((raw[block] - alike) ** 2)) - of_noise)
            nearer[block] = alike + (raw[block] - alike) * beyond / (beyond + of_noise)
            nearer[np.ix_(other, one)] = nearer[block].T
    return nearer


def missing_of_members(own: FloatArray, groupings: Sequence[NDArray[np.intp]]) -> FloatArray:
    """Return what members' own entries of a curvature lack of a part of their grouping's median, shape (parameters,).

    Along an axis that is too long all rows of a small group are clipped: its curvature is smaller in each release, and
    the axis longer in the next. Of small groups the prior tells more than their rows.
    """
    missing = np.zeros(own.size)
    for grouping in groupings:
        if grouping.size > 1:
            least = settings.LEAST_OF_MEMBERS * float(np.median(own[grouping]))
            missing[grouping] = np.maximum(least - own[grouping], 0.0)
    return missing
