"""What a unit is has to be said where names in a model read like persons: names and types decide, never entries."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from conftest import QUIET

import pymc_dp as dp
from pymc_dp.exceptions import InvalidArgument, UnsupportedModel
from pymc_dp.model.axes import row_axes
from pymc_dp.model.centring import centred
from pymc_dp.model.units import declared_unit, reads_like_persons, refusal_of_undeclared_units, units_of
from pymc_dp.model.view import read

N = 30
PERSON = np.arange(N) // 3
Y = np.random.default_rng(0).normal(size=N)


def panel(name="person", index=PERSON, *, effects=None, dims=None, **coords):
    """Rows with an index of that name, or with effects along a dim."""
    with pm.Model(coords=coords) as model:
        mu = pm.Normal("mu")
        if index is not None:
            pm.Data(name, index)
        if effects:
            mu += pm.Normal("effect", dims=effects)[PERSON]
        pm.Normal("y", mu, 1.0, observed=Y, dims=dims)
    return model


PERSONS = [
    "person",
    "persons",
    "person_id",
    "idx_person",
    "patientId",
    "Patient_IDX",
    "id",
    "ID",
    "pid",
    "subject_index",
]
PERSONS += ["pupil_no", "customer", "household", "households", "families", "women", "person__factor_dim", "obs_id"]
OTHERS = [
    "x",
    "school",
    "idea",
    "age",
    "person_age",
    "customer_value",
    "feature",
    "identity",
    "county",
    "y_obs",
    "index",
]
OTHERS += ["__obs__", "midwife", "valid", "child_benefit", "column", "room_number", ""]


@pytest.mark.parametrize("name", PERSONS)
def test_names_of_persons(name):
    assert reads_like_persons(name)


@pytest.mark.parametrize("name", OTHERS)
def test_names_of_other_things(name):
    assert not reads_like_persons(name)


ASKING = {
    "an index": panel,
    "an index under another name": lambda: panel("patient_id"),
    "effects of persons": lambda: panel(index=None, effects="pupil", pupil=range(10)),
    "labels of persons": lambda: panel(index=None, effects="pupil", pupil=[f"p{i}" for i in range(10)]),
}
SILENT = {
    "groups": lambda: panel("school"),
    "effects of groups": lambda: panel(index=None, effects="school", school=range(10)),
    "rows that are persons": lambda: panel(index=None, dims="person", person=range(N)),
    "rows that are persons, of groups of them": lambda: panel("household", dims="person", person=range(N)),
    "persons as many as rows": lambda: panel(index=None, person=range(N)),
    "a table of each person": lambda: panel("person", np.zeros((4, 2), dtype=int)),
    "a number, not an index": lambda: panel("person", Y),
    "nothing observed": lambda: pm.Model(coords={"person": range(3)}),
}


@pytest.mark.parametrize("model", ASKING)
def test_persons_with_several_rows_ask_for_a_decision(model):
    said = refusal_of_undeclared_units(ASKING[model]())
    assert "it was not said what is protected" in said
    assert 'unit="row"' in said


@pytest.mark.parametrize("model", SILENT)
def test_everything_else_does_not(model):
    assert refusal_of_undeclared_units(SILENT[model]()) is None


def test_the_decision_depends_on_no_entry():
    """Not even on whether each person has one row."""
    said = [refusal_of_undeclared_units(panel(index=index)) for index in (PERSON, np.arange(N), np.zeros(N, dtype=int))]
    assert said[0] is not None
    assert len(set(said)) == 1


def test_what_is_said_of_units():
    model = panel(dims="visit", visit=range(N))
    assert declared_unit(model, None, None) == (None, None)
    assert declared_unit(model, "row", None) == (None, None)
    assert declared_unit(model, "visit", None) == ("visit", None)
    assert declared_unit(model, "visit", "person") == ("visit", "person")
    assert declared_unit(model, "person", None) == (None, "person")
    assert declared_unit(model, None, PERSON)[1] is PERSON
    assert declared_unit(panel(dims="row", row=range(N)), "row", "person") == ("row", "person")


def sample(model, budget, **options):
    with model:
        return pm.sample(draws=4, chains=1, budget=budget, **QUIET, **options)


def quick_step(**settings):
    return dp.DPHMC(clip_gradient=4.0, clip_log_ratio=4.0, step_size=0.05, n_leapfrog=1, **settings)


def with_budget(model, budget, **units):
    with model:
        return pm.sample(draws=4, chains=1, step=quick_step(budget=budget, **units), **QUIET)


WAYS = {
    "pm.sample": sample,
    "pm.sample of a step": lambda model, budget, **units: sample(model, budget, step=quick_step(), **units),
    "a step with its own": lambda model, budget, **units: sample(model, budget, step=quick_step(**units)),
    "a step with its budget": with_budget,
    "private_likelihood": lambda model, budget, **units: dp.private_likelihood(model, budget=budget, **units).tree,
}


@pytest.mark.parametrize(  # a run without a step is below, beside a table
    "way", [pytest.param(each, marks=[pytest.mark.nightly] if each == "pm.sample" else []) for each in WAYS]
)
def test_every_way_of_releasing_asks_before_the_charge_and_takes_the_answer(way, budget):
    model = panel()
    with pytest.raises(dp.InvalidArgument, match="not said what is protected"):
        WAYS[way](model, budget)
    assert budget.history == ()
    tree = WAYS[way](model, budget, unit="person")
    assert tree["privacy"].attrs["unit"] == "all rows with the same person"
    assert tree["privacy"].attrs["n_units"] == 10
    rows = WAYS[way](model, dp.PrivacyBudget(5.0, 1e-6), unit="row")
    assert rows["privacy"].attrs["n_units"] == N


def test_plans_and_dry_runs_ask_too(budget):
    with panel() as model:
        for plan in (budget.plan, lambda: dp.dry_run(budget), lambda: budget.plan(dp.DPHMC())):
            with pytest.raises(dp.InvalidArgument, match="not said what is protected"):
                plan()
        for units in ({"unit": "person"}, {"unit_index": PERSON}, {"unit": "row"}):
            assert budget.plan(**units).draws == budget.plan(dp.DPSurrogateHMC(), **units).draws
        with pytest.raises(dp.UnsupportedModel, match="several rows a unit"):
            dp.dry_run(budget, unit="person")
    assert dp.dry_run(budget, model=model, unit="row", draws=20, chains=2).n_units == N


@pytest.mark.parametrize("change", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_numbers_of_units_that_data_variables_cannot_hold_are_refused(single, change):
    """Hazard H32: PyMC keeps their last 32 or 16 bits, so that several persons may be one unit."""
    bits = 16 if single else 32
    numbers = np.where(PERSON > 0, PERSON, 2**bits + 1)  # two persons with the same last bits
    with pytensor.config.change_flags(floatX="float32" if single else "float64"):
        model = panel(index=PERSON if change else numbers)
        if change:
            assert np.array_equal(units_of(row_axes(model, None), "person").of_row, PERSON)
            model.set_data("person", numbers)
    with pytest.raises(InvalidArgument, match="pass the array itself as unit_index="):
        units_of(row_axes(model, None), "person")
    with pytest.raises(InvalidArgument, match="pass the array itself as unit_index="):
        read(centred(model), None, "person")
    assert np.array_equal(units_of(row_axes(model, None), numbers).of_row, numbers)


#: Effects of the ten persons, of any shape, and lengths of their dim.
EFFECTS = {
    "sum to zero": lambda m: pm.ZeroSumNormal("u", dims="who"),
    "of two outcomes": lambda m: pm.ZeroSumNormal("u", shape=(2, 10))[0],
    "simplex": lambda m: pm.Dirichlet("u", np.ones(1) * pt.ones(m.dim_lengths["who"]), dims="who"),
    "stick": lambda m: pm.StickBreakingWeights("u", alpha=2.0, K=9),
}
LENGTHS = {
    "prior": lambda m: pm.Normal("u", m.dim_lengths["who"].astype("float64"), 1.0),
    "likelihood": lambda m: m.dim_lengths["who"].astype("float64"),
}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        *((make, "'u' has one entry for each unit") for make in EFFECTS.values()),
        *((make, "depends on the length of a dim") for make in LENGTHS.values()),
    ],
    ids=[*EFFECTS, *LENGTHS],
)
def test_effects_of_units_and_their_number_are_refused(make, match):
    """Hazard H39: a parameter with one value less than there are persons has all of their names."""
    with pm.Model(coords={"who": range(10)}) as model:
        made = make(model)
        mean = pm.Normal("mu") + (made[PERSON] if made.type.ndim else made)
        pm.Normal("y", mean, 1.0, observed=Y)
    with pytest.raises(UnsupportedModel, match=match):
        read(model, None, PERSON)


@pytest.mark.parametrize("dims", [None, "who"])
@pytest.mark.parametrize("of_rows", [None, "row"])
def test_effects_of_rows_under_another_name_are_refused(dims, of_rows):
    """Hazard H39."""
    with pm.Model(coords={"who": range(N), "row": range(N)}) as model:
        effects = pm.Normal("u", shape=N, dims=dims) if dims else pm.ZeroSumNormal("u", shape=N)
        pm.Normal("y", effects[np.arange(N)], 1.0, observed=Y, dims=of_rows)
    with pytest.raises(UnsupportedModel, match="'u' has one entry for each row"):
        read(model)


def test_effects_with_one_unconstrained_value_for_each_row_are_refused():
    """Hazard H39: a simplex has one entry more, with a dim of its own."""
    with pm.Model(coords={"more": range(N + 1)}) as model:
        shares = pm.Dirichlet("u", np.ones(N + 1), dims="more")
        pm.Normal("y", shares[np.arange(N)], 1.0, observed=Y)
    with pytest.raises(UnsupportedModel, match="'u' has one entry for each row"):
        read(model)


def test_effects_of_the_unit_itself_are_refused(budget):
    model = panel("person_id", effects="person", person=range(10))
    with pytest.raises(dp.UnsupportedModel, match="'effect' has one entry for each unit"):
        sample(model, budget, unit="person_id")


def test_a_table_beside_the_model_declares_units_itself(budget):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu") * pm.Data("id", PERSON), 1.0, observed=Y)
    columns = {"y": Y, "id": PERSON.astype(np.int32)}
    with pytest.raises(dp.InvalidArgument, match="not said what is protected"):
        sample(model, budget, data=dp.Table(columns, y="y", id="id"))
    assert budget.history == ()
    tree = sample(model, budget, data=dp.Table(columns, y="y", id="id", unit="id"))
    assert tree["privacy"].attrs["n_units"] == 10
    rows = sample(model, dp.PrivacyBudget(5.0, 1e-6), data=dp.Table(columns, y="y", id="id"), unit="row")
    assert rows["privacy"].attrs["n_units"] == N
    # One of the two was not meant: the table's persons were protected, and nobody was told.
    ways = (
        sample,
        lambda model, budget, data, unit: dp.check(tree, model=model, budget=budget, data=data, unit=unit),
        lambda model, budget, data, unit: dp.sample(
            draws=10, model=model, step=dp.DPSurrogateHMC(budget=budget, unit=unit, model=model), data=data, **QUIET
        ),
    )
    for ask in ways:
        budget = dp.PrivacyBudget(5.0, 1e-6)
        with pytest.raises(dp.InvalidArgument, match=r'unit="row" would protect single rows'):
            ask(model, budget, data=dp.Table(columns, y="y", id="id", unit="id"), unit="row")
        assert budget.history == ()
