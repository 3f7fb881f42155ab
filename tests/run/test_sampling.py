import json
import multiprocessing
import pickle
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from conftest import QUIET, gaussian_data, gaussian_model, hmc, logistic_data, logistic_model

import pymc_dp as dp
from pymc_dp.release import MeteredCurator
from pymc_dp.run import sampling


def run(model, budget, *, draws=6, tune=2, chains=2, cores=1, step=None, **options):
    settings = {name: options.pop(name) for name in list(options) if name in STEP_SETTINGS}
    with model:
        return pm.sample(
            draws=draws,
            tune=tune,
            chains=chains,
            cores=cores,
            step=step or hmc(budget, **settings),
            **(QUIET | options),
        )


STEP_SETTINGS = {
    "vars", "unit", "unit_index", "insecure_seed", "clip_diagnostics", "keep_releases", "budget_share",
    "reuse_gradient", "n_leapfrog", "step_size", "clip_gradient", "clip_log_ratio",
}  # fmt: skip


@pytest.fixture
def model():
    return gaussian_model(gaussian_data())


@pytest.fixture
def asked(monkeypatch):
    """Count what the curator is asked for, in this process."""
    counts = {"gradient": 0, "log_ratio": 0, "clip_count": 0}

    real = MeteredCurator.release

    def counted(self, query, *arguments):
        counts[query.kind] += 1
        return real(self, query, *arguments)

    monkeypatch.setattr(MeteredCurator, "release", counted)
    return counts


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("chains", [1, 3])
def test_releases_made_equal_releases_charged(model, budget, asked, chains, reuse):
    """Hazards H1, H3 and H19: what chains and tuning iterations ask for is what was charged."""
    tree = run(model, budget, chains=chains, draws=6, tune=2, reuse_gradient=reuse, n_leapfrog=3)
    charged = {releases.kind: releases.count for releases in budget.history[0].releases}
    assert asked == charged
    assert charged["gradient"] == chains * (8 * 3 + (1 if reuse else 8))
    assert charged["log_ratio"] == chains * 6
    for kind, count in charged.items():
        assert tree["releases"].sizes[f"{kind}_release"] == count


def test_the_line_of_the_readme():
    x, y = logistic_data(300)
    with pm.Model(coords={"person": range(300), "feature": ["a", "b", "c"]}):
        data = pm.Data("x", x, dims=("person", "feature"))
        beta = pm.Normal("beta", 0, 2, dims="feature")
        pm.Bernoulli("visit", logit_p=data @ beta, observed=y, dims="person")
        budget = dp.PrivacyBudget(epsilon=2.0, delta=1e-8)
        step = dp.DPHMC(budget=budget, clip_gradient=4.0, clip_log_ratio=4.0, step_size=0.01, n_leapfrog=5)
        tree = pm.sample(draws=5, tune=3, chains=4, step=step, **QUIET)
    assert tree["posterior"]["beta"].shape == (4, 5, 3)
    assert list(tree["posterior"]["feature"].values) == ["a", "b", "c"]
    assert budget.epsilon_spent == pytest.approx(2.0)
    assert {"posterior", "sample_stats", "releases", "privacy"} == set(tree.children)


@pytest.mark.parametrize(("cores", "mp_ctx"), [(2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)])
def test_processes_give_what_one_process_gives(model, cores, mp_ctx):
    """Hazard H2: chains in workers are charged once, in the process that called."""
    trees = []
    for options in ({"cores": 1}, {"cores": cores, "mp_ctx": mp_ctx}):
        budget = dp.PrivacyBudget(5.0, 1e-6)
        trees.append(run(model, budget, chains=3, insecure_seed=11, random_seed=5, **options))
        assert len(budget.history) == 1
    one, other = trees
    assert np.all(one["posterior"]["mu"].values == other["posterior"]["mu"].values)
    for name in one["releases"].data_vars:
        np.testing.assert_array_equal(one["releases"][name].values, other["releases"][name].values)


def test_where_pymc_falls_back_to_one_process_one_run_is_charged_and_made(model, budget, asked, monkeypatch):
    """Hazard H2: PyMC catches errors of pickling and samples in this process, silently where it is quiet."""

    def cannot_be_pickled(*arguments, **options):
        raise pickle.PickleError

    monkeypatch.setattr(pm.sampling.mcmc, "_mp_sample", cannot_be_pickled)
    tree = run(model, budget, chains=3, cores=2, mp_ctx="fork")
    (plan,) = budget.history
    assert asked == {releases.kind: releases.count for releases in plan.releases}
    assert tree["posterior"].sizes["chain"] == 3


