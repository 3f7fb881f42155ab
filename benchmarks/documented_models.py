"""Models of PyMC's and Bambi's documentation, in the form in which their pages have them, on 20,000 simulated rows.

    python benchmarks/documented_models.py DIRECTORY                        two runs of each at epsilon 3
    python benchmarks/documented_models.py DIRECTORY mediation hsgp --runs 4

DIRECTORY keeps the references, which are found without privacy (`against_reference.py`). Of each model: the lines that
had to change beside `budget=`, why the form of the documentation is refused, where it is, one line for each run, and
one at the end. Columns are explained in `newcomers.py`. A verdict is *right* if "usable" was said of a run of coverage
from .8 and error below 1, or "not usable" of another one; "unknown" is neither.
"""

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bambi as bmb
import newcomers
import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from against_reference import Problem, Run, arguments, quiet, reference_of, results_of, run, say, say_runs
from newcomers import GROUPS, covariates, logistic
from scipy.interpolate import BSpline

import pymc_dp as dp

ROWS = newcomers.ROWS


@dataclass(frozen=True)
class Documented:
    """A model of somebody's documentation: what writes it, lines that had to change, and whether it is refused without.

    What writes a refused one does so in the form of the documentation with ``written=True``.
    """

    write: Callable[..., Problem]
    changed: int = 0
    refused: bool = False


MODELS: dict[str, Documented] = {}


def documented(changed=0, *, refused=False):
    def register(write):
        MODELS[write.__name__.replace("_", "-")] = Documented(write, changed, refused)
        return write

    return register


@documented()
def moderation(generator):
    """Bayesian moderation analysis: covariates in their own units."""
    hours, age = generator.uniform(1, 10, ROWS), generator.integers(18, 70, ROWS).astype(float)
    muscle = 10 + 3.0 * hours + 0.1 * age - 0.03 * hours * age + generator.normal(0, 4, ROWS)
    with pm.Model() as model:
        x, m = pm.Data("x", hours), pm.Data("m", age)
        b0, b1, b2, b3 = (pm.Normal(f"β{i}", mu=0, sigma=10) for i in range(4))
        pm.Normal("y", mu=b0 + b1 * x + b2 * x * m + b3 * m, sigma=pm.HalfCauchy("σ", 1), observed=muscle)
    return Problem(model)


@documented()
def mediation(generator):
    """Bayesian mediation analysis: the mediator is outcome of one likelihood and covariate of the other."""
    x = generator.normal(1, 1, ROWS)
    m = 0.5 + 0.4 * x + generator.normal(0, 0.7, ROWS)
    y = 0.2 + 0.6 * m + 0.3 * x + generator.normal(0, 1, ROWS)
    with pm.Model(coords={"obs_id": np.arange(ROWS)}) as model:
        x, m = pm.Data("x", x, dims="obs_id"), pm.Data("m", m, dims="obs_id")
        im, iy, a, b, direct = (pm.Normal(name, 0, 10) for name in ("im", "iy", "a", "b", "cprime"))
        pm.Normal("mlikelihood", im + a * x, pm.HalfCauchy("σm", 1), observed=m, dims="obs_id")
        pm.Normal("ylikelihood", iy + b * m + direct * x, pm.HalfCauchy("σy", 1), observed=y, dims="obs_id")
        pm.Deterministic("indirect effect", a * b)
        pm.Deterministic("total effect", a * b + direct)
    return Problem(model)


@documented()
def exposure(generator):
    """Poisson regression with an offset."""
    x, years = covariates(generator), generator.uniform(0.2, 3.0, ROWS)
    y = generator.poisson(years * np.exp(0.4 + x @ [0.3, -0.5, 0.2]))
    with pm.Model() as model:
        predictor = pm.Normal("a", 0, 2) + pm.math.dot(x, pm.Normal("b", 0, 1, shape=3))
        pm.Poisson("y", mu=pm.math.exp(predictor + np.log(years)), observed=y)
    return Problem(model)


