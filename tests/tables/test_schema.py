"""Declared columns: what a declaration has to say, how it is kept, and the scale of coefficients."""

import datetime

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from declared import SCHEMA, WITH_PERSON

import pymc_dp as dp
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.tables.schema import array_of_part


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda: dp.Number("age", 90, 18), "low of 'age' must be below"),
        (lambda: dp.Number("age", 18, np.inf), "must be finite"),
        (lambda: dp.Number("age", -1e308, 1e308), "must be finite"),
        (lambda: dp.Number("age", -1e308, 1e308, missing=0), "difference finite"),
        (lambda: dp.Number("age", 18, 90, missing=5), "missing of 'age' must be in its range"),
        (lambda: dp.Number("age", 18, 90, missing=np.nan), "must be finite"),
        (lambda: dp.Number("age", "18", 90), "must be a real number"),
        (lambda: dp.Number("age", 18, 90, raw=1), "raw of 'age' must be True or False"),
        (lambda: dp.Number("", 18, 90), "begins with its name"),
        (lambda: dp.Number(3, 18, 90), "begins with its name"),
        (lambda: dp.Whole("stays", 0, 0), "low of 'stays' must be below"),
        (lambda: dp.Whole("stays", 0.5, 3), "must be a whole number"),
        (lambda: dp.Whole("stays", 0, 2**54), "at most 2"),
        (lambda: dp.Whole("stays", 0, 3, missing=4), "in its range"),
        (lambda: dp.YesNo("back", missing="no"), "must be True or False"),
        (lambda: dp.Category("ward", "ABC"), "must be a list"),
        (lambda: dp.Category("ward", []), "at least two different"),
        (lambda: dp.Category("ward", ["A"], other=False), "at least two different"),
        (lambda: dp.Category("ward", ["A", "A "]), "at least two different"),
        (lambda: dp.Category("ward", ["A", "other"]), "'other' is added"),
        (lambda: dp.Category("ward", [1, "1"]), "at least two different"),
        (lambda: dp.Category("ward", [1.5, 2.5]), "texts or whole numbers"),
        (lambda: dp.Category("ward", ["A", "B"], missing="C"), "must be one of 'A', 'B', 'other'"),
        (lambda: dp.Date("day", "2024-12-31", "2024-01-01"), "must be below"),
        (lambda: dp.Date("day", "31.12.2024", "2025-01-01"), "must be a day"),
        (lambda: dp.Schema([]), "is a list of declared columns"),
        (lambda: dp.Schema(["age"]), "is a list of declared columns"),
        (lambda: dp.Schema([dp.Person("id")]), "besides dp.Person"),
        (lambda: dp.Schema([dp.YesNo("a"), dp.Person("b"), dp.Person("c")]), "once who a person is"),
        (lambda: dp.Schema([dp.YesNo("a"), dp.Number("a", 0, 1)]), "'a' twice"),
        (lambda: dp.Schema([dp.YesNo("a"), dp.YesNo("a_missing")]), "'a_missing' twice"),
        (lambda: dp.Schema.from_json("{"), "no schema in JSON"),
        (lambda: dp.Schema.from_json('[{"kind": "Unknown", "name": "a"}]'), "no schema in JSON"),
        (lambda: dp.Schema.from_json('[{"kind": "YesNo", "nam": "a"}]'), "no schema in JSON"),
        (lambda: dp.Schema(SCHEMA).column_of("agee"), "no column 'agee'"),
    ],
)
def test_wrong_declarations_are_refused(made, match):
    with pytest.raises(InvalidArgument, match=match):
        made()


def test_a_schema_is_printed_saved_and_loaded(tmp_path):
    schema = dp.Schema(WITH_PERSON)
    schema.save(tmp_path / "schema.json")
    assert dp.Schema.load(tmp_path / "schema.json") == schema == dp.Schema.from_json(schema.to_json())
    assert hash(schema) == hash(dp.Schema(WITH_PERSON))
    assert str(schema).splitlines() == [
        "column     kind      values                    missing counts as",
        "age        Number    18 to 90                  54",
        "stays      Whole     0 to 10                   5",
        "emergency  YesNo     yes, no                   no",
        "ward       Category  A, B, C, other            other",
        "arrived    Date      2024-01-01 to 2024-12-31  2024-07-01",
        "back       YesNo     yes, no                   no",
        "person     Person                              (refused)",
    ]


