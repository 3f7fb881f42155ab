"""Refuse or omit public outputs that depend on rows, or on the number of rows or units."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
from pymc.distributions.transforms import CholeskyCovPacked
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, applys_between
from pytensor.tensor.subtensor import AdvancedIncSubtensor

from pymc_dp.exceptions import UnsupportedModel, UnsupportedOption
from pymc_dp.model.arrays import arrays_of, is_public, leaf_value, leaves_of
from pymc_dp.model.axes import RowAxes, data_of, dims_of
from pymc_dp.model.operations import refuse_unlisted


def refuse_rows_in_starts(rows: RowAxes, lengths: Collection[int], starts: Sequence[Variable]) -> None:
    """Refuse starting values that are expressions of rows or of their number, as in priors: they are published.

    `lengths` are the numbers of rows and units: an array with one of these lengths counts as rows.
    """
    refuse_unlisted({"A starting value": starts})
    protected = set(rows.lengths_of_dims(lengths))
    protected |= _with_rows(rows, lengths, leaves_of(starts))  # also leaves that only give a shape
    if any(
        not protected.isdisjoint(leaves_of([start])) or has_rows(rows.model, start, lengths, rows.other_dims)
        for start in starts
    ):
        raise UnsupportedModel(
            "A starting value (initval= or initvals=) depends on data that has one entry for each row or unit, or on "
            "their number. Where chains start is published: pass numbers that were not computed from the data."
        )


def has_rows(model: pm.Model, graph: Variable, lengths: Collection[int], others: Collection[str]) -> bool:
    """Return whether a graph holds an array with an axis whose length is a multiple of one of `lengths`.

    Such an array may be one column of the rows, or several joined. Axes with a dim in `others` are left out.
    """
    return any(
        length > 1 and length % n == 0 and dim not in others
        for array, shape in arrays_of([graph])
        for length, dim in zip(shape, dims_of(model, array) or (None,) * len(shape), strict=False)
        for n in lengths
    )


@dataclass(frozen=True)
class PublishableNames:
    """The names of the variables that may leave, and of those omitted because they may be computed from rows."""

    kept: list[str]
    omitted: list[str]


def publishable_names(rows: RowAxes, requested: Sequence[str] | None, lengths: Collection[int]) -> PublishableNames:
    """Return the names of the free variables, and of the deterministics that depend on no table.

    A deterministic that is computed from rows or their number, or has one entry for each row or unit (its length is one
    of `lengths`), never leaves. A deterministic that is computed from another table, which may be a part of the rows,
    leaves only if it is requested by name.
    """
    model, dims = rows.model, rows.protected_dims(lengths)
    graphs = model.replace_rvs_by_values([*model.basic_RVs, *model.deterministics, *model.potentials])
    # All inputs of the model that hold rows, or the number of rows or units.
    protected = _with_rows(rows, lengths, leaves_of(graphs)) | set(rows.lengths_of_dims(lengths))
    protected |= {data_of(model, rv) for rv in rows.observed}
    private, unsure, kept = [], [], []
    for rv in model.unobserved_RVs:
        if rv not in model.deterministics:
            kept.append(rv.name)
            continue
        graph = model.replace_rvs_by_values([rv])
        rest = _without_triangles(model, graph)
        inputs = {*leaves_of(graph), *(leaf for leaf in ancestors(graph) if leaf.owner is None)}
        named = [name for name in model.named_vars_to_dims.get(rv.name) or () if name is not None]
        as_long = not named and not set(lengths).isdisjoint({*rv.type.shape} - {None, 1})
        if not protected.isdisjoint(inputs) or not dims.isdisjoint(named) or as_long:
            private.append(rv.name)
        elif any(map(_is_table, leaves_of(rest))) or any(arrays_of(rest)):
            unsure.append(rv.name)
        else:
            kept.append(rv.name)
    if requested is None:
        return PublishableNames(kept, private + unsure)
    for name in requested:
        if name in private:
            raise UnsupportedOption(
                f"{name!r} is computed from the data, so it cannot leave. Compute it from the draws and from data "
                "that are public."
            )
        if name not in kept + unsure:
            raise UnsupportedOption(f"var_names: the model has no variable {name!r}.")
    if not requested or len(set(requested)) != len(requested):
        raise UnsupportedOption("var_names must name at least one variable, and none twice.")
    return PublishableNames(list(requested), [name for name in private + unsure if name not in requested])


def _with_rows(rows: RowAxes, lengths: Collection[int], leaves: Iterable[Variable]) -> set[Variable]:
    """Return the inputs that have an entry for each row or unit."""
    of_dims = set(rows.model.dim_lengths.values())
    return {
        leaf
        for leaf in leaves
        if leaf not in of_dims
        and (rows.axis_of(leaf) is not None or not set(lengths).isdisjoint(leaf_value(leaf).shape))
    }


def _without_triangles(model: pm.Model, graph: list[Variable]) -> list[Variable]:
    """Return a graph with inputs in place of matrices of packed Cholesky factors, whose indices are no table."""
    packed = [rv for rv, each in model.rvs_to_transforms.items() if isinstance(each, CholeskyCovPacked)]
    values = {model.rvs_to_values[rv] for rv in packed}
    matrices = [
        node.outputs[0]
        for node in applys_between([], graph)
        if fills_a_triangle(node)
        and not values.isdisjoint(ancestors(node.inputs[1:2]))
        and not any(arrays_of(node.inputs[:2]))
    ]
    found: list[Variable] = clone_replace(graph, {each: each.type() for each in matrices})
    return found


def fills_a_triangle(node: Apply | None) -> bool:
    """Return whether a node writes its second input, a vector, to a lower triangle by rows, as PyMC does."""
    if node is None or not isinstance(node.op, AdvancedIncSubtensor) or not node.op.set_instead_of_inc:
        return False
    places = node.inputs[2:]
    if len(places) != 2 or not all(isinstance(each, Constant) and each.type.ndim == 1 for each in places):
        return False
    found = [leaf_value(each) for each in places]
    wanted = np.tril_indices(math.isqrt(2 * found[0].size))
    return all(np.array_equal(one, another) for one, another in zip(found, wanted, strict=True))


def _is_table(leaf: Variable) -> bool:
    """Return whether a leaf may hold data of people: it is a shared array, or a constant of several numbers."""
    if is_public(leaf):
        return False
    if isinstance(leaf, SharedVariable):
        return bool(leaf.type.ndim > 0)
    return isinstance(leaf, Constant) and bool(leaf.data.size > 1)
