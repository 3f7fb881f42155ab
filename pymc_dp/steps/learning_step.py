"""Steps that can learn their settings before their chains start, by a prelude.

A sampler subclasses `LearningStep`, calls `learn` in its constructor with its required settings, and uses
`target` instead of its chain: with a prelude its points are standardised, and the remainder beyond the expansion is
released.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import xarray as xr

from pymc_dp import _validate
from pymc_dp.budget.plan import Plan, ReleaseRequest
from pymc_dp.budget.worth import Worth
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import SURROGATE_FIGURES
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.structure import structure_of
from pymc_dp.release.batches import Batches, BatchesWithoutReplacement
from pymc_dp.release.interface import Release, Standardised
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.steps.prelude.learning import InChains, Learning, Prelude, PreludeArgument
from pymc_dp.steps.prelude.newton import NUMERICAL_FAILURES
from pymc_dp.steps.target import ExpandedTarget, FreeTarget, PreconditionedTarget, StandardisedTarget, Target
from pymc_dp.steps.transition import Transition, penalty_test

#: Draws of a chain for nearly independent ones.
_DRAWS_OF_TRAJECTORIES = 500
#: Transitions of a pilot, and the power at which its gain decreases.
_PILOT_TRANSITIONS, _POWER_OF_GAIN = 600, 0.6


class LearningStep(DPStep):
    """A step that can learn its settings before its chains start.

    Parameters
    ----------
    clip_log_ratio : float
        Clip bound of one unit's log-likelihood ratio per unit of distance between the two points. Where it clips,
        the posterior is biased. A Lipschitz constant of one unit's log-likelihood never clips.
    tempering : float
        T, the power of the likelihood in the target, above 0 and at most 1. The noise of a test is T times that of the
        release, and moves may be 1 / √T times as long; the draws are those of a wider posterior, which results and
        reports state.
    prelude : Prelude, "auto" or None
        The prelude; None for none; "auto" for `Prelude()` if a required setting is missing.

    Attributes
    ----------
    clip_gradient, clip_log_ratio : float
        The user's clip bounds of a unit's gradient, and of its log-ratio per unit of distance, on the scale of the
        parameters; NaN for none.
    tempering : float
        Power of the likelihood in the target.
    learning : Learning or None
        The prelude; None for none.
    known : Approximation or None
        The prelude's result, during a run.
    """

    #: The kind of releases in chains.
    in_chains: InChains = "log_ratios"
    #: Attributes that `settle` and `stretch` change: every run begins with their initial values.
    settled: ClassVar[tuple[str, ...]] = ()
    #: The acceptance rate at which a pilot aims with `stretch`; None for no pilot.
    aimed_acceptance: float | None = None
    #: The test of draws in the result's metadata; None for no entry.
    acceptance_test: str | None = None

    clip_gradient: float = math.nan
    clip_log_ratio: float = math.nan
    tempering: float = 1.0
    learning: Learning | None = None
    known: Approximation | None = None
    #: For samplers on batches: None until known.
    batch_size: int | None = None
    batches: Batches | None = None
    #: Whether points are standardised: not if the user gave settings on the scale of the parameters.
    _standardised = True
    _starts_given = _can_temper = _batches_of_fixed_size = False
    _point: FloatArray | None = None
    _n_units: int | None = None
    _pilot: FreeTarget | None = None
    _made_with: Mapping[str, Any] | None = None

    # Called by constructors -----------------------------------------------------------------------------------------

    def learn(self, prelude: PreludeArgument, needed: Mapping[str, Any], model: Model | None) -> bool:
        """Return whether the step has a prelude, and set it. Given clip bounds exclude control variates.

        Parameters
        ----------
        prelude : Prelude, "auto" or None
            The user's choice; "auto": if a setting is missing.
        needed : mapping of str to object
            The required settings; None for missing ones.
        model : Model, optional
            Default: the model of the ``with`` context.

        Raises
        ------
        InvalidArgument
            If a prelude is impossible for the step.
        """
        missing = [name for name, value in needed.items() if value is None]
        if isinstance(prelude, str) and prelude == "auto":
            prelude = Prelude() if missing and self.moves_all else None
        if prelude is None:
            return False
        if not isinstance(prelude, Prelude):
            raise InvalidArgument('prelude must be a Prelude(...), None or "auto".')
        if not self.moves_all:
            raise InvalidArgument(
                "A prelude needs a step that moves all free variables: leave out vars, or pass "
                f"{', '.join(needed)} and prelude=None."
            )
        if any(value is not None for name, value in needed.items() if name.startswith("clip_")):
            prelude = replace(prelude, control_variates=False)
        self.learning = Learning(
            prelude,
            structure_of(self.form_of(model_in_context(model)), self.parameters, self.unit),
            one_row_a_unit=self.unit_index is None,
            in_chains=self.in_chains,
            diagnoses=self.clip_diagnostics is not None,
            counts_units=self.budget.relation == "add-remove",
        )
        self.expands, self.uses_n_units = True, True
        if self.learning.control_variates:
            self.default_draws = self.suitable_draws()
        self.stats_dtypes_shapes = {
            **self.stats_dtypes_shapes,
            **dict.fromkeys(SURROGATE_FIGURES, (np.float64, [])),
            "standardised": (object, None),
        }
        self.stats_dtypes = [{name: kind for name, (kind, _) in self.stats_dtypes_shapes.items()}]  # PyMC reads both
        return True

    def temper(self, tempering: float) -> None:
        """Set the power of the likelihood, which gives a wider posterior: results are marked.

        Raises
        ------
        InvalidArgument
            If the power is not above 0 and at most 1.
        """
        self.tempering, self._can_temper = _validate.part_of_one("tempering", tempering), True

    def use_batches(self, batch_size: int | None, n_units: int | None) -> None:
        """Set the batches without replacement; with a prelude `default_batch_size` gives a missing size.

        Raises
        ------
        InvalidArgument
            If the neighbouring relation is not substitution, or the size is missing without a prelude.
        """
        name = type(self).__name__
        if self.budget.relation != "substitute":
            raise InvalidArgument(
                f"{name} draws batches of a fixed size, which is accounted for under substitution only, where the "
                "number of units is public. Use a budget with relation='substitute'."
            )
        if batch_size is None and self.learning is None:
            raise InvalidArgument(f"{name} needs batch_size=: how many units are in a batch.")
        self.batch_size = None if batch_size is None else _validate.whole("batch_size", batch_size, at_least=1)
        self.uses_n_units = self._batches_of_fixed_size = True
        if n_units is not None:
            self.know_n_units(n_units)
            self._n_units_given = n_units

    def default_batch_size(self, n_units: int) -> int:
        """Return the batch size if a prelude leaves the choice to the sampler."""
        raise NotImplementedError

    def know_n_units(self, n_units: int) -> None:
        """Set the number of units, which batches of a fixed size need; refuse another than that given."""
        self._n_units = n_units
        if not self._batches_of_fixed_size:
            return
        if self._n_units_given not in (None, n_units):
            raise InvalidArgument(f"n_units={self._n_units_given} was passed, but the table has {n_units} units.")
        batch_size = self.default_batch_size(n_units) if self.batch_size is None else self.batch_size
        self.batches = BatchesWithoutReplacement(batch_size, n_units)

    # Used by samplers -----------------------------------------------------------------------------------------------

    @property
    def simulates(self) -> bool:
        """Whether synthetic tables are rows simulated from the model: not for units of several rows."""
        return self.learning is not None and self.learning.simulates

    @property
    def control_variates(self) -> bool:
        """Whether chains release remainders beyond an expansion, not whole log-ratios and gradients."""
        return self.learning is not None and self.learning.control_variates

    @property
    def target(self) -> Target:
        """The target density of the sampler."""
        if self._pilot is not None:
            return self._pilot
        bounds = {"clip_gradient": self.clip_gradient, "clip_log_ratio": self.clip_log_ratio}
        if self.known is None:
            return Target(self.chain, **bounds, tempering=self.tempering)
        kind = ExpandedTarget if self.control_variates else PreconditionedTarget
        return kind(self.chain, self.known, **bounds, tempering=self.tempering)

    def known_batches(self) -> BatchesWithoutReplacement:
        """Return the batches of a fixed size, which require a known number of units."""
        if not isinstance(self.batches, BatchesWithoutReplacement):
            raise InvalidArgument(
                "The number of units is not known yet. Make the plan inside `with model:`, or pass n_units= to "
                f"{type(self).__name__}."
            )
        return self.batches

    @property
    def clip_bounds(self) -> dict[str, float]:
        """The clip bounds of the prelude or the user, for the result's metadata."""
        if self.learning is None:
            given = {"gradient": self.clip_gradient, "log_ratio": self.clip_log_ratio}
            return {kind: bound for kind, bound in given.items() if not math.isnan(bound)}
        if self.known is None:
            return {}
        return {"score": self.known.centre.clip_gradient, "curvature": self.known.centre.clip_curvature}

    @property
    def facts(self) -> dict[str, Any]:
        """The existence of a surrogate (without one chains do not move), the test and the tempering."""
        facts: dict[str, Any] = {}
        if self.learning is not None:
            facts |= {"noise_aware": int(self.learning.noise_aware), "surrogate_found": int(self.known is not None)}
            facts["control_variates"] = int(self.control_variates)
        if self.acceptance_test is not None:
            facts["acceptance_test"] = self.acceptance_test
        if self._can_temper:  # a likelihood to a power gives another, wider posterior
            facts |= {"tempered": int(self.tempering != 1.0), "tempering": self.tempering}
            if isinstance(self.batches, BatchesWithoutReplacement):
                facts["tempered_size"] = self.tempering * self.batches.n_units
        return facts

    def expected_worth(self, plan: Plan) -> Worth | None:
        """Return the error that noise adds to means, from the noise of the scores near the centre."""
        if self.learning is None or self._n_units is None or not self.control_variates:
            return None
        error = self.learning.expected_error(plan.noise_multipliers, self._n_units)
        rho = plan.rho if plan.account == "rho" else np.nan
        return Worth(error, self._n_units, self.size, rho, plan.delta)

    def test(
        self, theta: FloatArray, theta_new: FloatArray, log_free_ratio: float, log_uniform: float
    ) -> dict[str, Any]:
        """Decide on a move by the `penalty_test` on `target`."""
        bound = self.target.bound(theta, theta_new)
        return penalty_test(partial(self.release_log_ratio, theta, theta_new), bound, log_free_ratio, log_uniform)

    def release_log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float) -> Release:
        """Request the noisy log-ratio of all units, or its remainder beyond the expansion."""
        return self.target.log_ratio(theta, theta_new, bound)

    def suitable_draws(self) -> int:
        """Return a number of draws of a chain with nearly all the information in the approximation."""
        return _DRAWS_OF_TRAJECTORIES

    def noise_per_bound(self) -> float:
        """Return the noise standard deviation of a test, for each unit of its clip bound; 0 for no noise."""
        return 2.0 * self.tempering * self.chain.multiplier("residual")

    def stretch(self, factor: float) -> None:
        """Set the length of moves to a factor of the sampler's length on a standard normal."""

    # Before the chains start ----------------------------------------------------------------------------------------

    @property
    def share_in_chains(self) -> float:
        """The part of the cost for chains."""
        return 1.0 if self.learning is None else self.learning.share_in_chains

    def prelude_requests(self) -> list[ReleaseRequest]:
        """Return the releases before the chains start."""
        return [] if self.learning is None else self.learning.requests()

    def stand_beside_a_table(self, beside: bool, *, units_of_rows: bool) -> None:
        """Set the number of rows in a unit, too: the prelude depends on it."""
        super().stand_beside_a_table(beside, units_of_rows=units_of_rows)
        if self.learning is not None:
            self.learning.protect_units(of_several_rows=units_of_rows or self.unit_index is not None)

    def forget(self) -> None:
        """Reset the approximation and the settings that followed from it."""
        self.known = None
        if self._made_with is None:
            self._made_with = {name: getattr(self, name) for name in self.settled}
        for name, value in self._made_with.items():
            setattr(self, name, value)

    def prelude(self) -> None:
        """Run the prelude, and adapt the length of moves to its result, free of charge."""
        if self.learning is None:
            return
        self.known = self.learning.run(self.chain, self.noise_per_bound(), self.tempering)
        if self.known is None:
            return
        if not self._standardised:  # points are parameters
            self.known = replace(self.known, origin=np.zeros(self.size), axes=np.eye(self.size))
        try:
            self.settle(self.known)
        except NUMERICAL_FAILURES:  # nothing is raised after a release
            self.known = None

    @np.errstate(all="ignore")
    def settle(self, known: Approximation) -> None:
        """Adapt settings to the prelude's result, which `known` already holds: by a pilot, for most samplers.

        The sampler runs on the surrogate, free of cost, until it reaches its acceptance rate. The stretch is then
        fixed: the chains' transitions do not change.
        """
        aim = self.aimed_acceptance
        if aim is None:
            return
        rng, self.rng = self.rng, np.random.default_rng(0)
        target = cast(StandardisedTarget, self.target)
        self._pilot = FreeTarget(self.chain, known, target, np.random.default_rng(1), tempering=self.tempering)
        try:
            self.start()
            point, log_stretch = known.start(self.rng), 0.0
            settled: list[float] = []
            for count in range(1, _PILOT_TRANSITIONS + 1):
                self.stretch(float(np.exp(log_stretch)))
                transition = self.transition(point)
                point = transition.theta
                rate = transition.stats["acceptance_rate"]
                excess = (float(transition.stats["accepted"]) if np.isnan(rate) else rate) - aim
                log_stretch = min(log_stretch + excess * count**-_POWER_OF_GAIN, 1.0)
                if count > _PILOT_TRANSITIONS // 2:
                    settled.append(log_stretch)
            self.stretch(float(np.exp(np.mean(settled))))
        finally:
            self._pilot, self.rng = None, rng
            self.start()

    def dry_run(self) -> None:
        """Run the prelude on synthetic rows; refuse a sampler without the releases of a learned clip bound."""
        if self.learning is None:
            return
        if self.control_variates and self.in_chains == "log_ratios" and not self.noise_per_bound() > 0.0:
            raise InvalidArgument(
                f"With control variates the chains of {type(self).__name__} have to request releases of kind "
                "'residual': what the expansion misses of log-ratios."
            )
        self.learning.dry_run(self.chain)

    def memory_needed(self, n_units: int | None, n_synthetic: int) -> int:
        """Return the approximate memory of expansions in bytes."""
        return 0 if self.learning is None else self.learning.memory_needed(n_units, n_synthetic)

    # In chains ------------------------------------------------------------------------------------------------------

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Begin one chain, without the point of the last one."""
        self._point = None
        super().setup_chain(rng, tune, draws)

    def keep_starts(self, given: bool) -> None:
        """Set whether chains start at the user's points, or at draws of the approximation."""
        self._starts_given = given

    def moved(self, theta: FloatArray) -> Transition:
        """Make one iteration on standardised points."""
        if self.learning is None:
            return self.transition(theta)
        if self.known is None:  # no surrogate because of noise: chains do not move
            stats: dict[str, Any] = {
                name: np.nan if issubclass(kind, np.floating) else False
                for name, (kind, shape) in self.stats_dtypes_shapes.items()
                if shape == []
            }
            stats |= {"acceptance_rate": 0.0, "centre_distance": np.inf}
            return Transition(theta, stats | {"standardised": Standardised(np.full(self.size, np.nan))})
        if self._point is None:
            self._point = self.known.point(theta) if self._starts_given else self.known.start(self.rng)
        transition = self.transition(self._point)
        self._point = transition.theta
        plain = self.known.theta(self._point)
        standardised = Standardised(self.known.standardised(plain))
        return Transition(plain, {**transition.stats, **self.known.figures, "standardised": standardised})

    @property
    def likelihood(self) -> xr.Dataset | None:
        """The likelihood from the last run's releases; None if they do not determine it."""
        if self.known is None or self.known.belief is None or not self.control_variates or self.tempering != 1.0:
            return None
        released = self.known.belief.dataset(self.parameters.labels)
        by_parameter = {name: ("parameter", values) for name, values in self.known.by_parameter.items()}
        return released.assign(by_parameter).assign_attrs(self.known.figures)
