"""Members of hierarchies in standardised coordinates: the density is the same, and its shape is that of a normal."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pymc.distributions.transforms import Interval
from pymc.initial_point import make_initial_point_fn
from pymc.logprob.transforms import LogTransform
from scipy import integrate, stats

from pymc_dp.model.members import (
    GivenItsScale,
    Unstandardised,
    VectorsGivenTheirCovariance,
    from_means_and_members,
    standardising,
)
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.posterior import LogDensity, Posterior, priors_of, standardised, with_likelihood
from pymc_dp.model.structure import in_likelihood
from pymc_dp.model.transforms import Itself, without_bounds

N_GROUPS = 30


def groups(**options):
    """Return priors of groups, and a likelihood that tells of each of them with noise as wide as they vary."""
    generator = np.random.default_rng(0)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 1.0), pm.HalfNormal("tau", 1.0)
        pm.Normal("effect", mu, tau, shape=N_GROUPS, **options)
    told = generator.normal(0.0, np.hypot(0.3, 0.3), N_GROUPS)
    labels = ParameterVector(model).labels
    known = np.array([label.startswith("effect") for label in labels])
    mean = np.zeros(len(labels))
    mean[known] = told
    square = ("parameter", "other")
    matrices = {
        "information": np.eye(len(labels)) / 0.05,
        "noise": 0.04 * np.eye(len(labels)),
        "bias": np.zeros((32, 32)),
    }
    likelihood = xr.Dataset(
        {
            "mean": ("parameter", mean),
            "known": ("parameter", known.astype(int)),
            **{name: (square, matrix) for name, matrix in matrices.items()},
        },
        coords={"parameter": labels},
    )
    return model, likelihood, told


def test_it_is_there_and_back_and_the_derivative_is_its_own():
    transform = GivenItsScale(np.array([0.0, 2.0, 1e6]), np.array([5.0, -1.0, 3.0]))
    value, prior = np.array([0.3, -1.2, 0.1]), (0.5, 0.7)
    back = transform.backward(np.asarray(value), *prior).eval()
    np.testing.assert_allclose(transform.forward(back, *prior).eval(), value, rtol=1e-6)
    ahead, behind = (transform.backward(value + step, *prior).eval() for step in (1e-6, -1e-6))
    np.testing.assert_allclose(transform.log_jac_det(value, *prior).eval(), np.log((ahead - behind) / 2e-6), rtol=1e-6)
    for there in (transform.forward, transform.backward):  # PyMC in single precision
        assert there(pt.constant(value.astype("float32")), *prior).type.dtype == "float32"
    assert back[0] == pytest.approx(0.5 + 0.7 * 0.3)  # nothing is told: not centred
    assert back[2] == pytest.approx(3.0 + 0.1 / 1e3, abs=1e-5)  # all is told: centred


def test_the_volume_of_a_vector_is_that_of_its_entries():
    transform = VectorsGivenTheirCovariance(np.array([[0.0, 2.0], [1e3, 0.5]]), np.array([[5.0, -1.0], [0.2, 3.0]]))
    value, prior = np.array([[0.3, -1.2], [0.1, 2.0]]), (np.zeros((1, 2)), np.array([[[4.0, 0.5], [0.5, 0.3]]]))
    back = transform.backward(pt.as_tensor(value), *map(pt.as_tensor, prior)).eval()
    forward = transform.forward(pt.as_tensor(back), *map(pt.as_tensor, prior)).eval()
    np.testing.assert_allclose(forward, value, rtol=1e-9)
    ahead, behind = (
        transform.backward(pt.as_tensor(value + h), *map(pt.as_tensor, prior)).eval() for h in (1e-5, -1e-5)
    )
    found = transform.log_jac_det(pt.as_tensor(value), *map(pt.as_tensor, prior)).eval()
    np.testing.assert_allclose(found, np.log((ahead - behind) / 2e-5).sum(axis=-1), rtol=1e-6)
    assert back[0, 0] == pytest.approx(2.0 * 0.3)  # by the diagonal of the covariance: nothing is told


def test_a_standardised_member_is_a_standard_normal_whatever_the_scale_is():
    model, likelihood, _ = groups()
    density = LogDensity(model, likelihood)
    assert density.members.sum() == N_GROUPS
    z = np.random.default_rng(1).normal(size=(4, N_GROUPS))
    for mu, log_tau in ((0.0, -5.0), (1.0, 0.0), (-1.0, 2.0)):
        values = [density._pytensor_function(np.concatenate([[mu, log_tau], each]))[0] for each in z]
        np.testing.assert_allclose(np.diff(values), np.diff(-0.5 * np.sum(z**2, axis=1)), rtol=1e-6)


def test_variables_keep_their_order_and_others_their_transforms():
    model, likelihood, _ = groups()
    drawn = standardised(with_likelihood(priors_of(model, None), ParameterVector(model), likelihood), likelihood)
    assert [each.name for each in drawn.value_vars] == ["mu", "tau_log__", "effect_standardised__"]
    assert [each.name for each in drawn.free_RVs] == ["mu", "tau", "effect"]
    with pm.Model() as plain:
        pm.Normal("effect", 0.0, 2.0, shape=N_GROUPS)
    assert standardised(plain, likelihood.isel(parameter=slice(2, None), other=slice(2, None))) is plain


def test_chains_start_at_the_draws_they_are_given():
    """On the unconstrained scale, of variables with and without a transform of their own."""
    with pm.Model() as priors:
        tau = pm.HalfNormal("tau", 1.0)
        pm.ZeroSumNormal("less", tau, shape=3)
        pm.Normal("effect", tau, tau, shape=2)
        pm.Uniform("cut", 0.0, 1.0, shape=2, transform=pm.distributions.transforms.ordered, initval=[0.2, 0.7])
    parameters = ParameterVector(priors)
    size, start = parameters.size, np.array([0.4, -0.3, 1.2, 2.0, -0.5, -0.2, 0.3])
    matrices = {"information": np.eye(size), "noise": 0.3 * np.eye(size), "bias": np.zeros((size, size))}
    likelihood = xr.Dataset(
        {
            "mean": ("parameter", np.arange(size) / size),
            "known": ("parameter", (np.arange(size) != 0).astype(int)),
            **{name: (("parameter", "other"), matrix) for name, matrix in matrices.items()},
        },
        coords={"parameter": parameters.labels},
    )
    arguments = Posterior(priors, likelihood, np.eye(size), start).arguments_of_sample([start])
    drawn = arguments["model"]
    z = make_initial_point_fn(model=drawn, overrides=arguments["initvals"][0])(0)
    z = np.concatenate([np.ravel(z[value.name]) for value in drawn.value_vars])
    unstandardised = Unstandardised(drawn, parameters)
    assert unstandardised.members.tolist() == [False, True, True, True, True, False, False]
    np.testing.assert_allclose(unstandardised(z, z)[0], start, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.production
def test_nuts_finds_the_scale_of_members_that_are_mostly_noise():
    """Its law by quadrature: the members, and their mean, are integrated over. False alarms: one in 10,000."""
    model, likelihood, told = groups()
    drawn = standardised(with_likelihood(priors_of(model, None), ParameterVector(model), likelihood), likelihood)
    with drawn:
        step = pm.NUTS(logp_dlogp_func=LogDensity(model, likelihood))
        tree = pm.sample(500, tune=500, chains=4, cores=1, step=step, random_seed=1, progressbar=False)

    def density(tau):
        covariance = 1.0 + (tau**2 + 0.09) * np.eye(N_GROUPS)
        return np.exp(stats.multivariate_normal.logpdf(told, cov=covariance) - wide) * np.exp(-0.5 * tau**2)

    wide = stats.multivariate_normal.logpdf(told, cov=1.0 + 0.18 * np.eye(N_GROUPS))
    points = np.linspace(0.0, 2.0, 201)
    masses = integrate.cumulative_simpson([density(each) for each in points], x=points, initial=0.0)
    tau = tree["posterior"]["tau"].values.ravel()
    effective = 400.0
    for part in (0.05, 0.25, 0.5, 0.75, 0.95):
        below = np.interp(np.quantile(tau, part), points, masses / masses[-1])
        assert below == pytest.approx(part, abs=4.3 * np.sqrt(part * (1.0 - part) / effective))
    assert int(tree["sample_stats"]["diverging"].sum()) == 0


def beside_an_intercept(**potential):
    """Return a model of members beside an intercept, and a likelihood that knows their sums far better than either."""
    with pm.Model() as model:
        intercept, tau = pm.Normal("intercept", 0.0, 2.0), pm.HalfNormal("tau", 1.0)
        effect = pm.Normal("effect", 0.0, tau, shape=N_GROUPS)
        if potential:
            pm.Potential("convex", potential["of"] * pm.math.sum(effect**2) * tau + intercept)
    labels = np.array(ParameterVector(model).labels)
    known = labels != "tau_log__"
    rows = np.zeros((N_GROUPS, labels.size))
    rows[:, labels == "intercept"], rows[:, np.char.startswith(labels, "effect")] = 1.0, np.eye(N_GROUPS)
    square, size = ("parameter", "other"), labels.size
    return model, xr.Dataset(
        {
            "mean": ("parameter", np.zeros(size)),
            "known": ("parameter", known.astype(int)),
            "information": (square, 100.0 * rows.T @ rows + 1e-3 * np.eye(size)),
            "noise": (square, np.zeros((size, size))),
            "bias": (square, np.zeros((size, size))),
        },
        coords={"parameter": labels},
    )


def test_a_mass_matrix_knows_how_members_stand_beside_an_intercept():
    """What rows tell of them is the curvature of the density; of what the prior alone knows, the covariance is kept."""
    model, likelihood = beside_an_intercept()
    density, mean = LogDensity(model, likelihood), np.concatenate([[0.1, -0.7], np.zeros(N_GROUPS)])
    found = density.mass_matrix(0.5 * np.eye(mean.size), mean)
    rows_know = np.arange(mean.size) != 1

    def gradient(along):
        return density._pytensor_function(mean + 1e-4 * along)[1]

    curvature = np.array([gradient(-way) - gradient(way) for way in np.eye(mean.size)])[:, rows_know] / 2e-4
    np.testing.assert_allclose(found[np.ix_(rows_know, rows_know)], np.linalg.inv(curvature[rows_know]), rtol=1e-4)
    assert found[1, 1] == 0.5
    assert not found[1, rows_know].any()
    spread = np.sqrt(np.diag(found))
    together = density.members / np.sqrt(N_GROUPS) / spread
    assert together @ found @ together > 10.0  # 1 if they were independent, 30 if all were the same


@pytest.mark.parametrize("log_tau", [-1.5, 0.0, 1.0])
def test_members_are_standardised_where_the_posterior_is(log_tau):
    """The likelihood's maximum may be far: with an intercept 70 more, and all members 70 less, rows are as likely."""
    model, likelihood = beside_an_intercept()
    alike, information = np.concatenate([[1.0, 0.0], -np.ones(N_GROUPS)]), 100.0 + 1e-3
    likelihood["mean"] += 70.0 * alike
    centre = 0.1 * alike
    unstandardised = Unstandardised(standardised(model, likelihood, centre), ParameterVector(model))
    z = np.where(unstandardised.members, 0.0, centre)
    z[1] = log_tau
    told = -70.0 + (70.0 - centre[0]) * 100.0 / information  # by rows, of a member beside this intercept
    shrunk = told * information / (information + np.exp(-2.0 * log_tau))
    np.testing.assert_allclose(unstandardised(z, z)[0][2:], shrunk, rtol=1e-6)


