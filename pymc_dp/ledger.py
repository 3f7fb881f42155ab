"""Where a saved budget keeps what was spent: one SQLite file that several processes may use at once.

Every spend is one transaction that first takes the file's write lock, then reads what was spent, decides, and
appends: so two processes cannot both spend the last of a budget. Rows are only ever appended; triggers refuse
anything else. The transaction is on disk (synchronous=FULL) before a run may start, so a killed process neither
loses a spend nor gets it back: SQLite's rollback journal undoes a half-written transaction, and a run whose charge
was undone has not begun.
"""

import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.plan import Plan

_APPLICATION_ID = 0x70644250
FORMAT_VERSION = 1
#: How long to wait for another process that is charging.
_SECONDS_TO_WAIT = 120.0

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE spent (number INTEGER PRIMARY KEY, plan TEXT NOT NULL);
CREATE TRIGGER spent_is_kept BEFORE DELETE ON spent BEGIN SELECT RAISE(ABORT, 'what was spent stays spent'); END;
CREATE TRIGGER spent_is_fixed BEFORE UPDATE ON spent BEGIN SELECT RAISE(ABORT, 'what was spent stays spent'); END;
CREATE TRIGGER facts_are_kept BEFORE DELETE ON facts BEGIN SELECT RAISE(ABORT, 'a budget is fixed'); END;
CREATE TRIGGER facts_are_fixed BEFORE UPDATE ON facts BEGIN SELECT RAISE(ABORT, 'a budget is fixed'); END;
"""


class Ledger:
    """The file of one saved budget.

    Parameters
    ----------
    path : Path
        An existing file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()
        if not self.path.is_file():
            raise InvalidArgument(f"There is no saved budget at {self.path}.")

    @classmethod
    def create(cls, path: str | os.PathLike[str], facts: Mapping[str, Any], history: Sequence[Plan]) -> "Ledger":
        """Write a new file, complete from the moment that it has its name; an existing one is never replaced."""
        target = Path(path).resolve()
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        try:
            connection = sqlite3.connect(name, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous = FULL")
                connection.executescript(_SCHEMA)
                connection.execute("BEGIN IMMEDIATE")
                for fact, value in facts.items():
                    connection.execute("INSERT INTO facts VALUES (?, ?)", (fact, json.dumps(value)))
                for number, plan in enumerate(history, start=1):
                    connection.execute("INSERT INTO spent VALUES (?, ?)", (number, json.dumps(plan.to_record())))
                connection.execute("COMMIT")
            finally:
                connection.close()
            try:
                os.link(name, target)
            except FileExistsError:
                raise InvalidArgument(f"{target} exists already; a saved budget is never replaced.") from None
        finally:
            os.unlink(name)
        _sync_folder(target.parent)
        return cls(target)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        # A connection for each use: none is ever carried over a fork or kept while a run goes on.
        try:
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw", uri=True, timeout=_SECONDS_TO_WAIT, isolation_level=None
            )
        except sqlite3.OperationalError:
            raise InvalidArgument(f"There is no saved budget at {self.path} any more.") from None
        try:
            connection.execute("PRAGMA synchronous = FULL")
            yield connection
        except sqlite3.DatabaseError as error:
            raise InvalidArgument(f"{self.path} cannot be used as a saved budget: {error}.") from None
        finally:
            connection.close()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the budget.

        Raises
        ------
        InvalidArgument
            If the file is not a saved budget, is damaged, or of a format that this version does not know.
        """
        with self._open() as connection:
            if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
                raise InvalidArgument(f"{self.path} is not a saved budget.")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != FORMAT_VERSION:
                raise InvalidArgument(
                    f"{self.path} has format {version}; this version of pymc_dp knows {FORMAT_VERSION}."
                )
            if connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
                raise InvalidArgument(f"{self.path} is damaged.")
            rows = connection.execute("SELECT name, value FROM facts").fetchall()
        return {name: _parsed(value) for name, value in rows}

    def history(self) -> list[Plan]:
        """Return every plan that was charged, in order."""
        with self._open() as connection:
            return self._read(connection)

    def append(self, plan: Plan, check: Callable[[Sequence[Plan]], None]) -> None:
        """Append a plan if `check`, given what was spent before, does not raise; all under the file's lock."""
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                history = self._read(connection)
                check(history)
                connection.execute("INSERT INTO spent VALUES (?, ?)", (len(history) + 1, json.dumps(plan.to_record())))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _read(self, connection: sqlite3.Connection) -> list[Plan]:
        rows = connection.execute("SELECT number, plan FROM spent ORDER BY number").fetchall()
        if [number for number, _ in rows] != list(range(1, len(rows) + 1)):
            raise InvalidArgument(f"{self.path} is damaged: spends are missing.")
        return [Plan.from_record(_parsed(text)) for _, text in rows]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidArgument("A saved budget holds a value that cannot be read.") from None


def _sync_folder(folder: Path) -> None:
    """Make sure that a new name in the folder survives a crash of the machine."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
