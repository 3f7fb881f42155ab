r"""Members of hierarchies, as NUTS draws them: standardised, given the scale of their prior.

The prior of a member :math:`\alpha \sim N(\mu, \tau^2)` has parameters that are free variables themselves. Where
:math:`\tau` is small the members lie close together, where it is large they do not: no step size suits both. Given
:math:`\mu` and :math:`\tau` a member is normal, for so is the released likelihood, :math:`N(m, 1 / p)` of one member:

.. math:: \alpha = \frac{\mu + p \tau^2 m}{1 + p \tau^2} + \frac{\tau}{\sqrt{1 + p \tau^2}}\, z,
          \qquad z \sim N(0, 1).

For p = 0 that is the non-centred parametrisation, for large p the centred one. Draws of `z` have the same shape
whatever the scale is. Of other families with a location and a scale the same coordinates are about standard normal, and
entries of normal vectors have the standard deviations of their covariance matrix.

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

#: Families whose last parameters are location and scale, and which a positive factor leaves in the family.
LOCATION_SCALE = tuple(getattr(families, f"{name}RV") for name in "Normal StudentT Laplace Cauchy Logistic".split())


class GivenItsScale(Transform):
    """From members of a hierarchy to their standardised values, given their prior's mean and scale and a likelihood.

    Parameters
    ----------
    precision, mean : ndarray, of the shape of the variable
        Of a normal likelihood of each entry: p and m.
    """

    name = "standardised"

    def __init__(self, precision: FloatArray, mean: FloatArray) -> None:
        self._precision, self._mean = precision, mean

    def _conditional(self, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return mean and standard deviation given the prior's `inputs`."""
        prior_mean, scale = self._prior(inputs)
        told = self._precision * scale**2
        return (prior_mean + told * self._mean) / (1.0 + told), scale / pt.sqrt(1.0 + told)

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
    """The same of variables whose sum is zero, in the coordinates of `ZeroSumTransform`: as many normal ones."""

    def _prior(self, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        return 0.0, inputs[-2]  # the last is the shape


class VectorsGivenTheirCovariance(GivenItsScale):
    """The same of normal vectors, one entry by the other: by the diagonal of the covariance matrix of their prior.

    With the matrix itself PyTensor takes half a minute to compile what is a second's work here.
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
    """Return the transforms of a model's members by name.

    `precision` and `mean`, shape (parameters,), are those of the likelihood of each of `parameters` given the others.
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
    return found


def _standardiser_in(transform: Transform | None) -> GivenItsScale | None:
    """Return the part of a variable's transform that standardises it; None where nothing does."""
    last = transform.transform_list[-1] if isinstance(transform, ChainedTransform) else transform
    return last if isinstance(last, GivenItsScale) else None


def _depends_on_others(parameter: Any, model: pm.Model) -> bool:
    """Return whether a parameter of a prior depends on free variables."""
    return not set(model.free_RVs).isdisjoint(ancestors([parameter]))


class Unstandardised:
    """The parameters of a model as functions of those of the same model with standardised members.

    Parameters
    ----------
    model : pm.Model
        The standardised model.
    parameters : ParameterVector
        Of either model: names apart, they are the same.

    Attributes
    ----------
    members : ndarray of bool, shape (parameters,)
        Which parameters are standardised.
    """

    def __init__(self, model: pm.Model, parameters: ParameterVector) -> None:
        self._parameters = parameters
        changes = [_standardiser_in(model.rvs_to_transforms[rv]) for rv in model.free_RVs]
        self.members = np.repeat(
            [change is not None for change in changes], [entries.stop - entries.start for entries in parameters.slices]
        )
        values, pulls = model.value_vars, [value.type() for value in model.value_vars]
        found, log_volume = [], pt.zeros(())
        for rv, value, change in zip(model.free_RVs, values, changes, strict=True):
            found.append(value if change is None else change.backward(value, *rv.owner.inputs))
            if change is not None:
                log_volume += pt.sum(change.log_jac_det(value, *rv.owner.inputs))
        *found, log_volume = model.replace_rvs_by_values([*found, log_volume])
        pulled = log_volume + sum(pt.sum(each * pull) for each, pull in zip(found, pulls, strict=True))
        gradient = pt.grad(pulled, values)
        self._inputs, self._outputs = [*values, *pulls], [log_volume, *found, *gradient]

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        return compiled(self._inputs, self._outputs)

    def __call__(self, z: FloatArray, pull: FloatArray) -> tuple[FloatArray, float, FloatArray]:
        """Return the parameters at `z`, the logarithm of the derivative's determinant, and a gradient by `z`.

        The gradient is that of this logarithm plus a function whose gradient by the parameters is `pull`. Shapes:
        (parameters,).
        """
        log_volume, *blocks = self._function(*self._parameters.split(z), *self._parameters.split(pull))
        found = np.concatenate([np.ravel(block) for block in blocks]).astype(np.float64)
        return found[: z.size], float(log_volume), found[z.size :]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_function"}


def from_means_and_members(
    model: pm.Model, parameters: ParameterVector, in_likelihood: NDArray[np.bool_]
) -> FloatArray | None:
    """Return the matrix that makes parameters of what members of hierarchies are apart from their prior's mean.

    Shape (parameters, parameters): ones on the diagonal, and for each member how much parameters of its prior add to
    its mean. None where no mean is linear in parameters that are not `in_likelihood` themselves and have no transform.
    Public: it depends on the model alone.
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
    """Return how much each entry of variables `of` these shapes adds to each of a mean; zeros if it is not linear."""
    ends = np.cumsum([0, *map(math.prod, of.values())])
    whole = pt.vector("whole", shape=(int(ends[-1]),), dtype="float64")
    parts = [
        whole[start:end].reshape(of_one).astype(rv.type.dtype)
        for (rv, of_one), start, end in zip(of.items(), ends[:-1], ends[1:], strict=True)
    ]
    (clone,) = clone_replace([mean], dict(zip(of, parts, strict=True)), rebuild_strict=False)
    function = pytensor.function([whole], clone, mode=INTERPRETED)  # called a few times: not worth compiling

    def at(values: FloatArray) -> FloatArray:
        return np.broadcast_to(function(values), shape).ravel().astype(np.float64)

    zero, somewhere = at(np.zeros(ends[-1])), 7.0 * np.random.default_rng(0).normal(size=ends[-1])
    columns = np.stack([at(way) - zero for way in np.eye(ends[-1])], axis=1)
    is_linear = np.allclose(at(somewhere) - zero, columns @ somewhere, rtol=1e-6, atol=1e-9)
    return columns if is_linear else np.zeros_like(columns)
