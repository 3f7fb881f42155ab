"""Tables of this process: in memory, or in Parquet and Arrow files, which are read in blocks.

No unit is in two blocks, and a file that changes is refused.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from pymc_dp.exceptions import TableChanged, UnsupportedTable
from pymc_dp.memory import memory_of_this_machine
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.partitioned import Partial, Partitions, Pass, answer
from pymc_dp.rows.table import IntArray, RowTable
from pymc_dp.tables.columns import Columns, array_of, block_of, column_as_it_is, refuse_absent, unit_codes
from pymc_dp.tables.readers import arrow, arrow_columns

#: Numbers in a block: with its copies a few tens of megabytes.
_NUMBERS_OF_BLOCK = 2**20
#: Part of the memory up to which declared files are kept in it: the rest is for the run, and for other programs.
_PART_OF_MEMORY = 0.25
_ARROW, _PARQUET = (".arrow", ".feather", ".ipc"), (".parquet", ".pq")


class InMemory:
    """Partitions in memory, each unit in one block; values computed from them are cached between passes."""

    may_be_forked = True

    def __init__(self, template: UnitLikelihood, blocks: Sequence[RowTable]) -> None:
        many = len(blocks) > 1
        self._parts = [template.on_rows(block.rows, block.starts, one_of_many=many) for block in blocks]
        self.lengths = [part.n_units for part in self._parts]

    def answers(self, asked: Pass, units: Sequence[IntArray] | None) -> Iterator[Partial]:
        """Yield the answer of each partition."""
        for place, part in enumerate(self._parts):
            if units is None:
                yield answer(part, asked)
            elif units[place].size:
                yield answer(part, asked, units[place])

    def refuse_changes(self) -> None:
        """Do nothing: the rows are held here, or are the user's arrays, as in a model."""


class OutOfCore:
    """Partitions that are read from files in every pass and then dropped: memory does not grow with the table.

    Nothing is cached between passes: an expansion's weights are computed anew in each. The first reader sets `lengths`,
    the number of units of each block.
    """

    may_be_forked = True

    def __init__(self, template: UnitLikelihood, files: "Files", columns: Columns) -> None:
        self._template, self._files, self._columns = template, files.fixed(), columns
        self.lengths: list[int] = []
        self.refuse_changes = self._files.refuse_changes

    def answers(self, asked: Pass, units: Sequence[IntArray] | None) -> Iterator[Partial]:
        """Yield the answer of each partition."""
        for place, piece in enumerate(self._files.pieces(self._columns)):
            if units is not None and not (place < len(units) and units[place].size):
                continue
            block = block_of(self._columns, piece)
            part = self._template.on_rows(block.rows, block.starts, one_of_many=True)
            found = answer(part, asked, None if units is None else units[place])
            part.forget()
            yield found


