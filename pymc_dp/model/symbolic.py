"""A model's log-probabilities with its row constants kept symbolic.

PyMC folds expressions of constants while it derives log-probabilities. A mean over rows, folded into a number,
would pass for public. Here every constant with a row axis becomes an input first, so that nothing computed from
rows is ever folded: it stays visible in the graph, and refusals depend on the model alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pymc as pm
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace

from pymc_dp.exceptions import UnsupportedModel


@dataclass(frozen=True, eq=False)
class SymbolicModel:
    """Log-probabilities of a model whose row constants are inputs.

    Attributes
    ----------
    log_likelihoods, log_priors : list of Variable
        One for each observed and each free variable, elementwise.
    potentials : list of Variable
        The model's potentials.
    sources : dict of Variable to Variable
        The constant that each new input stands for.
    """

    log_likelihoods: list[Variable]
    log_priors: list[Variable]
    potentials: list[Variable]
    sources: dict[Variable, Variable]


def symbolic(model: pm.Model, row_constants: Mapping[Variable, int]) -> SymbolicModel:
    """Return the log-probabilities of `model` with `row_constants` as inputs.

    Parameters
    ----------
    model : pm.Model
        The model.
    row_constants : mapping of Variable to int
        The constants with a row axis, observed ones included.
    """
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
    potentials = clones[len(rvs) :]
    if potentials:
        potentials = replace_rvs_by_values(potentials, rvs_to_values=values, rvs_to_transforms=transforms)
    n_observed = len(model.observed_RVs)
    sources = {stand_in: constant for constant, stand_in in stand_ins.items()}
    return SymbolicModel(list(logps[:n_observed]), list(logps[n_observed:]), list(potentials), sources)
