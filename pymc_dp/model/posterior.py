"""A PyMC model of a private posterior: priors times a normal likelihood that was released. Nothing of rows is in it."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pymc.logprob.transforms import Transform
from pytensor import shared
from pytensor.graph.basic import clone_get_equiv
from pytensor.graph.replace import clone_replace

from pymc_dp.compiling import INTERPRETED, compiled
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.axes import length_of_dim
from pymc_dp.model.copying import add_copy
from pymc_dp.model.members import Unstandardised, standardising
from pymc_dp.model.parameters import FloatArray, ParameterVector
from pymc_dp.model.prior import Prior


def priors_of(
    model: pm.Model, published: Sequence[str] | None, transforms: Mapping[str, Transform] | None = None
) -> pm.Model:
    """Return the priors of a model as a model of its own: free variables, potentials, and what is computed of them.

    With other `transforms` of the free variables that these name.

    Whatever hangs on the model besides is left behind: observed variables, data, starting values, and the dims that
    only they have, whose lengths PyMC keeps as expressions of the data. Of an accepted model, free variables and
    potentials depend on no rows. Of its deterministics those `published` are kept; None: all.
    """
    kept = [each for each in model.deterministics if published is None or each.name in published]
    variables = [*model.free_RVs, *kept, *model.potentials]
    dims = [model.named_vars_to_dims.get(each.name) or () for each in variables]
    used = {dim: model.dim_lengths[dim] for names in dims for dim in names if dim is not None}
    lengths = {length: pt.constant(length_of_dim(model, dim, length), dtype="int64") for dim, length in used.items()}
    copies = clone_get_equiv([], variables, copy_inputs=False, copy_orphans=False, memo=dict(lengths))
    priors = pm.Model(model=None)
    for dim, length in used.items():
        priors.add_coord(dim, model.coords[dim], length=lengths[length])
    for variable in variables:
        transform = (transforms or {}).get(variable.name, model.rvs_to_transforms.get(variable))
        add_copy(priors, copies[variable], model, variable, transform)
    return priors


#: The name of the potential, and of the group of a result that holds what it is made of.
PRIVATE_LIKELIHOOD = "private_likelihood"


def with_likelihood(priors: pm.Model, parameters: ParameterVector, likelihood: xr.Dataset) -> pm.Model:
    """Add a released likelihood (`Belief.dataset`) to a model of priors, as a potential on the unconstrained scale.

    The model is changed and returned; it is refused if it has other parameters than the likelihood.
    """
    known, places = known_parameters(likelihood), places_of(likelihood, parameters)
    # As inputs, not constants: what was compiled for one release serves the next.
    mean, precision = shared(likelihood["mean"].values[known]), shared(precision_of(likelihood))
    name = PRIVATE_LIKELIHOOD
    while name in priors.named_vars:
        name += "_"
    with priors:
        away = _unconstrained(priors)[places[known]] - mean
        pm.Potential(name, -0.5 * away @ precision @ away)
    return priors


def standardised(model: pm.Model, likelihood: xr.Dataset, centre: FloatArray | None = None) -> pm.Model:
    """Return a model of priors, or `with_likelihood`, with standardised members of hierarchies: see `members`.

    Its unconstrained parameters are those of the same variables in the same order. Without members it is `model`. What
    the likelihood says of a member is taken where the other parameters are those of `centre`, about the posterior mean:
    beside an intercept, which members can replace, the likelihood's maximum may be far.
    """
    parameters = ParameterVector(model)
    mean, precision = _normal(likelihood, parameters)
    told = np.diag(precision)
    if centre is not None:
        pull = precision @ (mean - centre)
        mean = centre + np.divide(pull, told, out=np.zeros_like(pull), where=told > 0.0)
    transforms = standardising(model, parameters, told, mean)
    return priors_of(model, None, transforms) if transforms else model


class LogDensity:
    """Log-density and gradient of a model `with_likelihood`, in the form in which PyMC's NUTS asks for them.

    PyMC would compile priors and likelihood together, ten seconds for each new model. Priors alone take about two,
    and a normal likelihood none; a `prior` of theirs that was compiled before is used. Members of hierarchies are
    standardised, as by `standardised`.

    Attributes
    ----------
    dtype : str
        Of the gradient, and of NUTS's own arrays.
    members : ndarray of bool, shape (parameters,)
        Which parameters are standardised.
    """

    _raveled_inputs = True
    _extra_vars_shared: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        priors: pm.Model,
        likelihood: xr.Dataset,
        centre: FloatArray | None = None,
        prior: Prior | None = None,
    ) -> None:
        parameters = ParameterVector(priors)
        self._mean, self._precision = _normal(likelihood, parameters)
        self._prior, self.dtype = prior or Prior(priors, parameters), str(pytensor.config.floatX)
        drawn = standardised(priors, likelihood, centre)
        self._unstandardised = None if drawn is priors else Unstandardised(drawn, parameters)
        self.members = np.zeros(parameters.size, bool) if self._unstandardised is None else self._unstandardised.members

    def mass_matrix(self, covariance: FloatArray, mean: FloatArray) -> FloatArray:
        """Return the inverse of a mass matrix by the covariance of parameters, and their mean.

        Standardised members are about standard normal, given the others, and independent, unless rows tell sums of
        members and others, such as an intercept, better than the members. The curvature of the density says so where
        scales are their mean: it is that of members and of all that rows know of, and what only the prior knows has
        the covariance that it had. Given the scales, parameters are linear in the standardised ones.
        """
        if self._unstandardised is None:
            return covariance
        centre = np.where(self.members, 0.0, mean)
        theta, _, slope = self._unstandardised(centre, np.zeros_like(mean))
        ways = np.array([self._unstandardised(centre, way)[2] - slope for way in np.eye(mean.size)])
        curvature = ways.T @ (self._precision - self._prior.hessian(theta)) @ ways
        told = self.members | (np.diag(self._precision) > 0.0)
        block = np.ix_(told, told)
        found = np.where(told[:, None] == told, covariance, 0.0)
        with contextlib.suppress(np.linalg.LinAlgError):
            found[block] = np.linalg.inv(curvature[block])
            if np.isfinite(np.linalg.cholesky(found)).all():
                return found
        # The density has no curvature there.
        return np.where(self.members[:, None] | self.members, np.eye(mean.size), covariance)

    def _pytensor_function(self, theta: FloatArray) -> tuple[float, np.ndarray]:
        """Return both at `theta`, shape (parameters,); by the name that PyMC's integrator asks for."""
        z = theta
        if self._unstandardised is not None:
            theta, _, _ = self._unstandardised(z, z)
        log_prior, gradient = self._prior.with_gradient(theta)
        away = theta - self._mean
        pull = self._precision @ away
        log_density, gradient = log_prior - 0.5 * float(away @ pull), gradient - pull
        if self._unstandardised is not None:
            _, log_volume, gradient = self._unstandardised(z, gradient)
            log_density += log_volume
        return log_density, gradient.astype(self.dtype)


