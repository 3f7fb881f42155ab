"""Models as adversaries: random PyMC models, each of which has to be refused or to keep its declared sensitivity.

A generator composes what PyMC users write, the harmless and the harmful: covariates with dims and without, indexing
reads and writes, reductions over columns and over rows, loops, closures, custom distributions, mixtures, censoring,
hidden constants, deterministics and potentials, and every distribution that is listed as local to rows. For each model
that is accepted, every exact sum that the curator can ask for is compared between the table and neighbouring ones, in
whole numbers, to second order; and whatever is taken as public has to be equal for both tables.

``python tools/models.py 1000`` tries a thousand.
"""

import collections
import itertools
import sys
import time
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from likelihoods import LIKELIHOODS, ROWS, Free, Likelihood
from looked_at import BUILDERS, Verdict
from pytensor.conditional.op import ifelse
from pytensor.graph.basic import equal_computations
from scipy.special import expit

from pymc_dp.exceptions import PrivacyError
from pymc_dp.model.view import read
from pymc_dp.release import ExpansionPoint, Prediction
from pymc_dp.rows import UnitLikelihood
from pymc_dp.rows.expansion import each_clipped_difference

N, GROUPS, COLUMNS, PEOPLE = 23, 4, 3, 8
GRID = 2.0**-30
#: Distributions whose rows are numbers, and one of whose parameters may be an expression.
LISTED = {
    name: LIKELIHOODS[name]
    for name in BUILDERS["pymc.distributions"][Verdict.ROW_LOCAL].split()
    if isinstance(LIKELIHOODS[name], Likelihood)
    and LIKELIHOODS[name].observed(ROWS).ndim == 1
    and any(isinstance(value, Free) for value in LIKELIHOODS[name].parameters.values())
}
#: What an adversary puts into a row.
FLOATS = [np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, -0.0, 0.0, 1e9, -1.0, 2.5]
WHOLE = [0, 1, 3, GROUPS, -1, -GROUPS - 1, 10**9, np.iinfo(np.int64).max, np.iinfo(np.int64).min, 100]


@dataclass(frozen=True)
class Table:
    """Rows of people; `replaced` gives a neighbour."""

    x: np.ndarray
    z: np.ndarray
    g: np.ndarray
    k: np.ndarray
    y: np.ndarray

    @classmethod
    def drawn(cls, rng):
        return cls(
            rng.normal(size=(N, COLUMNS)),
            rng.normal(size=N),
            rng.integers(0, GROUPS, size=N),
            rng.integers(0, 4, size=N),
            rng.normal(size=N),
        )

    def replaced(self, place, rng):
        """Return a table in which one row is another."""
        rows = {name: values.copy() for name, values in vars(self).items()}
        for values in rows.values():
            width = values.shape[1:]
            values[place] = rng.normal(size=width) * 3 if values.dtype.kind == "f" else rng.integers(0, GROUPS)
        return Table(**rows)


