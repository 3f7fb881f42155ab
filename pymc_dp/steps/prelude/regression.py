"""The public structure of a regression, and the plan of the search for its centre: known before any release."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.structure import Structure
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.tails import BINS, OCTAVES

#: Curvatures in the order of their release.
STAGES = ("early_curvature", "middle_curvature", "late_curvature", "curvature")


@dataclass(frozen=True, eq=False)
class Regression(Structure):
    """The public structure of a model, and the plan of the search for its centre: known before any release."""

    #: Steps before the last score at the centre.
    steps: int = settings.STEPS
    one_row_a_unit: bool = True
    #: Whether the search simulates rows from the model.
    simulated: bool = False
    #: The coefficients of members' scores in that of each coordinate, where the mean of members is one; else empty.
    gathered: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def centred(self) -> bool:
        """Whether the mean that clipping removes from scores is added back: not for units of several rows."""
        return (self.responses_are_known or self.simulated) and self.one_row_a_unit

    @property
    def expects_outliers(self) -> bool:
        """Whether tails may be longer than the model's, as of continuous responses: clip bounds leave room for them.

        Counts have a fitted overdispersion instead.
        """
        return not (self.centred and (self.rows_are_discrete or self.simulated))

    @property
    def follows_growth(self) -> bool:
        """Whether the search releases the norms of expected curvatures at each point: for categories and counts."""
        apart = self.kinked.any() or self.location_apart or self.simulated
        return self.centred and self.rows_are_discrete and not apart

    @property
    def finds_level(self) -> bool:
        """Whether the search begins with the level of rows: that of counts and positive responses may be far away."""
        counts = self.follows_growth and not self.rows_are_levels
        positive = self.rows_are_positive and self.one_row_a_unit
        return (counts or positive) and bool(self.in_predictor.any())

    @property
    def seeks_rise(self) -> bool:
        """Whether the direction of the search for the level has to be released."""
        return self.finds_level and not self.rise.any()

    @property
    def location_apart(self) -> bool:
        """Whether location and scale are estimated separately: one scale is the only logarithm."""
        one_scale = self.normal and self.followed.size == 1 and np.array_equal(self.scales, self.followed)
        return one_scale and bool((self.known & ~self.is_scale).any())

    @property
    def has_tails(self) -> bool:
        """Whether rows are Student t with a linear location: scale and degrees of freedom are the only logarithms."""
        both = np.union1d(self.followed, self.degrees_of_freedom)
        single = not np.isnan(self.constant_degrees) and self.followed.size == 1 >= self.degrees_of_freedom.size
        return single and np.array_equal(self.scales, both) and bool((self.known & ~self.is_scale).any())

    @property
    def location_steps(self) -> int:
        """The number of first steps that move the location alone, where it is not estimated separately.

        It is that of all steps if rows are simulated and nothing else is unknown.
        """
        if self.location_apart or not self.location.any():
            return 0
        nothing_else = self.simulated and np.array_equal(self.location, self.known)
        return self.steps + 1 if nothing_else else settings.LOCATION_STEPS

    @property
    def middle_curvatures(self) -> int:
        """The number of first steps followed by binary searches and a curvature."""
        return max(self.location_steps, 1)

    @property
    def moves_scale_late(self) -> bool:
        """Whether the third curvature is released at the end of the last binary search.

        It is for continuous responses with a scale or a shape, which multiplies the curvature of the location.
        """
        return self.bisected.size > 0 and not self.rows_are_discrete

    @property
    def is_scale(self) -> NDArray[np.bool_]:
        """The parameters that are logarithms of scales, shape (parameters,)."""
        return np.isin(np.arange(self.start.size), self.scales)

    @property
    def of_location(self) -> NDArray[np.bool_]:
        """The parameters on which the location of rows depends, shape (parameters,)."""
        return self.kinked if self.kinked.any() else ~self.is_scale

    @property
    def with_own_scores(self) -> NDArray[np.intp]:
        """The scales and shapes with scores of their own at the centre.

        They have them if they are few; except a scale estimated separately, and degrees of freedom, which one step
        hardly changes.
        """
        few = self.scales.size <= settings.MOST_OWN_SCORES and not (self.location_apart or self.simulated)
        return self.bisected if few else self.bisected[:0]

    @property
    def bisected(self) -> NDArray[np.intp]:
        """The parameters with binary searches.

        Degrees of freedom have none: far from the location, and where they are large, scores hardly depend on them.
        """
        return np.setdiff1d(self.scales, self.degrees_of_freedom)[: settings.MOST_BISECTED]

    def in_coordinates(self, to_parameters: FloatArray) -> "Regression":
        """Return the structure in coordinates whose parameters are `to_parameters` times the coordinates."""
        gathered = (to_parameters - np.eye(len(to_parameters))).T
        start, known = np.linalg.solve(to_parameters, self.start), self.known | gathered.any(axis=1)
        return replace(self, start=start, known=known, gathered=gathered)


def requests_of_search(regression: Regression, share: float) -> list[ReleaseRequest]:
    """Return the releases of a search, histograms at the centre included, at a share of the run's cost."""
    size = regression.start.size
    entries = size * (size + 1) // 2
    steps, bisected, scales = regression.steps, regression.bisected.size, int(regression.location_apart)
    first_of_location = scales or regression.has_tails
    broken = int(regression.kinked.any())
    # At every point the norms of curvatures, whole and clipped; and those at the end of each step.
    level, rise = int(regression.finds_level), int(regression.seeks_rise)
    known = int(regression.responses_are_known)
    growth = 3 * (steps + 2) * int(regression.follows_growth)
    growth += (2 + known) * rise + 2 * known * (level - rise)  # rows' information at the level, and slopes
    of_bisections = min(regression.scales.size, settings.MOST_BISECTED)  # with degrees of freedom, which have none
    along_axis = size if regression.scale_of_censored.any() else 1  # an axis of nonlinear coordinates is a direction
    usual = broken or regression.rows_are_discrete
    parts = settings.PARTS if usual else settings.PARTS_OF_CONTINUOUS
    parts = settings.PARTS_OF_LOCATION if first_of_location else parts
    own = settings.OWN_SCORES * regression.with_own_scores.size
    rows = int(first_of_location) * int(not regression.one_row_a_unit)
    middle = settings.MIDDLE_OF_LOCATION if first_of_location else regression.middle_curvatures
    n_curvatures = len(STAGES) - 1 + middle + rise
    n_scores = steps + 2 + scales * (steps + 1) + rows
    later = 0 if scales else 1 if regression.has_tails else 1 + regression.middle_curvatures
    n_bisections = bisected * (settings.FIRST_BISECTIONS + later * settings.LATER_BISECTIONS)
    part_of_bisections = parts.bisection * (settings.MORE_FOR_BISECTIONS if regression.location_steps else 1.0)
    planned: list[tuple[str, int, float, int]] = [
        ("bounded_score", n_bisections, part_of_bisections * of_bisections, along_axis),
        ("level", level * settings.LEVEL_BISECTIONS, level * parts.bisection, size),
        ("rise", rise, rise * parts.rise, size),
        ("coordinate_sizes", 1 + rise, (1.0 + settings.OF_LEVEL * rise) * parts.coordinates, size * OCTAVES),
        ("curvature_sizes", n_curvatures, n_curvatures * parts.sizes, BINS),
        ("score_sizes", n_scores, n_scores * parts.sizes, BINS),
        ("scale_sizes", own, parts.scale_sizes if own else 0.0, BINS),
        ("growth_sizes", growth, growth * parts.growth, BINS),
        ("early_curvature", 1 + rise, (1.0 + settings.OF_LEVEL * rise) * parts.early, entries),
        ("middle_curvature", middle, middle * parts.middle, entries),
        ("late_curvature", 1, parts.late, entries),
        ("approach", steps, steps * parts.approach, size),
        ("centre", 1, parts.centre, size),
        ("way_off", broken, broken * parts.way_off, size),
        ("scale_score", scales + own, parts.scale if scales + own else 0.0, along_axis),
        ("row_count", rows, rows * parts.rows, 1),
        ("wide_scale_score", scales, scales * parts.wide_scale, size),
        ("scale_approach", scales * steps, scales * steps * parts.scale_approach, size),
    ]
    return in_proportion(planned, share)


def in_proportion(planned: Sequence[tuple[str, int, float, int]], share: float) -> list[ReleaseRequest]:
    """Return requests from kinds, counts, parts of the search's cost and coordinates, at a share of the cost."""
    together = sum(part for _, _, part, _ in planned)
    return [
        ReleaseRequest(kind, count, share * part / together, coordinates, once=True)
        for kind, count, part, coordinates in planned
        if count
    ]
