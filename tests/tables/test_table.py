"""Tables in memory and in files: the same bits as the model on the rows themselves, and what is refused."""

import gc
import os
import tracemalloc
import weakref

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pymc as pm
import pytest
import xarray as xr
from conftest import QUIET
from hypothesis import given, strategies as st

import pymc_dp as dp
from pymc_dp.exceptions import InvalidArgument, TableChanged, UnsupportedTable
from pymc_dp.model.view import read
from pymc_dp.rows.expansion import ExpansionPoint
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.tables import local
from pymc_dp.tables.columns import UnlistedColumns, grouped

N, DRAWS, GRID = 500, 2, 2.0**-24
THETA = np.array([0.2, 0.4, -0.3])


def model_of(x, y):
    with pm.Model() as model:
        intercept, slopes = pm.Normal("intercept"), pm.Normal("slopes", shape=2)
        pm.Bernoulli("y", logit_p=intercept + pm.Data("x", x) @ slopes, observed=y)
    return model


def invented(n=40):
    generator = np.random.default_rng(8)
    return generator.normal(size=(n, 2)), generator.integers(0, 2, size=n)


def frame_of(n=N):
    generator = np.random.default_rng(1)
    x = generator.normal(size=(n, 2))
    y = (generator.random(n) < 1.0 / (1.0 + np.exp(-0.3 - x @ [0.5, -0.4]))).astype(np.int64)
    return pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "y": y, "person": np.sort(generator.integers(0, 90, size=n))})


@pytest.fixture(scope="module")
def frame():
    return frame_of()


@pytest.fixture(scope="module")
def template():
    return UnitLikelihood(read(model_of(*invented())))


@pytest.fixture(scope="module")
def whole(frame):
    """The likelihood of the model on the rows themselves."""
    return UnitLikelihood(read(model_of(frame[["u", "v"]].to_numpy(), frame["y"].to_numpy())))


