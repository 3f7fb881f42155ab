"""Every value that is noised is replayed on neighbours where the rows are on workers of a cluster, and in blocks."""

import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from neighbours import Neighbour, neighbours_of
from replay import replay
from zoo import BY_NAME, PERSONS, REGRESSION, ZOO

import pymc_dp as dp
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.tables import workers

pytestmark = pytest.mark.production


@pytest.fixture(scope="module")
def client():
    """Workers of this process: they see what a test breaks on purpose."""
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def on_workers(unit):
    """Return a function from a table, as arrays, to one on Dask."""

    def beside(table):
        columns, named = {}, {}
        for name, values in table.items():
            if values.ndim == 1:
                columns[name] = values
                named[name] = name
            else:
                named[name] = [f"{name}{k}" for k in range(values.shape[1])]
                columns |= dict(zip(named[name], values.T, strict=True))
        named.pop(unit, None)
        frame = dd.from_pandas(pd.DataFrame(columns), npartitions=5)
        return dp.Table(frame, unit=unit, columns=named)

    return beside


def replayed(case, sampler, relation, count=3, *, far_out=False, **settings):
    rng = np.random.default_rng(1)
    table = case.table(rng)
    invented = {name: values[:50] for name, values in case.table(np.random.default_rng(77)).items()}
    # Missing entries are refused before the charge: which ones are missing counts as public.
    whole = [each for each in neighbours_of(table, relation, rng, 4 * count, case.unit) if not has_missing(each.table)]
    neighbours = whole[:count]
    if far_out:  # as far apart as rows can be
        table["y"][0] = -1e9
        other = {name: values.copy() for name, values in table.items()}
        other["y"][0] = 1e9
        neighbours = [Neighbour(other, "replaced", 0)]
    return replay(
        lambda _: case.build(invented),
        table,
        neighbours,
        BY_NAME[sampler],
        epsilon=50.0,
        relation=relation,
        unit_index=case.unit,
        beside=on_workers(case.unit),
        **settings,
    )


def has_missing(table):
    return any(np.isnan(values).any() for values in table.values() if values.dtype.kind == "f")


def clean(report):
    assert not report.refused
    assert report.violations == []
    assert report.moved  # else nothing was compared
    return True


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("case", "sampler", "relation"),
    [
        (REGRESSION, "hmc", "substitute"),
        pytest.param(REGRESSION, "hmc", "add-remove", marks=pytest.mark.slow),
        pytest.param(REGRESSION, "surrogate", "substitute", marks=pytest.mark.slow),
        pytest.param(REGRESSION, "sgld", "substitute", marks=pytest.mark.slow),
        pytest.param(REGRESSION, "barker", "substitute", marks=pytest.mark.slow),
        pytest.param(PERSONS, "hmc", "substitute", marks=pytest.mark.slow),
        pytest.param(PERSONS, "hmc", "add-remove", marks=pytest.mark.slow),
        pytest.param(ZOO[0], "surrogate", "substitute", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_rows_on_workers(case, sampler, relation):
    """Hazards H13, H23, H34 and H42: the same comparison as for rows of this process."""
    assert clean(replayed(case, sampler, relation))


@pytest.mark.slow
@pytest.mark.usefixtures("client")
def test_the_replay_sees_a_unit_that_is_clipped_twice(monkeypatch):
    """A unit in two blocks would move sums by twice the sensitivity."""

    def no_unit_is_checked(name, units, n_blocks):
        return np.arange(len(units)) % n_blocks  # by place, not by unit

    monkeypatch.setattr(workers, "block_numbers", no_unit_is_checked)
    monkeypatch.setattr(workers, "_refuse_split_units", lambda *_: None)
    report = replayed(PERSONS, "hmc", "substitute")
    assert report.violations


@pytest.mark.slow
@pytest.mark.usefixtures("client")
def test_the_replay_sees_workers_that_do_not_clip(monkeypatch):
    real = UnitLikelihood.clipped_gradient

    def loose(rows, theta, bound, grid, **options):
        found = real(rows, theta, 4.0 * bound, grid, **options)
        return type(found)(found.integers, grid, bound, found.n_clipped)

    assert clean(replayed(REGRESSION, "hmc", "substitute", far_out=True))
    monkeypatch.setattr(UnitLikelihood, "clipped_gradient", loose)
    assert replayed(REGRESSION, "hmc", "substitute", far_out=True).violations
