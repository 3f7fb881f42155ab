"""The private likelihood: released once, a PyMC model, a file that needs neither table nor model."""

import copy
import json
import subprocess
import sys

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.posterior import PRIVATE_LIKELIHOOD, priors_of
from pymc_dp.steps.prelude.newton import NotComputable

N = 3000
SHORT = {"tune": 60, "chains": 2, "cores": 1, **QUIET}


def regression(seed=0, rows_named=False):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(N, 2))
    y = 3.0 + x @ [0.5, -1.0] + 0.7 * generator.normal(size=N)
    people = [f"person {i}" for i in range(N)] if rows_named else np.arange(N)
    with pm.Model(coords={"person": people, "feature": ["a", "b"]}) as model:
        rows = pm.Data("x", x, dims=("person", "feature"))
        tau = pm.HalfNormal("tau", 1.0)
        beta = pm.Normal("beta", 0.0, tau, dims="feature")
        intercept, sigma = pm.Normal("intercept", 0.0, 10.0), pm.HalfNormal("sigma", 2.0)
        pm.Deterministic("ratio", beta[0] / beta[1])
        pm.Deterministic("fitted", intercept + rows @ beta, dims="person")
        pm.Normal("y", intercept + rows @ beta, sigma, observed=y, dims="person")
    return model


@pytest.fixture(scope="module")
def released():
    budget = dp.PrivacyBudget(8.0, 1e-6)
    with regression(rows_named=True) as model:
        found = dp.private_likelihood(budget=budget, insecure_seed=1)
    return model, budget, found


def test_it_is_charged_and_says_what_is_guaranteed(released):
    _, budget, found = released
    assert budget.epsilon_spent == pytest.approx(8.0)
    assert found.facts["epsilon"] == pytest.approx(8.0)
    assert "epsilon=8" in repr(found)
    assert set(found.tree.children) == {"private_likelihood", "releases", "privacy"}
    labels = [str(each) for each in found.mean["parameter"].values]
    told = dict(zip(labels, found.mean.values, strict=True))
    assert told["intercept"] == pytest.approx(3.0, abs=0.1)
    assert np.exp(told["sigma_log__"]) == pytest.approx(0.7, rel=0.1)
    assert np.isnan(told["tau_log__"])  # only the prior knows it
    assert found.figures["widening"] >= 1.0


def test_nothing_of_the_rows_is_in_it(released):
    _, _, found = released
    priors = found.model()
    assert "person" not in priors.coords
    assert not priors.observed_RVs
    assert not priors.data_vars
    assert set(priors.named_vars) >= {"ratio", "tau", "beta"}
    assert "fitted" not in priors.named_vars
    assert "person" not in str(found.tree["private_likelihood"].to_dict())


def test_the_model_is_priors_times_a_normal_density(released):
    model, _, found = released
    private, priors = found.model(), priors_of(model, None)
    labels = ParameterVector(private).labels
    known = ~np.isnan(found.mean.values)
    wanted = [str(each) for each in found.mean["parameter"].values]
    covariance = found.covariance[np.ix_(known, known)]
    of_private, of_priors = private.compile_logp(), priors.compile_logp()
    generator, differences, expected = np.random.default_rng(0), [], []
    for _ in range(3):
        theta = dict(zip(labels, generator.normal(size=len(labels)), strict=True))
        at = np.array([theta[each] for each in wanted])
        parameters = ParameterVector(private)
        point = parameters.to_point(np.array([theta[each] for each in parameters.labels]))
        differences.append(float(of_private(point)) - float(of_priors(point)))
        away = (at - found.mean.values)[known]
        expected.append(-0.5 * away @ np.linalg.solve(covariance, away))
    np.testing.assert_allclose(np.diff(differences), np.diff(expected), rtol=1e-6)


