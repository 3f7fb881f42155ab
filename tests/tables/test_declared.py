"""Declared tables: the same bits from every source as by hand, templates, readers, and runs that need nothing else."""

import json
import sqlite3

import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pymc as pm
import pytest
import sqlalchemy
import xarray as xr
from conftest import QUIET
from declared import FEATURES, SCHEMA, WITH_PERSON, N, by_hand, frame_of, model_on

import pymc_dp as dp
from pymc_dp.exceptions import InvalidArgument, TableChanged, UnsupportedTable
from pymc_dp.model.view import read
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.surveys.asking import view_of
from pymc_dp.tables import local
from pymc_dp.tables.local import InMemory, OutOfCore

GRID = 2.0**-24
THETA = np.linspace(-0.6, 0.7, 9)


def csv(frame, path, **options):
    frame.to_csv(path, index=False, **options)
    return path


def arrow(frame):
    return pa.Table.from_pandas(frame, preserve_index=False)


def parquet(frame, folder):
    frame.to_parquet(folder / "table.parquet", row_group_size=130)
    return folder / "table.parquet"


def database(frame):
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    frame.to_sql("people", connection, index=False)
    return connection


def engine(frame):
    made = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.StaticPool)
    frame.to_sql("people", made, index=False)
    return made


def dataset(frame):
    return xr.Dataset({name: ("row", frame[name].to_numpy()) for name in frame})


def from_duckdb(frame, schema):
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("people", frame)
    return dp.Table.from_sql("select * from people", connection, schema)


def as_categories(frame):
    return frame.astype({"ward": "category", "emergency": "category", "stays": "category"})


SOURCES = {
    "csv": lambda frame, folder, schema: dp.Table.from_csv(csv(frame, folder / "table.csv"), schema),
    "csv of another kind": lambda frame, folder, schema: dp.Table.from_csv(
        csv(frame, folder / "t.txt", sep=";", encoding="utf-16", quoting=1, na_rep="NA", lineterminator="\r\n"),
        schema,
        separator=";",
        encoding="utf-16",
    ),
    "pandas": lambda frame, folder, schema: dp.Table.from_frame(frame, schema),
    "objects": lambda frame, folder, schema: dp.Table.from_frame(frame.astype(object), schema),
    "categories": lambda frame, folder, schema: dp.Table.from_frame(as_categories(frame), schema),
    "nullable": lambda frame, folder, schema: dp.Table.from_frame(frame.convert_dtypes(), schema),
    "polars": lambda frame, folder, schema: dp.Table.from_frame(pl.from_pandas(frame), schema),
    "arrow": lambda frame, folder, schema: dp.Table.from_frame(arrow(frame), schema),
    "mapping": lambda frame, folder, schema: dp.Table.from_frame(
        {name: frame[name].to_numpy() for name in frame}, schema
    ),
    "parquet": lambda frame, folder, schema: dp.Table.from_parquet(parquet(frame, folder), schema),
    "dataset": lambda frame, folder, schema: dp.Table.from_xarray(dataset(frame), schema),
    "sqlite": lambda frame, folder, schema: dp.Table.from_sql("select * from people", database(frame), schema),
    "sqlalchemy": lambda frame, folder, schema: dp.Table.from_sql("select * from people", engine(frame), schema),
    "sqlalchemy connection": lambda frame, folder, schema: dp.Table.from_sql(
        "select * from people", engine(frame).connect(), schema
    ),
    "duckdb": lambda frame, folder, schema: from_duckdb(frame, schema),
}


@pytest.fixture(scope="module")
def frame():
    return frame_of()


@pytest.fixture(scope="module")
def template():
    """The likelihood of the model on the template, which is the same for all sources."""
    return UnitLikelihood(read(model_on(dp.Table({"age": []}, schema=SCHEMA).template)))


@pytest.fixture(scope="module")
def sums_by_hand(frame):
    return sums(UnitLikelihood(read(model_by_hand(*by_hand(frame)))))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(local, "_NUMBERS_OF_BLOCK", 256)


