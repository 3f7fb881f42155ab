"""Conversion of the entries of a source's column, of any types, to numbers: each by itself, and never with an error.

The number of an entry depends on the entry and on the declaration, never on another entry. So no operation here
combines entries of unknown types: in a set, for instance, 1 and True are equal, and the one that stays would depend on
other rows. An unreadable entry is missing. Types of whole columns are public, and wrong ones are refused.
"""

import datetime
import decimal
import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pymc_dp.exceptions import UnsupportedTable
from pymc_dp.model.parameters import FloatArray
from pymc_dp.tables.schema import Category, Date, Modelled, YesNo, days, level_of

_YES, _NO = ("yes", "y", "true", "t"), ("no", "n", "false", "f")
#: Texts that denote a missing entry.
_NOTHING = ("", "na", "n/a", "nan", "null", "none", "<na>", "nat")
#: Number of each of pandas' units of time in a day. Times in other units are cut to `_FAR`, beyond any range.
_SECONDS = 86_400
_PER_DAY = {"s": _SECONDS, "ms": _SECONDS * 10**3, "us": _SECONDS * 10**6, "ns": _SECONDS * 10**9}
_FAR = 10**10
_WORDS = {"M": "points in time", "m": "time spans", "c": "complex numbers"}


@dataclass(frozen=True)
class _Unlisted:
    """A column without a public list of levels. A level gets its code at its first occurrence. Confidential."""

    name: str
    codes: dict[str, float]


def entries_of(column: Modelled | _Unlisted, values: Any) -> FloatArray:
    """Return a column's entries as numbers, codes of levels, or days since 1970; NaN where they are missing.

    `values` is a Series or an array. A column whose type does not fit the declared one is refused.
    """
    if not isinstance(values, pd.Series):
        values = _series_of(column.name, values)
    if isinstance(values.dtype, pd.CategoricalDtype):
        categories = pd.Series(values.cat.categories)
        of_categories = entries_of(column, categories) if len(categories) else np.empty(0)  # all entries are missing
        return _at(of_categories, values.cat.codes.to_numpy())
    # Only for Arrow's texts are equal texts identical: pandas' own hash tables take a text without an encoding as equal
    # to its escaped form.
    if isinstance(values.dtype, pd.StringDtype) and values.dtype.storage == "pyarrow":
        codes, texts = pd.factorize(values)
        return _at(_each(column, texts), codes)
    kind = str(getattr(values.dtype, "kind", ""))
    if kind == "O" and isinstance(values.dtype, np.dtype | pd.ArrowDtype | pd.StringDtype):
        return _each(column, values.to_numpy(dtype=object))
    if kind == "b" and isinstance(column, Category | _Unlisted):
        codes, different = pd.factorize(values)
        return _at(_each(column, list(different)), codes)
    if kind in "biuf" and not isinstance(column, Date):
        found: FloatArray = values.to_numpy(dtype=np.float64, na_value=np.nan)
        if isinstance(column, Category | _Unlisted):
            codes, different = pd.factorize(found)
            return _at(_each(column, different), codes)
        return np.where((found == 0.0) | (found == 1.0), found, np.nan) if isinstance(column, YesNo) else found
    if kind == "M" and isinstance(column, Date):
        if getattr(values.dtype, "tz", None) is not None:
            values = values.dt.tz_convert("UTC").dt.tz_localize(None)
        times = values.to_numpy()
        found = times.astype(np.int64) // _PER_DAY[np.datetime_data(times.dtype)[0]]  # NumPy's conversion may raise
        return np.where(np.isnat(times), np.nan, found.astype(np.float64))
    declared = "levels are looked for" if isinstance(column, _Unlisted) else f"dp.{type(column).__name__} was declared"
    raise UnsupportedTable(
        f"The column {column.name!r} holds {_WORDS.get(kind, 'numbers' if kind in 'biuf' else 'another type')}, where "
        f"{declared}."
    )


