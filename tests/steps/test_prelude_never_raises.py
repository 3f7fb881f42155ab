"""After the charge, no noise of a release may end the way to a centre in an error: it was paid for."""

import math
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model

import pymc_dp as dp
from pymc_dp.model.prior import Prior
from pymc_dp.model.view import read
from pymc_dp.release import Release
from pymc_dp.release.interface import LARGEST_CLIP_BOUND, SMALLEST_CLIP_BOUND
from pymc_dp.release.preconditioned import ExpectedCurvature, OneDirectionCurvature, PreconditionedScore
from pymc_dp.release.queries import ClipCounts, ClippingLoss, Curvature, Residual
from pymc_dp.release.sizes import BoundedScore, CoordinateSizes, NormSizes, RemainderSizes
from pymc_dp.rows import Simulation, UnitLikelihood
from pymc_dp.run import sampling
from pymc_dp.steps.access import Authorisation, ChainAccess
from pymc_dp.steps.prelude import Learning, free_hmc
from pymc_dp.steps.prelude.simulated import SearchBySimulation

N = 200


def mixture(generator):
    y = np.where(generator.random(N) < 0.3, -2.0, 2.0) + generator.normal(size=N)
    weights, mu = pm.Dirichlet("weights", np.ones(2)), pm.Normal("mu", 0.0, 3.0, shape=2)
    pm.NormalMixture("y", weights, mu, 1.0, observed=y)


def circle(generator):
    """Started at (0, 0), its centre of symmetry, where every score is exactly zero."""
    theta = pm.Normal("theta", 0.0, 1e3, shape=2)
    pm.Normal("y", (theta**2).sum(), 200.0, observed=generator.normal(3.0, 1.0, size=N) ** 2)


def student(generator):
    mu, sigma, nu = pm.Normal("mu", 0.0, 10.0), pm.HalfCauchy("sigma", 5.0), pm.Gamma("nu", 2.0, 0.1)
    pm.StudentT("y", nu=nu, mu=mu, sigma=sigma, observed=generator.standard_t(3, N))


def linear(generator):
    x = generator.normal(size=(N, 2))
    beta, sigma = pm.Normal("beta", 0.0, 5.0, shape=2), pm.HalfNormal("sigma", 5.0)
    pm.Normal("y", pm.Data("x", x) @ beta, sigma, observed=x @ [1.0, 2.0] + generator.normal(size=N))


def poisson(generator):
    """Rows cannot be made up where the rate overflows."""
    pm.Poisson("y", pm.math.exp(pm.Normal("log_rate", 0.0, 20.0)), observed=generator.poisson(3.0, N))


def logistic(generator):
    """Its possible responses are known: centred scores and expected curvature are released."""
    x = generator.normal(size=(N, 2))
    beta = pm.Normal("beta", 0.0, 2.0, shape=2)
    pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta, observed=generator.integers(0, 2, N))


def hierarchy(generator):
    """The likelihood does not depend on the scale of the groups."""
    scale = pm.HalfNormal("scale", 1.0)
    effects = pm.Normal("effects", 0.0, scale, shape=5)
    group = pm.Data("group", generator.integers(0, 5, N))
    pm.Poisson("y", pm.math.exp(effects[group]), observed=generator.poisson(1.5, N))


def flat(generator):
    pm.Normal("y", pm.Flat("mu"), pm.HalfFlat("sigma"), observed=generator.normal(size=N))


def censored(generator):
    """Its location is searched for in units of its shape, which may be any."""
    x = generator.normal(size=N)
    scale = pm.math.exp(pm.Normal("a", 0.0, 5.0) + pm.Data("x", x) * pm.Normal("b"))
    of_all = pm.Weibull.dist(pm.Exponential("shape", 1.0), scale)
    pm.Censored("y", of_all, None, 1.0, observed=np.minimum(generator.exponential(3.0, N), 1.0))


def scale_alone(generator):
    pm.Normal("y", 0.0, pm.HalfNormal("sigma", 5.0), observed=generator.normal(size=N))


def hyperprior(generator):
    """No row depends on the parameter of a prior, and rows are simulated."""
    pm.Normal("y", pm.Normal("mu", 0.0, pm.HalfNormal("tau", 2.0)), 1.0, observed=generator.normal(size=N))


CASES = [circle, student, poisson, flat, linear, logistic, censored, scale_alone]
CASES += [pytest.param(each, marks=pytest.mark.slow) for each in (mixture, hierarchy, hyperprior)]


