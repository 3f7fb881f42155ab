import collections
import gc
import multiprocessing
import os
import sys
import zlib

# The processes of a run share compiled modules, whatever the shell says: importing PyMC without takes eight seconds.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Before NumPy is imported: for every triangle of three by three OpenBLAS wakes a thread, which then spins.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Before PyTensor is imported: graphs inside operations are compiled by C, a second for each, where a compiler is found,
# and of every variable PyTensor notes the lines of code that made it, a twelfth of the time.
_FLAGS = ("cxx=", "traceback__limit=0")
os.environ["PYTENSOR_FLAGS"] = ",".join(filter(None, [os.environ.get("PYTENSOR_FLAGS"), *_FLAGS]))

import numpy as np
import pymc as pm
import pytensor
import pytest
import shortcuts
from _pytest.doctest import DoctestModule
from hypothesis import settings
from running import SHORT_PILOT

import pymc_dp as dp
from pymc_dp import compiling
from pymc_dp.release import InsecureNoise, SecureNoise
from pymc_dp.run import sampling
from pymc_dp.steps import learning_step, surrogate_hmc
from pymc_dp.steps.prelude import free_hmc
from pymc_dp.surveys import asking

_TESTS = os.path.dirname(__file__)

# The first call of a compiled kernel takes seconds; what fails once fails always.
settings.register_profile("compiled", deadline=None, derandomize=True)
settings.load_profile("compiled")


#: By owner and name: what is quick to start, instead of quick in the long run.
QUICK = {
    (pytensor.config, "mode"): compiling.INTERPRETED,
    (compiling, "MODE"): compiling.INTERPRETED,
    **{(free_hmc, name): value for name, value in SHORT_PILOT.items()},
    (learning_step, "_PILOT_TRANSITIONS"): 30,
    (surrogate_hmc, "_TUNING_OF_NUTS"): 30,
}
IN_PRODUCTION = {(owner, name): getattr(owner, name) for owner, name in QUICK}


class SeededNoise(InsecureNoise):
    """What stands for noise from the operating system: another for every run, the same whenever a test is repeated."""

    secure = True

    def __init__(self):
        super().__init__(seed_of_test())


#: How many seeds each test and fixture has asked for.
_asked = collections.Counter()


def seed_of_test():
    """Return another seed for each call of a test, or of a fixture: what fails once fails always."""
    frame, outermost = sys._getframe(), None
    while frame is not None:
        if frame.f_code.co_filename.startswith(_TESTS) and frame.f_code.co_filename != __file__:
            outermost = frame
        frame = frame.f_back
    who = os.environ.get("PYTEST_CURRENT_TEST", "").split(" (")[0]
    request = outermost.f_back.f_locals.get("request") if outermost is not None and outermost.f_back else None
    if getattr(request, "scope", "function") != "function":  # whichever test comes first
        code = outermost.f_code
        who = f"{os.path.relpath(code.co_filename, _TESTS)}::{code.co_name}[{getattr(request, 'param', '')!r}]"
    _asked[who] += 1
    return [zlib.crc32(who.encode()), _asked[who]]


def given_seed(random_seed, group, given=sampling._given_seed):
    nothing = random_seed is None and group.random_seed is None
    return seed_of_test() if nothing else given(random_seed, group)


def seed_runs(seeded):
    """Seed the noise of runs, and their public randomness, or take both from the operating system."""
    sampling.SecureNoise = asking.SecureNoise = SeededNoise if seeded else SecureNoise
    sampling._given_seed = given_seed if seeded else given_seed.__defaults__[0]


def run_as(settings):
    for (owner, name), value in settings.items():
        setattr(owner, name, value)


#: Dask's workers import this where they are sent an object of a test, and have to compute the client's bits.
IN_A_WORKER = multiprocessing.parent_process() is not None and "distributed" in sys.modules
if not IN_A_WORKER:
    run_as(QUICK)  # for what modules make when they are imported


def pytest_runtest_setup(item):
    """Interpret graphs, and take short pilots, unless a test asks for what users get."""
    run_as(IN_PRODUCTION if item.get_closest_marker("production") else QUICK)
    seed_runs(item.get_closest_marker("entropy") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Try a few cases at every change where more would try the same again, and all of them at night."""
    cases = collections.defaultdict(list)
    for item in items:
        marker, slow = item.get_closest_marker("few"), item.get_closest_marker("slow") is not None
        if marker is None or item.get_closest_marker("nightly"):
            continue
        few = marker.kwargs.get("slow") if slow else next(iter(marker.args), None)
        if few is not None:
            cases[item.path, item.originalname, slow, few].append(item)
    for (*_, few), of_function in cases.items():
        kept = np.linspace(0, len(of_function) - 1, few).round().astype(int)
        for item in np.delete(np.array(of_function, dtype=object), kept):
            item.add_marker(pytest.mark.nightly)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for examples in the package alone: there are none here."""
    found = yield
    return [each for each in found if not isinstance(each, DoctestModule)]


gc.set_threshold(20_000, 50, 100)  # graphs are many small objects: a search for every 700 takes a sixth of the time


@pytest.fixture(autouse=True, scope="module")
def what_stays_is_not_searched_for_garbage():
    """Compiled functions stay for the whole session: searching millions of their objects took a fifth of the time."""
    yield
    shortcuts.forget_rewrites()  # they remember the operations that they were tried on
    gc.collect()
    gc.freeze()


def gaussian_data(n=400, seed=0):
    return np.random.default_rng(seed).normal(1.0, 1.0, size=n)


def gaussian_model(y, prior_std=2.0):
    """Mean of a normal with known variance: the posterior is normal."""
    with pm.Model(coords={"person": np.arange(len(y))}) as model:
        mu = pm.Normal("mu", 0.0, prior_std)
        pm.Normal("y", mu, 1.0, observed=y, dims="person")
    return model


def logistic_data(n=600, seed=0, size=3):
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), generator.uniform(-1, 1, size=(n, size - 1))])
    return x, (generator.random(n) < 0.5).astype(np.int64)


def logistic_model(x, y, wrap=True):
    with pm.Model(coords={"person": np.arange(len(y)), "feature": [f"x{i}" for i in range(x.shape[1])]}) as model:
        data = pm.Data("x", x, dims=("person", "feature")) if wrap else x
        beta = pm.Normal("beta", 0.0, 1.0, dims="feature")
        pm.Bernoulli("visit", logit_p=data @ beta if wrap else pm.math.dot(data, beta), observed=y, dims="person")
    return model


def hmc(budget, **settings):
    """A step with settings that suit the small models here."""
    defaults = {"clip_gradient": 4.0, "clip_log_ratio": 4.0, "step_size": 0.05, "n_leapfrog": 2}
    return dp.DPHMC(budget=budget, **(defaults | settings))


QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}


@pytest.fixture
def budget():
    return dp.PrivacyBudget(epsilon=5.0, delta=1e-6)