def test_a_fall_back_after_chains_have_begun_makes_no_release_twice(model, budget):
    """Hazard H2: curators that workers opened stay opened where PyMC begins anew in this process."""

    def raise_once(trace, draw):
        if draw.draw_idx == 2 and not raised:
            raised.append(True)
            raise pickle.PickleError

    raised = []
    with pytest.raises(dp.NoPlan, match="All 2 chains") as ended:
        run(model, budget, chains=2, cores=2, mp_ctx="fork", callback=raise_once, draws=20, tune=0)
    assert raised
    assert sum(json.loads(ended.value.partial["privacy"].attrs["draws_made"])) > 0
    assert len(budget.history) == 1


@pytest.mark.entropy
def test_noise_differs_between_chains_in_forked_processes(model, budget):
    """Hazard H24: chains in forked workers share no noise."""
    tree = run(model, budget, chains=4, cores=2, mp_ctx="fork", random_seed=1)
    values = tree["releases"]["log_ratio"].values
    assert np.unique(values).size == values.size


@pytest.mark.entropy
def test_a_known_seed_does_not_determine_the_noise(model):
    """Hazard H24: `random_seed` is public and does not reach the noise."""
    trees = [run(model, dp.PrivacyBudget(5.0, 1e-6), random_seed=1) for _ in range(2)]
    first, second = (tree["releases"]["gradient"].values for tree in trees)
    assert not np.any(first == second)
    assert all(tree["privacy"].attrs["private"] for tree in trees)


def test_an_insecure_seed_reproduces_and_is_marked(model):
    trees = [run(model, dp.PrivacyBudget(5.0, 1e-6), insecure_seed=3) for _ in range(2)]
    assert np.all(trees[0]["posterior"]["mu"].values == trees[1]["posterior"]["mu"].values)
    for tree in trees:
        assert not tree["privacy"].attrs["private"]
        assert "seeded" in tree["privacy"].attrs["not_private_because"]


def test_exact_diagnostics_are_marked_and_cost_nothing(model, budget):
    tree = run(model, budget, clip_diagnostics="exact")
    assert not tree["privacy"].attrs["private"]
    assert "clip_count" not in json.loads(tree["privacy"].attrs["releases"])
    assert {releases.kind for releases in budget.history[0].releases} == {"gradient", "log_ratio"}


def test_without_diagnostics_nothing_is_counted(model, budget, asked):
    tree = run(model, budget, clip_diagnostics=None)
    assert asked["clip_count"] == 0
    assert "clip_fraction_gradient" not in tree["sample_stats"]
    assert tree["privacy"].attrs["private"]


def test_clip_fractions_are_near_the_truth():
    y = np.concatenate([np.full(900, 0.0), np.full(100, 50.0)])
    budget = dp.PrivacyBudget(50.0, 1e-6)
    # steps far below the stability limit: a trajectory that runs away would clip the other rows, too
    tree = run(gaussian_model(y, prior_std=0.1), budget, draws=8, clip_gradient=20.0, step_size=0.01)
    noise_std = float(tree["releases"]["clip_count_noise_std"][0]) / 1000
    assert 0 < noise_std < 0.02
    assert tree["sample_stats"]["clip_fraction_gradient"].values == pytest.approx(0.1, abs=6 * noise_std)


def test_a_run_that_does_not_fit_is_refused_and_changes_nothing(model, budget, asked):
    run(model, budget)
    before = budget.history, dict(asked)
    with pytest.raises(dp.BudgetExceeded):
        run(model, budget)
    assert (budget.history, asked) == before


def test_shares_let_runs_follow_each_other(model, budget):
    for share in (0.5, 0.5, 1.0):
        run(model, budget, budget_share=share)
    assert len(budget.history) == 3
    assert budget.epsilon_spent <= 5.0
    assert budget.remaining_rho == 0.0


def test_an_interrupt_refunds_nothing_and_keeps_what_was_drawn(model, budget):
    def interrupt(trace, draw):
        if draw.draw_idx == 5:
            raise KeyboardInterrupt

    tree = run(model, budget, draws=20, tune=0, chains=2, callback=interrupt)
    assert budget.epsilon_spent == pytest.approx(5.0)
    assert 0 < tree["posterior"].sizes["draw"] <= 6
    assert tree["privacy"].attrs["epsilon"] == pytest.approx(5.0)


