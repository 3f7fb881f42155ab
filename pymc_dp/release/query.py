"""What a query is: what it is evaluated on, and what each kind of release has to say. The kinds are in `queries`.

Everything that a query states of itself (`bound`, `factor`, `rounding`, `n_terms`) is a function of its own numbers and
of what is public of the curator.
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

#: What queries are evaluated on: sums over units of clipped contributions. Confidential.
Rows = UnitLikelihood | PartitionedUnits

#: A sum of contributions of norm at most b moves by 2b if a unit is replaced, by b if one is added or removed.
SENSITIVITY_FACTOR = {"substitute": 2.0, "add-remove": 1.0}


@dataclass(frozen=True)
class PublicFacts:
    """The public facts of a curator: its relation, the number of units, the number of kinds that are counted."""

    relation: str
    #: The number of units, where it is public: None under add-remove.
    n_units: int | None
    #: The number of kinds of releases whose clipped units are counted.
    n_counts: int


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The rows, and all else that a query is evaluated on, once it has been paid for. Confidential."""

    rows: Rows
    #: The number of units that earlier releases have clipped.
    tally: ClipTally
    facts: PublicFacts
    #: A power of two, public: the exact sum is a multiple of it.
    grid: float
    #: The units of a fresh batch in increasing order; None for all units.
    batch: IntArray | None


class Query(ABC):
    """A kind of release: a frozen dataclass of numbers, arrays and names, which says what `queries` lists."""

    #: Whether noise is added to the answer; a decision's noise is part of its test.
    adds_noise: ClassVar[bool] = True
    #: Whether counts of clipped units are released with a sum over a batch, as further entries.
    counted: bool = False
    #: The largest norm of a unit's contribution, where it depends on nothing that is public of the curator.
    clip_bound: float

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name of the release."""

    @property
    def apart(self) -> float:
        """How many bounds any two contributions are apart, at most."""
        return 2.0

    @property
    def sampled(self) -> Batches | None:
        """The batches of which a fresh one is drawn: `batches`, where there are any; None: all units are asked."""
        return getattr(self, "batches", None)

    @property
    def where(self) -> tuple[FloatArray, ...]:
        """Copies of the points that are asked about: where something is predicted, else `theta`, else the centre.

        An empty one is none. The row engine keeps the query's own points, with what it computed there.
        """
        predicted = [getattr(self, name).theta for name in ("prediction", "old", "new") if hasattr(self, name)]
        own = [getattr(self, name) for name in ("theta", "theta_new") if hasattr(self, name)]
        centre = [self.point.theta] if hasattr(self, "point") else []
        return tuple(point.copy() for point in predicted or own or centre if point.size)

    def bound(self, facts: PublicFacts) -> float:
        """Return the largest norm of a unit's contribution."""
        return self.clip_bound

    def factor(self, facts: PublicFacts) -> float:
        """Return the movement of the sum between neighbouring tables, in bounds."""
        return min(SENSITIVITY_FACTOR[facts.relation], self.apart)

    def rounding(self, facts: PublicFacts) -> float:
        """Return the further movement where the sum is rounded as a whole, in steps of the grid."""
        return 0.0

    def n_terms(self, facts: PublicFacts) -> int | None:
        """Return the number of contributions that are summed; None where that is protected."""
        return facts.n_units

    def refuse_if_unsafe(self, facts: PublicFacts) -> None:
        """Refuse what no sensitivity is known for, before anything is paid.

        Raises
        ------
        PrivacyError
            If the bound is out of range, or the query is not defined under the neighbouring relation.
        """
        check_bound(self.bound(facts))

    @abstractmethod
    def exact_sum(self, on: Evaluation) -> ClippedSum:
        """Return the exact sum over the units that are asked. Confidential."""

    def published(self, value: FloatArray, facts: PublicFacts) -> FloatArray:
        """Return the published form of the noisy sum."""
        return value


class SumOverUnits(Query):
    """A sum of contributions that are computed chunk by chunk, and that the row engine clips to the bound, last of all.

    See `pymc_dp.rows.likelihood.UnitLikelihood.sum_over_units`.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """How many entries a contribution has."""

    def refuse_unfit(self, rows: Rows) -> None:
        """Refuse arrays that do not fit the model, which compiled loops would read beyond.

        Before rows are read: a table without units would raise nothing.

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
    """A sum of contributions that have no negative inner product with each other, such as counts.

    Two such vectors of norm at most b differ by at most √2 b, not 2b.
    """

    apart: ClassVar[float] = math.sqrt(2.0)


def check_bound(bound: float) -> None:
    """Refuse a bound that floating point cannot keep."""
    if not SMALLEST_CLIP_BOUND <= bound <= LARGEST_CLIP_BOUND:
        raise PrivacyError(
            f"A clip bound of {bound:.3g} cannot be kept in floating point: use one between "
            f"{SMALLEST_CLIP_BOUND:g} and {LARGEST_CLIP_BOUND:g}."
        )


def plain_copy(kind: Any, value: Any) -> Any:
    """Return a copy with nothing in it but plain numbers and strings, as the type of a field declares them.

    An object of another class could answer otherwise when it is asked again, and an array could be changed by whoever
    holds it: after it was paid for, or while the row engine keeps what it computed there. `kind` is a number, a string,
    an array of float64, batches, a tuple, a dataclass of these, or one of several. A description of batches that the
    curator does not draw raises `PrivacyError`.
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
        return tuple(plain_copy(each, entry) for each, entry in zip(kinds, entries, strict=True))
    if value is None and types.NoneType in parts:
        return None
    if BatchesWithoutReplacement in (kind, *parts):
        # An object of another class, a subclass included, could draw, cost or cover something else than it says.
        if type(value) is not PoissonBatches and type(value) is not BatchesWithoutReplacement:
            raise PrivacyError(
                "A batch is described by PoissonBatches or BatchesWithoutReplacement, not by a "
                f"{type(value).__name__}: the curator draws it."
            )
        if isinstance(value, PoissonBatches) and PoissonBatches not in parts:
            raise PrivacyError("A test on a batch takes batches of a fixed size: BatchesWithoutReplacement.")
        kind, parts = type(value), ()
    if parts:  # one of several types: a dataclass, or what is named first
        of_value = (each for each in parts if dataclasses.is_dataclass(each) and isinstance(value, each))  # type: ignore[arg-type]
        return plain_copy(next(of_value, parts[0]), value)
    return kind(*(plain_copy(each.type, getattr(value, each.name)) for each in dataclasses.fields(kind)))
