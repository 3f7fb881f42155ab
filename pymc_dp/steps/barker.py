r"""Differentially private Barker test on batches: only the decision is released.

Heikkilä, Jälkö, Dikmen and Honkela (2019), *Differentially private Markov chain Monte Carlo*.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`b, n, T, n_0`      `batch_size`, number of units, `tempering`, n T
:math:`r_i`               log-ratio of a unit, clipped at :math:`\sqrt b / n_0`
:math:`\lambda`           :math:`(n_0 / b) \sum_{i \in B} r_i + \ln(\text{prior and proposal ratios})`
:math:`\sigma_b^2`        variance of that sum, with the normaliser 1 / b; at most 1
========================  ==========================================================

Accept iff :math:`\lambda + N(0, 2 - \sigma_b^2) + V_\text{corr} > 0`. The curator computes the probability of that and
draws the decision. (A thesis prints n / b for the scale and 2 for the standard deviation: both are mistaken.)

The number of units that the prescribed bound clips is released separately, a few times in a run: a Gaussian release, on
all units, of the mean count over the latest moves. A count with each decision would be a second release on its batch.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from pymc_dp import _validate
from pymc_dp.accounting import BarkerReleases, GaussianReleases, noise_beside
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.barker_correction import clip_bound
from pymc_dp.release.interface import Expanded
from pymc_dp.release.queries import DecisionClipCounts
from pymc_dp.steps.arguments import SharedArguments
from pymc_dp.steps.base import CLIP_COUNT_SHARE, window_ends
from pymc_dp.steps.prelude.learning import PreludeArgument
from pymc_dp.steps.proposals import Proposal, RandomWalkStep, scale_of_moves
from pymc_dp.steps.transition import Transition, untested

#: The accounting covers Rényi orders from 3 to a fifth of the batch size.
_SMALLEST_BATCH = 16
#: The number of latest moves in a mean count of clipped units: each requires a pass over all rows.
_COUNTED_MOVES = 8
#: Default number of decisions in a chain.
_AFFORDABLE_DRAWS = 750
#: The smallest default batch: the accounting of smaller ones is limited to orders that cost more.
_AFFORDABLE_BATCH = 64
#: A Barker test accepts at most half as often as that of Metropolis and Hastings.
_PART_OF_METROPOLIS = 0.6


class DPBarker(RandomWalkStep):
    """Differentially private Barker test on batches without replacement.

    Parameters
    ----------
    budget : PrivacyBudget
        The budget of the run; its relation has to be ``"substitute"``.
    batch_size : int, optional
        Units in a batch, at least 16. Default, with a prelude: 64, or one unit in 500 of large tables. The noise is
        part of the test, so the batch size and the number of draws determine the cost.
    tempering : float
        T = n0 / n, the power of the likelihood in the target, above 0 and at most 1. The clip bound of a unit's
        log-ratio is √b / n0: without tempering it clips nearly all log-ratios of large tables.
    proposal, proposal_scale
        As in `DPPenalty`. Short moves are clipped less.
    n_units : int, optional
        The public number of units. `sample` determines it, and so do plans inside ``with model:``.
    prelude
        See `pymc_dp.steps.learning_step.LearningStep`.
    vars, budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Notes
    -----
    *Privacy.* A bit per iteration, and with private `clip_diagnostics` a few noisy counts of clipped units for 1 %
    more: accounted for together, by Rényi bounds. No noise is drawn in floating point: see
    `pymc_dp.release.barker_correction`.

    *Exactness.* Approximate: by the normal approximation of a batch's error, by clipping, which is not small, and by
    the correction, which changes acceptance probabilities by up to 6e-4. For good proposals a Barker test accepts at
    most half as often as Metropolis-Hastings.

    References
    ----------
    Heikkilä, Jälkö, Dikmen and Honkela (2019), Differentially private Markov chain Monte Carlo, NeurIPS.
    """

    name = "dp_barker"
    plans_clip_counts = True
    in_chains = "decisions"

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        proposal: str | Proposal = "gaussian",
        proposal_scale: ArrayLike | Mapping[str, ArrayLike] | None = None,
        prelude: PreludeArgument = "auto",
        batch_size: int | None = None,
        tempering: float = 1.0,
        n_units: int | None = None,
        **shared: Unpack[SharedArguments],
    ) -> None:
        super().__init__(vars, **shared)
        needed = {"proposal_scale": scale_of_moves(proposal, proposal_scale)}
        self.learn(prelude, needed, shared.get("model"))
        self.temper(tempering)
        self.use_batches(batch_size, n_units)
        if self.batch_size is not None:
            _validate.whole("batch_size", self.batch_size, at_least=_SMALLEST_BATCH)
        self.move_by(proposal, proposal_scale, part_of_aim=_PART_OF_METROPOLIS)
        self.start()

    def default_batch_size(self, n_units: int) -> int:
        """Return a batch size with a low cost that suffices for the orders of the accounting."""
        return min(n_units, max(_AFFORDABLE_BATCH, n_units // 500))

    @property
    def clip_bounds(self) -> dict[str, float]:
        """The clip bound that the test prescribes, for the result's metadata."""
        if self.batches is None:
            return {}
        batches = self.known_batches()
        return super().clip_bounds | {"log_ratio": clip_bound(batches.batch_size, self.tempering * batches.n_units)}

    def sampler_requests(self, tune: int, draws: int) -> list[BarkerReleases | GaussianReleases]:
        """Return the releases of one chain: a decision in every iteration, and counts of clipped units."""
        decisions = self.known_batches().decisions("decision", tune + draws)
        if self.clip_diagnostics != "private":
            return [decisions]
        windows = len(window_ends(tune, draws))
        return [decisions, noise_beside("clip_count", windows, CLIP_COUNT_SHARE, [decisions])]

    def start(self) -> None:
        """Begin a new walk."""
        super().start()
        #: The latest moves since the last count of clipped units.
        self._moves: deque[tuple[FloatArray, FloatArray] | Expanded] = deque(maxlen=_COUNTED_MOVES)

    def suitable_draws(self) -> int:
        """Return an affordable number: every decision costs."""
        return _AFFORDABLE_DRAWS

    def transition(self, theta: FloatArray) -> Transition:
        """Propose a move; the curator decides on it."""
        target = self.target
        theta_new, log_proposal_ratio = self.proposal.propose(theta)
        log_free_ratio = target.free(theta_new) - target.free(theta) + log_proposal_ratio
        stats = untested(accepted=False)
        if np.isfinite(log_free_ratio) and np.any(theta_new != theta):
            decision, move = target.decision(theta, theta_new, float(log_free_ratio), self.known_batches())
            self._moves.append(move)
            stats |= {"accepted": bool(decision.value[0]), "acceptance_rate": np.nan}
        self.proposal.decided(accepted=stats["accepted"])
        return Transition(theta_new if stats["accepted"] else theta, stats)

    def release_clip_counts(self) -> None:
        """Release the mean number of all units that the latest moves clipped, or exact counts of batches."""
        if self.clip_diagnostics != "private":
            super().release_clip_counts()
        elif self._moves:
            self.chain.release(DecisionClipCounts(tuple(self._moves), self.known_batches(), self.tempering))
            self._moves.clear()