def sums(rows, units=None):
    found = [
        rows.clipped_gradient(THETA, 0.4, GRID, units=units),
        rows.clipped_log_ratio(THETA, -THETA, 0.4, GRID, units=units),
        rows.sum_over_units(lambda chunk: np.sin(chunk.gradient(THETA)), 9, 0.5, GRID, units=units),
    ]
    return [(each.integers.tolist(), each.n_clipped) for each in found]


def model_by_hand(x, emergency, back):
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=x.shape[1])
        urgent = pm.Normal("urgent") * emergency
        pm.Bernoulli("back", logit_p=pm.Normal("intercept") + pm.Data("x", x) @ slopes + urgent, observed=back)
    return model


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("kind", "fits"), [*((kind, True) for kind in SOURCES), ("parquet", False)])
def test_every_source_has_the_bits_of_columns_made_by_hand(
    kind, fits, frame, template, sums_by_hand, tmp_path, monkeypatch
):
    monkeypatch.setattr("pymc_dp.tables.local.memory_of_this_machine", lambda: 2**30 if fits else 2**12)
    table = SOURCES[kind](frame, tmp_path, SCHEMA)
    assert table.count_units() == N
    with table.opened(template) as rows:
        assert (rows.n_units, rows.n_rows) == (N, N)
        assert sums(rows) == sums_by_hand
        if kind == "parquet":
            assert len(rows._partitions.lengths) > 2
            assert isinstance(rows._partitions, InMemory if fits else OutOfCore)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", [kind for kind in SOURCES if kind not in ("objects", "categories")])
def test_persons_are_units_in_every_source(kind, frame, template, tmp_path):
    near = dp.Table.from_frame(frame, WITH_PERSON)
    table = SOURCES[kind](frame, tmp_path, WITH_PERSON)
    assert table.count_units() == near.count_units() == frame["person"].nunique()
    with table.opened(template) as rows, near.opened(template) as same:
        assert (rows.n_units, rows.n_rows) == (frame["person"].nunique(), N)
        assert sums(rows) == sums(same)
        assert rows.unit_in_words == "all rows with the same 'person'"


def test_workers_of_a_cluster_read_declared_columns(frame, template):
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        for schema in (SCHEMA, WITH_PERSON):
            far = dp.Table.from_dask(dd.from_pandas(frame, npartitions=5), schema)
            near = dp.Table.from_frame(frame, schema)
            with far.opened(template) as rows, near.opened(template) as same:
                assert rows.n_units == same.n_units
                assert sums(rows) == sums(same)
        wrong = dp.Table.from_dask(dd.from_pandas(frame.drop(columns="stays"), npartitions=5), SCHEMA)
        with pytest.raises(UnsupportedTable, match="no column 'stays'"), wrong.opened(template):
            pass
        chunked = dataset(frame[["age", "stays", "back"]]).chunk({"row": 90})
        schema = [SCHEMA[0], SCHEMA[1], SCHEMA[5]]
        far, near = (dp.Table.from_xarray(each, schema) for each in (chunked, chunked.compute()))
        t = far.template
        with pm.Model() as model:
            x = pm.Data("x", t.matrix("age", "stays"))
            pm.Bernoulli("back", logit_p=x @ pm.Normal("b", shape=2), observed=t.back)
        likelihood = UnitLikelihood(read(model))
        with far.opened(likelihood) as rows, near.opened(likelihood) as same:
            asked = (THETA[:2], 0.4, GRID)
            assert np.array_equal(rows.clipped_gradient(*asked).integers, same.clipped_gradient(*asked).integers)


# Runs ----------------------------------------------------------------------------------------------------------------


def run(table, t=None, **settings):
    with model_on(table.template if t is None else t):
        step = dp.DPHMC(budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=2, **settings)
        return pm.sample(draws=2, chains=2, cores=1, step=step, data=table, random_seed=1, **QUIET)