@pytest.fixture(scope="module")
def whole_units(frame):
    view = read(model_of(frame[["u", "v"]].to_numpy(), frame["y"].to_numpy()), unit_index=frame["person"].to_numpy())
    return UnitLikelihood(view)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 20 rows or so: many of them, and units that reach over their edges."""
    monkeypatch.setattr(local, "_NUMBERS_OF_BLOCK", 64)


def arrow_file(frame, path, batch=77):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


def dataset(frame):
    return xr.Dataset({"x": (("row", "feature"), frame[["u", "v"]].to_numpy()), "y": ("row", frame["y"].to_numpy())})


SOURCES = {
    "pandas": lambda frame, folder: frame,
    "polars": lambda frame, folder: pl.from_pandas(frame),
    "arrow": lambda frame, folder: pa.Table.from_pandas(frame),
    "mapping": lambda frame, folder: {name: frame[name].to_numpy() for name in frame},
    "dataset": lambda frame, folder: dataset(frame),
    "arrow file": lambda frame, folder: arrow_file(frame, folder / "table.arrow"),
    "parquet": lambda frame, folder: (
        frame.to_parquet(folder / "table.parquet", row_group_size=max(99, len(frame) // 20))
        or str(folder / "table.parquet")
    ),
    "folder": lambda frame, folder: (
        [frame[begin : begin + 170].to_parquet(folder / f"{begin:03}.parquet") for begin in range(0, N, 170)] and folder
    ),
}


def table(source, **options):
    if isinstance(source, xr.Dataset):
        return dp.Table(source, x="x", y="y", **options)
    return dp.Table(source, x=["u", "v"], y="y", **options)


def sums(rows, units=None):
    found = [
        rows.clipped_gradient(THETA, 0.4, GRID, units=units),
        rows.clipped_log_ratio(THETA, -THETA, 0.4, GRID, units=units),
        rows.sum_over_units(lambda chunk: np.sin(chunk.gradient(THETA)), 3, 0.5, GRID, units=units),
    ]
    return [(each.integers.tolist(), each.n_clipped) for each in found]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_has_the_bits_of_the_model_on_the_rows(kind, frame, template, whole, tmp_path):
    units = np.sort(np.random.default_rng(0).choice(N, 101, replace=False))
    given_table = table(SOURCES[kind](frame, tmp_path))
    assert given_table.count_units() == N
    with given_table.opened(template) as rows:
        assert (rows.n_units, rows.n_rows) == (N, N)
        assert sums(rows) == sums(whole)
        assert sums(rows, units) == sums(whole, units)
        if "file" in kind or kind in ("parquet", "folder"):
            assert len(rows._partitions.lengths) > 10


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", [kind for kind in SOURCES if kind != "dataset"])
def test_units_of_several_rows_are_whole_wherever_blocks_end(kind, frame, template, whole_units, tmp_path):
    given_table = table(SOURCES[kind](frame, tmp_path), unit="person")
    assert given_table.count_units() == frame["person"].nunique()
    with given_table.opened(template) as rows, table(frame, unit="person").opened(template) as near:
        assert rows.n_units == frame["person"].nunique()
        assert sums(rows) == sums(near)
        for found, expected in zip(
            sums(rows), sums(whole_units), strict=True
        ):  # the order within a unit is another one
            assert np.abs(np.subtract(found[0], expected[0])).max() <= N
            assert found[1] == expected[1]


@given(st.permutations(range(40)))
def test_the_order_of_rows_has_no_say_in_units_of_several_rows(order):
    generator = np.random.default_rng(2)
    x, units = generator.normal(size=(40, 2)), np.arange(40) // 6
    one, other = grouped((x,), units), grouped((x[order],), units[order])
    assert one.rows[0].tobytes() == other.rows[0].tobytes()
    assert one.starts.tolist() == other.starts.tolist() == [0, 6, 12, 18, 24, 30, 36, 40]


def test_texts_name_units(frame, template):
    named = frame.assign(person=[f"person {k:03}" for k in frame["person"]])
    with table(named, unit="person").opened(template) as rows, table(frame, unit="person").opened(template) as same:
        assert sums(rows) == sums(same)
    with pytest.raises(UnsupportedTable, match="whole numbers or texts"):
        table(frame.assign(person=0.5), unit="person").count_units()


def run(data, step_class=dp.DPHMC, relation="substitute", rows=40, **settings):
    with model_of(*invented(rows)):
        step = step_class(budget=dp.PrivacyBudget(4.0, 1e-6, relation), insecure_seed=2, **settings)
        return pm.sample(draws=DRAWS, chains=2, cores=1, step=step, data=data, random_seed=1, **QUIET)


@pytest.mark.parametrize(
    "step_class",
    [
        dp.DPHMC,
        pytest.param(dp.DPSurrogateHMC, marks=pytest.mark.slow),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in (dp.DPSGHMC, dp.DPMinibatchPenalty)),
    ],
)
def test_draws_are_those_of_the_model_on_the_rows(step_class, frame, tmp_path, monkeypatch):
    """With seeded noise: from the number of units on, nothing is the template's."""
    monkeypatch.setattr(local, "_NUMBERS_OF_BLOCK", 512)  # three blocks or four, each of which every release looks at
    x, y = frame[["u", "v"]].to_numpy(), frame["y"].to_numpy()
    with model_of(x, y):
        step = step_class(budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=2)
        expected = pm.sample(draws=DRAWS, chains=2, cores=1, step=step, random_seed=1, **QUIET)
    for source in (frame, arrow_file(frame, tmp_path / "table.arrow")):
        found = run(table(source), step_class)
        assert found["posterior"]["slopes"].values.tobytes() == expected["posterior"]["slopes"].values.tobytes()
        of_data = {"n_units", "epsilon", "sampler"}
        for name in of_data & set(expected["privacy"].attrs):
            assert found["privacy"].attrs[name] == expected["privacy"].attrs[name]
    assert found["privacy"].attrs["n_units"] == N
    assert "one row of the table" in found["privacy"].attrs["unit"]


@pytest.mark.few(1)
@pytest.mark.parametrize("step_class", [dp.DPHMC, dp.DPSurrogateHMC])
def test_runs_protect_units_of_several_rows(step_class, frame, monkeypatch):
    """What is compiled and tried before the charge is for such units, as is the run."""
    warmed = []
    real = UnitLikelihood.warm_up
    monkeypatch.setattr(UnitLikelihood, "warm_up", lambda self: warmed.append(self._table.starts) or real(self))
    tree = run(table(frame, unit="person"), step_class)
    assert warmed
    assert all(starts is not None for starts in warmed)
    assert tree["privacy"].attrs["n_units"] == frame["person"].nunique()
    assert "all rows with the same 'person'" in tree["privacy"].attrs["unit"]


