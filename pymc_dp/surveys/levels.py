"""`find_levels`: the frequent levels of columns without a public list of levels, and their approximate counts."""

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
import xarray as xr
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument, UnsupportedOption
from pymc_dp.release.levels import LevelCounts
from pymc_dp.reports.published import facts_of
from pymc_dp.surveys.asking import Survey, asking, checked_budget, four_digits, heading, tree_of
from pymc_dp.tables import Category, Table
from pymc_dp.tables.schema import OTHER

#: The part of a budget's delta that is spent by default.
_PART_OF_DELTA = 0.1


class Levels:
    """Released levels of columns, and noisy numbers of units that have them.

    Attributes
    ----------
    tree : DataTree
        Groups ``levels`` (counts above the threshold, with their columns and levels, the largest first) and
        ``privacy``.
    """

    def __init__(self, tree: DataTree) -> None:
        if "levels" not in tree or "columns" not in facts_of(tree):
            raise InvalidArgument("This tree holds no levels: pass the result of dp.find_levels.")
        self.tree = tree

    @property
    def columns(self) -> list[str]:
        """The columns of the call."""
        return list(json.loads(facts_of(self.tree)["columns"]))

    @property
    def table(self) -> pd.DataFrame:
        """The noisy count of each level, and the standard deviation of its noise."""
        found = self.tree["levels"].to_dataset()
        lines = pd.DataFrame({"count": found["count"].values, "error": found.attrs["noise_std"]})
        return lines.set_index(pd.MultiIndex.from_arrays([found["column"].values, found["level"].values]))

    @property
    def categories(self) -> list[Category]:
        """Declarations of the columns with released levels; other levels of these count as ``"other"``."""
        return [
            Category(name, found) for name in self.columns if (found := [each for each in self[name] if each != OTHER])
        ]

    def __getitem__(self, column: str) -> list[str]:
        """Return the released levels of a column, by decreasing count."""
        found = self.tree["levels"].to_dataset()
        pairs = zip(found["column"].values, found["level"].values, strict=True)
        return [str(level) for name, level in pairs if name == column]

    def __repr__(self) -> str:
        found = self.tree["levels"].to_dataset()
        lines = [
            heading(facts_of(self.tree), "Levels that more than one unit has"),
            *([four_digits(self.table)] if found.sizes["entry"] else []),
            f"Levels of fewer than about {found.attrs['threshold']:.3g} units are hidden.",
        ]
        if without := [name for name in self.columns if not self[name]]:
            lines.append(f"No level of {', '.join(without)} was found.")
        return "\n".join(lines)


def find_levels(
    table: Any,
    columns: str | Sequence[str],
    *,
    budget: PrivacyBudget | None = None,
    delta: float | None = None,
    budget_share: float = 0.1,
    unit: str | None = None,
    insecure_seed: int | None = None,
) -> Levels:
    """Release the frequent levels of columns of texts without a public list of levels, within a budget.

    A level is published verbatim. So use this for columns in which a text that many units share reveals nothing of any
    of them, such as a ward or a diagnosis; the threshold hides a name as long as few units have it.

    Parameters
    ----------
    table : Table, or a source of one
        The protected table. The columns need not be declared: of a CSV file pass ``dp.Table.from_csv(path, schema)``
        with a schema of any other column.
    columns : str or sequence of str
        Names of columns.
    budget, budget_share, insecure_seed
        As in `pymc_dp.describe`. Unless the budget has a part of delta for levels (`delta_for_levels`), this has to be
        the first run.
    delta : float, optional
        The probability that any level of one unit alone is published. Default: the budget's part for levels, or
        a tenth of its delta.
    unit : str, optional
        If `table` is not a `Table`: the column that identifies the unit of a row.

    Returns
    -------
    Levels
        Print it for a summary. ``dp.Table(source, schema=[..., *levels.categories])`` declares the released levels.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range, before anything is charged.
    UnsupportedTable
        If a column is missing or has no levels, or the table is on Dask.
    BudgetExceeded, RunInterrupted
        As in `pymc_dp.describe`; `BudgetExceeded`, too, if nothing is left of the delta for levels.

    Notes
    -----
    Each unit counts for one level of each column: the most frequent one of its rows. The counts of levels that occur
    get Gaussian noise, and those above a threshold are published: see `pymc_dp.release.levels`. Entries
    are read as those of a `Category`. Published counts near the threshold are more often too large than too small, as
    smaller ones are not published.

    References
    ----------
    Korolova, Kenthapadi, Mishra and Ntoulas (2009), Releasing search queries and clicks privately, WWW; Desfontaines,
    Voss, Gipson and Mandayam (2022), Differentially private partition selection, PoPETs.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidArgument('columns must be different names of columns: ["ward", "diagnosis"].')
    budget, share = checked_budget(budget, budget_share)
    if isinstance(table, Table) and unit is not None:
        raise UnsupportedOption("A Table declares its units itself: dp.Person, or Table(..., unit=), not unit=.")
    if not isinstance(table, Table):
        table = Table(table, columns={name: name for name in names}, unit=unit)
    table.refuse_relation(budget.relation)
    if table.unit in names:
        raise InvalidArgument(f"The column {table.unit!r} says who a person is: it has no levels to publish.")
    if delta is None:
        left = budget.delta_left_for_levels
        delta = left or _PART_OF_DELTA * budget.delta  # if nothing is left, the budget refuses the plan
    query = LevelCounts(names, _validate.open_unit_interval("delta", delta))
    # A unit changes at most two counts of a column.
    request = ReleaseRequest(query.kind, 1, 1.0, 2 * len(names), once=True, delta=query.delta)
    survey = Survey("levels", (request,), share, insecure_seed)
    survey.plan(budget)  # refuses early
    with asking(survey, budget, [table.levels_of_units(names, budget.relation)]) as ((ask,), facts):
        found = ask(query)
    pairs = [[pair[place] for pair in found.levels] for place in (0, 1)]
    threshold = query.threshold(found.noise_std, 0.0)
    levels = xr.Dataset(
        {"count": ("entry", found.value)},
        coords={name: ("entry", values) for name, values in zip(("column", "level"), pairs, strict=True)},
        attrs={"noise_std": found.noise_std, "threshold": threshold, "delta_of_threshold": query.delta},
    )
    return Levels(tree_of({"levels": levels}, {**facts, "columns": json.dumps(names)}))
