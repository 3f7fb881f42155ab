"""Probabilities of the responses that rows could have had: compiled, and imported with Numba when it is first used."""

import numpy as np
from numba import njit

from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.elementary import exp


@njit(nogil=True, fastmath=False, error_model="numpy", cache=True)
def write(logs: FloatArray, stand_for: FloatArray, out: FloatArray) -> None:
    """Write the probabilities of responses, shape (responses, rows), row by row and by the same steps for each."""
    n_responses, n = logs.shape
    for i in range(n):
        largest = -np.inf
        for k in range(n_responses):
            if logs[k, i] > largest:  # noqa: PLR1730  what is no number is passed over
                largest = logs[k, i]
        total = 0.0
        for k in range(n_responses):
            out[k, i] = 0.0
            if logs[k, i] > -np.inf:  # else it is no number, or the response cannot be
                out[k, i] = stand_for[k] * exp(logs[k, i] - largest)
            total += out[k, i]
        known = 0.0 < total < np.inf
        for k in range(n_responses):
            out[k, i] = out[k, i] / total if known else 0.0
