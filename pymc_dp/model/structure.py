"""Facts of a model's graph and of the shapes of its data. No value of the rows is read."""

import contextlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import AsymmetricLaplaceRV, WaldRV, WeibullBetaRV
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.multivariate import MvStudentTRV
from pymc.distributions.transforms import CholeskyCovPacked, LogTransform
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Second, add, exp, identity, sub
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.random import basic as families
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, get_constant_idx

from pymc_dp.compiling import INTERPRETED
from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.arrays import is_leaf, leaf_value, undimmed
from pymc_dp.model.axes import row_axes
from pymc_dp.model.members import from_means_and_members
from pymc_dp.model.parameters import NO_BOUNDS, Bounds, FloatArray, ParameterVector, default_point
from pymc_dp.model.transforms import Itself, LogarithmOf

#: Categories beyond this number are not enumerated as possible responses: each takes a pass over the rows.
MOST_RESPONSES = 16
#: Location-scale families of the response or of its logarithm. The last parameter is the scale, unless listed below.
_LOCATION_SCALE = (
    *(getattr(families, f"{name}RV") for name in "Normal LogNormal StudentT Laplace Cauchy Logistic Gumbel".split()),
    AsymmetricLaplaceRV,
)
#: Families whose first parameter is the inverse scale. The logarithm of a Weibull variable is of a location-scale one.
_OF_INVERSE_SCALE = (AsymmetricLaplaceRV, WeibullBetaRV)
#: Families whose last parameters are the location, and an independent scale or scatter matrix.
_OF_LOCATION = (families.NormalRV, families.LogNormalRV, families.MvNormalRV, MvStudentTRV)
#: Families of positive numbers of which a search begins with the level. With inverse gamma distributions a quarter of
#: 12 searches at epsilon 1 failed with that start, and none without.
_POSITIVE = (families.GammaRV, families.ExponentialRV, families.HalfNormalRV, WaldRV, WeibullBetaRV)
#: Families of counts without an upper limit.
_OF_COUNTS = (families.PoissonRV, families.NegBinomialRV, families.GeometricRV)
#: Further families with known possible responses.
_POSITIVE_TOO = (families.InvGammaRV, families.ParetoRV)
#: Degrees of freedom at the start of a search. Steps lead from few to many, but hardly back: rows with normal tails
#: have no information on their number. Before the location is found, tails look normal.
_HEAVY_TAILS = 4.0
#: Grid that stands for all counts: eight for each octave from 32 on. Means over the grid are close to means over all
#: counts if the standard deviation is at least three fifths of the grid's spacing: for Poisson distributions up to a
#: mean of about 300, for wider ones, such as a negative binomial with a shape of 50 or less, at any mean.
_COUNTS = (*range(32), *(round(2.0 ** (k / 8)) for k in range(40, 137)))
#: The relative error of slopes in single precision.
_ROUNDING = 1e-4
#: Searches stay off bounds of priors by this part of the way to the start.
_MARGIN = 1e-3
#: Unconstrained values at which the logarithm of a scale is compared with a line.
_ON_A_LINE = np.array([-1.0, 0.0, 1.0, 2.5])
#: A grid of positive numbers: ten for each factor of e, from 1e-11 to 1e11. Means over it are as close as
#: those over the grid of counts if a response has a coefficient of variation of 8 % or more.
_POSITIVE_NUMBERS = tuple(np.exp(np.arange(-250, 251) / 10.0).tolist())


#: Sets of parameters: indices, or a mask.
Places = NDArray[np.intp]
Which = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Structure:
    """The facts of a model that steps have when they are made."""

    start: FloatArray  # the model's initial point; degrees of freedom without an initval are `_HEAVY_TAILS`
    known: Which  # parameters that the likelihood can depend on
    scales: Places  # those that are logarithms of positive variables, of factors of rows' scale, of rows' scatter
    #: Log-scales of the location-scale family of the rows, or log-shapes of gamma and Wald rows, among `scales`. The
    #: Fisher information on the location is proportional to this power of the scale or shape.
    followed: Places = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    power_of_followed: float = -2.0
    #: Log degrees of freedom of Student t rows, among `scales`.
    degrees_of_freedom: Places = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    #: The constant degrees of freedom of Student t rows with a linear location and a free scale, or the constant that
    #: is added to the free ones; NaN for other rows.
    constant_degrees: float = np.nan
    #: Parameters that only enter the location of normal rows, linearly.
    location: Which = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    normal: bool = False  # whether rows, or their logarithms, are normal with a linear mean
    rows_can_be_simulated: bool = False  # whether rows can be drawn from the model without any table
    responses_are_known: bool = True  # whether the model determines the possible responses of a row
    rows_are_levels: bool = False  # whether a row is one of a few levels: Boolean or categorical
    rows_are_discrete: bool = True  # whether possible responses are known, and are categories or counts
    rows_are_positive: bool = False  # whether a row is a positive real number
    #: Parameters that enter the distribution of rows only together with covariates; no scales.
    in_predictor: Which = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    #: Direction along which all linear predictors rise by 1; zero if the graph has none.
    rise: FloatArray = field(default_factory=lambda: np.zeros(0))
    #: Parameters in which the log-likelihood of a row is piecewise linear.
    kinked: Which = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    #: Coefficients of the parameters in the log-scale of censored rows; zero if rows are of no such family.
    scale_of_censored: FloatArray = field(default_factory=lambda: np.zeros(0))
    with_means_of_members: FloatArray | None = None  # see `from_means_and_members`
    #: The least and the largest values, a margin within the bounds of priors; infinite for none.
    bounds: Bounds = NO_BOUNDS

    def within(self, theta: FloatArray) -> FloatArray:
        """Return parameters, moved within the bounds of their priors."""
        return np.clip(theta, *self.bounds)


