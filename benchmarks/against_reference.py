"""What the benchmarks of newcomers' models and of real tables share: references without privacy, runs, and errors.

A reference is the mean and covariance of the posterior on the unconstrained scale, in the order of
`pymc_dp.model.parameters.ParameterVector`: the normal approximation at the mode where importance weights say that the
posterior is as good as that, else draws by NUTS. References are NOT private and are kept in files.
"""

import argparse
import logging
import multiprocessing
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
from pymc_dp.diagnostics import quality
from pymc_dp.model.parameters import ParameterVector

DRAWS, CHAINS = 200, 4
#: Draws that importance weights are computed for, and the effective share of them from which the mode will do.
_WEIGHTED, _NORMAL_ENOUGH = 1000, 0.8
MOST_PROCESSES = 2

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A model on its data.

    Attributes
    ----------
    model : pm.Model
    settings : dict
        Of the step: ``unit_index`` where a person has several rows, otherwise none.
    normal : bool
        Whether the mode may serve as reference; False for models whose joint mode is far from the posterior's mean.
    twin : tuple of pm.Model and function, optional
        The same posterior in parameters that NUTS mixes better in, and what turns its unconstrained draws, shape
        (draws, parameters), into those of `model`.
    data : Table, optional
        The table beside the model, which then stands on a template.
    sample : function, optional
        What draws, with the arguments of `dp.sample`, in place of that: ``Model.fit`` of Bambi.
    """

    model: pm.Model
    settings: dict[str, str] = field(default_factory=dict)
    normal: bool = True
    twin: tuple[pm.Model, Callable[[FloatArray], FloatArray]] | None = None
    data: dp.Table | None = None
    sample: Callable[..., DataTree] = dp.sample


@dataclass(frozen=True, eq=False)
class Reference:
    """Mean and covariance of the posterior on the unconstrained scale, and how they were found."""

    mean: FloatArray
    covariance: FloatArray
    how: str

    @property
    def std(self) -> FloatArray:
        return np.sqrt(np.diag(self.covariance))


@dataclass(frozen=True)
class Run:
    """The figures of one run, or why there are none.

    Attributes
    ----------
    error, worst : float
        Of the published draws' mean, in posterior standard deviations: root mean square over parameters, and largest.
    worst_parameter : str
    coverage, least_coverage : float
        Posterior mass inside the draws' nominal 90 % intervals, by the normal approximation of the reference: the mean
        over parameters, and the least.
    width : float
        Standard deviation of the published draws by that of the posterior, median over parameters.
    verdict : str
    reasons : tuple of str
        For the verdict.
    seconds : float
    failure : str
        The traceback of a run that failed; empty otherwise.
    """

    error: float = np.nan
    worst: float = np.nan
    worst_parameter: str = ""
    coverage: float = np.nan
    least_coverage: float = np.nan
    width: float = np.nan
    verdict: str = "failed"
    reasons: tuple[str, ...] = ()
    seconds: float = np.nan
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"FAILED after {self.seconds:.0f} s: {self.failure.strip().splitlines()[-1]}"
        return (
            f"error {self.error:8.3g}  worst {self.worst:8.3g} ({self.worst_parameter})  coverage {self.coverage:.2f} "
            f"(least {self.least_coverage:.2f})  width {self.width:.2g}  {self.verdict}  {self.seconds:.0f} s"
            + "".join(f"\n    {reason}" for reason in self.reasons)
        )


# References -----------------------------------------------------------------------------------------------------------


def reference_of(problem: Problem, path: Path) -> Reference:
    """Return the reference that `path` holds, or find it and keep it there."""
    if not path.exists():
        found = by_mode(problem.model) if problem.normal else None
        found = _by_nuts(problem) if found is None else found
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, mean=found.mean, covariance=found.covariance, how=found.how)
    kept = np.load(path)
    return Reference(kept["mean"], kept["covariance"], str(kept["how"]))


def by_mode(model: pm.Model) -> Reference | None:
    """Return the normal approximation at the mode, corrected by importance weights; None where it is not good."""
    parameters = ParameterVector(model)
    log_density, slope = model.compile_logp(), model.compile_dlogp()

    def height(theta: FloatArray) -> float:
        return float(log_density(parameters.to_point(theta)))

    def gradient(theta: FloatArray) -> FloatArray:
        return np.asarray(slope(parameters.to_point(theta)), dtype=np.float64)

    theta = parameters.to_theta(model.initial_point(random_seed=0))
    gained = np.inf
    for _ in range(200):
        curvature = _precision(gradient, theta)
        if not np.isfinite(curvature).all():
            return None
        values, vectors = np.linalg.eigh(curvature)
        values = np.maximum(np.abs(values), 1e-8 * np.abs(values).max())  # uphill, whatever the curvature
        step = vectors @ (vectors.T @ gradient(theta) / values)
        before = height(theta)
        part = next((p for p in 0.5 ** np.arange(30) if height(theta + p * step) >= before), 0.0)
        theta = theta + part * step
        gained = height(theta) - before
        if gained < 1e-9:
            break
    precision = _precision(gradient, theta)
    if gained >= 1e-9 or np.linalg.eigvalsh(precision)[0] <= 0.0:
        return None
    covariance = np.linalg.inv(precision)
    root = np.linalg.cholesky(covariance)
    normals = np.random.default_rng(0).standard_normal((_WEIGHTED // 2, theta.size))
    normals = np.concatenate([normals, -normals])
    draws = theta + normals @ root.T
    logs = np.array([height(draw) for draw in draws]) + 0.5 * np.sum(normals**2, axis=1)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    effective = 1.0 / np.sum(weights**2) / _WEIGHTED
    if not effective >= _NORMAL_ENOUGH:
        return None
    # Differences from unweighted moments, whose exact values are known: little noise is left.
    extra = weights - 1.0 / _WEIGHTED
    mean = theta + extra @ draws
    corrected = covariance + (draws - theta).T @ (extra[:, None] * (draws - theta))
    corrected -= np.outer(mean - theta, mean - theta)
    return Reference(mean, corrected, f"mode, weights {effective:.0%} effective")


def _precision(gradient: Callable[[FloatArray], FloatArray], theta: FloatArray) -> FloatArray:
    """Return the negative second derivatives, by differences of gradients over a small part of each scale."""
    rough = 1e-4 * np.maximum(1.0, np.abs(theta))
    for _ in range(2):
        ways = np.diag(rough)
        columns = [(gradient(theta - way) - gradient(theta + way)) / (2.0 * np.max(way)) for way in ways]
        precision = np.array(columns)
        # A twentieth of the standard deviation along the axis, where there is one.
        rough = np.minimum(1e-2, 0.05 / np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-12)))
    found: FloatArray = (precision + precision.T) / 2.0
    return found


def _by_nuts(problem: Problem) -> Reference:
    model, turned = problem.twin or (problem.model, lambda draws: draws)
    with model:
        tree = pm.sample(
            draws=1500,
            tune=1000,
            chains=2,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    draws = turned(unconstrained(model, tree))
    by_chain = draws.reshape(2, -1, draws.shape[1])
    apart = np.max(np.abs(by_chain[0].mean(axis=0) - by_chain[1].mean(axis=0)) / draws.std(axis=0))
    diverging = int(tree["sample_stats"]["diverging"].sum())
    how = f"NUTS, {diverging} divergences, means of chains differ by {apart:.2f} sd at most"
    return Reference(draws.mean(axis=0), np.cov(draws.T), how)


def unconstrained(model: pm.Model, tree: DataTree) -> FloatArray:
    """Return the draws on the unconstrained scale, shape (draws of all chains, parameters)."""
    columns = []
    for value in model.value_vars:
        rv = model.values_to_rvs[value]
        draws = tree["posterior"][rv.name].values
        draws = draws.reshape(-1, *draws.shape[2:])
        transform = model.rvs_to_transforms[rv]
        if transform is not None:
            constrained = rv.type()
            forward = pm.pytensorf.compile(
                [constrained], transform.forward(constrained, *rv.owner.inputs), on_unused_input="ignore"
            )
            draws = np.array([forward(draw) for draw in draws])
        columns.append(draws.reshape(len(draws), -1))
    return np.concatenate(columns, axis=1)


# Runs -----------------------------------------------------------------------------------------------------------------


def run(problem: Problem, reference: Reference, epsilon: float, delta: float, seed: int) -> Run:
    """Run the sampler once with its defaults and compare its draws with the reference."""
    began = time.perf_counter()
    try:
        with problem.model:
            budget = dp.PrivacyBudget(epsilon=epsilon, delta=delta)
            step = dp.DPSurrogateHMC(budget=budget, insecure_seed=seed, **problem.settings)
            tree = problem.sample(
                draws=DRAWS,
                chains=CHAINS,
                cores=1,
                step=step,
                random_seed=seed,
                progressbar=False,
                compute_convergence_checks=False,
                **({} if problem.data is None else {"data": problem.data}),
            )
        seconds = time.perf_counter() - began
        found = quality(tree)
        figures = compared(unconstrained(problem.model, tree), reference, ParameterVector(problem.model).labels)
    except Exception:
        return Run(failure=traceback.format_exc(), seconds=time.perf_counter() - began)
    reasons = (*found.reasons_against, *found.reasons_unknown)
    return Run(**figures, verdict=found.verdict, reasons=reasons, seconds=seconds)


def compared(draws: FloatArray, reference: Reference, labels: list[str]) -> dict[str, float | str]:
    """Return the figures of a `Run` that compare draws with a reference."""
    errors = np.abs(draws.mean(axis=0) - reference.mean) / reference.std
    low, high = np.quantile(draws, (0.05, 0.95), axis=0, method="inverted_cdf")  # draws may be infinite
    inside = stats.norm.cdf(high, reference.mean, reference.std) - stats.norm.cdf(low, reference.mean, reference.std)
    inside = np.where(np.isnan(inside), 0.0, inside)
    worst = int(np.argmax(np.where(np.isnan(errors), np.inf, errors)))
    return {
        "error": float(np.sqrt(np.mean(errors**2))),
        "worst": float(errors[worst]),
        "worst_parameter": labels[worst],
        "coverage": float(inside.mean()),
        "least_coverage": float(inside.min()),
        "width": float(np.median(draws.std(axis=0) / reference.std)),
    }


def summary(runs: list[Run]) -> str:
    """Return one line on all runs of a model: failed runs count in shares, and not in medians."""
    made = [each for each in runs if not each.failure]
    verdicts = ", ".join(
        f"{sum(each.verdict == verdict for each in runs)} {verdict}"
        for verdict in ("usable", "not usable", "unknown", "failed")
    )
    if not made:
        return f"no run of {len(runs)} was made ({verdicts})"
    errors = [each.error for each in made]
    high = np.quantile(errors, 0.9, method="higher")
    return (
        f"{len(runs)} runs  median error {np.median(errors):.3g}  90th percentile {high:.3g}  "
        f"median worst {np.median([each.worst for each in made]):.3g}  mean coverage "
        f"{np.mean([each.coverage for each in made]):.2f}  median width "
        f"{np.median([each.width for each in made]):.2g}  {verdicts}  "
        f"median {np.median([each.seconds for each in made]):.0f} s"
    )


# Command line ---------------------------------------------------------------------------------------------------------


def arguments(parser: argparse.ArgumentParser, names: Iterable[str], epsilons: list[float]) -> argparse.Namespace:
    """Add what both benchmarks ask for, and read the command line."""
    parser.add_argument("directory", type=Path, help="where references are kept between calls")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of: {', '.join(names)} (default: all not kept)")
    parser.add_argument("--runs", type=int, default=2, help="runs of each, with the seeds 1, 2, ... (default: 2)")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds of the runs' noise, instead of --runs")
    parser.add_argument("--epsilon", type=float, nargs="+", default=epsilons)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--processes", type=int, default=1, choices=range(1, MOST_PROCESSES + 1))
    parser.add_argument("--references-only", action="store_true", help="find references, make no private run")
    options = parser.parse_intermixed_args()
    options.seeds = options.seeds or list(range(1, options.runs + 1))
    if unknown := set(options.names) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    return options


def results_of[Job, Found](
    function: Callable[[Job], Found], jobs: list[Job], processes: int
) -> Iterator[tuple[Job, Found]]:
    """Yield every job with its result, in order, from so many processes."""
    if processes == 1:
        for job in jobs:
            yield job, function(job)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=quiet) as pool:
        yield from zip(jobs, pool.map(function, jobs), strict=True)


def quiet() -> None:
    """Silence warnings and PyMC's log."""
    warnings.filterwarnings("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)


def say(text: str) -> None:
    """Print, at once also where output is piped."""
    print(text, flush=True)


def say_runs(
    run_of: Callable[[tuple[str, float, int]], Run],
    names: Iterable[str],
    options: argparse.Namespace,
    *,
    width: int = 26,
    of_run: Callable[[Run], str] = lambda made: "",
    of_all: Callable[[str, float], str] = lambda name, epsilon: "",
) -> None:
    """Make the runs of each name at each epsilon; print a line for each, one for all of a name, and what failed.

    `of_run` and `of_all` are printed before the figures of a run and of all runs; names are padded to `width`.
    """
    found: dict[tuple[str, float], list[Run]] = {}
    jobs = [(name, epsilon, seed) for name in names for epsilon in options.epsilon for seed in options.seeds]
    for (name, epsilon, seed), made in results_of(run_of, jobs, options.processes):
        say(f"{name:<{width}}epsilon {epsilon:g}  seed {seed}  {of_run(made)}{made}")
        found.setdefault((name, epsilon), []).append(made)
    say("")
    for (name, epsilon), runs in found.items():
        say(f"{name:<{width}}epsilon {epsilon:g}  {of_all(name, epsilon)}{summary(runs)}")
    say_failures((name, made) for (name, _), runs in found.items() for made in runs)


def say_failures(runs: Iterable[tuple[str, Run]]) -> None:
    """Print the tracebacks of failed runs to standard error."""
    for name, each in runs:
        if each.failure:
            print(f"\n{name}:\n{each.failure}", file=sys.stderr, flush=True)
