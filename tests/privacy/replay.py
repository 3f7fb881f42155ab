"""Record one run, replay its noisy answers on a neighbouring table, and say where the two runs differ.

The method is that of arXiv 2602.17454. A private run is a function of its noisy answers and of public randomness. So
where every answer of a run on a neighbouring table is replaced by the answer of the first run, all that is left of the
data is what would have been answered: the exact sums. The second run then has to

1. make the same requests in the same order, with the same bits: at the door's public methods (positions, bounds, noise
   multipliers, batches, centres) and at the source of noise (size and scale of the noise);
2. ask noise for exact sums that differ, within each single request, by no more than the noise multiplier of that
   request pays for, in exact arithmetic; an accept-reject decision by no more than its Rényi bound;
3. publish the same tree, warn and log the same, and succeed or fail alike.

Usable for a contributed sampler::

    report = replay(build, table, neighbours, make_step, relation="substitute")
    assert not report.violations

`build` turns a table (arrays by name, rows first) into a model, `make_step` makes the step, or steps, in that model's
context, and `neighbours` yields `Neighbour` objects; `neighbours_of` makes random and adversarial ones.

Batches. Under substitution both runs draw with the same random words and have to draw the same batch. Under add-remove
the two tables have different numbers of units, so the batches are coupled: units that are in both tables are in both
batches or in neither, and the unit that is in one table takes part by a coin of its own.

A decision of the Barker test is no number with noise added: the outcome is frozen, and the probabilities are compared.

A missing value in a table (NaN) is put behind the model, into the row engine: PyMC would impute it and the package
refuse it, but a row that is computed to be NaN has to be as harmless.

Only what is slow is replaced: PyMC's sampling loop by a plain loop (`real_loop=True` keeps it), and compiled functions
are used again for another table if and only if the graphs are equal, constants included. Planning, charging, doors,
row engine, samplers and publication are those of the package.
"""

import contextlib
import dataclasses
import functools
import inspect
import logging
import math
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.basic import clone, equal_computations
from xarray import DataTree

import pymc_dp as dp
from pymc_dp import sampling
from pymc_dp.accounting.renyi import barker_batch_bound
from pymc_dp.parameters import ParameterVector
from pymc_dp.release import MeteredDoor, Release
from pymc_dp.release import door as door_module
from pymc_dp.release.batches import PoissonBatches
from pymc_dp.rows import likelihood
from pymc_dp.steps import free_hmc

Table = dict[str, np.ndarray]

#: Stands for NaN while a model is built.
_NOT_A_NUMBER = np.float64(1.2345678901234567e-77)
#: The pilot of free chains is a function of releases and public randomness, whatever its length.
SHORT_PILOT = {"_TRAJECTORIES_OF_A_ROUND": 10, "_MEASURED_TRAJECTORIES": 40, "_MOST_ROUNDS": 4}
#: How many graphs are remembered with what was compiled from them.
_REMEMBERED = 24


# Neighbours ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbour:
    """A neighbouring table, and which unit it does not share with the first.

    Attributes
    ----------
    table : dict of str to ndarray
        Rows first.
    change : {"replaced", "removed", "added"}
        What was done to the first table.
    place : int
        Which unit, counted in the table that has it (for units of several rows: in increasing order of their index).
    name : str
        For messages.
    """

    table: Table
    change: str
    place: int
    name: str = ""


ODD_FLOATS = (np.nan, np.inf, -np.inf, 1e308, -1.7976931348623157e308, 1e154, -1e6, 5e-324, -2e-308, 0.0, -0.0, 1e-300)
ODD_INTEGERS = (0, -1, 1, 2, 3, 7, 10**9, -(10**9), 2**31, 2**53 + 1, 2**62, -(2**63), 2**63 - 1)


def odd_rows(table: Table, count: int, rng: np.random.Generator) -> Table:
    """Return rows of a table in which about every second entry is as strange as its type allows."""
    picked = rng.integers(len(next(iter(table.values()))), size=count)
    rows = {}
    for name, values in table.items():
        rows[name] = values[picked].copy()
        odd = ODD_FLOATS if values.dtype.kind == "f" else ODD_INTEGERS
        odd = (True, False) if values.dtype.kind == "b" else odd
        strange = np.array([odd[k] for k in rng.integers(len(odd), size=rows[name].size)]).reshape(rows[name].shape)
        rows[name] = np.where(rng.random(rows[name].shape) < 0.5, strange, rows[name]).astype(values.dtype)
    return rows