#: All that is learnt otherwise, by many releases.
CHOSEN = {"clip_gradient": 1.0, "clip_log_ratio": 1.0, "step_size": 0.01, "n_leapfrog": 1}


def test_chains_in_processes_of_their_own(frame, tmp_path):
    data = table(arrow_file(frame, tmp_path / "table.arrow"))
    alone = run(data, **CHOSEN)["posterior"]["slopes"].values
    with model_of(*invented()):
        step = dp.DPHMC(budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=2, **CHOSEN)
        together = pm.sample(draws=DRAWS, chains=2, cores=2, step=step, data=data, random_seed=1, **QUIET)
    assert together["posterior"]["slopes"].values.tobytes() == alone.tobytes()


def test_plans_are_for_the_table_and_not_for_the_template(frame):
    budget = dp.PrivacyBudget(2.0, 1e-6)
    with model_of(frame[["u", "v"]].to_numpy(), frame["y"].to_numpy()):
        expected = budget.plan(dp.DPSGLD())
    with model_of(*invented()):
        plan = budget.plan(dp.DPSGLD(), data=table(frame))
        assert plan.noise_multipliers == expected.noise_multipliers
        assert budget.plan(dp.DPSGLD()).noise_multipliers != expected.noise_multipliers
        assert budget.plan(dp.DPSurrogateHMC(), data=table(frame)).worth.n_units == N


def test_the_number_of_rows_stays_protected_under_add_remove():
    tree = run(table(frame_of(10007)), relation="add-remove", **CHOSEN)
    assert "n_units" not in tree["privacy"].attrs
    assert "10007" not in str(tree["privacy"].attrs)


@pytest.mark.nightly  # else draws would not be those of the model on the rows
def test_the_template_is_not_in_the_result(frame):
    """Nor does any of its values have a say: another template gives the same draws."""
    first, second = run(table(frame)), run(table(frame), rows=31)
    assert first["posterior"]["slopes"].values.tobytes() == second["posterior"]["slopes"].values.tobytes()


# Refusals ------------------------------------------------------------------------------------------------------------


def refused(data, error, match, model=None):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with model or model_of(*invented()), pytest.raises(error, match=match) as refusal:
        pm.sample(budget=budget, data=data, **QUIET)
    assert not budget.history
    return str(refusal.value)


@pytest.mark.few(9)  # each change, and each kind of table
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"u": lambda values: values.where(values.index != 3, np.nan)}, "'u' has missing values"),
        ({"y": lambda values: values.astype("Int64").where(values.index != 3)}, "'y' has missing values"),
        ({"y": lambda values: values + 0.5}, "'y' is float64, where the model has int64"),
        ({"y": lambda values: [str(value) for value in values]}, "'y'"),
        ({"y": lambda values: values.astype("category")}, "'y' is categorical"),
        ({"v": None}, "no column 'v'"),
    ],
)
@pytest.mark.parametrize("kind", ["pandas", "polars", "parquet"])
def test_wrong_columns_are_refused_without_a_value(kind, change, match, frame, tmp_path):
    wrong = frame.assign(u=987654.25)
    for name, made in change.items():
        wrong = wrong.drop(columns=name) if made is None else wrong.assign(**{name: made(wrong[name])})
    if "categorical" in match and kind != "pandas":
        pytest.skip("categories that are numbers are read as those numbers")
    if kind != "pandas":
        match = match.split(" is ")[0].split(" has ")[0]
    said = refused(table(SOURCES[kind](wrong, tmp_path)), UnsupportedTable, match)
    assert "98765" not in said


