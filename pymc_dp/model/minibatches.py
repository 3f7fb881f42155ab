"""PyMC's own minibatches: refused, because only batches that are drawn by this package are accounted for."""

import pymc as pm
from pymc.data import MinibatchOp
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.traversal import ancestors

from pymc_dp.exceptions import UnsupportedModel


def refuse_minibatches(model: pm.Model) -> None:
    """Refuse `pm.Minibatch` and ``total_size=``.

    Raises
    ------
    UnsupportedModel
        If the model has either.
    """
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