def structure_of(model: pm.Model, parameters: ParameterVector, unit: str | None = None) -> Structure:
    """Return the facts of a model and its parameters that steps may have; `unit` may name the dim that counts rows."""
    start, known = parameters.to_theta(default_point(model)), in_likelihood(model, parameters)
    bounds = bounds_of_parameters(model, parameters, start)
    degrees_of_freedom = degrees_of_freedom_of_rows(model, parameters)
    given = _which(model, parameters, [rv for rv, at in model.rvs_to_initial_values.items() if at is not None])
    start[degrees_of_freedom & ~given] = np.log(_HEAVY_TAILS)
    responses = responses_of_rows(model)
    scales, (followed, power) = all_scales(model, parameters), scales_of_information(model, parameters)
    return Structure(
        start=np.clip(start, *bounds),
        known=known,
        scales=np.flatnonzero(scales & known),
        followed=np.flatnonzero(followed),
        power_of_followed=power,
        degrees_of_freedom=np.flatnonzero(degrees_of_freedom),
        constant_degrees=constant_degrees_of_rows(model),
        location=location_of_normal_rows(model, parameters),
        normal=is_linear_and_normal(model),
        rows_can_be_simulated=rows_can_be_simulated(model, unit),
        responses_are_known=bool(responses.values),
        rows_are_levels=responses.are_all,
        rows_are_discrete=bool(responses.values) and responses.are_whole,
        rows_are_positive=rows_are_positive(model),
        in_predictor=in_predictor(model, parameters) & ~scales,
        rise=rise_of_predictors(model, parameters),
        kinked=kinked_in(model, parameters),
        scale_of_censored=scale_of_censored_rows(model, parameters),
        with_means_of_members=from_means_and_members(model, parameters, known),
        bounds=bounds,
    )


def bounds_of_parameters(model: pm.Model, parameters: ParameterVector, start: FloatArray) -> Bounds:
    """Return the least and the largest values of parameters with bounds, a part of the way to the start within."""
    lowest, highest = np.full(parameters.size, -np.inf), np.full(parameters.size, np.inf)
    for value, entries in zip(model.value_vars, parameters.slices, strict=True):
        transform = model.rvs_to_transforms[model.values_to_rvs[value]]
        if isinstance(transform, LogarithmOf | Itself):
            for ends, end in zip((lowest, highest), transform.range, strict=True):
                if np.isfinite(end):
                    ends[entries] = end + _MARGIN * (start[entries] - end)
    return lowest, highest


def rows_can_be_simulated(model: pm.Model, unit: str | None = None) -> bool:
    """Return whether rows can be drawn without any table: the model has no covariates, groups or custom distributions.

    `unit` may name the dim of the rows. An array with another dim is no table, even if it has the same length.
    """
    if not model.observed_RVs or model.potentials:
        return False
    if any(rv.owner is None or isinstance(rv.owner.op, CustomDistRV) for rv in model.observed_RVs):
        return False
    dims = {name for rv in model.observed_RVs for name in model.named_vars_to_dims.get(rv.name) or ()}
    try:
        rows = row_axes(model, unit if unit in dims else None)
        for rv in model.observed_RVs:
            rows.of_so_many_rows(rv, 2)
        return rows.of_inputs.keys().isdisjoint(_with_values(model.observed_RVs, model.free_RVs))
    except UnsupportedModel:
        return False