def test_a_run_needs_nothing_but_the_table(frame):
    """With seeded noise: its draws are those of the model on columns made by hand, and of any invented rows."""
    table = dp.Table.from_frame(frame, SCHEMA)
    found = run(table)
    with model_by_hand(*by_hand(frame)):
        step = dp.DPHMC(budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=2)
        expected = pm.sample(draws=2, chains=2, cores=1, step=step, random_seed=1, **QUIET)
    for name in ("slopes", "urgent", "intercept"):
        assert found["posterior"][name].values.tobytes() == expected["posterior"][name].values.tobytes()
    other = run(table, table.invented(300, seed=5))
    assert other["posterior"]["slopes"].values.tobytes() == found["posterior"]["slopes"].values.tobytes()
    assert dp.Schema.from_json(found["privacy"].attrs["schema"]) == table.schema
    assert found["privacy"].attrs["n_units"] == N
    assert "schema" not in expected["privacy"].attrs


def test_a_model_on_a_template_without_its_table_is_refused():
    budget, table = dp.PrivacyBudget(4.0, 1e-6), dp.Table({"age": []}, schema=SCHEMA)
    with model_on(table.template) as model:
        for function in (pm.sample, dp.private_likelihood):
            with pytest.raises(dp.UnsupportedOption, match="Pass data=table"):
                function(budget=budget, progressbar=False)
    with pytest.raises(dp.UnsupportedOption, match="Pass data=table"):
        view_of(model, None, None, None)
    assert budget.epsilon_spent == 0.0


def test_a_person_may_be_named_twice():
    table = dp.Table({}, schema=WITH_PERSON)
    model = model_on(table.template)
    assert view_of(model, "person", None, table).row_split.n_rows == table.template.n
    with pytest.raises(dp.UnsupportedModel, match="names no dim"):
        view_of(model, "ward", None, table)


class Copies(dp.Template):
    """A template whose arrays are copies, as those of a data frame are."""

    def __getattr__(self, name):
        return super().__getattr__(name).copy()


@pytest.mark.parametrize(("relation", "warned"), [("substitute", True), ("add-remove", False)])
def test_a_model_on_copies_of_a_template_is_warned_about(relation, warned, recwarn):
    """Not where the number of rows of a model is protected."""
    table = dp.Table({"age": []}, schema=SCHEMA)
    with model_on(Copies(table.schema, table.template.n, 0)):
        chosen = {"clip_gradient": 1.0, "clip_log_ratio": 1.0, "step_size": 0.01, "n_leapfrog": 1}
        step = dp.DPHMC(budget=dp.PrivacyBudget(4.0, 1e-6, relation=relation), insecure_seed=2, **chosen)
        pm.sample(draws=2, chains=2, cores=1, step=step, random_seed=1, **QUIET)
    assert any("Pass data=table" in str(each.message) for each in recwarn) is warned


def test_a_private_likelihood_takes_the_table(frame):
    table = dp.Table.from_frame(frame, SCHEMA)
    with model_on(table.template):
        found = dp.private_likelihood(budget=dp.PrivacyBudget(50.0, 1e-6), data=table, random_seed=1)
    assert json.loads(found.facts["schema"])[0]["name"] == "age"


@pytest.mark.nightly
def test_a_dry_run_takes_the_table(frame, recwarn):
    table = dp.Table.from_frame(frame, SCHEMA)
    invented = model_on(table.invented(N, seed=4))
    with model_on(table.template):
        forecast = dp.dry_run(dp.PrivacyBudget(4.0, 1e-6), data=table, synthetic=invented, draws=5, chains=2)
    assert forecast.n_units == N
    assert not [each for each in recwarn if "data=" in str(each.message)]


