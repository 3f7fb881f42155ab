"""Entries as numbers: each by itself, whatever stands in the rows beside it and whatever type its column has."""

import datetime
import decimal
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

import pymc_dp as dp
from pymc_dp.exceptions import UnsupportedTable
from pymc_dp.rows.likelihood import RowInput
from pymc_dp.tables.columns import (
    Columns,
    UnlistedColumns,
    _levels_of,
    _with_missing_entries,
    array_of,
    block_of,
    unit_codes,
)
from pymc_dp.tables.entries import entries_of, levels_of_entries
from pymc_dp.tables.schema import Schema

NAN = np.nan
COLUMNS = [
    dp.Number("c", 0, 9),
    dp.Whole("c", 0, 9),
    dp.YesNo("c"),
    dp.Category("c", ["1", "0", "True", "x", 17]),
    dp.Category("c", ["yes", "no"], other=False),
    dp.Date("c", "2020-01-01", "2021-01-01"),
]
ENTRIES = st.one_of(
    st.sampled_from(
        [0, 1, True, False, 0.0, -0.0, 1.0, 17, "1", "1.0", "0", " yes ", "NO", "x", "True", "", "nan", "NA"]
    ),
    st.sampled_from(
        [None, NAN, pd.NA, pd.NaT, np.datetime64("NaT", "D"), np.bool_(True), np.float32(0.1), 10**400, -(10**5000)]
    ),
    st.sampled_from(
        ["2020-02-30", "2020-02-03", "2020-02-03T23:00:00-05:00", "1e999", "1_0", "0x1", "3,5", "inf", "\x00"]
    ),
    st.sampled_from(
        [datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3), pd.Timestamp("2020-01-02", tz="UTC")]
    ),
    st.sampled_from([decimal.Decimal("1.5"), decimal.Decimal("NaN"), b"1", (), [1], {}, object, complex(1, 0), float]),
    st.floats(),
    st.text(max_size=4),
)


@pytest.mark.parametrize("column", COLUMNS, ids=repr)
@settings(max_examples=40)
@given(st.lists(ENTRIES, max_size=6))
@example([True, 1, 1.0, False, 0, -0.0])
@example([1, True])
def test_an_entry_is_read_as_if_it_stood_alone(column, entries):
    """Whatever another row holds, types that are equal to others included, and without an error."""
    objects = np.empty(len(entries), dtype=object)
    objects[:] = entries
    together = entries_of(column, pd.Series(objects, dtype=object))
    alone = [entries_of(column, pd.Series([entry], dtype=object))[0] for entry in objects]
    assert np.array_equal(together, np.array(alone, dtype=float), equal_nan=True)


@given(st.lists(ENTRIES, max_size=8))
@example([10**5000, "a", "b"])
def test_levels_that_nobody_has_listed_are_read_as_those_that_are(entries):
    """Hazard H52: what is found, and declared then, is what was counted."""
    objects = pd.Series(np.array([*entries, None], dtype=object)[:-1], dtype=object)
    found = levels_of_entries("c", objects)
    levels = sorted(set(found) - {None})
    if len(levels) > 1:
        codes = entries_of(dp.Category("c", levels, other=False), objects)
        assert [None if np.isnan(code) else levels[int(code)] for code in codes] == list(found)
    for alone, level in zip(objects, found, strict=True):
        assert list(levels_of_entries("c", pd.Series([alone], dtype=object))) == [level]


@pytest.mark.parametrize("values", [["b", None, "b", "a"], [2.0, np.nan, 2.0, 1.0], [True, None, True, False]])
def test_columns_of_any_type_have_levels(values):
    found = [levels_of_entries("c", pd.Series(values, dtype=kind)) for kind in (object, "category")]
    for each in found:
        assert [each[0], each[1]] == [each[2], None]
        assert each[0] != each[3]
    assert list(levels_of_entries("c", pd.Series(pd.Categorical(["a"], categories=["a", "unused"])))) == ["a"]