def ordinary_rows(table: Table, count: int, rng: np.random.Generator) -> Table:
    """Return rows of a table, entries taken from different rows."""
    n = len(next(iter(table.values())))
    return {name: values[rng.integers(n, size=count)] for name, values in table.items()}


def neighbours_of(
    table: Table, relation: str, rng: np.random.Generator, count: int, unit: str | None = None
) -> Iterator[Neighbour]:
    """Yield neighbours in which one unit is replaced, removed or added; every second one is adversarial.

    Parameters
    ----------
    table : dict of str to ndarray
        Rows first.
    relation : {"substitute", "add-remove"}
        Neighbouring relation.
    rng : Generator
        Where the neighbours come from.
    count : int
        How many.
    unit : str, optional
        The column that says which unit a row belongs to. A changed unit then has another number of rows, too.
    """
    for k in range(count):
        change = "replaced" if relation == "substitute" else ("removed", "added")[k // 2 % 2]
        yield _changed(table, change, rng, unit, make_rows=odd_rows if k % 2 == 0 else ordinary_rows)


def _changed(
    table: Table, change: str, rng: np.random.Generator, unit: str | None, make_rows: Callable[..., Table]
) -> Neighbour:
    n_rows = len(next(iter(table.values())))
    index = np.arange(n_rows) if unit is None else table[unit]
    known = np.unique(index)
    whose = known[rng.integers(known.size)] if change != "added" else known[-1] + 1
    kept = index != whose if change != "added" else np.ones(n_rows, dtype=bool)
    shared = {name: values[kept] for name, values in table.items()}
    if change == "removed":
        return Neighbour(shared, change, int(np.searchsorted(known, whose)), "removed")
    covariates = {name: values for name, values in table.items() if name != unit}
    fresh = make_rows(covariates, 1 if unit is None else int(rng.integers(1, 6)), rng)
    if unit is not None:
        fresh[unit] = np.full(len(next(iter(fresh.values()))), whose, dtype=index.dtype)
    # Rows of a unit that is a row keep their place; rows of a larger unit may stand anywhere.
    at = int(np.flatnonzero(~kept)[0]) if change == "replaced" and unit is None else int(kept.sum())
    joined = {
        name: np.concatenate([values[:at], fresh[name], values[at:]]).astype(table[name].dtype)
        for name, values in shared.items()
    }
    place = int(np.searchsorted(known, whose)) if unit is not None or change == "added" else at
    return Neighbour(joined, change, place, f"{change} {_words(fresh)}")


def _words(rows: Table) -> str:
    return " ".join(f"{name}={np.ravel(values)[:3].tolist()}" for name, values in rows.items())


# What is recorded ---------------------------------------------------------------------------------------------


@dataclass
class Request:
    """One call of a public method of a door.

    Attributes
    ----------
    door, method : int, str
        Which door, counted as they are first used, and what was asked.
    arguments : dict
        What was asked for, every number by its bits.
    given : dict
        The same as it was passed.
    additions : list of (ndarray of int64, float)
        Exact integers that noise was asked for, and the noise's standard deviation in their steps.
    batch : ndarray or None
        The units of the batch that was drawn.
    decisions : list of (bool, float)
        Probabilities of the Barker test: the less likely decision, and how likely it is.
    answer : object
        What came back, every number by its bits.
    kind : str
        The kind of the release.
    """

    door: int
    method: str
    arguments: dict[str, Any]
    given: dict[str, Any]
    additions: list[tuple[np.ndarray, float]] = field(default_factory=list)
    batch: np.ndarray | None = None
    decisions: list[tuple[bool, float]] = field(default_factory=list)
    answer: Any = None
    kind: str = ""


@dataclass
class Trace:
    """What one run did.

    Attributes
    ----------
    requests : list of Request
        In order.
    noisy, words, accepted : list
        All noisy answers, random words and decisions, in order.
    noticed : list
        Warnings and log records between the charge and the end.
    published : object
        The published tree, every number by its bits; None if the run failed.
    plan : Plan or None
        What was charged.
    error : str
        How it failed, if it did.
    tree : DataTree or None
        The published tree.
    """

    requests: list[Request] = field(default_factory=list)
    noisy: list[np.ndarray] = field(default_factory=list)
    words: list[np.ndarray] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    noticed: list[Any] = field(default_factory=list)
    published: Any = None
    plan: Any = None
    error: str = ""
    tree: DataTree | None = None


class Diverged(BaseException):
    """The second run asks for something else than the first; raised inside it, past all handlers of exceptions."""


def bits(value: Any) -> Any:
    """Return a value as plain data that is equal for equal bits alone."""
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, float | np.floating):
        return struct.pack("<d", float(value))
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return value.shape, [bits(one) for one in value.ravel()]
        raw = np.ascontiguousarray(value)
        return str(raw.dtype), raw.shape, raw.tobytes()
    if isinstance(value, Mapping):
        return [(str(name), bits(one)) for name, one in value.items()]
    if isinstance(value, list | tuple):
        return [bits(one) for one in value]
    if dataclasses.is_dataclass(value):
        of_fields = [(each.name, bits(getattr(value, each.name))) for each in dataclasses.fields(value)]
        return type(value).__name__, of_fields
    raise TypeError(f"{type(value).__name__} is not compared by its bits yet: say how in bits().")


