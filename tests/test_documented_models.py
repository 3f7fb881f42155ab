"""Models of PyMC's and Bambi's documentation are accepted, or refused with a reason that a statistician understands.

Each is the model of the page that it is named after, on a small invented table of the same columns.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import ordered

import pymc_dp as dp
from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood

N, GROUPS = 24, 4
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 3))
REALS, POSITIVE = RNG.normal(size=N), RNG.uniform(0.2, 0.9, size=N)
BINARY, COUNTS, CLASSES = RNG.integers(0, 2, size=N), RNG.poisson(2.0, size=N), RNG.integers(0, 3, size=N)
GROUP = np.arange(N) % GROUPS
COORDS = {"row": range(N), "column": range(3), "group": range(GROUPS)}


def linear_regression():
    """GLM: Linear regression (PyMC)."""
    mu = pm.Normal("intercept", 0, 20) + pm.Data("x", X, dims=("row", "column")) @ pm.Normal("slopes", 0, 20, shape=3)
    pm.Normal("y", mu, pm.HalfCauchy("sigma", beta=10), observed=REALS, dims="row")


def robust_regression():
    """GLM: Robust Linear Regression (PyMC)."""
    mu = pm.Normal("intercept") + pm.Normal("slope") * pm.Data("x", X[:, 0])
    pm.StudentT("y", mu=mu, sigma=pm.HalfNormal("sigma"), nu=pm.Gamma("nu", 2, 0.1), observed=REALS)


def poisson_regression():
    """GLM: Poisson Regression (PyMC)."""
    pm.Poisson("y", pt.exp(pt.dot(X, pm.Normal("b", shape=3))), observed=COUNTS)


def negative_binomial_regression():
    """GLM: Negative Binomial Regression (PyMC)."""
    mu = pt.exp(pt.dot(X, pm.Normal("b", shape=3)))
    pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("alpha", 0.5), observed=COUNTS)


def binomial_regression():
    """Binomial regression (PyMC)."""
    pm.Binomial("y", n=pm.Data("n", COUNTS + 3), logit_p=pm.Normal("b") * X[:, 0], observed=COUNTS)


def radon():
    """A Primer on Bayesian Methods for Multilevel Modeling (PyMC): a covariate of each county."""
    uranium = pm.Data("uranium", np.linspace(-1.0, 1.0, GROUPS), dims="group")
    county = pm.Normal("g0") + pm.Normal("g1") * uranium + pm.HalfNormal("s") * pm.Normal("z", dims="group")
    mu = county[pm.Data("county", GROUP, dims="row")] + pm.Normal("floor") * pm.Data("basement", BINARY, dims="row")
    pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=REALS, dims="row")


def correlated_slopes():
    """LKJ Cholesky Covariance Priors for Multivariate Normal Models (PyMC)."""
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2))
    effects = pm.Normal("mean", shape=2) + pt.dot(pm.Normal("z", shape=(GROUPS, 2)), chol.T)
    pm.Normal("y", effects[GROUP, 0] + effects[GROUP, 1] * X[:, 0], 1.0, observed=REALS)


def eight_schools():
    """A Primer on Diagnostics (PyMC): known standard errors."""
    pm.Normal("y", pm.Normal("mu", 0, 5), pm.Data("se", POSITIVE), observed=REALS)


def best():
    """Bayesian Estimation Supersedes the T-Test (PyMC)."""
    mean, spread = pm.Normal("mean", shape=2), pm.Uniform("spread", 0.1, 10.0, shape=2)
    pm.StudentT("y", nu=pm.Exponential("nu", 1 / 29.0) + 1, mu=mean[BINARY], sigma=spread[BINARY], observed=REALS)


def gaussian_mixture():
    """Gaussian Mixture Model (PyMC)."""
    mu = pm.Normal("mu", 0.0, 10.0, shape=3, transform=ordered, initval=[-4, 0, 4])
    weights = pm.Dirichlet("w", np.ones(3))
    pm.NormalMixture("y", w=weights, mu=mu, sigma=pm.HalfNormal("sigma", shape=3), observed=REALS)


def marginalised_mixture():
    """Marginalized Gaussian Mixture Model (PyMC): weights and places that were written down."""
    parts = [pm.Normal.dist(pm.Normal("mu"), 1.0), pm.Normal.dist(2.0, pm.HalfNormal("s"))]
    pm.Mixture("y", w=[0.3, 0.7], comp_dists=parts, observed=REALS)


def ordered_probit():
    """Regression Models with Ordered Categorical Outcomes (PyMC)."""
    cut = pm.Normal("cut", [-1.0, 1.0], 2.0, shape=2, transform=ordered)
    pm.OrderedProbit("y", eta=pm.Normal("b") * X[:, 0], cutpoints=cut, compute_p=False, observed=CLASSES)


def fixed_cutpoints():
    """The same with cutpoints that were written down."""
    pm.OrderedLogistic("y", eta=pm.Normal("b") * X[:, 0], cutpoints=[-1.0, 1.0], compute_p=False, observed=CLASSES)


def softmax_regression():
    """GLM: multinomial logistic regression (Bambi: Categorical Regression)."""
    logits = pt.dot(X, pm.Normal("b", shape=(3, 2)))
    pm.Categorical("y", logit_p=pt.concatenate([pt.zeros((X.shape[0], 1)), logits], axis=1), observed=CLASSES)


def zero_inflated():
    """Models of count data (Bambi: Zero inflated models)."""
    pm.ZeroInflatedPoisson("y", psi=pm.Beta("psi", 2, 2), mu=pt.exp(pm.Normal("b") * X[:, 0]), observed=COUNTS)


def hurdle():
    """Hurdle models (Bambi)."""
    pm.HurdlePoisson("y", psi=pm.Beta("psi", 2, 2), mu=pt.exp(pm.Normal("b") * X[:, 0]), observed=COUNTS)


def beta_regression():
    """Beta regression (Bambi)."""
    pm.Beta("y", mu=pt.sigmoid(pm.Normal("b") * X[:, 0]), nu=pm.HalfNormal("nu", 10), observed=POSITIVE)


def gamma_regression():
    """Gamma regression (Bambi)."""
    mu, alpha = pt.exp(pm.Normal("b") * X[:, 0]), pm.HalfCauchy("alpha", 1)
    pm.Gamma("y", alpha=alpha, beta=alpha / mu, observed=POSITIVE)


def wald_regression():
    """Wald regression (Bambi)."""
    pm.Wald("y", mu=pt.exp(pm.Normal("b") * X[:, 0]), lam=pm.HalfNormal("lam"), observed=POSITIVE)


def quantile_regression():
    """Quantile regression (Bambi)."""
    pm.AsymmetricLaplace("y", mu=pm.Normal("b") * X[:, 0], b=pm.HalfNormal("s"), q=0.9, observed=REALS)


def circular_regression():
    """Circular regression (Bambi)."""
    pm.VonMises("y", mu=2 * pt.arctan(pm.Normal("b") * X[:, 0]), kappa=pm.HalfNormal("k"), observed=REALS)


def censored_survival():
    """Bayesian Parametric Survival Analysis (PyMC): censored Weibull."""
    latent = pm.Weibull.dist(alpha=pm.HalfNormal("alpha"), beta=pt.exp(pm.Normal("b") * X[:, 0]))
    pm.Censored("y", latent, lower=None, upper=0.8, observed=np.minimum(POSITIVE, 0.8))


def truncated_regression():
    """Bayesian regression with truncated or censored data (PyMC)."""
    pm.TruncatedNormal("y", mu=pm.Normal("b") * X[:, 0], sigma=1.0, lower=-3.0, upper=3.0, observed=REALS)


def splines():
    """Splines (PyMC): the basis is a table of rows."""
    basis = pm.Data("basis", RNG.uniform(size=(N, 6)), dims=("row", None))
    pm.Normal("y", pm.Normal("a") + pt.dot(basis, pm.Normal("w", shape=6)), 1.0, observed=REALS, dims="row")


def sum_to_zero():
    """Group effects that sum to zero, by a matrix of contrasts."""
    contrasts = np.eye(GROUPS)[:, :-1] - 1.0 / GROUPS
    pm.Normal("y", pt.dot(contrasts, pm.Normal("b", shape=GROUPS - 1))[GROUP], 1.0, observed=REALS)


def group_specific_effects():
    """Hierarchical models (Bambi): ``y ~ x + (1|g)``, whose names are Bambi's."""
    effect = pm.Normal("1|g", 0.0, pm.HalfNormal("1|g_sigma", 2.0), dims="group")
    pm.Normal("y", pm.Normal("Intercept") + pm.Normal("x") * X[:, 0] + effect[GROUP], 1.0, observed=REALS)


