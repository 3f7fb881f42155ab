"""The metadata of a published tree, the attributes of its group `privacy`: parsed, and as text in `privacy_report`."""

import json
import math
from collections.abc import Mapping
from typing import Any

from xarray import DataTree

from pymc_dp.budget.plan import noise_in_words, replaced_in_words
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import labelled

_OWN_GROUPS = {
    *(f"{phase}{group}" for phase in ("", "warmup_") for group in ("posterior", "sample_stats")),
    "partial_posterior",
    "releases",
    "private_likelihood",
    "privacy",
}

_IN_WORDS = {
    "substitute": (
        "replacing {unit} by any other changes the probability of any result by at most a factor "
        "e^{epsilon:.3g} = {factor:.3g}, plus {delta:.2g}. The number of units is public"
    ),
    "add-remove": (
        "adding or removing {unit} changes the probability of any result by at most a factor "
        "e^{epsilon:.3g} = {factor:.3g}, plus {delta:.2g}"
    ),
}


def facts_of(tree: Any) -> dict[str, Any]:
    """Return the attributes of a result's group ``privacy``; refuse anything but the result of a private run."""
    if not isinstance(tree, DataTree):
        of_likelihood = (
            " Draw from it first, at no cost: likelihood.sample()."
            if type(tree).__name__ == "PrivateLikelihood"
            else ""
        )
        raise InvalidArgument(
            f"Pass the result of a private run of pm.sample, not a {type(tree).__name__}.{of_likelihood}"
        )
    if "privacy" not in tree:
        raise InvalidArgument(
            "This tree has no group `privacy`: it is not the result of a private run, and may be computed from data "
            "without noise. Pass the result of pm.sample with a DP step or a budget; of a released likelihood that of "
            "likelihood.sample()."
        )
    return {str(name): value for name, value in tree["privacy"].attrs.items()}


def kinds_of(facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the kinds of releases of all steps, by published name: ``kind``, ``role``, and whether ``once``."""
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
    """Return whether all releases of a run are sums over all units with Gaussian noise."""
    return bool(0.0 < facts["rho"] < math.inf) and all("rho" in each for each in json.loads(facts["releases"]))


def acceptance_tests_of(facts: Mapping[str, Any]) -> list[str | None]:
    """Return each step's acceptance test: ``"none"`` if its moves are not tested, None if it states nothing."""
    return [step["facts"].get("acceptance_test") for step in json.loads(facts["steps"])]


def tempering_of(facts: Mapping[str, Any]) -> float:
    """Return the least power of the likelihood in the targets of the steps."""
    return min((float(step["facts"].get("tempering", 1.0)) for step in json.loads(facts["steps"])), default=1.0)


def tempering_in_words(tempering: float) -> list[str]:
    """Return a line on draws from a power of the likelihood; no line for the likelihood itself."""
    if tempering == 1.0:
        return []
    return [
        f"TEMPERED: the draws follow the prior times the likelihood to the power {tempering:g}, not the posterior. "
        f"Where the prior says little they are about {tempering**-0.5:.3g} times as wide."
    ]


def end_of_run_in_words(facts: Mapping[str, Any]) -> list[str]:
    """Return a line on a run that ended early, for the head of a report; no line for a complete run."""
    if facts.get("complete", 1):
        return []
    made = ", ".join(map(str, json.loads(facts["draws_made"])))
    return [
        f"PARTIAL: the run made {made} of {facts['draws']} draws in its chains: {facts['ended_early_because']}. "
        "All that was planned was charged. All draws are in partial_posterior, those of a rectangle in posterior."
    ]


def privacy_report(tree: DataTree) -> str:
    """Return the guarantee of a private run, and the cost of each kind of release, as text.

    Parameters
    ----------
    tree : DataTree
        The result of `pymc_dp.sample`, also as read back from disk.

    Raises
    ------
    InvalidArgument
        If `tree` is not a DataTree.
    """
    if isinstance(tree, DataTree) and "privacy" not in tree:
        return (
            "NO GUARANTEE: this tree has no group `privacy`, so it is not the result of a private run. Its groups "
            f"({', '.join(sorted(map(str, tree.children)))}) may hold the data: do not publish it. If it was computed "
            "from a private result, report on that result."
        )
    facts = facts_of(tree)
    lines = end_of_run_in_words(facts)
    if added := sorted(set(tree.children) - _OWN_GROUPS):
        lines.append(
            f"GROUPS ADDED AFTER THE RUN: {', '.join(added)}. They are not covered and may hold the data: PyMC's "
            "posterior predictive and log-likelihood functions store them. Do not publish them."
        )
    published = json.loads(facts.get("variables", "null"))
    drawn = map(str, tree["posterior"].data_vars) if "posterior" in tree else ()
    if published is not None and (later := sorted(set(drawn) - set(published))):
        lines.append(
            f"VARIABLES ADDED AFTER THE RUN to the posterior: {', '.join(later)}. They are not covered and may be "
            "computed from the rows, as predictions at the people's own covariates are. Do not publish them."
        )
    if not facts["private"]:
        lines.append(f"THIS RESULT IS NOT PRIVATE: {facts['not_private_because']}. Do not publish it.")
    epsilon, delta, relation = facts["epsilon"], facts["delta"], facts["relation"]
    if math.isfinite(epsilon):
        meaning = _IN_WORDS[relation].format(unit=facts["unit"], epsilon=epsilon, factor=math.exp(epsilon), delta=delta)
        replaced = replaced_in_words(relation, facts["rho"], delta, gaussian=all_gaussian(facts))
        lines += [
            f"Guarantee: epsilon {epsilon:.4g}, delta {delta:.3g}, relation {relation}:",
            *(f"  {line}." for line in (meaning, *replaced)),
        ]
    else:
        lines.append("Guarantee: NONE. The budget's epsilon is infinite: the result reveals the table.")
    lines += [
        *tempering_in_words(tempering_of(facts)),
        f"Budget: {facts['budget_epsilon_spent']:.4g} of epsilon {facts['budget_epsilon']:.4g} spent, "
        "this run included.",
        f"{'released':<18}{'count':>8}{'noise multiplier':>18}{'share':>8}",
    ]
    for kind, entries in releases_by_kind(facts).items():
        multipliers = [entry["noise_multiplier"] for entry in entries if "noise_multiplier" in entry]
        share = f"{math.fsum(entry['share'] for entry in entries):.1%}" if "share" in entries[0] else ""
        count = sum(entry["count"] for entry in entries)
        lines.append(f"{kind:<18}{count:>8d}{noise_in_words(multipliers):>18}{share:>8}".rstrip())
    bounds = ", ".join(f"{kind} {bound:g}" for kind, bound in json.loads(facts["clip_bounds"]).items())
    lines += [f"Clip bounds: {bounds}.", f"Noise: {facts['noise']}.", f"Accounting: {facts['accountant']}."]
    if omitted := json.loads(facts["omitted_because_computed_from_rows"]):
        lines.append(f"Left out because computed from rows: {', '.join(omitted)}.")
    return "\n".join(lines)