class WildCurator:
    """Answers with numbers of any size, and with bounds checked as the true curator checks them."""

    def __init__(self, generator):
        self.generator = generator

    def open_once(self):
        return self

    def open(self, key):
        return self

    def _wild(self, kind, size, where, *bounds):
        for bound in bounds:
            assert SMALLEST_CLIP_BOUND <= bound <= LARGEST_CLIP_BOUND
        assert all(np.isfinite(theta).all() for theta in where)
        magnitude = 10.0 ** self.generator.choice([-300.0, -10.0, 0.0, 1.0, 2.0, 3.0, 5.0, 12.0, 100.0, 300.0])
        noise_std = float(10.0 ** self.generator.uniform(-3.0, 6.0))
        value = magnitude * self.generator.choice([self.generator.standard_normal(size), np.zeros(size)])
        return Release(kind, value, noise_std, where)

    def release(self, query, noise_multiplier=0.0):
        match query:
            case PreconditionedScore(point=point):
                assert np.isfinite(point.preconditioner).all()
                return self._wild(query.kind, point.theta.size, (point.theta,), point.clip_gradient)
            case Curvature(point=point) | ExpectedCurvature(point=point) | OneDirectionCurvature(point=point):
                size = point.theta.size
                return self._wild(query.kind, size * (size + 1) // 2, (point.theta,), point.clip_curvature)
            case ClippingLoss(point=point):
                return self._wild(query.kind, 1, (point.theta,), point.clip_gradient)
            case Residual():
                return self._wild(query.kind, 1, (query.old.theta, query.new.theta), query.clip_bound)
            case BoundedScore():
                return self._wild(query.kind, 1, (query.theta,), query.clip_bound)
            case CoordinateSizes():
                return self._wild(query.kind, query.theta.size * query.bins, (query.theta,))
            case NormSizes(point=point):
                assert np.isfinite(point.preconditioner).all()
                return self._wild(query.kind, query.bins, (point.theta,), query.smallest)
            case RemainderSizes():
                return self._wild(query.kind, query.bins, query.where)
            case ClipCounts():
                return self._wild(query.kind, 1, ())
        raise AssertionError(query)


class _Paid(dict):
    def get(self, kind, default=None):
        return 3.0


@dataclass
class Bench:
    """What a step needs to run its prelude, made once for all seeds."""

    step: dp.DPSurrogateHMC
    prior: Prior
    synthetic: object
    knows_responses: bool

    def run(self, seed, n_units=N):
        """Run a prelude and some iterations; return what the result would say."""
        curator, step = WildCurator(np.random.default_rng(seed)), self.step
        authorisation = Authorisation(
            curator, self.prior, _Paid(), 1.0, self.synthetic, n_units, knows_responses=self.knows_responses
        )
        step.authorise(authorisation)
        try:
            if step.drawn_from is not None:  # by PyMC's NUTS, from here on
                known, _ = step.drawn_from
                assert np.isfinite(known.theta(known.start(np.random.default_rng(seed)))).all()
                return step.facts["surrogate_found"]
            step.setup_chain(np.random.default_rng(seed), 1, 4)
            theta = np.zeros(step.size)
            for _ in range(5):
                theta = step.moved(theta).theta
                step._iteration += 1
        finally:
            step.withdraw()
        return step.facts["surrogate_found"]


def model_of(make, seed):
    with pm.Model() as model:
        make(np.random.default_rng(seed))
    return model


def bench(make, **settings):
    model = model_of(make, 0)
    with model:
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(1.0, 1e-6), **settings)
    view = read(model)
    rows = UnitLikelihood(view)
    return Bench(step, view.prior, Simulation(view, rows, N) if step.simulates else None, rows.knows_responses)


@pytest.fixture
def short_pilots(monkeypatch):
    """Make the free sampler short: where it starts is what matters here."""
    monkeypatch.setattr(free_hmc, "_TRAJECTORIES_OF_A_ROUND", 6)
    monkeypatch.setattr(free_hmc, "_MEASURED_TRAJECTORIES", 12)
    monkeypatch.setattr(free_hmc, "_LEAST_LEAPFROGS", 4)
    monkeypatch.setattr(free_hmc, "_MOST_LEAPFROGS", 4)


@pytest.mark.usefixtures("short_pilots")
@pytest.mark.parametrize(
    "seeds",
    [
        [0],
        pytest.param(range(2, 6), marks=pytest.mark.slow),
        pytest.param([1, *range(6, 100)], marks=[pytest.mark.nightly, pytest.mark.production]),
    ],
)
@pytest.mark.parametrize("make", CASES)
def test_no_answer_of_the_curator_ends_a_prelude(make, seeds):
    of_model = bench(make, trajectories=2)
    found = [of_model.run(seed, n_units=N if seed % 2 else 10**6) for seed in seeds]
    # The way goes on past the wildest of answers. Where noise is all there is, a flat prior leaves no posterior.
    assert np.mean(found) > 0.8 or make is flat


def test_where_there_is_no_surrogate_chains_stay_and_the_result_says_so(budget, monkeypatch):
    real = Learning.expand

    def failing(self, *args):
        real(self, *args)
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(Learning, "expand", failing)
    monkeypatch.setattr(Learning, "dry_run", lambda *_: None)
    with gaussian_model(gaussian_data()):
        step = dp.DPSurrogateHMC(budget=budget)
        tree = pm.sample(draws=5, chains=2, cores=1, step=step, **QUIET)
    assert tree["privacy"].attrs["surrogate_found"] == 0
    assert tree["privacy"].attrs["complete"] == 1
    assert not tree["sample_stats"]["accepted"].any()
    assert math.isinf(float(tree["sample_stats"]["centre_distance"].max()))
    assert tree["releases"].sizes["approach_release"] == 16  # what was released before is there
    assert "NOT usable" in dp.diagnostics.quality_report(tree)


