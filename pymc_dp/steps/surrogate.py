r"""Differentially private MCMC with control variates: pay once for an expansion, then test only what it misses.

1. *Centre.* A few noisy Newton steps from the prior lead near the posterior's mode.
2. *Expansion.* There, the sums of every unit's score (and curvature) are released once. With the exact prior they
   make a surrogate of the posterior, from which draws are free.
3. *Test.* A chain proposes draws of the surrogate. A unit's log-ratio is what its own expansion predicts, which
   the surrogate has counted already, and a remainder, which is small: the penalty test releases the sum of
   remainders with noise in proportion to a bound on one of them.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`\theta_c`          `ExpansionPoint.theta`
:math:`G, H`              released score and curvature
:math:`S`                 `surrogate`: log-prior plus expansion
:math:`e_i`               a unit's remainder in a log-ratio
:math:`c_e`               `bound` of one remainder, from synthetic units
========================  ==========================================================

Released once for all chains: with a synthetic table the curvature where the search begins; `newton_steps` scores (the
kinds "approach" and, more exactly, "centre"); the score at the centre, the curvature there (order 2), and how much clip
bounds have taken off scores. Released in every iteration after tuning: one residual log-ratio.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pymc as pm

from pymc_dp import _validate
from pymc_dp.budget import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.origins import shares_tables
from pymc_dp.parameters import FloatArray
from pymc_dp.release.interface import ExpansionPoint, Position, Prediction, Release
from pymc_dp.release.queries import ClippingLoss, Curvature, Residual, WeightedScore
from pymc_dp.steps.acceptance import penalty_test, untested
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.centre import (
    EARLY_CURVATURE_SHARE,
    WayToCentre,
    centre_schedule,
    find_centre,
    informed,
    pooled_score,
)
from pymc_dp.steps.free_hmc import FreeHMC
from pymc_dp.steps.sampler import SHARED_STATS, Transition
from pymc_dp.steps.surrogate_density import Quadratic, Surrogate, WeightedRows
from pymc_dp.steps.synthetic import (
    NUMERICAL_FAILURES,
    NotComputable,
    Scale,
    expected_curvature,
    newton_step,
    positive_definite,
    prior_curvature,
    solved,
)
from pymc_dp.steps.tuning import clip_bound

#: Radius of the trust region of the quadratic surrogate around its mode, in the surrogate's standard deviations.
_TRUSTED = 8.0
#: Part of the cost that tells how far clip bounds may have moved the draws.
_EXCESS_SHARE = 0.1
#: A curvature that differs by this many times the reach of noise from what is expected does not differ by noise alone.
_BEYOND_NOISE = 2.0
#: Noise of a test, as a standard deviation, below which a smaller bound buys nothing.
_HARMLESS_NOISE = 0.03
#: How many rows the row engine works on at a time, at most, where it expands.
ROWS_OF_A_CHUNK = 8192


@dataclass(frozen=True)
class Shares:
    """What the parts of the cost are spent on: they add up to 1.

    Attributes
    ----------
    centre, score, curvature, tests : float
        Parts of the run's cost. `curvature` is 0 for expansions of order 1.
    """

    centre: float
    score: float
    curvature: float
    tests: float

    def __post_init__(self) -> None:
        for name in ("centre", "score", "tests"):
            _validate.open_unit_interval(f"shares.{name}", getattr(self, name))
        _validate.not_negative("shares.curvature", self.curvature)
        if abs(self.centre + self.score + self.curvature + self.tests - 1.0) > 1e-9:
            raise InvalidArgument("shares have to add up to 1.")


_DEFAULT_SHARES = {1: Shares(0.15, 0.75, 0.0, 0.1), 2: Shares(0.33, 0.37, 0.08, 0.22)}


class DPSurrogateHMC(DPStep):
    """Differentially private Hamiltonian Monte Carlo on a surrogate, corrected by tests of what the surrogate misses.

    All settings have defaults that need no data: clip bounds, preconditioner and the tests' bounds are read off a
    synthetic table.

    Parameters
    ----------
    vars : sequence of variables, optional
        All free variables of the model. Default: all.
    budget : PrivacyBudget
        What the run is charged to. Its relation has to be "substitute": the number of units is public.
    synthetic : pm.Model, optional
        The same model written on a synthetic table of the same shape: public or simulated covariates and responses.
        It need not be near the truth; bounds are chosen so that they suit this table. Default for models without
        covariates: rows simulated from the model itself. One that was given an array of the model of the data, or
        a part of one, is refused; a copy, a subsample, or a table simulated from a fit cannot be recognised (docs:
        "The guarantee").
    order : {1, 2}, optional
        2: scores and curvatures are released, for regressions. 1: scores alone, and the curvature is that of synthetic
        rows: for models whose rows can be simulated. Default: 2 with a synthetic table, 1 without.
    newton_steps : int, optional
        Noisy steps towards the mode. Default: 6 with a synthetic table, 8 without.
    shares : Shares, optional
        How the cost is split.
    clip_gradient, clip_curvature : float, optional
        Clip bounds of one unit's preconditioned score and curvature. Default: the bound that the part `clip_quantile`
        of the synthetic units keep, for curvatures twice that. A unit whose score is beyond it counts less in the whole
        likelihood; a curvature beyond it is cut alone.
    clip_quantile : float, optional
        Part of the synthetic units that the bounds do not cut, in (0, 1]. Default: 0.9995 of a synthetic table, for in
        regressions the few that are cut are not cut at random; 0.998 of rows simulated from the model.
    safety : float
        The bound of one unit's remainder is this times the largest among synthetic units.
    trajectories : int, optional
        Free trajectories between two tests. Default: as many as make proposals nearly independent, or as are worth
        their time.
    widen : bool, optional
        Return draws that are widened by the known noise of the released score, so that intervals cover. The plain
        draws are kept in the group ``unwidened``. Default: True for order 2; order 1 cannot.
    budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range.

    Notes
    -----
    *Before the charge* the search for a centre is tried in a dry run on synthetic rows, with noise in the plan's
    proportion. After it, whatever noise does, nothing is raised: a step that cannot be made is left out, and where
    there is no surrogate in the end, chains do not move and ``surrogate_found`` in the ``privacy`` group is 0.

    *Privacy.* Score, curvature and residual log-ratios are sums of clipped contributions released with Gaussian
    noise; preconditioner, bounds, centre and proposals are functions of earlier releases and of synthetic tables.

    *Exactness.* As long as no remainder is clipped, the plain draws' stationary distribution is, exactly, the
    posterior of the weighted units tilted once by the errors of the released score and curvature (docs: "Control
    variates"). The score's is noise of a known law; widened draws integrate over it.

    References
    ----------
    Yıldırım and Ermiş (2019), Exact MCMC with differentially private moves, Statistics and Computing 29.
    Baker, Fearnhead, Fox and Nemeth (2019), Control variates for stochastic gradient MCMC, Statistics and
    Computing 29, for expansions around a centre without privacy.
    Christen and Fox (2005), Markov chain Monte Carlo using an approximation, JCGS 14, for surrogate proposals.
    """

    name = "dp_surrogate_hmc"
    expands = True
    stats_dtypes_shapes: ClassVar[dict[str, tuple[type, list[int] | None]]] = {
        **SHARED_STATS,
        "clip_bias": (np.float64, []),
        "clip_bias_noise_std": (np.float64, []),
        "centre_distance": (np.float64, []),
        "doubtful_width": (np.float64, []),
        "unwidened": (object, None),
    }

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        synthetic: pm.Model | None = None,
        order: Literal[1, 2] | None = None,
        newton_steps: int | None = None,
        shares: Shares | None = None,
        clip_gradient: float | None = None,
        clip_curvature: float | None = None,
        clip_quantile: float | None = None,
        safety: float = 1.3,
        trajectories: int | None = None,
        widen: bool | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(vars, **shared)
        if not self.moves_all:
            raise InvalidArgument("DPSurrogateHMC updates all free variables together: leave out vars.")
        if self.budget.relation != "substitute":
            raise InvalidArgument(
                "DPSurrogateHMC needs the number of units: use a budget with relation='substitute', or DPHMC."
            )
        if synthetic is not None and not isinstance(synthetic, pm.Model):
            raise InvalidArgument("synthetic must be a pm.Model: the same model, written on a synthetic table.")
        model = pm.modelcontext(shared.get("model"))
        if synthetic is not None and shares_tables(model, synthetic):
            raise InvalidArgument(
                "The synthetic table holds a table of the model of the data, or a part of one: clip bounds and "
                "proposals would then be computed from protected rows without noise. Write it on synthetic data. (A "
                "public array that both models need: give the synthetic table a copy.)"
            )
        if synthetic is not None and synthetic.parent is not None:
            raise InvalidArgument(
                "The synthetic table was written inside the context of another model, which PyMC takes for a part of "
                "that model. Write it outside, before the `with` block of the model of the data."
            )
        self.synthetic = synthetic
        default_order = 1 if synthetic is None else 2
        self.order = _validate.choice("order", default_order if order is None else order, (1, 2))
        default_steps = 8 if synthetic is None else 6
        self.newton_steps = _validate.whole(
            "newton_steps", default_steps if newton_steps is None else newton_steps, at_least=1
        )
        if shares is not None and not isinstance(shares, Shares):
            raise InvalidArgument("shares must be a Shares(centre=, score=, curvature=, tests=).")
        self.shares = shares or _DEFAULT_SHARES[self.order]
        if (self.shares.curvature > 0.0) != (self.order == 2):
            raise InvalidArgument("shares.curvature must be above zero for order 2, and zero for order 1.")
        self.clip_gradient = None if clip_gradient is None else clip_bound("clip_gradient", clip_gradient)
        self.clip_curvature = None if clip_curvature is None else clip_bound("clip_curvature", clip_curvature)
        default_quantile = 0.998 if synthetic is None else 0.9995
        self.clip_quantile = _validate.part_of_one(
            "clip_quantile", default_quantile if clip_quantile is None else clip_quantile
        )
        self.safety = _validate.positive("safety", safety)
        self.trajectories = None if trajectories is None else _validate.whole("trajectories", trajectories, at_least=1)
        self.widen = self.order == 2 if widen is None else _validate.truth("widen", widen)
        if self.widen and self.order == 1:
            raise InvalidArgument("Draws of an expansion of order 1 cannot be widened: leave out widen.")
        self.prior_point = self.parameters.to_theta(model.initial_point(random_seed=0))
        self._centre: ExpansionPoint | None = None
        self._kernel: FreeHMC | None = None
        self.start()

    @property
    def clip_bounds(self) -> dict[str, float]:
        """The clip bounds, for the result's metadata."""
        if self._centre is None:
            return {}
        bounds = {"score": self._centre.clip_gradient}
        return bounds | ({"curvature": self._centre.clip_curvature} if self.order == 2 else {})

    @property
    def facts(self) -> dict[str, Any]:
        """What the draws of the posterior are, and whether there is a surrogate: chains do not move without."""
        return {"order": self.order, "widened": int(self.widen), "surrogate_found": int(self._kernel is not None)}

    def prelude_requests(self) -> list[ReleaseRequest]:
        """Return what is released once: the scores of the search, the score and the curvature at the centre."""
        requests = [
            ReleaseRequest(kind, count, self.shares.centre * part, self.size, once=True)
            for kind, count, part in centre_schedule(self.newton_steps, simulated=self.synthetic is None)
        ]
        entries = self.size * (self.size + 1) // 2
        if self.synthetic is not None:
            share = self.shares.centre * EARLY_CURVATURE_SHARE
            requests.insert(0, ReleaseRequest("early_curvature", 1, share, entries, once=True))
        requests.append(ReleaseRequest("score", 1, self.shares.score, self.size, once=True))
        if self.order == 2:
            requests.append(ReleaseRequest("curvature", 1, self.shares.curvature, entries, once=True))
        if self.clip_diagnostics is None:
            return requests
        rest = [replace(each, share=each.share * (1.0 - _EXCESS_SHARE)) for each in requests]
        return [*rest, ReleaseRequest("clipping_loss", 1, _EXCESS_SHARE, 1, once=True)]

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest]:
        """Return what one chain releases: a residual log-ratio for every kept draw."""
        of_cost = 1.0 if self.clip_diagnostics is None else 1.0 - _EXCESS_SHARE
        return [ReleaseRequest("residual", draws, self.shares.tests * of_cost, 1)]

    def memory_needed(self, n_units: int, n_synthetic: int) -> int:
        """Return how many bytes expansions take, about: curvatures of many units are held at a time."""
        square = self.size**2
        expanded = min(n_units, ROWS_OF_A_CHUNK) if self.order == 2 or self.synthetic is not None else 0
        # Columns of curvatures with their packed entries; curvatures of synthetic units, as they are put together, and
        # preconditioned; matrices of Newton steps and of the free sampler.
        return round(8 * square * (1.5 * expanded + 3.0 * n_synthetic + 20.0))

    @np.errstate(all="ignore")
    def dry_run(self) -> None:
        """Find a centre for synthetic rows and expand there: what fails here would have failed after the charge.

        Raises
        ------
        InvalidArgument
            If the search for a centre cannot begin.
        """
        try:
            way = find_centre(self)
            self._expand(self.centre_at(way.theta, way.scale), way)
        except NUMERICAL_FAILURES as failure:
            if isinstance(failure, InvalidArgument):
                raise
            raise InvalidArgument(
                "A dry run on synthetic rows found no surrogate: see that the likelihood is finite where "
                "the priors put the parameters, or use DPHMC."
            ) from failure

    @np.errstate(all="ignore")
    def prelude(self) -> None:
        """Find a centre, expand there, and draw a pilot chain from the surrogate.

        Where noise has led to numbers that are not finite, there is no surrogate: chains stay where they are.
        """
        self._kernel = self._centre = None
        unknown = dict.fromkeys(("clip_bias", "clip_bias_noise_std", "doubtful_width"), np.nan)
        self._figures = {**unknown, "centre_distance": np.inf}
        self._standardise = np.full((self.size, self.size), np.nan)
        try:
            way = find_centre(self)
            self._scale = way.scale
            self._centre = self.centre_at(way.theta, way.scale)
            self._surrogate, start, curvature = self._expand(self._centre, way)
            kernel = FreeHMC(self._surrogate, start, curvature, np.random.default_rng(0))
        except NUMERICAL_FAILURES:
            return
        self._kernel = kernel
        self._trajectories = self.trajectories or kernel.trajectories_apart
        self._standardise = self._finite_or(self._standardise, lambda: _whitening(kernel.covariance))
        self._figures = self._estimated_clip_bias(self._centre, kernel) | {
            "centre_distance": self._distance(way, kernel),
            "doubtful_width": self._doubtful_width,
        }

    @staticmethod
    def _distance(way: WayToCentre, kernel: FreeHMC) -> float:
        """Return how far the surrogate's mean is from the centre, in the parameters that the likelihood knows."""
        known = np.diag(way.information) > 0.0
        distance = (kernel.mean - way.theta)[known]
        covariance = kernel.covariance[np.ix_(known, known)]
        try:
            squared = float(distance @ solved(covariance, distance)) / max(1, distance.size)
        except NotComputable:  # the pilot has not moved
            return np.inf
        return float(np.sqrt(squared)) if squared >= 0.0 else np.inf

    def centre_at(self, theta: FloatArray, scale: Scale) -> ExpansionPoint:
        """Return a centre with the step's own bounds, or those of the synthetic table."""
        clip_curvature = np.inf
        if self.order == 2:
            clip_curvature = scale.clip_curvature if self.clip_curvature is None else self.clip_curvature
        clip_gradient = scale.clip_gradient if self.clip_gradient is None else self.clip_gradient
        return ExpansionPoint(theta, scale.preconditioner, clip_gradient, clip_curvature)

    def _expand(self, centre: ExpansionPoint, way: WayToCentre) -> tuple[Surrogate, FloatArray, FloatArray]:
        """Release the sums at the centre; return the surrogate, a point near its mode and its curvature there."""
        units, n_units, scale = self.chain.synthetic_tables.at(centre.theta), self.chain.n_units, way.scale
        score = self.release_score(centre)
        from_prior = prior_curvature(self.chain.prior, centre.theta)
        self._doubtful_width = 1.0
        if self.order == 1:
            curvature = way.information + from_prior
            return WeightedRows(self.chain.prior, centre, units, score.value, n_units), centre.theta, curvature
        released = self.release_curvature(centre)
        likelihood = self._finite_or(way.information, lambda: informed(way.information, released, scale))
        curvature = likelihood + from_prior
        reach = _BEYOND_NOISE * released.noise_std * np.sqrt(2.0 * self.size)

        def width() -> FloatArray:
            expected = n_units * expected_curvature(units, centre.theta) + from_prior
            return np.array(doubtful_width(curvature, expected, reach, scale.back))

        self._doubtful_width = float(self._finite_or(np.array(np.nan), width))
        try:
            pooled, self._score_noise = pooled_score(way, units, n_units, score, likelihood)
        except NUMERICAL_FAILURES:
            pooled, self._score_noise = score.value, score.noise_std
        gradient = scale.gradient(pooled)
        slope = gradient + self.chain.prior.gradient(centre.theta)
        nowhere = np.zeros(self.size)
        distance = self._finite_or(
            nowhere, lambda: newton_step(units, self.chain.prior, centre.theta, slope, likelihood)
        )
        start = centre.theta + distance
        radius = _TRUSTED + np.sqrt(self.size) + float(np.sqrt(distance @ likelihood @ distance))
        return Quadratic(self.chain.prior, centre, units, gradient, likelihood, radius), start, curvature

    @staticmethod
    def _finite_or(otherwise: FloatArray, compute: Callable[[], FloatArray]) -> FloatArray:
        """Return what is computed, if that is finite."""
        try:
            found = compute()
        except NUMERICAL_FAILURES:
            return otherwise
        return found if np.isfinite(found).all() else otherwise

    def _estimated_clip_bias(self, centre: ExpansionPoint, kernel: FreeHMC) -> dict[str, float]:
        """Release what weights have taken off scores; return how far that can have moved the posterior mean.

        In standard deviations of the draws, root mean square over parameters, if all units that were weighted down had
        pulled together in the direction in which the mean moves most.
        """
        if self.clip_diagnostics is None:
            return {"clip_bias": np.nan, "clip_bias_noise_std": np.nan}
        clipping_loss = self.chain.release(ClippingLoss(centre))
        covariance = kernel.covariance
        shifts = covariance @ self._scale.back
        variances = np.diag(covariance).copy()
        if self.widen:
            variances += self._score_noise**2 * np.sum(shifts**2, axis=1)
        moves = shifts / np.sqrt(variances)[:, None]
        if not np.isfinite(moves).all():  # the pilot has not moved
            return {"clip_bias": np.nan, "clip_bias_noise_std": np.nan}
        most = centre.clip_gradient * float(np.linalg.norm(moves, ord=2)) / np.sqrt(self.size)
        return {
            "clip_bias": most * float(clipping_loss.value[0]),
            "clip_bias_noise_std": most * clipping_loss.noise_std,
        }

    def start(self) -> None:
        """Forget the last chain."""
        self._theta: FloatArray | None = None

    def transition(self, theta: FloatArray) -> Transition:
        """Propose a draw of the surrogate; accept it by the penalty test on what the surrogate misses."""
        log_uniform = -self.rng.exponential()
        kernel = self._kernel
        if kernel is None:
            nowhere = Position(theta, np.full(self.size, np.nan))
            return Transition(theta, {**untested(accepted=False), **self._figures, "unwidened": nowhere})
        if self._theta is None:  # a chain begins with a draw of the surrogate, wherever it was put
            self._theta = kernel.run(kernel.theta, 10 * self._trajectories, self.rng)
        proposal = kernel.run(self._theta, self._trajectories, self.rng)
        if self.tuning:
            stats = untested(accepted=True)
        else:
            old, new = self._surrogate.prediction(self._theta), self._surrogate.prediction(proposal)
            stats = penalty_test(
                lambda bound: self.release_residual(old, new, bound),
                self._bound(self._theta, proposal),
                0.0,
                log_uniform,
            )
        if stats["accepted"]:
            self._theta = proposal
        standardised = self._standardise @ (self._theta - kernel.mean)
        found = {**stats, **self._figures, "unwidened": Position(self._theta, standardised)}
        return Transition(self._widened(self._theta), found)

    def _bound(self, theta: FloatArray, theta_new: FloatArray) -> float:
        """Return the clip bound of one unit's remainder: symmetric in the two points, and public."""
        if np.array_equal(theta, theta_new):
            return 0.0
        missed = np.abs(self._surrogate.remainders(theta_new) - self._surrogate.remainders(theta))
        largest = float(np.max(missed[np.isfinite(missed)], initial=0.0))
        harmless = _HARMLESS_NOISE / (2.0 * self.chain.multiplier("residual"))
        return max(self.safety * largest, harmless)

    def _widened(self, theta: FloatArray) -> FloatArray:
        """Return the draw with a fresh copy of the score's noise, as it moves the posterior."""
        if not self.widen or self._kernel is None:
            return theta
        noise = self._score_noise * self.rng.standard_normal(self.size)
        widened: FloatArray = theta + self._kernel.covariance @ self._scale.gradient(noise)
        return widened

    # Asking the curator -----------------------------------------------------------------------------------------

    def release_score(self, centre: ExpansionPoint, kind: str = "score") -> Release:
        """Ask the curator for the noisy sum of weighted scores at a centre."""
        return self.chain.release(WeightedScore(centre, kind))

    def release_curvature(self, centre: ExpansionPoint, kind: str = "curvature") -> Release:
        """Ask the curator for the noisy sum of weighted curvatures at a centre."""
        return self.chain.release(Curvature(centre, kind))

    def release_residual(self, old: Prediction, new: Prediction, bound: float) -> Release:
        """Ask the curator for the noisy sum of clipped remainders of log-ratios."""
        assert self._centre is not None  # noqa: S101
        return self.chain.release(Residual(self._centre, old, new, bound))


