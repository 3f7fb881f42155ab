"""What PyTensor does again and again, done once: the graphs, functions and numbers of the tests are the same."""

import contextvars
import functools
import hashlib
import threading
from collections import OrderedDict

import numpy as np
from pytensor.compile.maker import FunctionMaker
from pytensor.configdefaults import config
from pytensor.graph.basic import Constant, clone_get_equiv
from pytensor.graph.destroyhandler import DestroyHandler
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting import basic as rewriting, db as rewrites
from pytensor.graph.utils import Scratchpad
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.elemwise import Elemwise

# Both do what Python does by itself.
del Scratchpad.__getattribute__
rewriting.Rewriter.__hash__ = object.__hash__


@functools.cache
def _order_of_classes(kind, tracked, compute=rewriting._compose_mro):
    return compute(kind, tracked)


# PyTensor computes it anew in every rewriting that PyMC starts: a sixth of the time of a run.
rewriting._compose_mro = lambda kind, tracked: _order_of_classes(kind, frozenset(tracked))


#: Rewrites by database and query, until a database is added to.
_rewrites = {}


def find_rewrites(database, query, *tags, find=rewrites.EquilibriumDB.query, **others):
    if tags or others or isinstance(query, str) or query.subquery or query.extra_rewrites:
        return find(database, query, *tags, **others)
    key = (database, tuple(query.include), tuple(query.require), tuple(query.exclude))
    if key not in _rewrites:
        _rewrites[key] = find(database, query)
    return _rewrites[key]


def register(database, *arguments, add=rewrites.RewriteDatabase.register, **options):
    _rewrites.clear()
    _rewritten.clear()
    add(database, *arguments, **options)


def forget_rewrites():
    _rewrites.clear()


# PyTensor looks them up anew in every compilation: a fortieth of the time.
rewrites.EquilibriumDB.query = find_rewrites
rewrites.RewriteDatabase.register = register


#: How many graphs are remembered with what became of them.
_REMEMBERED = 400
#: Rewritten graphs of functions, by the graphs as they were: operations, types, constants, names, mode.
_rewritten = OrderedDict()


def _facts_of_mode(mode):
    query = mode.provided_optimizer
    if not isinstance(query, rewrites.RewriteDatabaseQuery) or query.subquery or query.extra_rewrites:
        raise TypeError("no plain query")
    tags = tuple(frozenset(each) for each in (query.include, query.require, query.exclude))
    return type(mode.linker), mode.optdb, tags, query.position_cutoff, config.floatX


def _facts_of_constant(constant):
    data = constant.data
    if isinstance(data, np.ndarray):
        if data.dtype.hasobject:
            raise TypeError("objects")
        return constant.type, data.shape, data.strides, hashlib.sha256(data.tobytes()).digest()
    return constant.type, constant.signature()


def _facts_of_graph(graph, inputs, outputs):
    """Return what tells graphs apart: raise TypeError, here or where it is hashed, if that cannot be said."""
    places, facts = {}, []
    for variable, spec in zip(graph.inputs, inputs, strict=True):
        places[id(variable)] = len(places)
        facts.append((variable.type, variable.name, spec.name, spec.mutable, spec.borrow, spec.shared))

    def place_of(variable):
        if id(variable) not in places:
            if not isinstance(variable, Constant):
                raise TypeError("neither an input nor computed")
            facts.append(_facts_of_constant(variable))
            places[id(variable)] = len(places)
        return places[id(variable)]

    for node in graph.toposort():
        arguments = tuple(map(place_of, node.inputs))
        facts.append((node.op, arguments, tuple(output.type for output in node.outputs)))
        for output in node.outputs:
            places[id(output)] = len(places)
    facts.append(tuple(map(place_of, graph.outputs)))
    facts.append(tuple(spec.borrow for spec in outputs))
    facts.append(tuple(sorted(graph.update_mapping.items())))
    return tuple(facts)


