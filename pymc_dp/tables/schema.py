"""Declared columns: the public knowledge about a table, stated before the table is read.

A declaration has the possible values of a column, and the value that replaces a missing entry. It determines how an
entry becomes numbers, as a function of that entry alone. Nothing is learned from rows.
"""

import dataclasses
import datetime
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import FloatArray

#: Whole numbers up to this one are exact in floating point.
_LARGEST_WHOLE = 2**53
#: The level of entries that are not listed.
OTHER = "other"
_DAY_ZERO = datetime.date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class Number:
    """A column of real numbers.

    Parameters
    ----------
    name : str
        Of the column.
    low, high : float
        The declared range, in the column's own units. Entries outside are clipped to it.
    missing : float, optional
        The value that replaces a missing entry, in the range. Default: the middle.
    raw : bool
        Use the numbers in their own units in the model. Default: the range is mapped to [-1, 1].

    Raises
    ------
    InvalidArgument
        If the range is empty or not finite.
    """

    name: str
    low: float
    high: float
    missing: float | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        _set_range(self, _validate.real)


@dataclass(frozen=True)
class Whole:
    """A column of whole numbers, such as counts. Other numbers are rounded.

    Parameters
    ----------
    name, low, high, missing
        As in `Number`, whole numbers. Default of a missing entry: the middle, rounded down.
    raw : bool
        Use whole numbers in the model: counts, for `pm.Poisson` and similar distributions, and indices. Default: the
        range is mapped to [-1, 1].

    Raises
    ------
    InvalidArgument
        If the range is empty, or reaches beyond 2**53.
    """

    name: str
    low: int
    high: int
    missing: int | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        _set_range(self, partial(_validate.whole, at_least=-_LARGEST_WHOLE))
        if self.high > _LARGEST_WHOLE:
            raise InvalidArgument(f"high of {self.name!r} must be at most 2**53, where floating point is exact.")


@dataclass(frozen=True)
class YesNo:
    """A column of truth values: 1 or 0 in the model.

    Parameters
    ----------
    name : str
        Of the column. Its entries are truth values, 0 and 1, or the words yes, y, true, t, no, n, false and f, in upper
        or lower case; all others are missing.
    missing : bool
        The value that replaces a missing entry.

    Raises
    ------
    InvalidArgument
        If an argument is of another type.
    """

    name: str
    missing: bool = False

    def __post_init__(self) -> None:
        _check_name(self.name)
        _set(self, missing=_validate.truth(f"missing of {self.name!r}", self.missing))


#: A whole number as pandas writes it where a column has missing entries.
_WHOLE_TEXT = re.compile(r"[+-]?\d{1,400}\.0*")


def level_of(text: str) -> str:
    """Return the level that a text is: without spaces at its ends, and without the decimals of a whole number."""
    text = text.strip()
    return str(int(text.partition(".")[0])) if _WHOLE_TEXT.fullmatch(text) else text


