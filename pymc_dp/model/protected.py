"""What depends on rows, or on how many rows or units there are: it is not published."""

from collections.abc import Collection, Iterable

import pymc as pm
from pytensor.graph.basic import Variable

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.arrays import arrays_of, leaf_value, leaves_of
from pymc_dp.model.axes import RowAxes, lengths_of_dims, protected_dims, row_axis
from pymc_dp.model.operations import refuse_unlisted


def protected_inputs(model: pm.Model, rows: RowAxes, lengths: Collection[int]) -> set[Variable]:
    """Return the inputs of anything in the model that hold rows, or the number of rows or units.

    Parameters
    ----------
    model : pm.Model
        The model.
    rows : RowAxes
        Where its rows are.
    lengths : collection of int
        Further protected lengths: those of units of several rows.
    """
    found = {model.rvs_to_values[rv] for rv in rows.observed}
    found |= set(lengths_of_dims(model, protected_dims(model, rows, lengths)))
    of_dims = set(model.dim_lengths.values())
    graphs = model.replace_rvs_by_values([*model.basic_RVs, *model.deterministics, *model.potentials])
    for leaf in leaves_of(graphs):
        if leaf in of_dims:
            continue
        if row_axis(model, leaf, rows) is not None or not set(lengths).isdisjoint(leaf_value(leaf).shape):
            found.add(leaf)
    return found


def refuse_rows_in_starts(
    model: pm.Model, rows: RowAxes, lengths: Collection[int], starts: Iterable[Variable], others: Collection[str]
) -> None:
    """Refuse starting values that are expressions of rows or of their number, as in priors: they are published.

    Parameters
    ----------
    model : pm.Model
        The model.
    rows : RowAxes
        Where its rows are.
    lengths : collection of int
        Lengths of arrays with one entry for each row or unit.
    starts : iterable of Variable
        The expressions.
    others : collection of str
        Dims that are known to count no rows.

    Raises
    ------
    UnsupportedModel
        If there is one.
    """
    starts = list(starts)
    refuse_unlisted({"A starting value": starts})
    protected = set(lengths_of_dims(model, protected_dims(model, rows, lengths)))
    if any(not protected.isdisjoint(leaves_of([start])) or has_rows(model, start, lengths, others) for start in starts):
        raise UnsupportedModel(
            "A starting value (initval= or initvals=) depends on data that has one entry for each row, or on their "
            "number. Where chains start is published: pass numbers that were not computed from the data."
        )


def has_rows(model: pm.Model, graph: Variable, lengths: Collection[int], others: Collection[str]) -> bool:
    """Return whether a graph holds an array as long as the rows, or that can be several such arrays end to end."""
    for array, shape in arrays_of([graph]):
        dims = model.named_vars_to_dims.get(array.name) or (None,) * len(shape)
        if any(
            length > 1 and length % n == 0 and dim not in others
            for length, dim in zip(shape, dims, strict=False)
            for n in lengths
        ):
            return True
    return False
