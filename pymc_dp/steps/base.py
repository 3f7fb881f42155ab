"""What every DP step shares: its arguments, its life in `pm.sample`, and the records it leaves behind.

A sampler subclasses `DPStep`, says what one chain releases (`release_requests`), and moves the parameters
(`transition`), asking for releases through `release_gradient` and `release_log_ratio`. It sees no data, no noise
and no accounting.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import numpy as np
import pymc as pm
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
from pymc_dp.release.interface import Door, Release, ReleasesOfIteration

ClipDiagnostics = Literal["private", "exact"] | None

#: Part of a run's cost that pays for clip counts, and how many windows of kept draws they are released for.
_CLIP_COUNT_SHARE = 0.01
_CLIP_COUNT_WINDOWS = 4


class LogDensity(Protocol):
    """A data-free log-density and its gradient: the prior."""

    def log_density(self, theta: FloatArray) -> float:
        """Return the log-density at `theta`."""
        ...

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return its gradient."""
        ...


class OpensDoors(Protocol):
    """Opens the door of one chain after another."""

    def open(self, key: tuple[int, ...]) -> Door:
        """Return the door of one more chain."""
        ...


@dataclass(frozen=True)
class Authorisation:
    """What a charged plan lets a step use: the seam hands it over before sampling and takes it back after.

    Attributes
    ----------
    doors : OpensDoors
        A door for each planned chain.
    prior : LogDensity
        Exact and free.
    noise_multipliers : mapping of str to float
        What was paid for, by kind of release.
    epsilon_charged : float
        The budget's spent epsilon, this run included.
    noise_schedules : mapping of str to tuple of float
        All noise multipliers of a kind, in the order in which the step asked for them.
    """

    doors: OpensDoors
    prior: LogDensity
    noise_multipliers: Mapping[str, float]
    epsilon_charged: float
    noise_schedules: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass
