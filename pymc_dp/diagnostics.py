"""Reports on a finished private run: what was guaranteed, what was spent, and whether the draws are usable.

Everything here is computed from the published tree, so it costs no privacy.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from xarray import DataTree

from pymc_dp.accounting import gaussian_epsilon
from pymc_dp.budget.plan import noise_in_words, replaced_in_words
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import SCORE, Role, clip_fraction_name, labelled, noise_std_of

_GOOD_R_HAT = 1.05
_GOOD_EFFECTIVE_DRAWS = 200
_GOOD_CENTRE_DISTANCE = 3.0
#: A noisy figure is harmless up to the first number, if with its noise it is up to the second.
HARMLESS_CLIP_FRACTION = (0.01, 0.02)
#: In standard deviations of the draws.
HARMLESS_CLIP_BIAS = (0.75, 1.0)
#: Of the log-density, as a standard deviation over draws: no mean is off by more posterior standard deviations.
_HARMLESS_SURROGATE_ERROR = (1.0, 1.5)
#: By so many standard deviations of its noise a figure is above what is harmless.
_BEYOND_NOISE = 2.0
#: Draws that are narrower or wider by more than this factor than the surrogate, or than noise says for sure.
_LARGEST_WIDTH_RATIO = 3.0
#: From this factor on it is said what makes draws wider than noise does.
_MUCH_WIDER = 1.2
#: Up to this factor a wider posterior is about as good as without privacy.
_PRECISE_WIDENING = 1.5
#: Draws that are wider by this factor are mostly noise; a centre that is farther away was not found.
_LARGEST_WIDENING, _LARGEST_CENTRE_DISTANCE = 10.0, 50.0
#: Noise of the curvature is allowed for to first order: where it is most of all noise, that is not enough.
_LARGEST_CURVATURE_SHARE = 0.5
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


@dataclass(frozen=True)
class ClipFraction:
    """The share of units that was clipped in releases of one kind.

    Attributes
    ----------
    fraction : float
        The mean released share.
    noise_std : float
        Standard deviation of the noise in it; 0 if it is exact.
    role : {"decides", "drives", "other"}
        What such releases do in the run.
    """

    fraction: float
    noise_std: float
    role: Role

    @property
    def known(self) -> bool:
        """Whether it was released."""
        return math.isfinite(self.fraction) and math.isfinite(self.noise_std)


@dataclass(frozen=True)
class _Kind:
    """One kind of releases of one step; `once` says that they were made before the chains."""

    kind: str
    label: str
    role: Role
    once: bool

    @property
    def name(self) -> str:
        return labelled(self.kind, self.label)


@dataclass(frozen=True)
class _Step:
    """What a published tree says of one step."""

    sampler: str
    facts: Mapping[str, Any]
    kinds: tuple[_Kind, ...]


def _steps(tree: DataTree) -> list[_Step]:
    return [
        _Step(
            sampler=step["sampler"],
            facts=step["facts"],
            kinds=tuple(_Kind(each["kind"], step["label"], each["role"], each["once"]) for each in step["kinds"]),
        )
        for step in json.loads(tree["privacy"].attrs["steps"])
    ]


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
        Smallest bulk effective sample size of any parameter, and no more than there are different draws.
    test_noise : float
        Median standard deviation of the noise in the log-ratio of the acceptance test. Below about 1 it hardly
        costs acceptance, above 3 hardly anything is accepted.
    clip_fractions : dict of str to ClipFraction
        Released share of clipped units, by published kind of release.
    diverging : float
        Share of trajectories that reached values that are not finite.
    clip_bias, clip_bias_noise_std : float
        By how many standard deviations of the draws clip bounds may have moved their mean, approximately an upper
        bound, and the noise of that figure. NaN where the sampler does not report it.
    centre_distance : float
        Distance from the expansion point to the mean of the surrogate, in posterior standard deviations, root mean
        square over directions. NaN for other samplers.
    tested : bool
        Whether moves passed an acceptance test. Without one, clipped gradients bias the draws, and so does the step.
    tempering : float
        The power of the likelihood in the target of the draws; 1 for the posterior.
    stuck : tuple of str
        Parameters, or chains, that never moved.
    missing : tuple of str
        Diagnostics that a verdict needs and that the run did not release.
    narrowest, widest : float
        The least and the largest standard deviation of the draws in any direction, relative to that of the surrogate
        that they were proposed from. NaN for samplers without one.
    doubtful_width : float
        By what factor noise of the released curvature may have made the draws too narrow or too wide, in the direction
        where that is most. NaN where no curvature was released.
    curvature_share : float
        What part of the noise in the likelihood's maximum is that of the curvature, over the distance from the
        expansion point. NaN where draws are tested, or no curvature was released.
    widening : float
        How many times as wide as without privacy the draws are, root mean square over parameters. NaN for other
        samplers.
    widening_by_noise : float
        The same by noise alone: without what is allowed for bias by clip bounds.
    most_widened : str
    largest_widening : float
        The parameter, on the unconstrained scale, that privacy widens most, and how many times. Empty and NaN where no
        likelihood was released.
    surrogate_error, surrogate_error_noise_std : float
        Standard deviation over draws of what the surrogate's log-density misses, and the noise of that figure. NaN
        where tests correct it, and for other samplers.
    """

    draws: int
    acceptance: float
    r_hat: float
    effective_draws: float
    test_noise: float
    clip_fractions: dict[str, ClipFraction]
    diverging: float = 0.0
    tested: bool = True
    clip_bias: float = math.nan
    clip_bias_noise_std: float = math.nan
    centre_distance: float = math.nan
    tempering: float = 1.0
    stuck: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    narrowest: float = math.nan
    widest: float = math.nan
    doubtful_width: float = math.nan
    curvature_share: float = math.nan
    widening: float = math.nan
    widening_by_noise: float = math.nan
    most_widened: str = ""
    largest_widening: float = math.nan
    surrogate_error: float = math.nan
    surrogate_error_noise_std: float = math.nan

    @property
    def biased(self) -> bool:
        """Whether clipping of what the draws depend on moves the posterior: without a test, that of gradients, too."""
        return bool(self.biased_by)

    @property
    def biased_by(self) -> list[str]:
        """What clipping is beyond what is harmless, and beyond its noise."""
        return [
            name for name, (figure, noise, (harmless, _)) in self._figures().items() if _above(figure, noise, harmless)
        ]

    @property
    def reasons_against(self) -> list[str]:
        """Why the draws are no draws from the posterior."""
        reasons = [f"{name}: so many units are clipped that the draws follow another law" for name in self.biased_by]
        if _above(self.surrogate_error, self.surrogate_error_noise_std, _HARMLESS_SURROGATE_ERROR[0]):
            reasons.append(
                f"the surrogate misses {self.surrogate_error:.2g} of the log-likelihood (standard deviation over "
                "draws): the posterior is not near normal there, or the centre is far"
            )
        if self.stuck:
            reasons.append(f"never moved: {', '.join(self.stuck)}")
        if not self.r_hat < _GOOD_R_HAT:
            reasons.append(f"R-hat is {self.r_hat:.2f}, not below {_GOOD_R_HAT}")
        if not self.effective_draws >= _GOOD_EFFECTIVE_DRAWS:
            reasons.append(f"{self.effective_draws:.0f} effective draws, fewer than {_GOOD_EFFECTIVE_DRAWS}")
        if self.narrowest < 1.0 / _LARGEST_WIDTH_RATIO or self.widest > _LARGEST_WIDTH_RATIO:
            reasons.append(
                f"in some direction the draws' standard deviation is {self.narrowest:.2g} or {self.widest:.2g} times "
                "that of the released approximation"
            )
        if (
            not 1.0 / _LARGEST_WIDTH_RATIO
            <= (1.0 if math.isnan(self.doubtful_width) else self.doubtful_width)
            <= (_LARGEST_WIDTH_RATIO)
        ):
            reasons.append(
                f"the noise of the released curvature may have made draws {self.doubtful_width:.2g} times too wide or "
                "too narrow somewhere"
            )
        if self.curvature_share > _LARGEST_CURVATURE_SHARE:
            reasons.append(
                f"{self.curvature_share:.0%} of the noise in the likelihood's maximum is that of the released "
                "curvature, over the way that was left: some directions are hardly known, and intervals are too narrow"
            )
        if self.widening > _LARGEST_WIDENING:
            reasons.append(
                f"the noise of privacy makes them {self.widening:.3g} times as wide: they say little of the table"
            )
        if self.centre_distance > _LARGEST_CENTRE_DISTANCE:
            reasons.append(f"the expansion point is {self.centre_distance:.3g} posterior sd away: the search was lost")
        if self.tempering != 1.0:
            reasons.append(f"they follow the likelihood to the power {self.tempering:g}, not the likelihood")
        return reasons

    @property
    def reasons_unknown(self) -> list[str]:
        """What would have to be known of the draws to call them usable."""
        reasons = [*(f"not released: {name}" for name in self.missing), *self._too_noisy()]
        if not self.tested:
            reasons.append("no test corrects for the step size and the drawing of batches")
        return reasons

    @property
    def verdict(self) -> Literal["usable", "not usable", "unknown"]:
        """Whether the draws can be used as draws from the posterior. What is not known is never taken for usable."""
        if self.reasons_against:
            return "not usable"
        return "unknown" if self.reasons_unknown else "usable"

    @property
    def usable(self) -> bool:
        """Whether the verdict is "usable"."""
        return self.verdict == "usable"

    @property
    def imprecise(self) -> bool:
        """Whether privacy makes the draws much wider: intervals can be trusted, and say less than they could."""
        return self.widening > _PRECISE_WIDENING

    def _figures(self) -> dict[str, tuple[float, float, tuple[float, float]]]:
        """Return noisy figures on clipping that matters, by name: value, noise and limits."""
        figures = {
            f"clipping in {_in_words(kind)}": (clipped.fraction, clipped.noise_std, HARMLESS_CLIP_FRACTION)
            for kind, clipped in self.clip_fractions.items()
            if moves_draws(clipped.role, tested=self.tested)
        }
        if math.isfinite(self.clip_bias):
            figures["bias by clip bounds"] = (self.clip_bias, self.clip_bias_noise_std, HARMLESS_CLIP_BIAS)
        return figures

    def _too_noisy(self) -> list[str]:
        """Return figures that are neither harmless nor beyond their noise."""
        figures = self._figures()
        if math.isfinite(self.surrogate_error):
            name = "what the surrogate misses"
            figures[name] = (self.surrogate_error, self.surrogate_error_noise_std, _HARMLESS_SURROGATE_ERROR)
        return [
            f"{name}: {figure:.3g} ± {noise:.2g}, which with its noise is on either side of the limit, {harmless:g}"
            for name, (figure, noise, (harmless, with_noise)) in figures.items()
            if not (figure <= harmless and figure + noise <= with_noise) and not _above(figure, noise, harmless)
        ]


