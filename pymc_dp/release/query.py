"""Base classes of queries, and the arguments of their evaluation. The kinds of release are in `queries`.

The properties of a query (`bound`, `factor`, `rounding`, `n_terms`) are functions of its own numbers and of public
facts of the curator.
"""

import dataclasses
import math
import types
import typing
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.batches import Batches, BatchesWithoutReplacement, PoissonBatches
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, SMALLEST_CLIP_BOUND, FloatArray
from pymc_dp.release.meter import ClipTally
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.partitioned import PartitionedUnits

IntArray = NDArray[np.int64]

#: The row engines, which compute sums over units of clipped contributions. Confidential.
Rows = UnitLikelihood | PartitionedUnits

#: A sum of contributions of norm at most b changes by at most 2b if a unit is replaced, b if one is added or removed.
SENSITIVITY_FACTOR = {"substitute": 2.0, "add-remove": 1.0}


@dataclass(frozen=True)
class PublicFacts:
    """The public facts of a curator."""

    relation: str
    #: The number of units if it is public; None under add-remove.
    n_units: int | None
    #: The number of kinds of releases with counts of clipped units.
    n_counts: int


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The arguments of the evaluation of a query that has been paid for. Confidential."""

    rows: Rows
    #: Counts of units that earlier releases have clipped.
    tally: ClipTally
    facts: PublicFacts
    #: A power of two, public: the exact sum is a multiple of it.
    grid: float
    #: The units of a fresh batch in increasing order; None for all units.
    batch: IntArray | None


class Query(ABC):
    """A kind of release: a frozen dataclass of numbers, arrays and names. `queries` lists its definitions."""

    #: Whether noise is added to the answer; the noise of a decision is part of its test.
    adds_noise: ClassVar[bool] = True
    #: Whether counts of clipped units are released with a sum over a batch, as further entries.
    counted: bool = False
    #: The largest norm of a unit's contribution, if it does not depend on public facts of the curator.
    clip_bound: float

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name of the release."""

    @property
    def apart(self) -> float:
        """The largest distance of two contributions, in bounds."""
        return 2.0

    @property
    def sampled(self) -> Batches | None:
        """The batches of which a fresh one is drawn: `batches`, if there are any; None: the sum is over all units."""
        return getattr(self, "batches", None)

    @property
    def where(self) -> tuple[FloatArray, ...]:
        """Copies of the points of the query: those of predictions, or else `theta`, or else the centre.

        Empty points are left out. Copies, since the row engine caches results under the query's own points.
        """
        predicted = [getattr(self, name).theta for name in ("prediction", "old", "new") if hasattr(self, name)]
        own = [getattr(self, name) for name in ("theta", "theta_new") if hasattr(self, name)]
        centre = [self.point.theta] if hasattr(self, "point") else []
        return tuple(point.copy() for point in predicted or own or centre if point.size)

    def bound(self, facts: PublicFacts) -> float:
        """Return the largest norm of a unit's contribution."""
        return self.clip_bound

    def factor(self, facts: PublicFacts) -> float:
        """Return the sensitivity of the sum, in bounds."""
        return min(SENSITIVITY_FACTOR[facts.relation], self.apart)

    def rounding(self, facts: PublicFacts) -> float:
        """Return the further sensitivity from rounding the sum as a whole, in steps of the grid."""
        return 0.0

    def n_terms(self, facts: PublicFacts) -> int | None:
        """Return the number of contributions that are summed; None if that is protected."""
        return facts.n_units

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse queries without a known sensitivity, before they are paid for.

        Raises
        ------
        PrivacyError
            If the bound is out of range, or the query is not defined under the neighbouring relation.
        """
        check_bound(self.bound(facts))

    @abstractmethod
    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the exact sum over the units of the evaluation. Confidential."""

    def published(self, value: FloatArray, facts: PublicFacts) -> FloatArray:
        """Return the published form of the noisy sum."""
        return value


class SumOverUnits(Query):
    """A sum of contributions that are computed chunk by chunk, and finally clipped to the bound by the row engine.

    See `pymc_dp.rows.likelihood.UnitLikelihood.sum_over_units`.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of entries of a contribution."""

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse arrays that do not fit the model: compiled loops would read out of bounds.

        The check is made before rows are read, because a table without units would raise no error.

        Raises
        ------
        InvalidArgument
            If `theta`, or the point or preconditioner of an expansion, has another shape.
        """
        if hasattr(self, "theta"):
            rows.refuse_other_shapes(self.theta)
        if hasattr(self, "point"):
            rows.refuse_other_shapes(self.point.theta, self.point.preconditioner)

    @abstractmethod
    def contributions(self, chunk: UnitsOfChunk) -> FloatArray:
        """Return the units' contributions, shape (units, size). Confidential."""

    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the sum of the contributions, each clipped."""
        self.refuse_unfit(on.rows)
        return on.rows.sum_over_units(self.contributions, self.size, self.bound(on.facts), on.grid, units=on.batch)


class NonNegative(Query):
    """A sum of contributions whose inner products with each other are not negative, such as counts.

    Two such vectors of norm at most b differ by at most √2 b, not 2b.
    """

    apart: ClassVar[float] = math.sqrt(2.0)


def check_bound(bound: float) -> None:
    """Refuse a bound that is out of the range of floating-point norms."""
    if not SMALLEST_CLIP_BOUND <= bound <= LARGEST_CLIP_BOUND:
        raise PrivacyError(
            f"A clip bound of {bound:.3g} cannot be kept in floating point: use one between "
            f"{SMALLEST_CLIP_BOUND:g} and {LARGEST_CLIP_BOUND:g}."
        )


def plain_copy(kind: Any, value: Any) -> Any:
    """Return a copy that holds only plain numbers and strings, as the type of a field declares them.

    An object of another class could return another value when it is read again, and an array could be changed by its
    owner: after it was paid for, or while the row engine caches results for it. `kind` is the type of a number, a
    string, an array of float64, batches, a tuple, a dataclass of these, or a union. A description of batches that the
    curator does not draw raises `PrivacyError`.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in (bool, float, int):
        return kind(value)
    if kind is str or origin is typing.Literal:
        return str.__str__(value)  # a subclass could compare or hash differently
    if kind == FloatArray:
        # Two steps: an object's own `__array__` may claim a copy, and keep a reference to the returned array.
        return np.asarray(value, dtype=np.float64).copy()
    if origin is tuple:
        entries = tuple(value)
        kinds = parts[:1] * len(entries) if parts[-1] is Ellipsis else parts
        return tuple(plain_copy(each, entry) for each, entry in zip(kinds, entries, strict=True))
    if value is None and types.NoneType in parts:
        return None
    if BatchesWithoutReplacement in (kind, *parts):
        # An object of another class, subclasses included, could be charged as one kind of batches and drawn as another.
        if type(value) is not PoissonBatches and type(value) is not BatchesWithoutReplacement:
            raise PrivacyError(
                "A batch is described by PoissonBatches or BatchesWithoutReplacement, not by a "
                f"{type(value).__name__}: the curator draws it."
            )
        if isinstance(value, PoissonBatches) and PoissonBatches not in parts:
            raise PrivacyError("A test on a batch takes batches of a fixed size: BatchesWithoutReplacement.")
        kind, parts = type(value), ()
    if parts:  # a union: the matching dataclass, or else the first type
        of_value = (each for each in parts if dataclasses.is_dataclass(each) and isinstance(value, each))  # type: ignore[arg-type]
        return plain_copy(next(of_value, parts[0]), value)
    return kind(*(plain_copy(each.type, getattr(value, each.name)) for each in dataclasses.fields(kind)))
