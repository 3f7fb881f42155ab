"""A model of nothing: for releases of a table's columns alone, which need none."""

import numpy as np
import pymc as pm


def model_of_a_column(values: np.ndarray) -> pm.Model:
    """Return a model with one observed variable, whose likelihood nobody asks for."""
    with pm.Model(model=None) as model:
        pm.Normal("value", pm.Normal("level"), 1.0, observed=values)
    return model
