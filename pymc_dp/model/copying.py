"""Copies of a model's variables in another model."""

import pymc as pm
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Variable


def add_copy(to: pm.Model, copy: Variable, model: pm.Model, variable: Variable, transform: Transform | None) -> None:
    """Add the copy of a variable of a model to another model, with its name and dims. The other model needs these dims.

    A free variable gets `transform`, and PyMC's default initial value.
    """
    copy.name = variable.name
    if variable in model.free_RVs:
        add_free(to, copy, transform)
    elif variable in model.observed_RVs:
        to.observed_RVs.append(copy)
        to.create_value_var(copy, transform=None, default_transform=None, value_var=model.rvs_to_values[variable])
    for sort in ("data_vars", "potentials", "deterministics"):
        if variable in getattr(model, sort):
            getattr(to, sort).append(copy)
    to.add_named_variable(copy, dims=model.named_vars_to_dims.get(variable.name))


def add_free(to: pm.Model, variable: Variable, transform: Transform | None) -> None:
    """Add a free variable and its value variable to a model, without registering its name and dims."""
    to.free_RVs.append(variable)
    to.create_value_var(variable, transform=transform, default_transform=None)
    to.set_initval(variable, None)
