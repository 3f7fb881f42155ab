"""The likelihood of a private table, released once: a normal density that accounts for privacy noise.

It consists of released values alone. With priors it is an ordinary PyMC model, from which any sampler of PyMC draws any
number of times, with other priors too, without further privacy cost.
"""

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray import DataTree

from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument, RunInterrupted, UnsupportedModel, UnsupportedOption
from pymc_dp.model import posterior
from pymc_dp.model.centring import form_of
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.parameters import FloatArray, ParameterVector, default_point
from pymc_dp.model.posterior import PRIVATE_LIKELIHOOD, Posterior
from pymc_dp.model.prior import Prior
from pymc_dp.model.structure import bounds_of_parameters
from pymc_dp.model.transforms import without_bounds
from pymc_dp.release import ExpansionPoint
from pymc_dp.release.interface import LARGEST_CLIP_BOUND
from pymc_dp.run.refusals import OF_NUTS, refuse_no_budget, refuse_privacy_keywords, warn
from pymc_dp.run.sampling import release, sample_without_privacy
from pymc_dp.steps.prelude.belief import Belief, most_likely
from pymc_dp.steps.prelude.density import Quadratic
from pymc_dp.steps.prelude.figures import figures_beside_a_prior
from pymc_dp.steps.prelude.free_hmc import FreeHMC
from pymc_dp.steps.prelude.newton import NUMERICAL_FAILURES, prior_curvature
from pymc_dp.steps.surrogate_hmc import DPSurrogateHMC
from pymc_dp.tables import Table

#: Groups of a result: those of draws, and those of releases.
_OF_DRAWS = ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats")
_KEPT = (PRIVATE_LIKELIHOOD, "releases", "privacy")
#: Options of a private run, and the model and step, which `PrivateLikelihood.sample` makes itself.
_OF_THE_RELEASE = frozenset({"budget", "data", "unit", "unit_index", "model", "step"})
#: Options of `pm.sample` with which PyMC has to make the step itself.
_MAKE_A_STEP = frozenset({"nuts", "nuts_sampler", "nuts_sampler_kwargs", "init", "n_init", "compile_kwargs"})


@dataclass(frozen=True, eq=False)
class _Pilot:
    """A pilot: a sampler of priors times a likelihood, whose draws are the starting points of chains."""

    priors: Model
    prior: Prior
    belief: Belief
    curvature: FloatArray  # of the density at its mode
    kernel: FreeHMC
    likelihood: xr.Dataset

    @functools.cached_property
    def posterior(self) -> Posterior:
        """The density from which NUTS draws."""
        return Posterior(self.priors, self.likelihood, self.kernel.covariance, self.kernel.mean, self.prior)


