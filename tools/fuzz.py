"""Random arguments, options and data: only documented errors, and no value of the data in anything but releases.

    python tools/fuzz.py --arguments 9000 --options 300 --tables 700

Each function makes cases of one sort and returns what it counted and the cases that failed, as text. As a script, the
caches that PyTensor and numba keep on disk, and all temporary files, go to a new folder, which is searched at the end.
`test_fuzz.py` makes some of each.
"""

import argparse
import collections
import contextlib
import fractions
import io
import logging
import os
import pickle
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

if __name__ == "__main__":  # before PyTensor is imported
    _FOLDER = tempfile.mkdtemp(prefix="fuzz-")
    os.environ |= {
        "PYTENSOR_FLAGS": f"base_compiledir={_FOLDER}/pytensor,{os.environ.get('PYTENSOR_FLAGS', '')}",
        "NUMBA_CACHE_DIR": f"{_FOLDER}/numba",
        "TMPDIR": _FOLDER,
    }
    tempfile.tempdir = None

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_dp as dp
from pymc_dp.run import sampling
from pymc_dp.steps.base import DPStep

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
#: Every confidential number is one of these, so that each can be searched for; 2**k times one has other digits.
CANARIES = tuple(
    sign * value for value in (7.123456789012345, 0.0836918273645546, 91827.3645546372) for sign in (1, -1)
)
WHOLE_CANARIES = (918273645, 564738291)
LABEL = "canary-person"

# Arguments --------------------------------------------------------------------------------------------------------

ANYTHING = (
    None, True, False, 0, 1, 2, 3, 7, 50, -1, 10**9, 10**25, 10**400, -(10**400), 0.0, -0.0, 0.01, 0.5, 1.0, 1.5,
    1e-320, 1e-300, 1e-9, 1e9, 1e300, 1.7e308, -2.5, float("nan"), float("inf"), -float("inf"),
    fractions.Fraction(1, 3),
    fractions.Fraction(10**400), 1j, "", "gaussian", "guided-walk", "private", "exact", "person", "mu", "no such name",
    "substitute", "add-remove", b"bytes", [], [1.0], [1.0, 2.0], [0.1, 0.3], [[1.0, 0.0], [0.0, 1.0]], [None], ["mu"],
    (), (0.1, 0.3), (0.1,), {}, {"mu": 1.0}, {"mu": "x"}, {"mu": 1.0, "sigma": 2.0}, {3: 4}, {"gradient": 9.0},
    {"log_ratio": 1e-200}, {"gradient": 1e12, "log_ratio": 1.0}, set(), object(), print,
    np.float32(0.5), np.float64(0.1), np.int8(3), np.bool_(True), np.longdouble("1e400"), np.array(0.5),
    np.array([0.5]), np.array([1.0, 2.0]), np.eye(2), np.array(["private", "exact"]), np.array([None, 1]),
    np.zeros((2, 2)),
    np.zeros(0), np.array([np.nan, 1.0]), np.array([1e308, 1e308]), np.zeros(10, dtype=int), range(3), range(10),
    np.ma.masked, NotImplemented, ..., int, pm.Normal, pt.scalar("free"), np.datetime64("2020-01-01"),
)  # fmt: skip
SHARED = ("budget_share", "unit", "unit_index", "clip_diagnostics", "keep_releases", "insecure_seed", "vars", "budget")
HMC = {"clip_gradient": 1.0, "clip_log_ratio": 1.0, "step_size": 0.1}
BATCHES = ("step_size", "clip_gradient", "sampling_probability", "batch_size", "n_units", "tempering", "mass_matrix")
PENALTY = {"clip_log_ratio": 1.0, "proposal_scale": 0.1}
#: Settings with which each step can be made, and the names of all that it has.
SETTINGS = {
    dp.DPHMC: (HMC, (*HMC, "n_leapfrog", "step_size_jitter", "mass_matrix", "gradient_share", "reuse_gradient",
                    "noise_multipliers", "tempering")),
    dp.DPMALA: (HMC, (*HMC, "step_size_jitter", "mass_matrix", "gradient_share", "reuse_gradient",
                     "noise_multipliers", "tempering")),
    dp.DPPenalty: (PENALTY, (*PENALTY, "proposal", "noise_multipliers", "tempering")),
    dp.DPMinibatchPenalty: (
        {**PENALTY, "batch_size": 5},
        (*PENALTY, "proposal", "batch_size", "n_units", "tempering", "noise_multipliers"),
    ),
    dp.DPBarker: (
        {"proposal_scale": 0.1, "batch_size": 50, "tempering": 0.1},
        ("proposal_scale", "proposal", "batch_size", "n_units", "tempering"),
    ),
    dp.DPSGLD: ({"clip_gradient": 1.0, "step_size": 0.1}, (*BATCHES, "n_steps")),
    dp.DPSGHMC: (
        {"clip_gradient": 1.0, "step_size": 0.1, "friction": 9.0},
        (*BATCHES, "friction", "n_leapfrog", "refresh_momentum", "noise_estimate"),
    ),
    dp.DPSGNHT: (
        {"clip_gradient": 1.0, "step_size": 0.1, "diffusion": 9.0},
        (*BATCHES, "diffusion", "thermostat_mass", "n_steps"),
    ),
    dp.DPSurrogateHMC: (
        {},
        ("synthetic", "newton_steps", "shares", "clip_gradient", "clip_curvature",
         "trajectories", "noise_aware"),
    ),
}  # fmt: skip
BUDGET = ("epsilon", "delta", "relation", "data_name", "reserved_share")
SECONDS = 120.0
SHARES = ("centre", "score", "curvature", "tests")


