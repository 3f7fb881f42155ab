"""Descriptions: right without noise, honest with it, and paid for."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from asked_again import compiled_once

import pymc_dp as dp
from pymc_dp.surveys import asking, describing

N = 3000
GENERATOR = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": GENERATOR.normal(45.0, 12.0, N).clip(18, 90),
        "income": np.where(GENERATOR.random(N) < 0.1, np.nan, np.exp(GENERATOR.normal(10.0, 0.6, N))),
        "stays": GENERATOR.poisson(1.2, N),
        "back": GENERATOR.random(N) < 0.3,
        "ward": GENERATOR.choice(["A", "B", "Z"], N, p=[0.6, 0.3, 0.1]),
        "day": np.datetime64("2026-01-01") + GENERATOR.integers(0, 200, N),
        "person": np.arange(N) // 3,
    }
)
SCHEMA = [
    dp.Number("age", 18, 90),
    dp.Number("income", 0, 100_000, raw=True),
    dp.Whole("stays", 0, 10, raw=True),
    dp.YesNo("back"),
    dp.Category("ward", ["A", "B", "C"]),
    dp.Date("day", "2026-01-01", "2026-12-31"),
]
TABLE = dp.Table(FRAME, schema=SCHEMA)


def described(epsilon=math.inf, table=TABLE, **options):
    return dp.describe(table, budget=dp.PrivacyBudget(epsilon, 1e-6), budget_share=1.0, **options)


@pytest.fixture(scope="module")
def exact():
    return described()


@pytest.fixture(scope="module")
def private():
    return described(4.0)


def test_without_noise_it_is_the_table(exact):
    table, known = exact.table, FRAME["income"].clip(0, 100_000)
    assert table.loc["age", "mean"] == pytest.approx(FRAME["age"].mean(), abs=1e-6)
    assert table.loc["age", "sd"] == pytest.approx(FRAME["age"].std(ddof=0), abs=1e-6)
    assert table.loc["income", "missing"] == pytest.approx(FRAME["income"].isna().mean(), abs=1e-9)
    assert table.loc["income", "mean"] == pytest.approx(known.mean(), rel=1e-6)
    assert table.loc["income", "sd"] == pytest.approx(known.std(ddof=0), rel=1e-6)
    assert table.loc["back", "mean"] == pytest.approx(FRAME["back"].mean(), abs=1e-9)
    assert table.loc["day", "mean"] == pytest.approx(
        (FRAME["day"] - pd.Timestamp("2026-01-01")).dt.days.mean(), abs=1e-6
    )
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert table.loc["age", f"{level:.0%}"] == pytest.approx(FRAME["age"].quantile(level), abs=72 / 64)
        assert table.loc["stays", f"{level:.0%}"] == FRAME["stays"].quantile(level, interpolation="lower")
    shares = exact.categories.loc["ward", "share"]
    for level, share in {"A": 0.6, "B": 0.3, "C": 0.0, "other": 0.1}.items():
        assert shares[level] == pytest.approx((FRAME["ward"].replace("Z", "other") == level).mean(), abs=1e-9)
        assert shares[level] == pytest.approx(share, abs=0.05)
    correlation = exact.tree["correlation"]["correlation"]
    expected = np.corrcoef(FRAME["age"], FRAME["stays"].clip(0, 10))[0, 1]
    assert float(correlation.sel(column="age", other="stays")) == pytest.approx(expected, abs=1e-6)
    assert "NOT PRIVATE" in repr(exact)


@compiled_once()
def test_errors_cover_what_the_table_holds(exact):
    """Of 40 descriptions, standardised errors of means, deviations and shares; false alarms below 1e-6."""
    scores = []
    for seed in range(40):
        found = described(2.0, insecure_seed=seed).tree["columns"].to_dataset()
        for name in ("mean", "sd", "missing"):
            known = exact.tree["columns"][name]
            scores.append(((found[name] - known) / found[f"{name}_error"]).values)
    scores = np.concatenate(scores)
    scores = scores[np.isfinite(scores)]
    assert len(scores) > 600
    assert np.mean(scores**2) == pytest.approx(1.0, abs=0.35)
    assert np.mean(np.abs(scores) < 1.645) > 0.85


@compiled_once()
def test_intervals_of_quantiles_cover(exact):
    """Of 40 descriptions; nine in ten of the table's own quantiles, at least."""
    held = []
    true = FRAME["age"].quantile([0.05, 0.25, 0.5, 0.75, 0.95]).values
    for seed in range(40):
        found = described(1.0, insecure_seed=seed).tree["columns"].to_dataset().sel(column="age")
        held.append((found["quantile_low"].values <= true) & (true <= found["quantile_high"].values))
    assert np.mean(held) > 0.85


