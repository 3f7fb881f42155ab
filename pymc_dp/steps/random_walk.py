"""What samplers share that propose moves without gradients: how long the moves are, by settings or by a pilot."""

from collections.abc import Mapping
from copy import copy
from typing import Any

from numpy.typing import ArrayLike

from pymc_dp.steps.learning_step import LearningStep
from pymc_dp.steps.proposals import Proposal, proposal_of


class RandomWalk(LearningStep):
    """A step that moves by a random-walk proposal.

    Attributes
    ----------
    proposal : Proposal
        How the chain moves.
    """

    settled = ("proposal",)
    proposal: Proposal

    def walk_by(
        self,
        proposal: str | Proposal,
        proposal_scale: ArrayLike | Mapping[str, ArrayLike] | None,
        *,
        part_of_acceptance: float = 1.0,
    ) -> None:
        """Take the user's proposal; where its scale was left out, a pilot finds it on standardised points.

        Parameters
        ----------
        proposal, proposal_scale
            As the user passed them.
        part_of_acceptance : float
            How often the sampler's test accepts, relative to that of Metropolis and Hastings.

        Raises
        ------
        InvalidArgument
            If the scale is missing and there is no prelude, or the proposal does not fit.
        """
        self._standardised = scale_of_moves(proposal, proposal_scale) is None
        otherwise = None if self.learning is None else 1.0
        self.proposal = proposal_of(proposal, self.in_order("proposal_scale", proposal_scale), otherwise=otherwise)
        if self._standardised:
            self.aimed_acceptance = part_of_acceptance * self.proposal.aimed_acceptance

    def stretch(self, factor: float) -> None:
        """Make moves as long as the proposal makes them on a standard normal, times a factor."""
        self.proposal = copy(self.proposal)
        self.proposal.stretch = factor * self.proposal.natural_length(self.size)
        self.proposal.start(self.rng, self.size)


def scale_of_moves(proposal: str | Proposal, proposal_scale: Any) -> Any:
    """Return what says how long moves are: an object brings its own scale; None where nothing does."""
    return proposal_scale if isinstance(proposal, str) else proposal
