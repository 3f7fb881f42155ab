r"""What a step may learn before its chains start: options, what they release, and how they lead to an approximation.

1. *Centre.* Scales, directions and a few noisy Newton steps from the prior lead near the posterior's mode (`learned`,
   or `simulated` where rows can be simulated from the model).
2. *Expansion.* There, the sums of units' scores (and curvatures) are released once. With the exact prior they make a
   surrogate of the posterior, from which draws are free.
3. *Check.* How far the log-likelihood is from its expansion is released at some draws, unless what is known says so; or
   how large what it misses of a unit is, where chains release that.

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
    draws_of_doubt,
    figures_beside_a_prior,
    figures_of_check,
    noise_of_members,
    nothing_but_noise,
)
from pymc_dp.steps.prelude.free_hmc import FreeHMC
from pymc_dp.steps.prelude.level import SearchFromLevel
from pymc_dp.steps.prelude.location import SearchForLocation, missed_by_quadratic
from pymc_dp.steps.prelude.newton import (
    NUMERICAL_FAILURES,
    can_stand_at,
    positive_definite,
    prior_curvature,
    representable,
)
from pymc_dp.steps.prelude.search import Regression, Search, requests_of_search
from pymc_dp.steps.prelude.settings import Shares
from pymc_dp.steps.prelude.simulated import SearchBySimulation, requests_of_simulation
from pymc_dp.steps.tuning import clip_bound

#: What chains release once the prelude has ended: nothing, log-ratios for tests, gradients, or decisions of tests.
InChains = Literal["nothing", "log_ratios", "gradients", "decisions"]

#: Whether a step has a prelude, and which: one of its own where a setting is missing that it can learn; or none.
PreludeArgument = Union["Prelude", Literal["auto"], None]

#: Radius of the trust region of the quadratic surrogate around its mode, in the surrogate's standard deviations.
_TRUSTED = 8.0
#: Part of the cost that tells how far clip bounds may have moved the draws. Where the mean of what is clipped is not
#: added again, outliers are found by it. Of .02 and .05 on thirty linear tables the second was better where there are
#: outliers, by up to a third; elsewhere errors were .01 to .03 posterior standard deviations larger.
_LOSS_SHARE, _LOSS_SHARE_OF_CLIPPED = 0.02, 0.05
#: Part of the cost that tells how far the surrogate is from the likelihood, where no test corrects it; how it is split
#: between a histogram of remainders and sums at so many draws; and at how many it is computed where that is free.
_CHECK_SHARE, _HISTOGRAM_OF_CHECK, _CHECKED_DRAWS, _DRAWS_WITHOUT_RELEASE = 0.02, 0.3, 10, 50
#: Part of the cost that tells how many units there are, where that is protected. Noise of a single release of the
#: whole budget is about 4 units at epsilon 1, and ten times as much here: a percent or two of some thousand units.
_COUNT_SHARE = 0.01
#: Part of the cost that tells how large what the expansion misses is.
_SIZES_SHARE = 0.02
#: Noise of a sum of remainders, as a standard deviation, below which a smaller bound buys nothing.
_HARMLESS_NOISE_OF_CHECK, _HARMLESS_NOISE = 0.05, 0.03
#: Noise of a test, as a standard deviation, up to which room for larger remainders is worth its noise.
_TOLERABLE_NOISE = 0.5
#: Where noise may hide a larger part of the units, their sizes say nothing: of a bound that hardly any is beyond, as
#: tests need it; and of one that leaves a check most of what is missed.
_MOST_HIDDEN, _MOST_HIDDEN_OF_CHECK = 0.1, 0.5
#: Units are seen from a bin on by as many standard deviations of the noise.
_CLEARLY_SEEN = 4.0
#: Octaves of remainders, the part of them that a bound may cut, and room above.
_LOWEST_REMAINDER, _REMAINDER_BINS, _CUT_REMAINDERS, _ROOM_FOR_REMAINDERS = -40, 40, 0.001, 8.0
#: The same in half octaves, of gradients along standardised axes.
_LOWEST_GRADIENT, _GRADIENT_BINS = 2.0**-50, 120
#: Noise of a curvature reaches at least this many standard deviations, and as far as its largest eigenvalue.
_BEYOND_NOISE = 2.0
#: Clip bounds, in multiples of the root of the number of parameters, with what the noise of curvatures adds: of eight
#: models at epsilon 3 and 1 it was 1.8 to 7.1.
_EXPECTED_BOUND = 3.5
#: How many rows the row engine works on at a time, at most, where it expands.
_ROWS_OF_A_CHUNK = 8192


@dataclass(frozen=True)
class Prelude:
    """How a step learns its settings before its chains start; every default is chosen without looking at any table.

    Attributes
    ----------
    newton_steps : int, optional
        Noisy steps towards the mode, before the last one. Default: 16 where rows are simulated from the model; else 4
        where the model says which responses a row could have had, and for normal regressions with one scale; 10 where
        another linear location of normal rows moves first; else 8.
    shares : Shares, optional
        How the cost is split. Default: by the model, and by what chains release.
    clip_gradient, clip_curvature : float, optional
        Clip bounds of one unit's preconditioned score and curvature at the centre. Default: the bounds that weigh bias
        against noise best, by noisy histograms.
    noise_aware : bool, optional
        Whether the likelihood knows of the noise in what was released, and of the estimated bias of clipping, so that
        intervals cover. Default: True, where there are control variates.
    control_variates : bool
        Whether chains release what the expansion misses of log-ratios and gradients. If not, they release the whole of
        them, as the papers do, with clip bounds along the learned axes.

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
    """A prelude for one model: its releases, and the approximation that they lead to.

    Clipping is reported by noisy figures if it `diagnoses`; the number of units is protected, and has to be released
    first, if it `counts_units`. Raises `InvalidArgument` if options do not fit the model, or each other.
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
        """Say what a unit is: a row, or several."""
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
        """Return how the cost is split: with control variates, chains need little of it."""
        if self.in_chains == "nothing":
            if self._regression.location_apart:
                return settings.SHARES_OF_LOCATION
            if self.simulates:
                return settings.SHARES_BY_SIMULATION
        if self.in_chains in ("nothing", "decisions"):  # decisions cost what they cost; the rest is for the prelude
            return Shares(0.5, 0.38, 0.12, 0.0)
        return Shares(0.45, 0.34, 0.11, 0.1) if self.control_variates else Shares(0.17, 0.09, 0.04, 0.7)

    @property
    def simulates(self) -> bool:
        """Whether it needs rows that are simulated from the model."""
        return self._regression.simulated

    # What it releases ---------------------------------------------------------------------------------------------

    @property
    def share_in_chains(self) -> float:
        """What part of the run's cost is left for what chains release."""
        return self.shares.tests * (1.0 - self._share_of_diagnostics)

    def requests(self) -> list[ReleaseRequest]:
        """Return what is released once: the search, the score and the curvature at the centre, and diagnostics."""
        requests_of = requests_of_simulation if self.simulates else requests_of_search
        requests = requests_of(self._regression, self.shares.centre)
        requests.append(ReleaseRequest("score", 1, self.shares.score, self.size, once=True))
        entries = self.size * (self.size + 1) // 2
        requests.append(ReleaseRequest("curvature", 1, self.shares.curvature, entries, once=True))
        rest = 1.0 - self._share_of_diagnostics
        return [*(replace(each, share=each.share * rest) for each in requests), *self._diagnostics()]

    @property
    def _share_of_diagnostics(self) -> float:
        return sum(each.share for each in self._diagnostics())

    def _diagnostics(self) -> list[ReleaseRequest]:
        """Return what tells how many units there are, what clipping may have moved, and what the expansion misses."""
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
        """Whether it is released how far the log-likelihood is from its expansion.

        Where chains release nothing that goes by it, and what is known or was asked by the search does not say it.
        """
        known = self._regression.kinked.any() or self._regression.location_apart
        return self.in_chains == "nothing" and self._diagnoses and not known

    def expected_error(self, noise_multipliers: Mapping[str, float], n_units: int) -> float:
        """Return the error that noise adds to means, in posterior standard deviations.

        Along axes where a unit's information is the identity the posterior's precision is n, scores are about √d long,
        and a score that is clipped at K √d moves the mean of each parameter by 2 m K √d / √n standard deviations, for a
        noise multiplier m.
        """
        precision = sum(noise_multipliers[kind] ** -2.0 for kind in ("centre", "score"))
        size = int(self._regression.known.sum())
        return float(2.0 * _EXPECTED_BOUND * np.sqrt(size / (precision * n_units)))

    def memory_needed(self, n_units: int | None, n_synthetic: int) -> int:
        """Return how many bytes expansions take, about: curvatures of many units are held at a time."""
        square = self.size**2
        at_most = _ROWS_OF_A_CHUNK if n_units is None else min(n_units, _ROWS_OF_A_CHUNK)
        # Columns of curvatures with their packed entries; curvatures of synthetic units, as they are put together, and
        # preconditioned; matrices of Newton steps and of the free sampler.
        return round(8 * square * (1.5 * at_most + 3.0 * n_synthetic + 20.0))

    # What it finds ------------------------------------------------------------------------------------------------

    @np.errstate(all="ignore")
    def dry_run(self, chain: ChainAccess) -> None:
        """Find a centre for synthetic rows and expand there: what fails here would have failed after the charge.

        Raises `InvalidArgument` if no surrogate is found.
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
        """Find a centre, expand there, and draw a pilot chain from the surrogate.

        `noise_per_bound` is the standard deviation of the noise of a test for each unit of its clip bound, 0 where
        there is no test; `tempering` the power of the likelihood in the target of the chains. Where noise has led to
        numbers that are not finite, there is no surrogate, and None is returned: nothing is raised, for it was paid.
        """
        try:
            return self._known(chain, self.expand(chain, tempering), noise_per_bound)
        except NUMERICAL_FAILURES:
            return None

    def expand(self, chain: ChainAccess, tempering: float = 1.0) -> Expansion:
        """Find a centre and release the sums there; a tempered posterior is wider, and so is what is trusted."""
        chain.count_units()
        kind: type[Search] = SearchForLocation if self._regression.location_apart else Search
        kind = SearchFromLevel if self._regression.finds_level else kind
        kind = SearchAlongBrokenLines if self._regression.kinked.any() else kind
        kind = SearchBySimulation if self.simulates else kind
        releases_loss = self._diagnoses and self.control_variates
        asked, regression, options = chain, self._regression, self._options
        linear, matrix = None, regression.with_means_of_members
        # Of normal regressions. On two tables of groups with counts and truth values searches were up to 15 % worse in
        # such coordinates, at epsilon 4, and as good at 1.
        if regression.location_apart and self.in_chains == "nothing" and matrix is not None:
            linear = LinearCoordinates(matrix)
            asked, regression = AccessInCoordinates(chain, linear), regression.in_coordinates(matrix)
        search = kind(asked, regression, options.clip_gradient, options.clip_curvature, releases_loss=releases_loss)
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
        start = most_likely(prior, belief, theta, ~belief.known)
        if not can_stand_at(prior, start):  # noise has led to where its derivatives are no numbers
            start = theta
        from_prior = prior_curvature(prior, start)
        reach = (_TRUSTED + np.sqrt(self.size)) / np.sqrt(tempering)
        radius = reach + float(np.sqrt(distance @ precision @ distance))
        # Of nothing but noise draws are those of the prior.
        doubtful_width, by_parameter = np.inf, np.where(belief.known, np.inf, np.nan)
        if not nothing_but_noise(found.belief):
            largest_noise = found.curvature.noise_std * max(_BEYOND_NOISE, search.reach_of_noise)
            there = axes.T @ from_prior @ axes
            doubtful_width, by_parameter = doubtful_widths(
                in_coordinates.belief, found.curvature, there, largest_noise, axes
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
        """Return what is known: draws of the surrogate, and figures on it."""
        kernel = FreeHMC(expansion.surrogate, expansion.mode, expansion.precision, np.random.default_rng(0))
        belief = expansion.belief
        figures, by_parameter = dict.fromkeys(SURROGATE_FIGURES, np.nan), dict[str, FloatArray]()
        if self.control_variates:  # without, the expansion is no part of the target
            by_parameter, beside_prior = figures_beside_a_prior(belief, expansion.precision, kernel)
            by_parameter["doubtful_width"] = expansion.doubtful_width
            figures |= expansion.figures | beside_prior
            figures["centre_distance"] = self._distance(expansion.centre.theta, kernel)
            if self.in_chains == "nothing":  # tests would correct it
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
        """Return it with the clip bounds of what chains release, or with a check where they release nothing."""
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
        found = replace(found, harmless=_HARMLESS_NOISE / noise_per_bound)
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
        """Release how large what is missed of units' log-ratios is; return what nearly all are below.

        Where that does not show, what they are below with room is no more than twice what a unit's log-ratio is.
        """
        missed = found.expanded(theta, theta_new)
        sizes = chain.release(RemainderSizes(found.beyond, missed.old, missed.new, _LOWEST_REMAINDER, _REMAINDER_BINS))
        place = _last_bin(sizes.value, sizes.noise_std, chain.n_units, most_hidden)
        if place is None or place == _REMAINDER_BINS - 1:  # the last bin has no upper edge
            distance = float(np.linalg.norm(np.linalg.solve(found.kernel.spread, theta_new - theta)))
            return 2.0 * _whole_gradient(found) * distance / _ROOM_FOR_REMAINDERS
        return float(2.0 ** (_LOWEST_REMAINDER + place + 1))

    def _clip_bound_of_gradients(self, chain: ChainAccess, found: Approximation) -> float:
        """Release how large what is missed of units' gradients is at a draw, or how large they are; return a bound."""
        (theta,) = self._draws_apart(found, 1)
        query = gradient_query(found, theta, 1.0, control_variates=self.control_variates)
        sizes = chain.release(
            GradientSizes(query.point, query.axes, query.prediction, _LOWEST_GRADIENT, _GRADIENT_BINS)
        )
        place = _last_bin(sizes.value, sizes.noise_std, chain.n_units, _MOST_HIDDEN)
        if place is None:  # no more than twice what a unit's gradient is
            return _whole_gradient(found) * (2.0 if self.control_variates else 1.0)
        edge = _LOWEST_GRADIENT * 2.0 ** ((place + 1) / 2)
        return representable(_ROOM_FOR_REMAINDERS * edge / found.bend(theta) if self.control_variates else edge)

    def _distance(self, centre: FloatArray, kernel: FreeHMC) -> float:
        """Return how far the surrogate's mean is from the centre, in the parameters that the likelihood knows."""
        known = self._regression.known
        distance = (kernel.mean - centre)[known]
        covariance = kernel.covariance[np.ix_(known, known)]
        try:
            squared = float(distance @ np.linalg.solve(covariance, distance)) / max(1, distance.size)
        except np.linalg.LinAlgError:  # the pilot has not moved
            return np.inf
        return float(np.sqrt(squared)) if squared >= 0.0 else np.inf

    def _estimated_clip_bias(self, chain: ChainAccess, expansion: Expansion, kernel: FreeHMC) -> dict[str, float]:
        """Release what clipping has taken off scores; return how far that can have moved the posterior mean.

        In standard deviations of the draws, root mean square over parameters, in some direction, not the worst one; of
        what is centred, what a wrong model explains.
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
        """Return the figures of `_checked` for a normal regression, whose log-likelihood the belief knows."""
        belief, kernel = found.belief, found.kernel
        draws = np.array(draws_of_doubt(belief, kernel, self._draws_apart(found, _DRAWS_WITHOUT_RELEASE)))
        missed = missed_by_quadratic(belief, int(self._regression.followed[0]), draws)
        return figures_of_check(missed, 0.0)

    def _checked(self, chain: ChainAccess, found: Approximation) -> dict[str, float]:
        """Release at draws of the surrogate how far the log-likelihood is from its expansion; return by how much.

        By the standard deviation of what the surrogate's log-density misses, over draws that are near each other where
        noise of privacy is most of their width (`figures_of_check`). What the belief has foreseen of it is not missed.
        Bounds have room for eight times what most remainders are, whatever their noise: cut to what noise allows, they
        would add up to little, however much is missed.
        """
        draws = draws_of_doubt(found.belief, found.kernel, self._draws_apart(found, _CHECKED_DRAWS))
        harmless = _HARMLESS_NOISE_OF_CHECK / (2.0 * chain.multiplier("surrogate_check"))
        centre = found.kernel.mean
        largest = self._largest_remainder(chain, found, centre, draws[0], _MOST_HIDDEN_OF_CHECK)
        bound = max(_ROOM_FOR_REMAINDERS * largest, harmless)
        mean = found.surrogate.prediction(centre)
        missed = []
        for draw in draws:
            there = found.surrogate.prediction(draw)
            made = chain.release(Residual(found.beyond, mean, there, representable(bound), "surrogate_check"))
            missed.append(float(made.value[0]) - found.foreseen_at(draw))
        return figures_of_check(np.array(missed), made.noise_std)


def gradient_query(
    found: Approximation, theta: FloatArray, clip_bound: float, *, control_variates: bool
) -> PreconditionedGradient:
    """Return a query of gradients along the standardised axes: of what the expansion misses, or of the whole."""
    size, nothing = theta.size, np.zeros_like(theta)
    predicted = (np.eye(size), theta - found.centre.theta) if control_variates else (np.zeros((size, size)), nothing)
    return PreconditionedGradient(found.beyond, found.axes, GradientPrediction(theta, *predicted, nothing), clip_bound)


def _last_bin(counts: FloatArray, noise_std: float, n_units: int, most_hidden: float) -> int | None:
    """Return the bin that nearly all units are up to; None where noise would hide a larger part than `most_hidden`.

    It is the last one from which on units are clearly seen: noise adds up over the bins above.
    """
    from_here_on = np.cumsum(counts[::-1])[::-1]
    noise = noise_std * np.sqrt(np.arange(counts.size, 0, -1))
    hidden = np.maximum(_CUT_REMAINDERS * n_units, _CLEARLY_SEEN * noise)
    seen = np.flatnonzero(from_here_on > hidden)
    return int(seen[-1]) if seen.size and hidden[seen[-1]] <= most_hidden * n_units else None


def _whole_gradient(expansion: Expansion) -> float:
    """Return the clip bound of a unit's whole gradient along standardised axes, from that along the frame's."""
    covariance = np.linalg.inv(positive_definite(expansion.precision))
    along = np.linalg.norm(np.linalg.cholesky(covariance).T @ expansion.back, ord=2)
    return representable(expansion.centre.clip_gradient * float(along))
