r"""Centred parametrisations of models: group effects are free variables themselves.

In the non-centred form effects are :math:`\mu + \tau z_g` with :math:`z_g \sim N(0, 1)`. The likelihood then depends on
products of parameters, and no normal likelihood approximates it well. With :math:`u_g = \tau z_g \sim N(0, \tau^2)` in
place of `z` the joint distribution of the user's variables is the same. The likelihood then depends on sums, and the
scale is in the prior alone, which is exact.

References
----------
Papaspiliopoulos, Roberts and Sköld (2007), A general framework for the parametrization of hierarchical models,
Statistical Science 22.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary, ref

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.multivariate import ZeroSumNormalRV
from pymc.distributions.timeseries import RandomWalkRV
from pymc.distributions.transforms import CholeskyCovPacked, ZeroSumTransform
from pymc.logprob.transforms import LogTransform, Transform
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable, clone_get_equiv, equal_computations
from pytensor.graph.traversal import ancestors, applys_between
from pytensor.scalar import basic as scalar
from pytensor.scalar.math import Softplus
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg import solve_triangular
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.random import basic as families
from pytensor.tensor.shape import Shape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pymc_dp.model import origins
from pymc_dp.model.arrays import arrays_of, is_leaf, is_public, leaf_value, undimmed
from pymc_dp.model.copying import add_copy, add_free
from pymc_dp.model.members import LOCATION_SCALE
from pymc_dp.model.protected import fills_a_triangle
from pymc_dp.model.structure import coefficients, scales_and_shapes
from pymc_dp.model.transforms import Itself, LogarithmOf, bounds_of, ends_of, transform_by_name

_POSITIVE_EVERYWHERE = (scalar.Exp, Softplus)
#: Operations whose output consists of unchanged entries of their first input.
_CHOOSING = (DimShuffle, Subtensor, AdvancedSubtensor)
_POSITIVE_OF_POSITIVE = (scalar.Sqrt, scalar.Sqr, scalar.Reciprocal, scalar.Mul, scalar.TrueDiv, scalar.Add)

#: By a model: the objects that its form was made of, and that form; None if there is no other form.
_Forms = WeakKeyDictionary[pm.Model, tuple[list[object], pm.Model | None]]
_centred, _with_coordinates = _Forms(), _Forms()
#: The models of which forms were made.
_written: WeakKeyDictionary[pm.Model, ref[pm.Model]] = WeakKeyDictionary()


def centred(model: pm.Model) -> pm.Model:
    """Return the centred form of a model, the same object each time; the model itself if no variable is replaced.

    A standardised variable that is only used times a positive function of other free variables is replaced by the
    product, ``<name>_scaled``. If a location of free variables is only added to the only product, the sum replaces the
    variable, ``<name>_centred``. Normal variables that are only used less their mean are replaced by the differences,
    ``<name>_less_mean``, and by ``<name>_mean``; a random walk is replaced by ``<name>_start`` and ``<name>_steps``.
    The replaced variables become deterministic variables of the same names. Data and dims are shared with the model.
    """
    return _form(model, _centred, _first_rewriting)


def in_coordinates(model: pm.Model) -> pm.Model:
    """Return the centred form of a model in which variables with bounds have the coordinates of the likelihood.

    They are logarithms of scales and shapes, and coefficients themselves: see `pymc_dp.model.transforms`. Names of
    variables are the same. The same object each time; the centred form itself if no transform is replaced.
    """
    return _form(centred(model), _with_coordinates, _coordinates)


def _form(model: pm.Model, made: _Forms, first_rewriting: Callable[[pm.Model], "_Rewriting | None"]) -> pm.Model:
    """Return a model after rewritings, until there is none."""
    written = {*model.named_vars}
    made_of = [*model.named_vars.values(), *model.rvs_to_initial_values.values(), *model.rvs_to_transforms.values()]
    of_last, found = made.get(model, ([], None))
    if len(of_last) != len(made_of) or any(one is not other for one, other in zip(of_last, made_of, strict=True)):
        found = None
        while (rewriting := first_rewriting(found or model)) is not None:
            found = _rewritten(found or model, rewriting, written)
        if found is not None:
            origins.note_as_of(found, model)
            _written[found] = ref(model)
        made[model] = made_of, found
    if found is None:
        return model
    found.coords.update(model.coords)  # pm.set_data may have changed them
    found.dim_lengths.update(model.dim_lengths)
    return found


def as_written(model: pm.Model) -> pm.Model:
    """Return the model of which a form was made; any other model itself."""
    found = _written.get(model)
    return model if found is None else found() or model


def form_of(model: pm.Model, names: Iterable[str]) -> pm.Model:
    """Return the form of a model that has all `names` as free or value variables: a centred one if it has them.

    Of priors alone, variables have the transforms that the names tell.
    """
    form, wanted = centred(model), set(names)
    for each in (in_coordinates(model), form):
        if wanted <= _names_in(each):
            return each
    named = {rv: transform_by_name(rv, form.rvs_to_transforms[rv], wanted) for rv in form.free_RVs}
    transforms = {rv: each for rv, each in named.items() if each is not None}
    if not transforms:
        return model
    found = _rewritten(form, _Rewriting(None, {}, [], transforms), {*model.named_vars})
    return found if wanted <= _names_in(found) else model


def _names_in(model: pm.Model) -> set[str]:
    """Return the names of the free variables of a model and of their values."""
    return {each.name for each in [*model.free_RVs, *model.value_vars]}


class _Step(NamedTuple):
    """A node on a path from a standardised variable to a product with its scale."""

    node: Apply
    variable: Variable  # the input of the node that is on the path
    is_product: bool  # whether the node multiplies by the scale, where the path ends


class _Scaled(NamedTuple):
    """A standardised variable, its scale, and all steps to its products with the scale.

    With a location there is one product, and `total` is their sum. The scale may be a Cholesky factor: a left factor
    (`from_left`) or a transposed right factor. None: the scale is no matrix.
    """

    variable: Variable
    scale: Variable
    steps: list[_Step]
    location: Variable | None = None
    total: Variable | None = None
    from_left: bool | None = None


class _New(NamedTuple):
    """A new free variable of the centred form: the ending of its name, its dims and transform."""

    variable: Variable
    ending: str
    dims: tuple[str | None, ...] | None
    transform: Transform | None


class _Rewriting(NamedTuple):
    """A free variable of a model, the replacements in the model's graphs, and the new free variables and transforms."""

    variable: Variable | None
    replaced: dict[Variable, Variable]
    new: list[_New]
    transforms: dict[Variable, LogarithmOf | Itself] = {}  # noqa: RUF012  a default of a named tuple


