"""Reports on a finished private run: what was guaranteed, what was spent, and whether the draws are usable.

Everything here is computed from the published tree, so it costs no privacy.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import arviz as az
import numpy as np
from scipy.spatial.distance import cdist
from xarray import DataTree

from pymc_dp.accounting import gaussian_epsilon

_GOOD_R_HAT = 1.05
_GOOD_EFFECTIVE_DRAWS = 200
_HARMLESS_CLIP_FRACTION = 0.01
#: In posterior standard deviations.
_HARMLESS_CLIP_BIAS, _GOOD_CENTRE_DISTANCE = 0.5, 3.0
#: How the kinds of several steps' releases end.
_ORDINAL = re.compile(r"_\d+$")
_OWN_GROUPS = {
    *(f"{phase}{group}" for phase in ("", "warmup_") for group in ("posterior", "sample_stats", "unwidened")),
    "partial_posterior",
    "releases",
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


@dataclass(frozen=True)
class Quality:
    """How good the draws of a private run are.

    Attributes
    ----------
    draws : int
        Kept draws of all chains.
    acceptance : float
        Share of accepted proposals.
    r_hat : float
        Largest R-hat of any parameter.
    effective_draws : float
        Smallest bulk effective sample size of any parameter.
    test_noise : float
        Median standard deviation of the noise in the log-ratio of the acceptance test. Below about 1 it hardly
        costs acceptance, above 3 hardly anything is accepted.
    clip_fractions : dict of str to tuple of float
        Released share of clipped units, and the standard deviation of its noise, by kind of release.
    diverging : float
        Share of trajectories that left the numbers.
    clip_bias, clip_bias_noise_std : float
        By how many posterior standard deviations clip bounds may have moved the mean of all draws, about, and the
        noise of that figure. Not a number where the sampler does not say.
    centre_distance : float
        From the centre of an expansion to the mean of the surrogate, in posterior standard deviations, root mean square
        over directions. Not a number for other samplers.
    tested : bool
        Whether moves passed an acceptance test. Without one, clipped gradients bias the draws, and so does the step.
    biased : bool
        More than 1 % of the units were clipped in log-ratios, or clip bounds may have moved the mean by more than half
        a standard deviation, beyond the noise of these figures.
    usable : bool
        R-hat below 1.05, at least 200 effective draws, and not biased.
    """

    draws: int
    acceptance: float
    r_hat: float
    effective_draws: float
    test_noise: float
    clip_fractions: dict[str, tuple[float, float]]
    diverging: float = 0.0
    tested: bool = True
    clip_bias: float = math.nan
    clip_bias_noise_std: float = math.nan
    centre_distance: float = math.nan

    @property
    def biased(self) -> bool:
        """Whether clipping of what the draws depend on moves the posterior: without a test, that of gradients, too."""
        if self.clip_bias - 3.0 * self.clip_bias_noise_std > _HARMLESS_CLIP_BIAS:
            return True
        return any(
            fraction - 3.0 * (noise_std if math.isfinite(noise_std) else 0.0) > _HARMLESS_CLIP_FRACTION
            for kind, (fraction, noise_std) in self.clip_fractions.items()
            if not (self.tested and kind.startswith("gradient"))
        )

    @property
    def usable(self) -> bool:
        """Whether the chains agree, give enough draws, and are not visibly biased by clipping."""
        return not self.biased and self.r_hat < _GOOD_R_HAT and self.effective_draws >= _GOOD_EFFECTIVE_DRAWS


def quality(tree: DataTree) -> Quality:
    """Return the quality of a private run's draws, from its published tree.

    Parameters
    ----------
    tree : DataTree
        As `pm.sample` returned it, or as read back from disk.
    """
    stats = tree["sample_stats"]
    posterior = tree["posterior"]
    return Quality(
        draws=int(posterior.sizes["chain"] * posterior.sizes["draw"]),
        acceptance=float(stats["accepted"].mean()),
        r_hat=_extreme(az.rhat(_chains(tree)), max),
        effective_draws=_extreme(az.ess(_chains(tree)), min),
        test_noise=float(stats["noise_std"].median()),
        clip_fractions=_clip_fractions(tree),
        diverging=_mean_of(stats, "diverging", 0.0),
        clip_bias=_mean_of(stats, "clip_bias", math.nan),
        clip_bias_noise_std=_mean_of(stats, "clip_bias_noise_std", math.nan),
        centre_distance=_mean_of(stats, "centre_distance", math.nan),
        tested=not any(
            str(name).startswith("acceptance_test") and test == "none" for name, test in tree["privacy"].attrs.items()
        ),
    )


def privacy_report(tree: DataTree) -> str:
    """Return what a private run guarantees and what was spent on what, as text.

    Parameters
    ----------
    tree : DataTree
        As `pm.sample` returned it, or as read back from disk.
    """
    if "privacy" not in tree:
        return (
            "NO GUARANTEE: this tree has no group `privacy`, so it is not what a private run returned. Its groups "
            f"({', '.join(sorted(map(str, tree.children)))}) may hold the data: do not publish it. If it was computed "
            "from a private result, report on that result."
        )
    facts = tree["privacy"].attrs
    lines = _how_it_ended(tree)
    added = sorted(set(tree.children) - _OWN_GROUPS)
    if added:
        lines.append(
            f"GROUPS ADDED AFTER THE RUN: {', '.join(added)}. They are not covered and may hold the data: PyMC's "
            "posterior predictive and log-likelihood functions store them. Do not publish them."
        )
    published = json.loads(facts.get("variables", "null"))
    later = sorted(set(map(str, tree["posterior"].data_vars)) - set(published)) if published is not None else []
    if later:
        lines.append(
            f"VARIABLES ADDED AFTER THE RUN to the posterior: {', '.join(later)}. They are not covered and may be "
            "computed from the rows, as predictions at the people's own covariates are. Do not publish them."
        )
    if not facts["private"]:
        lines.append(f"THIS RESULT IS NOT PRIVATE: {facts['not_private_because']}. Do not publish it.")
    meaning = _IN_WORDS[facts["relation"]].format(
        unit=facts["unit"], epsilon=facts["epsilon"], factor=math.exp(facts["epsilon"]), delta=facts["delta"]
    )
    lines += [
        f"Guarantee: epsilon {facts['epsilon']:.4g}, delta {facts['delta']:.3g}, relation {facts['relation']}:",
        f"  {meaning}.",
        f"Budget: {facts['budget_epsilon_spent']:.4g} of epsilon {facts['budget_epsilon']:.4g} spent, "
        "this run included.",
        f"{'released':<18}{'count':>8}{'noise multiplier':>18}{'share':>8}",
    ]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for entry in json.loads(facts["releases"]):
        by_kind.setdefault(entry["kind"], []).append(entry)
    for kind, entries in by_kind.items():
        multipliers = [entry["noise_multiplier"] for entry in entries if "noise_multiplier" in entry]
        noise = f"{min(multipliers):.4g}" if multipliers else "in the test"
        noise += f" to {max(multipliers):.4g}" if len(set(multipliers)) > 1 else ""
        share = f"{math.fsum(entry['share'] for entry in entries):.1%}" if "share" in entries[0] else ""
        count = sum(entry["count"] for entry in entries)
        lines.append(f"{kind:<18}{count:>8d}{noise:>18}{share:>8}".rstrip())
    bounds = ", ".join(f"{kind} {bound:g}" for kind, bound in json.loads(facts["clip_bounds"]).items())
    lines += [f"Clip bounds: {bounds}.", f"Noise: {facts['noise']}.", f"Accounting: {facts['accountant']}."]
    omitted = json.loads(facts["omitted_because_computed_from_rows"])
    if omitted:
        lines.append(f"Left out because computed from rows: {', '.join(omitted)}.")
    return "\n".join(lines)


def _how_it_ended(tree: DataTree) -> list[str]:
    """Return a line on a run that ended early, for the head of a report; none for a whole run."""
    facts = tree["privacy"].attrs
    if facts.get("complete", 1):
        return []
    made = ", ".join(map(str, json.loads(facts["draws_made"])))
    return [
        f"PARTIAL: the run made {made} of {facts['draws']} draws in its chains: {facts['ended_early_because']}. "
        "All that was planned was charged. All draws are in partial_posterior, those of a rectangle in posterior."
    ]


def quality_report(tree: DataTree) -> str:
    """Return how good the draws are, whether they are usable and what would make them so, as text.

    Parameters
    ----------
    tree : DataTree
        As `pm.sample` returned it, or as read back from disk.
    """
    if "posterior" not in tree:
        return "\n".join([*_how_it_ended(tree), "NOT usable: the run ended before the first draw after tuning."])
    found = quality(tree)
    by = "" if found.tested else " (there is no test)"
    lines = [
        *_how_it_ended(tree),
        f"{found.draws} draws, accepted {found.acceptance:.0%}{by}; R-hat up to {found.r_hat:.2f}, "
        f"effective draws at least {found.effective_draws:.0f}",
    ]
    if not found.tested:
        lines.append("the step size and the drawing of batches bias the draws; compare with a run of smaller steps")
    elif math.isfinite(found.test_noise):
        lines.append(f"noise of the acceptance test: {found.test_noise:.2f} (median; up to about 1 is good)")
    for kind, (fraction, noise_std) in found.clip_fractions.items():
        lines.append(f"clipped units in a {kind.replace('_', '-')}: {fraction:.2%} ± {noise_std:.2%} (released)")
    if math.isfinite(found.clip_bias):
        lines.append(
            f"clip bounds may have moved the means by about {max(0.0, found.clip_bias):.2f} ± "
            f"{found.clip_bias_noise_std:.2f} posterior sd (released)"
        )
    if found.centre_distance > _GOOD_CENTRE_DISTANCE:
        lines.append(
            f"THE CENTRE IS FAR: {found.centre_distance:.1f} posterior sd from the surrogate's mean, root mean square. "
            "Tests are noisy then, and it may be lost: see whether the last points of centre_position in the releases "
            "agree. A rehearsal of the same kind as the table, a larger epsilon or Shares.centre help."
        )
    if found.diverging > 0.0:
        lines.append(
            f"{found.diverging:.0%} of the trajectories diverged: use a smaller step size or larger mass_matrix"
        )
    if found.biased:
        lines.append(
            "BIASED: so many units are clipped that the draws follow another distribution. More units or a larger "
            "epsilon do not help: raise the clip bound, or bound the data by public limits."
        )
    if found.usable:
        return "\n".join([*lines, "Usable: the chains agree and give enough effective draws."])
    lines.append(
        f"NOT usable as a posterior: it takes R-hat below {_GOOD_R_HAT} and {_GOOD_EFFECTIVE_DRAWS} effective draws. "
        "The chains' common mean may still be near the posterior mean; its intervals are not to be trusted."
    )
    return "\n".join([*lines, *_what_would_help(tree, found)])


def _what_would_help(tree: DataTree, found: Quality) -> list[str]:
    """Say by how much the budget would have to grow, by the scaling of the test noise.

    At the same acceptance, draws are bought in proportion to rho, and a log-ratio's noise at the posterior's
    width shrinks with the square root of the number of units: what counts is rho times the number of units.
    """
    if not found.tested:
        return ["What would make it usable with this sampler: more draws, or steps as large as their bias allows."]
    if found.acceptance == 0.0:
        if math.isfinite(found.centre_distance):
            return ["Nothing was accepted: spend more on the centre (Shares.centre), or use fewer draws."]
        return ["Nothing was accepted: use smaller moves (step_size, mass_matrix) and fewer draws first."]
    facts = tree["privacy"].attrs
    if not math.isfinite(found.test_noise) or facts["rho"] <= 0.0:
        return ["What would make it usable with this sampler: more draws, and moves that are accepted more often."]
    factor = _GOOD_EFFECTIVE_DRAWS / max(1.0, found.effective_draws) * max(1.0, found.test_noise) ** 2
    epsilon = gaussian_epsilon(facts["rho"] * factor, facts["delta"])
    units = f"some {factor:.0f} times as many units at this epsilon"
    if "n_units" in facts:
        there_are = facts["n_units"]
        units = f"some {there_are * factor:,.0f} units at this epsilon (there are {there_are:,})"
    return [f"What would make it usable with this sampler, roughly: {units}, or epsilon {epsilon:.0f} on these."]


def _clip_fractions(tree: DataTree) -> dict[str, tuple[float, float]]:
    """Return mean released clip fractions with the standard deviation of that mean's noise."""
    stats = tree["sample_stats"]
    found = {}
    prefix = "clip_fraction_"
    for name in map(str, stats.data_vars):
        if not name.startswith(prefix):
            continue
        kind = name.removeprefix(prefix)
        count = "clip_count" + next((ending for ending in _ORDINAL.findall(kind)), "")
        noise_std = math.nan
        if "releases" in tree and f"{count}_noise_std" in tree["releases"]:
            released = tree["releases"].to_dataset()
            # Where the number of units is protected, it is the last of the counts.
            n_units = tree["privacy"].attrs.get("n_units") or float(released[count].values[..., -1].mean())
            each = float(np.nanmean(released[f"{count}_noise_std"])) / max(1.0, n_units)
            noise_std = each / math.sqrt(released.sizes[f"{count}_release"])
        found[kind] = (float(stats[name].mean()), noise_std)
    return found