#: Of the right type at least, for most settings.
PLAUSIBLE = (
    None, True, False, 1, 2, 3, 7, 50, 1000, 10**6, 1e-300, 1e-12, 1e-4, 0.01, 0.5, 0.999, 1.0, 1.5, 20.0, 1e6, 1e15,
    1e99, fractions.Fraction(1, 3), np.float32(0.5), np.int8(3), "exact", "one-component", np.ones(2), np.eye(2),
    ["mu", "sigma"],
)  # fmt: skip


def anything(generator):
    if generator.random() < 0.7:
        return PLAUSIBLE[generator.integers(len(PLAUSIBLE))]
    return ANYTHING[generator.integers(len(ANYTHING))]


def some_of(generator, names, most=3):
    count = int(generator.integers(1, min(most, len(names)) + 1))
    return {str(name): anything(generator) for name in generator.choice(names, size=count, replace=False)}


@contextlib.contextmanager
def time_limit(seconds):
    """Raise TimeoutError in what computes for longer: nobody should wait for a refusal."""

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def fuzz_arguments(cases, *, seed=0):
    """Make budgets, steps, plans and charges with random arguments."""
    generator = np.random.default_rng(seed)
    with pm.Model(coords={"person": range(100)}) as model:
        pm.Normal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=np.zeros(100), dims="person")
    counts, failed = collections.Counter(), []
    for _ in range(cases):
        asked = []

        def one(asked=asked):
            make = list(SETTINGS)[generator.integers(len(SETTINGS))]
            fixed = make in {dp.DPMinibatchPenalty, dp.DPBarker, dp.DPSurrogateHMC} and generator.random() < 0.9
            relation = "substitute" if fixed else ("substitute", "add-remove")[generator.integers(2)]
            budget_arguments = {"epsilon": 1.0, "delta": 1e-6, "relation": relation}
            if generator.random() < 0.2:
                budget_arguments |= some_of(generator, BUDGET)
            asked.append(budget_arguments)
            budget = dp.PrivacyBudget(**budget_arguments)
            if generator.random() < 0.05:
                asked.append(shares := some_of(generator, SHARES, 4))
                dp.Shares(**({"centre": 0.25, "score": 0.25, "curvature": 0.25, "tests": 0.25} | shares))
            base, names = SETTINGS[make]
            batches = {}
            if make in {dp.DPSGLD, dp.DPSGHMC, dp.DPSGNHT}:
                batches = {"batch_size": 5} if relation == "substitute" else {"sampling_probability": 0.1}
            given = base | batches | {"budget": budget}
            if generator.random() < 0.8:
                given |= some_of(generator, (*names, *SHARED), 2)
            if generator.random() < 0.05:
                given["no_such_setting"] = 1
            asked.append((make.__name__, given))
            with model:
                step = make(**given)
            repr(step)
            if isinstance(step.budget, dp.PrivacyBudget):
                budget = step.budget
            if hasattr(step, "know_n_units") and generator.random() < 0.8:
                step.know_n_units(100)
            run = {"draws": int(generator.integers(1, 50)), "tune": int(generator.integers(3)), "chains": 2}
            if generator.random() < 0.25:
                run |= some_of(generator, ("draws", "tune", "chains"))
            asked.append(run)
            plan = budget.plan(step, **run)
            str(plan)
            budget.charge(plan)
            assert budget.epsilon_spent <= budget.epsilon
            assert dp.Plan.from_record(plan.to_record()) == plan
            budget.report()

        try:
            with time_limit(SECONDS):
                one()
            counts["accepted"] += 1
        except dp.PrivacyError as error:
            counts[type(error).__name__] += 1
            if not str(error):
                failed.append(f"no message: {asked}")
        except Exception:
            failed.append(f"{asked!r}\n{traceback.format_exc(limit=-3)}")
    return dict(counts), failed


