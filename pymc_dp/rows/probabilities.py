"""Probabilities of the responses that rows could have had: compiled, and imported with Numba when it is first used."""

import numpy as np
from numba import njit

from pymc_dp.model.parameters import FloatArray
from pymc_dp.rows.elementary import exp


@njit(nogil=True, fastmath=False, error_model="numpy", cache=True)
def write(logs: FloatArray, stand_for: FloatArray, out: FloatArray) -> None:
    """Write the probabilities of responses, shape (responses, rows), by the same steps for each row."""
    n_responses, n = logs.shape
    largest, total = np.full(n, -np.inf), np.zeros(n)
    for k in range(n_responses):
        for i in range(n):
            if logs[k, i] > largest[i]:  # noqa: PLR1730  what is no number is passed over
                largest[i] = logs[k, i]
    for k in range(n_responses):
        for i in range(n):
            out[k, i] = 0.0
            if logs[k, i] > -np.inf:  # else it is no number, or the response cannot be
                out[k, i] = stand_for[k] * exp(logs[k, i] - largest[i])
            total[i] += out[k, i]
    for k in range(n_responses):
        for i in range(n):
            out[k, i] = out[k, i] / total[i] if 0.0 < total[i] < np.inf else 0.0
