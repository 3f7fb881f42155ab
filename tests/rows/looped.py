"""A scalar function of compiled row code over an array, as generated loops call it."""

import numba
import numpy as np


def looped(function):
    @numba.njit(fastmath=False, error_model="numpy")
    def loop(x, out):
        for i in range(x.size):
            out[i] = function(x[i])

    def call(x):
        out = np.empty_like(x)
        loop(np.ascontiguousarray(x), out)
        return out

    call.loop = loop
    return call
