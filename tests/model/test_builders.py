"""Every builder of PyMC and every operation is on a list, and those that may see rows act on each row by itself."""

import contextlib
import importlib
import inspect
import pkgutil

import numpy as np
import pymc as pm
import pymc.dims
import pymc.gp
import pymc.math
import pymc.model.transform
import pytensor
import pytest
from likelihoods import LIKELIHOODS, VECTORS, N
from looked_at import BUILDERS, NOT_ALLOWED, NOT_FOR_ROWS, Verdict
from pytensor.graph.op import Op
from pytensor.graph.type import Type
from pytensor.link.c.exceptions import MissingGXX

from pymc_dp import public
from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model import allowed
from pymc_dp.model.operations import OPERATIONS, TYPES, TYPES_NOT_ALLOWED
from pymc_dp.model.view import read
from pymc_dp.rows.engine import RowEngine
from pymc_dp.rows.graphs import RowGraphs
from pymc_dp.rows.table import RowTable

ROW_LOCAL = sorted(BUILDERS["pymc.distributions"][Verdict.ROW_LOCAL].split())
REFUSED = sorted(BUILDERS["pymc.distributions"][Verdict.REFUSED].split())
#: Modules that need packages which are not installed, or that belong to other backends.
_NOT_IMPORTED = (".jax", ".pytorch", ".mlx", ".numba", ".bin", ".misc", "kanren", "ipython", "mcbackend", "tests")
#: They start a C compiler when they are imported.
_OF_C = ("pytensor.link.c.cutils", "pytensor.link.c.lazylinker_c", "pytensor.scan.scan_perform_ext")


def modules_of(package):
    yield package
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
        if not any(part in found.name for part in _NOT_IMPORTED):
            with contextlib.suppress(MissingGXX, *([ImportError] if found.name in _OF_C else [])):
                yield importlib.import_module(found.name)


def defined_in(package):
    """Return the public functions and classes that a package defines."""
    return {
        name
        for module in modules_of(package)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and not inspect.ismodule(value)
        and str(getattr(value, "__module__", "")).startswith(package.__name__)
    }


INSTALLED = {
    "pymc.distributions": lambda: set(pm.distributions.__all__),
    "pymc": lambda: (
        {
            name
            for name, value in vars(pm).items()
            if not name.startswith("_") and callable(value) and not inspect.ismodule(value)
        }
        - set(pm.distributions.__all__)
    ),
    "pymc.gp": lambda: defined_in(pymc.gp),
    "pymc.dims": lambda: defined_in(pymc.dims),
    "pymc.math": lambda: set(pymc.math.__all__) | defined_in(pymc.math),
    "pymc.model.transform": lambda: defined_in(pymc.model.transform),
}


