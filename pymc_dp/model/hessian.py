"""Second derivatives of a log-density by differences of its gradient: few of them, where most entries are zero.

The members of a hierarchy meet in their prior's parameters alone, so that one pair of gradients tells all entries of
theirs: columns that share no row are differenced together, and parameters that meet most others have columns of their
own, which by symmetry are rows, too.

References
----------
Powell and Toint (1979), On the estimation of sparse Hessian matrices, SIAM Journal on Numerical Analysis 16.
"""

import contextlib
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.parameters import FloatArray

_STEP = 1e-4
#: At so many random points, changes of one parameter at a time show which entries are not zero everywhere.
_POINTS = 2


class Hessian:
    """The matrix of second derivatives, as a function of parameters.

    Parameters
    ----------
    gradient : callable
        Of the log-density, at and of shape (parameters,).
    size : int
        The number of parameters.
    """

    def __init__(self, gradient: Callable[[FloatArray], FloatArray], size: int) -> None:
        self._gradient, self._size = gradient, size

    def __call__(self, theta: FloatArray) -> FloatArray:
        """Return it at `theta`, by central differences, shape (parameters, parameters)."""
        there, alone, groups = self._plan
        found = np.zeros((self._size, self._size))
        for group in (*alone[:, None], *groups):
            way = np.isin(np.arange(self._size), group) * _STEP
            change = (self._gradient(theta + way) - self._gradient(theta - way)) / (2 * _STEP)
            found[:, group] = np.where(there[:, group], change[:, None], 0.0)
        others = np.setdiff1d(np.arange(self._size), alone)
        found[np.ix_(alone, others)] = found[np.ix_(others, alone)].T
        return 0.5 * (found + found.T)

    @functools.cached_property
    def _plan(self) -> tuple[NDArray[np.bool_], NDArray[np.intp], list[NDArray[np.intp]]]:
        """Return which entries there are, which columns are differenced alone, and groups of the others."""
        there = self._entries()
        order = np.argsort(-there.sum(axis=0), kind="stable")
        sorted_there = there[np.ix_(order, order)]
        # With the first n columns alone, the rest needs at least as many groups as one row of it has entries.
        of_rest = np.tril(sorted_there.sum(axis=1)[:, None] - np.cumsum(sorted_there, axis=1), -1).max(axis=0)
        n_alone = int(np.argmin([there.sum(axis=0).max(), *(1 + np.arange(self._size) + of_rest)]))
        return there, order[:n_alone], _apart(there, order[n_alone:])

    def _entries(self) -> NDArray[np.bool_]:
        """Return which entries are not zero everywhere; all if there is no finite gradient where that is seen."""
        rng, there = np.random.default_rng(0), np.eye(self._size, dtype=bool)
        for _ in range(_POINTS):
            theta = rng.standard_normal(self._size)
            changes = np.full(there.shape, np.nan)
            with contextlib.suppress(ArithmeticError, ValueError):  # as of a matrix that is not positive definite there
                here = self._gradient(theta)
                changes = np.array([self._gradient(theta + way) - here for way in np.eye(self._size)])
            if not np.isfinite(changes).all():
                return np.ones_like(there)
            there |= changes != 0.0
        return there | there.T


def _apart(there: NDArray[np.bool_], columns: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return groups of columns that share no row of these, each with the first group that has room for it."""
    groups: list[list[int]] = []
    taken: list[NDArray[np.bool_]] = []
    for column in columns:
        rows = there[columns, column]
        place = next((place for place, each in enumerate(taken) if not (each & rows).any()), len(groups))
        if place == len(groups):
            groups.append([])
            taken.append(np.zeros(columns.size, dtype=bool))
        groups[place].append(int(column))
        taken[place] |= rows
    return [np.array(group) for group in groups]
