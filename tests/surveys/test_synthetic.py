"""Synthetic tables resemble what they are made of, differ by what is not known, and their results pool."""

import math

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from asked_again import compiled_once
from scipy import stats
from test_checking import posterior

import pymc_dp as dp

N = 2000
SCHEMA = [
    dp.Number("age", 18, 90),
    dp.YesNo("drug"),
    dp.Category("ward", ["a", "b", "c"]),
    dp.Whole("stays", 0, 6),
    dp.Date("day", "2026-01-01", "2026-12-31"),
    dp.Number("pressure", 0, 200),
]
B = np.array([0.1, 0.2, 0.05, -0.05, 0.0])


def frame_of(generator, n=N):
    age = generator.normal(50, 12, n).clip(18, 90)
    frame = pd.DataFrame(
        {
            "age": age,
            "drug": generator.random(n) < 0.4,
            "ward": generator.choice(["a", "b", "c"], n, p=[0.5, 0.4, 0.1]),
            "stays": np.clip(np.rint((age - 30) / 10 + generator.normal(size=n)), 0, 6).astype(int),
            "day": np.datetime64("2026-01-01") + generator.integers(0, 365, n),
        }
    )
    frame["pressure"] = 100 + 100 * (design(frame) @ B + 0.1 * generator.normal(size=n))
    return frame


def design(frame):
    wards = [frame["ward"] == ward for ward in ("b", "c", "other")]
    return np.column_stack([(frame["age"] - 54) / 36, frame["drug"], *wards]).astype(float)


def model_on(t):
    with pm.Model() as model:
        x = pm.Data("x", t.matrix("age", "drug", "ward"), dims=("row", "k"))
        pm.Normal("pressure", x @ pm.Normal("b", shape=5), pm.HalfNormal("s"), observed=t.pressure)
    return model


@pytest.fixture(scope="module")
def table():
    return dp.Table(frame_of(np.random.default_rng(0)), schema=SCHEMA)


@pytest.fixture(scope="module")
def description(table):
    return dp.describe(table, budget=dp.PrivacyBudget(math.inf, 1e-6), budget_share=1.0)


@pytest.fixture(scope="module")
def made(table, description):
    draws = np.tile(B, (50, 1))
    known = posterior({"b": draws, "s": np.full(50, 0.1)})
    return dp.synthetic_tables(known, description, table.template, model=model_on(table.template), m=3, n=2500)


def test_tables_have_the_columns_of_the_table_in_their_units(table, made):
    frame = frame_of(np.random.default_rng(0))
    for each in made:
        assert list(each) == list(frame)
        assert each.dtypes.map(lambda kind: kind.kind).to_dict() == {
            "age": "f", "drug": "b", "ward": each["ward"].dtype.kind, "stays": "i", "day": "M", "pressure": "f",
        }  # fmt: skip
        assert len(each) == 2500
        assert not each.attrs["private"]  # of a budget without noise
        assert each["age"].mean() == pytest.approx(50, abs=1.5)
        assert each["age"].std() == pytest.approx(12, abs=1.0)
        assert (each["ward"] == "b").mean() == pytest.approx(0.4, abs=0.06)
        assert each["stays"].mean() == pytest.approx(frame["stays"].mean(), abs=0.2)
        assert np.corrcoef(each["age"], each["stays"])[0, 1] == pytest.approx(0.75, abs=0.1)
        assert each["day"].min() >= np.datetime64("2026-01-01")
        dp.Table(each, schema=SCHEMA)
    assert not np.array_equal(made[0]["age"], made[1]["age"])


def test_responses_follow_the_model_given_the_other_columns(made):
    for each in made:
        noise = (each["pressure"] - 100) / 100 - design(each) @ B
        assert stats.kstest(noise / 0.1, "norm").pvalue > 1e-4
        for column in design(each).T[:3]:
            assert abs(np.corrcoef(noise, column)[0, 1]) < 0.1


def test_responses_of_all_kinds_come_back_in_their_units(table, description):
    t = table.template
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Bernoulli("drug", logit_p=a + pm.Normal("s") * t.age, observed=t.drug)
    (first, _) = dp.synthetic_tables(
        posterior({"a": np.full(9, 5.0), "s": np.zeros(9)}), description, t, model=model, m=2, n=300
    )
    assert first["drug"].dtype == bool
    assert first["drug"].mean() > 0.95
    with pm.Model() as model:
        scores = pm.Data("d", t.drug)[:, None] * pm.Normal("c", shape=4)
        pm.Categorical("ward", logit_p=scores, observed=t.ward)
    draws = np.tile([0.0, 0.0, 50.0, 0.0], (9, 1))
    (first, _) = dp.synthetic_tables(posterior({"c": draws}), description, t, model=model, m=2, n=300)
    assert (first["ward"][first["drug"]] == "c").all()
    assert first["ward"][~first["drug"]].nunique() == 4


