"""Importing the package costs little more than importing PyMC: every spawned worker pays for it."""

import json
import os
import subprocess
import sys
import textwrap

import cloudpickle
import pytest
from conftest import gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood

#: What PyMC imports itself counts for nothing, in any version of it.
BEYOND_PYMC = """
    import json
    import sys

    import pymc as pm

    sample, before = pm.sample, set(sys.modules)
"""
HEAVY = {
    *("arviz", "arviz_base", "arviz_plots", "arviz_stats", "bambi", "dask", "distributed", "dp_accounting", "llvmlite"),
    *("matplotlib", "netCDF4", "numba", "opendp", "polars", "pyarrow", "statsmodels", "zarr"),
    *("scipy.fft", "scipy.optimize", "scipy.spatial", "scipy.special", "scipy.stats"),
}


def printed(code, *arguments):
    """Return what a new process prints as JSON."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", textwrap.dedent(BEYOND_PYMC) + textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "DUCC0_NUM_THREADS"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_brings_in_nothing_heavy_and_installs_the_hook():
    code = """
    import os

    import pymc_dp

    brought_in = sorted(set(sys.modules) - before)
    import scipy.fft

    threads = set(os.listdir("/proc/self/task"))
    scipy.fft.rfft([1.0])
    print(json.dumps([brought_in, pm.sample is not sample, len(set(os.listdir("/proc/self/task")) - threads)]))
    """
    brought_in, hooked, started = printed(code)
    assert hooked
    assert started == 0  # a fork would wait for them, sometimes for ever
    assert HEAVY.isdisjoint(brought_in)
    packages = {name.split(".")[0] for name in brought_in} - set(sys.stdlib_module_names)
    assert packages <= {"pymc_dp", "pymc", "pytensor", "scipy"}
    assert not [name for name in brought_in if name.startswith("pymc_dp.plots")]


@pytest.mark.slow
def test_all_names_are_there_and_no_kernel_is_compiled():
    code = """
    import pymc_dp

    listed = dir(pymc_dp)
    from pymc_dp import *

    missing = [name for name in pymc_dp.__all__ if name not in listed or name not in globals()]

    from numba.core.dispatcher import Dispatcher

    import pymc_dp.rows.clip

    kernels = [
        kernel
        for name, module in list(sys.modules.items())
        if name.startswith("pymc_dp.")
        for kernel in vars(module).values()
        if isinstance(kernel, Dispatcher)
    ]
    print(json.dumps([missing, len(kernels), [str(kernel) for kernel in kernels if kernel.signatures]]))
    """
    missing, n_kernels, compiled = printed(code)
    assert missing == []
    assert n_kernels > 20
    assert compiled == []


@pytest.mark.slow
def test_unpickling_a_step_and_what_it_asks_brings_in_nothing_heavy(budget, tmp_path):
    model = gaussian_model(gaussian_data())
    with model:
        step = hmc(budget)
    view = read(model)
    rows = UnitLikelihood(view)
    (tmp_path / "step").write_bytes(cloudpickle.dumps((step, view.prior, rows)))
    code = """
    import cloudpickle

    with open(sys.argv[1], "rb") as file:
        cloudpickle.load(file)
    print(json.dumps(sorted(set(sys.modules) - before)))
    """
    brought_in = printed(code, str(tmp_path / "step"))
    assert "pymc_dp.rows.engine" in brought_in
    assert HEAVY.isdisjoint(brought_in)


def test_names_that_are_not_there_are_no_attributes():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dp.nothing  # noqa: B018