class Writer:
    """Writes one random model; the same seed writes the same model on any table."""

    def __init__(self, seed, table):
        self.rng = np.random.default_rng(seed)
        self.table = table
        #: How often something is written that has to be refused.
        self.wicked = self.rng.choice([0.0, 0.05, 0.3], p=[0.5, 0.3, 0.2])
        self.held, self.numbers = {}, itertools.count()

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, options):
        return options[self.rng.integers(len(options))]

    def data(self, name):
        """Return a table as users bring it in: once, by one of four ways."""
        if name not in self.held:
            values = getattr(self.table, name)
            way = self.pick(["data", "data with dims", "constant", "array"])
            dims = ("person",) if values.ndim == 1 else ("person", "column")
            self.held[name] = {
                "data": lambda: pm.Data(name, values),
                "data with dims": lambda: pm.Data(name, values, dims=dims),
                "constant": lambda: pt.as_tensor(values),
                "array": lambda: values,
            }[way]()
        return self.held[name]

    def parameter(self, shape=(), positive=False):
        name = f"p{next(self.numbers)}"
        kind = pm.HalfNormal if positive else pm.Normal
        if self.chance(self.wicked * 0.3):
            made = self.wicked_prior(name, shape, positive)
        elif shape and self.chance(0.3):
            made = self.parameter() + self.parameter(positive=True) * pm.Normal(name, shape=shape)
        else:
            made = kind(name, 1.0, shape=shape) if positive else kind(name, 0.0, 1.0, shape=shape)
        self.held[name] = made
        return made

    def wicked_prior(self, name, shape, positive):
        x = pt.as_tensor(self.data("z"))
        options = [
            lambda: pm.Normal(name, x.mean(), 1.0, shape=shape),
            lambda: pm.Normal(name, 0.0, 1.0 / x.shape[0], shape=shape),
            lambda: pm.CustomDist(
                name, logp=lambda value: pm.logp(pm.Normal.dist(x.mean(), 1.0), value), shape=shape, ndim_supp=0
            ),
            lambda: pm.Normal(name, 0.0, 1.0 / self.n_of_dim(), shape=shape),
        ]
        made = self.pick(options)()
        return pt.exp(made) if positive else made

    def n_of_dim(self):
        return pm.modelcontext(None).dim_lengths["person"]

    def number(self, depth):
        """Return an expression with one entry for each row."""
        if self.chance(self.wicked):
            return self.wicked_number()
        if depth == 0:
            return self.leaf()
        inner = self.number(depth - 1)
        options = [
            lambda: inner + self.number(depth - 1),
            lambda: inner * self.number(depth - 1),
            lambda: inner - 0.5 * self.number(depth - 1),
            lambda: inner / (1.0 + pt.abs(self.number(depth - 1))),
            lambda: pt.tanh(inner),
            lambda: pt.exp(-pt.abs(inner)),
            lambda: pt.log1p(pt.sqr(inner)),
            lambda: pt.sqrt(pt.abs(inner)),
            lambda: pt.sin(inner),
            lambda: pt.sigmoid(inner),
            lambda: pt.erf(inner),
            lambda: pt.softplus(inner),
            lambda: pt.gammaln(1.0 + pt.abs(inner)),
            lambda: pt.switch(pt.gt(inner, 0.0), inner, self.number(depth - 1)),
            lambda: pt.maximum(inner, self.number(depth - 1)),
            lambda: pt.clip(inner, -2.0, 2.0),
            lambda: pt.stack([inner, self.number(depth - 1)], axis=1).max(axis=1),
            lambda: pt.logsumexp(pt.stack([inner, 0.0 * inner], axis=1), axis=1),
            lambda: pt.floor(inner) + self.parameter(),
        ]
        return self.pick(options)()

    def index(self):
        """Return what an index may be: the row's own number, as it is or changed."""
        g = pt.as_tensor(self.data("g"))
        return self.pick([lambda: g, lambda: g % GROUPS, lambda: GROUPS - 1 - g, lambda: pt.clip(g, 0, GROUPS - 1)])()

    def leaf(self):
        x, z = pt.as_tensor(self.data("x")), pt.as_tensor(self.data("z"))
        options = [
            lambda: z,
            lambda: x[:, self.rng.integers(COLUMNS)],
            lambda: self.parameter() * z,
            lambda: pt.dot(x, self.parameter((COLUMNS,))),
            lambda: (x * self.parameter((COLUMNS,))).sum(axis=-1),
            lambda: self.parameter((GROUPS,))[self.index()],
            lambda: (self.parameter((GROUPS, COLUMNS))[self.index()] * x).sum(-1),
            lambda: self.parameter((GROUPS, GROUPS))[self.index(), self.index()],
            lambda: (
                pt.zeros((z.shape[0], GROUPS))[pt.arange(z.shape[0]), self.index()].set(1.0) @ self.parameter((GROUPS,))
            ),
            lambda: (
                pt.zeros((z.shape[0], GROUPS))[pt.arange(z.shape[0]), self.index()].inc(z) @ self.parameter((GROUPS,))
            ),
            lambda: pt.take_along_axis(x, (self.index() % COLUMNS)[:, None], axis=1)[:, 0] * self.parameter(),
            lambda: x.max(axis=1) - x.mean(axis=1) + self.parameter() * z,
            lambda: pt.special.softmax(x, axis=1)[:, 0] * self.parameter(),
            lambda: pt.sort(x, axis=1)[:, 0] * self.parameter(),
            lambda: pt.cumsum(x, axis=1)[:, -1] * self.parameter(),
            lambda: pt.einsum("ij,j->i", x, self.parameter((COLUMNS,))),
            lambda: pt.cast(self.data("k"), "float64") * self.parameter(),
            lambda: self.parameter() + 0.0 * z,
        ]
        return self.pick(options)()

    def wicked_number(self):
        """Return what is no function of the row alone, or not total, or not silent."""
        x, z, g = (pt.as_tensor(self.data(name)) for name in ("x", "z", "g"))
        p = self.parameter()
        options = [
            lambda: p * (z - z.mean()),
            lambda: p * z / z.std(),
            lambda: pt.dot(x - x.mean(0), self.parameter((COLUMNS,))),
            lambda: p * pt.cumsum(z),
            lambda: p * z[::-1],
            lambda: p * z[0] + z,
            lambda: p * z[g],
            lambda: p * pt.sort(z),
            lambda: p * pt.special.softmax(z),
            lambda: p * pt.concatenate([[0.0], z[:-1]]),
            lambda: p * z / pt.sqrt(z.shape[0]),
            lambda: p * z / self.n_of_dim(),
            lambda: p + pt.as_tensor(self.table.z).mean() * z,
            lambda: p * pt.arange(z.shape[0]),
            lambda: p * pt.arange(N),
            lambda: z + p * (z @ x).sum(),
            lambda: z + p * z[pt.gt(z, 0)].sum(),
            lambda: pt.zeros((N, GROUPS))[pt.arange(N), g].set(1.0) @ self.parameter((GROUPS,)),
            lambda: p * pt.zeros(N)[g].inc(z),
            lambda: p * pt.zeros(N)[g].set(z),
            lambda: z + p * pt.extra_ops.bincount(g, minlength=GROUPS).max(),
            lambda: z + p * pt.unique(g).sum(),
            lambda: pytensor.printing.Print("row")(z) * p,
            lambda: ifelse(pt.gt(z[0], 0), z, -z) * p,
            lambda: (
                pytensor.scan(lambda v, s: s + v, sequences=[z], outputs_info=pt.constant(0.0, dtype="float64"))[0] * p
            ),
            lambda: pt.linalg.det(pt.eye(2) * z[:, None, None]) * p,
            lambda: p * (7 % g),
            lambda: p * pt.cast(2**g, "float64"),
            lambda: p * pt.ones(g[0]).sum() + z,
            lambda: p * pt.arange(g.max()).sum() + z,
            lambda: self.parameter((GROUPS,))[: g[0]].sum() + z,
            lambda: p * (z - pt.as_tensor(self.table.z).max()),
            lambda: p * z * pt.eq(pt.argsort(z), 0),
            lambda: p * pt.diff(pt.concatenate([z, z[:1]])),
            lambda: p * pt.roll(z, 1),
        ]
        return self.pick(options)()

    def custom(self, mu):
        """Return a custom distribution whose functions hold tables, or do not."""
        z = pt.as_tensor(self.data("z"))
        array = self.table.z
        observed = {"observed": self.table.y, "dims": self.dims}
        options = [
            lambda: pm.CustomDist("y", mu, logp=lambda v, mu: pm.logp(pm.Normal.dist(mu, 1.0), v), **observed),
            lambda: pm.CustomDist("y", mu, z, logp=lambda v, mu, z: -0.5 * (v - mu - z) ** 2, **observed),
            lambda: pm.CustomDist("y", mu, dist=lambda mu, size: pm.Normal.dist(mu, 1.0, size=size), **observed),
            lambda: pm.CustomDist("y", mu, logp=lambda v, mu: -0.5 * (v - mu - z.mean()) ** 2, **observed),
            lambda: pm.CustomDist("y", mu, logp=lambda v, mu: -0.5 * (v - mu - array.mean()) ** 2, **observed),
            lambda: pm.CustomDist("y", mu, logp=lambda v, mu: -0.5 * (v - mu - z) ** 2, **observed),
            lambda: pm.CustomDist("y", mu, logp=lambda v, mu: -0.5 * (v - v.mean() - mu) ** 2, **observed),
            lambda: pm.CustomDist(
                "y", mu, dist=lambda mu, size: pm.Normal.dist(mu + pt.as_tensor(array).mean(), size=size), **observed
            ),
        ]
        return self.pick(options)()

    def likelihood(self):
        mu = self.number(self.rng.integers(0, 3))
        observed = {"dims": self.dims}
        t = self.table
        options = [
            lambda: pm.Normal("y", mu, 1.0, observed=t.y, **observed),
            lambda: pm.Normal("y", mu, self.parameter(positive=True), observed=t.y, **observed),
            lambda: pm.StudentT("y", nu=4, mu=mu, sigma=self.parameter(positive=True), observed=t.y, **observed),
            lambda: pm.Bernoulli("y", logit_p=mu, observed=(t.k > 1).astype(int), **observed),
            lambda: pm.Poisson("y", pt.exp(pt.clip(mu, -5, 5)), observed=np.abs(t.k), **observed),
            lambda: pm.NegativeBinomial(
                "y", mu=pt.exp(pt.clip(mu, -5, 5)), alpha=1.5, observed=np.abs(t.k), **observed
            ),
            lambda: pm.Binomial("y", n=5, logit_p=mu, observed=t.k, **observed),
            lambda: pm.Laplace("y", mu, 1.0, observed=t.y, **observed),
            lambda: pm.Gamma("y", mu=pt.exp(pt.clip(mu, -5, 5)), sigma=1.0, observed=np.abs(t.y) + 0.1, **observed),
            lambda: pm.NormalMixture("y", [0.3, 0.7], pt.stack([mu, 0.0 * mu], axis=1), 1.0, observed=t.y, **observed),
            lambda: pm.Censored("y", pm.Normal.dist(mu, 1.0), lower=-1.0, upper=None, observed=t.y, **observed),
            lambda: pm.ZeroInflatedPoisson("y", 0.7, pt.exp(pt.clip(mu, -5, 5)), observed=np.abs(t.k), **observed),
            lambda: pm.Categorical("y", logit_p=mu[:, None] * self.parameter((GROUPS,)), observed=t.g, **observed),
            lambda: pm.OrderedLogistic("y", eta=mu, cutpoints=[-1.0, 0.0, 1.0], observed=t.g, **observed),
            lambda: pm.MvNormal("y", self.parameter((COLUMNS,)) + 0.0 * mu[:, None], np.eye(COLUMNS), observed=t.x),
            lambda: pm.Weibull("y", alpha=1.3, beta=pt.exp(pt.clip(mu, -5, 5)), observed=np.abs(t.y) + 0.1, **observed),
            lambda: self.custom(mu),
            *[lambda: self.listed(mu)] * 10,
        ]
        self.pick(options)()

    def listed(self, mu):
        """Write any of PyMC's distributions that are listed as local to rows, with an expression for a parameter."""
        likelihood = LISTED[self.pick(sorted(LISTED))]
        t = self.table
        positive = 0.2 + 0.7 * expit(t.y)
        rows = replace(ROWS, reals=t.y, positive=positive, counts=np.abs(t.k) % 3)
        free = [key for key, value in likelihood.parameters.items() if isinstance(value, Free)]
        parameters = {
            key: value.of_number(mu) if key == free[0] else value() if callable(value) else value
            for key, value in likelihood.parameters.items()
        }
        likelihood.write(rows, parameters, dims=self.dims)

    def write(self):
        labels = [f"person-{i}" for i in range(N)]
        with pm.Model(coords={"person": labels, "column": range(COLUMNS)}) as model:
            self.dims = self.pick([None, "person"])
            self.likelihood()
            if self.chance(0.5):
                pm.Deterministic("seen", self.pick([self.leaf, self.wicked_number])())
            if self.chance(0.3):
                pm.Deterministic("total", self.pick([self.leaf, self.wicked_number])().sum())
            if self.chance(0.2):
                pm.Deterministic("count", self.parameter() * self.n_of_dim())
            if self.chance(self.wicked * 0.5):
                pm.Potential("extra", -0.5 * (self.parameter() - pt.as_tensor(self.data("z"))).sum() ** 2)
        index = np.arange(N) % PEOPLE if self.chance(0.3) else None
        return model, index


