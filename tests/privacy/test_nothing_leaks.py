"""Whatever a run publishes is a function of noisy releases and public randomness alone."""

import logging
import pickle

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc
from neighbours import Neighbour
from replay import replay

import pymc_dp as dp
from pymc_dp.accounting import GaussianReleases
from pymc_dp.model.view import read
from pymc_dp.release import MeteredCurator, SecureNoise
from pymc_dp.release.queries import GradientSum
from pymc_dp.rows import UnitLikelihood
from pymc_dp.run import sampling

CANARY = 7.123456789012345
LABEL = "canary-person"


def canary_model(offset=0.0):
    """A model whose every private input carries values and labels that can be searched for."""
    n = 300
    generator = np.random.default_rng(0)
    x = np.column_stack([np.full(n, CANARY) + offset, generator.normal(size=n) + offset])
    y = generator.normal(size=n) + CANARY
    with pm.Model(coords={"person": [f"{LABEL}-{i}" for i in range(n)], "feature": ["a", "b"]}) as model:
        data = pm.Data("x", x, dims=("person", "feature"))
        extra = pm.Data("extra", x[:, 1])
        beta = pm.Normal("beta", 0.0, 0.5, dims="feature")
        pm.Deterministic("double", 2 * beta, dims="feature")
        pm.Deterministic("fitted", data @ beta, dims="person")
        pm.Deterministic("total", (extra * beta[0]).sum())
        pm.Deterministic("rows", model.dim_lengths["person"] * beta[0])
        pm.Normal("y", data @ beta, 1.0, observed=y, dims="person")
    return model


def run(model, budget, **settings):
    options = {name: settings.pop(name) for name in ("cores", "callback", "random_seed", "quiet") if name in settings}
    with model:
        return pm.sample(draws=5, tune=2, chains=2, step=hmc(budget, **settings), **(QUIET | {"cores": 1} | options))


def everything_in(tree):
    """Yield every value and text of a tree: variables, coordinates, attributes and encodings."""
    for node in tree.subtree:
        dataset = node.to_dataset()
        yield from node.attrs.items()
        yield from node.encoding.items()
        for name, variable in {**dataset.data_vars, **dataset.coords}.items():
            yield name, variable.values
            yield from variable.attrs.items()
            yield from variable.encoding.items()


def test_no_private_input_is_in_the_tree(budget):
    """Hazards H6 and H28: neither tables, nor what is computed from them, nor timings."""
    model = canary_model()
    tree = run(model, budget)
    x = model["x"].get_value()
    secrets = np.concatenate([x.ravel(), model.rvs_to_values[model["y"]].data])
    searched = 0
    for name, value in everything_in(tree):
        assert LABEL not in str(name)
        assert LABEL not in str(value)
        numbers = np.ravel(value)
        if numbers.dtype.kind == "f":
            searched += numbers.size
            assert not np.isin(numbers, secrets).any()
    assert searched > 300
    assert {"observed_data", "constant_data", "log_likelihood"}.isdisjoint(tree.children)
    assert set(tree["posterior"].data_vars) == {"beta", "double"}
    assert set(tree["posterior"].coords) == {"chain", "draw", "feature"}
    assert "sampling_time" not in tree["posterior"].attrs


@pytest.mark.parametrize("clip_diagnostics", ["private", None])
def test_two_tables_with_the_same_releases_publish_the_same_tree(clip_diagnostics):
    """Hazard H7: statistics are functions of releases."""
    report = replay(
        lambda rows: canary_model(float(rows["offset"][0])),
        {"offset": np.array([0.0])},
        [Neighbour({"offset": np.array([3.0])}, "replaced", 0)],
        lambda **shared: hmc(clip_diagnostics=clip_diagnostics, **shared),
        real_loop=True,
    )
    assert report.comparisons[0].published_alike


@pytest.mark.few(1)
@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_neighbouring_tables_differ_by_no_more_than_the_declared_sensitivity(relation):
    y = gaussian_data(200)
    without = {"y": np.delete(y, 17)}
    neighbours = [
        Neighbour({"y": np.where(np.arange(200) == 17, odd, y)}, "replaced", 17, f"{odd}")
        if relation == "substitute"
        else Neighbour({"y": np.insert(without["y"], 17, odd)}, "added", 17, f"{odd}")
        for odd in (0.0, 1e6, -np.inf, np.inf, 1e308, 5e-324)
    ]
    report = replay(
        lambda rows: gaussian_model(rows["y"]),
        {"y": y} if relation == "substitute" else without,
        neighbours,
        hmc,
        relation=relation,
        epsilon=5.0,
        real_loop=True,
    )
    assert report.violations == []
    assert all(comparison.moved for comparison in report.comparisons)


@pytest.mark.entropy
def test_seeds_of_the_sampler_do_not_reach_the_noise(monkeypatch):
    """Hazard H24: nor does NumPy's global seed."""
    drawn = []
    real = sampling.SecureNoise.add

    def recorded(self, integers, scale):
        noisy = real(self, integers, scale)
        drawn.append(tuple((noisy - integers).tolist()))
        return noisy

    monkeypatch.setattr(sampling.SecureNoise, "add", recorded)
    for _ in range(2):
        np.random.seed(0)
        run(gaussian_model(gaussian_data()), dp.PrivacyBudget(5.0, 1e-6), random_seed=0)
    assert len(set(drawn)) == len(drawn) > 40


