"""The search where rows can be simulated from the model: its steps."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from against_reference import Problem
from conftest import QUIET
from posteriors import published
from searches import searches

import pymc_dp as dp
from pymc_dp.model.axes import row_axes
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.simulation import RowSimulator
from pymc_dp.model.structure import rows_can_be_simulated
from pymc_dp.model.view import read
from pymc_dp.release.interface import ExpansionPoint
from pymc_dp.steps.prelude import settings
from pymc_dp.steps.prelude.belief import KnownScore
from pymc_dp.steps.prelude.curvature import KnownCurvature
from pymc_dp.steps.prelude.newton import Frame, NotComputable, finite_prior_at, positive_definite, prior_curvature
from pymc_dp.steps.prelude.regression import Regression
from pymc_dp.steps.prelude.search import Search
from pymc_dp.steps.prelude.simulated import SearchBySimulation, _between

N_UNITS = 1000


class Rows:
    """Simulated rows with log-likelihood -k |theta - row|² / 2, and scores as given or by it."""

    def __init__(self, rows, k=1.0, scores=None):
        self.rows, self.k, self.given = rows, k, scores

    def log_likelihoods(self, theta):
        return -0.5 * self.k * ((self.rows - theta) ** 2).sum(axis=1)

    def scores(self, theta):
        return self.k * (self.rows - theta) if self.given is None else self.given

    def curvatures(self, theta):
        return np.tile(self.k * np.eye(theta.size), (len(self.rows), 1, 1))


def search_on(rows, size=2, draws=(), start=None):
    """Return a search whose simulated rows are `rows` at a point, or those that ``rows(theta)`` returns."""
    at = rows if callable(rows) else lambda theta: rows
    flat = SimpleNamespace(
        hessian=lambda theta: np.zeros((size, size)), gradient=np.zeros_like, log_density=lambda theta: 0.0
    )
    chain = SimpleNamespace(
        prior=flat,
        n_units=N_UNITS,
        structure=None,
        knows_responses=False,
        synthetic_tables=SimpleNamespace(at=at, prior_draws=lambda: list(draws)),
    )
    regression = Regression(
        np.zeros(size) if start is None else start, np.ones(size, bool), np.zeros(0, int), simulated=True
    )
    return SearchBySimulation(chain, regression, releases_loss=False)


NORMAL = np.random.default_rng(0).normal(size=(4000, 2))


def test_what_rows_tell_is_how_much_their_scores_vary():
    search = search_on(Rows(NORMAL))
    on_the_way, at_the_end = search._by_model(np.zeros(2)), search._by_model(np.zeros(2), at_centre=True)
    np.testing.assert_allclose(on_the_way.matrix, N_UNITS * np.cov(NORMAL.T, bias=True), rtol=1e-10)
    np.testing.assert_allclose(at_the_end.matrix, N_UNITS * np.eye(2), rtol=1e-6, atol=1e-9)
    assert at_the_end.noise_std == 0.0


def test_no_direction_is_told_nothing_on_the_way():
    """Both parameters move rows alike but for a thousandth: steps along their difference would be all noise."""
    one, other = NORMAL.T
    search = search_on(Rows(NORMAL, scores=np.array([one, one + 1e-3 * other]).T))
    values = np.linalg.eigvalsh(search._by_model(np.zeros(2)).matrix / N_UNITS)
    assert values[0] == pytest.approx(settings.LEAST_KNOWN_ON_THE_WAY, rel=0.05)
    assert search._least_known < 1e-5
    values = np.linalg.eigvalsh(search._by_model(np.zeros(2), least=1e-12).matrix / N_UNITS)
    assert values[0] == pytest.approx(0.5e-6, rel=0.1)


def test_a_mean_curvature_is_not_far_from_the_spread_of_scores():
    """Of few rows of a mixture it may be negative by chance."""
    found = _between(np.diag([9.0, -1.0]), np.diag([1.0, 4.0]))
    np.testing.assert_allclose(found, np.diag([2.0, 2.0]))
    turned = np.array([[1.0, 0.6], [0.6, 1.0]])
    np.testing.assert_allclose(_between(turned, turned), turned, rtol=1e-8)


def test_the_way_begins_where_all_directions_are_told():
    """Else where rows can be simulated at all; and nowhere, if scores are zero wherever it could."""
    one, other = NORMAL.T
    alike, apart = (Rows(NORMAL, scores=np.array([one, each]).T) for each in (one, other))
    elsewhere = np.array([3.0, 4.0])
    found = search_on(lambda theta: apart if theta[0] == 3.0 else alike, draws=[elsewhere])._begun()
    np.testing.assert_array_equal(found, elsewhere)
    np.testing.assert_array_equal(search_on(alike, draws=[elsewhere])._begun(), np.zeros(2))
    with pytest.raises(dp.InvalidArgument, match="finds no way to begin"):
        search_on(Rows(NORMAL, scores=np.zeros((4000, 2))), draws=[elsewhere])._begun()


@pytest.mark.parametrize(("falls", "part"), [(0.5, 1.0), (1.0, 1.0), (1.4, 1.0), (1.6, 0.0)])
def test_a_step_ends_where_rows_fall_as_a_parabola_would(falls, part):
    """However long the step is, of rows whose log-likelihood falls `falls` times as fast as scores vary."""
    search = search_on(Rows(NORMAL, k=falls, scores=NORMAL))
    search._by_model(np.zeros(2))
    end = np.array([0.6, -0.2])
    np.testing.assert_allclose(search._reached(np.zeros(2), end), part * end, atol=1e-12)


def test_a_step_is_halved_until_rows_can_be_simulated():
    def at(theta):
        if theta[0] > 0.3:
            raise ValueError("no such row")
        return Rows(NORMAL)

    search = search_on(at)
    search._by_model(np.zeros(2))
    np.testing.assert_allclose(search._reached(np.zeros(2), np.array([1.0, 0.4])), [0.25, 0.1])


def test_what_clipping_takes_off_is_added_and_what_it_leaves_divides():
    """By simulated rows that are skewed: their clipped scores have a mean, the whole ones have none."""
    skewed = np.random.default_rng(1).gamma(0.5, 2.0, size=(200_000, 1)) - 1.0
    search = search_on(Rows(skewed, scores=skewed), size=1)
    search._by_model(np.zeros(1))
    point = ExpansionPoint(np.zeros(1), np.eye(1), 1.5)
    clipped = np.clip(skewed, -1.5, 1.5)
    assert search._mean_removed(point) == pytest.approx(N_UNITS * np.mean(skewed - clipped))
    assert search._kept(point) == pytest.approx(np.mean(clipped * skewed) / np.mean(skewed**2))
    whole = replace(point, clip_gradient=1e6)
    assert search._mean_removed(whole) == pytest.approx(0.0, abs=1e-9)
    assert search._kept(whole) == pytest.approx(1.0)


@pytest.mark.parametrize("noise", [0.1, 1.0, 30.0])
def test_the_models_curvature_is_corrected_by_what_is_clearly_no_noise(noise):
    """Where noise is larger than the difference nothing is; else the released one takes its place, less noise."""
    early = KnownCurvature(np.eye(3) * 100.0, np.eye(3) * 100.0, 0.0, Frame(np.eye(3), np.eye(3)), np.ones(3, bool))
    released = np.diag([140.0, 60.0, 100.0])
    late = replace(early, raw=released, noise_std=noise)
    found = search_on(Rows(np.zeros((9, 3))), size=3)._together(late, early)
    squared = (40.0**2 + 40.0**2) / 6.0
    part = 1.0 - noise**2 / squared if noise < 10.0 else 0.0
    np.testing.assert_allclose(found.matrix, 100.0 * np.eye(3) + part * (released - 100.0 * np.eye(3)), rtol=1e-6)
    assert found.noise_std == pytest.approx(noise * part**0.5)


def test_a_corrected_curvature_stays_positive():
    early = KnownCurvature(np.eye(2), np.eye(2), 0.0, Frame(np.eye(2), np.eye(2)), np.ones(2, bool))
    found = search_on(Rows(NORMAL))._together(replace(early, raw=np.diag([-50.0, 1.0]), noise_std=1e-3), early)
    assert np.linalg.eigvalsh(found.matrix) == pytest.approx([settings.LEAST_OF_CURVATURE, 1.0], rel=1e-3)


def test_a_step_goes_by_the_latest_score_and_the_likelihood_by_all():
    search = search_on(Rows(NORMAL))
    curvature = search._by_model(np.zeros(2))
    for mean in ([1.0, 0.0], [0.0, 1.0]):
        gradient = N_UNITS * np.array(mean) * 0.01
        search._scores.append(KnownScore(np.zeros(2), gradient, np.eye(2) * 5.0, 0.0))
    np.testing.assert_allclose(search._belief(curvature, noise_alone=True).mean, [0.0, 0.01], atol=5e-4)
    np.testing.assert_allclose(search._belief(curvature).mean, [0.005, 0.005], atol=5e-4)


def of_mixture(rows):
    mu, weight = pm.Normal("mu", [-1.0, 1.0], 3.0, shape=2, initval=[-1.0, 1.0]), pm.Beta("weight", 1.0, 1.0)
    pm.NormalMixture("y", pm.math.stack([weight, 1.0 - weight]), mu, pm.HalfNormal("s", 2.0, shape=2), observed=rows)


@pytest.mark.slow
@pytest.mark.few(slow=1)
@pytest.mark.parametrize("seed", range(4))
def test_components_of_a_mixture_are_found(seed):
    """With curvatures that are released on the way half of such searches at epsilon 1 were lost."""
    generator = np.random.default_rng(seed)
    rows = np.where(generator.random(8000) < 0.3, generator.normal(-2, 1, 8000), generator.normal(2, 0.7, 8000))
    with pm.Model():
        of_mixture(rows)
        tree = pm.sample(draws=200, chains=1, budget=dp.PrivacyBudget(1.0, 1e-6), **QUIET)
    posterior = tree["posterior"]
    assert sorted(posterior["mu"].mean(("chain", "draw")).values) == pytest.approx([-2.0, 2.0], abs=0.25)


@pytest.mark.parametrize(
    ("rows", "simulated"),
    [
        (lambda mu, scale, y: pm.Normal("y", mu, 2.0, observed=y), True),
        (lambda mu, scale, y: pm.Normal("y", mu, scale, observed=y), False),
        (lambda mu, scale, y: pm.StudentT("y", nu=4, mu=mu, sigma=scale, observed=pm.Data("rows", y)), True),
        (lambda mu, scale, y: pm.Bernoulli("y", logit_p=mu * scale, observed=(y > 0.0).astype(int)), True),
        (lambda mu, scale, y: pm.Laplace("y", mu, scale, observed=y), False),
        (lambda mu, scale, y: pm.Normal("y", mu * pm.Data("x", y), scale, observed=y), False),
    ],
    ids=["known scale", "location and scale", "as data", "levels", "broken lines", "covariates"],
)
def test_rows_are_simulated_where_there_are_no_covariates(rows, simulated, budget):
    y = np.random.default_rng(0).normal(size=20)
    with pm.Model():
        rows(pm.Normal("mu", 0.0, 100.0), pm.HalfNormal("scale", 100.0), y)
        assert dp.DPSurrogateHMC(budget=budget).simulates == simulated


@pytest.mark.slow
@pytest.mark.few(slow=2)
@pytest.mark.parametrize("seed", range(4))
def test_wide_priors_lead_nowhere_else(seed):
    """Noise is seeded by the test's name. Without a limit of steps half of such runs ended thousands of times away."""
    rows = 20.0 * np.random.default_rng(seed).weibull(1.5, 4000)
    with pm.Model():
        shape, scale = pm.HalfNormal("shape", 5.0), pm.HalfNormal("scale", 100.0)
        pm.Weibull("y", shape, scale, observed=rows)
        tree = pm.sample(draws=50, chains=1, budget=dp.PrivacyBudget(8.0, 1e-6), **QUIET)
    assert float(tree["posterior"]["shape"].mean()) == pytest.approx(1.5, abs=0.15)
    assert float(tree["posterior"]["scale"].mean()) == pytest.approx(20.0, abs=1.5)