@pytest.mark.parametrize("column", COLUMNS[:5], ids=repr)
@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.sampled_from([0.0, -0.0, 1.0, 17.0, NAN, np.inf]), st.floats(allow_nan=False)), min_size=1)
)
def test_numbers_are_read_alike_as_numbers_and_as_objects(column, values):
    expected = entries_of(column, np.array(values))
    assert np.array_equal(entries_of(column, pd.Series(values, dtype=object)), expected, equal_nan=True)
    assert np.array_equal(entries_of(column, pd.array(values, dtype="Float64")), expected, equal_nan=True)
    if not isinstance(column, dp.Category):  # whose levels are texts
        texts = pd.Series([repr(value) for value in values], dtype="str")
        assert np.array_equal(entries_of(column, texts), expected, equal_nan=True)
    assert np.array_equal(entries_of(column, pd.Series(values).astype("category")), expected, equal_nan=True)


@pytest.mark.parametrize("column", COLUMNS, ids=repr)
@settings(max_examples=40)
@given(st.lists(st.one_of(st.none(), st.text(max_size=3), st.sampled_from(["1", "yes", "2020-05-01", "nan"]))))
def test_texts_are_read_alike_whatever_holds_them(column, texts):
    expected = entries_of(column, pd.Series(texts, dtype=object))
    for dtype in ("str", "category"):
        assert np.array_equal(entries_of(column, pd.Series(texts, dtype=dtype)), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", ["bool", "boolean", object, "str", "category"])
def test_truth_values_have_the_levels_that_files_have(dtype):
    """pandas writes them as True and False."""
    values = pd.Series([True, False, True], dtype=dtype)
    assert entries_of(dp.Category("c", ["False", "True"]), values).tolist() == [1.0, 0.0, 1.0]
    assert levels_of_entries("c", values).tolist() == ["True", "False", "True"]
    of_arrow = _levels_of("c", {"c": pa.array([True, None, False])})
    assert of_arrow.tolist() == ["True", None, "False"]


def test_a_text_without_an_encoding_is_no_other_rows():
    """Hazard H22: for pandas it is equal to the text that Python writes of it, in quotes."""
    written = repr("\ud800")
    texts = pd.Series(["\ud800", written, written], dtype="string[python]")
    column = dp.Category("c", [written, "b"], other=False)
    np.testing.assert_array_equal(entries_of(column, texts), [NAN, 0.0, 0.0])
    found = levels_of_entries("c", texts)
    assert list(found) == ["?", written, written]  # which can be printed, and stored


@pytest.mark.parametrize(
    ("column", "entries", "expected"),
    [
        (
            COLUMNS[0],
            ["3", " 3.5 ", "1e2", "-inf", "3,5", "three", None, "", "NA", [3]],
            [3, 3.5, 100, -np.inf] + 6 * [NAN],
        ),
        (COLUMNS[0], [10**400, -(10**400), decimal.Decimal("0.1"), True], [np.inf, -np.inf, 0.1, 1]),
        (COLUMNS[2], ["yes", "Y", "TRUE", "t", 1, True, "1.0"], [1] * 7),
        (COLUMNS[2], ["no", "f", 0, "2", 2, "ja"], [0] * 3 + [NAN] * 3),
        (COLUMNS[3], ["1", 1, 1.0, True, "x", " x", 17, "17", "zzz"], [0, 0, 0, 2, 3, 3, 4, 4, 5]),
        (COLUMNS[3], ["", None, NAN, "na"], [NAN] * 4),
        (COLUMNS[3], ["1.0", "17.", " 0.00", "-0.0", "1.5", "1.0.0"], [0, 4, 1, 1, 5, 5]),
        (dp.Category("c", ["9.0", 10]), [9, "9", "9.0", 9.0, "10.0", 1e1], [0, 0, 0, 0, 1, 1]),
        (COLUMNS[4], ["yes", "no", "maybe", None], [0, 1, NAN, NAN]),
        (COLUMNS[5], ["1970-01-02", "1970-01-02T23:59", "1970-01-02T23:00:00-02:00", "2.1.1970"], [1, 1, 2, NAN]),
        (COLUMNS[5], [datetime.date(1970, 1, 3), pd.Timestamp("1970-01-03 12:00"), None, 3], [2, 2, NAN, NAN]),
        (COLUMNS[5], [np.datetime64("1970-01-03")], [2]),
    ],
)
def test_what_entries_are(column, entries, expected):
    objects = np.empty(len(entries), dtype=object)
    objects[:] = entries
    assert np.array_equal(entries_of(column, objects), np.array(expected, dtype=float), equal_nan=True)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float16, np.float32, np.longdouble, bool, "Int64", "boolean"])
