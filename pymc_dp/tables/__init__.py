"""Tables that a model is not made of: files, data frames and clusters, whose rows the curator sums where they are."""

from pymc_dp.tables.table import Table

__all__ = ["Table"]