def _first_rewriting(model: pm.Model) -> _Rewriting | None:
    """Return the rewriting of the first free variable that has one; None if none has."""
    if _is_fixed(model):
        return None
    clients = defaultdict[Variable, list[Apply]](list)
    # A model of priors alone has no likelihood: its deterministic variables stand for the inputs of one.
    known_of = [*model.basic_RVs, *model.potentials, *(() if model.observed_RVs else model.deterministics)]
    for node in applys_between([], known_of):
        for variable in dict.fromkeys(node.inputs):
            clients[variable].append(node)
    for rv in model.free_RVs:
        found = _steps_of_walk(rv, model)
        scalable = isinstance(rv.owner.op, LOCATION_SCALE) and model.rvs_to_transforms[rv] is None
        scalable = scalable or isinstance(rv.owner.op, ZeroSumNormalRV)
        if found is None and scalable and model.rvs_to_initial_values[rv] is None:
            scaled = _scaled(rv, clients, model)
            found = _less_mean(rv, clients[rv], model) if scaled is None else _with_product(scaled, model)
        if found is not None:
            return found
    return None


def _coordinates(model: pm.Model) -> _Rewriting | None:
    """Return new transforms of variables with bounds: logarithms of scales and shapes, and coefficients themselves.

    A variable of which a power is the scale of rows has the logarithm of that. None if no transform changes.
    """
    if _is_fixed(model):
        return None
    found = dict[Variable, LogarithmOf | Itself]()
    of_location = coefficients(model)
    for rv in (each for each in model.free_RVs if each in of_location):
        transform = model.rvs_to_transforms[rv]
        bounds = bounds_of(rv, transform)
        if bounds is not None and transform is not None:
            found[rv] = Itself(*bounds, transform)
    shapes, slopes = scales_and_shapes(model)
    for rv in (each for each in model.free_RVs if each in shapes):
        transform = model.rvs_to_transforms[rv]
        bounds, slope = bounds_of(rv, transform), (slopes or {}).get(rv, 1.0)
        if bounds is None or bounds[0] < 0.0 or (isinstance(transform, LogTransform) and slope == 1.0):
            continue
        if slopes is not None and rv.type.ndim:  # searches of a scale for each group were lost and called usable
            continue
        if slopes is not None or bounds[1] > 1.0:  # of other families it may be a proportion
            found[rv] = LogarithmOf(slope, *bounds)
    return _Rewriting(None, {}, [], found) if found else None


