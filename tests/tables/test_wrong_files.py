"""Two hundred wrong files: either a rule reads what is wrong as missing or cut, or one sentence says what it is.

No entry is ever shown, and nothing is charged: tables are opened before the charge.
"""

import contextlib
import datetime
import gzip
import io

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pymc as pm
import pytest
from conftest import QUIET

import pymc_dp as dp
from pymc_dp.exceptions import UnsupportedTable
from pymc_dp.model.view import read
from pymc_dp.rows.likelihood import UnitLikelihood

SCHEMA = [
    dp.Number("age", 18, 90),
    dp.Whole("stays", 0, 10),
    dp.YesNo("back"),
    dp.Category("ward", ["A", "B"]),
    dp.Date("arrived", "2024-01-01", "2024-12-31"),
]
WITH_PERSON = [*SCHEMA, dp.Person("person")]
NAMES = [column.name for column in SCHEMA]
FEATURES = [feature for name in NAMES for feature in (name, f"{name}_missing")]
#: Good entries of each column, and what they must not be confused with.
GOOD = {"age": "31.25", "stays": "7", "back": "yes", "ward": "B", "arrived": "2024-05-04", "person": "p1"}
#: Stands in the second row of every file, and in no message.
CANARY = {"age": "47.1931", "stays": "9", "back": "no", "ward": "Zaphod", "arrived": "2024-11-19", "person": "p-7731"}
SECRETS = ("47.19", "Zaphod", "11-19", "7731", "4719", "31.25", "2024-05")


@pytest.fixture(scope="module")
def opened():
    """Return what a model gets of a table's rows: the features, one column each."""
    template = dp.Table({}, schema=SCHEMA).template
    with pm.Model() as model:
        x = pm.Data("x", template.matrix(*FEATURES))
        features = len(template.features(*FEATURES))
        pm.Bernoulli("back", logit_p=x @ pm.Normal("b", shape=features), observed=template.back)
    likelihood = UnitLikelihood(read(model))

    def features_of(table):
        assert np.array_equal(table.template.age, template.age)
        with table.opened(likelihood) as rows:
            (x,) = (each for each in rows._partitions._parts[0].rows_of_inputs if each.ndim == 2)
            return pd.DataFrame(x, columns=template.features(*FEATURES))

    return features_of


def lines(*rows, names=NAMES, separator=","):
    return "\n".join(separator.join(row) for row in [names, *rows, [CANARY[name] for name in NAMES]]) + "\n"


def row(**changes):
    return [(GOOD | changes)[name] for name in NAMES]


def of_csv(text, folder, schema=SCHEMA, **options):
    path = folder / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return dp.Table.from_csv(path, schema, **options)


# What a rule reads ---------------------------------------------------------------------------------------------------

NOTHING = ["", " ", "NA", "N/A", "na", "nan", "NaN", "NAN", "null", "NULL", "None", "<NA>", "NaT"]
NO_NUMBER = ["-", ".", "?", "unknown", "3,5", "1 000", "12 years", "0x1F", "--3", "1e", "#DIV/0!", "2024-05-04", "yes"]
NO_DATE = [
    "2024-02-30",
    "2024-13-01",
    "04.05.2024",
    "05/04/2024",
    "2024",
    "20240504T99",
    "May 4",
    "45416",
    "0000-00-00",
]
MISSING = [
    *((name, text) for name in NAMES for text in NOTHING),
    *((name, text) for name in ("age", "stays") for text in NO_NUMBER),
    *(("arrived", text) for text in NO_DATE),
    *(("back", text) for text in ("maybe", "2", "-1", "ja", "x", "0.5", "+", "yess")),
]
CUT = [
    *(("age", text, 1.0) for text in ("90.01", "1e400", "inf", "999999999999", "Infinity")),
    *(("age", text, -1.0) for text in ("17.9", "-3", "-inf", "0", "-1e300")),
    *(("stays", text, 1.0) for text in ("11", "1e9", "9.6")),
    *(("stays", text, -1.0) for text in ("-1", "0.4", "-1e9")),
    *(("arrived", text, 1.0) for text in ("2025-01-01", "9999-12-31", "2024-12-31T23:30:00-01:00")),
    *(("arrived", text, -1.0) for text in ("2023-12-31", "0001-01-01")),
    *(("ward[other]", text, 1.0) for text in ("C", "a", "AB", "A;B", "ä", "1", "'A'")),
]


