"""The search for a centre where rows can be simulated from the model: what a row tells is known wherever the way leads.

Without covariates a model says all of its rows but where the parameters are. Rows that are drawn from it at a point
tell what the search of a regression has to release there:

1. *Scales.* As `Search`: binary searches on noisy bounded scores.
2. *Steps.* How much scores of simulated rows vary is the information of a row. It makes the frame; a histogram of norms
   says which clip bound is best; a score is released. What clipping takes off scores on average is that of simulated
   rows, and so is what it leaves of their slopes. The way goes on by the latest score alone, as far as the
   log-likelihood of simulated rows falls as a parabola would. A location of normal rows moves alone at first, however
   far, and binary searches follow.
3. *Centre.* Score and curvature are released. The curvature takes the place of the model's as far as it is clearly
   another one: then rows are not as the model has them.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint
from pymc_dp.release.preconditioned import PreconditionedScore
from pymc_dp.steps.access import ChainAccess, PublicUnits
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import KnownScore
from pymc_dp.steps.prelude.curvature import KnownCurvature
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    Frame,
    NotComputable,
    can_stand_at,
    embedded,
    expected_curvature,
    positive_definite,
    table_at,
)
from pymc_dp.steps.prelude.search import Found, Regression, Search, in_proportion
from pymc_dp.steps.prelude.tails import BINS

#: Where a direction is known less than this part of each of its parameters no way begins, if there are other places:
#: there two components of a mixture are one.
_LEAST_KNOWN = 1e-10
#: Less than this part of each of its parameters no direction is known at the centre: smaller ones are lost in rounding.
_LEAST_AT_THE_END = 1e-6
#: A mean curvature is no further from the spread of scores than by this factor.
_FAR_FROM_SPREAD = 2.0
#: A step is halved so many times at most.
_HALVINGS = 6


def requests_of_simulation(regression: Regression, share: float) -> list[ReleaseRequest]:
    """Return what a search releases, at a share of the run's cost."""
    size, steps, bisected = regression.start.size, regression.steps, regression.bisected.size
    parts = settings.PARTS_BY_SIMULATION
    n_bisections = bisected * (settings.FIRST_BISECTIONS + regression.location_steps * settings.LATER_BISECTIONS)
    asked: list[tuple[str, int, float, int]] = [
        ("bounded_score", n_bisections, bisected * parts.bisection, 1),
        ("score_sizes", steps + 2, (steps + 2) * parts.sizes, BINS),
        ("curvature_sizes", 1, parts.sizes, BINS),
        ("approach", steps, steps * parts.approach, size),
        ("centre", 1, parts.centre, size),
    ]
    return in_proportion(asked, share)


