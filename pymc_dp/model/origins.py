"""Record the user's arrays that a model was given, to recognise two models on the same arrays.

PyMC copies the arrays that are passed to `pm.Data` and as ``observed=``. They are recorded before the copy, as weak
references: nothing is kept alive, and no value is read. `pymc_dp._pymc_hook` calls `note`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np
import pymc as pm

from pymc_dp.exceptions import InvalidArgument, UnsupportedModel
from pymc_dp.model.arrays import leaf_value, leaves_of
from pymc_dp.model.closures import referred_to

#: By model and name of the variable. `pm.set_data` replaces the entry of its variable.
_given: WeakKeyDictionary[pm.Model, dict[str, list[ReferenceType[np.ndarray]]]] = WeakKeyDictionary()


def arrays_given_to(model: pm.Model) -> Iterator[np.ndarray]:
    """Yield the recorded arrays of a model that still exist: its data, and arrays that its functions refer to."""
    for reference in itertools.chain.from_iterable(_given.get(model.root, {}).values()):
        array = reference()
        if array is not None:
            yield array


def shares_tables(model: pm.Model, other: pm.Model) -> bool:
    """Return whether two models were given, or hold, the same array or parts of one. No values are compared."""
    if model is other:
        return True
    tables = [[*_tables_of(each), *arrays_given_to(each)] for each in (model, other)]
    return any(
        owner_of(one) is owner_of(another) or np.may_share_memory(one, another)
        for one in tables[0]
        for another in tables[1]
    )


def refusing_labels[Made](name: str, values: Any, make: Callable[[], Made]) -> Made:
    """Return what `make` makes of data; refuse labels or objects, in place of an error of PyMC that may show one."""
    try:
        return make()
    except (TypeError, ValueError):
        if values is None or np.asarray(values).dtype.kind not in "USO":
            raise
    # Outside of the handler: an error in it would keep PyMC's.
    raise InvalidArgument(
        f"The data of {name!r} are labels or objects, not numbers: pass whole numbers for labels, by a list of levels "
        "that is public (pd.Categorical(values, categories=[...]).codes), or .astype(float). For unit= labels of "
        "persons become numbers by np.unique(values, return_inverse=True)[1]."
    )


def refuse_tables_of_the_data(synthetic: Any, model: pm.Model) -> None:
    """Refuse a synthetic table that shares an array with the protected one."""
    if synthetic is None:
        return
    if not isinstance(synthetic, pm.Model):
        raise InvalidArgument("synthetic must be a pm.Model: the same model, written on a synthetic table.")
    if shares_tables(model, synthetic):
        raise InvalidArgument(
            "The synthetic table holds a table of the model of the data, or a part of one: clip bounds and "
            "proposals would then be computed from protected rows without noise. Write it on synthetic data. (A "
            "public array that both models need: give the synthetic table a copy.)"
        )
    if synthetic.parent is not None:
        raise InvalidArgument(
            "The synthetic table was written inside the context of another model, which PyMC takes for a part of "
            "that model. Write it outside, before the `with` block of the model of the data."
        )


def _tables_of(model: pm.Model) -> list[np.ndarray]:
    outputs = [*model.basic_RVs, *model.rvs_to_values.values(), *model.potentials, *model.data_vars]
    return [array for array in map(leaf_value, leaves_of(outputs, inner=False)) if array.size > 1]


def owner_of(array: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def note(model: pm.Model, name: str, values: Iterable[Any]) -> None:
    """Record the arrays that were passed for the variable `name` of a model."""
    arrays = [array for array in map(_array_behind, values) if array is not None]
    _given.setdefault(model.root, {})[model.name_for(name)] = [ref(owner_of(array)) for array in arrays]


def note_as_of(made: pm.Model, model: pm.Model) -> None:
    """Share the record of `model` with `made`, a model that was made of it: later data included."""
    _given[made] = _given.setdefault(model, {})


def _array_behind(value: Any) -> np.ndarray | None:
    """Return the array behind an array, a pandas or xarray object, or a constant; None for lists and others."""
    if isinstance(value, np.ndarray):
        return value
    of_pandas = type(value).__module__.partition(".")[0] == "pandas"
    held = value.to_numpy() if of_pandas and hasattr(value, "to_numpy") else getattr(value, "data", None)
    return held if isinstance(held, np.ndarray) else None


def held_by(function: Any) -> Iterator[Any]:
    """Yield the objects that a function refers to, the values of containers included.

    The graph of the function is no substitute: PyTensor merges equal constants in it.
    """
    for value in referred_to(function) if isinstance(function, FunctionType) else ():
        yield value
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list | tuple):
            yield from value


def refuse_table_on_dask(value: Any) -> None:
    """Refuse an array on Dask in a model: PyMC would silently load all of it into this process."""
    graph = getattr(value, "__dask_graph__", None)
    if callable(graph) and graph() is not None:
        raise UnsupportedModel(
            "A model would load this table on Dask into the memory of one process. Write the model on a few invented "
            "rows of the same columns and types, and pass the table beside it: pm.sample(budget=budget, "
            'data=dp.Table(frame, x=["age", "income"], y="default")).'
        )
