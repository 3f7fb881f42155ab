"""The rows in partitions: what is asked of all units is asked of each partition, and the answers are added.

Every answer is a sum over units of clipped contributions, exact integers on a public grid. A unit's contribution
depends, to the last bit, on its own rows alone, and integers add up in any order: a table gives the same sums however
it is cut, and wherever the pieces are. Two conditions have to hold of the pieces, and whoever makes them sees to it:
each unit is in one of them, whole; and the rows of a unit stand in one order.

Nothing here knows where partitions are. `Partitions` is what an engine fulfils: of this process
(`pymc_dp.tables.local`) or of a cluster (`pymc_dp.tables.on_dask`).
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

#: The answer of a partition.
Partial = ClippedSum | ClippedMoments

#: The sums that a partition is asked for: of its rows, and of an expansion of them.
OF_ROWS = frozenset({"clipped_gradient", "clipped_log_ratio", "log_ratio_moments", "sum_over_units"})
OF_EXPANSION = frozenset({"curvature", "clipping_loss", "residual", "residual_sizes", "residual_moments"})


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over the rows: which sum, and of what. Public: it holds points, bounds and functions, no row."""

    #: A method of `UnitLikelihood` in `OF_ROWS`, or one of `UnitExpansion` in `OF_EXPANSION`.
    name: str
    #: What it is called with.
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    #: The centre of the expansion that is asked; None if the rows are.
    point: ExpansionPoint | None = None

    def __post_init__(self) -> None:
        if self.name not in (OF_ROWS if self.point is None else OF_EXPANSION):
            raise InvalidArgument(f"A partition has no sum {self.name!r}.")


class Partitions(Protocol):
    """Where the rows are."""

    @property
    def lengths(self) -> Sequence[int]:
        """How many units each partition has."""
        ...

    @property
    def may_be_forked(self) -> bool:
        """Whether a process that is forked from this one can ask; if not, it has to be a fresh one."""
        ...

    def answers(self, asked: Pass, units: Sequence[IntArray] | None) -> Iterable[Partial]:
        """Return the answers of all partitions, in any order; those without units of a batch may be left out.

        `units` says for each partition which of its units take part, as `answer` takes them; None: all.
        """
        ...

    def refuse_changes(self) -> None:
        """Refuse, if the rows are not those that they were when they were opened."""
        ...


def answer(rows: UnitLikelihood, asked: Pass, units: IntArray | None = None) -> Partial:
    """Return the answer of one partition. Confidential. Nothing that happens shows in a warning."""
    options = asked.options if units is None else {**asked.options, "units": units}
    with np.errstate(all="ignore"):  # of this thread alone
        asked_of = rows if asked.point is None else rows.expansion(asked.point)
        found: Partial = getattr(asked_of, asked.name)(*asked.arguments, **options)
    return found


def _added_up(name: str) -> Callable[..., Any]:
    """Return a method that asks every partition for a sum, and adds up the answers."""

    def total(self: Any, *arguments: Any, units: IntArray | None = None, **options: Any) -> Any:
        return self.added(Pass(name, arguments, options, self.centre), units)

    return total


class PartitionedUnits:
    """The likelihood of a table in partitions: its sums are those of `UnitLikelihood`, with the same arguments.

    Confidential: only the curator may call it. Of `template`, the model's likelihood on invented rows, structure,
    engine and parameters are used, its rows never. `declared` is the declaration of the columns, as JSON, or empty.
    """

    #: The rows are asked, not an expansion of them.
    centre = None
    clipped_gradient = _added_up("clipped_gradient")
    clipped_log_ratio = _added_up("clipped_log_ratio")
    log_ratio_moments = _added_up("log_ratio_moments")
    sum_over_units = _added_up("sum_over_units")

    def __init__(
        self, template: UnitLikelihood, partitions: Partitions, n_rows: int, unit_in_words: str, declared: str = ""
    ) -> None:
        #: On invented rows; its units have as many rows as here: one, or several.
        self.template = template
        self._no_rows = template.on_no_rows()
        self._partitions = partitions
        #: Where the units of each partition begin, and where those of the last one end.
        self._begins = np.cumsum([0, *partitions.lengths]).astype(np.int64)
        self.n_units = int(self._begins[-1])
        self.n_rows = n_rows
        self.unit_in_words = unit_in_words
        self.parameters, self.n_parameters = template.parameters, template.n_parameters
        self.declared = declared
        self.knows_responses = template.knows_responses
        self.structure, self.unidentified = template.structure, template.unidentified
        self.size_of_other = template.size_of_other
        # What concerns the model alone is asked of the template, what concerns the rows of where they are.
        self.refuse_other_shapes = template.refuse_other_shapes
        self.refuse_changes = partitions.refuse_changes

    @property
    def may_be_forked(self) -> bool:
        """Whether a process that is forked from this one can ask; if not, it has to be a fresh one."""
        return self._partitions.may_be_forked

    def added(self, asked: Pass, units: IntArray | None = None) -> Any:
        """Return the sum of the answers of all partitions."""
        of_partitions = None if units is None else self._split(checked_units(units, self.n_units))
        # The sum over no rows: where adding begins. Wrong arguments are refused here, before rows are touched.
        nothing = answer(self._no_rows, asked)
        return functools.reduce(operator.add, self._partitions.answers(asked, of_partitions), nothing)

    def _split(self, units: IntArray) -> list[IntArray]:
        """Return for each partition which of its units are among `units`, counted within it."""
        cuts = np.searchsorted(units, self._begins)
        return [units[cuts[i] : cuts[i + 1]] - self._begins[i] for i in range(len(cuts) - 1)]

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