def _is_fixed(model: pm.Model) -> bool:
    """Return whether no variable of a model may be replaced: of a model in another, or with expressions as starts."""
    return model.parent is not None or any(isinstance(each, Variable) for each in model.rvs_to_initial_values.values())


def _scaled(rv: Variable, clients: Mapping[Variable, Sequence[Apply]], model: pm.Model) -> _Scaled | None:
    """Return a variable with its scale, if all paths to rows, priors and potentials multiply by the same; else None."""
    if (by_factor := _multiplied_by_a_factor(rv, clients[rv], model)) is not None:
        return _located(by_factor, clients, model)
    scale: Variable | None = None
    steps, ahead = list[_Step](), [rv]
    while ahead:
        variable = ahead.pop()
        for node in clients[variable]:
            others = [each for each in node.inputs if each is not variable]
            # Else the new variable would itself replace the potential, and take its name.
            if node.outputs[0] in model.potentials or rv in ancestors(others):
                return None
            factor = _other_input(node, variable, scalar.Mul)
            found = None if factor is None else _scale_in(factor, variable, rv, model)
            steps.append(_Step(node, variable, found is not None))
            if found is not None:
                if scale is not None and found is not scale:
                    return None
                scale = found
            elif factor is not None or _copies(node) or (isinstance(node.op, _CHOOSING) and node.inputs[0] is variable):
                ahead.append(node.outputs[0])
            else:
                return None
    return None if scale is None else _located(_Scaled(rv, scale, steps), clients, model)


def _located(scaled: _Scaled, clients: Mapping[Variable, Sequence[Apply]], model: pm.Model) -> _Scaled:
    """Return `scaled` with its location, if there is one: a term of free variables in the only use of its product."""
    rv, (node, *others) = scaled.variable, [step.node for step in scaled.steps]
    users = clients[node.outputs[0]]
    while len(users) == 1 and _copies(users[0]):
        node, users = users[0], clients[users[0].outputs[0]]
    if others or len(users) != 1 or users[0].outputs[0] in model.potentials or isinstance(rv.owner.op, ZeroSumNormalRV):
        return scaled
    location = _other_input(users[0], node.outputs[0], scalar.Add)
    if location is None or not _is_of_free_variables(location, model) or not _fits(location, rv):
        return scaled
    return scaled if rv in ancestors([location]) else scaled._replace(location=location, total=users[0].outputs[0])


def _multiplied_by_a_factor(rv: Variable, nodes: Sequence[Apply], model: pm.Model) -> _Scaled | None:
    """Return standard normal variables with the Cholesky factor that their only use multiplies by; else None."""
    op = rv.owner.op
    if len(nodes) != 1 or not isinstance(getattr(nodes[0].op, "core_op", nodes[0].op), Dot):
        return None
    if not isinstance(op, families.NormalRV) or rv.type.ndim != 2 or not _has_a_size(rv):
        return None
    location, sigma = map(undimmed, op.dist_params(rv.owner))
    if not all(isinstance(each, Constant) and each.type.ndim == 0 for each in (location, sigma)):
        return None
    if leaf_value(location) != 0.0 or leaf_value(sigma) != 1.0:
        return None
    first, second = nodes[0].inputs
    from_left = second is rv
    factor = first
    if not from_left:
        if second.owner is None or getattr(second.owner.op, "new_order", None) != (1, 0):
            return None
        factor = second.owner.inputs[0]
    if not fills_a_triangle(factor.owner):
        return None
    packed = factor.owner.inputs[1]
    if packed not in model.free_RVs or not isinstance(model.rvs_to_transforms[packed], CholeskyCovPacked):
        return None
    return _Scaled(rv, factor, [_Step(nodes[0], rv, is_product=True)], from_left=from_left)


def _has_a_size(rv: Variable) -> bool:
    """Return whether a variable has a `size` argument, instead of the shape of its parameters."""
    return getattr(rv.owner.op.size_param(rv.owner).type, "ndim", 0) == 1


def _copies(node: Apply) -> bool:
    """Return whether a node is the identity, which PyMC inserts to name a variable."""
    return isinstance(node.op, ViewOp) or isinstance(getattr(node.op, "scalar_op", None), scalar.Identity)