def in_likelihood(model: pm.Model, parameters: ParameterVector) -> Which:
    """Return a mask of the parameters that the likelihood can depend on, shape (parameters,)."""
    return _which(model, parameters, ancestors([*model.observed_RVs, *model.potentials], blockers=model.free_RVs))


def all_scales(model: pm.Model, parameters: ParameterVector) -> Which:
    """Return a mask of logarithms of positive variables (scales, shapes) and of factors of the scale of all rows.

    Such a factor is exp(a) in ``sigma=exp(a + b * x)``, or the diagonal of a Cholesky factor of the rows' scatter.
    """
    return _logarithms(model, parameters) | _which(model, parameters, _factors_of_scale(model))


def _logarithms(model: pm.Model, parameters: ParameterVector) -> Which:
    """Return a mask of logarithms of positive variables, and of diagonals of Cholesky factors of the rows' scatter."""
    transforms = model.rvs_to_transforms
    found = _which(model, parameters, [rv for rv, each in transforms.items() if isinstance(each, LogTransform)])
    nodes = [rv.owner for rv in model.observed_RVs if rv.owner is not None and isinstance(rv.owner.op, _OF_LOCATION)]
    scatters = set(ancestors([node.op.dist_params(node)[-1] for node in nodes], blockers=model.free_RVs))
    for value, entries in zip(model.value_vars, parameters.slices, strict=True):
        rv = model.values_to_rvs[value]
        if rv in scatters and isinstance(transforms.get(rv), CholeskyCovPacked):
            (size, *_) = rv.owner.op.dist_params(rv.owner)
            rows, columns = np.tril_indices(int(leaf_value(size)))  # the factor is packed by rows
            found[entries] = np.resize(rows == columns, entries.stop - entries.start)
    return found


def _factors_of_scale(model: pm.Model) -> set[Variable]:
    """Return free scalars that are terms of the log-scale of all rows, or alone determine it."""
    node = _node_of_rows(model, *_LOCATION_SCALE)
    if node is None:
        return set()
    found: set[Variable] = set()
    scale = undimmed(_scale_of(node))
    alone, _ = slope_of_log_scale(model, scale)
    if alone is not None:
        return {alone}
    if scale.owner is None or getattr(scale.owner.op, "scalar_op", None) != exp:
        return set()
    ahead = list(scale.owner.inputs)
    while ahead:
        variable = undimmed(ahead.pop())
        if variable in model.free_RVs:
            found |= {variable} if variable.type.ndim == 0 else set()
        elif variable.owner is not None and getattr(variable.owner.op, "scalar_op", None) == add:
            ahead += variable.owner.inputs
    return found


def _node_of_rows(model: pm.Model, *families_of_rows: type) -> Apply | None:
    """Return the node of the only observed variable, if its family is one of `families_of_rows` (default: any)."""
    node = model.observed_RVs[0].owner if len(model.observed_RVs) == 1 else None
    return node if node is not None and isinstance(node.op, families_of_rows or object) else None


def _scale_of(node: Apply) -> Variable:
    """Return the scale parameter of a location-scale family, or the inverse scale for `_OF_INVERSE_SCALE`."""
    parameters: list[Variable] = node.op.dist_params(node)
    return parameters[0] if isinstance(node.op, _OF_INVERSE_SCALE) else parameters[-1]


def _location_and_others(node: Apply) -> tuple[Variable, list[Variable]]:
    """Return the location parameter of a location-scale family, and its other parameters."""
    parameters = list(node.op.dist_params(node))
    return parameters.pop(-1 if isinstance(node.op, AsymmetricLaplaceRV) else -2), parameters


def _which(model: pm.Model, parameters: ParameterVector, variables: Iterable[Variable]) -> Which:
    """Return a mask of the parameters of the free variables among `variables`, shape (parameters,)."""
    found, among = np.zeros(parameters.size, dtype=bool), set(variables)
    for value, entries in zip(model.value_vars, parameters.slices, strict=True):
        found[entries] = model.values_to_rvs[value] in among
    return found


def scales_of_information(model: pm.Model, parameters: ParameterVector) -> tuple[Which, float]:
    """Return a mask of log-scales or log-shapes of rows, and a power of the scale or shape.

    The Fisher information on the location of rows, which is the mean of gamma and Wald rows, is proportional to it.
    """
    if shapes := shapes_of_rows(model):
        return _which(model, parameters, shapes), 1.0
    power = 2.0 if scale_is_rate(model) else -2.0
    node = _node_of_rows(model, *_LOCATION_SCALE)
    slope = 1.0 if node is None else slope_of_log_scale(model, _scale_of(node))[1]
    return scale_of_rows(model, parameters), power if np.isnan(slope) else power * slope


