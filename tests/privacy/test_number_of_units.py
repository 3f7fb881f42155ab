"""Under add-remove the number of rows and units is protected: no message, text or metadata of a run says it."""

import logging
import re
import traceback
import warnings

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.accounting import GaussianReleases
from pymc_dp.diagnostics import privacy_report, quality_report
from pymc_dp.model.view import read
from pymc_dp.release import MeteredCurator, SecureNoise
from pymc_dp.release.batches import BatchesWithoutReplacement
from pymc_dp.release.queries import GradientSum
from pymc_dp.rows import UnitLikelihood

#: Rows, and units of two or three rows each. One number less or more may be said by mistake, too.
N, UNITS = 4373, 1867
SAID = re.compile(r"4[,_]?37[234]|186[678]|1[,_]86[678]")
GENERATOR = np.random.default_rng(0)
X, Y = GENERATOR.normal(size=(2, N))
UNIT_OF_ROW = np.arange(N) % UNITS


def budget_of(epsilon=50.0):
    return dp.PrivacyBudget(epsilon, 1e-6, relation="add-remove")


def model_of(*, x=X, y=Y, person_effect=False, prior_on_table=False, potential=False):
    with pm.Model(coords={"person": np.arange(len(y))}) as model:
        mu = pm.Normal("mu", x.mean() if prior_on_table else 0.0, 1.0)
        slope = pm.Data("x", x)
        if person_effect:
            mu = mu + pm.Normal("effect", 0.0, 1.0, dims="person")
        if prior_on_table:
            mu = mu + pm.Normal("shift", pm.Data("z", x).mean(), 1.0)
        if potential:
            pm.Potential("penalty", -(pm.Data("z", x) ** 2).sum() * mu)
        pm.Normal("y", mu + 0.1 * slope, 1.0, observed=y, dims="person")
    return model


def run(model, make=hmc, *, budget=None, options=(), **settings):
    with model:
        step = make(budget or budget_of(), **settings)
        return pm.sample(draws=5, tune=0, chains=2, cores=1, step=step, **(QUIET | dict(options)))


def sgld(budget, **settings):
    return dp.DPSGLD(clip_gradient=4.0, step_size=1e-6, budget=budget, **settings)


def penalty(budget, **settings):
    return dp.DPPenalty(clip_log_ratio=4.0, budget=budget, **settings)


WITH_NAN = np.where(np.arange(N) == 5, np.nan, Y)
PROVOKED = {
    "noise too small for exact sums": lambda: run(model_of(), budget=budget_of(1e14)),
    "a parameter of each person": lambda: run(model_of(person_effect=True)),
    "its starting values": lambda: run(model_of(person_effect=True), options={"initvals": {"effect": np.zeros(3)}}),
    "its mass": lambda: run(model_of(person_effect=True), mass_matrix={"mu": 1.0, "effect": np.ones(3)}),
    "all masses": lambda: run(model_of(person_effect=True), mass_matrix=np.ones(3)),
    "its scale": lambda: run(model_of(person_effect=True), penalty, proposal_scale=np.ones(3)),
    "a prior on a table": lambda: run(model_of(prior_on_table=True)),
    "a potential on a table": lambda: run(model_of(potential=True)),
    "tables of different lengths": lambda: run(model_of(x=X[:-1])),
    "missing values": lambda: run(model_of(y=WITH_NAN)),
    "another number of units": lambda: run(model_of(), unit_index=UNIT_OF_ROW[:-1]),
    "units that are no numbers": lambda: run(model_of(), unit_index=UNIT_OF_ROW + 0.5),
    "no such unit": lambda: run(model_of(), unit="household"),
    "batches of a fixed size": lambda: run(model_of(), sgld, batch_size=10),
    "a number of units": lambda: run(model_of(), sgld, sampling_probability=0.1, n_units=10),
    "neither": lambda: run(model_of(), sgld),
    "a number of draws": lambda: run(model_of(), budget=budget_of(1e-9)),
    "Barker": lambda: run(model_of(), lambda budget: dp.DPBarker(batch_size=20, budget=budget)),
}


@pytest.mark.parametrize("provoke", PROVOKED.values(), ids=PROVOKED)
def test_no_refusal_says_how_many_rows_there_are(provoke):
    """Hazard H16: no refusal counts rows."""
    with pytest.raises(dp.PrivacyError) as refused:
        provoke()
    # With what it was raised from: errors of PyMC and NumPy as well.
    said = [line for line in traceback.format_exception(refused.value) if not line.startswith("  File")]
    assert not SAID.search("".join([*said, repr(refused.value.args)]))


def test_a_curator_under_add_remove_refuses_batches_of_a_fixed_size_without_counting():
    paid = [GaussianReleases("gradient", 1, 1.0)]
    curator = MeteredCurator(UnitLikelihood(read(gaussian_model(Y))), SecureNoise(), "add-remove", paid)
    with pytest.raises(dp.BudgetExceeded) as refused:
        curator.release(GradientSum(np.zeros(1), 1.0, batches=BatchesWithoutReplacement(10, 20)), 1.0)
    assert not SAID.search(str(refused.value))


def texts_of(tree):
    for node in tree.subtree:
        dataset = node.to_dataset()
        # The microseconds at which a tree was made are any number.
        attributes = {name: value for name, value in node.attrs.items() if name != "created_at"}
        yield f"{attributes}{dict(dataset.sizes)}"
        for variable in {**dataset.data_vars, **dataset.coords}.values():
            yield str(variable.attrs)
            numbers = np.ravel(variable.values)
            if numbers.dtype.kind in "iuf":  # noisy numbers may come near, never to it
                assert not np.isin(numbers, [N, UNITS]).any()


@pytest.mark.few(3)  # each sampler once, and units of one row and of several
@pytest.mark.parametrize(
    ("make", "by_unit"),
    [
        (hmc, False),
        (hmc, True),
        (lambda budget, **s: sgld(budget, sampling_probability=0.1, **s), True),
        (lambda budget, **s: sgld(budget, sampling_probability=0.1, **s), False),
        (lambda budget, **s: dp.DPSurrogateHMC(budget=budget, trajectories=5, **s), True),
        (lambda budget, **s: dp.DPSurrogateHMC(budget=budget, trajectories=5, **s), False),
    ],
)
def test_nothing_that_a_run_says_holds_the_number(make, by_unit, caplog):
    """Hazard H32: nor is it said anywhere else."""
    caplog.set_level(logging.DEBUG)
    budget = budget_of(81.0)  # of 80 the digits of a noise multiplier have the number in their middle
    settings = {"unit_index": UNIT_OF_ROW} if by_unit else {"unit": "person"}
    with model_of() as model, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step = make(budget, **settings)
        plan = budget.plan(step, draws=5, chains=2)
        tree = pm.sample(draws=5, tune=0, chains=2, cores=1, step=step, progressbar=False)
    said = [*texts_of(tree), privacy_report(tree), quality_report(tree), repr(budget), str(plan), repr(plan)]
    said += [budget.report(), repr(step), repr(UnitLikelihood(read(model))), *(str(each.message) for each in warned)]
    # How long compiling took is any number, the one that is looked for as well.
    said += [re.sub(r"[\d.e-]+ seconds", "some seconds", record.getMessage()) for record in caplog.records]
    for text in said:  # where an object stands in memory is any number, too
        assert not SAID.search(re.sub(r" at 0x[0-9a-f]+>", ">", text)), text