@documented()
def binomial(generator):
    """Binomial regression: successes among a number of trials of each row."""
    x, n = generator.normal(size=ROWS), generator.integers(5, 30, ROWS)
    y = generator.binomial(n, logistic(0.7 * x - 0.5))
    with pm.Model(coords={"observation": np.arange(ROWS)}) as model:
        x, n = pm.Data("x", x, dims="observation"), pm.Data("n", n, dims="observation")
        p = pm.Deterministic("p", pm.math.invlogit(pm.Normal("b0") + pm.Normal("b1") * x), dims="observation")
        pm.Binomial("y", n=n, p=p, observed=y, dims="observation")
    return Problem(model)


@documented()
def hurdle(generator):
    """Hurdle models."""
    x = covariates(generator)
    y = generator.poisson(np.exp(0.9 + x @ [0.3, -0.5, 0.2]))
    while (zero := y == 0).any():
        y[zero] = generator.poisson(np.exp(0.9 + x[zero] @ [0.3, -0.5, 0.2]))
    y = y * (generator.random(ROWS) < 0.7)
    with pm.Model() as model:
        mu = pm.math.exp(pm.Normal("a", 0, 2) + pm.math.dot(x, pm.Normal("b", 0, 1, shape=3)))
        pm.HurdlePoisson("y", psi=pm.Beta("psi", 2, 2), mu=mu, observed=y)
    return Problem(model)


@documented()
def quantile(generator):
    """Quantile regression: an asymmetric Laplace likelihood, here of the upper tenth."""
    age = generator.uniform(18, 90, ROWS)
    bmi = 22 + 0.08 * (age - 18) + generator.gamma(4.0, 1.0, ROWS)
    with pm.Model() as model:
        mu = pm.Normal("a", 25, 10) + pm.Normal("b", 0, 5) * (age - 50) / 20
        pm.AsymmetricLaplace("bmi", mu=mu, b=pm.HalfNormal("scale", 5), q=0.9, observed=bmi)
    return Problem(model)


@documented()
def radon(generator):
    """A primer on multilevel modelling: varying intercepts and slopes, and a covariate of the counties."""
    county, floor = generator.integers(0, GROUPS, ROWS), generator.integers(0, 2, ROWS)
    uranium = np.round(generator.normal(0, 0.4, GROUPS), 2)
    a = 1.3 + 0.7 * uranium + generator.normal(0, 0.3, GROUPS)
    y = a[county] + generator.normal(-0.7, 0.3, GROUPS)[county] * floor + generator.normal(0, 0.75, ROWS)
    with pm.Model(coords={"county": [f"county {i}" for i in range(GROUPS)], "obs_id": np.arange(ROWS)}) as model:
        floor, county = pm.Data("floor_idx", floor, dims="obs_id"), pm.Data("county_idx", county, dims="obs_id")
        level = pm.Normal("γ_0", 0, 10) + pm.Normal("γ_1", 0, 10) * pm.Data("uranium", uranium, dims="county")
        alpha = pm.Normal("α", level, pm.Exponential("sigma_a", 1), dims="county")
        beta = pm.Normal("β", pm.Normal("mu_b", 0, 10), pm.Exponential("sigma_b", 1), dims="county")
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("y", alpha[county] + beta[county] * floor, sigma, observed=y, dims="obs_id")
    return Problem(model, normal=False)