def test_a_density_without_curvature_leaves_members_standard_normal():
    model, likelihood = beside_an_intercept(of=1e4)
    density = LogDensity(model, likelihood)
    found = density.mass_matrix(0.5 * np.eye(2 + N_GROUPS), np.zeros(2 + N_GROUPS))
    np.testing.assert_array_equal(found, np.diag(np.where(density.members, 1.0, 0.5)))


def coordinates_of(model):
    parameters = ParameterVector(model)
    return from_means_and_members(model, parameters, in_likelihood(model, parameters))


def to_parameters(build):
    """Return the matrix of a model whose rows depend on three members and nothing else."""
    with pm.Model() as model:
        mean = build()
        tau = pm.HalfNormal("tau", 1.0)
        member = pm.Normal("member", mean, tau, shape=3)
        pm.Normal("y", member[pm.Data("group", np.array([0, 1, 2, 0]))], 1.0, observed=np.zeros(4))
    labels = ParameterVector(model).labels
    found = coordinates_of(model)
    return found, [labels.index(f"member[{k}]") for k in range(3)], labels


def test_members_stand_apart_from_the_mean_of_their_prior():
    found, members, labels = to_parameters(lambda: pm.Normal("mu", 2.0, 1.0))
    added = found - np.eye(len(labels))
    np.testing.assert_array_equal(added[members, labels.index("mu")], 1.0)
    assert added.sum() == 3.0


