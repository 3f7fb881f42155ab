"""Released curvatures: what noise has done to them, and several of them together."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.prelude.newton import Frame, NotComputable

#: No direction is believed to be known less than this part of the one that is known best.
_LEAST_PART = 1e-4
#: Two curvatures are different by what their difference is beyond this many standard deviations of noise.
_CLEAR_OF_NOISE = 2.0


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

    def divided_by(self, factor: float) -> "KnownCurvature":
        """Return the same over a number, with its noise."""
        raw, noise_std = self.raw / factor, self.noise_std / factor
        return replace(self, matrix=self.matrix / factor, raw=raw, noise_std=noise_std)

    def noise_along(self, frame: Frame) -> float:
        """Return the noise of the entries along the axes of another frame, root mean square."""
        block = np.ix_(self.places, self.places)
        to_frame = (frame.preconditioner.T @ self.frame.back)[block]
        return self.noise_std * float(np.sum(to_frame**2)) / int(self.places.sum())


def lifted(
    raw: FloatArray,
    noise_std: float,
    frame: Frame,
    places: NDArray[np.bool_],
    *,
    floor: float,
    nonnegative: bool,
    weights: FloatArray | None = None,
) -> KnownCurvature:
    """Return a curvature whose eigenvalues along the axes of `frame`, over `weights`, are about `floor` or more.

    `weights`, shape (parameters,), are the roots of what is expected along the axes; by default they are 1.
    If no unit has a negative eigenvalue (`nonnegative`), a negative one is small. Else the log-likelihood is convex in
    that direction, and its sign is turned.
    """
    block = np.ix_(places, places)
    there = raw[block] != 0.0
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
    whole = np.zeros_like(raw)
    whole[block] = found * expected
    matrix = frame.back @ whole @ frame.back.T
    if not np.isfinite(matrix).all():
        raise NotComputable("The released curvature is too large for floating point.")
    return KnownCurvature(matrix, raw, noise_std, frame, places)


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

    `there` says which entries can be other than zero along the axes of the late one: if not all, the two are averaged
    as wholes, for other axes would not keep the structure. If the curvature `drifts` from point to point, the part of
    their difference that is beyond noise counts as noise of the early one. `floor` is in multiples of the noise.
    """
    places = late.places
    block = np.ix_(places, places)
    to_late = (late.frame.preconditioner.T @ early.frame.back)[block]
    axes, sizes, _ = np.linalg.svd(to_late)
    if not there[block].all():
        axes, sizes = np.eye(len(sizes)), np.full(len(sizes), np.sqrt(np.mean(sizes**2)))
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
    whole, preconditioner, back = (np.zeros_like(late.raw) for _ in range(3))
    whole[block] = told / np.outer(noise, noise)
    preconditioner[block] = (late.frame.preconditioner[block] @ axes) / noise
    back[block] = (late.frame.back[block] @ axes) * noise
    return lifted(whole, 1.0, Frame(preconditioner, back), places, floor=floor, nonnegative=nonnegative)


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
        raw, known.noise_std, known.frame, known.places, floor=floor * known.noise_std, nonnegative=nonnegative
    )


def members_of(structure: NDArray[np.bool_], places: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which of these parameters are members of groups: some others never meet them in a unit."""
    members: NDArray[np.bool_] = places & ~np.where(places, structure[:, places].all(axis=1), True)
    return members


def between_members_and_others(
    raw: FloatArray, noise_std: float, frame: Frame, structure: NDArray[np.bool_], places: NDArray[np.bool_]
) -> FloatArray:
    """Return a released curvature in which entries between members of hierarchies and others have lost most noise.

    Each of many members has an entry for each other parameter, and the noise of all of them together would hide the
    others' own entries. A member's is its own entry times the mean of that covariate in its group. Entries with one
    covariate are therefore brought nearer to being in proportion to the members' own ones: how far they are from that
    is estimated from what they vary beyond their noise (empirical Bayes).

    Each axis of `frame` before the others' touches one member. `structure` says which entries there are by the model's
    graph: members have none with each other.
    """
    block = np.ix_(places, places)
    members = members_of(structure, places)
    others = places & ~members
    if not (members.any() and others.any()) or structure[block].all():
        return raw
    of_noise = 0.5 * noise_std**2
    between = raw[np.ix_(members, others)]
    own = np.maximum(np.diag(raw), 0.0)[members] * np.diag(frame.back)[members]
    alike = np.outer(own, own @ between / max(float(own @ own), np.finfo(float).tiny))
    beyond = np.maximum(0.0, np.mean((between - alike) ** 2, axis=0) - of_noise)
    nearer = raw.copy()
    nearer[np.ix_(members, others)] = alike + (between - alike) * beyond / (beyond + of_noise)
    nearer[np.ix_(others, members)] = nearer[np.ix_(members, others)].T
    return nearer
