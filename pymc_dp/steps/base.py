"""The base class of samplers: the interface of authors, the course of a step in `pm.sample`, and groups of steps.

A sampler subclasses `DPStep`, lists the releases of one chain (`sampler_requests`), and moves the parameters
(`transition`) with releases through `chain`. It has no access to data, noise and accounting. If several steps
share a model, each reads and moves its own parameters only.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Signature
from typing import Any, ClassVar, NoReturn, Self, cast

import numpy as np
import xarray as xr
from pymc.step_methods.arraystep import BlockedStep
from rich.progress import TextColumn
from rich.table import Column

from pymc_dp import _validate
from pymc_dp.accounting import Releases, noise_for, total_rho
from pymc_dp.budget.plan import Plan, ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.budget.worth import Worth
from pymc_dp.exceptions import InvalidArgument, NoPlan, UnsupportedOption
from pymc_dp.model.centring import centred, form_of
from pymc_dp.model.context import Model, context_without_error, model_in_context
from pymc_dp.model.parameters import FloatArray, ParameterVector, value_variables
from pymc_dp.model.units import declared_unit, public_number_of_units, refusal_of_undeclared_units, refuse_single_rows
from pymc_dp.release.interface import ReleasesOfIteration
from pymc_dp.release.queries import ClipCounts
from pymc_dp.steps.access import Authorisation, ChainAccess, OwnParameters
from pymc_dp.steps.arguments import ClipDiagnostics, StepWithoutBudget, docstring_of, refuse_other_unit, signature_of
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.steps.transition import SHARED_STATS, StatsOfSteps, Transition

#: The part of a run's cost for clip counts, and the number of windows of kept draws with a count.
CLIP_COUNT_SHARE = 0.01
_CLIP_COUNT_WINDOWS = 4
_LEFT_BEHIND = ("budget", "synthetic", "made_by", "unit_index", "_units_given", "_chain", "released_once")


class DPStep(BlockedStep):
    """Base class of all DP steps.

    Parameters
    ----------
    vars : sequence of variables or names, optional
        Free variables to update, of the model as it was written. Default: all of the model in the centred form (see
        `pymc_dp.model.centring`). Several DP steps may share a model and a budget, each with variables of its own.
    budget : PrivacyBudget
        The budget of all iterations of all chains, tuning included: charged before the data is read.
    budget_share : float
        Part of the remaining budget that a run of this step may spend, in (0, 1]. It is one of rho, about the square
        of epsilon: half of rho is .7 of epsilon. The shares of several steps are scaled down together if they add up
        to more than 1.
    unit : str, optional
        The unit of privacy: ``"row"``, every row by itself; the name of the dim of rows; or that of the data variable
        with the unit of each row. Default: rows, the first axis of the observed variables; it is required if
        an index or a dim of the model is named like persons (``person``, ``patient_id``).
    unit_index : str or ndarray of int, shape (rows,), optional
        The unit of each row, or the name of the model's data variable with it.
    clip_diagnostics : {"private", "exact", None}
        The report on clipped units: noisy counts paid from the budget, exact counts (for public or
        simulated data: the result is marked as not private), or none.
    keep_releases : bool
        Keep every release with its position in the result's ``releases`` group.
    insecure_seed : int, optional
        Seed the privacy noise, for tests: the result is marked as not private.
    model : pm.Model, optional
        Default: the model of the ``with`` context.

    Attributes
    ----------
    rng : numpy.random.Generator
        Public randomness; never privacy noise.
    parameters : ParameterVector
        The model's unconstrained parameters as one vector.
    size : int
        The number of parameters that the step moves.
    moves_all : bool
        Whether the step moves all: no other step moves the point between two of its iterations.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range.
    """

    name: ClassVar[str]
    #: Type and shape of every statistic of a transition.
    stats_dtypes_shapes: StatsOfSteps = SHARED_STATS
    #: Whether `sampler_requests` includes counts of clipped units, as sums over batches do.
    plans_clip_counts: ClassVar[bool] = False
    #: Statistics in PyMC's progress bar, each with a title and its digits.
    shown_in_progress: ClassVar[Mapping[str, tuple[str, str]]] = {
        "mean_accepted": ("Acceptance", "0.2f"),
        "noise_std": ("Test noise", "0.2f"),
        "epsilon_charged": ("Epsilon spent", "0.3g"),
    }
    #: Attributes that copies in worker processes lack.
    left_behind: ClassVar[tuple[str, ...]] = _LEFT_BEHIND
    #: Whether chains request releases: else there are no clipped units to count in them.
    asks_in_chains: bool = True
    #: Whether the step expands log-likelihoods around a point and makes a dry run on synthetic tables.
    expands = False
    #: Whether the step uses the number of units: see `know_n_units`.
    uses_n_units = False
    #: Default numbers of kept draws and of tuning iterations in each chain. Tuning costs budget, so the default is
    #: none.
    default_draws, default_tune_steps = 250, 0
    #: The class and arguments, to make another step on a synthetic table.
    made_by: StepWithoutBudget
    #: The user's model on a synthetic table, if given.
    synthetic: Model | None = None
    #: Whether the rows come from a separate table: the model's own number of rows is then irrelevant.
    beside_a_table = False
    #: All arguments of the constructor, including those of base classes.
    __signature__: ClassVar[Signature]
    #: The number of units in the step's arguments, if given.
    _n_units_given: int | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Set the signature and the docstring of the sampler: PyMC's `__new__` hides the arguments."""
        super().__init_subclass__(**keywords)
        cls.__signature__ = signature_of(cls)
        cls.__doc__ = docstring_of(cls)

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Return the step, or one that waits for its budget; refuse a model without a variable to update."""
        made_by = StepWithoutBudget(cls, arguments, settings)
        if settings.get("budget") is None:  # pm.sample may pass it; Python initialises instances of the class only
            return cast(Self, made_by)
        model_in_context(settings.get("model"))
        try:
            step = cast(Self, super().__new__(cls, *arguments, **settings))
        except ValueError:
            raise InvalidArgument("vars names no variable, or the model has no free one.") from None
        step.made_by = made_by
        return step

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        budget: PrivacyBudget | None = None,
        budget_share: float = 1.0,
        unit: str | None = None,
        unit_index: Any = None,
        clip_diagnostics: ClipDiagnostics = "private",
        keep_releases: bool = True,
        insecure_seed: int | None = None,
        model: Model | None = None,
        **pymc_arguments: Any,
    ) -> None:
        unknown = set(pymc_arguments) - {"blocked", "rng"}
        if unknown:
            raise InvalidArgument(f"{type(self).__name__} has no argument {', '.join(sorted(unknown))}.")
        if not isinstance(budget, PrivacyBudget):
            raise InvalidArgument(
                f"{type(self).__name__} needs a budget: pass budget=pymc_dp.PrivacyBudget(epsilon=..., delta=...)."
            )
        self.budget = budget
        self.budget_share = _validate.part_of_one("budget_share", budget_share)
        self.clip_diagnostics: ClipDiagnostics = _validate.choice(
            "clip_diagnostics", clip_diagnostics, ("private", "exact", None)
        )
        self.keep_releases = _validate.truth("keep_releases", keep_releases)
        if insecure_seed is not None:
            insecure_seed = _validate.whole("insecure_seed", insecure_seed, at_least=0)
        self.insecure_seed = insecure_seed
        model = model_in_context(model)
        if vars is None:
            model = self.form(model)
        self._units_given = {"unit": unit, "unit_index": unit_index}
        self.unit, self.unit_index = declared_unit(model, unit, unit_index)
        undeclared = unit is None and unit_index is None
        #: The reason why a unit has to be declared; None if it was, or none is required.
        self._ask_for_unit = refusal_of_undeclared_units(model) if undeclared else None
        self.vars = value_variables(model, vars)
        if not self.vars:
            raise InvalidArgument("vars names no variable.")
        self.parameters = ParameterVector(model)
        moved = {var.name for var in self.vars}
        self._own = OwnParameters(tuple(name in moved for name in self.parameters.names), tuple(self.parameters.slices))
        self.labels = [self.parameters.labels[place] for place in self._own.places]
        self.size, self.moves_all = len(self.labels), self._own.all
        self.tune = False
        self._iteration = self._tuning_iterations = 0
        self.released_once = ReleasesOfIteration(())
        self.rng = np.random.default_rng()
        self._authorisation: Authorisation | None = None
        self._chain: ChainAccess | None = None

    # Defined by samplers ----------------------------------------------------------------------------------

    @abstractmethod
    def sampler_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest | Releases]:
        """Return the releases of one chain; `Releases` have given noise.

        Their shares add up to 1, of the part `share_in_chains` of the run's cost. Counts of clipped units are added by
        `release_requests`, unless `plans_clip_counts`.
        """

    @abstractmethod
    def transition(self, theta: FloatArray) -> Transition:
        """Return the next state of the chain, at `theta`: a vector of the step's own parameters."""

    @property
    def simulates(self) -> bool:
        """Whether synthetic tables are rows simulated from the model."""
        return False

    @property
    @abstractmethod
    def clip_bounds(self) -> dict[str, float]:
        """The clip bounds, for the result's metadata."""

    def start(self) -> None:
        """Reset the state of a chain: nothing, for samplers without one."""

    @property
    def facts(self) -> dict[str, Any]:
        """Further facts of the run for readers of the result: plain numbers and strings.

        They are read after the prelude and published as attributes of the group ``privacy``, so they may contain its
        releases; under names that `pymc_dp.run.publish.metadata` does not use.
        """
        return {}

    def know_n_units(self, n_units: int) -> None:
        """Set the number of units, if it is public: before a plan, for steps with `uses_n_units`.

        Raises
        ------
        InvalidArgument
            If the step has another number as an argument.
        """

    def expected_worth(self, plan: Plan) -> Worth | None:
        """Return the expected error of the posterior; None without a theory, as for most samplers."""
        return None

    def what_would_fit(self, noise_factor: float) -> str:
        """Return settings that would fit the budget, given the factor by which all given noise is too small."""
        return f"What would fit: noise multipliers {noise_factor:.3g} times as large."

    def release_clip_counts(self) -> None:
        """Release the number of units clipped since the last call; called at the end of each window."""
        if self.clip_diagnostics == "exact" or self.plans_clip_counts:
            self.chain.tallied_clip_counts()
        else:
            self.chain.release(ClipCounts())

    # For samplers that learn something before their chains start -------------------------------------------

    @property
    def share_in_chains(self) -> float:
        """The part of the run's cost for releases in chains: the rest of `prelude_requests`."""
        return 1.0

    def prelude_requests(self) -> Sequence[ReleaseRequest]:
        """Return the releases before the chains start (with ``once=True``): none, for most samplers.

        Their kinds differ from those of `sampler_requests`, and their shares are parts of the run's cost.
        """
        return ()

    def prelude(self) -> None:
        """Make the releases of `prelude_requests` through `chain`; the attributes it sets are copied to every chain.

        It has no access to the starts of chains, and must not raise because of noise in a release.
        """

    def dry_run(self) -> None:
        """Run the prelude on synthetic rows, before the charge: nothing, for most samplers.

        Raises
        ------
        InvalidArgument
            If the prelude would fail on any data.
        """

    def forget(self) -> None:
        """Reset the results of the last prelude: nothing, for most samplers. Called at the start of every run."""

    def keep_starts(self, given: bool) -> None:
        """Set whether the user gave the starts of chains: ignored by most samplers, which start at them."""

    def moved(self, theta: FloatArray) -> Transition:
        """Make one iteration from PyMC's point `theta`: a transition, for most samplers."""
        return self.transition(theta)

    def memory_needed(self, n_units: int | None, n_synthetic: int) -> int:
        """Return the approximate memory of a run in bytes; `n_units` is None if protected."""
        return 0

    @property
    def likelihood(self) -> xr.Dataset | None:
        """The likelihood from the last run's releases, with its diagnostics; None for most samplers."""
        return None

    @property
    def drawn_from(self) -> tuple[Approximation, xr.Dataset] | None:
        """The approximation and `likelihood`, if PyMC's NUTS draws from it; None if the step moves the chains."""
        return None

    # Used by samplers -------------------------------------------------------------------------------------

    @property
    def chain(self) -> ChainAccess:
        """The sampler's access to the curator.

        Raises
        ------
        NoPlan
            If no plan was charged, or no chain was started.
        """
        if self._chain is None:
            self._authorised()
            raise NoPlan("No chain has been started: the step is driven by pm.sample.")
        return self._chain

    @property
    def tuning(self) -> bool:
        """Whether the current iteration belongs to tuning, whose draws are discarded."""
        return self._iteration < self._tuning_iterations

    @staticmethod
    def form(model: Model) -> Model:
        """Return the form of a model whose variables a step of all variables moves."""
        return centred(model)

    def form_of(self, model: Model) -> Model:
        """Return the model in the form, centred or as written, whose variables the step moves."""
        return form_of(model, [var.name for var in self.vars])

    def in_order(self, setting: str, values: Any) -> Any:
        """Return a mapping by variable's name as one vector in the step's order; other values unchanged."""
        return self.parameters.by_variable(setting, values, self._own.moves) if isinstance(values, Mapping) else values

    # The plan ---------------------------------------------------------------------------------------------

    @property
    def private(self) -> bool:
        """Whether the result of a run is private: noise without a seed, and no exact counts."""
        return self.insecure_seed is None and self.clip_diagnostics != "exact"

    def protecting(self, unit: str | None, unit_index: Any) -> Self:
        """Return the step, whose unit is fixed; refuse another unit."""
        refuse_other_unit(self._units_given, {"unit": unit, "unit_index": unit_index}, has_budget=True)
        return self

    def stand_beside_a_table(self, beside: bool, *, units_of_rows: bool) -> None:
        """Set whether a table beside the model holds the real rows, and whether its units have several rows."""
        refuse_single_rows(self._units_given["unit"], units_of_rows=units_of_rows)
        self.beside_a_table = beside
        if units_of_rows:
            self._ask_for_unit = None

    def release_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return the releases before the chains and those of one chain, with counts of clipped units.

        Raises
        ------
        InvalidArgument
            If the sampler uses batches without `plans_clip_counts`, if a kind is released both once and in chains,
            if shares add up to more than 1, or if the unit has to be declared.
        """
        if self._ask_for_unit is not None:
            raise InvalidArgument(self._ask_for_unit)
        self._learn_n_units()
        once = list(self.prelude_requests())
        in_chains = _scaled(self.sampler_requests(tune, draws), self.share_in_chains)
        requests = [*once, *in_chains]
        if {request.kind for request in once} & {request.kind for request in in_chains}:
            raise InvalidArgument(
                f"{type(self).__name__} releases one kind both before its chains and in them: give the kinds two names."
            )
        if math.fsum(each.share for each in requests if isinstance(each, ReleaseRequest)) > 1.0 + 1e-9:
            raise InvalidArgument(f"The shares of {type(self).__name__}'s releases add up to more than 1.")
        if self.clip_diagnostics != "private" or self.plans_clip_counts or not in_chains:
            return requests
        made = [each.releases(1) if isinstance(each, ReleaseRequest) else each for each in requests]
        if any(each.sampling is not None for each in made):
            raise InvalidArgument(
                f"{type(self).__name__} asks batches, whose clipped units are counted with the sums themselves: its "
                "class has to say plans_clip_counts = True, and to ask with counted=True. Or pass "
                "clip_diagnostics=None."
            )
        windows = len(window_ends(tune, draws))
        counted = len({request.kind for request in in_chains}) + 1  # the number of units may be one of them
        if not any(isinstance(each, ReleaseRequest) for each in requests):  # all noise is given: no share is left
            rho = total_rho(made) * CLIP_COUNT_SHARE / (1.0 - CLIP_COUNT_SHARE)
            return [*requests, noise_for("clip_count", windows, rho, counted)]
        counts = ReleaseRequest("clip_count", windows, CLIP_COUNT_SHARE, counted)
        return [*_scaled(requests, 1.0 - CLIP_COUNT_SHARE), counts]

    def _learn_n_units(self) -> None:
        """Read the number of units from the context's model, if that is the step's own: for plans before a run."""
        if not self.uses_n_units or self._n_units_given is not None or self.beside_a_table:
            return  # unused; or passed, as for a later table: a run compares both
        model = context_without_error()
        if model is None or not set(self.vars) <= set(value_variables(self.form_of(model))):
            return
        n_units = public_number_of_units(model, self.unit, self.unit_index, self.budget.relation)
        if n_units is not None:
            self.know_n_units(n_units)

    # The run ----------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Reset the state of the last run, which may have ended while tuning, and its releases."""
        self._iteration = self._tuning_iterations = 0
        self.released_once = ReleasesOfIteration(())
        self.forget()

    def authorise(self, authorisation: Authorisation, noted: Callable[[], None] | None = None) -> None:
        """Authorise the step to run; `dp.sample` calls this once the plan has been charged.

        It makes the releases before the chains start, and calls `noted` after each.
        """
        self.renew()
        self._authorisation = authorisation
        if self.prelude_requests():
            self._once(self.prelude, authorisation, noted)

    def dry_run_with(self, authorisation: Authorisation, noted: Callable[[], None] | None = None) -> None:
        """Make a dry run with curators of synthetic rows; `dp.sample` calls this before the plan is charged."""
        if not self.prelude_requests():
            return
        try:
            self._once(self.dry_run, authorisation, noted)
        finally:
            self.released_once = ReleasesOfIteration(())
            self.withdraw()

    def _once(self, act: Callable[[], None], authorisation: Authorisation, noted: Callable[[], None] | None) -> None:
        """Call a method that releases before the chains start, with its own curator, and record the releases."""
        chain = ChainAccess(authorisation, authorisation.curators.open_once(), self._own, noted)
        self._chain = chain
        try:
            act()
        finally:
            self._chain = None
            chain.end()
            self.released_once = chain.recorded()

    def withdraw(self) -> None:
        """Withdraw the authorisation; `dp.sample` calls this at the end of every run."""
        self._authorisation = None
        self._chain = None
        self.start()

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Begin one chain: claim one of the curators of the plan; `NoPlan` if none is left."""
        super().setup_chain(rng, tune, draws)
        key = tuple(getattr(self.rng.bit_generator.seed_seq, "spawn_key", ()))
        authorised = self._authorised()
        self._chain = ChainAccess(authorised, authorised.curators.open(key), self._own)
        self._iteration = 0
        self._tuning_iterations = tune
        self._window_ends = frozenset(window_ends(tune, draws))
        self._accepted = 0
        self.start()

    def step(self, point: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """Make one iteration."""
        self._authorised()
        own = self._own
        own.whole = self.parameters.to_theta(point)
        transition = self.moved(own.whole[own.places])
        stats = transition.stats
        self._accepted += bool(stats["accepted"])
        self._iteration += 1
        if self.clip_diagnostics is not None and self.asks_in_chains and self._iteration in self._window_ends:
            self.release_clip_counts()
        stats["epsilon_charged"] = self.chain.epsilon_charged
        stats["mean_accepted"] = self._accepted / self._iteration
        stats["releases"] = self.chain.recorded()
        return {**point, **self.parameters.to_point(own.embedded(transition.theta))}, [stats]

    def _authorised(self) -> Authorisation:
        if self._authorisation is None:
            raise NoPlan(
                f"{type(self).__name__} was started without a plan that has been charged to its budget. Call "
                "pm.sample after importing pymc_dp, or pymc_dp.sample: they plan the whole run first. (A "
                "`sample` imported from pymc before pymc_dp does not.)"
            )
        return self._authorisation

    def _progressbar_config(self, n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        columns = [
            TextColumn(f"{{task.fields[{name}]:{digits}}}", table_column=Column(title, ratio=1))
            for name, (title, digits) in self.shown_in_progress.items()
        ]
        return columns, {name: [0.0] * n_chains for name in self.shown_in_progress}

    def _make_progressbar_update_functions(self) -> tuple[Callable[[dict[str, Any]], dict[str, Any]]]:
        return (lambda stats: {name: stats[name] for name in self.shown_in_progress},)

    # Copies -----------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy without the constructor's arguments: a worker needs no budget and no model."""
        state = {name: value for name, value in self.__dict__.items() if not name.endswith("__newargs")}
        return object.__new__, (type(self),), state | dict.fromkeys(self.left_behind)

    def __copy__(self) -> NoReturn:
        raise TypeError("A DP step cannot be copied; make a new one with the same budget.")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()