def scales_and_shapes(model: pm.Model) -> tuple[set[Variable], dict[Variable, float] | None]:
    """Return the free variables of scales and shapes of rows alone, and for a location-scale family their slopes.

    The slope is that of the log-scale by the unconstrained value, of one variable that alone determines the scale.
    Variables with covariates, or of the location of a location-scale family, are no shapes. Of other families,
    variables of rows without covariates are shapes if the rows are positive or counts.
    """
    node = _node_of_rows(model)
    if node is None:
        return set(), None
    free = {rv for each in node.inputs for rv in _reached(each, model.free_RVs)}
    if isinstance(node.op, _LOCATION_SCALE):
        rv, slope = slope_of_log_scale(model, _scale_of(node))
        return free - _reached(_location_and_others(node)[0], model.free_RVs), {} if rv is None else {rv: slope}
    predictors = _predictors(model)
    if not predictors and not isinstance(node.op, (*_POSITIVE, *_POSITIVE_TOO, *_OF_COUNTS)):
        return set(), None
    return free - {rv for _, of_rows in predictors for rv in of_rows}, None


def slope_of_log_scale(model: pm.Model, scale: Variable) -> tuple[Variable | None, float]:
    """Return the free scalar that alone determines a scale, and the slope of the log-scale by its unconstrained value.

    The variable is None if there is no such variable, or if the log-scale is not linear in that value. Constants of the
    scale are read if they are single numbers; other arrays may be rows.
    """
    scale, none = undimmed(scale), (None, np.nan)
    inputs = [each for each in ancestors([scale], blockers=model.free_RVs) if each.owner is None]
    if scale.type.ndim or any(not isinstance(each, Constant) or _shape(each) for each in {*inputs} - {*model.free_RVs}):
        return none
    free = _reached(scale, model.free_RVs)
    if len(free) != 1:
        return none
    rv = free.pop()
    transform = model.rvs_to_transforms[rv]
    if rv.type.ndim or not set(model.free_RVs).isdisjoint(ancestors(rv.owner.inputs)):
        return none
    value = rv.type()
    of_value = value if transform is None else transform.backward(value, *rv.owner.inputs)
    with pytensor.config.change_flags(mode=INTERPRETED), np.errstate(all="ignore"):
        (log_scale,) = clone_replace([pt.log(scale)], {rv: of_value}, rebuild_strict=False)
        logs = [float(log_scale.eval({value: at})) for at in _ON_A_LINE.astype(rv.type.dtype)]
    slopes = np.diff(logs) / np.diff(_ON_A_LINE)
    if slopes[0] == 0.0 or not np.allclose(slopes, slopes[0], rtol=_ROUNDING, atol=0.0):
        return none
    return rv, 1.0 if abs(slopes[0] - 1.0) < _ROUNDING else float(slopes[0])


def shapes_of_rows(model: pm.Model) -> set[Variable]:
    """Return the positive free scalars that are factors of the shape of gamma or Wald rows, and not in their mean."""
    node = _node_of_rows(model, families.GammaRV, WaldRV)
    if node is None:
        return set()
    first, second, *_ = node.op.dist_params(node)
    mean, shape = (first, second) if isinstance(node.op, WaldRV) else (first * second, first)
    scalars = [
        rv for rv in model.free_RVs if isinstance(model.rvs_to_transforms[rv], LogTransform) and not rv.type.ndim
    ]
    inputs, found = {rv: rv.type() for rv in model.free_RVs}, set()
    for rv in scalars:
        of_inputs = _with_other_arrays(clone_replace([mean, shape / rv], inputs))
        with pytensor.config.change_flags(mode=INTERPRETED):
            simplified = rewrite_graph(of_inputs, include=("canonicalize",))
        if inputs[rv] not in _with_values(simplified):
            found.add(rv)
    return found


def scale_of_rows(model: pm.Model, parameters: ParameterVector, *, symmetric: bool = False) -> Which:
    """Return a mask of the parameters of the log-scale, if rows are of a location-scale family.

    The Fisher information on the location is proportional to the inverse square of the scale. If `symmetric`, only
    families that are symmetric around their location (or whose logarithms are) count, and only scales that the location
    does not depend on.
    """
    node = _node_of_rows(model, *_LOCATION_SCALE)
    if node is None or (symmetric and isinstance(node.op, families.GumbelRV | AsymmetricLaplaceRV)):
        return np.zeros(parameters.size, dtype=bool)
    scale = _scale_of(node)
    reached = set(ancestors([scale], blockers=model.free_RVs))
    if symmetric:
        reached -= set(ancestors([each for each in node.op.dist_params(node) if each is not scale]))
    scales = _logarithms(model, parameters) if symmetric else all_scales(model, parameters)
    return scales & _which(model, parameters, reached)