def test_descriptions_are_redrawn_within_their_noise():
    """Means of 60 redrawn columns vary by the noise and by chance in units, 10 standard errors allowed."""
    looked_at = [column for column in SCHEMA if column.name in ("age", "ward", "stays")]
    table = dp.Table(frame_of(np.random.default_rng(0)), schema=looked_at)
    noisy = dp.describe(table, budget=dp.PrivacyBudget(2.0, 1e-6), budget_share=1.0, insecure_seed=0)
    drawn = [noisy.invented(2000, seed, redrawn=True) for seed in range(60)]
    line = noisy.table.loc["age"]
    ages = np.array([each["age"].mean() for each in drawn])
    sd = math.sqrt(line["mean_error"] ** 2 + line["sd"] ** 2 / N + line["sd"] ** 2 / 2000)
    assert ages.std() == pytest.approx(sd, rel=0.7)
    assert ages.mean() == pytest.approx(line["mean"], abs=sd)
    stays, whole = noisy.table.loc["stays"], np.array([each["stays"].mean() for each in drawn])
    sd = math.sqrt(stays["mean_error"] ** 2 + stays["sd"] ** 2 / N + stays["sd"] ** 2 / 2000)
    assert whole.std() == pytest.approx(sd, rel=0.7)
    assert whole.mean() == pytest.approx(stays["mean"], abs=sd + 0.05)  # whole numbers after noise was added
    between = noisy.tree["correlation"].to_dataset().sel(column="age", other="stays")
    correlations = np.array([np.corrcoef(each["age"], each["stays"])[0, 1] for each in drawn])
    free = (1 - float(between["correlation"]) ** 2) ** 2
    sd = math.sqrt(float(between["error"]) ** 2 + free / N + free / 2000)
    assert correlations.std() == pytest.approx(sd, rel=0.7)
    assert correlations.mean() == pytest.approx(float(between["correlation"]), abs=sd)
    share = noisy.categories.loc[("ward", "a")]
    shares = np.array([(each["ward"] == "a").mean() for each in drawn])
    sd = math.sqrt(share["error"] ** 2 + 0.25 / N + 0.25 / 2000)
    assert shares.std() == pytest.approx(sd, rel=0.7)
    assert shares.mean() == pytest.approx(share["share"], abs=sd)


@compiled_once()
def test_correlations_have_errors_of_their_noise(table):
    """Of 30 descriptions; 45 squared scores, of which 3 numbers share noise, have a mean within .3 and 2.5."""
    exact = dp.describe(table, budget=dp.PrivacyBudget(math.inf, 1e-6), budget_share=1.0)
    truth, scores = exact.tree["correlation"]["correlation"].values, []
    for seed in range(30):
        budget = dp.PrivacyBudget(1.0, 1e-6)
        found = dp.describe(table, budget=budget, budget_share=1.0, insecure_seed=seed).tree["correlation"].to_dataset()
        upper = np.triu_indices(len(truth), 1)
        scores.append(((found["correlation"].values - truth) / found["error"].values.clip(1e-9))[upper])
    assert 0.3 < np.mean(np.square(scores)) < 2.5


LOST = {"age": 0.3, "drug": 0.1, "ward": 0.2, "day": 0.15}


@pytest.fixture(scope="module")
def with_gaps():
    """A table with missing entries, whatever their rows hold, and none in two columns."""
    generator = np.random.default_rng(3)
    frame = frame_of(generator, 20_000)
    for name, rate in LOST.items():
        frame[name] = frame[name].mask(generator.random(len(frame)) < rate)
    schema = [dp.Number("age", 18, 90, missing=90), *SCHEMA[1:]]
    return frame, dp.Table(frame, schema=schema)


