"""What every DP step shares: its arguments, its life in `pm.sample`, and the records it leaves behind.

A sampler subclasses `DPStep`, says what one chain releases (`sampler_requests`), and moves the parameters
(`transition`), asking for releases through `release_gradient` and `release_log_ratio`. It sees no data, no noise
and no accounting. Where several steps share a model, each sees and moves its own parameters only.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.step_methods.arraystep import BlockedStep
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_value_vars_from_user_vars
from rich.progress import TextColumn
from rich.table import Column

from pymc_dp import _validate
from pymc_dp.accounting import Releases
from pymc_dp.budget import PrivacyBudget, ReleaseRequest
from pymc_dp.exceptions import InvalidArgument, NoPlan
from pymc_dp.parameters import FloatArray, ParameterVector
from pymc_dp.release.interface import Curator, Release, ReleasesOfIteration

ClipDiagnostics = Literal["private", "exact"] | None

#: Part of a run's cost that pays for clip counts, and how many windows of kept draws they are released for.
CLIP_COUNT_SHARE = 0.01
_CLIP_COUNT_WINDOWS = 4


#: Statistics of every Metropolis–Hastings sampler: a transition gives the first four, this module the others.
SHARED_STATS: dict[str, tuple[type, list[int] | None]] = {
    "accepted": (bool, []),
    "acceptance_rate": (np.float64, []),
    "log_ratio": (np.float64, []),
    "noise_std": (np.float64, []),
    "epsilon_charged": (np.float64, []),
    "mean_accepted": (np.float64, []),
    "releases": (object, None),
}


class LogDensity(Protocol):
    """A data-free log-density and its gradient: the prior."""

    def log_density(self, theta: FloatArray) -> float:
        """Return the log-density at `theta`."""
        ...

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return its gradient."""
        ...


class _PriorOfSome:
    """The prior as a function of one step's own parameters, the others held where they are."""

    def __init__(self, prior: LogDensity, own: NDArray[np.intp], whole: FloatArray) -> None:
        self._prior, self._own, self._whole = prior, own, whole

    def log_density(self, theta: FloatArray) -> float:
        return self._prior.log_density(embedded(theta, self._own, self._whole))

    def gradient(self, theta: FloatArray) -> FloatArray:
        gradient: FloatArray = self._prior.gradient(embedded(theta, self._own, self._whole))[self._own]
        return gradient


def embedded(theta: FloatArray, own: NDArray[np.intp], whole: FloatArray) -> FloatArray:
    """Return `whole` with the entries `own` replaced by `theta`."""
    changed = whole.copy()
    changed[own] = theta
    return changed


class OpensCurators(Protocol):
    """Opens the curator of one chain after another."""

    def open(self, key: tuple[int, ...]) -> Curator:
        """Return the curator of one more chain."""
        ...

    def open_once(self) -> Curator:
        """Return the curator of what is released before the chains start."""
        ...