def scale_is_rate(model: pm.Model) -> bool:
    """Return whether rows are asymmetric Laplace, and their inverse scale is a free variable or an exponential."""
    node = _node_of_rows(model, AsymmetricLaplaceRV)
    if node is None:
        return False
    return undimmed(_scale_of(node)) in model.free_RVs or bool(_factors_of_scale(model))


def degrees_of_freedom_of_rows(model: pm.Model, parameters: ParameterVector) -> Which:
    """Return a mask of the logarithms of the degrees of freedom of Student t rows, or of their sum with a constant."""
    node = _node_of_rows(model, families.StudentTRV)
    if node is None:
        return np.zeros(parameters.size, dtype=bool)
    free, _ = _free_and_constant(model, node.op.dist_params(node)[0])
    return _logarithms(model, parameters) & _which(model, parameters, free)


def _free_and_constant(model: pm.Model, variable: Variable) -> tuple[list[Variable], float]:
    """Return the free variable of a sum with scalar constants, if any, and their sum; NaN for anything else."""
    terms, free, constant = [variable], list[Variable](), 0.0
    while terms:
        term = undimmed(terms.pop())
        if term in model.free_RVs:
            free.append(term)
        elif isinstance(term, Constant) and term.type.ndim == 0:
            constant += float(leaf_value(term))
        elif term.owner is not None and getattr(term.owner.op, "scalar_op", None) in (add, identity):
            terms += term.owner.inputs
        else:
            return [], np.nan
    return (free, constant) if len(free) <= 1 else ([], np.nan)


def constant_degrees_of_rows(model: pm.Model) -> float:
    """Return the constant part of the degrees of freedom of Student t rows; NaN for other rows.

    Rows whose location is not linear, or depends on the scale or the degrees of freedom, and rows without a free scale
    count as others.
    """
    node = _node_of_rows(model, families.StudentTRV)
    if node is None or model.potentials or model.observed_RVs[0].type.ndim != 1:
        return np.nan
    degrees, location, scale = node.op.dist_params(node)
    free, constant = _free_and_constant(model, degrees)
    found, slope = slope_of_log_scale(model, scale)
    linear = slope == 1.0 and not {found, *free} & set(ancestors([location])) and is_linear(model, location)
    return constant if linear and found not in free else np.nan


def location_of_normal_rows(model: pm.Model, parameters: ParameterVector) -> Which:
    """Return a mask of the parameters that enter the location of rows linearly, and nothing else, shape (parameters,).

    Rows, or their logarithms, are normal, univariate or multivariate, or multivariate Student t.
    """
    apart, elsewhere = set[Variable](), list[Variable](model.potentials)
    for rv in model.observed_RVs:
        if rv.owner is None or not isinstance(rv.owner.op, _OF_LOCATION):
            elsewhere.append(rv)
            continue
        *shape, location, scale = rv.owner.op.dist_params(rv.owner)
        elsewhere += [*shape, scale]
        if is_linear(model, location):
            apart |= _reached(location, model.free_RVs)
        else:
            elsewhere.append(location)
    others = {rv for each in elsewhere for rv in _reached(each, model.free_RVs)}
    # Log-scale parameters are left out: a location that is linear in a positive variable is not in its logarithm.
    return _which(model, parameters, apart - others) & ~all_scales(model, parameters)


def is_linear_and_normal(model: pm.Model) -> bool:
    """Return whether rows, or their logarithms, are normal with a linear mean and a free variable as their scale.

    The mean is a linear function of the unconstrained parameters, and does not depend on the scale.
    """
    if scale_of_normal_rows(model) is None or model.potentials:
        return False
    mean, _ = model.observed_RVs[0].owner.op.dist_params(model.observed_RVs[0].owner)
    return is_linear(model, mean)


def is_linear(model: pm.Model, location: Variable) -> bool:
    """Return whether a variable is a linear function of the unconstrained parameters."""
    (of_values,) = model.replace_rvs_by_values([location])
    return _is_linear_in(model.value_vars, of_values)


def coefficients(model: pm.Model) -> set[Variable]:
    """Return the free variables in the location or the linear predictor of rows, and in no other part of the model.

    The set is empty if the location or the predictor is not linear in all of its free variables, and for censored rows:
    the location of these is searched in units of their scale.
    """
    node = _node_of_rows(model)
    if node is None or model.potentials or isinstance(node.op, CensoredRV):
        return set()
    if isinstance(node.op, _LOCATION_SCALE):
        location, others = _location_and_others(node)
        sums, apart = {location}, {rv for each in others for rv in _reached(each, model.free_RVs)}
    else:
        sums = {each for given, free in _predictors(model) for each in _sums_with_covariates(given, free)}
        apart, _ = scales_and_shapes(model)
    found = {rv for each in sums for rv in _reached(each, model.free_RVs)}
    elsewhere = apart.union(ancestors([each for rv in model.free_RVs for each in rv.owner.inputs]))
    stand_ins = {rv: rv.type() for rv in found}
    for each in clone_replace([*sums], stand_ins):
        if not _is_linear_in(list(stand_ins.values()), each):
            return set()
    return found - elsewhere


