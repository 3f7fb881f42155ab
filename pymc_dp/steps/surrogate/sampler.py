r"""Differentially private MCMC with control variates: pay once for an expansion, from which draws are free.

1. *Centre.* Scales, directions and a few noisy Newton steps from the prior lead near the posterior's mode
   (`learned`, or `simulated` where rows can be simulated from the model).
2. *Expansion.* There, the sums of units' scores (and curvatures) are released once. With the exact prior they
   make a surrogate of the posterior, from which draws are free.
3. *Check.* How far the log-likelihood is from its expansion is released at some draws; or every draw is tested: a
   unit's log-ratio is what its own expansion predicts, which the surrogate has counted already, and a remainder, which
   is small. The penalty test releases the sum of remainders with noise in proportion to a bound on one of them.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`\theta_c`          `ExpansionPoint.theta`
:math:`G, H`              released score and curvature
:math:`S`                 `surrogate`: log-prior plus expansion
:math:`e_i`               a unit's remainder in a log-ratio
:math:`c_e`               `bound` of one remainder, from synthetic units
========================  ==========================================================

Released once for all chains: what the search asks for, the score at the centre, the curvature there (order 2), how much
clipping has taken off scores, and the check. Released in every iteration after tuning: one residual log-ratio, where
draws are tested.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_dp import _validate
from pymc_dp.budget import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.origins import shares_tables
from pymc_dp.parameters import FloatArray
from pymc_dp.release.centred import CentredScore
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, ExpansionPoint, Position, Prediction, Release
from pymc_dp.release.queries import ClippingLoss, Curvature, Residual, WeightedScore
from pymc_dp.release.sizes import RemainderSizes
from pymc_dp.steps.acceptance import penalty_test, untested
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.sampler import SHARED_STATS, Transition
from pymc_dp.steps.surrogate.density import Quadratic, Surrogate, WeightedRows
from pymc_dp.steps.surrogate.free_hmc import FreeHMC
from pymc_dp.steps.surrogate.learned import (
    Regression,
    Search,
    pooled_curvature,
    pooled_score,
    requests_of_search,
)
from pymc_dp.steps.surrogate.newton import NUMERICAL_FAILURES, NotComputable, prior_curvature, solved
from pymc_dp.steps.surrogate.settings import APPROACH_STEPS, Shares
from pymc_dp.steps.surrogate.simulated import SearchBySimulation, requests_of_simulation
from pymc_dp.steps.tuning import clip_bound
from pymc_dp.structure import in_likelihood, places_of_scale, rows_can_be_simulated, scale_places

#: Radius of the trust region of the quadratic surrogate around its mode, in the surrogate's standard deviations.
_TRUSTED = 8.0
#: Part of the cost that tells how far clip bounds may have moved the draws.
_LOSS_SHARE = {1: 0.1, 2: 0.02}
#: Part of the cost that tells how far the surrogate is from the likelihood, where no test corrects it; and how it is
#: split between a histogram of remainders and sums of them at so many draws.
_CHECK_SHARE, _HISTOGRAM_OF_CHECK, _CHECKED_DRAWS = 0.02, 0.3, 10
#: Noise of a sum of remainders, as a standard deviation, below which a smaller bound buys nothing.
_HARMLESS_NOISE_OF_CHECK = 0.05
#: Octaves of remainders, the part of them that a bound may cut, and room above.
_LOWEST_REMAINDER, _REMAINDER_BINS, _CUT_REMAINDERS, _ROOM_FOR_REMAINDERS = -50, 60, 0.001, 8.0
#: Noise of a curvature reaches this many standard deviations; of what may be all noise, this part is believed.
_BEYOND_NOISE, _LEAST_CERTAIN = 2.0, 0.01
#: Noise of a test, as a standard deviation, below which a smaller bound buys nothing.
_HARMLESS_NOISE = 0.03
#: How many rows the row engine works on at a time, at most, where it expands.
ROWS_OF_A_CHUNK = 8192
#: Rows are simulated from models without covariates (order 1); regressions are learned (order 2).
_DEFAULT_SHARES = {1: Shares(0.15, 0.75, 0.0, 0.1), 2: Shares(0.5, 0.38, 0.12, 0.0)}


#: What is known of the surrogate before the chains start, published with every draw.
_FIGURES = (
    "clip_bias",
    "clip_bias_noise_std",
    "centre_distance",
    "doubtful_width",
    "widening",
    "surrogate_error",
    "surrogate_error_noise_std",
)


class DPSurrogateHMC(DPStep):
    """Differentially private Hamiltonian Monte Carlo on a surrogate of the posterior, which is paid for once.

    It needs a budget and nothing else: scales, directions, clip bounds and the way to the centre are learned by small
    releases.

    Parameters
    ----------
    vars : sequence of variables, optional
        All free variables of the model. Default: all.
    budget : PrivacyBudget
        What the run is charged to. Its relation has to be "substitute": the number of units is public.
    synthetic : pm.Model, optional
        The same model written on a synthetic table, public or simulated: says how large remainders are, which tests
        need (``shares.tests`` above zero), and is used for nothing else. One that was given an array of the model of
        the data, or a part of one, is refused; a copy, a subsample, or a table simulated from a fit cannot be
        recognised (docs: "The guarantee").
    order : {1, 2}, optional
        2: scores and curvatures are released, for regressions. 1: scores alone, and the curvature is that of rows
        simulated from the model. Default: 1 if the model has no covariates, groups or units of several rows, so that
        rows can be simulated; else 2.
    newton_steps : int, optional
        Noisy steps towards the mode, before the last one. Default: 4 for order 2, 8 for order 1.
    shares : Shares, optional
        How the cost is split. Default for order 2: no tests.
    clip_gradient, clip_curvature : float, optional
        Clip bounds of one unit's preconditioned score and curvature at the centre. Default for order 2: the bounds that
        weigh bias against noise best, by noisy histograms; for order 1 the bound that the part `clip_quantile` of
        simulated rows keep.
    clip_quantile : float, optional
        Order 1: part of the simulated rows that the bounds do not cut, in (0, 1]. Default: 0.998.
    safety : float
        The bound of one unit's remainder in a test is this times the largest among synthetic units.
    trajectories : int, optional
        Free trajectories between two draws. Default: as many as make proposals nearly independent, or as are worth
        their time.
    widen : bool, optional
        Return draws that are widened by the known noise of the released scores and curvatures, and by the estimated
        bias of clipping, so that intervals cover. The plain draws are kept in the group ``unwidened``. Default: True
        for order 2; order 1 cannot.
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
        **dict.fromkeys(_FIGURES, (np.float64, [])),
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
        self.simulates = rows_can_be_simulated(model) and self.unit_index is None
        self.order = _validate.choice("order", (1 if self.simulates else 2) if order is None else order, (1, 2))
        if self.order == 1 and not self.simulates:
            raise InvalidArgument(
                "Expansions of order 1 need rows that can be simulated from the model, but this one has covariates, "
                "groups, several rows a unit, or functions of yours: leave out order."
            )
        self.simulates = self.order == 1
        self.newton_steps = _validate.whole(
            "newton_steps", {1: 8, 2: APPROACH_STEPS}[self.order] if newton_steps is None else newton_steps, at_least=1
        )
        if shares is not None and not isinstance(shares, Shares):
            raise InvalidArgument("shares must be a Shares(centre=, score=, curvature=, tests=).")
        self.shares = shares or _DEFAULT_SHARES[self.order]
        if (self.shares.curvature > 0.0) != (self.order == 2):
            raise InvalidArgument("shares.curvature must be above zero for order 2, and zero for order 1.")
        self.tested = self.asks_in_chains = self.shares.tests > 0.0
        if self.order == 1 and not self.tested:
            raise InvalidArgument("Expansions of order 1 are tested: shares.tests must be above zero.")
        if self.order == 2 and self.tested and synthetic is None:
            raise InvalidArgument(
                "Tests need a synthetic table, which says how large remainders are: pass synthetic=, or leave out "
                "shares."
            )
        self.clip_gradient = None if clip_gradient is None else clip_bound("clip_gradient", clip_gradient)
        self.clip_curvature = None if clip_curvature is None else clip_bound("clip_curvature", clip_curvature)
        self.clip_quantile = _validate.part_of_one("clip_quantile", 0.998 if clip_quantile is None else clip_quantile)
        self.safety = _validate.positive("safety", safety)
        self.trajectories = None if trajectories is None else _validate.whole("trajectories", trajectories, at_least=1)
        self.widen = self.order == 2 if widen is None else _validate.truth("widen", widen)
        if self.widen and self.order == 1:
            raise InvalidArgument("Draws of an expansion of order 1 cannot be widened: leave out widen.")
        self.prior_point = self.parameters.to_theta(model.initial_point(random_seed=0))
        known = in_likelihood(model, self.parameters)
        scales = scale_places(model, self.parameters)
        followed = places_of_scale(model, self.parameters)
        self._regression = Regression(self.prior_point, known, scales[known[scales]], self.newton_steps, followed)
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
        return {
            "order": self.order,
            "widened": int(self.widen),
            "surrogate_found": int(self._kernel is not None),
            "acceptance_test": "penalty" if self.tested else "surrogate_check",
        }

    def prelude_requests(self) -> list[ReleaseRequest]:
        """Return what is released once: the search, the score and the curvature at the centre."""
        if self.order == 1:
            requests = requests_of_simulation(self.size, self.shares.centre, self.newton_steps)
        else:
            requests = requests_of_search(self._regression, self.shares.centre)
        requests.append(ReleaseRequest("score", 1, self.shares.score, self.size, once=True))
        if self.order == 2:
            entries = self.size * (self.size + 1) // 2
            requests.append(ReleaseRequest("curvature", 1, self.shares.curvature, entries, once=True))
        if self.clip_diagnostics is None:
            return requests
        diagnostics = [ReleaseRequest("clipping_loss", 1, _LOSS_SHARE[self.order], 1, once=True)]
        if not self.tested:
            of_sizes = _CHECK_SHARE * _HISTOGRAM_OF_CHECK
            diagnostics += [
                ReleaseRequest("remainder_sizes", 1, of_sizes, _REMAINDER_BINS, once=True),
                ReleaseRequest("surrogate_check", _CHECKED_DRAWS, _CHECK_SHARE - of_sizes, 1, once=True),
            ]
        rest = 1.0 - sum(each.share for each in diagnostics)
        return [*(replace(each, share=each.share * rest) for each in requests), *diagnostics]

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest]:
        """Return what one chain releases: a residual log-ratio for every kept draw, where draws are tested."""
        if not self.tested:
            return []
        of_cost = 1.0 if self.clip_diagnostics is None else 1.0 - _LOSS_SHARE[self.order]
        return [ReleaseRequest("residual", draws, self.shares.tests * of_cost, 1)]

    def memory_needed(self, n_units: int, n_synthetic: int) -> int:
        """Return how many bytes expansions take, about: curvatures of many units are held at a time."""
        square = self.size**2
        expanded = min(n_units, ROWS_OF_A_CHUNK) if self.order == 2 else 0
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
            self._expand()
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
        unknown = dict.fromkeys(_FIGURES, np.nan)
        self._figures = {**unknown, "centre_distance": np.inf}
        self._standardise = np.full((self.size, self.size), np.nan)
        try:
            self._surrogate, start, curvature = self._expand()
            kernel = FreeHMC(self._surrogate, start, curvature, np.random.default_rng(0))
        except NUMERICAL_FAILURES:
            return
        self._kernel = kernel
        self._trajectories = self.trajectories or kernel.trajectories_apart
        self._standardise = self._finite_or(self._standardise, lambda: _whitening(kernel.covariance))
        centre = self._expansion_point
        self._figures |= self._estimated_clip_bias(centre, kernel) | {
            "centre_distance": self._distance(centre.theta, kernel),
            "doubtful_width": self._doubtful_width,
            "widening": self._widening(kernel.covariance),
        }
        if not self.tested and self.clip_diagnostics is not None:
            self._figures |= self._checked(centre, kernel)

    def _distance(self, centre: FloatArray, kernel: FreeHMC) -> float:
        """Return how far the surrogate's mean is from the centre, in the parameters that the likelihood knows."""
        known = self._regression.known
        distance = (kernel.mean - centre)[known]
        covariance = kernel.covariance[np.ix_(known, known)]
        try:
            squared = float(distance @ solved(covariance, distance)) / max(1, distance.size)
        except NotComputable:  # the pilot has not moved
            return np.inf
        return float(np.sqrt(squared)) if squared >= 0.0 else np.inf

    @property
    def _expansion_point(self) -> ExpansionPoint:
        assert self._centre is not None  # noqa: S101
        return self._centre

    def _expand(self) -> tuple[Surrogate, FloatArray, FloatArray]:
        """Find a centre and release the sums there; return the surrogate, a point near its mode, its curvature."""
        return self._expand_simulated() if self.order == 1 else self._expand_learned()

    def _expand_simulated(self) -> tuple[Surrogate, FloatArray, FloatArray]:
        """Expand to first order, in rows simulated at the centre."""
        way = SearchBySimulation(self.chain, self.prior_point, self.newton_steps, self.clip_quantile).run()
        bound = way.scale.clip_gradient if self.clip_gradient is None else self.clip_gradient
        self._centre = centre = ExpansionPoint(way.theta, way.scale.preconditioner, bound)
        self._back = way.scale.back
        score = self.release_score(centre)
        self._doubtful_width, self._score_error = 1.0, np.zeros((self.size, self.size))
        units = self.chain.synthetic_tables.at(centre.theta)
        curvature = way.information + prior_curvature(self.chain.prior, centre.theta)
        surrogate = WeightedRows(self.chain.prior, centre, units, score.value, self.chain.n_units)
        return surrogate, centre.theta, curvature

    def _expand_learned(self) -> tuple[Surrogate, FloatArray, FloatArray]:
        """Expand to second order where a search has led to."""
        search = Search(self.chain, self._regression)
        learned = search.run()
        theta, known, prior = learned.theta, self._regression.known, self.chain.prior
        frame = search.frame(learned.curvature)
        point, bias = search.expansion_point(theta, frame)
        self._centre = point = ExpansionPoint(
            theta,
            frame.preconditioner,
            point.clip_gradient if self.clip_gradient is None else self.clip_gradient,
            point.clip_curvature if self.clip_curvature is None else self.clip_curvature,
        )
        self._back, self._bias_of_loss = frame.back, search.bias_of_loss
        if self.tested:  # tests correct what the weighted units' expansion misses, at the centre
            late = search.repaired(self.release_curvature(point), point, frame, between_scales=True)
            curvature, noise = late.matrix, late.noise_std
            scores = [search.known_score(self.release_score(point), point, frame, bias)]
        else:
            late = search.repaired(search.release_curvature(point, "curvature"), point, frame, between_scales=True)
            curvature, noise = pooled_curvature(late, learned.curvature, known)
            made = self.chain.release(CentredScore(point, "score"))
            scores = [*learned.scores, search.known_score(made, point, frame, bias)]
        from_prior = prior_curvature(prior, theta)
        from_scores = functools.partial(pooled_score, theta, scores, curvature, noise, frame, known, self.chain.n_units)
        distance = np.zeros(self.size)
        for _ in range(2):  # the noise of the curvature acts over the distance, which the pooled score tells
            pooled = from_scores(distance)
            slope = pooled.gradient + prior.gradient(theta)
            distance = np.zeros(self.size)
            distance[known] = solved((curvature + from_prior)[np.ix_(known, known)], slope[known])
        self._score_error = _root(pooled.covariance)
        self._doubtful_width = _doubtful_width(late.raw, from_prior, late.noise_std, frame.preconditioner, known)
        length = float(np.sqrt(distance @ curvature @ distance))
        radius = _TRUSTED + np.sqrt(self.size) + length
        units = self.chain.synthetic_tables.at(theta) if self.tested else None
        surrogate = Quadratic(prior, self._centre, pooled.gradient, curvature, radius, units)
        return surrogate, theta + distance, curvature + from_prior

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
        shifts = covariance @ self._back
        variances = np.diag(covariance).copy()
        if self.widen:
            variances += np.sum((covariance @ self._score_error) ** 2, axis=1)
        moves = shifts / np.sqrt(variances)[:, None]
        if not np.isfinite(moves).all():  # the pilot has not moved
            return {"clip_bias": np.nan, "clip_bias_noise_std": np.nan}
        most = centre.clip_gradient * float(np.linalg.norm(moves, ord=2)) / np.sqrt(self.size)
        if self.order == 2 and not self.tested:
            # Some direction, not the worst one; and of what is centred, what a wrong model explains.
            most = self._bias_of_loss * centre.clip_gradient * float(np.linalg.norm(moves)) / self.size
        return {
            "clip_bias": most * float(clipping_loss.value[0]),
            "clip_bias_noise_std": most * clipping_loss.noise_std,
        }

    def _widening(self, covariance: FloatArray) -> float:
        """Return how many times as wide as without noise the draws are, root mean square over parameters."""
        if not self.widen:
            return 1.0
        added = np.sum((covariance @ self._score_error) ** 2, axis=1)
        return float(np.sqrt(1.0 + np.mean(added / np.diag(covariance))))

    def _checked(self, centre: ExpansionPoint, kernel: FreeHMC) -> dict[str, float]:
        """Release at draws of the surrogate how far the log-likelihood is from its expansion; return by how much.

        As the standard deviation over draws of what the surrogate's log-density misses: where it is s, no mean is off
        by more than s posterior standard deviations.
        """
        units = ExpansionPoint(centre.theta, centre.preconditioner, LARGEST_CLIP_BOUND)
        rng, theta, draws = np.random.default_rng(1), kernel.theta, []
        for _ in range(_CHECKED_DRAWS):
            theta = kernel.run(theta, self._trajectories, rng)
            draws.append(self._surrogate.prediction(theta))
        mean = self._surrogate.prediction(kernel.mean)
        sizes = self.chain.release(RemainderSizes(units, mean, draws[0], _LOWEST_REMAINDER, _REMAINDER_BINS))
        # Noise adds up over bins: where it is large, a bound that keeps fewer remainders is all that can be told.
        beyond = max(_CUT_REMAINDERS * self.chain.n_units, 3.0 * sizes.noise_std * np.sqrt(_REMAINDER_BINS))
        enough = np.cumsum(sizes.value) > self.chain.n_units - beyond
        place = int(np.argmax(enough)) if enough.any() else _REMAINDER_BINS - 1
        # Of few units noise says nothing of the sizes: then all is cut that would not show in this noise.
        harmless = _HARMLESS_NOISE_OF_CHECK / (2.0 * self.chain.multiplier("surrogate_check"))
        bound = max(_ROOM_FOR_REMAINDERS * 2.0 ** (_LOWEST_REMAINDER + place + 1), harmless)
        made = [self.chain.release(Residual(units, mean, draw, bound, "surrogate_check")) for draw in draws]
        noise = made[0].noise_std
        variance = float(np.var([float(each.value[0]) for each in made], ddof=1))
        return {
            "surrogate_error": float(np.sqrt(max(variance - noise**2, 0.0))),
            "surrogate_error_noise_std": noise / np.sqrt(2.0 * (_CHECKED_DRAWS - 1)),
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
        if self.tuning or not self.tested:
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
        """Return the draw with a fresh copy of the score's error, as it moves the posterior."""
        if not self.widen or self._kernel is None:
            return theta
        noise = self._score_error @ self.rng.standard_normal(self.size)
        widened: FloatArray = theta + self._kernel.covariance @ noise
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
        return self.chain.release(Residual(self._expansion_point, old, new, bound))


def _doubtful_width(
    raw: FloatArray,
    prior_information: FloatArray,
    noise_std: float,
    preconditioner: FloatArray,
    known: NDArray[np.bool_],
) -> float:
    """Return by what factor noise of the released curvature may have changed the width of the draws, where it is most.

    Parameters
    ----------
    raw : ndarray, shape (parameters, parameters)
        The curvature along the columns of `preconditioner` as it was released: where noise has made an eigenvalue small
        or negative, the surrogate's was lifted, which must not pass for information.
    prior_information : ndarray, shape (parameters, parameters)
        The prior's curvature.
    noise_std : float
        Of the entries of `raw`.
    preconditioner : ndarray, shape (parameters, parameters)
    known : ndarray of bool, shape (parameters,)
        Which parameters the likelihood depends on.
    """
    along = (raw + preconditioner.T @ prior_information @ preconditioner)[np.ix_(known, known)]
    least = float(np.linalg.eigvalsh(along)[0])
    part = _BEYOND_NOISE * noise_std / max(least, np.finfo(float).tiny)
    return float(1.0 / np.sqrt(max(1.0 - part, _LEAST_CERTAIN)))


def _root(covariance: FloatArray) -> FloatArray:
    """Return a factor of a covariance that may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    root: FloatArray = vectors * np.sqrt(np.maximum(values, 0.0))
    return root


def _whitening(covariance: FloatArray) -> FloatArray:
    """Return a matrix that standardises draws of this covariance, and gives 0 in directions without spread."""
    values, vectors = np.linalg.eigh(covariance)
    spread = values > 1e-12 * max(float(values.max()), np.finfo(float).tiny)
    scales = np.where(spread, 1.0 / np.sqrt(np.where(spread, values, 1.0)), 0.0)
    whitening: FloatArray = scales[:, None] * vectors.T
    return whitening