@dataclass(frozen=True)
class Category:
    """A column with one of several levels.

    Parameters
    ----------
    name : str
        Of the column.
    levels : sequence of str or int
        The possible levels. `Template.matrix` leaves out the first one, as the reference level. Whole numbers are their
        digits, as numbers and as texts: 9, "9" and "9.0" are one level. Truth values are "True" and "False".
    other : bool
        Add a level ``"other"`` for entries that are not listed. Without it they count as missing.
    missing : str, optional
        The level that replaces a missing entry. Default: ``"other"`` if that level exists, else the first.

    Raises
    ------
    InvalidArgument
        If there are fewer than two levels, or one is listed twice.
    """

    name: str
    levels: Sequence[str | int]
    other: bool = True
    missing: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        other = _validate.truth(f"other of {self.name!r}", self.other)
        if isinstance(self.levels, str) or not isinstance(self.levels, Sequence):
            raise InvalidArgument(f'levels of {self.name!r} must be a list, such as ["A", "B", "C"].')
        if any(isinstance(level, bool) or not isinstance(level, str | int) for level in self.levels):
            raise InvalidArgument(f"levels of {self.name!r} must be texts or whole numbers.")
        levels = [level_of(str(level)) for level in self.levels] + ([OTHER] if other else [])
        if len(set(levels)) < len(levels) or len(levels) < 2 or not all(levels):
            raise InvalidArgument(
                f"levels of {self.name!r} must be at least two different ones, none of them empty"
                + (f". {OTHER!r} is added to them: leave it out of the list, or pass other=False." if other else ".")
            )
        missing = levels[-1 if other else 0] if self.missing is None else level_of(str(self.missing))
        _set(self, levels=tuple(levels[:-1] if other else levels), other=other, missing=missing)
        _validate.choice(f"missing of {self.name!r}", missing, tuple(levels))

    @property
    def all_levels(self) -> tuple[str, ...]:
        """The levels, in the order of their codes."""
        listed = tuple(map(str, self.levels))
        return (*listed, OTHER) if self.other else listed


@dataclass(frozen=True)
class Date:
    """A column of days: texts such as ``2026-01-31``, or times, which become days (in UTC if they have a time zone).

    Parameters
    ----------
    name, low, high, missing
        As in `Number`, days: texts or `datetime.date`.
    raw : bool
        Use days since `low` in the model. Default: the range is mapped to [-1, 1].

    Raises
    ------
    InvalidArgument
        If the range is empty, or a day is not written as ``2026-01-31``.
    """

    name: str
    low: str | datetime.date
    high: str | datetime.date
    missing: str | datetime.date | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        _set_range(self, _day)


@dataclass(frozen=True)
class Person:
    """The column that identifies the unit of privacy of a row: rows with the same entry are one unit.

    Its entries are whole numbers or texts, none missing. It is not a column of the model. A `name` has to be a text.
    """

    name: str

    def __post_init__(self) -> None:
        _check_name(self.name)


#: Columns that have numbers in the model.
Modelled = Number | Whole | YesNo | Category | Date
Column = Modelled | Person
_KINDS: dict[str, type[Column]] = {kind.__name__: kind for kind in (Number, Whole, YesNo, Category, Date, Person)}


