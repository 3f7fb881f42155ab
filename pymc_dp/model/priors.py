"""The priors of a model as a model of its own, without anything of its rows."""

from collections.abc import Sequence

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import clone_get_equiv

from pymc_dp.model.axes import length_of_dim


def priors_of(model: pm.Model, published: Sequence[str] | None) -> pm.Model:
    """Return the priors of a model as a model of its own: free variables, potentials, and what is computed of them.

    Whatever hangs on the model besides is left behind: observed variables, data, starting values, and the dims that
    only they have, whose lengths PyMC keeps as expressions of the data.

    Parameters
    ----------
    model : pm.Model
        A model that was accepted: its free variables and potentials depend on no rows.
    published : sequence of str, optional
        Deterministics that are kept. Default: all.
    """
    kept = [each for each in model.deterministics if published is None or each.name in published]
    variables = [*model.free_RVs, *kept, *model.potentials]
    dims = {each.name: model.named_vars_to_dims.get(each.name) for each in variables}
    used = {dim: model.dim_lengths[dim] for names in dims.values() for dim in names or () if dim is not None}
    lengths = {length: pt.constant(length_of_dim(model, dim, length), dtype="int64") for dim, length in used.items()}
    copies = clone_get_equiv([], variables, copy_inputs=False, copy_orphans=False, memo=dict(lengths))
    priors = pm.Model(model=None)
    for dim, length in used.items():
        priors.add_coord(dim, model.coords[dim], length=lengths[length])
    for variable in variables:
        copy = copies[variable]
        copy.name = variable.name
        if variable in model.free_RVs:
            priors.free_RVs.append(copy)
            transform = model.rvs_to_transforms[variable]
            priors.create_value_var(copy, transform=transform, default_transform=None)
            priors.set_initval(copy, None)
        else:
            (priors.potentials if variable in model.potentials else priors.deterministics).append(copy)
        priors.add_named_variable(copy, dims=dims[variable.name])
    return priors
