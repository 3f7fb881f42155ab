"""Memory and time of long tables: logistic regression with 10 features, each number of rows in a process of its own.

Run ``OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python -m uv run python benchmarks/long_tables.py``, with
numbers of rows as arguments (``1e5 1e7``) for others than the usual ones.
Linux only: the peak is the kernel's own count of resident memory, set back when the table is ready.

What is timed is what samplers do again and again: three gradients at new points and the log-ratio of the last of them
to where the chain is; and a log-ratio of where the chain is to a new point, without gradients before.
"""

import argparse
import ctypes
import gc
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pymc as pm

from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood

FEATURES = 10
GRID = 2.0**-30


def model_of(n_rows):
    generator = np.random.default_rng(0)
    x = np.empty((n_rows, FEATURES))
    generator.standard_normal(out=x)
    y = generator.integers(0, 2, n_rows, dtype=np.int8)
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=FEATURES)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta, observed=y)
    return model


def megabytes(field):
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024 / 1e6


def timed(function, *arguments):
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def measure(n_rows):
    small = UnitLikelihood(read(model_of(1000)))  # whatever is compiled once stays in memory
    small.warm_up()
    model = model_of(n_rows)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed counts as memory again once it is used again
    before = megabytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back
    rows = UnitLikelihood(read(model))
    rows.warm_up()
    built = megabytes("VmHWM") - before
    generator = np.random.default_rng(1)
    iterations = max(3, min(200, int(2e7 // n_rows)))
    theta = generator.normal(scale=0.3, size=FEATURES)
    gradients, ratios, new_ratios = [], [], []
    for _ in range(iterations):
        theta_new = theta
        for _ in range(3):
            theta_new = theta_new + generator.normal(scale=0.01, size=FEATURES)
            gradients.append(timed(rows.clipped_gradient, theta_new, 2.0, GRID))
        ratios.append(timed(rows.clipped_log_ratio, theta, theta_new, 0.1, GRID))
        theta = theta_new
        theta_new = theta + generator.normal(scale=0.01, size=FEATURES)
        new_ratios.append(timed(rows.clipped_log_ratio, theta, theta_new, 0.1, GRID))
    peak = megabytes("VmHWM") - before
    held = len(rows._pair) * 8 * n_rows / 1e6
    data = sum(table.nbytes for table in rows._table.rows) / 1e6
    times = [
        f"{1e9 / n_rows * min(each):.1f} to {1e9 / n_rows * statistics.median(each):.1f}"
        for each in (gradients, ratios, new_ratios)
    ]
    return f"| {n_rows:.0e} | {data:.0f} | {built:.0f} | {peak:.0f} | {held:.0f} | {' | '.join(times)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=float, default=[1e4, 1e5, 1e6, 1e7])
    parser.add_argument("--here", action="store_true", help="measure in this process")
    options = parser.parse_args()
    if options.here:
        print(measure(int(options.rows[0])))  # noqa: T201
        return
    print("| rows | data (MB) | more when built | at the peak | held | gradient | ratio after it | ratio, new point |")  # noqa: T201
    for n_rows in options.rows:
        command = [sys.executable, __file__, f"{n_rows:.0f}", "--here"]
        subprocess.run(command, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
