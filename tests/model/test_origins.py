"""What the search for the data in a synthetic table sees, and what it cannot see."""

import gc
import weakref

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

import pymc_dp as dp
from pymc_dp import _pymc_hook
from pymc_dp.model import origins
from pymc_dp.model.origins import shares_tables

N = 80


def table():
    generator = np.random.default_rng(0)
    return {"x": generator.normal(size=N), "y": generator.normal(size=N)}


def zeros():
    return np.zeros(N)


# Each writes a model with `x` as a covariate or `y` as the response, the way users do, on arrays it is given.


def data_variable(of):
    pm.Normal("y", pm.Normal("mu") * pm.Data("x", of["x"]), 1.0, observed=zeros())


def observed(of):
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=of["y"])


def observed_counts(of):
    pm.Poisson("y", pm.HalfNormal("mu"), observed=of["counts"])


def observed_data_variable(of):
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=pm.Data("responses", of["y"]))


def constant(of):
    pm.Normal("y", pm.Normal("mu") * pt.as_tensor(of["x"]), 1.0, observed=zeros())


def plain_array(of):
    pm.Normal("y", pm.Normal("mu") * of["x"], 1.0, observed=zeros())


def shared(of):
    pm.Normal("y", pm.Normal("mu") * pytensor.shared(of["x"], borrow=True), 1.0, observed=zeros())


def closure(of):
    def logp(value, mu):
        return pm.logp(pm.Normal.dist(mu * of["x"], 1.0), value)

    pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=zeros())


def closure_dist(of):
    def dist(mu, size):
        return pm.Normal.dist(mu * of["x"], 1.0, size=size)

    pm.CustomDist("y", pm.Normal("mu"), dist=dist, observed=zeros())


def statistic_in_a_closure(of):
    x = of["x"]
    pm.CustomDist(
        "y",
        pm.Normal("mu"),
        logp=lambda value, mu: pm.logp(pm.Normal.dist(mu + x.mean(), 1.0), value),
        observed=zeros(),
    )


def default_of_a_function(of):
    def logp(value, mu, x=of["x"]):
        return pm.logp(pm.Normal.dist(mu * x, 1.0), value)

    pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=zeros())


def keyword_of_a_function(of):
    def logp(value, mu, *, x=of["x"]):
        return pm.logp(pm.Normal.dist(mu * x, 1.0), value)

    pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=zeros())


def set_later(of):
    x = pm.Data("x", zeros())
    pm.Normal("y", pm.Normal("mu") * x, 1.0, observed=zeros())
    pm.set_data({"x": of["x"]})


def series(of):
    pm.Normal("y", pm.Normal("mu") * pm.Data("x", of["frame"]["x"]), 1.0, observed=zeros())


def observed_series(of):
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=of["frame"]["y"])


def frame(of):
    pm.Normal("y", pm.Data("x", of["frame"]) @ pm.Normal("mu", shape=2), 1.0, observed=zeros())


def labelled(of):
    pm.Normal("y", pm.Normal("mu") * pm.Data("x", of["labelled"]), 1.0, observed=zeros())


def in_a_submodel(of):
    with pm.Model(name="inner"):
        data_variable(of)


def some_rows(of):
    chosen = of["frame"][of["frame"]["x"] > 0.0]
    pm.Normal("y", pm.Normal("mu") * pm.Data("x", chosen["x"]), 1.0, observed=np.zeros(len(chosen)))


def listed(of):
    pm.Normal("y", pm.Normal("mu") * pm.Data("x", of["list"]), 1.0, observed=zeros())


def observed_list(of):
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=of["list"])


def shared_copy(of):
    pm.Normal("y", pm.Normal("mu") * pytensor.shared(of["x"]), 1.0, observed=zeros())


class Likelihood:
    def __init__(self, x):
        self.x = x

    def __call__(self, value, mu):
        return pm.logp(pm.Normal.dist(mu * self.x, 1.0), value)


def object_with_data(of):
    pm.CustomDist("y", pm.Normal("mu"), logp=Likelihood(of["x"]), observed=zeros())


def statistic(of):
    pm.Normal("y", pm.Normal("mu", of["x"].mean()), 1.0, observed=zeros())


SEEN = [
    data_variable,
    observed,
    observed_counts,
    observed_data_variable,
    constant,
    plain_array,
    shared,
    closure,
    closure_dist,
    statistic_in_a_closure,
    default_of_a_function,
    keyword_of_a_function,
    set_later,
    series,
    observed_series,
    frame,
    labelled,
    in_a_submodel,
]
NOT_SEEN = [some_rows, listed, observed_list, shared_copy, object_with_data, statistic]


def all_spellings():
    of = table()
    frame_of_it = pd.DataFrame({"x": of["x"], "y": of["y"]})
    return of | {
        "frame": frame_of_it,
        "list": of["x"].tolist(),
        "labelled": xr.DataArray(of["x"], dims="row"),
        "counts": np.arange(N),
    }