@pytest.mark.parametrize(("name", "text"), MISSING)
def test_what_cannot_be_read_is_missing(name, text, opened, tmp_path):
    found = opened(of_csv(lines(row(**{name: f'"{text}"'}), row()), tmp_path))
    expected = [float(f"{name}_missing" == each) for each in FEATURES if each.endswith("_missing")]
    assert found.filter(like="_missing").iloc[0].tolist() == expected
    assert not found.filter(like="_missing").iloc[1:].to_numpy().any()


@pytest.mark.parametrize(("name", "text", "expected"), CUT)
def test_what_is_out_of_range_is_cut_or_another_level(name, text, expected, opened, tmp_path):
    found = opened(of_csv(lines(row(**{name.removesuffix("[other]"): text}), row()), tmp_path))
    assert found[name][0] == expected
    assert not found.filter(like="_missing").to_numpy().any()


@pytest.mark.parametrize(
    "text",
    [
        lines(row(), row()).replace("\n", "\r\n"),
        "\ufeff" + lines(row(), row()),
        lines(row(), row()).replace("\n", "\n\n"),
        lines(row(), row()).replace(",", " , "),
        lines(row(), row()).replace("31.25", '"31.25"'),
        lines(row(ward='"A, or\nB"'), row()),
        lines(row(ward='"say ""B"""'), row()),
        lines(row(), row()).rstrip("\n"),
        lines([*row(), "more"], [*row(), ""], names=[*NAMES, "unread"]).replace("2024-11-19\n", "2024-11-19,\n"),
    ],
)
def test_other_ways_to_write_the_same_table_are_read(text, opened, tmp_path):
    found = opened(of_csv(text, tmp_path))
    assert len(found) == 3
    assert found["age"].tolist() == [(31.25 - 54) / 36] * 2 + [(47.1931 - 54) / 36]


# What is refused -----------------------------------------------------------------------------------------------------


def frame(**changes):
    made = pd.DataFrame([{name: GOOD[name] for name in NAMES}, {name: CANARY[name] for name in NAMES}])
    return made.assign(**{name: value(made) if callable(value) else value for name, value in changes.items()})


def persons(values):
    return dp.Table.from_frame(frame(person=values), WITH_PERSON)


def parquet(made, folder, schema=SCHEMA):
    made.to_parquet(folder / "table.parquet")
    return dp.Table.from_parquet(folder / "table.parquet", schema)


def file(content, name):
    return lambda folder: (folder / name).write_bytes(content) and dp.Table.from_parquet(folder / name, SCHEMA)