def _with_inputs(known, inputs):
    """Return a copy of a rewritten graph: PyMC looks for shared generators in the graph of a function."""
    copied = dict(zip(known.inputs, inputs, strict=True))
    copied = clone_get_equiv(known.inputs, known.outputs, copy_inputs=False, copy_orphans=False, memo=copied)
    outputs = [copied[output] for output in known.outputs]
    graph = FunctionGraph(inputs, outputs, clone=False, update_mapping=known.update_mapping)
    if hasattr(known, "destroyers"):
        graph.attach_feature(DestroyHandler())
    return graph


def create_graph(maker, inputs, outputs, accept_inplace=False, fgraph=None, create=FunctionMaker.create_fgraph):
    """Return the graph that an equal one became, or a new one."""
    graph, updates = create(inputs, outputs, accept_inplace, fgraph=fgraph)
    maker.remembered_as = None
    if fgraph is None and not accept_inplace:
        try:
            key = (_facts_of_mode(maker.mode), _facts_of_graph(graph, inputs, outputs))
            known = _rewritten.get(key)
        except TypeError:
            return graph, updates
        if known is not None:
            _rewritten.move_to_end(key)
            if any(spec.shared for spec in inputs):
                known = _with_inputs(known, graph.inputs)
            maker.remembered_as = known
            return known, updates
        maker.remembered_as = key
    return graph, updates


def prepare_graph(maker, inputs, outputs, additional, graph, mode, profile, prepare=FunctionMaker.prepare_fgraph):
    if maker.remembered_as is graph:
        return
    prepare(inputs, outputs, additional, graph, mode, profile)
    if maker.remembered_as is not None:
        _rewritten[maker.remembered_as] = graph
        if len(_rewritten) > _REMEMBERED:
            _rewritten.popitem(last=False)


# Models are built again for every case of a test: rewriting their functions took a seventh of the time.
FunctionMaker.create_fgraph = create_graph
FunctionMaker.prepare_fgraph = prepare_graph


#: Rewritten graphs and what Numba's functions were made of them, by identity and settings.
_converted = OrderedDict()


def convert(linker, graph, convert=NumbaLinker.fgraph_convert, **options):
    key = (id(graph), type(linker), config.numba__fastmath, config.numba__cache)
    if key not in _converted:
        _converted[key] = graph, convert(linker, graph, **options)
        if len(_converted) > _REMEMBERED:
            _converted.popitem(last=False)
    return _converted[key][1]


@functools.lru_cache(_REMEMBERED)
def _jitted(function, key, fastmath, compile=NumbaLinker.jit_compile):
    return compile(None, (function, key))


# So did writing the functions that Numba compiles, and compiling them. They hold no state.
NumbaLinker.fgraph_convert = convert
NumbaLinker.jit_compile = lambda linker, converted: _jitted(*converted, config.numba__fastmath)


class _Ignoring(threading.local):
    """A context in which NumPy says nothing, for each thread: entering one is dear."""

    def __init__(self):
        with np.errstate(all="ignore"):
            self.run = contextvars.copy_context().run


_ignoring = _Ignoring()
#: Types of inputs, and their shapes, that may be broadcast.
_broadcast = set()


def perform(operation, node, inputs, output_storage, otherwise=Elemwise.perform):
    """Do what `Elemwise.perform` does for a ufunc of NumPy with one result."""
    ufunc = operation.nfunc
    if (
        ufunc is None
        or operation.inplace_pattern
        or len(inputs) != operation.nfunc_spec[1]
        or operation.nfunc_spec[2] != 1
    ):
        return otherwise(operation, node, inputs, output_storage)
    (output,) = node.outputs
    if output.type.ndim:
        operation._check_runtime_broadcast(node, inputs)
    if "sig" in node.tag.__dict__:
        value = _ignoring.run(ufunc, *inputs, sig=node.tag.sig)
    else:
        value = _ignoring.run(ufunc, *inputs)
    value = np.asarray(value, dtype=output.type.dtype)
    output_storage[0][0] = value if value.flags.owndata else value.copy()


def check_runtime_broadcast(node, inputs, check=Elemwise._check_runtime_broadcast):
    key = (*[each.shape for each in inputs], *[each.type.broadcastable for each in node.inputs])
    if key not in _broadcast:
        check(node, inputs)
        _broadcast.add(key)


Elemwise.perform = perform
Elemwise._check_runtime_broadcast = staticmethod(check_runtime_broadcast)
