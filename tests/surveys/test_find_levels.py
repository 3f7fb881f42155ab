"""`find_levels`: what is found, what it costs, and what follows within the same budget."""

import math

import numpy as np
import pandas as pd
import pytest

import pymc_dp as dp
from pymc_dp.accounting import account

N = 3000
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.uniform(18, 90, N),
        "ward": RNG.choice(["A", " B", "C"], N, p=[0.6, 0.3, 0.1]),
        "job": [f"job {min(k, 5000)}" for k in RNG.zipf(1.8, N)],
        "room": RNG.choice([101, 102], N),
        "name": [f"Secret-{k}" for k in range(N)],
        "person": np.arange(N) // 3,
    }
)
FRAME.loc[:99, "ward"] = None
FRAME.loc[100:199, "ward"] = "N/A"
COLUMNS = ["ward", "job", "room", "name"]


def found_levels(epsilon=1.0, relation="substitute", table=FRAME, columns=COLUMNS, **options):
    return dp.find_levels(table, columns, budget=dp.PrivacyBudget(epsilon, 1e-6, relation), **options)


@pytest.fixture(scope="module")
def found():
    return found_levels(4.0)


def test_without_noise_it_is_the_table_but_for_levels_of_one_unit():
    exact = found_levels(math.inf)
    counts = FRAME["ward"].str.strip().replace("N/A", None).value_counts()
    assert exact["ward"] == ["A", "B", "C"]
    assert exact.table.loc["ward", "count"].to_dict() == counts.to_dict()
    assert set(exact["room"]) == {"101", "102"}
    several = FRAME["job"].value_counts()
    assert set(exact["job"]) == set(several[several > 1].index)
    assert exact["name"] == []
    assert "NOT PRIVATE" in repr(exact)


def test_levels_of_many_units_are_found_and_names_are_not(found):
    assert found["ward"] == ["A", "B", "C"]
    assert found["job"][0] == "job 1"
    assert found["name"] == []
    assert "Secret" not in str(found) + repr(found.tree)
    assert "No level of name was found." in repr(found)
    table = found.table.loc["ward"]
    known = FRAME["ward"].str.strip().value_counts()
    assert (np.abs(table["count"] - known[table.index]) < 5.0 * table["error"]).all()
    assert list(found.table["count"]) == sorted(found.table["count"], reverse=True)
    assert found.table["count"].min() > found.tree["levels"].attrs["threshold"]


def test_what_was_found_declares_a_table_that_is_described_within_the_same_budget():
    budget = dp.PrivacyBudget(2.0, 1e-6)
    levels = dp.find_levels(dp.Table(FRAME, schema=[dp.Number("age", 18, 90)]), COLUMNS, budget=budget)
    assert [each.name for each in levels.categories] == ["ward", "job", "room"]
    table = dp.Table(FRAME, schema=[dp.Number("age", 18, 90), *levels.categories])
    described = dp.describe(table, budget=budget)
    shares = described.categories.loc["ward", "share"]
    assert shares["A"] == pytest.approx((FRAME["ward"] == "A").mean(), abs=0.1)
    plan, later = budget.history
    assert (plan.account, plan.delta, later.delta) == ("rho", 1e-6, pytest.approx(0.9e-6))
    assert budget.epsilon_spent < 2.0
    assert "with probability 1e-07" in budget.report()
    together = [*plan.releases, *later.releases]
    assert account(together, 1e-6, "substitute").epsilon == pytest.approx(budget.epsilon_spent, rel=1e-6)


def test_a_level_that_is_called_other_is_counted_as_other():
    frame = pd.DataFrame({"ward": ["A"] * 500 + ["other"] * 400})
    levels = found_levels(4.0, table=frame, columns="ward")
    assert levels["ward"] == ["A", "other"]
    assert levels.categories == [dp.Category("ward", ["A"])]