def test_rows_of_a_table_of_members_share_a_mean():
    """Its shape is that of a column, which PyMC repeats; and dims have lengths that no graph holds."""
    with pm.Model(coords={"region": ["a", "b"], "kind": list(range(3))}) as model:
        of_regions = pm.Normal("of_regions", dims="region")
        member = pm.Normal("member", of_regions[:, None], pm.HalfNormal("tau"), dims=("region", "kind"))
        pm.Normal("y", member[pm.Data("group", np.array([0, 1]))].sum(axis=-1), 1.0, observed=np.zeros(2))
    labels = ParameterVector(model).labels
    found = coordinates_of(model)
    for region in range(2):
        members = [labels.index(f"member[{region}, {kind}]") for kind in range(3)]
        np.testing.assert_array_equal(found[members, labels.index(f"of_regions[{region}]")], 1.0)
    assert found.sum() == len(labels) + 6.0


def test_covariates_of_groups_are_parts_of_that_mean():
    of_groups = np.array([0.5, -1.0, 2.0])
    found, members, labels = to_parameters(
        lambda: 5.0 + pm.Normal("a", 0.0, 1.0) - of_groups * pm.Normal("b", 0.0, 1.0)
    )
    np.testing.assert_allclose(found[members, labels.index("a")], 1.0)
    np.testing.assert_allclose(found[members, labels.index("b")], -of_groups)