class Leak(AssertionError):
    """A model was accepted that does not keep its sensitivity."""


def sums(rows, units):
    """Yield every exact sum that the curator can ask for, with the bound of a unit's contribution."""
    generator = np.random.default_rng(0)
    size = rows.n_parameters
    theta, theta_new = generator.normal(scale=0.5, size=(2, size))
    bound = 0.5
    yield "gradient", rows.clipped_gradient(theta, bound, GRID)
    yield "gradient of a batch", rows.clipped_gradient(theta, bound, GRID, units=units)
    yield "log-ratio", rows.clipped_log_ratio(theta, theta_new, bound, GRID)
    both = (rows.unit_log_likelihoods(point, units) for point in (theta, theta_new))
    yield "log-ratios of a batch", each_clipped_difference(*both, bound, GRID)[0]
    centre = ExpansionPoint(theta, np.eye(size), bound, bound)
    expansion = rows.expansion(centre)
    old, new = (Prediction(point, point - theta, True, 0.1) for point in (theta, theta_new))
    yield "curvature", expansion.curvature(GRID)
    yield "clipping_loss", expansion.clipping_loss(GRID, 0.5)
    yield "residual", expansion.residual(old, new, bound, GRID)


def compare(one, other, units):
    """Raise `Leak` if a sum moves by more than its declared sensitivity, in whole numbers."""
    compared = 0
    for (kind, before), (_, after) in zip(sums(one, units), sums(other, units), strict=True):
        if isinstance(before, np.ndarray):
            changed = np.flatnonzero(before != after)
            if changed.size > 1 or np.abs(after).max(initial=0) * GRID > 0.5:
                raise Leak(f"{kind}: {changed.size} units changed")
        else:
            moved = sum((int(b) - int(a)) ** 2 for b, a in zip(before.integers, after.integers, strict=True))
            if moved * before.grid**2 > (2.0 * before.bound) ** 2:
                raise Leak(f"{kind}: moved {np.sqrt(float(moved)) * before.grid / before.bound:.3g} bounds")
        compared += 1
    return compared


