"""Rényi differential privacy: bounds at integer orders, added over releases, converted once at the end.

Bounds at the same order add under adaptive composition (Mironov 2017, Proposition 1).
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pymc_dp import _validate
from pymc_dp.accounting.events import Releases

#: The orders that are searched. All are integers: the subsampling theorems are for these.
ORDERS = (*range(2, 65), *range(68, 129, 4), *range(144, 257, 16), *range(320, 1025, 64))


@lru_cache(maxsize=4096)
def _curve_of_one(single: Releases) -> NDArray[np.float64]:
    """Return the bound of one release at each of `ORDERS`; infinite where no theorem covers it."""
    return np.array([single.renyi_bound(order) for order in ORDERS])


def renyi_curve(releases: Sequence[Releases]) -> NDArray[np.float64]:
    """Return the bound of all releases together at each of `ORDERS`."""
    return np.sum([each.count * _curve_of_one(each.alone()) for each in releases], axis=0)


def convert(order: int, bound: float, delta: float) -> float:
    """Return an epsilon for which a mechanism with a Rényi bound is (epsilon, delta)-private.

    References
    ----------
    Canonne, Kamath and Steinke (2020), The discrete Gaussian for differential privacy, Proposition 12.
    """
    order = _validate.whole("order", order, at_least=2)
    bound = _validate.not_negative("bound", bound)
    delta = _validate.open_unit_interval("delta", delta)
    return max(0.0, bound + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0))


def renyi_epsilon(releases: Sequence[Releases], delta: float) -> tuple[float, int]:
    """Return the smallest epsilon over all orders, and the order that gives it.

    The releases have to be for one relation; `pymc_dp.accounting.account` checks that. Infinite where no order is
    covered for all of them.
    """
    delta = _validate.open_unit_interval("delta", delta)
    candidates = [
        (convert(order, bound, delta), order)
        for order, bound in zip(ORDERS, renyi_curve(releases).tolist(), strict=True)
        if math.isfinite(bound)
    ]
    return min(candidates, default=(math.inf, 0))
