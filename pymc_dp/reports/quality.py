"""Measures of the quality of a private run's draws, from its published tree, and the verdict that follows from them."""

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
#: A noisy measure is acceptable up to the first number, if measure plus noise are up to the second.
ACCEPTABLE_CLIP_FRACTION = (0.01, 0.02)
#: In standard deviations of the draws.
ACCEPTABLE_CLIP_BIAS = (0.75, 1.0)
#: Limit of the largest error of a mean, in standard deviations of the draws. Of 572 preludes at epsilon 1 it rejected
#: 30, of which 20 had intervals with good coverage. A limit on the root mean square over parameters rejected 15, of
#: which 6 had, and accepted a hierarchy in the non-centred form whose scale was 50 standard deviations off.
ACCEPTABLE_SURROGATE_ERROR = (0.5, 0.75)
#: A measure exceeds a limit if it does so by this many standard deviations of its noise.
_BEYOND_NOISE = 2.0
#: Largest ratio of widths of the draws and the surrogate, and of a width and its possible value under noise.
_LARGEST_WIDTH_RATIO = 3.0
#: If the median parameter may be too narrow by less than this factor, the report names the few doubtful parameters.
#: Chosen: of 57 preludes on 13 tables 13 had 1.4 to 1.6, 12 of them with good coverage, and none had more.
_DOUBTFUL_EVERYWHERE = 1.7
#: Up to this factor of widening, a posterior is about as precise as without privacy.
_PRECISE_WIDENING = 1.5
#: Draws at least as wide as this part of the prior: the table has less than a quarter of the prior's information.
_WIDTH_OF_PRIOR = 0.9
#: Acceptable shift of a mean towards the prior because of noise, in standard deviations of the draws.
_ACCEPTABLE_PULL = 1.0
#: Wider draws are mostly noise; at a larger distance from the centre, in posterior sd, the search has failed.
_LARGEST_WIDENING, _LARGEST_CENTRE_DISTANCE = 10.0, 50.0
#: Acceptable part of diverging trajectories of NUTS: some diverge in the narrow parts of any hierarchy.
_FEW_DIVERGING = 0.01
#: The variance of members is the difference of the observed variance and the noise: with more than this times as much
#: noise, an error of a third in the variance of the noise is as large as the variance of members.
_LARGEST_NOISE_OF_MEMBERS = 3.0
#: The allowance for noise of the curvature is of first order, which is too small where that noise dominates.
_LARGEST_CURVATURE_SHARE = 0.5


@dataclass(frozen=True)
class ClipFraction:
    """The share of units that was clipped in releases of one kind.

    Attributes
    ----------
    fraction : float
        The mean released share.
    noise_std : float
        Standard deviation of its noise; 0 if it is exact.
    role : {"decides", "drives", "other"}
        The role of these releases in the run.
    """

    fraction: float
    noise_std: float
    role: Role

    @property
    def known(self) -> bool:
        """Whether the share was released."""
        return math.isfinite(self.fraction) and math.isfinite(self.noise_std)


