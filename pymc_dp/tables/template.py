"""Templates: invented rows of declared columns, on which a model is built, and the recognition of a model's inputs."""

import functools
import hashlib
import itertools
import weakref
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument, UnsupportedTable
from pymc_dp.model.origins import owner_of
from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.likelihood import RowInput
from pymc_dp.tables.entries import entries_of
from pymc_dp.tables.schema import Category, Date, Modelled, Schema, Whole, YesNo, array_of_part, days, limits_of

#: The content of a column of a model's input: a part, the product of two parts, or a constant.
MadeOf = str | float | tuple[str, str]
#: Least number of rows: with fewer, two columns could be equal by chance.
_FEWEST = 100
#: Least number of rows of a level, and of nonzero rows of a product: with fewer, two could be equal by chance.
_ROWS_OF_LEVEL = 20
#: Largest number of parts whose products are recognised.
_MOST_MULTIPLIED = 200
_MISSING = 0.1
#: The templates of this process.
_made: weakref.WeakSet["Template"] = weakref.WeakSet()


class Template:
    """Invented rows of the declared columns. Public: they are drawn from the declaration alone.

    Columns are attributes, or entries where their names are not identifiers of Python: ``template.age``,
    ``template["age"]``. For each ``NAME`` there is ``NAME_missing``, 1 where an entry is missing; for a category there
    is ``NAME[LEVEL]``, 1 in rows of that level. Numbers are float64, the others int64. The arrays are read-only.

    Parameters
    ----------
    schema : Schema
        The declaration; an attribute, too.
    n : int
        The number of rows; an attribute, too.
    seed : int
        Of the rows.
    frame : DataFrame, optional
        Rows that were invented in another way, for dry runs alone: two columns may be equal, such as indicators of
        entries that are never missing, so that columns cannot be recognised by their content.

    Raises
    ------
    InvalidArgument
        If there are fewer than 100 rows, or than 20 for each level of a category.
    """

    def __init__(self, schema: Schema, n: int, seed: int, frame: pd.DataFrame | None = None) -> None:
        self.schema, self.n = schema, _validate.whole("n", n, at_least=fewest_rows(schema))
        seed = _validate.whole("seed", seed, at_least=0)
        generator = np.random.default_rng([seed, self.n])
        entries = {
            column.name: _invented(column, self.n, generator)
            if frame is None
            else entries_of(column, frame[column.name])
            for column in schema.modelled
        }
        self._are_recognised = frame is None
        self._arrays = {}
        for part in schema.parts:
            column = schema.column_of(part)
            self._arrays[part] = array_of_part(column, part, entries[column.name])
            self._arrays[part].flags.writeable = False
        _made.add(self)

    @property
    def coords(self) -> dict[str, Sequence[object]]:
        """The coordinates for ``pm.Model(coords=)``: rows as ``row``, and the levels of each category by its name."""
        levels = {each.name: each.all_levels for each in self.schema.modelled if isinstance(each, Category)}
        return {"row": range(self.n), **levels}

    @property
    def frame(self) -> pd.DataFrame:
        """The columns as a data frame, with categorical columns, for the evaluation of formulas."""
        found = pd.DataFrame({each.name: self[each.name] for each in self.schema.modelled})
        for each in self.schema.modelled:
            if isinstance(each, Category):
                found[each.name] = pd.Categorical.from_codes(found[each.name], each.all_levels, ordered=True)
        return found

    def features(self, *names: str) -> list[str]:
        """Return the labels of the columns of `matrix`."""
        found = []
        for name in names:
            column = self.schema.column_of(name)
            levels = column.all_levels[1:] if isinstance(column, Category) and name == column.name else None
            found += [name] if levels is None else [f"{name}[{level}]" for level in levels]
        return found

    def matrix(self, *names: str) -> FloatArray:
        """Return columns, or parts of them, shape (rows, features); of a category all levels except the first.

        Raises
        ------
        InvalidArgument
            If a column does not exist.
        """
        return np.column_stack([self[name] for name in self.features(*names)]).astype(np.float64)

    def indicators(self, name: str) -> FloatArray:
        """Return the levels of a category, shape (rows, levels): 1 in the column of the row's level.

        Raises
        ------
        InvalidArgument
            If the column is not a category.
        """
        column = self.schema.column_of(name)
        if not isinstance(column, Category):
            raise InvalidArgument(f"{name!r} is no dp.Category, so it has no levels.")
        return self.matrix(*(f"{name}[{level}]" for level in column.all_levels))

    def __getitem__(self, name: str) -> np.ndarray:
        self.schema.column_of(name)
        return self._arrays[name]

    def __getattr__(self, name: str) -> np.ndarray:
        arrays = self.__dict__.get("_arrays", {})
        if name not in arrays:
            raise AttributeError(f"The template has no column {name!r}: it has {', '.join(arrays)}.")
        found: np.ndarray = arrays[name]
        return found

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._arrays]

    def __repr__(self) -> str:
        return f"Template({self.n} invented rows)\n{self.schema!r}"

    def parts_of(self, expected: RowInput, rows: np.ndarray) -> tuple[MadeOf, ...] | None:
        """Return the content of each column of a model's input; None if one is not recognised.

        A column is a part, a constant, or the product of two parts. `rows` is the input's array in the model, shape
        (rows,) or (rows, columns).
        """
        if not self._are_recognised or len(rows) != self.n or rows.ndim > 2:
            return None
        found: list[MadeOf] = []
        for values in rows.reshape(self.n, -1).T:
            content = _content(values)
            made_of: MadeOf | None = self._by_content(expected.dtype).get(content)
            if made_of is None and np.all(values == values[0]) and values[0]:
                made_of = float(values[0])  # not 0: a product may be 0 in all of these rows, and not in others
            elif made_of is None and expected.dtype == np.float64:
                made_of = self._products().get(content)
            if made_of is None:
                return None
            found.append(made_of)
        return tuple(found)

    @functools.cache  # noqa: B019  once
    def _products(self) -> dict[bytes, MadeOf]:
        """Return products of two parts, and squares, by their content, if they have enough nonzero rows."""
        parts = self._arrays if len(self._arrays) <= _MOST_MULTIPLIED else {}
        pairs = itertools.combinations_with_replacement(parts, 2)
        products = ((pair, self._arrays[pair[0]] * self._arrays[pair[1]]) for pair in pairs)
        return {_content(values): pair for pair, values in products if np.count_nonzero(values) >= _ROWS_OF_LEVEL}

    @functools.cache  # noqa: B019  a template has a few types of inputs
    def _by_content(self, dtype: np.dtype[np.generic]) -> dict[bytes, str]:
        """Return the parts all of whose values a type can hold, by their content in that type."""
        found: dict[bytes, str] = {}
        for part, values in self._arrays.items():
            column = self.schema.column_of(part)
            limits = (0.0, 1.0)
            if part == column.name and isinstance(column, Category):
                limits = (0.0, float(len(column.all_levels) - 1))
            elif part == column.name and not isinstance(column, YesNo | Category):
                limits = limits_of(column) if column.raw else (-1.0, 1.0)
            with np.errstate(invalid="ignore"):
                exact = dtype.kind == "f" or np.array_equal(np.array(limits).astype(dtype).astype(np.float64), limits)
            if exact and (dtype.kind == "f" or values.dtype.kind == "i"):
                found.setdefault(_content(values.astype(dtype)), part)
        return found