def public_parts(model, index):
    """Return the graphs that are taken as public, with their inputs: one row's likelihood and the prior."""
    view = read(model)
    row_split = view.row_split
    return row_split, [row_split.row_log_likelihood, *view.prior._outputs], [leaf.row for leaf in row_split.leaves]


def attack(seed, *, n_neighbours=6):
    """Write a model, and try every neighbour on it if it is accepted.

    Returns
    -------
    str, int
        What became of it, and how many sums were compared.
    """
    rng = np.random.default_rng([seed, 1])
    table = Table.drawn(rng)
    try:
        model, index = Writer(seed, table).write()
    except Exception:  # what PyMC or PyTensor does not build is nobody's leak
        return "not a model", 0
    try:
        view = read(model, unit_index=index)
        rows = UnitLikelihood(view)
        names = view.publishable(None)
    except PrivacyError as error:
        return f"refused: {str(error)[:60]}", 0
    compared = 0
    for trial in range(n_neighbours):
        place = int(rng.integers(N))
        unit = place if index is None else int(index[place])
        if trial == 0:
            other_model, _ = Writer(seed, table.replaced(place, rng)).write()
            check_public(model, other_model, names)
            tables = [leaf.rows() for leaf in read(other_model).row_split.leaves]
            tables = tables if index is None else [data[np.argsort(index, kind="stable")] for data in tables]
        else:
            tables = adversarial(
                rows._table.rows, np.searchsorted(np.sort(index), unit) if index is not None else place, rng
            )
        other = rows.on_rows(tables, rows._table.starts)
        units = np.unique([unit, *rng.integers(0, rows.n_units, size=4)]).astype(np.int64)
        with np.errstate(all="ignore"):
            compared += compare(rows, other, units)
    return "survived", compared