def rugby(generator, centred=False):
    """A hierarchical model for rugby prediction: 20,000 matches of 20 teams, two scores of each."""
    home, away = generator.integers(0, 20, ROWS), generator.integers(0, 20, ROWS)
    attack, defence = generator.normal(0, 0.2, (2, 20))
    scores = [generator.poisson(np.exp(3.2 + attack[home] - defence[away])), None]
    scores[1] = generator.poisson(np.exp(3.0 + attack[away] - defence[home]))
    with pm.Model(coords={"team": np.arange(20), "match": np.arange(ROWS)}) as model:
        home, away = pm.Data("home_team", home, dims="match"), pm.Data("away_team", away, dims="match")
        intercept, advantage = pm.Normal("intercept", 3, 1), pm.Normal("home", 0, 1)
        sd_att, sd_def = pm.HalfNormal("sd_att", 2), pm.HalfNormal("sd_def", 2)
        if not centred:
            atts, defs = pm.Normal("atts_star", 0, sd_att, dims="team"), pm.Normal("defs_star", 0, sd_def, dims="team")
            atts, defs = atts - pt.mean(atts), defs - pt.mean(defs)
        else:
            atts, defs = pm.ZeroSumNormal("atts", sd_att, dims="team"), pm.ZeroSumNormal("defs", sd_def, dims="team")
        mu = intercept + advantage + atts[home] + defs[away], intercept + atts[away] + defs[home]
        pm.Poisson("home_points", mu=pm.math.exp(mu[0]), observed=scores[0], dims="match")
        pm.Poisson("away_points", mu=pm.math.exp(mu[1]), observed=scores[1], dims="match")
    return Problem(model, normal=False)


@documented()
def dirichlet_multinomial(generator):
    """Dirichlet mixtures of multinomials: counts of five species in 50 animals of each row."""
    p = generator.dirichlet(8.0 * np.array([0.1, 0.3, 0.15, 0.25, 0.2]), ROWS)
    y = np.array([generator.multinomial(50, each) for each in p])
    with pm.Model(coords={"species": list("abcde"), "forest": np.arange(ROWS)}) as model:
        frac = pm.Dirichlet("frac", a=np.ones(5), dims="species")
        conc = pm.LogNormal("conc", mu=1, sigma=1)
        pm.DirichletMultinomial("counts", n=50, a=frac * conc, observed=y, dims=("forest", "species"))
    return Problem(model)


def cut(generator, kind):
    """Bayesian regression with truncated or censored data: rows beyond the bounds are missing, or at the bounds."""
    x = generator.uniform(-10, 10, ROWS)
    y = x + generator.normal(0, 2, ROWS)
    rows = np.abs(y) < (5 if kind is pm.Truncated else np.inf)
    with pm.Model() as model:
        mu = pm.Normal("slope", 0, 1) * x[rows] + pm.Normal("intercept", 0, 1)
        latent = pm.Normal.dist(mu, pm.HalfNormal("σ", 1))
        kind("obs", latent, lower=-5, upper=5, observed=np.clip(y, -5, 5)[rows])
    return Problem(model)


@documented()
def splines(generator):
    """Splines: the page takes its knots from quantiles of the rows; here they are round numbers."""
    day = generator.integers(1, 366, ROWS).astype(float)
    y = 100 + 8 * np.sin(day / 40) + generator.normal(0, 6, ROWS)
    inner = np.linspace(1, 365, 8)[1:-1]
    B = BSpline.design_matrix(day, np.concatenate([[1.0] * 4, inner, [365.0] * 4]), 3).toarray()
    with pm.Model(coords={"splines": np.arange(B.shape[1]), "obs": np.arange(ROWS)}) as model:
        w = pm.Normal("w", 0, 3, dims="splines")
        mu = pm.Normal("a", 100, 5) + pm.math.dot(B, w.T)
        pm.Normal("D", mu, pm.Exponential("sigma", 1), observed=y, dims="obs")
    return Problem(model)


@documented(6, refused=True)
def hsgp(generator, written=False):
    """HSGP reference and first steps; what runs has a public length and weights in the centred form."""
    x = generator.uniform(0, 10, ROWS)
    y = np.sin(x) + 0.3 * x + generator.normal(0, 0.5, ROWS)
    with pm.Model() as model:
        eta = pm.Exponential("eta", 1)
        if written:
            cov = eta**2 * pm.gp.cov.ExpQuad(1, ls=pm.InverseGamma("ell", mu=2, sigma=1))
            f = pm.gp.HSGP(m=[12], c=1.5, cov_func=cov).prior("f", X=x[:, None])
        else:
            half = [7.5]  # c times half of the public range, around its middle
            values = pm.gp.hsgp_approx.calc_eigenvalues(np.array(half), [12])
            phi = pm.gp.hsgp_approx.calc_eigenvectors((x - 5)[:, None], half, values, [12]).eval()
            phi *= np.sqrt(pm.gp.cov.ExpQuad(1, ls=1.5).power_spectral_density(np.sqrt(values)).eval())
            f = phi @ pm.Normal("f_coeffs", 0, eta, shape=12)
        pm.Normal("y", mu=f, sigma=pm.Exponential("sigma", 1), observed=y)
    return Problem(model, normal=False)