class PrivateLikelihood:
    """A normal likelihood that accounts for the noise of the releases: N(m̂; θ, H⁻¹ + V).

    Parameters
    ----------
    tree : DataTree
        The result of a private run with this likelihood: of `private_likelihood`, or of `pm.sample` with the default
        sampler.
    model : pm.Model, optional
        The model that has the priors. Observed variables, data, and variables computed from them are left out, so that
        nothing of the protected rows is kept.

    Raises
    ------
    InvalidArgument
        If the tree has no likelihood, or the model has other parameters.

    Notes
    -----
    Near its maximum m the log-likelihood is quadratic with curvature H. The error of the released m̂ has covariance V:
    noise of the releases, and an allowance for the effect of clipping (docs: "Control variates").
    """

    def __init__(self, tree: DataTree, model: Model | None = None) -> None:
        if not isinstance(tree, DataTree) or PRIVATE_LIKELIHOOD not in tree or "privacy" not in tree:
            raise InvalidArgument(
                "This result has no likelihood of its own: use dp.private_likelihood, or pm.sample with the default "
                "sampler on a model with covariates."
            )
        self.tree = DataTree.from_dict({name: tree[name].to_dataset() for name in _KEPT if name in tree})
        self._priors: Model | None = None
        if model is not None:
            self._priors = posterior.priors_of(self._form_of(model), json.loads(self.facts.get("variables", "[]")))
            self._refuse_other(self._priors)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The guarantee and its mechanisms: the attributes of the ``privacy`` group."""
        return dict(self.tree["privacy"].attrs)

    @property
    def coords(self) -> dict[str, dict[str, list[str]]]:
        """Labels of the axes of free variables, by name and dim: entries of `mean` are named by their places."""
        return dict(json.loads(self.facts.get("coords", "{}")))

    @property
    def figures(self) -> dict[str, float]:
        """Measures of quality: clip bias, distance of the centre, widths. See ``docs/reference``."""
        return {str(name): float(value) for name, value in self._dataset.attrs.items()}

    @property
    def mean(self) -> xr.DataArray:
        """m̂, on the unconstrained scale, dims ``parameter``; NaN for parameters that only the prior informs."""
        return self._dataset["mean"]

    @property
    def covariance(self) -> FloatArray:
        """H⁻¹ + V, shape (parameters, parameters); zero for parameters that only the prior informs."""
        return posterior.covariance_of(self._dataset)

    @property
    def without_noise(self) -> FloatArray:
        """H⁻¹, shape (parameters, parameters): the covariance of the likelihood without privacy noise."""
        return posterior.covariance_without_noise(self._dataset)

    @property
    def _dataset(self) -> xr.Dataset:
        return self.tree[PRIVATE_LIKELIHOOD].to_dataset()

    def model(self, priors: Model | None = None) -> Model:
        """Return a PyMC model: priors, and the likelihood as a potential on the unconstrained scale.

        Parameters
        ----------
        priors : pm.Model, optional
            Other priors: a model without observed variables, in which the free variables that the likelihood depends
            on (`known` in its dataset) have the same names, shapes, transforms and coords. Variables of priors alone,
            such as the scale of a hierarchy, may be others. Default: the priors of the model for which the likelihood
            was released.

        Raises
        ------
        InvalidArgument
            If there are no priors, they lack a parameter of the likelihood, or they hold a likelihood themselves.
        """
        model = self._priors_from(priors)
        parameters = ParameterVector(model)
        found = posterior.with_likelihood(model, parameters, posterior.for_model(self._dataset, parameters))
        return posterior.with_transforms(found, without_bounds(found))

    def _priors_from(self, priors: Model | None) -> Model:
        """Return a copy of the given priors, else of the model's own."""
        if priors is None and self._priors is None:
            raise InvalidArgument("Priors are not stored in files: pass priors=, a PyMC model with them.")
        if priors is not None and posterior.holds_observations(priors):
            raise InvalidArgument(
                "priors= must be a model without observed variables: the likelihood stands for them. Of a model with "
                "them: dp.PrivateLikelihood(likelihood.tree, model).sample()."
            )
        if priors is not None:
            self._refuse_twice(posterior.likelihoods_in(priors))
        if priors is None:
            return posterior.priors_of(self._priors, None)
        found = posterior.priors_of(self._form_of(priors), None)
        self._refuse_other(found)
        return found

    def _refuse_twice(self, means: Sequence[np.ndarray]) -> None:
        """Refuse priors that hold this likelihood; warn if they hold another."""
        own = self.mean.values[posterior.known_parameters(self._dataset)]
        if any(np.array_equal(own, each) for each in means):
            raise InvalidArgument(
                "priors= holds this likelihood already, which would count twice: pass the priors alone."
            )
        if means:
            warn(
                "priors= holds another released likelihood. That is right if it is of other people: if both are of one "
                "table, they count twice. Reports of the draws name the last release alone."
            )

    def _refuse_other(self, model: Model) -> None:
        """Refuse a model without a parameter of the likelihood, or with other labels."""
        parameters = ParameterVector(model)
        posterior.for_model(self._dataset, parameters)
        parameters.refuse_other_coords(self.coords)

    def _form_of(self, model: Model) -> Model:
        """Return the model in the form that has the likelihood's parameters: centred, or as the user wrote it."""
        labels = self._dataset["parameter"].values[posterior.known_parameters(self._dataset)]
        return form_of(model, {str(label).partition("[")[0] for label in labels})

    def sample(self, draws: int = 1000, *, priors: Model | None = None, **options: Any) -> DataTree:
        """Draw from the posterior with PyMC's own sampler, any number of times, without further privacy cost.

        Members of a hierarchy are drawn in the non-centred form: noise makes the centred one hard to sample.
        Chains start at draws of a pilot, which also gives the mass matrix: a ``tune`` of 300 is enough.

        Parameters
        ----------
        draws : int
            Draws of each chain.
        priors : pm.Model, optional
            As in `model`.
        **options
            Passed to ``pm.sample``: ``tune``, ``chains`` (4), ``target_accept``, ``nuts_sampler``, ``random_seed``.

        Returns
        -------
        DataTree
            As of ``pm.sample``, with the additional groups ``private_likelihood``, ``releases`` and ``privacy``.

        Raises
        ------
        InvalidArgument
            As in `model`.
        UnsupportedOption
            If an option is one of private runs, as these draws cost no privacy, or is a model or a step.
        """
        options = {"chains": 4} | {name: value for name, value in options.items() if value is not None}
        if stray := sorted(_OF_THE_RELEASE & set(options)):
            raise UnsupportedOption(
                f"{', '.join(stray)}: the likelihood was paid for when it was released, and draws from it take no "
                "budget, no table and no other model. For a step method of your own write with likelihood.model(): "
                "pm.sample(step=...)."
            )
        refuse_privacy_keywords(
            sample_without_privacy, options, "draws from a likelihood cost no privacy. Leave it out."
        )
        if not options.get("return_inferencedata", True):
            raise UnsupportedOption("return_inferencedata=False would return no groups for what was released.")
        arguments, dataset = dict[str, Any](), self._dataset
        if _MAKE_A_STEP.isdisjoint(options):
            with contextlib.suppress(*NUMERICAL_FAILURES):  # then PyMC adapts a mass matrix by itself
                pilot = self._own_pilot if priors is None else self._pilot(self._priors_from(priors))
                arguments = self._with_nuts(pilot, options)
                if priors is not None or not pilot.likelihood["parameter"].equals(dataset["parameter"]):
                    dataset = self._with_other_priors(pilot)
        if not arguments:
            model = self.model(priors)
            dataset = posterior.for_model(self._dataset, ParameterVector(model))
            arguments = {"model": posterior.standardised(model, dataset)}
        tree = sample_without_privacy(draws=draws, **arguments | options)
        groups = {name: tree[name].to_dataset() for name in _OF_DRAWS if name in tree}
        for name in ("sample_stats", "warmup_sample_stats"):
            if name in groups:
                groups[name] = posterior.with_figures(groups[name], dataset)
        published, sizes = [str(name) for name in groups["posterior"].data_vars], groups["sample_stats"].sizes
        groups |= {name: self.tree[name].to_dataset() for name in _KEPT if name in self.tree}
        groups[PRIVATE_LIKELIHOOD] = dataset
        groups["privacy"] = groups["privacy"].assign_attrs(
            variables=json.dumps(published),
            parameters=json.dumps(ParameterVector(arguments["model"]).sizes(published)),
            draws=int(sizes["draw"]),
            chains=int(sizes["chain"]),
            complete=1,
        )
        return DataTree.from_dict(groups)

    def _with_nuts(self, pilot: _Pilot, options: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of `pm.sample` for NUTS with a pilot's settings, and move NUTS's `options` to them."""
        kernel, rng = pilot.kernel, np.random.default_rng(options.get("random_seed"))
        starts = [kernel.run(kernel.theta, 10 * kernel.trajectories_apart, rng) for _ in range(options["chains"])]
        of_nuts = {name: options[name] for name in OF_NUTS if name in options}
        arguments = pilot.posterior.arguments_of_sample(starts, **of_nuts)
        for name in of_nuts:
            del options[name]
        return arguments

    @functools.cached_property
    def _own_pilot(self) -> _Pilot:
        """The pilot of the likelihood's own priors, kept because its compiled functions serve all later draws."""
        return self._pilot(self._priors_from(None))

    def _pilot(self, priors: Model) -> _Pilot:
        """Return a pilot of priors times this likelihood, adapted as in a private run."""
        parameters = ParameterVector(priors)
        likelihood = posterior.for_model(self._dataset, parameters)
        prior, places = Prior(priors, parameters), posterior.places_of(likelihood, parameters)
        belief = Belief.from_dataset(likelihood, places)
        default = parameters.to_theta(default_point(priors))
        bounds = bounds_of_parameters(priors, parameters, default)
        start = np.clip(np.where(belief.known, belief.mean, default), *bounds)
        start = most_likely(prior, belief, start, ~belief.known, bounds)
        point = ExpansionPoint(belief.mean, np.eye(parameters.size), LARGEST_CLIP_BOUND)
        target = Quadratic(prior, point, np.zeros(parameters.size), belief.precision, np.inf)
        curvature = belief.precision + prior_curvature(prior, start)
        kernel = FreeHMC(target, start, curvature, np.random.default_rng(0), bounds)
        return _Pilot(priors, prior, belief, curvature, kernel, likelihood)

    def _with_other_priors(self, pilot: _Pilot) -> xr.Dataset:
        """Return the released likelihood, with the figures that depend on priors computed for the pilot's priors."""
        places = posterior.places_of(pilot.likelihood, ParameterVector(pilot.priors))
        by_parameter, figures = figures_beside_a_prior(pilot.belief, pilot.curvature, pilot.kernel)
        found = pilot.likelihood.assign_attrs(figures)
        return found.assign({name: ("parameter", each[places]) for name, each in by_parameter.items()})

    def save(self, path: str | Path) -> None:
        """Write the releases, which hold no data, to a netCDF file, or to a Zarr store if the name ends in ``.zarr``.

        Parameters
        ----------
        path : str or Path
            Of the file or store.
        """
        if str(path).endswith(".zarr"):
            self.tree.to_zarr(str(path), mode="w")  # a file is replaced, too
        else:
            self.tree.to_netcdf(str(path))

    @classmethod
    def load(cls, path: str | Path, model: Model | None = None) -> "PrivateLikelihood":
        """Read a likelihood; neither the table nor the original model is needed.

        Parameters
        ----------
        path : str or Path
            As in `save`.
        model : pm.Model, optional
            The model that has the priors.

        Raises
        ------
        InvalidArgument
            If the file has no likelihood, or the model has other parameters.
        """
        engine = "zarr" if str(path).endswith(".zarr") else None
        try:
            with xr.open_datatree(str(path), engine=engine) as opened:
                tree = opened.load()
        except (OSError, ValueError):
            raise InvalidArgument(
                f"There is no likelihood at {path}: pass the file that likelihood.save(path) wrote."
            ) from None
        return cls(tree, model)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_own_pilot"}

    def __repr__(self) -> str:
        facts, known = self.facts, posterior.known_parameters(self._dataset)
        return (
            f"PrivateLikelihood({known.size} parameters, {int(known.sum())} of them known, "
            f"epsilon={facts['epsilon']:.3g}, delta={facts['delta']:.3g}, {facts['relation']})"
        )


def private_likelihood(
    model: Model | None = None,
    data: Table | None = None,
    *,
    budget: PrivacyBudget | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    **options: Any,
) -> PrivateLikelihood:
    """Release the likelihood of a table once, within a budget: the private part of a run, without draws.

    Parameters
    ----------
    model : pm.Model, optional
        Default: the model of the ``with`` context.
    data : Table, optional
        The protected table, where the model holds invented rows.
    budget : PrivacyBudget
        The budget that is charged.
    random_seed : int, optional
        Of public randomness alone: never of the noise.
    progressbar : bool
        Show a bar while releases are made.
    **options
        Of `DPSurrogateHMC`: ``unit``, ``unit_index``, ``shares``, ``budget_share``, ``clip_diagnostics``,
        ``keep_releases``, ``insecure_seed``.

    Returns
    -------
    PrivateLikelihood
        The released likelihood.

    Raises
    ------
    InvalidArgument
        If an argument is missing or out of range, before anything is charged.
    UnsupportedModel
        If the likelihood is not a product over units, before anything is charged; or, after the charge, if the
        noise is too large for a likelihood.
    BudgetExceeded
        If the releases do not fit the remaining budget; nothing is changed then.
    RunInterrupted
        After Ctrl-C, or an error, before the likelihood is complete: the attribute ``partial`` holds the releases.
    """
    if isinstance(model, PrivacyBudget):
        raise InvalidArgument("The first argument is the model, and the budget is passed by name: budget=.")
    refuse_no_budget(budget)
    if budget is None:
        raise InvalidArgument("A likelihood is released within a budget: pass budget=dp.PrivacyBudget(epsilon, delta).")
    stray = sorted({"step", "draws", "chains", "tune"} & set(options))
    if stray:
        raise InvalidArgument(
            f"{', '.join(stray)}: a likelihood is released without draws, by DPSurrogateHMC; draws are made "
            "from it afterwards, with likelihood.sample(draws=...)."
        )
    model = model_in_context(model)
    with model:
        step = DPSurrogateHMC(budget=budget, **options)
    if step.tested:
        raise InvalidArgument("A likelihood is released without draws, so none is tested: shares.tests must be zero.")
    tree = release(step, model, data, random_seed, progressbar)
    if PRIVATE_LIKELIHOOD not in tree and not tree["privacy"].attrs["complete"]:
        raise RunInterrupted(
            "The search was interrupted after it was charged, and has not come to a likelihood. What was released "
            "until then is this exception's attribute `partial`; nothing is refunded.",
            tree,
        )
    if PRIVATE_LIKELIHOOD not in tree:
        raise UnsupportedModel(
            "Noise has led to no likelihood, and was paid for: this table is too small for this model and budget."
        )
    return PrivateLikelihood(tree, model)
