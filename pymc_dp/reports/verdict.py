"""`quality_report`: the verdict on the draws of a private run as text, with advice."""

import json
import math
from collections.abc import Mapping
from typing import Any

from xarray import DataTree

from pymc_dp.accounting import gaussian_epsilon
from pymc_dp.reports.published import all_gaussian, end_of_run_in_words, facts_of, tempering_in_words
from pymc_dp.reports.quality import ACCEPTABLE_SURROGATE_ERROR, GOOD_EFFECTIVE_DRAWS, Quality, kind_in_words, quality

_GOOD_CENTRE_DISTANCE = 3.0
#: From this ratio of widths on, the report states the cause, or the parameter.
_MUCH_WIDER = 1.2
#: Largest number of parameters that a sentence names.
_MOST_NAMED = 5
#: The verdict on a result without draws, by whether the run is complete.
_WITHOUT_DRAWS = {
    True: (
        "No draws yet: the likelihood was released without any. dp.PrivateLikelihood(tree, model).sample() draws from "
        "it at no cost, and the report on these draws has the verdict."
    ),
    False: "NOT usable: the run ended before the first draw after tuning.",
}


def quality_report(tree: DataTree) -> str:
    """Return a report on the quality of the draws: measures, verdict, and advice where they are not usable.

    Parameters
    ----------
    tree : DataTree
        The result of `pymc_dp.sample`, also as read back from disk.

    Raises
    ------
    InvalidArgument
        If `tree` is not the result of a private run.
    """
    facts = facts_of(tree)
    if "posterior" not in tree:
        return "\n".join([*end_of_run_in_words(facts), _WITHOUT_DRAWS[bool(facts.get("complete"))]])
    found = quality(tree)
    by = "" if found.tested else " (there is no test)"
    lines = [
        *end_of_run_in_words(facts),
        f"{found.draws} draws, accepted {found.acceptance:.0%}{by}; R-hat up to {found.r_hat:.2f}, "
        f"effective draws at least {found.effective_draws:.0f}",
        *tempering_in_words(found.tempering),
    ]
    if not found.tested:
        lines.append("the step size and the drawing of batches bias the draws; compare with a run of smaller steps")
    elif math.isfinite(found.test_noise):
        lines.append(f"noise of the acceptance test: {found.test_noise:.2f} (median; up to about 1 is good)")
    for kind, clipped in found.clip_fractions.items():
        how = f" ± {clipped.noise_std:.2%} (released)" if clipped.noise_std > 0.0 else " (exact, not private)"
        lines.append(f"clipped units in {kind_in_words(kind)}: {clipped.fraction:.2%}{how}")
    if math.isfinite(found.clip_bias):
        lines.append(
            f"clip bounds may have moved the means by about {max(0.0, found.clip_bias):.2f} ± "
            f"{found.clip_bias_noise_std:.2f} sd of the draws (released), root mean square over parameters"
        )
    lines += surrogate_in_words(found)
    if found.diverging > 0.0:
        remedy = (
            "PrivateLikelihood(result, model).sample(target_accept=0.95) draws again at no cost"
            if "private_likelihood" in tree
            else "use a smaller step size or larger mass_matrix"
        )
        lines.append(f"{found.diverging:.1%} of the trajectories diverged: {remedy}")
    if found.biased:
        lines.append("BIASED by clipping. " + _against_clipping(facts))
    match found.verdict:
        case "usable" if found.imprecise:
            off = math.sqrt(found.widening**2 - 1.0)
            trusted = "as far as the prior can, " if found.hangs_on_prior else ""
            trusted += f"but for those of {_named(found.doubtful)}, " if found.doubtful else ""
            lines.append(
                "Usable, but imprecise: the chains agree, give enough effective draws, and no diagnostic speaks "
                f"against them. Intervals can be trusted, {trusted}and are {found.widening:.2g} times as wide as "
                f"without privacy; means may be off by about {off:.2g} posterior sd."
            )
        case "usable":
            but, other = "", ""
            if found.doubtful:
                but, other = f" but for the intervals of {_named(found.doubtful)}", "other "
            lines.append(
                f"Usable{but}: the chains agree, give enough effective draws, and no {other}diagnostic speaks against "
                "them."
            )
        case "unknown":
            lines.append(
                f"UNKNOWN whether they are usable as a posterior: {'; '.join(found.reasons_unknown)}. The chains agree "
                "and give enough effective draws."
            )
        case "not usable":
            lines.append(
                f"NOT usable as a posterior: {'; '.join(found.reasons_against)}. Neither means nor intervals are to be "
                "trusted."
            )
            lines += _advice(facts, found, draws_are_free="private_likelihood" in tree)
    return "\n".join(lines)


