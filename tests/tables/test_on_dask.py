"""A cluster of two worker processes: the same bits as in memory, refusals before the charge, and failures."""

import contextlib
import os
import signal
import time
import urllib.request

import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from conftest import QUIET

import pymc_dp as dp
from pymc_dp.exceptions import TableChanged, UnsupportedTable, WorkersLost
from pymc_dp.model.view import read
from pymc_dp.release.interface import ExpansionPoint
from pymc_dp.rows import probe
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.rows.table import RowTable
from pymc_dp.tables import on_dask as on_dask_module
from pymc_dp.tables.columns import Columns
from pymc_dp.tables.on_dask import DaskPartitions, DaskSource

pytestmark = pytest.mark.production

N, GRID = 4000, 2.0**-24
THETA = np.array([0.2, 0.4, -0.3])
#: A value that stands in one row, and nowhere else.
CANARY = 987654.3215


def template(n=60):
    generator = np.random.default_rng(8)
    with pm.Model() as model:
        intercept, slopes = pm.Normal("intercept"), pm.Normal("slopes", shape=2)
        x = pm.Data("x", generator.normal(size=(n, 2)))
        pm.Bernoulli("y", logit_p=intercept + x @ slopes, observed=generator.integers(0, 2, size=n))
    return model


@pytest.fixture(scope="module")
def frame():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(N, 2))
    y = (generator.random(N) < 1.0 / (1.0 + np.exp(-0.3 - x @ [0.5, -0.4]))).astype(np.int64)
    return pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "y": y, "person": generator.integers(0, 900, size=N)})


@contextlib.contextmanager
def own_cluster(**options):
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None} | options
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module", params=["threads", pytest.param("processes", marks=pytest.mark.slow)])
def workers(request):
    """Workers in this process, for what shows there as well; in others of their own, which take seconds to start."""
    with own_cluster(processes=request.param == "processes", dashboard_address="127.0.0.1:0") as client:
        yield client


in_processes = pytest.mark.parametrize("workers", ["processes"], indirect=True)


def table(source, **options):
    return dp.Table(source, x=["u", "v"], y="y", **options)


@pytest.fixture(scope="module")
def likelihood():
    return UnitLikelihood(read(template()))


def sums(rows, units=None):
    centre = ExpansionPoint(THETA, np.eye(3), 0.5, 0.3)
    found = [
        rows.clipped_gradient(THETA, 0.4, GRID, units=units),
        rows.clipped_log_ratio(THETA, -THETA, 0.4, GRID, units=units),
        rows.sum_over_units(lambda chunk: np.sin(chunk.gradient(THETA)), 3, 0.5, GRID, units=units),
        *([] if units is not None else [rows.expansion(centre).curvature(GRID)]),
    ]
    moments = rows.log_ratio_moments(THETA, -THETA, 0.4, GRID, units=units)
    return [(each.integers.tolist(), each.n_clipped) for each in found], moments


def on_dask(frame, kind):
    if kind == "dataset":
        x = xr.DataArray(frame[["u", "v"]].to_numpy(), dims=("row", "feature")).chunk({"row": 700, "feature": 1})
        y = xr.DataArray(frame["y"].to_numpy(), dims="row").chunk({"row": 1300})
        return dp.Table(xr.Dataset({"x": x, "y": y}), x="x", y="y")
    return table(dd.from_pandas(frame, npartitions=7), unit="person" if kind == "units" else None)


@pytest.mark.slow
@in_processes
@pytest.mark.parametrize("kind", ["frame", "dataset", "units"])
def test_sums_on_a_cluster_have_the_bits_of_those_in_memory(workers, frame, likelihood, kind):
    with (
        on_dask(frame, kind).opened(likelihood) as far,
        table(frame, unit="person" if kind == "units" else None).opened(likelihood) as near,
    ):
        assert (far.n_units, far.n_rows) == (near.n_units, near.n_rows)
        assert len(far._partitions.lengths) == 2
        assert min(far._partitions.lengths) > 0
        assert sums(far) == sums(near)
        if kind != "units":  # whose order differs
            units = np.sort(np.random.default_rng(2).choice(far.n_units, size=301, replace=False))
            assert sums(far, units) == sums(near, units)
            assert sums(far, units[:0]) == sums(near, units[:0])
        assert on_dask(frame, kind).count_units() == near.n_units


def draws(step_class, data, *, cores=1, seed=3, **settings):
    """Return a private run's draws and what it released, as bytes; the noise is seeded."""
    with template():
        step = step_class(budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=seed, **settings)
        tree = pm.sample(draws=6, tune=0, chains=2, cores=cores, step=step, data=data, random_seed=5, **QUIET)
    assert tree["privacy"].attrs["n_units"] == N
    return tree["posterior"]["slopes"].values.tobytes(), tree["releases"].to_dataset().to_dict()


@pytest.mark.slow
@in_processes
@pytest.mark.parametrize(
    "step_class",
    [dp.DPSurrogateHMC, *(pytest.param(each, marks=pytest.mark.nightly) for each in (dp.DPHMC, dp.DPSGHMC))],
)
def test_runs_on_a_cluster_have_the_draws_of_those_in_memory(workers, frame, step_class):
    near = draws(step_class, table(frame))[0]
    assert draws(step_class, on_dask(frame, "frame"))[0] == near
    assert draws(step_class, table(frame), seed=4)[0] != near