@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_a_person_counts_once(relation):
    levels = found_levels(math.inf, relation, columns=["room"], unit="person")
    by_person = FRAME.groupby("person")["room"].median().astype(int).astype(str).value_counts()
    assert levels.table.loc["room", "count"].to_dict() == by_person.to_dict()
    facts = levels.tree["privacy"].attrs
    assert facts.get("n_units") == (N // 3 if relation == "substitute" else None)
    assert "all rows with the same 'person'" in facts["unit"]


def test_an_order_of_rows_changes_nothing():
    one, two = (found_levels(1.0, table=each, insecure_seed=1) for each in (FRAME, FRAME[::-1]))
    pd.testing.assert_frame_equal(one.table, two.table)
    assert one.tree["privacy"].attrs["private"] == 0


def test_wherever_the_table_is_the_same_levels_are_found(tmp_path):
    frame = FRAME.drop(columns="name")
    frame["job"] = frame["job"].astype("category")
    columns = ["ward", "job", "room"]
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=700)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    csv = dp.Table.from_csv(tmp_path / "rows.csv", schema=[dp.Number("age", 18, 90), dp.Person("person")])
    sources = [frame, tmp_path / "rows.parquet", {name: frame[name].to_numpy() for name in frame}]
    found = [found_levels(1.0, table=each, columns=columns, unit="person", insecure_seed=1) for each in sources]
    found.append(found_levels(1.0, table=csv, columns=columns, insecure_seed=1))
    for each in found[1:]:
        pd.testing.assert_frame_equal(each.table, found[0].table)


def test_what_cannot_be_asked_is_refused_before_anything_is_charged():
    """Hazard H52: and no refusal shows an entry."""
    budget = dp.PrivacyBudget(1.0, 1e-6)
    table = dp.Table(FRAME, schema=[dp.Person("person"), dp.Number("age", 18, 90)])
    days = FRAME.assign(day=pd.Timestamp("2026-01-01"))
    wrong = [
        (dp.InvalidArgument, FRAME, [], {}),
        (dp.InvalidArgument, FRAME, ["ward", "ward"], {}),
        (dp.InvalidArgument, FRAME, "ward", {"delta": 0.0}),
        (dp.InvalidArgument, FRAME, "ward", {"delta": 1e-6}),
        (dp.InvalidArgument, FRAME, "ward", {"budget_share": 2.0}),
        (dp.InvalidArgument, table, "person", {}),
        (dp.UnsupportedOption, table, "ward", {"unit": "person"}),
        (dp.UnsupportedTable, FRAME, "absent", {}),
        (dp.UnsupportedTable, days, "day", {}),
        (dp.UnsupportedTable, FRAME[:1], "ward", {}),
        (dp.UnsupportedTable, {"ward": ["a", "b"], "job": ["a"]}, ["ward", "job"], {}),
        (dp.UnsupportedTable, FRAME.assign(person=None), "ward", {"unit": "person"}),
        (dp.UnsupportedTable, FRAME.assign(person=0.5), "ward", {"unit": "person"}),
    ]
    for error, source, columns, options in wrong:
        with pytest.raises(error) as raised:
            dp.find_levels(source, columns, budget=budget, **options)
        assert "Secret" not in str(raised.value)
    with pytest.raises(dp.InvalidArgument, match="budget="):
        dp.find_levels(FRAME, "ward")
    assert not budget.history
    with pytest.raises(dp.BudgetExceeded, match="set aside"):
        dp.find_levels(FRAME, "ward", budget=dp.PrivacyBudget(1.0, 1e-6, delta_for_levels=0.0))
    with pytest.raises(dp.InvalidArgument, match="no levels"):
        dp.Levels(found_levels(columns=["ward"]).tree["levels"])


def test_levels_of_a_table_on_dask_are_refused():
    pytest.importorskip("distributed")
    dask_frame = pytest.importorskip("dask.dataframe").from_pandas(FRAME[["ward"]], npartitions=2)
    with pytest.raises(dp.UnsupportedTable, match="Dask"):
        found_levels(table=dask_frame, columns="ward")