@dataclass(frozen=True)
class Quality:
    """The quality of the draws of a private run.

    Attributes
    ----------
    draws : int
        Kept draws of all chains.
    acceptance : float
        Share of accepted proposals.
    r_hat : float
        Largest R-hat of any parameter.
    effective_draws : float
        Smallest bulk effective sample size of any parameter, and at most the number of distinct draws.
    test_noise : float
        Median standard deviation of the noise in the log-ratio of the acceptance test. Below about 1 it hardly
        reduces acceptance, above 3 hardly any proposal is accepted.
    clip_fractions : dict of str to ClipFraction
        Released share of clipped units, by published kind of release.
    diverging : float
        Share of trajectories that reached values that are not finite.
    clip_bias, clip_bias_noise_std : float
        Approximate upper bound of the bias of means by clip bounds, in standard deviations of the draws, and the noise
        of that bound. NaN where the sampler does not report it.
    centre_distance : float
        Distance from the expansion point to the mean of the surrogate, in posterior standard deviations, root mean
        square over directions. NaN for other samplers.
    tested : bool
        Whether moves passed an acceptance test. Without a test, clipped gradients and the step size bias the draws.
    tempering : float
        The power of the likelihood in the target of the draws; 1 for the posterior.
    stuck : tuple of str
        Parameters, or chains, that never moved.
    missing : tuple of str
        Diagnostics that a verdict requires and that the run did not release.
    narrowest, widest : float
        The least and the largest standard deviation of the draws in any direction, relative to the surrogate
        that they were proposed from. NaN for samplers without a surrogate.
    doubtful_width : float
        The largest factor, over directions, by which noise of the released curvature may have made the draws too
        narrow. NaN where no curvature was released.
    doubtful : tuple of str
    typical_doubtful_width : float
        Parameters, on the unconstrained scale, whose draws may be more than three times too narrow for this reason; and
        the median of the factor over parameters. Empty and NaN where no likelihood was released.
    noise_of_members : float
        Variance of privacy noise in members of groups, over their variance under the hierarchical prior: the median.
        NaN where there is no hierarchy.
    curvature_share : float
        The part of the noise in the likelihood's maximum that comes from the curvature's noise, over the distance from
        the expansion point. NaN where draws are tested, or no curvature was released.
    widening : float
        Ratio of the draws' widths with and without privacy, root mean square over parameters. NaN for other
        samplers.
    widening_by_noise : float
        The same ratio for noise alone, without the allowance for bias by clip bounds.
    most_widened : str
    largest_widening : float
        The parameter, on the unconstrained scale, that privacy widens most, and its ratio of widths. Empty and NaN
        where no likelihood was released.
    as_prior : tuple of str
        Parameters, on the unconstrained scale, whose draws are about as wide as the model's prior.
    most_pulled : str
    prior_pull : float
        The parameter, on the unconstrained scale, whose mean privacy noise shifts most towards the prior, and the shift
        in standard deviations of the draws. Empty and NaN where no likelihood was released.
    surrogate_error, surrogate_error_noise_std : float
        Possible error of the draws' mean, in their standard deviations, from the difference between the log-likelihood
        and its expansion, and the noise of that figure. NaN where tests correct it, and for other samplers.
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
        """Whether clipping biases the draws; without an acceptance test, clipping of gradients counts, too."""
        return bool(self.biased_by)

    @property
    def biased_by(self) -> list[str]:
        """Names of the measures of clipping that exceed their limits beyond their noise."""
        return [
            name for name, (figure, noise, (limit, _)) in self._of_clipping().items() if _above(figure, noise, limit)
        ]

    @property
    def reasons_against(self) -> list[str]:
        """Reasons why the draws cannot be used as draws from the posterior."""
        reasons = [
            f"{name}: so many units are clipped that the draws follow another distribution" for name in self.biased_by
        ]
        if _above(self.surrogate_error, self.surrogate_error_noise_std, ACCEPTABLE_SURROGATE_ERROR[0]):
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
                f"the variance of the noise in members of groups is {self.noise_of_members:.2g} times that of their "
                "prior: how much they vary is hardly known, and intervals may be too narrow"
            )
        if self.curvature_share > _LARGEST_CURVATURE_SHARE:
            reasons.append(
                f"{self.curvature_share:.0%} of the noise in the likelihood's maximum is that of the released "
                "curvature, over the remaining distance: some directions are hardly known, and intervals there may be "
                "too narrow"
            )
        if self.widening > _LARGEST_WIDENING:
            reasons.append(
                f"the noise of privacy makes them {self.widening:.3g} times as wide as without it: they say little of "
                "the table"
            )
        if self.centre_distance > _LARGEST_CENTRE_DISTANCE:
            reasons.append(f"the expansion point is {self.centre_distance:.3g} posterior sd away: the search was lost")
        if self.tempering != 1.0:
            reasons.append(f"they follow the likelihood to the power {self.tempering:g}, not the likelihood")
        return reasons

    @property
    def reasons_unknown(self) -> list[str]:
        """Missing or too noisy information without which the draws cannot be called usable."""
        figures = self._of_clipping()
        if math.isfinite(self.surrogate_error):
            name = "what the surrogate misses"
            figures[name] = (self.surrogate_error, self.surrogate_error_noise_std, ACCEPTABLE_SURROGATE_ERROR)
        others = [] if self.tested else ["no test corrects for the step size and the drawing of batches"]
        if math.isfinite(self.surrogate_error) and self.diverging > _FEW_DIVERGING:  # drawn by NUTS, from a surrogate
            others.append(
                f"{self.diverging:.1%} of the trajectories diverged: draws may leave out the places where they did"
            )
        return [
            *(f"not released: {name}" for name in self.missing),
            *(
                f"{name}: {figure:.3g} ± {noise:.2g}, which with its noise is on either side of the limit, {limit:g}"
                for name, (figure, noise, (limit, with_noise)) in figures.items()
                if not (figure <= limit and figure + noise <= with_noise) and not _above(figure, noise, limit)
            ),
            *others,
        ]

    @property
    def verdict(self) -> Literal["usable", "not usable", "unknown"]:
        """Whether the draws can be used as draws from the posterior; "usable" never rests on missing information."""
        if self.reasons_against:
            return "not usable"
        return "unknown" if self.reasons_unknown else "usable"

    @property
    def usable(self) -> bool:
        """Whether the verdict is "usable"."""
        return self.verdict == "usable"

    @property
    def hangs_on_prior(self) -> bool:
        """Whether the prior shifts some parameter's mean much more than it would without privacy noise."""
        return self.prior_pull > _ACCEPTABLE_PULL

    @property
    def imprecise(self) -> bool:
        """Whether privacy makes the draws much wider than the posterior without privacy."""
        return self.widening > _PRECISE_WIDENING

    def _of_clipping(self) -> dict[str, tuple[float, float, tuple[float, float]]]:
        """Return the noisy measures of clipping that may bias the draws, by name: value, noise and limits."""
        figures = {
            f"clipping in {kind_in_words(kind)}": (clipped.fraction, clipped.noise_std, ACCEPTABLE_CLIP_FRACTION)
            for kind, clipped in self.clip_fractions.items()
            if moves_draws(clipped.role, tested=self.tested)
        }
        if math.isfinite(self.clip_bias):
            figures["bias by clip bounds"] = (self.clip_bias, self.clip_bias_noise_std, ACCEPTABLE_CLIP_BIAS)
        return figures


