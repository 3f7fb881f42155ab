"""The ledger of a saved budget: one SQLite file that several processes may use at the same time.

Every charge is one transaction, which takes the file's write lock, reads the earlier charges, decides, and appends: two
processes cannot both spend the rest of a budget. Rows are only ever appended; triggers refuse updates and deletions.
The transaction is on disk before a run may start. A killed process therefore neither loses a charge nor recovers it:
SQLite's rollback journal undoes an incomplete transaction, and a run whose charge was undone has not started.
``synchronous=EXTRA`` also synchronises the deletion of the journal; without it, a power failure just after a charge
could restore the journal, which undoes the charge.

A chain of digests over the facts and all charges, in order, detects a damaged file. It is not a signature: anyone with
write access to the file can write another budget.
"""

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pymc_dp.budget.plan import Plan
from pymc_dp.exceptions import BudgetFileError, InvalidArgument

_APPLICATION_ID = 0x70644250
FORMAT_VERSION = 2
#: Seconds to wait for the lock of another process.
_SECONDS_TO_WAIT = 120.0
#: The field of a record that holds the record's digest.
_DIGEST = "digest"
#: SQLite's error codes of disks and permissions; other codes concern the content of the file.
_CODES_OF_THE_DISK = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}

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
    """The file of one saved budget, which has to exist."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _resolved(path)
        #: Number and digest of the charges that this process has read: the file has to begin with them ever after.
        self._seen: tuple[int, str | None] = (0, None)
        try:
            found = self.path.is_file()
        except OSError as error:
            raise BudgetFileError(f"{self.path} cannot be looked at: {error.strerror}.") from None
        if not found:
            raise InvalidArgument(f"There is no saved budget at {self.path}.")

    @staticmethod
    def is_there(path: str | os.PathLike[str]) -> bool:
        """Return whether a file of that name exists."""
        return os.path.lexists(_resolved(path))

    @classmethod
    def create(cls, path: str | os.PathLike[str], facts: Mapping[str, Any], history: Sequence[Plan]) -> "Ledger":
        """Create the file atomically, with its complete content; never replace an existing file."""
        target = _resolved(path)
        try:
            handle, name = tempfile.mkstemp(prefix=".budget-", dir=target.parent)
            os.close(handle)
            try:
                _write(name, facts, history)
                os.link(name, target)
            finally:
                os.unlink(name)
            _sync_folder(target.parent)
        except FileExistsError:
            raise InvalidArgument(f"{target} exists already; a saved budget is never replaced.") from None
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BudgetFileError(f"No budget can be saved at {target}: {reason}. Choose another folder.") from None
        return cls(target)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        # One connection per use: no connection survives a fork or stays open during a run.
        try:
            if not self.path.is_file():
                raise BudgetFileError(f"There is no saved budget at {self.path} any more.")
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=rw", uri=True, timeout=_SECONDS_TO_WAIT, isolation_level=None
            )
        except (OSError, sqlite3.Error) as error:
            raise _unusable(self.path, error) from None
        try:
            connection.execute("PRAGMA synchronous = EXTRA")
            yield connection
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:  # SQLite raises the last one for damaged names
            raise _unusable(self.path, error) from None
        finally:
            connection.close()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the budget; refuse other files, damaged files and unknown formats."""
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
            return self._read_facts(connection)[0]

    def history(self) -> list[Plan]:
        """Return every plan that was charged, in order."""
        with self._open() as connection:
            connection.execute("BEGIN")  # a consistent snapshot of facts and charges
            return self._read(connection)[0]

    def append(self, plan: Plan, check: Callable[[Sequence[Plan]], None]) -> None:
        """Append a plan if `check`, given the earlier plans, does not raise; all under the file's lock.

        After an exception nothing is charged, and the run has not started.
        """
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                history, digest = self._read(connection)
                check(history)
                text, digest = _signed(plan.to_record(), digest)
                connection.execute("INSERT INTO spent VALUES (?, ?)", (len(history) + 1, text))
                connection.execute("COMMIT")
                self._seen = (len(history) + 1, digest)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _read_facts(self, connection: sqlite3.Connection) -> tuple[dict[str, Any], str]:
        """Return the facts and their digest."""
        rows = connection.execute("SELECT name, value FROM facts").fetchall()
        facts = {name: _parsed(value) for name, value in rows}
        stored, digest = facts.pop(_DIGEST, None), _digest_of("", facts)
        if stored != digest:
            raise InvalidArgument(f"{self.path} is damaged: its facts do not agree with their digest.")
        return facts, digest

    def _read(self, connection: sqlite3.Connection) -> tuple[list[Plan], str]:
        """Return all charged plans and the last digest."""
        _, digest = self._read_facts(connection)
        rows = connection.execute("SELECT number, plan FROM spent ORDER BY number").fetchall()
        if [number for number, _ in rows] != list(range(1, len(rows) + 1)):
            raise InvalidArgument(f"{self.path} is damaged: spends are missing.")
        history, digests = [], [digest]
        for _, text in rows:
            record = _parsed(text)
            stored = record.pop(_DIGEST, None) if isinstance(record, dict) else None
            digest = _digest_of(digest, record)
            if stored != digest:
                raise InvalidArgument(f"{self.path} is damaged: a spend does not agree with its digest.")
            history.append(Plan.from_record(record))
            digests.append(digest)
        count, seen = self._seen
        if len(rows) < count or (seen is not None and digests[count] != seen):
            raise InvalidArgument(
                f"{self.path} is another file than before, or an older copy: put back the newest one."
            )
        self._seen = (len(rows), digest)
        return history, digest


