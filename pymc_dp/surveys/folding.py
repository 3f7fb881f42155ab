"""`folds`: a table in parts, each of which is kept out of one fit."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pymc_dp import _validate
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.release import SecureNoise
from pymc_dp.surveys.asking import checked_budget
from pymc_dp.tables import Table


@dataclass(frozen=True, eq=False)
class Folds:
    """Parts of a table. Which unit is in which is confidential.

    Attributes
    ----------
    training : tuple of Table
        All units but those of a fold.
    testing : tuple of Table
        The units of each fold. No unit is in two of them.
    relation : str
        Of the budgets that they are for.
    """

    training: tuple[Table, ...]
    testing: tuple[Table, ...]
    relation: str

    def __iter__(self) -> Iterator[tuple[Table, Table]]:
        return iter(zip(self.training, self.testing, strict=True))

    def __len__(self) -> int:
        return len(self.testing)

    def __repr__(self) -> str:
        return f"Folds({len(self)}; confidential)"


def folds(table: Table, k: int, *, budget: PrivacyBudget) -> Folds:
    """Return a table in k parts, for fits that leave one of them out: see `pymc_dp.compare`. Nothing is released.

    Units are drawn by the operating system's entropy, whatever their rows hold and whatever others there are, so that
    every part is a table of which one unit changes where one unit of the whole does. Numbers of rows and names of
    units do not have that property: where a row is missing, all that follow have another number.

    Parameters
    ----------
    table : Table
        The protected table, not on Dask.
    k : int
        How many folds, at least 2.
    budget : PrivacyBudget
        That runs on the parts are charged to: its relation says whether their sizes are public. This charges nothing.

    Returns
    -------
    Folds
        Use it as long as anything is computed of these parts: drawn again, they are others. What is no file is read
        now, and held in memory as long: a database may give rows in another order, and a unit twice.

    Raises
    ------
    InvalidArgument
        If an argument is none of these, the table is a fold for another relation, or there are fewer than two units
        for a fold, where their number is public.
    UnsupportedTable
        If the table is on Dask, or cannot be read.

    Notes
    -----
    Under substitution all folds have the same number of units, or one more. A unit that is replaced leaves its place to
    the one that comes; under add-remove each unit draws its fold by itself. So conditionally on what is drawn, one unit
    changes in one fold and in the training parts of all others; and a mixture over the drawing keeps what is guaranteed
    for each (joint convexity of hockey-stick divergences).
    """
    budget, _ = checked_budget(budget, 1.0)
    if not isinstance(table, Table):
        raise InvalidArgument(f"folds takes a pymc_dp.Table, not a {type(table).__name__}.")
    table.refuse_relation(budget.relation)
    k = _validate.whole("k", k, at_least=2)
    table = table.fixed()
    words = SecureNoise().words(table.count_units())
    fold = words % np.uint64(k)
    if budget.relation == "substitute":
        if len(words) < 2 * k:
            raise InvalidArgument(f"k must leave two units for each fold of {len(words)}.")
        fold[np.argsort(words, kind="stable")] = np.arange(len(words)) % k
    training = tuple(table.part_of(fold != each, budget.relation) for each in range(k))
    testing = tuple(table.part_of(fold == each, budget.relation) for each in range(k))
    return Folds(training, testing, budget.relation)