@pytest.mark.slow
@in_processes
def test_chains_in_processes_of_their_own_connect_by_themselves(workers, frame):
    near = draws(dp.DPHMC, table(frame))[0]
    assert draws(dp.DPHMC, on_dask(frame, "frame"), cores=2)[0] == near


# Refused before the charge -------------------------------------------------------------------------------------------


def refused(data, error, match):
    """Assert that a run is refused, that nothing was charged, and return everything that was said."""
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with template(), pytest.raises(error, match=match) as refusal:
        pm.sample(budget=budget, data=data, progressbar=False)
    assert not budget.history
    assert refusal.value.__context__ is None or str(CANARY) not in str(refusal.value.__context__)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"u": lambda values: values.where(values.index != 3999, np.nan)}, "'u' has missing values"),
        ({"y": lambda values: values + 0.5}, "'y' is float64, where the model has int64"),
        ({"y": lambda values: values.astype(str)}, "'y'"),
        ({"y": lambda values: values.astype("category")}, "'y' is categorical"),
        ({"v": None}, "no column 'v'"),
    ],
)
def test_wrong_tables_are_refused_before_the_charge_without_a_value(workers, frame, change, match):
    wrong = frame.copy()
    wrong.loc[3998, "u"] = CANARY
    for name, made in change.items():
        wrong = wrong.drop(columns=name) if made is None else wrong.assign(**{name: made(wrong[name])})
    said = refused(table(dd.from_pandas(wrong, npartitions=4)), UnsupportedTable, match)
    assert "98765" not in said


def fail_with_a_value(piece):
    raise ValueError(f"row {piece['u'].to_numpy()[0]}")


def test_what_fails_elsewhere_comes_back_by_name_of_the_error_alone(workers, frame):
    broken = dd.from_pandas(frame.assign(u=CANARY), npartitions=2).map_partitions(fail_with_a_value, meta=frame.head(0))
    said = refused(table(broken), WorkersLost, "ValueError")
    assert "98765" not in said


def test_a_unit_in_two_blocks_is_refused(workers, frame, monkeypatch):
    """Hazard H42: it would be clipped twice."""
    real = DaskSource._grouped

    def without_moving(self, columns, threads):
        return real(self, Columns((*columns.of_inputs, (columns.unit,)), columns.inputs, None), threads)

    monkeypatch.setattr(DaskSource, "_grouped", without_moving)
    refused(on_dask(frame, "units"), UnsupportedTable, "Rows of one unit are in two blocks")


@pytest.mark.slow
@in_processes
def test_a_worker_that_computes_other_bits_is_refused(workers, frame, monkeypatch):
    monkeypatch.setattr(probe, "bits_of", lambda template: "0" * 32)  # in this process alone
    refused(on_dask(frame, "frame"), UnsupportedTable, "other bits than the client")


@pytest.mark.slow
@in_processes
def test_a_worker_with_other_versions_is_refused(workers, frame, monkeypatch):
    here = probe.versions()
    monkeypatch.setattr(probe, "versions", lambda: here | {"numba": "0.1"})
    said = refused(on_dask(frame, "frame"), UnsupportedTable, "other versions than the client")
    assert "numba" in said


def test_forked_chains_are_refused_where_a_client_has_threads(workers, frame):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with template(), pytest.raises(dp.UnsupportedOption, match="cannot be forked"):
        pm.sample(budget=budget, data=on_dask(frame, "frame"), mp_ctx="fork", **QUIET)
    assert not budget.history


def test_a_table_on_dask_needs_a_cluster(frame, monkeypatch):
    def no_client():
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "get_client", no_client)
    refused(table(dd.from_pandas(frame, npartitions=2)), UnsupportedTable, "start one with distributed.Client")


@pytest.mark.parametrize("way", ["data", "observed", "set_data"])
def test_arrays_on_dask_are_refused_in_a_model(frame, way):
    """PyMC would load them into one process."""
    lazy = dd.from_pandas(frame, npartitions=2)["u"].to_dask_array(lengths=True)
    with pm.Model() as model:
        pm.Data("old", np.zeros(3))
        ways = {
            "data": lambda: pm.Data("x", lazy),
            "observed": lambda: pm.Normal("x", observed=lazy),
            "set_data": lambda: model.set_data("old", lazy),
        }
        with pytest.raises(dp.UnsupportedModel, match=r"dp\.Table"):
            ways[way]()


