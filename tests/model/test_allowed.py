"""What sees rows is on a list, is total in compiled code, and reads and writes inside its arrays (hazard H36)."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import wrap_py
from pytensor.conditional.op import ifelse
from pytensor.printing import Print
from pytensor.tensor.elemwise import Elemwise

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model import allowed
from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood

N = 40
GRID = 2.0**-30
BOUND = 1.0
OUT_OF_RANGE = [5, 100, -6, 2_000_000_000, 2**62, -(2**62), np.iinfo(np.int64).max, np.iinfo(np.int64).min]


def table(entry=0):
    """Values and groups below five; the last row's group is `entry`."""
    generator = np.random.default_rng(0)
    group = generator.integers(0, 5, size=N)
    group[-1] = entry
    return generator.normal(size=N), group


def one_hot(k, counter):
    """Write ones where the group says: what a user of NumPy writes instead of indexing."""

    def build(y, group):
        group = pm.Data("group", group)
        places = counter(group)[:, None]
        indicators = pt.zeros((N, k))[places, group[:, None]].set(1.0)
        pm.Normal("y", indicators @ pm.Normal("effect", shape=k), 1.0, observed=y)

    return build


def of_symbolic_length(group):
    return pt.arange(group.shape[0])


def of_literal_length(group):
    return pt.arange(N)


def gather(y, group):
    pm.Normal("y", pm.Normal("effect", shape=5)[pm.Data("group", group)], 1.0, observed=y)


def gather_of_two(y, group):
    effect = pm.Normal("effect", shape=(5, 5))
    pm.Normal("y", effect[pm.Data("group", group), group], 1.0, observed=y)


def increase(y, group):
    group = pm.Data("group", group)
    effect = pm.Normal("effect", shape=5)
    counts = pt.zeros((N, 5))[pt.arange(group.shape[0]), group].inc(2.0)
    pm.Normal("y", (counts * effect).sum(-1), 1.0, observed=y)


def categories(y, group):
    pm.Categorical("y", logit_p=pm.Data("x", y)[:, None] * pm.Normal("slope", shape=5), observed=group)


INDEXING = {
    "write, 5 columns": one_hot(5, of_symbolic_length),
    "write, 100 columns": one_hot(100, of_symbolic_length),
    "increase": increase,
    "gather": gather,
    "gather of two": gather_of_two,
    "categories": categories,
}


def engine(build, entry, **settings):
    with pm.Model() as model:
        build(*table(entry))
    return UnitLikelihood(read(model), **settings)


class ExpansionPoint:
    """An expansion point for every model here."""

    def __init__(self, size):
        self.theta, self.preconditioner = np.full(size, 0.1), np.eye(size)
        self.clip_gradient, self.clip_curvature, self.key = BOUND, BOUND, b"centre"


def sums_of(rows):
    """Every exact sum that the curator can ask for, with the bound of a unit's contribution."""
    size = rows.n_parameters
    theta, theta_new = np.full(size, 0.1), np.linspace(-0.5, 0.5, size)
    yield rows.clipped_gradient(theta, BOUND, GRID).integers
    yield rows.clipped_log_ratio(theta, theta_new, BOUND, GRID).integers
    yield rows.clipped_gradient(theta, BOUND, GRID, units=np.arange(N - 5, N)).integers
    expansion = rows.expansion(ExpansionPoint(size))
    yield expansion.clipping_loss(GRID, 0.5).integers
    yield expansion.curvature(GRID).integers


@pytest.mark.parametrize(
    "model",
    [pytest.param(each, marks=[pytest.mark.nightly] if each == "write, 100 columns" else []) for each in INDEXING],
)
def test_an_index_out_of_range_changes_its_own_row_alone(model):
    """Hazard H36: reads and writes by what a row holds, to second order."""
    rows = engine(INDEXING[model], 0)
    allowed_move = 2 * BOUND / GRID
    place = next(k for k, data in enumerate(rows._table.rows) if data.dtype.kind == "i")
    before = list(sums_of(rows))
    for entry in OUT_OF_RANGE:
        tables = [data.copy() for data in rows._table.rows]
        limits = np.iinfo(tables[place].dtype)
        tables[place][-1] = max(limits.min, min(entry, limits.max))
        for one, other in zip(before, sums_of(rows.on_rows(tables)), strict=True):
            assert sum(int(d) ** 2 for d in one - other) <= allowed_move**2


