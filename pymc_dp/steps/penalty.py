r"""The differentially private penalty algorithm: random-walk Metropolis–Hastings on noisy log-ratios.

Yıldırım and Ermiş (2019), *Exact MCMC with differentially private moves*.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`\theta, \theta'`   `theta`, `theta_new`
:math:`c = b_l \|\theta' - \theta\|`  `clip_log_ratio` times the distance: a unit's clip bound
:math:`\sigma_l`          `noise_std` of the log-ratio
========================  ==========================================================

Released in one iteration: one log-ratio; none for a proposal that the prior rules out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from numpy.typing import ArrayLike

from pymc_dp.accounting import Releases
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import Release
from pymc_dp.steps.acceptance import penalty_test
from pymc_dp.steps.prelude.learning import PreludeArgument
from pymc_dp.steps.proposals import Proposal, RandomWalk, draws_of_random_walk, scale_of_moves
from pymc_dp.steps.sampler import SHARED_STATS, StatsOfSteps, Transition
from pymc_dp.steps.shared import SharedArguments
from pymc_dp.steps.target import Target
from pymc_dp.steps.tuning import (
    given_noise,
    power_of_likelihood,
    setting,
    tempering_facts,
    with_given_noise,
)


class DPPenalty(RandomWalk):
    """Differentially private random-walk Metropolis–Hastings with the penalty test.

    Parameters
    ----------
    vars : sequence of variables, optional
        Free variables to update. Default: all.
    budget : PrivacyBudget
        What the run is charged to.
    clip_log_ratio : float
        Clip bound of one unit's log-likelihood ratio per unit of distance between the two points. Where it clips,
        the posterior is biased. A Lipschitz constant of one unit's log-likelihood never clips.
    proposal : {"gaussian", "one-component", "guided-walk", "one-component-guided-walk"} or Proposal
        How the chain moves. The guided walks keep their direction while they are accepted.
    proposal_scale : float, ndarray of shape (parameters,) or (parameters, parameters), or dict
        Standard deviations of a move, or its covariance matrix, in the order of ``model.value_vars``; or standard
        deviations by name of free variable, on the unconstrained scale: ``{"beta": [0.1, 0.2], "sigma": 0.1}``.
    noise_multipliers : dict, optional
        Noise of log-ratios, as in ``{"log_ratio": 2.0}``: its standard deviation divided by the sensitivity, the
        paper's τ. A run costs what its noise costs then, and `PrivacyBudget.max_draws` says how many draws the budget
        affords. Default: the budget chooses the noise.
    tempering : float
        T, the power of the likelihood in the target, above 0 and at most 1. The noise of a test is T times that of the
        release, and moves may be 1 / √T times as long; the draws are those of a wider posterior, which results and
        reports are marked with.
    prelude : Prelude, "auto" or None
        See `pymc_dp.steps.learning_step.LearningStep`.
    budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range, or belongs to `DPMinibatchPenalty`, which tests on batches.

    Notes
    -----
    *Privacy.* Each iteration releases one log-ratio with Gaussian noise in proportion to the distance proposed, which
    does not depend on the data but through earlier releases.

    *Exactness.* The chain's stationary distribution is the posterior, exactly, as long as no log-ratio is clipped;
    the noise only lowers acceptance. With `tempering` it is the tempered posterior: T times a log-ratio with noise σ
    is one of the tempered likelihood with noise Tσ, known as well (docs: "Tempering").

    References
    ----------
    Yıldırım and Ermiş (2019), Exact MCMC with differentially private moves, Statistics and Computing 29.
    Gustafson (1998), A guided walk Metropolis algorithm, Statistics and Computing 8.
    """

    name = "dp_penalty"
    stats_dtypes_shapes: StatsOfSteps = SHARED_STATS

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        clip_log_ratio: float | None = None,
        proposal: str | Proposal = "gaussian",
        proposal_scale: ArrayLike | Mapping[str, ArrayLike] | None = None,
        noise_multipliers: Mapping[str, float] | None = None,
        tempering: float = 1.0,
        prelude: PreludeArgument = "auto",
        **shared: Unpack[SharedArguments],
    ) -> None:
        of_batches = [name for name in ("batch_size", "n_units") if name in shared]
        if of_batches:
            raise InvalidArgument(
                f"DPPenalty tests on all units and has no {', '.join(of_batches)}. Use DPMinibatchPenalty, the same "
                "test on batches."
            )
        super().__init__(vars, **shared)
        needed = {"clip_log_ratio": clip_log_ratio, "proposal_scale": scale_of_moves(proposal, proposal_scale)}
        learns = self.learn(prelude, needed, shared.get("model"))
        self.clip_log_ratio = setting(
            "clip_log_ratio",
            clip_log_ratio,
            "how fast one unit's log-likelihood can change, per unit of distance",
            learns=learns,
        )
        self.walk_by(proposal, proposal_scale)
        self.noise_multipliers = given_noise(noise_multipliers, (self._kind,))
        self.tempering = power_of_likelihood(tempering, self.model_tempering)
        self.start()

    @property
    def clip_bounds(self) -> dict[str, float]:
        """The clip bounds, for the result's metadata."""
        return {"log_ratio": self.clip_log_ratio} if self.learning is None else self.learned_bounds

    @property
    def facts(self) -> dict[str, Any]:
        """What else a reader of the result has to know: a likelihood to a power gives another, wider posterior."""
        return {**super().facts, **tempering_facts(self.tempering, None)}

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return what one chain releases: a log-ratio in every iteration."""
        return with_given_noise([ReleaseRequest(self._kind, tune + draws, 1.0, 1)], self.noise_multipliers)

    @property
    def _kind(self) -> str:
        return "residual" if self.control_variates else "log_ratio"

    def plain_target(self) -> Target:
        """Return prior times likelihood, with the user's clip bound."""
        return Target(self.chain, clip_log_ratio=self.clip_log_ratio, tempering=self.tempering)

    def draws_worth_taking(self, size: int) -> int:
        """Return more draws for more parameters: a random walk is slow."""
        return draws_of_random_walk(size)

    def start(self) -> None:
        """Begin a new walk."""
        self.proposal.start(self.rng, self.size)

    def transition(self, theta: FloatArray) -> Transition:
        """Propose a move and accept it by the penalty test."""
        target, log_uniform = self.target, -self.rng.exponential()
        theta_new, log_proposal_ratio = self.proposal.propose(theta)
        stats = penalty_test(
            lambda bound: self.release_log_ratio(theta, theta_new, bound),
            target.bound(theta, theta_new),
            target.free(theta_new) - target.free(theta) + log_proposal_ratio,
            log_uniform,
        )
        self.proposal.decided(accepted=stats["accepted"])
        return Transition(theta_new if stats["accepted"] else theta, stats)

    def release_log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float) -> Release:
        """Ask the curator for the noisy log-ratio of all units."""
        return self.target.log_ratio(theta, theta_new, bound)