def _is_linear_in(variables: Sequence[Variable], location: Variable) -> bool:
    """Return whether a variable is a linear function of others."""
    inputs = [value for value in variables if value.type.dtype in ("float32", "float64")]
    with pytensor.config.change_flags(mode=INTERPRETED):
        (of_values,) = _with_other_arrays([location])
        try:
            slopes = pt.grad(of_values.sum(), inputs, disconnected_inputs="ignore")
        except (NotImplementedError, TypeError, ValueError):  # operations without a gradient
            return False
        slopes = rewrite_graph(slopes, include=("canonicalize",))
    return not set(inputs) & _with_values(slopes)


def _with_other_arrays(outputs: list[Variable]) -> list[Variable]:
    """Return outputs with inputs in the place of constant arrays: rewriting reads constants."""
    arrays = [leaf for leaf in ancestors(outputs) if isinstance(leaf, Constant) and _shape(leaf)]
    return list(clone_replace(outputs, {leaf: leaf.type() for leaf in arrays}))


def scale_of_normal_rows(model: pm.Model) -> Variable | None:
    """Return the variable whose unconstrained value is the log-scale of normal or log-normal rows, up to a constant.

    None if there is no such free variable, or if the mean depends on it.
    """
    node = _node_of_rows(model, families.NormalRV, families.LogNormalRV)
    if node is None:
        return None
    mean, scale = node.op.dist_params(node)
    found, slope = slope_of_log_scale(model, scale)
    return found if slope == 1.0 and found not in ancestors([mean]) else None


def _with_values(outputs: list[Variable], blockers: Collection[Variable] = ()) -> set[Variable]:
    """Return all variables on whose values, and not only shapes, outputs depend; `blockers` end the search."""
    found: set[Variable] = set()
    ahead = list(outputs)
    while ahead:
        variable = ahead.pop()
        if variable in found:
            continue
        found.add(variable)
        node = variable.owner
        if node is None or variable in blockers or isinstance(node.op, Shape | Shape_i):
            continue
        filled = isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Second)  # the first gives a shape
        ahead += node.inputs[1:] if filled else node.inputs
    return found


def rows_are_positive(model: pm.Model) -> bool:
    """Return whether rows are drawn from a family of positive real numbers, censored or not."""
    censored = _node_of_censored_rows(model)
    if censored is not None:
        return isinstance(censored.op, (*_POSITIVE, families.LogNormalRV))
    return _node_of_rows(model, *_POSITIVE) is not None


def scale_of_censored_rows(model: pm.Model, parameters: ParameterVector) -> FloatArray:
    """Return the coefficients of the parameters in the log-scale of censored rows, shape (parameters,).

    The coefficient is 1 for the logarithm of a free variable that is the scale of a location-scale family of the rows
    or of their logarithms, and -1 if it is the inverse scale, such as the shape of a Weibull distribution. All are zero
    if the location depends on the scale, too, as in models of hazards, and if rows are censored on both sides, which
    identifies the scale.
    """
    found, node = np.zeros(parameters.size), _node_of_censored_rows(model)
    # An infinite constant as a limit: rows are censored on one side only. No array is read.
    limits = () if node is None else map(undimmed, model.observed_RVs[0].owner.inputs[1:3])
    scalars = [each for each in limits if isinstance(each, Constant) and each.type.ndim == 0]
    one_sided = any(bool(np.isinf(leaf_value(each))) for each in scalars)
    if node is not None and one_sided and isinstance(node.op, _LOCATION_SCALE + _OF_INVERSE_SCALE):
        given = _scale_of(node)
        scale, others = undimmed(given), [each for each in node.inputs if each is not given]
        if scale in model.free_RVs and scale.type.ndim == 0 and scale not in ancestors(others):
            sign = -1.0 if isinstance(node.op, _OF_INVERSE_SCALE) else 1.0
            found[_which(model, parameters, [scale]) & _logarithms(model, parameters)] = sign
    return found


def _node_of_censored_rows(model: pm.Model) -> Apply | None:
    """Return the node of the rows before censoring; None if they are not censored."""
    node = _node_of_rows(model, CensoredRV)
    return None if node is None else node.inputs[0].owner


