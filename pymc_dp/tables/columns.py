"""From columns to rows: which column feeds which input of the model, of which type, and what is refused.

Refusals say what is wrong by name of the column and type, never by a value: they cross the network.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pymc_dp.exceptions import UnsupportedTable
from pymc_dp.rows.likelihood import RowInput
from pymc_dp.rows.table import IntArray
from pymc_dp.tables.entries import entries_of
from pymc_dp.tables.schema import Schema, array_of_part
from pymc_dp.tables.template import MadeOf


@dataclass(frozen=True)
class Columns:
    """Which columns feed the inputs of the model. Public.

    Attributes
    ----------
    of_inputs : tuple of tuple of str, float, or pair of str
        For each input the columns that its row is made of: one for a number, several for a vector. With a schema, these
        are its parts, products of two of them, and numbers that stand in every row.
    inputs : tuple of RowInput
        What the model expects.
    unit : str or None
        The column that says which unit a row belongs to; None if every row is a unit of its own.
    schema : Schema or None
        What was declared of the columns, if it was.
    """

    of_inputs: tuple[tuple[MadeOf, ...], ...]
    inputs: tuple[RowInput, ...]
    unit: str | None
    schema: Schema | None = None

    @property
    def parts(self) -> list[str]:
        """What inputs are made of, each once."""
        named = [(each,) if isinstance(each, str) else each for made_of in self.of_inputs for each in made_of]
        return list(dict.fromkeys(part for parts in named if isinstance(parts, tuple) for part in parts))

    @property
    def names(self) -> list[str]:
        """All columns of the source that are read, each once."""
        of_source = self.parts if self.schema is None else [self.schema.column_of(part).name for part in self.parts]
        return list(dict.fromkeys([*of_source, *(() if self.unit is None else (self.unit,))]))

    @property
    def expected(self) -> list[str]:
        """The columns that the source has to have."""
        return self.names if self.schema is None else self.schema.names

    def read(self, piece: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return what rows are made of: parts of inputs, and units.

        Parameters
        ----------
        piece : mapping of str to array
            Columns by name: vectors, or one matrix with the row axis first for an input that is a vector.

        Raises
        ------
        UnsupportedTable
            If a column is missing or has another type; without a schema also if entries are missing.
        """
        if self.schema is None:
            return {name: array_of(name, piece, is_unit=name == self.unit) for name in self.names}
        read, entries = {}, {}
        for part in self.parts:
            column = self.schema.column_of(part)
            if column.name not in entries:
                entries[column.name] = entries_of(column, _column_of(column.name, piece))
            read[part] = array_of_part(column, part, entries[column.name])
        return read if self.unit is None else {**read, self.unit: array_of(self.unit, piece, is_unit=True)}


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """Rows of whole units. Confidential.

    Attributes
    ----------
    rows : tuple of ndarray
        One array for each input of the model, with the row axis first, C-contiguous, of the model's types.
    starts : ndarray of int64, or None
        Where the rows of each unit begin; None if every row is a unit of its own.
    """

    rows: tuple[np.ndarray, ...]
    starts: IntArray | None

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return len(self.rows[0])

    @property
    def n_units(self) -> int:
        """How many units."""
        return self.n_rows if self.starts is None else self.starts.size - 1

    def __repr__(self) -> str:
        return "Block(confidential)"


def columns_for(inputs: Sequence[RowInput], given: Mapping[str, str | Sequence[str]], unit: str | None) -> Columns:
    """Return which columns feed the model's inputs, as the user named them.

    Parameters
    ----------
    inputs : sequence of RowInput
        What the model expects.
    given : mapping of str to str or sequence of str
        By the name of a data variable, or of an observed variable: a column, or several for a vector.
    unit : str, optional
        The column that says which unit a row belongs to.

    Raises
    ------
    UnsupportedTable
        If an input has no columns or no name, or columns are named for something that is no input.
    """
    if not all(each.names for each in inputs):
        raise UnsupportedTable(
            "The model has an array without a name, as long as its table. Put it into the model with pm.Data, and "
            'say which columns it is: x = pm.Data("x", x), and Table(source, x=["age", "income"], ...).'
        )
    known = {name for each in inputs for name in each.names}
    if unknown := sorted(set(given) - known):  # a wrong name leaves an input without columns as well
        names = ", ".join(name for each in inputs for name in each.names[:1])
        raise UnsupportedTable(
            f"The model has no input {', '.join(unknown)} with a value for each row: it has {names}."
        )
    found = []
    for each in inputs:
        named = [name for name in each.names if name in given]
        if not named:
            raise UnsupportedTable(f"Which columns of the table are {each.names[0]!r}? Pass {each.names[0]}=.")
        columns = given[named[0]]
        columns = (columns,) if isinstance(columns, str) else tuple(columns)
        width = each.shape[0] if each.shape else 1
        if len(each.shape) > 1 or (len(columns) != width and len(columns) != 1):
            raise UnsupportedTable(
                f"A row of {named[0]!r} has the shape {each.shape} in the model, for which {len(columns)} columns were "
                "named."
            )
        found.append(columns)
    return Columns(tuple(found), tuple(inputs), unit)


