"""Neighbouring tables, random and adversarial, for record and replay."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

Table = dict[str, np.ndarray]


@dataclass(frozen=True)
class Neighbour:
    """A neighbouring table, and which unit it does not share with the first.

    Attributes
    ----------
    table : dict of str to ndarray
        Rows first.
    change : {"replaced", "removed", "added"}
        What was done to the first table.
    place : int
        Which unit, counted in the table that has it (for units of several rows: in increasing order of their index).
    name : str
        For messages.
    """

    table: Table
    change: str
    place: int
    name: str = ""


ODD_FLOATS = (np.nan, np.inf, -np.inf, 1e308, -1.7976931348623157e308, 1e154, -1e6, 5e-324, -2e-308, 0.0, -0.0, 1e-300)
ODD_INTEGERS = (0, -1, 1, 2, 3, 7, 10**9, -(10**9), 2**31, 2**53 + 1, 2**62, -(2**63), 2**63 - 1)


def odd_rows(table: Table, count: int, rng: np.random.Generator) -> Table:
    """Return rows of a table in which about every second entry is as strange as its type allows."""
    picked = rng.integers(len(next(iter(table.values()))), size=count)
    rows = {}
    for name, values in table.items():
        rows[name] = values[picked].copy()
        odd = ODD_FLOATS if values.dtype.kind == "f" else ODD_INTEGERS
        odd = (True, False) if values.dtype.kind == "b" else odd
        strange = np.array([odd[k] for k in rng.integers(len(odd), size=rows[name].size)]).reshape(rows[name].shape)
        rows[name] = np.where(rng.random(rows[name].shape) < 0.5, strange, rows[name]).astype(values.dtype)
    return rows


def ordinary_rows(table: Table, count: int, rng: np.random.Generator) -> Table:
    """Return rows of a table, entries taken from different rows."""
    n = len(next(iter(table.values())))
    return {name: values[rng.integers(n, size=count)] for name, values in table.items()}


def neighbours_of(
    table: Table, relation: str, rng: np.random.Generator, count: int, unit: str | None = None
) -> Iterator[Neighbour]:
    """Yield neighbours in which one unit is replaced, removed or added; every second one is adversarial.

    Parameters
    ----------
    table : dict of str to ndarray
        Rows first.
    relation : {"substitute", "add-remove"}
        Neighbouring relation.
    rng : Generator
        Where the neighbours come from.
    count : int
        How many.
    unit : str, optional
        The column that says which unit a row belongs to. A changed unit then has another number of rows, too.
    """
    for k in range(count):
        change = "replaced" if relation == "substitute" else ("removed", "added")[k // 2 % 2]
        yield _changed(table, change, rng, unit, make_rows=odd_rows if k % 2 == 0 else ordinary_rows)


def _changed(
    table: Table, change: str, rng: np.random.Generator, unit: str | None, make_rows: Callable[..., Table]
) -> Neighbour:
    n_rows = len(next(iter(table.values())))
    index = np.arange(n_rows) if unit is None else table[unit]
    known = np.unique(index)
    whose = known[rng.integers(known.size)] if change != "added" else known[-1] + 1
    kept = index != whose if change != "added" else np.ones(n_rows, dtype=bool)
    shared = {name: values[kept] for name, values in table.items()}
    if change == "removed":
        return Neighbour(shared, change, int(np.searchsorted(known, whose)), "removed")
    covariates = {name: values for name, values in table.items() if name != unit}
    fresh = make_rows(covariates, 1 if unit is None else int(rng.integers(1, 6)), rng)
    if unit is not None:
        fresh[unit] = np.full(len(next(iter(fresh.values()))), whose, dtype=index.dtype)
    # Rows of a unit that is a row keep their place; rows of a larger unit may stand anywhere.
    at = int(np.flatnonzero(~kept)[0]) if change == "replaced" and unit is None else int(kept.sum())
    joined = {
        name: np.concatenate([values[:at], fresh[name], values[at:]]).astype(table[name].dtype)
        for name, values in shared.items()
    }
    place = int(np.searchsorted(known, whose)) if unit is not None or change == "added" else at
    return Neighbour(joined, change, place, f"{change} {_words(fresh)}")


def _words(rows: Table) -> str:
    return " ".join(f"{name}={np.ravel(values)[:3].tolist()}" for name, values in rows.items())
