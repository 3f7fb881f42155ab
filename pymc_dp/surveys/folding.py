"""`folds`: the parts of a table for cross-validation, each of which is left out of one fit."""

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
    """Parts of a table for cross-validation. The assignment of units to parts is confidential.

    Attributes
    ----------
    training : tuple of Table
        All units except those of a fold.
    testing : tuple of Table
        The units of each fold. No unit is in two folds.
    relation : str
        The neighbouring relation of budgets for them.
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
    """Return k folds of a table, for fits that leave one of them out: see `pymc_dp.compare`. Nothing is released.

    Units are assigned with the operating system's entropy, independently of their rows and of other units, so that a
    change of one unit of the table changes one unit of a part. An assignment by row numbers or by names of
    units does not have that property: if a row is missing, all later rows have other numbers.

    Parameters
    ----------
    table : Table
        The protected table, not on Dask.
    k : int
        Number of folds, at least 2.
    budget : PrivacyBudget
        The budget that runs on the parts are charged to; its relation determines whether their sizes are public.
        This call charges nothing.

    Returns
    -------
    Folds
        Keep the object for all computations with these parts: another call draws other folds. Sources that are not
        files are read now, and held in memory: a database may return rows in another order later, and a unit twice.

    Raises
    ------
    InvalidArgument
        If an argument is of another type, the table is a fold for another relation, or there are fewer than two units
        for a fold, where their number is public.
    UnsupportedTable
        If the table is on Dask, or cannot be read.

    Notes
    -----
    Under substitution all folds have the same number of units, or one more, and a replacing unit takes the fold of the
    replaced one; under add-remove each unit draws its fold independently. So conditionally on the assignment, one unit
    changes in one fold and in the training parts of all others; and a mixture over assignments has the guarantee that
    each assignment has (joint convexity of hockey-stick divergences).
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
