"""What a model says of a row's response: its distribution function there, just below, and its mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.moments import mean as mean_of
from pymc.distributions.moments.means import UndefinedMomentException
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
    """The distribution of the observed variable, as graphs of the model's inputs, elementwise.

    Attributes
    ----------
    name : str
        The observed variable.
    discrete : bool
        Whether its values are whole numbers.
    n_levels : int or None
        How many values there are, if they are few.
    up_to, below : Variable
        Logarithms of the probabilities of at most the response, and of less.
    mean : Variable or None
        Its mean, where PyMC knows it.
    """

    name: str
    discrete: bool
    n_levels: int | None
    up_to: Variable
    below: Variable
    mean: Variable | None

    @property
    def graphs(self) -> list[Variable]:
        """The graphs, the mean at the end if there is one."""
        return [self.up_to, self.below, *([] if self.mean is None else [self.mean])]


def response_of(model: pm.Model, sources: Mapping[Variable, Variable]) -> Response:
    """Return the distribution of the only observed variable.

    Parameters
    ----------
    model : pm.Model
        A model whose rows were found.
    sources : mapping of Variable to Variable
        The constant that each new input of the graphs stands for, as `pymc_dp.model.one_row.symbolic` says.

    Raises
    ------
    UnsupportedModel
        If there are several observed variables, or several responses in a row, or the distribution function is not
        known.
    """
    if len(model.observed_RVs) != 1 or model.observed_RVs[0].type.ndim != 1:
        raise UnsupportedModel(
            "A check looks at one number in each row: this model has several observed variables, or one with several "
            "numbers in a row."
        )
    observed = model.observed_RVs[0]
    stand_ins = {constant: stand_in for stand_in, constant in sources.items()}
    rvs = model.basic_RVs
    new = dict(zip(rvs, clone_replace(rvs, stand_ins), strict=True))
    values = {new[rv]: stand_ins.get(value, value) for rv, value in model.rvs_to_values.items()}
    transforms = {new[rv]: transform for rv, transform in model.rvs_to_transforms.items()}
    rv, value = new[observed], values[new[observed]]
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
    graphs = replace_rvs_by_values(
        [*graphs, *([] if mean is None else [mean])], rvs_to_values=values, rvs_to_transforms=transforms
    )
    return Response(str(observed.name), discrete, _n_levels(model, observed), graphs[0], graphs[1], _third(graphs))


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


def _n_levels(model: pm.Model, observed: Variable) -> int | None:
    """Return how many values a response can have, for truth values and categories."""
    op = observed.owner.op
    if isinstance(op, BernoulliRV):
        return 2
    if isinstance(op, CategoricalRV):
        return length_of_last_axis(model, op.dist_params(observed.owner)[0])
    return None


def _third(graphs: Sequence[Variable]) -> Variable | None:
    return graphs[2] if len(graphs) > 2 else None