class PublicUnits(Protocol):
    """The units of a synthetic table: everything about them may be computed, free of charge."""

    n_units: int

    def first(self, count: int) -> "PublicUnits":
        """Return the first units, at most `count`."""
        ...

    def log_likelihoods(self, theta: FloatArray) -> FloatArray:
        """Return the log-likelihood of every unit, shape (units,)."""
        ...

    def scores(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of every unit's log-likelihood, shape (units, parameters)."""
        ...

    def curvatures(self, theta: FloatArray) -> FloatArray:
        """Return the negative second derivatives of every unit's, shape (units, parameters, parameters)."""
        ...

    def along(self, theta: FloatArray, direction: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return slopes and negative second derivatives along a direction, each of shape (units,)."""
        ...


class SyntheticTables(Protocol):
    """Where synthetic tables come from: the user's synthetic, or the model itself."""

    @property
    def depends_on_parameters(self) -> bool:
        """Whether the table is made up at the parameters that it is asked for at."""
        ...

    def at(self, theta: FloatArray) -> PublicUnits:
        """Return a synthetic table."""
        ...

    def prior_draws(self) -> list[FloatArray]:
        """Return parameters drawn from the prior."""
        ...


@dataclass(frozen=True)
class Authorisation:
    """What a charged plan lets a step use: the seam hands it over before sampling and takes it back after.

    Attributes
    ----------
    curators : OpensCurators
        A curator for each planned chain.
    prior : LogDensity
        Exact and free.
    noise_multipliers : mapping of str to float
        What was paid for, by kind of release.
    epsilon_charged : float
        The budget's spent epsilon, this run included.
    synthetic_tables : SyntheticTables or None
        For steps that make a dry run on synthetic tables.
    n_units : int or None
        The number of units, where it is public.
    noise_schedules : mapping of str to tuple of float
        All noise multipliers of a kind, in the order in which the step asked for them.
    """

    curators: OpensCurators
    prior: LogDensity
    noise_multipliers: Mapping[str, float]
    epsilon_charged: float
    synthetic_tables: SyntheticTables | None = None
    n_units: int | None = None
    noise_schedules: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass
class Transition:
    """Where one iteration went.

    Attributes
    ----------
    theta : ndarray, shape (own parameters,)
        The next state of the chain.
    stats : dict
        Sample statistics; functions of releases, the prior and public randomness only.
    """

    theta: FloatArray
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass_state
class DPStepState(StepMethodState):
    """What PyMC may store and restore of a DP step: public randomness, never noise, never a release."""

    tune: bool


class DPStep(BlockedStep):
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
        The dim that counts units of privacy. Default: the first axis of the observed variables.
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
    #: Whether the step expands log-likelihoods around a centre and makes a dry run on synthetic tables.
    expands = False
    #: The same model on a synthetic table, where the user gives one.
    synthetic: pm.Model | None = None
    #: Tuning iterations are paid for like any other, so none are made unless asked for.
    default_tune_steps = 0
    #: Whether `sampler_requests` pays for counts of clipped units, too, as where they come with sums over batches.
    plans_clip_counts: ClassVar[bool] = False
    _state_class = DPStepState

    def __new__(cls, *arguments: Any, **settings: Any) -> Any:
        """Refuse what PyMC refuses before the constructor is called.

        Raises
        ------
        InvalidArgument
            If there is no variable to update.
        """
        try:
            return super().__new__(cls, *arguments, **settings)
        except ValueError:
            raise InvalidArgument("vars names no variable, or the model has no free one.") from None

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
        model: pm.Model | None = None,
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
        if unit is not None and not isinstance(unit, str):
            raise InvalidArgument(f"unit must be the name of a dim, but is a {type(unit).__name__}.")
        self.unit = unit
        self.unit_index = unit_index
        self.clip_diagnostics: ClipDiagnostics = _validate.choice(
            "clip_diagnostics", clip_diagnostics, ("private", "exact", None)
        )
        self.keep_releases = _validate.truth("keep_releases", keep_releases)
        if insecure_seed is not None:
            insecure_seed = _validate.whole("insecure_seed", insecure_seed, at_least=0)
        self.insecure_seed = insecure_seed
        model = pm.modelcontext(model)
        try:
            chosen = None if vars is None else [model[var] if isinstance(var, str) else var for var in vars]
            self.vars = model.value_vars if chosen is None else get_value_vars_from_user_vars(chosen, model)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidArgument("vars names a variable that is no free variable of the model.") from None
        if not self.vars:
            raise InvalidArgument("vars names no variable.")
        self.parameters = ParameterVector(model)
        moved = {var.name for var in self.vars}
        #: Which value variables the step moves, and where their entries stand in the whole vector.
        self._blocks = tuple(name in moved for name in self.parameters.names)
        where = [np.arange(part.start, part.stop) for part in self.parameters.slices]
        own = [places for places, mine in zip(where, self._blocks, strict=True) if mine]
        self._own = np.concatenate(own) if own else np.zeros(0, dtype=np.intp)
        self._whole = np.zeros(self.parameters.size)
        self.tune = False
        self._iteration = self._tuning_iterations = 0
        self.rng = np.random.default_rng()
        self._authorisation: Authorisation | None = None
        self._curator: Curator | None = None
        self._released: list[Release] = []
        self.released_once = ReleasesOfIteration(())

    # What a sampler defines -------------------------------------------------------------------------------

    @abstractmethod
    def sampler_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest | Releases]:
        """Return what one chain releases; shares add up to 1. Releases have noise that is given.

        Counts of clipped units are added by `release_requests`, but where `plans_clip_counts`.
        """

    @abstractmethod
    def start(self) -> None:
        """Forget the last chain."""

    @abstractmethod
    def transition(self, theta: FloatArray) -> Transition:
        """Return the next state of the chain."""

    def know_n_units(self, n_units: int) -> None:
        """Take note of the number of units, where it is public and the step has a use for it.

        Raises
        ------
        InvalidArgument
            If the step was told another number.
        """

    def what_would_fit(self, noise_factor: float) -> str:
        """Say which settings would fit, if all noise that is given had to grow by a factor."""
        return f"What would fit: noise multipliers {noise_factor:.3g} times as large."

    def prelude_requests(self) -> Sequence[ReleaseRequest]:
        """Return what is released once before the chains start (with ``once=True``): nothing, for most samplers."""
        return ()

    def prelude(self) -> None:
        """Make those releases; what it keeps is copied to every chain, so it may hold nothing but releases."""

    def memory_needed(self, n_units: int, n_synthetic: int) -> int:
        """Return how many bytes a run takes, about, where that may be much: 0 for most samplers.

        Parameters
        ----------
        n_units, n_synthetic : int
            How many protected units there are, and units of a synthetic table.
        """
        return 0

    def dry_run(self) -> None:
        """Do as much of the prelude as can be done on synthetic rows, before the charge: nothing, for most samplers.

        Raises
        ------
        InvalidArgument
            If the prelude would fail on any data.
        """

    @property
    def private(self) -> bool:
        """Whether the result of a run is private: its noise is not seeded and no exact counts are returned."""
        return self.insecure_seed is None and self.clip_diagnostics != "exact"

    @property
    def facts(self) -> dict[str, Any]:
        """What else a reader of the result has to know of the run: plain numbers and strings."""
        return {}

    @property
    @abstractmethod
    def clip_bounds(self) -> dict[str, float]:
        """The clip bounds, for the result's metadata."""

    # What a sampler uses ----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many unconstrained parameters the step moves."""
        return int(self._own.size)

    @property
    def labels(self) -> list[str]:
        """Names of the parameters that the step moves."""
        return [self.parameters.labels[place] for place in self._own]

    @property
    def moves_all(self) -> bool:
        """Whether no other step moves the point between two iterations of this one."""
        return self.size == self.parameters.size

    def in_order(self, setting: str, values: Any) -> Any:
        """Return numbers by variable's name as one vector, in the order of the parameters that the step moves.

        Anything but a mapping is returned as it is.

        Raises
        ------
        InvalidArgument
            If a name is unknown or left out, or numbers do not fit their variable.
        """
        if not isinstance(values, Mapping):
            return values
        return self.parameters.by_variable(setting, values, self._blocks)

    @property
    def prior(self) -> LogDensity:
        """The exact log-prior, as a function of the step's own parameters."""
        prior = self._authorised().prior
        return prior if self.moves_all else _PriorOfSome(prior, self._own, self._whole)

    @property
    def tuning(self) -> bool:
        """Whether the current iteration is one of tuning, whose draws are no draws from the posterior."""
        return self._iteration < self._tuning_iterations

    def release_gradient(self, theta: FloatArray, bound: float) -> Release:
        """Ask the curator for a noisy clipped gradient of the log-likelihood at `theta`."""
        multiplier = self._noise_multiplier("gradient")
        return self._record(self._open_curator().gradient(self._embedded(theta), bound, multiplier, self._only_own))

    def release_log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float) -> Release:
        """Ask the curator for a noisy clipped log-likelihood ratio."""
        multiplier = self._noise_multiplier("log_ratio")
        old, new = self._embedded(theta), self._embedded(theta_new)
        return self._record(self._open_curator().log_ratio(old, new, bound, multiplier))

    def release_clip_counts(self) -> None:
        """Ask the curator how many units were clipped since the last time; at the end of each window of iterations."""
        multiplier = self._authorised().noise_multipliers.get("clip_count", math.inf)
        self._record(self._open_curator().clip_counts(multiplier))

    @property
    def synthetic_tables(self) -> SyntheticTables:
        """Where synthetic tables come from, for steps that expand."""
        tables = self._authorised().synthetic_tables
        if tables is None:
            raise NoPlan("This step was authorised without synthetic tables.")
        return tables

    @property
    def n_units(self) -> int:
        """The number of units, which is public under substitution."""
        n_units = self._authorised().n_units
        if n_units is None:
            raise NoPlan("The number of units is protected under this relation.")
        return n_units

    @property
    def _only_own(self) -> tuple[bool, ...] | None:
        return None if self.moves_all else self._blocks

    def _embedded(self, theta: FloatArray) -> FloatArray:
        return theta if self.moves_all else embedded(theta, self._own, self._whole)

    def _noise_multiplier(self, kind: str) -> float:
        return self._authorised().noise_multipliers[kind]

    # The plan ---------------------------------------------------------------------------------------------

    def release_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return everything that one chain releases, and what is released once before all chains.

        See `pymc_dp.budget.PlannableStep`.
        """
        per_chain = list(self.sampler_requests(tune, draws))
        requests = [*self.prelude_requests(), *per_chain]
        if self.clip_diagnostics != "private" or self.plans_clip_counts:
            return requests
        rest = 1.0 - CLIP_COUNT_SHARE
        scaled = [
            replace(each, share=each.share * rest) if isinstance(each, ReleaseRequest) else each for each in requests
        ]
        windows = len(window_ends(tune, draws))
        counted = len({request.kind for request in per_chain}) + 1  # the number of units may be one of them
        return [*scaled, ReleaseRequest("clip_count", windows, CLIP_COUNT_SHARE, counted)]

    def authorise(self, authorisation: Authorisation) -> None:
        """Let the step run; the seam calls this once the plan has been charged.

        What is released once, before the chains start, is released here.
        """
        self._authorisation = authorisation
        try:
            if self.prelude_requests():
                self._released_by(self.prelude, authorisation)
        finally:
            self.released_once = ReleasesOfIteration(tuple(self._released))
            self._released = []

    def dry_run_with(self, authorisation: Authorisation) -> None:
        """Make a dry run with curators of synthetic rows; the seam calls this before the plan is charged.

        Raises
        ------
        InvalidArgument
            If the prelude would fail on any data.
        """
        if not self.prelude_requests():
            return
        self._authorisation = authorisation
        try:
            self._released_by(self.dry_run, authorisation)
        finally:
            self._released = []
            self.withdraw()

    def _released_by(self, act: Callable[[], None], authorisation: Authorisation) -> None:
        """Do what is done once, before the chains start, with the curator of that."""
        self._released = []
        self._curator = authorisation.curators.open_once()
        try:
            act()
        finally:
            self._curator = None

    def withdraw(self) -> None:
        """Take the authorisation back; the seam calls this when the run ends, however it ends."""
        self._authorisation = None
        self._curator = None
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
        self._curator = self._authorised().curators.open(key)
        self._iteration = 0
        self._tuning_iterations = tune
        self._window_ends = frozenset(window_ends(tune, draws))
        self._accepted = 0
        self._released = []
        self.start()

    def step(self, point: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """Make one iteration."""
        authorised = self._authorised()
        self._whole = self.parameters.to_theta(point)
        transition = self.transition(self._whole[self._own])
        stats = transition.stats
        self._accepted += bool(stats["accepted"])
        self._iteration += 1
        if self.clip_diagnostics is not None and self._iteration in self._window_ends:
            self.release_clip_counts()
        stats["epsilon_charged"] = authorised.epsilon_charged
        stats["mean_accepted"] = self._accepted / self._iteration
        stats["releases"] = ReleasesOfIteration(tuple(self._released))
        self._released = []
        whole = embedded(transition.theta, self._own, self._whole)
        return {**point, **self.parameters.to_point(whole)}, [stats]

    def _record(self, release: Release) -> Release:
        self._released.append(release)
        return release

    def _authorised(self) -> Authorisation:
        if self._authorisation is None:
            raise NoPlan(
                f"{type(self).__name__} was started without a plan that has been charged to its budget. Call "
                "pm.sample after importing pymc_dp, or pymc_dp.sample: they plan the whole run first. (A "
                "`sample` imported from pymc before pymc_dp does not.)"
            )
        return self._authorisation

    def _open_curator(self) -> Curator:
        if self._curator is None:
            raise NoPlan("No chain has been started: the step is driven by pm.sample.")
        return self._curator

    def _progressbar_config(self, n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        columns = [
            TextColumn("{task.fields[mean_accepted]:0.2f}", table_column=Column("Acceptance", ratio=1)),
            TextColumn("{task.fields[noise_std]:0.2f}", table_column=Column("Test noise", ratio=1)),
            TextColumn("{task.fields[epsilon_charged]:0.3g}", table_column=Column("Epsilon spent", ratio=1)),
        ]
        return columns, {name: [0.0] * n_chains for name in ("mean_accepted", "noise_std", "epsilon_charged")}

    def _make_progressbar_update_functions(self) -> tuple[Callable[[dict[str, Any]], dict[str, Any]]]:
        def shown(stats: dict[str, Any]) -> dict[str, Any]:
            return {name: stats[name] for name in ("mean_accepted", "noise_std", "epsilon_charged")}

        return (shown,)

    # Copies -----------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy without the constructor's arguments: a worker needs neither the budget nor the model."""
        state = {name: value for name, value in self.__dict__.items() if not name.endswith("__newargs")}
        state |= {
            "synthetic": None,
            "budget": None,
            "_curator": None,
            "unit_index": None,
            "_released": [],
            "released_once": None,
        }
        return _blank_step, (type(self),), state

    def __copy__(self) -> NoReturn:
        raise TypeError("A DP step cannot be copied; make a new one with the same budget.")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()


def _blank_step(step_class: type[DPStep]) -> DPStep:
    """Make a step without its constructor, which needs a model context."""
    return object.__new__(step_class)


def window_ends(tune: int, draws: int) -> list[int]:
    """Return after which iterations clip counts are released: once for tuning, then for quarters of the draws."""
    windows = min(_CLIP_COUNT_WINDOWS, draws)
    ends = [tune + math.ceil(draws * (i + 1) / windows) for i in range(windows)]
    return [tune, *ends] if tune else ends
