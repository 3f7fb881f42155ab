"""Tables that the model never sees: what one row holds changes nothing but its own contribution, whatever the model."""

import csv
import datetime
import decimal
import functools

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from declared import SCHEMA, WITH_PERSON, frame_of, model_on
from hypothesis import example, given, settings, strategies as st
from neighbours import neighbours_of
from replay import replay
from zoo import BY_NAME

import pymc_dp as dp
from pymc_dp.exceptions import UnsupportedModel, UnsupportedTable
from pymc_dp.model.view import read
from pymc_dp.rows.likelihood import UnitLikelihood

N, GRID, BOUND = 60, 2.0**-24, 0.4
FRAME = frame_of(N)
STRANGE = st.one_of(
    st.sampled_from(
        [None, np.nan, pd.NA, pd.NaT, True, False, 0, 1, 10**400, decimal.Decimal("NaN"), b"A", (), [1], {}]
    ),
    st.sampled_from(["", "A", "D", "yes", "NA", "1e999", "2024-02-30", "2024-05-04", '"', ",", ";", "\n", "\\", "'"]),
    st.sampled_from([datetime.date(2024, 5, 4), pd.Timestamp("2262-01-01"), datetime.datetime.max, object, 1j]),
    st.floats(),
    st.integers(),
    st.text(st.characters(codec="utf-8"), max_size=5),
)


@functools.cache
def likelihood():
    return UnitLikelihood(read(model_on(dp.Table({}, schema=SCHEMA).template)))


def rows_of(table):
    """Return what a model gets of every row, as bytes."""
    with table.opened(likelihood()) as rows:
        (part,) = rows._partitions._parts
        return [np.ascontiguousarray(each).reshape(N, -1).view(np.uint8) for each in part.rows_of_inputs]


def of_objects(frame, folder):
    return dp.Table.from_frame(frame, SCHEMA)


def of_inferred_types(frame, folder):
    """As pandas takes them from a list of records: one entry changes the type of its column."""
    return dp.Table.from_frame(frame.infer_objects(), SCHEMA)


def of_categories(frame, folder):
    try:
        return dp.Table.from_frame(frame.astype({"ward": "category", "stays": "category"}), SCHEMA)
    except (TypeError, ValueError):  # pandas' own, of what cannot be a category
        return of_objects(frame, folder)


def of_csv(frame, folder):
    path = folder / "table.csv"
    frame.to_csv(path, index=False, quoting=csv.QUOTE_NONNUMERIC)  # else a carriage return ends a line
    return dp.Table.from_csv(path, SCHEMA)


