"""The priors of a model as a model of its own, without anything of its rows."""

from collections.abc import Sequence

import pymc as pm
from pymc.model.fgraph import (
    ModelDeterministic,
    ModelFreeRV,
    ModelPotential,
    ModelVar,
    fgraph_from_model,
    model_from_fgraph,
)
from pytensor.graph.traversal import ancestors


def priors_of(model: pm.Model, published: Sequence[str] | None) -> pm.Model:
    """Return the priors of a model as a model of its own: free variables, potentials, and what is computed of them.

    Parameters
    ----------
    model : pm.Model
        Its observed variables and their data are left behind, with the coordinates that only they have.
    published : sequence of str, optional
        Deterministics that are kept. Default: all.
    """
    graph, _ = fgraph_from_model(model, inlined_views=True)
    kept = {
        node
        for node in graph.apply_nodes
        if isinstance(node.op, ModelFreeRV | ModelPotential)
        or (isinstance(node.op, ModelDeterministic) and (published is None or node.op.name in published))
    }
    needed = {var.owner for var in ancestors([node.outputs[0] for node in kept])}
    for node in list(graph.apply_nodes):
        if isinstance(node.op, ModelVar) and node not in needed:
            graph.remove_node(node)
    priors = model_from_fgraph(graph, mutate_fgraph=True)
    used = {dim for dims in priors.named_vars_to_dims.values() for dim in dims}
    priors._coords = {name: labels for name, labels in priors.coords.items() if name in used}  # noqa: SLF001
    return priors