def test_draws_are_of_the_posterior_and_reports_read_them(released):
    _, _, found = released
    tree = found.sample(100, random_seed=1, **SHORT)
    assert set(tree.children) >= {"posterior", "sample_stats", "private_likelihood", "releases", "privacy"}
    assert "observed_data" not in tree
    assert set(tree["posterior"].data_vars) == {"tau", "beta", "intercept", "sigma", "ratio"}
    assert json.loads(tree["privacy"].attrs["variables"]) == [str(name) for name in tree["posterior"].data_vars]
    std = np.sqrt(found.covariance[list(found.mean["parameter"].values).index("intercept")].max())
    assert float(tree["posterior"]["intercept"].mean()) == pytest.approx(3.0, abs=0.1)
    assert float(tree["posterior"]["intercept"].std()) == pytest.approx(std, rel=0.5)
    assert "energy" in tree["sample_stats"]
    quality = dp.diagnostics.quality(tree)
    assert quality.draws == 200
    assert quality.widening == pytest.approx(found.figures["widening"])
    widening = found.tree["private_likelihood"]["widening"].to_series().dropna()  # of the scale only the prior knows
    assert "tau_log__" not in widening.index
    assert np.sqrt(np.mean(widening**2)) == pytest.approx(quality.widening)
    most = widening.idxmax().replace("[0]", "[a]").replace("[1]", "[b]")
    assert (quality.most_widened, quality.largest_widening) == (most, widening.max())
    width = tree["private_likelihood"]["width_of_prior"].to_series().dropna()
    assert width["intercept"] == pytest.approx(std / 10.0, rel=0.5)
    assert quality.as_prior == ()
    hidden = tree.copy()
    hidden["private_likelihood"]["width_of_prior"].loc[{"parameter": "beta[1]"}] = 0.95
    assert dp.diagnostics.quality(hidden).as_prior == ("beta[b]",)  # as in ArviZ's tables
    assert quality.doubtful == ()
    assert 1.0 <= quality.typical_doubtful_width < 1.4
    assert 0.0 < quality.prior_pull < 1.0
    assert not quality.hangs_on_prior
    hidden["private_likelihood"]["prior_pull"].loc[{"parameter": "beta[1]"}] = -1.5
    assert dp.diagnostics.quality(hidden).most_pulled == "beta[b]"
    assert "it moves beta[b] by 1.5 sd of the draws" in dp.diagnostics.quality_report(hidden)
    hidden["private_likelihood"]["doubtful_width"].loc[{"parameter": "beta[0]"}] = 3.5
    assert dp.diagnostics.quality(hidden).doubtful == ("beta[a]",)
    assert "draws of beta[a] may be more than three times too narrow" in dp.diagnostics.quality_report(hidden)
    hidden["sample_stats"]["diverging"][:, :20] = True
    assert "20.0% of the trajectories diverged: PrivateLikelihood" in dp.diagnostics.quality_report(hidden)
    assert "Guarantee: epsilon 8" in dp.diagnostics.privacy_report(tree)
    again = dp.PrivateLikelihood(tree)  # a result of its own draws holds it, too
    xr.testing.assert_identical(again.mean, found.mean)


@pytest.mark.slow
def test_other_priors_shrink(released):
    _, _, found = released
    with pm.Model(coords={"feature": ["a", "b"]}) as sceptical:
        intercept = pm.Normal("intercept", 0.0, 1e-3)
        tau = pm.HalfNormal("tau", 1.0)
        pm.Normal("beta", 0.0, tau, dims="feature")
        pm.HalfNormal("sigma", 2.0)
        pm.Deterministic("double", 2.0 * intercept)
    tree = found.sample(60, priors=sceptical, random_seed=2, **SHORT)
    assert abs(float(tree["posterior"]["intercept"].mean())) < 0.2
    assert "double" in tree["posterior"]


def test_options_go_to_the_step_that_they_are_for(released, monkeypatch):
    """NUTS has the likelihood's covariance as mass matrix, unless another step is asked for."""
    _, _, found = released
    passed: dict = {}
    without_draws = xr.DataTree.from_dict({"posterior": xr.Dataset(), "sample_stats": xr.Dataset()})
    without_draws["sample_stats"] = xr.Dataset({"energy": (("chain", "draw"), np.zeros((2, 3)))})

    def noted(**options):
        passed.clear()
        passed.update(options)
        return without_draws

    monkeypatch.setattr("pymc_dp.run.private_likelihood.sample_without_privacy", noted)
    found.sample(3, chains=2, random_seed=1, target_accept=0.95)
    assert passed["step"].target_accept == 0.95
    assert "target_accept" not in passed
    variance, sigma = passed["step"].potential._cov, ParameterVector(found.model()).labels.index("sigma_log__")
    of_sigma = found.covariance[list(found.mean["parameter"].values).index("sigma_log__")].max()
    assert variance[sigma, sigma] == pytest.approx(of_sigma, rel=0.7)  # of a pilot's draws
    assert len({float(start["intercept"].data) for start in passed["initvals"]}) == 2
    found.sample(3, chains=2, init="adapt_diag", target_accept=0.95)
    assert "step" not in passed
    assert passed["target_accept"] == 0.95

    def no_pilot(*_):
        raise NotComputable("no finite density")

    monkeypatch.setattr("pymc_dp.run.private_likelihood.FreeHMC", no_pilot)
    found.sample(3, chains=2)  # as the first time: nothing is adapted or compiled anew
    assert passed["step"].target_accept == 0.8
    fresh = copy.copy(found)
    fresh.sample(3, chains=None, target_accept=0.95)  # PyMC's own, which finds a mass matrix by itself
    assert "step" not in passed
    assert (passed["target_accept"], passed["chains"]) == (0.95, 4)


