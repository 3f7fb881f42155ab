"""Record one run, replay its noisy answers on a neighbouring table, and say where the two runs differ.

The method is that of arXiv 2602.17454. A private run is a function of its noisy answers and of public randomness. So
where every answer of a run on a neighbouring table is replaced by the answer of the first run, all that is left of the
data is what would have been answered: the exact sums. The second run then has to

1. make the same requests in the same order, with the same bits: at the curator's public methods (positions, bounds,
   noise multipliers, batches, centres) and at the source of noise (size and scale of the noise);
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

The runs themselves are made by `running`, and recorded and answered by `recording`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pymc as pm
from neighbours import Neighbour, Table
from recording import Recorder, Request, Trace, bits
from running import Survey, run

import pymc_dp as dp
from pymc_dp.accounting.renyi import barker_batch_bound


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
    moved_kinds : frozenset of str
        Kinds of releases of which one had other exact sums.
    """

    neighbour: str
    violations: list[str]
    releases: int
    moved: int
    largest: float
    published_alike: bool
    moved_kinds: frozenset[str]


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
    violations, moved, largest, kinds = [], 0, 0.0, set()
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
        kinds |= {before.kind} if part > 0 else set()
        largest = max(largest, math.sqrt(part))
    published_alike = second.published is not None and second.published == first.published
    if first.published is not None and not published_alike and not violations:
        violations.append("another tree was published")
    return Comparison(
        neighbour.name, violations, len(second.requests), moved, largest, published_alike, frozenset(kinds)
    )


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
    batch_size = before.given["query"].batches.batch_size
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
        planned.setdefault(event.kind, []).extend([event.noise_needed] * event.count)
    problems = []
    for kind, multipliers in asked.items():
        paid = sorted(planned.get(kind, []))
        if len(multipliers) > len(paid):
            problems.append(f"{len(multipliers)} releases of kind {kind!r}, {len(paid)} were paid for")
        # The quietest release needs the quietest that was paid for, and so on.
        if any(given < least for given, least in zip(sorted(multipliers), paid, strict=False)):
            problems.append(f"a release of kind {kind!r} has less noise than was paid for")
    return problems


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
    draws: int = 4,
    tune: int = 1,
    chains: int = 2,
    start_scale: float = 0.5,
    loudness: float = 1.0,
    seed: int = 0,
    real_loop: bool = False,
    patches: Sequence[Any] = (),
    beside: Callable[[Table], dp.Table] | None = None,
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
        Makes the step, or steps, given ``budget=`` and shared settings, in the model's context; or a `running.Survey`.
    relation, epsilon, delta : str, float
        Of the budget.
    unit_index : str, optional
        The column that says which unit a row belongs to; it has to be a `pm.Data` of the model.
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
    beside : callable, optional
        Makes the `pymc_dp.Table` of a table; then `build` makes the same model, of invented rows, for every table.
    """
    settings = {"relation": relation, "unit_index": unit_index, "epsilon": epsilon, "delta": delta}
    settings |= {"draws": draws, "tune": tune, "chains": chains, "start_scale": start_scale, "seed": seed}
    settings |= {"real_loop": real_loop, "patches": patches, "beside": beside}
    recorder = Recorder(seed=seed, loudness=loudness)
    first = run(build, table, make_step, recorder, **settings)
    if first.plan is None:
        return Report(first.error, [], first, [])
    problems = [f"failed after the charge: {first.error}"] if first.error else paid_for(first)
    if first.tree is not None and "posterior" not in first.tree and not isinstance(make_step, Survey):
        problems.append("published no draws, so nothing that was published is compared")
    comparisons = []
    for k, neighbour in enumerate(neighbours):
        recorder = Recorder(first, neighbour, seed=k)
        second = run(build, neighbour.table, make_step, recorder, **settings)
        comparisons.append(compared(first, second, neighbour))
    return Report("", comparisons, first, problems)
