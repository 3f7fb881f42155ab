"""`Table`: a protected table that is passed separately from the model, which itself holds invented rows."""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument, UnsupportedTable
from pymc_dp.rows.levels import UnitLevels
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.partitioned import PartitionedUnits
from pymc_dp.tables.columns import Columns, UnlistedColumns, columns_for
from pymc_dp.tables.local import Files, Memory, PartOfUnits, Source
from pymc_dp.tables.readers import CsvFile, Query, arrow_columns, arrow_table, dataset_columns
from pymc_dp.tables.schema import Column, Schema
from pymc_dp.tables.template import Template, fewest_rows, match

#: Seconds that a pass over the rows waits while there is no worker.
_DEADLINE = 60.0
#: Default number of invented rows: enough for all columns to differ, few enough for fast compilation.
_ROWS_OF_TEMPLATE = 1000
#: Least number of rows of a table, as for a table in the model.
_FEWEST_ROWS = 2


class Table:
    """A protected table, for ``data=`` of `pymc_dp.sample`, `pm.sample` and `PrivacyBudget.plan`.

    The model is written on a template: invented rows of the same columns and types. A run uses the structure, shapes
    and types of the template, and never its values; of the table it uses only the curator's sums.

    Parameters
    ----------
    source : object
        One of: a Dask DataFrame, whose workers keep the rows; the path of a Parquet or Arrow file, of a folder of them,
        or a list of paths, which are read in blocks; an xarray Dataset, in memory or on Dask arrays; a pandas
        DataFrame, a mapping of names to arrays, or any table that implements Arrow's protocol, such as Polars'.
    unit : str, optional
        The column that identifies the unit of privacy of a row. Default: every row is a unit of its own.
    dim : str, optional
        Of a Dataset: the dim of rows. Default: the only dim that all of its variables share.
    schema : Schema or sequence of declared columns, optional
        The public knowledge about the columns: types, ranges, levels, and the column of units. The model is then built
        on `template`, and no other argument is needed.
    columns : mapping of str to str or sequence of str, optional
        Without a schema: the columns of inputs of the model whose names are arguments of this class.
    client : distributed.Client, optional
        The cluster of a source on Dask. Default: the current one.
    deadline : float
        Seconds that a pass over the rows waits while the cluster has no worker.
    **more
        By the name of a data variable or an observed variable of the model: the name of its column, or a sequence of
        names for a vector.

    Raises
    ------
    UnsupportedTable
        If the source is of another kind, a file does not exist, or a package that reads it is not installed.
    InvalidArgument
        If an argument is out of range.

    Examples
    --------
    >>> table = dp.Table("patients.parquet", schema=[dp.Number("age", 18, 90), dp.YesNo("back")])  # doctest: +SKIP
    >>> t = table.template  # doctest: +SKIP
    >>> with pm.Model():  # doctest: +SKIP
    ...     pm.Bernoulli("back", logit_p=pm.Normal("a") + pm.Normal("b") * t.age, observed=t.back)
    ...     pm.sample(budget=budget, data=table)
    """

    def __init__(
        self,
        source: Any,
        /,
        *,
        schema: Schema | Sequence[Column] | None = None,
        unit: str | None = None,
        dim: str | None = None,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        client: Any = None,
        deadline: float = _DEADLINE,
        **more: str | Sequence[str],
    ) -> None:
        if unit is not None and not isinstance(unit, str):
            raise InvalidArgument("unit must be the name of a column.")
        #: The declared columns, or None.
        self.schema = schema if schema is None or isinstance(schema, Schema) else Schema(schema)
        self._templates: dict[tuple[int, int], Template] = {}
        if self.schema is not None:
            if unit is not None or columns or more:
                raise InvalidArgument(
                    "With a schema, the unit is declared by dp.Person, and the model is built on table.template: leave "
                    f"out {', '.join(['unit'] * (unit is not None) + ['columns'] * bool(columns) + list(more))}."
                )
            unit = self.schema.person
        elif not (columns or more):
            raise InvalidArgument(
                'Declare the columns: Table(source, schema=[dp.Number("age", 18, 90), ...]). Or say which columns the '
                'model\'s inputs are: Table(source, x=["age"], y="default").'
            )
        if not isinstance(columns, Mapping | None):
            raise InvalidArgument('columns= maps inputs of the model to columns: columns={"x": ["age", "income"]}.')
        self.unit = unit
        #: The neighbouring relation for which a part of a table was drawn; None for a whole table.
        self.relation: str | None = None
        self._given: dict[str, str | Sequence[str]] = {**(columns or {}), **more}
        for name, each in self._given.items():
            if not isinstance(each, str) and not (isinstance(each, Sequence) and all(isinstance(k, str) for k in each)):
                raise InvalidArgument(
                    f"{name}= is no option of a table. As an input of the model it must be the name of a column, or "
                    "a list of names; columns are declared by schema=[...]."
                )
        names = [name for each in self._given.values() for name in ([each] if isinstance(each, str) else each)]
        names = list(dict.fromkeys(names if unit is None else [*names, unit]))
        names = names if self.schema is None else self.schema.names
        self._source = source_of(source, dim, client, _validate.positive("deadline", deadline), names)

    @property
    def template(self) -> Template:
        """A thousand invented rows of the declared columns, always the same; more for many levels."""
        needed = 0 if self.schema is None else fewest_rows(self.schema)
        return self.invented(max(_ROWS_OF_TEMPLATE, needed), 0)

    def invented(self, n: int, seed: int, like: Any = None) -> Template:
        """Return invented rows of the declared columns, such as for a dry run. Nothing of the table is read.

        Parameters
        ----------
        n : int
            Number of rows, at least 100, and 20 for each level of a category.
        seed : int
            Of the rows.
        like : Description, optional
            The released description of these columns: its ``invented`` makes rows that resemble the table. Use them
            for ``dp.dry_run(..., synthetic=)`` only; the model of a run needs a template without `like`.

        Raises
        ------
        InvalidArgument
            If the table has no schema, `n` or `seed` is out of range, or `like` is not a description of its columns.
        """
        if self.schema is None:
            raise InvalidArgument("Rows are invented by a schema: Table(source, schema=[dp.Number(...), ...]).")
        n, seed = _validate.whole("n", n, at_least=1), _validate.whole("seed", seed, at_least=0)
        if like is not None:
            frame = like.invented(n, seed) if hasattr(like, "invented") else None
            if not isinstance(frame, pd.DataFrame) or not {each.name for each in self.schema.modelled} <= set(frame):
                raise InvalidArgument("like= must be a description, of dp.describe, of all columns of this table.")
            return Template(self.schema, n, seed, frame)
        if (n, seed) not in self._templates:
            self._templates[n, seed] = Template(self.schema, n, seed)
        return self._templates[n, seed]

    def template_of(self, n: int) -> Template:
        """Return the template with n rows, on which a model was built; refuse if there is none."""
        for each in (self.template, *self._templates.values()):
            if each.n == n:
                return each
        raise InvalidArgument("The model stands on no template of this table: build it on table.template.")

    def count_units(self) -> int:
        """Return the number of units. Confidential under add-remove."""
        return self._source.count(self.unit)

    @contextmanager
    def opened(self, template: UnitLikelihood, relation: str = "substitute") -> Iterator[PartitionedUnits]:
        """Open the table for a run, and close it at the end. `template` is the model's likelihood on the template.

        `relation` is that of the budget: if it protects the number of units, no table is too short.
        It raises `UnsupportedTable` if a column is absent, of another type or shape than the template's, or has
        missing entries, or if rows of a unit could be in two places; with a schema, if an input of the model is not a
        column of `template`.
        """
        self.refuse_relation(relation)
        if self.schema is None:
            columns = columns_for(template.inputs, self._given, self.unit)
        else:
            templates = [self.template, *self._templates.values()]
            of_inputs = match(templates, template.inputs, template.rows_of_inputs)
            columns = Columns(of_inputs, template.inputs, self.unit, self.schema)
        if self.unit is not None:
            template = template.with_units_of_rows()
        with self._source.opened(template, columns) as (partitions, n_rows):
            _refuse_too_few(n_rows, relation)
            protected = "one row of the table" if self.unit is None else f"all rows with the same {self.unit!r}"
            declared = "" if self.schema is None else self.schema.to_json()
            yield PartitionedUnits(template, partitions, n_rows, protected, declared)

    def fixed(self) -> "Table":
        """Return the same table with a fixed order of rows over all readings; refuse a table on Dask."""
        table = copy.copy(self)
        vars(table)["_source"] = self._source.fixed()
        return table

    def part_of(self, kept: np.ndarray, relation: str) -> "Table":
        """Return the part of the table with the units that `kept` marks: see `pymc_dp.folds`, which draws them."""
        part = copy.copy(self)
        vars(part).update(_source=PartOfUnits(self._source, kept), relation=relation)
        return part

    def refuse_relation(self, relation: str) -> None:
        """Refuse a part of a table that was drawn for another neighbouring relation."""
        if self.relation not in (None, relation):
            raise InvalidArgument(
                f"These folds are for the relation {self.relation!r}: draw them for this budget, of {relation!r}."
            )

    @staticmethod
    def are_apart(tables: Sequence["Table"]) -> bool:
        """Return whether these are disjoint parts of one table: no two have a unit in common."""
        sources = [vars(each)["_source"] for each in tables]
        parts = [each for each in sources if isinstance(each, PartOfUnits)]
        alike = len({(id(each.source), each.kept.size) for each in parts}) == 1 and len(parts) == len(sources)
        return alike and int(np.sum([each.kept for each in parts], axis=0).max(initial=0)) <= 1

    def levels_of_units(self, columns: Sequence[str], relation: str) -> UnitLevels:
        """Return the number of units with each level of columns of texts, declared or not. Confidential.

        It raises `UnsupportedTable` if a column is absent or has no levels, the table is on Dask, or rows of a unit
        could be in two places.
        """
        unlisted = UnlistedColumns((), (), self.unit, unlisted=tuple(columns))
        found = UnitLevels.of_pieces(columns, self.unit, self._source.pieces(unlisted))
        _refuse_too_few(found.n_rows, relation)
        return found

    def __repr__(self) -> str:
        if self.schema is not None:
            return f"Table(confidential), declared as\n{self.schema!r}"
        return f"Table({', '.join(self._given)}; confidential)"

    # Sources --------------------------------------------------------------------------------------------------------

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        schema: Schema | Sequence[Column],
        *,
        separator: str = ",",
        encoding: str = "utf-8-sig",
    ) -> "Table":
        """Return a table in a CSV file, whose first line names the columns. It is read when a run opens it.

        Entries are texts, each converted by the declaration of its column: no type is inferred from rows.

        Parameters
        ----------
        path : path
            Of the file.
        schema
            As in `Table`.
        separator : str
            Character between entries.
        encoding : str
            Of its texts. Default: UTF-8, with or without a byte-order mark.
        """
        return cls(CsvFile(path, separator, encoding), schema=schema)

    @classmethod
    def from_sql(cls, query: str, connection: Any, schema: Schema | Sequence[Column]) -> "Table":
        """Return the table of a query's result. The query is made when a run opens it, and once more to count units.

        Parameters
        ----------
        query : str
            In SQL.
        connection : object
            Of DuckDB, an engine or connection of SQLAlchemy, or a connection that follows Python's DB-API (sqlite3).
        schema
            As in `Table`.
        """
        return cls(Query(query, connection), schema=schema)

    @classmethod
    def from_parquet(cls, path: Any, schema: Schema | Sequence[Column]) -> "Table":
        """Return a table in Parquet or Arrow files: a path, pattern, folder or list.

        Rows are kept in memory if they need less than a quarter of it, and else read in each pass.
        """
        if not isinstance(path, str | os.PathLike | list | tuple):
            raise InvalidArgument(f"from_parquet takes the path of a file, not a {type(path).__name__}.")
        return cls(path, schema=schema)

    @classmethod
    def from_frame(cls, frame: Any, schema: Schema | Sequence[Column]) -> "Table":
        """Return a table in memory: a frame of pandas or Polars, an Arrow table, or a mapping of names to arrays."""
        return cls(frame, schema=schema)

    @classmethod
    def from_xarray(
        cls, dataset: xr.Dataset, schema: Schema | Sequence[Column], *, dim: str | None = None, client: Any = None
    ) -> "Table":
        """Return the table in the variables of a Dataset, one for each declared column, in memory or on Dask arrays.

        `schema`, `dim` and `client` are as in `Table`.
        """
        if not isinstance(dataset, xr.Dataset):
            raise InvalidArgument(f"from_xarray takes an xarray Dataset, not a {type(dataset).__name__}.")
        return cls(dataset, schema=schema, dim=dim, client=client)

    @classmethod
    def from_dask(
        cls, frame: Any, schema: Schema | Sequence[Column], *, client: Any = None, deadline: float = _DEADLINE
    ) -> "Table":
        """Return a table in a data frame of Dask, whose workers keep the rows.

        `schema`, `client` and `deadline` are as in `Table`.
        """
        if not hasattr(frame, "__dask_graph__"):
            raise InvalidArgument(f"from_dask takes a data frame of Dask, not a {type(frame).__name__}.")
        return cls(frame, schema=schema, client=client, deadline=deadline)