# Options of pm.sample ---------------------------------------------------------------------------------------------

OPTIONS = (
    "draws", "tune", "chains", "cores", "random_seed", "progressbar", "step", "var_names", "nuts_sampler", "initvals",
    "init", "jitter_max_retries", "n_init", "trace", "discard_tuned_samples", "compute_convergence_checks",
    "keep_warning_stat", "return_inferencedata", "idata_kwargs", "nuts_sampler_kwargs", "callback", "mp_ctx",
    "blas_cores", "model", "compile_kwargs", "backend", "quiet", "nuts", "no_such_option",
)  # fmt: skip
#: What would only take long.
_TOO_MANY = {"draws": 60, "tune": 60, "chains": 4, "cores": 2}


def fuzz_options(cases, *, seed=0):
    """Call pm.sample with random options: an error of ours before the charge, or a run."""
    generator = np.random.default_rng(seed)
    with pm.Model(coords={"person": range(30)}) as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.zeros(30), dims="person")
    counts, failed = collections.Counter(), []
    for _ in range(cases):
        budget = dp.PrivacyBudget(1.0, 1e-6)
        options = some_of(generator, OPTIONS, 2)
        if any(name in options and isinstance(options[name], int) and options[name] > most
               for name, most in _TOO_MANY.items()):  # fmt: skip
            continue
        given = {"draws": 2, "tune": 0, "chains": 1, "cores": 1, **QUIET}
        with model:
            given["step"] = dp.DPPenalty(clip_log_ratio=1.0, proposal_scale=0.1, budget=budget)
        try:
            with model, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                pm.sample(**(given | options))
            counts["accepted"] += 1
        except dp.PrivacyError as error:
            counts[type(error).__name__] += 1
            if budget.epsilon_spent:
                failed.append(f"charged, then refused: {options!r}: {error}")
        except Exception:
            charged = "charged, then " if budget.epsilon_spent else ""
            failed.append(f"{charged}{options!r}\n{traceback.format_exc(limit=-3)}")
    return dict(counts), failed


# Data -------------------------------------------------------------------------------------------------------------

EXTREMES = (np.nan, np.inf, -np.inf, 1.7e308, -1.7e308, 5e-324, -0.0, 2.0**63, 1e-200)
WHOLE_EXTREMES = (0, -1, 1, 2**31 - 1, -(2**31), 2**62, -(2**63), 10**12)


def numbers(generator, shape, *, missing=True):
    """Confidential numbers: canaries, and now and then an extreme."""
    values = generator.choice(CANARIES, size=shape)
    if generator.random() < 0.7:
        extremes = generator.choice(EXTREMES[0 if missing else 1 :], size=shape)
        values = np.where(generator.random(shape) < generator.choice([0.02, 0.3, 1.0]), extremes, values)
    return values


def whole_numbers(generator, shape):
    values = generator.choice(WHOLE_CANARIES, size=shape)
    extremes = generator.choice(WHOLE_EXTREMES, size=shape)
    return np.where(generator.random(shape) < generator.choice([0.0, 0.1, 1.0]), extremes, values)


def _normal(generator, n):
    y = numbers(generator, n, missing=generator.random() < 0.1)
    pm.Normal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=y, dims="person")


def _regression(generator, n):
    beta = pm.Normal("beta", shape=2)
    x = pm.Data("x", numbers(generator, (n, 2), missing=False), dims=("person", None))
    y = numbers(generator, n, missing=False)
    pm.StudentT("y", nu=4.0, mu=x @ beta, sigma=1.0, observed=y, dims="person")


def _with_constants(generator, n):
    slope = pm.Normal("slope")
    known = np.abs(numbers(generator, n))
    pm.Normal("y", slope * numbers(generator, n), known, observed=numbers(generator, n, missing=False), dims="person")