def _series_of(name: str, values: Any) -> "pd.Series[Any]":
    """Return a Series of an array or a list, without a conversion of entries of unknown types."""
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(object), None)
    if isinstance(values, list | tuple):  # NumPy would convert all of them to a common type
        values = np.fromiter(values, dtype=object, count=len(values))
    values = np.asarray(values)
    if values.ndim != 1:
        raise UnsupportedTable(f"The column {name!r} has several entries in a row.")
    if values.dtype.kind == "M" and np.datetime_data(values.dtype)[0] not in _PER_DAY:  # pandas raises for far times
        cut = np.clip(values.astype(np.int64), -_FAR, _FAR).astype(values.dtype)
        values = np.where(np.isnat(values), values, cut)
    return pd.Series(values, dtype=object if values.dtype.kind in "OU" else None)  # objects even if all are texts


def _at(values: FloatArray, places: np.ndarray) -> FloatArray:
    """Return values by their places; NaN where the place is -1, which is pandas' code of missing entries."""
    found: FloatArray = np.append(values, np.nan)[places]
    return found


def _each(column: Modelled | _Unlisted, values: Any) -> FloatArray:
    """Return entries of unknown types, one by one."""
    if isinstance(column, _Unlisted):
        found = [
            math.nan if level.casefold() in _NOTHING else column.codes.setdefault(level, float(len(column.codes)))
            for level in map(_level, values)
        ]
    elif isinstance(column, Category):
        codes = {level: float(code) for code, level in enumerate(column.all_levels)}
        unlisted = float(len(codes) - 1) if column.other else math.nan
        found = [
            codes[level] if level in codes else math.nan if level.casefold() in _NOTHING else unlisted
            for level in map(_level, values)
        ]
    else:
        read = _truth if isinstance(column, YesNo) else _day if isinstance(column, Date) else _number
        found = [read(entry) for entry in values]
    return np.array(found, dtype=np.float64)


def _number(entry: Any) -> float:
    """Return an entry that is a number, or a text with a number in Python's syntax, as a float; NaN for others."""
    readable = isinstance(entry, str | numbers.Real | np.bool_ | decimal.Decimal)
    if not readable:
        return math.nan
    try:
        return float(entry)
    except OverflowError:  # a whole number beyond any range
        return math.inf if entry > 0 else -math.inf
    except (TypeError, ValueError):  # TypeError for NumPy's time spans, which are instances of numbers.Real
        return math.nan


def _truth(entry: Any) -> float:
    if isinstance(entry, str):
        word = entry.strip().casefold()
        if word in _YES or word in _NO:
            return float(word in _YES)
    found = _number(entry)
    return found if found in (0.0, 1.0) else math.nan


def _level(entry: Any) -> str:
    """Return an entry as a level; empty where it is missing. Whole numbers of any type become their digits."""
    if isinstance(entry, str):
        return level_of(entry)
    if entry is None or entry is pd.NA or entry is pd.NaT:
        return ""
    found = math.nan if isinstance(entry, bool | np.bool_) else _number(entry)
    if isinstance(entry, float | np.floating) and math.isnan(found):
        return ""
    try:
        return str(int(found)) if found.is_integer() else str(entry).strip()
    except Exception:  # from a number with thousands of digits, or from an object of the user's class
        return ""


def levels_of_entries(name: str, values: Any) -> np.ndarray:
    """Return a column's entries as levels, as an array of texts; None where they are missing.

    The levels are those of `entries_of` for a `Category` that lists them, except for characters without an encoding.
    `values` is a Series or an array.
    """
    found = _Unlisted(name, {})
    codes = entries_of(found, values)
    # Characters without an encoding can be neither printed nor stored: each becomes a question mark.
    names = [level.encode("utf-8", "replace").decode("utf-8") for level in found.codes]
    return np.array([*names, None], dtype=object)[np.where(np.isnan(codes), -1.0, codes).astype(np.intp)]


def _day(entry: Any) -> float:
    """Return the days since 1970 of a date, a time or a text such as 2026-01-31 or 2026-01-31T12:00."""
    try:
        if isinstance(entry, np.datetime64):
            entry = entry.astype("datetime64[D]").item()
        elif isinstance(entry, str):
            entry = datetime.datetime.fromisoformat(entry.strip())
        if isinstance(entry, datetime.datetime):
            entry = (entry.astimezone(datetime.UTC) if entry.tzinfo is not None else entry).date()
        return days(entry) if isinstance(entry, datetime.date) else math.nan
    except (OverflowError, TypeError, ValueError):
        return math.nan
