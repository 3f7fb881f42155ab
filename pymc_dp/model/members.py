r"""Members of hierarchies (group effects) in the coordinates in which NUTS draws them: standardised, given their scale.

The prior of a member :math:`\alpha \sim N(\mu, \tau^2)` has free variables as parameters. The spread of the members
follows :math:`\tau`, so that no step size suits small and large :math:`\tau`. Given :math:`\mu` and :math:`\tau` the
posterior of a member is normal, since the released likelihood of a member is normal too, :math:`N(m, 1 / p)`:

.. math:: \alpha = \frac{\mu + p \tau^2 m}{1 + p \tau^2} + \frac{\tau}{\sqrt{1 + p \tau^2}}\, z,
          \qquad z \sim N(0, 1).

For p = 0 this is the non-centred parametrisation, for large p the centred one. The distribution of `z` does not depend
on the scale. For other location-scale families the same coordinates are approximately standard normal. For entries of
normal vectors :math:`\tau` is the standard deviation in their covariance matrix.

References
----------
Papaspiliopoulos, Roberts and Sköld (2007), A general framework for the parametrization of hierarchical models,
Statistical Science 22.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.multivariate import ZeroSumNormalRV
from pymc.distributions.transforms import ZeroSumTransform
from pymc.logprob.transforms import ChainedTransform, Transform
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random import basic as families

from pymc_dp.compiling import INTERPRETED, compiled
from pymc_dp.model.parameters import FloatArray, ParameterVector
from pymc_dp.model.transforms import FromBound, Itself, from_unbounded, without_bounds

#: Location-scale families, closed under positive factors, whose last parameters are location and scale.
LOCATION_SCALE = tuple(getattr(families, f"{name}RV") for name in "Normal StudentT Laplace Cauchy Logistic".split())
#: The least distance of the centre of draws from a bound, in standard deviations.
_OFF_BOUNDS = 0.8


class GivenItsScale(Transform):
    """Transform members of a hierarchy to standardised values, given the mean and scale of their prior.

    Parameters
    ----------
    precision, mean : ndarray, of the shape of the variable
        Precision p and mean m of a normal likelihood of each entry.
    """

    name = "standardised"

    def __init__(self, precision: FloatArray, mean: FloatArray) -> None:
        self._precision, self._mean = precision, mean

    def _conditional(self, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return the conditional mean and standard deviation, given the prior's `inputs`."""
        prior_mean, scale = self._prior(inputs)
        ratio = self._precision * scale**2  # of the likelihood's precision to the prior's
        return (prior_mean + ratio * self._mean) / (1.0 + ratio), scale / pt.sqrt(1.0 + ratio)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the variable."""
        mean, std = self._conditional(inputs)
        return (mean + std * value).astype(value.dtype)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return its standardised value."""
        mean, std = self._conditional(inputs)
        return ((value - mean) / std).astype(value.dtype)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the derivative of `backward`, of the shape of the variable."""
        return pt.log(self._conditional(inputs)[1]) + pt.zeros_like(value)

    def _prior(self, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return mean and scale of the prior, which are the last two of its `inputs`."""
        mean, scale = inputs[-2:]
        return mean, scale


