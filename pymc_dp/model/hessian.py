"""Sparse Hessians of log-densities by finite differences of the gradient.

Columns of the Hessian that have no nonzero row in common are differenced together, with one pair of gradients: members
of a hierarchy, for instance, depend on each other only by the parameters of their prior. Dense columns, such as those
of these parameters, are differenced one by one; by symmetry they are also the rows of the dense parameters.

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
#: Number of random points at which single parameters are changed, to find the nonzero pattern.
_POINTS = 2


class Hessian:
    """The matrix of second derivatives, as a function of parameters.

    Parameters
    ----------
    gradient : callable
        The gradient of the log-density; argument and value have shape (parameters,).
    size : int
        The number of parameters.
    """

    def __init__(self, gradient: Callable[[FloatArray], FloatArray], size: int) -> None:
        self._gradient, self._size = gradient, size

    def __call__(self, theta: FloatArray) -> FloatArray:
        """Return the Hessian at `theta`, by central differences, shape (parameters, parameters)."""
        pattern, alone, groups = self._plan
        found = np.zeros((self._size, self._size))
        for group in (*alone[:, None], *groups):
            step = np.isin(np.arange(self._size), group) * _STEP
            change = (self._gradient(theta + step) - self._gradient(theta - step)) / (2 * _STEP)
            found[:, group] = np.where(pattern[:, group], change[:, None], 0.0)
        others = np.setdiff1d(np.arange(self._size), alone)
        found[np.ix_(alone, others)] = found[np.ix_(others, alone)].T
        return 0.5 * (found + found.T)

    @functools.cached_property
    def _plan(self) -> tuple[NDArray[np.bool_], NDArray[np.intp], list[NDArray[np.intp]]]:
        """Return the nonzero pattern, the columns to difference alone, and groups of the other columns."""
        pattern = self._nonzero_pattern()
        order = np.argsort(-pattern.sum(axis=0), kind="stable")
        in_order = pattern[np.ix_(order, order)]
        # With the first n columns alone, the number of groups is at least the nonzero count of any remaining row.
        of_rest = np.tril(in_order.sum(axis=1)[:, None] - np.cumsum(in_order, axis=1), -1).max(axis=0)
        n_alone = int(np.argmin([pattern.sum(axis=0).max(), *(1 + np.arange(self._size) + of_rest)]))
        return pattern, order[:n_alone], _disjoint_groups(pattern, order[n_alone:])

    def _nonzero_pattern(self) -> NDArray[np.bool_]:
        """Return the entries that are not zero everywhere; all entries if a tried gradient is not finite."""
        rng, pattern = np.random.default_rng(0), np.eye(self._size, dtype=bool)
        for _ in range(_POINTS):
            theta = rng.standard_normal(self._size)
            changes = np.full(pattern.shape, np.nan)
            with contextlib.suppress(ArithmeticError, ValueError):  # for example a matrix that is not positive definite
                gradient = self._gradient(theta)
                changes = np.array([self._gradient(theta + step) - gradient for step in np.eye(self._size)])
            if not np.isfinite(changes).all():
                return np.ones_like(pattern)
            pattern |= changes != 0.0
        return pattern | pattern.T


def _disjoint_groups(pattern: NDArray[np.bool_], columns: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return greedily built groups of columns that have no nonzero row of `columns` in common."""
    groups: list[list[int]] = []
    taken: list[NDArray[np.bool_]] = []
    for column in columns:
        rows = pattern[columns, column]
        place = next((place for place, each in enumerate(taken) if not (each & rows).any()), len(groups))
        if place == len(groups):
            groups.append([])
            taken.append(np.zeros(columns.size, dtype=bool))
        groups[place].append(int(column))
        taken[place] |= rows
    return [np.array(group) for group in groups]