def bits_of_tree(tree: DataTree) -> Any:
    """Return a published tree by its bits, but for the time at which it was made."""
    return [
        (
            node.path,
            bits({name: value for name, value in node.attrs.items() if name != "created_at"}),
            [
                (str(name), list(map(str, each.dims)), bits(each.values), bits(each.attrs))
                for name, each in {**node.to_dataset().data_vars, **node.to_dataset().coords}.items()
            ],
        )
        for node in tree.subtree
    ]


class Recorder:
    """Source of noise, batches and decisions of one run: fresh ones, or those of an earlier run.

    Parameters
    ----------
    first : Trace, optional
        The run to be replayed. Default: none, everything is drawn.
    neighbour : Neighbour, optional
        What changed since the first run.
    seed : int
        Of everything that is drawn.
    loudness : float
        Noise of the first run, in units of what it should be: answers far from the exact sums lead to other places.
    """

    description = "recorded answers"
    secure = True

    def __init__(
        self, first: Trace | None = None, neighbour: Neighbour | None = None, seed: int = 0, loudness: float = 1.0
    ) -> None:
        self.trace, self.first, self.neighbour = Trace(), first, neighbour
        self._rng = np.random.default_rng([seed, 0 if first is None else 1])
        self._loudness = loudness
        self._doors: list[Any] = []
        self._open: Request | None = None
        self._poisson = False
        self._unlikely = False

    # As a source of noise ----------------------------------------------------------------------------------

    def add(self, integers: np.ndarray, scale: float) -> np.ndarray:
        if self._open is None:
            raise Diverged("noise was drawn outside of any request at the door")
        self._open.additions.append((np.array(integers), float(scale)))
        place = len(self.trace.noisy)
        if self.first is None:
            noise = np.rint(self._rng.normal(scale=self._loudness * scale, size=integers.size))
            self.trace.noisy.append(integers + noise.astype(np.int64))
        else:
            if place >= len(self.first.noisy) or self.first.noisy[place].shape != integers.shape:
                raise Diverged(f"addition of noise {place} has another size, or was not asked for in the first run")
            self.trace.noisy.append(self.first.noisy[place])
        return self.trace.noisy[-1].copy()

    def words(self, count: int) -> np.ndarray:
        if self._poisson:  # how many words a batch takes follows the number of units, and nobody sees it
            return self._rng.integers(0, 2**64, size=count, dtype=np.uint64)
        place = len(self.trace.words)
        if self.first is None:
            self.trace.words.append(self._rng.integers(0, 2**64, size=count, dtype=np.uint64))
        else:
            if place >= len(self.first.words) or self.first.words[place].size != count:
                raise Diverged(f"other random words are asked for at place {place}")
            self.trace.words.append(self.first.words[place])
        return self.trace.words[-1].copy()

    def for_chain(self, key: tuple[int, ...]) -> "Recorder":
        return self

    # Batches ---------------------------------------------------------------------------------------------------

    def batch(self, real: Callable[..., np.ndarray], described: Any, *rest: Any) -> np.ndarray:
        """Draw a batch, or couple it to that of the first run."""
        if self._open is None:
            raise Diverged("a batch was drawn outside of any request at the door")
        poisson = isinstance(described, PoissonBatches)
        if poisson and self.first is not None:
            coupled = self._coupled()
        else:
            self._poisson = poisson
            try:
                coupled = real(described, *rest)
            finally:
                self._poisson = False
        self._open.batch = np.array(coupled)
        if self.first is not None and not poisson:
            before = self.first.requests[len(self.trace.requests) - 1].batch
            if before is None or not np.array_equal(before, coupled):
                raise Diverged("the same random words drew another batch")
        return coupled

    def _coupled(self) -> np.ndarray:
        """Return the batch of the first run without the changed unit, or with it by a coin."""
        before = self.first.requests[len(self.trace.requests) - 1].batch
        place = self.neighbour.place
        if self.neighbour.change == "replaced":
            return before
        if self.neighbour.change == "removed":
            return np.array([unit - (unit > place) for unit in before if unit != place], dtype=np.int64)
        moved = [unit + (unit >= place) for unit in before]
        if self._rng.random() < 0.5:
            moved.append(place)
        return np.array(sorted(moved), dtype=np.int64)

    # Decisions ---------------------------------------------------------------------------------------------

    def probability(self, real: Callable[..., tuple[bool, float]], *arguments: Any) -> tuple[bool, float]:
        """Record the probabilities of a decision."""
        self._unlikely, probability = real(*arguments)
        self._open.decisions.append((self._unlikely, probability))
        return self._unlikely, probability

    def happens(self, real: Callable[..., bool], *arguments: Any) -> bool:
        """Draw a decision, or repeat that of the first run."""
        place = len(self.trace.accepted)
        if self.first is None:
            accepted = (np.random.default_rng(self._rng.integers(2**32)).random() < arguments[1]) == self._unlikely
        elif place < len(self.first.accepted):
            accepted = self.first.accepted[place]
        else:
            raise Diverged("one decision more than in the first run")
        self.trace.accepted.append(bool(accepted))
        return bool(accepted == self._unlikely)

    # Requests ----------------------------------------------------------------------------------------------

    def request(self, door: MeteredDoor, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a call of a public method of the door."""
        if self._open is not None:  # one public method of the door calls another
            return method(door, *args, **kwargs)
        bound = inspect.signature(method).bind(door, *args, **kwargs)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        if not any(door is known for known in self._doors):
            self._doors.append(door)
        place = next(k for k, known in enumerate(self._doors) if known is door)
        asked = Request(place, method.__name__, {name: bits(value) for name, value in given.items()}, given)
        self._refuse_another(asked)
        self.trace.requests.append(asked)
        self._open = asked
        try:
            release = method(door, *args, **kwargs)
            asked.answer, asked.kind = bits(release), getattr(release, "kind", "")
        except Exception as error:
            asked.answer = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._open = None
        return release

    def _refuse_another(self, asked: Request) -> None:
        if self.first is None:
            return
        place = len(self.trace.requests)
        if place >= len(self.first.requests):
            raise Diverged(f"request {place}, {asked.method}, was not made in the first run")
        before = self.first.requests[place]
        if (before.door, before.method) != (asked.door, asked.method):
            raise Diverged(f"request {place} is {asked.method} of door {asked.door}, was {before.method}")
        other = [name for name in asked.arguments if asked.arguments[name] != before.arguments.get(name)]
        if other:
            raise Diverged(f"request {place}, {asked.method}, has another {', '.join(other)}")


# Comparing ----------------------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """How a neighbour's run compares with the first.

    Attributes
    ----------
    neighbour : str
        What the neighbour is.
    violations : list of str
        Where the runs differ by more than they may.
    releases : int
        Requests that were compared.
    moved : int
        Requests whose exact sums differ.
    largest : float
        Largest part of its declared sensitivity by which a release moved.
    published_alike : bool
        Whether the same tree was published. It has to be for any two tables, neighbours or not.
    """

    neighbour: str
    violations: list[str]
    releases: int
    moved: int
    largest: float
    published_alike: bool


@dataclass
class Report:
    """What came of one table and its neighbours.

    Attributes
    ----------
    refused : str
        Why the run was refused before anything was charged, if it was.
    comparisons : list of Comparison
        One for each neighbour.
    first : Trace
        The first run.
    problems : list of str
        What is wrong with the first run already.
    """

    refused: str
    comparisons: list[Comparison]
    first: Trace
    problems: list[str]

    @property
    def violations(self) -> list[str]:
        """All that is wrong."""
        return self.problems + [
            f"{each.neighbour}: {violation}" for each in self.comparisons for violation in each.violations
        ]

    @property
    def moved(self) -> int:
        """How many requests had other exact sums."""
        return sum(each.moved for each in self.comparisons)


def compared(first: Trace, second: Trace, neighbour: Neighbour) -> Comparison:
    """Compare the run on a neighbour with the first run."""
    violations, moved, largest = [], 0, 0.0
    if second.error != first.error:
        violations.append(f"ended with {second.error or 'success'!r}, the first run with {first.error or 'success'!r}")
    if second.plan != first.plan:
        violations.append("another plan was charged")
    if len(second.requests) != len(first.requests) and not second.error:
        violations.append(f"{len(second.requests)} requests, {len(first.requests)} in the first run")
    if second.noticed != first.noticed:
        other = [each for each in second.noticed if each not in first.noticed]
        violations.append(f"warnings or log records differ: {other or 'one is missing'}")
    for place, (before, after) in enumerate(zip(first.requests, second.requests, strict=False)):
        named = f"request {place}, {before.method}"
        if before.answer != after.answer:
            violations.append(f"{named}, answers otherwise for the same noise")
        part = _part_of_sensitivity(before, after)
        if isinstance(part, str):
            violations.append(f"{named}, {part}")
            continue
        if part > 0 and not _takes_part(before, after, neighbour):
            violations.append(f"{named}, knows a unit that is not in its batch")
        if part > 1:
            violations.append(f"{named}, moved {math.sqrt(part):.6g} times what was declared")
        moved += part > 0
        largest = max(largest, math.sqrt(part))
    published_alike = second.published is not None and second.published == first.published
    if first.published is not None and not published_alike and not violations:
        violations.append("another tree was published")
    return Comparison(neighbour.name, violations, len(second.requests), moved, largest, published_alike)


def _part_of_sensitivity(before: Request, after: Request) -> Fraction | str:
    """Return the squared distance of a request's exact sums, as a part of that of its declared sensitivity."""
    scales = [[scale for _, scale in each.additions] for each in (before, after)]
    if bits(scales[0]) != bits(scales[1]):
        return f"asks for noise of {scales[1]}, was {scales[0]}"
    if before.decisions and not before.additions:
        return _part_of_decisions(before, after)
    cost = Fraction(0)  # of squared distances in units of the noise
    for (one, scale), (other, _) in zip(before.additions, after.additions, strict=True):
        squared = sum((int(x) - int(y)) ** 2 for x, y in zip(one, other, strict=True))
        cost += squared / Fraction(scale) ** 2
    if not before.additions:
        return Fraction(0)
    multiplier = before.given.get("noise_multiplier")
    if multiplier is None:
        return "adds noise without a noise multiplier"
    return cost * Fraction(float(multiplier)) ** 2


def _part_of_decisions(before: Request, after: Request) -> Fraction | str:
    """Return the largest Rényi divergence of the decisions' probabilities, squared, as a part of its bound."""
    if len(before.decisions) != len(after.decisions):
        return "decides more or less often"
    batch_size = before.given["batches"].batch_size
    largest = 0.0
    for one, other in zip(before.decisions, after.decisions, strict=True):
        if one == other:
            continue
        sides = [_log_probabilities(*one), _log_probabilities(*other)]
        for order in range(3, (batch_size - 1) // 5 + 1):
            bound = barker_batch_bound(order, batch_size)
            for p, q in (sides, sides[::-1]):
                divergence = np.logaddexp.reduce(order * p + (1 - order) * q) / (order - 1)
                largest = max(largest, float(divergence) / bound)
    return Fraction(largest) ** 2


def _log_probabilities(unlikely: bool, probability: float) -> np.ndarray:
    """Return the logarithms of the probabilities to accept and to reject."""
    rare, common = math.log(probability) if probability > 0.0 else -math.inf, math.log1p(-probability)
    return np.array([rare, common] if unlikely else [common, rare])


def _takes_part(before: Request, after: Request, neighbour: Neighbour) -> bool:
    """Return whether the changed unit is in the batch of a request, or there is no batch."""
    if before.batch is None:
        return True
    having = before.batch if neighbour.change != "added" else after.batch
    return neighbour.place in having


def paid_for(trace: Trace) -> list[str]:
    """Say where a run released more often, or with less noise, than its plan was charged for."""
    asked: dict[str, list[float]] = {}
    planned: dict[str, list[float]] = {}
    for request in trace.requests:
        if request.additions or request.decisions:
            asked.setdefault(request.kind, []).append(float(request.given.get("noise_multiplier", 0.0)))
    for event in trace.plan.releases:
        noise = getattr(event, "noise_multiplier", 0.0)
        kind = event.kind.rstrip("_123456789")
        planned.setdefault(kind, []).extend([noise] * event.count)
    problems = []
    for kind, multipliers in asked.items():
        paid = sorted(planned.get(kind, []))
        if len(multipliers) > len(paid):
            problems.append(f"{len(multipliers)} releases of kind {kind!r}, {len(paid)} were paid for")
        # The quietest release needs the quietest that was paid for, and so on.
        if any(given < least for given, least in zip(sorted(multipliers), paid, strict=False)):
            problems.append(f"a release of kind {kind!r} has less noise than was paid for")
    return problems


# Running ------------------------------------------------------------------------------------------------------


class Compiled:
    """Compiled functions, used again for graphs that are equal, constants included."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, list[Any], list[Any], Any]] = []
        self.reused = self.made = 0

    def of(self, facts: Any, inputs: Sequence[Any], outputs: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Return what was made for an equal graph, or make it."""
        inputs, outputs = list(inputs), list(outputs)
        for known_facts, known_inputs, known_outputs, found in self._known:
            if (
                known_facts == facts
                and [each.type for each in known_inputs] == [each.type for each in inputs]
                and equal_computations(known_outputs, outputs, known_inputs, inputs)
            ):
                self.reused += 1
                return found
        # Some compilations rewrite graphs in place: remember the graph as it was.
        copied = clone(inputs, outputs, copy_inputs=False, copy_orphans=False)[1]
        found = make()
        self.made += 1
        self._known = [*self._known[-_REMEMBERED:], (facts, inputs, copied, found)]
        return found


_COMPILED = Compiled()


def replay(
    build: Callable[[Table], pm.Model],
    table: Table,
    neighbours: Iterable[Neighbour],
    make_step: Callable[..., Any],
    *,
    relation: str = "substitute",
    unit_index: str | None = None,
    epsilon: float = 8.0,
    delta: float = 1e-6,
    lower: bool = True,
    draws: int = 4,
    tune: int = 1,
    chains: int = 2,
    start_scale: float = 0.5,
    loudness: float = 1.0,
    seed: int = 0,
    real_loop: bool = False,
    patches: Sequence[Any] = (),
) -> Report:
    """Run a sampler on a table, replay it on neighbours, and report every difference that should not be.

    Parameters
    ----------
    build : callable
        Makes the model of a table.
    table : dict of str to ndarray
        The first table, rows first.
    neighbours : iterable of Neighbour
        Tables that differ from it in one unit.
    make_step : callable
        Makes the step, or steps, given ``budget=`` and shared settings, in the model's context.
    relation, epsilon, delta : str, float
        Of the budget.
    unit_index : str, optional
        The column that says which unit a row belongs to; it has to be a `pm.Data` of the model.
    lower : bool
        Use loops made for the model where possible; False uses PyTensor's functions of rows throughout.
    draws, tune, chains : int
        Of the run.
    start_scale : float
        Standard deviation of where chains start, on the unconstrained scale.
    loudness, seed
        See `Recorder`.
    real_loop : bool
        Sample with PyMC's own loop.
    patches : sequence of context managers
        Entered around every run: how tests break the package on purpose.
    """
    settings = {"relation": relation, "unit_index": unit_index, "epsilon": epsilon, "delta": delta, "lower": lower}
    settings |= {"draws": draws, "tune": tune, "chains": chains, "start_scale": start_scale, "seed": seed}
    settings |= {"real_loop": real_loop, "patches": patches}
    recorder = Recorder(seed=seed, loudness=loudness)
    first = run(build, table, make_step, recorder, **settings)
    if first.plan is None:
        return Report(first.error, [], first, [])
    problems = [f"failed after the charge: {first.error}"] if first.error else paid_for(first)
    comparisons = []
    for k, neighbour in enumerate(neighbours):
        recorder = Recorder(first, neighbour, seed=k)
        second = run(build, neighbour.table, make_step, recorder, **settings)
        comparisons.append(compared(first, second, neighbour))
    return Report("", comparisons, first, problems)


def run(
    build: Callable[[Table], pm.Model],
    table: Table,
    make_step: Callable[..., Any],
    recorder: Recorder,
    *,
    relation: str,
    unit_index: str | None,
    epsilon: float,
    delta: float,
    lower: bool,
    draws: int,
    tune: int,
    chains: int,
    start_scale: float,
    seed: int,
    real_loop: bool,
    patches: Sequence[Any],
) -> Trace:
    """Make one run and record it."""
    trace = recorder.trace
    with contextlib.ExitStack() as stack:
        for make_patch in patches:
            stack.enter_context(make_patch())
        for patch in _patches(recorder, lower=lower):
            stack.enter_context(patch)
        if not real_loop:
            loop = _plain_loop(start_scale, seed)
            stack.enter_context(mock.patch.object(sampling, "_pymc_sample", loop))
        try:
            with build(_without_nan(table)):
                budget = dp.PrivacyBudget(epsilon, delta, relation)
                shared = {} if unit_index is None else {"unit_index": unit_index}
                step = make_step(budget=budget, **shared)
                trace.tree = dp.sample(
                    draws=draws,
                    tune=tune,
                    chains=chains,
                    cores=1,
                    step=step,
                    random_seed=seed,
                    discard_tuned_samples=False,
                    progressbar=False,
                    quiet=True,
                    compute_convergence_checks=False,
                )
            trace.published = bits_of_tree(trace.tree)
        except (Exception, Diverged) as error:
            trace.error = f"{type(error).__name__}: {error}"
    return trace


def _patches(recorder: Recorder, *, lower: bool) -> Iterator[Any]:
    """Yield what records a run, and what makes it quick."""
    yield mock.patch.object(sampling, "SecureNoise", return_value=recorder)
    for name, method in vars(MeteredDoor).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            yield mock.patch.object(MeteredDoor, name, _recorded(recorder, method))
    yield mock.patch.object(door_module, "drawn", functools.partial(recorder.batch, door_module.drawn))
    for name, recorded in (("acceptance", recorder.probability), ("happens", recorder.happens)):
        yield mock.patch.object(door_module, name, functools.partial(recorded, getattr(door_module, name)))
    yield mock.patch.object(dp.PrivacyBudget, "charge", _noticed_from_here(recorder, dp.PrivacyBudget.charge))
    yield _noticing(recorder)
    yield mock.patch.object(likelihood, "refuse_missing_values", return_value=None)
    for name, length in SHORT_PILOT.items():
        yield mock.patch.object(free_hmc, name, length)
    yield mock.patch.object(likelihood.UnitLikelihood, "__init__", _with_nan(likelihood.UnitLikelihood.__init__))
    yield from _remembering(lower=lower)


def _recorded(recorder: Recorder, method: Callable[..., Release]) -> Callable[..., Release]:
    @functools.wraps(method)
    def asked(door: MeteredDoor, *args: Any, **kwargs: Any) -> Release:
        return recorder.request(door, method, args, kwargs)

    return asked


class _Records(logging.Handler):
    def __init__(self, noticed: list[Any]) -> None:
        super().__init__()
        self.noticed = noticed

    def emit(self, record: logging.LogRecord) -> None:
        self.noticed.append((record.name, record.levelname, record.getMessage()))


def _noticed_from_here(recorder: Recorder, charge: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(charge)
    def charged(budget: dp.PrivacyBudget, plan: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.trace.noticed.clear()
        found = charge(budget, plan, *args, **kwargs)
        recorder.trace.plan = plan
        return found

    return charged


@contextlib.contextmanager
def _noticing(recorder: Recorder) -> Iterator[None]:
    """Collect warnings and log records; those before the charge are forgotten by it."""
    noticed = recorder.trace.noticed

    def shown(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
        noticed.append((category.__name__, str(message)))

    handler = _Records(noticed)
    logging.getLogger().addHandler(handler)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = shown
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


def _without_nan(table: Table) -> Table:
    return {
        name: np.where(np.isnan(values), _NOT_A_NUMBER, values) if values.dtype.kind == "f" else values
        for name, values in table.items()
    }


def _with_nan(real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def made(rows: Any, *args: Any, **kwargs: Any) -> None:
        real(rows, *args, **kwargs)
        rows._data = [
            np.where(data == _NOT_A_NUMBER, np.nan, data) if data.dtype.kind == "f" else data for data in rows._data
        ]

    return made


def _remembering(*, lower: bool) -> Iterator[Any]:
    """Yield patches by which equal graphs are compiled once."""
    real_functions, real_derivatives = likelihood.RowFunctions, likelihood.RowDerivatives
    real_check, real_prior = likelihood.check_factorisation, sampling.Prior
    checked: list[Any] = []

    def functions(row_split: Any, value_vars: Any, shapes: Any, *, factored: bool = True) -> Any:
        def make() -> Any:
            checked.append(None)
            return real_functions(row_split, value_vars, shapes, factored=factored, lower=lower)

        facts = ("functions", [leaf.row_shape() for leaf in row_split.leaves], list(shapes), factored, lower)
        rows = [leaf.row for leaf in row_split.leaves]
        return _COMPILED.of(facts, [*rows, *value_vars], [row_split.row_log_likelihood], make)

    def check(*arguments: Any) -> None:
        if checked:  # new functions are checked, those of an equal graph have been
            real_check(*arguments)
            checked.clear()

    def derivatives(row_split: Any, value_vars: Any) -> Any:
        rows = [leaf.row for leaf in row_split.leaves]
        shapes = [leaf.row_shape() for leaf in row_split.leaves]
        outputs = [row_split.row_log_likelihood]
        return _COMPILED.of(
            ("derivatives", shapes), [*rows, *value_vars], outputs, lambda: real_derivatives(row_split, value_vars)
        )

    def prior(model: pm.Model) -> Any:
        outputs = [model.logp(vars=[*model.free_RVs, *model.potentials])]
        return _COMPILED.of("prior", model.value_vars, outputs, lambda: real_prior(model))

    yield mock.patch.object(likelihood, "RowFunctions", functions)
    yield mock.patch.object(likelihood, "check_factorisation", check)
    yield mock.patch.object(likelihood, "RowDerivatives", derivatives)
    yield mock.patch.object(sampling, "Prior", prior)


def _plain_loop(start_scale: float, seed: int) -> Callable[..., DataTree]:
    """Return what stands for PyMC's loop: the same calls of the step, and a tree of what it returned."""

    @functools.wraps(sampling._pymc_sample)
    def loop(draws: int, *, tune: int, chains: int, step: Any, model: pm.Model, **rest: Any) -> DataTree:
        parameters = ParameterVector(model)
        points: list[list[dict[str, np.ndarray]]] = []
        stats: list[list[list[dict[str, Any]]]] = []
        for chain, rng in enumerate(np.random.default_rng(seed).spawn(chains)):
            start = np.random.default_rng([seed, chain]).normal(scale=start_scale, size=parameters.size)
            point = parameters.to_point(start)
            step.setup_chain(rng, tune, draws)
            step.tune = bool(tune)
            points.append([])
            stats.append([])
            for iteration in range(tune + draws):
                if iteration == tune:
                    step.stop_tuning()
                point, found = step.step(point)
                points[-1].append(point)
                stats[-1].append(found)
        return _tree(points, stats, tune)

    return loop


def _tree(points: Any, stats: Any, tune: int) -> DataTree:
    """Return the groups that PyMC returns, on the unconstrained scale."""
    groups = {}
    for prefix, phase in (("", slice(tune, None)), ("warmup_", slice(0, tune))):
        if not points[0][phase]:
            continue
        coords = {"chain": np.arange(len(points)), "draw": np.arange(len(points[0][phase]))}
        draws = {name: np.array([[point[name] for point in chain[phase]] for chain in points]) for name in points[0][0]}
        groups[f"{prefix}posterior"] = _dataset(draws, coords)
        names = dict.fromkeys(name for one in stats[0][0] for name in one)
        found = {name: np.array([_stat(name, chain[phase]) for chain in stats]) for name in names}
        groups[f"{prefix}sample_stats"] = _dataset(found, coords)
    return DataTree.from_dict(groups)


def _stat(name: str, iterations: Sequence[Sequence[Mapping[str, Any]]]) -> np.ndarray:
    """Return a statistic of every iteration; of several steps that have it, along a further axis."""
    values = [[one[name] for one in steps if name in one] for steps in iterations]
    kind = object if name in ("releases", "unwidened") else None
    array = np.empty((len(values), len(values[0])), dtype=kind) if kind else np.array(values)
    if kind:
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                array[i, j] = value
    return array[:, 0] if array.shape[1] == 1 else array


def _dataset(arrays: Mapping[str, np.ndarray], coords: Mapping[str, np.ndarray]) -> xr.Dataset:
    variables = {
        name: (("chain", "draw", *[f"{name}_dim_{k}" for k in range(values.ndim - 2)]), values)
        for name, values in arrays.items()
    }
    return xr.Dataset(variables, coords=coords)