class Schema:
    """The declared columns of a table. Public: it is stored in results.

    Parameters
    ----------
    columns : sequence of Number, Whole, YesNo, Category, Date, Person
        The columns of the table. Its other columns are not read.

    Raises
    ------
    InvalidArgument
        If there are no columns, two have the same name, or several are `Person`.

    Notes
    -----
    A schema keeps plain copies: subclasses of the declarations are refused, and those of texts and numbers converted,
    as their methods would be called with entries of the table.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        if not isinstance(columns, Sequence) or not columns or any(type(one) not in _KINDS.values() for one in columns):
            raise InvalidArgument(
                'A schema is a list of declared columns: [dp.Number("age", 18, 90), ...]. There are '
                f"{', '.join(_KINDS)}."
            )
        self._columns = _from_json(_to_json(columns))
        names = [name for each in self._columns for name in (each.name, *_parts(each))]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise InvalidArgument(
                f"The schema has {twice[0]!r} twice: NAME_missing says where NAME is missing, and NAME[LEVEL] where it "
                "has that level. Rename a column."
            )
        persons = [each.name for each in self._columns if isinstance(each, Person)]
        if len(persons) > 1:
            raise InvalidArgument("A schema says once who a person is: there are several columns dp.Person.")
        if not self.modelled:
            raise InvalidArgument("A schema needs a column besides dp.Person.")
        #: The column that identifies the unit of a row.
        self.person = persons[0] if persons else None
        self._column_of = {name: each for each in self.modelled for name in (each.name, *_parts(each))}

    @property
    def names(self) -> list[str]:
        """The required columns of the table."""
        return [each.name for each in self._columns]

    @property
    def modelled(self) -> list[Modelled]:
        """The columns that have numbers in the model."""
        return [each for each in self._columns if not isinstance(each, Person)]

    @property
    def parts(self) -> list[str]:
        """The possible inputs of a model: columns, indicators of missing entries, and indicators of levels."""
        return list(self._column_of)

    def column_of(self, part: str) -> Modelled:
        """Return the column of a part; refuse an unknown part."""
        try:
            return self._column_of[part]
        except (KeyError, TypeError):  # the latter of a list
            raise InvalidArgument(f"The schema has no column {part!r}: it has {', '.join(self.parts)}.") from None

    def raw_coefficients(
        self, slopes: xr.DataArray, intercept: xr.DataArray | None = None, *, outcome: str | None = None
    ) -> xr.Dataset:
        """Return coefficients of a linear predictor in the units of the columns, from those on [-1, 1].

        Parameters
        ----------
        slopes : DataArray
            Draws of slopes, with one dim besides ``chain`` and ``draw``, whose labels are those of `Template.features`.
        intercept : DataArray, optional
            Draws of the intercept.
        outcome : str, optional
            The response column of a normal model, if it is on [-1, 1], too.

        Returns
        -------
        Dataset
            ``slopes``, per unit of each column (per day of a date), and ``intercept``, at 0 of all columns.

        Raises
        ------
        InvalidArgument
            If the labels are not those of columns.
        """
        dims = [str(each) for each in slopes.dims if each not in ("chain", "draw")]
        if len(dims) != 1 or dims[0] not in slopes.coords:
            raise InvalidArgument(
                "slopes needs one dim with columns for labels: pm.Model(coords={'feature': t.features('age', 'ward')})."
            )

        def scale(part: str) -> tuple[float, float]:
            column = self.column_of(part)
            return scale_of(column) if part == column.name else (0.0, 1.0)

        scales = [scale(str(name)) for name in slopes[dims[0]].values]
        middle, half = (xr.DataArray(np.array(each), dims=dims[0]) for each in zip(*scales, strict=True))
        of_outcome = (0.0, 1.0) if outcome is None else scale(outcome)
        found = {"slopes": slopes / half * of_outcome[1]}
        if intercept is not None:
            found["intercept"] = of_outcome[0] + of_outcome[1] * (intercept - (slopes * middle / half).sum(dims[0]))
        return xr.Dataset(found)

    def to_json(self) -> str:
        """Return the schema as text."""
        return _to_json(self._columns)

    @classmethod
    def from_json(cls, text: str) -> "Schema":
        """Return the schema of a text from `to_json`; raise `InvalidArgument` for any other text."""
        try:
            return cls(_from_json(text))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"This is no schema in JSON: {type(error).__name__}.") from None

    def save(self, path: str | Path) -> None:
        """Write the schema to a JSON file."""
        Path(path).write_text(json.dumps(json.loads(self.to_json()), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Schema":
        """Read a schema from a file of `save`, or from one written by hand: see `from_json`."""
        return cls.from_json(Path(path).read_text())

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self._columns == other._columns

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        rows = [("column", "kind", "values", "missing counts as")]
        for each in self._columns:
            if isinstance(each, Person):
                values, missing = "", "(refused)"
            elif isinstance(each, YesNo):
                values, missing = "yes, no", "yes" if each.missing else "no"
            elif isinstance(each, Category):
                values, missing = ", ".join(each.all_levels), str(each.missing)
            else:
                low, high, missing = (
                    end if isinstance(end, str) else f"{end:.10g}" for end in (each.low, each.high, each.missing)
                )
                values = f"{low} to {high}" + (", raw" if each.raw else "")
            rows.append((each.name, type(each).__name__, values, missing))
        widths = [max(len(row[place]) for row in rows) for place in range(3)]
        return "\n".join(
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in rows
        )


def scale_of(column: Modelled) -> tuple[float, float]:
    """Return the middle and half the width of a column's range; (0, 1) if the model has the column's own units."""
    if isinstance(column, YesNo | Category) or column.raw:
        return 0.0, 1.0
    low, high = limits_of(column)
    return low + (high - low) / 2.0, (high - low) / 2.0


def limits_of(column: Number | Whole | Date) -> tuple[float, float]:
    """Return the declared range; for dates in days since `low`."""
    if isinstance(column, Date):
        return 0.0, days(column.high) - days(column.low)
    return float(column.low), float(column.high)


def array_of_part(column: Modelled, part: str, entries: FloatArray) -> np.ndarray:
    """Return a column, or one of its parts (`Schema.parts`), in the form of the model.

    `entries` are numbers, codes of levels or days since 1970; NaN where missing. Each entry of the result depends on
    the entry of the same row alone.
    """
    missing = np.isnan(entries)
    if part == f"{column.name}_missing":
        return missing.astype(np.int64)
    if isinstance(column, YesNo):
        return np.where(missing, column.missing, entries).astype(np.int64)
    if isinstance(column, Category):
        codes = np.where(missing, column.all_levels.index(str(column.missing)), entries).astype(np.int64)
        return codes if part == column.name else (codes == _parts(column).index(part) - 1).astype(np.int64)
    if isinstance(column, Date):
        values = np.where(missing, days(column.missing), entries) - days(column.low)
    else:
        values = np.where(missing, float(column.missing or 0), entries)
    low, high = limits_of(column)
    values = np.clip(values, low, high)
    if isinstance(column, Whole):
        values = np.rint(values)
    if column.raw:
        return values.astype(np.int64) if isinstance(column, Whole) else values
    middle, half = scale_of(column)
    return np.clip((values - middle) / half, -1.0, 1.0)


def days(date: str | datetime.date | None) -> float:
    """Return the days since 1970 of a declared day."""
    return float(datetime.date.fromisoformat(str(date)).toordinal() - _DAY_ZERO)


def _parts(column: Column) -> list[str]:
    """Return the names of a column's parts, without the column itself."""
    if isinstance(column, Person):
        return []
    levels = column.all_levels if isinstance(column, Category) else ()
    return [f"{column.name}_missing", *(f"{column.name}[{level}]" for level in levels)]