def _write(name: str, facts: Mapping[str, Any], history: Sequence[Plan]) -> None:
    with closing(sqlite3.connect(name, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.executescript(_SCHEMA)
        connection.execute("BEGIN IMMEDIATE")
        digest = _digest_of("", facts)
        for fact, value in {**facts, _DIGEST: digest}.items():
            connection.execute("INSERT INTO facts VALUES (?, ?)", (fact, json.dumps(value)))
        for number, plan in enumerate(history, start=1):
            text, digest = _signed(plan.to_record(), digest)
            connection.execute("INSERT INTO spent VALUES (?, ?)", (number, text))
        connection.execute("COMMIT")


def _digest_of(before: str, record: Any) -> str:
    """Return the digest of a record and of everything before it."""
    return hashlib.sha256((before + json.dumps(record, sort_keys=True)).encode()).hexdigest()


def _signed(record: Mapping[str, Any], before: str) -> tuple[str, str]:
    """Return a record as text with its digest, and the digest."""
    digest = _digest_of(before, record)
    return json.dumps({**record, _DIGEST: digest}), digest


def _resolved(path: Any) -> Path:
    try:
        return Path(path).resolve()
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise InvalidArgument(f"path must be the path of a file ({type(error).__name__}).") from None


def _unusable(path: Path, error: OSError | sqlite3.Error | UnicodeDecodeError) -> BudgetFileError | InvalidArgument:
    """Return the package's own error, with advice, for an error of the operating system or of SQLite."""
    if isinstance(error, BudgetFileError):
        return error
    # The last byte of an extended code is the code that it extends.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return BudgetFileError(
            f"{path} has been locked by another process for {_SECONDS_TO_WAIT:g} seconds. Nothing was charged. Wait "
            "for that process, or end it."
        )
    if code in _CODES_OF_THE_DISK or isinstance(error, OSError):
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return BudgetFileError(
            f"{path} cannot be used: {reason}. Nothing was charged, and no run was started. The file and its folder "
            "have to be readable and writable, with room on the disk."
        )
    reason = "it is damaged" if isinstance(error, UnicodeDecodeError) else str(error)
    return InvalidArgument(f"{path} cannot be used as a saved budget: {reason}.")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise InvalidArgument("A saved budget holds a value that cannot be read.") from None


def _sync_folder(folder: Path) -> None:
    """Synchronise the folder to disk, so that a new name in it survives a crash of the machine."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