def adversarial(tables, place, rng):
    """Return tables in which one row holds what an adversary would write, past any check of the framework's."""
    changed = [data.copy() for data in tables]
    for data in changed:
        if data.dtype.kind == "f":
            data[place] = rng.choice(FLOATS, size=data.shape[1:])
        else:
            limits = np.iinfo(data.dtype)
            data[place] = np.clip(rng.choice(WHOLE, size=data.shape[1:]), limits.min, limits.max)
    return changed


def check_public(model, other_model, names):
    """Raise `Leak` if anything that is taken as public differs between neighbouring tables."""
    one, other = public_parts(model, None), public_parts(other_model, None)
    inputs = [*one[2], *model.value_vars], [*other[2], *other_model.value_vars]
    if len(one[0].leaves) != len(other[0].leaves) or not equal_computations(one[1], other[1], *inputs):
        raise Leak("what is taken as public differs")
    for name in names.kept:
        if model[name] in model.deterministics:
            graphs = [m.replace_rvs_by_values([m[name]])[0] for m in (model, other_model)]
            if not equal_computations([graphs[0]], [graphs[1]], model.value_vars, other_model.value_vars):
                raise Leak(f"the deterministic {name!r} differs")


def campaign(seeds, **settings):
    """Attack with many models; return counts and the leaks found, by seed."""
    counts, leaks, compared = collections.Counter(), {}, 0
    for seed in seeds:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome, n = attack(seed, **settings)
        except Leak as leak:
            outcome, n = "LEAK", 0
            leaks[seed] = str(leak)
        except Exception as error:  # neither refused nor survived
            outcome, n = "ERROR", 0
            leaks[seed] = f"{type(error).__name__}: {str(error)[:200]}"
        counts[outcome] += 1
        compared += n
    return counts, leaks, compared


def main():
    first, count = (int(sys.argv[2]) if len(sys.argv) > 2 else 0), int(sys.argv[1])
    begin = time.perf_counter()
    counts, leaks, compared = campaign(range(first, first + count))
    refused = sum(n for outcome, n in counts.items() if outcome.startswith("refused"))
    sys.stdout.write(
        f"{count} models: {counts['not a model']} not built, {refused} refused, {counts['survived']} survived "
        f"{compared} comparisons, {len(leaks)} leaks or errors; {time.perf_counter() - begin:.0f} s\n"
    )
    for outcome, n in counts.most_common():
        sys.stdout.write(f"  {n:5d} {outcome}\n")
    for seed, leak in leaks.items():
        sys.stdout.write(f"  seed {seed}: {leak}\n")
    return 1 if leaks else 0


if __name__ == "__main__":
    sys.exit(main())