@pytest.mark.parametrize("noise", [1e-3, 0.02, 0.2])
def test_intervals_of_a_standard_deviation_cover_where_noise_hides_it(noise):
    """Of 2,000 noisy moments of a narrow column, below .88 but once in 10**6 if the coverage is .91."""
    generator, n, scaled = np.random.default_rng(0), 5000, (np.arange(5000) % 3 - 10.0) / 10.0
    sums, squares = n * noise * generator.normal(size=(2, 2000)) + [[scaled.sum()], [(scaled**2).sum()]]
    covered = []
    for one, other in zip(sums, squares, strict=True):
        *_, sd, error = describing._moments(
            dp.Number("x", 0, 20), np.array([one, n * noise]), np.array([other, n * noise]), n, 0.0, 0.0
        )
        covered.append(abs(sd - 10 * scaled.std()) <= 1.645 * error)
    assert np.mean(covered) > 0.88


def test_a_person_counts_once():
    """With three rows a person, the same shares; and noise for one person, not for three rows."""
    table = dp.Table(FRAME, schema=[*SCHEMA, dp.Person("person")])
    found = described(table=table)
    assert found.tree["privacy"].attrs["n_units"] == N // 3
    assert found.table.loc["age", "mean"] == pytest.approx(FRAME["age"].mean(), abs=1e-6)
    assert "all rows with the same 'person'" in found.tree["privacy"].attrs["unit"]


def test_what_it_costs_is_charged_and_published(private):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    found = dp.describe(TABLE, budget=budget)
    (plan,) = budget.history
    assert plan.rho == pytest.approx(0.25 * budget.rho)
    assert "description: released once" in str(plan)
    assert "description" in budget.report()
    facts = found.tree["privacy"].attrs
    assert (facts["private"], facts["complete"], facts["relation"]) == (1, 1, "substitute")
    assert {each["kind"] for each in json.loads(facts["releases"])} == {"unit_counts", "unit_moments"}
    assert "Sampler: description" in str(dp.disclosure(found.tree))
    assert "epsilon" in dp.diagnostics.privacy_report(found.tree)


def test_seeded_noise_is_not_private():
    found = described(1.0, insecure_seed=3)
    assert repr(found) == repr(described(1.0, insecure_seed=3))
    assert found.tree["privacy"].attrs["private"] == 0
    assert "NOT PRIVATE" in repr(found)


def test_under_add_remove_the_number_of_rows_does_not_leave():
    budget = dp.PrivacyBudget(4.0, 1e-6, relation="add-remove")
    found = dp.describe(TABLE, budget=budget, budget_share=1.0)
    assert "n_units" not in found.tree["privacy"].attrs
    assert found.table.loc["age", "mean"] == pytest.approx(FRAME["age"].mean(), abs=2.0)
    assert str(N) not in re.sub(r"\d+\.\d+", "", repr(found))


def test_it_is_stored_and_read(private, tmp_path):
    private.tree.to_netcdf(tmp_path / "description.nc")
    with xr.open_datatree(tmp_path / "description.nc") as opened:
        again = dp.Description(opened.load())
    assert repr(again) == repr(private)
    pd.testing.assert_frame_equal(again.invented(5), private.invented(5))


def test_narrower_ranges_hold_most_of_the_table(private):
    narrowed = {each.name: each for each in private.narrowed()}
    for name in ("age", "income"):
        inside = FRAME[name].dropna().between(narrowed[name].low, narrowed[name].high).mean()
        assert inside > 0.95
    assert narrowed["income"].high - narrowed["income"].low < 90_000
    assert narrowed["stays"].high < 10
    assert narrowed["ward"].levels == ("A", "B", "C")