def test_columns_that_are_not_named_or_not_there_are_refused(frame):
    """Hazard H22: a short table is refused where the number of rows is public, and nowhere else."""
    refused(dp.Table(frame, x=["u", "v"]), UnsupportedTable, "Which columns of the table are 'y'")
    refused(dp.Table(frame, x=["u", "v"], y="y", z="u"), UnsupportedTable, "no input z")
    refused(dp.Table(frame, xx=["u", "v"], y="y"), UnsupportedTable, "no input xx .* it has x, y")
    with pytest.raises(dp.InvalidArgument, match="columns= maps inputs"):
        dp.Table(frame, columns=["u", "v"])
    refused(dp.Table(frame, x=["u"] * 3, y="y"), UnsupportedTable, "3 columns were")
    for few in (0, 1):
        short = dp.Table(frame.iloc[:few], x=["u", "v"], y="y")
        refused(short, UnsupportedTable, "no rows or a single one")
        likelihood = UnitLikelihood(read(model_of(*invented())))
        with short.opened(likelihood, "add-remove") as rows:  # a refusal would tell the number of rows
            assert rows.n_units == few
    refused(dp.Table({**frame, "y": frame["y"][1:]}, x=["u", "v"], y="y"), UnsupportedTable, "different lengths")
    x, y = invented()
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=2)
        pm.Bernoulli("y", logit_p=pm.math.dot(x, slopes), observed=y)
    refused(table(frame), UnsupportedTable, "an array without a name", model)


def test_files_that_are_not_sorted_by_unit_are_refused(frame, tmp_path):
    """A unit with rows in two blocks would be clipped twice."""
    frame.sample(frac=1.0, random_state=0).to_parquet(tmp_path / "table.parquet")
    refused(table(tmp_path / "table.parquet", unit="person"), UnsupportedTable, "not sorted by 'person'")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("way", ["rewritten", "gone"])
def test_a_file_that_changes_is_refused(way, frame, template, tmp_path):
    path = arrow_file(frame, tmp_path / "table.arrow")
    with table(path).opened(template) as rows:
        sums(rows)
        if way == "gone":
            path.unlink()
        else:
            arrow_file(frame.assign(u=frame["u"] + 1.0), path)
            os.utime(path, ns=(1, 1))
        with pytest.raises(TableChanged):
            sums(rows)
        with pytest.raises(TableChanged):
            rows.refuse_changes()


def test_a_change_between_opening_and_charge_is_refused_before_the_charge(frame, tmp_path, monkeypatch):
    path = arrow_file(frame, tmp_path / "table.arrow")
    monkeypatch.setattr("pymc_dp.run.sampling.log_chosen_length", lambda *_: os.utime(path, ns=(1, 1)))
    refused(table(path), TableChanged, "changed or replaced")


@pytest.mark.parametrize(
    ("source", "match"),
    [(3, "cannot be read from a int"), ("nowhere.parquet", "no file"), (pl.LazyFrame({"u": [1.0]}), "collect")],
)
def test_sources_that_nothing_reads_are_refused(source, match):
    with pytest.raises(UnsupportedTable, match=match):
        table(source)


def test_files_that_would_count_rows_twice_are_refused(frame, tmp_path):
    """One folder with the same rows in two formats, and a file under two names."""
    frame.to_parquet(tmp_path / "table.parquet")
    (tmp_path / "link.parquet").symlink_to(tmp_path / "table.parquet")
    for source in (tmp_path, [tmp_path / "table.parquet"] * 2):
        with pytest.raises(UnsupportedTable, match="named twice"):
            table(source)
    (tmp_path / "link.parquet").unlink()
    arrow_file(frame, tmp_path / "table.arrow")
    with pytest.raises(UnsupportedTable, match="the same rows twice"):
        table(tmp_path)


def test_masked_entries_are_missing(frame):
    masked = np.ma.array(frame["u"].to_numpy(), mask=np.arange(N) == 3)
    columns = {name: frame[name].to_numpy() for name in frame} | {"u": masked}
    refused(table(columns), UnsupportedTable, "'u' has missing values")


def test_a_file_that_changes_while_it_is_read_is_refused(frame, template, tmp_path, monkeypatch):
    path = arrow_file(frame, tmp_path / "table.arrow")
    with table(path).opened(template) as rows:
        real = local._pieces

        def changing(paths, columns):
            for place, piece in enumerate(real(paths, columns)):
                if place == 0:
                    os.utime(path, ns=(1, 1))
                yield piece

        monkeypatch.setattr(local, "_pieces", changing)
        with pytest.raises(TableChanged):  # in the pass itself, not in the next one
            rows.clipped_gradient(THETA, 0.4, GRID)


def test_other_kinds_of_files_are_refused(tmp_path):
    (tmp_path / "table.csv").write_text("u,v,y\n1,2,0\n")
    with pytest.raises(UnsupportedTable, match=r"neither a Parquet file.*Table\.from_csv"):
        table(tmp_path / "table.csv")


