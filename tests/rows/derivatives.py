"""Derivatives of all units of a likelihood, put together from its chunks."""

import numpy as np


def along(likelihood, theta, direction):
    """Return slopes and negative second derivatives along a direction, each of shape (units,)."""
    parts = list(likelihood.each_chunk(lambda chunk: chunk.along(theta, direction)))
    return [np.concatenate(each) for each in zip(*parts, strict=True)]