def test_invented_rows_resemble_the_table(private):
    rows = private.invented(4000, seed=1)
    assert list(rows) == [column.name for column in SCHEMA]
    assert rows["age"].mean() == pytest.approx(FRAME["age"].mean(), abs=2.0)
    assert rows["back"].mean() == pytest.approx(FRAME["back"].mean(), abs=0.06)
    assert (rows["ward"] == "A").mean() == pytest.approx(0.6, abs=0.1)
    assert dp.Table(rows, schema=SCHEMA).count_units() == 4000


def test_a_template_resembles_what_was_described(private):
    """In the form of the rows that a model has, for dry runs; no model of the table itself stands on it."""
    narrow = dp.Table(FRAME, schema=private.narrowed())
    t, rows = narrow.invented(4000, 1, like=private), private.invented(4000, seed=1)
    low, high = (getattr(narrow.schema.column_of("age"), end) for end in ("low", "high"))
    np.testing.assert_allclose(t.age, (rows["age"].clip(low, high) - (low + high) / 2) / ((high - low) / 2))
    np.testing.assert_array_equal(t["ward[A]"], rows["ward"] == "A")
    np.testing.assert_array_equal(t.income_missing, rows["income"].isna())
    np.testing.assert_array_equal(t.day, narrow.invented(4000, 1, like=private).day)
    with pytest.raises(dp.InvalidArgument, match="no template of this table"):
        narrow.template_of(4000)
    for like in (3, TABLE, described(table=dp.Table(FRAME, schema=SCHEMA[:2]))):
        with pytest.raises(dp.InvalidArgument, match="of all columns"):
            TABLE.invented(4000, 1, like=like)


def test_a_table_of_categories_alone_has_no_moments():
    table = dp.Table(FRAME, schema=[dp.Category("ward", ["A", "B"])])
    found = described(table=table)
    assert "correlation" not in found.tree
    assert found.categories.loc["ward", "share"]["B"] == pytest.approx((FRAME["ward"] == "B").mean(), abs=1e-9)
    assert len(found.invented(100)) == 100


def test_what_is_missing_or_wrong_is_refused_before_anything_is_charged():
    budget = dp.PrivacyBudget(1.0, 1e-6)
    undeclared = dp.Table(FRAME, age="age")
    for arguments, options, match in (
        ((FRAME,), {"budget": budget}, "whose columns are declared"),
        ((undeclared,), {"budget": budget}, "whose columns are declared"),
        ((TABLE,), {}, "has to be paid for"),
        ((TABLE,), {"budget": 1.0}, "must be a budget object"),
        ((TABLE,), {"budget": budget, "budget_share": 1.5}, "at most 1"),
        ((TABLE,), {"budget": budget, "budget_share": 0.0}, "budget_share"),
    ):
        with pytest.raises(dp.InvalidArgument, match=match):
            dp.describe(*arguments, **options)
    with pytest.raises(dp.UnsupportedTable, match="no column"):
        dp.describe(dp.Table(FRAME, schema=[dp.Number("height", 0, 3)]), budget=budget)
    assert budget.history == ()
    with pytest.raises(dp.InvalidArgument, match="not a description"):
        dp.Description(xr.DataTree.from_dict({"posterior": xr.Dataset()}))


def test_what_ends_early_says_what_was_released(monkeypatch):
    """Nothing is refunded, and an error's own message, which may hold data, is not shown."""
    budget = dp.PrivacyBudget(1.0, 1e-6)
    real, asked = asking.MeteredCurator.release, []

    def release(curator, query, noise_multiplier):
        asked.append(query)
        if len(asked) == 2:
            raise RuntimeError("the third row holds 17")
        return real(curator, query, noise_multiplier)

    monkeypatch.setattr(asking.MeteredCurator, "release", release)
    with pytest.raises(dp.RunInterrupted, match="RuntimeError was raised") as caught:
        dp.describe(TABLE, budget=budget)
    assert "17" not in str(caught.value)
    assert len(budget.history) == 1
    partial = caught.value.partial
    assert partial["privacy"].attrs["complete"] == 0
    assert [name for name in partial["releases"].data_vars if "noise" not in name] == ["unit_counts_0"]