def _above(figure: float, noise_std: float, limit: float) -> bool:
    return figure - _BEYOND_NOISE * noise_std > limit


def moves_draws(role: Role, *, tested: bool) -> bool:
    """Return whether clipping in a role biases the draws: it decides on moves, or drives moves that are not tested."""
    return role == "decides" or (role == "drives" and not tested)


def kind_in_words(kind: str) -> str:
    """Return a kind of releases with its article: ``a log-ratio``."""
    return f"a {kind.replace('_', '-')}"


def quality(tree: DataTree) -> Quality:
    """Return the quality of a private run's draws, from its published tree.

    Parameters
    ----------
    tree : DataTree
        The result of `pymc_dp.sample`, also as read back from disk.

    Raises
    ------
    InvalidArgument
        If `tree` is not the result of a private run, or holds no draws.
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
    """Return the label and the absolute value of the largest entry; "" and NaN for trees of earlier versions."""
    figures = abs(released[name].dropna("parameter")) if name in released else xr.DataArray([])
    if not figures.size:
        return "", math.nan
    most = figures.isel(figures.argmax(...))
    return _labelled(most["parameter"].item(), draws), float(most)


def _beyond(released: xr.Dataset, name: str, least: float, draws: xr.Dataset) -> tuple[str, ...]:
    """Return the labels of parameters with entries of at least `least`; none for trees of earlier versions."""
    if name not in released:
        return ()
    figures = released[name]
    return tuple(_labelled(each, draws) for each in figures["parameter"].values[figures.values >= least])


def _labelled(parameter: str, draws: xr.Dataset) -> str:
    """Return the name of an entry with the draws' coordinates instead of indices, as in ArviZ's tables."""
    found = re.fullmatch(r"(.+)\[([\d, ]+)\]", parameter)
    if found is None or found[1] not in draws:  # not an array, or on another scale than the draws
        return parameter
    places = zip(draws[found[1]].dims[2:], found[2].split(","), strict=True)
    return f"{found[1]}[{', '.join(str(draws[dim].values[int(place)]) for dim, place in places)}]"


def _clip_fraction(stats: xr.Dataset, name: str, role: Role) -> ClipFraction:
    """Return the mean of a released clip fraction, and the noise of that mean."""
    values, noise = (np.ravel(stats[each].values) for each in (name, noise_std_of(name)))
    counted = np.isfinite(values)
    if not counted.any():
        return ClipFraction(math.nan, math.nan, role)
    # Equal values count as a single release, which never understates the noise of the mean.
    _, first, draws = np.unique(values[counted], return_index=True, return_counts=True)
    weights = draws / counted.sum()
    noise_std = float(np.sqrt(np.sum((weights * noise[counted][first]) ** 2)))
    return ClipFraction(float(values[counted].mean()), noise_std, role)