def test_a_schema_keeps_plain_copies():
    """Hazard H40: methods of a declaration's own types would be called with entries."""

    class Telling(str):
        __slots__ = ()

        def __eq__(self, other):
            raise AssertionError(other)

        __hash__ = str.__hash__

    class Own(dp.Number):
        pass

    (column,) = dp.Schema([dp.Category(Telling("ward"), [Telling("A"), "B"])])
    assert {type(each) for each in (column.name, column.missing, *column.levels)} == {str}
    with pytest.raises(InvalidArgument, match="list of declared columns"):
        dp.Schema([Own("age", 18, 90)])


def test_ranges_levels_and_missing_entries():
    def found(column, entries, part=None):
        return array_of_part(column, part or column.name, np.array(entries, dtype=float)).tolist()

    age = dp.Number("age", 20, 80, missing=35)
    assert found(age, [20, 50, 80, -1e300, np.inf, -np.inf, np.nan]) == [-1, 0, 1, -1, 1, -1, -0.5]
    assert found(age, [20, np.nan], "age_missing") == [0, 1]
    assert found(dp.Number("age", 20, 80, raw=True), [10, 55.5, np.nan]) == [20, 55.5, 50]
    assert found(dp.Whole("stays", 0, 7, raw=True), [2.4, 2.6, 99, np.nan]) == [2, 3, 7, 3]
    assert found(dp.Whole("stays", 0, 4), [3, np.nan]) == [0.5, 0]
    assert found(dp.YesNo("back", missing=True), [0, 1, np.nan]) == [0, 1, 1]
    ward = dp.Category("ward", ["A", "B"])
    assert found(ward, [0, 1, 2, np.nan]) == [0, 1, 2, 2]
    assert found(ward, [0, 1, 2, np.nan], "ward[B]") == [0, 1, 0, 0]
    assert found(ward, [0, 1, 2, np.nan], "ward[other]") == [0, 0, 1, 1]
    assert found(dp.Category("ward", ["A", "B"], other=False), [0, 1, np.nan]) == [0, 1, 0]
    day = dp.Date("day", datetime.date(1970, 1, 3), "1970-01-05")
    assert found(day, [2, 3, 4, 9, np.nan]) == [-1, 0, 1, 1, 0]
    assert found(dp.Date("day", "1970-01-03", "1970-01-05", raw=True), [0, 4, np.nan]) == [0, 2, 1]
    assert dp.Date("day", pd.Timestamp("1970-01-03"), datetime.datetime(1970, 1, 5)) == day


def test_coefficients_are_told_on_the_columns_own_scales():
    schema = dp.Schema([*SCHEMA, dp.Number("cost", 0, 1000)])
    rng = np.random.default_rng(0)
    labels = ["age", "ward[B]", "stays"]
    slopes = xr.DataArray(rng.normal(size=(2, 5, 3)), dims=("chain", "draw", "feature"), coords={"feature": labels})
    intercept = xr.DataArray(rng.normal(size=(2, 5)), dims=("chain", "draw"))
    raw = schema.raw_coefficients(slopes, intercept, outcome="cost")
    at, ward = np.array([61.0, 3.0]), 1.0
    scaled = np.array([(61 - 54) / 36, ward, (3 - 5) / 5])
    expected = 500 + 500 * (intercept.values + slopes.values @ scaled)
    found = raw["intercept"].values + raw["slopes"].values @ [at[0], ward, at[1]]
    assert np.allclose(found, expected)
    assert np.allclose(schema.raw_coefficients(slopes)["slopes"].sel(feature="age") * 36, slopes.sel(feature="age"))
    with pytest.raises(InvalidArgument, match="columns for labels"):
        schema.raw_coefficients(intercept)
    with pytest.raises(InvalidArgument, match="no column 'b'"):
        schema.raw_coefficients(slopes.assign_coords(feature=["age", "b", "stays"]))