DPStep.__signature__ = signature_of(DPStep)


def _scaled(requests: Sequence[ReleaseRequest | Releases], factor: float) -> list[ReleaseRequest | Releases]:
    """Return requests for a part of the cost; given noise stays unchanged."""
    return [replace(each, share=each.share * factor) if isinstance(each, ReleaseRequest) else each for each in requests]


def window_ends(tune: int, draws: int) -> list[int]:
    """Return the iterations after which clip counts are released: once for tuning, then for quarters of the draws."""
    windows = min(_CLIP_COUNT_WINDOWS, draws)
    ends = [tune + math.ceil(draws * (i + 1) / windows) for i in range(windows)]
    return [tune, *ends] if tune else ends


class StepGroup:
    """One or several DP steps that move the variables of one model in turn, in the given order.

    They share a budget, a privacy unit and the tempering, or `UnsupportedOption` is raised.
    """

    def __init__(self, steps: Sequence[DPStep]) -> None:
        self.steps = list(steps)
        first = self.steps[0]
        if any(step.budget is not first.budget for step in self.steps):
            raise UnsupportedOption("The DP steps of one run have to share one budget object.")
        if any(step.unit != first.unit or step.unit_index is not first.unit_index for step in self.steps):
            raise UnsupportedOption("The DP steps of one run have to protect the same unit: pass all the same unit.")
        if len({getattr(step, "tempering", 1.0) for step in self.steps}) > 1:
            raise UnsupportedOption(
                "The DP steps of one run have to draw from one law: pass all the same tempering. (A step without that "
                "argument does not temper.)"
            )
        self.budget, self.unit, self.unit_index = first.budget, first.unit, first.unit_index

    @property
    def random_seed(self) -> int | None:
        """A seed for the chains, if the noise of a step has a seed."""
        return next((step.insecure_seed for step in self.steps if step.insecure_seed is not None), None)

    def stand_beside_a_table(self, beside: bool, *, units_of_rows: bool) -> None:
        """Set whether the rows come from a table, and its units; refuse units named in two places."""
        if beside and self.unit_index is not None:
            raise UnsupportedOption(
                "With data=, units of several rows are named there: Table(..., unit=), not unit_index=."
            )
        for step in self.steps:
            step.stand_beside_a_table(beside, units_of_rows=units_of_rows)

    def know_n_units(self, n_units: int) -> None:
        """Set the number of units of the steps, if it is public."""
        for step in self.steps:
            step.know_n_units(n_units)