def written(write, of):
    with pm.Model() as model:
        write(of)
    return model


@pytest.mark.parametrize("write", SEEN)
def test_a_function_called_twice_on_the_same_arrays_writes_no_synthetic_table(budget, write):
    """Hazard H41: what the check can see is refused."""
    of = all_spellings()
    model, synthetic = written(write, of), written(write, of)
    with model, pytest.raises(dp.InvalidArgument, match="holds a table of the model of the data"):
        dp.DPSurrogateHMC(budget=budget, synthetic=synthetic)


@pytest.mark.parametrize("write", SEEN + NOT_SEEN)
def test_synthetic_arrays_of_the_same_values_are_no_sharing(budget, write):
    """Identity is asked for, never values: a table that happens to be equal is another table."""
    model, synthetic = written(write, all_spellings()), written(write, all_spellings())
    with model:
        dp.DPSurrogateHMC(budget=budget, synthetic=synthetic)


@pytest.mark.parametrize("write", NOT_SEEN)
def test_what_the_documentation_says_is_not_seen(write):
    """Hazard H41: what it cannot see is documented."""
    of = all_spellings()
    assert not shares_tables(written(write, of), written(write, of))


PARTS = {
    "the first rows": lambda x: x[: N // 2],
    "the other rows": lambda x: x[N // 2 :],
    "every second": lambda x: x[::2],
    "reversed": lambda x: x[::-1],
    "reshaped": lambda x: x.reshape(2, -1)[1],
    "as other bytes": lambda x: x.view(np.int64).view(float),
}
COPIES = {
    "a copy": lambda x: x.copy(),
    "a subsample": lambda x: np.random.default_rng(1).choice(x, N // 2),
    "rounded": lambda x: x.round(3),
    "of single precision": lambda x: x.astype(np.float32),
    "through a frame": lambda x: pd.DataFrame({"x": x, "label": "a"})[["x"]].to_numpy()[:, 0].copy(),
}


@pytest.mark.parametrize("spelling", [data_variable, observed, constant])
@pytest.mark.parametrize("part", PARTS)
def test_parts_of_an_array_are_seen(spelling, part):
    of = table()
    parts = {name: PARTS[part](values) for name, values in of.items()}
    with pm.Model() as synthetic:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=parts["x"])
        pm.Data("z", parts["y"])
    assert shares_tables(written(spelling, of), synthetic)


def test_two_parts_that_do_not_overlap_are_seen():
    whole = np.random.default_rng(0).normal(size=2 * N)
    assert shares_tables(written(constant, {"x": whole[:N]}), written(constant, {"x": whole[N:]}))


@pytest.mark.parametrize("spelling", [data_variable, observed, constant])
@pytest.mark.parametrize("copy", COPIES)
def test_copies_are_not_seen(spelling, copy):
    of = table()
    copies = {name: COPIES[copy](values) for name, values in of.items()}
    with pm.Model() as synthetic:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=copies["x"])
        pm.Data("z", copies["y"])
    assert not shares_tables(written(spelling, of), synthetic)


def test_data_that_were_replaced_are_forgotten():
    of = table()
    synthetic = written(data_variable, of)
    assert shares_tables(written(data_variable, of), synthetic)
    with synthetic:
        pm.set_data({"x": zeros()})
    assert not shares_tables(written(data_variable, of), synthetic)
    with synthetic:
        pm.set_data({"x": of["x"]})
    assert shares_tables(written(data_variable, of), synthetic)
    with synthetic:
        pm.set_data({"x": zeros().tolist()})
    assert not shares_tables(written(data_variable, of), synthetic)


def test_a_table_simulated_from_a_generator_is_accepted(budget):
    generator = np.random.default_rng(7)

    def simulated():
        return {"x": generator.normal(size=N), "y": generator.normal(size=N)}

    synthetic = written(data_variable, simulated())
    with written(data_variable, table()):
        dp.DPSurrogateHMC(budget=budget, synthetic=synthetic)


@pytest.mark.parametrize("kind", ["array", "frame"])
def test_no_array_is_kept_alive_and_no_model(kind):
    x = np.random.default_rng(0).normal(size=N)
    given = x if kind == "array" else pd.DataFrame({"x": x})["x"]
    model = written(data_variable, {"x": given})
    owner = origins.owner_of(given if kind == "array" else given.to_numpy())
    assert [array is owner for array in origins.arrays_given_to(model)] == [True]
    of_array, of_model = weakref.ref(owner), weakref.ref(model)
    del x, given, owner
    gc.collect()
    assert of_array() is None
    assert list(origins.arrays_given_to(model)) == []
    del model
    gc.collect()
    assert of_model() is None


def test_noting_can_be_switched_off():
    of = table()
    _pymc_hook.uninstall()
    try:
        assert not shares_tables(written(data_variable, of), written(data_variable, of))
    finally:
        _pymc_hook.install()
    assert shares_tables(written(data_variable, of), written(data_variable, of))