#: Of NUTS's first step: four times PyMC's own, for posteriors that the mass matrix makes about standard normal.
_STEP_SCALE = 1.0


class Posterior:
    """Priors times a released likelihood, as PyMC's own NUTS draws from it. What is compiled serves all later draws.

    Parameters
    ----------
    priors : pm.Model
        As `priors_of` makes it: nothing of the rows is in it. The likelihood is added to it.
    likelihood : xr.Dataset
        What was released.
    covariance : ndarray, shape (parameters, parameters)
        The inverse of the mass matrix, in the order of the model's parameters, but for members of hierarchies.
    mean : ndarray, shape (parameters,)
        Of the posterior, about: see `standardised`.
    prior : Prior, optional
        That of `priors`, where it was compiled before.
    """

    def __init__(
        self,
        priors: pm.Model,
        likelihood: xr.Dataset,
        covariance: FloatArray,
        mean: FloatArray,
        prior: Prior | None = None,
    ) -> None:
        self._priors, self._parameters = priors, ParameterVector(priors)
        self._log_density = LogDensity(priors, likelihood, mean, prior)
        self._drawn = standardised(with_likelihood(priors, self._parameters, likelihood), likelihood, mean)
        self._covariance = self._log_density.mass_matrix(covariance, mean)

    def arguments_of_sample(self, starts: Sequence[FloatArray], **settings: Any) -> dict[str, Any]:
        """Return arguments of `pm.sample`, with which chains start at `starts`, unconstrained, shape (parameters,).

        Other `settings` are those of ``pm.NUTS``.
        """
        points = map(self._parameters.to_point, starts)
        initvals = [_initial_values(self._priors, self._drawn, point) for point in points]
        settings = {"step_scale": _STEP_SCALE, **settings}
        with self._drawn:
            step = pm.NUTS(scaling=self._covariance, is_cov=True, logp_dlogp_func=self._log_density, **settings)
        return {"model": self._drawn, "step": step, "initvals": initvals}


