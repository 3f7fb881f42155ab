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
from pymc_dp.model.parameters import FloatArray, ParameterVector
from pymc_dp.rows.clipped_sum import ClippedMoments, ClippedSum
from pymc_dp.rows.derivatives import UnitsOfChunk
from pymc_dp.rows.expansion import ExpansionPoint, Prediction
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.table import IntArray, checked_units
from pymc_dp.rows.threads import Threads

#: What a partition answers.
Partial = ClippedSum | ClippedMoments

#: The sums that a partition is asked for: of its rows, and of an expansion of them.
OF_ROWS = frozenset({"clipped_gradient", "clipped_log_ratio", "log_ratio_moments", "sum_over_units"})
OF_EXPANSION = frozenset({"score", "curvature", "clipping_loss", "residual", "residual_sizes", "residual_moments"})


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over the rows: which sum, and of what. Public: it holds points, bounds and functions, no row.

    Attributes
    ----------
    name : str
        A method of `UnitLikelihood` in `OF_ROWS`, or one of `UnitExpansion` in `OF_EXPANSION`.
    arguments, options : tuple, dict
        What it is called with.
    point : ExpansionPoint or None
        The centre of the expansion that is asked; None if the rows are.
    """

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
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
        """Return what each partition answers, in any order; those without units of a batch may be left out.

        Parameters
        ----------
        asked : Pass
            What is asked.
        units : sequence of ndarray of int64, or None
            For each partition which of its units take part, as `answer` takes them. None: all.
        """
        ...

    def refuse_changes(self) -> None:
        """Refuse, if the rows are not those that they were when they were opened."""
        ...

    def use_threads(self, threads: Threads) -> None:
        """Take note of how many threads may share a pass."""
        ...


def answer(rows: UnitLikelihood, asked: Pass, units: IntArray | None = None) -> Partial:
    """Return what one partition answers. Confidential.

    Nothing that happens shows in a warning.
    """
    options = asked.options if units is None else {**asked.options, "units": units}
    with np.errstate(all="ignore"):  # of this thread alone
        asked_of = rows if asked.point is None else rows.expansion(asked.point)
        found: Partial = getattr(asked_of, asked.name)(*asked.arguments, **options)
    return found


class PartitionedUnits:
    """The likelihood of a table in partitions, as queries see it: `pymc_dp.release.query.Rows`.

    Confidential: only the curator may call it.

    Parameters
    ----------
    template : UnitLikelihood
        The model's likelihood on invented rows: its structure, engine and parameters are used, its rows never.
    partitions : Partitions
        Where the rows are.
    n_rows : int
        How many rows all partitions have.
    unit_in_words : str
        What is protected.
    declared : str
        What was declared of the columns, as JSON; empty if nothing was.
    """

    def __init__(
        self,
        template: UnitLikelihood,
        partitions: Partitions,
        n_rows: int,
        unit_in_words: str,
        declared: str = "",
    ) -> None:
        #: On invented rows; its units have as many rows as here: one, or several.
        self.template = template
        self._no_rows = template.of_first_units(0)
        self._partitions = partitions
        #: Where the units of each partition begin, and where those of the last one end.
        self._begins = np.cumsum([0, *partitions.lengths]).astype(np.int64)
        self.n_units = int(self._begins[-1])
        self.n_rows = n_rows
        self.unit_in_words = unit_in_words
        self.declared = declared
        self.parameters: ParameterVector = template.parameters
        self.n_parameters = template.n_parameters
        self.second_order = template.second_order
        self.engine_name, self.knows_responses = template.engine_name, template.knows_responses
        self.structure = template.structure

    @property
    def may_be_forked(self) -> bool:
        """Whether a process that is forked from this one can ask; if not, it has to be a fresh one."""
        return self._partitions.may_be_forked

    def refuse_other_shapes(self, theta: FloatArray, preconditioner: FloatArray | None = None) -> None:
        """Refuse a point, or a preconditioner, of another shape than the model's parameters."""
        self.template.refuse_other_shapes(theta, preconditioner)

    def refuse_without_second_order(self) -> None:
        """Refuse where second derivatives are not known."""
        self.template.refuse_without_second_order()

    def refuse_changes(self) -> None:
        """Refuse, if the rows are not those that they were when they were opened."""
        self._partitions.refuse_changes()

    def use_threads(self, threads: Threads) -> None:
        """Take note of how many threads may share a pass."""
        self._partitions.use_threads(threads)

    def added(self, asked: Pass, units: IntArray | None = None) -> Any:
        """Return the sum of what all partitions answer.

        Raises
        ------
        InvalidArgument
            If the arguments do not fit the model, or `units` are no increasing sequence of units that there are.
        """
        of_partitions = None if units is None else self._split(checked_units(units, self.n_units))
        # The sum over no rows: where adding begins. Wrong arguments are refused here, before rows are touched.
        nothing = answer(self._no_rows, asked)
        return functools.reduce(operator.add, self._partitions.answers(asked, of_partitions), nothing)

    def _split(self, units: IntArray) -> list[IntArray]:
        """Return for each partition which of its units are among `units`, counted within it."""
        cuts = np.searchsorted(units, self._begins)
        return [units[cuts[i] : cuts[i + 1]] - self._begins[i] for i in range(len(cuts) - 1)]

    def clipped_gradient(
        self,
        theta: FloatArray,
        bound: float,
        grid: float,
        *,
        units: IntArray | None = None,
        blocks: Sequence[bool] | None = None,
    ) -> ClippedSum:
        """Return the sum of clipped gradients, of all units or of some."""
        options = {} if blocks is None else {"blocks": tuple(blocks)}
        found: ClippedSum = self.added(Pass("clipped_gradient", (theta, bound, grid), options), units)
        return found

    def clipped_log_ratio(
        self, theta: FloatArray, theta_new: FloatArray, bound: float, grid: float, *, units: IntArray | None = None
    ) -> ClippedSum:
        """Return the sum of clipped per-unit log-ratios, of all units or of some."""
        found: ClippedSum = self.added(Pass("clipped_log_ratio", (theta, theta_new, bound, grid)), units)
        return found

    def log_ratio_moments(
        self, theta: FloatArray, theta_new: FloatArray, bound: float, grid: float, *, units: IntArray | None = None
    ) -> ClippedMoments:
        """Return sums of clipped log-ratios, and of their squares, of all units or of some."""
        found: ClippedMoments = self.added(Pass("log_ratio_moments", (theta, theta_new, bound, grid)), units)
        return found

    def sum_over_units(
        self,
        contributions: Callable[[UnitsOfChunk], FloatArray],
        size: int,
        bound: float,
        grid: float,
        *,
        units: IntArray | None = None,
    ) -> ClippedSum:
        """Return the sum over units of any function of a unit's derivatives, each clipped to the norm `bound`."""
        found: ClippedSum = self.added(Pass("sum_over_units", (contributions, size, bound, grid)), units)
        return found

    def expansion(self, centre: ExpansionPoint) -> "PartitionedExpansion":
        """Return the expansion of every unit around a point.

        Raises
        ------
        InvalidArgument
            If the point or its preconditioner has another shape than the model's parameters.
        """
        self.refuse_other_shapes(centre.theta, centre.preconditioner)
        return PartitionedExpansion(self, centre)

    def __repr__(self) -> str:
        return f"PartitionedUnits(n_parameters={self.n_parameters}; confidential)"


