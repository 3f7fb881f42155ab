"""PyMC models of a private posterior: priors times a released normal likelihood. They hold nothing of the rows."""

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
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import clone_get_equiv
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

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
    """Return the priors of a model as a separate model: free variables, potentials and deterministics.

    Of the deterministics those named in `published` are kept; None: all. `transforms` replaces transforms of free
    variables by name. Left out are observed variables, data, starting values, and dims of these alone, whose lengths
    PyMC stores as expressions of the data. In an accepted model, free variables and potentials depend on no rows.
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


#: The name of the potential, and of the group of a result that holds the likelihood.
PRIVATE_LIKELIHOOD = "private_likelihood"


def with_likelihood(priors: pm.Model, parameters: ParameterVector, likelihood: xr.Dataset) -> pm.Model:
    """Add a released likelihood (`Belief.dataset`) to a model of priors, as a potential on the unconstrained scale.

    The model is changed and returned. A model with other parameters than the likelihood raises `InvalidArgument`.
    """
    known, places = known_parameters(likelihood), places_of(likelihood, parameters)
    # Shared variables, not constants: functions compiled for one release can be used for the next.
    mean, precision = shared(likelihood["mean"].values[known]), shared(precision_of(likelihood))
    name = PRIVATE_LIKELIHOOD
    while name in priors.named_vars:
        name += "_"
    with priors:
        deviation = _unconstrained(priors)[places[known]] - mean
        pm.Potential(name, -0.5 * deviation @ precision @ deviation)
    return priors


def standardised(model: pm.Model, likelihood: xr.Dataset, centre: FloatArray | None = None) -> pm.Model:
    """Return a model of priors, or one `with_likelihood`, with standardised members of hierarchies: see `members`.

    Its unconstrained parameters are those of the same variables in the same order. Variables with bounds are drawn
    without them (`transforms`). Without members and bounds `model` is returned.
    The likelihood of a member is conditional on the other parameters, which are set to `centre`, near the posterior
    mean. The maximum of the likelihood may be far from there, if an intercept can be traded against members.
    """
    parameters = ParameterVector(model)
    mean, precision = _normal(likelihood, parameters)
    of_each = np.diag(precision)
    if centre is not None:
        score = precision @ (mean - centre)
        mean = centre + np.divide(score, of_each, out=np.zeros_like(score), where=of_each > 0.0)
    return with_transforms(model, standardising(model, parameters, of_each, mean))


def with_transforms(model: pm.Model, transforms: Mapping[str, Transform]) -> pm.Model:
    """Return a model of priors with other transforms of the variables that are named; the model itself without any."""
    return priors_of(model, None, transforms) if transforms else model


class LogDensity:
    """Log-density and gradient of a model `with_likelihood`, with the interface that PyMC's NUTS requires.

    PyMC would compile priors and likelihood together, ten seconds for each new model. The priors alone take about two
    seconds, and none if they were compiled before (`prior`); a normal likelihood needs no compilation. Members of
    hierarchies are standardised, as by `standardised`.

    Attributes
    ----------
    dtype : str
        The dtype of the gradient, and of NUTS's own arrays.
    members : ndarray of bool, shape (parameters,)
        True for standardised parameters.
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
        """Return the inverse of a mass matrix from the covariance of parameters, and their mean.

        Given the other parameters, standardised members are approximately independent and standard normal, unless the
        likelihood has more information on sums of members and others, such as an intercept, than on the members. The
        matrix is therefore the inverse curvature of the density, for members and for all parameters in the likelihood,
        at the mean of the scales; parameters that are only in the prior keep their covariance. Given the scales,
        parameters are linear in the standardised ones.
        """
        if self._unstandardised is None:
            return covariance
        centre = self._unstandardised.centre(mean, np.sqrt(np.diag(covariance)))
        theta, _, slope = self._unstandardised(centre, np.zeros_like(mean))
        jacobian = np.array([self._unstandardised(centre, axis)[2] - slope for axis in np.eye(mean.size)])
        curvature = jacobian.T @ (self._precision - self._prior.hessian(theta)) @ jacobian
        informed = self.members | (np.diag(self._precision) > 0.0)
        block = np.ix_(informed, informed)
        found = np.where(informed[:, None] == informed, covariance, 0.0)
        with contextlib.suppress(np.linalg.LinAlgError):
            found[block] = np.linalg.inv(curvature[block])
            if np.isfinite(np.linalg.cholesky(found)).all():
                return found
        # The density is not concave there.
        return np.where(self.members[:, None] | self.members, np.eye(mean.size), covariance)

    def _pytensor_function(self, theta: FloatArray) -> tuple[float, np.ndarray]:
        """Return log-density and gradient at `theta`, shape (parameters,); PyMC's integrator requires this name."""
        z = theta
        if self._unstandardised is not None:
            theta, _, _ = self._unstandardised(z, z)
        log_prior, gradient = self._prior.with_gradient(theta)
        deviation = theta - self._mean
        slope = self._precision @ deviation
        log_density, gradient = log_prior - 0.5 * float(deviation @ slope), gradient - slope
        if self._unstandardised is not None:
            _, log_volume, gradient = self._unstandardised(z, gradient)
            log_density += log_volume
        return log_density, gradient.astype(self.dtype)