class SearchBySimulation(Search):
    """The way to the centre of a model without covariates. Parameters as of `Search`."""

    drifts, latest, score = False, 1, PreconditionedScore

    def __init__(self, chain: ChainAccess, regression: Regression, *bounds: float | None, releases_loss: bool) -> None:
        super().__init__(chain, regression, *bounds, releases_loss=releases_loss)
        # Curvatures are observed ones.
        self.nonnegative, self._sizes_of_curvature = False, "curvature"
        self._floors = settings.FLOORS_OF_OBSERVED
        #: Rows that are simulated at the latest point, their scores there, and the information of a row; and the least
        #: of that along any direction, in units of each parameter's own.
        self._rows: PublicUnits
        self._scores_of_rows: FloatArray
        self._information: FloatArray
        self._least_known: float
        #: Of each row, where the way ends.
        self._curvatures_of_rows: FloatArray
        #: All tables that were simulated, by point: the way may come back.
        self._tables: dict[bytes, PublicUnits] = {}

    def run(self) -> Found:
        """Search, and expand where the search has led to. Nothing is raised but numerical failures.

        And `InvalidArgument` if nothing can be computed wherever the way could begin, which is known without the data.
        """
        start = self._begun()
        theta = self._bisected(start, first=True)
        theta = theta if self._stands_at(theta) else start
        for step in range(self._regression.steps + 1):
            of_location = step < self._regression.location_steps
            least = _LEAST_AT_THE_END if of_location else settings.LEAST_KNOWN_ON_THE_WAY
            curvature = self._by_model(theta, least=least)
            kind = "centre" if step == self._regression.steps else "approach"
            self._scores.append(self._score(theta, self._frame(curvature), kind))
            if of_location:
                moved = self._bisected(self._at_location(theta, curvature), first=False)
                theta = moved if self._stands_at(moved) else theta
                continue
            curvature = self._after_step(curvature)
            theta = self._reached(theta, self._stepped(theta, curvature, settings.TRUST_BY_SIMULATION))
        return self._expanded(theta, self._by_model(theta, ends=True))

    def _begun(self) -> FloatArray:
        """Return where the way begins: where the model says, at draws of the prior, or near by.

        Where a model is symmetric it often says its centre of symmetry, where scores tell no direction.
        """
        found = None
        for theta in self._starts():
            if self._stands_at(theta):
                if self._least_known > _LEAST_KNOWN:
                    return theta
                found = theta if found is None else found
        if found is not None:  # some directions are never told
            return found
        raise InvalidArgument(
            "The search finds no way to begin: scores of rows simulated from the model are zero or no numbers wherever "
            "it could. Give the free variables an initval= near plausible values, or use DPHMC."
        )

    def _starts(self) -> Iterator[FloatArray]:
        start, generator = self._regression.start, np.random.default_rng(0)
        yield start
        yield from self._chain.synthetic_tables.prior_draws()
        for _ in range(10):
            yield start + generator.uniform(-1.0, 1.0, start.size)

    def _stands_at(self, theta: FloatArray) -> bool:
        """Return whether all that a step needs can be computed at a point; rows there are then simulated."""
        try:
            self._by_model(theta)
        except NUMERICAL_FAILURES:
            return False
        return can_stand_at(self._chain.prior, theta)

    def _by_model(
        self, theta: FloatArray, *, least: float = settings.LEAST_KNOWN_ON_THE_WAY, ends: bool = False
    ) -> KnownCurvature:
        """Simulate rows at a point; return the curvature that all rows have there by the model.

        On the way it is the spread of scores, and no direction is believed to be known less than `least`, in units of
        each parameter's own: along one that two components of a mixture share, steps would be as long as noise makes
        them. Of a location all directions are known as they are.
        """
        rows = self._tables.get(theta.tobytes()) or table_at(self._chain.synthetic_tables, theta)
        self._tables[theta.tobytes()] = rows
        scores = rows.scores(theta)
        scores = scores[np.isfinite(scores).all(axis=1)]
        spread = np.atleast_2d(np.cov(scores[:, self.places].T, bias=True)) if len(scores) else np.zeros((1, 1))
        sizes = np.sqrt(np.diag(spread))
        if not (sizes.all() and np.isfinite(sizes).all()):
            raise NotComputable("Rows tell nothing of a parameter there.")
        values, vectors = np.linalg.eigh(spread / np.outer(sizes, sizes))
        self._least_known = float(values[0])
        block, values = np.ix_(self.places, self.places), np.maximum(values, least)
        information = embedded(np.outer(sizes, sizes) * ((vectors * values) @ vectors.T), self.places)
        if ends:
            self._curvatures_of_rows = rows.curvatures(theta)
            with contextlib.suppress(*NUMERICAL_FAILURES):
                information[block] = _between(expected_curvature(self._curvatures_of_rows)[block], spread)
        self._rows, self._scores_of_rows, self._information = rows, scores, information
        frame, n_units = Frame(np.eye(theta.size), np.eye(theta.size)), self._chain.n_units
        return KnownCurvature(n_units * information, n_units * information, 0.0, frame, self.places)

    def _reached(self, theta: FloatArray, end: FloatArray) -> FloatArray:
        """Return where a step ends: where simulated rows' log-likelihood falls no faster than a parabola would."""
        rows, information, scores = self._rows, self._information, self._scores_of_rows.mean(axis=0)
        before = rows.log_likelihoods(theta)
        possible = np.isfinite(before)
        for halvings in range(_HALVINGS if possible.any() else 0):
            step = (end - theta) / 2.0**halvings
            after = rows.log_likelihoods(theta + step)
            fall = np.where(np.isfinite(after), before - after, np.inf)[possible]
            fallen = float(np.mean(fall)) + float(scores @ step)
            expected = 0.5 * float(step @ information @ step)
            if fallen <= settings.NEARLY_A_PARABOLA * expected and self._stands_at(theta + step):
                return theta + step
        self._by_model(theta)
        return theta

    # Scores -------------------------------------------------------------------------------------------------------

    def _taken_off(self, point: ExpansionPoint) -> FloatArray:
        """Return what clipping takes off the sum of scores, if rows are as the model has them."""
        along, kept = _along(self._scores_of_rows, point)
        return self._chain.n_units * ((1.0 - kept) @ along) / len(along)

    def _kept(self, point: ExpansionPoint) -> float:
        """Return what clipping leaves of the slope of scores, if rows are as the model has them."""
        along, kept = _along(self._scores_of_rows, point)
        squares = np.einsum("ij,ij->i", along, along)
        return max(float(kept @ squares / squares.sum()), settings.LEAST_KEPT)

    def _score_at(self, point: ExpansionPoint, frame: Frame, bias: float, kind: str) -> KnownScore:
        """Release a score. Of many units, what is added is not known better than so many simulated rows know it."""
        score = super()._score_at(point, frame, bias, kind)
        along, kept = _along(self._scores_of_rows, point)
        squared = np.mean((1.0 - kept) ** 2 * np.einsum("ij,ij->i", along, along)) / len(along)
        by_chance = self._chain.n_units * float(np.sqrt(squared)) / self._kept(point)
        return replace(score, bias=float(np.hypot(score.bias, by_chance)))

    # Curvature ----------------------------------------------------------------------------------------------------

    def _curvature_at(self, point: ExpansionPoint, frame: Frame, kind: str, *, between_scales: bool) -> KnownCurvature:
        """Release the observed curvature; what weights of clipped units take off that of simulated rows is added."""
        made = super()._curvature_at(point, frame, kind, between_scales=between_scales)
        scores, curvatures = self._rows.scores(point.theta), self._curvatures_of_rows
        finite = np.isfinite(scores).all(axis=1) & np.isfinite(curvatures).all(axis=(1, 2))
        _, kept = _along(scores[finite], point)
        missed = np.einsum("i,ijk->jk", 1.0 - kept, curvatures[finite]) / max(int(finite.sum()), 1)
        axes = frame.preconditioner
        return replace(made, raw=made.raw + self._chain.n_units * axes.T @ missed @ axes)

    def _together(self, late: KnownCurvature, early: KnownCurvature) -> KnownCurvature:
        """Return the model's curvature, corrected by as much of a released one as is clearly no noise.

        By the method of moments: what squared differences are more than noise is how much rows differ from the model.
        """
        axes, places = late.frame.preconditioner[:, late.places], np.ix_(late.places, late.places)
        by_model = axes.T @ early.matrix @ axes
        other, entries = late.raw[places] - by_model, len(by_model) * (len(by_model) + 1) / 2.0
        squared, noise = float(np.sum(other**2)) / entries, late.noise_std**2
        clear = squared > noise * (1.0 + settings.CLEARLY_ANOTHER * np.sqrt(2.0 / entries))
        part = 1.0 - noise / squared if clear else 0.0
        values, vectors = np.linalg.eigh(by_model + part * other)
        least = settings.LEAST_OF_CURVATURE * float(np.linalg.eigvalsh(by_model)[0])
        raw = late.raw.copy()
        raw[places] = (vectors * np.maximum(values, least)) @ vectors.T
        back = late.frame.back[np.ix_(late.places, late.places)]
        matrix = embedded(positive_definite(back @ raw[places] @ back.T, floor=1e-14), late.places)
        return replace(late, matrix=matrix, raw=raw, noise_std=late.noise_std * np.sqrt(part))


def _along(scores: FloatArray, point: ExpansionPoint) -> tuple[FloatArray, FloatArray]:
    """Return scores of rows along the axes of a point's frame, and the factor that clips each."""
    along = scores @ point.preconditioner
    lengths = np.maximum(np.linalg.norm(along, axis=1), np.finfo(float).tiny)
    return along, np.minimum(1.0, point.clip_gradient / lengths)


def _between(curvature: FloatArray, spread: FloatArray) -> FloatArray:
    """Return the mean curvature of some rows, but along no direction far from how much their scores vary.

    Both are the information of a row, but for chance. Of exponential families the first is exact; of mixtures it may be
    negative by chance, and the second is never.
    """
    factor = np.linalg.cholesky(positive_definite(spread, floor=_LEAST_AT_THE_END))
    turned = np.linalg.solve(factor, np.linalg.solve(factor, curvature).T)
    values, vectors = np.linalg.eigh(0.5 * (turned + turned.T))
    back = factor @ vectors
    return (back * np.clip(values, 1.0 / _FAR_FROM_SPREAD, _FAR_FROM_SPREAD)) @ back.T