def moves_draws(role: Role, *, tested: bool) -> bool:
    """Return whether clipping of such releases moves the draws: of what decides on moves, or drives them untested."""
    return role == "decides" or (role == "drives" and not tested)


def _above(figure: float, noise_std: float, harmless: float) -> bool:
    return figure - _BEYOND_NOISE * noise_std > harmless


def _in_words(kind: str) -> str:
    return f"a {kind.replace('_', '-')}"


def refuse_no_tree(tree: Any) -> None:
    """Refuse what is no tree.

    Raises
    ------
    InvalidArgument
        If it is none.
    """
    if not isinstance(tree, DataTree):
        raise InvalidArgument(f"Pass what pm.sample returned of a private run, not a {type(tree).__name__}.")


def facts_of(tree: Any) -> dict[str, Any]:
    """Return the attributes of a result's group ``privacy``.

    Raises
    ------
    InvalidArgument
        If it is no result of a private run.
    """
    refuse_no_tree(tree)
    if "privacy" not in tree:
        raise InvalidArgument(
            "This tree has no group `privacy`: it is not what a private run returned, and may be computed from data "
            "without noise. Pass the result of pm.sample with a DP step or a budget."
        )
    return {str(name): value for name, value in tree["privacy"].attrs.items()}


def quality(tree: DataTree) -> Quality:
    """Return the quality of a private run's draws, from its published tree.

    Parameters
    ----------
    tree : DataTree
        As `pymc_dp.sample` returned it, or as read back from disk.

    Raises
    ------
    InvalidArgument
        If it is no result of a private run, or holds no draws.
    """
    facts = facts_of(tree)
    if "posterior" not in tree:
        raise InvalidArgument("This result holds no draws: the run ended before the first one after tuning.")
    stats = tree["sample_stats"].to_dataset()
    chains = tree["posterior"].to_dataset()
    sizes = json.loads(facts.get("parameters", "{}"))
    r_hat, effective_draws = _convergence(chains)
    steps = _steps(tree)
    tested = not any(step.facts.get("acceptance_test") == "none" for step in steps)
    fractions = _clip_fractions(stats, steps)
    narrowest, widest = _widths(stats, effective_draws)
    clip_bias = _mean_of(stats, "clip_bias", math.nan)
    checked = math.isfinite(_mean_of(stats, "surrogate_error", math.nan))
    most_widened, largest_widening = _most_widened(tree)
    return Quality(
        draws=int(chains.sizes["chain"] * chains.sizes["draw"]),
        acceptance=float(stats["accepted"].mean()),
        r_hat=r_hat,
        effective_draws=effective_draws,
        test_noise=float(stats["noise_std"].median()),
        clip_fractions=fractions,
        diverging=_mean_of(stats, "diverging", 0.0),
        clip_bias=clip_bias,
        clip_bias_noise_std=_mean_of(stats, "clip_bias_noise_std", math.nan),
        centre_distance=_mean_of(stats, "centre_distance", math.nan),
        tested=tested,
        tempering=_tempering(steps),
        stuck=_stuck(chains, sizes),
        missing=_missing(steps, fractions, clip_bias, tested=tested, checked=checked),
        narrowest=narrowest,
        widest=widest,
        doubtful_width=_mean_of(stats, "doubtful_width", math.nan),
        curvature_share=_mean_of(stats, "curvature_share", math.nan),
        widening=_mean_of(stats, "widening", math.nan),
        widening_by_noise=_mean_of(stats, "widening_by_noise", math.nan),
        most_widened=most_widened,
        largest_widening=largest_widening,
        surrogate_error=_mean_of(stats, "surrogate_error", math.nan),
        surrogate_error_noise_std=_mean_of(stats, "surrogate_error_noise_std", math.nan),
    )


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
    refuse_no_tree(tree)
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
    drawn = map(str, tree["posterior"].data_vars) if "posterior" in tree else ()
    later = sorted(set(drawn) - set(published)) if published is not None else []
    if later:
        lines.append(
            f"VARIABLES ADDED AFTER THE RUN to the posterior: {', '.join(later)}. They are not covered and may be "
            "computed from the rows, as predictions at the people's own covariates are. Do not publish them."
        )
    if not facts["private"]:
        lines.append(f"THIS RESULT IS NOT PRIVATE: {facts['not_private_because']}. Do not publish it.")
    lines += [
        *_guarantee(facts),
        *_on_tempering(_tempering(_steps(tree))),
        f"Budget: {facts['budget_epsilon_spent']:.4g} of epsilon {facts['budget_epsilon']:.4g} spent, "
        "this run included.",
        f"{'released':<18}{'count':>8}{'noise multiplier':>18}{'share':>8}",
    ]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for entry in json.loads(facts["releases"]):
        by_kind.setdefault(entry["kind"], []).append(entry)
    for kind, entries in by_kind.items():
        multipliers = [entry["noise_multiplier"] for entry in entries if "noise_multiplier" in entry]
        share = f"{math.fsum(entry['share'] for entry in entries):.1%}" if "share" in entries[0] else ""
        count = sum(entry["count"] for entry in entries)
        lines.append(f"{kind:<18}{count:>8d}{noise_in_words(multipliers):>18}{share:>8}".rstrip())
    bounds = ", ".join(f"{kind} {bound:g}" for kind, bound in json.loads(facts["clip_bounds"]).items())
    lines += [f"Clip bounds: {bounds}.", f"Noise: {facts['noise']}.", f"Accounting: {facts['accountant']}."]
    omitted = json.loads(facts["omitted_because_computed_from_rows"])
    if omitted:
        lines.append(f"Left out because computed from rows: {', '.join(omitted)}.")
    return "\n".join(lines)