def _other_input(node: Apply, variable: Variable, operation: type) -> Variable | None:
    """Return the other input of a binary operation on two different variables; None for other nodes."""
    if not isinstance(getattr(node.op, "scalar_op", None), operation) or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if first is second:
        return None
    return second if first is variable else first


def _is_of_free_variables(variable: Variable, model: pm.Model) -> bool:
    """Return whether a variable is a function of free variables, numbers and public arrays only: others may be rows."""
    found = list(ancestors([variable], blockers=model.free_RVs))
    arrays = any(is_leaf(each) and leaf_value(each).ndim > 0 and not is_public(each) for each in found)
    arrays = arrays or any(arrays_of([variable], model.free_RVs))  # in inner graphs, and vectors of single numbers
    return not arrays and not set(model.free_RVs).isdisjoint(found)


def _fits(variable: Variable, rv: Variable) -> bool:
    """Return whether an elementwise operation on both variables has the shape of `rv`."""
    return variable.type.ndim == rv.type.ndim and not any(
        one and not another for one, another in zip(rv.type.broadcastable, variable.type.broadcastable, strict=True)
    )


def _scale_in(factor: Variable, variable: Variable, rv: Variable, model: pm.Model) -> Variable | None:
    """Return a factor of a function of `rv` as its scale, a scalar or one for each entry; None if it cannot be one."""
    if not (_is_of_free_variables(factor, model) and _is_positive(factor, model)):
        return None
    number = undimmed(factor)
    if number.type.ndim == 0:
        return number
    of_entries = variable is rv and not isinstance(rv.owner.op, ZeroSumNormalRV)
    return factor if of_entries and _fits(factor, rv) else None


def _is_positive(variable: Variable, model: pm.Model) -> bool:
    """Return whether the graph proves that all entries of a variable are positive."""
    if isinstance(variable, Constant):
        return bool((leaf_value(variable) > 0).all())
    if variable in model.free_RVs:
        return ends_of(variable, model.rvs_to_transforms[variable])[0] >= 0.0
    if variable.owner is None:
        return False
    op, inputs = getattr(variable.owner.op, "scalar_op", variable.owner.op), variable.owner.inputs
    if isinstance(op, _POSITIVE_EVERYWHERE):
        return True
    if _copies(variable.owner):
        return _is_positive(inputs[0], model)
    inputs = inputs[:1] if isinstance(op, (*_CHOOSING, scalar.Pow)) else inputs
    return isinstance(op, (*_POSITIVE_OF_POSITIVE, *_CHOOSING, scalar.Pow, MakeVector)) and all(
        _is_positive(each, model) for each in inputs
    )


def _with_product(scaled: _Scaled, model: pm.Model) -> _Rewriting:
    """Return the rewriting that makes the product, or the total, a free variable in place of the standardised one."""
    rv = scaled.variable
    product, of_output, standardised = _law_of(scaled)
    of_product, replaced = {rv: of_output}, {rv: standardised}
    for node, variable, is_product in scaled.steps:
        out, changed = node.outputs[0], of_product[variable]
        if not is_product:
            changed = node.clone_with_new_inputs([changed if each is variable else each for each in node.inputs]).out
        of_product[out] = changed
        if is_product:
            replaced[out] = changed
    if scaled.total is not None:
        replaced = {rv: standardised, scaled.total: of_output}
    dims = model.named_vars_to_dims.get(rv.name)
    dims = dims[::-1] if dims and scaled.from_left else dims
    ending = "_scaled" if scaled.location is None else "_centred"
    return _Rewriting(rv, replaced, [_New(product, ending, dims, model.rvs_to_transforms[rv])])


def _law_of(scaled: _Scaled) -> tuple[Variable, Variable, Variable]:
    """Return a variable with the distribution of the product or total, that variable in the output's shape, and `rv`.

    The last one is the standardised variable as a function of the first.
    """
    rv, scale, added = scaled.variable, scaled.scale, scaled.location
    op, node = rv.owner.op, rv.owner
    parameters, size = op.dist_params(node), op.size_param(node)
    if scaled.from_left is not None:
        place = 1 if scaled.from_left else 0
        located = 0.0 if added is None else added.T if scaled.from_left else added
        product = pm.MvNormal.dist(located, chol=scale, size=size[place : place + 1])
        standardised = solve_triangular(scale, (product - located).T, lower=True)
        return (product, product.T, standardised) if scaled.from_left else (product, product, standardised.T)
    if isinstance(op, ZeroSumNormalRV):
        sigma, support_shape = parameters
        product = op.rv_op(sigma * scale, support_shape, size=size, rng=op.rng_params(node)[0])
    else:
        *shapes, location, sigma = parameters
        location = location * scale if added is None else location * scale + added
        _, product = op.make_node(op.rng_param(node), size, *shapes, location, sigma * scale).outputs
    return product, product, (product if added is None else product - added) / scale


