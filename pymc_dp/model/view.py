"""The facts of a model that a run uses. They are read once; the model is not read again."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Variable

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model import structure
from pymc_dp.model.arrays import leaf_value
from pymc_dp.model.axes import RowAxes, refuse_other_lengths, row_axes
from pymc_dp.model.centring import as_written
from pymc_dp.model.operations import refuse_unsplittable
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.prior import Prior
from pymc_dp.model.protected import PublishableNames, publishable_names, refuse_rows_in_starts
from pymc_dp.model.simulation import RowSimulator
from pymc_dp.model.split import RowSplit, split
from pymc_dp.model.starts import InitialValues, expressions_in
from pymc_dp.model.units import UnitIndex, Units, refuse_tables_of_units, units_of


@dataclass(frozen=True, eq=False, repr=False)
class ModelView:
    """The facts of a model that was accepted.

    Confidential: `row_split` and `units` hold the data.

    Attributes
    ----------
    parameters : ParameterVector
        The layout of the parameters.
    value_variables : tuple of Variable
        The unconstrained parameters, in that order.
    row_split : RowSplit
        The inputs that hold rows, and the graph of one row.
    units : Units
        The assignment of rows to units.
    """

    parameters: ParameterVector
    value_variables: tuple[Variable, ...]
    row_split: RowSplit
    units: Units
    _rows: RowAxes

    @property
    def protected_lengths(self) -> frozenset[int]:
        """Lengths of arrays with one entry for each row, and for each unit of several rows."""
        return self.units.lengths | {self.row_split.n_rows}

    @cached_property
    def prior(self) -> Prior:
        """The exact prior. It depends on no rows: other models are refused."""
        return Prior(self._rows.model, self.parameters)

    @cached_property
    def responses(self) -> structure.ResponsesOfRows:
        """The possible responses of a row, as far as they are known."""
        return structure.responses_of_rows(self._rows.model)

    @cached_property
    def kinked(self) -> NDArray[np.bool_]:
        """A mask of the parameters in which the log-likelihood of a row is piecewise linear. It depends on no data."""
        return structure.kinked_in(self._rows.model, self.parameters)

    def publishable(self, requested: Sequence[str] | None) -> PublishableNames:
        """Return the names of the variables that may leave. See `publishable_names`."""
        return publishable_names(self._rows, requested, self.protected_lengths)

    def refuse_rows_in_starts(self, initvals: InitialValues | None) -> None:
        """Refuse starting values that are expressions of rows, of units, or of their number.

        Raises
        ------
        UnsupportedModel
            If a starting value is such an expression, or holds an operation that is not listed.
        """
        refuse_rows_in_starts(self._rows, self.protected_lengths, expressions_in(initvals))

    @cached_property
    def scale_of_symmetric_rows(self) -> NDArray[np.intp]:
        """Places of the log-scale of rows that are symmetric around their location. They depend on no data."""
        return np.flatnonzero(structure.scale_of_rows(self._rows.model, self.parameters, symmetric=True))

    @property
    def parameters_in_likelihood(self) -> int:
        """The number of parameters that the likelihood can depend on."""
        return int(np.count_nonzero(structure.in_likelihood(self._rows.model, self.parameters)))

    @property
    def rows_are_normal(self) -> bool:
        """Whether rows, or their logarithms, are normal with a free variable as their scale. It depends on no data."""
        return structure.scale_of_normal_rows(self._rows.model) is not None

    def simulator(self, observed: Sequence[str], n_drawn: int) -> RowSimulator:
        """Return a simulator that draws `n_drawn` rows of observed variables from the model itself."""
        return RowSimulator(self._rows, self.parameters, observed, n_drawn)


def read(
    model: pm.Model, unit: str | None = None, unit_index: UnitIndex = None, *, with_response: bool = False
) -> ModelView:
    """Read a model; refuse it if its log-likelihood is no sum over units, or if public output could depend on rows.

    Parameters
    ----------
    model : pm.Model
        The model.
    unit : str, optional
        The dim that counts rows. Default: the first axis of the observed variables.
    unit_index : str or ndarray of int, shape (rows,), optional
        The unit of each row, or the name of the model's data variable that holds it. Default: every row is a unit of
        its own.
    with_response : bool
        Whether to read the distribution of the response, too.

    Raises
    ------
    UnsupportedModel
        If the model is refused, or data are missing.
    InvalidArgument
        If `unit_index` is not one whole number for each row.
    """
    if (written := as_written(model)) is not model:
        read(written, unit, unit_index, with_response=with_response)  # a refusal of the user's model applies here
    refuse_unsplittable(model)
    rows = row_axes(model, unit)
    refuse_other_lengths(model)
    parameters = ParameterVector(model)
    row_split = split(rows, parameters, with_response=with_response)
    refuse_missing_values(row_split)
    units = units_of(rows, unit_index)
    if units.of_row is not None:
        refuse_tables_of_units(rows, parameters, units.lengths)
    view = ModelView(parameters, tuple(model.value_vars), row_split, units, rows)
    view.refuse_rows_in_starts(model.rvs_to_initial_values)
    return view


def refuse_missing_values(row_split: RowSplit) -> None:
    """Refuse tables with missing entries; the places of missing entries are taken as public."""
    for leaf in row_split.leaves:
        value = leaf_value(leaf.source)
        # The minimum of an array with NaN is NaN: np.isnan of the array would allocate a mask of the table's length.
        if value.dtype.kind == "f" and value.size and np.isnan(value.min()):
            where = f" in {leaf.source.name!r}" if leaf.source.name else ""
            raise UnsupportedModel(
                f"The data have missing values (NaN){where}. Drop or impute them before modelling: imputing them "
                "inside the model would make every missing entry a parameter of one person."
            )