@pytest.mark.parametrize(
    "build",
    [
        lambda: 2.0,
        lambda: pm.HalfNormal("mu", 1.0),
        lambda: pm.Normal("mu", 0.0, 1.0) ** 2,
    ],
)
def test_means_that_are_no_linear_function_of_parameters_stay(build):
    assert to_parameters(build)[0] is None


def test_a_mean_that_rows_depend_on_stays():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        member = pm.Normal("member", mu, pm.HalfNormal("tau"), shape=2)
        pm.Normal("y", mu + member[pm.Data("group", np.array([0, 1]))], 1.0, observed=np.zeros(2))
    assert coordinates_of(model) is None


def test_a_coefficient_with_a_lower_bound_is_drawn_in_units_of_its_own_precision():
    with pm.Model() as model:
        pm.Normal("a", shape=2, transform=Itself(0.0, np.inf, LogTransform()))
        pm.Normal("b", transform=Itself(0.0, 1.0, Interval(0.0, 1.0)))
    found = standardising(model, ParameterVector(model), np.array([4.0, 0.25, 1.0]), np.zeros(3))
    value = found["a"].transform_list[-1].backward(np.array([9.0, 9.0])).eval()
    np.testing.assert_allclose(value, [9.0 / 2.0, 9.0 * 2.0], rtol=1e-3)
    assert isinstance(found["b"].transform_list[-1], Interval)


def test_the_centre_of_draws_is_away_from_bounds():
    """In values without bounds; where no bound is near, the mean itself."""
    with pm.Model() as model:
        pm.Normal("a", transform=Itself(0.0, np.inf, LogTransform()))
        pm.Normal("b", transform=Itself(0.0, np.inf, LogTransform()))
        pm.Normal("c", transform=Itself(0.0, 1.0, Interval(0.0, 1.0)))
        pm.Normal("d")
    drawn = priors_of(model, None, without_bounds(model))
    found = Unstandardised(drawn, ParameterVector(model)).centre(np.array([1e-3, 7.0, 0.999, -2.0]), np.full(4, 0.1))
    np.testing.assert_allclose(found, [np.log(0.08), np.log(7.0), np.log(0.92 / 0.08), -2.0])
    both = Unstandardised(drawn, ParameterVector(model)).centre(np.array([1e-3, 7.0, 0.9, -2.0]), np.full(4, 9.0))
    assert np.isfinite(both).all()
