"""Whatever ends a run after its charge: nothing is refunded, and what was drawn comes back, marked as partial."""

import json
import multiprocessing
import os
import signal
from unittest import mock

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc
from published_names import unnamed

import pymc_dp as dp
from pymc_dp.run import sampling
from pymc_dp.steps.prelude.search import Search

DRAWS, TUNE, CHAINS = 8, 2, 3


@pytest.fixture
def model():
    return gaussian_model(gaussian_data())


def run(model, budget, *, step=None, **options):
    settings = {"draws": DRAWS, "tune": TUNE, "chains": CHAINS, "cores": 1, **QUIET} | options
    with model:
        return pm.sample(step=step or hmc(budget, budget_share=1.0), **settings)


def stopping(error, *places):
    """Return a callback that raises at some (chain, iteration)."""

    def callback(trace, draw):
        if (draw.chain, draw.draw_idx) in places:
            raise error

    return callback


def check_partial(tree, budget, made, *, why, tune=TUNE):
    """Check that a tree holds all of `made`, the number of iterations of each chain, and says so."""
    facts = tree["privacy"].attrs
    assert facts["complete"] == 0
    assert not unnamed(tree)
    assert why in facts["ended_early_because"]
    assert json.loads(facts["tuning_made"]) == [min(each, tune) for each in made]
    assert json.loads(facts["draws_made"]) == [max(0, each - tune) for each in made]
    assert facts["epsilon"] == pytest.approx(budget.epsilon)
    assert budget.epsilon_spent == pytest.approx(budget.epsilon)
    released = tree["releases"].to_dataset()
    for chain, each in enumerate(made):
        of_chain = released["gradient_iteration"].values[released["gradient_chain"].values == chain]
        assert sorted(set(of_chain)) == list(range(each))
        if max(made) > tune:  # no tests are made while tuning
            assert np.sum(released["log_ratio_chain"].values == chain) == max(0, each - tune)
    kept = [max(0, each - tune) for each in made]
    if any(kept):
        flat = tree["partial_posterior"].to_dataset()
        assert [int(np.sum(flat["chain"].values == chain)) for chain in range(len(made))] == kept
        posterior = tree["posterior"]["mu"]
        largest = max(np.sum(np.array(kept) >= length) * length for length in kept)
        assert posterior.sizes["draw"] > 0
        assert posterior.size <= largest
        for chain in posterior["chain"].values:  # under the number of the chain that made them
            of_chain = flat["mu"].values[flat["chain"].values == chain]
            np.testing.assert_array_equal(posterior.sel(chain=chain).values, of_chain[: posterior.sizes["draw"]])
        assert tree["sample_stats"].sizes["draw"] == posterior.sizes["draw"]
        for fraction in ("clip_fraction_gradient", "clip_fraction_log_ratio"):
            assert tree["sample_stats"][fraction].shape == posterior.shape
    else:
        assert "posterior" not in tree
        assert "partial_posterior" not in tree


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("place", "made"),
    [((0, 4), [5, 0, 0]), ((1, 3), [10, 4, 0]), ((2, 0), [10, 10, 1]), ((0, 0), [1, 0, 0]), ((2, 9), [10, 10, 10])],
)
def test_one_interrupt_in_any_chain_ends_the_run_and_keeps_every_draw(model, budget, place, made, caplog):
    """PyMC would go on with the next chain."""
    tree = run(model, budget, callback=stopping(KeyboardInterrupt, place))
    if made[-1] == DRAWS + TUNE:
        assert tree["privacy"].attrs["complete"] == 1
    else:
        check_partial(tree, budget, made, why="interrupted")
    assert "Epsilon 5 of 5 is spent, at delta 1e-06. It stays spent" in caplog.text


