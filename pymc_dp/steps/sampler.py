"""What a sampler's author defines and uses: what one chain releases, and how the chain moves."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from pymc_dp.accounting import Releases
from pymc_dp.budget.plan import Plan, ReleaseRequest
from pymc_dp.budget.worth import Worth
from pymc_dp.model.parameters import FloatArray, ParameterVector
from pymc_dp.release.queries import ClipCounts
from pymc_dp.steps.access import ChainAccess, OwnParameters

ClipDiagnostics = Literal["private", "exact"] | None

#: Type and shape of every statistic by name, as PyMC wants them declared.
StatsOfSteps = Mapping[str, tuple[type, list[int] | None]]

#: Statistics of every Metropolis–Hastings sampler: a transition gives the first four, `DPStep` the others.
SHARED_STATS: StatsOfSteps = {
    "accepted": (bool, []),
    "acceptance_rate": (np.float64, []),
    "log_ratio": (np.float64, []),
    "noise_std": (np.float64, []),
    "epsilon_charged": (np.float64, []),
    "mean_accepted": (np.float64, []),
    "releases": (object, None),
}


@dataclass
class Transition:
    """Where one iteration went.

    Attributes
    ----------
    theta : ndarray, shape (own parameters,)
        The next state of the chain.
    stats : dict
        Sample statistics, published as they are: functions of releases, the prior and public randomness only. Each is
        declared in the class's `stats_dtypes_shapes`; the first four of `SHARED_STATS` are always given.
    """

    theta: FloatArray
    stats: dict[str, Any] = field(default_factory=dict)


class Sampler:
    """A sampler, apart from its life in `pm.sample`.

    Attributes
    ----------
    chain : ChainAccess
        All that a sampler holds of a run, while one goes on.
    rng : numpy.random.Generator
        Public randomness; never privacy noise.
    parameters : ParameterVector
        The model's unconstrained parameters as one vector.
    tuning : bool
        Whether the current iteration is one of tuning, whose draws are no draws from the posterior.
    """

    #: Whether the sampler expands log-likelihoods around a point and makes a dry run on synthetic tables.
    expands: bool = False
    #: Whether chains ask for releases: there are no clipped units to count where all is released before they start.
    asks_in_chains: bool = True
    #: Whether its synthetic tables are rows simulated from the model.
    simulates: bool = False
    #: Kept draws of each chain where the user leaves the number open.
    default_draws: int = 250
    #: Whether `sampler_requests` pays for counts of clipped units, too, as where they come with sums over batches.
    plans_clip_counts: ClassVar[bool] = False
    #: Type and shape of every statistic that a transition gives.
    stats_dtypes_shapes: StatsOfSteps
    rng: np.random.Generator
    parameters: ParameterVector
    clip_diagnostics: ClipDiagnostics
    _own: OwnParameters

    @property
    @abstractmethod
    def chain(self) -> ChainAccess:
        """What the sampler may ask, while a chain is run or a prelude."""

    @property
    @abstractmethod
    def tuning(self) -> bool:
        """Whether the current iteration is one of tuning."""

    # What a sampler defines -------------------------------------------------------------------------------

    @abstractmethod
    def sampler_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest | Releases]:
        """Return what one chain releases; Releases have noise that is given.

        Their shares add up to 1: `share_in_chains` of the run's cost is theirs.

        Counts of clipped units are added by `DPStep.release_requests`, but where `plans_clip_counts`.
        """

    @abstractmethod
    def start(self) -> None:
        """Forget the last chain."""

    @abstractmethod
    def transition(self, theta: FloatArray) -> Transition:
        """Return the next state of the chain, at `theta`: a vector of the step's own parameters."""

    def keep_starts(self, given: bool) -> None:
        """Take note whether the user said where chains start: of no concern to most samplers, which start there."""

    def begin(self) -> None:
        """Take note that a chain begins: nothing, for most samplers."""

    def moved(self, theta: FloatArray) -> Transition:
        """Make one iteration from the point `theta` that PyMC holds: a transition, for most samplers."""
        return self.transition(theta)

    @property
    @abstractmethod
    def clip_bounds(self) -> dict[str, float]:
        """The clip bounds, for the result's metadata."""

    @property
    def facts(self) -> dict[str, Any]:
        """What else a reader of the result has to know of the run: plain numbers and strings.

        Read after the prelude and published as attributes of the group ``privacy``, so they may hold what the prelude
        has released; under names that `pymc_dp.run.publish.metadata` does not use.
        """
        return {}

    @property
    def uses_n_units(self) -> bool:
        """Whether the step has a use for the number of units: where it says what to do with it."""
        return type(self).know_n_units is not Sampler.know_n_units

    def know_n_units(self, n_units: int) -> None:
        """Take note of the number of units, where it is public and the step has a use for it.

        Raises
        ------
        InvalidArgument
            If the step was told another number.
        """

    def expected_worth(self, plan: Plan) -> Worth | None:
        """Return what the posterior is expected to be worth: nothing is known of that, for most samplers."""
        return None

    def what_would_fit(self, noise_factor: float) -> str:
        """Say which settings would fit, if all noise that is given had to grow by a factor."""
        return f"What would fit: noise multipliers {noise_factor:.3g} times as large."

    def release_clip_counts(self) -> None:
        """Ask how many units were clipped since the last time; called at the end of each window of iterations."""
        if self.clip_diagnostics == "exact" or self.plans_clip_counts:
            self.chain.tallied_clip_counts()
        else:
            self.chain.release(ClipCounts())

    # What a sampler defines that learns something before its chains start -----------------------------------

    def forget(self) -> None:
        """Forget what the last run has learned: nothing, for most samplers. Called as every run begins."""

    @property
    def share_in_chains(self) -> float:
        """What part of the run's cost is for what chains release; what `prelude_requests` leaves over."""
        return 1.0

    def prelude_requests(self) -> Sequence[ReleaseRequest]:
        """Return what is released once before the chains start (with ``once=True``): nothing, for most samplers.

        Kinds are others than those of `sampler_requests`, and shares are parts of the run's cost.
        """
        return ()

    def prelude(self) -> None:
        """Make those releases through `chain`; what it keeps is copied to every chain: nothing but releases.

        It does not know where the chains start, and no noise in a release may make it raise: it was paid for.
        """

    def dry_run(self) -> None:
        """Do as much of the prelude as can be done on synthetic rows, before the charge: nothing, for most samplers.

        Raises
        ------
        InvalidArgument
            If the prelude would fail on any data.
        """

    def memory_needed(self, n_units: int | None, n_synthetic: int) -> int:
        """Return how many bytes a run takes, about, where that may be much: 0 for most samplers.

        Parameters
        ----------
        n_units : int or None
            How many units there are, where that is public.
        n_synthetic : int
            How many units a synthetic table has.
        """
        return 0

    # What a sampler uses ----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many unconstrained parameters the step moves."""
        return self._own.size

    @property
    def labels(self) -> list[str]:
        """Names of the parameters that the step moves."""
        return [self.parameters.labels[place] for place in self._own.places]

    @property
    def moves_all(self) -> bool:
        """Whether no other step moves the point between two iterations of this one."""
        return self._own.all

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
        return self.parameters.by_variable(setting, values, self._own.moves)