def in_predictor(model: pm.Model, parameters: ParameterVector) -> Which:
    """Return a mask of the parameters that enter the rows' distribution only where covariates do, shape (parameters,).

    A shape parameter, or a proportion of zeros without covariates, is not among them. The mask is empty without
    covariates, and if different parameters are combined with covariates in several parameters of the distribution. Any
    array counts as covariates: the number of rows is not used.
    """
    return _which(model, parameters, {rv for _, free in _predictors(model) for rv in free})


def rise_of_predictors(model: pm.Model, parameters: ParameterVector) -> FloatArray:
    """Return a direction along which the linear predictor of every row rises by 1, shape (parameters,).

    The direction is that of an intercept: a free scalar or an entry of a free vector that is one term of the predictor,
    and in no other, or else a free vector of which each row adds one entry. Zero if the graph shows no intercept, such
    as with a column of ones.
    """
    predictors, first = _predictors(model), list[Variable]()
    sums = set[Variable]()
    for given, free in predictors:
        sums |= _sums_with_covariates(given, free)
    if len(sums) == 1:
        intercepts = [
            each
            for each in _intercepts(sums.pop(), predictors[0][1])
            if isinstance(model.rvs_to_transforms.get(_chosen(each)[0]), Itself | None)
        ]
        first = sorted(intercepts, key=lambda each: each.type.ndim)[:1]
    rise = _which(model, parameters, [_chosen(each)[0] for each in first]).astype(np.float64)
    for each in first:
        rise[rise == 1.0] = _chosen(each)[1]
    return rise


def _sums_with_covariates(given: Variable, free: set[Variable]) -> set[Variable]:
    """Return the sums in which `free` variables and covariates enter `given`, a parameter of the rows' distribution."""
    found, seen, ahead = set[Variable](), set[Variable](), [given]
    while ahead:
        variable = undimmed(ahead.pop())
        if variable in seen or not (_reached(variable, free) and _has_covariates(variable, free)):
            continue
        seen.add(variable)
        node = variable.owner
        through = isinstance(node.op, Elemwise | RandomVariable | SymbolicRandomVariable)  # the last: mixtures
        only_offset = sum(bool(_reached(each, free)) for each in node.inputs) == 1
        if not through or (getattr(node.op, "scalar_op", None) in (add, sub) and not only_offset):
            found.add(variable)
        else:
            ahead += node.inputs
    return found


def _intercepts(predictor: Variable, free: set[Variable]) -> list[Variable]:
    """Return free scalars and entries of free vectors that are terms of a sum, and vectors with a term for each row.

    Variables and entries in further terms are left out, since the sum then does not rise by 1.
    """
    terms, seen, ahead = list[tuple[Variable, bool, bool]](), set[Variable](), [(predictor, True, False)]
    while ahead:
        variable, added, one_entry = ahead.pop()
        variable = undimmed(variable)
        node = variable.owner
        if node is None or variable in seen or _chosen(variable)[0] in free:
            terms.append((variable, added, one_entry))
            continue
        seen.add(variable)
        scalar_op = getattr(node.op, "scalar_op", None)
        if scalar_op in (add, identity):  # PyMC names a variable by an identity
            ahead += [(each, added, one_entry) for each in node.inputs]
        elif scalar_op == sub:
            ahead += [(node.inputs[0], added, one_entry), (node.inputs[1], False, one_entry)]
        elif isinstance(node.op, AdvancedSubtensor) and [each.type.ndim for each in node.inputs] == [1, 1]:
            ahead.append((node.inputs[0], added, True))
        else:
            terms.append((variable, added, one_entry))
    return [
        term
        for term, added, one_entry in terms
        if added
        and _chosen(term)[0] in free
        and term.type.ndim <= int(one_entry)
        and sum(_reaches(each, term) for each, _, _ in terms) == 1
    ]


def _chosen(variable: Variable) -> tuple[Variable, Which]:
    """Return the vector of which a variable is a slice with constant ends, and the entries; else itself and all."""
    node = variable.owner
    if node is not None and isinstance(node.op, Subtensor) and node.inputs[0].type.ndim == 1:
        vector, length = node.inputs[0], node.inputs[0].type.shape[0]
        with contextlib.suppress(NotScalarConstantError):
            index = get_constant_idx(node.op.idx_list, node.inputs, only_process_constants=True)
            if length is not None:
                return vector, np.isin(np.arange(length), np.arange(length)[tuple(index)])
    return variable, np.ones((), dtype=np.bool_)