def block_of(columns: Columns, arrays: Mapping[str, np.ndarray]) -> Block:
    """Return the rows of a piece of a table, sorted by unit where units have several rows.

    Parameters
    ----------
    columns : Columns
        Which columns to take.
    arrays : mapping of str to array
        What `Columns.read` gave.

    Raises
    ------
    UnsupportedTable
        If a column has another type or shape than the model's.
    """
    if len({len(values) for values in arrays.values()}) > 1:
        raise UnsupportedTable("The columns of the table have different lengths.")
    inputs = zip(columns.inputs, columns.of_inputs, strict=True)
    if columns.schema is None:
        rows = tuple(_rows(expected, [str(name) for name in names], arrays) for expected, names in inputs)
    else:
        n_rows = len(next(iter(arrays.values())))
        rows = tuple(_declared_rows(expected, made_of, arrays, n_rows) for expected, made_of in inputs)
    if columns.unit is None:
        return Block(rows, None)
    return grouped(rows, unit_codes(columns.unit, arrays[columns.unit]))


def grouped(rows: tuple[np.ndarray, ...], units: np.ndarray) -> Block:
    """Return rows sorted by unit, those of a unit in the order of their bytes: the order of the table does not matter.

    Rows of a unit are added in floating point before they are clipped, so that their order has a say in the last bit.
    """
    if not len(units):
        return Block(rows, np.zeros(1, dtype=np.int64))
    bits = [np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8) for values in rows]
    keys = np.concatenate(bits, axis=1)
    as_one = np.ascontiguousarray(keys).view(f"V{keys.shape[1]}").ravel()
    _, places = np.unique(as_one, return_inverse=True)
    order = np.lexsort((places, units))
    changes = np.flatnonzero(units[order][1:] != units[order][:-1]) + 1
    starts = np.concatenate([[0], changes, [len(order)]]).astype(np.int64)
    return Block(tuple(np.ascontiguousarray(values[order]) for values in rows), starts)


def unit_codes(name: str, values: np.ndarray) -> np.ndarray:
    """Return the unit of each row as something that sorts: whole numbers as they are, texts as texts.

    Raises
    ------
    UnsupportedTable
        If they are neither.
    """
    if values.dtype.kind in "iu":
        return values
    if values.dtype.kind in "UT" or (values.dtype == object and all(isinstance(one, str) for one in values)):
        return values.astype(str)
    raise UnsupportedTable(f"The column {name!r}, which names units, must hold whole numbers or texts.")


def no_column(name: str) -> UnsupportedTable:
    """Return the error of a column that a table does not have."""
    return UnsupportedTable(f"The table has no column {name!r}.")


def refuse_absent(names: Sequence[str], there_are: Collection[str]) -> None:
    """Refuse a table without some of the columns.

    Raises
    ------
    UnsupportedTable
        If one is not among those that there are.
    """
    for name in names:
        if name not in there_are:
            raise no_column(name)


def missing_entries(name: str, *, is_unit: bool = False) -> UnsupportedTable:
    """Return the error of a column with missing entries."""
    if is_unit:
        return UnsupportedTable(
            f"The column {name!r}, which says who a person is, has missing entries: nobody knows whom such rows would "
            "protect. Give each of them a person of its own."
        )
    return UnsupportedTable(
        f"The column {name!r} has missing values. Declare the columns, Table(source, schema=[...]), where they count "
        "as a value that you name: imputing them inside the model would make each a parameter of one person."
    )