@pytest.mark.parametrize("epsilon", [math.inf, 2.0])
@compiled_once()
def test_entries_are_missing_as_often_as_in_the_table(with_gaps, epsilon):
    """Rates, and means and correlations of what is there, are the table's; complete columns stay complete."""
    frame, table = with_gaps
    found = dp.describe(table, budget=dp.PrivacyBudget(epsilon, 1e-6), budget_share=1.0, insecure_seed=1)
    for redrawn in (False, True):
        rows = found.invented(20_000, 5, redrawn=redrawn)
        for name in frame:
            rate, allowed = LOST.get(name, 0.0), 0.03 if name in LOST else 0.0
            assert rows[name].isna().mean() == pytest.approx(rate, abs=allowed)
        assert rows["age"].mean() == pytest.approx(frame["age"].mean(), abs=1.0)
        errors = found.tree["correlation"]["error"].sel(column="age")
        for other in ("stays", "pressure"):
            known = np.corrcoef(*frame[["age", other]].dropna().T.values)[0, 1]
            there = np.corrcoef(*rows[["age", other]].dropna().T.values)[0, 1]
            # Missing ages count as 90: what is released, its noise and chance in it are made 2.5 times as large.
            allowed = 4.0 * 2.5 * math.hypot(float(errors.sel(other=other)), 1.0 / math.sqrt(len(frame)))
            assert there == pytest.approx(known, abs=0.02 + allowed)
        lost = rows.isna()
        assert np.abs(np.corrcoef(lost[list(LOST)].T) - np.eye(4)).max() < 0.04
        assert lost["age"].corr(rows["stays"]) == pytest.approx(0.0, abs=0.04)
        again = dp.describe(dp.Table(rows, schema=table.schema), budget=dp.PrivacyBudget(math.inf, 1e-6))
        assert np.abs(again.table["missing"] - rows.isna().mean()).max() < 1e-9
    assert not found.invented(500, 5, redrawn=True, missing=False).isna().to_numpy().any()


def test_responses_follow_what_the_model_has_where_covariates_are_missing(with_gaps):
    _, table = with_gaps
    found = dp.describe(table, budget=dp.PrivacyBudget(math.inf, 1e-6), budget_share=1.0)
    t = table.template
    with pm.Model() as model:
        mu = pm.Normal("a") * t.age_missing + pm.Normal("b") * t.age
        pm.Normal("pressure", mu, 0.01, observed=t.pressure)
    known = posterior({"a": np.full(9, 0.5), "b": np.full(9, -0.2)})
    for each in dp.synthetic_tables(known, found, t, model=model, m=2, n=3000):
        lost = each["age"].isna()
        assert lost.mean() == pytest.approx(0.3, abs=0.05)
        assert not each["pressure"].isna().any()
        assert each["pressure"][lost].mean() == pytest.approx(100 + 100 * (0.5 - 0.2), abs=0.2)  # as one of 90 years
        scaled = (each["age"][~lost] - 54) / 36
        assert np.abs(each["pressure"][~lost] - 100 + 20 * scaled).max() < 6.0
    complete = dp.synthetic_tables(known, found, t, model=model, m=2, n=300, missing=False)
    assert not any(each.isna().to_numpy().any() for each in complete)


def test_pooled_intervals_cover_what_tables_vary_around():
    """Of 2,000 repetitions: 90 % intervals cover within 9 standard errors; their variance is right on average."""
    generator = np.random.default_rng(0)
    for not_known, within in ((1.0, 0.5), (3.0, 1.0)):
        centre = generator.normal(scale=math.sqrt(not_known), size=2000)
        drawn = centre + generator.normal(scale=math.sqrt(not_known), size=(20, 2000))
        estimates = drawn + generator.normal(scale=math.sqrt(within), size=(20, 2000))
        found = dp.pooled(estimates, np.full((20, 2000), within))
        assert np.mean((found["low"] < 0) & (found["high"] > 0)) == pytest.approx(0.9, abs=0.06)
        assert np.mean(found["sd"] ** 2) == pytest.approx(not_known * 1.05 + within * 0.05, rel=0.1)
    alike = dp.pooled([1.0, 1.0, 1.0], [0.25, 0.25, 0.25])
    assert alike.loc[0, "sd"] == 0.5


def test_what_is_wrong_is_refused(table, description):
    known, t = posterior({"b": np.zeros((9, 5)), "s": np.ones(9)}), table.template
    model = model_on(t)
    for arguments, match in [
        ((known, t, t), "description and a template"),
        ((known, description, table), "description and a template"),
        ((known, description, dp.Table({}, schema=[*SCHEMA, dp.YesNo("more")]).template), "no column more"),
        ((known, description, table.invented(500, 1)), "stand on `template`"),
        ((known["privacy"], description, t), "result"),
    ]:
        with pytest.raises(dp.InvalidArgument, match=match):
            dp.synthetic_tables(*arguments, model=model)
    like = table.invented(500, 1, like=description)  # nothing is missing: columns that say so are the same
    with pytest.raises(dp.InvalidArgument, match="stand on `template`"):
        dp.synthetic_tables(known, description, like, model=model_on(like))
    for options in ({"m": 1}, {"n": 0}):
        with pytest.raises(dp.InvalidArgument, match=next(iter(options))):
            dp.synthetic_tables(known, description, t, model=model, **options)
    for wrong in (([1.0], [1.0]), ([1.0, 2.0], [1.0]), (np.ones((2, 2, 2)), np.ones((2, 2, 2)))):
        with pytest.raises(dp.InvalidArgument, match="same shape"):
            dp.pooled(*wrong)