def _counts(generator, n):
    rate = pm.math.exp(pm.Normal("rate") * pm.Data("x", numbers(generator, n, missing=False), dims="person"))
    pm.Poisson("y", rate, observed=whole_numbers(generator, n), dims="person")


def _logistic(generator, n):
    x = pm.Data("x", numbers(generator, n, missing=False), dims="person")
    pm.Bernoulli("y", logit_p=pm.Normal("slope") * x, observed=whole_numbers(generator, n), dims="person")


def _groups(generator, n):
    group = pm.Data("group", whole_numbers(generator, n), dims="person")
    means = pm.Normal("means", shape=3)
    pm.Normal("y", means[group], 1.0, observed=numbers(generator, n, missing=False), dims="person")


def _mixture(generator, n):
    parts = pm.Normal.dist(pm.Normal("means", shape=2), 1.0)
    pm.Mixture("y", [0.3, 0.7], parts, observed=numbers(generator, n, missing=False), dims="person")


def _written_by_hand(generator, n):
    def logp(value, mu):
        return -pt.log1p((value - mu) ** 2) + pt.switch(pt.lt(value, 0.0), pt.log(value), 0.0)

    pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=numbers(generator, n, missing=False), dims="person")


def _censored(generator, n):
    observed = numbers(generator, n, missing=False)
    pm.Censored("y", pm.Gamma.dist(pm.HalfNormal("a"), 1.0), lower=None, upper=5.0, observed=observed, dims="person")


def _bad_bounds(generator, n):
    y = numbers(generator, n, missing=False)
    pm.Uniform("y", pm.Normal("low"), numbers(generator, n), observed=y, dims="person")


FAMILIES = (
    _normal,
    _regression,
    _with_constants,
    _counts,
    _logistic,
    _groups,
    _mixture,
    _written_by_hand,
    _censored,
    _bad_bounds,
)


