"""What a query is: what it is evaluated on, and what each kind of release has to say. The kinds are in `queries`.

Everything that a query states of itself (`bound`, `factor`, `rounding`, `n_terms`) is a function of its own numbers and
of what is public of the curator.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_dp.exceptions import PrivacyError
from pymc_dp.release.batches import Batches
from pymc_dp.release.clip_counts import ClipTally
from pymc_dp.release.interface import (
    LARGEST_CLIP_BOUND,
    SMALLEST_CLIP_BOUND,
    ExpansionPoint,
    FloatArray,
    Prediction,
)
from pymc_dp.release.plain import plain
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.partitioned import PartitionedUnits

IntArray = NDArray[np.int64]

#: What queries are evaluated on: sums over units of clipped contributions. Confidential.
Rows = UnitLikelihood | PartitionedUnits

#: A sum of contributions of norm at most b moves by 2b if a unit is replaced, by b if one is added or removed.
SENSITIVITY_FACTOR = {"substitute": 2.0, "add-remove": 1.0}


@dataclass(frozen=True)
class Terms:
    """What is public of a curator.

    Attributes
    ----------
    relation : str
        Neighbouring relation.
    n_units : int or None
        The number of units, where it is public: None under add-remove.
    n_counts : int
        How many kinds of releases have their clipped units counted.
    """

    relation: str
    n_units: int | None
    n_counts: int

    @property
    def factor(self) -> float:
        """How far a sum of contributions of norm at most 1 moves between neighbouring tables."""
        return SENSITIVITY_FACTOR[self.relation]


@dataclass(frozen=True, eq=False)
class Asked:
    """What a query is evaluated on, once it has been paid for. Confidential.

    Attributes
    ----------
    rows : Rows
        The rows.
    tally : ClipTally
        How many units earlier releases have clipped.
    terms : Terms
        What is public.
    grid : float
        A power of two, public: what the exact sum is a multiple of.
    batch : ndarray of int64, or None
        The units of a fresh batch in increasing order; None for all units.
    """

    rows: Rows
    tally: ClipTally
    terms: Terms
    grid: float
    batch: IntArray | None

    @property
    def n_protected(self) -> int | None:
        """The number of units where it is protected; None where it is public."""
        return self.rows.n_units if self.terms.n_units is None else None


class Query(ABC):
    """What all queries share. See the module for what a class has to say."""

    #: Whether noise is added to the answer; a decision's noise is part of its test.
    adds_noise: ClassVar[bool] = True
    #: Whether counts of clipped units are released with a sum over a batch, as further entries.
    counted: bool = False
    #: The largest norm of a unit's contribution, where a query is told it.
    clip_bound: float

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name of the release."""

    def __post_init__(self) -> None:
        """Copy every field of a query that is made, as plain numbers of its own."""
        for each in dataclasses.fields(self):  # type: ignore[arg-type]  # every query is a dataclass
            object.__setattr__(self, each.name, plain(each.type, getattr(self, each.name)))

    @property
    def sampled(self) -> Batches | None:
        """How the fresh batch is drawn that is asked: `batches`, where there are any; None: all units are asked."""
        return getattr(self, "batches", None)

    @property
    def where(self) -> tuple[FloatArray, ...]:
        """The points that are asked about, for the record: `theta`, and `theta_new` where there are two."""
        return tuple(getattr(self, name) for name in ("theta", "theta_new") if hasattr(self, name))

    def bound(self, terms: Terms) -> float:
        """Return the largest norm of a unit's contribution."""
        return self.clip_bound

    def factor(self, terms: Terms) -> float:
        """Return by how many bounds the sum moves between neighbouring tables."""
        return terms.factor

    def rounding(self, terms: Terms) -> float:
        """Return by how many steps of the grid more it moves, where the sum is rounded as a whole."""
        return 0.0

    def n_terms(self, terms: Terms) -> int | None:
        """Return how many contributions are summed; None where that is protected."""
        return terms.n_units

    def refuse_if_unsafe(self, terms: Terms) -> None:
        """Refuse what no sensitivity is known for, before anything is paid.

        Raises
        ------
        PrivacyError
            If the bound is out of range, or the query is not defined under the neighbouring relation.
        """
        check_bound(self.bound(terms))

    @abstractmethod
    def exact_sum(self, asked: Asked) -> ClippedSum:
        """Return the exact sum over the units that are asked. Confidential."""

    def published(self, value: FloatArray, terms: Terms) -> FloatArray:
        """Return what is published of the noisy sum."""
        return value


class NonNegative(Query):
    """What queries share whose contributions have no negative inner product with each other, such as counts.

    Two such vectors of norm at most b differ by at most √2 b, not 2b.
    """

    def factor(self, terms: Terms) -> float:
        """Return by how many bounds the sum moves between neighbouring tables."""
        return min(terms.factor, math.sqrt(2.0))


@dataclass(frozen=True, eq=False)
class AtExpansionPoint:
    """What queries of derivatives at an expansion point share: they may be released under several names."""

    point: ExpansionPoint
    kind: str

    @property
    def where(self) -> tuple[FloatArray, ...]:
        """The expansion point."""
        return (self.point.theta,)


@dataclass(frozen=True, eq=False)
class BeyondPredictions:
    """What queries share of what an expansion misses of log-ratios."""

    point: ExpansionPoint
    old: Prediction
    new: Prediction

    @property
    def where(self) -> tuple[FloatArray, ...]:
        """Both points."""
        return (self.old.theta, self.new.theta)


def check_bound(bound: float) -> None:
    """Refuse a bound that floating point cannot keep."""
    if not SMALLEST_CLIP_BOUND <= bound <= LARGEST_CLIP_BOUND:
        raise PrivacyError(
            f"A clip bound of {bound:.3g} cannot be kept in floating point: use one between "
            f"{SMALLEST_CLIP_BOUND:g} and {LARGEST_CLIP_BOUND:g}."
        )