def test_written_places_are_those_that_are_gathered():
    theta = np.linspace(-1, 1, 5)
    found = engine(one_hot(5, of_symbolic_length), 2).clipped_gradient(theta, BOUND, GRID)
    assert np.array_equal(found.integers, engine(gather, 2).clipped_gradient(theta, BOUND, GRID).integers)


def printed(y, group):
    pm.Normal("y", Print("row")(pt.as_tensor(y)) * pm.Normal("slope"), 1.0, observed=y)


def own_code(y, group):
    double = wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])(lambda values: 2 * values)
    pm.Normal("y", double(pt.as_tensor(y)) + pm.Normal("mu"), 1.0, observed=y)


def selected(y, group):
    mask = pt.gt(pm.Data("x", y), 0)
    pm.Normal("y", pm.Normal("mu", shape=1)[mask.astype("int64") * 0], 1.0, observed=y)
    pm.Normal("z", pm.Data("x2", y)[mask].sum() + pm.Normal("nu"), 1.0, observed=y)


def sliced(y, group):
    group = pm.Data("group", group)
    pm.Normal("y", pm.Normal("mu", shape=9)[: group[0]].sum() * pt.ones(N), 1.0, observed=y)


def as_long_as_a_row_says(y, group):
    group = pm.Data("group", group)
    pm.Normal("y", pm.Normal("mu") + pt.zeros(group[0]).sum() + group, 1.0, observed=y)


def counted_to(y, group):
    group = pm.Data("group", group)
    pm.Normal("y", pm.Normal("mu") + pt.arange(group.max()).sum() + group, 1.0, observed=y)


def remainder(y, group):
    pm.Normal("y", pm.Normal("mu") + 7 % pm.Data("group", group), 1.0, observed=y)


def power_of_whole_numbers(y, group):
    pm.Normal("y", pm.Normal("mu") + 2 ** pm.Data("group", group), 1.0, observed=y)


def branch(y, group):
    x = pm.Data("x", y)
    pm.Normal("y", ifelse(pt.gt(x[0], 0), x, -x) * pm.Normal("mu"), 1.0, observed=y)


def scanned(y, group):
    total = pytensor.scan(
        lambda value, before: 0.5 * before + value,
        sequences=[pm.Data("x", y)],
        outputs_info=pt.constant(0.0, dtype="float64"),
    )
    pm.Normal(
        "y", total[0] * pm.Normal("mu") if isinstance(total, list | tuple) else total * pm.Normal("mu"), observed=y
    )


def distinct(y, group):
    pm.Normal("y", pm.Normal("mu") + pt.unique(pm.Data("group", group)).sum() + group, 1.0, observed=y)


def hypergeometric(y, group):
    """SciPy's function ends the process for some extreme numbers."""
    pm.Normal("y", pt.hyp2f1(1.0, 1.0, 2.0, pm.Data("x", y)) * pm.Normal("mu"), 1.0, observed=y)


def determinant(y, group):
    matrices = pm.Data("matrices", np.ones((N, 2, 2)))
    pm.Normal("y", pt.linalg.det(matrices) * pm.Normal("mu"), 1.0, observed=y)