def all_gaussian(facts: Mapping[Any, Any]) -> bool:
    """Return whether all that a run released has Gaussian noise on sums over all units."""
    return 0.0 < facts["rho"] < math.inf and all("rho" in each for each in json.loads(facts["releases"]))


def _guarantee(facts: Mapping[Any, Any]) -> list[str]:
    """Say what is guaranteed, if anything is."""
    if not math.isfinite(facts["epsilon"]):
        return ["Guarantee: NONE. The budget's epsilon is infinite: the result shows the table as it is."]
    meaning = _IN_WORDS[facts["relation"]].format(
        unit=facts["unit"], epsilon=facts["epsilon"], factor=math.exp(facts["epsilon"]), delta=facts["delta"]
    )
    replaced = replaced_in_words(facts["relation"], facts["rho"], facts["delta"], gaussian=all_gaussian(facts))
    return [
        f"Guarantee: epsilon {facts['epsilon']:.4g}, delta {facts['delta']:.3g}, relation {facts['relation']}:",
        f"  {meaning}.",
        *(f"  {line}." for line in replaced),
    ]


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
        As `pymc_dp.sample` returned it, or as read back from disk.

    Raises
    ------
    InvalidArgument
        If it is no result of a private run.
    """
    facts_of(tree)
    if "posterior" not in tree:
        return "\n".join([*_how_it_ended(tree), "NOT usable: the run ended before the first draw after tuning."])
    found = quality(tree)
    by = "" if found.tested else " (there is no test)"
    lines = [
        *_how_it_ended(tree),
        f"{found.draws} draws, accepted {found.acceptance:.0%}{by}; R-hat up to {found.r_hat:.2f}, "
        f"effective draws at least {found.effective_draws:.0f}",
        *_on_tempering(found.tempering),
    ]
    if not found.tested:
        lines.append("the step size and the drawing of batches bias the draws; compare with a run of smaller steps")
    elif math.isfinite(found.test_noise):
        lines.append(f"noise of the acceptance test: {found.test_noise:.2f} (median; up to about 1 is good)")
    for kind, clipped in found.clip_fractions.items():
        how = f" ± {clipped.noise_std:.2%} (released)" if clipped.noise_std > 0.0 else " (exact, not private)"
        lines.append(f"clipped units in {_in_words(kind)}: {clipped.fraction:.2%}{how}")
    if math.isfinite(found.clip_bias):
        lines.append(
            f"clip bounds may have moved the means by about {max(0.0, found.clip_bias):.2f} ± "
            f"{found.clip_bias_noise_std:.2f} sd of the draws, or less (released)"
        )
    lines += _on_the_surrogate(found)
    if found.diverging > 0.0:
        lines.append(
            f"{found.diverging:.0%} of the trajectories diverged: use a smaller step size or larger mass_matrix"
        )
    if found.biased:
        lines.append("BIASED by clipping. " + _against_clipping(tree))
    match found.verdict:
        case "usable" if found.imprecise:
            off = math.sqrt(found.widening**2 - 1.0)
            lines.append(
                "Usable, but imprecise: the chains agree, give enough effective draws, and no diagnostic speaks "
                f"against them. Intervals can be trusted, and are {found.widening:.2g} times as wide as without "
                f"privacy; means may be off by about {off:.2g} posterior sd."
            )
        case "usable":
            lines.append(
                "Usable: the chains agree, give enough effective draws, and no diagnostic speaks against them."
            )
        case "unknown":
            lines.append(
                f"UNKNOWN whether they are usable as a posterior: {'; '.join(found.reasons_unknown)}. The chains agree "
                "and give enough effective draws."
            )
        case "not usable":
            lines.append(
                f"NOT usable as a posterior: {'; '.join(found.reasons_against)}. The chains' common mean may still be "
                "near the posterior mean; its intervals are not to be trusted."
            )
            lines += _what_would_help(tree, found)
    return "\n".join(lines)


def _on_the_surrogate(found: Quality) -> list[str]:
    """Say how wide and how good the surrogate is that draws come from, if they do."""
    lines = []
    if float(f"{found.widening:.2g}") > 1.0:
        by_noise = found.widening_by_noise
        allowance = f" ({by_noise:.2g} times by noise; the rest is an allowance for bias by clip bounds)"
        lines.append(
            f"privacy makes the draws about {found.widening:.2g} times as wide, root mean square over parameters"
            + (allowance if found.widening > _MUCH_WIDER * by_noise else "")
        )
        if found.largest_widening > _MUCH_WIDER * found.widening:
            lines.append(
                f"most of all {found.most_widened}: about {found.largest_widening:.2g} times; its prior may say more "
                "than what was released"
            )
    if math.isfinite(found.surrogate_error):
        lines.append(
            f"the surrogate's log-density misses {found.surrogate_error:.2g} ± {found.surrogate_error_noise_std:.2g} "
            "(standard deviation over draws, released; up to about 1 is good)"
        )
    if found.centre_distance > _GOOD_CENTRE_DISTANCE and found.verdict != "usable":
        lines.append(
            f"THE EXPANSION POINT IS FAR: {found.centre_distance:.1f} posterior sd from the surrogate's mean, root "
            "mean square. See whether the last positions of the scores in the releases agree. A larger epsilon, "
            "Shares.centre, or an initval= near plausible values help."
        )
    return lines


def _on_tempering(tempering: float) -> list[str]:
    """Say what a power of the likelihood does to the draws."""
    if tempering == 1.0:
        return []
    return [
        f"TEMPERED: the draws follow the prior times the likelihood to the power {tempering:g}, not the posterior. "
        f"Where the prior says little they are about {tempering**-0.5:.3g} times as wide."
    ]


def _against_clipping(tree: DataTree) -> str:
    """Say what fewer clipped units take, by the sampler."""
    advice = {
        "dp_barker": "DPBarker's bound is sqrt(batch_size) / (tempering n): use shorter moves (proposal_scale), "
        "larger batches or less of the likelihood (tempering)",
        "dp_surrogate_hmc": "DPSurrogateHMC weighs bias against noise: a larger epsilon lets it choose larger "
        "bounds, or pass clip_gradient",
    }
    samplers = {step.sampler for step in _steps(tree)}
    said = [advice[name] for name in advice if name in samplers]
    if samplers - set(advice):
        said.append("raise the clip bound (clip_gradient, clip_log_ratio)")
    first = "" if "dp_surrogate_hmc" in samplers else "A larger epsilon does not help. "
    return f"{first}What helps: {'; '.join(said)}; or bound the data by public limits."


def _what_would_help(tree: DataTree, found: Quality) -> list[str]:
    """Say by how much the budget would have to grow, by the scaling of the test noise.

    At the same acceptance, the number of draws is proportional to rho, and a log-ratio's noise at the posterior's
    width falls with the square root of the number of units: the product of rho and the number of units decides.
    """
    if not found.tested:
        return ["What would help with this sampler: more draws, or steps as large as their bias allows."]
    if found.acceptance == 0.0:
        if math.isfinite(found.centre_distance):
            return ["Nothing was accepted: spend more on the expansion point (Shares.centre), or use fewer draws."]
        return ["Nothing was accepted: use smaller moves (step_size, mass_matrix) and fewer draws first."]
    facts = tree["privacy"].attrs
    gaussian = all("rho" in entry for entry in json.loads(facts["releases"]))
    if not math.isfinite(facts["epsilon"]):
        return ["There is no noise: what would help is more draws, or moves that reach farther."]
    if not math.isfinite(found.test_noise) or not gaussian:
        if found.effective_draws >= _GOOD_EFFECTIVE_DRAWS:
            return []
        return ["What would help with this sampler: more draws, and moves that are accepted more often."]
    factor = _GOOD_EFFECTIVE_DRAWS / max(1.0, found.effective_draws) * max(1.0, found.test_noise) ** 2
    if factor <= 1.0:  # neither the number of draws nor the tests' noise is what it lacks
        return ["More units or a larger epsilon are not what it takes: see the reasons."]
    epsilon = gaussian_epsilon(facts["rho"] * factor, facts["delta"])
    units = f"{factor:.2g} times as many units at this epsilon"
    if "n_units" in facts:
        there_are = facts["n_units"]
        units = f"some {math.ceil(there_are * factor):,} units at this epsilon (there are {there_are:,})"
    now = facts["epsilon"]
    larger = float(f"{max(epsilon, now):.3g}")
    return [
        f"For enough effective draws with this sampler, roughly: {units}, or epsilon {larger:,g} on these "
        f"(it was {now:.3g})."
    ]


def _tempering(steps: Sequence[_Step]) -> float:
    """Return the least power of the likelihood that a step draws with."""
    return min((float(step.facts.get("tempering", 1.0)) for step in steps), default=1.0)


def _missing(
    steps: Sequence[_Step], fractions: Mapping[str, ClipFraction], clip_bias: float, *, tested: bool, checked: bool
) -> tuple[str, ...]:
    """Return diagnostics that were switched off or could not be released."""
    kinds = [kind for step in steps for kind in step.kinds]
    known = {name for name, clipped in fractions.items() if clipped.known}
    missing = [
        f"how many units are clipped in {_in_words(kind.name)}"
        for kind in kinds
        if moves_draws(kind.role, tested=tested) and kind.name not in known
    ]
    if any(kind.kind == SCORE.name for kind in kinds) and not math.isfinite(clip_bias):
        missing.append("how far clip bounds may have moved the mean")
    if any(step.facts.get("acceptance_test") == "surrogate_check" for step in steps) and not checked:
        missing.append("how far the surrogate is from the likelihood")
    return tuple(missing)


def _clip_fractions(stats: Any, steps: Sequence[_Step]) -> dict[str, ClipFraction]:
    """Return mean released clip fractions with the standard deviation of that mean's noise."""
    found = {}
    for kind in (kind for step in steps for kind in step.kinds if not kind.once):
        name = clip_fraction_name(kind.kind, kind.label)
        if name not in stats:
            continue
        values, noise = (np.ravel(stats[each].values) for each in (name, noise_std_of(name)))
        counted = np.isfinite(values)
        if not counted.any():
            found[kind.name] = ClipFraction(math.nan, math.nan, kind.role)
            continue
        # Equal values are those of one count, or are taken for one, which makes the noise of the mean no smaller.
        _, first, draws = np.unique(values[counted], return_index=True, return_counts=True)
        weights = draws / counted.sum()
        noise_std = float(np.sqrt(np.sum((weights * noise[counted][first]) ** 2)))
        found[kind.name] = ClipFraction(float(values[counted].mean()), noise_std, kind.role)
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
    cdist = scipy.spatial.distance.cdist
    width = np.median(cdist(draws[:1000], reference[:1000]))

    def kernel(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        values: np.ndarray = np.exp(-cdist(one, other, "sqeuclidean") / (2.0 * width**2))
        return values

    within = []
    for sample in (draws, reference):
        n = len(sample)
        within.append((kernel(sample, sample).sum() - n) / (n * (n - 1)))
    return math.sqrt(max(0.0, sum(within) - 2.0 * kernel(draws, reference).mean()))


def _most_widened(tree: DataTree) -> tuple[str, float]:
    """Return the parameter that privacy widens most, and how many times."""
    released = tree["private_likelihood"].to_dataset() if "private_likelihood" in tree else {}
    if "widening" not in released:
        return "", math.nan
    widening = released["widening"].dropna("parameter")
    most = widening.isel(widening.argmax(...))
    return str(most["parameter"].item()), float(most)


def _mean_of(stats: Any, name: str, otherwise: float) -> float:
    return float(stats[name].mean()) if name in stats else otherwise


def _entries(draws: Any, name: Any) -> np.ndarray:
    """Return one variable's draws, shape (chains, draws, entries)."""
    values = draws[name].transpose("chain", "draw", ...).values
    return np.asarray(values, dtype=np.float64).reshape((*values.shape[:2], -1))


def _convergence(draws: Any) -> tuple[float, float]:
    """Return the largest R-hat and the smallest effective sample size of all entries that vary; nan if one has none."""
    import arviz as az  # noqa: PLC0415  brings in Matplotlib

    r_hats, sizes, everything = [], [], []
    for_r_hat, for_size = az.rhat(draws), az.ess(draws)
    for name in draws.data_vars:
        values = _entries(draws, name)
        everything.append(values)
        varies = ~(values == values[:1, :1]).all(axis=(0, 1))  # those that never moved are told apart from these
        r_hats.append(np.ravel(for_r_hat[name].values)[varies])
        sizes.append(np.ravel(for_size[name].values)[varies])
    together = np.concatenate(everything, axis=2)
    different = sum(len(np.unique(chain, axis=0)) for chain in together)
    r_hat, size = (np.concatenate(each) for each in (r_hats, sizes))
    if not r_hat.size:
        return math.nan, float(min(1, different))
    return float(np.max(r_hat)), min(float(np.min(size)), float(different))


def _stuck(draws: Any, parameters: Mapping[str, int]) -> tuple[str, ...]:
    """Return the chains and the parameters that never moved.

    A variable may have entries that are constant by nature, as the diagonal of a correlation matrix: as many entries as
    it has unconstrained parameters have to vary.
    """
    stuck = []
    everything = np.concatenate([_entries(draws, name) for name in draws.data_vars], axis=2)
    still = (everything == everything[:, :1]).all(axis=(1, 2))
    stuck += [f"chain {chain}" for chain in np.flatnonzero(still)]
    for name in draws.data_vars:
        values = _entries(draws, name)
        vary = int((~(values == values[:1, :1]).all(axis=(0, 1))).sum())
        if vary < parameters.get(str(name), 0):
            stuck.append(str(name))
    return tuple(stuck)


def _widths(stats: Any, effective_draws: float) -> tuple[float, float]:
    """Return the least and the largest standard deviation of standardised draws, less what chance makes of few draws.

    Eigenvalues of the covariance of N normal draws in k dimensions reach from (1 - sqrt(k / N))² to (1 + sqrt(k / N))².
    """
    if "standardised" not in stats:
        return math.nan, math.nan
    values = stats["standardised"].values
    values = values.reshape(-1, values.shape[-1])
    if not np.isfinite(values).all():
        return math.nan, math.inf
    chance = math.sqrt(min(0.8, values.shape[1] / max(1.0, effective_draws)))
    eigenvalues = np.linalg.eigvalsh(np.atleast_2d(np.cov(values.T)))
    least, largest = np.sqrt(np.maximum(eigenvalues[[0, -1]], 0.0))
    return float(least / (1.0 - chance)), float(largest / (1.0 + chance))