@documented(3, refused=True)
def measurement(generator, written=False):
    """Measurement error with a known standard deviation: the page has a true value for each row."""
    true = generator.normal(1.0, 1.5, ROWS)
    seen, y = true + generator.normal(0, 0.8, ROWS), 0.5 + 0.7 * true + generator.normal(0, 1, ROWS)
    with pm.Model() as model:
        a, b, mu = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1), pm.Normal("mu_x", 0, 2)
        tau, sigma = pm.Exponential("tau_x", 1), pm.Exponential("sigma", 1)
        if written:
            x = pm.Normal("x_true", mu, tau, shape=ROWS)
            pm.Normal("x_seen", x, 0.8, observed=seen)
            pm.Normal("y", a + b * x, sigma, observed=y)
        else:  # the true value is integrated out
            cov = pt.stacklists([[tau**2 + 0.8**2, b * tau**2], [b * tau**2, (b * tau) ** 2 + sigma**2]])
            pm.MvNormal("seen", pt.stack([mu, a + b * mu]), cov, observed=np.column_stack([seen, y]))
    return Problem(model)


@documented(3, refused=True)
def missing(generator, written=False):
    """Missing covariates: the page imputes them in the model."""
    x = covariates(generator)
    y = 1.0 + x @ [0.5, -0.4, 0.3] + generator.normal(0, 1, ROWS)
    x[generator.random(ROWS) < 0.2, 0] = np.nan
    with pm.Model() as model:
        a, b, sigma = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1, shape=3), pm.HalfNormal("sigma", 2)
        if written:
            first = pm.Normal("x", pm.Normal("mu_x", 0, 1), pm.HalfNormal("sigma_x", 1), observed=x[:, 0])
            mu = a + b[0] * first + pm.math.dot(x[:, 1:], b[1:])
        else:
            x = np.column_stack([np.nan_to_num(x), np.isnan(x[:, 0])])
            mu = a + pm.math.dot(x[:, :3], b) + pm.Normal("unknown", 0, 1) * x[:, 3]
        pm.Normal("y", mu, sigma, observed=y)
    return Problem(model)


@documented(8, refused=True)
def items(generator, written=False):
    """Item response theory: crossed effects of students and of ten questions; students are integrated out."""
    students, questions = ROWS // 10, 10
    ability, hard = generator.normal(size=students), generator.normal(size=questions)
    right = (generator.random((students, questions)) < logistic(ability[:, None] - hard)).astype(float)
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    nodes, log_weights = dp.public(nodes), dp.public(np.log(weights / weights.sum()))

    def of_a_student(y, hard, tau):
        at = tau * nodes - hard[..., None]
        return pt.logsumexp((y[..., None] * at - pt.softplus(at)).sum(-2) + log_weights, axis=-1)

    with pm.Model() as model:
        hard = pm.Normal("difficulty", 0, 2, shape=questions)
        if written:
            student, question = np.indices(right.shape).reshape(2, -1)
            theta = pm.Normal("theta", 0, pm.HalfNormal("tau", 1), shape=students)
            pm.Bernoulli("right", logit_p=theta[student] - hard[question], observed=right.ravel())
        else:
            tau = pm.HalfNormal("tau", 1)
            pm.CustomDist("right", hard, tau, logp=of_a_student, signature="(q),()->(q)", observed=right)
    return Problem(model)


