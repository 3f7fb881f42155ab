"""The search for a centre if rows can be simulated from the model: their scores have known moments at every point.

Without covariates only the parameters of the rows' distribution are unknown. Rows simulated at a point replace releases
of the search of a regression:

1. *Scales.* As `Search`: binary searches on noisy bounded scores.
2. *Steps.* The covariance of scores of simulated rows is the information of a row. It defines the frame; a histogram of
   norms gives the best clip bound; a score is released. The mean that clipping removes from scores is that of simulated
   rows, and so is the remaining part of their slopes. Each step uses the latest score alone, and ends where the
   log-likelihood of simulated rows falls faster than a quadratic. A location of normal rows moves alone at first,
   without a trust region, and binary searches follow.
3. *Centre.* Score and curvature are released. The curvature replaces the model's as far as the difference exceeds
   noise, which indicates misspecification.
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
    embedded,
    expected_curvature,
    finite_prior_at,
    positive_definite,
    table_at,
)
from pymc_dp.steps.prelude.regression import Regression, in_proportion
from pymc_dp.steps.prelude.search import Found, Search
from pymc_dp.steps.prelude.tails import BINS

#: The least eigenvalue of the scaled information at which a search begins, if others exist: below it, mixture
#: components coincide.
_LEAST_KNOWN = 1e-10
#: The floor of the eigenvalues of the scaled information at the centre: smaller ones are rounding error.
_LEAST_AT_THE_END = 1e-6
#: The largest factor between the mean curvature and the covariance of scores.
_FAR_FROM_SPREAD = 2.0
#: The largest number of halvings of a step.
_HALVINGS = 6


def requests_of_simulation(regression: Regression, share: float) -> list[ReleaseRequest]:
    """Return the releases of a search, at a share of the run's cost."""
    size, steps, bisected = regression.start.size, regression.steps, regression.bisected.size
    parts = settings.PARTS_BY_SIMULATION
    n_bisections = bisected * (settings.FIRST_BISECTIONS + regression.location_steps * settings.LATER_BISECTIONS)
    planned: list[tuple[str, int, float, int]] = [
        ("bounded_score", n_bisections, bisected * parts.bisection, 1),
        ("score_sizes", steps + 2, (steps + 2) * parts.sizes, BINS),
        ("curvature_sizes", 1, parts.sizes, BINS),
        ("approach", steps, steps * parts.approach, size),
        ("centre", 1, parts.centre, size),
    ]
    return in_proportion(planned, share)


