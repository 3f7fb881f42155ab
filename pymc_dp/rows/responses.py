"""The possible responses of a row, and their probabilities in the model. Means over them do not use the row's response.

Clipping biases the sum of scores if large scores have one sign, such as those of large counts in a regression of
counts. The mean of the clipped part, over responses from the model given the row's covariates, is added to the clipped
score (`pymc_dp.release.preconditioned`), so that the mean of the sum is zero if the model holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_dp.model.arrays import leaf_value
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.split import RowLeaf
from pymc_dp.model.structure import ResponsesOfRows
from pymc_dp.rows.on_demand import clip
from pymc_dp.rows.table import IntArray

#: Stride of the first pass over the possible responses, if there are more than twice this number.
_FIRST_STRIDE = 8
#: Possible strides of the second pass.
_STRIDES = np.array([1, 2, 4, _FIRST_STRIDE], dtype=np.uint8)
#: Responses between two of the first pass are skipped if both log-likelihoods are this far below the largest: e^-30 is
#: 1e-13.
_FAR_BELOW = 30.0
#: Responses of the first pass within this of the largest log-probability measure the spread of a row's response.
_FEW_BELOW = 8.0
#: Responses of a smaller probability are left out of means.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class PossibleResponses:
    """The possible values of the input that holds responses. Public: a function of the model's distributions.

    `place` is the input. `values` are the possible responses in increasing order, or a grid of them if they are
    infinitely many; `stand_for` are the quadrature weights of the grid, or 1. For a `dense` grid a coarser one suffices
    for rows whose response varies much.
    """

    place: int
    values: tuple[float, ...]
    stand_for: tuple[float, ...]
    dense: bool = False

    @property
    def _step(self) -> int:
        return _FIRST_STRIDE if len(self.values) > 2 * _FIRST_STRIDE else 1

    def strides(self, log_likelihoods: Callable[[IntArray], FloatArray], n_rows: int) -> NDArray[np.uint8]:
        """Return the strides of the responses that count, from each response of the first pass to the next.

        Shape (responses of the first pass, rows), powers of 2. `log_likelihoods` takes places in `values` and returns
        the rows' log-likelihoods of these responses, shape (responses, rows). The first pass takes every eighth of many
        responses, and these always count. Responses between two of them count unless the log-likelihoods of both are
        far below the row's largest. No others matter if the probabilities have one mode, or modes that are at least as
        wide as the spacing of the first pass.
        """
        first = np.arange(0, len(self.values), self._step)
        if self._step == 1:
            return np.ones((first.size, n_rows), dtype=np.uint8)
        logs = log_likelihoods(first)
        sufficient = _STRIDES[:1]
        if self.dense:  # responses at most a standard deviation apart suffice
            weighted = logs + np.log(np.array(self.stand_for)[first])[:, None]
            # Normal responses with a density above e^-8 of the largest are within four standard deviations of the mode.
            inside = np.sum(weighted > np.fmax.reduce(weighted, axis=0) - _FEW_BELOW, axis=0)
            sufficient = _STRIDES[np.searchsorted(_STRIDES[1:], inside)]
        return np.where(clip.are_near(logs, _FAR_BELOW), sufficient, _STRIDES[-1])

    def alike(self, strides: NDArray[np.uint8], most: int) -> list[IntArray]:
        """Return groups of rows for which about the same responses count, with about `most` pairs in each at most."""
        between = strides < self._step
        last = len(between) - np.argmax(between[::-1], axis=0)
        n_pairs = int(np.sum(self._step // strides))  # of a row and a response that counts
        return np.array_split(np.lexsort((last, strides.min(axis=0))), -(-n_pairs // most) or 1)

    def probabilities(
        self, log_likelihoods: Callable[[IntArray], FloatArray], strides: NDArray[np.uint8], least: float = _NEGLIGIBLE
    ) -> tuple[IntArray, FloatArray]:
        """Return the places of the responses that count for some row, and their probabilities, (responses, rows).

        The probabilities of a row add up to 1 before those up to `least` are set to zero; all are zero if they cannot
        be normalised. The row alone decides which responses count for it: log-likelihoods of others are not used.
        """
        numbers = np.arange(len(self.values))
        finest = np.repeat(strides.min(axis=1, initial=self._step), self._step)[: numbers.size]
        which = np.flatnonzero(numbers % finest == 0)
        weights = np.array(self.stand_for)[which]
        shares, occur = clip.probabilities(log_likelihoods(which), weights, which, strides, self._step, least)
        return (which, shares) if self._step == 1 else (which[occur], shares[occur])


def possible_responses(leaves: Sequence[RowLeaf], responses: ResponsesOfRows) -> PossibleResponses | None:
    """Return the possible responses of a row, if they are known and one input holds them; else None."""
    places = [place for place, leaf in enumerate(leaves) if leaf.observed and leaf.row_shape() == ()]
    if not responses.values or len(places) != 1:
        return None
    values = np.array(responses.values)
    held = leaf_value(leaves[places[0]].source).dtype
    if held.kind in "iu":  # converting a larger number would raise
        values = values[values <= np.iinfo(held).max]
    half = 0.5 * np.diff(values)
    beyond = (0.5, 0.5) if responses.are_whole else (half[0], half[-1])
    edges = [values[0] - beyond[0], *(values[1:] - half), values[-1] + beyond[1]]
    stand_for = np.ones(values.size) if responses.are_all else np.diff(edges)
    return PossibleResponses(places[0], tuple(values.tolist()), tuple(stand_for.tolist()), not responses.are_whole)