def _steps(generator, n):
    """Return a random sampler as a function that makes its step, and the relation of its budget."""
    size = max(1, n // 2)
    made = [
        (dp.DPHMC, {**HMC, "n_leapfrog": 2}, ("substitute", "add-remove")),
        (dp.DPMALA, HMC, ("substitute", "add-remove")),
        (dp.DPPenalty, PENALTY, ("substitute", "add-remove")),
        (dp.DPMinibatchPenalty, {**PENALTY, "batch_size": size, "tempering": 0.5}, ("substitute",)),
        (dp.DPBarker, {"proposal_scale": 0.1, "batch_size": max(size, 20), "tempering": 0.05}, ("substitute",)),
        (dp.DPSGLD, {"clip_gradient": 1.0, "step_size": 1e-5, "sampling_probability": 0.1}, ("add-remove",)),
        (dp.DPSGHMC, {"clip_gradient": 1.0, "step_size": 1e-3, "friction": 1e6, "batch_size": size, "n_leapfrog": 1},
         ("substitute",)),
        (dp.DPSurrogateHMC, {"newton_steps": 2, "trajectories": 1}, ("substitute",)),
    ]  # fmt: skip
    make, settings, relations = made[generator.integers(len(made))]
    if generator.random() < 0.2 and make is not dp.DPBarker:
        settings = {**settings, "clip_diagnostics": None}
    return make, settings, str(generator.choice(relations))


def patterns(tables):
    """Return what must not be found, as text and as bytes."""
    texts, contents = [LABEL], [LABEL.encode()]
    for value in CANARIES:
        digits = f"{abs(value):.15g}".replace(".", "").lstrip("0")
        # Seven digits, whatever the last ones that are shown are rounded to.
        texts += [repr(abs(value))[: 8 + repr(abs(value)).startswith("0.0") * 2], digits[:7], f"{abs(value):.8e}"[:8]]
        contents += [struct.pack("<d", value), repr(abs(value))[:10].encode()]
    for value in WHOLE_CANARIES:
        texts.append(str(value))
        contents += [struct.pack("<q", value), str(value).encode()]
    return texts, contents


class _Everything(logging.Handler):
    """Keeps whatever is logged, arguments and tracebacks included."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record):
        self.lines.append(self.format(record))


@contextlib.contextmanager
def said(lines):
    """Collect what is logged, warned and printed, by this process and by its workers."""
    handler = _Everything()
    loggers = [logging.getLogger(name) for name in (None, "pymc", "pytensor", "pymc_dp")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as file, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, stream)
                os.close(copy)
            file.seek(0)
            lines += [file.read().decode(errors="replace"), *handler.lines, *(str(each.message) for each in warned)]
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
                logger.removeHandler(handler)


@contextlib.contextmanager
def shown(lines):
    """Collect how objects of a run show themselves while they hold the data."""
    authorise, publish = DPStep.authorise, sampling.publish

    def seen_authorise(self, authorisation, noted=None):
        curator = authorisation.curators._make_curator
        lines.extend(
            map(repr, (authorisation, authorisation.curators, curator.args, authorisation.synthetic_tables, self))
        )
        authorise(self, authorisation, noted)

    def seen_publish(*given, **arguments):
        published = publish(*given, **arguments)
        lines.extend(map(repr, (arguments["plan"], arguments["facts"], published)))
        lines.append(str(arguments["plan"]))
        return published

    DPStep.authorise, sampling.publish = seen_authorise, seen_publish
    try:
        yield
    finally:
        DPStep.authorise, sampling.publish = authorise, publish


def fuzz_tables(cases, *, seed=0, workers=0.1):
    """Run every sampler on tables of canaries and extremes; `workers` is the part that runs with two processes."""
    generator = np.random.default_rng(seed)
    texts, contents = patterns(None)
    counts, failed = collections.Counter(), []
    for case in range(cases):
        n = int(generator.choice([1, 2, 3, 21, 21, 60, 60]))
        family = FAMILIES[generator.integers(len(FAMILIES))]
        make, settings, relation = _steps(generator, n)
        two = generator.random() < workers
        what = f"case {case}: {family.__name__}, {make.__name__}, n={n}, {relation}, {1 + two} processes"
        budget = dp.PrivacyBudget(1.0, 1e-9, relation)
        lines, carried = [], b""
        with said(lines), shown(lines):
            try:
                with pm.Model(coords={"person": [f"{LABEL}-{i}" for i in range(n)]}):
                    family(generator, n)
                    step = make(budget=budget, **settings)
                    pm.sample(draws=3, tune=1, chains=2, cores=1 + two, step=step, progressbar=case % 2 == 0)
                counts["sampled"] += 1
            except dp.PrivacyError as error:
                counts[type(error).__name__] += 1
                lines.append("".join(traceback.format_exception(error)))
                carried = pickle.dumps((error, error.__cause__, error.__context__))
                if budget.epsilon_spent:
                    failed.append(f"{what}: charged, then {error!r}")
            except Exception as error:
                counts[f"not documented: {type(error).__name__}"] += 1
                lines.append("".join(traceback.format_exception(error)))
                charged = "charged, then " if budget.epsilon_spent else ""
                failed.append(f"{what}: {charged}{''.join(traceback.format_exception(error, limit=-3))}")
                with contextlib.suppress(Exception):
                    carried = pickle.dumps((error, error.__cause__, error.__context__))
            lines.append(repr((budget, budget.history, budget.report())))
        text = "\n".join(lines)
        found = [each for each in texts if each in text] + [each for each in contents if each in carried]
        for each in found:
            where = text.find(each) if isinstance(each, str) else -1
            failed.append(f"{what}: shows {each!r}: ...{text[max(0, where - 300) : where + 50]}")
    return dict(counts), failed


def search(folder):
    """Return the files below a folder that hold a confidential value or label, and how many were searched."""
    _, contents = patterns(None)
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    found = []
    for path in files:
        content = path.read_bytes()
        found += [f"{path} holds {each!r}" for each in contents if each in content]
    return found, len(files)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name, default in (("arguments", 9000), ("options", 300), ("tables", 700), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args(arguments)
    problems = 0
    for make, count in (
        (fuzz_arguments, asked.arguments),
        (fuzz_options, asked.options),
        (fuzz_tables, asked.tables),
    ):
        began = time.monotonic()
        counts, failed = make(count, seed=asked.seed)
        print(f"{make.__name__}: {count} cases, {counts}, {time.monotonic() - began:.0f} s, {len(failed)} failed")
        print(*failed, sep="\n\n", flush=True)
        problems += len(failed)
    found, searched = search(tempfile.gettempdir())
    print(f"{searched} files on disk searched, {len(found)} hold confidential values")
    print(*found, sep="\n")
    return int(problems + len(found) > 0)


if __name__ == "__main__":
    sys.exit(main())