class Source(ABC):
    """The source of a table's rows."""

    @abstractmethod
    def count(self, unit: str | None) -> int:
        """Return the number of units. Public under substitution only."""

    def fixed(self) -> "Source":
        """Return the same table with a fixed order of rows over all readings."""
        return self

    @abstractmethod
    def pieces(self, columns: Columns) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield the columns of pieces of the table; each piece has whole units."""

    @contextmanager
    def opened(self, template: UnitLikelihood, columns: Columns) -> Iterator[tuple[Partitions, int]]:
        """Open the table, and close it at the end; yield partitions, here in memory, and the number of rows."""
        blocks = [block_of(columns, piece) for piece in self.pieces(columns)]
        yield InMemory(template, blocks), sum(block.n_rows for block in blocks)


class Memory(Source):
    """A table in memory; `read` returns columns by name."""

    def __init__(self, read: Callable[[Sequence[str]], Mapping[str, Any]], names: Sequence[str]) -> None:
        self._read, self._names = read, list(names)

    def count(self, unit: str | None) -> int:
        """Return the number of units."""
        if unit is None:
            return len(column_as_it_is(self._names[0], self._read(self._names[:1])))
        return len(np.unique(unit_codes(unit, array_of(unit, self._read([unit]), is_unit=True))))

    def fixed(self) -> "Memory":
        """Return the same table, read once: a database may return its rows in another order each time."""
        once = self._read(self._names)
        return Memory(lambda _: once, self._names)

    def pieces(self, columns: Columns) -> Iterator[Mapping[str, np.ndarray]]:
        """Yield the columns of the whole table, as one piece."""
        table = self._read(columns.expected)
        refuse_absent(columns.expected, table)
        yield columns.read(table)


class Files(Source):
    """A table in files of this machine: a path, a pattern, a folder or a list of paths, in order of their names.

    Refuses other formats, a mix of formats, and a file that is named twice.
    """

    def __init__(self, source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
        arrow()
        paths = [Path(source)] if isinstance(source, str | os.PathLike) else [Path(one) for one in source]
        found: list[Path] = []
        for path in paths:
            if path.is_dir():
                found += sorted(one for one in path.iterdir() if one.suffix in (*_ARROW, *_PARQUET))
            elif any(mark in path.name for mark in "*?["):
                found += sorted(path.parent.glob(path.name))
            else:
                found.append(path)
        if len({path.suffix in _ARROW for path in found}) > 1:
            raise UnsupportedTable(
                "There are Parquet and Arrow files, which may hold the same rows twice. Name the files of one kind."
            )
        missing = [path for path in found if not path.is_file()]
        if missing or not found:
            raise UnsupportedTable(f"There is no file {missing[0] if missing else source}.")
        for path in found:
            if path.suffix not in (*_ARROW, *_PARQUET):
                raise UnsupportedTable(
                    f"{path.name} is neither a Parquet file ({', '.join(_PARQUET)}) nor an Arrow file "
                    f"({', '.join(_ARROW)}). A CSV file is read by Table.from_csv(path, schema)."
                )
        if len({(path.stat().st_dev, path.stat().st_ino) for path in found}) < len(found):
            raise UnsupportedTable("A file is named twice: its rows would count twice.")
        self._paths = found
        self._states: list[tuple[int, ...]] | None = None

    def count(self, unit: str | None) -> int:
        """Return the number of units; reads the column of units alone."""
        if unit is None:
            return sum(map(_number_of_rows, self._paths))
        pieces = _pieces(self._paths, Columns((), (), unit))
        return sum(len(np.unique(unit_codes(unit, piece[unit]))) for piece in pieces)

    def fixed(self) -> "Files":
        """Return the same files in their present state: rows of a file have an order, and a changed file is refused."""
        found = copy(self)
        vars(found)["_states"] = _states_of(self._paths)
        return found

    def refuse_changes(self) -> None:
        """Refuse a file whose size, time or place differs from its fixed state."""
        if self._states is not None and _states_of(self._paths) != self._states:
            raise TableChanged("A file of the table was changed or replaced since it was opened. Start again.")

    def pieces(self, columns: Columns) -> Iterator[dict[str, np.ndarray]]:
        """Yield the columns of pieces with whole units, always the same pieces in the same order."""
        files = self if self._states is not None else self.fixed()
        files.refuse_changes()
        yield from _pieces(self._paths, columns)
        files.refuse_changes()  # changes during the reading

    @contextmanager
    def opened(self, template: UnitLikelihood, columns: Columns) -> Iterator[tuple[Partitions, int]]:
        """Read all rows once, so that errors are found before the charge.

        Declared columns take long to read: they are kept where their numbers fit into memory, and else read in each
        pass, with the same bits.
        """
        partitions, n_rows = OutOfCore(template, self, columns), 0
        bytes_of_row = sum(each.dtype.itemsize * int(np.prod(each.shape, dtype=int)) for each in columns.inputs)
        needed = sum(map(_number_of_rows, self._paths)) * bytes_of_row
        fits = columns.schema is not None and needed < _PART_OF_MEMORY * memory_of_this_machine()
        kept: list[RowTable] = []
        for piece in self.pieces(columns):
            block = block_of(columns, piece)
            partitions.lengths.append(block.n_units)
            n_rows += block.n_rows
            if fits:
                kept.append(block)
        partitions.refuse_changes()
        yield InMemory(template, kept) if fits else partitions, n_rows


class PartOfUnits(Source):
    """A part of the units of a fixed table of this machine.

    `kept` marks the units of the part: rows in the order of the table, or units of several rows in the order of their
    names. Confidential.
    """

    def __init__(self, source: Source, kept: np.ndarray) -> None:
        self.source, self.kept = source, kept

    def count(self, unit: str | None) -> int:
        """Return the number of units."""
        return int(self.kept.sum())

    def pieces(self, columns: Columns) -> Iterator[dict[str, np.ndarray]]:
        """Yield the columns of pieces of the table; each piece has whole units."""
        begin = end = 0
        for arrays in self.source.pieces(columns):
            if columns.unit is None:
                places = np.arange(len(next(iter(arrays.values()))))
            else:
                _, places = np.unique(unit_codes(columns.unit, arrays[columns.unit]), return_inverse=True)
            end = begin + int(places.max(initial=-1)) + 1
            kept = self.kept[begin:end]
            if end > self.kept.size:
                break
            yield {name: values[kept[places]] for name, values in arrays.items()}
            begin = end
        if end != self.kept.size:
            raise TableChanged("The table has another number of units than when its folds were made. Make them again.")


def _states_of(paths: Sequence[Path]) -> list[tuple[int, ...]]:
    """Return sizes, times and places of files."""
    try:
        states = [os.stat(path) for path in paths]
    except OSError as error:
        raise TableChanged(f"A file of the table cannot be read any more: {type(error).__name__}.") from None
    return [(state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_dev, state.st_ino) for state in states]


def _pieces(paths: Sequence[Path], columns: Columns) -> Iterator[dict[str, np.ndarray]]:
    """Yield pieces of files from `Columns.read`, in order; with units of several rows, pieces end where a unit ends.

    Rows that are not sorted by unit are refused: a unit could have rows in two pieces, and would count twice.
    """
    unit = columns.unit
    width = sum(int(np.prod(each.shape, dtype=int)) for each in columns.inputs) + (unit is not None)
    n_rows = max(1, _NUMBERS_OF_BLOCK // max(1, width))
    last: dict[str, np.ndarray] | None = None
    for batch in (batch for path in paths for batch in _batches(path, columns, n_rows)):
        for begin in range(0, max(1, batch.num_rows), n_rows):
            arrays = columns.read(arrow_columns(batch.slice(begin, n_rows), columns.names))
            if unit is None:
                yield arrays
                continue
            if last is not None:
                arrays = {name: np.concatenate([last[name], values]) for name, values in arrays.items()}
            codes = unit_codes(unit, arrays[unit])
            if not codes.size:
                yield arrays
                continue
            if np.any(codes[1:] < codes[:-1]):
                raise UnsupportedTable(
                    f"The rows are not sorted by {unit!r}: a unit could have rows in two places. Sort the file once, "
                    f"for instance with polars.scan_parquet(path).sort({unit!r}).sink_parquet(sorted_path)."
                )
            cut = int(np.searchsorted(codes, codes[-1], side="left"))
            if cut:
                yield {name: values[:cut] for name, values in arrays.items()}
            last = {name: values[cut:] for name, values in arrays.items()}
    if last is not None:
        yield last


def _batches(path: Path, columns: Columns, n_rows: int) -> Iterator[Any]:
    """Yield record batches of a file with the columns that are read; an empty one of a file without rows.

    Its types are refused like those of a file with rows: the number of rows may be protected.
    """
    with _opened(path) as file:
        schema = file.schema_arrow if path.suffix in _PARQUET else file.schema
        refuse_absent(columns.expected, schema.names)
        if path.suffix in _PARQUET:
            batches = file.iter_batches(batch_size=n_rows, columns=columns.names)
        else:
            batches = (file.get_batch(place).select(columns.names) for place in range(file.num_record_batches))
        batch = None
        for batch in batches:
            yield batch
        if batch is None:
            yield schema.empty_table().select(columns.names)


def _number_of_rows(path: Path) -> int:
    """Return the number of rows of a file from its metadata."""
    with _opened(path) as file:
        if path.suffix in _PARQUET:
            return int(file.metadata.num_rows)
        return sum(int(file.get_batch(place).num_rows) for place in range(file.num_record_batches))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; replace messages of its reader's errors, which may hold entries."""
    import pyarrow as pa  # noqa: PLC0415  optional
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        if path.suffix in _PARQUET:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                yield file
        else:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                yield file
    except (pa.ArrowException, OSError) as error:
        error.args = ()  # the refusal carries the error with it
        raise UnsupportedTable(f"{path.name!r} cannot be read: {type(error).__name__}. Is it of that format?") from None
