"""Readers of whole tables: CSV files, results of database queries, Datasets and Arrow tables.

Entries are not converted. A reader that infers the type of a column does so from all of its rows: one row would change
the values of others. Messages of readers, which may hold entries, are left out.
"""

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp.exceptions import InvalidArgument, TableChanged, UnsupportedTable

_COMPRESSED = (".gz", ".zip", ".bz2", ".xz", ".zst")
#: The largest length of an entry that Python's reader accepts on every platform.
_LONGEST = 2**31 - 1


class CsvFile:
    """A CSV file with a line of names, read when the table is opened."""

    def __init__(self, path: str | os.PathLike[str], separator: str, encoding: str) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(f"from_csv takes the path of a file, not a {type(path).__name__}.")
        self._path, self._separator, self._encoding = Path(path).expanduser(), separator, encoding
        if not (isinstance(separator, str) and len(separator) == 1) or separator in '"\r\n ':
            raise InvalidArgument("separator must be a single character, such as ';' or a tab.")
        try:
            "".encode(encoding)
        except (LookupError, TypeError):
            raise InvalidArgument("encoding must be one that Python knows, such as 'utf-8' or 'latin-1'.") from None
        if not self._path.is_file():
            raise UnsupportedTable(f"There is no file {self._path.name!r}.")
        if self._path.suffix in _COMPRESSED:
            raise UnsupportedTable(f"{self._path.name!r} is compressed: unpack it first.")

    def read(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return columns as texts without spaces at their ends, None where an entry is empty.

        Other formats than CSV are refused: the format is public, and does not reveal a single entry.
        """
        before, failed = self._state(), ""
        columns: dict[str, np.ndarray] = {}
        limit = csv.field_size_limit(_LONGEST)  # so that a long entry is not an error
        try:
            with self._path.open(newline="", encoding=self._encoding) as file:
                columns = self._columns(csv.reader(file, delimiter=self._separator, strict=True), names)
        except (UnicodeError, csv.Error, OSError) as error:
            reasons: dict[type[Exception], str] = {
                UnicodeDecodeError: "it is written in another encoding. Pass encoding=, such as 'latin-1' or 'utf-16'.",
                csv.Error: "a quote is not closed, or stands within an entry, or separator= is another one.",
            }
            failed = reasons.get(type(error), type(error).__name__)
        finally:
            csv.field_size_limit(limit)
        if failed:  # raised here, it does not carry the error with it, which holds bytes of the file
            raise UnsupportedTable(f"{self._path.name!r} cannot be read as CSV: {failed}")
        if self._state() != before:
            raise TableChanged("The file of the table was changed while it was read. Start again.")
        return columns

    def _state(self) -> tuple[int, int]:
        try:
            state = os.stat(self._path)
        except OSError:
            raise TableChanged("The file of the table cannot be read any more.") from None
        return state.st_size, state.st_mtime_ns

    def _columns(self, lines: Iterator[list[str]], names: Sequence[str]) -> dict[str, np.ndarray]:
        header = [name.strip() for name in next(lines, [])]
        if not any(header):
            raise UnsupportedTable(f"{self._path.name!r} is empty: its first line has to name the columns.")
        hint = (
            f" The first line of {self._path.name!r} has to name columns, with {self._separator!r} between them. Pass "
            "separator= if another character stands there."
        )
        places = [_place(header, name, hint) for name in names]
        found: list[list[str | None]] = [[] for _ in names]
        for line in lines:
            if not line:
                if len(header) > 1:
                    continue
                line = [""]  # noqa: PLW2901  a missing entry of a single column is a row
            if len(line) != len(header):
                raise UnsupportedTable(
                    f"{self._path.name!r} has lines with more or fewer entries than names in its first line. Is the "
                    "separator right, and is there a quote or a separator within an entry?"
                )
            for column, place in zip(found, places, strict=True):
                column.append(line[place].strip() or None)
        return {name: np.array(column, dtype=object) for name, column in zip(names, found, strict=True)}


class Query:
    """The result of a database query, which is made when the table is opened.

    The connection is one of DuckDB, an engine or connection of SQLAlchemy, or a connection that follows Python's
    DB-API, such as one of sqlite3.
    """

    def __init__(self, query: str, connection: Any) -> None:
        if not isinstance(query, str):
            raise InvalidArgument("A query is a text in SQL.")
        self._query, self._connection = query, connection
        self._is_sqlalchemy = type(connection).__module__.partition(".")[0] == "sqlalchemy"
        if not self._is_sqlalchemy and not callable(getattr(connection, "cursor", None)):  # DuckDB's has a cursor, too
            raise InvalidArgument(
                f"A {type(connection).__name__} is no connection to a database: pass one of DuckDB, of SQLAlchemy, or "
                "one with cursor(), as that of sqlite3."
            )

    def read(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return columns with the entries of the database, not converted."""
        failed = ""
        try:
            if self._is_sqlalchemy:
                import sqlalchemy  # noqa: PLC0415  optional: installed if there is a connection

                is_engine = hasattr(self._connection, "connect")
                with self._connection.connect() if is_engine else nullcontext(self._connection) as connection:
                    result = connection.execute(sqlalchemy.text(self._query))
                    header, rows = list(result.keys()), result.all()
            else:
                with closing(self._connection.cursor()) as cursor:
                    cursor.execute(self._query)
                    header, rows = [each[0] for each in cursor.description], cursor.fetchall()
        except Exception as error:
            failed = type(error).__name__
        if failed:  # raised here, it does not carry the error with it, whose message may hold entries
            raise UnsupportedTable(
                f"The database did not answer the query: {failed}. Its message is not shown, as it may hold entries."
            )
        places = {name: _place(header, name) for name in names}
        return {name: np.fromiter((row[at] for row in rows), object, len(rows)) for name, at in places.items()}


def _place(header: Sequence[str], name: str, hint: str = "") -> int:
    """Return the index of a column; refuse a name that is absent, with a hint, or not unique."""
    if (count := header.count(name)) != 1:
        raise UnsupportedTable(
            f"The table has several columns {name!r}." if count else f"The table has no column {name!r}.{hint}"
        )
    return header.index(name)


def dataset_columns(dataset: xr.Dataset, dim: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the named variables of a Dataset that have the dim of rows, with the axis of rows first."""
    with_rows = [name for name in names if name in dataset.variables and dim in dataset[name].dims]
    return {name: np.asarray(dataset[name].transpose(dim, ...).values) for name in with_rows}


def arrow_columns(table: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the named columns of an Arrow table or record batch that exist; refuse a name that is not unique."""
    present = table.schema.names
    for name in names:
        if present.count(name) > 1:
            raise UnsupportedTable(f"The table has several columns {name!r}.")
    return {name: table.column(name) for name in names if name in present}


def arrow_table(source: Any) -> Any:
    """Return a data frame that implements Arrow's protocol, or the interchange protocol, as an Arrow table."""
    if hasattr(source, "__arrow_c_stream__"):
        return arrow().table(source)
    arrow()
    from pyarrow.interchange import from_dataframe  # noqa: PLC0415  optional

    return from_dataframe(source)


def arrow() -> Any:
    """Return PyArrow; refuse the table if PyArrow is not installed."""
    try:
        import pyarrow  # noqa: PLC0415  optional
    except ModuleNotFoundError:
        raise UnsupportedTable("This table is read through Arrow: pip install pyarrow.") from None
    return pyarrow