def test_numbers_of_any_width(dtype):
    assert entries_of(COLUMNS[0], pd.Series([1, 0, 1], dtype=dtype)).tolist() == [1.0, 0.0, 1.0]
    assert entries_of(COLUMNS[3], pd.Series([1, 0, 1], dtype=dtype)).tolist()[0] in (0.0, 2.0)


def test_times_of_any_unit_and_zone():
    times = pd.Series(pd.to_datetime(["1970-01-02 22:30", None, "2262-01-01 00:00"]))
    for given_times in (times, times.astype("datetime64[s]"), times.dt.tz_localize("UTC"), times.to_numpy()):
        assert np.array_equal(entries_of(COLUMNS[5], given_times), [1.0, NAN, 106651.0], equal_nan=True)
    west = times.dt.tz_localize("Etc/GMT+5")
    assert np.array_equal(entries_of(COLUMNS[5], west), [2.0, NAN, 106651.0], equal_nan=True)
    assert np.array_equal(entries_of(COLUMNS[5], west.astype(object)), [2.0, NAN, 106651.0], equal_nan=True)


def test_masked_entries_are_missing():
    masked = np.ma.array([1, 2, 3], mask=[False, True, False])
    assert np.array_equal(entries_of(COLUMNS[0], masked), [1.0, NAN, 3.0], equal_nan=True)


@pytest.mark.parametrize(
    ("column", "values", "match"),
    [
        (COLUMNS[0], pd.Series(pd.to_datetime(["2024-01-01"])), "'c' holds points in time, where dp.Number"),
        (COLUMNS[3], pd.Series(pd.to_timedelta([3], "D")), "time spans"),
        (COLUMNS[0], np.array([1j]), "complex numbers"),
        (COLUMNS[5], np.array([20240131]), "holds numbers, where dp.Date"),
        (COLUMNS[0], np.ones((3, 2)), "several entries in a row"),
        (COLUMNS[0], pd.Series(pd.period_range("2024", periods=2, freq="D")), "another type"),
        (COLUMNS[0], pd.Series(pd.to_datetime(["2024-01-01"])).astype("category"), "points in time"),
    ],
)
def test_types_of_whole_columns_that_do_not_fit_are_refused(column, values, match):
    with pytest.raises(UnsupportedTable, match=match) as refusal:
        entries_of(column, values)
    assert "2024" not in str(refusal.value)


@pytest.mark.parametrize("column", [dp.Category("c", ["True", "False"]), dp.Category("c", ["1", "0"])])
def test_a_missing_truth_value_leaves_those_of_other_rows_as_they_are(column):
    """Hazard H52: pandas makes all truth values of Arrow objects where one is missing, and a level has another name."""
    pa = pytest.importorskip("pyarrow")
    for read in (
        lambda entries: levels_of_entries("c", _with_missing_entries("c", {"c": pa.chunked_array([entries])})),
        lambda entries: entries_of(column, _with_missing_entries("c", {"c": pa.chunked_array([entries])})),
    ):
        assert list(read([True, False, None])[:2]) == list(read([True, False]))


@pytest.mark.parametrize("other", ["x", None, 10**30, [1, 2], b"1", 1j, np.timedelta64(1, "D"), "\ud800"])
@pytest.mark.parametrize("entries", [[1.0, 0.0], [True, False], ["1", "x"], [1, 0]])
@pytest.mark.parametrize("column", COLUMNS, ids=repr)
def test_an_entry_of_a_list_or_an_array_of_objects_changes_no_other(column, entries, other):
    """Hazard H22: NumPy chooses a type for a whole list, pandas makes texts of objects where all are; both raise."""
    objects = np.fromiter([*entries, other], dtype=object, count=3)
    alone = entries_of(column, objects[:2].tolist())
    for together in ([*entries, other], objects):
        assert np.array_equal(entries_of(column, together)[:2], alone, equal_nan=True)


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns"])
def test_a_distant_time_is_no_error(unit):
    """Hazard H22: pandas and NumPy raise for times near the ends of 64 bits."""
    times = np.array([0, 2**63 - 1, -(2**63) + 1, -(2**63)], dtype=np.int64).view(f"datetime64[{unit}]")
    of_all = [times] if unit in "YMWDhm" else [times, pd.Series(times), pd.Series(times).dt.tz_localize("UTC")]
    for given_times in of_all:
        found = entries_of(COLUMNS[5], given_times)
        assert found[0] == 0.0
        assert found[2] < 0.0 < found[1]
        assert np.isnan(found[3])


