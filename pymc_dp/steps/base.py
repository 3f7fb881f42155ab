"""The life of a DP step in `pm.sample`: its shared arguments, its plan, its chains, and the records it leaves behind.

A sampler subclasses `DPStep`, says what one chain releases (`sampler_requests`), and moves the parameters
(`transition`), asking for releases through `chain`; see `pymc_dp.steps.sampler`. It sees no data, no noise and no
accounting. Where several steps share a model, each sees and moves its own parameters only.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Signature
from typing import Any, ClassVar, NoReturn, Self, cast

import numpy as np
import xarray as xr
from pymc.step_methods.arraystep import BlockedStep
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state
from rich.progress import TextColumn
from rich.table import Column

from pymc_dp import _validate
from pymc_dp.accounting import Releases, noise_for, total_rho
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument, NoPlan
from pymc_dp.model.context import Model, context_without_error, model_in_context
from pymc_dp.model.parameters import ParameterVector, value_variables
from pymc_dp.model.structure import tempering_of_model
from pymc_dp.model.units import declared_unit, public_number_of_units, refusal_of_undeclared_units
from pymc_dp.release.interface import ReleasesOfIteration
from pymc_dp.steps.access import Authorisation, ChainAccess, OwnParameters
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.steps.sampler import ClipDiagnostics, Sampler
from pymc_dp.steps.shared import docstring_of, signature_of
from pymc_dp.steps.without_budget import StepWithoutBudget, refuse_other_unit

#: Part of a run's cost that pays for clip counts, and how many windows of kept draws they are released for.
CLIP_COUNT_SHARE = 0.01
_CLIP_COUNT_WINDOWS = 4


@dataclass_state
class DPStepState(StepMethodState):
    """What PyMC may store and restore of a DP step: public randomness, never noise, never a release."""

    tune: bool


class DPStep(Sampler, BlockedStep):
    """Base class of all DP steps.

    Parameters
    ----------
    vars : sequence of variables or names, optional
        Free variables to update. Default: all. Several DP steps may share a model and a budget, each with variables
        of its own.
    budget : PrivacyBudget
        What the run is charged to.
    budget_share : float
        Part of what is left in the budget that a run of this step may spend, in (0, 1]. The shares of several steps
        are scaled down together where they add up to more than 1.
    unit : str, optional
        What is protected: ``"row"``, every row by itself; the dim that counts rows, by its name; or the data variable
        that says which unit each row belongs to. Default: rows, the first axis of the observed variables; it has to be
        said where an index or a dim of the model reads like persons (``person``, ``patient_id``).
    unit_index : str or ndarray of int, shape (rows,), optional
        Which unit each row belongs to, or the name of the model's data variable that says so.
    clip_diagnostics : {"private", "exact", None}
        How the share of clipped units is reported: as noisy counts paid from the budget, exactly (for public or
        simulated data: the result is marked as not private), or not at all.
    keep_releases : bool
        Keep every release with its position in the result's ``releases`` group.
    insecure_seed : int, optional
        Seed the privacy noise, for tests: the result is marked as not private.
    model : pm.Model, optional
        Default: the model of the ``with`` context.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range.
    """

    name: ClassVar[str]
    #: All arguments of the constructor, those that it hands on included.
    __signature__: ClassVar[Signature]
    #: The number of units that was passed, to steps that need it.
    _n_units_given: int | None = None
    #: What the step was made with, to make another on a synthetic table.
    made_by: StepWithoutBudget
    #: Whether the rows are those of a table beside the model, whose own number of rows means nothing then.
    beside_a_table = False
    #: The same model on a synthetic table, where the user gives one.
    synthetic: Model | None = None
    #: Tuning iterations are paid for like any other, so none are made unless asked for.
    default_tune_steps = 0
    #: Statistics that PyMC's progress bar shows, each with a title and its digits.
    shown_in_progress: ClassVar[Mapping[str, tuple[str, str]]] = {
        "mean_accepted": ("Acceptance", "0.2f"),
        "noise_std": ("Test noise", "0.2f"),
        "epsilon_charged": ("Epsilon spent", "0.3g"),
    }
    _state_class = DPStepState

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Show all arguments of the sampler, where it would show none: PyMC's `__new__` takes whatever it is given."""
        super().__init_subclass__(**keywords)
        cls.__signature__ = signature_of(cls)
        cls.__doc__ = docstring_of(cls)

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Refuse what PyMC refuses before the constructor is called.

        Raises
        ------
        InvalidArgument
            If there is no variable to update.
        """
        if settings.get("budget") is None:  # it may be passed to pm.sample; PyMC does not initialise what is no step
            return cast(Self, StepWithoutBudget(cls, arguments, settings))
        model_in_context(settings.get("model"))
        try:
            step = cast(Self, super().__new__(cls, *arguments, **settings))
        except ValueError:
            raise InvalidArgument("vars names no variable, or the model has no free one.") from None
        step.made_by = StepWithoutBudget(cls, arguments, settings)
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
        self._units_given = {"unit": unit, "unit_index": unit_index}
        self.unit, self.unit_index = declared_unit(model, unit, unit_index)
        undeclared = unit is None and unit_index is None
        #: Why it has to be said what a unit is; None where it was said, or nothing asks for it.
        self._ask_for_unit = refusal_of_undeclared_units(model) if undeclared else None
        self.vars = value_variables(model, vars)
        if not self.vars:
            raise InvalidArgument("vars names no variable.")
        self.parameters = ParameterVector(model)
        #: The power that the model's own likelihood was written to; see `benchmarks/posteriors.py`.
        self.model_tempering = tempering_of_model(model)
        moved = {var.name for var in self.vars}
        self._own = OwnParameters(tuple(name in moved for name in self.parameters.names), tuple(self.parameters.slices))
        self.tune = False
        self._iteration = self._tuning_iterations = 0
        self.rng = np.random.default_rng()
        self._authorisation: Authorisation | None = None
        self._chain: ChainAccess | None = None
        self.released_once = ReleasesOfIteration(())

    @property
    def private(self) -> bool:
        """Whether the result of a run is private: its noise is not seeded and no exact counts are returned."""
        return self.insecure_seed is None and self.clip_diagnostics != "exact"

    def stand_beside_a_table(self, beside: bool, *, units_of_rows: bool) -> None:
        """Take note of whether the rows are those of a table beside the model, and its units have several.

        Parameters
        ----------
        beside : bool
            Whether the model holds invented rows, whose number means nothing.
        units_of_rows : bool
            Whether the units of the table have several rows.
        """
        self.beside_a_table = beside
        if units_of_rows:
            self._ask_for_unit = None

    def protecting(self, unit: str | None, unit_index: Any) -> Self:
        """Return the step, which has its budget, if that is what it was made to protect.

        Raises
        ------
        UnsupportedOption
            If it was not.
        """
        refuse_other_unit(self._units_given, {"unit": unit, "unit_index": unit_index}, has_budget=True)
        return self

    # The plan ---------------------------------------------------------------------------------------------

    def release_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return everything that one chain releases, and what is released once before all chains.

        See `pymc_dp.budget.privacy_budget.PlannableStep`.

        Raises
        ------
        InvalidArgument
            If batches are asked and the sampler leaves counts of clipped units to this class, if a kind is released
            both once and in chains, or if shares add up to more than 1; or if it has to be said what a unit is.
        """
        if self._ask_for_unit is not None:
            raise InvalidArgument(self._ask_for_unit)
        self._learn_n_units()
        part, once = self.share_in_chains, list(self.prelude_requests())
        per_chain = [
            replace(each, share=each.share * part) if isinstance(each, ReleaseRequest) else each
            for each in self.sampler_requests(tune, draws)
        ]
        requests = [*once, *per_chain]
        if {request.kind for request in once} & {request.kind for request in per_chain}:
            raise InvalidArgument(
                f"{type(self).__name__} releases one kind both before its chains and in them: give the kinds two names."
            )
        if math.fsum(each.share for each in requests if isinstance(each, ReleaseRequest)) > 1.0 + 1e-9:
            raise InvalidArgument(f"The shares of {type(self).__name__}'s releases add up to more than 1.")
        if self.clip_diagnostics != "private" or self.plans_clip_counts or not per_chain:
            return requests
        made = [each.releases(1) if isinstance(each, ReleaseRequest) else each for each in requests]
        if any(each.sampling is not None for each in made):
            raise InvalidArgument(
                f"{type(self).__name__} asks batches, whose clipped units are counted with the sums themselves: its "
                "class has to say plans_clip_counts = True, and to ask with counted=True. Or pass "
                "clip_diagnostics=None."
            )
        windows = len(window_ends(tune, draws))
        counted = len({request.kind for request in per_chain}) + 1  # the number of units may be one of them
        if not any(isinstance(each, ReleaseRequest) for each in requests):  # nothing is left over that they are part of
            beside = total_rho(made) * CLIP_COUNT_SHARE / (1.0 - CLIP_COUNT_SHARE)
            return [*requests, noise_for("clip_count", windows, beside, counted)]
        rest = 1.0 - CLIP_COUNT_SHARE
        scaled = [
            replace(each, share=each.share * rest) if isinstance(each, ReleaseRequest) else each for each in requests
        ]
        return [*scaled, ReleaseRequest("clip_count", windows, CLIP_COUNT_SHARE, counted)]

    def _learn_n_units(self) -> None:
        """Learn the number of units from the context's model, if that is the step's own: for plans before a run."""
        if not self.uses_n_units or self._n_units_given is not None or self.beside_a_table:
            return  # of no use to it; or passed, as for a table that is yet to come: a run compares
        model = context_without_error()
        if model is None or not set(self.vars) <= set(value_variables(model)):
            return
        n_units = public_number_of_units(model, self.unit, self.unit_index, self.budget.relation)
        if n_units is not None:
            self.know_n_units(n_units)

    def authorise(self, authorisation: Authorisation, noted: Callable[[], None] | None = None) -> None:
        """Let the step run; the seam calls this once the plan has been charged.

        What is released once, before the chains start, is released here, and `noted` called after each release.
        """
        self._authorisation = authorisation
        self._iteration = self._tuning_iterations = 0  # the last run may have ended while tuning
        self.forget()
        if self.prelude_requests():
            self._once(self.prelude, authorisation, noted)

    def dry_run_with(self, authorisation: Authorisation, noted: Callable[[], None] | None = None) -> None:
        """Make a dry run with curators of synthetic rows; the seam calls this before the plan is charged.

        Raises
        ------
        InvalidArgument
            If the prelude would fail on any data.
        """
        if not self.prelude_requests():
            return
        try:
            self._once(self.dry_run, authorisation, noted)
        finally:
            self.released_once = ReleasesOfIteration(())
            self.withdraw()

    def _once(self, act: Callable[[], None], authorisation: Authorisation, noted: Callable[[], None] | None) -> None:
        """Do what is done before the chains start, with the curator of that, and keep what was released."""
        chain = ChainAccess(authorisation, authorisation.curators.open_once(), self._own, noted)
        self._chain = chain
        try:
            act()
        finally:
            self._chain = None
            chain.end()
            self.released_once = chain.recorded()

    @property
    def likelihood(self) -> xr.Dataset | None:
        """What the last run's releases say of the likelihood without any draw, and its quality; None for nothing."""
        return None

    @property
    def drawn_from(self) -> tuple[Approximation, xr.Dataset] | None:
        """What was found and `likelihood`, where PyMC's NUTS draws from it; None where the step moves the chains."""
        return None

    def withdraw(self) -> None:
        """Take the authorisation back; the seam calls this when the run ends, however it ends."""
        self._authorisation = None
        self._chain = None
        self.start()

    # Life in pm.sample ------------------------------------------------------------------------------------

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Begin one chain: claim one of the curators that were paid for.

        Raises
        ------
        NoPlan
            If the run was not planned and charged, or all planned chains have started.
        """
        super().setup_chain(rng, tune, draws)
        key = tuple(getattr(self.rng.bit_generator.seed_seq, "spawn_key", ()))
        authorised = self._authorised()
        self._chain = ChainAccess(authorised, authorised.curators.open(key), self._own)
        self._iteration = 0
        self._tuning_iterations = tune
        self._window_ends = frozenset(window_ends(tune, draws))
        self._accepted = 0
        self.begin()
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
        if self.clip_diagnostics is not None and self._iteration in self._window_ends:
            if self.asks_in_chains:
                self.release_clip_counts()
        stats["epsilon_charged"] = self.chain.epsilon_charged
        stats["mean_accepted"] = self._accepted / self._iteration
        stats["releases"] = self.chain.recorded()
        return {**point, **self.parameters.to_point(own.embedded(transition.theta))}, [stats]

    @property
    def tuning(self) -> bool:
        """Whether the current iteration is one of tuning, whose draws are no draws from the posterior."""
        return self._iteration < self._tuning_iterations

    @property
    def chain(self) -> ChainAccess:
        """What the sampler may ask.

        Raises
        ------
        NoPlan
            If nothing was charged, or no chain has been started.
        """
        if self._chain is None:
            self._authorised()
            raise NoPlan("No chain has been started: the step is driven by pm.sample.")
        return self._chain

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
        """Copy without the constructor's arguments: a worker needs neither the budget nor the model."""
        state = {name: value for name, value in self.__dict__.items() if not name.endswith("__newargs")}
        state |= {
            "synthetic": None,
            "budget": None,
            "_chain": None,
            "made_by": None,
            "unit_index": None,
            "_units_given": None,
            "released_once": None,
        }
        return _blank_step, (type(self),), state

    def __copy__(self) -> NoReturn:
        raise TypeError("A DP step cannot be copied; make a new one with the same budget.")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()


DPStep.__signature__ = signature_of(DPStep)


def _blank_step(step_class: type[DPStep]) -> DPStep:
    """Make a step without its constructor, which needs a model context."""
    return object.__new__(step_class)


def window_ends(tune: int, draws: int) -> list[int]:
    """Return after which iterations clip counts are released: once for tuning, then for quarters of the draws."""
    windows = min(_CLIP_COUNT_WINDOWS, draws)
    ends = [tune + math.ceil(draws * (i + 1) / windows) for i in range(windows)]
    return [tune, *ends] if tune else ends