def test_a_crash_refunds_nothing_and_ends_the_authorisation(model, budget):
    def crash(trace, draw):
        raise RuntimeError("disk full")

    with model:
        step = hmc(budget)
        with pytest.raises(RuntimeError, match="disk full"):
            pm.sample(draws=5, step=step, chains=2, cores=1, callback=crash, **QUIET)
        assert budget.epsilon_spent == pytest.approx(5.0)
        with pytest.raises(dp.NoPlan):
            step.setup_chain(np.random.default_rng(0), 0, 5)
        with pytest.raises(dp.BudgetExceeded):
            pm.sample(draws=5, step=step, chains=2, cores=1, **QUIET)


def test_more_chains_than_planned_cannot_run(model, budget):
    """Hazard H1: a chain that was not paid for gets no curator."""
    claimed = []

    def start_another(trace, draw):
        if not claimed:
            claimed.append(True)
            with pytest.raises(dp.NoPlan, match="All 1 chains"):
                step.setup_chain(np.random.default_rng(0), 0, 5)
            raise KeyboardInterrupt

    with model:
        step = hmc(budget)
        pm.sample(draws=5, step=step, chains=1, cores=1, callback=start_another, **QUIET)
    assert claimed


def test_pymc_without_this_package_cannot_run_the_step(model, budget):
    with model, pytest.raises(dp.NoPlan):
        sampling._pymc_sample(draws=5, step=hmc(budget), chains=1, cores=1, **QUIET)
    assert budget.history == ()


def test_vars_in_any_order_and_transformed_variables():
    x, _ = logistic_data(200)
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(3))
        sigma = pm.HalfNormal("sigma")
        mu = pm.Normal("mu")
        pm.Normal("y", mu + (x * weights).sum(-1), sigma, observed=x[:, 1])
    trees = []
    for order in (None, [mu, sigma, weights], [weights, mu, sigma]):
        trees.append(run(model, dp.PrivacyBudget(5.0, 1e-6), insecure_seed=2, vars=order, draws=4, tune=1))
    for tree in trees:
        assert tree["posterior"]["weights"].sum("weights_dim_0").values == pytest.approx(1.0)
        assert np.all(tree["posterior"]["sigma"] > 0)
        np.testing.assert_array_equal(tree["posterior"]["mu"].values, trees[0]["posterior"]["mu"].values)
    labels = list(trees[0]["releases"]["parameter"].values)
    assert labels == ["weights_simplex__[0]", "weights_simplex__[1]", "sigma_log__", "mu"]


def test_numpy_covariates_need_no_wrapping(budget):
    x, y = logistic_data(150)
    tree = run(logistic_model(x, y, wrap=False), budget, unit="person")
    assert tree["privacy"].attrs["unit"] == "one entry of the dim 'person'"


def test_chains_start_at_different_draws_of_the_prior(model, budget):
    tree = run(model, budget, chains=4)
    starts = tree["releases"]["gradient_position"].values[tree["releases"]["gradient_iteration"].values == 0]
    assert np.unique(starts).size >= 4


def test_initvals_are_used(model, budget):
    tree = run(model, budget, initvals={"mu": 1.25})
    assert tree["releases"]["gradient_position"].values[0] == 1.25


@pytest.mark.parametrize(
    ("initvals", "message"),
    [
        ({"mu": 0.0, "weights": np.ones(2) / 2}, r"initvals\['weights'\] has shape \(2,\), but 'weights' has \(3,\)"),
        ({"weights_simplex__": np.zeros(3)}, r"'weights_simplex__' has \(2,\)"),
        ([{"mu": 0.0}, {"mu": np.zeros(1)}], r"'mu' has \(\)"),
    ],
)
def test_initvals_of_a_wrong_shape_are_named(budget, initvals, message):
    with pm.Model() as model:
        mu, weights = pm.Normal("mu"), pm.Dirichlet("weights", np.ones(3))
        pm.Normal("y", mu + weights[0], 1.0, observed=gaussian_data())
    with pytest.raises(dp.InvalidArgument, match=message):
        run(model, budget, initvals=initvals)
    assert budget.history == ()