REFUSED = {
    one_hot(5, of_literal_length): r"pt.arange\(x.shape\[0\]\)",
    printed: "Print",
    own_code: "FromFunctionOp|WrapPy|wrap|Function",
    selected: "truth value|single row|not a sum",
    sliced: "Subtensor|not a sum|single row",
    as_long_as_a_row_says: "Alloc|single row",
    counted_to: "ARange",
    remainder: "remainder",
    power_of_whole_numbers: "whole number is raised",
    branch: "IfElse",
    scanned: "Scan",
    distinct: "Unique",
    hypergeometric: "Hyp2F1",
    determinant: "Det",
}


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_what_is_not_on_the_list_is_refused_by_name(build):
    """Hazard H36: everything else."""
    with pm.Model() as model:
        build(*table())
    with pytest.raises(UnsupportedModel, match=REFUSED[build]):
        UnitLikelihood(read(model))


def with_constants(y, group):
    group = pm.Data("group", group)
    pm.Normal("y", pm.Normal("effect", shape=3)[group % 3] + group**2, 1.0, observed=y)


def test_remainders_and_powers_by_constants_pass():
    assert engine(with_constants, 4).clipped_gradient(np.zeros(3), BOUND, GRID).n_clipped <= N


def censored_gamma(y, group):
    """Its derivative by the shape is a loop that a row may leave early, of at most a constant number of steps."""
    latent = pm.Gamma.dist(alpha=pm.HalfNormal("alpha"), beta=1.0)
    pm.Censored("y", latent, lower=None, upper=2.0, observed=np.minimum(np.abs(y) + 0.1, 2.0))


def test_loops_of_at_most_a_constant_number_of_steps_pass():
    with pm.Model() as model:
        censored_gamma(np.array([0.1, 0.4, 3.0, 1.5, 0.01, 2.2, 0.7, 1.0]), None)  # interpreted, a row takes long
    rows, theta = UnitLikelihood(read(model)), np.zeros(1)
    step = 1e-5
    values = [rows.all_log_likelihoods(theta + way).sum() for way in (step, -step)]
    found = rows.clipped_gradient(theta, 1e3, GRID).value
    assert found == pytest.approx([(values[0] - values[1]) / (2 * step)], rel=1e-4)


FLOATS = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e308, -1e308, 1e-308, 5e-324, np.inf, -np.inf, np.nan, 1e9, 700.0])
WHOLE = np.array([0, 1, -1, 2, -3, 2**31, -(2**31), 2**63 - 1, -(2**63), 1000, 64])


def instances():
    """One operation of each scalar class on the list, as PyTensor itself makes it."""
    found = {}
    for module in (pytensor.scalar.basic, pytensor.scalar.math):
        for op in vars(module).values():
            if type(op) in allowed.SCALARS and getattr(getattr(op, "o_type", None), "dtype", "") not in (
                "float16",
                "complex64",
                "complex128",
            ):
                found.setdefault(type(op), op)
    return found


def test_every_class_on_the_list_is_tried():
    assert set(instances()) == set(allowed.SCALARS)


@pytest.mark.nightly  # it changes with PyTensor and Numba alone
@pytest.mark.parametrize(
    "kind", sorted(allowed.SCALARS, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_every_scalar_operation_is_total_in_compiled_code(kind):
    """Hazard H36: nothing on the list raises or ends the process."""
    op = instances()[kind]
    several = {"Switch": 3, "Clip": 3, "BetaInc": 3, "BetaIncInv": 3}
    n_inputs = several.get(kind.__name__, op.nin if op.nin > 0 else 2)
    tried = 0
    for dtype, values in (("float64", FLOATS), ("int64", WHOLE)):
        inputs = [pt.vector(dtype=dtype) for _ in range(n_inputs)]
        try:
            output = Elemwise(op)(*inputs)
        except (TypeError, NotImplementedError):
            continue  # not defined for this type
        with pytensor.config.change_flags(numba__fastmath=False):
            function = pytensor.function(inputs, output, mode="NUMBA", trust_input=True)
        grid = np.meshgrid(*[values] * n_inputs)
        result = function(*[np.ascontiguousarray(entries.ravel()) for entries in grid])
        assert np.shape(result) == (len(values) ** n_inputs,)
        tried += 1
    assert tried