def surrogate_in_words(found: Quality) -> list[str]:
    """Return lines on the width and the quality of the surrogate; none for samplers without a surrogate."""
    lines = []
    if float(f"{found.widening:.2g}") > 1.0:
        by_noise = found.widening_by_noise
        allowance = f" ({by_noise:.2g} times by noise; the rest is an allowance for bias by clip bounds)"
        lines.append(
            f"privacy makes the draws about {found.widening:.2g} times as wide, root mean square over parameters"
            + (allowance if found.widening > _MUCH_WIDER * by_noise else "")
        )
        if found.largest_widening > _MUCH_WIDER * found.widening:
            lines.append(f"most of all {found.most_widened}: about {found.largest_widening:.2g} times")
    if found.as_prior:
        lines.append(f"draws of {_named(found.as_prior)} are as wide as the prior: noise hides what few rows tell")
    if found.hangs_on_prior:
        lines.append(
            f"beside noise the prior counts for more: it moves {found.most_pulled} by {found.prior_pull:.2g} sd of the "
            "draws beyond what it would without privacy. A comparison with other priors costs nothing: "
            "PrivateLikelihood(result, model).sample(priors=...)"
        )
    if found.doubtful:
        lines.append(
            f"draws of {_named(found.doubtful)} may be more than three times too narrow: noise hides their curvature"
        )
    if math.isfinite(found.surrogate_error):
        noise, how = f" ± {found.surrogate_error_noise_std:.2g}", "released; "
        if found.surrogate_error_noise_std == 0.0:  # computed without a release of its own
            noise = how = ""
        lines.append(
            "what the surrogate misses of the log-likelihood may have moved means by "
            f"{found.surrogate_error:.2g}{noise} sd of the draws ({how}up to {ACCEPTABLE_SURROGATE_ERROR[0]:g} is good)"
        )
    if found.centre_distance > _GOOD_CENTRE_DISTANCE and found.verdict != "usable":
        lines.append(
            f"THE EXPANSION POINT IS FAR: {found.centre_distance:.1f} posterior sd from the surrogate's mean, root "
            "mean square. See whether the last positions of the scores in the releases agree. A larger epsilon, "
            "Shares.centre, or an initval= near plausible values help."
        )
    return lines


def _named(parameters: tuple[str, ...]) -> str:
    """Return the first names, and the number of the others."""
    more = len(parameters) - _MOST_NAMED
    return ", ".join(parameters[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _against_clipping(facts: Mapping[str, Any]) -> str:
    """Return advice for fewer clipped units, by sampler."""
    advice = {
        "dp_barker": "DPBarker's bound is sqrt(batch_size) / (tempering n): use shorter moves (proposal_scale), "
        "larger batches or less of the likelihood (tempering)",
        "dp_surrogate_hmc": "DPSurrogateHMC weighs bias against noise: a larger epsilon lets it choose larger bounds, "
        "or pass clip_gradient",
    }
    samplers = {step["sampler"] for step in json.loads(facts["steps"])}
    found = [advice[name] for name in advice if name in samplers]
    if samplers - set(advice):
        found.append("raise the clip bound (clip_gradient, clip_log_ratio)")
    first = "" if "dp_surrogate_hmc" in samplers else "A larger epsilon does not help. "
    return f"{first}What helps: {'; '.join(found)}; or bound the data by public limits."


def _advice(facts: Mapping[str, Any], found: Quality, *, draws_are_free: bool) -> list[str]:
    """Return advice on draws that are not usable: often a larger budget or table, by the scaling of the test noise.

    At the same acceptance, the number of draws is proportional to rho, and the noise of a log-ratio at the posterior's
    width to n^(-1/2), with n units: the product of rho and n decides.
    """
    if not found.tested:
        return ["What would help with this sampler: more draws, or steps as large as their bias allows."]
    if found.acceptance == 0.0:
        if math.isfinite(found.centre_distance):
            return ["Nothing was accepted: spend more on the expansion point (Shares.centre), or use fewer draws."]
        return ["Nothing was accepted: use smaller moves (step_size, mass_matrix) and fewer draws first."]
    if not math.isfinite(facts["epsilon"]):
        return ["There is no noise: what would help is more draws, or moves that reach farther."]
    if not math.isfinite(found.test_noise) or not all_gaussian(facts):
        if found.effective_draws >= GOOD_EFFECTIVE_DRAWS:
            return []
        if draws_are_free:
            return ["More draws cost nothing: PrivateLikelihood(result, model).sample(draws=4000, target_accept=0.95)."]
        return ["What would help with this sampler: more draws, and moves that are accepted more often."]
    factor = GOOD_EFFECTIVE_DRAWS / max(1.0, found.effective_draws) * max(1.0, found.test_noise) ** 2
    if factor <= 1.0:  # neither the number of draws nor the noise of tests is the cause
        advised = found.biased and "dp_surrogate_hmc" in facts["steps"]
        return [] if advised else ["More units or a larger epsilon are not what it takes: see the reasons."]
    if found.test_noise * math.sqrt(factor) < 1.0:  # shared by so many more draws, the budget still suffices
        return [
            f"For enough effective draws: about {math.ceil(1.5 * factor)} times as many draws on the same budget. The "
            "noise of tests leaves room for them."
        ]
    epsilon = gaussian_epsilon(facts["rho"] * factor, facts["delta"])
    units = f"{factor:.2g} times as many units at this epsilon"
    if "n_units" in facts:
        n_units = facts["n_units"]
        units = f"some {math.ceil(n_units * factor):,} units at this epsilon (there are {n_units:,})"
    larger = float(f"{max(epsilon, facts['epsilon']):.3g}")
    return [
        f"For enough effective draws with this sampler, roughly: {units}, or epsilon {larger:,g} on these "
        f"(it was {facts['epsilon']:.3g})."
    ]