def _less_mean(rv: Variable, nodes: Sequence[Apply], model: pm.Model) -> _Rewriting | None:
    """Return the rewriting of normal variables, only used less their mean, as differences and mean; None for others.

    Differences and mean are independent, and the likelihood depends on the differences alone.
    """
    op = rv.owner.op
    if not isinstance(op, families.NormalRV) or rv.type.ndim != 1 or not _has_a_size(rv):
        return None
    mean, differences = pt.mean(rv), list[Variable]()
    location, sigma = map(undimmed, op.dist_params(rv.owner))
    for node in nodes:
        taken_off = _other_input(node, rv, scalar.Sub)
        if taken_off is not None and node.inputs[0] is rv and equal_computations([undimmed(taken_off)], [mean]):
            differences.append(node.outputs[0])
        elif not isinstance(node.op, Sum | Shape):
            return None
        if node.outputs[0] in model.potentials:
            return None
    if not differences or location.type.ndim + sigma.type.ndim > 0:
        return None
    size = op.size_param(rv.owner)
    less = pm.ZeroSumNormal.dist(sigma, support_shape=[size[0]])
    of_mean = pm.Normal.dist(location, sigma / pt.sqrt(size[0]))
    new = [
        _New(less, "_less_mean", model.named_vars_to_dims.get(rv.name), ZeroSumTransform([-1])),
        _New(of_mean, "_mean", None, None),
    ]
    return _Rewriting(rv, {rv: less + of_mean, **dict.fromkeys(differences, less)}, new)


def _steps_of_walk(rv: Variable, model: pm.Model) -> _Rewriting | None:
    """Return the rewriting of a normal random walk as its start and its steps; None for other variables."""
    if not isinstance(rv.owner.op, RandomWalkRV) or rv.type.ndim != 1 or model.rvs_to_initial_values[rv] is not None:
        return None
    start, steps, _ = rv.owner.inputs
    if not all(isinstance(each.owner.op, families.NormalRV) for each in (start, steps)):
        return None
    new = [_New(start, "_start", None, None), _New(steps, "_steps", None, None)]
    return _Rewriting(rv, {rv: pt.cumsum(pt.concatenate([start, steps]))}, new)


def _rewritten(model: pm.Model, rewriting: _Rewriting, written: Collection[str]) -> pm.Model:
    """Return a model with new free variables in place of one; `written` are the names of the user's variables."""
    rv, replaced, new, transforms = rewriting
    data = set(model.data_vars)
    variables = [variable for variable in model.named_vars.values() if variable not in data]
    settings = {"copy_inputs": False, "copy_orphans": False, "strict": False}
    copy_of = clone_get_equiv([], list(replaced.values()), **settings)
    copy_of |= {variable: copy_of[by] for variable, by in replaced.items()}
    clone_get_equiv([], variables, memo=copy_of, **settings)
    found = pm.Model(model=None, check_bounds=model.check_bounds)
    found.coords.update(model.coords)
    found.dim_lengths.update(model.dim_lengths)
    made = {copy_of[each.variable] for each in new}
    for name, variable in model.named_vars.items():
        copy = copy_of.get(variable, variable)
        if copy in made:  # in models that PyMC copied, deterministics are the products themselves
            copy = copy.copy()
        if variable is not rv:
            add_copy(found, copy, model, variable, transforms.get(variable, model.rvs_to_transforms.get(variable)))
            start = model.rvs_to_initial_values.get(variable)
            if start is not None:
                found.set_initval(copy, start)
            continue
        for each in new:
            free = copy_of[each.variable]
            free.name = _unused_name(name, each.ending, written, {*found.named_vars, *model.named_vars} - {name})
            add_free(found, free, each.transform)
            found.add_named_variable(free, dims=each.dims)
        if name in written:  # `rv` is the user's own variable
            copy.name = name
            found.deterministics.append(copy)
            found.add_named_variable(copy, dims=model.named_vars_to_dims.get(name))
    return found


def _unused_name(name: str, ending: str, written: Collection[str], others: Collection[str]) -> str:
    """Return an unused name with an ending, which is not repeated."""
    name = name + ending if name in written else name.removesuffix(ending) + ending
    while name in written or name in others:
        name += "_"
    return name
