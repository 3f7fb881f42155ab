"""Dry runs: the same code on a synthetic table tells what a run is worth, reads nothing and spends nothing."""

import math

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from posteriors import normal

import pymc_dp as dp
from pymc_dp.diagnostics import Quality
from pymc_dp.reports import forecast as forecast_module
from pymc_dp.reports.forecast import _compared, _copy_of_budget
from pymc_dp.rows import UnitLikelihood
from pymc_dp.run import sampling

N = 4000


def table(seed, n=N):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n)
    return x, (generator.random(n) < 1.0 / (1.0 + np.exp(0.5 - x))).astype(np.int64)


def regression(x, y):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 2.0, shape=2)
        pm.Bernoulli("y", logit_p=beta[0] + beta[1] * pm.Data("x", x), observed=y)
    return model


@pytest.fixture
def short_reference(monkeypatch):
    """For tests that look at no error and no coverage."""
    monkeypatch.setattr(forecast_module, "_REFERENCE_DRAWS", 5)


def dry_run():
    budget = dp.PrivacyBudget(2.0, 1e-6)
    synthetic = regression(*table(1))
    with regression(*table(0)):
        step = dp.DPSurrogateHMC(budget=budget, insecure_seed=1)  # with other noise the bias of clipping may not show
        found = dp.dry_run(step, synthetic=synthetic, draws=200, random_seed=0)
    return budget, found