def array_of(name: str, piece: Mapping[str, Any], *, is_unit: bool = False) -> np.ndarray:
    """Return a column as an array without missing entries."""
    try:
        column = piece[name]
    except KeyError:
        raise no_column(name) from None
    if _is_arrow(column):
        if column.null_count:
            raise missing_entries(name, is_unit=is_unit)
        column = _arrow_array(name, column)
    if isinstance(column, pd.Series):
        if isinstance(column.dtype, pd.CategoricalDtype):
            raise UnsupportedTable(
                f"The column {name!r} is categorical, whose codes may differ between pieces of a table. Turn it into "
                "whole numbers, by a list of categories that is public."
            )
        missing = bool(column.isna().any())
        found = np.asarray(column.to_numpy()) if not missing else np.empty(0)
    else:
        missing = isinstance(column, np.ma.MaskedArray) and bool(np.ma.is_masked(column))
        found = np.asarray(column)
    # The least entry of an array with a NaN in it is NaN.
    if missing or (found.dtype.kind == "f" and found.size and np.isnan(found.min())):
        raise missing_entries(name, is_unit=is_unit)
    if found.dtype == object:
        if found.ndim == 1 and pd.isna(found).any():
            raise missing_entries(name, is_unit=is_unit)
        if all(isinstance(one, str) for one in found):
            return found
        if is_unit and all(type(one) is int and -(2**63) <= one < 2**63 for one in found):
            return found.astype(np.int64)  # the same unit as in a piece of whole numbers
        raise UnsupportedTable(f"The column {name!r} holds objects. Convert it to numbers.")
    return found


def _column_of(name: str, piece: Mapping[str, Any]) -> Any:
    """Return a column of a source as it is, with missing entries."""
    try:
        found = piece[name]
    except KeyError:
        raise no_column(name) from None
    if isinstance(found, pd.DataFrame):
        raise UnsupportedTable(f"The table has several columns {name!r}.")
    if not _is_arrow(found):
        return found
    import pyarrow as pa  # noqa: PLC0415  optional

    if pa.types.is_nested(found.type) or pa.types.is_binary(found.type):
        raise UnsupportedTable(f"The column {name!r} holds several entries in a row, or bytes.")
    return found.to_pandas(date_as_object=False)


def _is_arrow(column: Any) -> bool:
    return hasattr(column, "null_count") and hasattr(column, "to_pandas")


def _arrow_array(name: str, column: Any) -> np.ndarray:
    """Return an Arrow column as an array, without a copy where its memory can be read as it is.

    Raises
    ------
    UnsupportedTable
        If entries are neither numbers, truth values nor texts.
    """
    import pyarrow as pa  # noqa: PLC0415  optional

    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            raise UnsupportedTable(f"The column {name!r} is {kind}. Convert it to numbers.")
    chunks = [column] if not hasattr(column, "chunks") else column.chunks
    arrays = [np.asarray(chunk.to_numpy(zero_copy_only=False)) for chunk in chunks]
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, kind.to_pandas_dtype()), *arrays])


def _declared_rows(
    expected: RowInput, made_of: Sequence[MadeOf], arrays: Mapping[str, np.ndarray], n_rows: int
) -> np.ndarray:
    """Return one input's rows: of its type, which holds all that was declared."""
    rows = np.empty((n_rows, len(made_of)), dtype=expected.dtype)
    for place, each in enumerate(made_of):
        if isinstance(each, tuple):
            rows[:, place] = arrays[each[0]] * arrays[each[1]]
        else:
            rows[:, place] = arrays[each] if isinstance(each, str) else each
    return rows.reshape(n_rows, *expected.shape)


def _rows(expected: RowInput, names: Sequence[str], arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return one input's rows, of the model's type."""
    for name in names:
        given = arrays[name].dtype
        if not (given.kind in "biuf" and np.can_cast(given, expected.dtype, "safe")):
            raise UnsupportedTable(
                f"The column {name!r} is {given}, where the model has {expected.dtype} ({expected.names[0]!r}), which "
                "cannot hold all of its values. Convert the column, or write the model on a template of that type."
            )
    if not expected.shape or (len(names) == 1 and arrays[names[0]].ndim > 1):
        rows = arrays[names[0]]
    else:
        rows = np.empty((len(arrays[names[0]]), len(names)), dtype=expected.dtype)
        for place, name in enumerate(names):
            if arrays[name].ndim != 1:
                raise UnsupportedTable(f"The column {name!r} has several numbers in a row.")
            rows[:, place] = arrays[name]
    if rows.shape[1:] != expected.shape:
        raise UnsupportedTable(
            f"A row of {expected.names[0]!r} has the shape {rows.shape[1:]} in the table, and {expected.shape} in the "
            "model."
        )
    return np.ascontiguousarray(rows, dtype=expected.dtype)