# What can be seen ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_value_is_in_logs_keys_or_on_the_dashboard(frame, likelihood):
    """Hazards H6 and H42: rows are on workers; what Dask logs, names and shows of them holds no value.

    The cluster is the test's own: Dask logs the messages of users' functions that raise, as another test's does.
    """
    marked, seen = frame.assign(u=CANARY), ""
    with own_cluster(dashboard_address="127.0.0.1:0") as client:
        address = client.dashboard_link.rsplit("/", 1)[0]
        with on_dask(marked, "frame").opened(likelihood) as rows:
            sums(rows)
            for page in ("info/main/workers.html", "json/counts.json", "json/index.html"):
                seen += urllib.request.urlopen(f"{address}/{page}", timeout=30).read().decode()  # noqa: S310
            seen += repr(client.run_on_scheduler(keys_and_tasks))
        refused(table(dd.from_pandas(marked.assign(y=0.5), npartitions=3)), UnsupportedTable, "float64")
        everything = seen + repr(client.get_worker_logs()) + repr(client.get_scheduler_logs())
    assert "pymc_dp-block-" in everything
    assert "987654." not in everything


def keys_and_tasks(dask_scheduler):
    return [(str(key), repr(task)) for key, task in dask_scheduler.tasks.items()]


def test_rows_show_in_no_repr(frame, likelihood):
    block = RowTable((frame[["u", "v"]].to_numpy(), frame["y"].to_numpy()))
    assert repr(block) == "RowTable(confidential)"
    with table(frame).opened(likelihood) as rows:
        assert "confidential" in repr(rows)
        assert "confidential" in repr(table(frame))


# Failures ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "at", [pytest.param(0, marks=pytest.mark.nightly), 1, pytest.param(7, marks=pytest.mark.nightly)]
)
def test_a_worker_that_is_killed_at_any_pass_changes_no_bit(frame, at, monkeypatch):
    """At the very first pass, too, when actors are made."""
    near = draws(dp.DPHMC, table(frame))[0]
    asked, real = [], DaskPartitions.answers

    def killing(partitions, *arguments):
        if len(asked) == at:
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        asked.append(arguments)
        return real(partitions, *arguments)

    with own_cluster() as client:
        monkeypatch.setattr(DaskPartitions, "answers", killing)
        assert draws(dp.DPHMC, on_dask(frame, "frame"))[0] == near
        assert len(asked) > 10


@pytest.mark.slow
def test_a_run_whose_workers_are_all_gone_ends_within_the_deadline(frame):
    """The budget is charged; what was drawn until then comes back."""
    with own_cluster(processes=False) as client, template():
        budget = dp.PrivacyBudget(4.0, 1e-6)
        data = table(dd.from_pandas(frame, npartitions=2), deadline=3.0, client=client)
        step = dp.DPHMC(budget=budget)
        began = time.monotonic()

        def close_all(trace, draw):
            if draw.draw_idx == 1:
                client.cluster.scale(0)
                while client.nthreads():
                    time.sleep(0.05)

        with pytest.raises(dp.RunInterrupted, match="no worker for 3 seconds") as ended:
            pm.sample(draws=8, chains=1, cores=1, step=step, data=data, callback=close_all, **QUIET)
        assert time.monotonic() - began < 120.0
    assert len(budget.history) == 1
    assert ended.value.partial["posterior"].sizes["draw"] >= 2


def test_a_part_of_the_table_that_is_read_again_and_differs_ends_the_run(tmp_path, frame, likelihood):
    path = tmp_path / "table.parquet"
    frame.to_parquet(path)
    with own_cluster(processes=False, n_workers=1) as client:
        with table(dd.read_parquet(path), client=client).opened(likelihood) as rows:
            before = sums(rows)
            rows.refuse_changes()
            lose_blocks(client)
            assert sums(rows) == before  # read again, and the same
            frame.assign(u=frame["u"] + 1e-9).to_parquet(path)
            lose_blocks(client)
            with pytest.raises(TableChanged, match="read again"):
                rows.refuse_changes()
            with pytest.raises(TableChanged, match="read again"):
                sums(rows)


def lose_blocks(client):
    """Replace all workers: what they held is computed again from where it came from."""
    client.cluster.scale(0)
    while client.nthreads():
        time.sleep(0.05)
    client.cluster.scale(1)
    client.wait_for_workers(1)


class NeverAnswers:
    """In the place of an actor whose calls fail on their way: Dask never answers them."""

    def answer(self, *_):
        return self

    def result(self, timeout):
        time.sleep(timeout)
        raise TimeoutError


def test_actors_that_do_not_answer_are_replaced_by_tasks(workers, frame, likelihood, monkeypatch):
    monkeypatch.setattr(on_dask_module, "_PATIENCE", 1.5)
    with on_dask(frame, "frame").opened(likelihood) as rows:
        before = sums(rows)
        connection = rows._partitions._here
        assert len(connection._actors) == 2
        connection._actors[1] = NeverAnswers()
        assert sums(rows) == before
        assert not connection._uses_actors


def test_mutual_tls(frame, likelihood):
    """The client, its chains and the workers show certificates to each other."""
    security = distributed.Security.temporary()
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, security=security
        ) as cluster,
        distributed.Client(cluster, security=security) as client,
    ):
        assert client.scheduler_info()["address"].startswith("tls://")
        with (
            table(dd.from_pandas(frame, npartitions=2), client=client).opened(likelihood) as far,
            table(frame).opened(likelihood) as near,
        ):
            far._partitions._here = None  # as in the process of a chain
            assert sums(far) == sums(near)
            far._partitions._here.client.close()
