"""Which engine computes the derivatives of a model's rows."""

from typing import Literal

from pytensor.graph.utils import MethodNotDefined

from pymc_dp.exceptions import InvalidArgument
from pymc_dp.rows.engine import RowEngine
from pymc_dp.rows.graphs import RowGraphs
from pymc_dp.rows.reference import ReferenceEngine

EngineName = Literal["fused", "reference"]


def engine_for(graphs: RowGraphs, name: EngineName | None = None) -> RowEngine:
    """Return the fused engine if it is installed and has a translation for the model, else the reference engine.

    The choice depends on the model's graph and on shapes, never on values. `name` asks for one of them;
    `RowEngine.reason` says why the fused one is not taken.

    Raises
    ------
    InvalidArgument
        If `name` names no engine, or one that cannot do this model.
    """
    if name not in (None, "fused", "reference"):
        raise InvalidArgument(f"engine must be 'fused' or 'reference', but is {name!r}.")
    if name == "reference":
        return ReferenceEngine(graphs, "The reference engine was asked for.")
    try:
        from pymc_dp.rows.fused import FusedEngine, NotLowered  # noqa: PLC0415  optional
    except ModuleNotFoundError:
        engine: RowEngine = ReferenceEngine(graphs, "The fused engine is not installed.")
    else:
        try:
            engine = FusedEngine(graphs)
        except NotLowered as error:
            engine = ReferenceEngine(graphs, f"The model has no translation for the fused engine: {error}.")
        except (NotImplementedError, MethodNotDefined) as error:
            # PyTensor has no compiled form of an operation; which one is in its message.
            engine = ReferenceEngine(graphs, f"PyTensor has no compiled function of a number: {error}.")
    if name == "fused" and engine.name != "fused":
        raise InvalidArgument(f"engine='fused' is not possible here. {engine.reason}")
    return engine