@pytest.fixture
def interruptible():
    """A process that a shell started in the background ignores Ctrl-C, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_in_the_middle_of_a_step_keeps_the_draws_before(model, budget):
    taken = []

    class Slow(dp.DPHMC):
        def transition(self, theta):
            taken.append(theta)
            if len(taken) == 15:
                os.kill(os.getpid(), signal.SIGINT)
            return super().transition(theta)

    with model:
        step = Slow(budget=budget, clip_gradient=4.0, clip_log_ratio=4.0, step_size=0.05, n_leapfrog=2)
    tree = run(model, budget, step=step)
    check_partial(tree, budget, [10, 4, 0], why="interrupted")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_before_the_first_draw_returns_what_there_is(model, budget, monkeypatch):
    def stop(self, *args):
        raise KeyboardInterrupt

    monkeypatch.setattr(dp.DPHMC, "transition", stop)
    tree = run(model, budget)
    assert tree["privacy"].attrs["complete"] == 0
    assert json.loads(tree["privacy"].attrs["draws_made"]) == [0, 0, 0]
    assert "posterior" not in tree


def test_an_interrupt_among_processes_keeps_every_draw(model, budget):
    """Hazard H4: what was not returned stays charged."""
    tree = run(model, budget, cores=2, mp_ctx="fork", callback=stopping(KeyboardInterrupt, (1, 5)))
    made = [
        tuning + draws
        for tuning, draws in zip(
            json.loads(tree["privacy"].attrs["tuning_made"]),
            json.loads(tree["privacy"].attrs["draws_made"]),
            strict=True,
        )
    ]
    assert made[1] == 6
    check_partial(tree, budget, made, why="interrupted")


@pytest.mark.parametrize("mp_ctx", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_killed_worker_leaves_the_draws_of_all_chains(model, budget, mp_ctx):
    """Hazard H4: a worker may have computed more than it returned; all of it was charged."""

    def kill(trace, draw):
        if (draw.chain, draw.draw_idx) == (1, 4):
            (worker,) = [each for each in multiprocessing.active_children() if each.name == "worker_chain_1"]
            os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(dp.RunInterrupted, match="a worker process was killed") as caught:
        run(model, budget, cores=2, mp_ctx=mp_ctx, callback=kill, draws=50)
    tree = caught.value.partial
    made = json.loads(tree["privacy"].attrs["draws_made"])
    assert 1 <= made[1] < 50
    assert len(tree["partial_posterior"]["mu"]) == sum(made)
    assert tree["posterior"].sizes["draw"] > 0
    assert budget.epsilon_spent == pytest.approx(budget.epsilon)


class Failing(dp.DPHMC):
    """Fails with a message that might hold data."""

    failure: type[BaseException] = RuntimeError

    def transition(self, theta):
        if self._iteration == 5:
            raise self.failure("the value 7.123456789 of a person")
        return super().transition(theta)


class Refusing(Failing):
    failure = dp.NoPlan


@pytest.mark.parametrize("options", [{"cores": 1}, {"cores": 2, "mp_ctx": "fork"}])
def test_an_error_in_a_step_keeps_the_draws_and_says_no_value(model, budget, options, capsys, caplog):
    """Hazard H22: errors of steps and workers are told by their class."""
    with model:
        step = Failing(budget=budget, clip_gradient=4.0, clip_log_ratio=4.0, step_size=0.05)
    with pytest.raises(dp.RunInterrupted, match="RuntimeError was raised") as caught:
        run(model, budget, step=step, **options)
    error = caught.value
    assert error.__cause__ is None
    assert error.__suppress_context__
    shown = [str(error), repr(error), str(error.partial["privacy"].attrs), caplog.text, *capsys.readouterr()]
    assert not any("7.123" in each for each in shown)
    made = np.array(json.loads(error.partial["privacy"].attrs["draws_made"])) + TUNE
    assert made.max() <= 5
    if options["cores"] == 1:
        check_partial(error.partial, budget, [5, 0, 0], why="RuntimeError")


def test_messages_of_the_packages_own_errors_are_told(model, budget):
    with model:
        step = Refusing(budget=budget, clip_gradient=4.0, clip_log_ratio=4.0, step_size=0.05)
    with pytest.raises(dp.RunInterrupted, match="NoPlan: the value"):
        run(model, budget, step=step, cores=2, mp_ctx="fork")


class Stop(Exception):
    pass


@pytest.mark.parametrize("error", [Stop("enough"), SystemExit(3)])
def test_what_a_callback_raises_arrives_as_it_is_with_the_draws(model, budget, error):
    with pytest.raises(type(error)) as caught:
        run(model, budget, callback=stopping(error, (1, 4)))
    assert caught.value is error
    check_partial(caught.value.partial, budget, [10, 5, 0], why=type(error).__name__)


def test_an_error_after_the_last_draw_loses_nothing(model, budget, monkeypatch):
    def packing(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr("pymc.sampling.mcmc._sample_return", packing)
    with pytest.raises(dp.RunInterrupted, match="MemoryError") as caught:
        run(model, budget)
    assert caught.value.partial["privacy"].attrs["complete"] == 1
    assert caught.value.partial["posterior"]["mu"].shape == (CHAINS, DRAWS)


@pytest.fixture
def ending_the_search(budget, monkeypatch):
    """Return what ends the third score of a charged search, by an error or by Ctrl-C."""
    real, calls = Search._score, []

    def end_by(error):
        def third(self, *args):
            calls.extend(["charged"] * len(budget.history))
            if len(calls) == 3:
                if error is not KeyboardInterrupt:
                    raise error
                os.kill(os.getpid(), signal.SIGINT)
            return real(self, *args)

        monkeypatch.setattr(Search, "_score", third)

    return end_by


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_a_search_released_before_it_was_interrupted_is_kept(budget, ending_the_search, error, caplog):
    ending_the_search(error)
    model = gaussian_model(gaussian_data())
    with model:
        step = dp.DPSurrogateHMC(budget=budget)
    if error is KeyboardInterrupt:
        tree = run(model, budget, step=step)
        assert "no draw" in caplog.text
    else:
        with pytest.raises(dp.RunInterrupted) as caught:
            run(model, budget, step=step)
        tree = caught.value.partial
    assert tree["privacy"].attrs["complete"] == 0
    assert tree["releases"].sizes["score_sizes_release"] == 2
    assert tree["releases"].sizes["approach_release"] == 2
    assert "posterior" not in tree


@pytest.mark.usefixtures("interruptible")
def test_a_likelihood_that_was_interrupted_says_what_was_released(budget, ending_the_search):
    ending_the_search(KeyboardInterrupt)
    with pytest.raises(dp.RunInterrupted, match="after it was charged") as caught:
        dp.private_likelihood(gaussian_model(gaussian_data()), budget=budget, progressbar=False)
    assert caught.value.partial["releases"].sizes["approach_release"] == 2
    assert budget.epsilon_spent == pytest.approx(5.0)


@pytest.mark.usefixtures("interruptible")
def test_draws_that_were_interrupted_leave_the_likelihood(budget, caplog):
    def interrupt(trace, draw):
        if draw.draw_idx == 31:
            os.kill(os.getpid(), signal.SIGINT)

    model = gaussian_model(gaussian_data())
    with model:
        step = dp.DPSurrogateHMC(budget=budget)
    tree = run(model, budget, step=step, tune=30, callback=interrupt)
    assert json.loads(tree["privacy"].attrs["draws_made"])[1:] == [0, 0]
    assert "dp.PrivateLikelihood(result, model).sample() draws at no cost" in caplog.text
    again = dp.PrivateLikelihood(tree, model).sample(draws=5, tune=5, chains=1, cores=1, **QUIET)
    assert again["posterior"].sizes["draw"] == 5


@pytest.mark.parametrize("simulates", [True, False])
def test_progress_is_told_from_the_beginning(budget, monkeypatch, caplog, simulates):
    """Stages in PyMC's log, and a bar of the releases that are planned."""
    bar = mock.MagicMock()
    monkeypatch.setattr(sampling, "create_simple_progress", lambda shown, theme: bar if shown else None)
    options = {"quiet": False, "progressbar": True, "draws": 2, "tune": 2, "chains": 1}
    with pm.Model() as model:
        mean = pm.Normal("mu", 0.0, 10.0)
        pm.Normal("y", mean if simulates else mean * pm.Data("x", np.ones(400)), 1.0, observed=gaussian_data())
    tried = ["Dry run on synthetic rows"] if simulates else []
    with caplog.at_level("INFO", logger="pymc"), model:
        run(model, budget, step=dp.DPSurrogateHMC(budget=budget), **options)
    said = [record.message for record in caplog.records]
    stages = ["nothing is charged yet", *tried, "is spent", "Search, epsilon 5 spent"]
    found = [next(place for place, line in enumerate(said) if stage in line) for stage in stages]
    assert found == sorted(found)
    planned = sum(each.count for step in budget.history[0].steps for each in step.once)
    assert said[found[-1]].endswith(f" {planned} releases.")
    shown = [call.kwargs for call in bar.update.call_args_list][-10:]
    assert shown[-1]["description"] == f"Search, epsilon 5 spent: {shown[-1]['completed']} of {planned} releases"
    assert len({each["completed"] for each in shown}) > 4