def fewest_rows(schema: Schema) -> int:
    """Return the least number of invented rows: with fewer, two columns could be equal by chance."""
    levels = [len(each.all_levels) for each in schema.modelled if isinstance(each, Category)]
    return max(_FEWEST, _ROWS_OF_LEVEL * max(levels, default=0))


def are_of_a_template(arrays: Iterable[np.ndarray]) -> bool:
    """Return whether one of these arrays is a template's own: which object it is counts, not what it holds."""
    own = {id(owner_of(array)) for each in _made for array in each._arrays.values()}  # noqa: SLF001
    return any(id(owner_of(array)) in own for array in arrays)


def lengths_of_templates() -> set[int]:
    """Return the numbers of rows of all templates in this process."""
    return {each.n for each in _made}


def match(
    templates: Sequence[Template], inputs: Sequence[RowInput], tables: Sequence[np.ndarray]
) -> tuple[tuple[MadeOf, ...], ...]:
    """Return the parts of declared columns in each input of a model.

    The model was built on one of the templates, whose columns are recognised by their content: no two invented columns
    are equal. `tables` are the arrays of the inputs in the model. An input with other content is refused.
    """
    wrong = ""
    for template in templates:
        found = [template.parts_of(each, rows) for each, rows in zip(inputs, tables, strict=True)]
        if None not in found:
            return tuple(each for each in found if each is not None)
        if any(each is not None for each in found):  # the model is built on this template in part
            wrong = next((each.names or ("",))[0] for each, part in zip(inputs, found, strict=True) if part is None)
    called = f"The input {wrong!r} of the model" if wrong else "An input of the model"
    raise UnsupportedTable(
        f"{called} is no column of table.template, or of table.invented(...). Build the model on their arrays as they "
        'are: x = t.matrix("age", "ward"), observed=t.back. Products of two columns are '
        "recognised; functions of covariates, such as logarithms, are written with pm.math inside the model, and an "
        "outcome that is a function of columns is a further column of the source. Counts are declared with raw=True. "
        "(A table that was declared anew has another template.)"
    )


def _content(values: np.ndarray) -> bytes:
    same_zeros = np.ascontiguousarray(values, dtype=np.float64) + 0.0
    return hashlib.blake2b(same_zeros.tobytes(), digest_size=16).digest()


def _invented(column: Modelled, n: int, generator: np.random.Generator) -> FloatArray:
    """Return entries that are uniform over the declared values, a tenth of them missing."""
    if isinstance(column, YesNo | Category):
        levels = len(column.all_levels) if isinstance(column, Category) else 2
        entries = generator.permutation(np.arange(n) % levels).astype(np.float64)  # equally many of each level
    else:
        low, high = limits_of(column)
        entries = generator.uniform(low, high, size=n)
        if isinstance(column, Whole):
            entries = generator.integers(int(low), int(high), size=n, endpoint=True).astype(np.float64)
        elif isinstance(column, Date):
            entries = np.floor(entries) + days(column.low)
    return np.where(generator.random(n) < _MISSING, np.nan, entries)
