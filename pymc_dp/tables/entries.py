"""Entries of a source's column, of whatever type, as numbers: each by itself, and none of them an error.

What an entry becomes depends on it and on the declaration, never on another entry. So nothing here takes several
entries of unknown types together: in a set, for instance, 1 and True are one, and which of them stays would depend on
other rows. What cannot be read is missing. Types of whole columns are public, and wrong ones are refused.
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
#: What is written where there is nothing.
_NOTHING = ("", "na", "n/a", "nan", "null", "none", "<na>", "nat")
#: Of a day: what pandas counts time in. Other counts of times are cut to so many: what is farther is in no range.
_SECONDS = 86_400
_PER_DAY = {"s": _SECONDS, "ms": _SECONDS * 10**3, "us": _SECONDS * 10**6, "ns": _SECONDS * 10**9}
_FAR = 10**10
_WORDS = {"M": "points in time", "m": "time spans", "c": "complex numbers"}


@dataclass(frozen=True)
class _Unlisted:
    """A column whose levels nobody has listed. Each gets a code when it is first met. Confidential."""

    name: str
    codes: dict[str, float]


def entries_of(column: Modelled | _Unlisted, values: Any) -> FloatArray:
    """Return a column's entries as numbers, codes of levels, or days since 1970; NaN where they are missing.

    `values` is a Series or an array. It is refused if the type of the whole column does not fit the declared one.
    """
    if not isinstance(values, pd.Series):
        values = _series_of(column.name, values)
    if isinstance(values.dtype, pd.CategoricalDtype):
        categories = pd.Series(values.cat.categories)
        of_categories = entries_of(column, categories) if len(categories) else np.empty(0)  # all are missing
        return _at(of_categories, values.cat.codes.to_numpy())
    # Texts of Arrow alone: those that are equal are one. For pandas' own tables a text without an encoding is equal to
    # another, the way that Python writes it.
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
    """Return a Series of an array or a list, in which entries of unknown types stay as they are."""
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(object), None)
    if isinstance(values, list | tuple):  # NumPy would choose a type that all of them have
        values = np.fromiter(values, dtype=object, count=len(values))
    values = np.asarray(values)
    if values.ndim != 1:
        raise UnsupportedTable(f"The column {name!r} has several entries in a row.")
    if values.dtype.kind == "M" and np.datetime_data(values.dtype)[0] not in _PER_DAY:  # pandas raises for distant ones
        cut = np.clip(values.astype(np.int64), -_FAR, _FAR).astype(values.dtype)
        values = np.where(np.isnat(values), values, cut)
    return pd.Series(values, dtype=object if values.dtype.kind in "OU" else None)  # not texts, where all are


def _at(values: FloatArray, places: np.ndarray) -> FloatArray:
    """Return values by their places; NaN where the place is -1, which pandas writes for what is missing."""
    found: FloatArray = np.append(values, np.nan)[places]
    return found


def _each(column: Modelled | _Unlisted, values: Any) -> FloatArray:
    """Return entries of unknown types, one by one."""
    if isinstance(column, _Unlisted):
        levels = [_level(entry) for entry in values]
        found = [
            math.nan if level.casefold() in _NOTHING else column.codes.setdefault(level, float(len(column.codes)))
            for level in levels
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
    """Return the number that an entry is, or that stands there as Python writes it; NaN for anything else."""
    readable = isinstance(entry, str | numbers.Real | np.bool_ | decimal.Decimal)
    if not readable:
        return math.nan
    try:
        return float(entry)
    except OverflowError:  # of a whole number: beyond any range, on its side
        return math.inf if entry > 0 else -math.inf
    except (TypeError, ValueError):  # the former of NumPy's time spans, which count as whole numbers
        return math.nan


def _truth(entry: Any) -> float:
    if isinstance(entry, str):
        word = entry.strip().casefold()
        if word in _YES or word in _NO:
            return float(word in _YES)
    found = _number(entry)
    return found if found in (0.0, 1.0) else math.nan


def _level(entry: Any) -> str:
    """Return an entry as a level; empty where it is missing. Whole numbers are their digits, whatever their type."""
    if isinstance(entry, str):
        return level_of(entry)
    if entry is None or entry is pd.NA or entry is pd.NaT:
        return ""
    found = math.nan if isinstance(entry, bool | np.bool_) else _number(entry)
    if isinstance(entry, float | np.floating) and math.isnan(found):
        return ""
    try:
        return str(int(found)) if found.is_integer() else str(entry).strip()
    except Exception:  # of a number with thousands of digits, or of an object of the user's
        return ""


def levels_of_entries(name: str, values: Any) -> np.ndarray:
    """Return a column's entries as levels, as an array of texts; None where they are missing.

    As `entries_of` reads those of a `Category` that lists them, but for letters without an encoding. `values` is a
    Series or an array.
    """
    found = _Unlisted(name, {})
    codes = entries_of(found, values)
    # What has no encoding could be neither printed nor stored: each letter of it counts as a question mark.
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
