"""Verdicts of the quality report beside what was found, again and again with fresh noise: false comfort, false alarms.

    python benchmarks/verdicts.py DIRECTORY --data CSV                          all tables that are not kept aside
    python benchmarks/verdicts.py DIRECTORY --data CSV hospital slopes --epsilon 1 --runs 50

Arguments are those of `searches.py`. Everything that is released is made, and no chains: that these agree and give
enough effective draws is taken for granted, for they are drawn at no cost. Mean and covariance are those of the pilot.

==============  =======================================================================================================
holds           the mean is off by at most 1.5 standard deviations of the draws, root mean square over parameters, and
                nominal 90 % intervals hold at least three quarters of the posterior
comfort, false  share of all that are called usable, although intervals do not hold
alarm, false    share that are called not usable, although intervals hold and the search is not lost (`searches.py`)
==============  =======================================================================================================
"""

import math
from dataclasses import dataclass

import numpy as np
from against_reference import Problem, Reference
from searches import LOST, again_and_again, held, of_tables

from pymc_dp.diagnostics import Quality
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.steps.prelude.learning import Learning

MOST_OFF, LEAST_COVERED = 1.5, 0.75


@dataclass(frozen=True)
class Judged:
    """One run: how far off its mean is in posterior sd and in sd of its draws, what intervals hold, and its quality."""

    error: float
    off: float
    covered: float
    quality: Quality | None

    @property
    def holds(self) -> bool:
        return self.off <= MOST_OFF and self.covered >= LEAST_COVERED

    @property
    def verdict(self) -> str:
        return "not usable" if self.quality is None else self.quality.verdict

    @property
    def false_comfort(self) -> bool:
        return self.verdict == "usable" and not self.holds

    @property
    def false_alarm(self) -> bool:
        return self.verdict == "not usable" and self.holds and self.error <= LOST

    def __str__(self) -> str:
        reasons = [] if self.quality is None else [*self.quality.reasons_against, *self.quality.reasons_unknown]
        said = "; ".join([self.verdict, *reasons])
        return f"error {self.error:.2f}, off {self.off:.2f} sd of the draws, coverage {self.covered:.2f}: {said}"


def quality_of(found: Approximation) -> Quality:
    """Return the quality of a run whose draws are from this surrogate, and as many as are needed."""
    needed = ("surrogate_error", "clip_bias")
    missing = tuple(name for name in needed if not math.isfinite(found.figures[name]))
    return Quality(
        draws=4000,
        acceptance=1.0,
        r_hat=1.0,
        effective_draws=4000.0,
        test_noise=math.nan,
        clip_fractions={},
        missing=missing,
        typical_doubtful_width=float(np.nanmedian(found.doubtful_width)),
        **found.figures,
    )


def judged(found: Approximation | None, reference: Reference) -> Judged:
    """Return what a run has found beside the exact posterior."""
    if found is None:
        return Judged(math.inf, math.inf, 0.0, None)
    stds = np.sqrt(np.diag(found.kernel.covariance))
    away, wide = (found.kernel.mean - reference.mean) / reference.std, stds / reference.std
    error, off = (float(np.sqrt(np.mean(each**2))) for each in (away, away / wide))
    return Judged(error, off, float(held(away, wide).mean()), quality_of(found))


def verdicts_of(problem: Problem, reference: Reference, epsilon: float, delta: float, runs: int) -> str:
    """Return the summary of one table at one epsilon, and a line for each run that is not judged rightly."""
    found = again_and_again(problem, epsilon, delta, runs, 0, Learning.run)
    made = [judged(approximation, reference) for approximation in found]
    shares = {
        "lost": np.mean([one.error > LOST for one in made]),
        "holds": np.mean([one.holds for one in made]),
        **{verdict: np.mean([one.verdict == verdict for one in made]) for verdict in ("usable", "unknown")},
        "false comfort": np.mean([one.false_comfort for one in made]),
        "false alarm": np.mean([one.false_alarm for one in made]),
    }
    said = [
        f"error {np.median([one.error for one in made]):.2f}",
        *(f"{key} {share:.2f}" for key, share in shares.items()),
    ]
    wrong = [f"    {one}" for one in made if one.false_comfort or one.false_alarm]
    return "\n".join([", ".join(said), *wrong])


if __name__ == "__main__":
    of_tables(verdicts_of, __doc__)
