"""The samplers: pure algorithms that ask for releases and never see data, noise or accounting."""

from pymc_dp.steps.hmc import DPHMC

__all__ = ["DPHMC"]