def test_figures_are_those_of_the_priors_that_draws_have(released):
    """A prior that says where a parameter is pulls it beside noise; what was released stays as it was."""
    _, _, found = released
    with pm.Model(coords={"feature": ["a", "b"]}) as certain:
        pm.Normal("intercept", 0.0, 0.01)
        pm.Normal("beta", 0.0, pm.HalfNormal("tau", 1.0), dims="feature")
        pm.HalfNormal("sigma", 2.0)
    tree = found.sample(3, priors=certain, random_seed=1, **(SHORT | {"tune": 5}))  # figures need no draws
    before, after = (each[PRIVATE_LIKELIHOOD].to_dataset() for each in (found.tree, tree))
    assert (
        after["width_of_prior"].sel(parameter="intercept") > 0.5 > before["width_of_prior"].sel(parameter="intercept")
    )
    assert abs(after["prior_pull"]).sel(parameter="intercept") > 2.0 * abs(before["prior_pull"]).max()
    assert after.attrs["widening"] != before.attrs["widening"]
    assert (tree["sample_stats"]["widening"] == after.attrs["widening"]).all()
    changed = ["widening", "width_of_prior", "prior_pull"]
    xr.testing.assert_identical(after.drop_vars(changed).drop_attrs(), before.drop_vars(changed).drop_attrs())


@pytest.mark.parametrize("option", ["budget", "data", "model", "step"])
def test_draws_take_nothing_of_the_release(released, option):
    """No budget, for they are free, and neither a model nor a step: those of draws are made of the likelihood."""
    with pytest.raises(dp.UnsupportedOption, match=rf"^{option}: the likelihood was paid for"):
        released[2].sample(3, **{option: object()})


@pytest.mark.parametrize(
    ("option", "match"), [({"epsilon": 1.0}, "cost no privacy"), ({"return_inferencedata": False}, "no groups")]
)
def test_options_that_mean_nothing_to_free_draws_are_refused(released, option, match):
    with pytest.raises(dp.UnsupportedOption, match=match):
        released[2].sample(3, **option)


def test_priors_of_other_parameters_are_refused(released):
    _, _, found = released
    with pm.Model() as other:
        pm.Normal("intercept")
    with pytest.raises(dp.InvalidArgument, match=r"lacks beta\[0\]"):
        found.sample(priors=other)


def test_parameters_of_priors_alone_may_be_others(released):
    """The scale of a hierarchy, which the likelihood does not depend on."""
    _, _, found = released
    with pm.Model(coords={"feature": ["a", "b"]}) as priors:
        spread = pm.Gamma("spread", 2.0, 4.0, shape=2)
        pm.Normal("beta", 0.0, spread, dims="feature")
        pm.Normal("intercept", 0.0, 10.0), pm.HalfNormal("sigma", 2.0)
    tree = found.sample(40, priors=priors, random_seed=1, **(SHORT | {"tune": 40}))
    labels = [str(each) for each in tree[PRIVATE_LIKELIHOOD]["parameter"].values]
    assert sorted(labels) == sorted(ParameterVector(priors).labels)
    assert set(tree["posterior"].data_vars) == {"spread", "beta", "intercept", "sigma"}
    assert set(json.loads(tree["privacy"].attrs["parameters"])) == {"spread", "beta", "intercept", "sigma"}
    mean = found.mean.sel(parameter=["beta[0]", "beta[1]"]).values
    np.testing.assert_allclose(tree["posterior"]["beta"].mean(("chain", "draw")), mean, atol=0.05)
    assert dp.diagnostics.quality(tree).draws == 80
    (of_spread,) = np.flatnonzero(np.array(labels) == "spread_log__[1]")
    point = {"beta": np.zeros(2), "intercept": 0.0, "sigma_log__": 0.0, "spread_log__": np.zeros(2)}
    compiled = found.model(priors=priors)
    before, after = (
        compiled.compile_logp(vars=compiled.potentials)({**point, "spread_log__": value})
        for value in (np.zeros(2), np.ones(2))
    )
    assert before == after
    assert not tree[PRIVATE_LIKELIHOOD]["known"].values[of_spread]


def test_reports_ask_for_draws(released):
    _, _, found = released
    assert dp.diagnostics.quality_report(found.tree).startswith("No draws yet")
    with pytest.raises(dp.InvalidArgument, match=r"likelihood\.sample\(\)"):
        dp.diagnostics.quality_report(found)


def test_other_labels_are_refused(released):
    """Entries are matched by place: with labels in another order each would have another's posterior."""
    _, _, found = released
    assert found.coords == {"beta": {"feature": ["a", "b"]}}
    with pm.Model(coords={"feature": ["b", "a"]}) as turned:
        pm.Normal("beta", 0.0, 1.0, dims="feature")
        pm.Normal("intercept", 0.0, 10.0), pm.HalfNormal("sigma", 2.0)
    for use in (lambda: found.sample(priors=turned), lambda: dp.PrivateLikelihood(found.tree, turned)):
        with pytest.raises(dp.InvalidArgument, match="entry 0 of 'feature' is 'b' in the model, and was 'a'"):
            use()