@documented(3, refused=True)
def accelerated(generator, written=False):
    """Parametric survival analysis: the page has a potential for censored rows, whose number is data too."""
    x, end = generator.normal(size=ROWS), 5.0
    time = np.exp(1.2 + 0.4 * x) * generator.weibull(1.4, ROWS)
    late = time > end
    with pm.Model() as model:
        eta = pm.Normal("b0", 0, 2) + pm.Normal("b1", 0, 1) * x
        alpha = pm.HalfNormal("alpha", 2)
        if written:
            pm.Weibull("seen", alpha=alpha, beta=pt.exp(eta[~late]), observed=time[~late])
            pm.Potential("censored", -((end / pt.exp(eta[late])) ** alpha))
        else:
            latent = pm.Weibull.dist(alpha=alpha, beta=pt.exp(eta))
            pm.Censored("time", latent, lower=None, upper=end, observed=np.minimum(time, end))
    return Problem(model)


# Bambi ----------------------------------------------------------------------------------------------------------------


def formula(text, frame, written, **settings):
    """Return a Bambi model as its documentation has it, or with the arguments that it needs here."""
    if not written:
        settings |= {"center_predictors": False, "auto_scale": False}
    bambi = bmb.Model(text, frame, **settings)
    bambi.build()
    if "|" not in str(text):
        return Problem(bambi.backend.model, sample=bambi.fit)

    def sample(**options):
        """Keep offsets, which `fit` leaves out of its result: errors are those of free variables."""
        with bambi.backend.model:
            return dp.sample(**options)

    return Problem(bambi.backend.model, normal=False, sample=sample)


def frame_of(generator):
    """Return rows with two covariates, a category of three levels, one of 30, and no outcome."""
    columns = {"age": generator.uniform(-1, 1, ROWS), "x": generator.normal(size=ROWS)}
    columns["arm"] = pd.Categorical.from_codes(generator.integers(0, 3, ROWS), ["none", "old", "new"], ordered=True)
    columns["school"] = pd.Categorical.from_codes(
        generator.integers(0, GROUPS, ROWS), [f"s{i}" for i in range(GROUPS)], ordered=True
    )
    return pd.DataFrame(columns)


@documented(1, refused=True)
def bambi_interaction(generator, written=False):
    rows = frame_of(generator)
    predictor = -0.3 + rows["age"] * np.array([0.2, 0.6, -0.4])[rows["arm"].cat.codes] + 0.4 * rows["x"]
    rows["back"] = (generator.random(ROWS) < logistic(predictor)).astype(int)
    return formula("back ~ age * arm + x", rows, written, family="bernoulli")


@documented(1, refused=True)
def bambi_intercepts(generator, written=False):
    rows = frame_of(generator)
    rows["y"] = 2 + 0.5 * rows["x"] + generator.normal(0, 0.6, GROUPS)[rows["school"].cat.codes]
    rows["y"] += generator.normal(size=ROWS)
    return formula("y ~ x + (1|school)", rows, written)


@documented(1, refused=True)
def bambi_slopes(generator, written=False):
    rows = frame_of(generator)
    effects = generator.normal(0, [[0.6], [0.3]], (2, GROUPS))[:, rows["school"].cat.codes]
    rows["y"] = 2 + effects[0] + (0.5 + effects[1]) * rows["x"] + generator.normal(size=ROWS)
    return formula("y ~ x + (x|school)", rows, written)


@documented(1, refused=True)
def bambi_spread(generator, written=False):
    """Distributional models: the standard deviation has a formula, too."""
    rows = frame_of(generator)
    rows["y"] = 2 + 0.5 * rows["x"] + generator.normal(0, np.exp(0.2 + 0.4 * rows["age"]))
    return formula(bmb.Formula("y ~ x", "sigma ~ age"), rows, written)


