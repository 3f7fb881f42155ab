"""The levels that occur in columns of texts, and how many units have each. Confidential: for the curator only."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class UnitLevels:
    """How many units have each level of each column. A unit has at most one level of a column."""

    #: By column and level, of those that occur.
    counts: Mapping[str, Mapping[str, int]]
    #: The number of units and of rows, those without a level included.
    n_units: int
    n_rows: int
    #: What is protected.
    unit_in_words: str

    @classmethod
    def of_pieces(
        cls, columns: Sequence[str], unit: str | None, pieces: Iterable[Mapping[str, np.ndarray]]
    ) -> "UnitLevels":
        """Count the levels of a table in pieces, none of which has a part of a unit.

        A piece has an array of texts, None where there is none, for each column; and one of units, unless each row is
        a unit. The level of a unit of several rows is the one that most of them have; of several such, the first by
        name.
        """
        counts: dict[str, Counter[str]] = {column: Counter() for column in columns}
        n_units = n_rows = 0
        for piece in pieces:
            n_rows += len(piece[columns[0]])
            each = np.arange(len(piece[columns[0]])) if unit is None else piece[unit]
            # By numbers: pandas makes columns of texts of texts, and fails where one has no encoding.
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