def test_a_bar_that_fails_loses_nothing(model, budget, monkeypatch):
    bar = mock.MagicMock()
    bar.update.side_effect = OSError
    monkeypatch.setattr(sampling, "create_simple_progress", lambda shown, theme: bar)
    with model:
        assert dp.private_likelihood(budget=budget).facts["complete"]
    assert bar.update.called


def test_progress_can_be_left_out(model, budget, capsys, caplog):
    with caplog.at_level("INFO", logger="pymc"):
        run(model, budget)
    assert "charged" not in caplog.text
    assert capsys.readouterr().err == ""


def test_tuning_draws_of_a_partial_run_are_kept_on_request(model, budget):
    tree = run(model, budget, discard_tuned_samples=False, callback=stopping(KeyboardInterrupt, (1, 4)))
    assert tree["warmup_posterior"]["mu"].sizes["draw"] == TUNE
    tree = run(model, dp.PrivacyBudget(5.0, 1e-6), tune=4, discard_tuned_samples=False, chains=1,
               callback=stopping(KeyboardInterrupt, (0, 1)))  # fmt: skip
    assert tree["warmup_posterior"]["mu"].sizes["draw"] == 2


def test_several_steps_keep_all_their_releases(budget):
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        pm.Normal("y", mu, sigma, observed=gaussian_data())
        steps = [
            hmc(budget, vars=[mu]),
            dp.DPPenalty([sigma], budget=budget, clip_log_ratio=4.0, proposal_scale=0.05),
        ]
    tree = run(model, budget, step=steps, callback=stopping(KeyboardInterrupt, (1, 4)))
    released = tree["releases"].to_dataset()
    for kind, counts in (("log_ratio_1", [8, 3]), ("log_ratio_2", [10, 5])):
        assert np.bincount(released[f"{kind}_chain"].values).tolist() == counts
    assert tree["sample_stats"]["accepted"].shape[2] == 2


def test_a_whole_run_says_that_it_is_complete(model, budget):
    tree = run(model, budget)
    assert tree["privacy"].attrs["complete"] == 1
    assert "partial_posterior" not in tree


def test_a_refused_charge_is_no_interrupted_run(model, budget):
    run(model, budget)
    with pytest.raises(dp.BudgetExceeded):
        run(model, budget)
    assert len(budget.history) == 1


def test_a_partial_run_can_be_stored_and_reported(model, budget, tmp_path):
    tree = run(model, budget, callback=stopping(KeyboardInterrupt, (1, 4)))
    tree.to_netcdf(tmp_path / "tree.nc")
    assert "GROUPS ADDED" not in dp.diagnostics.privacy_report(tree)
    for report in (dp.diagnostics.privacy_report(tree), dp.diagnostics.quality_report(tree)):
        assert report.startswith("PARTIAL")
        assert "8, 3, 0 of 8 draws" in report.splitlines()[0]


def test_a_run_without_draws_is_reported(model, budget):
    tree = run(model, budget, callback=stopping(KeyboardInterrupt, (0, 0), (1, 0), (2, 0)))
    assert "NOT usable" in dp.diagnostics.quality_report(tree)