class _SumsOfZeroGivenTheirScale(GivenItsScale):
    """The same transform for zero-sum variables, in the coordinates of `ZeroSumTransform`, which are independent."""

    def _prior(self, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        return 0.0, inputs[-2]  # the last is the shape


class VectorsGivenTheirCovariance(GivenItsScale):
    """The same transform for normal vectors, entry by entry, with the diagonal of their prior's covariance matrix.

    With the whole matrix PyTensor compiles for half a minute instead of a second.
    """

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the logarithm of the determinant of the derivative of `backward`, for each vector."""
        return super().log_jac_det(value, *inputs).sum(axis=-1)

    def _prior(self, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        mean, covariance = inputs[-2:]
        return mean, pt.sqrt(pt.diagonal(covariance, axis1=-2, axis2=-1))


def standardising(
    model: pm.Model, parameters: ParameterVector, precision: FloatArray, mean: FloatArray
) -> dict[str, Transform]:
    """Return the transforms of a model's members, and of variables with bounds, by name.

    `precision` and `mean`, shape (parameters,), are those of the likelihood of each parameter given the others.
    """
    found = dict[str, Transform]()
    for rv, entries, shape in zip(model.free_RVs, parameters.slices, parameters.shapes.values(), strict=True):
        likelihood = precision[entries].reshape(shape), mean[entries].reshape(shape)
        first = model.rvs_to_transforms[rv]
        if isinstance(first, ZeroSumTransform) and isinstance(rv.owner.op, ZeroSumNormalRV):
            if _depends_on_others(rv.owner.inputs[-2], model):
                found[rv.name] = ChainedTransform([first, _SumsOfZeroGivenTheirScale(*likelihood)])
        elif first is None and _depends_on_others(rv.owner.inputs[-1], model):
            if isinstance(rv.owner.op, LOCATION_SCALE):
                found[rv.name] = GivenItsScale(*likelihood)
            elif isinstance(rv.owner.op, families.MvNormalRV):
                found[rv.name] = VectorsGivenTheirCovariance(*likelihood)
        elif isinstance(first, Itself) and -np.inf < first.lower < first.upper == np.inf and likelihood[0].all():
            found[rv.name] = ChainedTransform([first, FromBound(first.lower, likelihood[0] ** -0.5)])
    return without_bounds(model) | found


def _depends_on_others(parameter: Any, model: pm.Model) -> bool:
    """Return whether a parameter of a prior depends on free variables."""
    return not set(model.free_RVs).isdisjoint(ancestors([parameter]))


class Unstandardised:
    """The parameters of a model as a function of the parameters of the same model with standardised members.

    Parameters
    ----------
    model : pm.Model
        The standardised model.
    parameters : ParameterVector
        The parameters of either model: they differ in names only.

    Attributes
    ----------
    members : ndarray of bool, shape (parameters,)
        True for standardised parameters.
    """

    def __init__(self, model: pm.Model, parameters: ParameterVector) -> None:
        self._parameters = parameters
        transforms = [model.rvs_to_transforms[rv] for rv in model.free_RVs]
        last = [each.transform_list[-1] if isinstance(each, ChainedTransform) else each for each in transforms]
        standardisers = [
            each if isinstance(each, GivenItsScale) else from_unbounded(transform)
            for each, transform in zip(last, transforms, strict=True)
        ]
        lengths = [entries.stop - entries.start for entries in parameters.slices]
        self.members = np.repeat([isinstance(each, GivenItsScale) for each in standardisers], lengths)
        inputs = [rv.owner.inputs for rv in model.free_RVs]
        variables = zip(transforms, parameters.slices, parameters.shapes.values(), inputs, strict=True)
        #: Transforms, entries, shapes and prior's inputs of variables with bounds.
        self._bounded = [each for each in variables if from_unbounded(each[0]) is not None]
        values, cotangents = model.value_vars, [value.type() for value in model.value_vars]
        found, log_volume = [], pt.zeros(())
        for rv, value, standardiser in zip(model.free_RVs, values, standardisers, strict=True):
            found.append(value if standardiser is None else standardiser.backward(value, *rv.owner.inputs))
            if standardiser is not None:
                log_volume += pt.sum(standardiser.log_jac_det(value, *rv.owner.inputs))
        *found, log_volume = model.replace_rvs_by_values([*found, log_volume])
        # Its gradient is that of `log_volume` plus the vector-Jacobian product of the parameters with the cotangents.
        scalar = log_volume + sum(pt.sum(each * other) for each, other in zip(found, cotangents, strict=True))
        self._inputs, self._outputs = [*values, *cotangents], [log_volume, *found, *pt.grad(scalar, values)]

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        return compiled(self._inputs, self._outputs)

    def __call__(self, z: FloatArray, cotangent: FloatArray) -> tuple[FloatArray, float, FloatArray]:
        """Return the parameters at `z`, the log-determinant of their Jacobian, and a gradient with respect to `z`.

        It is the gradient of the log-determinant plus a function whose gradient with respect to the parameters is
        `cotangent`. Shapes: (parameters,).
        """
        log_volume, *blocks = self._function(*self._parameters.split(z), *self._parameters.split(cotangent))
        found = np.concatenate([np.ravel(block) for block in blocks]).astype(np.float64)
        return found[: z.size], float(log_volume), found[z.size :]

    def centre(self, mean: FloatArray, std: FloatArray) -> FloatArray:
        """Return about the centre of draws, given mean and standard deviation of parameters, shape (parameters,).

        It is zero for standardised members. A mean near a bound is moved away from it: half of a normal distribution
        has its mean at .8 standard deviations.
        """
        found = np.where(self.members, 0.0, mean)
        for transform, entries, shape, inputs in self._bounded:
            first, last = transform.transform_list
            off, (least, most) = _OFF_BOUNDS * std[entries], first.range
            within = np.clip(mean[entries], *np.sort([least + off, most - off], axis=0)).reshape(shape)
            with pytensor.config.change_flags(mode=INTERPRETED):
                found[entries] = np.ravel(last.forward(pt.constant(within), *inputs).eval())
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_function"}


def from_means_and_members(
    model: pm.Model, parameters: ParameterVector, in_likelihood: NDArray[np.bool_]
) -> FloatArray | None:
    """Return the matrix that maps deviations of members from their prior means to members; other parameters are kept.

    Shape (parameters, parameters): the identity, plus for each member the coefficients of its prior mean. None if no
    prior mean is linear in parameters that have no transform and are not `in_likelihood` themselves. Public: a function
    of the model alone.
    """
    everywhere = np.arange(parameters.size)
    places = {rv: everywhere[entries] for rv, entries in zip(model.free_RVs, parameters.slices, strict=True)}
    shapes = dict(zip(model.free_RVs, parameters.shapes.values(), strict=True))
    found = np.eye(parameters.size)
    for rv in model.free_RVs:
        is_normal = isinstance(rv.owner.op, families.NormalRV) and model.rvs_to_transforms[rv] is None
        if not (is_normal and in_likelihood[places[rv]].all() and _depends_on_others(rv.owner.inputs[-1], model)):
            continue
        mean = rv.owner.inputs[-2]
        above = set(ancestors([mean], blockers=model.free_RVs))
        of_mean = {other: shapes[other] for other in model.free_RVs if other in above}
        apart = [model.rvs_to_transforms[other] is None and not in_likelihood[places[other]].any() for other in of_mean]
        if of_mean and all(apart):
            others = np.concatenate([places[other] for other in of_mean])
            found[np.ix_(places[rv], others)] = _linear_part(mean, of_mean, shapes[rv])
    return found if np.any(found != np.eye(parameters.size)) else None


def _linear_part(mean: Any, of: dict[Any, tuple[int, ...]], shape: tuple[int, ...]) -> FloatArray:
    """Return the coefficients of a mean that is linear in the variables of `of`, or zeros if it is not linear."""
    ends = np.cumsum([0, *map(math.prod, of.values())])
    whole = pt.vector("whole", shape=(int(ends[-1]),), dtype="float64")
    parts = [
        whole[start:end].reshape(of_one).astype(rv.type.dtype)
        for (rv, of_one), start, end in zip(of.items(), ends[:-1], ends[1:], strict=True)
    ]
    (clone,) = clone_replace([mean], dict(zip(of, parts, strict=True)), rebuild_strict=False)
    function = pytensor.function([whole], clone, mode=INTERPRETED)  # called a few times: compiling takes longer

    def at(values: FloatArray) -> FloatArray:
        return np.broadcast_to(function(values), shape).ravel().astype(np.float64)

    zero, somewhere = at(np.zeros(ends[-1])), 7.0 * np.random.default_rng(0).normal(size=ends[-1])
    columns = np.stack([at(way) - zero for way in np.eye(ends[-1])], axis=1)
    is_linear = np.allclose(at(somewhere) - zero, columns @ somewhere, rtol=1e-6, atol=1e-9)
    return columns if is_linear else np.zeros_like(columns)