@pytest.mark.parametrize("seed", range(3))
def test_a_template_is_drawn_from_the_declaration_alone(seed):
    table = dp.Table({}, schema=SCHEMA)
    t = table.invented(150, seed)
    assert t is table.invented(150, seed)
    assert np.array_equal(t.age, dp.Table({}, schema=SCHEMA).invented(150, seed).age)
    for name in ("age", "stays", "arrived"):
        assert -1 <= t[name].min() < -0.9
        assert 0.9 < t[name].max() <= 1
    assert set(t.ward) == {0, 1, 2, 3}
    assert 2 < t.age_missing.sum() < 40
    assert np.array_equal(t.indicators("ward").argmax(axis=1), t.ward)
    assert t.features("age", "ward") == ["age", "ward[B]", "ward[C]", "ward[other]"]
    assert np.array_equal(t.matrix("age", "ward")[:, 1:], t.indicators("ward")[:, 1:])
    assert t.features("ward[A]", "age_missing") == ["ward[A]", "age_missing"]
    assert t.coords == {"row": range(150), "ward": ("A", "B", "C", "other")}
    assert t.frame["ward"].cat.categories.tolist() == ["A", "B", "C", "other"]
    assert t.frame["ward"].cat.ordered  # or Bambi sorts levels, and group effects are no column of the table
    assert "age_missing" in dir(t)
    assert "150 invented rows" in repr(t)
    with pytest.raises(ValueError, match="read-only"):
        t.age[0] = 3.0
    for wrong in (lambda: t["agee"], lambda: t.matrix("agee"), lambda: t.indicators("age")):
        with pytest.raises(InvalidArgument, match="'age"):
            wrong()
    with pytest.raises(AttributeError, match="no column 'agee'"):
        _ = t.agee


def built(t, values, observed):
    """Return the likelihood of a model with one covariate."""
    with pm.Model() as model:
        pm.Bernoulli("back", logit_p=pm.Normal("b") * pm.Data("x", values), observed=observed)
    return UnitLikelihood(read(model))


TYPES = {
    "as it is": lambda t: t.age,
    "whole numbers": lambda t: t.emergency.astype(np.int8),
    "truth values": lambda t: t.emergency.astype(bool),
    "codes": lambda t: t.ward.astype(np.float64),
    "with an intercept": lambda t: np.column_stack([np.ones(t.n), t.age]),
    "with products": lambda t: np.column_stack([t.age**2, t.emergency * t.age]),
    "symbolic": lambda t: pm.math.log(2.0 + t.age).eval() * 0 + t.age,
}


@pytest.mark.parametrize("kind", TYPES)
def test_columns_are_recognised_in_any_type_that_holds_them(kind, frame):
    table = dp.Table.from_frame(frame, SCHEMA)
    t = table.template
    with pm.Model() as model:
        x = pm.Data("x", TYPES[kind](t))
        eta = x @ pm.Normal("b", shape=2) if kind.startswith("with") else x * pm.Normal("b")
        pm.Bernoulli("back", logit_p=eta, observed=t.back)
    with table.opened(UnitLikelihood(read(model))) as rows:
        (part,) = rows._partitions._parts
        x, back = part.rows_of_inputs if part.inputs[0].names[0] == "x" else part.rows_of_inputs[::-1]
        of_rows, emergency, expected_back = by_hand(frame)
        expected = {"whole": emergency, "truth": emergency, "codes": None, "with": None}
        expected = expected.get(kind.split()[0], of_rows[:, 0])
        if kind == "with an intercept":
            assert np.array_equal(x, np.column_stack([np.ones(N), of_rows[:, 0]]))
        elif kind == "with products":
            assert np.array_equal(x, np.column_stack([of_rows[:, 0] ** 2, of_rows[:, 0] * emergency]))
        elif kind != "codes":
            assert np.array_equal(x, expected.astype(x.dtype))
        assert np.array_equal(back, expected_back)