class PartitionedExpansion:
    """The expansion of every unit of a table in partitions: `pymc_dp.release.query.Expansion`.

    Each partition expands its own units, with their own weights. See `pymc_dp.rows.expansion.UnitExpansion`.
    """

    def __init__(self, units: PartitionedUnits, centre: ExpansionPoint) -> None:
        self._units, self._centre = units, centre

    def _added(self, name: str, *arguments: Any, units: IntArray | None = None) -> Any:
        return self._units.added(Pass(name, arguments, point=self._centre), units)

    def score(self, grid: float) -> ClippedSum:
        """Return the sum of weighted scores."""
        found: ClippedSum = self._added("score", grid)
        return found

    def curvature(self, grid: float) -> ClippedSum:
        """Return the sum of weighted curvatures."""
        found: ClippedSum = self._added("curvature", grid)
        return found

    def clipping_loss(self, grid: float) -> ClippedSum:
        """Return the sum of what weights have taken off scores, each less a half."""
        found: ClippedSum = self._added("clipping_loss", grid)
        return found

    def residual_sizes(
        self, old: Prediction, new: Prediction, in_bins: Callable[[FloatArray], IntArray], bound: float, grid: float
    ) -> ClippedSum:
        """Return how many units have a residual log-ratio in each bin."""
        found: ClippedSum = self._added("residual_sizes", old, new, in_bins, bound, grid)
        return found

    def residual(self, old: Prediction, new: Prediction, bound: float, grid: float) -> ClippedSum:
        """Return the sum of clipped residual log-ratios."""
        found: ClippedSum = self._added("residual", old, new, bound, grid)
        return found

    def residual_moments(
        self, old: Prediction, new: Prediction, bound: float, grid: float, *, units: IntArray | None = None
    ) -> ClippedMoments:
        """Return sums of clipped residual log-ratios, and of their squares, of all units or of some."""
        found: ClippedMoments = self._added("residual_moments", old, new, bound, grid, units=units)
        return found
