r"""The prelude of a step: its options, its releases, and the approximation that follows from them.

1. *Centre.* Scales, directions and a few noisy Newton steps from the prior lead near the posterior's mode (`search`,
   or `simulated` where rows can be simulated from the model).
2. *Expansion.* The sums of units' scores (and curvatures) at the centre are released once. With the exact prior they
make a
   surrogate of the posterior, from which draws are free.
3. *Check.* The error of the expansion is released at some draws, unless it is known; or the magnitude of a unit's
   remainder, where chains release remainders.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`\theta_c`          `ExpansionPoint.theta`
:math:`G, H`              released score and curvature
:math:`S`                 `surrogate`: log-prior plus expansion
========================  ==========================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Union

import numpy as np

from pymc_dp import _validate
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import SURROGATE_FIGURES
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.structure import Structure
from pymc_dp.release.interface import GradientPrediction
from pymc_dp.release.preconditioned import GradientSizes, PreconditionedGradient
from pymc_dp.release.queries import ClippingLoss, Residual
from pymc_dp.release.sizes import RemainderSizes
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.approximation import Approximation, Expansion, found_at_parameters, turned
from pymc_dp.steps.prelude.belief import most_likely
from pymc_dp.steps.prelude.broken_lines import SearchAlongBrokenLines
from pymc_dp.steps.prelude.coordinates import AccessInCoordinates, LinearCoordinates
from pymc_dp.steps.prelude.density import Quadratic
from pymc_dp.steps.prelude.figures import (
    doubtful_widths,
    figures_beside_a_prior,
    figures_of_check,
    narrowed_draws,
    noise_dominates,
    noise_of_members,
)
from pymc_dp.steps.prelude.free_hmc import FreeHMC
from pymc_dp.steps.prelude.level import SearchFromLevel
from pymc_dp.steps.prelude.location import SearchForLocation, missed_by_quadratic
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    finite_prior_at,
    positive_definite,
    prior_curvature,
    representable,
)
from pymc_dp.steps.prelude.regression import Regression, requests_of_search
from pymc_dp.steps.prelude.search import Search
from pymc_dp.steps.prelude.settings import Shares
from pymc_dp.steps.prelude.simulated import SearchBySimulation, requests_of_simulation
from pymc_dp.steps.prelude.student_t import SearchOfStudentT
from pymc_dp.steps.tuning import clip_bound

#: The releases of chains after the prelude: none, log-ratios for tests, gradients, or decisions of tests.
InChains = Literal["nothing", "log_ratios", "gradients", "decisions"]

#: A step's prelude: a given one; one with defaults if a setting is missing that it can learn; or none.
PreludeArgument = Union["Prelude", Literal["auto"], None]

#: Radius of the trust region of the quadratic surrogate around its mode, in the surrogate's standard deviations.
_TRUSTED = 8.0
#: The part of the cost for the norm that clipping removes. Where the mean of clipped parts is not added back, this
#: figure detects outliers. Of .02 and .05 on thirty linear tables the second was better with outliers, by up to a
#: third; elsewhere errors were .01 to .03 posterior standard deviations larger.
_LOSS_SHARE, _LOSS_SHARE_OF_CLIPPED = 0.02, 0.05
#: The part of the cost for the error of the surrogate, where no test corrects it; the part of it for a histogram of
#: remainders, and the number of draws with a sum; and the number of draws where the check is free.
_CHECK_SHARE, _HISTOGRAM_OF_CHECK, _CHECKED_DRAWS, _DRAWS_WITHOUT_RELEASE = 0.02, 0.3, 10, 50
#: The part of the cost for the number of units, where it is protected. The noise of a single release of the whole
#: budget is about 4 units at epsilon 1, and ten times as much here: a percent or two of some thousand units.
_COUNT_SHARE = 0.01
#: The part of the cost for the magnitude of remainders of the expansion.
_SIZES_SHARE = 0.02
#: The noise standard deviation of a sum of remainders below which it is negligible.
_NEGLIGIBLE_NOISE_OF_CHECK, _NEGLIGIBLE_NOISE = 0.05, 0.03
#: The noise standard deviation of a test up to which the clip bound has room for larger remainders.
_TOLERABLE_NOISE = 0.5
#: A histogram is not used if noise may hide a larger part of the units: for a bound that clips hardly any unit, as
#: tests need it; and for the bound of a check, which needs most of the remainder.
_MOST_HIDDEN, _MOST_HIDDEN_OF_CHECK = 0.1, 0.5
#: The tail of a histogram is used where its count exceeds this many standard deviations of noise.
_CLEARLY_SEEN = 4.0
#: Octaves of remainders, the part of them that a bound may clip, and the room of bounds above it.
_LOWEST_REMAINDER, _REMAINDER_BINS, _CUT_REMAINDERS, _ROOM_FOR_REMAINDERS = -40, 40, 0.001, 8.0
#: The same in half octaves, of gradients along standardised axes.
_LOWEST_GRADIENT, _GRADIENT_BINS = 2.0**-50, 120
#: The largest noise of a curvature, in standard deviations of an entry, is at least this, or its largest eigenvalue.
_BEYOND_NOISE = 2.0
#: Clip bounds over the root of the number of parameters, with an allowance for the noise of curvatures: it was 1.8 to
#: 7.1 on eight models at epsilon 3 and 1.
_EXPECTED_BOUND = 3.5
#: The largest number of rows in a chunk of the row engine's expansion.
_ROWS_OF_A_CHUNK = 8192


@dataclass(frozen=True)
class Prelude:
    """The options by which a step learns its settings before its chains start; no default depends on any table.

    Attributes
    ----------
    newton_steps : int, optional
        Noisy steps towards the mode, before the last one. Default: 16 where rows are simulated from the model; else 4
        where the model determines the possible responses of a row, and for normal regressions with one scale; 10 where
        another linear location of normal rows moves first; else 8.
    shares : Shares, optional
        The division of the cost. Default: by the model and the releases of chains.
    clip_gradient, clip_curvature : float, optional
        Clip bounds of one unit's preconditioned score and curvature at the centre. Default: the bounds with the
        smallest mean squared error, by noisy histograms.
    noise_aware : bool, optional
        Whether the likelihood accounts for the noise of releases, and for the estimated bias of clipping, so that
        intervals cover. Default: True with control variates.
    control_variates : bool
        Whether chains release the remainders of log-ratios and gradients beyond the expansion. If not, they release
        whole log-ratios and gradients, as the papers do, with clip bounds along the learned axes.

    Raises
    ------
    InvalidArgument
        If an attribute is out of range.
    """

    newton_steps: int | None = None
    shares: Shares | None = None
    clip_gradient: float | None = None
    clip_curvature: float | None = None
    noise_aware: bool | None = None
    control_variates: bool = True

    def __post_init__(self) -> None:
        if self.newton_steps is not None:
            _validate.whole("newton_steps", self.newton_steps, at_least=1)
        if self.shares is not None and not isinstance(self.shares, Shares):
            raise InvalidArgument("shares must be a Shares(centre=, score=, curvature=, tests=).")
        for name in ("clip_gradient", "clip_curvature"):
            if getattr(self, name) is not None:
                clip_bound(name, getattr(self, name))
        if self.noise_aware is not None:
            _validate.truth("noise_aware", self.noise_aware)
        _validate.truth("control_variates", self.control_variates)


class Learning:
    """A prelude for one model: its releases, and the approximation that they imply.

    It releases clipping diagnostics if it `diagnoses`, and a noisy number of units, which is protected then, if it
    `counts_units`. `InvalidArgument` is raised if options contradict the model or each other.
    """

    def __init__(
        self,
        options: Prelude,
        structure: Structure,
        *,
        one_row_a_unit: bool,
        in_chains: InChains,
        diagnoses: bool,
        counts_units: bool,
    ) -> None:
        self.in_chains, self.control_variates = in_chains, options.control_variates
        self._counts_units, self._diagnoses = counts_units, diagnoses
        self._options, self._regression = options, Regression(**vars(structure))
        self.protect_units(of_several_rows=not one_row_a_unit)
        if self.shares.curvature == 0.0:
            raise InvalidArgument("shares.curvature must be above zero.")
        if (self.shares.tests > 0.0) != (in_chains in ("log_ratios", "gradients")):
            raise InvalidArgument("shares.tests must be above zero where chains release something with noise.")
        self.noise_aware = self.control_variates if options.noise_aware is None else options.noise_aware
        if self.noise_aware and not self.control_variates:
            raise InvalidArgument("Draws without control variates need not know of noise: leave out noise_aware.")
        self.size = structure.start.size

    def protect_units(self, *, of_several_rows: bool) -> None:
        """Set whether a unit has several rows."""
        options = self._options
        regression = replace(self._regression, one_row_a_unit=not of_several_rows)
        as_regression = regression.location_apart or regression.kinked.any() or of_several_rows
        regression = replace(regression, simulated=regression.rows_can_be_simulated and not as_regression)
        few = regression.location_apart or regression.rows_are_discrete
        steps = settings.STEPS if few else settings.STEPS_OF_CONTINUOUS
        steps = settings.STEPS_BY_SIMULATION if regression.simulated else steps + regression.location_steps
        self._regression = replace(regression, steps=options.newton_steps or steps)
        self.shares = options.shares or self._default_shares()

    def _default_shares(self) -> Shares:
        """Return the division of the cost: with control variates, chains need a small part of it."""
        if self.in_chains == "nothing":
            if self._regression.location_apart:
                return settings.SHARES_OF_LOCATION
            if self.simulates:
                return settings.SHARES_BY_SIMULATION
        if self.in_chains in ("nothing", "decisions"):  # the cost of decisions is given; the rest is the prelude's
            return Shares(0.5, 0.38, 0.12, 0.0)
        return Shares(0.45, 0.34, 0.11, 0.1) if self.control_variates else Shares(0.17, 0.09, 0.04, 0.7)

    @property
    def simulates(self) -> bool:
        """Whether the search needs rows simulated from the model."""
        return self._regression.simulated

    # The releases -------------------------------------------------------------------------------------------------

    @property
    def share_in_chains(self) -> float:
        """The part of the run's cost for the releases of chains."""
        return self.shares.tests * (1.0 - sum(each.share for each in self._diagnostics()))

    def requests(self) -> list[ReleaseRequest]:
        """Return the releases before the chains: search, score and curvature at the centre, and diagnostics."""
        requests_of = requests_of_simulation if self.simulates else requests_of_search
        requests = requests_of(self._regression, self.shares.centre)
        requests.append(ReleaseRequest("score", 1, self.shares.score, self.size, once=True))
        entries = self.size * (self.size + 1) // 2
        requests.append(ReleaseRequest("curvature", 1, self.shares.curvature, entries, once=True))
        diagnostics = self._diagnostics()
        rest = 1.0 - sum(each.share for each in diagnostics)
        return [*(replace(each, share=each.share * rest) for each in requests), *diagnostics]

    def _diagnostics(self) -> list[ReleaseRequest]:
        """Return the requests for the number of units, the loss by clipping, and the remainder of the expansion."""
        made: list[tuple[str, int, float, int]] = []
        if self._counts_units:
            made.append(("unit_count", 1, _COUNT_SHARE, 1))
        if self._diagnoses and self.control_variates:
            outliers = self._regression.expects_outliers
            made.append(("clipping_loss", 1, _LOSS_SHARE_OF_CLIPPED if outliers else _LOSS_SHARE, 1))
        if self._releases_check:
            of_sizes = _CHECK_SHARE * _HISTOGRAM_OF_CHECK
            made.append(("remainder_sizes", 1, of_sizes, _REMAINDER_BINS))
            made.append(("surrogate_check", _CHECKED_DRAWS, _CHECK_SHARE - of_sizes, 1))
        if self.in_chains == "log_ratios" and self.control_variates:
            made.append(("remainder_sizes", 1, _SIZES_SHARE, _REMAINDER_BINS))
        if self.in_chains == "gradients":
            made.append(("gradient_sizes", 1, _SIZES_SHARE, _GRADIENT_BINS))
        return [ReleaseRequest(kind, count, share, entries, once=True) for kind, count, share, entries in made]

    @property
    def _releases_check(self) -> bool:
        """Whether the error of the expansion is released at draws.

        It is not where chains release remainders or decisions, nor where the search or the model determines the error.
        """
        known = self._regression.kinked.any() or self._regression.location_apart
        return self.in_chains == "nothing" and self._diagnoses and not known

    def expected_error(self, noise_multipliers: Mapping[str, float], n_units: int) -> float:
        """Return the error that noise adds to means, in posterior standard deviations.

        Along axes where a unit's information is the identity the posterior's precision is n, the norm of scores is
        about √d, and a score that is clipped at K √d moves the mean of each parameter by 2 m K √d / √n standard
        deviations, for a noise multiplier m.
        """
        precision = sum(noise_multipliers[kind] ** -2.0 for kind in ("centre", "score"))
        size = int(self._regression.known.sum())
        return float(2.0 * _EXPECTED_BOUND * np.sqrt(size / (precision * n_units)))

    def memory_needed(self, n_units: int | None, n_synthetic: int) -> int:
        """Return the approximate memory of expansions in bytes: that of the curvatures of many units."""
        square = self.size**2
        at_most = _ROWS_OF_A_CHUNK if n_units is None else min(n_units, _ROWS_OF_A_CHUNK)
        # Curvatures with their packed entries; curvatures of synthetic units, before and after preconditioning;
        # matrices of Newton steps and of the free sampler.
        return round(8 * square * (1.5 * at_most + 3.0 * n_synthetic + 20.0))

    # The result ---------------------------------------------------------------------------------------------------

    @np.errstate(all="ignore")
    def dry_run(self, chain: ChainAccess) -> None:
        """Find a centre for synthetic rows and expand at it: a failure here would else occur after the charge.

        `InvalidArgument` is raised if no surrogate is found.
        """
        try:
            self.expand(chain)
        except NUMERICAL_FAILURES as failure:
            if isinstance(failure, InvalidArgument):
                raise
            raise InvalidArgument(
                "A dry run on synthetic rows found no surrogate: see that the likelihood is finite where "
                "the priors put the parameters, or use DPHMC with prelude=None and settings of yours."
            ) from failure

    @np.errstate(all="ignore")
    def run(self, chain: ChainAccess, noise_per_bound: float, tempering: float) -> Approximation | None:
        """Find a centre, expand at it, and draw a pilot chain from the surrogate.

        `noise_per_bound` is the noise standard deviation of a test for each unit of its clip bound, 0 without a test;
        `tempering` the power of the likelihood in the target of the chains. If noise leads to values that are not
        finite, None is returned and nothing is raised, as the releases were paid for.
        """
        try:
            return self._known(chain, self.expand(chain, tempering), noise_per_bound)
        except NUMERICAL_FAILURES:
            return None

    def expand(self, chain: ChainAccess, tempering: float = 1.0) -> Expansion:
        """Find a centre and release the sums at it; a tempered posterior is wider, and so is the trust region."""
        chain.count_units()
        kind: type[Search] = SearchForLocation if self._regression.location_apart else Search
        kind = SearchOfStudentT if self._regression.has_tails else kind
        kind = SearchFromLevel if self._regression.finds_level else kind
        kind = SearchAlongBrokenLines if self._regression.kinked.any() else kind
        kind = SearchBySimulation if self.simulates else kind
        releases_loss = self._diagnoses and self.control_variates
        access, regression, options = chain, self._regression, self._options
        linear, matrix = None, regression.with_means_of_members
        # Normal regressions only: on two tables of groups with counts and binary responses searches were up to 15 %
        # worse in these coordinates at epsilon 4, and as good at 1.
        if regression.location_apart and self.in_chains == "nothing" and matrix is not None:
            linear = LinearCoordinates(matrix)
            access, regression = AccessInCoordinates(chain, linear), regression.in_coordinates(matrix)
        search = kind(access, regression, options.clip_gradient, options.clip_curvature, releases_loss=releases_loss)
        found = in_coordinates = search.run()
        prior, axes = chain.prior, np.eye(self.size)
        if (coordinates := linear or search.coordinates) is not None:
            found = found_at_parameters(found, self._regression.known, coordinates, chain.structure)
            _, axes = turned(in_coordinates, coordinates)
        belief = found.belief
        if not self.noise_aware:
            nothing = np.zeros_like(belief.noise)
            belief = replace(belief, noise=nothing, bias=nothing, curvature_share=0.0)
        theta, precision = found.centre.theta, belief.precision
        distance = belief.mean - theta
        start = most_likely(prior, belief, theta, ~belief.known, self._regression.bounds)
        if not finite_prior_at(prior, start):  # noise has moved it out of the prior's range
            start = theta
        from_prior = prior_curvature(prior, start)
        reach = (_TRUSTED + np.sqrt(self.size)) / np.sqrt(tempering)
        radius = reach + float(np.sqrt(distance @ precision @ distance))
        # If noise dominates, draws are those of the prior.
        doubtful_width, by_parameter = np.inf, np.where(belief.known, np.inf, np.nan)
        if not noise_dominates(found.belief):
            largest_noise = found.curvature.noise_std * max(_BEYOND_NOISE, search.noise_eigenvalue)
            of_prior = axes.T @ from_prior @ axes
            doubtful_width, by_parameter = doubtful_widths(
                in_coordinates.belief, found.curvature, of_prior, largest_noise, axes
            )
        return Expansion(
            **{**vars(found), "belief": belief},
            surrogate=Quadratic(prior, found.centre, precision @ distance, precision, radius),
            mode=start,
            precision=precision + from_prior,
            doubtful_width=by_parameter,
            bias_of_loss=search.reported_bias,
            figures={
                "doubtful_width": doubtful_width,
                "noise_of_members": noise_of_members(belief, from_prior, chain.structure),
            },
        )

    def _known(self, chain: ChainAccess, expansion: Expansion, noise_per_bound: float) -> Approximation:
        """Return the approximation: a sampler of the surrogate, and diagnostics."""
        bounds, rng = self._regression.bounds, np.random.default_rng(0)
        kernel = FreeHMC(expansion.surrogate, expansion.mode, expansion.precision, rng, bounds)
        belief = expansion.belief
        figures, by_parameter = dict.fromkeys(SURROGATE_FIGURES, np.nan), dict[str, FloatArray]()
        if self.control_variates:  # else the expansion is no part of the target
            by_parameter, beside_prior = figures_beside_a_prior(belief, expansion.precision, kernel)
            by_parameter["doubtful_width"] = expansion.doubtful_width
            figures |= expansion.figures | beside_prior
            figures["centre_distance"] = self._distance(expansion.centre.theta, kernel)
            if self.in_chains == "nothing":  # tests correct it
                figures["curvature_share"] = belief.curvature_share
            if self.in_chains == "nothing" and expansion.missed is not None:
                figures["surrogate_error"], figures["surrogate_error_noise_std"] = expansion.missed
            if self._diagnoses:
                figures |= self._estimated_clip_bias(chain, expansion, kernel)
        found = Approximation(
            **{**vars(expansion), "figures": figures},
            kernel=kernel,
            by_parameter=by_parameter,
            origin=kernel.mean,
            axes=kernel.spread,
        )
        return self._with_bounds(chain, found, noise_per_bound)

    def _with_bounds(self, chain: ChainAccess, found: Approximation, noise_per_bound: float) -> Approximation:
        """Return the approximation with the clip bounds of chains, or with a check if they release nothing."""
        if self.in_chains == "nothing":
            if self._releases_check:
                return replace(found, figures=found.figures | self._checked(chain, found))
            if self._regression.location_apart:
                return replace(found, figures=found.figures | self._checked_without_release(found))
            return found
        if self.in_chains == "gradients":
            return replace(found, clip_gradient=self._clip_bound_of_gradients(chain, found))
        if not self.control_variates:
            return replace(found, clip_gradient=_whole_gradient(found))
        if self.in_chains == "decisions":  # their clip bound is a part of the test
            return found
        found = replace(found, least_bound=_NEGLIGIBLE_NOISE / noise_per_bound)
        old, new = self._draws_apart(found, 2)
        largest = self._largest_remainder(chain, found, old, new, _MOST_HIDDEN)
        room = np.clip(_TOLERABLE_NOISE / (noise_per_bound * largest), 2.0, _ROOM_FOR_REMAINDERS)
        return replace(found, remainder=room * largest / found.stretch_of(old, new))

    @staticmethod
    def _draws_apart(found: Approximation, count: int) -> list[FloatArray]:
        """Return some draws of the surrogate."""
        rng, theta, draws = np.random.default_rng(1), found.kernel.theta, []
        for _ in range(count):
            theta = found.kernel.run(theta, found.kernel.trajectories_apart, rng)
            draws.append(theta)
        return draws

    @staticmethod
    def _largest_remainder(
        chain: ChainAccess, found: Approximation, theta: FloatArray, theta_new: FloatArray, most_hidden: float
    ) -> float:
        """Release a histogram of the remainders of units' log-ratios; return an upper limit of nearly all of them.

        If noise hides it, the limit with its room is twice the clip bound of a unit's whole log-ratio.
        """
        move = found.expanded(theta, theta_new)
        made = chain.release(RemainderSizes(found.beyond, move.old, move.new, _LOWEST_REMAINDER, _REMAINDER_BINS))
        place = _last_bin(made.value, made.noise_std, chain.n_units, most_hidden)
        if place is None or place == _REMAINDER_BINS - 1:  # the last bin has no upper edge
            distance = float(np.linalg.norm(np.linalg.solve(found.kernel.spread, theta_new - theta)))
            return 2.0 * _whole_gradient(found) * distance / _ROOM_FOR_REMAINDERS
        return float(2.0 ** (_LOWEST_REMAINDER + place + 1))

    def _clip_bound_of_gradients(self, chain: ChainAccess, found: Approximation) -> float:
        """Release a histogram of the norms of units' gradients, or of their remainders; return a clip bound."""
        (theta,) = self._draws_apart(found, 1)
        query = gradient_query(found, theta, 1.0, control_variates=self.control_variates)
        made = chain.release(GradientSizes(query.point, query.axes, query.prediction, _LOWEST_GRADIENT, _GRADIENT_BINS))
        place = _last_bin(made.value, made.noise_std, chain.n_units, _MOST_HIDDEN)
        if place is None:  # of a remainder: twice the clip bound of a whole gradient
            return _whole_gradient(found) * (2.0 if self.control_variates else 1.0)
        top = _LOWEST_GRADIENT * 2.0 ** ((place + 1) / 2)
        return representable(_ROOM_FOR_REMAINDERS * top / found.square_growth(theta) if self.control_variates else top)

    def _distance(self, centre: FloatArray, kernel: FreeHMC) -> float:
        """Return the distance of the surrogate's mean from the centre, in standard deviations per known parameter."""
        known = self._regression.known
        distance = (kernel.mean - centre)[known]
        covariance = kernel.covariance[np.ix_(known, known)]
        try:
            squared = float(distance @ np.linalg.solve(covariance, distance)) / max(1, distance.size)
        except np.linalg.LinAlgError:  # the pilot has not moved
            return np.inf
        return float(np.sqrt(squared)) if squared >= 0.0 else np.inf

    def _estimated_clip_bias(self, chain: ChainAccess, expansion: Expansion, kernel: FreeHMC) -> dict[str, float]:
        """Release the norm that clipping removes; return the displacement of the posterior mean that it allows.

        It is the root mean square over parameters, in standard deviations of the draws, for a random direction and not
        the worst one. With the mean added back, it is the displacement by misspecification.
        """
        centre, lost = expansion.centre, expansion.lost
        if lost is None:
            loss = chain.release(ClippingLoss(centre))
            lost = centre.clip_gradient * float(loss.value[0]), centre.clip_gradient * loss.noise_std
        covariance = kernel.covariance
        moves = covariance @ expansion.belief.pull @ expansion.back / np.sqrt(np.diag(covariance))[:, None]
        if not np.isfinite(moves).all():  # the pilot has not moved
            return {}
        most = expansion.bias_of_loss * float(np.linalg.norm(moves)) / self.size
        return {"clip_bias": most * lost[0], "clip_bias_noise_std": most * lost[1]}

    def _checked_without_release(self, found: Approximation) -> dict[str, float]:
        """Return the figures of `_checked` for a normal regression, whose log-likelihood the belief determines."""
        belief, kernel = found.belief, found.kernel
        draws = np.array(narrowed_draws(belief, kernel, self._draws_apart(found, _DRAWS_WITHOUT_RELEASE)))
        missed = missed_by_quadratic(belief, int(self._regression.followed[0]), draws)
        return figures_of_check(missed, 0.0)

    def _checked(self, chain: ChainAccess, found: Approximation) -> dict[str, float]:
        """Release the remainder of the log-likelihood at draws of the surrogate; return its standard deviation.

        Draws are moved towards each other where privacy noise is most of their width (`narrowed_draws`). The belief's
        `extra_curvature` is no part of the remainder. Bounds have room for eight times most remainders, whatever their
        noise: at a smaller bound the clipped remainders would add up to little, however large they are.
        """
        draws = narrowed_draws(found.belief, found.kernel, self._draws_apart(found, _CHECKED_DRAWS))
        least = _NEGLIGIBLE_NOISE_OF_CHECK / (2.0 * chain.multiplier("surrogate_check"))
        centre = found.kernel.mean
        largest = self._largest_remainder(chain, found, centre, draws[0], _MOST_HIDDEN_OF_CHECK)
        bound = max(_ROOM_FOR_REMAINDERS * largest, least)
        mean = found.surrogate.prediction(centre)
        missed = []
        for draw in draws:
            predicted = found.surrogate.prediction(draw)
            made = chain.release(Residual(found.beyond, mean, predicted, representable(bound), "surrogate_check"))
            missed.append(float(made.value[0]) - found.extra_at(draw))
        return figures_of_check(np.array(missed), made.noise_std)