@documented()
def spread(generator):
    """The same without Bambi: the spread at the middle is a parameter, and the formula multiplies it."""
    rows = frame_of(generator)
    y = 2 + 0.5 * rows["x"] + generator.normal(0, np.exp(0.2 + 0.4 * rows["age"]))
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 1) * rows["x"].to_numpy()
        sigma = pm.HalfNormal("sigma", 2) * pm.math.exp(pm.Normal("c", 0, 1) * rows["age"].to_numpy())
        pm.Normal("y", mu, sigma, observed=y)
    return Problem(model)


@documented(1, refused=True)
def bambi_trials(generator, written=False):
    rows = frame_of(generator)
    rows["n"] = generator.integers(5, 30, ROWS)
    rows["passed"] = generator.binomial(rows["n"], logistic(0.3 + 0.5 * rows["x"]))
    return formula("p(passed, n) ~ x", rows, written, family="binomial")


def curve_of(generator):
    rows = frame_of(generator)
    rows["y"] = np.sin(3 * rows["age"]) + generator.normal(0, 0.5, ROWS)
    return rows


@documented(4, refused=True)
def bambi_spline(generator, written=False):
    rows = curve_of(generator)
    if written:
        return formula("y ~ bs(age, df=6)", rows, written)
    knots = np.concatenate([[-1.0] * 4, [-0.5, 0.0, 0.5], [1.0] * 4])
    basis = BSpline.design_matrix(rows["age"].to_numpy(), knots, 3).toarray()
    names = [f"b{i}" for i in range(basis.shape[1])]
    return formula(f"y ~ 0 + {' + '.join(names)}", rows.assign(**dict(zip(names, basis.T, strict=True))), written)


MODELS |= {
    "truncated": Documented(functools.partial(cut, kind=pm.Truncated)),
    "censored": Documented(functools.partial(cut, kind=pm.Censored)),
    "rugby": Documented(rugby),
    "rugby-centred": Documented(functools.partial(rugby, centred=True), 3),
}
for of_newcomers in """
    linear student-t logistic-raw negative-binomial zero-inflated ordinal beta gamma softmax weibull mixture
    hierarchical-non-centred correlated-slopes
""".split():
    MODELS[of_newcomers] = Documented(newcomers.MODELS[of_newcomers])


def problem_of(name: str, **form: bool) -> Problem:
    return MODELS[name].write(np.random.default_rng(list(name.encode())), **form)


def refusal(name: str) -> str:
    """Return why the form of the documentation is refused, by what was raised before anything was charged."""
    budget = dp.PrivacyBudget(3.0, 1e-6)
    try:
        problem = problem_of(name, written=True)
        with problem.model:
            problem.sample(budget=budget, progressbar=False)
    except dp.PrivacyError as error:
        assert not budget.history
        return f"{type(error).__name__}: {error}"
    return "not refused"


def problem_and_reference(directory: Path, name: str):
    problem = problem_of(name)
    return problem, reference_of(problem, directory / f"documented-{name}.npz")


def about(directory: Path, name: str) -> str:
    """Return what is said of a model before its runs."""
    each = MODELS[name]
    refused = f"\n    in the form of the documentation: {refusal(name)}" if each.refused else ""
    return f"{each.changed} lines changed; reference: {problem_and_reference(directory, name)[1].how}{refused}"


def run_of(directory: Path, delta: float, job: tuple[str, float, int]) -> Run:
    name, epsilon, seed = job
    return run(*problem_and_reference(directory, name), epsilon, delta, seed)


def is_right(made: Run) -> str:
    """Return whether the verdict of a run is right."""
    good = made.coverage >= 0.8 and made.error < 1.0
    right = {"usable": good, "not usable": not good}.get(made.verdict)
    return "neither" if right is None else "right" if right else "WRONG"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options = arguments(parser, MODELS, [3.0])
    names = options.names or list(MODELS)
    quiet()
    for name, said in results_of(functools.partial(about, options.directory), names, options.processes):
        say(f"{name:<26}{said}")
    if not options.references_only:
        made = functools.partial(run_of, options.directory, options.delta)
        say_runs(made, names, options, of_run=lambda each: f"verdict {is_right(each)}  ")


if __name__ == "__main__":
    main()