# Before the charge -------------------------------------------------------------------------------------------


def no_scores(generator):
    """A likelihood that no parameter moves."""
    pm.Normal("y", 0.0 * pm.Normal("mu"), 1.0, observed=generator.normal(size=N))


def laplace(generator):
    """Its curvature is zero wherever there is one."""
    pm.Laplace("y", pm.Normal("mu", 0.3), 1.0, observed=generator.normal(size=N))


def run(model, budget, **settings):
    with model:
        step = dp.DPSurrogateHMC(budget=budget, trajectories=1, **settings)
        return pm.sample(draws=3, chains=1, cores=1, step=step, **QUIET)


def test_simulated_rows_without_scores_are_refused_before_the_charge(budget):
    with pytest.raises(dp.InvalidArgument, match="finds no way to begin"):
        run(model_of(no_scores, 0), budget)
    assert budget.history == ()


def test_a_likelihood_without_scores_leaves_the_prior(budget):
    with model_of(no_scores, 0) as model:
        pm.Normal("z", model["mu"] * pm.Data("x", np.zeros(N)), 1.0, observed=np.zeros(N))  # not simulated
        step = dp.DPSurrogateHMC(budget=budget)
        tree = pm.sample(draws=250, chains=4, cores=1, step=step, **QUIET)
    assert abs(float(tree["posterior"]["mu"].mean())) < 0.2
    assert float(tree["posterior"]["mu"].std()) == pytest.approx(1.0, abs=0.15)


def test_a_likelihood_without_curvature_is_not_called_usable(budget):
    with model_of(laplace, 0):
        step = dp.DPSurrogateHMC(budget=budget)
        tree = pm.sample(draws=100, chains=4, cores=1, step=step, **QUIET)
    assert dp.diagnostics.quality(tree).verdict != "usable"


@pytest.mark.usefixtures("short_pilots")
@pytest.mark.parametrize("make", [pytest.param(mixture, marks=pytest.mark.slow), circle])
def test_the_mixture_and_the_circle_run(budget, make):
    tree = run(model_of(make, 0), budget)
    assert tree["privacy"].attrs["complete"] == tree["privacy"].attrs["surrogate_found"] == 1


def test_what_fails_in_the_dry_run_costs_nothing(budget, monkeypatch):
    def failing(*args):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(SearchBySimulation, "run", failing)
    with pytest.raises(dp.InvalidArgument, match="found no surrogate"):
        run(gaussian_model(gaussian_data()), budget)
    assert budget.history == ()


def test_the_dry_run_asks_for_all_that_the_prelude_asks_for(budget, monkeypatch):
    """In the same order, and never of the protected rows."""
    asked = []
    real = ChainAccess.release

    def noted(self, query, *arguments):
        if query.kind not in ("residual", "clip_count"):
            asked.append((len(budget.history), query.kind, self.n_units))
        return real(self, query, *arguments)

    monkeypatch.setattr(ChainAccess, "release", noted)
    tested = {"shares": dp.Shares(0.3, 0.4, 0.1, 0.2)}
    run(gaussian_model(gaussian_data(400)), budget, synthetic=gaussian_model(gaussian_data(100, 3)), **tested)
    before = [kind for charged, kind, _ in asked if not charged]
    after = [kind for charged, kind, _ in asked if charged]
    assert [*before, "remainder_sizes"] == after
    # One curvature and eighteen scores with a histogram each; the clipping loss.
    assert len(before) == 2 + 2 * 18 + 1
    assert {n_units for charged, _, n_units in asked if not charged} == {4000}
    assert {n_units for charged, _, n_units in asked if charged} == {400}


def personal_effects(generator, persons):
    cell = np.repeat(np.arange(persons), 2)
    effects = pm.Normal("effects", 0.0, 1.0, shape=persons)
    pm.Normal("y", effects[pm.Data("cell", cell)], 1.0, observed=generator.normal(size=2 * persons))


@pytest.mark.parametrize(("persons", "there_is"), [(40, 2**20), pytest.param(5000, None, marks=pytest.mark.slow)])
def test_more_memory_than_there_is_is_refused_before_the_charge(budget, monkeypatch, persons, there_is):
    def make(generator):
        personal_effects(generator, persons)

    if there_is is not None:
        monkeypatch.setattr(sampling, "memory_of_this_machine", lambda: there_is)
    with pytest.raises(
        dp.UnsupportedModel, match=rf"{persons} parameters take about .* GiB of memory.*integrated out.*DPHMC"
    ):
        run(model_of(make, 0), budget)
    assert budget.history == ()


@pytest.mark.slow
@pytest.mark.usefixtures("short_pilots")
def test_the_estimate_of_memory_is_near_what_is_held(budget):
    def make(generator):
        personal_effects(generator, 40)

    with model_of(make, 0):
        step = dp.DPSurrogateHMC(budget=budget, trajectories=1)
        tracemalloc.start()
        pm.sample(draws=2, chains=1, cores=1, step=step, **QUIET)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert step.memory_needed(80, 0) < held < 30 * step.memory_needed(80, 0)