#: Scale of NUTS's first step: four times PyMC's own, since the mass matrix makes the posterior about standard normal.
_STEP_SCALE = 1.0


class Posterior:
    """Priors times a released likelihood, for PyMC's own NUTS. Compiled functions are reused for later draws.

    Parameters
    ----------
    priors : pm.Model
        A model from `priors_of`, which holds nothing of the rows. The likelihood is added to it.
    likelihood : xr.Dataset
        The released likelihood.
    covariance : ndarray, shape (parameters, parameters)
        The inverse of the mass matrix, in the order of the model's parameters, except for members of hierarchies.
    mean : ndarray, shape (parameters,)
        The approximate mean of the posterior: see `standardised`.
    prior : Prior, optional
        The prior of `priors`, if it was compiled before.
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
        """Return arguments of `pm.sample` for chains that start at `starts`, unconstrained, shape (parameters,) each.

        Other `settings` are those of ``pm.NUTS``.
        """
        points = map(self._parameters.to_point, starts)
        initvals = [_initial_values(self._priors, self._drawn, point) for point in points]
        settings = {"step_scale": _STEP_SCALE, **settings}
        with self._drawn:
            step = pm.NUTS(scaling=self._covariance, is_cov=True, logp_dlogp_func=self._log_density, **settings)
        return {"model": self._drawn, "step": step, "initvals": initvals}


def _initial_values(priors: pm.Model, drawn: pm.Model, point: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return a point of the priors as initial values of the same model with standardised members."""
    # PyMC applies the backward transform of a Cholesky factor to graphs only.
    found = {name: pt.constant(value) for name, value in point.items()}
    for rv, value in zip(priors.free_RVs, priors.value_vars, strict=True):
        first = priors.rvs_to_transforms[rv]
        if first is not None and drawn.rvs_to_transforms[drawn[rv.name]] is not first:
            found[rv.name] = first.backward(found.pop(value.name))
    return found


def likelihoods_in(model: pm.Model) -> list[np.ndarray]:
    """Return the means of the released likelihoods in a model: see `with_likelihood`."""
    names = {each: each.name.rpartition("::")[2] for each in model.potentials}  # without those of models
    potentials = [each for each, name in names.items() if name.startswith(PRIVATE_LIKELIHOOD)]
    leaves = [leaf for leaf in ancestors(potentials) if isinstance(leaf, SharedVariable)]
    return [leaf.get_value() for leaf in leaves if getattr(leaf.type, "ndim", None) == 1]  # others are generators


def holds_observations(model: pm.Model) -> bool:
    """Return whether a model has observed variables."""
    return bool(model.observed_RVs)


def places_of(likelihood: xr.Dataset, parameters: ParameterVector) -> np.ndarray:
    """Return the place of each parameter of a likelihood in a model; refuse a model with other parameters."""
    own, wanted = parameters.labels, [str(each) for each in likelihood["parameter"].values]
    missing, more = sorted(set(wanted) - set(own)), sorted(set(own) - set(wanted))
    if missing or more:
        lacks = [f"lacks {', '.join(missing[:3])}"] if missing else []
        what = " and ".join([*lacks, *([f"has {', '.join(more[:3])} besides"] if more else [])])
        raise InvalidArgument(
            f"The likelihood is a function of {', '.join(wanted[:6])}{' …' if len(wanted) > 6 else ''}; the model "
            f"{what}. Names, shapes and transforms have to be the same."
        )
    return np.array([own.index(each) for each in wanted])


