"""Copies of what samplers hand to the curator: plain numbers of the curator's own, each of them asked for once."""

import dataclasses
import types
import typing
from typing import Any

import numpy as np

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.batches import BatchesWithoutReplacement, PoissonBatches, described
from pymc_dp.release.interface import FloatArray


def plain(kind: Any, value: Any) -> Any:
    """Return a copy with nothing in it but plain numbers and strings, as the type of a field declares them.

    An object of another class could answer otherwise when it is asked again, and an array could be changed by whoever
    holds it: after it was paid for, or while the row engine keeps what it computed there.

    Parameters
    ----------
    kind : type
        A number, a string, an array of float64, batches, a tuple, a dataclass of these, or one of several.
    value : object
        What a sampler passed.

    Raises
    ------
    PrivacyError
        If it is a description of batches that the curator does not draw.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in (bool, float, int):
        return kind(value)
    if kind is str or origin is typing.Literal:
        return str.__str__(value)  # it compares and hashes as its letters do
    if kind == FloatArray:
        # Two steps: an object's own `__array__` may say that it made a copy, and keep what it returned.
        return np.asarray(value, dtype=np.float64).copy()
    if origin is tuple:
        entries = tuple(value)
        kinds = parts[:1] * len(entries) if parts[-1] is Ellipsis else parts
        return tuple(plain(each, entry) for each, entry in zip(kinds, entries, strict=True))
    if value is None and types.NoneType in parts:
        return None
    if BatchesWithoutReplacement in (kind, *parts):
        batches = described(value)
        if isinstance(batches, PoissonBatches) and PoissonBatches not in parts:
            raise PrivacyError("A test on a batch takes batches of a fixed size: BatchesWithoutReplacement.")
        return batches
    if parts:  # one of several types: a dataclass, or what is named first
        of_value = (each for each in parts if dataclasses.is_dataclass(each) and isinstance(value, each))  # type: ignore[arg-type]
        return plain(next(of_value, parts[0]), value)
    return kind(*(plain(each.type, getattr(value, each.name)) for each in dataclasses.fields(kind)))
