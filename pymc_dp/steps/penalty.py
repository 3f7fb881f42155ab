r"""The differentially private penalty algorithm: random-walk Metropolis–Hastings on noisy log-ratios.

Yıldırım and Ermiş (2019), *Exact MCMC with differentially private moves*; on batches, for tempered posteriors of large
tables, Räisä's thesis (*Differentially private Metropolis-Hastings algorithms*, section 3.4): the penalty corrects for
the error of drawing a batch as it does for privacy noise.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`\theta, \theta'`   `theta`, `theta_new`
:math:`c = b_l \|\theta' - \theta\|`  `clip_log_ratio` times the distance: a unit's clip bound
:math:`\sigma_l`          `noise_std` of the log-ratio
:math:`b, n, T`           `batch_size`, number of units, `tempering`
:math:`R_B`               :math:`(n T / b) \sum_{i \in B} r_i`, log-ratios of the units of a batch, clipped alike
:math:`\sigma_B^2`        estimated variance of :math:`R_B`
:math:`\sigma`            `noise_std` of the released :math:`R_B - \sigma_B^2 / 2`
========================  ==========================================================

Released in one iteration: one log-ratio; none for a proposal that the prior rules out. On batches accept iff
:math:`\ln u < \widehat{R_B - \sigma_B^2 / 2} + \ln(\text{prior and proposal ratios}) - \sigma^2 / 2`: that one noisy
number, of a fresh batch without replacement, is released.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from numpy.typing import ArrayLike

from pymc_dp.accounting import Releases
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import Release
from pymc_dp.steps.arguments import SharedArguments
from pymc_dp.steps.prelude.learning import PreludeArgument
from pymc_dp.steps.proposals import Proposal, RandomWalkStep, scale_of_moves
from pymc_dp.steps.transition import Transition
from pymc_dp.steps.tuning import given_noise, setting, with_given_noise


class DPPenalty(RandomWalkStep):
    """Differentially private random-walk Metropolis–Hastings with the penalty test.

    Parameters
    ----------
    proposal : {"gaussian", "one-component", "guided-walk", "one-component-guided-walk"} or Proposal
        How the chain moves. The guided walks keep their direction while they are accepted.
    proposal_scale : float, ndarray of shape (parameters,) or (parameters, parameters), or dict
        Standard deviations of a move, or its covariance matrix, in the order of ``model.value_vars``; or standard
        deviations by name of free variable, on the unconstrained scale: ``{"beta": [0.1, 0.2], "sigma": 0.1}``.
    noise_multipliers : dict, optional
        Noise of log-ratios, as in ``{"log_ratio": 2.0}``: its standard deviation divided by the sensitivity, the
        paper's τ. The noise then determines the cost of a run, and `PrivacyBudget.max_draws` gives the number of
        draws. Default: the budget determines the noise.
    clip_log_ratio, tempering, prelude
        See `pymc_dp.steps.learning_step.LearningStep`.
    vars, budget, budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range, or belongs to `DPMinibatchPenalty`, which tests on batches.

    Notes
    -----
    *Privacy.* Each iteration releases one log-ratio with Gaussian noise proportional to the proposed distance, which
    depends on the data through earlier releases only.

    *Exactness.* The chain's stationary distribution is the posterior, exactly, as long as no log-ratio is clipped;
    the noise only lowers acceptance. With `tempering` it is the tempered posterior: T times a log-ratio with noise σ
    is one of the tempered likelihood with noise Tσ, known as well (docs: "Tempering").

    References
    ----------
    Yıldırım and Ermiş (2019), Exact MCMC with differentially private moves, Statistics and Computing 29.
    Gustafson (1998), A guided walk Metropolis algorithm, Statistics and Computing 8.
    """

    name = "dp_penalty"

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
        self.clip_log_ratio = setting("clip_log_ratio", clip_log_ratio, learns=learns)
        self.move_by(proposal, proposal_scale)
        self.noise_multipliers = given_noise(noise_multipliers, (self.kind,))
        self.temper(tempering)
        self.start()

    @property
    def kind(self) -> str:
        """The kind of release in an iteration: the log-ratio, or its remainder beyond the expansion."""
        return "residual" if self.control_variates else "log_ratio"

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return the releases of one chain: a log-ratio in every iteration."""
        return with_given_noise([ReleaseRequest(self.kind, tune + draws, 1.0, 1)], self.noise_multipliers)

    def suitable_draws(self) -> int:
        """Return a number of draws with an effective sample size of about a hundred: a random walk is slow."""
        return min(1000 + 200 * self.size, 5000)

    def transition(self, theta: FloatArray) -> Transition:
        """Propose a move; accept or reject by the penalty test."""
        target, log_uniform = self.target, -self.rng.exponential()
        theta_new, log_proposal_ratio = self.proposal.propose(theta)
        log_free_ratio = target.free(theta_new) - target.free(theta) + log_proposal_ratio
        stats = self.test(theta, theta_new, log_free_ratio, log_uniform)
        self.proposal.decided(accepted=stats["accepted"])
        return Transition(theta_new if stats["accepted"] else theta, stats)


class DPMinibatchPenalty(DPPenalty):
    """The penalty test on batches without replacement.

    Parameters
    ----------
    budget : PrivacyBudget
        The budget of the run; its relation has to be ``"substitute"``.
    batch_size : int, optional
        Units in a batch. Default, with a prelude: a tenth of them.
    tempering : float
        T, the power of the likelihood in the target, above 0 and at most 1. Without tempering the noise grows with
        the number of units; with T = n0 / n it does not.
    n_units : int, optional
        The public number of units. `sample` determines it, and so do plans inside ``with model:``.
    proposal, proposal_scale, noise_multipliers
        See `pymc_dp.steps.penalty.DPPenalty`.
    clip_log_ratio, prelude
        See `pymc_dp.steps.learning_step.LearningStep`.
    vars, budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range.

    Notes
    -----
    *Privacy.* The estimated variance depends on the data, too: one number with both is released, with its
    sensitivity (`pymc_dp.release.queries.sensitivity`).

    *Exactness.* Approximate: the error of drawing a batch is assumed normal with the estimated variance, which
    ignores the sampling without replacement and is too large by a factor of 1 / (1 - b / n).

    References
    ----------
    Räisä (2021), Differentially private Metropolis-Hastings algorithms, University of Helsinki, section 3.4.
    """

    name = "dp_minibatch_penalty"
    plans_clip_counts = True

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        batch_size: int | None = None,
        n_units: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(vars, **settings)
        self.use_batches(batch_size, n_units)

    def default_batch_size(self, n_units: int) -> int:
        """Return a tenth of the units: remainders beyond an expansion vary little between batches."""
        return max(1, n_units // 10)

    @property
    def kind(self) -> str:
        """The kind of release in an iteration: the log-ratio of a batch, or its remainder."""
        return "log_ratio"

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return the releases of one chain: a log-ratio of a batch in every iteration."""
        coordinates = 2 if self.clip_diagnostics == "private" else 1
        request = ReleaseRequest("log_ratio", tune + draws, 1.0, coordinates, **vars(self.known_batches()))
        return with_given_noise([request], self.noise_multipliers)

    def noise_per_bound(self) -> float:
        """Return the noise standard deviation of a test, for each unit of a small clip bound."""
        return 2.0 * self.tempering * self.known_batches().scale * self.chain.multiplier("log_ratio")

    def release_log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float) -> Release:
        """Request the noisy variance-penalised log-ratio of a fresh batch."""
        return self.target.batch_log_ratio(
            theta, theta_new, bound, self.known_batches(), counted=self.clip_diagnostics == "private"
        )