@pytest.mark.nightly  # compiling such a model takes minutes
@pytest.mark.slow
def test_heights_and_weights_are_found_from_nowhere():
    """With binary searches before the first step alone scales stayed ten times too large, and all seemed correlated."""
    generator, covariance = np.random.default_rng(0), np.array([[81.0, 60.0], [60.0, 144.0]])
    rows = generator.multivariate_normal([170.0, 70.0], covariance, 4000)
    with pm.Model() as model:
        factor, _, _ = pm.LKJCholeskyCov("factor", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(20.0))
        pm.MvNormal("y", pm.Normal("mu", 0.0, 100.0, shape=2), chol=factor, observed=rows)
    for epsilon in (4.0, 1.0):
        for mode, _ in searches(Problem(model), epsilon, 1e-6, 3, 0):
            point = ParameterVector(model).to_point(mode)
            lower = np.zeros((2, 2))
            lower[np.tril_indices(2)] = point["factor_cholesky-cov-packed__"]
            lower[[0, 1], [0, 1]] = np.exp(np.diag(lower))
            np.testing.assert_allclose(point["mu"], [170.0, 70.0], atol=2.0)
            np.testing.assert_allclose(lower @ lower.T, covariance, rtol=0.25)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal-2", "normal-10"])
def test_normal_rows_with_correlations_near_one_are_found(name):
    """Where all that is not known is a location, each step leads to it, and directions are known as they are."""
    posterior = published(name)
    exact = posterior.reference(2_000, np.random.default_rng(0))
    for mode, covariance in searches(Problem(posterior.model), 4.0, 1e-6, 3, 0):
        np.testing.assert_allclose((mode - exact.mean(axis=0)) / exact.std(axis=0), 0.0, atol=0.5)
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), exact.std(axis=0), rtol=0.15)


