"""Log-probabilities, and the response's distribution, of a model whose constants with rows are inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.moments import mean as mean_of
from pymc.distributions.moments.means import UndefinedMomentException
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.structure import length_of_last_axis

#: Between a number and the next one below, and less than a response that is not zero.
_NEXT, _SMALLEST = 2.0**-52, 1e-300


@dataclass(frozen=True, eq=False, repr=False)
class Response:
    """The distribution of the observed variable, as graphs of the model's inputs, elementwise."""

    name: str  # the observed variable
    discrete: bool  # whether its values are whole numbers
    n_levels: int | None  # how many values there are, if they are few
    #: Logarithms of the probabilities of at most the response, and of less; then the mean, where PyMC knows it.
    graphs: list[Variable]

    @property
    def mean(self) -> Variable | None:
        """The response's mean, where PyMC knows it."""
        return self.graphs[2] if len(self.graphs) > 2 else None


class SymbolicModel:
    """The graphs of `model` with `row_constants`, the constants that have a row axis, as inputs."""

    def __init__(self, model: pm.Model, row_constants: Mapping[Variable, int]) -> None:
        stand_ins = {constant: constant.type() for constant in row_constants}
        rvs = model.basic_RVs
        clones = clone_replace([*rvs, *model.potentials], stand_ins)
        new = dict(zip(rvs, clones, strict=False))
        values = {new[rv]: stand_ins.get(value, value) for rv, value in model.rvs_to_values.items()}
        transforms = {new[rv]: transform for rv, transform in model.rvs_to_transforms.items()}
        wanted = [new[rv] for rv in [*model.observed_RVs, *model.free_RVs]]
        try:
            logps = transformed_conditional_logp(rvs=wanted, rvs_to_values=values, rvs_to_transforms=transforms)
        except ValueError:  # its message tells shapes
            raise UnsupportedModel(
                "Shapes in this model do not fit each other: see that all its tables have as many rows as the observed "
                "variables."
            ) from None
        self._model, self._new, self._values, self._transforms = model, new, values, transforms
        n_observed = len(model.observed_RVs)
        #: The constant that each new input stands for.
        self.sources = {stand_in: constant for constant, stand_in in stand_ins.items()}
        #: One for each observed and each free variable, elementwise.
        self.log_likelihoods, self.log_priors = list(logps[:n_observed]), list(logps[n_observed:])
        self.potentials = self._of_values(clones[len(rvs) :])
        #: The free variables as functions of the unconstrained parameters.
        self.drawn = model.replace_rvs_by_values(model.free_RVs)

    def _of_values(self, graphs: list[Variable]) -> list[Variable]:
        if not graphs:
            return []
        return list(replace_rvs_by_values(graphs, rvs_to_values=self._values, rvs_to_transforms=self._transforms))

    def terms(self, *, potentials: bool) -> list[tuple[Variable, Variable]]:
        """Return variables of the model with their finished graphs: log-probabilities, and draws of free variables."""
        model = self._model
        return [
            *zip(model.observed_RVs, self.log_likelihoods, strict=True),
            *zip(model.free_RVs, self.log_priors, strict=True),
            *zip(model.free_RVs, self.drawn, strict=True),
            *(zip(model.potentials, self.potentials, strict=True) if potentials else ()),
        ]

    def response(self) -> Response:
        """Return the distribution of the only observed variable."""
        if len(self._model.observed_RVs) != 1 or self._model.observed_RVs[0].type.ndim != 1:
            raise UnsupportedModel(
                "A check looks at one number in each row: this model has several observed variables, or one with "
                "several numbers in a row."
            )
        observed = self._model.observed_RVs[0]
        rv, op = self._new[observed], observed.owner.op
        value = self._values[rv]
        discrete = rv.type.dtype.startswith(("int", "uint", "bool"))
        value = value if discrete else value.astype("float64")
        below = value - 1 if discrete else value - pt.abs(value) * _NEXT - _SMALLEST
        try:
            graphs = [pm.logcdf(rv, at, warn_rvs=False) for at in (value, below)]
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            raise UnsupportedModel(
                f"PyMC has no distribution function for {observed.name!r}, which a check compares responses with."
            ) from None
        mean = _mean(rv)
        graphs = self._of_values([*graphs, *([] if mean is None else [mean])])
        n_levels = 2 if isinstance(op, BernoulliRV) else None
        if isinstance(op, CategoricalRV):
            n_levels = length_of_last_axis(self._model, *op.dist_params(observed.owner))
        return Response(str(observed.name), discrete, n_levels, graphs)


def _mean(rv: Variable) -> Variable | None:
    """Return the mean of a random variable; of categories that of their codes; None where PyMC does not know it."""
    if isinstance(rv.owner.op, CategoricalRV):
        (probabilities,) = rv.owner.op.dist_params(rv.owner)
        return (probabilities * pt.arange(probabilities.shape[-1])).sum(axis=-1)
    try:
        mean: Variable = mean_of(rv)
    except (NotImplementedError, UndefinedMomentException):
        return None
    return pt.broadcast_to(mean, rv.shape) if mean.type.ndim < rv.type.ndim else mean
