"""A page for a privacy reviewer."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from pymc_dp.accounting import EPSILON_SLACK, Relation
from pymc_dp.budget.plan import Plan

_RELATIONS_IN_WORDS = {
    "substitute": "one unit's rows are replaced by any others; how many units there are is public",
    "add-remove": "one unit's rows are missing or there; how many units there are is protected, too",
}


class ReportedBudget(Protocol):
    """What a report needs to know of a budget."""

    @property
    def epsilon(self) -> float: ...  # noqa: D102
    @property
    def private(self) -> bool: ...  # noqa: D102
    @property
    def delta(self) -> float: ...  # noqa: D102
    @property
    def relation(self) -> Relation: ...  # noqa: D102
    @property
    def data_name(self) -> str | None: ...  # noqa: D102
    @property
    def epsilon_spent(self) -> float: ...  # noqa: D102
    @property
    def elsewhere(self) -> Mapping[str, tuple[float, float]]: ...  # noqa: D102
    @property
    def history(self) -> Sequence[Plan]: ...  # noqa: D102


def report_on(budget: ReportedBudget) -> str:
    """Return the page as plain text."""
    history = budget.history
    if not budget.private:
        return "\n".join(
            [
                "NOT PRIVATE: NO GUARANTEE",
                "",
                "  The epsilon of this budget is infinite: runs under it add no noise but what their settings ask for,",
                "  and show the table as it is. It is for debugging on public or simulated data. Publish nothing.",
                "",
                "Runs",
                *_runs(history),
            ]
        )
    lines = [
        "PRIVACY REPORT",
        "",
        "Guarantee",
        f"  Whatever was already known, and whatever analyses are chosen, everything released under this budget is "
        f"({budget.epsilon:g}, {budget.delta:g})-differentially private.",
        f"  In words: for any two tables that differ in one unit, and any set of outcomes, one table's probability "
        f"is at most exp({budget.epsilon:g}) times the other's, plus {budget.delta:g}.",
        f"  Charged so far: epsilon {budget.epsilon_spent:.6g} at that delta, in {len(history)} run(s).",
        *[
            f"  Of it set aside for {tool}, which is not checked: epsilon {epsilon:g}, delta {delta:g}."
            for tool, (epsilon, delta) in budget.elsewhere.items()
        ],
        f"Table: {budget.data_name or 'not named'}",
        f"Relation: {budget.relation}: {_RELATIONS_IN_WORDS[budget.relation]}.",
        *_units(history),
        "",
        "Runs",
        *_runs(history),
    ]
    lines += ["", "Theorems and what they assume"]
    seen = dict.fromkeys((type(each).theorem, type(each).assumption) for plan in history for each in plan.releases)
    for theorem, assumption in seen:
        lines += [f"  - {theorem}", f"    assumes: {assumption}"]
    lines += [
        "  - Gaussian runs compose in rho (Dong, Roth and Su 2022, Corollary 3.3; as a filter: Koskela, Tobaben and "
        "Honkela 2023)",
        "  - other runs reserve an (epsilon, delta) of their own when they start; these add (Rogers and others 2016)",
        f"  - noise is an exact discrete Gaussian on a grid at least 2**35 times finer; {EPSILON_SLACK:g} of epsilon "
        "pays for the difference to the continuous one",
        "",
        "Not covered",
        "  - what was computed from the table outside this budget, and other tables about the same people",
        "  - values that a user took from the table to write the model: priors, scales, starting values, categories",
        "  - seeded noise and exact clip counts: such results say that they are not private",
        "  - timing, memory and power as seen by somebody on the same machine; an intruder who reads the table",
        "  - copies of a saved budget's file, and a model that is changed while a run goes on",
        "  - what is true of everybody: a result may reveal it whether or not a person took part",
    ]
    return "\n".join(lines)


def _runs(history: Sequence[Plan]) -> list[str]:
    """Return the plans of all runs."""
    lines = [f"  {number}. " + str(plan).replace("\n", "\n     ") for number, plan in enumerate(history, start=1)]
    return lines or ["  none"]


def _units(history: Sequence[Plan]) -> list[str]:
    """Return what is protected, by the runs that say so."""
    by_unit: dict[str, list[str]] = {}
    for number, plan in enumerate(history, start=1):
        by_unit.setdefault(plan.unit, []).append(str(number))
    untold = "what the samplers were told (unit=, unit_index=); by default one row. Each result's metadata says it."
    if len(by_unit) < 2:
        return [f"Unit: {next(iter(by_unit), '') or untold}"]
    lines = [f"  run {', '.join(numbers)}: {unit or untold}" for unit, numbers in by_unit.items()]
    return ["Units: each run protects its own; all runs together protect what is one unit in every run.", *lines]