@pytest.mark.parametrize("package", INSTALLED)
def test_every_builder_that_is_installed_is_listed_once(package):
    """Hazard H45: what nobody has looked at is not accepted."""
    listed = [name for names in BUILDERS[package].values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert INSTALLED[package]() == set(listed)


def subclasses(parent):
    for child in parent.__subclasses__():
        yield child
        yield from subclasses(child)


def test_every_operation_and_type_that_is_installed_is_listed():
    """Hazards H46 and H47: neither are operations and types."""
    assert [*modules_of(pytensor), *modules_of(pm)]
    for parent, listed, others in ((Op, OPERATIONS, NOT_ALLOWED), (Type, TYPES, TYPES_NOT_ALLOWED)):
        unknown = {
            f"{kind.__module__}.{kind.__qualname__}"
            for kind in subclasses(parent)
            if kind.__module__.startswith(("pytensor.", "pymc."))
            and "<locals>" not in kind.__qualname__
            and not inspect.isabstract(kind)
            and not kind.__qualname__.startswith("Dense")  # stand for others in isinstance
            and not (parent is Type and not _may_be_a_variables(kind))
            and kind.__qualname__ not in listed.get(kind.__module__, "").split()
            and not any(f"{kind.__module__}.{kind.__qualname__}".startswith(name) for name in others)
        }
        assert not unknown


#: Operations that may see rows if `allowed` finds that what they are given is safe.
UNDER_CONDITIONS = frozenset(
    """
    AdvancedIncSubtensor AdvancedSubtensor Blockwise CAReduce Composite Elemwise Mod OpFromGraph Pow ScalarLoop Shape
    Shape_i
    """.split()
)


def test_every_operation_on_numbers_and_arrays_was_looked_at_for_rows():
    """Hazard H36: each may see rows, or is on the list of those that may not."""
    for module, names in OPERATIONS.items():
        for name in names.split() if module.startswith("pytensor.") and ".random" not in module else []:
            kind = getattr(importlib.import_module(module), name)
            under_conditions = not UNDER_CONDITIONS.isdisjoint(base.__name__ for base in kind.__mro__)
            for_rows = kind in allowed.SCALARS or kind in allowed._ARRAYS or under_conditions
            assert for_rows != (name in NOT_FOR_ROWS), name


def _may_be_a_variables(kind):
    return "filter" in dir(kind)


def log_likelihoods(model):
    """Return a function of tables, and the tables of the model."""
    view = read(model)
    rows, parameters = view.row_split, view.parameters
    engine = RowEngine(RowGraphs(view))
    point = parameters.split(np.full(parameters.size, 0.3))

    def computed(tables):
        (chunk,) = RowTable(tables).chunks(len(tables[0]))
        return np.array(engine.log_likelihood(point, chunk))

    return computed, [leaf.rows() for leaf in rows.leaves]


@pytest.mark.few(18)  # the package has one way for all of them
@pytest.mark.parametrize("name", ROW_LOCAL)
def test_a_replaced_row_changes_no_other_rows_log_likelihood(name):
    """Hazard H45: to the last bit, for each distribution that is listed as row-local."""
    with pm.Model() as model:
        LIKELIHOODS[name]()
    computed, tables = log_likelihoods(model)
    before = computed(tables)
    assert np.isfinite(before).any()
    for place, other in ((2, 4), (0, N - 1)):
        neighbour = [np.array(table) for table in tables]
        for table in neighbour:
            table[place] = table[other]
        after = computed(neighbour)
        kept = np.arange(N) != place
        assert np.array_equal(after[kept], before[kept])
        assert after[place] == before[other]


@pytest.mark.parametrize("name", REFUSED)
def test_a_likelihood_of_a_refused_distribution_is_refused(name):
    with pm.Model() as model:
        LIKELIHOODS[name]()
    with pytest.raises(UnsupportedModel):
        log_likelihoods(model)


def basis(gp, x):
    """A smooth function of x by a basis that PyMC builds."""
    if gp is pm.gp.HSGPPeriodic:
        process = gp(m=4, scale=1.0, cov_func=pm.gp.cov.Periodic(1, period=1.0, ls=1.0))
        (cosines, _), scales = process.prior_linearized(x)
        return cosines @ (scales * pm.Normal("beta", shape=4))
    process = gp(m=[4], c=1.5, cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
    return process.prior("f", x)


WAYS = {
    "data": lambda: pm.Data("x", VECTORS[:, :1]),
    "array": lambda: VECTORS[:, :1],
    "constant": lambda: pytensor.tensor.as_tensor(VECTORS[:, :1]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gp", [pm.gp.HSGP, pm.gp.HSGPPeriodic])
def test_a_builder_that_evaluates_rows_is_refused(gp, way):
    """Hazard H45: the middle of the rows is a number by the time that there is a graph."""
    with pm.Model() as model:
        pm.Normal("y", basis(gp, WAYS[way]()), 1.0, observed=VECTORS[:, 1])
    for each in (model, pm.do(model, {}), model.copy()):
        with pytest.raises(UnsupportedModel, match=r"pm\.gp\.HSGP"):
            log_likelihoods(each)


def test_a_builder_that_evaluates_public_locations_passes():
    with pm.Model() as model:
        effect = basis(pm.gp.HSGP, public(np.linspace(-1.0, 1.0, 5)[:, None]))
        pm.Normal("y", effect[np.arange(N) % 5], 1.0, observed=VECTORS[:, 1])
    computed, tables = log_likelihoods(model)
    assert np.isfinite(computed(tables)).all()
