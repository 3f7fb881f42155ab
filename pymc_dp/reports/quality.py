"""The quality of a private run's draws in figures, from its published tree, and the verdict that they lead to."""

import json
import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr
from xarray import DataTree

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.kinds import SCORE, SURROGATE_FIGURES, Role, clip_fraction_name, noise_std_of
from pymc_dp.reports.draws import convergence, widths
from pymc_dp.reports.published import acceptance_tests_of, facts_of, kinds_of, tempering_of

GOOD_EFFECTIVE_DRAWS = 200
_GOOD_R_HAT = 1.05
#: A noisy figure is harmless up to the first number, if with its noise it is up to the second.
HARMLESS_CLIP_FRACTION = (0.01, 0.02)
#: In standard deviations of the draws.
HARMLESS_CLIP_BIAS = (0.75, 1.0)
#: No mean is off by more of the draws' standard deviations. Of 572 preludes at epsilon 1 this limit condemned 30, of
#: which 20 had intervals that hold. One on the root mean square over parameters condemned 15, of which 6 had, and
#: called a hierarchy in the non-centred form usable whose scale was 50 standard deviations off.
HARMLESS_SURROGATE_ERROR = (0.5, 0.75)
#: By so many standard deviations of its noise a figure is above what is harmless.
_BEYOND_NOISE = 2.0
#: Draws that are narrower or wider by more than this factor than the surrogate, or than noise says for sure.
_LARGEST_WIDTH_RATIO = 3.0
#: Where draws of most parameters are too narrow by less than this factor, few parameters are doubtful: they are named.
#: A choice: of 57 preludes on 13 tables 13 had 1.4 to 1.6, 12 of them with intervals that hold, and none had more.
_DOUBTFUL_EVERYWHERE = 1.7
#: Up to this factor a wider posterior is about as good as without privacy.
_PRECISE_WIDENING = 1.5
#: Draws as wide as this part of the prior, or wider: the table tells less than a quarter of what the prior does.
_WIDTH_OF_PRIOR = 0.9
#: Up to so many standard deviations of the draws it hardly matters that noise lets the prior count for more.
_HARMLESS_PULL = 1.0
#: Draws that are wider by this factor are mostly noise; a centre that is farther away was not found.
_LARGEST_WIDENING, _LARGEST_CENTRE_DISTANCE = 10.0, 50.0
#: NUTS's trajectories that diverge, of all: some do at narrow places of any hierarchy.
_FEW_DIVERGING = 0.01
#: How much members vary is what is left when the noise is taken off: with more than this times as much noise, an error
#: of a third in what is known of the noise is as large.
_LARGEST_NOISE_OF_MEMBERS = 3.0
#: Noise of the curvature is allowed for to first order: where it is most of all noise, that is not enough.
_LARGEST_CURVATURE_SHARE = 0.5


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
        By what factor noise of the released curvature may have made the draws too narrow, in the direction where that
        is most. NaN where no curvature was released.
    doubtful : tuple of str
    typical_doubtful_width : float
        Parameters, on the unconstrained scale, of which draws may be more than three times too narrow by that; and the
        median of the factor over parameters. Empty and NaN where no likelihood was released.
    noise_of_members : float
        The noise of privacy in members of groups, over what their hierarchical prior lets them vary: median of
        variances. NaN where there is no hierarchy.
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
    as_prior : tuple of str
        Parameters, on the unconstrained scale, of which draws are about as wide as the model's prior.
    most_pulled : str
    prior_pull : float
        The parameter, on the unconstrained scale, that the prior moves most beyond what it would without privacy, and
        by how many standard deviations of the draws. Empty and NaN where no likelihood was released.
    surrogate_error, surrogate_error_noise_std : float
        By how many standard deviations of the draws their mean may be off, because the log-likelihood is not its
        expansion, and the noise of that figure. NaN where tests correct it, and for other samplers.
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
    noise_of_members: float = math.nan
    curvature_share: float = math.nan
    widening: float = math.nan
    widening_by_noise: float = math.nan
    most_widened: str = ""
    largest_widening: float = math.nan
    as_prior: tuple[str, ...] = ()
    most_pulled: str = ""
    prior_pull: float = math.nan
    doubtful: tuple[str, ...] = ()
    typical_doubtful_width: float = math.nan
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
            name
            for name, (figure, noise, (harmless, _)) in self._of_clipping().items()
            if _above(figure, noise, harmless)
        ]

    @property
    def reasons_against(self) -> list[str]:
        """Why the draws are no draws from the posterior."""
        reasons = [f"{name}: so many units are clipped that the draws follow another law" for name in self.biased_by]
        if _above(self.surrogate_error, self.surrogate_error_noise_std, HARMLESS_SURROGATE_ERROR[0]):
            reasons.append(
                "the surrogate misses so much of the log-likelihood that means may be off by "
                f"{self.surrogate_error:.2g} sd of the draws: the posterior is not near normal, or the centre is far"
            )
        if self.stuck:
            reasons.append(f"never moved: {', '.join(self.stuck)}")
        if not self.r_hat < _GOOD_R_HAT:
            reasons.append(f"R-hat is {self.r_hat:.2f}, not below {_GOOD_R_HAT}")
        if not self.effective_draws >= GOOD_EFFECTIVE_DRAWS:
            reasons.append(f"{self.effective_draws:.0f} effective draws, fewer than {GOOD_EFFECTIVE_DRAWS}")
        if self.narrowest < 1.0 / _LARGEST_WIDTH_RATIO or self.widest > _LARGEST_WIDTH_RATIO:
            reasons.append(
                f"in some direction the draws' standard deviation is {self.narrowest:.2g} or {self.widest:.2g} times "
                "that of the released approximation"
            )
        somewhere = self.doubtful_width < 1.0 / _LARGEST_WIDTH_RATIO or self.doubtful_width > _LARGEST_WIDTH_RATIO
        if somewhere and not self.typical_doubtful_width < _DOUBTFUL_EVERYWHERE:
            reasons.append(
                f"the noise of the released curvature may have made draws {self.doubtful_width:.2g} times or more too "
                "narrow somewhere"
            )
        if self.noise_of_members > _LARGEST_NOISE_OF_MEMBERS:
            reasons.append(
                f"the variance of the noise in members of groups is {self.noise_of_members:.2g} times what their prior "
                "is told to have: how much they vary is hardly known, and intervals may be too narrow"
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
        figures = self._of_clipping()
        if math.isfinite(self.surrogate_error):
            name = "what the surrogate misses"
            figures[name] = (self.surrogate_error, self.surrogate_error_noise_std, HARMLESS_SURROGATE_ERROR)
        others = [] if self.tested else ["no test corrects for the step size and the drawing of batches"]
        if math.isfinite(self.surrogate_error) and self.diverging > _FEW_DIVERGING:  # drawn by NUTS, from a surrogate
            others.append(
                f"{self.diverging:.1%} of the trajectories diverged: draws may leave out the places where they did"
            )
        return [
            *(f"not released: {name}" for name in self.missing),
            *(
                f"{name}: {figure:.3g} ± {noise:.2g}, which with its noise is on either side of the limit, {harmless:g}"
                for name, (figure, noise, (harmless, with_noise)) in figures.items()
                if not (figure <= harmless and figure + noise <= with_noise) and not _above(figure, noise, harmless)
            ),
            *others,
        ]

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
    def hangs_on_prior(self) -> bool:
        """Whether noise lets the prior move some parameter's mean much more than it would without privacy."""
        return self.prior_pull > _HARMLESS_PULL

    @property
    def imprecise(self) -> bool:
        """Whether privacy makes the draws much wider: intervals say less than they could."""
        return self.widening > _PRECISE_WIDENING

    def _of_clipping(self) -> dict[str, tuple[float, float, tuple[float, float]]]:
        """Return noisy figures on clipping that matters, by name: value, noise and limits."""
        figures = {
            f"clipping in {kind_in_words(kind)}": (clipped.fraction, clipped.noise_std, HARMLESS_CLIP_FRACTION)
            for kind, clipped in self.clip_fractions.items()
            if moves_draws(clipped.role, tested=self.tested)
        }
        if math.isfinite(self.clip_bias):
            figures["bias by clip bounds"] = (self.clip_bias, self.clip_bias_noise_std, HARMLESS_CLIP_BIAS)
        return figures


def _above(figure: float, noise_std: float, harmless: float) -> bool:
    return figure - _BEYOND_NOISE * noise_std > harmless


def moves_draws(role: Role, *, tested: bool) -> bool:
    """Return whether clipping of such releases moves the draws: of what decides on moves, or drives them untested."""
    return role == "decides" or (role == "drives" and not tested)


def kind_in_words(kind: str) -> str:
    """Return a kind of releases as a text names one: ``a log-ratio``."""
    return f"a {kind.replace('_', '-')}"


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
    stats, draws = tree["sample_stats"].to_dataset(), tree["posterior"].to_dataset()
    r_hat, effective_draws, stuck = convergence(draws, json.loads(facts.get("parameters", "{}")))
    figures = {name: float(stats[name].mean()) if name in stats else math.nan for name in SURROGATE_FIGURES}
    acceptance_tests = acceptance_tests_of(facts)
    tested = "none" not in acceptance_tests
    kinds = kinds_of(facts)
    fractions = {
        name: _clip_fraction(stats, fraction, kind["role"])
        for name, kind in kinds.items()
        if not kind["once"] and (fraction := clip_fraction_name(name, "")) in stats
    }
    missing = [
        f"how many units are clipped in {kind_in_words(name)}"
        for name, kind in kinds.items()
        if moves_draws(kind["role"], tested=tested) and not (name in fractions and fractions[name].known)
    ]
    if any(kind["kind"] == SCORE for kind in kinds.values()) and not math.isfinite(figures["clip_bias"]):
        missing.append("how far clip bounds may have moved the mean")
    if "surrogate_check" in acceptance_tests and not math.isfinite(figures["surrogate_error"]):
        missing.append("how far the surrogate is from the likelihood")
    narrowest, widest = math.nan, math.nan
    if "standardised" in stats:
        narrowest, widest = widths(stats["standardised"].values, effective_draws)
    typical_doubtful_width = math.nan
    released = tree["private_likelihood"].to_dataset() if "private_likelihood" in tree else xr.Dataset()
    if "doubtful_width" in released:  # not in trees of earlier versions
        typical_doubtful_width = float(released["doubtful_width"].median())
    most_widened, largest_widening = _largest(released, "widening", draws)
    most_pulled, largest_pull = _largest(released, "prior_pull", draws)
    return Quality(
        draws=int(draws.sizes["chain"] * draws.sizes["draw"]),
        acceptance=float(stats["accepted"].mean()),
        r_hat=r_hat,
        effective_draws=effective_draws,
        test_noise=float(stats["noise_std"].median()),
        clip_fractions=fractions,
        diverging=float(stats["diverging"].mean()) if "diverging" in stats else 0.0,
        tested=tested,
        tempering=tempering_of(facts),
        stuck=stuck,
        missing=tuple(missing),
        narrowest=narrowest,
        widest=widest,
        most_widened=most_widened,
        largest_widening=largest_widening,
        as_prior=_beyond(released, "width_of_prior", _WIDTH_OF_PRIOR, draws),
        most_pulled=most_pulled,
        prior_pull=largest_pull,
        doubtful=_beyond(released, "doubtful_width", _LARGEST_WIDTH_RATIO, draws),
        typical_doubtful_width=typical_doubtful_width,
        **figures,
    )


def _largest(released: xr.Dataset, name: str, draws: xr.Dataset) -> tuple[str, float]:
    """Return the label of the parameter with the largest absolute figure, and that; none of earlier versions' trees."""
    figures = abs(released[name].dropna("parameter")) if name in released else xr.DataArray([])
    if not figures.size:
        return "", math.nan
    most = figures.isel(figures.argmax(...))
    return _labelled(most["parameter"].item(), draws), float(most)


def _beyond(released: xr.Dataset, name: str, least: float, draws: xr.Dataset) -> tuple[str, ...]:
    """Return the labels of parameters with so large a figure; none of trees of earlier versions, which lack it."""
    if name not in released:
        return ()
    figures = released[name]
    return tuple(_labelled(each, draws) for each in figures["parameter"].values[figures.values >= least])


def _labelled(parameter: str, draws: xr.Dataset) -> str:
    """Return the name of an entry with the draws' coordinates for its places, as in ArviZ's tables; else as it is."""
    found = re.fullmatch(r"(.+)\[([\d, ]+)\]", parameter)
    if found is None or found[1] not in draws:  # no array, or on another scale than the draws
        return parameter
    places = zip(draws[found[1]].dims[2:], found[2].split(","), strict=True)
    return f"{found[1]}[{', '.join(str(draws[dim].values[int(place)]) for dim, place in places)}]"


def _clip_fraction(stats: xr.Dataset, name: str, role: Role) -> ClipFraction:
    """Return the mean of a released clip fraction, with that mean's noise."""
    values, noise = (np.ravel(stats[each].values) for each in (name, noise_std_of(name)))
    counted = np.isfinite(values)
    if not counted.any():
        return ClipFraction(math.nan, math.nan, role)
    # Equal values are those of one count, or are taken for one, which makes the noise of the mean no smaller.
    _, first, draws = np.unique(values[counted], return_index=True, return_counts=True)
    weights = draws / counted.sum()
    noise_std = float(np.sqrt(np.sum((weights * noise[counted][first]) ** 2)))
    return ClipFraction(float(values[counted].mean()), noise_std, role)
