"""What can be known before the charge is: a run that cannot begin costs nothing."""

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model, hmc
from contributed import DPCrankNicolson
from pymc.distributions.transforms import ordered

import pymc_dp as dp
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.model.starts import initial_values
from pymc_dp.run import sampling

PRIORS = {
    "flat": lambda: pm.Flat("mu"),
    "half-flat": lambda: pm.HalfFlat("mu"),
    "flat that starts somewhere": lambda: pm.Flat("mu", initval=3.0),
    "custom density": lambda: pm.CustomDist("mu", logp=lambda value: -(value**2)),
    "truncated": lambda: pm.Truncated("mu", pm.Normal.dist(), lower=0.0),
    "uniform": lambda: pm.Uniform("mu", 0.0, 10.0),
    "ordered": lambda: pm.Normal("mu", 0.0, 3.0, shape=2, transform=ordered, initval=[-1.0, 1.0]).sum(),
    "under a flat mean": lambda: pm.Normal("mu", pm.Flat("mean"), 1.0),
    "above a flat mean": lambda: pm.Flat("mu") + 0.0 * pm.Normal("above"),
}


def run(model, budget, *, step=None, **options):
    with model:
        return pm.sample(**({"draws": 4, "chains": 2, "cores": 1, "step": step or hmc(budget), **QUIET} | options))


def model_with(make_prior, potential=None):
    with pm.Model() as model:
        mu = make_prior()
        if potential is not None:
            pm.Potential("bound", potential(mu))
        pm.Normal("y", mu, 1.0, observed=gaussian_data())
    return model


#: Which of them are like another one.
ALIKE = ("half-flat", "truncated", "uniform", "above a flat mean")


@pytest.mark.parametrize(
    "prior", [pytest.param(each, marks=pytest.mark.nightly) if each in ALIKE else each for each in PRIORS]
)
def test_priors_that_cannot_be_drawn_from_need_no_initial_values(prior, budget):
    """PyMC starts them at 0 or at 1, which is public, or where the model says."""
    tree = run(model_with(PRIORS[prior]), budget)
    assert tree["privacy"].attrs["complete"] == 1
    if prior.startswith("flat"):
        first = tree["releases"]["gradient_position"].values[0]
        assert first == (3.0 if "somewhere" in prior else 0.0)


@pytest.mark.few(4)
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("seed", [None, 5, [1, 2], np.random.default_rng(3)])
def test_the_points_that_are_checked_are_those_that_chains_start_from(budget, monkeypatch, cores, seed):
    checked = []
    real = sampling.starting_points

    def kept(*args):
        checked.extend(real(*args))
        return checked

    monkeypatch.setattr(sampling, "starting_points", kept)
    model = model_with(lambda: pm.Gamma("mu", 2.0, 1.0))
    tree = run(model, budget, cores=cores, mp_ctx="fork", random_seed=seed)
    released = tree["releases"].to_dataset()
    for chain, point in enumerate(checked):
        of_chain = released["gradient_position"].values[released["gradient_chain"].values == chain]
        assert of_chain[0, 0] == point["mu_log__"]
    assert len({float(point["mu_log__"]) for point in checked}) == 2


IMPOSSIBLE = [
    (lambda: pm.Uniform("mu", 0.0, 1.0), None, {"initvals": {"mu": 2.0}}, "'mu'"),
    (lambda: pm.Uniform("mu", 0.0, 1.0), None, {"initvals": [{"mu": 0.5}, {"mu": 1.0}]}, "chain 1.*'mu'"),
    (lambda: pm.HalfNormal("mu"), None, {"initvals": {"mu": -1.0}}, "'mu'"),
    (lambda: pm.Normal("mu"), None, {"initvals": {"mu": np.nan}}, "'mu'"),
    (lambda: pm.Normal("mu"), lambda mu: pm.math.switch(mu > 1e6, 0.0, -np.inf), {}, "'bound'"),
    (lambda: pm.Normal("mu"), lambda mu: pm.math.log(mu - 1e6), {}, "'bound'"),
    (lambda: pm.Normal("mu"), pm.math.sqrt, {"initvals": {"mu": 0.0}}, "gradient"),
    (lambda: pm.Normal("mu", 1e308, 1e308), None, {"initvals": {"mu": np.inf}}, "'mu'"),
    (lambda: pm.TruncatedNormal("mu", 0.0, 1.0, lower=5.0), None, {"initvals": {"mu": 1.0}}, "'mu'"),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("make_prior", "potential", "options", "named"), IMPOSSIBLE)
def test_starting_points_that_are_none_are_refused_by_name(budget, make_prior, potential, options, named):
    with pytest.raises(dp.InvalidArgument, match=rf"(?s){named}.*initvals"):
        run(model_with(make_prior, potential), budget, **options)
    assert budget.history == ()


def test_initial_values_are_draws_of_the_prior_but_for_what_cannot_be_drawn():
    with pm.Model() as model:
        mean = pm.Flat("mean")
        effects = pm.Normal("effects", mean, 1.0, shape=3)
        sigma = pm.HalfFlat("sigma")
        pm.Normal("y", effects[0], sigma, observed=gaussian_data())
    assert initial_values(model) == {effects: "prior"}
    drawn = gaussian_model(gaussian_data())
    assert initial_values(drawn) == {drawn["mu"]: "prior"}


def test_draws_that_a_transform_cannot_represent_are_no_initial_values():
    model = model_with(PRIORS["ordered"])
    assert initial_values(model) == {}
    mixed = pm.Model()
    with mixed:
        spread, mu = pm.HalfNormal("spread"), PRIORS["ordered"]()
        pm.Normal("y", mu, spread, observed=gaussian_data())
    assert initial_values(mixed) == {spread: "prior"}


def test_a_potential_that_excludes_where_a_chain_starts_can_be_helped_by_initial_values(budget):
    model = model_with(lambda: pm.Normal("mu"), lambda mu: pm.math.switch(mu > 0.0, 0.0, -np.inf))
    tree = run(model, budget, initvals={"mu": 1.0})
    assert np.all(tree["posterior"]["mu"] > 0.0)


def test_a_surrogate_of_a_flat_prior_runs(budget):
    with model_with(lambda: pm.Flat("mu")):
        tree = pm.sample(budget=budget, draws=2, chains=2, cores=1, **QUIET)
    assert tree["privacy"].attrs["complete"] == 1
    assert tree["privacy"].attrs["sampler"] == "dp_surrogate_hmc"
    with model_with(lambda: pm.Flat("mu")) as model:
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(5.0, 1e-6), trajectories=1)
        tree = run(model, step.budget, step=step)
    assert np.isfinite(tree["posterior"]["mu"]).all()


class AsksForGradients(DPCrankNicolson):
    """Learns the clip bound of remainders, and asks for none."""

    def sampler_requests(self, tune, draws):
        return [ReleaseRequest("gradient", tune + draws, 1.0, self.size)]


def test_chains_that_ask_for_nothing_that_was_learned_are_refused(budget):
    model = gaussian_model(gaussian_data())
    with model:
        step = AsksForGradients(budget=budget, beta=0.1)
    with pytest.raises(dp.InvalidArgument, match="of kind 'residual'"):
        run(model, budget, step=step)
    assert budget.epsilon_spent == 0.0
