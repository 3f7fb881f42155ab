"""Responses that a row could have had, and with what probability by the model: means over them ask no row's own.

A clipped score is biased where long scores point to one side: in a regression of counts, the large counts. What
clipping takes off on average over the responses that the model draws for the row's covariates is added again
(`pymc_dp.release.preconditioned`), and then nothing is missing on average where the model holds.
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

#: Of more responses than this, every so many-th is asked for first.
_FIRST_ASKED = 8
#: Every how many-th of them can be enough.
_STRIDES = np.array([1, 2, 4, _FIRST_ASKED], dtype=np.uint8)
#: Between two of those whose log-likelihoods both are smaller than the largest by this, nothing counts: e^-30 is 1e-13.
_FAR_BELOW = 30.0
#: And by which logarithm the probabilities are smaller of responses that are counted to see how much a row's vary.
_FEW_BELOW = 8.0
#: Responses of a smaller probability are left out of means.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class PossibleResponses:
    """Responses that one input of the rows could have held instead. Public: a function of the model's distributions.

    `place` is the input that holds the responses. `values` are these in increasing order, or some of them where they
    are infinitely many; each stands for `stand_for` of them, which is 1 where these are all. Where they are `dense`,
    rows whose responses vary much are told enough by some of them at equal distances.
    """

    place: int
    values: tuple[float, ...]
    stand_for: tuple[float, ...]
    dense: bool = False

    @property
    def _step(self) -> int:
        return _FIRST_ASKED if len(self.values) > 2 * _FIRST_ASKED else 1

    def strides(self, log_likelihoods: Callable[[IntArray], FloatArray], n_rows: int) -> NDArray[np.uint8]:
        """Return every how many-th response counts from one to the next of those that are asked for first.

        Shape (responses that are asked for first, rows), powers of 2. `log_likelihoods` returns those of the rows with
        each of some of `values`, which are named by their places there, shape (responses, rows). Of many responses it
        is asked for every eighth, and these always count. Those between two count if one of the two is not far below
        the row's largest. Nothing else does where probabilities have one mode, or modes that are as wide as the
        distance of those responses.
        """
        first = np.arange(0, len(self.values), self._step)
        if self._step == 1:
            return np.ones((first.size, n_rows), dtype=np.uint8)
        logs = log_likelihoods(first)
        near = clip.are_near(logs, _FAR_BELOW)
        return np.where(near, self._enough(logs, first) if self.dense else _STRIDES[0], _STRIDES[-1])

    def _enough(self, logs: FloatArray, first: IntArray) -> NDArray[np.uint8]:
        """Return every how many-th response tells enough of each row: they are a standard deviation apart, or less.

        Those that are less than e^8 times as rare as the one that occurs most are up to four standard deviations away,
        if responses are normal.
        """
        weighted = logs + np.log(np.array(self.stand_for)[first])[:, None]
        inside = np.sum(weighted > np.fmax.reduce(weighted, axis=0) - _FEW_BELOW, axis=0)
        return _STRIDES[np.searchsorted(_STRIDES[1:], inside)]

    def alike(self, strides: NDArray[np.uint8], most: int) -> list[IntArray]:
        """Return the places of rows for which about the same responses count, with up to about `most` of all rows."""
        between = strides < self._step
        last = len(between) - np.argmax(between[::-1], axis=0)
        n_asked = int(np.sum(self._step // strides))
        return np.array_split(np.lexsort((last, strides.min(axis=0))), -(-n_asked // most) or 1)

    def probabilities(
        self, log_likelihoods: Callable[[IntArray], FloatArray], strides: NDArray[np.uint8], least: float = _NEGLIGIBLE
    ) -> tuple[IntArray, FloatArray]:
        """Return which responses count for some row, and their probabilities, shape (responses, rows).

        Each row's add up to 1, but for those up to `least`, which are zero. Where that cannot be, all are. What counts
        for a row is decided by this row alone: another row has its log-likelihoods computed for nothing.
        """
        numbers = np.arange(len(self.values))
        finest = np.repeat(strides.min(axis=1, initial=self._step), self._step)[: numbers.size]
        asked = np.flatnonzero(numbers % finest == 0)
        weights = np.array(self.stand_for)[asked]
        shares, occur = clip.probabilities(log_likelihoods(asked), weights, asked, strides, self._step, least)
        return (asked, shares) if self._step == 1 else (asked[occur], shares[occur])


def possible_responses(leaves: Sequence[RowLeaf], responses: ResponsesOfRows) -> PossibleResponses | None:
    """Return the possible responses of a row, if the model says which, and one input holds them."""
    places = [place for place, leaf in enumerate(leaves) if leaf.observed and leaf.row_shape() == ()]
    if not responses.values or len(places) != 1:
        return None
    values = np.array(responses.values)
    held = leaf_value(leaves[places[0]].source).dtype
    if held.kind in "iu":  # writing a larger number would raise
        values = values[values <= np.iinfo(held).max]
    half = 0.5 * np.diff(values)
    beyond = (0.5, 0.5) if responses.are_whole else (half[0], half[-1])
    edges = [values[0] - beyond[0], *(values[1:] - half), values[-1] + beyond[1]]
    stand_for = np.ones(values.size) if responses.are_all else np.diff(edges)
    return PossibleResponses(places[0], tuple(values.tolist()), tuple(stand_for.tolist()), not responses.are_whole)
