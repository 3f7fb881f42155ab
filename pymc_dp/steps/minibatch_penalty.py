r"""The penalty test on batches, for tempered posteriors of large tables.

Räisä's thesis (*Differentially private Metropolis-Hastings algorithms*, section 3.4): the penalty method corrects for
the error of drawing a batch as it does for privacy noise.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`b, n, T`           `batch_size`, number of units, `tempering`
:math:`R_B`               :math:`(n T / b) \sum_{i \in B} r_i`, log-ratios clipped as in `DPPenalty`
:math:`\sigma_B^2`        estimated variance of :math:`R_B`
:math:`\sigma`            `noise_std` of the released :math:`R_B - \sigma_B^2 / 2`
========================  ==========================================================

Accept iff :math:`\ln u < \widehat{R_B - \sigma_B^2 / 2} + \ln(\text{prior and proposal ratios}) - \sigma^2 / 2`.
Released in one iteration: that one noisy number, of a fresh batch without replacement.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from numpy.typing import ArrayLike

from pymc_dp.accounting import Releases
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.model.parameters import FloatArray
from pymc_dp.release.interface import Release
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.prelude.learning import PreludeArgument
from pymc_dp.steps.proposals import Proposal
from pymc_dp.steps.shared import TemperedArguments
from pymc_dp.steps.tempered import TemperedBatches
from pymc_dp.steps.tuning import with_given_noise


class DPMinibatchPenalty(TemperedBatches, DPPenalty):
    """The penalty test on batches without replacement.

    Parameters
    ----------
    vars : sequence of variables, optional
        Free variables to update. Default: all.
    budget : PrivacyBudget
        What the run is charged to; its relation has to be ``"substitute"``.
    clip_log_ratio, proposal, proposal_scale, noise_multipliers, prelude
        As in `DPPenalty`.
    batch_size : int, optional
        Units in a batch. Default, with a prelude: a tenth of them.
    tempering : float
        T, the power of the likelihood in the target, above 0 and at most 1. Without tempering the noise grows with
        the number of units; with T = n0 / n it does not.
    n_units : int, optional
        The number of units: public. `sample` finds it by itself, and so do plans inside ``with model:``.
    budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range.

    Notes
    -----
    *Privacy.* The estimated variance is data, too: it is released as a part of one number, with the sensitivity of
    that (`pymc_dp.release.queries.sensitivity`).

    *Exactness.* Approximate: the error of drawing a batch is taken to be normal with the estimated variance, which
    ignores that batches are drawn without replacement and so is too large by 1 / (1 - b / n).

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
        clip_log_ratio: float | None = None,
        proposal: str | Proposal = "gaussian",
        proposal_scale: ArrayLike | Mapping[str, ArrayLike] | None = None,
        noise_multipliers: Mapping[str, float] | None = None,
        prelude: PreludeArgument = "auto",
        **shared: Unpack[TemperedArguments],
    ) -> None:
        super().__init__(
            vars,
            clip_log_ratio=clip_log_ratio,
            proposal=proposal,
            proposal_scale=proposal_scale,
            noise_multipliers=noise_multipliers,
            prelude=prelude,
            **shared,
        )
        self.require_batch_size()

    def default_batch_size(self, n_units: int) -> int:
        """Return a tenth of the units: what an expansion misses varies little between batches."""
        return max(1, n_units // 10)

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return what one chain releases: a log-ratio of a batch in every iteration."""
        batches = self.known_batches()
        coordinates = 2 if self.clip_diagnostics == "private" else 1
        request = ReleaseRequest(
            "log_ratio",
            tune + draws,
            1.0,
            coordinates,
            batch_size=batches.batch_size,
            n_units=batches.n_units,
        )
        return with_given_noise([request], self.noise_multipliers)

    def noise_per_bound(self) -> float:
        """Return the standard deviation of the noise of a test, for each unit of a small clip bound."""
        return 2.0 * self.tempering * self.known_batches().scale * self.chain.multiplier("log_ratio")

    @property
    def _kind(self) -> str:
        return "log_ratio"

    def release_log_ratio(self, theta: FloatArray, theta_new: FloatArray, bound: float) -> Release:
        """Ask the curator for the noisy variance-penalised log-ratio of a fresh batch."""
        return self.target.batch_log_ratio(
            theta, theta_new, bound, self.known_batches(), counted=self.clip_diagnostics == "private"
        )
