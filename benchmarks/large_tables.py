"""What tables beside the model cost: memory of the client, what a cluster of two processes adds to a pass, a whole run.

    python -m uv run python benchmarks/large_tables.py memory 1e6 1e7 1e8  # files of this machine
    python -m uv run python benchmarks/large_tables.py dask 1e6 1e7  # two worker processes of one thread
    python -m uv run python benchmarks/large_tables.py run 1e7  # dp.private_likelihood on a file, in one process

Logistic regression. Memory is the growth of the resident memory of a process that opens an Arrow file and releases
gradients and log-ratios, pages of the mapped file left out (they are the system's, which takes them back). Times are
medians over passes at new points: on the cluster, and on the same rows in this process alone. Dask asks the
allocator of its workers to give memory back at once, which makes passes over derivatives twice as long, and samples
their stacks: not here.

A whole run is that of a declared table in an Arrow file of four bytes a row, with defaults. Its blocks are read
in every pass, however much memory there is. Set ``OPENBLAS_NUM_THREADS=1``.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pyarrow as pa
import pymc as pm
from dask import config

import pymc_dp as dp
from pymc_dp.model.view import read
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.tables import local

GRID = 2.0**-30
BATCH = 2**20
#: Intercept and slopes of a whole run.
TRUTH = np.array([-1.0, 0.8, -0.5, 0.3])


def template(features):
    generator = np.random.default_rng(1)
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=features)
        x = pm.Data("x", generator.normal(size=(200, features)))
        pm.Bernoulli("y", logit_p=x @ beta, observed=generator.integers(0, 2, 200).astype(np.int8))
    return UnitLikelihood(read(model))


def columns(generator, n_rows, features):
    found = {f"x{k}": generator.standard_normal(n_rows) for k in range(features)}
    return {**found, "y": generator.integers(0, 2, n_rows, dtype=np.int8)}


def table(source, features, **options):
    return dp.Table(source, x=[f"x{k}" for k in range(features)], y="y", **options)


def private_megabytes():
    """Return resident memory without pages of files."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024 / 1e6


def write(path, n_rows, features):
    generator = np.random.default_rng(0)
    schema = pa.schema([*((f"x{k}", pa.float64()) for k in range(features)), ("y", pa.int8())])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for begin in range(0, n_rows, BATCH):
            made = columns(generator, min(BATCH, n_rows - begin), features)
            writer.write_batch(pa.record_batch(made, schema=schema))


def memory_of(path, features):
    """Print the growth of this process's memory over one file."""
    likelihood = template(features)
    likelihood.warm_up()
    small = Path(path).with_name("small.arrow")
    write(small, 1000, features)
    theta = np.full(features, 0.1)

    def passes(which):
        peak = 0.0
        with table(which, features).opened(likelihood) as rows:
            for k in range(2):
                rows.clipped_gradient(theta + k, 1.0, GRID)
                peak = max(peak, private_megabytes())
                rows.clipped_log_ratio(theta, theta + k, 1.0, GRID)
                peak = max(peak, private_megabytes())
        return peak, rows.n_units

    before, _ = passes(small)
    begin = time.perf_counter()
    after, n_units = passes(path)
    print(
        f"{n_units:>12,} rows: memory grows by {after - before:6.1f} MB; {time.perf_counter() - begin:7.1f} s",
        flush=True,
    )


def memory(sizes, features):
    with tempfile.TemporaryDirectory() as folder:
        for n_rows in sizes:
            path = Path(folder) / "table.arrow"
            write(path, n_rows, features)
            subprocess.run([sys.executable, __file__, "one-file", str(path), "--features", str(features)], check=True)  # noqa: S603


def write_declared(path, n_rows):
    """Write rows of a logistic regression, block by block: covariates are whole numbers from -100 to 100."""
    generator = np.random.default_rng(0)
    schema = pa.schema([(name, pa.int8()) for name in ("x0", "x1", "x2", "y")])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for begin in range(0, n_rows, BATCH):
            n = min(BATCH, n_rows - begin)
            x = generator.integers(-100, 101, (3, n), dtype=np.int8)
            chance = 1 / (1 + np.exp(-TRUTH[0] - TRUTH[1:] @ (x / 100)))
            writer.write_batch(pa.record_batch([*x, (generator.random(n) < chance).astype(np.int8)], schema=schema))