def test_priors_with_rows_or_a_likelihood_are_refused(released):
    model, _, found = released
    with pytest.raises(dp.InvalidArgument, match="without observed variables"):
        found.sample(priors=model)
    with pytest.raises(dp.InvalidArgument, match="would count twice"):
        found.sample(priors=found.model())
    tree = copy.deepcopy(found.tree)
    tree[PRIVATE_LIKELIHOOD]["mean"] += 1.0
    with pytest.warns(UserWarning, match="another released likelihood"):
        both = dp.PrivateLikelihood(tree).model(found.model())
    assert len(both.potentials) == 2


def test_a_table_that_priors_use_does_not_leave(released):
    _, _, found = released
    with pm.Model(coords={"feature": ["a", "b"]}) as priors:
        means = pm.Data("means", np.array([0.1, 0.2]), dims="feature")
        tau = pm.HalfNormal("tau", 1.0)
        pm.Normal("beta", means, tau, dims="feature")
        pm.Normal("intercept", 0.0, 10.0), pm.HalfNormal("sigma", 2.0)
    tree = found.sample(20, priors=priors, random_seed=1, discard_tuned_samples=False, **(SHORT | {"tune": 20}))
    assert not {"constant_data", "observed_data"} & set(tree.children)
    for name in ("sample_stats", "warmup_sample_stats"):
        assert not any("perf_counter" in str(each) for each in tree[name].data_vars)


def test_a_release_without_draws_is_not_tested():
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with regression(), pytest.raises(dp.InvalidArgument, match="none is tested"):
        dp.private_likelihood(budget=budget, shares=dp.Shares(0.4, 0.3, 0.1, 0.2))
    assert budget.history == ()


@pytest.mark.parametrize("ending", [".nc", ".zarr"])
def test_a_file_needs_neither_the_table_nor_the_model(released, tmp_path, ending):
    _, _, found = released
    path = tmp_path / f"likelihood{ending}"
    found.save(path)
    loaded = dp.PrivateLikelihood.load(path)
    xr.testing.assert_identical(loaded.mean, found.mean)
    loaded.save(path)  # again
    np.testing.assert_array_equal(loaded.covariance, found.covariance)
    assert loaded.facts["epsilon"] == found.facts["epsilon"]
    with pytest.raises(dp.InvalidArgument, match="Priors are not stored"):
        loaded.sample()


@pytest.mark.slow
def test_another_process_draws_from_a_file(released, tmp_path):
    _, _, found = released
    path = tmp_path / "likelihood.nc"
    found.save(path)
    script = f"""
import pymc as pm, pymc_dp as dp
with pm.Model() as priors:
    tau = pm.HalfNormal("tau", 1.0)
    pm.Normal("beta", 0.0, tau, shape=2); pm.Normal("intercept", 0.0, 10.0); pm.HalfNormal("sigma", 2.0)
tree = dp.PrivateLikelihood.load({str(path)!r}).sample(
    100, priors=priors, tune=200, chains=1, cores=1, progressbar=False, compute_convergence_checks=False)
print(float(tree["posterior"]["intercept"].mean()))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603
    assert float(said.stdout.split()[-1]) == pytest.approx(3.0, abs=0.1)


def test_results_of_the_default_sampler_hold_one():
    with gaussian_model(gaussian_data(N)) as model:
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=0)
        tree = pm.sample(draws=50, chains=2, cores=1, step=step, **QUIET)
    found = dp.PrivateLikelihood(tree, model)
    assert float(found.mean[0]) == pytest.approx(1.0, abs=0.2)
    assert found.sample(50, **SHORT)["posterior"].sizes["draw"] == 50


def test_results_without_one_are_refused(budget):
    with gaussian_model(gaussian_data()):
        tree = pm.sample(draws=5, chains=1, tune=0, cores=1, step=hmc(budget), **QUIET)
    assert "private_likelihood" not in tree
    for result in (tree, "a file", xr.DataTree()):
        with pytest.raises(dp.InvalidArgument, match="no likelihood of its own"):
            dp.PrivateLikelihood(result)


def test_wrong_arguments_are_refused_before_the_charge():
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with regression():
        with pytest.raises(dp.InvalidArgument, match="budget= must be"):
            dp.private_likelihood(budget=3.0)
        with pytest.raises(dp.InvalidArgument, match=r"data= must be a pymc_dp\.Table"):
            dp.private_likelihood(data=np.ones(3), budget=budget)
    assert budget.history == ()