class SearchBySimulation(Search):
    """The search for the centre of a model without covariates. Parameters as of `Search`."""

    drifts, latest, score = False, 1, PreconditionedScore

    def __init__(self, chain: ChainAccess, regression: Regression, *bounds: float | None, releases_loss: bool) -> None:
        super().__init__(chain, regression, *bounds, releases_loss=releases_loss)
        # Curvatures are observed ones.
        self.nonnegative, self._curvature_kind = False, "curvature"
        self._floors = settings.FLOORS_OF_OBSERVED
        #: The rows simulated at the latest point, their scores, and the information of a row; and the smallest
        #: eigenvalue of the information scaled to a unit diagonal.
        self._rows: PublicUnits
        self._scores_of_rows: FloatArray
        self._information: FloatArray
        self._least_known: float
        #: The curvature of each row at the centre.
        self._curvatures_of_rows: FloatArray
        #: All simulated tables by point, which steps may visit again.
        self._tables: dict[bytes, PublicUnits] = {}

    def run(self) -> Found:
        """Search, and expand at the end of the search. Nothing is raised except numerical failures.

        `InvalidArgument` is raised if no start is usable, which does not depend on the data.
        """
        start = self._begun()
        theta = self._bisected(start, first=True)
        theta = theta if self._is_usable(theta) else start
        for step in range(self._regression.steps + 1):
            of_location = step < self._regression.location_steps
            least = _LEAST_AT_THE_END if of_location else settings.LEAST_KNOWN_ON_THE_WAY
            curvature = self._by_model(theta, least=least)
            kind = "centre" if step == self._regression.steps else "approach"
            self._scores.append(self._score(theta, self._frame(curvature), kind))
            if of_location:
                moved = self._bisected(self._at_location(theta, curvature), first=False)
                theta = moved if self._is_usable(moved) else theta
                continue
            curvature = self._after_step(curvature)
            theta = self._reached(theta, self._stepped(theta, curvature, settings.TRUST_BY_SIMULATION))
        return self._expanded(theta, self._by_model(theta, at_centre=True))

    def _begun(self) -> FloatArray:
        """Return the start of the search: the model's, a draw of the prior, or a point near the model's.

        The start of a symmetric model is often its centre of symmetry, where scores have no direction.
        """
        found = None
        for theta in self._starts():
            if self._is_usable(theta):
                if self._least_known > _LEAST_KNOWN:
                    return theta
                found = theta if found is None else found
        if found is not None:  # some directions have no information anywhere
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

    def _is_usable(self, theta: FloatArray) -> bool:
        """Return whether all values of a step are finite at a point; rows are then simulated at it."""
        try:
            self._by_model(theta)
        except NUMERICAL_FAILURES:
            return False
        return finite_prior_at(self._chain.prior, theta)

    def _by_model(
        self, theta: FloatArray, *, least: float = settings.LEAST_KNOWN_ON_THE_WAY, at_centre: bool = False
    ) -> KnownCurvature:
        """Simulate rows at a point; return the curvature of all rows by the model.

        Before the centre it is the covariance of scores, with eigenvalues of at least `least` after scaling to a unit
        diagonal: along a direction without information, as between equal components of a mixture, noise alone would
        determine the step. The location of normal rows has a smaller floor.
        """
        rows = self._tables.get(theta.tobytes()) or table_at(self._chain.synthetic_tables, theta)
        self._tables[theta.tobytes()] = rows
        scores = rows.scores(theta)
        scores = scores[np.isfinite(scores).all(axis=1)]
        covariance = np.atleast_2d(np.cov(scores[:, self.places].T, bias=True)) if len(scores) else np.zeros((1, 1))
        stds = np.sqrt(np.diag(covariance))
        if not (stds.all() and np.isfinite(stds).all()):
            raise NotComputable("Rows tell nothing of a parameter there.")
        values, vectors = np.linalg.eigh(covariance / np.outer(stds, stds))
        self._least_known = float(values[0])
        block, values = np.ix_(self.places, self.places), np.maximum(values, least)
        information = embedded(np.outer(stds, stds) * ((vectors * values) @ vectors.T), self.places)
        if at_centre:
            self._curvatures_of_rows = rows.curvatures(theta)
            with contextlib.suppress(*NUMERICAL_FAILURES):
                information[block] = _between(expected_curvature(self._curvatures_of_rows)[block], covariance)
        self._rows, self._scores_of_rows, self._information = rows, scores, information
        frame, n_units = Frame(np.eye(theta.size), np.eye(theta.size)), self._chain.n_units
        return KnownCurvature(n_units * information, n_units * information, 0.0, frame, self.places)

    def _reached(self, theta: FloatArray, end: FloatArray) -> FloatArray:
        """Return the end of a step, halved until simulated rows' log-likelihood falls no faster than a quadratic."""
        rows, information, scores = self._rows, self._information, self._scores_of_rows.mean(axis=0)
        before = rows.log_likelihoods(theta)
        possible = np.isfinite(before)
        for halvings in range(_HALVINGS if possible.any() else 0):
            step = (end - theta) / 2.0**halvings
            after = rows.log_likelihoods(theta + step)
            fall = np.where(np.isfinite(after), before - after, np.inf)[possible]
            decrease = float(np.mean(fall)) + float(scores @ step)
            expected = 0.5 * float(step @ information @ step)
            if decrease <= settings.NEARLY_A_PARABOLA * expected and self._is_usable(theta + step):
                return theta + step
        self._by_model(theta)
        return theta

    # Scores -------------------------------------------------------------------------------------------------------

    def _mean_removed(self, point: ExpansionPoint) -> FloatArray:
        """Return the sum that clipping removes from scores, if the model is correct."""
        along, kept = _along(self._scores_of_rows, point)
        return self._chain.n_units * ((1.0 - kept) @ along) / len(along)

    def _kept(self, point: ExpansionPoint) -> float:
        """Return the part of the slope of scores that clipping leaves, if the model is correct."""
        along, kept = _along(self._scores_of_rows, point)
        squares = np.einsum("ij,ij->i", along, along)
        return max(float(kept @ squares / squares.sum()), settings.LEAST_KEPT)

    def _score_at(self, point: ExpansionPoint, frame: Frame, bias: float, kind: str) -> KnownScore:
        """Release a score, with the Monte Carlo error of the mean that is added back as a part of its bias."""
        score = super()._score_at(point, frame, bias, kind)
        along, kept = _along(self._scores_of_rows, point)
        squared = np.mean((1.0 - kept) ** 2 * np.einsum("ij,ij->i", along, along)) / len(along)
        by_chance = self._chain.n_units * float(np.sqrt(squared)) / self._kept(point)
        return replace(score, bias=float(np.hypot(score.bias, by_chance)))

    # Curvature ----------------------------------------------------------------------------------------------------

    def _curvature_at(self, point: ExpansionPoint, frame: Frame, kind: str, *, between_scales: bool) -> KnownCurvature:
        """Release the observed curvature; add back the part of simulated rows' that clipping removes."""
        made = super()._curvature_at(point, frame, kind, between_scales=between_scales)
        scores, curvatures = self._rows.scores(point.theta), self._curvatures_of_rows
        finite = np.isfinite(scores).all(axis=1) & np.isfinite(curvatures).all(axis=(1, 2))
        _, kept = _along(scores[finite], point)
        missed = np.einsum("i,ijk->jk", 1.0 - kept, curvatures[finite]) / max(int(finite.sum()), 1)
        axes = frame.preconditioner
        return replace(made, raw=made.raw + self._chain.n_units * axes.T @ missed @ axes)

    def _together(self, late: KnownCurvature, early: KnownCurvature) -> KnownCurvature:
        """Return the model's curvature, corrected by the part of the released difference that exceeds noise.

        By the method of moments: squared differences less the noise variance estimate the misspecification.
        """
        axes, places = late.frame.preconditioner[:, late.places], np.ix_(late.places, late.places)
        by_model = axes.T @ early.matrix @ axes
        difference, entries = late.raw[places] - by_model, len(by_model) * (len(by_model) + 1) / 2.0
        squared, noise = float(np.sum(difference**2)) / entries, late.noise_std**2
        # The mean of squares of so many normal variables has the relative standard deviation √(2 / entries).
        clear = squared > noise * (1.0 + settings.CLEARLY_ANOTHER * np.sqrt(2.0 / entries))
        part = 1.0 - noise / squared if clear else 0.0
        values, vectors = np.linalg.eigh(by_model + part * difference)
        least = settings.LEAST_OF_CURVATURE * float(np.linalg.eigvalsh(by_model)[0])
        raw = late.raw.copy()
        raw[places] = (vectors * np.maximum(values, least)) @ vectors.T
        back = late.frame.back[np.ix_(late.places, late.places)]
        matrix = embedded(positive_definite(back @ raw[places] @ back.T, floor=1e-14), late.places)
        return replace(late, matrix=matrix, raw=raw, noise_std=late.noise_std * np.sqrt(part))


def _along(scores: FloatArray, point: ExpansionPoint) -> tuple[FloatArray, FloatArray]:
    """Return scores of rows along the axes of a point's frame, and the factor by which each is clipped."""
    along = scores @ point.preconditioner
    lengths = np.maximum(np.linalg.norm(along, axis=1), np.finfo(float).tiny)
    return along, np.minimum(1.0, point.clip_gradient / lengths)


def _between(curvature: FloatArray, covariance: FloatArray) -> FloatArray:
    """Return the mean curvature of rows, with eigenvalues within a factor of those of the covariance of their scores.

    Both estimate the information of a row. The first is exact for exponential families; for mixtures it may be
    indefinite by chance, and the second never is.
    """
    factor = np.linalg.cholesky(positive_definite(covariance, floor=_LEAST_AT_THE_END))
    relative = np.linalg.solve(factor, np.linalg.solve(factor, curvature).T)
    values, vectors = np.linalg.eigh(0.5 * (relative + relative.T))
    back = factor @ vectors
    return (back * np.clip(values, 1.0 / _FAR_FROM_SPREAD, _FAR_FROM_SPREAD)) @ back.T
