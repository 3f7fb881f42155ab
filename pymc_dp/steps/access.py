"""A sampler's access to a run: it requests releases and has no other access to the data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import NoPlan
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import Release, ReleasesOfIteration
from pymc_dp.release.queries import GradientSum, LogRatioSum, UnitCount
from pymc_dp.release.query import Query


class LogDensity(Protocol):
    """A data-free log-density and its gradient."""

    def log_density(self, theta: FloatArray) -> float:
        """Return the log-density at `theta`."""

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the log-density."""


class PriorDensity(LogDensity, Protocol):
    """The prior."""

    def hessian(self, theta: FloatArray) -> FloatArray:
        """Return the second derivatives of the log-density."""


class Curator(Protocol):
    """The holder of the rows, who answers queries with clipped sums and noise, and meters each answer."""

    def release(self, query: Query, noise_multiplier: float = 0.0) -> Release:
        """Answer a query with noise: its standard deviation, divided by the exact sum's sensitivity, is the multiplier.

        Raises
        ------
        BudgetExceeded
            If the release, or its noise multiplier, was not paid for.
        PrivacyError
            If the query has no known sensitivity.
        """

    def tallied(self) -> Release:
        """Return free clip counts: those released with batches, or exact ones of a run without privacy."""


class OpensCurators(Protocol):
    """A factory of curators: one for each chain, and one for releases before the chains start."""

    def open(self, key: tuple[int, ...]) -> Curator:
        """Return the curator of another chain."""

    def open_once(self) -> Curator:
        """Return the curator of releases before the chains start."""


