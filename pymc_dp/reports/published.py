"""What a published tree says of its run: the attributes of its group `privacy`, read and put into words."""

import json
import math
from collections.abc import Mapping
from typing import Any

from xarray import DataTree

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import labelled


def facts_of(tree: Any) -> dict[str, Any]:
    """Return the attributes of a result's group ``privacy``.

    Raises
    ------
    InvalidArgument
        If it is no result of a private run.
    """
    if not isinstance(tree, DataTree):
        raise InvalidArgument(f"Pass what pm.sample returned of a private run, not a {type(tree).__name__}.")
    if "privacy" not in tree:
        raise InvalidArgument(
            "This tree has no group `privacy`: it is not what a private run returned, and may be computed from data "
            "without noise. Pass the result of pm.sample with a DP step or a budget."
        )
    return {str(name): value for name, value in tree["privacy"].attrs.items()}


def kinds_of(facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the kinds of releases of all steps, by published name: ``kind``, ``role``, and whether made ``once``."""
    return {
        labelled(each["kind"], step["label"]): each for step in json.loads(facts["steps"]) for each in step["kinds"]
    }


def releases_by_kind(facts: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of all releases, by published kind."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(facts["releases"]):
        by_kind.setdefault(each["kind"], []).append(each)
    return by_kind


def all_gaussian(facts: Mapping[str, Any]) -> bool:
    """Return whether all that a run released has Gaussian noise on sums over all units."""
    return bool(0.0 < facts["rho"] < math.inf) and all("rho" in each for each in json.loads(facts["releases"]))


def acceptance_tests_of(facts: Mapping[str, Any]) -> list[str | None]:
    """Return each step's acceptance test: ``"none"`` where none corrects its moves, None if it does not say."""
    return [step["facts"].get("acceptance_test") for step in json.loads(facts["steps"])]


def tempering_of(facts: Mapping[str, Any]) -> float:
    """Return the least power of the likelihood that a step draws with."""
    return min((float(step["facts"].get("tempering", 1.0)) for step in json.loads(facts["steps"])), default=1.0)


def tempering_in_words(tempering: float) -> list[str]:
    """Say what a power of the likelihood does to the draws."""
    if tempering == 1.0:
        return []
    return [
        f"TEMPERED: the draws follow the prior times the likelihood to the power {tempering:g}, not the posterior. "
        f"Where the prior says little they are about {tempering**-0.5:.3g} times as wide."
    ]


def how_it_ended(facts: Mapping[str, Any]) -> list[str]:
    """Return a line on a run that ended early, for the head of a report; none for a whole run."""
    if facts.get("complete", 1):
        return []
    made = ", ".join(map(str, json.loads(facts["draws_made"])))
    return [
        f"PARTIAL: the run made {made} of {facts['draws']} draws in its chains: {facts['ended_early_because']}. "
        "All that was planned was charged. All draws are in partial_posterior, those of a rectangle in posterior."
    ]