def random_intercept_integrated_out():
    """Gauss-Hermite quadrature over an effect of each row."""
    nodes, weights = map(dp.public, np.polynomial.hermite_e.hermegauss(15))
    scores = (pm.Normal("b") * X[:, 0])[:, None] + pm.HalfNormal("tau") * nodes
    terms = pt.log(weights) + BINARY[:, None] * pt.log(pt.sigmoid(scores))
    logp = pt.logsumexp(terms, axis=1)
    pm.CustomDist("y", logp, logp=lambda value, logp: logp + 0.0 * value, observed=REALS)


ACCEPTED = [
    linear_regression, robust_regression, poisson_regression, negative_binomial_regression, binomial_regression, radon,
    correlated_slopes, eight_schools, best, gaussian_mixture, marginalised_mixture, ordered_probit, fixed_cutpoints,
    softmax_regression, zero_inflated, hurdle, beta_regression, gamma_regression, wald_regression, quantile_regression,
    circular_regression, censored_survival, truncated_regression, splines, sum_to_zero, group_specific_effects,
    random_intercept_integrated_out,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("write", ACCEPTED, ids=lambda write: write.__name__)
def test_a_documented_model_that_factorises_is_accepted(write):
    with pm.Model(coords=COORDS) as model:
        write()
    assert UnitLikelihood(read(model)).n_units == N


def stochastic_volatility():
    """Stochastic Volatility model (PyMC)."""
    volatility = pm.GaussianRandomWalk("volatility", sigma=0.1, shape=N, init_dist=pm.Normal.dist())
    pm.StudentT("y", nu=4.0, lam=pt.exp(-2 * volatility), observed=REALS)


def autoregression():
    """Analysis of an AR(1) model (PyMC)."""
    pm.AR("y", rho=[pm.Normal("rho")], sigma=1.0, init_dist=pm.Normal.dist(), observed=REALS)


def marginal_process():
    """Marginal Likelihood Implementation (PyMC, Gaussian processes)."""
    process = pm.gp.Marginal(cov_func=pm.gp.cov.Matern52(1, ls=pm.HalfNormal("length")))
    process.marginal_likelihood("y", X=X[:, :1], y=REALS, sigma=0.3)


def hilbert_space_process():
    """Gaussian Processes: HSGP Reference & First Steps (PyMC)."""
    process = pm.gp.HSGP(m=[6], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=pm.HalfNormal("length")))
    pm.Normal("y", process.prior("f", X=pm.Data("x", X[:, :1])), 1.0, observed=REALS)