def test_bad_arguments_are_refused(frame):
    with pytest.raises(InvalidArgument, match="deadline"):
        table(frame, deadline=0.0)
    with pytest.raises(InvalidArgument, match="unit"):
        table(frame, unit=3)
    with pytest.raises(InvalidArgument, match="say which columns"):
        dp.Table(frame)
    with pytest.raises(InvalidArgument, match=r"x= .* must be"):
        dp.Table(frame, x=3)
    with pytest.raises(dp.UnsupportedOption, match="no budget"), model_of(*invented()):
        pm.sample(data=table(frame))
    refused(frame, InvalidArgument, "must be a pymc_dp.Table")
    with model_of(*invented()):
        step = dp.DPHMC(budget=dp.PrivacyBudget(1.0, 1e-6), unit_index=np.arange(40))
        with pytest.raises(dp.UnsupportedOption, match="Table"):
            pm.sample(step=step, data=table(frame), **QUIET)


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.production
@pytest.mark.parametrize("kind", ["arrow file", "parquet"])
def test_memory_does_not_grow_with_the_table(kind, template, tmp_path):
    """A pass over a table of 48 megabytes holds less than 20 of arrays."""
    long = frame_of(1_500_000)
    if kind == "parquet":
        path = SOURCES[kind](long, tmp_path)
    else:
        path = arrow_file(long, tmp_path / "table.arrow", batch=100_000)
    with table(path).opened(template) as rows:
        rows.clipped_gradient(THETA, 0.4, GRID)
        tracemalloc.start()
        rows.clipped_gradient(THETA, 0.4, GRID)
        rows.clipped_log_ratio(THETA, -THETA, 0.4, GRID)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20e6


def test_no_block_of_a_file_is_held_once_it_has_answered(frame, template, tmp_path, small_blocks, monkeypatch):
    """Not until the collector of circles comes, either: an expansion and its rows refer to each other."""
    made, real = [], UnitLikelihood.on_rows

    def noted(self, *rows, **options):
        part = real(self, *rows, **options)
        made.append(weakref.ref(part))
        return part

    monkeypatch.setattr(UnitLikelihood, "on_rows", noted)
    gc.disable()
    try:
        with table(arrow_file(frame, tmp_path / "table.arrow")).opened(template) as rows:
            rows.expansion(ExpansionPoint(THETA, np.eye(3), 0.5)).clipping_loss(GRID, 0.5)
            assert len(made) > 5
            assert not any(each() for each in made[:-1])
    finally:
        gc.enable()


@pytest.mark.parametrize("unit", [None, "person"])
def test_some_units_of_files_are_those_of_memory(tmp_path, monkeypatch, unit):
    """Wherever files are cut: units are counted on over their pieces."""
    monkeypatch.setattr(local, "_NUMBERS_OF_BLOCK", 40)
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"x": np.arange(200.0), "person": np.sort(generator.integers(0, 60, 200))})
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=70)
    kept = generator.random(200 if unit is None else frame["person"].nunique()) < 0.4
    columns = UnlistedColumns((), (), unit, unlisted=("x",))
    found = []
    for source in (frame, tmp_path / "rows.parquet"):
        part = dp.Table(source, columns={"x": "x"}, unit=unit).part_of(kept, "substitute")
        found.append(np.concatenate([piece["x"] for piece in part._source.pieces(columns)]))
        assert part.count_units() == kept.sum()
    known = frame["x"][kept] if unit is None else frame["x"][frame["person"].isin(np.unique(frame["person"])[kept])]
    assert list(found[0]) == list(found[1]) == [str(int(x)) for x in known]


def test_parts_of_a_file_that_changed_since_they_were_made_are_refused(tmp_path):
    """Hazard H53: rows in another order would be in two parts, or in none."""
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"x": np.arange(200.0)}).to_parquet(path)
    fixed, kept = dp.Table(path, columns={"x": "x"}).fixed(), np.arange(200) < 100
    columns = UnlistedColumns((), (), None, unlisted=("x",))
    parts = [fixed.part_of(each, "substitute")._source for each in (kept, ~kept)]
    assert sum(len(piece["x"]) for piece in parts[0].pieces(columns)) == 100
    pd.DataFrame({"x": np.arange(200.0)[::-1]}).to_parquet(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(TableChanged):
        list(parts[1].pieces(columns))
