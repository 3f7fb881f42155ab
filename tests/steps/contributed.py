"""A sampler as a newcomer would add it: everything that it needs is here, and it passes the contract."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from pymc_dp.budget import ReleaseRequest
from pymc_dp.parameters import FloatArray
from pymc_dp.steps.acceptance import penalty_test
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.sampler import SHARED_STATS, Transition


class DPCrankNicolson(DPStep):
    """Proposes from a standard normal prior, remembering a part of where it is; the prior then cancels."""

    name = "dp_crank_nicolson"
    stats_dtypes_shapes: ClassVar = SHARED_STATS

    def __init__(self, vars: Sequence[Any] | None = None, *, clip_log_ratio: float, beta: float, **shared: Any) -> None:
        super().__init__(vars, **shared)
        self.clip_log_ratio, self.beta = clip_log_ratio, beta

    @property
    def clip_bounds(self) -> dict[str, float]:
        return {"log_ratio": self.clip_log_ratio}

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest]:
        return [ReleaseRequest("log_ratio", tune + draws, 1.0, 1)]

    def start(self) -> None:
        pass

    def transition(self, theta: FloatArray) -> Transition:
        log_uniform = -self.rng.exponential()
        theta_new = np.sqrt(1 - self.beta**2) * theta + self.beta * self.rng.standard_normal(self.size)
        bound = self.clip_log_ratio * float(np.linalg.norm(theta_new - theta))
        stats = penalty_test(lambda b: self.chain.log_ratio(theta, theta_new, b), bound, 0.0, log_uniform)
        return Transition(theta_new if stats["accepted"] else theta, stats)