def test_a_step_of_a_model_that_was_built_again_is_refused(model, budget):
    with model:
        step = hmc(budget)
    again = gaussian_model(gaussian_data())
    with pytest.raises(dp.UnsupportedOption, match="another model object"):
        run(again, budget, step=step)
    assert budget.history == ()


def test_the_unit_of_privacy_is_in_the_plan_and_the_report(model, budget):
    """Hazard H32: the unit is named."""
    run(model, budget, budget_share=0.5)
    assert budget.history[0].unit == "one entry of the dim 'person'"
    assert "Unit: one entry of the dim 'person'\n" in budget.report()
    run(model, budget, unit_index=np.arange(400) // 2)
    assert "  run 1: one entry of the dim 'person'\n  run 2: all rows with the same unit_index\n" in budget.report()


def test_missing_values_that_come_later_are_refused_by_the_name_of_their_table(budget):
    """Hazard H16: by the name of the table, without rows or counts."""
    y = gaussian_data()
    with pm.Model() as model:
        x = pm.Data("height", np.ones_like(y))
        pm.Normal("y", pm.Normal("mu") * x, 1.0, observed=y)
        pm.set_data({"height": np.where(y > y.mean(), np.nan, 1.0)})
    with pytest.raises(dp.UnsupportedModel, match=r"'height'\. Drop or impute them"):
        run(model, budget)
    assert budget.history == ()


@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_a_dry_run_does_not_know_a_protected_number_of_units(relation, monkeypatch):
    """Noise is in proportion to the synthetic rows where the number of units is public; else it is that of the plan."""
    seen = []

    class Seen(Exception):
        """Ends a run before its charge."""

    def see(step, given, noted):
        seen.append(given)
        raise Seen

    monkeypatch.setattr(dp.DPSurrogateHMC, "dry_run_with", see)
    for count in (300, 400):
        budget = dp.PrivacyBudget(1.0, 1e-6, relation)
        with pm.Model():
            pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.zeros(count))
            with pytest.raises(Seen):
                pm.sample(draws=5, chains=1, budget=budget, step=dp.DPSurrogateHMC(trajectories=1), **QUIET)
    same = dict(seen[0].noise_multipliers) == dict(seen[-1].noise_multipliers)
    protected = relation == "add-remove"
    assert same == protected
    assert {each.synthetic_tables.stand_in().n_units for each in seen} == {4000}
    assert (seen[0].n_units is None) == protected


def test_add_remove_hides_the_number_of_units(model):
    """Hazard H32: n is stated only where the relation makes it public."""
    budget = dp.PrivacyBudget(5.0, 1e-6, relation="add-remove")
    tree = run(model, budget)
    attributes = tree["privacy"].attrs
    assert attributes["relation"] == "add-remove"
    assert "n_units" not in attributes
    assert not any("400" in str(value) for value in attributes.values())
    noise_std = tree["releases"]["gradient_noise_std"].values
    assert noise_std == pytest.approx(budget.history[0].noise_multipliers["gradient"] * 4.0)
    assert "clip_fraction_gradient" in tree["sample_stats"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"trace": object()}, dp.UnsupportedOption),
        ({"return_inferencedata": False}, dp.UnsupportedOption),
        ({"nuts_sampler": "nutpie"}, dp.UnsupportedOption),
        ({"backend": "jax"}, dp.UnsupportedOption),
        ({"idata_kwargs": {"log_likelihood": True}}, dp.UnsupportedOption),
        ({"var_names": ["mu", "shifted"]}, dp.UnsupportedOption),
        ({"var_names": ["nobody"]}, dp.UnsupportedOption),
        ({"target_accept": 0.9}, dp.UnsupportedOption),
        ({"nuts": {"max_treedepth": 3}}, dp.UnsupportedOption),
        ({"random_seed": -1}, dp.InvalidArgument),
        ({"random_seed": "seed"}, dp.InvalidArgument),
        ({"random_seed": np.random.RandomState(0)}, dp.InvalidArgument),
        ({"progressbar": "loud"}, dp.InvalidArgument),
        ({"blas_cores": "many"}, dp.InvalidArgument),
        ({"initvals": {"nobody": 0.0}}, dp.InvalidArgument),
        ({"initvals": [{"mu": 0.0}]}, dp.InvalidArgument),
        ({"initvals": {"mu": np.zeros(3)}}, dp.InvalidArgument),
        ({"var_names": []}, dp.UnsupportedOption),
        ({"var_names": ["mu", "mu"]}, dp.UnsupportedOption),
        ({"cores": 0}, dp.InvalidArgument),
        ({"draws": 0}, dp.InvalidArgument),
        ({"chains": 0}, dp.InvalidArgument),
        ({"draws": 10**9}, dp.BudgetExceeded),
    ],
)
def test_bad_options_are_refused_before_anything_is_charged(budget, asked, options, error):
    y = gaussian_data()
    with pm.Model() as model:
        mu = pm.Normal("mu")
        data = pm.Data("data", y)
        pm.Deterministic("shifted", mu + data)
        pm.Normal("y", mu, 1.0, observed=y)
    with pytest.raises(error):
        run(model, budget, **options)
    assert budget.history == ()
    assert not any(asked.values())


