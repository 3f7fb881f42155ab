"""Scenarios, columns set to values, as settings of entries of the model's inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.context import Model
from pymc_dp.model.units import columns_of_rows
from pymc_dp.model.view import ModelView
from pymc_dp.release.surveys import NO_INPUT, Setting
from pymc_dp.rows.likelihood import RowInput
from pymc_dp.surveys.asking import levels_of
from pymc_dp.tables import Category, Template, YesNo
from pymc_dp.tables.entries import entries_of
from pymc_dp.tables.schema import Date, Modelled, Whole, array_of_part, days, limits_of
from pymc_dp.tables.template import MadeOf


class Rewriting:
    """Settings of the inputs of a model, on a template of a declared table or on the table itself.

    Attributes
    ----------
    columns : dict of str to ndarray
        Columns for scenarios and groups that the model does not read, in the order in which they follow its inputs.
    """

    def __init__(self, model: Model, view: ModelView, template: Template | None) -> None:
        self._model, leaves = model, view.row_split.leaves
        self._inputs, self._rows = [RowInput.of(leaf) for leaf in leaves], [leaf.rows() for leaf in leaves]
        self._discrete = view.row_split.response is None or view.row_split.response.discrete
        self._response = next(place for place, leaf in enumerate(leaves) if leaf.observed)
        self._template, self._n_rows = template, view.row_split.n_rows
        self._made_of: list[tuple[MadeOf, ...]] = []
        if template is not None:
            found = zip(self._inputs, self._rows, strict=True)
            self._made_of = [template.parts_of(each, rows) or () for each, rows in found]
        self.columns: dict[str, np.ndarray] = {}

    def _placed(self, name: str, values: np.ndarray) -> int:
        """Add a column after the model's inputs, and return its place among all inputs."""
        self.columns.setdefault(name, values)
        return len(self._inputs) + list(self.columns).index(name)

    def scenario(self, called: str, columns: Any, responses: Sequence[Setting]) -> tuple[Setting, ...]:
        """Return the settings of a scenario and those of the response; refuse unknown columns and impossible values.

        `columns` are declared columns or data variables, and their values: a number, or a row of a vector; for data
        variables also an array with an entry for each row of the model.
        """
        if not isinstance(called, str) or not isinstance(columns, Mapping):
            raise InvalidArgument('Scenarios are columns set to values, by name: {"treated": {"drug": 1}, ...}.')
        settings = list(responses)
        for name, value in columns.items():
            declared = self._declared(name)
            if declared is None:
                settings += self._of_input(f"{called}: {name}", name, value)
            else:
                settings += self._of_column(called, declared, value)
        return tuple(settings)

    def response_set_to(self, value: Any) -> Setting:
        """Return the setting of the response to a value; refuse a value that it cannot have."""
        expected, column = self._inputs[self._response], self.declared_response
        if column is not None:
            number = float(array_of_part(column, column.name, _entry_of(column, value))[0])
        else:
            number = _checked(expected.names[-1], np.asarray(value), expected)
            if self._discrete and not number.is_integer():
                raise InvalidArgument(f"{expected.names[-1]!r} cannot be {value!r}: it holds whole numbers.")
        return Setting(self._response, 0, NO_INPUT, number)

    @property
    def declared_response(self) -> Modelled | None:
        """The declared column of the response."""
        made_of = self._made_of[self._response] if self._made_of else ()
        known = len(made_of) == 1 and isinstance(made_of[0], str) and self._template is not None
        return self._declared(str(made_of[0])) if known else None

    def group_of(self, by: Any) -> tuple[int, list[str]]:
        """Return the place of a column of codes, and names of its groups; refuse other columns.

        `by` is a declared category or truth value; or a data variable of codes from 0 on, with names of the codes.
        """
        if isinstance(by, Mapping) and len(by) == 1 and self._template is None:
            ((name, labels),) = by.items()
            (codes,) = columns_of_rows(self._model, [name]).values()
            are_codes = codes.shape == (self._n_rows,) and codes.dtype.kind in "biu"
            if are_codes and not isinstance(labels, str) and len(labels) > 1:
                return self._placed(name, codes.astype(np.int64)), [str(label) for label in labels]
        if isinstance(by, list | tuple) and len(by) == 1:
            (by,) = by
        column = self._declared(by) if isinstance(by, str) else None
        if self._template is None or not isinstance(column, Category | YesNo):
            raise InvalidArgument(
                "by= must be the name of one declared dp.Category or dp.YesNo of data=; or, in a model on the table "
                'itself, a data variable of codes from 0 on with their names: {"ward": ["surgery", "medicine"]}.'
            )
        return self._placed(column.name, self._template[column.name]), list(levels_of(column))

    def _declared(self, name: str) -> Modelled | None:
        if self._template is None:
            return None
        return next((each for each in self._template.schema.modelled if each.name == name), None)

    def _of_column(self, called: str, column: Modelled, value: Any) -> list[Setting]:
        """Return the settings that give a declared column one value in all rows, alone or in a product."""
        if callable(value) or np.ndim(value):
            raise InvalidArgument(
                f"{called!r} has to set {column.name!r} to one value: a declared column gets the same one in all rows."
            )
        template, entry = self._template, _entry_of(column, value)
        assert template is not None  # noqa: S101  columns are declared there
        parts = [part for part in template.schema.parts if template.schema.column_of(part) == column]
        values = {part: float(array_of_part(column, part, entry)[0]) for part in parts}
        settings = []
        for place, made_of in enumerate(self._made_of):
            for entry_, each in enumerate(made_of):
                factors = (each,) if isinstance(each, str) else each if isinstance(each, tuple) else ()
                known = [values[part] for part in factors if part in values]
                others = [part for part in factors if part not in values]
                if not known:
                    continue
                if place == self._response:
                    raise InvalidArgument(f"{called!r} sets {column.name!r}, which is the response.")
                source = self._placed(others[0], template[others[0]]) if others else NO_INPUT
                settings.append(Setting(place, entry_, source, float(np.prod(known))))
        if not settings:
            raise InvalidArgument(f"{called!r} sets {column.name!r}, which the model does not read.")
        return settings

    def _of_input(self, called: str, name: str, value: Any) -> list[Setting]:
        """Return the settings that replace an input of the model."""
        place = next(
            (place for place, each in enumerate(self._inputs) if name in each.names and place != self._response), None
        )
        if place is None:
            others = [each for place, each in enumerate(self._inputs) if place != self._response]
            names = [each.names[0] for each in others if each.names]
            names += [] if self._template is None else self._template.schema.names
            there_are = f": there are {', '.join(map(repr, names))}." if names else "."
            raise InvalidArgument(f"There is no covariate {name!r}{there_are}")
        expected = self._inputs[place]
        values = np.asarray(value)
        size = int(np.prod(expected.shape))
        if values.shape == expected.shape:
            row = values.reshape(size)
            return [Setting(place, entry, NO_INPUT, _checked(name, row[entry], expected)) for entry in range(size)]
        fits = values.dtype.kind in ("biu" if expected.dtype.kind in "biu" else "biuf")
        if values.shape != (self._n_rows, *expected.shape) or not fits:
            raise InvalidArgument(
                f"{called}: set it to a value of the shape {expected.shape} and the type {expected.dtype}, or to an "
                "array with such an entry for each row of the model."
            )
        columns = values.reshape(self._n_rows, size).T
        own = self._rows[place].reshape(self._n_rows, size).T
        settings = []
        for entry in range(size):
            column = columns[entry]
            if self._template is not None:  # these rows are invented, so that decisions may depend on them
                if np.array_equal(column, own[entry]):
                    continue
                if np.all(column == column[0]):
                    settings.append(Setting(place, entry, NO_INPUT, float(column[0])))
                    continue
            as_typed = column.astype(np.float64 if column.dtype.kind == "f" else np.int64)
            settings.append(Setting(place, entry, self._placed(f"{called}[{entry}]", as_typed), 1.0))
        return settings


def _entry_of(column: Modelled, value: Any) -> np.ndarray:
    """Return a value of a declared column as one entry, as if read from the table; refuse an impossible value."""
    entry = entries_of(column, np.array([value], dtype=object))
    inside = bool(np.isfinite(entry[0]))
    if isinstance(column, Whole) and inside:
        inside = float(entry[0]).is_integer()
    if isinstance(column, Category):
        inside = str(value) in column.all_levels  # `entries_of` would turn another value into "other"
    if inside and not isinstance(column, YesNo | Category):
        low, high = limits_of(column)
        number = entry[0] - (days(column.low) if isinstance(column, Date) else 0.0)
        inside = low <= number <= high
    if not inside:
        raise InvalidArgument(f"{column.name!r} cannot be {value!r}: it was declared as {column!r}.")
    return entry


def _checked(name: str, value: np.ndarray, expected: RowInput) -> float:
    """Return a value as a number; refuse a value that an input cannot hold."""
    if value.shape == () and value.dtype.kind in "biuf" and np.isfinite(value):
        if expected.dtype.kind == "f" or float(value).is_integer():
            return float(value)
    raise InvalidArgument(f"{name!r} cannot be {value!r}: it holds one number of the type {expected.dtype}.")