def maximum_mean_discrepancy(draws: np.ndarray, reference: np.ndarray) -> float:
    """Return the maximum mean discrepancy between two sets of draws: 0 where they follow the same law.

    Gaussian kernel, its width the median distance; the unbiased estimate of the square, zero where that is negative.

    Parameters
    ----------
    draws, reference : ndarray, shape (draws, parameters)
        Not necessarily equally many.

    References
    ----------
    Gretton and others (2012), A kernel two-sample test, Journal of Machine Learning Research 13, Lemma 6.
    """
    width = np.median(cdist(draws[:1000], reference[:1000]))

    def kernel(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        values: np.ndarray = np.exp(-cdist(one, other, "sqeuclidean") / (2.0 * width**2))
        return values

    within = []
    for sample in (draws, reference):
        n = len(sample)
        within.append((kernel(sample, sample).sum() - n) / (n * (n - 1)))
    return math.sqrt(max(0.0, sum(within) - 2.0 * kernel(draws, reference).mean()))


def _mean_of(stats: Any, name: str, otherwise: float) -> float:
    return float(stats[name].mean()) if name in stats else otherwise


def _chains(tree: DataTree) -> Any:
    """Return the draws as the chains made them: noise that widens them would hide that they mix badly."""
    return tree["unwidened"].to_dataset() if "unwidened" in tree else tree


def _extreme(dataset: Any, choose: Any) -> float:
    """Return the largest or smallest finite value in a dataset of one statistic; nan if there is none."""
    values = np.concatenate([np.ravel(variable.values) for variable in dataset.data_vars.values()])
    finite = values[np.isfinite(values)]
    return float(choose(finite)) if finite.size else math.nan
