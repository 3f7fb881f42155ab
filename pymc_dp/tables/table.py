"""`Table`: a protected table that is named beside the model, where the model itself stands on invented rows."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument, UnsupportedTable
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.partitioned import PartitionedUnits, Partitions
from pymc_dp.tables.columns import Columns, array_of, block_of, columns_for, no_column, unit_codes
from pymc_dp.tables.files import ArrowColumns, FileBlocks, files_of
from pymc_dp.tables.local import InMemory, OutOfCore

#: For how many seconds a pass over the rows waits while there is no worker.
_DEADLINE = 60.0
#: As for a table in the model.
_FEWEST_ROWS = 2


class Source(Protocol):
    """Where a table is."""

    def count(self, unit: str | None) -> int:
        """Return how many units there are. Public under substitution only."""
        ...

    def opened(self, template: UnitLikelihood, columns: Columns) -> AbstractContextManager[tuple[Partitions, int]]:
        """Open the table, and close it at the end: its partitions, and how many rows there are."""
        ...


class Table:
    """A protected table, for ``data=`` of `pymc_dp.sample`, `pm.sample` and `PrivacyBudget.plan`.

    The model is written on a template: invented rows of the same columns and types. Of them structure, shapes and types
    are used, and never a value; of the table only what the curator sums.

    Parameters
    ----------
    source : object
        One of: a Dask DataFrame, whose workers keep the rows; the path of a Parquet or Arrow file, of a folder of them,
        or a list of paths, which are read in blocks; an xarray Dataset, in memory or on Dask arrays; a pandas
        DataFrame, a mapping of names to arrays, or any table that speaks Arrow's protocol, such as Polars'.
    unit : str, optional
        The column that says which unit of privacy a row belongs to. Default: every row is a unit of its own.
    dim : str, optional
        Of a Dataset: the dim that counts rows. Default: the only one that all of its variables share.
    columns : mapping of str to str or sequence of str, optional
        Which columns feed which input of the model, for inputs whose names are arguments here.
    client : distributed.Client, optional
        The cluster of a source on Dask. Default: the current one.
    deadline : float
        For how many seconds a pass over the rows waits while the cluster has no worker.
    **more
        By the name of a data variable or an observed variable of the model: the name of its column, or a sequence of
        names for a vector.

    Raises
    ------
    UnsupportedTable
        If the source is none of these.
    InvalidArgument
        If an argument is out of range.

    Examples
    --------
    >>> table = dp.Table("register.arrow", x=["age", "income"], y="default", unit="person")  # doctest: +SKIP
    >>> with model_of(*invented_rows):  # doctest: +SKIP
    ...     pm.sample(budget=budget, data=table)
    """

    def __init__(
        self,
        source: Any,
        /,
        *,
        unit: str | None = None,
        dim: str | None = None,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        client: Any = None,
        deadline: float = _DEADLINE,
        **more: str | Sequence[str],
    ) -> None:
        if unit is not None and not isinstance(unit, str):
            raise InvalidArgument("unit must be the name of a column.")
        if not (columns or more):
            raise InvalidArgument('Say which columns the model\'s inputs are: Table(source, x=["age"], y="default").')
        self.unit = unit
        self._given: dict[str, str | Sequence[str]] = {**(columns or {}), **more}
        for name, each in self._given.items():
            if not isinstance(each, str) and not (isinstance(each, Sequence) and all(isinstance(k, str) for k in each)):
                raise InvalidArgument(f"{name}= must be the name of a column, or a list of names.")
        self._source = source_of(source, dim, client, _validate.positive("deadline", deadline), self.columns_named)

    @property
    def columns_named(self) -> list[str]:
        """The columns that were named."""
        named = [name for each in self._given.values() for name in ([each] if isinstance(each, str) else each)]
        return list(dict.fromkeys(named if self.unit is None else [*named, self.unit]))

    def count_units(self) -> int:
        """Return how many units there are. Confidential under add-remove."""
        return self._source.count(self.unit)

    @contextmanager
    def opened(self, template: UnitLikelihood) -> Iterator[PartitionedUnits]:
        """Open the table for a run, and close it at the end.

        Parameters
        ----------
        template : UnitLikelihood
            The model's likelihood on the template.

        Raises
        ------
        UnsupportedTable
            If a column is missing, of another type or shape than the template's, or has missing entries, or if rows of
            a unit could be in two places.
        """
        columns = columns_for(template.inputs, self._given, self.unit)
        if self.unit is not None:
            template = template.with_units_of_rows()
        with self._source.opened(template, columns) as (partitions, n_rows):
            if n_rows < _FEWEST_ROWS:
                raise UnsupportedTable(
                    "The table has no rows or a single one, and no noise would leave anything of that to see."
                )
            protected = "one row of the table" if self.unit is None else f"all rows with the same {self.unit!r}"
            yield PartitionedUnits(template, partitions, n_rows, protected)

    def __repr__(self) -> str:
        return f"Table({', '.join(self._given)}; confidential)"


class Memory:
    """A table in memory.

    Parameters
    ----------
    read : callable
        Returns columns by name.
    names : sequence of str
        The columns that are needed.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]], names: Sequence[str]) -> None:
        self._read, self._names = read, list(names)

    def count(self, unit: str | None) -> int:
        """Return how many units there are."""
        table = self._read()
        if unit is None:
            return len(_column(table, self._names[0]))
        return len(np.unique(unit_codes(unit, array_of(unit, table))))

    @contextmanager
    def opened(self, template: UnitLikelihood, columns: Columns) -> Iterator[tuple[Partitions, int]]:
        """Hold the rows as arrays of the model's types."""
        block = block_of(columns, self._read())
        yield InMemory(template, [block]), block.n_rows


