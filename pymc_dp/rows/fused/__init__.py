"""The fast engine, which the rest of the package can do without: loops made for the model at hand."""

from pymc_dp.rows.fused.engine import FusedEngine
from pymc_dp.rows.fused.program import NotLowered

__all__ = ["FusedEngine", "NotLowered"]
