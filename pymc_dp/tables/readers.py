"""Readers of what has no types that can be trusted: CSV files, and the answers of databases.

Entries stay as they are read, each by itself. A reader that guesses the type of a column does so from all of its rows:
one row would change what the others are.
"""

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pymc_dp.exceptions import InvalidArgument, TableChanged, UnsupportedTable

_WITHOUT_VALUES = "Its message is not shown, as it may hold entries"


class CsvFile:
    """A CSV file with a line of names, read when the table is opened.

    Parameters
    ----------
    path : path
        The file.
    separator : str
        Between entries.
    encoding : str
        Of its texts.

    Raises
    ------
    UnsupportedTable
        If there is no such file.
    InvalidArgument
        If there is no such separator or encoding.
    """

    def __init__(self, path: str | os.PathLike[str], separator: str, encoding: str) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(f"from_csv takes the path of a file, not a {type(path).__name__}.")
        self._path, self._separator, self._encoding = Path(path), separator, encoding
        if not (isinstance(separator, str) and len(separator) == 1) or separator in '"\r\n ':
            raise InvalidArgument("separator must be a single character, such as ';' or a tab.")
        try:
            "".encode(encoding)
        except (LookupError, TypeError):
            raise InvalidArgument("encoding must be one that Python knows, such as 'utf-8' or 'latin-1'.") from None
        if not self._path.is_file():
            raise UnsupportedTable(f"There is no file {self._path.name!r}.")

    def read(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return some columns as texts without spaces at their ends, None where an entry is empty.

        Raises
        ------
        UnsupportedTable
            If this is no CSV file: its format is public, and says nothing of a single entry.
        TableChanged
            If the file changes meanwhile.
        """
        before = self._state()
        try:
            with self._path.open(newline="", encoding=self._encoding) as file:
                columns = self._columns(csv.reader(file, delimiter=self._separator, strict=True), names)
        except (UnicodeError, csv.Error, OSError) as error:
            raise UnsupportedTable(
                f"{self._path.name!r} cannot be read as CSV: {_REASONS.get(type(error), type(error).__name__)}"
            ) from None
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
        places = [_place(header, name) for name in names]
        found: list[list[str | None]] = [[] for _ in names]
        for line in lines:
            if len(line) != len(header):
                if not line:
                    continue
                raise UnsupportedTable(
                    f"{self._path.name!r} has lines with more or fewer entries than names in its first line. Is the "
                    "separator right, and is there a quote or a separator within an entry?"
                )
            for column, place in zip(found, places, strict=True):
                column.append(line[place].strip() or None)
        return {name: np.array(column, dtype=object) for name, column in zip(names, found, strict=True)}


_REASONS: dict[type[Exception], str] = {
    UnicodeDecodeError: "it is written in another encoding. Pass encoding=, such as 'latin-1' or 'utf-16'.",
    csv.Error: "a quote is not closed, or stands within an entry.",
}


class Query:
    """What a query to a database returns, read when the table is opened.

    Parameters
    ----------
    query : str
        In SQL.
    connection : object
        A connection of DuckDB, an engine or connection of SQLAlchemy, or a connection that follows Python's DB-API,
        such as one of sqlite3.

    Raises
    ------
    InvalidArgument
        If it is none of these.
    """

    def __init__(self, query: str, connection: Any) -> None:
        if not isinstance(query, str):
            raise InvalidArgument("A query is a text in SQL.")
        self._query, self._open = query, _opener(connection)

    def read(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return some columns, each entry as the database gives it.

        Raises
        ------
        UnsupportedTable
            If the database refuses the query, or a column is not there.
        """
        try:
            with self._open(self._query) as (header, fetch):
                rows = fetch()
        except Exception as error:  # its message may hold entries
            raise UnsupportedTable(
                f"The database did not answer the query: {type(error).__name__}. {_WITHOUT_VALUES}."
            ) from None
        found = {}
        for name in names:
            place = _place(list(header), name)
            column = np.empty(len(rows), dtype=object)
            column[:] = [row[place] for row in rows]
            found[name] = column
        return found


def _place(header: Sequence[str], name: str) -> int:
    """Return where a column is."""
    if (count := header.count(name)) != 1:
        known = "no column" if not count else "several columns"
        raise UnsupportedTable(f"The table has {known} {name!r}.")
    return header.index(name)


def _opener(connection: Any) -> Callable[[str], Any]:
    """Return what opens a query, as a context with the names of columns and what fetches the rows."""

    @contextmanager
    def of_sqlalchemy(query: str) -> Iterator[tuple[Sequence[str], Callable[[], list[Any]]]]:
        import sqlalchemy  # noqa: PLC0415  optional: who has a connection has it

        with connection.connect() if hasattr(connection, "connect") else _left_open(connection) as here:
            result = here.execute(sqlalchemy.text(query))
            yield list(result.keys()), result.all

    @contextmanager
    def of_database_api(query: str) -> Iterator[tuple[Sequence[str], Callable[[], list[Any]]]]:
        cursor = connection.cursor()
        try:
            cursor.execute(query)
            yield [each[0] for each in cursor.description], cursor.fetchall
        finally:
            cursor.close()

    if type(connection).__module__.partition(".")[0] == "sqlalchemy":
        return of_sqlalchemy
    if callable(getattr(connection, "cursor", None)):  # DuckDB's, too
        return of_database_api
    raise InvalidArgument(
        f"A {type(connection).__name__} is no connection to a database: pass one of DuckDB, of SQLAlchemy, or one with "
        "cursor(), as that of sqlite3."
    )


@contextmanager
def _left_open(connection: Any) -> Iterator[Any]:
    yield connection