def _to_json(columns: Sequence[Column]) -> str:
    return json.dumps([{"kind": type(each).__name__, **dataclasses.asdict(each)} for each in columns])


def _from_json(text: str) -> list[Column]:
    return [_KINDS[each.pop("kind")](**each) for each in json.loads(text)]


def _set(column: Column, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(column, name, value)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgument('A declared column begins with its name: dp.Number("age", 18, 90).')


def _set_range(column: Number | Whole | Date, read: Callable[[str, Any], Any]) -> None:
    """Check a range and the value of missing entries, by default its middle, and set them as converted by `read`."""
    _check_name(column.name)
    low, high = (read(f"{which} of {column.name!r}", getattr(column, which)) for which in ("low", "high"))
    middle = low + ((high - low) / 2.0 if isinstance(low, float) else (high - low) // 2)
    missing = read(f"missing of {column.name!r}", middle if column.missing is None else column.missing)
    _validate.truth(f"raw of {column.name!r}", column.raw)
    if not low < high or (isinstance(low, float) and not math.isfinite(high - low)):
        raise InvalidArgument(f"low of {column.name!r} must be below its high, and their difference finite.")
    if not low <= missing <= high:
        raise InvalidArgument(f"missing of {column.name!r} must be in its range, from low to high.")
    plain = (each.isoformat() if isinstance(each, datetime.date) else each for each in (low, high, missing))
    _set(column, **dict(zip(("low", "high", "missing"), plain, strict=True)))


def _day(name: str, value: Any) -> datetime.date:
    try:
        return value.date() if isinstance(value, datetime.datetime) else datetime.date.fromisoformat(str(value))
    except ValueError:
        raise InvalidArgument(f'{name} must be a day, such as "2026-01-31".') from None
