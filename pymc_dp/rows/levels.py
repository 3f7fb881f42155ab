"""The levels that occur in text columns, and the number of units with each. Confidential: for the curator only."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class UnitLevels:
    """Counts of units by level of each column. A unit has at most one level of a column."""

    #: By column and level; only levels that occur.
    counts: Mapping[str, Mapping[str, int]]
    #: The numbers of units and of rows, including those without a level.
    n_units: int
    n_rows: int
    #: The protected unit.
    unit_in_words: str

    @classmethod
    def of_pieces(
        cls, columns: Sequence[str], unit: str | None, pieces: Iterable[Mapping[str, np.ndarray]]
    ) -> "UnitLevels":
        """Count the levels of a table, given in pieces of whole units.

        A piece has an array of texts (None if missing) for each column, and an array of units unless each row is a
        unit. The level of a unit of several rows is the most frequent one; among ties, the first by name.
        """
        counts: dict[str, Counter[str]] = {column: Counter() for column in columns}
        n_units = n_rows = 0
        for piece in pieces:
            n_rows += len(piece[columns[0]])
            each = np.arange(len(piece[columns[0]])) if unit is None else piece[unit]
            # As integers: pandas converts texts to a string dtype, and fails for texts without an encoding.
            names, units = np.unique(each, return_inverse=True)
            n_units += len(names)
            for column in columns:
                known = ~pd.isna(piece[column])
                levels = piece[column][known]
                if unit is not None:
                    levels, places = np.unique(levels, return_inverse=True)
                    found = pd.DataFrame({"unit": units[known], "level": places})
                    rows = found.groupby(["unit", "level"], sort=True).size().reset_index(name="rows")
                    rows = rows.sort_values(["unit", "rows", "level"], ascending=[True, False, True])
                    levels = levels[rows.drop_duplicates("unit")["level"]]
                counts[column].update(levels)
        unit_in_words = "one row of the table" if unit is None else f"all rows with the same {unit!r}"
        return cls(counts, n_units, n_rows, unit_in_words)

    def __repr__(self) -> str:
        return "UnitLevels(confidential)"