def missing_covariate():
    """Bayesian Missing Data Imputation (PyMC): an unknown value for each missing entry."""
    with_gaps = np.where(np.arange(N) % 5 == 0, np.nan, X[:, 0])
    covariate = pm.Normal("x", pm.Normal("mean"), 1.0, observed=with_gaps)
    pm.Normal("y", pm.Normal("b") * covariate, 1.0, observed=REALS)


def measurement_error():
    """Measurement error (PyMC): a true value for each row."""
    true = pm.Normal("true", pm.Normal("mean"), 1.0, shape=N)
    pm.Normal("seen", true, 0.5, observed=X[:, 0])
    pm.Normal("y", pm.Normal("b") * true, 1.0, observed=REALS)


def survival_with_a_potential():
    """Reparameterizing the Weibull Accelerated Failure Time Model (PyMC): a potential has the censored rows."""
    late = POSITIVE > 0.6
    alpha, beta = pm.HalfNormal("alpha"), pt.exp(pm.Normal("b") * X[:, 0])
    pm.Weibull("seen", alpha=alpha, beta=beta[~late], observed=POSITIVE[~late])
    pm.Potential("censored", -((0.6 / beta[late]) ** alpha))


REFUSED = {
    missing_covariate: "by a rule that looks at each row alone.* a public number in place of missing values",
    measurement_error: "'true' has one entry for each row.*integrate it out",
    survival_with_a_potential: r"have all rows, and write censored ones with pm\.Censored",
    stochastic_volatility: "'volatility' has one entry for each row",
    autoregression: "time series",
    marginal_process: "Gaussian process|as many entries as there are rows along several axes",
    hilbert_space_process: "computes the middle of its locations",
}


@pytest.mark.parametrize("write", REFUSED, ids=lambda write: write.__name__)
def test_a_documented_model_that_does_not_factorise_is_refused_with_the_reason(write):
    with pm.Model(coords=COORDS) as model:
        write()
    with pytest.raises(dp.UnsupportedModel, match=REFUSED[write]):
        UnitLikelihood(read(model))