def test_the_location_goes_where_a_score_says_whatever_the_distance():
    search = search_on(Rows(np.zeros((9, 3))), size=3)
    search._regression = replace(search._regression, location=np.array([True, False, True]))
    information = np.array([[4.0, 1.0, 1.0], [1.0, 9.0, 2.0], [1.0, 2.0, 2.0]])
    curvature = KnownCurvature(information, information, 0.0, Frame(np.eye(3), np.eye(3)), np.ones(3, bool))
    search._scores.append(KnownScore(np.ones(3), information @ [1e4, 0.0, -1e3] + [0.0, 50.0, 0.0], np.eye(3), 0.0))
    np.testing.assert_allclose(search._at_location(np.ones(3), curvature), [1e4 + 1.0, 1.0, -999.0])
    wide = SimpleNamespace(log_density=lambda _: 0.0, gradient=np.zeros_like, hessian=lambda at: -np.diag(1e-9 * at**2))
    search._chain.prior = wide
    end = search._at_location(np.ones(3), curvature)
    np.testing.assert_allclose(np.diag(search._of_prior), 1e-9 * end**2, rtol=1e-6)  # where the step has led to
    nowhere = replace(curvature, matrix=np.zeros((3, 3)))
    np.testing.assert_array_equal(search._at_location(np.ones(3), nowhere), np.ones(3))