def doubtful_width(curvature: FloatArray, expected: FloatArray, reach: float, back: FloatArray) -> float:
    """Return by what factor the posterior is narrower (below 1) or wider than expected where noise may be all of that.

    Of all directions, where it is most; 1 if what is released is beyond noise in all of them.

    Parameters
    ----------
    curvature, expected : ndarray, shape (parameters, parameters)
        The surrogate's, and what synthetic units and the prior make one expect.
    reach : float
        How far noise may reach in the released curvature, along any of its unit vectors.
    back : ndarray, shape (parameters, parameters)
        Turns a preconditioned gradient of the release into a gradient.
    """
    inverse = np.linalg.inv(np.linalg.cholesky(positive_definite(expected, floor=1e-12)))
    ratios, vectors = np.linalg.eigh(inverse @ curvature @ inverse.T)
    noise = reach * np.sum((back.T @ inverse.T @ vectors) ** 2, axis=0)
    doubtful = ratios[np.abs(ratios - 1.0) <= noise]
    widths = 1.0 / np.sqrt(np.maximum(doubtful, np.finfo(float).tiny))
    return float(widths[np.argmax(np.abs(np.log(widths)))]) if widths.size else 1.0


def _whitening(covariance: FloatArray) -> FloatArray:
    """Return a matrix that standardises draws of this covariance, and gives 0 in directions without spread."""
    values, vectors = np.linalg.eigh(covariance)
    spread = values > 1e-12 * max(float(values.max()), np.finfo(float).tiny)
    scales = np.where(spread, 1.0 / np.sqrt(np.where(spread, values, 1.0)), 0.0)
    whitening: FloatArray = scales[:, None] * vectors.T
    return whitening
