"""What no private run can have in its model, wherever the rows are."""

import pymc as pm
from pymc.data import MinibatchOp
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_dp.exceptions import UnsupportedModel
from pymc_dp.model.operations import refuse_unlisted


def refuse_unsplittable(model: pm.Model) -> None:
    """Refuse a model whose likelihood cannot be split into rows, by its variables and operations alone.

    Raises
    ------
    UnsupportedModel
        If it has no observed variables, imputes missing values, has discrete free variables or minibatches, or anything
        that is not listed.
    """
    if not model.observed_RVs:
        raise UnsupportedModel("The model has no observed variable: pass the data as observed=...")
    _refuse_minibatches(model)
    _refuse_unlisted(model)
    free = {rv.name for rv in model.free_RVs}
    for rv in model.observed_RVs:
        stem = rv.name.removesuffix("_observed")
        if stem != rv.name and f"{stem}_unobserved" in free:
            raise UnsupportedModel(
                f"{stem!r} has missing observed values, which PyMC would impute with one parameter each. "
                "Drop or impute them before modelling."
            )
    for rv in model.free_RVs:
        if model.rvs_to_values[rv].dtype.startswith(("int", "uint", "bool")):
            raise UnsupportedModel(
                f"The free variable {rv.name!r} is discrete, and gradients need continuous ones. Sum it out of "
                "the likelihood (for example with pm.Mixture)."
            )


def _refuse_unlisted(model: pm.Model) -> None:
    """Refuse operations and types that are not on the list, anywhere in the model as it was written."""
    graphs = {f"{each.name!r}": [each] for each in [*model.basic_RVs, *model.potentials, *model.deterministics]}
    graphs |= {f"The data of {rv.name!r}": [value] for rv, value in model.rvs_to_values.items()}
    for rv, start in model.rvs_to_initial_values.items():
        graphs[f"The initval of {rv.name!r}"] = [start] if isinstance(start, Variable) else []
    refuse_unlisted(graphs)


def _refuse_minibatches(model: pm.Model) -> None:
    """Refuse `pm.Minibatch` and ``total_size=``: only batches that are drawn by this package are accounted for."""
    for variable in ancestors([*model.basic_RVs, *model.rvs_to_values.values(), *model.potentials]):
        if variable.owner is not None and isinstance(variable.owner.op, MinibatchOp):
            raise UnsupportedModel(
                "The model holds pm.Minibatch, which draws rows anew, and with replacement, whenever the likelihood is "
                "computed: one person may be drawn several times, and no accounting here covers such batches. Pass "
                "the whole table, and batch_size= to a sampler that draws batches itself (DPSGLD, DPSGHMC, DPSGNHT, "
                "DPMinibatchPenalty)."
            )
    for rv in model.observed_RVs:
        if rv.owner is not None and isinstance(rv.owner.op, MinibatchRandomVariable):
            raise UnsupportedModel(
                f"{rv.name!r} has total_size=, which multiplies the likelihood of every row. Leave it out: samplers "
                "that draw batches scale them by themselves."
            )