GOOD_TEXT = lines(row(), row())
WRONG = {
    # Columns
    **{f"no {n}": (lambda f, n=n: of_csv(GOOD_TEXT.replace(n, "x" + n), f), f"no column '{n}'") for n in NAMES},
    **{f"capital {n}": (lambda f, n=n: of_csv(GOOD_TEXT.replace(n, n.title()), f), f"no column '{n}'") for n in NAMES},
    **{f"twice {n}": (lambda f, n=n: dp.Table.from_frame(pd.concat([frame(), frame()[[n]]], axis=1), SCHEMA),
                      f"several columns '{n}'") for n in NAMES},
    **{f"twice in csv {n}": (lambda f, n=n: of_csv(lines([*row(), "1"], names=[*NAMES, n]), f),
                             f"several columns '{n}'") for n in NAMES},
    "no names": (lambda f: of_csv(GOOD_TEXT.split("\n", 1)[1], f), "no column 'age'"),
    "no person": (lambda f: of_csv(GOOD_TEXT, f, WITH_PERSON), "no column 'person'"),
    # Format
    "empty": (lambda f: of_csv("", f), "is empty"),
    "blank": (lambda f: of_csv("\n\n\n", f), "is empty"),
    "spaces": (lambda f: of_csv("   \n", f), "is empty"),
    "names alone": (lambda f: of_csv(",".join(NAMES), f), "no rows or a single one"),
    "one row": (lambda f: of_csv(lines(), f), "no rows or a single one"),
    **{f"separator {s!r}": (lambda f, s=s: of_csv(lines(row(), separator=s), f), "no column 'age'.*Pass separator=")
       for s in ";|\t:"},
    "longer line": (lambda f: of_csv(lines([*row(), "1"]), f), "more or fewer entries"),
    "shorter line": (lambda f: of_csv(lines(row()[:-1]), f), "more or fewer entries"),
    "comma in a number": (lambda f: of_csv(lines(row(age="31,25")), f), "more or fewer entries"),
    "comma in a text": (lambda f: of_csv(lines(row(ward="A,B")), f), "more or fewer entries"),
    "comma at the end": (lambda f: of_csv(lines([*row(), ""]), f), "more or fewer entries"),
    "open quote": (lambda f: of_csv(lines(row(ward='"B')), f), "quote is not closed|more or fewer"),
    "quote at the end": (lambda f: of_csv(GOOD_TEXT + '"', f), "quote is not closed"),
    "quote in an entry": (lambda f: of_csv(lines(row(ward='"A"B"')), f), "quote is not closed.*or separator="),
    **{f"encoding {e}": (lambda f, e=e: of_csv(lines(row(ward="Zaphodä")).encode(e), f), "another encoding|no column")
       for e in ("utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "cp437", "mac-roman", "utf-16-be")},
    "wrong encoding": (lambda f: of_csv(lines(row(ward="ä")), f, encoding="ascii"), "another encoding"),
    "compressed": (lambda f: of_csv(gzip.compress(GOOD_TEXT.encode()), f), "another encoding"),
    "compressed by its name": (lambda f: (f / "t.gz").write_bytes(b"x") and dp.Table.from_csv(f / "t.gz", SCHEMA),
                               "unpack it first"),
    "parquet as csv": (lambda f: of_csv((parquet(frame(), f), (f / "table.parquet").read_bytes())[1], f),
                       "another encoding|no column|is empty|quote"),
    "csv as parquet": (file(GOOD_TEXT.encode(), "table.parquet"), "cannot be read"),
    "csv as arrow": (file(GOOD_TEXT.encode(), "table.arrow"), "cannot be read"),
    "csv by its name": (file(GOOD_TEXT.encode(), "table.csv"), "neither a Parquet file"),
    "half a parquet": (lambda f: parquet(frame(), f) and file((f / "table.parquet").read_bytes()[:300], "b.parquet")(f),
                       "cannot be read"),
    "no file": (lambda f: dp.Table.from_csv(f / "nowhere.csv", SCHEMA), "There is no file 'nowhere.csv'"),
    "a folder": (lambda f: dp.Table.from_csv(f, SCHEMA), "There is no file"),
    "lazy": (lambda f: dp.Table.from_frame(pl.LazyFrame(frame()), SCHEMA), "collect"),
    "text": (lambda f: dp.Table.from_frame(io.StringIO(GOOD_TEXT), SCHEMA), "cannot be read from a StringIO"),
    # Types of whole columns
    **{f"times in {n}": (lambda f, n=n: dp.Table.from_frame(frame(**{n: pd.to_datetime("2024-11-19")}), SCHEMA),
                         f"'{n}' holds points in time") for n in ("age", "stays", "back", "ward")},
    **{f"spans in {n}": (lambda f, n=n: dp.Table.from_frame(frame(**{n: pd.to_timedelta(4719, "D")}), SCHEMA),
                         f"'{n}' holds time spans") for n in NAMES},
    **{f"complex {n}": (lambda f, n=n: dp.Table.from_frame(frame(**{n: 47.1931j}), SCHEMA),
                        f"'{n}' holds complex numbers") for n in NAMES},
    **{f"periods in {n}": (lambda f, n=n: dp.Table.from_frame(frame(**{n: pd.Period("2024-11-19")}), SCHEMA),
                           f"'{n}' holds another type") for n in NAMES},
    "numbers as dates": (lambda f: dp.Table.from_frame(frame(arrived=20241119), SCHEMA), "'arrived' holds numbers"),
    **{f"lists in {n}": (lambda f, n=n: dp.Table.from_frame(
        pa.Table.from_pandas(frame(**{n: [[47.1931], [1.0]]})), SCHEMA), f"'{n}' holds several entries in a row")
       for n in NAMES},
    "texts without an encoding": (lambda f: dp.Table.from_frame(
        pa.Table.from_pandas(frame()).set_column(0, "age", pa.array([b"Zaphod\xff"] * 2).view(pa.string())), SCHEMA),
                                  "'age' cannot be read"),
    "persons without an encoding": (lambda f: dp.Table.from_frame(
        pa.Table.from_pandas(frame()).append_column("person", pa.array([b"p-7731\xff"] * 2).view(pa.string())),
        WITH_PERSON), "'person' cannot be read"),
    "bytes": (lambda f: parquet(frame(ward=[b"A", b"Zaphod"]), f), "or bytes"),
    "matrix": (lambda f: dp.Table.from_frame({**frame(), "age": np.full((2, 2), 47.1931)}, SCHEMA), "several entries"),
    "lengths": (lambda f: dp.Table.from_frame({**frame(), "age": np.full(3, 47.1931)}, SCHEMA), "different lengths"),
    # Persons
    "nobody": (lambda f: persons(["p-7731", None]), "'person', which says who a person is, has missing entries"),
    "nobody in numbers": (lambda f: persons([7731.0, np.nan]), "has missing entries"),
    "nobody in csv": (lambda f: of_csv("person," + GOOD_TEXT.replace("\n", "\n,").rstrip(","), f, WITH_PERSON),
                      "has missing entries"),
    "nobody in arrow": (lambda f: dp.Table.from_frame(
        pa.Table.from_pandas(frame(person=["p-7731", None])), WITH_PERSON), "has missing entries"),
    "nobody in parquet": (lambda f: parquet(frame(person=["p-7731", None]), f, WITH_PERSON), "has missing entries"),
    "fractions": (lambda f: persons([7731.5, 1.0]), "must hold whole numbers or texts"),
    "dates as persons": (lambda f: persons([datetime.date(2024, 11, 19)] * 2), "must hold whole numbers or texts"),
    "times as persons": (lambda f: persons(pd.to_datetime("2024-11-19")), "must hold whole numbers or texts"),
    "persons of two types": (lambda f: persons(["p-7731", 7731]), "must hold whole numbers or texts"),
    "persons in categories": (lambda f: persons(pd.Categorical(["p-7731", "p1"])), "is categorical"),
    "persons not sorted": (lambda f: parquet(frame(person=["p-7731", "a"]), f, WITH_PERSON), "not sorted by 'person'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_with_a_whole_table_is_told_without_an_entry(kind, opened, tmp_path):
    """Hazard H22."""
    made, match = WRONG[kind]
    with pytest.raises(UnsupportedTable, match=match) as refusal:
        opened(made(tmp_path))
    said = str(refusal.value)
    assert len(said) < 300
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None
    if isinstance(refusal.value.__context__, Exception):  # collectors of errors store it, and what it holds
        said += repr(refusal.value.__context__.args)
    assert not any(secret in said for secret in SECRETS)


@pytest.mark.few(9)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("n_rows", [0, 1, 3])
@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"age": pa.timestamp("us")}, "'age' holds points in time"),
        ({"person": pa.float64()}, "'person', which names units"),
        ({}, None),
    ],
)
def test_types_are_refused_whatever_the_number_of_rows(suffix, n_rows, wrong, match, tmp_path):
    """Hazard H22: it is protected under add-remove."""
    types = {"age": pa.float64(), "person": pa.string(), **wrong}
    values = {"age": 20, "person": "p1" if types["person"] == pa.string() else 1}
    made = pa.table({name: pa.array([values[name]] * n_rows, kind) for name, kind in types.items()})
    if suffix == "parquet":
        pq.write_table(made, tmp_path / "t.parquet")
    else:
        with pa.ipc.new_file(tmp_path / "t.arrow", made.schema) as file:
            file.write_table(made)
    table = dp.Table.from_parquet(tmp_path / f"t.{suffix}", [dp.Number("age", 18, 90), dp.Person("person")])
    budget = dp.PrivacyBudget(3.0, 1e-6, relation="add-remove")
    with contextlib.nullcontext() if match is None else pytest.raises(UnsupportedTable, match=match):
        dp.describe(table, budget=budget, insecure_seed=0)
    assert bool(budget.epsilon_spent) is (match is None)


def test_there_are_two_hundred():
    assert len(MISSING) + len(CUT) + len(WRONG) >= 200


@pytest.mark.parametrize("kind", ["no age", "open quote", "times in age", "nobody", "csv as parquet"])
def test_nothing_is_charged(kind, tmp_path):
    table = WRONG[kind][0](tmp_path)
    t, budget = table.template, dp.PrivacyBudget(1.0, 1e-6)
    with pm.Model():
        pm.Bernoulli("back", logit_p=pm.Normal("b") * t.age, observed=t.back)
        with pytest.raises(UnsupportedTable):
            pm.sample(budget=budget, data=table, **QUIET)
    assert not budget.history