def test_a_rate_far_below_the_priors_is_reached():
    """A limit in the information of simulated rows, which is large where rates are, let no search get there."""
    with pm.Model():
        pm.Poisson("y", pm.HalfNormal("rate", 1000.0), observed=np.random.default_rng(0).poisson(3.0, 4000))
        tree = pm.sample(draws=50, chains=1, budget=dp.PrivacyBudget(8.0, 1e-6), **QUIET)
    assert float(tree["posterior"]["rate"].mean()) == pytest.approx(3.0, abs=0.2)


def test_no_search_stands_where_squares_of_distances_are_no_numbers():
    class Flat:
        def log_density(self, theta):
            return 0.0

        def gradient(self, theta):
            return np.zeros_like(theta)

        def hessian(self, theta):
            return np.zeros((theta.size, theta.size))

    assert finite_prior_at(Flat(), np.array([-1e140, 0.0]))
    assert not finite_prior_at(Flat(), np.array([-1e295, 0.0]))
    assert not finite_prior_at(Flat(), np.array([np.nan, 0.0]))
    with pytest.raises(NotComputable):
        positive_definite(np.array([[np.nan, 0.0], [0.0, 1.0]]))


def test_matrices_are_repaired_in_units_of_each_parameters_own():
    """Of parameters in hundred thousands and in thousandths: positive definite matrices stay, others get the floor."""
    units = np.array([1e-6, 1e5, 1.0])
    correlated = np.full((3, 3), 0.5) + 0.5 * np.eye(3)
    sound = units[:, None] * correlated * units
    np.testing.assert_allclose(positive_definite(sound), sound, rtol=1e-10)
    correlated[0, 1] = correlated[1, 0] = -0.9  # no three numbers are correlated so
    repaired = positive_definite(units[:, None] * correlated * units, floor=0.01) / units[:, None] / units
    values = np.linalg.eigvalsh(repaired)
    assert values[0] == pytest.approx(0.01 * values[-1])