def _reaches(term: Variable, variable: Variable) -> bool:
    """Return whether a term depends on a variable, or on the entry of a vector that it is."""
    vector, entry = _chosen(variable)
    others = [each for each in ancestors([term]) if _chosen(each)[0] is vector and not (entry & _chosen(each)[1]).any()]
    return vector in ancestors([term], blockers=others)


def _reached(variable: Variable, free: Collection[Variable]) -> set[Variable]:
    """Return the free variables that a variable depends on directly, not through others of them."""
    return set(free).intersection(ancestors([variable], blockers=free))


def _predictors(model: pm.Model) -> list[tuple[Variable, set[Variable]]]:
    """Return parameters with covariates of the rows' distribution and its components, and their free variables.

    Free variables that are also in parameters without covariates are left out. Empty without covariates, and if several
    such parameters have different free variables.
    """
    node = _node_of_rows(model)
    if node is None:
        return []
    with_covariates, alone = list[tuple[Variable, set[Variable]]](), set[Variable]()
    ahead = [*node.inputs]
    while ahead:
        given = ahead.pop()
        component = given.owner is not None and given not in model.free_RVs
        if component and isinstance(given.owner.op, RandomVariable | SymbolicRandomVariable):
            ahead += given.owner.inputs
            continue
        free = _reached(given, model.free_RVs)
        if _has_covariates(given, model.free_RVs):
            with_covariates += [(given, free)] if free else []
        else:
            alone |= free
    predictors = [(given, free - alone) for given, free in with_covariates]
    return predictors if all(free == predictors[0][1] for _, free in predictors) else []


def _has_covariates(variable: Variable, free: Collection[Variable]) -> bool:
    """Return whether a variable depends on an array, other than through free variables."""
    reached = ancestors([variable], blockers=free)
    return any(math.prod(_shape(leaf)) > 1 for leaf in reached if leaf.owner is None)


def kinked_in(model: pm.Model, parameters: ParameterVector) -> Which:
    """Return a mask of the parameters in which the log-likelihood of a row is piecewise linear, shape (parameters,).

    They are those of the location of a Laplace distribution, or of an asymmetric one, as in quantile regression: second
    derivatives are zero except at the kink.
    """
    node, location = _node_of_rows(model, families.LaplaceRV, AsymmetricLaplaceRV), list[Variable]()
    if node is not None:
        location = [_location_and_others(node)[0]]
    return _which(model, parameters, ancestors(location, blockers=model.free_RVs))


class ResponsesOfRows(NamedTuple):
    """The possible responses of a row, in increasing order; none if they are not known."""

    values: tuple[float, ...] = ()
    are_all: bool = False  # False: a grid of infinitely many
    are_whole: bool = True  # integers


def responses_of_rows(model: pm.Model) -> ResponsesOfRows:
    """Return the possible responses of a row: all of few categories; for counts and positive numbers a grid."""
    if len(model.observed_RVs) != 1 or model.potentials:
        return ResponsesOfRows()
    rv = model.observed_RVs[0]
    if rv.owner is None or isinstance(rv.owner.op, CustomDistRV) or rv.type.ndim != 1:
        return ResponsesOfRows()
    op = rv.owner.op
    if isinstance(op, families.BernoulliRV):
        return ResponsesOfRows((0, 1), are_all=True)
    if isinstance(op, families.CategoricalRV):
        count = length_of_last_axis(model, *op.dist_params(rv.owner))
        return ResponsesOfRows(tuple(range(count)), are_all=True) if count <= MOST_RESPONSES else ResponsesOfRows()
    if getattr(op, "ndim_supp", 0) == 0 and np.issubdtype(np.dtype(rv.type.dtype), np.integer):
        return ResponsesOfRows(_COUNTS)
    if isinstance(op, (*_POSITIVE, *_POSITIVE_TOO)):
        return ResponsesOfRows(_POSITIVE_NUMBERS, are_whole=False)
    return ResponsesOfRows()


def length_of_last_axis(model: pm.Model, probabilities: Variable) -> int:
    """Return the length of the last axis, computed from shapes."""
    known = probabilities.type.shape[-1]
    if known is not None:
        return int(known)
    (of_values,) = model.replace_rvs_by_values([probabilities])
    with pytensor.config.change_flags(mode=INTERPRETED):
        length = model.compile_fn(of_values.shape[-1], inputs=model.value_vars, on_unused_input="ignore")
        with np.errstate(all="ignore"):  # an operation without known shape is evaluated: a warning would show an entry
            return int(length(model.initial_point(random_seed=0)))


def _shape(leaf: Variable) -> tuple[int, ...]:
    """Return the shape of a leaf with a value, and () for other variables."""
    return leaf_value(leaf).shape if is_leaf(leaf) else ()