@pytest.fixture(scope="module")
def forecast():
    """What a dry run tells of noise, which no reference is needed for."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(forecast_module, "_REFERENCE_DRAWS", 5)
        return dry_run()


@pytest.mark.slow
@pytest.mark.production
def test_a_dry_run_tells_what_to_expect_and_spends_nothing():
    budget, found = dry_run()
    assert budget.history == ()
    assert found.plan.epsilon == pytest.approx(2.0, rel=1e-6)
    assert (found.n_units, found.size) == (N, 2)
    assert 0.0 < found.error <= found.worst < 1.5
    assert 0.7 < found.coverage <= 1.0
    assert found.quality.effective_draws > 200
    text = str(found)
    for words in ("nothing was read or spent", "posterior sd", "effective draws", "Verdict: usable"):
        assert words in text


@pytest.mark.slow
def test_the_forecast_is_that_of_the_runs(forecast):
    """The forced error, which noise alone decides, within a factor of 2."""
    _, found = forecast
    with regression(*table(0)):
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(2.0, 1e-6))
        tree = pm.sample(draws=200, cores=1, step=step, progressbar=False, compute_convergence_checks=False)
    real = math.sqrt(dp.diagnostics.quality(tree).widening_by_noise ** 2 - 1.0)
    assert 0.5 < found.forced_error / real < 2.0


@pytest.fixture
def seen(monkeypatch):
    """The greatest first column of every likelihood that is made: protected rows are all 7."""
    largest: list[float] = []
    real = UnitLikelihood.__init__

    def noted(self, model, *args, **kwargs):
        real(self, model, *args, **kwargs)
        largest.append(float(np.max(self._table.rows[0])))

    monkeypatch.setattr(UnitLikelihood, "__init__", noted)
    return largest


@pytest.mark.usefixtures("short_reference")
def test_no_protected_row_is_looked_at(seen):
    """A likelihood is made of synthetic rows alone: those of the data are all 7."""
    synthetic = regression(*table(1, 500))
    with regression(np.full(500, 7.0), np.zeros(500, dtype=np.int64)):
        dp.dry_run(dp.PrivacyBudget(4.0, 1e-6), synthetic=synthetic, draws=10, random_seed=0)
    assert seen
    assert max(seen) < 7.0


@pytest.mark.usefixtures("short_reference")
def test_a_step_of_ones_own_is_tried_with_its_settings():
    settings = {"clip_gradient": 2.0, "clip_log_ratio": 2.0, "step_size": 0.05, "n_leapfrog": 2}
    budget, synthetic = dp.PrivacyBudget(2.0, 1e-6), regression(*table(1))
    with regression(*table(0)) as model:
        found = dp.dry_run(
            dp.DPHMC([model["beta"]], budget=budget, **settings), synthetic=synthetic, draws=20, chains=2, tune=3
        )
    assert found.plan.sampler == "dp_hmc"
    assert (found.plan.draws, found.plan.chains, found.plan.tune) == (20, 2, 3)
    assert not found.quality.usable
    assert math.isnan(found.worth.epsilon_for(0.5))


def protected_table(n=N, **options):
    """A table beside a model: all of its rows are 7, which nothing may look at."""
    rows = {"x": np.full(n, 7.0), "y": np.ones(n, dtype=np.int64), "person": np.arange(n)}
    return dp.Table(rows, x="x", y="y", **options)


@pytest.mark.slow
@pytest.mark.production
def test_a_dry_run_beside_a_table_counts_its_rows_and_runs_on_the_models(seen):
    budget, long = dp.PrivacyBudget(2.0, 1e-6), regression(*table(2, 900))
    with regression(*table(1, 500)):
        found = dp.dry_run(budget, data=protected_table(520), draws=60, chains=1)
        with pytest.raises(dp.InvalidArgument, match=r"has 500 units, the protected one 900.*invented\(900, seed=7\)"):
            dp.dry_run(budget, data=protected_table(900))
        with pytest.raises(dp.InvalidArgument, match="units of one row"):
            dp.dry_run(budget, data=protected_table(520, unit="person"))
        longer = dp.dry_run(budget, synthetic=long, data=protected_table(900), draws=60, chains=1)
    assert (found.n_units, longer.n_units) == (500, 900)
    assert seen
    assert max(seen) < 7.0
    assert budget.history == ()


@pytest.mark.slow
@pytest.mark.production
def test_what_was_spent_is_not_there_in_the_dry_run():
    budget, synthetic = dp.PrivacyBudget(2.0, 1e-6), regression(*table(1))
    with regression(*table(0)):
        pm.sample(
            draws=5, chains=1, cores=1, progressbar=False, step=dp.DPSurrogateHMC(budget=budget, budget_share=0.9)
        )
        found = dp.dry_run(budget, synthetic=synthetic, draws=20)
    assert found.plan.epsilon < 1.0
    assert len(budget.history) == 1
    assert _copy_of_budget(budget).epsilon_spent == budget.epsilon_spent > 1.0


@pytest.mark.parametrize(
    "aside", [{"reserved_share": 0.5}, {"delta_for_levels": 9e-7}, {"elsewhere": {"other": (1.0, 1e-7)}}]
)
def test_what_is_set_aside_is_set_aside_in_the_dry_run(aside):
    budget = dp.PrivacyBudget(2.0, 1e-6, **aside)

    def rho(budget):
        with regression(*table(0, 50)):
            return budget.plan([dp.DPSurrogateHMC(budget=budget)], draws=10, tune=0, chains=1).rho

    assert rho(_copy_of_budget(budget)) == rho(budget) < rho(dp.PrivacyBudget(2.0, 1e-6))


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.production
def test_rows_are_simulated_from_a_model_without_covariates(monkeypatch):
    posterior = normal("normal", np.diag([1.0, 2.0]), 1.0, 3000)
    tables = []
    real = sampling.sample_invented_rows

    def kept(**options):
        tables.append(pm.modelcontext(None))
        return real(**options)

    monkeypatch.setattr(sampling, "sample_invented_rows", kept)
    with posterior.model:
        found = dp.dry_run(dp.PrivacyBudget(4.0, 1e-6), draws=100, random_seed=3)
    (twin,) = tables
    held = twin.rvs_to_values[twin["y"]].data
    assert held.shape == (3000, 2)
    assert not np.isin(held, posterior.model.rvs_to_values[posterior.model["y"]].data).any()
    assert found.error < 1.0


@pytest.mark.slow
@pytest.mark.production
def test_a_protected_number_of_units_is_not_simulated_and_not_told():
    """Two tables of other lengths give the same refusal, and the same numbers where a synthetic table is passed."""
    settings = {"clip_gradient": 2.0, "clip_log_ratio": 2.0, "step_size": 0.05, "n_leapfrog": 2}
    synthetic = normal("normal", np.diag([1.0, 2.0]), 1.0, 1000, seed=1).model
    found, refused = [], []
    for n in (300, 900):
        budget = dp.PrivacyBudget(4.0, 1e-6, "add-remove")
        with normal("normal", np.diag([1.0, 2.0]), 1.0, n).model:
            with pytest.raises(dp.UnsupportedModel, match=r"protected under add-remove.*pass synthetic=") as info:
                dp.dry_run(dp.DPHMC(**settings), budget=budget, draws=3, chains=1)
            refused.append(str(info.value))
            found.append(dp.dry_run(dp.DPHMC(**settings), budget=budget, draws=3, chains=1, synthetic=synthetic))
        assert budget.history == ()
    assert refused[0] == refused[1]
    assert [each.n_units for each in found] == [each.worth.n_units for each in found] == [1000, 1000]
    assert found[0].plan == found[1].plan
    assert "on 1,000 synthetic units" in str(found[0])


@pytest.mark.usefixtures("short_reference")
@pytest.mark.parametrize("n_units", [None, 1000], ids=["left out", "passed"])
def test_a_step_on_batches_is_tried_on_a_table_of_another_length(n_units):
    """The plan is that of the protected table, the run that of the synthetic one."""
    settings = {"clip_gradient": 4.0, "step_size": 1e-4, "batch_size": 50, "n_units": n_units}
    synthetic = normal("normal", np.diag([1.0, 2.0]), 1.0, 1100, seed=1).model
    budget = dp.PrivacyBudget(8.0, 1e-6)
    with normal("normal", np.diag([1.0, 2.0]), 1.0, 1000).model:
        found = dp.dry_run(dp.DPSGLD(**settings), budget=budget, draws=3, chains=1, synthetic=synthetic)
        planned = budget.plan(dp.DPSGLD(**settings), draws=3, chains=1)
    assert found.n_units == 1100
    assert found.plan == planned
    (gradients,) = (each for each in found.plan.releases if each.kind == "gradient")
    assert gradients.sampling.n_units == 1000


@pytest.mark.parametrize(
    ("synthetic", "error", "message"),
    [
        (lambda model: None, dp.UnsupportedModel, "Pass synthetic="),
        (lambda model: regression(*table(1, 100)), dp.InvalidArgument, "100 units, the protected one 4,000"),
        (lambda model: model, dp.InvalidArgument, "holds a table of the model of the data"),
        (lambda model: "a table", dp.InvalidArgument, "must be a pm.Model"),
    ],
)
def test_tables_that_say_nothing_or_too_much_are_refused(synthetic, error, message):
    model = regression(*table(0))
    other = synthetic(model)
    with model, pytest.raises(error, match=message):
        dp.dry_run(dp.PrivacyBudget(1.0, 1e-6), synthetic=other)


def test_errors_are_in_posterior_standard_deviations_and_coverage_is_that_of_the_reference():
    """By hand, for two entries that are uniform on [-1, 1]: the draws of one are shifted by 0.2."""
    uniform = np.linspace(-1.0, 1.0, 2001)

    def tree(shift):
        values = np.column_stack([uniform + shift, uniform])[None]
        return xr.DataTree.from_dict({"posterior": xr.Dataset({"beta": (("chain", "draw", "entry"), values)})})

    error, worst, coverage = _compared(tree(0.2), tree(0.0), ["beta"])
    assert worst == pytest.approx(0.2 * math.sqrt(3.0), rel=1e-2)
    assert error == pytest.approx(worst / math.sqrt(2.0))
    assert coverage == pytest.approx(np.mean([0.85, 0.9]), abs=2e-3)


def test_what_would_help_is_arithmetic(forecast):
    """Of noise: error goes with the inverse root of rho and of the number of units, and the root of parameters."""
    _, found = forecast
    assert found.worth.n_units_for(found.forced_error / 2.0) == pytest.approx(4.0 * N)
    assert found.worth.parameters_for(2.0 * found.forced_error) == pytest.approx(8.0)
    assert found.worth.epsilon_for(found.forced_error) == pytest.approx(found.plan.epsilon, rel=0.01)
    rho = dp.PrivacyBudget(found.worth.epsilon_for(found.forced_error / 2.0), found.plan.delta).rho
    assert rho == pytest.approx(4.0 * found.plan.rho, rel=0.01)


def test_what_would_help_is_said_where_noise_is_large(forecast):
    _, found = forecast
    quality = Quality(**{**vars(found.quality), "widening": 2.0, "widening_by_noise": math.sqrt(2.0)})
    poor = dp.Forecast(**{**vars(found), "quality": quality})
    assert "noise moves means by 1 sd on average. It would be 0.5 with epsilon" in str(poor)
    assert "16,000 units" in str(poor)
    assert "usable, but imprecise: intervals are 2 times as wide." in str(poor)
    precise = Quality(**{**vars(quality), "widening": 1.3, "widening_by_noise": 1.05})
    good = dp.Forecast(**{**vars(found), "quality": precise})
    assert "on average" not in str(good)
    assert "imprecise" not in str(good)
    assert "say otherwise" not in str(good)
    assert "say otherwise: do not rely on it" in str(dp.Forecast(**{**vars(good), "coverage": 0.6}))


def test_a_plan_says_what_to_expect_within_a_factor(forecast):
    _, found = forecast
    with regression(*table(0)):
        plan = dp.PrivacyBudget(2.0, 1e-6).plan(dp.DPSurrogateHMC())
        hopeless = dp.PrivacyBudget(0.1, 1e-6).plan(dp.DPHMC())
    assert 0.4 < plan.worth.error / found.forced_error < 2.5
    assert "expected of 4,000 units: noise moves means by about" in str(plan)
    assert hopeless.worth.error > 3.0
    assert "It would be 0.5 with about epsilon" in str(hopeless)
    assert dp.Plan.from_record(plan.to_record()) == plan