def test_priors_are_told_in_units_of_each_parameters_own():
    """Of an intercept in hundred thousands beside a slope in thousandths; of nothing, where all are flat."""
    information = np.array([1e-10, 1e6, 1.0])
    prior = SimpleNamespace(hessian=lambda theta: -np.diag(information))
    found = prior_curvature(prior, np.zeros(3))
    np.testing.assert_allclose(found, np.diag(information), rtol=1e-6, atol=1e-16)
    flat = SimpleNamespace(hessian=lambda theta: np.zeros((3, 3)))
    assert np.abs(prior_curvature(flat, np.zeros(3))).max() < 1e-200


def test_rows_that_become_impossible_stop_a_step():
    """Of a shifted Pareto or uniform distribution, whose rows tell that at once: there is no parabola."""

    class Bounded(Rows):
        def log_likelihoods(self, theta):
            return np.where(self.rows[:, 0] >= theta[0] - 2.0, super().log_likelihoods(theta), -np.inf)

    search = search_on(Bounded(np.clip(NORMAL, -1.9, None)))
    search._by_model(np.zeros(2))
    assert search._reached(np.zeros(2), np.array([0.5, 0.0]))[0] == pytest.approx(0.0625)


def test_a_point_that_the_way_comes_back_to_has_the_same_rows():
    tables = iter([Rows(NORMAL), Rows(NORMAL + 1.0)])
    search = search_on(lambda theta: next(tables))
    search._by_model(np.zeros(2))
    first = search._rows
    search._by_model(np.ones(2))
    search._by_model(np.zeros(2))
    assert search._rows is first


def test_a_score_is_not_known_better_than_simulated_rows_know_it(monkeypatch):
    """One row of 4,000 that is clipped by 100 stands for a thousandth of the units, or for none of them."""
    rows = np.concatenate([[[104.0]], np.zeros((3999, 1))])
    search = search_on(Rows(rows, scores=rows), size=1)
    search._by_model(np.zeros(1))
    monkeypatch.setattr(Search, "_score_at", lambda *_: KnownScore(np.zeros(1), np.zeros(1), np.eye(1), 3.0))
    point = ExpansionPoint(np.zeros(1), np.eye(1), 4.0)
    score = search._score_at(point, Frame(np.eye(1), np.eye(1)), 1.0, "score")
    assert score.bias == pytest.approx(np.hypot(3.0, N_UNITS * 100.0 / 4000.0 / search._kept(point)))