def whole_run(path, n_rows, epsilon, clip_diagnostics):
    """Print what each pass of a whole run takes, and how far its result is from the truth."""
    begin = time.perf_counter()
    write_declared(path, n_rows)
    print(f"{path.stat().st_size / 1e9:.2f} GB, written in {time.perf_counter() - begin:.0f} s", flush=True)
    passes, peak, answers = [], 0.0, local.OutOfCore.answers

    def timed(self, asked, units):
        nonlocal peak
        start = time.perf_counter()
        for each in answers(self, asked, units):
            peak = max(peak, private_megabytes())
            yield each
        passes.append(time.perf_counter() - start)
        print(f"{len(passes):>3} {asked.name:<16}{passes[-1]:8.1f} s, {peak:.0f} MB", flush=True)

    local.OutOfCore.answers, local._PART_OF_MEMORY = timed, 0.0
    columns = [f"x{k}" for k in range(3)]
    declared = dp.Table(path, schema=[*(dp.Number(name, -100, 100) for name in columns), dp.YesNo("y")])
    t = declared.template
    with pm.Model():
        eta = pm.Normal("intercept") + pm.Data("x", t.matrix(*columns)) @ pm.Normal("slopes", shape=3)
        pm.Bernoulli("y", logit_p=eta, observed=t.y)
        budget = dp.PrivacyBudget(epsilon=epsilon, delta=1e-12)
        begin = time.perf_counter()
        options = {"clip_diagnostics": clip_diagnostics, "progressbar": False}
        found = dp.private_likelihood(data=declared, budget=budget, **options)
    seconds, sd, total = time.perf_counter() - begin, np.sqrt(np.diag(found.covariance)), sum(passes)
    error, of_all = found.mean.values - TRUTH, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{n_rows:,} rows: {seconds:.0f} s, of them {total:.0f} in {len(passes)} passes, "
        f"{1e9 * total / len(passes) / n_rows:.0f} ns for a row in a pass; peak of memory {peak:.0f} MB, with pages of "
        f"files {of_all:.0f}\n"
        f"error {error}, in standard deviations {error / sd}, which are {sd}; without privacy "
        f"{np.sqrt(np.diag(found.without_noise))}\n{found.figures}"
    )


def medians(rows, passes):
    """Return the median seconds of a gradient and of an expansion's score at new points."""
    gradient, score = [], []
    for k in range(passes):
        theta = np.full(rows.n_parameters, 0.01 * (k + 1))
        begin = time.perf_counter()
        rows.clipped_gradient(theta, 1.0, GRID)
        gradient.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        rows.sum_over_units(first_entry, 1, 1.0, GRID)
        score.append(time.perf_counter() - begin)
    return statistics.median(gradient[1:]), statistics.median(score[1:])


def first_entry(chunk):
    return chunk.gradient(np.full(10, 0.1))[:, :1]


def dask(sizes, features):
    likelihood = template(features)
    likelihood.warm_up()
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    allocator = {"MALLOC_TRIM_THRESHOLD_": str(2**28), "MALLOC_MMAP_THRESHOLD_": str(2**28)}
    config.set({"distributed.nanny.pre-spawn-environ": allocator, "distributed.worker.profile.enabled": False})
    for n_rows in sizes:
        frame = pd.DataFrame(columns(np.random.default_rng(0), n_rows, features))
        passes = 12 if n_rows > 3e6 else 40
        with table(frame, features).opened(likelihood) as rows:
            near = medians(rows, passes)
            sums = rows.clipped_gradient(np.zeros(features), 1.0, GRID).integers
        with (
            tempfile.TemporaryDirectory() as folder,
            distributed.LocalCluster(**options) as cluster,
            distributed.Client(cluster) as client,
        ):
            path = Path(folder) / "table.parquet"
            frame.to_parquet(path, row_group_size=max(1, n_rows // 4))
            del frame
            source = dd.read_parquet(path, split_row_groups=True)
            begin = time.perf_counter()
            with table(source, features, client=client).opened(likelihood) as rows:
                opened = time.perf_counter() - begin
                far = medians(rows, passes)
                assert np.array_equal(rows.clipped_gradient(np.zeros(features), 1.0, GRID).integers, sums)
                blocks = rows._partitions.lengths
        for what, one, other in zip(("gradient", "own contributions"), near, far, strict=True):
            print(
                f"{n_rows:>12,} rows, {what}: one process {1e3 * one:7.1f} ms, two worker processes "
                f"{1e3 * other:7.1f} ms ({100 * (other / one - 1):+.0f} %); blocks {blocks}, opened in {opened:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["memory", "dask", "run", "one-file"])
    parser.add_argument("sizes", nargs="+")
    parser.add_argument("--features", type=int)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--without-diagnostics", action="store_true", help="a third of the passes of a whole run less")
    given = parser.parse_args()
    if given.what == "one-file":
        memory_of(given.sizes[0], given.features)
    elif given.what == "run":
        diagnostics = None if given.without_diagnostics else "private"
        with tempfile.TemporaryDirectory() as folder:
            whole_run(Path(folder) / "declared.arrow", int(float(given.sizes[0])), given.epsilon, diagnostics)
    elif given.what == "memory":
        memory([int(float(size)) for size in given.sizes], given.features or 4)
    else:
        dask([int(float(size)) for size in given.sizes], given.features or 10)