def test_text_shows_nothing_confidential(budget, caplog, capfd, recwarn):
    """Hazard H22: logs, warnings, output and `repr`."""
    caplog.set_level(logging.DEBUG)
    objects = []

    def look(trace, draw):
        step = objects[0]
        shown.extend([repr(step.chain._curator), repr(step._authorisation.curators), repr(step.chain._curator._rows)])

    shown = []
    with canary_model():
        step = hmc(budget)
        objects.append(step)
        pm.sample(draws=5, chains=2, cores=1, step=step, callback=look, progressbar=True)
    captured = capfd.readouterr()
    text = "\n".join(
        [caplog.text, captured.out, captured.err, *shown, repr(budget), repr(step), *[str(w.message) for w in recwarn]]
    )
    assert len(shown) == 30
    assert str(CANARY)[:8] not in text
    assert LABEL not in text


def test_errors_of_the_curator_hold_no_values(budget):
    """Hazard H22: nor do their pickles."""
    messages = []

    def overdraw(trace, draw):
        step = objects[0]
        while True:
            try:
                step.chain.gradient(np.zeros(2), 1.0)
            except dp.BudgetExceeded as error:
                messages.append(pickle.dumps(error))
                raise KeyboardInterrupt from None

    objects = []
    with canary_model():
        objects.append(hmc(budget))
        pm.sample(draws=5, chains=1, cores=1, step=objects[0], callback=overdraw, **QUIET)
    assert messages
    assert np.float64(CANARY).tobytes() not in messages[0]


def test_state_that_pymc_stores_holds_no_release_and_no_noise(budget):
    """Hazard H5: a stored state cannot bring noise back."""
    states = []

    def look(trace, draw):
        states.append(pickle.dumps(objects[0].sampling_state))

    objects = []
    with canary_model():
        objects.append(hmc(budget))
        tree = pm.sample(draws=5, chains=1, cores=1, step=objects[0], callback=look, **QUIET)
    released = tree["releases"]["gradient"].values
    assert states
    for state in states:
        assert len(state) < 3000
        assert not any(value.tobytes() in state for value in released.ravel())


def test_a_curator_beyond_its_plan_touches_no_row(budget, monkeypatch):
    touched = []
    real = UnitLikelihood.clipped_gradient

    def counted(self, *arguments, **options):
        touched.append(1)
        return real(self, *arguments, **options)

    monkeypatch.setattr(UnitLikelihood, "clipped_gradient", counted)
    rows = UnitLikelihood(read(gaussian_model(gaussian_data(50))))
    curator = MeteredCurator(rows, SecureNoise(), "substitute", [GaussianReleases("gradient", 1, 1.0)])
    curator.release(GradientSum(np.zeros(1), 1.0), 1.0)
    with pytest.raises(dp.BudgetExceeded):
        curator.release(GradientSum(np.zeros(1), 1.0), 1.0)
    assert len(touched) == 1


def test_deterministics_of_other_tables_leave_on_request_only(budget):
    """A table may be a part of the rows; only the user can know that it is public."""
    y = gaussian_data(50)
    with pm.Model(coords={"person": range(50), "age": range(5)}) as model:
        mu = pm.Normal("mu")
        pm.Deterministic("some_people", mu * y[:5])
        pm.Deterministic("new_people", mu * pm.Data("ages", np.arange(5.0), dims="age"), dims="age")
        pm.Deterministic("labelled", mu * np.float64(2.0) + np.zeros(50)[0] * mu, dims=None)
        pm.Deterministic("everyone", pm.math.ones_like(model.rvs_to_values[mu]) * mu)
        pm.Normal("y", mu, 1.0, observed=y, dims="person")
    names = set(run(model, budget)["posterior"].data_vars)
    assert {"some_people", "new_people"}.isdisjoint(names)
    assert {"mu", "labelled", "everyone"} <= names
    with model:
        tree = pm.sample(
            draws=2,
            chains=1,
            cores=1,
            var_names=["mu", "new_people"],
            step=hmc(dp.PrivacyBudget(1.0, 1e-6)),
            **QUIET,
        )
    assert set(tree["posterior"].data_vars) == {"mu", "new_people"}


def test_labels_of_rows_never_leave():
    """Hazards H6 and H39: coordinates of rows."""
    budget = dp.PrivacyBudget(5.0, 1e-6, "add-remove")
    with pm.Model(coords={"person": [f"{LABEL}-{i}" for i in range(50)]}) as model:
        mu = pm.Normal("mu")
        pm.Deterministic("flat", mu + pm.math.zeros_like(mu)[None].repeat(50), dims="person")
        pm.Normal("y", mu, 1.0, observed=gaussian_data(50), dims="person")
    tree = run(model, budget)
    assert "person" not in tree["posterior"].coords
    assert set(tree["posterior"].data_vars) == {"mu"}


def test_metadata_cannot_be_changed_by_the_run(budget):
    objects = []

    def tamper(trace, draw):
        objects[0].insecure_seed = None
        objects[0].clip_gradient = 1e-3

    with gaussian_model(gaussian_data()):
        objects.append(hmc(budget, insecure_seed=5))
        tree = pm.sample(draws=3, chains=1, cores=1, step=objects[0], callback=tamper, **QUIET)
    assert not tree["privacy"].attrs["private"]
    assert '"gradient": 4.0' in tree["privacy"].attrs["clip_bounds"]


def test_a_run_after_one_that_was_not_private_says_so():
    budget = dp.PrivacyBudget(5.0, 1e-6)
    model = gaussian_model(gaussian_data())
    run(model, budget, insecure_seed=1, budget_share=0.5)
    attributes = run(model, budget)["privacy"].attrs
    assert not attributes["private"]
    assert "earlier run" in attributes["not_private_because"]
    assert "NOT PRIVATE" in budget.report()


def test_the_unit_is_named_by_its_dim(budget):
    with pm.Model(coords={"item": range(30), "rater": range(4)}) as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.zeros((30, 4)), dims=("item", "rater"))
    assert run(model, budget)["privacy"].attrs["unit"] == "one entry of the dim 'item'"
