"""`privacy_report`: what a private run guarantees, and what was spent on what."""

import json
import math

from xarray import DataTree

from pymc_dp.budget.plan import noise_in_words, replaced_in_words
from pymc_dp.reports.published import (
    all_gaussian,
    facts_of,
    how_it_ended,
    releases_by_kind,
    tempering_in_words,
    tempering_of,
)

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


def privacy_report(tree: DataTree) -> str:
    """Return what a private run guarantees and what was spent on what, as text.

    Parameters
    ----------
    tree : DataTree
        As `pymc_dp.sample` returned it, or as read back from disk.

    Raises
    ------
    InvalidArgument
        If it is no tree.
    """
    if isinstance(tree, DataTree) and "privacy" not in tree:
        return (
            "NO GUARANTEE: this tree has no group `privacy`, so it is not what a private run returned. Its groups "
            f"({', '.join(sorted(map(str, tree.children)))}) may hold the data: do not publish it. If it was computed "
            "from a private result, report on that result."
        )
    facts = facts_of(tree)
    lines = how_it_ended(facts)
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
        lines.append("Guarantee: NONE. The budget's epsilon is infinite: the result shows the table as it is.")
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