def test_sums_that_might_overflow_are_refused_before_anything_is_charged(model, asked):
    budget = dp.PrivacyBudget(1e13, 1e-6)
    with pytest.raises(dp.BudgetExceeded, match="64-bit"):
        run(model, budget, draws=1, tune=0, chains=1)
    assert budget.history == ()
    assert not any(asked.values())


def test_proposals_that_go_nowhere_end_no_run(model, budget):
    tree = run(model, budget, step_size=1e-30)
    assert not tree["sample_stats"]["accepted"].any()


def test_unsupported_models_are_refused_before_anything_is_charged(budget, asked):
    with pm.Model() as model:
        x = pm.Data("x", gaussian_data())
        pm.Normal("y", pm.Normal("mu") * x / x.std(), 1.0, observed=gaussian_data())
    with pytest.raises(dp.UnsupportedModel):
        run(model, budget)
    assert budget.history == ()
    assert not any(asked.values())


def test_no_free_variable_may_be_left_to_a_step_that_is_not_private(budget):
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        pm.Normal("y", mu, sigma, observed=gaussian_data())
    with model, pytest.raises(dp.UnsupportedOption, match="sigma"):
        pm.sample(draws=5, step=hmc(budget, vars=[mu]), **QUIET)
    with model, pytest.raises(dp.UnsupportedOption, match="private"):
        pm.sample(draws=5, step=[hmc(budget, vars=[mu]), pm.Metropolis([sigma])], **QUIET)
    with model, pytest.raises(dp.UnsupportedOption):
        pm.sample(draws=5, step=[hmc(budget), pm.Metropolis([sigma])], **QUIET)
    assert budget.history == ()


def two_variables():
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=2)
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", mu[0] + mu[1], sigma, observed=gaussian_data())
    return model


def test_several_dp_steps_share_one_budget():
    budget = dp.PrivacyBudget(5.0, 1e-6)
    model = two_variables()
    with model:
        steps = [
            hmc(budget, vars=[model["mu"]], budget_share=0.3, mass_matrix=np.eye(2)),
            dp.DPPenalty(["sigma"], budget=budget, clip_log_ratio=4.0, proposal_scale=0.05, budget_share=0.1),
        ]
        tree = pm.sample(draws=6, tune=2, chains=2, cores=1, step=steps, **QUIET)
    (plan,) = budget.history
    assert plan.rho == pytest.approx(0.4 * budget.rho)
    first, second = plan.steps
    assert [each.kind for each in second.releases] == ["log_ratio", "clip_count"]
    assert sum(each.rho for each in second.releases) == pytest.approx(0.1 * budget.rho)
    gradients = sum(each.count for each in first.of_one_chain if each.kind == "gradient")
    assert gradients == 8 * 3  # never kept: the other step moves the point that it belongs to
    assert "log_ratio_2 " in str(plan)
    released = tree["releases"]
    assert released["gradient_1"].dims == ("gradient_1_release", "parameter_1")
    assert list(released["parameter_1"].values) == ["mu[0]", "mu[1]"]
    assert list(released["parameter"].values) == ["mu[0]", "mu[1]", "sigma_log__"]
    assert tree["sample_stats"]["accepted"].shape == (2, 6, 2)
    assert {"clip_fraction_gradient_1", "clip_fraction_log_ratio_2"} <= set(tree["sample_stats"].data_vars)
    assert set(tree["posterior"].data_vars) == {"mu", "sigma"}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ((["mu"], ["mu", "sigma"]), "two DP steps"),
        ((["mu"], ["mu"]), "sigma"),
    ],
)
def test_each_variable_belongs_to_one_step(budget, variables, message):
    with two_variables(), pytest.raises(dp.UnsupportedOption, match=message):
        pm.sample(draws=5, step=[hmc(budget, vars=names) for names in variables], **QUIET)
    assert budget.history == ()