@pytest.mark.parametrize(
    "values",
    [
        lambda t: np.log(2.0 + t.age),
        lambda t: 1 - t.emergency,
        lambda t: t.age[::-1],
        lambda t: np.random.default_rng(0).normal(size=t.n),
        lambda t: t.age - t.age.mean(),
        lambda t: np.column_stack([t.age, t.age**3]),
        lambda t: t.arrived * t.age * t.stays,
        lambda t: dp.Table({}, schema=SCHEMA).invented(t.n, seed=99).age,
    ],
)
def test_a_model_on_anything_else_is_refused(values, frame):
    """Such as the protected columns themselves, or functions of columns, which the table would not follow."""
    table = dp.Table.from_frame(frame, SCHEMA)
    t = table.template
    with pm.Model() as model:
        x = pm.Data("x", values(t))
        eta = x @ pm.Normal("b", shape=2) if x.type.ndim == 2 else x * pm.Normal("b")
        pm.Bernoulli("back", logit_p=eta, observed=t.back)
    refused = pytest.raises(UnsupportedTable, match=r"'x' of the model is no column of table\.template")
    with refused, table.opened(UnitLikelihood(read(model))):
        pass


def test_levels_are_recognised_however_many_there_are():
    """Two that no invented row has would be the same column."""
    table = dp.Table({"g": ["7", "59", "x"], "back": [0, 1, 1]}, schema=[dp.Category("g", range(60)), dp.YesNo("back")])
    t = table.template
    assert t.n == 20 * 61
    with pytest.raises(InvalidArgument, match="n must be at least 1220"):
        table.invented(1000, 0)
    with pm.Model() as model:
        x = pm.Data("x", t.matrix("g"))
        pm.Bernoulli("back", logit_p=x @ pm.Normal("b", shape=60), observed=t.back)
    with table.opened(UnitLikelihood(read(model))) as rows:
        (x,) = (each for each in rows._partitions._parts[0].rows_of_inputs if each.ndim == 2)
        assert [np.flatnonzero(each).tolist() for each in x] == [[6], [58], [59]]


@pytest.mark.parametrize("values", [lambda t: np.zeros(t.n), lambda t: t["ward[A]"] * t["ward[B]"]])
def test_a_column_that_is_zero_in_all_invented_rows_is_refused(values, frame):
    """A product of two rare levels could be, and not in the table."""
    table = dp.Table.from_frame(frame, SCHEMA)
    t = table.template
    likelihood = built(t, values(t), t.back)
    with pytest.raises(UnsupportedTable, match="no column"), table.opened(likelihood):
        pass


def test_counts_that_are_not_declared_raw_are_refused(frame):
    """PyMC would count the scaled numbers."""
    table = dp.Table.from_frame(frame, SCHEMA)
    with pm.Model() as model:
        pm.Poisson("stays", pm.math.exp(pm.Normal("a")), observed=np.abs(table.template.stays).round().astype(int))
    with pytest.raises(UnsupportedTable, match="raw=True"), table.opened(UnitLikelihood(read(model))):
        pass


def test_a_range_has_to_fit_the_models_type():
    table = dp.Table({}, schema=[dp.Whole("k", 0, 2**40, raw=True), dp.YesNo("back")])
    t = table.template
    small = t.k.astype(np.int32)
    with pytest.raises(UnsupportedTable, match="no column"), table.opened(built(t, small, t.back)):
        pass


@pytest.mark.parametrize("kind", ["binomial", "custom"])
def test_rows_with_a_missing_outcome_may_count_as_nothing(kind, frame):
    """By a number of trials, or a likelihood that the model's author weighs, of the indicator column."""
    schema = [dp.Number("age", 18, 90), dp.YesNo("back")]
    missing = frame.assign(back=frame["back"].astype(object).where(np.arange(N) % 3 > 0))
    table = dp.Table.from_frame(missing, schema)
    t = table.template

    def known(value, p, is_missing):
        return pm.math.switch(pm.math.eq(is_missing, 1), 0.0, pm.logp(pm.Bernoulli.dist(logit_p=p), value))

    with pm.Model() as model:
        eta = pm.Normal("a") + pm.Normal("b") * t.age
        if kind == "binomial":
            pm.Binomial("back", n=1 - pm.Data("missing", t.back_missing), logit_p=eta, observed=t.back)
        else:
            pm.CustomDist("back", eta, t.back_missing, logp=known, observed=t.back)
    with table.opened(UnitLikelihood(read(model))) as rows:
        every, none = (
            rows.clipped_log_ratio(np.zeros(2), np.ones(2), 9.0, GRID, units=np.arange(k, N, 3)) for k in (1, 0)
        )
    assert every.integers.any()
    assert not none.integers.any()


# Arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda: dp.Table({"a": []}), "Declare the columns"),
        (lambda: dp.Table({"a": []}, schema=[dp.YesNo("a")], unit="p"), "declared by dp.Person.*leave out unit"),
        (lambda: dp.Table({"a": []}, schema=[dp.YesNo("a")], x="a"), "leave out x"),
        (lambda: dp.Table({"a": []}, schema=[dp.YesNo("a")], columns={"x": "a"}), "leave out columns"),
        (lambda: dp.Table({"a": []}, x="a").template, "invented by a schema"),
        (lambda: dp.Table({"a": []}, schema=[dp.YesNo("a")]).invented(10, 0), "at least 100"),
        (lambda: dp.Table({"a": []}, schema=[dp.YesNo("a")]).invented(100, -1), "seed must be at least 0"),
        (lambda: dp.Table.from_csv(3, SCHEMA), "takes the path"),
        (lambda: dp.Table.from_csv("t.csv", SCHEMA, separator=", "), "single character"),
        (lambda: dp.Table.from_csv("t.csv", SCHEMA, encoding="utf-99"), "that Python knows"),
        (lambda: dp.Table.from_parquet(3, SCHEMA), "takes the path"),
        (lambda: dp.Table.from_xarray({}, SCHEMA), "takes an xarray Dataset"),
        (lambda: dp.Table.from_dask(pd.DataFrame(), SCHEMA), "takes a data frame of Dask"),
        (lambda: dp.Table.from_sql(3, sqlite3.connect(":memory:"), SCHEMA), "a text in SQL"),
        (lambda: dp.Table.from_sql("select 1", 3, SCHEMA), "no connection"),
    ],
)
def test_wrong_arguments_are_refused(made, match):
    with pytest.raises(InvalidArgument, match=match):
        made()


def test_a_table_tells_its_schema_and_no_row(frame):
    text = repr(dp.Table.from_frame(frame, SCHEMA))
    assert "confidential" in text
    assert "18 to 90" in text
    assert not any(f"{value:.4g}" in text for value in frame["age"].dropna())


@pytest.mark.parametrize("entry", ["", "1", "1" * 200_000])
def test_an_entry_of_a_csv_file_changes_no_number_of_rows(entry, tmp_path):
    """Hazard H22: where there is one column, a missing entry is an empty line; and none is too long."""
    path = tmp_path / "table.csv"
    path.write_text(f"y\n1\n{entry}\n0\n")
    assert dp.Table.from_csv(path, [dp.YesNo("y")]).count_units() == 3


def test_a_csv_file_that_changes_while_it_is_read_is_refused(frame, template, tmp_path, monkeypatch):
    path = csv(frame, tmp_path / "table.csv")
    table = dp.Table.from_csv(path, SCHEMA)
    states = iter([(1, 1), (1, 2)])
    monkeypatch.setattr("pymc_dp.tables.readers.CsvFile._state", lambda _: next(states))
    with pytest.raises(TableChanged, match="changed while it was read"), table.opened(template):
        pass


@pytest.mark.parametrize("name", FEATURES)
def test_a_column_that_is_declared_and_not_there_is_named(name, frame, template):
    name = name.removesuffix("_missing")
    table = dp.Table.from_frame(frame.drop(columns=name), SCHEMA)
    with pytest.raises(UnsupportedTable, match=f"no column '{name}'"), table.opened(template):
        pass