class Files:
    """A table in files of this machine.

    Parameters
    ----------
    source : path, or sequence of paths
        As for `pymc_dp.tables.files.files_of`.
    """

    def __init__(self, source: Any) -> None:
        self._paths = files_of(source)

    def count(self, unit: str | None) -> int:
        """Return how many units there are."""
        return FileBlocks(self._paths, Columns((), (), unit)).count()

    @contextmanager
    def opened(self, template: UnitLikelihood, columns: Columns) -> Iterator[tuple[Partitions, int]]:
        """Read all rows once, so that whatever is wrong with them is found before anything is charged."""
        blocks, lengths, n_rows = FileBlocks(self._paths, columns), [], 0
        for block in blocks.all_blocks():
            lengths.append(block.n_units)
            n_rows += block.n_rows
        blocks.refuse_changes()
        yield OutOfCore(template, blocks, lengths), n_rows


def source_of(source: Any, dim: str | None, client: Any, deadline: float, names: Sequence[str]) -> Source:
    """Return where a table is, from whatever the user has.

    Raises
    ------
    UnsupportedTable
        If nothing here reads it.
    """
    if isinstance(source, str | os.PathLike) or (isinstance(source, list | tuple) and source):
        _arrow()
        return Files(source)
    if isinstance(source, xr.Dataset):
        dim = _row_dim(source, names) if dim is None else dim
        if any(source[name].chunks is not None for name in names if name in source):
            return _on_dask(source, client, deadline, dim)
        return Memory(lambda: _DatasetColumns(source, dim), names)
    if isinstance(source, pd.DataFrame | Mapping):
        return Memory(lambda: source, names)
    if hasattr(source, "__dask_graph__"):
        return _on_dask(source, client, deadline, None)
    if hasattr(source, "__arrow_c_stream__"):
        return Memory(lambda: ArrowColumns(_arrow().table(source)), names)
    if hasattr(source, "__dataframe__"):
        return Memory(lambda: ArrowColumns(_arrow_interchange(source)), names)
    raise UnsupportedTable(
        f"A table cannot be read from a {type(source).__name__}. Pass a pandas, Polars, Arrow or Dask data frame, an "
        "xarray Dataset, a mapping of names to arrays, or the path of a Parquet or Arrow file (of a lazy frame: what "
        "collect() returns, or the file that it reads)."
    )


class _DatasetColumns(Mapping[str, Any]):
    """The variables of a Dataset in memory, with the axis of rows first."""

    def __init__(self, dataset: xr.Dataset, dim: str) -> None:
        self._dataset, self._dim = dataset, dim

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._dataset.variables or self._dim not in self._dataset[name].dims:
            raise KeyError(name)
        return np.asarray(self._dataset[name].transpose(self._dim, ...).values)

    def __iter__(self) -> Iterator[str]:
        return (str(name) for name in self._dataset.variables if self._dim in self._dataset[name].dims)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _row_dim(dataset: xr.Dataset, names: Sequence[str]) -> str:
    """Return the only dim that all named variables share."""
    dims = [set(map(str, dataset[name].dims)) for name in names if name in dataset]
    shared = set.intersection(*dims) if dims else set()
    if len(shared) != 1:
        raise UnsupportedTable("Which dim of the Dataset counts rows? Pass dim=.")
    return shared.pop()


def _on_dask(source: Any, client: Any, deadline: float, dim: str | None) -> Source:
    try:
        from pymc_dp.tables.on_dask import DaskSource  # noqa: PLC0415  optional
    except ModuleNotFoundError as error:
        raise UnsupportedTable(f"A table on Dask needs {error.name}: pip install 'pymc_dp[dask]'.") from None
    return DaskSource(source, client, deadline, dim)


def _arrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415  optional
    except ModuleNotFoundError:
        raise UnsupportedTable("This table is read through Arrow: pip install pyarrow.") from None
    return pyarrow


def _arrow_interchange(source: Any) -> Any:
    _arrow()
    from pyarrow.interchange import from_dataframe  # noqa: PLC0415  optional

    return from_dataframe(source)


def _column(table: Mapping[str, Any], name: str) -> Any:
    try:
        return table[name]
    except KeyError:
        raise no_column(name) from None
