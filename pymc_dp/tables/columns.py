"""The mapping of a table's columns to the rows of the model's inputs, with checks of their types.

Messages name columns and types, never a value, as they cross the network.
"""

import hashlib
import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from pymc_dp.exceptions import PrivacyError, UnsupportedTable
from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.likelihood import RowInput
from pymc_dp.rows.table import RowTable
from pymc_dp.tables.entries import entries_of, levels_of_entries
from pymc_dp.tables.schema import Modelled, Schema, array_of_part
from pymc_dp.tables.template import MadeOf

#: Length up to which the name of a unit is kept; of longer names a digest replaces the rest.
_LONGEST_NAME = 256
_NO_UNITS = (
    "The column {name!r}, which names units, must hold whole numbers or texts, and all of them the same; whole numbers "
    "below 2**63."
)


@dataclass(frozen=True)
class Columns:
    """The columns of the model's inputs. Public.

    `of_inputs` has the columns of each of `inputs`: one for a number, several for a vector. With a schema, these are
    parts of the schema, products of two parts, and constants. `unit` is the column that identifies the unit of a row;
    None if every row is a unit of its own.
    """

    of_inputs: tuple[tuple[MadeOf, ...], ...]
    inputs: tuple[RowInput, ...]
    unit: str | None
    schema: Schema | None = None

    @property
    def parts(self) -> list[str]:
        """The distinct columns, or parts of them, in the inputs."""
        every = [each for made_of in self.of_inputs for each in made_of]
        factors = [part for each in every for part in (each if isinstance(each, tuple) else (each,))]
        return list(dict.fromkeys(part for part in factors if isinstance(part, str)))

    @property
    def names(self) -> list[str]:
        """The distinct columns of the source that are read."""
        of_source = self.parts if self.schema is None else [self.schema.column_of(part).name for part in self.parts]
        return list(dict.fromkeys([*of_source, *([] if self.unit is None else [self.unit])]))

    @property
    def expected(self) -> list[str]:
        """The columns that the source is required to have."""
        return self.names if self.schema is None else self.schema.names

    def read(self, piece: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the parts in the inputs, and the units, by name.

        A column of `piece` is a vector, or a matrix with the row axis first for an input that is a vector. A column
        that is absent or has another type is refused; without a schema a column with missing entries, too.
        """
        if self.schema is None:
            return {name: array_of(name, piece, is_unit=name == self.unit) for name in self.names}
        read, entries = {}, {}
        for part in self.parts:
            column = self.schema.column_of(part)
            if column.name not in entries:
                entries[column.name] = _silently(column.name, piece, partial(_entries_of, column))
            read[part] = array_of_part(column, part, entries[column.name])
        return read if self.unit is None else {**read, self.unit: array_of(self.unit, piece, is_unit=True)}


@dataclass(frozen=True)
class UnlistedColumns(Columns):
    """Columns of texts without a public list of levels, `unlisted`; they are not inputs of a model. Public."""

    unlisted: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns of the source that are read, which are also required."""
        return [*self.unlisted, *([] if self.unit is None else [self.unit])]

    expected = names

    def read(self, piece: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the columns as texts, None where entries are missing, and the units, by name."""
        read = {}
        for name in self.unlisted:
            read[name] = _silently(name, piece, _levels_of)
        if self.unit is not None:
            read[self.unit] = unit_codes(self.unit, array_of(self.unit, piece, is_unit=True))
        _refuse_other_lengths(read)
        return read


def columns_for(inputs: Sequence[RowInput], given: Mapping[str, str | Sequence[str]], unit: str | None) -> Columns:
    """Return the columns that the user named for the model's inputs; refuse inputs without a name or columns."""
    if not all(each.names for each in inputs):
        raise UnsupportedTable(
            "The model has an array without a name, as long as its table. Put it into the model with pm.Data, and "
            'say which columns it is: x = pm.Data("x", x), and Table(source, x=["age", "income"], ...).'
        )
    known = {name for each in inputs for name in each.names}
    if unknown := sorted(set(given) - known):  # before the check for inputs without columns, which would be less clear
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


@np.errstate(all="ignore")  # a warning would depend on an entry
def block_of(columns: Columns, arrays: Mapping[str, np.ndarray]) -> RowTable:
    """Return the rows of a piece of a table from `Columns.read`, sorted by unit where units have several rows.

    A column of another type or shape than the model's is refused.
    """
    _refuse_other_lengths(arrays)
    n_rows = len(next(iter(arrays.values())))
    rows = []
    for expected, made_of in zip(columns.inputs, columns.of_inputs, strict=True):
        if columns.schema is None:
            rows.append(_rows(expected, [str(name) for name in made_of], arrays))
            continue
        found = np.empty((n_rows, len(made_of)), dtype=expected.dtype)  # a type that holds all declared values
        for place, each in enumerate(made_of):
            if isinstance(each, tuple):
                found[:, place] = arrays[each[0]] * arrays[each[1]]
            else:
                found[:, place] = arrays[each] if isinstance(each, str) else each
        rows.append(found.reshape(n_rows, *expected.shape))
    if columns.unit is None:
        return RowTable(tuple(rows), None)
    return grouped(tuple(rows), unit_codes(columns.unit, arrays[columns.unit]))


def _refuse_other_lengths(arrays: Mapping[str, np.ndarray]) -> None:
    if len({len(values) for values in arrays.values()}) > 1:
        raise UnsupportedTable("The columns of the table have different lengths.")


def _rows(expected: RowInput, names: Sequence[str], arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the rows of one input, by the columns that the user named, in the model's type."""
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


def grouped(rows: tuple[np.ndarray, ...], units: np.ndarray) -> RowTable:
    """Return rows sorted by unit, and within a unit by their bytes: the result does not depend on the table's order.

    Rows of a unit are added in floating point before they are clipped, so that their order affects the last bit.
    """
    if not len(units):
        return RowTable(rows, np.zeros(1, dtype=np.int64))
    bits = [np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8) for values in rows]
    keys = np.concatenate(bits, axis=1)
    as_one = np.ascontiguousarray(keys).view(f"V{keys.shape[1]}").ravel()
    _, places = np.unique(as_one, return_inverse=True)
    return RowTable.grouped(rows, units, places)


def unit_codes(name: str, values: np.ndarray) -> np.ndarray:
    """Return the unit of each row as a sortable value, a whole number or a text; refuse other types."""
    if values.dtype.kind in "iu":
        return values
    if values.dtype.kind in "UT" or (values.dtype == object and all(isinstance(one, str) for one in values)):
        is_short = values.dtype.kind == "U" and values.dtype.itemsize <= np.dtype(f"U{_LONGEST_NAME}").itemsize
        return values if is_short else np.array([_short(one) for one in values.tolist()], dtype=str)
    raise UnsupportedTable(_NO_UNITS.format(name=name))


def _short(text: str) -> str:
    """Return a text, a long one as its beginning and a digest: in an array the longest text determines the memory.

    So is a text that ends with a null character, which arrays of texts leave out.
    """
    if len(text) <= _LONGEST_NAME and not text.endswith("\0"):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return text[:_LONGEST_NAME].ljust(_LONGEST_NAME, "\0") + digest


def refuse_absent(names: Sequence[str], there_are: Collection[str]) -> None:
    """Refuse a table without one of the named columns."""
    for name in names:
        if name not in there_are:
            raise UnsupportedTable(f"The table has no column {name!r}.")


def column_as_it_is(name: str, piece: Mapping[str, Any]) -> Any:
    """Return a column of a source, in its own type; refuse a table without it."""
    try:
        return piece[name]
    except KeyError:
        raise UnsupportedTable(f"The table has no column {name!r}.") from None


def _array_of_list(entries: Sequence[Any], *, is_unit: bool) -> np.ndarray:
    """Return a list as an array; units that are not all whole numbers as objects: NumPy would make texts of them."""
    if is_unit and not all(isinstance(each, numbers.Integral) and not isinstance(each, bool) for each in entries):
        return np.fromiter(entries, dtype=object, count=len(entries))
    return np.asarray(entries, dtype=None if len(entries) else np.int64)  # NumPy makes numbers of no entries


def array_of(name: str, piece: Mapping[str, Any], *, is_unit: bool = False) -> np.ndarray:
    """Return a column as an array of numbers, truth values or texts; refuse other types and missing entries."""
    column = column_as_it_is(name, piece)
    if _is_arrow(column):
        missing = column.null_count > 0
        found = np.empty(0) if missing else _silently(name, piece, _arrow_array)
    elif isinstance(column, pd.Series):
        if isinstance(column.dtype, pd.CategoricalDtype):
            raise UnsupportedTable(
                f"The column {name!r} is categorical, whose codes may differ between pieces of a table. Turn it into "
                "whole numbers, by a list of categories that is public."
            )
        missing = bool(column.isna().any())
        found = np.empty(0) if missing else _silently(name, piece, _plain_array)
    else:
        missing = isinstance(column, np.ma.MaskedArray) and bool(np.ma.is_masked(column))
        found = _array_of_list(column, is_unit=is_unit) if isinstance(column, list | tuple) else np.asarray(column)
    if found.dtype.kind == "f" and found.size:
        missing |= bool(np.isnan(found.min()))  # the minimum of an array with a NaN is NaN
    if found.dtype == object and found.ndim == 1:
        missing |= bool(pd.isna(found).any())
    if missing and is_unit:
        raise UnsupportedTable(
            f"The column {name!r}, which says who a person is, has missing entries: nobody knows whom such rows would "
            "protect. Give each of them a person of its own."
        )
    if missing:
        raise UnsupportedTable(
            f"The column {name!r} has missing values. Declare the columns, Table(source, schema=[...]), where they "
            "count as a value that you name: imputing them inside the model would make each a parameter of one person."
        )
    if found.dtype == object and not all(isinstance(one, str) for one in found):
        if is_unit and all(type(one) is int and -(2**63) <= one < 2**63 for one in found):
            return found.astype(np.int64)  # the same unit as in a piece of whole numbers
        if is_unit:
            raise UnsupportedTable(_NO_UNITS.format(name=name))
        raise UnsupportedTable(f"The column {name!r} holds objects. Convert it to numbers.")
    return found


def _silently[Read](name: str, piece: Mapping[str, Any], read: Callable[[str, Mapping[str, Any]], Read]) -> Read:
    """Read a column without warnings, which depend on entries, and without messages of errors that show entries.

    PyArrow shows them, for instance, for texts in another encoding.
    """
    try:
        with np.errstate(all="ignore"):
            return read(name, piece)
    except PrivacyError:
        raise
    except Exception as error:
        failed = type(error).__name__
    # Raised here, the refusal does not carry the error with it.
    raise UnsupportedTable(f"The column {name!r} cannot be read: {failed}. Texts have to be in UTF-8.")


def _entries_of(column: Modelled, name: str, piece: Mapping[str, Any]) -> FloatArray:
    return entries_of(column, _with_missing_entries(name, piece))


def _levels_of(name: str, piece: Mapping[str, Any]) -> np.ndarray:
    return levels_of_entries(name, _with_missing_entries(name, piece))


def _plain_array(name: str, piece: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(piece[name].to_numpy())


def _with_missing_entries(name: str, piece: Mapping[str, Any]) -> Any:
    """Return a column of a source as a Series or an array, with missing entries."""
    found = column_as_it_is(name, piece)
    if isinstance(found, pd.DataFrame):
        raise UnsupportedTable(f"The table has several columns {name!r}.")
    of_arrow = isinstance(found, pd.Series) and isinstance(found.dtype, pd.ArrowDtype)
    if not of_arrow and not _is_arrow(found):
        return found
    import pyarrow as pa  # noqa: PLC0415  optional

    found = found.array.__arrow_array__() if of_arrow else found
    if pa.types.is_nested(found.type) or pa.types.is_binary(found.type):
        raise UnsupportedTable(f"The column {name!r} holds several entries in a row, or bytes.")
    if pa.types.is_boolean(found.type):  # else objects, read one by one, if an entry is missing
        return found.cast(pa.int8()).to_pandas().astype("boolean")
    return found.to_pandas(date_as_object=False)


def _is_arrow(column: Any) -> bool:
    return hasattr(column, "null_count") and hasattr(column, "to_pandas")


def _arrow_array(name: str, piece: Mapping[str, Any]) -> np.ndarray:
    """Return an Arrow column of numbers, truth values or texts, without a copy if its memory layout is NumPy's."""
    import pyarrow as pa  # noqa: PLC0415  optional

    column = piece[name]
    kind, types = column.type, pa.types
    known = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    if not any(is_type(kind) for is_type in (*known, types.is_string_view)):
        raise UnsupportedTable(f"The column {name!r} is {kind}. Convert it to numbers.")
    chunks = [column] if not hasattr(column, "chunks") else column.chunks
    arrays = [np.asarray(chunk.to_numpy(zero_copy_only=False)) for chunk in chunks]
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, kind.to_pandas_dtype()), *arrays])
