"""How contributions to the gradient are stored, as `pymc_dp.rows.clip` and the engines know it."""

from dataclasses import dataclass

#: How the contribution to one value variable is stored. The numbers are those of `Part.kind`. Compiled functions in
#: Numba's cache on disk know them by value.
DENSE, PRODUCT, GATHER = 0, 1, 2


@dataclass(frozen=True)
class Part:
    """How contributions to the gradient with respect to one value variable are stored.

    Attributes
    ----------
    kind : int
        `DENSE`: the slopes themselves. `PRODUCT`: the outer product of the unit's vector and its slopes. `GATHER`:
        the slopes, at the group that the unit's index names; nothing if it names none.
    first, k : int
        Which rows of the slopes. None if the likelihood does not depend on the variable.
    size : int
        For `PRODUCT`, the length of a vector; for `GATHER`, the number of groups; else 1.
    factor : int
        For `PRODUCT`, which of the vectors; for `GATHER`, which of the indices; else 0.
    """

    kind: int
    first: int
    k: int
    size: int = 1
    factor: int = 0
