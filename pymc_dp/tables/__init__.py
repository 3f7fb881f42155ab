"""Tables apart from the model: files, data frames and clusters, whose rows the curator sums in place."""

from pymc_dp.tables.schema import Category, Date, Number, Person, Schema, Whole, YesNo
from pymc_dp.tables.table import Table
from pymc_dp.tables.template import Template

__all__ = ["Category", "Date", "Number", "Person", "Schema", "Table", "Template", "Whole", "YesNo"]