def for_model(likelihood: xr.Dataset, parameters: ParameterVector) -> xr.Dataset:
    """Return a likelihood as one of a model's parameters; refuse a model that lacks one on which it depends.

    Parameters that the model lacks are left out, and others are added, on which the likelihood does not depend.
    """
    own, labels = set(parameters.labels), [str(each) for each in likelihood["parameter"].values]
    wanted = [each for each, known in zip(labels, known_parameters(likelihood), strict=True) if known]
    if missing := [each for each in wanted if each not in own]:
        raise InvalidArgument(
            f"The likelihood depends on {', '.join(wanted[:6])}{' …' if len(wanted) > 6 else ''}; the model lacks "
            f"{', '.join(missing[:3])}. Names, shapes and transforms of these have to be the same. To fix one at a "
            "value: pm.do(likelihood.model(), {name: value}). (NAME_scaled is NAME times its scale: a hierarchy has to "
            "be written in the same form.)"
        )
    kept = [each for each in labels if each in own]
    kept += sorted(own.difference(labels))
    if kept == labels:
        return likelihood  # without copies of its matrices
    empty = dict.fromkeys(("known", "information", "noise", "bias"), 0)
    return likelihood.reindex(parameter=kept, parameter_again=kept, fill_value=empty)


def known_parameters(likelihood: xr.Dataset) -> np.ndarray:
    """Return a mask of the parameters that the likelihood depends on, shape (parameters,)."""
    return np.asarray(likelihood["known"].values, dtype=bool)


def covariance_of(likelihood: xr.Dataset) -> FloatArray:
    """Return H⁻¹ + V, shape (parameters, parameters); zero for parameters that are not in the likelihood."""
    of_release: FloatArray = likelihood["noise"].values + likelihood["bias"].values
    return covariance_without_noise(likelihood) + of_release


def precision_of(likelihood: xr.Dataset) -> FloatArray:
    """Return the inverse of H⁻¹ + V, for the parameters that the likelihood depends on."""
    known = known_parameters(likelihood)
    precision: FloatArray = np.linalg.inv(covariance_of(likelihood)[np.ix_(known, known)])
    return 0.5 * (precision + precision.T)


def _normal(likelihood: xr.Dataset, parameters: ParameterVector) -> tuple[FloatArray, FloatArray]:
    """Return mean and precision in the order of a model's parameters; zero for parameters not in the likelihood."""
    known = known_parameters(likelihood)
    places = places_of(likelihood, parameters)[known]
    mean, precision = np.zeros(parameters.size), np.zeros((parameters.size, parameters.size))
    mean[places], precision[np.ix_(places, places)] = likelihood["mean"].values[known], precision_of(likelihood)
    return mean, precision


def covariance_without_noise(likelihood: xr.Dataset) -> FloatArray:
    """Return H⁻¹, shape (parameters, parameters): the covariance matrix of the likelihood without privacy noise."""
    known = known_parameters(likelihood)
    found = np.zeros((known.size, known.size))
    block = np.ix_(known, known)
    found[block] = np.linalg.inv(likelihood["information"].values[block])
    return found


def unconstrained_draws(model: pm.Model, draws: xr.Dataset, at_most: int) -> FloatArray:
    """Return up to `at_most` evenly spaced draws of the free variables, unconstrained, shape (draws, parameters).

    A free variable without draws, or with draws of another shape, raises `InvalidArgument`.
    """
    with pytensor.config.change_flags(mode=INTERPRETED):  # called once: compiling takes longer
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
    """Return statistics of NUTS without timings, and with the statistics that reports read of private draws."""
    stats = stats.drop_vars([name for name in stats if str(name).startswith(("perf_counter", "process_time"))])
    shape = stats.sizes["chain"], stats.sizes["draw"]
    for name, value in {**likelihood.attrs, "log_ratio": np.nan, "noise_std": np.nan, "accepted": True}.items():
        stats[str(name)] = (("chain", "draw"), np.full(shape, value))
    return stats


def _unconstrained(model: pm.Model) -> Any:
    """Return the vector of unconstrained parameters as a function of the free variables."""
    pairs = [(rv, model.rvs_to_transforms[rv]) for rv in model.free_RVs]
    return pt.concatenate([(rv if t is None else t.forward(rv, *rv.owner.inputs)).ravel() for rv, t in pairs])
