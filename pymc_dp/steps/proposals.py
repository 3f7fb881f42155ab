"""Random-walk proposals, subclasses of `Proposal`, and the steps that use them.

The noise of a test is proportional to the length of the move, as the clip bound of a log-ratio is:
moves of one component, and moves that keep their direction, cover more distance at the same noise.
"""

from abc import ABC, abstractmethod
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.learning_step import LearningStep


class Proposal(ABC):
    """A random-walk proposal, reversible on the joint state of the point and a stored direction.

    A subclass draws all its randomness from the `rng` of `start`.

    Parameters
    ----------
    scale : float, ndarray of shape (parameters,) or (parameters, parameters)
        Standard deviation of a move, one for each parameter or one for all, or its covariance matrix. A
        one-component proposal moves along one column of the matrix' Cholesky factor.

    Raises
    ------
    InvalidArgument
        If the scale is not positive, or a matrix is not positive definite.
    """

    name: ClassVar[str]

    #: The factor of the scale in the length of moves.
    stretch: float = 1.0
    #: The acceptance rate of good proposals: the aim of a pilot.
    aimed_acceptance: ClassVar[float] = 0.3
    #: The best length of a move on a standard normal of one dimension; and whether moves are of one component, else the
    #: length is divided by the root of the dimension.
    best_length: ClassVar[float] = 2.4
    one_component: ClassVar[bool] = False

    def __init__(self, scale: ArrayLike = 1.0) -> None:
        try:
            array: FloatArray = np.asarray(scale, dtype=np.float64)
        except (OverflowError, TypeError, ValueError):
            raise InvalidArgument("proposal_scale must be a number, a vector or a matrix.") from None
        if array.ndim > 2 or (array.ndim == 2 and array.shape[0] != array.shape[1]) or not np.isfinite(array).all():
            raise InvalidArgument("proposal_scale must be a finite number, vector or square matrix.")
        if array.ndim < 2:
            if not (array > 0.0).all():
                raise InvalidArgument("proposal_scale must be above zero.")
            self._factor = array
            return
        if not np.allclose(array, array.T):
            raise InvalidArgument("proposal_scale: the covariance matrix must be symmetric.")
        try:
            self._factor = np.linalg.cholesky(array)
        except np.linalg.LinAlgError:
            raise InvalidArgument("proposal_scale: the covariance matrix must be positive definite.") from None

    def stretched(self, factor: float, rng: np.random.Generator, size: int) -> Self:
        """Return the proposal with moves of its best length on `size` standard normals, times a factor."""
        changed = copy(self)
        changed.stretch = factor * (self.best_length if self.one_component else self.best_length / float(np.sqrt(size)))
        changed.start(rng, size)
        return changed

    def start(self, rng: np.random.Generator, size: int) -> None:
        """Begin a chain on `size` parameters, without memory of the last one; refuse a scale of another size."""
        factor = self.stretch * self._factor
        if factor.ndim and len(factor) != size:
            raise InvalidArgument(
                f"proposal_scale is for {len(factor)} parameters, but the step moves another number of them."
            )
        self.axes: FloatArray = factor if factor.ndim == 2 else np.diag(np.broadcast_to(factor, size))
        self.rng = rng
        self.size = size

    @abstractmethod
    def propose(self, theta: FloatArray) -> tuple[FloatArray, float]:
        """Return a proposal and the log of q(theta | proposal) / q(proposal | theta)."""

    def decided(self, *, accepted: bool) -> None:  # noqa: B027
        """Store whether the last proposal was accepted: a released decision, usable without restriction."""


class _Walk(Proposal):
    """Normal moves of all components, or of a random one; or half-normal moves in a kept direction.

    The state of a guided walk is the position and the direction, one sign for each component. The signs of the moved
    components are reversed on rejection, which makes the walk reversible on the joint state (Gustafson 1998).
    """

    guided: ClassVar[bool] = False

    def start(self, rng: np.random.Generator, size: int) -> None:
        """Begin a chain, with a random direction for a guided walk."""
        super().start(rng, size)
        if self.guided:
            self._direction: FloatArray = rng.choice(np.array([-1.0, 1.0]), size=size)

    def propose(self, theta: FloatArray) -> tuple[FloatArray, float]:
        """Return a proposal; the walk is symmetric."""
        self._moved = self.rng.integers(self.size) if self.one_component else slice(None)
        length: FloatArray | float = self.rng.standard_normal(None if self.one_component else self.size)
        if self.guided:
            length = self._direction[self._moved] * np.abs(length)
        move = self.axes[:, self._moved] * length if self.one_component else self.axes @ length
        return theta + move, 0.0

    def decided(self, *, accepted: bool) -> None:
        """Reverse the direction of the moved components after a rejection."""
        if self.guided and not accepted:
            self._direction[self._moved] *= -1.0


class GaussianProposal(_Walk):
    """A normal step from the current point."""

    name = "gaussian"


class OneComponentProposal(_Walk):
    """A normal step of one component, chosen at random."""

    name, one_component = "one-component", True
    aimed_acceptance = 0.44


class GuidedWalkProposal(_Walk):
    """Half-normal moves in a direction that is kept on acceptance and reversed on rejection."""

    name, guided = "guided-walk", True
    aimed_acceptance = 0.4


class OneComponentGuidedWalkProposal(_Walk):
    """A guided walk of one component at a time, with a direction for each component."""

    name, one_component, guided = "one-component-guided-walk", True, True
    aimed_acceptance, best_length = 0.5, 1.5


PROPOSALS: dict[str, type[Proposal]] = {
    kind.name: kind
    for kind in (GaussianProposal, OneComponentProposal, GuidedWalkProposal, OneComponentGuidedWalkProposal)
}


def scale_of_moves(proposal: Any, proposal_scale: Any) -> Any:
    """Return the setting of the length of moves, or a proposal object with its scale; None for neither."""
    return proposal_scale if isinstance(proposal, str) else proposal


class RandomWalkStep(LearningStep):
    """A step with a `Proposal`: a prelude learns the length of moves unless it is given."""

    settled = ("proposal",)

    def move_by(self, proposal: Any, proposal_scale: Any, *, part_of_aim: float = 1.0) -> None:
        """Set the proposal, by name or as an object; a pilot aims at this part of its acceptance rate."""
        scale = self.in_order("proposal_scale", proposal_scale)
        self._standardised = isinstance(proposal, str) and scale is None
        if isinstance(proposal, Proposal):
            if scale is not None:
                raise InvalidArgument("proposal_scale belongs to a proposal's name; an object brings its own.")
            self.proposal = proposal
            return
        kind = PROPOSALS[_validate.choice("proposal", proposal, tuple(PROPOSALS))]
        if scale is None and self.learning is None:
            raise InvalidArgument(
                "proposal_scale is required (about the posterior's standard deviations). Choose it from public "
                "knowledge or on simulated data of the same shape, never on the data to be protected."
            )
        self.proposal = kind(1.0 if scale is None else scale)
        if self._standardised:
            self.aimed_acceptance = part_of_aim * self.proposal.aimed_acceptance

    def start(self) -> None:
        """Begin a new walk."""
        self.proposal.start(self.rng, self.size)

    def stretch(self, factor: float) -> None:
        """Set the length of moves to a factor of the proposal's best length on a standard normal."""
        self.proposal = self.proposal.stretched(factor, self.rng, self.size)