def _initial_values(priors: pm.Model, drawn: pm.Model, point: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return a point of the values of the priors as PyMC takes it for the same model with standardised members."""
    # PyMC applies the backward transform of a Cholesky factor to graphs alone.
    found = {name: pt.constant(value) for name, value in point.items()}
    for rv, value in zip(priors.free_RVs, priors.value_vars, strict=True):
        first = priors.rvs_to_transforms[rv]
        if first is not None and drawn.rvs_to_transforms[drawn[rv.name]] is not first:
            found[rv.name] = first.backward(found.pop(value.name))
    return found


def holds_observations(model: pm.Model) -> bool:
    """Return whether a model has observed variables."""
    return bool(model.observed_RVs)


def places_of(likelihood: xr.Dataset, parameters: ParameterVector) -> np.ndarray:
    """Return the place of each parameter of a likelihood among those of a model; refuse a model that has others."""
    own, wanted = parameters.labels, [str(each) for each in likelihood["parameter"].values]
    missing, more = sorted(set(wanted) - set(own)), sorted(set(own) - set(wanted))
    if missing or more:
        what = f"lacks {', '.join(missing[:3])}" if missing else f"has {', '.join(more[:3])} besides"
        raise InvalidArgument(
            f"The likelihood is a function of {', '.join(wanted[:6])}{' …' if len(wanted) > 6 else ''}; the model "
            f"{what}. Names, shapes and transforms have to be the same."
        )
    return np.array([own.index(each) for each in wanted])


def known_parameters(likelihood: xr.Dataset) -> np.ndarray:
    """Return for each parameter whether the likelihood depends on it, shape (parameters,)."""
    return np.asarray(likelihood["known"].values, dtype=bool)


def covariance_of(likelihood: xr.Dataset) -> FloatArray:
    """Return H⁻¹ + V, shape (parameters, parameters); zero for parameters that only the prior knows."""
    hidden: FloatArray = likelihood["noise"].values + likelihood["bias"].values
    return covariance_without_noise(likelihood) + hidden


def precision_of(likelihood: xr.Dataset) -> FloatArray:
    """Return the inverse of H⁻¹ + V, for the parameters that the likelihood depends on."""
    known = known_parameters(likelihood)
    precision: FloatArray = np.linalg.inv(covariance_of(likelihood)[np.ix_(known, known)])
    return 0.5 * (precision + precision.T)


def _normal(likelihood: xr.Dataset, parameters: ParameterVector) -> tuple[FloatArray, FloatArray]:
    """Return mean and precision in the order of a model's parameters: zero where the likelihood depends on none."""
    known = known_parameters(likelihood)
    places = places_of(likelihood, parameters)[known]
    mean, precision = np.zeros(parameters.size), np.zeros((parameters.size, parameters.size))
    mean[places], precision[np.ix_(places, places)] = likelihood["mean"].values[known], precision_of(likelihood)
    return mean, precision


def covariance_without_noise(likelihood: xr.Dataset) -> FloatArray:
    """Return H⁻¹, shape (parameters, parameters): how wide the likelihood would be without privacy."""
    known = known_parameters(likelihood)
    found = np.zeros((known.size, known.size))
    block = np.ix_(known, known)
    found[block] = np.linalg.inv(likelihood["information"].values[block])
    return found


def unconstrained_draws(model: pm.Model, draws: xr.Dataset, at_most: int) -> FloatArray:
    """Return at most so many draws of the free variables, unconstrained, shape (draws, parameters), evenly taken.

    Raises `InvalidArgument` if a free variable has no draws, or of another shape.
    """
    with pytensor.config.change_flags(mode=INTERPRETED):  # called once: not worth compiling
        values = pm.draw(model.free_RVs, random_seed=0)
    shapes = {rv.name: np.shape(value) for rv, value in zip(model.free_RVs, values, strict=True)}
    for name, shape in shapes.items():
        if name not in draws or draws[name].shape[2:] != shape:
            raise InvalidArgument(f"The result holds no draws of {name!r} as this model has it: pass the model's own.")
    chains = {name: draws[name].values.reshape(-1, *shape) for name, shape in shapes.items()}
    n_draws = draws.sizes["chain"] * draws.sizes["draw"]
    taken = np.unique(np.linspace(0, n_draws - 1, min(at_most, n_draws)).astype(int))
    stand_ins = {rv: rv.type() for rv in model.free_RVs}
    of_draw = compiled(list(stand_ins.values()), clone_replace([_unconstrained(model).astype("float64")], stand_ins))
    as_typed = [chains[rv.name].astype(rv.type.dtype) for rv in model.free_RVs]
    return np.array([of_draw(*(values[place] for values in as_typed))[0] for place in taken])


def with_figures(stats: xr.Dataset, likelihood: xr.Dataset) -> xr.Dataset:
    """Return statistics of NUTS with what reports read of private draws; without timings."""
    stats = stats.drop_vars([name for name in stats if str(name).startswith(("perf_counter", "process_time"))])
    shape = stats.sizes["chain"], stats.sizes["draw"]
    for name, value in {**likelihood.attrs, "log_ratio": np.nan, "noise_std": np.nan, "accepted": True}.items():
        stats[str(name)] = (("chain", "draw"), np.full(shape, value))
    return stats


def _unconstrained(model: pm.Model) -> Any:
    """Return the vector of unconstrained parameters as a function of the free variables."""
    pairs = [(rv, model.rvs_to_transforms[rv]) for rv in model.free_RVs]
    return pt.concatenate([(rv if t is None else t.forward(rv, *rv.owner.inputs)).ravel() for rv, t in pairs])