@functools.cache
def rows_as_they_are(source, folder):
    return rows_of(source(FRAME.astype(object), folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("csv")


@pytest.mark.parametrize("source", [of_objects, of_inferred_types, of_categories, of_csv])
@settings(max_examples=40)
@example(name="stays", entry="\r", place=0)
@given(name=st.sampled_from([column.name for column in SCHEMA]), entry=STRANGE, place=st.integers(0, N - 1))
def test_an_entry_changes_its_own_row_alone(source, name, entry, place, folder):
    """Hazard H14: to the last bit, and without an error; the other rows are what they were."""
    objects = FRAME.astype(object)
    column = objects[name].to_list()
    column[place] = str(entry) if isinstance(entry, bytes | complex | type | list | dict | tuple) else entry
    changed = np.empty(N, dtype=object)
    changed[:] = column
    try:
        after = rows_of(source(objects.assign(**{name: changed}), folder))
    except UnsupportedTable as refusal:  # what pandas made the whole column, not an entry, is refused
        assert source is of_inferred_types
        assert "holds" in str(refusal)  # noqa: PT017
        return
    for one, other in zip(rows_as_they_are(source, folder), after, strict=True):
        assert np.array_equal(np.delete(one, place, axis=0), np.delete(other, place, axis=0))


# Whole runs ----------------------------------------------------------------------------------------------------------

DECLARED = [dp.Number("x", -2, 2), dp.Whole("k", 0, 5), dp.Category("g", [0, 1, 2]), dp.Whole("y", 0, 9, raw=True)]


def declared_table(rng, n=120):
    return {
        "x": rng.normal(size=n),
        "k": rng.integers(0, 8, size=n),
        "g": rng.integers(0, 4, size=n),
        "y": rng.poisson(2.0, size=n),
        "person": np.sort(rng.integers(0, n // 3, size=n)),
    }


def poisson(_):
    t = dp.Table({}, schema=DECLARED).template
    with pm.Model() as model:
        eta = pm.Normal("b", shape=2)[0] * t.x + pm.Normal("c") * t.k_missing + pm.Normal("w", shape=4)[t.g]
        pm.Poisson("y", pm.math.exp(eta), observed=t.y)
    return model


@pytest.mark.parametrize(
    ("sampler", "relation", "unit"),
    [
        ("hmc", "substitute", None),
        ("hmc", "add-remove", "person"),
        pytest.param("surrogate", "substitute", "person", marks=pytest.mark.slow),
    ],
)
def test_what_is_noised_moves_by_no_more_than_declared(sampler, relation, unit):
    """Entries that are missing, huge, no numbers or no levels, in a row that is replaced, removed or added."""
    rng = np.random.default_rng(1)
    table = declared_table(rng)
    schema = [*DECLARED, dp.Person("person")] if unit else DECLARED
    report = replay(
        poisson,
        table,
        neighbours_of(table, relation, rng, 4, unit),
        BY_NAME[sampler],
        relation=relation,
        unit_index=unit,
        epsilon=50.0,
        beside=lambda rows: dp.Table.from_frame(pd.DataFrame(rows), schema),
    )
    assert not report.refused
    assert report.violations == []
    assert report.moved


# Models that are refused with the rows in them -----------------------------------------------------------------------


def standardised(t):
    return (t.age - t.age.mean()) / t.age.std()


class Holder:
    """Keeps whatever it is called with."""

    def __init__(self):
        self.seen = []

    def __call__(self, value, mu):
        self.seen.append(value)
        return pm.logp(pm.Bernoulli.dist(logit_p=mu), value)


def prior_at_a_mean(t):
    return pm.Normal("b", float(t.age.mean()), float(t.age.std())) * t.age


def scale_by_the_number_of_rows(t):
    return pm.Normal("b", 0, 1 / np.sqrt(t.n)) * t.age


def start_at_a_statistic(t):
    return pm.Normal("b", initval=float(np.median(t.age))) * t.age


def cut_at_quantiles(t):
    return pm.Normal("b") * pm.math.clip(t.age, *np.quantile(t.age, [0.1, 0.9]))


def standardised_in_the_model(t):
    return pm.Normal("b") * (pm.math.constant(t.age) - float(t.age.mean())) / float(t.age.std())


def potential_of_a_statistic(t):
    b = pm.Normal("b")
    pm.Potential("shrink", -((b - float(t.age.mean())) ** 2))
    return b * t.age


HARMLESS = [
    prior_at_a_mean,
    scale_by_the_number_of_rows,
    start_at_a_statistic,
    cut_at_quantiles,
    standardised_in_the_model,
    potential_of_a_statistic,
]


@pytest.mark.few(3)
@pytest.mark.parametrize("eta", HARMLESS, ids=lambda each: each.__name__)
def test_statistics_of_rows_are_those_of_invented_rows(eta):
    """Hazards H17, H45, H48, H50: a table and its neighbour get the same model, and sums move by one row's share."""
    changed = FRAME.copy()
    changed.loc[7, ["age", "back"]] = [np.inf, 1 - changed.loc[7, "back"]]
    sums = []
    for frame in (FRAME, changed):
        table = dp.Table.from_frame(frame, SCHEMA)
        with pm.Model() as model:
            pm.Bernoulli("back", logit_p=pm.Normal("a") + eta(table.template), observed=table.template.back)
        with table.opened(UnitLikelihood(read(model))) as rows:
            point = np.linspace(-0.5, 0.5, rows.n_parameters)
            sums.append(
                np.concatenate(
                    [
                        rows.clipped_gradient(point, BOUND, GRID).integers,
                        rows.clipped_log_ratio(point, -point, BOUND, GRID).integers,
                    ]
                )
            )
            sums[-1] = np.append(sums[-1], [hash(model.initial_point()["b"].tobytes()) % 2**31])
    gradient, ratio, start = np.split(sums[0] - sums[1], [-2, -1])
    assert not start.any()
    assert gradient.any()
    assert np.linalg.norm(gradient.astype(float)) * GRID <= 2 * BOUND
    assert abs(ratio[0]) * GRID <= 2 * BOUND


@pytest.mark.parametrize("eta", HARMLESS, ids=lambda each: each.__name__)
def test_nothing_that_is_made_of_the_protected_rows_is_taken_for_a_template(eta):
    """The same models, written on the rows themselves, are refused beside the table: no column is the template's."""

    class Rows:
        age, back, n = FRAME["age"].fillna(50).to_numpy(), FRAME["back"].to_numpy(), N

    with pm.Model() as model:
        pm.Bernoulli("back", logit_p=pm.Normal("a") + eta(Rows), observed=Rows.back)
    refused = pytest.raises((UnsupportedTable, UnsupportedModel))
    with refused, dp.Table.from_frame(FRAME, SCHEMA).opened(UnitLikelihood(read(model))):
        pass


def test_functions_of_the_user_see_symbols_and_no_row():
    """A likelihood of one's own is written down once, on the template; it is never called with a row."""
    keeper, table = Holder(), dp.Table.from_frame(FRAME, SCHEMA)
    t = table.template
    with pm.Model() as model:
        pm.CustomDist("back", pm.Normal("b") * t.age, logp=keeper, observed=t.back)
    with table.opened(UnitLikelihood(read(model))) as rows:
        calls = len(keeper.seen)
        rows.clipped_gradient(np.ones(1), BOUND, GRID)
        assert len(keeper.seen) == calls
    assert not any(isinstance(each, np.ndarray) for each in keeper.seen)


def test_persons_with_strange_rows_are_whole_units():
    """A row whose entries are all missing still belongs to its person."""
    odd = FRAME.copy()
    odd.loc[odd["person"] == odd["person"][7], ["age", "ward", "arrived"]] = None
    for frame in (FRAME, odd):
        table = dp.Table.from_frame(frame, WITH_PERSON)
        with table.opened(likelihood()) as rows:
            assert (rows.n_units, rows.n_rows) == (FRAME["person"].nunique(), N)