def _refuse_too_few(n_rows: int, relation: str) -> None:
    """Refuse a table of a single row, but where the number of rows is protected: a refusal would tell it."""
    if n_rows < _FEWEST_ROWS and relation == "substitute":
        raise UnsupportedTable(
            "The table has no rows or a single one, and no noise would leave anything of that to see."
        )


def source_of(source: Any, dim: str | None, client: Any, deadline: float, names: Sequence[str]) -> Source:
    """Return the source of a table from a user's object; refuse objects that cannot be read."""
    if isinstance(source, CsvFile | Query):
        return Memory(source.read, names)
    if isinstance(source, str | os.PathLike) or (isinstance(source, list | tuple) and source):
        return Files(source)
    if isinstance(source, xr.Dataset):
        if dim is None:
            dims = [set(map(str, source[name].dims)) for name in names if name in source]
            shared = set.intersection(*dims) if dims else set()
            if len(shared) != 1:
                raise UnsupportedTable("Which dim of the Dataset counts rows? Pass dim=.")
            dim = shared.pop()
        if not any(source[name].chunks is not None for name in names if name in source):
            return Memory(partial(dataset_columns, source, dim), names)
    elif isinstance(source, pd.DataFrame | Mapping):
        return Memory(lambda _: source, names)
    if hasattr(source, "__dask_graph__"):  # also of a Dataset with chunks
        try:
            from pymc_dp.tables.on_dask import DaskSource  # noqa: PLC0415  optional
        except ModuleNotFoundError as error:
            raise UnsupportedTable(f"A table on Dask needs {error.name}: pip install 'pymc_dp[dask]'.") from None
        return DaskSource(source, client, deadline, dim)
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__dataframe__"):
        return Memory(lambda names: arrow_columns(arrow_table(source), names), names)
    raise UnsupportedTable(
        f"A table cannot be read from a {type(source).__name__}. Pass a pandas, Polars, Arrow or Dask data frame, an "
        "xarray Dataset, a mapping of names to arrays, or the path of a Parquet or Arrow file (of a lazy frame: what "
        "collect() returns, or the file that it reads)."
    )
