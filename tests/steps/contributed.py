"""A sampler as a newcomer would add it: everything that it needs is here, and it passes the contract.

It learns what it is not told: the line with `learn`, a `setting`, and moving on `target` are all that this takes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.model.parameters import FloatArray
from pymc_dp.steps.learning_step import LearningStep
from pymc_dp.steps.transition import SHARED_STATS, Transition
from pymc_dp.steps.tuning import setting


class DPCrankNicolson(LearningStep):
    """Proposes from a standard normal, remembering a part of where it is; a standard normal prior then cancels."""

    name = "dp_crank_nicolson"
    stats_dtypes_shapes = SHARED_STATS

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        clip_log_ratio: float | None = None,
        beta: float,
        prelude: Any = "auto",
        **shared: Any,
    ) -> None:
        super().__init__(vars, **shared)
        learns = self.learn(prelude, {"clip_log_ratio": clip_log_ratio}, shared.get("model"))
        self.clip_log_ratio = setting("clip_log_ratio", clip_log_ratio, learns=learns)
        self.beta = beta

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest]:
        return [ReleaseRequest("residual" if self.control_variates else "log_ratio", tune + draws, 1.0, 1)]

    def transition(self, theta: FloatArray) -> Transition:
        target, log_uniform = self.target, -self.rng.exponential()
        theta_new = np.sqrt(1 - self.beta**2) * theta + self.beta * self.rng.standard_normal(self.size)
        # The proposal is reversible with respect to a standard normal.
        log_free_ratio = target.free(theta_new) - target.free(theta) + 0.5 * (theta_new @ theta_new - theta @ theta)
        stats = self.test(theta, theta_new, log_free_ratio, log_uniform)
        return Transition(theta_new if stats["accepted"] else theta, stats)
