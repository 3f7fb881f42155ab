"""Tables in files on one machine, read in blocks: Parquet, and Arrow files that are mapped into memory."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pymc_dp.exceptions import TableChanged, UnsupportedTable
from pymc_dp.tables.columns import Block, Columns, block_of, refuse_absent, unit_codes

#: Numbers of a block: with its copies a few tens of megabytes.
_NUMBERS_OF_BLOCK = 2**20
_ARROW, _PARQUET = (".arrow", ".feather", ".ipc"), (".parquet", ".pq")


class FileBlocks:
    """The blocks of one or several files, always the same ones in the same order.

    Parameters
    ----------
    paths : sequence of Path
        Parquet or Arrow files, in order.
    columns : Columns
        Which columns to read. Where units have several rows, the files have to be sorted by unit.

    Raises
    ------
    UnsupportedTable
        If there is no file, or none of these kinds, or a column is missing.
    """

    def __init__(self, paths: Sequence[Path], columns: Columns) -> None:
        self._paths, self._columns = list(paths), columns
        width = sum(int(np.prod(each.shape, dtype=int)) for each in columns.inputs) + (columns.unit is not None)
        self._rows_of_block = max(1, _NUMBERS_OF_BLOCK // max(1, width))
        self._states = self._seen()

    def refuse_changes(self) -> None:
        """Refuse, if a file has another size, time or place than when it was opened.

        Raises
        ------
        TableChanged
            If one has.
        """
        if self._seen() != self._states:
            raise TableChanged("A file of the table was changed or replaced since it was opened. Start again.")

    def _seen(self) -> list[tuple[int, ...]]:
        try:
            states = [os.stat(path) for path in self._paths]
        except OSError as error:
            raise TableChanged(f"A file of the table cannot be read any more: {type(error).__name__}.") from None
        return [(state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_dev, state.st_ino) for state in states]

    def blocks(self, wanted: Sequence[bool] | None = None) -> Iterator[Block | None]:
        """Yield the blocks; None in the place of those that are not wanted."""
        for place, piece in enumerate(self._cut()):
            left_out = wanted is not None and not (place < len(wanted) and wanted[place])
            yield None if left_out else block_of(self._columns, piece)

    def all_blocks(self) -> Iterator[Block]:
        """Yield all blocks."""
        yield from (block_of(self._columns, piece) for piece in self._cut())

    def _cut(self) -> Iterator[Mapping[str, np.ndarray]]:
        return self._pieces() if self._columns.unit is None else self._whole_units()

    def count(self) -> int:
        """Return how many units there are, reading no more than the column of units."""
        if self._columns.unit is None:
            return sum(_number_of_rows(path) for path in self._paths)
        return sum(
            len(np.unique(unit_codes(self._columns.unit, piece[self._columns.unit]))) for piece in self._whole_units()
        )

    def _pieces(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield pieces of the files, in order, as `Columns.read` gives them."""
        for path in self._paths:
            for batch in _batches(path, self._columns, self._rows_of_block):
                for begin in range(0, batch.num_rows, self._rows_of_block):
                    yield self._columns.read(ArrowColumns(batch.slice(begin, self._rows_of_block)))

    def _whole_units(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield pieces that are cut where a unit ends.

        Raises
        ------
        UnsupportedTable
            If the units do not increase from row to row: one could have rows in two pieces, and would count twice.
        """
        unit = str(self._columns.unit)
        left: dict[str, np.ndarray] | None = None
        for arrays in self._pieces():
            if left is not None:
                arrays = {name: np.concatenate([left[name], values]) for name, values in arrays.items()}  # noqa: PLW2901
            codes = unit_codes(unit, arrays[unit])
            if np.any(codes[1:] < codes[:-1]):
                raise UnsupportedTable(
                    f"The rows are not sorted by {unit!r}: a unit could have rows in two places. Sort the file once, "
                    f"for instance with polars.scan_parquet(path).sort({unit!r}).sink_parquet(sorted_path)."
                )
            cut = int(np.searchsorted(codes, codes[-1], side="left"))
            if cut:
                yield {name: values[:cut] for name, values in arrays.items()}
            left = {name: values[cut:] for name, values in arrays.items()}
        if left is not None:
            yield left


class ArrowColumns(Mapping[str, Any]):
    """The columns of an Arrow table or record batch."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getitem__(self, name: str) -> Any:
        if (count := self._table.schema.names.count(name)) != 1:
            raise UnsupportedTable(f"The table has several columns {name!r}.") if count else KeyError(name)
        return self._table.column(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.schema.names)

    def __len__(self) -> int:
        return len(self._table.schema.names)


@contextmanager
def _messages_left_out(path: Path) -> Iterator[None]:
    """Raise what a reader raises without its message, which may hold entries."""
    import pyarrow as pa  # noqa: PLC0415  optional

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UnsupportedTable(f"{path.name!r} cannot be read: {type(error).__name__}. Is it of that format?") from None


def _batches(path: Path, columns: Columns, n_rows: int) -> Iterator[Any]:
    """Yield record batches of a file with some of its columns."""
    names = columns.names
    import pyarrow as pa  # noqa: PLC0415  optional
    import pyarrow.parquet as pq  # noqa: PLC0415

    if path.suffix in _PARQUET:
        with _messages_left_out(path), pq.ParquetFile(path, pre_buffer=False) as file:
            refuse_absent(columns.expected, file.schema_arrow.names)
            yield from file.iter_batches(batch_size=n_rows, columns=names)
        return
    with _messages_left_out(path), pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        refuse_absent(columns.expected, file.schema.names)
        for place in range(file.num_record_batches):
            yield file.get_batch(place).select(names)


def _number_of_rows(path: Path) -> int:
    """Return how many rows a file has, which is written in it."""
    import pyarrow as pa  # noqa: PLC0415  optional
    import pyarrow.parquet as pq  # noqa: PLC0415

    if path.suffix in _PARQUET:
        with _messages_left_out(path), pq.ParquetFile(path) as file:
            return int(file.metadata.num_rows)
    with _messages_left_out(path), pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        return sum(int(file.get_batch(place).num_rows) for place in range(file.num_record_batches))


def files_of(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files that a path, a pattern, a folder or a list of paths names, in order of their names.

    Raises
    ------
    UnsupportedTable
        If there is none, or one is neither Parquet nor Arrow.
    """
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
                f"({', '.join(_ARROW)})."
            )
    if len({(path.stat().st_dev, path.stat().st_ino) for path in found}) < len(found):
        raise UnsupportedTable("A file is named twice: its rows would count twice.")
    return found
