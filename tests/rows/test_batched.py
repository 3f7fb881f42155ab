"""Graphs of many rows are those of one row, and hold no loop that calls a function for each."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.tensor.blockwise import Blockwise

from pymc_dp.compiling import INTERPRETED
from pymc_dp.model.view import read
from pymc_dp.rows import engine
from pymc_dp.rows.batched import batched_graphs
from pymc_dp.rows.graphs import RowGraphs

#: With all that PyTensor itself does about loops.
OPTIMISED = Mode(linker="py", optimizer="fast_run")


def function_without_loops(inputs, outputs):
    function = pytensor.function(inputs, outputs, mode=OPTIMISED, on_unused_input="ignore")
    nodes = function.maker.fgraph.toposort()
    assert not [node for node in nodes if isinstance(node.op, Blockwise)]
    return function


def slope(output, *inputs):
    return [output, *pt.grad(output, inputs, disconnected_inputs="ignore")]


#: Of one row x, shape (3,), one whole number k and parameters a, shape (3,).
OF_ONE_ROW = {
    "logarithm of a sum": lambda x, k, a: slope(pt.logsumexp(x * a), x, a),
    "over one axis": lambda x, k, a: slope(pt.logsumexp(x[:, None] * a, axis=1).sum(), x, a),
    "of two": lambda x, k, a: slope(pt.logaddexp(x * a, a).sum(), x, a),
    "x log y": lambda x, k, a: slope(pt.special.xlogy(pt.round(x), pt.exp(a)).sum(), a),
    "x log (1 + y)": lambda x, k, a: slope(pt.special.xlog1py(pt.round(x), pt.exp(a)).sum(), a),
    "softmax": lambda x, k, a: slope(pt.special.log_softmax(x * a)[0], x, a),
    "joined": lambda x, k, a: slope((pt.concatenate([[1.0], x[:2] * a[:2], a]) ** 2).prod(), x, a),
    "chosen by a row": lambda x, k, a: slope((x * a)[pt.clip(k[None], -3, 2)].sum() ** 2, x, a),
    "chosen from parameters": lambda x, k, a: slope((x.sum() + pt.exp(a))[pt.clip(k[None], -3, 2)].sum(), x, a),
}


@pytest.mark.parametrize("of_row", OF_ONE_ROW.values(), ids=OF_ONE_ROW.keys())
def test_rows_together_are_rows_one_by_one(of_row):
    x, k, a = pt.vector("x", shape=(3,)), pt.lscalar("k"), pt.vector("a", shape=(3,))
    outputs = of_row(x, k, a)
    rows, numbers = pt.matrix("rows", shape=(None, 3)), pt.lvector("numbers")
    together = batched_graphs(outputs, {x: rows, k: numbers})
    generator = np.random.default_rng(0)
    values, whole, parameters = generator.normal(size=(5, 3)), np.array([0, 2, -1, -3, 1]), generator.normal(size=3)
    one = pytensor.function([x, k, a], outputs, mode=INTERPRETED, on_unused_input="ignore")
    found = function_without_loops([rows, numbers, a], together)(values, whole, parameters)
    for row in range(5):
        for got, expected in zip(found, one(values[row], whole[row], parameters), strict=True):
            np.testing.assert_allclose(got[row], expected, rtol=1e-13, atol=1e-15)


def test_two_axes_one_of_which_has_one_entry_for_all():
    """As of possible responses, which are not another one for each row."""
    x, k = pt.vector("x", shape=(3,)), pt.lscalar("k")
    rows, responses = pt.tensor("rows", shape=(None, 3)), pt.tensor("k", dtype="int64", shape=(None, 1))
    outputs = slope(pt.logsumexp(pt.concatenate([x, [0.0]])) + pt.exp(x)[pt.clip(k[None], 0, 2)].sum(), x)
    together = batched_graphs(outputs, {x: rows, k: responses})
    values, whole = np.random.default_rng(1).normal(size=(4, 3)), np.array([[0], [2], [1]])
    one = pytensor.function([x, k], outputs, mode=INTERPRETED)
    found = function_without_loops([rows, responses], together)(values, whole)
    for response in range(3):
        for row in range(4):
            for got, expected in zip(found, one(values[row], whole[response, 0]), strict=True):
                np.testing.assert_allclose(got[response, row], expected, rtol=1e-13)


def mixture(predictor, generator, n):
    parts = [pm.Normal.dist(predictor, 1.0), pm.Normal.dist(-predictor, 2.0)]
    pm.Mixture("y", w=pm.Dirichlet("w", np.ones(2)), comp_dists=parts, observed=generator.normal(size=n))


def zero_inflated(predictor, generator, n):
    psi = pm.Beta("psi", 2, 2)
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(predictor), observed=generator.poisson(1, n))


def ordered(predictor, generator, n):
    cuts = pm.Normal("cuts", [-1.0, 0.0, 1.0], 1, transform=pm.distributions.transforms.ordered, initval=[-1, 0, 1])
    observed = generator.integers(0, 4, n)
    pm.OrderedLogistic("y", eta=predictor, cutpoints=cuts, observed=observed, compute_p=False)


def categorical(predictor, generator, n):
    logits = pm.math.concatenate([np.zeros((n, 1)), predictor[:, None], 2.0 * predictor[:, None]], axis=1)
    pm.Categorical("y", logit_p=logits, observed=generator.integers(0, 3, n))


#: They take longer to compile; each of their operations is tried above.
_AT_NIGHT = [pytest.param(each, marks=pytest.mark.nightly) for each in (mixture, ordered)]


@pytest.mark.parametrize("model", [*_AT_NIGHT, zero_inflated, categorical])
def test_no_loop_is_left_of_these_responses(model, monkeypatch):
    generator, n = np.random.default_rng(0), 8
    with pm.Model() as built:
        model(pm.Data("x", generator.normal(size=(n, 2))) @ pm.Normal("beta", 0, 1, shape=2), generator, n)
    view, made = read(built), []
    rows = engine.RowEngine(RowGraphs(view))
    monkeypatch.setattr(engine, "compiled", lambda *graphs: made.append(function_without_loops(*graphs)))
    for name in ("log_likelihood", "gradient"):
        rows._compile(name, None)
    assert len(made) == 2
