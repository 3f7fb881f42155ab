"""One likelihood for each distribution of PyMC that has rows: called, it writes the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

N, WIDTH = 7, 3
_GENERATOR = np.random.default_rng(5)
REALS = _GENERATOR.normal(size=N)
POSITIVE = _GENERATOR.uniform(0.2, 0.9, size=N)
COUNTS = _GENERATOR.integers(0, 3, size=N)
VECTORS = _GENERATOR.normal(size=(N, WIDTH))
SHARES = _GENERATOR.dirichlet(np.ones(WIDTH), size=N)
#: Correlations of two variables, different for each row.
_MATRICES = np.eye(2) + np.linspace(-0.5, 0.5, N)[:, None, None] * (1.0 - np.eye(2))
TALLIES = _GENERATOR.multinomial(4, np.ones(WIDTH) / WIDTH, size=N)


@dataclass(frozen=True)
class Rows:
    """What is observed, by its support."""

    reals: np.ndarray
    positive: np.ndarray
    counts: np.ndarray
    vectors: np.ndarray
    shares: np.ndarray
    tallies: np.ndarray


ROWS = Rows(REALS, POSITIVE, COUNTS, VECTORS, SHARES, TALLIES)


@dataclass(frozen=True)
class Free:
    """A parameter of a distribution that is one of the model, or any expression of its support."""

    name: str
    kind: Callable[..., Any]
    of_number: Callable[[Any], Any]

    def __call__(self):
        return self.kind(self.name)


@dataclass(frozen=True)
class Likelihood:
    """A distribution, what is observed, and its parameters: those that are called are parameters of the model."""

    name: str
    observed: Callable[[Rows], np.ndarray]
    parameters: Mapping[str, Any]

    def __call__(self):
        self.write(ROWS, {key: value() if callable(value) else value for key, value in self.parameters.items()})

    def write(self, rows, parameters, **options):
        getattr(pm, self.name)("y", **parameters, observed=self.observed(rows), **options)


def _of(name, observed, **parameters):
    return Likelihood(name, observed if callable(observed) else lambda rows: observed, parameters)


def a(name="mu"):
    return Free(name, pm.Normal, lambda number: number)


def some(name="scale"):
    return Free(name, pm.HalfNormal, lambda number: pt.exp(pt.clip(number, -5.0, 5.0)))


def share(name="share"):
    return Free(name, lambda name: pm.Beta(name, 2.0, 2.0), pt.sigmoid)


def _normal():
    return pm.Normal.dist(pm.Normal("mu"), 1.0)


def _own():
    pm.CustomDist("y", pm.Normal("mu"), logp=lambda value, mu: -pt.sqr(value - mu), observed=REALS)


def _density():
    pm.DensityDist("y", pm.Normal("mu"), logp=lambda value, mu: -pt.sqr(value - mu), observed=REALS)


def _cutpoints():
    return pm.Normal("cutpoints", [-1.0, 1.0], 1.0, shape=2, transform=pm.distributions.transforms.ordered)


def _of_parts(name):
    def write():
        w, mu = np.array([0.4, 0.6]), pm.Normal("mu", shape=2)
        if name == "Mixture":
            pm.Mixture("y", w, [pm.Normal.dist(mu[0], 1.0), pm.Laplace.dist(mu[1], 1.0)], observed=REALS)
        else:
            pm.NormalMixture("y", w, mu, 1.0, observed=REALS)

    return write


LIKELIHOODS = {
    "AsymmetricLaplace": _of("AsymmetricLaplace", lambda rows: rows.reals, kappa=1.2, mu=a(), b=1.0),
    "Bernoulli": _of("Bernoulli", lambda rows: rows.counts % 2, logit_p=a()),
    "Beta": _of("Beta", lambda rows: rows.positive, alpha=some("alpha"), beta=2.0),
    "BetaBinomial": _of("BetaBinomial", lambda rows: rows.counts, n=4, alpha=some("alpha"), beta=2.0),
    "Binomial": _of("Binomial", lambda rows: rows.counts, n=4, logit_p=a()),
    "Categorical": _of("Categorical", lambda rows: rows.counts, logit_p=lambda: pm.Normal("logits", shape=3)),
    "Cauchy": _of("Cauchy", lambda rows: rows.reals, alpha=a(), beta=1.0),
    "Censored": lambda: pm.Censored("y", _normal(), -1.0, 1.0, observed=np.clip(REALS, -1.0, 1.0)),
    "ChiSquared": _of("ChiSquared", lambda rows: rows.positive, nu=some("nu")),
    "CustomDist": _own,
    "DensityDist": _density,
    "Dirichlet": _of("Dirichlet", lambda rows: rows.shares, a=lambda: pm.HalfNormal("a", shape=WIDTH)),
    "DirichletMultinomial": _of(
        "DirichletMultinomial", lambda rows: rows.tallies, n=4, a=lambda: pm.HalfNormal("a", shape=WIDTH)
    ),
    "DiscreteUniform": _of("DiscreteUniform", lambda rows: rows.counts, lower=0, upper=lambda: 4 + 0 * pm.Normal("mu")),
    "DiscreteWeibull": _of("DiscreteWeibull", lambda rows: rows.counts, q=share("q"), beta=1.3),
    "ExGaussian": _of("ExGaussian", lambda rows: rows.reals, mu=a(), sigma=1.0, nu=1.0),
    "Exponential": _of("Exponential", lambda rows: rows.positive, lam=some("rate")),
    "Flat": lambda: (pm.Normal("mu"), pm.Flat("y", observed=REALS)),
    "Gamma": _of("Gamma", lambda rows: rows.positive, alpha=some("alpha"), beta=2.0),
    "Geometric": _of("Geometric", lambda rows: rows.counts + 1, p=share("p")),
    "Gumbel": _of("Gumbel", lambda rows: rows.reals, mu=a(), beta=1.0),
    "HalfCauchy": _of("HalfCauchy", lambda rows: rows.positive, beta=some()),
    "HalfFlat": lambda: (pm.Normal("mu"), pm.HalfFlat("y", observed=POSITIVE)),
    "HalfNormal": _of("HalfNormal", lambda rows: rows.positive, sigma=some()),
    "HalfStudentT": _of("HalfStudentT", lambda rows: rows.positive, nu=3.0, sigma=some()),
    "HurdleGamma": _of(
        "HurdleGamma", lambda rows: rows.positive * (rows.counts > 0), psi=share("psi"), alpha=2.0, beta=1.0
    ),
    "HurdleLogNormal": _of(
        "HurdleLogNormal", lambda rows: rows.positive * (rows.counts > 0), psi=share("psi"), mu=0.0, sigma=1.0
    ),
    "HurdleNegativeBinomial": _of(
        "HurdleNegativeBinomial", lambda rows: rows.counts, psi=share("psi"), mu=1.0, alpha=2.0
    ),
    "HurdlePoisson": _of("HurdlePoisson", lambda rows: rows.counts, psi=share("psi"), mu=1.0),
    "HyperGeometric": _of("HyperGeometric", lambda rows: rows.counts, N=20, k=lambda: 10 + 0 * pm.Normal("mu"), n=5),
    "InverseGamma": _of("InverseGamma", lambda rows: rows.positive, alpha=some("alpha"), beta=2.0),
    "Kumaraswamy": _of("Kumaraswamy", lambda rows: rows.positive, a=some("a"), b=2.0),
    "Laplace": _of("Laplace", lambda rows: rows.reals, mu=a(), b=1.0),
    "LogNormal": _of("LogNormal", lambda rows: rows.positive, mu=a(), sigma=1.0),
    "Logistic": _of("Logistic", lambda rows: rows.reals, mu=a(), s=1.0),
    "LogitNormal": _of("LogitNormal", lambda rows: rows.positive, mu=a(), sigma=1.0),
    "Lognormal": _of("Lognormal", lambda rows: rows.positive, mu=a(), sigma=1.0),
    "Mixture": _of_parts("Mixture"),
    "Moyal": _of("Moyal", lambda rows: rows.reals, mu=a(), sigma=1.0),
    "Multinomial": _of("Multinomial", lambda rows: rows.tallies, n=4, p=lambda: pm.Dirichlet("p", np.ones(WIDTH))),
    "MvNormal": _of("MvNormal", lambda rows: rows.vectors, mu=lambda: pm.Normal("mu", shape=WIDTH), cov=np.eye(WIDTH)),
    "MvStudentT": _of(
        "MvStudentT", lambda rows: rows.vectors, nu=4.0, mu=lambda: pm.Normal("mu", shape=WIDTH), scale=np.eye(WIDTH)
    ),
    "NegativeBinomial": _of("NegativeBinomial", lambda rows: rows.counts, mu=some("mean"), alpha=2.0),
    "Normal": _of("Normal", lambda rows: rows.reals, mu=a(), sigma=1.0),
    "NormalMixture": _of_parts("NormalMixture"),
    "OrderedLogistic": _of("OrderedLogistic", lambda rows: rows.counts, eta=a(), cutpoints=_cutpoints, compute_p=False),
    "OrderedMultinomial": _of(
        "OrderedMultinomial", lambda rows: rows.tallies, eta=a(), cutpoints=_cutpoints, n=4, compute_p=False
    ),
    "OrderedProbit": _of("OrderedProbit", lambda rows: rows.counts, eta=a(), cutpoints=_cutpoints, compute_p=False),
    "Pareto": _of("Pareto", lambda rows: rows.positive + 1.0, alpha=some("alpha"), m=1.0),
    "Poisson": _of("Poisson", lambda rows: rows.counts, mu=some("mean")),
    "Rice": _of("Rice", lambda rows: rows.positive, nu=some("nu"), sigma=1.0),
    "SkewNormal": _of("SkewNormal", lambda rows: rows.reals, mu=a(), sigma=1.0, alpha=2.0),
    "SkewStudentT": _of("SkewStudentT", lambda rows: rows.reals, a=2.0, b=3.0, mu=a(), sigma=1.0),
    "StudentT": _of("StudentT", lambda rows: rows.reals, nu=4.0, mu=a(), sigma=1.0),
    "Triangular": _of("Triangular", lambda rows: rows.positive, lower=-1.0, c=share("c"), upper=2.0),
    "Truncated": lambda: pm.Truncated("y", _normal(), lower=-3.0, upper=3.0, observed=REALS),
    "TruncatedNormal": _of("TruncatedNormal", lambda rows: rows.reals, mu=a(), sigma=1.0, lower=-3.0, upper=3.0),
    "Uniform": _of("Uniform", lambda rows: rows.positive, lower=-1.0, upper=lambda: 1.0 + pm.HalfNormal("upper")),
    "VonMises": _of("VonMises", lambda rows: rows.reals, mu=a(), kappa=some("kappa")),
    "Wald": _of("Wald", lambda rows: rows.positive, mu=some("mean"), lam=1.0),
    "Weibull": _of("Weibull", lambda rows: rows.positive, alpha=some("alpha"), beta=1.0),
    "ZeroInflatedBinomial": _of("ZeroInflatedBinomial", lambda rows: rows.counts, psi=share("psi"), n=4, p=0.3),
    "ZeroInflatedNegativeBinomial": _of(
        "ZeroInflatedNegativeBinomial", lambda rows: rows.counts, psi=share("psi"), mu=1.0, alpha=2.0
    ),
    "ZeroInflatedPoisson": _of("ZeroInflatedPoisson", lambda rows: rows.counts, psi=share("psi"), mu=1.0),
    "DiracDelta": lambda: (pm.Normal("mu"), pm.DiracDelta("y", 1.0, observed=np.ones(N))),
    "PolyaGamma": _of("PolyaGamma", lambda rows: rows.positive, h=1.0, z=a()),
    "Interpolated": lambda: (
        pm.Normal("mu"),
        pm.Interpolated("y", np.linspace(-5, 5, 11), np.ones(11), observed=REALS),
    ),
    "KroneckerNormal": _of(
        "KroneckerNormal", _GENERATOR.normal(size=(N, 4)), mu=np.zeros(4), covs=[np.eye(2), np.eye(2)], sigma=some()
    ),
    "MatrixNormal": _of("MatrixNormal", np.ones((N, 2)), mu=a(), rowcov=np.eye(N), colcov=np.eye(2)),
    "StickBreakingWeights": _of("StickBreakingWeights", lambda rows: rows.shares, alpha=some(), K=2),
    "ZeroSumNormal": _of(
        "ZeroSumNormal", lambda rows: rows.vectors - rows.vectors.mean(1, keepdims=True), sigma=some()
    ),
    "AR": _of("AR", lambda rows: rows.reals, rho=lambda: [pm.Normal("mu")], sigma=1.0, init_dist=pm.Normal.dist()),
    "GARCH11": _of("GARCH11", lambda rows: rows.reals, omega=some(), alpha_1=0.3, beta_1=0.3, initial_vol=1.0),
    "GaussianRandomWalk": _of("GaussianRandomWalk", lambda rows: rows.reals, sigma=some(), init_dist=pm.Normal.dist()),
    "MvGaussianRandomWalk": _of(
        "MvGaussianRandomWalk",
        lambda rows: rows.vectors,
        mu=lambda: pm.Normal("mu", shape=WIDTH),
        cov=np.eye(WIDTH),
        init_dist=pm.MvNormal.dist(np.zeros(WIDTH), np.eye(WIDTH)),
    ),
    "RandomWalk": lambda: pm.RandomWalk(
        "y", init_dist=pm.Normal.dist(), innovation_dist=_normal(), steps=N - 1, observed=REALS
    ),
    "EulerMaruyama": lambda: pm.EulerMaruyama(
        "y", 0.1, lambda x, mu: (mu, 1.0), [pm.Normal("mu")], init_dist=pm.Normal.dist(), steps=N - 1, observed=REALS
    ),
    "MvStudentTRandomWalk": _of(
        "MvStudentTRandomWalk",
        lambda rows: rows.vectors,
        nu=4.0,
        mu=lambda: pm.Normal("mu", shape=WIDTH),
        scale=np.eye(WIDTH),
        init_dist=pm.MvNormal.dist(np.zeros(WIDTH), np.eye(WIDTH)),
    ),
    "CAR": _of(
        "CAR",
        lambda rows: rows.reals,
        mu=lambda: pm.Normal("mu") + np.zeros(N),
        W=np.ones((N, N)) - np.eye(N),
        alpha=0.5,
        tau=1.0,
    ),
    "ICAR": lambda: (pm.Normal("mu"), pm.ICAR("y", W=np.ones((N, N)) - np.eye(N), observed=REALS)),
    "Simulator": lambda: pm.Simulator(
        "y", lambda rng, mu, size: rng.normal(mu, size=size), pm.Normal("mu"), observed=REALS
    ),
    "Wishart": lambda: (pm.Normal("mu"), pm.Wishart("y", nu=4, V=np.eye(2), observed=_MATRICES)),
    "LKJCorr": lambda: (pm.Normal("mu"), pm.LKJCorr("y", eta=1.0, n=2, observed=_MATRICES)),
}
