"""Sums over the units of a table in partitions: each partition computes its sum, and the sums are added.

Every partial sum is a sum over units of clipped contributions, exact integers on a public grid. A unit's contribution
depends, to the last bit, on its own rows alone, and integer sums do not depend on their order: a table has the same
sums for any partition and in any place. The code that makes partitions ensures two conditions: all rows of a unit are
in one partition, and the rows of a unit have one order.

This module does not depend on the place of the partitions. The protocol `Partitions` is implemented for this process
(`pymc_dp.tables.local`) and for a cluster (`pymc_dp.tables.on_dask`).
"""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.rows.clipped_sum import ClippedMoments, ClippedSum
from pymc_dp.rows.expansion import ExpansionPoint
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.table import IntArray, checked_units

#: The partial sum of a partition.
Partial = ClippedSum | ClippedMoments

#: The sums that a partition computes: of its rows, and of an expansion of them.
OF_ROWS = frozenset({"clipped_gradient", "clipped_log_ratio", "log_ratio_moments", "sum_over_units"})
OF_EXPANSION = frozenset({"curvature", "clipping_loss", "residual", "residual_sizes", "residual_moments"})


@dataclass(frozen=True, eq=False)
class Pass:
    """A request for one pass over the rows. Public: it holds points, bounds and functions, no row."""

    #: The sum: a method of `UnitLikelihood` in `OF_ROWS`, or a method of `UnitExpansion` in `OF_EXPANSION`.
    name: str
    #: The arguments of the method.
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    #: The centre of the expansion; None for sums of the rows.
    point: ExpansionPoint | None = None

    def __post_init__(self) -> None:
        if self.name not in (OF_ROWS if self.point is None else OF_EXPANSION):
            raise InvalidArgument(f"A partition has no sum {self.name!r}.")


class Partitions(Protocol):
    """The partitions of a table."""

    @property
    def lengths(self) -> Sequence[int]:
        """The number of units of each partition."""
        ...

    @property
    def may_be_forked(self) -> bool:
        """Whether a forked process may send requests; if not, processes must be spawned."""
        ...

    def answers(self, request: Pass, units: Sequence[IntArray] | None) -> Iterable[Partial]:
        """Return the partial sums of all partitions, in any order; partitions without units of a batch may be left out.

        `units` lists for each partition the units to sum over, as for `answer`; None: all.
        """
        ...

    def refuse_changes(self) -> None:
        """Refuse if the rows have changed since they were opened."""
        ...


def answer(rows: UnitLikelihood, request: Pass, units: IntArray | None = None) -> Partial:
    """Return the partial sum of one partition. Confidential. No warning reveals a value."""
    options = request.options if units is None else {**request.options, "units": units}
    with np.errstate(all="ignore"):  # of this thread alone
        source = rows if request.point is None else rows.expansion(request.point)
        found: Partial = getattr(source, request.name)(*request.arguments, **options)
    return found


def _added_up(name: str) -> Callable[..., Any]:
    """Return a method that requests a sum from every partition, and adds the partial sums."""

    def total(self: Any, *arguments: Any, units: IntArray | None = None, **options: Any) -> Any:
        return self.added(Pass(name, arguments, options, self.centre), units)

    return total


class PartitionedUnits:
    """The likelihood of a table in partitions: its sums are those of `UnitLikelihood`, with the same arguments.

    Confidential: only the curator may call it. `template` is the model's likelihood on synthetic rows: its structure,
    engine and parameters are used, never its rows. `declared` is the declaration of the columns, as JSON, or empty.
    """

    #: The sums are those of the rows, not of an expansion.
    centre = None
    clipped_gradient = _added_up("clipped_gradient")
    clipped_log_ratio = _added_up("clipped_log_ratio")
    log_ratio_moments = _added_up("log_ratio_moments")
    sum_over_units = _added_up("sum_over_units")

    def __init__(
        self, template: UnitLikelihood, partitions: Partitions, n_rows: int, unit_in_words: str, declared: str = ""
    ) -> None:
        #: On synthetic rows; its units, like those of the table, have one row or several.
        self.template = template
        self._no_rows = template.on_no_rows()
        self._partitions = partitions
        #: The first unit of each partition, and the end of the last partition.
        self._begins = np.cumsum([0, *partitions.lengths]).astype(np.int64)
        self.n_units = int(self._begins[-1])
        self.n_rows = n_rows
        self.unit_in_words = unit_in_words
        self.parameters, self.n_parameters = template.parameters, template.n_parameters
        self.declared = declared
        self.knows_responses = template.knows_responses
        self.structure, self.unidentified = template.structure, template.unidentified
        self.size_of_other = template.size_of_other
        # Checks of the model use the template, checks of the rows use the partitions.
        self.refuse_other_shapes = template.refuse_other_shapes
        self.refuse_changes = partitions.refuse_changes

    @property
    def may_be_forked(self) -> bool:
        """See `Partitions.may_be_forked`."""
        return self._partitions.may_be_forked

    def added(self, request: Pass, units: IntArray | None = None) -> Any:
        """Return the total of the partial sums of all partitions."""
        of_partitions: list[IntArray] | None = None
        if units is not None:  # the units of each partition, numbered within it
            units = checked_units(units, self.n_units)
            cuts = np.searchsorted(units, self._begins)
            of_partitions = [units[cuts[i] : cuts[i + 1]] - self._begins[i] for i in range(len(cuts) - 1)]
        # The sum over no rows, the zero of the addition. It refuses wrong arguments before rows are read.
        zero = answer(self._no_rows, request)
        return functools.reduce(operator.add, self._partitions.answers(request, of_partitions), zero)

    def expansion(self, centre: ExpansionPoint) -> "PartitionedExpansion":
        """Return the expansion of every unit around a point."""
        self.refuse_other_shapes(centre.theta, centre.preconditioner)
        return PartitionedExpansion(self, centre)

    def __repr__(self) -> str:
        return f"PartitionedUnits(n_parameters={self.n_parameters}; confidential)"


class PartitionedExpansion:
    """The expansion of every unit of a table in partitions: its sums are those of `UnitExpansion`.

    Each partition expands its own units, with their own weights.
    """

    curvature = _added_up("curvature")
    clipping_loss = _added_up("clipping_loss")
    residual = _added_up("residual")
    residual_sizes = _added_up("residual_sizes")
    residual_moments = _added_up("residual_moments")

    def __init__(self, units: PartitionedUnits, centre: ExpansionPoint) -> None:
        self.added, self.centre = units.added, centre