class Transition:
    """Where one iteration went.

    Attributes
    ----------
    theta : ndarray, shape (parameters,)
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
    vars : sequence of variables, optional
        Free variables to update. A DP step has to update all of them. Default: all.
    budget : PrivacyBudget
        What the run is charged to.
    budget_share : float
        Part of what is left in the budget that a run of this step may spend, in (0, 1].
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
    #: Tuning iterations are paid for like any other, so none are made unless asked for.
    default_tune_steps = 0
    #: Whether counts of clipped units are released with sums over batches and ask for no releases of their own.
    counts_on_batches: ClassVar[bool] = False
    _state_class = DPStepState

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
        self.budget_share = _validate.positive("budget_share", budget_share)
        if self.budget_share > 1.0:
            raise InvalidArgument(f"budget_share must be at most 1, but is {budget_share:g}.")
        if unit is not None and not isinstance(unit, str):
            raise InvalidArgument(f"unit must be the name of a dim, but is a {type(unit).__name__}.")
        self.unit = unit
        self.unit_index = unit_index
        self.clip_diagnostics: ClipDiagnostics = _validate.choice(
            "clip_diagnostics", clip_diagnostics, ("private", "exact", None)
        )
        self.keep_releases = bool(keep_releases)
        if insecure_seed is not None:
            insecure_seed = _validate.whole("insecure_seed", insecure_seed, at_least=0)
        self.insecure_seed = insecure_seed
        model = pm.modelcontext(model)
        try:
            self.vars = model.value_vars if vars is None else get_value_vars_from_user_vars(vars, model)
        except ValueError:
            raise InvalidArgument("vars names a variable that is no free variable of the model.") from None
        self.parameters = ParameterVector(model)
        self.tune = False
        self._iteration = self._tuning_iterations = 0
        self.rng = np.random.default_rng()
        self._authorisation: Authorisation | None = None
        self._door: Door | None = None

    # What a sampler defines -------------------------------------------------------------------------------

    @abstractmethod
    def sampler_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest | Releases]:
        """Return what one chain releases, clip counts apart; shares add up to 1. Releases have noise that is given."""

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
        """Say which settings would fit, if all given noise has to grow by a factor."""
        return f"All noise multipliers would have to be {noise_factor:.3g} times as large."

    @property
    def facts(self) -> dict[str, Any]:
        """What else a reader of the result has to know of the run: plain numbers and strings."""
        return {}

    @property
    def private(self) -> bool:
        """Whether the result of a run is private: its noise is not seeded and no exact counts are returned."""
        return self.insecure_seed is None and self.clip_diagnostics != "exact"

    @property
    @abstractmethod
    def clip_bounds(self) -> dict[str, float]:
        """The clip bounds, for the result's metadata."""

    # What a sampler uses ----------------------------------------------------------------------------------

    @property
    def prior(self) -> LogDensity:
        """The exact log-prior."""
        return self._authorised().prior

    @property
    def tuning(self) -> bool:
        """Whether the current iteration is one of tuning, whose draws are no draws from the posterior."""
        return self._iteration < self._tuning_iterations

    def release_gradient(self, theta: FloatArray, bound: float) -> Release:
        """Ask the door for a noisy clipped gradient of the log-likelihood at `theta`."""
        multiplier = self._authorised().noise_multipliers["gradient"]
        return self._record(self._open_door().gradient(theta, bound, multiplier))

    def release_log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float) -> Release:
        """Ask the door for a noisy clipped log-likelihood ratio."""
        multiplier = self._authorised().noise_multipliers["log_ratio"]
        return self._record(self._open_door().log_ratio(theta, theta_new, bound, multiplier))

    # The plan ---------------------------------------------------------------------------------------------

    def release_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return everything that one chain releases. See `pymc_dp.budget.PlannableStep`."""
        requests = list(self.sampler_requests(tune, draws))
        if self.clip_diagnostics != "private" or self.counts_on_batches:
            return requests
        rest = 1.0 - _CLIP_COUNT_SHARE
        scaled = [replace(r, share=r.share * rest) if isinstance(r, ReleaseRequest) else r for r in requests]
        windows = len(window_ends(tune, draws))
        return [*scaled, ReleaseRequest("clip_count", windows, _CLIP_COUNT_SHARE, 3)]

    def authorise(self, authorisation: Authorisation) -> None:
        """Let the step run; the seam calls this once the plan has been charged."""
        self._authorisation = authorisation

    def withdraw(self) -> None:
        """Take the authorisation back; the seam calls this when the run ends, however it ends."""
        self._authorisation = None
        self._door = None
        self.start()

    # Life in pm.sample ------------------------------------------------------------------------------------

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Begin one chain: claim one of the doors that were paid for.

        Raises
        ------
        NoPlan
            If the run was not planned and charged, or all planned chains have started.
        """
        super().setup_chain(rng, tune, draws)
        key = tuple(getattr(self.rng.bit_generator.seed_seq, "spawn_key", ()))
        self._door = self._authorised().doors.open(key)
        self._iteration = 0
        self._tuning_iterations = tune
        self._window_ends = frozenset(window_ends(tune, draws))
        self._accepted = 0
        self._released: list[Release] = []
        self.start()

    def step(self, point: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """Make one iteration."""
        authorised = self._authorised()
        transition = self.transition(self.parameters.to_theta(point))
        stats = transition.stats
        self._accepted += bool(stats["accepted"])
        self._iteration += 1
        if self.clip_diagnostics is not None and self._iteration in self._window_ends:
            self._record(self._open_door().clip_counts(authorised.noise_multipliers.get("clip_count", math.inf)))
        stats["epsilon_charged"] = authorised.epsilon_charged
        stats["mean_accepted"] = self._accepted / self._iteration
        stats["releases"] = ReleasesOfIteration(tuple(self._released))
        self._released = []
        return self.parameters.to_point(transition.theta), [stats]

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

    def _open_door(self) -> Door:
        if self._door is None:
            raise NoPlan("No chain has been started: the step is driven by pm.sample.")
        return self._door

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
        state |= {"budget": None, "_door": None, "unit_index": None, "_released": []}
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
