"""Which of a model's variables may leave: free ones, and what is computed of them without any table."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_dp.exceptions import UnsupportedOption
from pymc_dp.model.arrays import arrays_of, is_public, leaves_of
from pymc_dp.model.axes import RowAxes, protected_dims
from pymc_dp.model.protected import protected_inputs


@dataclass(frozen=True)
class PublishableNames:
    """Which of the model's variables may leave, and which may not because they are computed from rows."""

    kept: list[str]
    omitted: list[str]


def publishable_names(
    model: pm.Model, rows: RowAxes, requested: Sequence[str] | None, lengths: Collection[int]
) -> PublishableNames:
    """Return the free variables and those deterministics that depend on no table.

    A deterministic that is computed from rows or their number, or has one entry for each row or unit, never leaves. One
    that is computed from another table (which may be a part of the rows) leaves if it is asked for by name.

    Parameters
    ----------
    model : pm.Model
        The model.
    rows : RowAxes
        Where its rows are.
    requested : sequence of str or None
        Names that the user wants.
    lengths : collection of int
        Lengths of arrays with one entry for each row, and for each unit of several rows.

    Raises
    ------
    UnsupportedOption
        If a requested variable is computed from rows, or unknown.
    """
    protected = protected_inputs(model, rows, lengths)
    dims = protected_dims(model, rows, lengths)
    private, unsure, kept = [], [], []
    for rv in model.unobserved_RVs:
        if rv not in model.deterministics:
            kept.append(rv.name)
            continue
        graph = model.replace_rvs_by_values([rv])
        inputs = {*leaves_of(graph), *(leaf for leaf in ancestors(graph) if leaf.owner is None)}
        named = [name for name in model.named_vars_to_dims.get(rv.name) or () if name is not None]
        if not protected.isdisjoint(inputs) or not dims.isdisjoint(named) or _has_length(rv, named, lengths):
            private.append(rv.name)
        elif any(_is_table(leaf) for leaf in inputs) or any(arrays_of(graph)):
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


def _has_length(rv: Variable, dims: Sequence[str], lengths: Collection[int]) -> bool:
    """Return whether a deterministic without dims has one entry for each row or unit, by its static shape."""
    return not dims and not set(lengths).isdisjoint(length for length in rv.type.shape if length not in (None, 1))


def _is_table(leaf: Variable) -> bool:
    """Return whether an input may hold data of people: a data variable, or a constant of several numbers."""
    if is_public(leaf):
        return False
    if isinstance(leaf, SharedVariable):
        return isinstance(leaf.type, TensorType) and leaf.type.ndim > 0
    return isinstance(leaf, Constant) and isinstance(leaf.type, TensorType) and leaf.data.size > 1