def gradient_query(
    found: Approximation, theta: FloatArray, clip_bound: float, *, control_variates: bool
) -> PreconditionedGradient:
    """Return a query of gradients along the standardised axes: remainders of the expansion, or whole ones."""
    size, nothing = theta.size, np.zeros_like(theta)
    predicted = (np.eye(size), theta - found.centre.theta) if control_variates else (np.zeros((size, size)), nothing)
    return PreconditionedGradient(found.beyond, found.axes, GradientPrediction(theta, *predicted, nothing), clip_bound)


def _last_bin(counts: FloatArray, noise_std: float, n_units: int, most_hidden: float) -> int | None:
    """Return the bin below whose upper edge nearly all units lie; None if noise may hide more than `most_hidden`.

    It is the last bin whose count, with those above it, clearly exceeds their summed noise.
    """
    above = np.cumsum(counts[::-1])[::-1]
    noise = noise_std * np.sqrt(np.arange(counts.size, 0, -1))
    hidden = np.maximum(_CUT_REMAINDERS * n_units, _CLEARLY_SEEN * noise)
    seen = np.flatnonzero(above > hidden)
    return int(seen[-1]) if seen.size and hidden[seen[-1]] <= most_hidden * n_units else None


def _whole_gradient(expansion: Expansion) -> float:
    """Return the clip bound of a unit's whole gradient along standardised axes, from that along the frame's."""
    covariance = np.linalg.inv(positive_definite(expansion.precision))
    along = np.linalg.norm(np.linalg.cholesky(covariance).T @ expansion.back, ord=2)
    return representable(expansion.centre.clip_gradient * float(along))