def test_steps_of_one_run_agree_on_budget_and_unit(budget):
    with two_variables():
        other = dp.PrivacyBudget(1.0, 1e-6)
        with pytest.raises(dp.UnsupportedOption, match="share one budget"):
            pm.sample(draws=5, step=[hmc(budget, vars=["mu"]), hmc(other, vars=["sigma"])], **QUIET)
        with pytest.raises(dp.UnsupportedOption, match="same unit"):
            pm.sample(draws=5, step=[hmc(budget, vars=["mu"]), hmc(budget, vars=["sigma"], unit="y")], **QUIET)


def test_dp_sample_needs_a_dp_step(model):
    with model, pytest.raises(dp.UnsupportedOption, match="step="):
        dp.sample(draws=5)


def test_a_careless_delta_is_warned_about(model):
    with pytest.warns(UserWarning, match="not below 1/n"):
        run(model, dp.PrivacyBudget(5.0, 0.01))


def test_the_progress_bar_shows_acceptance_noise_and_epsilon(model, budget, capsys):
    run(model, budget, progressbar=True, quiet=False)
    shown = capsys.readouterr().out
    assert "Acce" in shown
    assert "5" in shown


def test_warmup_is_kept_on_request(model, budget):
    tree = run(model, budget, draws=4, tune=3, discard_tuned_samples=False)
    assert tree["warmup_posterior"].sizes["draw"] == 3
    assert "releases" not in tree["warmup_sample_stats"]


def test_releases_can_be_left_out(model, budget):
    assert "releases" not in run(model, budget, keep_releases=False).children


@pytest.mark.parametrize("store", ["netcdf", "zarr"])
def test_everything_survives_storage(model, budget, tmp_path, store):
    tree = run(model, budget)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if store == "netcdf":
            tree.to_netcdf(tmp_path / "tree.nc")
            again = xr.open_datatree(tmp_path / "tree.nc")
        else:
            tree.to_zarr(tmp_path / "tree.zarr")
            again = xr.open_datatree(tmp_path / "tree.zarr", engine="zarr")
    assert dict(again["privacy"].attrs) == dict(tree["privacy"].attrs)
    for group in ("posterior", "sample_stats", "releases"):
        for name, variable in tree[group].data_vars.items():
            np.testing.assert_array_equal(again[group][name].values, variable.values)


@pytest.mark.filterwarnings("ignore")
def test_arviz_works_on_the_tree(budget):
    tree = run(gaussian_model(gaussian_data()), budget, draws=30, chains=4)
    assert az.summary(tree).shape[0] == 1
    assert np.isfinite(az.rhat(tree)["mu"].values)
    az.plot_trace(tree, backend="matplotlib")


def test_metadata_says_what_was_guaranteed(model, budget):
    """Hazards H25 and H32: delta, relation, n and the kind of noise are stated."""
    attributes = run(model, budget, chains=3, draws=6, tune=2)["privacy"].attrs
    plan = budget.history[0]
    assert attributes["private"]
    assert attributes["epsilon"] == plan.epsilon <= 5.0
    assert attributes["delta"] == 1e-6
    assert attributes["relation"] == "substitute"
    assert attributes["n_units"] == 400
    assert attributes["rho"] == plan.rho
    assert {entry["kind"]: entry["count"] for entry in json.loads(attributes["releases"])} == {
        "gradient": 3 * 17,
        "log_ratio": 18,
        "clip_count": 15,
    }
    assert json.loads(attributes["clip_bounds"]) == {"gradient": 4.0, "log_ratio": 4.0}
    assert "discrete Gaussian" in attributes["noise"]
    assert attributes["pymc_dp_version"] == dp.__version__


def test_a_child_that_reruns_the_script_charges_nothing(model, budget, monkeypatch):
    """With spawn and no __main__ guard every worker runs the user's script up to pm.sample."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(dp.UnsupportedOption, match="__main__"):
        run(model, budget)
    assert budget.history == ()
