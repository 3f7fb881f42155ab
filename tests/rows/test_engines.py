"""Which engine computes the derivatives of rows, what it compiles, and that engines agree."""

import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pymc as pm
import pytest
from conftest import logistic_data, logistic_model
from derivatives import along

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.view import read
from pymc_dp.rows import PublicUnits, UnitLikelihood
from pymc_dp.rows.fused import engine as fused_engine
from pymc_dp.rows.fused import program
from pymc_dp.rows.fused.program import NotLowered

GRID = 2.0**-35
X, Y = logistic_data(60)


def logistic():
    return logistic_model(X, Y)


def grouped():
    """A product, a gather and variables of their own."""
    with pm.Model() as model:
        group = pm.Data("group", np.arange(60) % 4)
        effect = pm.Normal("centre") + pm.HalfNormal("spread") * pm.Normal("offset", shape=4)
        mean = pm.Data("x", X) @ pm.Normal("beta", shape=3) + effect[group]
        pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=X[:, 1])
    return model


def softmax():
    with pm.Model() as model:
        pm.Categorical("y", logit_p=pm.Data("x", X) @ pm.Normal("beta", shape=(3, 4)), observed=Y)
    return model


def only_the_prior_knows():
    """Two variables that the likelihood does not depend on."""
    with pm.Model() as model:
        effect = pm.Normal("effect", pm.Normal("mu"), pm.HalfNormal("tau"), shape=3)
        pm.Poisson("y", pm.math.exp(effect[np.arange(60) % 3]), observed=Y)
    return model


MODELS = [logistic, grouped, softmax, only_the_prior_knows]


@pytest.mark.parametrize(
    "make",
    [logistic, *(pytest.param(each, marks=pytest.mark.slow) for each in MODELS[1:])],
    ids=lambda make: make.__name__,
)
def test_engines_agree_on_every_derivative(make):
    fused, reference = (
        PublicUnits(UnitLikelihood(read(make()), second_order=True, engine=n)) for n in ("fused", "reference")
    )
    size = fused._likelihood.n_parameters
    theta, direction = np.random.default_rng(0).normal(scale=0.5, size=(2, size))
    assert fused.log_likelihoods(theta) == pytest.approx(reference.log_likelihoods(theta), rel=1e-12)
    assert fused.scores(theta) == pytest.approx(reference.scores(theta), rel=1e-9, abs=1e-12)
    assert fused.curvatures(theta) == pytest.approx(reference.curvatures(theta), rel=1e-9, abs=1e-12)
    both = (along(each._likelihood, theta, direction) for each in (fused, reference))
    for one, other in zip(*both, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


@pytest.mark.slow
def test_the_package_does_without_the_fused_engine():
    code = """
    import sys

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.startswith("pymc_dp.rows.fused"):
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Blocked())
    import numpy as np
    import pymc as pm
    import pymc_dp
    from pymc_dp.model.view import read
    from pymc_dp.rows import UnitLikelihood

    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.arange(5.0))
    rows = UnitLikelihood(read(model))
    assert rows.engine_name == "reference", rows.engine_name
    assert "not installed" in rows.engine_reason
    assert rows.clipped_gradient(np.zeros(1), 100.0, 2.0**-30).value[0] == 10.0
    assert not any(name.startswith("pymc_dp.rows.fused") for name in sys.modules)
    """
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.production
def test_the_engine_is_named_and_a_fall_back_says_why(monkeypatch):
    rows = UnitLikelihood(read(logistic()))
    assert (rows.engine_name, rows.engine_reason) == ("fused", "")
    asked = UnitLikelihood(read(logistic()), engine="reference")
    assert (asked.engine_name, asked.engine_reason) == ("reference", "The reference engine was asked for.")
    with pytest.raises(InvalidArgument, match="engine must be 'fused' or 'reference'"):
        UnitLikelihood(read(logistic()), engine="other")
    monkeypatch.setattr(program, "_MOST_OPERATIONS", 5)
    rows = UnitLikelihood(read(logistic()))
    assert rows.engine_name == "reference"
    assert rows.engine_reason == "The model has no translation for the fused engine: too many operations."
    with pytest.raises(InvalidArgument, match=r"not possible here\. The model has no translation"):
        UnitLikelihood(read(logistic()), engine="fused")


@pytest.mark.production
def test_an_error_that_is_no_missing_translation_is_not_swallowed(monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(fused_engine, "Lowering", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        UnitLikelihood(read(logistic()))


@pytest.mark.slow
@pytest.mark.production
def test_second_derivatives_without_a_translation_are_those_of_the_reference_engine(monkeypatch):
    real = fused_engine._Lowered

    def first_order_only(graphs, outputs, inputs):
        if len(inputs) > len(graphs.value_variables):
            raise NotLowered("an operation that is not known")
        return real(graphs, outputs, inputs)

    monkeypatch.setattr(fused_engine, "_Lowered", first_order_only)
    rows = UnitLikelihood(read(grouped()), second_order=True)
    assert rows.engine_name == "fused"
    assert rows.engine_reason == (
        "Second derivatives are those of the reference engine: an operation that is not known."
    )
    monkeypatch.undo()
    units, reference = (
        PublicUnits(rows),
        PublicUnits(UnitLikelihood(read(grouped()), second_order=True, engine="reference")),
    )
    theta = np.random.default_rng(0).normal(scale=0.5, size=rows.n_parameters)
    assert np.array_equal(units.curvatures(theta), reference.curvatures(theta))
    assert units.scores(theta) == pytest.approx(reference.scores(theta), rel=1e-9, abs=1e-12)


def compiled(rows):
    """The names of the loops that were compiled, of first and of second derivatives."""
    engine = rows._engine
    return [
        sorted(name for loops in lowered._loops.values() for name in loops._compiled) if lowered is not None else None
        for lowered in (engine._first, engine._second)
    ]


@pytest.mark.production
def test_nothing_is_compiled_that_a_run_does_not_use():
    gradients = UnitLikelihood(read(logistic()))
    gradients.warm_up()
    assert compiled(gradients) == [["clipped", "write", "write"], None]  # the check, and log-likelihoods alone
    expansions = UnitLikelihood(read(logistic()), first_order=False, second_order=True)
    assert compiled(expansions) == [["write"], []]  # the check
    expansions.warm_up()
    assert compiled(expansions) == [["write", "write"], ["write", "write"]]
    assert expansions._engine._reference._compiled == {}


def test_what_was_not_warmed_up_is_compiled_when_it_is_asked_for():
    rows, other = UnitLikelihood(read(logistic()), first_order=False), UnitLikelihood(read(logistic()))
    theta = np.array([0.1, -0.2, 0.3])
    one, two = (each.clipped_gradient(theta, 0.5, GRID).integers for each in (rows, other))
    assert np.array_equal(one, two)


def test_rows_are_read_only_and_not_copied():
    rows = UnitLikelihood(read(logistic()))
    for values in rows._table.rows:
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    for chunk in [*rows._table.chunks(10), *rows._table.batch(np.array([3, 4]), 10)]:
        assert not any(values.flags.writeable for values in chunk.rows)


def test_a_pickle_of_a_table_holds_no_more_than_its_rows():
    rows = UnitLikelihood(read(logistic()))
    before = len(pickle.dumps(rows._table))
    rows.clipped_gradient(np.zeros(3), 1.0, GRID)
    assert rows._table._squares
    assert len(pickle.dumps(rows._table)) == before
    assert rows.on_rows(rows._table.rows)._table._squares == {}
