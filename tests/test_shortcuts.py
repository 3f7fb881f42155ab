"""What tests/shortcuts.py remembers is what PyTensor would have made: nothing else is taken for equal."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import shortcuts
from pytensor.graph.traversal import explicit_graph_inputs

from pymc_dp.compiling import INTERPRETED

ROWS = np.array([0.5, -2.0, 3.0])


@pytest.fixture(params=[INTERPRETED, "NUMBA"], ids=["interpreted", "compiled"])
def graphs(request, monkeypatch):
    """Return graphs that functions were made of, and forget what was remembered."""
    pytensor.function([], pt.zeros(1), mode=request.param)  # the first one adds rewrites
    monkeypatch.setattr(shortcuts, "_rewritten", type(shortcuts._rewritten)())

    def made(write, *, of=pt.dvector, mode=request.param):
        x = of("x")
        function = pytensor.function([x], write(x), mode=mode)
        return function, function.maker.fgraph

    return made


def shifted(by):
    return lambda x: pt.sqr(x + pt.constant(by))


def test_equal_graphs_are_rewritten_once(graphs):
    (one, graph), (other, same) = (graphs(shifted(ROWS)) for _ in range(2))
    assert graph is same
    assert np.array_equal(one(ROWS), 4.0 * ROWS**2)
    assert np.array_equal(other(-ROWS), np.zeros(3))
    assert np.array_equal(one(ROWS), 4.0 * ROWS**2)


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("write", "otherwise"),
    [
        (shifted(ROWS), shifted(ROWS * (1.0 + 2.0**-52))),
        (lambda x: x / pt.constant(0.0), lambda x: x / pt.constant(-0.0)),
        (lambda x: x + 1.0, lambda x: x - 1.0),
        (lambda x: [x.sum(), x.prod()], lambda x: [x.prod(), x.sum()]),
        (lambda x: x[0] - x[1], lambda x: x[1] - x[0]),
        (pt.sqr, lambda x: pytensor.Out(pt.sqr(x), borrow=True)),
    ],
)
def test_graphs_that_differ_are_not_equal(graphs, write, otherwise):
    (one, graph), (other, another) = graphs(write), graphs(otherwise)
    assert graph is not another
    for function, expected in ((one, write), (other, otherwise)):
        wanted = expected(pt.constant(ROWS))
        wanted = [each.variable if isinstance(each, pytensor.Out) else each for each in np.atleast_1d(wanted)]
        assert np.array_equal(np.ravel(function(ROWS)), np.ravel([each.eval(mode=INTERPRETED) for each in wanted]))


def test_types_and_names_of_inputs_and_modes_tell_graphs_apart(graphs):
    _, graph = graphs(shifted(1.0))
    assert graphs(shifted(1.0), of=pt.fvector)[1] is not graph
    assert graphs(shifted(1.0), of=lambda _: pt.dvector("z"))[1] is not graph
    assert graphs(shifted(1.0), mode=pytensor.compile.mode.Mode("py", optimizer=None))[1] is not graph


def test_shared_variables_are_those_of_each_function(graphs):
    numbers = [pytensor.shared(value) for value in (1.0, 2.0)]
    functions = [graphs(lambda x, number=number: x + number) for number in numbers]
    numbers[0].set_value(5.0)
    assert [function(np.zeros(1)).item() for function, _ in functions] == [5.0, 2.0]
    for number, (_, graph) in zip(numbers, functions, strict=True):
        assert number in explicit_graph_inputs(graph.outputs) or number in graph.inputs


def test_draws_of_equal_graphs_follow_their_own_seeds():
    def drawn(seed):
        return pm.draw(pm.Normal.dist(size=4), draws=2, random_seed=seed, mode=INTERPRETED)

    first, second, again = drawn(1), drawn(2), drawn(1)
    assert np.array_equal(first, again)
    assert not np.isin(second, first).any()


def test_an_interpreted_ufunc_is_that_of_numpy(graphs):
    x, k = pt.dmatrix("x"), pt.lvector("k")
    function = pytensor.function([x, k], [x + k, pt.log(k), pt.sqrt(x), x > k], mode=INTERPRETED)
    rows, counts = np.array([[-1.0, 2.0], [np.inf, 0.25]]), np.array([0, 3])
    with np.errstate(all="raise"):
        found = function(rows, counts)
    with np.errstate(all="ignore"):
        expected = [rows + counts, np.log(counts), np.sqrt(rows), rows > counts]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    for _ in range(2):
        with pytest.raises(ValueError, match="Runtime broadcasting not allowed"):
            function(rows, counts[:1])