def test_what_weights_take_off_a_curvature_is_added(monkeypatch):
    """A unit whose score is clipped has its curvature weighted down with it."""
    search = search_on(Rows(NORMAL, k=2.0))
    search._by_model(np.zeros(2), at_centre=True)
    lengths = np.linalg.norm(2.0 * NORMAL, axis=1)
    part = np.mean(np.minimum(1.0, 1.5 / lengths))
    frame = Frame(np.eye(2), np.eye(2))
    weighted = KnownCurvature(np.eye(2), N_UNITS * 2.0 * part * np.eye(2), 1.0, frame, np.ones(2, bool))
    monkeypatch.setattr(Search, "_curvature_at", lambda *_, **__: weighted)
    found = search._curvature_at(ExpansionPoint(np.zeros(2), np.eye(2), 1.5, 9.0), frame, "x", between_scales=True)
    np.testing.assert_allclose(found.raw, N_UNITS * 2.0 * np.eye(2), atol=1e-9)


def test_units_of_several_rows_are_not_simulated(budget):
    frame = pd.DataFrame({"person": np.arange(300) // 2, "y": np.random.default_rng(0).standard_t(4, 300)})
    table = dp.Table.from_frame(frame, [dp.Person("person"), dp.Number("y", -9.0, 9.0, raw=True)])
    with pm.Model():
        pm.StudentT("y", nu=4, mu=pm.Normal("mu"), sigma=pm.HalfNormal("scale"), observed=table.template.y)
        tree = pm.sample(draws=5, chains=1, budget=budget, data=table, **QUIET)
    assert "growth" not in tree["releases"]
    assert tree["releases"].sizes["early_curvature_release"] == 1


@pytest.mark.parametrize("n", [50, 4000])
@pytest.mark.parametrize("like", [pt.zeros_like, lambda rows: pt.zeros(rows.shape[0])])
def test_parameters_with_an_entry_for_each_row_tell_no_number_of_rows(like, n):
    """Hazard H32: tables of as many rows as are simulated were drawn, and others refused."""
    with pm.Model() as model:
        rows = pm.Data("rows", np.zeros(n))
        pm.Normal("y", pm.Normal("mu") + like(rows), 1.0, observed=rows)
    assert rows_can_be_simulated(model)
    view = read(model)
    (drawn,) = view.simulator(["y"], 4000).rows_at(np.array([3.0]))
    assert drawn.shape == (4000,)
    assert drawn.mean() == pytest.approx(3.0, abs=0.1)


def test_simulated_rows_do_not_depend_on_a_number_of_rows():
    """Such a model is no sum over rows; were it simulated all the same, one row is all that it would know of."""
    drawn = []
    for n in (50, 60):
        with pm.Model() as model:
            rows = pm.Data("rows", np.zeros(n), dims="person")
            pm.Normal("y", pm.Normal("mu") + rows.shape[0], 1e-3, observed=rows, dims="person")
        drawn.append(RowSimulator(row_axes(model, None), ParameterVector(model), ["y"], 10).rows_at(np.zeros(1))[0])
    np.testing.assert_allclose(drawn, 1.0, atol=0.01)


def test_rows_are_those_of_the_dim_that_is_named():
    with pm.Model(coords={"item": ["a", "b"]}) as model:
        x = pm.Data("x", np.zeros(30), dims="person")
        rows = pm.Data("rows", np.zeros((2, 30)), dims=("item", "person"))
        pm.Normal("y", pm.Normal("mu") * x, 1.0, observed=rows, dims=("item", "person"))
    assert not rows_can_be_simulated(model, "person")


@pytest.mark.parametrize("dims", [None, "person"])
def test_rows_whose_distribution_depends_on_their_number_are_not_simulated(dims):
    """Hazard H32: a shape is no reading of rows, but simulated rows would tell how many there are."""
    budget = dp.PrivacyBudget(4.0, 1e-6, relation="add-remove")
    with pm.Model():
        rows = pm.Data("rows", np.zeros(50), dims=dims)
        pm.Normal("y", pm.Normal("mu") * rows.shape[0] / 50.0, 1.0, observed=rows)
        with pytest.raises(dp.UnsupportedModel, match="not a sum over rows"):
            pm.sample(draws=5, chains=1, budget=budget, **QUIET)
    assert budget.history == ()