@pytest.mark.parametrize("kind", ["date32", "date64", "timestamp"])
def test_a_missing_time_of_arrow_is_no_error(kind):
    """Hazard H22: NumPy makes no time of what pandas has for it."""
    pa = pytest.importorskip("pyarrow")
    dtype = pd.ArrowDtype(pa.timestamp("us", "UTC") if kind == "timestamp" else getattr(pa, kind)())
    days = [datetime.datetime(1970, 1, 3, tzinfo=datetime.UTC), None]
    read = _with_missing_entries("c", {"c": pd.Series(days, dtype=dtype)})
    assert np.array_equal(entries_of(COLUMNS[5], read), [2.0, NAN], equal_nan=True)


def test_a_text_that_cannot_be_decoded_is_not_shown():
    """Hazard H22: errors of Python show a byte and its place, those of PyArrow the text."""
    pa = pytest.importorskip("pyarrow")
    texts = pa.array([b"ab", b"secret\xe9"]).buffers()
    column = pa.StringArray.from_buffers(2, texts[1], texts[2])
    for read in (
        lambda: Columns((("c",),), (), None, Schema([dp.Category("c", ["a", "b"])])).read({"c": column}),
        lambda: Columns((("c",),), (), "c").read({"c": column}),
        lambda: UnlistedColumns((), (), None, unlisted=("c",)).read({"c": column}),
    ):
        with pytest.raises(UnsupportedTable, match=r"'c' cannot be read.*UTF-8") as refusal:
            read()
        assert "secret" not in str(refusal.value)
        assert "0xe9" not in str(refusal.value)


def test_a_long_name_of_a_person_takes_no_memory_of_others():
    """Hazard H22: NumPy gives all texts of an array the room of the longest."""
    names = np.array(["a" * 10**6, "b", "a" * 10**6 + "b", "b", "a" * 10**6], dtype=object)
    found = unit_codes("p", names)
    assert found.nbytes < 10_000
    assert found[0] == found[4]
    assert found[1] == found[3] == "b"
    assert len(set(found)) == 3


def test_names_of_persons_that_end_with_null_characters_are_different():
    """Hazard H32: NumPy leaves them out, and two persons would be one unit, which moves sums by more than a bound."""
    names = ["p", "p\0", "p\0\0", "p\0", "p" + 255 * "\0" + "\0"]
    found = unit_codes("p", np.array(names, dtype=object))
    assert len(set(found)) == len(set(names)) == 4
    assert found[1] == found[3]


def test_a_list_of_persons_is_read_entry_by_entry():
    """Hazard H32: NumPy would make one person "nan" of all missing ones, and 1 and "1" the same person."""
    assert array_of("p", {"p": [7, 2**40]}, is_unit=True).tolist() == [7, 2**40]
    assert array_of("p", {"p": ["a", "b\0"]}, is_unit=True).tolist() == ["a", "b\0"]
    with pytest.raises(UnsupportedTable, match="has missing entries"):
        array_of("p", {"p": ["a", "b", NAN]}, is_unit=True)
    for mixed in ([1, 2, "1"], [True, 1], [1.0, 2.0]):
        with pytest.raises(UnsupportedTable, match="whole numbers or texts"):
            array_of("p", {"p": mixed}, is_unit=True)


def test_a_product_that_overflows_in_one_row_does_not_warn():
    """Hazard H22: nor does a number that is too large for the model's type."""
    schema = Schema([dp.Number("c", -1e300, 1e300, raw=True)])
    inputs = RowInput(("square",), np.dtype(np.float64), ()), RowInput(("single",), np.dtype(np.float32), ())
    with warnings.catch_warnings(action="error"):
        found = block_of(Columns(((("c", "c"),), ("c",)), inputs, None, schema), {"c": np.array([2.0, 1e200])})
    assert [rows.tolist() for rows in found.rows] == [[4.0, np.inf], [2.0, np.inf]]


def test_a_number_beyond_double_precision_is_read_without_a_warning():
    """Hazard H22: NumPy warns of an overflow, which one entry makes."""
    schema = Schema([dp.Number("c", 0, 9)])
    values = np.array(["1", "1e4000"]).astype(np.longdouble)
    with warnings.catch_warnings(action="error"):
        assert Columns((("c",),), (), None, schema).read({"c": values})["c"][1] == 1.0
