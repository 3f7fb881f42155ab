"""A declared table for tests: a schema, a file of it, and a model on its template."""

import numpy as np
import pandas as pd
import pymc as pm

import pymc_dp as dp

N = 400
SCHEMA = [
    dp.Number("age", 18, 90),
    dp.Whole("stays", 0, 10),
    dp.YesNo("emergency"),
    dp.Category("ward", ["A", "B", "C"]),
    dp.Date("arrived", "2024-01-01", "2024-12-31"),
    dp.YesNo("back"),
]
WITH_PERSON = [*SCHEMA, dp.Person("person")]
FEATURES = ("age", "age_missing", "stays", "ward", "arrived")


def frame_of(n=N, seed=3):
    """Return rows with missing entries, levels that are not listed and numbers out of range."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(10, 100, n),
            "stays": rng.poisson(3.0, n),
            "emergency": rng.random(n) < 0.4,
            "ward": rng.choice(["A", "B", "C", "D"], n),
            "arrived": pd.Timestamp("2023-12-20") + pd.to_timedelta(rng.integers(0, 390, n), "D"),
            "back": rng.integers(0, 2, n),
            "person": np.sort(rng.integers(0, n // 4, n)),
        }
    )
    for name in ("age", "ward", "arrived"):
        frame[name] = frame[name].mask(rng.random(n) < 0.1)
    return frame


def model_on(t):
    """Return a logistic regression on the columns of a template."""
    with pm.Model(coords={"feature": t.features(*FEATURES)}) as model:
        slopes = pm.Normal("slopes", dims="feature")
        x = pm.Data("x", t.matrix(*FEATURES))
        urgent = pm.Normal("urgent") * t.emergency
        pm.Bernoulli("back", logit_p=pm.Normal("intercept") + x @ slopes + urgent, observed=t.back)
    return model


def by_hand(frame):
    """Return the columns of `model_on` as they are declared, without any code of the package."""
    age, arrived = frame["age"].to_numpy(), (frame["arrived"] - pd.Timestamp("2024-01-01")).dt.days.to_numpy(float)
    columns = [
        (np.clip(np.nan_to_num(age, nan=54.0), 18, 90) - 54.0) / 36.0,
        np.isnan(age),
        (np.clip(frame["stays"], 0, 10) - 5.0) / 5.0,
        frame["ward"] == "B",
        frame["ward"] == "C",
        frame["ward"].isna() | (frame["ward"] == "D"),
        (np.clip(np.where(np.isnan(arrived), 182.0, arrived), 0, 365) - 182.5) / 182.5,
    ]
    return np.column_stack(columns).astype(float), frame["emergency"].to_numpy(np.int64), frame["back"].to_numpy()