class PublicUnits(Protocol):
    """The units of a synthetic table: all functions of them are free of privacy cost."""

    def log_likelihoods(self, theta: FloatArray) -> FloatArray:
        """Return the log-likelihood of every unit, shape (units,)."""

    def scores(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of every unit's log-likelihood, shape (units, parameters)."""

    def curvatures(self, theta: FloatArray) -> FloatArray:
        """Return each unit's negative second derivatives, shape (units, parameters, parameters)."""


class SyntheticTables(Protocol):
    """A source of synthetic tables: the user's, or rows simulated from the model."""

    def at(self, theta: FloatArray) -> PublicUnits:
        """Return a synthetic table."""

    def prior_draws(self) -> list[FloatArray]:
        """Return parameters drawn from the prior."""


@dataclass(frozen=True)
class Authorisation:
    """The rights of a charged plan: `dp.sample` hands them to a step before sampling and takes them back after."""

    curators: OpensCurators
    #: Exact and free.
    prior: PriorDensity
    #: By kind of release, as paid for; schedules hold the multipliers of all releases of a kind, in the order of the
    #: step's requests.
    noise_multipliers: Mapping[str, float]
    #: The budget's spent epsilon, including the current run.
    epsilon_charged: float
    #: For steps that make a dry run.
    synthetic_tables: SyntheticTables | None = None
    #: The number of units, where it is public.
    n_units: int | None = None
    noise_schedules: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    #: Whether the model determines a unit's possible responses: for `CentredScore` and `ExpectedCurvature`.
    knows_responses: bool = False
    #: The entries that a unit's curvature can have by the model's graph, shape (parameters, parameters); None: all.
    #: Members of a hierarchy share no row.
    structure: NDArray[np.bool_] | None = None
    #: Directions in which every unit's log-likelihood is constant, shape (parameters, directions); None for none.
    unidentified: FloatArray | None = None


class OwnParameters:
    """The entries of the vector of all parameters that one step moves; other steps may move the others."""

    def __init__(self, moves: tuple[bool, ...], slices: tuple[slice, ...]) -> None:
        #: Whether the step moves each value variable of the model; and whether it moves all.
        self.moves, self.all = moves, all(moves)
        #: The chain's current point, own and other entries.
        self.whole: FloatArray = np.zeros(slices[-1].stop if slices else 0)
        #: The positions of the own entries in the current point.
        self.places: NDArray[np.intp] = np.arange(self.whole.size)
        if not self.all:
            own = [self.places[entries] for entries, mine in zip(slices, moves, strict=True) if mine]
            self.places = np.concatenate(own)

    def embedded(self, theta: FloatArray) -> FloatArray:
        """Return the current point of the chain with the own entries replaced by `theta`."""
        if self.all:
            return theta
        changed = self.whole.copy()
        changed[self.places] = theta
        return changed


class _PriorOfSome:
    """The prior as a function of one step's own parameters, the others fixed."""

    def __init__(self, prior: PriorDensity, own: OwnParameters) -> None:
        self._prior, self._own = prior, own

    def log_density(self, theta: FloatArray) -> float:
        return self._prior.log_density(self._own.embedded(theta))

    def gradient(self, theta: FloatArray) -> FloatArray:
        return self._prior.gradient(self._own.embedded(theta))[self._own.places]

    def hessian(self, theta: FloatArray) -> FloatArray:
        places = np.ix_(self._own.places, self._own.places)
        return self._prior.hessian(self._own.embedded(theta))[places]


class ChainAccess:
    """The access of a sampler to a run, during one chain or before the chains start.

    Points are vectors of the step's own parameters, unless a query is made by hand: then `whole` makes them.

    Parameters
    ----------
    authorisation : Authorisation
        The rights of the charged plan.
    curator : Curator
        The chain's curator.
    own : OwnParameters
        Which parameters the step moves.
    noted : callable, optional
        Called after each release, without arguments.

    Attributes
    ----------
    prior : PriorDensity
        The exact log-prior, as a function of the step's own parameters.
    epsilon_charged, knows_responses, structure, unidentified
        As of `Authorisation`. Public: the last three depend on the model alone.
    blocks : tuple of bool, or None
        Which value variables the step moves; None for all.
    """

    def __init__(
        self,
        authorisation: Authorisation,
        curator: Curator,
        own: OwnParameters,
        noted: Callable[[], None] | None = None,
    ) -> None:
        self._authorisation, self._own, self._noted = authorisation, own, noted
        self._curator: Curator | None = curator
        self._made: list[Release] = []
        self._n_units = authorisation.n_units
        self.prior: PriorDensity = authorisation.prior if own.all else _PriorOfSome(authorisation.prior, own)
        self.epsilon_charged = authorisation.epsilon_charged
        self.blocks = None if own.all else own.moves
        self.knows_responses, self.structure = authorisation.knows_responses, authorisation.structure
        self.unidentified = authorisation.unidentified

    def gradient(self, theta: FloatArray, clip_bound: float) -> Release:
        """Ask for the sum of log-likelihood gradients at `theta`, each unit's clipped to the norm `clip_bound`."""
        return self.release(GradientSum(self.whole(theta), clip_bound, self.blocks))

    def log_ratio(self, theta: FloatArray, theta_new: FloatArray, clip_bound: float) -> Release:
        """Ask for the log-likelihood ratio of two points, each unit's clipped to `clip_bound`."""
        return self.release(LogRatioSum(self.whole(theta), self.whole(theta_new), clip_bound))

    def release(self, query: Query, noise_multiplier: float | None = None) -> Release:
        """Ask the curator, and record the answer.

        Parameters
        ----------
        query : Query
            One of `pymc_dp.release.queries`.
        noise_multiplier : float, optional
            Default: the multiplier that was paid for, if the kind has a single one.

        Raises
        ------
        BudgetExceeded
            If the release was not paid for.
        NoPlan
            If the access belongs to a prelude, which has ended.
        """
        multiplier = self.multiplier(query.kind) if noise_multiplier is None else noise_multiplier
        if self._curator is None:
            raise NoPlan("What was to be released through this access has ended: use the one of the current chain.")
        made = self._curator.release(query, multiplier)
        self._made.append(made)
        if self._noted is not None:
            self._noted()
        return made

    def tallied_clip_counts(self) -> None:
        """Record the free clip counts of `Curator.tallied`."""
        if self._curator is not None:
            self._made.append(self._curator.tallied())

    def recorded(self) -> ReleasesOfIteration:
        """Return the releases since the last call."""
        made, self._made = tuple(self._made), []
        return ReleasesOfIteration(made)

    def end(self) -> None:
        """End all releases: a copy in a worker process must not spend the rest of a prelude's allowance."""
        self._curator = None

    def whole(self, theta: FloatArray) -> FloatArray:
        """Return a point of all parameters: own ones `theta`, others at the chain's point (in a prelude: 0)."""
        return self._own.embedded(theta)

    def multiplier(self, kind: str) -> float:
        """Return the noise multiplier that was paid for a kind of release; 0 for decisions, which have none."""
        return self._authorisation.noise_multipliers.get(kind, 0.0)

    def schedule(self, kind: str) -> tuple[float, ...]:
        """Return all noise multipliers of a kind, in the order of the step's requests."""
        return self._authorisation.noise_schedules[kind]

    def count_units(self) -> None:
        """Release the number of units if it is protected, and set `n_units` to it."""
        if self._authorisation.n_units is None:
            self._n_units = max(2, round(float(self.release(UnitCount()).value[0])))

    @property
    def n_units(self) -> int:
        """The number of units, which is public under substitution; else the noisy one.

        Raises
        ------
        NoPlan
            If the number is protected, and has not been released.
        """
        if self._n_units is None:
            raise NoPlan("The number of units is protected under this relation.")
        return self._n_units

    @property
    def synthetic_tables(self) -> SyntheticTables:
        """The source of synthetic tables; refused to steps without `expands`."""
        if self._authorisation.synthetic_tables is None:
            raise NoPlan("This step was authorised without synthetic tables.")
        return self._authorisation.synthetic_tables
