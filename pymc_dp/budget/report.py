"""A page for a privacy reviewer."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pymc_dp.accounting import EPSILON_SLACK
from pymc_dp.budget.plan import Plan

_RELATIONS_IN_WORDS = {
    "substitute": "one unit's rows are replaced by any others; the number of units is public",
    "add-remove": "one unit's rows are absent or present; the number of units is protected, too",
}


def report_on(facts: Mapping[str, Any], history: Sequence[Plan], epsilon_spent: float) -> str:
    """Return the page as plain text, from the facts of a budget and its charged plans."""
    epsilon, delta, relation = facts["epsilon"], facts["delta"], facts["relation"]
    runs = [f"  {number}. " + str(plan).replace("\n", "\n     ") for number, plan in enumerate(history, start=1)]
    runs = ["Runs", *(runs or ["  none"])]
    if math.isinf(epsilon):
        return "\n".join(
            [
                "NOT PRIVATE: NO GUARANTEE",
                "",
                "  The epsilon of this budget is infinite: runs under it add no noise except what their settings give,",
                "  and reveal the table. It is for debugging on public or simulated data. Publish nothing.",
                "",
                *runs,
            ]
        )
    undeclared = "that of the samplers (unit=, unit_index=); by default one row. It is in each result's metadata."
    by_unit: dict[str, list[str]] = {}
    for number, plan in enumerate(history, start=1):
        by_unit.setdefault(plan.unit, []).append(str(number))
    units = [f"Unit: {next(iter(by_unit), '') or undeclared}"]
    if len(by_unit) > 1:
        units = ["Units: each run protects its own; all runs together protect a unit that is one unit in every run."]
        units += [f"  run {', '.join(numbers)}: {unit or undeclared}" for unit, numbers in by_unit.items()]
    theorems = dict.fromkeys((type(each).theorem, type(each).assumption) for plan in history for each in plan.releases)
    lines = [
        "PRIVACY REPORT",
        "",
        "Guarantee",
        f"  For any prior knowledge and any choice of analyses, all releases under this budget together are "
        f"({epsilon:g}, {delta:g})-differentially private.",
        f"  In words: for any two tables that differ in one unit, and any set of outcomes, one table's probability "
        f"is at most exp({epsilon:g}) times the other's, plus {delta:g}.",
        f"  Charged so far: epsilon {epsilon_spent:.6g} at that delta, in {len(history)} run(s).",
        *[
            f"  Of it set aside for {tool}, which is not checked: epsilon {spent[0]:g}, delta {spent[1]:g}."
            for tool, spent in facts.get("elsewhere", {}).items()
        ],
        f"Table: {facts['data_name'] or 'not named'}",
        f"Relation: {relation}: {_RELATIONS_IN_WORDS[relation]}.",
        *units,
        "",
        *runs,
        "",
        "Theorems and their assumptions",
        *(line for theorem, assumption in theorems for line in (f"  - {theorem}", f"    assumes: {assumption}")),
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
